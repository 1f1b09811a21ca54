"""The tables of the SQLite index, adding and reading their records, and the proof that two indexes are equal.

A change of the tables needs another VERSION; an index of another version is rebuilt.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apsw
import msgspec

from holdfast.model.kinds import KINDS
from holdfast.model.records import Problem, Record, mark_of, priority_of
from holdfast.storage import words
from holdfast.storage.parsing import Facts
from holdfast.storage.tree import Stamp
from holdfast.storage.words import TITLE, TOKENIZER

VERSION = 16
BUSY_MS = 5_000
WORDS = ("words", "other_words")
"""The full-text tables: one for the kinds of every search, and one for kinds that are searched only on request, such as
traces. Those are many, and must not change how rare a word is."""
TABLES = frozenset({"meta", "files", "records", "marks", "problems", *WORDS, "ties"})
_TOKENIZER = " ".join(f"'{part}'" if " " in part else part for part in (TOKENIZER[0], *TOKENIZER[1]))
_LOW64 = (1 << 64) - 1
_TITLE = int(TITLE)

SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE files (
    file INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, seen BLOB NOT NULL
);
CREATE TABLE records (
    row INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL,
    scope TEXT NOT NULL, session TEXT NOT NULL, time TEXT NOT NULL, key TEXT, op TEXT, tagged TEXT NOT NULL,
    sort TEXT NOT NULL, pair TEXT, alone INTEGER NOT NULL, hidden INTEGER NOT NULL, superseded INTEGER NOT NULL,
    author TEXT NOT NULL, agent INTEGER NOT NULL, priority INTEGER NOT NULL, mark INTEGER NOT NULL, record BLOB NOT NULL
);
CREATE UNIQUE INDEX records_identity ON records (id, file);
CREATE INDEX records_file ON records (file);
CREATE INDEX records_place ON records (kind, scope, time);
CREATE INDEX records_order ON records (file, sort);
CREATE INDEX records_talk ON records (file, session, sort) WHERE NOT hidden AND NOT superseded;
CREATE INDEX records_key ON records (key, file) WHERE key IS NOT NULL;
CREATE INDEX records_written ON records (key, sort) WHERE kind = 'write';
CREATE INDEX records_pair ON records (pair, file) WHERE pair IS NOT NULL;
CREATE INDEX records_alone ON records (file) WHERE alone;
CREATE INDEX records_mark ON records (mark, kind, superseded);
CREATE INDEX records_op ON records (op) WHERE op IS NOT NULL;
CREATE TABLE marks (
    file INTEGER NOT NULL, target TEXT NOT NULL, sort TEXT NOT NULL, hidden INTEGER NOT NULL, op TEXT,
    PRIMARY KEY (target, file, sort)
) WITHOUT ROWID;
CREATE INDEX marks_file ON marks (file);
CREATE INDEX marks_op ON marks (op) WHERE op IS NOT NULL;
CREATE TABLE problems (file INTEGER NOT NULL, line INTEGER NOT NULL, what TEXT NOT NULL, minor INTEGER NOT NULL);
CREATE INDEX problems_file ON problems (file);
CREATE TABLE ties (
    way INTEGER NOT NULL, name TEXT NOT NULL, row INTEGER NOT NULL, PRIMARY KEY (way, name, row)
) WITHOUT ROWID;
CREATE INDEX ties_row ON ties (row);
""" + "".join(
    f"CREATE VIRTUAL TABLE {name} USING fts5 ("
    f"title, text, rest, content='', contentless_delete=1, tokenize=\"{_TOKENIZER}\");\n"
    for name in WORDS
)
Row = tuple[Any, ...]
Texts = tuple[str, str, str, str]
"""A full-text table, and the title, the text and the rest to add to it; adding many at once is faster."""


class Stale(Exception):
    """The index must be rebuilt; internal to the file engine."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a file when it was last read."""

    kind: str
    stamp: Stamp
    looked: int
    """When, in nanoseconds; a stamp as recent as the check proves nothing."""
    version: str = ""
    """Of a document."""
    offset: int = 0
    """Of a log: everything before it is indexed."""
    lines: int = 0
    """Newlines before the offset."""
    open: bool = False
    """Is the last line without a newline?"""
    checksum: int = 0
    """Of all bytes before the offset."""
    tail: int = 0
    """Checksum of the last bytes before the offset."""
    missing: tuple[str, ...] = ()
    """Missing files that lines of this log refer to."""


