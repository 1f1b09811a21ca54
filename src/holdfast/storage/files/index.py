"""The SQLite index: FTS5 through apsw, in `.holdfast/`. It makes reading fast and is never the truth.

An index has the records that were read from the files, and a `Seen` per file that says how far it was read. It can be
deleted at any time: every answer equals that of a fresh one.

`.holdfast/current` names the file in use. A rebuild fills a new file and then replaces that name, so a reader never
sees half an index, and an open index is never overwritten. A file that is damaged, or belongs to another root or
version, is rebuilt. A busy index is reported as busy, never as damaged.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import apsw
import msgspec

from holdfast.errors import Busy
from holdfast.model.kinds import KINDS
from holdfast.model.queries import Terms
from holdfast.model.records import HALF, Problem, Record
from holdfast.model.settings import Search, Settings
from holdfast.storage import words
from holdfast.storage.files import rows as tables
from holdfast.storage.files import search
from holdfast.storage.files.descriptors import hold
from holdfast.storage.files.rows import Seen, Stale
from holdfast.storage.parsing import Facts
from holdfast.storage.pools import Filter, Pool, Tied
from holdfast.storage.store import Applied

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
    """The index cannot be written (disk full or read-only); never leaves the file engine."""


class SqliteIndex:
    """One index, for any number of threads, in `folder`; "" keeps it in memory.

    `identity` identifies what is indexed: root, layout, and settings that change what is indexed. A method raises Stale
    when the index must be rebuilt, Unusable when it cannot be written, Busy when another process is writing to it.
    """

    def __init__(self, folder: str, identity: str, settings: Search) -> None:
        self.folder = folder
        self._identity = identity
        self._settings = settings
        self._lock = threading.RLock()
        self._db: apsw.Connection | None = None
        self._name = ""
        self._pid = os.getpid()
        self._depth = 0
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
                raise _busy(error) from None
            except (*_DAMAGE, msgspec.MsgspecError, UnicodeDecodeError) as error:
                self._drop()
                raise Stale(f"the index is damaged: {error}") from None
            except (apsw.FullError, apsw.ReadOnlyError) as error:
                self._drop()
                raise Unusable(f"the index cannot be written: {error}") from None

    def _open(self) -> apsw.Connection:
        """Return the connection to the current index; open it again when it was replaced, or after a fork."""
        if self._db is not None and (not self.folder or self._depth or getattr(self._local, "reading", 0)):
            return self._db
        if not self.folder:
            self._db = tables.create(":memory:", self._identity)
            return self._db
        name = self._current()
        if self._db is not None and (name != self._name or self._pid != os.getpid()):
            if self._pid == os.getpid():
                self._db.close()
            self._db = None
        if self._db is None:
            if not name:
                raise Stale("there is no index")
            self._db = self._connect(os.path.join(self.folder, name))
            self._name, self._pid = name, os.getpid()
        return self._db

    def _current(self) -> str:
        try:
            with open(os.path.join(self.folder, _CURRENT), encoding="utf-8") as file:
                name = file.read(100)
        except (OSError, UnicodeDecodeError):
            return ""
        plain = name.startswith(_PREFIX) and "/" not in name and name.isprintable()
        return name if plain and os.path.exists(os.path.join(self.folder, name)) else ""

    def _connect(self, path: str) -> apsw.Connection:
        if _is_cut(path):
            raise Stale("the end of the index is missing")
        try:
            db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
            tables.tune(db)
            db.set_busy_timeout(self._busy_ms)
            version = db.pragma("user_version")
            known = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            identity = db.execute("SELECT value FROM meta WHERE name = 'identity'").get
        except apsw.BusyError as error:
            raise _busy(error) from None
        except apsw.Error as error:
            raise Stale(f"the index cannot be opened: {error}") from None
        if version != tables.VERSION or identity != self._identity or not known >= tables.TABLES:
            db.close()
            raise Stale("the index was made for another version, root or layout, or is not whole")
        return db

    def _drop(self) -> None:
        if self._db is not None:
            with contextlib.suppress(apsw.Error):
                self._db.close()
            self._db = None

    def close(self) -> None:
        with self._lock:
            if self._pid == os.getpid():
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
    def writing(self) -> Iterator[None]:
        """Open a write transaction."""
        with self._using() as db:
            if self._depth:
                yield
                return
            db.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
                db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(apsw.Error):
                    db.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Inside, this thread uses the open connection without checking whether the index was replaced."""
        self._local.reading = getattr(self._local, "reading", 0) + 1
        try:
            yield
        finally:
            self._local.reading -= 1

    def impatient(self) -> SqliteIndex:
        """Return the same index with a connection of its own, which raises Busy at once instead of waiting."""
        if self._other is None and self.folder:
            self._other = SqliteIndex(self.folder, self._identity, self._settings)
            self._other._busy_ms = 0
        return self._other or self

    def replace(self, path: str, seen: Seen, facts: Facts) -> None:
        """Index a file again from its start."""
        with self._using() as db:
            tables.add(db, path, seen, facts, replace=True)

    def extend(self, path: str, seen: Seen, facts: Facts) -> None:
        """Index what was appended to a log."""
        with self._using() as db:
            tables.add(db, path, seen, facts, replace=False)

    def touch(self, path: str, seen: Seen) -> None:
        """Record that a file was checked and is unchanged."""
        with self._using() as db:
            db.execute("UPDATE files SET seen = ? WHERE path = ?", (tables.seen_out(seen), path))

    def remove(self, path: str) -> None:
        with self._using() as db:
            tables.remove(db, path)

    # reading

    def seen(self, below: tuple[str, ...] = ()) -> dict[str, Seen]:
        """Return the state of every indexed file, or of those at or below these places, when it was read."""
        condition, values = search.at_or_below(below)
        with self._using() as db:
            rows = db.execute(f"SELECT path, seen FROM files WHERE {condition}", values)
            return {path: tables.seen_in(seen) for path, seen in rows}

    def look(self, path: str) -> Seen | None:
        with self._using() as db:
            found = db.execute("SELECT seen FROM files WHERE path = ?", (path,)).get
            return tables.seen_in(found) if found is not None else None

    def newest(self, where: Filter, limit: int) -> list[Record]:
        """Return the newest records that pass a filter; all of them with a negative limit."""
        with self._using() as db:
            rows = search.newest(db, where, limit)
            records = tables.load(db, rows)
            return [records[row] for row in rows if row in records]

    def best(self, terms: Terms, where: Filter, limit: int) -> list[tuple[Record, float]]:
        """Return the records that match these words best, by words alone, with their scores."""
        with self._using() as db:
            scores = search.best(db, terms, where, limit, self._settings)
            records = tables.load(db, [row for row, _ in scores])
            return [(records[row], score) for row, score in scores if row in records]

    def pools(self, terms: Terms, where: Filter, most: int) -> list[Pool]:
        """Return the records that match these words best, with their neighbours; words are weighed per pool.

        A pool without candidates still has the word statistics.
        """
        with self._using() as db:
            return search.pools(db, terms, where, most, self._settings)

    def load(self, rows: list[int]) -> dict[int, Record]:
        """Return the records of these rows that still exist."""
        with self._using() as db:
            return tables.load(db, rows)

    def widened(self, pool: Pool, where: Filter, rows: Sequence[int]) -> Pool:
        """Return a pool with these rows and their neighbours added, as far as they belong to it."""
        with self._using() as db:
            return search.widened(db, pool, where, rows)

    def marks(self, kinds: Sequence[str], after: int = 0) -> dict[int, int]:
        """Return the hash of the content of each current record of these kinds, hidden ones too, of rows after one.

        Within one generation a row always means the same record with the same content, and later ones are greater.
        """
        by = "NOT INDEXED" if after else "INDEXED BY records_mark"  # which has all columns that are needed
        condition = f"row > ? AND kind IN ({search.placeholders(kinds)}) AND NOT superseded"
        return dict(self._rows(f"SELECT row, mark FROM records {by} WHERE {condition} ORDER BY row", (after, *kinds)))

    def marks_inside(self, where: Filter) -> list[int]:
        """Return the hash of the content of each record that passes a filter."""
        condition, values = search.conditions(where)
        return [mark for (mark,) in self._rows(f"SELECT r.mark FROM records r WHERE {condition}", values)]

    def having_marks(self, scores: Mapping[int, float], where: Filter) -> list[int]:
        """Return the rows that pass a filter and whose content has one of these marks, best first."""
        sql = "SELECT r.row, r.mark FROM carray(?) CROSS JOIN records r INDEXED BY records_mark ON r.mark = value"
        with self._using() as db:
            scored = {row: -scores[mark] for row, mark in db.execute(sql, (tables.carray(scores),))}
            return search.passing(db, scored, where)

    def related(self, own: Mapping[str, Sequence[Record]], where: Filter, limit: int) -> dict[str, list[Tied]]:
        """Return the records most closely related to each id, by its own records; without one, it is a name."""
        with self._using() as db:
            having = functools.partial(search.having, db, where=where)
            return words.related(own, having, functools.partial(tables.load, db), limit)

    def by_id(self, identifier: str) -> list[Record]:
        return self._some("r.id = ?", (identifier,))

    def by_key(self, path: str, key: str, *, history: bool = False) -> list[Record]:
        some = "" if history else "AND r.superseded = 0"
        # "+" hides the index of `sort` from SQLite, which would read the whole log by it
        return self._some(f"r.key = ? AND f.path = ? {some}", (key, path), "+r.sort")

    def last_order(self, path: str, target: str) -> str:
        """Return the greatest order of the entries of a log about a key or id, "" when there are none."""
        ((found,),) = self._rows(
            "SELECT max(sort) FROM ("
            "SELECT sort FROM records JOIN files USING (file) WHERE path = ?1 AND id = ?2"
            " UNION ALL SELECT sort FROM records JOIN files USING (file) WHERE path = ?1 AND key = ?2"
            " UNION ALL SELECT sort FROM marks JOIN files USING (file) WHERE path = ?1 AND target = ?2)",
            (path, target),
        )
        return str(found or "")

    def by_op(self, op_id: str) -> list[Applied]:
        """Return what was done under an op_id."""
        found = [Applied(record.path, record.id, record.fields) for record in self._some("r.op = ?", (op_id,))]
        marks = self._rows("SELECT path, target FROM marks JOIN files USING (file) WHERE op = ?", (op_id,))
        return found + [Applied(path, target, marks=True) for path, target in marks]

    def last_writes(self, targets: Collection[str]) -> dict[str, Record]:
        """Return the newest entry of the write log about each of these documents and sections."""
        newest = "SELECT record FROM records WHERE key = ? AND kind = 'write' ORDER BY sort DESC LIMIT 1"
        found = ((target, self._rows(newest, (target,))) for target in targets)
        return {target: tables.record_in(rows[0][0]) for target, rows in found if rows}

    def generation(self) -> str:
        """Return the id of this index; a rebuilt one has another."""
        if not self.folder:
            return ""
        return self._name if getattr(self._local, "reading", 0) and self._db is not None else self._current()

    def beside(self, path: str, order: str, limit: int, *, after: bool) -> list[Record]:
        sign, way = (">", "ASC") if after else ("<", "DESC")
        condition = f"f.path = ? AND r.sort {sign} ? AND NOT r.hidden AND NOT r.superseded"
        return self._some(condition, (path, order), f"r.sort {way} LIMIT {int(limit)}")

    def records(self, path: str) -> list[Record]:
        """Return everything indexed from one file, in file order."""
        return self._some("f.path = ?", (path,), "r.row")

    def _rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[tables.Row]:
        with self._using() as db:
            return db.execute(sql, values).fetchall()

    def _some(self, condition: str, values: tuple[Any, ...], order: str = "r.sort, f.path") -> list[Record]:
        with self._using() as db:
            rows = db.execute(
                "SELECT r.record, r.hidden, r.superseded FROM records r JOIN files f USING (file)"
                f" WHERE {condition} ORDER BY {order}",
                values,
            )
            return [tables.revive(*row) for row in rows]

    def ids(self, path: str, among: Sequence[str] | None = None) -> set[str]:
        """Return the ids of the entries of a log, also of those that hide another one, or those among some ids."""
        some = "" if among is None else "AND {0} IN (SELECT value FROM json_each(?2))"
        sql = f"SELECT {{0}} FROM {{1}} JOIN files USING (file) WHERE path = ?1 {some}"
        given = (path,) if among is None else (path, msgspec.json.encode(among).decode())
        return {id for of in (("id", "records"), ("sort", "marks")) for (id,) in self._rows(sql.format(*of), given)}

    def problems(self, below: tuple[str, ...] = ()) -> list[Problem]:
        """Return what could not be read, in all files or at or below these places."""
        condition, values = search.at_or_below(below)
        with self._using() as db:
            rows = db.execute(
                "SELECT path, what, line, minor FROM problems JOIN files USING (file)"
                f" WHERE {condition} ORDER BY path, line, what",
                values,
            )
            found = [Problem(path, what, line, bool(minor)) for path, what, line, minor in rows]
            halves = db.execute(
                "SELECT path, record FROM records INDEXED BY records_alone JOIN files USING (file)"
                f" WHERE alone AND {condition} ORDER BY path, sort",
                values,
            )
            return found + [Problem(path, HALF, tables.record_in(blob).line) for path, blob in halves]

    def problem_count(self) -> int:
        ((found,),) = self._rows(
            "SELECT (SELECT count(*) FROM problems WHERE NOT minor)"
            " + (SELECT count(*) FROM records INDEXED BY records_alone WHERE alone)"
        )
        return int(found)

    def hidden_in(self, path: str) -> dict[str, bool]:
        """Return for each id or key with marks in a log whether the newest mark hides it."""
        sql = "SELECT target, hidden, max(sort) FROM marks JOIN files USING (file) WHERE path = ? GROUP BY target"
        return {target: bool(hidden) for target, hidden, _ in self._rows(sql, (path,))}

    def note(self, name: str, value: str) -> None:
        """Store a note about the whole index; "" removes it."""
        with self.writing(), self._using() as db:
            db.execute("DELETE FROM meta WHERE name = ?", (name,))
            if value:
                db.execute("INSERT INTO meta VALUES (?, ?)", (name, value))

    def noted(self, name: str) -> str:
        """Return a note, "" when there is none."""
        found = self._rows("SELECT value FROM meta WHERE name = ?", (name,))
        return str(found[0][0] or "") if found else ""

    def snapshot(self) -> tuple[dict[str, Seen], dict[str, int]]:
        """Return `seen` and `proof` from one transaction."""
        with self._using() as db:
            own = not db.in_transaction
            if own:
                db.execute("BEGIN")
            try:
                return self.seen(), self.proof()
            finally:
                if own and db.in_transaction:
                    db.execute("COMMIT")

    def count(self, path: str, after: str) -> int:
        sql = "SELECT count(*) FROM records WHERE file = ? AND sort > ? AND NOT hidden AND NOT superseded"
        if not after:  # two counts of an index each, without reading the records
            gone = "SELECT count(*) FROM records INDEXED BY records_gone WHERE file = ?1 AND (hidden OR superseded)"
            sql = f"SELECT (SELECT count(*) FROM records INDEXED BY records_file WHERE file = ?1) - ({gone})"
        with self._using() as db:
            file = tables.file_of(db, path)
            return int(db.execute(sql, (file, after) if after else (file,)).get)

    def counts(self) -> dict[str, int]:
        """Count the records of each kind."""
        return dict(self._rows("SELECT kind, count(*) FROM records GROUP BY kind ORDER BY kind"))

    def proof(self) -> dict[str, int]:
        """Return a checksum per file over everything indexed from it, words included; valid in this process only.

        Two indexes with the same checksums give the same answers. A damaged index raises Stale.
        """
        with self._using() as db:
            return tables.proof(db)

    # rebuilding

    @contextlib.contextmanager
    def rebuilding(self, known: str | None = None) -> Iterator[SqliteIndex | None]:
        """Provide a fresh index to fill; it replaces this one when the block ends without an error.

        One process rebuilds at a time. Given the generation that is `known` to be unusable, None is provided when
        another process has replaced that one.
        """
        with self._alone():
            if known is not None and self.generation() not in ("", known):
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
        """Lock the folder of the index, which is made if needed, but not the root above it, which may be gone."""
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
        """Yield an empty index in a new file, then put it in the place of this one."""
        fresh = SqliteIndex(self.folder, self._identity, self._settings)
        name = f"{_PREFIX}{secrets.token_hex(4)}.sqlite"
        path, temporary = os.path.join(self.folder, name), os.path.join(self.folder, f"{_CURRENT}-{name}")
        try:
            self._sweep(self._current())  # files of rebuilds that were interrupted
            fresh._db = tables.create(path, self._identity)
            fresh._depth = 1  # one transaction on one connection
            fresh._db.execute("BEGIN")
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
            self._sweep(name)
        except (apsw.FullError, apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, OSError) as error:
            raise Unusable(f"the index cannot be built: {error}") from None
        finally:
            fresh._drop()
            if self._current() != name:
                delete(path)

    def _sweep(self, current: str) -> None:
        """Remove every index but the one in use."""
        for other in os.listdir(self.folder):
            if other.startswith(_PREFIX) and other.endswith(".sqlite") and other != current:
                delete(os.path.join(self.folder, other))

    def purge(self) -> None:
        """Remove derived data that does not belong to the current index."""
        current = self.generation()
        for name in os.listdir(self.folder) if os.path.isdir(self.folder) else ():
            if not name.startswith((current or "?", _CURRENT, _IGNORE)):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.folder, name))

    def size(self) -> int:
        """Return the size of all derived data, in bytes."""
        if not os.path.isdir(self.folder):
            return 0
        return sum(entry.stat().st_size for entry in os.scandir(self.folder) if entry.is_file())


def identity_of(settings: Settings) -> str:
    """Return a hash of everything that decides how files are read; another one means another index."""
    known = [settings.paths, settings.limits, list(KINDS.values()), time.tzname, time.timezone]
    return hashlib.sha256(msgspec.json.encode(known)).hexdigest()


def _is_cut(path: str) -> bool:
    """Return whether a file is shorter than its header says; SQLite would read zeros for what is missing.

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
    for suffix in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(OSError):
            os.unlink(path + suffix)


def _busy(error: Exception) -> Busy:
    return Busy(f"The index is in use by another process ({error}).", "Try again; nothing was lost.")
