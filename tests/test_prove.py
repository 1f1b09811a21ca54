"""The fault campaign in its small size: `scripts/prove` is the whole of it."""

from __future__ import annotations

import importlib
import pathlib

import pytest
from prove.__main__ import CAMPAIGNS
from prove.harness import Run
from prove.history import ACKNOWLEDGED, CONFLICT, CRASHED, READ, REFUSED, Event, History
from prove.soak import slope_of, soak

SEED = 20_260_101


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_nothing_is_lost(name: str, tmp_path: pathlib.Path) -> None:
    rows = list(importlib.import_module(f"prove.{name}").campaign(Run(True, SEED, str(tmp_path))))
    skipped = [f"{row.fault}: {row.skipped}" for row in rows if row.skipped]
    made = [row for row in rows if not row.skipped]
    for row in made:
        assert row.injected, f"{row.fault}: the fault was never made"
        assert not row.lost, f"{row.fault}: {row.problems}"
        assert not row.problems, f"{row.fault}: {row.problems}"
    if skipped and not made:
        pytest.skip("; ".join(skipped))


def write(op: str, start: float, end: float = 0.0, result: str = "", receipt: str = "") -> Event:
    return Event(op, "note", start, end, result, receipt)


def read(about: str, start: float, *seen: str) -> Event:
    return Event(about, READ, start, start + 0.5, ACKNOWLEDGED, seen=seen)


DONE = write("a", 1, 2, ACKNOWLEDGED, "1")


@pytest.mark.parametrize(
    ("events", "found", "fault"),
    [
        ([DONE], {}, "a is there 0 times"),
        ([DONE], {"a": 2}, "a is there 2 times"),
        ([write("a", 1)], {"a": 2}, "a is there 2 times"),
        ([write("a", 1, 2, CONFLICT)], {"a": 1}, "a is there 1 times"),
        ([DONE, write("a", 3, 4, ACKNOWLEDGED, "2")], {"a": 1}, "a has 2 receipts"),
        ([write("a", 1, 2, f"{CRASHED} KeyError")], {}, "crashed KeyError"),
        ([DONE, read("a", 3)], {"a": 1}, "a read of a misses a"),
        ([write("a", 1), read("a", 2, "a"), read("a", 3)], {"a": 1}, "a read of a misses a"),
        ([], {"torn: x": 1}, "torn: x is served"),
    ],
)
def test_a_history_with_a_fault_is_not_accepted(events: list[Event], found: dict[str, int], fault: str) -> None:
    (wrong,) = History(events).faults(found)
    assert fault in wrong


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([write("a", 1), DONE], {"a": 1}),
        ([write("a", 1)], {}),
        ([write("a", 1, 2, f"{REFUSED} Busy")], {"a": 1}),
        ([write("a", 1, 2, CONFLICT), write("a", 3, 4, ACKNOWLEDGED)], {"a": 1}),
        ([DONE, read("a", 1.5), read("a", 3, "a"), read("b", 4)], {"a": 1}),
    ],
)
def test_a_history_without_a_fault_is_accepted(events: list[Event], found: dict[str, int]) -> None:
    assert History(events).faults(found) == []


def test_a_soak_fails_on_growth_and_not_on_noise(tmp_path: pathlib.Path) -> None:
    times = [number / 4 for number in range(40)]
    noise = [100 + number * 7 % 5 for number in range(40)]
    assert slope_of(times, [value + 10 * at for value, at in zip(noise, times, strict=True)], 8)[1]
    assert not slope_of(times, [float(value) for value in noise], 8)[1]
    said: list[str] = []
    assert soak(Run(True, SEED, str(tmp_path)), 0.03, said.append) == 0, said
    assert len(said) == 7
