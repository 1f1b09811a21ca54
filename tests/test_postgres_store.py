"""Properties of the row engine: clocks, words, large texts, exports, poolers, vectors."""

from __future__ import annotations

import contextlib
import json
import random
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

import holdfast
import pgserver
from holdfast.errors import HoldfastError
from holdfast.model import times
from holdfast.model.records import Record, Scope
from holdfast.recall import embedders
from holdfast.roots import make_root, set_up
from holdfast.storage.postgres import rows, search
from holdfast.storage.postgres.rows import Lexemes
from holdfast.storage.postgres.store import PgStore
from holdfast.storage.tree import ABSENT
from holdfast.storage.words import stems, words_of

CLONE = Path(__file__).resolve().parent.parent
FACTS = "user/memory/semantic.jsonl"
HISTORY = "user/memory/history.jsonl"
YEAR_NS = 365 * 24 * 3600 * 1_000_000_000


def tenant_of(address: str) -> str:
    return address.rpartition("tenant=")[2]


# clocks

SHIFTED = """
import sys, time
shift, real = int(sys.argv[2]), time.time_ns
time.time_ns = lambda: real() + shift
import holdfast
with holdfast.open(sys.argv[1]) as memory:
    for word in sys.argv[3:]:
        work, _, rest = word.partition(":")
        if work == "fact":
            memory.put("fact", rest, fields={"key": "k"})
        elif work == "say":
            memory.put("message", rest, fields={"role": "user", "channel": "cli"})
        elif work == "hide":
            memory.hide(next(record.id for record in memory.tail("message", 99) if record.text == rest))
        elif work == "show":
            found = memory.find(rest, kinds=("message",), hidden=True)
            memory.hide(next(hit.record.id for hit in found if hit.record.text == rest), restore=True)
"""


def shifted(address: str, shift: int, *work: str) -> None:
    subprocess.run([sys.executable, "-c", SHIFTED, address, str(shift), *work], check=True, timeout=120)


@pytest.mark.parametrize("first", [YEAR_NS, -YEAR_NS])
def test_the_clock_of_a_program_may_be_a_year_off(address: str, first: int) -> None:
    shifted(address, 0, "fact:one", "say:a")
    shifted(address, first, "fact:two", "say:b", "say:secret", "hide:secret")
    shifted(address, 0, "fact:three", "say:c")
    shifted(address, -first, "fact:four", "say:d", "show:secret", "hide:c")
    shifted(address, 0, "say:e")
    with holdfast.open(address) as memory:
        assert [record.text for record in memory.store.by_key(FACTS, "k")] == ["four"]
        assert [record.text for record in memory.store.by_key(FACTS, "k", history=True)] == [
            "one",
            "two",
            "three",
            "four",
        ]
        assert [record.text for record in memory.tail("message", 9)] == ["a", "b", "secret", "d", "e"]
        assert [one.content for one in memory.chat.load_history(2)] == ["d", "e"]
        memory.put("fact", "five", fields={"key": "k"})
        assert [hit.record.text for hit in memory.find("", kinds=("fact",))] == ["five"]
        assert memory.verify().sound


@pytest.mark.parametrize("op_id", ["", "once"])
def test_a_fact_from_elsewhere_with_a_later_id_is_replaced_by_a_new_one(address: str, op_id: str) -> None:
    later = times.derived_id(times.now_ms() + 365 * 86_400_000, b"later")
    with holdfast.open(address) as memory:
        memory.store.import_entries(FACTS, [{"id": later, "key": "k", "value": "from a clock ahead"}])
        written = memory.put("fact", "now", fields={"key": "k"}, op_id=op_id)
        assert written.id > later
        assert [record.text for record in memory.store.by_key(FACTS, "k")] == ["now"]
        memory.hide(written.id)
        assert not memory.find("", kinds=("fact",)).hits
        memory.hide(written.id, restore=True)
        assert len(memory.find("", kinds=("fact",)).hits) == 1


# sizes


