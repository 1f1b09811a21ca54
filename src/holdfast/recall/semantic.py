"""Recall by meaning: the vectors of the records, kept up with the index, and what lies near a question.

Vectors are made of text alone, so they can be lost at any time. A search makes those that are missing before it
answers, as long as they are not too many for the model; then it goes by words alone, since half of the records with
vectors and half without would be ranked by accident. Without an embedder nothing of this is loaded.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import HoldfastError, Unavailable
from holdfast.model.kinds import KINDS
from holdfast.model.queries import Query, Terms, bare
from holdfast.model.records import Record, mark_of
from holdfast.recall import embedders
from holdfast.recall.embedders import NoVectors
from holdfast.recall.ranking import Near
from holdfast.storage.index import Filter, Index, Pool
from holdfast.storage.refresh import Progress

if TYPE_CHECKING:
    from holdfast.recall.embedders import Embedder, Floats, Vectors

KEPT = tuple(name for name, row in KINDS.items() if row.searchable and row.layer != "own")
"""Kinds whose records have vectors: all that a search looks through unless it names a kind."""
_CHARS = 4_000
"""So much of a text is embedded: the mean of more says less."""
_WORD = re.compile(r"[^\W_]+")
_BATCH = 500
_FEW, _PAUSE = 16, 0.01
"""What a thread makes at a time while others may search, and how long it lets them in."""
_NEAREST = 30
"""So many of the records that lie nearest may answer, whatever their words."""
_OFFERED = 100
_LOOKS = 2
"""So often a search looks when it meets vectors that were damaged since they were read; they are made anew."""
_RARE = 0.001
"""A word that is this share of all words of the memory weighs half of what one weighs that is never said."""


class Embedded(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the vectors are."""

    embedder: str
    """Which one the settings mean here; "" is none."""
    model: str = ""
    version: str = ""
    vectors: int = 0
    missing: int = 0
    bytes: int = 0
    made: int = 0
    """How many were made now."""
    problem: str = ""
    """Why the embedder that is installed cannot be used, and what to do."""


class _Failed(Exception):
    """The model could be loaded, and does not do its work."""


