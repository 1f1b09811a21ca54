"""Vectors in a database: the same answers as from a file, whoever else adds, removes or goes away."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
import pgserver
from holdfast import Memory
from holdfast.errors import Unavailable
from holdfast.recall import embedders
from holdfast.roots import make_root
from holdfast.storage.files.engine import FileEngine
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.schema import READER, WRITER

if not embedders.is_installed("semantic"):
    pytest.skip("the extra semantic is not installed", allow_module_level=True)

import numpy

from holdfast.recall import models
from holdfast.recall.embedders import NoVectors
from holdfast.storage.files.vectors import RESCORED, FileVectors
from holdfast.storage.postgres import vectors as on_database
from holdfast.storage.postgres.vectors import PgVectors

PASSWORD = "some-password"
ASKED = "kitten napping couch"
QUESTIONS = (ASKED, "when do we ship the software?", "automobile repairs in Lisbon", "granite 7")
Numbers = Any


class Model:
    """As much of an embedder as vectors need to know."""

    name, at_once, near = "invented", 1_000, 0.3

    def __init__(self, size: int = 256, version: str = "1") -> None:
        self.size, self.version = size, version

    def texts(self, texts: Any) -> Any:
        raise NotImplementedError

    def question(self, text: str, words: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A memory in files, to compare with."""
    folder = tmp_path.resolve() / "root"
    make_root(str(folder))
    return folder


@pytest.fixture
def base(address: str) -> Iterator[Database]:
    database = Database(address)
    if database.no_vectors:
        pytest.skip(f"HOLDFAST_TEST_DSN: {database.no_vectors}")
    yield database
    database.close()


def random(count: int, size: int = 256, seed: int = 1) -> Numbers:
    return numpy.random.default_rng(seed).normal(size=(count, size)).astype(numpy.float32)


def both(base: Database, given: Numbers, model: Model, generation: str = "g") -> tuple[PgVectors, FileVectors]:
    """Return the same vectors in a database and in memory; the rows are 1, 2, 3, …"""
    found = PgVectors(base, model, generation), FileVectors(None, model, generation)
    rows = list(range(1, len(given) + 1))
    for one in found:
        one.read_on()
        one.add(rows, [row * 7 for row in rows], list(one.small(given)))
        one.read_on()
    return found


def count(base: Database, table: str = "vectors") -> int:
    return int(base.run("count", lambda turn: turn.row(f"SELECT count(*) FROM holdfast.{table}"))[0])  # type: ignore[index]


# the same answers


@pytest.mark.parametrize("size", [256, 384])
@pytest.mark.parametrize("many", [1, 3, RESCORED, RESCORED + 1, 3_000])
def test_the_nearest_are_those_of_the_other_engine_to_the_last_bit(base: Database, many: int, size: int) -> None:
    given = random(many, size)
    pg, file = both(base, given, Model(size))
    assert len(pg) == len(file) == many
    for number, question in enumerate(random(8, size, seed=2)):
        mixed = question + given[number % many]
        assert sorted(pg.nearest(mixed)) == sorted(file.nearest(mixed))
        some = [row for row in range(1, many + 3) if row % 3]
        assert sorted(pg.nearest(mixed, some)) == sorted(file.nearest(mixed, some))
        rows = [row for row in range(1, many + 3) if row % 2]
        marks = [row * 7 if row % 5 else 1 for row in rows]
        assert pg.nearness(rows, marks, mixed) == file.nearness(rows, marks, mixed)


def test_a_group_of_equals_is_never_cut(base: Database) -> None:
    given = random(3_000)
    given[::2] = given[0]
    pg, file = both(base, given, Model())
    found = pg.nearest(given[0])
    assert sorted(found) == sorted(file.nearest(given[0]))
    assert len(found) == 1_500


def test_a_bound_that_lets_too_few_pass_is_given_up(base: Database) -> None:
    given = random(2_000)
    pg, file = both(base, given, Model())
    pg.doubted = True
    pg.read_on()
    assert len(pg._sample)
    for question in given[:3]:
        pg._sample = numpy.tile(on_database._code(pg.small(question[None, :])).view(numpy.uint64), (50, 1))
        assert sorted(pg.nearest(question)) == sorted(file.nearest(question))
        assert not pg.doubted


