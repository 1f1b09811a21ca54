"""Times and the ids that carry them.

A time is kept as ISO 8601 in UTC with milliseconds, so that text order is time order. A time without a zone
is read as local time. An id is a UUIDv7: 48 bits of milliseconds, then randomness, so that id order is
time order too; `mint` never goes backwards from the id it is told to follow.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import time
from datetime import UTC, date, datetime, timedelta

from holdfast.errors import Damaged, Invalid

_LOW62 = (1 << 62) - 1
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")
_AGES = ((31_557_600, "year"), (2_629_800, "month"), (86_400, "day"), (3_600, "hour"), (60, "minute"))
_LAST_MS = (1 << 48) - 1


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def iso(ms: int) -> str:
    """Render milliseconds since the epoch."""
    whole, rest = divmod(ms, 1000)
    return f"{_second(whole)}.{rest:03d}Z"


@functools.lru_cache(maxsize=256)
def _second(whole: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))


def parse_ms(value: object, *, utc: bool = False) -> int | None:
    """Read a date, a time or a number of (milli)seconds; None when it is none of these.

    A time without a zone is local time; with `utc` it is taken as it stands, the same on every machine.
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
    return ms if 0 <= ms <= _LAST_MS else None


def normal(value: object) -> str:
    """Return the time as UTC text, or "" when it cannot be read as one."""
    ms = parse_ms(value)
    return "" if ms is None else _safe_iso(ms)


def bound(text: str, *, end: bool = False) -> str:
    """Return a caller's date or time as UTC text; a bare date as an end means the whole day."""
    ms = parse_ms(text)
    if ms is None:
        raise Invalid(f"{text!r} is not a date or time.", "Use ISO 8601, like 2026-02-23 or 2026-02-23T14:00:00Z.")
    if end and len(text) == 10:
        following = datetime.fromisoformat(text) + timedelta(days=1)  # a day of the calendar has 23 to 25 hours
        ms = int(following.timestamp() * 1000) - 1
    return _safe_iso(ms)


def _safe_iso(ms: int) -> str:
    try:
        text = iso(ms)
    except (OverflowError, ValueError, OSError):
        return ""
    return text if len(text) == 24 else ""


def from_prefix(name: str) -> str:
    """Return the date that a file name like `260208-title` starts with, "" when it starts with none."""
    digits, dash, _ = name.partition("-")
    if not dash or len(digits) != 6 or not digits.isdecimal() or not digits.isascii():
        return ""
    day = f"20{digits[:2]}-{digits[2:4]}-{digits[4:]}"
    return day if parse_ms(day) is not None else ""


def today() -> str:
    return date.today().isoformat()


def local(text: str) -> str:
    """Render a stored time for a person, in the local zone."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return text


def age(text: str, at: float | None = None) -> str:
    """Say how long ago a stored time was: "3 minutes ago", "2 days ago"; a bare date is "today"."""
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
    """Is this an id of ours (a UUIDv7 in lower case)?"""
    return isinstance(text, str) and _UUID7.match(text) is not None


def id_ms(identifier: str) -> int:
    """Return the milliseconds that an id carries."""
    return int(identifier[:8] + identifier[9:13], 16)


def mint(after: str = "", ms: int | None = None) -> str:
    """Make an id of now that is also greater than `after`."""
    noise = int.from_bytes(os.urandom(10), "big")
    made = _pack(((now_ms() if ms is None else ms) << 74) | (noise >> 6))
    if made > after or not is_id(after):
        return made
    return _pack(_payload(after) + 1 + (noise >> 40))  # a random step: two copies of a log must not mint the same id


def derived_id(ms: int, content: bytes) -> str:
    """Return the id of a line that was written without one: its own time and a hash of its bytes."""
    digest = int.from_bytes(hashlib.blake2b(content, digest_size=10).digest(), "big")
    return _pack((ms << 74) | (digest >> 6))


def _payload(identifier: str) -> int:
    value = int(identifier.replace("-", ""), 16)
    return (value >> 80 << 74) | ((value >> 64 & 0xFFF) << 62) | (value & _LOW62)


def _pack(payload: int) -> str:
    if payload >> 122:
        raise Damaged("The last id of the log is at the end of all time.", "Correct or remove that line by hand.")
    value = (payload >> 74 << 80) | (7 << 76) | ((payload >> 62 & 0xFFF) << 64) | (2 << 62) | (payload & _LOW62)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def utc_now() -> str:
    return iso(now_ms())


def from_ns(nanoseconds: int) -> str:
    """Render a file's time stamp."""
    return iso(max(0, nanoseconds) // 1_000_000)
