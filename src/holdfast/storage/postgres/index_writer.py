"""Writing to the index in a database: records, marks, words and ties of one file at a time.

The rows of the same file are read once for all records of a batch, everything is decided here in the order of the file,
and then written in a few statements. The caller has locked the index for writing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.model.kinds import KINDS
from holdfast.model.records import Problem, Record, mark_of, priority_of
from holdfast.storage import words
from holdfast.storage.index import Facts, Stale
from holdfast.storage.postgres.database import Transaction
from holdfast.storage.postgres.generations import HERE, Generation
from holdfast.storage.postgres.search import LONGEST_STEM, MOST_COUNTED, PREFIX, plain, quoted, short, short_id
from holdfast.storage.stems import stems
from holdfast.storage.words import record_in, record_out

_LAST_POSITION = 16_383
_VECTOR_BYTES = 900_000
"""A `tsvector` may have a megabyte, positions up to 16,383, and 255 positions of one word; the rest is left out."""
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
), removed AS (
    SELECT lexeme, count(*) AS held FROM gone, unnest(gone.words) GROUP BY lexeme
), updated AS (
    UPDATE holdfast.index_terms known SET held = known.held - removed.held FROM removed
    WHERE known.tenant = %(tenant)s AND known.generation = %(generation)s AND known.term = removed.lexeme
)
SELECT count(*), coalesce(sum(length), 0)::bigint FROM gone
"""
_TOTALS = """
UPDATE holdfast.index_generations SET records = records + %(records)s, length = length + %(length)s,
    foreign_records = foreign_records + %(foreign_records)s, foreign_length = foreign_length + %(foreign_length)s
WHERE tenant = %(tenant)s AND generation = %(generation)s
"""
_RECORD_SUMS = f"""
SELECT file, sum(hashtextextended(ROW(id, kind, scope, session, time, key, op, tagged, sort, pair, alone, hidden,
    superseded, author, agent, priority, mark, record)::text, 0)::numeric)
FROM holdfast.index_records WHERE {HERE} GROUP BY file
"""
_MARK_SUMS = f"""
SELECT file, sum(hashtextextended(ROW(target, sort, hidden, op)::text, 0)::numeric)
FROM holdfast.index_marks WHERE {HERE} GROUP BY file
"""
_SUMS = """
SELECT r.file, sum(hashtextextended(ROW(r.id, {what})::text, 0)::numeric)
FROM holdfast.index_records r JOIN holdfast.{table} x
    ON x.tenant = %(tenant)s AND x.generation = %(generation)s AND x.row = r.row
WHERE r.tenant = %(tenant)s AND r.generation = %(generation)s GROUP BY r.file
"""
_WORD_SUMS = _SUMS.format(what="x.length, replace(x.words::text, '''' || %(mark)s, '''')", table="index_words")
_TIE_SUMS = _SUMS.format(what="x.way, x.name", table="index_ties")
_WRONG_TERMS = f"""
SELECT count(*) FROM (
    SELECT lexeme AS term, count(*) AS held FROM holdfast.index_words, unnest(words)
    WHERE {HERE} GROUP BY lexeme
) AS real FULL JOIN (
    SELECT term, held FROM holdfast.index_terms WHERE {HERE} AND held <> 0
) AS noted USING (term) WHERE real.held IS DISTINCT FROM noted.held
"""


class _New(msgspec.Struct):
    """A record that is about to be inserted."""

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


