"""Search in a database: how rare words are, the candidates for a question in one statement, related records, vectors.

A question takes two messages. The first asks how rare its words are. The second returns the records that match best by
words, those that are nearest in meaning, their neighbours, and everything that ranking needs. Ranking itself is that of
files. How rare words are is counted in a table beside the writes; rows that are not counted yet are counted by the
question. The statements are in `search.sql`.

A record has one vector per model, made when a search or `holdfast embed` finds it missing. The signs of a vector are a
code, by which the server finds the nearest few hundred; those are compared exactly.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from psycopg.rows import TupleRow

from holdfast.errors import HoldfastError
from holdfast.model.kinds import KINDS
from holdfast.model.names import same
from holdfast.model.queries import Query, Terms
from holdfast.model.records import Record, from_path
from holdfast.model.settings import Search
from holdfast.model.times import iso
from holdfast.recall.embedders import EMBEDDED, Embedded, Failed, question_vector, vectors_of
from holdfast.recall.ranking import Near
from holdfast.storage import words
from holdfast.storage.postgres.connections import Statement
from holdfast.storage.postgres.database import Database, planned, text
from holdfast.storage.postgres.rows import LONGEST_STEM, READ, Lexemes, Stored, plain, quoted, short
from holdfast.storage.results import Candidate, Filter, Pool, Progress
from holdfast.storage.words import COMMON, IN_ORDER, LINES, MOST, TAG, Run, Tie, stems

if TYPE_CHECKING:
    from holdfast.recall.embedders import Array, Embedder, EmbeddingModel

_K, _B = 1.2, 0.75
_ONE = 4 * 1.64493406685
"""Scales `ts_rank` so that one word in a text is 1, and one in a title is 4."""
_RANKED = 6_000
"""The rarest words with at most so many records in total find records; the other words only rank them."""
_LONG = 60
"""Longer records are mostly compressed: they are decompressed once, and not for each word."""
_SPARE = 100
_FEW = 1e-6
_SQUARES = [0.0, *itertools.accumulate(1 / (place * place) for place in range(1, 256))]
_RANKS = sorted(
    (3 * _SQUARES[titles] + _SQUARES[titles + texts], min(255, 4 * titles + texts))
    for titles in range(8)
    for texts in range(200)
)
"""The ranks of all small numbers of occurrences, and their counts.

