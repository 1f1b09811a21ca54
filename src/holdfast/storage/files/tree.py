"""The file engine: a folder of plain files is the memory.

Append: lock the log, seal a torn tail, write whole lines, unlock, fdatasync, then acknowledge. The sync comes
after the lock is released so that writers waiting together are made durable together; nobody is told "saved"
before a sync that covers his own bytes (docs/decisions/002).

Replace: write and fsync a temporary file in the same folder, lock the folder, compare the version, rename,
fsync the folder. Create: write and fsync a file without a name, link it, which never replaces, fsync the folder.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from holdfast.errors import (
    AlreadyExists,
    Busy,
    Conflict,
    HoldfastError,
    Invalid,
    NotFound,
    OverBudget,
    Unavailable,
)
from holdfast.model.names import check_path
from holdfast.model.records import version_of
from holdfast.storage.files import beneath, lines, locks, whole
from holdfast.storage.files import descriptors as raw
from holdfast.storage.tree import ABSENT, Appended, Document, Line, LogEnd, RootGone, Snapshot, Stamp

_CHUNK = 1 << 20
_REOPENINGS = 100
_LEADS_OUT = "a link that leads out of the root is not followed"


class Files:
    """A vault in the folder `root`, which must exist."""

    def __init__(
        self, root: str, *, lock_seconds: float = 10.0, line_bytes: int = 8 << 20, native: bool = True
    ) -> None:
        try:
            self._beneath = beneath.Beneath(root, native=native)
        except OSError as error:
            raise raw.unavailable(error, root) from None
        self.location = self._beneath.root
        self._lock_seconds = lock_seconds
        self._line_bytes = line_bytes

    exact = False
    """A file can be changed twice within one tick of the clock that stamps it."""

    def close(self) -> None:
        self._beneath.close()

    # documents

    def read(self, path: str, limit: int = 0) -> Document:
        with self._opened(path) as fd:
            stamp = raw.stamp(os.fstat(fd))
            if limit and stamp.size > limit:
                raise OverBudget(
                    f"{path} has {stamp.size:,} bytes; the limit is {limit:,}.",
                    "Split it, or raise limits.document_bytes.",
                )
            data = raw.read_all(fd)
            return Document(data, version_of(data), stamp)

    def write(self, path: str, data: bytes, *, expect: str, keep: str = "") -> str:
        parts = check_path(path)
        try:
            folder = self._folder(parts[:-1])
            try:
                if expect == ABSENT:
                    self._create(folder, path, data)
                else:
                    self._replace(folder, path, data, expect, keep)
            finally:
                os.close(folder)
        except FileExistsError:
            raise raw.exists(path) from None
        except NotADirectoryError:
            raise Invalid(f"A folder of {path} is a file.", "Move that file away.") from None
        except OSError as error:
            raise raw.unavailable(error, path) from None
        return version_of(data)

    def create(self, path: str, chunks: Iterable[bytes], *, mtime: int = 0, durable: bool = True) -> None:
        parts = check_path(path)
        try:
            folder = self._folder(parts[:-1])
            try:
                self._create(folder, path, chunks, mtime, durable=durable)
            finally:
                os.close(folder)
        except FileExistsError:
            raise raw.exists(path) from None
        except OSError as error:
            raise raw.unavailable(error, path) from None

    def settle(self) -> None:
        try:
            beneath.sync_all(self.location)
        except OSError as error:
            raise raw.unavailable(error, self.location) from None

    def versions(self, paths: Sequence[str]) -> dict[str, str]:
        found = {}
        for path in paths:
            with contextlib.suppress(NotFound):
                found[path] = self.read(path).version
        return found

    def create_all(self, files: Mapping[str, bytes]) -> set[str]:
        made = set()
        for path, data in files.items():
            with contextlib.suppress(AlreadyExists):
                self.write(path, data, expect=ABSENT)
                made.add(path)
        return made

    def _create(
        self, folder: int, path: str, data: bytes | Iterable[bytes], mtime: int = 0, *, durable: bool = True
    ) -> None:
        name = path.rpartition("/")[2]
        if not raw.link_new(folder, name, data, mtime, durable=durable):
            with raw.temporary(folder, data, mtime=mtime) as temporary:
                beneath.rename_new(temporary, name, folder)
        try:
            if durable:
                os.fsync(folder)
        except OSError as error:
            raise Unavailable(
                f"{path} may or may not be saved: {error.strerror}.", "Look whether it is there before you try again."
            ) from None

    def _replace(self, folder: int, path: str, data: bytes, expect: str, keep: str) -> None:
        name = path.rpartition("/")[2]
        mode = self._compare(folder, path, expect)  # the cheap look first: a stale write costs no disk work
        with raw.temporary(folder, data, mode) as temporary:
            locks.hold(folder, self._lock_seconds, path)
            try:
                self._compare(folder, path, expect)
                if keep:
                    self._keep(folder, name, keep)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
            finally:
                locks.release(folder)

    def _keep(self, folder: int, name: str, keep: str) -> None:
        """Give the bytes that are about to be replaced a second name."""
        there = self._folder(check_path(keep)[:-1])
        try:
            self._link_or_copy(folder, name, there, keep.rpartition("/")[2])
        except FileExistsError:
            pass  # the name is the version: the same bytes are there already
        finally:
            os.close(there)

    def _link_or_copy(self, folder: int, name: str, there: int, kept: str) -> None:
        try:
            os.link(name, kept, src_dir_fd=folder, dst_dir_fd=there, follow_symlinks=False)
            return
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                raise
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            with raw.temporary(there, raw.read_all(fd)) as temporary:  # another file system, or one without hard links
                beneath.rename_new(temporary, kept, there)
        finally:
            os.close(fd)

    def _compare(self, folder: int, path: str, expect: str) -> int:
        """See that a document is of this version; return its permissions."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(path.rpartition("/")[2], flags, dir_fd=folder)
        except FileNotFoundError:
            raise Conflict(f"{path} is no longer there; nothing was written.", "Read again, then decide.") from None
        try:
            if version_of(raw.read_all(fd)) != expect:
                raise Conflict(
                    f"{path} was changed since version {expect[:8]}; nothing was written.",
                    "Read it again and redo the edit.",
                )
            return stat.S_IMODE(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    # logs

    def append(
        self,
        path: str,
        compose: Callable[[LogEnd], bytes],
        *,
        durable: bool = True,
        again: bool = False,  # noqa: ARG002  # it is composed once here: a lock costs less than a look
    ) -> Appended | None:
        try:
            fd, size = self._held_log(path)
        except OSError as error:
            raise raw.unavailable(error, path) from None
        held = True
        try:
            done = self._append_held(fd, size, compose)
            locks.release(fd)
            held = False
            if done and durable:
                self._sync(fd, path, done)
            return done
        except OSError as error:
            raise raw.unavailable(error, path) from None
        finally:
            raw.let_go(fd) if held else os.close(fd)

    def _held_log(self, path: str) -> tuple[int, int]:
        """Open and lock the file that the path names now, not one that was renamed away meanwhile."""
        parts = check_path(path)
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW
        for _ in range(_REOPENINGS):
            try:
                fd = self._beneath.open_again(path, flags)
            except FileNotFoundError:
                os.close(self._folder(parts[:-1]))
                fd = self._beneath.open(path, flags | os.O_CREAT)
            try:
                locks.hold(fd, self._lock_seconds, path)
                now = os.fstat(fd)
                if not stat.S_ISREG(now.st_mode):
                    raise Invalid(f"{path} is not a file.", "Move it away; a log belongs there.")
                if now.st_nlink > 1:
                    raise Invalid(
                        f"{path} has a second name (a hard link), perhaps outside the root; nothing was written.",
                        "Copy the log, and put the copy in its place.",
                    )
                if self._named(path, now):
                    if not now.st_size:
                        self._sync_folder(parts[:-1])  # the name is durable before the first line is
                    return fd, now.st_size
                self._beneath.forget(path)
            except BaseException:
                raw.let_go(fd)
                raise
            raw.let_go(fd)
        raise Busy(f"{path} is replaced by others all the time; nothing was written.", "Try again.")

    def _named(self, path: str, held: os.stat_result) -> bool:
        try:
            found = self._beneath.stat(path)
        except FileNotFoundError:
            return False
        return found.st_ino == held.st_ino and found.st_dev == held.st_dev

    def _append_held(self, fd: int, size: int, compose: Callable[[LogEnd], bytes]) -> Appended | None:
        end = lines.HeldEnd(raw.reader(fd), size, self._line_bytes)
        data = compose(end)
        if not data:
            return None
        if end.torn():
            data = b"\n" + data
        try:
            raw.write_all(fd, data)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, size)
            raise
        return Appended(size, size + len(data))

    def _sync(self, fd: int, path: str, done: Appended) -> None:
        """Make the lines durable, or take them back if nobody has written behind them."""
        try:
            raw.flush(fd)
        except OSError:
            with contextlib.suppress(OSError, HoldfastError):
                locks.hold(fd, self._lock_seconds, path)
                if os.fstat(fd).st_size == done.end:
                    os.ftruncate(fd, done.start)
            raise

    def rewrite(self, path: str, change: Callable[[bytes], bytes]) -> int:
        """Copy the log without holding it, then hold it, copy what came meanwhile, and give the copy its name."""
        parts = check_path(path)
        try:
            for _ in range(_REOPENINGS):
                with contextlib.ExitStack() as held:
                    folder = self._beneath.open("/".join(parts[:-1]) or ".", os.O_RDONLY | os.O_DIRECTORY)
                    held.callback(os.close, folder)
                    fd = self._beneath.open(path, os.O_RDWR | os.O_NOFOLLOW)
                    held.callback(raw.let_go, fd)
                    done = self._rewrite_open(folder, fd, path, change)
                    if done is not None:
                        return done
        except OSError as error:
            raise raw.unavailable(error, path) from None
        raise Busy(f"{path} is replaced by others all the time; nothing was written.", "Try again.")

    def _rewrite_open(self, folder: int, fd: int, path: str, change: Callable[[bytes], bytes]) -> int | None:
        """Put a changed copy in the place of an open log; None when it is another one by now."""
        with raw.temporary(folder, b"", stat.S_IMODE(os.fstat(fd).st_mode)) as name:
            target = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                copy = whole.Copy(fd, target, change, self._line_bytes)
                copy.up_to(whole.whole_lines(fd))
                raw.flush(target)
                locks.hold(fd, self._lock_seconds, path)
                usable = self._named(path, os.fstat(fd)) and copy.unchanged()
                if usable:
                    copy.up_to(os.fstat(fd).st_size)
                if usable and copy.changed:
                    raw.flush(target)
                    os.rename(name, path.rpartition("/")[2], src_dir_fd=folder, dst_dir_fd=folder)
                    os.fsync(folder)
                    return copy.changed
            finally:
                os.close(target)
            os.unlink(name, dir_fd=folder)
            return 0 if usable else None

    @contextlib.contextmanager
    def snapshot(self, path: str, *, log: bool = False) -> Iterator[Snapshot]:
        with self._opened(path) as fd:
            size = os.fstat(fd).st_size
            if log:
                locks.hold(fd, self._lock_seconds, path)
                try:
                    size = whole.whole_lines(fd)
                finally:
                    locks.release(fd)
            yield Snapshot(size, os.fstat(fd).st_mtime_ns, whole.chunks(fd, size))

    def scan(self, path: str, offset: int = 0, end: int | None = None) -> Iterator[Line]:
        with self._opened(path) as fd:
            yield from lines.forwards(
                raw.reader(fd), offset, os.fstat(fd).st_size if end is None else end, self._line_bytes
            )

    def scan_back(self, path: str) -> Iterator[Line]:
        with self._opened(path) as fd:
            yield from lines.backwards(raw.reader(fd), os.fstat(fd).st_size, self._line_bytes)

    def fingerprint(self, path: str, start: int, end: int, checksum: int = 0) -> int:
        with self._opened(path) as fd:
            position = start
            while position < end:
                chunk = os.pread(fd, min(_CHUNK, end - position), position)
                if not chunk:
                    return -1
                checksum = zlib.crc32(chunk, checksum)
                position += len(chunk)
            return checksum

    # the tree

    def stat(self, path: str) -> Stamp | None:
        try:
            with self._opened(path) as fd:
                return raw.stamp(os.fstat(fd))
        except NotFound:
            return None

    def walk(
        self,
        folder: str,
        suffixes: tuple[str, ...],
        blocked: Callable[[str, str], None],
        linked: Callable[[str], None] = lambda _path: None,
    ) -> Iterator[tuple[str, Stamp]]:
        check_path(folder)
        top = os.path.join(self.location, folder)
        if not self._inside(top):
            blocked(folder, _LEADS_OUT)
            return
        if not os.path.isdir(top):
            self._check_root(by_name=True)
            try:
                stamp = self.stat(folder)
            except Invalid:
                if not os.path.isdir(top):  # else somebody made the folder at this moment
                    raise
            else:
                if stamp:
                    yield folder, stamp
                return
        waiting = [(top, folder, False)]
        while waiting:
            real, shown, by_link = waiting.pop()
            try:
                with os.scandir(real) as listing:
                    entries = sorted(listing, key=lambda entry: entry.name)
            except OSError as error:
                blocked(shown, f"could not be looked into: {os.strerror(error.errno or 0)}")
                continue
            for entry in entries:
                name, path = entry.name, f"{shown}/{entry.name}"
                if name.startswith("."):
                    continue
                try:
                    name.encode("utf-8")
                    link = entry.is_symlink()
                    if link and not self._inside(entry.path):
                        raise OSError(errno.EXDEV, _LEADS_OUT)
                    if entry.is_dir():
                        if link and (by_link or self._above(entry.path, real)):
                            raise OSError(errno.ELOOP, "a link to a folder inside a linked folder, or above itself")
                        if link:
                            linked(path)
                        waiting.append((entry.path, path, by_link or link))
                    elif name.endswith(suffixes):
                        found = entry.stat()
                        if stat.S_ISREG(found.st_mode):
                            if link:
                                linked(path)
                            yield path, raw.stamp(found)
                except UnicodeEncodeError:
                    blocked(path.encode("utf-8", "replace").decode(), "the name is not UTF-8")
                except OSError as error:
                    blocked(path, error.strerror or str(error))

    def _inside(self, path: str) -> bool:
        target = beneath.real(path)
        return target == self.location or target.startswith(self.location + "/")

    def _above(self, link: str, folder: str) -> bool:
        return (beneath.real(folder) + "/").startswith(beneath.real(link) + "/")

    def folders(self, folder: str) -> list[str]:
        check_path(folder)
        top = os.path.join(self.location, folder)
        if not self._inside(top):
            raise Invalid(f"{folder}: {_LEADS_OUT}.", "Use a folder inside the root.")
        try:
            with os.scandir(top) as found:
                return sorted(entry.name for entry in found if self._is_folder(entry))
        except (FileNotFoundError, NotADirectoryError):
            self._check_root(by_name=True)
            return []
        except OSError as error:
            raise raw.unavailable(error, folder) from None

    def _is_folder(self, entry: os.DirEntry[str]) -> bool:
        """Is this a folder that has a name? A link that leads to itself, like one that leads nowhere, is none."""
        try:
            entry.name.encode("utf-8")
            folder = entry.name[0] not in "._" and entry.is_dir()
        except (UnicodeEncodeError, OSError):
            return False
        return folder and (not entry.is_symlink() or self._inside(entry.path))

    def folder_stamp(self, folder: str) -> int:
        check_path(folder)
        try:
            fd = self._beneath.open(folder, os.O_RDONLY | os.O_DIRECTORY, follow=True)
        except FileNotFoundError:
            self._check_root()
            return 0
        except OSError as error:
            raise raw.unavailable(error, folder) from None
        try:
            return os.fstat(fd).st_mtime_ns
        finally:
            os.close(fd)

    def make_folder(self, folder: str) -> None:
        parts = check_path(folder)
        try:
            os.close(self._folder(parts))
        except OSError as error:
            raise raw.unavailable(error, folder) from None

    def hold(self, path: str) -> Callable[[], None] | None:
        parts = check_path(path)
        try:
            for _ in range(_REOPENINGS):
                os.close(self._folder(parts[:-1]))
                fd = self._beneath.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CREAT)
                try:
                    held = locks.claim(fd)
                    if held and self._named(path, os.fstat(fd)):
                        return functools.partial(os.close, fd)
                except BaseException:
                    os.close(fd)
                    raise
                os.close(fd)
                if not held:
                    return None
        except OSError as error:
            raise raw.unavailable(error, path) from None
        raise Busy(f"{path} is removed by others all the time.", "Try again.")

    def link(self, path: str, target: str) -> None:
        parts = check_path(path)
        try:
            folder = self._folder(parts[:-1])
            try:
                os.symlink(target, parts[-1], dir_fd=folder)
                os.fsync(folder)
            finally:
                os.close(folder)
        except FileExistsError:
            raise raw.exists(path) from None
        except OSError as error:
            raise raw.unavailable(error, path) from None

    def target(self, path: str) -> str | None:
        parts = check_path(path)
        try:
            folder = self._beneath.open("/".join(parts[:-1]) or ".", os.O_RDONLY | os.O_DIRECTORY)
            try:
                return os.readlink(parts[-1], dir_fd=folder)
            finally:
                os.close(folder)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):  # no link, or nothing at all
                return None
            raise raw.unavailable(error, path) from None

    def move(self, source: str, target: str) -> None:
        here_parts, there_parts = check_path(source), check_path(target)
        try:
            with contextlib.ExitStack() as held:
                here = self._beneath.open("/".join(here_parts[:-1]) or ".", os.O_RDONLY | os.O_DIRECTORY)
                held.callback(os.close, here)
                os.stat(here_parts[-1], dir_fd=here, follow_symlinks=False)
                there = self._folder(there_parts[:-1])
                held.callback(os.close, there)
                beneath.rename_new(here_parts[-1], there_parts[-1], here, there)
                os.fsync(there)
                os.fsync(here)
        except FileExistsError:
            raise raw.exists(target) from None
        except OSError as error:
            raise raw.unavailable(error, source) from None

    def remove(self, path: str, *, expect: str = "", keep: str = "") -> None:
        parts = check_path(path)
        try:
            folder = self._beneath.open("/".join(parts[:-1]) or ".", os.O_RDONLY | os.O_DIRECTORY)
            try:
                locks.hold(folder, self._lock_seconds, path)
                if expect:
                    self._compare(folder, path, expect)
                if keep:
                    self._keep(folder, parts[-1], keep)
                os.unlink(parts[-1], dir_fd=folder)
                os.fsync(folder)
            finally:
                raw.let_go(folder)
        except OSError as error:
            raise raw.unavailable(error, path) from None

    # opening

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        """Open a regular file for reading, through links that stay inside."""
        check_path(path)
        try:
            fd = self._beneath.open(path, os.O_RDONLY | os.O_NONBLOCK, follow=True)
        except OSError as error:
            self._check_root()
            raise raw.unavailable(error, path) from None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Invalid(f"{path} is not a file.", "Name a regular file.")
            yield fd
        except OSError as error:
            raise raw.unavailable(error, path) from None
        finally:
            os.close(fd)

    def _check_root(self, *, by_name: bool = False) -> None:
        """Tell that the root is gone; what is looked up by name is out of reach also when the root was renamed."""
        if self._beneath.removed() or (by_name and not os.path.isdir(self.location)):
            raise RootGone(
                f"The memory root {self.location} is not there any more.",
                "Check that it is mounted and was not moved, then open it again.",
            )

    def _folder(self, parts: tuple[str, ...]) -> int:
        """Open a folder for writing, making what is missing of it, durably."""
        flags = os.O_RDONLY | os.O_DIRECTORY
        try:
            return self._beneath.open("/".join(parts) or ".", flags)
        except FileNotFoundError:
            self._check_root()
        parent = self._folder(parts[:-1])
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(parts[-1], 0o755, dir_fd=parent)
            os.fsync(parent)
        finally:
            os.close(parent)
        return self._beneath.open("/".join(parts), flags)

    def _sync_folder(self, parts: tuple[str, ...]) -> None:
        fd = self._folder(parts)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
