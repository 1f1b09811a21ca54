"""Tools for workspaces, states and traces: agents `memoryManager` and `searchManager`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from holdfast.errors import Invalid
from holdfast.memories.workspaces import FIELDS, activity
from holdfast.model.queries import Query
from holdfast.model.records import text_of
from holdfast.tools.calling import Call
from holdfast.tools.registry import Registry

_NEWEST_STATES = 20
_ACTIVE_PLANS = ("new", "in_progress", "partial")

Name = Annotated[str, "its name"]
Workflow = str | dict[str, Any]
Archived = Annotated[bool, "also archived ones"]
Restore = Annotated[bool, "show it again instead"]


class DateRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    start: str = ""
    end: str = ""


def createWorkspace(
    call: Call,
    name: Name,
    description: Annotated[str, "what it is, in a sentence or two"],
    rootFolder: Annotated[str, "folder for its files, relative to the memory root"],
    purpose: Annotated[str, "what it is used for"],
    workflows: Annotated[list[Workflow] | None, "common ways of working: text or {name, when, steps}"] = None,
    keyFiles: Annotated[list[str] | None, "files that matter most"] = None,
    preferences: Annotated[dict[str, Any] | str | None, "how work should be done here"] = None,
) -> None:
    """Make a workspace: the place that a project's memory belongs to, shared by all conversations."""
    fields = dict(zip(FIELDS, (description, rootFolder, purpose, workflows, keyFiles, preferences), strict=True))
    call.runner.workspaces.create(name, fields, call.op_id)


def listWorkspaces(call: Call, includeArchived: Archived = False) -> list[dict[str, str]]:
    """List the workspaces with their descriptions."""
    return call.runner.workspaces.all(archived=includeArchived)


def loadWorkspace(call: Call, name: Name) -> dict[str, Any]:
    """Load a workspace before working in it: its purpose, recent activity, save points, open plans."""
    data = call.runner.workspaces.load(name)
    scope = call.memory.scopes.resolve(name)
    states = call.runner.states.all(scope)
    data["recentActivity"] = call.runner.traces.recent(scope)
    data["states"] = states[:_NEWEST_STATES]
    if len(states) > _NEWEST_STATES:
        data["moreStates"] = len(states) - _NEWEST_STATES
    data["plans"] = [
        {"name": plan.title, "description": text_of(plan.fields.get("description")), "status": status}
        for plan in call.memory.every(Query(kinds=("plan",), scope=scope))
        if (status := plan.fields.get("status")) in _ACTIVE_PLANS
    ]
    return data


def updateWorkspace(
    call: Call,
    name: Name,
    newName: Annotated[str | None, "rename it; its folder stays"] = None,
    description: str | None = None,
    rootFolder: str | None = None,
    purpose: str | None = None,
    workflows: Annotated[list[Workflow] | None, "replaces the list"] = None,
    keyFiles: Annotated[list[str] | None, "replaces the list"] = None,
    preferences: Annotated[dict[str, Any] | str | None, "replaces them"] = None,
    isArchived: Annotated[bool | None, "false restores an archived workspace"] = None,
) -> None:
    """Change fields of a workspace; fields that are not given stay as they are."""
    values = (description, rootFolder, purpose, workflows, keyFiles, preferences)
    changes = {field: value for field, value in zip(FIELDS, values, strict=True) if value is not None}
    given = {**changes, "newName": newName}
    if blank := [field for field, value in given.items() if isinstance(value, str) and not value.strip()]:
        raise Invalid(f"Blank: {', '.join(blank)}.", "Give text, or leave it out.")
    workspaces, changed = call.runner.workspaces, bool(changes or newName)
    if not changed and isArchived is None:
        raise Invalid("There is nothing to update.", f"Give newName, {', '.join(FIELDS)} or isArchived.")
    archives = isArchived is not None
    if changed:
        # with other changes, repeating the present state is no error
        archives = archives and isArchived is not workspaces.load(name).get("isArchived", False)
        workspaces.update(name, changes, newName or "", call.op_id)
    if archives:
        op_id = call.op_id and call.op_id + "-archive"
        workspaces.archive(newName or name, restore=not isArchived, op_id=op_id)


