"""The index can be deleted: whatever happens to `.holdfast/`, answers equal those of the files.

Also: words of a query are literal, filters are exact, and the next read sees a change by any program.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import databaseroot
import holdfast
import pgserver
from holdfast import Memory
from holdfast.errors import AlreadyExists, Conflict, HoldfastError, Invalid, NotFound
from holdfast.model.times import utc_now
from holdfast.storage.files.index import SqliteIndex
from holdfast.storage.files.index_sync import IndexSync
from holdfast.storage.files.store import FileStore
from holdfast.storage.results import Refreshed

Answers = list[list[tuple[str, float, str]]]
QUERIES = ("granite", "quartz vein", '"deep quartz"', "kind:fact colour", "tag:stone", "", "nothing like that")


def fill(root: str | Path) -> None:
    """Put one of everything into a root."""
    with holdfast.open(root) as memory:
        memory.put("overview", "About stones.", title="Quarry")
        for number in range(12):
            memory.put("note", f"granite number {number}, deep quartz", title=f"Note {number}", tags=["stone"])
        for number in range(12):
            memory.put("fact", f"colour {number} of a quartz vein", fields={"key": f"key {number % 5}"})
        for number in range(12):
            memory.put("episode", f"we met granite {number}", session=f"s{number % 3}")
        memory.put("decision", "quartz it is", title="Stone of choice", tags=("stone",))
        memory.hide(memory.put("decision", "granite it is not", title="Stone of no choice").id)
        memory.hide(memory.put("state", "the vein so far", title="Save").id)


def ask(memory: Memory) -> Answers:
    return [
        [(hit.record.id, hit.score, hit.record.text) for hit in memory.find(query, hidden=hidden, limit=100)]
        for query in QUERIES
        for hidden in (False, True)
    ]


def ids(memory: Memory, query: str, **filters: object) -> list[str]:
    return [hit.record.id for hit in memory.find(query, **filters)]  # type: ignore[arg-type]


def file_hashes(root: Path) -> dict[str, str]:
    """The bytes of every file outside `.holdfast/`."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".holdfast" not in path.parts
    }


def sync_of(memory: Memory) -> IndexSync:
    assert isinstance(memory.store, FileStore)
    return memory.store._sync


def index_of(memory: Memory) -> SqliteIndex:
    return sync_of(memory).index


def index_file(root: Path) -> Path:
    return root / ".holdfast" / (root / ".holdfast/current").read_text()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answers]:
    """A root with an index, never changed by a test, and its answers."""
    root = tmp_path_factory.mktemp("filled")
    fill(root)
    with holdfast.open(root) as memory:
        return root, ask(memory)


@pytest.fixture(scope="module")
def filled_rows(server: pgserver.Server, database: str) -> str:
    """The same in a database."""
    address = server.at(database, tenant="filled")
    fill(address)
    return address


@pytest.fixture
def stones(engine: str, request: pytest.FixtureRequest) -> str:
    """A root that is asked and never changed."""
    return str(request.getfixturevalue("filled")[0] if engine == "files" else request.getfixturevalue("filled_rows"))


@pytest.fixture
def quarry(filled: tuple[Path, Answers], root: Path) -> Iterator[tuple[Path, Answers]]:
    """A copy of the filled root with an index of its own; afterwards its files must be as they were."""
    databaseroot.copy(filled[0], root)
    with holdfast.open(root) as memory:
        assert ask(memory) == filled[1]
    before = file_hashes(root)
    yield root, filled[1]
    assert file_hashes(root) == before


def assert_answers(quarry: tuple[Path, Answers]) -> None:
    root, expected = quarry
    with holdfast.open(root) as memory:
        assert ask(memory) == expected
        assert memory.verify().sound


# what may become of `.holdfast/`


def test_a_deleted_index_is_rebuilt_by_the_next_call(quarry: tuple[Path, Answers]) -> None:
    databaseroot.drop_derived(quarry[0])
    assert_answers(quarry)


def test_an_index_deleted_under_an_open_memory_is_rebuilt(quarry: tuple[Path, Answers]) -> None:
    root, expected = quarry
    with holdfast.open(root) as memory:
        assert ask(memory) == expected
        databaseroot.drop_derived(root)
        assert ask(memory) == expected
        assert memory.verify().sound


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"garbage",
        b"index-nothing.sqlite",
        b"\xff\xfe\0",
        b"index-../../holdfast.toml",
        b"current",
        b"index-\n",
    ],
)
def test_a_missing_or_garbled_pointer_is_no_harm(quarry: tuple[Path, Answers], content: bytes | None) -> None:
    pointer = quarry[0] / ".holdfast/current"
    pointer.unlink()
    if content is not None:
        pointer.write_bytes(content)
    assert_answers(quarry)


