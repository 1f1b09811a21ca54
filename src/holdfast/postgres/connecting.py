"""Connections to a database: making them, keeping some, and saying why there is none.

libpq gives no code for a connection that was refused, and its text is in the server's language. So the cause is found
by asking: does anything answer there, is it up, does the same login get into another database of that server?
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import psycopg
import psycopg_pool
from psycopg import conninfo, pq
from psycopg.rows import TupleRow

from holdfast.errors import Busy, HoldfastError, Unavailable
from holdfast.postgres import _faults
from holdfast.postgres.addresses import Address
from holdfast.vault import RootGone

_SHORTEST_WAIT = 0.05
_CANCELLING = 5.0
_QUICK = 2
"""Seconds to wait for a sign of life: libpq waits them out when a server hangs up at once."""
_LONGEST_NAME = 60
_GOOD = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_ALWAYS_THERE = ("postgres", "template1")


class Waits(msgspec.Struct, frozen=True):
    """How long anything may take before it is an error, and how many connections one program uses at a time."""

    lock_seconds: float = 10.0
    """For other writers of the same thing."""
    statement_seconds: float = 60.0
    again_seconds: float = 20.0
    """For a server that is away or changes place, and for work that it undid."""
    idle_seconds: float = 120.0
    """How long a program may keep others waiting without a word to the server."""
    connections: int = 8


class Call(msgspec.Struct, frozen=True):
    """A statement that is sent with its values in one message, and is a transaction of its own."""

    statement: bytes
    values: Sequence[bytes]
    binary: Sequence[int]
    """For each value: 1 if it is the bytes themselves, 0 if it is text."""

    @property
    def name(self) -> bytes:
        """What the server is asked to know it by."""
        return self.statement[:_LONGEST_NAME]


class Session(psycopg.Connection[TupleRow]):
    """A connection that counts warnings: of a commit that no standby confirmed the server only warns."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.warnings = 0
        self.checked = False
        self._known_there: set[bytes] = set()
        self._poll = select.poll()
        self._poll.register(self.pgconn.socket, select.POLLIN)
        self.add_notice_handler(self._note)

    def rollback(self) -> None:
        super().rollback()
        self._known_there.clear()  # psycopg has the server forget all that was prepared

    @contextlib.contextmanager
    def transaction(self, *given: Any, **named: Any) -> Iterator[psycopg.Transaction]:
        try:
            with super().transaction(*given, **named) as begun:
                yield begun
        except BaseException:
            self._known_there.clear()
            raise

    def commit_within(self, seconds: float, last: Call | None = None) -> tuple[str, bytes | None]:
        """End the transaction; return what became of it, and the one value of a last statement sent with it.

        No time-out of the server covers the wait for a standby: this does, by telling the server to wait no longer.
        """
        if last is None:
            self.pgconn.send_query(b"COMMIT")
            return (self._answered(seconds)[-1].command_status or b"").decode(), None
        self._prepare(last)
        self.pgconn.enter_pipeline_mode()
        try:
            self.pgconn.send_query_prepared(last.name, last.values, last.binary)
            self.pgconn.send_query_params(b"COMMIT", None)
            self.pgconn.pipeline_sync()
            done, ended = self._answered(seconds)
        finally:
            with contextlib.suppress(psycopg.Error):
                self.pgconn.exit_pipeline_mode()
        return (ended.command_status or b"").decode(), done.get_value(0, 0)

    def at_once(self, call: Call, seconds: float) -> bytes | None:
        """Run a statement that is a transaction of its own, in one message; return its one value once it is saved."""
        self._prepare(call)
        self.pgconn.send_query_prepared(call.name, call.values, call.binary)
        return self._answered(seconds)[-1].get_value(0, 0)

    def _prepare(self, call: Call) -> None:
        if call.name not in self._known_there:
            made = self.pgconn.prepare(call.name, call.statement)
            if made.status != pq.ExecStatus.COMMAND_OK:
                raise _error(made)
            self._known_there.add(call.name)

    def _answered(self, seconds: float) -> list[pq.abc.PGresult]:
        """Wait for all that was sent to be done, and return what came of each; beyond that time have it stopped."""
        deadline, cancelled = time.monotonic() + seconds, False
        found: list[pq.abc.PGresult] = []
        between = self.pgconn.pipeline_status != pq.PipelineStatus.OFF
        while True:
            while (unsent := self.pgconn.flush()) or self.pgconn.is_busy():
                if self._ready(deadline - time.monotonic(), sending=bool(unsent)):
                    self.pgconn.consume_input()
                elif cancelled:
                    self.close()
                    raise psycopg.OperationalError("no answer from the server")
                else:
                    self.cancel_safe(timeout=_CANCELLING)
                    deadline, cancelled = time.monotonic() + _CANCELLING, True
            result = self.pgconn.get_result()
            if result is None and between:
                between = self.pgconn.status == pq.ConnStatus.OK  # one ends here, and the next begins
            elif result is None or result.status == pq.ExecStatus.PIPELINE_SYNC:
                break
            else:
                found.append(result)
        wrong = [result for result in found if result.status not in _GOOD]
        if wrong:
            raise _error(wrong[0])
        if not found:
            raise psycopg.OperationalError("no answer from the server")
        return found

    def _ready(self, seconds: float, *, sending: bool) -> bool:
        """Wait until something can be read or, while not all was sent yet, written."""
        self._poll.modify(self.pgconn.socket, select.POLLIN | (select.POLLOUT if sending else 0))
        return bool(self._poll.poll(max(0, round(seconds * 1000))))

    def _note(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        self.warnings += diagnostic.severity_nonlocalized == "WARNING"


def _error(result: pq.abc.PGresult) -> psycopg.Error:
    """Return what went wrong; what no server gave a code for is a connection that was lost."""
    if result.error_field(pq.DiagnosticField.SQLSTATE):
        return psycopg.errors.error_from_result(result)
    return psycopg.OperationalError("the connection was lost")


def connect(address: Address) -> Session:
    """Open one connection with the login's rights, or say why there is none."""
    try:
        return Session.connect(address.conninfo, autocommit=True)
    except psycopg.Error as error:
        raise _why_not(error, address) from None


class Pool:
    """The connections that this process keeps open. After a fork the child begins with none of them."""

    def __init__(self, address: Address, waits: Waits, check: Callable[[Session], None]) -> None:
        self._address = address
        self._check = check
        self._waits = waits
        self._making = threading.Lock()
        self._pool: psycopg_pool.ConnectionPool[Session] | None = None
        self._process = 0
        self._closed = False

    def take(self, deadline: float) -> Session:
        """Return a connection that nobody else has; wait for one until the deadline. A new one is checked first."""
        session = self._wait(deadline)
        if not session.checked:
            try:
                self._check(session)
                session.checked = True
            except psycopg.Error:  # whoever uses it will hear the same, and knows what to do
                pass
            except BaseException:
                self.give_back(session)
                raise
        return session

    def _wait(self, deadline: float) -> Session:
        try:
            return self._here().getconn(max(deadline - time.monotonic(), _SHORTEST_WAIT))
        except psycopg_pool.PoolTimeout:
            connect(self._address).close()  # says what is wrong, unless there are just too few
            raise Busy(
                f"All {self._waits.connections} connections to the database were in use for too long.",
                "Try again, or allow more connections.",
            ) from None
        except psycopg_pool.PoolClosed:
            raise Unavailable(f"{self._address.shown} was closed.", "Open it again.") from None

    def give_back(self, session: Session) -> None:
        """Take a connection back, with nothing begun on it."""
        with contextlib.suppress(psycopg.Error):
            if session.info.transaction_status != pq.TransactionStatus.IDLE:
                session.rollback()
        self._here().putconn(session)

    def after(self, error: psycopg.Error, session: Session) -> None:
        """See to the other connections when one of them was lost: they may be as dead, or lead to the wrong server."""
        if not _faults.lost(error, session):
            return
        session.close()
        if _faults.read_only(error):
            self._here().drain()
        else:
            self._here().check()

    def close(self) -> None:
        self._closed = True
        if self._pool and self._process == os.getpid():
            self._pool.close()

    def _here(self) -> psycopg_pool.ConnectionPool[Session]:
        if self._pool and self._process == os.getpid():
            return self._pool
        with self._making:
            if self._closed:
                raise psycopg_pool.PoolClosed
            if not self._pool or self._process != os.getpid():
                self._pool, self._process = self._make(), os.getpid()
            return self._pool

    def _make(self) -> psycopg_pool.ConnectionPool[Session]:
        logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())  # whoever waits is told, nobody else
        return psycopg_pool.ConnectionPool(
            self._address.conninfo,
            connection_class=Session,
            kwargs={"autocommit": True},
            min_size=1,
            max_size=self._waits.connections,
            reconnect_timeout=self._waits.again_seconds,
            num_workers=2,
            name="holdfast",
            open=True,
        )


