"""Monitoring of an HTTP server: the log, the counters, and the pages `/healthz`, `/readyz` and `/metrics`.

`/healthz` checks nothing. `/readyz` checks the store, for a bounded time, and names no host or path. Both need no
token. `/metrics` needs one, unless the request comes from this machine and not through a proxy.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
import os
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast import __version__
from holdfast.errors import Busy, Damaged, HoldfastError, Invalid, Unavailable
from holdfast.mcp.server import CALLER
from holdfast.model.times import utc_now
from holdfast.storage.tree import RootGone

HEALTH, READY, METRICS = "/healthz", "/readyz", "/metrics"
LogForm = Literal["text", "json", "none"]
_CHECK_SECONDS = 3.0
"""How long a check of the store may take."""
_CACHE_SECONDS = 0.5
"""How long its result is reused."""
_SPARE_DESCRIPTORS = 32
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
_LOCAL = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, math.inf)
_FAMILIES = (
    ("holdfast_tool_calls_total", "counter", "Calls of tools, by how they ended."),
    ("holdfast_tool_seconds", "histogram", "How long calls of tools took."),
    ("holdfast_errors_total", "counter", "Errors, by their class."),
    ("holdfast_http_answers_total", "counter", "Responses, by status."),
    ("holdfast_http_limited_total", "counter", "Requests refused for coming too fast."),
    ("holdfast_http_connections", "gauge", "Connections that are open."),
    ("holdfast_memories_open", "gauge", "Memories that are open."),
    ("holdfast_index_behind_files", "gauge", "Files that changed and are not indexed yet."),
    ("holdfast_store_up", "gauge", "Whether the store can be used."),
    ("process_resident_memory_bytes", "gauge", "Memory of this process."),
    ("process_start_time_seconds", "gauge", "When this process began."),
    ("holdfast_build_info", "gauge", "The running version."),
)
_PUBLIC: dict[type[HoldfastError], str] = {
    RootGone: "the store does not answer",
    Busy: "the store is busy",
    Damaged: "the store is damaged",
    Invalid: "the server is not set up for this store",
}


class Log:
    """One line on standard error for each call and each refusal, as JSON or text.

    A line names the caller, the tool and the outcome. It never has the text of a request or reply, or a token.
    """

    def __init__(self, form: LogForm = "none") -> None:
        self._form = form
        self._lock = threading.Lock()

    def warn(self, event: str, **given: str | float) -> None:
        self.info(event, level="warning", **given)

    def info(self, event: str, *, level: str = "info", **given: str | float) -> None:
        if self._form == "none":
            return
        fields = {name: value for name, value in given.items() if value != ""}
        if self._form == "json":
            line = msgspec.json.encode({"time": utc_now(), "level": level, "event": event, **fields}).decode()
        else:
            line = f"{utc_now()} {level:7} {event}"
            for name, text in zip(fields, map(str, fields.values()), strict=True):
                is_word = text.isprintable() and text and not set(text) & set(' "=')
                line += f" {name}={text if is_word else msgspec.json.encode(text).decode()}"
        with self._lock, contextlib.suppress(OSError, ValueError):  # standard error may be closed
            print(line, file=sys.stderr, flush=True)


class Metrics:
    """The counters of one process, as Prometheus text. No label has a tenant, a token, a record or a text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = round(time.time(), 3)
        self._samples: dict[str, Counter[str]] = {family: Counter() for family, _, _ in _FAMILIES}
        self._times: dict[str, list[int]] = {}
        """By tool, how many calls took at most as long as each bucket, and longer than the one before it."""
        self._add("holdfast_http_limited_total", 0)
        self._add("holdfast_build_info", version=__version__, python=sys.version.split()[0])
        self.connections: Callable[[], int] = lambda: 0
        """Returns how many connections are open."""

    def called(self, tool: str, outcome: str, seconds: float) -> None:
        """Count a tool call; the outcome is `ok` or the class of its error."""
        with self._lock:
            self._add("holdfast_tool_calls_total", tool=tool, outcome="ok" if outcome == "ok" else "error")
            self._times.setdefault(tool, [0] * len(_BUCKETS))[bisect.bisect_left(_BUCKETS, seconds)] += 1
            self._add("holdfast_tool_seconds", seconds, "_sum", tool=tool)
            self._add("holdfast_tool_seconds", 1, "_count", tool=tool)
            if outcome != "ok":
                self._add("holdfast_errors_total", kind=outcome)

    def responded(self, status: int) -> None:
        with self._lock:
            self._add("holdfast_http_answers_total", status=str(status))
            self._add("holdfast_http_limited_total", int(status == 429))

    def render(self, *, up: bool, behind: int, memories: int) -> str:
        resident = 0  # if the system does not report it
        with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        now: dict[str, float] = {
            "holdfast_http_connections": self.connections(),
            "holdfast_memories_open": memories,
            "holdfast_index_behind_files": behind,
            "holdfast_store_up": int(up),
            "process_resident_memory_bytes": resident,
            "process_start_time_seconds": self._started,
        }
        lines = []
        with self._lock:
            for family, kind, about in _FAMILIES:
                lines += [f"# HELP {family} {about}", f"# TYPE {family} {kind}"]
                for tool, counts in self._times.items() if kind == "histogram" else ():
                    for bucket, count in zip(_BUCKETS, itertools.accumulate(counts), strict=True):
                        shown = "+Inf" if bucket == math.inf else f"{bucket:g}"
                        lines.append(f"{_sample(f'{family}_bucket', tool=tool, le=shown)} {count}")
                samples: dict[str, Any] = {family: now[family]} if family in now else self._samples[family]
                lines += [f"{sample} {round(value, 6)}" for sample, value in samples.items()]
        return "\n".join(lines) + "\n"

    def _add(self, family: str, number: float = 1, end: str = "", **labels: str) -> None:
        self._samples[family][_sample(family + end, **labels)] += number  # type: ignore[assignment]


