"""Search in the index of a database: filters as SQL, candidates by words, related records.

The server narrows: it ranks the records that contain a rare enough word, weighting each word by its rarity. The exact
order is computed here by BM25 from the positions of the words, as the embedded engine does. Words are lexemes of a
`tsvector`: the mark of the index, `o` for own or `f` for foreign records, and the stem. Titles have weight A.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.model.kinds import KINDS
from holdfast.model.queries import Terms
from holdfast.model.records import Record
from holdfast.model.scopes import from_path
from holdfast.model.settings import Search
from holdfast.storage import words
from holdfast.storage.index import Candidate, Filter, Pool, Tied
from holdfast.storage.postgres.database import Transaction
from holdfast.storage.postgres.generations import HERE, Generation
from holdfast.storage.stems import stems
from holdfast.storage.words import IN_ORDER, LINES, LINK, NAME, TAG, TITLE, Run, Wanted, revive

OF = "r.tenant = %(tenant)s AND r.generation = %(generation)s"
FILE = "JOIN holdfast.index_files f ON f.tenant = %(tenant)s AND f.generation = %(generation)s AND f.file = r.file"
PREFIX = 6
"""Characters before the stem in a lexeme."""
LONGEST_STEM = 500
MOST_COUNTED = 255
_TITLE_WEIGHT = 3
_SPARE = 100
_RANKED = 15_000
"""Of words that are in more records than this taken together, the most common only rank what the rarer ones find."""
_K, _B = 1.2, 0.75
_ONE = 6.5797
"""Scales `ts_rank` so that a word that occurs once weighs one."""
_FEW = 1e-6
_LONG = 60
"""Longer records are mostly compressed: they are decompressed once, and not for each word."""
_NEAR = """
SELECT o.row FROM holdfast.index_records o WHERE o.tenant = %(tenant)s AND o.generation = %(generation)s
AND o.file = r.file AND o.session = r.session AND o.sort {sign} r.sort AND NOT o.hidden AND NOT o.superseded
ORDER BY o.sort {way} LIMIT 2
"""
_BESIDE = (
    "SELECT r.row, ARRAY(" + _NEAR.format(sign="<", way="DESC") + "), ARRAY(" + _NEAR.format(sign=">", way="ASC") + ")"
    f" FROM holdfast.index_records r WHERE {OF} AND r.row = ANY(%(rows)s::bigint[]) AND r.kind = ANY(%(kinds)s)"
)
_HAVING = f"""
SELECT wanted.way, wanted.name, found.row
FROM unnest(%(ways)s::smallint[], %(names)s::text[]) AS wanted (way, name) CROSS JOIN LATERAL (
    SELECT row FROM holdfast.index_ties
    WHERE {HERE} AND way = wanted.way AND name = wanted.name LIMIT {words.MOST + 1}) AS found
"""


# texts and filters


def short(text: str, most: int = 400) -> str:
    """Return a text as it is compared in a database, which takes no NUL and no long keys."""
    if len(text) * 4 > most and len(text.encode("utf-8", "replace")) > most:
        text = text[: most // 8] + "…" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    return plain(text)


def short_id(identifier: str) -> str:
    """Return an id as it is compared; that of a document is a path."""
    return short(identifier, 1_800)


def plain(text: str) -> str:
    """Return a text without characters that a database refuses."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def listed(numbers: Iterable[int]) -> str:
    """Return numbers as an array literal; the driver would convert each."""
    return f"{{{','.join(map(str, numbers))}}}"


def quoted(lexeme: str) -> str:
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"


