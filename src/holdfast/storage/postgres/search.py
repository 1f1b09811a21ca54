"""Search in a database: how rare words are, the candidates for a question in one statement, related records.

A question takes two messages. The first asks how rare its words are. The second returns the records that match best by
words, those that are nearest in meaning, their neighbours, and everything that ranking needs. Ranking itself is the
same as for files. How rare words are is counted in a table beside the writes; rows that are not counted yet are
counted by the question.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from psycopg.rows import TupleRow

from holdfast.model.kinds import KINDS
from holdfast.model.names import same
from holdfast.model.queries import Terms
from holdfast.model.records import Record
from holdfast.model.scopes import from_path
from holdfast.model.settings import Search
from holdfast.model.times import iso
from holdfast.storage import words
from holdfast.storage.pools import Candidate, Filter, Pool, Tied
from holdfast.storage.postgres.connections import Statement
from holdfast.storage.postgres.database import Database, planned
from holdfast.storage.postgres.rows import LONGEST_STEM, READ, Lexemes, Stored, plain, quoted, short
from holdfast.storage.words import COMMON, IN_ORDER, LINES, MOST, TAG, Names, Run, Wanted, stems

_WHAT = "The search"
_K, _B = 1.2, 0.75
_ONE = 4 * 1.64493406685
"""Scales `ts_rank` so that one word in a text is 1, and one in a title is 4."""
_RANKED = 6_000
"""Of words that are in more records than this taken together, the most common only rank what the rarer ones find."""
_LONG = 60
"""Longer records are mostly compressed: they are decompressed once, and not for each word."""
_SPARE = 100
_SHORT = 4_000
"""Bytes of a record that is returned with the candidates."""
_FEW = 1e-6
_BY_CODE = 500
"""How many of the nearest codes are compared by their vectors."""
_NEAREST = 30
"""How many of the most similar records become candidates, whatever their words."""
_SQUARES = list(itertools.accumulate(1 / (place * place) for place in range(1, 256)))
_TITLES, _TEXTS = 8, 200

_RARITY = """
WITH known AS MATERIALIZED (SELECT s.records, s.length, s.upto FROM holdfast.stat s WHERE s.tenant = %(tenant)s),
recent AS MATERIALIZED (SELECT r.kind = 'transcript' AS other, r.length, r.words FROM holdfast.record r
    WHERE r.tenant = %(tenant)s AND r.xact >= (SELECT upto FROM known UNION ALL SELECT '0'::xid8 LIMIT 1)
        AND r.length > 0 AND r.live)
SELECT
    ARRAY(SELECT coalesce((SELECT known.records[n] FROM known), 0) + (SELECT count(*) FROM recent WHERE other = (n = 2))
          FROM generate_series(1, 2) AS n),
    ARRAY(SELECT coalesce((SELECT known.length[n] FROM known), 0)
               + coalesce((SELECT sum(recent.length) FROM recent WHERE other = (n = 2)), 0)::bigint
          FROM generate_series(1, 2) AS n),
    ARRAY(SELECT coalesce(t.records, 0) + (SELECT count(*) FROM recent WHERE recent.words @@ w.query)
          FROM unnest(%(terms)s::text[], %(queries)s::tsquery[]) WITH ORDINALITY AS w (term, query, n)
          LEFT JOIN holdfast.term t ON t.tenant = %(tenant)s AND t.term = w.term ORDER BY w.n),
    ARRAY(SELECT (SELECT count(*) FROM (SELECT FROM holdfast.searched r WHERE r.words @@ p.query AND r.live
                                        LIMIT %(most)s::int) AS few)
          FROM unnest(%(phrases)s::tsquery[]) WITH ORDINALITY AS p (query, n) ORDER BY p.n),
    (SELECT count(*) FROM recent)
