"""Recall by meaning: keep a vector for every record of the index, and find the records most similar to a question.

Vectors are made from text alone, so they can be lost at any time. A search first makes the missing ones. When there
are too many of them for the model, it uses words alone: a ranking with vectors for half of the records is arbitrary.
Without an embedder, no model is loaded.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import HoldfastError
from holdfast.model.queries import Query, Terms
from holdfast.recall.embedders import EMBEDDED, Embedded, Failed, Model, question_vector
from holdfast.recall.ranking import Near
from holdfast.storage.files.index import SqliteIndex
from holdfast.storage.results import Filter, Pool, Progress

if TYPE_CHECKING:
    from holdfast.recall.embedders import Floats
    from holdfast.storage.files.vectors import FileVectors

_BATCH = 500
_FEW, _PAUSE, _QUICK = 16, 0.01, 2_000
"""How many vectors the background thread makes at least at a time, its pause, and how many a search beside it makes."""
_NEAREST = 30
"""How many of the most similar records become candidates, whatever their words."""
_OFFERED = 100
_TRIES = 2
"""How often a search starts again after it found a vector that was damaged since it was read."""


class Semantic:
    """The vectors of one memory."""

    def __init__(self, model: Model) -> None:
        self._lock = threading.RLock()
        self._model = model
        self._vectors: FileVectors | None = None
        self._generation: str | None = None
        self._last = 0
        """The greatest row of the index that was checked for a vector."""
        self._rows = self._counted = 0
        """How many rows there were when all of them were last checked, and vectors when `_missing` was computed."""
        self._missing: list[int] = []
        self.in_background = False
        """Does a thread make the missing vectors, so that no search waits for them?"""
        self._filler = threading.Thread()
        self._closed = threading.Event()

    def close(self) -> None:
        self._closed.set()
        if self._filler.is_alive():
            self._filler.join(10)
        with self._lock:
            self.forget()

    def forget(self) -> None:
        """Close the vectors: the index that they belong to was replaced."""
        with self._lock:
            if self._vectors is not None:
                self._vectors.close()
            self._vectors = self._generation = None

    # searching

    def widen(
        self, index: SqliteIndex, pools: list[Pool], query: Query, terms: Terms, where: Filter
    ) -> tuple[list[Pool], Near]:
        """Add the records most similar to the question to the pools; return the similarity of each candidate too."""
        if self._filler.is_alive():  # many are missing: do not wait for its turn
            return pools, Near()
        with self._lock:
            if (vectors := self._open(index)) is None:
                return pools, Near()
            most = min(vectors.model.at_once, _QUICK) if self.in_background else vectors.model.at_once
            try:
                for _ in range(_TRIES):
                    if not self._catch_up(index, vectors, most):
                        return pools, Near()
                    widened = _widened(index, vectors, pools, query, terms, where)
                    if not vectors.doubted:
                        break
                return widened
            except Failed as error:
                self._disable(error)
                return pools, Near()

    def fill(self, ask: Callable[[Callable[[SqliteIndex], bool]], bool]) -> None:
        """Make missing vectors in a background thread; `ask` runs a function on the index."""

        def work() -> None:
            with contextlib.suppress(HoldfastError):  # the next search tries again and reports its errors
                while not self._closed.is_set() and not ask(self._make_some):
                    self._closed.wait(_PAUSE)

        if self._filler.is_alive():
            return
        with self._lock:
            if self._filler.is_alive() or not self._missing or self._closed.is_set():
                return
            self._filler = threading.Thread(target=work, name="holdfast-embedding", daemon=True)
            self._filler.start()

    def _make_some(self, index: SqliteIndex) -> bool:
        """Make a few missing vectors; return whether none is missing now."""
        with self._lock:
            vectors = self._open(index)
            try:
                return vectors is None or self._catch_up(index, vectors, max(_FEW, vectors.model.at_once // 100))
            except Failed as error:
                self._disable(error)
                return True

    # making

    def embed(self, index: SqliteIndex, progress: Progress | None = None) -> Embedded:
        """Make all missing vectors."""
        with self._lock:
            if (vectors := self._open(index)) is None:
                raise self._model.unavailable()
            missing = len(self._find_missing(index, vectors))
            try:
                self._catch_up(index, vectors, -1, progress)
            except Failed as error:
                self._disable(error)
                raise self._model.unavailable() from None
            vectors.keep_only(index.rows(EMBEDDED))
            return msgspec.structs.replace(self.status(index), made=missing)

    def status(self, index: SqliteIndex) -> Embedded:
        """Return the state of the vectors without making any."""
        with self._lock:
            if (vectors := self._open(index)) is None:
                return Embedded("", problem=self._model.problem)
            missing = len(self._find_missing(index, vectors))
            stored = len(index.rows(EMBEDDED)) - missing
            model, size = vectors.model, vectors.bytes_on_disk()
            return Embedded(self._model.embedder, model.name, model.version, stored, missing, size)

    def _open(self, index: SqliteIndex) -> FileVectors | None:
        """Return the vectors for the current index; None when there is no model."""
        if (model := self._model.get()) is None:
            return None
        generation = index.generation()
        if self._vectors is None or generation != self._generation:
            self.forget()
            from holdfast.storage.files.vectors import FileVectors  # imports numpy

            self._vectors = FileVectors(index.folder if generation else "", model, generation)
            self._generation, self._last, self._missing = generation, 0, []
        return self._vectors

    def _disable(self, error: Failed) -> None:
        self._model.disable(error)
        self._missing = []
        self.forget()

    def _find_missing(self, index: SqliteIndex, vectors: FileVectors) -> list[int]:
        """Update the list of rows without a vector and return it; only the first call checks all rows."""
        if vectors.read_on() or len(vectors) > 2 * self._rows + 1_000:  # perhaps most of them are of no use any more
            self._last = 0
        rows = index.rows(EMBEDDED, self._last)
        if not self._last:
            self._rows = len(rows)
            vectors.keep_only(rows)
        if rows or not self._last or len(vectors) != self._counted:
            self._missing = vectors.missing(sorted({*(self._missing if self._last else ()), *rows}))
            self._counted = len(vectors)
        self._last = max(self._last, *rows[-1:], 0)
        return self._missing

    def _catch_up(self, index: SqliteIndex, vectors: FileVectors, most: int, progress: Progress | None = None) -> bool:
        """Make missing vectors, at most `most` unless that is negative; return whether none is missing now."""
        total = len(self._find_missing(index, vectors))
        wanted = self._missing if most < 0 else self._missing[:most]
        for start in range(0, len(wanted), _BATCH):
            vectors.make(index.load(wanted[start : start + _BATCH]))
            if progress:
                progress(min(start + _BATCH, len(wanted)), len(wanted))
        self._missing, self._counted = self._missing[len(wanted) :], len(vectors)
        if total and not self._missing:
            vectors.tidy()
        return not self._missing


def _widened(
    index: SqliteIndex, vectors: FileVectors, pools: list[Pool], query: Query, terms: Terms, where: Filter
) -> tuple[list[Pool], Near]:
    values: dict[str, float] = {}
    result = []
    for pool in pools:
        question = question_vector(vectors.model, query.text, pool)
        if question.any():
            if not terms.phrases:  # quoted words must occur literally
                pool = index.widened(pool, where, _nearest(index, vectors, question, where))
            values |= _nearness(index, vectors, pool, question)
        result.append(pool)
    return result, Near(values, vectors.model.near)


def _nearest(index: SqliteIndex, vectors: FileVectors, question: Floats, where: Filter) -> list[int]:
    """Return the most similar rows that pass the filter and are about the question."""
    about = _top(vectors.nearest(question), vectors.model.near)
    rows = index.passing(about, where)
    if len(rows) < _NEAREST <= len(about):  # few of many similar rows pass: compare only rows that do
        rows = index.passing(_top(vectors.nearest(question, index.inside(where)), vectors.model.near), where)
    return rows[:_NEAREST]


def _top(scored: list[tuple[int, float]], least: float) -> list[tuple[int, float]]:
    """Return the most similar rows, at least `least`; equals are all kept or all dropped."""
    near = [(row, score) for row, score in scored if score >= least]
    if len(near) <= _OFFERED:
        return near
    edge = sorted((score for _, score in near), reverse=True)[_OFFERED]
    return [(row, score) for row, score in near if score >= edge]


def _nearness(index: SqliteIndex, vectors: FileVectors, pool: Pool, question: Floats) -> dict[str, float]:
    """Return the similarity of each candidate by id; replace vectors that belong to other content."""
    rows, candidates = list(pool.candidates), pool.candidates.values()
    marks = [one.mark for one in candidates]
    near = vectors.nearness(rows, marks, question)
    wrong = index.load([row for row, one in zip(rows, near, strict=True) if one is None])
    if wrong := {row: record for row, record in wrong.items() if record.kind in EMBEDDED}:
        vectors.make(wrong)
        near = vectors.nearness(rows, marks, question)
    return {one.id: value for one, value in zip(candidates, near, strict=True) if value is not None}
