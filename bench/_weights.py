"""Are the weights of the ranking good for conversations that were not used to choose them?

Each conversation is left out in turn. Every weight of the ranking is moved up and down, one after the other, as long as
that improves the scores of the other conversations. The conversation that was left out is then asked with these
weights. A set with one conversation is cut into five parts by its questions.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from bench import quality
from bench.quality import Question
from holdfast.model.queries import Ask, Query, read_question
from holdfast.model.settings import STEPS, Search
from holdfast.recall import ranking

PARTS = 5
FACTORS = (0.5, 1.5)
WEIGHTS = [name for name in STEPS if name not in ("floor", "priority")]
"""The floor suppresses answers instead of ranking them, and no record of such sets has a priority."""
MEASURES = ("turn R@10", "session R@5", "any@5", "all@5", "NDCG@10")
Scores = dict[str, float]
Weights = tuple[float, ...]


class Gathered(msgspec.Struct, frozen=True):
    """A question with all input of the ranking."""

    question: Question
    pools: list[Any]
    near: ranking.Near
    ask: Ask
    turns: dict[str, quality.Turn]
    part: str


class Bench:
    """The questions of a set, asked with any weights; results are cached."""

    def __init__(self, asked: list[Gathered]) -> None:
        self.asked = asked
        self.parts = sorted({one.part for one in asked})
        self._known: dict[Weights, list[Scores]] = {}

    def scores(self, weights: Weights) -> list[Scores]:
        if weights not in self._known:
            search = msgspec.convert(dict(zip(WEIGHTS, weights, strict=True)), Search)
            self._known[weights] = [_answer(one, search) for one in self.asked]
        return self._known[weights]

    def worth(self, weights: Weights, *, inside: Sequence[str]) -> float:
        """Return the mean of all measures over the questions of some parts."""
        chosen = [score for one, score in zip(self.asked, self.scores(weights), strict=True) if one.part in inside]
        return statistics.fmean(_mean(chosen, name) for name in MEASURES if name in chosen[0])

    def tuned(self, inside: Sequence[str]) -> Weights:
        """Move one weight after the other while that improves the scores of these parts."""
        best = shipped()
        for place in range(len(WEIGHTS)):
            near = [_moved(best, place, factor) for factor in FACTORS]
            best = max((best, *near), key=lambda weights: self.worth(weights, inside=inside))
        return best


def left_out(given: quality.Set, search: Search, tell: Callable[[int, int], None]) -> Scores:
    """Return the scores of every part with weights chosen on the others."""
    bench = Bench(list(_asked(given, search)))
    held: list[Scores] = []
    for number, part in enumerate(bench.parts, 1):
        found = bench.scores(bench.tuned([one for one in bench.parts if one != part]))
        held += [score for one, score in zip(bench.asked, found, strict=True) if one.part == part]
        tell(number, len(bench.parts))
    return {name: round(_mean(held, name), 2) for name in held[0]}


def shipped() -> Weights:
    return tuple(float(getattr(Search(), name)) for name in WEIGHTS)


def _moved(weights: Weights, place: int, factor: float) -> Weights:
    moved = min(1.0, weights[place] * factor) if WEIGHTS[place] == "around" else weights[place] * factor
    return (*weights[:place], moved, *weights[place + 1 :])


def _mean(scores: Sequence[Scores], name: str) -> float:
    return 100 * statistics.fmean(score[name] for score in scores if name in score)


def _asked(given: quality.Set, search: Search) -> Iterator[Gathered]:
    """Load each conversation and record the input of the ranking for each of its questions."""
    for corpus in given.corpora:
        with quality.fresh(search) as memory:
            turns = quality.load(memory, corpus.turns)
            for number, question in enumerate(corpus.questions):
                query = Query(text=question.question, asked=question.time or "", associate=True, limit=quality.TURNS)
                found = memory.with_candidates(query, lambda found: found)
                part = corpus.name if len(given.corpora) > 1 else f"part {number % PARTS + 1}"
                yield Gathered(question, found.pools, found.near, read_question(query.text, query.asked), turns, part)


def _answer(one: Gathered, search: Search) -> Scores:
    """Rank the recorded input; repeated lines are not left out here, which makes almost no difference."""
    found = [
        ranked for pool in one.pools if pool.candidates for ranked in ranking.rank(pool, one.ask, search, one.near)[0]
    ]
    turns = [one.turns[ranked.candidate.id] for ranked in found]
    sessions = list(dict.fromkeys(turn.session for turn in turns))
    return quality.scores(
        one.question,
        quality.Ranking(one.question.id, [turn.id for turn in turns[: quality.TURNS]], sessions[: quality.SESSIONS]),
    )
