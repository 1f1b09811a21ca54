"""Tools for the memory of an agent at work: the compartments, the four memories with large values, and the chat.

The agents are `compartments`, `mind` and `chat`. Compartments and chat reply with text, and with the same as data.
Without a run in the context, the session is the run.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from holdfast.errors import Invalid
from holdfast.formats.prompts import Message, one_line
from holdfast.memories import compartments
from holdfast.memories.chat import MOST, Saved
from holdfast.memories.compartments import Run, filtered
from holdfast.memories.corrections import PENDING
from holdfast.memories.mind import MOST_READ, READ, TYPES, Mind
from holdfast.model.names import amount
from holdfast.model.times import local
from holdfast.tools.calling import Call, Registry

Compartment = Annotated[
    str,
    "run: this run alone; session: the whole session, sub-agents too; plan: plans and their progress; or one that the"
    " owner defined",
]
Category = Annotated[str | None, "only entries of this category"]
Tags = Annotated[list[str] | str | None, "only entries with any of these tags"]
Kind = Annotated[str, f"which memory: {', '.join(TYPES)}"]
Ref = Annotated[
    str,
    "the ref that an entry shows; episodic, the history of this session; history, the chat; the path of a transcript,"
    " or the id of one of its turns",
]
_OPTIONAL = ("category", "tags", "metadata")
_LINE = 300
"""Characters of a message that a search shows."""


def save_memory(
    call: Call,
    compartment: Compartment,
    content: Annotated[str, "the information to save"],
    category: Annotated[str | None, "to find it by"] = None,
    tags: Annotated[list[str] | str | None, "to find it by"] = None,
    metadata: Annotated[dict[str, str] | None, "names and values, all text"] = None,
    priority: Annotated[int, msgspec.Meta(ge=1, le=10), "1 to 10; the highest comes first"] = 5,
) -> dict[str, Any]:
    """Save what you will need later: for this run, for the whole session, or as part of a plan."""
    run, lasts = _run(call), call.runner.compartments.lasts(compartment)
    made = run.save(
        compartment, content, category=category or "", tags=tags or (), metadata=metadata, priority=priority
    )
    where = f"{lasts} {run.id if lasts == 'run' else run.session}"
    return {"id": made, "where": where, "text": f"Memory saved successfully with ID: {made}"}


def get_memory(
    call: Call,
    compartment: Compartment,
    id: Annotated[str | None, "only this entry"] = None,
    category: Category = None,
    tags: Tags = None,
) -> dict[str, Any]:
    """Read what was saved in a compartment: all of it, one entry, or those of a category or tag."""
    run = _run(call)
    get = functools.partial(run.peek, join=False) if call.runner.reads_only else run.get
    found = get(compartment, id or "", category=category or "", tags=tags or ())
    parts = []
    for entry in found:
        lines = {
            "ID": entry.id, "Content": entry.content, "Category": entry.category, "Tags": ", ".join(entry.tags),
            "Metadata": ", ".join(f"{name}: {value}" for name, value in entry.metadata.items()),
            "Priority": entry.priority, "Created": entry.created_at, "Updated": entry.updated_at,
            "Access Count": entry.access_count,
        }  # fmt: skip
        shown = [f"{name}: {value}" for name, value in lines.items() if value or name.lower() not in _OPTIONAL]
        # the lines of a long value are indented, so that none looks like a field
        parts.append("\n".join("\n  ".join(line.splitlines()) for line in shown))
    text = "\n---\n".join(parts) or "No memory entries found"
    text = "\n".join((text, *(f"Warning: {warning}" for warning in call.warnings)))
    entries = [msgspec.structs.asdict(entry) | {"tags": list(entry.tags)} for entry in found]
    return {"entries": [{k: v for k, v in one.items() if v or k not in _OPTIONAL} for one in entries], "text": text}


def clear_memory(call: Call, compartment: Compartment, category: Category = None, tags: Tags = None) -> dict[str, Any]:
    """Make room in a compartment: clear all of it, or the entries of a category or tag. No tool restores them:
    those of a run are gone, those of a session or a plan are hidden and stay in the owner's files."""
    wanted = filtered(None, category, tags)
    count = _run(call).clear(compartment, category=wanted.category, tags=wanted.tags)
    which = f" with category '{wanted.category}'" if wanted.category else ""
    which += f" with tags: {', '.join(wanted.tags)}" if wanted.tags else ""
    text = f"Memory cleared successfully for compartment '{compartment}'{which}: {count} entries."
    return {"cleared": count, "text": text}


