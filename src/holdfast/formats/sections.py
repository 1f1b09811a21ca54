"""The structure of Markdown text: fenced code, headings, and dated entries.

A dated entry is `### [YYYY-MM-DD] Title`, category and tags, text, `---`. Entries are split at their headings only; a
`---` inside an entry is part of it. A heading inside a code block is text, and a fence that is never closed is text.
Text before the first entry belongs to the file and is never changed.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.errors import Invalid
from holdfast.model import names
from holdfast.model.patterns import regex
from holdfast.model.records import version_of
from holdfast.model.times import parse_ms

FENCE = regex(r" {0,3}(`{3,}(?!.*`)|~{3,})")
"""Opens a code block at the start of a line, and may close one."""
MAX_TITLE = 300
_HEADING = regex(r" {0,3}(#{1,6})[ \t](.*)", re.DOTALL)
_ENTRY = regex(r"###[ \t]+\[(\d{4}-\d{2}-\d{2})\](.*)", re.DOTALL)
_HEADINGS = regex(r"^###[ \t]+\[\d{4}-\d{2}-\d{2}\]", re.MULTILINE)
_NAMES = {
    "category": "Category", "tags": "Tags", "until": "Until", "supersedes": "Supersedes",
    "superseded_by": "Superseded by", "archived": "Archived",
}  # fmt: skip
"""The fields of an entry, as its file names them."""
_FIELD = regex(
    r"\*\*(Category|Tags|Supersedes|Superseded by|Archived|Until(?=:\*\*[ \t]*\d{4}-\d\d-\d\d\s*\Z)):\*\*(.*)",
    re.DOTALL,
)
OTHER_VERSION = regex(r" \(other version, [0-9a-f]{8}\)\Z")
"""The end of the title of an entry that a merge kept beside another version of it."""
_CONTROL = regex(r"[\x00-\x1f\x7f]")
_RULE = regex(r"(?:\A|\n)---[ \t]*\Z")
_BLANK = " \t\r\n"


def lines_of(text: str) -> list[str]:
    """Split at line feeds only, keeping them."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


# Code blocks


def code_lines(lines: list[str]) -> set[int]:
    """Return the numbers, from 1, of the lines of all closed code blocks, fences included."""
    return _code(lines)[0]


def _code(lines: list[str]) -> tuple[set[int], bool]:
    """Return the numbers of the lines in code blocks, and whether there is a fence that is never closed, which is text.

    A forgotten fence must not hide the entries after it. An entry heading after an open fence is inside the block only
    if the next fence can close it and the number of fences after that is even.
    """
    fences = [(number, found[1], line) for number, line in enumerate(lines, 1) if (found := FENCE.match(line))]
    entries = [number for number, line in enumerate(lines, 1) if fences and _ENTRY.match(line)]
    inside: set[int] = set()
    unclosed = {"`": len(lines) + 3, "~": len(lines) + 3}  # the length from which no fence is closed
    place = 0
    while place < len(fences):
        opened, fence, _ = fences[place]
        place += 1
        for end in range(place, len(fences)) if len(fence) < unclosed[fence[0]] else ():
            number, _, line = fences[end]
            mark = line.strip()
            closes = len(mark) >= len(fence) and not mark.strip(fence[0])
            crossed = bisect.bisect_right(entries, opened) < bisect.bisect_left(entries, number)
            if crossed and not (closes and (len(fences) - end) % 2):
                place = end
                break
            if closes:
                inside.update(range(opened, number + 1))
                place = end + 1
                break
        else:
            unclosed[fence[0]] = min(len(fence), unclosed[fence[0]])
    return inside, min(unclosed.values()) < len(lines) + 3


# Headings


class Heading(msgspec.Struct, frozen=True):
    """A heading with its text: `text[start:end]`, of which `text[start:below]` is the heading.

    It ends at the next heading of the same or a higher level.
    """

    level: int
    title: str
    start: int
    below: int
    end: int


def headings(text: str) -> list[Heading]:
    """Return the part of every heading, in order; parts of a lower level are inside those above them."""
    lines = lines_of(text)
    code = code_lines(lines)
    found: list[tuple[int, str, int, int]] = []
    position = 0
    for number, line in enumerate(lines, 1):
        if number not in code and (heading := _HEADING.match(line)):
            found.append((len(heading[1]), heading_title(heading[2]), position, position + len(line)))
        position += len(line)
    result: list[Heading] = []
    ends = [position] * 7
    for level, title, start, below in reversed(found):
        result.append(Heading(level, title, start, below, min(ends[: level + 1])))
        ends[level] = start
    return result[::-1]


def heading_title(rest: str) -> str:
    """Return the title of a heading from the text after its first `#` marks."""
    text = rest.strip()
    bare = text.rstrip("#")
    return bare.rstrip() if bare != text and (not bare or bare[-1] in " \t") else text


def headed(text: str, title: str) -> list[Heading]:
    """Return the parts with this title, compared without case; the title may be given with its `##`."""
    wanted = names.same(title.lstrip("#"))
    return [part for part in headings(text) if names.same(part.title) == wanted]


def without(text: str, part: Heading) -> str:
    before, after = text[: part.start], text[part.end :]
    if after:
        return before + after
    stripped = before.rstrip("\r\n")
    return stripped + ("\r\n" if "\r\n" in before else "\n") if stripped else ""


