"""Faults at every n-th system call of a write, injected by strace: one run lists the calls, then each gets a fault."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from random import Random

from prove.harness import Forked, lacks

OPENING = ("openat", "openat2")
WRITING = ("write", "fsync", "fdatasync", "renameat", "renameat2", "linkat")
"""The system calls by which a write reaches the disk."""


def cannot() -> str:
    """Return why strace cannot be used here, "" if it can."""
    if missing := lacks("strace"):
        return missing
    tried = subprocess.run(
        ["strace", "-o", "/dev/null", "-e", "inject=fsync:error=EIO:when=1", "true"], capture_output=True, check=False
    )
    return f"strace may not trace here: {tried.stderr.decode(errors='replace').strip()}" if tried.returncode else ""


def moments(forked: Forked, root: str, write: str, calls: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return each system call of a write with its number; the write is made once to list them."""
    seen = forked.ask(root=root, write=write, tag=f"{write}.seen", trace=",".join(calls))["calls"]
    return [(call, number) for call in calls for number in range(1, seen.get(call, 0) + 1)]


def some(found: list[tuple[str, int]], count: int, dice: Random) -> Iterator[tuple[str, int]]:
    """Choose some moments at random, or all if there are few."""
    yield from sorted(dice.sample(found, count)) if count < len(found) else found
