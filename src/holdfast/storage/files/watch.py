"""Which files of a root changed, for long-lived processes, as inotify of Linux reports it.

The kernel queues an event before the call that changed a file returns. A question that first reads the queue therefore
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
from typing import Any

from holdfast.storage.files.refresh import SUFFIXES

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
            except OSError:  # stopped, too many watches, or another file system
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
