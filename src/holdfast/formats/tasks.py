"""Tasks, computed from the entries of a task log in any order.

A task waits for others, is claimed by a worker for a time (a lease), and ends by a report. Each claim is an attempt
with its own id, which heartbeats and reports must name, so no worker can end what another took over. An expired lease
needs no entry: it is seen by the clock. `Graph` has all tasks of a log and keeps those that can be claimed, now or
later, in the order of claims, so that finding the best one is cheap however many there are.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import graphlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import Invalid, OverBudget
from holdfast.formats import jsonl
from holdfast.model.names import check_text, close_to
from holdfast.model.records import PRIORITIES, USUAL_PRIORITY, priority_of
from holdfast.model.times import parse_ms

CREATED, CLAIMED, HEARTBEAT, REPORTED, CANCELLED, RETRIED = EVENTS = (
    "created", "claimed", "heartbeat", "reported", "cancelled", "retried",
)  # fmt: skip
DONE, FAILED, RELEASED = ENDS = ("done", "failed", "released")
STATUSES = ("ready", "running", "waiting", "later", "blocked", DONE, FAILED, CANCELLED)
USUAL_LEASE, USUAL_ATTEMPTS, USUAL_PAUSE = 300.0, 3, 10.0
MOST_TASKS, MOST_TITLE, MOST_INSTRUCTIONS, MOST_TAGS, MOST_AFTER = 1_000, 200, 100_000, 20, 1_000
LEASES, PAUSES, ATTEMPTS = (1.0, 7 * 86_400.0), (0.0, 86_400.0), (1, 100)
_LONGEST_PAUSE = 3_600.0
_LONGEST = 1e9
"""Seconds; entries that were edited by hand may have numbers beyond any clock."""


class New(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A task to create."""

    title: str
    name: str = ""
    """The name that other tasks of the same call use in `after`."""
    instructions: str = ""
    after: list[str] = []
    tags: list[str] = []
    priority: int = USUAL_PRIORITY
    lease: float = USUAL_LEASE
    attempts: int = USUAL_ATTEMPTS
    pause: float = USUAL_PAUSE


class Attempt(msgspec.Struct, kw_only=True):
    """One claim of a task by a worker."""

    id: str
    order: str = ""
    """The id of the entry that claimed it; empty while only other entries of it are known."""
    number: int = 0
    worker: str = ""
    time: str = ""
    until: str = ""
    """When the lease ends."""
    beat: str = ""
    """The id of the newest entry that set the lease."""
    progress: str = ""
    percent: float | None = None
    end: str = ""
    """The id of the entry that ended it."""
    status: str = ""
    ended: str = ""
    result: Any = None
    error: str = ""

    def add(self, event: str, entry: Mapping[str, Any], order: str, time: str) -> None:
        """Apply one more entry."""
        if event == REPORTED:
            if not self.end or order < self.end:
                self.end, self.ended, self.result = order, time, entry.get("result")
                self.status, self.error = _text(entry, "status"), _text(entry, "error")
                self.status = self.status if self.status in ENDS else FAILED
            return
        if event == CLAIMED:
            self.order, self.time, self.worker = order, time, _text(entry, "worker")
            self.number = int(_number(entry, "number", 1))
        if order > self.beat:
            percent = entry.get("percent")
            self.beat, self.until, self.progress = order, _text(entry, "until"), _text(entry, "progress")
            self.percent = float(percent) if isinstance(percent, int | float) and percent is not True else None


