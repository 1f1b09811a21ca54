"""The tree in a database: documents and logs of one tenant, as rows (docs/decisions/018).

A folder exists as long as a file is in it. There are no links. Stamps are exact: every replacement has a new inode, and
a log that grew is larger.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import LiteralString

from psycopg import errors as pg

from holdfast.errors import Busy, Conflict, Invalid, NotFound, OverBudget, Unavailable
from holdfast.model.records import version_of
from holdfast.storage.files import lines
from holdfast.storage.postgres import connections, logs, rows
from holdfast.storage.postgres.database import Database, Transaction
from holdfast.storage.postgres.rows import Author, FileRow
from holdfast.storage.tree import ABSENT, Appended, Document, Line, LogEnd, Snapshot, Stamp

_CHUNK = 1 << 20
_PAGE = 1000
_TRIES = 100
_READ_AT_ONCE = 8 << 20
_LOW = 10**18
"""Stamps of folders are below any current time in nanoseconds, so that they never count as too recent."""
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
_CREATE_ALL: LiteralString = """
INSERT INTO holdfast.files (tenant, path, inode, size, log, torn, version, data, op, writer)
SELECT %(tenant)s, made.path, made.inode, length(made.data), false, made.torn, made.version, made.data,
    %(op)s, %(writer)s
FROM unnest(%(paths)s::text[], %(inodes)s::bigint[], %(torn)s::boolean[], %(versions)s::text[],
    %(data)b::bytea[]) AS made (path, inode, torn, version, data)
ON CONFLICT (tenant, path) DO NOTHING RETURNING path
"""
_A_FOLDER: LiteralString = """
SELECT wanted.path FROM unnest(%(paths)s::text[], %(starts)s::text[], %(stops)s::text[])
    AS wanted (path, start, stop) CROSS JOIN LATERAL (
    SELECT 1 FROM holdfast.files
    WHERE tenant = %(tenant)s AND files.path > wanted.start AND files.path < wanted.stop
    ORDER BY files.path LIMIT 1) AS inside LIMIT 1