`ts_rank` adds 1/n² for the n-th occurrence, and a title is first and weighs four times as much.
"""
_BATCH = 500
_CODE_BITS = 384
_EVERYTHING = 1 << 30
_COUNT_AT = 500
"""Rows that a search found uncounted before it counts their words."""
STAT = "INSERT INTO holdfast.stat (tenant) VALUES (%(tenant)s) ON CONFLICT DO NOTHING"
COUNT_WORDS: list[Statement] = [(STAT, {}), ("SELECT holdfast.count_words(1)", {})]
_MANY = 20_000
"""With more vectors than this, the nearest ones are found by a graph (HNSW) instead of by comparing all."""
_CONTENT = functools.reduce(
    lambda text, name: text.replace(name, f"CASE WHEN r.small THEN {name} END"), ("r.text", "r.more::text"), READ
)


@functools.cache
def sql(name: str) -> str:
    """Return a statement of `search.sql`."""
    parts = (part.partition("\n") for part in text("search.sql").decode().split("-- name: ")[1:])
    return {title: statement.strip() for title, _, statement in parts}[name]


class Question(NamedTuple):
    """The words to rank by: phrases first, then single words."""

    pool: Pool
    runs: list[Run]
    """Their stems."""
    phrases: int
    """How many of them are phrases."""


class Matches(NamedTuple):
    """The candidates for a question, and their rows in the same order, or the ids of long ones."""

    pool: Pool
    near: dict[str, float]
    rows: list[Stored | str]


class Searcher:
    """Queries one tenant's rows, and makes their vectors. `load` returns the records of rows."""

    def __init__(
        self,
        database: Database,
        settings: Search,
        model: EmbeddingModel,
        load: Callable[[Sequence[str]], dict[str, Record]],
    ) -> None:
        self._database = database
        self._settings = settings
        self._model = model
        self._load = load
        self._threads: dict[str, threading.Thread] = {}
        self.lexemes = Lexemes(database.tenant)
        self.fills = False
        """Are vectors made in a thread when many are missing?"""
        self._has_graph: bool | None = None
        """Does the database have a graph, and this tenant many vectors? None if unknown."""

    def close(self) -> None:
        if filler := self._threads.get("embedding"):
            filler.join(10)

    def _start(self, name: str, work: Callable[[], object]) -> None:
        """Run work in a thread, one of each name at a time; after a failure the next search tries again."""

        def quietly() -> None:
            with contextlib.suppress(HoldfastError):
                work()

        if name not in self._threads or not self._threads[name].is_alive():
            self._threads[name] = threading.Thread(target=quietly, name=f"holdfast-{name}", daemon=True)
            self._threads[name].start()

    def filter(self, where: Filter) -> tuple[str, dict[str, Any]]:
        """Return a filter as SQL over rows `r`, and its values."""
        kinds, scope, only = where.kinds or where.searchable, where.scope, where.only
        others = [*(from_path(scope).above if where.above else ()), *([""] if where.unscoped else ())]
        parts = {
            "r.live": True,
            "NOT r.hidden": not where.hidden,
            "r.kind = ANY(%(kinds)s::text[])": kinds,
            "(r.scope = ANY(%(scopes)s::text[]) OR (r.scope > %(below)s AND r.scope < %(beyond)s))": scope,
            "r.session = ANY(%(sessions)s::text[])": where.sessions,
            "r.words @@ %(tags)s::tsquery": where.tags,
            "r.at >= %(since)s::timestamptz": where.since,
            "r.at <= %(until)s::timestamptz": where.until,
            "(r.at <= %(known)s::timestamptz OR r.at IS NULL)": where.known,  # without a time it may have been known
            "%(only)s IN (r.id::text, r.key, CASE r.key WHEN '' THEN r.path ELSE r.path || '#' || r.key END)": only,
        }
        return " AND ".join(part for part, wanted in parts.items() if wanted), {
            "kinds": list(kinds),
            "scopes": [scope, *others],
            "below": f"{scope}/",
            "beyond": f"{scope}0",
            "sessions": [short(session) for session in where.sessions],
            "tags": " | ".join(quoted(self.lexemes.tie(TAG, same(tag))) for tag in where.tags),
            "since": where.since,
            "until": where.until,
            "known": where.known,
            "only": plain(only),
        }

    # words

    def search(self, terms: Terms, where: Filter, most: int, query: Query | None = None) -> tuple[list[Matches], Near]:
        """Return the candidates among our own records and among those of other programs, and their similarity.

        Without a query they are the best by words alone, without their neighbours.
        """
        near, parts, first = Near(), list[Matches](), 0
        flags = list(dict.fromkeys(KINDS[name].foreign for name in where.kinds or where.searchable))
        model = self._model.get() if query and query.associate else None
        also = [_missing(model, model.at_once + 1)] if model else []
        questions, uncounted, found = self._questions(terms, flags, also)
        ready = model is not None and self._catch_up(model, found[0])
        for question in questions:
            meaning = self._meaning(model, query, question.pool) if model and query and ready else None
            parts.append(self._candidates(terms, question, where, most, meaning, beside=query is not None, first=first))
            first += len(parts[-1].rows)
            near = Near({**near.values, **parts[-1].near}, meaning["near"]) if meaning else near
        if uncounted > _COUNT_AT and not self._database.reads_only:
            self._start("words", lambda: self._database.write("The words", COUNT_WORDS, durable=False))
        return parts, near

    def _questions(
        self, terms: Terms, flags: Sequence[bool], also: Sequence[Statement]
    ) -> tuple[list[Question], int, list[list[TupleRow]]]:
        """Ask in one message, also with other statements, how rare words are among our own records and among others.

        Return the words that distinguish records, how many rows are not counted yet, and the rows of all statements.
        """
        runs = [_stemmed(run) for run in (*terms.words, *terms.phrases)]
        single, phrases, questions = dict[str, str](), dict[str, str](), list[Question]()
        for prefix in map(self.lexemes.prefix, flags):
            single |= {prefix + stem: quoted(prefix + stem) for run in runs for stem in run}
            phrases |= {prefix + " ".join(run): _query(prefix, run) for run in runs if len(run) > 1}
        values = {"terms": list(single), "queries": list(single.values()), "phrases": list(phrases.values())}
        asked = sql("rarity_in_scope" if self._database.scope else "rarity")
        statement = planned(asked, {**values, "most": self._settings.common_records + 1})
        found = self._database.send("The search", [*also, *statement])
        ((records, lengths, held, many, uncounted),) = found[-1]
        counts: dict[str, int] = dict(zip([*single, *phrases], [*held, *many], strict=True))
        for foreign in flags:

            def count(runs: Sequence[Run], most: int, prefix: str = self.lexemes.prefix(foreign)) -> list[int]:
                held = [counts.get(prefix + " ".join(_stemmed(run)), 0) for run in runs]
                return held if most < 0 else [min(one, most) for one in held]

            wanted = words.rare_words(terms, self._settings, count)
            runs, total = [*wanted.phrases, *wanted.words], max(1, records[foreign])
            pool = Pool(
                on_request=foreign, words=tuple(" ".join(run) for run in runs), held=tuple(wanted.held), records=total,
                length=max(1.0, lengths[foreign] / total),
            )  # fmt: skip
            questions.append(Question(pool, [_stemmed(run) for run in runs], len(wanted.phrases)))
        return questions, uncounted, found

    def _candidates(
        self, terms: Terms, question: Question, where: Filter, most: int, meaning: dict[str, Any] | None, *,
        beside: bool, first: int,
    ) -> Matches:  # fmt: skip
        """Return the candidates for some words and a meaning, with those `beside` them, numbered from `first` on."""
        pool, runs, _ = question
        asked, prefix = self._asked(question), self.lexemes.prefix(pool.on_request)
        by_meaning = meaning is not None and not terms.phrases  # quoted words must occur literally
        if not asked and not by_meaning:
            return Matches(pool, {}, [])
        condition, values = self.filter(where)
        values |= {"asked": asked, "average": pool.length, "many": most, "ordered": list(IN_ORDER) if beside else []}
        values |= {f"q{number}": _query(prefix, run) for number, run in enumerate(runs)}
        values |= {f"w{number}": _weight(held, pool.records) for number, held in enumerate(pool.held)}
        ranks = [_rank(f"q{number}", run) for number, run in enumerate(runs)]
        scores = [f"%(w{number})s::float8 * s.x{number} / (s.x{number} + s.k)" for number in range(len(runs))]
        near, similarity, graph = "SELECT * FROM hit WHERE false", "NULL", list[Statement]()
        if meaning:
            values |= meaning
            similarity = sql("similarity")
        if by_meaning:
            near = sql("near").format(scan="" if self._has_graph else " + 0", condition=condition)
            graph = [(sql("by_graph"), [])] if self._has_graph else []
        statement = sql("candidates").format(
            condition=condition, near=near, similarity=similarity, content=_CONTENT, ranks=", ".join(ranks),
            columns=", ".join(f"{rank} AS x{number}" for number, rank in enumerate(ranks)) or "0",
            score=" + ".join(scores) or "s.k", words="r.words || ''" if pool.length > _LONG else "r.words",
        )  # fmt: skip
        rows = self._database.send("The search", [*graph, *planned(statement, values)])[-1]
        return _found(question, rows, where, first)

    def _asked(self, question: Question) -> str:
        """Return the query for the records to rank: with all phrases, or with some of the rarest words."""
        pool, runs, phrases = question
        prefix = self.lexemes.prefix(pool.on_request)
        if phrases:
            return " & ".join(_query(prefix, run) for run in runs[:phrases])
        chosen, total = list[Run](), 0
        for held, _, run in sorted(zip(pool.held, pool.words, runs, strict=True)):
            total += held
            if chosen and total > _RANKED:
                break
            if held:
                chosen.append(run)
        return " | ".join(_query(prefix, run) for run in chosen)

    def best(self, terms: Terms, where: Filter, limit: int) -> list[tuple[Stored | str, float]]:
        """Return the rows that match the words best, by words alone, or the ids of long ones, with their scores."""
        scored: list[tuple[float, Candidate, Stored | str]] = []
        for pool, _, rows in self.search(terms, where, limit + _SPARE)[0]:
            weights = [_weight(held, pool.records) for held in pool.held]
            for one, row in zip(pool.candidates.values(), rows, strict=True):
                k = _K * (1 - _B + _B * one.length / pool.length)
                score = sum(w * count * (_K + 1) / (count + k) for w, count in zip(weights, one.counts, strict=False))
                scored.append((score, one, row))
        scored.sort(key=lambda each: each[1].place)
        scored.sort(key=lambda each: (each[0], each[1].time), reverse=True)
        return [(row, score) for score, _, row in scored[:limit]]

    # related records

    def having(self, ties: Iterable[Tie], where: Filter) -> dict[Tie, list[str]]:
        """Return the rows that have each tie and pass the filter; none for a tie that too many have."""
        if not (ties := sorted(ties)):
            return {}
        condition, values = self.filter(where)
        statement = f"""
            SELECT ARRAY(SELECT few.id::text FROM (SELECT r.id, ({condition}) AS inside FROM holdfast.searched r
                WHERE r.words @@ t.query AND r.live LIMIT {MOST + 1}) AS few WHERE few.inside LIMIT {COMMON + 1})
            FROM unnest(%(ties)s::tsquery[]) WITH ORDINALITY AS t (query, n) ORDER BY t.n"""
        values["ties"] = [quoted(self.lexemes.tie(way, name)) for way, name in ties]
        rows = self._database.send("The search", planned(statement, values))[-1]
        return {tie: found for tie, (found,) in zip(ties, rows, strict=True) if len(found) <= COMMON}

    # vectors

    def _catch_up(self, model: Embedder, found: Sequence[TupleRow]) -> bool:
        """Make the vectors that are missing, if there are few; return whether all records have one."""
        ((edge, missing),) = found
        if len(missing) > model.at_once:
            if self.fills:
                self._start("embedding", self.embed)
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

    def _meaning(self, model: Embedder, query: Query, pool: Pool) -> dict[str, Any] | None:
        """Return the vector of a question, in which rare words count more; None for a question without words."""
        try:
            question = question_vector(model, query.text, pool)
        except Failed as error:
            self._model.disable(error)
            return None
        if not question.any():
            return None
        if self._has_graph is None:
            count, _, graph = self._count(model)
            self._has_graph = graph and count > _MANY
        (vector,), (code,) = _texts(question[None, :]), _codes(question[None, :])
        return {"model": _named(model), "vector": vector, "code": code, "near": model.near}

    def embed(self, progress: Progress | None = None) -> Embedded:
        """Make all missing vectors."""
        if (model := self._model.get()) is None:
            raise self._model.unavailable()
        ((edge, missing),) = self._database.send("The vectors", [_missing(model, _EVERYTHING)])[0]
        try:
            self._make(model, edge, missing, progress)
        except Failed as error:
            self._model.disable(error)
            raise self._model.unavailable() from None
        self._database.write("The vectors", [(sql("tidy_vectors"), {})], durable=False)
        if self._count(model)[0] > _MANY:
            self._database.add_graph()
        self._has_graph = None
        return msgspec.structs.replace(self.status(), made=len(missing))

    def status(self) -> Embedded:
        """Return the state of the vectors without making any."""
        if (model := self._model.get()) is None:
            return Embedded("", problem=self._model.problem)
        count, size, _ = self._count(model)
        ((_, missing),) = self._database.send("The vectors", [_missing(model, _EVERYTHING)])[0]
        return Embedded(self._model.embedder, model.name, model.version, count, len(missing), size)

    def _count(self, model: Embedder) -> tuple[int, int, bool]:
        """Return how many vectors there are, their bytes, and whether there is a graph."""
        return self._database.ask("The vectors", sql("vectors"), model=_named(model))[0]

    def _make(self, model: Embedder, edge: str, missing: list[str], progress: Progress | None = None) -> None:
        """Make missing vectors; afterwards all rows before the transaction `edge` have one."""
        for start in range(0, len(missing), _BATCH):
            records = self._load(missing[start : start + _BATCH])
            made = vectors_of(model, records.values())
            given = {"ids": list(records), "codes": _codes(made), "vectors": _texts(made), "model": _named(model)}
            self._database.write("The vectors", [(sql("add_vectors"), given)], durable=False)
            if progress:
                progress(min(start + _BATCH, len(missing)), len(missing))
        if missing:
            noted = {"model": _named(model), "edge": edge}
            self._database.write("The vectors", [(sql("note_vectors"), noted)], durable=False)


