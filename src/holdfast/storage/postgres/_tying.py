"""What ties records together in the index in a database: names, links and tags of many records at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.model.records import Record
from holdfast.storage import words
from holdfast.storage.index import Filter, Tied
from holdfast.storage.postgres._filters import FILE, HERE, OF, conditions, named, short
from holdfast.storage.postgres._finding import Generation
from holdfast.storage.postgres.transactions import Turn
from holdfast.storage.words import LINK, NAME, TAG, revive

_HAVING = f"""
SELECT wanted.way, wanted.name, found.row
FROM unnest(%(ways)s::smallint[], %(names)s::text[]) AS wanted (way, name) CROSS JOIN LATERAL (
    SELECT row FROM holdfast.index_ties
    WHERE {HERE} AND way = wanted.way AND name = wanted.name LIMIT {words.MOST + 1}) AS found
"""


_WAYS = (NAME, LINK, TAG)


class Ties:
    """What some records, or names that are nobody's id, are tied to among the records that pass a filter."""

    def __init__(self, turn: Turn, index: Generation, identifiers: Sequence[str], where: Filter) -> None:
        self._turn = turn
        self._index = index
        self._own = self._rows_of(identifiers)
        self._names = self._names_of([row for rows in self._own.values() for row in rows])
        self._having = self._rows_having(where)

    def best(self, limit: int) -> dict[str, list[Tied]]:
        """Return for each the closest, with the reasons."""
        found = {each: self._tied(each, rows) for each, rows in self._own.items()}
        every = sorted({row for ties in found.values() for row in ties})
        order = self._rows(
            f"SELECT r.row, r.time, f.path, r.sort, r.id FROM holdfast.index_records r {FILE}"
            f" WHERE {OF} AND r.row = ANY(%(rows)s)",
            rows=every,
        )
        best = {
            each: in_order([row for row in order if row[0] in ties], {row: tie[0] for row, tie in ties.items()})[:limit]
            for each, ties in found.items()
        }
        records = load(self._turn, self._index, sorted({row for rows in best.values() for row in rows}))
        return {
            each: [
                Tied(records[row], found[each][row][0], tuple(found[each][row][1])) for row in rows if row in records
            ]
            for each, rows in best.items()
        }

    def _tied(self, identifier: str, own: list[int]) -> dict[int, words.Tie]:
        return words.tied(self._ties_of(identifier, own), self._having, own)

    def _ties_of(self, identifier: str, own: list[int]) -> words.Names:
        if not own:
            return words.Names(*([short(name) for name in names] for names in words.unowned(identifier)))
        return words.Names(*([name for row in own for name in self._names.get((row, way), ())] for way in _WAYS))

    def _rows_of(self, identifiers: Sequence[str]) -> dict[str, list[int]]:
        """Return the rows of each id, none for what is only a name."""
        rows = self._rows(
            f"SELECT id, row FROM holdfast.index_records WHERE {HERE} AND id = ANY(%(ids)s) AND NOT superseded"
            " ORDER BY row",
            ids=[named(each) for each in identifiers],
        )
        return {each: [row for id, row in rows if id == named(each)] for each in identifiers}

    def _names_of(self, rows: list[int]) -> dict[tuple[int, int], list[str]]:
        found: dict[tuple[int, int], list[str]] = {}
        statement = f"SELECT row, way, name FROM holdfast.index_ties WHERE {HERE} AND row = ANY(%(rows)s)"
        for row, way, name in self._rows(f"{statement} ORDER BY row, way, name", rows=rows) if rows else ():
            found.setdefault((row, way), []).append(name)
        return found

    def _rows_having(self, where: Filter) -> dict[tuple[int, str], list[int]]:
        """Return the rows that have a name in some way and pass the filter; none when they are too many to tell."""
        wanted = sorted(words.shared_by(self._ties_of(*each) for each in self._own.items()))
        if not wanted:
            return {}
        every: dict[tuple[int, str], list[int]] = {}
        for way, name, row in self._rows(_HAVING, ways=[way for way, _ in wanted], names=[name for _, name in wanted]):
            every.setdefault((way, name), []).append(row)
        few = {each: rows for each, rows in every.items() if len(rows) <= words.MOST}
        condition, values = conditions(where)
        passing = self._rows(
            f"SELECT r.row FROM holdfast.index_records r WHERE {OF} AND r.row = ANY(%(rows)s) AND {condition}",
            rows=sorted({row for rows in few.values() for row in rows}), **values,
        )  # fmt: skip
        inside = {row for (row,) in passing}
        kept = {each: [row for row in rows if row in inside] for each, rows in few.items()}
        return {each: rows for each, rows in kept.items() if len(rows) <= words.COMMON}

    def _rows(self, statement: str, **values: object) -> list[Any]:
        return self._turn.rows(statement, generation=self._index.number, **values)


def in_order(kept: list[Any], scores: dict[int, float]) -> list[int]:
    """Return rows in the order of score, time and place; `kept` has row, time, path, sort, id."""
    kept.sort(key=lambda row: (row[2], row[3], row[4]))
    kept.sort(key=lambda row: str(row[1]), reverse=True)
    kept.sort(key=lambda row: -scores[row[0]])
    return [row[0] for row in kept]


def load(turn: Turn, index: Generation, rows: list[int]) -> dict[int, Record]:
    """Return the records of these rows, as far as they are still there."""
    found = turn.rows(
        "SELECT r.row, r.record, r.hidden, r.superseded FROM holdfast.index_records r"
        f" WHERE {OF} AND r.row = ANY(%(rows)s)",
        generation=index.number, rows=rows,
    )  # fmt: skip
    return {row: revive(*rest) for row, *rest in found}
