"""Disk: the system refuses a write. Nothing is acknowledged that is not there, the cause and the file are named,
earlier data is intact and can be read, and what was refused can be repeated.

An error comes at the n-th system call of each public write; a file system of one megabyte fills up and is freed; files
may have only so many bytes, and a process only so many open files.
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
from prove.harness import Forked, Row, Run, Tally, faults_of, finished, lacks, let_go
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
    there = [f"{name}.seen"]
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
        told = end["told"][0] if end["told"] else {}
        done = "acknowledged" in told
        tally.made(int(end["injected"]), int(done))
        problems = _as_it_should(told, end, error)
        problems += faults_of(root, [*there, *([tag] if done else [])])
        again = forked.ask(root=root, write=name, tag=tag)["told"]
        problems += [] if again and "acknowledged" in again[0] else [f"repeated, it was refused: {again}"]
        problems += faults_of(root, [*there, tag])
        there.append(tag)
        tally.note([f"{name}, {call} {number}: {wrong}" for wrong in problems], root)


def _as_it_should(told: dict[str, Any], end: dict[str, Any], error: str) -> list[str]:
    """See that a refusal names cause and file, that reading went on, and that nothing else broke."""
    if "crashed" in told or not told:
        return [f"it crashed: {told.get('crashed')}"]
    wrong = []
    if "refused" in told and not (any(cause in told["why"] for cause in _CAUSES[error]) and "/" in told["why"]):
        wrong.append(f"the refusal does not name cause and file: {told['why']}")
    read = [each["read"] for each in end["told"] if "read" in each]
    return wrong + (
        [] if read and read[0].startswith("outside-0 ") else [f"what was there before was not read: {read}"]
    )


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


def _faults_of_copy(run: Run, root: str, kept: list[str]) -> list[str]:
    """Look at a memory elsewhere, so that the index of who looks takes none of the space."""
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
) -> list[str]:
    """Let a process write until it is refused, under a limit; return what was acknowledged."""
    worker = run.program("fills", root, me, rounds, _KINDS, limit)
    let_go(worker)
    told = finished(worker)
    refused = [line for line in told if line[0] == "refused"]
    kept = [line[1] for line in told if line[0] == "acknowledged"]
    tally.made(len(refused) if refusals else 0, len(kept))
    tally.note([" ".join(line) for line in told if line[0] not in ("acknowledged", "refused")], root)
    tally.note([" ".join(line) for line in refused if not refusals or cause not in " ".join(line)], root)
    tally.note(["nothing was refused"] if refusals and not refused else [], root)
    tally.note(["nothing was kept"] if not kept else [], root)
    return kept
