"""Disk: the system refuses a write.

Only completed writes are acknowledged, and the error names cause and file. Earlier data is intact and readable, and a
refused write can be repeated.

The error comes at the n-th system call of each public write; a file system of one megabyte fills up and is freed;
processes have limits on file size and open files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from random import Random
from typing import Any

import holdfast
from holdfast.roots import make_root
from prove import tracing
from prove.harness import Forked, Row, Run, Tally, faults_of, lacks
from prove.history import History
from prove.writes import LONG, WRITES

_CAUSES = {"EIO": ("the disk reported an error", "Input/output error"), "ENOSPC": ("No space left",)}
_KINDS = "note,message,decision,state,fact,value,edit,hide-line,memory,job,entry,workspace"


def campaign(run: Run) -> Iterator[Row]:
    lacking = tracing.cannot()
    for error in _CAUSES:
        fault = f"{error} at the n-th write, sync, rename or link of each write"
        yield Row(fault, 0, 0, 0, skipped=lacking) if lacking else _refused(run, fault, error)
    yield _full(run)
    yield _limited(run, "files of at most 15,000 bytes (RLIMIT_FSIZE)", "RLIMIT_FSIZE", 15_000)
    yield _limited(run, "few open files (RLIMIT_NOFILE)", "RLIMIT_NOFILE", 1)


def _refused(run: Run, fault: str, error: str) -> Row:
    tally, dice = Tally(run, fault), run.random(fault)
    with run.forked() as forked:
        for name in dice.sample(list(WRITES), run.size(len(WRITES), 3)):
            with run.root(f"disk-{name}") as root:
                _each_call(run, forked, tally, root, (name, error), dice)
    return tally.row()


def _each_call(run: Run, forked: Forked, tally: Tally, root: str, what: tuple[str, str], dice: Random) -> None:
    name, error = what
    with holdfast.open(root) as memory:
        earlier = memory.put("note", f"outside-0 {LONG}", title="Earlier").id
    there = History.of([f"{name}.seen"])
    moments = tracing.moments(forked, root, name, tracing.WRITING)
    for call, number in tracing.some(moments, run.size(10, 3), dice):
        tag = f"{name}.{call}.{number}"
        end = forked.ask(
            root=root,
            write=name,
            tag=tag,
            trace=call,
            inject=f"{call}:error={error}:when={number}",
            read=earlier,
            close=True,
        )
        there += end["told"]
        tally.made(int(end["injected"]), len(end["told"].acknowledged))
        problems = _as_it_should(end, error) + faults_of(root, there)
        again = forked.ask(root=root, write=name, tag=tag)["told"]
        problems += [] if again.acknowledged else [f"repeated, it was refused: {again.refusals()}"]
        there += again
        problems += faults_of(root, there)
        tally.note([f"{name}, {call} {number}: {wrong}" for wrong in problems], root)


def _as_it_should(end: dict[str, Any], error: str) -> list[str]:
    """Check that the write was answered, that a refusal names cause and file, and that reads continue."""
    told, read = end["told"], end["read"]
    wrong = [] if [event for event in told if event.end] else ["the write was not answered"]
    wrong += [
        f"the refusal does not name cause and file: {why}"
        for why in told.refusals()
        if not any(cause in why for cause in _CAUSES[error]) or "/" not in why
    ]
    fine = read and read[0].startswith("outside-0 ")
    return wrong + ([] if fine else [f"what was there before was not read: {read}"])


def _full(run: Run) -> Row:
    fault = "a file system of 1 MB fills up, and is freed again"
    if missing := lacks("mount", root=True):
        return Row(fault, 0, 0, 0, skipped=missing)
    tally = Tally(run, fault)
    with run.folder("full") as folder, contextlib.ExitStack() as after:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
        )
        if done.returncode:
            return Row(fault, 0, 0, 0, skipped=f"cannot mount: {done.stderr.decode().strip()}")
        after.callback(subprocess.run, ["umount", "-l", folder], check=True)
        root = os.path.join(folder, "root")
        make_root(root)
        with open(os.path.join(folder, "ballast"), "wb") as file:
            file.write(b"x" * (900 << 10))
        kept = _fill(run, tally, root, "No space left", run.size(60, 10), "full")
        tally.note(_faults_of_copy(run, root, kept), root)
        os.remove(os.path.join(folder, "ballast"))
        kept += _fill(run, tally, root, "No space left", 1, "freed", refusals=False)
        tally.note(_faults_of_copy(run, root, kept), root)
    return tally.row()


def _faults_of_copy(run: Run, root: str, kept: History) -> list[str]:
    """Check a copy of the memory elsewhere, so that its index takes no space here."""
    with run.folder("copy") as folder:
        copy = shutil.copytree(root, os.path.join(folder, "root"), ignore=shutil.ignore_patterns(".holdfast"))
        return faults_of(copy, kept, clean=True)


def _limited(run: Run, fault: str, limit: str, value: int) -> Row:
    tally = Tally(run, fault)
    with run.root("limited") as root:
        cause = {"RLIMIT_FSIZE": "large", "RLIMIT_NOFILE": "open files"}[limit]
        kept = _fill(run, tally, root, cause, run.size(20, 8), "limited", limit=f"{limit}={value}")
        tally.note(faults_of(root, kept, clean=True), root)
        kept += _fill(run, tally, root, "", 1, "free", refusals=False)
        tally.note(faults_of(root, kept, clean=True), root)
    return tally.row()


def _fill(
    run: Run, tally: Tally, root: str, cause: str, rounds: int, me: str, *, limit: str = "", refusals: bool = True
) -> History:
    """Let a process write under a limit until it is refused; return its events."""
    history = run.together("fills", [(root, me, rounds, _KINDS, limit)])
    refused = history.refusals(conflicts=True)
    tally.made(len(refused) if refusals else 0, len(history.acknowledged))
    tally.note([line for line in refused if not refusals or cause not in line], root)
    tally.note(["nothing was refused"] if refusals and not refused else [], root)
    tally.note(["nothing was kept"] if not history.acknowledged else [], root)
    return history
