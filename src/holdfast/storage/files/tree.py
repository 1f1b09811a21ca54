"""The file engine: a folder of plain files is the memory.

Append: lock the log, seal a torn tail, write whole lines, unlock, fdatasync, check that the path still names this file
with these lines, then acknowledge. The sync comes after the unlock, so that writers waiting together become durable
together (docs/decisions/002). Lines that an outside change removed are appended again from the journal.

Replace: write and fsync a temporary file in the same folder, lock the folder, compare the version, exchange the two
files, compare the replaced one again (other programs do not use our locks), fsync the folder. Create: write and fsync a
temporary file, rename it without replacing, fsync the folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from holdfast.errors import AlreadyExists, Busy, Conflict, HoldfastError, Invalid, NotFound, OverBudget, Unavailable
from holdfast.formats import jsonl
from holdfast.model.names import amount, check_path
from holdfast.model.records import Problem, version_of
from holdfast.storage.files import descriptors as raw
from holdfast.storage.files import log as logs
from holdfast.storage.files.log import UNKNOWN, At, Journal, LogEnd, contains
from holdfast.storage.tree import ABSENT, Document, Line, RootGone, Snapshot, Stamp, changed

_TRIES = 100
_WRITERS_SECONDS = 1.0
_RECOGNISED = 2048
"""The last bytes of a log that was compared; they must stay as they are."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_LOG = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW


