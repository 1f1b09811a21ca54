"""Reading the lines of a log, forwards and backwards, with bounded memory, from whatever gives its bytes.

A line longer than allowed is passed over and marked as cut; a last line without a newline is given as not whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from holdfast.storage.tree import Line

_CHUNK = 1 << 20
_BACK = 1 << 16
_FIRST_BACK = 1 << 12
"""Who reads backwards often wants no more than the last line."""
_END = 2048

Read = Callable[[int, int], bytes]
"""How many bytes, from which offset on: fewer come back only where the log ends."""


class HeldEnd:
    """The end of a log that this process has locked."""

    def __init__(self, read: Read, size: int, line_bytes: int) -> None:
        self.size = size
        self._read = read
        self._line_bytes = line_bytes
        self._end = read(_END, max(0, size - _END)) if size else b""

    def back(self) -> Iterator[bytes]:
        ended = self._end.rstrip()
        start = ended.rfind(b"\n") + 1
        if ended and (start or len(self._end) == self.size):
            yield ended[start:]  # nearly always: the last line is short and lies in the block at hand
            skip = self.size - len(self._end) + start
        else:
            skip = self.size
        for line in backwards(self._read, skip, self._line_bytes):
            if line.data.strip():
                yield line.data

    def lines(self, offset: int) -> Iterable[bytes]:
        return (line.data for line in forwards(self._read, offset, self.size, self._line_bytes))

    def torn(self) -> bool:
        return self.size > 0 and not self._end.endswith(b"\n")


def forwards(read: Read, offset: int, end: int, longest: int) -> Iterator[Line]:
    """Yield lines in order with bounded memory: a line longer than allowed is passed over, not kept."""
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
    """Yield lines from the end; an over-long one is passed over."""
    end = position = size
    tail, whole, dropped = b"", False, False
    most = _FIRST_BACK
    while position > 0:
        step = min(most, position)
        most = min(4 * most, _BACK)
        block = read(step, position - step)
        if len(block) < step:
            return  # somebody cut the file while it was read
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
