"""What one client of the HTTP door may take from the others: requests per second, patience, connections.

A client that sends its request slowly is cut off, and when there are more connections than may be open at once, those
go first that never finished a request. So a stranger without a token cannot keep out who has one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
from starlette.types import Message, Receive
from uvicorn.protocols.http.h11_impl import H11Protocol

_TAKEN = 4


@dataclass(frozen=True)
class Limits:
    requests: float = 200.0
    """Requests per second that a token may make, in the long run."""
    strangers: float = 20.0
    """Requests per second without a token that are answered at all; beyond that, none is looked at."""
    burst: float = 10.0
    """So many seconds' worth may come at once."""
    head_seconds: float = 10.0
    """How long a client may take to send the head of a request."""
    body_seconds: float = 30.0
    """How long it may take to send the body."""
    connections: int = 256
    """How many may be open at once."""


class Bucket:
    """Requests that may be made now: it fills by the second, up to a burst."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._most = rate, rate * burst
        self._left, self._seen = self._most, time.monotonic()

    def take(self) -> bool:
        """May one more request be made?"""
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._seen) * self._rate)
        self._seen = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


async def body(receive: Receive, seconds: float, most: int) -> list[Message] | int:
    """Return the messages that a request's body came in, or the status that refuses it: too slow, or too large.

    Of one that is too large nothing is kept, but some of the rest is taken: who is cut off meanwhile sees no answer.
    """
    messages: list[Message] = []
    size, more = 0, True
    try:
        with anyio.fail_after(seconds):
            while more and size <= _TAKEN * most:
                message = await receive()
                size += len(message.get("body", b""))
                more = message.get("more_body", False)
                messages.append(message) if size <= most else messages.clear()
    except TimeoutError:
        return 408
    return 413 if size > most else messages


def replay(messages: list[Message], receive: Receive) -> Receive:
    """Return a way to receive once more what came already, and then what comes."""
    left = deque(messages)

    async def take() -> Message:
        return left.popleft() if left else await receive()

    return take


class Patience(H11Protocol):
    """One connection: the head of each request must come in time, and there is room for so many of them only."""

    limits = Limits()
    count: Callable[[int], None] = staticmethod(lambda _change: None)
    """Is told when a connection comes, and when it goes."""
    since = 0.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.count(1)
        self.since = self.loop.time()
        self._wait()
        if len(self.connections) > self.limits.connections:
            _drop_one([each for each in self.connections if isinstance(each, Patience) and each is not self], self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.busy:
            self._stop()
        elif self._timer is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self.count(-1)
        super().connection_lost(exc)

    @property
    def busy(self) -> bool:
        """Is a request being answered?"""
        return self.cycle is not None and not self.cycle.response_complete

    def drop(self) -> None:
        self._stop()
        self.transport.abort()

    def _wait(self) -> None:
        self._timer = self.loop.call_later(self.limits.head_seconds, self.drop)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _drop_one(others: list[Patience], newest: Patience) -> None:
    """Make room: a connection that never finished a request goes first, then one that is idle, then the newest."""
    idle = [each for each in others if not each.busy]
    strange = [each for each in idle if each.cycle is None]
    for group in (strange, idle):
        if group:
            min(group, key=lambda each: each.since).drop()
            return
    newest.drop()
