"""How the index in a database finds the best records for some words, and what ranking has to know of them.

The server narrows: of the records in which a telling word stands it takes those that its own weighing puts first, each
word counted by how rare it is, long records counting less. Which of them are best is then worked out here by BM25, from
the places of the words, exactly as the embedded engine does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.model.kinds import KINDS
from holdfast.model.queries import Terms
from holdfast.model.settings import Search
from holdfast.storage import words as _common
from holdfast.storage.index import Candidate, Filter, Pool
from holdfast.storage.postgres import _lexemes
from holdfast.storage.postgres._filters import FILE, OF, conditions, listed
from holdfast.storage.postgres.transactions import Turn
from holdfast.storage.words import IN_ORDER, LINES, Run, Wanted, stems

_SPARE = 100
_RANKED = 15_000
"""Of words that stand in more records than this taken together, the commonest only weigh what the rarer ones find."""
_K, _B = 1.2, 0.75
_ONE = 6.5797
"""What makes the server's weight of a word that stands once in a text one."""
_FEW = 1e-6
_LONG = 60
"""Records of more words than this on average are mostly packed: they are unpacked once, not for each word."""
_NEAR = """
SELECT o.row FROM holdfast.index_records o WHERE o.tenant = %(tenant)s AND o.generation = %(generation)s
AND o.file = r.file AND o.session = r.session AND o.sort {sign} r.sort AND NOT o.hidden AND NOT o.superseded
ORDER BY o.sort {way} LIMIT 2
"""
_BESIDE = (
    "SELECT r.row, ARRAY(" + _NEAR.format(sign="<", way="DESC") + "), ARRAY(" + _NEAR.format(sign=">", way="ASC") + ")"
    f" FROM holdfast.index_records r WHERE {OF} AND r.row = ANY(%(rows)s::bigint[]) AND r.kind = ANY(%(kinds)s)"
)
Row = tuple[Any, ...]


class Generation(msgspec.Struct, frozen=True):
    """One index: its number, the mark of its words, and how much there is in it."""

    number: int
    mark: str
    records: tuple[int, int] = (0, 0)
    """Own and foreign ones with words."""
    length: tuple[int, int] = (0, 0)
    """Words of all of them."""

    def average(self, foreign: bool) -> float:
        return max(1.0, self.length[foreign] / max(1, self.records[foreign]))


def foreigns(where: Filter) -> list[bool]:
    """Say among which words of what is wanted stand: our own, those of other programs, or both."""
    return list(dict.fromkeys(KINDS[name].foreign for name in where.kinds or where.searchable))


