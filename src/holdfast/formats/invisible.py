"""Characters that people do not see but models read. They are reported; no text is changed.

Zero-width characters, direction changes, tags and runs of variation selectors can contain hidden words. They are fine
where a script needs them: joiners between emoji and in joining scripts, zero-width spaces in scripts without spaces,
tags in a flag, one selector after a character.
"""

from __future__ import annotations

import re
import unicodedata

import msgspec

_SUSPECT = re.compile(
    "[\u200b-\u200d\u2060-\u2064\ufeff\u202a-\u202e\u2066-\u2069\u180e\u115f\u1160\u3164\uffa0"
    "\U000e0000-\U000e007f\U000e0100-\U000e01ef]|[\ufe00-\ufe0f]{2,}"
)
_FLAG = re.compile("\U0001f3f4[\U000e0020-\U000e007e]{1,8}\U000e007f")
_JOINING = re.compile(
    r"ARABIC|SYRIAC|MONGOLIAN|NKO|MANDAIC|HEBREW|DEVANAGARI|BENGALI|GURMUKHI|GUJARATI|ORIYA|TAMIL|TELUGU|KANNADA|"
    r"MALAYALAM|SINHALA|TIBETAN|MYANMAR|KHMER|BALINESE|JAVANESE"
)
_SPACELESS = re.compile(r"THAI|LAO|KHMER|MYANMAR|TIBETAN|CJK|HIRAGANA|KATAKANA|JAVANESE|BALINESE|TAI|IDEOGRAPHIC")
_SELECTOR = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_DIRECTION = re.compile("[\u202a-\u202e\u2066-\u2069]")
_TAG = re.compile("[\U000e0000-\U000e007f]")


class Unseen(msgspec.Struct, frozen=True):
    """One such character: its line, from 1, and its sort."""

    line: int
    what: str


def find(text: str) -> list[Unseen]:
    """Return the suspicious characters, one of each sort per line."""
    if text.isascii():
        return []
    flags = [span.span() for span in _FLAG.finditer(text)]
    unseen: dict[Unseen, None] = {}
    line, at = 1, 0
    for found in _SUSPECT.finditer(text):
        place, char = found.start(), found[0][0]
        if any(start <= place < end for start, end in flags) or _is_needed(text, place):
            continue
        line, at = line + text.count("\n", at, place), place
        what = (
            "turns the direction of text" if _DIRECTION.match(char)
            else "tag characters" if _TAG.match(char)
            else "variation selectors" if _SELECTOR.match(char)
            else "zero-width characters"
        )  # fmt: skip
        unseen[Unseen(line, what)] = None
    return list(unseen)


def sorts(text: str) -> str:
    """Name the sorts of suspicious characters in a text, "" if there are none."""
    return "" if text.isascii() else ", ".join(sorted({each.what for each in find(text)}))


def _is_needed(text: str, place: int) -> bool:
    """Check whether the script around a character needs it."""
    char, before, after = text[place], text[place - 1 : place], text[place + 1 : place + 2]
    script, following = (unicodedata.name(each, "") if each else "" for each in (before, after))
    if char == "\ufeff":
        return place == 0
    if char == "\u200d" and _is_emoji(before) and _is_emoji(after):
        return True
    if char in "\u200c\u200d":
        return bool(_JOINING.match(script))
    if char == "\u200b":
        return bool(_SPACELESS.match(script) and _SPACELESS.match(following))
    return (
        "\U000e0100" <= char <= "\U000e01ef" and script.startswith("CJK") and not "\U000e0100" <= after <= "\U000e01ef"
    )


def _is_emoji(char: str) -> bool:
    return bool(char) and (char in "\ufe0f\u20e3" or unicodedata.category(char) in ("So", "Sk", "Sm"))