"""
_IN_SCOPE = """
SELECT
    ARRAY(SELECT count(*) FROM generate_series(0, 1) AS n LEFT JOIN holdfast.searched r
          ON r.live AND r.length > 0 AND (r.kind = 'transcript') = (n = 1) AND r.id IS NOT NULL GROUP BY n ORDER BY n),
    ARRAY(SELECT coalesce(sum(r.length), 0)::bigint FROM generate_series(0, 1) AS n LEFT JOIN holdfast.searched r
          ON r.live AND r.length > 0 AND (r.kind = 'transcript') = (n = 1) GROUP BY n ORDER BY n),
    ARRAY(SELECT count(*) FROM unnest(%(queries)s::tsquery[]) WITH ORDINALITY AS w (query, n)
          LEFT JOIN holdfast.searched r ON r.words @@ w.query AND r.live GROUP BY w.n ORDER BY w.n),
    ARRAY(SELECT count(r.id) FROM unnest(%(phrases)s::tsquery[]) WITH ORDINALITY AS p (query, n)
          LEFT JOIN holdfast.searched r ON r.words @@ p.query AND r.live GROUP BY p.n ORDER BY p.n),
    0
"""
_GRAPH = f"""
SELECT set_config('hnsw.ef_search', '{_BY_CODE}', true), set_config('hnsw.iterative_scan', 'relaxed_order', true),
    set_config('enable_sort', 'off', true)
"""
_BESIDE = """
SELECT o.id FROM holdfast.record o WHERE o.tenant = %(tenant)s AND o.session = b.session AND o.session <> ''
    AND o.path = b.path AND o.live AND NOT o.hidden AND o.id {sign} b.id ORDER BY o.id {way} LIMIT 2
