"""The logs of a tree: their locked ends, reading on from a cursor, their records newest first, imported lines.

An append sees the locked end of a log. A cursor remembers how far a log was read: it is read on from there if the bytes
before it are unchanged, and otherwise from its start. A line that cannot be parsed is skipped: the file is copied to
`<path>.damaged-<time>`, once per damage. A last line without a newline may still be in the making and is no damage.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, NotFound, OverBudget
from holdfast.formats import jsonl
from holdfast.model.kinds import KINDS, Place
from holdfast.model.records import HALF, Problem, Record
from holdfast.model.times import is_id, utc_now
from holdfast.storage import parsing
from holdfast.storage.files.lines import LogEnd
from holdfast.storage.files.within import FileTree
from holdfast.storage.log import LogPart
from holdfast.storage.tree import ABSENT, Line, Stamp

WINDOW = 1 << 18
"""How many bytes before a cursor are compared."""
_LOOK_BACK = 1_000
_KEYS = tuple(row.key for row in KINDS.values() if row.key)
_NEAR = 64
"""The lines of a pair are written together; only after a merge can they be farther apart than this."""
_MOST_NAMED = 5


class Cursor(msgspec.Struct, frozen=True):
    """How far a log was read."""

    inode: int = 0
    size: int = 0
    offset: int = 0
    """The end of the last entry; less than the size where the last line is incomplete."""
    checksum: int = 0
    lines: int = 0
    """How many lines are before the offset."""


def changed(tree: FileTree, path: str, cursor: Cursor) -> bool:
    """Has a log changed since it was read up to the cursor?"""
    stamp = tree.stat(path)
    if stamp is None or not stamp.size:
        return bool(cursor.size)
    return stamp.size != cursor.size or not _continues(tree, path, cursor, stamp)


def _continues(tree: FileTree, path: str, cursor: Cursor, stamp: Stamp) -> bool:
    """Is this the log that was read up to the cursor, with at most new entries after it?"""
    if stamp.inode != cursor.inode or stamp.size < cursor.offset:
        return False
    return checksum(tree, path, cursor.offset) == cursor.checksum


def checksum(tree: FileTree, path: str, offset: int) -> int:
    """Return a checksum of the bytes before an offset, -1 when they are gone."""
    try:
        return tree.fingerprint(path, max(0, offset - WINDOW), offset)
    except NotFound:
        return -1


def read_on(tree: FileTree, path: str, cursor: Cursor | None) -> LogPart:
    """Return the entries after a cursor; all of them when the log before it changed. No log is an empty one."""
    if (stamp := tree.stat(path)) is None:
        return LogPart([], Cursor(), fresh=True)
    fresh = cursor is None or not _continues(tree, path, cursor, stamp)
    begin = Cursor() if cursor is None or fresh else cursor
    found: list[dict[str, Any]] = []
    damaged: list[tuple[int, Line]] = []
    offset, lines, known = begin.offset, begin.lines, begin.checksum
    try:
        for line in tree.scan(path, offset, stamp.size):
            entries = "too long" if line.cut else jsonl.parse(line.data)
            if isinstance(entries, str) and not line.whole:
                break
            offset, lines = line.end, lines + line.whole
            if isinstance(entries, str):
                damaged.append((lines, line))
            else:
                found += entries
        if offset != begin.offset:
            known = checksum(tree, path, offset)
        warnings = _set_aside(tree, path, damaged) if damaged else []
    except NotFound:  # it was removed just now
        return LogPart([], Cursor(), fresh=True)
    return LogPart(found, Cursor(stamp.inode, stamp.size, offset, known, lines), fresh, warnings)


def _set_aside(tree: FileTree, path: str, damaged: list[tuple[int, Line]]) -> list[str]:
    """Copy a damaged log unless a copy has all the lines that cannot be read; return the warnings."""
    stored = {_key(line): copy for copy in copies(tree, path) for line in tree.scan(copy)}
    numbers: dict[str, list[int]] = {}
    for number, line in damaged:
        copy = stored.get(_key(line))
        numbers.setdefault(f"the file as it was is kept as {copy}" if copy else "", []).append(number)
    if "" in numbers:
        copy = f"{path}.damaged-{''.join(sign for sign in utc_now() if sign.isalnum())}"
        became = f"the file as it is was copied to {copy}"
        try:
            tree.write(copy, tree.read(path).data, expect=ABSENT)
        except HoldfastError as error:
            became = f"the file could not be copied ({error.message})"
        numbers[became] = numbers.pop("")
    return [
        f"{path}: line {', '.join(map(str, which[:_MOST_NAMED]))}"
        + (f" and {len(which) - _MOST_NAMED} more" if len(which) > _MOST_NAMED else "")
        + f" cannot be read; {became}. All else in it is still used."
        for became, which in numbers.items()
    ]


def copies(tree: FileTree, path: str) -> Iterator[str]:
    """Yield the copies of a damaged log."""
    for found, _ in tree.walk(path.rpartition("/")[0], ("",), lambda _path, _why: None):
        if found.startswith(f"{path}.damaged-"):
            yield found


def _key(line: Line) -> tuple[int, bytes]:
    """Return what identifies a line: its length, and its text unless it is too long."""
    return line.end - line.offset, line.data


def last_id(end: LogEnd) -> str:
    """Return the id of the last line that has one."""
    for line in itertools.islice(end.back(), _LOOK_BACK):
        if is_id(known := jsonl.own_id(line)):
            return known
        objects = jsonl.parse(line)
        ids = [value["id"] for value in objects if is_id(value.get("id"))] if isinstance(objects, list) else []
        if ids:
            return str(max(ids))
    return ""


def _unread(end: LogEnd, offset: int, needle: str = "") -> Iterator[dict[str, Any]]:
    """Yield the entries after an offset that may contain a text; from the start when no line starts at the offset."""
    lines: Iterator[bytes] = iter(())
    if offset <= end.size:
        lines = iter(end.lines(offset))
        first = next(lines, b"")
        lines = itertools.chain([first], lines)
        if isinstance(jsonl.parse(first), str):
            lines = iter(end.lines(0))
    else:
        lines = iter(end.lines(0))
    wanted = needle.encode()
    for data in lines:
        objects = jsonl.parse(data) if wanted in data or b"\\" in data else []  # it may be escaped
        if isinstance(objects, list):
            yield from objects


def newest_order(end: LogEnd, offset: int, target: str) -> str:
    """Return the greatest order of the entries about a key or id among those that the index has not read."""
    found = ""
    for value in _unread(end, offset, target.rpartition("/")[2]):
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
        self, tree: FileTree, place: Place, marks: dict[str, bool], halves: set[str] | None, blob: parsing.Blob,
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


class Importer:
    """Adds lines from elsewhere to the logs of one tree, each once; it remembers the ids of the last log.

    The ids of a log are read under its lock: all of them the first time, then only those of new lines, as long as the
    end of what was read is unchanged.
    """

    def __init__(self, tree: FileTree, line_bytes: int) -> None:
        self._tree, self._line_bytes = tree, line_bytes
        self._lock = threading.Lock()
        self._reset()

    def add(self, path: str, lines: Sequence[bytes]) -> int:
        """Add the lines that a log does not have, all of them or none, durably; return how many."""
        longest = max((len(line) + 1 for line in lines), default=0)
        if longest > self._line_bytes:
            raise OverBudget(f"A line would have {longest:,} bytes; the limit is {self._line_bytes:,}.", "Shorten it.")
        new: list[bytes] = []

        def compose(end: LogEnd) -> bytes:
            if self._path != path or self._offset > end.size or self._end != checksum(self._tree, path, self._offset):
                self._reset()
            self._ids.update(key for line in end.lines(self._offset) for key in jsonl.keys(line))
            self._remember(path, end.size)
            # into an empty log everything is copied, so that it becomes the same byte by byte, blank lines too
            new.extend(line for line in lines if not self._ids or not self._ids.issuperset(jsonl.keys(line)))
            return b"".join(line + b"\n" for line in new)

        with self._lock:
            try:
                done = self._tree.append(path, compose) if lines else None
            except BaseException:
                self._reset()
                raise
            if done:
                self._ids.update(key for line in new for key in jsonl.keys(line))
                self._remember(path, done.end)
        return len(new)

    def _remember(self, path: str, offset: int) -> None:
        self._path, self._offset, self._end = path, offset, checksum(self._tree, path, offset)

    def _reset(self) -> None:
        self._path, self._offset, self._end = "", 0, 0
        self._ids: set[str] = set()
