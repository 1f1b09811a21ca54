"""`FileFeed`: what happens in the files of a memory.

The system reports which files changed. Reading them shows what happened: the new entries of a log, the sections of a
page that differ from before. The starting point comes from the index. Two quick changes of one document may be reported
as one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import msgspec

from holdfast.errors import HoldfastError, NotFound
from holdfast.model.kinds import KINDS, Layout, Place
from holdfast.storage import parsing
from holdfast.storage.files.index import SqliteIndex
from holdfast.storage.files.index_sync import IndexSync
from holdfast.storage.files.watch import Watcher
from holdfast.storage.reports import Refreshed
from holdfast.storage.store import Event
from holdfast.storage.tree import Stamp

_TICK = 0.05  # seconds between two reads of the queue of events


class _State(msgspec.Struct):
    stamp: Stamp
    offset: int = 0
    """Of a log: everything before it was reported."""
    records: dict[str, tuple[str, bool]] = {}
    """Of a page: the version of each record, and whether it is hidden."""


class FileFeed:
    """The feed of the files in `folder`; without one, they are not watched but checked."""

    def __init__(self, folder: str, places: Layout, sync: IndexSync) -> None:
        self._tree, self._layout, self._refresher = sync.tree, places, sync.refresher
        self._known: dict[str, _State] = {}
        self._closed = threading.Event()
        self._watcher = Watcher(folder, places.roots) if folder else None
        try:
            sync.refresh_below(())
            sync.ask(self._begin)
        except BaseException:
            self.close()
            raise

    def events(self, timeout: float) -> list[Event]:
        watcher = self._watcher if self._watcher and self._watcher.alive else None
        # where the system reports nothing, every file is checked
        paths, folders, until = list[str](), set[str]() if watcher else {""}, time.monotonic() + timeout
        while not self._closed.wait(_TICK if watcher else timeout) and time.monotonic() < until and watcher:
            paths, folders = watcher.changes()
            if paths or folders:
                break
        if self._closed.is_set():
            return []
        every = dict.fromkeys([*paths, *(self._changed_below(folders) if folders else ())])
        return [event for path in every for event in self._in_file(path)]

    def close(self) -> None:
        self._closed.set()
        if self._watcher:
            self._watcher.stop()

    def _begin(self, index: SqliteIndex) -> None:
        """Start from what the index has read."""
        for path, file in index.seen(self._layout.roots).items():
            state = _State(file.stamp, file.offset)
            if file.kind and KINDS[file.kind].shape != "line":
                state.records = {record.id: (record.version, record.hidden) for record in index.records(path)}
            self._known[path] = state

    def _changed_below(self, folders: set[str]) -> list[str]:
        """Return the files in these folders that changed or are gone; "" is the whole memory."""
        tops = () if "" in folders else tuple(folders)
        there = self._refresher.walk(Refreshed(), tops)
        changed = [path for path, stamp in there.items() if path not in self._known or self._known[path].stamp != stamp]
        known = [path for path in self._known if not tops or path.startswith(tuple(f"{one}/" for one in tops))]
        return [*changed, *(path for path in known if path not in there and path not in tops)]

    def _in_file(self, path: str) -> Iterator[Event]:
        """Yield what happened in a file since it was last read."""
        place = self._layout.classify(path)
        if place is None:
            return
        try:
            stamp = self._tree.stat(path)
            if stamp is None:
                if self._known.pop(path, None):
                    yield Event.at("removed", place)
            elif place.kind.shape != "line":
                yield from self._in_page(place)
            elif (state := self._known.get(path)) and (state.stamp.inode != stamp.inode or stamp.size < state.offset):
                self._known[path] = _State(stamp, stamp.size)  # rewritten: which lines are new is unknown
                yield Event.at("changed", place)
            else:
                offset = state.offset if state else 0
                found = [line for line in self._tree.scan(path, offset, stamp.size) if line.whole]
                facts = parsing.lines(place, found, 1, self._refresher.blob)
                self._known[path] = _State(stamp, found[-1].end if found else offset)
                for record in facts.records:
                    yield Event.of("hidden" if record.hidden else "added", record)
                for mark in facts.marks:
                    yield Event.at("hidden" if mark.hidden else "restored", place, mark.target)
        except NotFound:  # removed since; that is reported too
            return
        except HoldfastError:
            yield Event.at("changed", place)  # unreadable, but changed

    def _in_page(self, place: Place) -> Iterator[Event]:
        document = self._tree.read(place.path)
        facts = parsing.page(place, document)
        before = known.records if (known := self._known.get(place.path)) else {}
        now = {record.id: (record.version, record.hidden) for record in facts.records}
        self._known[place.path] = _State(document.stamp, records=now)
        for record in facts.records:
            version, hidden = before.get(record.id, ("", False))
            if version and hidden != record.hidden:
                yield Event.of("hidden" if record.hidden else "restored", record)
            elif (version, hidden) != now[record.id]:
                yield Event.of("changed" if version else "added", record)
        for gone in before.keys() - now.keys():
            yield Event.at("removed", place, gone)
