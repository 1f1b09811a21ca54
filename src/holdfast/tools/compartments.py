"""Tools for the compartments, agent `compartments`: save, get, clear, and end a run.

Replies are text, with the same as data. Without a run in the context, the session is the run.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from holdfast.memories import compartments
from holdfast.memories.compartments import Entry, Note, Owner, filtered
from holdfast.model.names import amount
from holdfast.tools.calling import Call, Registry

Compartment = Annotated[
    str,
    "run: this run alone; session: the whole session, sub-agents too; plan: plans and their progress; or one that the"
    " owner defined",
]
Category = Annotated[str | None, "only entries of this category"]
Tags = Annotated[list[str] | str | None, "only entries with any of these tags"]
_OPTIONAL = ("category", "tags", "metadata")


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
    owner = _owner(call)
    made = call.runner.compartments.save(owner, compartment, note)
    lasts = call.runner.compartments.lasts(compartment)
    where = f"{lasts} {owner.run or owner.session if lasts == 'run' else owner.session}"
    return {"id": made, "where": where, "text": f"Memory saved successfully with ID: {made}"}


def get_memory(
    call: Call,
    compartment: Compartment,
    id: Annotated[str | None, "only this entry"] = None,
    category: Category = None,
    tags: Tags = None,
) -> dict[str, Any]:
    """Read what was saved in a compartment: all of it, one entry, or those of a category or tag."""
    stored, wanted = call.runner.compartments, filtered(id, category, tags)
    get = functools.partial(stored.peek, join=False) if call.runner.reads_only else stored.get
    found = get(_owner(call), compartment, wanted)
    text = "\n---\n".join(map(_shown, found)) or "No memory entries found"
    text = "\n".join((text, *(f"Warning: {warning}" for warning in call.warnings)))
    entries = [msgspec.structs.asdict(entry) | {"tags": list(entry.tags)} for entry in found]
    return {"entries": [{k: v for k, v in one.items() if v or k not in _OPTIONAL} for one in entries], "text": text}


def clear_memory(call: Call, compartment: Compartment, category: Category = None, tags: Tags = None) -> dict[str, Any]:
    """Make room in a compartment: clear all of it, or the entries of a category or tag. No tool restores them:
    those of a run are gone, those of a session or a plan are hidden and stay in the owner's files."""
    wanted = filtered(None, category, tags)
    count = call.runner.compartments.clear(_owner(call), compartment, wanted)
    which = f" with category '{wanted.category}'" if wanted.category else ""
    which += f" with tags: {', '.join(wanted.tags)}" if wanted.tags else ""
    text = f"Memory cleared successfully for compartment '{compartment}'{which}: {count} entries."
    return {"cleared": count, "text": text}


def end_run(call: Call) -> dict[str, Any]:
    """End the current run and remove its memory. Call it when the task is done."""
    count = call.runner.compartments.end_run(Owner(call.session, call.context.runId))
    return {"cleared": count, "text": f"Run ended: {amount(count, 'entry', 'entries')} removed."}


def register(registry: Registry) -> None:
    saves = functools.partial(_check, content="")
    for function, check in ((save_memory, saves), (get_memory, _check), (clear_memory, _check), (end_run, None)):
        options = {"private": True, "render": operator.itemgetter("text"), "reads": function is get_memory}
        registry.add("compartments", function, check=check, **options)


def _owner(call: Call) -> Owner:
    """Return the session and run of a call, with the workspace if the context names one."""
    workspace = call.scope.path if call.context.workspaceId else ""
    return Owner(call.session, call.context.runId, workspace, call.op_id, call.warnings)


def _check(given: Mapping[str, Any], **required: str) -> None:
    """Check the parameters with the error texts of the contract; optional ones may be null."""
    compartments.check(required | {name: value for name, value in given.items() if value is not None})


def _shown(entry: Entry) -> str:
    """Return an entry as text; the lines of a long value are indented, so that none looks like a field."""
    lines = {
        "ID": entry.id, "Content": entry.content, "Category": entry.category, "Tags": ", ".join(entry.tags),
        "Metadata": ", ".join(f"{name}: {value}" for name, value in entry.metadata.items()),
        "Priority": entry.priority, "Created": entry.created_at, "Updated": entry.updated_at,
        "Access Count": entry.access_count,
    }  # fmt: skip
    shown = [f"{name}: {value}" for name, value in lines.items() if value or name.lower() not in _OPTIONAL]
    return "\n".join("\n  ".join(line.splitlines()) for line in shown)
