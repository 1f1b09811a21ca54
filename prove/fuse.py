"""FUSE: a memory on a mount that another machine writes to, without file events.

A process opens a bindfs mount and watches it, while files are written to the folder below. Every answer must have
everything that was acknowledged before the time that it names; a query by key must have all of it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

from prove.harness import Row, Run, Tally, faults_of, finished, lacks, let_go
from prove.history import READ

_FAULT = "writes behind a FUSE mount that a live process reads"
_NO_CACHE = "attr_timeout=0,entry_timeout=0,negative_timeout=0"


def campaign(run: Run) -> Iterator[Row]:
    if missing := lacks("bindfs"):
        yield Row(_FAULT, 0, 0, 0, skipped=missing)
        return
    tally = Tally(run, _FAULT)
    with run.root("fuse") as root, contextlib.ExitStack() as after:
        mount = f"{root}-mount"
        os.mkdir(mount)
        done = subprocess.run(["bindfs", "-o", _NO_CACHE, root, mount], capture_output=True, text=True, check=False)
        if done.returncode:
            yield Row(_FAULT, 0, 0, 0, skipped=f"bindfs cannot mount here: {done.stderr.strip()}")
            return
        after.callback(subprocess.run, ["fusermount", "-u", "-z", mount], check=True)
        reader = run.program("mirrored", root, mount, run.size(150, 12))
        let_go(reader)
        history = finished(reader)
        answers = [event for event in history if event.kind == READ]
        tally.made(len(answers), len(history.acknowledged))
        tally.note(history.refusals() + faults_of(root, history, clean=True), root)
    yield tally.row()
