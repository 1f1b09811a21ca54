"""Upkeep of older pages: archive decisions and lessons, add front matter, fold ABSTRACT.md into OVERVIEW.md.

`archive` leaves the newest entries in `decisions.md` and moves the others, byte for byte and in order, to
`decisions-YYYY.md`. Archives are durable before the live file is replaced, so it is safe to repeat after a crash.

`plan_changes` changes nothing; `apply` writes each page from the version that was planned. Existing values and text
never change. An abstract is removed only after its text is durable in its overview. Safe to repeat.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import AlreadyExists, Conflict, Damaged, HoldfastError, Invalid, NotFound
from holdfast.formats import markdown, pages, sections
from holdfast.formats.sections import Section
from holdfast.memories.lint import every_page
from holdfast.model.kinds import PLAN_STATUS, Place
from holdfast.model.patterns import regex
from holdfast.model.records import Scope, text_of
from holdfast.model.times import from_prefix
from holdfast.storage.tree import ABSENT, Document

ABSTRACT, OVERVIEW = "ABSTRACT.md", "OVERVIEW.md"
_TRIES = 5
_LONG, _SHORTENED, _SUMMARY = 500, 300, 200
_HEADING = regex(r"#{1,6}[ \t](.*)")
_BOX = regex(r"[ \t]*(?:[-*+]|\d+[.)])[ \t]+\[([ xX])\](?:[ \t]|\Z)")
_STATUS = regex(r"[\s>*_-]*status[\s*_]*[:：][\s*_]*(?:[^\w\s]+\s+)?(.+)", re.IGNORECASE)
_MEANT = {
    "complete": "done", "completed": "done", "finished": "done", "shipped": "done", "implemented": "done",
    "wip": "in_progress", "active": "in_progress", "started": "in_progress", "ongoing": "in_progress",
    "todo": "new", "planned": "new", "draft": "new", "proposed": "new", "open": "new",
    "cancelled": "abandoned", "canceled": "abandoned", "dropped": "abandoned", "rejected": "abandoned",
}  # fmt: skip
"""Words that people write for a status."""


class Archived(msgspec.Struct, frozen=True, omit_defaults=True):
    """The entries that move from one file to one archive; with `fault`, why nothing of the file was moved."""

    path: str
    archive: str = ""
    entries: tuple[str, ...] = ()
    fault: str = ""


class PageChange(msgspec.Struct, frozen=True, omit_defaults=True):
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
    differs: dict[str, Any] = {}
    """Fields of the abstract that are left behind, because the overview has other values for them."""


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a change. `status`: changed, created, skipped (it cannot be changed, or was changed meanwhile)."""

    path: str
    status: str
    why: str = ""


# archives of decisions and lessons


def archive(
    memory: Core, scope: str | Scope | None = None, keep: int | None = None, dry_run: bool = False
) -> list[Archived]:
    """Leave the newest `keep` entries in each file of decisions or lessons; with `dry_run`, change nothing."""
    most = memory.settings.learnings.entries if keep is None else keep
    if most < 0:
        raise Invalid(f"keep is {most}.", "Use a number from 0 on.")
    moved, unreachable = list[Archived](), list[Archived]()
    for place in every_page(memory, scope, lambda path, why: unreachable.append(Archived(path, fault=why))):
        if place.path.endswith(f"/{place.kind.name}s.md") and place.kind.shape == "section":
            try:
                moved += _archive(memory, place.path, most, dry_run)
            except HoldfastError as error:
                moved.append(Archived(place.path, fault=str(error)))
    return moved + unreachable


def _archive(memory: Core, path: str, keep: int, dry_run: bool) -> list[Archived]:
    for _ in range(_TRIES):
        head, entries, version = _entries(memory, path)
        newline = "\r\n" if "\r\n" in head or any("\r\n" in entry.source for entry in entries[:1]) else "\n"
        dated = sorted((one for one in entries if not one.fault), key=lambda entry: (entry.date, entry.start))
        archives: dict[str, list[Section]] = {}
        for entry in sorted(dated[: max(0, len(dated) - keep)], key=lambda entry: entry.start):
            archives.setdefault(f"{path.removesuffix('.md')}-{entry.date[:4]}.md", []).append(entry)
        moved = [
            Archived(path, name, tuple(f"{one.date} {one.title}".strip() for one in going))
            for name, going in sorted(archives.items())
        ]
        if dry_run or not moved:
            return moved
        leaving = {entry.start for going in archives.values() for entry in going}
        rest = [entry.source for entry in entries if entry.start not in leaving]
        try:  # everything is composed and checked before anything is written, the live file last
            writes = [_extended(memory, name, going, newline) for name, going in sorted(archives.items())]
            writes.append((path, _checked(path, head, rest), version))
            for name, data, before in writes:
                if data is not None:
                    memory.replace(name, data, before, keep=name == path, known=True)
        except (Conflict, AlreadyExists):  # another process wrote meanwhile: start over with the files as they are now
            continue
        return moved
    raise Conflict(f"Other processes keep changing {path}; all its entries are still there.", "Try again later.")


