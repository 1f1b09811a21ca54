"""Why a record is, or is not, among the answers to a query: its score step by step, as `holdfast why` shows it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.model.queries import Query
from holdfast.model.records import Record
from holdfast.model.settings import Search
from holdfast.recall import question, ranking
from holdfast.recall.answers import Load, in_order, said_by, says_once
from holdfast.storage.index import Pool

_FILTERED = "A filter leaves it out."


class Step(msgspec.Struct, frozen=True):
    step: str
    change: float
    """What it added or took."""
    score: float
    """The score behind it."""


class Explained(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    where: str
    rank: int = 0
    """Its place among the hits, from 1; 0 when it is none."""
    score: float = 0.0
    steps: tuple[Step, ...] = ()
    words: tuple[str, ...] = ()
    """The words of the query that stand in it."""
    missing: tuple[str, ...] = ()
    """Those that do not."""
    because: tuple[str, ...] = ()
    """What but its own words brought it."""
    matched: float = 0.0
    """How much of the query the best records answer, by their words, those around them and their meaning."""
    floor: float = 0.0
    """Below this, the answer is that nothing is relevant."""
    left_out: str = ""
    """Why it is no hit."""


def explain(
    record: Record, pools: list[Pool], near: ranking.Near, query: Query, weights: Search,
    load: Load, passes: Callable[[], bool],
) -> Explained:  # fmt: skip
    """Say what the ranking makes of a record; `passes` says whether the filters of the query let it through."""
    told = Explained(record.id, record.where, floor=weights.floor)
    ask = question.read(query.text, query.asked)
    for pool in pools:
        known = next((one for one in pool.candidates.values() if one.id == record.id), None)
        if known is None:
            continue
        ranked, matched = ranking.rank(pool, ask, weights, near)
        said = [word for word, count in zip(pool.words, known.counts, strict=False) if count]
        told = msgspec.structs.replace(
            told, words=tuple(said), missing=tuple(word for word in pool.words if word not in said),
            matched=round(matched, 4),
        )  # fmt: skip
        one = next((one for one in ranked if one.candidate.id == record.id), None)
        if one is None:
            left_out = "Nothing brings it here." if known.inside else _FILTERED
            return msgspec.structs.replace(told, left_out=left_out)
        rank, left_out = _place(one, record, in_order(pools, query, weights, near), query, load)
        return msgspec.structs.replace(
            told, rank=rank, score=round(one.score, 4), steps=tuple(_steps(one)), because=one.because,
            left_out=left_out,
        )  # fmt: skip
    if not passes():
        return msgspec.structs.replace(told, left_out=_FILTERED)
    return msgspec.structs.replace(
        told, left_out="No word of the query stands in it or beside it, or too many records fit better."
    )


def _place(
    one: ranking.Ranked, record: Record, order: list[ranking.Ranked], query: Query, load: Load
) -> tuple[int, str]:
    """Return the place of a record among the answers; where it has none, 0 and the reason."""
    ids = [other.candidate.id for other in order]
    if one.candidate.id not in ids:
        best = (other.candidate.id for other in order if other.candidate.session == one.candidate.session)
        if (better := next(best, None)) is not None:
            return 0, f"Of its session, {better} ranks better."
        return 0, "Too little of the query is found anywhere: below the floor."
    before = order[: ids.index(one.candidate.id)]
    if not says_once(query):
        return len(before) + 1, ""
    texts = {said_by(other): other.id for other in load([other.row for other in before]).values()}
    if twin := texts.get(said_by(record)):
        return 0, f"It says the same as {twin}, which ranks better."
    return len(texts) + 1, ""


def _steps(one: ranking.Ranked) -> list[Step]:
    result, before = [], 0.0
    for name, score in one.steps:
        result.append(Step(name, round(score - before, 4), round(score, 4)))
        before = score
    return result
