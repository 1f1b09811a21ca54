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
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg import errors as pg
from psycopg.rows import TupleRow

from holdfast.errors import Unavailable
from holdfast.model.times import mint_many, now_ms
from holdfast.storage.postgres import addresses, connections, schema
from holdfast.storage.postgres.connections import Insert, Session, Statement, Unprepared, Waits, encoded

_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
_STATE_SECONDS = 1.0
"""How long the answer to _STATE is trusted."""
_SKEW_MS = 1_000
"""A clock that differs from the server's by more than this is corrected."""
_SETTINGS = """
SELECT WHERE set_config('role', %(role)s, true) IS NULL OR set_config('holdfast.tenant', %(tenant)s, true) IS NULL
    OR set_config('holdfast.scope', %(scope)s, true) IS NULL OR set_config('lock_timeout', %(lock)s, true) IS NULL
    OR set_config('synchronous_commit', %(commit)s, true) IS NULL
"""
"""Settings of one transaction; no row is returned, because none is read."""
_PLANNER = """
SELECT set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true),
       set_config('enable_seqscan', 'off', true), set_config('plan_cache_mode', 'force_custom_plan', true)
"""
_STATE = """
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, ARRAY(SELECT substr(name, 8) FROM holdfast.lease
    WHERE tenant = %(tenant)s AND name LIKE 'listen:%' AND until > clock_timestamp())
"""
"""The server's clock, and the programs that want to be notified of writes."""
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
            self._role, self._commit = schema.prepare(first, migrating=migrating)
            self.no_vectors = schema.prepare_vectors(first)
        self._pool = connections.Pool(self._address, self.waits.connections, schema.check)
        self._local = threading.local()
        self._listeners: list[str] = []
        self._state_until = 0.0
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
        other._listeners, other._state_until = [], 0.0
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
    def _settings(self) -> dict[bool, Statement]:
        """The settings of durable writes, and of others."""
        shared = (self._role, self.tenant, self.scope, milliseconds(self.waits.lock_seconds))
        return {True: (_SETTINGS, encoded(*shared, self._commit)), False: (_SETTINGS, encoded(*shared, "off"))}

    def close(self) -> None:
        if self._owns_pool:
            self._pool.close()

    @property
    def reads_only(self) -> bool:
        """Return whether this login has no rights to write."""
        return self._role == schema.READER

    def connect(self) -> Session:
        """Open a separate connection with the application's rights, to listen on; it names no tenant."""
        session = connections.connect(self._address)
        session.execute(f"SET ROLE {self._role}")
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
        first, known = [self.first] if self.first else [], self._listeners
        more: list[Statement] = [(_NOTIFY, {"channels": known})] if known else []
        found = self.send(what, [*first, *statements, *more], durable=durable, writes=True)
        if first and not self._session:
            self.first = None
        if new := [one for one in self._listeners if one not in known] if self._listeners is not known else []:
            self.send(what, [(_NOTIFY, {"channels": new})])
        return found[len(first) : len(first) + len(statements)]

    def send(
        self, what: str, statements: Sequence[Statement], *, durable: bool = True, writes: bool = False
    ) -> list[list[TupleRow]]:
        """Run statements as one transaction in one message; inside a transaction of this thread, as a part of it."""
        given: list[Statement] = [
            (text, {"tenant": self.tenant, **values} if isinstance(values, dict) else values)
            for text, values in statements
        ]
        if session := self._session:
            return self._message(session, given)
        now = time.monotonic()
        if now < self._state_until:
            return self._retried(what, [self._settings[durable], *given], now, writes=writes)[1:]
        found = self._retried(what, [self._settings[durable], *given, (_STATE, [self.tenant])], now, writes=writes)
        self._note_state(found.pop())
        return found[1:]

    @property
    def _session(self) -> Session | None:
        """The session of this thread's transaction."""
        return getattr(self._local, "session", None)

    def _note_state(self, rows: list[TupleRow]) -> None:
        ((clock, self._listeners),) = rows
        skew = int(clock) - now_ms()
        self._skew = skew if abs(skew) > _SKEW_MS else 0
        self._state_until = time.monotonic() + _STATE_SECONDS

    def _message(self, session: Session, statements: Sequence[Statement]) -> list[list[TupleRow]]:
        self.trips += 1
        session.seconds = self.waits.statement_seconds
        return session.message(statements, prepare=self._prepares)

    @contextlib.contextmanager
    def transaction(self, what: str) -> Iterator[None]:
        """Open a transaction for this thread, without retries: messages inside belong to it."""
        if self._session:
            yield
            return
        with self._pool.session(time.monotonic() + self.waits.again_seconds) as session:
            before = session.warnings
            try:
                idle = [milliseconds(self.waits.idle_seconds)]
                begin = [("BEGIN", []), self._settings[True], (_IDLE, idle), (_STATE, [self.tenant])]
                self._note_state(self._message(session, begin)[-1])
                self._local.session = session
                try:
                    yield
                finally:
                    self._local.session = None
                self._message(session, [("COMMIT", [])])
            except psycopg.Error as error:
                if isinstance(error, connections.UNPREPARED):
                    self._prepares = False
                self._pool.discard_lost(error, session)
                raise error if _is_ours(error) else connections.mapped(error, what, self.waits) from None
            if session.warnings > before:
                raise _unconfirmed(what)

    def _retried(self, what: str, statements: Sequence[Statement], now: float, *, writes: bool) -> list[list[TupleRow]]:
        """Send a message, and again where that may help."""
        deadline, pause = now + self.waits.again_seconds, _FIRST_PAUSE
        while True:
            with self._pool.session(deadline) as session:
                before = session.warnings
                try:
                    found = self._message(session, statements)
                    if writes and session.warnings > before:
                        raise _unconfirmed(what)
                    return found
                except psycopg.Error as error:
                    if _is_ours(error):
                        raise
                    if isinstance(error, connections.UNPREPARED) and self._prepares:
                        self._prepares, pause = False, 0.0
                    elif not connections.is_transient(error, session) or time.monotonic() + pause > deadline:
                        raise connections.mapped(error, what, self.waits) from None
                    self._pool.discard_lost(error, session)
            statements = [(text.again if isinstance(text, Insert) else text, given) for text, given in statements]
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
