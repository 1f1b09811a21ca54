"""The knowledge tree: plans, overviews, decisions, lessons, topics and skills, read by scope from Markdown files.

What cannot be read becomes a warning in the reply. For clients without file tools, a decision or lesson can be added
and the status of a plan can be set. `_meta` in an entry names its file; search ignores it. A tier says how much of a
document is shown: T0 its abstract, T1 a page or two, T2 all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from holdfast.core import Core
from holdfast.errors import AlreadyExists, Invalid, NotFound
from holdfast.formats import markdown, pages
from holdfast.model import names
from holdfast.model.kinds import KINDS, PLAN_STATUS
from holdfast.model.names import amount, count_tokens
from holdfast.model.queries import Query
from holdfast.model.records import DEFAULT, Draft, Problem, Receipt, Record, Scope, lapsed, text_of
from holdfast.model.times import from_prefix, normal, today

Tier = Literal["T0", "T1", "T2"]
Entry = dict[str, Any]
Reply = dict[str, Any]
BUDGET = 20_000
"""Tokens of decisions and lessons in one reply, by default."""
_MOST_WARNINGS = 20
_LONGEST_TOPIC = 255
_MOST_FILES = 100
_LEARNED = ("decision", "lesson")
_TOPICAL = tuple(row.name for row in KINDS.values() if row.shape == "document" and "{scope}" in row.place)
_PAGES = 8_000
"""Characters of a document that T1 shows."""
_OVERVIEW = 80_000
"""Characters of an overview that T1 shows, nearly always all of it."""


class Knowledge:
    def __init__(self, memory: Core) -> None:
        self._memory = memory

    def plans(
        self, scope: Scope, status: Sequence[str] = (), tags: Sequence[str] = (), tier: Tier = "T0", budget: int = 0
    ) -> Reply:
        """Return the plans at and below a scope, newest first."""
        records, warnings = self._survey(scope, "plan")
        there = (*PLAN_STATUS, *(text_of(record.fields.get("status")) for record in records))
        if strange := [each for each in status if each not in there]:
            what = f'No plan has the status "{strange[0]}".{names.close_to(strange[0], PLAN_STATUS)}'
            raise Invalid(what, f"Use one or several of: {', '.join(PLAN_STATUS)}.")
        warnings += _unknown("tag", tags, "plan", (tag for record in records for tag in record.tags))
        wanted = [
            record
            for record in records
            if (not status or record.fields.get("status") in status) and (not tags or _tagged(record, tags))
        ]
        wanted.sort(key=lambda record: names.same(record.title))
        wanted.sort(key=lambda record: normal(_created(record))[:10], reverse=True)
        unsaid = sum("status" not in record.fields for record in records) if status else 0
        if unsaid:
            one, many = "plan has no status and is", "plans have no status and are"
            warnings.append(f"{amount(unsaid, one, many)} left out.")
        entries = []
        for plan in wanted:
            known = {name: text_of(plan.fields.get(name)) for name in ("description", "status", "created", "updated")}
            known["created"] = _created(plan)
            entries.append(_entry(plan, {"name": plan.title, **known}, tier, _stem(plan)))
        shown = _fitting(entries, budget)
        return _reply({"plans": shown}, warnings + _left_out(len(wanted) - len(shown), "plan", "plans", budget))

    def overviews(self, scope: Scope, tier: Tier = "T1") -> Reply:
        """Return the overview of a scope in full, and those below it in a sentence each."""
        records, warnings = self._survey(scope, "overview", hidden=True)
        own = self._memory.layout.overview(scope.path)
        shown = [self._overview(record, tier) for record in records if record.path == own]
        if not shown and not self._nowhere(scope):
            warnings.append(f"{scope.path} has no OVERVIEW.md.")
        below = [record for record in records if record.path != own and not record.hidden]
        below.sort(key=lambda record: record.path)
        return _reply({"overviews": [*shown, *(self._overview(record, "T0") for record in below)]}, warnings)

    def learnings(
        self, scope: Scope, tags: Sequence[str] = (), category: str = "", archived: bool = False, budget: int = BUDGET
    ) -> Reply:
        """Return decisions and lessons of a scope, below it and above it, newest first."""
        records, warnings = self._survey(scope, *_LEARNED, above=True)
        live = [one for one in records if archived or (one.path.endswith(f"/{one.kind}s.md") and not lapsed(one))]
        moved = len(records) - len(live)
        warnings += _unknown("tag", tags, "entry", (tag for record in live for tag in record.tags))
        if category:
            categories = [str(record.fields.get("category") or "") for record in live]
            warnings += _unknown("category", [category], "entry", categories)
            live = [one for one, its in zip(live, categories, strict=True) if names.same(its) == names.same(category)]
        if tags:
            live = [record for record in live if _tagged(record, tags)]
        live.sort(key=lambda record: (record.path, -record.line))
        live.sort(key=lambda record: record.time, reverse=True)
        entries = []
        for one in live:
            known = {"title": one.title, "content": one.text.replace("\r\n", "\n")}
            entries.append(_entry(one, known | {name: text_of(one.fields.get(name)) for name in ("date", "category")}))
        kept = _fitting(entries, budget)
        warnings += _left_out(len(live) - len(kept), "entry", "entries", budget)
        shown = list(zip(live, kept, strict=False))
        reply: Reply = {f"{kind}s": [entry for record, entry in shown if record.kind == kind] for kind in _LEARNED}
        return _reply(reply | ({"archived": moved} if moved else {}), warnings)

    def context(self, scope: Scope, topics: Sequence[str] = (), tier: Tier = "T1", budget: int = BUDGET) -> Reply:
        """Return all of it at once: overview, plans, decisions, lessons, and the documents of some topics.

        Plans may take half of the budget; decisions and lessons get the rest.
        """
        about, planned = self.overviews(scope), self.plans(scope, budget=budget // 2)
        rest = budget and max(budget // 2, budget - _cost(planned["plans"]))
        learned = self.learnings(scope, budget=rest)
        own, entries = self._memory.layout.overview(scope.path), about["overviews"]
        found, warnings = self.topics(scope, topics, tier) if topics else ({}, [])
        earlier = [each for part in (about, planned, learned) for each in part.get("warnings", ())]
        return {
            "overview": next((entry for entry in entries if entry["_meta"]["document_path"] == own), None),
            "overviews": [entry for entry in entries if entry["_meta"]["document_path"] != own],
            "plans": planned["plans"], "decisions": learned["decisions"], "lessons": learned["lessons"],
            "topics": found, "warnings": list(dict.fromkeys(earlier + warnings)),
        }  # fmt: skip

    def topics(
        self, scope: Scope, topics: Sequence[str], tier: Tier = "T1"
    ) -> tuple[dict[str, list[Entry]], list[str]]:
        """Return the documents of each topic, which is the name of a folder that starts with `_`, and warnings."""
        if any(len(topic) > _LONGEST_TOPIC for topic in topics):
            raise Invalid(f"A topic has more than {_LONGEST_TOPIC} characters.", "A topic is the name of a folder.")
        records, problems = self._memory.survey(Query(kinds=_TOPICAL, scope=scope))
        by_topic: dict[str, list[Record]] = {}
        for record in sorted(records, key=lambda record: record.path):
            for part in {part for part in record.path.split("/")[:-1] if part.startswith("_")}:
                by_topic.setdefault(names.same(part[1:]), []).append(record)
        warnings = _warnings(problems)
        warnings += _unknown("topic", [topic.removeprefix("_") for topic in topics], "folder", by_topic)
        shown: dict[str, list[Entry]] = {topic: [] for topic in topics}
        for topic, entries in shown.items():
            for record in by_topic.get(names.same(topic.removeprefix("_")), ()):
                known = {"title": record.title, "kind": record.kind, "abstract": _abstract(record)}
                entries.append(_entry(record, known, tier))
        return shown, warnings

    def plan(self, name: str, scope: Scope | None = None) -> Record:
        """Return the plan of this path, document id or name; of several, the one in the scope, if only one is."""
        place = self._memory.layout.classify(name)
        if place and place.kind.name == "plan":
            return self._memory.get(name)
        if "/" in name:
            what = f"{name[:200]} is not the path of a plan."
            raise Invalid(what, "Give the document_path that retrieve_plans shows.")
        records = self._memory.every(Query(kinds=("plan",), hidden=True))
        wanted = names.same(name.removesuffix(".md"))
        found = [record for record in records if wanted in (names.same(_stem(record)), names.same(record.title))]
        if scope and len(found) > 1:
            found = [record for record in found if f"{record.scope.path}/".startswith(f"{scope.path}/")] or found
        if len(found) > 1:
            raise Invalid(f'"{name}" names several plans: {", ".join(r.path for r in found)}.', "Give the path.")
        if not found:
            hint = names.close_to(name, map(_stem, records))
            raise NotFound(f'Plan "{name}" not found.', f"Use retrieve_plans to list all plans.{hint}")
        return found[0]

    def _survey(
        self, scope: Scope, *kinds: str, above: bool = False, hidden: bool = False
    ) -> tuple[list[Record], list[str]]:
        """Return the records of a scope, and warnings about what could not be read."""
        found, problems = self._memory.survey(Query(kinds=kinds, scope=scope, above=above, hidden=hidden))
        return found, self._nowhere(scope) + _warnings(problems)

    def _nowhere(self, scope: Scope) -> list[str]:
        """Suggest other workspaces when the default workspace, used in place of a missing scope, does not exist."""
        known = self._memory.scopes.children("")
        if scope.path != DEFAULT or DEFAULT in known or not known:
            return []
        return [f"The workspace default is empty. Name one as scope: {', '.join(known)}."]

    def _overview(self, record: Record, tier: Tier) -> Entry:
        top = f"{self._memory.layout.workspaces}/"
        entry: Entry = {"scope": record.path.removeprefix(top).rpartition("/")[0], "tier": tier, "title": record.title}
        if tier != "T0":
            entry["content"] = _content(record, tier, _OVERVIEW)
        entry["abstract"] = _abstract(record)
        optional = {"tags": list(record.tags), "archived": record.hidden}
        return entry | {name: value for name, value in optional.items() if value} | meta(record, record.id)

    def save(self, draft: Draft) -> Receipt:
        """Add a decision or a lesson; a duplicate of one that exists here or above is refused."""
        scope = self._memory.scopes.resolve(draft.scope)
        for path in (scope.path, *scope.above) if not self._memory.store.knows_op(draft.op_id) else ():
            for record in self._memory.every(Query(kinds=(draft.kind,), scope=path)):
                if record.scope.path == path and names.same_words(record.text, draft.text or ""):
                    raise AlreadyExists(
                        f"{record.id} has the same text; nothing was written.", "Revise that entry instead."
                    )
        return self._memory.put_draft(draft)

    def set_status(self, plan: Record, status: str, op_id: str = "") -> Receipt:
        """Set the status of a plan and the day of the change, and no other line of its file."""
        if status not in PLAN_STATUS:
            raise Invalid(f'status is "{status}".', f"Use one of: {', '.join(PLAN_STATUS)}.")
        if plan.fields.get("status") == status and not self._memory.store.knows_op(op_id):
            return Receipt("unchanged", plan.id, plan.path, plan.version)
        return self._memory.put_draft(Draft(id=plan.path, fields={"status": status, "updated": today()}, op_id=op_id))


class Skills:
    """Instructions that agents write for themselves: one folder with a `SKILL.md` each, as in Agent Skills.

    A list shows name and description; the text is loaded on demand. A scope also has the skills of those above it.
    """

    def __init__(self, memory: Core) -> None:
        self._memory = memory

    def all(self, scope: Scope) -> list[dict[str, Any]]:
        """Return name and description of every skill at a scope, below it and above it, by name."""
        found = sorted(self._known(scope), key=lambda record: (names.same(_skill_name(record)), record.path))
        return [_skill(record) for record in found]

    def load(self, scope: Scope, name: str) -> dict[str, Any]:
        """Return a skill in full, with the files beside it: the nearest one, if several have the name."""
        known = self._known(scope)
        found = _named(known, name)
        if not found:
            there = sorted({_skill_name(record) for record in known})
            hint = names.close_to(name, there)
            raise NotFound(f'Skill "{name}" not found.', f"There are: {', '.join(there) or 'none'}.{hint}")
        here = (scope.path, *scope.above)  # the scope first, then those above, then those below
        order = {path: place for place, path in enumerate(here)}
        record = min(found, key=lambda record: (order.get(record.scope.path, len(here)), record.path))
        folder = record.path.rpartition("/")[0]
        walked = self._memory.tree.walk(folder, ("",), lambda *_: None)
        beside = [path for path, _ in walked if path != record.path]
        loaded = _skill(record) | {"content": record.text.replace("\r\n", "\n"), "version": record.version}
        return loaded | ({"files": beside[:_MOST_FILES]} if beside else {})

    def save(self, draft: Draft) -> Receipt:
        """Write a skill; to replace one, the draft must name its current version."""
        folder = names.slug(draft.title, "")
        if not folder:
            raise Invalid(
                f'"{draft.title}" is not a valid name for a skill.', "Use a few words, like deploy-to-staging."
            )
        scope = self._memory.scopes.resolve(draft.scope)
        here = [one for one in _named(self._known(scope), draft.title) if one.scope.path == scope.path]
        if draft.expect:
            if not here:
                raise NotFound(f'Skill "{folder}" not found in {scope.path}.', "Leave expect out to save a new one.")
            return self._memory.put_draft(msgspec.structs.replace(draft, kind="", title="", scope=None, id=here[0].id))
        if here and not self._memory.store.knows_op(draft.op_id):
            what = f'Skill "{_skill_name(here[0])}" already exists in {scope.path}.'
            raise AlreadyExists(what, "Load it first; to replace it, send the version that it has as expect.")
        return self._memory.put_draft(msgspec.structs.replace(draft, kind="skill", title=folder, scope=scope))

    def _known(self, scope: Scope) -> list[Record]:
        return self._memory.every(Query(kinds=("skill",), scope=scope, above=True))


def meta(record: Record, identifier: str) -> Entry:
    """Return the entry that names the file of a record; search ignores it."""
    return {"_meta": {"document_path": record.path, "document_id": identifier}}


def _entry(record: Record, known: dict[str, Any], tier: Tier = "T0", id: str = "") -> Entry:
    """Add tags and scope, above T0 also the content, and leave out empty fields; an empty content stays."""
    known |= {"tags": list(record.tags), "scope": record.scope.path}
    if tier != "T0":
        known["content"] = _content(record, tier)
    shown = {name: value for name, value in known.items() if value or name == "content"}
    return shown | meta(record, id or record.id)


def _named(records: list[Record], name: str) -> list[Record]:
    wanted = {names.same(name), names.slug(name)}
    forms = [{names.same(own := _skill_name(one)), names.slug(own), names.same(one.title)} for one in records]
    return [record for record, form in zip(records, forms, strict=True) if wanted & form]


def _skill_name(record: Record) -> str:
    return record.path.rsplit("/", 2)[1]


def _skill(record: Record) -> dict[str, Any]:
    known = {"name": _skill_name(record), "description": text_of(record.fields.get("description"))}
    return _entry(record, known)


def _abstract(record: Record) -> str:
    """Return the description of a document, or the start of its text."""
    return text_of(record.fields.get("description")) or pages.abstract(record.text)


def _content(record: Record, tier: Tier, most: int = _PAGES) -> str:
    text = record.text.replace("\r\n", "\n")
    if tier == "T1" and len(text) > most:
        return _shortened(text, most, record.path)
    return text + "\n" if text else ""


def _shortened(text: str, most: int, path: str) -> str:
    return f"{text[:most].rstrip()}\n… ({len(text) - most:,} more characters in {path})\n"


def _stem(record: Record) -> str:
    return record.path.rpartition("/")[2].removesuffix(".md")


def _created(record: Record) -> str:
    return text_of(record.fields.get("created")) or from_prefix(_stem(record))


def _reply(data: Reply, warnings: list[str]) -> Reply:
    return data | ({"warnings": warnings} if warnings else {})


def _tagged(record: Record, tags: Iterable[str]) -> bool:
    return not {names.same(tag) for tag in record.tags}.isdisjoint(names.same(tag) for tag in tags)


def _fitting(entries: Iterable[Entry], budget: int) -> list[Entry]:
    """Return the first entries that fit the budget, and always at least a part of the first one; 0 is no limit."""
    kept, spent = list[Entry](), 0
    for entry in entries:
        spent += _cost([entry]) if budget else 0
        if kept and spent > budget:
            break
        text, most = str(entry.get("content", "")), budget * 4
        if spent > budget and len(text) > most:
            entry = entry | {"content": _shortened(text, most, entry["_meta"]["document_path"])}
        kept.append(entry)
    return kept


def _cost(entries: list[Entry]) -> int:
    """Return how many tokens a model reads for these entries."""
    return count_tokens(markdown.yaml({"": entries}))


def _left_out(count: int, one: str, many: str, budget: int) -> list[str]:
    if not count:
        return []
    older = amount(count, f"older {one} is", f"older {many} are")
    advice = "Name a domain or repository, use filters, or send budget: 0."
    return [f"{older} left out: more than {amount(budget, 'token')}. {advice}"]


def _unknown(what: str, wanted: Sequence[str], whose: str, known: Iterable[str]) -> list[str]:
    """Return a warning for each wanted value that no record has, with the values there are."""
    if not wanted:
        return []
    there = {names.same(value): value for value in known if value}
    missing = [value for value in wanted if names.same(value) not in there]
    listed = ", ".join(sorted(there.values())[:50]) or "none"
    return [f'No {whose} here has the {what} "{value}". There are: {listed}.' for value in missing]


def _warnings(problems: list[Problem]) -> list[str]:
    more = len(problems) - _MOST_WARNINGS
    rest = [f"… and {more} more; holdfast lint lists them all."] if more > 0 else []
    return [*map(str, problems[:_MOST_WARNINGS]), *rest]
