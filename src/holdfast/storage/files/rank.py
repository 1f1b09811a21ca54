"""How the SQLite index finds the best records for some words.

Words are joined by or and ranked by BM25, the title counting more than the text. Ranking costs time for every
matching record, so words that stand in very many records are left out while rarer ones remain. Equal scores are
ordered by time, then by place, and a cut never falls inside a group of equals: the same files give the same answer
however the index came to be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw

from holdfast.model.kinds import Kind
from holdfast.model.queries import Terms
from holdfast.model.scopes import from_path
from holdfast.model.settings import Search
from holdfast.storage import words as _common
from holdfast.storage.files.schema import WORDS
from holdfast.storage.index import Filter
from holdfast.storage.stems import stems
from holdfast.storage.words import Wanted

_SCORE = f"bm25({{table}}, {_common.TITLE}, 1.0, 1.0)"
_SPARE = 100
Row = tuple[Any, ...]


def words_of(kind: Kind) -> str:
    """Return the table that has the words of a kind."""
    return WORDS[kind.foreign]


def telling(db: apsw.Connection, table: str, terms: Terms, settings: Search) -> Wanted:
    """Return the words of a query whose ranking does not cost more than they tell."""
    return _common.telling(terms, settings, stems, lambda run, most: _count(db, table, run, most))


def of_table(db: apsw.Connection, table: str, wanted: Wanted, where: Filter, limit: int) -> list[tuple[int, float]]:
    """Return the rows of the best records of a table and their scores, best first."""
    expression = _expression(wanted)
    if not expression:
        return []
    condition, values = conditions(where)
    many = limit + _SPARE
    score = _SCORE.format(table=table)
    best: list[Row] = db.execute(
        f"SELECT rowid, {score} AS score FROM {table} WHERE {table} MATCH ? ORDER BY score LIMIT ?",
        (expression, many),
    ).fetchall()
    complete = len(best) < many
    if not complete:
        edge = best[-1][1]
        best = [row for row in best if row[1] < edge]  # the last group of equals may have been cut
    found = _among(db, best, condition, values)
    if len(found) >= limit or complete:
        return found[:limit]
    rows: Iterable[Row] = db.execute(
        f"SELECT r.row, {score} AS score FROM {table} CROSS JOIN records r NOT INDEXED ON r.row = {table}.rowid"
        " CROSS JOIN files f ON f.file = r.file"
        f" WHERE {table} MATCH ? AND {condition} ORDER BY score, r.time DESC, f.path, r.sort, r.id LIMIT ?",
        (expression, *values, limit),
    )
    return [(row, -score) for row, score in rows]


def best_of(db: apsw.Connection, scored: Iterable[tuple[int, float]], where: Filter) -> list[int]:
    """Return those of some scored rows that pass the filter, the best first."""
    condition, values = conditions(where)
    return [row for row, _ in _among(db, [(row, -score) for row, score in scored], condition, values)]


def newest(db: apsw.Connection, where: Filter, limit: int) -> list[int]:
    """Return the rows of the newest records."""
    condition, values = conditions(where)
    rows = db.execute(
        f"SELECT r.row FROM records r JOIN files f USING (file) WHERE {condition}"
        " ORDER BY r.time DESC, f.path, r.sort DESC, r.id LIMIT ?",
        (*values, limit),
    )
    return [row for (row,) in rows]


def conditions(where: Filter) -> tuple[str, list[Any]]:
    """Return the filter as SQL over `records r`."""
    parts, values = ["r.superseded = 0"], list[Any]()
    if not where.hidden:
        parts.append("r.hidden = 0")
    if kinds := where.kinds or where.searchable:
        parts.append(f"r.kind IN ({holes(kinds)})")
        values += kinds
    if where.scope:
        others = (*from_path(where.scope).above,) if where.above else ()
        others += ("",) if where.shared else ()
        more = f" OR r.scope IN ({holes(others)})" if others else ""
        parts.append(f"(r.scope = ? OR (r.scope > ? AND r.scope < ?){more})")
        values += [where.scope, where.scope + "/", where.scope + "0", *others]
    if where.sessions:
        parts.append(f"r.session IN ({holes(where.sessions)})")
        values += where.sessions
    if where.tags:
        parts.append("(" + " OR ".join("instr(r.tagged, ?)" for _ in where.tags) + ")")
        values += [_common.tagged((tag,)) for tag in where.tags]
    if where.since:
        parts.append("r.time >= ?")
        values.append(where.since)
    if where.until:
        parts.append("r.time <= ? AND r.time != ''")
        values.append(where.until)
    if where.known:
        parts.append("r.time <= ?")  # what does not say when it was written may have been known
        values.append(where.known)
    if where.only:
        parts.append("r.id = ?")
        values.append(where.only)
    return " AND ".join(parts), values


def at_or_below(places: tuple[str, ...]) -> tuple[str, list[str]]:
    """Return as SQL over `path` that a file is one of these, or lies below one; no places mean everywhere."""
    if not places:
        return "1", []
    values = [value for place in places for value in (place, place + "/", place + "0")]
    return "(" + " OR ".join("path = ? OR (path > ? AND path < ?)" for _ in places) + ")", values


def _among(db: apsw.Connection, best: list[Row], condition: str, values: list[Any]) -> list[tuple[int, float]]:
    """Keep the rows that pass the filter, in the order of score, time and place."""
    result = []
    for start in range(0, len(best), 500):
        part: dict[int, float] = dict(best[start : start + 500])
        rows = db.execute(
            "SELECT r.row, r.time, f.path, r.sort, r.id"
            " FROM records r NOT INDEXED CROSS JOIN files f ON f.file = r.file"
            f" WHERE r.row IN ({holes(part)}) AND {condition}",
            (*part, *values),
        )
        result += [(part[row[0]], row) for row in rows]
    result.sort(key=lambda item: (item[1][2], item[1][3], item[1][4]))
    result.sort(key=lambda item: item[1][1], reverse=True)
    result.sort(key=lambda item: item[0])
    return [(row[0], -score) for score, row in result]


def _expression(wanted: Wanted) -> str:
    """Write the words as an FTS5 expression; every token is quoted, so none is syntax."""
    phrases, words = list(map(quoted, wanted.phrases)), list(map(quoted, wanted.words))
    if not phrases:
        return " OR ".join(words)
    return " AND ".join(phrases) + (f" AND ({phrases[0]} OR {' OR '.join(words)})" if words else "")


def _count(db: apsw.Connection, table: str, run: tuple[str, ...], most: int) -> int:
    sql = f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {table} MATCH ? LIMIT ?)"
    return int(db.execute(sql, (quoted(run), most)).get)


def quoted(run: tuple[str, ...]) -> str:
    return '"' + " ".join(run) + '"'


def holes(values: object) -> str:
    return ",".join("?" * len(values))  # type: ignore[arg-type]  # any sized collection
