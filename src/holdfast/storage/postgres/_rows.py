"""Files as rows: finding one, reading its bytes, adding to it.

A document's bytes are in its own row. A log's are in pieces, each with the offset at which it starts; whoever adds
to a log holds its row, so that its pieces follow one another without a gap and become visible together with its size.
An inode is a random number: it tells nothing of what others have, and replaced bytes never come back under it.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import LiteralString

import msgspec

from holdfast.errors import AlreadyExists, Busy, Damaged, HoldfastError, Invalid, NotFound
from holdfast.model.names import check_path
from holdfast.model.records import version_of
from holdfast.storage.postgres.transactions import Database, Turn
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
_COMING: LiteralString = """
SELECT CASE WHEN shared THEN pg_advisory_xact_lock_shared(key) ELSE pg_advisory_xact_lock(key) END
FROM unnest(%(keys)s::bigint[], %(shared)s::boolean[]) AS coming (key, shared)
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


class Found(msgspec.Struct, frozen=True):
    """What the row of a file says, besides its bytes."""

    inode: int
    size: int
    log: bool
    torn: bool
    """Is the last line without its newline?"""
    version: str | None
    op: uuid.UUID
    """The write that the file is as it is from."""
    changed: datetime

    @property
    def stamp(self) -> Stamp:
        moment = round(self.changed.timestamp() * 1_000_000) * 1000
        return Stamp(self.size, moment, moment, self.inode)


class Left(msgspec.Struct, frozen=True):
    """How an append of ours left a log."""

    inode: int
    size: int
    tail: bytes
    """Its last line."""
    log: bool = True


class Author(msgspec.Struct, frozen=True):
    """One write: who makes it, and a number to know it by."""

    writer: str
    op: uuid.UUID = msgspec.field(default_factory=uuid.uuid4)


def checked(path: str) -> tuple[str, ...]:
    """Return the parts of a path that a database can hold, or refuse it."""
    parts = check_path(path)
    if len(path) * 4 > _LONGEST_PATH and len(path.encode()) > _LONGEST_PATH:
        raise Invalid(f"{path[:80]!r}… is longer than {_LONGEST_PATH:,} bytes.", "Shorten it.")
    return parts


def new_inode() -> int:
    return secrets.randbits(62) + 1


def look(turn: Turn, path: str, *, hold: bool = False) -> Found | None:
    """Return what is at a path; with `hold`, nobody else changes it until the transaction ends."""
    row = turn.row(_BY_PATH + " FOR UPDATE" if hold else _BY_PATH, path=path)
    return Found(*row) if row else None


def whole(turn: Turn, path: str, limit: int) -> tuple[Found, bytes] | None:
    """Return what is at a path with its bytes, which are left out beyond a limit; a replacement never falls between."""
    before = 0
    while row := turn.row(_WHOLE, path=path, limit=limit):
        found, data = Found(*row[:-1]), row[-1]
        if limit and found.size > limit:
            return found, b""
        if found.log:
            data = part(turn, path, found, 0, found.size)
        if len(data) == found.size:
            return found, bytes(data)
        if found.inode == before:
            raise _damaged(path, len(data))
        before = found.inode
    return None


def is_folder(turn: Turn, path: str) -> bool:
    return turn.row(_BELOW, path=path) is not None


def missing(turn: Turn, path: str) -> HoldfastError:
    if is_folder(turn, path):
        return Invalid(f"{path} is not a file, but a folder.", "Name a file.")
    return NotFound(f"{path} is not there.", "Check the path.")


def exists(path: str) -> AlreadyExists:
    return AlreadyExists(f"{path} already exists; nothing was written.", "Choose another name, or change that one.")


def check_free(turn: Turn, path: str, taken: Callable[[], HoldfastError]) -> None:
    """See that a new file at this path has no file for a folder, and is no folder itself, and will not become so.

    Until the transaction ends its folders stay folders, and nobody makes a folder of it; others are not held up.
    """
    folders = above(path)
    keys = [key(turn.tenant, name) for name in (*folders, path)]
    turn.rows(_COMING, keys=keys, shared=[True] * len(folders) + [False])
    if folders and turn.row(
        "SELECT 1 FROM holdfast.files WHERE tenant = %(tenant)s AND path = ANY(%(above)s)", above=folders
    ):
        raise Invalid(f"A folder of {path} is a file.", "Move that file away.")
    if is_folder(turn, path):
        raise taken()


