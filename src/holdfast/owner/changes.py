"""Following a memory: what is added, changed, removed, hidden, as it comes.

The engine tells which files changed; what that means is found by reading them: the new lines of a log, the entries of a
page that differ from before. Where everything stood at the start is asked of the index. A change may be told a little
late, and two quick changes of one document as one, but none is left out, also not while a connection was lost.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Literal, Self

import msgspec

from holdfast.errors import HoldfastError, NotFound
from holdfast.model.kinds import KINDS
from holdfast.model.layout import Place, Places
from holdfast.model.records import Mark, Record
from holdfast.model.times import utc_now
from holdfast.storage import parsing
from holdfast.storage.engine import Tell, Watch
from holdfast.storage.index import Seen
from holdfast.storage.refresh import Refreshed, Refresher
from holdfast.storage.tree import Stamp, Vault

What = Literal["added", "changed", "removed", "hidden", "restored"]
_LOOK_SECONDS = 1.0
_HEAD = 160


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened to a record, or to a whole file of which no record is known."""

    what: What
    noticed: str
    """When we heard of it."""
    path: str
    id: str = ""
    kind: str = ""
    scope: str = ""
    session: str = ""
    time: str = ""
    """When the record says that it was written."""
    writer: str = ""
    title: str = ""
    text: str = ""
    """Its first words."""


class Wanted(msgspec.Struct, frozen=True):
    """Which changes somebody wants to hear of; no kinds means all that a search finds by itself."""

    scope: str = ""
    kinds: tuple[str, ...] = ()

    def takes(self, kind: str, scope: str) -> bool:
        row = KINDS[kind]
        usual = row.searchable and row.layer in ("hot", "warm")
        inside = not self.scope or f"{scope}/".startswith(f"{self.scope}/")
        return inside and (kind in self.kinds if self.kinds else usual)


class State(msgspec.Struct):
    """What is known of one file."""

    stamp: Stamp
    offset: int = 0
    """Of a log: everything before it was told."""
    records: dict[str, tuple[str, bool]] = {}
    """Of a page: the version of each of its records, and whether it is hidden."""


class Reader:
    """Finds out what a changed file means."""

    def __init__(self, vault: Vault, places: Places, refresher: Refresher) -> None:
        self._vault = vault
        self._places = places
        self._refresher = refresher
        self._known: dict[str, State] = {}

    def begin(self, seen: dict[str, Seen], records: Callable[[str], Iterable[Record]]) -> None:
        """Take what the index has read for known."""
        for path, file in seen.items():
            state = State(file.stamp, file.offset)
            if file.kind and KINDS[file.kind].shape != "line":
                state.records = {record.id: (record.version, record.hidden) for record in records(path)}
            self._known[path] = state

    def below(self, folders: set[str]) -> list[str]:
        """Return the files at these places that are not as they were known, or gone; "" is every place."""
        places = () if "" in folders else tuple(folders)
        there = self._refresher.walk(Refreshed(), places)
        changed = [path for path, stamp in there.items() if path not in self._known or self._known[path].stamp != stamp]
        known = [path for path in self._known if not places or path.startswith(tuple(f"{one}/" for one in places))]
        return [*changed, *(path for path in known if path not in there and path not in places)]

    def changes(self, path: str) -> Iterator[tuple[What, Record | Mark | None, Place]]:
        """Yield what happened in a file since it was looked at last."""
        place = self._places.classify(path)
        if place is None:
            return
        try:
            stamp = self._vault.stat(path)
            if stamp is None:
                if self._known.pop(path, None):
                    yield "removed", None, place
            elif place.kind.shape == "line":
                yield from self._lines(place, stamp)
            else:
                yield from self._page(place)
        except NotFound:  # it went between two looks; that is told too
            return
        except HoldfastError:
            yield "changed", None, place  # it cannot be read, but it did change

    def _lines(self, place: Place, stamp: Stamp) -> Iterator[tuple[What, Record | Mark | None, Place]]:
        state = self._known.get(place.path)
        if state and (state.stamp.inode != stamp.inode or stamp.size < state.offset):
            self._known[place.path] = State(stamp, stamp.size)  # written anew: which of its lines are new, nobody knows
            yield "changed", None, place
            return
        offset = state.offset if state else 0
        found = [line for line in self._vault.scan(place.path, offset, stamp.size) if line.whole]
        facts = parsing.lines(place, found, 1, self._refresher.blob)
        self._known[place.path] = State(stamp, found[-1].end if found else offset)
        for record in facts.records:
            yield ("hidden" if record.hidden else "added"), record, place
        for mark in facts.marks:
            yield ("hidden" if mark.hidden else "restored"), mark, place

    def _page(self, place: Place) -> Iterator[tuple[What, Record | Mark | None, Place]]:
        document = self._vault.read(place.path)
        facts = (parsing.entries if place.kind.shape == "section" else parsing.documents)(place, document)
        before = known.records if (known := self._known.get(place.path)) else {}
        now = {record.id: (record.version, record.hidden) for record in facts.records}
        self._known[place.path] = State(document.stamp, records=now)
        for record in facts.records:
            version, hidden = before.get(record.id, ("", False))
            if (version, hidden) == now[record.id]:
                continue
            if version and hidden != record.hidden:
                yield ("hidden" if record.hidden else "restored"), record, place
            else:
                yield ("changed" if version else "added"), record, place
        for gone in before.keys() - now.keys():
            yield "removed", Mark(target=gone, hidden=True, order=""), place