@pytest.mark.parametrize("size", [0, 1, 16, 99, 100, 512, 4095, 4096, 8192, 20_000, -4096, -3000, -1])
def test_a_truncated_index_is_rebuilt(quarry: tuple[Path, Answers], size: int) -> None:
    path = index_file(quarry[0])
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)
    assert_answers(quarry)


@pytest.mark.parametrize("content", [b"just text\n" * 1000, b"\0" * 40_960, b"SQLite format 3\0" + b"\xff" * 8192])
def test_an_index_replaced_by_something_else_is_rebuilt(quarry: tuple[Path, Answers], content: bytes) -> None:
    index_file(quarry[0]).write_bytes(content)
    assert_answers(quarry)


def test_an_index_replaced_by_a_folder_is_rebuilt(quarry: tuple[Path, Answers]) -> None:
    path = index_file(quarry[0])
    path.unlink()
    path.mkdir()
    assert_answers(quarry)


def test_the_index_of_another_root_is_not_believed(quarry: tuple[Path, Answers], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with holdfast.open(other) as memory:
        memory.put("note", "granite of another root", title="Elsewhere")
        memory.refresh()
    shutil.copyfile(index_file(other), index_file(quarry[0]))
    assert_answers(quarry)


def test_a_change_of_one_entry_of_a_page_indexes_that_entry_alone(root: Path) -> None:
    with holdfast.open(root) as memory:
        page = root / memory.put("decision", "It is the first one.", title="First").path
        with page.open("a") as file:
            file.writelines(f"\n### [2026-01-01] Choice {number}\n\nOption {number}.\n" for number in range(300))

        def indexed() -> int:
            memory.refresh()
            with contextlib.closing(apsw.Connection(str(index_file(root)))) as db:
                return int(db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'records'").get)

        before = indexed()
        with page.open("a") as file:
            file.write("\n### [2026-01-01] Last\n\nIt was appended.\n")
        assert indexed() == before + 1
        page.write_text(page.read_text().replace("Option 150.", "Option 150, with two\nlines."))
        assert indexed() == before + 2
        lines = page.read_text().splitlines()
        assert lines[memory.find("Option 299").hits[0].record.line - 1] == "### [2026-01-01] Choice 299"
        assert not memory.verify().differences


def test_totals_without_scores_are_a_damaged_index(quarry: tuple[Path, Answers]) -> None:
    """SQLite returns no scores when the totals have no records, or fewer than contain a word."""
    for records in (0, 1):
        with contextlib.closing(apsw.Connection(str(index_file(quarry[0])))) as db:
            total = db.execute("SELECT block FROM words_data WHERE id = 1").get
            db.execute("UPDATE words_data SET block = ? WHERE id = 1", (bytes([records]) + total[1:],))
        with holdfast.open(quarry[0]) as memory:
            assert len(ask(memory)) == len(quarry[1])
    assert_answers(quarry)


def test_verify_reports_lengths_that_do_not_add_up(quarry: tuple[Path, Answers]) -> None:
    with contextlib.closing(apsw.Connection(str(index_file(quarry[0])))) as db:
        total = db.execute("SELECT block FROM words_data WHERE id = 1").get
        db.execute("UPDATE words_data SET block = ? WHERE id = 1", (total[:-1] + bytes([total[-1] ^ 1]),))
    with holdfast.open(quarry[0]) as memory:
        assert [problem.what for problem in memory.verify().differences] == [
            "the index is damaged: the lengths of its records do not add up"
        ]
        memory.refresh(rebuild=True)
        assert not memory.verify().differences


@pytest.mark.parametrize("version", [0, 9_999])
def test_an_index_of_another_schema_is_rebuilt(quarry: tuple[Path, Answers], version: int) -> None:
    db = apsw.Connection(str(index_file(quarry[0])))
    db.pragma("user_version", version)
    db.close()
    assert_answers(quarry)


@pytest.mark.parametrize("table", ["records", "words", "files", "marks", "meta", "problems"])
def test_an_index_that_lacks_a_table_is_rebuilt(quarry: tuple[Path, Answers], table: str) -> None:
    db = apsw.Connection(str(index_file(quarry[0])))
    db.execute(f"DROP TABLE {table}")
    db.close()
    assert_answers(quarry)


def test_an_index_with_flipped_bits_never_fails_a_call_nor_touches_a_file(
    filled: tuple[Path, Answers], root: Path
) -> None:
    """A flip is detected and repaired, or `verify` reports it; no call fails, and a rebuild always helps."""
    databaseroot.copy(filled[0], root)
    expected, before = filled[1], file_hashes(root)
    with holdfast.open(root) as memory:
        assert ask(memory) == expected
    path = index_file(root)
    sound = path.read_bytes()
    dice = random.Random(5)
    for position in [*range(0, 120, 4), *(dice.randrange(len(sound)) for _ in range(70))]:
        damaged = bytearray(sound)
        damaged[position] ^= 1 << dice.randrange(8)
        for leftover in (root / ".holdfast").iterdir():
            leftover.unlink()
        path.write_bytes(damaged)
        (root / ".holdfast/current").write_text(path.name)
        with holdfast.open(root) as memory:
            if ask(memory) != expected and ask(memory) != expected:  # a later query may detect and repair it
                noticed = not memory.verify().sound
                if ask(memory) != expected:  # verify can rebuild it, too
                    assert noticed, f"a wrong answer that nobody can notice, from byte {position}"
                    memory.refresh(rebuild=True)
                    assert ask(memory) == expected
    assert file_hashes(root) == before


def test_a_rebuild_swaps_the_index_under_a_reader_that_has_it_open(quarry: tuple[Path, Answers]) -> None:
    root, expected = quarry
    with holdfast.open(root) as reader:
        assert ask(reader) == expected
        old = index_of(reader).generation()
        subprocess.run(
            [sys.executable, "-c", "import holdfast, sys; holdfast.open(sys.argv[1]).refresh(rebuild=True)", str(root)],
            check=True,
        )
        assert index_of(reader).generation() not in ("", old)
        assert not list((root / ".holdfast").glob(f"{old}*"))
        assert ask(reader) == expected


# words are literal

SYNTAX = (
    "AND", "OR", "NOT", "NEAR", "NEAR(a b, 3)", "title:granite", "{title text}: granite", "^granite", "gran*", '"',
    '"granite', 'granite"', '""', '" "', "(", ")", "granite)", "(granite", "granite AND", "granite NOT quartz",
    "-granite", "+granite", "granite + quartz", "'; DROP TABLE records; --", "a\0b", "\0", "\ufeffgranite", "%", "_",
    "*", "tag:", "kind:", "tag: kind:", "\\", "😀", "\u202egranite", "granite\u200b", ":", "::", "a:b:c",
)  # fmt: skip


@pytest.mark.parametrize("query", SYNTAX)
def test_search_syntax_in_a_query_is_text(stones: str, query: str) -> None:
    with holdfast.open(stones) as memory:
        plain = "".join(char if char.isalnum() else " " for char in query)
        found = memory.find(query, limit=100)
        if "granite" in plain.split():
            assert found.hits
        elif not plain.strip():
            assert not found.hits


def test_a_word_that_looks_like_an_operator_is_found_as_a_word(memory: Memory) -> None:
    near = memory.put("note", "the station is near and not far", title="One").id
    other = memory.put("note", "something else", title="Two").id
    assert ids(memory, "NEAR") == [near]
    assert ids(memory, '"near and not"') == [near]
    assert ids(memory, "near NOT station") == [near]
    assert ids(memory, "title:something") == [other]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(queries=st.lists(st.text(max_size=30), min_size=14, max_size=14))
def test_no_text_makes_a_search_fail(stones: str, queries: list[str]) -> None:
    with holdfast.open(stones) as memory:
        for query in queries:
            try:
                memory.find(query)
            except Invalid:
                assert "kind:" in query


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.lists(st.sampled_from([*SYNTAX, "granite", " ", "quartz", "kind:note", "tag:stone"]), max_size=6))
def test_no_mixture_of_syntax_makes_a_search_fail(stones: str, text: list[str]) -> None:
    with holdfast.open(stones) as memory:
        for glue in ("", " "):
            try:
                memory.find(glue.join(text))
            except Invalid:
                assert "kind:" in glue.join(text)


# what is found


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("我们决定使用数据库索引", "数据库"),
        ("東京タワーは高いです", "タワー"),
        ("สวัสดีชาวโลก", "ชาวโลก"),
        ("데이터베이스를 사용합니다", "데이터베이스"),
        ("Мы выбрали базу данных", "ВЫБРАЛИ"),
        ("اخترنا قاعدة البيانات", "قاعدة"),
        ("Die Straße führt über Köln", "köln"),
        ("Die Straße führt über Köln", "Koln"),
        ("café crème", "CAFÉ"),
        ("cafe\u0301 creme", "café"),
        ("café", "cafe\u0301"),
        ("हिन्दी में लिखा", "हिन्दी"),
        ("Ελληνικά γράμματα", "γράμματα"),
        ("deploys are running", "deploy"),
        ("we deploy", "deploying runs"),
        ("see src/auth_token.py line 3", "auth_token.py"),
        ("see src/auth_token.py line 3", "src/auth_token.py"),
        ("version v2.10.3-rc1", "2.10.3"),
        ("the year 1987", "1987"),
    ],
)
def test_words_of_every_script_are_found(memory: Memory, text: str, query: str) -> None:
    kept = memory.put("note", text, title="Words").id
    memory.put("note", "entirely different matter", title="Noise")
    hits = memory.find(query).hits
    assert [hit.record.id for hit in hits] == [kept]
    assert hits[0].why


