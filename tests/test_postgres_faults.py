"""What goes wrong between a program and its database: killed writers, cut connections, answers that never come."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import ANY

import pytest
from psycopg.conninfo import conninfo_to_dict

import holdfast
import pgserver
from holdfast.errors import AlreadyExists, Busy, Conflict, HoldfastError, Invalid, Unavailable
from holdfast.memories.runs import Runs
from holdfast.storage.files.store import FileStore
from holdfast.storage.postgres.connections import Waits
from holdfast.storage.postgres.database import Database, Transaction
from holdfast.storage.postgres.tree import PgTree
from holdfast.storage.tree import ABSENT, ByteTree, LogEnd, RootGone

PROCESSES, APPENDS = 8, 60

WRITER = """
import sys
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.tree import PgTree
dsn, me, count, paths = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
tree = PgTree(Database(dsn), writer=me)
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    path = paths[number % len(paths)]
    line = f"{me}:{number}".encode()
    tree.append(path, lambda end: line + b"\\n" + line + b" again\\n", durable=number % 2 == 0, again=number % 3 > 0)
    print(path, line.decode(), flush=True)
tree.close()
"""

HOLDER = """
import sys, time
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.tree import PgTree
tree = PgTree(Database(sys.argv[1]))
release = tree.hold("run.jsonl")
assert release
def compose(end):
    tree.write("beside.md", b"never", expect="")
    print("holding", flush=True)
    time.sleep(600)
    return b"never\\n"
tree.append("log.jsonl", compose)
"""


@contextlib.contextmanager
def opened(dsn: str, **waits: float) -> Iterator[PgTree]:
    tree = PgTree(Database(dsn, Waits(**waits)))  # type: ignore[arg-type]
    try:
        yield tree
    finally:
        tree.close()


@contextlib.contextmanager
def program(code: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines(tree: ByteTree, path: str) -> list[str]:
    return [line.data.decode() for line in tree.scan(path)]


def cut(server: pgserver.Server, tree: PgTree) -> None:
    """End the connection that this thread is working on, as an operator or a failover would."""
    found = tree._database.run("x", lambda turn: turn.row("SELECT pg_backend_pid()"))
    assert found is not None
    server.run(f"SELECT pg_terminate_backend({found[0]}, 5000)")


def sound(server: pgserver.Server, database: str, dsn: str) -> None:
    """Every log's pieces follow one another up to its size, and no piece is without its log."""
    tenant = dsn.rpartition("tenant=")[2]
    holes = server.run(
        f"""WITH piece AS (SELECT inode, start, length(data) AS size, start + length(data) AS stop,
                coalesce(lag(start + length(data)) OVER (PARTITION BY inode ORDER BY start), 0) AS before
            FROM holdfast.pieces WHERE tenant = '{tenant}')
        SELECT 'hole', inode FROM piece WHERE start <> before
        UNION ALL SELECT 'size', inode FROM holdfast.files f WHERE tenant = '{tenant}' AND log
            AND size <> coalesce((SELECT max(stop) FROM piece p WHERE p.inode = f.inode), 0)
        UNION ALL SELECT 'orphan', inode FROM piece WHERE inode NOT IN
            (SELECT inode FROM holdfast.files WHERE tenant = '{tenant}' AND log)""",
        database,
    )
    assert holes == []


# many writers


