"""Chat: everything said on every channel in one log, and what must always be known in `MEMORY.md`.

Nothing is summarised and nothing is chosen behind the owner's back: a prompt is the last messages as they were said,
with the long-term memory as it stands. Older things are found on demand. A question and its answer are stored in one
piece; half of one, after a crash, is left out everywhere and reported.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import Invalid, NotFound, OverBudget, Unavailable
from holdfast.formats import jsonl, prompts
from holdfast.formats.prompts import Message
from holdfast.memories import _older
from holdfast.memories._sources import SUFFIX, Report, Source
from holdfast.model.kinds import KINDS, ROLES
from holdfast.model.names import amount, check_text, short_hash
from holdfast.model.queries import Query
from holdfast.model.records import Problem, Receipt, Record, check_plain
from holdfast.model.scopes import Scope
from holdfast.model.times import iso, mint, normal, now_ms
from holdfast.model.tokens import count_tokens

MOST = 50
"""Matches that one search returns."""
_KIND = KINDS["message"]
_DAY = 86_400_000
_LONGEST = 36_500
_MARGIN = 256
_MOST_BROUGHT = 100_000_000
"""Characters of messages that one import brings."""
_LOOKS = (8, 64, 512)
"""How many lines are looked at, one after the other, for a neighbour in the same channel."""
_FURTHER = 10
"""How often a prompt looks further back while what it met says nothing."""
_TEXTS = ("role", "content", "timestamp", "channel", "sender_id", "tool_call_id")


class History(list[Message]):
    """Messages, oldest first, and in `problems` what could not be read on the way to them."""

    def __init__(self, messages: list[Message], problems: list[Problem]) -> None:
        super().__init__(messages)
        self.problems = problems


class Saved(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a text for `MEMORY.md`."""

    receipt: Receipt
    tokens: int = 0
    warning: str = ""


