"""The vault in a database: documents and logs of one tenant, as rows (docs/decisions/018).

A folder is there as long as a file is in it. There are no links. A stamp is exact here: every replacement has an
inode of its own, and a log that grew is larger.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import LiteralString

from psycopg import errors as pg

from holdfast.errors import Busy, Conflict, Invalid, NotFound, OverBudget
from holdfast.model.records import version_of
from holdfast.storage.files import lines
from holdfast.storage.postgres import _faults, _making, _many, _rows, _whole
from holdfast.storage.postgres._appending import Appending, Ways, held
from holdfast.storage.postgres._claims import Claims
from holdfast.storage.postgres.transactions import Database, Turn
from holdfast.storage.tree import ABSENT, Appended, Document, Line, LogEnd, Snapshot, Stamp

_CHUNK = 1 << 20
_PAGE = 1000
_TRIES = 100
_LOW = 10**18
"""Stamps of folders stay below any moment of today in nanoseconds: who keeps an answer by one need not wait."""
_WALK: LiteralString = """
SELECT path, inode, size, log, torn, version, op, changed FROM holdfast.files
WHERE tenant = %(tenant)s AND path > %(after)s AND path < %(folder)s || '0'
  AND path LIKE ANY(%(endings)s) AND position('/.' in substring(path FROM %(shown)s::int)) = 0
