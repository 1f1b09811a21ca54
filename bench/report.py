"""The report: measures how good and how fast recall is, and writes the results as a page.

    scripts/bench report SET.json [SET.json …] [--quick] [--only PART] [--store ADDRESS] [--from FILE]

The parts are recall, steps, weights, speed and peers. The measurements go to `.bench/report.json`. The page, the plots
and a copy of the figures are made from that file, so `--from` writes them again without measuring. A section of the page
is a function of the measurements: to add one, add it to `SECTIONS`. With `--quick` everything goes to `.bench/`, because
small figures mean little.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

import holdfast
from bench import _plain, _weights, peers, quality
from bench.harness import Words
from bench.recall import CHANNEL, HOW, Speed, measure
from holdfast.errors import HoldfastError, Invalid
from holdfast.model.settings import STEPS, Search
from holdfast.recall import embedders

FIGURES = ".bench/report.json"
PAGE, PLOTS, COPY = "benchmarks.md", "plots", "plots/report.json"
PARTS = ("recall", "steps", "weights", "speed", "peers")
WITHOUT_SETS = ("speed", "peers")
SIZES, QUICK_SIZES, QUICK_QUESTIONS = (1_000, 10_000, 100_000), (300, 1_000), 25


class Way(NamedTuple):
    """A form of recall: its name, and the command that measures it again."""

    name: str
    command: str
    search: Search


WAYS = {
    "none": Way("by words", "scripts/bench quality SET.json --lexical", Search(meaning=STEPS["meaning"])),
    "semantic": Way("with `semantic`", "HOLDFAST_SEARCH_EMBEDDER=semantic scripts/bench quality SET.json", Search(embedder="semantic")),
    "quality": Way("with `quality`", "HOLDFAST_SEARCH_EMBEDDER=quality scripts/bench quality SET.json", Search(embedder="quality")),
}  # fmt: skip
SHARED = "postgres"
EVERY = WAYS | {
    SHARED: Way("with `semantic`, on PostgreSQL", "scripts/bench quality SET.json --store postgresql://…", Search(embedder="semantic")),
}  # fmt: skip
"""Also those that need more than an extra."""
USUAL = "semantic"
"""The embedder with which steps are left out."""
PLAIN = "plain FTS5"


class Published(NamedTuple):
    what: str
    source: str
    scores: Mapping[str, float]


class Source(NamedTuple):
    """A public set: its source, its scores, and what others published for the whole set."""

    title: str
    origin: str
    whole: str
    shown: tuple[str, ...]
    published: tuple[Published, ...]


SOURCES = {
    "locomo": Source(
        "LoCoMo", "[LoCoMo](https://github.com/snap-research/locomo) (CC BY-NC 4.0)", "all 1,982 questions",
        ("turn R@5", "turn R@10", "session R@5", "session R@10"),
        (
            Published("best published", "the LoCoMo paper; MemPalace",
                      {"turn R@5": 58.8, "turn R@10": 67.5, "session R@5": 83.7, "session R@10": 92.4}),
        ),
    ),
    "longmemeval": Source(
        "LongMemEval", "[LongMemEval](https://github.com/xiaowu0162/LongMemEval) (MIT)", "one pool of 940 sessions",
        ("any@5", "all@5", "NDCG@10"),
        (
            Published("best published", "without a language model, on this pool", {"any@5": 79.0}),
            Published("a vector a session", "MiniLM over whole sessions, as MemPalace does",
                      {"any@5": 70.9, "all@5": 42.8, "NDCG@10": 53.6}),
        ),
    ),
}  # fmt: skip
"""By the start of a set's name. Figures of others are only here."""


class Asked(msgspec.Struct, frozen=True):
    """One set: its size, and the results of recall."""

    name: str
    corpora: int
    sessions: int
    turns: int
    questions: int
    ways: dict[str, quality.Measured] = {}
    without: dict[str, dict[str, float]] = {}
    """The scores with one step left out, by step."""
    left_out: dict[str, float] = {}
    """The scores of each conversation with weights chosen on the others."""

    @property
    def source(self) -> Source | None:
        return next((source for start, source in SOURCES.items() if self.name.startswith(start)), None)

    @property
    def title(self) -> str:
        return self.source.title if self.source else self.name

    @property
    def shown(self) -> tuple[str, ...]:
        scores = next(iter(self.ways.values())).scores
        return self.source.shown if self.source else tuple(scores)


