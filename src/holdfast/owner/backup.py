"""Whole copies of a memory: a backup as an archive or a folder, its restore, and an export as plain files.

A copy is made while others go on writing. A log is copied up to its last complete line, a document as one version. Logs
are copied before the files that their entries refer to, and the write log last, so that nothing in the copy refers to
something missing. The index and the notes of live runs are left out.

A backup ends with a manifest of the size and SHA-256 of every file. Restore compares every file with it and verifies
the memory before that gets its name. An archive is not trusted: docs/decisions/025 lists what is refused.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import io
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator

import msgspec

from holdfast.core import Core
from holdfast.errors import AlreadyExists, Damaged, Invalid, NotFound, OverBudget, Unavailable
from holdfast.formats import encryption
from holdfast.model import settings
from holdfast.model.names import check_path
from holdfast.model.records import Problem
from holdfast.model.times import utc_now
from holdfast.roots import is_address, make_root, on_disk, open_folder, open_store
from holdfast.storage.files import descriptors
from holdfast.storage.files.descriptors import TEMPORARY
from holdfast.storage.results import Progress
from holdfast.storage.tree import Folder, Snapshot, Stamp, Tree

TRANSFERS = "moves"
"""The folder for the state of transfers; it is not copied with the memory."""
_MANIFEST, _FILES, _VERSION = "manifest.json", "files", 1
ROOT_FILES = (settings.FILE, ".gitattributes", ".gitignore")
_UNFINISHED = f"{TEMPORARY}whole-"
_CHUNK = 1 << 20
_MOST_MANIFEST = 256 << 20
_RATIO, _ALLOWED = 200, 64 << 20
"""An archive may contain this many times its own size, and in any case this many bytes."""
_OTHER = "Use a backup that holdfast made."


class FileInfo(msgspec.Struct, frozen=True):
    size: int
    sha256: str
    mtime: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    backup: int = _VERSION
    format: int = settings.FORMAT
    made: str
    files: dict[str, FileInfo]
    folders: list[str] = []
    """Workspaces, domains and repositories; they may have no files yet."""


class Copied(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result or the preview of a backup, restore or export."""

    path: str
    """Where the copy is."""
    files: int
    bytes: int
    made: str
    """When the copy was made."""
    left_out: list[Problem] = []
    """Files in the memory's folders that were not copied, with the reason."""
    records: int = 0
    """In the new memory."""
    damage: list[Problem] = []
    """Damage in the new memory that the original has as well."""


# reading a memory


def every_file(memory: Core, left_out: list[Problem]) -> dict[str, Stamp]:
    """Return the files of a memory, except for the notes of live runs.

    Links, and what cannot be read, are added to `left_out`.
    """
    paths, links = memory.settings.paths, dict[str, None]()
    found = {path: stamp for path in ROOT_FILES if (stamp := memory.tree.stat(path))}
    for top in sorted({getattr(paths, name) for name in paths.__struct_fields__}):
        found |= memory.tree.walk(top, ("",), lambda path, why: left_out.append(Problem(path, why)), links.setdefault)
    why = "a link: its target is copied if it is in the memory"
    left_out += [Problem(path, why) for path in links]
    runs, below = re.compile(rf"{re.escape(paths.memory)}/sessions/[^/]+/runs/"), tuple(f"{link}/" for link in links)
    return {
        path: stamp
        for path, stamp in found.items()
        if path not in links and not path.startswith(below) and not runs.match(path)
    }


def _snapshots(memory: Core, left_out: list[Problem], progress: Progress | None) -> Iterator[tuple[str, Snapshot]]:
    """Yield each file once, as it is at one moment: logs, documents, kept versions, then the write log.

    Files are listed again for each of these, since an entry may refer to a file that was created meanwhile.
    """
    writes, done = f"{memory.layout.memory}/writes/", set[str]()
    for turn in ((True, False), (False, False), (False, True), (True, True)):
        found = every_file(memory, left_out)
        for path in found:
            log = path.endswith(".jsonl")
            if path in done or (log, path.startswith(writes)) != turn:
                continue
            done.add(path)
            with contextlib.suppress(NotFound), contextlib.ExitStack() as opened:  # removed meanwhile
                try:
                    snapshot = opened.enter_context(memory.tree.snapshot(path, log=log))
                except Unavailable as error:
                    left_out.append(Problem(path, error.message))
                    continue
                yield path, snapshot
            if progress:
                progress(len(done), max(len(found), len(done)))


