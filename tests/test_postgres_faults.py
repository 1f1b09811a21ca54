"""Faults between programs and their database: cut connections, lost answers, killed writers, a failover."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from psycopg.conninfo import conninfo_to_dict

import holdfast
import pgserver
from holdfast.errors import Busy, Conflict, HoldfastError, Unavailable
from holdfast.formats.jsonl import parse
from holdfast.model.records import Receipt
from holdfast.storage.postgres import store as pg_store
from holdfast.storage.postgres.connections import Waits
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.store import PgStore
from holdfast.storage.tree import ABSENT, RootGone
from teamserver import until

HISTORY = "user/memory/history.jsonl"
FACTS = "user/memory/semantic.jsonl"
TASKS = "user/memory/workspaces/default/tasks.jsonl"
THREADS = 6


@contextlib.contextmanager
def opened(address: str, **waits: float) -> Iterator[holdfast.Memory]:
    """Open a memory that waits as long as the test says."""
    with holdfast.open(address) as memory:
        inner = database_of(memory)
        inner.waits = msgspec.structs.replace(inner.waits, **waits)
        inner.__dict__.pop("_settings", None)
        yield memory


def database_of(memory: holdfast.Memory) -> Database:
    assert isinstance(memory.store, PgStore)
    return memory.store._database


def say(memory: holdfast.Memory, text: str) -> str:
    return memory.add(HISTORY, [{"role": "user", "content": text, "channel": "cli"}])[0]


def said(memory: holdfast.Memory) -> list[str]:
    return [json.loads(line.data)["content"] for line in memory.tree.scan(HISTORY)]


def cut_all(server: pgserver.Server, database: str) -> None:
    server.run(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        f" WHERE application_name = 'holdfast' AND datname = '{database}'"  # others use this server, too
    )


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


# many writers

WRITES = """
import sys, holdfast
address, me, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with holdfast.open(address) as memory:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(count):
        memory.chat.persist_exchange("cli", me, f"{me}:{number}", f"{me}:{number} again")
        print(f"{me}:{number}", flush=True)
