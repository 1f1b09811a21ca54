"""Connections to a database: one session, the pool of a program, and why a connection was refused.

psycopg needs more round trips than necessary, so frequent statements go to libpq directly: a session sends prepared
statements, with the COMMIT that may follow them, in one message.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import re
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import psycopg
import psycopg_pool
from psycopg import conninfo, pq
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import Format
from psycopg.rows import TupleRow

from holdfast.errors import Busy, HoldfastError, Unavailable
from holdfast.storage.postgres import error_mapping
from holdfast.storage.postgres.addresses import Address
from holdfast.storage.tree import RootGone

_CANCEL_SECONDS = 5.0
_MOST_PREPARED = 300
_PLACEHOLDER = re.compile(r"%(?:%|\((?P<name>\w+)\)(?P<format>[sb]))")
_SHORTEST_WAIT = 0.05
_PING_SECONDS = 2
_ALWAYS_THERE = ("postgres", "template1")


class Waits(msgspec.Struct, frozen=True):
    """Time-outs, and the number of connections one program uses at a time."""

    lock_seconds: float = 10.0
    statement_seconds: float = 60.0
    again_seconds: float = 20.0
    """How long to retry while the server is away, fails over, or rolls work back."""
    idle_seconds: float = 120.0
    """How long a transaction may be idle while it holds locks."""
    connections: int = 8


class Call(NamedTuple):
    """A statement with `$n` placeholders and its encoded values."""

    statement: bytes
    values: Sequence[bytes | None]
    formats: Sequence[int]
    """For each value: 1 if binary, 0 if text."""
    types: Sequence[int] | None = None
    result_format: Format = Format.TEXT


@functools.lru_cache(500)
def numbered(statement: str) -> tuple[bytes, dict[str, PyFormat]]:
    """Return a statement with `$n` for its `%(name)s` placeholders, and these names in order."""
    found: dict[str, PyFormat] = {}

    def number(match: re.Match[str]) -> str:
        if not match["name"]:
            return "%"
        found.setdefault(match["name"], PyFormat(match["format"]))
        return f"${list(found).index(match['name']) + 1}"

    return _PLACEHOLDER.sub(number, statement).encode(), found


class Session(psycopg.Connection[TupleRow]):
    """A connection that sends prepared statements in one message, and counts the server's warnings."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.warnings = 0
        """A commit that no standby confirmed succeeds with a warning."""
        self.checked = False
        self._statements: dict[object, bytes] = {}
        self._numbers = itertools.count()
        self._poll = select.poll()
        self._poll.register(self.pgconn.socket, select.POLLIN)
        self.add_notice_handler(self._count_warning)

    def rollback(self) -> None:
        super().rollback()
        self._statements.clear()  # psycopg deallocates all prepared statements

    @contextlib.contextmanager
    def transaction(self, *given: Any, **named: Any) -> Iterator[psycopg.Transaction]:
        try:
            with super().transaction(*given, **named) as begun:
                yield begun
        except BaseException:
            self._statements.clear()
            raise

    def send(self, *calls: Call, then: bytes = b"", seconds: float = _CANCEL_SECONDS) -> list[pq.abc.PGresult]:
        """Run statements, and `then` one without values, in one message; return the results, one for each.

        They are one transaction. After `seconds` they are cancelled: no time-out of the server covers the wait for a
        synchronous standby.
        """
        while len(self._statements) >= _MOST_PREPARED:
            self.execute(b"DEALLOCATE %s" % self._statements.pop(next(iter(self._statements))))
        known = set(self._statements)
        self.pgconn.enter_pipeline_mode()
        try:
            for call in calls:
                name = self._prepare(call)
                self.pgconn.send_query_prepared(name, call.values, call.formats, result_format=call.result_format)
            if then:
                self.pgconn.send_query_params(then, None)
            self.pgconn.pipeline_sync()
            return self._results(seconds)[-len(calls) - bool(then) :]
        except BaseException:  # the server may not have seen the new statements
            for key in set(self._statements) - known:
                del self._statements[key]
            raise
        finally:
            with contextlib.suppress(psycopg.Error):
                self.pgconn.exit_pipeline_mode()

    def ask(self, before: Call, statement: str, values: Mapping[str, object], seconds: float) -> list[TupleRow]:
        """Return the rows of a statement that is sent in one message with another before it."""
        text, names = numbered(statement)
        transformer = Transformer(self)
        given = transformer.dump_sequence([values[name] for name in names], list(names.values()))
        call = Call(text, given, transformer.formats or (), transformer.types, Format.BINARY)  # type: ignore[arg-type]
        result = self.send(before, call, seconds=seconds)[-1]
        transformer.set_pgresult(result)
        return transformer.load_rows(0, result.ntuples, tuple)

    def _prepare(self, call: Call) -> bytes:
        key = call.statement, call.types
        name = self._statements.get(key)
        if name is None:
            name = self._statements[key] = b"holdfast_%d" % next(self._numbers)
            self.pgconn.send_prepare(name, call.statement, call.types)
        return name

    def _results(self, seconds: float) -> list[pq.abc.PGresult]:
        """Return all results up to the end of the pipeline, or raise the first error."""
        deadline, cancelled = time.monotonic() + seconds, False
        results: list[pq.abc.PGresult] = []
        while True:
            while (unsent := self.pgconn.flush()) or self.pgconn.is_busy():
                self._poll.modify(self.pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
                if self._poll.poll(max(0, round((deadline - time.monotonic()) * 1000))):
                    self.pgconn.consume_input()
                elif cancelled:
                    self.close()
                    raise psycopg.OperationalError("no answer from the server")
                else:
                    self.cancel_safe(timeout=_CANCEL_SECONDS)
                    deadline, cancelled = time.monotonic() + _CANCEL_SECONDS, True
            result = self.pgconn.get_result()
            if result is not None and result.status == pq.ExecStatus.PIPELINE_SYNC:
                break
            if result is not None:
                results.append(result)
            elif self.pgconn.status != pq.ConnStatus.OK:
                break
        wrong = [each for each in results if each.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)]
        if wrong and wrong[0].error_field(pq.DiagnosticField.SQLSTATE):
            raise psycopg.errors.error_from_result(wrong[0])
        if wrong or self.pgconn.status != pq.ConnStatus.OK:
            raise psycopg.OperationalError("the connection was lost")
        return results

    def _count_warning(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        self.warnings += diagnostic.severity_nonlocalized == "WARNING"


def connect(address: Address) -> Session:
    """Open one connection with the login's rights, or raise the reason why there is none."""
    try:
        return Session.connect(address.conninfo, autocommit=True)
    except psycopg.Error as error:
        raise _refusal(error, address) from None


class Pool:
    """The open connections of this program."""

    def __init__(self, address: Address, waits: Waits, check: Callable[[Session], None]) -> None:
        self._address = address
        self._check = check
        self._waits = waits
        logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())  # callers get an error instead
        self._pool = psycopg_pool.ConnectionPool(
            address.conninfo,
            connection_class=Session,
            kwargs={"autocommit": True},
            min_size=1,
            max_size=waits.connections,
            reconnect_timeout=waits.again_seconds,
            num_workers=2,
            name="holdfast",
            open=True,
        )

    def take(self, deadline: float) -> Session:
        """Return a free connection, waiting until the deadline. A new one is checked first."""
        try:
            session = self._pool.getconn(max(deadline - time.monotonic(), _SHORTEST_WAIT))
        except psycopg_pool.PoolTimeout:
            connect(self._address).close()  # raises the reason, unless all connections are just in use
            raise Busy(
                f"All {self._waits.connections} connections to the database were in use for too long.",
                "Try again, or allow more connections.",
            ) from None
        except psycopg_pool.PoolClosed:
            raise Unavailable(f"{self._address.shown} was closed.", "Open it again.") from None
        if not session.checked:
            try:
                self._check(session)
                session.checked = True
            except psycopg.Error:  # the caller gets the same error, and handles it
                pass
            except BaseException:
                self.give_back(session)
                raise
        return session

    def give_back(self, session: Session) -> None:
        with contextlib.suppress(psycopg.Error):
            if session.info.transaction_status != pq.TransactionStatus.IDLE:
                session.rollback()
        self._pool.putconn(session)

    def discard_lost(self, error: psycopg.Error, session: Session) -> None:
        """Close a lost connection and check the others, which may be dead too or lead to the wrong server."""
        if error_mapping.is_lost(error, session):
            session.close()
            if error_mapping.is_read_only(error):
                self._pool.drain()
            else:
                self._pool.check()

    def close(self) -> None:
        self._pool.close()