def archiveWorkspace(call: Call, name: Name, restore: Restore = False) -> None:
    """Hide a workspace from lists; nothing in it is lost."""
    call.runner.workspaces.archive(name, restore=restore, op_id=call.op_id)


def createState(
    call: Call,
    name: Annotated[str, "unique in the workspace, for ever"],
    conversationContext: Annotated[str, "what was happening, and what was decided"],
    activeTask: Annotated[str, "what you were working on"],
    activeFiles: Annotated[list[str], "files you were working with"],
    nextSteps: Annotated[list[str], "what to do first when resuming"],
    description: Annotated[str | None, "one line for lists"] = None,
    tags: list[str] | None = None,
) -> None:
    """Save where you are, so that any later conversation can resume. States never change: save a new one."""
    fields = {
        "description": description, "activeTask": activeTask, "activeFiles": activeFiles, "nextSteps": nextSteps,
        "conversationContext": conversationContext, "tags": tags,
    }  # fmt: skip
    call.runner.states.create(call.scope, name, fields, call.session, call.op_id)


def listStates(call: Call, includeArchived: Archived = False) -> list[dict[str, str]]:
    """List the save points of the workspace, newest first."""
    return call.runner.states.all(call.scope, archived=includeArchived)


def loadState(call: Call, name: Name) -> dict[str, Any]:
    """Load a save point to resume from."""
    return call.runner.states.load(call.scope, name)


def archiveState(call: Call, name: Name, restore: Restore = False) -> None:
    """Hide a save point from lists; it can still be loaded."""
    call.runner.states.archive(call.scope, name, restore=restore, op_id=call.op_id)


def searchMemory(
    call: Call,
    query: Annotated[str, "words to look for"],
    workspaceId: Annotated[str, "the workspace to search"],
    memoryTypes: Annotated[list[Literal["states", "traces"]] | None, "both if left out"] = None,
    dateRange: Annotated[DateRange | None, "ISO dates"] = None,
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20,
) -> list[dict[str, Any]]:
    """Search the save points of a workspace and the history of what was done in it."""
    kinds = tuple(name.removesuffix("s") for name in memoryTypes or ("states", "traces"))
    span = dateRange or DateRange()
    wanted = Query(text=query, kinds=kinds, scope=workspaceId, since=span.start, until=span.end, limit=limit)
    found = []
    for hit in call.memory.find(wanted):
        record, fields = hit.record, hit.record.fields
        context = {
            "workspaceId": record.scope.path, "sessionId": record.scope.session or fields.get("session"),
            "goal": fields.get("goal"), "time": record.time, "source": record.where,
        }  # fmt: skip
        if record.kind == "trace":
            done, about = activity(record), {"type": "trace", "tool": record.title}
            parts = [done["what"], record.text, done.get("error", ""), text_of(fields.get("params"))[:300]]
        else:
            about = {"type": "state"}
            parts = [record.title, text_of(fields.get("activeTask")), hit.snippet]
        context = {name: value for name, value in context.items() if value}
        found.append({"content": "\n".join(str(part) for part in parts if part), **about, "context": context})
    return found


def register(registry: Registry) -> None:
    reads = (listWorkspaces, loadWorkspace, listStates, loadState)
    # a token bound to one workspace may not create or rename one: names are unique among all workspaces
    within = (*reads, createState, archiveState)
    for function in (
        createWorkspace, listWorkspaces, loadWorkspace, updateWorkspace, archiveWorkspace, createState, listStates,
        loadState, archiveState,
    ):  # fmt: skip
        registry.add("memoryManager", function, enveloped=True, reads=function in reads, within=function in within)
    registry.add("searchManager", searchMemory, enveloped=True, reads=True, within=True)