# parts of statements


def _stemmed(run: Run) -> Run:
    """Return the stems of a run; () when one is too long to be stored."""
    found = tuple(stems(" ".join(run)))
    return found if all(len(stem) <= LONGEST_STEM for stem in found) else ()


def _query(prefix: str, run: Run) -> str:
    """Return the `tsquery` for adjacent words."""
    parts = " <-> ".join(quoted(prefix + stem) for stem in run)
    return f"({parts})" if len(run) > 1 else parts


def _weight(held: int, records: int) -> float:
    return max(_FEW, math.log((records - held + 0.5) / (held + 0.5)) if records > held else _FEW)


def _rank(name: str, run: Run) -> str:
    """Return SQL for how often a run occurs: a rank for one word, whether it occurs for several."""
    if not run:
        return "0.0"
    if len(run) > 1:
        return f"CASE WHEN r.words @@ %({name})s::tsquery THEN 1.0 ELSE 0.0 END"
    return f"{_ONE} * ts_rank('{{1,0.25,0.25,1}}', r.words, %({name})s::tsquery)"


def _missing(model: Embedder, most: int) -> Statement:
    """Return the statement that finds up to which transaction rows are seen, and rows without a vector."""
    given = {"model": _named(model), "kinds": list(EMBEDDED), "most": most, "every": most == _EVERYTHING}
    return sql("missing"), given


