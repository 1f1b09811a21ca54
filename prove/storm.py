"""Storm: many processes edit one document, each from the version that it read. No edit is overwritten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import holdfast
from prove.harness import Row, Run, Tally

_PROCESSES = 8


def campaign(run: Run) -> Iterator[Row]:
    count = run.size(100, 12)
    tally = Tally(run, f"{_PROCESSES} processes edit one document {count} times each")
    with run.root("storm") as root:
        with holdfast.open(root) as memory:
            target = memory.put("note", "start", title="Contested").id
        history = run.together("edits", [(root, me, count, target) for me in range(_PROCESSES)])
        tally.made(len(history), len(history.acknowledged))
        problems = history.refusals()
        problems += [f"{len(history)} edits were answered"] if len(history) != _PROCESSES * count else []
        with holdfast.open(root) as memory:
            lines = memory.get(target).text.split()[1:]
            report = memory.verify()
        problems += history.faults(Counter(lines))
        problems += [f"verify: {each.path}: {each.what}" for each in (*report.differences, *report.damage)]
        tally.note(problems, root)
    yield tally.row()