class Searching:
    """One question put to one kind of words of an index."""

    def __init__(self, turn: Turn, index: Generation, foreign: bool, settings: Search) -> None:
        self._turn = turn
        self._index = index
        self._foreign = foreign
        self._settings = settings
        self._start = _lexemes.prefix(index.mark, foreign)
        self._held: dict[str, int] = {}
        self._seen: dict[int, tuple[int, bytes]] = {}
        """Length and words of the rows that were read, as the server sends them."""
        self._runs: list[Run] = []
        self._counts: dict[int, bytes] = {}
        """How often each of these runs stands in rows that were read."""

    # which words

    def telling(self, terms: Terms) -> Wanted:
        single = [stem for run in (*terms.words, *terms.phrases) for stem in stems(" ".join(run))]
        rows = self._rows(
            "SELECT term, held FROM holdfast.index_terms"
            " WHERE tenant = %(tenant)s AND generation = %(generation)s AND term = ANY(%(terms)s)",
            terms=[self._start + stem for stem in dict.fromkeys(single)],
        )
        self._held = {term[_lexemes.PREFIX :]: held for term, held in rows}
        return _common.telling(terms, self._settings, stems, self._count)

    def _count(self, run: Run, most: int) -> int:
        found = stems(" ".join(run))
        least = min((self._held.get(stem, 0) for stem in found), default=0)
        if len(found) == 1 or not least:
            return least if most < 0 else min(least, most)
        limit = "" if most < 0 else "LIMIT %(most)s"
        rows = self._rows(
            "SELECT count(*) FROM (SELECT 1 FROM holdfast.index_found"
            f" WHERE generation = %(generation)s AND words @@ %(query)s::tsquery {limit}) AS found",
            query=_lexemes.query(self._start, [tuple(found)]), most=most,
        )  # fmt: skip
        return int(rows[0][0])

    # the best

    def best(self, wanted: Wanted, where: Filter, limit: int) -> list[tuple[int, float]]:
        """Return the rows of the best records and their scores, best first."""
        runs = [*wanted.phrases, *wanted.words]
        if not runs:
            return []
        many = 2 * limit + _SPARE
        asked = self._asked(wanted)
        rows = [row for (row,) in self._narrowed(asked, wanted, "", {}, many)]
        found = self._among(rows, wanted, where)
        if len(found) < limit and len(rows) >= many:
            condition, values = conditions(where)
            rows = [row for (row,) in self._narrowed(asked, wanted, condition, values, many)]
            found = self._among(rows, wanted, where)
        return found[:limit]

    def _asked(self, wanted: Wanted) -> str:
        """Return the query that narrows: all phrases, or some of the words, the rarest first."""
        if wanted.phrases:
            return _lexemes.query(self._start, map(self._stemmed, wanted.phrases), "&")
        ordered = sorted(zip(wanted.held, wanted.words, strict=True))
        chosen, total = list[Run](), 0
        for held, run in ordered:
            total += held
            if chosen and total > _RANKED:
                break
            if held:
                chosen.append(run)
        return _lexemes.query(self._start, map(self._stemmed, chosen))

    def _narrowed(self, asked: str, wanted: Wanted, condition: str, values: dict[str, Any], many: int) -> list[Row]:
        """Return the rows that the server puts first."""
        if not asked:
            return []
        runs = [*wanted.phrases, *wanted.words]
        weights = {f"w{number}": self._weight(held) for number, held in enumerate(wanted.held)}
        queries = {f"q{number}": _lexemes.query(self._start, [self._stemmed(run)]) for number, run in enumerate(runs)}
        ranks = ", ".join(
            f"{_ONE} * ts_rank('{{1,0.25,0.25,1}}', w.words, %({name})s::tsquery) AS {name}" for name in queries
        )
        score = " + ".join(f"%(w{number})s::float8 * q{number} / (q{number} + k)" for number in range(len(runs)))
        words = "w.words || ''" if self._index.average(self._foreign) > _LONG else "w.words"
        join = f"JOIN holdfast.index_records r ON r.row = w.row AND {OF} AND {condition}" if condition else ""
        return self._rows(
            f"SELECT row FROM (SELECT w.row, {_K} * ({1 - _B} + {_B} * w.length / %(average)s::float8) AS k, {ranks}"
            f" FROM (SELECT w.row, w.length, {words} AS words FROM holdfast.index_found w {join}"
            " WHERE w.tenant = %(tenant)s AND w.generation = %(generation)s AND w.words @@ %(asked)s::tsquery"
            f" OFFSET 0) AS w OFFSET 0) AS found ORDER BY {score} DESC, row LIMIT %(many)s",
            asked=asked, average=self._index.average(self._foreign), many=many, **weights, **queries, **values,
        )  # fmt: skip

    def _weight(self, held: int) -> float:
        records = self._index.records[self._foreign]
        return max(_FEW, math.log((records - held + 0.5) / (held + 0.5)) if records > held else _FEW)

    def _among(self, rows: list[int], wanted: Wanted, where: Filter) -> list[tuple[int, float]]:
        """Keep the rows that pass the filter, in the order of score, time and place."""
        condition, values = conditions(where)
        kept = self._rows(
            "SELECT r.row, r.time, f.path, r.sort, r.id, w.length, w.words FROM holdfast.index_records r"
            f" {FILE}"
            " JOIN holdfast.index_words w ON w.tenant = %(tenant)s AND w.generation = %(generation)s AND w.row = r.row"
            f" WHERE {OF} AND r.row = ANY(%(rows)s::bigint[]) AND {condition}",
            rows=listed(rows), **values,
        )  # fmt: skip
        runs = list(map(self._stemmed, (*wanted.phrases, *wanted.words)))
        weights = [self._weight(held) for held in wanted.held]
        if wanted.phrases and wanted.words:
            weights[0] *= 2  # as the embedded engine, whose expression names it twice
        average = self._index.average(self._foreign)
        self._seen |= {row: (length, words) for row, *_, length, words in kept}
        counts = self._counted(runs, (row for row, *_ in kept))
        scored = [(self._score(counts[row[0]], weights, length / average), row) for *row, length, _ in kept]
        scored.sort(key=lambda item: (item[1][2], item[1][3], item[1][4]))
        scored.sort(key=lambda item: str(item[1][1]), reverse=True)
        scored.sort(key=lambda item: -item[0])
        return [(row[0], score) for score, row in scored]

    def _score(self, counts: bytes, weights: list[float], relative: float) -> float:
        k = _K * (1 - _B + _B * relative)
        return sum(weight * count * (_K + 1) / (count + k) for weight, count in zip(weights, counts, strict=True))

    def _stemmed(self, run: Run) -> Run:
        return tuple(stems(" ".join(run)))

    # what ranking needs

    def pool(self, terms: Terms, where: Filter, most: int) -> Pool:
        wanted = self.telling(terms)
        best = [row for row, _ in self.best(wanted, where, most)]
        known = Pool(
            foreign=self._foreign, words=tuple(" ".join(run) for run in (*wanted.phrases, *wanted.words)),
            held=tuple(wanted.held), records=max(1, self._index.records[self._foreign]),
            length=self._index.average(self._foreign),
        )  # fmt: skip
        return self._filled(known, where, best)

    def widened(self, pool: Pool, where: Filter, rows: Sequence[int]) -> Pool:
        """Return a pool with these rows added, as far as they are searched by words too, and what stands beside."""
        fresh = [row for row in rows if row not in pool.candidates]
        return self._filled(pool, where, list(self._words(fresh)))

    def _filled(self, pool: Pool, where: Filter, best: list[int]) -> Pool:
        """Return a pool with these rows and what stands beside them as candidates."""
        if not best:
            return pool
        after = self._after(best)
        rows = [row for row in dict.fromkeys([*best, *after, *after.values()]) if row not in pool.candidates]
        words = self._words(rows)
        counted = self._counted([tuple(stems(word)) for word in pool.words], words)
        counts = {row: each for row, each in counted.items() if any(each)}
        more = self._candidates(rows, where, counts, {row: length for row, (length, _) in words.items()})
        candidates = {**pool.candidates, **more}
        known = {one: other for one, other in after.items() if one in candidates and other in candidates}
        return msgspec.structs.replace(pool, candidates=candidates, after={**pool.after, **known})

    def _counted(self, runs: list[Run], rows: Iterable[int]) -> dict[int, bytes]:
        """Return how often each of these runs stands in rows that were read."""
        if runs != self._runs:
            self._runs, self._counts = runs, {}
        counting = _lexemes.Counting(self._start, runs)
        wanted = list(rows)
        self._counts |= {row: counting(self._seen[row][1]) for row in wanted if row not in self._counts}
        return {row: self._counts[row] for row in wanted}

    def _words(self, rows: Iterable[int]) -> dict[int, tuple[int, bytes]]:
        """Return length and words of those of these rows that have words of this kind."""
        start, rows = self._start.encode(), list(rows)
        found = self._rows(
            "SELECT row, length, words FROM holdfast.index_words"
            " WHERE tenant = %(tenant)s AND generation = %(generation)s AND row = ANY(%(rows)s::bigint[])",
            rows=listed(row for row in rows if row not in self._seen),
        )
        self._seen |= {row: (length, words) for row, length, words in found}
        known = ((row, self._seen[row]) for row in rows if row in self._seen)
        return {row: (length, words) for row, (length, words) in known if start in words or len(words) <= 4}

    def _candidates(
        self, rows: list[int], where: Filter, counts: dict[int, bytes], lengths: dict[int, int]
    ) -> dict[int, Candidate]:
        """Return what ranking needs to know of rows; of what was not known yet at the time of asking, nothing."""
        condition, values = conditions(where)
        known = " AND r.time <= %(known)s" if where.known else ""
        found = self._rows(
            "SELECT r.row, r.id, r.kind, r.session, r.time, f.path, r.sort, r.author, r.agent, r.priority, r.mark,"
            f" {condition} FROM holdfast.index_records r"
            f" {FILE}"
            f" WHERE {OF} AND r.row = ANY(%(rows)s::bigint[]){known}",
            rows=listed(rows), **values,
        )  # fmt: skip
        return {
            row: Candidate(
                id, (path, session if kind in LINES else id), time, (path, sort, id), author, bool(agent),
                counts.get(row, b""), lengths.get(row, 1), priority, mark, bool(inside),
            )
            for row, id, kind, session, time, path, sort, author, agent, priority, mark, inside in found
        }  # fmt: skip

    def _after(self, rows: list[int]) -> dict[int, int]:
        """Return which record follows which, around these rows."""
        found = {row: rest for row, *rest in self._rows(_BESIDE, rows=listed(rows), kinds=list(IN_ORDER))}
        after: dict[int, int] = {}
        for row in rows:
            if row in found:
                before, behind = found[row]
                after.update(itertools.pairwise([*reversed(before), row, *behind]))
        return after

    def _rows(self, statement: str, **values: object) -> list[Any]:
        return self._turn.rows(statement, generation=self._index.number, **values)