"""


def test_nothing_is_lost_and_nothing_appears_behind_a_reader_who_follows(address: str) -> None:
    processes, count = 6, 40
    done = threading.Event()
    followed: list[str] = []

    def follow(memory: holdfast.Memory) -> None:
        cursor, last = None, False
        while not last:
            last = done.is_set()
            part = memory.store.read_on(HISTORY, cursor)
            assert part.fresh == (cursor is None)
            cursor = part.cursor
            followed.extend(entry["content"] for entry in part.entries)

    with holdfast.open(address) as memory, contextlib.ExitStack() as stack, ThreadPoolExecutor(1 + processes) as pool:
        writers = [stack.enter_context(program(WRITES, address, f"w{me}", str(count))) for me in range(processes)]
        for writer in writers:
            assert writer.stdout and writer.stdout.readline() == "ready\n"
        follower = pool.submit(follow, memory)
        answers = [pool.submit(writer.communicate, "go\n") for writer in writers]
        acknowledged = [line for answer in answers for line in answer.result()[0].splitlines()]
        done.set()
        follower.result()
        assert [writer.returncode for writer in writers] == [0] * processes
        assert len(acknowledged) == processes * count
        found = said(memory)
    assert sorted(followed) == sorted(found)
    assert sorted(found) == sorted(text for line in acknowledged for text in (line, f"{line} again"))
    for me in range(processes):
        numbers = [int(text.split(":")[1]) for text in followed if re.fullmatch(f"w{me}:[0-9]+", text)]
        assert numbers == sorted(numbers)


def test_writers_that_are_killed_at_any_moment_lose_nothing_and_leave_no_half(address: str) -> None:
    acknowledged: list[str] = []
    for turn in range(5):
        with program(WRITES, address, f"w{turn}", "100000") as writer:
            assert writer.stdin and writer.stdout and writer.stdout.readline() == "ready\n"
            writer.stdin.write("go\n")
            writer.stdin.flush()
            acknowledged += [writer.stdout.readline().strip() for _ in range(random.randint(5, 40))]
            writer.kill()
    with holdfast.open(address) as memory:
        found = said(memory)
        assert len(set(found)) == len(found)
        assert set(acknowledged) - set(found) == set()
        assert {text.removesuffix(" again") for text in found if text.endswith(" again")} == set(found[::2])
        assert memory.verify().sound


def test_an_op_id_that_threads_send_at_once_has_effect_once(address: str) -> None:
    with holdfast.open(address) as memory, ThreadPoolExecutor(THREADS) as pool:
        memory.put("fact", "nothing yet", fields={"key": "k"})
        for turn in range(8):

            def put(_: int, turn: int = turn) -> Any:
                return memory.put("fact", "once", fields={"key": "k"}, op_id=f"op-{turn}")

            done = list(pool.map(put, range(THREADS)))
            assert len({receipt.id for receipt in done}) == 1
            assert sorted(receipt.status for receipt in done) == ["repeated"] * (THREADS - 1) + ["stored"]


def test_a_key_that_programs_write_at_once_has_one_value_and_a_whole_history(address: str) -> None:
    with holdfast.open(address) as one, holdfast.open(address) as two, ThreadPoolExecutor(THREADS) as pool:

        def put(number: int) -> str:
            return (one, two)[number % 2].put("fact", f"value {number}", fields={"key": "k"}).id

        ids = list(pool.map(put, range(60)))
        assert [record.id for record in one.store.by_key(FACTS, "k")] == [max(ids)]
        assert [record.id for record in two.store.by_key(FACTS, "k", history=True)] == sorted(ids)
        assert one.verify().sound


def test_threads_find_what_was_stored_before_they_asked(address: str) -> None:
    with holdfast.open(address, watch=True) as memory, ThreadPoolExecutor(THREADS) as pool:

        def keep(number: int) -> None:
            for each in range(6):
                word = f"word{number}x{each}"
                memory.put("note", f"about {word}", title=word)
                assert len(list(memory.find(word))) == 1

        list(pool.map(keep, range(THREADS)))


INTERRUPTED = """
import os, signal, sys, threading, time
import holdfast
LOG = "user/memory/jobs.jsonl"
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
with holdfast.open(sys.argv[1]) as memory, holdfast.open(sys.argv[1]) as other:
    begun, go = threading.Event(), threading.Event()
    def slow():
        def decide():
            begun.set()
            go.wait(30)
            return [{"job": "one", "name": "One"}], ""
        other.store.append_decided(LOG, decide)
    def interrupt():
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)
    threads = [threading.Thread(target=slow), threading.Thread(target=interrupt)]
    threads[0].start()
    begun.wait(30)
    threads[1].start()
    try:
        memory.store.append(LOG, [{"job": "never", "name": "Never"}])
    except KeyboardInterrupt:
        go.set()
    else:
        sys.exit("it was not interrupted")
    for thread in threads:
        thread.join()
    memory.store.append(LOG, [{"job": "two", "name": "Two"}])
    print([entry["job"] for entry in memory.store.read_on(LOG, None).entries])
"""


def test_a_thread_that_is_interrupted_while_it_waits_blocks_no_other(address: str) -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, address], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "['one', 'two']\n")


# runs of processes that are gone

LIVES = """
import sys, holdfast
from holdfast.storage.postgres import store
store.LEASE_SECONDS = float(sys.argv[2])
with holdfast.open(sys.argv[1]) as memory:
    run = memory.run("s", run_id="one")
    run.save("run", "of the other process")
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_a_live_run_is_kept_and_that_of_a_killed_process_is_removed_after_its_lease(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pg_store, "LEASE_SECONDS", 1.0)
    with holdfast.open(address) as memory, program(LIVES, address, "1.0") as process:
        assert process.stdout and process.stdout.readline() == "ready\n"

        def there() -> bool:
            with holdfast.open(address):  # which removes the files of dead runs
                return bool(list(memory.store.paths("user/memory/sessions", ".jsonl")))

        deadline = time.monotonic() + 2  # two leases long, which its process renews
        while time.monotonic() < deadline:
            assert there()
            time.sleep(0.3)
        process.kill()
        process.wait()
        assert there()
        until(lambda: not there(), 30)


