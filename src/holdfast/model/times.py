"""Times, and ids that contain a time.

A time is stored as ISO 8601 in UTC with milliseconds, so text order is time order. A time without a zone is local
time. An id is a UUIDv7, 48 bits of milliseconds and then random bits, so id order is time order too.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import time
from datetime import UTC, date, datetime, timedelta

from holdfast.errors import Invalid
from holdfast.model.patterns import regex

_LOW62 = (1 << 62) - 1
_UUID7 = regex(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")
_AGES = ((31_557_600, "year"), (2_629_800, "month"), (86_400, "day"), (3_600, "hour"), (60, "minute"))
LAST_MS = 253_402_300_799_999
"""The end of the year 9999: text order is time order up to here, and an id can still be followed by others."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def iso(ms: int) -> str:
    """Format milliseconds since the epoch."""
    minutes, rest = divmod(ms, 60_000)
    return f"{_minute(minutes)}:{rest // 1000:02d}.{rest % 1000:03d}Z"


@functools.lru_cache(maxsize=64)
def _minute(minutes: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M", time.gmtime(60 * minutes))


def utc_now() -> str:
    return iso(now_ms())


def from_ns(nanoseconds: int) -> str:
    """Format the timestamp of a file."""
    return iso(max(0, nanoseconds) // 1_000_000)


def parse_ms(value: object, *, utc: bool = False) -> int | None:
    """Parse a date, a time or a number of (milli)seconds; return None for anything else.

    A time without a zone is local time; with `utc` it is UTC, the same on every machine.
    """
    try:
        if isinstance(value, bool):
            return None
        if isinstance(value, int | float):
            ms = int(value if abs(value) >= 1e11 else value * 1000)
        elif isinstance(value, str) and value:
            moment = datetime.fromisoformat(value)
            if utc and moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            ms = int(moment.timestamp() * 1000)
        else:
            return None
    except (ValueError, OverflowError, OSError):
        return None
    return ms if 0 <= ms <= LAST_MS else None


def normal(value: object) -> str:
    """Return a time as UTC text, "" if it is not a time."""
    ms = parse_ms(value)
    return "" if ms is None else iso(ms)


def bound(text: str, *, end: bool = False) -> str:
    """Return a given date or time as UTC text; a bare date as an end includes the whole day."""
    ms = parse_ms(text)
    if ms is None:
        raise Invalid(f"{text!r} is not a date or time.", "Use ISO 8601, like 2026-02-23 or 2026-02-23T14:00:00Z.")
    if end and len(text) == 10:
        following = datetime.fromisoformat(text) + timedelta(days=1)  # a calendar day has 23 to 25 hours
        ms = int(following.timestamp() * 1000) - 1
    return iso(ms)


def from_prefix(name: str) -> str:
    """Return the date at the start of a file name like `260208-title`, "" if there is none."""
    found = re.match(r"(\d\d)(\d\d)(\d\d)-", name, re.ASCII)
    day = "20{}-{}-{}".format(*found.groups()) if found else ""
    return day if parse_ms(day) is not None else ""


def today() -> str:
    return date.today().isoformat()


def local(text: str) -> str:
    """Format a stored time for people, in the local zone."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return text


def age(text: str, at: float | None = None) -> str:
    """Return how long ago a stored time was: "3 minutes ago", "2 days ago"; midnight today is "today"."""
    ms = parse_ms(text)
    if ms is None:
        return ""
    seconds = (time.time() if at is None else at) - ms / 1000
    if 0 <= seconds < 86_400 and time.localtime(ms / 1000)[3:6] == (0, 0, 0):
        return "today"
    if seconds < 45:
        return "just now" if seconds > -45 else "in the future"
    for size, name in _AGES:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'s' if count > 1 else ''} ago"
    return "1 minute ago"


def is_id(text: object) -> bool:
    """Check for a UUIDv7 in lower case, with a time before the year 10000."""
    return isinstance(text, str) and _UUID7.match(text) is not None and id_ms(text) <= LAST_MS


def id_ms(identifier: str) -> int:
    """Return the time of an id in milliseconds."""
    return int(identifier[:8] + identifier[9:13], 16)


def mint(after: str = "", ms: int | None = None) -> str:
    """Make an id for now that is greater than `after`."""
    noise = int.from_bytes(os.urandom(10), "big")
    made = _pack(((now_ms() if ms is None else ms) << 74) | (noise >> 6))
    if made > after or not is_id(after):
        return made
    value = int(after.replace("-", ""), 16)
    payload = (value >> 80 << 74) | ((value >> 64 & 0xFFF) << 62) | (value & _LOW62)
    return _pack(payload + 1 + (noise >> 40))  # a random step, so that two copies of a log never mint the same id


def mint_many(after: str, count: int, ms: int | None = None) -> list[str]:
    """Make ascending ids that are greater than `after`, for now or for a time."""
    ids = []
    for _ in range(count):
        after = mint(after, ms)
        ids.append(after)
    return ids


def derived_id(ms: int, content: bytes) -> str:
    """Return the id of a line that has none, made from its time and a hash of its bytes."""
    digest = int.from_bytes(hashlib.blake2b(content, digest_size=10).digest(), "big")
    return _pack((ms << 74) | (digest >> 6))


def _pack(payload: int) -> str:
    value = (payload >> 74 << 80) | (7 << 76) | ((payload >> 62 & 0xFFF) << 64) | (2 << 62) | (payload & _LOW62)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
