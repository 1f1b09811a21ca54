"""Connections to a database: its address, one session, the pool of a program, and the errors of the driver.

An address is `postgresql://user:password@host:port/name?tenant=…`. Everything but `tenant` is passed to libpq, which
knows many forms, such as several hosts. A password is never shown, neither in an address for people nor in an error.

A session sends statements as one message: its settings, then the statements, then the end of the transaction. That is
one round trip, and all of it is applied or nothing.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import queue
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus

import msgspec
import psycopg
from psycopg import conninfo, pq
from psycopg import errors as pg
from psycopg.adapt import Transformer
from psycopg.rows import TupleRow

from holdfast.errors import Busy, Damaged, HoldfastError, Invalid, Unavailable
from holdfast.model.patterns import regex
from holdfast.storage.tree import RootGone

SCHEMES = ("postgresql://", "postgres://")
_LONGEST_TENANT = 200
_EXAMPLE = "Write it as postgresql://user:password@host:5432/name?tenant=team, with % for special characters."
_SECRET = regex(r"password|secret|scram_\w+_key")
"""Options whose values are never shown."""
_HOST = regex(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_CLEAR = ("password", "md5")
"""Authentication methods that reveal the password to the server, or nearly."""
_NOT_CLEAR = ",".join(f"!{each}" for each in _CLEAR)
_REQUIRING = 16_00_00
"""The first libpq that can refuse them."""
_ALIVE = {
    "application_name": "holdfast",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "client_encoding": "utf8",
}
_CANCEL_SECONDS = 5.0
_IDLE_SECONDS = 600.0
_PAUSE = 0.1
_SHORTEST_WAIT = 0.05
_PING_SECONDS = 2
_MOST_PREPARED = 300
_DISCONNECTED = (
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.CannotConnectNow,
    pg.IdleInTransactionSessionTimeout,
    pg.ConnectionException,
    pg.TooManyConnections,
)
ROLLED_BACK = (pg.SerializationFailure, pg.DeadlockDetected, pg.TransactionRollback)
UNPREPARED = (pg.InvalidSqlStatementName, pg.DuplicatePreparedStatement)
"""A pooler in transaction mode gave the connection to another client, so prepared statements cannot be used."""
_BINARY, _FATAL, _SYNC = pq.Format.BINARY, pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.PIPELINE_SYNC
_IDLE = pq.TransactionStatus.IDLE
_OPEN = (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)
_VALUE = regex(r"%\((\w+)\)s")
Statement = tuple[str, dict[str, Any] | Sequence[object]]
"""A statement and its values: by name, or in their order."""


class Waits(msgspec.Struct, frozen=True):
    """Time-outs, and the number of connections one program uses at a time."""

    lock_seconds: float = 10.0
    statement_seconds: float = 60.0
    again_seconds: float = 20.0
    """How long to retry while the server is unreachable, fails over, or rolls work back."""
    connections: int = 8


# addresses


class Address(msgspec.Struct, frozen=True):
    conninfo: str
    """For libpq; it may contain a password."""
    tenant: str
    shown: str
    """For people, without a password."""
    bare: str
    """The address without its secrets; it opens the same memory if the environment provides them."""
    secret: bool = False
    """The address contained a secret."""

    def __repr__(self) -> str:
        return f"Address({self.shown})"


def parse_address(dsn: str) -> Address:
    """Read the address of a database."""
    scheme, colon, rest = dsn.partition(":")
    dsn = scheme.lower() + colon + rest
    if not dsn.startswith(SCHEMES):
        raise Invalid("This is not the address of a PostgreSQL database.", _EXAMPLE)
    start, options, named = _split(dsn)
    try:
        if "@" in dsn.partition("?")[2]:  # a password with an unescaped ?
            raise psycopg.ProgrammingError
        tenant = check_tenant("default" if named is None else named)
        given = conninfo.conninfo_to_dict(f"{start}?{'&'.join(options)}" if options else start)
        user, host, port, name = (str(given.get(key) or "") for key in ("user", "host", "port", "dbname"))
        # an unescaped / or @ in a password moves parts of it elsewhere; a host that begins with @ is an abstract socket
        if port.strip("0123456789,") or "@" in name or any("@" in one[1:] for one in host.split(",")):
            raise psycopg.ProgrammingError
        whole = conninfo.make_conninfo("", **{**_ALIVE, **given})
    except psycopg.Error:  # its text may quote the password
        raise Invalid("The address of the database cannot be read.", _EXAMPLE) from None
    place = f"{host}:{port}" if port and "," not in host and not host.startswith("/") else host
    shown = f"postgresql://{user + '@' if user else ''}{place}/{name}?tenant={tenant}"
    # the same of what libpq understood, without secrets
    public = {key: str(value) for key, value in given.items() if not _SECRET.search(key)}
    if public.get("require_auth") == _NOT_CLEAR:  # added by `without_clear_passwords`
        del public["require_auth"]
    user, name = (quote(public.pop(key, ""), safe="") for key in ("user", "dbname"))
    hosts, ports, place = public.get("host", "").split(","), public.get("port", "").split(","), ""
    ports = ports if any(ports) else [""] * len(hosts)
    if len(hosts) == len(ports) and all(map(_HOST.match, hosts)):  # they fit at the front of an address
        place = ",".join(f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=True))
        del public["host"]
        public.pop("port", "")
    query = [f"{key}={quote(value, safe='/,:')}" for key, value in public.items()]
    query += [f"tenant={quote(named, safe='')}"] if named else []
    bare = f"postgresql://{user}{'@' if user else ''}{place}/{name}{'?' if query else ''}{'&'.join(query)}"
    return Address(whole, tenant, shown, bare, any(map(_SECRET.search, given)))


def _split(dsn: str) -> tuple[str, list[str], str | None]:
    """Return an address up to its options, the options for libpq, and the tenant if it names one."""
    start, _, query = dsn.partition("?")
    options, tenant = list[str](), None
    for option in filter(None, query.split("&")):
        name, _, value = option.partition("=")
        if name == "tenant":
            tenant = unquote_plus(value)
        else:
            options.append(option)
    return start, options, tenant


def for_tenant(dsn: str, tenant: str) -> str:
    """Return the address of another tenant of the same database."""
    start, options, _ = _split(dsn)
    return f"{start}?{'&'.join([*options, f'tenant={quote_plus(check_tenant(tenant))}'])}"


def check_tenant(tenant: str) -> str:
    """Return a tenant's name, or refuse one that no tenant can have."""
    if not tenant or len(tenant) > _LONGEST_TENANT or not tenant.isprintable() or tenant != tenant.strip():
        fault = f"{tenant[:40]!r} is not the name of a tenant."
        raise Invalid(fault, f"Use 1 to {_LONGEST_TENANT} characters, without line breaks.")
    return tenant


