"""`IndexSync`: updates the index from the files, and queries it.

Changed paths are noted and indexed by the next query. An index that cannot be used is rebuilt; if it cannot be written
to disk, it is kept in memory. A write never waits for the index.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from holdfast.errors import Busy, HoldfastError, Unavailable
from holdfast.formats import jsonl
from holdfast.model.kinds import KINDS, Layout
from holdfast.model.names import amount, check_text
from holdfast.model.records import Problem
from holdfast.model.settings import Settings
from holdfast.model.times import utc_now
from holdfast.storage.files import refresh
from holdfast.storage.files.index import SqliteIndex, Unusable
from holdfast.storage.files.refresh import Refresher
from holdfast.storage.files.rows import Seen, Stale
from holdfast.storage.files.watch import Watcher
from holdfast.storage.files.within import FileTree
from holdfast.storage.results import Filter, Progress, Refreshed, once
from holdfast.storage.store import Applied
from holdfast.storage.tree import Stamp

_MANY = 10
_TRIES = 10
_MOST_SECONDS = 1.0
"""Without events, a query checks every file unless this was done so recently; less if checking is fast."""
_EARLY, _PAUSE = 256 << 10, 0.5
"""While files are watched, more unread text than this many bytes is indexed before a query; the pause in seconds."""
_MUCH = 500
"""After so many new records, if they are most of the index, the full-text index is merged for faster queries."""
_NEAR = 64 << 10
"""A log with fewer unread bytes than this is indexed by a write that needs it."""
Answer = TypeVar("Answer")


class Known(msgspec.Struct, frozen=True):
    """The state of the index before an append."""

    applied: list[Applied] = []
    """The effect of the op_id."""
    offset: int = 0
    """The end of the indexed part of the log."""
    order: str = ""
    """The greatest order of all entries about the target."""


class IndexSync:
    """One index over one tree."""

    def __init__(self, tree: FileTree, index: SqliteIndex, places: Layout, settings: Settings) -> None:
        self.tree = tree
        self.index = index
        self._layout = places
        self.refresher = Refresher(tree, places, settings.limits)
        self._noted: dict[str, None] = {}
        self._turns = threading.RLock()
        """Locked while noted paths are indexed, so that another thread does not miss them."""
        self._watcher: Watcher | None = None
        self._early = threading.Thread(target=self._index_early, name="holdfast-indexing", daemon=True)
        self._closed = threading.Event()
        self._checked, self._check_after = "", 0.0  # of all files, without events
        self._generation = ""

    def close(self) -> None:
        """Index the writes of this process, unless that takes long, and close the index."""
        self._closed.set()
        if self._early.is_alive():
            self._early.join(10)
        if self._watcher:
            self._watcher.stop()
            self._watcher = None
        with contextlib.suppress(HoldfastError):
            for path in _taken(self._noted):
                if not path.endswith("/"):
                    self.peek(lambda _: None, path)
        self.index.close()

    def note(self, path: str) -> None:
        """Note that a file changed, or a folder (with a slash at its end); the next query indexes it."""
        self._noted[path] = None

    # asking

    def run(self, work: Callable[[], Answer], progress: Progress | None = None) -> Answer:
        """Run work that refreshes and queries the index; repeat it if another process replaced the index in between.

        An index that cannot be used is rebuilt first; when that does not help, it is kept in memory.
        """
        failed = 0
        for left in reversed(range(_TRIES)):
            known = self.index.generation()
            try:
                with self.index.reading():
                    answer = work()
            except (Stale, Unusable) as error:
                failed += 1
                if failed > 2:
                    raise
                if failed == 2 or isinstance(error, Unusable):
                    self.index.keep_in_memory()
                try:
                    self.rebuild(progress, unless_newer_than=known)
                except (Stale, Unusable):
                    self.index.keep_in_memory()
                    self.rebuild(progress)
            else:
                if not left or self.index.generation() == known:
                    return answer
        raise Busy("The index is being replaced again and again.", "Try again; nothing was lost.")

    def peek(self, question: Callable[[SqliteIndex], Answer], path: str = "") -> Answer | None:
        """Query the index if it exists and is free, None otherwise; `path` is indexed first unless much is new."""
        index = self.index.impatient()
        try:
            if path:
                seen, stamp = index.look(path), self.tree.stat(path)
                if stamp is None or stamp.size - _read_of(seen, stamp) <= _NEAR:
                    self.refresher.apply(index, [path], Refreshed())
            return question(index)
        except (Stale, Unusable, Busy):
            return None

    def ensure_current(self, where: Filter, *, searching: bool) -> Refreshed:
        """Update the index for a query: check the files that its answer can come from."""
        kinds = where.kinds or where.searchable
        if not searching:
            return self.refresh_below(self._layout.below(kinds, where.scope, above=where.above))
        foreign = tuple(name for name in kinds if KINDS[name].foreign)
        if foreign:  # the watcher does not cover them
            self.refresh_below(self._layout.below(foreign, ""))
        # the weight of a word depends on all records, not on those of one place
        if self._watcher is None:
            return self.refresh_below(())
        with self._turns:
            if self._watcher.alive:
                return self._as_watched(self._watcher, kinds)
            # not for every query, since each check may ask another machine
            if time.monotonic() < self._check_after:
                return msgspec.structs.replace(self.catch_up(), as_of=self._checked)
            began, self._checked = time.monotonic(), utc_now()
            done = self.refresh_below(())
            if not done.behind:
                self._check_after = time.monotonic() + min(_MOST_SECONDS, 10 * (time.monotonic() - began))
            return done

    def known(self, op_id: str, path: str = "", target: str = "") -> Known:
        """Return the state of an op_id and of a key or id of a log in the index, without waiting for it.

        Entries that are not indexed yet are read from the logs, so a write never depends on the index.
        """
        below = (self._layout.memory,)
        if op_id:
            self.peek(lambda index: self._refresh_into(index, below), path)

        def question(index: SqliteIndex) -> tuple[dict[str, Seen], str, list[Applied]]:
            # queried first: a line that is added in between is then found twice instead of never
            generation, seen = index.generation(), index.seen(below if op_id else (path,))
            order = index.last_order(path, target) if target and path in seen else ""
            read = index.by_op(op_id) if op_id else []
            if index.generation() != generation:
                raise Stale("the index was replaced between two queries")
            return seen, order, read

        seen, order, read = self.peek(question, path if not op_id else "") or ({}, "", [])
        applied = {(each.path, each.id): each for each in read}
        for log, stamp in self.tree.walk(*below, (".jsonl",), lambda _path, _why: None) if op_id else ():
            offset = seen[log].offset if log in seen else 0
            for line in self.tree.scan(log, offset) if offset < stamp.size else ():
                objects = jsonl.parse(line.data) if op_id.encode() in line.data else []
                for value in objects if isinstance(objects, list) else ():
                    if value.get("op") == op_id:
                        one = Applied(log, str(value.get("hide") or value.get("id")), value, marks="hide" in value)
                        applied[one.path, one.id] = one
        return Known(list(applied.values()), _read_of(seen.get(path), self.tree.stat(path) if path else None), order)

    # refreshing

    def catch_up(
        self, *folders: str, progress: Progress | None = None, later: Callable[[str], bool] = lambda _path: False
    ) -> Refreshed:
        """Index the noted paths, and the changes below these folders and the noted ones; "/" is the whole memory.

        Noted paths that can be indexed `later` stay noted.
        """
        with self._turns:
            noted = _taken(self._noted)
            self._noted.update({path: None for path in list(noted) if later(path) and not noted.pop(path)})
            below = tuple(sorted({path[:-1] for path in (*noted, *folders) if path.endswith("/")}))
            paths = sorted(path for path in noted if not path.endswith("/"))
            done = Refreshed(files=len(paths))
            try:
                if below:
                    places = () if "" in below else below
                    done = self._refresh_into(self.index, places, progress)
                if paths and "" not in below:
                    self._apply(self.index, paths, done)
            except BaseException:
                self._noted.update(noted)
                raise
            if done.behind:
                self._noted.update(noted)
            return done

    def read(self, *paths: str) -> None:
        """Index these files as they are now."""
        check_text(*paths)
        if self._watcher and self._watcher.alive and all(map(self._layout.watched, paths)):
            with self._turns:
                self._as_watched(self._watcher, (), paths)
            return
        for path in paths:
            self.note(path)
        self.catch_up()

    def refresh_below(self, below: tuple[str, ...], progress: Progress | None = None) -> Refreshed:
        """Check every file below these places, or below all roots, and index the changed ones."""
        if not below:
            return self.catch_up("/", progress=progress)
        if self.index.folder and not self.index.generation():  # an empty index: no need to read everything
            with contextlib.suppress(Unusable), self.index.rebuilding(known=""):
                pass
        return self._refresh_into(self.index, below, progress)

    def rebuild(self, progress: Progress | None, *, unless_newer_than: str | None = None) -> Refreshed:
        """Read every file into a new index, which then replaces the old one."""
        done = Refreshed()
        with self.index.rebuilding(unless_newer_than) as fresh:
            if fresh:
                paths = list(self.refresher.walk(done))
                done.files = len(paths)
                self.refresher.apply(fresh, paths, done, progress)
                fresh.optimize()
                done.problems = once([*done.problems, *fresh.problems()])
        return done

    @property
    def waiting(self) -> int:
        """How many noted paths are not indexed yet."""
        return len(self._noted)

    def watch(self, folder: str) -> None:
        """Watch the files in the folder of the memory from now on, so that a search need not check every file."""
        if self._watcher is None:
            self._watcher = Watcher(folder, self._layout.roots)
            turns = self._turns  # a forked child does not have the thread that may have locked it
            os.register_at_fork(before=turns.acquire, after_in_parent=turns.release, after_in_child=turns.release)
            self._early.start()
            self.refresh_below(())

    def _index_early(self) -> None:
        """Index large writes of other programs early, so that the next query need not."""
        while not self._closed.wait(_PAUSE) and self._watcher and self._watcher.alive:
            with contextlib.suppress(HoldfastError, Stale, Unusable), self._turns:  # the next query reports errors
                self._note_changes(self._watcher)
                unread = 0
                for path in list(self._noted):
                    if not path.endswith("/") and (stamp := self.tree.stat(path)):
                        unread += stamp.size - _read_of(self.index.look(path), stamp)
                if unread > _EARLY:
                    for problem in self.catch_up().problems:
                        self.note(problem.path)

    def _as_watched(self, watcher: Watcher, kinds: Sequence[str], needed: Sequence[str] = ()) -> Refreshed:
        """Index the changes, except logs of kinds that are searched only on request, unless they are asked for."""

        def later(path: str) -> bool:
            place = self._layout.classify(path) if path.endswith(".jsonl") and path not in needed else None
            return place is not None and place.kind.on_request and place.kind.name not in kinds

        self._note_changes(watcher)
        generation = self.index.generation()
        if self._generation != generation:  # another process replaced the index
            self.note("/")
        done = self.catch_up(*(f"{path}/" for path in self.refresher.linked), later=later)  # links hide changes
        if not done.behind:
            self._generation = generation
        return done

    def _note_changes(self, watcher: Watcher) -> None:
        paths, folders = watcher.changes()
        self._noted.update(dict.fromkeys(paths))
        self._noted.update(dict.fromkeys(f"{path}/" if self._layout.watched(path) else "/" for path in folders))

    def _refresh_into(self, index: SqliteIndex, below: tuple[str, ...], progress: Progress | None = None) -> Refreshed:
        done = Refreshed()
        paths = self.refresher.changed(index, done, below)
        if (
            paths
            and not done.files
            and not below
            and (len(paths) >= _MANY or not any(map(self.tree.folder_stamp, self._layout.roots)))
        ):
            raise Unavailable(
                f"{self.tree.location} is empty, and {amount(len(paths), 'file was', 'files were')} there before.",
                "Check that the right folder is mounted; delete .holdfast/ in it if it is meant to be empty.",
            )
        self._apply(index, paths, done, progress)
        return done

    def _apply(self, index: SqliteIndex, paths: list[str], done: Refreshed, progress: Progress | None = None) -> None:
        """Index these paths, and report it when many of them are gone."""
        with contextlib.suppress(Busy):
            refresh.note_vanished(self.tree, index, paths)
        self.refresher.apply(index, paths, done, progress)
        with contextlib.suppress(Busy):
            if done.records >= _MUCH and done.records * 2 > index.last_row():
                index.optimize()
            done.problems += refresh.vanished(self.tree, index)

    def vanished(self) -> list[Problem]:
        """Report files that vanished at once and may be missing by mistake."""
        return refresh.vanished(self.tree, self.index)


def _read_of(seen: Seen | None, stamp: Stamp | None) -> int:
    """Return the end of the indexed part of a log; 0 if another file has its name now."""
    return seen.offset if seen and stamp and seen.stamp.inode == stamp.inode else 0


def _taken(notes: dict[str, None]) -> dict[str, None]:
    """Remove all notes and return them; other threads may add some at any time."""
    taken: dict[str, None] = {}
    with contextlib.suppress(KeyError):
        while True:
            taken[notes.popitem()[0]] = None
    return taken
