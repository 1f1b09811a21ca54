"""One memory for a team: durable writes, recall, many tenants, a large memory, and a network with latency.

    scripts/bench postgres [--quick]

It starts its own PostgreSQL, with fsync and synchronous_commit on, on the disk of /tmp. Server and clients share the
processors of this machine, so the ratios count: our writes and plain inserts by psycopg take turns in the same run, and
so do recalls in a database and in files. Clients are separate programs.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import queue
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import holdfast
from bench.harness import Run, Words, folder, percentile, start, timed
from bench.recall import CHANNEL, HISTORY
from holdfast.model.times import mint
from holdfast.recall import embedders
from holdfast.roots import make_root, set_up
from holdfast.storage.postgres.store import PgStore

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests"))
import pgserver

CLIENTS = 8
TEXT = "The meeting about the deployment moved to Thursday, because Ann found that the staging database was slow again."
SERVER = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "max_connections": "100",
}
PLAIN = """
CREATE TABLE plain (tenant text NOT NULL, id uuid NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    writer text NOT NULL, text text NOT NULL, PRIMARY KEY (tenant, id))
"""
_PART = 5_000
_EMBEDDER = "HOLDFAST_SEARCH_EMBEDDER"
Client = Callable[[str, str, int], Iterator[None]]
"""With the address of a memory, that of the server and a number, it writes once for each line of input."""


def main() -> None:
    run = start("postgres")
    with pgserver.private(**SERVER) as server, server.database() as name:
        set_up(server.at(name))
        server.run(PLAIN, name)
        trips(run, server.at(name, tenant="trips"))
        writes(run, server, name)
    with pgserver.private(**SERVER) as server, server.database() as name:
        recall(run, server, name, 10_000 if run.quick else 100_000)
        push(run, server.at(name, tenant="push"), 10_000 if run.quick else 100_000)
    with pgserver.private(**SERVER) as server:
        tenants(run, server)
        latency(run, server)
    with pgserver.private(**SERVER) as server, server.database() as name:
        large(run, server, name, 20_000 if run.quick else 1_000_000)
    run.finish()


# writes


def trips(run: Run, address: str) -> None:
    """Count the messages of one call."""
    set_up(address)
    with holdfast.open(address) as memory:
        assert isinstance(memory.store, PgStore)
        database = memory.store._database
        calls: dict[str, Callable[[], object]] = {
            "put of a fact": lambda: memory.put("fact", TEXT, fields={"key": mint()}),
            "put of a note": lambda: memory.put("note", TEXT, title=mint()),
            "append": lambda: memory.add(HISTORY, [{"role": "user", "content": TEXT}], time="timestamp"),
            "recall": lambda: memory.find("When is the meeting about the deployment?", associate=True),
        }
        for what, call in calls.items():
            call()
            time.sleep(1.1)  # once a second, a write also asks for the server's clock, in the same message
            before = database.trips
            call()
            run.add(f"round trips of one {what}", database.trips - before, "", 2 if what == "recall" else 1)


def writes(run: Run, server: pgserver.Server, name: str) -> None:
    """Let our clients and plain inserts take turns; the result is the ratio of the medians."""
    rounds, seconds = (2, 1.5) if run.quick else (5, 4.0)
    found: dict[str, list[float]] = {what: [] for what in KINDS}
    for _ in range(rounds):
        for what, client in KINDS.items():
            found[what].append(_clients(server, name, client, seconds))
    base = statistics.median(found.pop(_BASE))
    run.add(f"{_BASE}, {CLIENTS} programs", base, "/s")
    for what, rates in found.items():
        rate, bar = statistics.median(rates), _BARS.get(what)
        run.add(f"{what} / plain insert", rate / base, "x", at_least=bar, detail=f"{rate:,.0f}/s")


def _clients(server: pgserver.Server, name: str, client: Client, seconds: float) -> float:
    """Return the durable writes per second of this many processes."""
    ready = mp.Barrier(CLIENTS)
    results: Any = mp.SimpleQueue()
    given = (server.at(name, tenant="writes"), make_conninfo(server.dsn, dbname=name))
    processes = [
        mp.Process(target=_client, args=(client, *given, number, seconds, ready, results)) for number in range(CLIENTS)
    ]
    for process in processes:
        process.start()
    done: list[int] = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return sum(done) / seconds


def _client(client: Client, address: str, dsn: str, number: int, seconds: float, ready: Barrier, results: Any) -> None:
    work = client(address, dsn, number)
    for _ in range(20):
        next(work)
    ready.wait()
    deadline, count = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        next(work)
        count += 1
    results.put(count)


def _plain(_address: str, dsn: str, _number: int) -> Iterator[None]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        while True:
            values = ("writes", mint(), "agent", TEXT)
            connection.execute(
                "INSERT INTO plain (tenant, id, writer, text) VALUES (%s, %s, %s, %s)", values, prepare=True
            )
            yield


def _same_row(_address: str, dsn: str, number: int) -> Iterator[None]:
    """Insert rows of a message into our own table, with all its indexes, but without our code."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        columns = "tenant, at, length, priority, agent, live, hidden, kind, path, scope, session, author, title, text, more, words"
        one = connection.execute(f"SELECT {columns} FROM holdfast.record WHERE kind = 'message' LIMIT 1").fetchone()
        assert one is not None
        *rest, words = one
        text = connection.execute("SELECT more::text FROM holdfast.record WHERE kind = 'message' LIMIT 1").fetchone()
        assert text is not None
        rest[-1], rest[10] = text[0], f"channel {number}"
        marks = ", ".join(["%s"] * (len(rest) + 1))
        statement = f"INSERT INTO holdfast.record (id, {columns}) VALUES ({marks}, %s::tsvector)"
        while True:
            connection.execute(statement, (mint(), *rest, words), prepare=True)
            yield