class Report(msgspec.Struct, frozen=True):
    """All measurements."""

    version: str
    when: str
    python: str
    cores: int
    quick: bool = False
    sets: list[Asked] = []
    speed: list[Speed] = []
    load: float = 0.0
    """How many processes used the processors during the measurement of speed, this one included."""
    servers: list[peers.Peer] = []
    commands: list[peers.Command] = []


# measuring


def main() -> None:
    given = _arguments()
    try:
        report = _read(given.figures) if given.figures else _measured(given)
        write(report, ".bench" if report.quick else "docs")
    except (HoldfastError, OSError) as error:
        sys.exit(str(error))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench report", description="Measure recall and write docs/benchmarks.md."
    )
    parser.add_argument(
        "sets", nargs="*", metavar="SET.json", help="conversations with questions; see: scripts/bench quality --help"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few questions and small sizes, to see that it runs; the page goes to .bench/",
    )
    parser.add_argument(
        "--only", choices=PARTS, help=f"measure this part anew; take the rest from {FIGURES}, else docs/{COPY}"
    )
    parser.add_argument(
        "--from", dest="figures", metavar="FILE", help="measure nothing; write the page from these figures"
    )
    parser.add_argument("--store", default="", help="also ask in this database, postgresql://…")
    given = parser.parse_args()
    if not given.figures and not given.sets and given.only not in WITHOUT_SETS:
        parser.error("name the sets, or --from FILE")
    return given


def _measured(given: argparse.Namespace) -> Report:
    """Measure the requested parts; results are saved after each part."""
    parts = (given.only,) if given.only else PARTS
    now = time.strftime("%Y-%m-%d", time.gmtime())
    report = Report(holdfast.__version__, now, platform.python_version(), os.cpu_count() or 1, given.quick)
    before = FIGURES if os.path.exists(FIGURES) else f"docs/{COPY}"
    if given.only and os.path.exists(before):
        report = msgspec.structs.replace(_read(before), quick=given.quick)
    sets = [_set(path, given.quick) for path in given.sets]
    if "recall" in parts:
        report = _kept(report, sets=[_asked(one, sets, given.quick, given.store) for one in sets])
    if "steps" in parts:
        by_name = {one.name: one for one in sets}
        report = _kept(report, sets=[_without(by_name.get(one.name), one) for one in report.sets])
    if "weights" in parts:
        by_name = {one.name: one for one in sets}
        report = _kept(report, sets=[_held_out(by_name.get(one.name), one) for one in report.sets])
    if "speed" in parts:
        sizes = QUICK_SIZES if given.quick else SIZES
        speed = [_speed(size, name) for name in ("none", USUAL) if _is_there(name) for size in sizes]
        report = _kept(report, speed=speed, load=round(os.getloadavg()[2], 1))
    if "peers" in parts:
        report = _kept(report, servers=peers.measure(given.quick), commands=peers.alone())
    return report


def _kept(report: Report, **changed: object) -> Report:
    report = msgspec.structs.replace(report, **changed)
    _save(FIGURES, report)
    return report


def _save(path: str, report: Report) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def _read(path: str) -> Report:
    with open(path, "rb") as file:
        try:
            return msgspec.json.decode(file.read(), type=Report)
        except msgspec.MsgspecError as error:
            raise Invalid(f"{path} has no figures of a report: {error}.", "Measure anew, without --from.") from None


def _set(path: str, quick: bool) -> quality.Set:
    with open(path, "rb") as file:
        given = quality.read(file.read())
    if not quick:
        return given
    first = given.corpora[0]
    return quality.Set(given.name, (msgspec.structs.replace(first, questions=first.questions[:QUICK_QUESTIONS]),))


