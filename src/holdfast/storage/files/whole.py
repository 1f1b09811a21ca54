"""Whole files, a piece at a time: a log copied with some of its lines changed, and a file as it is at one moment."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator

from holdfast.errors import Conflict
from holdfast.storage.files import descriptors as raw
from holdfast.storage.files import lines

_CHUNK = 1 << 20


class Copy:
    """A copy of an open log in the making. It is made up to some place first, and on from there later."""

    def __init__(self, source: int, target: int, change: Callable[[bytes], bytes], longest: int) -> None:
        self._source = source
        self._target = target
        self._change = change
        self._longest = longest
        self._waiting: list[bytes] = []
        self._size = 0
        self._checksum = 0
        self.done = 0
        """Up to where the log was copied."""
        self.changed = 0

    def up_to(self, end: int) -> None:
        """Copy on to a place behind a whole line, or to the end."""
        for line in lines.forwards(raw.reader(self._source), self.done, end, self._longest):
            if line.cut:  # too long to be read as a line: it stays as it is
                for chunk in chunks(self._source, line.end - line.offset, line.offset):
                    self._put(chunk, chunk)
            else:
                newline = b"\n" if line.whole else b""
                self._put(line.data + newline, self._changed(line.data) + newline)
            self.done = line.end
        self._write()

    def unchanged(self) -> bool:
        """Is what was copied still what stands there?"""
        checksum = 0
        for chunk in chunks(self._source, self.done):
            checksum = zlib.crc32(chunk, checksum)
        return checksum == self._checksum

    def _changed(self, line: bytes) -> bytes:
        wanted = self._change(line)
        self.changed += wanted != line
        return wanted.ljust(len(line))  # whoever read up to some place misses nothing behind it

    def _put(self, read: bytes, data: bytes) -> None:
        self._checksum = zlib.crc32(read, self._checksum)
        self._waiting.append(data)
        self._size += len(data)
        if self._size >= _CHUNK:
            self._write()

    def _write(self) -> None:
        if self._size:
            raw.write_all(self._target, b"".join(self._waiting))
        self._waiting, self._size = [], 0


def chunks(fd: int, size: int, start: int = 0) -> Iterator[bytes]:
    """Yield so many bytes of an open file; Conflict when they are not there any more."""
    position, end = start, start + size
    while position < end:
        chunk = os.pread(fd, min(_CHUNK, end - position), position)
        if not chunk:
            raise Conflict("A file became shorter while it was read.", "Try again.")
        yield chunk
        position += len(chunk)


def whole_lines(fd: int) -> int:
    """Return up to where an open log consists of whole lines."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - (64 << 10))
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
