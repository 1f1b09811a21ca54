"""One tenant's part of a database, and the transactions on it.

Every transaction takes on the application's role and names its tenant. Work that the server rolled back, or that lost
its connection, is retried for a bounded time. Work started by a thread that is already in a transaction joins it: both
are saved, or neither is.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import LiteralString, TypeVar

import msgspec
import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.rows import TupleRow

from holdfast.errors import HoldfastError, Unavailable
from holdfast.storage.postgres import addresses, connections, migrations
from holdfast.storage.postgres.connections import Session, Waits
from holdfast.storage.postgres.schema import READER

T = TypeVar("T")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
_LISTENERS_SECONDS = 1.0
"""How long the answer is trusted whether another program wants to be notified of writes."""
_LISTENERS: LiteralString = """
SELECT EXISTS (SELECT FROM holdfast.listeners WHERE tenant = %(tenant)s AND until > clock_timestamp())
"""


class Transaction:
    """One attempt of some work."""

    def __init__(self, session: Session, tenant: str, *, doubtful: bool = False, durable: bool = True) -> None:
        self.session = session
        self.tenant = tenant
        self.doubtful = doubtful
        """An earlier attempt may have been committed."""
        self.durable = durable
        self.ending = False
        self.unchanged = False
        """Set by work that wants to be rolled back without an error."""
        self.joined = 0
        """How many other writes joined this one."""

    def rows(self, statement: LiteralString, **values: object) -> list[TupleRow]:
        return self._run(statement, values).fetchall()

    def row(self, statement: LiteralString, **values: object) -> TupleRow | None:
        return next(iter(self.rows(statement, **values)), None)

    def change(self, statement: LiteralString, **values: object) -> int:
        """Run a statement that changes rows; return how many."""
        return self._run(statement, values).rowcount

    def _run(self, statement: LiteralString, values: dict[str, object]) -> psycopg.Cursor[TupleRow]:
        return self.session.cursor(binary=True).execute(statement, {"tenant": self.tenant, **values})


class _Reads(Transaction):
    """Reads of which each is a transaction of its own, sent in one message with its settings."""

    def __init__(self, session: Session, tenant: str, settings: bytes) -> None:
        super().__init__(session, tenant)
        self._settings = settings

    def rows(self, statement: LiteralString, **values: object) -> list[TupleRow]:
        return self.session.ask(self._settings, statement, {"tenant": self.tenant, **values})


class Database:
    """One tenant's part of a database, which is set up if it is empty. Threads may share it."""

    def __init__(self, dsn: str, waits: Waits | None = None) -> None:
        self.waits = waits or Waits()
        self._address = addresses.parse(dsn)
        self.location = self._address.shown
        self.address = self._address.bare
        self.tenant = self._address.tenant
        with connections.connect(self._address) as first:
            self._access = migrations.prepare(first)
            self.no_vectors = migrations.prepare_vectors(first)
        self._prepare_settings()
        self._pool = connections.Pool(self._address, self.waits, migrations.check)
        self._local = threading.local()
        self._listened, self._listeners_until = False, 0.0
        self._owns_pool = True

    def beside(self, tenant: str) -> Database:
        """Return another tenant's part of the same database, over the same connections."""
        other = copy.copy(self)
        other.tenant = addresses.check_tenant(tenant)
        other.location = addresses.shown_for(self._address, tenant)
        other.address = addresses.for_tenant(self.address, tenant)
        other._listened, other._listeners_until = False, 0.0
        other._prepare_settings()
        other._local = threading.local()
        other._owns_pool = False
        return other

    def wait_for_others(self, seconds: float) -> None:
        """Set how long to wait for locks; no statement is cancelled before that."""
        longest = max(self.waits.statement_seconds, 2 * seconds)
        self.waits = msgspec.structs.replace(self.waits, lock_seconds=seconds, statement_seconds=longest)
        self._prepare_settings()

    def close(self) -> None:
        if self._owns_pool:
            self._pool.close()

    @property
    def reads_only(self) -> bool:
        """Return whether this login has no rights to write."""
        return self._access.role == READER

    @property
    def within(self) -> bool:
        """Return whether this thread is in a transaction."""
        return getattr(self._local, "tx", None) is not None

    def connect(self) -> Session:
        """Open a separate connection with the application's rights; it names no tenant."""
        session = connections.connect(self._address)
        session.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(self._access.role)))
        return session

    @contextlib.contextmanager
    def locked(self, name: str, seconds: float) -> Iterator[bool]:
        """Hold a named lock of this tenant on a separate connection; yield False when it was not free in time."""
        key = int.from_bytes(hashlib.sha256(f"{self.tenant}\n{name}".encode()).digest()[:8], "big", signed=True)
        with contextlib.closing(self.connect()) as session:
            session.execute(f"SET lock_timeout = {milliseconds(seconds)}")
            try:
                session.execute("SELECT pg_advisory_lock(%s)", [key])
            except pg.LockNotAvailable:
                yield False
                return
            yield True

    def ask(self, what: str, work: Callable[[Transaction], T]) -> T:
        """Do some reads, of which each is a transaction of its own; retry where that may help."""
        return self.run(what, work, apart=True)

    def run(
        self, what: str, work: Callable[[Transaction], T], *,
        writes: bool = False, durable: bool = True, apart: bool = False,
    ) -> T:  # fmt: skip
        """Do some work in a transaction, and retry it where that may help; errors name `what`."""
        outer: Transaction | None = getattr(self._local, "tx", None)
        if outer:
            return self._join(outer, what, work, writes=writes, durable=durable)
        deadline = time.monotonic() + self.waits.again_seconds
        pause, doubtful = _FIRST_PAUSE, False
        while True:
            session = self._take(what, deadline, doubtful)
            tx = Transaction(session, self.tenant, doubtful=doubtful, durable=durable)
            try:
                if apart:
                    return work(_Reads(session, self.tenant, self._settings))
                return self._once(tx, what, work, writes=writes)
            except psycopg.Error as error:
                if connections.is_programming_error(error):
                    raise
                doubtful = doubtful or (writes and tx.ending and connections.is_lost(error, session))
                if not connections.is_transient(error, session) or time.monotonic() + pause > deadline:
                    raise (connections.uncertain(what) if doubtful else self._mapped(error, what)) from None
                self._pool.discard_lost(error, session)
            finally:
                self._pool.give_back(session)
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, _LONGEST_PAUSE)

    @contextlib.contextmanager
    def holding(self, what: str, *, durable: bool = True) -> Iterator[Transaction]:
        """Open a transaction as a block, without retries; inside another transaction, join that one."""
        outer: Transaction | None = getattr(self._local, "tx", None)
        if outer:
            yield outer
            return
        session = self._take(what, time.monotonic() + self.waits.again_seconds, doubtful=False)
        tx = Transaction(session, self.tenant, durable=durable)
        try:
            session.execute(self._begin[durable])
            self._local.tx = tx
            try:
                yield tx
            finally:
                self._local.tx = None
            self._commit(tx, what)
        except psycopg.Error as error:
            self._pool.discard_lost(error, session)
            raise error if connections.is_programming_error(error) else self._mapped(error, what) from None
        finally:
            self._pool.give_back(session)

    def _take(self, what: str, deadline: float, doubtful: bool) -> Session:
        try:
            return self._pool.take(deadline)
        except HoldfastError:
            if doubtful:
                raise connections.uncertain(what) from None
            raise

    def _once(self, tx: Transaction, what: str, work: Callable[[Transaction], T], *, writes: bool) -> T:
        tx.session.execute(self._begin[tx.durable])
        if writes:
            if time.monotonic() > self._listeners_until:
                row = tx.row(_LISTENERS)
                self._listened, self._listeners_until = bool(row and row[0]), time.monotonic() + _LISTENERS_SECONDS
            if self._listened:
                tx.session.execute("SET LOCAL holdfast.listened = 'on'")
        self._local.tx = tx
        try:
            result = work(tx)
        finally:
            self._local.tx = None
        if not tx.unchanged:
            self._commit(tx, what)
        return result

    def _commit(self, tx: Transaction, what: str) -> None:
        tx.ending = True
        before = tx.session.warnings
        if tx.session.execute("COMMIT", prepare=False).statusmessage != "COMMIT":
            raise Unavailable(f"{what}: the database rolled the work back.", "Nothing was saved; try again.")
        if tx.session.warnings > before:
            raise connections.unconfirmed(what)

    def _join(
        self, outer: Transaction, what: str, work: Callable[[Transaction], T], *, writes: bool, durable: bool
    ) -> T:
        """Do the work in the transaction of this thread; a write that fails rolls back only itself."""
        durable = outer.durable or (writes and durable)
        inner = Transaction(outer.session, self.tenant, durable=durable)
        try:
            with outer.session.transaction() if writes else contextlib.nullcontext():
                if durable and not outer.durable:
                    outer.session.execute("SET LOCAL synchronous_commit = on")
                result = work(inner)
            outer.joined += writes
            outer.durable = durable
            return result
        except psycopg.Error as error:
            raise error if connections.is_programming_error(error) else self._mapped(error, what) from None

    def _mapped(self, error: psycopg.Error, what: str) -> HoldfastError:
        return connections.mapped(error, what, self.waits.lock_seconds, self.waits.statement_seconds)

    def _prepare_settings(self) -> None:
        """Put together what every transaction of this tenant starts with: as one query, and after BEGIN."""
        settings = {
            "role": self._access.role,
            "holdfast.tenant": self.tenant,
            "lock_timeout": milliseconds(self.waits.lock_seconds),
            "statement_timeout": milliseconds(self.waits.statement_seconds),
            "idle_in_transaction_session_timeout": milliseconds(self.waits.idle_seconds),
            "client_min_messages": "warning",
            "jit": "off",  # compiling takes longer than any of our queries
            "max_parallel_workers_per_gather": "0",
        }
        calls = [sql.SQL("set_config({}, {}, true)").format(*setting) for setting in settings.items()]
        self._settings = sql.SQL("SELECT {}").format(sql.SQL(", ").join(calls)).as_bytes()
        self._begin = {}
        for durable, commit in ((True, "on" if self._access.forgetful else ""), (False, "off")):
            chosen = settings | ({"synchronous_commit": commit} if commit else {})
            parts = [sql.SQL(f"SET LOCAL {name} = {{}}").format(value) for name, value in chosen.items()]
            self._begin[durable] = sql.SQL("; ").join([sql.SQL("BEGIN"), *parts]).as_bytes()


def milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
