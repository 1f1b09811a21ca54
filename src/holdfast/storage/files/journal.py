"""The lines that this process appended to logs in the last minutes, so that none is lost to an outside change.

git, a sync tool or an editor can replace a log right after a line was acknowledged. The next append or refresh then
compares the log with this journal and appends what is missing again, with the same ids. It is bounded, and in memory.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Container

import msgspec

from holdfast.formats import jsonl

_SECONDS = 600.0
_MOST, _BYTES = 1_000, 1 << 20
"""How many appends to one log are kept, and how many bytes of them."""


At = tuple[int, int, bytes]
"""Where something was written: the inode of the log, the offset, and the bytes."""


def holds(fd: int, at: At) -> bool:
    """Is an open log the one that this was written to, and is it still in place?"""
    inode, offset, data = at
    return os.fstat(fd).st_ino == inode and os.pread(fd, len(data), offset) == data


class _Log(msgspec.Struct):
    appended: deque[tuple[float, bytes]]
    size: int = 0
    at: At = (0, 0, b"")
    """The last write; an inode of 0 means that the log must be compared."""
    put_back: int = 0


class Journal:
    """What was appended lately, by log; the log written last is last. For any number of threads."""

    def __init__(self) -> None:
        self._logs: dict[str, _Log] = {}
        self._lock = threading.Lock()

    def add(self, path: str, at: At, put_back: int | None = None) -> None:
        """Record a write to a log; with `put_back`, of so many lines that are in the journal already."""
        now = time.monotonic()
        with self._lock:
            log = self._logs.pop(path) if path in self._logs else _Log(deque())
            self._logs[path] = log
            log.at = at
            log.put_back += put_back or 0
            if put_back is None:
                log.appended.append((now, at[2]))
                log.size += len(at[2])
            while len(log.appended) > 1 and (len(log.appended) > _MOST or log.size > _BYTES):
                log.size -= len(log.appended.popleft()[1])
            for other in list(itertools.islice(self._logs, 2)):  # more leave than come
                if self._logs[other].appended[-1][0] < now - _SECONDS:
                    del self._logs[other]

    def at(self, path: str) -> At | None:
        """Return where this process wrote to a log last, None when that is long ago."""
        log = self._logs.get(path)
        return log.at if log else None

    def doubt(self, path: str) -> None:
        """Have the log compared with the journal by the next append."""
        with self._lock:
            if path in self._logs:
                self._logs[path].at = (0, 0, b"")

    def missing(self, path: str, there: Container[str]) -> list[bytes]:
        """Return the lines of the last minutes with an id that is not `there`."""
        since = time.monotonic() - _SECONDS
        with self._lock:
            log = self._logs.get(path)
            appended = [data for when, data in log.appended if when > since] if log else []
        lines = [line for data in appended for line in data.split(b"\n") if line]
        return [line + b"\n" for line in lines if not all(key in there for key in jsonl.keys(line))]

    def take_reports(self) -> dict[str, int]:
        """Return how many lines were put back into which logs since the last call."""
        with self._lock:
            found = {path: log.put_back for path, log in self._logs.items() if log.put_back}
            for path in found:
                self._logs[path].put_back = 0
        return found

    def drop(self, path: str) -> None:
        """Forget a log that this process removed."""
        with self._lock:
            self._logs.pop(path, None)
