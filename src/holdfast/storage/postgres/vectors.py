"""Vectors of records in a database, for one tenant (docs/decisions/023).

A set of vectors belongs to one version of a model and one generation of the index, whose rows its entries name. The
signs of a vector are a code of bits in a narrow table of its own: pgvector finds the codes nearest to that of a
question, and their vectors are compared exactly here, by the same sums as in the file engine. So both engines give the
same answer. Only the numbers of the rows that have a vector are in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, LiteralString, TypeVar

import numpy
from psycopg import errors as pg

from holdfast.errors import Busy, Unavailable
from holdfast.recall.embedders import NoVectors
from holdfast.storage.files.vectors import RESCORED, Array, FileVectors, cosines, small
from holdfast.storage.postgres.database import Database, Transaction
from holdfast.storage.postgres.search import listed
from holdfast.storage.tree import RootGone

if TYPE_CHECKING:
    from psycopg.rows import TupleRow

    from holdfast.recall.embedders import Embedder, Floats

BITS = 384
_WHAT = "The vectors"
_MANY = 2_000
"""Up to so many rows are looked up by number; for more, all are read again, at most once per `_PAUSE` seconds."""
_PAUSE = 1.0
_SAMPLE = 1_000
_SURPLUS = 3
"""The bound on the distance lets about so many times more rows pass than are wanted."""
_LEAST_PLACE = 15
_TOUCH = 3600.0
_UNUSED = "7 days"
"""A set that was not used for so long is removed; its use is recorded every `_TOUCH` seconds."""

_ROWS: LiteralString = (
    "SELECT string_agg(int8send(row), '') FROM holdfast.vector_codes WHERE tenant = %(tenant)s AND set = %(set)s"
)
_CODES: LiteralString = (
    "SELECT string_agg(substring(bit_send(code) FROM 5), '') FROM holdfast.vector_codes"
    " WHERE tenant = %(tenant)s AND set = %(set)s AND row = ANY(%(rows)s::bigint[])"
)
_KNOWN: LiteralString = (
    "SELECT row FROM holdfast.vector_codes"
    " WHERE tenant = %(tenant)s AND set = %(set)s AND row = ANY(%(rows)s::bigint[])"
)
_ENTRIES: LiteralString = (
    "SELECT row, mark, vector FROM holdfast.vectors"
    " WHERE tenant = %(tenant)s AND set = %(set)s AND row = ANY(%(rows)s::bigint[])"
)
_NEAREST: LiteralString = """
SELECT row, holdfast.apart(code, %(code)s::bit(384)) FROM holdfast.vector_codes
WHERE tenant = %(tenant)s AND set = %(set)s AND holdfast.apart(code, %(code)s::bit(384)) <= %(bound)s::float8
ORDER BY 2 FETCH FIRST (%(most)s) ROWS WITH TIES
"""
_NEAREST_AMONG: LiteralString = """
SELECT row, holdfast.apart(code, %(code)s::bit(384)) FROM holdfast.vector_codes
WHERE tenant = %(tenant)s AND set = %(set)s AND row = ANY(%(among)s::bigint[])
ORDER BY 2 FETCH FIRST (%(most)s) ROWS WITH TIES
"""
_ADD_CODES: LiteralString = """
INSERT INTO holdfast.vector_codes AS there (tenant, set, row, code)
SELECT %(tenant)s, %(set)s, row, code::bit(384) FROM unnest(%(rows)s::bigint[], %(codes)s::text[]) AS given(row, code)
ON CONFLICT (tenant, set, row) DO UPDATE SET code = excluded.code WHERE there.code <> excluded.code
"""
_ADD: LiteralString = """
INSERT INTO holdfast.vectors AS there (tenant, set, row, mark, vector)
SELECT %(tenant)s, %(set)s, * FROM unnest(%(rows)s::bigint[], %(marks)s::bigint[], %(vectors)s::bytea[])
ON CONFLICT (tenant, set, row) DO UPDATE SET mark = excluded.mark, vector = excluded.vector
WHERE (there.mark, there.vector) <> (excluded.mark, excluded.vector)
"""
_REMOVE: tuple[LiteralString, ...] = (
    "DELETE FROM holdfast.vector_codes WHERE tenant = %(tenant)s AND set = %(set)s",
    "DELETE FROM holdfast.vectors WHERE tenant = %(tenant)s AND set = %(set)s",
)
_REMOVE_ROWS: LiteralString = " AND row = ANY(%(rows)s::bigint[])"
_USED: LiteralString = """
UPDATE holdfast.vector_sets SET used = clock_timestamp()
WHERE tenant = %(tenant)s AND id = %(set)s AND used < clock_timestamp() - interval '1 hour'
"""
_ALIKE: LiteralString = """
SELECT id FROM holdfast.vector_sets
WHERE tenant = %(tenant)s AND id <> %(set)s AND model = %(model)s AND version = %(version)s AND size = %(size)s
"""
_OTHERS: LiteralString = """
SELECT id, generation, used < clock_timestamp() - %(unused)s::interval FROM holdfast.vector_sets
WHERE tenant = %(tenant)s AND id <> %(set)s AND model = %(model)s
"""
_USE: LiteralString = """
INSERT INTO holdfast.vector_sets (tenant, id, model, version, size, generation)
VALUES (%(tenant)s, %(set)s, %(model)s, %(version)s, %(size)s, %(generation)s)
ON CONFLICT (tenant, id) DO UPDATE SET used = clock_timestamp()
"""
_BYTES: LiteralString = """
SELECT (SELECT sum(pg_column_size(c.*)) FROM holdfast.vector_codes c WHERE tenant = %(tenant)s AND set = %(set)s)
    + (SELECT sum(pg_column_size(v.*)) FROM holdfast.vectors v WHERE tenant = %(tenant)s AND set = %(set)s)
