"""All tasks of a log: which are ready, which wait for which, and how each of them stands.

A graph is told one line after the other. Which task is the best to claim is kept in two heaps, so that asking costs
little however many tasks there are: those that are ready, and those that become so by the clock.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.formats.tasks import CANCELLED, DONE, FAILED, Outlook, Task, Wanted, take_in, told


class Standing(msgspec.Struct, frozen=True):
    """How a task stands at one moment: one of `STATUSES`, and which tasks are in its way for good."""

    status: str
    by: tuple[str, ...] = ()


class Graph:
    """What the lines of one log add up to."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.ops: dict[str, list[tuple[str, str, str]]] = {}
        """What was done under each op_id: event, task and attempt of each line."""
        self._waiting: dict[str, int] = {}
        self._dependants: dict[str, dict[str, None]] = {}
        self._ready: list[tuple[int, str, str]] = []
        self._later: list[tuple[int, str]] = []

    def add(self, line: Mapping[str, Any]) -> None:
        """Take in one line; what is none of ours says nothing."""
        speaks = told(line)
        if speaks is None:
            return
        op, identifier = line.get("op"), speaks[1]
        if isinstance(op, str) and op:
            self.ops.setdefault(op, []).append(speaks)
        task = self.tasks.setdefault(identifier, Task(id=identifier))
        was_made, was_done = task.order, task.done
        take_in(task, line)
        if task.order != was_made:
            self._enter(task)
        if task.done and not was_done:
            for dependant in self._dependants.get(identifier, ()):
                self._waiting[dependant] -= 1
                self._push(self.tasks[dependant])
        self._push(task)

    def _enter(self, task: Task) -> None:
        """Note what a task waits for; nothing of that may be known yet."""
        for before in task.after:
            self._dependants.setdefault(before, {})[task.id] = None
        self._waiting[task.id] = sum(not self._is_done(before) for before in task.after)

    def _is_done(self, identifier: str) -> bool:
        task = self.tasks.get(identifier)
        return task is not None and task.done is not None

    def _push(self, task: Task) -> None:
        due = task.due
        if due is not None and not self._waiting.get(task.id, 1):
            heapq.heappush(self._later, (due, task.id))

    def waiting(self, identifier: str) -> int:
        """Return for how many tasks a task still waits."""
        return self._waiting.get(identifier, 0)

    def get(self, ids: Iterable[str]) -> dict[str, Task]:
        """Return the tasks of these ids that are there, as they are now."""
        found = ((one, self.tasks.get(one)) for one in ids)
        return {one: copy.copy(task) for one, task in found if task is not None and task.order}

    def every(self) -> dict[str, Task]:
        """Return all tasks as they are now, oldest first."""
        return {
            task.id: copy.copy(task) for task in sorted(self.tasks.values(), key=lambda task: task.order) if task.order
        }

    def best(self, wanted: Wanted, now: int) -> Task | None:
        """Return the task to claim: of those that are ready the most important, then the oldest."""
        while self._later and self._later[0][0] <= now:
            task = self.tasks[heapq.heappop(self._later)[1]]
            heapq.heappush(self._ready, (-task.priority, task.order, task.id))
        passed: dict[str, tuple[int, str, str]] = {}
        found = None
        while self._ready and found is None:
            entry = heapq.heappop(self._ready)
            task, due = self.tasks[entry[2]], self.tasks[entry[2]].due
            if due is None or self._waiting.get(task.id, 1) or task.id in passed:
                continue  # it was pushed before it changed
            if due > now:  # likewise; or the clock was set back
                heapq.heappush(self._later, (due, task.id))
                continue
            passed[task.id] = entry
            found = task if wanted.fits(task) else None
        for entry in passed.values():
            heapq.heappush(self._ready, entry)
        return found

    def outlook(self, wanted: Wanted, now: int) -> Outlook:
        """Say what there is of the wanted tasks when none of them is ready."""
        running = later = waiting = 0
        times = []
        for task in self.tasks.values():
            if not task.order or not wanted.fits(task):
                continue
            outcome, due = task.outcome(now), task.due
            if outcome == "running":
                running += 1
            elif outcome == "open":
                later, waiting = (later, waiting + 1) if self._waiting[task.id] else (later + 1, waiting)
            if due is not None and due > now and not self._waiting[task.id]:
                times.append(due)
        return Outlook(running, later, waiting, min(times, default=None))


def standings(tasks: Mapping[str, Task], now: int) -> dict[str, Standing]:
    """Return how each task stands; deep graphs are walked without recursion."""
    found: dict[str, Standing] = {}
    for start in tasks:
        stack, entered = [start], set[str]()
        while stack:
            task = tasks[stack[-1]]
            open_before = [one for one in task.after if one in tasks and one not in found and one not in entered]
            if task.id not in found and open_before and task.id not in entered:
                entered.add(task.id)
                stack += open_before
                continue
            stack.pop()
            if task.id not in found:
                found[task.id] = _standing(task, found, now)
    return found


def _standing(task: Task, found: Mapping[str, Standing], now: int) -> Standing:
    outcome = task.outcome(now)
    if outcome != "open":
        return Standing(outcome)
    blocking: dict[str, None] = {}
    for one in task.after:
        before = found.get(one)
        if before is None or before.status in (
            FAILED,
            CANCELLED,
        ):  # gone, waiting for itself, or ended without a result
            blocking[one] = None
        elif before.status == "blocked":
            blocking |= dict.fromkeys(before.by)
    if blocking:
        return Standing("blocked", tuple(blocking))
    if any(found[one].status != DONE for one in task.after):
        return Standing("waiting")
    return Standing("later" if (task.due or 0) > now else "ready")


def in_tree(tasks: Mapping[str, Task]) -> list[tuple[int, Task]]:
    """Return tasks as a tree, each with its depth: a task stands once, below the last of those that it waits for."""
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
    return found
