"""Putting records into the index in a database, many at a time: what supersedes what, what is hidden, words and ties.

What is there of the same file is read once for all records of a batch, everything is decided here in the order of the
file, and then written in a few statements. Whoever does this holds the index for writing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.model.kinds import KINDS
from holdfast.model.records import Problem, Record, mark_of, priority_of
from holdfast.storage import words as _common
from holdfast.storage.index import Facts
from holdfast.storage.postgres import _lexemes
from holdfast.storage.postgres._filters import named, plain, short
from holdfast.storage.postgres._finding import Generation
from holdfast.storage.postgres.transactions import Turn
from holdfast.storage.words import record_in, record_out

_COLUMNS = {
    "row": "bigint", "file": "bigint", "id": "text", "kind": "text", "scope": "text", "session": "text", "time": "text",
    "key": "text", "op": "text", "tagged": "text", "sort": "text", "pair": "text", "alone": "boolean",
    "hidden": "boolean", "superseded": "boolean", "author": "text", "agent": "boolean", "priority": "smallint",
    "mark": "bigint", "record": "bytea",
}  # fmt: skip
_INSERT = (
    f"INSERT INTO holdfast.index_records (tenant, generation, {', '.join(_COLUMNS)})"
    " SELECT %(tenant)s, %(generation)s, * FROM unnest("
    + ", ".join(f"%({name})s::{kind}[]" for name, kind in _COLUMNS.items())
    + ")"
)
_ADD_WORDS = """
WITH added AS (
    INSERT INTO holdfast.index_words (tenant, generation, row, length, words)
    SELECT %(tenant)s, %(generation)s, row, length, words::tsvector
    FROM unnest(%(rows)s::bigint[], %(lengths)s::integer[], %(vectors)s::text[]) AS given (row, length, words)
    RETURNING words
)
INSERT INTO holdfast.index_terms AS known (tenant, generation, term, held)
SELECT %(tenant)s, %(generation)s, lexeme, count(*) FROM added, unnest(added.words) GROUP BY lexeme
ON CONFLICT (tenant, generation, term) DO UPDATE SET held = known.held + excluded.held
"""
_DROP_WORDS = """
WITH gone AS (
    DELETE FROM holdfast.index_words
    WHERE tenant = %(tenant)s AND generation = %(generation)s AND row = ANY(%(rows)s) RETURNING length, words
), fewer AS (
    SELECT lexeme, count(*) AS held FROM gone, unnest(gone.words) GROUP BY lexeme
), lessened AS (
    UPDATE holdfast.index_terms known SET held = known.held - fewer.held FROM fewer
    WHERE known.tenant = %(tenant)s AND known.generation = %(generation)s AND known.term = fewer.lexeme
)
SELECT count(*), coalesce(sum(length), 0)::bigint FROM gone
"""
_TOTALS = """
UPDATE holdfast.index_generations SET records = records + %(records)s, length = length + %(length)s,
    foreign_records = foreign_records + %(foreign_records)s, foreign_length = foreign_length + %(foreign_length)s
