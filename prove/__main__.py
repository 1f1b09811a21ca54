"""scripts/prove: run the fault campaigns and print what was lost."""

from __future__ import annotations

import argparse
import importlib
import os
import random
import sys
import time

from prove.defences import DEFENCES
from prove.harness import WITHOUT, Row, Run

CAMPAIGNS: tuple[str, ...] = ("paths", "bombs", "queries", "frames", "http")
"""The modules, in the order in which they run."""


def main() -> None:
    given = _arguments()
    if given.defences:
        sys.exit(_defences(given))
    print(f"seed {given.seed}\n{_line('fault', 'injected', 'acknowledged', 'lost')}", flush=True)
    lost = sum(_campaign(name, Run(given.quick, given.seed)) for name in given.only or CAMPAIGNS)
    print("\nNothing was lost." if not lost else f"\nLOST: {lost}. The folders are kept in .prove/.")
    sys.exit(1 if lost else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/prove", description=__doc__)
    parser.add_argument("--only", action="append", choices=CAMPAIGNS, help="run this campaign; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few faults of each, as the tests do")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--without", choices=sorted(DEFENCES), help="take this defence out: something should be lost")
    parser.add_argument("--defences", action="store_true", help="take each defence out in turn, and see who notices")
    given = parser.parse_args()
    if given.without:
        os.environ[WITHOUT] = given.without
        given.only = given.only or [DEFENCES[given.without].campaign]
    return given


def _campaign(name: str, run: Run) -> int:
    begin, lost = time.monotonic(), 0
    for row in importlib.import_module(f"prove.{name}").campaign(run):
        print(_line(row.fault, row.injected, row.acknowledged, row.skipped or row.lost), flush=True)
        for problem in row.problems[:5]:
            print(f"    {problem}", flush=True)
        lost += _count(row)
    print(f"    {name}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return lost


def _count(row: Row) -> int:
    return row.lost or len(row.problems)


def _line(fault: str, injected: object, acknowledged: object, lost: object) -> str:
    return f"{fault:<64} {injected:>9} {acknowledged:>13} {lost:>6}"


def _defences(given: argparse.Namespace) -> int:
    """Take each defence out in turn; return how many were not missed."""
    unnoticed = 0
    for name, defence in DEFENCES.items():
        os.environ[WITHOUT] = name
        rows = list(importlib.import_module(f"prove.{defence.campaign}").campaign(Run(True, given.seed)))
        noticed = [row for row in rows if _count(row)]
        told = f"lost {sum(map(_count, noticed))}: {noticed[0].fault}" if noticed else "NOT NOTICED"
        unnoticed += not noticed
        print(f"without {name} ({defence.what}): {told}", flush=True)
    return 1 if unnoticed else 0


if __name__ == "__main__":
    main()
