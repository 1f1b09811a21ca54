"""Tasks: a graph of work that an orchestrator and its workers share, in one log per workspace.

`create` adds a task and names those it waits for, `claim` gives a worker a task for a time (a lease), `heartbeat`
extends the lease, `report` ends the attempt. Nothing runs in the background: the next call finds an expired lease.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import Conflict, Invalid, NotFound, OverBudget
from holdfast.formats import tasks as forms
from holdfast.formats.tasks import Attempt, Graph, New, Outlook, Standing, Task, TaskFilter
from holdfast.model.kinds import KINDS
from holdfast.model.names import amount, check_given, close_to
from holdfast.model.records import Scope, check_plain
from holdfast.model.times import iso
from holdfast.storage.log import Logs
from holdfast.storage.writer import check_op

MOST_RESULT, MOST_WORKER, MOST_PROGRESS = 100_000, 100, 2_000
_FIND = "Use task_list to see all tasks and their ids."
Entry = dict[str, Any]
Where = str | Scope | None


class Claim(msgspec.Struct, frozen=True):
    """A task that a worker claimed."""

    task: Task
    attempt: Attempt
    before: list[Task]
    """The tasks that it waited for."""


class Listed(msgspec.Struct, frozen=True):
    """Tasks and their statuses at one moment."""

    now: int
    tasks: list[tuple[int, Task]]
    """The wanted tasks as a tree, each with its depth."""
    standings: dict[str, Standing]
    counts: dict[str, int]
    """How many tasks of the workspace or the graph have each status."""
    workers: dict[str, list[str]]
    """The tasks that each worker is running."""


class Tasks:
    """The tasks of one memory. Safe to use from several threads and processes."""

    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self._logs = Logs(memory, Graph)
        self.warnings: list[str] = []
        """Warnings of lines that could not be read so far."""

    def create(
        self, title: str, instructions: str = "", *, after: Sequence[str] = (), tags: Sequence[str] = (),
        graph: str = "", workspace: Where = None, op_id: str = "", **more: Any,
    ) -> Task:  # fmt: skip
        """Add one task; `more` are the other fields of `New`."""
        given = {"title": title, "instructions": instructions, "after": after, "tags": tags, **more}
        return self.create_all([given], graph=graph, workspace=workspace, op_id=op_id)[0]

    def create_all(
        self, tasks: Sequence[New | Mapping[str, Any]], *, graph: str = "", workspace: Where = None, op_id: str = ""
    ) -> list[Task]:
        """Add tasks, all or none; `after` has names of tasks in the same call, and ids of tasks that exist."""
        _check_op_given(op_id, graph=graph)
        forms.check_texts("graph", [graph] if graph else [])
        made = forms.arranged(tasks)
        ordered, ids, path = forms.in_order(made), list(made), self._path(workspace)
        named = graph or (next(iter(ordered)) if len(made) > 1 else "")
        outside = sorted({one for new in made.values() for one in new.after} - made.keys())

        def decide(known: Graph, now: int) -> list[Entry]:
            nonlocal ids
            if repeated := _repeated(known, op_id, forms.CREATED):
                ids = [task for _, task, _ in repeated]
                return []
            _check_known(outside, known.get(outside))
            fields = {id: msgspec.structs.asdict(new) | {"graph": named} for id, new in ordered.items()}
            return [_entry(forms.CREATED, id, now, op_id, **given) for id, given in fields.items()]

        self._change(path, decide)
        found = self._tasks(path, ids)
        return [found[one] for one in ids if one in found]

    def cancel(self, id: str, why: str = "", *, workspace: Where = None, op_id: str = "") -> Task:
        """End a task that is not done; its worker learns it from its next heartbeat or report."""
        _check_op_given(op_id, id=id, why=why)
        _check_length("error", why, MOST_RESULT)

        def decide(task: Task, _now: int) -> Entry | None:
            if task.done and not task.is_cancelled:
                raise Conflict(f"Task {id} is done; nothing was cancelled.", "Create another task that reverts it.")
            return None if task.is_cancelled else {"error": why}

        return self._change_one(id, workspace, forms.CANCELLED, op_id, decide)

    def retry(self, id: str, *, workspace: Where = None, op_id: str = "") -> Task:
        """Give a task that failed or was cancelled all its attempts again, without a pause."""
        _check_op_given(op_id, id=id)

        def decide(task: Task, now: int) -> Entry | None:
            outcome, last = task.outcome(now), task.last
            pauses = outcome == "open" and last is not None and last.status == forms.FAILED
            if outcome not in (forms.FAILED, forms.CANCELLED) and not pauses:
                raise Conflict(f"Task {id} is {outcome}, so there is nothing to retry.", _FIND)
            return {}

        return self._change_one(id, workspace, forms.RETRIED, op_id, decide)

    def get(self, id: str, workspace: Where = None) -> Task:
        """Return one task by its id."""
        check_given(id=id)
        return self._tasks(self._home(id, workspace), [id])[id]

    def all(
        self, status: Sequence[str] = (), *, graph: str = "", ids: Sequence[str] = (), workspace: Where = None
    ) -> Listed:
        """Return tasks with their statuses: all of a workspace, or of a graph, of some statuses, of these ids."""
        check_given(graph=graph, **{f"ids {number}": one for number, one in enumerate(ids)})
        if unknown := [one for one in status if one not in forms.STATUSES]:
            raise Invalid(f"There is no status {unknown[0]!r}.", f"Use one of: {', '.join(forms.STATUSES)}.")
        now, every = self._memory.clock(), self._logs.ask(self._path(workspace), Graph.every, self.warnings)
        _check_known(ids, every)
        stand = forms.standings(every, now)
        of_graph = {one: task for one, task in every.items() if graph in ("", task.graph)}
        wanted = {
            one: task
            for one, task in of_graph.items()
            if (not ids or one in ids) and (not status or stand[one].status in status)
        }
        counted = Counter(stand[one].status for one in of_graph)
        counts = {one: counted[one] for one in forms.STATUSES if counted[one]}
        workers: dict[str, list[str]] = {}
        for one, task in of_graph.items():
            if stand[one].status == "running" and task.last:
                workers.setdefault(task.last.worker, []).append(one)
        return Listed(now, forms.in_tree(wanted), stand, counts, workers)

    def claim(
        self, worker: str, *, tags: Sequence[str] = (), graph: str = "", lease: float = 0.0,
        workspace: Where = None, op_id: str = "",
    ) -> Claim | None:  # fmt: skip
        """Claim the best task that is ready, for one lease; None when no task is ready: `outlook` has the reason."""
        _check_op_given(op_id, worker=worker)
        worker, wanted, path = " ".join(worker.split()), _wanted(tags, graph), self._path(workspace)
        if not worker:
            raise Invalid("worker is blank.", "Give a name that no other worker has, the same one every time.")
        _check_length("worker", worker, MOST_WORKER)
        _check_lease(lease)
        claimed: list[tuple[str, str]] = []

        def decide(known: Graph, now: int) -> list[Entry]:
            claimed[:] = [(task, attempt) for _, task, attempt in _repeated(known, op_id, forms.CLAIMED)]
            task = None if claimed else known.best(wanted, now)
            if task is None:
                return []
            number = len(task.attempts) + 1
            attempt = f"{number}-{secrets.token_hex(4)}"
            claimed[:] = [(task.id, attempt)]
            until = iso(now + int((lease or task.lease) * 1000))
            fields = {"attempt": attempt, "number": number, "worker": worker, "until": until}
            return [_entry(forms.CLAIMED, task.id, now, op_id, **fields)]

        self._change(path, decide)
        if not claimed:
            return None
        (identifier, token), *_ = claimed
        task = self._tasks(path, [identifier])[identifier]
        attempt = next(one for one in task.attempts if one.id == token)
        return Claim(task, attempt, list(self._tasks(path, task.after).values()))

    def outlook(self, *, tags: Sequence[str] = (), graph: str = "", workspace: Where = None) -> tuple[int, Outlook]:
        """Return the current millisecond, and how many tasks there are when none is ready."""
        now, wanted = self._memory.clock(), _wanted(tags, graph)
        return now, self._logs.ask(self._path(workspace), lambda known: known.outlook(wanted, now), self.warnings)

    def heartbeat(
        self, id: str, attempt: str, *, progress: str = "", percent: float | None = None, lease: float = 0.0,
        workspace: Where = None, op_id: str = "",
    ) -> Task:  # fmt: skip
        """Extend the lease of a task from now on, and record its progress."""
        _check_op_given(op_id, id=id, attempt=attempt, progress=progress)
        _check_lease(lease)
        _check_length("progress", progress, MOST_PROGRESS)
        if percent is not None:
            forms.check_number("percent", percent, 0, 100)

        def decide(task: Task, now: int) -> Entry | None:
            mine = _own_attempt(task, attempt)
            until = iso(now + int((lease or task.lease) * 1000))
            more = {"progress": progress or mine.progress, "percent": mine.percent if percent is None else percent}
            return {"attempt": attempt, "until": until, **more}

        return self._change_one(id, workspace, forms.HEARTBEAT, op_id, decide)

    def report(
        self, id: str, attempt: str, status: str, *, result: Any = None, error: str = "",
        workspace: Where = None, op_id: str = "",
    ) -> Task:  # fmt: skip
        """Record how an attempt ended: `done` with its result, `failed` with its error, or `released` for others.

        An attempt may repeat its report: nothing is added.
        """
        _check_op_given(op_id, id=id, attempt=attempt, status=status, error=error)
        check_plain(result)
        if status not in forms.ENDS:
            what = f"status is {status!r}.{close_to(status, forms.ENDS)}"
            raise Invalid(what, f"Use one of: {', '.join(forms.ENDS)}.")
        _check_length("result", msgspec.json.encode(result).decode(), MOST_RESULT)
        _check_length("error", error, MOST_RESULT)

        def decide(task: Task, _now: int) -> Entry | None:
            mine = _own_attempt(task, attempt, repeats=status)
            if mine.status:
                return None
            return {"attempt": attempt, "worker": mine.worker, "status": status, "result": result, "error": error}

        return self._change_one(id, workspace, forms.REPORTED, op_id, decide)

    def _path(self, workspace: Where) -> str:
        return self._memory.layout.path_for(KINDS["task"], self._memory.scopes.resolve(workspace))

    def _tasks(self, path: str, ids: Iterable[str]) -> dict[str, Task]:
        return self._logs.ask(path, lambda known: known.get(ids), self.warnings)

    def _home(self, id: str, workspace: Where) -> str:
        """Return the log that has a task: of this workspace, or else of any."""
        if self._tasks(path := self._path(workspace), [id]):
            return path
        places = self._memory.layout
        for folder in places.below((KINDS["task"].name,), ""):
            for path, _ in self._memory.tree.walk(folder, (".jsonl",), lambda _path, _why: None):
                place = places.classify(path)
                if place and place.kind is KINDS["task"] and self._tasks(path, [id]):
                    return path
        raise _unknown(id)

    def _change(self, path: str, decide: Callable[[Graph, int], list[Entry]]) -> None:
        self._logs.transact(path, lambda known: decide(known, self._memory.clock()), self.warnings)

    def _change_one(
        self, id: str, workspace: Where, event: str, op_id: str, decide: Callable[[Task, int], Entry | None]
    ) -> Task:
        """Add the event that `decide` returns the fields of to one task, which must exist; return the task."""
        path = self._home(id, workspace)

        def about(known: Graph, now: int) -> list[Entry]:
            task = known.get([id]).get(id)
            if task is None:
                raise _unknown(id)
            fields = None if _repeated(known, op_id, event, id) else decide(task, now)
            return [] if fields is None else [_entry(event, id, now, op_id, **fields)]

        self._change(path, about)
        return self._tasks(path, [id])[id]


def _entry(event: str, task: str, now: int, op_id: str, **more: Any) -> Entry:
    """Return an entry of the log; empty fields are left out, except that an empty list may be a result."""
    given = {
        name: value for name, value in more.items() if value not in (None, "") and (value != [] or name == "result")
    }
    return {"time": iso(now), "event": event, "task": task, **given, **({"op": op_id} if op_id else {})}


def _repeated(known: Graph, op_id: str, event: str, task: str = "") -> list[tuple[str, str, str]]:
    """Return the earlier result of an op_id; Conflict when it was used for something else."""
    found = known.ops.get(op_id, []) if op_id else []
    if any(was != event or task not in ("", about) for was, about, _ in found):
        raise Conflict(f'The op_id "{op_id}" was used for something else; nothing was written.', "Use a new op_id.")
    return found


def _own_attempt(task: Task, token: str, repeats: str = "") -> Attempt:
    """Return the attempt that a worker names, if it may still change the task, or ended as it repeats."""
    mine = next((one for one in task.attempts if one.id == token), None)
    if mine is None:
        what = f'Task {task.id} has no attempt "{token[:200]}".'
        raise NotFound(what, "Use the attempt id that task_claim returned with the task.")
    if mine.status not in ("", repeats):
        what = f"Attempt {token} at task {task.id} was reported as {mine.status} before; nothing was written."
        raise Conflict(what, "Use task_claim for another.")
    if mine.status or (mine is task.last and not task.is_cancelled):
        return mine
    if task.is_cancelled:
        why = f": {task.why}" if task.why else ""
        raise Conflict(f"Task {task.id} was cancelled{why}.", "Stop working on it; use task_claim for another.")
    last = task.last
    who = f"{last.worker} took it over as attempt {last.id}" if last else "it was started again"
    raise Conflict(
        f"Your attempt {token} at task {task.id} lost its lease, and {who}; nothing was written.",
        "Stop this work, or save useful results with remember; use task_claim for another, and send heartbeats sooner.",
    )


def _unknown(id: str) -> NotFound:
    return NotFound(f'There is no task "{id[:200]}".', _FIND)


def _check_op_given(op_id: str, **given: object) -> None:
    check_given(**given, op_id=op_id)
    check_op(op_id)


def _check_known(ids: Iterable[str], found: Mapping[str, Task]) -> None:
    missing = [one for one in ids if one not in found]
    if missing:
        more = f" and {amount(len(missing) - 1, 'other')}" if len(missing) > 1 else ""
        raise NotFound(f'There is no task "{missing[0][:200]}"{more} in this workspace; nothing was written.', _FIND)


def _wanted(tags: Sequence[str], graph: str) -> TaskFilter:
    forms.check_texts("tags", tags)
    check_given(graph=graph)
    forms.check_texts("graph", [graph] if graph else [])
    return TaskFilter(tuple(tags), graph)


def _check_lease(lease: float) -> None:
    if type(lease) is bool or lease != 0:  # 0 is the lease of the task
        forms.check_number("lease", lease, *forms.LEASES)


def _check_length(name: str, text: str, most: int) -> None:
    if len(text) > most:
        what = f"{name} has {len(text):,} characters; the limit is {most:,}."
        raise OverBudget(what, "Store it elsewhere (remember, a file) and give its place.")
