"""What a memory stands on: a vault, an index of it, and what else an engine does in its own way.

Files have their index in `.holdfast/` of the same root, or in memory where that cannot be written. The engine of a
database is `holdfast.storage.postgres.engine`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from holdfast.model.layout import Places
from holdfast.model.settings import Search
from holdfast.model.times import now_ms
from holdfast.storage.fencing import Fence
from holdfast.storage.files.index import SqliteIndex
from holdfast.storage.files.locks import hold
from holdfast.storage.index import Index, Unusable
from holdfast.storage.tree import Vault

if TYPE_CHECKING:
    from holdfast.recall.embedders import Embedder, NoVectors, Vectors

_REBUILD_SECONDS = 120.0


class Watch(Protocol):
    """Something that tells of changes until it is stopped."""

    @property
    def alive(self) -> bool:
        """Are changes still told?"""
        ...

    @property
    def told_ms(self) -> int:
        """Up to this moment every change was told."""
        ...

    def look(self) -> None:
        """Tell now of all that changed before, where that can be asked for; else what was told has to do."""
        ...

    def stop(self) -> None: ...


Tell = Callable[[list[str], set[str]], None]
"""Is told which files changed, and below which folders everything must be looked at; "" is all of them."""


class Engine(Protocol):
    vault: Vault
    index: Index
    tree: str
    """The folder that the memory is; "" when it is in no folder."""
    address: str
    """What a program opens the same memory with; never with a password."""
    lasting: bool
    """Does the index outlive this process?"""
    no_vectors: NoVectors | None
    """Why there can be no vectors here."""
    reads_only: bool
    """May nothing be written here, not even what is derived?"""

    def clock(self) -> int:
        """Return the milliseconds of the clock that leases go by: one for all programs that use the memory."""
        ...

    def alone(self) -> AbstractContextManager[None]:
        """Let one process make the index at a time; the others wait and then use what it made."""
        ...

    def scratch(self) -> AbstractContextManager[Index]:
        """Give an empty index that is gone afterwards."""
        ...

    def watch(self, folders: tuple[str, ...], tell: Tell) -> Watch:
        """Tell of changes below these folders, from now on: at the latest when it is asked to look."""
        ...

    def follow(self, folders: tuple[str, ...], tell: Tell) -> Watch:
        """Tell of changes below these folders as they come, from a thread."""
        ...

    def vectors(self, model: Embedder, generation: str) -> Vectors:
        """Return the vectors of a model for an index."""
        ...

    def purge(self) -> None:
        """Remove all that is derived and does not belong to the index in use."""
        ...

    def size(self) -> int:
        """Return how many bytes all that is derived takes."""
        ...

    def do_without(self) -> None:
        """Keep the index in memory from now on."""
        ...


class OnFiles:
    """The engine of plain files. `derived` is the folder of the index, "" when there can be none."""

    no_vectors: NoVectors | None = None
    reads_only = False
    clock = staticmethod(now_ms)

    def __init__(self, vault: Vault, derived: str, identity: str, search: Search) -> None:
        self.vault = vault
        self.tree = self.address = vault.location
        self.lasting = bool(derived)
        self._derived = derived
        self._search = search
        self.index: Index = SqliteIndex(derived or None, identity, search)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        if not self.lasting:
            yield
            return
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._derived)  # not the root above it, which may be gone
            fd = os.open(self._derived, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Unusable(f"{self._derived}: {error.strerror}") from None
        try:
            hold(fd, _REBUILD_SECONDS, "The index, which another process is rebuilding,")
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Index]:
        index = SqliteIndex(None, "scratch", self._search)
        try:
            yield index
        finally:
            index.close()

    def watch(self, folders: tuple[str, ...], tell: Tell) -> Watch:
        from holdfast.storage.files.watch import Watcher

        return Watcher(self.tree, [os.path.join(self.tree, folder) for folder in folders], tell)

    follow = watch

    def vectors(self, model: Embedder, generation: str) -> Vectors:
        from holdfast.storage.files.vectors import FileVectors

        return FileVectors(self._derived if self.lasting and generation else None, model, generation)

    def purge(self) -> None:
        current = self.index.generation()
        for name in os.listdir(self._derived) if self.lasting and os.path.isdir(self._derived) else ():
            if not name.startswith((current or "?", "current")):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self._derived, name))

    def size(self) -> int:
        if not self.lasting or not os.path.isdir(self._derived):
            return 0
        return sum(entry.stat().st_size for entry in os.scandir(self._derived) if entry.is_file())

    def do_without(self) -> None:
        self.index.close()
        self.lasting = False
        self.index = SqliteIndex(None, "in memory", self._search)


class Within:
    """The engine of one scope of another memory: its files behind a fence, and an index of them alone, in memory.

    Nothing of it is shared with others: even how much a word tells comes from the records of the scope.
    """

    tree = address = ""
    lasting = False
    no_vectors: NoVectors | None = None
    reads_only = False

    def __init__(self, vault: Vault, places: Places, scope: str, search: Search, clock: Callable[[], int]) -> None:
        self.vault: Vault = Fence(vault, places, scope)
        self.clock = clock
        self._search = search
        self.index: Index = SqliteIndex(None, f"within {scope}", search)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Index]:
        yield SqliteIndex(None, "scratch", self._search)

    def watch(self, folders: tuple[str, ...], tell: Tell) -> Watch:
        del folders, tell
        return NoWatch()

    follow = watch

    def vectors(self, model: Embedder, generation: str) -> Vectors:
        from holdfast.storage.files.vectors import FileVectors

        return FileVectors(None, model, generation)

    def purge(self) -> None:
        pass

    def size(self) -> int:
        return 0

    def do_without(self) -> None:
        self.index.close()
        self.index = SqliteIndex(None, "in memory", self._search)


class NoWatch:
    """Tells of nothing: every search looks."""

    alive = False
    told_ms = 0

    def look(self) -> None:
        pass

    def stop(self) -> None:
        pass
