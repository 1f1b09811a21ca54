"""What is wrong in the tree of Markdown files, with file and line: `lint`.

Every file is read once. Only what a person or an agent should mend is named; what is merely unusual is not. With `fix`
what can only mean one thing is mended: a status in another spelling, a date in another form. Everything else stays as
it is and is reported. Save points are looked at for being readable, and for nothing else.
"""

from __future__ import annotations

import bisect
import contextlib
import re
from collections.abc import Callable, Iterable

import msgspec

from holdfast.core import Core
from holdfast.errors import HoldfastError, Invalid, NotFound
from holdfast.formats import budgets, invisible, links, markdown, page_lint
from holdfast.memories import _rules, pages
from holdfast.model.kinds import KINDS
from holdfast.model.layout import Place
from holdfast.model.records import Draft, Record, text_of
from holdfast.model.scopes import Scope
from holdfast.owner import merge
from holdfast.storage import parsing
from holdfast.storage.tree import Document

_ARCHIVE = re.compile(r"-\d{4}\.md\Z")


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong; `rule` is the short name of the check that found it."""

    level: page_lint.Level
    path: str
    line: int
    what: str
    rule: str
    fixed: bool = False
    fixable: bool = False
    """Can `fix` mend it?"""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {'fixed' if self.fixed else self.level}: {self.what} [{self.rule}]"


class Report(msgspec.Struct, frozen=True):
    """How many files were looked at, and what was found, by path and line."""

    files: int
    faults: list[Fault]

    @property
    def errors(self) -> int:
        """How many errors are left."""
        return self._left("error")

    @property
    def warnings(self) -> int:
        """How many warnings are left."""
        return self._left("warning")

    @property
    def fixed(self) -> int:
        return sum(fault.fixed for fault in self.faults)

    def _left(self, level: str) -> int:
        return sum(fault.level == level and not fault.fixed for fault in self.faults)


def lint(
    memory: Core,
    scope: str | Scope | None = None,
    fix: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Look at every Markdown file of the tree, or of one scope; with `fix`, mend what is safe to mend."""
    look = _Look(memory, fix)
    places = list(pages.every(memory, scope, look.blocked))
    look.paths.update(place.path for place in places)
    for number, place in enumerate(places, 1):
        look.at(place)
        if progress:
            progress(number, len(places))
    if not scope:
        look.hot_memory()
    look.names_in_brackets(whole=not scope)
    faults = sorted(set(look.faults), key=lambda fault: (fault.path, fault.line, fault.level, fault.rule, fault.what))
    return Report(len(places), faults)


