"""Ranking: from records that may answer a question to the order in which they do. A short pipeline of named steps.

    words      how well the record itself fits (BM25), and how well it fits together with what stands around it
    meaning    how near the record is to the question in meaning, where there are vectors
    who        the question names the author; what an assistant said counts less if the question is about the asker
    beside     an answer often stands next to the words of the question
    when       a time that the question names; and, mildly, what is new
    priority   mildly, what whoever kept it called important
    session    a part of the best score in the same session

Every step is a weight in the settings, and 0 leaves it out. What each step made of a record is told in `steps`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.model.records import USUAL_PRIORITY
from holdfast.model.settings import Search
from holdfast.model.times import parse_ms
from holdfast.recall.question import DAY_MS, Ask
from holdfast.storage.index import Candidate, Pool

_K1, _B = 1.2, 0.5
_SPAN, _CONTEXT = 2, 150
"""What stands around a record: so many before and behind it, as long as they and it have no more words than this."""
_AFTER, _BEFORE = 7.0, 3.0
"""Days in which the weight of a named time fades, behind it and before it."""
_HALF = 30.0
"""Days in which newness halves."""
_BEST = 10
_NAME = 2.0
"""In saying how much of a question was found, a name counts so much more than another word."""
_MUCH = 0.25
"""From this nearness on, a record is said to be of the time that the question names."""


class Ranked(msgspec.Struct, frozen=True):
    """A candidate in its place."""

    row: int
    candidate: Candidate
    score: float
    ranking: Ranking
    number: int

    @property
    def said(self) -> bool:
        """Does it have a word of the question itself?"""
        return any(self.candidate.counts)

    @property
    def steps(self) -> tuple[tuple[str, float], ...]:
        """The score behind each step."""
        return tuple((name, values[self.number]) for name, values in self.ranking.steps.items())

    @property
    def because(self) -> tuple[str, ...]:
        """What but its own words brought it here."""
        return tuple(self.ranking.because(self.number))


class Near(msgspec.Struct, frozen=True):
    """How near records are to a question in meaning, by their ids."""

    values: Mapping[str, float] = {}
    enough: float = 2.0
    """From here on, a record is about the question even if it has none of its words."""


FAR = Near()


class Ranking:
    """The candidates of a pool in a row, what stands beside each, and what the steps made of them."""

    def __init__(self, pool: Pool, ask: Ask, weights: Search) -> None:
        self.pool, self.ask, self.weights = pool, ask, weights
        self.rows = list(pool.candidates)
        self.all: list[Candidate] = list(pool.candidates.values())
        self.steps: dict[str, list[float]] = {}
        place = {row: number for number, row in enumerate(self.rows)}
        self.after, self.before = [-1] * len(self.rows), [-1] * len(self.rows)
        for row, other in pool.after.items():
            self.after[place[row]], self.before[place[other]] = place[other], place[row]
        self.idf = [math.log(1 + (pool.records - held + 0.5) / (held + 0.5)) for held in pool.held]
        self.lengths = [one.length for one in self.all]
        self._windows: dict[int, list[int]] = {}
        self.wide = self._surroundings()

    def _surroundings(self) -> dict[int, list[int]]:
        """Return the counts of what stands in and around each record, where anything does."""
        found: dict[int, list[int]] = {}
        said = {number: one.counts for number, one in enumerate(self.all) if any(one.counts)}
        for number in range(len(self.all)):
            there = [said[near] for near in self.window(number) if near in said]
            if there:
                found[number] = [sum(counts) for counts in zip(*there, strict=True)] if there[1:] else list(there[0])
        return found

    def window(self, number: int) -> list[int]:
        """Return a record and what stands around it."""
        if number in self._windows:
            return self._windows[number]
        lengths, before, after = self.lengths, self.before, self.after
        near, room = [number], _CONTEXT - lengths[number]
        back, ahead = before[number], after[number]
        for _ in range(_SPAN):
            if back >= 0 and lengths[back] <= room:
                near.append(back)
                room, back = room - lengths[back], before[back]
            else:
                back = -1
            if ahead >= 0 and lengths[ahead] <= room:
                near.append(ahead)
                room, ahead = room - lengths[ahead], after[ahead]
            else:
                ahead = -1
        self._windows[number] = near
        return near

    def because(self, number: int) -> Iterable[str]:
        """Yield in a few words what but its own words brought a record to its place."""
        one, end = self.all[number], self.steps["session" if self.weights.session else "when"]
        if self.weights.author and _named(one.author, self.ask.names):
            yield f"by {one.author}"
        if not any(one.counts):
            if "meaning" in self.steps and self.steps["meaning"][number] - self.steps["words"][number] >= _MUCH:
                yield "near in meaning"
            steps = self.steps["who"]
            beside = [place for place in (self.before[number], self.after[number]) if place >= 0]
            if beside:
                yield f"beside {self.all[max(beside, key=lambda place: steps[place])].id}"
        if self.weights.date and _near(_day(one.time), self.ask) >= _MUCH:
            yield "of that time"
        if end[number] > 2 * self.steps.get("priority", self.steps["when"])[number]:
            yield "in the same session"


def rank(pool: Pool, ask: Ask, weights: Search, meaning: Near = FAR) -> tuple[list[Ranked], float]:
    """Return the candidates that pass the filters, best first, and how much of the question the best of them answer."""
    field = Ranking(pool, ask, weights)
    steps, every = field.steps, field.all
    steps["words"] = score = _words(field)
    if meaning.values and weights.meaning:
        near = _to_one([max(0.0, meaning.values.get(one.id, 0.0)) for one in every])
        steps["meaning"] = score = [had + weights.meaning * one for had, one in zip(score, near, strict=True)]
    steps["who"] = score = _who(field, score)
    if weights.beside:
        steps["beside"] = score = _lent(field, score)
    factors = {day: _when(_day(day), ask, weights) for day in {one.time[:10] for one in every}}
    steps["when"] = score = [had * factors[one.time[:10]] for had, one in zip(score, every, strict=True)]
    if weights.priority and any(one.priority != USUAL_PRIORITY for one in every):
        more = [1 + weights.priority * (one.priority - USUAL_PRIORITY) / USUAL_PRIORITY for one in every]
        steps["priority"] = score = [had * one for had, one in zip(score, more, strict=True)]
    if weights.session:
        steps["session"] = score = _shared(field, score)
    kept = [number for number, one in enumerate(every) if one.inside and score[number] > 0]
    kept = _in_order(field, kept, [-round(one, 9) for one in score])
    ranked = [Ranked(field.rows[number], every[number], score[number], field, number) for number in kept]
    best = kept[:_BEST]
    if weights.meaning and any(meaning.values.get(every[number].id, 0.0) >= meaning.enough for number in best):
        return ranked, 1.0
    return ranked, _matched(field, best)


def _in_order(field: Ranking, kept: list[int], worth: list[float]) -> list[int]:
    """Sort by score; among equals the newest is first, then their places decide."""
    every, result = field.all, list[int]()
    for _, equals in itertools.groupby(sorted(kept, key=worth.__getitem__), worth.__getitem__):
        group = list(equals)
        if len(group) > 1:
            group.sort(key=lambda number: every[number].place)
            group.sort(key=lambda number: every[number].time, reverse=True)
        result += group
    return result


def _matched(field: Ranking, best: Iterable[int]) -> float:
    """Return the largest share of what the question asks that stands around one of the best: 0 nothing, 1 all of it.

    Words that name a time are no part of it: what happened then need not say so.
    """
    ask = field.ask
    idf = [
        0.0 if word in ask.dated else weight * (_NAME if word in ask.capital else 1.0)
        for word, weight in zip(field.pool.words, field.idf, strict=True)
    ]
    if not (total := sum(idf)):
        return 1.0
    none = [0] * len(idf)
    shares = []
    for number in best:
        author, counts = field.all[number].author.split(), field.wide.get(number, none)
        known = zip(idf, counts, field.pool.words, strict=True)
        shares.append(sum(weight for weight, count, word in known if count or word in author))
    return max(shares, default=0.0) / total


def _words(field: Ranking) -> list[float]:
    idf, weights, usual = field.idf, field.weights, field.pool.length
    record = _to_one([_bm25(idf, one.counts, one.length / usual) if any(one.counts) else 0.0 for one in field.all])
    if not weights.around:
        return record
    lengths = field.lengths
    windows = {number: field.window(number) for number in field.wide}
    average = usual * sum(map(len, windows.values())) / max(1, len(windows))
    around = [0.0] * len(lengths)
    for number, window in windows.items():
        around[number] = _bm25(idf, field.wide[number], sum([lengths[place] for place in window]) / average)
    around = _to_one(around)
    return [(1 - weights.around) * one + weights.around * other for one, other in zip(record, around, strict=True)]


def _bm25(idf: Sequence[float], counts: Sequence[int], length: float) -> float:
    room = _K1 * (1 - _B + _B * length)
    score = 0.0
    for weight, count in zip(idf, counts, strict=True):
        if count:
            score += weight * count * (_K1 + 1) / (count + room)
    return score


def _who(field: Ranking, score: list[float]) -> list[float]:
    ask, weights = field.ask, field.weights
    factors: dict[tuple[str, bool], float] = {}
    for one in field.all:
        if (key := (one.author, one.agent)) not in factors:
            factor = weights.assistant if ask.own and one.agent else 1.0
            factors[key] = factor * (1 + weights.author * _named(one.author, ask.names))
    return [had * factors[one.author, one.agent] for had, one in zip(score, field.all, strict=True)]


def _named(author: str, names: frozenset[str]) -> bool:
    return bool(author) and not names.isdisjoint(author.split())


def _lent(field: Ranking, score: list[float]) -> list[float]:
    padded = [*score, 0.0]  # a place of -1 is the last one, and nothing
    beside = zip(field.before, field.after, strict=True)
    lent = [max(padded[before], padded[after]) for before, after in beside]
    return [had + field.weights.beside * one for had, one in zip(score, lent, strict=True)]


def _when(day: float | None, ask: Ask, weights: Search) -> float:
    if day is None:
        return 1.0
    new = math.exp2(-max(0.0, ask.day - day) / _HALF)
    return 1 + weights.date * _near(day, ask) + weights.recent * new


def _near(day: float | None, ask: Ask) -> float:
    """Say from 0 to 1 how near a day is to a time that the question names."""
    if day is None:
        return 0.0
    return max((period.fits(day, after=_AFTER, before=_BEFORE) for period in ask.periods), default=0.0)


def _shared(field: Ranking, score: list[float]) -> list[float]:
    best: dict[tuple[str, str], float] = {}
    for one, had in zip(field.all, score, strict=True):
        if one.inside and had > best.get(one.session, 0.0):
            best[one.session] = had
    share = field.weights.session
    return [had + share * best.get(one.session, 0.0) for one, had in zip(field.all, score, strict=True)]


@functools.lru_cache(maxsize=4096)
def _day(time: str) -> float | None:
    ms = parse_ms(time[:10], utc=True)
    return None if ms is None else float(ms // DAY_MS)


def _to_one(values: list[float]) -> list[float]:
    most = max(values, default=0.0)
    return [value / most for value in values] if most > 0 else values
