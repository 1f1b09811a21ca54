"""Searching the SQLite index: filters, the best records for some words, candidates for ranking, related records.

Words are joined by OR and scored by BM25. Equal scores are ordered by time, then by place, and a limit never cuts a
group of equals: the same files give the same answer however the index was made. Ranking gets pools of candidates: the
best records and their neighbours in the session, with the number of occurrences of each word. These counts come from
the full-text index, so no text is read.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence, Sized
from typing import Any

import apsw
import msgspec

from holdfast.model.kinds import KINDS
from holdfast.model.queries import Terms
from holdfast.model.records import from_path
from holdfast.model.settings import Search
from holdfast.storage import words
from holdfast.storage.files.rows import WORDS, Row, carray, varints
from holdfast.storage.pools import Candidate, Filter, Pool
from holdfast.storage.words import COMMON, IN_ORDER, LINES, MOST, TITLE, Run, Tie, Wanted

_SPARE = 100


# filters


@functools.lru_cache(maxsize=64)
def conditions(where: Filter) -> tuple[str, tuple[Any, ...]]:
    """Return a filter as SQL over `records r`, and its values."""
    parts, values = ["r.superseded = 0"], list[Any]()
    if not where.hidden:
        parts.append("r.hidden = 0")
    if kinds := where.kinds or where.searchable:
        parts.append(f"r.kind IN ({placeholders(kinds)})")
        values += kinds
    if where.scope:
        others = (*from_path(where.scope).above,) if where.above else ()
        others += ("",) if where.shared else ()
        more = f" OR r.scope IN ({placeholders(others)})" if others else ""
        parts.append(f"(r.scope = ? OR (r.scope > ? AND r.scope < ?){more})")
        values += [where.scope, where.scope + "/", where.scope + "0", *others]
    if where.sessions:
        parts.append(f"r.session IN ({placeholders(where.sessions)})")
        values += where.sessions
    if where.tags:
        parts.append("(" + " OR ".join("instr(r.tagged, ?)" for _ in where.tags) + ")")
        values += [words.tagged((tag,)) for tag in where.tags]
    if where.since:
        parts.append("r.time >= ?")
        values.append(where.since)
    if where.until:
        parts.append("r.time <= ? AND r.time != ''")
        values.append(where.until)
    if where.known:
        parts.append("r.time <= ?")  # a record without a time may have been known
        values.append(where.known)
    if where.only:
        parts.append("r.id = ?")
        values.append(where.only)
    return " AND ".join(parts), tuple(values)


def at_or_below(places: tuple[str, ...]) -> tuple[str, list[str]]:
    """Return SQL over `path` for files at or below these places; no places mean everywhere."""
    if not places:
        return "1", []
    values = [value for place in places for value in (place, place + "/", place + "0")]
    return "(" + " OR ".join("path = ? OR (path > ? AND path < ?)" for _ in places) + ")", values


def placeholders(values: Sized) -> str:
    return ",".join("?" * len(values))


# the best records


def newest(db: apsw.Connection, where: Filter, limit: int) -> list[int]:
    """Return the rows of the newest records."""
    condition, values = conditions(where)
    rows = db.execute(
        f"SELECT r.row FROM records r JOIN files f USING (file) WHERE {condition}"
        " ORDER BY r.time DESC, f.path, r.sort DESC, r.id LIMIT ?",
        (*values, limit),
    )
    return [row for (row,) in rows]


def best(db: apsw.Connection, terms: Terms, where: Filter, limit: int, settings: Search) -> list[tuple[int, float]]:
    """Return the rows that match the words best, with their scores."""
    found: list[tuple[int, float]] = []
    tables = _tables(where)
    for table in tables:
        found += _best(db, table, _wanted(db, table, terms, settings), where, limit)
    if len(tables) > 1:
        found.sort(key=lambda row: -row[1])
    return found[:limit]


def _tables(where: Filter) -> list[str]:
    """Return the full-text tables of the kinds that are searched."""
    return list(dict.fromkeys([WORDS[KINDS[name].foreign] for name in where.kinds or where.searchable]))


def _wanted(db: apsw.Connection, table: str, terms: Terms, settings: Search) -> Wanted:
    sql = f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {table} MATCH ? LIMIT ?)"
    return words.telling(terms, settings, lambda run, most: db.execute(sql, (quoted(run), most)).get)


def _best(db: apsw.Connection, table: str, wanted: Wanted, where: Filter, limit: int) -> list[tuple[int, float]]:
    """Return the rows of the best records of a table and their scores, best first."""
    phrases, single = list(map(quoted, wanted.phrases)), " OR ".join(map(quoted, wanted.words))
    expression = " AND ".join(phrases) if phrases else single
    if not expression:
        return []
    if phrases and single:
        expression += f" AND ({phrases[0]} OR {single})"
    many = limit + _SPARE
    score = f"bm25({table}, {TITLE}, 1.0, 1.0)"
    scored: list[Row] = db.execute(
        f"SELECT rowid, {score} AS score FROM {table} WHERE {table} MATCH ? ORDER BY score LIMIT ?",
        (expression, many),
    ).fetchall()
    complete = len(scored) < many
    if not complete:
        edge = scored[-1][1]
        scored = [row for row in scored if row[1] < edge]  # the last group of equals may have been cut
    scores: dict[int, float] = dict(scored)
    rows = passing(db, scores, where)
    if len(rows) >= limit or complete:
        return [(row, -scores[row]) for row in rows[:limit]]
    condition, values = conditions(where)
    found: Iterable[Row] = db.execute(
        f"SELECT r.row, {score} AS score FROM {table} CROSS JOIN records r NOT INDEXED ON r.row = {table}.rowid"
        " CROSS JOIN files f ON f.file = r.file"
        f" WHERE {table} MATCH ? AND {condition} ORDER BY score, r.time DESC, f.path, r.sort, r.id LIMIT ?",
        (expression, *values, limit),
    )
    return [(row, -score) for row, score in found]


def passing(db: apsw.Connection, scores: dict[int, float], where: Filter) -> list[int]:
    """Return the rows that pass a filter, those with the lowest scores first, then by time and place."""
    condition, values = conditions(where)
    found = db.execute(
        "SELECT r.row FROM carray(?) CROSS JOIN records r NOT INDEXED ON r.row = value"
        f" CROSS JOIN files f ON f.file = r.file WHERE {condition} ORDER BY r.time DESC, f.path, r.sort, r.id",
        (carray(scores), *values),
    )
    rows: list[int] = [row for (row,) in found]
    rows.sort(key=scores.__getitem__)
    return rows


def quoted(run: Run) -> str:
    """Return a run of tokens as an FTS5 string, so that no token is syntax."""
    return '"' + " ".join(run) + '"'


# what ranking needs

_NEIGHBOUR = (
    "(SELECT o.row FROM records o INDEXED BY records_talk WHERE o.file = r.file AND o.session = r.session"
    " AND o.sort {sign} r.sort AND NOT o.hidden AND NOT o.superseded ORDER BY o.sort {way} LIMIT 1 OFFSET {past})"
)
_NEIGHBOURS = (
    f"SELECT {_NEIGHBOUR.format(sign='<', way='DESC', past=1)}, {_NEIGHBOUR.format(sign='<', way='DESC', past=0)},"
    f" r.row, {_NEIGHBOUR.format(sign='>', way='ASC', past=0)}, {_NEIGHBOUR.format(sign='>', way='ASC', past=1)}"
    f" FROM carray(?) CROSS JOIN records r ON r.row = value WHERE r.kind IN ({placeholders(IN_ORDER)})"
)


def pools(db: apsw.Connection, terms: Terms, where: Filter, most: int, settings: Search) -> list[Pool]:
    """Return the candidates for some words, in one pool per full-text table."""
    found = []
    for table in _tables(where):
        wanted = _wanted(db, table, terms, settings)
        best = [row for row, _ in _best(db, table, wanted, where, most)]
        totals = db.execute(f"SELECT block FROM {table}_data WHERE id = 1").get
        records, *lengths = (varints(totals) if isinstance(totals, bytes) else []) or [1, 1]  # empty so far
        pool = Pool(
            foreign=table != WORDS[0], words=tuple(map(" ".join, (*wanted.phrases, *wanted.words))),
            held=tuple(wanted.held), records=max(1, records), length=max(1.0, sum(lengths) / max(1, records)),
        )  # fmt: skip
        found.append(_filled(db, pool, where, best))
    return found


def widened(db: apsw.Connection, pool: Pool, where: Filter, rows: Sequence[int]) -> Pool:
    """Add rows to a pool, if its full-text table has them, and their neighbours."""
    fresh = [row for row in rows if row not in pool.candidates]
    lengths = _lengths(db, WORDS[pool.foreign], fresh)
    return _filled(db, pool, where, [row for row in fresh if row in lengths])


def _filled(db: apsw.Connection, pool: Pool, where: Filter, best: list[int]) -> Pool:
    """Add rows and their neighbours to a pool as candidates, except records written after the time of asking."""
    if not best:
        return pool
    table, after = WORDS[pool.foreign], dict[int, int]()
    chains: Iterable[Row] = db.execute(_NEIGHBOURS, (carray(best), *IN_ORDER))
    for chain in chains:
        last = None
        for row in chain:
            if row is not None:
                if last is not None:
                    after[last] = row
                last = row
    rows = [row for row in dict.fromkeys([*best, *after, *after.values()]) if row not in pool.candidates]
    counts: dict[int, bytes] = {}
    if pool.words:
        counts = dict(
            db.execute(
                f"SELECT rowid, counted({table}) FROM {table} WHERE {table} MATCH ? AND +rowid IN carray(?)",
                (" OR ".join([quoted((word,)) for word in pool.words]), carray(rows)),
            )
        )
    lengths = _lengths(db, table, rows)
    condition, values = conditions(where)
    known, times = (" WHERE r.time <= ?", [where.known]) if where.known else ("", [])
    found: Iterable[Row] = db.execute(
        f"SELECT r.row, r.id, r.kind, r.session, r.time, f.path, r.sort, r.author, r.agent, r.priority, r.mark,"
        f" {condition} FROM carray(?) CROSS JOIN records r ON r.row = value CROSS JOIN files f ON f.file = r.file"
        f"{known}",
        (*values, carray(rows), *times),
    )
    candidates = {
        row: Candidate(
            id, (path, session if kind in LINES else id), time, (path, sort, id), author, bool(agent),
            counts.get(row, b""), lengths.get(row, 1), priority, mark, bool(inside),
        )
        for row, id, kind, session, time, path, sort, author, agent, priority, mark, inside in found
    }  # fmt: skip
    candidates = {**pool.candidates, **candidates}
    linked = {one: other for one, other in after.items() if one in candidates and other in candidates}
    return msgspec.structs.replace(pool, candidates=candidates, after={**pool.after, **linked})


def _lengths(db: apsw.Connection, table: str, rows: list[int]) -> dict[int, int]:
    """Return the number of words of each of these rows."""
    found: Iterable[Row] = db.execute(f"SELECT id, sz FROM {table}_docsize WHERE id IN carray(?)", (carray(rows),))
    return {row: sum(size) if max(size) < 0x80 else sum(varints(size)) for row, size in found}


# related records


def having(db: apsw.Connection, ties: Iterable[Tie], where: Filter) -> dict[Tie, list[int]]:
    """Return the rows of each tie that pass the filter; none when a tie has too many to mean anything."""
    condition, values = conditions(where)
    found: dict[Tie, list[int]] = {}
    for way, name in ties:
        many = db.execute("SELECT 1 FROM ties WHERE way = ? AND name = ? LIMIT 1 OFFSET ?", (way, name, MOST)).get
        if many is None:
            rows: list[Row] = db.execute(
                "SELECT r.row FROM ties t JOIN records r ON r.row = t.row"
                f" WHERE t.way = ? AND t.name = ? AND {condition} LIMIT ?",
                (way, name, *values, COMMON + 1),
            ).fetchall()
            if len(rows) <= COMMON:
                found[way, name] = list(itertools.chain.from_iterable(rows))
    return found
