"""Jobs: scheduled messages that the owner of a chat bot and its agent share, and their runs.

A job defines when a message is due and where it goes; the program that runs is a setting of the owner. All jobs are in
one log; the newest entry of a job counts. A scheduler asks for `due` slots, runs a slot only after `claim` returned
True, and records the result with `finish`. Of several missed slots only the newest is due; the others are counted.

Runs have one log per month of the slots. A claim is one durable entry, added only when there is none for the slot, so
no slot runs twice. A second entry records how the run ended; without it the run is reported as unfinished.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from holdfast.core import Core
from holdfast.errors import Conflict, HoldfastError, Invalid, NotFound, OverBudget
from holdfast.formats import jsonl, schedules
from holdfast.formats.schedules import Timetable
from holdfast.model.kinds import KINDS
from holdfast.model.names import check_flag, check_given, close_to, nearest
from holdfast.model.patterns import regex
from holdfast.model.records import Scope
from holdfast.model.times import iso, normal, parse_ms, utc_now
from holdfast.storage.log import Logs, Marks
from holdfast.storage.writer import check_op

CHANNEL = "cli:local"
MOST_JOBS = 500
MOST_OUTPUT = 2_000
UNFINISHED = "unfinished"
_MOST_IDS = 5
_SHOWN = 80
_LAST = datetime(9999, 12, 31, tzinfo=UTC)
_RECENT = 2
"""Months of runs that are always read, also when a job's slots count from later on."""
_ID = regex(r"[\w-]{1,64}", re.ASCII)
_ID_RULE = "Use up to 64 letters, digits, - and _."
_LONGEST = {"name": 200, "message": 10_000, "schedule": 200, "channel": 200, "timezone": 100}
_REQUIRED = {"name": "", "message": "", "schedule": ""}
Answer = TypeVar("Answer")
Entries = list[dict[str, Any]]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is due by a schedule."""

    name: str
    message: str
    schedule: str
    channel: str = CHANNEL
    timezone: str = schedules.LOCAL
    enabled: bool = True
    id: str = ""
    since: str = ""
    """Its slots count from this time on: when it was added, enabled again, or got another schedule."""


class Due(msgspec.Struct, frozen=True):
    """A slot of a job that is due and not claimed yet."""

    job: Job
    slot: datetime
    missed: int = 0
    """How many slots before it passed without a run; at most `schedules.MOST_COUNTED`."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    status: str = "done"
    """`done`, `failed` or `timeout`."""
    exit: int | None = None
    output: str = ""
    """The beginning of the output, or the error."""
    seconds: float = 0.0


class JobRun(Ended, frozen=True, kw_only=True):
    """A slot of a job that was claimed."""

    job: str
    name: str = ""
    slot: str
    time: str = ""
    """When it was claimed."""
    missed: int = 0
    status: str = UNFINISHED

    def ended(self, how: Ended) -> JobRun:
        return msgspec.structs.replace(self, **{name: getattr(how, name) for name in Ended.__struct_fields__})


def is_more(missed: int) -> bool:
    """Did counting stop here, so that there may be more?"""
    return missed >= schedules.MOST_COUNTED


def counted(missed: int) -> str:
    return f"{missed}+" if is_more(missed) else str(missed)


def slot_text(slot: datetime) -> str:
    return iso(_ms(slot))


def fault(job: Job) -> str:
    """Return the faults that keep a job from being due; its entry may have been written by hand."""
    found = []
    if not _ID.fullmatch(job.id):
        found.append(f'The id "{job.id[:_SHOWN]}" cannot be used. {_ID_RULE}')
    if parse_ms(job.since) is None:
        found.append('Its line has no time: its slots count from the time in "since".')
    if not job.message.strip():
        found.append("It has no message.")
    if not isinstance(job.enabled, bool):
        found.append(f'"enabled" is {str(job.enabled)[:_SHOWN]!r}: use true or false.')
    for parse, value in ((schedules.parse, job.schedule), (schedules.zone, job.timezone)):
        try:
            parse(value)
        except HoldfastError as error:
            found.append(str(error))
    return " ".join(found)


def due(jobs: Iterable[Job], claimed: Callable[[Job, datetime], datetime | None], now: datetime) -> list[Due]:
    """Return what is due, oldest slot first; `claimed` returns a job's newest claimed slot up to a given one."""
    found = []
    for job in jobs:
        if not (table := _timetable(job)):
            continue
        slot = table.last(now)
        last = slot and claimed(job, slot)
        if slot and (last is None or last < slot):
            found.append(Due(job, slot, table.count(max(last or table.since, table.since), slot)))
    return sorted(found, key=lambda one: one.slot)


