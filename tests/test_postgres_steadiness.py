"""What races, faults and odd texts must not do to a memory in a database."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
import pgserver
from holdfast.errors import HoldfastError, Unavailable
from holdfast.roots import make_root
from holdfast.storage.files.store import FileStore
from holdfast.storage.postgres.connections import Waits
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.index import PgIndex
from holdfast.storage.postgres.index_writer import vector_of
from holdfast.storage.postgres.tree import PgTree
from holdfast.storage.refresh import Refreshed


def test_threads_of_a_watched_memory_find_what_was_kept_before_they_asked(address: str) -> None:
    missed: list[str] = []
    with holdfast.open(address, watch=True) as memory:

        def keep(number: int) -> None:
            for each in range(8):
                word = f"word{number}x{each}"
                memory.put("note", f"about {word}", title=word)
                found = memory.find(word)
                if not list(found) and not found.behind:
                    missed.append(word)

        threads = [threading.Thread(target=keep, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not missed


@pytest.mark.parametrize(
    "words",
    [
        [f"w{number:05d}" for number in range(60_000)],
        [f"{chr(0x0915 + number % 30) * 30}{number}" for number in range(30_000)],
        [f"{chr(0x1D400 + number % 50) * 40}{number}" for number in range(20_000)],
        ["x" * 600, "short"],
    ],
    ids=["many", "hindi", "four bytes", "long"],
)
def test_no_text_makes_a_vector_that_the_server_refuses(server: pgserver.Server, words: list[str]) -> None:
    vector, length = vector_of("abcdeo", ("title", " ".join(words), ""))
    assert length >= len(words)
    literal = vector.replace("'", "''")
    assert server.run(f"SELECT length('{literal}'::tsvector) > 0") == [(True,)]  # an error would be raised


def test_a_rebuild_that_cannot_remove_the_old_index_leaves_the_new_one(address: str) -> None:
    with holdfast.open(address) as memory:
        for number in range(5):
            memory.put("note", f"zebra number {number}", title=f"Z{number}")
        assert len(list(memory.find("zebra"))) == 5
        database = Database(address, Waits(lock_seconds=1.0))
        assert isinstance(memory.store, FileStore)
        sync = memory.store._sync
        index = PgIndex(database, sync._index._identity, memory.settings.search)  # type: ignore[attr-defined]
        before = index.generation()
        with _holding_a_row(address, before), contextlib.suppress(HoldfastError), index.rebuilding() as fresh:
            sync.refresher.apply(fresh, list(index.seen()), Refreshed())
        assert index.generation() not in ("", before)
        database.close()
        assert len(list(memory.find("zebra"))) == 5
        assert memory.verify().sound


@contextlib.contextmanager
def _holding_a_row(address: str, generation: str) -> Iterator[None]:
    """Hold a row of an index, as a program does that is writing to it."""
    other = Database(address)
    with other.holding("a row") as turn:
        turn.rows("SELECT 1 FROM holdfast.index_files WHERE generation = %(number)s FOR UPDATE", number=int(generation))
        yield
    other.close()


def test_an_append_behind_a_torn_line_begins_a_line(address: str) -> None:
    with contextlib.closing(PgTree(Database(address))) as tree:
        tree.append("log.jsonl", lambda _: b'{"a":1}\n', again=True)
        tree.append("log.jsonl", lambda _: b'{"torn', again=True)
        tree.append("log.jsonl", lambda _: b'{"b":2}\n', again=True)
        assert [line.data for line in tree.scan("log.jsonl")] == [b'{"a":1}', b'{"torn', b'{"b":2}']


@pytest.mark.parametrize("size", [100_000, 262_143, 300_000, 2_000_000])
def test_a_large_append_does_not_wait_for_an_answer_before_it_is_sent(address: str, size: int) -> None:
    with contextlib.closing(Database(address, Waits(statement_seconds=5.0))) as database:
        tree = PgTree(database)
        for _ in range(3):  # more than the time-out would end with an error
            tree.append("large.jsonl", lambda _: b"x" * size + b"\n", again=True)
        stamp = tree.stat("large.jsonl")
        assert stamp and stamp.size == 3 * (size + 1)


def test_what_was_forgotten_there_does_not_come_back_in_another_version(tmp_path: Path, address: str) -> None:
    for name in ("a", "b"):
        make_root(str(tmp_path / name))
    with holdfast.open(tmp_path / "a") as one, holdfast.open(tmp_path / "b") as two, holdfast.open(address) as shared:
        note = one.put("note", "a secret of the house", title="Secret")
        one.push(address, yes=True)
        two.pull(address, yes=True)
        two.put(id=note.id, text="a secret of the house, edited", expect=two.get(note.id).version)
        shared.forget(note.id, yes=True)
        two.push(address, yes=True)
        assert not list(shared.find("secret house"))


def test_a_login_that_only_reads_is_told_so_by_verify_and_is_not_behind(
    server: pgserver.Server, database: str, address: str
) -> None:
    with holdfast.open(address) as memory:
        memory.put("note", "a lion", title="Lion")
        assert len(list(memory.find("lion"))) == 1
        tenant = address.rpartition("tenant=")[2]
    server.run("DROP ROLE IF EXISTS only_reads; CREATE ROLE only_reads LOGIN; GRANT holdfast_reader TO only_reads")
    with holdfast.open(server.at(database, user="only_reads", tenant=tenant)) as reader:
        found = reader.find("lion")
        assert (len(list(found)), found.behind) == (1, 0)
        with pytest.raises(Unavailable, match="rights to write"):
            reader.verify()
        with pytest.raises(Unavailable, match="only reads"):
            reader.refresh(rebuild=True)


def test_what_was_undone_before_does_not_cost_an_append(address: str) -> None:
    with contextlib.closing(Database(address, Waits(connections=1))) as database:
        tree = PgTree(database)

        def refuse(_end: object) -> bytes:
            raise Unavailable("no", "no")

        for _ in range(
            8
        ):  # so often that the driver prepares what it sends, and takes all of it back when work is undone
            tree.append("log.jsonl", lambda _: b"line\n")
            tree.append("log.jsonl", lambda _: b"")
            with contextlib.suppress(Unavailable):
                tree.append("log.jsonl", refuse)
        assert len(list(tree.scan("log.jsonl"))) == 8


def test_what_a_connection_was_told_stays_bounded(address: str) -> None:
    known = "SELECT count(*) FROM pg_prepared_statements"
    with contextlib.closing(Database(address, Waits(connections=1))) as database:
        tree = PgTree(database)
        for number in range(700):
            assert database.ask("a number", lambda turn, n=number: turn.rows(f"SELECT {n}")) == [(number,)]  # type: ignore[misc]
        told = database.ask("the names", lambda turn: turn.rows(known))[0][0]
        assert 100 < told <= 301
        tree.append("log.jsonl", lambda _: b"line\n", again=True)
        for _ in range(100):  # each takes back what it began
            assert tree.append("log.jsonl", lambda _: b"", again=True) is None
            assert tree.stat("log.jsonl")
        assert database.ask("the names", lambda turn: turn.rows(known))[0][0] <= told + 20


def test_a_question_that_fails_leaves_the_connection_of_use(address: str) -> None:
    with contextlib.closing(Database(address, Waits(connections=1))) as database:
        for _ in range(3):
            with pytest.raises(Unavailable, match="22012"):
                database.ask("a number", lambda turn: turn.rows("SELECT 1 / 0"))
            assert database.ask("a number", lambda turn: turn.rows("SELECT %(x)s::int", x=1)) == [(1,)]
            assert database.ask("a text", lambda turn: turn.rows("SELECT '100%%' || %(x)s", x="a")) == [("100%a",)]
