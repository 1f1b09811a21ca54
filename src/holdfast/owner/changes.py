"""Follow a memory: what is added, changed, removed, hidden and restored, as it happens.

The engine reports which files changed. Reading them shows what happened: the new entries of a log, the sections of a
page that differ from before. The starting point comes from the index. A change may be reported a little late, and two
quick changes of one document as one, but none is lost, not even while a connection is down.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, Self

import msgspec

from holdfast.core import Core
from holdfast.errors import HoldfastError, NotFound
from holdfast.model.kinds import KINDS
from holdfast.model.layout import Layout, Place
from holdfast.model.queries import Query
from holdfast.model.records import Record
from holdfast.model.times import utc_now
from holdfast.storage import parsing
from holdfast.storage.engine import Tell, Watch
from holdfast.storage.index import Seen
from holdfast.storage.refresh import Refreshed, Refresher
from holdfast.storage.tree import Stamp, Tree

What = Literal["added", "changed", "removed", "hidden", "restored"]
_POLL_SECONDS = 1.0
_HEAD = 160


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of a record, or of a whole file in which no record is known."""

    what: What
    noticed: str
    """When the change was noticed."""
    path: str
    id: str = ""
    kind: str = ""
    scope: str = ""
    session: str = ""
    time: str = ""
    """When the record was written, as it says itself."""
    writer: str = ""
    title: str = ""
    text: str = ""
    """Its first words."""


Event = tuple[Change, Record | None]
"""A change and the record that it is about, if that can be read."""


class State(msgspec.Struct):
    stamp: Stamp
    offset: int = 0
    """Of a log: everything before it was reported."""
    records: dict[str, tuple[str, bool]] = {}
    """Of a page: the version of each record, and whether it is hidden."""


class Reader:
    def __init__(self, tree: Tree, places: Layout, refresher: Refresher) -> None:
        self._tree, self._layout, self._refresher = tree, places, refresher
        self._known: dict[str, State] = {}

    def begin(self, seen: dict[str, Seen], records: Callable[[str], Iterable[Record]]) -> None:
        """Start from what the index has read."""
        for path, file in seen.items():
            state = State(file.stamp, file.offset)
            if file.kind and KINDS[file.kind].shape != "line":
                state.records = {record.id: (record.version, record.hidden) for record in records(path)}
            self._known[path] = state

    def changed_below(self, folders: set[str]) -> list[str]:
        """Return the files in these folders that changed or are gone; "" is the whole memory."""
        tops = () if "" in folders else tuple(folders)
        there = self._refresher.walk(Refreshed(), tops)
        changed = [path for path, stamp in there.items() if path not in self._known or self._known[path].stamp != stamp]
        known = [path for path in self._known if not tops or path.startswith(tuple(f"{one}/" for one in tops))]
        return [*changed, *(path for path in known if path not in there and path not in tops)]

    def events(self, path: str) -> Iterator[Event]:
        """Yield what happened in a file since it was last read."""
        place = self._layout.classify(path)
        if place is None:
            return
        try:
            stamp = self._tree.stat(path)
            if stamp is None:
                if self._known.pop(path, None):
                    yield _without_record("removed", place)
            elif place.kind.shape != "line":
                yield from self._in_page(place)
            elif (state := self._known.get(path)) and (state.stamp.inode != stamp.inode or stamp.size < state.offset):
                self._known[path] = State(stamp, stamp.size)  # rewritten: which lines are new is unknown
                yield _without_record("changed", place)
            else:
                offset = state.offset if state else 0
                found = [line for line in self._tree.scan(path, offset, stamp.size) if line.whole]
                facts = parsing.lines(place, found, 1, self._refresher.blob)
                self._known[path] = State(stamp, found[-1].end if found else offset)
                for record in facts.records:
                    yield _event("hidden" if record.hidden else "added", record)
                for mark in facts.marks:
                    yield _without_record("hidden" if mark.hidden else "restored", place, mark.target)
        except NotFound:  # removed since; that is reported too
            return
        except HoldfastError:
            yield _without_record("changed", place)  # unreadable, but changed

    def _in_page(self, place: Place) -> Iterator[Event]:
        document = self._tree.read(place.path)
        facts = (parsing.entries if place.kind.shape == "section" else parsing.documents)(place, document)
        before = known.records if (known := self._known.get(place.path)) else {}
        now = {record.id: (record.version, record.hidden) for record in facts.records}
        self._known[place.path] = State(document.stamp, records=now)
        for record in facts.records:
            version, hidden = before.get(record.id, ("", False))
            if version and hidden != record.hidden:
                yield _event("hidden" if record.hidden else "restored", record)
            elif (version, hidden) != now[record.id]:
                yield _event("changed" if version else "added", record)
        for gone in before.keys() - now.keys():
            yield _without_record("removed", place, gone)