# connections that are cut


_READY = b"Z\0\0\0\5"
"""The start of the message by which a server says that it has finished; one byte follows."""


class Proxy:
    """Is between a program and its server, and loses the messages that a test names."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self.lose: Callable[[bytes], str] = lambda _: ""
        self.lost: list[str] = []
        self._unheard: dict[socket.socket, threading.Event] = {}
        """Clients that get no more answers, and whether the server has finished its last one."""
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
                        answered = self._unheard[here] = threading.Event()
                        there.sendall(data)
                        answered.wait(0.3)  # part of a message gets no answer
                    for end in (here, there):
                        end.shutdown(socket.SHUT_RDWR)
                    return
                if there not in self._unheard:
                    there.sendall(data)
                elif data[-6:-1] == _READY:
                    self._unheard[there].set()


@pytest.fixture
def proxied(server: pgserver.Server, address: str) -> Iterator[tuple[Proxy, str]]:
    with between(server, address) as found:
        yield found


@contextlib.contextmanager
def between(server: pgserver.Server, address: str) -> Iterator[tuple[Proxy, str]]:
    """Put a proxy before a server; return it, and the address that leads through it."""
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


def written(memory: holdfast.Memory) -> dict[str, Any]:
    """Return what a memory has, without ids, times and hashes: texts of documents, and what each log entry says."""
    found: dict[str, Any] = {}
    kept = ("role", "content", "text", "key", "event", "title", "tool", "path", "name")
    for path, _ in memory.tree.walk("", (".md", ".jsonl"), lambda _p, _w: None):
        if path.endswith(".jsonl"):
            entries = [json.loads(line.data) for line in memory.tree.scan(path)]
            found[path] = [{name: entry[name] for name in kept if name in entry} for entry in entries]
        else:
            text = memory.tree.read(path).data.decode()
            found[path] = re.sub(r"(?m)^(created|updated):.*$", "", text)
    return found


WORK: dict[str, Callable[[holdfast.Memory, Receipt], Any]] = {
    "create": lambda m, _: m.put("note", "new", title="New"),
    "create with op_id": lambda m, _: m.put("note", "new", title="New", op_id="op-1"),
    "replace": lambda m, note: m.put(id=note.id, text="replaced", expect=note.version),
    "section": lambda m, _: m.put("decision", "by train", title="Trains"),
    "state": lambda m, _: m.put("state", "a save point", title="Save"),
    "message": lambda m, _: m.put("message", "hello", fields={"role": "user"}),
    "message with op_id": lambda m, _: m.put("message", "hello", fields={"role": "user"}, op_id="op-2"),
    "exchange": lambda m, _: m.chat.persist_exchange("cli", "me", "question", "answer"),
    "fact": lambda m, _: m.put("fact", "new value", fields={"key": "k"}),
    "hide": lambda m, note: m.hide(note.id),
    "entry": lambda m, _: m.call("save_memory", {"compartment": "session", "content": "x"}, {"sessionId": "s"}),
    "task": lambda m, _: m.tasks.create("work"),
    "claim": lambda m, _: m.tasks.claim("w"),
    "import": lambda m, _: m.store.import_lines(HISTORY, [b'{"role":"user","content":"from elsewhere"}']),
}


def prepare(memory: holdfast.Memory) -> Receipt:
    memory.put("fact", "old value", fields={"key": "k"})
    memory.tasks.create("ready")
    return memory.put("note", "first", title="First")


@pytest.mark.parametrize("verdict", ["question", "answer"])
@pytest.mark.parametrize("work", WORK)
def test_a_message_that_is_lost_on_its_way_or_on_its_way_back_takes_effect_once(
    proxied: tuple[Proxy, str], address: str, work: str, verdict: str
) -> None:
    proxy, dsn = proxied
    with holdfast.open(f"{address}-expected") as expected:
        WORK[work](expected, prepare(expected))
        wanted = written(expected)
    with holdfast.open(dsn) as memory, holdfast.open(address) as direct:
        note = prepare(memory)
        database_of(memory)._prepares = False  # so that each message contains its statements
        changes = (b"INSERT", b"holdfast.append(", b"holdfast.import_entries(", b"holdfast.put_document(")
        proxy.lose = lambda data: verdict if not proxy.lost and any(word in data for word in changes) else ""
        WORK[work](memory, note)
        assert proxy.lost == [verdict]
        assert written(direct) == wanted
        assert direct.verify().sound


def test_reads_and_writes_go_on_after_every_connection_was_cut(
    server: pgserver.Server, database: str, address: str
) -> None:
    with holdfast.open(address) as memory, ThreadPoolExecutor(THREADS) as pool:
        for turn in range(3):
            list(pool.map(lambda _: memory.find("anything"), range(12)))
            cut_all(server, database)
            assert memory.tail("message", 5) is not None
            cut_all(server, database)
            say(memory, f"turn {turn}")
        assert said(memory) == ["turn 0", "turn 1", "turn 2"]


def test_what_a_transaction_did_before_it_was_cut_is_undone(server: pgserver.Server, address: str) -> None:
    with holdfast.open(address) as memory:
        inner = database_of(memory)

        def decide() -> tuple[Sequence[dict[str, Any]], str]:
            memory.tree.write("beside.md", b"text", expect=ABSENT)
            ((pid,),) = inner.ask("me", "SELECT pg_backend_pid()")
            server.run(f"SELECT pg_terminate_backend({pid}, 5000)")
            return [{"role": "user", "content": "mine"}], ""

        with pytest.raises(RootGone, match="connection to the database was lost"):
            memory.store.append_decided(HISTORY, decide)
        assert memory.tree.stat("beside.md") is None
        assert said(memory) == []

        def refuse() -> tuple[Sequence[dict[str, Any]], str]:
            memory.tree.write("beside.md", b"text", expect=ABSENT)
            raise Conflict("changed my mind")

        with pytest.raises(Conflict, match="changed my mind"):
            memory.store.append_decided(HISTORY, refuse)
        assert memory.tree.stat("beside.md") is None
        say(memory, "later")
        assert said(memory) == ["later"]


def test_a_server_that_stays_away_is_reported_within_the_time_that_is_given(proxied: tuple[Proxy, str]) -> None:
    proxy, dsn = proxied
    with opened(dsn, again_seconds=1.0) as memory:
        say(memory, "one")
        proxy.lose = lambda _: "question"
        with pytest.raises(RootGone) as caught:
            say(memory, "two")
        assert caught.value.next_step
        proxy.lose = lambda _: ""
        say(memory, "three")
        assert said(memory) == ["one", "three"]


def test_a_server_that_is_stopped_and_started_again_loses_nothing() -> None:
    with pgserver.stoppable() as running, holdfast.open(running.server.at("postgres")) as memory:
        acknowledged = [say(memory, "before")]
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                with contextlib.suppress(HoldfastError):
                    acknowledged.append(say(memory, f"{number}"))
                number += 1

        def more(count: int) -> None:
            before = len(acknowledged)
            until(lambda: len(acknowledged) >= before + count)

        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(write) for _ in range(2)]
            for _ in range(3):
                more(20)
                running.stop()
                running.start()
            more(20)
            stop.set()
            for future in futures:
                future.result(60)
        ids = [json.loads(line.data)["id"] for line in memory.tree.scan(HISTORY)]
        assert len(set(ids)) == len(ids)
        assert set(acknowledged) <= set(ids)
        assert memory.verify().sound


@pytest.mark.parametrize(
    ("code", "message"), [("53100", "no space left"), ("XX001", "are damaged"), ("P0001", "refused (P0001): no")]
)
def test_an_error_of_the_server_is_reported_and_nothing_is_written(
    server: pgserver.Server, code: str, message: str
) -> None:
    with server.database("full") as name, holdfast.open(server.at(name)) as memory:
        note = memory.put("note", "before", title="Note")
        server.run(
            "CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'"
            f" USING ERRCODE = '{code}'; END $$; CREATE TRIGGER fail BEFORE INSERT ON holdfast.record"
            " FOR EACH ROW EXECUTE FUNCTION public.fail()",
            name,
        )
        for work in (
            lambda: memory.put("message", "x"),
            lambda: memory.put("note", "x", title="X"),
            lambda: memory.put(id=note.id, text="after", expect=note.version),
            lambda: memory.put("fact", "x", fields={"key": "k"}),
            lambda: memory.tasks.create("x"),
        ):
            with pytest.raises(HoldfastError, match=re.escape(message)):
                work()
        assert [hit.record.text for hit in memory.find("")] == ["before"]
        server.run("DROP FUNCTION public.fail CASCADE", name)
        memory.put(id=note.id, text="after", expect=note.version)
        assert memory.verify().sound


def test_a_server_that_takes_no_writes_is_named(server: pgserver.Server) -> None:
    with server.database("readonly") as name:
        with holdfast.open(server.at(name)) as memory:
            memory.put("note", "text", title="Note")
        server.run(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        with opened(server.at(name), again_seconds=0.5) as memory:
            assert len(list(memory.find("text"))) == 1
            with pytest.raises(Unavailable, match="takes no writes") as caught:
                memory.put("message", "x")
            assert "target_session_attrs=read-write" in caught.value.next_step


def test_a_running_program_notices_a_schema_of_tomorrow_when_it_connects_again(server: pgserver.Server) -> None:
    with server.database("tomorrow") as name, holdfast.open(server.at(name)) as memory:
        say(memory, "one")
        server.run("INSERT INTO holdfast.migrations (version, name) VALUES (99, 'of tomorrow')", name)
        database_of(memory)._pool.close_idle()
        for work in (lambda: say(memory, "two"), lambda: memory.find("one")):
            with pytest.raises(Unavailable, match="schema 99") as caught:
                work()
            assert "Upgrade" in caught.value.next_step
        server.run("DELETE FROM holdfast.migrations WHERE version = 99", name)
        assert said(memory) == ["one"]


def test_tables_that_were_dropped_are_a_root_that_is_gone(server: pgserver.Server) -> None:
    with server.database("dropped") as name, holdfast.open(server.at(name)) as memory:
        say(memory, "one")
        server.run("DROP SCHEMA holdfast CASCADE", name)
        for call in (lambda: memory.find("one"), lambda: say(memory, "two"), lambda: memory.tail("message")):
            with pytest.raises(RootGone):
                call()


# waiting


def test_a_statement_that_takes_too_long_is_stopped(address: str) -> None:
    with opened(address, statement_seconds=0.2) as memory:
        with pytest.raises(Unavailable, match=r"longer than 0\.2 s"):
            database_of(memory).ask("slow", "SELECT pg_sleep(60)")
        say(memory, "one")


def test_a_log_that_stays_locked_is_reported_to_each_writer_within_its_time(address: str) -> None:
    with opened(address, lock_seconds=0.3) as memory, holdfast.open(address) as other, ThreadPoolExecutor(4) as pool:

        def decide() -> tuple[Sequence[dict[str, Any]], str]:
            tries = [pool.submit(memory.tasks.create, f"t{number}") for number in range(3)]
            assert [type(one.exception(30)) for one in tries] == [Busy] * 3
            return [], ""

        memory.tasks.create("first")
        other.store.append_decided(TASKS, decide)
        assert memory.tasks.all().counts == {"ready": 1}


def test_more_work_than_connections_waits_and_then_is_busy(address: str) -> None:
    with contextlib.closing(Database(address, Waits(connections=1, again_seconds=0.3))) as database:
        with database.transaction("x"), ThreadPoolExecutor(1) as pool, pytest.raises(Busy, match="All 1 connections"):
            pool.submit(database.ask, "y", "SELECT 1").result()
        assert database.ask("y", "SELECT 1") == [(1,)]


def test_writers_that_wait_for_each_other_in_a_circle_are_not_left_waiting(address: str) -> None:
    jobs = "user/memory/jobs.jsonl"
    with holdfast.open(address) as memory, ThreadPoolExecutor(2) as pool:
        both = threading.Barrier(2)

        def write(one: str, other: str) -> str:
            def decide() -> tuple[Sequence[dict[str, Any]], str]:
                both.wait(30)
                memory.store.append(other, [{"job": "inner", "event": "created", "task": "t1"}])
                return [{"job": "outer", "event": "created", "task": "t2"}], ""

            try:
                memory.store.append_decided(one, decide)
            except Busy:
                return "busy"
            return "saved"

        assert sorted(pool.map(write, [jobs, TASKS], [TASKS, jobs])) == ["busy", "saved"]
        entries = [*memory.store.read_on(jobs, None).entries, *memory.store.read_on(TASKS, None).entries]
        assert sorted(entry["job"] for entry in entries) == ["inner", "outer"]


def test_work_that_the_server_undid_is_done_again(server: pgserver.Server) -> None:
    with server.database("undone") as name, holdfast.open(server.at(name)) as memory:
        server.run(
            "CREATE SEQUENCE public.tries; GRANT USAGE ON SEQUENCE public.tries TO PUBLIC;"
            "CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF nextval('public.tries') < 3 THEN RAISE serialization_failure; END IF; RETURN NEW; END $$;"
            "CREATE TRIGGER fail BEFORE INSERT ON holdfast.record FOR EACH ROW EXECUTE FUNCTION public.fail()",
            name,
        )
        say(memory, "one")
        assert said(memory) == ["one"]
        assert server.run("SELECT last_value FROM public.tries", name) == [(3,)]


def test_a_question_that_fails_leaves_the_connection_usable(address: str) -> None:
    with contextlib.closing(Database(address, Waits(connections=1))) as database:
        for _ in range(3):
            with pytest.raises(Unavailable, match="22012"):
                database.ask("a number", "SELECT 1 / 0")
            assert database.ask("a number", "SELECT %(x)s::int", x=1) == [(1,)]


def test_prepared_statements_of_a_connection_stay_bounded(address: str) -> None:
    known = "SELECT count(*)::int FROM pg_prepared_statements"
    with contextlib.closing(Database(address, Waits(connections=1))) as database:
        for number in range(700):
            assert database.ask("a number", f"SELECT {number}") == [(number,)]
        assert 100 < database.ask("the names", known)[0][0] <= 301


# standbys


def test_a_commit_that_no_standby_confirmed_is_not_acknowledged() -> None:
    with pgserver.private() as alone, opened(alone.at("postgres"), statement_seconds=1.0) as memory:
        say(memory, "one")
        alone.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        alone.run("SELECT pg_reload_conf()")
        with pytest.raises(Unavailable, match="no standby has confirmed"):
            for number in range(100):  # the server reads its settings in its own time
                say(memory, f"{number}")


FAILOVER_WRITER = """
import select, sys
import holdfast
from holdfast.errors import HoldfastError
address, me = sys.argv[1:]
def message(name): memory.add("user/memory/history.jsonl", [{"role": "user", "content": name, "channel": me}])
def exchange(name): memory.chat.persist_exchange("cli", me, f"q-{name}", f"a-{name}")
def fact(name): memory.put("fact", name, fields={"key": name})
def document(name): memory.tree.write(f"documents/{name}.md", name.encode(), expect="")
def task(name): memory.tasks.create(name)
with holdfast.open(address, writer=me) as memory:
    number = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        work = (message, exchange, fact, document, task)[number % 5]
        try:
            work(f"{me}-{number}")
            print("saved", work.__name__, f"{me}-{number}", flush=True)
        except HoldfastError as error:
            print("unsure", work.__name__, f"{me}-{number}", error.message, flush=True)
        number += 1