def test_a_phrase_must_stand_together(memory: Memory) -> None:
    together = memory.put("note", "the deep quartz vein", title="A").id
    memory.put("note", "deep water and a quartz vein", title="B")
    assert ids(memory, '"deep quartz"') == [together]
    assert len(ids(memory, "deep quartz")) == 2
    assert ids(memory, '"quartz deep"') == []
    assert ids(memory, '"deep quartz" vein') == [together]


def test_the_title_counts_more_than_the_text(memory: Memory) -> None:
    in_text = memory.put("note", "basalt columns and some other words here", title="Columns").id
    in_title = memory.put("note", "columns and some other words here too", title="Basalt").id
    assert ids(memory, "basalt") == [in_title, in_text]


def test_equal_scores_come_in_one_order_however_they_were_written(another: Callable[[], Path]) -> None:
    orders = []
    for turn in range(3):
        numbers = list(range(30))
        random.Random(turn).shuffle(numbers)
        with holdfast.open(another()) as memory:
            for number in numbers:
                memory.put("note", "identical words", title=f"Same {number:02}", fields={"created": "2026-01-01"})
                if turn == 2:
                    memory.find("identical")
            orders.append([ids(memory, "identical", limit=limit) for limit in (1, 7, 100)])
    assert orders[0] == orders[1] == orders[2]
    assert orders[0][1] == orders[0][2][:7]