def _adding(address: str, path: str, entry: dict[str, str], time: str) -> Iterator[None]:
    with holdfast.open(address) as memory:
        while True:
            memory.add(path, [entry], time=time)
            yield


def _one_log(address: str, _dsn: str, number: int) -> Iterator[None]:
    return _adding(address, HISTORY, {"role": "user", "content": TEXT, "channel": f"channel {number}"}, "timestamp")


def _own_log(address: str, _dsn: str, number: int) -> Iterator[None]:
    return _adding(address, f"user/memory/sessions/s{number}/episodic.jsonl", {"text": TEXT}, "time")


def _facts(address: str, _dsn: str, _number: int) -> Iterator[None]:
    with holdfast.open(address) as memory:
        while True:
            memory.put("fact", TEXT, fields={"key": mint()})
            yield


def _notes(address: str, _dsn: str, _number: int) -> Iterator[None]:
    with holdfast.open(address) as memory:
        while True:
            memory.put("note", TEXT, title=mint())
            yield


_BASE = "plain insert of the text by psycopg"
KINDS: dict[str, Client] = {
    _BASE: _plain,
    "append, one log for all": _one_log,
    "append, a log each": _own_log,
    "put of a fact, new keys": _facts,
    "put of a note": _notes,
    "insert of the same row by psycopg": _same_row,
}
_BARS = {"append, one log for all": 0.6, "append, a log each": 0.6, "put of a fact, new keys": 0.5}


# recall


def recall(run: Run, server: pgserver.Server, name: str, count: int) -> None:
    """Ask the same questions about the same messages in a database and in files."""
    words = Words()
    texts = [words.text() for _ in range(count)]
    questions = _questions(words, texts, 200)
    address = server.at(name, tenant="recall")
    set_up(address)
    with folder() as root:
        make_root(root)
        for place in (address, root):
            with holdfast.open(place) as memory:
                _fill(memory, texts)
        time.sleep(2.1)  # younger files are compared by content
        for how, embedder in _embedders():
            times: dict[str, list[float]] = {}
            answers: dict[str, list[list[str]]] = {}
            for where, place in (("files", root), ("database", address)):
                times[where], answers[where] = _ask(place, embedder, questions)
            ours, base = times["database"], times["files"]
            run.add(f"recall over {count:,} in a database, {how}, p50", statistics.median(ours), "ms")
            run.add(f"recall over {count:,} in a database, {how}, p95", percentile(ours, 0.95), "ms")
            ratio = percentile(ours, 0.95) / percentile(base, 0.95)
            run.add(f"  p95 / p95 in files, {how}", ratio, "x", 1.5, detail=f"files {percentile(base, 0.95):.1f} ms")
            pairs = list(zip(answers["database"], answers["files"], strict=True))
            overlap = statistics.mean(len({*one} & {*other}) / max(1, len(other)) for one, other in pairs)
            run.add(f"  overlap of the first ten with files, {how}", overlap, "", at_least=0.95)


