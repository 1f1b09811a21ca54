"""Noticing what others commit (docs/decisions/022).

Every change of a file bears the number of its transaction: triggers note files that came, went or were replaced, and a
log's pieces have it themselves. Who remembers the snapshot of his last look asks for what that snapshot did not see:
nothing is missed, whatever the order in which transactions ended. Who wants to be woken listens on a channel with a
random name, which only his own tenant can read; the message itself says nothing.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from typing import TYPE_CHECKING, LiteralString

import msgspec
import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from holdfast.errors import HoldfastError
from holdfast.model.times import now_ms
from holdfast.storage.postgres.sessions import Session
from holdfast.storage.postgres.transactions import Database, Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    Tell = Callable[[list[str], set[str]], None]

_LOOK_SECONDS = 1.0
"""How long a change may go unnoticed that was under way when its listener began to listen."""
_PAUSE_SECONDS = 0.05
"""While writers are busy, they need not wake a listener more often than this."""
_HEARD_SECONDS = 15
"""How often a listener says that it is still there, which holds for twice as long."""
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
_REST: LiteralString = (
    "UPDATE holdfast.listeners SET until = '-infinity' WHERE tenant = %(tenant)s AND channel = %(channel)s"
)
_LEAVE: LiteralString = """
DELETE FROM holdfast.listeners
WHERE tenant = %(tenant)s AND (channel = %(channel)s OR until < clock_timestamp() - interval '1 hour')
"""


class Moment(msgspec.Struct, frozen=True):
    """What was committed when somebody looked, and on which server."""

    snapshot: str
    server: str

    @property
    def first(self) -> int:
        """The number of the first transaction that may not have been over."""
        return int(self.snapshot.partition(":")[0])


class Changes:
    """Which files of a tenant changed since the last look. Threads may share it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last: Moment | None = None
        self._lock = threading.Lock()

    def look(self) -> list[str] | None:
        """Return what was committed since the last look; None the first time, or when that cannot be told.

        Another server may count its transactions in another way, so all that one has is new.
        """
        with self._lock:
            last = self._last or Moment("1:1:", "")
            row = self._database.ask("the changes", lambda turn: _committed(turn, last))
            assert row is not None  # a question without a table always has an answer
            now, paths = Moment(row[0], row[1]), list(dict.fromkeys([*row[2], *row[3]]))
            known = last.server == now.server and last.first <= now.first
            self._last = now
            return paths if known else None


def _committed(turn: Turn, last: Moment) -> TupleRow | None:
    first = last.first if last.server else (1 << 63) - 1
    return turn.row(_COMMITTED, first=first, snapshot=last.snapshot)


class Watch:
    """Tells at each look what was committed before it: an answer that follows holds for that moment."""

    alive = True

    def __init__(self, database: Database, folders: tuple[str, ...], tell: Tell) -> None:
        self._changes = Changes(database)
        self._below = tuple(f"{folder}/" for folder in folders)
        self._tell = tell
        self.told_ms = now_ms()
        self._changes.look()

    def look(self) -> None:
        begin = now_ms()
        paths = self._changes.look()
        if paths is None:
            self._tell([], {""})
        elif found := [path for path in paths if path.startswith(self._below)]:
            self._tell(found, set())
        self.told_ms = begin

    def stop(self) -> None:
        self.alive = False


class Follower:
    """Tells of changes as they come, from a thread, until it is stopped; a lost connection is made anew.

    Where nothing may be written, as with a login that only reads or on a standby, nobody can be asked to wake us: then
    we look once in a while.
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
        with contextlib.suppress(psycopg.Error, HoldfastError):
            self._note(_LEAVE)

    def _follow(self, session: Session) -> None:
        heard_until = 0.0
        while not self._stopped.is_set():
            if time.monotonic() > heard_until:
                heard_until = time.monotonic() + _HEARD_SECONDS
                self._note(_LISTEN)
            self._watch.look()  # also for what came before anybody knew that we listen
            if any(True for _ in session.notifies(timeout=_LOOK_SECONDS, stop_after=1)):
                self._note(_REST)
                heard_until = 0.0
                self._stopped.wait(_PAUSE_SECONDS)
                for _ in session.notifies(timeout=0):
                    pass  # all of them mean the look that follows

    def _note(self, statement: LiteralString) -> None:
        """Say that we listen, or do not; without the right to, or on a standby, looking has to do."""

        def work(turn: Turn) -> None:
            turn.change(statement, channel=self._channel)

        with contextlib.suppress(HoldfastError):
            self._database.run("the listeners", work, writes=True, durable=False)