class Meaning:
    """The vectors of one memory; `make` gives those of a model for the index that it is told.

    `nowhere` is why there can be none.
    """

    def __init__(
        self, setting: str, make: Callable[[Embedder, str], Vectors], nowhere: NoVectors | None = None
    ) -> None:
        self._setting = setting
        self._make = make
        self._lock = threading.RLock()
        self._loaded = nowhere is not None
        self._model: Embedder | None = None
        self._broken: Unavailable | None = nowhere
        self._vectors: Vectors | None = None
        self._generation: str | None = None
        self._last = 0
        """The greatest row of the index that was looked at."""
        self._missing: list[int] = []
        self._filler: threading.Thread | None = None
        self._closed = threading.Event()

    @property
    def embedder(self) -> str:
        """Which embedder is used, "" when there is none; it need not be loaded yet."""
        return "" if self._broken else embedders.chosen(self._setting)

    @property
    def problem(self) -> str:
        """Why the embedder that is installed is not used, and what to do; "" when it is, or there is none."""
        return str(self._broken) if self._broken and embedders.chosen(self._setting) else ""

    def close(self) -> None:
        self._closed.set()
        if self._filler:
            self._filler.join(10)
        with self._lock:
            self.forget()

    def forget(self) -> None:
        """Let go of the vectors at hand: the index that they belong to was replaced."""
        with self._lock:
            if self._vectors is not None:
                self._vectors.close()
            self._vectors = self._generation = None

    # searching

    def widen(
        self, index: Index, pools: list[Pool], query: Query, terms: Terms, where: Filter
    ) -> tuple[list[Pool], Near]:
        """Add to the pools what lies nearest to the question in meaning, and say how near each candidate lies."""
        with self._lock:
            model, vectors = self._open(index)
            if model is None or vectors is None:
                return pools, Near()
            try:
                for _ in range(_LOOKS):
                    if not self._catch_up(index, model, vectors, model.at_once):
                        return pools, Near()
                    told = _widened(index, model, vectors, pools, query, terms, where)
                    if not vectors.doubted:
                        break
                return told
            except (_Failed, NoVectors) as error:
                self._give_up(error)
                return pools, Near()

    def fill(self, ask: Callable[[Callable[[Index], bool]], bool]) -> None:
        """Make what is missing in a thread of its own, if a search could not; `ask` puts a question to the index."""
        with self._lock:
            if not self._missing or self._closed.is_set() or (self._filler and self._filler.is_alive()):
                return
            self._filler = threading.Thread(target=self._fill, args=(ask,), name="holdfast-embedding", daemon=True)
            self._filler.start()

    def _fill(self, ask: Callable[[Callable[[Index], bool]], bool]) -> None:
        with contextlib.suppress(HoldfastError):  # the next search tries again, and its errors are told
            while not self._closed.is_set() and not ask(self._some):
                self._closed.wait(_PAUSE)

    def _some(self, index: Index) -> bool:
        with self._lock:
            model, vectors = self._open(index)
            try:
                return model is None or vectors is None or self._catch_up(index, model, vectors, _FEW)
            except (_Failed, NoVectors) as error:
                self._give_up(error)
                return True

    # making

    def embed(self, index: Index, progress: Progress | None = None) -> Embedded:
        """Make all vectors that are missing."""
        with self._lock:
            model, vectors = self._open(index)
            if model is None or vectors is None:
                raise self._unavailable()
            self._look(index, vectors)
            missing = len(self._missing)
            try:
                self._catch_up(index, model, vectors, -1, progress)
            except _Failed as error:
                self._give_up(error)
                raise self._unavailable() from None
            vectors.keep_only(index.rows(KEPT))
            return msgspec.structs.replace(self.status(index), made=missing)

    def status(self, index: Index) -> Embedded:
        """Say how far the vectors are, and make none."""
        with self._lock:
            model, vectors = self._open(index)
            if model is None or vectors is None:
                return Embedded("", problem=self.problem)
            self._look(index, vectors)
            held = len(index.rows(KEPT)) - len(self._missing)
            return Embedded(
                self.embedder, model.name, model.version, held, len(self._missing),
                vectors.bytes_on_disk(),
            )  # fmt: skip

    def _open(self, index: Index) -> tuple[Embedder | None, Vectors | None]:
        """Return the model and its vectors for the index in use now; None when there is no model."""
        if not self._loaded:
            self._loaded = True
            name = embedders.chosen(self._setting)
            try:
                self._model = embedders.load(name) if name else None
            except Exception as error:  # a broken installation raises whatever it likes: then there is none
                self._broken = _broken(f"The embedder {name} cannot be loaded: {error}.", name)
        if self._model is None:
            return None, None
        generation = index.generation()
        if self._vectors is None or generation != self._generation:
            self.forget()
            self._vectors = self._make(self._model, generation)
            self._generation, self._last, self._missing = generation, 0, []
        return self._model, self._vectors

    def _give_up(self, error: _Failed | NoVectors) -> None:
        """Go by words alone from now on."""
        name = embedders.chosen(self._setting)
        told = error if isinstance(error, NoVectors) else None
        self._broken = told or _broken(f"The embedder {name} does not work: {error}.", name)
        self._model, self._missing = None, []
        self.forget()

    def _unavailable(self) -> Unavailable:
        if self._setting == "none":
            return Unavailable(
                "No embedder is to be used.", 'Set embedder = "auto" in [search], and a weight of meaning.'
            )
        if self._broken and embedders.chosen(self._setting):
            return self._broken
        wanted = "semantic" if self._setting == "auto" else self._setting
        return _broken(f"The embedder {wanted} is not installed.", wanted)

    def _look(self, index: Index, vectors: Vectors) -> None:
        """Find out which records have no vector; only the first look goes through all of them."""
        if vectors.read_on():
            self._last = 0
        rows = index.rows(KEPT, self._last)
        self._missing = vectors.missing(sorted({*(self._missing if self._last else ()), *rows}))
        self._last = max(self._last, *rows[-1:], 0)

    def _catch_up(
        self, index: Index, model: Embedder, vectors: Vectors, most: int, progress: Progress | None = None
    ) -> bool:
        """Make the vectors that are missing, at most so many; return whether none is missing now."""
        self._look(index, vectors)
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


