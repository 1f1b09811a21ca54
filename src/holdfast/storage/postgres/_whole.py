"""Whole files, a piece at a time: written anew, as they are at one moment, and logs with some of their lines changed.

What is small is a document with its bytes in one row. What is larger comes in pieces, as a log does, so that nothing
has to fit into memory. A log in which lines are changed keeps its pieces, with who wrote each and when, under another
inode.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from holdfast.errors import Unavailable
from holdfast.storage.files import lines
from holdfast.storage.postgres import _faults, _rows
from holdfast.storage.postgres.transactions import Database, Turn
from holdfast.storage.tree import Line, Snapshot

_CHUNK = 1 << 20
_AT_ONCE = 8 << 20
_BACK = 1 << 16

Change = Callable[[bytes], bytes]


def parts(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes in parts of one size, the last of which may be smaller."""
    waiting = bytearray()
    for chunk in chunks:
        waiting += chunk
        while len(waiting) >= size:
            yield bytes(waiting[:size])
            del waiting[:size]
    if waiting:
        yield bytes(waiting)


class Creating:
    """One new file, over all its tries. Its bytes come once: those of a large one cannot be sent again."""

    def __init__(self, path: str, chunks: Iterable[bytes], mtime: int, author: _rows.Author) -> None:
        self._path = path
        self._author = author
        self._parts = parts(chunks, _rows.PIECE)
        self._first = next(self._parts, b"")
        self._second = next(self._parts, b"")
        self._mtime = datetime.fromtimestamp(mtime / 1e9, UTC) if mtime else None
        self._begun = False

    def attempt(self, turn: Turn) -> None:
        if turn.doubtful and self._done(turn):
            return
        if self._begun:
            raise Unavailable(
                f"{self._path}: the connection was lost before all of it was sent.", "Nothing was written; try again."
            )
        _rows.check_free(turn, self._path, lambda: _rows.exists(self._path))
        if not _rows.create(turn, self._path, None if self._second else self._first, self._author):
            raise _faults.unsure(self._path) if turn.doubtful else _rows.exists(self._path)
        if self._second:
            self._fill(turn)
        if self._mtime:
            turn.change(
                "UPDATE holdfast.files SET changed = %(mtime)s WHERE tenant = %(tenant)s AND path = %(path)s",
                mtime=self._mtime, path=self._path,
            )  # fmt: skip

    def _done(self, turn: Turn) -> bool:
        found = _rows.look(turn, self._path)
        return bool(found and found.op == self._author.op)

    def _fill(self, turn: Turn) -> None:
        self._begun = True
        found = _rows.look(turn, self._path)
        assert found is not None
        _anew(turn, self._path, found.inode, itertools.chain([self._first, self._second], self._parts), self._author)


class Rewriting:
    """One change of lines, over all its tries; each asks anew what shall stand there."""

    def __init__(self, database: Database, path: str, change: Change, longest: int, author: _rows.Author) -> None:
        self._database = database
        self._path = path
        self._change = change
        self._longest = longest
        self._author = author
        self._seen = 0
        self._count = 0

    def attempt(self, turn: Turn) -> int:
        """Change lines of a file that nobody else can change meanwhile; return how many."""
        found = _rows.look(turn, self._path, hold=True)
        if turn.doubtful and found and found.op == self._author.op:
            return self._count
        if turn.doubtful and (not found or found.inode != self._seen):
            raise _faults.unsure(self._path)
        if not found:
            raise _rows.missing(turn, self._path)
        read = _rows.reader(self._database, self._path, found)
        changed = list(_changed(read, found, self._change, self._longest))
        self._seen, self._count = found.inode, len(changed)
        if not changed:
            turn.unchanged = True
        elif found.log:
            self._replace(turn, found, read, changed)
        else:
            _rows.replace(turn, self._path, found, b"".join(_spliced(read, found, changed)), self._author)
        return self._count

    def _replace(self, turn: Turn, found: _rows.Found, read: lines.Read, changed: list[tuple[Line, bytes]]) -> None:
        inode = _rows.renumber(turn, self._path, found, self._author)
        if all(len(new) == len(line.data) for line, new in changed):
            _rows.copy_pieces(turn, found.inode, inode)
            for line, new in changed:
                _rows.patch(turn, inode, line.offset, new)
        else:
            _anew(turn, self._path, inode, _spliced(read, found, changed), self._author)
        _rows.drop_pieces(turn, found.inode)


def _changed(read: lines.Read, found: _rows.Found, change: Change, longest: int) -> Iterator[tuple[Line, bytes]]:
    """Yield the lines that shall be others, each with what shall stand there, filled up to the old length."""
    for line in lines.forwards(read, 0, found.size, longest):
        wanted = line.data if line.cut else change(line.data)
        if wanted != line.data:
            yield line, wanted.ljust(len(line.data))


def _spliced(read: lines.Read, found: _rows.Found, changed: list[tuple[Line, bytes]]) -> Iterator[bytes]:
    """Yield the bytes of a file with other lines in it."""
    position = 0
    for line, new in changed:
        yield from chunks(read, position, line.offset)
        yield new
        position = line.offset + len(line.data)
    yield from chunks(read, position, found.size)


def _anew(turn: Turn, path: str, inode: int, data: Iterable[bytes], author: _rows.Author) -> None:
    size, torn = 0, False
    for part in parts(data, _rows.PIECE):
        _rows.add_piece(turn, inode, size, part, author)
        size, torn = size + len(part), not part.endswith(b"\n")
    turn.change(
        "UPDATE holdfast.files SET size = %(size)s, torn = %(torn)s WHERE tenant = %(tenant)s AND path = %(path)s",
        size=size, torn=torn, path=path,
    )  # fmt: skip


def chunks(read: lines.Read, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        chunk = read(min(_CHUNK, end - start), start)
        yield chunk
        start += len(chunk)


def snapshot(database: Database, path: str, *, log: bool) -> Snapshot:
    """Return a file as it is now. A small one is read at once; of a large one the rest comes when it is asked for."""
    found, data = database.ask(path, functools.partial(_small, path=path))
    if len(data) == found.size:
        size = data.rfind(b"\n") + 1 if log else len(data)
        return Snapshot(size, found.stamp.mtime, iter([data[:size]]))
    read = _rows.reader(database, path, found)
    size = _whole_lines(read, found.size) if log and found.torn else found.size
    return Snapshot(size, found.stamp.mtime, chunks(read, 0, size))


def _small(turn: Turn, path: str) -> tuple[_rows.Found, bytes]:
    there = _rows.whole(turn, path, _AT_ONCE)
    if not there:
        raise _rows.missing(turn, path)
    return there


def _whole_lines(read: lines.Read, end: int) -> int:
    """Return up to where a log consists of whole lines."""
    while end > 0:
        start = max(0, end - _BACK)
        found = read(end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
