"""Folds and transactions over logs, on files and in a database."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import holdfast
from holdfast.errors import Busy, Invalid
from holdfast.storage import log
from holdfast.storage.log import Logs

LOG = "user/memory/counts.jsonl"


class Total:
    def __init__(self) -> None:
        self.sum = 0

    def add(self, entry: Mapping[str, Any]) -> None:
        self.sum += entry.get("n", 0)


@pytest.fixture(params=["root", "address"])
def memory(request: pytest.FixtureRequest) -> Iterator[holdfast.Memory]:
    with holdfast.open(str(request.getfixturevalue(request.param))) as opened:
        yield opened


def total(logs: Logs[Total]) -> int:
    return logs.ask(LOG, lambda fold: fold.sum, [])


def test_a_decision_is_made_again_when_the_log_has_changed(memory: holdfast.Memory) -> None:
    logs, other, seen = Logs(memory, Total), Logs(memory, Total), list[int]()
    logs.transact(LOG, lambda _fold: [{"n": 1}], [])

    def decide(fold: Total) -> list[dict[str, Any]]:
        seen.append(fold.sum)
        if len(seen) < 3:
            other.transact(LOG, lambda _fold: [{"n": 10}], [])
        return [{"n": 100}]

    assert len(logs.transact(LOG, decide, [])) == 1
    assert seen == [1, 11, 21]
    assert total(logs) == total(other) == 121


def test_a_log_that_keeps_changing_is_busy_and_gets_nothing(
    memory: holdfast.Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "attempts", functools.partial(log.attempts, tries=20))
    logs = Logs(memory, Total)

    def decide(_fold: Total) -> list[dict[str, Any]]:
        memory.add(LOG, [{"n": 1}], durable=False)
        return [{"n": 1_000}]

    with pytest.raises(Busy, match="nothing was written"):
        logs.transact(LOG, decide, [], slow=True)
    assert total(logs) < 1_000


def test_a_large_change_gets_through_beside_many_small_ones(memory: holdfast.Memory) -> None:
    logs, busy, done = Logs(memory, Total), threading.Event(), threading.Event()

    def small_changes() -> None:
        while not done.is_set():
            memory.add(LOG, [{"n": 1}], durable=False)
            busy.set()

    def decide(fold: Total) -> list[dict[str, Any]]:
        time.sleep(0.05)  # longer than the small changes are apart
        return [{"n": 0, "seen": fold.sum}] * 3

    with ThreadPoolExecutor(1) as pool:
        small = pool.submit(small_changes)
        try:
            busy.wait(30)
            assert len(logs.transact(LOG, decide, [])) == 3
        finally:
            done.set()
        small.result(30)


def test_a_decision_may_be_nothing_or_an_error_and_makes_no_log(memory: holdfast.Memory) -> None:
    logs = Logs(memory, Total)

    def refuse(_fold: Total) -> list[dict[str, Any]]:
        raise Invalid("No.")

    assert logs.transact(LOG, lambda _fold: [], []) == []
    with pytest.raises(Invalid):
        logs.transact(LOG, refuse, [])
    assert not memory.store.exists(LOG)


def test_a_log_that_was_removed_or_replaced_is_read_again(memory: holdfast.Memory) -> None:
    logs = Logs(memory, Total)
    logs.transact(LOG, lambda _fold: [{"n": 5}], [])
    assert total(logs) == 5
    memory.tree.remove(LOG)
    assert total(logs) == 0
    logs.transact(LOG, lambda fold: [{"n": fold.sum + 7}], [])
    assert total(logs) == 7


def test_threads_that_each_add_what_is_missing_never_add_too_much(memory: holdfast.Memory) -> None:
    logs, most = Logs(memory, Total), 20

    def work(_number: int) -> int:
        added = 0
        while logs.transact(LOG, lambda fold: [{"n": 1}] if fold.sum < most else [], []):
            added += 1
        return added

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(work, range(6))) == most
    assert total(logs) == most