def above(path: str) -> list[str]:
    """Return the folders that a path lies in, from the top."""
    parts = checked(path)
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def key(tenant: str, path: str) -> int:
    """Return the number under which the making of a file is announced; those of claims are positive."""
    digest = hashlib.blake2b(f"{tenant}\n{path}".encode(), digest_size=8).digest()
    return -(int.from_bytes(digest) >> 2) - 1


def reader(database: Database, path: str, found: Found | Left) -> Callable[[int, int], bytes]:
    """Return what reads the bytes of a file, some at a time, each time in a short transaction."""

    def read(count: int, position: int) -> bytes:
        end = min(position + count, found.size)
        if position >= end:
            return b""
        data = database.ask(path, functools.partial(part, path=path, found=found, position=position, end=end))
        if len(data) < end - position:
            now = database.ask(path, functools.partial(look, path=path))
            if now and now.inode == found.inode:
                raise _damaged(path, position + len(data))
            raise Busy(f"{path} was replaced or removed while it was read.", "Read it again.")
        return data

    return read


def _damaged(path: str, offset: int) -> HoldfastError:
    return Damaged(f"{path}: bytes are missing at offset {offset}.", "Restore it from a backup.")


def part(turn: Turn, path: str, found: Found | Left, position: int, end: int) -> bytes:
    """Return the bytes between two offsets; fewer when the file was removed or replaced meanwhile."""
    if not found.log:
        row = turn.row(_DOCUMENT_PART, path=path, inode=found.inode, start=position + 1, count=end - position)
        return bytes(row[0]) if row and row[0] is not None else b""
    data = bytearray()
    for start, piece in turn.rows(_LOG_PART, inode=found.inode, position=position, end=end):
        if start != position + len(data):
            raise _damaged(path, position + len(data))
        data += piece
    return bytes(data)


def version(turn: Turn, path: str, found: Found) -> str:
    """Return the version of a file's bytes; that of a log has to be worked out."""
    return found.version or version_of(part(turn, path, found, 0, found.size))


def create(turn: Turn, path: str, data: bytes | None, author: Author) -> bool:
    """Put a document, or an empty log, where nothing is; False when something came there first."""
    statement: LiteralString = """
        INSERT INTO holdfast.files (tenant, path, inode, size, log, torn, version, data, op, writer)
        VALUES (%(tenant)s, %(path)s, %(inode)s, %(size)s, %(log)s, %(torn)s, %(version)s, %(data)b, %(op)s, %(writer)s)
        ON CONFLICT (tenant, path) DO NOTHING"""
    return turn.change(statement, path=path, **_content(data), op=author.op, writer=author.writer) > 0


def replace(turn: Turn, path: str, found: Found, data: bytes, author: Author) -> None:
    """Put other bytes at a path that is held."""
    if found.log:
        drop_pieces(turn, found.inode)
    statement: LiteralString = """
        UPDATE holdfast.files SET inode = %(inode)s, size = %(size)s, log = %(log)s, torn = %(torn)s,
            version = %(version)s, data = %(data)b, op = %(op)s, writer = %(writer)s, login = session_user,
            changed = clock_timestamp()
        WHERE tenant = %(tenant)s AND path = %(path)s"""
    turn.change(statement, path=path, **_content(data), op=author.op, writer=author.writer)


def is_torn(data: bytes | None) -> bool:
    """Is the last line without its newline?"""
    return bool(data) and not (data or b"").endswith(b"\n")


def _content(data: bytes | None) -> dict[str, object]:
    return {
        "inode": new_inode(),
        "size": len(data or b""),
        "log": data is None,
        "torn": is_torn(data),
        "version": None if data is None else version_of(data),
        "data": data,
    }


def keep(turn: Turn, path: str, found: Found, kept: str, author: Author) -> None:
    """Let the bytes that are about to be replaced stay under another path, unless something is there."""
    check_free(turn, kept, lambda: exists(kept))
    inode = new_inode()
    copied = turn.change(
        """INSERT INTO holdfast.files (tenant, path, inode, size, log, torn, version, data, op, writer)
        SELECT tenant, %(kept)s, %(inode)s, size, log, torn, version, data, %(op)s, %(writer)s
        FROM holdfast.files WHERE tenant = %(tenant)s AND path = %(path)s
        ON CONFLICT (tenant, path) DO NOTHING""",
        path=path, kept=kept, inode=inode, op=author.op, writer=author.writer,
    )  # fmt: skip
    if copied and found.log:
        copy_pieces(turn, found.inode, inode)


