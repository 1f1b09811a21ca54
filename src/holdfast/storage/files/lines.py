"""The lines of a log: read forwards and backwards with bounded memory, and copied with some of them changed.

A line longer than allowed is skipped and marked as cut; a last line without a newline is marked as not whole.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator

from holdfast.errors import Conflict
from holdfast.storage.tree import Line

_CHUNK = 1 << 20
_BACK = 1 << 16
_FIRST_BACK = 1 << 12
"""Reading backwards often needs the last line only."""
_END = 2048

Read = Callable[[int, int], bytes]
"""Read so many bytes from an offset; fewer only at the end of the log."""


class LogEnd:
    """The end of a log that this process has locked, as an append sees it."""

    def __init__(self, read: Read, size: int, line_bytes: int) -> None:
        self.size = size
        self._read = read
        self._line_bytes = line_bytes
        self.tail = read(_END, max(0, size - _END)) if size else b""
        self.torn = size > 0 and not self.tail.endswith(b"\n")

    def back(self) -> Iterator[bytes]:
        """Yield the lines that are not blank, last line first."""
        ended = self.tail.rstrip()
        start = ended.rfind(b"\n") + 1
        if ended and (start or len(self.tail) == self.size):
            yield ended[start:]  # the usual case: the last line is short and already read
            skip = self.size - len(self.tail) + start
        else:
            skip = self.size
        for line in backwards(self._read, skip, self._line_bytes):
            if line.data.strip():
                yield line.data

    def lines(self, offset: int) -> Iterable[bytes]:
        """Return the lines from an offset on."""
        return (line.data for line in forwards(self._read, offset, self.size, self._line_bytes))


def forwards(read: Read, offset: int, end: int, longest: int) -> Iterator[Line]:
    """Yield lines in order; a line longer than allowed is skipped."""
    start = position = offset
    kept, dropped = b"", False
    while position < end:
        chunk = read(min(_CHUNK, end - position), position)
        if not chunk:
            break
        cursor = position - len(kept)
        position += len(chunk)
        pieces = (kept + chunk).split(b"\n")
        kept = pieces.pop()
        for piece in pieces:
            cursor += len(piece) + 1
            cut = dropped or len(piece) > longest
            yield Line(start, b"" if cut else piece, cursor, cut=cut)
            start, dropped = cursor, False
        if len(kept) > longest:
            kept, dropped = b"", True
    if start < position:
        cut = dropped or len(kept) > longest
        yield Line(start, b"" if cut else kept, position, whole=False, cut=cut)


def backwards(read: Read, size: int, longest: int) -> Iterator[Line]:
    """Yield lines from the end; an over-long one is skipped."""
    end = position = size
    tail, whole, dropped = b"", False, False
    most = _FIRST_BACK
    while position > 0:
        step = min(most, position)
        most = min(4 * most, _BACK)
        block = read(step, position - step)
        if len(block) < step:
            return  # the file was cut while it was read
        cursor = position + len(tail)
        position -= step
        pieces = (block + tail).split(b"\n")
        tail = pieces[0]
        for piece in reversed(pieces[1:]):
            cursor -= len(piece)
            cut = dropped or len(piece) > longest
            if whole or cut or piece:
                yield Line(cursor, b"" if cut else piece, end + whole, whole, cut)
            cursor -= 1
            end, whole, dropped = cursor, True, False
        if len(tail) > longest:
            tail, dropped = b"", True
    if end > 0 or whole:
        cut = dropped or len(tail) > longest
        yield Line(0, b"" if cut else tail, end + whole, whole, cut)


def copied(fd: int, size: int, longest: int, change: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """Yield so many bytes of an open log, with every line changed that is not too long to be read."""
    waiting, waits = list[bytes](), 0
    for line in forwards(functools.partial(os.pread, fd), 0, size, longest):
        if line.cut or waits >= _CHUNK:
            yield b"".join(waiting)
            waiting, waits = [], 0
        if line.cut:
            yield from chunks(fd, line.end - line.offset, line.offset)
        else:
            waiting += [change(line.data), b"\n" if line.whole else b""]
            waits += line.end - line.offset
    yield b"".join(waiting)


def chunks(fd: int, size: int, start: int = 0) -> Iterator[bytes]:
    """Yield so many bytes of an open file; Conflict when the file became shorter."""
    position, end = start, start + size
    while position < end:
        chunk = os.pread(fd, min(_CHUNK, end - position), position)
        if not chunk:
            raise Conflict("A file became shorter while it was read.", "Try again.")
        yield chunk
        position += len(chunk)
