"""Changed files of a root, for long-lived processes, as Linux inotify reports them, and the changes in them.

The kernel queues an event before the call that changed a file returns. A query that first reads the queue therefore
misses no finished change. If the queue overflows, every file must be checked. Where changes can be made without an
event (by other machines, or outside of a container), and on other systems, `alive` is False.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, NotFound
from holdfast.model.kinds import KINDS, Place
from holdfast.storage import parsing
from holdfast.storage.files.index import SqliteIndex
from holdfast.storage.files.refresh import SUFFIXES, Refresher
from holdfast.storage.results import Refreshed
from holdfast.storage.store import Event
from holdfast.storage.tree import Stamp

_TICK = 0.05  # seconds between two reads of the queue of events

_ALL = 0x01000FCE
"""Of folders only: modified, attributes, closed after writing, moved, created, removed; the folder itself too."""
_OPEN, _OVERFLOW, _IGNORED, _ISDIR = 0x20, 0x4000, 0x8000, 0x40000000
_LOCAL = frozenset((
    0xEF53, 0x58465342, 0x9123683E, 0x2FC12FC1, 0xF2F52010, 0xCA451A4E, 0x01021994, 0x858458F6, 0x794C7630,
    0x4D44, 0x2011BAB0, 0x7366746E, 0x3153464A, 0x52654973, 0x24051905,
))  # fmt: skip
"""The file systems that only this kernel changes: ext2 to ext4, XFS, Btrfs, ZFS, F2FS, bcachefs, tmpfs, ramfs, overlay,
FAT, exFAT, NTFS, JFS, ReiserFS, UBIFS. On others (NFS, SMB, 9p, virtiofs, FUSE, …) events may be missing."""


class Watcher:
    """The changes below some folders of a root; `alive` turns False when they are not reported any more."""

    def __init__(self, root: str, folders: tuple[str, ...]) -> None:
        for folder in folders:
            os.makedirs(os.path.join(root, folder), exist_ok=True)
        self._root, self._tops, self._pid, self._stat = root, folders, os.getpid(), os.stat(root)
        self._folders: dict[int, str] = {}
        """The watched folders by the number of their watch."""
        self._lock = threading.Lock()
        self._fd = -1
        self._libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._fd = self._call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
            probe = self._call("inotify_add_watch", self._fd, os.fsencode(root), _OPEN)
            os.close(os.open(root, os.O_RDONLY))
            if not self._queued():
                raise OSError(errno.ENOTSUP, "no event came for opening the root")
            self._call("inotify_rm_watch", self._fd, probe)
            for folder in folders:
                self._add(folder)
        except (OSError, AttributeError):  # AttributeError: not Linux
            self._close()

    @property
    def alive(self) -> bool:
        return self._fd >= 0 and self._pid == os.getpid()

    def stop(self) -> None:
        with self._lock:
            self._close()

    def changes(self) -> tuple[list[str], set[str]]:
        """Return the files that changed since the last call, and the folders below which every file must be checked.

        The folder "" means all of them.
        """
        files: dict[str, None] = {}
        folders: set[str] = set()
        with self._lock:
            try:
                if not os.path.samestat(self._stat, os.stat(self._root)):
                    raise OSError(errno.ESTALE, "another folder has the name of the root")
                for watch, mask, name in self._queued():
                    self._note(watch, mask, name, files, folders)
            except (OSError, ValueError):  # too many watches, or another file system; ValueError: stopped
                folders.add("")
                self._close()
        return list(files), folders

    def _note(self, watch: int, mask: int, name: str, files: dict[str, None], folders: set[str]) -> None:
        folder = self._folders.pop(watch, "") if mask & _IGNORED else self._folders.get(watch, "")
        path = f"{folder}/{name}"
        if mask & _OVERFLOW:
            for top in self._tops:
                self._add(top)
            folders.add("")
        elif not folder or name.startswith("."):
            pass
        elif not name:
            folders.add(folder)
        elif mask & _ISDIR:
            self._add(path)
            folders.add(path)
        elif name.endswith(SUFFIXES):
            files[path] = None
        elif os.path.islink(os.path.join(self._root, path)):
            folders.add(path)

    def _add(self, folder: str) -> None:
        """Watch a folder and all folders in it; one that is gone again or unreadable is left out."""
        waiting, about = [folder], ctypes.create_string_buffer(512)
        while waiting:
            shown = waiting.pop()
            real = os.path.join(self._root, shown)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                self._call("statfs", os.fsencode(real), about)
                if ctypes.c_ulong.from_buffer(about).value not in _LOCAL:
                    raise OSError(errno.ENOTSUP, "changes of this file system may not be reported", real)
                # watched before it is listed: a folder that is made in between is reported
                self._folders[self._call("inotify_add_watch", self._fd, os.fsencode(real), _ALL)] = shown
                with os.scandir(real) as listing:
                    inner = [entry.name for entry in listing if entry.is_dir(follow_symlinks=False)]
                waiting += [f"{shown}/{name}" for name in inner if not name.startswith(".")]

    def _queued(self) -> list[tuple[int, int, str]]:
        """Read the events that are queued now: watch, mask and name."""
        size = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)))[0]
        data = os.read(self._fd, size) if size else b""
        found, at = [], 0
        while at < len(data):
            watch, mask, _, length = struct.unpack_from("iIII", data, at)
            found.append((watch, mask, data[at + 16 : at + 16 + length].rstrip(b"\0").decode("utf-8", "replace")))
            at += 16 + length
        return found

    def _call(self, name: str, *given: Any) -> int:
        result = int(getattr(self._libc, name)(*given))
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
        return result

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Reported(msgspec.Struct):
    """The reported events of a file."""

    stamp: Stamp
    offset: int = 0
    """Of a log: everything before it was reported."""
    records: dict[str, tuple[str, bool]] = {}
    """Of a page: the version of each record, and whether it is hidden."""


class FileFeed:
    """The changes of the files in `folder`. Without a folder, files are checked instead of watched.

    The system reports which files changed. Reading them shows the changes: the new entries of a log, the sections of
    a page that differ from before. The starting point comes from the index. Two quick changes of one document may be
    reported as one.
    """

    def __init__(self, folder: str, refresher: Refresher, refresh: Callable[[], Refreshed], index: SqliteIndex) -> None:
        self._tree, self._layout, self._refresher = refresher.tree, refresher.layout, refresher
        self._known: dict[str, _Reported] = {}
        self._closed = threading.Event()
        self._watcher = Watcher(folder, self._layout.roots) if folder else None
        try:
            refresh()
            for path, file in index.seen(self._layout.roots).items():
                pages = index.records(path) if file.kind and KINDS[file.kind].shape != "line" else []
                records = {record.id: (record.version, record.hidden) for record in pages}
                self._known[path] = _Reported(file.stamp, file.offset, records)
        except BaseException:
            self.close()
            raise

    def events(self, timeout: float) -> list[Event]:
        watcher = self._watcher if self._watcher and self._watcher.alive else None
        # where the system reports nothing, every file is checked
        paths, folders, until = list[str](), set[str]() if watcher else {""}, time.monotonic() + timeout
        while not self._closed.wait(_TICK if watcher else timeout) and time.monotonic() < until and watcher:
            paths, folders = watcher.changes()
            if paths or folders:
                break
        if self._closed.is_set():
            return []
        every = dict.fromkeys(paths)
        if folders:  # "" is the whole memory
            tops = () if "" in folders else tuple(folders)
            there = self._refresher.walk(Refreshed(), tops)
            known = [path for path in self._known if not tops or path.startswith(tuple(f"{one}/" for one in tops))]
            every |= dict.fromkeys(
                path for path, now in there.items() if path not in self._known or self._known[path].stamp != now
            )
            every |= dict.fromkeys(path for path in known if path not in there and path not in tops)
        return [event for path in every for event in self._in_file(path)]

    def close(self) -> None:
        self._closed.set()
        if self._watcher:
            self._watcher.stop()

    def _in_file(self, path: str) -> Iterator[Event]:
        """Yield the changes of a file since it was last read."""
        place = self._layout.classify(path)
        if place is None:
            return
        try:
            stamp = self._tree.stat(path)
            if stamp is None:
                if self._known.pop(path, None):
                    yield Event.at("removed", place)
            elif place.kind.shape != "line":
                yield from self._in_page(place)
            elif (known := self._known.get(path)) and (known.stamp.inode != stamp.inode or stamp.size < known.offset):
                self._known[path] = _Reported(stamp, stamp.size)  # rewritten: which lines are new is unknown
                yield Event.at("changed", place)
            else:
                offset = known.offset if known else 0
                found = [line for line in self._tree.scan(path, offset, stamp.size) if line.whole]
                facts = parsing.lines(place, found, 1, self._refresher.blob)
                self._known[path] = _Reported(stamp, found[-1].end if found else offset)
                for record in facts.records:
                    yield Event.of("hidden" if record.hidden else "added", record)
                for mark in facts.marks:
                    yield Event.at("hidden" if mark.hidden else "restored", place, mark.target)
        except NotFound:  # removed since; that is reported too
            return
        except HoldfastError:
            yield Event.at("changed", place)  # unreadable, but changed

    def _in_page(self, place: Place) -> Iterator[Event]:
        document = self._tree.read(place.path)
        facts = parsing.page(place, document)
        before = known.records if (known := self._known.get(place.path)) else {}
        now = {record.id: (record.version, record.hidden) for record in facts.records}
        self._known[place.path] = _Reported(document.stamp, records=now)
        for record in facts.records:
            version, hidden = before.get(record.id, ("", False))
            if version and hidden != record.hidden:
                yield Event.of("hidden" if record.hidden else "restored", record)
            elif (version, hidden) != now[record.id]:
                yield Event.of("changed" if version else "added", record)
        for gone in before.keys() - now.keys():
            yield Event.at("removed", place, gone)
