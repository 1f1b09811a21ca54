"""What ties records together in the SQLite index: the names they bear, the names they link to, and their tags.

One table holds all three. Two records are tied when one links to the other, when both speak of the same thing (a name
that both link to, whether or not anything bears it), or when they share a tag. The rarer what they share, the closer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw

from holdfast.formats.links import names_of, normal
from holdfast.index import Filter
from holdfast.index._rank import conditions
from holdfast.kinds import KINDS
from holdfast.names import same
from holdfast.records import Record

_NAME, _LINK, _TAG = 1, 2, 3
_COMMON = 200
"""What more records share than this says nothing of any of them."""
_MOST = 5_000
"""Of what so many share everywhere it is not even asked how many of them pass a filter."""
Tie = tuple[float, list[str]]


def insert(db: apsw.Connection, row: int, record: Record) -> None:
    """Note a record's names, links and tags; what is cold or Holdfast's own is tied to nothing."""
    kind = KINDS[record.kind]
    if kind.layer not in ("hot", "warm") or not kind.searchable:
        return
    ties = [(_NAME, name, row) for name in names_of(record)]
    ties += [(_LINK, name, row) for name in dict.fromkeys(map(normal, record.links)) if name]
    ties += [(_TAG, name, row) for name in dict.fromkeys(map(same, record.tags)) if name]
    if ties:
        db.executemany("INSERT OR IGNORE INTO ties VALUES (?, ?, ?)", ties)


def related(db: apsw.Connection, identifier: str, where: Filter, limit: int) -> list[tuple[int, float, list[str]]]:
    """Return the rows tied to a record, or to a name that is nobody's id, closest first, each with the reasons."""
    own = [row for (row,) in db.execute("SELECT row FROM records WHERE id = ? AND superseded = 0", (identifier,))]
    bears, links, tags = (_names(db, way, own) for way in (_NAME, _LINK, _TAG))
    if not own:
        bears, links, tags = [], [normal(identifier)], [same(identifier)]
    found: dict[int, Tie] = {}
    for way, names, weight, how in (
        (_NAME, links, 3.0, "linked to" if own else "is"),
        (_LINK, bears, 3.0, "links here"),
        (_LINK, links, 2.0, "also links to {name}" if own else "links to {name}"),
        (_TAG, tags, 1.0, "tagged {name}"),
    ):
        for name in names:
            _gather(found, _having(db, way, name, where), weight, how.format(name=name))
    for row in own:
        found.pop(row, None)
    return _best(db, found, limit)


def _names(db: apsw.Connection, way: int, rows: list[int]) -> list[str]:
    return [
        str(name)
        for row in rows
        for (name,) in db.execute("SELECT name FROM ties WHERE row = ? AND way = ?", (row, way))
    ]


def _having(db: apsw.Connection, way: int, name: str, where: Filter) -> list[int]:
    """Return the rows that have a name in this way and pass the filter; none when they are too many to tell."""
    every = db.execute("SELECT row FROM ties WHERE way = ? AND name = ? LIMIT ?", (way, name, _MOST + 1)).fetchall()
    if len(every) > _MOST:
        return []
    condition, values = conditions(where)
    rows: list[tuple[Any, ...]] = db.execute(
        "SELECT r.row FROM ties t JOIN records r ON r.row = t.row"
        f" WHERE t.way = ? AND t.name = ? AND {condition} LIMIT ?",
        (way, name, *values, _COMMON + 1),
    ).fetchall()
    return [row for (row,) in rows] if len(rows) <= _COMMON else []


def _gather(found: dict[int, Tie], rows: list[int], weight: float, how: str) -> None:
    """Add these rows; what few share counts more."""
    for row in rows:
        score, reasons = found.get(row, (0.0, []))
        found[row] = (score + weight / len(rows), [*reasons, how])


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
