"""Copy a database of schema 10 or older, which stored the bytes of files, to rows of records.

The old tables are only read. The ids of rows follow from what the old tables contain, so a run that was interrupted is
repeated and adds nothing twice. Programs can open the database again after every document and every log entry was
compared with the old tables.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from holdfast.errors import Busy, Damaged, Invalid, Unavailable
from holdfast.formats import jsonl
from holdfast.model import settings
from holdfast.model.kinds import Layout
from holdfast.model.records import version_of
from holdfast.model.times import derived_id
from holdfast.storage.postgres import connections, database
from holdfast.storage.postgres.connections import Session, Statement, Waits
from holdfast.storage.postgres.database import OWNER, Database
from holdfast.storage.postgres.files import INSERT_ALL, is_log, keeping, putting
from holdfast.storage.postgres.rows import check_path, sent
from holdfast.storage.postgres.search import COUNT_WORDS
from holdfast.storage.postgres.store import PgStore
from holdfast.storage.write_log import kept_path

T = TypeVar("T")
_OLDEST = 7
"""Earlier schemas, which were never released, have no table of tokens."""
_KEY = 7_406_297_183_640_291_012
_WAITS = Waits(lock_seconds=60.0, statement_seconds=3600.0, connections=2)
_LINES, _BYTES = 2_000, 4 << 20
"""How much is copied in one transaction."""
_OLD_TABLES = (
    "files pieces tokens changes listeners vector_sets vector_codes vectors tasks task_ties task_ops task_logs"
    " index_generations index_notes index_files index_records index_words index_terms index_marks index_problems"
    " index_ties"
).split()
_OLD_FUNCTIONS = "note_new note_old wake tell analyze_index apart".split()
_THERE = """
SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE nspname = 'holdfast' AND relname = ANY(%s)
"""
_SEE_ALL = """
CREATE POLICY of_all ON holdfast.files FOR SELECT TO holdfast_owner USING (true);
CREATE POLICY of_all ON holdfast.pieces FOR SELECT TO holdfast_owner USING (true);
CREATE POLICY of_all ON holdfast.tokens FOR SELECT TO holdfast_owner USING (true);
"""
_TENANTS = "SELECT tenant FROM holdfast.files UNION SELECT tenant FROM holdfast.tokens ORDER BY tenant"
_FILES = """
SELECT path, size, (extract(epoch FROM changed) * 1000)::bigint FROM holdfast.files
WHERE tenant = %(tenant)s ORDER BY path
"""
_DATA = """
SELECT coalesce(f.data, p.data)
FROM holdfast.files f LEFT JOIN holdfast.pieces p ON p.tenant = f.tenant AND p.inode = f.inode AND f.log
WHERE f.tenant = %(tenant)s AND f.path = %(path)s AND coalesce(f.data, p.data) IS NOT NULL ORDER BY p.start
"""
_COUNT_LINES = """
SELECT (coalesce(sum(length(text) - length(replace(text, E'\\n', ''))), 0) + (SELECT count(*) FROM holdfast.files
    WHERE tenant = %(tenant)s AND path LIKE '%%.jsonl' AND torn))::bigint
FROM (SELECT encode(coalesce(f.data, p.data), 'escape') AS text
    FROM holdfast.files f LEFT JOIN holdfast.pieces p ON p.tenant = f.tenant AND p.inode = f.inode AND f.log
    WHERE f.tenant = %(tenant)s AND path LIKE '%%.jsonl') AS part
"""
_COLUMNS = "tenant, id, name, digest, scope, reads_only, login, created, expires, revoked, used"
_OLD_TOKENS = f"SELECT {_COLUMNS} FROM holdfast.tokens WHERE tenant = %(tenant)s"
_TOKENS = f"INSERT INTO holdfast.token ({_COLUMNS}) {_OLD_TOKENS} ON CONFLICT DO NOTHING"
_LOST_TOKENS = f"{_OLD_TOKENS} EXCEPT SELECT {_COLUMNS} FROM holdfast.token WHERE tenant = %(tenant)s"
_VERSIONS = """
SELECT CASE WHEN live THEN path ELSE %(kept)s || about END,
    left(encode(sha256(coalesce(raw, convert_to(text, 'UTF8'))), 'hex'), 32)
