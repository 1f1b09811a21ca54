"""Appends that threads of one program ask for at the same time: those to one log go in one message.

Who comes while nothing is under way for a log goes ahead, and takes along whoever is waiting by then; the first of
those who came too late for that goes next. Each is composed by what this program itself left at the end of the log,
behind the lines of those before it. What cannot be added that way, since the log is not as we left it or others hold
it, is added alone by the thread that wants it. Threads that write to different logs do not wait for each other.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from holdfast.errors import HoldfastError
from holdfast.storage.postgres import _rows
from holdfast.storage.postgres._ends import End, Lefts
from holdfast.storage.postgres.sessions import Call
from holdfast.storage.postgres.transactions import AT_ONCE_SECONDS, Database, milliseconds
from holdfast.storage.tree import LogEnd

T = TypeVar("T")
_MOST = 64
_MOST_BYTES = 1 << 20
_ONE = b"SELECT holdfast.append_%02d($1, $2, $3, $4, $5, $6, $7, $8, $9)"
_ONE_BINARY = (0, 0, 0, 0, 1, 1, 0, 0, 0)
_MANY = b"SELECT holdfast.append_all_%02d($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
_MANY_BINARY = (0, 0, 0, 0, 1, 1, 1, 1, 0, 0)
_NUMBER, _BYTES, _TEXT, _UUID = 20, 17, 25, 2950
"""How the server calls what arrays are made of."""


class Lanes(Generic[T]):
    """Work on things by name that threads ask for one at a time, and that one of them does for all who wait for it."""

    def __init__(self, work: Callable[[list[T]], None]) -> None:
        self._work = work
        self._homes: dict[int, _Home[T]] = {}
        """For each process its own: whoever was under way when another was forked off is not in that one."""

    def do(self, name: str, one: T, seconds: float) -> None:
        """Return once the work for `one` is done, by this thread or by another, or was not begun for so long."""
        process = os.getpid()
        home = self._homes.get(process) or self._homes.setdefault(process, _Home())
        place = _Place(one)
        others: list[_Place[T]] = []
        try:
            if not self._enter(home, name, place) and not place.awake.acquire(timeout=seconds):
                if self._leave(home, name, place):
                    return
                place.awake.acquire()  # somebody is at work on it by now
            if place.leads:
                others = self._all_waiting(home, name)
                self._work([place.one, *(other.one for other in others)])
        finally:
            self._leave(home, name, place)
            if place.leads:  # whoever is interrupted must not be the one whom the others wait for
                self._pass_on(home, name)
            for other in others:
                other.awake.release()

    def _enter(self, home: _Home[T], name: str, place: _Place[T]) -> bool:
        """Go ahead if nobody is at work on this, else wait with the others."""
        with home.lock:
            waiting = home.waiting.get(name)
            if waiting is None:
                place.leads = True
                home.waiting[name] = []
            else:
                waiting.append(place)
            return place.leads

    def _leave(self, home: _Home[T], name: str, place: _Place[T]) -> bool:
        """Wait no longer; False when this place is not among those who wait."""
        with home.lock:
            waiting = home.waiting.get(name, [])
            there = place in waiting
            if there:
                waiting.remove(place)
            return there

    def _all_waiting(self, home: _Home[T], name: str) -> list[_Place[T]]:
        with home.lock:
            waiting = home.waiting[name]
            home.waiting[name] = waiting[_MOST:]
            return waiting[:_MOST]

    def _pass_on(self, home: _Home[T], name: str) -> None:
        """Let the first of those who wait go ahead."""
        with home.lock:
            if waiting := home.waiting.get(name):
                following = waiting.pop(0)
                following.leads = True
                following.awake.release()
            else:
                home.waiting.pop(name, None)

    def count(self, name: str) -> int:
        """Return how many wait for somebody else to be done with this."""
        home = self._homes.get(os.getpid())
        return len(home.waiting.get(name, ())) if home else 0


class _Home(Generic[T]):
    """Who waits in one process, for what; nobody is at work on what is not named."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: dict[str, list[_Place[T]]] = {}


class _Place(Generic[T]):
    """Where a thread waits until its work is done, or until it is the one to do it."""

    def __init__(self, one: T) -> None:
        self.one = one
        self.leads = False
        self.awake = threading.Lock()
        self.awake.acquire()


class Asked:
    """An append that may be composed again, and what became of it."""

    def __init__(self, path: str, compose: Callable[[LogEnd], bytes], author: _rows.Author, durable: bool) -> None:
        self.path = path
        self.compose = compose
        self.author = author
        self.durable = durable
        self.writer = author.writer.encode()
        self.data = b""
        self.at: _rows.Left | None = None
        """How the log was that the lines were composed for."""
        self.added: bool | None = False
        """None when nobody heard how it ended."""
        self.error: Exception | None = None