def without_clear_passwords(dsn: str) -> str:
    """Return an address of unknown origin with an option by which its server gets no password in clear or as MD5.

    Nothing in the address can override this; the owner's PGREQUIREAUTH can.
    """
    if pq.version() < _REQUIRING:
        fault = "libpq is too old to keep a password from a server that asks for it."
        raise Unavailable(fault, "Use libpq 16 or later.")
    named = str(conninfo.conninfo_to_dict(parse_address(dsn).conninfo).get("require_auth") or "")
    strict = named and not any(each.startswith("!") or each in _CLEAR for each in named.split(","))
    wanted = os.environ.get("PGREQUIREAUTH") or (named if strict else _NOT_CLEAR)
    return f"{dsn}{'&' if '?' in dsn else '?'}require_auth={quote(wanted, safe='!,')}"  # libpq uses the last of two


# messages


class Unprepared(str):
    """A statement that is planned for its values each time."""

    __slots__ = ()


class Insert(str):
    """A statement that adds rows. When it is sent again, existing rows are left unchanged."""

    __slots__ = ()


class Session(psycopg.Connection[TupleRow]):
    """A connection that gives up waiting for the server after a while, and counts the server's warnings."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.warnings = 0
        """A commit that no standby confirmed succeeds with a warning."""
        self.used = 0.0
        """When it was given back to the pool."""
        self._known: dict[str, bytes] = {}
        self._names = 0
        self._loader = Transformer(self)
        self._poll = select.poll()
        self._poll.register(self.pgconn.socket, select.POLLIN)

        def count(diagnostic: pg.Diagnostic) -> None:
            self.warnings += diagnostic.severity_nonlocalized == "WARNING"

        self.add_notice_handler(count)

    def message(self, statements: Sequence[Statement], seconds: float, *, prepare: bool) -> list[list[TupleRow]]:
        """Send statements in one message and return the rows of each; the answer may take so many seconds.

        Outside of a transaction, the message is a transaction of its own.
        """
        link, known, new = self.pgconn, self._known, dict[str, bytes]()
        wanted: list[bool] = []
        link.enter_pipeline_mode()
        for text, values in statements:
            query, names = compiled(text)
            given = [values[name] for name in names] if isinstance(values, dict) else values
            sent = [one.encode() if type(one) is str else one if one is None else _as_text(one) for one in given]
            if not prepare or isinstance(text, Unprepared):
                link.send_query_params(query, sent, None, None, _BINARY)
            else:
                name = known.get(text) or new.get(text)
                if name is None:
                    self._names += 1
                    name = new[text] = b"h%d" % self._names
                    link.send_prepare(name, query)
                    wanted.append(False)
                link.send_query_prepared(name, sent, None, _BINARY)
            wanted.append(True)
        link.pipeline_sync()
        results = self._receive(seconds)
        link.exit_pipeline_mode()
        for result in results:
            if result.status == _FATAL:
                raise pg.error_from_result(result, self.info.encoding)
        known |= new
        if len(known) > _MOST_PREPARED:
            known.clear()
            self.execute("DEALLOCATE ALL")
        found: list[list[TupleRow]] = []
        for result in (result for result, one in zip(results, wanted, strict=True) if one):
            if result.ntuples:
                self._loader.set_pgresult(result)
            found.append(self._loader.load_rows(0, result.ntuples, tuple) if result.ntuples else [])
        return found

    def _receive(self, seconds: float) -> list[pq.abc.PGresult]:
        """Wait for the results up to the end of the message; after a while, cancel the work or close the connection.

        This is not left to the server, whose time-outs do not cover the wait for a synchronous standby.
        """
        link, results, cancelled = self.pgconn, list[pq.abc.PGresult](), False
        deadline, writing = time.monotonic() + seconds, link.flush()
        while True:
            while not link.is_busy():
                result = link.get_result()
                if result and result.status == _SYNC:
                    return results
                if result:
                    results.append(result)
            if writing:
                writing = link.flush()
                self._poll.modify(link.socket, select.POLLIN | select.POLLOUT if writing else select.POLLIN)
            if self._poll.poll(max(1.0, 1000 * (deadline - time.monotonic()))):
                link.consume_input()
            elif cancelled:
                self.close()
                raise psycopg.OperationalError("no answer from the server")
            else:
                self.cancel_safe(timeout=_CANCEL_SECONDS)
                deadline, cancelled = time.monotonic() + _CANCEL_SECONDS, True


@functools.lru_cache(maxsize=512)
def compiled(text: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement with numbered values, and their names."""
    names = tuple(dict.fromkeys(_VALUE.findall(text)))
    return _VALUE.sub(lambda found: f"${names.index(found[1]) + 1}", text).encode(), names


