"""`Store`: the documents and logs of one memory, and an index of the records in them.

Everything above speaks to a memory through this: paths and documents, logs and entries, records. Where they are kept
is the engine's business. A document is written whole from the version it was made from. A log only grows; its entries
get time-ordered ids. Success is returned after the change is durable; the index follows on the next read.

The write log (`writes/YYYY-MM.jsonl`) records each document write with the versions before and after. With an op_id
the intent is made durable there first, so that a repeated op_id is recognised whatever happened in between. A log
entry carries its op_id itself.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import msgspec

from holdfast.errors import AlreadyExists, Conflict, HoldfastError, Invalid, NotFound, OverBudget, Unavailable
from holdfast.formats import jsonl
from holdfast.model.kinds import FOREIGN, KINDS
from holdfast.model.layout import Layout
from holdfast.model.records import Problem, Receipt, Record, path_of, version_of
from holdfast.model.scopes import Scope
from holdfast.model.settings import Settings
from holdfast.model.times import is_id, mint_many, utc_now
from holdfast.storage import log, parsing, write_log
from holdfast.storage.engine import Engine
from holdfast.storage.index import Filter, Index, Known
from holdfast.storage.index_sync import IndexSync
from holdfast.storage.log import Changed, Cursor, attempts
from holdfast.storage.refresh import Refreshed
from holdfast.storage.tree import ABSENT, Document, LogEnd

ANY = "any"
"""Write over whatever version is there."""
_NOTHING = Known()
_AT_LINE = re.compile(r"(.+\.(?:md|jsonl)):([0-9]{1,9})\Z")
Answer = TypeVar("Answer")
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


class Store:
    """One memory on one engine. `writer` is recorded beside every write."""

    def __init__(self, engine: Engine, layout: Layout, settings: Settings, writer: str = "") -> None:
        self.tree = engine.tree
        self.sync = IndexSync(engine, layout, settings)
        self.changed = self.sync.note
        self._layout = layout
        self._limits = settings.limits
        self._default_writer = writer

    def close(self) -> None:
        """Index what was written here, and close everything."""
        self.sync.close()
        self.tree.close()

    @property
    def writer(self) -> str:
        """Who is recorded as the writer, as the interface knows it; callers cannot choose it."""
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
        return self.tree.read(path, self._limits.document_bytes)

    def exists(self, path: str) -> bool:
        return self.tree.stat(path) is not None

    def paths(self, folder: str, suffix: str = "") -> list[str]:
        """Return all files below a folder, sorted; Unavailable when a part of it cannot be read."""

        def unreadable(path: str, why: str) -> None:
            raise Unavailable(f"{path}: {why}.", "Check its permissions.")

        return sorted(path for path, _ in self.tree.walk(folder, (suffix,), unreadable))

    def write(self, path: str, data: bytes, *, expect: str, op_id: str = "") -> Receipt:
        """Write a whole document made from version `expect`; ABSENT creates, ANY replaces whatever is there."""
        made = Made(data, path, version_of(data))
        return self.update(path, lambda _: made, expect=expect, op_id=op_id, status="changed" if expect else "stored")

    def update(
        self, path: str, make: Callable[[bytes | None], Made], *, expect: str, op_id: str = "", status: str = "changed",
        keep: bool = True, note: Mapping[str, Any] = {},
    ) -> Receipt:  # fmt: skip
        """Write the document that `make` returns for the current one.

        `expect` is the version it must have, ABSENT for a new one, or ANY: then a concurrent change means another try.
        With `keep` the replaced text stays in the history. `note` is added to the line in the write log.
        """
        for _ in attempts(path):
            before, current = (ABSENT, None) if expect == ABSENT else self._now(path)
            if repeated := self.applied(op_id, path):
                return repeated
            if expect not in (ABSENT, ANY) and before != expect:
                raise Conflict(
                    f"{path} was changed since version {expect[:8]}; nothing was written.",
                    "Read it again and redo the edit.",
                )
            made = make(current)
            entry: dict[str, Any] = {"path": path, "before": before, "after": made.version, **note}
            if made.id != path:
                entry |= {"after": version_of(made.data), "record": made.id, "version": made.version}
            if made.data == current:
                if op_id:  # the op_id must not have an effect later either
                    self.log_write(entry, op_id)
                return Receipt("unchanged", made.id, path, made.version)
            self.check_size(path, made.data)
            if op_id:
                self.log_write(entry | {"intent": True}, op_id)
            try:
                self.tree.write(path, made.data, expect=before, keep=self.kept(before) if before and keep else "")
            except (Conflict, AlreadyExists):
                if repeated := self.applied(op_id, path):
                    return repeated
                if expect != ANY:
                    raise
                continue
            with contextlib.suppress(HoldfastError):  # the document is durable; a missing line must not fail the write
                self.log_write(entry, op_id)
            self.changed(path)
            return Receipt(status, made.id, path, made.version)
        raise AssertionError("attempts() ends in an error")

    def remove(
        self, path: str, *, expect: str, op_id: str = "", keep: bool = True, note: Mapping[str, Any] = {}
    ) -> None:
        """Remove a document of this version; with `keep` its text stays in the history."""
        entry = {"path": path, "before": expect, **note}
        if op_id:
            self.log_write(entry | {"intent": True}, op_id)
        self.tree.remove(path, expect=expect, keep=self.kept(expect) if keep else "")
        self.changed(path)
        try:
            self.log_write(entry, op_id)
        except HoldfastError:
            if not keep:  # erasing for good must be on record
                raise

    def kept(self, version: str) -> str:
        """Return the path under which the text of an earlier version is kept."""
        return write_log.kept_path(self._layout.memory, version)

    def check_size(self, path: str, data: bytes) -> None:
        if len(data) > self._limits.document_bytes:
            raise OverBudget(
                f"{path} would have {len(data):,} bytes; the limit is {self._limits.document_bytes:,}.", "Split it."
            )

    def _now(self, path: str) -> tuple[str, bytes | None]:
        try:
            document = self.read(path)
        except NotFound:
            return ABSENT, None
        return document.version, document.data

    # the write log

    def log_write(self, entry: Mapping[str, Any], op_id: str = "") -> None:
        """Add a line to the write log; durable when it announces an intent."""
        path = self._layout.path_for(KINDS["write"], Scope(), month=utc_now()[:7])
        line = {name: value for name, value in entry.items() if value}
        self.append(path, [line | ({"op": op_id} if op_id else {})], durable="intent" in entry)

    def applied(self, op_id: str, path: str) -> Receipt | None:
        """Return the receipt of what an op_id did to a document before, None when it did nothing.

        It did if its write was logged, or if the document got the announced version.
        """
        if not op_id:
            return None
        for applied in self.sync.known(op_id, "", "").applied:
            line = applied.fields
            if line.get("path") != path:
                raise _other_use(op_id, str(line.get("path") or applied.path))
            after = str(line.get("after") or ABSENT)
            if "intent" in line and self._now(path)[0] != after:
                writes = write_log.about(self.tree, self._layout.memory, path)
                since = functools.partial(_is_after, applied.id)
                if not any(one.get("before") == after for one in itertools.takewhile(since, writes)):
                    continue  # announced, and never written
            return Receipt("repeated", str(line.get("record") or path), path, str(line.get("version") or after))
        return None

    # logs

    def done_in(self, path: str, op_id: str, target: str) -> bool:
        """Did this op_id hide or show this target before? Conflict when it did something else."""
        applied = self.sync.known(op_id, path, "").applied
        if any(one.path != path or one.id != target for one in applied):
            raise _other_use(op_id, str(applied[0].fields.get("path") or applied[0].path))
        return bool(applied)

    def append(
        self, path: str, entries: Sequence[Mapping[str, Any]], *, op_id: str = "", time: str = "time", after: str = "",
        target: str = "", durable: bool = True, unless: Cursor | None = None,
        locked: Callable[[], None] = lambda: None,
    ) -> Appended:  # fmt: skip
        """Append entries in one piece and return their ids.

        An id is greater than that of the last entry, than `after`, and than those of all entries about `target` (a key
        or an id). An op_id has effect once. `unless` is a cursor: Changed when the log has changed since; then `locked`
        is called while the log is locked. `time` is the field for when.
        """
        if not entries:
            return Appended([])
        known = self.sync.known(op_id, path, target) if op_id or target else _NOTHING
        about = target if "hide" in entries[0] else ""
        for applied in known.applied:
            if applied.path != path or (applied.id != about if about else applied.marks):
                raise _other_use(op_id, str(applied.fields.get("path") or applied.path))
        if len(known.applied) >= len(entries):
            return Appended([applied.id for applied in known.applied][-len(entries) :], repeated=True)
        if any(len(entries) > 1 and "exchange" not in applied.fields for applied in known.applied):
            raise _other_use(op_id, path)
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

        self.tree.append(path, compose, durable=durable, again=unless is None)
        self.changed(path)
        return done

    def append_decided(
        self, path: str, decide: Callable[[], tuple[Sequence[Mapping[str, Any]], str]], *, durable: bool = True
    ) -> list[str]:
        """Append the entries that `decide` returns while the log is locked, with ids after the one it returns."""
        ids: list[str] = []

        def compose(end: LogEnd) -> bytes:
            entries, after = decide()
            rendered = self._rendered(entries)
            ids[:] = mint_many(max(log.last_id(end), after), len(rendered))
            return b"".join(map(jsonl.with_id, ids, rendered))

        if self.tree.append(path, compose, durable=durable):
            self.changed(path)
        return ids

    def _rendered(self, entries: Sequence[Mapping[str, Any]], time: str = "time", op_id: str = "") -> list[bytes]:
        """Render entries without their ids; OverBudget when one is too long."""
        more = {"op": op_id} if op_id else {}
        if writer := self.writer:
            more["writer"] = writer
        now = utc_now()
        rendered = [jsonl.render({time: now, **entry, **more}) for entry in entries]
        if (longest := max(map(len, rendered), default=0)) > self._limits.line_bytes - 100:
            raise OverBudget(
                f"The line would have {longest:,} bytes; the limit is {self._limits.line_bytes:,}.",
                "Shorten its fields.",
            )
        return rendered

    def newest(self, path: str, problems: list[Problem] | None = None) -> Iterator[Record]:
        """Yield the records of a path from its end, without hidden ones; add to `problems` what cannot be read."""
        place = self._layout.classify(path)
        if place is None or not self.exists(path):
            return

        def ask(index: Index) -> tuple[dict[str, bool], set[str] | None]:
            seen, stamp = index.look(path), self.tree.stat(path)
            complete = seen and stamp and seen.offset >= stamp.size
            return index.hidden_in(path), index.halves(path) if complete else None

        # a merge may put a mark before its entry, or separate a pair
        marks, halves = self.sync.peek(ask, path) or ({}, None)
        reader = log.TailReader(
            self.tree, place, marks, halves, self.sync.refresher.blob, [] if problems is None else problems
        )
        yield from reader.newest_first()

    # records

    def get(self, identifier: str) -> Record:
        """Return one record as it is on disk now: by its id, or as `path:line`, as a search shows it."""
        identifier = self.resolve(identifier)
        path = path_of(identifier)
        place = self._layout.classify(path)
        if place is None or place.kind.shape == "line":
            found = self.sync.retry_if_replaced(lambda: self._by_id(identifier))
            if len(found) > 1:
                files = ", ".join(record.path for record in found)
                raise Invalid(f"{identifier} is in several logs: {files}.", "Merge them, or remove the copy.")
            return found[0]
        record = parsing.record_at(place, self.read(path), identifier)
        if record is None:
            raise _unknown(identifier)
        if not place.kind.write_once:
            return record

        def with_ledger() -> list[Record]:
            self.sync.refresh_below((path.rpartition("/")[0],))
            return self.sync.ask(lambda index: index.by_id(path))

        return next(iter(self.sync.retry_if_replaced(with_ledger)), record)

    def _by_id(self, identifier: str) -> list[Record]:
        found = self.sync.ask(lambda index: index.by_id(identifier))
        if found:
            for path in {record.path for record in found}:
                self.sync.note(path)
            self.sync.catch_up()
        else:
            self.sync.refresh_below(())
            if is_id(identifier):
                self.sync.refresh_below(self._layout.below(FOREIGN, ""))
        if not (found := self.sync.ask(lambda index: index.by_id(identifier))):
            raise _unknown(identifier)
        return found

    def resolve(self, identifier: str) -> str:
        """Return the id of the record at `path:line`, as a search shows it; any other id as it is."""
        at = _AT_LINE.match(identifier)
        if at is None:
            return identifier
        found = self.ask_about(lambda index: index.records(at[1]), at[1])
        before = [record for record in found if record.line <= int(at[2])]
        if not before:
            raise _unknown(identifier)
        return max(before, key=lambda record: record.line).id

    def ask_about(self, question: Callable[[Index], Answer], *paths: str) -> Answer:
        """Ask the index about some files, as they are now."""

        def work() -> Answer:
            for path in paths:
                self.sync.note(path)
            self.sync.catch_up()
            return self.sync.ask(question)

        return self.sync.retry_if_replaced(work)

    def query(self, where: Filter, limit: int = -1) -> tuple[Refreshed, list[Record]]:
        """Return the newest records that pass a filter, all of them by default, and what the refresh found."""

        def work() -> tuple[Refreshed, list[Record]]:
            done = self.sync.ensure_current(where, searching=False)
            return done, self.sync.ask(lambda index: index.newest(where, limit))

        return self.sync.retry_if_replaced(work)


def _unknown(identifier: str) -> NotFound:
    return NotFound(f"There is no record {identifier!r}.", "Use search to find its id.")


def _is_after(identifier: str, entry: Mapping[str, Any]) -> bool:
    return str(entry.get("id", "")) > identifier


def _other_use(op_id: str, where: str) -> Conflict:
    return Conflict(
        f'The op_id "{op_id}" was used for {where} before; nothing was written.', "Use a new op_id for a new write."
    )
