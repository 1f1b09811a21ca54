"""Bringing older pages up to the standard: front matter for plans and overviews, ABSTRACT.md folded into OVERVIEW.md.

Planning reads and changes nothing; applying writes each page from the version the plan was made from. A field that has
a value is never changed, and no byte of a body is. An abstract is moved away only when its text is durable in its
overview, and is kept even then. Doing it all again changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import Conflict, HoldfastError, Invalid
from holdfast.formats import markdown, page_lint, prose, sections
from holdfast.memories import pages
from holdfast.model.kinds import PLAN_STATUS
from holdfast.model.layout import Place
from holdfast.model.scopes import Scope
from holdfast.model.times import from_prefix
from holdfast.storage.tree import ABSENT, Document

ABSTRACT = "ABSTRACT.md"
_LONG, _SHORTENED, _SUMMARY = 500, 300, 200
_HEADING = re.compile(r"#{1,6}[ \t](.*)")
_BOX = re.compile(r"[ \t]*(?:[-*+]|\d+[.)])[ \t]+\[([ xX])\](?:[ \t]|\Z)")
_STATUS = re.compile(r"[\s>*_-]*status[\s*_]*[:：][\s*_]*(?:[^\w\s]+\s+)?(.+)", re.IGNORECASE)
_MEANT = {
    "complete": "done", "completed": "done", "finished": "done", "shipped": "done", "implemented": "done",
    "wip": "in_progress", "active": "in_progress", "started": "in_progress", "ongoing": "in_progress",
    "todo": "new", "planned": "new", "draft": "new", "proposed": "new", "open": "new",
    "cancelled": "abandoned", "canceled": "abandoned", "dropped": "abandoned", "rejected": "abandoned",
}  # fmt: skip
"""What people write for a status, in our words."""
_SMALL = frozenset("a an and as at by for from in of on or the to via with".split())


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one page would get."""

    path: str
    fields: dict[str, Any] = {}
    """What is added to the front matter, in this order."""
    guessed: tuple[str, ...] = ()
    """Which of these nobody wrote anywhere."""
    folds: str = ""
    """The abstract that goes into this overview."""
    section: str = ""
    """Text of the abstract that is added to the body, because the description cannot hold it."""
    version: str = ABSENT
    """What the page was when this was planned."""
    folded: str = ABSENT
    """What the abstract was."""
    fault: str = ""
    """Why the page cannot be changed; then nothing of it is."""


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a change. `status`: changed, created, skipped (it cannot be changed, or was changed meanwhile)."""

    path: str
    status: str
    why: str = ""


def plan_changes(memory: Core, scope: str | Scope | None = None, status: str = "") -> list[Change]:
    """Say what plans and overviews lack; `status` is for plans that do not show theirs."""
    if status and status not in PLAN_STATUS:
        raise Invalid(f"status is {status!r}.", f"Use one of: {', '.join(PLAN_STATUS)}.")
    return list(_Planner(memory, status).changes(scope))


def apply(memory: Core, changes: list[Change], progress: Callable[[int, int], None] | None = None) -> list[Result]:
    """Make these changes, each on its own: one that cannot be made does not keep the others back."""
    results = []
    for number, change in enumerate(changes, 1):
        results.append(_apply(memory, change))
        if progress:
            progress(number, len(changes))
    return results


def _apply(memory: Core, change: Change) -> Result:
    if change.fault:
        return Result(change.path, "skipped", change.fault)
    try:
        if change.folds and memory.vault.read(change.folds).version != change.folded:
            raise Conflict(f"{change.folds} was changed meanwhile; nothing was written.", "Look again.")
        if change.version == ABSENT:
            memory.replace(change.path, _new_page(change), ABSENT, known=True)
        elif change.fields or change.section:
            before = memory.vault.read(change.path, memory.settings.limits.document_bytes)
            memory.replace(change.path, _edited(change, before.data), change.version, known=True)
        if change.folds:
            memory.retire(change.folds, change.folded)
    except HoldfastError as error:
        return Result(change.path, "skipped", str(error))
    return Result(change.path, "created" if change.version == ABSENT else "changed")


def _new_page(change: Change) -> bytes:
    return markdown.render(change.fields, f"# {change.fields['name']}\n" + _under_heading(change.section, "\n"))


def _edited(change: Change, data: bytes) -> bytes:
    data = markdown.edit(data, change.fields)
    if not change.section:
        return data
    newline = "\r\n" if b"\r\n" in data else "\n"
    gap = "" if data.endswith(b"\n") or not data else newline
    return data + (gap + _under_heading(change.section, newline)).encode()


def _under_heading(section: str, newline: str) -> str:
    """Return what is added to a body; nothing for no text."""
    lines = ["", "## Abstract", "", *section.replace("\r\n", "\n").split("\n"), ""] if section else []
    return newline.join(lines)


class _Planner:
    def __init__(self, memory: Core, status: str) -> None:
        self._memory = memory
        self._status = status
        self._unreachable: list[Change] = []

    def changes(self, scope: str | Scope | None) -> Iterator[Change]:
        places = {place.path: place for place in pages.every(self._memory, scope, self._blocked)}
        for path, place in places.items():
            if place.kind.name == "plan":
                yield from self._page(place, self._plan)
            elif place.kind.name == "overview":
                yield from self._overview(place, _beside(path, ABSTRACT) in places)
            elif path.endswith("/" + ABSTRACT) and _beside(path, "OVERVIEW.md") not in places:
                overview = self._memory.places.classify(_beside(path, "OVERVIEW.md"))
                if overview and overview.kind.name == "overview":
                    yield from self._overview(overview, True)
        yield from self._unreachable

    def _blocked(self, path: str, why: str) -> None:
        self._unreachable.append(Change(path, fault=why))

    def _page(self, place: Place, fill: Callable[[Place, Document, markdown.Page], Change]) -> Iterator[Change]:
        try:
            document = self._memory.vault.read(place.path, self._memory.settings.limits.document_bytes)
        except HoldfastError as error:
            yield Change(place.path, fault=str(error))
            return
        page = markdown.parse(document.data)
        if page.fault:
            yield Change(place.path, fault=f"line {page.fault_line}: {page.fault}")
            return
        change = fill(place, document, page)
        if change.fields or change.folds:
            yield change

    def _plan(self, place: Place, document: Document, page: markdown.Page) -> Change:
        lacking = page_lint.lacking(place.kind, page.fields)
        lines = prose.lines(page.body) if lacking else []
        name = _heading(lines) or _titled(re.sub(r"\A\d{6}-(?=.)", "", place.name))
        described, dated = prose.paragraph(lines), from_prefix(place.name)
        shown = _shown_status(lines)
        values = {
            "name": name,
            "description": prose.cut(described, _SUMMARY) or name,
            "status": shown or self._status or "new",
            "created": dated or datetime.fromtimestamp(document.stamp.mtime / 1e9).date().isoformat(),
        }
        fields = {field: values[field] for field in lacking}
        found = {"description": described, "status": shown, "created": dated}
        guessed = tuple(field for field in fields if not found.get(field, name))
        return Change(place.path, _with_tags(fields, page), guessed, version=document.version)

    def _overview(self, place: Place, beside: bool) -> Iterator[Change]:
        abstract = self._abstract(_beside(place.path, ABSTRACT)) if beside else None
        if isinstance(abstract, Change):
            yield abstract
            abstract = None
        if abstract and self._memory.vault.stat(place.path) is None:
            yield _filled(place, None, markdown.Page({}, ""), abstract)
            return
        yield from self._page(place, lambda place, document, page: _filled(place, document, page, abstract))

    def _abstract(self, path: str) -> _Abstract | Change:
        try:
            document = self._memory.vault.read(path, self._memory.settings.limits.document_bytes)
        except HoldfastError as error:
            return Change(path, fault=str(error))
        page = markdown.parse(document.data)
        if page.fault:
            return Change(path, fault=f"line {page.fault_line}: {page.fault}")
        text = page.body.strip()
        first, _, rest = text.partition("\n")
        heading = _HEADING.match(first.rstrip())
        text = rest.strip() if heading else text
        described = page.fields.get("description")
        text = text or (described.strip() if isinstance(described, str) else "")
        return _Abstract(path, document.version, sections.heading_title(heading[1]) if heading else "", text)


class _Abstract(msgspec.Struct, frozen=True):
    path: str
    version: str
    heading: str
    text: str

    @property
    def line(self) -> str:
        return " ".join(self.text.split())


def _filled(place: Place, document: Document | None, page: markdown.Page, abstract: _Abstract | None) -> Change:
    """Say what an overview gets, and how its abstract is folded into it."""
    lines = prose.lines(page.body)
    folder = place.path.rsplit("/", 2)[1]
    name = _heading(lines) or (abstract.heading if abstract and not document else "") or folder
    known = abstract.line if abstract else ""
    described = prose.cut(known, _SHORTENED if len(known) > _LONG else _LONG) or prose.cut(
        prose.paragraph(lines), _SUMMARY
    )
    lacking = page_lint.lacking(place.kind, page.fields)
    fields = {field: {"name": name, "description": described or name}[field] for field in lacking}
    guessed = ("description",) if "description" in fields and not described else ()
    fields = _with_tags(fields, page)
    version = document.version if document else ABSENT
    if abstract is None:
        return Change(place.path, fields, guessed, version=version)
    held = " ".join(str({**page.fields, **fields}["description"]).split())
    lost = known not in (held, "") and known not in " ".join(page.body.split())
    section = abstract.text if lost else ""
    return Change(place.path, fields, guessed, abstract.path, section, version, abstract.version)


def _with_tags(fields: dict[str, Any], page: markdown.Page) -> dict[str, Any]:
    """Add a place for tags where something is added anyway."""
    return {**fields, "tags": []} if fields and "tags" not in page.fields else fields


def _beside(path: str, name: str) -> str:
    return f"{path.rpartition('/')[0]}/{name}"


def _heading(lines: list[str]) -> str:
    """Return the text of the first heading of the first level."""
    found = (sections.heading_title(line[2:]) for line in lines if line.startswith(("# ", "#\t")))
    return next(filter(None, found), "")


def _titled(stem: str) -> str:
    """Make a name of a file's name: words with capitals, but for small ones; what has capitals keeps them."""
    words = [word for word in re.split(r"[-_\s]+", stem) if word]
    return " ".join(
        word if word != word.lower() or (place and word in _SMALL) else word[:1].upper() + word[1:]
        for place, word in enumerate(words)
    )


def _shown_status(lines: list[str]) -> str:
    """Return the status that a line or the check boxes of a plan show, "" when neither does."""
    for line in lines:
        if found := _STATUS.match(line):
            said = found[1].strip(" *_`.").casefold()
            return _MEANT.get(said) or page_lint.choice(said, PLAN_STATUS)
    boxes = [found[1] != " " for line in lines if (found := _BOX.match(line))]
    if not boxes:
        return ""
    return "done" if all(boxes) else "in_progress" if any(boxes) else "new"
