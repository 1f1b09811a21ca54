"""Answering a query: read the words, find candidates, keep what fits the budget, say why.

Each hit says where it is, which words brought it and how old it is. No hit at all is an answer, and the answer says
as of when it holds and how many changed files it could not look at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from holdfast.model.kinds import KINDS
from holdfast.model.queries import Query, Terms, bare, plain
from holdfast.model.records import Problem, Record, text_of
from holdfast.model.settings import Search
from holdfast.model.times import age, from_prefix
from holdfast.model.tokens import count_tokens
from holdfast.recall import question, ranking
from holdfast.recall.ranking import FAR, Near, Ranked
from holdfast.storage.index import Pool, Tied

SNIPPET = 320


class Hit(msgspec.Struct, frozen=True, omit_defaults=True):
    record: Record
    score: float = 0.0
    why: tuple[str, ...] = ()
    """The words of the query that stand in it."""
    because: tuple[str, ...] = ()
    """What else brought it: who said it, what it stands beside, when."""
    snippet: str = ""
    age: str = ""
    related: tuple[Tied, ...] = ()
    """What has to do with it: by links, by what both speak of, by tags."""
    store: str = ""
    """The memory that it is from, where that is another one: `shared`."""


class Found(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a query; iterates over its hits."""

    hits: list[Hit]
    as_of: str = ""
    behind: int = 0
    left_out: int = 0
    """Hits that the budget had no room for."""
    problems: list[Problem] = []
    damaged: int = 0
    """How many lines and files are known that cannot be read; `verify` names them."""

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)


class Answer(msgspec.Struct, frozen=True):
    """A record that answers a query, and why."""

    record: Record
    score: float = 0.0
    because: tuple[str, ...] = ()
    steps: tuple[tuple[str, float], ...] = ()
    row: int = -1
    store: str = ""


Load = Callable[[list[int]], Mapping[int, Record]]


class Gathered(msgspec.Struct, frozen=True):
    """What one memory has for a query, before anything is ranked: candidates, or without words the newest."""

    pools: list[Pool] = []
    near: Near = FAR
    newest: list[Record] = []
    load: Load = lambda _rows: {}
    related: Callable[[list[str]], Mapping[str, list[Tied]]] = lambda _identifiers: {}
    as_of: str = ""
    behind: int = 0
    problems: list[Problem] = []
    damaged: int = 0


def choose(pools: list[Pool], query: Query, weights: Search, load: Load, near: Near = FAR) -> list[Answer]:
    """Return the records that answer a query, best first, as many as it wants."""
    answers = _loaded(in_order(pools, query, weights, near), query.limit, load)
    return list(itertools.islice(_distinct(answers) if says_once(query) else answers, query.limit))


def in_order(pools: list[Pool], query: Query, weights: Search, near: Near = FAR) -> list[Ranked]:
    """Return what may answer a query, best first; of each session only the best, where sessions are asked for."""
    ask = question.read(query.text, query.asked)
    found: list[Ranked] = []
    for pool in pools:
        if not pool.candidates:
            continue
        ranked, matched = ranking.rank(pool, ask, weights, near)
        if not query.associate:
            found += [one for one in ranked if one.said]
        elif matched >= weights.floor:
            found += ranked
    if len(pools) > 1:
        found.sort(key=lambda one: -one.score)
    return _best_of_each(found) if query.level == "sessions" else found


def says_once(query: Query) -> bool:
    """Does an answer to this leave out what says the same as something better?"""
    return query.associate and query.level == "records"


def _best_of_each(ranked: list[Ranked]) -> list[Ranked]:
    """Keep the best record of each session."""
    best: dict[tuple[str, str], Ranked] = {}
    for one in ranked:
        best.setdefault(one.candidate.session, one)
    return list(best.values())


