"""The vault port: a tree of documents and logs. It speaks paths and bytes, and knows nothing of records.

A path is relative to the root, with `/`, in any engine. A document is read whole with its version and written
whole from a version; a log grows by whole lines. `write` and `append` return only when the change is durable.
When the root itself is gone, nothing "is not there": every look for something raises `RootGone`.
The contract every engine keeps is `tests/contract/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from holdfast.errors import Unavailable

ABSENT = ""
"""The version of a document that is not there: `write(expect=ABSENT)` creates and never replaces."""


class RootGone(Unavailable):
    """The tree as a whole is out of reach. Whoever looks for anything in it is told this, not that nothing is there."""


class Stamp(msgspec.Struct, frozen=True):
    """What a look at a file costs nothing to tell; two equal stamps are very likely the same bytes."""

    size: int
    mtime: int
    ctime: int
    inode: int


class Document(msgspec.Struct, frozen=True):
    data: bytes
    version: str
    stamp: Stamp


class Line(msgspec.Struct, frozen=True):
    """One line of a log, without its newline. `cut` says that it was longer than allowed and is not given."""

    offset: int
    data: bytes
    end: int
    """Where the next line starts."""
    whole: bool = True
    """False for a last line that no newline ends yet."""
    cut: bool = False
    veiled: bool = False
    """Is it there, and not given? It is about something that the reader has no business with."""


class LogEnd(Protocol):
    """What an append sees while it holds the log."""

    size: int

    def back(self) -> Iterator[bytes]:
        """Yield the lines that have something on them, last line first."""
        ...

    def lines(self, offset: int) -> Iterable[bytes]:
        """Return the lines from an offset on."""
        ...


class Snapshot(msgspec.Struct, frozen=True):
    """A file as it was at one moment: `chunks` gives exactly `size` bytes, once."""

    size: int
    mtime: int
    chunks: Iterator[bytes]


class Appended(msgspec.Struct, frozen=True):
    """Where the new lines lie."""

    start: int
    end: int


class Vault(Protocol):
    location: str
    """Where the tree is, for people."""

    @property
    def exact(self) -> bool:
        """Are two equal stamps always the same bytes?"""
        ...

    def read(self, path: str, limit: int = 0) -> Document:
        """Return a document; NotFound when it is not there, OverBudget when it is larger than `limit`."""
        ...

    def write(self, path: str, data: bytes, *, expect: str, keep: str = "") -> str:
        """Replace (or create) a document made from version `expect`; return its version.

        Conflict and AlreadyExists change nothing. `keep` names a path under which the replaced bytes stay.
        """
        ...

    def versions(self, paths: Sequence[str]) -> dict[str, str]:
        """Return the versions of those of these documents that are there."""
        ...

    def create_all(self, files: Mapping[str, bytes]) -> set[str]:
        """Put documents where nothing is, durably, and return the paths of those that were made; it never replaces.

        An engine with transactions makes all of them or none.
        """
        ...

    def append(
        self, path: str, compose: Callable[[LogEnd], bytes], *, durable: bool = True, again: bool = False
    ) -> Appended | None:
        """Add the whole lines that `compose` returns while the log is held; no bytes means no change.

        With `again` it may be called several times, before the log is held too: what it returned last was added, and
        the log was at that moment as it was shown. It must do nothing but compose then.
        """
        ...

    def rewrite(self, path: str, change: Callable[[bytes], bytes]) -> int:
        """Put another text in the place of lines of a log, all at once and durably; return how many changed.

        `change` is given each line without its newline and returns what shall stand there. It is the one exception to
        "logs only grow": lines that others add meanwhile are kept, and a reader sees all of the old or all of the new.
        A shorter text is filled up with spaces, so that no line comes to stand before a place that somebody has read.
        """
        ...

    def snapshot(self, path: str, *, log: bool = False) -> AbstractContextManager[Snapshot]:
        """Open a file as it is at this moment; a log up to its last whole line, measured while it is held."""
        ...

    def create(self, path: str, chunks: Iterable[bytes], *, mtime: int = 0, durable: bool = True) -> None:
        """Write a new file piece by piece, which is there when all of it is; it never replaces.

        What is not `durable` when this returns is so after `settle`: for many files that count together or not at all.
        """
        ...

    def settle(self) -> None:
        """Make everything durable that was written before."""
        ...

    def scan(self, path: str, offset: int = 0, end: int | None = None) -> Iterator[Line]:
        """Yield the lines of a log from an offset on, in order."""
        ...

    def scan_back(self, path: str) -> Iterator[Line]:
        """Yield the lines of a log from its end, last line first."""
        ...

    def fingerprint(self, path: str, start: int, end: int, checksum: int = 0) -> int:
        """Continue a checksum over the bytes between two offsets; -1 when they are not all there."""
        ...

    def stat(self, path: str) -> Stamp | None:
        """Return the stamp of a file, None when it is not there."""
        ...

    def walk(
        self,
        folder: str,
        suffixes: tuple[str, ...],
        blocked: Callable[[str, str], None],
        linked: Callable[[str], None] = lambda _path: None,
    ) -> Iterator[tuple[str, Stamp]]:
        """Yield every file below a folder, or the file itself; tell `blocked(path, why)` what is out of reach.

        `linked(path)` is told of every link that was followed: what it leads to has another name as well.
        """
        ...

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in a folder, sorted; [] when it is not there."""
        ...

    def folder_stamp(self, folder: str) -> int:
        """Return a number that changes when a file comes or goes in a folder; 0 when it is not there."""
        ...

    def make_folder(self, folder: str) -> None:
        """Make a folder and what is missing above it; a database, which has no folders, makes none."""
        ...

    def hold(self, path: str) -> Callable[[], None] | None:
        """Say that a log is in use until the returned function is called or this process ends; None when it is already.

        The log is made if it is not there. Holding keeps nobody from writing to it: it only tells that somebody lives.
        """
        ...

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link to a target as it is given; AlreadyExists when something is there.

        A database has no links, and says that it has not.
        """
        ...

    def target(self, path: str) -> str | None:
        """Return what a symbolic link says, None when there is no link at this path."""
        ...

    def move(self, source: str, target: str) -> None:
        """Give a file another path; AlreadyExists when something is there."""
        ...

    def remove(self, path: str, *, expect: str = "", keep: str = "") -> None:
        """Remove a file, of version `expect` if that is given; NotFound when it is not there.

        Conflict changes nothing. `keep` names a path under which the bytes stay.
        """
        ...

    def close(self) -> None: ...