def _broken(message: str, wanted: str) -> Unavailable:
    return Unavailable(message, f"Run: pip install 'holdfast[{wanted}]'")


def _widened(
    index: Index, model: Embedder, vectors: Vectors, pools: list[Pool], query: Query, terms: Terms, where: Filter
) -> tuple[list[Pool], Near]:
    values: dict[str, float] = {}
    result = []
    for pool in pools:
        with _working():
            question = model.question(query.text, _weighed(pool, query.text))
        if question.any():
            if not terms.phrases:  # what is quoted must stand there
                pool = index.widened(pool, where, _nearest(index, model, vectors, question, where))
            values |= _nearness(index, pool, model, vectors, question)
        result.append(pool)
    return result, Near(values, model.near)


@contextlib.contextmanager
def _working() -> Iterator[None]:
    """Tell what goes wrong in a model from what goes wrong elsewhere; a broken one raises whatever it likes."""
    try:
        yield
    except Exception as error:
        raise _Failed(str(error) or type(error).__name__) from error


def _make(records: Mapping[int, Record], model: Embedder, vectors: Vectors) -> None:
    """Make vectors of records, or take those that the same texts had before."""
    texts = [text_of(record) for record in records.values()]
    marks = [mark_of(record) for record in records.values()]
    known = vectors.earlier(marks)
    fresh = [number for number, one in enumerate(known) if one is None]
    with _working():
        made = model.texts([texts[number] for number in fresh])
    for number, vector in zip(fresh, vectors.small(made), strict=True):
        known[number] = vector
    if records:
        vectors.add(list(records), marks, known)


def text_of(record: Record) -> str:
    """Return what is embedded of a record."""
    return f"{record.title}\n{record.text}".strip()[:_CHARS]


def _weighed(pool: Pool, text: str) -> list[tuple[str, float]]:
    """Return the telling words of a question as they are written, and how much each of them tells in this memory."""
    written = {bare(word): word for word in reversed(_WORD.findall(text))}
    total = pool.records * pool.length
    shares = [held / total for held in pool.held]
    return [(written.get(word, word), _RARE / (_RARE + share)) for word, share in zip(pool.words, shares, strict=True)]


def _nearest(index: Index, model: Embedder, vectors: Vectors, question: Floats, where: Filter) -> list[int]:
    """Return the rows of the records that pass the filter and lie nearest, as far as they are about the question."""
    about = _top(vectors.nearest(question), model.near)
    rows = index.passing(about, where)
    if len(rows) < _NEAREST <= len(about):  # many lie near and few of them pass: look among those that do
        rows = index.passing(_top(vectors.nearest(question, index.inside(where)), model.near), where)
    return rows[:_NEAREST]


def _top(scored: list[tuple[int, float]], least: float) -> list[tuple[int, float]]:
    """Keep the best that are near enough; a group of equals is never cut."""
    near = [(row, score) for row, score in scored if score >= least]
    if len(near) <= _OFFERED:
        return near
    edge = sorted((score for _, score in near), reverse=True)[_OFFERED]
    return [(row, score) for row, score in near if score >= edge]


def _nearness(index: Index, pool: Pool, model: Embedder, vectors: Vectors, question: Floats) -> dict[str, float]:
    """Return how near each candidate lies; a vector that turns out to be of other content is made anew."""
    rows = list(pool.candidates)
    marks = [one.mark for one in pool.candidates.values()]
    near = vectors.nearness(rows, marks, question)
    wrong = index.load([row for row, one in zip(rows, near, strict=True) if one is None])
    if wrong := {row: record for row, record in wrong.items() if record.kind in KEPT}:
        _make(wrong, model, vectors)
        near = vectors.nearness(rows, marks, question)
    ids = [one.id for one in pool.candidates.values()]
    return {id: one for id, one in zip(ids, near, strict=True) if one is not None}
