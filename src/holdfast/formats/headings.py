"""Headings of a Markdown text, and the sections that they open.

A section goes from its heading to the next heading of the same or a higher level. What looks like a heading inside a
fenced block is text; a fence that is never closed is text itself.
"""

from __future__ import annotations

import re

import msgspec

from holdfast.formats import fences
from holdfast.formats.markdown import lines_of
from holdfast.model import names

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t](.*)", re.DOTALL)


class Part(msgspec.Struct, frozen=True):
    """One section: `text[start:end]`, of which `text[start:below]` is the heading."""

    level: int
    title: str
    start: int
    below: int
    end: int


def parts(text: str) -> list[Part]:
    """Return every section of a text, in order; sections of a lower level lie within those above them."""
    lines = lines_of(text)
    inside = fences.closed(lines)
    found: list[tuple[int, str, int, int]] = []
    position = 0
    for number, line in enumerate(lines, 1):
        if number not in inside and (heading := _HEADING.match(line)):
            found.append((len(heading[1]), title(heading[2]), position, position + len(line)))
        position += len(line)
    result: list[Part] = []
    ends = [position] * 7
    for level, name, start, below in reversed(found):
        result.append(Part(level, name, start, below, min(ends[: level + 1])))
        ends[level] = start
    return result[::-1]


def title(rest: str) -> str:
    """Return the text of a heading from what stands behind its first marks."""
    text = rest.strip()
    bare = text.rstrip("#")
    return bare.rstrip() if bare != text and (not bare or bare[-1] in " \t") else text


def named(text: str, title: str) -> list[Part]:
    """Return the sections of this title, compared without case; it may be given with its `##`."""
    wanted = names.same(title.lstrip("#"))
    return [part for part in parts(text) if names.same(part.title) == wanted]


def without(text: str, part: Part) -> str:
    """Return the text without a section of it."""
    before, after = text[: part.start], text[part.end :]
    if after:
        return before + after
    stripped = before.rstrip("\r\n")
    return stripped + ("\r\n" if "\r\n" in before else "\n") if stripped else ""