def _extended(memory: Core, path: str, entries: list[Section], newline: str) -> tuple[str, bytes | None, str]:
    """Return an archive with the entries that it does not have yet; None when it has them all."""
    stem, year = path.rpartition("/")[2].removesuffix(".md").rsplit("-", 1)
    head, old, version = f"# {stem.title()} {year}{newline}{newline}", list[Section](), ABSENT
    with contextlib.suppress(NotFound):
        head, old, version = _entries(memory, path)
    stored = Counter(entry.version for entry in old)
    added = []
    for entry in entries:
        stored[entry.version] -= 1
        if stored[entry.version] < 0:
            added.append(_ended(entry.source, newline))
    if not added:
        return path, None, version
    parts = [head, *(entry.source for entry in old)]
    if last := parts[-1]:
        parts[-1] = _ended(last, newline) + ("" if last.endswith(("\n\n", "\n\r\n")) else newline)
    return path, _checked(path, parts[0], [*parts[1:], *added]), version


def _ended(source: str, newline: str) -> str:
    return source if source.endswith("\n") else source + newline


def _checked(path: str, head: str, sources: list[str]) -> bytes:
    """Compose a file, and check that it is read as exactly these entries."""
    text = head + "".join(sources)
    if [entry.source for entry in sections.parse(text[markdown.body_start(text) :])] != sources:
        what = f"The entries of {path} cannot be separated: a code fence is not closed."
        raise Damaged(what, "Close it, then try again.")
    return text.encode("utf-8", "surrogateescape")


def _entries(memory: Core, path: str) -> tuple[str, list[Section], str]:
    """Return the text of a file before its first entry, its entries, and its version."""
    document = memory.store.read(path)
    markdown.check_resolved(path, document.data)
    text = document.data.decode("utf-8", "surrogateescape")
    start = markdown.body_start(text)
    entries = sections.parse(text[start:])
    return text[: start + entries[0].start] if entries else text, entries, document.version


# front matter of plans and overviews


def plan_changes(memory: Core, scope: str | Scope | None = None, status: str = "") -> list[PageChange]:
    """Return the fields that plans and overviews lack; `status` is for plans that do not show theirs."""
    if status and status not in PLAN_STATUS:
        raise Invalid(f"status is {status!r}.", f"Use one of: {', '.join(PLAN_STATUS)}.")
    changes, unreachable = list[PageChange](), list[PageChange]()
    walked = every_page(memory, scope, lambda path, why: unreachable.append(PageChange(path, fault=why)))
    places = {place.path: place for place in walked}
    for path, place in list(places.items()):
        folder, _, name = path.rpartition("/")
        overview = memory.layout.classify(f"{folder}/{OVERVIEW}") if name == ABSTRACT else None
        if overview and overview.path not in places:
            place = overview
        try:
            if place.kind.name == "plan":
                changes += _plan(place, *_page(memory, path), status)
            elif place.kind.name == "overview":
                changes += _overview(memory, place, f"{folder}/{ABSTRACT}" in places)
        except HoldfastError as error:
            changes.append(PageChange(place.path, fault=str(error)))
    return changes + unreachable


def _page(memory: Core, path: str) -> tuple[Document, markdown.Page]:
    document = memory.store.read(path)
    page = markdown.parse(document.data)
    if page.fault:
        raise Damaged(f"line {page.fault_line}: {page.fault}")
    return document, page


