"""Soak: a mixed load on one MCP server for many minutes. Memory, descriptors, latency and index must stay flat.

The load works on a fixed set of notes and facts: it edits, learns, recalls and lists. Each call leaves a trace, which
is a record, so the size of the index is compared with that of the files. The slope is that of a least-squares line
through the samples after a warm-up. It is too steep if it adds more than a quarter of the mean over the whole run and
is clearly not chance. Latency depends on other work of the machine; the server's CPU time per call hardly does.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import holdfast
from prove import serving
from prove.harness import Run
from prove.history import History, Recorder
from prove.serving import Stdio, call

_NOTES = 100
_EVERY = 0.02
"""Seconds between two calls."""
_WARM_UP = 0.25
_GROWTH = 0.25
_SIGMAS = 4.0


@dataclass(frozen=True)
class Series:
    name: str
    unit: str
    least: float
    """Growth over the whole run that is never too much."""


_SERIES = (
    Series("resident memory", "MiB", 8),
    Series("open descriptors", "", 4),
    Series("CPU per call", "ms", 1),
    Series("p50 latency", "ms", 5),
    Series("p95 latency", "ms", 20),
    Series("index / files", "", 0.2),
)


def soak(run: Run, minutes: float, say: Callable[[str], None] = print) -> int:
    """Run the load; print the slopes and return the number of steep ones and failed calls."""
    history = History()
    every = max(1.0, min(15.0, minutes * 60 / 40))
    with run.root("soak") as root:
        with holdfast.open(root) as memory:
            notes = [
                memory.put("note", f"start {number} marble", title=f"Note {number}").id for number in range(_NOTES)
            ]
        with serving.stdio(run, root) as server:
            samples = _samples(server, root, notes, (minutes * 60, every), history)
        refused = history.refusals(conflicts=True)
        with holdfast.open(root) as memory:
            report = memory.verify()
        wrong = refused[:5] + [f"verify: {each.path}: {each.what}" for each in (*report.differences, *report.damage)]
        steep = 0
        for number, series in enumerate(_SERIES):
            values = [sample[1 + number] for sample in samples]
            slope, is_steep = slope_of([sample[0] for sample in samples], values, series.least)
            steep += is_steep
            mean = statistics.fmean(values) if values else 0.0
            verdict = "NOT FLAT" if is_steep else "flat"
            say(f"{series.name:<20} mean {mean:9.2f} {series.unit:<4} slope {slope:+9.3f} {series.unit}/min  {verdict}")
        say(f"{len(history)} calls in {len(samples)} samples; {len(refused)} were refused")
        for each in wrong:
            say(f"    {each}")
        if steep or wrong:
            say(f"The folder is kept in {run.lost(root)}.")
    return steep + len(wrong)


Sample = tuple[float, float, float, float, float, float, float]
"""Minutes since the start, and the values of each series."""


def _samples(
    server: Stdio, root: str, notes: Sequence[str], seconds: tuple[float, float], history: History
) -> list[Sample]:
    begin = time.monotonic()
    number, found = 0, list[Sample]()
    while time.monotonic() - begin < seconds[0]:
        end, took, cpu = time.monotonic() + seconds[1], list[float](), _cpu(server.process.pid)
        while time.monotonic() < end:
            number += 1
            tool, given = _next(number, notes)
            recorder = Recorder(history.add)
            event = recorder.write(tool, f"{tool}.{number}", lambda: _ask(server, number, tool, given))  # noqa: B023
            took.append((event.end - event.start) * 1000)
            time.sleep(max(0.0, event.start + _EVERY - time.monotonic()))
        took.sort()
        found.append((
            (time.monotonic() - begin) / 60, _resident(server.process.pid),
            float(len(os.listdir(f"/proc/{server.process.pid}/fd"))),
            (_cpu(server.process.pid) - cpu) / len(took), took[len(took) // 2], took[len(took) * 95 // 100],
            _size(os.path.join(root, ".holdfast")) / _size(os.path.join(root, "user"), os.path.join(root, "resources")),
        ))  # fmt: skip
    return found[int(len(found) * _WARM_UP) :]


def _next(number: int, notes: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the next call; the calls cycle through a fixed set of records."""
    note = notes[number // 6 % len(notes)]
    calls: tuple[tuple[str, dict[str, Any]], ...] = (
        ("recall", {"query": f"marble {number % 50}"}),
        ("revise", {"id": note, "text": f"edit {number} marble"}),
        ("memory_learn", {"key": f"key {number // 6 % _NOTES}", "value": f"value {number}"}),
        ("memory_recall", {"key": f"key {number // 6 % _NOTES}"}),
        ("listStates", {}),
        ("recall", {"query": "edit", "kinds": ["note"]}),
    )
    return calls[number % len(calls)]


def _ask(server: Stdio, number: int, tool: str, given: dict[str, Any]) -> None:
    server.send(call(number, tool, given))
    result = server.answer(number).get("result", {})
    if result.get("isError") is not False:
        raise holdfast.errors.Unavailable(str(result)[:300], "")


def _resident(pid: int) -> float:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _cpu(pid: int) -> float:
    """Return the CPU time of a process in milliseconds."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        user, system = file.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) * 1000 / os.sysconf("SC_CLK_TCK")


def _size(*folders: str) -> int:
    """Return the size of the files in some folders, without earlier versions; files may disappear."""
    total = 0
    for at, _, names in itertools.chain.from_iterable(map(os.walk, folders)):
        for name in names if not at.endswith("/kept") else ():
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(at, name)).st_size
    return total


def slope_of(times: Sequence[float], values: Sequence[float], least: float) -> tuple[float, bool]:
    """Return the least-squares slope, and whether it is clearly too steep."""
    if len(times) < 4:
        return 0.0, False
    slope, start = statistics.linear_regression(times, values)
    rest = sum((value - start - slope * at) ** 2 for at, value in zip(times, values, strict=True))
    spread = sum((at - statistics.fmean(times)) ** 2 for at in times)
    error = math.sqrt(rest / (len(times) - 2) / spread)
    growth = slope * (times[-1] - times[0])
    return slope, growth > max(least, _GROWTH * statistics.fmean(values)) and slope > _SIGMAS * error
