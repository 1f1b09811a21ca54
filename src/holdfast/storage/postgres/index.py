"""The index in a database: one for all programs that read the files of a tenant in the same way.

Whoever meets changed files brings it up to them, one program at a time; everybody else reads on. A rebuilt one is
filled beside the one in use and takes its place in one step. It is made of files and nothing else, so it is written
without waiting for the disk. A login that may only read uses it as it is, and says how far it is behind.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.errors import Busy, HoldfastError
from holdfast.model.queries import Terms
from holdfast.model.records import HALF, Problem, Record
from holdfast.model.settings import Search
from holdfast.storage.index import Applied, Facts, Filter, Pool, Seen, Stale, Tied, Unusable
from holdfast.storage.postgres import _faults, _index_proof
from holdfast.storage.postgres._filing import Filing, is_foreign
from holdfast.storage.postgres._filters import FILE, HERE, OF, at_or_below, conditions, named, plain, short
from holdfast.storage.postgres._finding import Generation, Searching, foreigns
from holdfast.storage.postgres._index_schema import TABLES
from holdfast.storage.postgres._tying import Ties, in_order, load
from holdfast.storage.postgres.transactions import Database, Turn
from holdfast.storage.words import record_in, revive

_WHAT = "the index"
_UNKNOWN = 1_000
"""So many rows the server may have never looked at."""
_GENERATION = (
    "SELECT generation, mark, records, foreign_records, length, foreign_length FROM holdfast.index_generations"
)
_RECORDS = f"holdfast.index_records r {FILE}"
_seen_out, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Seen).decode
T = TypeVar("T")


class PgIndex:
    """One tenant's index, for any number of threads. `fixed` is a generation that is not the one in use."""

    def __init__(self, database: Database, identity: str, settings: Search, fixed: int = 0) -> None:
        self._database = database
        self._identity = identity
        self._settings = settings
        self._fixed = fixed
        self._local = threading.local()

    def close(self) -> None:
        """Nothing to let go of: the vault closes the connections."""

    # which one

    def generation(self) -> str:
        try:
            return str(self._database.ask(_WHAT, self._which).number)
        except Stale:
            return ""

    def generations(self) -> list[str]:
        """Return all that are in use, by programs that read the files in one way or another."""
        statement = "SELECT generation FROM holdfast.index_generations WHERE tenant = %(tenant)s AND state = 'current'"
        return [str(row[0]) for row in self._database.ask(_WHAT, lambda turn: turn.rows(statement))]

    def _which(self, turn: Turn) -> Generation:
        """Return the index in use."""
        held: Generation | None = getattr(self._local, "held", None)
        if held:
            return held
        if self._fixed:
            row = turn.row(f"{_GENERATION} WHERE {HERE}", generation=self._fixed)
        else:
            row = turn.row(
                f"{_GENERATION} WHERE tenant = %(tenant)s AND identity = %(identity)s AND state = 'current'",
                identity=self._identity,
            )
        if not row:
            raise Stale("there is no index")
        return Generation(row[0], row[1], (row[2], row[3]), (row[4], row[5]))

    def _read(self, work: Callable[[Turn, Generation], T]) -> T:
        try:
            return self._database.ask(_WHAT, lambda turn: work(turn, self._which(turn)))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Stale(f"the index is damaged: {error}") from None

    def _rows(self, statement: str, **values: object) -> list[Any]:
        return self._read(lambda turn, index: turn.rows(statement, generation=index.number, **values))

    def _one(self, statement: str, **values: object) -> Any:
        return self._rows(statement, **values)[0][0]

    # writing

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        if getattr(self._local, "turn", None):
            yield
            return
        if self._database.reads_only:
            raise Busy("The index is kept up by others: this login only reads.", "Nothing was lost.")
        with self._database.holding(_WHAT, durable=False) as turn:
            self._local.turn, self._local.held = turn, self._locked(turn)
            try:
                yield
            except _faults.CONTRADICTED as error:  # nobody else writes to it meanwhile
                raise Stale(f"the index is damaged: {error}") from None
            finally:
                self._local.turn = self._local.held = None
        if getattr(self._local, "grown", 0):
            self._local.grown = 0
            self._analyze()

    def _analyze(self) -> None:
        """Let the server look at the tables when they have doubled: else it takes its own guesses for plans."""

        def work(turn: Turn) -> None:
            index = self._which(turn)
            due = turn.change(
                "UPDATE holdfast.index_generations SET analyzed = next_row"
                f" WHERE {HERE} AND next_row > 2 * analyzed + {_UNKNOWN}",
                generation=index.number,
            )
            if due:
                turn.rows("SELECT holdfast.analyze_index()")

        with contextlib.suppress(HoldfastError, Stale):  # who does not get to it goes on with what is known
            self._database.run(_WHAT, work, writes=True, durable=False)

    def _locked(self, turn: Turn) -> Generation:
        """Hold the index in use; while we waited for it, another may have taken its place."""
        while True:
            index = self._which(turn)
            self._hold(turn, index)
            now = self._which(turn)
            if now.number == index.number:
                return now

    def _hold(self, turn: Turn, index: Generation) -> None:
        if not getattr(self._local, "impatient", False):
            turn.row("SELECT pg_advisory_xact_lock(%(key)s)", key=index.number)
            return
        row = turn.row("SELECT pg_try_advisory_xact_lock(%(key)s)", key=index.number)
        if not (row and row[0]):
            raise Busy("The index is in use by another program.", "Try again; nothing was lost.")

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        if getattr(self._local, "held", None):
            yield
            return
        with self._database.holding(_WHAT, durable=False) as turn:
            self._local.held = self._which(turn)
            try:
                yield
            finally:
                self._local.held = None

    @contextlib.contextmanager
    def impatient(self) -> Iterator[None]:
        before = getattr(self._local, "impatient", False)
        self._local.impatient = True
        try:
            yield
        finally:
            self._local.impatient = before

    def _write(self, work: Callable[[Turn, Generation], None]) -> None:
        with self.writing():
            work(self._local.turn, self._local.held)

    def replace(self, path: str, seen: Seen, facts: Facts) -> None:
        def work(turn: Turn, index: Generation) -> None:
            known = _file(turn, index, path)
            targets: set[str] = set()
            if known:
                targets = Filing(turn, index, known[0], is_foreign(_seen_in(known[1]).kind)).clear()
            self._add(turn, index, path, seen, facts, targets)

        self._write(work)

    def extend(self, path: str, seen: Seen, facts: Facts) -> None:
        self._write(lambda turn, index: self._add(turn, index, path, seen, facts, set()))

    def _add(self, turn: Turn, index: Generation, path: str, seen: Seen, facts: Facts, targets: set[str]) -> None:
        turn.change(
            "INSERT INTO holdfast.index_files AS known (tenant, generation, path, file, seen)"
            " SELECT %(tenant)s, %(generation)s, %(path)s, next_file, %(seen)s FROM holdfast.index_generations"
            f" WHERE {HERE} ON CONFLICT (tenant, generation, path) DO UPDATE SET seen = excluded.seen",
            generation=index.number, path=plain(path), seen=_seen_out(seen),
        )  # fmt: skip
        known = _file(turn, index, path)
        if known is None:
            raise Stale("the index was replaced")
        row = turn.row(
            f"SELECT next_row, next_file, analyzed FROM holdfast.index_generations WHERE {HERE}",
            generation=index.number,
        )
        assert row is not None
        given = Filing(turn, index, known[0], is_foreign(seen.kind)).add(facts, targets, row[0])
        if given or known[0] == row[1]:
            turn.change(
                "UPDATE holdfast.index_generations"
                " SET next_row = next_row + %(rows)s, next_file = next_file + %(files)s, used = clock_timestamp()"
                f" WHERE {HERE}",
                generation=index.number, rows=given, files=int(known[0] == row[1]),
            )  # fmt: skip
            self._local.grown = row[0] + given > 2 * row[2] + _UNKNOWN

    def touch(self, path: str, seen: Seen) -> None:
        statement = f"UPDATE holdfast.index_files SET seen = %(seen)s WHERE {HERE} AND path = %(path)s"
        self._write(
            lambda turn, index: _changed(
                turn, statement, generation=index.number, seen=_seen_out(seen), path=plain(path)
            )
        )

    def remove(self, path: str) -> None:
        def work(turn: Turn, index: Generation) -> None:
            known = _file(turn, index, path)
            if known:
                filing = Filing(turn, index, known[0], is_foreign(_seen_in(known[1]).kind))
                targets = filing.clear()
                statement = f"DELETE FROM holdfast.index_files WHERE {HERE} AND path = %(path)s"
                turn.change(statement, generation=index.number, path=plain(path))
                filing.apply(targets)

        self._write(work)

    def note(self, name: str, value: str) -> None:
        def work(turn: Turn, index: Generation) -> None:
            turn.change(
                f"DELETE FROM holdfast.index_notes WHERE {HERE} AND name = %(name)s",
                generation=index.number, name=name,
            )  # fmt: skip
            if value:
                turn.change(
                    "INSERT INTO holdfast.index_notes VALUES (%(tenant)s, %(generation)s, %(name)s, %(value)s)",
                    generation=index.number, name=name, value=plain(value),
                )  # fmt: skip

        self._write(work)

    def noted(self, name: str) -> str:
        rows = self._rows(f"SELECT value FROM holdfast.index_notes WHERE {HERE} AND name = %(name)s", name=name)
        return str(rows[0][0]) if rows else ""

    # files

    def seen(self, below: tuple[str, ...] = ()) -> dict[str, Seen]:
        condition, values = at_or_below(below)
        rows = self._rows(f"SELECT path, seen FROM holdfast.index_files f WHERE {HERE} AND {condition}", **values)
        return {path: _seen_in(seen) for path, seen in rows}

    def look(self, path: str) -> Seen | None:
        found = self._read(lambda turn, index: _file(turn, index, path))
        return _seen_in(found[1]) if found else None

    # finding

    def newest(self, where: Filter, limit: int) -> list[Record]:
        condition, values = conditions(where)
        return self._records(
            f"SELECT r.record, r.hidden, r.superseded FROM {_RECORDS} WHERE {OF} AND {condition}"
            " ORDER BY r.time DESC, f.path, r.sort DESC, r.id LIMIT %(limit)s",
            limit=limit if limit >= 0 else None, **values,
        )  # fmt: skip

    def best(self, terms: Terms, where: Filter, limit: int) -> list[tuple[Record, float]]:
        def work(turn: Turn, index: Generation) -> list[tuple[Record, float]]:
            found: list[tuple[int, float]] = []
            for foreign in foreigns(where):
                searching = Searching(turn, index, foreign, self._settings)
                found += searching.best(searching.telling(terms), where, limit)
            found.sort(key=lambda row: -row[1])
            records = load(turn, index, [row for row, _ in found[:limit]])
            return [(records[row], score) for row, score in found[:limit] if row in records]

        return self._read(work)

    def pools(self, terms: Terms, where: Filter, most: int) -> list[Pool]:
        return self._read(
            lambda turn, index: [
                Searching(turn, index, foreign, self._settings).pool(terms, where, most) for foreign in foreigns(where)
            ]
        )

    def widened(self, pool: Pool, where: Filter, rows: Sequence[int]) -> Pool:
        return self._read(
            lambda turn, index: Searching(turn, index, pool.foreign, self._settings).widened(pool, where, rows)
        )

    def passing(self, scored: Sequence[tuple[int, float]], where: Filter) -> list[int]:
        condition, values = conditions(where)
        kept = self._rows(
            f"SELECT r.row, r.time, f.path, r.sort, r.id FROM {_RECORDS}"
            f" WHERE {OF} AND r.row = ANY(%(rows)s) AND {condition}",
            rows=[row for row, _ in scored], **values,
        )  # fmt: skip
        return in_order(kept, dict(scored))

    def rows(self, kinds: Sequence[str], after: int = 0) -> list[int]:
        found = self._rows(
            f"SELECT r.row FROM holdfast.index_records r WHERE {OF} AND r.row > %(after)s"
            " AND r.kind = ANY(%(kinds)s) AND NOT r.superseded ORDER BY r.row",
            after=after, kinds=list(kinds),
        )  # fmt: skip
        return [row for (row,) in found]

    def inside(self, where: Filter) -> list[int]:
        condition, values = conditions(where)
        found = self._rows(f"SELECT r.row FROM holdfast.index_records r WHERE {OF} AND {condition}", **values)
        return [row for (row,) in found]

    def load(self, rows: list[int]) -> dict[int, Record]:
        return self._read(lambda turn, index: load(turn, index, rows))

    def related(self, identifiers: Sequence[str], where: Filter, limit: int) -> dict[str, list[Tied]]:
        return self._read(lambda turn, index: Ties(turn, index, identifiers, where).best(limit))

    # by name

    def by_id(self, identifier: str) -> list[Record]:
        return self._some("r.id = %(id)s", id=named(identifier))

    def by_key(self, path: str, key: str, *, history: bool = False) -> list[Record]:
        some = "" if history else "AND NOT r.superseded"
        return self._some(f"r.key = %(key)s AND f.path = %(path)s {some}", key=short(key), path=plain(path))

    def last_order(self, path: str, target: str) -> str:
        of_file = f"{HERE} AND file = (SELECT file FROM holdfast.index_files WHERE {HERE} AND path = %(path)s)"
        found = self._one(
            "SELECT max(sort) FROM ("
            f"SELECT sort FROM holdfast.index_records WHERE {of_file} AND id = %(id)s"
            f" UNION ALL SELECT sort FROM holdfast.index_records WHERE {of_file} AND key = %(target)s"
            f" UNION ALL SELECT sort FROM holdfast.index_marks WHERE {of_file} AND target = %(target)s) AS known",
            path=plain(path), id=named(target), target=short(target),
        )  # fmt: skip
        return str(found or "")

    def by_op(self, op_id: str) -> list[Applied]:
        found = [Applied(each.path, each.id, each.fields) for each in self._some("r.op = %(op)s", op=short(op_id))]
        marks = self._rows(
            f"SELECT f.path, r.target FROM holdfast.index_marks r {FILE} WHERE {OF} AND r.op = %(op)s",
            op=short(op_id),
        )
        return found + [Applied(path, target, marks=True) for path, target in marks]

    def halves(self, path: str) -> set[str]:
        rows = self._rows(f"SELECT r.id FROM {_RECORDS} WHERE {OF} AND r.alone AND f.path = %(path)s", path=plain(path))
        return {id for (id,) in rows}

    def beside(self, path: str, order: str, limit: int, *, after: bool) -> list[Record]:
        sign, way = (">", "ASC") if after else ("<", "DESC")
        condition = f"f.path = %(path)s AND r.sort {sign} %(place)s AND NOT r.hidden AND NOT r.superseded"
        return self._some(condition, f"r.sort {way} LIMIT {int(limit)}", path=plain(path), place=short(order))

    def records(self, path: str) -> list[Record]:
        return self._some("f.path = %(path)s", "r.row", path=plain(path))

    def _some(self, condition: str, order: str = "r.sort, f.path", **values: object) -> list[Record]:
        return self._records(
            f"SELECT r.record, r.hidden, r.superseded FROM {_RECORDS} WHERE {OF} AND {condition} ORDER BY {order}",
            **values,
        )

    def _records(self, statement: str, **values: object) -> list[Record]:
        def work(turn: Turn, index: Generation) -> list[Record]:
            return [revive(*row) for row in turn.rows(statement, generation=index.number, **values)]

        return self._read(work)

    # problems, numbers

    def problems(self, below: tuple[str, ...] = ()) -> list[Problem]:
        condition, values = at_or_below(below)
        rows = self._rows(
            f"SELECT f.path, r.what, r.line, r.minor FROM holdfast.index_problems r {FILE}"
            f" WHERE {OF} AND {condition}"
            ' ORDER BY f.path, r.line, r.what COLLATE "C"',
            **values,
        )
        halves = self._rows(
            f"SELECT f.path, r.record FROM {_RECORDS} WHERE {OF} AND r.alone AND {condition} ORDER BY f.path, r.sort",
            **values,
        )
        return [Problem(*row) for row in rows] + [Problem(path, HALF, record_in(blob).line) for path, blob in halves]

    def problem_count(self) -> int:
        return int(
            self._one(
                f"SELECT (SELECT count(*) FROM holdfast.index_problems WHERE {HERE} AND NOT minor)"
                f" + (SELECT count(*) FROM holdfast.index_records WHERE {HERE} AND alone)"
            )
        )

    def hidden_in(self, path: str) -> dict[str, bool]:
        rows = self._rows(
            f"SELECT DISTINCT ON (r.target) r.target, r.hidden FROM holdfast.index_marks r {FILE}"
            f" WHERE {OF} AND f.path = %(path)s ORDER BY r.target, r.sort DESC",
            path=plain(path),
        )
        return dict(rows)

    def count(self, path: str, after: str) -> int:
        return int(
            self._one(
                f"SELECT count(*) FROM {_RECORDS} WHERE {OF} AND f.path = %(path)s"
                f"{' AND r.sort > %(after)s' if after else ''}"
                " AND NOT r.hidden AND NOT r.superseded",
                path=plain(path), after=short(after),
            )
        )  # fmt: skip

    def counts(self) -> dict[str, int]:
        rows = self._rows(f"SELECT kind, count(*) FROM holdfast.index_records WHERE {HERE} GROUP BY kind ORDER BY kind")
        return dict(rows)

    def size(self) -> int:
        """Return how many bytes the index takes, without what the server needs to find its way in it."""
        parts = " + ".join(
            f"(SELECT coalesce(sum(pg_column_size(x.*)), 0) FROM holdfast.{table} x WHERE {HERE})" for table in TABLES
        )
        return int(self._one(f"SELECT {parts}"))

    # proof

    def proof(self) -> dict[str, int]:
        return self._read(_index_proof.proof)

    def snapshot(self) -> tuple[dict[str, Seen], dict[str, int]]:
        def work(turn: Turn) -> tuple[dict[str, Seen], dict[str, int]]:
            if getattr(self._local, "turn", None) is None:
                turn.change("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            index = self._which(turn)
            rows = turn.rows(f"SELECT path, seen FROM holdfast.index_files WHERE {HERE}", generation=index.number)
            return {path: _seen_in(seen) for path, seen in rows}, _index_proof.proof(turn, index)

        return self._database.run(_WHAT, work)

    # replacing the whole

    @contextlib.contextmanager
    def rebuilding(self) -> Iterator[PgIndex]:
        fresh = self.beginning("building")
        try:
            yield fresh
            replaced = self._swing(fresh)
        except BaseException:
            with contextlib.suppress(HoldfastError):
                fresh.end()
            raise
        with contextlib.suppress(HoldfastError):  # else they go with the next rebuild
            self._delete(replaced)

    def beginning(self, state: str) -> PgIndex:
        """Return an empty index beside the one in use."""
        if self._database.reads_only:
            raise Unusable("this login only reads")
        number, mark = secrets.randbits(62) + 1, base64.b32encode(secrets.token_bytes(4))[:5].decode().lower()
        self._database.run(
            _WHAT,
            lambda turn: turn.change(
                "INSERT INTO holdfast.index_generations (tenant, generation, identity, state, mark)"
                " VALUES (%(tenant)s, %(generation)s, %(identity)s, %(state)s, %(mark)s)",
                generation=number, identity=self._identity, state=state, mark=mark,
            ),
            writes=True, durable=False,
        )  # fmt: skip
        return PgIndex(self._database, self._identity, self._settings, number)

    def _swing(self, fresh: PgIndex) -> list[int]:
        """Put another index in the place of the one in use; return what nobody uses any more.

        Whoever rebuilds is the only one: what else is being built for the same reading was left by a process that is
        gone, or has lost its turn.
        """

        def work(turn: Turn) -> list[int]:
            held = f"SELECT 1 FROM holdfast.index_generations WHERE {HERE} AND state <> 'gone' FOR UPDATE"
            if not turn.row(held, generation=fresh._fixed):
                raise Busy("Another program made the index anew meanwhile.", "Try again; nothing was lost.")
            turn.change(
                "UPDATE holdfast.index_generations SET state = CASE WHEN generation = %(generation)s THEN 'current'"
                " ELSE 'gone' END, used = clock_timestamp()"
                " WHERE tenant = %(tenant)s AND identity = %(identity)s"
                " AND (state = 'current' OR generation = %(generation)s)",
                generation=fresh._fixed, identity=self._identity,
            )  # fmt: skip
            rows = turn.rows(
                "UPDATE holdfast.index_generations SET state = 'gone' WHERE tenant = %(tenant)s AND (state = 'gone'"
                " OR (state = 'building' AND identity = %(identity)s AND generation <> %(generation)s)"
                " OR (state <> 'current' AND made < clock_timestamp() - interval '1 day'"
                " AND generation <> %(generation)s)"
                " OR (identity <> %(identity)s AND used < clock_timestamp() - interval '30 days'))"
                " RETURNING generation",
                generation=fresh._fixed, identity=self._identity,
            )  # fmt: skip
            return [number for (number,) in rows]

        return self._database.run(_WHAT, work, writes=True, durable=False)

    def end(self) -> None:
        """Remove this index, if it is not the one in use: the end of a swing may have gone unheard."""
        statement = (
            "UPDATE holdfast.index_generations SET state = 'gone'"
            f" WHERE {HERE} AND state <> 'current' RETURNING generation"
        )
        gone = self._database.run(_WHAT, lambda turn: turn.rows(statement, generation=self._fixed), writes=True)
        self._delete([number for (number,) in gone])

    def _delete(self, numbers: list[int]) -> None:
        """Remove what is in indexes that nobody can use; their own row goes last, so that none is forgotten."""
        for table in reversed(TABLES) if numbers else ():
            statement = f"DELETE FROM holdfast.{table} WHERE tenant = %(tenant)s AND generation = ANY(%(numbers)s)"
            self._database.run(
                _WHAT, functools.partial(_changed, statement=statement, numbers=numbers), writes=True, durable=False
            )


def _changed(turn: Turn, statement: str, **values: object) -> None:
    turn.change(statement, **values)


def _file(turn: Turn, index: Generation, path: str) -> tuple[int, bytes] | None:
    row = turn.row(
        f"SELECT file, seen FROM holdfast.index_files WHERE {HERE} AND path = %(path)s",
        generation=index.number, path=plain(path),
    )  # fmt: skip
    return (row[0], row[1]) if row else None


def _seen_in(data: bytes) -> Seen:
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Stale(f"the index is damaged: {error}") from None