WHERE tenant = %(tenant)s AND generation = %(generation)s
"""


class _New(msgspec.Struct):
    """A record on its way into the index."""

    record: Record
    row: int
    pair: str
    alone: bool = False
    hidden: bool = False
    superseded: bool = False


class _Mark(msgspec.Struct, frozen=True):
    target: str
    file: int
    sort: str
    hidden: bool


class Filing:
    """Changes to one file of one index, in a transaction that holds it for writing."""

    def __init__(self, turn: Turn, index: Generation, file: int, foreign: bool) -> None:
        self._turn = turn
        self._index = index
        self._file = file
        self._foreign = foreign

    # adding

    def add(self, facts: Facts, targets: set[str], first_row: int) -> int:
        """Add what was read from the file; return how many rows were given out."""
        self._add_marks(facts)
        new, problems, known = self._decide(facts.records, first_row)
        self._insert(new)
        for row, hidden in known.items():
            self._run("UPDATE holdfast.index_records SET alone = false, hidden = %(hidden)s", row=row, hidden=hidden)
        self.apply(targets | {short(mark.target) for mark in facts.marks})
        self._add_problems([*facts.problems, *problems])
        return len(new)

    def _add_marks(self, facts: Facts) -> None:
        if facts.marks:
            self._turn.change(
                "INSERT INTO holdfast.index_marks (tenant, generation, file, target, sort, hidden, op)"
                " SELECT %(tenant)s, %(generation)s, %(file)s, * FROM"
                " unnest(%(targets)s::text[], %(sorts)s::text[], %(hidden)s::boolean[], %(ops)s::text[])"
                " ON CONFLICT DO NOTHING",
                generation=self._index.number, file=self._file, targets=[short(mark.target) for mark in facts.marks],
                sorts=[short(mark.order) for mark in facts.marks], hidden=[mark.hidden for mark in facts.marks],
                ops=[short(mark.op) if mark.op else None for mark in facts.marks],
            )  # fmt: skip

    def _decide(self, records: Sequence[Record], first_row: int) -> tuple[list[_New], list[Problem], dict[int, bool]]:
        """Say what becomes of each record, in their order; also of those of earlier pairs that are whole now."""
        there = self._there("id", {named(record.id) for record in records}, "row, id, record")
        versions = {id: record_in(blob).version for _, id, blob in there}
        keyed = self._there(
            "key", {short(record.key) for record in records if record.key}, "row, key, sort", holds=True
        )
        holders: dict[str, tuple[int | _New, str]] = {key: (row, sort) for row, key, sort in keyed}
        pairs = {_common.pair_of(record) for record in records} - {""}
        halves: dict[str, list[tuple[int, Record] | _New]] = {}
        for row, pair, blob in self._there("pair", {short(pair) for pair in pairs}, "row, pair, record"):
            halves.setdefault(pair, []).append((row, record_in(blob)))
        marks = self._marks({named(record.id) for record in records} | {short(record.key) for record in records})
        new, problems, retired, joined = list[_New](), list[Problem](), list[int](), dict[int, bool]()
        for record in records:
            id = named(record.id)
            if id in versions:
                if versions[id] != record.version:
                    what = f"the id {record.id} stands here twice with other content"
                    problems.append(Problem(record.path, what, record.line))
                continue
            versions[id] = record.version
            one = _New(record, first_row + len(new), short(_common.pair_of(record)))
            if record.key:
                one.superseded = not _take_over(holders, one, retired)
            if one.pair:
                one.alone = not halves.get(one.pair)
                for other in halves.get(one.pair, ()):
                    self._join(other, marks, joined)
                halves.setdefault(one.pair, []).append(one)
            one.hidden = one.alone or record.hidden or _is_hidden(marks, record, self._file)
            new.append(one)
        self._retire(retired)
        return new, problems, joined

    def _join(self, other: tuple[int, Record] | _New, marks: dict[str, list[_Mark]], joined: dict[int, bool]) -> None:
        """Show the other half of a pair, now that it is whole."""
        record = other.record if isinstance(other, _New) else other[1]
        if not isinstance(other, _New):
            marks |= self._marks({named(record.id), short(record.key)})
        hidden = record.hidden or _is_hidden(marks, record, self._file)
        if isinstance(other, _New):
            other.alone, other.hidden = False, hidden
        else:
            joined[other[0]] = hidden

    def _retire(self, rows: list[int]) -> None:
        if rows:
            self._run("UPDATE holdfast.index_records SET superseded = true", row=rows)
            self.drop_words(rows)
            self._run("DELETE FROM holdfast.index_ties", row=rows)

    def _insert(self, new: list[_New]) -> None:
        if not new:
            return
        columns = [_columns(each, self._file) for each in new]
        self._turn.change(
            _INSERT, generation=self._index.number, **{name: [each[name] for each in columns] for name in _COLUMNS}
        )
        holding = [each for each in new if not each.superseded]
        ties = [(each.row, way, short(name)) for each in holding for way, name in _common.ties_of(each.record)]
        if ties:
            rows, ways, names = zip(*ties, strict=True)
            self._turn.change(
                "INSERT INTO holdfast.index_ties (tenant, generation, row, way, name)"
                " SELECT %(tenant)s, %(generation)s, * FROM"
                " unnest(%(rows)s::bigint[], %(ways)s::smallint[], %(names)s::text[]) ON CONFLICT DO NOTHING",
                generation=self._index.number, rows=list(rows), ways=list(ways), names=list(names),
            )  # fmt: skip
        self._add_words(holding)

    def _add_words(self, new: list[_New]) -> None:
        start = _lexemes.prefix(self._index.mark, self._foreign)
        found = [(each.row, _common.words_of(each.record)) for each in new]
        words = [(row, _lexemes.words(start, columns)) for row, columns in found if columns is not None]
        if words:
            self._turn.change(
                _ADD_WORDS, generation=self._index.number, rows=[row for row, _ in words],
                lengths=[each.length for _, each in words], vectors=[each.vector for _, each in words],
            )  # fmt: skip
            self._count(len(words), sum(each.length for _, each in words))

    def drop_words(self, rows: list[int]) -> None:
        number, length = self._turn.row(_DROP_WORDS, generation=self._index.number, rows=rows) or (0, 0)
        if number:
            self._count(-number, -length)

    def _count(self, number: int, length: int) -> None:
        values = {"records": 0, "length": 0, "foreign_records": 0, "foreign_length": 0}
        start = "foreign_" if self._foreign else ""
        values |= {f"{start}records": number, f"{start}length": length}
        self._turn.change(_TOTALS, generation=self._index.number, **values)

    def _add_problems(self, problems: list[Problem]) -> None:
        if problems:
            self._turn.change(
                "INSERT INTO holdfast.index_problems (tenant, generation, file, number, line, what, minor)"
                " SELECT %(tenant)s, %(generation)s, %(file)s, known.last + given.number, line, what, minor"
                " FROM unnest(%(lines)s::bigint[], %(whats)s::text[], %(minors)s::boolean[])"
                " WITH ORDINALITY AS given (line, what, minor, number),"
                " (SELECT coalesce(max(number), 0) AS last FROM holdfast.index_problems"
                "  WHERE tenant = %(tenant)s AND generation = %(generation)s AND file = %(file)s) AS known",
                generation=self._index.number, file=self._file, lines=[each.line for each in problems],
                whats=[plain(each.what) for each in problems], minors=[each.minor for each in problems],
            )  # fmt: skip

    # marks

    def apply(self, targets: set[str]) -> None:
        """Bring the records that marks speak of in line with the marks there are now."""
        if not targets:
            return
        found = self._turn.rows(
            "SELECT row, file, alone, hidden, record FROM holdfast.index_records"
            " WHERE tenant = %(tenant)s AND generation = %(generation)s AND id = ANY(%(targets)s)"
            " UNION SELECT row, file, alone, hidden, record FROM holdfast.index_records"
            " WHERE tenant = %(tenant)s AND generation = %(generation)s AND key = ANY(%(targets)s) AND file = %(file)s",
            generation=self._index.number, file=self._file, targets=list(targets),
        )  # fmt: skip
        records = [(row, file, alone, before, record_in(blob)) for row, file, alone, before, blob in found]
        marks = self._marks({named(each[4].id) for each in records} | {short(each[4].key) for each in records})
        for wanted in (True, False):
            rows = [
                row
                for row, file, alone, before, record in records
                if (alone or record.hidden or _is_hidden(marks, record, file)) is wanted and before is not wanted
            ]
            if rows:
                self._run("UPDATE holdfast.index_records SET hidden = %(hidden)s", row=rows, hidden=wanted)

    def _marks(self, targets: set[str]) -> dict[str, list[_Mark]]:
        rows = self._turn.rows(
            "SELECT target, file, sort, hidden FROM holdfast.index_marks"
            " WHERE tenant = %(tenant)s AND generation = %(generation)s AND target = ANY(%(targets)s)",
            generation=self._index.number, targets=list(targets - {""}),
        ) if targets else []  # fmt: skip
        found: dict[str, list[_Mark]] = {}
        for row in rows:
            found.setdefault(row[0], []).append(_Mark(*row))
        return found

    # removing

    def clear(self) -> set[str]:
        """Forget what was read from the file; return the records that its marks spoke of."""
        values: dict[str, Any] = {"generation": self._index.number, "file": self._file}
        of_file = " WHERE tenant = %(tenant)s AND generation = %(generation)s AND file = %(file)s"
        rows = [
            row for (row,) in self._turn.rows(f"DELETE FROM holdfast.index_records{of_file} RETURNING row", **values)
        ]
        if rows:
            self.drop_words(rows)
            self._run("DELETE FROM holdfast.index_ties", row=rows)
        self._turn.change(f"DELETE FROM holdfast.index_problems{of_file}", **values)
        return {
            target
            for (target,) in self._turn.rows(f"DELETE FROM holdfast.index_marks{of_file} RETURNING target", **values)
        }

    # statements

    def _there(self, column: str, values: Iterable[str], wanted: str, *, holds: bool = False) -> list[Any]:
        """Return records of this file by what they have in a column."""
        given = sorted(values)
        if not given:
            return []
        return self._turn.rows(
            f"SELECT {wanted} FROM holdfast.index_records WHERE tenant = %(tenant)s AND generation = %(generation)s"
            f" AND {column} = ANY(%(given)s) AND file = %(file)s{' AND NOT superseded' if holds else ''}",
            generation=self._index.number, file=self._file, given=given,
        )  # fmt: skip

    def _run(self, statement: str, row: int | list[int], **values: object) -> None:
        self._turn.change(
            f"{statement} WHERE tenant = %(tenant)s AND generation = %(generation)s AND row = ANY(%(rows)s)",
            generation=self._index.number, rows=row if isinstance(row, list) else [row], **values,
        )  # fmt: skip


def _take_over(holders: dict[str, tuple[int | _New, str]], one: _New, retired: list[int]) -> bool:
    """Retire the line that this one supersedes; False when this one is the older."""
    key, order = short(one.record.key), short(one.record.order)
    held = holders.get(key)
    if held and held[1] >= order:
        return False
    before = held[0] if held else None
    if isinstance(before, _New):
        before.superseded = True
    elif before is not None:
        retired.append(before)
    holders[key] = (one, order)
    return True


def _is_hidden(marks: dict[str, list[_Mark]], record: Record, file: int) -> bool:
    """Does the newest mark hide this record? A key's mark speaks only of lines of its file older than itself."""
    of_id = marks.get(named(record.id), [])
    order = short(record.order)
    of_key = [mark for mark in marks.get(short(record.key), []) if mark.file == file and mark.sort > order]
    newest = max((*of_id, *(of_key if record.key else ())), key=lambda mark: mark.sort, default=None)
    return newest is not None and newest.hidden


def _columns(new: _New, file: int) -> dict[str, Any]:
    record = new.record
    op = _common.op_of(record)
    return {
        "row": new.row, "file": file, "id": named(record.id), "kind": record.kind,
        "scope": short(record.scope.path), "session": short(record.scope.session), "time": short(record.time, 100),
        "key": short(record.key) or None, "op": short(op) if op is not None else None,
        "tagged": plain(_common.tagged(record.tags)), "sort": short(record.order), "pair": new.pair or None,
        "alone": new.alone, "hidden": new.hidden, "superseded": new.superseded,
        "author": plain(_common.author_of(record)), "agent": record.fields.get("role") == "assistant",
        "priority": priority_of(record.fields.get("priority")), "mark": mark_of(record), "record": record_out(record),
    }  # fmt: skip


def is_foreign(kind: str) -> bool:
    return bool(kind) and kind in KINDS and KINDS[kind].foreign