"""
_BEFORE, _AFTER = _BESIDE.format(sign="<", way="DESC"), _BESIDE.format(sign=">", way="ASC")


def conditions(where: Filter) -> tuple[str, dict[str, Any]]:
    """Return a filter as SQL over rows `r`, and its values."""
    parts, values = ["r.live"], dict[str, Any]()
    if not where.hidden:
        parts.append("NOT r.hidden")
    if kinds := where.kinds or where.searchable:
        parts.append("r.kind = ANY(%(kinds)s::text[])")
        values["kinds"] = list(kinds)
    if where.scope:
        others = [*(from_path(where.scope).above if where.above else ()), *([""] if where.shared else ())]
        more = " OR r.scope = ANY(%(others)s::text[])" if others else ""
        parts.append(f"(r.scope = %(scope)s OR (r.scope > %(below)s AND r.scope < %(beyond)s){more})")
        values |= {"scope": where.scope, "below": where.scope + "/", "beyond": where.scope + "0", "others": others}
    if where.sessions:
        parts.append("r.session = ANY(%(sessions)s::text[])")
        values["sessions"] = [short(session) for session in where.sessions]
    if where.tags:
        parts.append("r.words @@ %(tags)s::tsquery")
    if where.since:
        parts.append("r.at >= %(since)s::timestamptz")
    if where.until:
        parts.append("r.at <= %(until)s::timestamptz")
    if where.known:
        parts.append("(r.at <= %(known)s::timestamptz OR r.at IS NULL)")  # without a time it may have been known
    if where.only:
        parts.append(
            "%(only)s IN (r.id::text, r.key, CASE WHEN r.key = '' THEN r.path ELSE r.path || '#' || r.key END)"
        )
    return " AND ".join(parts), values | {"since": where.since, "until": where.until, "known": where.known}


class Rarity(NamedTuple):
    """How rare the words of a question are."""

    records: list[int]
    """Our own, and those of other programs."""
    lengths: list[int]
    held: dict[str, int]
    """In how many records a lexeme, or a phrase of lexemes, occurs."""
    uncounted: int

    def average(self, foreign: bool) -> float:
        return max(1.0, self.lengths[foreign] / max(1, self.records[foreign]))


class Meaning(NamedTuple):
    """The vector of a question."""

    model: str
    vector: str
    code: str
    near: float
    """From this similarity on, a record is about the question."""
    literal: bool
    """Quoted words must occur, so meaning adds no candidates."""
    by_graph: bool
    """Find the nearest ones by the graph, instead of comparing all."""


class Found(NamedTuple):
    """The candidates for a question, and the rows that were returned with them."""

    pool: Pool
    near: dict[str, float]
    rows: list[Stored | None]
    ids: list[str]


class Searcher:
    """Asks one tenant's rows."""

    def __init__(self, database: Database, settings: Search) -> None:
        self._database = database
        self._settings = settings
        self.lexemes = Lexemes(database.tenant)

    def filter(self, where: Filter) -> tuple[str, dict[str, Any]]:
        condition, values = conditions(where)
        if where.tags:
            values["tags"] = " | ".join(quoted(self.lexemes.tie(TAG, same(tag))) for tag in where.tags)
        if where.only:
            values["only"] = plain(where.only)
        return condition, values

    # words

    def rarity(
        self, terms: Terms, foreign: Iterable[bool], also: Sequence[Statement] = ()
    ) -> tuple[Rarity, list[list[TupleRow]]]:
        """Return how rare the words of a question are, and the rows of other statements, in one message."""
        runs = [_stemmed(run) for run in (*terms.words, *terms.phrases)]
        single, phrases = dict[str, str](), dict[str, str]()
        for prefix in map(self.lexemes.prefix, foreign):
            single |= {prefix + stem: quoted(prefix + stem) for run in runs for stem in run}
            phrases |= {prefix + " ".join(run): _query(prefix, run) for run in runs if len(run) > 1}
        asked = _IN_SCOPE if self._database.scope else _RARITY
        values = {"terms": list(single), "queries": list(single.values()), "phrases": list(phrases.values())}
        statement = planned(asked, {**values, "most": self._settings.common_records + 1})
        *_, ((records, lengths, held, many, uncounted),) = found = self._database.send(_WHAT, [*also, *statement])
        counts = dict(zip([*single, *phrases], [*held, *many], strict=True))
        return Rarity(records, lengths, counts, uncounted), found

    def wanted(self, terms: Terms, rarity: Rarity, foreign: bool) -> Wanted:
        """Return the words of a question that distinguish records."""
        prefix = self.lexemes.prefix(foreign)

        def count(run: Run, most: int) -> int:
            found = _stemmed(run)
            held = rarity.held.get(prefix + " ".join(found), 0)
            return held if most < 0 else min(held, most)

        return words.telling(terms, self._settings, stems, count)

    def candidates(
        self, wanted: Wanted, where: Filter, rarity: Rarity, most: int, *, foreign: bool, meaning: Meaning | None,
        beside: bool = True,
    ) -> Found:  # fmt: skip
        """Return the candidates for some words and a meaning, with their neighbours, in one message."""
        prefix = self.lexemes.prefix(foreign)
        runs = [(run, _stemmed(run)) for run in (*wanted.phrases, *wanted.words)]
        pool = Pool(
            foreign=foreign, words=tuple(" ".join(run) for run, _ in runs), held=tuple(wanted.held),
            records=max(1, rarity.records[foreign]), length=rarity.average(foreign),
        )  # fmt: skip
        asked = self._asked(wanted, prefix)
        if not asked and (meaning is None or meaning.literal):
            return Found(pool, {}, [], [])
        condition, values = self.filter(where)
        values |= {f"q{number}": _query(prefix, run) for number, (_, run) in enumerate(runs)}
        values |= {f"w{number}": _weight(held, pool.records) for number, held in enumerate(wanted.held)}
        values |= {"asked": asked, "average": pool.length, "many": most}
        ranks = [_rank(f"q{number}", run) for number, (_, run) in enumerate(runs)]
        statement = _statement(condition, ranks, meaning, long=pool.length > _LONG, beside=beside, asked=bool(asked))
        if meaning:
            values |= {"model": meaning.model, "vector": meaning.vector, "code": meaning.code, "near": meaning.near}
        graph: list[Statement] = [(_GRAPH, [])] if meaning and meaning.by_graph else []
        rows = self._database.send(_WHAT, [*graph, *planned(statement, values)])[-1]
        return _found(pool, rows, where)

    def _asked(self, wanted: Wanted, prefix: str) -> str:
        """Return the query for the records to rank: with all phrases, or with some of the rarest words."""
        if wanted.phrases:
            return " & ".join(_query(prefix, _stemmed(run)) for run in wanted.phrases)
        chosen, total = list[Run](), 0
        for held, run in sorted(zip(wanted.held, wanted.words, strict=True)):
            total += held
            if chosen and total > _RANKED:
                break
            if held:
                chosen.append(run)
        return " | ".join(_query(prefix, _stemmed(run)) for run in chosen)

    def best(self, terms: Terms, where: Filter, limit: int) -> list[tuple[Stored | None, str, float]]:
        """Return the rows that match the words best, by words alone, with their ids and scores."""
        flags = has_foreign(where)
        (rarity, _), scored = self.rarity(terms, flags), list[tuple[float, Candidate, Stored | None, str]]()
        for foreign in flags:
            wanted = self.wanted(terms, rarity, foreign)
            found = self.candidates(
                wanted, where, rarity, limit + _SPARE, foreign=foreign, meaning=None, beside=False
            )  # fmt: skip
            weights = [_weight(held, found.pool.records) for held in wanted.held]
            if wanted.phrases and wanted.words:
                weights[0] *= 2  # as in the file engine, whose expression has it twice
            for (number, one), row in zip(found.pool.candidates.items(), found.rows, strict=True):
                k = _K * (1 - _B + _B * one.length / found.pool.length)
                score = sum(w * count * (_K + 1) / (count + k) for w, count in zip(weights, one.counts, strict=False))
                scored.append((score, one, row, found.ids[number]))
        scored.sort(key=lambda each: each[1].place)
        scored.sort(key=lambda each: each[1].time, reverse=True)
        scored.sort(key=lambda each: -each[0])
        return [(row, identifier, score) for score, _, row, identifier in scored[:limit]]

    # related records

    def related(
        self, identifiers: Sequence[str], where: Filter, limit: int,
        load: Callable[[Sequence[str]], dict[str, Record]], own: dict[str, list[Record]],
    ) -> dict[str, list[Tied]]:  # fmt: skip
        """Return the records most closely related to each id, or to a name that is no id; `own` are their records."""
        names: dict[str, Names] = {}
        for identifier in identifiers:
            names[identifier] = Names([], [], []) if own.get(identifier) else words.unowned(identifier)
            for record in own.get(identifier, ()):
                for way, name in words.ties_of(record):
                    names[identifier][way - 1].append(name)
        shared = sorted(words.shared_by(names.values()))
        having, order = self._having(shared, where), list[str]()
        numbers: dict[str, int] = {}
        rows = {tie: [numbers.setdefault(row, len(numbers)) for row in found] for tie, found in having.items()}
        order = list(numbers)
        records = load(order)
        place = {record.id: identifier for identifier, found in own.items() for record in found}
        result: dict[str, list[Tied]] = {}
        for identifier in identifiers:
            mine = [
                number
                for number, row in enumerate(order)
                if row in records and place.get(records[row].id) == identifier
            ]
            # a name without a record has no rows of its own
            ties = words.tied(names[identifier], rows, mine or ([-1] if own.get(identifier) else []))
            chosen = [(number, tie) for number, tie in ties.items() if order[number] in records]
            chosen.sort(key=lambda one: (records[order[one[0]]].path, records[order[one[0]]].order))
            chosen.sort(key=lambda one: records[order[one[0]]].time, reverse=True)
            chosen.sort(key=lambda one: -one[1][0])
            result[identifier] = [
                Tied(records[order[number]], score, tuple(how)) for number, (score, how) in chosen[:limit]
            ]
        return result

    def _having(self, ties: Sequence[tuple[int, str]], where: Filter) -> dict[tuple[int, str], list[str]]:
        """Return the rows that have each tie and pass the filter; none for a tie that too many have."""
        if not ties:
            return {}
        condition, values = self.filter(where)
        statement = f"""
            SELECT ARRAY(SELECT few.id::text FROM (SELECT r.id, ({condition}) AS inside FROM holdfast.searched r
                WHERE r.words @@ t.query AND r.live LIMIT {MOST + 1}) AS few WHERE few.inside LIMIT {COMMON + 1})
            FROM unnest(%(ties)s::tsquery[]) WITH ORDINALITY AS t (query, n) ORDER BY t.n"""
        values["ties"] = [quoted(self.lexemes.tie(way, name)) for way, name in ties]
        rows = self._database.send(_WHAT, planned(statement, values))[-1]
        return {tie: found for tie, (found,) in zip(ties, rows, strict=True) if len(found) <= COMMON}