class _Table:
    """The state of the log of jobs; the order of the entries does not matter."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[str, str, Job]] = {}
        self._marks = Marks()
        self._first: dict[str, str] = {}
        self.ops: dict[str, str] = {}
        """The job that was changed under an op_id."""

    def add(self, entry: Mapping[str, Any]) -> None:
        identifier, order, time = jsonl.identity(entry, "time")
        job, hides, op = entry.get("job"), entry.get("hide"), entry.get("op")
        about = hides if isinstance(hides, str) else job
        if not isinstance(about, str):
            return
        if isinstance(op, str) and op:
            self.ops[op] = about
        if self._marks.add(entry):
            return
        self._first[about] = min(order, self._first.get(about, order))
        if about not in self._newest or self._newest[about][0] <= order:
            texts = {name: value for name in _LONGEST if isinstance(value := entry.get(name), str)}
            since = normal(entry.get("since")) or time
            read = Job(**_REQUIRED | texts, id=about, enabled=entry.get("enabled", True), since=since)
            self._newest[about] = (order, identifier, read)

    def get(self, id: str) -> Job | None:
        """Return a job that was not removed."""
        if id not in self._newest:
            return None
        order, entry, job = self._newest[id]
        of_entry, of_job = self._marks.newest(entry), self._marks.newest(id)
        newest = max(of_entry, of_job) if of_job[0] > order else of_entry  # a job's mark is about entries before it
        return None if newest[1] else job

    def known(self, id: str) -> Job:
        """Return a job; NotFound names the ids that may be meant."""
        if job := self.get(id):
            return job
        there = self.jobs()
        hint = close_to(id, there)
        if not hint and (near := nearest(id, (job.name for job in there.values()))):
            ids = [job.id for job in there.values() if job.name == near][:_MOST_IDS]
            which = " or ".join(f'"{one}"' for one in ids)
            hint = f' Did you mean {which}? {"That is the id" if len(ids) == 1 else "These are the ids"} of "{near}".'
        raise NotFound(f'There is no job "{id[:200]}".{hint}', "Use cron_list to see all jobs and their ids.")

    def ever(self, id: str) -> Job | None:
        """Return a job, also one that was removed."""
        return self._newest[id][2] if id in self._newest else None

    def jobs(self) -> dict[str, Job]:
        """Return the jobs in the order in which they were added."""
        found = ((id, self.get(id)) for id in sorted(self._newest, key=lambda id: self._first[id]))
        return {id: job for id, job in found if job is not None}

    def check_room(self, more: int) -> None:
        count = len(self.jobs())
        if more > 0 and count + more > MOST_JOBS:
            raise OverBudget(f"There are {count} jobs; the limit is {MOST_JOBS}.", "Remove one with cron_remove first.")


class _Month:
    """The state of the log of a month of runs; the order of the entries does not matter."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[int, JobRun]] = {}
        """The runs of each job by their slots, in milliseconds."""
        self._ends: dict[tuple[str, int], Ended] = {}
        """Ends whose claim was not read yet; a merge may reverse them."""

    def add(self, entry: Mapping[str, Any]) -> None:
        job, slot = (value if isinstance(value := entry.get(name), str) else "" for name in ("job", "slot"))
        ms = parse_ms(slot)
        ends, begins = (isinstance(entry.get(name), str) for name in ("finish", "claim"))
        kind = Ended if ends else JobRun if begins else None
        if kind is None or not job or ms is None:
            return
        fields: dict[str, Any] = {}
        for field in msgspec.structs.fields(kind):  # one of the wrong type is left out
            with contextlib.suppress(KeyError, msgspec.ValidationError):
                fields[field.name] = msgspec.convert(entry[field.name], field.type)
        found = kind(**fields)
        runs = self.runs.setdefault(job, {})
        run = runs.get(ms)
        if isinstance(found, JobRun):
            if run is None:  # else it is a copy of an entry, added by a merge
                runs[ms] = found.ended(self._ends.pop((job, ms), found))
        elif run is None:
            self._ends.setdefault((job, ms), found)
        elif run.status == UNFINISHED:
            runs[ms] = run.ended(found)

    def newest(self, job: str, until: int) -> tuple[int, JobRun] | None:
        """Return the newest slot of a job up to this one, and its run."""
        runs = self.runs.get(job, {})
        slot = max((one for one in runs if one <= until), default=None)
        return None if slot is None else (slot, runs[slot])

    def all(self, job: str = "") -> list[JobRun]:
        """Return the runs of a job, or of all, oldest first."""
        found = [run for one, runs in self.runs.items() if job in ("", one) for run in runs.values()]
        return sorted(found, key=lambda run: (run.time, run.slot))


