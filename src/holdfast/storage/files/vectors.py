"""Search by meaning: a vector for every record, and the records most similar to a question.

Vectors are in a SQLite file of `.holdfast/`, one per model and version. They are made from text alone, so they can be
lost at any time, and are stored by a hash of the content (`mark`), so that a rebuilt index uses them again. A search
first makes the missing ones. When there are too many of them for the model, it uses words alone: a ranking with vectors
for half of the records is arbitrary.

The signs of all vectors are mapped into memory, to find the nearest; the rest is read when needed. All sums are of
integers and therefore exact: an answer does not depend on the order in which vectors were made.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import IO, Any, TypeVar

import apsw
import msgspec
import numpy

from holdfast.errors import HoldfastError
from holdfast.model.queries import Query, Terms
from holdfast.model.records import Record, mark_of
from holdfast.recall.embedders import EMBEDDED, Embedded, Embedder, EmbeddingModel, Failed, question_vector, vectors_of
from holdfast.recall.ranking import Near
from holdfast.storage.files.index import SqliteIndex, Unusable, delete
from holdfast.storage.files.rows import Row, Stale, carray, tune
from holdfast.storage.results import Filter, Pool, Progress

_BATCH, _PART = 500, 20_000
"""How many vectors are made, and how many are read, at a time."""
_FEW, _PAUSE, _QUICK = 16, 0.01, 2_000
"""How many vectors the background thread makes at least at a time, its pause, and how many a search beside it makes."""
_NEAREST = 30
"""How many of the most similar records become candidates, whatever their words."""
_RESCORED = 500
"""How many of the vectors that agree in the most signs are compared exactly."""
_SPARE = 1_000
"""Vectors that no record needs are removed when there are more of them than of the others, and more than this."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS vectors (
    number INTEGER PRIMARY KEY AUTOINCREMENT, mark INTEGER NOT NULL UNIQUE, vector BLOB NOT NULL
)
"""
Array = numpy.ndarray[Any, numpy.dtype[Any]]
T = TypeVar("T")


class Vectors:
    """The vectors of one memory."""

    def __init__(self, model: EmbeddingModel, *, in_background: bool) -> None:
        self._lock = threading.RLock()
        self._model = model
        self._path: str | None = None
        self._file: os.stat_result | None = None
        """The open file; None when the vectors are in memory."""
        self._generation: str | None = None
        self._last = 0
        """The greatest row of the index that was checked for a vector."""
        self._rows = 0
        """How many rows there were when all of them were last checked."""
        self._missing: dict[int, int] = {}
        """The rows without a vector, and their marks."""
        self._in_background = in_background
        """Does a thread make the missing vectors, so that no search waits for them?"""
        self._filler = threading.Thread()
        self._closed = threading.Event()
        self._files: list[IO[bytes]] = []
        """The marks, and the signs in the same order, in files without a name that are mapped into memory."""
        self._drop()

    def close(self) -> None:
        self._closed.set()
        if self._filler.is_alive():
            self._filler.join(10)
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._path is not None:
            with contextlib.suppress(apsw.Error):
                self._db.close()
        self._path, self._file, self._last = None, None, 0
        self._forget_signs()

    def _forget_signs(self) -> None:
        self._read = 0
        """The number of the last vector that was read."""
        self._marks: Array = numpy.zeros(0, numpy.int64)
        self._signs: Array = numpy.zeros((0, 0), numpy.uint64)
        while self._files:
            self._files.pop().close()

    # searching

    def pools(
        self, index: SqliteIndex, query: Query, terms: Terms, where: Filter, most: int
    ) -> tuple[list[Pool], Near] | None:
        """Return the pools of a question, with the records most similar to it, and the similarity of each candidate.

        None while vectors are missing.
        """

        def work(model: Embedder) -> tuple[list[Pool], Near] | None:
            at_once = min(model.at_once, _QUICK) if self._in_background else model.at_once
            if not self._catch_up(index, model, at_once):
                return None
            questions: list[Array] = []

            def nearest(pool: Pool) -> list[int]:
                question = _small(question_vector(model, query.text, pool)[None, :])[0]
                questions.append(question)
                if terms.phrases or not question.any():  # quoted words must occur literally
                    return []
                return self._nearest(index, model, question, pool, where)

            values: dict[str, float] = {}
            pools = index.pools(terms, where, most, nearest)
            for pool, question in zip(pools, questions, strict=True):
                if question.any():
                    values |= self._nearness(index, model, pool, question)
            return pools, Near(values, model.near)

        if self._filler.is_alive():  # many are missing: do not wait for the lock
            return None
        return self._run(index, work)

    def fill(self, index: SqliteIndex) -> None:
        """Make missing vectors in a background thread."""

        def make_some(model: Embedder) -> bool:
            return self._catch_up(index, model, max(_FEW, model.at_once // 100))

        def work() -> None:
            with contextlib.suppress(HoldfastError, Stale, Unusable):  # the next search tries again and reports errors
                while not self._closed.is_set() and self._run(index, make_some) is False:
                    self._closed.wait(_PAUSE)

        if self._filler.is_alive():
            return
        with self._lock:
            if self._filler.is_alive() or not self._missing or self._closed.is_set():
                return
            self._filler = threading.Thread(target=work, name="holdfast-embedding", daemon=True)
            self._filler.start()

    def embed(self, index: SqliteIndex, progress: Progress | None = None) -> Embedded:
        """Make all missing vectors."""

        def work(model: Embedder) -> int:
            self._last = 0  # all rows are checked, and vectors that no record needs are removed
            missing = len(self._find_missing(index, model))
            self._catch_up(index, model, -1, progress)
            return missing

        if (made := self._run(index, work)) is None:
            raise self._model.unavailable()
        return msgspec.structs.replace(self.status(index), made=made)

    def status(self, index: SqliteIndex) -> Embedded:
        """Return the state of the vectors without making any."""

        def work(model: Embedder) -> Embedded:
            missing = len(self._find_missing(index, model))
            stored = sum(map(len, index.marks(EMBEDDED))) - missing
            size = self._db.pragma("page_count") * self._db.pragma("page_size") if self._file else 0
            return Embedded(self._model.embedder, model.name, model.version, stored, missing, size)

        return self._run(index, work) or Embedded("", problem=self._model.problem)

    # storing

    def _run(self, index: SqliteIndex, work: Callable[[Embedder], T]) -> T | None:
        """Run work on the vectors; None when there is no model, or when it fails.

        A damaged file is deleted, and its vectors are made again. If a file cannot be written, they are in memory.
        """
        with self._lock:
            for attempt in range(3):
                if (model := self._model.get()) is None:
                    break
                try:
                    self._open(index, model, in_memory=attempt == 2)
                    return work(model)
                except Failed as error:
                    self._model.disable(error)
                    self._missing = {}
                except (apsw.Error, OSError) as error:
                    if self._file and not isinstance(error, apsw.BusyError | apsw.FullError | apsw.ReadOnlyError):
                        delete(self._path or "")
                self._drop()
            return None

    def _open(self, index: SqliteIndex, model: Embedder, *, in_memory: bool) -> None:
        generation = index.generation()
        token = blake2b(f"{model.name}\n{model.version}\n{model.size}".encode(), digest_size=8).hexdigest()
        start = f"vectors-{model.name}-"
        path = os.path.join(index.folder, f"{start}{token}.sqlite") if generation else ""
        if path != self._path or (self._file and not _is_at(path, self._file)):
            self._drop()
            self._db = apsw.Connection(":memory:" if in_memory else path or ":memory:")
            self._path, self._file = path, None if in_memory or not path else os.stat(path)
            tune(self._db)
            self._db.execute(_SCHEMA)
            for name in os.listdir(index.folder) if path else ():  # of other versions of the model
                if name.startswith(start) and not name.startswith(f"{start}{token}.sqlite"):
                    delete(os.path.join(index.folder, name))
        if generation != self._generation:
            self._generation, self._last = generation, 0
        self._read_on(model)

    def _read_on(self, model: Embedder) -> None:
        """Read the signs of the vectors that any process added."""
        sql = "SELECT number, mark, vector FROM vectors WHERE number > ? AND length(vector) = ? ORDER BY number LIMIT ?"
        before = self._read
        try:
            while new := self._db.execute(sql, (self._read, model.size, _PART)).fetchall():
                self._files = self._files or [_temporary(self._path), _temporary(self._path)]
                numbers, marks, vectors = zip(*new, strict=True)
                self._files[0].write(numpy.asarray(marks, numpy.int64).tobytes())
                self._files[1].write(_signs(_joined(vectors, model.size)).tobytes())
                self._read = numbers[-1]
            if self._read > before:
                self._marks = numpy.memmap(self._files[0], numpy.int64, "r")
                self._signs = numpy.memmap(self._files[1], numpy.uint64, "r").reshape(len(self._marks), -1)
        except OSError as error:
            raise apsw.FullError(str(error)) from None

    def _find_missing(self, index: SqliteIndex, model: Embedder) -> dict[int, int]:
        """Update the rows without a vector and return them; only the first call checks all rows."""
        if len(self._marks) > 2 * self._rows + _SPARE:  # perhaps most of them are no longer used
            self._last = 0
        last, first = index.last_row(), not self._last
        known, self._missing = {} if first else self._missing, {}
        self._rows *= not first
        for part in itertools.chain([known] if known else [], index.marks(EMBEDDED, self._last)):
            sql = "SELECT value FROM carray(?) WHERE value NOT IN (SELECT mark FROM vectors)"
            missing = {mark for (mark,) in self._db.execute(sql, (carray(part.values()),))}
            self._missing |= {row: mark for row, mark in part.items() if mark in missing}
            self._rows += len(part) * first
        if first and len(self._marks) > 2 * self._rows + _SPARE:
            unused = "DELETE FROM vectors WHERE number <= ? AND mark NOT IN (SELECT value FROM carray(?))"
            marks = itertools.chain.from_iterable(part.values() for part in index.marks(EMBEDDED))
            self._db.execute(unused, (self._read, carray(marks)))
            self._forget_signs()
            self._read_on(model)
        self._last = last
        return self._missing

    def _catch_up(self, index: SqliteIndex, model: Embedder, most: int, progress: Progress | None = None) -> bool:
        """Make missing vectors, at most `most` unless that is negative; return whether none is missing now."""
        missing = list(self._find_missing(index, model))
        wanted = missing if most < 0 else missing[:most]
        for start in range(0, len(wanted), _BATCH):
            self._make(model, index.load(wanted[start : start + _BATCH]))
            if progress:
                progress(min(start + _BATCH, len(wanted)), len(wanted))
        self._missing = {row: self._missing[row] for row in missing[len(wanted) :]}
        return not self._missing

    def _make(self, model: Embedder, records: Mapping[int, Record]) -> None:
        every = list(records.values())
        made = [vector.tobytes() for vector in _small(vectors_of(model, every))] if every else []
        with self._db:
            self._db.executemany(
                "INSERT OR REPLACE INTO vectors (mark, vector) VALUES (?, ?)",
                zip(map(mark_of, every), made, strict=True),
            )
        self._read_on(model)

    # similarity

    def _nearest(self, index: SqliteIndex, model: Embedder, question: Array, pool: Pool, where: Filter) -> list[int]:
        """Return the most similar rows of a pool that pass the filter and are about the question."""
        about = self._similar(model, question, None)
        rows = index.having_marks(about, pool, where, _NEAREST)
        if len(rows) < _NEAREST <= len(about):  # few of many similar records pass: compare only those that do
            among = numpy.isin(self._marks, index.marks_inside(where))
            rows = index.having_marks(self._similar(model, question, among), pool, where, _NEAREST)
        return rows

    def _similar(self, model: Embedder, question: Array, among: Array | None) -> list[int]:
        """Return the marks that are about a question, of all or of some, the most similar first."""
        signs, marks = (self._signs, self._marks) if among is None else (self._signs[among], self._marks[among])
        if not len(signs):
            return []
        mine = _signs(question[None, :])[0]
        apart = numpy.bitwise_count(signs[:, 0] ^ mine[0]).astype(numpy.uint16)
        for column in range(1, signs.shape[1]):
            apart += numpy.bitwise_count(signs[:, column] ^ mine[column])
        if len(apart) > _RESCORED:  # equals are all kept or all dropped
            marks = marks[apart <= numpy.partition(apart, _RESCORED)[_RESCORED]]
        scores = self._cosines(model, marks.tolist(), question)
        about = [mark for mark, score in scores.items() if score >= model.near]
        return sorted(about, key=lambda mark: (-scores[mark], mark))

    def _cosines(self, model: Embedder, marks: Iterable[int], question: Array) -> dict[int, float]:
        """Return the similarity of each mark that has a vector to a question, from -1 to 1."""
        sql = "SELECT mark, vector FROM carray(?) JOIN vectors ON mark = value WHERE length(vector) = ?"
        stored: list[Row] = self._db.execute(sql, (carray(set(marks)), model.size)).fetchall()
        mine = question.astype(numpy.float32)
        theirs = _joined([vector for _, vector in stored], model.size).astype(numpy.float32)  # exact: sums of integers
        lengths = numpy.sqrt((theirs * theirs).sum(1, dtype=numpy.float64) * float((mine * mine).sum()))
        values = (theirs @ mine).astype(numpy.float64) / numpy.maximum(lengths, 1e-9)
        return dict(zip([mark for mark, _ in stored], values.tolist(), strict=True))

    def _nearness(self, index: SqliteIndex, model: Embedder, pool: Pool, question: Array) -> dict[str, float]:
        """Return the similarity of each candidate by id; make vectors that are missing again."""
        marks = {one.mark for one in pool.candidates.values()}
        near = self._cosines(model, marks, question)
        if marks - near.keys():
            lacking = index.load([row for row, one in pool.candidates.items() if one.mark not in near])
            self._make(model, {row: record for row, record in lacking.items() if record.kind in EMBEDDED})
            near = self._cosines(model, marks, question)
        return {one.id: near[one.mark] for one in pool.candidates.values() if one.mark in near}


def _is_at(path: str, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), file)
    except OSError:
        return False


def _temporary(path: str | None) -> IO[bytes]:
    """Open a file without a name, beside a path where possible."""
    try:
        return tempfile.TemporaryFile(dir=os.path.dirname(path or "") or None)
    except OSError:
        return tempfile.TemporaryFile()


def _small(vectors: Array) -> Array:
    """Scale vectors to integers from -127 to 127; only the direction counts."""
    most = numpy.abs(vectors).max(1, keepdims=True)
    return numpy.asarray(numpy.rint(vectors * (127 / numpy.maximum(most, 1e-9))).astype(numpy.int8))


def _signs(vectors: Array) -> Array:
    return numpy.packbits(vectors > 0, axis=1).view(numpy.uint64)


def _joined(vectors: Iterable[bytes], size: int) -> Array:
    return numpy.frombuffer(b"".join(vectors), numpy.int8).reshape(-1, size)
