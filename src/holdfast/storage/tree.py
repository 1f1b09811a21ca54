"""The files of a memory: documents and logs as paths and bytes, without records.

A path is relative to the root, with `/`, in any engine. A document is read whole with its version and written whole
from a version; a log grows by whole lines. `write` and `append` return only when the change is durable. When the root
itself is gone, every call raises `RootGone`, so that "gone" is never mistaken for "empty". `tests/contract/` is the
contract of every engine.

A value is a large text of a log entry in a file of its own. Its name is a hash of its text, so it never changes and is
stored once. A large one is compressed (`.txt.gz`); the name of an encrypted one (`.txt.enc`) depends on the key too.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from holdfast.errors import AlreadyExists, Conflict, Damaged, OverBudget, Unavailable
from holdfast.formats import encryption
from holdfast.model.patterns import regex
from holdfast.model.records import version_of
from holdfast.model.settings import Settings

ABSENT = ""
"""The version of a document that does not exist: `write(expect=ABSENT)` creates and never replaces."""
YOUNG_NS = 2_000_000_000
"""A file or folder that changed less than this before it was checked may change again without a new stamp."""


class RootGone(Unavailable):
    """The whole tree is out of reach."""


class Stamp(msgspec.Struct, frozen=True):
    """The cheap facts about a file; two equal stamps very likely mean the same bytes."""

    size: int
    mtime: int
    ctime: int
    inode: int


class Document(msgspec.Struct, frozen=True):
    data: bytes
    version: str
    stamp: Stamp


class Line(msgspec.Struct, frozen=True):
    """One line of a log, without its newline. `cut` means that it was longer than allowed and was skipped."""

    offset: int
    data: bytes
    end: int
    """Where the next line starts."""
    whole: bool = True
    """False for a last line without a newline."""
    cut: bool = False
    veiled: bool = False
    """Its text is withheld: it is about another scope."""


class Snapshot(msgspec.Struct, frozen=True):
    """A file at one moment: `chunks` yields exactly `size` bytes, once."""

    size: int
    mtime: int
    chunks: Iterator[bytes]


class Tree(Protocol):
    location: str
    """The location to show to people."""

    def read(self, path: str, limit: int = 0) -> Document:
        """Return a document; NotFound when it is not there, OverBudget when it is larger than `limit`."""

    def write(self, path: str, data: bytes, *, expect: str, keep: str = "") -> str:
        """Replace (or create) a document made from version `expect`; return its version.

        Conflict and AlreadyExists change nothing. `keep` is a path under which the replaced bytes stay.
        """

    def versions(self, paths: Sequence[str]) -> dict[str, str]:
        """Return the versions of those of these documents that exist."""

    def create_all(self, files: Mapping[str, bytes]) -> set[str]:
        """Create documents durably, without replacing any, and return the paths of those that were created."""

    def rewrite(self, path: str, change: Callable[[bytes], bytes]) -> int:
        """Replace lines of a log, all at once and durably; return how many changed.

        `change` receives each line without its newline and returns the new one. This is the one exception to "logs only
        grow". Lines that are appended at the same time are kept, and a reader sees the old log or the new one. A
        shorter line is padded with spaces, so that offsets stay valid.
        """

    def snapshot(self, path: str, *, log: bool = False) -> AbstractContextManager[Snapshot]:
        """Open a file as it is now; a log up to its last whole line."""

    def scan(self, path: str) -> Iterator[Line]:
        """Yield the lines of a log, in order."""

    def scan_back(self, path: str) -> Iterator[Line]:
        """Yield the lines of a log from its end, last line first."""

    def stat(self, path: str) -> Stamp | None:
        """Return the stamp of a file, None when it is not there."""

    def walk(
        self, folder: str, suffixes: tuple[str, ...], blocked: Callable[[str, str], None],
        linked: Callable[[str], None] = lambda _path: None,
    ) -> Iterator[tuple[str, Stamp]]:  # fmt: skip
        """Yield every file below a folder, or the file itself; report to `blocked(path, why)` what cannot be read.

        `linked(path)` receives every link that was followed.
        """

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in a folder, sorted; [] when it does not exist."""

    def folder_stamp(self, folder: str) -> int:
        """Return a number that changes when a file in a folder appears or vanishes; 0 without the folder."""

    def make_folder(self, folder: str) -> None:
        """Make a folder and its parents; a database has no folders and does nothing."""

    def target(self, path: str) -> str | None:
        """Return the target of a symbolic link, None when the path is not one."""

    def remove(self, path: str, *, expect: str = "", keep: str = "") -> None:
        """Remove a file, of version `expect` if given; NotFound when it does not exist.

        Conflict changes nothing. `keep` is a path under which the bytes stay.
        """