def has_foreign(where: Filter) -> list[bool]:
    """Return which words to search: own (False), foreign (True), or both."""
    return list(dict.fromkeys(KINDS[name].foreign for name in where.kinds or where.searchable))


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


def _statement(
    condition: str, ranks: list[str], meaning: Meaning | None, *, long: bool, beside: bool, asked: bool
) -> str:
    """Put together the statement that returns the candidates of a question."""
    parts = []
    if asked:
        scores = " + ".join(
            f"%(w{number})s::float8 * s.x{number} / (s.x{number} + s.k)" for number in range(len(ranks))
        )
        columns = ", ".join(f"{rank} AS x{number}" for number, rank in enumerate(ranks))
        vectors = "r.words || ''" if long else "r.words"
        parts.append(f"""hit AS MATERIALIZED (SELECT s.id, s.path, s.session, s.kind FROM (
            SELECT r.*, {_K} * ({1 - _B} + {_B} * r.length / %(average)s::float8) AS k, {columns}
            FROM (SELECT r.id, r.path, r.session, r.kind, r.length, {vectors} AS words FROM (
                    SELECT * FROM holdfast.searched r WHERE r.words @@ %(asked)s::tsquery OFFSET 0) AS r
                  WHERE {condition} OFFSET 0) AS r OFFSET 0) AS s
            ORDER BY {scores or "0"} DESC, s.id DESC LIMIT %(many)s::int)""")
    if meaning and not meaning.literal:
        distance = "holdfast.distance(e.code, %(code)s::bit(384))" + ("" if meaning.by_graph else " + 0")
        parts.append(f"""near AS MATERIALIZED (SELECT r.id, r.path, r.session, r.kind FROM (
            SELECT c.id, holdfast.similarity(e.vector, %(vector)s) AS similarity FROM (
                SELECT e.id FROM holdfast.compared e WHERE e.model = %(model)s ORDER BY {distance} LIMIT {_BY_CODE}
                OFFSET 0) AS c JOIN LATERAL (SELECT e.vector FROM holdfast.embedding e WHERE e.tenant = %(tenant)s
                AND e.id = c.id AND e.model = %(model)s OFFSET 0) AS e ON true OFFSET 0) AS n
            JOIN LATERAL (SELECT * FROM holdfast.record r WHERE r.tenant = %(tenant)s AND r.id = n.id AND r.length > 0
                OFFSET 0) AS r ON true
            WHERE n.similarity >= %(near)s::float8 AND {condition} ORDER BY n.similarity DESC LIMIT {_NEAREST})""")
    some = " UNION ".join(f"SELECT * FROM {name}" for name in ("hit", "near") if any(p.startswith(name) for p in parts))
    ordered = ", ".join(f"'{name}'" for name in IN_ORDER)
    ways = f"CASE WHEN b.kind IN ({ordered}) THEN ARRAY({{}}) END" if beside else "NULL::uuid[]"
    parts.append(
        f"best AS MATERIALIZED (SELECT b.id, {ways.format(_BEFORE)} AS before, {ways.format(_AFTER)} AS after"
        f" FROM ({some}) AS b)"
    )
    parts.append(
        "pool AS MATERIALIZED (SELECT DISTINCT ON (id) * FROM (SELECT * FROM best UNION ALL"
        " SELECT unnest(before), NULL, NULL FROM best UNION ALL SELECT unnest(after), NULL, NULL FROM best) AS p"
        " ORDER BY id, before NULLS LAST)"
    )
    near = "NULL::float8"
    join = ""
    if meaning:
        near = "holdfast.similarity(e.vector, %(vector)s)"
        join = (
            " LEFT JOIN LATERAL (SELECT e.vector FROM holdfast.embedding e WHERE e.tenant = %(tenant)s"
            " AND e.model = %(model)s AND e.id = p.id OFFSET 0) AS e ON true"
        )
    small = (
        "octet_length(coalesce(r.text, '')) + octet_length(coalesce(r.more::text, ''))"
        f" + coalesce(octet_length(r.raw), 0) < {_SHORT}"
    )
    content = READ.replace("r.text", "CASE WHEN r.small THEN r.text END")
    content = content.replace("r.more::text", "CASE WHEN r.small THEN r.more::text END")
    return (
        f"WITH {', '.join(parts)} SELECT r.session, r.author, r.agent,"
        f" r.priority, r.length, ARRAY[{', '.join(ranks)}]::float4[], {near}::float8, ({condition}), p.before::text[],"
        f" p.after::text[], CASE WHEN r.key IS NULL THEN '' ELSE r.key END,"
        f" r.small, {content}"
        f" FROM pool p CROSS JOIN LATERAL (SELECT r.*, {small} AS small FROM holdfast.record r"
        f" WHERE r.tenant = %(tenant)s AND r.id = p.id OFFSET 0) AS r{join}"
    )


