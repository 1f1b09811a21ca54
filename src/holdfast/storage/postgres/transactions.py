"""Work on a database, in transactions.

Every transaction steps down to the application's role and names its tenant; both end with it. Work that the server
undid, or that lost its server, is done again for a bounded time. Work that is asked for while the same thread is in the
middle of other work becomes a part of that: both are saved, or neither is.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import LiteralString, TypeVar

import msgspec
import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.rows import TupleRow

from holdfast.errors import Conflict, HoldfastError, Unavailable
from holdfast.storage.postgres import _faults, addresses, connecting, migrations
from holdfast.storage.postgres._schema import PARTITIONS, READER
from holdfast.storage.postgres.connecting import Waits
from holdfast.storage.postgres.sessions import Call, Session, question

T = TypeVar("T")
_PART: LiteralString = """
SELECT number FROM generate_series(0, %(parts)s - 1) AS number
WHERE satisfies_hash_partition('holdfast.files'::regclass, %(parts)s, number, %(tenant)s::text)
"""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
AT_ONCE_SECONDS = 0.05
"""How long what goes in one message waits for others; what has to wait longer does so the longer way."""
_ASK_SECONDS = 1.0
"""How often one program looks whether somebody wants to be woken by what it writes."""
_LISTENED: LiteralString = """
SELECT EXISTS (SELECT FROM holdfast.listeners WHERE tenant = %(tenant)s AND until > clock_timestamp())
"""


class Turn:
    """One try of some work."""

    def __init__(
        self, session: Session, tenant: str, *, doubtful: bool, durable: bool, outermost: bool = True,
        first: Call | None = None, seconds: float = 0,
    ) -> None:  # fmt: skip
        self.session = session
        self._first = first
        """What each statement is sent with, where there is no transaction around them all: what to set for it."""
        self._seconds = seconds
        self.outermost = outermost
        """Is this a transaction, and no part of one?"""
        self.doubtful = doubtful
        """May an earlier try have been saved, without our hearing of it?"""
        self.durable = durable
        self.ending = False
        self.unchanged = False
        """Set by work that wants nothing to stay of what it did."""
        self.last: Call | None = None
        """Set by work whose last statement shall be sent together with its end; it has to answer with true."""
        self.joined = 0
        """How many other writes have become a part of this one."""
        self.tenant = tenant

    def rows(self, statement: LiteralString, **values: object) -> list[TupleRow]:
        if self._first:
            values["tenant"] = self.tenant
            return self.session.ask(self._first, question(statement), values, self._seconds)
        return self._run(statement, values).fetchall()

    def row(self, statement: LiteralString, **values: object) -> TupleRow | None:
        return next(iter(self.rows(statement, **values)), None)

    def change(self, statement: LiteralString, **values: object) -> int:
        """Run a statement that changes rows; return how many."""
        return self._run(statement, values).rowcount

    def many(self, statement: LiteralString, values: Iterable[dict[str, object]]) -> None:
        """Run a statement once for each of the values, without waiting for each."""
        self.session.cursor(binary=True).executemany(statement, [{"tenant": self.tenant, **each} for each in values])

    def _run(self, statement: LiteralString, values: dict[str, object]) -> psycopg.Cursor[TupleRow]:
        return self.session.cursor(binary=True).execute(statement, {"tenant": self.tenant, **values})


class Database:
    """One tenant's part of a database, which is set up if it was empty. Threads may share it."""

    def __init__(self, dsn: str, waits: Waits | None = None) -> None:
        self.waits = waits or Waits()
        self._address = addresses.parse(dsn)
        self.location = self._address.shown
        self.address = self._address.bare
        self.tenant = self._address.tenant
        with connecting.connect(self._address) as first:
            self._access = migrations.prepare(first)
            self.no_vectors = migrations.can_compare(first)
        self._prepare()
        self._pool = connecting.Pool(self._address, self.waits, migrations.check)
        self._local = threading.local()
        self._long_way = False
        self._listened = False
        self._ask_at = 0.0
        self._shares = False

    def beside(self, tenant: str) -> Database:
        """Return another tenant's part of the same database, over the same connections; closing it closes nothing."""
        other = copy.copy(self)
        other.tenant = addresses.check_tenant(tenant)
        other.location = addresses.shown_for(self._address, tenant)
        other.address = addresses.for_tenant(self.address, tenant)
        other.__dict__.pop("part", None)  # each tenant has its own
        other._listened, other._ask_at = False, 0.0
        other._prepare()
        other._local = threading.local()
        other._shares = True
        return other

    def wait_for_others(self, seconds: float) -> None:
        """Wait so long from now on for other writers of the same thing; no statement is stopped before that."""
        longest = max(self.waits.statement_seconds, 2 * seconds)
        self.waits = msgspec.structs.replace(self.waits, lock_seconds=seconds, statement_seconds=longest)
        self._prepare()

    def close(self) -> None:
        if not self._shares:
            self._pool.close()

    def connect(self) -> Session:
        """Open a connection of its own, which has the application's rights and names no tenant."""
        session = connecting.connect(self._address)
        session.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(self._access.role)))
        return session

    @contextlib.contextmanager
    def locked(self, name: str, seconds: float) -> Iterator[bool]:
        """Be the only program that does something of this name to this tenant; False when another was all the time."""
        key = int.from_bytes(hashlib.sha256(f"{self.tenant}\n{name}".encode()).digest()[:8], "big", signed=True)
        with contextlib.closing(self.connect()) as session:
            session.execute(f"SET lock_timeout = {milliseconds(seconds)}")
            try:
                session.execute("SELECT pg_advisory_lock(%s)", [key])
            except pg.LockNotAvailable:
                yield False
                return
            yield True

    @property
    def within(self) -> bool:
        """Is this thread in the middle of a transaction?"""
        return getattr(self._local, "turn", None) is not None

    @property
    def knows_calls(self) -> bool:
        """Do the server, and what is between, know what we call by name?"""
        return not self._long_way

    @property
    def direct(self) -> bool:
        """Can this thread do something in one message? Not when others may have to be woken by it."""
        return not (self.within or self._long_way or self._listened or time.monotonic() > self._ask_at)

    @functools.cached_property
    def part(self) -> int:
        """Return the number of the partition in which this tenant is."""
        row = self.run("the tenant", lambda turn: turn.row(_PART, parts=PARTITIONS))
        return int(row[0]) if row else 0

    def at_once(self, what: str, call: Call) -> bytes | None:
        """Do what one statement does, which is a transaction by itself, and return its answer: what it did.

        Nothing means that it did nothing, None that nobody heard how it ended. It is not tried again here: whoever
        calls has a longer way.
        """
        session = self._take(what, time.monotonic() + self.waits.again_seconds, doubtful=False)
        before = session.warnings
        try:
            answer = session.at_once(call, self.waits.statement_seconds)
        except psycopg.Error as error:
            if _faults.ours(error):
                raise
            if _faults.lost(error, session):
                self._pool.after(error, session)
                return None
            self._long_way = self._long_way or _faults.not_that_way(error)
            if self._long_way or _faults.passing(error, session) or _faults.held(error):
                return b""
            raise self._told(error, what) from None
        finally:
            self._pool.give_back(session)
        if session.warnings > before:
            raise self._unconfirmed(what)
        return answer or b""

    def ask(self, what: str, work: Callable[[Turn], T]) -> T:
        """Read something, each statement in one message: it is a transaction by itself, and sees what is there then."""
        return self.run(what, work, apart=True)

    def run(
        self, what: str, work: Callable[[Turn], T], *,
        writes: bool = False, durable: bool = True, doubtful: bool = False, apart: bool = False,
    ) -> T:  # fmt: skip
        """Do some work in a transaction, again where that may help; `what` is what an error is about.

        It is doubtful from the start where the caller has tried it in another way, and nobody heard how that ended.
        """
        outer: Turn | None = getattr(self._local, "turn", None)
        if outer:
            return self._join(outer, what, work, writes=writes, durable=durable)
        deadline = time.monotonic() + self.waits.again_seconds
        pause = _FIRST_PAUSE
        while True:
            session = self._take(what, deadline, doubtful)
            first = self._first if apart and not self._long_way else None
            seconds = self.waits.statement_seconds
            turn = Turn(session, self.tenant, doubtful=doubtful, durable=durable, first=first, seconds=seconds)
            try:
                return work(turn) if first else self._once(turn, what, work, writes=writes)
            except psycopg.Error as error:
                if _faults.ours(error):
                    raise
                doubtful = doubtful or (writes and turn.ending and _faults.lost(error, session))
                not_so = bool(turn.last or first) and _faults.not_that_way(error)
                self._long_way = self._long_way or not_so
                again = not_so or _faults.passing(error, session)
                if not again or time.monotonic() + pause > deadline:
                    raise (_faults.unsure(what) if doubtful else self._told(error, what)) from None
                self._pool.after(error, session)
            finally:
                self._pool.give_back(session)
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, _LONGEST_PAUSE)

    @contextlib.contextmanager
    def holding(self, what: str, *, durable: bool = True) -> Iterator[Turn]:
        """Do some work in one transaction that is written as a block; none of it is done again.

        While the same thread is in the middle of other work, it becomes a part of that.
        """
        outer: Turn | None = getattr(self._local, "turn", None)
        if outer:
            yield outer
            return
        session = self._take(what, time.monotonic() + self.waits.again_seconds, doubtful=False)
        turn = Turn(session, self.tenant, doubtful=False, durable=durable)
        try:
            session.execute(self._begin[durable])
            self._local.turn = turn
            try:
                yield turn
            finally:
                self._local.turn = None
            self._end(turn, what)
        except psycopg.Error as error:
            self._pool.after(error, session)
            raise error if _faults.ours(error) else self._told(error, what) from None
        finally:
            self._pool.give_back(session)

    @property
    def reads_only(self) -> bool:
        """May this login change nothing?"""
        return self._access.role == READER

    def _take(self, what: str, deadline: float, doubtful: bool) -> Session:
        try:
            return self._pool.take(deadline)
        except HoldfastError:
            if doubtful:
                raise _faults.unsure(what) from None
            raise

    def _once(self, turn: Turn, what: str, work: Callable[[Turn], T], *, writes: bool) -> T:
        turn.session.execute(self._begin[turn.durable])
        if writes:
            self._let_wake(turn)
        self._local.turn = turn
        try:
            result = work(turn)
        finally:
            self._local.turn = None
        if turn.unchanged:
            turn.session.undo()
            return result
        self._end(turn, what)
        return result

    def _end(self, turn: Turn, what: str) -> None:
        """Save what was done."""
        turn.ending = True
        before = turn.session.warnings
        ended, value = turn.session.commit_within(self.waits.statement_seconds, turn.last)
        if ended != "COMMIT":
            raise Unavailable(f"{what}: the database undid the work.", "Nothing was saved; try again.")
        if turn.last and value != b"t":
            raise Conflict(f"{what} was changed by the same work; nothing was added.", "Try again.")
        if turn.session.warnings > before:
            raise self._unconfirmed(what)

    def _let_wake(self, turn: Turn) -> None:
        """Have this write wake those who listen, if somebody did when we looked last: looking each time would cost."""
        if time.monotonic() > self._ask_at:
            self._look_for_listeners(turn)
        if self._listened:
            turn.session.execute("SET LOCAL holdfast.listened = 'on'")

    def _look_for_listeners(self, turn: Turn) -> None:
        row = turn.row(_LISTENED)
        self._listened, self._ask_at = bool(row and row[0]), time.monotonic() + _ASK_SECONDS

    def _join(self, outer: Turn, what: str, work: Callable[[Turn], T], *, writes: bool, durable: bool) -> T:
        """Make the work a part of what this thread is doing; a write that fails takes back only itself."""
        kept = outer.durable or (writes and durable)
        inner = Turn(outer.session, self.tenant, doubtful=False, durable=kept, outermost=False)
        try:
            with outer.session.transaction() if writes else contextlib.nullcontext():
                if inner.durable and not outer.durable:
                    outer.session.execute("SET LOCAL synchronous_commit = on")
                result = work(inner)
            outer.joined += writes
            outer.durable = inner.durable
            return result
        except psycopg.Error as error:
            raise error if _faults.ours(error) else self._told(error, what) from None

    def _told(self, error: psycopg.Error, what: str) -> HoldfastError:
        return _faults.told(error, what, self.waits.lock_seconds, self.waits.statement_seconds)

    def _unconfirmed(self, what: str) -> HoldfastError:
        return Unavailable(
            f"{what} is saved on the server, but no standby has confirmed it.",
            "Look at the standbys; look whether it is there before you try again.",
        )

    def asks(self, durable: bool) -> str:
        """Return what a write has to set `synchronous_commit` to, nothing where the server's own will do."""
        if not durable:
            return "off"
        return "on" if self._access.forgetful else ""

    def _prepare(self) -> None:
        """Work out what transactions of this tenant start with: a text for all, or values for one statement alone."""
        given = {
            "role": self._access.role,
            "holdfast.tenant": self.tenant,
            "lock_timeout": milliseconds(self.waits.lock_seconds),
            "statement_timeout": milliseconds(self.waits.statement_seconds),
            "idle_in_transaction_session_timeout": milliseconds(self.waits.idle_seconds),
            "client_min_messages": "warning",
            "jit": "off",  # it takes longer than all that is asked here
            "max_parallel_workers_per_gather": "0",
        }
        values = [part.encode() for setting in given.items() for part in setting]
        setting = b", ".join(b"set_config($%d, $%d, true)" % (n, n + 1) for n in range(1, len(values), 2))
        self._first = Call(b"SELECT " + setting, values, [0] * len(values))
        self._begin = {durable: _beginning(given, self.asks(durable)) for durable in (True, False)}


def _beginning(given: Mapping[str, str], asked: str) -> sql.Composed:
    """Return what a transaction starts with, in one message to the server."""
    settings = {**given, "synchronous_commit": asked} if asked else given
    parts = [
        sql.SQL("SET LOCAL {} = {}").format(sql.Identifier(*name.split(".")), sql.Literal(value))
        for name, value in settings.items()
    ]
    return sql.SQL("; ").join([sql.SQL("BEGIN"), *parts])


def milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