class Folder(Tree, Protocol):
    """A folder of the file system, which is a memory or not."""

    def create(self, path: str, chunks: Iterable[bytes], *, mtime: int = 0, durable: bool = True) -> None:
        """Create a file from pieces; it appears when it is complete and never replaces another.

        With `durable=False` it becomes durable with `settle`, for many files that count together or not at all.
        """

    def settle(self) -> None:
        """Make everything durable that was written before."""

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link to this target; AlreadyExists when the path is taken."""

    def move(self, source: str, target: str) -> None:
        """Rename a file; AlreadyExists when the new path is taken."""

    def close(self) -> None: ...


def changed(name: str, expect: str) -> Conflict:
    """Return the error for a document or section that no longer has the expected version."""
    return Conflict(
        f"{name} was changed since version {expect[:8]}; nothing was written.", "Read it again and redo the edit."
    )


# values: large texts of log entries, one file each

VALUE_SUFFIXES = (".txt", ".txt.gz", ".txt.enc", ".json")
_REF = regex(r"(?:sessions/[^/]+/)?values/[0-9a-f]{32}\.(?:txt(?:\.gz|\.enc)?|json)")
_GZIP = b"\x1f\x8b"
"""No UTF-8 text begins like this."""
_MOST_UNPACKED = 256 << 20


def is_value(path: str, memory: str) -> bool:
    """Is this the path of a value? `memory` is the folder of the memory."""
    return path.startswith(f"{memory}/") and bool(_REF.fullmatch(path, len(memory) + 1))


def write_value(tree: Tree, folder: str, text: str, settings: Settings) -> str:
    """Store a text in a file below a folder, unless it is there already; return the path."""
    data = text.encode("utf-8")
    name, suffix, stored = version_of(data), ".txt", data
    if 0 < settings.limits.compress_bytes <= len(data):
        import gzip

        packed = gzip.compress(data, 3, mtime=0)
        suffix, stored = (".txt.gz", packed) if len(packed) < len(data) else (suffix, data)
    if "values" in settings.encryption.what:
        name, suffix = encryption.digest(data, b"name").hex(), ".txt.enc"
        stored = b"".join(encryption.encrypt([stored], encryption.digest(stored, b"salt")))
    ref = f"{folder}/values/{name}{suffix}"
    with contextlib.suppress(AlreadyExists):
        tree.write(ref, stored, expect=ABSENT)
    return ref


def read_value(tree: Tree, ref: str, limit: int = 0) -> str:
    """Return the text of a value; OverBudget when it is longer than `limit` bytes, Locked without its key."""
    return unpack_value(tree.read(ref, limit).data, ref, limit).decode("utf-8", "replace")


def unpack_value(data: bytes, ref: str, limit: int = 0) -> bytes:
    """Return the text in the bytes of a file."""
    if data.startswith(encryption.MAGIC):
        data = b"".join(encryption.decrypt([data], ref))
    if not data.startswith(_GZIP):
        return data
    most, packed = limit or _MOST_UNPACKED, zlib.decompressobj(31)
    try:
        text = packed.decompress(data, most + 1)
    except zlib.error:
        raise Damaged(f"{ref} is compressed, and damaged.", "Use another copy of it.") from None
    if len(text) > most:
        raise OverBudget(f"{ref} has more than {most:,} bytes; that is the limit.", "Raise limits.document_bytes.")
    if not packed.eof:
        raise Damaged(f"{ref} is compressed, and cut off.", "Use another copy of it.")
    return text
