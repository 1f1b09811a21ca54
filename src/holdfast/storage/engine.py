"""The engine port: where a memory is kept, and what an engine does in its own way besides its tree and its index."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from holdfast.storage.index import Index
from holdfast.storage.tree import ByteTree

if TYPE_CHECKING:
    from holdfast.recall.embedders import Embedder, NoVectors, Vectors

Tell = Callable[[list[str], set[str]], None]
"""Receives the files that changed, and the folders below which every file must be checked; "" means all of them."""


class Watch(Protocol):
    """Reports changes until it is stopped."""

    @property
    def alive(self) -> bool:
        """Are changes still reported?"""

    @property
    def told_ms(self) -> int:
        """Every change up to this time was reported."""

    def look(self) -> None:
        """Report pending changes now, where the engine can be polled."""

    def stop(self) -> None: ...


class NoWatch:
    """Reports nothing: every search checks the files."""

    alive = False
    told_ms = 0

    def look(self) -> None:
        pass

    def stop(self) -> None:
        pass


class Engine(Protocol):
    """`folder`, `address`, `reads_only` and `clock` are those of the `Store` over it."""

    tree: ByteTree
    index: Index
    folder: str
    address: str
    reads_only: bool
    lasting: bool
    """Does the index outlive this process?"""
    no_vectors: NoVectors | None
    """Why vectors cannot be kept here, if so."""

    def clock(self) -> int: ...

    def alone(self) -> AbstractContextManager[None]:
        """Let one process rebuild the index at a time; the others wait and use its result."""

    def scratch(self) -> AbstractContextManager[Index]:
        """Provide an empty temporary index."""

    def watch(self, folders: tuple[str, ...], tell: Tell) -> Watch:
        """Report changes below these folders from now on, at the latest when polled."""

    def follow(self, folders: tuple[str, ...], tell: Tell) -> Watch:
        """Report changes below these folders as they happen, from a thread."""

    def vectors(self, model: Embedder, generation: str) -> Vectors:
        """Return the vectors of a model for an index."""

    def purge(self) -> None:
        """Remove derived data that does not belong to the current index."""

    def size(self) -> int:
        """Return the size of all derived data, in bytes."""

    def do_without(self) -> None:
        """Keep the index in memory from now on."""