def _refusal(error: psycopg.Error, address: Address) -> HoldfastError:
    """Return why a connection was refused, never with a password in it.

    libpq gives no code for this, and its text is in the server's language, so the server is probed.
    """
    parts = conninfo.conninfo_to_dict(address.conninfo)
    name, user = parts.get("dbname") or parts.get("user") or "", parts.get("user") or "of this system"
    answer = pq.PGconn.ping(conninfo.make_conninfo(address.conninfo, connect_timeout=_PING_SECONDS).encode())
    if answer == pq.Ping.NO_RESPONSE:
        return RootGone(
            f"No PostgreSQL server answers at {address.shown}.", "Check host and port, and that the server runs."
        )
    if answer == pq.Ping.REJECT:
        return RootGone(f"The server at {address.shown} accepts no connections at the moment.", "Try again soon.")
    if error.pgconn and error.pgconn.needs_password:
        return Unavailable(
            f'The server wants a password for the user "{user}", and none was given.',
            "Put it into the address, into PGPASSWORD or into ~/.pgpass.",
        )
    for other in _ALWAYS_THERE:
        if other != name:
            with contextlib.suppress(psycopg.Error):
                psycopg.connect(conninfo.make_conninfo(address.conninfo, dbname=other)).close()
                return Unavailable(
                    f'The user "{user}" can log in, but cannot open the database "{name}".',
                    f'Create it: CREATE DATABASE "{name}"; or GRANT CONNECT on it.',
                )
    return Unavailable(
        f'The server at {address.shown} refused the user "{user}".',
        "Check user and password, and that pg_hba.conf lets this machine in; the server's log has the reason.",
    )
