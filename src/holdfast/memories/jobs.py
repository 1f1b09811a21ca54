"""Jobs: schedules that a chat bot's owner and agent share, in one log; the newest line of a job holds.

A job says when a message is due and where it goes. It never says what program runs: that is the owner's setting.
`due` is what a scheduler asks for, `claim` makes it the only one that runs a slot, `finish` notes how that ended.
"""

from __future__ import annotations

import functools
import itertools
import secrets
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from holdfast.core import Core
from holdfast.errors import Busy, Conflict, Invalid, NotFound, OverBudget
from holdfast.formats import jsonl
from holdfast.memories import _due
from holdfast.memories._claims import MOST_OUTPUT, Claims, Ended, Run
from holdfast.memories._due import CHANNEL, Due, Job, counted, fault, is_more, text_of
from holdfast.memories._following import Follower
from holdfast.model.kinds import KINDS
from holdfast.model.names import check_flag, check_given, close_to, nearest
from holdfast.model.scopes import Scope
from holdfast.model.times import normal, utc_now
from holdfast.storage.tree import LogEnd
from holdfast.storage.writing import check_op

__all__ = [
    "CHANNEL", "MOST_JOBS", "MOST_OUTPUT", "Due", "Ended", "Job", "Jobs", "Run",
    "counted", "fault", "is_more", "text_of",
]  # fmt: skip
MOST_JOBS = 500
_TRIES = 50
_SHOWN = 5
Answer = TypeVar("Answer")


class Table:
    """What the log of jobs adds up to, in whatever order its lines come."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, str, Job]] = {}
        self._marks: dict[str, tuple[str, bool]] = {}
        self._first: dict[str, str] = {}
        self.ops: dict[str, str] = {}
        """Which job was changed under an op_id."""
        self.lines = 0
        self.order = ""
        """The greatest order of all lines."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Take in one line; what is none of ours says nothing."""
        identifier, order, time = jsonl.identity(line, "time")
        job, hides, op = line.get("job"), line.get("hide"), line.get("op")
        about = hides if isinstance(hides, str) else job
        if not isinstance(about, str):
            return
        self.lines += 1
        self.order = max(self.order, order)
        if isinstance(op, str) and op:
            self.ops[op] = about
        if isinstance(hides, str):
            made = (order, line.get("hidden") is not False)
            self._marks[hides] = max(made, self._marks.get(hides, ("", False)))
        else:
            self._first[about] = min(order, self._first.get(about, order))
            if about not in self._held or self._held[about][0] <= order:
                self._held[about] = (order, identifier, _read(line, time))

    def get(self, identifier: str) -> Job | None:
        """Return a job that is there."""
        held = self._held.get(identifier)
        if held is None:
            return None
        order, line, job = held
        of_line, of_job = (self._marks.get(target, ("", False)) for target in (line, identifier))
        newest = max(of_line, of_job) if of_job[0] > order else of_line  # a job's mark speaks of lines before it
        return None if newest[1] else job

    def any(self, identifier: str) -> Job | None:
        """Return a job, also one that was removed."""
        return self._held[identifier][2] if identifier in self._held else None

    def jobs(self) -> dict[str, Job]:
        """Return the jobs that are there, in the order in which they were added."""
        found = ((name, self.get(name)) for name in sorted(self._held, key=lambda name: self._first[name]))
        return {name: job for name, job in found if job is not None}


