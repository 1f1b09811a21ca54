"""The SQLite index: FTS5 through apsw, in `.holdfast/`. It makes reading fast; the files are the truth.

An index has the records that were read from the files, and a `Seen` per file with the state up to which it was read. It
can be deleted at any time: every answer equals that of a fresh one.

`.holdfast/current` names the file in use. A rebuild fills a new file and then replaces that name, so a reader never
sees half an index, and an open index is never overwritten. A file that is damaged, or belongs to another root or
version, is rebuilt. A locked index is reported as Busy, never as damaged.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import threading
import time
from collections.abc import Iterator

import apsw
import msgspec

from holdfast.errors import Busy
from holdfast.model.kinds import KINDS
from holdfast.model.settings import Search, Settings
from holdfast.storage.files import rows as tables
from holdfast.storage.files import search
from holdfast.storage.files.descriptors import hold
from holdfast.storage.files.rows import Seen, Stale

_CURRENT = "current"
_IGNORE = ".gitignore"
_PREFIX = "index-"
_REBUILD_SECONDS = 120.0
_HEADER = 100
"""Bytes of SQLite's header, which has the size and the number of the pages."""
_DAMAGE = (
    apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.SQLError, apsw.ConstraintError,
    apsw.CantOpenError, apsw.IOError,
)  # fmt: skip


class Unusable(Exception):
    """The index cannot be written (disk full or read-only); internal to the file engine."""