record_out, record_in = msgspec.json.Encoder().encode, msgspec.json.Decoder(Record).decode
seen_out, seen_in = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Seen).decode


def create(path: str, identity: str) -> apsw.Connection:
    """Create an empty index; `tune` it once it is filled."""
    db = apsw.Connection(path)
    db.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536")
    db.register_fts5_function("counted", _counted)
    db.execute(SCHEMA)
    db.execute("INSERT INTO meta VALUES ('identity', ?)", (identity,))
    db.pragma("user_version", VERSION)
    return db


def tune(db: apsw.Connection) -> None:
    """Prepare a connection for use by several processes."""
    db.set_busy_timeout(BUSY_MS)
    db.execute("PRAGMA trusted_schema = OFF; PRAGMA cache_size = -16384")
    if db.pragma("journal_mode") != "wal":
        db.pragma("journal_mode", "wal" if apsw.SQLITE_VERSION_NUMBER >= 3_051_003 else "truncate")
    db.execute("PRAGMA synchronous = NORMAL")
    db.register_fts5_function("counted", _counted)


def _counted(api: Any, *_: object) -> bytes:
    """Count each word of a query in a record, up to 255; a word in the title counts more."""
    result = bytearray(api.phrase_count)
    for number in range(len(result)):
        title, text, rest = api.phrase_locations(number)
        if title or text or rest:
            result[number] = min(255, _TITLE * len(title) + len(text) + len(rest))
    return bytes(result)


def carray(rows: Iterable[int]) -> Any:
    """Return rows as a table `carray(?)`; an empty array is not allowed, and row numbers start at 1."""
    return apsw.carray(array("q", rows) or array("q", [0]))


# files


def file_of(db: apsw.Connection, path: str) -> int | None:
    found: int | None = db.execute("SELECT file FROM files WHERE path = ?", (path,)).get
    return found


def add(db: apsw.Connection, path: str, seen: Seen, facts: Facts, *, replace: bool = False) -> None:
    """Add the records of a file, or replace all that is indexed of it except unchanged records."""
    file, targets, records = file_of(db, path), {mark.target for mark in facts.marks}, facts.records
    if replace and file is not None:
        records, kept = _changed(db, file, records)
        targets |= _clear(db, file, kept)
    db.execute(
        "INSERT INTO files (path, seen) VALUES (?, ?) ON CONFLICT (path) DO UPDATE SET seen = excluded.seen",
        (path, seen_out(seen)),
    )
    file = file_of(db, path) if file is None else file
    assert file is not None
    db.executemany(
        "INSERT OR IGNORE INTO marks VALUES (?, ?, ?, ?, ?)",
        [(file, mark.target, mark.order, mark.hidden, mark.op or None) for mark in facts.marks],
    )
    before = db.execute("SELECT max(row) FROM records").get or 0
    twins, there = list[Problem](), dict[str, bytes]()  # an existing line is not added twice
    texts: dict[int, Texts] = {}
    if records:
        sql = "SELECT id, record FROM carray(?) CROSS JOIN records ON id = value AND file = ?"
        there = dict(db.execute(sql, (apsw.carray(tuple(record.id for record in records)), file)))
    for record in records:
        if (known := there.get(record.id)) is None:
            there[record.id] = _insert(db, file, record, texts)
        elif record_in(known).version != record.version:
            what = f"the id {record.id} is in this file twice with different content"
            twins.append(Problem(record.path, what, record.line))
    for table in WORDS:
        rows = ((row, *found) for row, (place, *found) in texts.items() if place == table)
        db.executemany(f"INSERT INTO {table} (rowid, title, text, rest) VALUES (?, ?, ?, ?)", rows)
    if db.execute("SELECT 1 FROM marks LIMIT 1").get:
        marked = "EXISTS (SELECT 1 FROM marks m WHERE m.target IN (records.id, records.key))"
        _set_hidden(db, f"row > ? AND {marked}", before)
    _apply(db, file, targets)
    db.executemany(
        "INSERT INTO problems VALUES (?, ?, ?, ?)",
        [(file, problem.line, problem.what, problem.minor) for problem in (*facts.problems, *twins)],
    )


