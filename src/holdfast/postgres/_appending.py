"""Adding lines to a log: hold its row, let the caller compose, add, commit.

What a caller composed is composed once. When the connection is lost, the same lines are added again only if the log is
still as the caller saw it, and not if they may be there already.

A caller who can compose again is asked before the log is held, by what this process itself left at its end. Then all of
it is one message, which adds the lines if the log is still so; where it is not, it is held and everything done anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from holdfast.errors import Busy, Conflict, HoldfastError, Invalid, Unavailable
from holdfast.postgres import _faults, _rows
from holdfast.postgres.connecting import Call
from holdfast.postgres.transactions import Database, Turn, milliseconds
from holdfast.vault import Appended, LogEnd, _lines

_TRIES = 100
_MOST_KNOWN = 1_000
_LONGEST_TAIL = 4096
_PATIENCE = 50
_AT_ONCE = b"SELECT holdfast.append_%02d($1, $2, $3, $4, $5, $6, $7, $8, $9)"
_BINARY = (0, 0, 0, 0, 1, 1, 0, 0, 0)


class Lefts:
    """What this process left at the ends of the logs that it wrote to last."""

    def __init__(self) -> None:
        self._known: dict[str, _rows.Left] = {}
        self._shared: dict[str, int] = {}
        """How many appends to a log that others write to as well are better held at once."""
        self._lock = threading.Lock()

    def get(self, path: str) -> _rows.Left | None:
        """Return how we left a log, unless others have written to it lately."""
        with self._lock:
            if left := self._shared.get(path, 0):
                self._shared[path] = left - 1
                return None
            self._shared.pop(path, None)
            return self._known.get(path)

    def failed(self, path: str) -> None:
        """Note that somebody else wrote to a log since."""
        with self._lock:
            if len(self._shared) < _MOST_KNOWN:
                self._shared[path] = _PATIENCE

    def note(self, path: str, inode: int, end: int, data: bytes) -> None:
        start = data.rfind(b"\n", 0, -1) + 1
        tail = data[start:]
        if not data.endswith(b"\n") or not tail.strip() or len(tail) > _LONGEST_TAIL:
            self.forget(path)
            return
        with self._lock:
            self._known.pop(path, None)
            self._known[path] = _rows.Left(inode, end, tail)
            if len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]

    def forget(self, path: str) -> None:
        with self._lock:
            self._known.pop(path, None)


class End:
    """The end of a log; nothing of it is read unless somebody looks."""

    def __init__(self, read: _lines.Read, size: int, line_bytes: int, tail: bytes = b"") -> None:
        self.size = size
        self._read = read
        self._line_bytes = line_bytes
        self._tail = tail

    def back(self) -> Iterator[bytes]:
        if not self._tail:
            yield from _lines.HeldEnd(self._read, self.size, self._line_bytes).back()
            return
        yield self._tail.rstrip()
        for line in _lines.backwards(self._read, self.size - len(self._tail), self._line_bytes):
            if line.data.strip():
                yield line.data

    def lines(self, offset: int) -> Iterable[bytes]:
        return (line.data for line in _lines.forwards(self._read, offset, self.size, self._line_bytes))


def held(turn: Turn, path: str, author: _rows.Author) -> tuple[_rows.Found, bool]:
    """Hold the file at a path, and say whether it had to be made."""
    for _ in range(_TRIES):
        found = _rows.look(turn, path, hold=True)
        if found:
            return found, False
        _rows.check_free(turn, path, lambda: Invalid(f"{path} is a folder.", "Name a file."))
        if _rows.create(turn, path, None, author):
            made = _rows.look(turn, path, hold=True)
            assert made is not None
            return made, True
    raise Busy(f"{path} is removed by others all the time; nothing was written.", "Try again.")


class Appending:
    """One append, over all its tries."""

    def __init__(
        self, database: Database, path: str, compose: Callable[[LogEnd], bytes], author: _rows.Author, line_bytes: int,
        lefts: Lefts, *, again: bool,
    ) -> None:  # fmt: skip
        self._database = database
        self._path = path
        self._compose = compose
        self._author = author
        self._line_bytes = line_bytes
        self._lefts = lefts
        self._again = again
        self._data: bytes | None = None
        self._seen: _rows.Found | _rows.Left | None = None
        self._joined = False
        self._doubtful = False
        self._added: tuple[int, bytes] | None = None

    def run(self, durable: bool) -> Appended | None:
        left = self._lefts.get(self._path) if self._again and self._database.direct else None
        if left and (done := self._at_once(left, durable)):
            return done
        done = self._database.run(self._path, self.attempt, writes=True, durable=durable, doubtful=self._doubtful)
        if done and self._added and not self._database.within:
            inode, data = self._added
            self._lefts.note(self._path, inode, done.end, data)
        return done

    def _at_once(self, left: _rows.Left, durable: bool) -> Appended | None:
        """Add lines in one message, if the log is as we left it; None when it is not, or nobody knows."""
        self._lefts.forget(self._path)
        try:
            read = _rows.reader(self._database, self._path, left)
            data = self._compose(End(read, left.size, self._line_bytes, left.tail))
        except HoldfastError:
            return None  # what it was told by may be out of date: it is asked again while the log is held
        if not _is_plain(data):
            return None
        added = self._database.at_once(self._path, self._call(left, data, durable))
        if added:
            self._lefts.note(self._path, left.inode, left.size + len(data), data)
            return Appended(left.size, left.size + len(data))
        if added is False:
            self._lefts.failed(self._path)
        if added is None:
            self._doubtful, self._data, self._seen = True, data, left
        return None

    def _call(self, left: _rows.Left | _rows.Found, data: bytes, durable: bool) -> Call:
        base, author = self._database, self._author
        values = (
            base.tenant.encode(), self._path.encode(), b"%d" % left.inode, b"%d" % left.size, data, author.op.bytes,
            author.writer.encode(), milliseconds(base.waits.lock_seconds).encode(), base.asks(durable).encode(),
        )  # fmt: skip
        return Call(_AT_ONCE % base.part, values, _BINARY)

    def attempt(self, turn: Turn) -> Appended | None:
        found, made = held(turn, self._path, self._author)
        if self._data is not None and turn.doubtful and (done := self._done(turn)):
            return done
        if self._data is None or self._can_ask_again(turn, found):
            self._ask(turn, found)
        else:
            self._check_same(turn, found, made)
        if not self._data:
            turn.unchanged = not turn.joined
            return None
        return self._add(turn, found, self._data)

    def _can_ask_again(self, turn: Turn, found: _rows.Found) -> bool:
        """May the lines be composed anew? Not if they may be in a log that was replaced since."""
        same = self._seen is not None and self._seen.inode == found.inode
        return self._again and not self._joined and (same or not turn.doubtful)

    def _ask(self, turn: Turn, found: _rows.Found) -> None:
        read = _rows.reader(self._database, self._path, found)
        before = turn.joined
        data = self._compose(End(read, found.size, self._line_bytes))
        self._joined = self._joined or turn.joined > before
        self._data, self._seen = data, found

    def _add(self, turn: Turn, found: _rows.Found, data: bytes) -> Appended:
        if self._alone(turn, found, data):
            self._added = found.inode, data
            turn.last = self._call(found, data, turn.durable)
            return Appended(found.size, found.size + len(data))
        if not found.log:
            _rows.make_log(turn, self._path, found)
        if found.torn:
            data = b"\n" + data
        if not _rows.grow(turn, self._path, found, data, self._author):
            raise Conflict(
                f"{self._path} was changed while lines for it were composed; nothing was written.", "Try again."
            )
        self._added = found.inode, data
        return Appended(found.size, found.size + len(data))

    def _alone(self, turn: Turn, found: _rows.Found, data: bytes) -> bool:
        """Is adding these lines the last thing that this transaction does, and nothing out of the ordinary?"""
        plain = found.log and not found.torn and _is_plain(data)
        return plain and turn.outermost and not turn.joined and self._database.knows_calls

    def _done(self, turn: Turn) -> Appended | None:
        """Return where the lines lie if an earlier try of ours was saved after all."""
        row = turn.row(
            "SELECT min(start), max(start + length(data)) FROM holdfast.pieces"
            " WHERE tenant = %(tenant)s AND inode = %(inode)s AND start >= %(start)s AND op = %(op)s",
            inode=self._seen.inode if self._seen else 0, start=self._seen.size if self._seen else 0, op=self._author.op,
        )  # fmt: skip
        return Appended(*row) if row and row[0] is not None else None

    def _check_same(self, turn: Turn, found: _rows.Found, made: bool) -> None:
        """See that what was composed still holds, since nothing is composed twice."""
        assert self._seen is not None
        fresh = made and self._seen.size == 0
        same = (found.inode, found.size) == (self._seen.inode, self._seen.size)
        if self._joined or not (same or fresh):
            replaced = found.inode != self._seen.inode
            raise _faults.unsure(self._path) if turn.doubtful and replaced else self._not_saved()

    def _not_saved(self) -> HoldfastError:
        return Unavailable(
            f"{self._path}: the connection was lost before anything was saved, and the lines were not composed again.",
            "Nothing was written; try again.",
        )


def _is_plain(data: bytes) -> bool:
    """Are these whole lines that are one piece?"""
    return data.endswith(b"\n") and len(data) <= _rows.PIECE
