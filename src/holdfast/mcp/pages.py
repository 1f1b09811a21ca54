"""The pages beside the protocol, for who watches over a server: is it alive, is it ready, what has it counted?

`/healthz` asks nobody. `/readyz` asks the store, for a bounded time, and tells why not in words that name no place.
Both tell nothing that needs a token. `/metrics` does, unless the request comes from this machine and through no proxy.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import Busy, Damaged, HoldfastError, Invalid
from holdfast.mcp.journal import Journal
from holdfast.mcp.metrics import TYPE, Metrics
from holdfast.storage.tree import RootGone

HEALTH, READY, METRICS = "/healthz", "/readyz", "/metrics"
_PATIENCE = 3.0
"""Seconds that a look at the store may take."""
_REMEMBERED = 0.5
"""Seconds for which its answer serves others too."""
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
_LOCAL = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


class Pages:
    """Answers what is not the protocol. `check` looks at the store and raises why it cannot be used."""

    def __init__(
        self, check: Callable[[], None], metrics: Metrics, journal: Journal, gauges: Callable[[], tuple[int, int]],
        *, open_metrics: bool = False,
    ) -> None:  # fmt: skip
        self._check = check
        self._metrics = metrics
        self._journal = journal
        self._gauges = gauges
        self._open = open_metrics
        self._limiter: anyio.CapacityLimiter | None = None
        self._lock: anyio.Lock | None = None
        self._said, self._when = "", -_PATIENCE

    def health(self) -> Response:
        return Response("ok\n", media_type="text/plain")

    async def ready(self) -> Response:
        """Say whether the store can be used."""
        reason = await self.reason()
        if reason:
            return Response(f"not ready: {reason}\n", 503, {"Retry-After": "1"}, media_type="text/plain")
        return Response("ready\n", media_type="text/plain")

    def needs_token(self, request: Request) -> bool:
        """Must somebody who asks for the metrics bear a token?"""
        near = request.client is not None and request.client.host in _LOCAL
        return not self._open and not (near and not any(name in request.headers for name in _FORWARDED))

    async def metrics(self) -> Response:
        up = not await self.reason()
        memories, behind = self._gauges()
        return Response(self._metrics.render(up=up, behind=behind, memories=memories), headers={"Content-Type": TYPE})

    async def reason(self) -> str:
        """Return why the store cannot be used, "" when it can; many who ask at once ask it once."""
        if self._lock is None or self._limiter is None:
            self._lock, self._limiter = anyio.Lock(), anyio.CapacityLimiter(2)
        async with self._lock:
            if time.monotonic() - self._when > _REMEMBERED:
                before = self._said
                self._said, why = await self._look(self._limiter)
                self._when = time.monotonic()
                if self._said != before:
                    self._journal.warn("store", state=self._said or "up again", reason=why)
            return self._said

    async def _look(self, limiter: anyio.CapacityLimiter) -> tuple[str, str]:
        said = ("the store does not answer in time", "")
        with anyio.move_on_after(_PATIENCE):
            said = await anyio.to_thread.run_sync(self._try, abandon_on_cancel=True, limiter=limiter)
        return said

    def _try(self) -> tuple[str, str]:
        """Return what to tell everybody, and the whole reason, which is for the log; both "" when nothing is wrong."""
        try:
            self._check()
        except HoldfastError as error:
            return told(error), str(error)
        return "", ""


def told(error: HoldfastError) -> str:
    """Say by its class what is wrong; its own words may name hosts and logins, which are for the log."""
    if isinstance(error, RootGone):
        return "the store does not answer"
    if isinstance(error, Busy):
        return "the store is busy"
    if isinstance(error, Damaged):
        return "the store is damaged"
    return "the server is not set up for this store" if isinstance(error, Invalid) else "the store cannot be used"