def test_ten_thousand_values_of_one_key_leave_one_current(address: str) -> None:
    start = times.now_ms() - 100_000
    entries = [{"id": times.derived_id(start + n, b"%d" % n), "key": "k", "value": f"value {n}"} for n in range(10_000)]
    with holdfast.open(address) as memory:
        shuffled = random.Random(1).sample(entries, len(entries))
        assert memory.store.import_entries(FACTS, shuffled) == 10_000
        assert [record.text for record in memory.store.by_key(FACTS, "k")] == ["value 9999"]
        begin = time.perf_counter()
        for number in range(20):
            memory.put("fact", f"new {number}", fields={"key": "k"})
        assert time.perf_counter() - begin < 5
        assert [hit.record.text for hit in memory.find("value new", kinds=("fact",))] == ["new 19"]
        history = memory.store.by_key(FACTS, "k", history=True)
        assert len(history) == 10_020
        assert [record.text for record in history[:2]] == ["value 0", "value 1"]
        assert memory.store.import_entries(FACTS, entries[:500]) == 0


def test_a_document_of_17_megabytes_comes_back_byte_for_byte(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_LIMITS_DOCUMENT_BYTES", str(64 << 20))
    part = "│ 🐘 ä \\ \" ' \t% {{}}\r\n· · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · · ·\n".encode()
    data = b"# Large\n\nzebrafish\n" + part * ((17 << 20) // len(part)) + b"the end"
    path = "resources/workspaces/default/_notes/large.md"
    with holdfast.open(address) as memory:
        memory.store.write(path, data, expect=ABSENT)
        assert memory.store.read(path).data == data
        assert [hit.record.id for hit in memory.find("zebrafish")] == [path]
        memory.export(tmp_path / "out")
    assert (tmp_path / "out" / path).read_bytes() == data


# words


def record(title: str, text: str) -> Record:
    return Record(id="x", kind="note", path="x.md", scope=Scope(), title=title, text=text)


def test_the_rank_of_a_word_gives_back_how_often_it_occurs(server: pgserver.Server) -> None:
    lexemes = Lexemes("tenant")
    cases = [(titles, texts) for titles in range(4) for texts in [*range(60), 80, 120, 180] if titles + texts]
    made = [lexemes.of(record("zebra " * titles, "lion " + "zebra " * texts + "lion"))[0] for titles, texts in cases]
    query = rows.quoted(lexemes.prefix(False) + stems("zebra")[0])
    values = ", ".join("($a$" + str(vector) + "$a$)" for vector in made)
    rank = search._rank("q", ("zebra",)).replace("%(q)s", f"$q${query}$q$")
    found = server.run(
        f"SELECT ({rank})::float4 FROM (VALUES {values}) AS v (w) CROSS JOIN LATERAL (SELECT w::tsvector AS words) r"
    )
    counts = [search._occurrences(float(str(value))) for (value,) in found]
    assert counts == [min(255, 4 * titles + texts) for titles, texts in cases]


@given(
    st.lists(st.sampled_from(["zebra", "zebras", "lion", "Zürich", "o'brien", "東京", "C:\\path"]), max_size=40),
    st.integers(0, 2),
)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_words_are_counted_as_in_python(server: pgserver.Server, said: list[str], titles: int) -> None:
    lexemes = Lexemes("tenant")
    made = record(" ".join(["zebra"] * titles), " ".join(said))
    vector, length = lexemes.of(made)
    title, *others = [stems(part) for part in words_of(made) or ()]
    text = [stem for part in others for stem in part]
    assert length == len(title) + len(text)
    for stem in {*title, *text}:
        query = rows.quoted(lexemes.prefix(False) + stem)
        rank = search._rank("q", (stem,)).replace("%(q)s", f"$q${query}$q$")
        ((value,),) = server.run(f"SELECT ({rank})::float4 FROM (SELECT $a${vector}$a$::tsvector AS words) r")
        expected = 4 * title.count(stem) + text.count(stem)
        assert search._occurrences(float(str(value))) == expected, stem


@pytest.mark.parametrize(
    "words",
    [
        [f"w{number:05d}" for number in range(60_000)],
        [f"{chr(0x0915 + number % 30) * 30}{number}" for number in range(20_000)],
        [f"{chr(0x1D400 + number % 50) * 40}{number}" for number in range(20_000)],
        ["x" * 600, "short"],
    ],
    ids=["many", "hindi", "four bytes", "long"],
)
def test_no_text_makes_words_that_the_server_refuses(address: str, words: list[str]) -> None:
    with holdfast.open(address) as memory:
        note = memory.put("note", " ".join(words), title="Words")
        assert [hit.record.id for hit in memory.find("words")] == [note.id]
        assert memory.verify().sound


def test_a_rebuild_makes_words_again(server: pgserver.Server, database: str, address: str) -> None:
    with holdfast.open(address) as memory:
        note = memory.put("note", "about marble", title="Stone", tags=("rock",))
        memory.put("decision", "marble it is", title="Choice")
        gone = (
            f"UPDATE holdfast.record SET words = 'other:1' WHERE tenant = '{tenant_of(address)}' AND words IS NOT NULL"
        )
        server.run(gone, database)
        assert not memory.find("marble").hits
        assert not memory.verify().sound
        memory.refresh(rebuild=True)
        assert {hit.record.text for hit in memory.find("marble")} == {"about marble", "marble it is"}
        assert [hit.record.id for hit in memory.find("tag:rock")] == [note.id]
        assert memory.verify().sound


def test_words_are_counted_for_every_tenant_that_wrote(server: pgserver.Server, database: str, address: str) -> None:
    counted = f"SELECT count(*) FROM holdfast.stat WHERE tenant = '{tenant_of(address)}'"
    with holdfast.open(address) as memory:
        memory.find("nothing")
        assert server.run(counted, database) == [(0,)]
        memory.put("message", "first", fields={"role": "user"})
        assert server.run(counted, database) == [(1,)]


def test_verify_names_a_row_that_was_changed_and_a_rebuild_repairs_it(
    server: pgserver.Server, database: str, address: str
) -> None:
    with holdfast.open(address) as memory:
        memory.put("note", "about marble", title="Stone")
        memory.put("decision", "marble it is", title="Choice")
        memory.put("fact", "marble", fields={"key": "stone"})
        assert memory.verify().sound
        change = f"UPDATE holdfast.record SET words = NULL WHERE tenant = '{tenant_of(address)}' AND live"
        server.run(change, database)
        assert len(memory.verify().differences) == 3
        assert memory.refresh(rebuild=True).changed == 3
        assert memory.verify().sound
        assert len(memory.find("marble").hits) == 3


# what is exported


class Clock:
    """A clock that does not move during a call."""

    def __init__(self) -> None:
        self.ms = 1_790_000_000_000

    def __call__(self) -> int:
        return self.ms


def use_everything(memory: holdfast.Memory, clock: Clock) -> None:
    context = {"workspaceId": "Alpha", "sessionId": "s"}
    note = ""
    for step in range(14):
        clock.ms += 60_000
        match step:
            case 0:
                memory.call(
                    "createWorkspace", {"name": "Alpha", "description": "one", "rootFolder": "a", "purpose": "p"}
                )
            case 1:
                note = memory.put("note", "We deploy on Tuesdays. größe 🐘", title="Deploys", tags=("ops",)).id
            case 2:
                memory.put(id=note, text="We deploy on Fridays.\r\n", expect=memory.get(note).version)
            case 3:
                memory.put("decision", "By train.", title="Trains", scope="Alpha")
            case 4:
                memory.chat.persist_exchange("cli", "me", "when?", "on Friday")
            case 5 | 6:
                memory.put("fact", f"value {step}", fields={"key": "k", "confidence": 0.5})
            case 7:
                memory.hide(next(memory.store.newest(HISTORY)).id)
            case 8:
                memory.call("save_memory", {"compartment": "session", "content": "noted"}, context)
            case 9:
                memory.put("state", "so far", title="Save", scope="Alpha")
            case 10:
                memory.tasks.create("work", priority=3)
            case 11:
                memory.chat.save_global_memory("Ann likes tea.\n\n")
            case 12:
                memory.put("episode", "a long walk", session="s", tags=("x", "y"))
            case 13:
                memory.jobs.add("Daily", "look", "@daily")


RANDOM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}|t[0-9a-f]{10}|[0-9a-f]{8,20}")


def exported(folder: Path) -> dict[str, Any]:
    """Return documents as bytes and logs as entries with their fields in order; random ids are numbered."""
    known: dict[str, str] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            timed = ("ms", "time") if "task" in value else ("ms",)  # tasks have the time of the server
            return [(name, 0 if name in timed else plain(inner)) for name, inner in value.items()]
        if isinstance(value, list):
            return [plain(inner) for inner in value]
        is_random = isinstance(value, str) and RANDOM.fullmatch(value)
        return known.setdefault(value, f"#{len(known)}") if is_random else value

    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and ".holdfast" not in path.parts):
        name, data = str(path.relative_to(folder)), path.read_bytes()
        if name.endswith(".jsonl"):
            found[name] = [plain(json.loads(line)) for line in data.splitlines()]
        elif name not in (".gitignore", ".gitattributes"):
            found[name] = data
    current = [data for name, data in found.items() if "/kept/" not in name]  # only files keep copies of these
    return {name: data for name, data in found.items() if "/kept/" not in name or data not in current}


