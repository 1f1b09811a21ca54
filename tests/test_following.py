"""Following a memory on every engine: the reported changes, who receives them, and that none is missed."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
import pgserver
from holdfast.errors import HoldfastError, Invalid, NotFound
from holdfast.memory import Change

LOG = "user/memory/history.jsonl"


class Heard:
    """The reported changes of a memory, collected in a thread; waiting for more ends with an error after a while."""

    def __init__(self, memory: holdfast.Memory, **given: object) -> None:
        self._changes = memory.changes(**given)  # type: ignore[arg-type]  # as a test gives it
        self._told: queue.Queue[Change] = queue.Queue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for change in self._changes:
            self._told.put(change)

    def next(self) -> Change:
        return self._told.get(timeout=60)

    def until(self, what: str, about: str) -> list[Change]:
        """Return the changes up to one of this sort with these words."""
        found = [self.next()]
        while (found[-1].what, about in f"{found[-1].title} {found[-1].text} {found[-1].id}") != (what, True):
            found.append(self.next())
        return found

    def stop(self) -> None:
        self._changes.close()
        self._thread.join(60)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def heard(memory: holdfast.Memory, **given: object) -> Iterator[Heard]:
    listening = Heard(memory, **given)
    try:
        yield listening
    finally:
        listening.stop()


def test_what_others_do_is_told_as_it_comes(memory: holdfast.Memory, root: Path) -> None:
    with holdfast.open(root, writer="ann") as other, heard(memory) as told:
        page = other.put("note", "We deploy on Tuesdays.", title="Deploys")
        added = told.until("added", "Deploys")[-1]
        assert (added.kind, added.id, added.scope, added.writer) == ("note", page.id, "default", "ann")
        assert added.text == "We deploy on Tuesdays."
        assert added.time
        other.put(id=page.id, text="We deploy on Wednesdays.", expect=page.version)
        assert told.until("changed", "Wednesdays")[-1].id == page.id
        line = other.put("message", "is it Wednesday?", fields={"role": "user", "channel": "cli"})
        assert told.until("added", "is it Wednesday?")[-1].id == line.id
        other.hide(line.id)
        assert told.until("hidden", line.id)[-1].path == LOG
        other.hide(line.id, restore=True)
        assert told.until("restored", line.id)[-1].kind == "message"
        entry = other.put("decision", "By train.", title="Trains", scope="default")
        assert told.until("added", "Trains")[-1].id == entry.id
        other.forget(page.id, yes=True)
        assert told.until("removed", "")[-1].path == page.path


def test_scope_and_kind_say_what_is_told(memory: holdfast.Memory, root: Path) -> None:
    with holdfast.open(root) as other:
        other.call("createWorkspace", {"name": "Alpha", "rootFolder": "alpha", "description": "one", "purpose": "a"})
        other.call("createWorkspace", {"name": "Beta", "rootFolder": "beta", "description": "two", "purpose": "b"})
        with heard(memory, scope="Alpha", kinds=["lesson", "decision"]) as told:
            other.put("decision", "not here", title="Elsewhere", scope="Beta")
            other.put("note", "not this", title="Another kind", scope="Alpha")
            other.put("lesson", "this one", title="Wanted", scope="Alpha")
            assert [change.title for change in told.until("added", "Wanted")] == ["Wanted"]


def test_what_came_after_a_record_is_told_first(memory: holdfast.Memory) -> None:
    ids = [memory.put("message", f"m{n}", fields={"role": "user", "channel": "cli"}).id for n in range(4)]
    with heard(memory, since=ids[1]) as told:
        assert [told.next().id, told.next().id] == ids[2:]
        memory.put("message", "m4", fields={"role": "user", "channel": "cli"})
        assert told.next().text == "m4"


def test_what_cannot_be_followed_is_refused(memory: holdfast.Memory) -> None:
    for given, error in (
        ({"kinds": ["nonsense"]}, Invalid),
        ({"scope": "nowhere"}, NotFound),
        ({"since": "01a1e39c-213f-7ec4-bf96-5ce2349d5011"}, NotFound),
    ):
        with pytest.raises(error):
            memory.changes(**given)


def test_a_log_that_is_written_anew_is_told_and_followed_on(memory: holdfast.Memory, root: Path) -> None:
    for number in range(3):
        memory.put("message", f"m{number}", fields={"role": "user", "channel": "cli"})
    with heard(memory) as told:
        lines = (root / LOG).read_bytes().splitlines(True)
        (root / f"{LOG}.new").write_bytes(b"".join(lines[1:]))
        (root / LOG).unlink()
        (root / f"{LOG}.new").rename(root / LOG)
        assert told.next().path == LOG
        memory.put("message", "after", fields={"role": "user", "channel": "cli"})
        told.until("added", "after")


def test_the_command_prints_a_line_of_json_for_each_change(root: Path) -> None:
    with holdfast.open(root) as memory:
        first = memory.put("message", "before", fields={"role": "user", "channel": "cli"}).id
        memory.put("message", "already there", fields={"role": "user", "channel": "cli"})
        command = [sys.executable, "-m", "holdfast", "watch", "--since", first, "--kind", "message", "--count", "2"]
        environment = os.environ | {"HOLDFAST_ROOT": str(root)}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["text"] == "already there"
            memory.put("message", "new", fields={"role": "user", "channel": "cli"})
            told = json.loads(process.stdout.readline())
            assert (told["what"], told["text"], told["kind"]) == ("added", "new", "message")
            assert process.wait(60) == 0


def test_a_watching_search_finds_every_earlier_write(root: Path) -> None:
    with holdfast.open(root, watch=True) as reader, holdfast.open(root) as writer:
        for number in range(20):
            page = writer.put("note", f"The word is zebra{number}.", title=f"Page {number}")
            assert [hit.record.id for hit in reader.find(f"zebra{number}")] == [page.id]
            writer.put("message", f"said giraffe{number}", fields={"role": "user", "channel": "cli"})
            assert len(reader.find(f"giraffe{number}", kinds=("message",)).hits) == 1
        (root / page.path).unlink()
        assert not reader.find("zebra19").hits


# in a database


def test_nothing_is_missed_with_many_writers_in_flight(address: str) -> None:
    """Transactions end in another order than they began; each acknowledged change is reported once, by the next poll."""
    acknowledged: list[str] = []
    stop = threading.Event()

    def write(number: int) -> None:
        with holdfast.open(address) as memory:
            while not stop.is_set():
                lines = [{"role": "user", "content": f"{number}"}] * random.randint(1, 3)
                acknowledged.extend(memory.add(LOG, lines, time="timestamp", durable=False))

    with holdfast.open(address) as memory, contextlib.closing(memory.store.follow()) as feed:
        threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        told: list[str] = []
        while len(told) <= 300 and all(thread.is_alive() for thread in threads):
            before = list(acknowledged)
            told += [event.id for event in feed.events(0)]
            assert set(before) <= set(told)
        stop.set()
        for thread in threads:
            thread.join(60)
        told += [event.id for event in feed.events(0)]
        assert feed.events(0) == []
    assert sorted(told) == sorted(acknowledged)
    assert len(told) > 300


def test_a_follower_whose_connection_is_cut_misses_nothing(
    server: pgserver.Server, database: str, address: str
) -> None:
    with holdfast.open(address) as memory, holdfast.open(address) as other, heard(memory) as told:
        other.put("note", "one", title="Before")
        told.until("added", "Before")
        ours = "application_name = 'holdfast' AND datname = current_database()"
        server.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}", database)
        other.put("note", "two", title="Meanwhile")
        told.until("added", "Meanwhile")
        other.put("note", "three", title="Later")
        told.until("added", "Later")


def test_who_may_only_read_follows_too(server: pgserver.Server, database: str, address: str) -> None:
    name = "only_reads"
    server.run(f"DROP ROLE IF EXISTS {name}")
    server.run(f"CREATE ROLE {name} LOGIN")
    server.run(f"GRANT holdfast_reader TO {name}")
    if not server.local:
        pytest.skip("without a local socket this login would need a password")
    tenant = address.rpartition("tenant=")[2]
    with holdfast.open(address) as writer:
        writer.put("note", "zero", title="There")
        with holdfast.open(server.at(database, user=name, tenant=tenant)) as memory, heard(memory) as told:
            writer.put("note", "one", title="Fresh")
            told.until("added", "Fresh")
            with pytest.raises(HoldfastError, match="does not allow"):
                memory.put("note", "two", title="Refused")
