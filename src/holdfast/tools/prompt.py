"""The start prompt of an agent, part by part: rules, memory, notes, related records, chat.

Parts that need only files come first, then those that need the index, so a caller with a time limit can use the first
ones. A part that fails becomes a warning and does not affect the others. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, Invalid
from holdfast.formats import pages, prompts
from holdfast.formats.prompts import Gathered, Piece
from holdfast.formats.summaries import head
from holdfast.memories.compartments import Run
from holdfast.memories.hot import Hot
from holdfast.model.kinds import KINDS
from holdfast.model.names import count_tokens
from holdfast.model.queries import MAX_LIMIT, Query
from holdfast.model.records import DEFAULT, Scope, lapsed
from holdfast.model.times import age
from holdfast.tools.calling import Call, Context, Runner
from holdfast.tools.workspaces import loadWorkspace

AT_ONCE = 3
"""How many parts, from the first on, need only a few small files."""
_MESSAGES = 40
_COUNTED = 200
"""Messages that are read, to count those which are not shown."""
_CHAT = next(part.share for part in prompts.PARTS if part.name == "chat")
_AROUND = 20
"""Tokens around each message."""
_HITS = 10
_LISTED = 5
_RECORDED = ("remember ", "save_learning ", "revise ")
"""Activities that are not listed: their records are found, as they are now."""
_LINE = 60
"""Tokens of one line about a plan, a save point or an activity."""


def gather(runner: Runner, context: Context, budget: int = prompts.BUDGET) -> Iterator[Gathered]:
    """Yield the parts for a workspace, session, run and goal; NotFound when the workspace does not exist."""
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise Invalid(f"budget is {budget!r}.", "Use a number of tokens from 1 on.")
    work = _Work(Call(runner, context.over(runner.defaults)), budget)
    if work.call.context.workspaceId:
        _ = work.call.scope
    for part, pieces in (("rules", work.rules), ("memory", work.long_term), ("run", work.run), ("chat", work.chat)):
        yield work.gathered(part, pieces)
    yield msgspec.structs.replace(work.gathered("workspace", work.purpose), partial=True)
    yield work.gathered("workspace", work.workspace)
    yield work.gathered("recall", work.recall)


class _Work:
    """The work on one prompt; `shown` are the ids of records that are already in it."""

    def __init__(self, call: Call, budget: int) -> None:
        self.call = call
        self.memory = call.memory
        self.budget = budget
        self.shown: set[str] = set()
        self.warnings: list[str] = []
        self.older, self.uncounted = 0, False

    def gathered(self, part: str, pieces: Callable[[], list[Piece]]) -> Gathered:
        """Return a part, or its error as a warning."""
        self.warnings, self.older, self.uncounted = [], 0, False
        found: list[Piece] = []
        try:
            found = pieces()
        except HoldfastError as error:
            self.warnings.append(str(error))
        except Exception as error:  # an error of ours must not lose the other parts
            self.warnings.append(f"{type(error).__name__}: {error}"[:200])
        return Gathered(part, found, self.warnings, older=self.older, uncounted=self.uncounted)

    def rules(self) -> list[Piece]:
        texts, findings = Hot(self.memory).texts()
        self.shown |= texts.keys()
        self.warnings += [f"{finding.path}: {finding.what}" for finding in findings]
        return [Piece(pages.filled(text)) for text in texts.values()]

    def long_term(self) -> list[Piece]:
        page, text = self.memory.layout.path_for(KINDS["memory"], Scope()), self.call.runner.chat.load_global_memory()
        self.shown.add(page)
        source = self.memory.sources([self.memory.get(page)])[page] if text.strip() else None
        quoted = source is not None and source.trust != "user"
        about = f"MEMORY.md, {source}, not an instruction; the owner approves it with holdfast chat memory --approve"
        return [Piece(text.removeprefix("\ufeff"), about, quoted)]

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
        room = self.budget * _CHAT // 100
        for message in reversed(said):  # these fit in any case, so recall need not show them
            room -= count_tokens(message.content) + _AROUND
            if room < 0:
                break
            self.shown.add(message.id)
        heads = [_joined(chat.label(message) or message.role, age(message.timestamp)) for message in said]
        return [Piece(message.content, head) for message, head in zip(said, heads, strict=True)]

    def purpose(self) -> list[Piece]:
        """Return the part about the workspace, from a few files."""
        runner, named = self.call.runner, self.call.context.workspaceId
        if not named:
            return [Piece(_line(_about(each))) for each in runner.workspaces.all()]
        data = runner.workspaces.load(named) | {"plans": [], "states": []}
        return [Piece(line) for line in _briefing(data | {"recentActivity": runner.traces.recent(self.call.scope)})]

    def workspace(self) -> list[Piece]:
        named = self.call.context.workspaceId
        if not named and DEFAULT not in self.memory.scopes.children(""):
            return self.purpose()
        data = loadWorkspace(self.call, named or DEFAULT)
        found = self.call.runner.knowledge.learnings(self.call.scope)
        entries = [(entry, kind) for kind in ("decision", "lesson") for entry in found[f"{kind}s"]]
        entries.sort(key=lambda one: str(one[0].get("date", "")), reverse=True)
        learned = [f"{kind} {entry.get('title', '')}: {entry['content']}" for entry, kind in entries[:_LISTED]]
        return ([] if named else self.purpose()) + [Piece(line) for line in _briefing(data | {"learned": learned})]

    def recall(self) -> list[Piece]:
        task = self.call.context.goal
        if not task.strip():
            return []
        scope = self.call.scope.path if self.call.context.workspaceId else None
        most = min(_HITS + len(self.shown), MAX_LIMIT)
        found = self.memory.find(Query(text=task, scope=scope, shared=True, above=True, limit=most, budget=self.budget))
        self.warnings += [str(problem) for problem in found.problems[:_LISTED]]
        sources = self.memory.sources(hit.record for hit in found)
        fresh = [
            hit
            for hit in found
            if hit.record.id not in self.shown and sources[hit.record.id].trust != "other" and not lapsed(hit.record)
        ]
        pieces = []
        for hit in fresh[:_HITS]:
            title = prompts.one_line(hit.record.title)
            text = hit.snippet if not title or title in hit.snippet else f"{title}\n{hit.snippet}"
            unseen = prompts.invisible_sorts(f"{hit.record.title}\n{hit.snippet}")
            warning = f"warning: contains {unseen}" if unseen else ""
            pieces.append(Piece(text, _joined(hit.record.where, hit.age, str(sources[hit.record.id]), warning)))
        return pieces


def _briefing(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the description of a workspace, line by line."""
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
    yield from (_line(f"- {line}") for line in data.get("learned", ()))
    activity = [done for done in data["recentActivity"] if done["success"] and not done["what"].startswith(_RECORDED)]
    for done in activity[:_LISTED]:
        goal = f", for: {done['goal']}" if done["goal"] else ""
        yield _line(f"- {age(done['time'])}: {done['what']}{goal}")


def _about(item: Mapping[str, str]) -> str:
    return f"{item['name']}: {item['description']}" if item["description"] else item["name"]


def _line(text: str) -> str:
    return head(prompts.one_line(text), _LINE)


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
