"""Answers: from the candidates for a query to hits that fit its budget, and why a record is or is not a hit.

`Core.find`, the shared memory and `holdfast why` all use the same steps: candidates, ranking, answers. Every hit has
the words that it matches, other reasons for its score, and its age. An answer also reports the time of its data and
how many changed files it does not include yet. No hits is a valid answer.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from holdfast.model.kinds import KINDS
from holdfast.model.names import count_tokens
from holdfast.model.queries import Query, bare, parse, plain, read_question
from holdfast.model.records import Problem, Record, label, lapsed, text_of
from holdfast.model.settings import Search
from holdfast.model.times import age, from_prefix
from holdfast.recall.ranking import FAR, Near, Ranked, in_order, rank
from holdfast.storage.results import Filter, Pool, Tied

SNIPPET = 320
_LONGEST_CHAIN = 20
"""The longest chain of records that supersede each other."""
_FILTERED = "A filter excludes it."


class Hit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record that answers a query."""

    record: Record
    score: float = 0.0
    why: tuple[str, ...] = ()
    """The words of the query that occur in it."""
    because: tuple[str, ...] = ()
    """Other reasons for its score: its author, its neighbours, its time."""
    snippet: str = ""
    age: str = ""
    related: tuple[Tied, ...] = ()
    """Records that are related to it by links, common links or tags."""
    store: str = ""
    """`shared` for a record of the shared memory."""


