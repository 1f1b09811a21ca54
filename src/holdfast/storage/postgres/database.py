"""One tenant's part of a database: messages and transactions with its role, its tenant and its scope.

Rows have ids that the client made, and a row that is there already is not added again. So a message that was lost, or
whose answer was lost, is sent again without harm, for a bounded time.

Access tokens are looked up as the tenant that they name. An unknown tenant and an unknown token look the same: no row.
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

from holdfast.errors import AlreadyExists, Unavailable
from holdfast.model.grants import Grant
from holdfast.model.times import iso, mint_many, now_ms
from holdfast.storage.postgres import connections, schema
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

_QUICK = Waits(lock_seconds=2.0, statement_seconds=3.0, again_seconds=2.0, connections=2)
"""Every request waits for this first, and so does the check whether the server is ready."""
_TIMES = ("created", "expires", "revoked")
_TOKENS = (
    "SELECT id, name, digest, tenant, scope, reads_only, extract(epoch FROM created)::float8,"
    " extract(epoch FROM expires)::float8, extract(epoch FROM revoked)::float8, used::text"
    " FROM holdfast.token WHERE tenant = %(tenant)s"
)
"""The columns, in the order of the fields of Grant."""
_GRANT = """
INSERT INTO holdfast.token (tenant, id, name, digest, scope, reads_only, expires) VALUES (%(tenant)s, %(id)s, %(name)s,
    %(digest)s, %(scope)s, %(reads_only)s, nullif(%(expires)s, '')::timestamptz) ON CONFLICT DO NOTHING
"""
_REVOKE = """
UPDATE holdfast.token SET revoked = clock_timestamp()
WHERE tenant = %(tenant)s AND id = %(id)s AND revoked IS NULL
"""
_USE = """
UPDATE holdfast.token SET used = current_date
WHERE tenant = %(tenant)s AND id = %(id)s AND used IS DISTINCT FROM current_date
"""
_HEALTH = """
SELECT current_setting('server_version'), (SELECT max(version) FROM holdfast.migrations), session_user::text,
       current_user::text, pg_is_in_recovery(),
       coalesce((SELECT extversion FROM pg_extension WHERE extname = 'vector'), ''),
       EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector'),
       (SELECT count(*) FROM pg_stat_replication),
       coalesce(extract(epoch FROM now() - pg_last_xact_replay_timestamp()), 0)::float8
"""
_ROUNDS = 5


class Database:
    """One tenant's part of a database, which is set up if it is empty. Threads may share it."""

    def __init__(self, dsn: str, waits: Waits | None = None, *, migrating: bool = False) -> None:
        self.waits = waits or Waits()
        self._address = connections.parse_address(dsn)
        self.location = self._address.shown
        self.address = self._address.bare
        self.tenant = self._address.tenant
        self.scope = ""
        with connections.reported(self.location, self.waits), connections.connect(self._address) as first:
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
            other.tenant = connections.check_tenant(tenant)
            other.location = connections.shown_for(self._address, tenant)
            other.address = connections.for_tenant(self.address, tenant)
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
        with connections.reported(self.location, self.waits):
            session.execute(f"SET ROLE {self._role}")
        return session

    def add_graph(self) -> None:
        """Add the graph of vectors, if it is missing and this login may do that."""
        with (
            connections.reported(self.location, self.waits),
            contextlib.closing(connections.connect(self._address)) as session,
        ):
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
        session = self._pool.take(time.monotonic() + self.waits.again_seconds)
        try:
            before = session.warnings
            idle = [milliseconds(self.waits.idle_seconds)]
            begin = [("BEGIN", []), self._settings[True], (_IDLE, idle), (_STATE, [self.tenant])]
            self._note_state(self._message(session, begin)[-1])
            self._local.session = session
            try:
                yield
            finally:
                self._local.session = None
            self._message(session, [("COMMIT", [])])
            if session.warnings > before:
                raise _unconfirmed(what)
        except psycopg.Error as error:
            if isinstance(error, connections.UNPREPARED):
                self._prepares = False
            self._pool.discard_lost(error, session)
            raise error if _is_ours(error) else connections.mapped(error, what, self.waits) from None
        finally:
            self._pool.give_back(session)

    def _retried(self, what: str, statements: Sequence[Statement], now: float, *, writes: bool) -> list[list[TupleRow]]:
        """Send a message, and again where that may help."""
        deadline, pause = now + self.waits.again_seconds, _FIRST_PAUSE
        while True:
            session = self._pool.take(deadline)
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


# access tokens


class PgGrants:
    """The grants of all tenants of a database; `all`, `add` and `revoke` use the tenant of the address."""

    def __init__(self, address: str) -> None:
        self._database = Database(address, _QUICK)

    def find(self, tenant: str, identifier: str) -> Grant | None:
        connections.check_tenant(tenant)
        rows = self._database.beside(tenant).ask("The tokens", _TOKENS + " AND id = %(id)s", id=identifier)
        return _grant(rows[0]) if rows else None

    def all(self) -> list[Grant]:
        return [_grant(row) for row in self._database.ask("The tokens", _TOKENS + " ORDER BY created, id")]

    def add(self, grant: Grant) -> None:
        names = ("id", "name", "digest", "scope", "reads_only", "expires")
        self._database.write("The token", [(_GRANT, {name: getattr(grant, name) for name in names})])
        # the row also exists if an earlier attempt was committed and its answer was lost
        if not self._database.ask("The token", _TOKENS + " AND id = %(id)s", id=grant.id):
            raise AlreadyExists(f"There is a token {grant.name!r} already.", "Revoke it, or use another name.")

    def revoke(self, identifier: str) -> None:
        self._database.write("The token", [(_REVOKE, {"id": identifier})])

    def note_use(self, tenant: str, identifier: str) -> None:
        self._database.beside(tenant).write("The token", [(_USE, {"id": identifier})], durable=False)

    def check(self) -> None:
        """Raise the reason why the database cannot be used."""
        ((version,),) = self._database.ask("The store", "SELECT max(version) FROM holdfast.migrations")
        if version != schema.VERSION:
            raise schema.other(version)

    def close(self) -> None:
        self._database.close()


def _grant(row: TupleRow) -> Grant:
    known = dict(zip(Grant.__struct_fields__, row, strict=True))
    for name in _TIMES:
        known[name] = iso(round(known[name] * 1000)) if known[name] else ""
    return msgspec.convert(known | {"used": known["used"] or ""}, Grant)


# health


class Health(msgspec.Struct, frozen=True):
    location: str
    """The address without a password."""
    server: str
    schema: int
    newest_schema: int
    """The schema that this program knows."""
    login: str
    role: str
    tenant: str
    standby: bool
    vector: str
    """The version of pgvector in this database, "" without it."""
    vector_there: bool
    """The server can add pgvector to this database."""
    standbys: int
    """Servers that replicate this one, as far as this login may see them."""
    behind_seconds: float
    """How far a standby is behind."""
    answer_ms: float
    """The time of one query, the best of a few."""


def check_health(database: Database) -> Health:
    """Return the state of a database."""
    (row,) = database.ask("the database", _HEALTH)
    server, version, login, role, standby, vector, vector_there, standbys, behind = row
    times = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        database.ask("the database", "SELECT 1")
        times.append(round((time.perf_counter() - begin) * 1000, 2))
    return Health(
        database.location, str(server), int(version), schema.VERSION, login, role, database.tenant, standby, vector,
        vector_there, standbys, float(behind) if standby else 0.0, min(times),
    )  # fmt: skip
