"""How good recall is: conversations with questions whose answers are known, asked through the tool that agents call.

A set is JSON: `{"name", "corpora": [{"name", "turns": [{"id", "session", "time", "speaker", "role", "text"}],
"questions": [{"id", "question", "time", "category", "turns": [ids], "sessions": [ids]}]}]}`. Each corpus goes into a
fresh memory as chat messages, a session being a channel. What the right answers are is looked at only when all
questions have been asked.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from holdfast.errors import Invalid
from holdfast.memory import Memory, open_memory
from holdfast.model.settings import FILE, Search
from holdfast.roots import driver

TURNS, SESSIONS = 50, 20
"""How many of each are asked for."""
FOREIGN = 100
"""So many questions of other conversations are put to each one."""
_LOG = "user/memory/history.jsonl"
_PART = 5_000
Progress = Callable[[int, int], None]


class Turn(msgspec.Struct, frozen=True):
    id: str
    session: str
    time: str
    speaker: str
    role: str
    text: str


class Question(msgspec.Struct, frozen=True):
    id: str
    question: str
    time: str | None = None
    category: str = ""
    turns: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()


class Corpus(msgspec.Struct, frozen=True):
    name: str
    turns: tuple[Turn, ...]
    questions: tuple[Question, ...]


class Set(msgspec.Struct, frozen=True):
    name: str
    corpora: tuple[Corpus, ...]


class Ranking(msgspec.Struct, frozen=True):
    """What recall answered to a question: ids of turns and of sessions, best first."""

    question: str
    turns: list[str]
    sessions: list[str]
    ms: float = 0.0


class Asked(msgspec.Struct, frozen=True):
    """All answers, in the order of the questions, and how many foreign questions had one and had none."""

    rankings: list[Ranking]
    foreign: int = 0
    foreign_silent: int = 0


class Measured(msgspec.Struct, frozen=True):
    name: str
    questions: int
    scores: dict[str, float]
    """In hundredths."""
    categories: dict[str, dict[str, float]]
    silent: int
    """Questions to which the answer was that nothing is relevant."""
    p50_ms: float
    p95_ms: float
    foreign: int = 0
    """Questions of other conversations that were asked as well; the right answer is that nothing is relevant."""
    foreign_silent: int = 0


def read(data: bytes) -> Set:
    """Read a set of conversations and questions."""
    try:
        return msgspec.json.decode(data, type=Set)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Invalid(f"This is no set of questions: {error}.", "See holdfast bench recall --help.") from None


def run(
    given: Set, search: Search, progress: Progress | None = None, others: Sequence[Set] | None = None, store: str = ""
) -> Asked:
    """Load every corpus into a memory of its own and ask its questions; nothing is left behind.

    With `others`, even none, each corpus is also asked questions of the other corpora of the set and of those sets.
    `store` is the address of a database in which the memories are to be, each as a tenant.
    """
    asked, far = list[Ranking](), list[Ranking]()
    foreign = {corpus.name: _foreign(given, others, corpus) for corpus in given.corpora}
    total = sum(len(corpus.questions) + len(foreign[corpus.name]) for corpus in given.corpora)
    for corpus in given.corpora:
        with fresh(search, store) as memory:
            turns = load(memory, corpus.turns)
            for answers, questions in ((asked, corpus.questions), (far, foreign[corpus.name])):
                for question in questions:
                    answers.append(_ask(memory, question, turns))
                    if progress:
                        progress(len(asked) + len(far), total)
    return Asked(asked, len(far), sum(not one.turns for one in far))


@contextlib.contextmanager
def fresh(search: Search, store: str = "") -> Iterator[Memory]:
    """Give an empty memory with these settings, in files or as a tenant of a database; nothing is left of it."""
    told = msgspec.structs.asdict(search).items()
    settings = "".join(f"{name} = {msgspec.json.encode(value).decode()}\n" for name, value in told)
    with _place(store, f"[search]\n{settings}") as root, open_memory(root) as memory:
        yield memory


@contextlib.contextmanager
def _place(store: str, settings: str) -> Iterator[str]:
    if store:
        with driver():
            from holdfast.storage.postgres import tenants  # few need it
        with tenants.passing(store, settings) as address:
            yield address
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as root:
        with open(os.path.join(root, FILE), "w", encoding="utf-8") as file:
            file.write(settings)
        yield root


def _foreign(given: Set, others: Sequence[Set] | None, corpus: Corpus) -> list[Question]:
    """Return questions of other corpora, evenly chosen, as if they were asked when this one ends."""
    if others is None:
        return []
    apart = [one for one in given.corpora if one is not corpus] + [one for other in others for one in other.corpora]
    questions = [question for one in apart for question in one.questions]
    end = max((turn.time for turn in corpus.turns), default=None)
    chosen = questions[:: max(1, math.ceil(len(questions) / FOREIGN))]
    return [msgspec.structs.replace(question, time=end) for question in chosen]


def measure(given: Set, asked: Asked) -> Measured:
    """Compare what was answered with what is right."""
    rankings = asked.rankings
    questions = [question for corpus in given.corpora for question in corpus.questions]
    scored = [(one.category, scores(one, ranking)) for one, ranking in zip(questions, rankings, strict=True)]
    times = sorted(ranking.ms for ranking in rankings) or [0.0]
    names = sorted({category for category, _ in scored if category})
    return Measured(
        given.name, len(questions), _means(found for _, found in scored),
        {name: _means(found for category, found in scored if category == name) for name in names},
        sum(not ranking.turns for ranking in rankings),
        round(statistics.median(times), 1), round(times[min(len(times) - 1, int(len(times) * 0.95))], 1),
        asked.foreign, asked.foreign_silent,
    )  # fmt: skip


def load(memory: Memory, turns: Sequence[Turn]) -> dict[str, Turn]:
    """Keep the turns as messages; return which message is which turn."""
    result: dict[str, Turn] = {}
    for start in range(0, len(turns), _PART):
        part = turns[start : start + _PART]
        lines = [
            {"role": one.role, "content": one.text, "timestamp": one.time, "channel": one.session,
             "sender_id": one.speaker} for one in part
        ]  # fmt: skip
        ids = memory.add(_LOG, lines, time="timestamp", durable=False)
        result |= zip(ids, part, strict=True)
    memory.refresh()
    if memory.embedder:
        memory.embed()
    return result


def _ask(memory: Memory, question: Question, turns: dict[str, Turn]) -> Ranking:
    given = {"query": question.question, "budget": 0} | ({"asked": question.time} if question.time else {})
    begin = time.perf_counter()
    reply = memory.call("recall", given | {"limit": TURNS})
    spent = (time.perf_counter() - begin) * 1000
    best = memory.call("recall", given | {"limit": SESSIONS, "level": "sessions"})
    found, sessions = ([turns[hit["id"]] for hit in one.get("hits", ())] for one in (reply, best))
    return Ranking(question.id, [one.id for one in found], [one.session for one in sessions], round(spent, 2))


def scores(question: Question, ranking: Ranking) -> dict[str, float]:
    """Return how good one answer is, from 0 to 1 in each way."""
    result: dict[str, float] = {}
    if gold := set(question.turns):
        result |= {f"turn R@{k}": len(gold.intersection(ranking.turns[:k])) / len(gold) for k in (5, 10)}
    if gold := set(question.sessions):
        hits = {k: len(gold.intersection(ranking.sessions[:k])) for k in (5, 10)}
        result |= {f"session R@{k}": hits[k] / len(gold) for k in hits}
        result |= {"any@5": float(hits[5] > 0), "all@5": float(hits[5] == len(gold))}
        ideal = sum(1 / math.log2(place + 2) for place in range(min(10, len(gold))))
        gain = sum(1 / math.log2(place + 2) for place, one in enumerate(ranking.sessions[:10]) if one in gold)
        result["NDCG@10"] = gain / ideal
    return result


def _means(found: Iterable[dict[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for one in found:
        for name, value in one.items():
            values.setdefault(name, []).append(value)
    return {name: round(100 * statistics.fmean(numbers), 2) for name, numbers in values.items()}
