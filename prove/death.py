"""Death: processes are killed while they write. Acknowledged writes exist once, and a retry has effect once.

The kill comes at a random moment of a mix of all public writes, and at the n-th system call of each of them; the same
for rebuild, compaction, migration and archiving. The interrupted write is then repeated with its op_id.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

from prove import tracing
from prove.chores import CHORES, made_by
from prove.harness import Forked, Row, Run, Tally, faults_of
from prove.history import Event, History
from prove.writes import LOGS, WRITES

_KILLS_OF_ONE_ROOT = 12
_MOST_SECONDS = 0.15
"""The longest time before a process is killed: enough for dozens of writes."""
_FEW = ("edit", "message", "status", "archive", "demote")
"""The writes of the small size: a document, a log, a change of a field, two commands of the owner."""


def campaign(run: Run) -> Iterator[Row]:
    with run.forked() as forked:
        yield _at_random(run, forked)
        lacking = tracing.cannot()
        for fault, writes in (
            ("kill -9 at the n-th call of each write", WRITES),
            ("kill -9 at the n-th call of each chore", CHORES),
        ):
            yield Row(fault, 0, 0, 0, skipped=lacking) if lacking else _at_each_call(run, forked, fault, list(writes))
        yield _chores_at_random(run, forked)
        yield _torn_tails(run, forked)


def _at_random(run: Run, forked: Forked) -> Row:
    tally, dice = Tally(run, "kill -9 at a random moment of various writes"), run.random("death")
    left = run.size(204, 24)
    while left > 0:
        with run.root("death") as root:
            kills = min(left, _KILLS_OF_ONE_ROOT)
            left -= kills
            history = History()
            for number in range(kills):
                told = _killed(forked, root, f"k{number}", list(WRITES), dice)
                again = _again(forked, root, told.writes[-1]) if told.writes else ()
                history += [*told, *again]
                tally.made(1, len(told.acknowledged))
            tally.note(faults_of(root, history), root)
    return tally.row()


def _killed(forked: Forked, root: str, me: str, mix: list[str], dice: random.Random) -> History:
    """Let a process write until it is killed; return its events."""
    case = {"mix": mix, "me": me, "seed": dice.random(), "seconds": dice.uniform(0, _MOST_SECONDS)}
    told: History = forked.ask(root=root, **case)["told"]
    return told


def _again(forked: Forked, root: str, tried: Event) -> History:
    """Repeat a write twice with its op_id, as a client without an answer does; return the events."""
    told: History = forked.ask(root=root, write=tried.kind, tag=tried.op, times=2)["told"]
    return told


def _twice(told: History) -> list[str]:
    """Check that a write that was repeated twice was acknowledged twice."""
    count = sum(event.acknowledged for event in told)
    return [] if count == 2 else [f"repeated, it was acknowledged {count} times: {told.refusals(conflicts=True)}"]


def _at_each_call(run: Run, forked: Forked, fault: str, names: list[str]) -> Row:
    tally, dice = Tally(run, fault), run.random(fault)
    for name in dice.sample(names, len(names)) if not run.quick else [name for name in names if name in _FEW]:
        with run.root(f"death-{name}") as root:
            found = tracing.moments(forked, root, name, (*tracing.WRITING, *tracing.OPENING))
            history = History.of(made_by(name, f"{name}.seen") if name in CHORES else [f"{name}.seen"])
            if run.quick:
                found = [moment for moment in found if moment[0] not in tracing.OPENING]
            for call, number in tracing.some(found, run.size(14, 6), dice):
                history += _at_one(forked, tally, root, name, (call, number), history)
    return tally.row()


def _at_one(forked: Forked, tally: Tally, root: str, name: str, moment: tuple[str, int], before: History) -> History:
    """Kill one write at one system call and repeat it; return the events. A chore changes records that exist already."""
    call, number = moment
    tag = f"{name}.{call}.{number}"
    end = forked.ask(root=root, write=name, tag=tag, trace=call, inject=f"{call}:signal=KILL:when={number}")
    tally.made(int(end["killed"]), len(end["told"].acknowledged))
    where = f"{name}, {call} {number}"
    made: History = History.of(made_by(name, tag)) if name in CHORES else end["told"]
    if made.acknowledged:
        twice = (before + made).acknowledged if name in CHORES else []
        tally.note([f"{where}: {wrong}" for wrong in faults_of(root, before + made, twice=twice)], root)
    again = _again(forked, root, Event(tag, name, 0.0))
    made = made if name in CHORES else made + again
    problems = faults_of(root, before + made) + _twice(again)
    tally.note([f"{where}, then repeated: {wrong}" for wrong in problems], root)
    return made


def _chores_at_random(run: Run, forked: Forked) -> Row:
    tally, dice = Tally(run, "kill -9 while rebuilding, compacting, archiving, migrating"), run.random("chores")
    for number in range(run.size(40, 5)):
        name = list(CHORES)[number % len(CHORES)]
        with run.root(f"death-{name}") as root:
            wanted = History()
            for kill in range(3):
                tried = _killed(forked, root, f"k{kill}", [name], dice).writes
                wanted += History.of(tag for one in tried for tag in made_by(name, one.op))
                tally.made(1, len(tried))
                tally.note(_twice(_again(forked, root, tried[-1])) if tried else [], root)
                tally.note(faults_of(root, wanted, twice=wanted.acknowledged), root)
            tally.note(faults_of(root, wanted), root)
    return tally.row()


def _torn_tails(run: Run, forked: Forked) -> Row:
    """Leave half a line at the end of a log, as a killed process does, and let another process write after it."""
    tally, dice = Tally(run, "half a line at the end of each log, then more writes"), run.random("tails")
    for name in LOGS:
        with run.root(f"death-{name}") as root:
            there: History = forked.ask(root=root, write=name, tag=f"{name}.first")["told"]
            for number in range(run.size(8, 1)):
                _tear(root, there.acknowledged[-1], dice)
                told = forked.ask(root=root, write=name, tag=f"{name}.{number}")["told"]
                there += told
                tally.made(1, len(told.acknowledged))
                tally.note([f"{name}: {wrong}" for wrong in faults_of(root, there) + told.refusals()], root)
    return tally.row()


def _tear(root: str, tag: str, dice: random.Random) -> None:
    """Write part of the line of a tag again after it, with another tag."""
    for folder, _, names in os.walk(os.path.join(root, "user")):
        for path in (
            os.path.join(folder, name) for name in names if name.endswith(".jsonl") and "writes" not in folder
        ):
            with open(path, "r+b") as file:
                last = file.read().splitlines()[-1].replace(tag.encode(), b"nobody")
                if b"nobody" in last:
                    file.write(last[: dice.randrange(1, len(last))])
