"""The SQLite index: FTS5 through apsw, in `.holdfast/`.

The file in use is named in `.holdfast/current`. A rebuild fills a new file beside it and then swings that name,
so a reader never meets half an index and an open one is never written under somebody's feet. Anything that is not
a sound index of this root and version is put aside and rebuilt. A busy index is busy, never damaged.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apsw
import msgspec

from holdfast.errors import Busy
from holdfast.model.queries import Terms
from holdfast.model.records import HALF, Problem, Record
from holdfast.model.settings import Search
from holdfast.storage.files import pools, proof, rank, schema, ties
from holdfast.storage.files import rows as _records
from holdfast.storage.index import Applied, Facts, Filter, Pool, Seen, Stale, Tied, Unusable
from holdfast.storage.words import revive

_CURRENT = "current"
_PREFIX = "index-"
_BUSY_MS = 5_000
_HEADER = 100
"""Bytes at the start of a database in which SQLite says what it is: the size of a page, how many there are."""
_seen_out, _seen_in = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Seen).decode
_DAMAGE = (
    apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.SQLError, apsw.ConstraintError,
    apsw.CantOpenError, apsw.IOError,
)  # fmt: skip


_NONE: set[str] = set()


class SqliteIndex:
    """One index, for any number of threads. `folder` is where it lives; None keeps it in memory.

    `identity` says what it is an index of: root, layout, settings that change what is indexed.
    """

    def __init__(self, folder: str | None, identity: str, settings: Search) -> None:
        self._folder = folder
        self._identity = identity
        self._settings = settings
        self._lock = threading.RLock()
        self._db: apsw.Connection | None = None
        self._name = ""
        self._pid = os.getpid()
        self._depth = 0

    # opening

    def _open(self) -> apsw.Connection:
        """Return the connection to the index in use now, reopened when it was replaced or after a fork."""
        if self._folder is None:
            if self._db is None:
                self._db = _fresh(":memory:", self._identity)
            return self._db
        if self._depth and self._db is not None:
            return self._db
        name = self._current()
        if self._db is not None and (name != self._name or self._pid != os.getpid()):
            if self._pid == os.getpid():
                self._db.close()
            self._db = None
        if self._db is None:
            if not name:
                raise Stale("there is no index")
            self._db = self._connect(os.path.join(self._folder, name))
            self._name, self._pid = name, os.getpid()
        return self._db

    def _current(self) -> str:
        assert self._folder is not None
        try:
            with open(os.path.join(self._folder, _CURRENT), encoding="utf-8") as file:
                name = file.read(100)
        except (OSError, UnicodeDecodeError):
            return ""
        plain = name.startswith(_PREFIX) and "/" not in name and name.isprintable()
        return name if plain and os.path.exists(os.path.join(self._folder, name)) else ""

    def _connect(self, path: str) -> apsw.Connection:
        if _is_cut(path):
            raise Stale("the end of the index is missing")
        try:
            db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
            _tune(db)
            pools.prepare(db)
            version = db.pragma("user_version")
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            identity = db.execute("SELECT value FROM meta WHERE name = 'identity'").get
        except apsw.BusyError as error:
            raise _busy(error) from None
        except apsw.Error as error:
            raise Stale(f"the index cannot be opened: {error}") from None
        if version != schema.VERSION or identity != self._identity or not tables >= schema.TABLES:
            db.close()
            raise Stale("the index was made for another version, root or layout, or is not whole")
        return db

    @contextlib.contextmanager
    def _using(self) -> Iterator[apsw.Connection]:
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

    def _drop(self) -> None:
        if self._db is not None:
            with contextlib.suppress(apsw.Error):
                self._db.close()
            self._db = None

    def close(self) -> None:
        with self._lock:
            if self._pid == os.getpid():
                self._drop()

    # writing

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
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

    def reading(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def impatient(self) -> Iterator[None]:
        with self._using() as db:
            db.set_busy_timeout(0)
        try:
            yield
        finally:
            with contextlib.suppress(Stale, Unusable, Busy), self._using() as db:
                db.set_busy_timeout(_BUSY_MS)

    def replace(self, path: str, seen: Seen, facts: Facts) -> None:
        with self._using() as db:
            file = self._file(db, path)
            self._add(db, path, seen, facts, self._clear(db, file) if file is not None else set())

    def extend(self, path: str, seen: Seen, facts: Facts) -> None:
        with self._using() as db:
            self._add(db, path, seen, facts)

    def touch(self, path: str, seen: Seen) -> None:
        with self._using() as db:
            db.execute("UPDATE files SET seen = ? WHERE path = ?", (_seen_out(seen), path))

    def remove(self, path: str) -> None:
        with self._using() as db:
            file = self._file(db, path)
            if file is not None:
                targets = self._clear(db, file)
                db.execute("DELETE FROM files WHERE file = ?", (file,))
                for target in targets:
                    _records.apply(db, file, target)

    def _file(self, db: apsw.Connection, path: str) -> int | None:
        found: int | None = db.execute("SELECT file FROM files WHERE path = ?", (path,)).get
        return found

    def _clear(self, db: apsw.Connection, file: int) -> set[str]:
        """Forget what was read from a file; return the records that its marks spoke of."""
        targets = {target for (target,) in db.execute("SELECT target FROM marks WHERE file = ?", (file,))}
        for table, row in (*((words, "rowid") for words in schema.WORDS), ("ties", "row")):
            db.execute(f"DELETE FROM {table} WHERE {row} IN (SELECT row FROM records WHERE file = ?)", (file,))
        for table in ("records", "marks", "problems"):
            db.execute(f"DELETE FROM {table} WHERE file = ?", (file,))
        return targets

    def _add(self, db: apsw.Connection, path: str, seen: Seen, facts: Facts, targets: set[str] = _NONE) -> None:
        db.execute(
            "INSERT INTO files (path, seen) VALUES (?, ?) ON CONFLICT (path) DO UPDATE SET seen = excluded.seen",
            (path, _seen_out(seen)),
        )
        file = self._file(db, path)
        assert file is not None
        db.executemany(
            "INSERT OR IGNORE INTO marks VALUES (?, ?, ?, ?, ?)",
            ((file, mark.target, mark.order, mark.hidden, mark.op or None) for mark in facts.marks),
        )
        marked = db.execute("SELECT 1 FROM marks LIMIT 1").get is not None
        twins = [problem for record in facts.records if (problem := _records.insert(db, file, record, marked))]
        for target in targets | {mark.target for mark in facts.marks}:
            _records.apply(db, file, target)
        db.executemany(
            "INSERT INTO problems VALUES (?, ?, ?, ?)",
            ((file, problem.line, problem.what, problem.minor) for problem in (*facts.problems, *twins)),
        )

    # reading

    def seen(self, below: tuple[str, ...] = ()) -> dict[str, Seen]:
        condition, values = rank.at_or_below(below)
        with self._using() as db:
            rows = db.execute(f"SELECT path, seen FROM files WHERE {condition}", values)
            return {path: _seen_in(seen) for path, seen in rows}

    def look(self, path: str) -> Seen | None:
        with self._using() as db:
            found = db.execute("SELECT seen FROM files WHERE path = ?", (path,)).get
            return _seen_in(found) if found is not None else None

    def newest(self, where: Filter, limit: int) -> list[Record]:
        with self._using() as db:
            rows = rank.newest(db, where, limit)
            records = dict(_records.load(db, rows))
            return [records[row] for row in rows if row in records]

    def best(self, terms: Terms, where: Filter, limit: int) -> list[tuple[Record, float]]:
        with self._using() as db:
            rows = pools.best(db, terms, where, limit, self._settings)
            records = dict(_records.load(db, [row for row, _ in rows]))
            return [(records[row], score) for row, score in rows if row in records]

    def pools(self, terms: Terms, where: Filter, most: int) -> list[Pool]:
        with self._using() as db:
            return pools.pools(db, terms, where, most, self._settings)

    def load(self, rows: list[int]) -> dict[int, Record]:
        with self._using() as db:
            return dict(_records.load(db, rows))

    def widened(self, pool: Pool, where: Filter, rows: Sequence[int]) -> Pool:
        with self._using() as db:
            return pools.widened(db, pool, where, rows)

    def passing(self, scored: Sequence[tuple[int, float]], where: Filter) -> list[int]:
        with self._using() as db:
            return rank.best_of(db, scored, where)

    def rows(self, kinds: Sequence[str], after: int = 0) -> list[int]:
        wanted = f"kind IN ({rank.holes(kinds)})"
        with self._using() as db:
            if after:
                later = f"SELECT row FROM records NOT INDEXED WHERE row > ? AND {wanted} AND NOT superseded"
                return sorted(row for (row,) in db.execute(later, (after, *kinds)))
            every = f"SELECT row FROM records INDEXED BY records_place WHERE {wanted}"
            older = "SELECT row FROM records INDEXED BY records_gone WHERE (hidden OR superseded) AND superseded"
            gone = {row for (row,) in db.execute(older)}
            return sorted(row for (row,) in db.execute(every, kinds) if row not in gone)

    def inside(self, where: Filter) -> list[int]:
        condition, values = rank.conditions(where)
        with self._using() as db:
            return [row for (row,) in db.execute(f"SELECT r.row FROM records r WHERE {condition}", values)]

    def related(self, identifiers: Sequence[str], where: Filter, limit: int) -> dict[str, list[Tied]]:
        return {identifier: self._related(identifier, where, limit) for identifier in identifiers}

    def _related(self, identifier: str, where: Filter, limit: int) -> list[Tied]:
        with self._using() as db:
            rows = ties.related(db, identifier, where, limit)
            records = dict(_records.load(db, [row for row, _, _ in rows]))
            return [Tied(records[row], score, tuple(how)) for row, score, how in rows if row in records]

    def by_id(self, identifier: str) -> list[Record]:
        return self._some("r.id = ?", (identifier,))

    def by_key(self, path: str, key: str, *, history: bool = False) -> list[Record]:
        some = "" if history else "AND r.superseded = 0"
        return self._some(f"r.key = ? AND f.path = ? {some}", (key, path))

    def last_order(self, path: str, target: str) -> str:
        with self._using() as db:
            found = db.execute(
                "SELECT max(sort) FROM ("
                "SELECT sort FROM records JOIN files USING (file) WHERE path = :path AND id = :target"
                " UNION ALL SELECT sort FROM records JOIN files USING (file) WHERE path = :path AND key = :target"
                " UNION ALL SELECT sort FROM marks JOIN files USING (file) WHERE path = :path AND target = :target)",
                {"path": path, "target": target},
            ).get
            return str(found or "")

    def by_op(self, op_id: str) -> list[Applied]:
        found = [Applied(record.path, record.id, record.fields) for record in self._some("r.op = ?", (op_id,))]
        with self._using() as db:
            marks = db.execute("SELECT path, target FROM marks JOIN files USING (file) WHERE op = ?", (op_id,))
            return found + [Applied(str(path), str(target), marks=True) for path, target in marks]

    def generation(self) -> str:
        return self._current() if self._folder is not None else ""

    def halves(self, path: str) -> set[str]:
        with self._using() as db:
            rows = db.execute(
                "SELECT id FROM records INDEXED BY records_alone JOIN files USING (file) WHERE alone AND path = ?",
                (path,),
            )
            return {str(each) for (each,) in rows}

    def beside(self, path: str, order: str, limit: int, *, after: bool) -> list[Record]:
        sign, way = (">", "ASC") if after else ("<", "DESC")
        condition = f"f.path = ? AND r.sort {sign} ? AND NOT r.hidden AND NOT r.superseded"
        return self._some(condition, (path, order), f"r.sort {way} LIMIT {int(limit)}")

    def records(self, path: str) -> list[Record]:
        return self._some("f.path = ?", (path,), "r.row")

    def _some(self, condition: str, values: tuple[Any, ...], order: str = "r.sort, f.path") -> list[Record]:
        with self._using() as db:
            rows = db.execute(
                "SELECT r.record, r.hidden, r.superseded FROM records r JOIN files f USING (file)"
                f" WHERE {condition} ORDER BY {order}",
                values,
            )
            return [revive(*row) for row in rows]

    def problems(self, below: tuple[str, ...] = ()) -> list[Problem]:
        condition, values = rank.at_or_below(below)
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
            return found + [Problem(path, HALF, _records.line_of(blob)) for path, blob in halves]

    def problem_count(self) -> int:
        with self._using() as db:
            halves = db.execute("SELECT count(*) FROM records INDEXED BY records_alone WHERE alone").get
            return int(db.execute("SELECT count(*) FROM problems WHERE NOT minor").get) + int(halves)

    def hidden_in(self, path: str) -> dict[str, bool]:
        with self._using() as db:
            rows = proof.rows(
                db,
                "SELECT target, hidden, max(sort) FROM marks JOIN files USING (file) WHERE path = ? GROUP BY target",
                (path,),
            )
            return {target: bool(hidden) for target, hidden, _ in rows}

    def note(self, name: str, value: str) -> None:
        with self.writing(), self._using() as db:
            db.execute("DELETE FROM meta WHERE name = ?", (name,))
            if value:
                db.execute("INSERT INTO meta VALUES (?, ?)", (name, value))

    def noted(self, name: str) -> str:
        with self._using() as db:
            return str(db.execute("SELECT value FROM meta WHERE name = ?", (name,)).get or "")

    def snapshot(self) -> tuple[dict[str, Seen], dict[str, int]]:
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
        with self._using() as db:
            file = self._file(db, path)
            if after:
                sql = "SELECT count(*) FROM records WHERE file = ? AND sort > ? AND NOT hidden AND NOT superseded"
                return int(db.execute(sql, (file, after)).get)
            every = db.execute("SELECT count(*) FROM records INDEXED BY records_file WHERE file = ?", (file,)).get
            gone = db.execute(
                "SELECT count(*) FROM records INDEXED BY records_gone WHERE file = ? AND (hidden OR superseded)",
                (file,),
            ).get
            return int(every) - int(gone)

    def counts(self) -> dict[str, int]:
        with self._using() as db:
            rows: Iterable[tuple[Any, ...]] = db.execute(
                "SELECT kind, count(*) FROM records GROUP BY kind ORDER BY kind"
            )
            return dict(rows)

    def proof(self) -> dict[str, int]:
        with self._using() as db:
            return proof.proof(db)

    # replacing the whole

    @contextlib.contextmanager
    def rebuilding(self) -> Iterator[SqliteIndex]:
        with self._lock:
            fresh = SqliteIndex(self._folder, self._identity, self._settings)
            if self._folder is None:
                yield fresh
                self._drop()
                self._db = fresh._open()
                return
            _make_folder(self._folder)
            self._sweep(self._current())  # what was left by builders that did not come to an end
            name = f"{_PREFIX}{secrets.token_hex(4)}.sqlite"
            path = os.path.join(self._folder, name)
            try:
                fresh._db = _fresh(path, self._identity)
                fresh._depth = 1  # its own, on one connection, in one transaction
                fresh._db.execute("BEGIN")
                yield fresh
                fresh._db.execute("COMMIT")
                _tune(fresh._db)
                fresh._drop()
                _sync(path)
                self._swing(name)
            except (apsw.FullError, apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, OSError) as error:
                raise Unusable(f"the index cannot be built: {error}") from None
            finally:
                fresh._drop()
                if self._current() != name:
                    _delete(path)

    def _swing(self, name: str) -> None:
        assert self._folder is not None
        self._drop()
        temporary = os.path.join(self._folder, f"{_CURRENT}-{secrets.token_hex(4)}")
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(name)
        os.replace(temporary, os.path.join(self._folder, _CURRENT))
        self._sweep(name)

    def _sweep(self, current: str) -> None:
        """Remove every index but the one in use."""
        assert self._folder is not None
        for other in os.listdir(self._folder):
            if other.startswith(_PREFIX) and other.endswith(".sqlite") and other != current:
                _delete(os.path.join(self._folder, other))


def _is_cut(path: str) -> bool:
    """Does a file end before its header says? SQLite takes what is missing of the last page for zeros.

    What lies in a write-ahead log may not have reached the file yet.
    """
    try:
        if os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal"):
            return False
        with open(path, "rb") as file:
            head = file.read(_HEADER)
            size = os.fstat(file.fileno()).st_size
    except OSError:
        return False  # whatever it is, SQLite says so
    page = int.from_bytes(head[16:18], "big")
    return len(head) == _HEADER and size < (page if page > 1 else 1 << 16) * int.from_bytes(head[28:32], "big")


def _fresh(path: str, identity: str) -> apsw.Connection:
    db = apsw.Connection(path)
    db.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536")
    pools.prepare(db)
    db.execute(schema.SCHEMA)
    db.execute("INSERT INTO meta VALUES ('identity', ?)", (identity,))
    db.pragma("user_version", schema.VERSION)
    return db


def _tune(db: apsw.Connection) -> None:
    db.set_busy_timeout(_BUSY_MS)
    db.execute("PRAGMA trusted_schema = OFF; PRAGMA cache_size = -16384")
    if db.pragma("journal_mode") != "wal":
        db.pragma("journal_mode", "wal" if apsw.SQLITE_VERSION_NUMBER >= 3_051_003 else "truncate")
    db.execute("PRAGMA synchronous = NORMAL")


def _make_folder(folder: str) -> None:
    try:
        os.mkdir(folder)
    except FileExistsError:
        pass
    except OSError as error:
        raise Unusable(f"{folder} cannot be made: {error.strerror}") from None


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _delete(path: str) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(OSError):
            os.unlink(path + suffix)


def _busy(error: Exception) -> Busy:
    return Busy(f"The index is in use by another process ({error}).", "Try again; nothing was lost.")
