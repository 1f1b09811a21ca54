"""Storm: many processes edit one document, each from the version that it read. Nobody's edit is written over."""

from __future__ import annotations

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
        told = run.together("edits", [(root, me, count, target) for me in range(_PROCESSES)])
        applied = [line[1] for line in told if line[0] == "applied"]
        conflicts = [line for line in told if line[0] == "conflict"]
        tally.made(len(told), len(applied))
        problems = [" ".join(line) for line in told if line[0] not in ("applied", "conflict")]
        if len(applied) + len(conflicts) != _PROCESSES * count:
            problems.append(f"{len(applied)} applied and {len(conflicts)} conflicts are not {_PROCESSES * count}")
        with holdfast.open(root) as memory:
            lines = memory.get(target).text.split()
            report = memory.verify()
        problems += [f"{mark} was applied and is not there" for mark in set(applied) - set(lines)]
        problems += [f"{mark} is there and was not applied" for mark in set(lines[1:]) - set(applied)]
        problems += [f"{len(lines) - 1} lines of {len(applied)} edits"] if len(lines) - 1 != len(applied) else []
        problems += [f"verify: {each.path}: {each.what}" for each in (*report.differences, *report.damage)]
        tally.note(problems, root)
    yield tally.row()
