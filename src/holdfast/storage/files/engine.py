"""The engine of plain files: the index is in `.holdfast/` of the root, or in memory where that cannot be written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from holdfast.model.settings import Search
from holdfast.model.times import now_ms
from holdfast.storage.engine import NoWatch, Tell, Watch
from holdfast.storage.files.descriptors import hold
from holdfast.storage.files.index import SqliteIndex
from holdfast.storage.index import Index, Unusable
from holdfast.storage.tree import ByteTree

if TYPE_CHECKING:
    from holdfast.recall.embedders import Embedder, NoVectors, Vectors

_REBUILD_SECONDS = 120.0


class FileEngine:
    """`folder` is where the files are, "" when they are not watched; `derived` is the folder of the index, or ""."""

    no_vectors: NoVectors | None = None
    reads_only = False

    def __init__(self, tree: ByteTree, folder: str, derived: str, identity: str, search: Search) -> None:
        self.tree = tree
        self.folder = self.address = folder
        self.clock: Callable[[], int] = now_ms
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
        with contextlib.closing(SqliteIndex(None, "scratch", self._search)) as index:
            yield index

    def watch(self, folders: tuple[str, ...], tell: Tell) -> Watch:
        if not self.folder:
            return NoWatch()
        from holdfast.storage.files.watch import Watcher

        return Watcher(self.folder, [os.path.join(self.folder, folder) for folder in folders], tell)

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
