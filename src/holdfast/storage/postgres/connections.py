"""Connections to a database: its address, one session, the pool of a program, and what the errors of the driver mean.

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
import re
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus

import msgspec
import psycopg
from psycopg import conninfo, pq
from psycopg import errors as pg
from psycopg.adapt import Transformer
from psycopg.rows import TupleRow

from holdfast.errors import Busy, Damaged, HoldfastError, Invalid, Unavailable
from holdfast.storage.tree import RootGone

SCHEMES = ("postgresql://", "postgres://")
DEFAULT_TENANT = "default"
_MOST = 200
_EXAMPLE = "Write it as postgresql://user:password@host:5432/name?tenant=team, with % for special characters."
_SECRET = re.compile(r"password|secret|scram_\w+_key")
"""Options whose values are never shown."""
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_SAFE = "/,:"
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
_BINARY, _FATAL, _SYNC = pq.Format.BINARY, pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.PIPELINE_SYNC
_IDLE = pq.TransactionStatus.IDLE
_OPEN = (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)
_VALUE = re.compile(r"%\((\w+)\)s")
Statement = tuple[str, Mapping[str, object] | list[Any] | tuple[bytes | None, ...]]
"""A statement and its values: by name, in their order, or in their order and encoded."""


# addresses


class Address(msgspec.Struct, frozen=True):
    conninfo: str
    """For libpq; it may contain a password."""
    tenant: str
    shown: str
    """For people, without a password."""
    bare: str
    """The address without its secrets, which opens the same memory when they come from elsewhere."""
    secret: bool = False
    """The address contained a secret."""

    def __repr__(self) -> str:
        return f"Address({self.shown})"


def parse_address(dsn: str) -> Address:
    """Read the address of a database."""
    scheme, colon, rest = dsn.partition(":")
    if not (scheme.lower() + colon + rest).startswith(SCHEMES):
        raise Invalid("This is not the address of a PostgreSQL database.", _EXAMPLE)
    start, _, query = (scheme.lower() + colon + rest).partition("?")
    if "@" in query:  # a password with an unescaped ?
        raise Invalid("The address of the database cannot be read.", _EXAMPLE)
    parts = [part for part in query.split("&") if part]
    tenants = [unquote_plus(part.partition("=")[2]) for part in parts if part.partition("=")[0] == "tenant"]
    others = "&".join(part for part in parts if part.partition("=")[0] != "tenant")
    tenant = check_tenant(tenants[-1] if tenants else DEFAULT_TENANT)
    try:
        given = conninfo.conninfo_to_dict(f"{start}?{others}" if others else start)
        port, name, host = (str(given.get(key) or "") for key in ("port", "dbname", "host"))
        # an unescaped / or @ in a password moves parts of it elsewhere; a host that begins with @ is an abstract socket
        if port.strip("0123456789,") or "@" in name or any("@" in one[1:] for one in host.split(",")):
            raise Invalid("The address of the database cannot be read.", _EXAMPLE)
        whole = conninfo.make_conninfo("", **{**_ALIVE, **given})
        bare = _bare(given, tenants[-1] if tenants else "")
        return Address(whole, tenant, _shown(given, tenant), bare, any(map(_SECRET.search, given)))
    except psycopg.Error:  # its text may quote the password
        raise Invalid("The address of the database cannot be read.", _EXAMPLE) from None


def without_clear_passwords(dsn: str) -> str:
    """Return an address of unknown origin with an option by which its server gets no password in clear or as MD5.

    Nothing in the address can override this; the owner's PGREQUIREAUTH can.
    """
    if pq.version() < _REQUIRING:
        raise Unavailable(
            "libpq is too old to keep a password from a server that asks for it.", "Use libpq 16 or later."
        )
    named = str(conninfo.conninfo_to_dict(parse_address(dsn).conninfo).get("require_auth") or "")
    strict = named and not any(each.startswith("!") or each in _CLEAR for each in named.split(","))
    wanted = os.environ.get("PGREQUIREAUTH") or (named if strict else _NOT_CLEAR)
    return f"{dsn}{'&' if '?' in dsn else '?'}require_auth={quote(wanted, safe='!,')}"  # libpq uses the last of two


def check_tenant(tenant: str) -> str:
    """Return a tenant's name, or refuse one that no tenant can have."""
    if not tenant or len(tenant) > _MOST or not tenant.isprintable() or tenant != tenant.strip():
        raise Invalid(
            f"{tenant[:40]!r} is not the name of a tenant.", f"Use 1 to {_MOST} characters, without line breaks."
        )
    return tenant


