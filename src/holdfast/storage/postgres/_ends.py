"""How logs end: what this program left there, and what whoever composes a line is shown of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator

from holdfast.storage.files import lines
from holdfast.storage.postgres import _rows

_MOST_KNOWN = 1_000
_LONGEST_TAIL = 4096
_PATIENCE = 50


class Lefts:
    """What this process left at the ends of the logs that it wrote to last."""

    def __init__(self) -> None:
        self._known: dict[str, _rows.Left] = {}
        self._shared: dict[str, int] = {}
        """How many appends to a log that others write to as well are better held at once."""
        self._gates: dict[tuple[int, str], threading.Event] = {}
        """The logs that a thread of this program is holding in order to learn how they end."""
        self._lock = threading.Lock()

    def take(self, path: str) -> _rows.Left | None:
        """Return how we left a log, unless others have written to it lately, and forget it: it is about to grow."""
        with self._lock:
            left = self._known.pop(path, None)
            if held := self._shared.pop(path, 0):
                if held > 1:
                    self._shared[path] = held - 1
                return None
            return left

    def failed(self, path: str) -> None:
        """Note that somebody else wrote to a log since."""
        with self._lock:
            if len(self._shared) < _MOST_KNOWN:
                self._shared[path] = _PATIENCE

    def note(self, path: str, inode: int, end: int, data: bytes) -> None:
        start = data.rfind(b"\n", 0, -1) + 1
        tail = data[start:]
        if not data.endswith(b"\n") or not tail.strip() or len(tail) > _LONGEST_TAIL:
            self.forget(path)
            return
        with self._lock:
            known = self._known.pop(path, None)
            if known and known.inode == inode and known.size > end:  # another thread was quicker to tell
                self._known[path] = known
                return
            self._known[path] = _rows.Left(inode, end, tail)
            if len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]

    def forget(self, path: str) -> None:
        with self._lock:
            self._known.pop(path, None)

    def open(self, path: str, seconds: float) -> bool:
        """Have this thread alone hold a log whose end nobody knows; False when another was about to, and has by now."""
        name = os.getpid(), path  # in a process that was forked off nobody is holding it
        with self._lock:
            gate = self._gates.get(name)
            if not gate:
                self._gates[name] = threading.Event()
                return True
        gate.wait(seconds)
        return False

    def opened(self, path: str) -> None:
        """Let those go on who wait for the end of a log."""
        with self._lock:
            gate = self._gates.pop((os.getpid(), path), None)
        if gate:
            gate.set()


class End:
    """The end of a log; nothing of it is read unless somebody looks."""

    def __init__(self, read: lines.Read, size: int, line_bytes: int, tail: bytes = b"") -> None:
        self.size = size
        self._read = read
        self._line_bytes = line_bytes
        self._tail = tail

    def back(self) -> Iterator[bytes]:
        if not self._tail:
            yield from lines.HeldEnd(self._read, self.size, self._line_bytes).back()
            return
        yield self._tail.rstrip()
        for line in lines.backwards(self._read, self.size - len(self._tail), self._line_bytes):
            if line.data.strip():
                yield line.data

    def lines(self, offset: int) -> Iterable[bytes]:
        return (line.data for line in lines.forwards(self._read, offset, self.size, self._line_bytes))