class Jobs:
    """The jobs of one memory and their runs. Safe to use from several processes at once."""

    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self._path = memory.layout.path_for(KINDS["job"], Scope())
        self._jobs = Logs(memory, _Table)
        self._runs = Logs(memory, _Month)
        self._loaded: dict[str, Job] | None = None
        """The jobs as last loaded or saved. The difference to a given list is the owner's change."""
        self.warnings: list[str] = []
        """Warnings of lines that could not be read so far."""

    def all(self) -> list[Job]:
        """Return all jobs, in the order in which they were added."""
        return list(self._ask(_Table.jobs).values())

    def load_cron_jobs(self) -> list[Job]:
        """Return all jobs, to be changed and saved with `save_cron_jobs`."""
        self._loaded = self._ask(_Table.jobs)
        return list(self._loaded.values())

    def get(self, id: str) -> Job:
        check_given(id=id)
        return self._ask(lambda table: table.known(id))

    def add(
        self, name: str, message: str, schedule: str, channel: str = CHANNEL, timezone: str = "local",
        enabled: bool = True, op_id: str = "",
    ) -> Job:  # fmt: skip
        """Add a job; its slots count from now on."""
        check_given(op_id=op_id)
        check_op(op_id)
        made = _checked(
            Job(
                name=name, message=message, schedule=schedule, channel=channel, timezone=timezone, enabled=enabled,
                id=secrets.token_hex(4), since=utc_now(),
            )
        )  # fmt: skip

        def decide(table: _Table) -> Entries:
            if op_id in table.ops:
                return []
            table.check_room(1)
            return [_entry(made)]

        self._change(decide, op_id)
        return self._ask(lambda table: table.ever(table.ops.get(op_id, ""))) or made

    def remove(self, id: str, op_id: str = "") -> Job:
        """Remove a job; its entries stay in the log."""
        return self._change_one(id, lambda _job: {"hide": id, "hidden": True}, op_id)

    def set_enabled(self, id: str, enabled: bool, op_id: str = "") -> Job:
        """Enable or disable a job; slots that pass while it is disabled do not count as missed."""
        check_flag(enabled=enabled)

        def change(job: Job) -> dict[str, Any] | None:
            changed = msgspec.structs.replace(job, enabled=enabled)
            return None if job.enabled is enabled else _entry(_with_since(changed, job))

        return self._change_one(id, change, op_id)

    def save_cron_jobs(self, jobs: Iterable[Job | Mapping[str, Any]]) -> list[Job]:
        """Add, change and remove jobs so that they match the list; return them as stored.

        A job may be a mapping. Jobs that others changed or added since the list was loaded are left as they are.
        """
        if not isinstance(jobs, Iterable):
            raise Invalid(f"jobs is {jobs!r}.", "Give a list of jobs, as load_cron_jobs returns it.")
        given = [_as_job(job) for job in jobs]
        wanted = [job if job.id else msgspec.structs.replace(job, id=secrets.token_hex(4)) for job in given]

        def decide(table: _Table) -> Entries:
            there = table.jobs()
            base = there if self._loaded is None else self._loaded
            changed = [_checked(_with_since(job, there.get(job.id))) for job in wanted if job != base.get(job.id)]
            gone = base.keys() & there.keys() - {job.id for job in wanted}
            table.check_room(len([job for job in changed if job.id not in there]) - len(gone))
            entries = [_entry(job) for job in changed if job != there.get(job.id)]
            return [*entries, *({"hide": id, "hidden": True} for id in sorted(gone))]

        self._change(decide)
        stored = self._ask(_Table.jobs)
        self._loaded = {job.id: stored[job.id] for job in wanted if job.id in stored}
        return list(self._loaded.values())

    def _change_one(self, id: str, change: Callable[[Job], dict[str, Any] | None], op_id: str) -> Job:
        """Add the entry that `change` returns for a job, which must exist; return the changed job."""
        check_given(id=id, op_id=op_id)
        check_op(op_id)

        def decide(table: _Table) -> Entries:
            if table.ops.get(op_id, id) != id:
                raise Conflict(f'The op_id "{op_id}" was used for another job.', "Use a new op_id.")
            entry = None if op_id in table.ops else change(table.known(id))
            return [entry] if entry else []

        self._change(decide, op_id)
        return self._ask(lambda table: table.ever(id) or table.known(id))

    def _change(self, decide: Callable[[_Table], Entries], op_id: str = "") -> None:
        op = {"op": op_id} if op_id else {}
        self._jobs.transact(self._path, lambda table: [entry | op for entry in decide(table)], self.warnings)

    def _ask(self, question: Callable[[_Table], Answer]) -> Answer:
        return self._jobs.ask(self._path, question, self.warnings)

    # runs

    def due(self, now: datetime | None = None) -> list[Due]:
        """Return the slots to run now, oldest first: of each job the newest one, unless it is claimed."""
        return due(self._ask(_Table.jobs).values(), self._newest_claimed, _moment(now))

    def claim(self, job: Job, slot: datetime, missed: int = 0) -> bool:
        """Claim a slot: return True, durably, to exactly one scheduler. Run the slot only then."""
        job, slot = _as_job(job), _moment(slot)
        entry = _about("claim", job, slot) | {"missed": missed}

        def decide(month: _Month) -> Entries:
            return [] if _ms(slot) in month.runs.get(job.id, ()) else [entry]

        return bool(self._runs.transact(self._log_of(entry["slot"][:7]), decide, self.warnings))

    def finish(self, job: Job, slot: datetime, ended: Ended) -> None:
        """Record how the run of a claimed slot ended."""
        entry = _about("finish", _as_job(job), _moment(slot))
        entry |= {field: value for field, value in msgspec.structs.asdict(ended).items() if value is not None}
        entry["output"] = self._memory.secrets.clean(ended.output)[:MOST_OUTPUT]
        self._memory.add(self._log_of(entry["slot"][:7]), [entry])

    def next(self, job: Job, now: datetime | None = None) -> datetime | None:
        """Return the next slot of a job; None when it is disabled or faulty."""
        table = _timetable(_as_job(job))
        return table.next(_moment(now)) if table else None

    def missed(self, job: Job, now: datetime | None = None) -> int:
        """Return how many slots passed without a run, since the last run or else before it, up to a limit."""
        waiting = due([_as_job(job)], self._newest_claimed, _moment(now))
        last = waiting[0] if waiting else self.last(job)
        return last.missed if last else 0

    def last(self, job: Job) -> JobRun | None:
        """Return the last run of a job, from the recent months and as far back as its slots count."""
        found = self._newest(_as_job(job))
        return found[1] if found else None

    def log(self, count: int = 20, job: str = "") -> list[JobRun]:
        """Return the last runs, oldest first; NotFound when the job never existed."""
        check_given(job=job)
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise Invalid(f"count is {count!r}.", "Use a number from 1 on.")
        months = (self._ask_month(month, lambda read: read.all(job)) for month in self._months())
        newest = itertools.chain.from_iterable(map(reversed, months))
        found = list(itertools.islice(newest, count))[::-1]
        if job and not found and self._ask(lambda table: table.ever(job)) is None:
            self.get(job)  # raises NotFound
        return found

    def unfinished(self) -> list[JobRun]:
        """Return runs of the recent months without an end, oldest first: they run, or their scheduler was killed."""
        months = itertools.islice(self._months(), _RECENT)
        found = [run for month in months for run in self._ask_month(month, _Month.all) if run.status == UNFINISHED]
        return sorted(found, key=lambda run: run.slot)

    def _newest_claimed(self, job: Job, until: datetime) -> datetime | None:
        """Return the newest claimed slot of a job up to this one."""
        found = self._newest(job, until)
        return datetime.fromtimestamp(found[0] / 1000, UTC) if found else None

    def _newest(self, job: Job, until: datetime = _LAST) -> tuple[int, JobRun] | None:
        """Return the newest slot of a job up to this one, and its run, as far back as the slots of the job count."""
        for place, month in enumerate(self._months(slot_text(until)[:7])):
            if place >= _RECENT and month < job.since[:7]:
                break
            if found := self._ask_month(month, lambda read: read.newest(job.id, _ms(until))):
                return found
        return None

    def _months(self, until: str = "9999-12") -> Iterator[str]:
        """Yield the months that have a log, newest first."""
        for path in sorted(self._memory.store.paths(self._log_of("x").rpartition("/")[0], ".jsonl"), reverse=True):
            place, month = self._memory.layout.classify(path), path.rpartition("/")[2].removesuffix(".jsonl")
            if place and place.kind.name == "claim" and month <= until:
                yield month

    def _ask_month(self, month: str, question: Callable[[_Month], Answer]) -> Answer:
        return self._runs.ask(self._log_of(month), question, self.warnings)

    def _log_of(self, month: str) -> str:
        return self._memory.layout.path_for(KINDS["claim"], Scope(), month=month)


