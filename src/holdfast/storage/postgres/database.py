"""One tenant's part of a database, and the transactions on it.

Every transaction takes on the application's role and names its tenant. Work that the server rolled back, or that lost
its connection, is retried for a bounded time. Work started by a thread that is already in a transaction joins it: both
are saved, or neither is.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import LiteralString, TypeVar

import msgspec
import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.rows import TupleRow

from holdfast.errors import Conflict, HoldfastError, Unavailable
from holdfast.storage.postgres import addresses, connections, error_mapping, migrations
from holdfast.storage.postgres.connections import Call, Session, Waits
from holdfast.storage.postgres.schema import PARTITIONS, READER

T = TypeVar("T")
DIRECT_LOCK_SECONDS = 0.05
"""How long a direct call waits for a lock before the caller falls back to a transaction."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
_LISTENERS_SECONDS = 1.0
"""How long the answer is trusted whether another program wants to be notified of writes."""
_PART: LiteralString = """
SELECT number FROM generate_series(0, %(parts)s - 1) AS number
WHERE satisfies_hash_partition('holdfast.files'::regclass, %(parts)s, number, %(tenant)s::text)
"""
_LISTENERS: LiteralString = """
SELECT EXISTS (SELECT FROM holdfast.listeners WHERE tenant = %(tenant)s AND until > clock_timestamp())
"""


class Transaction:
    """One attempt of some work."""

    def __init__(
        self, session: Session, tenant: str, *, doubtful: bool = False, durable: bool = True, outermost: bool = True
    ) -> None:
        self.session = session
        self.tenant = tenant
        self.doubtful = doubtful
        """An earlier attempt may have been committed."""
        self.durable = durable
        self.outermost = outermost
        """False for work that joined another transaction."""
        self.ending = False
        self.unchanged = False
        """Set by work that wants to be rolled back without an error."""
        self.last: Call | None = None
        """Set by work whose last statement can be sent together with the COMMIT; it has to return true."""
        self.joined = 0
        """How many other writes joined this one."""

    def rows(self, statement: LiteralString, **values: object) -> list[TupleRow]:
        return self._run(statement, values).fetchall()

    def row(self, statement: LiteralString, **values: object) -> TupleRow | None:
        return next(iter(self.rows(statement, **values)), None)

    def change(self, statement: LiteralString, **values: object) -> int:
        """Run a statement that changes rows; return how many."""
        return self._run(statement, values).rowcount

    def many(self, statement: LiteralString, values: Iterable[dict[str, object]]) -> None:
        """Run a statement once for each of the values, without waiting for each."""
        self.session.cursor(binary=True).executemany(statement, [{"tenant": self.tenant, **each} for each in values])

    def _run(self, statement: LiteralString, values: dict[str, object]) -> psycopg.Cursor[TupleRow]:
        return self.session.cursor(binary=True).execute(statement, {"tenant": self.tenant, **values})


