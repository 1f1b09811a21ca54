"""Migrate older pages: add front matter to plans and overviews, and fold ABSTRACT.md into OVERVIEW.md.

Planning changes nothing; applying writes each page from the version that was planned. A field with a value and the
text of a body never change. An abstract is retired only after its text is durable in its overview. Safe to repeat.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import Conflict, Damaged, HoldfastError, Invalid
from holdfast.formats import markdown, pages, sections
from holdfast.memories.lint import every_page
from holdfast.model.kinds import PLAN_STATUS, Place
from holdfast.model.records import Scope, text_of
from holdfast.model.times import from_prefix
from holdfast.storage.tree import ABSENT, Document

ABSTRACT, OVERVIEW = "ABSTRACT.md", "OVERVIEW.md"
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
"""Words that people write for a status."""
_SMALL = frozenset("a an and as at by for from in of on or the to via with".split())


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """The planned change of one page."""

    path: str
    fields: dict[str, Any] = {}
    """Added to the front matter, in this order."""
    guessed: tuple[str, ...] = ()
    """The fields whose values are not in the page."""
    folds: str = ""
    """The abstract that goes into this overview."""
    section: str = ""
    """Text of the abstract that is added to the body, because the description has no room for it."""
    version: str = ABSENT
    """The version of the page when this was planned."""
    folded: str = ABSENT
    """The version of the abstract."""
    fault: str = ""
    """Why the page cannot be changed."""
    differs: dict[str, Any] = {}
    """Fields of the abstract that are left behind, because the overview has other values for them."""


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a change. `status`: changed, created, skipped (it cannot be changed, or was changed meanwhile)."""

    path: str
    status: str
    why: str = ""


def plan_changes(memory: Core, scope: str | Scope | None = None, status: str = "") -> list[Change]:
    """Return what plans and overviews lack; `status` is for plans that do not show theirs."""
    if status and status not in PLAN_STATUS:
        raise Invalid(f"status is {status!r}.", f"Use one of: {', '.join(PLAN_STATUS)}.")
    unreachable: list[Change] = []
    walked = every_page(memory, scope, lambda path, why: unreachable.append(Change(path, fault=why)))
    places = {place.path: place for place in walked}
    changes: list[Change] = []
    for path, place in places.items():
        folder = path.rpartition("/")[0]
        if place.kind.name == "plan":
            changes += _plan(memory, place, status)
        elif place.kind.name == "overview":
            changes += _overview(memory, place, f"{folder}/{ABSTRACT}" in places)
        elif path == f"{folder}/{ABSTRACT}" and f"{folder}/{OVERVIEW}" not in places:
            overview = memory.layout.classify(f"{folder}/{OVERVIEW}")
            if overview and overview.kind.name == "overview":
                changes += _overview(memory, overview, True)
    return changes + unreachable


def _page(memory: Core, path: str) -> tuple[Document, markdown.Page]:
    document = memory.store.read(path)
    page = markdown.parse(document.data)
    if page.fault:
        raise Damaged(f"line {page.fault_line}: {page.fault}")
    return document, page


def _plan(memory: Core, place: Place, status: str) -> Iterator[Change]:
    try:
        document, page = _page(memory, place.path)
    except HoldfastError as error:
        yield Change(place.path, fault=str(error))
        return
    missing = pages.missing_fields(place.kind, page.fields)
    if not missing:
        return
    lines = pages.prose_lines(page.body)
    words = re.split(r"[-_\s]+", re.sub(r"\A\d{6}-(?=.)", "", place.name))  # of the file name, for a title
    words = [
        word if word != word.lower() or (number and word in _SMALL) else word[:1].upper() + word[1:]
        for number, word in enumerate(filter(None, words))
    ]
    name = _heading(lines) or " ".join(words)
    described, dated, shown = pages.paragraph(lines), from_prefix(place.name), _shown_status(lines)
    values = {
        "name": name,
        "description": pages.shorten(described, _SUMMARY) or name,
        "status": shown or status or "new",
        "created": dated or datetime.fromtimestamp(document.stamp.mtime / 1e9).date().isoformat(),
    }
    found = {"name": name, "description": described, "status": shown, "created": dated}
    guessed = tuple(field for field in missing if not found[field])
    fields = _with_tags({field: values[field] for field in missing}, page)
    yield Change(place.path, fields, guessed, version=document.version)