def _asked(given: quality.Set, sets: Sequence[quality.Set], quick: bool, store: str) -> Asked:
    turns = [turn for corpus in given.corpora for turn in corpus.turns]
    sessions = {(corpus.name, turn.session) for corpus in given.corpora for turn in corpus.turns}
    questions = sum(len(corpus.questions) for corpus in given.corpora)
    ways = {PLAIN: quality.measure(given, _plain.run(given))}
    for name, way in WAYS.items():
        if _is_there(name) and not (quick and name == "quality"):  # embedding a set takes minutes
            others = [one for one in sets if one is not given]
            ways[name] = _run(given, way.search, HOW[name], others)
    if store and USUAL in ways:
        ways[SHARED] = _run(given, EVERY[SHARED].search, "on PostgreSQL", store=store)
    return Asked(given.name, len(given.corpora), len(sessions), len(turns), questions, ways)


def _without(given: quality.Set | None, asked: Asked) -> Asked:
    """Leave out each step in turn; without meaning, recall is by words."""
    if given is None or USUAL not in asked.ways:
        return asked
    scores = {"meaning": asked.ways["none"].scores}
    for step, off in STEPS.items():
        if step != "meaning":
            search = msgspec.structs.replace(WAYS[USUAL].search, **{step: off})
            scores[step] = _run(given, search, f"without {step}").scores
    return msgspec.structs.replace(asked, without={step: scores[step] for step in STEPS})


def _held_out(given: quality.Set | None, asked: Asked) -> Asked:
    if given is None:
        return asked
    return msgspec.structs.replace(
        asked,
        left_out=_weights.left_out(given, WAYS[USUAL].search, _progress(f"{given.name}, weights chosen on the others")),
    )


def _run(
    given: quality.Set, search: Search, what: str, others: Sequence[quality.Set] | None = None, store: str = ""
) -> quality.Measured:
    found = quality.run(given, search, _progress(f"{given.name}, {what}"), others, store)
    return quality.measure(given, found)


def _speed(count: int, name: str) -> Speed:
    print(f"recall over {count:,} messages, {HOW[name]}", file=sys.stderr, flush=True)
    found = measure(Words(), count, name)
    rounded = {
        field: round(value, 1) for field, value in msgspec.structs.asdict(found).items() if isinstance(value, float)
    }
    return msgspec.structs.replace(found, **rounded)


def _is_there(name: str) -> bool:
    if name == "none" or embedders.is_installed(name):
        return True
    print(f"The extra {name} is not installed: nothing of it is measured.", file=sys.stderr)
    return False


def _progress(what: str) -> quality.Progress:
    def tell(done: int, total: int) -> None:
        if done == total or (done % 10 == 0 and sys.stderr.isatty()):
            start, end = ("\r", "") if sys.stderr.isatty() else ("", "\n")
            print(f"{start}{what}: {done}/{total}", end="\n" if done == total else end, file=sys.stderr, flush=True)

    return tell


# the page


def write(report: Report, folder: str) -> None:
    """Write page, plots and figures into a folder."""
    draw(report, os.path.join(folder, PLOTS))
    _save(os.path.join(folder, COPY), report)
    with open(os.path.join(folder, PAGE), "w", encoding="utf-8") as file:
        file.write(page(report))
    print(f"{os.path.join(folder, PAGE)} written.")


def page(report: Report) -> str:
    """Return the page."""
    return "\n\n".join(told for section in SECTIONS if (told := section(report).strip())) + "\n"


def draw(report: Report, folder: str) -> None:
    """Draw the plots that the page shows."""
    from bench import _plots  # only this needs matplotlib

    if report.sets:
        _plots.bars(os.path.join(folder, "recall.svg"), {_panel(one): _bars(one) for one in report.sets}, "of 100")
    if steps := {one.title: _changes(one) for one in report.sets if one.without}:
        _plots.changes(os.path.join(folder, "steps.svg"), steps, "points when the step is left out")
    if report.speed:
        rows = {
            HOW[name]: [(one.count, one.p50_ms, one.p95_ms) for one in found] for name, found in _speeds(report).items()
        }
        _plots.lines(os.path.join(folder, "latency.svg"), rows, "messages in memory", "ms")
    if report.servers:
        _plots.panels(os.path.join(folder, "peers.svg"), _measures(report.servers))