def shown_for(address: Address, tenant: str) -> str:
    """Return the address of another tenant of the same database, for people."""
    return _shown(conninfo.conninfo_to_dict(address.conninfo), tenant)


def for_tenant(dsn: str, tenant: str) -> str:
    """Return the address of another tenant of the same database."""
    start, _, query = dsn.partition("?")
    parts = [part for part in query.split("&") if part and part.partition("=")[0] != "tenant"]
    return f"{start}?{'&'.join([*parts, f'tenant={quote_plus(check_tenant(tenant))}'])}"


def _bare(given: Mapping[str, object], tenant: str) -> str:
    """Return an address made of what libpq understood, without secrets."""
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
    query = [f"{key}={quote(value, safe=_SAFE)}" for key, value in public.items()]
    query += [f"tenant={quote(tenant, safe='')}"] if tenant else []
    return f"postgresql://{user}{'@' if user else ''}{place}/{name}{'?' if query else ''}{'&'.join(query)}"


def _shown(given: Mapping[str, object], tenant: str) -> str:
    user, host, port, name = (str(given.get(key) or "") for key in ("user", "host", "port", "dbname"))
    place = f"{host}:{port}" if port and "," not in host and not host.startswith("/") else host
    return f"postgresql://{user + '@' if user else ''}{place}/{name}?tenant={tenant}"


class Unprepared(str):
    """A statement that is planned for its values each time."""

    __slots__ = ()


class Insert(str):
    """A statement that adds rows. When it is sent again, rows that are there already are left alone."""

    __slots__ = ()

    @property
    def again(self) -> str:
        return f"{self} ON CONFLICT (tenant, id) DO NOTHING"


class Waits(msgspec.Struct, frozen=True):
    """Time-outs, and the number of connections one program uses at a time."""

    lock_seconds: float = 10.0
    statement_seconds: float = 60.0
    again_seconds: float = 20.0
    """How long to retry while the server is away, fails over, or rolls work back."""
    idle_seconds: float = 120.0
    """How long a transaction may be idle while it holds locks."""
    connections: int = 8


# messages


