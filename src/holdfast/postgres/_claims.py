"""Saying that a log is in use, for as long as this process lives.

A claim is an advisory lock of a connection that does nothing else, so that the server drops it when the process or its
machine dies. When that connection is lost, the claims are taken anew as soon as somebody asks for one.
"""

from __future__ import annotations

import contextlib
import os
import threading

import psycopg

from holdfast.postgres.connecting import Session
from holdfast.postgres.transactions import Database


class Claims:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._session: Session | None = None
        self._process = 0
        self._held: set[int] = set()
        self._lock = threading.Lock()

    def take(self, inode: int) -> bool:
        """Claim a file; False when somebody has, be it in this process."""
        with self._lock:
            self._forget_parent()
            if inode in self._held or not self._ask(inode):
                return False
            self._held.add(inode)
            return True

    def release(self, inode: int) -> None:
        with self._lock:
            self._forget_parent()
            if inode in self._held:
                self._held.discard(inode)
                with contextlib.suppress(psycopg.Error):
                    if self._session:
                        self._session.execute("SELECT pg_advisory_unlock(%s)", [inode])

    def close(self) -> None:
        with self._lock:
            self._forget_parent()
            self._held.clear()
            if self._session:
                self._session.close()
                self._session = None

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
        self._held = {inode for inode in self._held if self._try(self._session, inode)}
        return self._session

    def _try(self, session: Session, inode: int) -> bool:
        row = session.execute("SELECT pg_try_advisory_lock(%s)", [inode]).fetchone()
        return bool(row and row[0])

    def _forget_parent(self) -> None:
        """Leave the claims of the process that this one was forked from to that one."""
        if self._session and self._process != os.getpid():
            self._session = None
            self._held.clear()
