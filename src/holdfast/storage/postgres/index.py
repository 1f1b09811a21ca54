"""The index in a database: one for all programs that read the files of a tenant in the same way.

A login that only reads uses it as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.model.queries import Terms
from holdfast.model.records import HALF, Problem, Record
from holdfast.storage.index import Applied, Facts, Filter, Pool, Seen, Stale, Tied
from holdfast.storage.postgres.database import Transaction
from holdfast.storage.postgres.generations import ANALYZE_AFTER, HERE, Generation, Generations
from holdfast.storage.postgres.index_writer import IndexWriter, proof
from holdfast.storage.postgres.schema import TABLES
from holdfast.storage.postgres.search import (
    FILE,
    OF,
    Searching,
    Ties,
    at_or_below,
    conditions,
    has_foreign,
    in_order,
    load,
    plain,
    short,
    short_id,
)
from holdfast.storage.words import record_in, revive

_RECORDS = f"holdfast.index_records r {FILE}"
_ADD_FILE = f"""
INSERT INTO holdfast.index_files AS known (tenant, generation, path, file, seen)
SELECT %(tenant)s, %(generation)s, %(path)s, next_file, %(seen)s FROM holdfast.index_generations
WHERE {HERE} ON CONFLICT (tenant, generation, path) DO UPDATE SET seen = excluded.seen
"""
_encode_seen, _decode_seen = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Seen).decode


class PgIndex(Generations):
    """One tenant's index, for any number of threads."""

    def close(self) -> None:
        """Do nothing: the tree closes the connections."""

    def _records(self, condition: str, order: str = "r.sort, f.path", **values: object) -> list[Record]:
        statement = (
            f"SELECT r.record, r.hidden, r.superseded FROM {_RECORDS} WHERE {OF} AND {condition} ORDER BY {order}"
        )
        return self._read(
            lambda tx, index: [revive(*row) for row in tx.rows(statement, generation=index.number, **values)]
        )

    # writing

    def replace(self, path: str, seen: Seen, facts: Facts) -> None:
        with self.writing():
            writer = self._writer(path)
            self._add(path, seen, facts, writer.clear() if writer else set())

    def extend(self, path: str, seen: Seen, facts: Facts) -> None:
        with self.writing():
            self._add(path, seen, facts, set())

    def _add(self, path: str, seen: Seen, facts: Facts, targets: set[str]) -> None:
        tx, number = self._local.tx, self._local.index.number
        tx.change(_ADD_FILE, generation=number, path=plain(path), seen=_encode_seen(seen))
        row = tx.row(
            "SELECT f.file, g.next_row, g.next_file, g.analyzed FROM holdfast.index_generations g"
            " JOIN holdfast.index_files f ON f.tenant = %(tenant)s AND f.generation = %(generation)s"
            " AND f.path = %(path)s WHERE g.tenant = %(tenant)s AND g.generation = %(generation)s",
            generation=number, path=plain(path),
        )  # fmt: skip
        if row is None:
            raise Stale("the index was replaced")
        file, next_row, next_file, analyzed = row
        rows = IndexWriter(tx, self._local.index, file, seen.kind).add(facts, targets, next_row)
        if rows or file == next_file:
            tx.change(
                "UPDATE holdfast.index_generations"
                " SET next_row = next_row + %(rows)s, next_file = next_file + %(files)s, used = clock_timestamp()"
                f" WHERE {HERE}",
                generation=number, rows=rows, files=int(file == next_file),
            )  # fmt: skip
            self._local.grown = next_row + rows > 2 * analyzed + ANALYZE_AFTER

    def _writer(self, path: str) -> IndexWriter | None:
        known = _file(self._local.tx, self._local.index, path)
        return IndexWriter(self._local.tx, self._local.index, known[0], known[1].kind) if known else None

    def touch(self, path: str, seen: Seen) -> None:
        self._change(
            f"UPDATE holdfast.index_files SET seen = %(seen)s WHERE {HERE} AND path = %(path)s",
            seen=_encode_seen(seen), path=plain(path),
        )  # fmt: skip

    def remove(self, path: str) -> None:
        with self.writing():
            writer = self._writer(path)
            if writer:
                targets = writer.clear()
                self._change(f"DELETE FROM holdfast.index_files WHERE {HERE} AND path = %(path)s", path=plain(path))
                writer.apply_marks(targets)

    def note(self, name: str, value: str) -> None:
        with self.writing():
            self._change(f"DELETE FROM holdfast.index_notes WHERE {HERE} AND name = %(name)s", name=name)
            if value:
                self._change(
                    "INSERT INTO holdfast.index_notes VALUES (%(tenant)s, %(generation)s, %(name)s, %(value)s)",
                    name=name, value=plain(value),
                )  # fmt: skip

    # reading

    def noted(self, name: str) -> str:
        rows = self._rows(f"SELECT value FROM holdfast.index_notes WHERE {HERE} AND name = %(name)s", name=name)
        return str(rows[0][0]) if rows else ""

    def seen(self, below: tuple[str, ...] = ()) -> dict[str, Seen]:
        condition, values = at_or_below(below)
        rows = self._rows(f"SELECT path, seen FROM holdfast.index_files f WHERE {HERE} AND {condition}", **values)
        return {path: _seen(data) for path, data in rows}

    def look(self, path: str) -> Seen | None:
        found = self._read(lambda tx, index: _file(tx, index, path))
        return found[1] if found else None

    def newest(self, where: Filter, limit: int) -> list[Record]:
        condition, values = conditions(where)
        order = "r.time DESC, f.path, r.sort DESC, r.id LIMIT %(limit)s"
        return self._records(condition, order, limit=limit if limit >= 0 else None, **values)

    def best(self, terms: Terms, where: Filter, limit: int) -> list[tuple[Record, float]]:
        def work(tx: Transaction, index: Generation) -> list[tuple[Record, float]]:
            found: list[tuple[int, float]] = []
            for foreign in has_foreign(where):
                searching = Searching(tx, index, foreign, self._settings)
                found += searching.best(searching.wanted(terms), where, limit)
            found.sort(key=lambda row: -row[1])
            records = load(tx, index, [row for row, _ in found[:limit]])
            return [(records[row], score) for row, score in found[:limit] if row in records]

        return self._read(work)

    def pools(self, terms: Terms, where: Filter, most: int) -> list[Pool]:
        return self._read(
            lambda tx, index: [
                Searching(tx, index, foreign, self._settings).pool(terms, where, most) for foreign in has_foreign(where)
            ]
        )

    def widened(self, pool: Pool, where: Filter, rows: Sequence[int]) -> Pool:
        return self._read(
            lambda tx, index: Searching(tx, index, pool.foreign, self._settings).widened(pool, where, rows)
        )

    def passing(self, scored: Sequence[tuple[int, float]], where: Filter) -> list[int]:
        condition, values = conditions(where)
        found = self._rows(
            f"SELECT r.row, r.time, f.path, r.sort, r.id FROM {_RECORDS}"
            f" WHERE {OF} AND r.row = ANY(%(rows)s) AND {condition}",
            rows=[row for row, _ in scored], **values,
        )  # fmt: skip
        return in_order(found, dict(scored))

    def rows(self, kinds: Sequence[str], after: int = 0) -> list[int]:
        found = self._rows(
            f"SELECT r.row FROM holdfast.index_records r WHERE {OF} AND r.row > %(after)s"
            " AND r.kind = ANY(%(kinds)s) AND NOT r.superseded ORDER BY r.row",
            after=after, kinds=list(kinds),
        )  # fmt: skip
        return [row for (row,) in found]

    def inside(self, where: Filter) -> list[int]:
        condition, values = conditions(where)
        found = self._rows(f"SELECT r.row FROM holdfast.index_records r WHERE {OF} AND {condition}", **values)
        return [row for (row,) in found]

    def load(self, rows: list[int]) -> dict[int, Record]:
        return self._read(lambda tx, index: load(tx, index, rows))

    def related(self, identifiers: Sequence[str], where: Filter, limit: int) -> dict[str, list[Tied]]:
        return self._read(lambda tx, index: Ties(tx, index, identifiers, where).best(limit))

    def by_id(self, identifier: str) -> list[Record]:
        return self._records("r.id = %(id)s", id=short_id(identifier))

    def by_key(self, path: str, key: str, *, history: bool = False) -> list[Record]:
        some = "" if history else "AND NOT r.superseded"
        return self._records(f"r.key = %(key)s AND f.path = %(path)s {some}", key=short(key), path=plain(path))

    def last_order(self, path: str, target: str) -> str:
        of_file = f"{HERE} AND file = (SELECT file FROM holdfast.index_files WHERE {HERE} AND path = %(path)s)"
        rows = self._rows(
            "SELECT max(sort) FROM ("
            f"SELECT sort FROM holdfast.index_records WHERE {of_file} AND id = %(id)s"
            f" UNION ALL SELECT sort FROM holdfast.index_records WHERE {of_file} AND key = %(target)s"
            f" UNION ALL SELECT sort FROM holdfast.index_marks WHERE {of_file} AND target = %(target)s) AS known",
            path=plain(path), id=short_id(target), target=short(target),
        )  # fmt: skip
        return str(rows[0][0] or "")

    def by_op(self, op_id: str) -> list[Applied]:
        op = short(op_id)
        found = [Applied(each.path, each.id, each.fields) for each in self._records("r.op = %(op)s", op=op)]
        statement = f"SELECT f.path, r.target FROM holdfast.index_marks r {FILE} WHERE {OF} AND r.op = %(op)s"
        return found + [Applied(path, target, marks=True) for path, target in self._rows(statement, op=op)]

    def halves(self, path: str) -> set[str]:
        rows = self._rows(f"SELECT r.id FROM {_RECORDS} WHERE {OF} AND r.alone AND f.path = %(path)s", path=plain(path))
        return {id for (id,) in rows}

    def beside(self, path: str, order: str, limit: int, *, after: bool) -> list[Record]:
        sign, way = (">", "ASC") if after else ("<", "DESC")
        condition = f"f.path = %(path)s AND r.sort {sign} %(place)s AND NOT r.hidden AND NOT r.superseded"
        return self._records(condition, f"r.sort {way} LIMIT {int(limit)}", path=plain(path), place=short(order))

    def records(self, path: str) -> list[Record]:
        return self._records("f.path = %(path)s", "r.row", path=plain(path))

    def problems(self, below: tuple[str, ...] = ()) -> list[Problem]:
        condition, values = at_or_below(below)
        rows = self._rows(
            f"SELECT f.path, r.what, r.line, r.minor FROM holdfast.index_problems r {FILE}"
            f' WHERE {OF} AND {condition} ORDER BY f.path, r.line, r.what COLLATE "C"',
            **values,
        )
        halves = self._rows(
            f"SELECT f.path, r.record FROM {_RECORDS} WHERE {OF} AND r.alone AND {condition} ORDER BY f.path, r.sort",
            **values,
        )
        return [Problem(*row) for row in rows] + [Problem(path, HALF, record_in(blob).line) for path, blob in halves]

    def problem_count(self) -> int:
        rows = self._rows(
            f"SELECT (SELECT count(*) FROM holdfast.index_problems WHERE {HERE} AND NOT minor)"
            f" + (SELECT count(*) FROM holdfast.index_records WHERE {HERE} AND alone)"
        )
        return int(rows[0][0])

    def hidden_in(self, path: str) -> dict[str, bool]:
        rows = self._rows(
            f"SELECT DISTINCT ON (r.target) r.target, r.hidden FROM holdfast.index_marks r {FILE}"
            f" WHERE {OF} AND f.path = %(path)s ORDER BY r.target, r.sort DESC",
            path=plain(path),
        )
        return dict(rows)

    def count(self, path: str, after: str) -> int:
        newer = " AND r.sort > %(after)s" if after else ""
        rows = self._rows(
            f"SELECT count(*) FROM {_RECORDS} WHERE {OF} AND f.path = %(path)s{newer}"
            " AND NOT r.hidden AND NOT r.superseded",
            path=plain(path), after=short(after),
        )  # fmt: skip
        return int(rows[0][0])

    def counts(self) -> dict[str, int]:
        rows = self._rows(f"SELECT kind, count(*) FROM holdfast.index_records WHERE {HERE} GROUP BY kind ORDER BY kind")
        return dict(rows)

    def size(self) -> int:
        """Return the bytes of all rows of the index, without those of the server's own indexes."""
        parts = " + ".join(
            f"(SELECT coalesce(sum(pg_column_size(x.*)), 0) FROM holdfast.{table} x WHERE {HERE})" for table in TABLES
        )
        return int(self._rows(f"SELECT {parts}")[0][0])

    def proof(self) -> dict[str, int]:
        return self._read(proof)

    def snapshot(self) -> tuple[dict[str, Seen], dict[str, int]]:
        def work(tx: Transaction) -> tuple[dict[str, Seen], dict[str, int]]:
            if getattr(self._local, "tx", None) is None:
                tx.change("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            index = self._current(tx)
            rows = tx.rows(f"SELECT path, seen FROM holdfast.index_files WHERE {HERE}", generation=index.number)
            return {path: _seen(data) for path, data in rows}, proof(tx, index)

        return self._database.run("the index", work)


def _file(tx: Transaction, index: Generation, path: str) -> tuple[int, Seen] | None:
    row = tx.row(
        f"SELECT file, seen FROM holdfast.index_files WHERE {HERE} AND path = %(path)s",
        generation=index.number, path=plain(path),
    )  # fmt: skip
    return (row[0], _seen(row[1])) if row else None


def _seen(data: bytes) -> Seen:
    try:
        return _decode_seen(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Stale(f"the index is damaged: {error}") from None