def _as_text(value: object) -> bytes:
    """Return a value as it is sent: as text."""
    if isinstance(value, msgspec.Raw):
        return bytes(value)
    if not isinstance(value, list):
        return str(value).encode()
    texts = (None if one is None else str(one).replace("\\", "\\\\").replace('"', '\\"') for one in value)
    return ("{" + ",".join("NULL" if text is None else f'"{text}"' for text in texts) + "}").encode()


# sessions


def connect(address: Address, deadline: float = 0.0) -> Session:
    """Open one connection with the login's rights, by the deadline, or raise the reason why there is none."""
    while True:
        try:
            return Session.connect(address.conninfo, autocommit=True)
        except psycopg.Error as error:
            if time.monotonic() + _PAUSE <= deadline:
                time.sleep(_PAUSE)
                continue
            # libpq gives no code for the reason, so the server is asked whether it runs
            answer = pq.PGconn.ping(conninfo.make_conninfo(address.conninfo, connect_timeout=_PING_SECONDS).encode())
            if answer == pq.Ping.NO_RESPONSE:
                fault = f"No PostgreSQL server answers at {address.shown}."
                raise RootGone(fault, "Check host and port, and that the server runs.") from None
            if answer == pq.Ping.REJECT:
                fault = f"The server at {address.shown} accepts no connections at the moment."
                raise RootGone(fault, "Try again soon.") from None
            if error.pgconn and error.pgconn.needs_password:
                fault = f"The server at {address.shown} wants a password, and none was given."
                raise Unavailable(fault, "Put it into the address, into PGPASSWORD or into ~/.pgpass.") from None
            parts, reason = conninfo.conninfo_to_dict(address.conninfo), str(error).rpartition("FATAL: ")[2].strip()
            name, user = parts.get("dbname") or parts.get("user") or "", parts.get("user") or "of this system"
            raise Unavailable(
                f'The server at {address.shown} refused the user "{user}": {reason}.',
                f'Check user and password, and pg_hba.conf; if the database is missing, run: CREATE DATABASE "{name}";',
            ) from None


