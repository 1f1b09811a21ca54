"""Compaction: one appended summary that names the entries it covers; and the part of a memory that fits into a prompt.

The summary is added in a transaction that read the one before it, so two processes that compact at once build on each
other. A summary consists of sentences of the entries, or is a model's, within budgets and with a fallback to sentences.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import HoldfastError
from holdfast.formats import summaries
from holdfast.formats.summaries import Entry, Gist
from holdfast.model.kinds import KINDS
from holdfast.model.names import amount, count_tokens
from holdfast.model.records import Record, line_of
from holdfast.storage.log import Logs, Marks

BEFORE = "What happened before"
"""The title of the summary in a prompt."""
_PROMPT = 400
"""Tokens for the instructions around the text that a model summarises."""
_LEAST = 5
"""A line is not cut to fewer tokens than this."""
Said = tuple[tuple[str, str], ...]
"""The sentences of a summary, each with its day."""


class Compacted(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a compaction; `covered` is how many entries left the window."""

    covered: int = 0
    kept: int = 0
    id: str = ""
    summary: str = ""
    by: str = ""
    """`extract`, or the model's name."""
    fallback: str = ""
    """Why the model was not used, or why its text was cut."""


class Summary(msgspec.Struct, frozen=True):
    """A summary of a memory: every entry up to `last` is covered."""

    id: str = ""
    type: str = ""
    text: str = ""
    first: str = ""
    last: str = ""
    count: int = 0
    time: str = ""
    said: Said = ()


class Summaries:
    """The state of a log of summaries; the order of the entries does not matter."""

    def __init__(self) -> None:
        self._every: list[Summary] = []
        self._marks = Marks()

    def add(self, entry: Mapping[str, Any]) -> None:
        covers = entry.get("covers")
        if self._marks.add(entry) or not isinstance(covers, dict) or not isinstance(covers.get("last"), str):
            return
        id, type, text, time = (str(entry.get(name, "")) for name in ("id", "type", "text", "time"))
        count = covers["count"] if isinstance(covers.get("count"), int) else 0
        said: Said = (("", text),)  # of an entry that was edited by hand
        with contextlib.suppress(msgspec.ValidationError):
            said = msgspec.convert(entry.get("said"), Said)
        self._every.append(Summary(id, type, text, str(covers.get("first", "")), covers["last"], count, time, said))

    def newest(self, type: str) -> Summary | None:
        """Return the summary of a memory that covers the most entries."""
        found = (one for one in self._every if one.type == type and not self._marks.newest(one.id)[1])
        return max(found, key=lambda one: (one.last, one.id), default=None)


class Spent:
    """The cost of the model by day: one entry per call, in a log beside the memories."""

    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self._path = f"{memory.layout.memory}/model.jsonl"

    def spent(self, day: str) -> int:
        total = 0
        for entry in self._memory.newest_entries(self._path):
            if str(entry.get("day", "")) < day:
                break
            tokens = entry.get("tokens")
            total += tokens if entry.get("day") == day and isinstance(tokens, int) else 0
        return total

    def add(self, day: str, tokens: int) -> None:
        self._memory.add(self._path, [{"day": day, "tokens": tokens}])


class Summariser:
    """Writes a summary; afterwards `by` and `fallback` record how it was made."""

    def __init__(self, memory: Core, *, summarize: bool = True) -> None:
        self._memory = memory
        self._summarize = summarize
        self.by = "extract" if summarize else ""
        self.fallback = ""

    def write(self, entries: Sequence[Entry], said: Said = (), most: int = 0) -> Gist:
        """Summarise entries in at most `most` tokens, as a continuation of the earlier summary."""
        usual = self._memory.settings.mind.summary_tokens
        budget = min(most, usual) if most else usual
        if not self._summarize:
            count, first, last = amount(len(entries), "entry", "entries"), entries[0].time, entries[-1].time
            text = f"{count} from {first or '?'} to {last or '?'}; none of them is summarised here."
            text = summaries.head(text, budget)
            return summaries.after(said, Gist(text, (("", text),)), budget)
        settings = self._memory.settings.model
        if not settings.url:
            return summaries.again(said, entries, budget)
        from holdfast.llm import LanguageModel

        lines = [f"{day} {text}" for day, text in said] + [f"{one.time} {one.text}" for one in entries]
        text = "\n".join(line.strip().replace("\n", "\n  ") for line in lines)
        room = settings.call_tokens - budget - _PROMPT
        if count_tokens(text) > room > 0:
            text = summaries.again(said, entries, room).text  # as much as fits into one call
        try:
            made = LanguageModel(settings, Spent(self._memory)).summarise(text, budget)
        except HoldfastError as error:
            self.fallback = str(error)
            return summaries.again(said, entries, budget)
        self.by = settings.name or "model"
        if (size := count_tokens(made)) > budget:  # text beyond the budget is cut off
            made = summaries.head(made, budget)
            wrote = f"The model wrote {amount(size, 'token')}; {budget} are allowed"
            self.fallback = f"{wrote}, so its text is cut off there."
        return Gist(made, tuple(("", line.strip()) for line in made.splitlines() if line.strip()))


