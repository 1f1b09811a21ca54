"""Tools for workspaces: agents `memoryManager` (workspaces and states), `searchManager` and `knowledge`.

The knowledge tools reply with YAML for the model and the same as data.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from holdfast.errors import Invalid
from holdfast.formats import markdown
from holdfast.memories.corrections import PENDING, shown_similar, similar
from holdfast.memories.knowledge import BUDGET
from holdfast.memories.workspaces import FIELDS, activity, is_by, params_of
from holdfast.model.queries import MAX_LIMIT, Query
from holdfast.model.records import Draft, Receipt, Scope, line_of, text_of
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
    """Create a workspace: the memory of a project, shared by all conversations."""
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
    name: Annotated[str, "unique forever"],
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
    query: Annotated[str, "search words"],
    workspaceId: Annotated[str, "the workspace to search"],
    memoryTypes: Annotated[list[Literal["states", "traces"]] | None, "both if left out"] = None,
    dateRange: Annotated[DateRange | None, "ISO dates"] = None,
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20,
    agentId: Annotated[str | None, "only calls of this agent"] = None,
) -> list[dict[str, Any]]:
    """Search the save points of a workspace and the history of what was done in it."""
    span, most = dateRange or DateRange(), MAX_LIMIT if agentId else limit
    asked = Query(text=query, scope=workspaceId, since=span.start, until=span.end, limit=most)
    hits = [  # one list for each type, since scores of short calls and long texts do not compare
        [
            hit
            for hit in call.memory.find(msgspec.structs.replace(asked, kinds=(name.removesuffix("s"),)))
            if is_by(hit.record, agentId or "")
        ]
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


# The knowledge tree: plans, overviews, decisions, lessons, skills


class Where(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    workspace: str = ""
    domain: str | None = None
    repository: str | None = None


class PlanFilters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    status: list[str] | str | None = None
    tags: list[str] | str | None = None


class LearningFilters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tags: list[str] | str | None = None
    category: str | None = None
    archived: bool = False


Scoped = Annotated[
    Where | str | None, "{workspace, domain?, repository?}, or workspace/domain/repository; the current one if left out"
]
How = Annotated[Literal["T0", "T1", "T2"], "how much: T0 abstract, T1 a page or two, T2 all"]
Natural = Annotated[int, msgspec.Meta(ge=0)]


def retrieve_plans(
    call: Call,
    scope: Scoped = None,
    filters: Annotated[PlanFilters | None, "status: new, in_progress, partial, done, abandoned; tags"] = None,
    tier: How = "T0",
    budget: Annotated[Natural, "most tokens to spend; 0 is no limit"] = 0,
) -> dict[str, Any]:
    """Read the plans of a workspace, domain or repository, newest first: what was done and what is planned."""
    wanted = filters or PlanFilters()
    return call.runner.knowledge.plans(_scope(call, scope), _list(wanted.status), _list(wanted.tags), tier, budget)


def retrieve_overview(call: Call, scope: Scoped = None, tier: How = "T1") -> dict[str, Any]:
    """Read the overview of a workspace, domain or repository in full, and those below it in short."""
    return call.runner.knowledge.overviews(_scope(call, scope), tier)


def retrieve_learnings(
    call: Call,
    scope: Scoped = None,
    filters: Annotated[LearningFilters | None, "tags, category; archived: true adds those of earlier years"] = None,
    budget: Annotated[Natural, "most tokens of decisions and lessons; 0 is no limit"] = BUDGET,
) -> dict[str, Any]:
    """Read the decisions to respect and the lessons learned, before you decide, and before you save one."""
    given = filters or LearningFilters()
    return call.runner.knowledge.learnings(
        _scope(call, scope), _list(given.tags), given.category or "", given.archived, budget
    )


def workspace_context(
    call: Call,
    scope: Scoped = None,
    topics: Annotated[list[str] | str | None, "folders that start with _, like features or architecture"] = None,
    tier: Annotated[Literal["T0", "T1", "T2"], "how much of the topics' documents"] = "T1",
    budget: Annotated[Natural, "most tokens of plans, decisions and lessons; 0 is no limit"] = BUDGET,
) -> dict[str, Any]:
    """Load all that is known of a workspace, domain or repository in one call: overview, plans, decisions, lessons,
    skills, and the documents of the topics that you name."""
    where = _scope(call, scope)
    reply = call.runner.knowledge.context(where, _list(topics), tier, budget)
    warnings = reply.pop("warnings")
    return reply | {"skills": call.runner.skills.all(where), "warnings": warnings}


def save_learning(
    call: Call,
    kind: Annotated[Literal["decision", "lesson"], "a choice and why, or what went wrong and what to do instead"],
    title: Annotated[str, "one line"],
    content: Annotated[str, "so that it makes sense on its own"],
    scope: Scoped = None,
    category: Annotated[str | None, "architecture, tooling, convention, debugging, performance, …"] = None,
    tags: list[str] | str | None = None,
    supersedes: Annotated[str | None, "the id of the entry that this one replaces"] = None,
    until: Annotated[str | None, "the last day on which it is valid, YYYY-MM-DD"] = None,
) -> dict[str, Any]:
    """Save a decision or a lesson for everyone who works here. If an entry has the same text, the reply names it."""
    draft = Draft(
        kind=kind, title=title, text=content, scope=_scope(call, scope), tags=tuple(_list(tags)),
        fields={"category": category} if category and category.strip() else {}, op_id=call.op_id,
        supersedes=supersedes or "", until=until or "",
    )  # fmt: skip
    receipt = call.runner.knowledge.save(draft)
    wanted = receipt.status == "stored" and not supersedes
    same = similar(call.memory, draft, receipt.id, receipt.path) if wanted else []
    return _receipt(receipt, same)


def set_plan_status(
    call: Call,
    status: Annotated[Literal["new", "in_progress", "partial", "done", "abandoned"], "what it is now"],
    path: Annotated[str | None, "the plan's document_path"] = None,
    id: Annotated[str | None, "or its document_id"] = None,
) -> dict[str, Any]:
    """Set the status of a plan. Changes its status and the day of the change, nothing else in its file."""
    given = [name for name in (path, id) if name and name.strip()]
    if len(given) != 1:
        raise Invalid("Give path or id." if not given else "Give path or id, not both.", "retrieve_plans shows them.")
    plan = call.runner.knowledge.plan(given[0].strip(), call.scope if call.context.workspaceId else None)
    receipt = call.runner.knowledge.set_status(plan, status, call.op_id)
    before = plan.fields.get("status")
    now, was = (before, None) if receipt.status in ("repeated", "pending") else (status, before)
    waits = f" {PENDING}" if receipt.status == "pending" else ""
    text = f"{receipt.status.capitalize()}: {plan.path} is {now}{'' if was is None else f' (was {was})'}.{waits}"
    reply = {"path": plan.path, "status": now, "was": was, "receipt": receipt.status, "text": text}
    return {name: value for name, value in reply.items() if value is not None}


def load_skill(call: Call, name: str, scope: Scoped = None) -> dict[str, Any]:
    """Load a skill before you use it: the steps, and the files that belong to it."""
    return call.runner.skills.load(_scope(call, scope), name)


def save_skill(
    call: Call,
    name: Annotated[str, "a few words, like deploy-to-staging"],
    description: Annotated[str, "what it does and when to use it"],
    content: Annotated[str, "the steps, in Markdown"],
    scope: Scoped = None,
    tags: list[str] | str | None = None,
    expect: Annotated[str | None, "to replace a skill: the version that load_skill gave"] = None,
) -> dict[str, Any]:
    """Save a way of working that succeeded, so that any agent here can repeat it."""
    draft = Draft(
        title=name, text=content, scope=_scope(call, scope), tags=None if tags is None else tuple(_list(tags)),
        fields={"description": description}, expect=expect or "", op_id=call.op_id,
    )  # fmt: skip
    return _receipt(call.runner.skills.save(draft))


def _scope(call: Call, given: Where | str | None) -> Scope:
    """Return the scope that a call names; without a workspace it is in that of the context, if there is one."""
    if given is None or given == "" or (given == Where() and call.context.workspaceId):
        return call.scope
    if isinstance(given, str):
        return call.memory.scopes.resolve(given)
    workspace = given.workspace or (call.scope.workspace if call.context.workspaceId else "")
    return call.memory.scopes.within(workspace, given.domain or "", given.repository or "")


def _list(given: list[str] | str | None) -> list[str]:
    """Return one or several values as a list without blanks."""
    values = [given] if isinstance(given, str) else given or []
    return [value.strip() for value in values if value.strip()]


def _receipt(receipt: Receipt, same: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return a receipt as a reply, with the entries that are similar to the one that was written."""
    waits = f". {PENDING}" if receipt.status == "pending" else ""
    text = "\n".join((f"{receipt.status.capitalize()}: {receipt.id}{waits}", *shown_similar(same)))
    reply = {"status": receipt.status, "id": receipt.id, "where": receipt.path, "version": receipt.version}
    return reply | ({"similar": same} if same else {}) | {"text": text}


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
    for shows in (retrieve_plans, retrieve_overview, retrieve_learnings, workspace_context, load_skill):
        registry.add("knowledge", shows, reads=True, render=markdown.yaml, mirrored=True, within=True)
    for writes in (save_learning, set_plan_status, save_skill):
        registry.add("knowledge", writes, render=operator.itemgetter("text"), within=True)