@pytest.mark.parametrize("logs", [1, 3])
def test_nothing_is_lost_and_nothing_appears_behind_a_reader_who_follows(
    server: pgserver.Server, database: str, address: str, logs: int
) -> None:
    paths = [f"logs/{number}.jsonl" for number in range(logs)]
    acknowledged: list[tuple[str, str]] = []
    followed: dict[str, list[bytes]] = {path: [] for path in paths}
    marks = dict.fromkeys(paths, 0)
    done = threading.Event()

    def follow(tree: PgTree) -> None:
        last = False
        while not last:
            last = done.is_set()
            for path in paths:
                if tree.stat(path):
                    for line in tree.scan(path, marks[path]):
                        assert line.offset == marks[path]
                        assert line.whole
                        followed[path].append(line.data)
                        marks[path] = line.end

    with opened(address) as tree, contextlib.ExitStack() as running, ThreadPoolExecutor(1 + PROCESSES) as pool:
        writers = [
            running.enter_context(program(WRITER, address, str(me), str(APPENDS), *paths)) for me in range(PROCESSES)
        ]
        for writer in writers:
            assert writer.stdout and writer.stdout.readline() == "ready\n"
        follower = pool.submit(follow, tree)
        told = [pool.submit(writer.communicate, "go\n") for writer in writers]
        for answer in told:
            for line in answer.result()[0].splitlines():
                path, _, text = line.partition(" ")
                acknowledged.append((path, text))
        done.set()
        follower.result()
        assert [writer.returncode for writer in writers] == [0] * PROCESSES
        assert len(acknowledged) == PROCESSES * APPENDS
        for path in paths:
            found = lines(tree, path)
            assert [line.decode() for line in followed[path]] == found
            assert found[1::2] == [f"{line} again" for line in found[::2]], "the lines of one append stay together"
            assert sorted(found[::2]) == sorted(text for where, text in acknowledged if where == path)
            for me in range(PROCESSES):
                numbers = [int(line.split(":")[1]) for line in found[::2] if line.startswith(f"{me}:")]
                assert numbers == sorted(numbers)
    sound(server, database, address)


def test_different_logs_do_not_wait_for_each_other(address: str) -> None:
    with opened(address, lock_seconds=1.0) as tree, opened(address, lock_seconds=1.0) as other:

        def meanwhile(_: LogEnd) -> bytes:
            other.append("b.jsonl", lambda _: b"b\n")
            return b"a\n"

        tree.append("a.jsonl", meanwhile)
        assert (lines(tree, "a.jsonl"), lines(tree, "b.jsonl")) == (["a"], ["b"])


# killed


