"""Vectors in a database: one per record and model, made when a search or `holdfast embed` finds it missing.

The signs of a vector are a code, by which the server finds the nearest few hundred; those are compared exactly. The
rows of all transactions before `embedded.upto` have been checked for vectors.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from psycopg.rows import TupleRow

from holdfast.errors import HoldfastError
from holdfast.model.queries import Query, Terms, bare
from holdfast.model.records import Record
from holdfast.recall.embedders import EMBEDDED, Embedded, Failed, Model, working
from holdfast.storage.postgres.connections import Statement
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.schema import CODE_BITS
from holdfast.storage.postgres.search import Meaning, Rarity
from holdfast.storage.reports import Progress
from holdfast.storage.words import Wanted

if TYPE_CHECKING:
    from holdfast.recall.embedders import Array, Embedder

_WHAT = "The vectors"
_CHARS = 4_000
_BATCH = 500
_RARE = 0.001
_WORD = re.compile(r"[^\W_]+")
_MISSING = """
SELECT pg_snapshot_xmin(pg_current_snapshot())::text, ARRAY(SELECT r.id::text FROM holdfast.record r
    WHERE r.tenant = %(tenant)s AND r.live AND r.kind || '' = ANY(%(kinds)s::text[]) AND r.xact >= (
        SELECT d.upto FROM holdfast.embedded d
        WHERE d.tenant = %(tenant)s AND d.model = %(model)s AND NOT %(every)s::boolean
        UNION ALL SELECT '0'::xid8 LIMIT 1)
    AND NOT EXISTS (SELECT FROM holdfast.embedding e
        WHERE e.tenant = %(tenant)s AND e.id = r.id AND e.model = %(model)s) LIMIT %(most)s::int)
"""
_ADD = """
INSERT INTO holdfast.embedding (tenant, model, id, code, vector)
SELECT %(tenant)s, %(model)s, r.id, v.code::bit(384), holdfast.vector(v.vector)
FROM unnest(%(ids)s::uuid[], %(codes)s::text[], %(vectors)s::text[]) AS v (id, code, vector)
JOIN holdfast.record r ON r.tenant = %(tenant)s AND r.id = v.id ON CONFLICT DO NOTHING
"""
_UPTO = """
INSERT INTO holdfast.embedded AS d (tenant, model, upto) VALUES (%(tenant)s, %(model)s, %(edge)s::xid8)
ON CONFLICT (tenant, model) DO UPDATE SET upto = greatest(d.upto, excluded.upto)
"""
_TIDY = """
DELETE FROM holdfast.embedding e WHERE e.tenant = %(tenant)s AND NOT EXISTS (SELECT FROM holdfast.record r
    WHERE r.tenant = %(tenant)s AND r.id = e.id AND r.live)
