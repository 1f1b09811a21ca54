"""scripts/prove: run the fault campaigns and print the losses."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator

from prove.defences import DEFENCES, WITHOUT
from prove.fuzz import fuzz
from prove.harness import Row, Run
from prove.soak import soak

CAMPAIGNS: tuple[str, ...] = (
    "load", "storm", "retries", "death", "power", "disk", "corruption", "git", "replaced", "fuse", "sessions", "paths", "bombs",
    "queries", "frames", "http",
)  # fmt: skip
"""The modules, in the order in which they run."""


def main() -> None:
    given = _arguments()
    if given.defences:
        sys.exit(_defences(given))
    if given.fuzz:
        if importlib.util.find_spec("atheris") is None:
            sys.exit("atheris is not installed. Run: .venv/bin/pip install atheris")
        sys.exit(1 if fuzz(given.fuzz) else 0)
    if given.soak:
        sys.exit(1 if soak(Run(given.quick, given.seed), given.soak) else 0)
    print(f"seed {given.seed}\n{_line('fault', 'injected', 'acknowledged', 'lost')}", flush=True)
    end, lost, seed = time.monotonic() + given.minutes * 60, 0, given.seed
    sums: dict[str, Row] = {}
    while True:
        lost += sum(_campaign(name, Run(given.quick, seed), sums) for name in given.only or CAMPAIGNS)
        if time.monotonic() >= end:
            break
        seed += 1
    if seed > given.seed:
        print(f"\nsums of seeds {given.seed} to {seed}")
        for row in sums.values():
            print(_line(row.fault, row.injected, row.acknowledged, row.skipped or row.lost))
    print("\nNothing was lost." if not lost else f"\nLOST: {lost}. The folders are kept in .prove/.")
    sys.exit(1 if lost else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/prove", description=__doc__)
    parser.add_argument("--only", action="append", choices=CAMPAIGNS, help="run this campaign; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few faults of each, as the tests do")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="repeat with other seeds for so long; print the sums"
    )
    parser.add_argument("--without", choices=sorted(DEFENCES), help="remove this defence, which should cause losses")
    parser.add_argument(
        "--defences", action="store_true", help="remove each defence in turn, to see which campaign notices"
    )
    parser.add_argument("--soak", type=float, nargs="?", const=30.0, metavar="MINUTES", help="a mixed load; 30 minutes")
    parser.add_argument("--fuzz", type=int, metavar="SECONDS", help="fuzz each parser for so long; needs atheris")
    given = parser.parse_args()
    if given.without:
        os.environ[WITHOUT] = given.without
        given.only = given.only or [DEFENCES[given.without].campaign]
    return given


def _campaign(name: str, run: Run, sums: dict[str, Row]) -> int:
    begin, lost = time.monotonic(), 0
    for row in _rows(name, run):
        print(_line(row.fault, row.injected, row.acknowledged, row.skipped or row.lost), flush=True)
        for problem in row.problems[:5]:
            print(f"    {problem}", flush=True)
        lost += _count(row)
        total = sums.setdefault(row.fault, Row(row.fault, 0, 0, 0, skipped=row.skipped))
        total.injected += row.injected
        total.acknowledged += row.acknowledged
        total.lost += _count(row)
        if lost and os.environ.get(WITHOUT):
            break  # one loss is enough to show that the campaign notices
    print(f"    {name}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return lost


def _rows(name: str, run: Run) -> Iterator[Row]:
    """Yield the rows of a campaign; an exception from it counts as a loss."""
    try:
        yield from importlib.import_module(f"prove.{name}").campaign(run)
    except Exception as error:
        yield Row(f"{name} did not come to its end", 1, 0, 1, [f"{type(error).__name__}: {error}"])


def _count(row: Row) -> int:
    return row.lost or len(row.problems)


def _line(fault: str, injected: object, acknowledged: object, lost: object) -> str:
    return f"{fault:<64} {injected:>9} {acknowledged:>13} {lost:>6}"


def _defences(given: argparse.Namespace) -> int:
    """Remove each defence in turn; return how many removals no campaign noticed."""
    unnoticed = 0
    for name, defence in DEFENCES.items():
        words = [sys.executable, "-m", "prove", "--quick", "--seed", str(given.seed), "--without", name]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False
        )  # a removed defence cannot be put back in one process
        lost = [line.strip() for line in done.stdout.splitlines() if line.startswith(("LOST", "    "))]
        told = f"{lost[-1].partition('.')[0]}; {lost[0]}" if done.returncode and lost else "NOT NOTICED"
        unnoticed += told == "NOT NOTICED"
        print(f"without {name} ({defence.what}), {defence.campaign}: {told}", flush=True)
    return 1 if unnoticed else 0


if __name__ == "__main__":
    main()
