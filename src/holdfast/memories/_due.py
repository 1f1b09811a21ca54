"""Jobs, and which of them are due: a pure function of the jobs, the slots that were taken, and the time.

Of the slots that passed without a run only the newest one is due; those before it were missed, and are counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime

import msgspec

from holdfast.errors import HoldfastError, Invalid
from holdfast.formats import schedules
from holdfast.formats.schedules import Timetable
from holdfast.model.names import check_flag, check_given
from holdfast.model.times import iso, parse_ms

CHANNEL = "cli:local"
_ID = re.compile(r"[\w-]{1,64}", re.ASCII)
_ID_RULE = "Use up to 64 letters, digits, - and _."
_SHOWN = 80
LONGEST = {"name": 200, "message": 10_000, "schedule": 200, "channel": 200, "timezone": 100}
"""Most characters of what a job is given."""


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
    """From when its slots count: when it was added or enabled again, or when its schedule changed."""


class Due(msgspec.Struct, frozen=True):
    """A slot of a job that nobody has taken yet."""

    job: Job
    slot: datetime
    missed: int = 0
    """How many slots before it passed without a run; at most `schedules.MOST_COUNTED`."""


def is_more(missed: int) -> bool:
    """Is this where counting ended, so that there may be more?"""
    return missed >= schedules.MOST_COUNTED


def counted(missed: int) -> str:
    """Return how many slots were missed, as a person reads it."""
    return f"{missed}+" if is_more(missed) else str(missed)


def timetable(job: Job) -> Timetable:
    """Return the slots of a job; Invalid, with all that is wrong, when what its line says cannot be used."""
    since, faults = parse_ms(job.since), list(_faults(job))
    if faults or since is None:
        raise Invalid(" ".join(faults))
    return Timetable(schedules.parse(job.schedule), schedules.zone(job.timezone), moment(since))


def fault(job: Job) -> str:
    """Say all that keeps a job from ever being due, "" when nothing does."""
    return " ".join(_faults(job))


def _faults(job: Job) -> Iterator[str]:
    """Yield what is wrong with a job, whoever wrote its line."""
    if not _ID.fullmatch(job.id):
        yield f'The id "{job.id[:_SHOWN]}" cannot be used. {_ID_RULE}'
    if parse_ms(job.since) is None:
        yield 'Its line has no time: "since" says from when its slots count.'
    if not job.message.strip():
        yield "It has no message."
    if not isinstance(job.enabled, bool):
        yield f'"enabled" is {str(job.enabled)[:_SHOWN]!r}: use true or false.'
    for read, value in ((schedules.parse, job.schedule), (schedules.zone, job.timezone)):
        try:
            read(value)
        except HoldfastError as error:
            yield str(error)


def due(jobs: Iterable[Job], taken: Callable[[Job, datetime], datetime | None], now: datetime) -> list[Due]:
    """Return what is due at a time, oldest slot first; `taken` tells a job's newest slot up to one that was taken."""
    found = []
    for job in jobs:
        if job.enabled is not True or fault(job):
            continue
        table = timetable(job)
        slot = table.last(now)
        last = slot and taken(job, slot)
        if slot and (last is None or last < slot):
            found.append(Due(job, slot, table.count(max(last or table.since, table.since), slot)))
    return sorted(found, key=lambda one: one.slot)


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def text_of(slot: datetime) -> str:
    """Return a slot as it is written."""
    return iso(int(slot.timestamp() * 1000))


def read(given: object) -> Job:
    """Return what a caller gave as a job: one, or a mapping with the fields of one."""
    if isinstance(given, Job):
        check_given(id=given.id)
        return given
    if not isinstance(given, Mapping):
        raise Invalid(
            f"{given!r:.200} is no job.", f"Give a Job, or a mapping with {', '.join(Job.__struct_fields__)}."
        )
    if unknown := [str(name) for name in given if name not in Job.__struct_fields__]:
        what = f"A job has no field {', '.join(unknown)}."
        raise Invalid(what, f"It has: {', '.join(Job.__struct_fields__)}.")
    return read(Job(**{"name": "", "message": "", "schedule": ""} | dict(given)))


def check(job: Job) -> Job:
    """Return a job as it is kept, or refuse it; every part has its length, and only a message has several lines."""
    given = {name: getattr(job, name) for name in LONGEST}
    check_given(**given, id=job.id, since=job.since)
    check_flag(enabled=job.enabled)
    if not _ID.fullmatch(job.id):
        raise Invalid(f'The id "{job.id[:_SHOWN]}" cannot be used.', _ID_RULE)
    if wrong := [name for name, value in given.items() if not value.strip()]:
        raise Invalid(f"Missing or blank: {', '.join(wrong)}.", "A job needs a name, a message and a schedule.")
    for name, value in given.items():
        if len(value) > LONGEST[name]:
            raise Invalid(f"The {name} has {len(value):,} characters.", f"Use at most {LONGEST[name]:,}.")
        if name != "message" and not value.strip().isprintable():
            raise Invalid(f"The {name} holds a line break or another control character.", "Use one plain line.")
    if "\0" in job.message:
        raise Invalid("The message holds a NUL character.", "Take it out.")
    tidy = {name: value if name == "message" else value.strip() for name, value in given.items()}
    schedules.zone(tidy["timezone"])
    return msgspec.structs.replace(job, **tidy | {"schedule": schedules.parse(tidy["schedule"]).text})