class Task(msgspec.Struct, kw_only=True):
    id: str
    order: str = ""
    """The id of the entry that created it; empty while only other entries of it are known."""
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
    """The id of the newest entry that cancelled it."""
    why: str = ""
    retried: str = ""
    """The id of the newest entry that gave it new attempts."""

    @property
    def counting(self) -> list[Attempt]:
        """The attempts since it was created or retried, oldest first."""
        return [attempt for attempt in self.attempts if attempt.order > self.retried]

    @property
    def last(self) -> Attempt | None:
        """The newest attempt, the only one that can be reported."""
        return next(reversed(self.counting), None)

    @property
    def spent(self) -> int:
        """How many attempts are used up; released ones are not."""
        return sum(attempt.status != RELEASED for attempt in self.counting)

    @property
    def done(self) -> Attempt | None:
        """The attempt that completed it."""
        return next((attempt for attempt in self.attempts if attempt.status == DONE), None)

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled > self.retried

    @property
    def rank(self) -> tuple[int, str, str]:
        """Its place in the order of claims: the most important first, then the oldest."""
        return -self.priority, self.order, self.id

    @property
    def due(self) -> int | None:
        """The millisecond from which it may be claimed, once the tasks it waits for are done; None for never."""
        last = self.last
        if self.done or self.is_cancelled or not self.order:
            return None
        if last is None or last.status == RELEASED:
            return 0
        if self.spent >= self.most:
            return None
        if not last.status:
            return parse_ms(last.until)
        pause = min(self.pause * 2.0 ** min(self.spent - 1, 30), max(self.pause, _LONGEST_PAUSE))
        return (parse_ms(last.ended) or 0) + int(pause * 1000)

    def outcome(self, now: int) -> str:
        """Return `done`, `failed`, `cancelled`, `running`, or else `open`."""
        if self.done:
            return DONE
        if self.is_cancelled:
            return CANCELLED
        last = self.last
        if last and not last.status and (parse_ms(last.until) or 0) > now:
            return "running"
        return FAILED if last and last.status != RELEASED and self.spent >= self.most else "open"

    def add(self, event: str, about: str, entry: Mapping[str, Any]) -> None:
        """Apply one more entry; `about` is the attempt that it names."""
        _, order, time = jsonl.identity(entry, "time")
        if event == CREATED:
            if not self.order or order < self.order:  # of two entries that create it, the first counts
                self.order, self.time = order, time
                for name in ("title", "instructions", "name", "graph"):
                    setattr(self, name, _text(entry, name))
                for name in ("after", "tags"):
                    given = entry.get(name) if isinstance(entry.get(name), list) else []
                    setattr(self, name, [*dict.fromkeys(one for one in given or () if isinstance(one, str))])
                self.priority = priority_of(entry.get("priority"))
                self.lease = _number(entry, "lease", USUAL_LEASE)
                self.most = max(1, int(_number(entry, "attempts", USUAL_ATTEMPTS)))
                self.pause = _number(entry, "pause", USUAL_PAUSE)
        elif event == CANCELLED:
            if order > self.cancelled:
                self.cancelled, self.why = order, _text(entry, "error")
        elif event == RETRIED:
            self.retried = max(self.retried, order)
        else:
            known = next((attempt for attempt in self.attempts if attempt.id == about), None)
            attempt = copy.copy(known) if known else Attempt(id=about)  # copies of the task share their attempts
            attempt.add(event, entry, order, time)
            others = [one for one in self.attempts if one is not known]
            self.attempts = sorted([*others, attempt], key=lambda one: one.order)


class TaskFilter(msgspec.Struct, frozen=True):
    """Which tasks a worker takes: of any of these tags, of this graph; all where nothing is given."""

    tags: tuple[str, ...] = ()
    graph: str = ""

    def fits(self, task: Task) -> bool:
        return self.graph in ("", task.graph) and (not self.tags or not set(self.tags).isdisjoint(task.tags))


class Outlook(msgspec.Struct, frozen=True):
    """How many tasks there are when none is ready."""

    running: int = 0
    later: int = 0
    waiting: int = 0
    """Those that wait for others, which may have failed."""
    next_ms: int | None = None
    """When the next lease or pause ends."""


class Standing(msgspec.Struct, frozen=True):
    """The status of a task at one moment, and the tasks that block it for good."""

    status: str
    by: tuple[str, ...] = ()


