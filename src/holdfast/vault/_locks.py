"""Waiting for a lock, but not for ever.

`flock` belongs to the open file: the kernel drops it when the process dies, so no lock outlives its holder and
there are no lock files to clean up.
"""

from __future__ import annotations

import fcntl
import random
import time

from holdfast.errors import Busy


def hold(fd: int, seconds: float, what: str) -> None:
    """Take the lock on an open file or folder; Busy when somebody else holds it for too long."""
    pause = 0.00003
    deadline = 0.0
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            now = time.monotonic()
            deadline = deadline or now + seconds
            if now >= deadline:
                raise Busy(
                    f"{what} was locked by another process for {seconds:g} s; nothing was written.", "Try again."
                ) from None
        time.sleep(min(pause * random.uniform(0.5, 1.5), max(0.0, deadline - now)))
        pause = min(pause * 1.3, 0.002)


def release(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)