def _scopes(tree: Tree, folder: str, depth: int = 3) -> Iterator[str]:
    """Yield the folders of workspaces, domains and repositories, which may have no files."""
    for name in tree.folders(folder) if depth else ():
        yield f"{folder}/{name}"
        yield from _scopes(tree, f"{folder}/{name}", depth - 1)


# writing a copy


def backup(memory: Core, target: str, progress: Progress | None = None, *, dry: bool = False) -> Copied:
    """Copy a memory to a new archive or folder outside of it: all of it or nothing; `dry` only lists the files."""
    location = _place(target, memory)
    archive = location.endswith((".tar.gz", ".tgz"))
    if not archive and location.endswith((".tar", ".gz", ".zip", ".bz2", ".xz")):
        raise Invalid(f"{location} is not a form of a backup.", "Name a file that ends with .tar.gz, or a folder.")
    if os.path.lexists(location):
        raise AlreadyExists(f"{location} exists already; nothing was written.", "Name a new file or folder.")
    secret = "backups" in memory.settings.encryption.what
    if secret and not archive:
        raise Invalid(
            "Backups of this memory are encrypted, and a folder cannot be.", "Name a file that ends with .tar.gz."
        )
    if dry:
        return _listed(memory, location)
    made, files, left_out = utc_now(), dict[str, FileInfo](), list[Problem]()

    def contents() -> Iterator[tuple[str, Snapshot]]:
        for path, found in _snapshots(memory, left_out, progress):
            chunks = _noted(found.chunks, path, files, found.mtime)
            yield f"{_FILES}/{path}", Snapshot(found.size, found.mtime, chunks)
        folders = list(_scopes(memory.tree, memory.layout.workspaces))
        data = msgspec.json.encode(Manifest(made=made, files=files, folders=folders))
        yield _MANIFEST, Snapshot(len(data), 0, iter([data]))

    with _unfinished(location) as unfinished:
        if archive:
            packed = _packed(contents())
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.writelines(encryption.encrypt(packed) if secret else packed)
        else:
            os.mkdir(unfinished, 0o700)
            with contextlib.closing(open_folder(unfinished)) as there:
                for name, found in contents():
                    there.create(name, found.chunks, mtime=found.mtime, durable=False)
    size = sum(info.size for info in files.values())
    return Copied(location, len(files), size, made, list(dict.fromkeys(left_out)))


def export(memory: Core, target: str, progress: Progress | None = None, *, dry: bool = False) -> Copied:
    """Write a memory as plain files to a folder that is new or empty; `dry` only lists the files."""
    made, left_out, location = utc_now(), list[Problem](), _empty(_place(target, memory))
    listed = _listed(memory, location)
    if not listed.files:
        raise NotFound(f"There is nothing at {memory.root}.", "Check the address, and the tenant in it.")

    def fill(there: Folder) -> Copied:
        files, size = 0, 0
        for path, found in _snapshots(memory, left_out, progress):
            if not path.startswith(f"{memory.layout.memory}/{TRANSFERS}/"):
                there.create(path, found.chunks, mtime=found.mtime, durable=False)
                files, size = files + 1, size + found.size
        make_root(there.location)
        for scope in _scopes(memory.tree, memory.layout.workspaces):
            os.makedirs(os.path.join(there.location, scope), exist_ok=True)
        return Copied(location, files, size, made, list(dict.fromkeys(left_out)))

    return listed if dry else _make_memory(location, fill)


def _listed(memory: Core, location: str) -> Copied:
    left_out = list[Problem]()
    sizes = [stamp.size for stamp in every_file(memory, left_out).values()]
    return Copied(location, len(sizes), sum(sizes), utc_now(), left_out)


