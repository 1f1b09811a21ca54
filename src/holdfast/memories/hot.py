"""Hot memory: the rules that every conversation loads, what they cost, and moving text in and out of them.

A rule is a Markdown file in the rules folder; what one client keeps for itself counts too, since it is loaded as well.
Each rule declares its budget, and all of them together have one. Promoting copies a record into a rule, and is refused
where that would go over a budget. Demoting keeps the text as a note first and then takes it out of the rule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from holdfast.core import Core
from holdfast.errors import AlreadyExists, HoldfastError, Invalid, NotFound, OverBudget
from holdfast.formats import budgets, markdown, sections
from holdfast.memories import _rules
from holdfast.memories._rules import Finding, Rule
from holdfast.model import names
from holdfast.model.kinds import KINDS
from holdfast.model.names import amount
from holdfast.model.queries import Query
from holdfast.model.records import Draft, Receipt, Record
from holdfast.model.scopes import Scope
from holdfast.model.times import age, local
from holdfast.storage.tree import Document

_MOST = 999_999
_REVIEW = "Run: holdfast hot review"
Order = Literal["age", "size", "share"]


class Hot:
    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self._folder = memory.settings.paths.rules

    # looking

    def rules(self) -> list[Rule]:
        """Return every rule, by path."""
        return self._survey()[0]

    def texts(self) -> tuple[dict[str, str], list[Finding]]:
        """Return what each rule of this memory says, by path, and which cannot be read; no client's own are among them.

        Front matter and budgets are left out: they are for programs.
        """
        found: list[Finding] = []
        texts = {}
        for path in sorted(self._paths(found)):
            if path.startswith(f"{self._folder}/"):
                try:
                    text = self._read(path).data.decode("utf-8", "replace").removeprefix("\ufeff")
                    texts[path] = _rules.plain(budgets.without_comment(text[markdown.body_start(text) :]))
                except HoldfastError as error:
                    found.append(Finding("error", path, 0, error.message, _rules.stem(path)))
        return texts, [finding for finding in found if finding.level == "error"]

    def review(self, by: Order = "age") -> list[Rule]:
        """Return the rules in the order in which to look at them: oldest, largest or greatest part of all first."""
        rules = self.rules()
        if by == "age":
            return sorted(rules, key=lambda rule: rule.updated)
        if by == "size":
            return sorted(rules, key=lambda rule: (-rule.lines, -rule.tokens))
        if by == "share":
            return sorted(rules, key=lambda rule: -rule.part)
        raise Invalid(f"There is no order {by!r}.", "Use age, size or share.")

    def total(self) -> budgets.Budget:
        """Return what all rules cost together, and what they may."""
        used, most = budgets.total(rule.budget for rule in self.rules()), self._memory.settings.hot
        return budgets.Budget(used.lines, used.tokens, most.lines, most.tokens)

    def check(self) -> list[Finding]:
        """Return what is wrong: budgets that are missing, used up or nearly so, and rules that cannot be read."""
        rules, found = self._survey()
        for rule in rules:
            faults = budgets.faults(rule.budget) if rule.path.startswith(f"{self._folder}/") else []
            found += [Finding(fault.level, rule.path, fault.line, fault.what, rule.name) for fault in faults]
        faults = self._total_faults(rule.budget for rule in rules)
        return found + [Finding(fault.level, self._folder, 0, fault.what) for fault in faults]

    def _survey(self) -> tuple[list[Rule], list[Finding]]:
        found: list[Finding] = []
        rules = []
        for path in sorted(self._paths(found)):
            try:
                rules.append(self._rule(path, self._read(path)))
            except HoldfastError as error:
                found.append(Finding("error", path, 0, error.message, _rules.stem(path)))
        return rules, found

    def _paths(self, found: list[Finding]) -> Iterator[str]:
        """Yield the files that are rules; what is out of reach is added to `found`."""

        def ours(path: str, why: str) -> None:
            found.append(Finding("error", path, 0, why, _rules.stem(path)))

        def theirs(path: str, why: str) -> None:
            found.append(Finding("warning", path, 0, f"not counted: {why}", _rules.stem(path)))

        vault = self._memory.vault
        yield from (path for path, _ in vault.walk(self._folder, (".md",), ours) if path.endswith(".md"))
        yield from _rules.of_clients(vault, theirs)

    def _read(self, path: str) -> Document:
        return self._memory.vault.read(path, self._memory.settings.limits.document_bytes)

    def _rule(self, path: str, document: Document) -> Rule:
        record, cost = _rules.read(path, document), budgets.read(document.data.decode("utf-8", "replace"))
        most = self._memory.settings.hot
        return Rule(
            path=path, name=_rules.stem(path), title=record.title.strip(), lines=cost.lines, tokens=cost.tokens,
            most_lines=cost.most_lines, most_tokens=cost.most_tokens, share=round(cost.share, 3),
            part=round(max(cost.lines / most.lines, cost.tokens / most.tokens), 3),
            updated=(day := local(record.updated)[:10]), age=age(day), line=cost.line,
        )  # fmt: skip

    def _total_faults(self, costs: Iterable[budgets.Budget]) -> list[budgets.Fault]:
        most = self._memory.settings.hot
        return budgets.total_faults(costs, most.lines, most.tokens)

    # into hot memory

    def promote(self, identifier: str, into: str = "", budget: int = 0, op_id: str = "") -> Receipt:
        """Copy a record into a new rule, or as a section into the rule `into`; the record stays as it is."""
        record = self._memory.get(identifier)
        kind = KINDS[record.kind]
        if kind.layer != "warm" or kind.owned:
            raise Invalid(
                f"{identifier} is {kind.one.lower()}.", "Promote a decision, a lesson, a note, a fact or the like."
            )
        if record.hidden or record.superseded:
            raise Invalid(f"{identifier} is hidden or no longer holds.", "Promote what holds now, or show it again.")
        if not 0 <= budget <= _MOST:
            raise Invalid(f"The budget is {amount(budget, 'line')}.", f"Use a number from 1 to {_MOST}.")
        if into and budget:
            raise Invalid("A rule that is there has its budget.", "Change it in its comment, or leave --budget out.")
        return self._extend(into, record, op_id) if into else self._add(record, budget, op_id)

    def _add(self, record: Record, budget: int, op_id: str) -> Receipt:
        title, text = _rules.title_of(record), _rules.text_of(record)
        path = f"{self._folder}/common/{names.slug(title, 'rule')}.md"
        front = {"description": title, "alwaysApply": True, "source": record.id}

        def body(lines: int) -> str:
            return f"{budgets.comment(lines)}\n\n# {title}\n\n{text}\n"

        def whole(lines: int) -> bytes:
            return markdown.edit(markdown.render({}, body(lines)), front)

        lines = budget or _rules.room(len(sections.lines_of(whole(1).decode())))
        needed = len(sections.lines_of(whole(lines).decode()))
        if needed > lines:
            raise OverBudget(
                f"The rule has {amount(needed, 'line')}; its budget would be {lines}.", f"Give --budget {needed}."
            )
        if not self._memory.knows_op(op_id):
            self._check_fit(path, whole(lines))
        try:
            done = self._memory.keep(Draft(kind="rule", id=path, text=body(lines), op_id=op_id))
        except AlreadyExists:
            if self._read(path).data != markdown.render({}, body(lines)):
                raise AlreadyExists(f"There is a rule {path} already.", "Promote into it with --into.") from None
            done = Receipt("stored", path, path)  # an earlier call ended before it could write the front matter
        if self._memory.vault.stat(path) and markdown.parse(self._read(path).data).front is None:
            # on its own, since front matter that is added to a text leaves no line between the two
            version = self._memory.keep(Draft(id=path, fields=front)).version
            done = Receipt(done.status, path, path, version)
        return done

    def _extend(self, into: str, record: Record, op_id: str) -> Receipt:
        title, text, path = _rules.title_of(record), _rules.text_of(record), self._named(into)
        document = self._read(path)
        body = _rules.body_of(path, document)
        known = self._memory.knows_op(op_id)
        if not known and any(part.level > 1 for part in sections.headed(body, title)):
            raise AlreadyExists(f'{path} has a section "{title}" already.', "Demote that one first, or edit it.")
        newline = "\r\n" if b"\r\n" in document.data else "\n"
        addition = f"\n## {title}\n\n{text}\n".replace("\n", newline)
        body += addition if body.endswith("\n") or not body else newline + addition
        if not known:
            self._check_fit(path, markdown.replace_body(document.data, body))
        return self._memory.keep(Draft(id=path, text=body, expect=document.version, op_id=op_id))

    def _check_fit(self, path: str, data: bytes) -> None:
        """Refuse what would go over the rule's own budget or over that of all rules."""
        rules = self.rules()
        new = budgets.read(data.decode("utf-8", "replace"))
        own = budgets.faults(new) if new.line else []
        every = self._total_faults([*(rule.budget for rule in rules if rule.path != path), new])
        faults = [f"{path} {fault.what}" for fault in own if fault.level == "error"]
        faults += [fault.what for fault in every if fault.level == "error"]
        if faults:
            raise OverBudget(f"With it, {'; '.join(faults)}.{_rules.look_first(rules)}", "Nothing was changed.")

    # out of hot memory

    def demote(self, name: str, scope: str | Scope | None = None, heading: str = "", op_id: str = "") -> Receipt:
        """Take a rule, or one section of it, out of hot memory; the receipt names the record that has the text now.

        The note is durable before the rule changes, and the rule's bytes stay in `writes/kept/`; repeating it is safe.
        """
        try:
            path = self._named(name)
            return self._cut(path, heading, scope, op_id) if heading else self._leave(path, scope, op_id)
        except NotFound:
            if self._memory.knows_op(op_id):
                return Receipt("repeated", name, name)
            raise

    def _leave(self, path: str, scope: str | Scope | None, op_id: str) -> Receipt:
        if self._memory.vault.target(path) is not None:
            raise Invalid(f"{path} is a link.", "Demote the rule that it leads to.")
        document = self._read(path)
        record = _rules.read(path, document)
        title, text = _rules.title_of(record), _rules.text_of(record)
        kept = self._source(record, text) or self._note(title, text, scope, _rules.own_fields(record))
        self._memory.retire(path, document.version, op_id)
        return kept

    def _cut(self, path: str, heading: str, scope: str | Scope | None, op_id: str) -> Receipt:
        document = self._read(path)
        body = _rules.body_of(path, document)
        part = _rules.section(path, body, heading)
        rest = sections.without(body, part)
        if not budgets.without_comment(rest).strip():
            raise Invalid(f'Nothing would be left of {path} without "{heading}".', "Demote the rule as a whole.")
        text = _rules.plain(body[part.below : part.end])
        kept = (None if scope else self._same(part.title, text)) or self._note(part.title, text, scope)
        self._memory.keep(Draft(id=path, text=rest, expect=document.version, op_id=op_id))
        return kept

    def _source(self, record: Record, text: str) -> Receipt | None:
        """Return the record that this rule was made from, if that still says the same."""
        source = record.fields.get("source")
        try:
            found = self._memory.get(source) if isinstance(source, str) and source else None
        except HoldfastError:
            return None
        if found is None or found.hidden or found.superseded or _rules.text_of(found) != text:
            return None
        return Receipt("demoted", found.id, found.path, found.version)

    def _same(self, title: str, text: str) -> Receipt | None:
        """Return a warm record that says just this under this title: what a section was promoted from."""
        for hit in self._memory.find(Query(text=f'"{title}"', limit=100)):
            found = hit.record
            warm = KINDS[found.kind].layer == "warm" and KINDS[found.kind].shape != "line"
            if warm and names.same(_rules.title_of(found)) == names.same(title) and _rules.text_of(found) == text:
                return Receipt("demoted", found.id, found.path, found.version)
        return None

    def _note(
        self, title: str, text: str, scope: str | Scope | None, fields: Mapping[str, Any] | None = None
    ) -> Receipt:
        """Keep a text as a note, unless there is one that says it; a title that is taken gets a number."""
        where = self._memory.scopes.resolve(scope)
        notes = self._memory.every(Query(kinds=("note",), scope=where.path))
        known = {note.title: note for note in notes if note.scope.path == where.path}
        name, number = title, 1
        while True:
            note = known.get(name)
            if note and _rules.plain(note.text) == text:
                return Receipt("demoted", note.id, note.path, note.version)
            if note is None:
                with contextlib.suppress(AlreadyExists):  # a hidden one has that name
                    done = self._memory.keep(
                        Draft(kind="note", title=name, text=text, scope=where, fields=fields or {})
                    )
                    return Receipt("demoted", done.id, done.path, done.version)
            number += 1
            name = f"{title} ({number})"

    def _named(self, name: str) -> str:
        """Return the path of the rule that is meant: by its path, its path in the rules folder, or its name."""
        paths = [rule.path for rule in self.rules()]
        if name in paths and not name.startswith(f"{self._folder}/"):
            raise Invalid(f"{name} belongs to one client.", "Edit it by hand.")
        ours = [path for path in paths if path.startswith(f"{self._folder}/")]
        wanted = names.same(name.removesuffix(".md"))
        short = {path: path.removeprefix(f"{self._folder}/").removesuffix(".md") for path in ours}
        found = [path for path in ours if wanted in (names.same(path.removesuffix(".md")), names.same(short[path]))]
        found = found or [path for path in ours if names.same(_rules.stem(path)) == wanted]
        if not found:
            known = [_rules.stem(path) for path in ours]
            raise NotFound(f'There is no rule "{name}".{names.close_to(name, known)}', _REVIEW)
        if len(found) > 1:
            raise Invalid(f'Several rules are named "{name}": {", ".join(found)}.', "Give the path of one.")
        return found[0]
