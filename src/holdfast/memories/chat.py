"""Chat: all messages of all channels in one log, and long-term memory in `MEMORY.md`.

Nothing is summarised: a prompt has the last messages and the long-term memory as they are; older messages are searched.
A question and its answer are stored together; half of a pair that a crash left is skipped and reported.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import Invalid, NotFound
from holdfast.formats import markdown, prompts
from holdfast.formats.prompts import Message
from holdfast.memories.cold import SUFFIX
from holdfast.model.kinds import KINDS, ROLES
from holdfast.model.names import amount, check_text, close_to, count_tokens
from holdfast.model.queries import Query
from holdfast.model.records import Problem, Receipt, Record, Scope, check_plain
from holdfast.model.times import iso, mint, normal, now_ms

MOST = 50
"""Matches that one search returns."""
_KIND = KINDS["message"]
_DAY = 86_400_000
_MOST_DAYS = 36_500
_NEIGHBOURS = (8, 64, 512)
"""How many lines are read to find a neighbour in the same channel: more with each attempt."""
_RECENT = 1_000
"""How many of the last messages are read for the names of channels."""
_MOST_STEPS = 10
"""How often a prompt reads further back for messages that it can show."""
_TEXTS = ("role", "content", "timestamp", "channel", "sender_id", "tool_call_id")


class History(list[Message]):
    """Messages, oldest first; `problems` are the lines that could not be read."""

    def __init__(self, messages: list[Message], problems: list[Problem]) -> None:
        super().__init__(messages)
        self.problems = problems


class Saved(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of writing `MEMORY.md`."""

    receipt: Receipt
    tokens: int = 0
    warning: str = ""