def test_a_writer_that_is_killed_in_the_middle_leaves_nothing_and_blocks_nobody(
    server: pgserver.Server, database: str, address: str
) -> None:
    with opened(address) as tree, program(HOLDER, address) as holder:
        tree.append("log.jsonl", lambda _: b"one\n")
        assert holder.stdout and holder.stdout.readline() == "holding\n"
        assert tree.hold("run.jsonl") is None
        with opened(address, lock_seconds=0.1) as hasty, pytest.raises(Busy, match=r"log\.jsonl was locked"):
            hasty.append("log.jsonl", lambda _: b"x\n")
        assert lines(tree, "log.jsonl") == ["one"]
        assert tree.stat("beside.md") is None
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        tree.append("log.jsonl", lambda _: b"two\n")
        assert lines(tree, "log.jsonl") == ["one", "two"]
        assert tree.stat("beside.md") is None
        deadline = time.monotonic() + 30
        while not (release := tree.hold("run.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.05)  # the server notices in its own time
        assert release is not None
    sound(server, database, address)


def test_writers_that_are_killed_at_any_moment_lose_nothing_they_were_told(
    server: pgserver.Server, database: str, address: str
) -> None:
    told: list[str] = []
    for turn in range(6):
        with program(WRITER, address, f"w{turn}", "100000", "storm.jsonl") as writer:
            assert writer.stdin and writer.stdout and writer.stdout.readline() == "ready\n"
            writer.stdin.write("go\n")
            writer.stdin.flush()
            told += [writer.stdout.readline().split()[1] for _ in range(random.randint(5, 40))]
            writer.kill()
            told += [
                line.split()[1] for line in writer.stdout.read().splitlines() if line.count(":") and line[-1] != ":"
            ]
    with opened(address) as tree:
        found = lines(tree, "storm.jsonl")
    assert found[1::2] == [f"{line} again" for line in found[::2]]
    assert len(set(found)) == len(found)
    assert set(told[:-1]) - set(found) == set()
    sound(server, database, address)


# cut


def test_an_append_whose_connection_is_cut_is_saved_once_and_composed_once(
    server: pgserver.Server, database: str, address: str
) -> None:
    with opened(address) as tree:
        tree.append("log.jsonl", lambda _: b"one\n")
        calls: list[int] = []

        def compose(end: LogEnd) -> bytes:
            calls.append(end.size)
            cut(server, tree)
            return b"two\n"

        done = tree.append("log.jsonl", compose)
        assert done is not None
        assert (done.start, done.end, calls) == (4, 8, [4])
        assert lines(tree, "log.jsonl") == ["one", "two"]
        tree.append("new.jsonl", lambda end: cut(server, tree) or b"first\n")  # type: ignore[func-returns-value]
        assert lines(tree, "new.jsonl") == ["first"]
    sound(server, database, address)


def test_an_append_that_lost_its_turn_to_others_says_that_nothing_was_written(
    server: pgserver.Server, address: str
) -> None:
    with opened(address) as tree, opened(address) as other:
        tree.append("log.jsonl", lambda _: b"one\n")

        def compose(_: LogEnd) -> bytes:
            cut(server, tree)
            other.append("log.jsonl", lambda _: b"theirs\n")
            return b"mine\n"

        with pytest.raises(Unavailable, match="before anything was saved") as caught:
            tree.append("log.jsonl", compose)
        assert "Nothing was written" in caught.value.next_step
        assert lines(tree, "log.jsonl") == ["one", "theirs"]


def test_what_an_append_did_beside_its_lines_is_undone_with_it(server: pgserver.Server, address: str) -> None:
    with opened(address) as tree:

        def compose(_: LogEnd) -> bytes:
            tree.write("beside.md", b"text", expect=ABSENT)
            cut(server, tree)
            return b"mine\n"

        with pytest.raises(Unavailable):
            tree.append("log.jsonl", compose)
        assert tree.stat("beside.md") is None
        assert tree.stat("log.jsonl") is None

        def fail(_: LogEnd) -> bytes:
            tree.write("beside.md", b"text", expect=ABSENT)
            assert tree.read("beside.md").data == b"text"
            raise Conflict("changed my mind")

        with pytest.raises(Conflict, match="changed my mind"):
            tree.append("log.jsonl", fail)
        assert tree.stat("beside.md") is None


def test_what_is_refused_inside_an_append_does_not_spoil_it(address: str) -> None:
    with opened(address) as tree:
        tree.write("taken.md", b"text", expect=ABSENT)

        def compose(_: LogEnd) -> bytes:
            with pytest.raises(Exception, match="already exists"):
                tree.write("taken.md", b"other", expect=ABSENT)
            tree.write("beside.md", b"beside", expect=ABSENT)
            tree.append("other.jsonl", lambda _: b"other\n")
            return b"line\n"

        tree.append("log.jsonl", compose)
        assert lines(tree, "log.jsonl") == ["line"]
        assert lines(tree, "other.jsonl") == ["other"]
        assert tree.read("beside.md").data == b"beside"


def test_a_log_cannot_be_added_to_while_lines_for_it_are_composed(address: str) -> None:
    with opened(address) as tree:

        def compose(_: LogEnd) -> bytes:
            tree.append("log.jsonl", lambda _: b"inner\n")
            return b"outer\n"

        with pytest.raises(Conflict, match="nothing was written"):
            tree.append("log.jsonl", compose)
        assert tree.stat("log.jsonl") is None


def test_a_run_is_claimed_ended_and_swept_as_on_files(address: str) -> None:
    with holdfast.open(address) as one, holdfast.open(address) as other:
        assert isinstance(one.store, FileStore)
        tree, mine, theirs = one.store.tree, Runs(one.store), Runs(other.store)
        path = mine.path("chat", "one")

        def begin(_: LogEnd) -> bytes:
            mine.claim(path)
            return b"note\n"

        tree.append(path, begin)
        theirs.sweep_all()
        assert lines(tree, path) == ["note"]
        mine.end(path)
        assert tree.stat(path) is None
        dead = mine.path("chat", "dead")
        tree.append(dead, lambda _: b"left\n")
        theirs.sweep_all()
        assert tree.stat(dead) is None


def test_reads_and_writes_go_on_after_every_connection_was_cut(
    server: pgserver.Server, database: str, address: str
) -> None:
    with opened(address) as tree:
        version = tree.write("a.md", b"one", expect=ABSENT)
        for _ in range(3):
            with ThreadPoolExecutor(6) as pool:
                list(pool.map(lambda _: tree.read("a.md"), range(12)))
            server.run(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                f" WHERE application_name = 'holdfast' AND datname = '{database}'"  # others use this server, too
            )
            assert tree.read("a.md").data
            version = tree.write("a.md", os.urandom(8), expect=version)


def test_a_claim_whose_connection_was_cut_is_taken_anew(server: pgserver.Server, address: str) -> None:
    with opened(address) as tree, opened(address) as other:
        assert tree.hold("one.jsonl")
        session = tree._claims._session
        assert session is not None
        server.run(f"SELECT pg_terminate_backend({session.info.backend_pid}, 5000)")
        assert tree.hold("two.jsonl")
        assert other.hold("one.jsonl") is None
        assert other.hold("two.jsonl") is None


def test_a_claim_whose_connection_was_cut_is_taken_anew_without_being_asked(
    server: pgserver.Server, address: str
) -> None:
    with opened(address) as tree, opened(address) as other:
        release = tree.hold("one.jsonl")
        assert release
        for _ in range(3):
            session = tree._claims._session
            assert session
            server.run(f"SELECT pg_terminate_backend({session.info.backend_pid}, 5000)")
            deadline = time.monotonic() + 30
            while tree._claims._session is session or not tree._claims._held:
                assert time.monotonic() < deadline, "the claim was not taken anew"
                time.sleep(0.01)
            assert other.hold("one.jsonl") is None
        release()
        assert other.hold("one.jsonl")


def test_a_claim_that_others_took_meanwhile_comes_back_when_they_let_go(server: pgserver.Server, address: str) -> None:
    with opened(address) as tree, opened(address) as other:
        assert tree.hold("one.jsonl")
        claims = tree._claims
        session = claims._session
        assert session
        with claims._lock:  # nobody looks after it while the other takes it
            server.run(f"SELECT pg_terminate_backend({session.info.backend_pid}, 5000)")
            theirs = other.hold("one.jsonl")
            assert theirs
        theirs()
        deadline = time.monotonic() + 30
        while not claims._held or claims._session is session:
            assert time.monotonic() < deadline, "the claim did not come back"
            time.sleep(0.01)
        assert other.hold("one.jsonl") is None


def test_of_a_file_and_a_folder_made_at_the_same_instant_one_comes_to_be(
    server: pgserver.Server, database: str, address: str
) -> None:
    with opened(address) as tree, opened(address) as other:

        def make(one: PgTree, path: str, start: threading.Barrier) -> bool:
            start.wait()
            try:
                if path.endswith("l"):
                    one.append(path, lambda _: b"line\n")
                else:
                    one.write(path, b"text", expect=ABSENT)
            except (Invalid, AlreadyExists):
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            for number in range(60):
                start = threading.Barrier(4)
                top = f"{number}/a.jsonl" if number % 2 else f"{number}/a"
                paths = (top, f"{top}/b/c", f"{top}/b", f"{number}/beside")
                tries = [pool.submit(make, (tree, other)[at % 2], path, start) for at, path in enumerate(paths)]
                made = {path for path, one in zip(paths, tries, strict=True) if one.result()}
                assert paths[3] in made
                assert len(made) == 2, made
    sound(server, database, address)


def test_a_running_program_notices_a_schema_of_tomorrow_when_it_connects_again(server: pgserver.Server) -> None:
    with server.database("tomorrow") as name, opened(server.at(name)) as tree:
        tree.append("log.jsonl", lambda _: b"one\n")
        server.run("INSERT INTO holdfast.migrations (version, name) VALUES (99, 'of tomorrow')", name)
        tree._database._pool._pool.drain()
        for work in (
            lambda: tree.append("log.jsonl", lambda _: b"two\n", again=True),
            lambda: tree.read("log.jsonl"),
        ):
            with pytest.raises(Unavailable, match="schema 99") as caught:
                work()
            assert "Upgrade" in caught.value.next_step
        server.run("DELETE FROM holdfast.migrations WHERE version = 99", name)
        assert lines(tree, "log.jsonl") == ["one"]


def test_a_write_that_fails_inside_an_append_does_not_make_the_next_forgetful(address: str) -> None:
    with opened(address) as tree:
        tree.write("taken.md", b"text", expect=ABSENT)

        def compose(_: LogEnd) -> bytes:
            with pytest.raises(AlreadyExists):
                tree.write("taken.md", b"other", expect=ABSENT)
            tree.write("beside.md", b"beside", expect=ABSENT)
            ask = tree._database.run("x", lambda turn: turn.row("SELECT current_setting('synchronous_commit')"))
            return b"%s\n" % str(ask and ask[0]).encode()

        tree.append("log.jsonl", compose, durable=False)
        assert lines(tree, "log.jsonl") == ["on"]


class Proxy:
    """Stands between a program and its server, and loses what it is told to."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self.lose: Callable[[bytes], str] = lambda _: ""
        self.lost: list[str] = []
        self._unheard: set[socket.socket] = set()
        """Whom nothing is passed on to any more."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                host, port = self._target
                server = socket.socket(socket.AF_UNIX if host.startswith("/") else socket.AF_INET)
                server.connect(f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port))
                for here, there in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(here, there, here is client), daemon=True).start()

    def _pump(self, here: socket.socket, there: socket.socket, asking: bool) -> None:
        with contextlib.suppress(OSError), here, there:
            while data := here.recv(1 << 16):
                verdict = self.lose(data) if asking else ""
                if verdict:
                    self.lost.append(verdict)
                    if verdict == "answer":
                        self._unheard.add(here)
                        self._sink(there, data)
                    for end in (here, there):
                        end.shutdown(socket.SHUT_RDWR)
                    return
                if there not in self._unheard:
                    there.sendall(data)

    def _sink(self, there: socket.socket, data: bytes) -> None:
        """Let the server do it, and wait until it has: its answer goes nowhere."""
        there.sendall(data)
        time.sleep(0.3)


