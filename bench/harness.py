"""Shared parts of the benchmarks: timing, corpora, the table and the JSON file."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.model.settings import FILE
from holdfast.roots import driver, open_tree
from holdfast.storage.tree import ABSENT


@dataclass
class Row:
    what: str
    value: float
    unit: str
    target: str = ""
    met: bool | None = None
    detail: str = ""


@dataclass
class Run:
    """One run of a benchmark: rows are printed at once and written as JSON at the end."""

    name: str
    quick: bool
    out: str
    rows: list[Row] = field(default_factory=list)
    store: str = ""
    """The database to measure in, "" for files."""
    size: int = 0
    """The largest memory to measure."""

    def add(self, what: str, value: float, unit: str, at_most: float | None = None, **more: Any) -> None:
        at_least = more.pop("at_least", None)
        target, met = "", None
        if at_most is not None:
            target, met = f"<= {at_most:g}", value <= at_most
        if at_least is not None:
            target, met = f">= {at_least:g}", value >= at_least
        row = Row(what, round(value, 4), unit, target, met, more.pop("detail", ""))
        self.rows.append(row)
        mark = {True: "ok", False: "MISSED", None: ""}[met]
        print(f"{what:<58} {value:>12,.2f} {unit:<10} {target:<12} {mark:<7} {row.detail}", flush=True)

    def finish(self) -> None:
        """Write the JSON; return an exit code that says whether every target was met."""
        result = {
            "benchmark": self.name,
            "quick": self.quick,
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "rows": [asdict(row) for row in self.rows],
        }
        os.makedirs(os.path.dirname(self.out) or ".", exist_ok=True)
        with open(self.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=2)
        missed = [row.what for row in self.rows if row.met is False]
        print(f"\n{self.out} written; {'all targets met' if not missed else 'missed: ' + '; '.join(missed)}")
        sys.exit(1 if missed else 0)


def start(name: str, *, stores: bool = False, size: int = 0) -> Run:
    parser = argparse.ArgumentParser(prog=f"scripts/bench {name}")
    parser.add_argument("--quick", action="store_true", help="small corpora, to see that it runs")
    parser.add_argument("--out", default=f".bench/{name}.json", help="where the JSON goes")
    if stores:
        parser.add_argument("--store", default="", help="measure in this database, postgresql://…")
    if size:
        parser.add_argument("--size", type=int, default=size, help=f"the largest memory to measure ({size:,})")
    given = parser.parse_args()
    return Run(name, given.quick, given.out, store=given.store if stores else "", size=given.size if size else 0)


def timed(work: Callable[[], Any], times: int = 1) -> float:
    """Return the seconds of one call, as the mean over some calls."""
    begin = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - begin) / times


def median_of(times: int, work: Callable[[], Any]) -> float:
    return statistics.median(timed(work) for _ in range(times))


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@contextmanager
def folder() -> Iterator[str]:
    """Make a folder on the disk of the checkout, not on a tmpfs, and remove it afterwards."""
    os.makedirs(".bench", exist_ok=True)
    path = tempfile.mkdtemp(prefix="root-", dir=os.path.abspath(".bench"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def against_bare(run: Run, what: str, root: str, work: Callable[[], Any], data: bytes) -> list[float]:
    """Compare a durable append with write + fdatasync of the same bytes, in alternating blocks; return our times.

    The rest, which does not depend on the disk, is the CPU time of an append.
    """
    blocks, size = (6, 50) if run.quick else (20, 100)
    ours: list[float] = []
    bare: list[float] = []
    spent: list[float] = []
    fd = os.open(os.path.join(root, "bare.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def bare_append() -> None:
        os.write(fd, data)
        os.fdatasync(fd)

    for _ in range(blocks):
        began = time.process_time()
        ours += [timed(work) for _ in range(size)]
        spent.append((time.process_time() - began) / size * 1e6)
        bare += [timed(bare_append) for _ in range(size)]
    os.close(fd)
    one, other = statistics.median(ours), statistics.median(bare)
    run.add(
        f"{what} / bare write + fdatasync",
        one / other,
        "x",
        1.3,
        detail=f"{one * 1e6:.0f} µs against {other * 1e6:.0f} µs",
    )
    run.add(f"CPU of {what}", statistics.median(spent), "µs")
    return ours


def cpu_of(work: Callable[[], Any], times: int = 1) -> float:
    """Return the seconds of CPU that one call takes, as the mean over some."""
    begin = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - begin) / times


class Words:
    """Text with the word frequencies of natural language: a few frequent words, most of them rare."""

    def __init__(self, size: int = 60_000, seed: int = 7) -> None:
        self._random = random.Random(seed)
        syllables = [a + b for a in "bcdfghklmnprstvw" for b in "aeiou"]
        unique = dict.fromkeys(
            "".join(self._random.choices(syllables, k=self._random.randint(2, 4))) for _ in range(size * 2)
        )
        self._words = list(unique)[:size]
        self._weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(len(self._words))))

    def text(self, least: int = 8, most: int = 40) -> str:
        count = self._random.randint(least, most)
        return " ".join(self._random.choices(self._words, cum_weights=self._weights, k=count))

    def query(self, text: str) -> str:
        """Return three to five words of a text, as a person would type who half remembers it."""
        words = text.split()
        return " ".join(self._random.sample(words, min(len(words), self._random.randint(3, 5))))


@contextmanager
def temporary_tenant(address: str, settings: str) -> Iterator[str]:
    """Yield the address of a new tenant of a database, and remove the tenant afterwards."""
    with driver():
        from holdfast.storage.postgres.connections import Statement, for_tenant
        from holdfast.storage.postgres.database import Database
    mine = for_tenant(address, f"temporary-{secrets.token_hex(8)}")
    with closing(Database(mine)) as database:
        try:
            with open_tree(mine) as tree:
                tree.write(FILE, settings.encode(), expect=ABSENT)
            yield mine
        finally:
            tables = ["embedded", "embedding"] * (database.no_vectors is None) + [
                "token",
                "lease",
                "term",
                "stat",
                "record",
            ]
            gone: list[Statement] = [
                (f"DELETE FROM holdfast.{table} WHERE tenant = %(tenant)s", {}) for table in tables
            ]
            database.write("The tenant", gone)
