"""Dated entries of one Markdown file: `### [YYYY-MM-DD] Title`, category and tags, text, `---`.

Entries are split at their headings only; a `---` inside an entry is part of it, and a heading inside a fenced
block is text. What stands before the first heading belongs to the file and is never touched.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator

import msgspec

from holdfast.errors import Invalid
from holdfast.formats.fences import FENCE
from holdfast.formats.fences import closes as ends
from holdfast.formats.markdown import lines_of
from holdfast.model import names
from holdfast.model.records import version_of
from holdfast.model.times import parse_ms

_HEADING = re.compile(r"###[ \t]+\[(\d{4}-\d{2}-\d{2})\](.*)", re.DOTALL)
_FIELD = re.compile(r"\*\*(Category|Tags|Archived):\*\*(.*)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_BLANK = " \t\r\n"
MAX_TITLE = 300
_RULE = re.compile(r"(?:\A|\n)---[ \t]*\Z")


class Section(msgspec.Struct, frozen=True):
    """One entry. `source` is its exact text in the file, heading included."""

    anchor: str
    date: str
    title: str
    text: str
    source: str
    line: int
    category: str = ""
    tags: tuple[str, ...] = ()
    archived: str = ""
    start: int = 0
    """Where its source starts in the text."""

    @property
    def version(self) -> str:
        """The version of the entry itself, whatever stands behind it."""
        return version_of(self.source.rstrip().encode("utf-8", "surrogateescape"))

    @property
    def fault(self) -> str:
        return "" if parse_ms(self.date) is not None else f"[{self.date}] is not a date of the calendar"


def parse(text: str) -> list[Section]:
    """Read every entry of a file, in order."""
    seen: dict[str, int] = {}
    result = []
    for line, start, source in _entries(text):
        lines = lines_of(source)
        heading = _HEADING.match(lines[0])
        assert heading is not None  # _entries cuts at headings
        date, title = heading[1], heading[2].strip(_BLANK)
        anchor = f"{date}-{names.slug(title)}"
        seen[anchor] = seen.get(anchor, 0) + 1
        if seen[anchor] > 1:
            anchor += f"~{seen[anchor]}"
        found, body = _fields(lines[1:])
        tags = tuple(tag.strip() for tag in found.get("Tags", "").split(",") if tag.strip())
        category, archived = found.get("Category", ""), found.get("Archived", "")
        result.append(Section(anchor, date, title, body, source, line, category, tags, archived, start))
    return result


def render(date: str, title: str, text: str, category: str = "", tags: tuple[str, ...] = (), archived: str = "") -> str:
    """Write one entry, ready to be added to a file; reading it back gives the same parts."""
    if parse_ms(date) is None or len(date) != 10:
        raise Invalid(f"{date!r} is not a date.", "Use YYYY-MM-DD.")
    if not title.strip() or title.splitlines() != [title] or len(title) > MAX_TITLE or _CONTROL.search(title):
        raise Invalid(
            f"The title of an entry is one line of text, of {MAX_TITLE} characters at most.",
            "Shorten it; the rest belongs into the text.",
        )
    if "\0" in text:
        raise Invalid("The text holds a NUL character.", "Leave it out.")
    if any("," in tag or not tag.strip() or tag.splitlines() != [tag] for tag in tags):
        raise Invalid("A tag of an entry is one word or phrase without a comma.", "Split it into several tags.")
    category, tags = category.strip(), tuple(tag.strip() for tag in tags)
    if category and category.splitlines() != [category]:
        raise Invalid("The category of an entry is one line of text.", "Shorten it.")
    fields = (("Category", category), ("Tags", ", ".join(tags)), ("Archived", archived))
    head = "".join(f"**{name}:** {value}\n" for name, value in fields if value)
    if not head and _FIELD.match(text.strip().partition("\n")[0]):
        head = "**Tags:**\n"  # so that a text that looks like a field stays text
    entry = f"### [{date}] {title.strip()}\n\n{head}{chr(10) if head else ''}{text.strip()}\n\n---\n"
    if len(list(_entries(entry))) != 1 or _fenced(lines_of(entry))[1]:
        raise Invalid(
            "The text holds an entry heading of its own, or a code fence that is never closed.",
            "Indent the heading or close the fence, so that the next entry stays an entry.",
        )
    return entry


def add(text: str, entry: str) -> str:
    """Return the file with one more entry at its end, in the file's own line ends."""
    newline = "\r\n" if "\r\n" in text else "\n"
    entry = entry.replace("\r\n", "\n").replace("\n", newline)
    if not text.strip():
        return text + ("" if text.endswith("\n") or not text else newline) + entry
    gap = "" if text.endswith(newline * 2) else newline if text.endswith("\n") else newline * 2
    return text + gap + entry


def _entries(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield line number, start and source of every entry."""
    lines = lines_of(text)
    fenced = _fenced(lines)[0]
    start, start_line, position = -1, 0, 0
    for number, line in enumerate(lines, 1):
        if number not in fenced and _HEADING.match(line):
            if start >= 0:
                yield start_line, start, text[start:position]
            start, start_line = position, number
        position += len(line)
    if start >= 0:
        yield start_line, start, text[start:]


def _fenced(lines: list[str]) -> tuple[set[int], str]:
    """Return the numbers of the lines inside fenced blocks, and the fence that was left open, if any.

    A fence that is never closed counts as text: one slip of the pen must not swallow the entries after it. Where an
    entry heading stands behind an open fence, it is inside the block only if what follows says so: the next fence
    must be able to close it, and the number of fences that are left must come out even afterwards.
    """
    fences = [(number, found.group(1), line) for number, line in enumerate(lines, 1) if (found := FENCE.match(line))]
    headings = [number for number, line in enumerate(lines, 1) if _HEADING.match(line)]
    inside: set[int] = set()
    fence, opened = "", 0
    for place, (number, mark, line) in enumerate(fences):
        closes = bool(fence) and ends(line, fence)
        crossed = bisect.bisect_right(headings, opened) < bisect.bisect_left(headings, number)
        if fence and crossed and not (closes and (len(fences) - place) % 2):
            fence, closes = "", False
        if not fence:
            fence, opened = mark, number
        elif closes:
            inside.update(range(opened, number + 1))
            fence = ""
    return inside, fence


def _fields(lines: list[str]) -> tuple[dict[str, str], str]:
    """Take the field lines at the head of an entry; return them and the text that is left."""
    position = 0
    while position < len(lines) and not lines[position].strip():
        position += 1
    found: dict[str, str] = {}
    while position < len(lines) and (match := _FIELD.match(lines[position])):
        found.setdefault(match[1], match[2].strip(_BLANK))
        position += 1
    body = "".join(lines[position:]).strip()
    return found, _RULE.sub("", body).rstrip()