class IndexWriter:
    """Changes the entries of one file of one index."""

    def __init__(self, tx: Transaction, index: Generation, file: int, kind: str) -> None:
        self._tx = tx
        self._index = index
        self._file = file
        self._foreign = kind in KINDS and KINDS[kind].foreign

    def add(self, facts: Facts, targets: set[str], first_row: int) -> int:
        """Add what was read from the file; return how many rows were used."""
        if facts.marks:
            self._change(
                "INSERT INTO holdfast.index_marks (tenant, generation, file, target, sort, hidden, op)"
                " SELECT %(tenant)s, %(generation)s, %(file)s, * FROM"
                " unnest(%(targets)s::text[], %(sorts)s::text[], %(hidden)s::boolean[], %(ops)s::text[])"
                " ON CONFLICT DO NOTHING",
                targets=[short(mark.target) for mark in facts.marks], sorts=[short(mark.order) for mark in facts.marks],
                hidden=[mark.hidden for mark in facts.marks],
                ops=[short(mark.op) if mark.op else None for mark in facts.marks],
            )  # fmt: skip
        new, problems, completed = self._decide(facts.records, first_row)
        self._insert(new)
        for row, hidden in completed.items():
            self._change_rows(
                "UPDATE holdfast.index_records SET alone = false, hidden = %(hidden)s", [row], hidden=hidden
            )
        self.apply_marks(targets | {short(mark.target) for mark in facts.marks})
        self._add_problems([*facts.problems, *problems])
        return len(new)

    def clear(self) -> set[str]:
        """Remove all entries of the file; return the targets of its marks."""
        of_file = f" WHERE {HERE} AND file = %(file)s"
        rows = [row for (row,) in self._rows(f"DELETE FROM holdfast.index_records{of_file} RETURNING row")]
        self._drop_words_and_ties(rows)
        self._change(f"DELETE FROM holdfast.index_problems{of_file}")
        return {target for (target,) in self._rows(f"DELETE FROM holdfast.index_marks{of_file} RETURNING target")}

    def apply_marks(self, targets: set[str]) -> None:
        """Hide or show the records with these ids or keys according to the current marks."""
        if not targets:
            return
        found = self._rows(
            "SELECT row, file, alone, hidden, record FROM holdfast.index_records"
            f" WHERE {HERE} AND id = ANY(%(targets)s)"
            " UNION SELECT row, file, alone, hidden, record FROM holdfast.index_records"
            f" WHERE {HERE} AND key = ANY(%(targets)s) AND file = %(file)s",
            targets=list(targets),
        )
        records = [(row, file, alone, before, record_in(blob)) for row, file, alone, before, blob in found]
        marks = self._marks(each[4] for each in records)
        for wanted in (True, False):
            rows = [
                row
                for row, file, alone, before, record in records
                if (alone or record.hidden or _is_hidden(marks, record, file)) is wanted and before is not wanted
            ]
            self._change_rows("UPDATE holdfast.index_records SET hidden = %(hidden)s", rows, hidden=wanted)

    def _decide(self, records: Sequence[Record], first_row: int) -> tuple[list[_New], list[Problem], dict[int, bool]]:
        """Return the new rows in order, problems, and the rows whose other half arrived, with whether to hide them."""
        there = self._there("id", {short_id(record.id) for record in records}, "row, id, record")
        versions = {id: record_in(blob).version for _, id, blob in there}
        keyed = self._there("key", {short(record.key) for record in records}, "row, key, sort", " AND NOT superseded")
        current: dict[str, tuple[int | _New, str]] = {key: (row, sort) for row, key, sort in keyed}
        pairs = {short(words.pair_of(record)) for record in records}
        halves: dict[str, list[tuple[int, Record] | _New]] = {}
        for row, pair, blob in self._there("pair", pairs, "row, pair, record"):
            halves.setdefault(pair, []).append((row, record_in(blob)))
        marks = self._marks(records)
        new, problems, retired, completed = list[_New](), list[Problem](), list[int](), dict[int, bool]()
        for record in records:
            id = short_id(record.id)
            if id in versions:
                if versions[id] != record.version:
                    what = f"the id {record.id} stands here twice with other content"
                    problems.append(Problem(record.path, what, record.line))
                continue
            versions[id] = record.version
            one = _New(record, first_row + len(new), short(words.pair_of(record)))
            if record.key:
                one.superseded = not _supersede(current, one, retired)
            if one.pair:
                others = halves.setdefault(one.pair, [])
                one.alone = not others
                for other in others:
                    if isinstance(other, _New):
                        other.alone = False
                        other.hidden = other.record.hidden or _is_hidden(marks, other.record, self._file)
                    else:
                        marks |= self._marks([other[1]])
                        completed[other[0]] = other[1].hidden or _is_hidden(marks, other[1], self._file)
                others.append(one)
            one.hidden = one.alone or record.hidden or _is_hidden(marks, record, self._file)
            new.append(one)
        if retired:
            self._change_rows("UPDATE holdfast.index_records SET superseded = true", retired)
            self._drop_words_and_ties(retired)
        return new, problems, completed

    def _insert(self, new: list[_New]) -> None:
        if not new:
            return
        columns = [_columns(each, self._file) for each in new]
        self._change(_INSERT, **{name: [each[name] for each in columns] for name in _COLUMNS})
        current = [each for each in new if not each.superseded]
        ties = [(each.row, way, short(name)) for each in current for way, name in words.ties_of(each.record)]
        if ties:
            rows, ways, names = zip(*ties, strict=True)
            self._change(
                "INSERT INTO holdfast.index_ties (tenant, generation, row, way, name)"
                " SELECT %(tenant)s, %(generation)s, * FROM"
                " unnest(%(rows)s::bigint[], %(ways)s::smallint[], %(names)s::text[]) ON CONFLICT DO NOTHING",
                rows=list(rows), ways=list(ways), names=list(names),
            )  # fmt: skip
        found = [(each.row, words.words_of(each.record)) for each in current]
        prefix = self._index.prefix(self._foreign)
        vectors = [(row, *vector_of(prefix, texts)) for row, texts in found if texts is not None]
        if vectors:
            rows, literals, lengths = zip(*vectors, strict=True)
            self._change(_ADD_WORDS, rows=list(rows), vectors=list(literals), lengths=list(lengths))
            self._count(len(vectors), sum(lengths))

    def _drop_words_and_ties(self, rows: list[int]) -> None:
        if rows:
            number, length = self._rows(_DROP_WORDS, rows=rows)[0]
            if number:
                self._count(-number, -length)
            self._change_rows("DELETE FROM holdfast.index_ties", rows)

    def _count(self, number: int, length: int) -> None:
        values = {"records": 0, "length": 0, "foreign_records": 0, "foreign_length": 0}
        start = "foreign_" if self._foreign else ""
        self._change(_TOTALS, **values | {f"{start}records": number, f"{start}length": length})

    def _add_problems(self, problems: list[Problem]) -> None:
        if problems:
            self._change(
                "INSERT INTO holdfast.index_problems (tenant, generation, file, number, line, what, minor)"
                " SELECT %(tenant)s, %(generation)s, %(file)s, known.last + given.number, line, what, minor"
                " FROM unnest(%(lines)s::bigint[], %(whats)s::text[], %(minors)s::boolean[])"
                " WITH ORDINALITY AS given (line, what, minor, number),"
                " (SELECT coalesce(max(number), 0) AS last FROM holdfast.index_problems"
                f" WHERE {HERE} AND file = %(file)s) AS known",
                lines=[each.line for each in problems], whats=[plain(each.what) for each in problems],
                minors=[each.minor for each in problems],
            )  # fmt: skip

    def _marks(self, records: Iterable[Record]) -> dict[str, list[_Mark]]:
        """Return the marks on these records, by id or key."""
        targets = {target for each in records for target in (short_id(each.id), short(each.key))} - {""}
        found: dict[str, list[_Mark]] = {}
        statement = f"SELECT target, file, sort, hidden FROM holdfast.index_marks WHERE {HERE}"
        for row in self._rows(f"{statement} AND target = ANY(%(targets)s)", targets=list(targets)) if targets else ():
            found.setdefault(row[0], []).append(_Mark(*row))
        return found

    def _there(self, column: str, values: set[str], wanted: str, more: str = "") -> list[Any]:
        """Return columns of the records of this file that have one of these values in a column."""
        given = sorted(values - {""})
        return self._rows(
            f"SELECT {wanted} FROM holdfast.index_records"
            f" WHERE {HERE} AND {column} = ANY(%(given)s) AND file = %(file)s{more}",
            given=given,
        ) if given else []  # fmt: skip

    def _rows(self, statement: str, **values: object) -> list[Any]:
        return self._tx.rows(statement, generation=self._index.number, file=self._file, **values)

    def _change(self, statement: str, **values: object) -> None:
        self._tx.change(statement, **{"generation": self._index.number, "file": self._file} | values)

    def _change_rows(self, statement: str, rows: list[int], **values: object) -> None:
        if rows:
            self._change(f"{statement} WHERE {HERE} AND row = ANY(%(rows)s)", rows=rows, **values)


