"""Generations of the index in a database: which one is in use, and transactions on it.

One program at a time updates the index; others keep reading. A rebuild fills a new generation and swaps it in. The
index is derived from the files, so it is written without waiting for the disk.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

import msgspec

from holdfast.errors import Busy, HoldfastError
from holdfast.model.settings import Search
from holdfast.storage.index import Stale, Unusable
from holdfast.storage.postgres import connections
from holdfast.storage.postgres.database import Database, Transaction
from holdfast.storage.postgres.schema import TABLES

HERE = "tenant = %(tenant)s AND generation = %(generation)s"
ANALYZE_AFTER = 1_000
_WHAT = "the index"
_GENERATION = (
    "SELECT generation, mark, records, foreign_records, length, foreign_length FROM holdfast.index_generations"
)
_SWAP = """
UPDATE holdfast.index_generations SET state = CASE WHEN generation = %(generation)s THEN 'current' ELSE 'gone' END,
    used = clock_timestamp()
WHERE tenant = %(tenant)s AND identity = %(identity)s AND (state = 'current' OR generation = %(generation)s)
"""
_ABANDONED = """
UPDATE holdfast.index_generations SET state = 'gone' WHERE tenant = %(tenant)s AND (state = 'gone'
    OR (state = 'building' AND identity = %(identity)s AND generation <> %(generation)s)
    OR (state <> 'current' AND made < clock_timestamp() - interval '1 day' AND generation <> %(generation)s)
    OR (identity <> %(identity)s AND used < clock_timestamp() - interval '30 days'))
