"""A worker that forks one child per case, so that a case takes milliseconds instead of the start of an interpreter.

It reads one case per line and answers with one line. A child opens the memory, prepares the write and waits. strace is
attached if the case needs a fault at the n-th system call. Then the child writes. It reports over a socket, so that
faults of file operations do not affect the report.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict
from typing import Any

import holdfast
from holdfast.errors import HoldfastError
from prove.chores import CHORES
from prove.history import CRASHED, Event, Recorder
from prove.writes import WRITES, tag_of

ALL = WRITES | CHORES
_ATTACHED = "attached"
_LIMIT = 120.0


def main() -> None:
    """Answer cases until the input ends."""
    for line in sys.stdin:
        case = json.loads(line)
        answer = _mix(case) if case.get("mix") else _single(case)
        print(json.dumps(answer), flush=True)


def _single(case: dict[str, Any]) -> dict[str, Any]:
    """Make one write in a child, with a fault at one of its system calls; return its events and how it ended."""
    ours, theirs = socket.socketpair()
    child = _fork(ours, theirs, lambda: _write(case, theirs))
    told: list[dict[str, Any]] = []
    calls = Counter[str]()
    try:
        ours.settimeout(_LIMIT)
        if ours.recv(100) == b"ready":
            with _Tracer(child, case.get("trace", ""), case.get("inject", "")) as tracer:
                ours.send(b"go")
                told = _all(ours)
                _, status = os.waitpid(child, 0)
            calls = tracer.calls()
            return {"told": told, "killed": os.WIFSIGNALED(status), "calls": calls, "injected": tracer.injected}
    except TimeoutError:
        os.kill(child, signal.SIGKILL)
    finally:
        ours.close()
    _, status = os.waitpid(child, 0)
    return {"told": told, "killed": False, "calls": calls, "injected": False, "hung": True}


def _write(case: dict[str, Any], pipe: socket.socket) -> None:
    """Make the write of a case as often as the case says; report the result of each."""
    write = ALL[case["write"]]
    memory = holdfast.open(case["root"])
    write.before(memory, case["tag"])

    def tell(event: Event) -> None:
        _tell(pipe, asdict(event))

    if case.get("warm"):
        memory.find("words")
    pipe.send(b"ready")
    pipe.recv(10)
    for _ in range(case.get("times", 1)):
        Recorder(tell).write(case["write"], case["tag"], lambda: write.do(memory, case["tag"]))
    if earlier := case.get("read"):
        _tell(pipe, {"read": _read(memory, earlier)})
    if case.get("close"):
        memory.close()


def _read(memory: holdfast.Memory, identifier: str) -> str:
    try:
        found = [hit.record.id for hit in memory.find("", limit=1000, hidden=True)]
        return memory.get(identifier).text if identifier in found else "not found by a search"
    except HoldfastError as error:
        return f"{type(error).__name__}: {error}"


def _mix(case: dict[str, Any]) -> dict[str, Any]:
    """Let a child make various writes, and kill it after a while; return what it tried and what was acknowledged."""
    ours, theirs = socket.socketpair()
    child = _fork(ours, theirs, lambda: _many(case, theirs))
    ours.settimeout(_LIMIT)
    ours.recv(100)
    ours.send(b"go")
    time.sleep(case["seconds"])
    os.kill(child, signal.SIGKILL)
    told = _all(ours)
    ours.close()
    os.waitpid(child, 0)
    return {"told": told}


def _many(case: dict[str, Any], pipe: socket.socket) -> None:
    dice = random.Random(case["seed"])
    memory = holdfast.open(case["root"])
    pipe.send(b"ready")
    pipe.recv(10)
    for number in range(100_000):
        name = dice.choice(case["mix"])
        tag = tag_of(name, case["me"], number)
        if dice.random() < 0.05:
            memory.find(tag)
        ALL[name].before(memory, tag)
        Recorder(lambda event: _tell(pipe, asdict(event))).write(name, tag, lambda: ALL[name].do(memory, tag))  # noqa: B023


def _fork(ours: socket.socket, theirs: socket.socket, work: Any) -> int:
    child = os.fork()
    if child:
        theirs.close()
        return child
    try:
        ours.close()
        work()
    except BaseException as error:
        _tell(theirs, asdict(Event("", "child", 0.0, 1.0, f"{CRASHED} {type(error).__name__}: {error}")))
    finally:
        os._exit(0)


def _tell(pipe: socket.socket, what: dict[str, Any]) -> None:
    pipe.sendall(json.dumps(what).encode() + b"\n")


def _all(pipe: socket.socket) -> list[dict[str, Any]]:
    """Return the lines of a child until it ends; an incomplete last line does not count."""
    data = b""
    with contextlib.suppress(ConnectionResetError):  # it was killed before it had read its input
        while more := pipe.recv(1 << 16):
            data += more
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


class _Tracer:
    """strace on a running process; its output goes to a file in memory."""

    def __init__(self, child: int, trace: str, inject: str) -> None:
        self._seen = os.memfd_create("trace") if trace else -1
        self._strace: subprocess.Popen[str] | None = None
        self.injected = False
        if trace:
            words = ["strace", "-f", "-e", f"trace={trace}", "-o", f"/proc/self/fd/{self._seen}", "-p", str(child)]
            words[1:1] = ["-e", f"inject={inject}"] if inject else []
            self._strace = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, pass_fds=[self._seen])

    def __enter__(self) -> _Tracer:
        if self._strace and self._strace.stderr:
            said = ""
            for line in self._strace.stderr:
                said += line
                if _ATTACHED in line:
                    break
            else:
                raise RuntimeError(f"strace cannot be attached: {said}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._strace:
            self._strace.communicate(timeout=_LIMIT)

    def calls(self) -> Counter[str]:
        """Return how often each system call was made."""
        if self._seen < 0:
            return Counter()
        with open(self._seen, encoding="utf-8", errors="replace") as file:
            file.seek(0)
            text = file.read()
        self.injected = "(INJECTED)" in text
        return Counter(re.findall(r"^\d+ +(\w+)\(", text, re.MULTILINE))


if __name__ == "__main__":
    main()