class Jobs:
    """The jobs of one memory."""

    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self._path = memory.places.path_for(KINDS["job"], Scope())
        self._follower: Follower[Table] = Follower(memory.vault)
        self._claims = Claims(memory)
        self._seen: dict[str, Job] | None = None
        """The jobs as they were loaded or saved last: what a list has otherwise is what its owner changed."""
        self.warnings = self._claims.warnings

    # what there is

    def all(self) -> list[Job]:
        """Return all jobs, in the order in which they were added."""
        return list(self._ask(Table.jobs).values())

    def load_cron_jobs(self) -> list[Job]:
        """Return all jobs, to be changed and saved; see `save_cron_jobs`."""
        self._seen = self._ask(Table.jobs)
        return list(self._seen.values())

    def get(self, id: str) -> Job:
        """Return one job by its id."""
        check_given(id=id)
        return self._ask(functools.partial(_known, id=id))

    def add(
        self, name: str, message: str, schedule: str, channel: str = CHANNEL, timezone: str = "local",
        enabled: bool = True, op_id: str = "",
    ) -> Job:  # fmt: skip
        """Add a job, whose slots count from now on."""
        check_given(op_id=op_id)
        check_op(op_id)
        given = Job(
            name=name, message=message, schedule=schedule, channel=channel, timezone=timezone, enabled=enabled,
            id=secrets.token_hex(4), since=utc_now(),
        )  # fmt: skip
        made = _due.check(given)

        def decide(table: Table) -> list[dict[str, Any]]:
            if op_id in table.ops:
                return []
            _check_room(table, 1)
            return [_line(made)]

        table = self._change(decide, op_id)
        return table.any(table.ops.get(op_id, "")) or made

    def remove(self, id: str, op_id: str = "") -> Job:
        """Take a job away; its lines stay in the log."""
        return self._one(id, lambda _job: {"hide": id, "hidden": True}, op_id)

    def set_enabled(self, id: str, enabled: bool, op_id: str = "") -> Job:
        """Let a job be due, or not; what passes while it is not does not count as missed."""
        check_flag(enabled=enabled)

        def line(job: Job) -> dict[str, Any] | None:
            if job.enabled is enabled:
                return None
            since = utc_now() if enabled else job.since
            return _line(msgspec.structs.replace(job, enabled=enabled, since=since))

        return self._one(id, line, op_id)

    def save_cron_jobs(self, jobs: Iterable[Job | Mapping[str, Any]]) -> list[Job]:
        """Make the log say what the list says: new jobs, changed ones, and those that are missing; return it as kept.

        A job may be a mapping with the fields of one. What others changed or added since the list was loaded is left as
        they made it.
        """
        if not isinstance(jobs, Iterable):
            raise Invalid(f"jobs is {jobs!r}.", "Give a list of jobs, as load_cron_jobs returns it.")
        given = [_due.read(job) for job in jobs]
        wanted = [job if job.id else msgspec.structs.replace(job, id=secrets.token_hex(4)) for job in given]

        def decide(table: Table) -> list[dict[str, Any]]:
            there = table.jobs()
            base = there if self._seen is None else self._seen
            changed = [_due.check(_since(job, there.get(job.id))) for job in wanted if job != base.get(job.id)]
            gone = base.keys() & there.keys() - {job.id for job in wanted}
            _check_room(table, len([job for job in changed if job.id not in there]) - len(gone))
            lines = [_line(job) for job in changed if job != there.get(job.id)]
            return [*lines, *({"hide": id, "hidden": True} for id in sorted(gone))]

        table = self._change(decide)
        found = ((job.id, table.get(job.id)) for job in wanted)
        self._seen = {id: job for id, job in found if job is not None}
        return list(self._seen.values())

    # when they run

    def due(self, now: datetime | None = None) -> list[Due]:
        """Return the slots that are to be run now, oldest first: of each job the newest one, if nobody took it."""
        return _due.due(self._ask(Table.jobs).values(), self._claims.newest, _moment(now))

    def claim(self, job: Job, slot: datetime, missed: int = 0) -> bool:
        """Take a slot: True for exactly one of all schedulers, for all time. Run it only then."""
        return self._claims.add(_due.read(job), _moment(slot), missed)

    def finish(self, job: Job, slot: datetime, ended: Ended) -> None:
        """Note how a slot that was taken ended."""
        self._claims.end(_due.read(job), _moment(slot), ended)

    def next(self, job: Job, now: datetime | None = None) -> datetime | None:
        """Return the next slot of a job; None when it is disabled, or its line cannot be used."""
        if _due.read(job).enabled is not True or _due.fault(job):
            return None
        return _due.timetable(job).next(_moment(now))

    def missed(self, job: Job, now: datetime | None = None) -> int:
        """Return how many slots of a job passed without a run since the last one, or before the last one.

        At most `schedules.MOST_COUNTED`: there counting ends.
        """
        for one in _due.due([_due.read(job)], self._claims.newest, _moment(now)):
            return one.missed
        last = self._claims.last(job)
        return last.missed if last else 0

    def last(self, job: Job) -> Run | None:
        """Return the last run of a job."""
        return self._claims.last(_due.read(job))

    def log(self, count: int = 20, job: str = "") -> list[Run]:
        """Return the last runs, oldest first; NotFound when there never was such a job."""
        check_given(job=job)
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise Invalid(f"count is {count!r}.", "Use a number from 1 on.")
        runs = (run for run in self._claims.newest_first() if job in ("", run.job))
        found = list(itertools.islice(runs, count))[::-1]
        if job and not found and self._ask(lambda table: table.any(job)) is None:
            self.get(job)  # says so
        return found

    def unfinished(self) -> list[Run]:
        """Return the slots that were taken lately and have no end: they run now, or their scheduler died."""
        return self._claims.unfinished()

    # the log

    def _one(self, id: str, line: Callable[[Job], dict[str, Any] | None], op_id: str) -> Job:
        """Change one job that must be there, and return what is then known of it."""
        check_given(id=id, op_id=op_id)
        check_op(op_id)

        def decide(table: Table) -> list[dict[str, Any]]:
            if op_id in table.ops:
                if table.ops[op_id] != id:
                    raise Conflict(f'The op_id "{op_id}" was used for another job.', "Use a new op_id.")
                return []
            made = line(_known(table, id))
            return [made] if made else []

        return self._change(decide, op_id).any(id) or _known(Table(), id)

    def _change(self, decide: Callable[[Table], list[dict[str, Any]]], op_id: str = "") -> Table:
        """Add the lines that the jobs as they are now call for, in one piece; return what the log says then."""
        op = {"op": op_id} if op_id else {}
        for _ in range(_TRIES):
            lines, state = self._ask(lambda table: (decide(table), (table.lines, table.order)))
            try:
                self._memory.add(
                    self._path, [line | op for line in lines], guard=functools.partial(self._unless, state),
                    after=state[1],
                )  # fmt: skip
            except _Changed:
                continue
            return self._ask(lambda table: table)
        raise Busy(f"{self._path} is changed by others all the time; nothing was written.", "Try again.")

    def _unless(self, state: tuple[int, str], _end: LogEnd) -> None:
        if self._ask(lambda table: (table.lines, table.order)) != state:
            raise _Changed

    def _ask(self, question: Callable[[Table], Answer]) -> Answer:
        return self._follower.ask(self._path, Table, self.warnings, question)


