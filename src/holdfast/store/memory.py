"""`Memory`: what every door holds. It composes; the work is done by the modules beside it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from holdfast import kinds, settings
from holdfast.errors import Busy, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.formats import logs
from holdfast.index import Applied, Filter, Index, Stale, Unusable
from holdfast.index.sqlite import SqliteIndex
from holdfast.kinds import KINDS, Kind
from holdfast.names import check_text
from holdfast.places import Places, session_folder
from holdfast.query import Query, Terms, check, parse
from holdfast.records import Draft, Problem, Receipt, Record, path_of
from holdfast.scope import Scope
from holdfast.store import reading, recalling, verifying, watching
from holdfast.store.refreshing import SUFFIXES, Progress, Refreshed, Refresher
from holdfast.store.scopes import Scopes
from holdfast.store.writing import Known, Writer
from holdfast.times import bound, iso, now_ms
from holdfast.vault import Vault
from holdfast.vault._locks import hold

_REBUILD_SECONDS = 120.0
_MANY = 10
_AT_LINE = re.compile(r"(.+\.(?:md|jsonl)):([0-9]{1,9})\Z")
Answer = TypeVar("Answer")


class Memory:
    """One memory root. Safe to use from several threads; close it, or use it as a context manager."""

    def __init__(
        self, vault: Vault, index: Index, config: settings.Settings, derived: str | None, writer: str = ""
    ) -> None:
        self.settings = config
        self.vault = vault
        self.places = Places(config.paths)
        self.scopes = Scopes(vault, self.places)
        self._index = index
        self._derived = derived
        self._refresher = Refresher(vault, self.places, config.limits)
        self._writer = Writer(vault, self.places, self.scopes, config.limits, self._known, self._note, writer)
        self._dirty: set[str] = set()
        self._dirty_lock = threading.Lock()
        self._watcher: watching.Watcher | None = None
        self._folders_moved = False
        self._generation = ""

    @property
    def root(self) -> str:
        return self.vault.location

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Bring the index up to what was written here, and let go of everything."""
        if self._watcher:
            self._watcher.stop()
            self._watcher = None
        with contextlib.suppress(Stale, Unusable, HoldfastError):
            self._catch_up()
        self._index.close()
        self.vault.close()

    # writing

    def put(self, kind: str = "", text: str | None = None, **given: Any) -> Receipt:
        """Keep a record: durable when this returns. `given` are the other fields of `Draft`."""
        return self.keep(draft(kind=kind, text=text, **given))

    def keep(self, wanted: Draft) -> Receipt:
        """Keep what the draft says, or change the record that it names."""
        if wanted.id and not wanted.kind and self.places.classify(path_of(wanted.id)) is None:
            self.get(wanted.id)  # an unknown id is NotFound; a known line cannot be changed
        return self._writer.put(wanted)

    def hide(self, identifier: str, *, restore: bool = False, op_id: str = "") -> Receipt:
        """Hide a record from search and lists, or show it again; its text stays where it is."""
        return self._writer.hide(self.get(identifier), not restore, op_id)

    # reading

    def get(self, identifier: str) -> Record:
        """Return one record as it is on disk now."""
        check_text(identifier)
        if place_in_file := _AT_LINE.match(identifier):
            identifier = self._at(place_in_file[1], int(place_in_file[2]))
        path = path_of(identifier)
        place = self.places.classify(path)
        if place and place.kind.shape != "line":
            document = self.vault.read(path, self.settings.limits.document_bytes)
            record = reading.record_at(place, document, identifier)
            if record is None:
                raise _unknown(identifier)
            if place.kind.write_once:
                self._refresh_below((path.rpartition("/")[0],))
                return next(iter(self._ask(lambda index: index.by_id(identifier))), record)
            return record
        found = self._by_id(identifier)
        if len(found) > 1:
            files = ", ".join(record.path for record in found)
            raise Invalid(f"{identifier} stands in several logs: {files}.", "Merge them, or remove the copy.")
        return found[0]

    def _at(self, path: str, line: int) -> str:
        """Return the id of the record at a line of a file, as a search shows it."""
        self._note(path)
        self._catch_up()
        before = [record for record in self._ask(lambda index: index.records(path)) if record.line <= line]
        if not before:
            raise _unknown(f"{path}:{line}")
        return max(before, key=lambda record: record.line).id

    def _by_id(self, identifier: str) -> list[Record]:
        found = self._ask(lambda index: index.by_id(identifier))
        if found:
            for path in {record.path for record in found}:
                self._note(path)
            self._catch_up()
        else:
            self.refresh()
        found = self._ask(lambda index: index.by_id(identifier))
        if not found:
            raise _unknown(identifier)
        return found

    def find(self, query: Query | str = "", **given: Any) -> recalling.Found:
        """Answer a query: the best matches for its text or, without text, the newest records."""
        wanted = _query(query, given)
        check(wanted)
        terms = parse(wanted.text)
        if wanted.text.strip() and terms.empty and not (terms.tags or terms.kinds):
            return recalling.Found([], iso(now_ms()))
        where = self._filter(wanted, (*wanted.kinds, *terms.kinds), (*wanted.tags, *terms.tags))
        done = self._look(where, searching=not terms.empty)
        scored = self._ask(lambda index: index.search(terms, where, wanted.limit))
        kept, left_out = recalling.hits(scored, terms, wanted)
        damaged = self._ask(lambda index: index.problem_count())
        return recalling.Found(kept, self._as_of(), done.behind, left_out, done.problems, damaged)

    def _as_of(self) -> str:
        """Say for which moment an answer holds: now, or as far as the watcher has told."""
        return iso(self._watcher.told_ms if self._watcher and self._watcher.alive else now_ms())

    def tail(self, kind: str, count: int = 20, *, session: str = "", scope: str | Scope | None = None) -> list[Record]:
        """Return the last records of a log, oldest first, read from the end of the file."""
        row = kinds.kind(kind)
        if row.shape != "line":
            raise Invalid(f"A {kind} is not kept in a log.", "Use find, which returns the newest first.")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise Invalid(f"The count is {count!r}.", "Use a number from 1 on.")
        if not isinstance(session, str):
            raise Invalid(f"The session is {session!r}.", "Use text.")
        check_text(session)
        where = Scope(session=session) if scope is None else self.scopes.resolve(scope)
        path = self.places.path_for(row, where, month=iso(now_ms())[:7], session=session)
        if row.key:  # which line of a key holds is the index's business
            return self.every(Query(kinds=(kind,), scope=scope, session=session))[:count][::-1]
        return list(itertools.islice(self.backwards(path, where.path, session), count))[::-1]

    def every(self, query: Query) -> list[Record]:
        """Return all records that pass the filters, newest first, however many there are."""
        where = self._filter(query, query.kinds, query.tags)
        self._look(where, searching=False)
        return [scored.record for scored in self._ask(lambda index: index.search(Terms(), where, -1))]

    def backwards(self, path: str, scope: str = "", session: str = "") -> Iterator[Record]:
        """Yield the records of a log from its end; nothing when there is no such log."""
        place = self.places.classify(path)
        if place is None or self.vault.stat(path) is None:
            return
        marks = self._glance(lambda index: index.hidden_in(path), path) or {}  # a merge may put a mark before its line
        seen: set[str] = set()
        for line in self.vault.scan_back(path):
            objects = [] if line.cut else logs.parse(line.data)
            for value in reversed(objects) if isinstance(objects, list) else ():
                if isinstance(value.get("hide"), str):
                    marks.setdefault(value["hide"], value.get("hidden") is not False)
                    continue
                record, _ = reading.line_record(place, value, 0, self._refresher.blob)
                inside = not scope or f"{record.scope.path}/".startswith(f"{scope}/")
                inside = inside and (not session or record.scope.session in ("", *_sessions(session)))
                if inside and not marks.get(record.id) and record.id not in seen:
                    seen.add(record.id)
                    yield record

    def held(self, kind: Kind, key: str) -> Record | None:
        """Return the line that holds for a key of a keyed kind, None when there is none or it is hidden."""
        path = self.places.path_for(kind, Scope())
        self._note(path)
        self._catch_up()
        found = [record for record in self._ask(lambda index: index.by_key(path, key)) if not record.hidden]
        return found[0] if found else None

    def knows_op(self, op_id: str) -> bool:
        """Was something done, or about to be done, under this op_id?"""
        return bool(op_id) and bool(self._known(op_id).applied)

    def note_line(self, kind: Kind, line: dict[str, Any], folder: str) -> None:
        """Add a line to one of Holdfast's own logs, without waiting for the disk."""
        self._writer.note(kind, line, folder)

    # index and files

    def refresh(self, *, rebuild: bool = False, progress: Progress | None = None) -> Refreshed:
        """Bring the index up to the files; `rebuild` throws it away first."""
        if rebuild:
            return self._rebuild(progress)
        done = self._refresh_below((), progress)
        known = self._ask(lambda index: [*index.problems(), *self._refresher.torn(index)])
        done.problems = _once([*done.problems, *known])
        return done

    def verify(self, progress: Progress | None = None) -> verifying.Report:
        """Prove that the index says what the files say, and name what is damaged."""
        self.refresh()
        scratch = SqliteIndex(None, "scratch", self.settings.search)
        try:
            return verifying.verify(self.vault, self._refresher, self.places, self._index, scratch, progress)
        except Stale as error:
            return verifying.Report(differences=[Problem(settings.DERIVED, str(error))])
        finally:
            scratch.close()

    def stats(self) -> dict[str, Any]:
        """Return what is kept, where, and how far the index is behind."""
        done = Refreshed()
        behind = self._ask(lambda index: self._refresher.stale(index, done))
        counts = self._ask(lambda index: index.counts())
        size = sum(stamp.size for stamp in self._refresher.walk(Refreshed()).values())
        return {
            "root": self.root,
            "records": sum(counts.values()),
            "kinds": counts,
            "files": done.files,
            "bytes": size,
            "index_bytes": _folder_size(self._derived),
            "behind": behind,
            "problems": len(_once([*done.problems, *self._ask(lambda index: index.problems())])),
        }

    def watch(self) -> None:
        """Follow changes of files from now on, so that a search need not look at every file."""
        if self._watcher is None:
            folders = [os.path.join(self.root, folder) for folder in self.places.roots]
            self._watcher = watching.Watcher(self.root, folders, self._note_events)
            self.refresh()

    def _look(self, where: Filter, *, searching: bool) -> Refreshed:
        """See to it that the answer holds now: look at what it can come from."""
        if searching and self._watcher and self._watcher.alive:
            generation = self._index.generation()
            if not self._folders_moved and self._generation == generation:
                return self._catch_up()
            self._folders_moved = False  # or another process put its own index in place of the one we kept up
            done = self._refresh_below(())
            if done.behind:
                self._folders_moved = True
            else:
                self._generation = generation
            return done
        whole = searching and not where.kinds and (not where.scope or where.shared)
        return self._refresh_below(() if whole else self.places.below(where.kinds or where.searchable, where.scope))

    def _refresh_below(self, below: tuple[str, ...], progress: Progress | None = None) -> Refreshed:
        def work(index: Index) -> Refreshed:
            return self._refresh_into(index, below, progress)

        noted = self._take_notes() if not below else []
        try:
            done = self._ask(work)
        except BaseException:
            self._note_many(noted)
            raise
        if done.behind:
            self._note_many(noted)
        return done

    def _refresh_into(self, index: Index, below: tuple[str, ...], progress: Progress | None = None) -> Refreshed:
        done = Refreshed()
        paths = self._refresher.changed(index, done, below)
        if not done.files and not below and self._looks_unmounted(len(paths)):
            raise Unavailable(
                f"{self.root} is empty, and {len(paths)} files were there before.",
                "Check that the right folder is mounted; delete .holdfast/ in it if it is meant to be empty.",
            )
        self._refresher.apply(index, paths, done, progress)
        return done

    def _take_notes(self) -> list[str]:
        """Return the paths that are known to have changed, and forget them: who takes them indexes them."""
        with self._dirty_lock:
            noted, self._dirty = sorted(self._dirty), set()
        return noted

    def _looks_unmounted(self, vanished: int) -> bool:
        """Is nothing left of what was there? Then it is out of sight rather than removed."""
        gone = not any(self.vault.folder_stamp(top) for top in self.places.roots)
        return vanished > 0 and (gone or vanished >= _MANY)

    def _catch_up(self) -> Refreshed:
        """Index the paths that are known to have changed."""
        paths = self._take_notes()
        done = Refreshed(files=len(paths))
        if paths:
            try:
                self._ask(lambda index: self._refresher.apply(index, paths, done))
            except BaseException:
                self._note_many(paths)
                raise
            if done.behind:
                self._note_many(paths)
        return done

    def _ask(self, question: Callable[[Index], Answer]) -> Answer:
        """Put a question to the index, rebuilding it first when it cannot be used."""
        known = self._index.generation()
        try:
            return question(self._index)
        except Stale:
            pass
        except Unusable:
            self._do_without()
        try:
            self._rebuild(None, unless_newer_than=known)
            return question(self._index)
        except (Stale, Unusable):
            self._do_without()
            self._rebuild(None)
        return question(self._index)

    def _do_without(self) -> None:
        """Keep the index in memory from now on: the disk is full or may not be written, and reads must still work."""
        self._index.close()
        self._derived = None
        self._index = SqliteIndex(None, "in memory", self.settings.search)

    def _rebuild(self, progress: Progress | None, *, unless_newer_than: str | None = None) -> Refreshed:
        done = Refreshed()
        with self._only_rebuilder():
            if unless_newer_than is not None and self._index.generation() not in ("", unless_newer_than):
                return done
            with self._index.rebuilding() as fresh:
                paths = list(self._refresher.walk(done))
                done.files = len(paths)
                self._refresher.apply(fresh, paths, done, progress)
                done.problems = _once([*done.problems, *fresh.problems()])
        return done

    @contextlib.contextmanager
    def _only_rebuilder(self) -> Iterator[None]:
        """Let one process rebuild at a time; the others wait and then use what it made."""
        if self._derived is None:
            yield
            return
        try:
            os.makedirs(self._derived, exist_ok=True)
            fd = os.open(self._derived, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Unusable(f"{self._derived}: {error.strerror}") from None
        try:
            hold(fd, _REBUILD_SECONDS, "The index, which another process is rebuilding,")
            yield
        finally:
            os.close(fd)

    def _note(self, path: str) -> None:
        with self._dirty_lock:
            self._dirty.add(path)

    def _note_many(self, paths: list[str]) -> None:
        with self._dirty_lock:
            self._dirty.update(paths)

    def _note_events(self, paths: list[str]) -> None:
        """Note what the watcher saw; a folder that came or went means that every stamp must be looked at."""
        self._note_many([path for path in paths if path.endswith(SUFFIXES)])
        others = [os.path.join(self.root, path) for path in paths if not path.endswith(SUFFIXES)]
        if any(os.path.isdir(path) or not os.path.lexists(path) for path in others):
            self._folders_moved = True

    def _known(self, op_id: str, path: str = "", target: str = "") -> Known:
        """Return what the index knows of an op_id and of a key or id of a log, without waiting for it.

        What it has not read yet is read from the logs: a write never depends on the index.
        """
        if op_id:
            self._glance(lambda index: self._refresh_into(index, (self.places.memory,)), path)
        applied = (self._glance(lambda index: index.by_op(op_id)) or []) if op_id else []
        seen = self._glance(lambda index: index.look(path), path) if path else None
        order = (self._glance(lambda index: index.last_order(path, target)) or "") if target and seen else ""
        if op_id:
            applied += self._unread_ops(op_id)
        return Known(applied, seen.offset if seen else 0, order)

    def _unread_ops(self, op_id: str) -> list[Applied]:
        """Find an op_id in the parts of the logs that the index has not read; without an index, in all of them."""
        known = self._glance(lambda index: index.seen()) or {}
        found: list[Applied] = []
        for path, stamp in self.vault.walk(self.places.memory, (".jsonl",), lambda _path, _why: None):
            offset = known[path].offset if path in known else 0
            for line in self.vault.scan(path, offset) if offset < stamp.size else ():
                objects = logs.parse(line.data) if op_id.encode() in line.data else []
                found += [
                    Applied(path, str(value.get("hide") or value.get("id")), value)
                    for value in (objects if isinstance(objects, list) else ())
                    if value.get("op") == op_id
                ]
        return found

    def _glance(self, question: Callable[[Index], Answer], path: str = "") -> Answer | None:
        """Put a question to the index if it is there and free, after it has read one path; None if it is not."""
        try:
            with self._index.impatient():
                if path:
                    self._refresher.apply(self._index, [path], Refreshed())
                return question(self._index)
        except (Stale, Unusable, Busy):
            return None

    def _filter(self, query: Query, wanted: tuple[str, ...], tags: tuple[str, ...]) -> Filter:
        for name in wanted:
            kinds.kind(name)
        since = bound(query.since) if query.since else ""
        until = bound(query.until, end=True) if query.until else ""
        if since and until and since > until:
            raise Invalid(f"since {query.since} is after until {query.until}.", "Swap them.")
        where = self.scopes.resolve(query.scope) if query.scope else Scope()
        return Filter(
            kinds=wanted, scope=where.path, shared=query.shared, sessions=_sessions(query.session), tags=tags,
            since=since, until=until, hidden=query.hidden,
            searchable=tuple(row.name for row in KINDS.values() if row.searchable and row.layer != "cold"),
        )  # fmt: skip


def draft(**given: Any) -> Draft:
    """Make a draft of loose arguments, naming the valid ones when one is unknown or of the wrong type."""
    try:
        return msgspec.convert(given, Draft)
    except (msgspec.ValidationError, TypeError) as error:
        raise Invalid(f"{error}.", f"A draft takes {', '.join(Draft.__struct_fields__)}.") from None


def _query(query: Query | str, given: dict[str, Any]) -> Query:
    if isinstance(query, Query):
        given = {name: getattr(query, name) for name in Query.__struct_fields__} | given
    else:
        given = {"text": query} | given
    try:
        return msgspec.convert(given, Query)
    except (msgspec.ValidationError, TypeError) as error:
        raise Invalid(f"{error}.", f"A query takes {', '.join(Query.__struct_fields__)}.") from None


def _sessions(session: str) -> tuple[str, ...]:
    """Return the strings under which a session's records are known: lines without one bear their folder's name."""
    return (session, session_folder(session)) if session else ()


def _folder_size(folder: str | None) -> int:
    if not folder or not os.path.isdir(folder):
        return 0
    return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())


def _once(problems: list[Problem]) -> list[Problem]:
    return list({(problem.path, problem.line, problem.what): problem for problem in problems}.values())


def _unknown(identifier: str) -> NotFound:
    return NotFound(f"There is no record {identifier!r}.", "Use search to find its id.")
