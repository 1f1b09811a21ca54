"""One memory for a team: durable appends against pgbench, recall, and moving a memory there.

    scripts/bench postgres [--quick]

It starts a PostgreSQL of its own, with fsync and synchronous_commit on, on the disk of /tmp. Appends and pgbench's
simple inserts take turns in the same run; a row of that table has the columns of a log's piece. How the two compare
depends on the disk: where a flush takes no time all is processor time, and clients and server share that here. So the
mixed load is measured once more on a server that waits 1 ms before each flush (`commit_delay`), as many disks do. Clients are programs of their own;
threads of one program, as a server has them, are measured beside.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from typing import Any

from psycopg.conninfo import conninfo_to_dict

import holdfast
from bench.harness import Run, Words, folder, percentile, start, timed
from bench.recall import CHANNEL, HISTORY
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.tree import PgTree
from holdfast.storage.tree import ABSENT, LogEnd

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests"))
import pgserver

CLIENTS = 8
LINE = (
    b'{"id":"0197c5a0-0000-7000-8000-000000000000","role":"user","content":"'
    + b"words that were said here " * 6
    + b'"}\n'
)
SERVER = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "max_connections": "100",
}
TABLE = """
CREATE TABLE plain (
    tenant text NOT NULL, inode bigint NOT NULL, start bigint NOT NULL, data bytea NOT NULL, op uuid NOT NULL, writer text NOT NULL,
    login name NOT NULL DEFAULT session_user, at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (tenant, inode, start))
