"""Appends that threads of one program ask for at the same time: one of them sends all of them in one message.

Who comes while nothing is under way goes ahead, and takes along whoever is waiting by then; the first of those who
came too late for that goes next. Each is composed by what this program itself left at the end of its log, behind the
lines of those before it. What cannot be added that way, since the log is not as we left it or others hold it, is added
alone by the thread that wants it: nobody waits here for a lock of another program.
"""

from __future__ import annotations

import itertools
import os
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from holdfast.errors import HoldfastError
from holdfast.postgres import _rows
from holdfast.postgres._ends import End, Lefts
from holdfast.postgres.sessions import Call
from holdfast.postgres.transactions import Database, milliseconds
from holdfast.vault import LogEnd

T = TypeVar("T")
_MOST = 64
_MOST_BYTES = 1 << 20
_WAIT_SECONDS = 0.05
"""How long all may wait for a log that somebody else holds."""
_ONE = b"SELECT holdfast.append_%02d($1, $2, $3, $4, $5, $6, $7, $8, $9)"
_ONE_BINARY = (0, 0, 0, 0, 1, 1, 0, 0, 0)
_MANY = b"SELECT holdfast.append_all_%02d($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
_MANY_BINARY = (0, *[1] * 10, 0)
_NUMBER, _BYTES, _TEXT, _UUID = 20, 17, 25, 2950
"""How the server calls what arrays are made of."""


class Lane(Generic[T]):
    """Work that threads ask for one at a time, and that one of them does for all who wait."""

    def __init__(self, work: Callable[[list[T]], None]) -> None:
        self._work = work
        self._queues: dict[int, _Queue[T]] = {}
        """For each process its own: whoever was under way when another was forked off is not in that one."""

    def do(self, one: T) -> None:
        """Return once the work for `one` is done, by this thread or by another."""
        process = os.getpid()
        queue = self._queues.get(process) or self._queues.setdefault(process, _Queue())
        place = _Place(one)
        with queue.lock:
            place.leads = not queue.busy
            queue.busy = True
            if not place.leads:
                queue.waiting.append(place)
        if not place.leads:
            place.awake.acquire()
        if place.leads:
            self._lead(queue, place)

    def _lead(self, queue: _Queue[T], place: _Place[T]) -> None:
        with queue.lock:
            others, queue.waiting = queue.waiting[:_MOST], queue.waiting[_MOST:]
        try:
            self._work([place.one, *(other.one for other in others)])
        finally:
            with queue.lock:
                following = queue.waiting.pop(0) if queue.waiting else None
                queue.busy = following is not None
            if following:
                following.leads = True
                following.awake.release()
            for other in others:
                other.awake.release()


class _Queue(Generic[T]):
    """Who waits in one process, and whether somebody is at work."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.busy = False
        self.waiting: list[_Place[T]] = []


class _Place(Generic[T]):
    """Where a thread waits until its work is done, or until it is the one to do it."""

    def __init__(self, one: T) -> None:
        self.one = one
        self.leads = False
        self.awake = threading.Lock()
        self.awake.acquire()


class Asked:
    """An append that may be composed again, and what became of it."""

    def __init__(self, path: str, compose: Callable[[LogEnd], bytes], author: _rows.Author) -> None:
        self.path = path
        self.compose = compose
        self.author = author
        self.name, self.writer = path.encode(), author.writer.encode()
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

    def compose(self, one: Asked) -> None:
        """Have lines composed for the end of this log, and take them in if they are whole lines that fit."""
        size = self.size
        try:
            data = one.compose(End(self._some, size, self._line_bytes, self._tail))
        except HoldfastError:
            return  # what it was told by may be out of date: it is asked again while the log is held
        except Exception as error:
            one.error = error
            return
        if is_plain(data):
            one.at, one.data = _rows.Left(self.left.inode, size, b""), data
            self.asked.append(one)
            self.more += data
            self._tail = data[data.rfind(b"\n", 0, -1) + 1 :]

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
        self._lanes = {durable: Lane(self._adding(durable)) for durable in (True, False)}

    def add(self, one: Asked, *, durable: bool) -> None:
        """Add lines with those of others; `one` says what became of it."""
        self._lanes[durable].do(one)
        if one.error:
            raise one.error

    def _adding(self, durable: bool) -> Callable[[list[Asked]], None]:
        return lambda asked: self._add(asked, durable)

    def _add(self, asked: list[Asked], durable: bool) -> None:
        logs: dict[str, _Log] = {}
        room = _MOST_BYTES
        for one in asked:
            log = logs.get(one.path)
            if log is None and (left := self._lefts.take(one.path)):
                log = logs[one.path] = _Log(self._database, one.path, left, self._line_bytes)
            if log and room > 0:
                log.compose(one)
                room -= len(one.data)
        wanted = [log for log in logs.values() if log.asked]
        if wanted:
            self._send(wanted, durable)

    def _send(self, logs: list[_Log], durable: bool) -> None:
        asked = [one for log in logs for one in log.asked]
        for one in asked:
            one.added = None
        try:
            answer = self._database.at_once(asked[0].path, self._call(logs, durable))
        except Exception as error:
            for one in asked:
                one.error = error
            return
        if answer is None:
            return
        for log, done in zip(logs, (answer or b"f" * len(logs)).decode(), strict=True):
            self._note(log, done == "t", meant=bool(answer))

    def _note(self, log: _Log, done: bool, *, meant: bool) -> None:
        path = log.asked[0].path
        for one in log.asked:
            one.added = done
        if done:
            self._lefts.note(path, log.left.inode, log.size, log.asked[-1].data)
        elif meant:
            self._lefts.failed(path)

    def _call(self, logs: list[_Log], durable: bool) -> Call:
        if len(logs) == 1 and len(logs[0].asked) == 1:
            one = logs[0].asked[0]
            return call(self._database, one.path, logs[0].left, one.data, one.author, _WAIT_SECONDS, durable=durable)
        base = self._database
        asked = [(number, one) for number, log in enumerate(logs, 1) for one in log.asked]
        values = (
            base.tenant.encode(),
            _array(_TEXT, [log.asked[0].name for log in logs]),
            _numbers(log.left.inode for log in logs),
            _numbers(log.left.size for log in logs),
            _numbers(log.size for log in logs),
            _numbers(itertools.accumulate(len(log.asked) for log in logs)),
            _numbers(number for number, _ in asked),
            _numbers(one.at.size for _, one in asked if one.at),
            _array(_BYTES, [one.data for _, one in asked]),
            _array(_UUID, [one.author.op.bytes for _, one in asked]),
            _array(_TEXT, [one.writer for _, one in asked]),
            base.asks(durable).encode(),
        )
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


def is_plain(data: bytes) -> bool:
    """Are these whole lines that are one piece?"""
    return data.endswith(b"\n") and len(data) <= _rows.PIECE


def _numbers(values: Iterable[int]) -> bytes:
    return _array(_NUMBER, [value.to_bytes(8, "big") for value in values])


def _array(kind: int, values: Sequence[bytes]) -> bytes:
    """Return values of one kind as the server takes an array."""
    head = struct.pack("!iiiii", 1, 0, kind, len(values), 1)
    return head + b"".join(part for value in values for part in (struct.pack("!i", len(value)), value))
