"""One tenant's part of a database: messages and transactions with its role, its tenant and its scope.

Rows have ids that the client made, and a row that is there already is not added again. So a message that was lost, or
whose answer was lost, is sent again without harm, for a bounded time.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg import errors as pg
from psycopg.rows import TupleRow

from holdfast.errors import Unavailable
from holdfast.model.times import mint_many, now_ms
from holdfast.storage.postgres import addresses, connections, schema
from holdfast.storage.postgres.connections import Session, Statement, Unprepared, Waits

T = TypeVar("T")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
_LISTENERS_SECONDS = 1.0
"""How long the answer is trusted whether another program wants to be notified of writes."""
_SKEW_MS = 1_000
"""A clock that differs from the server's by more than this is corrected."""
_SETTINGS = """
SELECT set_config('role', %(role)s, true), set_config('holdfast.tenant', %(tenant)s, true),
       set_config('holdfast.scope', %(scope)s, true), set_config('lock_timeout', %(lock)s, true),
       set_config('synchronous_commit', %(commit)s, true), (extract(epoch FROM clock_timestamp()) * 1000)::bigint
"""
_PLANNER = """
SELECT set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true),
       set_config('enable_seqscan', 'off', true), set_config('plan_cache_mode', 'force_custom_plan', true)
"""
_LISTENERS = """
SELECT substr(name, 8) FROM holdfast.lease
WHERE tenant = %(tenant)s AND name LIKE 'listen:%' AND until > clock_timestamp()
"""
_NOTIFY = "SELECT pg_notify(channel, '') FROM unnest(%(channels)s::text[]) AS channel"