def test_newest_come_first_without_words(memory: Memory) -> None:
    kept = [memory.put("episode", f"step {number}", session="s").id for number in range(5)]
    assert ids(memory, "", kinds=("episode",)) == kept[::-1]
    assert ids(memory, "", kinds=("episode",), limit=2) == kept[:-3:-1]


# filters


def test_a_scope_covers_what_is_below_it_and_not_its_neighbours(memory: Memory) -> None:
    for title, scope in [("app", None), ("app2", None), ("app-x", None), ("Core", "app"), ("Api", "app/core")]:
        memory.put("overview", "marble", title=title, scope=scope)
    kept = {
        scope: memory.put("note", "marble", title="Note", scope=scope).id
        for scope in ("app", "app/core", "app/core/api", "app2", "app-x")
    }
    line = memory.put("message", "marble", scope="app/core").id
    found = set(ids(memory, "marble", kinds=("note", "message"), scope="app", limit=100))
    assert found == {kept["app"], kept["app/core"], kept["app/core/api"], line}
    assert set(ids(memory, "", kinds=("note", "message"), scope="app/core")) == {
        kept["app/core"], kept["app/core/api"], line,
    }  # fmt: skip
    assert ids(memory, "marble", kinds=("note",), scope="app/core/api") == [kept["app/core/api"]]
    with pytest.raises(NotFound):
        memory.find("marble", scope="ap")


def test_kind_and_session_filter(memory: Memory) -> None:
    note = memory.put("note", "marble", title="N").id
    one = memory.put("episode", "marble", session="one").id
    memory.put("episode", "marble", session="one more")
    assert ids(memory, "marble", kinds=("note",)) == [note]
    assert ids(memory, "marble kind:note") == [note]
    assert ids(memory, "marble", session="one") == [one]
    assert ids(memory, "", session="one") == [one]
    with pytest.raises(Invalid, match="note"):
        memory.find("marble", kinds=("notes",))  # type: ignore[arg-type]


def test_a_line_written_by_hand_into_a_session_belongs_to_the_session(memory: Memory, root: Path) -> None:
    path = root / memory.put("episode", "marble of ours", session="one").path
    with path.open("ab") as file:
        file.write(b'{"text":"marble by hand"}\n')
    assert len(ids(memory, "marble", session="one")) == 2


def test_tags_mean_any_of_them_without_case(memory: Memory) -> None:
    red = memory.put("note", "marble", title="R", tags=["Red", "big stone"]).id
    blue = memory.put("fact", "marble", fields={"key": "k"}, tags=["blue"]).id
    memory.put("decision", "marble", title="D", tags=["redder"])
    assert ids(memory, "marble", tags=("RED",)) == [red]
    assert set(ids(memory, "marble", tags=("red", "Blue"))) == {red, blue}
    assert ids(memory, "marble tag:red") == [red]
    assert ids(memory, "tag:blue") == [blue]
    assert ids(memory, "marble", tags=("big stone",)) == [red]
    assert ids(memory, "marble", tags=("stone",)) == []


