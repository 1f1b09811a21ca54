"""Folds: what a log adds up to, and changes that are decided from it.

`Logs` keeps one fold per log and reads on from a cursor, so each call sees what other processes added. A log is read
again from its start when it is another file, is shorter, or the bytes before the cursor have changed. A line that
cannot be parsed is skipped: the file is copied to `<path>.damaged-<time>`, once per damage, and callers get a warning
for as long as the line is there. A last line without a newline may still be in the making and is no damage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from holdfast.errors import HoldfastError, NotFound
from holdfast.formats import jsonl
from holdfast.model.times import is_id, utc_now
from holdfast.storage import log
from holdfast.storage.log import Cursor, attempts
from holdfast.storage.tree import ABSENT, Line, Stamp, Tree

_MOST_LOGS = 256
_OPTIMISTIC_TRIES = 5
_MOST_NAMED = 5
Answer = TypeVar("Answer")


class Folded(Protocol):
    """The state that the entries of a log add up to, the same in whatever order they come."""

    def add(self, entry: Mapping[str, Any], /) -> None: ...


F = TypeVar("F", bound=Folded)


class Appender(Protocol):
    """A memory, as far as it is needed here."""

    tree: Tree

    def add(
        self, path: str, lines: Sequence[Mapping[str, Any]], *, after: str = "", durable: bool = True,
        unless: Cursor | None = None, locked: Callable[[], None] = lambda: None,
    ) -> list[str]: ...  # fmt: skip

    def add_decided(
        self, path: str, decide: Callable[[], tuple[Sequence[Mapping[str, Any]], str]], *, durable: bool = True
    ) -> list[str]: ...


class _State(msgspec.Struct, Generic[F]):
    """A fold, and how far its log was read."""

    fold: F
    cursor: Cursor = Cursor()
    lines: int = 0
    order: str = ""
    """The greatest order of all entries."""
    warnings: list[str] = []


class Marks:
    """Which entries or keys of a log are hidden: the newest `hide` entry about each counts."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[str, bool]] = {}

    def add(self, entry: Mapping[str, Any]) -> bool:
        """Apply a `hide` entry; return False for any other."""
        target = entry.get("hide")
        if not isinstance(target, str):
            return False
        mark = (jsonl.identity(entry, "time")[1], entry.get("hidden") is not False)
        self._newest[target] = max(mark, self.newest(target))
        return True

    def newest(self, target: str) -> tuple[str, bool]:
        """Return the order of the newest `hide` entry about a target, and whether it hides it."""
        return self._newest.get(target, ("", False))


