"""Locks with a bounded wait.

`flock` belongs to the open file: the kernel drops it when the process dies, so no lock outlives its holder and there
are no lock files to clean up. A log is locked for microseconds, so a waiter first yields a few times, and only then
sleeps, longer and longer.
"""

from __future__ import annotations

import fcntl
import os
import random
import struct
import time

from holdfast.errors import Busy

_YIELDS = 100
_WHOLE_FILE = struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_yield = getattr(os, "sched_yield", lambda: time.sleep(0))


def hold(fd: int, seconds: float, what: str) -> None:
    """Lock an open file or folder; Busy when another process keeps it locked for too long."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        pass
    deadline = time.monotonic() + seconds
    for _ in range(_YIELDS):
        _yield()
        if free(fd):
            return
    pause = 0.00005
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(pause * random.uniform(0.5, 1.5), left))
        if free(fd):
            return
        pause = min(pause * 1.3, 0.002)
    raise Busy(f"{what} was locked by another process for {seconds:g} s; nothing was written.", "Try again.")


def free(fd: int) -> bool:
    """Take the lock if it is free, without waiting."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def release(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)


def claim(fd: int) -> bool:
    """Mark an open file as in use by this process; False when it already is.

    This lock belongs to the open file too, and is independent of `flock`: a claimed log can be appended to. Where a
    system has no such lock, every file counts as in use.
    """
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return False
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)
    except (BlockingIOError, PermissionError):
        return False
    return True
