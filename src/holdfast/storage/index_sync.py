"""Keeping the index up to the files, and asking it: the one place that knows how the two hang together.

Paths that are known to have changed are noted and indexed by the next question. An index that cannot be used is
rebuilt; where the disk refuses one, it is kept in memory. A write only glances at the index and never waits for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from holdfast.errors import Busy, HoldfastError, Unavailable
from holdfast.formats import jsonl
from holdfast.model.kinds import KINDS
from holdfast.model.layout import Places
from holdfast.model.names import amount
from holdfast.model.records import Problem
from holdfast.model.settings import Settings
from holdfast.model.times import iso, now_ms
from holdfast.storage import vanishing, verify
from holdfast.storage.engines import Engine, Tell, Watch
from holdfast.storage.index import Applied, Filter, Index, Seen, Stale, Unusable
from holdfast.storage.refresh import Progress, Refreshed, Refresher
from holdfast.storage.tree import RootGone
from holdfast.storage.writing import Known

_MANY = 10
_TRIES = 10
_NEAR = 1 << 20
"""Bytes of a log that are read into the index on the way to something else."""
Answer = TypeVar("Answer")


class Keeper:
    """One index over one vault."""

    def __init__(self, engine: Engine, places: Places, settings: Settings) -> None:
        self._engine = engine
        self._vault = engine.vault
        self._places = places
        self.refresher = Refresher(engine.vault, places, settings.limits)
        self._dirty: set[str] = set()
        self._dirty_lock = threading.Lock()
        self._turns = threading.RLock()
        """Held by who takes notes until what they name is indexed: whoever asks next must not miss it."""
        self._watcher: Watch | None = None
        self._moved: set[str] = set()
        """Folders that came or went since the watcher began; "" means that every file must be looked at."""
        self._generation = ""

    @property
    def _index(self) -> Index:
        return self._engine.index

    def close(self) -> None:
        """Bring the index up to what was written here, and let go of it."""
        if self._watcher:
            self._watcher.stop()
            self._watcher = None
        with contextlib.suppress(Stale, Unusable, HoldfastError):
            self.catch_up()
        self._index.close()

    # asking

    def ask(self, question: Callable[[Index], Answer], progress: Progress | None = None) -> Answer:
        """Put a question to the index, rebuilding it first when it cannot be used."""
        known = self._index.generation()
        try:
            return question(self._index)
        except Stale:
            pass
        except Unusable:
            self._engine.do_without()
        try:
            self.rebuild(progress, unless_newer_than=known)
            return question(self._index)
        except (Stale, Unusable):
            self._engine.do_without()
            self.rebuild(progress)
        return question(self._index)

    def steady(self, work: Callable[[], Answer]) -> Answer:
        """Do what first brings the index up and then asks it, again when another process replaced it in between.

        A connection to a database that is lost on the way costs a second try, too.
        """
        for last in (*[False] * (_TRIES - 1), True):
            try:
                known = self._index.generation()
                answer = work()
                if last or self._index.generation() == known:
                    break
            except RootGone:
                if last or self._engine.tree:
                    raise
        return answer

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Inside, many questions cost little more than one."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(Stale):  # whoever asks makes one
                stack.enter_context(self._index.reading())
            yield

    def glance(self, question: Callable[[Index], Answer], path: str = "") -> Answer | None:
        """Put a question to the index if it is there and free; None if it is not.

        It reads a path first, unless so much of it is new that the asker would wait.
        """
        try:
            with self._index.impatient():
                if path and self._is_near(path):
                    self.refresher.apply(self._index, [path], Refreshed())
                return question(self._index)
        except (Stale, Unusable, Busy):
            return None

    def _is_near(self, path: str) -> bool:
        seen, stamp = self._index.look(path), self._vault.stat(path)
        return stamp is None or stamp.size - (seen.offset if seen else 0) <= _NEAR

    def look(self, where: Filter, *, searching: bool) -> Refreshed:
        """See to it that the answer holds now: look at what it can come from."""
        kinds = where.kinds or where.searchable
        if not searching:
            return self.refresh_below(self._places.below(kinds, where.scope, above=where.above))
        foreign = tuple(name for name in kinds if KINDS[name].foreign)
        if foreign:  # nobody watches them
            self.refresh_below(self._places.below(foreign, ""))
        # how much a word tells depends on all records, not on those of one place
        if not (self._watcher and self._watcher.alive):
            return self.refresh_below(())
        with self._turns:
            self._watcher.look()
            return self._as_watched()

    def as_of(self) -> str:
        """Say for which moment an answer holds: now, or as far as the watcher has told."""
        return iso(self._watcher.told_ms if self._watcher and self._watcher.alive else now_ms())

    def known(self, op_id: str, path: str = "", target: str = "") -> Known:
        """Return what the index knows of an op_id and of a key or id of a log, without waiting for it.

        What it has not read yet is read from the logs: a write never depends on the index.
        """
        below = (self._places.memory,)
        if op_id:
            self.glance(lambda index: self._refresh_into(index, below), path)

        def question(index: Index) -> tuple[dict[str, Seen], str, list[Applied]]:
            # how far it has read is asked first: a line that comes meanwhile is then found twice rather than never
            generation, seen = index.generation(), index.seen(below if op_id else (path,))
            order = index.last_order(path, target) if target and path in seen else ""
            read = index.by_op(op_id) if op_id else []
            if index.generation() != generation:
                raise Stale("the index was replaced between two questions")
            return seen, order, read

        seen, order, read = self.glance(question, path if not op_id else "") or ({}, "", [])
        unread = self._unread_ops(op_id, seen) if op_id else []
        applied = {(each.path, each.id): each for each in (*read, *unread)}
        return Known(list(applied.values()), seen[path].offset if path in seen else 0, order)

    def _unread_ops(self, op_id: str, seen: Mapping[str, Seen]) -> list[Applied]:
        """Find an op_id in the parts of the logs that the index had not read; without an index, in all of them."""
        found: list[Applied] = []
        for path, stamp in self._vault.walk(self._places.memory, (".jsonl",), lambda _path, _why: None):
            offset = seen[path].offset if path in seen else 0
            for line in self._vault.scan(path, offset) if offset < stamp.size else ():
                objects = jsonl.parse(line.data) if op_id.encode() in line.data else []
                found += [
                    Applied(path, str(value.get("hide") or value.get("id")), value, marks="hide" in value)
                    for value in (objects if isinstance(objects, list) else ())
                    if value.get("op") == op_id
                ]
        return found

    # keeping up

    def note(self, path: str) -> None:
        """Note that a path changed: the next question looks at it."""
        with self._dirty_lock:
            self._dirty.add(path)

    def catch_up(self) -> Refreshed:
        """Index the paths that are known to have changed."""
        with self._turns:
            paths = self._take_notes()
            done = Refreshed(files=len(paths))
            if paths:
                try:
                    self.ask(lambda index: self._apply(index, paths, done))
                except BaseException:
                    self._note_many(paths)
                    raise
                if done.behind:
                    self._note_many(paths)
            return done

    def refresh_below(self, below: tuple[str, ...], progress: Progress | None = None) -> Refreshed:
        """Look at every file below these places, or at all that is always looked at, and index what changed."""

        def work(index: Index) -> Refreshed:
            return self._refresh_into(index, below, progress)

        if below:
            self._begin()
            return self.ask(work, progress)
        with self._turns:
            noted = self._take_notes()
            try:
                done = self.ask(work, progress)
            except BaseException:
                self._note_many(noted)
                raise
            if done.behind:
                self._note_many(noted)
            return done

    def rebuild(self, progress: Progress | None, *, unless_newer_than: str | None = None) -> Refreshed:
        """Read every file into a new index, which then takes the place of the old one."""
        done = Refreshed()
        with self._engine.alone():
            if unless_newer_than is not None and self._index.generation() not in ("", unless_newer_than):
                return done
            with self._index.rebuilding() as fresh:
                paths = list(self.refresher.walk(done))
                done.files = len(paths)
                self.refresher.apply(fresh, paths, done, progress)
                done.problems = once([*done.problems, *fresh.problems()])
        return done

    def purge(self) -> None:
        """Make the index anew and remove all else that was derived, so that no byte of what was there is left."""
        self.rebuild(None)
        self._engine.purge()

    def verify(self, begun: int, progress: Progress | None) -> verify.Report:
        """Compare the index, which was brought up from that moment on, with what a fresh reading of the files gives."""
        try:
            with self._engine.scratch() as scratch:
                return verify.verify(self._vault, self.refresher, self._places, self._index, scratch, begun, progress)
        except Stale as error:
            return verify.Report(differences=[Problem(".holdfast", str(error))])

    @property
    def watching(self) -> bool:
        return self._watcher is not None

    @property
    def waiting(self) -> int:
        """How many paths are known to have changed and are not indexed yet."""
        return len(self._dirty)

    def watch(self) -> None:
        """Follow changes of files from now on, so that a search need not look at every file."""
        if self._watcher is None:
            self._watcher = self._engine.watch(self._places.roots, self._note_events)
            self.refresh_below(())

    def follow(self, tell: Tell) -> Watch:
        """Have changes told as they come; where files stand is in the index by then."""
        watch = self._engine.follow(self._places.roots, tell)
        try:
            self.refresh_below(())
        except BaseException:
            watch.stop()
            raise
        return watch

    def size(self) -> int:
        """Return how many bytes the index takes."""
        return self._engine.size()

    def _begin(self) -> None:
        """Begin an empty index where there is none: who asks for one place need not wait until all is read."""
        if not self._engine.lasting or self._index.generation():
            return
        with contextlib.suppress(Unusable), self._engine.alone():
            if not self._index.generation():
                with self._index.rebuilding():
                    pass

    def _as_watched(self) -> Refreshed:
        generation = self._index.generation()
        with self._dirty_lock:
            moved, self._moved = self._moved | self.refresher.linked, set()  # a change behind a link bears another name
        if self._generation != generation:  # another process put its own index in place of the one we kept up
            moved.add("")
        if not moved:
            return self.catch_up()
        try:
            done = self.refresh_below(() if "" in moved else tuple(sorted(moved)))
        except BaseException:
            self._note_moved(moved)
            raise
        if done.behind:
            self._note_moved(moved)
        else:
            self._generation = generation
        return done if "" in moved else self.catch_up()

    def _refresh_into(self, index: Index, below: tuple[str, ...], progress: Progress | None = None) -> Refreshed:
        done = Refreshed()
        paths = self.refresher.changed(index, done, below)
        if not done.files and not below and self._looks_unmounted(len(paths)):
            raise Unavailable(
                f"{self._vault.location} is empty, and {amount(len(paths), 'file was', 'files were')} there before.",
                "Check that the right folder is mounted; delete .holdfast/ in it if it is meant to be empty.",
            )
        self._apply(index, paths, done, progress)
        return done

    def _apply(self, index: Index, paths: list[str], done: Refreshed, progress: Progress | None = None) -> None:
        """Index these paths, and tell if many of them are gone."""
        with contextlib.suppress(Busy):
            vanishing.look(self._vault, index, paths)
        self.refresher.apply(index, paths, done, progress)
        with contextlib.suppress(Busy):
            done.problems += vanishing.told(self._vault, index)

    def vanished(self) -> list[Problem]:
        """Say what is gone that should perhaps be there."""
        return self.ask(lambda index: vanishing.told(self._vault, index))

    def _looks_unmounted(self, vanished: int) -> bool:
        """Is nothing left of what was there? Then it is out of sight rather than removed."""
        gone = not any(self._vault.folder_stamp(top) for top in self._places.roots)
        return vanished > 0 and (gone or vanished >= _MANY)

    def _take_notes(self) -> list[str]:
        """Return the paths that are known to have changed, and forget them: who takes them indexes them."""
        with self._dirty_lock:
            noted, self._dirty = sorted(self._dirty), set()
        return noted

    def _note_many(self, paths: list[str]) -> None:
        with self._dirty_lock:
            self._dirty.update(paths)

    def _note_events(self, paths: list[str], folders: set[str]) -> None:
        """Note what the watcher saw; of a folder that came or went, all below it must be looked at."""
        self._note_many(paths)
        self._note_moved({path if self._places.watched(path) else "" for path in folders})

    def _note_moved(self, folders: set[str]) -> None:
        with self._dirty_lock:
            self._moved |= folders


def once(problems: list[Problem]) -> list[Problem]:
    """Return each problem once."""
    return list({(problem.path, problem.line, problem.what): problem for problem in problems}.values())