class Logs(Generic[F]):
    """The folds of logs of one sort. Safe to use from several threads, also while a log is locked."""

    def __init__(self, memory: Appender, empty: Callable[[], F]) -> None:
        self._memory = memory
        self._tree = memory.tree
        self._empty = empty
        self._known: dict[str, _State[F]] = {}
        self._lock = threading.Lock()

    def ask(self, path: str, question: Callable[[F], Answer], warnings: list[str]) -> Answer:
        """Return what `question` makes of the fold as it is now; add to `warnings` what cannot be read."""
        with self._lock:
            return question(self._read(path, warnings).fold)

    def transact(
        self, path: str, decide: Callable[[F], Sequence[Mapping[str, Any]]], warnings: list[str], *,
        durable: bool = True, locked: Callable[[], None] = lambda: None, slow: bool = False,
    ) -> list[str]:  # fmt: skip
        """Append the entries that `decide` returns for the fold, all or none, and return their ids.

        When another writer changes the log in between, `decide` is called again; it may raise. After a few tries it is
        called while the log is locked, so that a large change gets through beside many small ones; not if it is `slow`.
        `locked` is called while the log is locked, before the entries are added.
        """

        def decided() -> tuple[Sequence[Mapping[str, Any]], str]:
            locked()
            with self._lock:
                known = self._read(path, warnings)
                return decide(known.fold), known.order

        for attempt in attempts(path):
            if attempt == _OPTIMISTIC_TRIES and not slow:
                return self._memory.add_decided(path, decided, durable=durable)
            with self._lock:
                known = self._read(path, warnings)
                entries, cursor, order = decide(known.fold), known.cursor, known.order
            if not entries:
                return []
            try:
                return self._memory.add(path, entries, after=order, durable=durable, unless=cursor, locked=locked)
            except log.Changed:
                continue
        raise AssertionError("attempts() ends in an error")

    def _read(self, path: str, warnings: list[str]) -> _State[F]:
        """Read a log on; a log that does not exist is an empty one."""
        known = self._known.pop(path, None)
        stamp = self._tree.stat(path)
        if stamp is None:
            return _State(self._empty())
        if known is None or not log.continues(self._tree, path, known.cursor, stamp):
            known = _State(self._empty())
        try:
            self._read_on(path, known, stamp)
        except NotFound:  # it was removed just now
            return _State(self._empty())
        warnings += [warning for warning in known.warnings if warning not in warnings]
        self._known[path] = known  # the one that was read last is last
        if len(self._known) > _MOST_LOGS:
            del self._known[next(iter(self._known))]
        return known

    def _read_on(self, path: str, known: _State[F], stamp: Stamp) -> None:
        damaged: list[tuple[int, Line]] = []
        offset, checksum = known.cursor.offset, known.cursor.checksum
        for line in self._tree.scan(path, offset, stamp.size):
            entries = "too long" if line.cut else jsonl.parse(line.data)
            if isinstance(entries, str) and not line.whole:
                break
            offset = line.end
            known.lines += line.whole
            if isinstance(entries, str):
                damaged.append((known.lines, line))
                continue
            for entry in entries:
                known.fold.add(entry)
                own = str(entry.get("id"))
                known.order = max(known.order, own if is_id(own) else jsonl.identity(entry, "time")[1])
        if offset != known.cursor.offset and not self._tree.exact:
            checksum = log.checksum(self._tree, path, offset)
        known.cursor = Cursor(stamp.inode, stamp.size, offset, checksum)
        if damaged:
            known.warnings += self._set_aside(path, damaged)

    def _set_aside(self, path: str, damaged: list[tuple[int, Line]]) -> list[str]:
        """Copy a damaged log unless a copy has all the lines that cannot be read; return the warnings."""
        stored = {_key(line): copy for copy in copies(self._tree, path) for line in self._tree.scan(copy)}
        numbers: dict[str, list[int]] = {}
        for number, line in damaged:
            copy = stored.get(_key(line))
            numbers.setdefault(f"the file as it was is kept as {copy}" if copy else "", []).append(number)
        if "" in numbers:
            numbers[self._copy(path)] = numbers.pop("")
        return [
            f"{path}: line {', '.join(map(str, which[:_MOST_NAMED]))}"
            + (f" and {len(which) - _MOST_NAMED} more" if len(which) > _MOST_NAMED else "")
            + f" cannot be read; {became}. All else in it is still used."
            for became, which in numbers.items()
        ]

    def _copy(self, path: str) -> str:
        copy = f"{path}.damaged-{''.join(sign for sign in utc_now() if sign.isalnum())}"
        try:
            self._tree.write(copy, self._tree.read(path).data, expect=ABSENT)
            return f"the file as it is was copied to {copy}"
        except HoldfastError as error:
            return f"the file could not be copied ({error.message})"


def copies(tree: Tree, path: str) -> Iterator[str]:
    """Yield the copies of a damaged log."""
    for found, _ in tree.walk(path.rpartition("/")[0], ("",), lambda _path, _why: None):
        if found.startswith(f"{path}.damaged-"):
            yield found


def _key(line: Line) -> tuple[int, bytes]:
    """Return what identifies a line: its length, and its text unless it is too long."""
    return line.end - line.offset, line.data
