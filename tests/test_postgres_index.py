"""The index on PostgreSQL gives the answers of the embedded one: both read the same files, and are asked the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import pytest
from holdfast.storage.postgres.index import PgIndex

import holdfast
from holdfast.errors import Busy
from holdfast.model.kinds import KINDS
from holdfast.model.queries import parse
from holdfast.model.records import path_of
from holdfast.model.settings import Search
from holdfast.storage.files.index import SqliteIndex
from holdfast.storage.files.store import FileStore
from holdfast.storage.index import Filter, Index, Stale
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.schema import TABLES
from holdfast.storage.refresh import Refreshed, Refresher

OF_TEST = (
    "SELECT DISTINCT r.generation FROM holdfast.index_records r JOIN holdfast.index_generations g"
    " USING (tenant, generation) WHERE g.identity = 'test'"
)
SEARCHABLE = tuple(name for name, row in KINDS.items() if row.searchable)
WORDS = (
    "deploy deploys deploying tuesday friday server database migration rollback decision zürich naïve 東京 大阪 release"
    " pipeline token secret cache redis kafka queue timeout retry latency index vacuum it's O'Brien C:\\path 'quoted'"
).split()
QUESTIONS = (
    "deploy on tuesday", '"database migration"', "東京", "naive zurich", "who deployed the server", "kafka queue timeout",
    "o'brien", "C:\\path", '"release pipeline" cache', "nothing of this kind", "token", "'quoted'", "deploy " * 30,
)  # fmt: skip


class Both:
    """The same files, read into both engines."""

    def __init__(self, memory: holdfast.Memory, ours: Index, theirs: Index) -> None:
        self.memory = memory
        self.engines = (ours, theirs)
        assert isinstance(memory.store, FileStore)
        self.refresher = Refresher(memory.store.tree, memory.layout, memory.settings.limits)

    def refresh(self) -> None:
        for index in self.engines:
            paths = self.refresher.changed(index, Refreshed())
            self.refresher.apply(index, paths, Refreshed())

    def compare(self, what: str, *given: object, **named: object) -> object:
        one, other = (getattr(index, what)(*given, **named) for index in self.engines)
        assert one == other, (what, given)
        return one


@pytest.fixture
def tenant(address: str) -> Iterator[Database]:
    opened = Database(address)
    yield opened
    opened.close()


@pytest.fixture
def both(memory: holdfast.Memory, tenant: Database) -> Iterator[Both]:
    search = Search(common_records=60)
    embedded = SqliteIndex(None, "test", search)
    with pytest.raises(Stale):
        PgIndex(tenant, "test", search).counts()
    shared = PgIndex(tenant, "test", search)
    with shared.rebuilding():
        pass
    yield Both(memory, embedded, shared)
    embedded.close()


def fill(memory: holdfast.Memory, chance: random.Random) -> None:
    """Keep something of every kind, with links, tags, pairs, keys, hidden and superseded records."""

    def said(count: int) -> str:
        return " ".join(chance.choices(WORDS, k=count))

    for name in ("alpha", "beta"):
        memory.call("createWorkspace", {"name": name, "description": said(4), "rootFolder": name, "purpose": said(3)})
    for number in range(25):
        memory.put("note", said(40), title=said(3), tags=(chance.choice(WORDS[:4]), "all"), scope="alpha")
        memory.put("decision", f"{said(20)} [[{chance.choice(WORDS[:6])}]]", title=f"{said(2)} {number}", scope="beta")
    for number in range(60):
        memory.put("message", said(15), session=f"s{number % 3}", fields={"role": "user", "sender_id": "ann o'neil"})
    for number in range(10):
        memory.put("fact", said(8), fields={"key": f"k{number % 4}"})
    found = list(memory.find("deploy", limit=5, kinds=("message",)))
    for hit in found:
        memory.hide(hit.record.id)
    memory.hide(found[0].record.id, restore=True)


def filters() -> list[Filter]:
    return [
        Filter(searchable=SEARCHABLE),
        Filter(searchable=SEARCHABLE, hidden=True),
        Filter(kinds=("note", "message")),
        Filter(searchable=SEARCHABLE, scope="alpha"),
        Filter(searchable=SEARCHABLE, scope="beta", above=True),
        Filter(searchable=SEARCHABLE, scope="alpha", shared=True),
        Filter(kinds=("message",), sessions=("s1",)),
        Filter(searchable=SEARCHABLE, tags=("all",)),
        Filter(searchable=SEARCHABLE, since="2030-01-01T00:00:00Z"),
        Filter(searchable=SEARCHABLE, until="2030-01-01T00:00:00Z", known="2030-01-01T00:00:00Z"),
    ]


def ask_everything(both: Both) -> None:
    """Put every question of the port to both."""
    for where in filters():
        for limit in (5, -1):
            both.compare("newest", where, limit)
        inside, theirs = (sorted(index.inside(where)) for index in both.engines)
        assert inside == theirs, where
        for question in QUESTIONS:
            terms = parse(question)
            both.compare("pools", terms, where, 20)
            one, other = (index.best(terms, where, 10) for index in both.engines)
            assert [record.id for record, _ in one] == [record.id for record, _ in other], question
            assert [score for _, score in one] == pytest.approx([score for _, score in other]), question
    every = both.engines[0].newest(Filter(searchable=SEARCHABLE, hidden=True), -1)
    for record in every[:: max(1, len(every) // 40)]:
        both.compare("by_id", record.id)
        for after in (True, False):
            both.compare("beside", record.path, record.order, 3, after=after)
        both.compare("last_order", record.path, record.id)
    both.compare("related", [record.id for record in every[::7]] + ["deploy", "nobody"], filters()[0], 5)
    for path in both.engines[0].seen():
        for what in ("records", "halves", "hidden_in"):
            both.compare(what, path)
        both.compare("count", path, "")
    rows = both.compare("rows", SEARCHABLE)
    assert isinstance(rows, list)
    both.compare("rows", SEARCHABLE, rows[len(rows) // 2])
    both.compare("passing", [(row, float(row % 3)) for row in rows], filters()[0])
    both.compare("load", rows[:10])
    for what in ("counts", "problem_count"):
        both.compare(what)
    assert sorted(map(str, both.engines[0].problems())) == sorted(map(str, both.engines[1].problems()))


def test_both_engines_answer_the_same(both: Both) -> None:
    chance = random.Random(7)
    fill(both.memory, chance)
    both.refresh()
    ask_everything(both)


def test_they_still_do_after_files_changed_came_and_went(both: Both, root: Path) -> None:
    chance = random.Random(8)
    fill(both.memory, chance)
    both.refresh()
    notes = sorted(root.glob("**/_notes/*.md"))
    notes[0].unlink()
    notes[1].write_text("# Rollback\n\nThe rollback of the database took an hour in 東京.\n", encoding="utf-8")
    log = next(root.glob("**/history.jsonl"))
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:5], b"not json\n", *lines[5:], lines[0]]))
    both.refresh()
    ask_everything(both)


def test_a_page_of_many_words_is_found_by_its_first_ones(both: Both, root: Path) -> None:
    folder = root / "resources/workspaces/alpha/_notes"
    folder.mkdir(parents=True)
    many = " ".join(f"word{number}" for number in range(120_000))
    (folder / "long.md").write_text(f"# A long page\n\nfirstword {many}\n", encoding="utf-8")
    both.refresh()
    for question in ("firstword", "word17", "long page"):
        both.compare("best", parse(question), filters()[0], 5) if question != "word17" else None
        assert [record.title for record, _ in both.engines[1].best(parse(question), filters()[0], 5)] == ["long"]


def test_keys_that_no_index_of_a_database_takes_are_kept_and_found(both: Both) -> None:
    long = "k" * 5_000
    receipt = both.memory.put("fact", "a fact with a long key", fields={"key": long})
    both.memory.put("fact", "another fact with it", fields={"key": long})
    both.refresh()
    path = path_of(receipt.path)
    both.compare("by_key", path, long)
    both.compare("by_key", path, long, history=True)


def test_a_rebuilt_index_takes_the_place_of_the_old_one_and_leaves_nothing(both: Both, tenant: Database) -> None:
    fill(both.memory, random.Random(9))
    both.refresh()
    shared = both.engines[1]
    before = shared.generation()
    with shared.rebuilding() as fresh:
        both.refresher.apply(fresh, list(both.refresher.walk(Refreshed())), Refreshed())
        assert shared.generation() == before
    assert shared.generation() not in ("", before)
    ask_everything(both)
    held = tenant.run("test", lambda turn: turn.rows(OF_TEST))
    assert [str(number) for (number,) in held] == [shared.generation()]


def test_a_rebuild_that_fails_changes_nothing(both: Both) -> None:
    fill(both.memory, random.Random(10))
    both.refresh()
    before = both.engines[1].generation()

    def fail() -> None:
        with both.engines[1].rebuilding() as fresh:
            both.refresher.apply(fresh, list(both.refresher.walk(Refreshed()))[:3], Refreshed())
            raise KeyError("stop")

    with pytest.raises(KeyError):
        fail()
    assert both.engines[1].generation() == before
    ask_everything(both)


def test_a_rebuild_that_lost_its_turn_is_told_so_and_takes_no_place(both: Both, tenant: Database) -> None:
    """The lock of a rebuild is that of a connection, which may be cut while the rebuild goes on."""
    fill(both.memory, random.Random(12))
    both.refresh()
    shared = both.engines[1]
    paths = list(both.refresher.walk(Refreshed()))

    def overtaken() -> None:
        with shared.rebuilding() as slow:
            both.refresher.apply(slow, paths, Refreshed())
            with shared.rebuilding() as quick:
                both.refresher.apply(quick, paths, Refreshed())

    with pytest.raises(Busy, match="rebuilt the index meanwhile"):
        overtaken()
    ask_everything(both)
    held = tenant.run("test", lambda turn: turn.rows(OF_TEST))
    assert [str(number) for (number,) in held] == [shared.generation()]


def test_a_memory_in_a_database_verifies_and_notices_a_tampered_index(address: str, tenant: Database) -> None:
    with holdfast.open(address) as memory:
        fill(memory, random.Random(11))
        assert memory.verify().sound
        tenant.run(
            "test",
            lambda turn: turn.change(
                "DELETE FROM holdfast.index_terms WHERE term = (SELECT min(term) FROM holdfast.index_terms WHERE held > 0)"
            ),
            writes=True,
        )
        assert not memory.verify().sound
        memory.refresh(rebuild=True)
        assert memory.verify().sound


def asked(memory: holdfast.Memory) -> list[list[tuple[str, float, str]]]:
    return [
        [(hit.record.id, hit.score, hit.record.text) for hit in memory.find(question, hidden=True, limit=100)]
        for question in ("", *QUESTIONS)
    ]


def assert_noticed(address: str, expected: list[list[tuple[str, float, str]]]) -> None:
    """No call fails; answers are right, or become so, or the memory says that its index is not; a rebuild helps."""
    with holdfast.open(address) as memory:
        if asked(memory) != expected and asked(memory) != expected:  # a later question may notice it, and mend it
            assert not memory.verify().sound
            memory.refresh(rebuild=True)
            assert asked(memory) == expected
        memory.verify()


@pytest.mark.parametrize("table", TABLES)
def test_an_index_that_lost_the_rows_of_a_table_is_noticed(address: str, tenant: Database, table: str) -> None:
    with holdfast.open(address) as memory:
        fill(memory, random.Random(12))
        expected = asked(memory)
    lose = f"DELETE FROM holdfast.{table} WHERE tenant = %(tenant)s"
    tenant.run("test", lambda turn: turn.change(lose), writes=True)
    assert_noticed(address, expected)


FLIPPED: dict[str, LiteralString] = {
    "record": "UPDATE holdfast.index_records SET record = set_byte(record, %(at)s %% length(record), %(byte)s)",
    "seen": "UPDATE holdfast.index_files SET seen = set_byte(seen, %(at)s %% length(seen), %(byte)s)",
    "words": "UPDATE holdfast.index_words SET words = strip(words)",
    "numbers": "UPDATE holdfast.index_records SET row = row + 1000, file = file + 1000",
    "sums": "UPDATE holdfast.index_generations SET records = 0, length = 0",
    "next": "UPDATE holdfast.index_generations SET next_row = 1, next_file = 1",
    "state": "UPDATE holdfast.index_generations SET state = 'garbage', mark = 'garbage'",
}


def change(tenant: Database, what: str, at: int, byte: int) -> None:
    tenant.run("test", lambda turn: turn.change(FLIPPED[what], at=at, byte=byte), writes=True)


@pytest.mark.parametrize("what", FLIPPED)
def test_an_index_with_changed_rows_never_fails_a_call(address: str, tenant: Database, what: str) -> None:
    dice = random.Random(13)
    with holdfast.open(address) as memory:
        fill(memory, random.Random(13))
        expected = asked(memory)
    for at in (0, 1, *(dice.randrange(200) for _ in range(4))):
        change(tenant, what, at, dice.randrange(256))
        assert_noticed(address, expected)


@pytest.mark.parametrize("what", ["record", "seen", "state", "next"])
def test_what_is_written_beside_a_damaged_index_is_kept_and_found(address: str, tenant: Database, what: str) -> None:
    with holdfast.open(address) as memory:
        note = memory.put("note", "about marble", title="Stone")
        memory.put("fact", "grey", fields={"key": "colour"})
        assert memory.find("marble").hits
        change(tenant, what, 0, 7)
        memory.put("fact", "white", fields={"key": "colour"}, op_id="once")
        memory.put(id=note.id, text="about basalt", expect=note.version)
        memory.put("episode", "we met basalt", session="s")
        assert memory.put("fact", "white", fields={"key": "colour"}, op_id="once").status == "repeated"
        assert {hit.record.text for hit in memory.find("basalt")} == {"about basalt", "we met basalt"}
        assert [hit.record.text for hit in memory.find("colour")] == ["white"]
        memory.refresh(rebuild=True)
        assert memory.verify().sound
