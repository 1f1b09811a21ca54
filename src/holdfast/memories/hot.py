"""Hot memory: the rules that every conversation loads, their budgets, and moving text in and out of them.

A rule is a Markdown file in the rules folder; rules that a client keeps for itself are counted too. Each rule declares
a budget, and all together have one; promoting a record into a rule must fit both. Demoting first stores the text as a
note and then removes it from the rule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from holdfast.core import Core
from holdfast.errors import AlreadyExists, Damaged, HoldfastError, Invalid, NotFound, OverBudget
from holdfast.formats import markdown, pages, sections
from holdfast.model import names
from holdfast.model.kinds import KINDS, Place
from holdfast.model.names import amount
from holdfast.model.queries import Query
from holdfast.model.records import Draft, Receipt, Record, Scope
from holdfast.model.times import age, local
from holdfast.storage import parsing
from holdfast.storage.tree import ABSENT, Document

CLIENT_RULES = ".cursor/rules"
"""Where a client keeps rules of its own, beside links to ours."""
Order = Literal["age", "size", "share"]
_MOST_LINES = 999_999
_RULE_FIELDS = frozenset({"description", "alwaysApply", "source", "title", "updated", "archived", "isArchived"})


class Rule(pages.Budget, frozen=True, kw_only=True):
    path: str
    name: str
    title: str
    share: float
    """The used share of its own budget; 1 is all of it."""
    part: float
    """The used share of the budget of all rules."""
    updated: str
    age: str


class Finding(msgspec.Struct, frozen=True):
    """A fault of a rule, or of all rules; then `rule` is empty and the path is their folder."""

    level: pages.Level
    path: str
    line: int
    what: str
    rule: str = ""


_ORDERS: Mapping[str, Callable[[Rule], Any]] = {
    "age": lambda rule: rule.updated,
    "size": lambda rule: (-rule.lines, -rule.tokens),
    "share": lambda rule: -rule.part,
}


class Hot:
    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self._folder = memory.settings.paths.rules
        self._budget = memory.settings.hot

    def rules(self) -> list[Rule]:
        """Return every rule, by path."""
        return [self._rule(path, document) for path, document in self._documents([])]

    def texts(self) -> tuple[dict[str, str], list[Finding]]:
        """Return the text of each rule of this memory by path, without front matter and budget, and unreadable ones."""
        found, texts = list[Finding](), dict[str, str]()
        for path, document in self._documents(found):
            if self._is_ours(path):
                text = markdown.our_side(document.data.decode("utf-8", "replace").removeprefix("\ufeff"))
                texts[path] = _plain(pages.without_budget(text[markdown.body_start(text) :]))
        return texts, [one for one in found if one.level == "error" and one.path.startswith(self._folder)]

    def review(self, by: Order = "age") -> list[Rule]:
        """Return the rules in the order of review: oldest, largest or greatest part of the whole budget first."""
        if by not in _ORDERS:
            raise Invalid(f"There is no order {by!r}.", "Use age, size or share.")
        return sorted(self.rules(), key=_ORDERS[by])

    def total(self) -> pages.Budget:
        """Return the size of all rules together, and its limits."""
        return self._total(self.rules())

    def check(self) -> list[Finding]:
        """Return the faults: budgets that are missing, exceeded or nearly used up, and unreadable rules."""
        unreadable, budgets = self.faults()
        return unreadable + budgets

    def faults(self) -> tuple[list[Finding], list[Finding]]:
        """Return the rules that cannot be read, and the faults of budgets."""
        unreadable, found = list[Finding](), list[Finding]()
        rules = [self._rule(path, document) for path, document in self._documents(unreadable)]
        for rule in rules:
            flaws = pages.budget_flaws(rule) if self._is_ours(rule.path) else []
            found += [Finding(flaw.level, rule.path, flaw.line, flaw.what, rule.name) for flaw in flaws]
        flaws = pages.total_flaws(self._total(rules))
        return unreadable, found + [Finding(flaw.level, self._folder, 0, flaw.what) for flaw in flaws]

    def _is_ours(self, path: str) -> bool:
        """Is this a rule of the memory, not one that a client keeps for itself?"""
        return path.startswith(f"{self._folder}/")

    def _total(self, budgets: Sequence[pages.Budget]) -> pages.Budget:
        return pages.total_budget(budgets, self._budget.lines, self._budget.tokens)

    def _documents(self, found: list[Finding]) -> Iterator[tuple[str, Document]]:
        """Yield the rules by path; those that cannot be read are added to `found`. Links to our rules are left out."""

        def ours(path: str, why: str) -> None:
            found.append(Finding("error", path, 0, why, _stem(path)))

        def theirs(path: str, why: str) -> None:
            found.append(Finding("warning", path, 0, f"not counted: {why}", _stem(path)))

        tree = self._memory.tree
        paths = [path for path, _ in tree.walk(self._folder, (".md",), ours)]
        for path, _ in tree.walk(CLIENT_RULES, (".mdc",), theirs):
            with contextlib.suppress(Invalid):  # reached through a linked folder
                paths += [path] if tree.target(path) is None else []
        for path in sorted(paths):
            try:
                yield path, self._memory.store.read(path)
            except HoldfastError as error:
                ours(path, error.message)

    def _rule(self, path: str, document: Document) -> Rule:
        size, most = pages.budget_of(document.data.decode("utf-8", "replace")), self._budget
        record = _record(path, document)
        day, part = local(record.updated)[:10], max(size.lines / most.lines, size.tokens / most.tokens)
        return Rule(
            **msgspec.structs.asdict(size), path=path, name=_stem(path), title=record.title.strip(),
            share=round(size.share, 3), part=round(part, 3), updated=day, age=age(day),
        )  # fmt: skip

    def promote(self, identifier: str, into: str = "", budget: int = 0, op_id: str = "") -> Receipt:
        """Copy a record into a new rule, or as a section into the rule `into`; the record stays as it is."""
        record = self._memory.get(identifier)
        kind = KINDS[record.kind]
        if kind.layer != "warm" or kind.owned:
            one = kind.one.lower()
            raise Invalid(f"{identifier} is {one}.", "Promote a decision, a lesson, a note, a fact or the like.")
        if record.hidden or record.superseded:
            raise Invalid(f"{identifier} is hidden or superseded.", "Promote the current record, or show it again.")
        if not 0 <= budget <= _MOST_LINES:
            raise Invalid(f"The budget is {amount(budget, 'line')}.", f"Use a number from 1 to {_MOST_LINES}.")
        if into and budget:
            raise Invalid(f'Rule "{into}" already has a budget.', "Change it in its comment, or leave --budget out.")
        if not into:
            return self._add(record, budget, op_id)
        title, path = _title(record), self._named(into)
        document = self._memory.store.read(path)
        body = _body(path, document)
        known = self._memory.store.knows_op(op_id)
        if not known and any(part.level > 1 for part in sections.headed(body, title)):
            raise AlreadyExists(f'{path} has a section "{title}" already.', "Rename or remove that section first.")
        newline = "\r\n" if b"\r\n" in document.data else "\n"
        addition = f"\n## {title}\n\n{_text(record)}\n".replace("\n", newline)
        body += addition if body.endswith("\n") or not body else newline + addition
        if not known:
            self._check_fit(path, markdown.replace_body(document.data, body))
        return self._memory.put_draft(Draft(id=path, text=body, expect=document.version, op_id=op_id))

    def _add(self, record: Record, budget: int, op_id: str) -> Receipt:
        title = _title(record)
        path = f"{self._folder}/common/{names.slug(title, 'rule')}.md"
        front = {"description": title, "alwaysApply": True, "source": record.id}
        body = f"\n\n# {title}\n\n{_text(record)}\n"

        def whole(lines: int) -> bytes:
            return markdown.edit(markdown.render({}, pages.budget_comment(lines) + body), front)

        needed = len(sections.lines_of(whole(1).decode()))
        lines = budget or max(20, -(-needed // 9) * 10)  # a multiple of ten that leaves a tenth free
        if needed > lines:
            what = f"The rule has {amount(needed, 'line')}; its budget would be {lines}."
            raise OverBudget(what, f"Give --budget {needed}.")
        if not self._memory.store.knows_op(op_id):
            self._check_fit(path, whole(lines))
        try:
            return self._memory.replace(path, whole(lines), ABSENT, op_id=op_id)
        except AlreadyExists:
            raise AlreadyExists(f"There is a rule {path} already.", "Promote into it with --into.") from None

    def _check_fit(self, path: str, data: bytes) -> None:
        """Refuse a rule that would exceed its own budget or that of all rules."""
        rules = self.rules()
        new = pages.budget_of(data.decode("utf-8", "replace"))
        own = pages.budget_flaws(new) if new.line else []
        together = pages.total_flaws(self._total([*(rule for rule in rules if rule.path != path), new]))
        faults = [f"{path} {flaw.what}" for flaw in own if flaw.level == "error"]
        faults += [flaw.what for flaw in together if flaw.level == "error"]
        if not faults:
            return
        hint = ""
        if rules:
            large, old = max(rules, key=lambda rule: rule.part), min(rules, key=lambda rule: rule.updated)
            reasons = {large.path: amount(large.lines, "line")}
            reasons[old.path] = f"{reasons[old.path]}, changed {old.age}" if old is large else f"changed {old.age}"
            hint = f" Look first at {' and '.join(f'{path} ({why})' for path, why in reasons.items())}."
        raise OverBudget(f"With it, {'; '.join(faults)}.{hint}", "Nothing was changed.")

    def demote(self, name: str, scope: str | Scope | None = None, heading: str = "", op_id: str = "") -> Receipt:
        """Move a rule, or one section of it, out of hot memory; the receipt names the record that has the text now.

        The note is durable before the rule changes, and the bytes of the rule stay in `writes/kept/`. Safe to repeat.
        """
        try:
            path = self._named(name)
            if heading:
                return self._cut(path, heading, scope, op_id)
            if self._memory.tree.target(path) is not None:
                raise Invalid(f"{path} is a link.", "Demote the rule that it leads to.")
            document = self._memory.store.read(path)
            rule = _record(path, document)
            text, source, stored = _text(rule), rule.fields.get("source"), None
            with contextlib.suppress(HoldfastError):  # no note is needed if the record it was made from has this text
                found = self._memory.get(source) if isinstance(source, str) and source else None
                if found and not (found.hidden or found.superseded) and _text(found) == text:
                    stored = _demoted(found)
            fields = {name: value for name, value in rule.fields.items() if name not in _RULE_FIELDS}
            stored = stored or self._note(_title(rule), text, scope, fields)
            self._memory.store.remove(path, expect=document.version, op_id=op_id)
            return stored
        except NotFound:
            if self._memory.store.knows_op(op_id):
                return Receipt("repeated", name, name)
            raise

    def _cut(self, path: str, heading: str, scope: str | Scope | None, op_id: str) -> Receipt:
        """Demote one section; no note is needed if a warm record has the same title and text."""
        document = self._memory.store.read(path)
        body = _body(path, document)
        found = sections.headed(body, heading)
        found = [part for part in found if part.level > 1] or found  # the title of the page only if nothing else fits
        if not found:
            known = [part.title for part in sections.headings(body)]
            listed = f"Its headings: {', '.join(known)}." if known else "It has no headings."
            raise NotFound(f'{path} has no section "{heading}".{names.close_to(heading, known)}', listed)
        if len(found) > 1:
            raise Invalid(f'{path} has {len(found)} sections "{heading}".', "Give one of them another heading.")
        part = found[0]
        rest = sections.without(body, part)
        if not pages.without_budget(rest).strip():
            raise Invalid(f'"{heading}" is the only text of {path}.', "Demote the rule as a whole.")
        text, stored = _plain(body[part.below : part.end]), None
        for hit in self._memory.find(Query(text=f'"{part.title}"', limit=100)) if not scope else ():
            record, kind = hit.record, KINDS[hit.record.kind]
            same = names.same(_title(record)) == names.same(part.title) and _text(record) == text
            if same and kind.layer == "warm" and kind.shape != "line":
                stored = stored or _demoted(record)
        stored = stored or self._note(part.title, text, scope, {})
        self._memory.put_draft(Draft(id=path, text=rest, expect=document.version, op_id=op_id))
        return stored

    def _note(self, title: str, text: str, scope: str | Scope | None, fields: Mapping[str, Any]) -> Receipt:
        """Store a text as a note, unless a note has it; a number is added to a title that is taken."""
        where = self._memory.scopes.resolve(scope)
        notes = self._memory.every(Query(kinds=("note",), scope=where.path))
        known = {note.title: note for note in notes if note.scope.path == where.path}
        name, number = title, 1
        while True:
            note = known.get(name)
            if note and _plain(note.text) == text:
                return _demoted(note)
            if note is None:
                with contextlib.suppress(AlreadyExists):  # a hidden note has that name
                    draft = Draft(kind="note", title=name, text=text, scope=where, fields=fields)
                    return _demoted(self._memory.put_draft(draft))
            number += 1
            name = f"{title} ({number})"

    def _named(self, name: str) -> str:
        """Return the path of a rule, given by its path, its path in the rules folder, or its name."""
        paths = [rule.path for rule in self.rules()]
        if name in paths and not self._is_ours(name):
            raise Invalid(f"{name} belongs to one client.", "Edit it by hand.")
        ours = [path for path in paths if self._is_ours(path)]
        wanted, start = names.same(name.removesuffix(".md")), len(self._folder) + 1
        found = [path for path in ours if wanted in (names.same(path[:-3]), names.same(path[start:-3]))]
        found = found or [path for path in ours if names.same(_stem(path)) == wanted]
        if not found:
            hint = names.close_to(name, map(_stem, ours))
            raise NotFound(f'There is no rule "{name}".{hint}', "Run: holdfast hot review")
        if len(found) > 1:
            raise Invalid(f'Several rules are named "{name}": {", ".join(found)}.', "Give the path of one.")
        return found[0]


def _demoted(record: Record | Receipt) -> Receipt:
    return Receipt("demoted", record.id, record.path, record.version)


def _record(path: str, document: Document) -> Record:
    return parsing.documents(Place(path, KINDS["rule"], Scope(), _stem(path)), document).records[0]


def _stem(path: str) -> str:
    return path.rpartition("/")[2].rpartition(".")[0]


def _body(path: str, document: Document) -> str:
    """Return the text below the front matter, as `markdown.replace_body` takes it."""
    page = markdown.parse(document.data)
    if page.fault:
        raise Damaged(f"{path}, line {page.fault_line}: {page.fault}.", "Fix it by hand first.")
    return page.body.lstrip("\r\n")


def _title(record: Record) -> str:
    return " ".join((record.title or record.key or record.text[:60]).split())


def _text(record: Record) -> str:
    """Return the text of a record without its budget, and without a heading that repeats its title."""
    text = pages.without_budget(_plain(record.text))
    first = next(iter(sections.headings(text)), None)
    repeats = first is not None and not first.start and names.same(first.title) == names.same(_title(record))
    return _plain(text[first.below :]) if first and repeats else text


def _plain(text: str) -> str:
    """Return a text in the form in which texts are compared and stored."""
    return text.replace("\r\n", "\n").strip()