"""
"""Start and stop are computed by the caller: the planner uses the index only with leak-proof expressions."""


class PgTree:
    """A tree on a database, which it closes when it is closed; `writer` is recorded with every write."""

    exact = True

    def __init__(self, database: Database, *, line_bytes: int = 8 << 20, writer: str = "") -> None:
        self.location = database.location
        self._database = database
        self._claims = logs.Claims(database)
        self._line_bytes = line_bytes
        self._writer = writer

    def close(self) -> None:
        self._claims.close()
        self._database.close()

    # documents

    def read(self, path: str, limit: int = 0) -> Document:
        rows.checked(path)
        row, data = self._database.ask(path, lambda tx: rows.whole(tx, path, limit))
        if limit and row.size > limit:
            raise OverBudget(
                f"{path} has {row.size:,} bytes; the limit is {limit:,}.", "Split it, or raise limits.document_bytes."
            )
        return Document(data, row.version or version_of(data), row.stamp)

    def write(self, path: str, data: bytes, *, expect: str, keep: str = "") -> str:
        for name in filter(None, (path, keep)):
            rows.checked(name)
        author = Author(self._writer)

        def work(tx: Transaction) -> None:
            if expect == ABSENT:
                rows.check_free(tx, path)
                if rows.create(tx, path, data, author):
                    return
            row = rows.look(tx, path, hold=True)
            if tx.doubtful and row and row.op == author.op:
                return
            if expect == ABSENT:
                raise connections.uncertain(path) if tx.doubtful else rows.exists(path)
            row = _expected(tx, path, row, expect)
            if keep:
                rows.keep(tx, path, row, keep, author)
            rows.replace(tx, path, row, data, author)

        self._database.run(path, work, writes=True)
        return version_of(data)

    def create(self, path: str, chunks: Iterable[bytes], *, mtime: int = 0, durable: bool = True) -> None:
        rows.checked(path)
        create = _Create(path, chunks, mtime, Author(self._writer))
        self._database.run(path, create.attempt, writes=True, durable=durable)

    def settle(self) -> None:
        # a durable message makes everything durable that was committed before it
        message: LiteralString = "SELECT pg_logical_emit_message(true, 'holdfast', '')"
        self._database.run("The memory", lambda tx: tx.row(message), writes=True)

    def versions(self, paths: Sequence[str]) -> dict[str, str]:
        def work(tx: Transaction) -> dict[str, str]:
            found: dict[str, str] = dict(
                tx.rows(
                    "SELECT path, version FROM holdfast.files WHERE tenant = %(tenant)s AND path = ANY(%(paths)s)",
                    paths=list(paths),
                )
            )
            for path in (path for path, version in found.items() if not version):
                row = rows.look(tx, path)
                found[path] = rows.version(tx, path, row) if row else ""
            return found

        return self._database.ask("the versions of documents", work)

    def create_all(self, files: Mapping[str, bytes]) -> set[str]:
        above = {folder for path in files for folder in rows.above(path)}
        author = Author(self._writer)

        def work(tx: Transaction) -> set[str]:
            if row := tx.row(
                "SELECT path FROM holdfast.files WHERE tenant = %(tenant)s AND path = ANY(%(above)s) LIMIT 1",
                above=list(above),
            ):
                raise Invalid(f"{row[0]} is a file, and should be a folder.", "Move that file away.")
            starts, stops = [f"{path}/" for path in files], [f"{path}0" for path in files]
            if row := tx.row(_A_FOLDER, paths=list(files), starts=starts, stops=stops):
                raise Invalid(f"{row[0]} is a folder.", "Move it away.")
            made = tx.rows(
                _CREATE_ALL, paths=list(files), inodes=[rows.new_inode() for _ in files], data=list(files.values()),
                torn=[rows.is_torn(data) for data in files.values()],
                versions=[version_of(data) for data in files.values()], op=author.op, writer=author.writer,
            )  # fmt: skip
            if tx.doubtful:  # an earlier attempt may have been committed
                made += tx.rows(
                    "SELECT path FROM holdfast.files"
                    " WHERE tenant = %(tenant)s AND path = ANY(%(paths)s) AND op = %(op)s",
                    paths=list(files), op=author.op,
                )  # fmt: skip
            return {row[0] for row in made}

        return self._database.run(f"{len(files)} documents", work, writes=True) if files else set()

    # logs

    def append(
        self, path: str, compose: Callable[[LogEnd], bytes], *, durable: bool = True, again: bool = False
    ) -> Appended | None:
        rows.checked(path)
        append = logs.Append(self._database, path, compose, Author(self._writer), self._line_bytes, again=again)
        return self._database.run(path, append.attempt, writes=True, durable=durable)

    def rewrite(self, path: str, change: Callable[[bytes], bytes]) -> int:
        rows.checked(path)
        rewrite = logs.Rewrite(self._database, path, change, self._line_bytes, Author(self._writer))
        return self._database.run(path, rewrite.attempt, writes=True)

    @contextlib.contextmanager
    def snapshot(self, path: str, *, log: bool = False) -> Iterator[Snapshot]:
        """Yield a file as it is now. A small one is read at once, a large one in chunks."""
        rows.checked(path)
        row, data = self._database.ask(path, lambda tx: rows.whole(tx, path, _READ_AT_ONCE))
        size = row.size
        if len(data) == size:
            size = data.rfind(b"\n") + 1 if log else size
            yield Snapshot(size, row.stamp.mtime, iter([data[:size]]))
            return
        read = rows.reader(self._database, path, row)
        if log and row.torn:
            size = next(lines.backwards(read, size, self._line_bytes)).offset
        yield Snapshot(size, row.stamp.mtime, logs.chunks(read, 0, size))

    def scan(self, path: str, offset: int = 0, end: int | None = None) -> Iterator[Line]:
        row = self._row(path)
        stop = row.size if end is None else end
        yield from lines.forwards(rows.reader(self._database, path, row), offset, stop, self._line_bytes)

    def scan_back(self, path: str) -> Iterator[Line]:
        row = self._row(path)
        yield from lines.backwards(rows.reader(self._database, path, row), row.size, self._line_bytes)

    def fingerprint(self, path: str, start: int, end: int, checksum: int = 0) -> int:
        read = rows.reader(self._database, path, self._row(path))
        while start < end:
            try:
                chunk = read(min(_CHUNK, end - start), start)
            except Busy:  # the file was replaced
                return -1
            if not chunk:
                return -1
            checksum = zlib.crc32(chunk, checksum)
            start += len(chunk)
        return checksum

    def hold(self, path: str) -> Callable[[], None] | None:
        rows.checked(path)
        author = Author(self._writer)
        for _ in range(_TRIES):
            inode = self._database.run(path, lambda tx: logs.locked(tx, path, author)[0].inode, writes=True)
            if not self._claims.take(inode):
                return None
            stamp = self.stat(path)
            if stamp and stamp.inode == inode:
                return functools.partial(self._claims.release, inode)
            self._claims.release(inode)
        raise Busy(f"Other programs keep removing {path}.", "Try again.")

    # the tree

    def stat(self, path: str) -> Stamp | None:
        try:
            return self._row(path).stamp
        except NotFound:
            return None

    def walk(
        self,
        folder: str,
        suffixes: tuple[str, ...],
        blocked: Callable[[str, str], None],  # noqa: ARG002  # every file in a database can be reached
        linked: Callable[[str], None] = lambda _path: None,  # noqa: ARG002
    ) -> Iterator[tuple[str, Stamp]]:
        rows.checked(folder)
        row = self._database.ask(folder, lambda tx: rows.look(tx, folder))
        if row:
            yield folder, row.stamp
        endings = ["%" + suffix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") for suffix in suffixes]
        values = {"folder": folder, "endings": endings, "shown": len(folder) + 1, "page": _PAGE}
        after = folder + "/"
        while page := self._database.ask(folder, lambda tx: tx.rows(_WALK, after=after, **values)):  # noqa: B023
            for path, *columns in page:
                yield path, FileRow(*columns).stamp
            after = page[-1][0]

    def folders(self, folder: str) -> list[str]:
        rows.checked(folder)
        values = {"start": folder + "/", "stop": folder + "0", "skip": len(folder) + 2}
        found = self._database.ask(folder, lambda tx: tx.rows(_FOLDERS, **values))
        return sorted(name for (name,) in found if name[0] not in "._")

    def folder_stamp(self, folder: str) -> int:
        rows.checked(folder)

        def work(tx: Transaction) -> int:
            row = tx.row(
                "SELECT count(*), sum(inode %% %(low)s) FROM holdfast.files"
                " WHERE tenant = %(tenant)s AND folder = %(folder)s",
                folder=folder, low=_LOW,
            )  # fmt: skip
            count, total = row or (0, 0)
            return int(total) % _LOW + 1 if count else int(rows.is_folder(tx, folder))

        return self._database.ask(folder, work)

    def make_folder(self, folder: str) -> None:
        statement: LiteralString = "SELECT 1 FROM holdfast.files WHERE tenant = %(tenant)s AND path = ANY(%(paths)s)"
        if self._database.ask(folder, lambda tx: tx.row(statement, paths=[*rows.above(folder), folder])):
            raise Invalid(f"{folder} is not a folder.", "Choose another name.")

    def link(self, path: str, target: str) -> None:
        rows.checked(path)
        raise Invalid(f"{path} cannot lead to {target}: a database has no links.", "Use a memory in files for that.")

    def target(self, path: str) -> str | None:
        rows.checked(path)
        return None

    def move(self, source: str, target: str) -> None:
        for name in (source, target):
            rows.checked(name)
        author = Author(self._writer)

        def work(tx: Transaction) -> None:
            if not rows.look(tx, source, hold=True):
                there = rows.look(tx, target) if tx.doubtful else None
                if there and there.op == author.op:
                    return
                raise connections.uncertain(source) if tx.doubtful else rows.missing(tx, source)
            rows.check_free(tx, target)
            try:
                tx.change(
                    "UPDATE holdfast.files SET path = %(target)s, op = %(op)s, writer = %(writer)s,"
                    " login = session_user WHERE tenant = %(tenant)s AND path = %(source)s",
                    source=source, target=target, op=author.op, writer=author.writer,
                )  # fmt: skip
            except pg.UniqueViolation:
                raise rows.exists(target) from None

        self._database.run(source, work, writes=True)

    def remove(self, path: str, *, expect: str = "", keep: str = "") -> None:
        for name in filter(None, (path, keep)):
            rows.checked(name)
        author = Author(self._writer)

        def work(tx: Transaction) -> None:
            row = rows.look(tx, path, hold=True)
            if not row and tx.doubtful:
                return
            if expect:
                row = _expected(tx, path, row, expect)
            if not row:
                raise rows.missing(tx, path)
            if keep:
                rows.keep(tx, path, row, keep, author)
            rows.drop(tx, path, row)

        self._database.run(path, work, writes=True)

    def _row(self, path: str) -> FileRow:
        rows.checked(path)
        return self._database.ask(path, lambda tx: rows.found(tx, path))


class _Create:
    """One new file, over all its attempts. Its bytes come once: those of a large file cannot be sent again."""

    def __init__(self, path: str, chunks: Iterable[bytes], mtime: int, author: Author) -> None:
        self._path = path
        self._author = author
        self._pieces = rows.resized(chunks)
        self._first = next(self._pieces, b"")
        self._second = next(self._pieces, b"")
        self._mtime = datetime.fromtimestamp(mtime / 1e9, UTC) if mtime else None
        self._begun = False

    def attempt(self, tx: Transaction) -> None:
        row = rows.look(tx, self._path) if tx.doubtful else None
        if row and row.op == self._author.op:
            return
        if self._begun:
            raise Unavailable(
                f"{self._path}: the connection was lost before all of it was sent.", "Nothing was written; try again."
            )
        rows.check_free(tx, self._path)
        if not rows.create(tx, self._path, None if self._second else self._first, self._author):
            raise connections.uncertain(self._path) if tx.doubtful else rows.exists(self._path)
        if self._second:
            self._begun = True
            pieces = itertools.chain([self._first, self._second], self._pieces)
            rows.write_pieces(tx, self._path, rows.found(tx, self._path).inode, pieces, self._author)
        if self._mtime:
            tx.change(
                "UPDATE holdfast.files SET changed = %(mtime)s WHERE tenant = %(tenant)s AND path = %(path)s",
                mtime=self._mtime, path=self._path,
            )  # fmt: skip


def _expected(tx: Transaction, path: str, row: FileRow | None, expect: str) -> FileRow:
    """Return the row of a file if it has this version. After an uncertain commit, a mismatch proves nothing."""
    if row and rows.version(tx, path, row) == expect:
        return row
    if tx.doubtful:
        raise connections.uncertain(path)
    if not row:
        raise Conflict(f"{path} is no longer there; nothing was written.", "Read again, then decide.")
    raise Conflict(
        f"{path} was changed since version {expect[:8]}; nothing was written.", "Read it again and redo the edit."
    )