def _supersede(current: dict[str, tuple[int | _New, str]], one: _New, retired: list[int]) -> bool:
    """Make this the current line of its key and retire the other; False when this one is older."""
    key, order = short(one.record.key), short(one.record.order)
    before, sort = current.get(key, (None, ""))
    if before is not None and sort >= order:
        return False
    if isinstance(before, _New):
        before.superseded = True
    elif before is not None:
        retired.append(before)
    current[key] = (one, order)
    return True


def _is_hidden(marks: dict[str, list[_Mark]], record: Record, file: int) -> bool:
    """Return whether the newest mark hides this record. A mark on a key is for older lines of its own file."""
    order = short(record.order)
    found = list(marks.get(short_id(record.id), ()))
    if record.key:
        found += [mark for mark in marks.get(short(record.key), ()) if mark.file == file and mark.sort > order]
    newest = max(found, key=lambda mark: mark.sort, default=None)
    return newest is not None and newest.hidden


def _columns(new: _New, file: int) -> dict[str, Any]:
    record = new.record
    op = words.op_of(record)
    return {
        "row": new.row, "file": file, "id": short_id(record.id), "kind": record.kind,
        "scope": short(record.scope.path), "session": short(record.scope.session), "time": short(record.time, 100),
        "key": short(record.key) or None, "op": short(op) if op is not None else None,
        "tagged": plain(words.tagged(record.tags)), "sort": short(record.order), "pair": new.pair or None,
        "alone": new.alone, "hidden": new.hidden, "superseded": new.superseded,
        "author": plain(words.author_of(record)), "agent": record.fields.get("role") == "assistant",
        "priority": priority_of(record.fields.get("priority")), "mark": mark_of(record), "record": record_out(record),
    }  # fmt: skip