def _noted(chunks: Iterable[bytes], path: str, files: dict[str, FileInfo], mtime: int = 0) -> Iterator[bytes]:
    """Yield the pieces of a file, then note its size and checksum."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
        yield chunk
    files[path] = FileInfo(size, digest.hexdigest(), mtime)


def _packed(contents: Iterable[tuple[str, Snapshot]]) -> Iterator[bytes]:
    """Yield files as a compressed tar archive; without loading them into memory."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    for name, found in contents:
        info = tarfile.TarInfo(name)
        info.size, info.mtime = found.size, found.mtime // 10**9
        yield packer.compress(info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
        yield from map(packer.compress, found.chunks)
        yield packer.compress(bytes(-found.size % tarfile.BLOCKSIZE))
    yield packer.compress(bytes(2 * tarfile.BLOCKSIZE)) + packer.flush()


def _place(target: str, memory: Core | None = None) -> str:
    """Return the path of a new file or folder, which must be outside of the memory, in a folder that exists."""
    folder, name = os.path.split(os.path.abspath(on_disk(target)))
    location = os.path.join(os.path.realpath(folder), name)
    if memory and (location + "/").startswith(memory.tree.location + "/"):
        raise Invalid(f"{location} is inside the memory itself.", "Name a place outside of it.")
    if not name or not os.path.isdir(folder):
        raise Unavailable(f"{folder} is not a folder.", "Create it first.")
    return location


@contextlib.contextmanager
def _unfinished(location: str) -> Iterator[str]:
    """Yield a temporary path for a new file or folder, which is renamed when it is complete and replaces no other.

    The path is in a folder that only the owner can read. It is locked while it is in use; unlocked ones were left by
    dead processes, and are removed first.
    """
    folder, name = os.path.split(location)
    try:
        for left in (os.path.join(folder, one) for one in os.listdir(folder) if one.startswith(_UNFINISHED)):
            with contextlib.suppress(OSError), _locked(left):
                shutil.rmtree(left, ignore_errors=True)
        with (
            tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=folder, ignore_cleanup_errors=True) as work,
            contextlib.closing(open_folder(folder)) as parent,
            _locked(work),
        ):
            yield os.path.join(work, name)
            parent.settle()
            parent.move(f"{os.path.basename(work)}/{name}", name)
    except OSError as error:
        raise Unavailable(f"{location} was not written: {error.strerror}.", "Nothing was left there.") from None


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not descriptors.free(fd):
            raise BlockingIOError(f"{folder} is in use")
        yield
    finally:
        os.close(fd)


def _empty(location: str) -> str:
    """Return this path, of a folder that is new or empty."""
    if os.path.lexists(location) and (not os.path.isdir(location) or os.path.islink(location) or os.listdir(location)):
        raise AlreadyExists(f"{location} is not an empty folder; nothing was written.", "Name a new or empty folder.")
    return location


def _make_memory(location: str, fill: Callable[[Folder], Copied]) -> Copied:
    """Make a memory in a new or empty folder from the files that `fill` writes; it appears when it is verified."""
    with _unfinished(location) as unfinished:
        os.mkdir(unfinished)
        with contextlib.closing(open_folder(unfinished)) as there:
            filled = fill(there)
        with Core(open_store(unfinished)) as memory:  # the index that this makes stays
            report = memory.verify()
        if report.differences:
            fault = f"The copy does not pass verification: {report.differences[0]}."
            raise Damaged(fault, "Nothing was left there.")
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(location)  # fails unless it is still empty
    return msgspec.structs.replace(filled, records=report.records, damage=report.damage)


# reading a backup


def is_backup(path: str) -> bool:
    """Return whether a path is that of an archive, or of a folder with a manifest and files."""
    if is_address(path):
        return False
    manifest, files = (os.path.join(on_disk(path), name) for name in (_MANIFEST, _FILES))
    return os.path.isfile(on_disk(path)) or (os.path.isfile(manifest) and os.path.isdir(files))


def restore(source: str, target: str, progress: Progress | None = None, *, dry: bool = False) -> Copied:
    """Make a memory from a backup, in a folder that is new or empty: all of it or nothing.

    `dry` only reads the backup and compares every file with the manifest.
    """
    origin, location = os.path.realpath(on_disk(source)), _empty(_place(target))
    if not os.path.isfile(origin) and not os.path.isdir(origin):
        raise NotFound(f"There is no backup {origin}.", "Check the path.")
    read = _in_folder if os.path.isdir(origin) else _in_archive

    def fill(there: Folder | None) -> Copied:
        found, manifest = _compared(origin, read(origin, os.path.dirname(location), progress), there)
        if there:
            for path, info in manifest.files.items():
                with contextlib.suppress(OverflowError):
                    times = (info.mtime, info.mtime)
                    os.utime(os.path.join(there.location, path), ns=times, follow_symlinks=False)
            for folder in manifest.folders:
                os.makedirs(os.path.join(there.location, folder), exist_ok=True)
        return Copied(location, len(found), sum(info.size for info in found.values()), manifest.made)

    return fill(None) if dry else _make_memory(location, fill)