class Match(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message that was found, with its neighbours in the same channel."""

    message: Message
    snippet: str
    score: float
    before: Message | None = None
    after: Message | None = None


class Chat:
    """The chat history of all channels, `MEMORY.md`, and the messages for a model."""

    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self._settings = memory.settings.chat
        self._log = memory.layout.path_for(_KIND, Scope())
        self._imported = self._log.removesuffix(SUFFIX)
        self._page = memory.layout.path_for(KINDS["memory"], Scope())

    def append_message(self, message: Message | Mapping[str, Any], op_id: str = "") -> str:
        """Add a message to the history and return its id: durable when this returns."""
        return self._memory.add(self._log, [_line(message)], op_id=op_id, time=_KIND.time)[0]

    def persist_exchange(
        self, channel: str, sender_id: str, user_message: str, assistant_reply: str, op_id: str = ""
    ) -> str:
        """Add a message and its answer, both or neither; return the id of the exchange."""
        exchange = mint()
        question = {"role": "user", "content": user_message, "channel": channel, "sender_id": sender_id}
        answer = {"role": "assistant", "content": assistant_reply, "channel": channel}
        lines = [_line(each) | {"exchange": exchange} for each in (question, answer)]
        ids = self._memory.add(self._log, lines, op_id=op_id, time=_KIND.time)
        if op_id:  # an earlier call may have stored it
            return str(self._memory.get(ids[-1]).fields.get("exchange") or exchange)
        return exchange

    def load_history(self, last_n: int | None = None) -> History:
        """Return the last messages, or all of them, oldest first; lines that are no messages do not count."""
        if last_n is not None and (isinstance(last_n, bool) or not isinstance(last_n, int) or last_n < 1):
            raise Invalid(f"last_n is {last_n!r}.", "Use a number from 1 on, or None for everything.")
        problems: list[Problem] = []
        found = list(itertools.islice(self._newest(problems), last_n))
        return History(found[::-1], problems[::-1])

    def _newest(self, problems: list[Problem]) -> Iterator[Message]:
        """Yield messages from the newest on, imported ones included."""
        walked = self._memory.tree.walk(self._imported, (SUFFIX,), lambda *blocked: problems.append(Problem(*blocked)))
        paths = [self._log, *sorted(path for path, _ in walked)]
        found = [self._memory.backwards(path, problems=problems) for path in paths]
        records = heapq.merge(*found, key=lambda record: record.order, reverse=True) if found[1:] else found[0]
        return map(_message, records)

    def load_global_memory(self) -> str:
        """Return the text of `MEMORY.md`, "" when there is none."""
        try:
            return markdown.our_side(self._memory.store.read(self._page).data.decode("utf-8", "replace"))
        except NotFound:
            return ""

    def save_global_memory(self, content: str, op_id: str = "") -> Saved:
        """Replace `MEMORY.md`; the old text is kept, and `undo_global_memory` restores it."""
        if not isinstance(content, str):
            raise Invalid(f"The content must be text, not {type(content).__name__}.", "Give text.")
        check_text(content)
        return self._saved(self._memory.replace(self._page, content.encode("utf-8"), op_id=op_id), content)

    def approve_global_memory(self) -> None:
        """Record that the caller wrote the current text of `MEMORY.md`, so that prompts show it without quotation."""
        version = self._memory.store.read(self._page).version
        self._memory.store.log_write({"path": self._page, "before": version, "after": version})

    def undo_global_memory(self, op_id: str = "") -> Saved:
        """Undo the last write of `MEMORY.md`; call it again to undo the one before."""
        return self._saved(self._memory.undo(self._page, op_id), self.load_global_memory())

    def _saved(self, receipt: Receipt, content: str) -> Saved:
        tokens, most = count_tokens(content), self._settings.memory_tokens
        if tokens <= most:
            return Saved(receipt, tokens)
        size = f"It has {amount(tokens, 'token')} and should have at most {most:,}"
        return Saved(receipt, tokens, f"{size}: every prompt pays for it. Shorten it.")

    def build_messages(self, user_message: str, system_prompt: str = "") -> list[dict[str, Any]]:
        """Return the prompt for a new user message; the same history, memory and settings give the same prompt."""
        for name, value in (("user_message", user_message), ("system_prompt", system_prompt)):
            if not isinstance(value, str):
                raise Invalid(f"{name} must be text, not {type(value).__name__}.", "Give text.")
        count, source = self._settings.history_context_messages, self._newest([])
        taken, usable = list[Message](), list[Message]()
        for _ in range(_MOST_STEPS):
            more = list(itertools.islice(source, count))
            taken += more
            usable = prompts.usable(reversed(taken))
            if len(usable) >= count or not more:
                break
        memory, aliases = self.load_global_memory(), self._settings.aliases()
        return prompts.messages(usable[-count:], memory, user_message, system_prompt, aliases)

    def label(self, message: Message) -> str:
        """Return the sender and channel of a message as a prompt shows them; "" when unknown."""
        return prompts.label(message, self._settings.aliases())

    def search(self, query: str, days: int | None = None, max_results: int = 10, channel: str = "") -> list[Match]:
        """Return the best matches, then the newest, each with its neighbours; NotFound for an unknown channel."""
        for name, value in (("days", days if days is not None else 1), ("max_results", max_results)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise Invalid(f"{name} is {value!r}.", "Use a number.")
        since = iso(max(0, now_ms() - max(1, min(days, _MOST_DAYS)) * _DAY)) if days is not None else ""
        limit = max(1, min(max_results, MOST))
        wanted = Query(text=query, kinds=(_KIND.name,), session=channel, since=since, limit=limit)
        found = []
        for hit in self._memory.find(wanted):
            said, beside = _message(hit.record), list[Message | None]()
            for after in (False, True):  # the nearest message in the same channel
                for count in _NEIGHBOURS:
                    near = self._memory.store.beside(hit.record.path, hit.record.order, count, after=after)
                    others = (one for one in map(_message, near) if one.channel == said.channel and one.content.strip())
                    if (other := next(others, None)) or len(near) < count:
                        break
                beside.append(other)
            found.append(Match(said, hit.snippet, hit.score, *beside))
        if channel and not found and not self._memory.find(Query(kinds=(_KIND.name,), session=channel, limit=1)):
            recent = (message.channel for message in itertools.islice(self._newest([]), _RECENT))
            known = sorted({name for name in recent if name})
            raise NotFound(
                f'No message was sent on the channel "{channel}".{close_to(channel, known)}',
                f"Recent channels: {', '.join(known) or 'none'}.",
            )
        found.sort(key=lambda match: match.message.timestamp, reverse=True)
        found.sort(key=lambda match: -match.score)
        return found


def _line(given: Message | Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as its line: the required fields and those that are set."""
    values = msgspec.structs.asdict(given) if isinstance(given, Message) else given
    if not isinstance(values, Mapping):
        raise Invalid(f"A message must be an object, not {type(given).__name__}.", "Give {role, content}.")
    if unknown := [str(name) for name in values if name not in (*_TEXTS, "tool_calls", "exchange", "id")]:
        raise Invalid(f"A message has no {', '.join(unknown)}.", f"It takes {', '.join((*_TEXTS, 'tool_calls'))}.")
    calls = values.get("tool_calls") or None
    line: dict[str, Any] = {"role": values.get("role"), "content": values.get("content")}
    if line["content"] is None and calls:
        line["content"] = ""  # a message with tool calls may have no text
    line |= {name: values[name] for name in _TEXTS[2:] if values.get(name) not in (None, "")}
    if isinstance(line.get("timestamp"), datetime):
        line["timestamp"] = line["timestamp"].astimezone().isoformat()
    if wrong := [name for name, value in line.items() if not isinstance(value, str)]:
        raise Invalid(f"{', '.join(wrong)} of a message must be text.", "Give it as text.")
    if line["role"] not in ROLES:
        raise Invalid(f"The role is {line['role']!r}.", f"Use one of: {', '.join(ROLES)}.")
    check_text(*line.values())
    if given_time := line.get("timestamp"):  # a time without a zone is local
        if not (known := normal(given_time)):
            raise Invalid(f"{given_time!r} is not a time.", "Use ISO 8601, like 2026-02-23T14:00:00Z.")
        zoned = len(given_time) > len("2026-02-23") and datetime.fromisoformat(given_time).tzinfo
        line["timestamp"] = given_time if zoned else known
    if calls is not None:
        if not isinstance(calls, list):
            raise Invalid("tool_calls of a message must be a list.", "Give the calls as the model made them.")
        check_plain(calls)
        line["tool_calls"] = calls
    return line


def _message(record: Record) -> Message:
    calls = record.fields.get("tool_calls")
    given = ((name, record.fields.get(name)) for name in ("channel", "sender_id", "tool_call_id", "exchange"))
    texts = {name: str(value) for name, value in given if isinstance(value, str | int) and not isinstance(value, bool)}
    return Message(
        role=str(record.fields["role"]), content=record.text, timestamp=record.time, id=record.id,
        tool_calls=calls if isinstance(calls, list) and calls else None, **texts,
    )  # fmt: skip
