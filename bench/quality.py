"""`scripts/bench quality SET.json`: how good recall is, measured with conversations and questions whose answers are known.

A set is JSON: `{"name", "corpora": [{"name", "turns": [{"id", "session", "time", "speaker", "role", "text"}],
"questions": [{"id", "question", "time", "category", "turns": [ids], "sessions": [ids]}]}]}`. Each corpus is loaded into
a fresh memory as chat messages, with a channel per session. Questions are asked through the `recall` tool, and the
answers are compared only after all questions were asked.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

import click
import msgspec

from bench.harness import temporary_tenant
from holdfast.cli import show
from holdfast.cli.main import command, given_root, main, open_root
from holdfast.errors import Invalid
from holdfast.memory import Memory, open_memory
from holdfast.model.settings import FILE, STEPS, Search

TURNS, SESSIONS = 50, 20
"""The limits of the two recalls of each question."""
FOREIGN = 100
"""The number of foreign questions for each corpus."""
_LOG = "user/memory/history.jsonl"
_BATCH = 5_000
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
    """The answer to a question: ids of turns and of sessions, best first."""

    question: str
    turns: list[str]
    sessions: list[str]
    ms: float = 0.0


class Asked(msgspec.Struct, frozen=True):
    """All answers in the order of the questions, and how many foreign questions got an answer or none."""

    rankings: list[Ranking]
    foreign: int = 0
    foreign_silent: int = 0


class Measured(msgspec.Struct, frozen=True):
    name: str
    questions: int
    scores: dict[str, float]
    """In percent."""
    categories: dict[str, dict[str, float]]
    silent: int
    """Questions without an answer."""
    p50_ms: float
    p95_ms: float
    foreign: int = 0
    """Questions of other conversations, to which every answer is wrong."""
    foreign_silent: int = 0


@command()
@click.argument("set", type=click.File("rb"))
@click.option("--out", type=click.File("w", encoding="utf-8"), help="Write the answers there, one line per question.")
@click.option("--lexical", is_flag=True, help="Search by words only, even with an embedder.")
@click.option("--without", multiple=True, type=click.Choice(list(STEPS)), help="Leave out this step of the ranking.")
@click.option("--foreign", is_flag=True, help="Also ask questions of other conversations.")
@click.option("--store", default="", help="Use this database, postgresql://…, with a tenant per conversation.")
@click.option("--other", multiple=True, type=click.File("rb"), help="With --foreign: also questions of this set.")
def recall(set: IO[bytes], out: IO[str] | None, **options: Any) -> None:
    """Ask the questions of SET, a JSON file, and score the answers.

    Every conversation goes into a fresh memory, which is removed again. R@k is the share of right results among the
    first k, any@k and all@k whether any or all right sessions are, NDCG@10 weighs earlier places more. The settings in
    [search] are those of the root if one is given. The right answer to a question of another conversation is that
    nothing is relevant; --foreign measures how often it was given.
    """
    given, search = read(set.read()), Search()
    if given_root():
        with open_root() as memory:
            search = memory.settings.search
    off = {*options["without"], *(["meaning"] if options["lexical"] else [])}
    search = msgspec.structs.replace(search, **{name: STEPS[name] for name in off})
    others = [read(file.read()) for file in options["other"]]
    with show.progress("asking") as progress:
        asked = run(given, search, progress, others if options["foreign"] or others else None, options["store"])
    for one in asked.rankings if out else ():
        line = {"question": one.question, "turns": one.turns, "sessions": one.sessions}
        click.echo(msgspec.json.encode(line).decode(), file=out)
    measured = measure(given, asked)
    show.json_and_exit(measured)
    names = list(measured.scores)
    rows = [
        [label, *(f"{scores[name]:.1f}" if name in scores else "" for name in names)]
        for label, scores in ({"all": measured.scores} | measured.categories).items()
    ]
    show.table((measured.name, *names), rows)
    click.echo(
        f"{measured.questions} questions, {measured.silent} of them without an answer;"
        f" {measured.p50_ms} ms each at the median, {measured.p95_ms} ms at the 95th percentile."
    )
    if measured.foreign:
        click.echo(f"{measured.foreign_silent} of {measured.foreign} questions of other conversations had no answer.")


def read(data: bytes) -> Set:
    try:
        return msgspec.json.decode(data, type=Set)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Invalid(f"This is no set of questions: {error}.", "See scripts/bench quality --help.") from None


def run(
    given: Set, search: Search, progress: Progress | None = None, others: Sequence[Set] | None = None, store: str = ""
) -> Asked:
    """Load every corpus into a memory of its own and ask its questions; the memories are removed.

    With `others`, even an empty list, each corpus is also asked questions of the other corpora and of those sets.
    `store` is the address of a database for the memories, each as a tenant.
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


def _foreign(given: Set, others: Sequence[Set] | None, corpus: Corpus) -> list[Question]:
    """Return evenly chosen questions of other corpora, as if asked at the end of this one."""
    if others is None:
        return []
    apart = [one for one in given.corpora if one is not corpus] + [one for other in others for one in other.corpora]
    questions = [question for one in apart for question in one.questions]
    end = max((turn.time for turn in corpus.turns), default=None)
    chosen = questions[:: max(1, math.ceil(len(questions) / FOREIGN))]
    return [msgspec.structs.replace(question, time=end) for question in chosen]


@contextlib.contextmanager
def fresh(search: Search, store: str = "") -> Iterator[Memory]:
    """Make an empty memory with these settings, in files or as a tenant of a database; remove it afterwards."""
    values = msgspec.structs.asdict(search).items()
    settings = "[search]\n" + "".join(f"{name} = {msgspec.json.encode(value).decode()}\n" for name, value in values)
    with contextlib.ExitStack() as stack:
        if store:
            root = stack.enter_context(temporary_tenant(store, settings))
        else:
            root = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-"))
            with open(os.path.join(root, FILE), "w", encoding="utf-8") as file:
                file.write(settings)
        yield stack.enter_context(open_memory(root))


def load(memory: Memory, turns: Sequence[Turn]) -> dict[str, Turn]:
    """Store the turns as messages; return the turn of each message id."""
    result: dict[str, Turn] = {}
    for start in range(0, len(turns), _BATCH):
        batch = turns[start : start + _BATCH]
        names = {"role": "role", "content": "text", "timestamp": "time", "channel": "session", "sender_id": "speaker"}
        lines = [{name: getattr(one, field) for name, field in names.items()} for one in batch]
        result |= zip(memory.add(_LOG, lines, time="timestamp", durable=False), batch, strict=True)
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


def measure(given: Set, asked: Asked) -> Measured:
    """Compare the answers with the right ones."""
    rankings = asked.rankings
    questions = [question for corpus in given.corpora for question in corpus.questions]
    scored = [(one.category, scores(one, ranking)) for one, ranking in zip(questions, rankings, strict=True)]
    times = sorted(ranking.ms for ranking in rankings) or [0.0]
    names = sorted({category for category, _ in scored if category})
    return Measured(
        name=given.name,
        questions=len(questions),
        scores=_means(found for _, found in scored),
        categories={name: _means(found for category, found in scored if category == name) for name in names},
        silent=sum(not ranking.turns for ranking in rankings),
        p50_ms=round(statistics.median(times), 1),
        p95_ms=round(times[min(len(times) - 1, int(len(times) * 0.95))], 1),
        foreign=asked.foreign,
        foreign_silent=asked.foreign_silent,
    )


def scores(question: Question, ranking: Ranking) -> dict[str, float]:
    """Return the scores of one answer, each from 0 to 1."""
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


if __name__ == "__main__":
    main(recall, "scripts/bench quality")