def _changed(db: apsw.Connection, file: int, records: Sequence[Record]) -> tuple[list[Record], set[int]]:
    """Return the records that changed, and the rows of the others, which keep their words; their lines are updated."""
    found: Iterable[Row] = db.execute("SELECT id, row, record FROM records WHERE file = ?", (file,))
    there = {identifier: (row, blob) for identifier, row, blob in found}
    changed, kept = list[Record](), set[int]()
    for record in records:
        row, blob = there.pop(record.id, (0, b""))
        if row and blob != (made := record_out(record)):
            if made != record_out(msgspec.structs.replace(record_in(blob), line=record.line)):
                row = 0
            else:
                db.execute("UPDATE records SET record = ? WHERE row = ?", (made, row))
        if row:
            kept.add(row)
        else:
            changed.append(record)
    return changed, kept


def remove(db: apsw.Connection, path: str) -> None:
    """Remove a file and everything that was read from it."""
    file = file_of(db, path)
    if file is not None:
        targets = _clear(db, file)
        db.execute("DELETE FROM files WHERE file = ?", (file,))
        _apply(db, file, targets)


def _apply(db: apsw.Connection, file: int, targets: Iterable[str]) -> None:
    """Update the records that marks of a file are about."""
    for target in targets:
        _set_hidden(db, "id = ?", target)
        _set_hidden(db, "key = ? AND file = ?", target, file)


def _clear(db: apsw.Connection, file: int, kept: Iterable[int] = ()) -> set[str]:
    """Remove all that is indexed of a file, except for the records in these rows; return the targets of its marks."""
    targets = {target for (target,) in db.execute("SELECT target FROM marks WHERE file = ?", (file,))}
    for table, row in (*((name, "rowid") for name in WORDS), ("ties", "row")):
        gone = "SELECT row FROM records WHERE file = ? AND row NOT IN (SELECT value FROM carray(?))"
        db.execute(f"DELETE FROM {table} WHERE {row} IN ({gone})", (file, carray(kept)))
    db.execute(f"DELETE FROM records WHERE row IN ({gone})", (file, carray(kept)))
    for table in ("marks", "problems"):
        db.execute(f"DELETE FROM {table} WHERE file = ?", (file,))
    return targets


# records


def load(db: apsw.Connection, rows: Iterable[int]) -> dict[int, Record]:
    """Return the records of these rows, without rows that no longer exist."""
    found = db.execute(
        "SELECT r.row, r.record, r.hidden, r.superseded FROM carray(?) CROSS JOIN records r ON r.row = value",
        (carray(rows),),
    )
    return {row: revive(record, hidden, superseded) for row, record, hidden, superseded in found}


def revive(blob: bytes, hidden: int, superseded: int) -> Record:
    """Decode a record of the index and set its flags."""
    if not isinstance(blob, bytes):
        raise Stale("the index is damaged: a record is missing")
    record = record_in(blob)
    if hidden != record.hidden or superseded:
        return msgspec.structs.replace(record, hidden=bool(hidden), superseded=bool(superseded))
    return record


def _insert(db: apsw.Connection, file: int, record: Record, texts: dict[int, Texts]) -> bytes:
    """Add a record with its ties, and its searchable text to `texts`; return it as it is stored."""
    superseded = bool(record.key) and not _supersede(db, file, record, texts)
    pair, writes = words.pair_of(record), record.kind == "write"
    alone = False
    if pair:  # show the other line
        db.execute("UPDATE records SET alone = 0 WHERE pair = ? AND file = ?", (pair, file))
        _set_hidden(db, "pair = ? AND file = ?", pair, file)
        alone = db.changes() == 0
    db.execute(
        f"INSERT INTO records VALUES (NULL{', ?' * 19})",
        (
            file, record.id, record.kind, record.scope.path, record.scope.session, record.time,
            record.key or (str(record.fields.get("record", record.fields.get("path"))) if writes else None),
            words.op_of(record), words.tagged(record.tags), record.order, pair or None,
            alone, alone or record.hidden, superseded, words.author_of(record),
            record.fields.get("role") == "assistant", priority_of(record.fields.get("priority")), mark_of(record),
            made := record_out(record),
        ),
    )  # fmt: skip
    if not superseded:
        row = db.last_insert_rowid()
        if ties := words.ties_of(record):
            db.executemany("INSERT OR IGNORE INTO ties VALUES (?, ?, ?)", [(*tie, row) for tie in ties])
        if found := words.words_of(record):
            texts[row] = (WORDS[KINDS[record.kind].on_request], *found)
    return made