def _compared(
    origin: str, files: Iterator[tuple[str, Iterator[bytes]]], there: Folder | None
) -> tuple[dict[str, FileInfo], Manifest]:
    """Read the files of a backup, write them to a folder if given, and compare them with the manifest."""
    found, manifest = dict[str, FileInfo](), None
    try:
        for name, chunks in files:
            if name == _MANIFEST:
                manifest = _manifest(b"".join(chunks))
                continue
            if (path := _path_inside(name)) in found:
                raise Damaged(f"{path[:200]} is in the backup twice.", "Use another backup.")
            noted = _noted(chunks, path, found)
            if there:
                there.create(path, noted, durable=False)
            for _ in noted:
                pass
    except (EOFError, NotFound, gzip.BadGzipFile, zlib.error, tarfile.TarError, UnicodeDecodeError, RecursionError):
        raise Damaged(f"{origin} is cut off, damaged or not a backup.", "Use another backup.") from None
    if manifest is None:
        raise Damaged("The archive has no manifest: it is not a complete backup.", "Use another one.")
    for path in sorted(manifest.files.keys() | found.keys()):
        one, other = manifest.files.get(path), found.get(path)
        if not one or not other or (one.size, one.sha256) != (other.size, other.sha256):
            raise Damaged(f"{path[:200]} does not match the manifest of the backup.", "Use another backup.")
    return found, manifest


def _in_folder(origin: str, _disk: str, progress: Progress | None) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the manifest of a backup, and the files that it names."""
    with contextlib.closing(open_folder(origin)) as here:
        data = here.read(_MANIFEST, _MOST_MANIFEST).data
        yield _MANIFEST, iter([data])
        files = _manifest(data).files
        for number, path in enumerate(files, 1):
            with here.snapshot(f"{_FILES}/{path}") as snapshot:
                yield f"{_FILES}/{path}", snapshot.chunks
            if progress:
                progress(number, len(files))


def _in_archive(origin: str, disk: str, progress: Progress | None) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the files of an archive; folders are skipped, everything else is refused."""
    with open(origin, "rb") as file:
        packed = os.fstat(file.fileno()).st_size
        encrypted = file.peek(len(encryption.MAGIC)).startswith(encryption.MAGIC)
        chunks = iter(functools.partial(file.read, _CHUNK), b"")
        source = _Unpacked(fileobj=_Chunks(encryption.decrypt(chunks, origin)) if encrypted else file)
        source.left = min(shutil.disk_usage(disk).free, _RATIO * packed + _ALLOWED)
        archive = tarfile.TarFile(fileobj=source, encoding="utf-8", errors="strict")
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # they would add up in memory
            if member.type == tarfile.DIRTYPE:
                continue
            if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.pax_headers or member.size < 0:
                fault = f"{member.name[:200]!r} in the archive is not a regular file"
                raise Invalid(f"{fault}: links, devices and the like are refused.", _OTHER)
            if member.name == _MANIFEST and member.size > _MOST_MANIFEST:
                raise OverBudget("The manifest of the archive is too large.", _OTHER)
            content = archive.extractfile(member)
            assert content is not None  # a regular file
            yield member.name, iter(functools.partial(content.read, _CHUNK), b"")
            if progress:
                progress(file.tell(), packed)
        while source.read(_CHUNK):  # to the end, which checks the checksum of the whole
            pass


class _Unpacked(gzip.GzipFile):
    """The unpacked bytes of an archive: at most `left`, and only so many at once."""

    left = 0

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _CHUNK:  # file contents are read in chunks, so this is a header
            raise Invalid("A name in the archive is longer than a path can be.", _OTHER)
        data = super().read(size)
        self.left -= len(data)
        if self.left < 0:
            fault = "The archive has more bytes than fit on the disk, or than an archive of its size may have."
            raise OverBudget(fault, "Free some space, or use a backup that holdfast made.")
        return data


class _Chunks(io.RawIOBase):
    """Pieces of bytes, to be read like a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    def read(self, size: int = -1) -> bytes:
        self._rest = self._rest or next(self._chunks, b"")
        size = len(self._rest) if size < 0 else size
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece


def _path_inside(name: str) -> str:
    """Return the path in the memory of a file of a backup, or refuse it."""
    top, _, path = name.partition("/")
    try:
        hidden = any(part.startswith(".") for part in check_path(path)) and path not in ROOT_FILES
    except Invalid:
        hidden = True
    if hidden or top != _FILES:
        raise Invalid(f"{name[:200]!r} in the backup is hidden or not a path inside a memory.", _OTHER)
    return path


def _manifest(data: bytes) -> Manifest:
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Damaged("The manifest of the backup cannot be read.", "Use another backup.") from None
    if manifest.format > settings.FORMAT or manifest.backup > _VERSION:
        known, given = f"{settings.FORMAT}.{_VERSION}", f"{manifest.format}.{manifest.backup}"
        fault = f"The backup has format {given}; this Holdfast reads up to {known}."
        raise Invalid(fault, "Upgrade Holdfast; nothing was changed.")
    for path in (*manifest.files, *manifest.folders):
        _path_inside(f"{_FILES}/{path}")
    return manifest
