"""Appending to logs, rewriting their lines, and claiming them for a running process.

An append locks the row of the log, lets the caller compose lines, adds them and commits. Lines are composed once: after
a lost connection the same lines are sent again only if the log is unchanged and does not have them yet. With `again`
they are composed again.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import LiteralString

import psycopg

from holdfast.errors import Busy, Conflict, HoldfastError, Invalid, Unavailable
from holdfast.storage.files import lines
from holdfast.storage.postgres import connections, rows
from holdfast.storage.postgres.connections import Session
from holdfast.storage.postgres.database import Database, Transaction
from holdfast.storage.postgres.rows import Author, FileRow
from holdfast.storage.tree import Appended, Line, LogEnd

Changed = list[tuple[Line, bytes]]
_TRIES = 100
_CHUNK = 1 << 20
_CHECK_SECONDS = 10.0
_PAUSE_SECONDS = 0.5
_ADDED: LiteralString = """
SELECT min(start), max(start + length(data)) FROM holdfast.pieces
WHERE tenant = %(tenant)s AND inode = %(inode)s AND start >= %(start)s AND op = %(op)s
"""
_GROW: LiteralString = """
WITH grown AS (
    UPDATE holdfast.files SET size = size + %(count)s, torn = %(torn)s, op = %(op)s, writer = %(writer)s,
        login = session_user, changed = clock_timestamp()
    WHERE tenant = %(tenant)s AND path = %(path)s AND inode = %(inode)s AND size = %(size)s RETURNING inode)
INSERT INTO holdfast.pieces (tenant, inode, start, data, op, writer)
SELECT %(tenant)s, grown.inode, part.start, part.data, %(op)s, %(writer)s
FROM grown, unnest(%(starts)s::bigint[], %(parts)b::bytea[]) AS part (start, data)
"""
_SPLIT: LiteralString = """
INSERT INTO holdfast.pieces (tenant, inode, start, data, op, writer)
SELECT tenant, inode, start, substring(data FROM (start + 1)::int FOR %(piece)s::int), op, writer
FROM holdfast.files, generate_series(0, size - 1, %(piece)s) AS start
WHERE tenant = %(tenant)s AND path = %(path)s
"""
_RENUMBER: LiteralString = """
UPDATE holdfast.files SET inode = %(inode)s, op = %(op)s, writer = %(writer)s, login = session_user,
    changed = clock_timestamp()
WHERE tenant = %(tenant)s AND path = %(path)s
"""
_PATCH: LiteralString = """
UPDATE holdfast.pieces SET data = overlay(data
    PLACING substring(%(data)b::bytea FROM (greatest(start - %(offset)s::bigint, 0) + 1)::int
                      FOR (least(start + length(data), %(end)s::bigint) - greatest(start, %(offset)s::bigint))::int)
    FROM (greatest(%(offset)s::bigint - start, 0) + 1)::int
    FOR (least(start + length(data), %(end)s::bigint) - greatest(start, %(offset)s::bigint))::int)
WHERE tenant = %(tenant)s AND inode = %(inode)s AND start < %(end)s AND start >= (
    SELECT max(start) FROM holdfast.pieces
    WHERE tenant = %(tenant)s AND inode = %(inode)s AND start <= %(offset)s)