class ConnectionPool:
    """The open connections of this program. The one that was used last is used next, and idle ones are closed.

    `check` is called with every new connection.
    """

    def __init__(self, address: Address, most: int, check: Callable[[Session], None]) -> None:
        self._address = address
        self._most = most
        self._check = check
        self._free: deque[Session] = deque()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        """As many entries as connections may be lent now; unlike a semaphore it takes next to no time."""
        for _ in range(most):
            self._room.put(None)
        self._closed = False

    def take(self, deadline: float) -> Session:
        """Lend a connection, a new one if none is free; while all are lent, wait until the deadline."""
        try:
            self._room.get(timeout=max(deadline - time.monotonic(), _SHORTEST_WAIT))
        except queue.Empty:
            fault = f"All {self._most} connections to the database were in use for too long."
            raise Busy(fault, "Try again, or allow more connections.") from None
        try:
            return self._free.pop()
        except IndexError:
            session = None
        try:
            if self._closed:
                raise Unavailable(f"{self._address.shown} was closed.", "Open it again.")
            session = connect(self._address, deadline)
            with contextlib.suppress(psycopg.Error):  # the caller gets the same error, and handles it
                self._check(session)
            return session
        except BaseException:
            if session:
                session.close()
            self._room.put(None)
            raise

    def give_back(self, session: Session) -> None:
        link = session.pgconn
        if link.transaction_status != _IDLE or link.pipeline_status:
            with contextlib.suppress(psycopg.Error):
                if link.transaction_status in _OPEN and not link.pipeline_status:
                    session.rollback()
                elif not session.closed:  # interrupted while it waited
                    session.cancel_safe(timeout=_CANCEL_SECONDS)
                    session.close()
        if link.transaction_status == _IDLE:
            session.used = time.monotonic()
            self._free.append(session)
            if len(self._free) > 1 or self._closed:
                self.close_idle(math.inf if self._closed else session.used - _IDLE_SECONDS)
        else:
            session.close()
        self._room.put(None)

    def discard_lost(self, error: psycopg.Error, session: Session) -> bool:
        """Close a lost connection and the idle ones, which may be dead too; return whether it was lost.

        A former primary takes no writes after a failover.
        """
        if lost := session.closed or isinstance(error, (*_DISCONNECTED, pg.ReadOnlySqlTransaction)):
            session.close()
            self.close_idle()
        return lost

    def close_idle(self, since: float = math.inf) -> None:
        """Close the connections that were not used since then."""
        with contextlib.suppress(IndexError):
            while self._free[0].used < since:
                self._free.popleft().close()

    def close(self) -> None:
        self._closed = True
        self.close_idle()


# errors


@contextlib.contextmanager
def reported(what: str, waits: Waits) -> Iterator[None]:
    """Raise errors of the driver as ours."""
    try:
        yield
    except psycopg.Error as error:
        raise mapped(error, what, waits) from None


def mapped(error: psycopg.Error, what: str, waits: Waits) -> HoldfastError:
    """Return the error to raise for a failed operation on `what`."""
    match error:
        case pg.LockNotAvailable():
            fault = f"{what} was locked by others for {waits.lock_seconds:g} s; nothing was written."
            return Busy(fault, "Try again.")
        case pg.SerializationFailure() | pg.DeadlockDetected() | pg.TransactionRollback():
            return Busy(f"{what}: other writers interfered repeatedly; nothing was written.", "Try again.")
        case pg.QueryCanceled():
            seconds = f"{waits.statement_seconds:g} s"
            fault = f"{what}: the database took longer than {seconds}, or an operator cancelled the query."
            return Unavailable(fault, "The operation was not confirmed; try again, and check the load of the server.")
        case pg.InsufficientPrivilege():
            step = "Use a login that was granted holdfast_writer (or holdfast_reader to read)."
            return Unavailable(f"{what}: the database does not allow this.", step)
        case pg.ReadOnlySqlTransaction():
            fault = f"{what}: this server takes no writes; it is a standby or was set to read-only."
            return Unavailable(fault, "Name all servers in the address, with target_session_attrs=read-write.")
        case pg.UndefinedTable() | pg.InvalidSchemaName() | pg.UndefinedColumn():
            fault = "The tables of the memory no longer exist, or have changed."
            return RootGone(fault, "Open the database again and check it.")
        case pg.DiskFull() | pg.OutOfMemory() | pg.InsufficientResources():
            fault = f"{what} was not saved: the database has no space left."
            return Unavailable(fault, "Free some space and try again.")
        case pg.DataCorrupted() | pg.IndexCorrupted():
            return Damaged(f"{what}: the database reports that its files are damaged.", "Restore it from a backup.")
        case pg.ProgramLimitExceeded():
            return Invalid(f"{what[:80]}… is too long for a database.", "Shorten it.")
    if error.sqlstate is None or isinstance(error, _DISCONNECTED):
        fault = f"{what}: the connection to the database was lost."
        return RootGone(fault, "The operation was not confirmed; try again.")
    fault = f"{what}: the database refused ({error.sqlstate}): {error.diag.message_primary or 'no reason given'}."
    return Unavailable(fault, "The operation was not confirmed; see the server's log.")