class Session(psycopg.Connection[TupleRow]):
    """A connection that gives up waiting for the server after a while, and counts the server's warnings."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.seconds = 0.0
        """How long one answer may take; 0 for any time. No time-out of the server covers a synchronous standby."""
        self.warnings = 0
        """A commit that no standby confirmed succeeds with a warning."""
        self.used = 0.0
        """When it was given back to the pool."""
        self._known: dict[str, bytes] = {}
        self._names = 0
        self._loader = Transformer(self)
        self._input = select.poll()
        self._input.register(self.pgconn.socket, select.POLLIN)
        self.add_notice_handler(self._count_warning)

    def message(self, statements: Sequence[Statement], *, prepare: bool = True) -> list[list[TupleRow]]:
        """Send statements in one message and return the rows of each.

        Outside of a transaction, the message is a transaction of its own.
        """
        link, known, new = self.pgconn, self._known, dict[str, bytes]()
        wanted: list[bool] = []
        link.enter_pipeline_mode()
        for text, values in statements:
            sent: Sequence[bytes | None]
            if isinstance(values, tuple):
                sent = values
            else:
                given = values if isinstance(values, list) else [values[name] for name in compiled(text)[1]]
                sent = [_SENT.get(type(one), _as_text)(one) for one in given]
            if not prepare or isinstance(text, Unprepared):
                link.send_query_params(compiled(text)[0], sent, None, None, _BINARY)
            else:
                name = known.get(text) or new.get(text)
                if name is None:
                    self._names += 1
                    name = new[text] = b"h%d" % self._names
                    link.send_prepare(name, compiled(text)[0])
                    wanted.append(False)
                link.send_query_prepared(name, sent, None, _BINARY)
            wanted.append(True)
        link.pipeline_sync()
        results = self._receive()
        link.exit_pipeline_mode()
        for result in results:
            if result.status == _FATAL:
                raise pg.error_from_result(result, self.info.encoding)
        if new:
            known |= new
            if len(known) > _MOST_PREPARED:
                known.clear()
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
        deadline, cancelled = time.monotonic() + self.seconds if self.seconds else 0.0, False
        writing = link.flush()
        while True:
            if not link.is_busy():
                result = link.get_result()
                if result is None:
                    continue
                if result.status == _SYNC:
                    return results
                results.append(result)
                continue
            if writing:
                self._input.modify(link.socket, select.POLLIN | select.POLLOUT)
            if self._input.poll(max(1.0, 1000 * (deadline - time.monotonic())) if deadline else None):
                link.consume_input()
                if writing and not (writing := link.flush()):
                    self._input.modify(link.socket, select.POLLIN)
            elif cancelled:
                self.close()
                raise psycopg.OperationalError("no answer from the server")
            else:
                self.cancel_safe(timeout=_CANCEL_SECONDS)
                deadline, cancelled = time.monotonic() + _CANCEL_SECONDS, True

    def _count_warning(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        self.warnings += diagnostic.severity_nonlocalized == "WARNING"


@functools.lru_cache(maxsize=512)
def compiled(text: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement with numbered values, and their names."""
    names = tuple(dict.fromkeys(_VALUE.findall(text)))
    return _VALUE.sub(lambda found: f"${names.index(found[1]) + 1}", text).encode(), names


def encoded(*values: str | None) -> tuple[bytes | None, ...]:
    """Return values as they are sent."""
    return tuple([None if one is None else one.encode() for one in values])


def _as_text(value: object) -> bytes:
    return str(value).encode()


def _as_array(values: Sequence[object]) -> bytes:
    parts = ("NULL" if one is None else '"' + _escaped(str(one)) + '"' for one in values)
    return ("{" + ",".join(parts) + "}").encode()


_SENT: dict[type, Callable[[Any], bytes | None]] = {
    str: str.encode,
    type(None): lambda _: None,
    bytes: lambda value: value,  # text that is encoded already
    bool: lambda value: b"t" if value else b"f",
    list: _as_array,
}
"""How values are sent: as text."""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"') if '"' in text or "\\" in text else text


def connect(address: Address, deadline: float = 0.0) -> Session:
    """Open one connection with the login's rights, by the deadline, or raise the reason why there is none."""
    while True:
        try:
            return Session.connect(address.conninfo, autocommit=True)
        except psycopg.Error as error:
            if time.monotonic() + _PAUSE > deadline:
                raise _refusal(error, address) from None
        time.sleep(_PAUSE)


class Pool:
    """The open connections of this program. The one that was used last is used next, and idle ones are closed."""

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
            raise Busy(
                f"All {self._most} connections to the database were in use for too long.",
                "Try again, or allow more connections.",
            ) from None
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

    def discard_lost(self, error: psycopg.Error, session: Session) -> None:
        """Close a lost connection and the idle ones, which may be dead too or lead to the wrong server."""
        if is_lost(error, session):
            session.close()
            self.close_idle()

    def close_idle(self, since: float = math.inf) -> None:
        """Close the connections that were not used since then."""
        with contextlib.suppress(IndexError):
            while self._free[0].used < since:
                self._free.popleft().close()

    def close(self) -> None:
        self._closed = True
        self.close_idle()


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
