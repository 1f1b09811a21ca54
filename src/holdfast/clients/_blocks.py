"""Our block in a file of somebody else's: the lines between two markers, and no other byte.

A new block goes to the end, after an empty line. Where the text before it does not end with a line feed, neither does
the block: so taking it out again gives back the text as it was.
"""

from __future__ import annotations

from holdfast.errors import Damaged
from holdfast.formats.sections import lines_of

BEGIN = "<!-- holdfast: begin -->"
END = "<!-- holdfast: end -->"


def put(text: str | None, lines: list[str]) -> str:
    """Return the text (None: there is no file) with a block of these lines, in the file's own line ends."""
    newline = _newline(text or "")
    block = newline.join((BEGIN, *lines, END))
    if text is None:
        return block + newline
    if found := _find(text):
        return text[: found[0]] + block + text[found[1] :]
    if not text:
        return block
    return text + newline + block + newline if text.endswith("\n") else text + newline + newline + block


def take(text: str) -> str | None:
    """Return the text without the block; None when the file was made for it and holds nothing else."""
    found = _find(text)
    if not found:
        return text
    before, after = text[: found[0]], text[found[1] :]
    ending = _newline(after) if after else ""
    if after != ending:
        return before + after.removeprefix(ending)
    if not before:
        return None if ending else ""
    newline = _newline(before)
    if not ending:
        return before.removesuffix(newline).removesuffix(newline)
    shorter = before.removesuffix(newline)
    return shorter if shorter.endswith("\n") else before  # an empty line stands before a block that was put there


def _newline(text: str) -> str:
    """Return the line end that the first line of a text has."""
    return "\r\n" if text.partition("\n")[0].endswith("\r") else "\n"


def _find(text: str) -> tuple[int, int] | None:
    """Return where the block starts and where its last line ends; Damaged when the markers are no pair."""
    start = end = -1
    position = 0
    for number, line in enumerate(lines_of(text), 1):
        said = line.lstrip("\ufeff").strip()
        if said == BEGIN:
            if start >= 0:
                raise _stray(number, "a second begin")
            start, opened = position + line.index(BEGIN), number
        elif said == END:
            if start < 0 or end >= 0:
                raise _stray(number, "an end without a begin")
            end = position + line.index(END) + len(END)
        position += len(line)
    if start >= 0 > end:
        raise _stray(opened, "a begin without an end")
    return (start, end) if start >= 0 else None


def _stray(number: int, what: str) -> Damaged:
    return Damaged(f"line {number} is {what}", "Take the stray marker out by hand; nothing was changed.")