class _Reads(Transaction):
    """Reads of which each is a transaction of its own, sent in one message with its settings."""

    def __init__(self, session: Session, tenant: str, settings: Call, seconds: float, *, doubtful: bool) -> None:
        super().__init__(session, tenant, doubtful=doubtful)
        self._settings = settings
        self._seconds = seconds

    def rows(self, statement: LiteralString, **values: object) -> list[TupleRow]:
        return self.session.ask(self._settings, statement, {**values, "tenant": self.tenant}, self._seconds)


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
        self._may_call = True
        self._listened = False
        self._listeners_until = 0.0
        self._owns_pool = True

    def beside(self, tenant: str) -> Database:
        """Return another tenant's part of the same database, over the same connections."""
        other = copy.copy(self)
        other.tenant = addresses.check_tenant(tenant)
        other.location = addresses.shown_for(self._address, tenant)
        other.address = addresses.for_tenant(self.address, tenant)
        other.__dict__.pop("part", None)
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

    @property
    def direct(self) -> bool:
        """Return whether this thread can use `call`: it notifies no listeners, and joins no transaction."""
        return self._may_call and not self.within and not self._listened and time.monotonic() <= self._listeners_until

    @functools.cached_property
    def part(self) -> int:
        """The number of the partition of this tenant."""
        row = self.run("the tenant", lambda tx: tx.row(_PART, parts=PARTITIONS))
        return int(row[0]) if row else 0

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

    def call(self, what: str, call: Call) -> bytes | None:
        """Run one statement as a transaction in one message, once; return its value.

        b"" means that it changed nothing, None that its outcome is unknown. The caller then does the same work by
        `run`.
        """
        session = self._take(what, time.monotonic() + self.waits.again_seconds, doubtful=False)
        before = session.warnings
        try:
            value = session.send(call, seconds=self.waits.statement_seconds)[0].get_value(0, 0)
        except psycopg.Error as error:
            if error_mapping.is_programming_error(error):
                raise
            if error_mapping.is_lost(error, session):
                self._pool.discard_lost(error, session)
                return None
            if isinstance(error, pg.InsufficientPrivilege):  # the login does not inherit the rights of its role
                self._may_call = False
                return b""
            if error_mapping.is_transient(error, session) or error_mapping.is_lock_timeout(error):
                return b""
            raise self._mapped(error, what) from None
        finally:
            self._pool.give_back(session)
        if session.warnings > before:
            raise error_mapping.unconfirmed(what)
        return value or b""

    def ask(self, what: str, work: Callable[[Transaction], T]) -> T:
        """Do some reads, of which each is a transaction of its own; retry where that may help."""
        return self.run(what, work, apart=True)

    def run(
        self, what: str, work: Callable[[Transaction], T], *,
        writes: bool = False, durable: bool = True, doubtful: bool = False, apart: bool = False,
    ) -> T:  # fmt: skip
        """Do some work in a transaction, and retry it where that may help; errors name `what`.

        Pass `doubtful` after a `call` with an unknown outcome.
        """
        outer: Transaction | None = getattr(self._local, "tx", None)
        if outer:
            return self._join(outer, what, work, writes=writes, durable=durable)
        deadline = time.monotonic() + self.waits.again_seconds
        pause = _FIRST_PAUSE
        while True:
            session = self._take(what, deadline, doubtful)
            tx = Transaction(session, self.tenant, doubtful=doubtful, durable=durable)
            try:
                if apart:
                    seconds = self.waits.statement_seconds
                    return work(_Reads(session, self.tenant, self._settings, seconds, doubtful=doubtful))
                return self._once(tx, what, work, writes=writes)
            except psycopg.Error as error:
                if error_mapping.is_programming_error(error):
                    raise
                doubtful = doubtful or (writes and tx.ending and error_mapping.is_lost(error, session))
                if not error_mapping.is_transient(error, session) or time.monotonic() + pause > deadline:
                    raise (error_mapping.uncertain(what) if doubtful else self._mapped(error, what)) from None
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
            raise error if error_mapping.is_programming_error(error) else self._mapped(error, what) from None
        finally:
            self._pool.give_back(session)

    def synchronous_commit(self, durable: bool) -> str:
        """Return what a write sets `synchronous_commit` to; "" where the server's default will do."""
        if not durable:
            return "off"
        return "on" if self._access.forgetful else ""

    def _take(self, what: str, deadline: float, doubtful: bool) -> Session:
        try:
            return self._pool.take(deadline)
        except HoldfastError:
            if doubtful:
                raise error_mapping.uncertain(what) from None
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
        if tx.unchanged:
            tx.session.send(then=b"ROLLBACK")  # keeps prepared statements, unlike psycopg's
        else:
            self._commit(tx, what)
        return result

    def _commit(self, tx: Transaction, what: str) -> None:
        tx.ending = True
        before = tx.session.warnings
        calls = (tx.last,) if tx.last else ()
        *done, commit = tx.session.send(*calls, then=b"COMMIT", seconds=self.waits.statement_seconds)
        if commit.command_status != b"COMMIT":
            raise Unavailable(f"{what}: the database rolled the work back.", "Nothing was saved; try again.")
        if done and done[0].get_value(0, 0) != b"t":
            raise Conflict(f"{what} was changed by the same work; nothing was added.", "Try again.")
        if tx.session.warnings > before:
            raise error_mapping.unconfirmed(what)

    def _join(
        self, outer: Transaction, what: str, work: Callable[[Transaction], T], *, writes: bool, durable: bool
    ) -> T:
        """Do the work in the transaction of this thread; a write that fails rolls back only itself."""
        durable = outer.durable or (writes and durable)
        inner = Transaction(outer.session, self.tenant, durable=durable, outermost=False)
        try:
            with outer.session.transaction() if writes else contextlib.nullcontext():
                if durable and not outer.durable:
                    outer.session.execute("SET LOCAL synchronous_commit = on")
                result = work(inner)
            outer.joined += writes
            outer.durable = durable
            return result
        except psycopg.Error as error:
            raise error if error_mapping.is_programming_error(error) else self._mapped(error, what) from None

    def _mapped(self, error: psycopg.Error, what: str) -> HoldfastError:
        return error_mapping.mapped(error, what, self.waits.lock_seconds, self.waits.statement_seconds)

    def _prepare_settings(self) -> None:
        """Work out what every transaction of this tenant starts with: as a call, and as a text with BEGIN."""
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
        values = [part.encode() for setting in settings.items() for part in setting]
        setting = b", ".join(b"set_config($%d, $%d, true)" % (n, n + 1) for n in range(1, len(values), 2))
        self._settings = Call(b"SELECT " + setting, values, [0] * len(values))
        self._begin = {}
        for durable in (True, False):
            commit = self.synchronous_commit(durable)
            parts = [
                sql.SQL("SET LOCAL {} = {}").format(sql.Identifier(*name.split(".")), sql.Literal(value))
                for name, value in (settings | ({"synchronous_commit": commit} if commit else {})).items()
            ]
            self._begin[durable] = sql.SQL("; ").join([sql.SQL("BEGIN"), *parts])


def milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
