"""Appends by several threads of one program, and by several programs, to the same logs of a database."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import holdfast
import pgserver
from holdfast.errors import Busy, Invalid
from holdfast.storage.postgres.tree import PgTree
from holdfast.storage.tree import Appended, LogEnd
from test_postgres_faults import lines, opened, sound

THREADS = 6

INTERRUPTED = """
import os, signal, sys, threading, time
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.tree import PgTree
tree = PgTree(Database(sys.argv[1]))
begun, go = threading.Event(), threading.Event()
def slow(end):
    begun.set()
    go.wait(30)
    return b"one\\n"
def interrupt():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)
tree.append("log.jsonl", lambda end: b"begun\\n", again=True)
threads = [threading.Thread(target=lambda: tree.append("log.jsonl", slow, again=True)), threading.Thread(target=interrupt)]
threads[0].start()
begun.wait(30)
threads[1].start()
try:
    tree.append("log.jsonl", lambda end: b"never\\n", again=True)
except KeyboardInterrupt:
    go.set()
else:
    sys.exit("it was not interrupted")
for thread in threads:
    thread.join()
tree.append("log.jsonl", lambda end: b"two\\n", again=True)
tree.close()
"""


def line(text: str) -> Callable[[LogEnd], bytes]:
    return lambda _end: f"{text}\n".encode()


class Crowd:
    """Threads that append to one log while the first of them composes until all of them go."""

    def __init__(self, tree: PgTree, path: str = "log.jsonl") -> None:
        self._tree = tree
        self._path = path
        self._pool = ThreadPoolExecutor(2 * THREADS)
        self._go = threading.Event()
        begun = threading.Event()

        def slow(_end: LogEnd) -> bytes:
            begun.set()
            self._go.wait(30)
            return b"first\n"

        tree.append(path, line("begun"), again=True)
        self._waiting = [self._pool.submit(tree.append, path, slow, again=True)]
        assert begun.wait(30)

    def append(self, compose: Callable[[LogEnd], bytes]) -> Future[Appended | None]:
        future = self._pool.submit(self._tree.append, self._path, compose, again=True)
        self._waiting.append(future)
        return future

    def go(self) -> None:
        """Let the first go, and wait until all are done, however that ended."""
        self._go.set()
        self._pool.shutdown()
        for future in self._waiting:
            future.exception(30)


@pytest.fixture
def tree(address: str) -> Iterator[PgTree]:
    with opened(address) as made:
        yield made


def test_threads_that_append_at_once_each_get_a_place_of_their_own(
    server: pgserver.Server, database: str, address: str, tree: PgTree
) -> None:
    crowd = Crowd(tree)
    futures = [crowd.append(line(f"line {number}")) for number in range(3)]
    crowd.go()
    assert lines(tree, "log.jsonl")[:2] == ["begun", "first"]
    assert sorted(lines(tree, "log.jsonl")[2:]) == ["line 0", "line 1", "line 2"]
    places = sorted((done.start, done.end) for future in futures if (done := future.result()))
    assert places == [(12, 19), (19, 26), (26, 33)]
    sound(server, database, address)


def test_other_logs_do_not_wait(tree: PgTree) -> None:
    crowd = Crowd(tree)
    tree.append("other.jsonl", line("one"), again=True)
    tree.append("other.jsonl", line("two"), again=True)
    crowd.go()
    assert lines(tree, "other.jsonl") == ["one", "two"]


def test_each_sees_the_lines_of_those_before_it(tree: PgTree) -> None:
    seen: list[tuple[int, list[bytes], list[bytes]]] = []

    def looking(text: str) -> Callable[[LogEnd], bytes]:
        def compose(end: LogEnd) -> bytes:
            seen.append((end.size, list(end.back()), list(end.lines(0))))
            return f"{text}\n".encode()

        return compose

    crowd = Crowd(tree)
    for text in ("one", "two", "three"):
        crowd.append(looking(text))
    crowd.go()
    whole = [text.encode() for text in lines(tree, "log.jsonl")]
    for number in (2, 3, 4):
        before = whole[:number]
        assert (sum(len(each) + 1 for each in before), before[::-1], before) in seen


def test_an_op_id_that_two_threads_send_at_once_has_effect_once(address: str) -> None:
    with holdfast.open(address) as memory, ThreadPoolExecutor(THREADS) as pool:
        memory.put("fact", "nothing yet", fields={"key": "k"})
        for turn in range(10):
            done = list(
                pool.map(
                    lambda _, turn=turn: memory.put("fact", "once", fields={"key": "k"}, op_id=f"op-{turn}"),
                    range(THREADS),
                )
            )
            assert len({receipt.id for receipt in done}) == 1
            assert sorted(receipt.status for receipt in done) == ["repeated"] * (THREADS - 1) + ["stored"]


def test_ids_of_many_threads_grow_along_the_log(server: pgserver.Server, database: str, address: str) -> None:
    with holdfast.open(address) as memory, ThreadPoolExecutor(THREADS) as pool:
        path = "user/memory/sessions/s-1/entries.jsonl"
        told = list(pool.map(lambda number: memory.add(path, [{"content": f"{number}"}])[0], range(300)))
        found = [each.data for each in memory.tree.scan(path)]
    ids = [text.decode().partition('"id":"')[2].partition('"')[0] for text in found]
    assert ids == sorted(set(ids))
    assert sorted(told) == ids
    sound(server, database, address)


def test_a_log_that_another_program_holds_is_waited_for(
    server: pgserver.Server, database: str, address: str, tree: PgTree
) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(_end: LogEnd) -> bytes:
        begun.set()
        go.wait(30)
        return b"theirs\n"

    with opened(address) as other, ThreadPoolExecutor(2 * THREADS) as pool:
        tree.append("log.jsonl", line("begun"), again=True)
        holder = pool.submit(other.append, "log.jsonl", slow)
        assert begun.wait(30)
        mine = [pool.submit(tree.append, "log.jsonl", line("mine"), again=True) for _ in range(THREADS)]
        tree.append("other.jsonl", line("meanwhile"), again=True)
        assert not any(future.done() for future in mine)
        go.set()
        assert holder.result(30)
        assert len({future.result(30) for future in mine}) == THREADS
    assert lines(tree, "log.jsonl") == ["begun", "theirs", *["mine"] * THREADS]
    sound(server, database, address)


def test_a_log_that_stays_held_is_told_to_each_within_its_time(address: str) -> None:
    go = threading.Event()

    def slow(_end: LogEnd) -> bytes:
        begun.set()
        go.wait(60)
        return b"theirs\n"

    begun = threading.Event()
    with opened(address, lock_seconds=0.3) as tree, opened(address) as other, ThreadPoolExecutor(2 * THREADS) as pool:
        tree.append("log.jsonl", line("begun"), again=True)
        holder = pool.submit(other.append, "log.jsonl", slow)
        assert begun.wait(30)
        mine = [pool.submit(tree.append, "log.jsonl", line("mine"), again=True) for _ in range(THREADS)]
        assert [type(future.exception(30)) for future in mine] == [Busy] * THREADS
        go.set()
        holder.result(30)
        assert lines(tree, "log.jsonl") == ["begun", "theirs"]


def test_a_log_that_another_program_wrote_to_meanwhile_has_all_lines(
    server: pgserver.Server, database: str, address: str, tree: PgTree
) -> None:
    with opened(address) as other, ThreadPoolExecutor(1) as pool:
        crowd = Crowd(tree)
        for _ in range(3):
            crowd.append(line("mine"))
        theirs = pool.submit(other.append, "log.jsonl", line("theirs"), again=True)
        crowd.go()
        assert theirs.result(30)
    assert lines(tree, "log.jsonl")[:2] == ["begun", "first"]
    assert sorted(lines(tree, "log.jsonl")[2:]) == ["mine", "mine", "mine", "theirs"]
    sound(server, database, address)


def test_what_fails_for_one_fails_for_nobody_else(
    server: pgserver.Server, database: str, address: str, tree: PgTree
) -> None:
    def broken(_end: LogEnd) -> bytes:
        raise ValueError("a mistake")

    def refused(_end: LogEnd) -> bytes:
        raise Invalid("not like this")

    crowd = Crowd(tree)
    futures = [
        crowd.append(compose)
        for compose in (line("one"), broken, line("two"), refused, lambda _end: b"", line("three"))
    ]
    crowd.go()
    assert [type(future.exception()) for future in futures] == [
        type(None),
        ValueError,
        type(None),
        Invalid,
        *[type(None)] * 2,
    ]
    assert futures[4].result() is None
    assert lines(tree, "log.jsonl")[:2] == ["begun", "first"]
    assert sorted(lines(tree, "log.jsonl")[2:]) == ["one", "three", "two"]
    sound(server, database, address)


def test_one_log_takes_the_lines_of_many_threads_and_of_another_program(
    server: pgserver.Server, database: str, address: str
) -> None:
    with opened(address) as tree, opened(address) as other, ThreadPoolExecutor(2 * THREADS) as pool:
        work = [
            pool.submit((tree, other)[number % 2].append, "log.jsonl", line(f"{number}"), again=number % 5 > 0)
            for number in range(400)
        ]
        places = [future.result(60) for future in work]
        found = lines(tree, "log.jsonl")
    assert sorted(found, key=int) == [f"{number}" for number in range(400)]
    starts = {place.start for place in places if place}
    assert len(starts) == 400
    sound(server, database, address)


def test_who_is_interrupted_while_he_waits_keeps_nobody_waiting(address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, address], capture_output=True, text=True, timeout=120
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    with opened(address) as tree:
        assert lines(tree, "log.jsonl") == ["begun", "one", "two"]
