"""What a memory in a database stands on: the vault and the index of one tenant, over the same connections."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.index import Index
from holdfast.index.sqlite import SqliteIndex
from holdfast.postgres.connecting import Waits
from holdfast.postgres.transactions import Database
from holdfast.postgres.vault import PgVault
from holdfast.settings import Settings
from holdfast.vault import Vault

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.embedding import Embedder
    from holdfast.embedding.vectors import Vectors


def open_database(address: str) -> Database:
    """Open one tenant's part of a database, setting it up if it is empty."""
    return Database(address, Waits())


class OnDatabase:
    """The engine of a database; the vault closes the connections when it is closed."""

    tree = ""

    def __init__(self, database: Database, identity: str, config: Settings, writer: str) -> None:
        self.vault: Vault = PgVault(database, line_bytes=config.limits.line_bytes, writer=writer)
        self.lasting = False
        self._config = config
        self.index: Index = SqliteIndex(None, identity, config.search)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        yield

    def watch(self, folders: tuple[str, ...], tell: Callable[[list[str], set[str]], None]) -> Watch:
        del folders, tell
        return Watch()

    def vectors(self, model: Embedder, generation: str) -> Vectors:
        from holdfast.embedding.vectors import Vectors

        return Vectors(None, model, generation)

    def purge(self) -> None:
        pass

    def size(self) -> int:
        return 0

    def do_without(self) -> None:
        self.index.close()
        self.lasting = False
        self.index = SqliteIndex(None, "in memory", self._config.search)


class Watch:
    """Nothing is told yet: every search looks."""

    alive = False
    told_ms = 0

    def stop(self) -> None:
        pass