def _loaded(ranked: list[Ranked], most: int, load: Load) -> Iterator[Answer]:
    """Yield the records themselves, which are read only as far as somebody looks."""
    for start in range(0, len(ranked), most):
        part = ranked[start : start + most]
        records = load([one.row for one in part])
        for one in part:
            if one.row in records:
                yield Answer(records[one.row], one.score, one.because, one.steps, one.row)


def _distinct(answers: Iterable[Answer]) -> Iterator[Answer]:
    """Leave out lines that say the same as something better; two files that do are two files."""
    seen: set[str] = set()
    for one in answers:
        if (text := said_by(one.record)) not in seen:
            seen.add(text)
            yield one


def said_by(record: Record) -> str:
    """Return what two records must share to say the same: the words of a line; a file says something of its own."""
    line = KINDS[record.kind].shape == "line" and record.text
    return " ".join((record.title, *record.text.split())).casefold() if line else f"{record.id} {record.version}"


def each(related: Callable[[list[str]], Mapping[str, list[Tied]]]) -> Callable[[list[Answer]], list[list[Tied]]]:
    """Return what gives the ties of answers, each its own, where they all come from one memory."""

    def of(answers: list[Answer]) -> list[list[Tied]]:
        found = related([answer.record.id for answer in answers])
        return [found.get(answer.record.id, []) for answer in answers]

    return of


def hits(
    answers: list[Answer], terms: Terms, query: Query, related: Callable[[list[Answer]], list[list[Tied]]]
) -> tuple[list[Hit], int]:
    """Turn answers into hits within the budget; the number is how many had no room."""
    result: list[Hit] = []
    spent = left_out = 0
    tied = related(answers) if query.related else [[] for _ in answers]
    for answer, ties in zip(answers, tied, strict=True):
        record = answer.record
        why = _why(record, terms)
        snippet = _snippet(record.text, why)
        cost = count_tokens(record.title) + count_tokens(snippet)
        cost += sum(count_tokens(tied.record.title) + count_tokens(tied.record.id) for tied in ties)
        if query.budget and spent + cost > query.budget:
            left_out += 1  # a smaller one behind it may still fit
            continue
        spent += cost
        score = round(answer.score, 4)
        result.append(Hit(record, score, why, answer.because, snippet, _age(record), tuple(ties), answer.store))
    return result, left_out


def _age(record: Record) -> str:
    """Say how old a record is; of a document that does not say so itself, when its file was changed."""
    told = age(record.time)
    kind = KINDS[record.kind]
    name = record.path.rpartition("/")[2]
    if kind.shape != "document" or record.fields.get(kind.time) or (kind.dated and from_prefix(name)):
        return told
    return f"changed {told}" if told else ""


def _why(record: Record, terms: Terms) -> tuple[str, ...]:
    if terms.empty:
        return ()
    runs = (*terms.phrases, *terms.words)
    text = plain("\n".join((record.title, record.text, " ".join(record.tags), text_of(record.fields))))
    return tuple(_shown(run) for run in runs if _stem(" ".join(run)) in text)


def _shown(run: tuple[str, ...]) -> str:
    return ("" if len(run) > 1 and len(run[0]) == 1 and not run[0].isascii() else " ").join(run)


def _stem(word: str) -> str:
    """Return the part of a word that its inflections share, roughly."""
    return word[: max(4, len(word) - 3)] if len(word) > 4 else word


def _snippet(text: str, why: tuple[str, ...]) -> str:
    """Return the part of the text around the first word that brought it."""
    if len(text) <= SNIPPET:
        return text
    compared = bare(text)
    places = [place for word in why if (place := compared.find(_stem(word))) >= 0]
    first = min(places, default=0) * len(text) // max(1, len(compared))  # accents and points are not in it
    start = max(0, first - SNIPPET // 4)
    if start:
        start = text.find(" ", start, start + 40) + 1 or start
    end = start + SNIPPET
    return ("…" if start else "") + text[start:end].strip() + ("…" if end < len(text) else "")
