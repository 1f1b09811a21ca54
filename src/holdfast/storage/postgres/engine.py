"""The engine of a memory in a database: tree and index of one tenant, over the same connections.

It reports which files other programs changed (docs/decisions/022). Every change of a file has the number of its
transaction. A poll asks for all that the snapshot of the last poll did not see, so nothing is missed, whatever the
order of commits. A follower also listens on a channel with a random name that only its own tenant can read; the
notification has no content.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, LiteralString, NamedTuple

import msgspec
import psycopg
from psycopg import errors as pg
from psycopg import sql

from holdfast.errors import Busy, HoldfastError, Unavailable
from holdfast.model.settings import FILE, Settings
from holdfast.model.times import now_ms
from holdfast.storage.files.index import SqliteIndex
from holdfast.storage.index import Index, Unusable
from holdfast.storage.postgres import addresses
from holdfast.storage.postgres.connections import Session
from holdfast.storage.postgres.database import Database, Transaction
from holdfast.storage.postgres.index import PgIndex
from holdfast.storage.postgres.migrations import MIGRATIONS
from holdfast.storage.postgres.tree import PgTree
from holdfast.storage.tree import ABSENT, ByteTree

if TYPE_CHECKING:
    from holdfast.recall.embedders import Embedder, Vectors

_REBUILD_SECONDS = 120
_CLOCK: LiteralString = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_TIMES = 5
_HEALTH = """
SELECT current_setting('server_version'), (SELECT max(version) FROM holdfast.migrations), session_user::text,
       current_user::text, pg_is_in_recovery(),
       coalesce((SELECT extversion FROM pg_extension WHERE extname = 'vector'), ''),
       EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector'),
       (SELECT count(*) FROM pg_stat_replication),
       coalesce(extract(epoch FROM now() - pg_last_xact_replay_timestamp()), 0)::float8
"""
_TENANT_TABLES = (
    "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant'"
    " WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind = 'p'"
)

_POLL_SECONDS = 1.0
"""How long a change may go unnoticed whose transaction began before its writer knew of the listener."""
_PAUSE_SECONDS = 0.05
"""Busy writers notify a listener at most this often."""
_RENEW_SECONDS = 15
"""How often a listener renews its entry, which is valid for twice as long."""
_LONGEST_PAUSE = 5.0
_COMMITTED: LiteralString = """
SELECT pg_current_snapshot()::text, pg_postmaster_start_time()::text, array(
    SELECT path FROM holdfast.changes WHERE tenant = %(tenant)s AND xact >= %(first)s
      AND NOT pg_visible_in_snapshot(xact::text::xid8, %(snapshot)s::text::pg_snapshot)
), array(
    SELECT path FROM holdfast.files WHERE tenant = %(tenant)s AND inode = ANY(array(
        SELECT inode FROM holdfast.pieces WHERE tenant = %(tenant)s AND xact >= %(first)s
          AND NOT pg_visible_in_snapshot(xact::text::xid8, %(snapshot)s::text::pg_snapshot))))
"""
_LISTEN: LiteralString = """
INSERT INTO holdfast.listeners (tenant, channel, until)
VALUES (%(tenant)s, %(channel)s, clock_timestamp() + interval '30 s')
ON CONFLICT (tenant, channel) DO UPDATE SET until = excluded.until
"""
_PAUSE: LiteralString = (
    "UPDATE holdfast.listeners SET until = '-infinity' WHERE tenant = %(tenant)s AND channel = %(channel)s"
)
_LEAVE: LiteralString = """
DELETE FROM holdfast.listeners
WHERE tenant = %(tenant)s AND (channel = %(channel)s OR until < clock_timestamp() - interval '1 hour')
"""
Tell = Callable[[list[str], set[str]], None]


class OnDatabase:
    """The engine of a database; the tree closes the connections when it is closed."""

    folder = ""

    def __init__(self, database: Database, identity: str, config: Settings, writer: str) -> None:
        self.address = database.address
        self.tree: ByteTree = PgTree(database, line_bytes=config.limits.line_bytes, writer=writer)
        self.lasting = True
        self._database = database
        self._identity = identity
        self._config = config
        self.no_vectors = database.no_vectors
        self.reads_only = database.reads_only
        self._shared = PgIndex(database, identity, config.search)
        self.index: Index = self._shared

    def clock(self) -> int:
        row = self._database.ask("The clock", lambda turn: turn.row(_CLOCK))
        return int(row[0]) if row else 0

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        if not self.lasting:
            yield
            return
        if self._database.reads_only:
            raise Unusable("this login only reads")
        with self._database.locked(f"index {self._identity}", _REBUILD_SECONDS) as got:
            if not got:
                raise Busy("Another program is rebuilding the index.", "Try again in a minute; nothing was lost.")
            yield

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Index]:
        if not self.lasting:
            yield SqliteIndex(None, "scratch", self._config.search)
            return
        if self._database.reads_only:
            raise Unavailable(
                "To compare the index with the files takes rights to write.", "Use a login that has them."
            )
        index = self._shared.begin("scratch")
        try:
            yield index
        finally:
            index.end()

    def watch(self, folders: tuple[str, ...], tell: Tell) -> Watch:
        return Watch(self._database, folders, tell)

    def follow(self, folders: tuple[str, ...], tell: Tell) -> Follower:
        return Follower(self._database, folders, tell)

    def vectors(self, model: Embedder, generation: str) -> Vectors:
        from holdfast.storage.files.vectors import FileVectors
        from holdfast.storage.postgres.vectors import PgVectors

        if not self.lasting or not generation:  # the index is in memory, so its vectors are too
            return FileVectors(None, model, generation)
        return PgVectors(self._database, model, generation, self._shared.generations)

    def purge(self) -> None:
        from holdfast.storage.postgres import vectors

        vectors.remove_all(self._database)

    def size(self) -> int:
        return self._shared.size() if self.lasting else 0

    def do_without(self) -> None:
        self.lasting = False
        self.index = SqliteIndex(None, "in memory", self._config.search)


# which files other programs changed


class Moment(NamedTuple):
    """What was committed at the time of a poll, and on which server."""

    snapshot: str
    server: str

    @property
    def first(self) -> int:
        """The first transaction that may not have ended."""
        return int(self.snapshot.partition(":")[0])


class Changes:
    """Which files of a tenant changed since the last poll. Threads may share it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last = Moment("1:1:", "")
        self._lock = threading.Lock()

    def poll(self) -> list[str] | None:
        """Return the files that changed since the last poll; None the first time, or when that is unknown.

        After a failover it is unknown, since another server may number its transactions differently.
        """
        with self._lock:
            last = self._last
            first = last.first if last.server else (1 << 63) - 1
            row = self._database.ask("the changes", lambda tx: tx.row(_COMMITTED, first=first, snapshot=last.snapshot))
            assert row is not None  # a query without a table always has one row
            self._last = now = Moment(row[0], row[1])
            known = last.server == now.server and last.first <= now.first
            return list(dict.fromkeys([*row[2], *row[3]])) if known else None


