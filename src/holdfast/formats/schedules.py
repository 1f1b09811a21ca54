"""Schedules, cron lines or `every N` seconds, and the slots at which they fire.

A slot is a moment in UTC with whole seconds. A cron line is read in its time zone; `cronsim` defines the edges of
daylight saving: a time inside the gap fires when the gap ends, and a time that occurs twice fires at the first. The
slots of `every N` are counted from the moment at which the job was set, so every process computes the same ones.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

import msgspec

from holdfast.errors import Invalid
from holdfast.model.names import close_to
from holdfast.model.patterns import regex

LOCAL = "local"
MOST_COUNTED = 1_000
"""Slots are counted up to this number."""
_LONGEST = 200
_MOST_SECONDS = 366 * 86_400
_EVERY = regex(r"every ([0-9]{1,12})", re.IGNORECASE)
_NICKNAMES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip
_LOCALTIME = "/etc/localtime"
_SECOND, _CHANGE = timedelta(seconds=1), timedelta(hours=3)
_SOME_DAY = datetime(2000, 1, 1)


class Schedule(msgspec.Struct, frozen=True):
    """A parsed schedule: either a cron line or a number of seconds."""

    text: str
    cron: str = ""
    seconds: int = 0


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> Schedule:
    """Parse a schedule, or refuse it; one that never fires is refused too."""
    tidy = " ".join(text.split())
    if len(tidy) > _LONGEST:
        raise _invalid(f"{text[:_LONGEST]}…")
    if found := _EVERY.fullmatch(tidy):
        if not 1 <= int(found[1]) <= _MOST_SECONDS:
            raise _invalid(text)
        return Schedule(tidy.lower(), seconds=int(found[1]))
    line = _NICKNAMES.get(tidy.lower(), tidy)
    if len(line.split(" ")) != 5:
        raise _invalid(text)
    if _fires(line):
        return Schedule(tidy, cron=line)
    minute, hour, day, month, weekday = line.split(" ")
    if not (_fires(f"{minute} {hour} {day} * {weekday}") and _fires(f"{minute} {hour} 1 {month} *")):
        raise _invalid(text)  # the fault is more than a day that the month does not have
    raise Invalid(f"The schedule '{text}' never fires: there is no such day.", "Use a day that the month has.")


def _fires(line: str) -> bool:
    """Check that a cron line is valid and has a slot."""
    from cronsim import CronSim, CronSimError

    try:
        return next(CronSim(line, _SOME_DAY), None) is not None
    except CronSimError:
        return False


def _invalid(text: str) -> Invalid:
    return Invalid(f"Invalid schedule '{text}'.", "Use cron syntax or 'every N'.")


@functools.lru_cache(maxsize=256)
def _named(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo, available_timezones

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        hint = close_to(name, available_timezones()) if len(name) <= _LONGEST else ""
        fault = f'There is no time zone "{name[:_LONGEST]}".{hint}'
        raise Invalid(fault, "Use an IANA name like Europe/Berlin, or local.") from None


def zone(name: str) -> tzinfo:
    """Return the time zone of an IANA name.

    `local` is the zone of TZ or of this machine with its daylight saving, otherwise the current offset.
    """
    from zoneinfo import ZoneInfo

    if name != LOCAL:
        return _named(name)
    wanted = os.environ.get("TZ", "").removeprefix(":")
    path = wanted if wanted.startswith("/") else "" if wanted else _LOCALTIME
    try:
        if not path:
            return ZoneInfo(wanted)
        name = os.path.realpath(path).rpartition("/zoneinfo/")[2]
        if not name.startswith("/"):
            return _named(name)
        with open(path, "rb") as file:
            return ZoneInfo.from_file(file, key=LOCAL)
    except (KeyError, ValueError, OSError, Invalid):
        return datetime.now().astimezone().tzinfo or UTC


class Timetable(msgspec.Struct, frozen=True):
    """The slots of one schedule in one zone, after the moment at which it was set."""

    schedule: Schedule
    zone: tzinfo
    since: datetime

    def next(self, after: datetime) -> datetime | None:
        return next(self._after(after), None)

    def last(self, moment: datetime) -> datetime | None:
        """Return the newest slot at or before a moment."""
        if self.schedule.seconds:
            start = moment - timedelta(seconds=self.schedule.seconds)
        else:
            from cronsim import CronSim

            backwards = CronSim(self.schedule.cron, (moment + _SECOND).astimezone(self.zone), reverse=True)
            start = next(backwards, self.since) - _CHANGE  # around a change of the clock, only going forward is exact
        return max(itertools.takewhile(lambda slot: slot <= moment, self._after(start)), default=None)

    def count(self, after: datetime, before: datetime) -> int:
        """Count the slots between two moments, not including them; at most `MOST_COUNTED`."""
        between = itertools.takewhile(lambda slot: slot < before, self._after(after))
        return sum(1 for _ in itertools.islice(between, MOST_COUNTED))

    def _after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the slots after a moment and after the one at which the schedule was set."""
        moment = max(moment, self.since).astimezone(UTC)
        if self.schedule.seconds:
            step, since = timedelta(seconds=self.schedule.seconds), self.since.astimezone(UTC).replace(microsecond=0)
            slot = since + ((moment - since) // step + 1) * step
            while True:
                yield slot
                slot += step
        from cronsim import CronSim

        for found in CronSim(self.schedule.cron, moment.astimezone(self.zone)):
            slot = found.astimezone(UTC)
            if slot > moment:  # in the hour that occurs twice, cronsim may return the first pass
                moment = slot
                yield slot
