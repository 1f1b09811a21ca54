"""Adding lines to a log: hold its row, let the caller compose, add, commit.

What a caller composed is composed once. When the connection is lost, the same lines are added again only if the log is
still as the caller saw it, and not if they may be there already.

A caller who can compose again is asked before the log is held, by what this process itself left at its end. Then all of
it is one message, which adds the lines if the log is still so; where it is not, it is held and everything done anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.errors import Busy, Conflict, HoldfastError, Invalid, Unavailable
from holdfast.storage.postgres import _faults, _rows
from holdfast.storage.postgres._ends import End, Lefts
from holdfast.storage.postgres._together import Asked, Together, call, is_plain
from holdfast.storage.postgres.transactions import Database, Turn
from holdfast.storage.tree import Appended, LogEnd

_TRIES = 100


class Ways:
    """How the threads of one program add to the logs of a tenant."""

    def __init__(self, database: Database, line_bytes: int) -> None:
        self.database = database
        self.line_bytes = line_bytes
        self.lefts = Lefts()
        self.together = Together(database, self.lefts, line_bytes)


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
        self, ways: Ways, path: str, compose: Callable[[LogEnd], bytes], author: _rows.Author, *, again: bool
    ) -> None:
        self._ways = ways
        self._database = ways.database
        self._path = path
        self._compose = compose
        self._author = author
        self._again = again
        self._data: bytes | None = None
        self._seen: _rows.Found | _rows.Left | None = None
        self._joined = False
        self._doubtful = False
        self._added: tuple[int, bytes] | None = None

    def run(self, durable: bool) -> Appended | None:
        if not (self._again and self._database.direct):
            return self._alone(durable)
        deadline = time.monotonic() + self._database.waits.lock_seconds
        while (left := deadline - time.monotonic()) > 0:
            if done := self._with_others(durable):
                return done
            if self._doubtful:
                break
            if self._ways.lefts.open(self._path, left):
                try:
                    return self._alone(durable)
                finally:
                    self._ways.lefts.opened(self._path)
        return self._alone(durable)

    def _with_others(self, durable: bool) -> Appended | None:
        """Add lines in one message, if the log is as we left it; None when it is not, or nobody knows."""
        one = Asked(self._path, self._compose, self._author, durable)
        self._ways.together.add(one)
        if one.added is None:
            self._doubtful, self._data, self._seen = True, one.data, one.at
        return Appended(one.at.size, one.at.size + len(one.data)) if one.added and one.at else None

    def _alone(self, durable: bool) -> Appended | None:
        """Hold the log, then add to it."""
        done = self._database.run(self._path, self.attempt, writes=True, durable=durable, doubtful=self._doubtful)
        if done and self._added and not self._database.within:
            inode, data = self._added
            self._ways.lefts.note(self._path, inode, done.end, data)
        return done

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
        data = self._compose(End(read, found.size, self._ways.line_bytes))
        self._joined = self._joined or turn.joined > before
        self._data, self._seen = data, found

    def _add(self, turn: Turn, found: _rows.Found, data: bytes) -> Appended:
        if self._is_last(turn, found, data):
            self._added = found.inode, data
            seconds = self._database.waits.lock_seconds
            turn.last = call(self._database, self._path, found, data, self._author, seconds, durable=turn.durable)
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

    def _is_last(self, turn: Turn, found: _rows.Found, data: bytes) -> bool:
        """Is adding these lines the last thing that this transaction does, and nothing out of the ordinary?"""
        plain = found.log and not found.torn and is_plain(data)
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
