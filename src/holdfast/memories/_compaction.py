"""Summaries of older entries: one appended line that names what it covers, from the first entry to the last.

Two that compact at the same time do not both land: the second finds, while it holds the log, that another summary came
first, and begins again from that. Without a model the summary is made of sentences of the entries themselves; with one
it is the model's, within its budgets, and when the model fails it is the former.
"""

from __future__ import annotations

import contextlib
import functools
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import Conflict, HoldfastError
from holdfast.formats import jsonl, summaries
from holdfast.formats.summaries import Entry, Gist
from holdfast.memories._window import Remembered
from holdfast.model.kinds import KINDS
from holdfast.model.names import amount
from holdfast.model.records import Record, line_of
from holdfast.model.tokens import count_tokens
from holdfast.storage.tree import LogEnd

_TRIES = 20
_PROMPT = 400
"""Tokens that what a model is told around the text may have."""
_NOTHING = "{entries} from {first} to {last}; nothing of them is summarised here."


class Compacted(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a compaction; `covered` is how many entries left the window."""

    covered: int = 0
    kept: int = 0
    id: str = ""
    summary: str = ""
    by: str = ""
    """`extract`, or the model's name."""
    fallback: str = ""
    """Why the model was not used although there is one, or what became of its text."""


class Summary(msgspec.Struct, frozen=True):
    """A summary line: everything up to `last` is covered."""

    id: str = ""
    text: str = ""
    first: str = ""
    last: str = ""
    count: int = 0
    time: str = ""
    said: tuple[tuple[str, str], ...] = ()
    """Its sentences, each with the day that it speaks of."""


class Log(msgspec.Struct, frozen=True):
    """Where the summaries of a memory go."""

    path: str
    type: str
    session: str = ""


class Spent:
    """What the model cost, by day: one line per call, in a log beside the memories."""

    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self._path = f"{memory.places.memory}/model.jsonl"

    def spent(self, day: str) -> int:
        if self._memory.vault.stat(self._path) is None:
            return 0
        total = 0
        for line in self._memory.vault.scan_back(self._path):
            objects = jsonl.parse(line.data)
            for value in objects if isinstance(objects, list) else ():
                if str(value.get("day", "")) < day:
                    return total
                tokens = value.get("tokens")
                total += tokens if value.get("day") == day and isinstance(tokens, int) else 0
        return total

    def add(self, day: str, tokens: int) -> None:
        self._memory.add(self._path, [{"day": day, "tokens": tokens}])


class Summariser:
    """Writes a summary; afterwards `by` and `fallback` tell how."""

    def __init__(self, memory: Core, *, summarize: bool = True) -> None:
        self._memory = memory
        self._summarize = summarize
        self.by = "extract" if summarize else ""
        self.fallback = ""

    def write(self, entries: Sequence[Entry], told: Sequence[tuple[str, str]] = (), most: int = 0) -> Gist:
        """Return what these entries come to, with what was told of those before them; `most` tokens if that is less."""
        usual = self._memory.settings.mind.summary_tokens
        budget = min(most, usual) if most else usual
        if not self._summarize:
            first, last = entries[0].time or "?", entries[-1].time or "?"
            text = summaries.head(
                _NOTHING.format(entries=amount(len(entries), "entry", "entries"), first=first, last=last), budget
            )
            return summaries.after(told, Gist(text, (("", text),)), budget)
        if self._memory.settings.model.url:
            try:
                return self._ask(entries, told, budget)
            except HoldfastError as error:
                self.fallback = str(error)
        return summaries.again(told, entries, budget)

    def _ask(self, entries: Sequence[Entry], told: Sequence[tuple[str, str]], budget: int) -> Gist:
        """Let the model write; what it writes beyond the budget is cut off, and `fallback` says so."""
        from holdfast.llm import Model

        settings = self._memory.settings.model
        lines = [f"{day} {text}" for day, text in told] + [f"{one.time} {one.text}" for one in entries]
        text = "\n".join(line.strip().replace("\n", "\n  ") for line in lines)
        room = settings.call_tokens - budget - _PROMPT
        if count_tokens(text) > room > 0:
            text = summaries.again(told, entries, room).text  # what one call has room for, from all of it
        made = Model(settings, Spent(self._memory)).summarise(text, budget)
        self.by = settings.name or "model"
        if (size := count_tokens(made)) > budget:
            made = summaries.head(made, budget)
            self.fallback = (
                f"The model wrote {amount(size, 'token')}; {budget} are allowed, so its text is cut off there."
            )
        return Gist(made, tuple(("", line.strip()) for line in made.splitlines() if line.strip()))


def entry(value: Any, time: str, id: str = "") -> Entry:
    """Return what was remembered as a summary reads it: text as it is, an object as one line."""
    return Entry(id, time, value) if isinstance(value, str) else Entry(id, time, line_of(value), single=True)


def _recorded(record: Record) -> Entry:
    """Return a line of a log as a summary reads it; knowledge with its key, a procedure with its condition."""
    value = record.fields.get(KINDS[record.kind].text, record.text)
    if "ref" in record.fields and record.text[:1] in ("{", "["):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            value = msgspec.json.decode(record.text)
    if record.kind == "episode":
        return entry(value, record.time, record.id)
    return Entry(record.id, record.time, stated(record.kind, record.title, value), single=True)


def stated(kind: str, title: str, value: Any) -> str:
    """Return a piece of knowledge, or a procedure, as one line."""
    return f"{line_of(title)}: {line_of(value)}" if kind == "fact" else f"When {line_of(title)}: {line_of(value)}"


def compact(
    memory: Core, log: Log, live: Callable[[str], list[Record]], keep: int, summariser: Summariser
) -> Compacted:
    """Cover all but the last `keep` entries; `live(after)` returns those that nothing covers yet, oldest first."""
    for _ in range(_TRIES):
        before = newest(memory, log.path, log.type)
        entries = live(before.last if before else "")
        older = entries[: len(entries) - keep] if keep else entries
        if not older:
            return Compacted(kept=len(entries))
        made = summariser.write([_recorded(record) for record in older], before.said if before else ())
        covers = {
            "first": before.first if before else older[0].order,
            "last": older[-1].order,
            "count": len(older) + (before.count if before else 0),
        }
        line: dict[str, Any] = {"type": log.type, "text": made.text, "said": made.said}
        line |= {"covers": covers, "by": summariser.by}
        line |= {"session": log.session} if log.session else {}
        try:
            (id,) = memory.add(log.path, [line], guard=functools.partial(_unless_newer, log.type, before))
        except Conflict:
            time.sleep(random.uniform(0, 0.05))
            continue
        return Compacted(len(older), len(entries) - len(older), id, made.text, summariser.by, summariser.fallback)
    raise Conflict("Others compact this memory all the time; nothing was written.", "Try again later.")


def newest(memory: Core, path: str, type: str) -> Summary | None:
    """Return the summary that speaks for all older entries of a memory."""
    if memory.vault.stat(path) is None:
        return None
    return _latest((line.data for line in memory.vault.scan_back(path)), type)


def entry_of(summary: Summary) -> Remembered:
    return Remembered(summary.id, summary.text, summary.time, summary=True)


def _latest(lines: Iterable[bytes], type: str) -> Summary | None:
    """Return the summary of a memory that covers most, from the lines of its log, last line first."""
    best: Summary | None = None
    marks: dict[str, bool] = {}
    for data in lines:
        objects = jsonl.parse(data)
        for value in objects if isinstance(objects, list) else ():
            if isinstance(value.get("hide"), str):
                marks.setdefault(value["hide"], value.get("hidden") is not False)
                continue
            covers = value.get("covers")
            if marks.get(str(value.get("id"))):
                continue
            if value.get("type") == type and isinstance(covers, dict) and isinstance(covers.get("last"), str):
                found = Summary(
                    str(value.get("id", "")), str(value.get("text", "")), str(covers.get("first", "")), covers["last"],
                    covers["count"] if isinstance(covers.get("count"), int) else 0, str(value.get("time", "")),
                    _said(value),
                )  # fmt: skip
                best = found if best is None or found.last > best.last else best
    return best


def _said(line: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the sentences of a summary; of one that was written without them, what its text seems to say."""
    try:
        return msgspec.convert(line.get("said"), tuple[tuple[str, str], ...])
    except msgspec.ValidationError:
        return tuple(summaries.read(str(line.get("text", ""))))


def _unless_newer(type: str, known: Summary | None, end: LogEnd) -> None:
    """Refuse to add a summary that was made without knowing the newest one."""
    there = _latest(end.back(), type)
    if (there.id if there else "") != (known.id if known else ""):
        raise Conflict("Somebody else compacted this memory.", "Begin again.")