def copy_pieces(turn: Turn, inode: int, other: int) -> None:
    """Give another file the same pieces, with who wrote each and when."""
    turn.change(
        """INSERT INTO holdfast.pieces (tenant, inode, start, data, op, writer, login, at)
        SELECT tenant, %(other)s, start, data, op, writer, login, at
        FROM holdfast.pieces WHERE tenant = %(tenant)s AND inode = %(inode)s""",
        inode=inode, other=other,
    )  # fmt: skip


def add_piece(turn: Turn, inode: int, start: int, data: bytes, author: Author) -> None:
    turn.change(
        """INSERT INTO holdfast.pieces (tenant, inode, start, data, op, writer)
        VALUES (%(tenant)s, %(inode)s, %(start)s, %(data)b, %(op)s, %(writer)s)""",
        inode=inode, start=start, data=data, op=author.op, writer=author.writer,
    )  # fmt: skip


def patch(turn: Turn, inode: int, offset: int, data: bytes) -> None:
    """Put bytes in the place of as many others; they may lie in several pieces."""
    turn.change(_PATCH, inode=inode, offset=offset, end=offset + len(data), data=data)


def renumber(turn: Turn, path: str, found: Found, author: Author) -> int:
    """Give a log that is held another inode, which has no pieces yet."""
    inode = new_inode()
    turn.change(
        """UPDATE holdfast.files SET inode = %(inode)s, op = %(op)s, writer = %(writer)s, login = session_user,
            changed = clock_timestamp()
        WHERE tenant = %(tenant)s AND path = %(path)s AND inode = %(old)s""",
        inode=inode, path=path, old=found.inode, op=author.op, writer=author.writer,
    )  # fmt: skip
    return inode


def drop(turn: Turn, path: str, found: Found) -> None:
    if found.log:
        drop_pieces(turn, found.inode)
    turn.change("DELETE FROM holdfast.files WHERE tenant = %(tenant)s AND path = %(path)s", path=path)


def drop_pieces(turn: Turn, inode: int) -> None:
    turn.change("DELETE FROM holdfast.pieces WHERE tenant = %(tenant)s AND inode = %(inode)s", inode=inode)


def make_log(turn: Turn, path: str, found: Found) -> None:
    """Turn a document that is held into a log, with the same bytes."""
    turn.change(
        """INSERT INTO holdfast.pieces (tenant, inode, start, data, op, writer)
        SELECT tenant, inode, start, substring(data FROM (start + 1)::int FOR %(piece)s::int), op, writer
        FROM holdfast.files, generate_series(0, size - 1, %(piece)s) AS start
        WHERE tenant = %(tenant)s AND path = %(path)s AND inode = %(inode)s""",
        path=path, inode=found.inode, piece=PIECE,
    )  # fmt: skip
    turn.change(
        """UPDATE holdfast.files SET log = true, data = NULL, version = NULL
        WHERE tenant = %(tenant)s AND path = %(path)s""",
        path=path,
    )


def grow(turn: Turn, path: str, found: Found, data: bytes, author: Author) -> bool:
    """Add bytes to a log that is held; False when it is not any more as it was found."""
    starts = range(0, len(data), PIECE)
    added = turn.change(
        """WITH grown AS (
            UPDATE holdfast.files SET size = size + %(count)s, torn = %(torn)s, op = %(op)s, writer = %(writer)s,
                login = session_user, changed = clock_timestamp()
            WHERE tenant = %(tenant)s AND path = %(path)s AND inode = %(inode)s AND size = %(size)s RETURNING inode)
        INSERT INTO holdfast.pieces (tenant, inode, start, data, op, writer)
        SELECT %(tenant)s, grown.inode, part.start, part.data, %(op)s, %(writer)s
        FROM grown, unnest(%(starts)s::bigint[], %(parts)b::bytea[]) AS part (start, data)""",
        path=path, inode=found.inode, size=found.size, count=len(data), torn=not data.endswith(b"\n"),
        op=author.op, writer=author.writer,
        starts=[found.size + start for start in starts], parts=[data[start : start + PIECE] for start in starts],
    )  # fmt: skip
    return added > 0