def conditions(where: Filter) -> tuple[str, dict[str, Any]]:
    """Return a filter as SQL over `index_records r`, and its values."""
    parts, values = ["NOT r.superseded"], dict[str, Any]()
    if not where.hidden:
        parts.append("NOT r.hidden")
    if kinds := where.kinds or where.searchable:
        parts.append("r.kind = ANY(%(kinds)s)")
        values["kinds"] = list(kinds)
    if where.scope:
        others = [*(from_path(where.scope).above if where.above else ()), *([""] if where.shared else ())]
        more = " OR r.scope = ANY(%(others)s)" if others else ""
        parts.append(f"(r.scope = %(scope)s OR (r.scope > %(below)s AND r.scope < %(beyond)s){more})")
        values |= {"scope": where.scope, "below": where.scope + "/", "beyond": where.scope + "0", "others": others}
    if where.sessions:
        parts.append("r.session = ANY(%(sessions)s)")
        values["sessions"] = [short(session) for session in where.sessions]
    if where.tags:
        values |= {f"tag{number}": plain(words.tagged((tag,))) for number, tag in enumerate(where.tags)}
        some = " OR ".join(f"position(%(tag{number})s in r.tagged) > 0" for number in range(len(where.tags)))
        parts.append(f"({some})")
    if where.since:
        parts.append("r.time >= %(since)s")
    if where.until:
        parts.append("r.time <= %(until)s AND r.time <> ''")
    if where.known:
        parts.append("r.time <= %(known)s")  # a record without a time may have been known
    if where.only:
        parts.append("r.id = %(only)s")
    values |= {"since": where.since, "until": where.until, "known": where.known, "only": short_id(where.only)}
    return " AND ".join(parts), values


