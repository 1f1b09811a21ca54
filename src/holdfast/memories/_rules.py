"""What a rule is made of, and what is wrong with one: the parts of `memory.hot` that need no memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from holdfast.errors import Damaged, Invalid, NotFound
from holdfast.formats import budgets, markdown, sections
from holdfast.model import names
from holdfast.model.kinds import KINDS
from holdfast.model.layout import Place
from holdfast.model.names import amount
from holdfast.model.records import Record
from holdfast.model.scopes import Scope
from holdfast.storage import parsing
from holdfast.storage.tree import Document, Vault

OWN = ".cursor/rules"
"""Where a client keeps rules of its own, beside the links to ours."""
_OF_A_RULE = frozenset({"description", "alwaysApply", "source", "title", "updated", "archived", "isArchived"})


class Rule(msgspec.Struct, frozen=True):
    path: str
    name: str
    title: str
    lines: int
    tokens: int
    most_lines: int
    most_tokens: int
    share: float
    """How much of its own budget it uses; 1 is all of it."""
    part: float
    """How much of the budget of all rules it uses."""
    updated: str
    age: str
    line: int
    """Where it declares its budget; 0 when it does not."""

    @property
    def budget(self) -> budgets.Budget:
        return budgets.Budget(self.lines, self.tokens, self.most_lines, self.most_tokens, self.line)


class Finding(msgspec.Struct, frozen=True):
    """Something wrong with a rule, or with all of them: then `rule` is empty and the path is their folder."""

    level: Literal["error", "warning"]
    path: str
    line: int
    what: str
    rule: str = ""


def of_clients(vault: Vault, blocked: Callable[[str, str], None]) -> Iterator[str]:
    """Yield the rules that a client keeps for itself: files of their own, not links to ours."""
    for path, _ in vault.walk(OWN, (".mdc",), blocked):
        with contextlib.suppress(Invalid):  # reached through a linked folder
            if vault.target(path) is None:
                yield path


def read(path: str, document: Document) -> Record:
    """Read a rule, wherever it lies."""
    return parsing.documents(Place(path, KINDS["rule"], Scope(), stem(path)), document).records[0]


def stem(path: str) -> str:
    return path.rpartition("/")[2].rpartition(".")[0]


def body_of(path: str, document: Document) -> str:
    """Return what stands below the front matter, as `markdown.replace_body` takes it."""
    page = markdown.parse(document.data)
    if page.fault:
        raise Damaged(f"{path}, line {page.fault_line}: {page.fault}.", "Mend it by hand first.")
    return page.body.lstrip("\r\n")


def section(path: str, body: str, heading: str) -> sections.Part:
    """Return the section of this heading; the title of the whole is not one, if there is another of that name."""
    found = sections.headed(body, heading)
    found = [part for part in found if part.level > 1] or found
    if not found:
        known = [part.title for part in sections.headings(body)]
        told = f"Its headings: {', '.join(known)}." if known else "It has no headings."
        raise NotFound(f'{path} has no section "{heading}".{names.close_to(heading, known)}', told)
    if len(found) > 1:
        raise Invalid(f'{path} has {len(found)} sections "{heading}".', "Give one of them another heading.")
    return found[0]


def look_first(rules: list[Rule]) -> str:
    """Name the rules to look at first when there is no room: the largest, and the oldest."""
    if not rules:
        return ""
    large, old = max(rules, key=lambda rule: rule.part), min(rules, key=lambda rule: rule.updated)
    found = {large.path: amount(large.lines, "line")}
    found[old.path] = f"{found[old.path]}, changed {old.age}" if old is large else f"changed {old.age}"
    return f" Look first at {' and '.join(f'{path} ({why})' for path, why in found.items())}."


def title_of(record: Record) -> str:
    return " ".join((record.title or record.key or record.text[:60]).split())


def text_of(record: Record) -> str:
    """Return the text of a record without a budget and without a heading that only repeats its title."""
    text = budgets.without_comment(plain(record.text))
    first = next(iter(sections.headings(text)), None)
    repeats = first is not None and not first.start and names.same(first.title) == names.same(title_of(record))
    return plain(text[first.below :]) if first and repeats else text


def own_fields(record: Record) -> dict[str, Any]:
    """Return what the front matter of a rule says beyond what makes it one."""
    return {name: value for name, value in record.fields.items() if name not in _OF_A_RULE}


def plain(text: str) -> str:
    """Return the form in which texts are compared and kept."""
    return text.replace("\r\n", "\n").strip()


def room(lines: int) -> int:
    """Return a budget that so many lines do not nearly use up: a multiple of ten, twenty at least."""
    return max(20, -(-lines // 9) * 10)