"""
_EARLIER: LiteralString = """
SELECT string_agg(int8send(mark), ''), string_agg(int8send(set), ''), string_agg(int8send(row), '')
FROM holdfast.vectors WHERE tenant = %(tenant)s AND set = ANY(%(sets)s::bigint[])
"""
_COPIES: LiteralString = """
SELECT v.mark, v.vector FROM unnest(%(sets)s::bigint[], %(rows)s::bigint[], %(marks)s::bigint[])
AS given(set, row, mark) JOIN holdfast.vectors v
ON v.tenant = %(tenant)s AND v.set = given.set AND v.row = given.row AND v.mark = given.mark
"""
T = TypeVar("T")


class PgVectors:
    """The vectors of one model for one generation of the index of one tenant.

    `living` returns the generations in use, some of them by programs that read the same files in other ways. Sets of
    other generations are removed.
    """

    def __init__(
        self, database: Database, model: Embedder, generation: str, living: Callable[[], Sequence[str]] | None = None
    ) -> None:
        self._database = database
        self._model = model
        self._living = living
        label = f"{model.name}\n{model.version}\n{model.size}\n{generation}"
        self._set = int.from_bytes(blake2b(label.encode(), digest_size=8).digest(), "big", signed=True)
        self._named = {
            "set": self._set, "model": model.name, "version": model.version, "size": model.size,
            "generation": generation,
        }  # fmt: skip
        self._known: Array | None = None
        """The rows that are known to have a vector, sorted."""
        self._read_at = 0.0
        self._touched_at = -_TOUCH
        self._sample: Array = numpy.zeros((0, BITS // 64), numpy.uint64)
        """Codes of some rows."""
        self._extra = FileVectors(None, model, generation)
        """Vectors that the database did not accept."""
        self._old: tuple[Array, Array, Array] | None = None
        self.doubted = False

    def close(self) -> None:
        self._known = None

    # which rows have a vector

    def __len__(self) -> int:
        return len(self._rows) + len(self._extra)

    @property
    def _rows(self) -> Array:
        return numpy.zeros(0, numpy.int64) if self._known is None else self._known

    def bytes_on_disk(self) -> int:
        row = self._run(lambda tx: tx.row(_BYTES, set=self._set))
        return int(row[0] or 0) if row else 0

    def read_on(self) -> bool:
        again = self._known is not None and self.doubted
        if self._known is None or self.doubted:
            self._read()
        self.doubted = False
        if time.monotonic() > self._touched_at + _TOUCH:
            self._touched_at = time.monotonic()
            self._try(lambda tx: tx.change(_USED, set=self._set))
        return again

    def _read(self) -> None:
        """Read which rows have a vector, and the codes of some of them."""
        row = self._run(lambda tx: tx.row(_ROWS, set=self._set))
        self._known = known = numpy.sort(_numbers(row[0] if row else None))
        self._read_at = time.monotonic()
        some = known[:: max(1, len(known) // _SAMPLE)][:_SAMPLE].tolist() if len(known) > _SURPLUS * RESCORED else []
        codes = self._run(lambda tx: tx.row(_CODES, set=self._set, rows=listed(some))) if some else None
        self._sample = numpy.frombuffer((codes and codes[0]) or b"", numpy.uint64).reshape(-1, BITS // 64)

    def missing(self, rows: Sequence[int]) -> list[int]:
        wanted = numpy.asarray(rows, numpy.int64)
        lacking = wanted[~self._has(wanted)]
        if len(lacking) > _MANY and time.monotonic() > self._read_at + _PAUSE:
            self._read()
        elif 0 < len(lacking) <= _MANY:
            found = self._run(lambda tx: tx.rows(_KNOWN, set=self._set, rows=listed(lacking.tolist())))
            self._note([row for (row,) in found])
        return self._extra.missing(lacking[~self._has(lacking)].tolist())

    def _has(self, rows: Array) -> Array:
        known = self._rows
        if not len(known):
            return numpy.zeros(len(rows), bool)
        return numpy.asarray(known[numpy.minimum(numpy.searchsorted(known, rows), len(known) - 1)] == rows)

    def _note(self, rows: Sequence[int]) -> None:
        fresh, known = numpy.unique(numpy.asarray(rows, numpy.int64)), self._rows
        if len(fresh):  # usually they are the last
            later = not len(known) or fresh[0] > known[-1]
            self._known = numpy.concatenate((known, fresh)) if later else numpy.union1d(known, fresh)

    # similarity

    def nearness(self, rows: Sequence[int], marks: Sequence[int], question: Floats) -> list[float | None]:
        result = self._extra.nearness(rows, marks, question)
        there, near = self._compared(rows, question)
        gone = numpy.asarray([row for row in rows if row not in there], numpy.int64)
        self.doubted = self.doubted or bool(self._has(gone).any())
        for place, (row, mark) in enumerate(zip(rows, marks, strict=True)):
            if there.get(row) == mark:
                result[place] = near[row]
        return result

    def _compared(self, rows: Sequence[int], question: Floats) -> tuple[dict[int, int], dict[int, float]]:
        """Return the marks and the similarities of those of these rows that have a vector."""
        found = self._run(lambda tx: tx.rows(_ENTRIES, set=self._set, rows=listed(rows)))
        whole = [one for one in found if len(one[2]) == self._model.size]
        vectors = numpy.frombuffer(b"".join(one[2] for one in whole), numpy.int8).reshape(-1, self._model.size)
        near = cosines(vectors, question).tolist()
        return {row: mark for row, mark, _ in whole}, dict(zip((row for row, _, _ in whole), near, strict=True))

    def nearest(self, question: Floats, among: Sequence[int] | None = None) -> list[tuple[int, float]]:
        return self._run(lambda _: self._nearest(question, among))  # one transaction for all queries

    def _nearest(self, question: Floats, among: Sequence[int] | None) -> list[tuple[int, float]]:
        rows = [row for row, _ in self._nearest_codes(question, among)]
        near = self._compared(rows, question)[1] if rows else {}
        if broken := [row for row in rows if row not in near]:  # codes without a vector: both are computed again
            self._try(lambda tx: self._remove_rows(tx, broken))
        expected = min(len(self._rows), RESCORED) if among is None else 0
        self.doubted = self.doubted or len(near) < max(len(rows), expected)
        return list((dict(self._extra.nearest(question, among)) | near).items())

    def _nearest_codes(self, question: Floats, among: Sequence[int] | None) -> list[TupleRow]:
        """Return the rows with the nearest codes, with all rows of the same distance as the last."""
        code = _code(small(question[None, :]))
        given = {"set": self._set, "most": RESCORED + 1, "code": _text(code)[0]}
        if among is not None:
            return self._ask(_NEAREST_AMONG, given | {"among": listed(among)})
        bound = BITS
        if len(self._sample):  # a distance that more than enough rows are within, so that the rest need no sorting
            apart = numpy.sort(numpy.bitwise_count(self._sample ^ code.view(numpy.uint64)).sum(1))
            place = max(_LEAST_PLACE, _SURPLUS * RESCORED * len(self._sample) // len(self._rows))
            bound = int(apart[place]) if place < len(apart) else BITS
        found = self._ask(_NEAREST, given | {"bound": bound})
        if len(found) <= RESCORED and bound < BITS:
            found = self._ask(_NEAREST, given | {"bound": BITS})
        return found

    def _ask(self, statement: LiteralString, given: dict[str, object]) -> list[TupleRow]:
        def work(tx: Transaction) -> list[TupleRow]:
            try:
                with tx.session.transaction():  # a failure leaves the surrounding transaction usable
                    return tx.rows(statement, **given)
            except pg.UndefinedFunction:
                raise NoVectors(
                    "The extension vector was removed from the database while the memory was open.",
                    "Have an administrator run: CREATE EXTENSION vector; then open the memory again.",
                ) from None

        return self._run(work)

    # adding

    def small(self, vectors: Floats) -> Array:
        return small(vectors)

    def add(self, rows: Sequence[int], marks: Sequence[int], vectors: Sequence[Array | None]) -> None:
        if not rows:
            return
        order = numpy.argsort(numpy.asarray(rows, numpy.int64)).tolist()  # one order for all writers: no deadlocks
        entries = numpy.stack([numpy.asarray(vectors[place], numpy.int8) for place in order])
        given = {
            "set": self._set,
            "rows": listed([rows[place] for place in order]),
            "marks": listed([marks[place] for place in order]),
            "codes": _text(_code(entries)),
            "vectors": [vector.tobytes() for vector in entries],
        }

        def work(tx: Transaction) -> None:
            self._use(tx)
            tx.change(_ADD_CODES, **given)
            tx.change(_ADD, **given)

        if self._try(work):
            self._note(rows)
        else:
            self._extra.add(rows, marks, vectors)

    def _use(self, tx: Transaction) -> None:
        """Lock the entry of this set, so that it is not removed meanwhile; create it if it is missing."""
        lock: LiteralString = "SELECT 1 FROM holdfast.vector_sets WHERE tenant = %(tenant)s AND id = %(set)s FOR SHARE"
        if not tx.row(lock, set=self._set):
            tx.change(_USE, **self._named)

    def earlier(self, marks: Sequence[int]) -> list[Array | None]:
        known, sets, rows = self._old = self._old or self._run(self._read_earlier)
        result: list[Array | None] = [None] * len(marks)
        if not len(known):
            return result
        wanted = numpy.asarray(marks, numpy.int64)
        at = numpy.minimum(numpy.searchsorted(known, wanted), len(known) - 1)
        places = numpy.flatnonzero(known[at] == wanted)
        given = {"marks": wanted[places], "sets": sets[at[places]], "rows": rows[at[places]]}
        values = {name: listed(each.tolist()) for name, each in given.items()}
        found: dict[int, bytes] = dict(self._run(lambda tx: tx.rows(_COPIES, **values)))
        for place in places.tolist():
            vector = found.get(int(wanted[place]))
            if vector is not None and len(vector) == self._model.size:
                result[place] = numpy.frombuffer(vector, numpy.int8)
        return result

    def _read_earlier(self, tx: Transaction) -> tuple[Array, Array, Array]:
        """Return the marks of all vectors of this model for other generations, sorted, and set and row of each."""
        row = tx.row(_EARLIER, sets=[id for (id,) in tx.rows(_ALIKE, **self._named)])
        marks, sets, rows = (_numbers(part) for part in row or (None,) * 3)
        marks, first = numpy.unique(marks, return_index=True)
        return marks, sets[first], rows[first]

    # removing

    def tidy(self) -> None:
        """Remove the sets of generations that no longer exist, and those that were not used for long."""
        self._old = None

        def work(tx: Transaction) -> None:
            others = tx.rows(_OTHERS, **self._named, unused=_UNUSED)
            living = self._living() if self._living and others else None  # read later: an index precedes its vectors
            for other, generation, unused in others:
                if unused or (living is not None and generation not in living):
                    tx.change("DELETE FROM holdfast.vector_sets WHERE tenant = %(tenant)s AND id = %(set)s", set=other)
                    for statement in _REMOVE:
                        tx.change(statement, set=other)

        self._try(work)

    def keep_only(self, rows: Sequence[int]) -> None:
        """Remove the vectors of rows that are gone, as far as they are known here."""
        gone = numpy.setdiff1d(self._rows, numpy.asarray(rows, numpy.int64))
        if len(gone):
            self._try(lambda tx: self._remove_rows(tx, gone.tolist()))
            self._known = None
            self.read_on()

    def _remove_rows(self, tx: Transaction, rows: list[int]) -> None:
        self._use(tx)
        for statement in _REMOVE:
            tx.change(statement + _REMOVE_ROWS, set=self._set, rows=listed(rows))

    def _run(self, work: Callable[[Transaction], T]) -> T:
        return self._database.run(_WHAT, work)

    def _try(self, work: Callable[[Transaction], object]) -> bool:
        """Do a write that is not essential; return whether it succeeded."""
        try:
            self._database.run(_WHAT, work, writes=True, durable=False)
        except (Unavailable, Busy) as error:
            if isinstance(error, RootGone):
                raise
            return False
        return True


def remove_all(database: Database) -> None:
    """Remove all vectors of the tenant, of all models."""

    def work(tx: Transaction) -> None:
        for table in ("vector_sets", "vector_codes", "vectors"):
            tx.change(f"DELETE FROM holdfast.{table} WHERE tenant = %(tenant)s")

    database.run(_WHAT, work, writes=True)


def _numbers(sent: bytes | None) -> Array:
    """Decode numbers that the server sent in one value."""
    return numpy.frombuffer(sent or b"", ">i8").astype(numpy.int64)


def _code(vectors: Array) -> Array:
    """Return the signs of vectors as bits, padded with zeros to the length of a code."""
    signs = numpy.packbits(vectors > 0, axis=1)
    return numpy.pad(signs, ((0, 0), (0, BITS // 8 - signs.shape[1])))


def _text(codes: Array) -> list[str]:
    """Return codes as literals of the type `bit`."""
    digits = numpy.unpackbits(codes, axis=1) + ord("0")
    return [row.tobytes().decode("ascii") for row in digits]
