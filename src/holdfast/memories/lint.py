"""Lint: report what is wrong in the tree of Markdown files, with file and line.

Every file is read once. With `fix`, values with only one possible meaning are corrected: the spelling of a status, the
form of a date. Of save points it only checks that they can be read.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Callable, Iterator

import msgspec

from holdfast.core import Core
from holdfast.errors import HoldfastError, Invalid, NotFound
from holdfast.formats import markdown, pages
from holdfast.formats.prompts import invisible
from holdfast.memories.hot import Hot
from holdfast.model.kinds import KINDS, Place, copy_of
from holdfast.model.names import count_tokens
from holdfast.model.patterns import regex
from holdfast.model.records import Draft, Record, Scope, text_of
from holdfast.model.times import from_prefix
from holdfast.storage import parsing
from holdfast.storage.tree import Document

_ARCHIVE = regex(r"-\d{4}\.md\Z")
_ABSTRACT_TOKENS = 200
_IN_A_SCOPE = ("overview", "decision")
"""Two kinds whose folders together cover a scope."""
Blocked = Callable[[str, str], None]
Progress = Callable[[int, int], None]


class Fault(msgspec.Struct, frozen=True):
    """One fault; `rule` is the short name of the check that found it."""

    level: pages.Level
    path: str
    line: int
    what: str
    rule: str
    fixed: bool = False
    fixable: bool = False
    """Can `fix` correct it?"""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {'fixed' if self.fixed else self.level}: {self.what} [{self.rule}]"


class LintReport(msgspec.Struct, frozen=True):
    """The number of files, and the faults by path and line."""

    files: int
    faults: list[Fault]

    @property
    def errors(self) -> int:
        """The number of errors that are left."""
        return sum(fault.level == "error" and not fault.fixed for fault in self.faults)

    @property
    def warnings(self) -> int:
        return len(self.faults) - self.errors - self.fixed

    @property
    def fixed(self) -> int:
        return sum(fault.fixed for fault in self.faults)


def every_page(memory: Core, scope: str | Scope | None, blocked: Blocked) -> Iterator[Place]:
    """Yield the place of every Markdown file of the memory, or of one scope."""
    places = memory.layout
    below = places.below(_IN_A_SCOPE, memory.scopes.resolve(scope).path) if scope else places.roots
    seen: set[str] = set()
    for folder in below:
        for path, _ in memory.tree.walk(folder, (".md",), blocked):
            if path not in seen and (place := places.classify(path)):
                seen.add(path)
                yield place


def conflict_copies(memory: Core) -> Iterator[tuple[str, str]]:
    """Yield the copies that other programs left after a conflict, each with the file that it belongs to."""
    for folder in memory.layout.roots:
        for path, _ in memory.tree.walk(folder, (".md", ".jsonl", ".orig"), lambda _path, _why: None):
            if of := copy_of(path):
                yield path, of


def lint(
    memory: Core, scope: str | Scope | None = None, fix: bool = False, progress: Progress | None = None
) -> LintReport:
    """Check every Markdown file of the tree, or of one scope; with `fix`, correct what is safe to correct."""
    linter = _Linter(memory, fix)
    places = list(every_page(memory, scope, lambda path, why: linter.add(path, 1, why, "unreadable")))
    linter.paths.update(place.path for place in places)
    for number, place in enumerate(places, 1):
        linter.check(place)
        if progress:
            progress(number, len(places))
    if not scope:
        linter.check_budgets()
        for path, of in conflict_copies(memory):
            what = f"is a conflict copy of {of} and is not read: copy what is missing to {of}, then remove it"
            linter.add(path, 1, what, "copy", "warning")
    linter.check_names(whole=not scope)
    faults = sorted(set(linter.faults), key=lambda fault: (fault.path, fault.line, fault.level, fault.rule, fault.what))
    return LintReport(len(places), faults)


class _Linter:
    """One run: the faults so far, and what is needed to check links at the end."""

    def __init__(self, memory: Core, fix: bool) -> None:
        self._memory = memory
        self._fix = fix
        self.faults: list[Fault] = []
        self.paths: set[str] = set()
        self._names: set[str] = set()
        self._by_name: list[tuple[str, markdown.Link]] = []

    def add(self, path: str, line: int, what: str, rule: str, level: pages.Level = "error") -> None:
        self.faults.append(Fault(level, path, line, what, rule))

    def _warn(self, path: str, line: int, what: str, rule: str) -> None:
        self.add(path, line, what, rule, "warning")

    def check(self, place: Place) -> None:
        """Check one file; links by name are checked at the end."""
        path, kind = place.path, place.kind
        try:
            document = self._memory.store.read(path)
        except NotFound:  # removed since the walk
            return
        except HoldfastError as error:
            self.add(path, 1, str(error), "unreadable")
            return
        if (other := pages.conflict_of(path)) and other[0] in self.paths:
            self._warn(path, 1, f"is another version of {other[0]}: merge the two, then remove it", "conflict")
        text = self._text(path, document.data)
        page = markdown.parse(text.encode("utf-8"), verbatim=kind.write_once)
        records = self._records(place, document)
        self._check_front_matter(place, document.version, page, text)
        if kind.write_once:
            return
        abstract = count_tokens(text_of(page.fields.get("description"))) if "description" in kind.front else 0
        if abstract > _ABSTRACT_TOKENS:
            what = f"the description has {abstract} tokens; an abstract (T0) has at most {_ABSTRACT_TOKENS}"
            self._warn(path, markdown.line_of(text, "description"), f"{what}: move the rest to the text", "abstract")
        if kind.dated and not from_prefix(place.name):
            self._warn(path, 1, f"the name has no date: rename it to YYMMDD-{place.name}.md", "name")
        archive = kind.shape == "section" and _ARCHIVE.search(path) is not None
        if kind.shape == "section":
            for flaw in pages.entry_flaws(page, records):
                self.add(path, flaw.line, flaw.what, flaw.rule, flaw.level)
            most = self._memory.settings.learnings.entries
            if len(records) > most and not archive:
                what = f"{len(records)} entries, of which {most} should stay; next: holdfast learnings archive"
                self._warn(path, records[most].line, what, "learnings")
        elif path.endswith("/ABSTRACT.md"):
            beside = self._memory.layout.classify(path.removesuffix("ABSTRACT.md") + "OVERVIEW.md")
            if beside and beside.kind.name == "overview":
                what = "belongs in the description of OVERVIEW.md; next: holdfast migrate front-matter"
                self._warn(path, 1, what, "abstract")
        if ("[[" in text or "](" in text) and not archive:
            self._check_links(path, page, text, records)

    def _text(self, path: str, data: bytes) -> str:
        """Return the text of a file, and check its encoding, its invisible characters and for secrets."""
        if b"\0" in data:
            line = data.count(b"\n", 0, data.index(b"\0")) + 1
            self.add(path, line, "contains NUL bytes; save it as UTF-8 text", "encoding")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            text, line = data.decode("utf-8", "replace"), data.count(b"\n", 0, error.start) + 1
            self.add(path, line, f"is not UTF-8 at byte {error.start}; save it as UTF-8", "encoding")
        for found in self._memory.secrets.found(text):
            what = f"seems to contain a secret: {found.name}; remove it here and replace it where it is used"
            self._warn(path, found.line, what, "secret")
        for line, sort in invisible(text):
            self._warn(path, line, f"has invisible characters: {sort}", "unseen")
        return text

    def _check_front_matter(self, place: Place, version: str, page: markdown.Page, text: str) -> None:
        found = list(pages.front_matter_flaws(place.kind, page, text[: len(text) - len(page.body)]))
        meant = {flaw.field: flaw.meant for flaw in found if flaw.meant}
        written = False
        if self._fix and meant:
            with contextlib.suppress(HoldfastError):  # changed meanwhile, or a layout that only a person can edit
                self._memory.put_draft(Draft(id=place.path, fields=meant, expect=version))
                written = True
        for flaw in found:
            fixed, fixable = bool(flaw.meant) and written, bool(flaw.meant) and not written
            self.faults.append(Fault(flaw.level, place.path, flaw.line, flaw.what, flaw.rule, fixed, fixable))

    def check_budgets(self) -> None:
        """Check the sizes of the rules, also of those that clients keep for themselves."""
        unreadable, budgets = Hot(self._memory).faults()
        for found in budgets:
            self.add(found.path, found.line or 1, found.what, "budget", found.level)
        for found in unreadable:
            if found.path not in self.paths:  # `check` reported those
                self.add(found.path, 1, found.what, "unreadable", found.level)

    def _check_links(self, path: str, page: markdown.Page, text: str, records: list[Record]) -> None:
        starts = [record.line for record in records]
        for link in markdown.find_links(text):
            holder = bisect.bisect_right(starts, link.line) - 1
            if holder >= 0 and records[holder].hidden:
                continue
            front = link.line < page.body_line
            if link.wiki:
                if not front or f"[[{link.target}" in text_of(page.fields):
                    self._by_name.append((path, link))
                continue
            target = "" if front else markdown.path_from(path, link.target)
            if not target or target == "." or target in self.paths:
                continue
            try:
                there = self._memory.store.exists(target)
            except Invalid:  # a folder, or not a valid path
                there = False
            except HoldfastError:  # it exists, but cannot be read
                continue
            with contextlib.suppress(HoldfastError):
                there = there or bool(self._memory.tree.folder_stamp(target))
            if not there:
                self.add(path, link.line, f"links to {target}, which does not exist", "link")

    def check_names(self, *, whole: bool) -> None:
        """Check the links by name; files outside the scope and logs are read only when a name is missing."""
        left = self._unknown(self._by_name)
        if left and not whole:
            for place in every_page(self._memory, None, lambda _path, _why: None):
                if place.path not in self.paths:
                    with contextlib.suppress(HoldfastError):
                        self._records(place, self._memory.store.read(place.path))
            left = self._unknown(left)
        for kind in KINDS.values() if left else ():
            if kind.key:
                with contextlib.suppress(HoldfastError):  # `verify` reports a log that cannot be read
                    for record in self._memory.backwards(self._memory.layout.path_for(kind, Scope())):
                        self._names.update(markdown.names_of(record))
        for path, link in self._unknown(left):
            self._warn(path, link.line, f"[[{link.target}]] names no record", "link")

    def _unknown(self, found: list[tuple[str, markdown.Link]]) -> list[tuple[str, markdown.Link]]:
        return [
            (path, link)
            for path, link in found
            if markdown.link_form(link.target) not in self._names
            and (not link.part or markdown.link_form(f"{link.target}#{link.part}") not in self._names)
        ]

    def _records(self, place: Place, document: Document) -> list[Record]:
        """Return the records of a file, and collect the names by which they can be linked."""
        section = place.kind.shape == "section"
        records = list((parsing.entries if section else parsing.documents)(place, document).records)
        for record in records:
            self._names.update(markdown.names_of(record))
        if section:
            self._names.update((markdown.link_form(place.path), markdown.link_form(place.path.rpartition("/")[2])))
        return records