def _why_not(error: psycopg.Error, address: Address) -> HoldfastError:
    """Say why there is no connection; never with a password in it."""
    parts = conninfo.conninfo_to_dict(address.conninfo)
    name, user = parts.get("dbname") or parts.get("user") or "", parts.get("user") or "of this system"
    answer = pq.PGconn.ping(conninfo.make_conninfo(address.conninfo, connect_timeout=_QUICK).encode())
    if answer == pq.Ping.NO_RESPONSE:
        return RootGone(
            f"No PostgreSQL server answers at {address.shown}.", "Check host and port, and that the server runs."
        )
    if answer == pq.Ping.REJECT:
        return RootGone(f"The server at {address.shown} takes no connections at the moment.", "Try again soon.")
    if error.pgconn and error.pgconn.needs_password:
        return Unavailable(
            f'The server wants a password for the user "{user}", and none was given.',
            "Put it into the address, into PGPASSWORD or into ~/.pgpass.",
        )
    if _gets_into_another(address, str(name)):
        return Unavailable(
            f'The user "{user}" gets to the server, but not into a database "{name}".',
            f'Make it: CREATE DATABASE "{name}"; or GRANT CONNECT on it.',
        )
    return Unavailable(
        f'The server at {address.shown} refused the user "{user}".',
        "Check user and password, and that pg_hba.conf lets this machine in; the server's log has the reason.",
    )


def _gets_into_another(address: Address, name: str) -> bool:
    for other in _ALWAYS_THERE:
        if other != name:
            with contextlib.suppress(psycopg.Error):
                psycopg.connect(conninfo.make_conninfo(address.conninfo, dbname=other)).close()
                return True
    return False
