"""Connections to a database: one session, the pool of a program, and what the errors of the driver mean.

A session sends statements as one message: its settings, then the statements, then the end of the transaction. That is
one round trip, and all of it is applied or nothing.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import psycopg
import psycopg_pool
from psycopg import conninfo, pq
from psycopg import errors as pg
from psycopg.adapt import Transformer
from psycopg.rows import TupleRow

from holdfast.errors import Busy, Damaged, HoldfastError, Invalid, Unavailable
from holdfast.storage.postgres.addresses import Address
from holdfast.storage.tree import RootGone

_CANCEL_SECONDS = 5.0
_SHORTEST_WAIT = 0.05
_PING_SECONDS = 2
_ALWAYS_THERE = ("postgres", "template1")
_MOST_PREPARED = 300
_ROLLED_BACK = (pg.SerializationFailure, pg.DeadlockDetected, pg.TransactionRollback)
_DISCONNECTED = (
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.CannotConnectNow,
    pg.IdleInTransactionSessionTimeout,
    pg.ConnectionException,
    pg.TooManyConnections,
)
UNPREPARED = (pg.InvalidSqlStatementName, pg.DuplicatePreparedStatement)
"""A pooler in transaction mode gave the connection to another client, so prepared statements cannot be used."""
_TEXT, _BINARY, _FATAL = pq.Format.TEXT, pq.Format.BINARY, pq.ExecStatus.FATAL_ERROR
_VALUE = re.compile(r"%\((\w+)\)s")
Statement = tuple[str, Mapping[str, object] | list[Any]]
"""A statement and its values, by name or in their order."""


class Unprepared(str):
    """A statement that is planned for its values each time."""

    __slots__ = ()


class Waits(msgspec.Struct, frozen=True):
    """Time-outs, and the number of connections one program uses at a time."""

    lock_seconds: float = 10.0
    statement_seconds: float = 60.0
    again_seconds: float = 20.0
    """How long to retry while the server is away, fails over, or rolls work back."""
    idle_seconds: float = 120.0
    """How long a transaction may be idle while it holds locks."""
    connections: int = 8


class Session(psycopg.Connection[TupleRow]):
    """A connection that gives up waiting for the server after a while, and counts the server's warnings."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.seconds = 0.0
        """How long one answer may take; 0 for any time. No time-out of the server covers a synchronous standby."""
        self.warnings = 0
        """A commit that no standby confirmed succeeds with a warning."""
        self.checked = False
        self._known: dict[str, bytes] = {}
        self._names = 0
        self._loader = Transformer(self)
        self.add_notice_handler(self._count_warning)

    def message(self, statements: Sequence[Statement], *, prepare: bool = True) -> list[list[TupleRow]]:
        """Send statements in one message and return the rows of each.

        Outside of a transaction, the message is a transaction of its own.
        """
        link, new, wanted = self.pgconn, list[tuple[str, bytes]](), list[bool]()
        link.enter_pipeline_mode()
        for text, values in statements:
            query, names = compiled(text)
            given = values if isinstance(values, list) else [values[name] for name in names]
            sent = [_SENT.get(type(one), _as_text)(one) for one in given]
            formats = [_BINARY if type(one) is bytes else _TEXT for one in given] if bytes in map(type, given) else None
            if not prepare or isinstance(text, Unprepared):
                link.send_query_params(query, sent, None, formats, _BINARY)
            else:
                name = self._known.get(text)
                if name is None:
                    self._names += 1
                    name = b"h%d" % self._names
                    link.send_prepare(name, query)
                    new.append((text, name))
                    wanted.append(False)
                link.send_query_prepared(name, sent, formats, _BINARY)
            wanted.append(True)
        link.pipeline_sync()
        results = self._receive()
        link.exit_pipeline_mode()
        for result in results:
            if result.status == _FATAL:
                raise pg.error_from_result(result, self.info.encoding)
        self._known |= dict(new)
        if len(self._known) > _MOST_PREPARED:
            self._known.clear()
            self.execute("DEALLOCATE ALL")
        return [self._rows(result) for result, one in zip(results, wanted, strict=True) if one]

    def _rows(self, result: pq.abc.PGresult) -> list[TupleRow]:
        if not result.ntuples:
            return []
        self._loader.set_pgresult(result)
        return list(self._loader.load_rows(0, result.ntuples, tuple))

    def _receive(self) -> list[pq.abc.PGresult]:
        """Wait for the results up to the end of the message; after a while, cancel the work or close the connection."""
        link, results = self.pgconn, list[pq.abc.PGresult]()
        waiting = select.poll()
        deadline = time.monotonic() + self.seconds if self.seconds else 0.0
        cancelled, writing = False, bool(link.flush())
        waiting.register(link.socket, select.POLLIN | (select.POLLOUT if writing else 0))
        while True:
            if link.is_busy():
                if not waiting.poll(max(1.0, 1000 * (deadline - time.monotonic())) if deadline else None):
                    if cancelled:
                        self.close()
                        raise psycopg.OperationalError("no answer from the server")
                    self.cancel_safe(timeout=_CANCEL_SECONDS)
                    deadline, cancelled = time.monotonic() + _CANCEL_SECONDS, True
                    continue
                link.consume_input()
                if writing and not link.flush():
                    writing = False
                    waiting.modify(link.socket, select.POLLIN)
                continue
            result = link.get_result()
            if result is None:
                continue
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                return results
            results.append(result)

    def _count_warning(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        self.warnings += diagnostic.severity_nonlocalized == "WARNING"


@functools.lru_cache(maxsize=512)
def compiled(text: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement with numbered values, and their names."""
    names = tuple(dict.fromkeys(_VALUE.findall(text)))
    return _VALUE.sub(lambda found: f"${names.index(found[1]) + 1}", text).encode(), names


def _as_text(value: object) -> bytes:
    return str(value).encode()


def _as_array(values: Sequence[object]) -> bytes:
    parts = ("NULL" if one is None else '"' + _escaped(str(one)) + '"' for one in values)
    return ("{" + ",".join(parts) + "}").encode()


_SENT: dict[type, Callable[[Any], bytes | None]] = {
    str: str.encode,
    type(None): lambda _: None,
    bytes: lambda value: value,
    bool: lambda value: b"t" if value else b"f",
    list: _as_array,
}
"""How values are sent: bytes as they are, anything else as text."""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"') if '"' in text or "\\" in text else text


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
        session.seconds = self._waits.statement_seconds
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
            status = session.pgconn.transaction_status
            if status == pq.TransactionStatus.ACTIVE or session.pgconn.pipeline_status:  # interrupted while it waited
                session.cancel_safe(timeout=_CANCEL_SECONDS)
                session.close()
            elif status != pq.TransactionStatus.IDLE:
                session.rollback()
        self._pool.putconn(session)

    def discard_lost(self, error: psycopg.Error, session: Session) -> None:
        """Close a lost connection and check the others, which may be dead too or lead to the wrong server."""
        if is_lost(error, session):
            session.close()
            if isinstance(error, pg.ReadOnlySqlTransaction):
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


# errors


def is_programming_error(error: psycopg.Error) -> bool:
    """Return whether the driver rejected the call before it reached a server."""
    return error.sqlstate is None and not isinstance(error, psycopg.OperationalError | psycopg.InternalError)


def is_lost(error: psycopg.Error, session: Session) -> bool:
    """Return whether the connection can no longer be used; a former primary after a failover takes no writes."""
    return isinstance(error, (*_DISCONNECTED, pg.ReadOnlySqlTransaction)) or session.closed


def is_transient(error: psycopg.Error, session: Session) -> bool:
    """Return whether the same work may succeed on a retry."""
    return isinstance(error, _ROLLED_BACK) or is_lost(error, session)


def mapped(error: psycopg.Error, what: str, waits: Waits) -> HoldfastError:
    """Return the error to raise for a failed operation on `what`."""
    match error:
        case pg.LockNotAvailable():
            seconds = waits.lock_seconds
            return Busy(f"{what} was locked by others for {seconds:g} s; nothing was written.", "Try again.")
        case pg.SerializationFailure() | pg.DeadlockDetected() | pg.TransactionRollback():
            return Busy(f"{what}: other writers interfered repeatedly; nothing was written.", "Try again.")
        case pg.QueryCanceled():
            return Unavailable(
                f"{what}: the database took longer than {waits.statement_seconds:g} s, or an operator cancelled the"
                " query.",
                "Nothing was acknowledged; try again, and check the load of the server.",
            )
        case pg.InsufficientPrivilege():
            return Unavailable(
                f"{what}: the database does not allow this.",
                "Use a login that was granted holdfast_writer (or holdfast_reader to read).",
            )
        case pg.ReadOnlySqlTransaction():
            return Unavailable(
                f"{what}: this server takes no writes; it is a standby or was set to read only.",
                "Name all servers in the address, with target_session_attrs=read-write.",
            )
        case pg.UndefinedTable() | pg.InvalidSchemaName() | pg.UndefinedColumn():
            return RootGone(
                "The tables of the memory no longer exist, or have changed.", "Open the database again and check it."
            )
        case pg.DiskFull() | pg.OutOfMemory() | pg.InsufficientResources():
            return Unavailable(
                f"{what} was not saved: the database has no space left.", "Free some space and try again."
            )
        case pg.DataCorrupted() | pg.IndexCorrupted():
            return Damaged(f"{what}: the database reports that its files are damaged.", "Restore it from a backup.")
        case pg.ProgramLimitExceeded():
            return Invalid(f"{what[:80]}… is too long for a database.", "Shorten it.")
    if error.sqlstate is None or isinstance(error, _DISCONNECTED):
        return RootGone(f"{what}: the connection to the database was lost.", "Nothing was acknowledged; try again.")
    return Unavailable(
        f"{what}: the database refused ({error.sqlstate}): {error.diag.message_primary or 'no reason given'}.",
        "Nothing was acknowledged; see the server's log.",
    )
