"""One tenant's part of a database: messages and transactions with its role, its tenant and its scope.

Rows have ids that the client made, and an existing row is not added again. So a message that was lost, or
whose answer was lost, is sent again without harm, for a bounded time.

One program at a time sets up a database, and never over the tables of a newer one. The tables and functions are in
`schema.sql`; those for vectors, which need pgvector, are in `vectors.sql`.

Access tokens are looked up as the tenant that they name. An unknown tenant and an unknown token look the same: no row.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.resources
import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.rows import TupleRow

from holdfast.errors import AlreadyExists, Busy, HoldfastError, Unavailable
from holdfast.model.grants import Grant
from holdfast.model.times import mint_many, now_ms
from holdfast.recall.embedders import NoVectors
from holdfast.storage.postgres import connections
from holdfast.storage.postgres.connections import Insert, Session, Statement, Unprepared, Waits
from holdfast.storage.tree import RootGone

OWNER, WRITER, READER = ROLES = ("holdfast_owner", "holdfast_writer", "holdfast_reader")
VERSION = 13
"""The version of the tables and of the rules that make words of text."""
OLDEST_SERVER = 16
_KEY = 7_406_297_183_640_291_011
_LOCK = f"SET LOCAL lock_timeout = '60s'; SELECT pg_advisory_xact_lock({_KEY})"
_TRIES = 8
Connection = psycopg.Connection[TupleRow]
_CONCURRENT = (pg.UniqueViolation, pg.DuplicateObject, pg.InternalError_, pg.DeadlockDetected, pg.DuplicateSchema)
_TABLE = """
SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE nspname = 'holdfast' AND relname = %s
"""
"""Is there a table? to_regclass would need rights."""
_VECTOR = """
SELECT n.nspname, extversion FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE extname = 'vector'
"""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
_CLOCK_SECONDS = 1.0
"""How often the server is asked for its time, as a part of another message."""
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
_CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_IDLE = "SELECT set_config('idle_in_transaction_session_timeout', '120s', true)"
_AGAIN = "ON CONFLICT (tenant, id) DO NOTHING"
_QUICK = Waits(lock_seconds=2.0, statement_seconds=3.0, again_seconds=2.0, connections=2)
"""Every request waits for this first, and so does the check whether the server is ready."""
_TIMES = ", ".join(
    f"""coalesce(to_char({name} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), '')"""
    for name in ("created", "expires", "revoked")
)
_TOKENS = f"""
SELECT id, name, digest, tenant, scope, reads_only, {_TIMES}, coalesce(used::text, '') FROM holdfast.token
WHERE tenant = %(tenant)s AND (id = %(id)s OR %(id)s = '') ORDER BY created, id
"""
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
    EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector'), (SELECT count(*) FROM pg_stat_replication),
    coalesce(extract(epoch FROM now() - pg_last_xact_replay_timestamp()), 0)::float8
"""


# setting up


def text(name: str) -> bytes:
    """Return a file of SQL."""
    return importlib.resources.files(__package__).joinpath(name).read_bytes()


def prepare(connection: Connection) -> tuple[str, str]:
    """Set up the database if it is empty; return the role to work with, and `synchronous_commit` for durable writes."""
    major = connection.info.server_version // 10_000
    if major < OLDEST_SERVER:
        raise Unavailable(f"The server is PostgreSQL {major}.", f"Use PostgreSQL {OLDEST_SERVER} or newer.")
    row = connection.execute("SELECT getdatabaseencoding(), current_setting('synchronous_commit')").fetchone()
    encoding, commit = row or ("", "")
    if encoding != "UTF8":
        step = "Create one with ENCODING 'UTF8' TEMPLATE template0, and use that."
        raise Unavailable(f"The encoding of the database is {encoding}.", step)
    version = installed(connection)
    if not version:
        set_up(connection)
    elif version != VERSION:
        raise other(version)
    mine = {*roles(connection)} - {OWNER}
    if not mine:
        raise _not_granted(connection)
    return WRITER if WRITER in mine else READER, "on" if commit == "off" else commit


def check(connection: Connection) -> None:
    """Check that an open database still has the schema that this program knows."""
    version = installed(connection)
    if not version:
        raise RootGone("The database is no longer set up.", "Open it again and check it.")
    if version > VERSION:
        raise other(version)


