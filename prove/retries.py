"""Retries: the same op_id from many processes at once. Each write has effect once, and all get the same receipt."""

from __future__ import annotations

from collections.abc import Iterator

from prove.harness import Row, Run, Tally, faults_of
from prove.writes import WRITES, tag_of

_PROCESSES = 8
_ALONE = ("memory", "edit")
"""What is read first and then replaced: of two that do it at once, one is told that the version is stale."""


def campaign(run: Run) -> Iterator[Row]:
    count = run.size(25, 2)
    tally = Tally(run, f"{_PROCESSES} processes make each write under the same op_id")
    names = [name for name in WRITES if name not in _ALONE]
    with run.root("retries") as root:
        told = run.together("same", [(root, ",".join(names), count) for _ in range(_PROCESSES)])
        tags = [tag_of(name, number) for name in names for number in range(count)]
        receipts: dict[str, list[str]] = {tag: [] for tag in tags}
        for line in told:
            if line[0] == "acknowledged":
                receipts[line[1]].append(" ".join(line[2:]))
        tally.made(len(told), sum(map(len, receipts.values())))
        tally.note([" ".join(line) for line in told if line[0] != "acknowledged"], root)
        tally.note([f"{tag}: receipts differ: {set(got)}" for tag, got in receipts.items() if len(set(got)) > 1], root)
        tally.note([f"{tag}: {len(got)} answers" for tag, got in receipts.items() if len(got) != _PROCESSES], root)
        tally.note(faults_of(root, tags, clean=True), root)
    yield tally.row()