def compact(
    memory: Core, path: str, about: Mapping[str, str], live: Callable[[str], list[Record]], keep: int,
    summariser: Summariser, warnings: list[str],
) -> Compacted:  # fmt: skip
    """Cover all but the last `keep` entries; `live(after)` returns those that are not covered, oldest first.

    `path` is the log of summaries; `about` has the type of the memory and, if it belongs to one, the session.
    """
    done, made, source = Compacted(), Gist(""), None

    def decide(known: Summaries) -> list[dict[str, Any]]:
        nonlocal done, made, source
        before = known.newest(about["type"]) or Summary()
        entries = live(before.last)
        older = entries[: max(0, len(entries) - keep)]
        if not older:
            done = Compacted(kept=len(entries))
            return []
        if source != (source := (before.id, older[-1].order)):  # else another memory's summary was added: same text
            made = summariser.write([_recorded(record) for record in older], before.said)
        first = before.first if before.last else older[0].order
        covers = {"first": first, "last": older[-1].order, "count": len(older) + before.count}
        done = Compacted(len(older), len(entries) - len(older), "", made.text, summariser.by, summariser.fallback)
        return [{**about, "text": made.text, "said": made.said, "covers": covers, "by": summariser.by}]

    ids = Logs(memory, Summaries).transact(path, decide, warnings, slow=True)
    return msgspec.structs.replace(done, id=ids[0]) if ids else done


def entry(value: Any, time: str, id: str = "") -> Entry:
    """Return an entry as a summary reads it: text as it is, an object as one line."""
    return Entry(id, time, value) if isinstance(value, str) else Entry(id, time, line_of(value), single=True)


def stated(kind: str, title: str, value: Any) -> str:
    """Return a fact or a procedure as one line."""
    return f"{line_of(title)}: {line_of(value)}" if kind == "fact" else f"When {line_of(title)}: {line_of(value)}"


def _recorded(record: Record) -> Entry:
    """Return a record as a summary reads it: a fact with its key, a procedure with its condition."""
    value = record.fields.get(KINDS[record.kind].text, record.text)
    if "ref" in record.fields and record.text[:1] in ("{", "["):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            value = msgspec.json.decode(record.text)
    if record.kind == "episode":
        return entry(value, record.time, record.id)
    return Entry(record.id, record.time, stated(record.kind, record.title, value), single=True)


def within_budget(offers: Mapping[str, Sequence[str]], gist: Gist, budget: int) -> str:
    """Return as much of these lines and of a summary as fits into `most` tokens, each part under its title.

    Each part has an equal share; what a small part does not need goes to the larger ones.
    """
    parts = {title: lines for title, lines in offers.items() if lines}
    parts |= {BEFORE: gist.text.splitlines()} if gist.text else {}
    shown: dict[str, str] = {}
    sizes = {title: sum(map(_cost, lines)) for title, lines in parts.items()}
    for count, title in enumerate(sorted(parts, key=lambda title: sizes[title])):
        room = budget // (len(parts) - count)
        left = room - _cost(f"## {title}\n")
        if title == BEFORE:  # the summary, shortened until it fits
            said = [Entry(str(place), day, text, single=True) for place, (day, text) in enumerate(gist.said)]
            shown[title] = _titled(title, gist.text.splitlines())
            while shown[title] and _cost(f"{shown[title]}\n") > room:
                shorter = summaries.summarise(said, left, "earlier sentences").text
                shown[title] = _titled(title, shorter.splitlines())
                left -= _cost(f"{shown[title]}\n") - room
        else:  # the lines that fit; if none does, the beginning of the first one
            chosen = list[str]()
            for line in parts[title]:
                if (cost := _cost(f"- {line}")) <= left:
                    chosen.append(line)
                    left -= cost
            if not chosen and count_tokens(cut := summaries.head(parts[title][0], left - 2)) >= _LEAST:
                chosen = [cut]
            shown[title] = _titled(title, chosen)
        budget -= _cost(f"{shown[title]}\n") if shown[title] else 0
    return "\n\n".join(shown[title] for title in offers if shown.get(title))


def _titled(title: str, lines: Sequence[str]) -> str:
    return "\n".join((f"## {title}", *(f"- {line}" for line in lines))) if lines else ""


def _cost(text: str) -> int:
    """Return the tokens of a line with its line break."""
    return count_tokens(f"{text}\n")
