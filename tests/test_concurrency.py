"""Many real processes on one root: they write together, are killed at any moment, or stopped while they hold a lock.

The workers are small programs that use the public interface and print each acknowledgement as a line, so that the
output can be compared with the files.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import databaseroot
import holdfast
from holdfast.errors import Busy
from holdfast.storage.files.tree import Files
from holdfast.storage.tree import Stamp

PROCESSES = 8
APPENDS = 1_000

EPISODES = """
import holdfast, sys
root, me, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with holdfast.open(root) as memory:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(count):
        print(memory.put("episode", f"{me}:{number}", session="storm").id, flush=True)
"""

DECISIONS = """
import holdfast, sys
root, me, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with holdfast.open(root) as memory:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(count):
        print(memory.put("decision", f"text of {me}:{number}", title=f"Decision {me} {number}").id, flush=True)
"""

REBUILDS = """
import holdfast, sys
with holdfast.open(sys.argv[1]) as memory:
    print("ready", flush=True)
    while True:
        memory.refresh(rebuild=True)
        print("rebuilt", flush=True)
"""

HOLDS = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
print("ready", flush=True)
sys.stdin.read()
"""


def start(code: str, *arguments: object, tools: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*tools, sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def await_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def run_together(code: str, root: Path, count: int, processes: int, *more: str) -> list[list[str]]:
    """Start workers, let them go at the same moment, and return what each of them printed."""
    workers = [start(code, root, number, count, *more) for number in range(processes)]
    for worker in workers:
        await_ready(worker)
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    printed = [worker.communicate()[0].splitlines() for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * processes
    return printed


@contextlib.contextmanager
def running(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """See to it that a worker of ours is gone in the end, stopped or not."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def linger(dice: random.Random) -> None:
    """Let a moment pass, never the same one."""
    time.sleep(dice.random() * 0.02)


def test_eight_processes_append_to_one_log_without_loss_or_duplicate_ids(root: Path) -> None:
    printed = run_together(EPISODES, root, APPENDS, PROCESSES)
    acknowledged = [identifier for lines in printed for identifier in lines]
    (log,) = root.glob("user/memory/sessions/*/episodic.jsonl")
    data = log.read_bytes()
    assert data.endswith(b"\n")
    lines = [json.loads(line) for line in data.splitlines()]
    ids = [line["id"] for line in lines]
    assert len(ids) == PROCESSES * APPENDS
    assert all(earlier < later for earlier, later in itertools.pairwise(ids))
    assert sorted(acknowledged) == sorted(ids)
    assert {line["text"] for line in lines} == {f"{me}:{n}" for me in range(PROCESSES) for n in range(APPENDS)}
    for me in range(PROCESSES):
        own = [line["id"] for line in lines if line["text"].startswith(f"{me}:")]
        assert own == printed[me]
    with holdfast.open(root) as memory:
        assert memory.stats()["kinds"].get("episode", 0) in (0, PROCESSES * APPENDS)
        assert memory.verify().sound
        assert memory.stats()["kinds"] == {"episode": PROCESSES * APPENDS}


def test_eight_processes_adding_decisions_to_one_file_all_get_theirs_in(root: Path) -> None:
    printed = run_together(DECISIONS, root, 10, PROCESSES)
    acknowledged = sorted(identifier for lines in printed for identifier in lines)
    with holdfast.open(root) as memory:
        found = [hit.record for hit in memory.find("", kinds=("decision",), limit=1000)]
        assert sorted(record.id for record in found) == acknowledged
        assert len(set(acknowledged)) == PROCESSES * 10
        assert {record.text for record in found} == {f"text of {me}:{n}" for me in range(PROCESSES) for n in range(10)}
        assert memory.verify().sound


@pytest.mark.parametrize("tail", [b'{"id":"01', b'{"text":"whole"}', b"\0\0\0\0", b'{"text":"caf\xc3'])
def test_an_append_after_a_torn_line_loses_nothing(root: Path, tail: bytes) -> None:
    with holdfast.open(root) as memory:
        before = memory.put("episode", "before the crash")
        path = root / before.path
        earlier = path.read_bytes()
        with path.open("ab") as file:
            file.write(tail)
        memory.put("episode", "after the crash")
        assert path.read_bytes().startswith(earlier + tail + b"\n")
        texts = {hit.record.text for hit in memory.find("", kinds=("episode",))}
        whole = {"whole"} if tail.endswith(b"}") else set()
        assert texts == {"before the crash", "after the crash"} | whole
        damage = memory.verify().damage
        assert [problem.line for problem in damage] == ([] if whole else [2])


def test_a_killed_rebuild_does_not_change_answers(root: Path) -> None:
    with holdfast.open(root) as memory:
        for number in range(300):
            memory.put("episode", f"number{number} of many", session=f"s{number % 5}")
        memory.put("note", "a note about marble", title="Marble")
        expected = [(hit.record, hit.score) for hit in memory.find("marble many", limit=50)]
    dice = random.Random(11)
    for _ in range(12):
        with running(start(REBUILDS, root)) as worker:
            await_ready(worker)
            assert worker.stdout is not None
            for _ in range(dice.randrange(3)):
                worker.stdout.readline()
            linger(dice)
            worker.kill()
        with holdfast.open(root) as memory:
            assert [(hit.record, hit.score) for hit in memory.find("marble many", limit=50)] == expected
    with holdfast.open(root) as memory:
        memory.refresh(rebuild=True)
        assert memory.verify().sound
    assert not databaseroot.in_files(root) or len(list(root.glob(".holdfast/index-*.sqlite"))) == 1


def test_two_processes_that_rebuild_and_one_that_reads_never_disagree(root: Path) -> None:
    with holdfast.open(root) as memory:
        for number in range(50):
            memory.put("fact", f"granite {number}", fields={"key": f"k{number}"})
        expected = [hit.record for hit in memory.find("granite", limit=100)]
        with running(start(REBUILDS, root)) as one, running(start(REBUILDS, root)) as two:
            await_ready(one)
            await_ready(two)
            for _ in range(60):
                assert [hit.record for hit in memory.find("granite", limit=100)] == expected
            written = memory.put("fact", "granite written meanwhile", fields={"key": "new"})
            assert written.id in [hit.record.id for hit in memory.find("granite", limit=100)]
        assert memory.verify().sound


def holding(root: Path, path: str) -> subprocess.Popen[str]:
    """Start a process that locks a file as its writers do: a log itself, a document by its folder."""
    return start(HOLDS, root / path if path.endswith(".jsonl") else (root / path).parent)


@pytest.mark.parametrize("kind", ["episode", "note", "decision"])
def test_a_lock_held_by_a_stopped_process_is_an_error_and_loses_nothing(
    root: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_LIMITS_LOCK_SECONDS", "1")

    def change(text: str) -> None:
        if kind == "note":
            memory.put(id=first.id, text=text, expect=memory.get(first.id).version)
        else:
            memory.put(kind, text, title=text)  # type: ignore[arg-type]

    with holdfast.open(root) as memory:
        first = memory.put(kind, "before", title="Before")  # type: ignore[arg-type]
        path = root / first.path
        data = path.read_bytes()
        with running(holding(root, first.path)) as holder:
            await_ready(holder)
            holder.send_signal(signal.SIGSTOP)
            with pytest.raises(Busy, match=f"{path.name}.* was locked by .* for 1 s"):
                change("meanwhile")
            assert path.read_bytes() == data
            assert [hit.record.text for hit in memory.find("", kinds=(kind,))] == ["before"]  # type: ignore[arg-type]
        change("afterwards")
        texts = {hit.record.text for hit in memory.find("", kinds=(kind,))}  # type: ignore[arg-type]
        assert texts == {"afterwards"} | ({"before"} if kind != "note" else set())
        assert memory.verify().sound
    assert not list(root.rglob(".holdfast-tmp-*"))


def test_many_threads_of_one_memory_write_and_read_together(root: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with holdfast.open(root) as memory, ThreadPoolExecutor(8) as pool:

        def work(me: int) -> list[str]:
            ids = []
            for number in range(20):
                ids.append(memory.put("episode", f"thread{me} line{number}", session="threads").id)
                assert ids[-1] in [hit.record.id for hit in memory.find(f"thread{me}", limit=100)]
            return ids

        ids = [identifier for found in pool.map(work, range(8)) for identifier in found]
        assert len(set(ids)) == 160
        assert memory.stats()["kinds"]["episode"] == 160
        assert memory.verify().sound


def test_entries_that_another_program_indexed_meanwhile_are_not_called_lost(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open(root) as memory, holdfast.open(root) as other:
        memory.put("note", "marble", title="First")
        memory.refresh()
        log = other.put("episode", "granite", session="quarry").path
        heal, stat, armed = Files.heal, Files.stat, list[bool]()

        def healed(self: Files, path: str) -> None:
            heal(self, path)
            if path == log and self is memory.tree:
                armed.append(True)

        def looked(self: Files, path: str) -> Stamp | None:
            found = stat(self, path)
            if armed and path == log and self is memory.tree:  # after this look, and before the log is read
                monkeypatch.undo()
                other.put("episode", "quartz", session="quarry")
                other.refresh()
            return found

        monkeypatch.setattr(Files, "heal", healed)
        monkeypatch.setattr(Files, "stat", looked)
        assert not memory.refresh().problems
        assert armed
        assert [hit.record.text for hit in memory.find("quartz")] == ["quartz"]
