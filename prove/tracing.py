"""Faults at every n-th system call of a write, by strace: which calls there are is seen first, then each gets its turn."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from random import Random

from prove.harness import Forked, lacks

OPENING = ("openat", "openat2")
WRITING = ("write", "fsync", "fdatasync", "renameat", "renameat2", "linkat")
"""The system calls by which a write reaches the disk."""


def cannot() -> str:
    """Say why strace cannot be used here, "" when it can."""
    if missing := lacks("strace"):
        return missing
    tried = subprocess.run(
        ["strace", "-o", "/dev/null", "-e", "inject=fsync:error=EIO:when=1", "true"], capture_output=True, check=False
    )
    return f"strace may not trace here: {tried.stderr.decode(errors='replace').strip()}" if tried.returncode else ""


def moments(forked: Forked, root: str, write: str, calls: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return each system call that a write makes, with its number; the write is made once to see them."""
    seen = forked.ask(root=root, write=write, tag=f"{write}.seen", trace=",".join(calls))["calls"]
    return [(call, number) for call in calls for number in range(1, seen.get(call, 0) + 1)]


def some(found: list[tuple[str, int]], count: int, dice: Random) -> Iterator[tuple[str, int]]:
    """Choose among the moments; all of them when there are not more."""
    yield from sorted(dice.sample(found, count)) if count < len(found) else found
