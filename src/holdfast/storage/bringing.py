"""Lines that come with ids of their own, from elsewhere: each is added to a log once, however often it is brought.

What a log has is read under its lock: all of it the first time, then only what was added since, as long as the end
of what was read is still what it was.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import Invalid, OverBudget
from holdfast.formats import jsonl
from holdfast.model.times import is_id
from holdfast.storage.tree import LogEnd, Vault

_WINDOW = 64 << 10


class Carried(msgspec.Struct, frozen=True, gc=False):
    """A line as it stands in another log, without its newline, and what tells it from others."""

    keys: tuple[str, ...]
    data: bytes


class Bringer:
    """Adds lines to logs of one vault; it remembers the ids of the log that it added to last."""

    def __init__(self, vault: Vault, line_bytes: int) -> None:
        self._vault = vault
        self._line_bytes = line_bytes
        self._lock = threading.Lock()
        self._forget()

    def bring(self, path: str, lines: list[Mapping[str, Any]]) -> int:
        """Add the lines whose ids the log does not have, all of them or none; durable when this returns."""
        rendered = {_id(line): jsonl.render(line) for line in lines}
        return self.merge(path, [Carried((each,), data[:-1]) for each, data in rendered.items()])

    def merge(self, path: str, lines: Sequence[Carried]) -> int:
        """Add the lines that the log does not have as they are, all of them or none; durable when this returns."""
        longest = max((len(line.data) + 1 for line in lines), default=0)
        if longest > self._line_bytes:
            raise OverBudget(f"A line would have {longest:,} bytes; the limit is {self._line_bytes:,}.", "Shorten it.")
        fresh: list[Carried] = []

        def compose(end: LogEnd) -> bytes:
            known = self._known(path, end)
            fresh.extend(line for line in lines if not known.issuperset(line.keys))
            return b"".join(line.data + b"\n" for line in fresh)

        with self._lock:
            try:
                done = self._vault.append(path, compose) if lines else None
            except BaseException:
                self._forget()
                raise
            if done:
                self._ids.update(key for line in fresh for key in line.keys)
                self._remember(path, done.end)
        return len(fresh)

    def missing(self, path: str, ids: set[str]) -> int:
        """Count the ids that a log does not have, without waiting for anybody who writes to it."""
        if self._vault.stat(path) is None:
            return len(ids)
        return len(ids - _ids(line.data for line in self._vault.scan(path)))

    def _known(self, path: str, end: LogEnd) -> set[str]:
        """Return the ids of a log that is held."""
        if self._path != path or self._offset > end.size or self._tail != self._fingerprint(path, self._offset):
            self._forget()
        self._ids |= _ids(end.lines(self._offset))
        self._remember(path, end.size)
        return self._ids

    def _remember(self, path: str, offset: int) -> None:
        self._path, self._offset, self._tail = path, offset, self._fingerprint(path, offset)

    def _forget(self) -> None:
        self._path, self._offset, self._tail = "", 0, 0
        self._ids: set[str] = set()

    def _fingerprint(self, path: str, offset: int) -> int:
        return self._vault.fingerprint(path, max(0, offset - _WINDOW), offset)


def _id(line: Mapping[str, Any]) -> str:
    given = line.get("id")
    if not is_id(given):
        raise Invalid(f"A line that is brought has the id {given!r}.", "Give it one that is derived from its source.")
    return str(given)


def _ids(lines: Iterable[bytes]) -> set[str]:
    """Return what tells the lines of a log apart; half a line that begins with an id is not that line yet."""
    return {key for data in lines for key in jsonl.keys(data)}
