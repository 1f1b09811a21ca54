"""Opening a database: what is made of an empty one, and what every interface reports when it cannot be used."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import secrets
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

import fork_server
import holdfast
import pgserver
from holdfast.cli.main import cli
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.owner.backup import restore
from holdfast.recall import embedders
from holdfast.roots import make_root, open_folder, open_tree
from holdfast.storage.postgres import connections, database
from holdfast.storage.postgres.connections import Statement
from holdfast.storage.postgres.database import OWNER, READER, VERSION, WRITER, Database
from holdfast.storage.postgres.store import PgStore
from holdfast.storage.tree import ABSENT, RootGone
from test_postgres_faults import between

PASSWORD = "s3cret-Pa55word"
KNOWN = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
"""The options that the libpq of this machine has."""


@pytest.fixture
def empty(server: pgserver.Server) -> Iterator[str]:
    with server.database("empty") as name:
        yield name


@pytest.fixture
def login(server: pgserver.Server) -> Iterator[str]:
    """A login with a password and no rights of its own."""
    name = f"somebody_{secrets.token_hex(4)}"
    server.run(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")
    yield name
    server.run(f"DROP ROLE {name}")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """A folder to work in; no file or folder in it gets an address for its name."""
    yield tmp_path
    assert not [path for path in tmp_path.rglob("*") if "postgres" in path.name.lower()]


def refused(dsn: str) -> HoldfastError:
    """Return the error of opening an address, which contains no password."""
    with pytest.raises(HoldfastError) as caught:
        Database(dsn)
    error = caught.value
    assert error.next_step
    context = error.__context__ if not error.__suppress_context__ else ""
    assert PASSWORD not in f"{error} {error!r} {error.__cause__} {context}"
    return error


def command(here: Path, words: str, address: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PG"))}
    environment |= {"HOME": str(here)} | ({"HOLDFAST_ROOT": address} if address else {})
    done = fork_server.run(
        [sys.executable, "-m", "holdfast", *shlex.split(words)],
        env=environment, cwd=here, capture_output=True, text=True, input="", timeout=120,
    )  # fmt: skip
    assert PASSWORD not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def refused_everywhere(here: Path, address: str, words: str = "search tea") -> HoldfastError:
    """Return the error that Python gets; the command prints the same with its exit code."""
    with pytest.raises(HoldfastError) as caught, holdfast.open(address) as memory:
        memory.put("note", "x", title="X") if words.startswith("put") else memory.find("tea")
    done = command(here, words, address)
    printed = json.loads(done.stderr)
    assert (printed["error"], printed["code"]) == (str(caught.value), done.returncode)
    assert done.returncode == caught.value.exit_code
    assert caught.value.next_step
    assert PASSWORD not in repr(caught.value)
    return caught.value


# addresses


@pytest.mark.parametrize(
    ("dsn", "tenant", "shown"),
    [
        (
            "postgresql://ann:pw@db.example:5433/memory",
            "default",
            "postgresql://ann@db.example:5433/memory?tenant=default",
        ),
        ("postgres://ann:pw@db/memory?tenant=team-1", "team-1", "postgresql://ann@db/memory?tenant=team-1"),
        ("postgresql://db/m?tenant=a%20b&sslmode=disable", "a b", "postgresql://db/m?tenant=a b"),
        ("postgresql://one,two/m?target_session_attrs=read-write&tenant=t", "t", "postgresql://one,two/m?tenant=t"),
        (
            "postgresql://ann:p%40ss@/m?host=/run/pg&password=other",
            "default",
            "postgresql://ann@/run/pg/m?tenant=default",
        ),
    ],
)
def test_an_address_is_read_and_shown_without_its_password(dsn: str, tenant: str, shown: str) -> None:
    address = connections.parse_address(dsn)
    assert (address.tenant, address.shown) == (tenant, shown)
    assert "pw" not in repr(address)
    assert "tenant" not in address.conninfo


@pytest.mark.parametrize(
    "dsn",
    [
        "",
        "mysql://x",
        f"postgresql://u:{PASSWORD}/x@host:port/db",
        f"postgresql://u:{PASSWORD}%zz@host/db",
        f"postgresql://u:{PASSWORD}@host/db?no_such_option=1",
        f"postgresql://u:{PASSWORD}@host/db?tenant=",
        f"postgresql://u:{PASSWORD}@host/db?tenant=%0A",
        f"postgresql://u:{PASSWORD}@host/db?tenant={'x' * 201}",
        f"postgresql://u:{PASSWORD}@[::1/db",
        f"postgresql://u:x?{PASSWORD}@host/db",
        f"postgresql://u:x?tenant={PASSWORD}@host/db",
        f"postgresql://u:12/x?user={PASSWORD}@host/db",
        f"postgresql://u:x@{PASSWORD}@host/db",
        f"postgresql://u:x@{PASSWORD}?user=y@host/db",
    ],
)
def test_an_address_that_cannot_be_read_is_refused_without_quoting_it(dsn: str) -> None:
    assert isinstance(refused(dsn), Invalid)


@pytest.mark.parametrize(
    ("dsn", "bare"),
    [
        (
            "postgres://ann:SECRET@db.example:5433/memory?tenant=a+b",
            "postgresql://ann@db.example:5433/memory?tenant=a%20b",
        ),
        ("postgresql://a%40b:SECRET@one,two:5/m", "postgresql://a%40b@one,two:5/m"),
        ("postgresql://one,two/m?port=5", "postgresql:///m?host=one,two&port=5"),
        ("postgresql://u:SECRET@[::1]:5/m", "postgresql://u@/m?host=::1&port=5"),
        ("postgresql://u@/m?host=/run/p%20g&password=SECRET", "postgresql://u@/m?host=/run/p%20g"),
        ("postgresql://u@h/m?pass%77ord=SECRET&sslmode=require", "postgresql://u@h/m?sslmode=require"),
        ("postgresql://u@h/m?sslpassword=SECRET&tenant=%C3%B8", "postgresql://u@h/m?tenant=%C3%B8"),
        ("postgresql://h/m?options=-cgeqo%3Doff%20-cx%3D1%26", "postgresql://h/m?options=-cgeqo%3Doff%20-cx%3D1%26"),
        ("postgresql://", "postgresql:///"),
        *(
            (f"postgresql://u@h/m?{key}=SECRET", "postgresql://u@h/m")
            for key in ("oauth_client_secret", "scram_client_key", "scram_server_key")
            if key in KNOWN
        ),
    ],
)
def test_an_address_without_its_secrets_opens_the_same(dsn: str, bare: str) -> None:
    address = connections.parse_address(dsn)
    assert address.bare == bare
    assert "SECRET" not in f"{address.shown} {address!r}"
    again = connections.parse_address(bare)
    assert (again.tenant, again.bare) == (address.tenant, bare)
    kept = conninfo_to_dict(address.conninfo)
    assert {key for key in kept if kept[key] != conninfo_to_dict(again.conninfo).get(key)} <= {
        key for key in kept if kept[key] == "SECRET"
    }


@pytest.mark.parametrize("command", [("stats",), ("doctor",), ("install", "cursor", "--dry-run")])
def test_no_command_tells_a_password_that_was_written_carelessly(command: tuple[str, ...], tmp_path: Path) -> None:
    for dsn in (f"postgresql://u:x?{PASSWORD}@127.0.0.1:1/db", f"postgresql://u:x@{PASSWORD}@127.0.0.1:1/db"):
        done = fork_server.run(
            [sys.executable, "-m", "holdfast", *command, "--root", dsn],
            capture_output=True, text=True, check=False, timeout=60, env=os.environ | {"HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode != 0
        assert PASSWORD not in done.stdout + done.stderr


# no connection


def test_where_nothing_listens_the_server_is_not_there(here: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    error = refused_everywhere(here, f"postgresql://ann:{PASSWORD}@127.0.0.1:{port}/m")
    assert isinstance(error, RootGone)
    assert f"No PostgreSQL server answers at postgresql://ann@127.0.0.1:{port}/m" in error.message


def test_a_host_that_has_no_address_is_not_there() -> None:
    assert isinstance(refused(f"postgresql://ann:{PASSWORD}@no-such-host.invalid/m"), RootGone)


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        error = refused(f"postgresql://ann:{PASSWORD}@127.0.0.1:{port}/m?connect_timeout=2")
    assert isinstance(error, RootGone)


def test_a_wrong_password_is_refused_and_not_shown(server: pgserver.Server, empty: str, login: str, here: Path) -> None:
    error = refused_everywhere(here, server.at(empty, user=login, password=f"{PASSWORD}x"))
    assert f'refused the user "{login}"' in error.message
    assert "password" in error.next_step


def test_a_missing_password_is_asked_for(server: pgserver.Server, empty: str, login: str) -> None:
    if not server.local:
        pytest.skip("HOLDFAST_TEST_DSN: whether that server asks for a password is not known")
    error = refused(server.at(empty, user=login, host="127.0.0.1"))
    assert "none was given" in error.message


def test_a_missing_database_is_named(server: pgserver.Server, login: str, here: Path) -> None:
    error = refused_everywhere(here, server.at("no_such_database", user=login, password=PASSWORD))
    assert '"no_such_database"' in error.message
    assert "CREATE DATABASE" in error.next_step


def test_a_database_that_is_not_utf8_is_refused(server: pgserver.Server) -> None:
    name = f"ascii_{secrets.token_hex(4)}"
    server.run(f"CREATE DATABASE {name} ENCODING sql_ascii TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        assert "SQL_ASCII" in refused(server.at(name)).message
    finally:
        server.run(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("tenant", ["", " ", "x" * 201, "a\nb", " a", "\u2028"])
def test_a_tenant_that_cannot_be_one(server: pgserver.Server, database: str, here: Path, tenant: str) -> None:
    error = refused_everywhere(here, f"{server.at(database)}&tenant={quote(tenant)}")
    assert isinstance(error, Invalid)
    assert "tenant" in error.message


@pytest.mark.parametrize("tenant", ["../x", "o'brien\"; DROP TABLE holdfast.record; --", "größe 🐘", "x" * 200, "%"])
def test_a_tenant_with_an_odd_name(server: pgserver.Server, database: str, here: Path, tenant: str) -> None:
    address = f"{server.at(database)}&tenant={quote(tenant, safe='')}"
    with holdfast.open(address) as memory:
        memory.put("note", f"of {secrets.token_hex(4)}", title="Only mine")
        assert [hit.record.title for hit in memory.find("mine")] == ["Only mine"]
        assert memory.root == address
    assert json.loads(command(here, "stats", address).stdout)["root"] == address
    with holdfast.open(f"{server.at(database)}&tenant=other{secrets.token_hex(4)}") as other:
        assert not other.find("mine").hits


@pytest.mark.parametrize(
    "address",
    [f"mysql://ann:{PASSWORD}@db/x", f"postgresql:/ann:{PASSWORD}@db/x", f"http://ann:{PASSWORD}@db/", "postgresql:"],
)
def test_another_kind_of_address(here: Path, address: str) -> None:
    assert isinstance(refused_everywhere(here, address), Invalid)
    for words in ("init", "doctor", "install claude-code --print", "restore nothing"):
        assert command(here, words, address).returncode in (Invalid.exit_code, Unavailable.exit_code)


def test_an_address_may_be_written_in_capitals(address: str) -> None:
    with holdfast.open(address.replace("postgresql", "PostgreSQL")) as memory:
        assert not memory.in_files


# the schema


def test_an_empty_database_is_set_up_by_whoever_comes_first_and_only_once(server: pgserver.Server, empty: str) -> None:
    start = threading.Barrier(8)

    def use(number: int) -> None:
        start.wait()
        with open_tree(server.at(empty)) as tree:
            tree.write(f"{number}.md", b"text", expect=ABSENT)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
    done = server.run("SELECT version FROM holdfast.migrations ORDER BY 1", empty)
    assert done == [(VERSION,)]
    with open_tree(server.at(empty)) as tree:
        assert len(list(tree.walk("", (".md",), lambda _p, _w: None))) == 8


def test_two_databases_of_one_server_are_set_up_at_the_same_time(server: pgserver.Server) -> None:
    with contextlib.ExitStack() as made, ThreadPoolExecutor(4) as pool:
        names = [made.enter_context(server.database("twin")) for _ in range(4)]
        list(pool.map(lambda name: Database(server.at(name)).close(), names))
        for name in names:
            assert server.run("SELECT max(version) FROM holdfast.migrations", name) == [(VERSION,)]


def test_a_newer_schema_is_refused_and_left_alone(server: pgserver.Server, empty: str, here: Path) -> None:
    Database(server.at(empty)).close()
    server.run("INSERT INTO holdfast.migrations (version, name) VALUES (99, 'of tomorrow')", empty)
    error = refused_everywhere(here, server.at(empty))
    assert "schema 99" in error.message
    assert error.next_step == "Upgrade Holdfast."
    assert server.run("SELECT max(version) FROM holdfast.migrations", empty) == [(99,)]


def test_an_older_schema_is_refused_and_left_alone(server: pgserver.Server, empty: str, here: Path) -> None:
    Database(server.at(empty)).close()
    server.run(f"UPDATE holdfast.migrations SET version = {VERSION - 2}", empty)
    error = refused_everywhere(here, server.at(empty))
    assert f"schema {VERSION - 2}" in error.message
    assert "holdfast push" in error.next_step
    assert server.run("SELECT max(version) FROM holdfast.migrations", empty) == [(VERSION - 2,)]


def test_a_set_up_that_fails_changes_nothing(
    server: pgserver.Server, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        text = database.text
        patched.setattr(database, "text", lambda name: text(name) + b"; SELECT 1/0")
        assert "nothing was changed" in refused(server.at(empty)).message
    assert server.run("SELECT to_regnamespace('holdfast')::text", empty) == [(None,)]
    Database(server.at(empty)).close()


def test_init_sets_up_an_empty_database_and_overwrites_nothing(server: pgserver.Server, empty: str, here: Path) -> None:
    address = server.at(empty, tenant="team")
    done = json.loads(command(here, "init --template", address).stdout)
    assert "holdfast.toml" in done["written"]
    assert any(path.startswith("agent/rules/") for path in done["written"])
    assert json.loads(command(here, "init --template", address).stdout)["written"] == []
    with holdfast.open(address) as memory:
        assert memory.hot.check() == []


def test_a_server_that_forgets_is_asked_to_remember(server: pgserver.Server, empty: str) -> None:
    server.run(f'ALTER DATABASE "{empty}" SET synchronous_commit = off')
    with contextlib.closing(Database(server.at(empty))) as database:
        asked: Statement = ("SELECT current_setting('synchronous_commit')", {})
        assert database.send("x", [asked]) == [[("on",)]]
        assert database.send("x", [asked], durable=False) == [[("off",)]]


# logins


def test_a_login_without_rights_is_told_what_to_ask_for(
    server: pgserver.Server, empty: str, login: str, here: Path
) -> None:
    mine = server.at(empty, user=login, password=PASSWORD)
    error = refused(mine)
    assert "not set up" in error.message
    assert OWNER in error.next_step
    Database(server.at(empty)).close()
    error = refused_everywhere(here, mine)
    assert f'GRANT {WRITER} TO "{login}"' in error.next_step
    server.run(f"GRANT {WRITER} TO {login}")
    with holdfast.open(mine) as memory:
        assert memory.put("note", "text", title="Mine").status == "stored"


def test_a_login_that_may_only_read_reads(server: pgserver.Server, empty: str, login: str, here: Path) -> None:
    assert command(here, "put note 'Tea is at four.' --title Tea", server.at(empty)).returncode == 0
    server.run(f"GRANT {READER} TO {login}")
    address = server.at(empty, user=login, password=PASSWORD)
    done = command(here, "search tea", address)
    assert [hit["record"]["title"] for hit in json.loads(done.stdout)["hits"]] == ["Tea"]
    assert WRITER in refused_everywhere(here, address, "put note x --title X").next_step
    assert command(here, "recall tea", address).returncode == 0
    doctor = json.loads(command(here, "doctor", address).stdout)
    assert {check["check"]: check["state"] for check in doctor["checks"]}["rights"] == "warn"
    with holdfast.open(address) as reader:
        (tea,) = reader.find("tea")
        assert reader.verify().sound
        assert reader.tasks.all().counts == {}
        for call in (
            lambda: reader.put("message", "x"),
            lambda: reader.put(id=tea.record.id, text="x", expect=tea.record.version),
            lambda: reader.hide(tea.record.id),
            lambda: reader.forget(tea.record.id, yes=True),
            lambda: reader.tasks.create("work"),
            lambda: reader.refresh(rebuild=True),
        ):
            with pytest.raises(Unavailable, match=r"does not allow|only read") as caught:
                call()
            assert WRITER in caught.value.next_step
        assert [hit.record.text for hit in reader.find("tea")] == ["Tea is at four."]


def test_a_login_that_owns_the_database_and_was_granted_the_roles_sets_it_up(
    server: pgserver.Server, empty: str, login: str
) -> None:
    with server.database("roles") as other:
        Database(server.at(other)).close()  # so that the roles are there
    server.run(f'ALTER DATABASE "{empty}" OWNER TO {login}')
    server.run(f"GRANT {OWNER}, {WRITER}, {READER} TO {login}")
    try:
        with open_tree(server.at(empty, user=login, password=PASSWORD)) as tree:
            tree.write("a.md", b"text", expect=ABSENT)
        owners = server.run("SELECT DISTINCT tableowner::text FROM pg_tables WHERE schemaname = 'holdfast'", empty)
        assert owners == [(OWNER,)]
    finally:
        server.run(f'ALTER DATABASE "{empty}" OWNER TO CURRENT_USER')


# the extension for vectors

needs_a_model = pytest.mark.skipif(not embedders.is_installed("semantic"), reason="the extra semantic is not installed")


@pytest.fixture(scope="module")
def bare() -> Iterator[pgserver.Server]:
    """A server that has no pgvector."""
    with pgserver.private(lacking="vector") as running:
        yield running


@pytest.fixture
def semantic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SEARCH_EMBEDDER", "semantic")


def status(address: str, *words: str) -> Any:
    done = fork_server.run(
        [sys.executable, "-m", "holdfast", *words, "--root", address, "--json"], capture_output=True, text=True, check=True
    )  # fmt: skip
    return json.loads(done.stdout)


def recalls_by_meaning(address: str) -> bool:
    with holdfast.open(address) as memory:
        if not memory.find("sofa").hits:
            memory.put("note", "The cat sleeps on the sofa all day.", title="Animals")
        return bool(memory.find("kitten napping couch", associate=True).hits)


@needs_a_model
@pytest.mark.usefixtures("semantic")
def test_without_the_extension_words_are_searched_and_the_next_step_is_named(bare: pgserver.Server) -> None:
    with bare.database() as name:
        assert not recalls_by_meaning(bare.at(name))
        with holdfast.open(bare.at(name)) as memory:
            assert memory.embedder == ""
            with pytest.raises(embedders.NoVectors, match="does not have the extension vector") as caught:
                memory.embed()
            assert "CREATE EXTENSION vector;" in caught.value.next_step
            assert "extension vector" in memory.stats()["words_alone"]
        shown = status(bare.at(name), "embed", "--status")
        major = str(bare.run("SHOW server_version_num")[0][0])[:2]
        assert shown["embedder"] == ""
        assert f"postgresql-{major}-pgvector" in shown["problem"]
        assert "pgvector" in status(bare.at(name), "stats")["words_alone"]


def test_where_no_embedder_is_wanted_the_extension_is_not_mentioned(
    bare: pgserver.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SEARCH_EMBEDDER", "none")
    with bare.database() as name, holdfast.open(bare.at(name)) as memory:
        assert memory.embedded().problem == ""
        assert "words_alone" not in memory.stats()
        with pytest.raises(Unavailable, match="The embedder is turned off"):
            memory.embed()


@needs_a_model
@pytest.mark.usefixtures("semantic")
def test_an_extension_that_appears_later_is_used_from_the_next_opening_on(bare: pgserver.Server) -> None:
    assert bare.extensions is not None
    with bare.database() as name:
        assert not recalls_by_meaning(bare.at(name))
        pgserver.show(bare.extensions, "vector")
        try:
            assert recalls_by_meaning(bare.at(name))
        finally:
            pgserver.hide(bare.extensions, "vector")


def test_an_extension_that_is_too_old_is_named(bare: pgserver.Server) -> None:
    assert bare.extensions is not None
    control, script = bare.extensions / "vector.control", bare.extensions / "vector--0.5.1.sql"
    control.write_text("default_version = '0.5.1'\n")
    script.write_text("SELECT 1;\n")
    try:
        with bare.database() as name, contextlib.closing(Database(bare.at(name))) as found:
            assert found.no_vectors is not None
    finally:
        control.unlink()
        script.unlink()
    assert "0.5.1" in found.no_vectors.message
    assert "ALTER EXTENSION vector UPDATE" in found.no_vectors.next_step


@needs_a_model
@pytest.mark.usefixtures("semantic")
def test_a_login_that_may_not_add_the_extension_names_who_may(server: pgserver.Server, empty: str, login: str) -> None:
    Database(server.at(empty)).close()
    server.run("DROP EXTENSION vector CASCADE", empty)
    server.run(f"GRANT {WRITER} TO {login}")
    mine = server.at(empty, user=login, password=PASSWORD)
    for step, done in (("CREATE EXTENSION vector;", "CREATE EXTENSION vector"), (OWNER, "")):
        with contextlib.closing(Database(mine)) as found:
            assert found.no_vectors is not None
            assert step in found.no_vectors.next_step
        if done:
            server.run(done, empty)
    Database(server.at(empty)).close()
    assert recalls_by_meaning(mine)


@needs_a_model
@pytest.mark.usefixtures("semantic")
def test_an_extension_in_a_schema_of_its_own_is_found(server: pgserver.Server, empty: str) -> None:
    server.run("CREATE SCHEMA elsewhere; GRANT USAGE ON SCHEMA elsewhere TO PUBLIC", empty)
    server.run("CREATE EXTENSION vector SCHEMA elsewhere", empty)
    for _ in range(2):
        assert recalls_by_meaning(server.at(empty))


# commands


@pytest.fixture
def known(server: pgserver.Server, database: str, login: str) -> str:
    """The address of a memory, with a password in it that may be shown nowhere."""
    Database(server.at(database)).close()
    server.run(f"GRANT {WRITER} TO {login}")
    return server.at(database, user=login, password=PASSWORD, tenant=f"t{secrets.token_hex(6)}")


WORKS = (
    "init",
    "init --template",
    "put note 'We deploy on Tuesdays.' --title Deploys",
    "put message hello --field role=user --field channel=cli",
    "search deploy",
    "stats",
    "hot check",
    "hot review",
    "lint",
    "lint --fix",
    "migrate front-matter",
    "learnings archive --dry-run",
    "workspace list",
    "state list",
    "plan list",
    "skill list",
    "mind recall deploy",
    "chat history",
    "overview",
    "recall deploy",
    "remember 'Tea is at four.' --title Tea",
    "related deploys",
    "refresh",
    "refresh --rebuild",
    "embed --status",
    "verify",
    "jobs list",
    "jobs run --once",
    "jobs log",
    "tools",
    "traces",
    "tail message",
    "uninstall claude-code --yes",
    "import jsonl talk.jsonl",
    "rollback --writer cli",
    "forget --query Tuesdays",
    "forget --query Tuesdays --yes --count 1",
)
NEED_FILES = {
    "hot link": "needs a memory in files",
    "hot link --remove": "needs a memory in files",
    "restore nothing.tar.gz": "A file or folder is needed",
    "install claude-code --print": "has a password",
    "install claude-code --yes": "has a password",
}


def invoked(words: str, address: str) -> tuple[int, str, BaseException | None]:
    result = CliRunner().invoke(cli, shlex.split(words), env={"HOLDFAST_ROOT": address})
    assert PASSWORD not in result.output + str(result.exception)
    return result.exit_code, result.output, result.exception


def test_every_command_works_or_says_that_it_needs_files(
    known: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(here))
    (here / "talk.jsonl").write_text('{"role": "user", "content": "Where is the giraffe?"}\n')
    for words in WORKS:
        code, output, error = invoked(words, known)
        assert code == 0, f"{words}: {error!r} {output}"
    for words, told in NEED_FILES.items():
        _, _, error = invoked(words, known)
        assert isinstance(error, HoldfastError), words
        assert told in error.message, words
        assert error.next_step
    assert [path.name for path in here.iterdir()] == ["talk.jsonl"]


@pytest.mark.parametrize("form", ["{known}", "{known}.tar.gz", "postgres:new", "postgresql:new.tar.gz"])
def test_where_a_folder_is_wanted_an_address_makes_none_and_is_not_told(
    known: str, here: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.chdir(here)
    target = form.format(known=known)
    with holdfast.open(known) as memory:
        memory.put("note", "The kettle is blue.", title="Kettle")
        memory.backup(here / "copy.tar.gz")
        tries: list[Callable[[], object]] = [
            lambda: memory.backup(target),
            lambda: memory.export(target),
            lambda: restore(str(here / "copy.tar.gz"), target),
            lambda: open_folder(target),
        ]
        for each in tries:
            with pytest.raises(Invalid, match="A file or folder is needed here") as caught:
                each()
            assert PASSWORD not in str(caught.value)
    for words in (f"backup '{target}'", f"export '{target}'", f"hot link --into '{target}'"):
        assert command(here, words, known).returncode != 0
    assert [path.name for path in here.iterdir()] == ["copy.tar.gz"]


@pytest.mark.parametrize(
    "words",
    ["backup {}", "restore {} files", "restore copy.tar.gz {}", "export {}", "import jsonl {}", "hot link --into {}"],
)  # fmt: skip
def test_an_address_where_a_file_or_folder_is_needed_is_refused(known: str, here: Path, words: str) -> None:
    """It would be the name of a folder here, and be shown with its password."""
    root = here / "root"
    with holdfast.open(make(root)) as memory:
        memory.put("note", "We deploy on Tuesdays.", title="Deploys")
        memory.backup(here / "copy.tar.gz")
    done = command(here, words.format(shlex.quote(known)), str(root))
    told = json.loads(done.stderr)
    assert (done.returncode, told["kind"]) == (Invalid.exit_code, "Invalid")
    assert "A file or folder is needed here" in told["error"]
    assert sorted(path.name for path in here.iterdir()) == ["copy.tar.gz", "root"]


def make(root: Path) -> Path:
    make_root(str(root))
    return root


def test_a_client_is_given_the_address_without_a_password(known: str, here: Path, login: str) -> None:
    bare = known.replace(f":{PASSWORD}", "")
    told = json.loads(command(here, f"install claude-code --print --root '{bare}'").stdout)
    assert bare in told["mcpServers"]["holdfast"]["args"]
    assert login in bare


def test_doctor_tells_about_the_database(known: str, here: Path, login: str) -> None:
    done = command(here, "doctor", known)
    assert done.returncode == 0, done.stdout
    found = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    told = found["database"]["what"]
    for part in ("PostgreSQL 1", f"schema {VERSION}", f"login {login} as holdfast_writer", " ms."):
        assert part in told
    assert {"replication", "vectors", "index", "server"} <= found.keys()
    assert found["server"]["state"] == "ok"


def test_a_job_finds_the_memory_without_its_password(known: str, here: Path) -> None:
    with holdfast.open(known) as memory:
        memory.call("cron_add", {"name": "look", "message": "do it", "schedule": "every 1m"})
        script = here / "job.py"
        script.write_text("import os,sys; print(os.environ['HOLDFAST_ROOT'], os.getcwd(), sys.stdin.read())")
    done = command(here, f"jobs run --once --command '{sys.executable} {script}'", known)
    assert done.returncode == 0, done.stderr
    with holdfast.open(known) as memory:
        for run in memory.jobs.log(5):
            assert PASSWORD not in run.output
            assert "postgresql://" in run.output
            assert str(here) in run.output


def test_a_backup_of_a_database_is_a_memory_in_files(known: str, here: Path) -> None:
    with holdfast.open(known) as memory:
        memory.put("note", "We deploy on Tuesdays.", title="Deploys")
    assert command(here, "backup copy.tar.gz", known).returncode == 0
    assert command(here, "restore copy.tar.gz files").returncode == 0
    with holdfast.open(here / "files") as memory:
        assert [hit.record.title for hit in memory.find("deploy")] == ["Deploys"]


def test_the_context_is_printed_in_time_or_says_what_is_missing(known: str, here: Path) -> None:
    with holdfast.open(known) as memory:
        memory.chat.save_global_memory("Ann likes tea.")
    assert "Ann likes tea." in command(here, "context --within 60000", known).stdout
    assert command(here, "context --hook", known).returncode == 0
    gone = command(here, "context --hook", "postgresql://ann@127.0.0.1:1/none")
    assert (gone.returncode, gone.stderr) == (0, "")


# a server that goes away meanwhile


def opened(dsn: str) -> tuple[str, str, bool]:
    """Open a database and search; return the error, its next step, and whether vectors can be used."""
    try:
        with holdfast.open(dsn) as memory:
            memory.find("tea")
            assert isinstance(memory.store, PgStore)
            return "", "", memory.store._database.no_vectors is None
    except HoldfastError as error:
        return error.message, error.next_step, True


@pytest.mark.parametrize("verdict", ["question", "answer"])
@pytest.mark.parametrize("new", [True, False], ids=["empty", "set up"])
def test_a_connection_cut_while_opening_is_an_error_with_a_next_step(
    server: pgserver.Server, empty: str, verdict: str, new: bool
) -> None:
    if not new:
        Database(server.at(empty)).close()
    with (
        between(server, server.at(empty, tenant="t")) as (proxy, dsn),
        ProcessPoolExecutor(1) as other,  # libpq can block all threads of its process, the proxy's too
    ):
        for moment in itertools.count():
            messages = itertools.count()
            proxy.lose = functools.partial(
                lambda turns, last, _: verdict if next(turns) == last else "", messages, moment
            )
            before = len(proxy.lost)
            error, next_step, vectors = other.submit(opened, dsn).result()
            assert vectors  # a lost connection is not mistaken for a missing extension
            if len(proxy.lost) == before:
                break
            assert not error or next_step, error
        assert not error
        assert moment > 5


@pytest.mark.parametrize("words", ["stats", "search tea", "doctor", "token list"])
def test_a_server_that_stops_while_a_command_opens_causes_no_traceback(
    server: pgserver.Server, empty: str, here: Path, words: str
) -> None:
    Database(server.at(empty)).close()
    with between(server, server.at(empty, tenant="t")) as (proxy, dsn):
        messages = itertools.count()
        proxy.lose = lambda _: "question" if next(messages) == 3 else ""  # after logging in
        done = command(here, words.format(dsn), dsn)
        assert proxy.lost == ["question"]
        assert done.returncode == 0 or "the connection to the database was lost" in done.stdout + done.stderr
