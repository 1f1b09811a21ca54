"""What the lines of a log of tasks add up to: tasks, who works on each of them, and how that ended.

A task waits for others, is claimed by a worker for a time (a lease), and ends by a report. Every claim is an attempt
with an id of its own, which heartbeats and reports must carry: so nobody ends what another took over. A lease that ran
out needs no line: whoever looks sees it by the clock. The same lines give the same tasks in whatever order they come.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from holdfast.formats import jsonl
from holdfast.model.records import USUAL_PRIORITY, priority_of
from holdfast.model.times import parse_ms

Line = dict[str, Any]
CREATED, CLAIMED, HEARTBEAT, REPORTED, CANCELLED, RETRIED = EVENTS = (
    "created", "claimed", "heartbeat", "reported", "cancelled", "retried",
)  # fmt: skip
DONE, FAILED, RELEASED = ENDS = ("done", "failed", "released")
STATUSES = ("ready", "running", "waiting", "later", "blocked", DONE, FAILED, CANCELLED)
USUAL_LEASE, USUAL_ATTEMPTS, USUAL_PAUSE = 300.0, 3, 10.0
LONGEST_PAUSE = 3_600.0


class Attempt(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One time that a worker took a task."""

    id: str
    order: str = ""
    """The id of the line that claimed it; "" while only other lines of it are known."""
    number: int = 0
    worker: str = ""
    time: str = ""
    until: str = ""
    """When the lease ends."""
    beat: str = ""
    """The id of the newest line that set the lease."""
    progress: str = ""
    percent: float | None = None
    end: str = ""
    """The id of the line that ended it."""
    status: str = ""
    ended: str = ""
    result: Any = None
    error: str = ""


class Task(msgspec.Struct, kw_only=True, omit_defaults=True):
    id: str
    order: str = ""
    """The id of the line that created it; "" while only other lines of it are known."""
    title: str = ""
    instructions: str = ""
    name: str = ""
    graph: str = ""
    after: list[str] = []
    tags: list[str] = []
    priority: int = USUAL_PRIORITY
    lease: float = USUAL_LEASE
    most: int = USUAL_ATTEMPTS
    """How many attempts it gets."""
    pause: float = USUAL_PAUSE
    """Seconds before it is tried again after a failure; twice as many each time."""
    time: str = ""
    attempts: list[Attempt] = []
    cancelled: str = ""
    """The id of the line that cancelled it last."""
    why: str = ""
    retried: str = ""
    """The id of the line that gave it new attempts last."""

    @property
    def counting(self) -> list[Attempt]:
        """The attempts since it was created, or given new ones, oldest first."""
        return [attempt for attempt in self.attempts if attempt.order > self.retried]

    @property
    def last(self) -> Attempt | None:
        """The newest attempt, which alone can be reported."""
        counting = self.counting
        return counting[-1] if counting else None

    @property
    def spent(self) -> int:
        """How many attempts are used up; one that was given back is not."""
        return sum(attempt.status != RELEASED for attempt in self.counting)

    @property
    def done(self) -> Attempt | None:
        """The attempt that did it."""
        return next((attempt for attempt in self.attempts if attempt.status == DONE), None)

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled > self.retried

    @property
    def due(self) -> int | None:
        """From which millisecond on it may be claimed, once what it waits for is done; None when never again."""
        last = self.last
        if self.done or self.is_cancelled or not self.order:
            return None
        if last is None or last.status == RELEASED:
            return 0
        if self.spent >= self.most:
            return None
        return parse_ms(last.until) if not last.status else _resumed(self, last)

    def outcome(self, now: int) -> str:
        """Return `done`, `failed`, `cancelled`, `running`, or `open` when it is none of these."""
        if self.done:
            return DONE
        if self.is_cancelled:
            return CANCELLED
        last = self.last
        if last and not last.status and (parse_ms(last.until) or 0) > now:
            return "running"
        return FAILED if last and last.status != RELEASED and self.spent >= self.most else "open"


class Wanted(msgspec.Struct, frozen=True):
    """Which tasks a worker takes: of any of these tags, of this graph; all where nothing is said."""

    tags: tuple[str, ...] = ()
    graph: str = ""

    def fits(self, task: Task) -> bool:
        return self.graph in ("", task.graph) and (not self.tags or not set(self.tags).isdisjoint(task.tags))


class Outlook(msgspec.Struct, frozen=True):
    """What there is when nothing is ready."""

    running: int = 0
    later: int = 0
    waiting: int = 0
    """Those that wait for others, which may have failed."""
    next_ms: int | None = None
    """When the next lease or pause ends."""