def _sample(name: str, **labels: str) -> str:
    shown = ",".join(f"{label}={msgspec.json.encode(value).decode()}" for label, value in labels.items())
    return f"{name}{{{shown}}}" if shown else name


class Health:
    """The pages, the log and the counters of one server. `check` raises if the store cannot be used."""

    def __init__(
        self, check: Callable[[], None], gauges: Callable[[], tuple[int, int]], log: Log, *, open_metrics: bool
    ) -> None:
        self.log = log
        self.metrics = Metrics()
        self._check = check
        self._gauges = gauges
        self._open_metrics = open_metrics
        self._limiter, self._lock = anyio.CapacityLimiter(2), anyio.Lock()
        self._problem, self._when = "", -_CHECK_SECONDS

    def called(self, tool: str, outcome: str, seconds: float) -> None:
        self.metrics.called(tool, outcome, seconds)
        write = self.log.info if outcome == "ok" else self.log.warn
        write("call", tool=tool, outcome=outcome, ms=round(seconds * 1000, 1), **_caller_fields())

    def hidden(self, error: HoldfastError) -> HoldfastError:
        """Log an error of the store, and return one without its text, which may name hosts and logins."""
        text = _public_text(error)
        self.log.warn("failed", state=text, reason=str(error), **_caller_fields())
        kind = Busy if isinstance(error, Busy) else Unavailable
        return kind(
            f"{text[0].upper()}{text[1:]}.",
            "Check whether the call had an effect before you try again. The log has the reason.",
        )

    async def ready_page(self) -> Response:
        if problem := await self.problem():
            return Response(f"not ready: {problem}\n", 503, {"Retry-After": "1"}, media_type="text/plain")
        return Response("ready\n", media_type="text/plain")

    async def metrics_page(self) -> Response:
        up = not await self.problem()
        memories, behind = self._gauges()
        text = self.metrics.render(up=up, behind=behind, memories=memories)
        return Response(text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    def needs_token(self, request: Request) -> bool:
        """Return whether a request for the metrics must have a token."""
        local = request.client is not None and request.client.host in _LOCAL
        return not self._open_metrics and not (local and not any(name in request.headers for name in _FORWARDED))

    async def first_check(self) -> None:
        if not await self.problem():
            self.log.info("store", state="up")

    async def problem(self) -> str:
        """Return why the store cannot be used, "" if it can. Concurrent requests share one check."""

        def attempt() -> tuple[str, str]:
            """Return the public problem and, for the log, its details."""
            left = 0
            with contextlib.suppress(OSError):  # not even the folder can be opened
                left = resource.getrlimit(resource.RLIMIT_NOFILE)[0] % (1 << 63) - len(os.listdir("/dev/fd"))
            if left < _SPARE_DESCRIPTORS:
                return "few file descriptors are left", "Raise the limit: ulimit -n"
            try:
                self._check()
            except HoldfastError as error:
                return _public_text(error), str(error)
            return "", ""

        async with self._lock:
            if time.monotonic() - self._when > _CACHE_SECONDS:
                before, details = self._problem, ""
                self._problem = "the store does not answer in time"
                with anyio.move_on_after(_CHECK_SECONDS):
                    self._problem, details = await anyio.to_thread.run_sync(
                        attempt, abandon_on_cancel=True, limiter=self._limiter
                    )
                self._when = time.monotonic()
                if self._problem != before:
                    self.log.warn("store", state=self._problem or "up again", reason=details)
            return self._problem


def _public_text(error: HoldfastError) -> str:
    """Describe an error by its class: its own text may name hosts and logins, and is for the log."""
    return next((text for kind, text in _PUBLIC.items() if isinstance(error, kind)), "the store cannot be used")


def _caller_fields() -> dict[str, str]:
    caller = CALLER.get()
    return {"request": caller.request, "tenant": caller.tenant, "token": caller.token} if caller else {}
