"""`PgStore`: a memory in a database, in which every record is a row.

A write is one message: the row, or the rows, of an entry, or a document with the versions it replaces and its line of
the write log. Nothing is derived later except for vectors and the count of words, so a reader needs no refresh.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import secrets
import threading
import time as clocks
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import psycopg
from psycopg import errors as pg
from psycopg import sql

from holdfast.errors import AlreadyExists, Conflict, HoldfastError, NotFound, OverBudget, Unavailable
from holdfast.formats import jsonl, transcripts
from holdfast.model.kinds import FOREIGN, KINDS, NOT_RECORDS
from holdfast.model.layout import Layout
from holdfast.model.queries import Query, Terms
from holdfast.model.records import Problem, Receipt, Record, path_of, version_of
from holdfast.model.scopes import Scope
from holdfast.model.settings import Settings, Shared
from holdfast.model.times import derived_id, id_ms, is_id, iso, now_ms, utc_now
from holdfast.recall.answers import Answer, Candidates
from holdfast.recall.embedders import Embedded
from holdfast.recall.ranking import Near
from holdfast.storage import parsing
from holdfast.storage.log import Changed, LogPart, attempts
from holdfast.storage.pools import Filter, Pool, Tied
from holdfast.storage.postgres.connections import Statement
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.files import INSERT_ALL, ROW, PgTree, is_log
from holdfast.storage.postgres.rows import (
    LOG,
    PROBLEM,
    READ,
    TOKENIZER,
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
from holdfast.storage.postgres.search import Searcher, has_foreign
from holdfast.storage.postgres.vectors import Vectors
from holdfast.storage.reports import Progress, Refreshed, Report, check_save_points
from holdfast.storage.store import ANY, Appended, Applied, Event, Made, Store, What, other_use, unknown
from holdfast.storage.tree import ABSENT

T = TypeVar("T")
_AT_LINE = re.compile(r"(.+\.md):([0-9]{1,9})\Z")
_FOLDED = frozenset(name for name, kind in KINDS.items() if kind.owned and name not in ("write", "trace", "summary"))
"""Kinds whose logs are read whole to decide on the next entry, so appends to them wait for each other."""
LEASE_SECONDS = 30.0
"""How long a run outlives the last sign of life of its process; a live one renews it three times in that time."""
_POLL_SECONDS = 1.0
_BATCH, _PAGE = 500, 1_000
_MOST_WRITERS = 10_000
_COUNT_AT = 500
"""Rows that a search found uncounted before it counts their words."""
_COUNT_WORDS = "SELECT holdfast.count_words(1)"
_COLUMNS = ", ".join(Row.__struct_fields__)
_INSERT = {
    count: f"INSERT INTO holdfast.record ({_COLUMNS}) VALUES ("
    + "), (".join(", ".join(f"%({name}{number})s" for name in Row.__struct_fields__) for number in range(count))
    + ") ON CONFLICT (tenant, id) DO NOTHING"
    for count in (1, 2)
}
_SUPERSEDE = """
UPDATE holdfast.record SET live = false, words = NULL
WHERE tenant = %(tenant)s AND path = %(path)s AND key = %(key)s AND live AND id < %(id)s::uuid
"""
_APPEND = "SELECT holdfast.append(%(rows)s::json, %(seen)s, %(alone)s)::text"
_BY_OP = f"""
SELECT r.about, {READ} FROM holdfast.record o JOIN holdfast.record r ON r.tenant = o.tenant AND r.xact = o.xact
    AND (r.id = o.id OR r.more ->> 'op' = %(op)s) WHERE o.tenant = %(tenant)s AND o.op = ANY(%(keys)s::text[])
ORDER BY r.id
"""
_SINCE = f"""
SELECT pg_current_snapshot()::text, pg_postmaster_start_time()::text || ' '
    || coalesce((SELECT s.epoch FROM holdfast.stat s WHERE s.tenant = %(tenant)s), 0)::text, {READ}
FROM (VALUES (1)) AS one LEFT JOIN holdfast.record r ON r.tenant = %(tenant)s AND {{condition}} ORDER BY r.id
"""
_EVERY = _SINCE.format(condition="r.path = %(path)s")
_NEW = _SINCE.format(
    condition="(%(path)s = '' OR r.path = %(path)s) AND r.xact >= pg_snapshot_xmin(%(seen)s::pg_snapshot)"
    " AND NOT pg_visible_in_snapshot(r.xact, %(seen)s::pg_snapshot)"
)
_NOW = _SINCE.format(condition="false")
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%(tenant)s || ' ' || %(path)s, 0))::text"
_CLAIM = """
INSERT INTO holdfast.lease AS l (tenant, name, holder, until)
VALUES (%(tenant)s, %(name)s, %(holder)s, clock_timestamp() + make_interval(secs => %(seconds)s))
ON CONFLICT (tenant, name) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE l.holder = excluded.holder OR l.until < clock_timestamp() RETURNING 1
"""
_RENEW = """
UPDATE holdfast.lease SET until = clock_timestamp() + make_interval(secs => %(seconds)s)
WHERE tenant = %(tenant)s AND holder = %(holder)s
"""
_RELEASE = "DELETE FROM holdfast.lease WHERE tenant = %(tenant)s AND name = %(name)s AND holder = %(holder)s"
_HELD = """
SELECT holder FROM holdfast.lease WHERE tenant = %(tenant)s AND name = %(name)s AND until > clock_timestamp()
"""
_MARKS = """
SELECT r.about, r.id::text, r.hidden, r.path FROM holdfast.record r
WHERE r.tenant = %(tenant)s AND r.about = ANY(%(about)s::text[]) AND r.more ->> 'hide' IS NOT NULL
"""
_HIDE = """
UPDATE holdfast.record r SET hidden = %(hidden)s WHERE r.tenant = %(tenant)s AND r.live AND r.path = %(path)s
    AND (r.key = %(target)s OR r.id::text = %(target)s) AND (coalesce(r.key, '') = '' OR r.id < %(mark)s::uuid)
