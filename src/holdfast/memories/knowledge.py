"""The knowledge tree: what was done and is planned, what a place is about, what was decided and learned.

Everything is read by scope from Markdown that people and agents write themselves. What cannot be read is told as a
warning beside the rest. Two things are written here, for clients that have no file tools: an entry, a plan's status.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import AlreadyExists, Invalid, NotFound
from holdfast.formats import markdown
from holdfast.memories import _entries
from holdfast.memories._entries import Entry, Tier
from holdfast.model import names
from holdfast.model.kinds import KINDS, PLAN_STATUS
from holdfast.model.names import amount
from holdfast.model.queries import Query
from holdfast.model.records import Draft, Problem, Receipt, Record, text_of
from holdfast.model.scopes import DEFAULT, Scope
from holdfast.model.times import normal, today
from holdfast.model.tokens import count_tokens

BUDGET = 20_000
"""Tokens of decisions and lessons in one reply, unless the caller says otherwise."""
_MOST_WARNINGS = 20
_LONGEST_TOPIC = 255
_LEARNED = ("decision", "lesson")
_TOPICAL = tuple(row.name for row in KINDS.values() if row.shape == "document" and "{scope}" in row.place)


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """Which decisions and lessons are wanted."""

    tags: Sequence[str] = ()
    category: str = ""
    archived: bool = False
    """Also those that were moved to the files of earlier years."""
    budget: int = BUDGET
    """Most tokens to spend on them; 0 is no limit."""


class Knowledge:
    def __init__(self, memory: Core) -> None:
        self._memory = memory

    # reading

    def plans(
        self, scope: Scope, status: Sequence[str] = (), tags: Sequence[str] = (), tier: Tier = "T0", budget: int = 0
    ) -> dict[str, Any]:
        """Return the plans at and below a scope, newest first."""
        records, problems = self._memory.survey(Query(kinds=("plan",), scope=_tree(scope)))
        warnings = self._nowhere(scope) + _told(problems)
        _check_status(status, records)
        if tags:
            warnings += _unknown("tag", tags, "plan", (tag for record in records for tag in record.tags))
        wanted = [
            record
            for record in records
            if (not status or record.fields.get("status") in status) and (not tags or _tagged(record, tags))
        ]
        wanted.sort(key=lambda record: names.same(record.title))
        wanted.sort(key=lambda record: normal(_entries.created(record))[:10], reverse=True)
        unsaid = sum("status" not in record.fields for record in records) if status else 0
        if unsaid:
            warnings.append(_unsaid(unsaid))
        shown = _within((_entries.plan(record, tier) for record in wanted), budget)
        if left_out := len(wanted) - len(shown):
            warnings.append(_left_out(left_out, ("plan", "plans"), budget))
        return _reply({"plans": shown}, warnings)

    def overviews(self, scope: Scope, tier: Tier = "T1") -> dict[str, Any]:
        """Return what a place is, in full, and what the places below it are, in a sentence each."""
        records, problems = self._memory.survey(Query(kinds=("overview",), scope=_tree(scope), hidden=True))
        own = self._memory.places.overview(scope.path)
        warnings = self._nowhere(scope) + _told(problems)
        shown = [self._overview(record, tier) for record in records if record.path == own]
        if not shown and not self._nowhere(scope):
            warnings.append(f"{scope.path} has no OVERVIEW.md.")
        below = sorted(
            (record for record in records if record.path != own and not record.hidden), key=lambda record: record.path
        )
        return _reply({"overviews": [*shown, *(self._overview(record, "T0") for record in below)]}, warnings)

    def learnings(self, scope: Scope, wanted: Learned | None = None) -> dict[str, Any]:
        """Return decisions and lessons of a scope, of what is below it and of what is above it, newest first."""
        wanted = wanted or Learned()
        records, problems = self._memory.survey(Query(kinds=_LEARNED, scope=_tree(scope), above=True))
        warnings = self._nowhere(scope) + _told(problems)
        live = [record for record in records if wanted.archived or not _of_a_year(record)]
        moved = len(records) - len(live)
        if wanted.tags:
            warnings += _unknown("tag", wanted.tags, "entry", (tag for record in live for tag in record.tags))
        if wanted.category:
            known = (str(record.fields.get("category") or "") for record in live)
            warnings += _unknown("category", [wanted.category], "entry", known)
        live = [record for record in live if _fits(record, wanted)]
        live.sort(key=lambda record: (record.path, -record.line))
        live.sort(key=lambda record: record.time, reverse=True)
        kept = _within((_entries.learning(record) for record in live), wanted.budget)
        if left_out := len(live) - len(kept):
            warnings.append(_left_out(left_out, ("entry", "entries"), wanted.budget))
        shown = list(zip(live, kept, strict=False))
        reply: dict[str, Any] = {
            f"{kind}s": [entry for record, entry in shown if record.kind == kind] for kind in _LEARNED
        }
        return _reply(reply | ({"archived": moved} if moved else {}), warnings)

    def context(
        self, scope: Scope, topics: Sequence[str] = (), tier: Tier = "T1", budget: int = BUDGET
    ) -> dict[str, Any]:
        """Return all of it at once: overview, plans, decisions, lessons, and the documents of some topics.

        Plans may take half of the budget, and decisions and lessons what the plans leave of it.
        """
        about, planned = self.overviews(scope), self.plans(scope, budget=budget // 2)
        rest = budget and max(budget // 2, budget - _cost(planned["plans"]))
        learned = self.learnings(scope, Learned(budget=rest))
        own = self._memory.places.overview(scope.path)
        entries = about["overviews"]
        found, warnings = self.topics(scope, topics, tier) if topics else ({}, [])
        reply = {
            "overview": next((entry for entry in entries if entry["_meta"]["document_path"] == own), None),
            "overviews": [entry for entry in entries if entry["_meta"]["document_path"] != own],
            "plans": planned["plans"],
            "decisions": learned["decisions"],
            "lessons": learned["lessons"],
            "topics": found,
        }
        told = [each for part in (about, planned, learned) for each in part.get("warnings", ())] + warnings
        return reply | {"warnings": list(dict.fromkeys(told))}

    def topics(
        self, scope: Scope, topics: Sequence[str], tier: Tier = "T1"
    ) -> tuple[dict[str, list[Entry]], list[str]]:
        """Return the documents of each topic, which is the name of a folder that starts with `_`, and warnings."""
        if any(len(topic) > _LONGEST_TOPIC for topic in topics):
            raise Invalid(f"A topic has more than {_LONGEST_TOPIC} characters.", "A topic is the name of a folder.")
        records, problems = self._memory.survey(Query(kinds=_TOPICAL, scope=_tree(scope)))
        by_topic: dict[str, list[Record]] = {}
        for record in sorted(records, key=lambda record: record.path):
            for part in {part for part in record.path.split("/")[:-1] if part.startswith("_")}:
                by_topic.setdefault(names.same(part[1:]), []).append(record)
        warnings = _told(problems)
        warnings += _unknown("topic", [topic.removeprefix("_") for topic in topics], "folder", by_topic)
        shown = {
            topic: [_entries.document(record, tier) for record in by_topic.get(names.same(topic.removeprefix("_")), ())]
            for topic in topics
        }
        return shown, warnings

    # writing

    def save(self, draft: Draft) -> Receipt:
        """Add a decision or a lesson; one that says what is known already, here or above, is refused."""
        scope = self._memory.scopes.resolve(draft.scope)
        for path in (scope.path, *scope.above) if not self._memory.knows_op(draft.op_id) else ():
            for record in self._memory.every(Query(kinds=(draft.kind,), scope=path)):
                if record.scope.path == path and names.same_words(record.text, draft.text or ""):
                    raise AlreadyExists(f"{record.id} says the same.", "Nothing was written.")
        return self._memory.keep(draft)

    def set_status(self, plan: Record, status: str, op_id: str = "") -> Receipt:
        """Set the status of a plan and the day of the change, and no other line of its file."""
        if status not in PLAN_STATUS:
            raise Invalid(f'status is "{status}".', f"Use one of: {', '.join(PLAN_STATUS)}.")
        if plan.fields.get("status") == status and not self._memory.knows_op(op_id):
            return Receipt("unchanged", plan.id, plan.path, plan.version)
        return self._memory.keep(Draft(id=plan.path, fields={"status": status, "updated": today()}, op_id=op_id))

    def plan(self, name: str, scope: Scope | None = None) -> Record:
        """Return the plan of this path, document id or name; of several, the one in the scope, if only one is."""
        place = self._memory.places.classify(name)
        if place and place.kind.name == "plan":
            return self._memory.get(name)
        if "/" in name:
            raise Invalid(
                f"{name[:200]} is not the path of a plan.", "Give the document_path that retrieve_plans shows."
            )
        records = self._memory.every(Query(kinds=("plan",), hidden=True))
        wanted = names.same(name.removesuffix(".md"))
        found = [
            record for record in records if wanted in (names.same(_entries.stem(record)), names.same(record.title))
        ]
        if scope and len(found) > 1:
            found = [record for record in found if f"{record.scope.path}/".startswith(f"{scope.path}/")] or found
        if len(found) > 1:
            raise Invalid(f'"{name}" names several plans: {", ".join(r.path for r in found)}.', "Give the path.")
        if not found:
            hint = names.close_to(name, [_entries.stem(record) for record in records])
            raise NotFound(f'Plan "{name}" not found.', f"Use retrieve_plans to see the plans there are.{hint}")
        return found[0]

    def _nowhere(self, scope: Scope) -> list[str]:
        """Say where to look instead, when nobody ever wrote to the workspace that stands in for a missing scope."""
        known = self._memory.scopes.children("")
        if scope.path != DEFAULT or DEFAULT in known or not known:
            return []
        return [f"The workspace default holds nothing. Name one as scope: {', '.join(known)}."]

    def _overview(self, record: Record, tier: Tier) -> Entry:
        top = f"{self._memory.places.workspaces}/"
        entry: Entry = {"scope": record.path.removeprefix(top).rpartition("/")[0], "tier": tier, "title": record.title}
        if tier != "T0":
            entry["content"] = _entries.content(record, tier, _entries.OVERVIEW)
        entry["abstract"] = _entries.abstract(record)
        if record.tags:
            entry["tags"] = list(record.tags)
        if record.hidden:
            entry["archived"] = True
        return entry | _entries.meta(record, record.id)


def _reply(data: dict[str, Any], warnings: list[str]) -> dict[str, Any]:
    return data | ({"warnings": warnings} if warnings else {})


def _tree(scope: Scope) -> Scope:
    """Return the place without session and run, which say nothing of a document."""
    return Scope(scope.workspace, scope.domain, scope.repository)


def _of_a_year(record: Record) -> bool:
    """Does this entry lie in the file of an earlier year?"""
    return not record.path.endswith(f"/{record.kind}s.md")


def _tagged(record: Record, tags: Iterable[str]) -> bool:
    return not {names.same(tag) for tag in record.tags}.isdisjoint(names.same(tag) for tag in tags)


def _fits(record: Record, wanted: Learned) -> bool:
    category = str(record.fields.get("category") or "")
    return (not wanted.tags or _tagged(record, wanted.tags)) and (
        not wanted.category or names.same(category) == names.same(wanted.category)
    )


def _within(entries: Iterable[Entry], budget: int) -> list[Entry]:
    """Return what fits the budget, from the first on, and of the first as much as fits; 0 is no limit."""
    if not budget:
        return list(entries)
    kept: list[Entry] = []
    spent = 0
    for entry in entries:
        spent += _cost([entry])
        if kept and spent > budget:
            break
        kept.append(entry if spent <= budget else _entries.cut(entry, budget * 4))
    return kept


def _cost(entries: list[Entry]) -> int:
    """Return how many tokens a model reads for these entries."""
    return count_tokens(markdown.yaml({"": entries}))


def _unsaid(count: int) -> str:
    if count == 1:
        return "1 plan does not say its status and is left out."
    return f"{count} plans do not say their status and are left out."


def _left_out(count: int, what: tuple[str, str], budget: int) -> str:
    older = amount(count, f"older {what[0]} is", f"older {what[1]} are")
    return (
        f"{older} left out: more than {amount(budget, 'token')}."
        " Name a domain or repository, use filters, or send budget: 0."
    )


def _check_status(wanted: Iterable[str], records: Iterable[Record]) -> None:
    known = (*PLAN_STATUS, *(text_of(record.fields.get("status")) for record in records))
    for status in wanted:
        if status not in known:
            raise Invalid(
                f'No plan has the status "{status}".{names.close_to(status, PLAN_STATUS)}',
                f"Use one or several of: {', '.join(PLAN_STATUS)}.",
            )


def _unknown(what: str, wanted: Iterable[str], whose: str, known: Iterable[str]) -> list[str]:
    """Say which of the wanted values nothing here has, and which values there are."""
    there = {names.same(value): value for value in known if value}
    missing = [value for value in wanted if names.same(value) not in there]
    listed = ", ".join(sorted(there.values())[:50]) or "none"
    return [f'No {whose} here has the {what} "{value}". There are: {listed}.' for value in missing]


def _told(problems: list[Problem]) -> list[str]:
    told = [str(problem) for problem in problems[:_MOST_WARNINGS]]
    more = len(problems) - _MOST_WARNINGS
    return told + ([f"… and {more} more; holdfast lint names them all."] if more > 0 else [])