class Graph:
    """All tasks of one log."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.ops: dict[str, list[tuple[str, str, str]]] = {}
        """The event, task and attempt of each entry that was added under an op_id."""
        self.waiting: dict[str, int] = {}
        """How many tasks each task still waits for."""
        self._dependants: dict[str, dict[str, None]] = {}
        self._open: list[tuple[int, str, str]] = []
        """The tasks that wait for no other and can be claimed, now or later, by rank."""

    def add(self, entry: Mapping[str, Any]) -> None:
        event, identifier, attempt = (_text(entry, name) for name in ("event", "task", "attempt"))
        if event not in EVENTS or not identifier or (event in (CLAIMED, HEARTBEAT, REPORTED) and not attempt):
            return
        if op := _text(entry, "op"):
            self.ops.setdefault(op, []).append((event, identifier, attempt))
        task = self.tasks.setdefault(identifier, Task(id=identifier))
        before, was_done = task.order, task.done
        place = bisect.bisect_left(self._open, task.rank)
        if self._open[place : place + 1] == [task.rank]:
            del self._open[place]
        task.add(event, attempt, entry)
        if task.order != before:
            for one in task.after:
                self._dependants.setdefault(one, {})[identifier] = None
            known = (self.tasks.get(one) for one in task.after)
            self.waiting[identifier] = sum(one is None or one.done is None for one in known)
        if task.done and not was_done:
            for dependant in self._dependants.get(identifier, ()):
                self.waiting[dependant] -= 1
                self._sort_in(self.tasks[dependant])
        self._sort_in(task)

    def _sort_in(self, task: Task) -> None:
        if task.due is not None and not self.waiting.get(task.id, 1):
            bisect.insort(self._open, task.rank)

    def get(self, ids: Iterable[str]) -> dict[str, Task]:
        """Return copies of the tasks of these ids that exist."""
        found = ((one, self.tasks.get(one)) for one in ids)
        return {one: copy.copy(task) for one, task in found if task is not None and task.order}

    def every(self) -> dict[str, Task]:
        """Return copies of all tasks, oldest first."""
        return self.get(task.id for task in sorted(self.tasks.values(), key=lambda task: task.order))

    def best(self, wanted: TaskFilter, now: int) -> Task | None:
        """Return the task to claim: of those that are ready the most important, then the oldest."""
        ranked = (self.tasks[id] for _, _, id in self._open)
        return next((task for task in ranked if wanted.fits(task) and (task.due or 0) <= now), None)

    def outlook(self, wanted: TaskFilter, now: int) -> Outlook:
        """Count the wanted tasks when none of them is ready."""
        running = later = waiting = 0
        times = []
        for task in self.tasks.values():
            if not task.order or not wanted.fits(task):
                continue
            outcome, due, blocked = task.outcome(now), task.due, bool(self.waiting[task.id])
            running += outcome == "running"
            waiting += outcome == "open" and blocked
            later += outcome == "open" and not blocked
            if due is not None and due > now and not blocked:
                times.append(due)
        return Outlook(running, later, waiting, min(times, default=None))


def standings(tasks: Mapping[str, Task], now: int) -> dict[str, Standing]:
    """Return the status of each task."""
    sorter = graphlib.TopologicalSorter({id: [one for one in task.after if one in tasks] for id, task in tasks.items()})
    with contextlib.suppress(graphlib.CycleError):  # a circle that was made by hand; its tasks are left for the end
        sorter.prepare()
    found: dict[str, Standing] = {}
    while ready := sorter.get_ready():
        found |= {id: _standing(tasks[id], found, now) for id in ready}
        sorter.done(*ready)
    return found | {id: _standing(task, found, now) for id, task in tasks.items() if id not in found}


def _standing(task: Task, found: Mapping[str, Standing], now: int) -> Standing:
    outcome = task.outcome(now)
    if outcome != "open":
        return Standing(outcome)
    blocking: dict[str, None] = {}
    for one in task.after:
        before = found.get(one)
        if before is None or before.status in (FAILED, CANCELLED):  # None: missing, or part of a circle
            blocking[one] = None
        elif before.status == "blocked":
            blocking |= dict.fromkeys(before.by)
    if blocking:
        return Standing("blocked", tuple(blocking))
    if any(found[one].status != DONE for one in task.after):
        return Standing("waiting")
    return Standing("later" if (task.due or 0) > now else "ready")


def in_tree(tasks: Mapping[str, Task]) -> list[tuple[int, Task]]:
    """Return tasks with their depth in a tree: each once, below the last of those that it waits for."""
    below: dict[str, list[Task]] = {}
    for task in tasks.values():
        above = [one for one in task.after if one in tasks]
        below.setdefault(above[-1] if above else "", []).append(task)
    found: list[tuple[int, Task]] = []
    stack = [(0, task) for task in reversed(below.get("", []))]
    while stack:
        depth, task = stack.pop()
        found.append((depth, task))
        stack += [(depth + 1, one) for one in reversed(below.get(task.id, []))]
    shown = {task.id for _, task in found}
    return [*found, *((0, task) for task in tasks.values() if task.id not in shown)]  # a circle that was made by hand


def arranged(given: Sequence[New | Mapping[str, Any]]) -> dict[str, New]:
    """Check new tasks and give them ids; afterwards `after` has ids instead of names."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise Invalid(f"tasks is {str(given)[:80]!r}.", "Give a list of tasks.")
    if not given:
        raise Invalid("There is no task to create.", "Give a title, or a list of tasks.")
    if len(given) > MOST_TASKS:
        raise OverBudget(f"{len(given):,} tasks were given; the limit is {MOST_TASKS:,}.", "Use several calls.")
    made: dict[str, New] = {}
    for number, one in enumerate(given, 1):
        what = f"task {number}"
        try:
            task = msgspec.convert(msgspec.to_builtins(one), New)
        except (msgspec.ValidationError, TypeError) as error:
            unknown = [name for name in one if name not in New.__struct_fields__] if isinstance(one, Mapping) else []
            hint = close_to(str(unknown[0]), New.__struct_fields__) if unknown else ""
            raise Invalid(f"{what}: {error}.{hint}", f"A task takes {', '.join(New.__struct_fields__)}.") from None
        check_text(task.title, task.name, task.instructions, *task.after, *task.tags)
        task.title = " ".join(task.title.split())
        if not task.title:
            raise Invalid(f"{what} has no title.", "Describe the work in a few words.")
        for name, most in (("title", MOST_TITLE), ("instructions", MOST_INSTRUCTIONS), ("name", MOST_TITLE)):
            if (size := len(getattr(task, name))) > most:
                raise OverBudget(f"{what}: {name} has {size:,} characters; the limit is {most:,}.", "Shorten it.")
        check_texts(f"{what}: tags", task.tags)
        check_texts(f"{what}: after", task.after, MOST_AFTER)
        if task.priority not in PRIORITIES:
            advice = f"Use {PRIORITIES[0]} to {PRIORITIES[-1]}; more is sooner."
            raise Invalid(f"{what}: priority is {task.priority}.", advice)
        for name, limits in (("lease", LEASES), ("pause", PAUSES), ("attempts", ATTEMPTS)):
            check_number(f"{what}: {name}", getattr(task, name), *limits)
        task.after, task.tags = [*dict.fromkeys(task.after)], [*dict.fromkeys(task.tags)]
        made[f"t{secrets.token_hex(5)}"] = task
    ids: dict[str, str] = {}
    for id, new in made.items():
        if new.name and ids.setdefault(new.name, id) != id:
            raise Invalid(f'Two tasks are named "{new.name}".', "Give each a name of its own.")
    for new in made.values():
        new.after = [ids.get(one, one) for one in new.after]
    return made