"""
_COMPLETE = """
UPDATE holdfast.record r SET live = true, about = NULL, words = s.words, xact = pg_current_xact_id()
FROM json_populate_recordset(NULL::holdfast.record, %(rows)s::json) s
WHERE r.tenant = %(tenant)s AND r.id = s.id AND r.about = %(problem)s
"""
_WRITERS = """
SELECT coalesce(r.more ->> 'record', r.about), r.writer FROM holdfast.record r
WHERE r.tenant = %(tenant)s AND r.kind = 'write' AND r.about = ANY(%(paths)s::text[]) ORDER BY r.id
"""
_COUNTS = """
SELECT r.kind, count(*), coalesce(sum(octet_length(r.text) + coalesce(octet_length(r.more::text), 0)), 0)::bigint
FROM holdfast.record r WHERE r.tenant = %(tenant)s AND (r.live OR r.key <> '' AND r.about IS NULL)
GROUP BY r.kind ORDER BY r.kind
"""
_STAT = f"INSERT INTO holdfast.stat (tenant, tokenizer) VALUES (%(tenant)s, {TOKENIZER}) ON CONFLICT DO NOTHING"
_TOKENIZER = "SELECT s.tokenizer FROM holdfast.stat s WHERE s.tenant = %(tenant)s"
_COUNT_AGAIN = f"""
UPDATE holdfast.stat SET records = '{{0,0}}', length = '{{0,0}}', upto = '0', tokenizer = {TOKENIZER}
WHERE tenant = %(tenant)s
"""


class _Moment(NamedTuple):
    """What was committed when a log was read, and on which server; a log that was rewritten has another epoch."""

    snapshot: str
    epoch: str


class PgStore(Store):
    """One tenant of a database, or one scope of it."""

    tree: PgTree
    folder = ""

    def __init__(self, database: Database, layout: Layout, settings: Settings, writer: str = "") -> None:
        super().__init__(layout, settings, writer)
        self.address, self.reads_only = database.address, database.reads_only
        self.tree = PgTree(database, layout)
        self._database = database
        self._maker = self.tree.maker
        self._searcher = Searcher(database, settings.search)
        embedder = settings.search.embedder if settings.search.meaning else "none"
        self._vectors = Vectors(database, embedder, self._load)
        self._holder = secrets.token_hex(16)
        self._claims: set[str] = set()
        self._beat: threading.Thread | None = None
        self._closed = threading.Event()
        self._watching = False
        self._counting = threading.Lock()
        self._writers: dict[str, str | None] = {}
        """Who wrote the documents and sections that were read."""
        self._old_words = self._check_words()

    def _check_words(self) -> bool:
        """Return whether the words were made by older rules; refuse a memory whose words were made by newer ones."""
        found = self._database.ask("The words", _TOKENIZER)
        if not found:
            self._database.first = (_STAT, {})
            return False
        if found[0][0] > TOKENIZER:
            raise Unavailable(
                "The words of this memory were made by a newer Holdfast; this one would not find them.",
                "Upgrade Holdfast.",
            )
        return bool(found[0][0] < TOKENIZER)

    def _need_words(self) -> None:
        if self._old_words:
            self._old_words = self._check_words()
        if self._old_words:
            raise Unavailable(
                "The words of this memory were made by an older Holdfast and cannot be searched by this one.",
                "Stop programs of the older version, and run: holdfast refresh --rebuild",
            )

    @property
    def trips(self) -> int:
        """How many messages were sent."""
        return self._database.trips

    def clock(self) -> int:
        ((ms,),) = self._database.ask("The clock", "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
        return int(ms)

    def close(self) -> None:
        self._closed.set()
        self._vectors.close()
        for path in list(self._claims):
            with contextlib.suppress(HoldfastError):
                self.release(path)
        if not self._database.scope:
            self._database.close()

    def within(self, scope: str) -> Store:
        tops = (f"{self.layout.workspaces}/{scope}", f"{self.layout.memory}/workspaces/{scope}")
        alone = msgspec.structs.replace(self.settings, shared=Shared())  # the shared memory is outside
        return PgStore(
            self._database.beside(scope="\n".join((scope, *tops))), self.layout, alone, self._default_writer
        )  # fmt: skip

    def _rows(self, condition: str, **values: Any) -> list[Stored]:
        found = self._database.ask("The records", f"{ROW} {condition}", **values)
        return [Stored(*row) for row in found]

    def _record(self, row: Stored) -> Record | None:
        record = record_of(row, self.layout.classify(row.path), self.tree.text)
        if record and KINDS[record.kind].shape != "line":
            if len(self._writers) > _MOST_WRITERS:
                self._writers.clear()
            self._writers[record.id] = row.writer
        return record

    def _records(self, rows: Iterable[Stored]) -> list[Record]:
        return [record for row in rows if (record := self._record(row))]

    def _load(self, ids: Sequence[str]) -> dict[str, Record]:
        """Return the records of these rows that still exist."""
        rows = self._rows("r.id = ANY(%(ids)s::uuid[])", ids=list(ids)) if ids else []
        return {row.id: record for row in rows if (record := self._record(row))}

    # documents

    def update(
        self, path: str, make: Callable[[bytes | None], Made], *, expect: str, op_id: str = "", status: str = "changed",
        keep: bool = True, note: Mapping[str, Any] = {},
    ) -> Receipt:  # fmt: skip
        for _ in attempts(path):
            before, current = (ABSENT, None) if expect == ABSENT else self._now(path)
            if expect not in (ABSENT, ANY) and before != expect:
                if repeated := self.applied(op_id, path):
                    return repeated
                raise refused_version(path, expect)
            try:
                made = make(current)
            except AlreadyExists:
                if repeated := self.applied(op_id, path):
                    return repeated
                raise
            entry: dict[str, Any] = {"path": path, "before": before, "after": made.version, **note}
            if made.id != path:
                entry |= {"after": version_of(made.data), "record": made.id, "version": made.version}
            if made.data == current:
                if repeated := self.applied(op_id, path):
                    return repeated
                if op_id:  # the op_id must not have an effect later either
                    self.log_write(entry, op_id)
                return Receipt("unchanged", made.id, path, made.version)
            self.check_size(path, made.data)
            try:
                self._put(path, made.data, before, keep, entry, op_id)
            except (Conflict, AlreadyExists):
                if repeated := self.applied(op_id, path):
                    return repeated
                if expect != ANY:
                    raise
                continue
            return Receipt(status, made.id, path, made.version)
        raise AssertionError("attempts() ends in an error")

    def remove(
        self, path: str, *, expect: str, op_id: str = "", keep: bool = True, note: Mapping[str, Any] = {}
    ) -> None:
        self._put(path, None, expect, keep, {"path": path, "before": expect, **note}, op_id)

    def _put(
        self, path: str, data: bytes | None, expect: str, keep: bool, entry: Mapping[str, Any], op_id: str
    ) -> None:
        """Write or remove a document together with its line of the write log."""
        line = {name: value for name, value in entry.items() if value} | ({"op": op_id} if op_id else {})
        if self.writer:
            line["writer"] = self.writer
        log = self.layout.path_for(KINDS["write"], Scope(), month=utc_now()[:7])
        row = self._maker.entry(log, {"time": utc_now(), **line}, self._database.mint()[0])
        row.op = self._op(op_id) if op_id else None
        place = self.layout.classify(path)
        try:
            if (
                data is not None
                and expect == ABSENT
                and place
                and place.kind.is_named
                and place.kind.shape == "document"
            ):
                self._create(path, data, row)
                return
            self.tree.put(path, data, expect=expect, keep=keep, note=row, writer=self.writer)
        except psycopg.Error as error:
            if error.sqlstate in ("HF003", "23505") and op_id:
                raise Conflict(f"The op_id {op_id} was used before.", "Use a new one.") from None
            raise

    def _create(self, path: str, data: bytes, note: Row) -> None:
        """Create a document whose name we made, so that it cannot be a folder; its index refuses a second one."""
        row, _ = self._maker.document(check_path(path), data, self._database.mint()[0], self.writer)
        try:
            self._database.write(path, [(_INSERT[2], [*row.values(), *note.values()])])
        except pg.UniqueViolation as error:
            if error.diag.constraint_name == "record_key":
                raise AlreadyExists(f"{path} already exists; nothing was written.", "Choose another name.") from None
            raise

    def log_write(self, entry: Mapping[str, Any], op_id: str = "") -> None:
        path = self.layout.path_for(KINDS["write"], Scope(), month=utc_now()[:7])
        self.append(path, [{name: value for name, value in entry.items() if value}], op_id=op_id)

    def _changed(self, path: str) -> None:
        pass

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
        """Return an op_id as its column has it: one of another scope is as good as new."""
        return short(f"{self._database.scope}\n{op_id}" if self._database.scope else op_id)

    def writers(self, records: Sequence[Record]) -> dict[str, str]:
        pages = {record.id: record.path for record in records if KINDS[record.kind].shape != "line"}
        known = {each: self._writers[each] for each in pages if each in self._writers}
        found = {each: writer for each, writer in known.items() if writer is not None}
        if missing := [path for each, path in pages.items() if each not in found]:
            rows = self._database.ask("The write log", _WRITERS, paths=missing)
            found = {each: writer or "" for each, writer in rows} | found
        return found

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
        for _ in attempts(path):
            rows = self._made(path, entries, time, op_id, after)
            try:
                self._insert(path, rows, unless, durable)
                return Appended([row.id for row in rows])
            except psycopg.Error as error:
                match error.sqlstate:
                    case "HF001":
                        raise Changed from None
                    case "HF002":  # the entry of a program whose clock is ahead
                        after = str(error.diag.message_primary)
                    case "HF003" | "23505" if op_id:
                        return self._repeated(path, op_id, rows)
                    case "23505":  # another program wrote this key at the same time, or has a clock that is ahead
                        after = self._latest(path, [row.key for row in rows if row.key])
                    case _:
                        raise
        raise AssertionError("attempts() ends in an error")

    def _made(
        self, path: str, entries: Sequence[Mapping[str, Any]], time: str, op_id: str, after: str
    ) -> list[Row]:  # fmt: skip
        """Return the rows of new entries; OverBudget when one is too long."""
        more = {"op": op_id} if op_id else {}
        if writer := self.writer:
            more["writer"] = writer
        now, most = utc_now(), self.settings.limits.line_bytes - 100
        rows = []
        for entry, identifier in zip(entries, self._database.mint(len(entries), after), strict=True):
            row = self._maker.entry(path, {time: now, **entry, **more}, identifier)
            size = len(bytes(row.more or b"")) + len((row.text or "").encode())
            if size > most:
                raise OverBudget(
                    f"The line would have {size:,} bytes; the limit is {most + 100:,}.", "Shorten its fields."
                )
            rows.append(row)
        if op_id:
            rows[0].op = self._op(op_id)
        return rows

    def _insert(self, path: str, rows: list[Row], unless: Any, durable: bool) -> None:
        """Insert new entries in one message: by plain statements where nothing has to be decided."""
        first = rows[0]
        decided = unless is not None or first.kind in _FOLDED or any(_is_mark(row) for row in rows)
        if not decided and len(rows) <= len(_INSERT):
            statements: list[Statement] = [
                (_SUPERSEDE, {"path": path, "key": row.key, "id": row.id}) for row in rows if row.key
            ]
            values = first.values() if len(rows) == 1 else [value for row in rows for value in row.values()]
            self._database.write(path, [*statements, (_INSERT[len(rows)], values)], durable=durable)
        elif not decided and not first.op and not any(row.key for row in rows):
            parts = [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]
            self._database.write(path, [(INSERT_ALL, {"rows": sent(part)}) for part in parts], durable=durable)
        else:
            seen = "" if unless is None else unless.snapshot
            given = {"rows": sent(rows), "seen": seen, "alone": first.kind in (*_FOLDED, LOG)}
            self._database.write(path, [(_APPEND, given)], durable=durable)

    def _latest(self, path: str, keys: list[str]) -> str:
        wanted = "SELECT max(id::text) FROM holdfast.record WHERE tenant = %(tenant)s AND path = %(path)s AND live"
        ((last,),) = self._database.ask(path, f"{wanted} AND key = ANY(%(keys)s::text[])", path=path, keys=keys)
        return last or ""

    def _repeated(self, path: str, op_id: str, rows: list[Row]) -> Appended:
        """Return what an op_id added before; Conflict when it did something else."""
        applied = self._applied(op_id)
        about = rows[0].about if _is_mark(rows[0]) else None
        for one in applied:
            if one.path != path or (one.id != about if about else one.marks):
                raise other_use(op_id, one)
        if len(applied) < len(rows):
            raise other_use(op_id, applied[0] if applied else Applied(path, ""))
        return Appended([one.id for one in applied][-len(rows) :], repeated=True)

    def append_decided(
        self, path: str, decide: Callable[[], tuple[Sequence[Mapping[str, Any]], str]], *, durable: bool = True
    ) -> list[str]:
        del durable
        with self._database.transaction(path):
            self._database.send(path, [(_LOCK, {"path": path})])
            entries, after = decide()
            return self.append(path, entries, after=after).ids

    def read_on(self, path: str, cursor: Any) -> LogPart:
        if cursor is not None:
            now, rows = self._since(_NEW, path, cursor.snapshot)
            if now.epoch == cursor.epoch:
                return _part(rows, now, fresh=False)
        now, rows = self._since(_EVERY, path)
        return _part(rows, now, fresh=True)

    def _since(self, statement: str, path: str = "", seen: str = "") -> tuple[_Moment, list[Stored]]:
        """Return the rows of one statement, and the moment that it saw."""
        found = self._database.ask("The changes", statement, path=path, seen=seen)
        return _Moment(*found[0][:2]), [Stored(*row[2:]) for row in found if row[2]]

    def newest(self, path: str, problems: list[Problem] | None = None) -> Iterator[Record]:
        last, most = "ffffffff-0000-0000-0000-000000000000", 100
        condition = "r.path = %(path)s AND r.id < %(last)s::uuid AND (r.live AND NOT r.hidden OR r.about = %(problem)s)"
        condition += " ORDER BY r.id DESC LIMIT %(most)s::int"
        while True:
            rows = self._rows(condition, path=path, last=last, most=most, problem=PROBLEM)
            for row in rows:
                if row.live:
                    yield from self._records([row])
                elif problems is not None:
                    problems.append(problem_of(row))
            if len(rows) < most:
                return
            last, most = rows[-1].id, _PAGE

    def import_lines(self, path: str, lines: Sequence[bytes]) -> int:
        longest = max((len(line) + 1 for line in lines), default=0)
        if longest > self.settings.limits.line_bytes:
            limit = self.settings.limits.line_bytes
            raise OverBudget(f"A line would have {longest:,} bytes; the limit is {limit:,}.", "Shorten it.")
        check_path(path)
        place, rows = self.layout.classify(path), dict[str, Row]()
        last = self._last_ms(path) if place and place.kind.foreign else -1
        for line in lines:
            values = transcripts.parse(line) if last >= 0 else jsonl.parse(line)
            if isinstance(values, str):
                identifier = derived_id(0, path.encode() + line)
                rows.setdefault(identifier, self._maker.damaged(path, identifier, line))
                continue
            for value in values:
                row = self._maker.entry(path, value)
                if last >= 0 and row.live:  # turns are in the order of their lines, whatever times they have
                    last = max(id_ms(row.id), last + 1)
                    row.id = derived_id(last, str(row.key).encode())
                rows.setdefault(row.key or row.id if last >= 0 else row.id, row)
        count, every = 0, list(rows.values())
        with self._database.transaction(path) if len(every) > _BATCH else contextlib.nullcontext():
            for start in range(0, len(every), _BATCH):
                count += self._add(path, every[start : start + _BATCH])
        return count

    def _last_ms(self, path: str) -> int:
        """Return the time of the last row of a log, 0 when there is none."""
        last = "SELECT max(id::text) FROM holdfast.record WHERE tenant = %(tenant)s AND path = %(path)s AND live"
        ((found,),) = self._database.ask(path, last, path=path)
        return id_ms(found) if found else 0

    def _add(self, path: str, rows: list[Row]) -> int:
        """Add rows from elsewhere, in any order: which of them are current and hidden follows from all of them."""
        self._set_apart(path, rows)
        more = self._settle(path, rows)
        return len(
            self._database.write(path, [*more, (INSERT_ALL, {"rows": sent(rows)}), *self._hiding(path, rows)])[
                len(more)
            ]
        )

    def _set_apart(self, path: str, rows: list[Row]) -> None:
        """Give a row another id when an entry of another log has the same."""
        wanted = "SELECT r.id::text FROM holdfast.record r WHERE r.tenant = %(tenant)s AND r.id = ANY(%(ids)s::uuid[])"
        found = self._database.ask(path, f"{wanted} AND r.path <> %(path)s", ids=[r.id for r in rows], path=path)
        for row in (row for row in rows if (row.id,) in found):
            value = {"id": row.id, **msgspec.json.decode(bytes(row.more or b"{}"))}
            row.id = derived_id(id_ms(row.id), f"{path} {row.id}".encode())
            row.more = msgspec.Raw(jsonl.render(value)[:-1])

    def _settle(self, path: str, rows: list[Row]) -> list[Statement]:
        """Set the flags of new rows by what is there; return the statements that change rows that are there."""
        statements: list[Statement] = []
        keyed = [row for row in rows if row.live and row.key and row.kind not in FOREIGN]
        if keyed:
            wanted = "r.path = %(path)s AND r.key = ANY(%(keys)s::text[]) AND r.live"
            held = f"SELECT r.key, r.id::text FROM holdfast.record r WHERE r.tenant = %(tenant)s AND {wanted}"
            known: dict[str, str] = dict(self._database.ask(path, held, path=path, keys=list({r.key for r in keyed})))
            newest = dict(known)
            for row in keyed:
                newest[str(row.key)] = max(newest.get(str(row.key), ""), row.id)
            for row in keyed:
                row.live = newest[str(row.key)] == row.id and known.get(str(row.key)) != row.id
                row.words = row.words if row.live else None
            gone = [old for key, old in known.items() if newest[key] != old]
            retire = "UPDATE holdfast.record SET live = false, words = NULL WHERE tenant = %(tenant)s"
            statements += [(f"{retire} AND id = ANY(%(ids)s::uuid[])", {"ids": gone})] if gone else []
        targets = {each for row in rows if row.live for each in (row.id, row.key) if each}
        places = (place.kind.shape == "line" for row in rows if (place := self.layout.classify(row.path)))
        if any(places) and (known_marks := self._marks(targets, rows)):
            for row in rows:
                found = (
                    known_marks.get(row.id, ()),
                    [mark for mark in known_marks.get(row.key or "", ()) if mark[0] > row.id],
                )
                if row.live and (mark := max(itertools.chain(*found), default=None)):
                    row.hidden = mark[1]
        if pair := next((KINDS[row.kind].pair for row in rows if row.kind in KINDS), ""):
            statements += self._pairs(path, pair, rows)
        return statements

    def _marks(self, targets: set[str], rows: list[Row]) -> dict[str, list[tuple[str, bool]]]:
        found: dict[str, list[tuple[str, bool]]] = {}
        every = self._database.ask("The marks", _MARKS, about=list(targets)) if targets else []
        new = [(row.about, row.id, row.hidden, row.path) for row in rows if _is_mark(row)]
        for about, identifier, hidden, path in (*every, *new):
            if path == rows[0].path:
                found.setdefault(about, []).append((identifier, hidden))
        return found

    def _hiding(self, path: str, rows: list[Row]) -> list[Statement]:
        """Return statements that hide or show what the newest of these marks are about."""
        marks: dict[str, Row] = {}
        for row in sorted(rows, key=lambda row: row.id):
            if row.about and _is_mark(row):
                marks[row.about] = row
        statements: list[Statement] = []
        for about, mark in marks.items():
            ledger = mark.kind == "ledger"
            where = {"path": about if ledger else path, "target": "" if ledger else about}
            statements.append((_HIDE, {**where, "hidden": mark.hidden, "mark": mark.id}))
        return statements

    def _pairs(self, path: str, field: str, rows: list[Row]) -> list[Statement]:
        """Leave out entries whose other half is missing; bring in those whose other half arrives."""
        halves: dict[str, list[Row]] = {}
        for row in rows:
            value = msgspec.json.decode(bytes(row.more)).get(field) if row.more and row.live else None
            if isinstance(value, str) and value:
                halves.setdefault(value, []).append(row)
        alone = {value: found[0] for value, found in halves.items() if len(found) == 1}
        if not alone:
            return []
        there = f"{ROW} r.path = %(path)s AND r.more ->> '{field}' = ANY(%(pairs)s::text[])"
        others = [Stored(*row) for row in self._database.ask(path, there, path=path, pairs=list(alone))]
        mine = {row.id for row in rows}
        known = {str(one.value.get(field)): one for one in others if one.id not in mine}
        for value, row in alone.items():
            if value not in known:
                row.live, row.about, row.words = False, PROBLEM, None
        found = [self._maker.entry(path, one.value) for one in known.values()]
        return [(_COMPLETE, {"rows": sent(found), "problem": PROBLEM})] if found else []

    # runs

    def claim(self, path: str) -> bool:
        given = {"name": f"run:{short(path)}", "holder": self._holder, "seconds": LEASE_SECONDS}
        if path not in self._claims and not self._database.write(path, [(_CLAIM, given)])[0]:
            return False
        self._claims.add(path)
        if self._beat is None:
            self._beat = threading.Thread(target=self._renew, name="holdfast-lease", daemon=True)
            self._beat.start()
        return True

    def _renew(self) -> None:
        while not self._closed.wait(LEASE_SECONDS / 3):
            with contextlib.suppress(HoldfastError):
                given = {"holder": self._holder, "seconds": LEASE_SECONDS}
                self._database.write("The lease", [(_RENEW, given)], durable=False)

    def release(self, path: str) -> None:
        if path in self._claims:
            self._claims.discard(path)
            given = {"name": f"run:{short(path)}", "holder": self._holder}
            self._database.write(path, [(_RELEASE, given)], durable=False)

    def discard(self, path: str, keep: Callable[[], bool] = lambda: False, *, dead: bool = False) -> bool:
        with self._database.transaction(path):
            self._database.send(path, [(_LOCK, {"path": path})])
            held = self._database.ask(path, _HELD, name=f"run:{short(path)}") if dead else []
            if any(holder != self._holder for (holder,) in held) or keep():
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
                self.read(path)  # which is the error to report when there is no such document
        elif is_id(identifier):
            rows = self._rows("r.id = %(id)s::uuid", id=identifier)
        else:
            wanted = "r.kind = ANY(%(kinds)s::text[]) AND r.key = %(key)s"
            keyless = [name for name, kind in KINDS.items() if kind.shape == "line" and not kind.key]
            rows = self._rows(wanted, kinds=keyless, key=short(identifier))
        for record in self._records(rows):
            return record
        if is_id(identifier):  # of a conversation, whose turns have rows of other ids
            found = [one for one in self._records(self._foreign(identifier)) if one.id == identifier]
            if found:
                return found[0]
        raise unknown(identifier)

    def _foreign(self, identifier: str) -> list[Stored]:
        wanted = "r.kind = ANY(%(kinds)s::text[]) AND r.key = %(id)s"
        return self._rows(wanted, kinds=list(FOREIGN), id=identifier)

    def resolve(self, identifier: str) -> str:
        at = _AT_LINE.match(identifier)
        place = self.layout.classify(at[1]) if at else None
        if at is None or place is None:
            return identifier
        if place.kind.shape != "section":
            return at[1]
        before = [one for one in parsing.entries(place, self.read(at[1])).records if one.line <= int(at[2])]
        if not before:
            raise unknown(identifier)
        return before[-1].id

    def query(self, where: Filter, limit: int = -1) -> tuple[Refreshed, list[Record]]:
        if where.tags:
            self._need_words()
        condition, values = self._searcher.filter(where)
        some = f" LIMIT {int(limit)}" if limit >= 0 else ""
        order = "r.at DESC NULLS LAST, r.path, r.id DESC"
        return Refreshed(), self._records(self._rows(f"{condition} ORDER BY {order}{some}", **values))

    def survey(self, where: Filter) -> tuple[list[Record], list[Problem]]:
        _, found = self.query(where)
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
        after = after if is_id(after) else "00000000-0000-0000-0000-000000000000"
        return int(self._database.ask(path, wanted, path=path, after=after)[0][0])

    def problems(self, *paths: str) -> list[Problem]:
        return self._problems("r.path = ANY(%(paths)s::text[])", paths=list(paths))

    def _problems(self, condition: str = "true", **values: Any) -> list[Problem]:
        """Return what is wrong with entries and documents."""
        rows = self._rows(f"r.about = %(problem)s AND {condition}", problem=PROBLEM, **values)
        return [problem for row in rows for problem in problems_of(row, self.layout.classify(row.path))]

    # recall

    def search(self, query: Query, terms: Terms, where: Filter, use: Callable[[Candidates], T], *, plain: bool) -> T:
        self._need_words()
        pools, near, best, as_of = list[Pool](), Near(), list[Answer](), iso(now_ms())
        loaded: list[Stored | str] = []

        def load(rows: list[int]) -> dict[int, Record]:
            missing = self._load([one for row in rows if isinstance(one := loaded[row], str)])
            found: dict[int, Record] = {}
            for row in rows:
                one = loaded[row]
                if record := missing.get(one) if isinstance(one, str) else self._record(one):
                    found[row] = record
            return found

        def related(answers: list[Answer]) -> list[list[Tied]]:
            around = msgspec.structs.replace(where, tags=(), since="", until="")
            own = {one.record.id: [one.record] for one in answers}
            ties = self._searcher.related(list(own), around, query.related, self._load, own)
            return [ties.get(one.record.id, []) for one in answers]

        if terms.empty:
            best = [Answer(record) for record in self.query(where, query.limit)[1]]
        elif plain:
            matches = self._searcher.best(terms, where, query.limit)
            missing = self._load([identifier for row, identifier, _ in matches if row is None])
            for row, identifier, score in matches:
                if record := self._record(row) if row else missing.get(identifier):
                    best.append(Answer(record, score))
        else:
            pools, near, loaded = self._pools(terms, where, query)
        return use(Candidates(pools, near, best, where, load, related, as_of=as_of))

    def _pools(self, terms: Terms, where: Filter, query: Query) -> tuple[list[Pool], Near, list[Stored | str]]:
        candidates = self.settings.search.candidates
        most = max(candidates if query.associate else candidates // 4, 2 * query.limit)
        flags, pools, values, loaded = has_foreign(where), list[Pool](), dict[str, float](), list[Stored | str]()
        also, ready = self._vectors.asking() if query.associate else [], False
        enough = Near().enough
        for asked in (terms, terms.loose) if terms.phrases and query.associate else (terms,):
            rarity, rows = self._searcher.rarity(asked, flags, also)
            ready = ready or (bool(also) and self._vectors.ready(rows[0]))
            if also and not ready and self._watching:
                self._vectors.fill()
            also = []
            for foreign in flags:
                wanted = self._searcher.wanted(asked, rarity, foreign)
                meaning = self._vectors.meaning(query, asked, wanted, rarity, foreign) if ready else None
                found = self._searcher.candidates(wanted, where, rarity, most, foreign=foreign, meaning=meaning)
                pools.append(_numbered(found.pool, len(loaded)))
                loaded += [row or identifier for row, identifier in zip(found.rows, found.ids, strict=True)]
                values |= found.near
                enough = meaning.near if meaning else enough
            if rarity.uncounted > _COUNT_AT:
                self._count_words()
            if any(pool.candidates for pool in pools):
                break
            if asked is not terms.loose and terms.phrases and query.associate:
                pools, loaded = [], []
        return pools, Near(values, enough) if ready else Near(), loaded

    def _count_words(self) -> None:
        """Count the words of new rows in a thread, unless one does already."""
        if self.reads_only or not self._counting.acquire(blocking=False):
            return

        def work() -> None:
            try:
                with contextlib.suppress(HoldfastError):
                    self._database.write("The words", [(_STAT, {}), (_COUNT_WORDS, {})], durable=False)
            finally:
                self._counting.release()

        threading.Thread(target=work, name="holdfast-words", daemon=True).start()

    def passes(self, where: Filter) -> bool:
        return bool(self.query(where, 1)[1])

    def related(self, identifier: str, where: Filter, limit: int) -> list[Tied]:
        self._need_words()
        own: dict[str, list[Record]] = {}
        with contextlib.suppress(NotFound):
            own[identifier] = [self.get(identifier)]
        return self._searcher.related([identifier], where, limit, self._load, own)[identifier]

    @property
    def embedder(self) -> str:
        return self._vectors.embedder

    @property
    def words_alone(self) -> str:
        return self._vectors.problem

    def embed(self, progress: Progress | None = None) -> Embedded:
        return self._vectors.embed(progress)

    def embedded(self) -> Embedded:
        return self._vectors.status()

    # care

    def refresh(self, *, rebuild: bool = False, progress: Progress | None = None) -> Refreshed:
        done = Refreshed()
        if rebuild:
            for rows, wrong in self._derived(progress):
                done.records += len(rows)
                done.changed += len(wrong)
                if wrong:
                    given = {"rows": sent([row for row in rows if row.id in wrong])}
                    self._database.write("The words", [(_DERIVE, given)], durable=False)
            forget = "DELETE FROM holdfast.term WHERE tenant = %(tenant)s"
            self._database.write("The words", [(_STAT, {}), (forget, {}), (_COUNT_AGAIN, {}), (_COUNT_WORDS, {})])
        elif not self.reads_only:
            self._database.write("The words", [(_STAT, {}), (_COUNT_WORDS, {})], durable=False)
        done.problems = self._problems()
        return done

    def _derived(self, progress: Progress | None) -> Iterator[tuple[list[Row], set[str]]]:
        """Yield all rows as they follow from what they say, a part at a time, and the ids of those that differ."""
        every = "SELECT count(*), max(id::text) FROM holdfast.record WHERE tenant = %(tenant)s"
        ((total, newest),) = self._database.ask("The records", every)  # later ones are made by these rules
        last, done = "00000000-0000-0000-0000-000000000000", 0
        wanted = f"r.id > %(last)s::uuid AND r.id <= %(newest)s::uuid ORDER BY r.id LIMIT {_PAGE}"
        while rows := self._rows(wanted, last=last, newest=newest):
            made = [row for one in rows if (row := self._again(one))]
            yield made, {each for (each,) in self._database.ask("The records", _DIFFERENT, rows=sent(made))}
            last, done = rows[-1].id, done + len(rows)
            if progress:
                progress(done, total)

    def _again(self, row: Stored) -> Row | None:
        """Return a row as it is made from its own text; flags that depend on other rows are kept."""
        if row.raw is not None and is_log(row.path):
            return None
        if is_log(row.path):
            made = self._maker.entry(row.path, row.value)
        elif row.kind in KINDS and KINDS[row.kind].shape == "section":
            record = self._record(row)
            if record is None:
                return None
            made = self._maker.section(row.path, record, row.writer)
        else:
            made, _ = self._maker.document(row.path, row.data, row.id, row.writer)
        made.id, made.live = row.id, row.live
        if not row.live:
            made.words = None
        return made

    def verify(self, progress: Progress | None = None) -> Report:
        report = Report()
        for rows, wrong in self._derived(progress):
            report.records += sum(row.live and row.kind in KINDS for row in rows)
            for row in rows:
                if row.id in wrong:
                    report.differences.append(Problem(row.path, f"the row {row.id} differs from what its text says"))
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
        self._watching = True  # every question sees what was committed; only vectors are made beside

    def purge(self) -> None:
        """Do nothing: words and vectors are part of the rows that were removed."""

    def follow(self) -> PgFeed:
        return PgFeed(self, self._database)

    def changes_since(self, moment: _Moment | None) -> tuple[_Moment, list[Event]]:
        """Return what happened since a moment; nothing without one."""
        if moment is None:
            return self._since(_NOW)[0], []
        now, rows = self._since(_NEW, "", moment.snapshot)
        return now, [event for row in rows for event in self._events(row)]

    def _events(self, row: Stored) -> Iterator[Event]:
        place = self.layout.classify(row.path)
        if place is None:
            return
        if is_log(row.path):
            value = row.value if row.raw is None else {}
            if isinstance(target := value.get("hide"), str):
                ledger = place.kind.name == "ledger"
                target = f"{row.path.rpartition('/')[0]}/{target}" if ledger else target
                what: What = "restored" if value.get("hidden") is False else "hidden"
                yield Event(what, row.path, target, "state" if ledger else place.kind.name, place.scope.path)
            removes = place.kind.name == "write" and not value.get("after")
            if removes and (gone := self.layout.classify(str(value.get("path")))):
                yield Event("removed", gone.path, "", gone.kind.name, gone.scope.path)
        for record in self._records([row]) if row.live else ():
            first = not is_log(row.path) and self._is_first(row)
            what = "hidden" if record.hidden else "added" if is_log(row.path) or first else "changed"
            yield Event(what, record.path, record.id, record.kind, record.scope.path, record)

    def _is_first(self, row: Stored) -> bool:
        """Is this the first version of a document, or a section that is new?"""
        wanted = "r.path = %(path)s AND r.key = '' AND NOT r.live LIMIT 1"
        return KINDS[row.kind].shape == "section" or not self._rows(wanted, path=row.path)


# A time without a zone was read in that of its writer, so `at` is not derived again.
_DIFFERENT = """
SELECT r.id::text FROM json_populate_recordset(NULL::holdfast.record, %(rows)s::json) s
JOIN holdfast.record r ON r.tenant = %(tenant)s AND r.id = s.id
WHERE (r.words, r.length, r.kind, r.scope, r.session, r.version, r.title, r.author, r.agent, r.priority)
    IS DISTINCT FROM
      (s.words, s.length, s.kind, s.scope, s.session, s.version, s.title, s.author, s.agent, s.priority)
