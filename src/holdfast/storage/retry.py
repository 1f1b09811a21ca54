"""The one retry policy: optimistic work is tried again, with a growing random pause, a bounded number of times."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from holdfast.errors import Busy

TRIES = 200


def attempts(what: str, tries: int = TRIES) -> Iterator[int]:
    """Yield the number of each try; Busy after the last one. The caller leaves the loop when its work succeeded."""
    for attempt in range(tries):
        if attempt:
            time.sleep(random.uniform(0, 0.002) * min(attempt, 10))
        yield attempt
    raise Busy(f"{what} keeps being changed by other processes; nothing was written.", "Try again.")
