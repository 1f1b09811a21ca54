"""Copies of a whole memory while others go on writing: a backup, as an archive or a folder, and an export.

A log is copied up to its last complete line, a document as one version. Logs are copied before the files that their
entries refer to, and the write log last, so that nothing in the copy refers to something missing. A backup ends with a
manifest of the size and SHA-256 of every file; without one it is not complete. The index and the notes of live runs
are left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tarfile
import zlib
from collections.abc import Iterator

import msgspec

from holdfast.core import Core
from holdfast.errors import AlreadyExists, Invalid, NotFound, Unavailable
from holdfast.formats import encryption, jsonl
from holdfast.model import settings
from holdfast.model.records import Problem
from holdfast.model.settings import Paths
from holdfast.model.times import utc_now
from holdfast.owner.restore import (
    FILES,
    MANIFEST,
    ROOT_FILES,
    FileInfo,
    Manifest,
    Restored,
    make_memory,
    new_place,
    unfinished_folder,
)
from holdfast.roots import make_root, on_disk, open_folder
from holdfast.storage.results import Progress
from holdfast.storage.tree import Folder, Line, Snapshot, Stamp, Tree

TRANSFERS = "moves"
"""The folder of what is remembered of transfers; it stays with its memory."""
_BLOCK = 512
_DEPTH = 3


class Backup(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was copied, and where it is now."""

    path: str
    files: int
    bytes: int
    made: str
    left_out: list[Problem] = []
    """Files in the memory's folders that were not copied, with the reason."""


def backup(memory: Core, target: str, progress: Progress | None = None) -> Backup:
    """Copy a memory to a new archive or folder outside of it: all of it or nothing."""
    folder, name = os.path.split(os.path.abspath(on_disk(target)))
    folder = os.path.realpath(folder)
    location = os.path.join(folder, name)
    archive = location.endswith((".tar.gz", ".tgz"))
    _check_outside(memory, location)
    if not archive and location.endswith((".tar", ".gz", ".zip", ".bz2", ".xz")):
        raise Invalid(f"{location} is no form of a backup.", "Name a file that ends with .tar.gz, or a folder.")
    if os.path.lexists(location):
        raise AlreadyExists(f"{location} is there already; nothing was written.", "Name a new file or folder.")
    if not os.path.isdir(folder):
        raise Unavailable(f"{folder} is not a folder.", "Make it first.")
    secret = "backups" in memory.settings.encryption.what
    if secret and not archive:
        raise Invalid("A backup is encrypted here, and a folder cannot be.", "Name a file that ends with .tar.gz.")
    copy = _Backup(memory, progress)
    with contextlib.closing(open_folder(folder)) as there, unfinished_folder(there) as made:
        os.chmod(made, 0o700)  # before anything is in it
        unfinished = os.path.basename(made)
        with contextlib.closing(open_folder(made)) as inside:
            if archive:
                inside.create(name, encryption.encrypt(copy.archive()) if secret else copy.archive())
                os.chmod(os.path.join(made, name), 0o600)
                unfinished += f"/{name}"
            else:
                copy.into(inside)
        there.move(unfinished, name)
    size = sum(info.size for info in copy.files.values())
    return Backup(location, len(copy.files), size, copy.made, copy.left_out)