"""
_DERIVE = """
UPDATE holdfast.record r SET words = s.words, length = s.length, kind = s.kind, scope = s.scope,
    session = s.session, title = s.title, author = s.author, agent = s.agent, priority = s.priority
FROM json_populate_recordset(NULL::holdfast.record, %(rows)s::json) s WHERE r.tenant = %(tenant)s AND r.id = s.id
"""


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


def _numbered(pool: Pool, start: int) -> Pool:
    """Return a pool whose rows are numbered from `start` on."""
    if not start:
        return pool
    candidates = {start + number: one for number, one in pool.candidates.items()}
    after = {start + one: start + other for one, other in pool.after.items()}
    return msgspec.structs.replace(pool, candidates=candidates, after=after)


def refused_version(path: str, expect: str) -> Conflict:
    return Conflict(
        f"{path} was changed since version {expect[:8]}; nothing was written.", "Read it again and redo the edit."
    )


class PgFeed:
    """What was committed since the last call. A listener is woken by writers; without the right to write, it polls."""

    def __init__(self, store: PgStore, database: Database) -> None:
        self._store, self._database = store, database
        self._moment, _ = store.changes_since(None)
        self._channel = f"holdfast_{secrets.token_hex(16)}"
        self._name = {"name": f"listen:{self._channel}", "holder": self._channel}
        self._session: Any = None
        self._renew_at = 0.0
        self._closed = False

    def events(self, timeout: float) -> list[Event]:
        deadline = clocks.monotonic() + timeout
        while not self._closed:
            self._listen()
            self._moment, found = self._store.changes_since(self._moment)
            left = deadline - clocks.monotonic()
            if found or left <= 0:
                return found
            try:
                for _ in (
                    self._session.notifies(timeout=min(left, _POLL_SECONDS), stop_after=1) if self._session else ()
                ):
                    pass
            except psycopg.Error:
                self._session = None
            if self._session is None:
                clocks.sleep(min(left, 0.1))
        return []

    def _listen(self) -> None:
        """Register as a listener, where that is allowed, and renew it."""
        if clocks.monotonic() < self._renew_at:
            return
        self._renew_at = clocks.monotonic() + LEASE_SECONDS / 3
        with contextlib.suppress(HoldfastError, psycopg.Error):
            if self._session is None or self._session.closed:
                self._session = self._database.connect()
                self._session.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            if not self._database.reads_only:
                given = {**self._name, "seconds": LEASE_SECONDS}
                self._database.send("The listener", [(_CLAIM, given)], durable=False)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(HoldfastError, psycopg.Error):
            if not self._database.reads_only:
                self._database.send("The listener", [(_RELEASE, self._name)], durable=False)
            if self._session:
                self._session.close()
