"""Tools for the knowledge tree, agent `knowledge`: plans, overviews, decisions, lessons, skills.

The text for the model is YAML; the structured reply is the same data.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from holdfast.errors import Invalid
from holdfast.formats import markdown
from holdfast.memories.corrections import PENDING, shown_similar, similar
from holdfast.memories.knowledge import BUDGET, Learned
from holdfast.model.records import Draft, Receipt, Scope
from holdfast.tools.calling import Call, Registry


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
    """Know what was done and what is planned: the plans of a workspace, domain or repository, newest first."""
    wanted = filters or PlanFilters()
    return call.runner.knowledge.plans(_scope(call, scope), _list(wanted.status), _list(wanted.tags), tier, budget)


def retrieve_overview(call: Call, scope: Scoped = None, tier: How = "T1") -> dict[str, Any]:
    """Understand what a workspace, domain or repository is about: its overview in full, those below it in short."""
    return call.runner.knowledge.overviews(_scope(call, scope), tier)


def retrieve_learnings(
    call: Call,
    scope: Scoped = None,
    filters: Annotated[LearningFilters | None, "tags, category; archived: true adds those of earlier years"] = None,
    budget: Annotated[Natural, "most tokens of decisions and lessons; 0 is no limit"] = BUDGET,
) -> dict[str, Any]:
    """Read the decisions to respect and the lessons not to learn twice, before you decide, and before you save one."""
    given = filters or LearningFilters()
    wanted = Learned(tags=_list(given.tags), category=given.category or "", archived=given.archived, budget=budget)
    return call.runner.knowledge.learnings(_scope(call, scope), wanted)


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
    """Save a decision or a lesson for everyone who works here. If an entry says the same, the reply names it."""
    draft = Draft(
        kind=kind, title=title, text=content, scope=_scope(call, scope), tags=tuple(_list(tags)),
        fields={"category": category} if category and category.strip() else {}, op_id=call.op_id,
        supersedes=supersedes or "", until=until or "",
    )  # fmt: skip
    receipt = call.runner.knowledge.save(draft)
    wanted = receipt.status == "stored" and not supersedes
    same = similar(call.memory, draft, receipt.id, receipt.path) if wanted else []
    return _receipt(receipt) | ({"similar": same} if same else {})


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
    reply = {"path": plan.path, "status": now, "was": was, "receipt": receipt.status}
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
    """Write down a way of doing something that worked, so that any agent here can do it again."""
    draft = Draft(
        title=name, text=content, scope=_scope(call, scope), tags=None if tags is None else tuple(_list(tags)),
        fields={"description": description}, expect=expect or "", op_id=call.op_id,
    )  # fmt: skip
    return _receipt(call.runner.skills.save(draft))


def register(registry: Registry) -> None:
    for function in (retrieve_plans, retrieve_overview, retrieve_learnings, workspace_context, load_skill):
        registry.add("knowledge", function, reads=True, render=markdown.yaml, mirrored=True, within=True)
    for writes in (save_learning, set_plan_status, save_skill):
        registry.add("knowledge", writes, render=_done, within=True)


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


def _receipt(receipt: Receipt) -> dict[str, Any]:
    return {"status": receipt.status, "id": receipt.id, "where": receipt.path, "version": receipt.version}


def _done(reply: dict[str, Any]) -> str:
    if "receipt" in reply:
        before = f" (was {reply['was']})" if "was" in reply else ""
        waits = f" {PENDING}" if reply["receipt"] == "pending" else ""
        return f"{reply['receipt'].capitalize()}: {reply['path']} is {reply['status']}{before}.{waits}"
    waits = f". {PENDING}" if reply["status"] == "pending" else ""
    stored = f"{reply['status'].capitalize()}: {reply['id']}{waits}"
    return "\n".join((stored, *shown_similar(reply.get("similar", ()))))
