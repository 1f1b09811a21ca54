"""Adding lines to a log: hold its row, let the caller compose, add, commit.

What a caller composed is composed once. When the connection is lost, the same lines are added again only if the log is
still as the caller saw it, and not if they may be there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from holdfast.errors import Busy, Conflict, HoldfastError, Invalid, Unavailable
from holdfast.postgres import _faults, _rows
from holdfast.postgres.transactions import Database, Turn
from holdfast.vault import Appended, LogEnd, _lines

_TRIES = 100


class End:
    """The end of a log that is held; nothing of it is read unless somebody looks."""

    def __init__(self, read: _lines.Read, size: int, line_bytes: int) -> None:
        self.size = size
        self._read = read
        self._line_bytes = line_bytes

    def back(self) -> Iterator[bytes]:
        return _lines.HeldEnd(self._read, self.size, self._line_bytes).back()

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
        self, database: Database, path: str, compose: Callable[[LogEnd], bytes], author: _rows.Author, line_bytes: int
    ) -> None:
        self._database = database
        self._path = path
        self._compose = compose
        self._author = author
        self._line_bytes = line_bytes
        self._data: bytes | None = None
        self._seen: _rows.Found | None = None
        self._joined = False

    def attempt(self, turn: Turn) -> Appended | None:
        found, made = held(turn, self._path, self._author)
        if self._data is None:
            self._ask(turn, found)
        elif turn.doubtful and (done := self._done(turn)):
            return done
        else:
            self._check_same(turn, found, made)
        if not self._data:
            turn.unchanged = not turn.joined
            return None
        return self._add(turn, found, self._data)

    def _ask(self, turn: Turn, found: _rows.Found) -> None:
        read = _rows.reader(self._database, self._path, found)
        before = turn.joined
        data = self._compose(End(read, found.size, self._line_bytes))
        self._joined = self._joined or turn.joined > before
        self._data, self._seen = data, found

    def _add(self, turn: Turn, found: _rows.Found, data: bytes) -> Appended:
        if not found.log:
            _rows.make_log(turn, self._path, found)
        if found.torn:
            data = b"\n" + data
        if not _rows.grow(turn, self._path, found, data, self._author):
            raise Conflict(
                f"{self._path} was changed while lines for it were composed; nothing was written.", "Try again."
            )
        return Appended(found.size, found.size + len(data))

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
