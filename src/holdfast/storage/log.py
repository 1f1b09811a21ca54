"""What reading and changing a log has in common on every engine: a part of a log, and the one retry policy."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.errors import Busy

TRIES = 200


class LogPart(msgspec.Struct, frozen=True):
    """The entries of a log that were read, and how far."""

    entries: list[dict[str, Any]]
    cursor: Any
    """Where to read on, never None; opaque to callers."""
    fresh: bool
    """Was the log read from its start? Then what was made of it before is out of date."""
    warnings: list[str] = []
    """What could not be read in this part."""


class Changed(Exception):
    """The log has changed since a cursor."""


def attempts(what: str, tries: int = TRIES) -> Iterator[int]:
    """Yield the number of each try; Busy after the last one. The caller leaves the loop when its work succeeded."""
    for attempt in range(tries):
        if attempt:
            time.sleep(random.uniform(0, 0.002) * min(attempt, 10))
        yield attempt
    raise Busy(f"{what} keeps being changed by other processes; nothing was written.", "Try again.")
