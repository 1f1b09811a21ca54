"""What the campaigns share: rows, seeds, folders that are kept when something is lost, and workers to be killed.

A campaign is a module with a function `campaign(run)` that yields rows. It breaks something many times, counts what
was acknowledged, and counts what of it is lost: gone, doubled, torn, wrong, outside the root. A worker is another
process; it prints a line only once its write has been acknowledged.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

WITHOUT = "HOLDFAST_PROVE_WITHOUT"


@dataclass
class Row:
    """One fault: how often it was made, how many writes were acknowledged, and how many of them were lost."""

    fault: str
    injected: int
    acknowledged: int
    lost: int
    problems: list[str] = field(default_factory=list)
    """What was lost, as exactly as it can be told."""
    skipped: str = ""
    """Why this could not be done on this machine."""


@dataclass
class Run:
    """One run of the campaign: its size, its seed, and where failing cases are kept."""

    quick: bool
    seed: int
    keep: str = ""

    def size(self, whole: int, quick: int) -> int:
        return quick if self.quick else whole

    def random(self, name: str) -> random.Random:
        """Return a source of chance that is the same for the same seed, whatever ran before."""
        return random.Random(f"{self.seed} {name}")

    @contextlib.contextmanager
    def folder(self, name: str) -> Iterator[str]:
        """Give a fresh folder; it is kept if what happens in it raises, or if `lost` was called with it."""
        path = tempfile.mkdtemp(prefix=f"holdfast-prove-{name}-")
        try:
            yield path
        except BaseException:
            self.lost(path)
            raise
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def lost(self, path: str) -> str:
        """Keep a copy of a folder in which something was lost; return where."""
        kept = os.path.join(self.keep or ".prove", f"{os.path.basename(path)}-seed-{self.seed}")
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(path, kept, symlinks=True, dirs_exist_ok=True)
        return kept

    def worker(self, code: str, *arguments: Any, before: tuple[str, ...] = (), **more: Any) -> subprocess.Popen[str]:
        """Start Python code in a process of its own; `before` stands before its command (strace and the like)."""
        words = [*before, sys.executable, "-c", _WORKER + code, *map(str, arguments)]
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True} | more
        return subprocess.Popen(words, **more)


_WORKER = "import prove.defences\nprove.defences.take_out()\n"
"""A worker does without the defences that are to be shown necessary."""


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def lacks(*programs: str, root: bool = False) -> str:
    """Say what this machine lacks for a fault, "" when nothing."""
    missing = [name for name in programs if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)} is not installed"
    return "needs root" if root and not is_root() else ""
