"""Ranking: from records that may answer a question to the order in which they do. A short pipeline of named steps.

    words      how well the record itself fits (BM25), and how well it fits together with what stands around it
    meaning    how near the record is to the question in meaning, where there are vectors
    all words  a record that has every word of the question
    who        the question names the author; what an assistant said counts less if the question is about the asker
    beside     an answer often stands next to the words of the question
    when       a time that the question names; and, mildly, what is new
    session    a part of the best score in the same session

Every step is a weight in the settings, and 0 leaves it out. What a step did to a record is told in `steps`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.asking import DAY_MS, Ask
from holdfast.index import Candidate, Pool
from holdfast.kinds import KINDS
from holdfast.records import Record
from holdfast.settings import Search
from holdfast.times import parse_ms

_K1, _B = 1.2, 0.5
_SPAN = 2
_AFTER, _BEFORE = 7.0, 3.0
"""Days in which the weight of a named time fades, behind it and before it."""
_HALF = 30.0
"""Days in which newness halves."""
_BEST = 10
_AUTHORS = ("speaker", "author", "sender_id", "sender", "from")
Steps = dict[str, list[float]]


class Ranked(msgspec.Struct, frozen=True):
    record: Record
    score: float
    steps: tuple[tuple[str, float], ...] = ()
    """What each step made of it: the score behind that step."""
    said: bool = True
    """Does it have a word of the question itself?"""


class Near(msgspec.Struct, frozen=True):
    """How near records are to a question in meaning, by their ids."""

    values: Mapping[str, float] = {}
    enough: float = 2.0
    """From here on, a record is about the question even if it has none of its words."""


class _Field:
    """The candidates of a pool in a row, and what stands beside each."""

    def __init__(self, pool: Pool, weights: Search) -> None:
        self.pool = pool
        self.weights = weights
        rows = list(pool.candidates)
        self.all: list[Candidate] = [pool.candidates[row] for row in rows]
        place = {row: number for number, row in enumerate(rows)}
        self.after = [place[pool.after[row]] if row in pool.after else -1 for row in rows]
        self.before = [-1] * len(rows)
        for number, other in enumerate(self.after):
            if other >= 0:
                self.before[other] = number
        self.idf = [math.log(1 + (pool.records - held + 0.5) / (held + 0.5)) for held in pool.held]
        self.wide = [self._around(number) for number in range(len(rows))]
        self.days = [_day(one.record.time) for one in self.all]

    def _around(self, number: int) -> tuple[tuple[float, ...], float]:
        """Return the counts and the length of a record together with what stands around it."""
        near = [number]
        for way in (self.before, self.after):
            place = number
            for _ in range(_SPAN):
                place = way[place]
                if place < 0:
                    break
                near.append(place)
        if len(near) == 1:
            return self.all[number].counts, self.all[number].length
        counts = tuple(map(sum, zip(*(self.all[place].counts for place in near), strict=True)))
        return counts, sum(self.all[place].length for place in near)


def rank(
    pool: Pool, ask: Ask, weights: Search, meaning: Mapping[str, float] | None = None
) -> tuple[list[Ranked], float]:
    """Return the candidates that pass the filters, best first, and how much of the question is found around the best.

    `meaning` has the nearness of records by their ids.
    """
    field = _Field(pool, weights)
    steps: Steps = {"words": _words(field)}
    score = steps["words"]
    if meaning and weights.meaning:
        near = _to_one([max(0.0, meaning.get(one.record.id, 0.0)) for one in field.all])
        steps["meaning"] = score = [had + weights.meaning * one for had, one in zip(score, near, strict=True)]
    if weights.all_words:
        whole = (bool(one.counts) and all(one.counts) for one in field.all)
        steps["all words"] = score = [had + weights.all_words * one for had, one in zip(score, whole, strict=True)]
    steps["who"] = score = [had * _who(one.record, ask, weights) for had, one in zip(score, field.all, strict=True)]
    if weights.beside:
        steps["beside"] = score = _lent(field, score)
    steps["when"] = score = [had * _when(day, ask, weights) for had, day in zip(score, field.days, strict=True)]
    if weights.session:
        steps["session"] = score = _shared(field, score)
    kept = [number for number, one in enumerate(field.all) if one.inside and score[number] > 0]
    kept.sort(key=lambda number: _place(field.all[number].record))
    kept.sort(key=lambda number: field.all[number].record.time, reverse=True)
    kept.sort(key=lambda number: -round(score[number], 9))
    ranked = [
        Ranked(
            field.all[number].record,
            score[number],
            tuple([(name, values[number]) for name, values in steps.items()]),
            any(field.all[number].counts),
        )
        for number in kept
    ]
    return ranked, _matched(field, kept[:_BEST])


def _matched(field: _Field, best: Iterable[int]) -> float:
    """Return the largest share of what the question asks that stands around one of the best: 0 nothing, 1 all of it."""
    total = sum(field.idf)
    shares = [sum(idf for idf, count in zip(field.idf, field.wide[number][0], strict=True) if count) for number in best]
    return max(shares, default=0.0) / total if total else 0.0


def _words(field: _Field) -> list[float]:
    weights = field.weights
    record = _to_one([_bm25(field.idf, one.counts, one.length / field.pool.length) for one in field.all])
    if not weights.around:
        return record
    average = sum(length for _, length in field.wide) / len(field.wide)
    around = _to_one([_bm25(field.idf, counts, length / average) for counts, length in field.wide])
    return [(1 - weights.around) * one + weights.around * other for one, other in zip(record, around, strict=True)]


def _bm25(idf: Sequence[float], counts: Sequence[float], length: float) -> float:
    room = _K1 * (1 - _B + _B * length)
    return sum(weight * count * (_K1 + 1) / (count + room) for weight, count in zip(idf, counts, strict=True) if count)


def _who(record: Record, ask: Ask, weights: Search) -> float:
    factor = 1.0
    if ask.own and record.fields.get("role") == "assistant":
        factor *= weights.assistant
    author = next((value for name in _AUTHORS if isinstance(value := record.fields.get(name), str)), "")
    if weights.author and author and not ask.names.isdisjoint(author.lower().replace(".", " ").split()):
        factor *= 1 + weights.author
    return factor


def _lent(field: _Field, score: list[float]) -> list[float]:
    padded = [*score, 0.0]  # a place of -1 is the last one, and nothing
    beside = zip(field.before, field.after, strict=True)
    lent = [max(padded[before], padded[after]) for before, after in beside]
    return [had + field.weights.beside * one for had, one in zip(score, lent, strict=True)]


def _when(day: float | None, ask: Ask, weights: Search) -> float:
    if day is None:
        return 1.0
    named = max((period.fits(day, after=_AFTER, before=_BEFORE) for period in ask.periods), default=0.0)
    new = math.exp2(-max(0.0, ask.day - day) / _HALF)
    return 1 + weights.date * named + weights.recent * new


def _shared(field: _Field, score: list[float]) -> list[float]:
    best: dict[Any, float] = {}
    groups = [session_of(one.record) for one in field.all]
    for group, one in zip(groups, score, strict=True):
        best[group] = max(best.get(group, 0.0), one)
    return [had + field.weights.session * best[group] for had, group in zip(score, groups, strict=True)]


def session_of(record: Record) -> tuple[str, str]:
    """Return what a record belongs to: its session, or the record itself where it stands alone."""
    kind = KINDS[record.kind]
    alone = kind.shape != "line" or bool(kind.key)
    return (record.path, record.id if alone else record.scope.session)


def _place(record: Record) -> tuple[str, str, str]:
    return record.path, record.order, record.id


def _day(time: str) -> float | None:
    ms = parse_ms(time)
    return None if ms is None else float(ms // DAY_MS)


def _to_one(values: list[float]) -> list[float]:
    most = max(values, default=0.0)
    return [value / most for value in values] if most > 0 else values