def at_or_below(places: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Return as SQL over `f.path` that a file is one of these places or below one; no places mean everywhere."""
    if not places:
        return "true", {}
    values = {f"place{number}": plain(place) for number, place in enumerate(places)}
    some = (f"f.path = %({name})s OR (f.path > %({name})s || '/' AND f.path < %({name})s || '0')" for name in values)
    return "(" + " OR ".join(some) + ")", values


def in_order(found: list[Any], scores: dict[int, float]) -> list[int]:
    """Return rows by score, time and place; `found` has row, time, path, sort, id."""
    found.sort(key=lambda row: (row[2], row[3], row[4]))
    found.sort(key=lambda row: str(row[1]), reverse=True)
    found.sort(key=lambda row: -scores[row[0]])
    return [row[0] for row in found]


def load(tx: Transaction, index: Generation, rows: list[int]) -> dict[int, Record]:
    """Return the records of these rows that still exist."""
    found = tx.rows(
        "SELECT r.row, r.record, r.hidden, r.superseded FROM holdfast.index_records r"
        f" WHERE {OF} AND r.row = ANY(%(rows)s)",
        generation=index.number, rows=rows,
    )  # fmt: skip
    return {row: revive(*rest) for row, *rest in found}


# words


def has_foreign(where: Filter) -> list[bool]:
    """Return which words to search: own (False), foreign (True), or both."""
    return list(dict.fromkeys(KINDS[name].foreign for name in where.kinds or where.searchable))


class Searching:
    """One question to the own or foreign records of an index."""

    def __init__(self, tx: Transaction, index: Generation, foreign: bool, settings: Search) -> None:
        self._tx = tx
        self._index = index
        self._foreign = foreign
        self._settings = settings
        self._prefix = index.prefix(foreign)
        self._average = index.average(foreign)
        self._held: dict[str, int] = {}
        self._read: dict[int, tuple[int, bytes]] = {}
        """Length and `tsvector` of the rows that were read."""
        self._counts: dict[tuple[int, Run], int] = {}

    def wanted(self, terms: Terms) -> Wanted:
        """Return the words of a question that distinguish records."""
        single = [stem for run in (*terms.words, *terms.phrases) for stem in stems(" ".join(run))]
        rows = self._rows(
            f"SELECT term, held FROM holdfast.index_terms WHERE {HERE} AND term = ANY(%(terms)s)",
            terms=[self._prefix + stem for stem in dict.fromkeys(single)],
        )
        self._held = {term[PREFIX:]: held for term, held in rows}
        return words.telling(terms, self._settings, stems, self._records_with)

    def _records_with(self, run: Run, most: int) -> int:
        found = _stemmed(run)
        least = min((self._held.get(stem, 0) for stem in found), default=0)
        if len(found) == 1 or not least:
            return least if most < 0 else min(least, most)
        limit = "" if most < 0 else "LIMIT %(most)s"
        rows = self._rows(
            "SELECT count(*) FROM (SELECT 1 FROM holdfast.index_found"
            f" WHERE generation = %(generation)s AND words @@ %(query)s::tsquery {limit}) AS found",
            query=self._query([run]), most=most,
        )  # fmt: skip
        return int(rows[0][0])

    def best(self, wanted: Wanted, where: Filter, limit: int) -> list[tuple[int, float]]:
        """Return the rows of the best records and their scores, best first."""
        if not wanted.phrases and not wanted.words:
            return []
        many = 2 * limit + _SPARE
        rows = self._narrowed(wanted, "", {}, many)
        found = self._scored(rows, wanted, where)
        if len(found) < limit and len(rows) >= many:
            found = self._scored(self._narrowed(wanted, *conditions(where), many), wanted, where)
        return found[:limit]

    def _narrowed(self, wanted: Wanted, condition: str, values: dict[str, Any], many: int) -> list[int]:
        """Return the rows that the server ranks first: with all phrases, or with some of the rarest words."""
        chosen, total = list[Run](), 0
        for held, run in sorted(zip(wanted.held, wanted.words, strict=True)) if not wanted.phrases else ():
            total += held
            if chosen and total > _RANKED:
                break
            if held:
                chosen.append(run)
        asked = self._query(wanted.phrases, "&") if wanted.phrases else self._query(chosen)
        if not asked:
            return []
        runs = [*wanted.phrases, *wanted.words]
        weights = {f"w{number}": self._weight(held) for number, held in enumerate(wanted.held)}
        queries = {f"q{number}": self._query([run]) for number, run in enumerate(runs)}
        ranks = ", ".join(
            f"{_ONE} * ts_rank('{{1,0.25,0.25,1}}', w.words, %({name})s::tsquery) AS {name}" for name in queries
        )
        score = " + ".join(f"%(w{number})s::float8 * q{number} / (q{number} + k)" for number in range(len(runs)))
        vectors = "w.words || ''" if self._average > _LONG else "w.words"
        join = f"JOIN holdfast.index_records r ON r.row = w.row AND {OF} AND {condition}" if condition else ""
        found = self._rows(
            f"SELECT row FROM (SELECT w.row, {_K} * ({1 - _B} + {_B} * w.length / %(average)s::float8) AS k, {ranks}"
            f" FROM (SELECT w.row, w.length, {vectors} AS words FROM holdfast.index_found w {join}"
            " WHERE w.tenant = %(tenant)s AND w.generation = %(generation)s AND w.words @@ %(asked)s::tsquery"
            f" OFFSET 0) AS w OFFSET 0) AS found ORDER BY {score} DESC, row LIMIT %(many)s",
            asked=asked, average=self._average, many=many, **weights, **queries, **values,
        )  # fmt: skip
        return [row for (row,) in found]

    def _query(self, runs: Iterable[Run], joined: str = "|") -> str:
        """Return the `tsquery` for one of these runs of words (or, with `&`, for all of them)."""
        phrases = []
        for run in runs:
            parts = [quoted(self._prefix + stem) for stem in _stemmed(run) if len(stem) <= LONGEST_STEM]
            phrases += ["(" + " <-> ".join(parts) + ")"] if parts else []
        return f" {joined} ".join(phrases)

    def _weight(self, held: int) -> float:
        records = self._index.records[self._foreign]
        return max(_FEW, math.log((records - held + 0.5) / (held + 0.5)) if records > held else _FEW)

    def _scored(self, rows: list[int], wanted: Wanted, where: Filter) -> list[tuple[int, float]]:
        """Return the rows that pass the filter and their scores, best first."""
        condition, values = conditions(where)
        found = self._rows(
            "SELECT r.row, r.time, f.path, r.sort, r.id, w.length, w.words FROM holdfast.index_records r"
            f" {FILE}"
            " JOIN holdfast.index_words w ON w.tenant = %(tenant)s AND w.generation = %(generation)s AND w.row = r.row"
            f" WHERE {OF} AND r.row = ANY(%(rows)s::bigint[]) AND {condition}",
            rows=listed(rows), **values,
        )  # fmt: skip
        self._read |= {row: (length, vector) for row, *_, length, vector in found}
        runs = [_stemmed(run) for run in (*wanted.phrases, *wanted.words)]
        weights = [self._weight(held) for held in wanted.held]
        if wanted.phrases and wanted.words:
            weights[0] *= 2  # as in the embedded engine, whose expression has it twice
        scores: dict[int, float] = {}
        for row, *_, length, _ in found:
            k = _K * (1 - _B + _B * length / self._average)
            counts = self._count(row, runs)
            scores[row] = sum(w * count * (_K + 1) / (count + k) for w, count in zip(weights, counts, strict=True))
        return [(row, scores[row]) for row in in_order(found, scores)]

    def _count(self, row: int, runs: Sequence[Run]) -> bytes:
        """Return how often each run occurs in a row that was read."""
        for run in runs:
            if (row, run) not in self._counts:
                self._counts[row, run] = occurrences(self._prefix, run, self._read[row][1])
        return bytes([self._counts[row, run] for run in runs])

    # candidates

    def pool(self, terms: Terms, where: Filter, most: int) -> Pool:
        wanted = self.wanted(terms)
        best = [row for row, _ in self.best(wanted, where, most)]
        known = Pool(
            foreign=self._foreign, words=tuple(" ".join(run) for run in (*wanted.phrases, *wanted.words)),
            held=tuple(wanted.held), records=max(1, self._index.records[self._foreign]), length=self._average,
        )  # fmt: skip
        return self._filled(known, where, best)

    def widened(self, pool: Pool, where: Filter, rows: Sequence[int]) -> Pool:
        """Return a pool with those of these rows added that have words of this kind, and their neighbours."""
        fresh = [row for row in rows if row not in pool.candidates]
        return self._filled(pool, where, self._with_words(fresh))

    def _filled(self, pool: Pool, where: Filter, best: list[int]) -> Pool:
        """Return a pool with these rows and their neighbours as candidates."""
        if not best:
            return pool
        beside = {row: rest for row, *rest in self._rows(_BESIDE, rows=listed(best), kinds=list(IN_ORDER))}
        after: dict[int, int] = {}
        for row in best:
            if row in beside:
                before, behind = beside[row]
                after.update(itertools.pairwise([*reversed(before), row, *behind]))
        rows = [row for row in dict.fromkeys([*best, *after, *after.values()]) if row not in pool.candidates]
        runs = [tuple(stems(word)) for word in pool.words]
        counts = {row: self._count(row, runs) for row in self._with_words(rows)}
        candidates = {**pool.candidates, **self._candidates(rows, where, counts)}
        known = {one: other for one, other in after.items() if one in candidates and other in candidates}
        return msgspec.structs.replace(pool, candidates=candidates, after={**pool.after, **known})

    def _with_words(self, rows: list[int]) -> list[int]:
        """Return those of these rows that have words of this kind, and read the words."""
        found = self._rows(
            f"SELECT row, length, words FROM holdfast.index_words WHERE {HERE} AND row = ANY(%(rows)s::bigint[])",
            rows=listed(row for row in rows if row not in self._read),
        )
        self._read |= {row: (length, vector) for row, length, vector in found}
        prefix = self._prefix.encode()
        vectors = ((row, self._read[row][1]) for row in rows if row in self._read)
        return [row for row, vector in vectors if prefix in vector or len(vector) <= 4]

    def _candidates(self, rows: list[int], where: Filter, counts: dict[int, bytes]) -> dict[int, Candidate]:
        """Return what ranking needs to know of rows, except those that are newer than `where.known`."""
        condition, values = conditions(where)
        known = " AND r.time <= %(known)s" if where.known else ""
        found = self._rows(
            "SELECT r.row, r.id, r.kind, r.session, r.time, f.path, r.sort, r.author, r.agent, r.priority, r.mark,"
            f" {condition} FROM holdfast.index_records r {FILE}"
            f" WHERE {OF} AND r.row = ANY(%(rows)s::bigint[]){known}",
            rows=listed(rows), **values,
        )  # fmt: skip
        return {
            row: Candidate(
                id, (path, session if kind in LINES else id), time, (path, sort, id), author, bool(agent),
                each if any(each := counts.get(row, b"")) else b"", self._read[row][0] if row in counts else 1,
                priority, mark, bool(inside),
            )
            for row, id, kind, session, time, path, sort, author, agent, priority, mark, inside in found
        }  # fmt: skip

    def _rows(self, statement: str, **values: object) -> list[Any]:
        return self._tx.rows(statement, generation=self._index.number, **values)


def _stemmed(run: Run) -> Run:
    return tuple(stems(" ".join(run)))


def occurrences(prefix: str, run: Run, vector: bytes) -> int:
    """Return how often a run of stems occurs in a `tsvector` in wire format; an occurrence in a title counts more."""
    firsts: Sequence[int] = ()
    for number, stem in enumerate(run):
        lexeme = (prefix + stem).encode() + b"\0"  # its prefix keeps it from being found inside another
        at = vector.find(lexeme)
        if at < 0:
            return 0
        at += len(lexeme)
        places = struct.unpack_from(f"!{vector[at] << 8 | vector[at + 1]}H", vector, at + 2)
        there = set(places) if number else set[int]()
        firsts = [place for place in firsts if place + number in there] if number else places
    if not firsts or firsts[0] >> 14 != _TITLE_WEIGHT:  # titles come first
        return min(MOST_COUNTED, len(firsts))
    return min(MOST_COUNTED, sum(int(TITLE) if place >> 14 == _TITLE_WEIGHT else 1 for place in firsts))


# related records


class Ties:
    """The records that are tied to some ids, or to names, by names, links and tags, and pass a filter."""

    def __init__(self, tx: Transaction, index: Generation, identifiers: Sequence[str], where: Filter) -> None:
        self._tx = tx
        self._index = index
        ids = [short_id(each) for each in identifiers]
        rows = self._rows(
            f"SELECT id, row FROM holdfast.index_records WHERE {HERE} AND id = ANY(%(ids)s) AND NOT superseded"
            " ORDER BY row",
            ids=ids,
        )
        self._own = {each: [row for id, row in rows if id == short_id(each)] for each in identifiers}
        self._names: dict[tuple[int, int], list[str]] = {}
        mine = [row for rows in self._own.values() for row in rows]
        statement = f"SELECT row, way, name FROM holdfast.index_ties WHERE {HERE} AND row = ANY(%(rows)s)"
        for row, way, name in self._rows(f"{statement} ORDER BY row, way, name", rows=mine) if mine else ():
            self._names.setdefault((row, way), []).append(name)
        self._having = self._rows_having(where)

    def best(self, limit: int) -> dict[str, list[Tied]]:
        """Return the closest records for each id or name, with the reasons."""
        found = {
            each: words.tied(
                each, own,
                lambda way, own=own: [name for row in own for name in self._names.get((row, way), ())],  # type: ignore[misc]
                lambda way, name: self._having.get((way, short(name)), []),
            )
            for each, own in self._own.items()
        }  # fmt: skip
        order = self._rows(
            f"SELECT r.row, r.time, f.path, r.sort, r.id FROM holdfast.index_records r {FILE}"
            f" WHERE {OF} AND r.row = ANY(%(rows)s)",
            rows=sorted({row for ties in found.values() for row in ties}),
        )
        best = {
            each: in_order([row for row in order if row[0] in ties], {row: tie[0] for row, tie in ties.items()})[:limit]
            for each, ties in found.items()
        }
        records = load(self._tx, self._index, sorted({row for rows in best.values() for row in rows}))
        return {
            each: [
                Tied(records[row], found[each][row][0], tuple(found[each][row][1])) for row in rows if row in records
            ]
            for each, rows in best.items()
        }

    def _rows_having(self, where: Filter) -> dict[tuple[int, str], list[int]]:
        """Return the rows by name and kind of tie, as far as they pass the filter; none for common names."""
        opposite = {NAME: (LINK,), LINK: (NAME, LINK), TAG: (TAG,)}
        wanted = {(way, name) for (_, own), names in self._names.items() for name in names for way in opposite[own]}
        for each, rows in self._own.items():
            if not rows:
                link, tag = short(words.normal(each)), short(words.same(each))
                wanted |= {(NAME, link), (LINK, link), (TAG, tag)}
        if not wanted:
            return {}
        every: dict[tuple[int, str], list[int]] = {}
        ways, names = zip(*sorted(wanted), strict=True)
        for way, name, row in self._rows(_HAVING, ways=list(ways), names=list(names)):
            every.setdefault((way, name), []).append(row)
        few = {each: rows for each, rows in every.items() if len(rows) <= words.MOST}
        condition, values = conditions(where)
        passing = self._rows(
            f"SELECT r.row FROM holdfast.index_records r WHERE {OF} AND r.row = ANY(%(rows)s) AND {condition}",
            rows=sorted({row for rows in few.values() for row in rows}), **values,
        )  # fmt: skip
        inside = {row for (row,) in passing}
        passed = {each: [row for row in rows if row in inside] for each, rows in few.items()}
        return {each: rows for each, rows in passed.items() if len(rows) <= words.COMMON}

    def _rows(self, statement: str, **values: object) -> list[Any]:
        return self._tx.rows(statement, generation=self._index.number, **values)
