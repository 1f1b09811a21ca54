"""The rows of a memory as the files that an export writes: for the owner's commands, transfers and settings.

A document is read and written whole. A log is its entries in the order of their ids, one line each. Versions that a
write replaced are found below `writes/kept/`.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import psycopg

from holdfast.errors import AlreadyExists, HoldfastError, Invalid, NotFound, OverBudget
from holdfast.formats import jsonl
from holdfast.model.kinds import FOREIGN, Layout
from holdfast.model.records import version_of
from holdfast.storage.postgres.connections import Statement
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.rows import (
    DOCUMENTS,
    READ,
    Maker,
    Row,
    Stored,
    check_path,
    plain,
    sent,
    stamp,
)
from holdfast.storage.tree import ABSENT, Document, Line, Snapshot, Stamp, changed, read_value
from holdfast.storage.write_log import kept_path

_PAGE = 2_000
_IN_MEMORY = 8 << 20
FIRST_ID, _LAST_ID = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"
"""Before and after all ids."""
ROW = f"SELECT {READ} FROM holdfast.record r WHERE r.tenant = %(tenant)s AND"
_PUT = (
    "SELECT holdfast.put_document(%(path)s, %(doc)s::json, %(parts)s::json, %(note)s::json, %(expect)s, %(keep)s)::text"
)
_FILES = """
WITH RECURSIVE place AS (
    (SELECT r.path FROM holdfast.record r WHERE r.tenant = %(tenant)s AND r.path > %(above)s AND r.path < %(beyond)s
     ORDER BY r.path LIMIT 1)
    UNION ALL SELECT (SELECT r.path FROM holdfast.record r WHERE r.tenant = %(tenant)s AND r.path > place.path
        AND r.path < %(beyond)s ORDER BY r.path LIMIT 1) FROM place WHERE place.path IS NOT NULL
)
SELECT place.path, one.id::text, one.size FROM place CROSS JOIN LATERAL (
    SELECT r.id, CASE WHEN r.key = '' THEN coalesce(octet_length(r.text), octet_length(r.raw), 0) ELSE 0 END AS size
    FROM holdfast.record r WHERE r.tenant = %(tenant)s AND r.path = place.path
        AND (r.path LIKE '%.jsonl' OR r.key = '' AND r.live) ORDER BY r.id DESC LIMIT 1
) AS one WHERE place.path IS NOT NULL
"""
_KEPT = f"""
SELECT r.about, r.id::text, coalesce(octet_length(r.text), octet_length(r.raw), 0) FROM holdfast.record r
WHERE r.tenant = %(tenant)s AND r.about IS NOT NULL AND r.key = '' AND NOT r.live
    AND r.kind IN ({", ".join(f"'{name}'" for name in DOCUMENTS)})
"""
_VERSIONS = """
SELECT r.path, r.version FROM holdfast.record r
WHERE r.tenant = %(tenant)s AND r.path = ANY(%(paths)s::text[]) AND r.key = '' AND r.live
UNION ALL SELECT %(folder)s || r.about, r.about FROM holdfast.record r
WHERE r.tenant = %(tenant)s AND r.about = ANY(%(kept)s::text[]) AND r.key = '' AND NOT r.live
"""
_FOLDERS = """
WITH RECURSIVE place AS (
    SELECT split_part(substr(one.path, %(start)s), '/', 1) AS name FROM (SELECT r.path FROM holdfast.record r
        WHERE r.tenant = %(tenant)s AND r.path > %(above)s AND r.path < %(beyond)s ORDER BY r.path LIMIT 1) AS one
    UNION ALL SELECT (SELECT split_part(substr(r.path, %(start)s), '/', 1) FROM holdfast.record r
        WHERE r.tenant = %(tenant)s AND r.path > %(above)s || place.name || '0' AND r.path < %(beyond)s
        ORDER BY r.path LIMIT 1) FROM place WHERE place.name IS NOT NULL
)
SELECT DISTINCT place.name FROM place WHERE EXISTS (SELECT FROM holdfast.record r WHERE r.tenant = %(tenant)s
    AND r.path > %(above)s || place.name || '/' AND r.path < %(above)s || place.name || '0'
    AND (r.live OR r.path LIKE '%.jsonl')) ORDER BY 1
