"""Shared parts of the campaigns: rows, seeds, folders that are kept after a loss, and workers.

A campaign is a module with a function `campaign(run)` that yields rows. It injects a fault many times and counts the
acknowledged writes and the losses: missing, doubled, torn or wrong records, and access outside the root. A worker is
another process. It prints each call before it makes it, and again with the answer (`prove.history`).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import holdfast
from holdfast.roots import make_root
from prove.history import CRASHED, Event, History, event_of
from prove.writes import served


@dataclass
class Row:
    """One fault: how often it was injected, how many writes were acknowledged, and how many of them were lost."""

    fault: str
    injected: int
    acknowledged: int
    lost: int
    problems: list[str] = field(default_factory=list)
    """The losses, as exactly as they are known."""
    skipped: str = ""
    """Why this machine cannot inject the fault."""


@dataclass
class Run:
    """One run of the campaigns: its size, its seed, and where failed cases are kept."""

    quick: bool
    seed: int
    keep: str = ""

    def size(self, whole: int, quick: int) -> int:
        return quick if self.quick else whole

    def random(self, name: str) -> random.Random:
        """Return a random generator that depends only on the seed and the name."""
        return random.Random(f"{self.seed} {name}")

    @contextlib.contextmanager
    def folder(self, name: str) -> Iterator[str]:
        """Make a new folder; a copy is kept if an exception is raised in it or `lost` is called with it."""
        path = tempfile.mkdtemp(prefix=f"holdfast-prove-{name}-")
        try:
            yield path
        except BaseException:
            self.lost(path)
            raise
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def root(self, name: str) -> Iterator[str]:
        """Make a new memory root; a copy is kept as with `folder`."""
        with self.folder(name) as path:
            make_root(os.path.join(path, "root"))
            yield os.path.join(path, "root")

    def lost(self, path: str) -> str:
        """Keep a copy of a folder with a loss; return its path."""
        name = os.path.basename(path.removesuffix("/root"))
        kept = os.path.join(self.keep or ".prove", f"{name}-seed-{self.seed}")
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(path, kept, symlinks=True, dirs_exist_ok=True)
        return kept

    def worker(self, code: str, *arguments: Any, before: tuple[str, ...] = (), **more: Any) -> subprocess.Popen[str]:
        """Start Python code in another process; `before` is a command that runs it (strace and the like)."""
        words = [*before, sys.executable, "-c", _WORKER + code, *map(str, arguments)]
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True} | more
        return subprocess.Popen(words, **more)

    def together(self, program: str, each: list[tuple[Any, ...]]) -> History:
        """Run a program of `prove.workers` once for each set of arguments, all at once; return the events."""
        workers = [self.program(program, *arguments) for arguments in each]
        let_go(*workers)
        return finished(*workers)

    def program(self, name: str, *arguments: Any) -> subprocess.Popen[str]:
        """Start a program of `prove.workers`; it waits for `let_go`."""
        return self.worker(f"import prove.workers\nprove.workers.{name}()", *arguments, stdin=subprocess.PIPE)

    def command(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """Start a command of Holdfast."""
        return self.worker(_COMMAND, *words, **more)

    @contextlib.contextmanager
    def forked(self) -> Iterator[Forked]:
        """Start a worker that runs one case after the other, each in a child process."""
        worker = self.worker("import prove.forked\nprove.forked.main()", stdin=subprocess.PIPE, stderr=None)
        try:
            yield Forked(worker)
        finally:
            worker.communicate()  # it ends when its input ends


def let_go(*workers: subprocess.Popen[str]) -> None:
    """Wait until all workers are ready, then start them at the same moment."""
    for worker in workers:
        assert worker.stdout
        worker.stdout.readline()
    for worker in workers:
        assert worker.stdin
        worker.stdin.write("go\n")
        worker.stdin.flush()


def finished(*workers: subprocess.Popen[str], killed: bool = False) -> History:
    """Wait for workers and return their events; a worker that failed without being killed is an event itself."""
    history = History()
    with concurrent.futures.ThreadPoolExecutor(len(workers)) as pool:
        for worker, (out, err) in zip(workers, pool.map(lambda each: each.communicate(), workers), strict=True):
            history.add_lines(out.splitlines())
            history.add(*(_failure(worker, err) if not killed else ()))
    return history


def _failure(worker: subprocess.Popen[str], said: str) -> list[Event]:
    """Return the event of a worker that failed."""
    failed = worker.wait() != 0
    return [Event("", f"worker {worker.pid}", 0.0, 1.0, f"{CRASHED} {said.strip()[-500:]}")] if failed else []


class Recording:
    """The events of workers, read while they work: a worker with a full pipe would stop."""

    def __init__(self, *workers: subprocess.Popen[str]) -> None:
        self._workers, self._history = workers, History()
        self._pool = concurrent.futures.ThreadPoolExecutor(len(workers))
        self._written = [threading.Event() for _ in workers]
        self._readers = [self._pool.submit(self._read, *each) for each in zip(workers, self._written, strict=True)]

    def _read(self, worker: subprocess.Popen[str], written: threading.Event) -> None:
        assert worker.stdout
        for line in worker.stdout:
            self._history.add_lines([line])
            if line == "written\n":
                written.set()
        written.set()

    def written(self) -> None:
        """Wait until the workers have written everything; they go on until `finished`."""
        for each in self._written:
            each.wait()

    def finished(self) -> History:
        """Let the workers end; return their events."""
        for worker in self._workers:
            assert worker.stdin
            worker.stdin.close()
        for reader in self._readers:
            reader.result()
        for worker in self._workers:
            assert worker.stdout and worker.stderr
            self._history.add(*_failure(worker, worker.stderr.read()))
            worker.stdout.close()
            worker.stderr.close()
        self._pool.shutdown()
        return self._history


class Forked:
    """A worker of `prove.forked`, which runs one case at a time."""

    def __init__(self, worker: subprocess.Popen[str]) -> None:
        self._worker = worker

    def ask(self, **case: Any) -> dict[str, Any]:
        """Let a child run a case; return its events (`told`), and how it ended."""
        assert self._worker.stdin and self._worker.stdout
        self._worker.stdin.write(json.dumps(case) + "\n")
        self._worker.stdin.flush()
        answer: dict[str, Any] = json.loads(self._worker.stdout.readline())
        told = answer["told"]
        answer["read"] = [each["read"] for each in told if "read" in each]
        answer["told"] = History(event_of(each) for each in told if "op" in each)
        return answer


class Tally:
    """The counts of one fault, which become a row."""

    def __init__(self, run: Run, fault: str) -> None:
        self._run = run
        self._row = Row(fault, 0, 0, 0)

    def made(self, faults: int = 1, acknowledged: int = 0) -> None:
        self._row.injected += faults
        self._row.acknowledged += acknowledged

    def note(self, problems: list[str], root: str = "") -> None:
        """Record losses, and keep the folder in which they happened."""
        if problems:
            self._row.lost += len(problems)
            kept = f" (kept in {self._run.lost(root)})" if root else ""
            self._row.problems += [f"{problem}{kept}" for problem in problems]

    def row(self) -> Row:
        return self._row


def faults_of(root: str, history: History, *, twice: Collection[str] = (), clean: bool = False) -> list[str]:
    """Return what is wrong with a memory after a history.

    Writes in `twice` may exist two times, as long as an interrupted chore was not repeated. With `clean` there must be
    no damage; otherwise damage that a killed process leaves may be reported.
    """
    with holdfast.open(root) as memory:
        found = served(memory)
        report = memory.verify()
    wrong = history.faults(found, twice=twice)
    wrong += [f"verify: the index differs: {each.path}: {each.what}" for each in report.differences]
    damage = [each for each in report.damage if clean or not any(word in each.what for word in _OF_DYING)]
    return wrong + [f"verify: {each.path}:{each.line}: {each.what}" for each in damage]


_OF_DYING = ("incomplete", "skipped:", "half of a pair", "is in the ledger and cannot be read")
"""Words by which `verify` describes damage that a killed process leaves."""

_COMMAND = "import sys\nfrom holdfast.cli.main import main\nsys.argv = ['holdfast', *sys.argv[1:]]\nmain()"
_WORKER = "import prove.defences\nprove.defences.take_out()\n"
"""A worker runs without the removed defence."""


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def lacks(*programs: str, root: bool = False) -> str:
    """Return what this machine lacks for a fault, "" if nothing."""
    missing = [name for name in programs if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)} is not installed"
    return "needs root" if root and not is_root() else ""
