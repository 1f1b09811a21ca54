"""What ties records together in the SQLite index: the names they bear, the names they link to, and their tags.

One table holds all three. Two records are tied when one links to the other, when both speak of the same thing (a name
that both link to, whether or not anything bears it), or when they share a tag. The rarer what they share, the closer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw

from holdfast.model.records import Record
from holdfast.storage import words
from holdfast.storage.files.rank import conditions
from holdfast.storage.index import Filter
from holdfast.storage.words import COMMON, MOST, Tie


def insert(db: apsw.Connection, row: int, record: Record) -> None:
    ties = words.ties_of(record)
    if ties:
        db.executemany("INSERT OR IGNORE INTO ties VALUES (?, ?, ?)", ((*tie, row) for tie in ties))


def related(db: apsw.Connection, identifier: str, where: Filter, limit: int) -> list[tuple[int, float, list[str]]]:
    """Return the rows tied to a record, or to a name that is nobody's id, closest first, each with the reasons."""
    own = [row for (row,) in db.execute("SELECT row FROM records WHERE id = ? AND superseded = 0", (identifier,))]
    found = words.tied(
        identifier, own, lambda way: _names(db, way, own), lambda way, name: _having(db, way, name, where)
    )
    return _best(db, found, limit)


def _names(db: apsw.Connection, way: int, rows: list[int]) -> list[str]:
    return [
        str(name)
        for row in rows
        for (name,) in db.execute("SELECT name FROM ties WHERE row = ? AND way = ?", (row, way))
    ]


def _having(db: apsw.Connection, way: int, name: str, where: Filter) -> list[int]:
    """Return the rows that have a name in this way and pass the filter; none when they are too many to tell."""
    every = db.execute("SELECT row FROM ties WHERE way = ? AND name = ? LIMIT ?", (way, name, MOST + 1)).fetchall()
    if len(every) > MOST:
        return []
    condition, values = conditions(where)
    rows: list[tuple[Any, ...]] = db.execute(
        "SELECT r.row FROM ties t JOIN records r ON r.row = t.row"
        f" WHERE t.way = ? AND t.name = ? AND {condition} LIMIT ?",
        (way, name, *values, COMMON + 1),
    ).fetchall()
    return [row for (row,) in rows] if len(rows) <= COMMON else []


def _best(db: apsw.Connection, found: dict[int, Tie], limit: int) -> list[tuple[int, float, list[str]]]:
    kept: list[tuple[Any, ...]] = []
    rows = list(found)
    for start in range(0, len(rows), 500):
        part = rows[start : start + 500]
        kept += db.execute(
            "SELECT r.row, r.time, f.path, r.sort, r.id FROM records r JOIN files f USING (file)"
            f" WHERE r.row IN ({','.join('?' * len(part))})",
            part,
        ).fetchall()
    kept.sort(key=lambda row: (row[2], row[3], row[4]))
    kept.sort(key=lambda row: str(row[1]), reverse=True)
    kept.sort(key=lambda row: -found[row[0]][0])
    return [(row, *found[row]) for row, *_ in kept[:limit]]


def proof(db: apsw.Connection) -> Iterable[tuple[Any, ...]]:
    """Yield every tie as row, way, name."""
    yield from db.execute("SELECT row, way, name FROM ties")