def _known(table: Table, id: str) -> Job:
    job = table.get(id)
    if job is None:
        there = table.jobs()
        hint = close_to(id, there) or _named(id, there.values())
        raise NotFound(f'There is no job "{id[:200]}".{hint}', "Use cron_list to see all jobs and their ids.")
    return job


def _named(name: str, jobs: Iterable[Job]) -> str:
    """Return a hint at the ids of the jobs whose name is this one, or near to it."""
    by_name: dict[str, list[str]] = {}
    for job in jobs:
        by_name.setdefault(job.name, []).append(job.id)
    near = nearest(name, by_name)
    ids = by_name.get(near, [])[:_SHOWN]
    which = " or ".join(f'"{id}"' for id in ids)
    what = "That is the id" if len(ids) == 1 else "These are the ids"
    return f' Did you mean {which}? {what} of "{near}".' if ids else ""


def _check_room(table: Table, more: int) -> None:
    count = len(table.jobs())
    if more > 0 and count + more > MOST_JOBS:
        raise OverBudget(f"There are {count} jobs; {MOST_JOBS} is the most.", "Remove one with cron_remove first.")


def _since(job: Job, before: Job | None) -> Job:
    """Return a job with the moment from which its slots count."""
    since = normal(job.since)
    if job.since and not since:
        raise Invalid(f"since is {job.since!r}.", "Use ISO 8601, like 2026-02-23T14:00:00Z, or leave it out.")
    if before is not None and since in ("", before.since):
        enabled = job.enabled is True and before.enabled is not True
        restarts = (job.schedule, job.timezone) != (before.schedule, before.timezone) or enabled
        since = utc_now() if restarts else before.since
    return msgspec.structs.replace(job, since=since or utc_now())


def _line(job: Job) -> dict[str, Any]:
    return {"job": job.id, **{name: value for name, value in msgspec.to_builtins(job).items() if name != "id"}}


def _read(line: Mapping[str, Any], time: str) -> Job:
    """Read a job, whoever wrote the line; what is missing in it, or cannot be used, makes it a job that is never due.

    What `enabled` says is kept as it is, so that the fault can be told.
    """
    texts = {
        name: line[name]
        for name in ("name", "message", "schedule", "channel", "timezone")
        if isinstance(line.get(name), str)
    }
    return Job(
        **{"name": "", "message": "", "schedule": ""} | texts, id=line["job"],
        enabled=line.get("enabled", True), since=normal(line.get("since")) or time,
    )  # fmt: skip


def _moment(now: datetime | None) -> datetime:
    if now is None:
        return datetime.now(UTC)
    if not isinstance(now, datetime):
        raise Invalid(f"The time is {now!r}.", "Use a datetime; one without a zone is local time.")
    return now.astimezone(UTC)


class _Changed(Exception):
    """The log is not what it was when the work began."""
