"""`holdfast migrate store`: a database of schema 10 becomes rows, whole, whatever interrupts it, and says so before."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import fork_server
import holdfast
import pgserver
from holdfast.errors import Busy, Conflict, HoldfastError, Unavailable
from holdfast.formats import jsonl
from holdfast.model.queries import Query
from holdfast.model.records import version_of
from holdfast.model.times import from_ns, mint_many
from holdfast.roots import make_root, set_up
from holdfast.storage.postgres import database, migration
from holdfast.storage.postgres.rows import Row
from holdfast.storage.tree import ABSENT
from teamserver import serving

COMMAND = [sys.executable, "-m", "holdfast", "migrate", "store"]
HISTORY = "user/memory/history.jsonl"
OLD_HISTORY = "user/memory/history/2024.jsonl"
LARGE = "resources/workspaces/default/large.md"
LATER = "resources/workspaces/default/later.md"
DAMAGED = b'{"id":"01a1ed0c-19b3-7845-86f3-f3b616cc70'
STATE = {"conversationContext": "c", "activeTask": "t", "activeFiles": [], "nextSteps": []}


# an old database


class Old:
    """A database of schema 10, filled from folders."""

    def __init__(self, server: pgserver.Server, name: str) -> None:
        self.server, self.name, self.address = server, name, server.at(name)
        server.run((Path(__file__).parent / "schema10.sql").read_text(), name)

    def at(self, tenant: str) -> str:
        return self.server.at(self.name, tenant=tenant)

    def fill(self, tenant: str, files: dict[str, bytes]) -> None:
        """Store files as an earlier version did: documents in their row, logs and long documents in pieces."""
        chance = random.Random(tenant)
        with psycopg.connect(make_conninfo(self.server.dsn, dbname=self.name)) as connection:
            for path, data in files.items():
                pieces = len(data) > 1 << 18 or (path.endswith(".jsonl") and chance.random() < 0.9)
                inode, torn = chance.getrandbits(62), not data.endswith(b"\n") and data != b""
                connection.execute(
                    "INSERT INTO holdfast.files (tenant, path, inode, size, log, torn, version, data, op, writer, changed)"
                    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, gen_random_uuid(), 'me', '2025-06-01T12:00:00Z')",
                    [tenant, path, inode, len(data), pieces, torn, None if pieces else version_of(data),
                     None if pieces else data],
                )  # fmt: skip
                start = 0
                while pieces and start < len(data):
                    part = data[start : start + chance.randrange(1, 1 << 18)]
                    connection.execute(
                        "INSERT INTO holdfast.pieces (tenant, inode, start, data, op, writer)"
                        " VALUES (%s, %s, %s, %s, gen_random_uuid(), 'me')",
                        [tenant, inode, start, part],
                    )
                    start += len(part)

    def token(self, tenant: str, name: str, revoked: str = "") -> None:
        self.server.run(
            "INSERT INTO holdfast.tokens (tenant, id, name, digest, scope, reads_only, login, revoked, used)"
            f" VALUES ('{tenant}', '{secrets.token_hex(4)}', '{name}', 'digest of {name}', '', true, 'someone',"
            f" nullif('{revoked}', '')::timestamptz, '2026-02-03')",
            self.name,
        )

    def version(self) -> int:
        ((found,),) = self.server.run("SELECT max(version) FROM holdfast.migrations", self.name)
        assert isinstance(found, int)
        return found

    def rows(self) -> list[tuple[object, ...]]:
        """Return everything that the new tables say, except for the transactions in which it was added."""
        columns = ", ".join(Row.__struct_fields__)
        return self.server.run(f"SELECT {columns}::text FROM holdfast.record ORDER BY tenant, id", self.name)

    def catalogue(self) -> list[tuple[object, ...]]:
        """Return the tables, columns, rights, policies and functions of the database."""
        return [
            *self.server.run("SELECT relname, relkind, relacl::text, relforcerowsecurity FROM pg_class WHERE relnamespace ="
                             " 'holdfast'::regnamespace ORDER BY relname", self.name),
            *self.server.run("SELECT tablename, policyname, roles::text, qual FROM pg_policies ORDER BY 1, 2", self.name),
            *self.server.run("SELECT proname, prosrc, proacl::text FROM pg_proc WHERE pronamespace ="
                             " 'holdfast'::regnamespace ORDER BY proname", self.name),
        ]  # fmt: skip


@pytest.fixture
def old(server: pgserver.Server) -> Iterator[Old]:
    with server.database("old") as name:
        yield Old(server, name)


def files_of(root: str) -> dict[str, bytes]:
    """Return all files of a memory in a folder, without what is derived from them."""
    found = (path for path in Path(root).rglob("*") if path.is_file())
    files = {str(path.relative_to(root)): path.read_bytes() for path in found}
    return {path: data for path, data in files.items() if not path.startswith((".holdfast/", ".git"))}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A memory in files with all that a database may have to copy."""
    root = str(tmp_path_factory.mktemp("source") / "root")
    make_root(root)
    with holdfast.open(root, writer="me") as memory:
        note = memory.put("note", "Tomatoes need water. Ünïcödé 🍅", title="Gärten", op_id="first")
        changed = memory.put("note", "Tomatoes need much water.", id=note.id, expect=note.version, op_id="second")
        memory.put("note", "Tomatoes need water in summer.", id=note.id, expect=changed.version)
        memory.put("decision", "It is simple.", title="One database")
        memory.put("decision", "It is quick.", title="One language")
        for value in ("Lisbon", "Porto", "Braga"):
            memory.put("fact", value, fields={"key": "office"}, op_id=f"office-{value}")
        memory.hide(memory.put("fact", "nobody", fields={"key": "gone"}).id)
        shown = memory.put("fact", "everybody", fields={"key": "back"}).id
        memory.hide(shown)
        memory.hide(shown, restore=True)
        memory.put("episode", "x" * 20_000, session="monday")
        memory.hide(memory.put("episode", "Not this one.", session="monday").id, op_id="hidden")
        for name in ("S", "T"):
            assert memory.call("createState", {"name": name, **STATE})["success"]
        assert memory.call("archiveState", {"name": "T"})["success"]
        memory.store.log_write({"path": LATER, "after": "0" * 32, "intent": True}, "announced")
        memory.chat.persist_exchange("cli", "me", "How are the tomatoes?", "They need water.")
        memory.tasks.create("Water the tomatoes", op_id="task")
    lines = [
        {"id": identifier, "timestamp": f"2024-05-{1 + number // 1000:02}T10:00:00Z", "role": "user", "content": f"Nr. {number}"}
        for number, identifier in enumerate(mint_many("", 6_000, 1_714_557_600_000))
    ]  # fmt: skip
    anonymous = {"timestamp": "2024-05-30T10:00:00Z", "role": "user", "content": "I have no id"}
    twice = {**lines[5], "content": "The same id, other words"}
    long = "o" * 200
    odd = [
        anonymous,
        twice,
        {**lines[0], "id": mint_many("", 1)[0], "content": "a\0b"},
        {**lines[1], "id": mint_many("", 1)[0], "op": long},
    ]
    every = [jsonl.render(line) for line in (*lines, *odd)] + [DAMAGED + b"\n", b"\n", b"\xff\xfe not text\n"]
    path = Path(root, OLD_HISTORY)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(every))
    other = [anonymous, lines[7], {"id": "by hand", "role": "user", "content": "Its id is a word"}]
    path.with_name("2025.jsonl").write_bytes(b"".join(map(jsonl.render, other))[:-1])  # its last line is torn
    Path(root, LARGE).parent.mkdir(parents=True, exist_ok=True)
    Path(root, LARGE).write_text("# Large\n\n" + "Ä line of tëxt, 🍅.\n" * 220_000)
    assert Path(root, LARGE).stat().st_size > 5_000_000
    Path(root, "resources/workspaces/default/picture.png").write_bytes(b"\x89PNG\0")
    return root


