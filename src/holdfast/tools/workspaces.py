"""Tools for workspaces, states and traces: agents `memoryManager` and `searchManager`."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal

import msgspec

from holdfast.errors import Invalid
from holdfast.memories.workspaces import FIELDS, activity, is_by, params_of
from holdfast.model.queries import MAX_LIMIT, Query
from holdfast.model.records import Receipt, line_of, text_of
from holdfast.tools.calling import Call, Registry

_NEWEST_STATES = 20
_ACTIVE_PLANS = ("new", "in_progress", "partial")

Workflow = str | dict[str, Any]
Restore = Annotated[bool, "show it again instead"]


class DateRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    start: str = ""
    end: str = ""


def createWorkspace(
    call: Call,
    name: str,
    description: Annotated[str, "what it is, in a sentence or two"],
    rootFolder: Annotated[str, "folder for its files, relative to the memory root"],
    purpose: Annotated[str, "what it is used for"],
    workflows: Annotated[list[Workflow] | None, "common ways of working: text or {name, when, steps}"] = None,
    keyFiles: Annotated[list[str] | None, "files that matter most"] = None,
    preferences: Annotated[dict[str, Any] | str | None, "how work should be done here"] = None,
) -> dict[str, str]:
    """Make a workspace: the place that a project's memory belongs to, shared by all conversations."""
    fields = dict(zip(FIELDS, (description, rootFolder, purpose, workflows, keyFiles, preferences), strict=True))
    made = _written(call, call.runner.workspaces.create(name, fields, call.op_id))
    call.enter(made["workspace"])
    return made


def listWorkspaces(call: Call, includeArchived: bool = False) -> list[dict[str, str]]:
    """List the workspaces with their descriptions."""
    return call.runner.workspaces.all(archived=includeArchived)


def loadWorkspace(call: Call, name: str) -> dict[str, Any]:
    """Load the workspace to work in, for this and later calls."""
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
    call.enter(scope.path)
    return data


def updateWorkspace(
    call: Call,
    name: str,
    newName: Annotated[str | None, "rename it; its folder stays"] = None,
    description: str | None = None,
    rootFolder: str | None = None,
    purpose: str | None = None,
    workflows: Annotated[list[Workflow] | None, "replaces the list"] = None,
    keyFiles: Annotated[list[str] | None, "replaces the list"] = None,
    preferences: Annotated[dict[str, Any] | str | None, "replaces them"] = None,
    isArchived: Annotated[bool | None, "false restores an archived workspace"] = None,
) -> dict[str, str]:
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
        done = workspaces.update(name, changes, newName or "", call.op_id)
    if archives:
        op_id = call.op_id and call.op_id + "-archive"
        done = workspaces.archive(newName or name, restore=not isArchived, op_id=op_id)
    return _written(call, done)


def archiveWorkspace(call: Call, name: str, restore: Restore = False) -> dict[str, str]:
    """Hide a workspace from lists; nothing in it is lost."""
    return _written(call, call.runner.workspaces.archive(name, restore=restore, op_id=call.op_id))


def createState(
    call: Call,
    name: Annotated[str, "unique for ever"],
    conversationContext: Annotated[str, "what happened and was decided"],
    activeTask: str,
    activeFiles: list[str],
    nextSteps: Annotated[list[str], "what to do first"],
    description: Annotated[str | None, "one line for lists"] = None,
    tags: list[str] | None = None,
) -> dict[str, str]:
    """Save where you are, so that any later conversation can resume. States never change."""
    fields = {
        "description": description, "activeTask": activeTask, "activeFiles": activeFiles, "nextSteps": nextSteps,
        "conversationContext": conversationContext, "tags": tags,
    }  # fmt: skip
    return _written(call, call.runner.states.create(call.scope, name, fields, call.session, call.op_id))


def listStates(call: Call, includeArchived: bool = False) -> list[dict[str, str]]:
    """List the save points of the workspace, newest first."""
    return call.runner.states.all(call.scope, archived=includeArchived)


def loadState(call: Call, name: str) -> dict[str, Any]:
    """Load a save point to resume from."""
    return call.runner.states.load(call.scope, name, call.warnings)


def archiveState(call: Call, name: str, restore: Restore = False) -> dict[str, str]:
    """Hide a save point from lists; it can still be loaded."""
    return _written(call, call.runner.states.archive(call.scope, name, restore=restore, op_id=call.op_id))


def _written(call: Call, receipt: Receipt) -> dict[str, str]:
    """Return where a call wrote: the workspace and the file."""
    place = call.memory.layout.classify(receipt.path)
    return {"workspace": place.scope.path if place else "", "where": receipt.path}


def searchMemory(
    call: Call,
    query: Annotated[str, "words to look for"],
    workspaceId: Annotated[str, "the workspace to search"],
    memoryTypes: Annotated[list[Literal["states", "traces"]] | None, "both if left out"] = None,
    dateRange: Annotated[DateRange | None, "ISO dates"] = None,
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20,
    agentId: Annotated[str | None, "only calls of this agent"] = None,
) -> list[dict[str, Any]]:
    """Search the save points of a workspace and the history of what was done in it."""
    span, most = dateRange or DateRange(), MAX_LIMIT if agentId else limit
    wanted = Query(text=query, scope=workspaceId, since=span.start, until=span.end, limit=most)
    hits = [  # one list for each type, since scores of short calls and long texts do not compare
        [hit for hit in call.memory.find(wanted, kinds=(name.removesuffix("s"),)) if is_by(hit.record, agentId or "")]
        for name in ("states", "traces")
        if not memoryTypes or name in memoryTypes
    ]
    found = []
    for hit in itertools.islice(filter(None, itertools.chain.from_iterable(itertools.zip_longest(*hits))), limit):
        record, fields = hit.record, hit.record.fields
        context = {
            "workspaceId": record.scope.path, "sessionId": record.scope.session or fields.get("session"),
            "agentId": fields.get("agent"), "goal": fields.get("goal"), "memory": fields.get("memory"),
            "constraints": fields.get("constraints"), "time": record.time, "source": record.where,
        }  # fmt: skip
        if record.kind == "trace":
            done, about = activity(record), {"type": "trace", "tool": record.title}
            result = f"result: {record.text}" if record.text else ""
            parts = [done["what"], line_of(params_of(record))[:300], result, done.get("error", "")]
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