class SqliteIndex(search.Questions):
    """One index, for any number of threads, in `folder`; "" keeps it in memory.

    `identity` identifies how files are read: layout, limits, kinds and time zone. A method raises Stale
    when the index must be rebuilt, Unusable when it cannot be written, Busy when another process is writing to it.
    """

    def __init__(self, folder: str, identity: str, settings: Search) -> None:
        super().__init__(settings)
        self.folder = folder
        self._identity = identity
        self._lock = threading.RLock()
        self._db: apsw.Connection | None = None
        self._name = ""
        self._local = threading.local()
        self._other: SqliteIndex | None = None
        self._busy_ms = tables.BUSY_MS

    # opening

    @contextlib.contextmanager
    def _using(self) -> Iterator[apsw.Connection]:
        """Lock the index and open its connection; turn SQLite's errors into Busy, Stale and Unusable."""
        with self._lock:
            try:
                yield self._open()
            except apsw.BusyError as error:
                raise Busy(
                    f"The index is in use by another process ({error}).", "Try again; nothing was lost."
                ) from None
            except (*_DAMAGE, msgspec.MsgspecError, UnicodeDecodeError) as error:
                self._drop()
                raise Stale(f"the index is damaged: {error}") from None
            except (apsw.FullError, apsw.ReadOnlyError) as error:
                self._drop()
                raise Unusable(f"the index cannot be written: {error}") from None

    def _open(self) -> apsw.Connection:
        """Return the connection to the current index; open it again if it was replaced."""
        if self._db is not None and (not self.folder or self._db.in_transaction or self._is_reading()):
            return self._db
        if not self.folder:
            self._db = tables.create(":memory:", self._identity)
            return self._db
        name = self._current()
        if name != self._name:
            self._drop()
        if self._db is None:
            if not name:
                raise Stale("there is no index")
            path = os.path.join(self.folder, name)
            if _is_cut(path):
                raise Stale("the end of the index is missing")
            db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
            tables.tune(db)
            db.set_busy_timeout(self._busy_ms)
            identity = db.execute("SELECT value FROM meta WHERE name = 'identity'").get
            known = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            if (db.pragma("user_version"), identity) != (tables.VERSION, self._identity) or not known >= tables.TABLES:
                db.close()
                raise Stale("the index was made for another version or layout, or is not whole")
            self._db, self._name = db, name
        return self._db

    def _current(self) -> str:
        try:
            fd = os.open(os.path.join(self.folder, _CURRENT), os.O_RDONLY | os.O_CLOEXEC)
            try:
                name = os.read(fd, 100).decode()
            finally:
                os.close(fd)
        except (OSError, UnicodeDecodeError):
            return ""
        plain = name.startswith(_PREFIX) and "/" not in name and name.isprintable()
        return name if plain and os.path.exists(os.path.join(self.folder, name)) else ""

    def _drop(self) -> None:
        if self._db is not None:
            with contextlib.suppress(apsw.Error):
                self._db.close()
            self._db = None

    def close(self) -> None:
        with self._lock:
            self._drop()
            if self._other:
                self._other.close()
                self._other = None

    def keep_in_memory(self) -> None:
        """Start again with an empty index in memory."""
        with self._lock:
            self.close()
            self.folder, self._db = "", None

    # writing

    @contextlib.contextmanager
    def writing(self) -> Iterator[apsw.Connection]:
        """Open a write transaction, or continue the one that is open."""
        with self._using() as db:
            if db.in_transaction:
                yield db
                return
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(apsw.Error):
                    db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Inside, this thread checks only once, at the beginning, whether the index was replaced."""
        if self._is_reading():
            yield
            return
        with self._lock:
            if self.folder and self._name != self._current():
                self._drop()
        self._local.reading = True
        try:
            yield
        finally:
            self._local.reading = False

    def _is_reading(self) -> bool:
        return getattr(self._local, "reading", False)

    def impatient(self) -> SqliteIndex:
        """Return the same index with a connection of its own, which raises Busy at once instead of waiting."""
        if self._other is None and self.folder:
            self._other = SqliteIndex(self.folder, self._identity, self._settings)
            self._other._busy_ms = 0
        return self._other or self

    def generation(self) -> str:
        """Return the id of this index; a rebuilt one has a new id."""
        if not self.folder:
            return ""
        return self._name if self._is_reading() and self._db is not None else self._current()

    def note(self, name: str, value: str) -> None:
        """Store a note about the whole index; "" removes it."""
        with self.writing() as db:
            db.execute("DELETE FROM meta WHERE name = ?", (name,))
            if value:
                db.execute("INSERT INTO meta VALUES (?, ?)", (name, value))

    def optimize(self) -> None:
        """Merge the parts of the full-text index: a query looks up every word in each part."""
        with self.writing() as db:
            for table in tables.WORDS:
                db.execute(f"INSERT INTO {table} ({table}) VALUES ('optimize')")

    def snapshot(self) -> tuple[dict[str, Seen], dict[str, int]]:
        """Return `seen`, and a checksum per file over everything indexed from it, words included.

        Both are from one transaction. Two indexes with the same checksums give the same answers; they are valid in this
        process only. A damaged index raises Stale.
        """
        with self._using() as db:
            with db:
                found = self.seen(), tables.proof(db)
            return found

    # rebuilding

    @contextlib.contextmanager
    def rebuilding(self, known: str | None = None) -> Iterator[SqliteIndex | None]:
        """Provide a fresh index to fill; it replaces this one when the block ends without an error.

        One process rebuilds at a time. Given the generation that is `known` to be unusable, None is provided when
        another process has replaced that one.
        """
        with self._alone():
            if known is not None and self._current() not in ("", known):
                yield None
                return
            with self._lock:
                if self.folder:
                    yield from self._rebuilt()
                else:
                    fresh = SqliteIndex("", self._identity, self._settings)
                    yield fresh
                    self._drop()
                    self._db = fresh._open()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the folder of the index, which is created if needed, but not the root above it, which may not exist."""
        if not self.folder:
            yield
            return
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.folder)
            with contextlib.suppress(FileExistsError), open(os.path.join(self.folder, _IGNORE), "xb") as file:
                file.write(b"*\n")
            fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Unusable(f"{self.folder}: {error.strerror}") from None
        try:
            hold(fd, _REBUILD_SECONDS, "The index, which another process is rebuilding,")
            yield
        finally:
            os.close(fd)

    def _rebuilt(self) -> Iterator[SqliteIndex]:
        """Yield an empty index in a new file, then replace this one with it."""
        fresh = SqliteIndex(self.folder, self._identity, self._settings)
        name = f"{_PREFIX}{secrets.token_hex(4)}.sqlite"
        path, temporary = os.path.join(self.folder, name), os.path.join(self.folder, f"{_CURRENT}-{name}")
        try:
            self.purge(_PREFIX)  # files of rebuilds that were interrupted
            fresh._db = tables.create(path, self._identity)
            fresh._db.execute("BEGIN")  # one transaction on one connection
            yield fresh
            fresh._db.execute("COMMIT")
            tables.tune(fresh._db)
            fresh._drop()
            with open(path, "rb") as file:
                os.fsync(file.fileno())
            self._drop()
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(name)
            os.replace(temporary, os.path.join(self.folder, _CURRENT))
            self.purge(_PREFIX)
        except (apsw.FullError, apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, OSError) as error:
            raise Unusable(f"the index cannot be built: {error}") from None
        finally:
            fresh._drop()
            if self._current() != name:
                delete(path)

    def purge(self, start: str = "") -> None:
        """Remove derived data whose name begins like this and that does not belong to the current index."""
        if not os.path.isdir(self.folder):
            return
        needed = (self._current() or "?", _CURRENT, _IGNORE)
        for name in os.listdir(self.folder):
            if name.startswith(start) and not name.startswith(needed):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.folder, name))

    def size(self) -> int:
        """Return the size of all derived data, in bytes."""
        if not os.path.isdir(self.folder):
            return 0
        return sum(entry.stat().st_size for entry in os.scandir(self.folder) if entry.is_file())


def identity_of(settings: Settings) -> str:
    """Return a hash of everything that affects how files are read; with a different hash, the index is rebuilt."""
    known = [settings.paths, settings.limits, list(KINDS.values()), time.tzname, time.timezone]
    return hashlib.sha256(msgspec.json.encode(known)).hexdigest()


def _is_cut(path: str) -> bool:
    """Return whether a file is shorter than its header says; SQLite would read zeros for the missing part.

    With a write-ahead log, the missing part may not be in the file yet.
    """
    try:
        if os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal"):
            return False
        with open(path, "rb") as file:
            head = file.read(_HEADER)
            size = os.fstat(file.fileno()).st_size
    except OSError:
        return False  # opening it reports the error
    page = int.from_bytes(head[16:18], "big")
    return len(head) == _HEADER and size < (page if page > 1 else 1 << 16) * int.from_bytes(head[28:32], "big")


def delete(path: str) -> None:
    """Delete a database; its log is deleted first, because a new database of this name would read it."""
    for suffix in ("-wal", "-shm", "-journal", ""):
        with contextlib.suppress(OSError):
            os.unlink(path + suffix)