def end_run(call: Call) -> dict[str, Any]:
    """End the current run and remove its memory. Call it when the task is done."""
    count = Run(call.runner.compartments, call.session, call.context.runId or call.session).end()
    return {"cleared": count, "text": f"Run ended: {amount(count, 'entry', 'entries')} removed."}


class Last(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    last: int


def memory_append(call: Call, type: Kind, entry: Annotated[str | dict[str, Any], "text, or any object"]) -> Any:
    """Add to a memory. Episodic takes what happened, semantic {key, value}, procedural {when, do}, working what
    matters now."""
    return _written(call, type, _mind(call).append(type, entry, call.op_id))


def memory_search(
    call: Call,
    type: Kind,
    query: Annotated[str | Last | None, "some words, or {last: n}"] = None,
    last: Annotated[int | None, "instead: the last n entries, oldest first"] = None,
    limit: Annotated[int, "most entries to return"] = 10,
) -> Any:
    """Search a memory by words, or read its last entries. Covered entries are those that a summary replaces."""
    if isinstance(query, Last) and last is None:
        last, query = query.last, None
    if last is not None and not query:
        found: list[dict[str, Any]] = msgspec.to_builtins(_mind(call).search(type, {"last": last}, limit))
        return [{name: value for name, value in one.items() if name != "score"} for one in found]
    if isinstance(query, str) and query and last is None:
        return msgspec.to_builtins(_mind(call).search(type, query, limit))
    hint = "last: n is instead of it." if query else "or give last: n."
    raise Invalid(f"A query is text; {hint}", "Give one of them.")


def memory_learn(call: Call, key: Annotated[str, "what it is about"], value: Annotated[Any, "what is known"]) -> Any:
    """Keep a piece of knowledge by key; the value before it stays in its history."""
    return _written(call, "semantic", _mind(call).learn(key, value, call.op_id))


def memory_recall(
    call: Call,
    key: str,
    history: Annotated[bool, "all values it ever had, oldest first"] = False,
    as_of: Annotated[str | None, "the value at this ISO date or time"] = None,
) -> Any:
    """Recall knowledge by its key; null when nothing is known."""
    return _mind(call).recall(key, history, as_of or "")


def memory_match(call: Call, situation: Annotated[str, "the situation"], limit: int = 5) -> Any:
    """Find the procedures that apply to a situation, best first."""
    return _mind(call).match(situation, limit)


def memory_compact(
    call: Call,
    type: Kind,
    keepLast: Annotated[int, "entries that stay as they are"] = 10,
    summarizeOlder: Annotated[bool, "false covers them without a summary"] = True,
    opts: Annotated[dict[str, Any] | None, "the same as one object: {keepLast, summarizeOlder}"] = None,
) -> Any:
    """Summarise the older entries of a memory, so that its window stays small. They stay in the file and in search."""
    given = {"keepLast": keepLast, "summarizeOlder": summarizeOlder} | (opts or {})
    done = _mind(call).compact(type, given)
    return {"covered": done.covered, "kept": done.kept} | msgspec.to_builtins(done)


def memory_stats(call: Call) -> Any:
    """Count what is remembered."""
    return _mind(call).stats()


def value_read(
    call: Call,
    ref: Ref,
    offset: Annotated[int, msgspec.Meta(ge=0), "character to start at"] = 0,
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_READ), "most characters"] = READ,
) -> Any:
    """Read a part of a large value that an entry refers to."""
    return call.runner.values.read(ref, offset, limit, call.session)


def value_search(call: Call, ref: Ref, query: str, limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10) -> Any:
    """Find the places of a large value that have some words."""
    return call.runner.values.search(ref, query, limit, call.session)


def value_summarize(call: Call, ref: Ref, budget: Annotated[int, msgspec.Meta(ge=1), "most tokens"] = 500) -> Any:
    """Summarise a large value in sentences of its own."""
    return {"ref": ref, "summary": call.runner.values.summarize(ref, budget, call.session)}


def memory_write(
    call: Call, content: Annotated[str, "the whole new text, which replaces the old one; empty empties it"]
) -> dict[str, Any]:
    """Replace MEMORY.md, which is in every prompt: facts about the owner and the work that every conversation needs.
    Read it in your prompt first and write all of it, short."""
    saved = call.runner.chat.save_global_memory(content, call.op_id)
    return _saved(saved, "MEMORY.md was written" if content.strip() else "MEMORY.md is empty now")


