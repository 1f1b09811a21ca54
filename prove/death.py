"""Death: processes that are killed while they write. What was acknowledged is there once, and a retry has effect once.

A kill comes at a random moment of a mix of all public writes, and at the n-th system call of each of them; likewise
of rebuilding, compacting, migrating, archiving. What the write was about to do is then repeated under its op_id.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

from prove import tracing
from prove.chores import CHORES, made_by
from prove.harness import Forked, Row, Run, Tally, faults_of
from prove.writes import LOGS, WRITES

_KILLS_OF_ONE_ROOT = 12
_FEW = ("edit", "message", "status", "archive", "demote")
"""What stands for all in the small size: a document, a log, a change of a field, two chores."""


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
    tally, dice = Tally(run, "kill -9 at a random moment of all sorts of writes"), run.random("death")
    left = run.size(204, 24)
    while left > 0:
        with run.root("death") as root:
            kills = min(left, _KILLS_OF_ONE_ROOT)
            left -= kills
            acknowledged: list[str] = []
            for number in range(kills):
                tried, done = _killed(forked, root, f"k{number}", list(WRITES), dice)
                again = _again(forked, root, tried[-1]) if tried else []
                acknowledged += [*done, *again]
                tally.made(1, len(done))
            tally.note(faults_of(root, acknowledged), root)
    return tally.row()


def _killed(
    forked: Forked, root: str, me: str, mix: list[str], dice: random.Random
) -> tuple[list[tuple[str, str]], list[str]]:
    """Let a process write until it is killed; return what it tried and what was acknowledged."""
    told = forked.ask(root=root, mix=mix, me=me, seed=dice.random(), seconds=dice.uniform(0, 0.3))["told"]
    tried = [(str(each["write"]), str(each["tried"])) for each in told if "tried" in each]
    return tried, [each["acknowledged"] for each in told if "acknowledged" in each]


def _again(forked: Forked, root: str, tried: tuple[str, str]) -> list[str]:
    """Repeat a write twice under its op_id, as a client does that got no answer; return what was acknowledged."""
    name, tag = tried
    told = forked.ask(root=root, write=name, tag=tag, times=2)["told"]
    return [str(each["acknowledged"]) for each in told if "acknowledged" in each]


def _at_each_call(run: Run, forked: Forked, fault: str, names: list[str]) -> Row:
    tally, dice = Tally(run, fault), run.random(fault)
    for name in dice.sample(names, len(names)) if not run.quick else [name for name in names if name in _FEW]:
        with run.root(f"death-{name}") as root:
            found = tracing.moments(forked, root, name, (*tracing.WRITING, *tracing.OPENING))
            acknowledged = made_by(name, f"{name}.seen") if name in CHORES else [f"{name}.seen"]
            if run.quick:
                found = [moment for moment in found if moment[0] not in tracing.OPENING]
            for call, number in tracing.some(found, run.size(14, 6), dice):
                acknowledged += _at_one(forked, tally, root, name, (call, number), acknowledged)
    return tally.row()


def _at_one(
    forked: Forked, tally: Tally, root: str, name: str, moment: tuple[str, int], before: list[str]
) -> list[str]:
    """Kill one write at one call and repeat it; return what is acknowledged by then."""
    call, number = moment
    tag = f"{name}.{call}.{number}"
    end = forked.ask(root=root, write=name, tag=tag, trace=call, inject=f"{call}:signal=KILL:when={number}")
    done = [tag] if any("acknowledged" in each for each in end["told"]) else []
    tally.made(int(end["killed"]), len(done))
    where = f"{name}, {call} {number}"
    if made := made_by(name, tag) if name in CHORES else done:
        least = [*before, *made] if name in CHORES else []
        tally.note([f"{where}: {wrong}" for wrong in faults_of(root, [*before, *made], least=least)], root)
    again = _again(forked, root, (name, tag))
    expected = made_by(name, tag) if name in CHORES else [tag]
    problems = faults_of(root, [*before, *expected])
    problems += [] if len(again) == 2 else [f"repeated, it was acknowledged {len(again)} times"]
    tally.note([f"{where}, then repeated: {wrong}" for wrong in problems], root)
    return expected


def _chores_at_random(run: Run, forked: Forked) -> Row:
    tally, dice = Tally(run, "kill -9 while rebuilding, compacting, archiving, migrating"), run.random("chores")
    for number in range(run.size(40, 5)):
        name = list(CHORES)[number % len(CHORES)]
        with run.root(f"death-{name}") as root:
            wanted: list[str] = []
            for kill in range(3):
                tried, _ = _killed(forked, root, f"k{kill}", [name], dice)
                wanted += [tag for _, one in tried for tag in made_by(name, one)]
                again = _again(forked, root, tried[-1]) if tried else []
                tally.made(1, len(tried))
                tally.note(faults_of(root, wanted, least=wanted), root)
                tally.note(
                    [] if len(again) == 2 or not tried else [f"{name} was acknowledged {len(again)} times"], root
                )
            tally.note(faults_of(root, wanted), root)
    return tally.row()


def _torn_tails(run: Run, forked: Forked) -> Row:
    """Leave half a line at the end of a log, as who dies within one write does, and let another write behind it."""
    tally, dice = Tally(run, "half a line at the end of each log, then more is written"), run.random("tails")
    for name in LOGS:
        with run.root(f"death-{name}") as root:
            there = [f"{name}.first"]
            forked.ask(root=root, write=name, tag=there[0])
            for number in range(run.size(8, 1)):
                _tear(root, there[-1], dice)
                there.append(f"{name}.{number}")
                told = forked.ask(root=root, write=name, tag=there[-1])["told"]
                tally.made(1, sum("acknowledged" in each for each in told))
                tally.note([f"{name}: {wrong}" for wrong in faults_of(root, there)], root)
    return tally.row()


def _tear(root: str, tag: str, dice: random.Random) -> None:
    """Write a part of the line of a tag once more behind it, under another tag."""
    for folder, _, names in os.walk(os.path.join(root, "user")):
        for path in (
            os.path.join(folder, name) for name in names if name.endswith(".jsonl") and "writes" not in folder
        ):
            with open(path, "r+b") as file:
                last = file.read().splitlines()[-1].replace(tag.encode(), b"nobody")
                if b"nobody" in last:
                    file.write(last[: dice.randrange(1, len(last))])
