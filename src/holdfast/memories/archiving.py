"""Putting older decisions and lessons away: the newest stay in `decisions.md`, the others go to `decisions-YYYY.md`.

Entries move byte for byte, in their order, to the file of their year beside the one they were in. What stands before
the first entry stays, and so does an entry whose date is no date. The archives are made durable first, then the live
file is replaced from the version it was read in: a crash in between leaves entries in both, and the next run takes
them out of the live file without adding them again.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from holdfast.core import Core
from holdfast.errors import AlreadyExists, Conflict, Damaged, HoldfastError, Invalid, NotFound
from holdfast.formats import markdown, sections
from holdfast.formats.sections import Section
from holdfast.memories import pages
from holdfast.model.layout import Place
from holdfast.model.scopes import Scope
from holdfast.storage.tree import ABSENT

_TRIES = 5


class Moved(msgspec.Struct, frozen=True, omit_defaults=True):
    """What moves from one file to one archive; with `fault`, why nothing of the file was moved."""

    path: str
    archive: str = ""
    entries: tuple[str, ...] = ()
    """Date and title of each entry."""
    fault: str = ""


class _File(msgspec.Struct, frozen=True):
    """A file of entries, as it is now."""

    path: str
    head: str
    """What stands before the first entry."""
    entries: list[Section]
    version: str

    @property
    def newline(self) -> str:
        return "\r\n" if "\r\n" in self.head or any("\r\n" in entry.source for entry in self.entries[:1]) else "\n"


def archive(
    memory: Core, scope: str | Scope | None = None, keep: int | None = None, dry_run: bool = False
) -> list[Moved]:
    """Leave the newest `keep` entries in each file of decisions or lessons; with `dry_run` only say what would move."""
    most = memory.settings.learnings.entries if keep is None else keep
    if most < 0:
        raise Invalid(f"keep is {most}.", "Use a number from 0 on.")
    moved: list[Moved] = []
    unreachable: list[Moved] = []
    places = pages.every(memory, scope, lambda path, why: unreachable.append(Moved(path, fault=why)))
    for place in places:
        if place.path.endswith(f"/{place.kind.name}s.md") and place.kind.shape == "section":
            try:
                moved += _archive(memory, place, most, dry_run)
            except HoldfastError as error:
                moved.append(Moved(place.path, fault=str(error)))
    return moved + unreachable


def _archive(memory: Core, place: Place, keep: int, dry_run: bool) -> list[Moved]:
    for _ in range(_TRIES):
        live = _read(memory, place.path)
        years = _older(live.entries, keep)
        moved = [
            Moved(place.path, _archive_path(place, year), tuple(f"{one.date} {one.title}".strip() for one in entries))
            for year, entries in years.items()
        ]
        if dry_run or not moved:
            return moved
        try:
            _move(memory, place, live, years)
        except (Conflict, AlreadyExists):  # somebody wrote meanwhile: from here on again, with what there is now
            continue
        return moved
    raise Conflict(f"{place.path} is changed by others all the time; its entries are all there.", "Try again later.")


def _older(entries: list[Section], keep: int) -> dict[str, list[Section]]:
    """Return the entries that go, by year, in the order of the file."""
    dated = sorted((entry for entry in entries if not entry.fault), key=lambda entry: (entry.date, entry.start))
    going = dated[: max(0, len(dated) - keep)]
    years: dict[str, list[Section]] = {}
    for entry in sorted(going, key=lambda entry: entry.start):
        years.setdefault(entry.date[:4], []).append(entry)
    return dict(sorted(years.items()))


def _move(memory: Core, place: Place, live: _File, years: dict[str, list[Section]]) -> None:
    """Write the archives, then the live file; all of it is composed and proved before anything is written."""
    going = {entry.start for entries in years.values() for entry in entries}
    rest = [entry.source for entry in live.entries if entry.start not in going]
    writes = [_extended(memory, _archive_path(place, year), entries, live) for year, entries in years.items()]
    writes.append((live.path, _proved(live.path, live.head, rest), live.version))
    for path, data, version in writes:
        if data is not None:
            memory.replace(path, data, version, keep=path == live.path, known=True)


def _extended(memory: Core, path: str, entries: list[Section], live: _File) -> tuple[str, bytes | None, str]:
    """Return an archive with these entries added, but for those that it has; None when it has them all."""
    newline = live.newline
    try:
        old = _read(memory, path)
    except NotFound:
        stem, year = path.rpartition("/")[2].removesuffix(".md").rsplit("-", 1)
        old = _File(path, f"# {stem.title()} {year}{newline}{newline}", [], ABSENT)
    held = Counter(entry.version for entry in old.entries)
    added = []
    for entry in entries:
        held[entry.version] -= 1
        if held[entry.version] < 0:
            added.append(entry.source)
    if not added:
        return path, None, old.version
    sources = [entry.source for entry in old.entries]
    gap = "" if (sources or [old.head])[-1].endswith(("\n\n", "\n\r\n")) else newline
    head = old.head
    if sources:
        sources[-1] = _ended(sources[-1], newline) + gap
    else:
        head = _ended(head, newline) + gap if head else ""
    return path, _proved(path, head, [*sources, *(_ended(source, newline) for source in added)]), old.version


def _ended(source: str, newline: str) -> str:
    return source if source.endswith("\n") else source + newline


def _proved(path: str, head: str, sources: list[str]) -> bytes:
    """Put a file together, and see that it is read as just these entries again."""
    text = head + "".join(sources)
    if [entry.source for entry in sections.parse(text[markdown.body_start(text) :])] != sources:
        raise Damaged(
            f"The entries of {path} cannot be parted: a code fence is open somewhere.", "Close it, then try again."
        )
    return text.encode("utf-8", "surrogateescape")


def _read(memory: Core, path: str) -> _File:
    document = memory.vault.read(path, memory.settings.limits.document_bytes)
    text = document.data.decode("utf-8", "surrogateescape")
    if line := markdown.conflict_line(text):
        raise Damaged(f"{path}:{line}: an unresolved merge conflict.", "Resolve it first.")
    start = markdown.body_start(text)
    entries = sections.parse(text[start:])
    return _File(path, text[: start + entries[0].start] if entries else text, entries, document.version)


def _archive_path(place: Place, year: str) -> str:
    return f"{place.path.removesuffix('.md')}-{year}.md"
