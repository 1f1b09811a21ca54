"""Logs: reading from a cursor, the retry policy, and appends that depend on the state of a log.

`Logs` keeps one fold per log and continues from a cursor, so each call sees the entries of other processes. An
unreadable line is skipped; callers get a warning until the line is removed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from holdfast.errors import Busy
from holdfast.formats import jsonl
from holdfast.model.times import is_id

if TYPE_CHECKING:
    from holdfast.storage.writer import Writer

TRIES = 200
_MOST_LOGS = 256
_OPTIMISTIC_TRIES = 5
Answer = TypeVar("Answer")


class LogPart(msgspec.Struct, frozen=True):
    """Entries that were read from a log, and the cursor after them."""

    entries: list[dict[str, Any]]
    cursor: Any
    """The cursor for the next read, never None; opaque to callers."""
    fresh: bool
    """Was the log read from its start? Then earlier results are out of date."""
    warnings: list[str] = []
    """Unreadable lines in this part."""


class Changed(Exception):
    """The log has changed since a cursor."""


def attempts(what: str, tries: int = TRIES) -> Iterator[int]:
    """Yield the number of each try; Busy after the last one. The caller leaves the loop after a success."""
    for attempt in range(tries):
        if attempt:
            time.sleep(0.002 * min(attempt, 10) * os.urandom(1)[0] / 255)
        yield attempt
    raise Busy(f"{what} keeps being changed by other processes; nothing was written.", "Try again.")


class Folded(Protocol):
    """The state computed from the entries of a log, in any order."""

    def add(self, entry: Mapping[str, Any], /) -> None: ...


F = TypeVar("F", bound=Folded)


class _State(msgspec.Struct, Generic[F]):
    """A fold, and how far its log was read."""

    fold: F
    cursor: Any = None
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

    def __init__(self, memory: Writer, empty: Callable[[], F]) -> None:
        self._memory = memory
        self._empty = empty
        self._known: dict[str, _State[F]] = {}
        self._lock = threading.Lock()

    def ask(self, path: str, question: Callable[[F], Answer], warnings: list[str]) -> Answer:
        """Return `question(fold)` for the current fold; add unreadable lines to `warnings`."""
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
            except Changed:
                continue
        raise AssertionError("attempts() ends in an error")

    def _read(self, path: str, warnings: list[str]) -> _State[F]:
        """Read a log on; a log that does not exist is an empty one."""
        known = self._known.pop(path, None)
        part = self._memory.store.read_on(path, known.cursor if known else None)
        if known is None or part.fresh:
            known = _State(self._empty())
        for entry in part.entries:
            known.fold.add(entry)
            own = str(entry.get("id"))
            known.order = max(known.order, own if is_id(own) else jsonl.identity(entry, "time")[1])
        known.cursor = part.cursor
        known.warnings += part.warnings
        warnings += [warning for warning in known.warnings if warning not in warnings]
        self._known[path] = known  # the one that was read last is last
        if len(self._known) > _MOST_LOGS:
            del self._known[next(iter(self._known))]
        return known
