"""File descriptors: opening nothing outside the root, locking with a bounded wait, writing completely and durably.

Linux has `openat2` with RESOLVE_BENEATH, which confines a path in one call. Elsewhere, or where a sandbox forbids the
call, links are resolved first, and then the path is opened one component at a time with O_NOFOLLOW. Writes never follow
a link; reads follow a link whose target stays inside the root.

`flock` belongs to the open file: the kernel drops it when the process dies, so no lock outlives its holder and there
are no lock files to clean up. A log is locked for microseconds, so a waiter first yields a few times, and only then
sleeps, longer and longer.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import io
import os
import signal
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator

from holdfast.errors import Busy, Damaged, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.storage.tree import Stamp

_OPENAT2 = 437
_NO_MAGIC, _NO_LINKS, _BENEATH = 0x02, 0x04, 0x08
_YIELDS = 100
_yield = getattr(os, "sched_yield", lambda: time.sleep(0))
TEMPORARY = ".holdfast-tmp-"
LEADS_OUT = "a link that leads out of the root is not followed"


class Beneath:
    """One open root folder. `native=False` walks by components even where openat2 exists."""

    def __init__(self, root: str, *, native: bool = True) -> None:
        self.root = os.path.realpath(root)
        self._fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        opened = os.fstat(self._fd)
        self._identity = opened.st_ino, opened.st_dev
        self._syscall = _libc().syscall if native and sys.platform == "linux" else None
        if self._syscall:
            try:
                os.close(self._native(".", os.O_RDONLY | os.O_DIRECTORY, 0, _BENEATH))
            except OSError:
                self._syscall = None

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def removed(self) -> bool:
        """Was the root removed? A renamed one still works."""
        return self._fd >= 0 and os.fstat(self._fd).st_nlink == 0

    def replaced(self) -> bool | None:
        """Does the path of the root name another folder now? None if it does not exist."""
        try:
            now = os.stat(self.root)
        except OSError:
            return None
        return self._fd >= 0 and (now.st_ino, now.st_dev) != self._identity

    def reopen(self) -> int:
        """Open the root folder once more, for a lock of its own."""
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)

    def names(self, path: str, held: os.stat_result) -> bool:
        """Does the path still name this open file, which was opened without following a link?"""
        try:
            return os.path.samestat(os.stat(path, dir_fd=self._fd, follow_symlinks=False), held)
        except FileNotFoundError:
            return False

    def open(self, path: str, flags: int, mode: int = 0o644, *, follow: bool = False) -> int:
        """Open a relative path; ELOOP or EXDEV for a link that must not be followed or leads out."""
        flags |= os.O_CLOEXEC
        if self._syscall:
            try:
                return self._native(path, flags, mode, _BENEATH | _NO_MAGIC | (0 if follow else _NO_LINKS))
            except OSError as error:
                if not follow or error.errno != errno.EXDEV:  # an absolute link may still end inside
                    raise
        if follow:
            target = real(os.path.join(self.root, path))
            if not f"{target}/".startswith(f"{self.root}/"):
                raise OSError(errno.EXDEV, "leads out of the root", path)
            os.stat(path, dir_fd=self._fd)  # refuses links that never end
            path = os.path.relpath(target, self.root)
        fd, parts = os.dup(self._fd), path.split("/")
        for left in reversed(range(len(parts))):  # one component after the other, following no link
            folder, part = fd, parts[-1 - left]
            wanted = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC if left else flags
            try:
                fd = os.open(part, wanted | os.O_NOFOLLOW, mode, dir_fd=folder)
            except NotADirectoryError:
                if stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode):
                    raise OSError(errno.ELOOP, "is a symbolic link", path) from None
                raise
            finally:
                os.close(folder)
        return fd

    def _native(self, path: str, flags: int, mode: int, resolve: int) -> int:
        assert self._syscall is not None
        how = struct.pack("QQQ", flags, mode if flags & os.O_CREAT else 0, resolve)
        for _ in range(100):
            fd: int = self._syscall(_OPENAT2, self._fd, os.fsencode(path), how, ctypes.c_size_t(len(how)))
            if fd >= 0:
                return fd
            number = ctypes.get_errno()
            if number not in (errno.EAGAIN, errno.EINTR):
                break
        raise OSError(number, os.strerror(number), path)

    def contains(self, path: str) -> bool:
        """Does a path lead into the root, also through links?"""
        return f"{real(path)}/".startswith(f"{self.root}/")

    def walk(
        self, folder: str, suffixes: tuple[str, ...], blocked: Callable[[str, str], None],
        linked: Callable[[str], None],
    ) -> Iterator[tuple[str, Stamp]]:  # fmt: skip
        """Yield the files below a folder; report unreadable ones to `blocked`, and every followed link."""
        waiting = [(os.path.join(self.root, folder), folder, False)]
        while waiting:
            top, shown, by_link = waiting.pop()
            try:
                with os.scandir(top) as listing:
                    entries = sorted(listing, key=lambda entry: entry.name)
            except OSError as error:
                blocked(shown, f"could not be read: {os.strerror(error.errno or 0)}")
                continue
            for entry in entries:
                name, path = entry.name, f"{shown}/{entry.name}"
                if name.startswith("."):
                    continue
                try:
                    name.encode("utf-8")
                    link = entry.is_symlink()
                    if link and not self.contains(entry.path):
                        raise OSError(errno.EXDEV, LEADS_OUT)
                    if entry.is_dir():
                        if link and (by_link or f"{real(top)}/".startswith(f"{real(entry.path)}/")):
                            raise OSError(errno.ELOOP, "a link to a folder inside a linked folder, or above itself")
                        if link:
                            linked(path)
                        waiting.append((entry.path, path, by_link or link))
                    elif name.endswith(suffixes):
                        found = entry.stat()
                        if stat.S_ISREG(found.st_mode):
                            if link:
                                linked(path)
                            yield path, stamp(found)
                except UnicodeEncodeError:
                    blocked(path.encode("utf-8", "replace").decode(), "the name is not UTF-8")
                except OSError as error:
                    blocked(path, error.strerror or str(error))


def real(path: str) -> str:
    """Return the real path; "" when it cannot be resolved."""
    try:
        return os.path.realpath(path)
    except OSError:
        return ""


def rename_new(source: str, target: str, here: int, there: int | None = None) -> None:
    """Rename without ever replacing; FileExistsError when the new name is taken."""
    there = here if there is None else there
    if not _renamed(source, target, here, there, 1):
        os.link(source, target, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)
        os.unlink(source, dir_fd=here)


def exchange(one: str, other: str, folder: int) -> bool:
    """Exchange the names of two files atomically; False if the system cannot do that."""
    return _renamed(one, other, folder, folder, 2)


def _renamed(source: str, target: str, here: int, there: int, flag: int) -> bool:
    renameat2 = getattr(_libc(), "renameat2", None)
    if renameat2 and not renameat2(here, os.fsencode(source), there, os.fsencode(target), ctypes.c_uint(flag)):
        return True
    number = ctypes.get_errno() if renameat2 else errno.ENOSYS
    if number not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(number, os.strerror(number), target)
    return False


def sync_all(folder: str) -> None:
    """Sync the file system of a folder; where that is not possible, all file systems."""
    syncfs = getattr(_libc(), "syncfs", None) if sys.platform == "linux" else None
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if syncfs is None:
            os.sync()
        elif syncfs(fd):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), folder)
    finally:
        os.close(fd)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


# locks


def hold(fd: int, seconds: float, what: str, *, shared: bool = False) -> None:
    """Lock an open file or folder; Busy if another process has it locked for too long."""
    deadline, pause, yields = time.monotonic() + seconds, 0.00005, _YIELDS
    while not free(fd, shared=shared):
        if (left := deadline - time.monotonic()) <= 0:
            raise Busy(f"{what} was locked by another process for {seconds:g} s; nothing was written.", "Try again.")
        if yields:
            yields -= 1
            _yield()
        else:
            time.sleep(min(pause * (0.5 + os.urandom(1)[0] / 255), left))
            pause = min(pause * 1.3, 0.002)


def free(fd: int, *, shared: bool = False) -> bool:
    """Take the lock if it is free, without waiting."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def release(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)


