"""What holds for the vault in a database beyond the contract."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pgserver
from contract.vault_contract import say
from holdfast.errors import AlreadyExists, Damaged, Invalid, Unavailable
from holdfast.storage.postgres import rows
from holdfast.storage.postgres.connections import Waits
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.vault import PgVault
from holdfast.storage.tree import ABSENT, LogEnd


@pytest.fixture
def vault(address: str) -> Iterator[PgVault]:
    opened = PgVault(Database(address))
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


def test_a_folder_stamp_changes_when_a_file_comes_or_goes_and_at_no_other_time(vault: PgVault) -> None:
    seen = []
    vault.append("top/a.jsonl", lambda _: b"one\n")
    seen.append(vault.folder_stamp("top"))
    vault.append("top/a.jsonl", lambda _: b"two\n")
    vault.write("top/below/b.md", b"text", expect=ABSENT)
    vault.write("beside/b.md", b"text", expect=ABSENT)
    assert vault.folder_stamp("top") == seen[0]
    vault.write("top/b.md", b"text", expect=ABSENT)
    seen.append(vault.folder_stamp("top"))
    vault.move("top/b.md", "beside/c.md")
    assert vault.folder_stamp("top") == seen[0]
    vault.remove("top/a.jsonl")
    seen.append(vault.folder_stamp("top"))
    vault.append("top/a.jsonl", lambda _: b"one\n")
    seen.append(vault.folder_stamp("top"))
    assert len(set(seen)) == 4
    assert 0 not in seen


def test_a_walk_of_many_files_comes_in_pages_and_misses_none(
    server: pgserver.Server, database: str, address: str, vault: PgVault
) -> None:
    plant(server, database, address, "'top/' || n % 7 || '/' || n || '.md'", 2503)
    plant(server, database, address, "'top2/' || n || '.md'", 3)
    plant(server, database, address, "'top/.hidden/' || n || '.md'", 3)
    found = [path for path, _ in vault.walk("top", (".md",), lambda _p, _w: None)]
    assert len(found) == len(set(found)) == 2503
    assert found == sorted(found)
    assert all(path.startswith("top/") for path in found)


def test_folders_are_found_however_deep_and_however_named(
    server: pgserver.Server, database: str, address: str, vault: PgVault
) -> None:
    names = ["a", "a-b", "a.b", "a b", "a0", "ä", "日本", "z%_", "A"]
    for name in names:
        for below in ("x.md", "deep/er/y.md", "-/z.md"):
            vault.write(f"top/{name}/{below}", b"text", expect=ABSENT)
    vault.write("top/only/very/deep.md", b"text", expect=ABSENT)
    plant(server, database, address, "'top/many/' || n || '/x.md'", 300)
    assert vault.folders("top") == sorted([*names, "only", "many"])
    assert vault.folders("top/a") == ["-", "deep"]
    assert vault.folders("top/only") == ["very"]
    assert len(vault.folders("top/many")) == 300
    assert vault.folders("to") == []


def test_a_suffix_is_taken_as_it_is(vault: PgVault) -> None:
    for name in ("a_b", "axb", "a%b", "a\\b"):
        if "\\" not in name:
            vault.write(f"top/{name}", b"text", expect=ABSENT)
    assert [path for path, _ in vault.walk("top", ("_b",), lambda _p, _w: None)] == ["top/a_b"]
    assert [path for path, _ in vault.walk("top", ("%b",), lambda _p, _w: None)] == ["top/a%b"]


@pytest.mark.parametrize("size", [rows.PIECE - 1, rows.PIECE, rows.PIECE + 1, 3 * rows.PIECE + 7])
def test_a_long_append_is_kept_in_pieces_and_read_as_one(vault: PgVault, size: int) -> None:
    vault.append("log.jsonl", lambda _: b"first\n")
    vault.append("log.jsonl", lambda _: b"x" * (size - 1) + b"\n")
    vault.append("log.jsonl", lambda _: b"last\n")
    assert [len(line.data) for line in vault.scan("log.jsonl")] == [5, size - 1, 4]
    assert [len(line.data) for line in vault.scan_back("log.jsonl")] == [4, size - 1, 5]
    assert vault.read("log.jsonl").data == b"first\n" + b"x" * (size - 1) + b"\nlast\n"


def test_a_path_that_no_index_can_hold_is_refused(vault: PgVault) -> None:
    longest = "/".join(["x" * 199] * 10)
    vault.write(longest, b"text", expect=ABSENT)
    assert vault.read(longest).data == b"text"
    for path in (f"{longest}xx", "/".join(["語" * 80] * 10)):
        with pytest.raises(Invalid, match="longer than 2,000 bytes"):
            vault.write(path, b"text", expect=ABSENT)


@pytest.mark.parametrize("start", [0, 4, 8])
def test_bytes_that_somebody_removed_from_a_log_are_noticed(
    server: pgserver.Server, database: str, address: str, vault: PgVault, start: int
) -> None:
    for word in (b"one\n", b"two\n", b"three\n"):
        vault.append("log.jsonl", say(word))
    tenant = address.rpartition("tenant=")[2]
    server.run(f"DELETE FROM holdfast.pieces WHERE tenant = '{tenant}' AND start = {start}", database)
    with pytest.raises(Damaged, match=f"missing at offset {start}"):
        list(vault.scan("log.jsonl"))
    with pytest.raises(Damaged, match=f"missing at offset {start}"):
        vault.read("log.jsonl")


def test_reading_the_end_of_a_log_does_not_read_its_beginning(vault: PgVault) -> None:
    for number in range(50):
        vault.append("log.jsonl", say(b"%d\n" % number), durable=False)
    plan = vault._database.run(
        "x",
        lambda turn: turn.rows("EXPLAIN " + rows._LOG_PART, inode=1, position=100, end=200),
    )
    conditions = [row[0] for row in plan if "Index Cond" in row[0]]
    assert len(conditions) == 2
    assert "start <=" in conditions[0]
    assert "start <" in conditions[1]
    assert "start >=" in conditions[1]


@pytest.mark.parametrize("folder", ["plain", 'we "said" it', "{a,b}", "it's, NULL", "100%"])
def test_a_document_is_made_whatever_its_folders_are_called_and_not_below_a_file(vault: PgVault, folder: str) -> None:
    vault.append("log.jsonl", lambda _: b"one\n")  # from now on it is done in one message
    for path in (f"{folder}/inner/one.md", f"{folder}/inner/two.md"):
        assert vault.write(path, path.encode(), expect=ABSENT) == vault.read(path).version
    with pytest.raises(AlreadyExists):
        vault.write(f"{folder}/inner/one.md", b"again", expect=ABSENT)
    with pytest.raises(AlreadyExists):
        vault.write(f"{folder}/inner", b"a file where a folder is", expect=ABSENT)
    with pytest.raises(Invalid, match="is a file"):
        vault.write(f"{folder}/inner/one.md/deeper.md", b"below a file", expect=ABSENT)
    assert [path for path, _ in vault.walk(folder, (".md",), lambda *_: None)] == [
        f"{folder}/inner/one.md", f"{folder}/inner/two.md"
    ]  # fmt: skip


def test_an_append_of_nothing_leaves_nothing(vault: PgVault) -> None:
    assert vault.append("log.jsonl", lambda _: b"") is None
    assert vault.stat("log.jsonl") is None


def test_what_must_last_lasts_also_inside_of_what_need_not(vault: PgVault) -> None:
    seen: list[object] = []

    def ask() -> None:
        seen.append(vault._database.run("x", lambda turn: turn.row("SELECT current_setting('synchronous_commit')")))

    def compose(_: LogEnd) -> bytes:
        ask()
        vault.write("beside.md", b"text", expect=ABSENT)
        ask()
        return b"line\n"

    vault.append("log.jsonl", compose, durable=False)
    assert seen == [("off",), ("on",)]


def test_a_commit_that_no_standby_confirmed_is_not_acknowledged() -> None:
    with pgserver.private() as alone:
        waits = Waits(statement_seconds=1.0)
        vault = PgVault(Database(alone.at("postgres"), waits))
        vault.append("log.jsonl", lambda _: b"one\n")
        alone.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        alone.run("SELECT pg_reload_conf()")
        with pytest.raises(Unavailable, match="no standby has confirmed"):
            for number in range(100):  # the server reads its settings in its own time
                vault.append("log.jsonl", say(b"%d\n" % number))
        vault.close()