RETURNING generation
"""
T = TypeVar("T")


class Generation(msgspec.Struct, frozen=True):
    """One index: its number, the mark of its words, and its size."""

    number: int
    mark: str
    records: tuple[int, int] = (0, 0)
    """Records with words: own and foreign."""
    length: tuple[int, int] = (0, 0)
    """Words of all of them."""

    def average(self, foreign: bool) -> float:
        return max(1.0, self.length[foreign] / max(1, self.records[foreign]))

    def prefix(self, foreign: bool) -> str:
        """Return what the lexemes of own or foreign records begin with."""
        return self.mark + ("f" if foreign else "o")


class Generations:
    """The generations of one tenant's index. `fixed` is a generation that is not the one in use."""

    def __init__(self, database: Database, identity: str, settings: Search, fixed: int = 0) -> None:
        self._database = database
        self._identity = identity
        self._settings = settings
        self._fixed = fixed
        self._local = threading.local()

    def generation(self) -> str:
        try:
            return str(self._database.ask(_WHAT, self._current).number)
        except Stale:
            return ""

    def generations(self) -> list[str]:
        """Return all that are in use, whatever the way of reading the files."""
        statement = "SELECT generation FROM holdfast.index_generations WHERE tenant = %(tenant)s AND state = 'current'"
        return [str(row[0]) for row in self._database.ask(_WHAT, lambda tx: tx.rows(statement))]

    def _current(self, tx: Transaction) -> Generation:
        index: Generation | None = getattr(self._local, "index", None)
        if index:
            return index
        condition = HERE if self._fixed else "tenant = %(tenant)s AND identity = %(identity)s AND state = 'current'"
        row = tx.row(f"{_GENERATION} WHERE {condition}", generation=self._fixed, identity=self._identity)
        if not row:
            raise Stale("there is no index")
        return Generation(row[0], row[1], (row[2], row[3]), (row[4], row[5]))

    @contextlib.contextmanager
    def rebuilding(self) -> Iterator[Self]:
        fresh = self.begin("building")
        try:
            yield fresh
            replaced = self._database.run(_WHAT, fresh._swap_in, writes=True, durable=False)
        except BaseException:
            with contextlib.suppress(HoldfastError):
                fresh.end()
            raise
        with contextlib.suppress(HoldfastError):  # the next rebuild deletes them
            self._delete(replaced)

    def begin(self, state: str) -> Self:
        """Return an empty index beside the one in use."""
        if self._database.reads_only:
            raise Unusable("this login only reads")
        number, mark = secrets.randbits(62) + 1, base64.b32encode(secrets.token_bytes(4))[:5].decode().lower()
        self._database.run(
            _WHAT,
            lambda tx: tx.change(
                "INSERT INTO holdfast.index_generations (tenant, generation, identity, state, mark)"
                " VALUES (%(tenant)s, %(generation)s, %(identity)s, %(state)s, %(mark)s)",
                generation=number, identity=self._identity, state=state, mark=mark,
            ),
            writes=True, durable=False,
        )  # fmt: skip
        return type(self)(self._database, self._identity, self._settings, number)

    def _swap_in(self, tx: Transaction) -> list[int]:
        """Make this the index in use; return the generations that are not used any more.

        Only one program rebuilds at a time: other unfinished generations of the same identity were abandoned.
        """
        values = {"generation": self._fixed, "identity": self._identity}
        locked = f"SELECT 1 FROM holdfast.index_generations WHERE {HERE} AND state <> 'gone' FOR UPDATE"
        if not tx.row(locked, **values):
            raise Busy("Another program rebuilt the index meanwhile.", "Try again; nothing was lost.")
        tx.change(_SWAP, **values)
        return [number for (number,) in tx.rows(_ABANDONED, **values)]

    def end(self) -> None:
        """Remove this index, if it is not in use: a swap may have been committed without our knowing."""
        statement = (
            "UPDATE holdfast.index_generations SET state = 'gone'"
            f" WHERE {HERE} AND state <> 'current' RETURNING generation"
        )
        gone = self._database.run(_WHAT, lambda tx: tx.rows(statement, generation=self._fixed), writes=True)
        self._delete([number for (number,) in gone])

    def _delete(self, numbers: list[int]) -> None:
        """Delete all rows of some generations; the row of a generation goes last, so that none is forgotten."""
        for table in reversed(TABLES) if numbers else ():
            statement = f"DELETE FROM holdfast.{table} WHERE tenant = %(tenant)s AND generation = ANY(%(numbers)s)"
            self._database.run(
                _WHAT,
                lambda tx, statement=statement: tx.change(statement, numbers=numbers),  # type: ignore[misc]
                writes=True, durable=False,
            )  # fmt: skip

    # transactions

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        if getattr(self._local, "tx", None):
            yield
            return
        if self._database.reads_only:
            raise Busy("Other programs update the index: this login only reads.", "Nothing was lost.")
        with self._database.holding(_WHAT, durable=False) as tx:
            self._local.tx, self._local.index = tx, self._locked(tx)
            try:
                yield
            except connections.CONTRADICTED as error:  # there are no other writers
                raise Stale(f"the index is damaged: {error}") from None
            finally:
                self._local.tx = self._local.index = None
        if getattr(self._local, "grown", False):
            self._local.grown = False
            with contextlib.suppress(HoldfastError, Stale):  # it is only for better plans
                self._database.run(_WHAT, self._analyze, writes=True, durable=False)

    def _analyze(self, tx: Transaction) -> None:
        """Have the server analyze the tables when they have doubled; autovacuum would come later."""
        if tx.change(
            "UPDATE holdfast.index_generations SET analyzed = next_row"
            f" WHERE {HERE} AND next_row > 2 * analyzed + {ANALYZE_AFTER}",
            generation=self._current(tx).number,
        ):
            tx.rows("SELECT holdfast.analyze_index()")

    def _locked(self, tx: Transaction) -> Generation:
        """Lock the index in use, which may have been replaced while we waited."""
        hasty = getattr(self._local, "impatient", False)
        while True:
            index = self._current(tx)
            row = tx.row(f"SELECT {'pg_try_' if hasty else 'pg_'}advisory_xact_lock(%(key)s)", key=index.number)
            if hasty and not (row and row[0]):
                raise Busy("The index is in use by another program.", "Try again; nothing was lost.")
            now = self._current(tx)
            if now.number == index.number:
                return now

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        if getattr(self._local, "index", None):
            yield
            return
        with self._database.holding(_WHAT, durable=False) as tx:
            self._local.index = self._current(tx)
            try:
                yield
            finally:
                self._local.index = None

    @contextlib.contextmanager
    def impatient(self) -> Iterator[None]:
        before = getattr(self._local, "impatient", False)
        self._local.impatient = True
        try:
            yield
        finally:
            self._local.impatient = before

    def _read(self, work: Callable[[Transaction, Generation], T]) -> T:
        try:
            return self._database.ask(_WHAT, lambda tx: work(tx, self._current(tx)))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Stale(f"the index is damaged: {error}") from None

    def _rows(self, statement: str, **values: object) -> list[Any]:
        return self._read(lambda tx, index: tx.rows(statement, generation=index.number, **values))

    def _change(self, statement: str, **values: object) -> None:
        with self.writing():
            self._local.tx.change(statement, generation=self._local.index.number, **values)