def other(version: int) -> HoldfastError:
    """Return why a database with this schema cannot be opened."""
    if version > VERSION:
        fault = f"The database has schema {version}, this program knows {VERSION}; nothing was changed."
        return Unavailable(fault, "Upgrade Holdfast.")
    return Unavailable(
        f"The database has the tables of an earlier Holdfast (schema {version}; this program knows {VERSION}).",
        "Export it with the earlier version, then run in that folder: holdfast push --to ADDRESS (of a new database)",
    )


def installed(connection: Connection) -> int:
    """Return the version of the schema, 0 when there is none."""
    if not connection.execute(_TABLE, ["migrations"]).fetchone():
        return 0
    mine = roles(connection)
    if not mine:
        raise _not_granted(connection)
    with connection.transaction(force_rollback=True):  # otherwise the role would stay, inside a longer transaction
        connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(mine[0])))
        row = connection.execute("SELECT coalesce(max(version), 0) FROM holdfast.migrations").fetchone()
    return int(row[0]) if row else 0


def set_up(connection: Connection) -> None:
    """Create the tables; try again when another database of the server creates the same roles meanwhile."""
    for attempt in range(1, _TRIES + 1):
        try:
            with connection.transaction():
                connection.execute(_LOCK)
                if installed(connection):
                    return  # another program did it meanwhile
                known = connection.execute("SELECT rolname FROM pg_roles").fetchall()
                for role in ROLES:
                    if (role,) not in known:
                        connection.execute(f"CREATE ROLE {role} NOLOGIN NOSUPERUSER NOBYPASSRLS")
                for role in set(ROLES) - set(roles(connection)):
                    connection.execute(f"GRANT {role} TO CURRENT_USER WITH SET TRUE")
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS holdfast AUTHORIZATION {OWNER}")
                connection.execute(f"SET LOCAL ROLE {OWNER}")
                connection.execute(text("schema.sql"))
                connection.execute(f"INSERT INTO holdfast.migrations (version, name) VALUES ({VERSION}, 'rows')")
            return
        except pg.LockNotAvailable:
            raise Busy("Another program is setting up this database.", "Try again in a minute.") from None
        except pg.InsufficientPrivilege:
            user = connection.info.user
            raise Unavailable(
                f'The database is not set up for this version, and the login "{user}" may not do that.',
                "Open it once with a login that may create roles and schemas in this database, or was granted "
                f'{OWNER}; then GRANT {WRITER} TO "{user}";',
            ) from None
        except psycopg.Error as error:
            if connection.closed:
                raise
            if attempt == _TRIES or not isinstance(error, _CONCURRENT):
                reason = f"({error.sqlstate}): {error.diag.message_primary}"
                fault = f"The database could not be set up {reason}; nothing was changed."
                raise Unavailable(fault, "See the server's log, then open it again.") from None
            time.sleep(0.05 * attempt)


def prepare_vectors(connection: Connection) -> NoVectors | None:
    """Create the table of vectors, if it is missing; return the reason if that is impossible."""
    there = f"{_TABLE} AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'vector')"
    if connection.execute(there, ["embedding"]).fetchone():
        return None
    major = connection.info.server_version // 10_000
    step = "Have the database's administrator run: CREATE EXTENSION vector;"
    try:
        with connection.transaction():
            connection.execute(_LOCK)
            if connection.execute(there, ["embedding"]).fetchone():
                return None  # another program did it meanwhile
            if not connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone():
                return NoVectors(
                    "The server does not have the extension vector.",
                    f"Install pgvector (on Debian: apt install postgresql-{major}-pgvector) on the server and open the"
                    f" memory again; if that does not suffice: {step}",
                )
            if not connection.execute(_VECTOR).fetchone():
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            place, version = connection.execute(_VECTOR).fetchone() or ("", "")
            step = f"Open the database once with a login that was granted {OWNER}."
            connection.execute(f"SET LOCAL ROLE {OWNER}")
            connection.execute(text("vectors.sql").replace(b"@vector@", sql.Identifier(place).as_bytes()))
        return None
    except pg.InsufficientPrivilege:
        fault = f'Vectors cannot be compared here yet, and the login "{connection.info.user}" may not set that up.'
        return NoVectors(fault, step)
    except pg.UndefinedObject:
        step = "Install pgvector 0.7 or newer on the server, and run: ALTER EXTENSION vector UPDATE;"
        return NoVectors(f"The extension vector is {version} here, which is too old.", step)
    except psycopg.Error as error:
        if connection.closed:
            raise
        reason = f"({error.sqlstate}): {error.diag.message_primary}"
        return NoVectors(f"The extension vector cannot be used {reason}.", "See the server's log, then open it again.")


