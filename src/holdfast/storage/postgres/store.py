"""`PgStore`: a memory in a database, in which every record is a row.

A write is one message: the row, or the rows, of an entry, or a document with the versions it replaces and its line of
the write log. Nothing is derived later except for vectors and the count of words, so a reader needs no refresh.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time as clocks
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import psycopg
from msgspec.structs import astuple
from psycopg import errors as pg

from holdfast.errors import HoldfastError, NotFound, OverBudget
from holdfast.formats import jsonl, transcripts
from holdfast.model.kinds import KINDS, NOT_RECORDS, Layout
from holdfast.model.queries import Query, Terms
from holdfast.model.records import Problem, Record, path_of
from holdfast.model.settings import Settings, Shared
from holdfast.model.times import derived_id, id_ms, is_id, iso, now_ms
from holdfast.recall.answers import Candidates
from holdfast.recall.embedders import Embedded
from holdfast.recall.ranking import Near
from holdfast.storage import parsing, words, write_log
from holdfast.storage.log import Changed, LogPart, attempts
from holdfast.storage.postgres.connections import Insert, Statement
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.files import FIRST_ID, ROW, PgTree, is_log, refused
from holdfast.storage.postgres.rows import (
    FAULTY,
    LOG,
    PROBLEM,
    READ,
    Row,
    Stored,
    check_path,
    plain,
    problem_of,
    problems_of,
    record_of,
    sent,
    short,
)
from holdfast.storage.postgres.search import COUNT_WORDS, STAT, Searcher
from holdfast.storage.results import Filter, Pool, Progress, Refreshed, Report, Tied
from holdfast.storage.store import Appended, Applied, Event, Load, Store, other_use, unknown, used
from holdfast.storage.tree import ABSENT
from holdfast.storage.write_log import check_save_points

T = TypeVar("T")
_FOLDED = frozenset(name for name, kind in KINDS.items() if kind.owned and name not in ("write", "trace", "summary"))
"""Kinds whose logs are read whole before an append, so appends to them wait for each other."""
LEASE_SECONDS = 30.0
"""How long the lease of a run lasts; a live process renews it three times in that time."""
_POLL_SECONDS = 0.25
_PAGE = 1_000
_MOST_WRITERS = 10_000
_COLUMNS = ", ".join(Row.__struct_fields__)
_INSERT = {
    count: Insert(
        f"INSERT INTO holdfast.record ({_COLUMNS}) VALUES ("
        + "), (".join(", ".join(f"%({name}{number})s" for name in Row.__struct_fields__) for number in range(count))
        + ")"
    )
    for count in (1, 2)
}
_SUPERSEDE = """
UPDATE holdfast.record SET live = false, words = NULL
WHERE tenant = %(tenant)s AND key = %(key)s AND path || '' = %(path)s AND live AND id < %(id)s::uuid
"""
_APPEND = "SELECT holdfast.append(%(rows)s::json, %(seen)s, %(alone)s)::text"
_IMPORT = "SELECT holdfast.import_entries(%(rows)s::json, %(pair)s)"
_BY_OP = f"""
SELECT r.about, {READ} FROM holdfast.record o JOIN holdfast.record r ON r.tenant = o.tenant AND r.xact = o.xact
    AND (r.id = o.id OR r.more ->> 'op' = %(op)s) WHERE o.tenant = %(tenant)s AND o.op = ANY(%(keys)s::text[])
ORDER BY r.id
"""
_SINCE = f"""
SELECT pg_current_snapshot()::text, CASE WHEN pg_current_xact_id_if_assigned() IS NULL
        THEN pg_postmaster_start_time()::text || ' '
            || coalesce((SELECT s.epoch FROM holdfast.stat s WHERE s.tenant = %(tenant)s), 0)::text
        ELSE '' END, {READ}
