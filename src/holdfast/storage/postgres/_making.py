"""Making a document: in one message, or step by step where something is in the way or others have to be woken."""

from __future__ import annotations

import functools

from holdfast.model.records import version_of
from holdfast.storage.postgres import _faults, _rows
from holdfast.storage.postgres.sessions import Call
from holdfast.storage.postgres.transactions import AT_ONCE_SECONDS, Database, Turn, milliseconds

_AT_ONCE = b"SELECT holdfast.make_%02d($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
_BINARY = (0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0)


def make(database: Database, path: str, data: bytes, author: _rows.Author) -> None:
    """Put a document where nothing is. What cannot be done at once is done step by step, which tells why."""
    done = database.at_once(path, _call(database, path, data, author)) if database.direct else b""
    if done != b"t":
        work = functools.partial(_step_by_step, path=path, data=data, author=author)
        database.run(path, work, writes=True, doubtful=done is None)


def _step_by_step(turn: Turn, path: str, data: bytes, author: _rows.Author) -> None:
    _rows.check_free(turn, path, lambda: _rows.exists(path))
    if not _rows.create(turn, path, data, author):
        found = _rows.look(turn, path)
        if not (turn.doubtful and found and found.op == author.op):
            raise _faults.unsure(path) if turn.doubtful else _rows.exists(path)


def _call(database: Database, path: str, data: bytes, author: _rows.Author) -> Call:
    above = _rows.above(path)
    quoted = ",".join('"{}"'.format(name.replace('"', '\\"')) for name in above)
    announced = ",".join(str(_rows.key(database.tenant, name)) for name in (*above, path))
    values = (
        database.tenant.encode(), path.encode(), b"{%s}" % quoted.encode(), b"{%s}" % announced.encode(),
        b"%d" % _rows.new_inode(), b"t" if _rows.is_torn(data) else b"f", version_of(data).encode(), data,
        author.op.bytes, author.writer.encode(), milliseconds(AT_ONCE_SECONDS).encode(),
        database.asks(durable=True).encode(),
    )  # fmt: skip
    return Call(_AT_ONCE % database.part, values, _BINARY)
