"""Retries: many processes send the same op_id at once. Each write has effect once, and all get the same receipt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prove.harness import Row, Run, Tally, faults_of
from prove.writes import WRITES, tag_of

_PROCESSES = 8
_ALONE = ("memory", "edit")
"""Writes that first read and then replace: of two at the same time, one gets a conflict."""


def campaign(run: Run) -> Iterator[Row]:
    count = run.size(25, 2)
    tally = Tally(run, f"{_PROCESSES} processes make each write under the same op_id")
    names = [name for name in WRITES if name not in _ALONE]
    with run.root("retries") as root:
        history = run.together("same", [(root, ",".join(names), count) for _ in range(_PROCESSES)])
        answers = Counter(event.op for event in history if event.acknowledged)
        tally.made(len(history), answers.total())
        tally.note(history.refusals(conflicts=True), root)
        tags = [tag_of(name, number) for name in names for number in range(count)]
        tally.note([f"{tag}: {answers[tag]} answers" for tag in tags if answers[tag] != _PROCESSES], root)
        tally.note(faults_of(root, history, clean=True), root)
    yield tally.row()