# Dated entries


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
    until: str = ""
    supersedes: str = ""
    superseded_by: str = ""
    start: int = 0
    """The offset of its source in the text."""

    @property
    def version(self) -> str:
        return version_of(self.source.rstrip().encode("utf-8", "surrogateescape"))

    @property
    def parts(self) -> dict[str, Any]:
        """The fields for rendering."""
        return {name: getattr(self, name) for name in ("date", "title", "text", *_NAMES)}

    def rendered(self, **changes: Any) -> str:
        """Return the entry with some of its parts changed."""
        return render(**(self.parts | changes))

    @property
    def fault(self) -> str:
        return "" if parse_ms(self.date) is not None else f"[{self.date}] is not a date"


def parse(text: str) -> list[Section]:
    """Parse every entry of a file, in order."""
    seen: dict[str, int] = {}
    result = []
    for line, start, source in _entries(text):
        first, newline, rest = source.partition("\n")
        heading = _ENTRY.match(first + newline)
        assert heading is not None  # _entries cuts at headings
        date, title = heading[1], heading[2].strip(_BLANK)
        anchor = f"{date}-{names.slug(title)}"
        seen[anchor] = seen.get(anchor, 0) + 1
        if seen[anchor] > 1:
            anchor += f"~{seen[anchor]}"
        lines, position, fields = [rest], 0, dict[str, str]()
        if rest.lstrip().startswith("**"):
            lines = lines_of(rest)
        while position < len(lines) and not lines[position].strip():
            position += 1
        while position < len(lines) and (match := _FIELD.match(lines[position])):
            fields.setdefault(match[1], match[2].strip(_BLANK))
            position += 1
        body = _RULE.sub("", "".join(lines[position:]).strip()).rstrip()
        tags = tuple(tag.strip() for tag in fields.get("Tags", "").split(",") if tag.strip())
        given = {name: fields.get(shown, "") for name, shown in _NAMES.items() if name != "tags"}
        result.append(Section(anchor, date, title, body, source, line, tags=tags, start=start, **given))
    return result


def sources(text: str) -> list[str]:
    """Return the source of every entry of a file, in order."""
    return [source for _, _, source in _entries(text)]


def render(date: str, title: str, text: str, category: str = "", tags: tuple[str, ...] = (), **given: str) -> str:
    """Write one entry, ready to be added to a file; parsing it returns the same parts. `given` are its other fields."""
    if parse_ms(date) is None or len(date) != 10:
        raise Invalid(f"{date!r} is not a date.", "Use YYYY-MM-DD.")
    if not title.strip() or title.splitlines() != [title] or len(title) > MAX_TITLE or _CONTROL.search(title):
        fault = f"The title of an entry is one line of text, of {MAX_TITLE} characters at most."
        raise Invalid(fault, "Shorten it; put the rest into the text.")
    if "\0" in text:
        raise Invalid("The text contains a NUL character.", "Leave it out.")
    if any("," in tag or not tag.strip() or tag.splitlines() != [tag] for tag in tags):
        raise Invalid("A tag of an entry is one word or phrase without a comma.", "Split it into several tags.")
    fields = {name: value.strip() for name, value in given.items()}
    fields |= {"category": category.strip(), "tags": ", ".join(tag.strip() for tag in tags)}
    for name, value in fields.items():
        if value and value.splitlines() != [value]:
            raise Invalid(f"The {name} of an entry is one line of text.", "Shorten it.")
    head = "".join(f"**{shown}:** {fields[name]}\n" for name, shown in _NAMES.items() if fields.get(name))
    if not head and _FIELD.match(text.strip().partition("\n")[0]):
        head = "**Tags:**\n"  # so that text that looks like a field stays text
    entry = f"### [{date}] {title.strip()}\n\n{head}{chr(10) if head else ''}{text.strip()}\n\n---\n"
    if len(sources(entry)) != 1 or _code(lines_of(entry))[1]:
        fault = "The text contains an entry heading of its own, or a code fence that is never closed."
        raise Invalid(fault, "Indent the heading or close the fence, so that the next entry stays an entry.")
    return entry


def add(text: str, entry: str) -> str:
    """Append an entry to a file, with the line ends of the file."""
    newline = "\r\n" if "\r\n" in text else "\n"
    entry = entry.replace("\r\n", "\n").replace("\n", newline)
    if not text.strip():
        return text + ("" if text.endswith("\n") or not text else newline) + entry
    gap = "" if text.endswith(newline * 2) else newline if text.endswith("\n") else newline * 2
    return text + gap + entry


def other_version(title: str, version: str) -> str:
    """Return the title under which a version is kept beside another one."""
    return f"{title[: MAX_TITLE - 40]} (other version, {version[:8]})"


def _entries(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield line number, start and source of every entry."""
    code = code_lines(lines_of(text)) if "```" in text or "~~~" in text else ()
    number, position, begun = 1, 0, (0, -1)
    for heading in _HEADINGS.finditer(text):
        number += text.count("\n", position, heading.start())
        position = heading.start()
        if number not in code:
            if begun[0]:
                yield *begun, text[begun[1] : position]
            begun = number, position
    if begun[0]:
        yield *begun, text[begun[1] :]
