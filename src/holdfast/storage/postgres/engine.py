"""The engine of a memory in a database: tree and index of one tenant, over the same connections.

Also tenants for a limited time, for measurements, and the state of the database, for `doctor`.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, LiteralString

import msgspec
from psycopg import errors as pg
from psycopg import sql

from holdfast.errors import Busy, Unavailable
from holdfast.model.settings import FILE, Settings
from holdfast.storage.files.index import SqliteIndex
from holdfast.storage.index import Index, Unusable
from holdfast.storage.postgres import addresses
from holdfast.storage.postgres.change_feed import Follower, Watch
from holdfast.storage.postgres.database import Database, Transaction
from holdfast.storage.postgres.index import PgIndex
from holdfast.storage.postgres.migrations import MIGRATIONS
from holdfast.storage.postgres.tree import PgTree
from holdfast.storage.tree import ABSENT, Tree

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


def open_database(address: str) -> Database:
    """Open one tenant's part of a database, setting it up if it is empty."""
    return Database(address)


class OnDatabase:
    """The engine of a database; the tree closes the connections when it is closed."""

    folder = ""

    def __init__(self, database: Database, identity: str, config: Settings, writer: str) -> None:
        self.address = database.address
        self.tree: Tree = PgTree(database, line_bytes=config.limits.line_bytes, writer=writer)
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

    def watch(self, folders: tuple[str, ...], tell: Callable[[list[str], set[str]], None]) -> Watch:
        return Watch(self._database, folders, tell)

    def follow(self, folders: tuple[str, ...], tell: Callable[[list[str], set[str]], None]) -> Follower:
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
