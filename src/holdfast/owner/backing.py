"""A copy of the whole memory while others go on writing, as an archive or as a folder.

A log is measured while it is held and copied up to its last whole line; a document is read as one version. Logs come
before what their lines refer to, and the account of writes comes last, so that nothing in the copy speaks of what is
not in it. The manifest, with the size and SHA-256 of every file, is written when all else is: a copy without one is no
backup. The index is left out, being derived, and so are the notes of live runs, which end with their process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator

import msgspec

from holdfast.errors import AlreadyExists, Invalid, NotFound, Unavailable
from holdfast.formats import tars
from holdfast.model import settings
from holdfast.model.records import Problem
from holdfast.model.settings import Paths, Settings
from holdfast.model.times import utc_now
from holdfast.owner import unfinished
from holdfast.storage.refresh import Progress
from holdfast.storage.tree import Snapshot, Stamp, Vault

MANIFEST = "manifest.json"
FILES = "files"
VERSION = 1
ROOT_FILES = (settings.FILE, ".gitattributes", ".gitignore")
_DEPTH = 3


class Kept(msgspec.Struct, frozen=True):
    """What the manifest says of one file."""

    size: int
    sha256: str
    mtime: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    backup: int = VERSION
    format: int = settings.FORMAT
    made: str
    files: dict[str, Kept]
    folders: list[str] = []
    """Workspaces, domains and repositories: each is one even while there is no file in it."""


class Backup(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was copied, and where it is now."""

    path: str
    files: int
    bytes: int
    made: str
    left_out: list[Problem] = []
    """What lies in the memory's folders and was not copied, with the reason."""


def archived(path: str) -> bool:
    """Is this the name of a backup in one file?"""
    return path.endswith((".tar.gz", ".tgz"))


def backup(vault: Vault, config: Settings, target: str, progress: Progress | None = None) -> Backup:
    """Copy a memory to a new archive or folder outside of it; there is no half of one, whatever happens."""
    location = _target(vault.location, target)
    folder, name = os.path.split(location)
    source = _Source(vault, config, progress)
    from holdfast.roots import open_folder  # which knows the engines, and everything below

    there = open_folder(folder)
    try:
        unfinished.sweep(folder)
        if archived(name):
            there.create(name, _compressed(source.archive()))
        else:
            with unfinished.made(there) as made:
                inside = open_folder(made.location)
                try:
                    source.copy(inside)
                finally:
                    inside.close()
                made.offer(name)
    finally:
        there.close()
    return Backup(location, len(source.kept), source.bytes, source.made, source.left_out)


def check_outside(root: str, location: str) -> None:
    """Refuse a place for a copy that is inside the memory itself."""
    if (location + "/").startswith(root + "/"):
        raise Invalid(f"{location} is inside the memory itself.", "Name a place outside of it.")


def _target(root: str, target: str) -> str:
    from holdfast.roots import on_disk

    folder, name = os.path.split(os.path.abspath(on_disk(target)))
    location = os.path.join(os.path.realpath(folder), name)
    check_outside(root, location)
    if not archived(location) and location.endswith((".tar", ".gz", ".zip", ".bz2", ".xz")):
        raise Invalid(f"{location} is no form of a backup.", "Name a file that ends with .tar.gz, or a folder.")
    if os.path.lexists(location):
        raise AlreadyExists(f"{location} is there already; nothing was written.", "Name a new file or folder.")
    if not os.path.isdir(os.path.dirname(location)):
        raise Unavailable(f"{os.path.dirname(location)} is not a folder.", "Make it first.")
    return location