class Changes:
    """The changes of a memory, one after the other; iterating waits for the next. Closing it ends that."""

    def __init__(
        self, follow: Callable[[Tell], Watch], reader: Reader, wanted: Wanted,
        writers: Callable[[list[Record]], dict[str, str]],
    ) -> None:  # fmt: skip
        self._told: queue.SimpleQueue[tuple[list[str], set[str]] | None] = queue.SimpleQueue()
        self._reader = reader
        self._wanted = wanted
        self._writers = writers
        self._ready: list[Change] = []
        self._closed = False
        self._watch = follow(lambda paths, folders: self._told.put((paths, folders)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        while not self._ready:
            if self._closed:
                raise StopIteration
            self._take(self._next())
        return self._ready.pop(0)

    def close(self) -> None:
        """End the iteration, also that of another thread that waits."""
        self._closed = True
        self._told.put(None)
        self._watch.stop()

    def first(self, earlier: Iterable[Record]) -> None:
        """Tell of these records, which are there already, before anything else."""
        self._ready = [*self._all(("added", record, None) for record in earlier), *self._ready]

    def _next(self) -> tuple[list[str], set[str]] | None:
        try:
            return self._told.get(timeout=_LOOK_SECONDS)
        except queue.Empty:  # where the system tells nothing, we have to look
            return None if self._watch.alive or self._closed else ([], {""})

    def _take(self, told: tuple[list[str], set[str]] | None) -> None:
        if told is None:
            return
        paths, folders = told
        every = dict.fromkeys([*paths, *(self._reader.below(folders) if folders else ())])
        self._ready += self._all(change for path in every for change in self._reader.changes(path))

    def _all(self, found: Iterable[tuple[What, Record | Mark | None, Place | None]]) -> list[Change]:
        events = [event for event in found if self._takes(event)]
        writers = self._writers([record for _, record, _ in events if isinstance(record, Record)])
        return [_change(*event, writers) for event in events]

    def _takes(self, event: tuple[What, Record | Mark | None, Place | None]) -> bool:
        _, about, place = event
        if isinstance(about, Record):
            return self._wanted.takes(about.kind, about.scope.path)
        assert place is not None  # only records come without one
        kind = _hidden_kind(about, place)
        return self._wanted.takes(kind, place.scope.path)


def _hidden_kind(about: Mark | None, place: Place) -> str:
    """Return the kind of what a line is about: a ledger speaks of the states beside it."""
    return "state" if about and place.kind.name == "ledger" else place.kind.name


def _change(what: What, about: Record | Mark | None, place: Place | None, writers: dict[str, str]) -> Change:
    if isinstance(about, Record):
        head = " ".join(about.text.split())[:_HEAD]
        return Change(
            what=what, noticed=utc_now(), path=about.path, id=about.id, kind=about.kind, scope=about.scope.path,
            session=about.scope.session, time=about.updated or about.time, writer=writers.get(about.id, ""),
            title=about.title, text=head,
        )  # fmt: skip
    assert place is not None  # only records come without one
    return Change(
        what=what, noticed=utc_now(), path=place.path, id=about.target if about else "",
        kind=_hidden_kind(about, place), scope=place.scope.path,
    )  # fmt: skip