def _named(model: Embedder) -> str:
    return f"{model.name} {model.version}"


def _texts(vectors: Array) -> list[str]:
    return ["[" + ",".join(f"{number:.5g}" for number in row) + "]" for row in vectors.tolist()]


def _codes(vectors: Array) -> list[str]:
    """Return the signs of vectors as literals of the type `bit`, padded with zeros."""
    return ["".join("1" if number > 0 else "0" for number in row).ljust(_CODE_BITS, "0") for row in vectors.tolist()]


def _found(question: Question, rows: list[TupleRow], where: Filter, first: int) -> Matches:
    """Make candidates of the rows of a question."""
    numbers, candidates, near = dict[str, int](), dict[int, Candidate](), dict[str, float]()
    stored: list[Stored | str] = []
    chains: list[list[str]] = []
    for row in rows:
        session, author, agent, priority, length, ranks, similarity, inside, before, behind, key, small = row[:12]
        one = Stored(*row[12:])
        time = "" if one.at is None else iso(one.at)
        if where.known and time > where.known:
            continue
        number = numbers[one.id] = first + len(numbers)
        shape, foreign = KINDS[one.kind].shape, KINDS[one.kind].foreign
        identifier = f"{one.path}#{key}" if shape == "section" else one.path if shape == "document" else one.id
        identifier = key if foreign else identifier
        counts = bytes(map(_occurrences, ranks or ()))
        candidates[number] = Candidate(
            identifier, (one.path, session if one.kind in LINES else identifier), time, (one.path, one.id, identifier),
            author, agent, counts if any(counts) else b"", max(1, length), priority, 0, bool(inside),
        )  # fmt: skip
        if similarity is not None:
            near[identifier] = similarity
        stored.append(one if small else one.id)
        if before or behind:
            chains.append([*reversed(before or ()), one.id, *(behind or ())])
    after: dict[int, int] = {}
    for chain in chains:
        after.update(itertools.pairwise([numbers[each] for each in chain if each in numbers]))
    pool = msgspec.structs.replace(question.pool, candidates=candidates, after=after)
    return Matches(pool, near, stored)


@functools.lru_cache(maxsize=4096)
def _occurrences(rank: float) -> int:
    """Return how often a word occurs in a record, from its rank; in the title it counts four times."""
    place = bisect.bisect_left(_RANKS, (rank, 0))
    return min(_RANKS[max(0, place - 1) : place + 1], key=lambda known: abs(known[0] - rank))[1]