"""


def locked(tx: Transaction, path: str, author: Author) -> tuple[FileRow, bool]:
    """Lock a file, and create it as an empty log if it is missing; return whether it was created."""
    for _ in range(_TRIES):
        row = rows.look(tx, path, hold=True)
        if row:
            return row, False
        rows.check_free(tx, path, Invalid(f"{path} is a folder.", "Name a file."))
        if rows.create(tx, path, None, author):
            made = rows.look(tx, path, hold=True)
            assert made is not None
            return made, True
    raise Busy(f"Other programs keep removing {path}; nothing was written.", "Try again.")


class End:
    """The end of a log, read only when it is asked for."""

    def __init__(self, read: lines.Read, size: int, line_bytes: int) -> None:
        self.size = size
        self._read = read
        self._line_bytes = line_bytes

    def back(self) -> Iterator[bytes]:
        return lines.HeldEnd(self._read, self.size, self._line_bytes).back()

    def lines(self, offset: int) -> Iterable[bytes]:
        return (line.data for line in lines.forwards(self._read, offset, self.size, self._line_bytes))


class Append:
    """One append, over all its attempts. With `again`, lines may be composed several times."""

    def __init__(
        self, database: Database, path: str, compose: Callable[[LogEnd], bytes], author: Author, line_bytes: int, *,
        again: bool,
    ) -> None:  # fmt: skip
        self._database = database
        self._path = path
        self._compose = compose
        self._author = author
        self._line_bytes = line_bytes
        self._again = again
        self._data: bytes | None = None
        self._seen: FileRow | None = None
        self._joined = False

    def attempt(self, tx: Transaction) -> Appended | None:
        """Add lines while the log is locked."""
        row, made = locked(tx, self._path, self._author)
        seen = self._seen
        if self._data is not None and seen and tx.doubtful:
            found = tx.row(_ADDED, inode=seen.inode, start=seen.size, op=self._author.op)
            if found and found[0] is not None:  # the earlier attempt was committed
                return Appended(*found)
        replaced = not seen or seen.inode != row.inode
        if self._data is None or (self._again and not self._joined and not (replaced and tx.doubtful)):
            before = tx.joined
            read = rows.reader(self._database, self._path, row)
            self._data, self._seen = self._compose(End(read, row.size, self._line_bytes)), row
            self._joined = self._joined or tx.joined > before
        else:
            assert seen is not None
            same = (row.inode, row.size) == (seen.inode, seen.size) or (made and seen.size == 0)
            if tx.doubtful and replaced and (self._joined or not same):
                raise connections.uncertain(self._path)
            if self._joined or not same:
                raise Unavailable(
                    f"{self._path}: the connection was lost before anything was saved.",
                    "Nothing was written; try again.",
                )
        if not self._data:
            tx.unchanged = not tx.joined
            return None
        return self._add(tx, row, b"\n" + self._data if row.torn else self._data)

    def _add(self, tx: Transaction, row: FileRow, data: bytes) -> Appended:
        if not row.log:
            tx.change(_SPLIT, path=self._path, piece=rows.PIECE)
            tx.change(
                "UPDATE holdfast.files SET log = true, data = NULL, version = NULL"
                " WHERE tenant = %(tenant)s AND path = %(path)s",
                path=self._path,
            )
        starts = range(0, len(data), rows.PIECE)
        grown = tx.change(
            _GROW, path=self._path, inode=row.inode, size=row.size, count=len(data), torn=rows.is_torn(data),
            op=self._author.op, writer=self._author.writer, starts=[row.size + start for start in starts],
            parts=[data[start : start + rows.PIECE] for start in starts],
        )  # fmt: skip
        if not grown:
            raise Conflict(
                f"{self._path} was changed while lines for it were composed; nothing was written.", "Try again."
            )
        return Appended(row.size, row.size + len(data))


class Rewrite:
    """One change of lines of a file, over all its attempts. A log keeps the writer and time of unchanged pieces."""

    def __init__(
        self, database: Database, path: str, change: Callable[[bytes], bytes], line_bytes: int, author: Author
    ) -> None:
        self._database = database
        self._path = path
        self._change = change
        self._line_bytes = line_bytes
        self._author = author
        self._seen = 0
        self._count = 0

    def attempt(self, tx: Transaction) -> int:
        """Change lines while the file is locked; return how many."""
        row = rows.look(tx, self._path, hold=True)
        if tx.doubtful and row and row.op == self._author.op:
            return self._count
        if tx.doubtful and (not row or row.inode != self._seen):
            raise connections.uncertain(self._path)
        if not row:
            raise rows.missing(tx, self._path)
        read = rows.reader(self._database, self._path, row)
        changed: Changed = []
        for line in lines.forwards(read, 0, row.size, self._line_bytes):
            wanted = line.data if line.cut else self._change(line.data)
            if wanted != line.data:
                changed.append((line, wanted.ljust(len(line.data))))
        self._seen, self._count = row.inode, len(changed)
        if not changed:
            tx.unchanged = True
        elif row.log:
            inode = rows.new_inode()
            tx.change(_RENUMBER, inode=inode, path=self._path, op=self._author.op, writer=self._author.writer)
            if all(len(new) == len(line.data) for line, new in changed):
                rows.copy_pieces(tx, row.inode, inode)
                for line, new in changed:
                    tx.change(_PATCH, inode=inode, offset=line.offset, end=line.offset + len(new), data=new)
            else:
                pieces = rows.resized(_spliced(read, row.size, changed))
                rows.write_pieces(tx, self._path, inode, pieces, self._author)
            rows.drop_pieces(tx, row.inode)
        else:
            rows.replace(tx, self._path, row, b"".join(_spliced(read, row.size, changed)), self._author)
        return self._count


def _spliced(read: lines.Read, size: int, changed: Changed) -> Iterator[bytes]:
    """Yield the bytes of a file with some lines replaced."""
    position = 0
    for line, new in changed:
        yield from chunks(read, position, line.offset)
        yield new
        position = line.offset + len(line.data)
    yield from chunks(read, position, size)


def chunks(read: lines.Read, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        chunk = read(min(_CHUNK, end - start), start)
        yield chunk
        start += len(chunk)


class Claims:
    """Which logs this process uses: advisory locks of a separate connection, which the server drops when it dies.

    A thread watches the connection. When it is lost, the claims that no other process has taken are taken again.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._session: Session | None = None
        self._wanted: set[int] = set()
        self._held: set[int] = set()
        """The claims that the server knows."""
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._closed = threading.Event()

    def take(self, inode: int) -> bool:
        """Claim a file; False when it is claimed already, even by this process."""
        with self._lock:
            if inode in self._wanted:
                return False
            try:
                got = _try_lock(self._connected(), inode)
            except psycopg.Error:
                got = _try_lock(self._reconnected(), inode)
            if got:
                self._wanted.add(inode)
                self._held.add(inode)
                if not self._watcher:
                    self._watcher = threading.Thread(target=self._watch, name="holdfast-claims", daemon=True)
                    self._watcher.start()
            return got

    def release(self, inode: int) -> None:
        with self._lock:
            self._wanted.discard(inode)
            if inode in self._held:
                self._held.discard(inode)
                with contextlib.suppress(psycopg.Error):
                    if self._session:
                        self._session.execute("SELECT pg_advisory_unlock(%s)", [inode])

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._wanted.clear()
            self._held.clear()
            if self._session:
                self._session.close()
                self._session = None

    def _watch(self) -> None:
        """Check the connection while there are claims: at once when the server sends something on it."""
        complete = True
        while not self._closed.is_set():
            session = self._session if complete else None
            try:  # wait for an unexpected message of the server, which is usually its last, or for a while
                select.select([session] if session else [], [], [], _CHECK_SECONDS if session else _PAUSE_SECONDS)
            except (OSError, ValueError, psycopg.Error):  # it was closed
                time.sleep(_PAUSE_SECONDS)
            with self._lock:
                if not self._wanted or self._closed.is_set():
                    self._watcher = None
                    return
                with contextlib.suppress(psycopg.Error):
                    if self._session:
                        self._session.execute("SELECT 1")
                with contextlib.suppress(psycopg.Error, HoldfastError):
                    session = self._connected()
                    self._held |= {inode for inode in self._wanted - self._held if _try_lock(session, inode)}
                complete = self._held == self._wanted

    def _connected(self) -> Session:
        return self._session if self._session and not self._session.closed else self._reconnected()

    def _reconnected(self) -> Session:
        if self._session:
            self._session.close()
        self._session = self._database.connect()
        self._held = {inode for inode in self._wanted if _try_lock(self._session, inode)}
        return self._session


def _try_lock(session: Session, inode: int) -> bool:
    row = session.execute("SELECT pg_try_advisory_lock(%s)", [inode]).fetchone()
    return bool(row and row[0])
