"""Replaced files and roots: an older or shorter copy takes the name of a log, a root is restored or renamed.

Entries of live processes are restored. A log that is shortened while no process writes is reported with the number of
missing entries, and a backup restores them. A process whose root was replaced is refused.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator

import holdfast
from prove.harness import Recording, Row, Run, Tally, faults_of, finished, let_go
from prove.history import History
from prove.writes import WRITES, served, tag_of

_LOGS = "message,fact,episode,learn,happened,exchange,procedure"


def campaign(run: Run) -> Iterator[Row]:
    yield _logs(run)
    yield _shortened(run)
    yield _restored(run)
    yield _moved(run)


def _logs(run: Run) -> Row:
    tally, dice = Tally(run, "older and shorter copies take the names of logs beside writers"), run.random("logs")
    seconds = run.size(20, 1)
    with run.root("replaced") as root:
        writers = [run.program("library", root, f"w{me}", seconds, _LOGS, "wait") for me in range(3)]
        let_go(*writers)
        recording, end = Recording(*writers), time.monotonic() + seconds
        while time.monotonic() < end:
            for path in _found(root):
                _replace(path, dice)
                tally.made()
        recording.written()
        for path in _found(root):  # a last time before the writers end
            _replace(path, dice)
            tally.made()
        history = recording.finished()
        tally.made(0, len(history.acknowledged))
        tally.note(faults_of(root, history), root)
    return tally.row()


def _found(root: str) -> list[str]:
    """Return the logs that contain records."""
    memory = os.path.join(root, "user/memory")
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(memory) for name in names]
    return sorted(path for path in paths if path.endswith(".jsonl") and "/writes/" not in path)


def _replace(path: str, dice: random.Random) -> None:
    """Change a log as git, sync tools and editors do: replace it with an older or shorter copy, or cut it."""
    with open(path, "rb") as file:
        lines = file.read().splitlines(keepends=True)
    match dice.randrange(3):
        case 0:
            time.sleep(dice.uniform(0, 0.02))  # which ages the copy
            _put(path, b"".join(lines))
        case 1:
            _put(path, b"".join(lines[: dice.randrange(len(lines) + 1)]))
        case 2:
            os.truncate(path, len(b"".join(lines[: dice.randrange(len(lines) + 1)])))


def _put(path: str, data: bytes) -> None:
    with open(f"{path}~", "wb") as file:
        file.write(data)
    os.replace(f"{path}~", path)


def _shortened(run: Run) -> Row:
    """Shorten logs while no process writes: the loss is reported with log and number, and a backup restores it."""
    tally, dice = Tally(run, "logs are shortened while no writer runs"), run.random("shortened")
    with run.root("replaced") as root:
        tags = [tag_of(name, number) for name in _LOGS.split(",") for number in range(6)]
        backup = f"{root}-backup.tar.gz"
        with holdfast.open(root) as memory:
            for tag in tags:
                WRITES[tag.partition(".")[0]].do(memory, tag)
            memory.find("words")
            memory.backup(backup)
        history = History.of(tags)
        for number in range(run.size(40, 1)):
            path = dice.choice(_found(root))
            with open(path, "rb") as file:
                lines = file.read().splitlines(keepends=True)
            gone = dice.randrange(2, len(lines))
            _put(path, b"".join(lines[:-gone]))
            tally.made(1, gone)
            said = run.command("verify", "--repair", "--backup", backup, "--root", root).communicate()
            wanted = f"{os.path.relpath(path, root)}: {gone} of {gone} missing entries appended"
            tally.note([] if wanted in "".join(said) else [f"not reported: {wanted}; but: {said}"], root)
            tally.note([f"{number}: {each}" for each in faults_of(root, history, clean=True)], root)
    return tally.row()


def _restored(run: Run) -> Row:
    """Put a restored root in the place of the one that a process writes to."""
    tally, dice = Tally(run, "a restored root takes the place of the one that is written to"), run.random("restored")
    for _ in range(run.size(15, 1)):
        with run.root("replaced") as root:
            backup, before = f"{root}-backup.tar.gz", f"{root}-before"
            with holdfast.open(root) as memory:
                WRITES["episode"].do(memory, "episode.first")
                memory.backup(backup)
            writer = run.program("library", root, "w", 1, "episode,note,fact,decision")
            let_go(writer)
            time.sleep(dice.uniform(0.1, 0.4))
            os.rename(root, before)
            holdfast.restore(backup, root)
            swapped = time.monotonic()
            history = finished(writer)
            tally.made(1, len(history.acknowledged))
            with holdfast.open(root) as memory:
                now = served(memory)
            with holdfast.open(before) as memory:
                either = Counter(set(served(memory)) | set(now))
            late = History(event for event in history if event.start > swapped)
            tally.note(late.faults(now) + (history + History.of(["episode.first"])).faults(either), before)
            refused = [why for why in late.refusals() if "another folder" in why]
            if late and not refused:  # on a busy machine the writer may have ended earlier
                tally.note(["no write was refused after the root was replaced"], before)
    return tally.row()


def _moved(run: Run) -> Row:
    """Rename a root while a process writes to it: writes continue at the new place."""
    tally, dice = Tally(run, "a root is renamed while it is written to"), run.random("moved")
    for _ in range(run.size(15, 1)):
        with run.root("replaced") as root:
            writer = run.program("library", root, "w", 0.6, "episode,note,fact,decision")
            let_go(writer)
            time.sleep(dice.uniform(0.1, 0.4))
            os.rename(root, f"{root}-moved")
            history = finished(writer)
            tally.made(1, len(history.acknowledged))
            tally.note(faults_of(f"{root}-moved", history), f"{root}-moved")
            shutil.rmtree(root, ignore_errors=True)
    return tally.row()
