"""What holds for the tree in a database beyond the contract."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pgserver
from contract.tree_contract import say
from holdfast.errors import AlreadyExists, Damaged, Invalid, Unavailable
from holdfast.storage.postgres import rows
from holdfast.storage.postgres.connections import Waits
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.tree import PgTree
from holdfast.storage.tree import ABSENT, LogEnd


@pytest.fixture
def tree(address: str) -> Iterator[PgTree]:
    opened = PgTree(Database(address))
    yield opened
    opened.close()


def plant(server: pgserver.Server, database: str, address: str, path: str, count: int) -> None:
    """Put many small documents there; `path` is SQL over `n`."""
    tenant = address.rpartition("tenant=")[2]
    server.run(
        "INSERT INTO holdfast.files (tenant, path, inode, size, log, torn, version, data, op, writer)"
        f" SELECT '{tenant}', {path}, n, 1, false, true, 'v', 'x', gen_random_uuid(), '' FROM generate_series(1, {count}) n",
        database,
    )


def test_a_folder_stamp_changes_when_a_file_comes_or_goes_and_at_no_other_time(tree: PgTree) -> None:
    seen = []
    tree.append("top/a.jsonl", lambda _: b"one\n")
    seen.append(tree.folder_stamp("top"))
    tree.append("top/a.jsonl", lambda _: b"two\n")
    tree.write("top/below/b.md", b"text", expect=ABSENT)
    tree.write("beside/b.md", b"text", expect=ABSENT)
    assert tree.folder_stamp("top") == seen[0]
    tree.write("top/b.md", b"text", expect=ABSENT)
    seen.append(tree.folder_stamp("top"))
    tree.move("top/b.md", "beside/c.md")
    assert tree.folder_stamp("top") == seen[0]
    tree.remove("top/a.jsonl")
    seen.append(tree.folder_stamp("top"))
    tree.append("top/a.jsonl", lambda _: b"one\n")
    seen.append(tree.folder_stamp("top"))
    assert len(set(seen)) == 4
    assert 0 not in seen


def test_a_walk_of_many_files_comes_in_pages_and_misses_none(
    server: pgserver.Server, database: str, address: str, tree: PgTree
) -> None:
    plant(server, database, address, "'top/' || n % 7 || '/' || n || '.md'", 2503)
    plant(server, database, address, "'top2/' || n || '.md'", 3)
    plant(server, database, address, "'top/.hidden/' || n || '.md'", 3)
    found = [path for path, _ in tree.walk("top", (".md",), lambda _p, _w: None)]
    assert len(found) == len(set(found)) == 2503
    assert found == sorted(found)
    assert all(path.startswith("top/") for path in found)


def test_folders_are_found_however_deep_and_however_named(
    server: pgserver.Server, database: str, address: str, tree: PgTree
) -> None:
    names = ["a", "a-b", "a.b", "a b", "a0", "ä", "日本", "z%_", "A"]
    for name in names:
        for below in ("x.md", "deep/er/y.md", "-/z.md"):
            tree.write(f"top/{name}/{below}", b"text", expect=ABSENT)
    tree.write("top/only/very/deep.md", b"text", expect=ABSENT)
    plant(server, database, address, "'top/many/' || n || '/x.md'", 300)
    assert tree.folders("top") == sorted([*names, "only", "many"])
    assert tree.folders("top/a") == ["-", "deep"]
    assert tree.folders("top/only") == ["very"]
    assert len(tree.folders("top/many")) == 300
    assert tree.folders("to") == []


def test_a_suffix_is_taken_as_it_is(tree: PgTree) -> None:
    for name in ("a_b", "axb", "a%b", "a\\b"):
        if "\\" not in name:
            tree.write(f"top/{name}", b"text", expect=ABSENT)
    assert [path for path, _ in tree.walk("top", ("_b",), lambda _p, _w: None)] == ["top/a_b"]
    assert [path for path, _ in tree.walk("top", ("%b",), lambda _p, _w: None)] == ["top/a%b"]


@pytest.mark.parametrize("size", [rows.PIECE - 1, rows.PIECE, rows.PIECE + 1, 3 * rows.PIECE + 7])
def test_a_long_append_is_kept_in_pieces_and_read_as_one(tree: PgTree, size: int) -> None:
    tree.append("log.jsonl", lambda _: b"first\n")
    tree.append("log.jsonl", lambda _: b"x" * (size - 1) + b"\n")
    tree.append("log.jsonl", lambda _: b"last\n")
    assert [len(line.data) for line in tree.scan("log.jsonl")] == [5, size - 1, 4]
    assert [len(line.data) for line in tree.scan_back("log.jsonl")] == [4, size - 1, 5]
    assert tree.read("log.jsonl").data == b"first\n" + b"x" * (size - 1) + b"\nlast\n"


def test_a_path_that_no_index_can_hold_is_refused(tree: PgTree) -> None:
    longest = "/".join(["x" * 199] * 10)
    tree.write(longest, b"text", expect=ABSENT)
    assert tree.read(longest).data == b"text"
    for path in (f"{longest}xx", "/".join(["語" * 80] * 10)):
        with pytest.raises(Invalid, match="longer than 2,000 bytes"):
            tree.write(path, b"text", expect=ABSENT)


@pytest.mark.parametrize("start", [0, 4, 8])
def test_bytes_that_somebody_removed_from_a_log_are_noticed(
    server: pgserver.Server, database: str, address: str, tree: PgTree, start: int
) -> None:
    for word in (b"one\n", b"two\n", b"three\n"):
        tree.append("log.jsonl", say(word))
    tenant = address.rpartition("tenant=")[2]
    server.run(f"DELETE FROM holdfast.pieces WHERE tenant = '{tenant}' AND start = {start}", database)
    with pytest.raises(Damaged, match=f"missing at offset {start}"):
        list(tree.scan("log.jsonl"))
    with pytest.raises(Damaged, match=f"missing at offset {start}"):
        tree.read("log.jsonl")


def test_reading_the_end_of_a_log_does_not_read_its_beginning(tree: PgTree) -> None:
    for number in range(50):
        tree.append("log.jsonl", say(b"%d\n" % number), durable=False)
    plan = tree._database.run(
        "x",
        lambda turn: turn.rows("EXPLAIN " + rows._LOG_PART, inode=1, position=100, end=200),
    )
    conditions = [row[0] for row in plan if "Index Cond" in row[0]]
    assert len(conditions) == 2
    assert "start <=" in conditions[0]
    assert "start <" in conditions[1]
    assert "start >=" in conditions[1]


@pytest.mark.parametrize("folder", ["plain", 'we "said" it', "{a,b}", "it's, NULL", "100%"])
def test_a_document_is_made_whatever_its_folders_are_called_and_not_below_a_file(tree: PgTree, folder: str) -> None:
    for path in (f"{folder}/inner/one.md", f"{folder}/inner/two.md"):
        assert tree.write(path, path.encode(), expect=ABSENT) == tree.read(path).version
    with pytest.raises(AlreadyExists):
        tree.write(f"{folder}/inner/one.md", b"again", expect=ABSENT)
    with pytest.raises(AlreadyExists):
        tree.write(f"{folder}/inner", b"a file where a folder is", expect=ABSENT)
    with pytest.raises(Invalid, match="is a file"):
        tree.write(f"{folder}/inner/one.md/deeper.md", b"below a file", expect=ABSENT)
    assert [path for path, _ in tree.walk(folder, (".md",), lambda *_: None)] == [
        f"{folder}/inner/one.md", f"{folder}/inner/two.md"
    ]  # fmt: skip


def test_an_append_of_nothing_leaves_nothing(tree: PgTree) -> None:
    assert tree.append("log.jsonl", lambda _: b"") is None
    assert tree.stat("log.jsonl") is None


def test_what_must_last_lasts_also_inside_of_what_need_not(tree: PgTree) -> None:
    seen: list[object] = []

    def ask() -> None:
        seen.append(tree._database.run("x", lambda turn: turn.row("SELECT current_setting('synchronous_commit')")))

    def compose(_: LogEnd) -> bytes:
        ask()
        tree.write("beside.md", b"text", expect=ABSENT)
        ask()
        return b"line\n"

    tree.append("log.jsonl", compose, durable=False)
    assert seen == [("off",), ("on",)]


def test_a_commit_that_no_standby_confirmed_is_not_acknowledged() -> None:
    with pgserver.private() as alone:
        waits = Waits(statement_seconds=1.0)
        tree = PgTree(Database(alone.at("postgres"), waits))
        tree.append("log.jsonl", lambda _: b"one\n")
        alone.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        alone.run("SELECT pg_reload_conf()")
        with pytest.raises(Unavailable, match="no standby has confirmed"):
            for number in range(100):  # the server reads its settings in its own time
                tree.append("log.jsonl", say(b"%d\n" % number))
        tree.close()
