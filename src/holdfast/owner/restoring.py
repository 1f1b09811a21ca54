"""From a backup to a memory: into a new or empty folder, and only when every byte of it is as the manifest says.

All is written to a folder beside the place first, compared with the manifest and read as a memory would be; then it
gets its name. What an archive may do to who opens it is refused: names that lead out, links, devices, the same name
twice, and more bytes than the disk or the archive's own size can account for.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

import msgspec

from holdfast.errors import AlreadyExists, Damaged, HoldfastError, Invalid, NotFound, OverBudget, Unavailable
from holdfast.formats import tars
from holdfast.model import settings
from holdfast.model.names import check_path
from holdfast.model.records import Problem
from holdfast.owner import backing, unfinished
from holdfast.owner.backing import FILES, MANIFEST, Kept, Manifest
from holdfast.storage.refresh import Progress
from holdfast.storage.tree import Vault

_MOST_MANIFEST = 256 << 20
_MOST_FILES = 5_000_000
_RATIO, _ALLOWED = 200, 64 << 20
"""An archive may hold so many times its own size, and in any case so many bytes."""


class Restored(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was restored, and where; `damage` is what could not be read in the memory that was backed up either."""

    path: str
    files: int
    bytes: int
    records: int
    made: str
    """When the backup was made."""
    damage: list[Problem] = []


def restore(source: str, target: str, progress: Progress | None = None) -> Restored:
    """Make a memory of a backup, in a folder that is new or empty; nothing is there unless all of it is."""
    from holdfast.roots import on_disk, open_folder  # which knows the engines, and everything below

    origin, target = os.path.realpath(on_disk(source)), on_disk(target)
    if not os.path.exists(origin):
        raise NotFound(f"There is no backup {origin}.", "Check the path.")
    folder, name = place(target)
    parent = open_folder(folder)
    try:
        unfinished.sweep(folder)
        with unfinished.made(parent) as made:
            there = open_folder(made.location)
            try:
                manifest = (_from_folder if os.path.isdir(origin) else _from_archive)(origin, there, progress)
            finally:
                there.close()
            _finish(made.location, manifest)
            records, damage = proved(made.location)
            parent.settle()
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(os.path.join(folder, name))  # it was empty, or this refuses
            made.offer(name)
    except OSError as error:
        raise Unavailable(f"{target} was not restored: {error.strerror}.", "Nothing was left there.") from None
    finally:
        parent.close()
    size = sum(kept.size for kept in manifest.files.values())
    return Restored(os.path.join(folder, name), len(manifest.files), size, records, manifest.made, damage)


def place(target: str) -> tuple[str, str]:
    """Return folder and name of where the memory shall be."""
    from holdfast.roots import on_disk

    location = os.path.abspath(on_disk(target))
    if os.path.lexists(location) and (not os.path.isdir(location) or os.path.islink(location) or os.listdir(location)):
        raise AlreadyExists(f"{location} is not an empty folder; nothing was written.", "Name a new or empty folder.")
    folder, name = os.path.split(location)
    folder = os.path.realpath(folder)
    if not name or not os.path.isdir(folder):
        raise Unavailable(f"{folder} is not a folder.", "Make it first.")
    return folder, name


def _from_folder(origin: str, there: Vault, progress: Progress | None) -> Manifest:
    from holdfast.roots import open_folder

    here = open_folder(origin)
    try:
        manifest = _manifest(here.read(MANIFEST, _MOST_MANIFEST).data)
        for number, (path, kept) in enumerate(manifest.files.items(), 1):
            with here.snapshot(f"{FILES}/{path}") as snapshot:
                if snapshot.size != kept.size:
                    raise _different(path)
                _write(there, path, snapshot.chunks, kept)
            if progress:
                progress(number, len(manifest.files))
        return manifest
    except NotFound as error:
        raise Damaged(f"{origin} is no whole backup: {error.message}", "Use another one.") from None
    finally:
        here.close()