class Watch:
    """Reports at each `look` what was committed before it."""

    alive = True

    def __init__(self, database: Database, folders: tuple[str, ...], tell: Tell) -> None:
        self._changes = Changes(database)
        self._below = tuple(f"{folder}/" for folder in folders)
        self._tell = tell
        self.told_ms = now_ms()
        self._changes.poll()

    def look(self) -> None:
        begin = now_ms()
        paths = self._changes.poll()
        if paths is None:
            self._tell([], {""})
        elif found := [path for path in paths if path.startswith(self._below)]:
            self._tell(found, set())
        self.told_ms = begin

    def stop(self) -> None:
        self.alive = False


class Follower:
    """Reports changes as they are committed, from a thread, until it is stopped; it reconnects when necessary.

    Without the right to write, as on a standby, it cannot register as a listener, and polls instead.
    """

    def __init__(self, database: Database, folders: tuple[str, ...], tell: Tell) -> None:
        self._database = database
        self._watch = Watch(database, folders, tell)
        self._channel = f"holdfast_{secrets.token_hex(16)}"
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-follow", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def told_ms(self) -> int:
        return self._watch.told_ms

    def look(self) -> None:
        self._watch.look()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(_LONGEST_PAUSE)

    def _run(self) -> None:
        pause = _PAUSE_SECONDS
        while not self._stopped.is_set():
            try:
                with self._database.connect() as session:
                    session.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                    pause = _PAUSE_SECONDS
                    self._follow(session)
            except (psycopg.Error, HoldfastError):
                self._stopped.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        with contextlib.suppress(psycopg.Error):
            self._register(_LEAVE)

    def _follow(self, session: Session) -> None:
        renew_at = 0.0
        while not self._stopped.is_set():
            if time.monotonic() > renew_at:
                renew_at = time.monotonic() + _RENEW_SECONDS
                self._register(_LISTEN)
            self._watch.look()  # after registering, so that nothing is missed in between
            if any(True for _ in session.notifies(timeout=_POLL_SECONDS, stop_after=1)):
                self._register(_PAUSE)
                renew_at = 0.0
                self._stopped.wait(_PAUSE_SECONDS)
                for _ in session.notifies(timeout=0):
                    pass  # one look covers them all

    def _register(self, statement: LiteralString) -> None:
        """Change the entry of this listener, where that is allowed."""
        with contextlib.suppress(HoldfastError):
            self._database.run(
                "the listeners", lambda tx: tx.change(statement, channel=self._channel), writes=True, durable=False
            )


# tenants and health


@contextlib.contextmanager
def temporary_tenant(address: str, settings: str) -> Iterator[str]:
    """Yield the address of a new tenant of a database, and remove the tenant afterwards."""
    mine = addresses.for_tenant(address, f"temporary-{secrets.token_hex(8)}")
    database = Database(mine)
    try:
        PgTree(database).write(FILE, settings.encode(), expect=ABSENT)
        yield mine
    finally:
        try:
            database.run("The tenant", remove_tenant, writes=True)
        finally:
            database.close()


def remove_tenant(tx: Transaction) -> None:
    """Delete every row of the tenant that this login may delete."""
    for (table,) in tx.rows(_TENANT_TABLES) * 2:  # deleting files adds rows to a table that was emptied before
        with contextlib.suppress(pg.InsufficientPrivilege), tx.session.transaction():
            tx.session.execute(
                sql.SQL("DELETE FROM holdfast.{} WHERE tenant = current_setting('holdfast.tenant')").format(
                    sql.Identifier(table)
                )
            )


class Health(msgspec.Struct, frozen=True):
    location: str
    """The address without a password."""
    server: str
    schema: int
    newest_schema: int
    """The schema to which this program upgrades a database."""
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
    """The time of a transaction with one query, the best of a few."""


def check_health(database: Database) -> Health:
    """Return the state of a database."""
    row = database.run("the database", lambda tx: tx.row(_HEALTH)) or ()
    server, schema, login, role, standby, vector, vector_there, standbys, behind = row
    times = []
    for _ in range(_TIMES):
        begin = time.perf_counter()
        database.run("the database", lambda tx: tx.row("SELECT 1"))
        times.append(round((time.perf_counter() - begin) * 1000, 2))
    return Health(
        database.location, str(server), int(schema), len(MIGRATIONS), login, role, database.tenant,
        standby, vector, vector_there, standbys, float(behind) if standby else 0.0, min(times),
    )  # fmt: skip