"""
_LOG_STAMP = """
SELECT max(r.id::text), coalesce(sum(octet_length(r.more::text) + coalesce(octet_length(r.text), 0) + 50), 0)::bigint
FROM holdfast.record r WHERE r.tenant = %(tenant)s AND r.path = %(path)s
"""
INSERT_ALL = """
INSERT INTO holdfast.record SELECT * FROM json_populate_recordset(holdfast.new_row(), %(rows)s::json)
ON CONFLICT DO NOTHING RETURNING id::text
"""
_EPOCH = """
INSERT INTO holdfast.stat AS s (tenant, epoch) VALUES (%(tenant)s, 1)
ON CONFLICT (tenant) DO UPDATE SET epoch = s.epoch + 1
"""


class PgTree:
    """The files of one tenant, or of one of its scopes."""

    def __init__(self, database: Database, layout: Layout, *, longest: int = 0) -> None:
        self.location = database.location
        self.maker = Maker(database.tenant, layout, self.text)
        self._database = database
        self._longest = longest
        """Most bytes of a text in a separate document, 0 for any."""
        self._kept = kept_path(layout.memory, "")

    # documents

    def row(self, path: str) -> Stored | None:
        """Return the current row of a document, or of a version that was replaced."""
        if path.startswith(self._kept):
            wanted = f"{ROW} r.about = %(path)s AND r.key = '' AND NOT r.live LIMIT 1"
            found = self._database.ask(path, wanted, path=path.removeprefix(self._kept))
        else:
            found = self._database.ask(path, f"{ROW} r.path = %(path)s AND r.key = '' AND r.live", path=plain(path))
        return Stored(*found[0]) if found else None

    def read(self, path: str, limit: int = 0) -> Document:
        if is_log(path):
            lines = [line.data + b"\n" for line in self.scan(path)]
            if not lines:
                raise _missing(path)
            data = b"".join(lines)
            return Document(data, version_of(data), self.stat(path) or Stamp(len(data), 0, 0, 0))
        if (row := self.row(path)) is None:
            raise _missing(path)
        if limit and len(row.data) > limit:
            raise OverBudget(f"{path} has {len(row.data):,} bytes; the limit is {limit:,}.", "Split it.")
        return row.document

    def text(self, path: str) -> str:
        """Return the text that an entry keeps in a separate document."""
        return read_value(self, path, self._longest)

    def write(self, path: str, data: bytes, *, expect: str, keep: str = "") -> str:
        if is_log(path):
            raise Invalid(f"{path} is a log, which only grows.", "Append to it.")
        self.put(path, data, expect=expect, keep=bool(keep))
        return version_of(data)

    def put(
        self, path: str, data: bytes | None, *, expect: str | None, keep: bool, note: Row | None = None,
        writer: str | None = None,
    ) -> None:  # fmt: skip
        """Write, replace or remove a document of this version, in one message; with `note`, an entry beside it."""
        rows = self._document(path, data, writer) if data is not None else []
        try:
            self._database.write(path, [putting(path, rows, expect=expect, keep=keep, note=note)])
        except psycopg.Error as error:
            raise refused(error, path, expect) from None

    def _document(self, path: str, data: bytes, writer: str | None = None) -> list[Row]:
        """Return the rows of a new document and of its sections."""
        row, sections = self.maker.document(path, data, self._database.mint()[0], writer)
        for section, identifier in zip(sections, self._database.mint(len(sections)) if sections else (), strict=True):
            section.id = identifier
        return [row, *sections]

    def versions(self, paths: Sequence[str]) -> dict[str, str]:
        kept = [path.removeprefix(self._kept) for path in paths if path.startswith(self._kept)]
        given = {"paths": [plain(path) for path in paths], "kept": kept, "folder": self._kept}
        return dict(self._database.ask("The documents", _VERSIONS, **given))

    def create_all(self, files: Mapping[str, bytes]) -> set[str]:
        there, statements = self.versions(list(files)), dict[str, Statement]()
        for path, data in files.items():
            if path not in there:
                rows, kept = self._document(path, data), path.startswith(self._kept)
                statements[path] = keeping(path.removeprefix(self._kept), rows[0]) if kept else putting(path, rows)
        try:
            if statements:
                self._database.write("The documents", list(statements.values()))
        except psycopg.Error as error:
            raise refused(error, str(error.diag.message_primary), ABSENT) from None
        return {*statements}

    def remove(self, path: str, *, expect: str = "", keep: str = "") -> None:
        kept = path.startswith(self._kept)
        if is_log(path) or kept:
            these = "r.about = %(path)s AND r.key = '' AND NOT r.live" if kept else "r.path = %(path)s"
            gone = f"DELETE FROM holdfast.record r WHERE r.tenant = %(tenant)s AND {these} RETURNING 1"
            if not self._database.write(path, [(gone, {"path": path.removeprefix(self._kept)}), (_EPOCH, {})])[0]:
                raise _missing(path)
        elif self.row(path) is None:
            raise _missing(path)
        else:
            self.put(path, None, expect=expect or None, keep=bool(keep))

    def rewrite(self, path: str, change: Callable[[bytes], bytes]) -> int:
        count = 0
        with self._database.transaction(path):
            for row in list(self.rows(path)):
                new = change(row.line).strip()
                if new == row.line:
                    continue
                count += 1
                values, made = jsonl.parse(new), list[Row]()
                if isinstance(values, str):
                    made = [self.maker.damaged(path, row.id, new)]
                elif values:
                    made = [self.maker.entry(path, value) for value in values]
                    if made[0].kind in FOREIGN:
                        made[0].id = row.id
                    for one in made:  # a line is current if the one that it replaces was
                        one.live, one.hidden = one.live and row.live, one.hidden or row.hidden
                gone = "DELETE FROM holdfast.record r WHERE r.tenant = %(tenant)s AND r.id = %(id)s::uuid"
                self._database.send(path, [(gone, {"id": row.id}), (INSERT_ALL, {"rows": sent(made)})])
            if count:
                self._database.send(path, [(_EPOCH, {})])
        return count

    # logs

    def scan(self, path: str) -> Iterator[Line]:
        return (Line(number, row.line, number + 1) for number, row in enumerate(self.rows(path)))

    def scan_back(self, path: str) -> Iterator[Line]:
        return (Line(number, row.line, number + 1) for number, row in enumerate(self.rows(path, backwards=True)))

    def rows(self, path: str, *, backwards: bool = False, only: str = "true") -> Iterator[Stored]:
        """Yield the rows of a log that pass a condition, in order or in reverse order, a part at a time."""
        sign, way, last, most = ("<", "DESC", _LAST_ID, 100) if backwards else (">", "ASC", FIRST_ID, _PAGE)
        wanted = f"{ROW} r.path = %(path)s AND r.id {sign} %(last)s::uuid AND ({only})"
        wanted += f" ORDER BY r.id {way} LIMIT %(most)s::int"
        while True:
            rows = self._database.ask(path, wanted, path=plain(path), last=last, most=most)
            yield from (Stored(*row) for row in rows)
            if len(rows) < most:
                return
            last, most = rows[-1][0], _PAGE

    @contextlib.contextmanager
    def snapshot(self, path: str, *, log: bool = False) -> Iterator[Snapshot]:
        found = self.stat(path)
        if found is None:
            raise _missing(path)
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
            file.writelines((row.line + b"\n" for row in self.rows(path)) if log else [self.read(path).data])
            size = file.tell()
            file.seek(0)
            yield Snapshot(size, found.mtime, iter(lambda: file.read(1 << 20), b""))

    # the existing paths

    def stat(self, path: str) -> Stamp | None:
        if not is_log(path):
            return row.document.stamp if (row := self.row(path)) else None
        ((last, size),) = self._database.ask(path, _LOG_STAMP, path=plain(path))
        return stamp(last, size) if last else None

    def walk(
        self, folder: str, suffixes: tuple[str, ...], blocked: Callable[[str, str], None],
        linked: Callable[[str], None] = lambda _path: None,
    ) -> Iterator[tuple[str, Stamp]]:  # fmt: skip
        del blocked, linked
        found = self._database.ask(folder, _FILES, **_range(folder))
        if not folder or self._kept.startswith(f"{folder}/") or f"{folder}/".startswith(self._kept):
            kept = {version: rest for version, *rest in self._database.ask(folder, _KEPT)}
            found += [(f"{self._kept}{version}", *rest) for version, rest in sorted(kept.items())]
        if not found and folder and (one := self.stat(folder)):
            yield folder, one
        yield from ((path, stamp(last, size)) for path, last, size in found if path.endswith(suffixes))

    def folders(self, folder: str) -> list[str]:
        place = _range(folder)
        start = len(place["above"]) + 1
        return [name for (name,) in self._database.ask(folder, _FOLDERS, **place, start=start)]

    def folder_stamp(self, folder: str) -> int:
        found = self._database.ask(folder, _FILES, **_range(folder))
        return 1 + zlib.crc32(repr(found).encode()) if found else 0

    def make_folder(self, folder: str) -> None:
        if self.versions([*itertools.accumulate(folder.split("/"), "{}/{}".format)]):
            raise Invalid(f"{folder} is not a folder.", "Choose another name.")

    def target(self, path: str) -> str | None:
        del path
        return None


def _range(folder: str) -> dict[str, Any]:
    """Return the bounds of the paths below a folder."""
    return {"above": f"{folder}/", "beyond": f"{folder}0"} if folder else {"above": "", "beyond": "\U0010ffff"}


def is_log(path: str) -> bool:
    return path.endswith(".jsonl")


def _missing(path: str) -> NotFound:
    return NotFound(f"{path} does not exist.", "Check the path.")


def putting(
    path: str, rows: Sequence[Row], *, expect: str | None = ABSENT, keep: bool = False, note: Row | None = None
) -> Statement:
    """Return the statement that writes a document and its sections, or removes it, over this version; None is any."""
    doc, beside = ((sent([row])[1:-1] if row else None) for row in (rows[0] if rows else None, note))
    given = {"path": check_path(path), "doc": doc, "parts": sent(rows[1:]), "note": beside}
    return _PUT, {**given, "expect": expect, "keep": keep}


def keeping(version: str, row: Row) -> Statement:
    """Return the statement that adds a version of a document which was replaced."""
    row.live, row.about = False, version
    return INSERT_ALL, {"rows": sent([row])}


def refused(error: psycopg.Error, path: str, expect: str | None) -> HoldfastError:
    """Return the error for a failed condition of `put_document`."""
    match error.sqlstate:
        case "HF004" | "23505":
            return AlreadyExists(f"{path} already exists; nothing was written.", "Choose another name.")
        case "HF005":
            return changed(path, expect or "")
        case "HF006":
            return Invalid(f"{error.diag.message_primary} is a file and cannot be a folder.", "Choose another name.")
    raise error