def memory_undo(call: Call) -> dict[str, Any]:
    """Restore MEMORY.md as it was before the last memory_write. Call it again to go further back."""
    return _saved(call.runner.chat.undo_global_memory(call.op_id), "MEMORY.md is as it was before")


def search_history(
    call: Call,
    query: Annotated[str, "words that were said"],
    days: Annotated[int | None, "only the last so many days"] = None,
    max_results: Annotated[int, f"1 to {MOST}"] = 10,
    channel: Annotated[str | None, "only this channel, named as in the labels"] = None,
) -> dict[str, Any]:
    """Find what was said before, on any channel. Use it before you answer from a memory that may be wrong."""
    chat = call.runner.chat
    found = chat.search(query, days, max_results, channel or "")
    parts = []
    for number, match in enumerate(found, 1):
        said, before, after = match.message, match.before, match.after
        label = chat.label(said) or f"[{one_line(said.channel) or 'no channel'} / {said.role}]"
        lines = [_line(before, before.content)] if before else []
        lines += [f"**{_line(said, match.snippet)}**", *([_line(after, after.content)] if after else [])]
        head = f"## Match {number} - {label} | {local(said.timestamp) or 'no time'}"
        parts.append("\n".join((head, "", *lines, "---")))
    text = "\n\n".join(parts) or f"No matches found for '{query}'."
    return {"text": text, "matches": [msgspec.to_builtins(match) for match in found]}


def register(registry: Registry) -> None:
    text = operator.itemgetter("text")
    saves = functools.partial(_check, content="")
    for function, check in ((save_memory, saves), (get_memory, _check), (clear_memory, _check), (end_run, None)):
        registry.add("compartments", function, check=check, private=True, render=text, reads=function is get_memory)
    writes = (memory_append, memory_learn, memory_compact)
    for each in (
        memory_append, memory_search, memory_learn, memory_recall, memory_match, memory_compact, memory_stats,
        value_read, value_search, value_summarize,
    ):  # fmt: skip
        registry.add("mind", each, enveloped=True, reads=each not in writes)
    registry.add("chat", memory_write, render=text, blank=("content",))
    registry.add("chat", memory_undo, render=text)
    registry.add("chat", search_history, render=text, reads=True, check=_check_query)


def _run(call: Call) -> Run:
    """Return the run of a call, with the workspace if the context names one."""
    workspace = call.scope.path if call.context.workspaceId else ""
    run = Run(call.runner.compartments, call.session, call.context.runId or call.session, workspace, call.op_id)
    run.warnings = call.warnings
    return run


def _check(given: Mapping[str, Any], **required: str) -> None:
    """Check the parameters with the error texts of the contract; optional ones may be null."""
    compartments.check(required | {name: value for name, value in given.items() if value is not None})


def _written(call: Call, type: str, id: str) -> dict[str, str]:
    """Return the id of an entry, and where it was added."""
    workspace = {"workspace": call.scope.path} if call.context.workspaceId and type != "working" else {}
    if call.memory.settings.review.kinds and id and (record := call.memory.get(id)).kind == "proposal":
        return {"status": "pending", "id": id, "where": record.path, "next": PENDING} | workspace
    return {"id": id, "where": _mind(call).where(type)} | workspace


def _mind(call: Call) -> Mind:
    """Return the memories of the session of a call; working memory lives as long as the process."""
    window = call.runner.windows.of(call.session)
    mind = Mind(call.memory, call.session, call.scope if call.context.workspaceId else None, window=window)
    mind.warnings = call.warnings
    return mind


def _check_query(given: Mapping[str, Any]) -> None:
    query = given.get("query")
    if query is None or (isinstance(query, str) and not query.strip()):
        raise Invalid("Error: query is required")


def _saved(saved: Saved, what: str) -> dict[str, Any]:
    warning = f" Warning: {saved.warning}" if saved.warning else ""
    text = f"{what} ({amount(saved.tokens, 'token')}).{warning}"
    reply = {"text": text, "status": saved.receipt.status, "where": saved.receipt.path, "tokens": saved.tokens}
    return reply | ({"warnings": [saved.warning]} if saved.warning else {})


def _line(message: Message, text: str) -> str:
    flat = " ".join(text.split())
    return f"{message.role.upper()}: {flat if len(flat) <= _LINE else flat[: _LINE - 1] + '…'}"
