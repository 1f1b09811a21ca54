"""Connections to a database: making them, keeping some, and saying why there is none.

libpq gives no code for a connection that was refused, and its text is in the server's language. So the cause is found
by asking: does anything answer there, is it up, does the same login get into another database of that server?
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable

import msgspec
import psycopg
import psycopg_pool
from psycopg import conninfo, pq

from holdfast.errors import Busy, HoldfastError, Unavailable
from holdfast.storage.postgres import _faults
from holdfast.storage.postgres.addresses import Address
from holdfast.storage.postgres.sessions import Session
from holdfast.storage.tree import RootGone

_SHORTEST_WAIT = 0.05
_QUICK = 2
"""Seconds to wait for a sign of life: libpq waits them out when a server hangs up at once."""
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
