"""Files as rows of a database.

A document's bytes are in its own row. A log's bytes are in pieces, each with the offset at which it starts; a writer
locks the row of the log, so pieces follow one another without a gap and become visible together with the new size.
An inode is a random number: it reveals nothing about other tenants, and is never used again for other bytes.
"""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import LiteralString

import msgspec

from holdfast.errors import AlreadyExists, Busy, Damaged, HoldfastError, Invalid, NotFound
from holdfast.model.names import check_path
from holdfast.model.records import version_of
from holdfast.storage.postgres.database import Database, Transaction
from holdfast.storage.tree import Stamp

PIECE = 1 << 18
_LONGEST_PATH = 2000
_COLUMNS: LiteralString = "SELECT inode, size, log, torn, version, op, changed"
_BY_PATH: LiteralString = _COLUMNS + " FROM holdfast.files WHERE tenant = %(tenant)s AND path = %(path)s"
_WHOLE: LiteralString = (
    _COLUMNS + ", CASE WHEN %(limit)s = 0 OR size <= %(limit)s THEN data END"
    " FROM holdfast.files WHERE tenant = %(tenant)s AND path = %(path)s"
)
_BELOW: LiteralString = (
    "SELECT 1 FROM holdfast.files"
    " WHERE tenant = %(tenant)s AND path > %(path)s || '/' AND path < %(path)s || '0' LIMIT 1"
)
_RESERVE: LiteralString = """
SELECT CASE WHEN shared THEN pg_advisory_xact_lock_shared(key) ELSE pg_advisory_xact_lock(key) END
FROM unnest(%(keys)s::bigint[], %(shared)s::boolean[]) AS wanted (key, shared)
"""
_LOG_PART: LiteralString = """
SELECT greatest(start, %(position)s::bigint),
       substring(data FROM (greatest(%(position)s::bigint - start, 0) + 1)::int
                      FOR (%(end)s::bigint - greatest(start, %(position)s::bigint))::int)
FROM holdfast.pieces
WHERE tenant = %(tenant)s AND inode = %(inode)s AND start < %(end)s AND start >= (
    SELECT max(start) FROM holdfast.pieces
    WHERE tenant = %(tenant)s AND inode = %(inode)s AND start <= %(position)s)
ORDER BY start
"""
_DOCUMENT_PART: LiteralString = """
SELECT substring(data FROM %(start)s::int FOR %(count)s::int) FROM holdfast.files
WHERE tenant = %(tenant)s AND path = %(path)s AND inode = %(inode)s
"""


class FileRow(msgspec.Struct, frozen=True):
    """The row of a file, without its bytes."""

    inode: int
    size: int
    log: bool
    torn: bool
    """The last line has no newline."""
    version: str | None
    op: uuid.UUID
    """The write that made the file what it is."""
    changed: datetime

    @property
    def stamp(self) -> Stamp:
        moment = round(self.changed.timestamp() * 1_000_000) * 1000
        return Stamp(self.size, moment, moment, self.inode)


class Author(msgspec.Struct, frozen=True):
    """The writer of a change, and a unique id by which it is recognised after a lost connection."""

    writer: str
    op: uuid.UUID = msgspec.field(default_factory=uuid.uuid4)


def checked(path: str) -> tuple[str, ...]:
    """Return the parts of a path, or refuse one that a database cannot store."""
    parts = check_path(path)
    if len(path) * 4 > _LONGEST_PATH and len(path.encode()) > _LONGEST_PATH:
        raise Invalid(f"{path[:80]!r}… is longer than {_LONGEST_PATH:,} bytes.", "Shorten it.")
    return parts


def new_inode() -> int:
    return secrets.randbits(62) + 1


def look(tx: Transaction, path: str, *, hold: bool = False) -> FileRow | None:
    """Return the row of a file; with `hold`, lock it until the transaction ends."""
    row = tx.row(_BY_PATH + " FOR UPDATE" if hold else _BY_PATH, path=path)
    return FileRow(*row) if row else None


def found(tx: Transaction, path: str) -> FileRow:
    row = look(tx, path)
    if not row:
        raise missing(tx, path)
    return row