FROM (VALUES (1)) AS one LEFT JOIN holdfast.record r ON r.tenant = %(tenant)s AND {{condition}} ORDER BY r.id
"""
_EVERY = _SINCE.format(condition="r.path = %(path)s")
_NEW = _SINCE.format(
    condition="(%(path)s = '' OR r.path = %(path)s) AND r.xact >= pg_snapshot_xmin(%(seen)s::pg_snapshot)"
    " AND NOT pg_visible_in_snapshot(r.xact, %(seen)s::pg_snapshot)"
)
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%(tenant)s || ' ' || %(path)s, 0))::text"
_CLAIM = """
INSERT INTO holdfast.lease AS l (tenant, name, holder, until)
VALUES (%(tenant)s, %(name)s, %(holder)s, clock_timestamp() + make_interval(secs => %(seconds)s))
ON CONFLICT (tenant, name) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE l.holder = excluded.holder OR l.until < clock_timestamp() RETURNING 1
"""
_RELEASE = "DELETE FROM holdfast.lease WHERE tenant = %(tenant)s AND name = %(name)s AND holder = %(holder)s"
_HELD = """
SELECT 1 FROM holdfast.lease
WHERE tenant = %(tenant)s AND name = %(name)s AND holder <> %(holder)s AND until > clock_timestamp()
"""
_WRITERS = """
SELECT coalesce(r.more ->> 'record', r.about), r.writer, r.more ->> 'after' FROM holdfast.record r
WHERE r.tenant = %(tenant)s AND r.kind = 'write' AND r.about = ANY(%(paths)s::text[]) ORDER BY r.id
"""
_COUNTS = """
SELECT r.kind, count(*), coalesce(sum(octet_length(r.text) + coalesce(octet_length(r.more::text), 0)), 0)::bigint
FROM holdfast.record r WHERE r.tenant = %(tenant)s AND (r.live OR r.key <> '' AND r.about IS NULL)
GROUP BY r.kind ORDER BY r.kind
"""
_COUNTED = "SELECT 1 FROM holdfast.stat s WHERE s.tenant = %(tenant)s"
_COUNT_AGAIN = """
UPDATE holdfast.stat SET records = '{0,0}', length = '{0,0}', upto = '0' WHERE tenant = %(tenant)s
"""
_DERIVED = ("length", "kind", "scope", "session", "version", "title", "author", "agent", "priority")
"""Not `at`: a time without a zone was read in that of its writer."""
_THERE, _MADE = (", ".join(f"{row}.{name}" for name in _DERIVED) for row in "rs")
_WRONG = f"""
json_populate_recordset(NULL::holdfast.record, %(rows)s::json) AS s WHERE r.tenant = %(tenant)s AND r.id = s.id
    AND (CASE WHEN r.live THEN r.words END, {_THERE}) IS DISTINCT FROM (CASE WHEN r.live THEN s.words END, {_MADE})