class Found(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a query; iterates over its hits."""

    hits: list[Hit]
    as_of: str = ""
    behind: int = 0
    left_out: int = 0
    """How many hits did not fit the budget."""
    problems: list[Problem] = []
    damaged: int = 0
    """How many lines and files cannot be read; `verify` lists them."""

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)


class Candidates(msgspec.Struct, frozen=True):
    """The candidates for a query: pools to rank, or ordered hits."""

    pools: list[Pool] = []
    near: Near = FAR
    hits: list[Hit] = []
    filter: Filter = Filter()
    load: Callable[[list[int]], Mapping[int, Record]] = lambda _rows: {}
    """Return the records of rows, which are numbers of this state of the memory."""
    related: Callable[[list[Hit]], list[list[Tied]]] = lambda hits: [[] for _ in hits]
    store: Callable[[int], str] = lambda _row: ""
    """The memory of a row."""
    get: Callable[[str], Record | None] = lambda _id: None
    """Return a record by its id, None if it does not exist."""
    as_of: str = ""
    behind: int = 0
    problems: list[Problem] = []
    damaged: int = 0

    def loaded(self) -> Candidates:
        """Return the same with all records, so that it remains valid when the memory changes."""
        records = self.load([row for pool in self.pools for row in pool.candidates])
        return msgspec.structs.replace(self, load=lambda rows: {row: records[row] for row in rows if row in records})


class ScoreStep(msgspec.Struct, frozen=True):
    step: str
    change: float
    score: float
    """The score after this step."""


class Explained(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a record is, or is not, among the answers to a query."""

    id: str
    where: str
    rank: int = 0
    """Its place among the hits, from 1; 0 when it is not a hit."""
    score: float = 0.0
    steps: tuple[ScoreStep, ...] = ()
    words: tuple[str, ...] = ()
    """The words of the query that occur in it."""
    missing: tuple[str, ...] = ()
    """The words of the query that do not."""
    because: tuple[str, ...] = ()
    """Other reasons for its score."""
    matched: float = 0.0
    """How much of the query the best records answer, by their words, their neighbours and their meaning."""
    floor: float = 0.0
    """Below this, nothing is relevant and there are no hits."""
    left_out: str = ""
    """Why it is not a hit."""


def answer(found: Candidates, query: Query, weights: Search) -> Found:
    """Rank candidates and turn the best of them into hits within the budget."""
    chosen = choose(found, query, weights)
    ties = found.related(chosen) if query.related else [()] * len(chosen)
    terms, wanted = parse(query.text), list[tuple[str, str]]()
    for run in (*terms.phrases, *terms.words):  # as they are shown, each with its stem
        text = " ".join(run)
        unspaced = len(run) > 1 and len(run[0]) == 1 and not run[0].isascii()
        wanted.append(("".join(run) if unspaced else text, text[: _stem(text)]))
    hits: list[Hit] = []
    spent = left_out = 0
    for one, tied in zip(chosen, ties, strict=True):
        record = one.record
        why: tuple[str, ...] = ()
        if wanted:
            text = plain("\n".join((record.title, record.text, " ".join(record.tags), text_of(record.fields))))
            why = tuple([shown for shown, stem in wanted if stem in text])
        snippet = record.text if len(record.text) <= SNIPPET else _snippet(record.text, why)
        if query.budget:
            cost = count_tokens(record.title) + count_tokens(snippet)
            for other in tied:
                cost += count_tokens(other.record.title) + count_tokens(other.record.id)
            if spent + cost > query.budget:
                left_out += 1  # a smaller hit after it may still fit
                continue
            spent += cost
        hits.append(Hit(record, round(one.score, 4), why, one.because, snippet, _age(record), tuple(tied), one.store))
    return Found(hits, found.as_of, found.behind, left_out, found.problems, found.damaged)


def choose(found: Candidates, query: Query, weights: Search) -> list[Hit]:
    """Return the best hits, as many as the query asks for; records are only loaded as far as needed.

    Current records come first. One that supersedes others takes the place of the best of them; those that are
    superseded, expired or pending come last.
    """
    if not found.pools and not query.text.strip():
        return found.hits
    current, late = dict[tuple[str, str], Hit](), dict[tuple[str, str], Hit]()
    for one in _best(found, query, weights):
        record, key = one.record, (one.store, one.record.id)
        newer = _successor(found, record, query) if record.fields.get("superseded_by") else None
        if newer:
            late[key] = one
            because = (*one.because, f"supersedes {record.id}")
            current.setdefault((one.store, newer.id), Hit(newer, one.score, because=because, store=one.store))
        elif not lapsed(record, query.asked[:10]) or (query.asked and record.fields.get("superseded_by")):
            current.setdefault(key, one)  # also if it was superseded after the time of asking
        else:
            late[key] = one
        if len(current) >= query.limit:
            break
    for one in list(current.values()):  # a writer may have died before it marked the older one
        older = (one.store, str(one.record.fields.get("supersedes")))
        if older in current:
            late[older] = current.pop(older)
    return [*current.values(), *late.values()][: query.limit]


def _best(found: Candidates, query: Query, weights: Search) -> Iterator[Hit]:
    """Yield the ranked records, best first, without records that repeat a better one."""
    if not found.pools:
        yield from found.hits
    ranked, distinct = in_order(found.pools, query, weights, found.near), _is_distinct(query)
    seen: set[str] = set()
    while part := list(itertools.islice(ranked, query.limit)):
        records = found.load([one.row for one in part])
        for one in part:
            if (record := records.get(one.row)) is None:
                continue
            if distinct:
                text = _content(record)
                if text in seen:
                    continue
                seen.add(text)
            yield Hit(record, one.score, because=one.because, store=found.store(one.row))


def _successor(found: Candidates, record: Record, query: Query) -> Record | None:
    """Return the current record that supersedes this one, if it passes the filters of the query."""
    newer: Record | None = record
    for _ in range(_LONGEST_CHAIN):
        if newer is None or not (following := newer.fields.get("superseded_by")):
            break
        newer = found.get(str(following))
    where = found.filter
    if newer is None or newer is record or newer.hidden or lapsed(newer, query.asked[:10]):
        return None
    if where.tags or where.sessions or newer.kind not in (where.kinds or where.searchable):
        return None
    inside = not where.scope or newer.scope.path == record.scope.path
    in_time = (where.since or "") <= newer.time and (not where.until or newer.time <= where.until)
    return newer if inside and in_time and (not where.known or newer.time <= where.known) else None


def explain(record: Record, found: Candidates, query: Query, weights: Search, *, passes: bool) -> Explained:
    """Return how the ranking scores a record; `passes` is whether it passes the filters of the query."""
    result = Explained(record.id, record.where, floor=weights.floor)
    pools = (pool for pool in found.pools if any(one.id == record.id for one in pool.candidates.values()))
    if (pool := next(pools, None)) is None:
        nothing = "No word of the query occurs in it or next to it, or too many records match better."
        return msgspec.structs.replace(result, left_out=nothing if passes else _FILTERED)
    known = next(one for one in pool.candidates.values() if one.id == record.id)
    ranked, matched = rank(pool, read_question(query.text, query.asked), weights, found.near)
    words = tuple(word for word, count in zip(pool.words, known.counts, strict=False) if count)
    missing = tuple(word for word in pool.words if word not in words)
    result = msgspec.structs.replace(result, words=words, missing=missing, matched=round(matched, 4))
    one = next((one for one in ranked if one.candidate.id == record.id), None)
    if one is None:
        left_out = "No step gives it a score." if known.inside else _FILTERED
        return msgspec.structs.replace(result, left_out=left_out)
    place, left_out = _place(one, record, found, query, weights)
    before, steps = 0.0, list[ScoreStep]()
    for name, score in one.steps:
        steps.append(ScoreStep(name, round(score - before, 4), round(score, 4)))
        before = score
    return msgspec.structs.replace(
        result, rank=place, score=round(one.score, 4), steps=tuple(steps), because=one.because, left_out=left_out
    )


def _place(one: Ranked, record: Record, found: Candidates, query: Query, weights: Search) -> tuple[int, str]:
    """Return the place of a record among the answers; 0 and the reason when it is not one of them."""
    order = list(in_order(found.pools, query, weights, found.near))
    ids = [other.candidate.id for other in order]
    if record.id not in ids:
        better = [other.candidate.id for other in order if other.candidate.session == one.candidate.session]
        floor = "No record contains enough of the query: the best share is below the floor."
        return 0, f"In its session, {better[0]} ranks better." if better else floor
    if why := label(record, query.asked[:10]):
        chosen = ["", *[other.record.id for other in choose(found, query, weights)]]
        place = chosen.index(record.id) if record.id in chosen else 0
        return place, "" if place else f"It is {why}: current records come first."
    before = order[: ids.index(record.id)]
    if not _is_distinct(query):
        return len(before) + 1, ""
    texts = {_content(other): other.id for other in found.load([other.row for other in before]).values()}
    twin = texts.get(_content(record))
    return (0, f"It has the same text as {twin}, which ranks better.") if twin else (len(texts) + 1, "")


def _is_distinct(query: Query) -> bool:
    """Return whether an answer leaves out records that repeat a better one."""
    return query.associate and query.level == "records"


def _content(record: Record) -> str:
    """Return a text that two records share when one repeats the other: lines by their words, never two files."""
    if record.text and KINDS[record.kind].shape == "line":
        return " ".join((record.title, *record.text.split())).casefold()
    return f"{record.id} {record.version}"


def _age(record: Record) -> str:
    """Return the age of a record; for a document without a date of its own, when its file changed."""
    found, kind = age(record.time), KINDS[record.kind]
    if kind.shape != "document" or record.fields.get(kind.time):
        return found
    if kind.dated and from_prefix(record.path.rpartition("/")[2]):
        return found
    return f"changed {found}" if found else ""


def _stem(word: str) -> int:
    """Return the length of the part of a word that its inflections share, roughly."""
    return max(4, len(word) - 3)


def _snippet(text: str, why: Sequence[str]) -> str:
    """Return the part of a text around the first match."""
    compared = bare(text)
    places = [place for word in why if (place := compared.find(word[: _stem(word)])) >= 0]
    first = min(places, default=0)
    if len(compared) != len(text):  # `bare` drops accents
        first = bisect.bisect_left(range(len(text)), first, key=lambda end: len(bare(text[:end])))
    start = max(0, first - SNIPPET // 4)
    if start:
        start = text.find(" ", start, start + 40) + 1 or start
    end = start + SNIPPET
    return ("…" if start else "") + text[start:end].strip() + ("…" if end < len(text) else "")
