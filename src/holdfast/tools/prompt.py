"""Gathering what an agent should know when it starts: the pieces of each part of its prompt.

What needs files alone comes first, then what needs the index, and each part is told as soon as it is there: so a caller
who cannot wait uses what there is. A part that fails loses no other; it becomes a warning. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, Invalid
from holdfast.formats import invisible, prompts
from holdfast.formats.prompts import Gathered, Message, Piece
from holdfast.formats.summaries import head
from holdfast.memories.compartments import Run
from holdfast.memories.hot import Hot
from holdfast.model.kinds import KINDS
from holdfast.model.queries import MAX_LIMIT, Query
from holdfast.model.scopes import DEFAULT, Scope
from holdfast.model.times import age
from holdfast.model.tokens import count_tokens
from holdfast.recall.answers import Hit
from holdfast.tools.calling import Call, Runner
from holdfast.tools.context import Context
from holdfast.tools.workspaces import loadWorkspace

AT_ONCE = 3
"""How many of the parts, from the first on, need a few small files alone."""
_MESSAGES = 40
_COUNTED = 200
"""Messages that are read, so that those which are too old to be shown can be counted."""
_CHAT = next(part.share for part in prompts.PARTS if part.name == "chat")
_AROUND = 20
"""Tokens of what stands around a message."""
_HITS = 10
_LISTED = 5
_LINE = 60
"""Tokens of one line about a plan, a save point or what was done."""


def gather(runner: Runner, context: Context, budget: int = prompts.BUDGET) -> Iterator[Gathered]:
    """Yield the parts for a workspace, session, run and goal; NotFound when there is no such workspace."""
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise Invalid(f"budget is {budget!r}.", "Use a number of tokens from 1 on.")
    work = _Work(Call(runner, context.over(runner.defaults)), budget)
    if work.call.context.workspaceId:
        _ = work.call.scope
    yield _gathered(work, "rules", work.rules)
    yield _gathered(work, "memory", work.long_term)
    yield _gathered(work, "run", work.run)
    yield _gathered(work, "chat", work.chat)
    yield msgspec.structs.replace(_gathered(work, "workspace", work.purpose), partial=True)
    yield _gathered(work, "workspace", work.workspace)
    yield _gathered(work, "recall", work.recall)


class _Work:
    """The work on one prompt; `shown` are the records that are in it already, by id."""

    def __init__(self, call: Call, budget: int) -> None:
        self.call = call
        self.memory = call.memory
        self.budget = budget
        self.shown: set[str] = set()
        self.warnings: list[str] = []
        self.older, self.uncounted = 0, False

    def rules(self) -> list[Piece]:
        texts, findings = Hot(self.memory).texts()
        self.shown |= texts.keys()
        self.warnings += [f"{finding.path}: {finding.what}" for finding in findings]
        return [Piece(text) for text in texts.values()]

    def long_term(self) -> list[Piece]:
        self.shown.add(self.memory.places.path_for(KINDS["memory"], Scope()))
        return [Piece(self.call.runner.chat.load_global_memory().removeprefix("\ufeff"))]

    def run(self) -> list[Piece]:
        run = Run(self.call.runner.compartments, self.call.session, self.call.context.runId or self.call.session)
        lines = run.memory_content
        self.warnings += run.warnings
        return [Piece(line) for line in lines.split("\n")]

    def chat(self) -> list[Piece]:
        chat = self.call.runner.chat
        history = chat.load_history(_COUNTED)
        self.warnings += [str(problem) for problem in history.problems[:_LISTED]]
        every = [each for each in history if each.role in ("user", "assistant")]
        said = every[-_MESSAGES:]
        self.older, self.uncounted = len(every) - len(said), len(history) == _COUNTED
        self._note(said)
        whose = [(chat.label(message) or message.role, age(message.timestamp)) for message in said]
        return [Piece(message.content, _joined(*who)) for message, who in zip(said, whose, strict=True)]

    def _note(self, said: Sequence[Message]) -> None:
        """Note those of the messages that have room for certain, whatever else there is."""
        room = self.budget * _CHAT // 100
        for message in reversed(said):
            room -= count_tokens(message.content) + _AROUND
            if room < 0:
                break
            self.shown.add(message.id)

    def purpose(self) -> list[Piece]:
        """Return what is there of the workspace without looking through all of it."""
        runner, named = self.call.runner, self.call.context.workspaceId
        if not named:
            return [Piece(_line(_about(each))) for each in runner.workspaces.all()]
        data = runner.workspaces.load(named) | {"plans": [], "states": []}
        return [Piece(line) for line in _briefing(data | {"recentActivity": runner.traces.recent(self.call.scope)})]

    def workspace(self) -> list[Piece]:
        if named := self.call.context.workspaceId:
            return [Piece(line) for line in _briefing(loadWorkspace(self.call, named))]
        here = DEFAULT in self.memory.scopes.children("")
        return self.purpose() + [Piece(line) for line in (_briefing(loadWorkspace(self.call, DEFAULT)) if here else ())]

    def recall(self) -> list[Piece]:
        task = self.call.context.goal
        if not task.strip():
            return []
        scope = self.call.scope.path if self.call.context.workspaceId else None
        most = min(_HITS + len(self.shown), MAX_LIMIT)
        found = self.memory.find(Query(text=task, scope=scope, shared=True, above=True, limit=most, budget=self.budget))
        self.warnings += [str(problem) for problem in found.problems[:_LISTED]]
        sources = self.memory.sources(hit.record for hit in found)
        fresh = [hit for hit in found if hit.record.id not in self.shown and sources[hit.record.id].trust != "other"]
        return [
            Piece(_recalled(hit), _joined(hit.record.where, hit.age, str(sources[hit.record.id]), _unseen(hit)))
            for hit in fresh[:_HITS]
        ]


def _gathered(work: _Work, part: str, pieces: Callable[[], list[Piece]]) -> Gathered:
    """Return a part; whatever goes wrong is told in its place."""
    work.warnings, work.older, work.uncounted = [], 0, False
    found: list[Piece] = []
    try:
        found = pieces()
    except HoldfastError as error:
        work.warnings.append(str(error))
    except Exception as error:  # a fault of ours must not lose the other parts
        work.warnings.append(f"{type(error).__name__}: {error}"[:200])
    return Gathered(part, found, work.warnings, older=work.older, uncounted=work.uncounted)


def _briefing(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield what there is to know of a workspace, one thing a line."""
    if data["purpose"]:
        yield _line(f"{data['name']}: {data['purpose']}")
    plans, states = data["plans"], data["states"]
    yield from (_line(f"- plan ({plan['status']}) {_about(plan)}") for plan in plans[:_LISTED])
    if len(plans) > _LISTED:
        yield f"- {len(plans) - _LISTED} more open plans: retrieve_plans"
    yield from (_line(f"- save point {_about(state)}") for state in states[:_LISTED])
    more = len(states) + data.get("moreStates", 0) - _LISTED
    if more > 0:
        yield f"- {more} more save points: listStates"
    for done in data["recentActivity"][:_LISTED]:
        goal = f", for: {done['goal']}" if done["goal"] else ""
        failed = "" if done["success"] else " (failed)"
        yield _line(f"- {age(done['time'])}: {done['what']}{failed}{goal}")


def _about(item: Mapping[str, str]) -> str:
    return f"{item['name']}: {item['description']}" if item["description"] else item["name"]


def _line(text: str) -> str:
    return head(prompts.one_line(text), _LINE)


def _recalled(hit: Hit) -> str:
    title = prompts.one_line(hit.record.title)
    return hit.snippet if not title or title in hit.snippet else f"{title}\n{hit.snippet}"


def _unseen(hit: Hit) -> str:
    found = invisible.sorts(f"{hit.record.title}\n{hit.snippet}")
    return f"beware, it has {found}" if found else ""


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
