"""The everyday tools, agent `memory`: `recall` searches everything, `remember` stores something, `read` returns a whole
record, `revise` corrects or retires one."""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal

import msgspec

from holdfast.core import Source
from holdfast.errors import Invalid
from holdfast.formats.prompts import QUOTED, invisible_sorts, one_line
from holdfast.memories import corrections, mind
from holdfast.memories.knowledge import meta
from holdfast.memories.workspaces import params_of
from holdfast.model import kinds as table
from holdfast.model.kinds import KINDS
from holdfast.model.queries import Query
from holdfast.model.records import DEFAULT, Draft, Record, label, line_of, text_of
from holdfast.owner import history
from holdfast.owner.shared import NAME, PREFIX
from holdfast.recall.answers import Hit
from holdfast.tools.calling import Call, Registry

_RELATED = 3
_READ = 16_000
"""Characters per read, by default."""
_UNSHOWN = ("op", "writer", "ref", "head", "size")
"""Fields of a record that only Holdfast uses."""


def recall(
    call: Call,
    query: Annotated[str, "question or words"],
    scope: Annotated[str | None, "workspace[/domain[/repository]], * for all; default: current"] = None,
    kinds: Annotated[list[str] | None, "note, decision, lesson, fact, state, plan, message, …"] = None,
    layers: Annotated[list[Literal["hot", "warm", "cold"]] | None, "default: hot, warm"] = None,
    since: Annotated[str | None, "ISO date"] = None,
    until: str | None = None,
    asked: Annotated[str | None, "as if asked then"] = None,
    level: Annotated[Literal["records", "sessions"], "sessions: one hit each"] = "records",
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10,
    budget: Annotated[int, msgspec.Meta(ge=0), "most tokens"] = 2000,
    where: Literal["both", "here", "shared"] | None = None,
) -> dict[str, Any]:
    """Look something up in memory before you answer or decide."""
    current = call.scope.path if call.context.workspaceId else None
    wanted = layers or ["hot", "warm"]
    among = kinds or [row.name for row in KINDS.values() if row.searchable and row.layer in wanted]
    for name in kinds or ():
        table.kind(name)
    asks = Query(
        text=query, kinds=tuple(among), scope=None if scope == "*" else scope or current, above=True,
        shared=not scope, related=_RELATED, since=since or "", until=until or "", asked=asked or "", level=level,
        associate=True, limit=limit, budget=budget, where=where or ("both" if call.memory.shared else "here"),
    )  # fmt: skip
    found, searched = call.memory.find(asks), [current]
    if not found.hits and not found.left_out and not scope and current not in (None, DEFAULT) and not call.runner.bound:
        found, searched = call.memory.find(asks, scope=DEFAULT), [current, DEFAULT]
    own = call.memory.sources(hit.record for hit in found if not hit.store)
    others = call.memory.shared.sources([hit.record for hit in found if hit.store]) if call.memory.shared else {}
    hits = [_hit(hit, (others if hit.store else own)[hit.record.id]) for hit in found]
    reply: dict[str, Any] = {"hits": hits, "asOf": found.as_of} | ({"searched": searched} if searched[1:] else {})
    reply |= {name: count for name, count in (("behind", found.behind), ("leftOut", found.left_out)) if count}
    if found.problems:
        problems = sorted(found.problems, key=lambda problem: problem.path != NAME)
        reply["warnings"] = [str(problem) for problem in problems[:5]]
    return reply


