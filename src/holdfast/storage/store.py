"""`Store`: the documents, logs and records of one memory. Everything above the storage package uses this class.

A document is written whole from the version it was made from. A log only grows; its entries get time-ordered ids.
Success is returned after the change is durable. An engine implements the abstract methods; documents and the write log
are the same for all of them. `tests/contract/test_store.py` is the contract.

The write log (`writes/YYYY-MM.jsonl`) records each document write with the versions before and after. With an op_id
the intent is made durable there first, so that a repeated op_id is recognised whatever happened in between. A log
entry carries its op_id itself.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from holdfast.errors import AlreadyExists, Conflict, Damaged, HoldfastError, Invalid, NotFound, OverBudget, Unavailable
from holdfast.formats import jsonl, markdown
from holdfast.model.kinds import KINDS, Layout, Place
from holdfast.model.patterns import regex
from holdfast.model.queries import Query, Terms
from holdfast.model.records import Problem, Receipt, Record, Scope, version_of
from holdfast.model.settings import Settings
from holdfast.model.times import is_id, utc_now
from holdfast.recall.answers import Candidates, Hit
from holdfast.recall.embedders import Embedded, EmbeddingModel, NoVectors
from holdfast.recall.ranking import Near
from holdfast.storage import parsing, write_log
from holdfast.storage.log import LogPart, attempts
from holdfast.storage.results import Filter, Pool, Progress, Refreshed, Report, Tied
from holdfast.storage.tree import ABSENT, Document, Tree, changed

ANY = "any"
"""Replace any version."""
What = Literal["added", "changed", "removed", "hidden", "restored"]
T = TypeVar("T")
Load = Callable[[list[int]], Mapping[int, Record]]
_AT_LINE = regex(r"(.+\.(?:md|jsonl)):([0-9]{1,9})\Z")
_WRITER: ContextVar[str] = ContextVar("writer", default="")


class Made(msgspec.Struct, frozen=True):
    """A document as it will be written, and the record in it that the write is about."""

    data: bytes
    id: str
    version: str


class Appended(msgspec.Struct, frozen=True):
    """The ids of appended entries; `repeated` when the op_id had added them before."""

    ids: list[str]
    repeated: bool = False


class Applied(msgspec.Struct, frozen=True):
    """An entry written under an op_id: a record, or a mark (then `id` is its target)."""

    path: str
    id: str
    fields: Mapping[str, Any] = {}
    marks: bool = False


class Event(msgspec.Struct, frozen=True):
    """A change of a record, or of a whole file in which no record is known."""

    what: What
    path: str
    id: str = ""
    kind: str = ""
    scope: str = ""
    record: Record | None = None
    """None if unknown."""

    @staticmethod
    def of(what: What, record: Record) -> Event:
        return Event(what, record.path, record.id, record.kind, record.scope.path, record)

    @staticmethod
    def at(what: What, place: Place, identifier: str = "") -> Event:
        """Return the change of a file, or of a record of which only the id is known."""
        ledger = identifier and place.kind.name == "ledger"  # its entries are about the states beside it
        return Event(what, place.path, identifier, "state" if ledger else place.kind.name, place.scope.path)


class Feed(Protocol):
    """The changes of a memory since the feed was opened. A change may come late or twice; none is lost."""

    def events(self, timeout: float) -> list[Event]:
        """Return the changes since the last call; wait for them at most so many seconds, [] if there was no change."""

    def close(self) -> None:
        """End the feed, also for a thread that waits for events."""


class Store(abc.ABC):
    """One memory. `writer` is recorded beside every write. Safe to use from several threads."""

    tree: Tree
    """The files of the memory, as an export would write them."""
    folder: str
    """The folder of the memory; "" when it is not in a folder."""
    address: str
    """The address that opens the same memory; never contains a password."""
    reads_only: bool
    """Is writing not allowed, not even derived data?"""

    def __init__(
        self, layout: Layout, settings: Settings, writer: str = "", no_vectors: NoVectors | None = None
    ) -> None:
        self.layout = layout
        self.settings = settings
        self._default_writer = writer
        self._model = EmbeddingModel(settings.search.embedder if settings.search.meaning else "none", no_vectors)

    @abc.abstractmethod
    def clock(self) -> int:
        """Return the time for leases in milliseconds, by one clock for all programs that use the memory."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close everything; derived data is updated if that is quick."""

    @abc.abstractmethod
    def within(self, scope: str) -> Store:
        """Return the store of one scope: nothing outside of it can be found, named or written. Close it first."""

    @property
    def writer(self) -> str:
        """The writer to record. The interface sets it, not the caller."""
        return _WRITER.get() or self._default_writer

    @contextlib.contextmanager
    def written_by(self, writer: str) -> Iterator[None]:
        """Record another writer in this thread, for an interface that serves several."""
        token = _WRITER.set(writer)
        try:
            yield
        finally:
            _WRITER.reset(token)

    # documents

    def read(self, path: str) -> Document:
        """Return a document; NotFound, or OverBudget when it is larger than the settings allow."""
        return self.tree.read(path, self.settings.limits.document_bytes)

    def exists(self, path: str) -> bool:
        return self.tree.stat(path) is not None

    def paths(self, folder: str, suffix: str = "") -> list[str]:
        """Return all files below a folder, sorted; Unavailable when a part of it cannot be read."""

        def unreadable(path: str, why: str) -> None:
            raise Unavailable(f"{path}: {why}.", "Check its permissions.")

        return sorted(path for path, _ in self.tree.walk(folder, (suffix,), unreadable))

    def write(self, path: str, data: bytes, *, expect: str, op_id: str = "") -> Receipt:
        """Write a whole document made from version `expect`; ABSENT creates, ANY replaces any version."""
        made = Made(data, path, version_of(data))
        return self.update(path, lambda _: made, expect=expect, op_id=op_id, status="changed" if expect else "stored")

    def update(
        self, path: str, make: Callable[[bytes | None], Made], *, expect: str, op_id: str = "", status: str = "changed",
        keep: bool = True, note: Mapping[str, Any] = {},
    ) -> Receipt:  # fmt: skip
        """Write the document that `make` returns for the current one.

        `expect` is the version it must have, ABSENT for a new one, or ANY: then a concurrent change causes a retry.
        With `keep` the replaced text stays in the history. `note` is added to the line in the write log.
        """
        for _ in attempts(path):
            before, current = (ABSENT, None) if expect == ABSENT else self._now(path)
            try:
                markdown.check_resolved(path, current or b"")
                if expect not in (ABSENT, ANY, before):
                    raise changed(path, expect)
                made = make(current)
                self._check_marks(path, made.data)
                self.check_size(path, made.data)
            except HoldfastError:
                if repeated := self.applied(op_id, path):
                    return repeated
                raise
            entry: dict[str, Any] = {"path": path, "before": before, "after": made.version, **note}
            if made.id != path:
                entry |= {"after": version_of(made.data), "record": made.id, "version": made.version}
            if made.data == current:
                if repeated := self.applied(op_id, path):
                    return repeated
                if op_id:  # the op_id must have no effect later either
                    self.log_write(entry, op_id)
                return Receipt("unchanged", made.id, path, made.version)
            try:
                self._replace(path, made.data, before, entry, op_id, keep=keep)
            except (Conflict, AlreadyExists):
                if repeated := self.applied(op_id, path):
                    return repeated
                if expect != ANY:
                    raise
                continue
            return Receipt(status, made.id, path, made.version)
        raise AssertionError("attempts() ends in an error")

    def remove(
        self, path: str, *, expect: str, op_id: str = "", keep: bool = True, note: Mapping[str, Any] = {}
    ) -> None:
        """Remove a document of this version; with `keep` its text stays in the history."""
        if keep:
            markdown.check_resolved(path, self._now(path)[1] or b"")
        self._replace(path, None, expect, {"path": path, "before": expect, **note}, op_id, keep=keep)

    @abc.abstractmethod
    def _replace(
        self, path: str, data: bytes | None, before: str, entry: Mapping[str, Any], op_id: str, *, keep: bool
    ) -> None:
        """Write a document over this version, or remove it (None), and add `entry` to the write log.

        Conflict or AlreadyExists when the document has another version, or when the op_id was used before.
        """

    def kept(self, version: str) -> str:
        """Return the path of the text of an earlier version."""
        return write_log.kept_path(self.layout.memory, version)

    def kept_text(self, version: str) -> bytes:
        """Return the text of an earlier version; NotFound if it is not stored, Damaged if it was changed since."""
        found = None
        with contextlib.suppress(NotFound):
            found = self.tree.read(self.kept(version))
        if found is None or (not found.data and found.version != version):  # an empty copy is unfinished
            why = "Entries were only added to it, or it was forgotten or removed by hand."
            raise NotFound(f"The text of version {version[:8]} is not stored.", why)
        if found.version != version:
            raise Damaged(f"{self.kept(version)} {write_log.CHANGED}; it is not used.", "Run: holdfast verify")
        return found.data

    def check_size(self, path: str, data: bytes) -> None:
        if len(data) > (most := self.settings.limits.document_bytes):
            raise OverBudget(f"{path} would have {len(data):,} bytes; the limit is {most:,}.", "Split it.")

    def _check_marks(self, path: str, data: bytes) -> None:
        """Refuse a text that would be read as a git conflict."""
        place = self.layout.classify(path)
        if place and not place.kind.write_once and (line := markdown.conflict_in(data)):
            raise Invalid(f"Line {line} begins what looks like a merge conflict.", "Put it into a code block: ```")

    def _now(self, path: str) -> tuple[str, bytes | None]:
        try:
            document = self.read(path)
        except NotFound:
            return ABSENT, None
        return document.version, document.data

    # the write log

    @property
    def write_log(self) -> str:
        """The path of the write log of this month."""
        return self.layout.path_for(KINDS["write"], Scope(), month=utc_now()[:7])

    def log_write(self, entry: Mapping[str, Any], op_id: str = "") -> None:
        """Add a line to the write log; durable when it announces an intent."""
        line = {name: value for name, value in entry.items() if value}
        self.append(self.write_log, [line | ({"op": op_id} if op_id else {})], durable="intent" in entry)

    def applied(self, op_id: str, path: str) -> Receipt | None:
        """Return the receipt of the earlier write of an op_id to a document, None without one.

        A write took place if it was logged, or if the document got the announced version.
        """
        if not op_id:
            return None
        for applied in self._applied(op_id):
            line = applied.fields
            if line.get("path") != path:
                raise other_use(op_id, applied)
            after = str(line.get("after") or ABSENT)
            if "intent" in line and self._now(path)[0] != after:
                writes = write_log.about(self.tree, self.layout.memory, path)
                later = itertools.takewhile(lambda one: str(one.get("id", "")) > applied.id, writes)  # noqa: B023  # used at once
                if not any(one.get("before") == after for one in later):
                    continue  # announced, and never written
            return Receipt("repeated", str(line.get("record") or path), path, str(line.get("version") or after))
        return None

    def done_in(self, path: str, op_id: str, target: str) -> bool:
        """Did this op_id hide or show this target before? Conflict when it did something else."""
        applied = self._applied(op_id, path)
        if any(one.path != path or one.id != target for one in applied):
            raise other_use(op_id, applied[0])
        return bool(applied)

    def knows_op(self, op_id: str) -> bool:
        """Was this op_id used before?"""
        return bool(op_id) and bool(self._applied(op_id))

    @abc.abstractmethod
    def _applied(self, op_id: str, path: str = "") -> list[Applied]:
        """Return the effects of an op_id in the logs of the memory, and in this log, which may be elsewhere."""

    @abc.abstractmethod
    def writers(self, records: Sequence[Record]) -> dict[str, str | None]:
        """Return the last writers of these pages by id or else by path: None if unknown; no entry if edited by hand."""

    # logs

    @abc.abstractmethod
    def append(
        self, path: str, entries: Sequence[Mapping[str, Any]], *, op_id: str = "", time: str = "time", after: str = "",
        target: str = "", durable: bool = True, unless: Any = None, locked: Callable[[], None] = lambda: None,
    ) -> Appended:  # fmt: skip
        """Append entries in one piece and return their ids.

        An id is greater than that of the last entry, than `after`, and than those of all entries about `target` (a key
        or an id). An op_id has effect once. `unless` is a cursor: Changed when the log has changed since; then `locked`
        is called while the log is locked. `time` is the field for when.
        """

    @abc.abstractmethod
    def append_decided(
        self, path: str, decide: Callable[[], tuple[Sequence[Mapping[str, Any]], str]], *, durable: bool = True,
        op_id: str = "",
    ) -> list[str]:  # fmt: skip
        """Append the entries that `decide` returns while the log is locked, with ids after the one it returns."""

    @abc.abstractmethod
    def read_on(self, path: str, cursor: Any) -> LogPart:
        """Return the entries of a log after a cursor; all of them with None, or when the log before it changed."""

    @abc.abstractmethod
    def newest(self, path: str, problems: list[Problem] | None = None) -> Iterator[Record]:
        """Yield the records of a path from its end, without hidden ones; add unreadable lines to `problems`."""

    @abc.abstractmethod
    def import_lines(self, path: str, lines: Sequence[bytes]) -> int:
        """Add the lines whose ids a log does not have, all of them or none, durably; return how many."""

    def import_entries(self, path: str, entries: Iterable[Mapping[str, Any]]) -> int:
        """Add the entries, with ids of their own, that a log does not have; return how many."""
        rendered: dict[str, bytes] = {}
        for entry in entries:
            if not is_id(entry.get("id")):
                fault = f"An imported entry has the id {entry.get('id')!r}."
                raise Invalid(fault, "Derive its id from its source.")
            rendered[entry["id"]] = jsonl.render(entry)[:-1]
        return self.import_lines(path, list(rendered.values()))

    def missing(self, path: str, ids: set[str]) -> int:
        """Return how many of these ids a log does not have."""
        if not self.exists(path):
            return len(ids)
        return len(ids.difference(key for line in self.tree.scan(path) for key in jsonl.keys(line.data)))

    @abc.abstractmethod
    def claim(self, path: str) -> bool:
        """Mark a log as used by this process until it is released or the process ends; False when another one uses it.

        Call it while the log is locked. It prevents no writes, and a second call has no effect.
        """

    @abc.abstractmethod
    def release(self, path: str) -> None:
        """End the claim of this process on a log, if it has one."""

    @abc.abstractmethod
    def discard(self, path: str, unless: Callable[[], bool] = lambda: False, *, dead: bool = False) -> bool:
        """Remove a log and the copies of its damaged state while it is locked; return whether it is gone.

        It stays if `unless`, called while the log is locked, returns True; with `dead` also if a live process has
        claimed it.
        """

    def _completed(self, entries: Sequence[Mapping[str, Any]], time: str, op_id: str) -> list[dict[str, Any]]:
        """Return new entries with their time, their op_id and their writer."""
        now, more = utc_now(), {"op": op_id} if op_id else {}
        if writer := self.writer:
            more["writer"] = writer
        return [{time: now, **entry, **more} for entry in entries]

    def _check_line(self, size: int) -> None:
        if size > (most := self.settings.limits.line_bytes) - 100:  # the id is added
            raise OverBudget(f"The line would have {size:,} bytes; the limit is {most:,}.", "Shorten its fields.")

    def _repeated(self, path: str, op_id: str, before: Sequence[Applied], target: str, count: int) -> Appended | None:
        """Return the entries that an op_id added to a log, None if some are missing; Conflict for another effect.

        `target` is the record that the entry hides or shows, if any.
        """
        for one in before:
            if one.path != path or (one.id != target if target else one.marks):
                raise other_use(op_id, one)
        return Appended([one.id for one in before][-count:], repeated=True) if len(before) >= count else None

    # records

    @abc.abstractmethod
    def get(self, identifier: str) -> Record:
        """Return one record as it is stored now: by its id, or as `path:line`, as a search shows it."""

    def resolve(self, identifier: str) -> str:
        """Return the id of the record at `path:line`, as a search shows it; any other id as it is."""
        at = _AT_LINE.match(identifier)
        place = self.layout.classify(at[1]) if at else None
        if at is None or place is None:
            return identifier
        if place.kind.shape == "line":
            found = parsing.lines(place, self.tree.scan(place.path), 1, lambda _ref: "").records
        else:
            found = parsing.page(place, self.read(place.path)).records
        before = [record for record in found if record.line <= int(at[2])]
        if not before:
            raise unknown(identifier)
        return max(before, key=lambda record: record.line).id

    @abc.abstractmethod
    def survey(self, where: Filter) -> tuple[list[Record], list[Problem]]:
        """Return all records that pass a filter, newest first, and the problems in their files."""

    @abc.abstractmethod
    def every(self) -> list[Record]:
        """Return all records, also old values, hidden ones and imports, but no traces and no forgotten ones."""

    @abc.abstractmethod
    def by_key(self, path: str, key: str, *, history: bool = False) -> list[Record]:
        """Return the current entry of a key, or all of its entries, oldest first."""

    @abc.abstractmethod
    def beside(self, path: str, order: str, limit: int, *, after: bool) -> list[Record]:
        """Return the records of a log before or after a place in its order, nearest first."""

    @abc.abstractmethod
    def count(self, path: str, after: str = "") -> int:
        """Count the current records of a log with an order greater than `after`."""

    @abc.abstractmethod
    def problems(self, *paths: str) -> list[Problem]:
        """Return the problems in these files."""

    # recall

    @abc.abstractmethod
    def search(self, query: Query, terms: Terms, where: Filter, use: Callable[[Candidates], T], *, plain: bool) -> T:
        """Find the candidates for a query and return `use(candidates)`, all on the same state of the memory.

        `terms` are those of the query's text. A plain search needs no ranking: its answers are in their order.
        """

    def _candidates(self, query: Query, terms: Terms, where: Filter, plain: bool, **state: Any) -> Candidates:
        """Find the candidates for a query in the current state of the memory."""

        def get(identifier: str) -> Record | None:
            with contextlib.suppress(HoldfastError):
                return self.get(identifier)
            return None

        def related(found: list[Hit]) -> list[list[Tied]]:
            around = msgspec.structs.replace(where, tags=(), since="", until="")
            ties = self._related({one.record.id: [one.record] for one in found}, around, query.related)
            return [ties[one.record.id] for one in found]

        hits, pools, near = list[Hit](), list[Pool](), Near()
        load: Load = lambda _rows: {}  # noqa: E731
        if terms.empty:
            hits = [Hit(one) for one in self._newest(where, query.limit)]
        elif plain:
            hits = [Hit(*match) for match in self._best(terms, where, query.limit)]
        else:
            candidates = self.settings.search.candidates
            most = max(candidates if query.associate else candidates // 4, 2 * query.limit)
            pools, near, load = self._pools(terms, where, query, most)
            if terms.phrases and query.associate and not any(pool.candidates for pool in pools):
                pools, near, load = self._pools(terms.loose, where, query, most)  # not word for word
        return Candidates(pools, near, hits, where, load, related, get=get, **state)

    @abc.abstractmethod
    def _newest(self, where: Filter, limit: int = -1) -> list[Record]:
        """Return the newest records that pass a filter, all of them by default."""

    @abc.abstractmethod
    def _best(self, terms: Terms, where: Filter, limit: int) -> list[tuple[Record, float]]:
        """Return the records that match the words best, by words alone, with their scores."""

    @abc.abstractmethod
    def _pools(self, terms: Terms, where: Filter, query: Query, most: int) -> tuple[list[Pool], Near, Load]:
        """Return candidates to rank, at most so many by words, their similarity, and how to load their records."""

    @abc.abstractmethod
    def _related(self, own: Mapping[str, Sequence[Record]], where: Filter, limit: int) -> dict[str, list[Tied]]:
        """Return the records related to each id, by its own records; without one, it is a name."""

    @abc.abstractmethod
    def matches(self, terms: Terms, where: Filter, limit: int, path: str) -> list[Record]:
        """Return the records that match some words best, this file included; [] if derived data is not ready."""

    def passes(self, where: Filter) -> bool:
        """Does any record pass a filter?"""
        return bool(self._newest(where, 1))

    @abc.abstractmethod
    def related(self, identifier: str, where: Filter, limit: int) -> list[Tied]:
        """Return the records related to an id, or to a name when no record has it as its id."""

    @property
    def embedder(self) -> str:
        """The embedder in use, "" when records are found by words alone."""
        return self._model.embedder

    @property
    def words_alone(self) -> str:
        """Why the installed embedder is not used, and the next step; "" when it is used or none is installed."""
        return self._model.problem

    @abc.abstractmethod
    def embed(self, progress: Progress | None = None) -> Embedded:
        """Make the missing vectors; Unavailable without an embedder."""

    @abc.abstractmethod
    def embedded(self) -> Embedded:
        """Return the state of the vectors, and their model."""

    # care

    @abc.abstractmethod
    def refresh(self, *, rebuild: bool = False, progress: Progress | None = None) -> Refreshed:
        """Bring derived data up to date; `rebuild` makes it from scratch."""

    @abc.abstractmethod
    def verify(self, progress: Progress | None = None) -> Report:
        """Check that derived data matches its source, and report damage."""

    def lost(self) -> dict[str, list[str]]:
        """Return by log the ids of entries that an outside change removed; a database has none."""
        return {}

    @abc.abstractmethod
    def stats(self) -> dict[str, Any]:
        """Return counts and sizes, and how far derived data is behind."""

    @property
    @abc.abstractmethod
    def waiting(self) -> int:
        """How many changed files are not indexed yet."""

    @abc.abstractmethod
    def watch(self) -> None:
        """Watch for changes, so that a search need not check every file."""

    @abc.abstractmethod
    def purge(self) -> None:
        """Recreate derived data, so that no byte of forgotten text remains in it."""

    @abc.abstractmethod
    def follow(self) -> Feed:
        """Open a feed of the changes from now on."""


def unknown(identifier: str) -> NotFound:
    return NotFound(f"There is no record {identifier!r}.", "Use search to find its id.")


def used(op_id: str) -> Conflict:
    return Conflict(f"The op_id {op_id} was used before.", "Use a new one.")


def other_use(op_id: str, applied: Applied) -> Conflict:
    where = str(applied.fields.get("path") or applied.path)
    return Conflict(
        f'The op_id "{op_id}" was used for {where} before; nothing was written.', "Use a new op_id for a new write."
    )
