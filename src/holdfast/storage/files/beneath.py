"""Opening files so that nothing outside the root can be reached, whatever links and races there are.

Linux has `openat2` with RESOLVE_BENEATH, which does it in one call. Elsewhere, or where a sandbox forbids the call,
the path is walked one component at a time with O_NOFOLLOW. Writes never follow a link. Reads follow a link whose
target stays inside the root.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import stat
import sys
import threading

_OPENAT2 = 437
_NO_MAGIC, _NO_LINKS, _BENEATH = 0x02, 0x04, 0x08
_MAX_LINKS = 40
_MOST_FOLDERS = 64
_LOOK = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | os.O_NOFOLLOW


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class Beneath:
    """One root folder, held open. `native=False` walks by components even where openat2 exists."""

    def __init__(self, root: str, *, native: bool = True) -> None:
        self.root = os.path.realpath(root)
        self._folders: dict[str, int] = {}
        self._lock = threading.Lock()
        self._fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._syscall = _libc().syscall if native and sys.platform == "linux" else None
        if self._syscall:
            try:
                os.close(self._native(".", os.O_RDONLY | os.O_DIRECTORY, 0, _BENEATH))
            except OSError:
                self._syscall = None

    def close(self) -> None:
        with self._lock:
            held = [*self._folders.values(), self._fd] if self._fd >= 0 else []
            self._folders.clear()
            self._fd = -1
        for fd in held:
            os.close(fd)

    def removed(self) -> bool:
        """Was the root removed? A renamed one goes on working."""
        return self._fd >= 0 and os.fstat(self._fd).st_nlink == 0

    def open_again(self, path: str, flags: int) -> int:
        """Open a file through its folder, which stays open for the next time.

        The folder may have been moved since: the caller must check with `names` that the path still names the file, and
        `forget` the folder if it does not.
        """
        folder, _, name = path.rpartition("/")
        with self._lock:
            fd = self._folders.get(folder)
            if fd is None:
                if len(self._folders) >= _MOST_FOLDERS:
                    return self.open(path, flags)
                fd = self._folders[folder] = self.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
            return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)

    def names(self, path: str, held: os.stat_result) -> bool:
        """Does the path still name this open file? No link is followed, neither at its end nor on the way."""
        try:
            if self._syscall:
                fd = self._native(path, _LOOK | os.O_CLOEXEC, 0, _BENEATH | _NO_MAGIC | _NO_LINKS)
            else:
                fd = self._walk(path, _LOOK | os.O_CLOEXEC, 0, follow=False)
        except FileNotFoundError:
            return False
        try:
            found = os.fstat(fd)
        finally:
            os.close(fd)
        return found.st_ino == held.st_ino and found.st_dev == held.st_dev

    def forget(self, path: str) -> None:
        with self._lock:
            fd = self._folders.pop(path.rpartition("/")[0], None)
            if fd is not None:
                os.close(fd)

    def open(self, path: str, flags: int, mode: int = 0o644, *, follow: bool = False) -> int:
        """Open a relative path; ELOOP or EXDEV for a link that must not be followed or leads out."""
        flags |= os.O_CLOEXEC
        if not self._syscall:
            return self._walk(path, flags, mode, follow)
        try:
            return self._native(path, flags, mode, _BENEATH | _NO_MAGIC | (0 if follow else _NO_LINKS))
        except OSError as error:
            if follow and error.errno == errno.EXDEV:
                return self._walk(path, flags, mode, follow)  # an absolute link may still end inside
            raise

    def _native(self, path: str, flags: int, mode: int, resolve: int) -> int:
        assert self._syscall is not None
        how = _How(flags, mode if flags & os.O_CREAT else 0, resolve)
        for _ in range(100):
            fd: int = self._syscall(
                _OPENAT2, self._fd, os.fsencode(path), ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))
            )
            if fd >= 0:
                return fd
            number = ctypes.get_errno()
            if number not in (errno.EAGAIN, errno.EINTR):
                break
        raise OSError(number, os.strerror(number), path)

    def _walk(self, path: str, flags: int, mode: int, follow: bool) -> int:
        """Open component by component, keeping the folders passed so that `..` in a link is safe."""
        left = [part for part in path.split("/") if part not in ("", ".")]
        held = [os.dup(self._fd)]
        links = 0
        try:
            while left:
                part = left.pop(0)
                if part == "..":
                    if len(held) == 1:
                        raise OSError(errno.EXDEV, "leads out of the root", path)
                    os.close(held.pop())
                    continue
                wanted = (
                    flags | os.O_NOFOLLOW if not left else os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                )
                try:
                    held.append(os.open(part, wanted, mode, dir_fd=held[-1]))
                    continue
                except OSError as error:
                    if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
                        raise
                    try:
                        found = os.stat(part, dir_fd=held[-1], follow_symlinks=False)
                    except OSError:
                        raise error from None
                    if not stat.S_ISLNK(found.st_mode):
                        raise
                links += 1
                if not follow or links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, "is a symbolic link", path)
                target = os.readlink(part, dir_fd=held[-1])
                if target.startswith("/"):
                    inside = self._inside(target)
                    if inside is None:
                        raise OSError(errno.EXDEV, "leads out of the root", path)
                    for fd in held[1:]:
                        os.close(fd)
                    del held[1:]
                    target = inside
                left = [piece for piece in target.split("/") if piece not in ("", ".")] + left
            if len(held) == 1:
                held.append(os.open(".", flags & ~os.O_CREAT, dir_fd=held[0]))
            return held.pop()
        finally:
            for fd in held:
                os.close(fd)

    def _inside(self, target: str) -> str | None:
        """Return an absolute path relative to the root, None when it is outside."""
        for form in (target, real(target)):
            if (os.path.normpath(form) + "/").startswith(self.root + "/"):
                return os.path.relpath(form, self.root)
        return None


def real(path: str) -> str:
    """Return the real path; "" when it cannot be resolved."""
    try:
        return os.path.realpath(path)
    except OSError:
        return ""


def rename_new(source: str, target: str, here: int, there: int | None = None) -> None:
    """Rename without ever replacing; FileExistsError when the new name is taken."""
    there = here if there is None else there
    renameat2 = getattr(_libc(), "renameat2", None)
    if renameat2 and not renameat2(here, os.fsencode(source), there, os.fsencode(target), ctypes.c_uint(1)):
        return
    number = ctypes.get_errno() if renameat2 else errno.ENOSYS
    if number not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(number, os.strerror(number), target)
    os.link(source, target, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)
    os.unlink(source, dir_fd=here)


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