def claim(fd: int, name: str, kind: int = fcntl.F_WRLCK) -> bool:
    """Lock the byte of an open file for a name; False when another open file has it locked.

    The lock ends with the open file, or with `fcntl.F_UNLCK`. Systems without such locks report every name as locked.
    """
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return False
    byte = int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:7])
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhxxxxqqixxxx", kind, os.SEEK_SET, byte, 1, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


# writing


def let_go(fd: int) -> None:
    """Unlock and close: a forked child may keep the file open, and must not keep the lock."""
    with contextlib.suppress(OSError):
        release(fd)
    os.close(fd)


def read_all(fd: int) -> bytes:
    return io.FileIO(fd, closefd=False).readall()


def read_at_rest(folder: int, name: str, seconds: float) -> bytes:
    """Read a file once no program has it open for writing; wait at most so many seconds for that.

    Linux grants a read lease only if no process has the file open for writing.
    """
    fd, end = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder), time.monotonic() + seconds
    try:
        with contextlib.suppress(OSError, AttributeError):  # no leases here
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # a signal that is ignored, if the file is opened meanwhile
            while time.monotonic() < end:
                try:
                    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
                    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
                    break
                except BlockingIOError:
                    time.sleep(0.001)
        return read_all(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def temporary(
    folder: int, data: bytes | Iterable[bytes], mode: int = 0o644, mtime: int = 0, *, durable: bool = True
) -> Iterator[str]:
    """Write a file under a temporary name, durably unless that can wait; on an error it is removed."""
    name = TEMPORARY + os.urandom(8).hex()
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
    try:
        try:
            os.fchmod(fd, mode)
            if isinstance(data, bytes):
                write_all(fd, data)
            else:
                with open(fd, "wb", closefd=False) as file:
                    file.writelines(data)
            if mtime:
                os.utime(fd, ns=(mtime, mtime))
            if durable:
                flush(fd)
        finally:
            os.close(fd)
        yield name
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise


def flush(fd: int) -> None:
    """Make written data durable; macOS needs its own call for that."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


def write_all(fd: int, data: bytes) -> None:
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, data[written:])


def stamp(found: os.stat_result) -> Stamp:
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def unavailable(error: OSError, path: str) -> HoldfastError:
    """Turn a system error into one of ours."""
    number = error.errno or 0
    if number in (errno.ENOENT, errno.ENOTDIR):
        return NotFound(f"{path} does not exist.", "Check the path.")
    if number in (errno.ELOOP, errno.EXDEV):
        return Invalid(
            f"{path} is or passes a symbolic link that is not followed here.", "Use the real path, inside the root."
        )
    if number == errno.EISDIR:
        return Invalid(f"{path} is a folder.", "Name a file.")
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return Unavailable(
            f"{path} was not saved: {os.strerror(number)}.", "Free some space and try again; nothing else changed."
        )
    if number == errno.EIO:
        return Damaged(f"{path}: the disk reported an error.", "Check the disk; earlier data is unchanged.")
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Unavailable(f"{path}: {os.strerror(number)}.", "Check the owner and permissions of the memory root.")
    fault = f"{path}: {os.strerror(number) if number else error}."
    return Unavailable(fault, "The operation was not confirmed; try again.")