"""
_DIFFERENT = f"SELECT r.id::text FROM holdfast.record r, {_WRONG}"
_DERIVE = f"""
UPDATE holdfast.record r
SET (words, {", ".join(_DERIVED)}) = ROW(CASE WHEN r.live OR r.about = E'\\n' THEN s.words END, {_MADE})
FROM {_WRONG} RETURNING r.id::text
"""


class _Moment(NamedTuple):
    """The commits when a log was read, and the server; a log that was rewritten has another epoch.

    A transaction's snapshot does not include its own later writes. It has no epoch, so the log is read again from its
    start.
    """

    snapshot: str
    epoch: str


class PgStore(Store):
    """One tenant of a database, or one scope of it."""

    tree: PgTree
    folder = ""

    def __init__(self, database: Database, layout: Layout, settings: Settings, writer: str = "") -> None:
        super().__init__(layout, settings, writer, database.no_vectors)
        self.address, self.reads_only = database.address, database.reads_only
        self.tree = PgTree(database, layout, longest=settings.limits.document_bytes)
        self._database = database
        self._maker = self.tree.maker
        self._searcher = Searcher(database, settings.search, self._model, self._load)
        self._holder = secrets.token_hex(16)
        self._claims: set[str] = set()
        self._beat: threading.Thread | None = None
        self._closed = threading.Event()
        self._writers: dict[str, str | None] = {}
        """Writers of documents and sections, by path and id."""
        if not database.ask("The words", _COUNTED):
            database.first = (STAT, {})

    def clock(self) -> int:
        ((ms,),) = self._database.ask("The clock", "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
        return int(ms)

    def close(self) -> None:
        self._closed.set()
        self._searcher.close()
        for path in list(self._claims):
            with contextlib.suppress(HoldfastError):
                self.release(path)
        self._database.close()

    def within(self, scope: str) -> Store:
        tops = (f"{self.layout.workspaces}/{scope}", f"{self.layout.memory}/workspaces/{scope}")
        alone = msgspec.structs.replace(self.settings, shared=Shared())  # the shared memory is outside
        database = self._database.beside(scope="\n".join((scope, *tops)))
        return PgStore(database, self.layout, alone, self._default_writer)

    def _rows(self, condition: str, **values: Any) -> list[Stored]:
        return [Stored(*row) for row in self._database.ask("The records", f"{ROW} {condition}", **values)]

    def _record(self, row: Stored) -> Record | None:
        record = record_of(row, self.layout.classify(row.path), self.tree.text)
        if record and KINDS[record.kind].shape != "line":
            if len(self._writers) > _MOST_WRITERS:
                self._writers.clear()
            self._writers[record.id] = row.writer
        return record

    def _records(self, rows: Iterable[Stored]) -> list[Record]:
        return [record for row in rows if (record := self._record(row))]

    def _load(self, ids: Collection[str]) -> dict[str, Record]:
        """Return the records of these rows that still exist."""
        rows = self._rows("r.id = ANY(%(ids)s::uuid[])", ids=list(ids)) if ids else []
        return {row.id: record for row in rows if (record := self._record(row))}

    # documents

    def _replace(
        self, path: str, data: bytes | None, before: str, entry: Mapping[str, Any], op_id: str, *, keep: bool
    ) -> None:
        place, line = self.layout.classify(path), {name: value for name, value in entry.items() if value}
        (note,) = self._made(self.write_log, [line], "time", op_id, "")
        try:
            if data and before == ABSENT and place and place.kind.is_named and place.kind.shape == "document":
                # a document whose name we made cannot be a folder, and its index refuses a second one
                row, _ = self._maker.document(check_path(path), data, self._database.mint()[0], self.writer)
                self._database.write(path, [(_INSERT[2], [*astuple(row), *astuple(note)])])
            else:
                self.tree.put(path, data, expect=before, keep=keep, note=note, writer=self.writer)
        except psycopg.Error as error:
            if error.sqlstate == "HF003" or error.diag.constraint_name == "record_op":
                raise used(op_id) from None
            raise refused(error, path, before) from None

    def log_write(self, entry: Mapping[str, Any], op_id: str = "") -> None:
        self.append(self.write_log, [{name: value for name, value in entry.items() if value}], op_id=op_id)

    def _applied(self, op_id: str, path: str = "") -> list[Applied]:
        del path
        if not op_id:
            return []
        found = self._database.ask("The op_id", _BY_OP, op=op_id, keys=[short(op_id), self._op(op_id)])
        applied = []
        for about, *rest in found:
            row = Stored(*rest)
            marks = isinstance(row.value.get("hide"), str)
            applied.append(Applied(row.path, about if marks else str(row.value.get("id")), row.value, marks))
        return applied

    def _op(self, op_id: str) -> str:
        """Return an op_id as its column has it: one of another scope counts as new."""
        return short(f"{self._database.scope}\n{op_id}" if self._database.scope else op_id)

    def writers(self, records: Sequence[Record]) -> dict[str, str | None]:
        pages = [record for record in records if KINDS[record.kind].shape != "line"]
        targets = [target for record in pages for target in write_log.targets(record)]
        pinned = {record.path: record.version for record in pages if record.kind == "memory"}
        known = {each: self._writers.get(each) for each in targets if each not in pinned}
        found = {each: writer for each, writer in known.items() if writer is not None}
        if missing := [path_of(each) for each in targets if each not in found]:
            rows = self._database.ask("The write log", _WRITERS, paths=missing)
            found = {each: writer or "" for each, writer, after in rows if pinned.get(each, after) == after} | found
        return {**found}

    # logs

    def append(
        self, path: str, entries: Sequence[Mapping[str, Any]], *, op_id: str = "", time: str = "time", after: str = "",
        target: str = "", durable: bool = True, unless: Any = None, locked: Callable[[], None] = lambda: None,
    ) -> Appended:  # fmt: skip
        del target  # the database finds later entries about it by itself
        if not entries:
            return Appended([])
        if unless is not None:
            locked()
        for attempt in attempts(path):
            rows = self._made(path, entries, time, op_id, after)
            try:
                self._insert(path, rows, unless, durable, plain=not attempt)
                return Appended([row.id for row in rows])
            except psycopg.Error as error:
                match error.sqlstate:
                    case "HF001":
                        raise Changed from None
                    case "HF002":  # the entry of a program whose clock is ahead
                        after = str(error.diag.message_primary)
                    case "HF003":
                        applied, about = self._applied(op_id), (_is_mark(rows[0]) and rows[0].about) or ""
                        if repeated := self._repeated(path, op_id, applied, about, len(rows)):
                            return repeated
                        raise other_use(op_id, applied[0] if applied else Applied(path, "")) from None
                    case "23505":  # the op_id was used, or another program wrote this key: `append` finds out
                        continue
                    case _:
                        raise
        raise AssertionError("attempts() ends in an error")

    def _made(self, path: str, entries: Sequence[Mapping[str, Any]], time: str, op_id: str, after: str) -> list[Row]:
        """Return the rows of new entries; OverBudget when one is too long."""
        rows = []
        ids = self._database.mint(len(entries), after)
        for entry, identifier in zip(self._completed(entries, time, op_id), ids, strict=True):
            row = self._maker.entry(path, entry, identifier)
            self._check_line(len(bytes(row.more or b"")) + len((row.text or "").encode()))
            rows.append(row)
        if op_id:
            rows[0].op = self._op(op_id)
        return rows

    def _insert(self, path: str, rows: list[Row], unless: Any, durable: bool, *, plain: bool) -> None:
        """Insert new entries in one message: by plain statements if no condition has to be checked."""
        first = rows[0]
        decided = unless is not None or first.kind in _FOLDED or any(_is_mark(row) for row in rows)
        if plain and not decided and len(rows) <= len(_INSERT):
            statements: list[Statement] = [
                (_SUPERSEDE, {"path": path, "key": row.key, "id": row.id}) for row in rows if row.key
            ]
            values = [value for row in rows for value in astuple(row)]
            self._database.write(path, [*statements, (_INSERT[len(rows)], values)], durable=durable)
        else:
            seen = "" if unless is None else unless.snapshot
            alone = unless is not None or first.kind in (*_FOLDED, LOG)
            given = {"rows": sent(rows), "seen": seen, "alone": alone}
            self._database.write(path, [(_APPEND, given)], durable=durable)

    def append_decided(
        self, path: str, decide: Callable[[], tuple[Sequence[Mapping[str, Any]], str]], *, durable: bool = True,
        op_id: str = "",
    ) -> list[str]:  # fmt: skip
        del durable
        with self._database.transaction(path):
            self._database.send(path, [(_LOCK, {"path": path})])
            entries, after = decide()
            return self.append(path, entries, op_id=op_id, after=after).ids

    def read_on(self, path: str, cursor: Any) -> LogPart:
        if cursor is not None:
            now, rows = self._since(_NEW, path, cursor.snapshot)
            if now.epoch == cursor.epoch != "":
                return _part(rows, now, fresh=False)
        now, rows = self._since(_EVERY, path)
        return _part(rows, now, fresh=True)

    def _since(self, statement: str, path: str = "", seen: str = "") -> tuple[_Moment, list[Stored]]:
        """Return the rows of one statement, and its snapshot."""
        found = self._database.ask("The changes", statement, path=path, seen=seen)
        return _Moment(*found[0][:2]), [Stored(*row[2:]) for row in found if row[2]]

    def newest(self, path: str, problems: list[Problem] | None = None) -> Iterator[Record]:
        for row in self.tree.rows(path, backwards=True, only=f"r.live AND NOT r.hidden OR {FAULTY}"):
            if row.live:
                yield from self._records([row])
            elif problems is not None:
                problems.append(problem_of(row))

    def import_lines(self, path: str, lines: Sequence[bytes]) -> int:
        longest, limit = max((len(line) + 1 for line in lines), default=0), self.settings.limits.line_bytes
        if longest > limit:
            raise OverBudget(f"A line would have {longest:,} bytes; the limit is {limit:,}.", "Shorten it.")
        place = self.layout.classify(check_path(path))
        rows = self._imported(path, lines, foreign=bool(place and place.kind.foreign))
        given = {"rows": sent(rows), "pair": place.kind.pair if place else ""}
        for _ in attempts(path) if rows else ():
            with contextlib.suppress(pg.UniqueViolation):  # another program wrote one of the keys at the same moment
                return int(self._database.write(path, [(_IMPORT, given)])[0][0][0])
        return 0

    def _imported(self, path: str, lines: Sequence[bytes], *, foreign: bool) -> list[Row]:
        """Return the rows of lines from elsewhere; of several entries of one key, the newest is current."""
        rows, newest, ops = dict[str, Row](), dict[str, str](), set[str]()
        known = self._rows("r.path = %(path)s AND r.live ORDER BY r.id DESC LIMIT 1", path=path) if foreign else []
        last = id_ms(known[0].id) if known else 0
        for line in lines:
            values = transcripts.parse(line) if foreign else jsonl.parse(line)
            identifier = derived_id(0, path.encode() + line)
            if isinstance(values, str):
                rows.setdefault(identifier, self._maker.damaged(path, identifier, line))
                continue
            for value in values:
                row, op = self._maker.entry(path, value), value.get("op")
                twin = None if foreign else rows.get(row.id)
                if twin and (twin.more, twin.text) != (row.more, row.text):  # another entry of the same id
                    rows.setdefault(identifier, self._maker.damaged(path, identifier, line))
                    continue
                if foreign and row.live:  # turns are in the order of their lines, not of their times
                    last = max(id_ms(row.id), last + 1)
                    row.id = derived_id(last, str(row.key).encode())
                elif not foreign and isinstance(op, str) and op not in ops and not value.get("intent"):
                    ops.add(op)  # a write that was only announced may not have taken place
                    row.op = self._op(op) or None
                if row.live and row.key and not foreign:
                    newest[row.key] = max(newest.get(row.key, ""), row.id)
                rows.setdefault(row.key or row.id if foreign else row.id, row)
        for row in rows.values():
            if row.key and newest.get(row.key, row.id) != row.id:
                row.live, row.words = False, None
        return list(rows.values())

    # runs

    def claim(self, path: str) -> bool:
        if path not in self._claims and not self._database.write(path, [(_CLAIM, self._lease(path))])[0]:
            return False
        self._claims.add(path)
        if self._beat is None:
            self._beat = threading.Thread(target=self._renew, name="holdfast-lease", daemon=True)
            self._beat.start()
        return True

    def _lease(self, path: str) -> dict[str, Any]:
        return {"name": f"run:{short(path)}", "holder": self._holder, "seconds": LEASE_SECONDS}

    def _renew(self) -> None:
        while not self._closed.wait(LEASE_SECONDS / 3):
            with contextlib.suppress(HoldfastError):
                claims: list[Statement] = [(_CLAIM, self._lease(path)) for path in list(self._claims)]
                self._database.write("The lease", claims, durable=False)

    def release(self, path: str) -> None:
        if path in self._claims:
            self._claims.discard(path)
            self._database.write(path, [(_RELEASE, self._lease(path))], durable=False)

    def discard(self, path: str, unless: Callable[[], bool] = lambda: False, *, dead: bool = False) -> bool:
        with self._database.transaction(path):
            self._database.send(path, [(_LOCK, {"path": path})])
            if (dead and self._database.ask(path, _HELD, **self._lease(path))) or unless():
                return False
            with contextlib.suppress(NotFound):
                self.tree.remove(path)
        return True

    # records

    def get(self, identifier: str) -> Record:
        identifier = self.resolve(identifier)
        path = path_of(identifier)
        place = self.layout.classify(path)
        if place is not None and place.kind.shape != "line":
            key = short(identifier.removeprefix(f"{path}#")) if path != identifier else ""
            rows = self._rows("r.path = %(path)s AND r.key = %(key)s AND r.live", path=plain(path), key=key)
            if not rows:
                self.read(path)  # the error to report if there is no such document
        else:
            rows = self._rows("r.id = %(id)s::uuid", id=identifier) if is_id(identifier) else []
            if not rows:  # an id of another form, or of another program's conversation, is the key of its row
                keyless = [name for name, kind in KINDS.items() if kind.shape == "line" and not kind.key]
                wanted = "r.kind = ANY(%(kinds)s::text[]) AND r.key = %(key)s"
                rows = self._rows(wanted, kinds=keyless, key=short(identifier))
        for record in self._records(rows):
            if record.id == identifier:
                return record
        raise unknown(identifier)

    def _newest(self, where: Filter, limit: int = -1) -> list[Record]:
        condition, values = self._searcher.filter(where)
        some = f" LIMIT {int(limit)}" if limit >= 0 else ""
        order = "r.at DESC NULLS LAST, r.path, r.id DESC"
        return self._records(self._rows(f"{condition} ORDER BY {order}{some}", **values))

    def survey(self, where: Filter) -> tuple[list[Record], list[Problem]]:
        found = self._newest(where)
        wanted = where.kinds or where.searchable
        return found, self._problems("r.kind = ANY(%(kinds)s::text[])", kinds=list(wanted))

    def every(self) -> list[Record]:
        wanted = "NOT r.kind = ANY(%(kinds)s::text[]) AND r.kind = ANY(%(known)s::text[]) AND (r.live OR r.key <> '')"
        rows = self._rows(f"{wanted} ORDER BY r.path, r.id", kinds=[*NOT_RECORDS, "trace"], known=list(KINDS))
        return [record for record in self._records(rows) if not record.fields.get("forgotten")]

    def by_key(self, path: str, key: str, *, history: bool = False) -> list[Record]:
        some = "" if history else " AND r.live"
        return self._records(
            self._rows(f"r.path = %(path)s AND r.key = %(key)s{some} ORDER BY r.id", path=path, key=short(key))
        )

    def beside(self, path: str, order: str, limit: int, *, after: bool) -> list[Record]:
        sign, way = (">", "ASC") if after else ("<", "DESC")
        wanted = f"r.path = %(path)s AND r.id {sign} %(order)s::uuid AND r.live AND NOT r.hidden ORDER BY r.id {way}"
        return self._records(self._rows(f"{wanted} LIMIT %(limit)s::int", path=path, order=order, limit=limit))

    def count(self, path: str, after: str = "") -> int:
        wanted = "SELECT count(*) FROM holdfast.record r WHERE r.tenant = %(tenant)s AND r.path = %(path)s AND r.live"
        wanted += " AND NOT r.hidden AND r.id > %(after)s::uuid"
        after = after if is_id(after) else FIRST_ID
        return int(self._database.ask(path, wanted, path=path, after=after)[0][0])

    def problems(self, *paths: str) -> list[Problem]:
        return self._problems("r.path = ANY(%(paths)s::text[])", paths=list(paths))

    def _problems(self, condition: str = "true", **values: Any) -> list[Problem]:
        """Return the problems of entries and documents."""
        rows = self._rows(f"{FAULTY} AND {condition}", **values)
        return [problem for row in rows for problem in problems_of(row, self.layout.classify(row.path))]

    # recall

    def search(self, query: Query, terms: Terms, where: Filter, use: Callable[[Candidates], T], *, plain: bool) -> T:
        as_of = iso(now_ms())
        return use(self._candidates(query, terms, where, plain, as_of=as_of))

    def _best(self, terms: Terms, where: Filter, limit: int) -> list[tuple[Record, float]]:
        matches = self._searcher.best(terms, where, limit)
        records = self._loaded([row for row, _ in matches])
        return [(record, score) for record, (_, score) in zip(records, matches, strict=True) if record]

    def _loaded(self, found: Sequence[Stored | str]) -> list[Record | None]:
        """Return the records of rows; those with only an id are read."""
        missing = self._load([one for one in found if isinstance(one, str)])
        return [missing.get(one) if isinstance(one, str) else self._record(one) for one in found]

    def _pools(self, terms: Terms, where: Filter, query: Query, most: int) -> tuple[list[Pool], Near, Load]:
        found, near = self._searcher.search(terms, where, most, query)
        rows = [row for one in found for row in one.rows]

        def load(numbers: list[int]) -> dict[int, Record]:
            records = self._loaded([rows[number] for number in numbers])
            return {number: record for number, record in zip(numbers, records, strict=True) if record}

        return [one.pool for one in found], near, load

    def _related(self, own: Mapping[str, Sequence[Record]], where: Filter, limit: int) -> dict[str, list[Tied]]:
        return words.related(own, lambda ties: self._searcher.having(ties, where), self._load, limit)

    def matches(self, terms: Terms, where: Filter, limit: int, path: str) -> list[Record]:
        del path
        return [record for record, _ in self._best(terms, where, limit)]

    def related(self, identifier: str, where: Filter, limit: int) -> list[Tied]:
        own: dict[str, list[Record]] = {identifier: []}
        with contextlib.suppress(NotFound):
            own[identifier] = [self.get(identifier)]
        return self._related(own, where, limit)[identifier]

    def embed(self, progress: Progress | None = None) -> Embedded:
        return self._searcher.embed(progress)

    def embedded(self) -> Embedded:
        return self._searcher.status()

    # care

    def refresh(self, *, rebuild: bool = False, progress: Progress | None = None) -> Refreshed:
        done = Refreshed()
        if rebuild:
            for rows, changed in self._derived(_DERIVE, progress):
                done.records += len(rows)
                done.changed += len(changed)
            forget = "DELETE FROM holdfast.term WHERE tenant = %(tenant)s"
            self._database.write("The words", [(forget, {}), (_COUNT_AGAIN, {}), *COUNT_WORDS])
        elif not self.reads_only:
            self._database.write("The words", COUNT_WORDS, durable=False)
        done.problems = self._problems()
        return done

    def _derived(self, statement: str, progress: Progress | None) -> Iterator[tuple[list[Row], set[str]]]:
        """Yield all rows as computed from their text, a part at a time, and the ids that a statement returns."""
        every = "SELECT count(*), max(id::text) FROM holdfast.record WHERE tenant = %(tenant)s"
        ((total, newest),) = self._database.ask("The records", every)  # later ones are made by these rules
        last, done = FIRST_ID, 0
        wanted = f"r.id > %(last)s::uuid AND r.id <= %(newest)s::uuid ORDER BY r.id LIMIT {_PAGE}"
        while rows := self._rows(wanted, last=last, newest=newest):
            made = list[Row]()
            for one in rows:  # flags that depend on other rows are kept
                if is_log(one.path):
                    if one.raw is not None:
                        continue
                    row = self._maker.entry(one.path, one.value)
                elif one.kind in KINDS and KINDS[one.kind].shape == "section":
                    if (record := self._record(one)) is None:
                        continue
                    row = self._maker.section(one.path, record, one.writer)
                else:
                    row, _ = self._maker.document(one.path, one.data, one.id, one.writer)
                row.id, row.live = one.id, one.live
                made.append(row)
            yield made, {each for (each,) in self._database.ask("The records", statement, rows=sent(made))}
            last, done = rows[-1].id, done + len(rows)
            if progress:
                progress(done, total)

    def verify(self, progress: Progress | None = None) -> Report:
        report = Report()
        for rows, wrong in self._derived(_DIFFERENT, progress):
            report.records += sum(row.live and row.kind in KINDS for row in rows)
            differ = (row for row in rows if row.id in wrong)
            what = "the row {} differs from its text"
            report.differences += [Problem(row.path, what.format(row.id)) for row in differ]
        report.files = self._count_files()
        report.damage = [problem for problem in self._problems() if not problem.minor]
        ledgers = self._records(self._rows("r.kind = 'ledger' ORDER BY r.id"))
        report.damage += check_save_points(self.tree, self.layout.memory, ledgers)
        return report

    def stats(self) -> dict[str, Any]:
        rows = self._database.ask("The records", _COUNTS)
        counts = {kind: count for kind, count, _ in rows if kind in KINDS}
        return {
            "records": sum(counts.values()),
            "kinds": counts,
            "files": self._count_files(),
            "bytes": sum(size for _, _, size in rows),
            "index_bytes": 0,
            "behind": 0,
            "problems": len(self._problems()),
            "vanished": [],
            **({"words_alone": self.words_alone} if self.words_alone else {}),
        }

    def _count_files(self) -> int:
        """Return how many documents and logs have records."""
        found = self.tree.walk("", (".md", ".jsonl"), lambda _path, _why: None)
        return sum(self.layout.watched(path) for path, _ in found)

    @property
    def waiting(self) -> int:
        return 0

    def watch(self) -> None:
        self._searcher.fills = True  # every query sees all commits; only vectors are made separately

    def purge(self) -> None:
        """Do nothing: words and vectors are part of the rows that were removed."""

    def follow(self) -> PgFeed:
        return PgFeed(self)

    def changes_since(self, moment: _Moment | None) -> tuple[_Moment, list[Event]]:
        """Return the changes since a snapshot; nothing without one."""
        now, rows = self._since(_NEW, "", moment.snapshot) if moment else self._since(_EVERY)
        events = list[Event]()
        for row in rows:
            place = self.layout.classify(row.path)
            if place is None:
                continue
            if is_log(row.path):
                value = row.value if row.raw is None else {}
                if isinstance(value.get("hide"), str):
                    mark = parsing.mark(place, value)
                    events.append(Event.at("hidden" if mark.hidden else "restored", place, mark.target))
                removes = place.kind.name == "write" and not value.get("after")
                if removes and (gone := self.layout.classify(str(value.get("path")))):
                    events.append(Event.at("removed", gone))
            for record in self._records([row]) if row.live else ():
                earlier = "r.path = %(path)s AND r.key = '' AND NOT r.live LIMIT 1"
                replaces = KINDS[row.kind].shape == "document" and self._rows(earlier, path=row.path)
                events.append(Event.of("hidden" if record.hidden else "changed" if replaces else "added", record))
        return now, events


def _is_mark(row: Row) -> bool:
    """Return whether an entry hides or shows a record."""
    return bool(row.about) and row.about != PROBLEM and not row.live and row.kind not in ("write", "trace")


def _part(rows: Iterable[Stored], now: _Moment, *, fresh: bool) -> LogPart:
    entries, warnings = [], []
    for row in rows:
        if row.raw is None:
            entries.append(row.value)
        else:
            warnings.append(str(problem_of(row)))
    return LogPart(entries, now, fresh, warnings)


class PgFeed:
    """The commits since the last call; the database is asked a few times a second."""

    def __init__(self, store: PgStore) -> None:
        self._store = store
        self._moment, _ = store.changes_since(None)
        self._closed = threading.Event()

    def events(self, timeout: float) -> list[Event]:
        deadline = clocks.monotonic() + timeout
        while not self._closed.is_set():
            self._moment, found = self._store.changes_since(self._moment)
            left = deadline - clocks.monotonic()
            if found or left <= 0:
                return found
            self._closed.wait(min(left, _POLL_SECONDS))
        return []

    def close(self) -> None:
        self._closed.set()
