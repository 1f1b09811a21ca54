"""Ranking: put the candidates of a question in order, in a short pipeline of named steps.

    words      how well the record matches (BM25), by itself and together with its neighbours
    meaning    how similar the record is to the question in meaning, where there are vectors
    who        more if the question names the author; less for an assistant if the question is about the asker
    beside     a part of the score of the better neighbour: an answer often follows the words of the question
    when       more near a time that the question names; mildly, more for new records
    priority   mildly, the priority that the record was given
    session    a part of the best score in the same session

Every step has a weight in the settings that can switch it off. `Ranked.steps` has the score after each step.
"""

from __future__ import annotations

import functools
import heapq
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from holdfast.model.queries import DAY_MS, Ask, Query, read_question
from holdfast.model.records import USUAL_PRIORITY
from holdfast.model.settings import Search
from holdfast.model.times import parse_ms
from holdfast.storage.results import Candidate, Pool

_K1, _B = 1.2, 0.5
_SPAN, _WINDOW_WORDS = 2, 150
"""A window is a record with up to this many neighbours on each side, and with at most this many words."""
_AFTER, _BEFORE = 7.0, 3.0
"""Days in which the weight of a named time falls to 1/e, after and before it."""
_HALF_LIFE = 30.0
"""Days in which recency halves."""
_BEST = 10
_NAME = 2.0
"""How much more a name counts than another word in the share of a question that was found."""
_NEAR_ENOUGH = 0.25
"""From this nearness on, `because` mentions the meaning or the time of a record."""


class Near(msgspec.Struct, frozen=True):
    """How similar records are to a question in meaning, by their ids."""

    values: Mapping[str, float] = {}
    enough: float = 2.0
    """From here on, a record is about the question even if they have no word in common."""


FAR = Near()


class Ranked(msgspec.Struct, frozen=True):
    """A candidate in its place."""

    row: int
    candidate: Candidate
    score: float
    ranking: Ranking
    number: int

    @property
    def steps(self) -> list[tuple[str, float]]:
        """The score after each step."""
        return [(name, values[self.number]) for name, values in self.ranking.steps.items()]

    @property
    def because(self) -> tuple[str, ...]:
        """Why the score is higher than that of its own words."""
        return self.ranking.because(self.number)