@pytest.fixture
def proxied(server: pgserver.Server, address: str) -> Iterator[tuple[Proxy, str]]:
    with between(server, address) as found:
        yield found


@contextlib.contextmanager
def between(server: pgserver.Server, address: str) -> Iterator[tuple[Proxy, str]]:
    """Put something that loses what it is told to before a server; return it, and the address that leads through it."""
    if not server.local:
        pytest.skip("HOLDFAST_TEST_DSN: a server on another machine is not put behind a proxy")
    parts = conninfo_to_dict(server.dsn)
    proxy = Proxy((str(parts["host"]), int(str(parts["port"]))))
    start, _, query = address.partition("?")
    tenant = query.rpartition("tenant=")[2]
    try:
        yield proxy, f"{start}?host=127.0.0.1&port={proxy.port}&sslmode=disable&gssencmode=disable&tenant={tenant}"
    finally:
        proxy.close()


@pytest.mark.parametrize("verdict", ["question", "answer"])
@pytest.mark.parametrize(
    "work", ["create", "replace", "append", "move", "remove", "first append", "from pieces", "large", "rewrite"]
)
def test_a_commit_that_is_lost_on_its_way_or_on_its_way_back_takes_effect_once(
    server: pgserver.Server, database: str, proxied: tuple[Proxy, str], address: str, work: str, verdict: str
) -> None:
    proxy, dsn = proxied
    with opened(dsn, connections=1) as tree, opened(address) as direct:
        version = direct.write("there.md", b"old", expect=ABSENT)
        direct.append("log.jsonl", lambda _: b"one\n")
        calls: dict[str, Callable[[], object]] = {
            "create": lambda: tree.write("new.md", b"new", expect=ABSENT),
            "replace": lambda: tree.write("there.md", b"new", expect=version, keep="kept"),
            "append": lambda: tree.append("log.jsonl", lambda _: b"two\n"),
            "first append": lambda: tree.append("other.jsonl", lambda _: b"two\n"),
            "move": lambda: tree.move("there.md", "moved.md"),
            "remove": lambda: tree.remove("there.md", keep="kept"),
            "from pieces": lambda: tree.create("new.md", iter([b"ne", b"w"])),
            "large": lambda: tree.create("new.md", iter([b"new"] * 100_000)),
            "rewrite": lambda: tree.rewrite("log.jsonl", lambda line: line.upper()),
        }
        tree.stat("there.md")  # a new connection is looked at first, and that ends with a commit, too
        proxy.lose = lambda data: verdict if b"COMMIT" in data and not proxy.lost else ""
        if work == "large" and verdict == "question":  # its pieces came once, and went with the connection
            with pytest.raises(Unavailable, match="lost before all of it was sent"):
                calls[work]()
        else:
            assert calls[work]() == (1 if work == "rewrite" else ANY)
        assert proxy.lost == [verdict]
        shown = {path: direct.read(path).data for path, _ in _files(direct)}
    start = {"there.md": b"old", "log.jsonl": b"one\n"}
    expected = {
        "create": {**start, "new.md": b"new"},
        "replace": {**start, "there.md": b"new", "kept": b"old"},
        "append": {**start, "log.jsonl": b"one\ntwo\n"},
        "first append": {**start, "other.jsonl": b"two\n"},
        "move": {"moved.md": b"old", "log.jsonl": b"one\n"},
        "remove": {"kept": b"old", "log.jsonl": b"one\n"},
        "from pieces": {**start, "new.md": b"new"},
        "large": {**start, "new.md": b"new" * 100_000} if verdict == "answer" else start,
        "rewrite": {**start, "log.jsonl": b"ONE\n"},
    }
    assert shown == expected[work]
    sound(server, database, address)


