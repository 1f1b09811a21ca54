"""Jobs, and which of them are due: a pure function of the jobs, the slots that were taken, and the time.

Of the slots that passed without a run only the newest one is due; those before it were missed, and are counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import msgspec

from holdfast.errors import HoldfastError, Invalid
from holdfast.formats import schedules
from holdfast.formats.schedules import Timetable
from holdfast.times import iso, parse_ms

CHANNEL = "cli:local"
_ID = re.compile(r"[\w-]{1,64}", re.ASCII)
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


def timetable(job: Job) -> Timetable:
    """Return the slots of a job; Invalid when what its line says cannot be used."""
    since = parse_ms(job.since)
    if since is None or not _ID.fullmatch(job.id):
        raise Invalid(f'The line of the job "{job.id}" has no usable id or time.', "Add it anew.")
    return Timetable(schedules.parse(job.schedule), schedules.zone(job.timezone), moment(since))


def fault(job: Job) -> str:
    """Say why a job can never be due, "" when it can."""
    try:
        timetable(job)
    except HoldfastError as error:
        return str(error)
    return ""


def due(jobs: Iterable[Job], taken: Callable[[Job, datetime], datetime | None], now: datetime) -> list[Due]:
    """Return what is due at a time, oldest slot first; `taken` tells a job's newest slot up to one that was taken."""
    found = []
    for job in jobs:
        if not job.enabled or fault(job):
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


def check(job: Job) -> Job:
    """Return a job as it is kept, or refuse it; every part has its length, and only a message has several lines."""
    given = {name: getattr(job, name) for name in LONGEST}
    wrong = [name for name, value in given.items() if not isinstance(value, str) or not value.strip()]
    if wrong or not isinstance(job.enabled, bool):
        what = ", ".join(wrong or ["enabled"])
        raise Invalid(f"Missing or blank: {what}.", "A job needs a name, a message and a schedule, all text.")
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