def remember(
    call: Call,
    text: Annotated[str, "must make sense on its own"],
    kind: Literal["note", "decision", "lesson", "fact", "procedure", "episode"] = "note",
    title: Annotated[str | None, "default: from the text"] = None,
    tags: list[str] | None = None,
    scope: Annotated[str | None, "default: current"] = None,
    key: Annotated[str | None, "fact: what it is about; procedure: when it applies"] = None,
    supersedes: Annotated[str | None, "id of what this replaces"] = None,
    until: Annotated[str | None, "last day it is valid"] = None,
) -> dict[str, Any]:
    """Keep something for later conversations: a note, a decision with its reason, a lesson, a fact by key."""
    row = KINDS[kind]
    where = None if row.shape == "line" and not call.context.workspaceId else call.scope
    draft = Draft(
        kind=kind, text=text, title=title or "", tags=tuple(tags or ()),
        scope=call.memory.scopes.resolve(scope) if scope else where,
        session=call.session if "{session}" in row.place else "", op_id=call.op_id, supersedes=supersedes or "",
        until=until or "",
    )  # fmt: skip
    reply = corrections.remember(call.memory, draft, key or "")
    was = f"; it supersedes: {reply.get('was') or reply['supersedes']}" if "supersedes" in reply else ""
    if reply["status"] == "duplicate":
        return reply | {"text": f"Known already: {reply['where']} ({reply['duplicateOf']}){was or '.'}"}
    written = _written(reply | ({"status": "stored"} if was else {})) + was
    return reply | {"text": "\n".join((written, *corrections.shown_similar(reply.get("similar", ()))))}


def revise(
    call: Call,
    id: str,
    text: Annotated[str | None, "the whole new text"] = None,
    title: str | None = None,
    tags: list[str] | None = None,
    status: Annotated[str | None, "of a plan"] = None,
    until: str | None = None,
    retire: Annotated[bool | None, "false restores it"] = None,
    reason: str | None = None,
    version: str | None = None,
) -> dict[str, Any]:
    """Correct or retire what is wrong or out of date. The old text is kept."""
    record = call.memory.get(id)
    check_session(record, call.session)
    derived = KINDS[record.kind].shape != "line" and record.title == corrections.headline(record.text)
    if text is not None and not title and derived:
        title = corrections.headline(text)
    change = Draft(
        text=text, title=title or "", tags=None if tags is None else tuple(tags), until=until,
        fields={"status": status} if status else {}, expect=version or "", reason=reason or "", op_id=call.op_id,
    )  # fmt: skip
    receipt = corrections.revise(call.memory, record, change, retire)
    reply = {"status": receipt.status, "id": receipt.id, "where": receipt.path, "version": receipt.version}
    reply |= {"workspace": record.scope.path, "was": record.text if text is not None else ""}
    reply = {name: value for name, value in reply.items() if value}
    return reply | {"text": _written(reply) + (". The old text is kept." if "was" in reply else "")}


def read(
    call: Call,
    id: Annotated[str, "id, or path:line"],
    offset: Annotated[int, msgspec.Meta(ge=0), "in characters"] = 0,
    limit: Annotated[int, msgspec.Meta(ge=1, le=mind.MOST_READ)] = _READ,
) -> dict[str, Any]:
    """Read a whole record, a part at a time."""
    record = call.memory.get(id)
    check_session(record, call.session)
    shared = call.memory.shared if id.startswith(PREFIX) else None
    source = shared.sources([record]) if shared else call.memory.sources([record])
    shown = _hit(Hit(record, snippet=record.text, store=NAME if shared else ""), source[record.id])
    if record.hidden and not shared and (reason := history.versions(call.memory, record.id)[-1].reason):
        shown["label"] += f": {reason}"
    left = (*shown, *_UNSHOWN, KINDS[record.kind].text)
    fields = {name: value for name, value in record.fields.items() if name not in left}
    shown |= {"version": record.version, "time": record.time} | ({"fields": fields} if fields else {})
    part = mind.part(whole(record), offset, limit, "content")
    reply = {name: value for name, value in shown.items() if name not in ("text", "why", "score", "size")} | part
    lines = [f"{name}: {line_of(value)}" for name, value in fields.items()]
    quoted = "\n".join([f"> {line}" for line in (*lines, *reply["content"].split("\n"))])
    end = reply["offset"] + len(reply["content"])
    more = f"; go on with offset {reply['next']}" if "next" in reply else ""
    span = f"characters {reply['offset']:,} to {end:,} of {reply['size']:,}{more}; version {reply['version']}"
    head = _head(reply, "kind", "title", "status", "label")
    return reply | {"text": f"{head} ({reply['where']})\n{quoted}\n{span}\n{QUOTED}"}