class View(Protocol):
    """The tasks of one log, as somebody sees them who is about to change some."""

    now: int
    """Milliseconds, by the clock that leases go by."""

    def get(self, ids: Iterable[str]) -> dict[str, Task]:
        """Return the tasks of these ids that are there; nobody else changes them until the change is saved."""
        ...

    def best(self, wanted: Wanted) -> Task | None:
        """Return the task to claim: of those that are ready the most important, then the oldest."""
        ...

    def under(self, op_id: str) -> list[tuple[str, str, str]]:
        """Return what was done under an op_id: event, task and attempt of each line."""
        ...


def told(line: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return the event, the task and the attempt that a line speaks of; None for a line that is none of ours."""
    event, task, attempt = (line.get(name) for name in ("event", "task", "attempt"))
    if event not in EVENTS or not isinstance(task, str) or not task:
        return None
    about = attempt if isinstance(attempt, str) else ""
    return None if event in (CLAIMED, HEARTBEAT, REPORTED) and not about else (str(event), task, about)


def take_in(task: Task, line: Mapping[str, Any]) -> None:
    """Let a task be what one more line makes of it."""
    speaks = told(line)
    if speaks is None:
        return
    event, _, about = speaks
    _, order, time = jsonl.identity(line, "time")
    if event == CREATED:
        if not task.order or order < task.order:  # two lines of one task: the first holds
            _create(task, line, order, time)
    elif event == CANCELLED:
        if order > task.cancelled:
            task.cancelled, task.why = order, _text(line, "error")
    elif event == RETRIED:
        task.retried = max(task.retried, order)
    else:
        _work(task, about, event, line, order, time)


def _create(task: Task, line: Mapping[str, Any], order: str, time: str) -> None:
    task.order, task.time = order, time
    task.title, task.instructions, task.name, task.graph = (
        _text(line, name) for name in ("title", "instructions", "name", "graph")
    )
    task.after, task.tags = (_texts(line, name) for name in ("after", "tags"))
    task.priority = priority_of(line.get("priority"))
    task.lease = _number(line, "lease", USUAL_LEASE)
    task.most = max(1, int(_number(line, "attempts", USUAL_ATTEMPTS)))
    task.pause = _number(line, "pause", USUAL_PAUSE)


def _work(task: Task, about: str, event: str, line: Mapping[str, Any], order: str, time: str) -> None:
    known = next((attempt for attempt in task.attempts if attempt.id == about), None)
    attempt = copy.copy(known) if known else Attempt(id=about)  # a copy of the task that somebody has stays as it is
    if event == REPORTED and (not attempt.end or order < attempt.end):
        status = _text(line, "status")
        attempt.end, attempt.ended = order, time
        attempt.status = status if status in ENDS else FAILED
        attempt.result, attempt.error = line.get("result"), _text(line, "error")
    if event == CLAIMED:
        attempt.order, attempt.time, attempt.worker = order, time, _text(line, "worker")
        attempt.number = int(_number(line, "number", 1))
    if event != REPORTED and order > attempt.beat:
        percent = line.get("percent")
        attempt.beat, attempt.until, attempt.progress = order, _text(line, "until"), _text(line, "progress")
        attempt.percent = float(percent) if isinstance(percent, int | float) and percent is not True else None
    others = [one for one in task.attempts if one is not known]
    task.attempts = sorted([*others, attempt], key=lambda one: one.order)


def pause_before(task: Task) -> float:
    """Return how many seconds pass between a failure and the next attempt."""
    return min(task.pause * 2.0 ** min(task.spent - 1, 30), max(task.pause, LONGEST_PAUSE))


def _resumed(task: Task, last: Attempt) -> int:
    return (parse_ms(last.ended) or 0) + int(pause_before(task) * 1000)


def _text(line: Mapping[str, Any], name: str) -> str:
    value = line.get(name)
    return value if isinstance(value, str) else ""


def _texts(line: Mapping[str, Any], name: str) -> list[str]:
    value = line.get(name)
    return [*dict.fromkeys(one for one in value if isinstance(one, str))] if isinstance(value, list) else []


_LONGEST = 1e9
"""Seconds; a hand may write more than any clock can tell."""


def _number(line: Mapping[str, Any], name: str, usual: float) -> float:
    value = line.get(name)
    given = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return min(float(value), _LONGEST) if given and value is not None else float(usual)