ORDER BY path LIMIT %(page)s
"""
_FOLDERS: LiteralString = """
WITH RECURSIVE step(folder) AS (
    (SELECT folder FROM holdfast.files
     WHERE tenant = %(tenant)s AND folder >= %(start)s AND folder < %(stop)s ORDER BY folder LIMIT 1)
    UNION ALL
    SELECT (SELECT folder FROM holdfast.files
            WHERE tenant = %(tenant)s AND folder < %(stop)s AND folder > CASE
                WHEN position('/' in substring(step.folder FROM %(skip)s::int)) = 0 THEN step.folder
                ELSE %(start)s || split_part(substring(step.folder FROM %(skip)s::int), '/', 1) || '0' END
            ORDER BY folder LIMIT 1)
    FROM step WHERE step.folder IS NOT NULL
)
SELECT DISTINCT split_part(substring(folder FROM %(skip)s::int), '/', 1) FROM step WHERE folder IS NOT NULL
"""


class PgVault:
    """A vault on a database, which it closes when it is closed; `writer` is noted with every write."""

    def __init__(self, database: Database, *, line_bytes: int = 8 << 20, writer: str = "") -> None:
        self.location = database.location
        self._database = database
        self._claims = Claims(database)
        self._ways = Ways(database, line_bytes)
        self._line_bytes = line_bytes
        self._writer = writer

    exact = True

    def close(self) -> None:
        self._claims.close()
        self._database.close()

    # documents

    def read(self, path: str, limit: int = 0) -> Document:
        _rows.checked(path)
        return self._database.ask(path, functools.partial(self._read, path=path, limit=limit))

    def _read(self, turn: Turn, path: str, limit: int) -> Document:
        there = _rows.whole(turn, path, limit)
        if not there:
            raise _rows.missing(turn, path)
        found, data = there
        if limit and found.size > limit:
            raise OverBudget(
                f"{path} has {found.size:,} bytes; the limit is {limit:,}.", "Split it, or raise limits.document_bytes."
            )
        return Document(data, found.version or version_of(data), found.stamp)

    def write(self, path: str, data: bytes, *, expect: str, keep: str = "") -> str:
        for name in filter(None, (path, keep)):
            _rows.checked(name)
        author = _rows.Author(self._writer)
        if expect == ABSENT:
            _making.make(self._database, path, data, author)
        else:
            work = functools.partial(self._replace, path=path, data=data, expect=expect, keep=keep, author=author)
            self._database.run(path, work, writes=True)
        return version_of(data)

    def create(self, path: str, chunks: Iterable[bytes], *, mtime: int = 0, durable: bool = True) -> None:
        _rows.checked(path)
        creating = _whole.Creating(path, chunks, mtime, _rows.Author(self._writer))
        self._database.run(path, creating.attempt, writes=True, durable=durable)

    def settle(self) -> None:
        self._database.run("The memory", _settle, writes=True)

    def _replace(self, turn: Turn, path: str, data: bytes, expect: str, keep: str, author: _rows.Author) -> None:
        found = _rows.look(turn, path, hold=True)
        if turn.doubtful and found and found.op == author.op:
            return
        _compare(turn, path, found, expect)
        assert found is not None
        if keep:
            _rows.keep(turn, path, found, keep, author)
        _rows.replace(turn, path, found, data, author)

    def versions(self, paths: Sequence[str]) -> dict[str, str]:
        return self._database.ask("the versions of documents", functools.partial(_many.versions, paths=paths))

    def create_all(self, files: Mapping[str, bytes]) -> set[str]:
        for path in files:
            _rows.checked(path)
        work = functools.partial(_many.create, files=files, author=_rows.Author(self._writer))
        return self._database.run(f"{len(files)} documents", work, writes=True) if files else set()

    # logs

    def append(
        self, path: str, compose: Callable[[LogEnd], bytes], *, durable: bool = True, again: bool = False
    ) -> Appended | None:
        _rows.checked(path)
        return Appending(self._ways, path, compose, _rows.Author(self._writer), again=again).run(durable)

    def rewrite(self, path: str, change: Callable[[bytes], bytes]) -> int:
        _rows.checked(path)
        author = _rows.Author(self._writer)
        rewriting = _whole.Rewriting(self._database, path, change, self._line_bytes, author)
        return self._database.run(path, rewriting.attempt, writes=True)

    @contextlib.contextmanager
    def snapshot(self, path: str, *, log: bool = False) -> Iterator[Snapshot]:
        _rows.checked(path)
        yield _whole.snapshot(self._database, path, log=log)

    def scan(self, path: str, offset: int = 0, end: int | None = None) -> Iterator[Line]:
        found = self._found(path)
        stop = found.size if end is None else end
        yield from lines.forwards(_rows.reader(self._database, path, found), offset, stop, self._line_bytes)

    def scan_back(self, path: str) -> Iterator[Line]:
        found = self._found(path)
        yield from lines.backwards(_rows.reader(self._database, path, found), found.size, self._line_bytes)

    def fingerprint(self, path: str, start: int, end: int, checksum: int = 0) -> int:
        found = self._found(path)
        read = _rows.reader(self._database, path, found)
        position = start
        while position < end:
            try:
                chunk = read(min(_CHUNK, end - position), position)
            except Busy:  # these bytes are gone
                return -1
            if not chunk:
                return -1
            checksum = zlib.crc32(chunk, checksum)
            position += len(chunk)
        return checksum

    # the tree

    def stat(self, path: str) -> Stamp | None:
        try:
            return self._found(path).stamp
        except NotFound:
            return None

    def walk(
        self,
        folder: str,
        suffixes: tuple[str, ...],
        blocked: Callable[[str, str], None],  # noqa: ARG002  # nothing in a database is out of reach by itself
        linked: Callable[[str], None] = lambda _path: None,  # noqa: ARG002
    ) -> Iterator[tuple[str, Stamp]]:
        _rows.checked(folder)
        found = self._database.ask(folder, functools.partial(_rows.look, path=folder))
        if found:
            yield folder, found.stamp
        after = folder + "/"
        while page := self._database.ask(
            folder, functools.partial(_walk, folder=folder, suffixes=suffixes, after=after)
        ):
            yield from page
            after = page[-1][0]

    def folders(self, folder: str) -> list[str]:
        _rows.checked(folder)
        values = {"start": folder + "/", "stop": folder + "0", "skip": len(folder) + 2}
        rows = self._database.ask(folder, lambda turn: turn.rows(_FOLDERS, **values))
        return sorted(row[0] for row in rows if row[0][0] not in "._")

    def folder_stamp(self, folder: str) -> int:
        _rows.checked(folder)
        return self._database.ask(folder, functools.partial(_folder_stamp, folder=folder))

    def make_folder(self, folder: str) -> None:
        parts = _rows.checked(folder)
        for count in range(1, len(parts) + 1):
            if self._database.ask(folder, functools.partial(_rows.look, path="/".join(parts[:count]))):
                raise Invalid(f"{folder} is not a folder.", "Choose another name.")

    def hold(self, path: str) -> Callable[[], None] | None:
        _rows.checked(path)
        author = _rows.Author(self._writer)
        for _ in range(_TRIES):
            inode = self._database.run(path, lambda turn: held(turn, path, author)[0].inode, writes=True)
            if not self._claims.take(inode):
                return None
            stamp = self.stat(path)
            if stamp and stamp.inode == inode:
                return functools.partial(self._claims.release, inode)
            self._claims.release(inode)
        raise Busy(f"{path} is removed by others all the time.", "Try again.")

    def link(self, path: str, target: str) -> None:
        _rows.checked(path)
        raise Invalid(f"{path} cannot lead to {target}: a database has no links.", "Use a memory in files for that.")

    def target(self, path: str) -> str | None:
        _rows.checked(path)
        return None

    def move(self, source: str, target: str) -> None:
        for name in (source, target):
            _rows.checked(name)
        author = _rows.Author(self._writer)
        work = functools.partial(self._move, source=source, target=target, author=author)
        self._database.run(source, work, writes=True)

    def _move(self, turn: Turn, source: str, target: str, author: _rows.Author) -> None:
        found = _rows.look(turn, source, hold=True)
        if not found:
            there = _rows.look(turn, target) if turn.doubtful else None
            if there and there.op == author.op:
                return
            raise _faults.unsure(source) if turn.doubtful else _rows.missing(turn, source)
        _rows.check_free(turn, target, lambda: _rows.exists(target))
        try:
            turn.change(
                """UPDATE holdfast.files SET path = %(target)s, op = %(op)s, writer = %(writer)s, login = session_user
                WHERE tenant = %(tenant)s AND path = %(source)s""",
                source=source, target=target, op=author.op, writer=author.writer,
            )  # fmt: skip
        except pg.UniqueViolation:
            raise _rows.exists(target) from None

    def remove(self, path: str, *, expect: str = "", keep: str = "") -> None:
        for name in filter(None, (path, keep)):
            _rows.checked(name)
        work = functools.partial(self._remove, path=path, expect=expect, keep=keep, author=_rows.Author(self._writer))
        self._database.run(path, work, writes=True)

    def _remove(self, turn: Turn, path: str, expect: str, keep: str, author: _rows.Author) -> None:
        found = _rows.look(turn, path, hold=True)
        if not found and turn.doubtful:
            return
        if expect:
            _compare(turn, path, found, expect)
        if not found:
            raise _rows.missing(turn, path)
        if keep:
            _rows.keep(turn, path, found, keep, author)
        _rows.drop(turn, path, found)

    def _found(self, path: str) -> _rows.Found:
        _rows.checked(path)
        return self._database.ask(path, functools.partial(_look, path=path))


def _settle(turn: Turn) -> None:
    """Say something that has to be durable: whatever was committed before it is durable then, too."""
    turn.row("SELECT pg_logical_emit_message(true, 'holdfast', '')")


def _look(turn: Turn, path: str) -> _rows.Found:
    found = _rows.look(turn, path)
    if not found:
        raise _rows.missing(turn, path)
    return found


def _compare(turn: Turn, path: str, found: _rows.Found | None, expect: str) -> None:
    """See that a file is of this version. After a try whose end nobody heard, a mismatch proves nothing."""
    if found and _rows.version(turn, path, found) == expect:
        return
    if turn.doubtful:
        raise _faults.unsure(path)
    if not found:
        raise Conflict(f"{path} is no longer there; nothing was written.", "Read again, then decide.")
    raise Conflict(
        f"{path} was changed since version {expect[:8]}; nothing was written.", "Read it again and redo the edit."
    )


def _walk(turn: Turn, folder: str, suffixes: tuple[str, ...], after: str) -> list[tuple[str, Stamp]]:
    endings = ["%" + _literal(suffix) for suffix in suffixes]
    rows = turn.rows(_WALK, folder=folder, after=after, endings=endings, shown=len(folder) + 1, page=_PAGE)
    return [(row[0], _rows.Found(*row[1:]).stamp) for row in rows]


def _literal(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _folder_stamp(turn: Turn, folder: str) -> int:
    row = turn.row(
        "SELECT count(*), sum(inode %% %(low)s) FROM holdfast.files"
        " WHERE tenant = %(tenant)s AND folder = %(folder)s",
        folder=folder, low=_LOW,
    )  # fmt: skip
    count, total = row or (0, 0)
    if not count:
        return int(_rows.is_folder(turn, folder))
    return int(total) % _LOW + 1
