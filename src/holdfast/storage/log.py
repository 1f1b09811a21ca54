"""Reading logs: their ends, their records newest first, whether they changed; and the one retry policy.

An append sees the locked end of a log. A cursor remembers how far a log was read.
"""

from __future__ import annotations

import functools
import itertools
import random
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.errors import Busy, NotFound
from holdfast.formats import jsonl
from holdfast.model.kinds import KINDS
from holdfast.model.layout import Place
from holdfast.model.records import HALF, Problem, Record
from holdfast.model.times import is_id
from holdfast.storage import parsing
from holdfast.storage.tree import Line, LogEnd, Stamp, Tree

WINDOW = 1 << 18
"""How many bytes before a cursor are compared."""
_LOOK_BACK = 1_000
_KEYS = tuple(row.key for row in KINDS.values() if row.key)
_NEAR = 64
"""The lines of a pair are written together; only after a merge can they be farther apart than this."""


TRIES = 200


def attempts(what: str, tries: int = TRIES) -> Iterator[int]:
    """Yield the number of each try; Busy after the last one. The caller leaves the loop when its work succeeded."""
    for attempt in range(tries):
        if attempt:
            time.sleep(random.uniform(0, 0.002) * min(attempt, 10))
        yield attempt
    raise Busy(f"{what} keeps being changed by other processes; nothing was written.", "Try again.")


class Cursor(msgspec.Struct, frozen=True):
    """How far a log was read; opaque to callers."""

    inode: int = 0
    size: int = 0
    offset: int = 0
    """The end of the last entry; less than the size where the last line is incomplete."""
    checksum: int = 0


class Changed(Exception):
    """The log has changed since a cursor."""


def changed(tree: Tree, path: str, cursor: Cursor) -> bool:
    """Has a log changed since it was read up to the cursor?"""
    stamp = tree.stat(path)
    if stamp is None or not stamp.size:
        return bool(cursor.size)
    return stamp.size != cursor.size or not continues(tree, path, cursor, stamp)


def continues(tree: Tree, path: str, cursor: Cursor, stamp: Stamp) -> bool:
    """Is this the log that was read up to the cursor, with at most new entries after it?"""
    if stamp.inode != cursor.inode or stamp.size < cursor.offset:
        return False
    return tree.exact or checksum(tree, path, cursor.offset) == cursor.checksum


def checksum(tree: Tree, path: str, offset: int) -> int:
    """Return a checksum of the bytes before an offset, -1 when they are gone."""
    try:
        return tree.fingerprint(path, max(0, offset - WINDOW), offset)
    except NotFound:
        return -1


def last_id(end: LogEnd) -> str:
    """Return the id of the last line that has one."""
    for line in itertools.islice(end.back(), _LOOK_BACK):
        if known := jsonl.own_id(line):
            return known
        objects = jsonl.parse(line)
        ids = [value["id"] for value in objects if is_id(value.get("id"))] if isinstance(objects, list) else []
        if ids:
            return str(max(ids))
    return ""


def _unread(end: LogEnd, offset: int, needle: str = "") -> Iterator[dict[str, Any]]:
    """Yield the entries after an offset that contain a text; all of them when no line starts at the offset."""
    lines: Iterator[bytes] = iter(())
    if offset <= end.size:
        lines = iter(end.lines(offset))
        first = next(lines, b"")
        lines = itertools.chain([first], lines)
        if isinstance(jsonl.parse(first), str):
            lines = iter(end.lines(0))
    else:
        lines = iter(end.lines(0))
    for data in lines:
        objects = jsonl.parse(data) if needle.encode() in data else []
        if isinstance(objects, list):
            yield from objects


def newest_order(end: LogEnd, offset: int, target: str) -> str:
    """Return the greatest order of the entries about a key or id among those that the index has not read."""
    found = ""
    for value in _unread(end, offset):
        hides = value.get("hide")
        named = isinstance(hides, str) and bool(hides) and target.endswith(f"/{hides}")  # a ledger names files
        if named or target in (hides, value.get("id"), *(value.get(name) for name in _KEYS)):
            found = max(found, jsonl.identity(value, "time")[1])
    return found