FROM holdfast.record WHERE tenant = %(tenant)s AND key = '' AND (live OR about IS NOT NULL)
"""
_sorted = msgspec.json.Encoder(order="sorted").encode


class File(msgspec.Struct, frozen=True):
    path: str
    size: int
    changed: int
    """In milliseconds."""


class Tenant(msgspec.Struct, frozen=True):
    """What one tenant has in the old tables."""

    name: str
    documents: list[File]
    logs: list[File]
    lines: int
    bytes: int
    config: settings.Settings


@contextlib.contextmanager
def opened(dsn: str) -> Iterator[Migration]:
    """Connect with the owner's rights; one program at a time migrates a database."""
    address = connections.parse_address(dsn)
    with contextlib.closing(connections.connect(address)) as session, connections.reported("The migration", _WAITS):
        version = database.installed(session)
        if version > database.VERSION:
            raise database.other(version)
        if version < _OLDEST:
            raise Unavailable(f"There is no memory to migrate in {address.shown}.", "Check the address.")
        if OWNER not in database.roles(session):
            fault = f'The login "{session.info.user}" may not migrate this database.'
            raise Unavailable(fault, f"Use the login that set it up, or one that was granted {OWNER}.")
        if session.execute("SELECT pg_try_advisory_lock(%s)", [_KEY]).fetchone() != (True,):
            raise Busy("Another program is migrating this database.", "Wait until it has finished.")
        yield Migration(dsn, session, version)


