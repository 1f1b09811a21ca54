"""What a memory in a database stands on: the vault and the index of one tenant, over the same connections."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, LiteralString

from holdfast.errors import Busy, Unavailable
from holdfast.model.settings import Settings
from holdfast.storage.files.index import SqliteIndex
from holdfast.storage.index import Index, Unusable
from holdfast.storage.postgres.index import PgIndex
from holdfast.storage.postgres.noticing import Follower, Watch
from holdfast.storage.postgres.transactions import Database
from holdfast.storage.postgres.vault import PgVault
from holdfast.storage.tree import Vault

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.recall.embedders import Embedder, Vectors

_REBUILD_SECONDS = 120
_CLOCK: LiteralString = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"


def open_database(address: str) -> Database:
    """Open one tenant's part of a database, setting it up if it is empty."""
    return Database(address)


class OnDatabase:
    """The engine of a database; the vault closes the connections when it is closed."""

    tree = ""

    def __init__(self, database: Database, identity: str, config: Settings, writer: str) -> None:
        self.address = database.address
        self.vault: Vault = PgVault(database, line_bytes=config.limits.line_bytes, writer=writer)
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
                raise Busy("Another program is making the index anew.", "Try again in a minute; nothing was lost.")
            yield

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Index]:
        if not self.lasting:
            yield SqliteIndex(None, "scratch", self._config.search)
            return
        if self._database.reads_only:
            raise Unavailable("To compare the index with the files takes rights to write.", "Use a login that may.")
        index = self._shared.beginning("scratch")
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

        if not self.lasting or not generation:  # those of an index that nobody else has
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
