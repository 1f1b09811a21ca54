"""Power: the power fails while processes write. Everything that was acknowledged before exists afterwards.

A real ext4 in a file is shut down under the writers without a flush (EXT4_IOC_SHUTDOWN), unmounted and mounted again.
Data that was only in memory is lost, as after a power cut on a disk that honours flush.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator

from holdfast.roots import make_root
from prove.harness import Row, Run, Tally, faults_of, finished, lacks, let_go
from prove.history import CRASHED, History
from prove.writes import WRITES, tag_of

_SHUTDOWN, _NO_FLUSH = 0x8004587D, 2
_FAULT = "power cut on ext4: under 3 writers, and right after a write"
_WRITERS = 3
_DOCUMENTS = ("note", "plan", "decision", "edit", "status", "memory", "rule", "state")


def campaign(run: Run) -> Iterator[Row]:
    if missing := lacks("mkfs.ext4", "losetup", "mount", root=True):
        yield Row(_FAULT, 0, 0, 0, skipped=missing)
        return
    tally, dice = Tally(run, _FAULT), run.random("power")
    with run.folder("power") as folder:
        image, mount = os.path.join(folder, "image"), os.path.join(folder, "mount")
        os.mkdir(mount)
        with open(image, "wb") as file:
            file.truncate(64 << 20)
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
        if why := _mount(image, mount):
            yield Row(_FAULT, 0, 0, 0, skipped=why)
            return
        with contextlib.ExitStack() as after:
            after.callback(subprocess.run, ["umount", "-l", mount], check=False)
            make_root(os.path.join(mount, "root"))
            _sync(mount)
            kept = History()
            for number in range(run.size(15, 2)):
                kept += _cut(run, image, mount, number, dice)
                kept += _cut_at_once(run, image, mount, number, dice)
                tally.made(2)
                if wrong := _faults_of_copy(run, mount, kept):
                    tally.note(wrong, os.path.join(mount, "root"))
                    break
            tally.made(0, len(kept.acknowledged))
    yield tally.row()


def _cut(run: Run, image: str, mount: str, number: int, dice: random.Random) -> History:
    """Let processes write, cut the power, restore it; return the events."""
    names = list(WRITES)
    writers = [
        run.program("library", os.path.join(mount, "root"), f"cut{number}w{me}", 60, ",".join(_own(names, me, dice)))
        for me in range(_WRITERS)
    ]
    let_go(*writers)
    time.sleep(dice.uniform(0.05, 0.6))
    _fail(mount)
    for writer in writers:
        writer.kill()
    told = finished(*writers, killed=True)
    _come_back(image, mount)
    return History(event for event in told if not event.result.startswith(CRASHED))  # the file system is shut down


def _cut_at_once(run: Run, image: str, mount: str, number: int, dice: random.Random) -> History:
    """Let one process make one write, and cut the power at the moment of its acknowledgement."""
    tag = tag_of(dice.choice(_DOCUMENTS), f"once{number}")
    writer = run.program("one", os.path.join(mount, "root"), tag)
    let_go(writer)
    assert writer.stdout
    history = History()
    history.add_lines([writer.stdout.readline(), writer.stdout.readline()])  # the call and its answer
    _fail(mount)
    writer.kill()
    writer.communicate()
    _come_back(image, mount)
    return history


def _fail(mount: str) -> None:
    """Cut the power: data that is not on disk yet is lost."""
    fd = os.open(mount, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_FLUSH))
    finally:
        os.close(fd)


def _come_back(image: str, mount: str) -> None:
    subprocess.run(["umount", mount], check=True)
    if why := _mount(image, mount):
        raise RuntimeError(f"the file system does not come back: {why}")


def _own(names: list[str], me: int, dice: random.Random) -> list[str]:
    """Return the writes of one process, in its own order; only one process replaces whole documents."""
    chosen = [name for name in names if name not in ("memory", "edit") or me == 0]
    return dice.sample(chosen, len(chosen))


def _mount(image: str, mount: str) -> str:
    done = subprocess.run(["mount", "-o", "loop,barrier=1", image, mount], capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def _sync(mount: str) -> None:
    fd = os.open(mount, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    os.sync()


def _faults_of_copy(run: Run, mount: str, kept: History) -> list[str]:
    """Check a copy without its index, and the memory with the index that the power cut left."""
    with run.folder("copy") as folder:
        copy = shutil.copytree(
            os.path.join(mount, "root"), os.path.join(folder, "root"), ignore=shutil.ignore_patterns(".holdfast")
        )
        return faults_of(copy, kept) + faults_of(os.path.join(mount, "root"), kept)