def vector_of(prefix: str, texts: tuple[str, str, str]) -> tuple[str, int]:
    """Return the words of title, text and the rest as a `tsvector` literal, and their number.

    Their weights are A, B and C. One position is left free between them, so that no phrase spans two.
    """
    places: dict[str, list[str]] = {}
    start, length, room = 1, 0, _VECTOR_BYTES
    for weight, text in zip("ABC", texts, strict=True):
        found = stems(text)
        length += len(found)
        for at, stem in enumerate(found, start):
            known = places.get(stem)
            if known is None:
                cost = len(stem.encode()) + PREFIX + 8
                if len(stem) > LONGEST_STEM or room < cost + 2:
                    continue
                room -= cost
                known = places[stem] = []
            if len(known) < MOST_COUNTED and room >= 2:
                known.append(f"{min(at, _LAST_POSITION)}{weight}")
                room -= 2
        start += len(found) + 1
    return " ".join(f"{quoted(prefix + stem)}:{','.join(known)}" for stem, known in places.items()), length


def proof(tx: Transaction, index: Generation) -> dict[str, int]:
    """Return a number per file over all its entries, for comparing two indexes. Stale if the totals are wrong."""
    values = {"generation": index.number, "mark": index.mark}
    real = tx.row(f"SELECT count(*), coalesce(sum(length), 0)::bigint FROM holdfast.index_words WHERE {HERE}", **values)
    noted = tx.row(
        f"SELECT records + foreign_records, length + foreign_length FROM holdfast.index_generations WHERE {HERE}",
        **values,
    )
    wrong = tx.row(_WRONG_TERMS, **values)
    if real != noted or (wrong and wrong[0]):
        raise Stale("the index is damaged: its words do not add up")
    paths: dict[int, str] = dict(tx.rows(f"SELECT file, path FROM holdfast.index_files WHERE {HERE}", **values))
    sums = dict.fromkeys(paths, 0)
    for statement in (_RECORD_SUMS, _MARK_SUMS, _WORD_SUMS, _TIE_SUMS):
        for file, total in tx.rows(statement, **values):
            sums[file] = sums.get(file, 0) + int(total)
    return {paths.get(file, f"an unknown file ({file})"): total for file, total in sums.items()}
