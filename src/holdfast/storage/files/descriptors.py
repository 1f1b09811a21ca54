"""File descriptors: writing completely, making durable, and turning system errors into ours."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import sys
from collections.abc import Iterable, Iterator

from holdfast.errors import AlreadyExists, Damaged, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.storage.files import locks
from holdfast.storage.tree import Stamp

TEMPORARY = ".holdfast-tmp-"
_CHUNK = 1 << 20


def let_go(fd: int) -> None:
    """Unlock and close: a forked child may keep the file open, and must not keep the lock."""
    with contextlib.suppress(OSError):
        locks.release(fd)
    os.close(fd)


def read_all(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    data = os.read(fd, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    while more := os.read(fd, _CHUNK):
        parts.append(more)
    return b"".join(parts)


def link_new(folder: int, name: str, data: bytes | Iterable[bytes], mtime: int = 0, *, durable: bool = True) -> bool:
    """Write a file that has no name until it is durable; False where the system cannot do that.

    It leaves nothing behind when the process dies, and changes the folder once instead of twice.
    """
    if not os.path.isdir("/proc/self/fd"):
        return False
    try:
        fd = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o644, dir_fd=folder)
    except (OSError, AttributeError) as error:
        if isinstance(error, AttributeError) or error.errno in (
            errno.EOPNOTSUPP,
            errno.EISDIR,
            errno.EINVAL,
            errno.ENOENT,
        ):
            return False
        raise
    try:
        write_pieces(fd, data, mtime, durable=durable)
        os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(fd)
    return True


@contextlib.contextmanager
def temporary(folder: int, data: bytes | Iterable[bytes], mode: int = 0o644, mtime: int = 0) -> Iterator[str]:
    """Write a durable file under a temporary name; on an error it is removed."""
    name = TEMPORARY + secrets.token_hex(8)
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
    try:
        try:
            os.fchmod(fd, mode)
            write_pieces(fd, data, mtime)
        finally:
            os.close(fd)
        yield name
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise


def write_pieces(fd: int, data: bytes | Iterable[bytes], mtime: int = 0, *, durable: bool = True) -> None:
    """Write all pieces, set the modification time if given, and make them durable unless that can wait."""
    for piece in (data,) if isinstance(data, bytes) else data:
        write_all(fd, piece)
    if mtime:
        os.utime(fd, ns=(mtime, mtime))
    if durable:
        flush(fd)


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


def exists(path: str) -> AlreadyExists:
    return AlreadyExists(f"{path} already exists; nothing was written.", "Choose another name, or change that one.")


def unavailable(error: OSError, path: str) -> HoldfastError:
    """Turn a system error into one of ours."""
    number = error.errno or 0
    if number in (errno.ENOENT, errno.ENOTDIR):
        return NotFound(f"{path} is not there.", "Check the path.")
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
        return Damaged(f"{path}: the disk reported an error.", "Check the disk; what was saved before is untouched.")
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Unavailable(f"{path}: {os.strerror(number)}.", "Check the owner and permissions of the memory root.")
    return Unavailable(f"{path}: {os.strerror(number) if number else error}.", "Nothing was acknowledged; try again.")