def whole(tx: Transaction, path: str, limit: int) -> tuple[FileRow, bytes]:
    """Return a file with its bytes, which are left out beyond a limit, as of one moment."""
    before = 0
    while values := tx.row(_WHOLE, path=path, limit=limit):
        row, data = FileRow(*values[:-1]), values[-1]
        if limit and row.size > limit:
            return row, b""
        if row.log:
            data = part(tx, path, row, 0, row.size)
        if len(data) == row.size:
            return row, bytes(data)
        if row.inode == before:  # it was not replaced meanwhile
            raise _damaged(path, len(data))
        before = row.inode
    raise missing(tx, path)


def is_folder(tx: Transaction, path: str) -> bool:
    return tx.row(_BELOW, path=path) is not None


def missing(tx: Transaction, path: str) -> HoldfastError:
    if is_folder(tx, path):
        return Invalid(f"{path} is not a file, but a folder.", "Name a file.")
    return NotFound(f"{path} is not there.", "Check the path.")


def exists(path: str) -> AlreadyExists:
    return AlreadyExists(f"{path} already exists; nothing was written.", "Choose another name, or change that one.")


def check_free(tx: Transaction, path: str, taken: HoldfastError | None = None) -> None:
    """Refuse a new file below another file, or at the path of a folder (with the error `taken`).

    Advisory locks keep it so until the transaction ends, without blocking other files of the same folders.
    """
    folders = above(path)
    keys = [key(tx.tenant, name) for name in (*folders, path)]
    tx.rows(_RESERVE, keys=keys, shared=[True] * len(folders) + [False])
    statement: LiteralString = "SELECT 1 FROM holdfast.files WHERE tenant = %(tenant)s AND path = ANY(%(above)s)"
    if folders and tx.row(statement, above=folders):
        raise Invalid(f"A folder of {path} is a file.", "Move that file away.")
    if is_folder(tx, path):
        raise taken or exists(path)


def above(path: str) -> list[str]:
    """Return the folders of a path, from the top."""
    parts = checked(path)
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def key(tenant: str, path: str) -> int:
    """Return the advisory lock for creating a file. It is negative; those of claims are inodes, which are positive."""
    digest = hashlib.blake2b(f"{tenant}\n{path}".encode(), digest_size=8).digest()
    return -(int.from_bytes(digest) >> 2) - 1


def reader(database: Database, path: str, row: FileRow) -> Callable[[int, int], bytes]:
    """Return a function that reads some bytes of a file, each time in a short transaction."""

    def read(count: int, position: int) -> bytes:
        end = min(position + count, row.size)
        if position >= end:
            return b""
        data = database.ask(path, lambda tx: part(tx, path, row, position, end))
        if len(data) < end - position:
            now = database.ask(path, lambda tx: look(tx, path))
            if now and now.inode == row.inode:
                raise _damaged(path, position + len(data))
            raise Busy(f"{path} was replaced or removed while it was read.", "Read it again.")
        return data

    return read


def _damaged(path: str, offset: int) -> HoldfastError:
    return Damaged(f"{path}: bytes are missing at offset {offset}.", "Restore it from a backup.")


def part(tx: Transaction, path: str, row: FileRow, position: int, end: int) -> bytes:
    """Return the bytes between two offsets; fewer when the file was removed or replaced meanwhile."""
    if not row.log:
        values = tx.row(_DOCUMENT_PART, path=path, inode=row.inode, start=position + 1, count=end - position)
        return bytes(values[0]) if values and values[0] is not None else b""
    data = bytearray()
    for start, piece in tx.rows(_LOG_PART, inode=row.inode, position=position, end=end):
        if start != position + len(data):
            raise _damaged(path, position + len(data))
        data += piece
    return bytes(data)


def version(tx: Transaction, path: str, row: FileRow) -> str:
    """Return the version of a file's bytes, which for a log has to be computed."""
    return row.version or version_of(part(tx, path, row, 0, row.size))


def create(tx: Transaction, path: str, data: bytes | None, author: Author) -> bool:
    """Create a document, or an empty log; False when the path is taken."""
    statement: LiteralString = """
        INSERT INTO holdfast.files (tenant, path, inode, size, log, torn, version, data, op, writer)
        VALUES (%(tenant)s, %(path)s, %(inode)s, %(size)s, %(log)s, %(torn)s, %(version)s, %(data)b, %(op)s, %(writer)s)
        ON CONFLICT (tenant, path) DO NOTHING"""
    return tx.change(statement, path=path, **_content(data), op=author.op, writer=author.writer) > 0