def test_nothing_is_near_in_an_empty_set(base: Database) -> None:
    pg = PgVectors(base, Model(), "g")
    pg.read_on()
    question = random(1)[0]
    assert pg.nearest(question) == []
    assert pg.nearest(question, [1, 2]) == []
    assert pg.nearness([1], [7], question) == [None]
    assert pg.missing([3, 1]) == [3, 1]
    assert pg.earlier([7]) == [None]
    assert (len(pg), pg.bytes_on_disk()) == (0, 0)
    pg.keep_only([])
    pg.tidy()


def test_a_row_of_other_content_has_no_nearness_until_it_is_made_anew(base: Database) -> None:
    given = random(2)
    pg, _ = both(base, given, Model())
    question = random(1, seed=5)[0]
    assert pg.nearness([1, 2], [7, 99], question)[1] is None
    pg.add([2], [99], [pg.small(given[:1])[0]])
    first, second = pg.nearness([1, 2], [7, 99], question)
    assert first == second is not None
    assert dict(pg.nearest(question))[2] == second


# others


def test_what_others_added_is_there_at_the_next_question(base: Database, address: str) -> None:
    given = random(20)
    pg, _ = both(base, given, Model())
    other_base = Database(address)
    other = PgVectors(other_base, Model(), "g")
    other.read_on()
    assert other.missing(range(1, 25)) == [21, 22, 23, 24]
    pg.add([21, 22], [1, 2], list(pg.small(random(2, seed=9))))
    assert other.missing(range(1, 25)) == [23, 24]
    assert len(other.nearest(given[0])) == 22
    other_base.close()


def _add(address: str, seed: int) -> None:
    base = Database(address)
    pg = PgVectors(base, Model(), "g")
    given = pg.small(random(400))
    order = numpy.random.default_rng(seed).permutation(400)
    for start in range(0, 400, 40):
        part = order[start : start + 40].tolist()
        pg.add([number + 1 for number in part], [(number + 1) * 7 for number in part], [given[n] for n in part])
    base.close()


def test_processes_that_add_the_same_rows_at_the_same_time_add_them_once(base: Database, address: str) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_add, args=(address, seed)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    pg, file = PgVectors(base, Model(), "g"), FileVectors(None, Model(), "g")
    pg.read_on()
    file.add(range(1, 401), [row * 7 for row in range(1, 401)], list(file.small(random(400))))
    question = random(1, seed=4)[0]
    assert sorted(pg.nearest(question)) == sorted(file.nearest(question))
    assert (count(base), count(base, "vector_codes"), count(base, "vector_sets")) == (400, 400, 1)


