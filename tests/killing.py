"""Programs in other processes that are killed at a random moment."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

BEGIN = "import sys, holdfast\nfrom holdfast.roots import make_root\nprint('ready', flush=True)\n"


def work(code: str, *words: str) -> subprocess.Popen[str]:
    """Start a program and wait until it is ready."""
    command = [sys.executable, "-c", BEGIN + code, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def finish(code: str, *words: str) -> float:
    """Run a program to its end; return how many seconds it took."""
    with work(code, *words) as process:
        begun = time.monotonic()
        assert process.wait(120) == 0
    return time.monotonic() - begun


def kills(code: str, words: Sequence[Sequence[str]], longest: float, seed: int) -> Iterator[bool]:
    """Run a program once for each list of arguments and kill it at a random moment; yield whether it was still running.

    After a kill that came too late, the next ones come earlier, because other work slows the machine down.
    """
    chance = random.Random(seed)
    for given in words:
        with work(code, *given) as process:
            time.sleep(chance.uniform(0, longest))
            process.send_signal(signal.SIGKILL)
            ended = process.wait(60)
        killed = ended == -signal.SIGKILL
        longest *= 1 if killed else 0.7
        yield killed