def replace(tx: Transaction, path: str, row: FileRow, data: bytes, author: Author) -> None:
    """Replace the bytes of a file that is locked."""
    if row.log:
        drop_pieces(tx, row.inode)
    statement: LiteralString = """
        UPDATE holdfast.files SET inode = %(inode)s, size = %(size)s, log = %(log)s, torn = %(torn)s,
            version = %(version)s, data = %(data)b, op = %(op)s, writer = %(writer)s, login = session_user,
            changed = clock_timestamp()
        WHERE tenant = %(tenant)s AND path = %(path)s"""
    tx.change(statement, path=path, **_content(data), op=author.op, writer=author.writer)


def is_torn(data: bytes) -> bool:
    """Return whether the last line has no newline."""
    return bool(data) and not data.endswith(b"\n")


def _content(data: bytes | None) -> dict[str, object]:
    return {
        "inode": new_inode(),
        "size": len(data or b""),
        "log": data is None,
        "torn": is_torn(data or b""),
        "version": None if data is None else version_of(data),
        "data": data,
    }


def keep(tx: Transaction, path: str, row: FileRow, copy: str, author: Author) -> None:
    """Copy the bytes that are about to be replaced to another path, unless that exists."""
    check_free(tx, copy)
    inode = new_inode()
    copied = tx.change(
        """INSERT INTO holdfast.files (tenant, path, inode, size, log, torn, version, data, op, writer)
        SELECT tenant, %(copy)s, %(inode)s, size, log, torn, version, data, %(op)s, %(writer)s
        FROM holdfast.files WHERE tenant = %(tenant)s AND path = %(path)s
        ON CONFLICT (tenant, path) DO NOTHING""",
        path=path, copy=copy, inode=inode, op=author.op, writer=author.writer,
    )  # fmt: skip
    if copied and row.log:
        copy_pieces(tx, row.inode, inode)


def copy_pieces(tx: Transaction, inode: int, other: int) -> None:
    """Copy the pieces of a log to another inode, with the writer and time of each."""
    tx.change(
        """INSERT INTO holdfast.pieces (tenant, inode, start, data, op, writer, login, at)
        SELECT tenant, %(other)s, start, data, op, writer, login, at
        FROM holdfast.pieces WHERE tenant = %(tenant)s AND inode = %(inode)s""",
        inode=inode, other=other,
    )  # fmt: skip


def drop(tx: Transaction, path: str, row: FileRow) -> None:
    if row.log:
        drop_pieces(tx, row.inode)
    tx.change("DELETE FROM holdfast.files WHERE tenant = %(tenant)s AND path = %(path)s", path=path)


def drop_pieces(tx: Transaction, inode: int) -> None:
    tx.change("DELETE FROM holdfast.pieces WHERE tenant = %(tenant)s AND inode = %(inode)s", inode=inode)


def write_pieces(tx: Transaction, path: str, inode: int, pieces: Iterable[bytes], author: Author) -> None:
    """Store the bytes of a log that has no pieces yet; each of `pieces` but the last has `PIECE` bytes."""
    size, torn = 0, False
    for data in pieces:
        tx.change(
            """INSERT INTO holdfast.pieces (tenant, inode, start, data, op, writer)
            VALUES (%(tenant)s, %(inode)s, %(start)s, %(data)b, %(op)s, %(writer)s)""",
            inode=inode, start=size, data=data, op=author.op, writer=author.writer,
        )  # fmt: skip
        size, torn = size + len(data), is_torn(data)
    tx.change(
        "UPDATE holdfast.files SET size = %(size)s, torn = %(torn)s WHERE tenant = %(tenant)s AND path = %(path)s",
        size=size, torn=torn, path=path,
    )  # fmt: skip


def resized(chunks: Iterable[bytes], size: int = PIECE) -> Iterator[bytes]:
    """Yield the same bytes in parts of one size; the last may be smaller."""
    waiting = bytearray()
    for chunk in chunks:
        waiting += chunk
        while len(waiting) >= size:
            yield bytes(waiting[:size])
            del waiting[:size]
    if waiting:
        yield bytes(waiting)