def _plan(place: Place, document: Document, page: markdown.Page, status: str) -> list[PageChange]:
    missing = pages.missing_fields(place.kind, page.fields)
    if not missing:
        return []
    lines = pages.prose_lines(page.body)
    words = " ".join(re.split(r"[-_\s]+", re.sub(r"\A\d{6}-(?=.)", "", place.name))).strip()
    name = _heading(lines) or words[:1].upper() + words[1:]
    described, dated, shown = pages.paragraph(lines), from_prefix(place.name), ""
    boxes = [box[1] != " " for line in lines if (box := _BOX.match(line))]
    if said := next(filter(None, map(_STATUS.match, lines)), None):
        word = said[1].strip(" *_`.").casefold()
        shown = _MEANT.get(word) or pages.choice(word, PLAN_STATUS)
    elif boxes:
        shown = "done" if all(boxes) else "in_progress" if any(boxes) else "new"
    values = {
        "name": name,
        "description": pages.shorten(described, _SUMMARY) or name,
        "status": shown or status or "new",
        "created": dated or datetime.fromtimestamp(document.stamp.mtime / 1e9).date().isoformat(),
    }
    found = {"name": name, "description": described, "status": shown, "created": dated}
    guessed = tuple(field for field in missing if not found[field])
    fields = _with_tags({field: values[field] for field in missing}, page)
    return [PageChange(place.path, fields, guessed, version=document.version)]


def _overview(memory: Core, place: Place, beside: bool) -> list[PageChange]:
    """Return the change of an overview: missing fields, and the text of an abstract beside it."""
    found, abstract, document, page = list[PageChange](), None, None, markdown.Page({}, "")
    given: dict[str, Any] = {}
    heading, text, path = "", "", f"{place.path.rpartition('/')[0]}/{ABSTRACT}"
    try:
        if beside:
            abstract, given, heading, text = _abstract(memory, path)
    except HoldfastError as error:
        found.append(PageChange(path, fault=str(error)))
    try:
        if abstract is None or memory.store.exists(place.path):
            document, page = _page(memory, place.path)
    except HoldfastError as error:
        return [*found, PageChange(place.path, fault=str(error))]
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
        return [*found, PageChange(place.path, fields, guessed, version=version)] if fields else found
    there = (" ".join(str(result["description"]).split()), " ".join(page.body.split()))
    lost = [part for part in (said, text) if (flat := " ".join(part.split())) != there[0] and flat not in there[1]]
    section = "\n\n".join(dict.fromkeys(lost))
    return [PageChange(place.path, fields, guessed, path, section, version, abstract.version, differs=differs)]


def _abstract(memory: Core, path: str) -> tuple[Document, dict[str, Any], str, str]:
    """Return an abstract with its front matter, its heading and its text; a name or description is text."""
    document, page = _page(memory, path)
    text = page.body.strip()
    first, _, rest = text.partition("\n")
    heading = _HEADING.match(first.rstrip())
    own = ("archived", "isArchived")  # about the page itself
    given = {field: value for field, value in page.fields.items() if value not in (None, "", []) and field not in own}
    given |= {field: text_of(given[field]).strip() for field in ("name", "description") if field in given}
    return document, given, sections.heading_title(heading[1]) if heading else "", rest.strip() if heading else text


def _with_tags(fields: dict[str, Any], page: markdown.Page) -> dict[str, Any]:
    """Add empty tags where other fields are added."""
    return {**fields, "tags": []} if fields and "tags" not in {**page.fields, **fields} else fields


def _heading(lines: list[str]) -> str:
    """Return the text of the first heading of the first level."""
    found = (sections.heading_title(line[2:]) for line in lines if line.startswith(("# ", "#\t")))
    return next(filter(None, found), "")


def apply(memory: Core, changes: list[PageChange], progress: Callable[[int, int], None] | None = None) -> list[Result]:
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


def _apply(memory: Core, change: PageChange) -> str:
    if change.fault:
        return "skipped"
    if change.folds and memory.store.read(change.folds).version != change.folded:
        raise Conflict(f"{change.folds} was changed meanwhile; nothing was written.", "Run the command again.")
    if created := change.version == ABSENT:
        data = markdown.render(change.fields, f"# {change.fields['name']}\n")
    else:
        data = markdown.edit(memory.store.read(change.path).data, change.fields)
    if change.section:
        newline = "\r\n" if b"\r\n" in data else "\n"
        gap = newline if data and not data.endswith(b"\n") else ""
        added = ["", "## Abstract", "", *change.section.replace("\r\n", "\n").split("\n"), ""]
        data += (gap + newline.join(added)).encode()
    if created or change.fields or change.section:
        memory.replace(change.path, data, change.version, known=True)
    if change.folds:
        memory.store.remove(change.folds, expect=change.folded)
    return "created" if created else "changed"