def _with_since(job: Job, before: Job | None) -> Job:
    """Return a job with the time from which its slots count."""
    since = normal(job.since)
    if job.since and not since:
        raise Invalid(f"since is {job.since!r}.", "Use ISO 8601, like 2026-02-23T14:00:00Z, or leave it out.")
    if before is not None and since in ("", before.since):
        enabled = job.enabled is True and before.enabled is not True
        restarts = (job.schedule, job.timezone) != (before.schedule, before.timezone) or enabled
        since = utc_now() if restarts else before.since
    return msgspec.structs.replace(job, since=since or utc_now())


def _entry(job: Job) -> dict[str, Any]:
    return {"job": job.id, **{name: value for name, value in msgspec.to_builtins(job).items() if name != "id"}}


def _about(event: str, job: Job, slot: datetime) -> dict[str, Any]:
    at = slot_text(slot)
    return {event: f"{job.id}@{at}", "job": job.id, "name": job.name, "slot": at}


def _timetable(job: Job) -> Timetable | None:
    """Return the slots of a job; None when it is disabled or faulty."""
    if job.enabled is not True or fault(job):
        return None
    since = datetime.fromtimestamp((parse_ms(job.since) or 0) / 1000, UTC)
    return Timetable(schedules.parse(job.schedule), schedules.zone(job.timezone), since)


