"""Tasks in a database: rows that say what the logs add up to, so that a claim needs to read no log.

A claim takes a row that nobody else is taking (`FOR UPDATE SKIP LOCKED`), and its line is added to the log in the same
transaction. The log is the truth: a row of `task_logs` says how far it is in the tables, and when it went on without us
(a push, a hand), they are made again from it. Rows are held before the log, and who holds the log waits for no row.
Leases go by the clock of the server.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from holdfast.errors import Busy
from holdfast.formats import jsonl
from holdfast.formats.graphs import Graph
from holdfast.formats.tasks import Line, Outlook, Task, View, Wanted
from holdfast.storage.postgres import rows as _rows
from holdfast.storage.postgres._tasks import Tables, clock
from holdfast.storage.postgres.database import Database, Transaction
from holdfast.storage.tree import LogEnd, RootGone, Vault

_PAUSE = 0.01
Answer = TypeVar("Answer")
Write = Callable[[str, Callable[[LogEnd], list[Line]]], list[Line]]


class PgQueue:
    """The tasks of one tenant."""

    def __init__(self, database: Database, vault: Vault) -> None:
        self._database = database
        self._vault = vault

    def now(self) -> int:
        return self._database.ask("The clock", clock)

    def change(self, path: str, decide: Callable[[View], list[Line]], write: Write) -> list[Line]:
        changing = _Changing(path, decide, write, self._is_there)
        deadline = time.monotonic() + self._database.waits.again_seconds
        while True:
            try:
                return self._database.run(path, changing.attempt, writes=True)
            except _Behind:
                if time.monotonic() > deadline:
                    raise Busy(f"{path} is written to all the time; nothing was added.", "Try again.") from None
                self._database.run(path, functools.partial(self._rebuild, path=path), writes=True)
            except _Undone as undone:
                if time.monotonic() > deadline:
                    raise undone.error from None
                time.sleep(_PAUSE)

    def look(self, path: str, ids: Iterable[str] | None = None) -> dict[str, Task]:
        wanted = None if ids is None else list(ids)

        def work(turn: Transaction) -> dict[str, Task] | None:
            tables = Tables(turn, path)
            return tables.tasks(wanted) if tables.current() else None

        found = self._database.run(path, work)
        if found is None:
            graph = self._fold(path)
            found = graph.every() if wanted is None else graph.get(wanted)
        return found

    def outlook(self, path: str, wanted: Wanted) -> Outlook:
        def work(turn: Transaction) -> Outlook | None:
            tables = Tables(turn, path)
            return tables.outlook(wanted) if tables.current() else None

        return self._database.run(path, work) or self._fold(path).outlook(wanted, self.now())

    def find(self, identifier: str) -> str:
        return self._database.ask(identifier[:80], lambda turn: Tables(turn, "").home(identifier))

    def _fold(self, path: str) -> Graph:
        """Return what a log says, read as a whole."""
        graph = Graph()
        if self._vault.stat(path) is None:
            return graph
        for line in self._vault.scan(path):
            found = "too long" if line.cut else jsonl.parse(line.data)
            for value in found if isinstance(found, list) else ():
                graph.add(value)
        return graph

    def _rebuild(self, turn: Transaction, path: str) -> None:
        """Make the tables say what the log says."""
        tables = Tables(turn, path)
        tables.hold()
        _rows.look(turn, path, hold=True)
        if not tables.current():  # somebody else did it while we waited
            tables.replace(self._fold(path))

    def _is_there(self, turn: Transaction, path: str, lines: list[Line]) -> bool:
        """Was what an earlier try added saved after all? Its end is waited for."""
        if not lines or not _rows.look(turn, path, hold=True):
            return False
        wanted = lines[-1]["id"].encode()
        return any(wanted in line.data for line in self._vault.scan_back(path))


class _Changing:
    """One change, over all its tries."""

    def __init__(
        self, path: str, decide: Callable[[View], list[Line]], write: Write,
        is_there: Callable[[Transaction, str, list[Line]], bool],
    ) -> None:  # fmt: skip
        self._path = path
        self._decide = decide
        self._write = write
        self._is_there = is_there
        self._sent: list[Line] = []

    def attempt(self, turn: Transaction) -> list[Line]:
        if turn.doubtful and self._is_there(turn, self._path, self._sent):
            return self._sent
        tables = Tables(turn, self._path)
        if not tables.current():
            raise _Behind
        lines = self._decide(tables)
        if not lines:
            turn.unchanged = True
            return []
        tables.hold_dependants(lines)
        self._sent = self._added(tables, lines)
        tables.take_in(self._sent)
        return self._sent

    def _added(self, tables: Tables, lines: list[Line]) -> list[Line]:
        def make(_end: LogEnd) -> list[Line]:
            if not tables.current():  # asked again, now that the log is held
                raise _Behind
            return lines

        try:
            return self._write(self._path, make)
        except (Busy, RootGone) as error:  # a part of our transaction, of which nothing stays
            raise _Undone(error) from None


class _Behind(Exception):
    """The log went on without us."""


class _Undone(Exception):
    """Others were in the way, or the connection was lost, before anything was saved."""

    def __init__(self, error: Any) -> None:
        super().__init__()
        self.error = error
