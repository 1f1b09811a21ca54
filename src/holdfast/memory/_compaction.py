"""Summaries of older entries: one appended line that names what it covers, from the first entry to the last.

Two that compact at the same time do not both land: the second finds, while it holds the log, that another summary came
first, and begins again from that. Without a model the summary is made of sentences of the entries themselves; with one
it is the model's, within its budgets, and when the model fails it is the former.
"""

from __future__ import annotations

import functools
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from holdfast.errors import Conflict, HoldfastError
from holdfast.formats import logs, summaries
from holdfast.memory._window import Remembered
from holdfast.records import Record
from holdfast.store.memory import Memory
from holdfast.tokens import count_tokens
from holdfast.vault import LogEnd

_TRIES = 20
_DAY = re.compile(r"(\d{4}-\d{2}-\d{2}|undated): ")
_PROMPT = 400
"""Tokens that what a model is told around the text may have."""
_NOTHING = "{count} entries from {first} to {last}; nothing of them is summarised here."


class Compacted(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a compaction; `covered` is how many entries left the window."""

    covered: int = 0
    kept: int = 0
    id: str = ""
    summary: str = ""
    by: str = ""
    """`extract`, or the model's name."""
    fallback: str = ""
    """Why the model was not used although there is one."""


class Summary(msgspec.Struct, frozen=True):
    """A summary line: everything up to `last` is covered."""

    id: str = ""
    text: str = ""
    first: str = ""
    last: str = ""
    count: int = 0
    time: str = ""


class Log(msgspec.Struct, frozen=True):
    """Where the summaries of a memory go."""

    path: str
    type: str
    session: str = ""


class Spent:
    """What the model cost, by day: one line per call, in a log beside the memories."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._path = f"{memory.places.memory}/model.jsonl"

    def spent(self, day: str) -> int:
        if self._memory.vault.stat(self._path) is None:
            return 0
        total = 0
        for line in self._memory.vault.scan_back(self._path):
            objects = logs.parse(line.data)
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

    def __init__(self, memory: Memory, *, summarize: bool = True) -> None:
        self._memory = memory
        self._summarize = summarize
        self.by = "extract" if summarize else ""
        self.fallback = ""

    def text(self, entries: Iterable[tuple[str, str]], told: Iterable[tuple[str, str]] = ()) -> str:
        """Return what these entries, each a time and a text, come to, with what was told of those before them."""
        before, newer = (
            [summaries.Entry(id=str(place), time=time, text=text) for place, (time, text) in enumerate(those)]
            for those in (told, entries)
        )
        given = [*before, *newer]
        budget = self._memory.settings.mind.summary_tokens
        if not self._summarize:
            return _NOTHING.format(count=len(given), first=given[0].time or "?", last=given[-1].time or "?")
        settings = self._memory.settings.model
        if settings.url:
            from holdfast.llm import Model

            text = "\n".join(f"{one.time} {one.text}".strip() for one in given)
            room = settings.call_tokens - budget - _PROMPT
            if count_tokens(text) > room > 0:
                text = summaries.extract(given, room)  # what one call has room for, from all of it
            try:
                said = Model(settings, Spent(self._memory)).summarise(text, budget)
                self.by = settings.name or "model"
                return said
            except HoldfastError as error:
                self.fallback = str(error)
        return summaries.again(before, newer, budget)


def compact(
    memory: Memory, log: Log, live: Callable[[str], list[Record]], keep: int, summariser: Summariser
) -> Compacted:
    """Cover all but the last `keep` entries; `live(after)` returns those that nothing covers yet, oldest first."""
    for _ in range(_TRIES):
        before = newest(memory, log.path, log.type)
        entries = live(before.last if before else "")
        older = entries[: len(entries) - keep] if keep else entries
        if not older:
            return Compacted(kept=len(entries))
        told = list(_sentences(before)) if before else []
        text = summariser.text(((record.time, record.text) for record in older), told)
        covers = {
            "first": before.first if before else older[0].order,
            "last": older[-1].order,
            "count": len(older) + (before.count if before else 0),
        }
        line: dict[str, Any] = {"type": log.type, "text": text, "covers": covers, "by": summariser.by}
        line |= {"session": log.session} if log.session else {}
        try:
            (made,) = memory.add(log.path, [line], guard=functools.partial(_unless_newer, log.type, before))
        except Conflict:
            time.sleep(random.uniform(0, 0.05))
            continue
        return Compacted(len(older), len(entries) - len(older), made, text, summariser.by, summariser.fallback)
    raise Conflict("Others compact this memory all the time; nothing was written.", "Try again later.")


def _sentences(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield what a summary says, each sentence with the day that it speaks of, but for what it left out."""
    day = ""
    for line in summary.text.splitlines():
        if summaries.is_account(line):
            continue
        if found := _DAY.match(line):
            day, line = found[1].replace("undated", ""), line[found.end() :]
        if line.strip():
            yield day, line


def newest(memory: Memory, path: str, type: str) -> Summary | None:
    """Return the summary that speaks for all older entries of a memory."""
    if memory.vault.stat(path) is None:
        return None
    return _latest((line.data for line in memory.vault.scan_back(path)), type)


def entry_of(summary: Summary) -> Remembered:
    return Remembered(summary.id, summary.text, summary.time, summary=True)


def _latest(lines: Iterable[bytes], type: str) -> Summary | None:
    """Return the summary of a memory that covers most, from the lines of its log, last line first."""
    best: Summary | None = None
    for data in lines:
        objects = logs.parse(data)
        for value in objects if isinstance(objects, list) else ():
            covers = value.get("covers")
            if value.get("type") == type and isinstance(covers, dict) and isinstance(covers.get("last"), str):
                found = Summary(
                    str(value.get("id", "")), str(value.get("text", "")), str(covers.get("first", "")), covers["last"],
                    covers["count"] if isinstance(covers.get("count"), int) else 0, str(value.get("time", "")),
                )  # fmt: skip
                best = found if best is None or found.last > best.last else best
    return best


def _unless_newer(type: str, known: Summary | None, end: LogEnd) -> None:
    """Refuse to add a summary that was made without knowing the newest one."""
    there = _latest(end.back(), type)
    if (there.id if there else "") != (known.id if known else ""):
        raise Conflict("Somebody else compacted this memory.", "Begin again.")
