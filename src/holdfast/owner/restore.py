"""Restore a backup into a new or empty folder, and only if every byte is as its manifest says.

The files are written to a folder beside the target, compared with the manifest and verified as a memory; then the
folder gets its name. An archive is not trusted: paths that lead out, links, devices, repeated names, and more bytes
than the disk has room for or an archive of its size can contain are refused.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import io
import os
import secrets
import shutil
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

import msgspec

from holdfast.core import Core
from holdfast.errors import AlreadyExists, Damaged, Invalid, NotFound, OverBudget, Unavailable
from holdfast.formats import encryption
from holdfast.model import settings
from holdfast.model.names import check_path
from holdfast.model.records import Problem
from holdfast.roots import on_disk, open_folder, open_memory
from holdfast.storage.files import descriptors
from holdfast.storage.files.descriptors import TEMPORARY
from holdfast.storage.log import attempts
from holdfast.storage.results import Progress
from holdfast.storage.tree import Folder

MANIFEST = "manifest.json"
FILES = "files"
VERSION = 1
ROOT_FILES = (settings.FILE, ".gitattributes", ".gitignore")
_UNFINISHED = f"{TEMPORARY}whole-"
_LOCK_SECONDS = 10.0
_CHUNK = 1 << 20
_MOST_MANIFEST = 256 << 20
_RATIO, _ALLOWED = 200, 64 << 20
"""An archive may contain this many times its own size, and in any case this many bytes."""
_OTHER = "Use an archive that holdfast backup made."


class FileInfo(msgspec.Struct, frozen=True):
    size: int
    sha256: str
    mtime: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    backup: int = VERSION
    format: int = settings.FORMAT
    made: str
    files: dict[str, FileInfo]
    folders: list[str] = []
    """Workspaces, domains and repositories, which may have no files yet."""


class Restored(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was restored, and where; `damage` was there already in the memory that was copied."""

    path: str
    files: int
    bytes: int
    records: int
    made: str
    """When the copy was made."""
    damage: list[Problem] = []


def restore(source: str, target: str, progress: Progress | None = None) -> Restored:
    """Make a memory from a backup, in a folder that is new or empty: all of it or nothing."""
    origin = os.path.realpath(on_disk(source))
    on_disk(target)
    if not os.path.exists(origin):
        raise NotFound(f"There is no backup {origin}.", "Check the path.")

    def fill(there: Folder) -> Restored:
        if os.path.isdir(origin):
            found: _Found = {}
            try:
                with contextlib.closing(open_folder(origin)) as here:
                    manifest = _manifest(here.read(MANIFEST, _MOST_MANIFEST).data)
                    for number, path in enumerate(manifest.files, 1):
                        with here.snapshot(f"{FILES}/{path}") as snapshot:
                            found[path] = _write(there, path, snapshot.chunks)
                        if progress:
                            progress(number, len(manifest.files))
            except NotFound as error:
                raise Damaged(f"{origin} is no whole backup: {error.message}", "Use another one.") from None
        else:
            found, manifest = _unpack(origin, there, progress)
        wanted = {path: (info.size, info.sha256) for path, info in manifest.files.items()}
        for path in sorted(wanted.keys() | found.keys()):
            if wanted.get(path) != found.get(path):
                raise Damaged(f"{path[:200]} is not as the manifest of the backup says.", "Use another backup.")
        for folder in manifest.folders:
            os.makedirs(os.path.join(there.location, folder), exist_ok=True)
        for path, info in manifest.files.items():
            with contextlib.suppress(OverflowError):
                os.utime(os.path.join(there.location, path), ns=(info.mtime, info.mtime), follow_symlinks=False)
        return Restored("", len(found), sum(size for size, _ in found.values()), 0, manifest.made)

    return make_memory(target, fill)


def make_memory(target: str, fill: Callable[[Folder], Restored]) -> Restored:
    """Make a memory in a new or empty folder from the files that `fill` writes; it appears when it is verified."""
    folder, name = new_place(target)
    location = os.path.join(folder, name)
    try:
        with contextlib.closing(open_folder(folder)) as parent, unfinished_folder(parent) as made:
            with contextlib.closing(open_folder(made)) as there:
                filled = fill(there)
            with open_memory(made, kind=Core) as memory:  # the index that this makes stays
                report = memory.verify()
            if report.differences:
                fault = f"What was written is not a sound memory: {report.differences[0]}."
                raise Damaged(fault, "Nothing was left there.")
            parent.settle()
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(location)  # fails unless it is still empty
            parent.move(os.path.basename(made), name)
    except OSError as error:
        raise Unavailable(f"{location} was not written: {error.strerror}.", "Nothing was left there.") from None
    damage = [*filled.damage, *report.damage]
    return msgspec.structs.replace(filled, path=location, records=report.records, damage=damage)


def new_place(target: str) -> tuple[str, str]:
    """Return folder and name of a new or empty folder."""
    location = os.path.abspath(on_disk(target))
    if os.path.lexists(location) and (not os.path.isdir(location) or os.path.islink(location) or os.listdir(location)):
        raise AlreadyExists(f"{location} is not an empty folder; nothing was written.", "Name a new or empty folder.")
    folder, name = os.path.split(location)
    folder = os.path.realpath(folder)
    if not name or not os.path.isdir(folder):
        raise Unavailable(f"{folder} is not a folder.", "Make it first.")
    return folder, name


