"""Programs that run in many processes at once; each prints its calls and their answers."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any

import holdfast
from holdfast.model.times import parse_ms
from prove.history import ACKNOWLEDGED, READ, REFUSED, VERIFY, Event, Recorder, tell_line
from prove.writes import LONG, WRITES, tag_of

_RECORDER = Recorder()
_PATIENCE = 5.0
"""Seconds after which a file must be visible through a mount."""


def _ready() -> None:
    """Report that this process is ready, and wait until all are."""
    print("ready", flush=True)
    sys.stdin.readline()


def _make(memory: holdfast.Memory, tag: str) -> Event:
    """Make the write that a tag names."""
    write = WRITES[tag.partition(".")[0]]

    def do() -> Any:
        write.before(memory, tag)
        return write.do(memory, tag)

    return _RECORDER.write(tag.partition(".")[0], tag, do)


def edits() -> None:
    """Change one document repeatedly, each time from the version that was read."""
    root, me, count, target = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    with holdfast.open(root) as memory:
        _ready()
        for number in range(count):
            now, mark = memory.get(target), f"{me}:{number}"
            text = f"{now.text.strip()}\n{mark}"
            _RECORDER.write("edit", mark, lambda: memory.put(id=target, text=text, expect=now.version))  # noqa: B023


def same() -> None:
    """Make writes that other processes make at the same moment with the same op_id."""
    root, wanted, count = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])
    with holdfast.open(root) as memory:
        _ready()
        for name in wanted:
            for number in range(count):
                _make(memory, tag_of(name, number))


def library() -> None:
    """Write through the library until the time is over or the input ends; close the memory once the input ends."""
    root, me, seconds, wanted = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4].split(",")
    with holdfast.open(root, watch=True) as memory:
        _ready()
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            _make(memory, tag_of(wanted[number % len(wanted)], me, number))
            number += 1
        if "wait" in sys.argv[5:]:
            print("written", flush=True)
            sys.stdin.readline()


def briefly() -> None:
    """Write as short commands do, each with a newly opened memory, until the time is over."""
    root, me, seconds, wanted = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4].split(",")
    _ready()
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        with holdfast.open(root) as memory:
            _make(memory, tag_of(wanted[number % len(wanted)], me, number))
        number += 1


def one() -> None:
    """Make one write, report it, and wait."""
    root, tag = sys.argv[1], sys.argv[2]
    name = tag.partition(".")[0]
    memory = holdfast.open(root)
    WRITES[name].before(memory, tag)
    _ready()
    _make(memory, tag)
    sys.stdin.readline()


def checks() -> None:
    """Verify repeatedly until the time is over; record what is wrong."""
    root, seconds = sys.argv[1], float(sys.argv[2])
    with holdfast.open(root) as memory:
        _ready()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            start, report = time.monotonic(), memory.verify()
            wrong = [f"{each.path}:{each.line}: {each.what}" for each in (*report.differences, *report.damage)]
            result = f"{REFUSED} {wrong}" if wrong else ACKNOWLEDGED
            tell_line(Event("", VERIFY, start, time.monotonic(), result))


def reads() -> None:
    """Search for all lines of some writers repeatedly until the time is over."""
    root, seconds, kind, about = sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4]
    with holdfast.open(root, watch=True) as memory:
        _ready()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            _search(memory, kind, about)


def _search(memory: holdfast.Memory, kind: str, about: str) -> Event:
    """Search for all records of a kind; the answer is complete up to the time that it names."""
    start = time.monotonic()
    found = memory.find("words", kinds=(kind,), limit=1000, hidden=True)  # type: ignore[arg-type]
    tags = [hit.record.text.partition(" ")[0] for hit in found]
    said = (parse_ms(found.as_of) or 0) / 1000 - time.time() + time.monotonic()
    complete = len(tags) < 1000 and not found.behind
    event = Event(
        about, READ, min(start, said), time.monotonic(), ACKNOWLEDGED if complete else REFUSED, seen=tuple(tags)
    )
    tell_line(event)
    return event


def fills() -> None:
    """Write in rounds, from the second one on under a limit, if one is given."""
    root, me, rounds, wanted, limit = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].split(","), sys.argv[5]
    with holdfast.open(root) as memory:
        _ready()
        for number in range(rounds):
            for name in wanted:
                if (number, name) == (1, wanted[0]):
                    _limit(limit)
                _make(memory, tag_of(name, me, number))


def _limit(given: str) -> None:
    """Set a limit of this process, such as RLIMIT_FSIZE=1000; open files are limited to a few more than are open."""
    name, _, value = given.partition("=")
    if name == "RLIMIT_FSIZE":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(value), resource.RLIM_INFINITY))
    elif name == "RLIMIT_NOFILE":
        used = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + int(value), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def mirrored() -> None:
    """Save files in a folder as other programs do, and read each through the mount: by key and by search."""
    root, mount, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    notes, facts = f"{root}/resources/workspaces/default/_notes", f"{root}/user/memory/semantic.jsonl"
    os.makedirs(notes, exist_ok=True)

    def save(path: str, text: str) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    with holdfast.open(mount, watch=True) as memory:
        _ready()
        for number in range(count):
            fact, note = tag_of("fact", number), tag_of("note", number)
            line = json.dumps({"key": fact, "value": f"{fact} {LONG}"})
            _RECORDER.write("fact", fact, lambda: save(facts, line))  # noqa: B023
            _RECORDER.read(fact, lambda: [str(memory.mind("mind").recall(fact).get("value", "")).split(" ")[0]])  # noqa: B023
            _RECORDER.write("note", note, lambda: save(f"{notes}/{note}.md", f"{note} {LONG}"))  # noqa: B023
            _search(memory, "note", "note.")
        end = time.monotonic() + _PATIENCE
        while (last := _search(memory, "note", "note.")) and note not in last.seen:
            if time.monotonic() > end:
                tell_line(Event(note, READ, end, end, f"{REFUSED}: it is never found through the mount"))
                break
