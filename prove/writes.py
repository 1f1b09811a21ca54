"""Every public write, with an effect that can be counted: each contains a tag, and its effect is found by the tag.

`do` makes the write with the tag as its op_id; `before` makes the records that it needs. `served` reads a memory
through its public interface and returns how often each tag has effect; text that differs from what was written is
marked as torn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import holdfast
from holdfast.memories.compartments import Run
from holdfast.model.queries import Query
from prove.history import TORN

LONG = "and words that are many enough to be torn in two by a kill, " * 30
HUGE = LONG * 12
"""Too long for a line: it is stored in its own file."""
EDITED, STATE = "Edited by all", {"conversationContext": "x", "activeTask": "y"}
Memory = holdfast.Memory


@dataclass(frozen=True)
class Write:
    """One public write."""

    do: Callable[[Memory, str], Any]
    before: Callable[[Memory, str], Any] = lambda _memory, _tag: None


def _put(kind: str, long: str = LONG, **fields: str) -> Write:
    def do(memory: Memory, tag: str) -> Any:
        filled = {name: value.format(tag=tag) for name, value in fields.items()}
        return memory.put(kind, f"{tag} {long}", title=tag, fields=filled, op_id=tag)  # type: ignore[arg-type]

    return Write(do)


def _rule(memory: Memory, tag: str) -> Any:
    return memory.put("rule", f"{tag} {LONG}", id=f"agent/rules/common/{tag}.md", op_id=tag)


def _edit(memory: Memory, tag: str) -> Any:
    """Add a line to the one shared document, from the version that was read."""
    now = memory.get(_edited(memory))
    return memory.put(id=now.id, text=f"{now.text.strip()}\n{tag}", expect=now.version, op_id=tag)


def _edited(memory: Memory) -> str:
    """Return the shared document; make it if it does not exist."""
    try:
        return memory.put("note", "start", title=EDITED, op_id="the-edited").id
    except holdfast.errors.AlreadyExists as error:
        raise AssertionError("it is made under one op_id only") from error


def _entry_of(memory: Memory, tag: str) -> str:
    """Save an entry of a file, to change it later."""
    return memory.put("lesson", f"changed-{tag} {LONG}", title=f"Lesson {tag}", op_id=f"{tag}-before").id


def _reword(memory: Memory, tag: str) -> Any:
    now = memory.get(_entry_of(memory, tag))
    return memory.put(id=now.id, text=f"{tag} {LONG}", expect=now.version, op_id=tag)


def _line(memory: Memory, tag: str) -> str:
    return memory.put("episode", f"line-{tag} {LONG}", session="hidden", op_id=f"{tag}-before").id


def _page(memory: Memory, tag: str) -> str:
    return memory.put("note", f"page-{tag} {LONG}", title=f"Page {tag}", op_id=f"{tag}-before").id


def _point(memory: Memory, tag: str) -> str:
    return memory.put("state", f"point-{tag} {LONG}", title=f"Point {tag}", op_id=f"{tag}-before").id


def _plan(memory: Memory, tag: str) -> str:
    return memory.put("plan", f"planned-{tag} {LONG}", title=f"Plan {tag}", op_id=f"{tag}-before").id


def _job(memory: Memory, tag: str) -> str:
    return str(memory.jobs.add(f"job-{tag}", "hello", "0 9 * * *", op_id=f"{tag}-before").id)


def _hide(target: Callable[[Memory, str], str]) -> Write:
    return Write(lambda memory, tag: memory.hide(target(memory, tag), op_id=tag), target)


def _remember(memory: Memory, tag: str) -> Any:
    """Add a line to `MEMORY.md`, as its only writer."""
    now = memory.chat.load_global_memory()
    text = now if f"{tag}\n" in now else f"{now}{tag}\n"
    return memory.chat.save_global_memory(text, op_id=tag).receipt


def _tool(tool: str, /, **params: Any) -> Write:
    """Return a write that calls a tool, as an agent does: an error is a reply."""

    def do(memory: Memory, tag: str) -> Any:
        given = {key: value.format(tag=tag) if isinstance(value, str) else value for key, value in params.items()}
        reply = memory.call(tool, given, {"opId": tag, "sessionId": "agent", "workspaceId": "default"})
        if reply.get("success") is False:
            raise holdfast.errors.Unavailable(str(reply.get("error")), "It was told by a tool.")
        return reply

    return Write(do)


WRITES: dict[str, Write] = {
    "note": _put("note"),
    "plan": _put("plan"),
    "skill": _put("skill", description="of {tag}"),
    "state": _put("state"),
    "rule": Write(_rule),
    "decision": _put("decision"),
    "lesson": _put("lesson"),
    "message": _put("message"),
    "fact": _put("fact", key="{tag}"),
    "procedure": _put("procedure", when="when {tag}"),
    "episode": _put("episode"),
    "value": _put("episode", HUGE),
    "edit": Write(_edit, lambda memory, _: _edited(memory)),
    "reword": Write(_reword, _entry_of),
    "hide-line": _hide(_line),
    "hide-page": _hide(_page),
    "hide-point": _hide(_point),
    "status": Write(lambda memory, tag: memory.knowledge.set_status(memory.get(_plan(memory, tag)), "done", tag), _plan),
    "exchange": Write(lambda memory, tag: memory.chat.persist_exchange("cli", "me", f"{tag} {LONG}", f"{tag} {LONG}", tag)),
    "memory": Write(_remember),
    "learn": Write(lambda memory, tag: memory.mind("mind").learn(tag, f"{tag} {LONG}", tag)),
    "happened": Write(lambda memory, tag: memory.mind("mind").append("episodic", f"{tag} {LONG}", tag)),
    "job": Write(lambda memory, tag: memory.jobs.add(tag, "hello", "0 9 * * *", op_id=tag).id),
    "job-off": Write(lambda memory, tag: memory.jobs.set_enabled(_job(memory, tag), False, tag).id, _job),
    "entry": Write(lambda memory, tag: Run(memory.compartments, f"session {tag}", op_id=tag).save("session", f"{tag} {LONG}")),
    "workspace": Write(lambda memory, tag: memory.workspaces.create(tag, {"description": "d", "rootFolder": ".", "purpose": "p"}, tag)),
    "remember": _tool("remember", text="{tag} " + LONG, title="{tag}", kind="note"),
    "createState": _tool("createState", name="{tag}", conversationContext="{tag} " + LONG, activeTask="t", activeFiles=[], nextSteps=[]),
}  # fmt: skip
"""All writes by name; a tag starts with the name of its write and a dot."""

LOGS = ("message", "fact", "procedure", "episode", "exchange", "learn", "happened", "job", "entry", "hide-line")
"""The writes that append one line to a log."""


def tag_of(name: str, *parts: object) -> str:
    return ".".join(map(str, (name, *parts)))


def served(memory: Memory) -> Counter[str]:
    """Return how often each tag has effect for a reader of this memory."""
    found = Counter[str]()
    halves = Counter[str]()
    for record in memory.every(Query(kinds=_READ, hidden=True)):
        for tag in _told(record):
            if not tag.startswith("exchange."):
                found[tag] += 1
            elif not record.hidden:  # half of a pair is left out and hidden
                halves[tag] += 1
    found.update({tag: count // 2 if count % 2 == 0 else 99 for tag, count in halves.items()})
    found.update(memory.chat.load_global_memory().split())
    for job in memory.jobs.all():
        found.update([job.name] if not job.name.startswith("job-") else [] if job.enabled else [job.name[4:]])
    found.update(item["name"] for item in memory.workspaces.all() if item["name"].startswith("workspace."))
    return found


_READ = (
    "note",
    "plan",
    "skill",
    "state",
    "rule",
    "decision",
    "lesson",
    "message",
    "fact",
    "procedure",
    "episode",
    "entry",
)


def _told(record: holdfast.Record) -> Iterator[str]:
    """Yield the tags for which a record counts."""
    first, _, rest = record.text.strip().partition(" ")
    kind, _, tag = first.partition("-")
    if record.title == EDITED:
        yield from (line for line in record.text.split()[1:])
    elif rest.strip() not in (LONG.strip(), HUGE.strip()):
        yield f"{TORN}{record.id} {first} of {len(record.text)} characters"
    elif kind in ("line", "page", "point"):
        yield from [tag] * record.hidden
    elif kind == "planned":
        yield from [tag] * (record.fields.get("status") == "done")
    elif kind not in ("changed", "outside"):
        yield first