def test_an_export_has_the_files_that_the_file_engine_writes(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_root(str(tmp_path / "files"))
    set_up(address)
    for root in (tmp_path / "files", address):
        clock = Clock()
        with monkeypatch.context() as patched, holdfast.open(root, writer="cli") as memory:
            patched.setattr(times, "now_ms", clock)
            use_everything(memory, clock)
            if not memory.in_files:
                memory.export(tmp_path / "rows")
    here, there = exported(tmp_path / "files"), exported(tmp_path / "rows")
    assert here.keys() == there.keys()
    assert {name for name in here if here[name] != there[name]} == set()


def test_what_was_forgotten_leaves_no_byte_in_any_row(server: pgserver.Server, database: str, address: str) -> None:
    with holdfast.open(address) as memory:
        note = memory.put("note", "The code word is Xylophonquartett.", title="Code")
        memory.put(id=note.id, text="It is still Xylophonquartett.", expect=note.version)
        memory.put("message", "Xylophonquartett, was it?", fields={"role": "user", "channel": "cli"})
        memory.put("decision", "We say Xylophonquartett.", title="Word")
        memory.find("Xylophonquartett", associate=True)
        memory.call("recall", {"query": "Xylophonquartett"})
        done = memory.forget(query="Xylophonquartett", yes=True, count=3)
        assert (done.done, done.remains) == (True, [])
        assert any("dump" in each for each in done.out_of_reach)
        assert not memory.find("Xylophonquartett").hits
    stem = stems("Xylophonquartett")[0]
    for table in ("record", "term"):
        of_ours = f"FROM holdfast.{table} t WHERE tenant = '{tenant_of(address)}'"
        assert server.run(f"SELECT count(*) {of_ours} AND t::text ILIKE '%{stem}%'", database) == [(0,)]
    assert server.run(
        "SELECT count(*) FROM holdfast.record WHERE position('Xylophon'::bytea in raw) > 0", database
    ) == [(0,)]


# a pooler in transaction mode


@contextlib.contextmanager
def pgbouncer(server: pgserver.Server, folder: Path) -> Iterator[int]:
    """Run pgbouncer in transaction mode before a server, with one connection to it; yield its port."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed (on Debian: apt-get install pgbouncer)")
    parts = conninfo_to_dict(server.dsn)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = host={parts['host']} port={parts['port']} user=postgres\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n"
        "default_pool_size = 2\nignore_startup_parameters = extra_float_digits,options\n"
    )
    folder.chmod(0o755)
    user, group = pgserver.unprivileged() or (None, None)  # as root it refuses to run
    process = subprocess.Popen(
        [program, str(config)],
        user=user, group=group, extra_groups=[] if user else None, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            assert time.monotonic() < deadline and process.poll() is None, "pgbouncer did not start"
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


def test_a_memory_works_behind_a_pooler_in_transaction_mode(server: pgserver.Server, database: str) -> None:
    if not server.local:
        pytest.skip("HOLDFAST_TEST_DSN: a pooler is put before a local server only")
    folder = Path(f"/tmp/holdfast-bouncer-{secrets.token_hex(4)}")
    folder.mkdir()
    try:
        with pgbouncer(server, folder) as port:
            start = f"postgresql://postgres@127.0.0.1:{port}/{database}?sslmode=disable&gssencmode=disable&tenant="
            name = f"pooled-{secrets.token_hex(4)}"
            opened = [holdfast.open(f"{start}{name}") for _ in range(3)]
            for number in range(30):
                memory = opened[number % 3]
                memory.put("message", f"said {number}", fields={"role": "user", "channel": "cli"})
                memory.put("fact", f"value {number}", fields={"key": f"k{number % 4}"})
                assert len(memory.find(f"said {number}").hits) >= 1
                memory.tasks.create(f"task {number}")
                assert memory.tasks.claim("w") is not None
            note = opened[0].put("note", "about marble", title="Stone")
            opened[1].put(id=note.id, text="about basalt", expect=note.version)
            run = opened[2].run("s", run_id="one")
            run.save("run", "half done")
            assert [hit.record.text for hit in opened[2].find("basalt")] == ["about basalt"]
            assert [record.text for record in opened[0].tail("message", 99)] == [f"said {n}" for n in range(30)]
            feed = opened[0].store.follow()
            opened[1].put("message", "heard", fields={"role": "user", "channel": "cli"})
            heard = [event.record.text for event in feed.events(20) if event.record and event.kind == "message"]
            assert heard == ["heard"]
            feed.close()
            assert opened[0].verify().sound
            for memory in opened:
                memory.close()
            with holdfast.open(server.at(database, tenant="another")) as other:
                assert not other.find("marble").hits
    finally:
        shutil.rmtree(folder)


# vectors

semantic = pytest.mark.skipif(not embedders.is_installed("semantic"), reason="the extra semantic is not installed")
QUESTIONS = ("kitten napping couch", "when do we ship the software?", "automobile repairs in Lisbon", "granite 7")


@pytest.fixture
def by_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SEARCH_EMBEDDER", "semantic")


def fill(memory: holdfast.Memory) -> None:
    memory.put("note", "The cat sleeps on the sofa all day.", title="Animals")
    memory.put("note", "We deploy the program on Tuesdays.", title="Releases")
    memory.put("fact", "Doctor Moreira", fields={"key": "who treats headaches"})
    memory.put("episode", "The car was mended in Portugal.", session="trip")
    for number in range(30):
        memory.put("episode", f"granite and quartz, sample {number}", session="stones")


def answers(memory: holdfast.Memory) -> list[list[str]]:
    return [
        [hit.record.text for hit in memory.find(text, associate=True, **given)]  # type: ignore[arg-type]
        for text in QUESTIONS
        for given in ({}, {"kinds": ("note",)})
    ]


def vectors(server: pgserver.Server, database: str, address: str) -> int:
    counted = f"SELECT count(*) FROM holdfast.embedding WHERE tenant = '{tenant_of(address)}'"
    return int(str(server.run(counted, database)[0][0]))


@semantic
@pytest.mark.usefixtures("by_meaning")
def test_a_memory_in_a_database_recalls_by_meaning_what_one_in_files_does(
    server: pgserver.Server, database: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_root(str(tmp_path / "root"))
    found = []
    for place in (tmp_path / "root", address):
        with holdfast.open(place) as memory:
            fill(memory)
            found.append(answers(memory))
            assert memory.embedded().missing == 0
    assert found[0][:6] == found[1][:6]
    assert [texts[:1] for texts in found[0]] == [texts[:1] for texts in found[1]]
    assert found[0][0][0] == "The cat sleeps on the sofa all day."
    assert vectors(server, database, address) == 34

    def refuse(_model: object, texts: list[str]) -> Any:
        raise AssertionError(f"a vector was made twice: {texts}")

    with holdfast.open(address) as other, monkeypatch.context() as patched:
        patched.setattr(embedders.WordVectors, "texts", refuse)
        assert answers(other) == found[1]
        other.refresh(rebuild=True)
        assert answers(other) == found[1]


@semantic
@pytest.mark.usefixtures("by_meaning")
def test_vectors_follow_their_records_and_lost_ones_are_made_again(
    server: pgserver.Server, database: str, address: str
) -> None:
    with holdfast.open(address) as memory, holdfast.open(address) as other:
        fill(memory)
        (pets,) = memory.find(QUESTIONS[0], associate=True, kinds=("note",))
        memory.hide(pets.record.id)
        assert pets.record.id not in [hit.record.id for hit in other.find(QUESTIONS[0], associate=True)]
        memory.hide(pets.record.id, restore=True)
        memory.put(id=pets.record.id, text="It was wet and stormy outside.", expect=memory.get(pets.record.id).version)
        assert other.find("rainy weather", associate=True).hits[0].record.id == pets.record.id
        assert pets.record.id not in [hit.record.id for hit in memory.find(QUESTIONS[0], associate=True)]
        server.run(f"DELETE FROM holdfast.embedding WHERE tenant = '{tenant_of(address)}'", database)
        assert memory.embedded().missing == 34
        assert (memory.embed().missing, vectors(server, database, address)) == (0, 34)
        memory.forget(pets.record.id, yes=True)
        assert not other.find("rainy weather", associate=True).hits
        memory.embed()
        assert vectors(server, database, address) == 33


def test_a_vector_of_another_tenant_is_not_compared(server: pgserver.Server, database: str, address: str) -> None:
    with holdfast.open(address) as memory, holdfast.open(f"{address}-other") as other:
        memory.put("note", "The cat sleeps on the sofa all day.", title="Animals")
        memory.find(QUESTIONS[0], associate=True)
        assert not other.find(QUESTIONS[0], associate=True).hits
        assert isinstance(other.store, PgStore)
        with contextlib.suppress(HoldfastError):
            assert other.store._database.ask("x", "SELECT count(*) FROM holdfast.compared") == [(0,)]


@semantic
@pytest.mark.usefixtures("by_meaning")
def test_records_without_a_vector_are_looked_up_and_not_joined_when_statistics_are_old(address: str) -> None:
    """A join of two tables that the planner takes for empty compared every record with every vector."""
    with holdfast.open(address) as memory:
        fill(memory)
        memory.embed()
        assert isinstance(memory.store, PgStore)
        given = {"model": "m", "kinds": ["note"], "most": 10, "every": True}
        plan = memory.store._database.ask("x", "EXPLAIN " + search.sql("missing"), **given)
    shown = "\n".join(line for (line,) in plan)
    assert "SubPlan" in shown, shown
    assert "Anti Join" not in shown, shown


# the measure of recall

TURNS = [
    ("t1", "s1", "ann", "We adopted a kitten, and she sleeps on the couch all day."),
    ("t2", "s1", "bob", "How lovely! What is her name?"),
    ("t3", "s2", "ann", "The car broke down on the way to Lisbon; a mechanic in Evora repaired it."),
    ("t4", "s2", "bob", "I hope that was not expensive."),
    ("t5", "s3", "ann", "I started to learn the cello in March."),
]
ASKED = [("q1", "Where was Ann's car repaired?", "t3", "s2"), ("q2", "Which instrument does Ann play?", "t5", "s3")]
SET = {
    "name": "small",
    "corpora": [
        {
            "name": name,
            "turns": [
                {"id": id, "session": session, "time": f"2024-05-0{number + 1}T10:00:00Z", "speaker": who,
                 "role": "user", "text": text}
                for number, (id, session, who, text) in enumerate(TURNS)
            ],
            "questions": [
                {"id": f"{name} {id}", "question": text, "turns": [turn], "sessions": [session]}
                for id, text, turn, session in ASKED
            ],
        }
        for name in ("one", "two")
    ],
}  # fmt: skip


def measured(path: Path, out: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "bench.quality", str(path), "--out", str(out), *words]
    return json.loads(subprocess.run(command, cwd=CLONE, capture_output=True, text=True, check=True).stdout)


def test_recall_is_as_good_in_a_database_and_no_tenant_is_left(
    tmp_path: Path, server: pgserver.Server, database: str, address: str
) -> None:
    path = tmp_path / "set.json"
    path.write_text(json.dumps(SET))
    in_files = measured(path, tmp_path / "files.jsonl")
    there = measured(path, tmp_path / "database.jsonl", "--store", address)
    assert there["scores"] == in_files["scores"]
    assert (tmp_path / "database.jsonl").read_text() == (tmp_path / "files.jsonl").read_text()
    assert there["questions"] == 4
    tables = server.run("SELECT table_name FROM information_schema.columns WHERE column_name = 'tenant'", database)
    assert {"record", "stat", "term", "lease", "token", "embedding", "embedded"} <= {name for (name,) in tables}
    for (table,) in tables:
        left = f"SELECT count(*) FROM holdfast.{table} WHERE tenant LIKE 'temporary-%'"
        assert server.run(left, database) == [(0,)], table


def test_a_store_that_is_no_address_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    path.write_text(json.dumps(SET))
    done = subprocess.run(
        [sys.executable, "-m", "bench.quality", str(path), "--store", str(tmp_path)],
        cwd=CLONE, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "not the address of a PostgreSQL database" in done.stderr