class Ranking:
    """The candidates of a pool, their neighbours, and their scores after each step."""

    def __init__(self, pool: Pool, ask: Ask, weights: Search, near: Near = FAR) -> None:
        self.pool, self.ask, self.weights = pool, ask, weights
        self.rows = list(pool.candidates)
        self.all: list[Candidate] = list(pool.candidates.values())
        place = {row: number for number, row in enumerate(self.rows)}
        self.after, self.before = [-1] * len(self.rows), [-1] * len(self.rows)
        for row, other in pool.after.items():
            self.after[place[row]], self.before[place[other]] = place[other], place[row]
        self.idf = [math.log(1 + (pool.records - held + 0.5) / (held + 0.5)) for held in pool.held]
        self.counts: list[Sequence[int]] = [one.counts if any(one.counts) else b"" for one in self.all]
        self.around: list[Sequence[int]] = []
        """How often each word occurs in the window of each record; empty when none does."""
        self.times: dict[str, float] = {}
        """How near each date is to a time that the question names."""
        self.steps: dict[str, list[float]] = {"words": self._words()}
        self.score = self.steps["words"]
        if near.values and weights.meaning:
            similar = _to_one([max(0.0, near.values.get(one.id, 0.0)) for one in self.all])
            self._step("meaning", [had + weights.meaning * one for had, one in zip(self.score, similar, strict=True)])
        self._who_and_beside()
        self._when()
        if weights.priority and {one.priority for one in self.all} != {USUAL_PRIORITY}:
            more = [1 + weights.priority * (one.priority - USUAL_PRIORITY) / USUAL_PRIORITY for one in self.all]
            self._step("priority", list(map(operator.mul, self.score, more)))
        if weights.session:
            self._session()

    def _step(self, name: str, score: list[float]) -> None:
        self.steps[name] = self.score = score

    def _words(self) -> list[float]:
        lengths, usual = [one.length for one in self.all], self.pool.length
        record = _bm25(self.idf, self.counts, [length / usual for length in lengths])
        sizes, records = self._windows(lengths)
        share = self.weights.around
        if not share:
            return record
        average = usual * records / max(1, len(self.all) - self.around.count(b""))
        around = _bm25(self.idf, self.around, [size / average for size in sizes] if records else sizes)
        return [(1 - share) * one + share * other for one, other in zip(record, around, strict=True)]

    def _windows(self, lengths: Sequence[int]) -> tuple[Sequence[float], int]:
        """Set `around`; return the words in each window, and how many records all windows with a match have."""
        before, after, counts = self.before, self.after, self.counts
        if not self.pool.after:
            self.around = self.counts
            return lengths, len(counts) - counts.count(b"")
        sizes, records = list[float](), 0
        for number, length in enumerate(lengths):
            window, room = [number], _WINDOW_WORDS - length
            back, ahead = before[number], after[number]
            for _ in range(_SPAN):
                if back >= 0 and lengths[back] <= room:
                    window.append(back)
                    room, back = room - lengths[back], before[back]
                else:
                    back = -1
                if ahead >= 0 and lengths[ahead] <= room:
                    window.append(ahead)
                    room, ahead = room - lengths[ahead], after[ahead]
                else:
                    ahead = -1
            found: Sequence[int] = b""
            for place in window:
                if counts[place]:
                    found = list(map(operator.add, found, counts[place])) if found else counts[place]
            self.around.append(found)
            sizes.append(_WINDOW_WORDS - room)
            records += len(window) if found else 0
        return sizes, records

    def _who_and_beside(self) -> None:
        ask, weights = self.ask, self.weights
        factors: dict[tuple[str, bool], float] = {}
        for one in self.all:
            if (one.author, one.agent) not in factors:
                factor = weights.assistant if ask.own and one.agent else 1.0
                named = not ask.names.isdisjoint(one.author.split())
                factors[one.author, one.agent] = factor * (1 + weights.author * named)
        self._step("who", [had * factors[one.author, one.agent] for had, one in zip(self.score, self.all, strict=True)])
        if weights.beside:
            padded = [*self.score, 0.0]  # a neighbour of -1 is the last one, which has no score
            beside = [max(padded[one], padded[other]) for one, other in zip(self.before, self.after, strict=True)]
            self._step("beside", [had + weights.beside * one for had, one in zip(self.score, beside, strict=True)])

    def _when(self) -> None:
        ask, weights = self.ask, self.weights
        factors: dict[str, float] = {}
        for date in {one.time[:10] for one in self.all}:
            day = _day(date)
            self.times[date], factors[date] = 0.0, 1.0
            if day is not None:
                for period in ask.periods:
                    self.times[date] = max(self.times[date], period.fits(day, after=_AFTER, before=_BEFORE))
                recent = math.exp2(-max(0.0, ask.day - day) / _HALF_LIFE)
                factors[date] = 1 + weights.date * self.times[date] + weights.recent * recent
        self._step("when", [had * factors[one.time[:10]] for had, one in zip(self.score, self.all, strict=True)])

    def _session(self) -> None:
        best: dict[tuple[str, str], float] = {}
        for one, had in zip(self.all, self.score, strict=True):
            if one.inside and had > best.get(one.session, 0.0):
                best[one.session] = had
        share = self.weights.session
        lent = [share * best.get(one.session, 0.0) for one in self.all]
        self._step("session", list(map(operator.add, self.score, lent)))

    def best(self) -> list[int]:
        """Return the candidates that pass the filters by score; among equals the newest is first, then by place."""
        every, score = self.all, self.score
        kept = [number for number, one in enumerate(every) if one.inside and score[number] > 0]
        order = [-round(one, 9) for one in score]
        if len(set(map(order.__getitem__, kept))) < len(kept):
            kept.sort(key=lambda number: every[number].place)
            kept.sort(key=lambda number: every[number].time, reverse=True)
        kept.sort(key=order.__getitem__)
        return kept

    def matched(self, best: Iterable[int]) -> float:
        """Return the largest share of the question that occurs in a window of the best records, from 0 to 1.

        Words that name a time do not count: a record of that time need not contain them.
        """
        words, ask = self.pool.words, self.ask
        idf = [
            0.0 if word in ask.dated else weight * (_NAME if word in ask.capital else 1.0)
            for word, weight in zip(words, self.idf, strict=True)
        ]
        if not (total := sum(idf)):
            return 1.0
        most = 0.0
        for number in best:
            author, counts, share = self.all[number].author.split(), self.around[number], 0.0
            for place, word in enumerate(words):
                if (counts and counts[place]) or word in author:
                    share += idf[place]
            most = max(most, share)
        return most / total

    def because(self, number: int) -> tuple[str, ...]:
        """Return why the score of a record is higher than that of its own words."""
        one, steps, reasons = self.all[number], self.steps, list[str]()
        if self.weights.author and not self.ask.names.isdisjoint(one.author.split()):
            reasons.append(f"by {one.author}")
        if not self.counts[number]:
            if "meaning" in steps and steps["meaning"][number] - steps["words"][number] >= _NEAR_ENOUGH:
                reasons.append("near in meaning")
            beside = [place for place in (self.before[number], self.after[number]) if place >= 0]
            if beside:
                reasons.append(f"beside {self.all[max(beside, key=steps['who'].__getitem__)].id}")
        if self.weights.date and self.times[one.time[:10]] >= _NEAR_ENOUGH:
            reasons.append("of that time")
        if self.score[number] > 2 * steps.get("priority", steps["when"])[number]:
            reasons.append("in the same session")
        return tuple(reasons)


