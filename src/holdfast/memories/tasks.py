"""Tasks: a graph of work that an orchestrator and its workers share, one log per workspace.

`create` says what is to be done and what it waits for, `claim` makes one worker its holder for a time, `heartbeat`
holds on to it, `report` ends that. Nothing runs here and nobody waits: what is overdue is seen by whoever looks next.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import Conflict, Invalid, NotFound, OverBudget
from holdfast.formats import graphs
from holdfast.formats.graphs import Standing
from holdfast.formats.tasks import (
    CANCELLED,
    CLAIMED,
    CREATED,
    ENDS,
    FAILED,
    HEARTBEAT,
    REPORTED,
    RETRIED,
    STATUSES,
    Attempt,
    Line,
    Outlook,
    Task,
    View,
    Wanted,
)
from holdfast.memories import _graph
from holdfast.memories._graph import New
from holdfast.memories._queue import LogQueue
from holdfast.model.kinds import KINDS
from holdfast.model.names import amount, check_given, close_to
from holdfast.model.records import check_plain
from holdfast.model.scopes import Scope
from holdfast.model.times import iso
from holdfast.storage.engines import Queue
from holdfast.storage.writing import check_op

__all__ = ["MOST_RESULT", "Claim", "Listed", "New", "Outlook", "Standing", "Task", "Tasks"]
MOST_RESULT = 100_000
MOST_WORKER = 100
MOST_PROGRESS = 2_000
_FIND = "Use task_list to see all tasks and their ids."


class Claim(msgspec.Struct, frozen=True):
    """What a worker has to know of the task that it took."""

    task: Task
    attempt: Attempt
    before: list[Task]
    """What the task waited for, with the results."""


class Listed(msgspec.Struct, frozen=True):
    """Tasks and how they stand at one moment."""

    now: int
    tasks: list[tuple[int, Task]]
    """Those that were asked for, as a tree: each with its depth."""
    standings: dict[str, Standing]
    counts: dict[str, int]
    """How many of each status there are, of all in the workspace or the graph."""
    workers: dict[str, list[str]]
    """Which tasks each worker is at."""


class Tasks:
    """The tasks of one memory."""

    def __init__(self, memory: Core) -> None:
        self._memory = memory
        logs = LogQueue(memory.vault, memory.places)
        self._logs = logs
        self._queue: Queue = memory.queue or logs
        self.warnings = logs.warnings

    # what is to be done

    def create(
        self, title: str, instructions: str = "", *, after: Sequence[str] = (), tags: Sequence[str] = (),
        graph: str = "", workspace: str | Scope | None = None, op_id: str = "", **more: Any,
    ) -> Task:  # fmt: skip
        """Add one task; `more` are the other fields of `New`."""
        given = {"title": title, "instructions": instructions, "after": after, "tags": tags, **more}
        return self.create_all([given], graph=graph, workspace=workspace, op_id=op_id)[0]

    def create_all(
        self, tasks: Sequence[New | Mapping[str, Any]], *, graph: str = "", workspace: str | Scope | None = None,
        op_id: str = "",
    ) -> list[Task]:  # fmt: skip
        """Add tasks, all or none; in `after` they may name each other, and tasks that are there by their id."""
        check_given(graph=graph, op_id=op_id)
        check_op(op_id)
        _graph.check_texts("graph", [graph] if graph else [])
        made = _graph.arrange(tasks)
        path = self._path(workspace)
        named = graph or (made[0].id if len(made) > 1 else "")
        outside = sorted({one for new in made for one in new.after} - {new.id for new in made})

        def decide(view: View) -> list[Line]:
            if _repeats(view, op_id, CREATED):
                return []
            _check_known(outside, view.get(outside))
            return [_event(CREATED, new.id, view.now, op_id, **new.line(), graph=named) for new in made]

        lines = self._change(path, decide)
        ids = [new.id for new in sorted(made, key=lambda new: new.place)] if lines else self._under(path, op_id)
        found = self._queue.look(path, ids)
        return [found[one] for one in ids if one in found]

    # working on it

    def claim(
        self, worker: str, *, tags: Sequence[str] = (), graph: str = "", lease: float = 0.0,
        workspace: str | Scope | None = None, op_id: str = "",
    ) -> Claim | None:  # fmt: skip
        """Take the best task that is ready, for as long as the lease; None when none is, and `outlook` says why."""
        worker, wanted = _worker(worker), _wanted(tags, graph)
        _check_lease(lease, none=True)
        check_given(op_id=op_id)
        check_op(op_id)
        path = self._path(workspace)
        taken: list[tuple[str, str]] = []

        def decide(view: View) -> list[Line]:
            taken[:] = [(task, attempt) for _, task, attempt in _repeats(view, op_id, CLAIMED)]
            task = None if taken else view.best(wanted)
            if task is None:
                return []
            number = len(task.attempts) + 1
            taken[:] = [(task.id, f"{number}-{secrets.token_hex(4)}")]
            until = iso(view.now + int((lease or task.lease) * 1000))
            return [
                _event(
                    CLAIMED, task.id, view.now, op_id, attempt=taken[0][1], number=number, worker=worker, until=until
                )
            ]

        self._change(path, decide)
        if not taken:
            return None
        identifier, token = taken[0]
        task = self._queue.look(path, [identifier])[identifier]
        before = self._queue.look(path, task.after) if task.after else {}
        attempt = next(one for one in task.attempts if one.id == token)
        return Claim(task, attempt, [before[one] for one in task.after if one in before])

    def outlook(
        self, *, tags: Sequence[str] = (), graph: str = "", workspace: str | Scope | None = None
    ) -> tuple[int, Outlook]:
        """Say what there is when nothing is ready to be claimed, and at which millisecond."""
        return self._queue.now(), self._queue.outlook(self._path(workspace), _wanted(tags, graph))

    def heartbeat(
        self, id: str, attempt: str, *, progress: str = "", percent: float | None = None, lease: float = 0.0,
        workspace: str | Scope | None = None, op_id: str = "",
    ) -> Task:  # fmt: skip
        """Hold on to a task for one more lease from now, and say how far it is."""
        check_given(id=id, attempt=attempt, progress=progress, op_id=op_id)
        check_op(op_id)
        _check_lease(lease, none=True)
        _check_length("progress", progress, MOST_PROGRESS)
        if percent is not None and not (_is_number(percent) and 0 <= percent <= 100):
            raise Invalid(f"percent is {percent!r}.", "Use a number from 0 to 100.")

        def decide(view: View, task: Task) -> list[Line]:
            if _repeats(view, op_id, HEARTBEAT, id):
                return []
            held = _held(task, attempt)
            if held.status:
                raise _ended(task, held)
            until = iso(view.now + int((lease or task.lease) * 1000))
            far = held.percent if percent is None else percent
            said = {"progress": progress or held.progress} | ({} if far is None else {"percent": far})
            return [_event(HEARTBEAT, id, view.now, op_id, attempt=attempt, until=until, **said)]

        return self._one(id, workspace, decide)

    def report(
        self, id: str, attempt: str, status: str, *, result: Any = None, error: str = "",
        workspace: str | Scope | None = None, op_id: str = "",
    ) -> Task:  # fmt: skip
        """Say how an attempt ended: `done` with its result, `failed` with its error, `released` for somebody else.

        What an attempt reported once it may report again: nothing is added.
        """
        check_given(id=id, attempt=attempt, status=status, error=error, op_id=op_id)
        check_op(op_id)
        check_plain(result)
        if status not in ENDS:
            raise Invalid(f"status is {status!r}.{close_to(status, ENDS)}", f"Use one of: {', '.join(ENDS)}.")
        _check_length("result", msgspec.json.encode(result).decode(), MOST_RESULT)
        _check_length("error", error, MOST_RESULT)

        def decide(view: View, task: Task) -> list[Line]:
            if _repeats(view, op_id, REPORTED, id):
                return []
            held = _held(task, attempt)
            if held.status == status:
                return []
            if held.status:
                raise _ended(task, held)
            said = ({} if result is None else {"result": result}) | ({"error": error} if error else {})
            return [_event(REPORTED, id, view.now, op_id, attempt=attempt, worker=held.worker, status=status, **said)]

        return self._one(id, workspace, decide)

    # the orchestrator's word

    def cancel(self, id: str, why: str = "", *, workspace: str | Scope | None = None, op_id: str = "") -> Task:
        """End a task that is not done, whoever works on it: its worker is told by its next heartbeat or report."""
        check_given(id=id, why=why, op_id=op_id)
        check_op(op_id)
        _check_length("error", why, MOST_RESULT)

        def decide(view: View, task: Task) -> list[Line]:
            if _repeats(view, op_id, CANCELLED, id) or task.is_cancelled:
                return []
            if task.done:
                raise Conflict(f"Task {id} is done; nothing was cancelled.", "Create another one that takes it back.")
            return [_event(CANCELLED, id, view.now, op_id, **({"error": why} if why else {}))]

        return self._one(id, workspace, decide)

    def retry(self, id: str, *, workspace: str | Scope | None = None, op_id: str = "") -> Task:
        """Give a task that failed or was cancelled all its attempts again, from now on and without a pause."""
        check_given(id=id, op_id=op_id)
        check_op(op_id)

        def decide(view: View, task: Task) -> list[Line]:
            if _repeats(view, op_id, RETRIED, id):
                return []
            outcome, last = task.outcome(view.now), task.last
            pauses = outcome == "open" and last is not None and last.status == FAILED
            if outcome not in (FAILED, CANCELLED) and not pauses:
                raise Conflict(f"Task {id} is {outcome}, so there is nothing to retry.", _FIND)
            return [_event(RETRIED, id, view.now, op_id)]

        return self._one(id, workspace, decide)

    # what there is

    def get(self, id: str, workspace: str | Scope | None = None) -> Task:
        """Return one task by its id."""
        check_given(id=id)
        for path in (self._path(workspace), self._find(id)):
            if path and (found := self._queue.look(path, [id])):
                return found[id]
        raise NotFound(f'There is no task "{id[:200]}".', _FIND)

    def all(
        self, status: Sequence[str] = (), *, graph: str = "", ids: Sequence[str] = (),
        workspace: str | Scope | None = None,
    ) -> Listed:  # fmt: skip
        """Return tasks with how they stand now: all of a workspace, or of a graph, of some statuses, of these ids."""
        check_given(graph=graph, **{f"ids {number}": one for number, one in enumerate(ids)})
        if unknown := [one for one in status if one not in STATUSES]:
            raise Invalid(f"There is no status {unknown[0]!r}.", f"Use one of: {', '.join(STATUSES)}.")
        path = self._path(workspace)
        now, every = self._queue.now(), self._queue.look(path)
        _check_known(ids, every)
        stand = graphs.standings(every, now)
        of_graph = {one: task for one, task in every.items() if graph in ("", task.graph)}
        wanted = {
            one: task
            for one, task in of_graph.items()
            if (not ids or one in ids) and (not status or stand[one].status in status)
        }
        counted = Counter(stand[one].status for one in of_graph)
        workers: dict[str, list[str]] = {}
        for one, task in of_graph.items():
            if stand[one].status == "running" and task.last:
                workers.setdefault(task.last.worker, []).append(one)
        return Listed(
            now, graphs.in_tree(wanted), stand, {one: counted[one] for one in STATUSES if counted[one]}, workers
        )

    # the log

    def _path(self, workspace: str | Scope | None) -> str:
        return self._memory.places.path_for(KINDS["task"], self._memory.scopes.resolve(workspace))

    def _change(self, path: str, decide: Callable[[View], list[Line]]) -> list[Line]:
        return self._queue.change(path, decide, self._memory.compose)

    def _one(self, id: str, workspace: str | Scope | None, decide: Callable[[View, Task], list[Line]]) -> Task:
        """Change one task that must be there: in this workspace, or in whichever has it."""

        def about(view: View) -> list[Line]:
            task = view.get([id]).get(id)
            if task is None:
                raise _Elsewhere
            return decide(view, task)

        path = self._path(workspace)
        try:
            self._change(path, about)
        except _Elsewhere:
            path = self._find(id)
            try:
                if not path:
                    raise _Elsewhere
                self._change(path, about)
            except _Elsewhere:
                raise NotFound(f'There is no task "{id[:200]}".', _FIND) from None
        return self._queue.look(path, [id])[id]

    def _find(self, id: str) -> str:
        """Return the log that has a task; one that came from elsewhere is known by its log first."""
        path = self._queue.find(id)
        return path if path and id in self._queue.look(path, [id]) else self._logs.find(id)

    def _under(self, path: str, op_id: str) -> list[str]:
        """Return the tasks that were created under an op_id."""
        found: list[str] = []

        def decide(view: View) -> list[Line]:
            found[:] = [task for _, task, _ in view.under(op_id)]
            return []

        self._change(path, decide)
        return found


class _Elsewhere(Exception):
    """The task is not in this log."""


def _event(event: str, task: str, now: int, op_id: str, **more: Any) -> Line:
    """Return a line; what is as usual in it is left out."""
    said = {name: value for name, value in more.items() if value != "" and (value != [] or name == "result")}
    return {"time": iso(now), "event": event, "task": task, **said, **({"op": op_id} if op_id else {})}


def _repeats(view: View, op_id: str, event: str, task: str = "") -> list[tuple[str, str, str]]:
    """Return what was done under an op_id before; Conflict when that was something else."""
    found = view.under(op_id) if op_id else []
    if any(was != event or task not in ("", about) for was, about, _ in found):
        raise Conflict(f'The op_id "{op_id}" was used for something else; nothing was written.', "Use a new op_id.")
    return found


def _held(task: Task, token: str) -> Attempt:
    """Return the attempt that a worker speaks of, if it may still speak for the task."""
    mine = next((one for one in task.attempts if one.id == token), None)
    if mine is None:
        raise NotFound(
            f'Task {task.id} has no attempt "{token[:200]}".',
            "Use the attempt id that task_claim returned with the task.",
        )
    if mine.status or (mine is task.last and not task.is_cancelled):
        return mine
    if task.is_cancelled:
        why = f": {task.why}" if task.why else ""
        raise Conflict(f"Task {task.id} was cancelled{why}.", "Stop working on it; use task_claim for another.")
    last = task.last
    who = f"{last.worker} took it over as attempt {last.id}" if last else "it was started afresh"
    raise Conflict(
        f"Your attempt {token} at task {task.id} lost its lease, and {who}; nothing was written.",
        "Drop this work, or keep what is of use with remember; use task_claim for another, and heartbeat sooner.",
    )


def _ended(task: Task, attempt: Attempt) -> Conflict:
    return Conflict(
        f"Attempt {attempt.id} at task {task.id} was reported as {attempt.status} before; nothing was written.",
        "Use task_claim for another.",
    )


def _check_known(ids: Iterable[str], found: Mapping[str, Task]) -> None:
    missing = [one for one in ids if one not in found]
    if missing:
        more = f" and {amount(len(missing) - 1, 'other')}" if len(missing) > 1 else ""
        raise NotFound(f'There is no task "{missing[0][:200]}"{more} in this workspace; nothing was written.', _FIND)


def _worker(worker: str) -> str:
    check_given(worker=worker)
    name = " ".join(worker.split())
    if not name:
        raise Invalid("worker is blank.", "Give a name that no other worker has, the same one every time.")
    _check_length("worker", name, MOST_WORKER)
    return name


def _wanted(tags: Sequence[str], graph: str) -> Wanted:
    _graph.check_texts("tags", tags)
    check_given(graph=graph)
    _graph.check_texts("graph", [graph] if graph else [])
    return Wanted(tuple(tags), graph)


def _check_lease(lease: float, *, none: bool = False) -> None:
    if none and _is_number(lease) and lease == 0:
        return
    _graph.check_number("lease", lease, *_graph.LEASES)


def _check_length(name: str, text: str, most: int) -> None:
    if len(text) > most:
        raise OverBudget(
            f"{name} has {len(text):,} characters; {most:,} is the most.",
            "Keep it elsewhere (remember, a file) and say where.",
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
