"""The server dies under load and its standby takes over: what was acknowledged is there, once, in its order."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

import holdfast
import pgserver
from holdfast.errors import NotFound

WRITERS, SOME = 4, 40
HISTORY = "user/memory/history.jsonl"
WRITER = """
import select, sys
import holdfast
from holdfast.errors import HoldfastError

address, me = sys.argv[1:]

def add(number):
    memory.add("user/memory/history.jsonl", [{"role": "user", "content": f"{me}-{number}", "channel": me}])

def held(number):
    memory.tree.append(f"logs/{me}.jsonl", lambda end: f"{me}-{number}\\n".encode())

def together(number):
    def compose(end):
        memory.tree.write(f"beside/{me}-{number}.md", b"beside", expect="")
        return f"{me}-{number}\\n".encode()
    memory.tree.append("logs/all.jsonl", compose)

def document(number):
    memory.tree.write(f"documents/{me}-{number}.md", f"{me}-{number}".encode(), expect="")

with holdfast.open(address, writer=me) as memory:
    number = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        work = (add, held, together, document)[number % 4]
        try:
            work(number)
            print("saved", work.__name__, number, flush=True)
        except HoldfastError as error:
            doubt = "may or may not" in error.message
            print("unsure" if doubt else "refused", work.__name__, number, error.message, flush=True)
        number += 1
"""
READER = """
import hashlib, json, select, sys
import holdfast
from holdfast.errors import HoldfastError

marks = {}

def look(path):
    offset, digest = marks.get(path, (0, hashlib.sha256()))
    for line in memory.tree.scan(path, offset):
        assert line.whole, line
        digest.update(line.data + b"\\n")
        marks[path] = line.end, digest

with holdfast.open(sys.argv[1]) as memory:
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        for path in sys.argv[2:]:
            try:
                look(path)
            except HoldfastError:
                pass  # not there yet, or no server is
    for path in sys.argv[2:]:
        look(path)
print(json.dumps({path: [offset, digest.hexdigest()] for path, (offset, digest) in marks.items()}))
"""


@pytest.fixture
def pair() -> Iterator[pgserver.Pair]:
    with pgserver.pair() as running:
        yield running


class Program:
    """A real process; what it printed is read when it is wanted."""

    def __init__(self, code: str, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.said: list[str] = []

    def wait_for(self, count: int) -> None:
        """Read on until it has saved so many more."""
        assert self._process.stdout
        while count:
            line = self._process.stdout.readline()
            assert line, "the writer ended"
            self.said.append(line)
            count -= line.startswith("saved")

    def stop(self) -> list[str]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("stop\n")
        self._process.stdin.close()
        self.said += self._process.stdout
        assert self._process.wait() == 0
        return self.said

    def kill(self) -> None:
        self._process.kill()
        with self._process:
            pass


@contextlib.contextmanager
def programs(address: str) -> Iterator[tuple[list[Program], Program]]:
    logs = [HISTORY, "logs/all.jsonl", *(f"logs/w{number}.jsonl" for number in range(WRITERS))]
    started = [Program(WRITER, address, f"w{number}") for number in range(WRITERS)]
    reader = Program(READER, address, *logs)
    try:
        yield started, reader
    finally:
        for one in (*started, reader):
            one.kill()


def test_what_was_acknowledged_before_and_after_a_failover_is_there_once_and_in_order(pair: pgserver.Pair) -> None:
    address = pair.at("postgres", tenant="team")
    with holdfast.open(address) as memory:
        memory.tree.write("before.md", b"before", expect="")
    with programs(address) as (writers, reader):
        for writer in writers:
            writer.wait_for(SOME)
        pair.fail_over()
        for writer in writers:
            writer.wait_for(SOME)
        said = {f"w{number}": writer.stop() for number, writer in enumerate(writers)}
        marks = json.loads(reader.stop()[-1])
    with holdfast.open(address) as memory:
        assert memory.tree.read("before.md").data == b"before"
        _check(memory, said)
        _check_marks(memory, marks)


def _check(memory: holdfast.Memory, said: dict[str, list[str]]) -> None:
    expected: dict[str, dict[str, str]] = {"add": {}, "held": {}, "together": {}, "document": {}}
    for writer, lines in said.items():
        for line in lines:
            verdict, work, number, *_ = line.split()
            expected[work][f"{writer}-{number}"] = verdict
    found = {
        "add": [str(json.loads(line.data)["content"]) for line in memory.tree.scan(HISTORY)],
        "held": [line.data.decode() for writer in said for line in memory.tree.scan(f"logs/{writer}.jsonl")],
        "together": [line.data.decode() for line in memory.tree.scan("logs/all.jsonl")],
        "document": [name for name in expected["document"] if _there(memory, f"documents/{name}.md", name.encode())],
    }
    for work, verdicts in expected.items():
        counts = collections.Counter(found[work])
        wrong = {
            name: (verdict, counts[name]) for name, verdict in verdicts.items() if not _right(verdict, counts[name])
        }
        assert wrong == {}, work
        assert set(counts) <= set(verdicts), work
        order = [[int(name.partition("-")[2]) for name in found[work] if name.startswith(f"{w}-")] for w in said]
        assert order == [sorted(numbers) for numbers in order], work
    for name in expected["together"]:
        assert _there(memory, f"beside/{name}.md", b"beside") == (name in found["together"]), name
    print({work: collections.Counter(verdicts.values()) for work, verdicts in expected.items()})
    ids = [str(json.loads(line.data)["id"]) for line in memory.tree.scan(HISTORY)]
    assert ids == sorted(set(ids))


def _right(verdict: str, count: int) -> bool:
    return count == 1 if verdict == "saved" else count == 0 if verdict == "refused" else count <= 1


def _there(memory: holdfast.Memory, path: str, data: bytes) -> bool:
    try:
        assert memory.tree.read(path).data == data
    except NotFound:
        return False
    return True


def _check_marks(memory: holdfast.Memory, marks: dict[str, tuple[int, str]]) -> None:
    """What a reader saw up to its mark, before and after, is what lies there."""
    assert len(marks) == WRITERS + 2
    for path, (offset, seen) in marks.items():
        data = memory.tree.read(path).data
        assert hashlib.sha256(data[:offset]).hexdigest() == seen, path
        assert offset == len(data), path
