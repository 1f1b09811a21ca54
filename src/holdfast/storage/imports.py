"""Entries from elsewhere, which have their own ids: each is added to a log once, however often it is imported.

The ids of a log are read under its lock: all of them the first time, then only those of new lines, as long as the end
of what was read is unchanged.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.errors import Invalid, OverBudget
from holdfast.formats import jsonl
from holdfast.model.times import is_id
from holdfast.storage.log import checksum
from holdfast.storage.tree import LogEnd, Tree


class Importer:
    """Adds lines to the logs of one tree; it remembers the ids of the log that it added to last."""

    def __init__(self, tree: Tree, line_bytes: int) -> None:
        self._tree, self._line_bytes = tree, line_bytes
        self._lock = threading.Lock()
        self._reset()

    def add_entries(self, path: str, entries: Iterable[Mapping[str, Any]]) -> int:
        """Add the entries whose ids a log does not have; return how many."""
        rendered: dict[str, bytes] = {}
        for entry in entries:
            if not is_id(entry.get("id")):
                fault = f"An imported entry has the id {entry.get('id')!r}."
                raise Invalid(fault, "Give it one that is derived from its source.")
            rendered[entry["id"]] = jsonl.render(entry)[:-1]
        return self.add(path, list(rendered.values()))

    def add(self, path: str, lines: Sequence[bytes]) -> int:
        """Add the lines that a log does not have, all of them or none, durably; return how many."""
        longest = max((len(line) + 1 for line in lines), default=0)
        if longest > self._line_bytes:
            raise OverBudget(f"A line would have {longest:,} bytes; the limit is {self._line_bytes:,}.", "Shorten it.")
        new: list[bytes] = []

        def compose(end: LogEnd) -> bytes:
            if self._path != path or self._offset > end.size or self._end != checksum(self._tree, path, self._offset):
                self._reset()
            self._ids.update(key for line in end.lines(self._offset) for key in jsonl.keys(line))
            self._remember(path, end.size)
            # into an empty log everything is copied, so that it becomes the same byte by byte, blank lines too
            new.extend(line for line in lines if not self._ids or not self._ids.issuperset(jsonl.keys(line)))
            return b"".join(line + b"\n" for line in new)

        with self._lock:
            try:
                done = self._tree.append(path, compose) if lines else None
            except BaseException:
                self._reset()
                raise
            if done:
                self._ids.update(key for line in new for key in jsonl.keys(line))
                self._remember(path, done.end)
        return len(new)

    def missing(self, path: str, ids: set[str]) -> int:
        """Return how many of these ids a log does not have, without locking it."""
        if self._tree.stat(path) is None:
            return len(ids)
        return len(ids.difference(key for line in self._tree.scan(path) for key in jsonl.keys(line.data)))

    def _remember(self, path: str, offset: int) -> None:
        self._path, self._offset, self._end = path, offset, checksum(self._tree, path, offset)

    def _reset(self) -> None:
        self._path, self._offset, self._end = "", 0, 0
        self._ids: set[str] = set()