def _embedders() -> list[tuple[str, str]]:
    found = [("by words", "none")]
    if embedders.is_installed("semantic"):
        return [*found, ("with meaning", "semantic")]
    print("The extra semantic is not installed: recall with meaning is not measured.")
    return found


def _questions(words: Words, texts: list[str], count: int) -> list[str]:
    some = texts[:: max(1, len(texts) // count)][:count]
    return [f"What did Ann say about {words.query(text)} last week?" for text in some]


def _ask(place: str, embedder: str, questions: list[str]) -> tuple[list[float], list[list[str]]]:
    """Return the milliseconds of each question, and the texts of its first ten answers."""
    with _using(embedder), holdfast.open(place) as memory:
        if embedder != "none":
            memory.embed()
        memory.find("warm up", associate=True)
        time.sleep(1)
        memory.find("warm up again", associate=True)
        times, answers = [], []
        for question in questions:
            begin = time.perf_counter()
            found = memory.find(question, associate=True, limit=10)
            times.append((time.perf_counter() - begin) * 1000)
            answers.append([hit.record.text for hit in found])
    return times, answers


@contextlib.contextmanager
def _using(embedder: str) -> Iterator[None]:
    os.environ[_EMBEDDER] = embedder
    try:
        yield
    finally:
        del os.environ[_EMBEDDER]


def _fill(memory: holdfast.Memory, texts: list[str]) -> None:
    for begin in range(0, len(texts), _PART):
        lines = [
            {"role": "user", "content": text, "channel": f"c{number // CHANNEL}", "sender_id": "ann"}
            for number, text in enumerate(texts[begin : begin + _PART], begin)
        ]
        memory.add(HISTORY, lines, time="timestamp", durable=False)
    memory.refresh()


# many tenants, and a large memory


def tenants(run: Run, server: pgserver.Server) -> None:
    """Compare the recall of one tenant among fifty with that of a tenant alone in a database."""
    count, size = (5, 500) if run.quick else (50, 2_000)
    words, found = Words(), dict[int, float]()
    texts = [words.text() for _ in range(size)]
    questions = _questions(words, texts, 100)
    for many in (1, count):
        with server.database() as name:
            for number in range(many):
                address = server.at(name, tenant=f"tenant{number}")
                set_up(address)
                with holdfast.open(address) as memory:
                    _fill(memory, texts)
            times, _ = _ask(server.at(name, tenant="tenant0"), "none", questions)
            found[many] = statistics.median(times)
    detail = f"{found[count]:.1f} ms against {found[1]:.1f} ms"
    run.add(
        f"recall of one of {count} tenants × {size:,} / of one alone, p50",
        found[count] / found[1],
        "x",
        1.2,
        detail=detail,
    )


def large(run: Run, server: pgserver.Server, name: str, count: int) -> None:
    address, words = server.at(name, tenant="large"), Words()
    set_up(address)
    texts = [words.text() for _ in range(count)]
    with _using("none"), holdfast.open(address) as memory:
        filled = timed(lambda: _fill(memory, texts))
    run.add(f"loading {count:,} records and making them searchable", count / filled, "/s", at_least=6_000)
    server.run("VACUUM ANALYZE holdfast.record", name)
    run.add("storage of a short message", _size(server, name, "record", "term") / count, "bytes", 1_200)
    questions = _questions(words, texts, 200)
    for how, embedder in _embedders():
        if embedder != "none":
            with _using(embedder), holdfast.open(address) as memory:
                made = timed(memory.embed)
            run.add(f"embedding {count:,} records", count / made, "/s")
            with_vectors = _size(server, name, "record", "term", "embedding") / count
            run.add("storage of a short message with its vector", with_vectors, "bytes", 2_200)
        times, _ = _ask(address, embedder, questions)
        run.add(f"recall over {count:,} {how}, p50", statistics.median(times), "ms")
        run.add(f"recall over {count:,} {how}, p95", percentile(times, 0.95), "ms", 100 if embedder == "none" else 200)
    relations = (
        "SELECT count(*) FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace AND relkind IN ('r', 'i', 'v')"
    )
    run.add("tables, indexes and views of one store", float(str(server.run(relations, name)[0][0])), "", 60)


def _size(server: pgserver.Server, name: str, *tables: str) -> float:
    """Return the size of tables with their indexes; of vectors, without their HNSW index."""
    sizes = [
        float(str(server.run(f"SELECT pg_total_relation_size('holdfast.{table}')", name)[0][0])) for table in tables
    ]
    graph = "SELECT coalesce(pg_relation_size(to_regclass('holdfast.embedding_code')), 0)"
    return sum(sizes) - (float(str(server.run(graph, name)[0][0])) if "embedding" in tables else 0.0)


# latency


def latency(run: Run, server: pgserver.Server) -> None:
    """Put 1 ms of network latency between client and server, both directions together."""
    words = Words()
    texts = [words.text() for _ in range(2_000)]
    questions = _questions(words, texts, 100)
    with server.database() as name, _slow(server) as port:
        near = server.at(name, tenant="latency")
        far = near.replace(f"port={conninfo_to_dict(server.dsn)['port']}", f"port={port}")
        far = far.replace(f"host={conninfo_to_dict(server.dsn)['host']}", "host=127.0.0.1")
        set_up(near)
        with holdfast.open(near) as memory:
            _fill(memory, texts)
        local, _ = _ask(near, "none", questions)
        remote, _ = _ask(far, "none", questions)
        with holdfast.open(far) as memory:
            puts = [timed(lambda: memory.put("fact", TEXT, fields={"key": mint()})) * 1000 for _ in range(100)]
    run.add("with 1 ms of latency: put, p50", statistics.median(puts), "ms", 4)
    one, other = statistics.median(remote), statistics.median(local)
    run.add("with 1 ms of latency: recall / local, p50", one / other, "x", 1.3, detail=f"{one:.1f} ms, {other:.1f} ms")


@contextlib.contextmanager
def _slow(server: pgserver.Server) -> Iterator[int]:
    """Forward connections to the server with a delay of half a millisecond in each direction, in another process."""
    parts = conninfo_to_dict(server.dsn)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = mp.Process(target=_forward, args=(listener, f"{parts['host']}/.s.PGSQL.{parts['port']}"), daemon=True)
        process.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            process.terminate()
            process.join()


def _forward(listener: socket.socket, target: str) -> None:
    while True:
        client, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        other = socket.socket(socket.AF_UNIX)
        other.connect(target)
        for pair in ((client, other), (other, client)):
            threading.Thread(target=_pump, args=pair, daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def read() -> None:
        data = b"start"
        while data:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            waiting.put((time.monotonic() + 0.0005, data))

    threading.Thread(target=read, daemon=True).start()
    with contextlib.suppress(OSError):
        while (part := waiting.get())[1]:
            time.sleep(max(0.0, part[0] - time.monotonic()))  # parts of one answer do not add up
            sink.sendall(part[1])
        sink.shutdown(socket.SHUT_WR)


# push


def push(run: Run, address: str, count: int) -> None:
    """Push a memory of this many records, as its owner does."""
    words = Words()
    with folder() as root:
        make_root(root)
        with holdfast.open(root) as memory:
            _fill(memory, [words.text() for _ in range(count)])
        command = [sys.executable, "-m", "holdfast", "push", "--to", address, "--yes", "--root", root]
        spent = timed(lambda: subprocess.run(command, capture_output=True, check=True))
    run.add(f"push of {count:,} messages", count / spent, "/s")


if __name__ == "__main__":
    main()
