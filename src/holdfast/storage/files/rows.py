"""Records in the SQLite index: adding one with its words and ties, superseding, hiding, and reading it back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw

from holdfast.model.kinds import KINDS
from holdfast.model.records import Problem, Record, mark_of, priority_of
from holdfast.storage import words as _common
from holdfast.storage.files import rank, ties
from holdfast.storage.words import record_in, record_out, revive


def insert(db: apsw.Connection, file: int, record: Record, marked: bool) -> Problem | None:
    """Add one record; a line that is there already is not added twice."""
    there = db.execute("SELECT record FROM records WHERE id = ? AND file = ?", (record.id, file)).get
    if there is not None:
        if record_in(there).version == record.version:
            return None
        return Problem(record.path, f"the id {record.id} stands here twice with other content", record.line)
    superseded = bool(record.key) and not _take_over(db, file, record)
    pair = _common.pair_of(record)
    alone = bool(pair) and not _join(db, file, pair)
    hidden = alone or record.hidden or (marked and _hidden(db, file, record))
    db.execute(
        f"INSERT INTO records VALUES (NULL{', ?' * 19})",
        (
            file, record.id, record.kind, record.scope.path, record.scope.session, record.time, record.key or None,
            _common.op_of(record), _common.tagged(record.tags), record.order, pair or None,
            alone, hidden, superseded, _common.author_of(record), record.fields.get("role") == "assistant",
            priority_of(record.fields.get("priority")), mark_of(record), record_out(record),
        ),
    )  # fmt: skip
    row = db.last_insert_rowid()
    if not superseded:
        ties.insert(db, row, record)
        _index_words(db, row, record)
    return None


def _take_over(db: apsw.Connection, file: int, record: Record) -> bool:
    """Retire the line that this one supersedes; False when this one is the older."""
    held: list[tuple[Any, ...]] = db.execute(
        "SELECT row, sort FROM records WHERE key = ? AND file = ? AND superseded = 0", (record.key, file)
    ).fetchall()
    if held and held[0][1] >= record.order:
        return False
    for row, _ in held:
        db.execute("UPDATE records SET superseded = 1 WHERE row = ?", (row,))
        db.execute(f"DELETE FROM {rank.words_of(KINDS[record.kind])} WHERE rowid = ?", (row,))
        db.execute("DELETE FROM ties WHERE row = ?", (row,))
    return True


def _join(db: apsw.Connection, file: int, pair: str) -> bool:
    """Show the other half of a pair, now that it is whole; False when it is not there yet."""
    others: list[tuple[Any, ...]] = db.execute(
        "SELECT row, record FROM records WHERE pair = ? AND file = ?", (pair, file)
    ).fetchall()
    for row, blob in others:
        record = record_in(blob)
        hidden = record.hidden or _hidden(db, file, record)
        db.execute("UPDATE records SET alone = 0, hidden = ? WHERE row = ?", (hidden, row))
    return bool(others)


def _index_words(db: apsw.Connection, row: int, record: Record) -> None:
    words = _common.words_of(record)
    if words:
        table = rank.words_of(KINDS[record.kind])
        db.execute(f"INSERT INTO {table} (rowid, title, text, rest) VALUES (?, ?, ?, ?)", (row, *words))


def _hidden(db: apsw.Connection, file: int, record: Record) -> bool:
    """Does the newest mark hide this record? A key's mark speaks only of lines older than itself."""
    newest = db.execute(
        "SELECT hidden FROM marks WHERE target = ? OR (target = ? AND file = ? AND sort > ?)"
        " ORDER BY sort DESC LIMIT 1",
        (record.id, record.key, file, record.order),
    ).get
    return bool(newest)


def apply(db: apsw.Connection, file: int, target: str) -> None:
    """Bring the records that a mark speaks of in line with the marks there are now."""
    rows: list[tuple[Any, ...]] = db.execute(
        "SELECT row, file, alone, record FROM records WHERE id = ? UNION"
        " SELECT row, file, alone, record FROM records WHERE key = ? AND file = ?",
        (target, target, file),
    ).fetchall()
    for row, home, alone, blob in rows:
        record = record_in(blob)
        hidden = bool(alone) or record.hidden or _hidden(db, home, record)
        db.execute("UPDATE records SET hidden = ? WHERE row = ?", (hidden, row))


def line_of(blob: bytes) -> int:
    return record_in(blob).line


def load(db: apsw.Connection, values: list[int]) -> Iterator[tuple[int, Record]]:
    for start in range(0, len(values), 500):
        part = values[start : start + 500]
        holes = ",".join("?" * len(part))
        rows = db.execute(
            f"SELECT r.row, r.record, r.hidden, r.superseded FROM records r WHERE r.row IN ({holes})", part
        )
        for row, record, hidden, superseded in rows:
            yield row, revive(record, hidden, superseded)
