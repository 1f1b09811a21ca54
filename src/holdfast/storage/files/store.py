"""`FileStore`: a memory in files, with an index of the records in them.

The files are the truth. A write makes the file durable and notes its path; the next query first updates the index. An
op_id, a key or an id is also looked up in entries that are not indexed yet, so no write depends on the index.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import msgspec

from holdfast.errors import HoldfastError, Invalid, NotFound, Unavailable
from holdfast.formats import jsonl, markdown
from holdfast.model.kinds import FOREIGN, KINDS, NOT_RECORDS, Layout
from holdfast.model.patterns import regex
from holdfast.model.queries import Query, Terms
from holdfast.model.records import Problem, Record, path_of
from holdfast.model.settings import Settings, Shared
from holdfast.model.times import is_id, iso, mint_many, now_ms
from holdfast.recall.answers import Candidates
from holdfast.recall.embedders import Embedded
from holdfast.recall.ranking import Near
from holdfast.storage import parsing, write_log
from holdfast.storage.files import log, refresh, rows
from holdfast.storage.files.index import SqliteIndex, Unusable, identity_of
from holdfast.storage.files.index_sync import IndexSync, Known
from holdfast.storage.files.log import LogEnd
from holdfast.storage.files.rows import Seen, Stale
from holdfast.storage.files.tree import Files
from holdfast.storage.files.watch import FileFeed
from holdfast.storage.files.within import FileTree, ScopedTree
from holdfast.storage.log import Changed, LogPart
from holdfast.storage.results import Filter, Pool, Progress, Refreshed, Report, Tied, once
from holdfast.storage.store import Appended, Applied, Load, Store, other_use, unknown, used

if TYPE_CHECKING:
    from holdfast.storage.files.vectors import Vectors

_NOTHING = Known()
_TARGET = regex(rb'"path": ?"([^"]*)')
_RAREST = 12
"""The number of words of a new record that are used to find similar ones."""
_LOOK_BACK = 100_000
"""How many entries of the write log are read for the writer of `MEMORY.md`; further back, it is unknown."""
P = ParamSpec("P")
T = TypeVar("T")


def asks(method: Callable[Concatenate[FileStore, P], T]) -> Callable[Concatenate[FileStore, P], T]:
    """Run a method that queries the index; repeat it after a rebuild, or if another process replaced the index."""

    @functools.wraps(method)
    def run(self: FileStore, /, *given: P.args, **named: P.kwargs) -> T:
        progress: Any = named.get("progress")
        return self._sync.run(lambda: method(self, *given, **named), progress)

    return run


class FileStore(Store):
    """One memory in the files of a tree, with its index in the folder `derived`, or in memory without one."""

    tree: FileTree
    reads_only = False

    def __init__(self, tree: FileTree, derived: str, layout: Layout, settings: Settings, writer: str = "") -> None:
        super().__init__(layout, settings, writer)
        self.tree = tree
        self.folder = self.address = tree.location if isinstance(tree, Files) else ""
        self._reports: list[Problem] = tree.reports if isinstance(tree, Files) else []
        if isinstance(tree, Files):
            tree.forgotten = functools.partial(write_log.forgotten, tree, layout.memory)
        self._index = SqliteIndex(derived, identity_of(settings), settings.search)
        self._sync = IndexSync(tree, self._index, layout, settings)
        self._importer = log.Importer(tree, settings.limits.line_bytes)
        self._vectors: Vectors | None = None
        self._watching = False
        self._claims: dict[str, Callable[[], None]] = {}
        """How to release each claimed log."""
        self._claims_file = f"{layout.memory}/sessions/.claims/runs/lock"  # in git's list of ignored files as `runs/`
        self._claims_lock = threading.Lock()

    def clock(self) -> int:
        return now_ms()

    def close(self) -> None:
        if self._vectors:
            self._vectors.close()
        self._sync.close()
        self.tree.close()

    def within(self, scope: str) -> Store:
        alone = msgspec.structs.replace(self.settings, shared=Shared())  # the shared memory is outside
        return FileStore(ScopedTree(self.tree, self.layout, scope), "", self.layout, alone, self._default_writer)

    def _replace(
        self, path: str, data: bytes | None, before: str, entry: Mapping[str, Any], op_id: str, *, keep: bool
    ) -> None:
        if op_id:
            if self.applied(op_id, path):
                raise used(op_id)
            self.log_write({**entry, "intent": True}, op_id)
        kept = self.kept(before) if before and keep else ""
        if data is None:
            self.tree.remove(path, expect=before, keep=kept)
        else:
            self.tree.write(path, data, expect=before, keep=kept)
        self._sync.note(path)
        try:
            self.log_write(entry, op_id)
        except HoldfastError:  # the document is durable; a missing line must not fail the write
            if data is None and not keep:  # a permanent removal must be recorded
                raise
        if data is not None and keep:
            self.tree.keep_copy(path, data, self.kept(entry["after"]))

    def _applied(self, op_id: str, path: str = "") -> list[Applied]:
        return self._sync.known(op_id, path).applied

    @asks
    def writers(self, records: Sequence[Record]) -> dict[str, str | None]:
        pages = [record for record in records if KINDS[record.kind].shape != "line" and record.kind != "memory"]
        always = (self._memory_writer(record) for record in records if record.kind == "memory")
        found: dict[str, str | None] = {page: writer for each in always for page, writer in each.items()}
        if not pages:
            return found
        folder = f"{self.layout.memory}/writes"
        targets = {target for page in pages for target in (page.path, *write_log.targets(page))}
        self._sync.read(self.write_log, *self._index.seen((folder,)))
        writes = self._index.last_writes(targets)
        for problem in self._index.problems((folder,)):
            for line in itertools.islice(self.tree.scan(problem.path), max(0, problem.line - 1), problem.line):
                if target := _TARGET.search(line.data):  # the readable part of a damaged line
                    start = target[1].decode("utf-8", "replace")
                    found |= {page.path: None for page in pages if page.path.startswith(start)}
        return found | {target: str(entry.fields.get("writer") or "") for target, entry in writes.items()}

    def _memory_writer(self, page: Record) -> dict[str, str | None]:
        """Return the writer of this version of `MEMORY.md`; prompts need it, and do not wait for the index."""
        logs = reversed(write_log.logs(self.tree, self.layout.memory))
        lines = itertools.chain.from_iterable(map(self.tree.scan_back, logs))
        for entry in write_log.objects(itertools.islice(lines, _LOOK_BACK), page.path):
            if entry.get("path") == page.path:
                return {page.path: str(entry.get("writer") or "")} if entry.get("after") == page.version else {}
        return {page.path: None} if next(lines, None) else {}

    # logs

    def append(
        self, path: str, entries: Sequence[Mapping[str, Any]], *, op_id: str = "", time: str = "time", after: str = "",
        target: str = "", durable: bool = True, unless: Any = None, locked: Callable[[], None] = lambda: None,
    ) -> Appended:  # fmt: skip
        if not entries:
            return Appended([])
        known = self._sync.known(op_id, path, target) if op_id or target else _NOTHING
        about = target if "hide" in entries[0] else ""
        if op_id and (repeated := self._repeated(path, op_id, known.applied, about, len(entries))):
            return repeated
        if any(len(entries) > 1 and "exchange" not in applied.fields for applied in known.applied):
            raise other_use(op_id, Applied(path, ""))
        rendered = self._rendered(entries, time, op_id)
        done = Appended([])

        def compose(end: LogEnd) -> bytes:
            nonlocal done
            if unless is not None:
                if log.changed(self.tree, path, unless):
                    raise Changed
                locked()
            if op_id and len(before := log.ids_of_op(end, known.offset, op_id)) >= len(rendered):
                done = Appended(before[-len(rendered) :], repeated=True)
                return b""
            last = max(log.last_id(end), after, known.order)
            if target:
                last = max(last, log.newest_order(end, known.offset, target))
            done = Appended(mint_many(last, len(rendered)))
            return b"".join(map(jsonl.with_id, done.ids, rendered))

        self.tree.append(path, compose, durable=durable)
        self._sync.note(path)
        return done

    def append_decided(
        self, path: str, decide: Callable[[], tuple[Sequence[Mapping[str, Any]], str]], *, durable: bool = True,
        op_id: str = "",
    ) -> list[str]:  # fmt: skip
        ids: list[str] = []

        def compose(end: LogEnd) -> bytes:
            entries, after = decide()
            rendered = self._rendered(entries, "time", op_id)
            ids[:] = mint_many(max(log.last_id(end), after), len(rendered))
            return b"".join(map(jsonl.with_id, ids, rendered))

        if self.tree.append(path, compose, durable=durable):
            self._sync.note(path)
        return ids

    def _rendered(self, entries: Sequence[Mapping[str, Any]], time: str, op_id: str) -> list[bytes]:
        rendered = list(map(jsonl.render, self._completed(entries, time, op_id)))
        self._check_line(max(map(len, rendered), default=0))
        return rendered

    def read_on(self, path: str, cursor: Any) -> LogPart:
        return log.read_on(self.tree, path, cursor)

    def newest(self, path: str, problems: list[Problem] | None = None) -> Iterator[Record]:
        place = self.layout.classify(path)
        if place is None or not self.exists(path):
            return

        def question(index: SqliteIndex) -> tuple[dict[str, bool], set[str] | None]:
            # a merge may put a mark before its entry, and the lines of a pair far apart
            return index.hidden_in(path), index.alone_in(path) if self._has_read(index, path) else None

        marks, alone = self._sync.peek(question, path) or ({}, None)
        found = [] if problems is None else problems
        yield from log.newest_first(self.tree, place, marks, alone, self._sync.refresher.blob, found)

    def import_lines(self, path: str, lines: Sequence[bytes]) -> int:
        return self._importer.add(path, lines)

    def claim(self, path: str) -> bool:
        with self._claims_lock:
            if path not in self._claims and (release := self.tree.hold(path, self._claims_file)):
                self._claims[path] = release
            return path in self._claims

    def release(self, path: str) -> None:
        with self._claims_lock:
            claim = self._claims.pop(path, None)
        if claim:
            claim()

    def discard(self, path: str, unless: Callable[[], bool] = lambda: False, *, dead: bool = False) -> bool:
        gone = True

        def remove(_end: LogEnd) -> bytes:
            nonlocal gone
            release = self.tree.hold(path, self._claims_file) if dead else None
            try:
                gone = not (dead and release is None) and not unless()
                if gone:
                    for copy in list(log.copies(self.tree, path)):
                        self.tree.remove(copy)
                    with contextlib.suppress(NotFound):
                        self.tree.remove(path)
            finally:
                if release:
                    release()
            return b""

        if self.exists(path):
            self.tree.append(path, remove)
        return gone

    # records

    @asks
    def get(self, identifier: str) -> Record:
        identifier = self.resolve(identifier)
        path = path_of(identifier)
        place = self.layout.classify(path)
        if place is None or place.kind.shape == "line":
            if found := self._index.by_id(identifier):
                self._sync.read(*(record.path for record in found))
            else:
                self._sync.refresh_below(())
                if is_id(identifier):
                    self._sync.refresh_below(self.layout.below(FOREIGN, ""))
            if not (found := self._index.by_id(identifier)):
                raise unknown(identifier)
            if len(found) > 1:
                files = ", ".join(record.path for record in found)
                raise Invalid(f"{identifier} is in several logs: {files}.", "Merge them, or remove the copy.")
            return found[0]
        document = self.read(path)
        here = parsing.page(place, document).records
        record = next((record for record in here if record.id == identifier), None)
        if record is None:
            markdown.check_resolved(path, document.data)
            raise unknown(identifier)
        if not place.kind.write_once:
            return record
        self._sync.refresh_below((path.rpartition("/")[0],))  # its ledger is beside it
        return next(iter(self._index.by_id(path)), record)

    @asks
    def survey(self, where: Filter) -> tuple[list[Record], list[Problem]]:
        done, found = self._sync.ensure_current(where, searching=False), self._newest(where)
        wanted = where.kinds or where.searchable
        below = self.layout.below(wanted, where.scope, above=where.above)
        problems = [
            problem
            for problem in self._index.problems(below)
            if (place := self.layout.classify(problem.path)) and place.kind.name in wanted
        ]
        return found, once([*done.problems, *problems])

    @asks
    def every(self) -> list[Record]:
        self._sync.refresh_below(())
        self._sync.refresh_below(self.layout.below(FOREIGN, ""))
        paths = [path for path, seen in self._index.seen().items() if seen.kind not in (*NOT_RECORDS, "trace")]
        return [one for path in paths for one in self._index.records(path) if not one.fields.get("forgotten")]

    def by_key(self, path: str, key: str, *, history: bool = False) -> list[Record]:
        def question(index: SqliteIndex) -> list[Record] | None:
            return index.by_key(path, key, history=history) if self._has_read(index, path) else None

        if (found := self._sync.peek(question, path)) is not None:
            return found
        # a write must not wait for the index: find the entries in the log itself
        place, stamp = self.layout.classify(path), self.tree.stat(path)
        if place is None or stamp is None:
            return []
        seen, parts = Seen(kind=place.kind.name, stamp=stamp, looked=0), (msgspec.json.encode(key), b"\\", b'"hide"')
        scratch = SqliteIndex("", "scratch", self.settings.search)
        with contextlib.closing(scratch), scratch.writing() as db:
            for number, line in enumerate((line for line in self.tree.scan(path) if not line.veiled), 1):
                if any(part in line.data for part in parts):  # the key, perhaps escaped, or a mark that names an id
                    rows.add(db, path, seen, parsing.lines(place, [line], number, self._sync.refresher.blob))
            return scratch.by_key(path, key, history=history)

    def _has_read(self, index: SqliteIndex, path: str) -> bool:
        seen, stamp = index.look(path), self.tree.stat(path)
        return seen.offset == stamp.size if seen and stamp else stamp is None

    @asks
    def beside(self, path: str, order: str, limit: int, *, after: bool) -> list[Record]:
        return self._index.beside(path, order, limit, after=after)

    @asks
    def count(self, path: str, after: str = "") -> int:
        self._sync.read(path)
        return self._index.count(path, after)

    @asks
    def problems(self, *paths: str) -> list[Problem]:
        self._sync.read(*paths)
        return [problem for problem in self._index.problems(paths) if not problem.minor and problem.path in paths]

    # recall

    def search(self, query: Query, terms: Terms, where: Filter, use: Callable[[Candidates], T], *, plain: bool) -> T:
        reports: list[Problem] = []

        def work() -> T:
            now = iso(now_ms())  # changes that come while the files are checked may be missing
            done = self._sync.ensure_current(where, searching=not terms.empty)
            while self._reports:
                reports.append(self._reports.pop())
            damaged = self._index.problem_count()
            problems = [*done.problems, *reports, *(self._index.conflicts() if damaged else ())]
            found = self._candidates(
                query, terms, where, plain, as_of=done.as_of or now, behind=done.behind, problems=problems,
                damaged=damaged,
            )  # fmt: skip
            return use(found)

        return self._sync.run(work)

    @asks
    def _newest(self, where: Filter, limit: int = -1) -> list[Record]:
        return self._index.newest(where, limit)

    def _best(self, terms: Terms, where: Filter, limit: int) -> list[tuple[Record, float]]:
        return self._index.best(terms, where, limit)

    def _pools(self, terms: Terms, where: Filter, query: Query, most: int) -> tuple[list[Pool], Near, Load]:
        found, vectors = None, self._meaning() if query.associate and self._model.get() else None
        if vectors:
            found = vectors.pools(self._index, query, terms, where, most)
            if self._watching:
                vectors.fill(self._index)
        pools, near = found or (self._index.pools(terms, where, most), Near())
        return pools, near, self._load

    @asks
    def _load(self, rows: list[int]) -> Mapping[int, Record]:
        return self._index.load(rows)

    @asks
    def _related(self, own: Mapping[str, Sequence[Record]], where: Filter, limit: int) -> dict[str, list[Tied]]:
        return self._index.related(own, where, limit)

    def matches(self, terms: Terms, where: Filter, limit: int, path: str) -> list[Record]:
        found = self._sync.peek(lambda index: index.best(terms, where, limit, rarest=_RAREST), path)
        return [record for record, _ in found or ()]

    @asks
    def related(self, identifier: str, where: Filter, limit: int) -> list[Tied]:
        self._sync.ensure_current(where, searching=True)
        own = [one for one in self._index.by_id(identifier) if not one.superseded]
        return self._related({identifier: own}, where, limit)[identifier]

    def embed(self, progress: Progress | None = None) -> Embedded:
        self.refresh()
        if self._model.get() is None:
            raise self._model.unavailable()
        return self._sync.run(lambda: self._meaning().embed(self._index, progress))

    @asks
    def embedded(self) -> Embedded:
        self.refresh()
        if self._model.get() is None:
            return Embedded("", problem=self._model.problem)
        return self._meaning().status(self._index)

    def _meaning(self) -> Vectors:
        with self._claims_lock:
            if self._vectors is None:
                from holdfast.storage.files.vectors import Vectors  # imports numpy

                self._vectors = Vectors(self._model, in_background=self._watching)
            return self._vectors

    # care

    def refresh(self, *, rebuild: bool = False, progress: Progress | None = None) -> Refreshed:
        if not rebuild:
            return self._refresh(progress=progress)
        try:
            return self._sync.rebuild(progress)
        except Unusable as error:
            raise Unavailable(
                f"The index cannot be rebuilt: {error}.", "Use a writable folder, or a login that can write."
            ) from None

    @asks
    def _refresh(self, *, progress: Progress | None = None) -> Refreshed:
        done = self._sync.refresh_below((), progress)
        done.problems = once([*done.problems, *self._index.problems(), *self._sync.refresher.torn(self._index)])
        return done

    @asks
    def verify(self, progress: Progress | None = None) -> Report:
        begun = time_ns()
        self.refresh()
        if outside := [path for path in self._index.seen() if not self.layout.watched(path)]:
            self._sync.refresh_below(tuple(outside))
        try:
            with contextlib.closing(SqliteIndex("", "scratch", self.settings.search)) as scratch:
                report = refresh.verify(self._sync.refresher, self._index, scratch, begun, progress)
        except Stale as error:
            report = Report(differences=[Problem(".holdfast", str(error))])
        report.damage += self._sync.vanished()
        return report

    @asks
    def lost(self) -> dict[str, list[str]]:
        self.refresh()
        return refresh.lost(self._index)

    @asks
    def stats(self) -> dict[str, Any]:
        done, seen, counts = Refreshed(), self._index.seen(self.layout.roots), self._index.counts()
        stamps = self._sync.refresher.walk(done)
        changed = [path for path, stamp in stamps.items() if path not in seen or seen[path].stamp != stamp]
        vanished = self._sync.vanished()
        problems = [*done.problems, *vanished, *self._index.problems()]
        return {
            "records": sum(counts.values()),
            "kinds": counts,
            "files": len(stamps),
            "bytes": sum(stamp.size for stamp in stamps.values()),
            "index_bytes": self._index.size(),
            "behind": len(changed) + len(seen.keys() - stamps.keys()),
            "problems": len(once(problems)),
            "vanished": [str(problem) for problem in vanished],
            **({"words_alone": self.words_alone} if self.words_alone else {}),
        }

    @property
    def waiting(self) -> int:
        return self._sync.waiting

    @asks
    def watch(self) -> None:
        if self.folder:
            self._sync.watch(self.folder)
            self._watching = True

    def purge(self) -> None:
        self._sync.rebuild(None)
        self._index.purge()

    @asks
    def follow(self) -> FileFeed:
        return FileFeed(self.folder, self._sync.refresher, lambda: self._sync.refresh_below(()), self._index)
