"""Tools for the four memories and for large values, agent `mind`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from holdfast.errors import Invalid
from holdfast.memories import values
from holdfast.memories.corrections import PENDING
from holdfast.memories.mind import TYPES, Mind
from holdfast.tools.calling import Call, Registry

Kind = Annotated[str, f"which memory: {', '.join(TYPES)}"]


class Last(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    last: int


Ref = Annotated[
    str,
    "the ref that an entry shows; episodic, the history of this session; history, the chat; the path of a transcript,"
    " or the id of one of its turns",
]


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
    raise Invalid(f"A query is some words; {hint}", "Give either.")


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


def memory_match(call: Call, situation: Annotated[str, "what is going on"], limit: int = 5) -> Any:
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
    limit: Annotated[int, msgspec.Meta(ge=1, le=values.MOST), "most characters"] = values.READ,
) -> Any:
    """Read a part of a large value that an entry refers to."""
    return call.runner.values.read(ref, offset, limit, call.session)


def value_search(call: Call, ref: Ref, query: str, limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10) -> Any:
    """Find the places of a large value that have some words."""
    return call.runner.values.search(ref, query, limit, call.session)


def value_summarize(call: Call, ref: Ref, budget: Annotated[int, msgspec.Meta(ge=1), "most tokens"] = 500) -> Any:
    """Summarise a large value in sentences of its own."""
    return {"ref": ref, "summary": call.runner.values.summarize(ref, budget, call.session)}


def register(registry: Registry) -> None:
    for function in (
        memory_append, memory_search, memory_learn, memory_recall, memory_match, memory_compact, memory_stats,
        value_read, value_search, value_summarize,
    ):  # fmt: skip
        reads = function not in (memory_append, memory_learn, memory_compact)
        registry.add("mind", function, enveloped=True, reads=reads)


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