"""
_STATUS = """
SELECT count(*), coalesce(sum(pg_column_size(e.vector) + pg_column_size(e.code) + 60), 0)::bigint
FROM holdfast.embedding e WHERE e.tenant = %(tenant)s AND e.model = %(model)s
"""
_HAS_GRAPH = "SELECT to_regclass('holdfast.embedding_code') IS NOT NULL"
_EVERYTHING = 1 << 30
_MANY = 20_000
"""From so many vectors on, the nearest ones are found by a graph (HNSW) instead of by comparing all."""


class Vectors:
    """The vectors of one tenant. `load` returns the records of rows."""

    def __init__(self, database: Database, setting: str, load: Callable[[Sequence[str]], dict[str, Record]]) -> None:
        self._database = database
        self._model = Model(setting, database.no_vectors)
        self._load = load
        self._lock = threading.RLock()
        """Held while the model is loaded."""
        self._filler: threading.Thread | None = None
        self._has_graph: bool | None = None
        """Does the database have a graph, and this tenant many vectors? None when it is not known yet."""

    @property
    def embedder(self) -> str:
        return self._model.embedder

    @property
    def problem(self) -> str:
        return self._model.problem

    def close(self) -> None:
        if self._filler:
            self._filler.join(10)

    def fill(self) -> None:
        """Make missing vectors in a thread; the next search tries again after a failure."""

        def work() -> None:
            with contextlib.suppress(HoldfastError):
                self.embed()

        if self._filler is None or not self._filler.is_alive():
            self._filler = threading.Thread(target=work, name="holdfast-embedding", daemon=True)
            self._filler.start()

    def asking(self) -> list[Statement]:
        """Return the statement that finds the records without a vector; [] when there is no model."""
        model = self._loaded()
        return [(_MISSING, _asked(model, model.at_once + 1))] if model else []

    def ready(self, found: Sequence[TupleRow]) -> bool:
        """Make the vectors that are missing, if there are few; return whether all records have one."""
        ((edge, missing),) = found
        model = self._loaded()
        if model is None or len(missing) > model.at_once:
            return False
        try:
            self._make(model, edge, missing)
        except Failed as error:
            self._model.disable(error)
            return False
        except HoldfastError:
            if self._database.reads_only:
                return False
            raise
        return True

    def meaning(self, query: Query, terms: Terms, wanted: Wanted, rarity: Rarity, foreign: bool) -> Meaning | None:
        """Return the vector of a question, in which rare words count more; None for a question without words."""
        if (model := self._loaded()) is None:
            return None
        total = max(1.0, rarity.records[foreign] * rarity.average(foreign))
        written = {bare(word): word for word in reversed(_WORD.findall(query.text))}
        runs = zip((" ".join(run) for run in (*wanted.phrases, *wanted.words)), wanted.held, strict=True)
        words = [(written.get(word, word), _RARE / (_RARE + held / total)) for word, held in runs]
        try:
            with working():
                question = model.question(query.text, words)
        except Failed as error:
            self._model.disable(error)
            return None
        if not question.any():
            return None
        (vector,), (code,) = _texts(question[None, :]), _codes(question[None, :])
        if self._has_graph is None:
            self._look(model)
        return Meaning(_named(model), vector, code, model.near, bool(terms.phrases), bool(self._has_graph))

    def embed(self, progress: Progress | None = None) -> Embedded:
        """Make all missing vectors."""
        if (model := self._loaded()) is None:
            raise self._model.unavailable()
        edge, missing = self._missing(model)
        try:
            self._make(model, edge, missing, progress)
        except Failed as error:
            self._model.disable(error)
            raise self._model.unavailable() from None
        self._database.write(_WHAT, [(_TIDY, {})], durable=False)
        if self._count(model)[0] > _MANY:
            self._database.add_graph()
        self._look(model)
        return msgspec.structs.replace(self.status(), made=len(missing))

    def status(self) -> Embedded:
        """Return the state of the vectors without making any."""
        if (model := self._loaded()) is None:
            return Embedded("", problem=self.problem)
        _, missing = self._missing(model)
        count, size = self._count(model)
        return Embedded(self.embedder, model.name, model.version, count, len(missing), size)

    def _loaded(self) -> Embedder | None:
        with self._lock:
            return self._model.get()

    def _look(self, model: Embedder) -> None:
        self._has_graph = self._database.ask(_WHAT, _HAS_GRAPH)[0][0] and self._count(model)[0] > _MANY

    def _count(self, model: Embedder) -> tuple[int, int]:
        ((count, size),) = self._database.ask(_WHAT, _STATUS, model=_named(model))
        return int(count), int(size)

    def _missing(self, model: Embedder) -> tuple[str, list[str]]:
        """Return up to which transaction rows are seen, and all rows without a vector."""
        ((edge, found),) = self._database.ask(_WHAT, _MISSING, **_asked(model, _EVERYTHING))
        return edge, found

    def _make(self, model: Embedder, edge: str, missing: list[str], progress: Progress | None = None) -> None:
        """Make missing vectors; afterwards all rows before the transaction `edge` have one."""
        for start in range(0, len(missing), _BATCH):
            records = self._load(missing[start : start + _BATCH])
            texts = [f"{record.title}\n{record.text}".strip()[:_CHARS] for record in records.values()]
            with working():
                made = model.texts(texts)
            given = {"ids": list(records), "codes": _codes(made), "vectors": _texts(made), "model": _named(model)}
            self._database.write(_WHAT, [(_ADD, given)], durable=False)
            if progress:
                progress(min(start + _BATCH, len(missing)), len(missing))
        if missing:
            self._database.write(_WHAT, [(_UPTO, {"model": _named(model), "edge": edge})], durable=False)


def _asked(model: Embedder, most: int) -> dict[str, object]:
    return {"model": _named(model), "kinds": list(EMBEDDED), "most": most, "every": most == _EVERYTHING}


def _named(model: Embedder) -> str:
    return f"{model.name} {model.version}"


def _texts(vectors: Array) -> list[str]:
    return ["[" + ",".join(f"{number:.5g}" for number in row) + "]" for row in vectors.tolist()]


def _codes(vectors: Array) -> list[str]:
    """Return the signs of vectors as literals of the type `bit`, padded with zeros."""
    return ["".join("1" if number > 0 else "0" for number in row).ljust(CODE_BITS, "0") for row in vectors.tolist()]