def roles(connection: Connection) -> list[str]:
    """Return which of our roles this login may set, the most powerful first."""
    rows = connection.execute(
        "SELECT rolname FROM pg_roles WHERE rolname = ANY(%s) AND pg_has_role(oid, 'SET')", [list(ROLES)]
    ).fetchall()
    return sorted((row[0] for row in rows), key=ROLES.index)


def _not_granted(connection: Connection) -> HoldfastError:
    user = connection.info.user
    return Unavailable(
        f'The login "{user}" may not use this memory.',
        f'Have the database\'s administrator run: GRANT {WRITER} TO "{user}"; (or {READER}, to read only)',
    )


class Database:
    """One tenant's part of a database, which is set up if it is empty. Threads may share it."""

    def __init__(self, dsn: str, waits: Waits | None = None) -> None:
        self.waits = waits or Waits()
        self._address = connections.parse_address(dsn)
        self.location = self._address.shown
        self.address = self._address.bare
        self.tenant = self._address.tenant
        self.scope = ""
        with connections.reported(self.location, self.waits), connections.connect(self._address) as first:
            self._role, self._commit = prepare(first)
            self.no_vectors = prepare_vectors(first)
        self._pool = connections.ConnectionPool(self._address, self.waits.connections, check)
        self._local = threading.local()
        self._clock_until = 0.0
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
            named = connections.parse_address(connections.for_tenant(self.address, tenant))
            other.tenant, other.location, other.address = tenant, named.shown, named.bare
        other.scope = scope or self.scope
        other.first = None
        other._local = threading.local()
        other._owns_pool = False
        return other

    def wait_for_others(self, seconds: float) -> None:
        """Set how long to wait for locks; no statement is cancelled before that."""
        longest = max(self.waits.statement_seconds, 2 * seconds)
        self.waits = msgspec.structs.replace(self.waits, lock_seconds=seconds, statement_seconds=longest)

    def _settings(self, *, durable: bool) -> Statement:
        lock_ms = max(1, round(self.waits.lock_seconds * 1000))
        return _SETTINGS, (self._role, self.tenant, self.scope, lock_ms, self._commit if durable else "off")

    def close(self) -> None:
        if self._owns_pool:
            self._pool.close()

    @property
    def reads_only(self) -> bool:
        """Return whether this login has no rights to write."""
        return self._role == READER

    def add_graph(self) -> None:
        """Index the codes of all vectors by a graph (HNSW), if this login may do that."""
        opened = contextlib.closing(connections.connect(self._address))
        with connections.reported(self.location, self.waits), opened as session:
            found = session.execute(_VECTOR).fetchone()
            if found and OWNER in roles(session):
                session.execute(f"SET ROLE {OWNER}")
                session.execute("SET maintenance_work_mem = '1GB'")
                made = "CREATE INDEX CONCURRENTLY IF NOT EXISTS embedding_code ON holdfast.embedding"
                made += " USING hnsw (code {}.bit_hamming_ops)"
                session.execute(sql.SQL(made).format(sql.Identifier(found[0])))

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
        """Run statements that change rows, in one message."""
        first = [self.first] if self.first else []
        found = self.send(what, [*first, *statements], durable=durable, writes=True)
        if first and not self._session:
            self.first = None
        return found[len(first) :]

    def send(
        self, what: str, statements: Sequence[Statement], *, durable: bool = True, writes: bool = False
    ) -> list[list[TupleRow]]:
        """Run statements as one transaction in one message; inside a transaction of this thread, as a part of it.

        The message is sent again if that may help.
        """
        given: list[Statement] = [
            (text, {"tenant": self.tenant, **values} if isinstance(values, dict) else values)
            for text, values in statements
        ]
        if self._session:
            return self._message(self._session, given)
        now, count = time.monotonic(), len(given) + 1
        given.insert(0, self._settings(durable=durable))
        if now > self._clock_until:
            given.append((_CLOCK, []))
        deadline, pause = now + self.waits.again_seconds, _FIRST_PAUSE
        while True:
            session = self._pool.take(deadline)
            before = session.warnings
            try:
                found = self._message(session, given)
                if writes and session.warnings > before:
                    raise _unconfirmed(what)
                if len(found) > count:
                    skew = int(found[count][0][0]) - now_ms()
                    self._skew = skew if abs(skew) > _SKEW_MS else 0
                    self._clock_until = time.monotonic() + _CLOCK_SECONDS
                return found[1:count]
            except psycopg.Error as error:
                if _is_ours(error):
                    raise
                transient = self._pool.discard_lost(error, session) or isinstance(error, connections.ROLLED_BACK)
                if isinstance(error, connections.UNPREPARED) and self._prepares:
                    self._prepares = False
                elif not transient or time.monotonic() + pause > deadline:
                    raise connections.mapped(error, what, self.waits) from None
                given = [(f"{text} {_AGAIN}" if isinstance(text, Insert) else text, values) for text, values in given]
            finally:
                self._pool.give_back(session)
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, _LONGEST_PAUSE)

    @property
    def _session(self) -> Session | None:
        """The session of this thread's transaction."""
        return getattr(self._local, "session", None)

    def _message(self, session: Session, statements: Sequence[Statement]) -> list[list[TupleRow]]:
        self.trips += 1
        return session.message(statements, self.waits.statement_seconds, prepare=self._prepares)

    @contextlib.contextmanager
    def transaction(self, what: str) -> Iterator[None]:
        """Open a transaction for this thread, without retries: messages inside belong to it."""
        if self._session:
            yield
            return
        session = self._pool.take(time.monotonic() + self.waits.again_seconds)
        try:
            before = session.warnings
            self._message(session, [("BEGIN", []), self._settings(durable=True), (_IDLE, [])])
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