ADDING = """
import sys, numpy
sys.path.insert(0, sys.argv[2])
from test_postgres_vectors import Model, random
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.vectors import PgVectors
pg = PgVectors(Database(sys.argv[1]), Model(), "g")
given = pg.small(random(500))
print("ready", flush=True)
for start in range(0, 10_000_000, 500):
    pg.add(range(start + 1, start + 501), range(1, 501), list(given))
"""


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.2])
def test_whoever_is_killed_while_adding_leaves_codes_and_vectors_in_pairs(
    base: Database, address: str, moment: float
) -> None:
    command = [sys.executable, "-c", ADDING, address, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(moment)
        process.send_signal(signal.SIGKILL)
    pg = PgVectors(base, Model(), "g")
    pg.read_on()
    assert count(base) == count(base, "vector_codes") == len(pg)
    assert len(pg) % 500 == 0
    pg.add([1], [7], list(pg.small(random(1))))  # and holds no lock


def test_rows_that_others_removed_are_looked_for_again(base: Database) -> None:
    pg, _ = both(base, random(50), Model())
    question = random(1, seed=4)[0]
    on_database.remove_all(base)
    assert pg.missing(range(1, 51)) == []
    assert pg.nearest(question) == []
    assert pg.doubted
    assert pg.read_on()
    assert pg.missing(range(1, 51)) == list(range(1, 51))


def test_a_code_without_its_vector_is_made_anew(base: Database) -> None:
    pg, file = both(base, random(50), Model())
    base.run("x", lambda turn: turn.change("DELETE FROM holdfast.vectors WHERE row IN (3, 4)"), writes=True)
    question = random(1, seed=4)[0]
    assert len(pg.nearest(question)) == 48
    assert pg.doubted
    assert pg.read_on()
    assert pg.missing(range(1, 51)) == [3, 4]
    pg.add([3, 4], [21, 28], list(pg.small(random(50)[2:4])))
    assert sorted(pg.nearest(question)) == sorted(file.nearest(question))


def test_another_tenant_has_vectors_of_its_own(base: Database, server: pgserver.Server, database: str) -> None:
    pg, file = both(base, random(50), Model())
    other_base = Database(server.at(database, tenant=f"other-{secrets.token_hex(4)}"))
    other = PgVectors(other_base, Model(), "g")
    other.read_on()
    question = random(1, seed=4)[0]
    assert other.missing([1, 2]) == [1, 2]
    assert other.nearest(question) == other.nearest(question, [1, 2]) == []
    assert other.nearness([1], [7], question) == [None]
    assert PgVectors(other_base, Model(), "h").earlier([7]) == [None]
    other.add([1], [7], list(other.small(random(1, seed=8))))
    other.keep_only([])
    on_database.remove_all(other_base)
    assert sorted(pg.nearest(question)) == sorted(file.nearest(question))
    other_base.close()


# removing


def test_vectors_of_rows_that_are_gone_are_removed_and_those_that_came_since_stay(base: Database, address: str) -> None:
    pg, _ = both(base, random(50), Model())
    other_base = Database(address)
    PgVectors(other_base, Model(), "g").add([60], [1], list(pg.small(random(1, seed=6))))
    pg.keep_only(range(1, 11))
    assert len(pg) == 11
    assert pg.missing([10, 11, 60]) == [11]
    assert count(base) == count(base, "vector_codes") == 11
    other_base.close()


def test_a_rebuilt_index_takes_over_the_vectors_of_the_same_texts(base: Database) -> None:
    given = random(50)
    both(base, given, Model())
    later = PgVectors(base, Model(), "h")
    later.read_on()
    assert later.missing([1, 2]) == [1, 2]
    taken = later.earlier([7, 99, 350])
    assert taken[1] is None
    assert numpy.array_equal(taken[0], later.small(given[:1])[0])  # type: ignore[arg-type]
    assert numpy.array_equal(taken[2], later.small(given[49:])[0])  # type: ignore[arg-type]
    later.add([1], [350], [taken[2]])
    later.tidy()
    assert count(base, "vector_sets") == 2  # the index of before may be that of a program in another time zone
    PgVectors(base, Model(), "h", lambda: ["g", "h"]).tidy()
    assert count(base, "vector_sets") == 2
    PgVectors(base, Model(), "h", lambda: ["h"]).tidy()
    assert (count(base), count(base, "vector_codes"), count(base, "vector_sets")) == (1, 1, 1)


def test_whoever_uses_a_set_says_so_now_and_then(base: Database) -> None:
    both(base, random(5), Model())
    old = "UPDATE holdfast.vector_sets SET used = used - interval '8 days'"
    base.run("x", lambda turn: turn.change(old), writes=True)
    PgVectors(base, Model(), "g").read_on()
    PgVectors(base, Model(), "h").tidy()
    assert count(base, "vector_sets") == 1


def test_another_version_of_a_model_is_neither_used_nor_removed_while_others_use_it(base: Database) -> None:
    both(base, random(5), Model(version="1"))
    newer = PgVectors(base, Model(version="2"), "g")
    newer.read_on()
    assert newer.earlier([7]) == [None]
    newer.add([1], [7], list(newer.small(random(1))))
    newer.tidy()
    assert count(base, "vector_sets") == 2
    old = "UPDATE holdfast.vector_sets SET used = used - interval '8 days' WHERE version = '1'"
    base.run("x", lambda turn: turn.change(old), writes=True)
    newer.tidy()
    assert (count(base), count(base, "vector_codes"), count(base, "vector_sets")) == (1, 1, 1)


def test_what_was_removed_while_somebody_adds_to_it_is_listed_again(base: Database) -> None:
    pg, _ = both(base, random(5), Model())
    PgVectors(base, Model(), "h", lambda: ["h"]).tidy()
    assert count(base, "vector_sets") == 0
    pg.add([9], [1], list(pg.small(random(1))))
    assert count(base, "vector_sets") == 1


# who may only read


def test_a_login_that_may_only_read_keeps_what_it_makes_to_itself(
    base: Database, server: pgserver.Server, database: str, address: str
) -> None:
    given = random(1_700)
    _, file = both(base, given[:1_600], Model())
    login = f"reader_{secrets.token_hex(4)}"
    server.run(f"CREATE ROLE {login} LOGIN PASSWORD '{PASSWORD}'")
    server.run(f"GRANT {READER} TO {login}")
    tenant = address.partition("tenant=")[2]
    reading = Database(server.at(database, user=login, password=PASSWORD, tenant=tenant))
    try:
        mine = PgVectors(reading, Model(), "g")
        mine.read_on()
        assert mine.missing([1_600, 1_601]) == [1_601]
        rows = list(range(1_601, 1_701))
        for one in (mine, file):
            one.add(rows, [row * 7 for row in rows], list(one.small(given[1_600:])))
        assert mine.missing(range(1, 1_701)) == []
        question = given[1_650] + given[3]
        everything = list(range(1, 1_701))
        marks = [row * 7 for row in everything]
        assert set(file.nearest(question)) <= set(mine.nearest(question))
        assert mine.nearness(everything, marks, question) == file.nearness(everything, marks, question)
        mine.keep_only([1])
        mine.tidy()
        assert count(base) == 1_600
    finally:
        reading.close()
        server.run(f"REVOKE {READER} FROM {login}")
        server.run(f"DROP ROLE {login}")


# a whole memory


def fill(memory: Memory) -> None:
    memory.put("note", "The cat sleeps on the sofa all day.", title="Animals")
    memory.put("note", "We deploy the program on Tuesdays.", title="Releases")
    memory.put("fact", "Doctor Moreira", fields={"key": "who treats headaches"})
    memory.put("episode", "The car was mended in Portugal.", session="trip")
    for number in range(30):
        memory.put("episode", f"granite and quartz, sample {number}", session="stones")


def answers(memory: Memory) -> list[list[tuple[str, float]]]:
    return [
        [(hit.record.id, hit.score) for hit in memory.find(text, associate=True, **given)]
        for text in QUESTIONS
        for given in ({}, {"kinds": ("note",)})
    ]


@pytest.fixture
def semantic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SEARCH_EMBEDDER", "semantic")


@pytest.fixture
def keep_there(base: Database, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have memories in files keep their vectors in the database: all else is then the same."""

    def switch() -> None:
        monkeypatch.setattr(FileEngine, "vectors", vectors)

    def vectors(engine: FileEngine, model: Model, generation: str) -> PgVectors:
        return PgVectors(base, model, generation, lambda: [engine.index.generation()])

    return switch


@pytest.mark.usefixtures("semantic")
def test_recall_by_meaning_is_the_same_with_vectors_in_a_database(
    root: Path, base: Database, keep_there: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open(root) as memory:
        fill(memory)
        expected = answers(memory)
    assert expected[0]
    keep_there()
    with holdfast.open(root) as memory:
        assert answers(memory) == expected
        told = memory.embedded()
        assert (told.vectors, told.missing) == (34, 0)
        assert told.bytes > 34 * 256
    made: list[str] = []
    real = models.WordVectors.texts

    def noted(self: models.WordVectors, texts: Any) -> Any:
        made.extend(texts)
        return real(self, texts)

    monkeypatch.setattr(models.WordVectors, "texts", noted)
    with holdfast.open(root) as memory:
        memory.refresh(rebuild=True)
        assert answers(memory) == expected
        assert made == []
        assert count(base) == 34
        on_database.remove_all(base)
        assert answers(memory) == expected
        assert len(made) == 34


@pytest.mark.usefixtures("semantic")
def test_records_that_come_change_and_go_are_found_by_what_they_say_now(
    root: Path, base: Database, keep_there: Callable[[], None]
) -> None:
    keep_there()
    with holdfast.open(root) as memory, holdfast.open(root) as other:
        fill(memory)
        pets = memory.find(ASKED, associate=True).hits[0].record.id
        memory.hide(pets)
        assert all(hit.record.id != pets for hit in other.find(ASKED, associate=True))
        memory.hide(pets, restore=True)
        text = (
            (root / pets).read_text().replace("The cat sleeps on the sofa all day.", "It was wet and stormy outside.")
        )
        (root / pets).write_text(text)
        assert other.find("rainy weather", associate=True).hits[0].record.id == pets
        assert all(hit.record.id != pets for hit in memory.find(ASKED, associate=True))
        (root / pets).unlink()
        assert not memory.find("rainy weather", associate=True).hits
    with holdfast.open(root) as memory:
        assert memory.embed().vectors == 33
        assert count(base) == 33


@pytest.mark.usefixtures("semantic")
def test_a_memory_in_a_database_recalls_by_meaning_what_one_in_files_does(root: Path, address: str) -> None:
    told = []
    for place in (root, address):
        with holdfast.open(place) as memory:
            fill(memory)
            told.append([[hit.record.text for hit in memory.find(text, associate=True)] for text in QUESTIONS])
            assert memory.embedded().missing == 0
    assert told[0] == told[1]
    assert told[0][0] == ["The cat sleeps on the sofa all day."]


@pytest.mark.usefixtures("semantic")
def test_programs_that_share_a_memory_share_its_vectors(
    address: str, base: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open(address) as memory:
        fill(memory)
        expected = answers(memory)
        assert count(base) == 34

        def refuse(*_: object) -> None:
            raise AssertionError("a vector was made twice")

        with holdfast.open(address) as other, monkeypatch.context() as patched:
            patched.setattr(
                models.WordVectors, "texts", lambda _, texts: numpy.zeros((0, 256)) if not texts else refuse()
            )
            assert answers(other) == expected
            other.refresh(rebuild=True)
            assert answers(other) == expected
        memory.put("note", "It was wet, cold and stormy outside.", title="Sky")
        assert memory.find("rainy weather", associate=True).hits[0].record.title == "Sky"
        assert count(base) == 35
        assert count(base, "vector_sets") == 1


@pytest.mark.usefixtures("semantic")
def test_what_is_forgotten_leaves_no_vector_and_the_others_are_made_again(address: str, base: Database) -> None:
    with holdfast.open(address) as memory, holdfast.open(address) as other:
        fill(memory)
        pets = memory.find(ASKED, associate=True).hits[0].record.id
        assert other.find(ASKED, associate=True).hits
        before = base.run("marks", lambda turn: turn.rows("SELECT DISTINCT mark FROM holdfast.vectors"))
        memory.forget(pets, yes=True)
        assert count(base) == count(base, "vector_codes") == 0
        for one in (other, memory):
            assert not one.find(ASKED, associate=True).hits
            assert one.find("automobile repairs in Lisbon", associate=True).hits
        after = base.run("marks", lambda turn: turn.rows("SELECT DISTINCT mark FROM holdfast.vectors"))
        assert len(set(before) - set(after)) == 1
        assert count(base, "vector_sets") == 1


DAMAGE = {
    "a part of the vectors is gone": "DELETE FROM holdfast.vectors WHERE row %% 3 = 0",
    "a part of the codes is gone": "DELETE FROM holdfast.vector_codes WHERE row %% 3 = 0",
    "the set is not listed": "DELETE FROM holdfast.vector_sets",
    "vectors are too short": "UPDATE holdfast.vectors SET vector = substring(vector FROM 1 FOR 17) WHERE row %% 2 = 0",
    "vectors are of other texts": "UPDATE holdfast.vectors SET mark = mark + 1 WHERE row %% 2 = 0",
}


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.usefixtures("semantic")
def test_whatever_becomes_of_the_vectors_the_answers_stay(
    address: str, base: Database, damage: str, reopened: bool
) -> None:
    with holdfast.open(address) as memory:
        fill(memory)
        expected = answers(memory)
        assert expected[0]
        statement: Any = DAMAGE[damage]
        assert base.run("x", lambda turn: turn.change(statement), writes=True)
        if not reopened:
            assert answers(memory) == expected
    with holdfast.open(address) as memory:
        assert answers(memory) == expected
        assert memory.embed().missing == 0


@pytest.mark.usefixtures("semantic")
def test_programs_of_two_time_zones_keep_their_vectors_apart_and_take_them_from_each_other(
    address: str, base: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[list[tuple[str, float]]]] = []
    for zone in ("Europe/Berlin", "America/Lima", "Europe/Berlin"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        with holdfast.open(address) as memory:
            if not told:
                fill(memory)
            told.append(answers(memory))
        assert count(base, "vector_sets") == min(len(told), 2)
    monkeypatch.undo()
    time.tzset()
    assert told[0] == told[1] == told[2]


# the extension


@pytest.fixture(scope="module")
def bare() -> Iterator[pgserver.Server]:
    """A server that has no pgvector."""
    with pgserver.private(lacking="vector") as running:
        yield running


def status(address: str, *command: str) -> Any:
    run = subprocess.run(
        [sys.executable, "-m", "holdfast", *command, "--root", address, "--json"],
        capture_output=True, text=True, env={**os.environ, "HOLDFAST_SEARCH_EMBEDDER": "semantic"}, check=True,
    )  # fmt: skip
    return json.loads(run.stdout)


@pytest.mark.usefixtures("semantic")
def test_without_the_extension_words_are_all_there_is_and_it_is_said_how_to_get_it(bare: pgserver.Server) -> None:
    with bare.database() as name:
        with holdfast.open(bare.at(name)) as memory:
            fill(memory)
            assert not memory.find(ASKED, associate=True).hits
            assert memory.find("granite", associate=True).hits
            assert memory.embedder == ""
            with pytest.raises(NoVectors, match="does not have the extension vector") as caught:
                memory.embed()
            assert "pgvector" in caught.value.next_step
            assert "CREATE EXTENSION vector;" in caught.value.next_step
            assert "extension vector" in memory.stats()["words_alone"]
        told = status(bare.at(name), "embed", "--status")
        assert told["embedder"] == ""
        major = str(bare.run("SHOW server_version_num")[0][0])[:2]
        assert f"postgresql-{major}-pgvector" in told["problem"]
        assert "pgvector" in status(bare.at(name), "stats")["words_alone"]


@pytest.mark.usefixtures("semantic")
def test_where_no_embedder_is_wanted_nothing_is_said_of_the_extension(
    bare: pgserver.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SEARCH_EMBEDDER", "none")
    with bare.database() as name, holdfast.open(bare.at(name)) as memory:
        assert memory.embedded().problem == ""
        assert "words_alone" not in memory.stats()
        with pytest.raises(Unavailable, match="No embedder is to be used"):
            memory.embed()


def test_an_extension_that_appears_later_is_used_from_the_next_opening_on(bare: pgserver.Server) -> None:
    assert bare.extensions is not None
    with bare.database() as name:
        before = Database(bare.at(name))
        assert before.no_vectors is not None
        before.close()
        pgserver.show(bare.extensions, "vector")
        try:
            after = Database(bare.at(name))
            assert after.no_vectors is None
            pg, file = both(after, random(20), Model())
            assert sorted(pg.nearest(random(1)[0])) == sorted(file.nearest(random(1)[0]))
            after.close()
        finally:
            pgserver.hide(bare.extensions, "vector")


def test_an_extension_that_is_too_old_is_named(bare: pgserver.Server) -> None:
    assert bare.extensions is not None
    control, script = bare.extensions / "vector.control", bare.extensions / "vector--0.5.1.sql"
    control.write_text("default_version = '0.5.1'\n")
    script.write_text("SELECT 1;\n")
    try:
        with bare.database() as name:
            found = Database(bare.at(name))
            found.close()
    finally:
        control.unlink()
        script.unlink()
    assert found.no_vectors is not None
    assert "0.5.1" in found.no_vectors.message
    assert "ALTER EXTENSION vector UPDATE" in found.no_vectors.next_step


@pytest.fixture
def login(server: pgserver.Server) -> Iterator[str]:
    name = f"login_{secrets.token_hex(4)}"
    server.run(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")
    yield name
    server.run(f"DROP OWNED BY {name}")
    server.run(f"DROP ROLE {name}")


def test_a_login_that_may_not_add_the_extension_says_who_may(server: pgserver.Server, login: str) -> None:
    with server.database() as name:
        Database(server.at(name)).close()
        server.run("DROP FUNCTION holdfast.apart; DROP EXTENSION vector", name)
        server.run(f"GRANT {WRITER} TO {login}")
        mine = server.at(name, user=login, password=PASSWORD)
        found = Database(mine)
        found.close()
        assert found.no_vectors is not None
        assert "CREATE EXTENSION vector;" in found.no_vectors.next_step
        server.run("CREATE EXTENSION vector", name)
        found = Database(mine)
        found.close()
        assert found.no_vectors is not None
        assert "holdfast_owner" in found.no_vectors.next_step
        Database(server.at(name)).close()
        found = Database(mine)
        assert found.no_vectors is None
        pg, file = both(found, random(20), Model())
        assert sorted(pg.nearest(random(1)[0])) == sorted(file.nearest(random(1)[0]))
        found.close()


def test_an_extension_in_a_schema_of_its_own_is_found(server: pgserver.Server) -> None:
    with server.database() as name:
        server.run("CREATE SCHEMA elsewhere; GRANT USAGE ON SCHEMA elsewhere TO PUBLIC", name)
        server.run("CREATE EXTENSION vector SCHEMA elsewhere", name)
        found = Database(server.at(name))
        pg, file = both(found, random(20), Model())
        assert sorted(pg.nearest(random(1)[0])) == sorted(file.nearest(random(1)[0]))
        found.close()


@pytest.mark.usefixtures("semantic")
def test_an_extension_that_is_removed_under_an_open_memory_leaves_the_words(
    server: pgserver.Server, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.database() as name:
        base = Database(server.at(name))
        monkeypatch.setattr(FileEngine, "vectors", lambda _, model, generation: PgVectors(base, model, generation))
        with holdfast.open(root) as memory:
            fill(memory)
            assert memory.find(ASKED, associate=True).hits
            server.run("DROP EXTENSION vector CASCADE", name)
            assert not memory.find(ASKED, associate=True).hits
            assert memory.find("granite", associate=True).hits
            assert "CREATE EXTENSION vector" in memory.embedded().problem
        again = Database(server.at(name))
        assert again.no_vectors is None
        again.close()
        base.close()


# how it is asked


def test_the_nearest_are_found_by_one_scan_of_the_codes_of_one_partition(base: Database) -> None:
    pg, _ = both(base, random(2_000), Model())
    code = on_database._text(on_database._code(pg.small(random(1, seed=4))))[0]
    given = {"set": pg._set, "most": RESCORED + 1, "code": code, "bound": 110}

    def plan(turn: Any) -> str:
        return "\n".join(row[0] for row in turn.rows("EXPLAIN " + on_database._NEAREST, **given))

    told = base.run("plan", plan)
    assert "<~>" in told  # the function is part of the plan, not called for every row
    assert len(set(re.findall(r" on (vector_codes_\d\d)", told))) == 1
    assert "Workers" not in told