class Files:
    """The tree in the folder `root`, which must exist."""

    def __init__(
        self, root: str, *, lock_seconds: float = 10.0, line_bytes: int = 8 << 20, native: bool = True
    ) -> None:
        try:
            self._beneath = raw.Beneath(root, native=native)
        except OSError as error:
            raise raw.unavailable(error, root) from None
        self.location = self._beneath.root
        self._lock_seconds = lock_seconds
        self._line_bytes = line_bytes
        self._journal = Journal()
        self.forgotten: Callable[[], set[str]] = set
        """Returns the ids of forgotten entries, which are never appended again."""
        self.reports: list[Problem] = []
        """Restored entries, for the next search to report."""
        self._claims = -1
        """The open file of claims, at first use."""
        self._claimed: set[str] = set()
        self._claiming = threading.Lock()

    def close(self) -> None:
        for path in self._journal.paths():
            with contextlib.suppress(HoldfastError):
                self.heal(path)
        with self._claiming:
            self._close_claims()
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
        if expect == ABSENT:
            self.create(path, (data,))
            return version_of(data)
        with self._folder_of(path) as (folder, _):
            if keep or "/" not in path or not self._extend(folder, path, data, expect):
                self._replace(folder, path, data, expect, keep)
        return version_of(data)

    def keep_copy(self, path: str, data: bytes, keep: str) -> None:
        """Copy the new text of a document, without syncing it: a later change by hand does not lose this text."""
        with contextlib.suppress(HoldfastError, OSError):
            found = os.stat(os.path.join(self.location, path), follow_symlinks=False)
            self._keep(keep, data, stat.S_IMODE(found.st_mode), durable=False)

    def _replace(self, folder: int, path: str, data: bytes, expect: str, keep: str) -> None:
        name = path.rpartition("/")[2]
        _, mode = self._compare(folder, path, expect)  # a stale write is refused before any disk work
        with raw.temporary(folder, data, mode) as temporary, self._writing(folder, path):
            old, _ = self._compare(folder, path, expect)
            copied = bool(keep) and self._keep(keep, old, mode, durable=False)
            self._journal.drop(path)
            if raw.exchange(temporary, name, folder):  # `temporary` is the replaced file now
                try:
                    late = raw.read_at_rest(folder, temporary, _WRITERS_SECONDS)
                    if not late.startswith(old):  # another program saved a new text after the comparison
                        raise changed(path, expect)
                    if late != old:  # another program added to it
                        self.append(path, lambda _end: late[len(old) :])
                except (HoldfastError, OSError):
                    raw.exchange(temporary, name, folder)
                    raise
                if copied and late == old:  # a program that still has it open writes to a file with a name
                    with contextlib.suppress(HoldfastError), self._folder_of(keep) as (there, kept):
                        os.rename(temporary, kept, src_dir_fd=folder, dst_dir_fd=there)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
            else:
                self.settle()
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)

    def _extend(self, folder: int, path: str, data: bytes, expect: str) -> bool:
        """Append to a document in place, so that a program that appends at the same time loses nothing.

        False when `data` is not this version and more lines, or when the file has a second name or may not be written.
        """
        with self._locked(folder, path):
            old, _ = self._compare(folder, path, expect)
            more = data[len(old) :]
            if not data.startswith(old) or not old.endswith(b"\n"):
                return False
            try:
                self.append(path, lambda _end: more)
            except (Invalid, Unavailable):
                return False
            if more not in self.read(path).data:  # another program put a new file in its place
                raise changed(path, expect)
            return True

    def create(self, path: str, chunks: Iterable[bytes], *, mtime: int = 0, durable: bool = True) -> None:
        with self._folder_of(path) as (folder, name), self._writing():
            with raw.temporary(folder, chunks, mtime=mtime, durable=durable) as temporary:
                raw.rename_new(temporary, name, folder)
            try:
                if durable:
                    os.fsync(folder)
            except OSError as error:
                step = "Check whether it exists before you try again."
                raise Unavailable(f"{path} may or may not be saved: {error.strerror}.", step) from None

    def settle(self) -> None:
        try:
            raw.sync_all(self.location)
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

    def remove(self, path: str, *, expect: str = "", keep: str = "") -> None:
        with self._folder_of(path, make=False) as (folder, name), self._writing(folder, path):
            if expect:
                old, mode = self._compare(folder, path, expect)
                if keep:
                    self._keep(keep, old, mode)
            self._journal.drop(path)
            os.unlink(name, dir_fd=folder)
            os.fsync(folder)

    def _keep(self, keep: str, data: bytes, mode: int, *, durable: bool = True) -> bool:
        """Copy the bytes that are about to be replaced: after a kill, a link would change with the document.

        False when there is another text under this name, which is never replaced. The copy that was made with the
        document may be unfinished.
        """
        with self._folder_of(keep) as (folder, name):
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                try:
                    there = raw.read_all(fd)
                    if there == data and durable:
                        raw.flush(fd)
                finally:
                    os.close(fd)
                if there == data or not data.startswith(there):
                    return there == data
            with raw.temporary(folder, data, mode, durable=durable) as temporary:
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            return True

    def _compare(self, folder: int, path: str, expect: str) -> tuple[bytes, int]:
        """Return the bytes of a document of this version, and its permissions; Conflict when it has another one."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(path.rpartition("/")[2], flags, dir_fd=folder)
        except FileNotFoundError:
            raise Conflict(f"{path} is no longer there; nothing was written.", "Read again, then decide.") from None
        try:
            if version_of(data := raw.read_all(fd)) != expect:
                raise changed(path, expect)
            return data, stat.S_IMODE(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    # logs

    def append(self, path: str, compose: Callable[[LogEnd], bytes], *, durable: bool = True) -> range | None:
        """Append the whole lines that `compose` returns while the log is locked; return where they are."""
        try:
            with self._writing():
                fd, now = self._locked_log(path)
                locked = True
                try:
                    end = self._put_back(fd, path, LogEnd(fd, now, self._line_bytes))
                    size, data = end.size, compose(end)
                    if not data:
                        return None
                    data = b"\n" + data if end.torn else data
                    try:
                        raw.write_all(fd, data)
                    except OSError:
                        with contextlib.suppress(OSError):
                            os.ftruncate(fd, size)
                        raise
                    raw.release(fd)
                    locked = False
                finally:
                    if locked:
                        raw.let_go(fd)
            at = (now.st_ino, size, data)
            try:
                if durable:
                    self._sync(fd, path, size, size + len(data))
                in_place = durable and self._beneath.names(path, now) and os.pread(fd, len(data), size) == data
            finally:
                os.close(fd)
            if durable and not path.rpartition("/")[0].endswith("/runs"):  # the end of a run removes its log
                self._journal.add(path, at)
                if not in_place:
                    self._confirm(path, at)
            return range(size, size + len(data))
        except OSError as error:
            raise raw.unavailable(error, path) from None

    def _confirm(self, path: str, at: At) -> None:
        """Check that a log has the written lines; otherwise write them to the file that has the name now."""
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError):
                fd = self._beneath.open(path, os.O_RDONLY | os.O_NOFOLLOW)
                try:
                    if contains(fd, at):
                        return
                finally:
                    os.close(fd)
            self._journal.place(path, UNKNOWN)
            self.append(path, lambda _end: b"")
            at = self._journal.last(path) or at
        raise Busy(f"{path} keeps being replaced by other programs and may lack the last lines.", "Try again.")

    def _put_back(self, fd: int, path: str, end: LogEnd) -> LogEnd:
        """Append the lines again that an outside change removed from a locked log; return its end."""
        at = self._journal.last(path)
        if at is None or end.contains(at):
            return end
        missing = self._journal.missing(path, {key for line in end.lines(0) for key in jsonl.keys(line)})
        for identifier in self.forgotten() if missing else ():
            missing.pop(identifier, None)
        data = b"\n" * (end.torn and bool(missing)) + b"".join(missing.values())
        raw.write_all(fd, data)
        raw.flush(fd)
        known = (end.tail + data)[-_RECOGNISED:]  # it may be replaced or shortened once more
        now = os.fstat(fd)
        self._journal.place(path, (now.st_ino, now.st_size - len(known), known))
        if missing:
            what = f"{amount(len(missing), 'new entry was', 'new entries were')} removed by another program and"
            self.reports.append(Problem(path, f"{what} appended again; beside a running server use: holdfast git"))
        return LogEnd(fd, now, self._line_bytes)

    def heal(self, path: str) -> None:
        """Restore lines of this process that an outside change removed from a log lately."""
        if (at := self._journal.last(path)) and self.stat(path):
            try:
                self._confirm(path, at)
            except OSError as error:  # a folder on the way became a link
                raise raw.unavailable(error, path) from None

    def _locked_log(self, path: str) -> tuple[int, os.stat_result]:
        """Open and lock the file that the path names now, not one that was renamed away in between."""
        parts = check_path(path)
        for _ in range(_TRIES):
            try:
                fd = self._beneath.open(path, _LOG)
            except FileNotFoundError:
                os.close(self._folder(parts[:-1]))
                fd = self._beneath.open(path, _LOG | os.O_CREAT)
            try:
                raw.hold(fd, self._lock_seconds, path)
                now = os.fstat(fd)
                if not stat.S_ISREG(now.st_mode):
                    raise Invalid(f"{path} is not a file.", "Move it away; this is the place of a log.")
                if now.st_nlink > 1:
                    raise Invalid(
                        f"{path} has a second name (a hard link), perhaps outside the root; nothing was written.",
                        "Copy the log, and put the copy in its place.",
                    )
                if self._beneath.names(path, now):
                    if not now.st_size:  # the name becomes durable before the first line does
                        folder = self._folder(parts[:-1])
                        try:
                            os.fsync(folder)
                        finally:
                            os.close(folder)
                    return fd, now
            except BaseException:
                raw.let_go(fd)
                raise
            raw.let_go(fd)
        raise Busy(f"{path} keeps being replaced by other processes; nothing was written.", "Try again.")

    def _sync(self, fd: int, path: str, start: int, end: int) -> None:
        """Make the lines durable; when that fails, remove them unless another process has written after them."""
        try:
            raw.flush(fd)
        except OSError:
            with contextlib.suppress(OSError, HoldfastError), self._locked(fd, path):
                if os.fstat(fd).st_size == end:
                    os.ftruncate(fd, start)
            raise

    def rewrite(self, path: str, change: Callable[[bytes], bytes]) -> int:
        """Copy the locked log and rename the copy over it; when the log is another one by then, copy that one."""
        count = 0

        def padded(line: bytes) -> bytes:
            nonlocal count
            made = change(line)
            count += made != line
            return made.ljust(len(line))  # offsets stay valid

        with self._folder_of(path, make=False) as (folder, name), self._writing():
            for _ in range(_TRIES):
                count, fd = 0, self._beneath.open(path, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    raw.hold(fd, self._lock_seconds, path)
                    before = os.fstat(fd)
                    pieces = logs.copied(fd, before.st_size, self._line_bytes, padded)
                    with raw.temporary(folder, pieces, stat.S_IMODE(before.st_mode)) as temporary:
                        now = os.fstat(fd)  # other programs do not use our locks
                        same = raw.stamp(now) == raw.stamp(before) and self._beneath.names(path, now)
                        if same and count:
                            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                            os.fsync(folder)
                        else:
                            os.unlink(temporary, dir_fd=folder)
                finally:
                    raw.let_go(fd)
                if same:
                    return count
        raise Busy(f"{path} keeps being replaced by other processes; nothing was written.", "Try again.")

    @contextlib.contextmanager
    def snapshot(self, path: str, *, log: bool = False) -> Iterator[Snapshot]:
        with self._opened(path) as fd:
            size = os.fstat(fd).st_size
            if log:
                with self._locked(fd, path):
                    size = os.fstat(fd).st_size
                    last = next(logs.backwards(fd, size, self._line_bytes), None)
                    # an editor may leave a whole entry that lacks only its newline
                    if last and not last.whole and (last.cut or isinstance(jsonl.parse(last.data), str)):
                        size = last.offset
            yield Snapshot(size, os.fstat(fd).st_mtime_ns, logs.chunks(fd, size))

    def scan(self, path: str, offset: int = 0, end: int | None = None) -> Iterator[Line]:
        """Yield the lines of a log between two offsets, in order."""
        with self._opened(path) as fd:
            last = os.fstat(fd).st_size if end is None else end
            yield from logs.forwards(fd, offset, last, self._line_bytes)

    def scan_back(self, path: str) -> Iterator[Line]:
        with self._opened(path) as fd:
            yield from logs.backwards(fd, os.fstat(fd).st_size, self._line_bytes)

    def fingerprint(self, path: str, start: int, end: int, checksum: int = 0) -> int:
        """Continue a checksum over the bytes between two offsets; -1 if some are missing."""
        with self._opened(path) as fd:
            try:
                for chunk in logs.chunks(fd, end - start, start):
                    checksum = zlib.crc32(chunk, checksum)
            except Conflict:
                return -1
            return checksum

    def hold(self, path: str, among: str) -> Callable[[], None] | None:
        """Mark a log as in use until the returned function is called or this process ends; None when it already is.

        The mark is a lock on one byte of the file `among`: one open file is enough for any number of logs. It does not
        prevent writes; it only shows that a run is alive.
        """
        with self._claiming:
            if path in self._claimed:
                return None
            with self._folder_of(among):
                if self._claims < 0 or not self._beneath.names(among, os.fstat(self._claims)):
                    fd = self._beneath.open(among, os.O_RDWR | os.O_NOFOLLOW | os.O_CREAT)
                    for name in self._claimed:  # `among` was removed and is made again
                        raw.claim(fd, name)
                    self._close_claims()
                    self._claims = fd
                if not raw.claim(self._claims, path):
                    return None
            self._claimed.add(path)

        def release() -> None:
            with self._claiming:
                self._claimed.discard(path)
                if self._claims >= 0:
                    raw.claim(self._claims, path, fcntl.F_UNLCK)

        return release

    def _close_claims(self) -> None:
        fd, self._claims = self._claims, -1
        if fd >= 0:
            os.close(fd)

    # the tree

    def stat(self, path: str) -> Stamp | None:
        try:
            with self._opened(path) as fd:
                return raw.stamp(os.fstat(fd))
        except NotFound:
            return None

    def walk(
        self, folder: str, suffixes: tuple[str, ...], blocked: Callable[[str, str], None],
        linked: Callable[[str], None] = lambda _path: None,
    ) -> Iterator[tuple[str, Stamp]]:  # fmt: skip
        check_path(folder)
        self._check_root()
        top = os.path.join(self.location, folder)
        if not self._beneath.contains(top):
            blocked(folder, raw.LEADS_OUT)
            return
        if not os.path.isdir(top):
            self._check_root(by_name=True)
            try:
                stamp = self.stat(folder)
            except Invalid:
                if not os.path.isdir(top):  # else another process made the folder at this moment
                    raise
            else:
                if stamp:
                    yield folder, stamp
                return
        yield from self._beneath.walk(folder, suffixes, blocked, linked)

    def folders(self, folder: str) -> list[str]:
        check_path(folder)
        top = os.path.join(self.location, folder)
        if not self._beneath.contains(top):
            raise Invalid(f"{folder}: {raw.LEADS_OUT}.", "Use a folder inside the root.")
        found = []
        try:
            with os.scandir(top) as listing:
                for entry in listing:
                    with contextlib.suppress(UnicodeEncodeError, OSError):  # an odd name, or a link to itself
                        entry.name.encode("utf-8")
                        if entry.name[0] in "._" or not entry.is_dir():
                            continue
                        if not entry.is_symlink() or self._beneath.contains(entry.path):
                            found.append(entry.name)
        except (FileNotFoundError, NotADirectoryError):
            self._check_root(by_name=True)
            return []
        except OSError as error:
            raise raw.unavailable(error, folder) from None
        return sorted(found)

    def folder_stamp(self, folder: str) -> int:
        try:
            with self._opened(folder, _FOLDER) as fd:
                return os.fstat(fd).st_mtime_ns
        except NotFound:
            return 0

    def make_folder(self, folder: str) -> None:
        with self._folder_of(f"{folder}/any"):
            pass

    def link(self, path: str, target: str) -> None:
        with self._folder_of(path) as (folder, name):
            os.symlink(target, name, dir_fd=folder)
            os.fsync(folder)

    def target(self, path: str) -> str | None:
        parts = check_path(path)
        try:
            folder = self._beneath.open("/".join(parts[:-1]) or ".", _FOLDER)
            try:
                return os.readlink(parts[-1], dir_fd=folder)
            finally:
                os.close(folder)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):  # no link, or nothing at all
                return None
            raise raw.unavailable(error, path) from None

    def move(self, source: str, target: str) -> None:
        with self._folder_of(source, make=False) as (here, name), self._writing():
            os.stat(name, dir_fd=here, follow_symlinks=False)
            with self._folder_of(target) as (there, new):
                raw.rename_new(name, new, here, there)
                os.fsync(there)
            os.fsync(here)

    # opening

    @contextlib.contextmanager
    def _opened(self, path: str, flags: int = os.O_RDONLY | os.O_NONBLOCK) -> Iterator[int]:
        """Open a regular file or a folder for reading, through links that stay inside."""
        check_path(path)
        try:
            fd = self._beneath.open(path, flags, follow=True)
        except OSError as error:
            self._check_root()
            raise raw.unavailable(error, path) from None
        try:
            if flags != _FOLDER and not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Invalid(f"{path} is not a file.", "Name a regular file.")
            yield fd
        except OSError as error:
            raise raw.unavailable(error, path) from None
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _folder_of(self, path: str, *, make: bool = True) -> Iterator[tuple[int, str]]:
        """Open the folder of a file, and give the file's name; system errors inside become ours."""
        parts = check_path(path)
        try:
            folder = self._folder(parts[:-1]) if make else self._beneath.open("/".join(parts[:-1]) or ".", _FOLDER)
            try:
                yield folder, parts[-1]
            finally:
                os.close(folder)
        except FileExistsError:
            step = "Choose another name, or change that one."
            raise AlreadyExists(f"{path} already exists; nothing was written.", step) from None
        except NotADirectoryError as error:
            if not make:
                raise raw.unavailable(error, path) from None
            raise Invalid(f"A folder of {path} is a file.", "Move that file away.") from None
        except OSError as error:
            raise raw.unavailable(error, path) from None

    @contextlib.contextmanager
    def _locked(self, fd: int, path: str) -> Iterator[None]:
        raw.hold(fd, self._lock_seconds, path)
        try:
            yield
        finally:
            raw.release(fd)

    @contextlib.contextmanager
    def _writing(self, folder: int = -1, path: str = "") -> Iterator[None]:
        """Share a lock on the root, which `holdfast git` takes alone; also lock the folder of a replaced document."""
        self._check_root()
        root, alone = self._beneath.reopen(), "/" not in path and bool(path)  # then the root is that folder
        try:
            with contextlib.suppress(OSError):  # some network file systems cannot lock a folder
                raw.hold(root, self._lock_seconds, path or self.location, shared=not alone)
            with contextlib.nullcontext() if alone or not path else self._locked(folder, path):
                yield
        finally:
            raw.let_go(root)

    def _check_root(self, *, by_name: bool = False) -> None:
        """Raise RootGone when the root was removed or replaced; `by_name` also when it was renamed."""
        if replaced := self._beneath.replaced():
            raise RootGone(
                f"{self.location} is another folder than the memory that this program opened; nothing was written.",
                "It was restored, moved or mounted over. Restart this program (in a client: the MCP server).",
            )
        if replaced is None and (by_name or self._beneath.removed()):
            raise RootGone(
                f"The memory root {self.location} no longer exists.",
                "Check that it is mounted and was not moved, then open it again.",
            )

    def _folder(self, parts: tuple[str, ...]) -> int:
        """Open a folder for writing; create missing folders durably."""
        try:
            return self._beneath.open("/".join(parts) or ".", _FOLDER)
        except FileNotFoundError:
            self._check_root()
        parent = self._folder(parts[:-1])
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(parts[-1], 0o755, dir_fd=parent)
            os.fsync(parent)
        finally:
            os.close(parent)
        return self._beneath.open("/".join(parts), _FOLDER)