class Match(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message that was found, with what was said before and after it in the same channel."""

    message: Message
    snippet: str
    score: float
    before: Message | None = None
    after: Message | None = None


class Chat:
    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self._settings = memory.settings.chat
        self._log = memory.places.path_for(_KIND, Scope())
        self._page = memory.places.path_for(KINDS["memory"], Scope())

    # what was said

    def append_message(self, message: Message | Mapping[str, Any], op_id: str = "") -> str:
        """Add a message to the history and return its id: durable when this returns."""
        return self._add([_line(message)], op_id)[0]

    def persist_exchange(
        self, channel: str, sender_id: str, user_message: str, assistant_reply: str, op_id: str = ""
    ) -> str:
        """Add what a user said and what was answered, both or neither; return the name that the two share."""
        exchange = mint()
        said = {"role": "user", "content": user_message, "channel": channel, "sender_id": sender_id}
        answer = {"role": "assistant", "content": assistant_reply, "channel": channel}
        ids = self._add([_line(said) | {"exchange": exchange}, _line(answer) | {"exchange": exchange}], op_id)
        if op_id:  # it may have been stored before
            return str(self._memory.get(ids[-1]).fields.get("exchange") or exchange)
        return exchange

    def _add(self, lines: list[dict[str, Any]], op_id: str) -> list[str]:
        return self._memory.add(self._log, lines, op_id=op_id, time=_KIND.time)

    def load_history(self, last_n: int | None = None) -> History:
        """Return the last messages, oldest first, or all of them; lines that are no messages do not count."""
        if last_n is not None and (isinstance(last_n, bool) or not isinstance(last_n, int) or last_n < 1):
            raise Invalid(f"last_n is {last_n!r}.", "Use a number from 1 on, or None for everything.")
        problems: list[Problem] = []
        found = list(itertools.islice(self._newest(problems), last_n))
        return History(found[::-1], problems[::-1])

    def _newest(self, problems: list[Problem]) -> Iterator[Message]:
        """Yield messages, the newest first: the history from its end, and what was brought from older files."""
        paths = [self._log, *self._past_logs(problems)]
        found = [self._memory.backwards(path, problems=problems) for path in paths]
        records = heapq.merge(*found, key=lambda record: record.order, reverse=True) if found[1:] else found[0]
        return map(_message, records)

    def _past_logs(self, problems: list[Problem] | None = None) -> list[str]:
        """Return the logs that were brought from older files."""

        def blocked(path: str, why: str) -> None:
            if problems is None:
                raise Unavailable(f"{path}: {why}.", "Nothing was brought.")
            problems.append(Problem(path, why))

        folder = self._log.removesuffix(SUFFIX)
        return sorted(path for path, _ in self._memory.vault.walk(folder, (SUFFIX,), blocked))

    def bring(self, files: Sequence[Source], channel: str = "", *, dry: bool = False) -> Report:
        """Bring the messages of older files into the history, each once; `channel` is that of messages without one.

        They go behind what is there if they are newer; else into a log of their own beside the history, so that the
        history stays in the order of time. Secrets of known forms are removed.
        """
        report = Report()
        longest = self._memory.settings.limits.line_bytes - _MARGIN
        known = self._known()
        fresh: dict[str, dict[str, Any]] = {}
        size = 0
        for line in itertools.chain.from_iterable(_older.messages(file, channel, longest, report) for file in files):
            report.turns += 1
            if line["id"] in known or line["origin"] in known:
                continue
            known |= {line["id"], line["origin"]}
            fresh[line["id"]] = line
            size += len(line["content"])
            if size > _MOST_BROUGHT:
                raise OverBudget(f"More than {_MOST_BROUGHT:,} characters are new.", "Bring fewer files at a time.")
        report.added = len(fresh)
        if fresh and not dry:
            ids = sorted(fresh)
            last = next(self._memory.backwards(self._log), None)
            name = "" if last is None or last.order < ids[0] else short_hash("\n".join(ids))
            self._memory.bring(_KIND.name, name, [fresh[each] for each in ids])
        return report

    def _known(self) -> set[str]:
        """Return by what all messages there are can be known again, hidden ones too."""
        paths = [path for path in (self._log, *self._past_logs()) if self._memory.vault.stat(path)]
        found = (jsonl.parse(line.data) for path in paths for line in self._memory.vault.scan(path))
        values = (value for objects in found if isinstance(objects, list) for value in objects)
        return {text for value in values for text in (jsonl.identity(value, _KIND.time)[0], _text(value.get("origin")))}

    # what must always be known

    def load_global_memory(self) -> str:
        """Return the text of `MEMORY.md`, "" when there is none."""
        try:
            document = self._memory.vault.read(self._page, self._memory.settings.limits.document_bytes)
        except NotFound:
            return ""
        return document.data.decode("utf-8", "replace")

    def save_global_memory(self, content: str, op_id: str = "") -> Saved:
        """Put a text in the place of `MEMORY.md`; what stood there is kept, and `undo_global_memory` brings it back."""
        if not isinstance(content, str):
            raise Invalid(f"The content is {type(content).__name__}.", "Give text.")
        check_text(content)
        receipt = self._memory.replace(self._page, content.encode("utf-8"), op_id=op_id)
        return self._saved(receipt, content)

    def undo_global_memory(self, op_id: str = "") -> Saved:
        """Bring back the text of `MEMORY.md` from before it was last written here; again, the one before that."""
        receipt = self._memory.undo(self._page, op_id)
        return self._saved(receipt, self.load_global_memory())

    def _saved(self, receipt: Receipt, content: str) -> Saved:
        tokens, most = count_tokens(content), self._settings.memory_tokens
        warning = (
            f"It has {amount(tokens, 'token')} and should have at most {most:,}: every prompt pays for it. Shorten it."
        )
        return Saved(receipt, tokens, warning if tokens > most else "")

    # what a model reads

    def build_messages(self, user_message: str, system_prompt: str = "") -> list[dict[str, Any]]:
        """Return the prompt for what a user says now: the same history, memory and settings give the same prompt."""
        for name, value in (("user_message", user_message), ("system_prompt", system_prompt)):
            if not isinstance(value, str):
                raise Invalid(f"{name} is {type(value).__name__}.", "Give text.")
        history = self._window(self._settings.history_context_messages)
        return prompts.messages(
            history, self.load_global_memory(), user_message, system_prompt, self._settings.aliases()
        )

    def _window(self, count: int) -> list[Message]:
        """Return the last messages that a prompt can show, oldest first."""
        source = self._newest([])
        taken: list[Message] = []
        for _ in range(_FURTHER):
            more = list(itertools.islice(source, count))
            taken += more
            usable = prompts.usable(reversed(taken))
            if len(usable) >= count or not more:
                break
        return usable[-count:]

    def label(self, message: Message) -> str:
        """Return who said a message and where, as a prompt shows it; "" where nothing says it."""
        return prompts.label(message, self._settings.aliases())

    # what was said long ago

    def search(self, query: str, days: int | None = None, max_results: int = 10, channel: str = "") -> list[Match]:
        """Return the messages that fit best, then the newest, each with its neighbours in the same channel."""
        for name, value in (("days", days if days is not None else 1), ("max_results", max_results)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise Invalid(f"{name} is {value!r}.", "Use a number.")
        since = iso(max(0, now_ms() - max(1, min(days, _LONGEST)) * _DAY)) if days is not None else ""
        limit = max(1, min(max_results, MOST))
        wanted = Query(text=query, kinds=(_KIND.name,), session=channel, since=since, limit=limit)
        found = []
        for hit in self._memory.find(wanted):
            message = _message(hit.record)
            before, after = (self._neighbour(hit.record, message.channel, after=way) for way in (False, True))
            found.append(Match(message, hit.snippet, hit.score, before, after))
        found.sort(key=lambda match: match.message.timestamp, reverse=True)
        found.sort(key=lambda match: -match.score)
        return found

    def _neighbour(self, record: Record, channel: str, *, after: bool) -> Message | None:
        """Return the message next to a record that was said in a channel."""
        for count in _LOOKS:
            near = self._memory.beside(record, count, after=after)
            for other in near:
                message = _message(other)
                if message.channel == channel and message.content.strip():
                    return message
            if len(near) < count:
                break
        return None


def _line(given: Message | Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as its line: what must be there, what is set, and nothing else."""
    values = msgspec.structs.asdict(given) if isinstance(given, Message) else given
    if not isinstance(values, Mapping):
        raise Invalid(f"A message is {type(given).__name__}.", "Give {role, content}.")
    unknown = [str(name) for name in values if name not in (*_TEXTS, "tool_calls", "exchange", "id")]
    if unknown:
        raise Invalid(f"A message has no {', '.join(unknown)}.", f"It takes {', '.join((*_TEXTS, 'tool_calls'))}.")
    calls = values.get("tool_calls") or None
    line: dict[str, Any] = {"role": values.get("role"), "content": values.get("content")}
    if line["content"] is None and calls:
        line["content"] = ""  # what a model says that only calls tools
    line |= {name: values[name] for name in _TEXTS[2:] if values.get(name) not in (None, "")}
    if isinstance(line.get("timestamp"), datetime):
        line["timestamp"] = line["timestamp"].astimezone().isoformat()
    wrong = [name for name, value in line.items() if not isinstance(value, str)]
    if wrong:
        raise Invalid(f"{', '.join(wrong)} of a message must be text.", "Give it as text.")
    if line["role"] not in ROLES:
        raise Invalid(f"The role is {line['role']!r}.", f"Use one of: {', '.join(ROLES)}.")
    check_text(*line.values())
    if "timestamp" in line:
        line["timestamp"] = _zoned(line["timestamp"])
    if calls is not None:
        if not isinstance(calls, list):
            raise Invalid("tool_calls of a message must be a list.", "Give the calls as the model made them.")
        check_plain(calls)
        line["tool_calls"] = calls
    return line


def _zoned(timestamp: str) -> str:
    """Return a time with its zone; without one it is local."""
    known = normal(timestamp)
    if not known:
        raise Invalid(f"{timestamp!r} is not a time.", "Use ISO 8601, like 2026-02-23T14:00:00Z.")
    return timestamp if len(timestamp) > len("2026-02-23") and datetime.fromisoformat(timestamp).tzinfo else known


def _message(record: Record) -> Message:
    fields = record.fields
    calls = fields.get("tool_calls")
    return Message(
        role=str(fields["role"]),
        content=record.text,
        timestamp=record.time,
        channel=_text(fields.get("channel")),
        sender_id=_text(fields.get("sender_id")),
        tool_calls=calls if isinstance(calls, list) and calls else None,
        tool_call_id=_text(fields.get("tool_call_id")),
        exchange=_text(fields.get("exchange")),
        id=record.id,
    )


def _text(value: object) -> str:
    """Return a name as text; a room or a sender may be a number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else ""
