"""Programs that run in processes of their own, many at once; each prints a line once its write was acknowledged."""

from __future__ import annotations

import os
import resource
import sys
import time

import holdfast
from holdfast.errors import Conflict, HoldfastError
from prove.writes import WRITES, tag_of


def _ready() -> None:
    """Say that all is prepared, and wait until everybody is."""
    print("ready", flush=True)
    sys.stdin.readline()


def edits() -> None:
    """Change one document again and again, each time from the version that was read."""
    root, me, count, target = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    with holdfast.open(root) as memory:
        _ready()
        for number in range(count):
            now = memory.get(target)
            try:
                memory.put(id=target, text=f"{now.text.strip()}\n{me}:{number}", expect=now.version)
                print("applied", f"{me}:{number}", flush=True)
            except Conflict:
                print("conflict", f"{me}:{number}", flush=True)
            except HoldfastError as error:
                print("refused", type(error).__name__, error, flush=True)


def same() -> None:
    """Make writes that others make at the same moment under the same op_id; print each receipt."""
    root, wanted, count = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])
    with holdfast.open(root) as memory:
        _ready()
        for name in wanted:
            for number in range(count):
                tag = tag_of(name, number)
                try:
                    WRITES[name].before(memory, tag)
                    made = WRITES[name].do(memory, tag)
                    receipt = made.get("id", "") if isinstance(made, dict) else getattr(made, "id", made) or ""
                    print("acknowledged", tag, receipt, flush=True)
                except HoldfastError as error:
                    print("refused", tag, type(error).__name__, error, flush=True)


def library() -> None:
    """Write through the library until the time is over."""
    root, me, seconds, wanted = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4].split(",")
    with holdfast.open(root, watch=True) as memory:
        _ready()
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            tag = tag_of(wanted[number % len(wanted)], me, number)
            number += 1
            try:
                WRITES[tag.partition(".")[0]].before(memory, tag)
                WRITES[tag.partition(".")[0]].do(memory, tag)
                print("acknowledged", tag, flush=True)
            except HoldfastError as error:
                print("refused", tag, type(error).__name__, error, flush=True)


def one() -> None:
    """Make one write, say so, and do nothing more."""
    root, tag = sys.argv[1], sys.argv[2]
    name = tag.partition(".")[0]
    memory = holdfast.open(root)
    WRITES[name].before(memory, tag)
    _ready()
    WRITES[name].do(memory, tag)
    print("acknowledged", tag, flush=True)
    sys.stdin.readline()


def checks() -> None:
    """Verify again and again until the time is over; print what is found wrong."""
    root, seconds = sys.argv[1], float(sys.argv[2])
    with holdfast.open(root) as memory:
        _ready()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            report = memory.verify()
            print("acknowledged", "verify", flush=True)
            for problem in (*report.differences, *report.damage):
                print("refused", "verify", problem.path, problem.line, problem.what, flush=True)


def fills() -> None:
    """Write in rounds, from the second on under a limit, if one is given; print what was acknowledged and what refused."""
    root, me, rounds, wanted, limit = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].split(","), sys.argv[5]
    with holdfast.open(root) as memory:
        _ready()
        for number in range(rounds):
            for name in wanted:
                if (number, name) == (1, wanted[0]):
                    _limit(limit)
                tag = tag_of(name, me, number)
                try:
                    WRITES[name].before(memory, tag)
                    WRITES[name].do(memory, tag)
                    print("acknowledged", tag, flush=True)
                except HoldfastError as error:
                    print("refused", tag, type(error).__name__, error, flush=True)


def _limit(given: str) -> None:
    """Set a limit of this process, like RLIMIT_FSIZE=1000; open files are limited to a few more than there are."""
    name, _, value = given.partition("=")
    if name == "RLIMIT_FSIZE":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(value), resource.RLIM_INFINITY))
    elif name == "RLIMIT_NOFILE":
        used = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + int(value), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