"""
INSERT = (
    "\\set start random(1, 1000000000000)\n"
    "INSERT INTO plain (tenant, inode, start, data, op, writer)"
    f" VALUES ('team', :client_id, :start, '{LINE.decode().strip()}', gen_random_uuid(), 'agent') ON CONFLICT DO NOTHING;\n"
)
_PART = 5_000
_MIXED = "mixed: messages, every 10th a read, every 20th a document"

Work = Callable[[int], bool]
"""One thing that a client does, given its number; was it a durable append?"""


def main() -> None:
    run = start("postgres")
    with pgserver.private(**SERVER, commit_delay="1000", commit_siblings="0") as server, _prepared(server) as name:
        appends(run, server, name, ["memory.add of a message, a log each", _MIXED], "a flush takes 1 ms longer: ")
    with pgserver.private(**SERVER) as server, _prepared(server) as name:
        appends(run, server, name, list(KINDS))
        recall(run, server.at(name, tenant="recall"), 10_000 if run.quick else 100_000)
        push(run, server.at(name, tenant="push"), 10_000 if run.quick else 100_000)
    run.finish()


# appends


@contextmanager
def _prepared(server: pgserver.Server) -> Iterator[str]:
    with server.database() as name:
        Database(server.at(name)).close()
        server.run(TABLE, name)
        yield name


def appends(run: Run, server: pgserver.Server, name: str, kinds: list[str], where: str = "") -> None:
    """Let clients and pgbench take turns; the ratio of the medians is what counts on a machine that others use too."""
    rounds, seconds = (2, 2.0) if run.quick else (5, 5.0)
    found: dict[str, list[float]] = {what: [] for what in (*kinds, *THREADED, "pgbench")}
    for _ in range(rounds):
        for number, what in enumerate(kinds):
            found[what].append(_clients(server.at(name, tenant=f"appends{number}"), KINDS[what], seconds))
            found["pgbench"].append(_pgbench(server, name, seconds, INSERT))
            server.run("TRUNCATE plain", name)
        for what, work in THREADED.items():
            found[what].append(_threads(server.at(name, tenant="threads"), work, seconds))
    base = statistics.median(found.pop("pgbench"))
    run.add(f"{where}pgbench, simple inserts, {CLIENTS} clients", base, "/s")
    for what, rates in found.items():
        rate = statistics.median(rates)
        run.add(f"{where}{what}", rate, "/s")
        run.add(f"{where}  / pgbench's inserts", rate / base, "x", at_least=0.7 if what == _MIXED else None)


def _clients(address: str, kind: Callable[[str, int], Iterator[bool]], seconds: float) -> float:
    """Return how many durable appends a second so many processes make."""
    ready = mp.Barrier(CLIENTS)
    results: Any = mp.SimpleQueue()
    processes = [
        mp.Process(target=_client, args=(address, kind, number, seconds, ready, results)) for number in range(CLIENTS)
    ]
    for process in processes:
        process.start()
    done: list[int] = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return sum(done) / seconds


def _client(
    address: str, kind: Callable[[str, int], Iterator[bool]], number: int, seconds: float, ready: Barrier, results: Any
) -> None:
    work = kind(address, number)
    for _ in range(20):
        next(work)
    ready.wait()
    deadline, appended = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        appended += next(work)
    results.put(appended)


def _compose(end: LogEnd) -> bytes:
    return LINE if next(end.back(), b"") or not end.size else b""


def _own_log(address: str, number: int) -> Iterator[bool]:
    tree = PgTree(Database(address))
    while True:
        yield tree.append(f"logs/{number}-{os.getpid()}.jsonl", _compose, again=True) is not None


def _one_log(address: str, _number: int) -> Iterator[bool]:
    tree = PgTree(Database(address))
    while True:
        yield tree.append("logs/all.jsonl", _compose, again=True) is not None


def _message(address: str, number: int) -> Iterator[bool]:
    with holdfast.open(address) as memory:
        yield from _adding(memory, f"user/memory/sessions/s{number}-{os.getpid()}/entries.jsonl")


def _adding(memory: holdfast.Memory, path: str) -> Iterator[bool]:
    while True:
        yield bool(memory.add(path, [{"role": "user", "content": "words that were said here " * 6}]))


def _mixed(address: str, number: int) -> Iterator[bool]:
    with holdfast.open(address) as memory:
        yield from _mixing(memory, number)


def _mixing(memory: holdfast.Memory, number: int) -> Iterator[bool]:
    """Yield True for what was made durable, a document among it."""
    path = f"user/memory/sessions/s{number}-{os.getpid()}/entries.jsonl"
    adding = _adding(memory, path)
    next(adding)
    folder_of_this = f"resources/{number}-{os.getpid()}-{time.time_ns()}"
    for turn in range(10**9):
        if turn % 20 == 19:
            memory.tree.write(f"{folder_of_this}/{turn}.md", LINE * 4, expect=ABSENT)
            yield True
        elif turn % 10 == 9:
            yield next(memory.tree.scan_back(path)).cut
        else:
            yield next(adding)


def _threads(address: str, work: Callable[[holdfast.Memory, int], Iterator[bool]], seconds: float) -> float:
    """Return how many durable appends a second as many threads of one program make, as a server has them."""
    ready, done = threading.Barrier(CLIENTS), [0] * CLIENTS

    def client(number: int) -> None:
        doing = work(memory, number)
        for _ in range(20):
            next(doing)
        ready.wait()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            done[number] += next(doing)

    with holdfast.open(address) as memory:
        threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(done) / seconds


THREADED: dict[str, Callable[[holdfast.Memory, int], Iterator[bool]]] = {
    "threads of one program, mixed": _mixing,
    "threads of one program, one log for all": lambda memory, _: _adding(memory, "user/memory/all.jsonl"),
}
KINDS: dict[str, Callable[[str, int], Iterator[bool]]] = {
    "tree.append, a log each": _own_log,
    "memory.add of a message, a log each": _message,
    _MIXED: _mixed,
    "tree.append, one log for all": _one_log,
}


def _pgbench(server: pgserver.Server, name: str, seconds: float, statements: str) -> float:
    parts = conninfo_to_dict(server.dsn)
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(statements)
        script.flush()
        command = [str(pgserver.program("pgbench")), "-n", "-f", script.name, "-c", str(CLIENTS), "-j", "2", "-T", str(int(seconds)),
                   "-h", str(parts["host"]), "-p", str(parts["port"]), "-U", "postgres", name]  # fmt: skip
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return next(float(line.split()[2]) for line in told.splitlines() if line.startswith("tps"))


# recall


def recall(run: Run, address: str, count: int) -> None:
    """Ask the same of the same messages in a database and in files, so that the two can be compared on any machine."""
    words = Words()
    texts = [words.text() for _ in range(count)]
    some = [f"What did Ann say about {words.query(text)} last week?" for text in texts[:: max(1, count // 200)]]
    with folder() as root:
        for where, place in (("in a database", address), ("in files", root)):
            with holdfast.open(place) as memory:
                filled = timed(lambda: _fill(memory, texts))
            run.add(f"adding {count:,} messages {where}", count / filled, "/s")
            for how, embedder in (("by words", "none"), ("by meaning", "semantic")):
                times = _recalled(place, embedder, some)
                limit = 100 if place == address else None
                run.add(f"recall over {count:,} messages {where} {how}, p50", statistics.median(times), "ms")
                run.add(f"recall over {count:,} messages {where} {how}, p95", percentile(times, 0.95), "ms", limit)


def _recalled(place: str, embedder: str, questions: list[str]) -> list[float]:
    """Return how many milliseconds each question takes, once everything has been read and made."""
    with holdfast.open(place) as memory:
        before = memory.tree.versions(["holdfast.toml"]).get("holdfast.toml", ABSENT)
        memory.tree.write("holdfast.toml", f'[search]\nembedder = "{embedder}"\n'.encode(), expect=before)
    with holdfast.open(place) as memory:
        if embedder != "none":
            memory.embed()
        memory.call("recall", {"query": "warm up"})
        return [timed(lambda: memory.call("recall", {"query": query})) * 1000 for query in questions]  # noqa: B023


def _fill(memory: holdfast.Memory, texts: list[str]) -> None:
    for start_at in range(0, len(texts), _PART):
        lines = [
            {"role": "user", "content": text, "channel": f"c{number // CHANNEL}", "sender_id": "ann"}
            for number, text in enumerate(texts[start_at : start_at + _PART], start_at)
        ]
        memory.add(HISTORY, lines, time="timestamp", durable=False)
    memory.refresh()


# moving


def push(run: Run, address: str, count: int) -> None:
    """Push a memory of so many records, as its owner does."""
    words = Words()
    with folder() as root, _initialised(root) as memory:
        _fill(memory, [words.text() for _ in range(count)])
        command = [sys.executable, "-m", "holdfast", "push", "--to", address, "--yes", "--root", root]
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        spent = time.perf_counter() - begin
    if done.returncode:
        print(
            f"push was not measured: {' '.join(command[2:4])} ended with {done.returncode}: {done.stderr.strip()[-200:]}"
        )
        return
    run.add(f"push of {count:,} messages", spent, "s", 60)


@contextmanager
def _initialised(root: str) -> Iterator[holdfast.Memory]:
    subprocess.run([sys.executable, "-m", "holdfast", "init", root], check=True, capture_output=True)
    with holdfast.open(root) as memory:
        yield memory


if __name__ == "__main__":
    main()
