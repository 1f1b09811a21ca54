"""Tasks: claims and reports per second, with one worker and with eight processes, on files and in a database.

    scripts/bench tasks [--quick]

The database is a real server, started for this run with its defaults: every commit is on disk.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path

import holdfast
from bench.harness import Run, folder, percentile, start, timed
from holdfast.roots import make_root

BATCH = 1_000
WORKERS = 8


def main() -> None:
    run = start("tasks")
    count = 1_000 if run.quick else 10_000
    with folder() as root:
        make_root(root)
        measure(run, "files", root, count)
    with database() as address:
        measure(run, "database", address, count)
    run.finish()


@contextmanager
def database() -> Iterator[str]:
    """Start a server as the tests do, but with fsync."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    import pgserver

    with pgserver.private(fsync="on") as server, server.database() as name:
        yield server.at(name, tenant="bench")


def measure(run: Run, engine: str, where: str, count: int) -> None:
    """Create tasks, then claim and report them: by one worker, by eight, and once by a new process."""
    rounds = 100 if run.quick else 500
    with holdfast.open(where) as memory:
        begin = time.perf_counter()
        for first in range(0, count, BATCH):
            memory.tasks.create_all(
                [{"title": f"task {number}", "priority": 1 + number % 10} for number in range(first, first + BATCH)]
            )
        run.add(
            f"{engine}: create {count:,} tasks, {BATCH:,} at once", count / (time.perf_counter() - begin), "tasks/s"
        )
        memory.tasks.claim("warm")
        claims, reports = [], []
        for _ in range(rounds):
            began = time.perf_counter()
            claim = memory.tasks.claim("one")
            claims.append(time.perf_counter() - began)
            assert claim is not None
            reports.append(timed(lambda: memory.tasks.report(claim.task.id, claim.attempt.id, "done")))  # noqa: B023
        at_most = 5.0 if engine == "files" else None
        run.add(f"{engine}: claim among {count:,}, median", statistics.median(claims) * 1000, "ms", at_most)
        run.add(f"{engine}: claim among {count:,}, p95", percentile(claims, 0.95) * 1000, "ms")
        run.add(f"{engine}: report, median", statistics.median(reports) * 1000, "ms")
        run.add(f"{engine}: claim + report, 1 worker", rounds / (sum(claims) + sum(reports)), "tasks/s")
        run.add(f"{engine}: list all", timed(memory.tasks.all) * 1000, "ms")
    run.add(f"{engine}: claim + report, {WORKERS} workers", together(where, rounds), "tasks/s")
    with holdfast.open(where) as memory:
        run.add(f"{engine}: first claim of a process", timed(lambda: memory.tasks.claim("new")) * 1000, "ms")


def together(where: str, rounds: int) -> float:
    """Return the tasks per second of eight processes."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(WORKERS + 1)
    each = rounds // 2
    processes = [context.Process(target=_work, args=(where, f"w{n}", each, barrier)) for n in range(WORKERS)]
    for process in processes:
        process.start()
    barrier.wait()
    begin = time.perf_counter()
    for process in processes:
        process.join()
    assert all(process.exitcode == 0 for process in processes)
    return WORKERS * each / (time.perf_counter() - begin)


def _work(where: str, name: str, count: int, barrier: Barrier) -> None:
    with holdfast.open(where) as memory:
        memory.tasks.all()
        barrier.wait()
        for _ in range(count):
            claim = memory.tasks.claim(name)
            assert claim is not None
            memory.tasks.report(claim.task.id, claim.attempt.id, "done")


if __name__ == "__main__":
    main()