def _overview(memory: Core, place: Place, beside: bool) -> Iterator[Change]:
    """Yield what an overview lacks, with its abstract folded in if there is one beside it."""
    abstract, heading, text, document, page = None, "", "", None, markdown.Page({}, "")
    given: dict[str, Any] = {}
    path = f"{place.path.rpartition('/')[0]}/{ABSTRACT}"
    try:
        if beside:
            abstract, given, heading, text = _abstract(memory, path)
    except HoldfastError as error:
        yield Change(path, fault=str(error))
    try:
        if abstract is None or memory.store.exists(place.path):
            document, page = _page(memory, place.path)
    except HoldfastError as error:
        yield Change(place.path, fault=str(error))
        return
    lines = pages.prose_lines(page.body)
    named = given.pop("name", "")
    name = named or _heading(lines) or ("" if document else heading) or place.path.rsplit("/", 2)[1]
    said, known = given.pop("description", ""), " ".join(text.split())
    described = pages.shorten(said or known, _SHORTENED if len(said or known) > _LONG else _LONG)
    described = described or pages.shorten(pages.paragraph(lines), _SUMMARY)
    values = {"name": name, "description": described or name}
    fields = {field: values[field] for field in pages.missing_fields(place.kind, page.fields)}
    guessed = ("description",) if "description" in fields and not described else ()
    fields |= {field: value for field, value in given.items() if page.fields.get(field) in (None, "", [])}
    given |= {"name": named} if named else {}
    result = {**page.fields, **fields}
    differs = {field: value for field, value in given.items() if result[field] != value}
    fields = _with_tags(fields, page)
    version = document.version if document else ABSENT
    if abstract is None:
        if fields:
            yield Change(place.path, fields, guessed, version=version)
        return
    there = (" ".join(str(result["description"]).split()), " ".join(page.body.split()))
    lost = [part for part in (said, text) if (flat := " ".join(part.split())) != there[0] and flat not in there[1]]
    section = "\n\n".join(dict.fromkeys(lost))
    yield Change(place.path, fields, guessed, path, section, version, abstract.version, differs=differs)


def _abstract(memory: Core, path: str) -> tuple[Document, dict[str, Any], str, str]:
    """Return an abstract with its front matter, its heading and its text; a name or description is text."""
    document, page = _page(memory, path)
    text = page.body.strip()
    first, _, rest = text.partition("\n")
    heading = _HEADING.match(first.rstrip())
    text = rest.strip() if heading else text
    own = ("archived", "isArchived")  # about the page itself
    given = {field: value for field, value in page.fields.items() if value not in (None, "", []) and field not in own}
    given |= {field: text_of(given[field]).strip() for field in ("name", "description") if field in given}
    return document, given, sections.heading_title(heading[1]) if heading else "", text


def _with_tags(fields: dict[str, Any], page: markdown.Page) -> dict[str, Any]:
    """Add empty tags where other fields are added."""
    return {**fields, "tags": []} if fields and "tags" not in {**page.fields, **fields} else fields


def _heading(lines: list[str]) -> str:
    """Return the text of the first heading of the first level."""
    found = (sections.heading_title(line[2:]) for line in lines if line.startswith(("# ", "#\t")))
    return next(filter(None, found), "")


def _shown_status(lines: list[str]) -> str:
    """Return the status that a line or the check boxes of a plan show, "" when neither does."""
    for line in lines:
        if found := _STATUS.match(line):
            word = found[1].strip(" *_`.").casefold()
            return _MEANT.get(word) or pages.choice(word, PLAN_STATUS)
    boxes = [found[1] != " " for line in lines if (found := _BOX.match(line))]
    if not boxes:
        return ""
    return "done" if all(boxes) else "in_progress" if any(boxes) else "new"


def apply(memory: Core, changes: list[Change], progress: Callable[[int, int], None] | None = None) -> list[Result]:
    """Make these changes one by one; one that fails does not stop the others."""
    results = []
    for number, change in enumerate(changes, 1):
        try:
            results.append(Result(change.path, _apply(memory, change), change.fault))
        except HoldfastError as error:
            results.append(Result(change.path, "skipped", str(error)))
        if progress:
            progress(number, len(changes))
    return results


def _apply(memory: Core, change: Change) -> str:
    if change.fault:
        return "skipped"
    if change.folds and memory.store.read(change.folds).version != change.folded:
        raise Conflict(f"{change.folds} was changed meanwhile; nothing was written.", "Look again.")
    created = change.version == ABSENT
    if created:
        data = markdown.render(change.fields, f"# {change.fields['name']}\n" + _section(change, "\n"))
        memory.replace(change.path, data, ABSENT, known=True)
    elif change.fields or change.section:
        data = markdown.edit(memory.store.read(change.path).data, change.fields)
        newline = "\r\n" if b"\r\n" in data else "\n"
        gap = newline if change.section and data and not data.endswith(b"\n") else ""
        data += (gap + _section(change, newline)).encode()
        memory.replace(change.path, data, change.version, known=True)
    if change.folds:
        memory.store.remove(change.folds, expect=change.folded)
    return "created" if created else "changed"


def _section(change: Change, newline: str) -> str:
    """Return the section that is added to a body, "" for none."""
    text = change.section.replace("\r\n", "\n")
    return newline.join(["", "## Abstract", "", *text.split("\n"), ""]) if text else ""
