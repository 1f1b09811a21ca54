"""Recall by meaning: keep a vector for every record of the index, and find the records most similar to a question.

Vectors are made from text alone, so they can be lost at any time. A search first makes the missing ones. When there
are too many of them for the model, it uses words alone: a ranking with vectors for half of the records is arbitrary.
Without an embedder, no model is loaded.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import HoldfastError
from holdfast.model.queries import Query, Terms, bare
from holdfast.model.records import Record, mark_of
from holdfast.recall.embedders import EMBEDDED, Embedded, Failed, Model, working
from holdfast.recall.ranking import Near
from holdfast.storage.files.index import SqliteIndex
from holdfast.storage.pools import Filter, Pool
from holdfast.storage.reports import Progress

if TYPE_CHECKING:
    from holdfast.recall.embedders import Embedder, Floats
    from holdfast.storage.files.vectors import FileVectors

_CHARS = 4_000
"""The part of a text that is embedded: the mean of a longer text means less."""
_WORD = re.compile(r"[^\W_]+")
_BATCH = 500
_FEW, _PAUSE = 16, 0.01
"""How many vectors the background thread makes at a time, and its pause for searches in between."""
_NEAREST = 30
"""How many of the most similar records become candidates, whatever their words."""
_OFFERED = 100
_TRIES = 2
"""How often a search starts again after it found a vector that was damaged since it was read."""
_RARE = 0.001
"""Rare words count more: a word with this share of all words has half the weight of one that never occurs."""


class Semantic:
    """The vectors of one memory, for the embedder that a setting selects."""

    def __init__(self, setting: str) -> None:
        self._lock = threading.RLock()
        self.model = Model(setting)
        self._vectors: FileVectors | None = None
        self._generation: str | None = None
        self._last = 0
        """The greatest row of the index that was checked for a vector."""
        self._missing: list[int] = []
        self._filler: threading.Thread | None = None
        self._closed = threading.Event()

    def close(self) -> None:
        self._closed.set()
        if self._filler:
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
        with self._lock:
            model, vectors = self._open(index)
            if model is None or vectors is None:
                return pools, Near()
            try:
                for _ in range(_TRIES):
                    if not self._catch_up(index, model, vectors, model.at_once):
                        return pools, Near()
                    widened = _widened(index, model, vectors, pools, query, terms, where)
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

        with self._lock:
            if not self._missing or self._closed.is_set() or (self._filler and self._filler.is_alive()):
                return
            self._filler = threading.Thread(target=work, name="holdfast-embedding", daemon=True)
            self._filler.start()

    def _make_some(self, index: SqliteIndex) -> bool:
        """Make a few missing vectors; return whether none is missing now."""
        with self._lock:
            model, vectors = self._open(index)
            try:
                return model is None or vectors is None or self._catch_up(index, model, vectors, _FEW)
            except Failed as error:
                self._disable(error)
                return True

    # making

    def embed(self, index: SqliteIndex, progress: Progress | None = None) -> Embedded:
        """Make all missing vectors."""
        with self._lock:
            model, vectors = self._open(index)
            if model is None or vectors is None:
                raise self.model.unavailable()
            self._find_missing(index, vectors)
            missing = len(self._missing)
            try:
                self._catch_up(index, model, vectors, -1, progress)
            except Failed as error:
                self._disable(error)
                raise self.model.unavailable() from None
            vectors.keep_only(index.rows(EMBEDDED))
            return msgspec.structs.replace(self.status(index), made=missing)

    def status(self, index: SqliteIndex) -> Embedded:
        """Return the state of the vectors without making any."""
        with self._lock:
            model, vectors = self._open(index)
            if model is None or vectors is None:
                return Embedded("", problem=self.model.problem)
            self._find_missing(index, vectors)
            missing = len(self._missing)
            stored = len(index.rows(EMBEDDED)) - missing
            return Embedded(self.model.embedder, model.name, model.version, stored, missing, vectors.bytes_on_disk())

    def _open(self, index: SqliteIndex) -> tuple[Embedder | None, FileVectors | None]:
        """Return the model and its vectors for the current index; None when there is no model."""
        if (model := self.model.get()) is None:
            return None, None
        generation = index.generation()
        if self._vectors is None or generation != self._generation:
            self.forget()
            from holdfast.storage.files.vectors import FileVectors  # imports numpy

            self._vectors = FileVectors(index.folder if generation else "", model, generation)
            self._generation, self._last, self._missing = generation, 0, []
        return model, self._vectors

    def _disable(self, error: Failed) -> None:
        self.model.disable(error)
        self._missing = []
        self.forget()

    def _find_missing(self, index: SqliteIndex, vectors: FileVectors) -> None:
        """Update the list of rows without a vector; only the first call checks all rows."""
        if vectors.read_on():
            self._last = 0
        rows = index.rows(EMBEDDED, self._last)
        self._missing = vectors.missing(sorted({*(self._missing if self._last else ()), *rows}))
        self._last = max(self._last, *rows[-1:], 0)

    def _catch_up(
        self, index: SqliteIndex, model: Embedder, vectors: FileVectors, most: int, progress: Progress | None = None
    ) -> bool:
        """Make missing vectors, at most `most` unless that is negative; return whether none is missing now."""
        self._find_missing(index, vectors)
        total = len(self._missing)
        wanted = self._missing if most < 0 else self._missing[:most]
        for start in range(0, len(wanted), _BATCH):
            _make(index.load(wanted[start : start + _BATCH]), model, vectors)
            if progress:
                progress(min(start + _BATCH, len(wanted)), len(wanted))
        self._missing = self._missing[len(wanted) :]
        if total and not self._missing:
            vectors.tidy()
        return not self._missing


def _widened(
    index: SqliteIndex,
    model: Embedder,
    vectors: FileVectors,
    pools: list[Pool],
    query: Query,
    terms: Terms,
    where: Filter,
) -> tuple[list[Pool], Near]:
    values: dict[str, float] = {}
    result = []
    written = {bare(word): word for word in reversed(_WORD.findall(query.text))}
    for pool in pools:
        total = pool.records * pool.length
        shares = zip(pool.words, pool.held, strict=True)
        words = [(written.get(word, word), _RARE / (_RARE + held / total)) for word, held in shares]
        with working():
            question = model.question(query.text, words)
        if question.any():
            if not terms.phrases:  # quoted words must occur literally
                pool = index.widened(pool, where, _nearest(index, model, vectors, question, where))
            values |= _nearness(index, pool, model, vectors, question)
        result.append(pool)
    return result, Near(values, model.near)


def _make(records: Mapping[int, Record], model: Embedder, vectors: FileVectors) -> None:
    """Make the vectors of records, or reuse those of an earlier index for the same texts."""
    from holdfast.storage.files.vectors import small  # imports numpy

    texts = [f"{record.title}\n{record.text}".strip()[:_CHARS] for record in records.values()]
    marks = [mark_of(record) for record in records.values()]
    known = vectors.earlier(marks)
    fresh = [number for number, one in enumerate(known) if one is None]
    with working():
        made = model.texts([texts[number] for number in fresh])
    for number, vector in zip(fresh, small(made), strict=True):
        known[number] = vector
    if records:
        vectors.add(list(records), marks, known)


def _nearest(index: SqliteIndex, model: Embedder, vectors: FileVectors, question: Floats, where: Filter) -> list[int]:
    """Return the most similar rows that pass the filter and are about the question."""
    about = _top(vectors.nearest(question), model.near)
    rows = index.passing(about, where)
    if len(rows) < _NEAREST <= len(about):  # few of many similar rows pass: compare only rows that do
        rows = index.passing(_top(vectors.nearest(question, index.inside(where)), model.near), where)
    return rows[:_NEAREST]


def _top(scored: list[tuple[int, float]], least: float) -> list[tuple[int, float]]:
    """Return the most similar rows, at least `least`; equals are all kept or all dropped."""
    near = [(row, score) for row, score in scored if score >= least]
    if len(near) <= _OFFERED:
        return near
    edge = sorted((score for _, score in near), reverse=True)[_OFFERED]
    return [(row, score) for row, score in near if score >= edge]


def _nearness(
    index: SqliteIndex, pool: Pool, model: Embedder, vectors: FileVectors, question: Floats
) -> dict[str, float]:
    """Return the similarity of each candidate by id; replace vectors that belong to other content."""
    rows = list(pool.candidates)
    marks = [one.mark for one in pool.candidates.values()]
    near = vectors.nearness(rows, marks, question)
    wrong = index.load([row for row, one in zip(rows, near, strict=True) if one is None])
    if wrong := {row: record for row, record in wrong.items() if record.kind in EMBEDDED}:
        _make(wrong, model, vectors)
        near = vectors.nearness(rows, marks, question)
    ids = [one.id for one in pool.candidates.values()]
    return {id: one for id, one in zip(ids, near, strict=True) if one is not None}
