"""Tools over the compartments, agent `compartments`: save, get, clear, and the end of a run.

Replies are text, with the same beside it as data. The run is that of the context; without one, the session is the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from holdfast.memories import compartments
from holdfast.memories.compartments import Entry, Note, Owner, filtered
from holdfast.model.names import amount
from holdfast.tools.calling import Call
from holdfast.tools.registry import Registry

Compartment = Annotated[
    Literal["run", "session", "plan"],
    "run: this run alone; session: the whole session, sub-agents too; plan: plans and their progress",
]
Category = Annotated[str | None, "only entries of this category"]
Tags = Annotated[list[str] | str | None, "only entries with any of these tags"]


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
    given = [tags] if isinstance(tags, str) else tags or []
    note = Note(content, category or "", tuple(given), metadata or {}, priority)
    made = call.runner.compartments.save(_owner(call), compartment, note)
    return {"id": made, "text": f"Memory saved successfully with ID: {made}"}


def get_memory(
    call: Call,
    compartment: Compartment,
    id: Annotated[str | None, "only this entry"] = None,
    category: Category = None,
    tags: Tags = None,
) -> dict[str, Any]:
    """Read what was saved in a compartment: all of it, one entry, or those of a category or tag."""
    owner, wanted, held = _owner(call), filtered(id, category, tags), call.runner.compartments
    reads_only = call.runner.reads_only
    found = held.peek(owner, compartment, wanted, join=False) if reads_only else held.get(owner, compartment, wanted)
    text = "\n---\n".join(map(_told, found)) or "No memory entries found"
    text = "\n".join((text, *(f"Warning: {warning}" for warning in call.warnings)))
    return {"entries": [_data(entry) for entry in found], "text": text}


def clear_memory(call: Call, compartment: Compartment, category: Category = None, tags: Tags = None) -> dict[str, Any]:
    """Make room in a compartment: clear all of it, or the entries of a category or tag. No tool brings them back:
    those of a run are gone, those of a session or a plan are hidden and stay in the owner's files."""
    wanted = filtered(None, category, tags)
    count = call.runner.compartments.clear(_owner(call), compartment, wanted)
    which = f" with category '{wanted.category}'" if wanted.category else ""
    which += f" with tags: {', '.join(wanted.tags)}" if wanted.tags else ""
    text = f"Memory cleared successfully for compartment '{compartment}'{which}: {count} entries."
    return {"cleared": count, "text": text}


def end_run(call: Call) -> dict[str, Any]:
    """End the current run: all that its memory holds is removed. Call it when the task is done."""
    count = call.runner.compartments.end_run(Owner(call.session, call.context.runId))
    return {"cleared": count, "text": f"Run ended: {amount(count, 'entry', 'entries')} removed."}


def register(registry: Registry) -> None:
    """Add the tools, in the order in which they are listed."""
    registry.add("compartments", private=True, render=_text, check=_check_save)(save_memory)
    registry.add("compartments", private=True, render=_text, check=_check, reads=True)(get_memory)
    registry.add("compartments", private=True, render=_text, check=_check)(clear_memory)
    registry.add("compartments", private=True, render=_text)(end_run)


def _owner(call: Call) -> Owner:
    """Return for whom a call works; a workspace is noted where the context names one."""
    workspace = call.scope.path if call.context.workspaceId else ""
    return Owner(call.session, call.context.runId, workspace, call.op_id, call.warnings)


def _check(given: Mapping[str, Any]) -> None:
    """Look at the parameters as the contract does; one that may be left out may also be null."""
    compartments.check({name: value for name, value in given.items() if value is not None})


def _check_save(given: Mapping[str, Any]) -> None:
    _check({"content": ""} | {name: value for name, value in given.items() if value is not None})


def _text(reply: dict[str, Any]) -> str:
    return str(reply["text"])


def _told(entry: Entry) -> str:
    """Return an entry as a model reads it; what has several lines goes on indented, so that none of it is a field."""
    metadata = ", ".join(f"{name}: {value}" for name, value in entry.metadata.items())
    lines = {
        "ID": entry.id,
        "Content": entry.content,
        "Category": entry.category,
        "Tags": ", ".join(entry.tags),
        "Metadata": metadata,
        "Priority": entry.priority,
        "Created": entry.created_at,
        "Updated": entry.updated_at,
        "Access Count": entry.access_count,
    }
    return "\n".join(
        "\n  ".join(f"{name}: {value}".splitlines())
        for name, value in lines.items()
        if value or name not in ("Category", "Tags", "Metadata")
    )


def _data(entry: Entry) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.structs.asdict(entry) | {"tags": list(entry.tags)}
    return {name: value for name, value in data.items() if value or name not in ("category", "tags", "metadata")}
