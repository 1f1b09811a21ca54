"""Which files other programs changed (docs/decisions/022).

Every change of a file has the number of its transaction: triggers record files that were created, removed or replaced,
and the pieces of a log have it themselves. A poll asks for all that the snapshot of the last poll did not see, so
nothing is missed, whatever the order of commits. A follower also listens on a channel with a random name that only its
own tenant can read; the notification has no content.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from typing import TYPE_CHECKING, LiteralString, NamedTuple

import psycopg
from psycopg import sql

from holdfast.errors import HoldfastError
from holdfast.model.times import now_ms
from holdfast.storage.postgres.connections import Session
from holdfast.storage.postgres.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable

    Tell = Callable[[list[str], set[str]], None]

_POLL_SECONDS = 1.0
"""How long a change may go unnoticed whose transaction began before its writer knew of the listener."""
_PAUSE_SECONDS = 0.05
"""Busy writers notify a listener at most this often."""
_RENEW_SECONDS = 15
"""How often a listener renews its entry, which is valid for twice as long."""
_LONGEST_PAUSE = 5.0
_COMMITTED: LiteralString = """
SELECT pg_current_snapshot()::text, pg_postmaster_start_time()::text, array(
    SELECT path FROM holdfast.changes WHERE tenant = %(tenant)s AND xact >= %(first)s
      AND NOT pg_visible_in_snapshot(xact::text::xid8, %(snapshot)s::text::pg_snapshot)
), array(
    SELECT path FROM holdfast.files WHERE tenant = %(tenant)s AND inode = ANY(array(
        SELECT inode FROM holdfast.pieces WHERE tenant = %(tenant)s AND xact >= %(first)s
          AND NOT pg_visible_in_snapshot(xact::text::xid8, %(snapshot)s::text::pg_snapshot))))
"""
_LISTEN: LiteralString = """
INSERT INTO holdfast.listeners (tenant, channel, until)
VALUES (%(tenant)s, %(channel)s, clock_timestamp() + interval '30 s')
ON CONFLICT (tenant, channel) DO UPDATE SET until = excluded.until
"""
_PAUSE: LiteralString = (
    "UPDATE holdfast.listeners SET until = '-infinity' WHERE tenant = %(tenant)s AND channel = %(channel)s"
)
_LEAVE: LiteralString = """
DELETE FROM holdfast.listeners
WHERE tenant = %(tenant)s AND (channel = %(channel)s OR until < clock_timestamp() - interval '1 hour')
"""


class Moment(NamedTuple):
    """What was committed at the time of a poll, and on which server."""

    snapshot: str
    server: str

    @property
    def first(self) -> int:
        """The first transaction that may not have ended."""
        return int(self.snapshot.partition(":")[0])


class Changes:
    """Which files of a tenant changed since the last poll. Threads may share it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last = Moment("1:1:", "")
        self._lock = threading.Lock()

    def poll(self) -> list[str] | None:
        """Return the files that changed since the last poll; None the first time, or when that is unknown.

        After a failover it is unknown, since another server may number its transactions differently.
        """
        with self._lock:
            last = self._last
            first = last.first if last.server else (1 << 63) - 1
            row = self._database.ask("the changes", lambda tx: tx.row(_COMMITTED, first=first, snapshot=last.snapshot))
            assert row is not None  # a query without a table always has one row
            self._last = now = Moment(row[0], row[1])
            known = last.server == now.server and last.first <= now.first
            return list(dict.fromkeys([*row[2], *row[3]])) if known else None


class Watch:
    """Reports at each `look` what was committed before it."""

    alive = True

    def __init__(self, database: Database, folders: tuple[str, ...], tell: Tell) -> None:
        self._changes = Changes(database)
        self._below = tuple(f"{folder}/" for folder in folders)
        self._tell = tell
        self.told_ms = now_ms()
        self._changes.poll()

    def look(self) -> None:
        begin = now_ms()
        paths = self._changes.poll()
        if paths is None:
            self._tell([], {""})
        elif found := [path for path in paths if path.startswith(self._below)]:
            self._tell(found, set())
        self.told_ms = begin

    def stop(self) -> None:
        self.alive = False


class Follower:
    """Reports changes as they are committed, from a thread, until it is stopped; it reconnects when necessary.

    Without the right to write, as on a standby, it cannot register as a listener, and polls instead.
    """

    def __init__(self, database: Database, folders: tuple[str, ...], tell: Tell) -> None:
        self._database = database
        self._watch = Watch(database, folders, tell)
        self._channel = f"holdfast_{secrets.token_hex(16)}"
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-follow", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def told_ms(self) -> int:
        return self._watch.told_ms

    def look(self) -> None:
        self._watch.look()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(_LONGEST_PAUSE)

    def _run(self) -> None:
        pause = _PAUSE_SECONDS
        while not self._stopped.is_set():
            try:
                with self._database.connect() as session:
                    session.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                    pause = _PAUSE_SECONDS
                    self._follow(session)
            except (psycopg.Error, HoldfastError):
                self._stopped.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        with contextlib.suppress(psycopg.Error):
            self._register(_LEAVE)

    def _follow(self, session: Session) -> None:
        renew_at = 0.0
        while not self._stopped.is_set():
            if time.monotonic() > renew_at:
                renew_at = time.monotonic() + _RENEW_SECONDS
                self._register(_LISTEN)
            self._watch.look()  # after registering, so that nothing is missed in between
            if any(True for _ in session.notifies(timeout=_POLL_SECONDS, stop_after=1)):
                self._register(_PAUSE)
                renew_at = 0.0
                self._stopped.wait(_PAUSE_SECONDS)
                for _ in session.notifies(timeout=0):
                    pass  # one look covers them all

    def _register(self, statement: LiteralString) -> None:
        """Change the entry of this listener, where that is allowed."""
        with contextlib.suppress(HoldfastError):
            self._database.run(
                "the listeners", lambda tx: tx.change(statement, channel=self._channel), writes=True, durable=False
            )