def test_since_and_until_include_their_ends(memory: Memory) -> None:
    kept = {
        day: memory.put("note", "marble", title=day, fields={"created": f"{day}T23:30:00"}).id
        for day in ("2026-01-01", "2026-01-02", "2026-01-03")
    }
    assert set(ids(memory, "marble", since="2026-01-02")) == {kept["2026-01-02"], kept["2026-01-03"]}
    assert set(ids(memory, "marble", until="2026-01-02")) == {kept["2026-01-01"], kept["2026-01-02"]}
    assert ids(memory, "marble", since="2026-01-02", until="2026-01-02") == [kept["2026-01-02"]]
    assert ids(memory, "", kinds=("note",), since="2026-01-03T23:30:00") == [kept["2026-01-03"]]
    for wrong in ({"since": "soon"}, {"since": "2026-02-01", "until": "2026-01-01"}):
        with pytest.raises(Invalid):
            memory.find("marble", **wrong)  # type: ignore[arg-type]


def test_thousands_of_filters_in_a_query_are_no_error(memory: Memory) -> None:
    memory.put("note", "x", title="a", tags=("blue",))
    assert len(memory.find("tag:blue " * 5_000)) == 1
    assert len(memory.find(" ".join(f"tag:t{number}" for number in range(5_000)))) == 0


def test_limit_and_budget_cut_the_answer_and_say_so(memory: Memory) -> None:
    for number in range(10):
        memory.put("note", "marble " + "filler " * 30, title=f"T{number}")
    assert len(memory.find("marble", limit=3)) == 3
    cut = memory.find("marble", budget=150)
    assert 0 < len(cut) < 10
    assert cut.left_out == 10 - len(cut)
    assert memory.find("marble", budget=1).hits == []
    for wrong in ({"limit": 0}, {"limit": 1001}, {"budget": -1}):
        with pytest.raises(Invalid):
            memory.find("marble", **wrong)  # type: ignore[arg-type]


# a change of a file is seen by the next read