def _without_record(what: What, place: Place, identifier: str = "") -> Event:
    ledger = identifier and place.kind.name == "ledger"  # its entries are about the states beside it
    kind = "state" if ledger else place.kind.name
    return Change(what, utc_now(), place.path, identifier, kind, place.scope.path), None


class Changes:
    """The changes of some kinds in a scope; iterating waits for the next one until it is closed."""

    def __init__(
        self, follow: Callable[[Tell], Watch], reader: Reader, scope: str, kinds: tuple[str, ...],
        writers: Callable[[list[Record]], dict[str, str]],
    ) -> None:  # fmt: skip
        self._reader, self._scope, self._kinds, self._writers = reader, scope, kinds, writers
        self._reported: queue.SimpleQueue[tuple[list[str], set[str]]] = queue.SimpleQueue()
        self._ready: list[Change] = []
        self._closed = False
        self._watch = follow(lambda paths, folders: self._reported.put((paths, folders)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        while not self._ready:
            if self._closed:
                raise StopIteration
            try:
                paths, folders = self._reported.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if self._watch.alive or self._closed:
                    continue
                paths, folders = [], {""}  # the system reports nothing, so every file is checked
            every = dict.fromkeys([*paths, *(self._reader.changed_below(folders) if folders else ())])
            self._ready += self._changes(event for path in every for event in self._reader.events(path))
        return self._ready.pop(0)

    def close(self) -> None:
        """End the iteration, also in another thread that waits for it."""
        self._closed = True
        self._reported.put(([], set()))
        self._watch.stop()

    def first(self, earlier: Iterable[Record]) -> None:
        """Report these existing records before anything else."""
        self._ready = [*self._changes(_event("added", record) for record in earlier), *self._ready]

    def _changes(self, events: Iterable[Event]) -> list[Change]:
        below = f"{self._scope}/" if self._scope else ""
        wanted = [one for one in events if one[0].kind in self._kinds and f"{one[0].scope}/".startswith(below)]
        writers = self._writers([record for _, record in wanted if record])
        return [
            msgspec.structs.replace(change, writer=writers.get(record.id, "")) if record else change
            for change, record in wanted
        ]


def _event(what: What, record: Record) -> Event:
    scope, time, head = record.scope, record.updated or record.time, " ".join(record.text.split())[:_HEAD]
    where = (record.path, record.id, record.kind, scope.path, scope.session, time)
    return Change(what, utc_now(), *where, title=record.title, text=head), record


def follow(memory: Core, query: Query, since: str = "") -> Changes:
    """Follow the changes that pass a query's filters; those after the record `since` are reported first."""
    where, sync = memory.filter(query, query.kinds, ()), memory.store.sync
    reader = Reader(memory.tree, memory.layout, sync.refresher)
    last = memory.get(since) if since else None

    def writers(records: list[Record]) -> dict[str, str]:
        return {identifier: source.by for identifier, source in memory.sources(records).items()} if records else {}

    found = Changes(sync.follow, reader, where.scope, query.kinds or where.searchable, writers)
    try:
        sync.ask(lambda index: reader.begin(index.seen(memory.layout.roots), index.records))
        if last:
            every = sync.ask(lambda index: index.newest(where, -1))
            later = [record for record in every if (record.time, record.id) > (last.time, last.id)]
            found.first(sorted(later, key=lambda record: (record.time, record.id)))
    except BaseException:
        found.close()
        raise
    return found