def _from_archive(origin: str, there: Vault, progress: Progress | None) -> Manifest:
    with open(origin, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Invalid(f"{origin} is not a file.", "Name a backup.")
        try:
            return _extract(_Bounded(file, there.location, progress), there)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise Damaged(f"{origin} is cut off, damaged or no archive.", "Use another backup.") from None


def _extract(source: _Bounded, there: Vault) -> Manifest:
    reader = tars.Reader(source)
    found: dict[str, tuple[int, str]] = {}
    manifest: Manifest | None = None
    for name, size in reader.members():
        if manifest is not None:
            raise Invalid("The archive goes on behind its manifest.", "Use an archive that holdfast backup made.")
        source.expect(size)
        if name == MANIFEST:
            if size > _MOST_MANIFEST:
                raise OverBudget("The manifest of the archive is too large.", "It is no backup.")
            manifest = _manifest(b"".join(reader.chunks()))
            continue
        path = _inside(name)
        digest = hashlib.sha256()
        there.create(path, _hashed(reader.chunks(), digest.update), durable=False)
        found[path] = (size, digest.hexdigest())
        if len(found) > _MOST_FILES:
            raise OverBudget(f"The archive has more than {_MOST_FILES:,} files.", "It is no backup.")
    if manifest is None:
        raise Damaged("The archive has no manifest: it is no whole backup.", "Use another one.")
    wanted = {path: (kept.size, kept.sha256) for path, kept in manifest.files.items()}
    for path in sorted(wanted.keys() | found.keys()):
        if wanted.get(path) != found.get(path):
            raise _different(path)
    return manifest


def _write(there: Vault, path: str, chunks: Iterator[bytes], kept: Kept) -> None:
    digest = hashlib.sha256()
    there.create(path, _hashed(chunks, digest.update), durable=False)
    if digest.hexdigest() != kept.sha256:
        raise _different(path)


def _hashed(chunks: Iterator[bytes], update: Callable[[bytes], None]) -> Iterator[bytes]:
    for chunk in chunks:
        update(chunk)
        yield chunk


def _inside(name: str) -> str:
    """Return the path of a member in the memory, or refuse it."""
    top, _, path = name.partition("/")
    try:
        if top != FILES:
            raise Invalid(name)
        parts = check_path(path)
    except Invalid:
        raise Invalid(
            f"{name[:200]!r} in the archive is no path inside a memory.", "Use an archive that holdfast backup made."
        ) from None
    if any(part.startswith(".") for part in parts) and path not in backing.ROOT_FILES:
        raise Invalid(f"{path[:200]!r} in the archive is hidden; a backup has no such files.", "It is no backup.")
    return path


def _manifest(data: bytes) -> Manifest:
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Damaged("The manifest of the backup cannot be read.", "Use another backup.") from None
    if manifest.format > settings.FORMAT or manifest.backup > backing.VERSION:
        raise Invalid(
            f"The backup has format {manifest.format}.{manifest.backup}; this Holdfast reads up to"
            f" {settings.FORMAT}.{backing.VERSION}.",
            "Upgrade Holdfast; nothing was changed.",
        )
    for path in manifest.files:
        _inside(f"{FILES}/{path}")
    for folder in manifest.folders:
        _inside(f"{FILES}/{folder}")
    return manifest


def _finish(location: str, manifest: Manifest) -> None:
    """Make the folders that have no files, and give every file the time that it had."""
    for folder in manifest.folders:
        os.makedirs(os.path.join(location, folder), exist_ok=True)
    for path, kept in manifest.files.items():
        with contextlib.suppress(OverflowError):
            os.utime(os.path.join(location, path), ns=(kept.mtime, kept.mtime), follow_symlinks=False)


def proved(location: str) -> tuple[int, list[Problem]]:
    """Read what was restored as a memory; return how many records it has and what is damaged in them.

    The index that this makes stays there: it is one of these files, whatever their folder is called.
    """
    from holdfast.core import Core
    from holdfast.roots import open_memory

    with open_memory(location, kind=Core) as memory:
        report = memory.verify()
    if report.differences:
        raise Damaged(f"What was restored does not prove: {report.differences[0]}.", "Nothing was left there.")
    return report.records, report.damage


def _different(path: str) -> HoldfastError:
    return Damaged(f"{path[:200]} is not as the manifest of the backup says.", "Use another backup.")


class _Bounded:
    """The bytes of an archive, of which there may be only so many."""

    def __init__(self, file: BinaryIO, there: str, progress: Progress | None) -> None:
        self._file = file
        self._bytes = gzip.GzipFile(fileobj=file)
        self._size = os.fstat(file.fileno()).st_size
        self._progress = progress
        self._left = min(shutil.disk_usage(there).free, _RATIO * self._size + _ALLOWED)

    def expect(self, size: int) -> None:
        """Refuse a member that is larger than what may still come."""
        if size > self._left:
            raise OverBudget(
                "The archive holds more than the disk has room for, or than an archive of its size can.",
                "Free some space, or use a backup that holdfast made.",
            )

    def read(self, size: int, /) -> bytes:
        data = self._bytes.read(size)
        self.expect(len(data))
        self._left -= len(data)
        if self._progress:
            self._progress(self._file.tell(), self._size)
        return data