def planned(statement: str, values: dict[str, Any]) -> list[Statement]:
    """Return a query that is planned for its values, and the settings that it needs."""
    return [(_PLANNER, []), (Unprepared(statement), values)]


def _is_ours(error: psycopg.Error) -> bool:
    """Return whether the caller handles this: a broken promise of a unique index, or one of our own conditions."""
    return isinstance(error, pg.UniqueViolation) or (error.sqlstate or "").startswith("HF")


def _unconfirmed(what: str) -> Unavailable:
    fault = f"{what} is saved on the server, but no standby has confirmed it."
    return Unavailable(fault, "Check the standbys, and whether the record exists, before you try again.")


# access tokens


class PgGrants:
    """The grants of all tenants of a database; `all`, `add` and `revoke` use the tenant of the address."""

    def __init__(self, address: str) -> None:
        self._database = Database(address, _QUICK)

    def find(self, tenant: str, identifier: str) -> Grant | None:
        database = self._database.beside(connections.check_tenant(tenant))
        rows = database.ask("The tokens", _TOKENS, id=identifier) if identifier else []
        return Grant(*rows[0]) if rows else None

    def all(self) -> list[Grant]:
        return [Grant(*row) for row in self._database.ask("The tokens", _TOKENS, id="")]

    def add(self, grant: Grant) -> None:
        self._database.write("The token", [(_GRANT, msgspec.structs.asdict(grant) | {"tenant": self._database.tenant})])
        # the row also exists if an earlier attempt was committed and its answer was lost
        if not self._database.ask("The token", _TOKENS, id=grant.id):
            raise AlreadyExists(f"There is a token {grant.name!r} already.", "Revoke it, or use another name.")

    def revoke(self, identifier: str) -> None:
        self._database.write("The token", [(_REVOKE, {"id": identifier})])

    def note_use(self, tenant: str, identifier: str) -> None:
        self._database.beside(tenant).write("The token", [(_USE, {"id": identifier})], durable=False)

    def check(self) -> None:
        """Raise the reason why the database cannot be used."""
        ((version,),) = self._database.ask("The store", "SELECT max(version) FROM holdfast.migrations")
        if version != VERSION:
            raise other(version)

    def close(self) -> None:
        self._database.close()


# health


class DatabaseHealth(msgspec.Struct, frozen=True):
    location: str
    """The address without a password."""
    tenant: str
    answer_ms: float
    """The time of one query, the best of a few."""
    server: str
    schema: int
    login: str
    role: str
    standby: bool
    vector: str
    """The version of pgvector in this database, "" without it."""
    vector_there: bool
    """The server can add pgvector to this database."""
    standbys: int
    """Servers that replicate this one, as far as this login may see them."""
    behind_seconds: float
    """The replication lag of a standby."""


def check_health(database: Database) -> DatabaseHealth:
    """Return the state of a database."""
    (row,) = database.ask("the database", _HEALTH)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        database.ask("the database", "SELECT 1")
        times.append(round((time.perf_counter() - begin) * 1000, 2))
    return DatabaseHealth(database.location, database.tenant, min(times), *row)
