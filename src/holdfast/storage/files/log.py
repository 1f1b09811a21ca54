"""Logs: their lines, their locked end, recent appends of this process, cursors, and imported lines.

Lines are read forwards and backwards with bounded memory. A line longer than allowed is skipped and marked as cut; a
last line without a newline is marked as incomplete: it may be an unfinished write and is not damage. A cursor is the
position up to which a log was read: reading continues there if the bytes before it are unchanged, and otherwise from
the start. A log with a line that cannot be parsed is copied to `<path>.damaged-<time>`, once per damage.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import Conflict, HoldfastError, NotFound, OverBudget
from holdfast.formats import jsonl
from holdfast.model.kinds import KINDS, Place
from holdfast.model.records import HALF, Problem, Record
from holdfast.model.times import is_id, utc_now
from holdfast.storage import parsing
from holdfast.storage.log import LogPart
from holdfast.storage.tree import ABSENT, Line, Stamp

if TYPE_CHECKING:
    from holdfast.storage.files.within import FileTree

_CHUNK = 1 << 20
_BACK = 1 << 16
_FIRST_BACK = 1 << 12
"""Reading backwards often needs the last line only."""
_END = 2048
WINDOW = 1 << 18
"""How many bytes before a cursor are compared."""
_LOOK_BACK = 1_000
_KEYS = tuple(row.key for row in KINDS.values() if row.key)
_MOST_NAMED = 5
_SECONDS = 600.0
_MOST = 4 << 20
"""How many bytes of one log the journal keeps, and always the newest write."""
At = tuple[int, int, bytes]
"""A write: the inode of the log, the offset, and the bytes."""
UNKNOWN: At = (0, 0, b"")


# lines


class LogEnd:
    """The end of a log that this process has locked, as an append sees it."""

    def __init__(self, fd: int, now: os.stat_result, line_bytes: int) -> None:
        self.size = size = now.st_size
        self._fd, self._inode = fd, now.st_ino
        self._line_bytes = line_bytes
        self.tail = os.pread(fd, _END, max(0, size - _END)) if size else b""
        self.torn = size > 0 and not self.tail.endswith(b"\n")

    def contains(self, at: At) -> bool:
        """Like `contains`."""
        inode, offset, data = at
        if (start := offset - self.size + len(self.tail)) < 0:
            return contains(self._fd, at)
        return inode == self._inode and self.tail[start : start + len(data)] == data

    def back(self) -> Iterator[bytes]:
        """Yield the lines that are not blank, last line first."""
        found = backwards(self._fd, self.size, self._line_bytes)
        return (line.data for line in found if line.data.strip())

    def lines(self, offset: int) -> Iterator[bytes]:
        """Yield the lines from an offset on."""
        return (line.data for line in forwards(self._fd, offset, self.size, self._line_bytes))


def forwards(fd: int, offset: int, end: int, longest: int) -> Iterator[Line]:
    """Yield lines in order; a line longer than allowed is skipped."""
    start = position = offset
    kept, dropped = b"", False
    while position < end:
        chunk = os.pread(fd, min(_CHUNK, end - position), position)
        if not chunk:
            break
        cursor = position - len(kept)
        position += len(chunk)
        pieces = (kept + chunk).split(b"\n")
        kept = pieces.pop()
        for piece in pieces:
            cursor += len(piece) + 1
            cut = dropped or len(piece) > longest
            yield Line(start, b"" if cut else piece, cursor, cut=cut)
            start, dropped = cursor, False
        if len(kept) > longest:
            kept, dropped = b"", True
    if start < position:
        cut = dropped or len(kept) > longest
        yield Line(start, b"" if cut else kept, position, whole=False, cut=cut)


def backwards(fd: int, size: int, longest: int) -> Iterator[Line]:
    """Yield lines from the end; an over-long one is skipped."""
    end = position = size
    tail, whole, dropped = b"", False, False
    most = _FIRST_BACK
    while position > 0:
        step = min(most, position)
        most = min(4 * most, _BACK)
        block = os.pread(fd, step, position - step)
        if len(block) < step:
            return  # the file was cut while it was read
        cursor = position + len(tail)
        position -= step
        pieces = (block + tail).split(b"\n")
        tail = pieces[0]
        for piece in reversed(pieces[1:]):
            cursor -= len(piece)
            cut = dropped or len(piece) > longest
            if whole or cut or piece:
                yield Line(cursor, b"" if cut else piece, end + whole, whole, cut)
            cursor -= 1
            end, whole, dropped = cursor, True, False
        if len(tail) > longest:
            tail, dropped = b"", True
    if end > 0 or whole:
        cut = dropped or len(tail) > longest
        yield Line(0, b"" if cut else tail, end + whole, whole, cut)


def copied(fd: int, size: int, longest: int, change: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """Yield so many bytes of an open log, with every line changed that is short enough to be read."""
    for line in forwards(fd, 0, size, longest):
        if line.cut:
            yield from chunks(fd, line.end - line.offset, line.offset)
        else:
            yield change(line.data) + b"\n" * line.whole


def chunks(fd: int, size: int, start: int = 0) -> Iterator[bytes]:
    """Yield so many bytes of an open file; Conflict when the file became shorter."""
    position, end = start, start + size
    while position < end:
        chunk = os.pread(fd, min(_CHUNK, end - position), position)
        if not chunk:
            raise Conflict("A file became shorter while it was read.", "Try again.")
        yield chunk
        position += len(chunk)


# the journal


def contains(fd: int, at: At) -> bool:
    """Is this the log of that write, and is it still in place?"""
    return os.fstat(fd).st_ino == at[0] and os.pread(fd, len(at[2]), at[1]) == at[2]


class _Recent:
    """The recent writes to one log, with the time, and the bytes that identify the log."""

    def __init__(self, last: At) -> None:
        self.writes: deque[tuple[float, bytes]] = deque()
        self.size = 0
        self.last = last


class Journal:
    """The lines that this process appended in the last minutes, so that none is lost to an outside change.

    git, a sync tool or an editor can replace a log right after a line was acknowledged. The next append or refresh then
    compares the log with the journal and appends missing lines again, with the same ids. It is bounded, in memory,
    and for any number of threads.
    """

    def __init__(self) -> None:
        self._logs: dict[str, _Recent] = {}
        """The log written last is last."""
        self._lock = threading.Lock()

    def add(self, path: str, at: At) -> None:
        """Record a write."""
        now = time.monotonic()
        with self._lock:
            log = self._logs[path] = self._logs.pop(path) if path in self._logs else _Recent(at)
            log.size += len(at[2])
            while log.writes and (log.size > _MOST or log.writes[0][0] < now - _SECONDS):
                log.size -= len(log.writes.popleft()[1])
            log.writes.append((now, at[2]))
            if log.last[0] != at[0] or log.last[1] <= at[1]:  # else another thread was faster
                log.last = at
            for other in list(itertools.islice(self._logs, 2)):  # removes more than one write adds
                if self._logs[other].writes[-1][0] < now - _SECONDS:
                    del self._logs[other]

    def place(self, path: str, at: At) -> None:
        """Record the bytes that identify a log from now on; UNKNOWN makes the next append compare it."""
        with self._lock:
            if path in self._logs:
                self._logs[path].last = at

    def last(self, path: str) -> At | None:
        """Return the bytes that identify a log, None if the last write is long ago."""
        log = self._logs.get(path)
        return log.last if log else None

    def missing(self, path: str, there: Container[str]) -> dict[str, bytes]:
        """Return the lines of the last minutes, by id, whose id is not `there`."""
        since = time.monotonic() - _SECONDS
        with self._lock:
            appended = [data for when, data in self._logs[path].writes if when > since] if path in self._logs else []
        lines = {own: line for data in appended for line in data.split(b"\n") if (own := jsonl.own_id(line))}
        return {own: line + b"\n" for own, line in lines.items() if own not in there}

    def paths(self) -> list[str]:
        """Return the logs that were appended to."""
        with self._lock:
            return list(self._logs)

    def drop(self, path: str) -> None:
        """Forget a log that this process removed."""
        with self._lock:
            self._logs.pop(path, None)


# cursors


class Cursor(msgspec.Struct, frozen=True):
    """The position up to which a log was read."""

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
    """Return a checksum of the bytes before an offset, -1 if they no longer exist."""
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
    except NotFound:  # it was removed in between
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
    """Return the identity of a line: its length, and its text unless it is too long."""
    return line.end - line.offset, line.data


def last_id(end: LogEnd) -> str:
    """Return the id of the last line that has one."""
    _, whole, last = end.tail.rstrip(b"\n").rpartition(b"\n")
    if whole and is_id(known := jsonl.own_id(last)):
        return known
    for line in itertools.islice(end.back(), _LOOK_BACK):
        if is_id(known := jsonl.own_id(line)):
            return known
        objects = jsonl.parse(line)
        ids = [value["id"] for value in objects if is_id(value.get("id"))] if isinstance(objects, list) else []
        if ids:
            return str(max(ids))
    return ""


def _unread(end: LogEnd, offset: int, text: str) -> Iterator[dict[str, Any]]:
    """Yield the entries after an offset that may contain a text; from the start when no line starts at the offset."""
    first = next(end.lines(offset), b"") if offset <= end.size else b"?"
    wanted = text.encode()
    for data in end.lines(0 if isinstance(jsonl.parse(first), str) else offset):
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
    """Return the ids of the entries of an op_id, among the entries that the index has not read."""
    return [str(value.get("id")) for value in _unread(end, offset, op_id) if value.get("op") == op_id]


# records


def newest_first(
    tree: FileTree, place: Place, marks: dict[str, bool], alone: set[str] | None, blob: parsing.Blob,
    problems: list[Problem],
) -> Iterator[Record]:  # fmt: skip
    """Yield the records of a log from its end, without hidden ones and without incomplete pairs.

    `marks` are the hidden states in the index. `alone` are the ids in the index whose other line of the pair is
    missing; None means that the index has not read the whole log. Damaged lines are added to `problems`.
    """
    seen, halves = set[str](), _halves(tree, place) if alone is None else alone
    for line in tree.scan_back(place.path):
        objects = parsing.objects(place, line)
        if isinstance(objects, str):
            problems.append(Problem(place.path, f"skipped at byte {line.offset:,}: {objects}"))
            continue
        for value in reversed(objects):
            if isinstance(value.get("hide"), str):
                marks.setdefault(value["hide"], value.get("hidden") is not False)
                continue
            if what := parsing.fault(place.kind, value):
                problems.append(Problem(place.path, f"skipped at byte {line.offset:,}: {what}"))
                continue
            record, _ = parsing.line_record(place, value, 0, blob)
            if record.id in halves and record.id not in seen:
                problems.append(Problem(record.path, f"{record.id} is {HALF}"))
            elif record.id not in seen and not record.hidden and not marks.get(record.id):
                yield record
            seen.add(record.id)


def _halves(tree: FileTree, place: Place) -> set[str]:
    """Return the ids of the lines that belong to a pair whose other line is missing."""
    field, pairs = place.kind.pair, dict[str, str]()
    for line in tree.scan(place.path) if field else ():
        objects = parsing.objects(place, line) if field.encode() in line.data else ""
        for value in objects if isinstance(objects, list) else ():
            if isinstance(pair := value.get(field), str) and pair:
                pairs[jsonl.identity(value, place.kind.time)[0]] = pair
    counts = Counter(pairs.values())
    return {identifier for identifier, pair in pairs.items() if counts[pair] == 1}


class Importer:
    """Adds lines from elsewhere to the logs of one tree, each once; it caches the ids of the last log.

    The ids of a log are read under its lock: all of them the first time, then only those of new lines, as long as the
    end of the part that was read is unchanged.
    """

    def __init__(self, tree: FileTree, line_bytes: int) -> None:
        self._tree, self._line_bytes = tree, line_bytes
        self._lock = threading.Lock()
        self._ids: set[str] = set()
        self._read = "", 0, 0
        """The log, how far it was read, and the checksum of its end."""

    def add(self, path: str, lines: Sequence[bytes]) -> int:
        """Add the lines that a log does not have, all of them or none, durably; return how many."""
        longest = max((len(line) + 1 for line in lines), default=0)
        if longest > self._line_bytes:
            raise OverBudget(f"A line would have {longest:,} bytes; the limit is {self._line_bytes:,}.", "Shorten it.")
        new: list[bytes] = []

        def compose(end: LogEnd) -> bytes:
            known, offset, before = self._read
            if known != path or offset > end.size or before != checksum(self._tree, path, offset):
                self._ids, offset = set(), 0
            self._ids.update(key for line in end.lines(offset) for key in jsonl.keys(line))
            self._read = path, end.size, checksum(self._tree, path, end.size)
            # an empty log becomes an exact copy, blank lines included
            new.extend(line for line in lines if not self._ids or not self._ids.issuperset(jsonl.keys(line)))
            return b"".join(line + b"\n" for line in new)

        with self._lock:
            if lines:
                self._tree.append(path, compose)
        return len(new)