def _found(pool: Pool, rows: list[TupleRow], where: Filter) -> Found:
    """Make candidates of the rows of a question."""
    numbers: dict[str, int] = {}
    candidates, near, after = dict[int, Candidate](), dict[str, float](), dict[int, int]()
    stored: list[Stored | None] = []
    chains: list[list[str]] = []
    for row in rows:
        session, author, agent, priority, length, ranks, similarity, inside, before, behind, key, small = row[:12]
        one = Stored(*row[12:])
        time = "" if one.at is None else iso(one.at)
        if where.known and time > where.known:
            continue
        number = numbers[one.id] = len(numbers)
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
        stored.append(one if small else None)
        if before or behind:
            chains.append([*reversed(before or ()), one.id, *(behind or ())])
    for chain in chains:
        after.update(itertools.pairwise([numbers[each] for each in chain if each in numbers]))
    filled = msgspec.structs.replace(pool, candidates=candidates, after=after)
    return Found(filled, near, stored, list(numbers))


def _decoded() -> tuple[list[float], list[int]]:
    """Return the ranks of all small numbers of occurrences, in order, and what they count as.

    `ts_rank` adds 1/n² for the n-th occurrence, and a title is first and weighs four times as much.
    """
    ranks = {0.0: 0}
    for titles in range(_TITLES):
        for texts in range(_TEXTS):
            if titles + texts:
                title = 3 * _SQUARES[titles - 1] if titles else 0.0
                ranks[title + _SQUARES[titles + texts - 1]] = min(255, 4 * titles + texts)
    return (lambda known: (known, [ranks[one] for one in known]))(sorted(ranks))


_RANKS, _COUNTS = _decoded()


def _occurrences(rank: float) -> int:
    """Return how often a word occurs in a record, from its rank; in the title it counts four times."""
    place = bisect.bisect_left(_RANKS, rank)
    if place == len(_RANKS):
        return _COUNTS[-1]
    if place and rank - _RANKS[place - 1] < _RANKS[place] - rank:
        place -= 1
    return _COUNTS[place]