def whole(record: Record) -> str:
    """Return the text of a record; a value that is not text as JSON."""
    value = record.fields.get(KINDS[record.kind].text)
    return record.text if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def check_session(record: Record, session: str = "") -> None:
    """Refuse what only another session may read: its notes, and the traces of them."""
    private = KINDS[record.kind].private or bool(record.kind == "trace" and record.fields.get("private"))
    if private and (not session or record.scope.session != session):
        raise Invalid(f"{record.id} belongs to another session.", "Only that session reads it, with get_memory.")


def register(registry: Registry) -> None:
    text = operator.itemgetter("text")
    registry.add("memory", recall, reads=True, render=_recalled, within=True)
    registry.add("memory", remember, render=text, within=True)
    registry.add("memory", read, reads=True, render=text, within=True)
    registry.add("memory", revise, render=text, within=True)


def _hit(hit: Hit, source: Source) -> dict[str, Any]:
    record = hit.record
    related = [
        {"id": tied.record.id, "title": tied.record.title or tied.record.text[:80], "how": ", ".join(tied.how)}
        for tied in hit.related
    ]
    shown: dict[str, Any] = {
        "id": f"{PREFIX}{record.id}" if hit.store else record.id, "store": hit.store, "kind": record.kind,
        "title": record.title, "text": hit.snippet or line_of(params_of(record))[:300],
        "where": record.where, "scope": record.scope.path, "tags": list(record.tags),
        "status": text_of(record.fields.get("status")) if "status" in KINDS[record.kind].choices else "",
        "label": label(record), "age": hit.age, "why": [*hit.why, *hit.because], "related": related, "score": hit.score,
        "by": source.by, "channel": source.channel, "trust": source.trust,
        "unseen": invisible_sorts(f"{record.title}\n{record.text}"),
        "size": len(record.text) if hit.snippet != record.text else "",
    }  # fmt: skip
    return {name: value for name, value in shown.items() if value not in ("", [])} | meta(record, shown["id"])


def _recalled(reply: dict[str, Any]) -> str:
    away = [warning for warning in reply.get("warnings", ()) if warning.startswith(PREFIX)]
    first, *rest = reply.get("searched", [""])
    if not reply["hits"]:
        left = reply.get("leftOut")
        nothing = f"Nothing relevant in {first}, nor in {rest[0]}." if rest else "Nothing relevant."
        nothing = f"{left} hits were found, but none fits the budget. Raise `budget`." if left else nothing
        return "\n".join((nothing, *away))
    parts = [f"Nothing relevant in {first}. In {rest[0]}:"] if rest else []
    for number, hit in enumerate(reply["hits"], 1):
        head = _head(hit, "kind", "title", "status", "label", "age", "store")
        quoted = "\n".join([f"> {line}" for line in hit.get("text", "").splitlines()])
        near = one_line("; ".join([f"{tied['title']} ({tied['how']})" for tied in hit.get("related", ())]))
        quoted += f"\n   all {hit['size']:,} characters: read {hit['id']}" if hit.get("size") else ""
        parts.append(f"{number}. {head} ({hit['where']})\n{quoted}" + (f"\n   related: {near}" if near else ""))
    return "\n".join((*parts, QUOTED, *away))


def _head(shown: dict[str, Any], *names: str) -> str:
    head = one_line(" · ".join([shown[name] for name in names if shown.get(name)]))
    head += f" · {Source(shown['trust'], shown.get('by', ''), shown.get('channel', ''))}"
    return head + (f" · warning: contains {shown['unseen']}" if shown.get("unseen") else "")


def _written(reply: dict[str, Any]) -> str:
    file = "" if reply["where"] in reply["id"] else reply["where"]
    shown = ", ".join(filter(None, (reply.get("workspace"), file)))
    waits = f". {corrections.PENDING}" if reply["status"] == "pending" else ""
    return f"{reply['status'].capitalize()} in {shown}: {reply['id']}{waits}"