class _Backup:
    def __init__(self, memory: Core, progress: Progress | None) -> None:
        self._memory, self._progress = memory, progress
        self.made = utc_now()
        self.files: dict[str, FileInfo] = {}
        self.left_out: list[Problem] = []

    def into(self, there: Folder) -> None:
        for path, snapshot in self._snapshots():
            there.create(f"{FILES}/{path}", self._read(path, snapshot), mtime=snapshot.mtime, durable=False)
        there.create(MANIFEST, [self._manifest()], durable=False)
        there.settle()

    def archive(self) -> Iterator[bytes]:
        """Yield it as a compressed tar archive, for which the files never have to fit into memory."""
        gzip = zlib.compressobj(6, zlib.DEFLATED, 31)

        def tar() -> Iterator[bytes]:
            for path, snapshot in self._snapshots():
                yield _header(f"{FILES}/{path}", snapshot.size, snapshot.mtime // 10**9)
                yield from self._read(path, snapshot)
                yield bytes(-snapshot.size % _BLOCK)
            manifest = self._manifest()
            yield _header(MANIFEST, len(manifest), 0)
            yield manifest + bytes(-len(manifest) % _BLOCK + 2 * _BLOCK)

        yield from filter(None, map(gzip.compress, tar()))
        yield gzip.flush()

    def _manifest(self) -> bytes:
        folders = list(scopes(self._memory.tree, self._memory.layout.workspaces))
        return msgspec.json.encode(Manifest(made=self.made, files=self.files, folders=folders))

    def _read(self, path: str, snapshot: Snapshot) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for chunk in snapshot.chunks:
            digest.update(chunk)
            yield chunk
        self.files[path] = FileInfo(snapshot.size, digest.hexdigest(), snapshot.mtime)

    def _snapshots(self) -> Iterator[tuple[str, Snapshot]]:
        for path, _ in _in_order(self._memory, self.left_out, self._progress):
            with contextlib.suppress(NotFound), contextlib.ExitStack() as opened:  # removed meanwhile
                try:
                    snapshot = opened.enter_context(self._memory.tree.snapshot(path, log=path.endswith(".jsonl")))
                except Unavailable as error:
                    self.left_out.append(Problem(path, error.message))
                    continue
                yield path, snapshot


def _header(name: str, size: int, mtime: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, mtime, 0o644
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def export(memory: Core, target: str, progress: Progress | None = None) -> Restored:
    """Write a memory as plain files to a folder that is new or empty, whatever it is stored in."""
    made, tree = utc_now(), memory.tree
    _check_outside(memory, os.path.join(*new_place(target)))
    if not _files(memory, []):  # perhaps a tenant whose name was misspelt
        raise NotFound(f"There is nothing at {memory.root}.", "Look at the address, and at the tenant in it.")

    def lines(path: str, left_out: list[Problem]) -> Iterator[bytes]:
        return (line.data + b"\n" * line.whole for line in complete_lines(tree, path, left_out))

    def fill(there: Folder) -> Restored:
        files, size = 0, 0
        left_out: list[Problem] = []
        for path, stamp in _in_order(memory, left_out, progress):
            if path.startswith(f"{memory.layout.memory}/{TRANSFERS}/"):
                continue
            with contextlib.suppress(NotFound):  # removed meanwhile
                chunks = iter([tree.read(path).data]) if not path.endswith(".jsonl") else lines(path, left_out)
                there.create(path, chunks, mtime=stamp.mtime, durable=False)
                files += 1
                size += os.stat(os.path.join(there.location, path)).st_size
        paths, file = memory.settings.paths, os.path.join(there.location, settings.FILE)
        if paths != Paths() and not os.path.exists(file):
            values = msgspec.structs.asdict(paths).items()
            rows = [f"{name} = {msgspec.json.encode(value).decode()}\n" for name, value in values]
            with open(file, "x", encoding="utf-8") as opened:
                opened.write(f"format = {settings.FORMAT}\n\n[paths]\n{''.join(rows)}")
        make_root(there.location)
        for scope in scopes(tree, paths.workspaces):
            os.makedirs(os.path.join(there.location, scope), exist_ok=True)
        return Restored("", files, size, 0, made, left_out)

    return make_memory(target, fill)


def complete_lines(tree: Tree, path: str, left_out: list[Problem]) -> Iterator[Line]:
    """Yield the lines of a log; one that is too long is reported, one that is being written is left out."""
    for line in tree.scan(path):
        if line.cut:
            left_out.append(Problem(path, f"a line at byte {line.offset:,} is longer than lines may be"))
        elif line.whole or not isinstance(jsonl.parse(line.data), str):
            yield line


def _check_outside(memory: Core, location: str) -> None:
    if (location + "/").startswith(memory.tree.location + "/"):
        raise Invalid(f"{location} is inside the memory itself.", "Name a place outside of it.")


def _in_order(memory: Core, left_out: list[Problem], progress: Progress | None) -> Iterator[tuple[str, Stamp]]:
    """Yield each file once: logs, documents, kept versions, then the write log.

    They are listed again for each of these, since an entry may refer to a file that was created meanwhile.
    """
    writes = f"{memory.layout.memory}/writes/"
    done: set[str] = set()
    for number, turn in enumerate(((True, False), (False, False), (False, True), (True, True))):
        found = _files(memory, [] if number else left_out)
        for path, stamp in found.items():
            if path not in done and (path.endswith(".jsonl"), path.startswith(writes)) == turn:
                done.add(path)
                yield path, stamp
                if progress:
                    progress(len(done), max(len(found), len(done)))


def _files(memory: Core, left_out: list[Problem]) -> dict[str, Stamp]:
    top = {name: stamp for name in ROOT_FILES if (stamp := memory.tree.stat(name))}
    return top | every_file(memory, left_out)


def every_file(memory: Core, left_out: list[Problem]) -> dict[str, Stamp]:
    """Return the files of a memory, except for those at its root and the notes of live runs.

    Links, and what cannot be read, are added to `left_out`.
    """
    paths, links = memory.settings.paths, list[str]()
    found: dict[str, Stamp] = {}
    for top in sorted({getattr(paths, name) for name in paths.__struct_fields__}):
        found |= memory.tree.walk(top, ("",), lambda path, why: left_out.append(Problem(path, why)), links.append)
    below = tuple(f"{link}/" for link in links)
    runs = re.compile(rf"{re.escape(paths.memory)}/sessions/[^/]+/runs/")
    why = "a link: what it leads to is copied where it is, if that is in the memory"
    left_out += [Problem(path, why) for path in dict.fromkeys(links)]
    return {
        path: stamp
        for path, stamp in found.items()
        if path not in links and not path.startswith(below) and not runs.match(path)
    }


def scopes(tree: Tree, folder: str, depth: int = _DEPTH) -> Iterator[str]:
    """Yield the folders of workspaces, domains and repositories, which may have no files."""
    for name in tree.folders(folder) if depth else ():
        yield f"{folder}/{name}"
        yield from scopes(tree, f"{folder}/{name}", depth - 1)