class Migration:
    """The migration of one database."""

    def __init__(self, dsn: str, session: Session, version: int) -> None:
        self.version, self.copied = version, version == database.VERSION
        self.old_tables: list[str] = [name for (name,) in session.execute(_THERE, [_OLD_TABLES])]
        self._dsn, self._session = dsn, session

    @contextlib.contextmanager
    def _as_owner(self, *, undo: bool = False) -> Iterator[Session]:
        with connections.reported("The migration", _WAITS), self._session.transaction(force_rollback=undo):
            self._session.execute(f"SET LOCAL lock_timeout = '60s'; SET LOCAL ROLE {OWNER}")
            yield self._session

    def survey(self) -> list[Tenant]:
        """Return what the old tables contain; Invalid when a part of it cannot be copied."""
        found = []
        with self._as_owner(undo=True) as session:  # the policies exist in this transaction only
            session.execute(_SEE_ALL)
            for (name,) in session.execute(_TENANTS).fetchall():
                given = {"tenant": name, "path": settings.FILE}
                files = [File(*row) for row in session.execute(_FILES, given)]
                ((lines,),) = session.execute(_COUNT_LINES, given).fetchall()
                text = b"".join(data for (data,) in session.execute(_DATA, given))
                try:
                    logs = [file for file in files if is_log(check_path(file.path))]
                    config = settings.load(text.decode(), source=settings.FILE)
                except (Invalid, UnicodeDecodeError) as error:
                    advice = "Nothing was changed. Correct it with the earlier version of Holdfast, then try again."
                    raise Invalid(f"Tenant {name}: {getattr(error, 'message', error)}", advice) from None
                documents = [file for file in files if not is_log(file.path)]
                found.append(Tenant(name, documents, logs, lines, sum(file.size for file in files), config))
        return found

    def run(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Copy and compare all tenants, which `survey` has found, then let programs open the database."""
        database.set_up(self._session, over=True)
        with self._as_owner() as session:
            session.execute(database.text("migration.sql"))
        tenants, done = self.survey(), 0
        total = sum(tenant.bytes for tenant in tenants)

        def step(size: int) -> None:
            nonlocal done
            done += size
            if progress:
                progress(done // 1000, total // 1000)

        with contextlib.closing(Database(self._dsn, _WAITS, migrating=True)) as rows:
            for tenant in tenants:
                _Copy(rows.beside(tenant.name), tenant, step).make()
        with self._as_owner() as session:
            session.execute("ANALYZE holdfast.record")
            session.execute(database.FINISHED)
        self.version = database.VERSION

    def drop_old(self, *, really: bool) -> None:
        """Drop the old tables, or only check whether that is allowed; Invalid before they are copied."""
        if not self.copied:
            fault = "The old tables are not copied yet; nothing was dropped."
            raise Invalid(fault, "Run: holdfast migrate store ADDRESS --yes")
        if really and self.old_tables:
            tables, functions = (
                ", ".join(f"holdfast.{name}" for name in names) for names in (self.old_tables, _OLD_FUNCTIONS)
            )
            with self._as_owner() as session:
                session.execute("DROP VIEW IF EXISTS holdfast.index_found")
                session.execute(f"DROP TABLE {tables}; DROP FUNCTION IF EXISTS {functions}")


class _Copy:
    """The copy of one tenant; `step` is called with the number of bytes that were copied."""

    def __init__(self, database: Database, tenant: Tenant, step: Callable[[int], None]) -> None:
        config = tenant.config
        limits = msgspec.structs.replace(config.limits, line_bytes=sys.maxsize)  # a line may be longer than it is today
        self._store = PgStore(database, Layout(config.paths), msgspec.structs.replace(config, limits=limits))
        self._kept = kept_path(config.paths.memory, "")
        self._database, self._tenant, self._step = database, tenant, step

    def make(self) -> None:
        """Copy all files, documents first, since log entries refer to them; Damaged when the copy differs."""
        old = dict[str, str]()
        for batch in _batches(self._tenant.documents, lambda file: file.size):
            texts = {file: self._data(file) for file in batch}
            old |= {file.path: version_of(data) for file, data in texts.items()}
            statements = list[Statement]()
            for file, data in texts.items():
                identifier = derived_id(file.changed, f"{file.path} {version_of(data)}".encode())
                row, parts = self._store.tree.maker.document(file.path, data, identifier, None)
                for part in parts:
                    part.id = derived_id(file.changed, f"{file.path}#{part.key} {part.version}".encode())
                is_kept = file.path.startswith(self._kept)
                kept = file.path.removeprefix(self._kept)
                statements.append(keeping(kept, row) if is_kept else putting(file.path, [row, *parts]))
            self._database.write("The documents", statements)
            self._step(sum(file.size for file in batch))
        new: dict[str, str] = dict(self._database.ask("The documents", _VERSIONS, kept=self._kept))
        wrong = [path for path in sorted({*old, *new}) if old.get(path) != new.get(path)]
        wrong += [file.path for file in self._tenant.logs if not self._copy_log(file)]
        self._database.write("The tokens", [(_TOKENS, {}), *COUNT_WORDS])
        if self._database.ask("The tokens", _LOST_TOKENS):
            wrong.append("the tokens")
        if wrong:
            some = ", ".join(wrong[:3]) + (" …" if len(wrong) > 3 else "")
            fault = f"Tenant {self._tenant.name}: the copy differs from the old tables in {some}."
            raise Damaged(
                fault, "The old tables are unchanged. Report this, and use the backup with the earlier version."
            )

    def _copy_log(self, file: File) -> bool:
        """Copy a log and compare it; an entry whose id another entry of the log has is kept as a plain line."""
        for lines in _batches(self._lines(file), len):
            self._store.import_lines(file.path, lines)
            self._step(sum(len(line) + 1 for line in lines))
        missing, strange = self._differences(file)
        if missing:
            lines = [line for line in self._lines(file) if missing.intersection(_hashes(line))]
            made = [(derived_id(0, file.path.encode() + line), line) for line in lines]
            rows = [self._store.tree.maker.damaged(file.path, *each) for each in made]
            self._database.write(file.path, [(INSERT_ALL, {"rows": sent(rows)})])
            missing, strange = self._differences(file)
        return not missing and not strange

    def _differences(self, file: File) -> tuple[set[bytes], int]:
        """Return the entries of a log that have no row, and how many rows have no entry."""
        old = {entry for line in self._lines(file) for entry in _hashes(line)}
        missing, strange = set(old), 0
        for line in self._store.tree.scan(file.path):
            found = old.intersection(_hashes(line.data, without_id=True))
            missing -= found
            strange += not found
        return missing, strange

    def _data(self, file: File) -> bytes:
        data = b"".join(part for (part,) in self._database.ask(file.path, _DATA, path=file.path))
        if len(data) != file.size:
            fault = f"{file.path}: {file.size - len(data):,} of {file.size:,} bytes are missing."
            raise Damaged(fault, "Restore it from a backup.")
        return data

    def _lines(self, file: File) -> Iterator[bytes]:
        return (line.removesuffix(b"\n") for line in io.BytesIO(self._data(file)))


def _batches(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    batch, size = list[T](), 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size > _BYTES or len(batch) == _LINES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _hashes(line: bytes, *, without_id: bool = False) -> Iterator[bytes]:
    """Yield a hash of each entry of a line; also of the same entry without its id, which may have been added."""
    values = jsonl.parse(line)
    if isinstance(values, str):
        texts = [line]
    else:
        texts = [_sorted(value) for value in values]
        if without_id:
            texts += [_sorted({name: inner for name, inner in value.items() if name != "id"}) for value in values]
    return (hashlib.sha256(text).digest() for text in texts)