def _panel(asked: Asked) -> str:
    if not asked.source:
        return asked.title
    return f"{asked.title} (own and {PLAIN}: development half; published: {asked.source.whole})"


def _bars(asked: Asked) -> dict[str, dict[str, float]]:
    rows = {_plain_name(name): _only(found.scores, asked.shown) for name, found in asked.ways.items()}
    published = asked.source.published if asked.source else ()
    return {**{one.what: dict(one.scores) for one in published}, **rows}


def _plain_name(name: str) -> str:
    return EVERY[name].name.replace("`", "") if name in EVERY else name


def _only(scores: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    return {name: scores[name] for name in names if name in scores}


def _changes(asked: Asked) -> dict[str, dict[str, float]]:
    usual = asked.ways[USUAL].scores
    return {
        name: {step: round(scores[name] - usual[name], 2) for step, scores in asked.without.items()}
        for name in asked.shown[1:]
    }


def _speeds(report: Report) -> dict[str, list[Speed]]:
    names = dict.fromkeys(one.embedder for one in report.speed)
    return {name: [one for one in report.speed if one.embedder == name] for name in names}


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _commands(*commands: str) -> str:
    return "```sh\n" + "\n".join(commands) + "\n```"


def opening(report: Report) -> str:
    return f"""# Benchmarks

How good and how fast recall is, and what each step of it is worth. `scripts/bench report` measures all of this and writes this page;
the figures are in [{COPY}]({COPY}). Holdfast {report.version}, Python {report.python}, {report.cores} shared cores, {report.when}.

{_commands("scripts/setup dev bench quality   # quality is optional", "scripts/bench report LOCOMO.json LONGMEMEVAL.json", f"scripts/bench report --from docs/{COPY}   # this page again, without measuring")}"""


def how_good(report: Report) -> str:
    if not report.sets:
        return ""
    parts = [
        f"""## How good

The questions of two public sets go through `recall`, the tool that agents call. The memory is filled through the public interface: one message
per turn, one channel per session, no language model, no access to the right answers. **Our figures are for the development halves**, on which
the weights were chosen; the other halves were not used. **Published figures are for the whole sets**, so compare them with care. For
comparison, {PLAIN} (Porter stems, the question's words joined by OR) is measured on our halves.

R@k is the share of the right records that are among the first k. any@k and all@k: whether any or all right sessions are. NDCG@10 counts earlier
places more.

![Recall by set and way]({PLOTS}/recall.svg)"""
    ]
    for asked in report.sets:
        parts += [_about(asked), _scores(asked)]
    ways = [way for name, way in EVERY.items() if any(name in asked.ways for asked in report.sets)]
    parts += [
        _commands(
            *(f"{way.command}   # {way.name.replace('`', '')}" for way in ways),
            f"scripts/bench report SET.json --only recall   # all of them, and {PLAIN}",
        )
    ]
    return "\n\n".join(parts)


def _missing(asked: Asked) -> str:
    names = [way.name.removeprefix("with ") for name, way in WAYS.items() if name not in asked.ways]
    return f" Not measured here: {', '.join(names)}." if names else ""


def _about(asked: Asked) -> str:
    origin = f"half of {asked.source.origin}" if asked.source else f"the set {asked.name}"
    corpora = "one memory" if asked.corpora == 1 else f"{asked.corpora} memories"
    return f"**{asked.title}**: {origin}, {corpora}, {asked.sessions:,} sessions, {asked.turns:,} turns, {asked.questions:,} questions.{_missing(asked)}"


def _scores(asked: Asked) -> str:
    rows = [
        [EVERY[name].name if name in EVERY else name, *(f"{found.scores[score]:.1f}" for score in asked.shown)]
        for name, found in asked.ways.items()
    ]
    for one in asked.source.published if asked.source else ():
        cells = (f"{one.scores[score]:.1f}" if score in one.scores else "" for score in asked.shown)
        rows.append([f"*{one.what}, whole set ({one.source})*", *cells])
    return _table(["", *asked.shown], rows)


def by_category(report: Report) -> str:
    parts = []
    for asked in report.sets:
        best = next((name for name in (USUAL, "none") if name in asked.ways), "")
        if not best or not asked.ways[best].categories:
            continue
        rows = [
            [name, *(f"{scores[score]:.1f}" if score in scores else "" for score in asked.shown)]
            for name, scores in asked.ways[best].categories.items()
        ]
        parts.append(_table([f"{asked.title}, {WAYS[best].name}", *asked.shown], rows))
    if not parts:
        return ""
    told = "### By kind of question\n\nThe same runs. Questions whose answer is in several places do worst."
    return "\n\n".join([told, *parts])


def steps(report: Report) -> str:
    asked = [one for one in report.sets if one.without]
    if not asked:
        return ""
    head = [*(f"{one.title} {score}" for one in asked for score in one.shown)]
    usual = ["nothing", *(f"{one.ways[USUAL].scores[score]:.1f}" for one in asked for score in one.shown)]
    rows = [
        [
            f"`{step}`",
            *(
                _signed(one.without[step][score] - one.ways[USUAL].scores[score])
                for one in asked
                for score in one.shown
            ),
        ]
        for step in STEPS
    ]
    return f"""## What each step is worth

Each [step of the ranking](guides/recall.md) left out in turn, {WAYS[USUAL].name}: the difference in points. A step without effect here may
matter elsewhere ([reasons](decisions/016-ranking.md)). {_grains(asked)}, so a difference of a point means little.

![Difference in points for each step left out]({PLOTS}/steps.svg)

{_table(["without", *head], [usual, *rows])}

{_commands(f"{WAYS[USUAL].command} --without STEP")}"""


def _signed(difference: float) -> str:
    return f"{round(difference, 1) + 0.0:+.1f}"  # no minus zero


def _grains(asked: Iterable[Asked]) -> str:
    return "One question is " + ", ".join(f"{100 / one.questions:.1f} points of {one.title}" for one in asked)


def new_conversations(report: Report) -> str:
    asked = [one for one in report.sets if one.left_out]
    if not asked:
        return ""
    rows = [[one.title, *(f"{one.left_out[score]:.1f} {score}" for score in one.shown)] for one in asked]
    told = "\n".join(f"- {title}: {', '.join(scores)}" for title, *scores in rows)
    return f"""## On conversations that the weights have not seen

Each conversation is left out in turn. The weights are tuned on the others, and the one left out is asked with them, {WAYS[USUAL].name} (a single
memory is cut into five parts by its questions; the floor is off). The figures are within a point or two of those of the weights that we
ship, so the weights are not fitted to single conversations:

{told}

{_commands("scripts/bench report SET.json --only weights")}"""


def nothing_relevant(report: Report) -> str:
    rows = [
        [f"{one.title}, {EVERY[name].name}", f"{found.silent} of {found.questions:,}", f"{found.foreign_silent} of {found.foreign:,}"]
        for one in report.sets for name, found in one.ways.items() if found.foreign
    ]  # fmt: skip
    if not rows:
        return ""
    return f"""## When there is nothing

The right answer to a question about another conversation is "Nothing relevant." Foreign questions should get it, own questions should not. In a
memory with many conversations nearly every word occurs somewhere, so few foreign questions get it:

{_table(["", "own questions without an answer", "foreign questions without an answer"], rows)}

{_commands("scripts/bench quality SET.json --foreign --other OTHER.json")}"""


def how_fast(report: Report) -> str:
    if not report.speed:
        return ""
    rows = [
        [f"{one.count:,}", HOW[one.embedder], *(f"{value:,.0f}" for value in (one.first_ms, one.p50_ms, one.p95_ms, one.core_ms, one.memory_mb)),
         f"{one.read_per_s:,.0f}", f"{one.embedded_per_s:,.0f}" if one.embedded_per_s else ""]
        for one in report.speed
    ]  # fmt: skip
    return f"""## How fast

`recall` over messages of 8 to 40 words with the word frequencies of natural language, in channels of {CHANNEL}, asked 200 questions of three to five words
each in a process that follows changes. The first recall also loads the index and the model. Memory is that of a process that only recalls. Times are
wall-clock times{_busy(report)}. "Of a core" is the processor time of a recall at the median, which other processes hardly affect.

![Latency of recall against the size of the memory]({PLOTS}/latency.svg)

{_table(["messages", "", "first ms", "p50 ms", "p95 ms", "of a core, ms", "MB", "read per s", "embedded per s"], rows)}

{_commands("scripts/bench report --only speed", "scripts/bench recall   # the largest size, with targets")}"""


def _busy(report: Report) -> str:
    """Return a note if other processes were running."""
    if report.load <= report.cores:
        return ""
    return f", and **the machine was busy**: {report.load:g} processes shared its {report.cores} cores, so an idle machine is faster"


def _measures(given: Sequence[peers.Peer]) -> dict[str, dict[str, float]]:
    """Return what the plot compares, by server."""
    measures: dict[str, dict[str, float]] = {
        "start, ms of CPU": {one.name: one.start_cpu_ms for one in given},
        "idle, MB of memory": {one.name: one.idle_mb for one in given},
        "write, ms of CPU": {one.name: one.write_cpu_ms for one in given},
    }
    last = {one.name: one.searches[-1] for one in given}
    notes = next(iter(last.values())).notes
    return measures | {f"search in {notes:,} notes, ms of CPU": {name: one.cpu_ms for name, one in last.items()}}


def beside(report: Report) -> str:
    if not report.servers:
        return ""
    servers = [
        [one.name, f"{one.start_cpu_ms:.0f}", f"{one.idle_mb:.0f}", f"{one.write_p50_ms:.1f}", f"{one.write_cpu_ms:.1f}",
         f"{one.install_mb:.0f} MB, {one.packages} packages" if one.packages else ""]
        for one in report.servers
    ]  # fmt: skip
    searches = [
        [one.name, f"{found.notes:,}", f"{found.p50_ms:.1f}", f"{found.p95_ms:.1f}", f"{found.cpu_ms:.1f}", f"{found.memory_mb:.0f}",
         f"{found.found} of {found.asked}"]
        for one in report.servers for found in one.searches
    ]  # fmt: skip
    commands = [[f"`holdfast {one.name}`", f"{one.notes:,}", f"{one.cpu_ms:.0f}"] for one in report.commands]
    return f"""## Beside other memory servers

Every agent starts its memory server with each conversation. One plain client starts each server over stdio, gives it the same notes of about
sixty words, and asks it for the codename of one of them with four words of its text. The *reference server* is
[`{peers.REFERENCE}`](https://www.npmjs.com/package/{peers.REFERENCE});
it looks for the whole question as one text, so it finds none of these. The *floor* is the least that a durable server can do: a log, an
FTS5 table and two tools in one file. It has no installation of its own.

![What each server needs, by measure]({PLOTS}/peers.svg)

CPU is that of all threads of the server's process; of a start and of a command it is the least of seven. A start ends with the first answer
to `tools/list`; its modules are compiled. A write of Holdfast and of the floor is on disk when it is answered.

{_table(["", "start, ms of CPU", "idle, MB", "write p50, ms", "write, ms of CPU", "installation"], servers)}

{_table(["search", "notes", "p50 ms", "p95 ms", "ms of CPU", "MB", "found"], searches)}

Commands in a process of their own, by words:

{_table(["", "notes", "ms of CPU"], commands)}

{_commands("scripts/bench report --only peers", "scripts/bench peers   # the same with targets, and the slowest imports")}"""


def limits(_: Report) -> str:
    return """## What this does not show

- Whether an agent answers better. Only the rank of the right record is measured; no model reads the hits.
- Other languages and other kinds of memory. Both sets are English chat. Other scripts are tested by keyword, not with questions.
- Priorities. No record of these sets has one, so leaving that step out changes nothing.
- Speed on your machine. Other processes can double a time; the load is given above. Quality does not depend on it."""


Section = Callable[[Report], str]
SECTIONS: tuple[Section, ...] = (
    opening, how_good, by_category, steps, new_conversations, nothing_relevant, how_fast, beside, limits,
)  # fmt: skip
"""The sections of the page, in order. A section without results returns no text."""


if __name__ == "__main__":
    main()