def lose_commit(proxy: Proxy, verdict: str, meanwhile: Callable[[], object]) -> None:
    """Have the next commit lost; do something else before the program has connected again."""
    done: list[object] = []

    def lose(data: bytes) -> str:
        if not proxy.lost:
            return verdict if b"COMMIT" in data else ""
        if not done:
            done.append(True)
            meanwhile()
        return ""

    proxy.lose = lose


@pytest.mark.parametrize("verdict", ["question", "answer"])
@pytest.mark.parametrize("meanwhile", ["nothing", "grown", "replaced"])
def test_an_append_that_may_be_composed_again_takes_effect_once_when_its_commit_is_lost(
    server: pgserver.Server, database: str, proxied: tuple[Proxy, str], address: str, meanwhile: str, verdict: str
) -> None:
    proxy, dsn = proxied
    work: dict[str, Callable[[PgTree], object]] = {
        "nothing": lambda _: None,
        "grown": lambda tree: tree.append("log.jsonl", lambda _: b"theirs\n"),
        "replaced": lambda tree: tree.rewrite("log.jsonl", lambda line: line.upper()),
    }
    expected = {
        ("nothing", "question"): ["one", "two"],
        ("nothing", "answer"): ["one", "two"],
        ("grown", "question"): ["one", "theirs", "two after theirs"],
        ("grown", "answer"): ["one", "two", "theirs"],
        ("replaced", "question"): ["ONE"],
        ("replaced", "answer"): ["ONE", "TWO"],
    }

    def compose(end: LogEnd) -> bytes:
        return b"two\n" if end.size == 4 else b"two after %s\n" % next(end.back())

    with opened(dsn, connections=1) as tree, opened(address) as direct:
        tree.append("log.jsonl", lambda _: b"one\n", again=True)
        lose_commit(proxy, verdict, lambda: work[meanwhile](direct))
        uncertain = pytest.raises(Unavailable, match="may or may not be saved")
        with uncertain if meanwhile == "replaced" else contextlib.nullcontext():
            tree.append("log.jsonl", compose, again=True)
        assert lines(direct, "log.jsonl") == expected[meanwhile, verdict]
        assert proxy.lost == [verdict]
    sound(server, database, address)


