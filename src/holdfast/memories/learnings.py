"""Archive older decisions and lessons: the newest stay in `decisions.md`, the others move to `decisions-YYYY.md`.

Entries move byte for byte, in their order, to the file of their year. The text before the first entry stays, and so
does an entry without a valid date. Archives are durable before the live file is replaced; after a crash in between, the
next run removes the entries from the live file without adding them again.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from holdfast.core import Core
from holdfast.errors import AlreadyExists, Conflict, Damaged, HoldfastError, Invalid, NotFound
from holdfast.formats import markdown, sections
from holdfast.formats.sections import Section
from holdfast.memories.lint import every_page
from holdfast.model.records import Scope
from holdfast.storage.tree import ABSENT

_TRIES = 5


class Moved(msgspec.Struct, frozen=True, omit_defaults=True):
    """The entries that move from one file to one archive; with `fault`, why nothing of the file was moved."""

    path: str
    archive: str = ""
    entries: tuple[str, ...] = ()
    """Date and title of each entry."""
    fault: str = ""


class _File(msgspec.Struct, frozen=True):
    path: str
    head: str
    """The text before the first entry."""
    entries: list[Section]
    version: str

    @property
    def newline(self) -> str:
        return "\r\n" if "\r\n" in self.head or any("\r\n" in entry.source for entry in self.entries[:1]) else "\n"


def archive(
    memory: Core, scope: str | Scope | None = None, keep: int | None = None, dry_run: bool = False
) -> list[Moved]:
    """Leave the newest `keep` entries in each file of decisions or lessons; with `dry_run`, change nothing."""
    most = memory.settings.learnings.entries if keep is None else keep
    if most < 0:
        raise Invalid(f"keep is {most}.", "Use a number from 0 on.")
    moved, unreachable = list[Moved](), list[Moved]()
    places = every_page(memory, scope, lambda path, why: unreachable.append(Moved(path, fault=why)))
    for place in places:
        if place.path.endswith(f"/{place.kind.name}s.md") and place.kind.shape == "section":
            try:
                moved += _archive(memory, place.path, most, dry_run)
            except HoldfastError as error:
                moved.append(Moved(place.path, fault=str(error)))
    return moved + unreachable


def _archive(memory: Core, path: str, keep: int, dry_run: bool) -> list[Moved]:
    for _ in range(_TRIES):
        live = _read(memory, path)
        dated = sorted((one for one in live.entries if not one.fault), key=lambda entry: (entry.date, entry.start))
        archives: dict[str, list[Section]] = {}
        for entry in sorted(dated[: max(0, len(dated) - keep)], key=lambda entry: entry.start):
            archives.setdefault(f"{path.removesuffix('.md')}-{entry.date[:4]}.md", []).append(entry)
        moved = [
            Moved(path, archive, tuple(f"{one.date} {one.title}".strip() for one in entries))
            for archive, entries in sorted(archives.items())
        ]
        if dry_run or not moved:
            return moved
        going = {entry.start for entries in archives.values() for entry in entries}
        rest = [entry.source for entry in live.entries if entry.start not in going]
        try:  # everything is composed and checked before anything is written, the live file last
            writes = [_extended(memory, name, entries, live.newline) for name, entries in sorted(archives.items())]
            writes.append((path, _checked(path, live.head, rest), live.version))
            for name, data, version in writes:
                if data is not None:
                    memory.replace(name, data, version, keep=name == path, known=True)
        except (Conflict, AlreadyExists):  # another process wrote meanwhile: start over with the files as they are now
            continue
        return moved
    raise Conflict(f"{path} is changed by others all the time; its entries are all there.", "Try again later.")


def _extended(memory: Core, path: str, entries: list[Section], newline: str) -> tuple[str, bytes | None, str]:
    """Return an archive with the entries that it does not have yet; None when it has them all."""
    try:
        old = _read(memory, path)
    except NotFound:
        stem, year = path.rpartition("/")[2].removesuffix(".md").rsplit("-", 1)
        old = _File(path, f"# {stem.title()} {year}{newline}{newline}", [], ABSENT)
    stored = Counter(entry.version for entry in old.entries)
    added = []
    for entry in entries:
        stored[entry.version] -= 1
        if stored[entry.version] < 0:
            added.append(_ended(entry.source, newline))
    if not added:
        return path, None, old.version
    head, sources = old.head, [entry.source for entry in old.entries]
    last = sources[-1] if sources else head
    gap = "" if last.endswith(("\n\n", "\n\r\n")) else newline
    if sources:
        sources[-1] = _ended(last, newline) + gap
    elif head:
        head = _ended(head, newline) + gap
    return path, _checked(path, head, [*sources, *added]), old.version


def _ended(source: str, newline: str) -> str:
    return source if source.endswith("\n") else source + newline


def _checked(path: str, head: str, sources: list[str]) -> bytes:
    """Compose a file, and check that it is read as exactly these entries."""
    text = head + "".join(sources)
    if [entry.source for entry in sections.parse(text[markdown.body_start(text) :])] != sources:
        what = f"The entries of {path} cannot be separated: a code fence is open somewhere."
        raise Damaged(what, "Close it, then try again.")
    return text.encode("utf-8", "surrogateescape")


def _read(memory: Core, path: str) -> _File:
    document = memory.store.read(path)
    text = document.data.decode("utf-8", "surrogateescape")
    if line := markdown.conflict_line(text):
        raise Damaged(f"{path}:{line}: an unresolved merge conflict.", "Resolve it first.")
    start = markdown.body_start(text)
    entries = sections.parse(text[start:])
    return _File(path, text[: start + entries[0].start] if entries else text, entries, document.version)
