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

from holdfast.formats import jsonl

_SECONDS = 600.0
_MOST = 4 << 20
"""How many bytes of one log are kept, and always the newest write."""
At = tuple[int, int, bytes]
"""A write: the inode of the log, the offset, and the bytes."""
UNKNOWN: At = (0, 0, b"")


def holds(fd: int, at: At) -> bool:
    """Is an open log the one that this was written to, and is it still in place?"""
    return os.fstat(fd).st_ino == at[0] and os.pread(fd, len(at[2]), at[1]) == at[2]


class Journal:
    """What was appended lately, by log; the log written last is last. For any number of threads."""

    def __init__(self) -> None:
        self._logs: dict[str, deque[tuple[float, bytes]]] = {}
        self._last: dict[str, At] = {}
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, path: str, at: At) -> None:
        """Record a write."""
        now = time.monotonic()
        with self._lock:
            log = self._logs[path] = self._logs.pop(path, deque())
            size = self._sizes.get(path, 0) + len(at[2])
            while log and (size > _MOST or log[0][0] < now - _SECONDS):
                size -= len(log.popleft()[1])
            log.append((now, at[2]))
            last, self._sizes[path] = self._last.get(path, at), size
            self._last[path] = last if last[0] == at[0] and last[1] > at[1] else at  # another thread was faster
            for other in list(itertools.islice(self._logs, 2)):  # more leave than come
                if self._logs[other][-1][0] < now - _SECONDS:
                    del self._logs[other], self._last[other], self._sizes[other]

    def place(self, path: str, at: At) -> None:
        """Record by which bytes a log is recognised from now on; UNKNOWN makes the next append compare it."""
        with self._lock:
            if path in self._logs:
                self._last[path] = at

    def last(self, path: str) -> At | None:
        """Return by which bytes a log is recognised, None when the last write is long ago."""
        return self._last.get(path)

    def missing(self, path: str, there: Container[str]) -> dict[str, bytes]:
        """Return the lines of the last minutes, by id, whose id is not `there`."""
        since = time.monotonic() - _SECONDS
        with self._lock:
            appended = [data for when, data in self._logs.get(path, ()) if when > since]
        lines = {own: line for data in appended for line in data.split(b"\n") if (own := jsonl.own_id(line))}
        return {own: line + b"\n" for own, line in lines.items() if own not in there}

    def paths(self) -> list[str]:
        """Return the logs that were appended to."""
        with self._lock:
            return list(self._logs)

    def drop(self, path: str) -> None:
        """Forget a log that this process removed."""
        with self._lock:
            for each in (self._logs, self._last, self._sizes):
                each.pop(path, None)