@pytest.mark.parametrize("others", ["new.md", "new.md/inner.md"])
def test_a_document_whose_commit_is_lost_does_not_replace_that_of_others(
    server: pgserver.Server, database: str, proxied: tuple[Proxy, str], address: str, others: str
) -> None:
    proxy, dsn = proxied
    with opened(dsn, connections=1) as tree, opened(address) as direct:
        tree.stat("new.md")  # a new connection is looked at first, and that ends with a commit, too
        lose_commit(proxy, "question", lambda: direct.write(others, b"of theirs", expect=ABSENT))
        with pytest.raises(HoldfastError, match=r"may or may not be saved|already exists"):
            tree.write("new.md", b"of ours", expect=ABSENT)
        assert direct.read(others).data == b"of theirs"
        assert proxy.lost == ["question"]
    sound(server, database, address)


def _files(tree: PgTree) -> list[tuple[str, object]]:
    names = ("there.md", "new.md", "moved.md", "kept", "log.jsonl", "other.jsonl")
    return [(name, found) for name in names if (found := tree.stat(name))]


def test_a_server_that_stays_away_is_told_within_the_time_that_is_given(proxied: tuple[Proxy, str]) -> None:
    proxy, dsn = proxied
    with opened(dsn, again_seconds=1.0) as tree:
        tree.append("log.jsonl", lambda _: b"one\n")
        proxy.lose = lambda _: "question"
        with pytest.raises(RootGone) as caught:
            tree.append("log.jsonl", lambda _: b"two\n")
        assert caught.value.next_step
        proxy.lose = lambda _: ""
        tree.append("log.jsonl", lambda _: b"three\n")
        assert lines(tree, "log.jsonl") == ["one", "three"]