def rank(pool: Pool, ask: Ask, weights: Search, near: Near = FAR) -> tuple[Iterator[Ranked], float]:
    """Return the candidates that pass the filters, best first, and how much of the question the best ones answer."""
    ranking = Ranking(pool, ask, weights, near)
    every, best = ranking.all, ranking.best()
    ranked = (Ranked(ranking.rows[number], every[number], ranking.score[number], ranking, number) for number in best)
    top = best[:_BEST]
    nearest = max([near.values.get(every[number].id, 0.0) for number in top], default=0.0)
    if weights.meaning and nearest >= near.enough:
        return ranked, 1.0
    return ranked, ranking.matched(top)


def in_order(pools: Sequence[Pool], query: Query, weights: Search, near: Near = FAR) -> Iterator[Ranked]:
    """Rank all pools of a query together; for the level `sessions`, yield only the best record of each session."""
    ask = read_question(query.text, query.asked)
    found: list[Iterator[Ranked]] = []
    for pool in pools:
        if pool.candidates:
            ranked, matched = rank(pool, ask, weights, near)
            if not query.associate:
                found.append(one for one in ranked if any(one.candidate.counts))
            elif matched >= weights.floor:
                found.append(ranked)
    sessions: set[tuple[str, str]] = set()
    for one in heapq.merge(*found, key=lambda one: -one.score):
        if query.level == "records":
            yield one
        elif one.candidate.session not in sessions:
            sessions.add(one.candidate.session)
            yield one


def _bm25(idf: Sequence[float], counts: Sequence[Sequence[int]], lengths: Sequence[float]) -> list[float]:
    """Return the BM25 scores of texts, divided by the best one; lengths are relative to the average."""
    scores = []
    for found, length in zip(counts, lengths, strict=True):
        score = 0.0
        if found:
            room = _K1 * (1 - _B + _B * length)
            for weight, count in zip(idf, found, strict=True):
                if count:
                    score += weight * count * (_K1 + 1) / (count + room)
        scores.append(score)
    return _to_one(scores)


@functools.lru_cache(maxsize=4096)
def _day(date: str) -> float | None:
    ms = parse_ms(date, utc=True)
    return None if ms is None else float(ms // DAY_MS)


def _to_one(values: list[float]) -> list[float]:
    most = max(values, default=0.0)
    return [value / most for value in values] if most > 0 else values
