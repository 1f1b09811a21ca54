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
    fences = {number: found[1] for number, line in enumerate(lines, 1) if (found := FENCE.match(line))}
    marks = sorted({*fences, *stops})
    inside: set[int] = set()
    hopeless = {"`": len(lines) + 3, "~": len(lines) + 3}
    place = 0
    while place < len(marks):
        opened = marks[place]
        place += 1
        fence = fences.get(opened, "") if opened not in stops else ""
        if not fence or len(fence) >= hopeless[fence[0]]:
            continue
        for further in range(place, len(marks)):
            if marks[further] in stops:
                break
            if closes(lines[marks[further] - 1], fence):
                inside.update(range(opened, marks[further] + 1))
                place = further + 1
                break
        else:
            hopeless[fence[0]] = len(fence)
    return inside


def closes(line: str, fence: str) -> bool:
    """Does this line end the block that the fence opened?"""
    mark = line.strip()
    return len(mark) >= len(fence) and not mark.strip(fence[0]) and FENCE.match(line) is not None