class _Log:
    """A log as it will be, with the lines that are about to be added to it."""

    def __init__(self, database: Database, path: str, left: _rows.Left, line_bytes: int) -> None:
        self.left = left
        self.asked: list[Asked] = []
        self.more = b""
        self._tail = left.tail
        self._line_bytes = line_bytes
        self._read = _rows.reader(database, path, left)

    @property
    def size(self) -> int:
        return self.left.size + len(self.more)

    def compose(self, one: Asked) -> bool:
        """Have lines composed for the end of this log, and take them in if they are whole lines that fit.

        False when that was refused: what it was told by may be out of date, or out of reach. It is asked again while
        the log is held.
        """
        size = self.size
        try:
            data = one.compose(End(self._some, size, self._line_bytes, self._tail))
            fits = is_plain(data)
        except HoldfastError:
            return False
        except Exception as error:
            one.error = error
            return True
        if fits:
            one.at, one.data = _rows.Left(self.left.inode, size, b""), data
            self.asked.append(one)
            self.more += data
            self._tail = data[data.rfind(b"\n", 0, -1) + 1 :]
        return True

    def _some(self, count: int, position: int) -> bytes:
        """Return bytes of the log, of which the last ones are not there yet."""
        there = self.left.size
        begin = self._read(min(count, there - position), position) if position < there else b""
        return begin + self.more[max(0, position - there) : max(0, position + count - there)]


class Together:
    """What adds lines to logs of one tenant for the threads of this program."""

    def __init__(self, database: Database, lefts: Lefts, line_bytes: int) -> None:
        self._database = database
        self._lefts = lefts
        self._line_bytes = line_bytes
        self._lanes = Lanes(self._add)

    def add(self, one: Asked) -> None:
        """Add lines with those of others to the same log; `one` says what became of it."""
        self._lanes.do(_lane(one.path, one.durable), one, self._database.waits.lock_seconds)
        if one.error:
            raise one.error

    def waiting(self, path: str, *, durable: bool = True) -> int:
        return self._lanes.count(_lane(path, durable))

    def _add(self, asked: list[Asked]) -> None:
        path = asked[0].path
        left = self._lefts.take(path)
        if not left:
            return
        log = _Log(self._database, path, left, self._line_bytes)
        for one in asked:
            if len(log.more) >= _MOST_BYTES or not log.compose(one):
                break  # the others go alone: each may have to wait as long
        if log.asked:
            self._send(path, log)

    def _send(self, path: str, log: _Log) -> None:
        for one in log.asked:
            one.added = None
        try:
            answer = self._database.at_once(path, self._call(path, log))
        except Exception as error:
            for one in log.asked:
                one.error = error
            return
        if answer is None:
            return
        for one in log.asked:
            one.added = answer == b"t"
        if answer == b"t":
            self._lefts.note(path, log.left.inode, log.size, log.asked[-1].data)
        elif answer:
            self._lefts.failed(path)

    def _call(self, path: str, log: _Log) -> Call:
        durable = log.asked[0].durable
        if len(log.asked) == 1:
            one = log.asked[0]
            return call(self._database, path, log.left, one.data, one.author, AT_ONCE_SECONDS, durable=durable)
        base = self._database
        values = (
            base.tenant.encode(), path.encode(), b"%d" % log.left.inode, b"%d" % log.left.size,
            _numbers(one.at.size for one in log.asked if one.at), _array(_BYTES, [one.data for one in log.asked]),
            _array(_UUID, [one.author.op.bytes for one in log.asked]), _array(_TEXT, [one.writer for one in log.asked]),
            milliseconds(AT_ONCE_SECONDS).encode(), base.asks(durable).encode(),
        )  # fmt: skip
        return Call(_MANY % base.part, values, _MANY_BINARY)


def call(
    base: Database, path: str, left: _rows.Left | _rows.Found, data: bytes, author: _rows.Author,
    seconds: float, *, durable: bool,
) -> Call:  # fmt: skip
    """Return what adds lines to one log if it is as it was left."""
    values = (
        base.tenant.encode(), path.encode(), b"%d" % left.inode, b"%d" % left.size, data, author.op.bytes,
        author.writer.encode(), milliseconds(seconds).encode(), base.asks(durable).encode(),
    )  # fmt: skip
    return Call(_ONE % base.part, values, _ONE_BINARY)


def _lane(path: str, durable: bool) -> str:
    """Return with whom an append goes: nobody waits for a disk or a standby that he did not ask for."""
    return f"{durable} {path}"


def is_plain(data: bytes) -> bool:
    """Are these whole lines that are one piece?"""
    return data.endswith(b"\n") and len(data) <= _rows.PIECE


def _numbers(values: Iterable[int]) -> bytes:
    return _array(_NUMBER, [value.to_bytes(8, "big") for value in values])


def _array(kind: int, values: Sequence[bytes]) -> bytes:
    """Return values of one kind as the server takes an array."""
    head = struct.pack("!iiiii", 1, 0, kind, len(values), 1)
    return head + b"".join(part for value in values for part in (struct.pack("!i", len(value)), value))