@pytest.fixture
def filled(old: Old, folder: str) -> Old:
    """Three tenants: all of the folder, a small memory, and one that has only tokens."""
    old.fill("red", files_of(folder))
    old.fill("blau Ü", {"holdfast.toml": b"format = 1\n[paths]\nmemory = 'mem'\n", "mem/MEMORY.md": "Süß.".encode(),
                        f"mem/writes/kept/{'0' * 32}": b"Before.", "mem/semantic.jsonl": b""})  # fmt: skip
    old.token("red", "alice")
    old.token("red", "bob", revoked="2026-01-02")
    old.token("green", "carol")
    return old


def migrate(address: str, *options: str) -> dict[str, Any]:
    done = fork_server.run([*COMMAND, address, *options, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    reply: dict[str, Any] = json.loads(done.stdout)
    return reply


def refused(address: str, *options: str) -> str:
    """Run the command, which must fail and change nothing; return its error."""
    done = fork_server.run([*COMMAND, address, *options], capture_output=True, text=True, timeout=300)
    assert done.returncode not in (0, 1), done.stdout
    return str(json.loads(done.stderr)["error"])


def entries(data: bytes) -> set[str]:
    """Return what the lines of a log say: the sorted fields of each object, and lines that cannot be read."""
    found: set[str] = set()
    for line in data.split(b"\n"):
        values = jsonl.parse(line)
        if isinstance(values, str):
            found.add(repr(line))
        else:
            found.update(json.dumps(value, sort_keys=True) for value in values)
    return found


# before


def test_opening_an_old_database_names_the_command(filled: Old) -> None:
    command = "run: holdfast migrate store ADDRESS"
    openings: list[Callable[[], object]] = [
        lambda: holdfast.open(filled.at("red")),
        lambda: set_up(filled.at("new")),
    ]
    for opening in openings:
        with pytest.raises(Unavailable, match=r"earlier Holdfast \(schema 10") as caught:
            opening()
        assert command in caught.value.next_step
    for words in (["init", filled.at("red")], ["doctor", "--root", filled.at("red")]):
        done = fork_server.run([*COMMAND[:3], *words], capture_output=True, text=True, check=False)
        assert done.returncode == Unavailable.exit_code
        assert command in done.stdout + done.stderr
    with serving(filled.at("red")) as team:
        assert team.get("/readyz").status_code == 503
        deadline = time.monotonic() + 20
        while not (told := [line for line in team.lines() if line["event"] == "store"]) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert command in told[0]["reason"]
    assert filled.version() == 10


def test_without_yes_it_is_shown_and_nothing_is_changed(filled: Old, folder: str) -> None:
    before = filled.catalogue()
    reply = migrate(filled.address)
    assert (reply["done"], reply["schema"]) == (False, 10)
    files = files_of(folder)
    logs = [path for path in files if path.endswith(".jsonl")]
    lines = sum(len(files[path].removesuffix(b"\n").split(b"\n")) for path in logs)
    size = sum(map(len, files.values()))
    assert reply["tenants"] == [
        {"tenant": "blau Ü", "documents": 3, "logs": 1, "lines": 0, "bytes": 34 + 6 + 7},
        {"tenant": "green", "documents": 0, "logs": 0, "lines": 0, "bytes": 0},
        {"tenant": "red", "documents": len(files) - len(logs), "logs": len(logs), "lines": lines, "bytes": size},
    ]
    assert filled.catalogue() == before
    assert filled.version() == 10


# the copy


def test_everything_is_copied_and_means_the_same(filled: Old, folder: str) -> None:
    migrate(filled.address, "--yes")
    assert filled.version() == database.VERSION
    files = files_of(folder)
    with holdfast.open(filled.at("red"), writer="me") as memory, holdfast.open(folder, writer="me") as source:
        for path, data in files.items():
            if path.endswith(".jsonl"):
                assert {one for one in entries(data) if '"id"' in one or one[0] == "b"} <= entries(
                    memory.tree.read(path).data
                )
            else:
                assert memory.tree.read(path).data == data
        walked = {path for path, _ in memory.tree.walk("", ("",), lambda *_: None)}
        assert walked | {path for path, _ in memory.tree.walk("user/memory", ("",), lambda *_: None)} == {*files}
        assert memory.verify().differences == []

        both = (memory, source)
        kinds = ("note", "decision", "fact", "episode", "state", "document")
        for query in (Query(kinds=kinds), Query(kinds=kinds, hidden=True)):
            got, wanted = ({(one.id, one.text, one.hidden) for one in each.every(query)} for each in both)
            assert got == wanted
        (note,) = source.every(Query(kinds=("note",)))
        assert [v.version for v in memory.versions(note.id)] == [v.version for v in source.versions(note.id)]
        assert len({memory.text_at(note.id, v.version) for v in memory.versions(note.id)}) == 3
        assert memory.sources([note])[note.id] == source.sources([note])[note.id]
        for tool, given in (("listStates", {}), ("listStates", {"includeArchived": True})):
            assert memory.call(tool, given) == source.call(tool, given)
        for question in ("tomatoes water", "Nr. 5999", "I have no id", "which office"):
            first = [each.find(question, limit=3).hits[0].record for each in both]
            assert first[0].text == first[1].text
        assert [record.text for record in memory.tail("message", 2)] == ["How are the tomatoes?", "They need water."]


def test_an_op_id_that_was_used_has_no_effect_later(filled: Old) -> None:
    migrate(filled.address, "--yes")
    with holdfast.open(filled.at("red"), writer="me") as memory:
        assert memory.put("fact", "Lisbon", fields={"key": "office"}, op_id="office-Lisbon").status == "repeated"
        assert memory.put("note", "Tomatoes need water. Ünïcödé 🍅", title="Gärten", op_id="first").status == "repeated"
        with pytest.raises(Conflict, match="was used"):
            memory.put("fact", "anything", fields={"key": "new"}, op_id="hidden")
        assert memory.store.knows_op("o" * 200)
        assert memory.store.write(LATER, b"Written now.", expect=ABSENT, op_id="announced").status == "stored"


def test_entries_that_share_an_id_or_cannot_be_rows_are_not_lost(filled: Old) -> None:
    migrate(filled.address, "--yes")
    with holdfast.open(filled.at("red")) as memory:
        lines = [line.data for line in memory.tree.scan(OLD_HISTORY)]
        assert len(lines) == 6_000 + 4 + 2
        assert DAMAGED in lines
        assert b"\xff\xfe not text" in lines
        assert sum(b"The same id, other words" in line for line in lines) == 1
        assert sum(rb'"content":"a\u0000b"' in line for line in lines) == 1
        assert len(memory.store.problems(OLD_HISTORY)) == 3
        texts = [record.text for record in memory.store.newest(OLD_HISTORY.replace("2024", "2025"))]
        assert sorted(texts) == ["I have no id", "Its id is a word", "Nr. 7"]
        assert memory.find("Nr. 7", limit=1).hits[0].record.text == "Nr. 7"


def test_times_tenants_and_tokens_are_kept(filled: Old) -> None:
    before = filled.server.run("SELECT * FROM holdfast.tokens ORDER BY tenant, id", filled.name)
    migrate(filled.address, "--yes")
    columns = "tenant, id, name, digest, scope, reads_only, login, created, expires, revoked, used"
    assert filled.server.run(f"SELECT {columns} FROM holdfast.token ORDER BY tenant, id", filled.name) == before
    with holdfast.open(filled.at("blau Ü")) as memory:
        assert memory.tree.read("mem/MEMORY.md").data.decode() == "Süß."
        assert memory.tree.read(f"mem/writes/kept/{'0' * 32}").data == b"Before."
        assert memory.stats()["kinds"] == {"memory": 1}
        stamp = memory.tree.stat("mem/MEMORY.md")
        assert stamp is not None
        assert from_ns(stamp.mtime) == "2025-06-01T12:00:00.000Z"
    with holdfast.open(filled.at("green")) as memory:
        assert memory.stats()["records"] == 0


def test_programs_that_are_still_connected_cannot_write_to_the_old_tables(filled: Old) -> None:
    with psycopg.connect(make_conninfo(filled.server.dsn, dbname=filled.name), autocommit=True) as connection:
        connection.execute("SET ROLE holdfast_writer; SET holdfast.tenant = 'red'")
        connection.execute("UPDATE holdfast.files SET size = size")
        migrate(filled.address, "--yes")
        for table in ("files", "pieces", "tokens"):
            assert connection.execute(f"SELECT count(*) > 0 FROM holdfast.{table}").fetchone() == (True,)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"DELETE FROM holdfast.{table}")
        with pytest.raises(psycopg.errors.UndefinedFunction):
            connection.execute("SELECT holdfast.append_00('red', 1, 0, 'x')")


def test_no_policy_for_all_tenants_is_left(filled: Old) -> None:
    migrate(filled.address, "--yes")
    found = filled.server.run("SELECT tablename FROM pg_policies WHERE qual = 'true' ORDER BY 1", filled.name)
    assert found == [("embedding",), ("index_words",), ("record",)]  # those of the views
    with psycopg.connect(make_conninfo(filled.server.dsn, dbname=filled.name)) as connection:
        connection.execute("SET ROLE holdfast_writer")
        for table in ("files", "pieces", "tokens", "record", "token"):
            assert connection.execute(f"SELECT count(*) FROM holdfast.{table}").fetchone() == (0,)


def test_a_second_run_changes_nothing(filled: Old) -> None:
    migrate(filled.address, "--yes")
    before = filled.rows()
    assert migrate(filled.address, "--yes")["done"] is False
    assert filled.rows() == before


# the old tables


def test_old_tables_are_dropped_only_after_the_copy(filled: Old) -> None:
    for options in (["--drop-old"], ["--drop-old", "--yes"]):
        assert "not copied yet" in refused(filled.address, *options)
    migrate(filled.address, "--yes")
    before = filled.catalogue()
    assert migrate(filled.address, "--drop-old")["old_tables"] == 5
    assert filled.catalogue() == before
    rows = filled.rows()
    assert migrate(filled.address, "--drop-old", "--yes")["done"]
    assert migrate(filled.address, "--drop-old", "--yes")["done"] is False
    assert filled.rows() == rows
    with filled.server.database("fresh") as name:
        set_up(filled.server.at(name))
        fresh = Old.__new__(Old)
        fresh.server, fresh.name = filled.server, name
        assert filled.catalogue() == fresh.catalogue()


# interruptions


def plain_copy(filled: Old, folder: str) -> list[tuple[object, ...]]:
    """Return the rows of a migration that nothing interrupts."""
    with filled.server.database("plain") as name:
        other = Old(filled.server, name)
        other.fill("red", files_of(folder))
        migrate(other.address, "--yes")
        return other.rows()


@contextlib.contextmanager
def copying(address: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command beside the test."""
    with subprocess.Popen([*COMMAND, address, "--yes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        yield process
        process.wait(300)


def wait_for(old: Old, count: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until so many rows are copied; False when the command has ended."""
    there = "SELECT to_regclass('holdfast.record') IS NOT NULL"
    while process.poll() is None:
        if not count or old.server.run(there, old.name) == [(True,)]:
            ((found,),) = old.server.run("SELECT count(*) FROM holdfast.record", old.name) if count else [(0,)]
            if isinstance(found, int) and found >= count:
                return True
        time.sleep(0.005)
    return False


def test_a_command_that_is_killed_goes_on_where_it_was(old: Old, folder: str) -> None:
    old.fill("red", files_of(folder))
    killed = 0
    for count in (0, 1, 30, 2_500, 5_500):
        with copying(old.address) as process:
            if wait_for(old, count, process):
                process.send_signal(signal.SIGKILL)
        killed += process.returncode == -signal.SIGKILL
        if process.returncode:
            with pytest.raises(Unavailable, match="has not finished" if count else "earlier Holdfast") as caught:
                holdfast.open(old.at("red"))
            assert "holdfast migrate store ADDRESS" in caught.value.next_step
    assert killed >= 3
    migrate(old.address, "--yes")
    assert old.version() == database.VERSION
    assert old.rows() == plain_copy(old, folder)


def test_a_server_that_is_killed_loses_and_doubles_nothing(folder: str) -> None:
    with pgserver.stoppable() as running, running.server.database("killed") as name:
        old = Old(running.server, name)
        old.fill("red", files_of(folder))
        wanted, killed = plain_copy(old, folder), 0
        for count in (20, 2_500):
            with copying(old.address) as process:
                if wait_for(old, count, process):
                    running.kill()
                    killed += 1
                    time.sleep(0.2)
                    running.start()
                _, told = process.communicate(timeout=300)
            if process.returncode:
                again = (
                    "What was copied stays; run this again to go on.",
                    "Check host and port, and that the server runs.",
                    "Try again soon.",
                )
                assert json.loads(told)["error"].endswith(again)
        assert killed
        migrate(old.address) if old.version() == database.VERSION else migrate(old.address, "--yes")
        assert old.version() == database.VERSION
        assert old.rows() == wanted


def test_two_at_once_are_one(filled: Old) -> None:
    with (
        migration.opened(filled.address),
        pytest.raises(Busy, match="Another program"),
        migration.opened(filled.address),
    ):
        pass


# what cannot be done


def test_a_copy_that_differs_is_not_opened(filled: Old) -> None:
    with migration.opened(filled.address) as old_tables:
        old_tables.survey()
    stray = "resources/workspaces/default/stray.md"
    with psycopg.connect(make_conninfo(filled.server.dsn, dbname=filled.name), autocommit=True) as connection:
        database.set_up(connection, over=True)
        for path, key in ((stray, ""), (HISTORY, None)):
            row = Row("red", mint_many("", 1)[0], path=path, key=key, live=True, text="It was never in the old tables.")
            names = ", ".join(Row.__struct_fields__)
            values = ", ".join(["%s"] * len(Row.__struct_fields__))
            connection.execute(f"INSERT INTO holdfast.record ({names}) VALUES ({values})", msgspec.structs.astuple(row))
    error = refused(filled.address, "--yes")
    assert stray in error
    assert HISTORY in error
    assert filled.version() == database.COPYING
    with pytest.raises(Unavailable):
        holdfast.open(filled.at("red"))


@pytest.mark.parametrize(
    ("path", "data", "what"),
    [
        ("/".join(["x" * 200] * 9) + "/note.md", b"x", "is too long for a path"),
        ("holdfast.toml", b"[search]\nno_such = 1\n", "no_such"),
        ("holdfast.toml", b"\xff", "utf-8"),
    ],
)
def test_what_cannot_be_copied_is_told_before_anything_changes(filled: Old, path: str, data: bytes, what: str) -> None:
    before = filled.catalogue()
    filled.fill("odd", {path: data})
    for options in ([], ["--yes"]):
        error = refused(filled.address, *options)
        assert error.startswith("Tenant odd: ")
        assert what in error
        assert "Nothing was changed." in error
    assert filled.catalogue() == before
    assert filled.version() == 10


def test_bytes_that_are_missing_are_an_error_and_nothing_is_opened(filled: Old) -> None:
    filled.server.run("DELETE FROM holdfast.pieces WHERE start > 0 AND tenant = 'red'", filled.name)
    assert "bytes are missing" in refused(filled.address, "--yes")
    assert filled.version() == database.COPYING


@pytest.mark.parametrize("rights", ["", "holdfast_reader", "holdfast_writer"])
def test_a_login_without_the_rights_is_told_which_it_needs(filled: Old, rights: str) -> None:
    login = f"somebody_{secrets.token_hex(4)}"
    filled.server.run(f"CREATE ROLE {login} LOGIN PASSWORD 'pw'")
    try:
        if rights:
            filled.server.run(f"GRANT {rights} TO {login}")
        error = refused(filled.server.at(filled.name, user=login, password="pw"), "--yes")
        assert ("holdfast_owner" if rights else "GRANT holdfast_writer") in error
        assert filled.version() == 10
    finally:
        filled.server.run(f"DROP ROLE {login}")


def test_an_owner_without_other_rights_migrates(filled: Old) -> None:
    login = f"owner_{secrets.token_hex(4)}"
    filled.server.run(
        f"CREATE ROLE {login} LOGIN PASSWORD 'pw' IN ROLE holdfast_owner, holdfast_writer, holdfast_reader"
    )
    try:
        assert migrate(filled.server.at(filled.name, user=login, password="pw"), "--yes")["done"]
        assert filled.version() == database.VERSION
    finally:
        filled.server.run(f"DROP OWNED BY {login}; DROP ROLE {login}", filled.name)


def test_other_databases_are_refused(old: Old) -> None:
    old.server.run("INSERT INTO holdfast.migrations (version, name) VALUES (13, 'newer')", old.name)
    assert "Upgrade Holdfast." in refused(old.address, "--yes")
    with old.server.database("empty") as name:
        assert "There is no memory to migrate" in refused(old.server.at(name), "--yes")
        assert old.server.run("SELECT count(*) FROM pg_namespace WHERE nspname = 'holdfast'", name) == [(0,)]
    assert "not the address of a PostgreSQL database" in refused(os.getcwd())


def test_a_new_database_has_nothing_to_migrate(server: pgserver.Server) -> None:
    with server.database("new") as name:
        set_up(server.at(name))
        assert migrate(server.at(name), "--yes") == {
            "done": False,
            "schema": database.VERSION,
            "old_tables": 0,
            "tenants": [],
        }


def test_errors_of_the_migration_are_ours(filled: Old) -> None:
    """A failing statement is reported as an error of Holdfast."""
    with pytest.raises(HoldfastError), migration.opened(filled.address) as old_tables:
        filled.server.run("DROP TABLE holdfast.tokens CASCADE", filled.name)
        old_tables.survey()
