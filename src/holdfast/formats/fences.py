"""Fenced code blocks of a Markdown text: what stands in one is code, whatever it looks like."""

from __future__ import annotations

import re
from collections.abc import Collection

FENCE = re.compile(r" {0,3}(`{3,}(?!.*`)|~{3,})")
"""What opens a block at the start of a line, and may close one."""


def closed(lines: list[str], stops: Collection[int] = ()) -> set[int]:
    """Return the numbers, from 1, of the lines of all closed blocks, fences included.

    A fence that is never closed is text, and so is one whose block would reach over a line in `stops`.
    """
    inside: set[int] = set()
    fences: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        if number in stops:
            _close(fences, lines, inside)
            fences = []
        elif found := FENCE.match(line):
            fences.append((number, found[1]))
    _close(fences, lines, inside)
    return inside


def _close(fences: list[tuple[int, str]], lines: list[str], inside: set[int]) -> None:
    """Add the lines of the blocks that these fences open and close."""
    hopeless = {"`": len(lines) + 3, "~": len(lines) + 3}
    place = 0
    while place < len(fences):
        opened, fence = fences[place]
        place += 1
        if len(fence) >= hopeless[fence[0]]:
            continue
        for further in range(place, len(fences)):
            number = fences[further][0]
            if closes(lines[number - 1], fence):
                inside.update(range(opened, number + 1))
                place = further + 1
                break
        else:
            hopeless[fence[0]] = len(fence)


def closes(line: str, fence: str) -> bool:
    """Does this line end the block that the fence opened?"""
    mark = line.strip()
    return len(mark) >= len(fence) and not mark.strip(fence[0]) and FENCE.match(line) is not None