class _Source:
    """The files of one memory, each given once; what was given is in `kept`."""

    def __init__(self, vault: Vault, config: Settings, progress: Progress | None) -> None:
        self._vault = vault
        self._paths = config.paths
        self._progress = progress
        self.made = utc_now()
        self.kept: dict[str, Kept] = {}
        self.left_out: list[Problem] = []
        self.bytes = 0

    def archive(self) -> Iterator[bytes]:
        """Yield the bytes of an archive of it."""
        for path, snapshot in self._snapshots():
            yield tars.header(f"{FILES}/{path}", snapshot.size, snapshot.mtime // 10**9)
            yield from self._read(path, snapshot)
            yield tars.padding(snapshot.size)
        manifest = self._manifest()
        yield tars.header(MANIFEST, len(manifest), 0) + manifest + tars.padding(len(manifest)) + tars.END

    def copy(self, there: Vault) -> None:
        """Copy it into an empty folder."""
        for path, snapshot in self._snapshots():
            there.create(f"{FILES}/{path}", self._read(path, snapshot), mtime=snapshot.mtime, durable=False)
        there.create(MANIFEST, [self._manifest()], durable=False)
        there.settle()

    def _manifest(self) -> bytes:
        told = Manifest(made=self.made, files=self.kept, folders=list(scopes(self._vault, self._paths.workspaces)))
        return msgspec.json.encode(told)

    def _read(self, path: str, snapshot: Snapshot) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for chunk in snapshot.chunks:
            digest.update(chunk)
            self.bytes += len(chunk)
            yield chunk
        self.kept[path] = Kept(snapshot.size, digest.hexdigest(), snapshot.mtime)

    def _snapshots(self) -> Iterator[tuple[str, Snapshot]]:
        """Give the files in the order in which they refer to each other."""
        done: set[str] = set()
        for number, wanted in enumerate(self._passes()):  # listed each time: what came meanwhile may be referred to
            every = self._listed(told=number == 0)
            for path in [path for path in every if path not in done and wanted(path)]:
                done.add(path)
                with contextlib.suppress(NotFound), contextlib.ExitStack() as held:  # removed meanwhile
                    try:
                        snapshot = held.enter_context(self._vault.snapshot(path, log=path.endswith(".jsonl")))
                    except Unavailable as error:
                        self.left_out.append(Problem(path, error.message))
                        continue
                    yield path, snapshot
                if self._progress:
                    self._progress(len(done), max(len(every), len(done)))

    def _passes(self) -> tuple[Callable[[str], bool], ...]:
        """Return which files come first, second and so on."""
        writes = f"{self._paths.memory}/writes/"
        return (
            lambda path: path.endswith(".jsonl") and not path.startswith(writes),
            lambda path: not path.endswith(".jsonl") and not path.startswith(writes),
            lambda path: not path.endswith(".jsonl"),
            lambda path: path.startswith(writes),
        )

    def _listed(self, *, told: bool) -> list[str]:
        left_out: list[Problem] = []
        found = [name for name in ROOT_FILES if self._vault.stat(name)]
        found += every_file(self._vault, self._paths, left_out)
        self.left_out += left_out if told else []
        return list(dict.fromkeys(found))


def scopes(vault: Vault, folder: str, depth: int = _DEPTH) -> Iterator[str]:
    """Yield the folders of workspaces, domains and repositories: each is one even while there is no file in it."""
    for name in vault.folders(folder) if depth else ():
        yield f"{folder}/{name}"
        yield from scopes(vault, f"{folder}/{name}", depth - 1)


def every_file(vault: Vault, paths: Paths, left_out: list[Problem]) -> dict[str, Stamp]:
    """Return the files of a memory, but for those at its root and the notes of live runs; say what cannot be had."""
    links: list[str] = []
    found: dict[str, Stamp] = {}
    for top in sorted({getattr(paths, name) for name in paths.__struct_fields__}):
        found |= vault.walk(top, ("",), lambda path, why: left_out.append(Problem(path, why)), links.append)
    behind = tuple(f"{link}/" for link in links)
    runs = re.compile(rf"{re.escape(paths.memory)}/sessions/[^/]+/runs/")
    why = "a link: what it leads to is copied where it lies, if that is in the memory"
    left_out += [Problem(path, why) for path in dict.fromkeys(links)]
    return {
        path: stamp
        for path, stamp in found.items()
        if path not in links and not path.startswith(behind) and not runs.match(path)
    }


def _compressed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes as a gzip file."""
    press = zlib.compressobj(6, zlib.DEFLATED, 31)
    for chunk in chunks:
        if pressed := press.compress(chunk):
            yield pressed
    yield press.flush()