def _supersede(db: apsw.Connection, file: int, record: Record, texts: dict[int, Texts]) -> bool:
    """Supersede the current line of the key; False when that line is the newer one."""
    current: list[Row] = db.execute(
        "SELECT row, sort FROM records WHERE key = ? AND file = ? AND superseded = 0", (record.key, file)
    ).fetchall()
    if current and current[0][1] >= record.order:
        return False
    for row, _ in current:
        db.execute("UPDATE records SET superseded = 1 WHERE row = ?", (row,))
        if texts.pop(row, None) is None:
            db.execute(f"DELETE FROM {WORDS[KINDS[record.kind].on_request]} WHERE rowid = ?", (row,))
        db.execute("DELETE FROM ties WHERE row = ?", (row,))
    return True


def _set_hidden(db: apsw.Connection, which: str, *values: object) -> None:
    """Hide these records, or show them: the newest mark decides; a mark on a key only applies to older lines."""
    db.execute(
        "UPDATE records SET hidden = alone OR coalesce(json_extract(CAST(record AS TEXT), '$.hidden'), 0) OR coalesce("
        "(SELECT m.hidden FROM marks m WHERE m.target = records.id"
        " OR (m.target = records.key AND m.file = records.file AND m.sort > records.sort)"
        f" ORDER BY m.sort DESC LIMIT 1), 0) WHERE {which}",
        values,
    )


# proof


def proof(db: apsw.Connection) -> dict[str, int]:
    """Return a number per file over all its records, words, lengths and ties; valid within one process.

    Raise Stale when the index is damaged.
    """
    for table in WORDS:  # the check uses what the connection read last; a query makes it read again
        db.execute(f"SELECT rowid FROM {table} WHERE {table} MATCH 'anything' LIMIT 1").get  # noqa: B018
    if (fault := db.pragma("integrity_check")) != "ok":
        raise Stale(f"the index is damaged: {fault}")
    paths: dict[int, str] = dict(db.execute("SELECT file, path FROM files"))
    sums = dict.fromkeys(paths, 0)
    homes: dict[int, tuple[int, int]] = {}
    records: Iterable[Row] = db.execute("SELECT * FROM records")
    for row, file, *rest in records:
        sums[file] = (sums.get(file, 0) + hash(tuple(rest))) & _LOW64
        homes[row] = (file, hash(rest[0]))
    marks: Iterable[Row] = db.execute("SELECT * FROM marks")
    for file, *rest in marks:
        sums[file] = (sums.get(file, 0) + hash(tuple(rest))) & _LOW64
    superseded = {row for (row,) in db.execute("SELECT row FROM records WHERE superseded")}
    ties: Iterable[Row] = db.execute("SELECT row, way, name FROM ties")
    for row, *rest in itertools.chain(ties, *[_words(db, table) for table in WORDS]):
        if row in homes and row not in superseded:
            file, identity = homes[row]
            sums[file] = (sums[file] + hash((identity, *rest))) & _LOW64
    return {paths.get(file, f"a file that is not known ({file})"): total for file, total in sums.items()}


def _words(db: apsw.Connection, table: str) -> Iterator[Row]:
    """Yield every word of every record with its place, and the number of words of every record.

    Ranking uses these numbers; Stale when they do not match their totals.
    """
    name = f"temp.{table}_instances"
    db.execute(f"CREATE VIRTUAL TABLE IF NOT EXISTS {name} USING fts5vocab (main, {table}, instance)")
    yield from db.execute(f"SELECT doc, term, col, offset FROM {name}")
    total = [0, 0, 0, 0]
    sizes: Iterable[Row] = db.execute(f"SELECT id, sz FROM {table}_docsize")
    for row, size in sizes:
        lengths = varints(size)
        total = [one + other for one, other in zip(total, [1, *lengths], strict=True)]
        yield row, *lengths
    stored = db.execute(f"SELECT block FROM {table}_data WHERE id = 1").get
    if total[0] and (not isinstance(stored, bytes) or varints(stored) != total):
        raise Stale("the index is damaged: the lengths of its records do not add up")


def varints(data: bytes) -> list[int]:
    """Decode SQLite's integers of variable length: seven bits per byte, the most significant first."""
    numbers, number = [], 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    return numbers