class Database:
    """One tenant's part of a database, which is set up if it is empty. Threads may share it."""

    def __init__(self, dsn: str, waits: Waits | None = None, *, migrating: bool = False) -> None:
        self.waits = waits or Waits()
        self._address = addresses.parse(dsn)
        self.location = self._address.shown
        self.address = self._address.bare
        self.tenant = self._address.tenant
        self.scope = ""
        with connections.connect(self._address) as first:
            self._access = schema.prepare(first, migrating=migrating)
            self.no_vectors = schema.prepare_vectors(first)
        self._pool = connections.Pool(self._address, self.waits, schema.check)
        self._local = threading.local()
        self._listeners: tuple[float, list[str]] = (0.0, [])
        self._owns_pool = True
        self._prepares = True
        self._skew = 0
        self._last_id = ""
        self._ids = threading.Lock()
        self.first: Statement | None = None
        """A statement that is part of the first write."""
        self.trips = 0
        """How many messages were sent."""

    def beside(self, tenant: str = "", scope: str = "") -> Database:
        """Return another tenant's part, or one scope of this tenant, over the same connections."""
        other = copy.copy(self)
        if tenant:
            other.tenant = addresses.check_tenant(tenant)
            other.location = addresses.shown_for(self._address, tenant)
            other.address = addresses.for_tenant(self.address, tenant)
        other.scope = scope or self.scope
        other._listeners = (0.0, [])
        other.first = None
        other._local = threading.local()
        other.__dict__.pop("_settings", None)
        other._owns_pool = False
        return other

    def wait_for_others(self, seconds: float) -> None:
        """Set how long to wait for locks; no statement is cancelled before that."""
        longest = max(self.waits.statement_seconds, 2 * seconds)
        self.waits = msgspec.structs.replace(self.waits, lock_seconds=seconds, statement_seconds=longest)
        self.__dict__.pop("_settings", None)

    @functools.cached_property
    def _settings(self) -> dict[bool, list[Any]]:
        """The values of _SETTINGS for durable writes and for others."""
        lock, commit = milliseconds(self.waits.lock_seconds), "on" if self._access.forgetful else self._access.commit
        return {
            durable: [self._access.role, self.tenant, self.scope, lock, commit if durable else "off"]
            for durable in (True, False)
        }

    def close(self) -> None:
        if self._owns_pool:
            self._pool.close()

    @property
    def reads_only(self) -> bool:
        """Return whether this login has no rights to write."""
        return self._access.role == schema.READER

    def connect(self) -> Session:
        """Open a separate connection with the application's rights, to listen on; it names no tenant."""
        session = connections.connect(self._address)
        session.execute(f"SET ROLE {self._access.role}")
        return session

    def add_graph(self) -> None:
        """Add the graph of vectors, if it is missing and this login may do that."""
        with contextlib.closing(connections.connect(self._address)) as session:
            schema.add_graph(session)

    # ids

    def mint(self, count: int = 1, after: str = "") -> list[str]:
        """Make ascending ids by the server's clock, greater than `after` and than all that were made here."""
        with self._ids:
            start = max(after, self._last_id) if after else self._last_id
            ids = mint_many(start, count, now_ms() + self._skew)
            self._last_id = max(self._last_id, ids[-1])
            return ids

    # messages

    def ask(self, what: str, statement: str, **values: Any) -> list[TupleRow]:
        """Return the rows of a query, which is one message."""
        return self.send(what, [(statement, values)])[-1]

    def write(self, what: str, statements: Sequence[Statement], *, durable: bool = True) -> list[list[TupleRow]]:
        """Run statements that change rows, in one message, and wake the programs that listen."""
        more: list[Statement] = []
        until, channels = self._listeners
        if time.monotonic() > until:
            more = [(_LISTENERS, {})]
        elif channels:
            more = [(_NOTIFY, {"channels": channels})]
        first = [self.first] if self.first else []
        found = self.send(what, [*first, *statements, *more], durable=durable, writes=True)[len(first) :]
        if not getattr(self._local, "session", None):
            self.first = None
        if more and more[0][0] is _LISTENERS:
            channels = [channel for (channel,) in found[-1]]
            self._listeners = (time.monotonic() + _LISTENERS_SECONDS, channels)
            if channels:
                self.send(what, [(_NOTIFY, {"channels": channels})])
        return found[: len(statements)]

    def send(
        self, what: str, statements: Sequence[Statement], *, durable: bool = True, writes: bool = False
    ) -> list[list[TupleRow]]:
        """Run statements as one transaction in one message; inside a transaction of this thread, as a part of it."""
        given: list[Statement] = [
            (text, values if isinstance(values, list) else {"tenant": self.tenant, **values})
            for text, values in statements
        ]
        if session := getattr(self._local, "session", None):
            return self._message(session, given)
        settings = (_SETTINGS, self._settings[durable])

        def work(session: Session) -> list[list[TupleRow]]:
            before = session.warnings
            found = self._message(session, [settings, *given])
            if writes and session.warnings > before:
                raise _unconfirmed(what)
            skew = int(found[0][0][-1]) - now_ms()
            self._skew = skew if abs(skew) > _SKEW_MS else 0
            return found[1:]

        return self._retried(what, work)

    def _message(self, session: Session, statements: Sequence[Statement]) -> list[list[TupleRow]]:
        self.trips += 1
        return session.message(statements, prepare=self._prepares)

    @contextlib.contextmanager
    def transaction(self, what: str) -> Iterator[None]:
        """Open a transaction for this thread, without retries: messages inside belong to it."""
        if getattr(self._local, "session", None):
            yield
            return
        session = self._pool.take(time.monotonic() + self.waits.again_seconds)
        try:
            before = session.warnings
            idle = {"ms": milliseconds(self.waits.idle_seconds)}
            self._message(session, [("BEGIN", {}), (_SETTINGS, self._settings[True]), (_IDLE, idle)])
            self._local.session = session
            try:
                yield
            finally:
                self._local.session = None
            self._message(session, [("COMMIT", {})])
            if session.warnings > before:
                raise _unconfirmed(what)
        except psycopg.Error as error:
            if isinstance(error, connections.UNPREPARED):
                self._prepares = False
            self._pool.discard_lost(error, session)
            raise error if _is_ours(error) else connections.mapped(error, what, self.waits) from None
        finally:
            self._pool.give_back(session)

    def _retried(self, what: str, work: Callable[[Session], T]) -> T:
        """Do some work on a connection, and again where that may help."""
        deadline, pause = time.monotonic() + self.waits.again_seconds, _FIRST_PAUSE
        while True:
            session = self._pool.take(deadline)
            try:
                return work(session)
            except psycopg.Error as error:
                if _is_ours(error):
                    raise
                if isinstance(error, connections.UNPREPARED) and self._prepares:
                    self._prepares, pause = False, 0.0
                elif not connections.is_transient(error, session) or time.monotonic() + pause > deadline:
                    raise connections.mapped(error, what, self.waits) from None
                self._pool.discard_lost(error, session)
            finally:
                self._pool.give_back(session)
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause or _FIRST_PAUSE, _LONGEST_PAUSE)


_IDLE = "SELECT set_config('idle_in_transaction_session_timeout', %(ms)s, true)"


def planned(statement: str, values: dict[str, Any]) -> list[Statement]:
    """Return a query that is planned for its values, and the settings that it needs."""
    return [(_PLANNER, []), (Unprepared(statement), values)]


def _is_ours(error: psycopg.Error) -> bool:
    """Return whether the caller handles this: a broken promise of a unique index, or one of our own conditions."""
    return (
        isinstance(error, pg.UniqueViolation)
        or (error.sqlstate or "").startswith("HF")
        or connections.is_programming_error(error)
    )


def _unconfirmed(what: str) -> Unavailable:
    return Unavailable(
        f"{what} is saved on the server, but no standby has confirmed it.",
        "Check the standbys, and whether it is there, before you try again.",
    )


def milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
