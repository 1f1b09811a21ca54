"""File and folder names, made here and never taken from a caller.

A name is a readable slug of the title plus eight hex digits of a hash of the whole title, so that two titles
never share a file, whatever a file system thinks of case, accents or length.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import re
import unicodedata
from collections.abc import Iterable

from holdfast.errors import Invalid

_NOT_WORD = re.compile(r"[\W_]+")
_ORDINARY = re.compile(r"(?:[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_-])?(?:/(?!$)|$))+\Z")
_MAX_CHARS, _MAX_BYTES = 48, 120
MAX_NAME_BYTES = 255


def same(text: str) -> str:
    """Return the form in which names are compared: NFC, without case."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()).strip()


def same_words(one: str, other: str) -> bool:
    """Do two texts say the same, whatever their case and line breaks?"""
    return one == other or same(" ".join(one.split())) == same(" ".join(other.split()))


def slug(text: str, otherwise: str = "untitled") -> str:
    """Return a short, lower-case, file-safe form of the text; `otherwise` when nothing is left of it."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    short = _NOT_WORD.sub("-", folded)[:_MAX_CHARS]
    while len(short.encode("utf-8", "ignore")) > _MAX_BYTES:
        short = short[:-1]
    return short.strip("-") or otherwise


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def unique(text: str, otherwise: str = "untitled", *, ignore_case: bool = False) -> str:
    """Return `<slug>-<8 hex>`; with `ignore_case`, twins that differ only in case share one name."""
    identity = same(text) if ignore_case else unicodedata.normalize("NFC", text)
    return f"{slug(text, otherwise)}-{short_hash(identity)}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is like this one, "" when none is."""
    by_form = {same(candidate): candidate for candidate in known}
    near = difflib.get_close_matches(same(name), by_form, n=1, cutoff=0.6)
    return by_form[near[0]] if near else ""


def close_to(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean "Y"?` for the known name nearest to this one, or nothing."""
    near = nearest(name, known)
    return f' Did you mean "{near}"?' if near else ""


def check_text(*texts: str) -> None:
    """Refuse text that no file can hold: half of a surrogate pair."""
    for text in texts:
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise Invalid(
                    f"The text holds half a character at position {error.start}.", "Send valid Unicode."
                ) from None


def is_text(text: str) -> bool:
    """Can a file hold this text?"""
    try:
        check_text(text)
    except Invalid:
        return False
    return True


def check_given(**given: object) -> None:
    """Refuse what should be text and is not, by the name that the caller knows it by."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise Invalid(f"{name} is {value!r}.", "Use text.")
        check_text(value)


def check_flag(**given: object) -> None:
    """Refuse what should be true or false and is not: most texts would pass for true."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise Invalid(f"{name} is {value!r}.", "Use True or False.")


@functools.lru_cache(maxsize=4096)
def check_path(path: str) -> tuple[str, ...]:
    """Return the parts of a path that may be used inside a root, or refuse it."""
    if _ORDINARY.match(path) and len(path) < MAX_NAME_BYTES:
        return tuple(path.split("/"))  # nearly all of them, at a tenth of the cost
    check_text(path)
    parts = tuple(path.split("/"))
    faults = (
        "\0" in path
        or "\\" in path
        or len(path) > 4096
        or any(part in ("", ".", "..") or part.casefold() == ".git" or part != part.rstrip(" .") for part in parts)
    )
    if faults:
        raise Invalid(f"{path[:200]!r} is not a path inside the memory.", "Use a relative path without . or ..")
    if any(len(part.encode("utf-8")) > MAX_NAME_BYTES for part in parts):
        raise Invalid(f"A name in {path[:80]!r}… is longer than {MAX_NAME_BYTES} bytes.", "Shorten it.")
    return parts