class _Look:
    """One look at a tree: what was found so far, and what is needed to judge links at the end."""

    def __init__(self, memory: Core, fix: bool) -> None:
        self._memory = memory
        self._fix = fix
        self.faults: list[Fault] = []
        self.paths: set[str] = set()
        self._names: set[str] = set()
        self._there: dict[str, bool] = {}
        self._rules: list[budgets.Budget] = []
        self._bracketed: list[tuple[str, links.Link]] = []

    def blocked(self, path: str, why: str) -> None:
        self._error(path, 1, why, "unreadable")

    def at(self, place: Place) -> None:
        """Judge one file; what depends on other files is only noted."""
        document = self._read(place.path)
        if document is None:
            return
        if (other := merge.conflict_of(place.path)) and other[0] in self.paths:
            self._warning(
                place.path, 1, f"is another version of {other[0]}: make one of both, then remove it", "conflict"
            )
        text = self._text(place.path, document.data)
        self._dangers(place.path, text)
        page = markdown.parse(text.encode("utf-8"))
        records = self._records(place, document)
        self._front(place, document.version, page, text)
        if place.kind.write_once:
            return
        if place.kind.name == "rule":
            self._rule(place.path, text)
        elif place.kind.shape == "section":
            self._entries(place, page, records)
        elif place.path.endswith("/ABSTRACT.md"):
            self._abstract(place.path)
        if ("[[" in text or "](" in text) and not _is_archive(place):
            self._links(place, page, text, records)

    def _read(self, path: str) -> Document | None:
        try:
            return self._memory.vault.read(path, self._memory.settings.limits.document_bytes)
        except NotFound:  # removed since the walk
            return None
        except HoldfastError as error:
            self._error(path, 1, str(error), "unreadable")
            return None

    def _text(self, path: str, data: bytes) -> str:
        if b"\0" in data:
            line = data.count(b"\n", 0, data.index(b"\0")) + 1
            self._error(path, line, "holds NUL bytes; save it as UTF-8 text", "encoding")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            self._error(path, line, f"is not UTF-8 at byte {error.start}; save it as UTF-8", "encoding")
            return data.decode("utf-8", "replace")

    def _dangers(self, path: str, text: str) -> None:
        for found in self._memory.screen.found(text):
            what = f"holds what looks like a secret: {found.name}; take it out and replace it where it is used"
            self._warning(path, found.line, what, "secret")
        for each in invisible.find(text):
            self._warning(path, each.line, f"has characters that nobody sees: {each.what}", "unseen")

    def _front(self, place: Place, version: str, page: markdown.Page, text: str) -> None:
        found = list(page_lint.front(place.kind, page, text[: len(text) - len(page.body)]))
        meant = {flaw.field: flaw.meant for flaw in found if flaw.meant}
        mended = self._fix and bool(meant) and self._mend(place.path, meant, version)
        for flaw in found:
            fixed = mended and bool(flaw.meant)
            fixable = bool(flaw.meant) and not fixed
            self.faults.append(Fault(flaw.level, place.path, flaw.line, flaw.what, flaw.rule, fixed, fixable))

    def _mend(self, path: str, fields: dict[str, str], version: str) -> bool:
        try:
            self._memory.keep(Draft(id=path, fields=fields, expect=version))
        except HoldfastError:  # changed meanwhile, or laid out so that it takes a person: it stays reported
            return False
        return True

    def _entries(self, place: Place, page: markdown.Page, records: list[Record]) -> None:
        for flaw in page_lint.entries(page, records):
            self.faults.append(Fault(flaw.level, place.path, flaw.line, flaw.what, flaw.rule))
        most = self._memory.settings.learnings.entries
        if len(records) > most and not _is_archive(place):
            what = f"{len(records)} entries, of which {most} should stay; next: holdfast learnings archive"
            self._warning(place.path, records[most].line, what, "learnings")

    def _abstract(self, path: str) -> None:
        beside = self._memory.places.classify(path.removesuffix("ABSTRACT.md") + "OVERVIEW.md")
        if beside and beside.kind.name == "overview":
            what = "belongs into the description of OVERVIEW.md; next: holdfast migrate front-matter"
            self._warning(path, 1, what, "abstract")

    def _rule(self, path: str, text: str) -> None:
        budget = budgets.read(text)
        self._rules.append(budget)
        for fault in budgets.faults(budget):
            self.faults.append(Fault(fault.level, path, fault.line or 1, fault.what, "budget"))

    def hot_memory(self) -> None:
        """Judge what all rules cost together, those of Cursor's own included."""
        vault, hot = self._memory.vault, self._memory.settings.hot
        for path in _rules.of_clients(vault, lambda _path, _why: None):
            if document := self._read(path):
                self._rules.append(budgets.read(document.data.decode("utf-8", "replace")))
        for fault in budgets.total_faults(self._rules, hot.lines, hot.tokens):
            self.faults.append(Fault(fault.level, self._memory.settings.paths.rules, 1, fault.what, "budget"))

    # links

    def _links(self, place: Place, page: markdown.Page, text: str, records: list[Record]) -> None:
        starts = [record.line for record in records]
        for link in links.find(text):
            holder = bisect.bisect_right(starts, link.line) - 1
            if holder >= 0 and records[holder].hidden:
                continue  # nobody mends what is put away
            front = link.line < page.body_line
            if link.wiki:
                if not front or f"[[{link.target}" in text_of(page.fields):
                    self._bracketed.append((place.path, link))
            elif not front:
                target = links.path_from(place.path, link.target)
                if target and not self._exists(target):
                    self._error(place.path, link.line, f"links to {target}, which is not there", "link")

    def _exists(self, path: str) -> bool:
        if path in self.paths or path == ".":
            return True
        if path not in self._there:
            self._there[path] = self._in_vault(path)
        return self._there[path]

    def _in_vault(self, path: str) -> bool:
        try:
            return self._memory.vault.stat(path) is not None
        except Invalid:  # a folder, or no path at all
            pass
        except HoldfastError:  # it is there, and not for us to look into
            return True
        try:
            return bool(self._memory.vault.folder_stamp(path))
        except HoldfastError:
            return False

    def names_in_brackets(self, *, whole: bool) -> None:
        """Judge the links by name, now that all names are known; other places are asked only when one is missing."""
        left = self._unknown(self._bracketed)
        if left and not whole:
            self._learn_names(pages.every(self._memory, None, lambda _path, _why: None))
            left = self._unknown(left)
        if left:
            self._learn_keys()
        for path, link in self._unknown(left):
            self._warning(path, link.line, f"[[{link.target}]] names nothing", "link")

    def _unknown(self, bracketed: list[tuple[str, links.Link]]) -> list[tuple[str, links.Link]]:
        return [
            (path, link)
            for path, link in bracketed
            if links.normal(link.target) not in self._names
            and (not link.part or links.normal(f"{link.target}#{link.part}") not in self._names)
        ]

    def _records(self, place: Place, document: Document) -> list[Record]:
        """Return the records of a file, and learn by which names they can be linked to."""
        section = place.kind.shape == "section"
        records = list((parsing.entries if section else parsing.documents)(place, document).records)
        for record in records:
            self._names.update(links.names_of(record))
        if section:
            self._names.update((links.normal(place.path), links.normal(place.path.rpartition("/")[2])))
        return records

    def _learn_names(self, places: Iterable[Place]) -> None:
        for place in places:
            if place.path not in self.paths:
                try:
                    document = self._memory.vault.read(place.path, self._memory.settings.limits.document_bytes)
                except HoldfastError:
                    continue
                self._records(place, document)

    def _learn_keys(self) -> None:
        for kind in KINDS.values():
            if kind.key:
                with contextlib.suppress(HoldfastError):  # a log that cannot be read is the business of `verify`
                    for record in self._memory.backwards(self._memory.places.path_for(kind, Scope())):
                        self._names.update(links.names_of(record))

    def _error(self, path: str, line: int, what: str, rule: str) -> None:
        self.faults.append(Fault("error", path, line, what, rule))

    def _warning(self, path: str, line: int, what: str, rule: str) -> None:
        self.faults.append(Fault("warning", path, line, what, rule))


def _is_archive(place: Place) -> bool:
    """Is this a file of entries that were put away by year?"""
    return place.kind.shape == "section" and _ARCHIVE.search(place.path) is not None