def ids_of_op(end: LogEnd, offset: int, op_id: str) -> list[str]:
    """Return the ids of what was added under an op_id, among the entries that the index has not read."""
    return [str(value.get("id")) for value in _unread(end, offset, op_id) if value.get("op") == op_id]


class TailReader:
    """Reads the records of one log from its end, without hidden ones and without incomplete pairs.

    `marks` and `halves` are what the index knows of it; without `halves` the reader looks for them. What is left out
    because of damage is added to `problems`.
    """

    def __init__(
        self, tree: Tree, place: Place, marks: dict[str, bool], halves: set[str] | None, blob: parsing.Blob,
        problems: list[Problem],
    ) -> None:  # fmt: skip
        self._tree = tree
        self._place = place
        self._marks = marks
        self._halves = halves
        self._blob = blob
        self._problems = problems

    def newest_first(self) -> Iterator[Record]:
        """Yield the records of the log from its end."""
        found = self._records(self._tree.scan_back(self._place.path))
        if self._place.kind.pair:
            found = self._near(found) if self._halves is None else self._known(found, self._halves)
        return (record for record in found if not record.hidden)

    def _records(self, lines: Iterable[Line]) -> Iterator[Record]:
        seen: set[str] = set()
        for line in lines:
            objects = parsing.objects(self._place, line)
            if isinstance(objects, str):
                self._problems.append(Problem(self._place.path, f"skipped at byte {line.offset:,}: {objects}"))
                continue
            for value in reversed(objects):
                if isinstance(value.get("hide"), str):
                    self._marks.setdefault(value["hide"], value.get("hidden") is not False)
                    continue
                if what := parsing.fault(self._place.kind, value):
                    self._problems.append(Problem(self._place.path, f"skipped at byte {line.offset:,}: {what}"))
                    continue
                record, _ = parsing.line_record(self._place, value, 0, self._blob)
                if record.id not in seen:
                    seen.add(record.id)
                    hidden = self._marks.get(record.id)
                    yield msgspec.structs.replace(record, hidden=True) if hidden else record

    def _known(self, records: Iterable[Record], halves: set[str]) -> Iterator[Record]:
        for record in records:
            if record.id in halves:
                self._half(record)
            else:
                yield record

    def _near(self, records: Iterable[Record]) -> Iterator[Record]:
        """Leave out the records of incomplete pairs; the other half is nearly always close."""
        field = self._place.kind.pair
        source = iter(records)
        ahead: deque[Record] = deque()
        whole: set[str] = set()
        while record := ahead.popleft() if ahead else next(source, None):
            pair = record.fields.get(field)
            if not isinstance(pair, str) or not pair or pair in whole:
                yield record
                continue
            found = any(other.fields.get(field) == pair for other in ahead)
            while not found and len(ahead) < _NEAR and (other := next(source, None)):
                ahead.append(other)
                found = other.fields.get(field) == pair
            if found or self._pairs[pair] > 1:
                whole.add(pair)
                yield record
            else:
                self._half(record)

    @functools.cached_property
    def _pairs(self) -> Counter[str]:
        """Count the lines of each pair in the whole log."""
        field = self._place.kind.pair
        counts: Counter[str] = Counter()
        seen: set[str] = set()
        for line in self._tree.scan(self._place.path):
            objects = parsing.objects(self._place, line) if field.encode() in line.data else []
            for value in objects if isinstance(objects, list) else ():
                identifier = jsonl.identity(value, self._place.kind.time)[0]
                if isinstance(value.get(field), str) and identifier not in seen:
                    seen.add(identifier)
                    counts[value[field]] += 1
        return counts

    def _half(self, record: Record) -> None:
        self._problems.append(Problem(record.path, f"{record.id} is {HALF}"))