def in_order(made: Mapping[str, New]) -> dict[str, New]:
    """Return new tasks with each after those that it waits for, else as they were given."""
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter(dict.fromkeys(made, ()))
    for id, new in made.items():
        sorter.add(id, *(one for one in new.after if one in made))
    try:
        return {id: made[id] for id in sorter.static_order()}
    except graphlib.CycleError as error:
        circle = error.args[1][:0:-1]
        first = circle.index(min(circle, key=list(made).index))
        names = [made[id].name for id in (*circle[first:], *circle[: first + 1])]
        what = f"These tasks wait for each other: {' → '.join(names)}."
        raise Invalid(what, "Remove one of them from an after.") from None


def check_number(what: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise Invalid(f"{what} is {value!r}.", f"Use a number from {least:g} to {most:,g}.")


def check_texts(what: str, values: Sequence[str], most: int = MOST_TAGS) -> None:
    if isinstance(values, str) or not all(isinstance(one, str) and one.strip() for one in values):
        raise Invalid(f"{what} is {values!r}."[:200], "Give a list of texts, none of them blank.")
    if any("\0" in one for one in values):
        raise Invalid(f"{what} contains a NUL character.", "Remove it.")
    if len(values) > most:
        raise OverBudget(f"{what} has {len(values):,} entries; the limit is {most:,}.", "Give fewer.")
    check_text(*values)


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    return value if isinstance(value, str) else ""


def _number(entry: Mapping[str, Any], name: str, usual: float) -> float:
    value = entry.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return min(float(value), _LONGEST) if is_number and value is not None and value >= 0 else float(usual)