# too long


def test_a_statement_that_takes_too_long_is_stopped(address: str) -> None:
    with opened(address, statement_seconds=0.2) as tree:
        with pytest.raises(Unavailable, match=r"longer than 0\.2 s"):
            tree._database.run("slow", lambda turn: turn.row("SELECT pg_sleep(60)"))
        tree.append("log.jsonl", lambda _: b"one\n")


def test_a_writer_that_says_nothing_for_too_long_lets_others_in(address: str) -> None:
    with opened(address, idle_seconds=0.2) as slow, opened(address, lock_seconds=30.0) as other:
        slow.append("log.jsonl", lambda _: b"one\n")

        def compose(_: LogEnd) -> bytes:
            other.append("log.jsonl", lambda _: b"theirs\n")
            return b"mine\n"

        with pytest.raises(Unavailable, match="before anything was saved"):
            slow.append("log.jsonl", compose)
        assert lines(other, "log.jsonl") == ["one", "theirs"]


def test_more_work_than_connections_waits_and_then_is_busy(address: str) -> None:
    with opened(address, connections=1, again_seconds=0.3) as tree, ThreadPoolExecutor(1) as pool:

        def compose(_: LogEnd) -> bytes:
            with pytest.raises(Busy, match="All 1 connections"):
                pool.submit(tree.stat, "a.md").result()
            return b"one\n"

        tree.append("log.jsonl", compose)
        assert tree.stat("a.md") is None


def test_writers_that_wait_for_each_other_in_a_circle_are_not_left_waiting(address: str) -> None:
    with opened(address) as tree:
        both = threading.Barrier(2)

        def write(one: str, other: str) -> str:
            def compose(_: LogEnd) -> bytes:
                both.wait()
                tree.append(other, lambda _: b"inner\n")
                return b"outer\n"

            try:
                tree.append(one, compose)
            except Busy:
                return "busy"
            return "saved"

        for path in ("a.jsonl", "b.jsonl"):
            tree.append(path, lambda _: b"first\n")
        with ThreadPoolExecutor(2) as pool:
            results = sorted(pool.map(write, ["a.jsonl", "b.jsonl"], ["b.jsonl", "a.jsonl"]))
        assert results == ["busy", "saved"]
        assert sorted(lines(tree, "a.jsonl") + lines(tree, "b.jsonl")) == ["first", "first", "inner", "outer"]


def test_work_that_the_server_undid_is_done_again(address: str) -> None:
    with opened(address) as tree:
        tree.write("a.md", b"text", expect=ABSENT)
        tries: list[bool] = []

        def work(turn: Transaction) -> str:
            tries.append(turn.doubtful)
            if len(tries) < 3:
                turn.row("DO $$ BEGIN RAISE serialization_failure; END $$")
            return "done"

        assert tree._database.run("a.md", work, writes=True) == "done"
        assert tries == [False, False, False]


def test_tables_that_were_dropped_are_a_root_that_is_gone(server: pgserver.Server, tmp_path: Path) -> None:
    with server.database("dropped") as name, opened(server.at(name)) as tree:
        tree.write("a.md", b"text", expect=ABSENT)
        server.run("DROP SCHEMA holdfast CASCADE", name)
        for call in (
            lambda: tree.stat("a.md"),
            lambda: tree.folders("a"),
            lambda: tree.append("l", lambda _: b"x\n"),
        ):
            with pytest.raises(RootGone):
                call()