@contextlib.contextmanager
def unfinished_folder(parent: Folder) -> Iterator[str]:
    """Make a folder to work in and return its path; it is removed afterwards unless it was moved.

    It is locked while it is in use. Unlocked ones were left by processes that are gone, and are removed first.
    """
    for name in os.listdir(parent.location):
        if name.startswith(_UNFINISHED):
            with contextlib.suppress(OSError), _opened(os.path.join(parent.location, name)) as fd:
                if descriptors.free(fd):
                    shutil.rmtree(os.path.join(parent.location, name), ignore_errors=True)
    for _ in attempts(parent.location):
        name = _UNFINISHED + secrets.token_hex(8)
        parent.make_folder(name)
        location = os.path.join(parent.location, name)
        with _opened(location) as fd:
            descriptors.hold(fd, _LOCK_SECONDS, location, shared=True)  # writers inside share it
            if not os.path.isdir(location):  # another process removed it before it was locked
                continue
            try:
                yield location
            finally:
                shutil.rmtree(location, ignore_errors=True)
            return


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


# reading a backup

_Found = dict[str, tuple[int, str]]
"""Size and checksum of each file that was written."""


def _unpack(origin: str, there: Folder, progress: Progress | None) -> tuple[_Found, Manifest]:
    """Write the files of an archive; folders are skipped, everything else is refused."""
    found: _Found = {}
    manifest: Manifest | None = None
    with open(origin, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Invalid(f"{origin} is not a file.", "Name a backup.")
        try:
            encrypted = file.read(len(encryption.MAGIC)) == encryption.MAGIC
            file.seek(0)
            source = _Unpacked(file, there.location, progress, origin if encrypted else "")
            archive = tarfile.TarFile(fileobj=source, encoding="utf-8", errors="strict")
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # they would add up in memory
                if member.type == tarfile.DIRTYPE and not member.size:
                    continue
                if manifest is not None:
                    raise Invalid("The archive goes on after its manifest.", _OTHER)
                if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.pax_headers or member.size < 0:
                    fault = f"{member.name[:200]!r} in the archive is no regular file"
                    raise Invalid(f"{fault}: links, devices and the like are refused.", _OTHER)
                source.expect(member.size)
                content = archive.extractfile(member)
                assert content is not None  # a regular file
                chunks = iter(functools.partial(content.read, _CHUNK), b"")
                if member.name != MANIFEST:
                    path = _path_inside(member.name)
                    found[path] = _write(there, path, chunks)
                elif member.size > _MOST_MANIFEST:
                    raise OverBudget("The manifest of the archive is too large.", "It is no backup.")
                else:
                    manifest = _manifest(b"".join(chunks))
            while rest := source.read(_CHUNK):  # to the end, which checks the checksum of the whole
                if rest.strip(b"\0"):
                    raise Invalid("The archive goes on after its end.", _OTHER)
        except (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError, UnicodeDecodeError, RecursionError):
            raise Damaged(f"{origin} is cut off, damaged or no archive.", "Use another backup.") from None
    if manifest is None:
        raise Damaged("The archive has no manifest: it is no whole backup.", "Use another one.")
    return found, manifest


class _Chunks(io.RawIOBase):
    """Pieces of bytes, to be read like a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    def read(self, size: int = -1) -> bytes:
        self._rest = self._rest or next(self._chunks, b"")
        size = len(self._rest) if size < 0 else size
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece


class _Unpacked(gzip.GzipFile):
    """The unpacked bytes of an archive: a bounded number of them, and only so many at once."""

    def __init__(self, file: BinaryIO, target: str, progress: Progress | None, encrypted: str) -> None:
        chunks = iter(functools.partial(file.read, _CHUNK), b"")
        super().__init__(fileobj=_Chunks(encryption.decrypt(chunks, encrypted)) if encrypted else file)
        self._packed, self._report = file, progress
        self._packed_size = os.fstat(file.fileno()).st_size
        self._left = min(shutil.disk_usage(target).free, _RATIO * self._packed_size + _ALLOWED)

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _CHUNK:  # file contents are read in chunks, so this is a header
            raise Invalid("A name in the archive is longer than a path can be.", "It is no backup.")
        data = super().read(size)
        self.expect(len(data))
        self._left -= len(data)
        if self._report:
            self._report(self._packed.tell(), self._packed_size)
        return data

    def expect(self, size: int) -> None:
        if size > self._left:
            fault = "The archive has more bytes than the disk has room for, or than an archive of its size can have."
            raise OverBudget(fault, "Free some space, or use a backup that holdfast made.")


def _write(there: Folder, path: str, chunks: Iterable[bytes]) -> tuple[int, str]:
    """Write a file; return its size and checksum."""
    digest, size = hashlib.sha256(), 0

    def hashed() -> Iterator[bytes]:
        nonlocal size
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            yield chunk

    there.create(path, hashed(), durable=False)
    return size, digest.hexdigest()


def _path_inside(name: str) -> str:
    """Return the path in the memory of a file of a backup, or refuse it."""
    top, _, path = name.partition("/")
    try:
        if top != FILES:
            raise Invalid(name)
        parts = check_path(path)
    except Invalid:
        raise Invalid(f"{name[:200]!r} in the archive is no path inside a memory.", _OTHER) from None
    if any(part.startswith(".") for part in parts) and path not in ROOT_FILES:
        raise Invalid(f"{path[:200]!r} in the archive is hidden; a backup has no such files.", "It is no backup.")
    return path


def _manifest(data: bytes) -> Manifest:
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Damaged("The manifest of the backup cannot be read.", "Use another backup.") from None
    if manifest.format > settings.FORMAT or manifest.backup > VERSION:
        known, given = f"{settings.FORMAT}.{VERSION}", f"{manifest.format}.{manifest.backup}"
        fault = f"The backup has format {given}; this Holdfast reads up to {known}."
        raise Invalid(fault, "Upgrade Holdfast; nothing was changed.")
    for path in (*manifest.files, *manifest.folders):
        _path_inside(f"{FILES}/{path}")
    return manifest