def _checked(job: Job) -> Job:
    """Return a job as it is stored, or refuse it."""
    given = {name: getattr(job, name) for name in _LONGEST}
    check_given(**given, id=job.id, since=job.since)
    check_flag(enabled=job.enabled)
    if not _ID.fullmatch(job.id):
        raise Invalid(f'The id "{job.id[:_SHOWN]}" cannot be used.', _ID_RULE)
    if wrong := [name for name, value in given.items() if not value.strip()]:
        raise Invalid(f"Missing or blank: {', '.join(wrong)}.", "A job needs a name, a message and a schedule.")
    for name, value in given.items():
        if len(value) > _LONGEST[name]:
            raise Invalid(f"The {name} has {len(value):,} characters.", f"Use at most {_LONGEST[name]:,}.")
        if name != "message" and not value.strip().isprintable():
            raise Invalid(f"The {name} contains a line break or another control character.", "Use one plain line.")
    if "\0" in job.message:
        raise Invalid("The message contains a NUL character.", "Remove it.")
    tidy = {name: value if name == "message" else value.strip() for name, value in given.items()}
    schedules.zone(tidy["timezone"])
    return msgspec.structs.replace(job, **tidy | {"schedule": schedules.parse(tidy["schedule"]).text})


def _as_job(given: object) -> Job:
    """Return a job that a caller gave as one, or as a mapping with its fields."""
    known = ", ".join(Job.__struct_fields__)
    if isinstance(given, Mapping):
        if unknown := [str(name) for name in given if name not in Job.__struct_fields__]:
            raise Invalid(f"A job has no field {', '.join(unknown)}.", f"It has: {known}.")
        given = Job(**_REQUIRED | dict(given))
    if not isinstance(given, Job):
        raise Invalid(f"{given!r:.200} is not a job.", f"Give a Job, or a mapping with {known}.")
    check_given(id=given.id)
    return given


def _moment(now: datetime | None) -> datetime:
    if now is None:
        return datetime.now(UTC)
    if not isinstance(now, datetime):
        raise Invalid(f"The time is {now!r}.", "Use a datetime; one without a zone is local time.")
    return now.astimezone(UTC)


def _ms(slot: datetime) -> int:
    return int(slot.timestamp() * 1000)
