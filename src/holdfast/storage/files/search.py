"""Searching the SQLite index: filters, the best records for some words, candidates for ranking, related records.

Words are joined by OR and scored by BM25. Equal scores are ordered by time, then by place, and a limit never cuts a
group of equals: the same files give the same answer however the index was made. Ranking gets pools of candidates: the
best records and their neighbours in the session, with the number of occurrences of each word. These counts come from
the full-text index, so no text is read.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from typing import Any

import apsw
import msgspec

from holdfast.formats import markdown
from holdfast.model.kinds import KINDS
from holdfast.model.queries import Terms
from holdfast.model.records import HALF, Problem, Record, from_path
from holdfast.model.settings import Search
from holdfast.storage import words
from holdfast.storage.files.rows import WORDS, Row, Seen, Stale, carray, load, record_in, revive, seen_in, varints
from holdfast.storage.results import Candidate, Filter, Pool, Tied
from holdfast.storage.store import Applied
from holdfast.storage.words import COMMON, IN_ORDER, LINES, MOST, TITLE, Run, Tie, Wanted

_SPARE, _PART, _MARKS = 50, 100, 50_000
"""How many more rows are scored than wanted, since a filter may drop some; how many marks are looked up, and how many
are read, at a time."""


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
        others += ("",) if where.unscoped else ()
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


def as_json(values: Iterable[Any]) -> str:
    """Return values as a table `json_each(?)`."""
    return msgspec.json.encode(list(values)).decode()


def placeholders(values: Sized) -> str:
    return ",".join("?" * len(values))


class Questions:
    """The queries of an index."""

    def __init__(self, settings: Search) -> None:
        self._settings = settings

    def _using(self) -> AbstractContextManager[apsw.Connection]:
        """Lock the index and open its connection."""
        raise NotImplementedError

    def _rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[Row]:
        with self._using() as db:
            return db.execute(sql, values).fetchall()

    def _some(self, condition: str, values: tuple[Any, ...], order: str = "r.sort, f.path") -> list[Record]:
        with self._using() as db:
            rows = db.execute(
                "SELECT r.record, r.hidden, r.superseded FROM records r JOIN files f USING (file)"
                f" WHERE {condition} ORDER BY {order}",
                values,
            )
            return [revive(*row) for row in rows]

    # recall

    def newest(self, where: Filter, limit: int) -> list[Record]:
        """Return the newest records that pass a filter; all of them with a negative limit."""
        condition, values = conditions(where)
        with self._using() as db:
            found = db.execute(
                f"SELECT r.row FROM records r JOIN files f USING (file) WHERE {condition}"
                " ORDER BY r.time DESC, f.path, r.sort DESC, r.id LIMIT ?",
                (*values, limit),
            )
            rows: list[int] = [row for (row,) in found]
            records = load(db, rows)  # not read while sorting
            return [records[row] for row in rows if row in records]

    def best(self, terms: Terms, where: Filter, limit: int, *, rarest: int = 0) -> list[tuple[Record, float]]:
        """Return the records that match these words best, by words alone, with their scores.

        With `rarest`, only so many words count: the rarest ones that at least two records contain.
        """
        found: list[tuple[int, float]] = []
        with self._using() as db:
            for table in _tables(where):
                wanted = self._wanted(db, table, terms)
                if rarest:
                    counts = zip(wanted.held[len(wanted.phrases) :], wanted.words, strict=True)
                    rare = sorted(pair for pair in counts if pair[0] > 1)[:rarest]
                    wanted = Wanted([], [run for _, run in rare], [held for held, _ in rare])
                found += _best(db, table, wanted, where, limit)
            found = sorted(found, key=lambda row: -row[1])[:limit]
            records = load(db, [row for row, _ in found])
            return [(records[row], score) for row, score in found if row in records]

    def pools(
        self, terms: Terms, where: Filter, most: int, nearest: Callable[[Pool], Iterable[int]] = lambda _pool: ()
    ) -> list[Pool]:
        """Return the records that match these words best, with their neighbours, in one pool per full-text table.

        Words are weighed per pool. A pool without candidates still has the word statistics; given those, `nearest`
        returns more rows to add.
        """
        found = []
        with self._using() as db:
            for table in _tables(where):
                wanted = self._wanted(db, table, terms)
                totals = db.execute(f"SELECT block FROM {table}_data WHERE id = 1").get
                records, *lengths = (varints(totals) if isinstance(totals, bytes) else []) or [1, 1]  # empty so far
                pool = Pool(
                    on_request=table != WORDS[0], words=tuple(map(" ".join, (*wanted.phrases, *wanted.words))),
                    held=tuple(wanted.held), records=max(1, records), length=max(1.0, sum(lengths) / max(1, records)),
                )  # fmt: skip
                best = [row for row, _ in _best(db, table, wanted, where, most, wanted.rarest)]
                found.append(_filled(db, pool, where, [*dict.fromkeys((*best, *nearest(pool)))]))
        return found

    def _wanted(self, db: apsw.Connection, table: str, terms: Terms) -> Wanted:
        one = f"(SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {table} MATCH ? LIMIT ?))"

        def count(runs: Sequence[Run], most: int) -> Sequence[int]:
            values = [value for run in runs for value in (quoted(run), most)]
            rows: list[Row] = db.execute(f"SELECT {', '.join([one] * len(runs))}", values).fetchall() if runs else [()]
            return rows[0]

        return words.rare_words(terms, self._settings, count)

    def load(self, rows: Iterable[int]) -> dict[int, Record]:
        """Return the records of these rows that still exist."""
        with self._using() as db:
            return load(db, rows)

    def related(self, own: Mapping[str, Sequence[Record]], where: Filter, limit: int) -> dict[str, list[Tied]]:
        """Return the records most closely related to each id, by its own records; without one, it is a name."""
        with self._using() as db:
            having = functools.partial(_having, db, where=where)
            return words.related(own, having, functools.partial(load, db), limit)

    def seen(self, below: tuple[str, ...] = ()) -> dict[str, Seen]:
        """Return the state of every indexed file, or of those at or below these places, when it was read."""
        condition, values = at_or_below(below)
        with self._using() as db:
            rows = db.execute(f"SELECT path, seen FROM files WHERE {condition}", values)
            return {path: seen_in(seen) for path, seen in rows}

    def look(self, path: str) -> Seen | None:
        with self._using() as db:
            found = db.execute("SELECT seen FROM files WHERE path = ?", (path,)).get
            return seen_in(found) if found is not None else None

    def last_row(self) -> int:
        ((found,),) = self._rows("SELECT max(row) FROM records")
        return int(found or 0)

    def marks(self, kinds: Sequence[str], after: int = 0) -> Iterator[dict[int, int]]:
        """Yield the hash of the content of each current record of these kinds, hidden ones too, of rows after one.

        Within one generation a row always means the same record with the same content, and later ones are greater.
        """
        by = "NOT INDEXED" if after else "INDEXED BY records_mark"  # which has all columns that are needed
        condition = f"row > ? AND kind IN ({placeholders(kinds)}) AND NOT superseded"
        with self._using() as db:
            found = db.execute(f"SELECT row, mark FROM records {by} WHERE {condition}", (after, *kinds))
            while part := dict(itertools.islice(found, _MARKS)):
                yield part

    def marks_inside(self, where: Filter) -> list[int]:
        """Return the hash of the content of each record that passes a filter."""
        condition, values = conditions(where)
        return [mark for (mark,) in self._rows(f"SELECT r.mark FROM records r WHERE {condition}", values)]

    def having_marks(self, marks: Sequence[int], pool: Pool, where: Filter, limit: int) -> list[int]:
        """Return the first rows of a pool that pass a filter and whose content has one of these marks, in their order.

        Rows with the same content are in the order of time, then of place.
        """
        condition, values = conditions(where)
        sql = (
            "SELECT r.mark, r.row FROM carray(?) CROSS JOIN records r INDEXED BY records_mark ON r.mark = value"
            f" CROSS JOIN {WORDS[pool.on_request]}_docsize d ON d.id = r.row CROSS JOIN files f ON f.file = r.file"
            f" WHERE {condition} ORDER BY r.time DESC, f.path, r.sort, r.id"
        )
        rows: list[int] = []
        for start in range(0, len(marks), _PART):
            part, found = marks[start : start + _PART], dict[int, list[int]]()
            for mark, row in self._rows(sql, (carray(part), *values)):
                found.setdefault(mark, []).append(row)
            rows += [row for mark in part for row in found.get(mark, ())]
            if len(rows) >= limit:
                break
        return rows[:limit]

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
        """Return the effects of an op_id."""
        found = [Applied(record.path, record.id, record.fields) for record in self._some("r.op = ?", (op_id,))]
        marks = self._rows("SELECT path, target FROM marks JOIN files USING (file) WHERE op = ?", (op_id,))
        return found + [Applied(path, target, marks=True) for path, target in marks]

    def last_writes(self, targets: Collection[str]) -> dict[str, Record]:
        """Return the newest entry of the write log about each of these documents and sections."""
        newest = "SELECT record FROM records WHERE key = value AND kind = 'write' ORDER BY sort DESC LIMIT 1"
        found = self._rows(f"SELECT value, ({newest}) FROM json_each(?)", (as_json(targets),))
        return {target: record_in(blob) for target, blob in found if blob is not None}

    def beside(self, path: str, order: str, limit: int, *, after: bool) -> list[Record]:
        sign, way = (">", "ASC") if after else ("<", "DESC")
        condition = f"f.path = ? AND r.sort {sign} ? AND NOT r.hidden AND NOT r.superseded"
        return self._some(condition, (path, order), f"r.sort {way} LIMIT {int(limit)}")

    def records(self, path: str) -> list[Record]:
        """Return everything indexed from one file, in file order."""
        return self._some("f.path = ?", (path,), "r.row")

    def ids(self, path: str, among: Sequence[str] | None = None) -> set[str]:
        """Return the ids of the entries of a log, also of those that hide another one, or those among some ids."""
        some = "" if among is None else "AND {0} IN (SELECT value FROM json_each(?2))"
        sql = f"SELECT {{0}} FROM {{1}} JOIN files USING (file) WHERE path = ?1 {some}"
        given = (path,) if among is None else (path, as_json(among))
        return {id for of in (("id", "records"), ("sort", "marks")) for (id,) in self._rows(sql.format(*of), given)}

    def problems(self, below: tuple[str, ...] = ()) -> list[Problem]:
        """Return the problems in all files, or at or below these places."""
        condition, values = at_or_below(below)
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
            return found + [Problem(path, HALF, record_in(blob).line) for path, blob in halves]

    def problem_count(self) -> int:
        ((found,),) = self._rows(
            "SELECT (SELECT count(*) FROM problems WHERE NOT minor)"
            " + (SELECT count(*) FROM records INDEXED BY records_alone WHERE alone)"
        )
        return int(found)

    def conflicts(self) -> list[Problem]:
        """Return the conflicts that git left, a few of them."""
        sql = "SELECT path, what, line FROM problems JOIN files USING (file) WHERE what LIKE ? ORDER BY path LIMIT 5"
        return [Problem(*row) for row in self._rows(sql, (f"{markdown.CONFLICT}%",))]

    def hidden_in(self, path: str) -> dict[str, bool]:
        """Return, for each id or key with marks in a log, whether the newest mark hides it."""
        sql = "SELECT target, hidden, max(sort) FROM marks JOIN files USING (file) WHERE path = ? GROUP BY target"
        return {target: bool(hidden) for target, hidden, _ in self._rows(sql, (path,))}

    def alone_in(self, path: str) -> set[str]:
        """Return the ids of the lines of a log that belong to a pair whose other line is missing."""
        sql = "SELECT id FROM records INDEXED BY records_alone JOIN files USING (file) WHERE alone AND path = ?"
        return {identifier for (identifier,) in self._rows(sql, (path,))}

    def noted(self, name: str) -> str:
        """Return a note, "" if there is none."""
        found = self._rows("SELECT value FROM meta WHERE name = ?", (name,))
        return str(found[0][0] or "") if found else ""

    def count(self, path: str, after: str) -> int:
        # without `after`, all records are counted in an index, without reading them
        by, later = ("records_order", "AND sort > ?2") if after else ("records_talk", "")
        ((found,),) = self._rows(
            f"SELECT count(*) FROM records INDEXED BY {by} WHERE file = (SELECT file FROM files WHERE path = ?1)"
            f" AND NOT hidden AND NOT superseded {later}",
            (path, after) if after else (path,),
        )
        return int(found)

    def counts(self) -> dict[str, int]:
        """Count the records of each kind."""
        return dict(self._rows("SELECT kind, count(*) FROM records GROUP BY kind ORDER BY kind"))


# the best records


def _tables(where: Filter) -> list[str]:
    """Return the full-text tables of the kinds that are searched."""
    return list(dict.fromkeys([WORDS[KINDS[name].on_request] for name in where.kinds or where.searchable]))


def _best(
    db: apsw.Connection, table: str, wanted: Wanted, where: Filter, limit: int, rarest: Sequence[Run] = ()
) -> list[tuple[int, float]]:
    """Return the rows of the best records of a table and their scores, best first.

    Given the rarest of the words, only records with one of these are scored, and these words count twice. When too few
    of them pass the filter, all words find records.
    """
    phrases, single = list(map(quoted, wanted.phrases)), " OR ".join(map(quoted, wanted.words))
    expression = " AND ".join(phrases) if phrases else single
    if not expression:
        return []
    if phrases and single:
        expression += f" AND ({phrases[0]} OR {single})"
    narrowed = bool(rarest) and not phrases and len(rarest) < len(wanted.words)
    if narrowed:
        expression = f"({' OR '.join(map(quoted, rarest))}) AND ({single})"
    many, sql = limit + _SPARE, f"SELECT rowid, bm25({table}, {TITLE}, 1.0, 1.0) AS score FROM {table}"
    while True:
        sorted_by = f"{sql} WHERE {table} MATCH ? ORDER BY score LIMIT ?"
        scored: list[Row] = db.execute(sorted_by, (expression, many)).fetchall()
        complete = len(scored) < many
        if any(score is None for _, score in scored):
            raise Stale("the index is damaged: its totals give no scores")
        if not complete:
            edge = scored[-1][1]
            scored = [row for row in scored if row[1] < edge]  # the last group of equals may have been cut
        scores: dict[int, float] = dict(scored)
        rows = passing(db, scores, where)
        if narrowed and complete and len(rows) < limit:
            return _best(db, table, wanted, where, limit)
        if len(rows) >= limit or complete:
            return [(row, -scores[row]) for row in rows[:limit]]
        many *= 8


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


# the input of ranking

_NEIGHBOUR = (
    "(SELECT o.row FROM records o INDEXED BY records_talk WHERE o.file = r.file AND o.session = r.session"
    " AND o.sort {sign} r.sort AND NOT o.hidden AND NOT o.superseded ORDER BY o.sort {way} LIMIT 1 OFFSET {past})"
)
_NEIGHBOURS = (
    f"SELECT {_NEIGHBOUR.format(sign='<', way='DESC', past=1)}, {_NEIGHBOUR.format(sign='<', way='DESC', past=0)},"
    f" r.row, {_NEIGHBOUR.format(sign='>', way='ASC', past=0)}, {_NEIGHBOUR.format(sign='>', way='ASC', past=1)}"
    f" FROM carray(?) CROSS JOIN records r ON r.row = value WHERE r.kind IN ({placeholders(IN_ORDER)})"
)


def _filled(db: apsw.Connection, pool: Pool, where: Filter, best: list[int]) -> Pool:
    """Add rows and their neighbours to a pool as candidates, except records written after the time of asking."""
    if not best:
        return pool
    table, after = WORDS[pool.on_request], dict[int, int]()
    chains: Iterable[Row] = db.execute(_NEIGHBOURS, (carray(best), *IN_ORDER))
    for chain in chains:
        last = None
        for row in chain:
            if row is not None:
                if last is not None:
                    after[last] = row
                last = row
    rows = carray(dict.fromkeys([*best, *after, *after.values()]))
    counts: dict[int, bytes] = {}
    if pool.words:
        counts = dict(
            db.execute(
                f"SELECT rowid, counted({table}) FROM {table} WHERE {table} MATCH ? AND +rowid IN carray(?)",
                (" OR ".join([quoted((word,)) for word in pool.words]), rows),
            )
        )
    condition, values = conditions(where)
    known, times = (" WHERE r.time <= ?", [where.known]) if where.known else ("", [])
    found: Iterable[Row] = db.execute(
        f"SELECT r.row, r.id, r.kind, r.session, r.time, f.path, r.sort, r.author, r.agent, r.priority, r.mark,"
        f" {condition}, d.sz FROM carray(?) CROSS JOIN records r ON r.row = value CROSS JOIN files f ON f.file = r.file"
        f" LEFT JOIN {table}_docsize d ON d.id = r.row{known}",
        (*values, rows, *times),
    )
    candidates = {
        row: Candidate(
            id, (path, session if kind in LINES else id), time, (path, sort, id), author, agent == 1,
            counts.get(row, b""), _total(size), priority, mark, inside == 1,
        )
        for row, id, kind, session, time, path, sort, author, agent, priority, mark, inside, size in found
    }  # fmt: skip
    linked = {one: other for one, other in after.items() if one in candidates and other in candidates}
    return msgspec.structs.replace(pool, candidates=candidates, after=linked)


def _total(sizes: bytes | None) -> int:
    """Return the number of words of a record in all columns; 1 for a record that is not searched."""
    return 1 if sizes is None else sum(sizes) if max(sizes) < 0x80 else sum(varints(sizes))


def _having(db: apsw.Connection, ties: Iterable[Tie], where: Filter) -> dict[Tie, list[int]]:
    """Return the rows of each tie that pass the filter; none if a tie has too many to be meaningful."""
    condition, values = conditions(where)
    rows: Iterable[Row] = db.execute(
        "WITH asked AS MATERIALIZED (SELECT value ->> 0 AS way, value ->> 1 AS name FROM json_each(?) WHERE"
        " (SELECT 1 FROM ties t WHERE t.way = value ->> 0 AND t.name = value ->> 1 LIMIT 1 OFFSET ?) IS NULL)"
        " SELECT t.way, t.name, t.row FROM asked a CROSS JOIN ties t ON t.way = a.way AND t.name = a.name"
        f" CROSS JOIN records r ON r.row = t.row WHERE {condition}",
        (as_json(ties), MOST, *values),
    )
    found: dict[Tie, list[int]] = {}
    for way, name, row in rows:
        found.setdefault((way, name), []).append(row)
    return {tie: rows for tie, rows in found.items() if len(rows) <= COMMON}
