"""Lines that come with ids of their own, from elsewhere: each is added to a log once, however often it is brought.

What a log has is read under its lock: all of it the first time, then only what was added since, as long as the end
of what was read is still what it was.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.errors import Invalid, OverBudget
from holdfast.formats import logs
from holdfast.times import is_id
from holdfast.vault import LogEnd, Vault

_WINDOW = 64 << 10


class Bringer:
    """Adds lines to logs of one vault; it remembers the ids of the log that it added to last."""

    def __init__(self, vault: Vault, line_bytes: int) -> None:
        self._vault = vault
        self._line_bytes = line_bytes
        self._lock = threading.Lock()
        self._forget()

    def bring(self, path: str, lines: list[Mapping[str, Any]]) -> int:
        """Add the lines whose ids the log does not have, all of them or none; durable when this returns."""
        rendered = {_id(line): logs.render(line) for line in lines}
        longest = max(map(len, rendered.values()), default=0)
        if longest > self._line_bytes:
            raise OverBudget(f"A line would have {longest:,} bytes; the limit is {self._line_bytes:,}.", "Shorten it.")
        fresh: list[str] = []

        def compose(end: LogEnd) -> bytes:
            known = self._known(path, end)
            fresh.extend(identifier for identifier in rendered if identifier not in known)
            return b"".join(rendered[identifier] for identifier in fresh)

        with self._lock:
            try:
                done = self._vault.append(path, compose) if rendered else None
            except BaseException:
                self._forget()
                raise
            if done:
                self._ids.update(fresh)
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
    """Return the ids of lines that are whole: half a line that begins with an id is not there yet."""
    found = (logs.parse(data) for data in lines)
    values = (value.get("id") for objects in found if isinstance(objects, list) for value in objects)
    return {identifier for identifier in values if isinstance(identifier, str)}
