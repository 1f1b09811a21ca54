"""Saying that a log is in use, for as long as this process lives.

A claim is an advisory lock of a connection that does nothing else, so that the server drops it when the process or its
machine dies. A thread watches over that connection: when it is lost, the claims are taken anew at once, as far as
nobody else has taken them meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

import psycopg

from holdfast.errors import HoldfastError
from holdfast.storage.postgres.sessions import Session
from holdfast.storage.postgres.transactions import Database

_LOOK_SECONDS = 10.0
_PAUSE_SECONDS = 0.5


class Claims:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._session: Session | None = None
        self._process = 0
        self._wanted: set[int] = set()
        self._held: set[int] = set()
        """Those that the server knows of."""
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._closed = threading.Event()

    def take(self, inode: int) -> bool:
        """Claim a file; False when somebody has, be it in this process."""
        with self._alone():
            if inode in self._wanted or not self._ask(inode):
                return False
            self._wanted.add(inode)
            self._held.add(inode)
            self._watch()
            return True

    def release(self, inode: int) -> None:
        with self._alone():
            self._wanted.discard(inode)
            if inode in self._held:
                self._held.discard(inode)
                with contextlib.suppress(psycopg.Error):
                    if self._session:
                        self._session.execute("SELECT pg_advisory_unlock(%s)", [inode])

    def close(self) -> None:
        self._closed.set()
        with self._alone():
            self._wanted.clear()
            self._held.clear()
            if self._session:
                self._session.close()
                self._session = None

    def _watch(self) -> None:
        if not self._watcher or not self._watcher.is_alive():  # a thread does not live on in a fork
            self._watcher = threading.Thread(target=self._keep, name="holdfast-claims", daemon=True)
            self._watcher.start()

    def _keep(self) -> None:
        """Look after the connection for as long as there is a claim: at once when something stirs on it."""
        whole = True
        while not self._closed.is_set():
            _wait_for(self._session if whole else None)
            with self._lock:
                if not self._wanted or self._closed.is_set():
                    self._watcher = None
                    return
                whole = self._retake()

    def _retake(self) -> bool:
        """See that the claims are held, and take anew what is not; False when some are not to be had."""
        with contextlib.suppress(psycopg.Error):
            if self._session:
                self._session.execute("SELECT 1")
        with contextlib.suppress(psycopg.Error, HoldfastError):
            session = self._connected()
            self._held |= {inode for inode in self._wanted - self._held if self._try(session, inode)}
        return self._held == self._wanted

    def _ask(self, inode: int) -> bool:
        try:
            return self._try(self._connected(), inode)
        except psycopg.Error:
            return self._try(self._reconnected(), inode)

    def _connected(self) -> Session:
        return self._session if self._session and not self._session.closed else self._reconnected()

    def _reconnected(self) -> Session:
        if self._session:
            self._session.close()
        self._session, self._process = self._database.connect(), os.getpid()
        self._held = {inode for inode in self._wanted if self._try(self._session, inode)}
        return self._session

    def _try(self, session: Session, inode: int) -> bool:
        row = session.execute("SELECT pg_try_advisory_lock(%s)", [inode]).fetchone()
        return bool(row and row[0])

    def _alone(self) -> threading.Lock:
        """Return the lock of this process; the claims of the one that it was forked from are left to that one."""
        if self._process and self._process != os.getpid():
            self._session, self._process, self._watcher = None, 0, None
            self._wanted, self._held, self._lock = set(), set(), threading.Lock()
        return self._lock


def _wait_for(session: Session | None) -> None:
    """Wait until the server says something unasked, which is most often its last word, or for a while."""
    with contextlib.suppress(OSError, ValueError, psycopg.Error):
        if session and not session.closed:
            select.select([session.pgconn.socket], [], [], _LOOK_SECONDS)
            return
    time.sleep(_PAUSE_SECONDS)