"""
FAILOVER_READER = """
import json, select, sys
import holdfast
from holdfast.errors import HoldfastError
seen, cursor = [], None
def read():
    global seen, cursor
    part = memory.store.read_on("user/memory/history.jsonl", cursor)
    ids = [entry["id"] for entry in part.entries]
    if part.fresh:
        assert set(seen) <= set(ids), "an entry that was seen is gone"
        seen = []
    seen, cursor = seen + ids, part.cursor
with holdfast.open(sys.argv[1]) as memory:
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        try:
            read()
        except HoldfastError:
            pass
    read()
print(json.dumps(seen))
"""


class Program:
    """A process whose output is read when it is wanted."""

    def __init__(self, code: str, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []

    def wait_for(self, count: int) -> None:
        """Read on until it has saved so many more."""
        assert self._process.stdout
        while count:
            line = self._process.stdout.readline()
            assert line, "the writer ended"
            self.lines.append(line)
            count -= line.startswith("saved")

    def stop(self) -> list[str]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("stop\n")
        self._process.stdin.close()
        self.lines += self._process.stdout
        assert self._process.wait() == 0
        return self.lines

    def kill(self) -> None:
        self._process.kill()
        with self._process:
            pass


def test_what_was_acknowledged_before_and_after_a_failover_is_there_once() -> None:
    some = 40
    with pgserver.pair() as pair, contextlib.ExitStack() as stack:
        address = pair.at("postgres", tenant="team")
        with holdfast.open(address) as memory:
            memory.put("note", "before", title="Before")
        programs = [Program(FAILOVER_WRITER, address, f"w{number}") for number in range(4)]
        reader = Program(FAILOVER_READER, address)
        for one in (*programs, reader):
            stack.callback(one.kill)
        for writer in programs:
            writer.wait_for(some)
        pair.fail_over()
        for writer in programs:
            writer.wait_for(some)
        printed = [line.split()[:3] for writer in programs for line in writer.stop()]
        seen = json.loads(reader.stop()[-1])
        with holdfast.open(address) as memory:
            lines = [json.loads(line.data) for line in memory.tree.scan(HISTORY)]
            counts = Counter(line["content"] for line in lines)
            tasks = Counter(task.title for _, task in memory.tasks.all().tasks)
            facts = Counter(record.text for record in memory.store.every() if record.kind == "fact")
            documents = {path for path, _ in memory.tree.walk("documents", (".md",), lambda _p, _w: None)}
            for verdict, work, name in printed:
                found = {
                    "message": [counts[name]],
                    "exchange": [counts[f"q-{name}"], counts[f"a-{name}"]],
                    "fact": [facts[name]],
                    "document": [int(f"documents/{name}.md" in documents)],
                    "task": [tasks[name]],
                }[work]
                assert len(set(found)) == 1
                assert found[0] == 1 if verdict == "saved" else found[0] <= 1, (verdict, work, name, found)
            assert set(counts.values()) | set(tasks.values()) | set(facts.values()) == {1}
            assert sorted(seen) == sorted(line["id"] for line in lines)
            assert memory.verify().sound


# tasks


def events(memory: holdfast.Memory) -> Counter[str]:
    found = [value for line in memory.tree.scan(TASKS) for value in parse(line.data) if isinstance(value, dict)]
    return Counter(value["event"] for value in found)


def test_tasks_that_are_added_behind_others_while_those_end_are_all_done(address: str) -> None:
    """Adding a task after another one, and ending that one, agree on whether the new task still waits."""
    total = 120
    with holdfast.open(address) as memory:
        made = [memory.tasks.create("start").id]
        ended = threading.Event()

        def add(seed: int) -> None:
            chance = random.Random(seed)
            for number in range(total // 2):
                after = sorted({chance.choice(made[-6:]) for _ in range(3)})
                made.append(memory.tasks.create(f"{seed}-{number}", after=after, priority=chance.randint(1, 10)).id)

        def work(name: str) -> None:
            with holdfast.open(address) as mine:
                while True:
                    last = ended.is_set()
                    claim = mine.tasks.claim(name)
                    if claim:
                        mine.tasks.report(claim.task.id, claim.attempt.id, "done")
                    elif last and not mine.tasks.outlook()[1].running:
                        return

        with ThreadPoolExecutor(6) as pool:
            workers = [pool.submit(work, f"w{number}") for number in range(4)]
            for adder in [pool.submit(add, seed) for seed in (1, 2)]:
                adder.result(timeout=120)
            ended.set()
            for worker in workers:
                worker.result(timeout=120)
        assert memory.tasks.all().counts == {"done": total + 1}
        assert events(memory) == {"created": total + 1, "claimed": total + 1, "reported": total + 1}


def test_one_op_id_of_many_at_the_same_moment_is_done_once(address: str) -> None:
    with holdfast.open(address) as memory:
        memory.tasks.create_all([{"title": "one"}, {"title": "two"}, {"title": "three"}])
        together = threading.Barrier(6)

        def take(_number: int) -> str:
            together.wait(60)
            claim = memory.tasks.claim("w", op_id="same")
            assert claim is not None
            return claim.attempt.id

        with ThreadPoolExecutor(6) as pool:
            assert len(set(pool.map(take, range(6)))) == 1
        assert events(memory) == {"created": 3, "claimed": 1}


def test_of_a_late_report_and_claims_at_the_same_moment_one_counts(address: str) -> None:
    def race(memory: holdfast.Memory, task: str, attempt: str) -> list[object]:
        """Report and claim at the same moment; return what succeeded."""
        until(lambda: not memory.tasks.outlook()[1].running)
        together = threading.Barrier(4)

        def late() -> object:
            together.wait(60)
            try:
                return memory.tasks.report(task, attempt, "done").id
            except Conflict:
                return None

        def take() -> object:
            together.wait(60)
            return memory.tasks.claim("next", lease=60)

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(call) for call in (late, take, take, take)]
            return [result for future in futures if (result := future.result(timeout=60))]

    with contextlib.ExitStack() as stack:
        races: list[tuple[holdfast.Memory, str, str]] = []
        for number in range(5):  # their leases run out together
            memory = stack.enter_context(holdfast.open(f"{address}-{number}"))
            task = memory.tasks.create("one", lease=1.0)
            claim = memory.tasks.claim("late")
            assert claim is not None
            races.append((memory, task.id, claim.attempt.id))
        assert [len(race(*each)) for each in races] == [1] * 5


def test_work_goes_on_while_connections_are_cut(server: pgserver.Server, database: str, address: str) -> None:
    cutting = (
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        f" WHERE application_name = 'holdfast' AND datname = '{database}'"
    )
    with holdfast.open(address) as memory:
        memory.tasks.create_all([{"title": f"task {number}", "lease": 600} for number in range(60)])
        done: list[str] = []
        unsure: list[str] = []

        def work(name: str) -> None:
            while True:
                try:
                    claim = memory.tasks.claim(name)
                    if claim is None:
                        return
                    memory.tasks.report(claim.task.id, claim.attempt.id, "done", result=name)
                    done.append(claim.task.id)
                except Unavailable as error:
                    unsure.append(str(error))

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(work, f"w{number}") for number in range(4)]
            for _ in range(15):
                if all(future.done() for future in futures):
                    break
                server.run(cutting)
                threading.Event().wait(0.1)
            for future in futures:
                future.result(timeout=120)
        assert len(set(done)) == len(done)
        listed = memory.tasks.all()
        known = {task.id: task for _, task in listed.tasks}
        assert all(known[one].done for one in done)  # what was acknowledged is there
        assert len(done) >= 60 - len(unsure)
        assert events(memory)["claimed"] <= 60 + len(unsure)


def test_a_tenant_learns_nothing_of_the_tasks_of_another(server: pgserver.Server, database: str, address: str) -> None:
    with holdfast.open(address) as ours, holdfast.open(server.at(database, tenant="stranger")) as theirs:
        task = ours.tasks.create("secret work")
        claim = ours.tasks.claim("w", op_id="op")
        assert claim is not None
        calls: dict[str, dict[str, Any]] = {
            "task_heartbeat": {"attempt": claim.attempt.id},
            "task_report": {"attempt": claim.attempt.id, "status": "done"},
            "task_list": {},
            "task_create": {"title": "behind it"},
        }
        for name, params in calls.items():
            replies = []
            for identifier in (task.id, "t0123456789"):
                about = {"task_list": {"ids": [identifier]}, "task_create": {"after": [identifier]}}
                reply = theirs.call(name, params | about.get(name, {"id": identifier}))
                assert reply["success"] is False
                replies.append(reply["error"].replace(identifier, "?"))
            assert replies[0] == replies[1]  # not even that there is one
        assert theirs.call("task_list")["counts"] == {}
        assert theirs.tasks.claim("w", op_id="op") is None
        with pytest.raises(HoldfastError, match="no task"):
            theirs.tasks.cancel(task.id)
        assert ours.tasks.report(task.id, claim.attempt.id, "done").done