def in_place(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


def by_rename(path: Path, data: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(data)
    beside.replace(path)


def in_another_process(path: Path, data: bytes) -> None:
    code = "import sys, databaseroot; databaseroot.named(sys.argv[1]).write_bytes(bytes.fromhex(sys.argv[2]))"
    subprocess.run([sys.executable, "-c", code, str(path), data.hex()], check=True, cwd=Path(__file__).parent)


def keeping_size_and_time(path: Path, data: bytes) -> None:
    found = path.stat()
    assert found.st_size == len(data)
    in_place(path, data)
    databaseroot.set_time(path, found.st_mtime_ns)


def by_rename_keeping_time(path: Path, data: bytes) -> None:
    found = path.stat()
    by_rename(path, data)
    databaseroot.set_time(path, found.st_mtime_ns)


EDITS = (in_place, by_rename, in_another_process, keeping_size_and_time, by_rename_keeping_time)


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kind", ["note", "decision", "message"])
def test_a_file_edited_outside_is_seen_by_the_next_read(
    memory: Memory, root: Path, kind: str, old: bool, edit: Callable[[Path, bytes], None]
) -> None:
    receipt = memory.put(kind, "about marble", title="Title")  # type: ignore[arg-type]
    path = root / receipt.path
    if old:
        databaseroot.set_time(path, 1_600_000_000 * 10**9)
    for _ in range(2):
        assert ids(memory, "marble") == [receipt.id]
    edit(path, path.read_bytes().replace(b"marble", b"basalt"))
    assert ids(memory, "marble") == []
    assert ids(memory, "basalt") == [receipt.id]
    assert memory.get(receipt.id).text == "about basalt"
    assert memory.verify().sound


def test_a_second_change_in_the_same_tick_of_the_clock_is_seen(memory: Memory, root: Path) -> None:
    receipt = memory.put("note", "about marble", title="Title")
    path = root / receipt.path
    found = path.stat()
    for word in (b"marble", b"basalt", b"flints", b"quartz") * 3:
        data = path.read_bytes()
        for other in (b"marble", b"basalt", b"flints", b"quartz"):
            data = data.replace(other, word)
        in_place(path, data)
        databaseroot.set_time(path, found.st_mtime_ns)
        assert ids(memory, word.decode()) == [receipt.id]


def test_files_that_come_and_go_are_seen(memory: Memory, root: Path) -> None:
    memory.put("overview", "a root without files would be taken for one that is not mounted", title="Home")
    folder = root / "resources/workspaces/new/_notes"
    folder.mkdir(parents=True)
    (folder / "a.md").write_text("marble by hand\n")
    assert ids(memory, "marble") == ["resources/workspaces/new/_notes/a.md"]
    (folder / "a.md").rename(folder / "b.md")
    assert ids(memory, "marble") == ["resources/workspaces/new/_notes/b.md"]
    databaseroot.remove(folder.parent)
    assert ids(memory, "marble") == []
    assert memory.verify().sound


def test_a_write_by_another_memory_object_is_visible(memory: Memory, root: Path) -> None:
    with holdfast.open(root) as other:
        for number in range(5):
            kept = other.put("fact", f"marble {number}", fields={"key": "k"}).id
            assert ids(memory, "marble") == [kept]
            assert memory.get(kept).text == f"marble {number}"
            kept = memory.put("fact", f"marble {number} again", fields={"key": "k"}).id
            assert ids(other, "marble") == [kept]


def soon(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def watched(root: Path) -> Iterator[Memory]:
    with holdfast.open(root, watch=True) as memory:
        yield memory


def test_a_watching_memory_soon_sees_what_others_change(watched: Memory, root: Path) -> None:
    own = watched.put("note", "marble of my own", title="Own").id
    assert ids(watched, "marble") == [own]
    with holdfast.open(root) as other:
        note = other.put("note", "granite of another", title="Other").id
        line = other.put("episode", "granite of another", session="new session").id
    assert soon(lambda: set(ids(watched, "granite")) == {note, line})
    path = root / note
    in_place(path, path.read_bytes().replace(b"granite", b"basaltx"))
    assert soon(lambda: ids(watched, "basaltx") == [note])
    path.unlink()
    assert soon(lambda: ids(watched, "basaltx") == [])


def test_a_watching_memory_soon_sees_folders_that_are_moved_in_and_out(watched: Memory, root: Path) -> None:
    watched.put("overview", "a root without files would be taken for one that is not mounted", title="Home")
    aside, target = root / "aside", root / "resources/workspaces/moved"
    (aside / "made/_notes").mkdir(parents=True)
    (aside / "made/_notes/a.md").write_text("granite in a folder\n")
    (aside / "made").rename(target)
    assert soon(lambda: ids(watched, "granite") == ["resources/workspaces/moved/_notes/a.md"])
    target.rename(aside / "gone")
    assert soon(lambda: ids(watched, "granite") == [])


def test_a_watching_memory_loses_no_change_to_a_rebuild_that_overtakes_it(watched: Memory, root: Path) -> None:
    """Another process rebuilds the index while a file changes, and the watching process has the old index open."""
    receipt = watched.put("note", "about marble", title="Title")
    assert ids(watched, "marble") == [receipt.id]
    path = root / receipt.path
    seen: list[bool] = []

    def overtake(done: int, total: int) -> None:
        in_place(path, path.read_bytes().replace(b"marble", b"basalt"))
        seen.append(soon(lambda: ids(watched, "basalt") == [receipt.id]))
        time.sleep(0.3)  # events of the same change that come late must not heal by chance what was lost
        ids(watched, "basalt")

    with holdfast.open(root) as other:
        other.refresh(rebuild=True, progress=overtake)
    assert seen and all(seen)
    assert soon(lambda: ids(watched, "basalt") == [receipt.id])
    assert soon(lambda: ids(watched, "marble") == [])


# an op_id has effect once

PUTS: dict[str, dict[str, Any]] = {
    "episode": {"text": "once only", "session": "s"},
    "message": {"text": "once only"},
    "fact": {"text": "once only", "fields": {"key": "k"}},
    "note": {"text": "once only", "title": "Once"},
    "decision": {"text": "once only", "title": "Once"},
    "state": {"text": "once only", "title": "Once"},
}


@pytest.mark.parametrize("kind", PUTS)
@pytest.mark.parametrize("between", ["nothing", "search", "rebuild", "reopen", "more writes"])
def test_the_same_op_id_has_effect_once(memory: Memory, root: Path, kind: str, between: str) -> None:
    given_now = PUTS[kind]
    first = memory.put(kind, op_id="op-1", **given_now)  # type: ignore[arg-type]
    assert first.status == "stored"
    if between == "search":
        memory.find("once")
    elif between == "rebuild":
        memory.refresh(rebuild=True)
    elif between == "reopen":
        databaseroot.drop_derived(root)
    elif between == "more writes":
        for number in range(3):
            fields = {"key": f"x{number}"} if kind == "fact" else {}
            memory.put(kind, f"another {number}", title=f"Another {number}", fields=fields)  # type: ignore[arg-type]
    before = file_hashes(root)
    again = memory.put(kind, op_id="op-1", **given_now)  # type: ignore[arg-type]
    assert (again.status, again.id, again.path) == ("repeated", first.id, first.path)
    with holdfast.open(root) as other:
        assert other.put(kind, op_id="op-1", **given_now).id == first.id  # type: ignore[arg-type]
    assert file_hashes(root) == before
    assert ids(memory, '"once only"', kinds=(kind,)) == [first.id]


OTHER_USES = [
    (first, second)
    for first in PUTS
    for second in PUTS
    if first != second
    or first in ("note", "state")  # a repeated line or entry is identified by its op_id, whatever its text
]


@pytest.mark.parametrize(("first", "second"), OTHER_USES)
def test_an_op_id_used_for_something_else_is_a_conflict(memory: Memory, first: str, second: str) -> None:
    memory.put(first, op_id="op-1", **PUTS[first])  # type: ignore[arg-type]
    with pytest.raises(Conflict):
        memory.put(second, op_id="op-1", **{**PUTS[second], "text": "another text", "title": "Another"})  # type: ignore[arg-type]
    assert ids(memory, '"another text"') == []


def test_an_op_id_used_by_another_process_for_something_else_is_a_conflict(memory: Memory, root: Path) -> None:
    memory.find("anything")
    with holdfast.open(root) as other:
        other.put("episode", "theirs", session="s", op_id="op-1")
        other.put("note", "theirs", title="Theirs", op_id="op-2")
        with pytest.raises(Conflict):
            memory.put("note", "mine", title="Mine", op_id="op-1")
        with pytest.raises(Conflict):
            memory.put("message", "mine", op_id="op-2")


def test_an_entry_edited_by_hand_is_not_added_again_by_its_op_id(memory: Memory, root: Path) -> None:
    receipt = memory.put("decision", "once only", title="Once", op_id="op-1")
    path = root / receipt.path
    path.write_bytes(path.read_bytes().replace(b"once only", b"mended by its owner"))
    again = memory.put("decision", "once only", title="Once", op_id="op-1")
    assert (again.status, again.id) == ("repeated", receipt.id)
    assert [record.text for record in (hit.record for hit in memory.find("", kinds=("decision",)))] == [
        "mended by its owner"
    ]


def test_a_repeated_entry_is_answered_with_its_own_id(memory: Memory) -> None:
    memory.put("decision", "the first text", title="Twin")
    second = memory.put("decision", "the second text", title="Twin", op_id="op-1")
    assert memory.get(second.id).text == "the second text"
    again = memory.put("decision", "the second text", title="Twin", op_id="op-1")
    assert (again.status, again.id) == ("repeated", second.id)


@pytest.mark.parametrize("kind", PUTS)
def test_hiding_with_the_same_op_id_has_effect_once(memory: Memory, kind: str) -> None:
    kept = memory.put(kind, **PUTS[kind]).id  # type: ignore[arg-type]
    memory.hide(kept, op_id="hide-1")
    memory.hide(kept, restore=True, op_id="show-1")
    assert ids(memory, "once") == [kept]
    memory.hide(kept, op_id="hide-1")
    assert ids(memory, "once") == [kept], "a lost request that is sent again must not hide what was shown since"
    memory.hide(kept, op_id="hide-2")
    memory.hide(kept, restore=True, op_id="show-1")
    assert ids(memory, "once") == []


# entries and save points


def test_a_save_point_is_written_once(memory: Memory, root: Path) -> None:
    receipt = memory.put("state", "as it was", title="Release 1")
    before = file_hashes(root)
    for title in ("Release 1", "RELEASE 1"):
        with pytest.raises(AlreadyExists):
            memory.put("state", "as it never was", title=title)
    with pytest.raises(Invalid):
        memory.put(id=receipt.id, text="changed", expect=memory.get(receipt.id).version)
    with pytest.raises(Invalid):
        memory.put(id=receipt.id, title="Renamed")
    assert memory.get(receipt.id).text == "as it was"
    assert file_hashes(root) == before, "a refused save point leaves nothing behind"


def test_a_save_point_that_was_announced_and_never_came_to_be_is_named_but_not_while_it_is_on_its_way(
    memory: Memory, root: Path
) -> None:
    memory.put("state", "text", title="There")
    ledger = root / "resources/workspaces/default/_states/ledger.jsonl"
    for name, time_of in (("old.md", "2026-01-02T03:04:05Z"), ("new.md", utc_now())):
        with ledger.open("a") as file:
            file.write(json.dumps({"time": time_of, "state": name, "version": "0"}) + "\n")
    assert [problem.path.rpartition("/")[2] for problem in memory.verify().damage] == ["old.md"]


def test_an_index_in_use_is_not_reported_as_damaged(memory: Memory, root: Path) -> None:
    with holdfast.open(root) as other:
        for number in range(30):
            words = " ".join(f"word{number}x{each}" for each in range(200))
            other.put("note", words, title=f"Note {number}")
            other.find(f"word{number}x1")
            index_of(memory).snapshot()


def test_a_log_that_was_empty_when_the_index_looked_is_compared_as_empty(memory: Memory, root: Path) -> None:
    memory.put("message", "said")
    scratch = SqliteIndex("", "scratch", memory.settings.search)
    sync_of(memory).refresher.one(scratch, "user/memory/history.jsonl", Refreshed(), 0)
    assert scratch.counts() == {}
    scratch.close()


def test_a_save_point_edited_by_hand_is_named(memory: Memory, root: Path) -> None:
    edited, sound = memory.put("state", "one text", title="One"), memory.put("state", "another", title="Two")
    assert memory.verify().sound
    (root / edited.path).write_bytes((root / edited.path).read_bytes().replace(b"one text", b"new text"))
    report = memory.verify()
    assert [problem.path for problem in report.damage] == [edited.path]
    (root / sound.path).unlink()
    assert {problem.path for problem in memory.verify().damage} == {edited.path, sound.path}


def test_the_version_of_an_entry_stays_when_others_are_added(memory: Memory) -> None:
    first = memory.put("decision", "the first", title="First")
    memory.put("decision", "the second", title="Second")
    assert memory.get(first.id).version == first.version
    memory.put(id=first.id, text="the first, changed", expect=first.version)
    assert memory.get(first.id).text == "the first, changed"


def test_the_version_of_an_entry_holds_in_a_file_with_windows_line_ends(memory: Memory, root: Path) -> None:
    path = root / memory.put("decision", "the first", title="First").path
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    second = memory.put("decision", "the second\nin two lines", title="Second")
    assert memory.get(second.id).version == second.version
    assert b"\n" not in path.read_bytes().replace(b"\r\n", b"")


def test_of_two_entries_with_the_same_text_the_one_that_is_named_is_hidden(memory: Memory, root: Path) -> None:
    path = root / memory.put("decision", "same", title="Same").path
    entry = path.read_bytes()[path.read_bytes().index(b"###") :]
    path.write_bytes(path.read_bytes() + b"\n" + entry + b"\n" + entry)
    found = sorted(ids(memory, "same"))
    assert len(found) == 3
    memory.hide(found[1])
    assert sorted(ids(memory, "same")) == [found[0], found[2]]


def test_an_entry_quoted_in_an_earlier_one_is_not_changed_in_its_place(memory: Memory, root: Path) -> None:
    path = root / memory.put("decision", "the real text", title="Real").path
    entry = path.read_text()[path.read_text().index("###") :]
    path.write_text(f"# Decisions\n\nFor example:\n\n```\n{entry}```\n\n{entry}")
    (real,) = ids(memory, '"the real text"')
    memory.put(id=real, text="changed", expect=memory.get(real).version)
    assert memory.get(real).text == "changed"
    assert path.read_text().startswith(f"# Decisions\n\nFor example:\n\n```\n{entry}```\n")


def test_an_entry_at_the_very_start_of_a_file_with_a_mark_of_order_can_be_hidden(memory: Memory, root: Path) -> None:
    path = root / memory.put("decision", "text", title="Title").path
    path.write_text("\ufeff### [2026-01-02] First\n\nmarble\n")
    (found,) = ids(memory, "marble")
    memory.hide(found)
    assert ids(memory, "marble") == []


def test_an_entry_is_readable_although_a_fence_before_it_was_never_closed(memory: Memory, root: Path) -> None:
    path = root / memory.put("decision", "text", title="Title").path
    with path.open("a") as file:
        file.write("\n### [2026-01-02] By hand\n\n```\nnever closed\n")
    kept = memory.put("decision", "see:\n\n```\nmarble\n```", title="New")
    assert memory.get(kept.id).title == "New"
    assert ids(memory, "marble") == [kept.id]


def test_new_text_for_a_page_that_is_not_utf_8_leaves_its_front_matter_alone(memory: Memory, root: Path) -> None:
    receipt = memory.put("note", "caf\u00e9 \u00e0 la carte", title="Menu", tags=["food"])
    path = root / receipt.path
    path.write_bytes(path.read_bytes().replace("caf\u00e9 \u00e0".encode(), "caf\u00e9 \u00e0".encode("latin-1")))
    head = path.read_bytes().partition(b"\n\n")[0]
    version = memory.get(receipt.id).version
    before = path.read_bytes()
    try:
        memory.put(id=receipt.id, text="tea only", expect=version)
    except HoldfastError:
        assert path.read_bytes() == before
    else:
        assert path.read_bytes().partition(b"\n\n")[0] == head
        assert memory.get(receipt.id).text == "tea only"


def test_a_page_with_a_number_where_a_flag_belongs_can_be_hidden(memory: Memory, root: Path) -> None:
    receipt = memory.put("note", "marble", title="Title")
    path = root / receipt.path
    path.write_bytes(path.read_bytes().replace(b"---\n", b"---\narchived: 1\n", 1))
    assert ids(memory, "marble") == [receipt.id]
    memory.hide(receipt.id)
    assert ids(memory, "marble") == []


def test_a_rule_may_begin_with_a_horizontal_line(memory: Memory) -> None:
    text = "---\narchived: true\n---\nNever push on Fridays."
    kept = memory.put("rule", text, id="agent/rules/common/fridays.md").id
    assert memory.get(kept).text == text
    assert ids(memory, "fridays") == [kept]
