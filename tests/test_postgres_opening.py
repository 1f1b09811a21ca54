"""Opening a database: what it makes of an empty one, and what it says when there is none that can be used."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

import pgserver
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.storage.postgres import addresses, migrations
from holdfast.storage.postgres.connections import Waits
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.migrations import MIGRATIONS
from holdfast.storage.postgres.schema import OWNER, READER, WRITER
from holdfast.storage.postgres.tree import PgTree
from holdfast.storage.tree import ABSENT, RootGone

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


def refused(dsn: str) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        Database(dsn)
    error = caught.value
    assert error.next_step
    assert (
        PASSWORD
        not in f"{error} {error!r} {error.__cause__} {error.__context__ if not error.__suppress_context__ else ''}"
    )
    return error


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
    address = addresses.parse(dsn)
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
    address = addresses.parse(dsn)
    assert address.bare == bare
    assert "SECRET" not in f"{address.shown} {address!r}"
    again = addresses.parse(bare)
    assert (again.tenant, again.bare) == (address.tenant, bare)
    kept = conninfo_to_dict(address.conninfo)
    assert {key for key in kept if kept[key] != conninfo_to_dict(again.conninfo).get(key)} <= {
        key for key in kept if kept[key] == "SECRET"
    }


@pytest.mark.parametrize("command", [("stats",), ("doctor",), ("install", "cursor", "--dry-run")])
def test_no_command_tells_a_password_that_was_written_carelessly(command: tuple[str, ...], tmp_path: Path) -> None:
    for dsn in (f"postgresql://u:x?{PASSWORD}@127.0.0.1:1/db", f"postgresql://u:x@{PASSWORD}@127.0.0.1:1/db"):
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *command, "--root", dsn],
            capture_output=True, text=True, check=False, timeout=60, env=os.environ | {"HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode != 0
        assert PASSWORD not in done.stdout + done.stderr


# no connection


def test_where_nothing_listens_the_server_is_not_there(server: pgserver.Server) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        error = refused(f"postgresql://ann:{PASSWORD}@127.0.0.1:{port}/m")
    assert isinstance(error, RootGone)
    assert f"127.0.0.1:{port}" in error.message


def test_a_host_that_has_no_address_is_not_there() -> None:
    assert isinstance(refused(f"postgresql://ann:{PASSWORD}@no-such-host.invalid/m"), RootGone)


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        error = refused(f"postgresql://ann:{PASSWORD}@127.0.0.1:{silent.getsockname()[1]}/m?connect_timeout=2")
    assert isinstance(error, RootGone)


def test_a_wrong_password_is_refused_and_not_told(server: pgserver.Server, empty: str, login: str) -> None:
    error = refused(server.at(empty, user=login, password=f"{PASSWORD}x"))
    assert f'refused the user "{login}"' in error.message
    assert "password" in error.next_step


def test_a_missing_password_is_asked_for(server: pgserver.Server, empty: str, login: str) -> None:
    if not server.local:
        pytest.skip("HOLDFAST_TEST_DSN: whether that server asks for a password is not known")
    error = refused(server.at(empty, user=login, host="127.0.0.1"))
    assert "none was given" in error.message


def test_a_missing_database_is_named(server: pgserver.Server, login: str) -> None:
    error = refused(server.at("no_such_database", user=login, password=PASSWORD))
    assert '"no_such_database"' in error.message
    assert "CREATE DATABASE" in error.next_step


def test_a_database_that_is_not_utf8_is_refused(server: pgserver.Server) -> None:
    name = f"ascii_{secrets.token_hex(4)}"
    server.run(f"CREATE DATABASE {name} ENCODING sql_ascii TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        assert "SQL_ASCII" in refused(server.at(name)).message
    finally:
        server.run(f"DROP DATABASE {name} WITH (FORCE)")


# the schema


def test_an_empty_database_is_set_up_by_whoever_comes_first_and_only_once(server: pgserver.Server, empty: str) -> None:
    start = threading.Barrier(8)

    def use(number: int) -> None:
        start.wait()
        tree = PgTree(Database(server.at(empty)))
        tree.append("log.jsonl", lambda _: b"%d\n" % number)
        tree.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
    done = [(number, name) for number, (name, _) in enumerate(MIGRATIONS, 1)]
    assert server.run("SELECT version, name FROM holdfast.migrations ORDER BY 1", empty) == done
    tree = PgTree(Database(server.at(empty)))
    assert sorted(line.data for line in tree.scan("log.jsonl")) == [b"%d" % number for number in range(8)]
    tree.close()


def test_two_databases_of_one_server_are_set_up_at_the_same_time(server: pgserver.Server) -> None:
    with contextlib.ExitStack() as made, ThreadPoolExecutor(4) as pool:
        names = [made.enter_context(server.database("twin")) for _ in range(4)]
        list(pool.map(lambda name: Database(server.at(name)).close(), names))
        last = [(len(MIGRATIONS),)]
        assert all(server.run("SELECT max(version) FROM holdfast.migrations", name) == last for name in names)


def test_a_newer_schema_is_refused_and_left_alone(server: pgserver.Server, empty: str) -> None:
    Database(server.at(empty)).close()
    server.run("INSERT INTO holdfast.migrations (version, name) VALUES (99, 'of tomorrow')", empty)
    error = refused(server.at(empty))
    assert "schema 99" in error.message
    assert "Upgrade" in error.next_step
    assert server.run("SELECT max(version) FROM holdfast.migrations", empty) == [(99,)]


def test_an_older_schema_is_brought_up_to_date_once_and_keeps_its_rows(
    server: pgserver.Server, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = PgTree(Database(server.at(empty)))
    tree.write("a.md", b"old", expect=ABSENT)
    tree.close()
    more = (*MIGRATIONS, ("a table more", "CREATE TABLE holdfast.more (x int)"))
    monkeypatch.setattr(migrations, "MIGRATIONS", more)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: Database(server.at(empty)).close(), range(4)))
    versions = [(number,) for number in range(1, len(more) + 1)]
    assert server.run("SELECT version FROM holdfast.migrations ORDER BY 1", empty) == versions
    tree = PgTree(Database(server.at(empty)))
    assert tree.read("a.md").data == b"old"
    tree.close()


def test_a_migration_that_fails_changes_nothing(
    server: pgserver.Server, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Database(server.at(empty)).close()
    more = (*MIGRATIONS, ("half", "CREATE TABLE holdfast.half (x int); SELECT 1/0"))
    with monkeypatch.context() as patched:
        patched.setattr(migrations, "MIGRATIONS", more)
        assert "nothing was changed" in refused(server.at(empty)).message
    assert server.run("SELECT max(version), to_regclass('holdfast.half')::text FROM holdfast.migrations", empty) == [
        (len(MIGRATIONS), None)
    ]
    Database(server.at(empty)).close()


# logins


def test_a_login_without_rights_is_told_what_to_ask_for(server: pgserver.Server, empty: str, login: str) -> None:
    mine = server.at(empty, user=login, password=PASSWORD)
    error = refused(mine)
    assert "not set up" in error.message
    assert OWNER in error.next_step
    Database(server.at(empty)).close()
    error = refused(mine)
    assert f'GRANT {WRITER} TO "{login}"' in error.next_step
    server.run(f"GRANT {WRITER} TO {login}")
    tree = PgTree(Database(mine))
    tree.write("a.md", b"text", expect=ABSENT)
    tree.close()


def test_a_login_that_may_only_read_reads(server: pgserver.Server, empty: str, login: str) -> None:
    tree = PgTree(Database(server.at(empty)))
    version = tree.write("a.md", b"text", expect=ABSENT)
    server.run(f"GRANT {READER} TO {login}")
    reader = PgTree(Database(server.at(empty, user=login, password=PASSWORD)))
    assert reader.read("a.md").data == b"text"
    for call in (
        lambda: reader.write("b.md", b"x", expect=ABSENT),
        lambda: reader.write("a.md", b"x", expect=version),
        lambda: reader.append("log.jsonl", lambda _: b"x\n"),
        lambda: reader.move("a.md", "b.md"),
        lambda: reader.remove("a.md"),
    ):
        with pytest.raises(Unavailable, match="does not allow") as caught:
            call()
        assert WRITER in caught.value.next_step
    assert [path for path, _ in tree.walk("a.md", ("",), lambda _p, _w: None)] == ["a.md"]
    reader.close()
    tree.close()


def test_a_login_that_owns_the_database_and_was_granted_the_roles_sets_it_up(
    server: pgserver.Server, empty: str, login: str
) -> None:
    with server.database("roles") as other:
        Database(server.at(other)).close()  # so that the roles are there
    server.run(f'ALTER DATABASE "{empty}" OWNER TO {login}')
    server.run(f"GRANT {OWNER}, {WRITER}, {READER} TO {login}")
    try:
        tree = PgTree(Database(server.at(empty, user=login, password=PASSWORD)))
        tree.write("a.md", b"text", expect=ABSENT)
        tree.close()
        assert server.run("SELECT DISTINCT tableowner::text FROM pg_tables WHERE schemaname = 'holdfast'", empty) == [
            (OWNER,)
        ]
    finally:
        server.run(f'ALTER DATABASE "{empty}" OWNER TO CURRENT_USER')


# extensions


def test_an_extension_is_added_or_it_is_said_how(server: pgserver.Server, empty: str, login: str) -> None:
    with psycopg.connect(server.at(empty), autocommit=True) as connection:
        with pytest.raises(Unavailable, match="does not have the extension no_such") as caught:
            migrations.need_extension(connection, "no_such", "the package no-such")
        assert "Install the package no-such" in caught.value.next_step
        if not connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone():
            pytest.skip("this server has no pgvector")
        with psycopg.connect(server.at(empty, user=login, password=PASSWORD), autocommit=True) as poor:
            with pytest.raises(Unavailable, match="may not add it") as caught:
                migrations.need_extension(poor, "vector", "pgvector")
            assert "CREATE EXTENSION vector" in caught.value.next_step
        migrations.need_extension(connection, "vector", "pgvector")
        assert connection.execute("SELECT '[1,2]'::vector(2)::text").fetchone() == ("[1,2]",)


def test_a_server_that_forgets_is_asked_to_remember(server: pgserver.Server, empty: str) -> None:
    server.run(f'ALTER DATABASE "{empty}" SET synchronous_commit = off')
    database = Database(server.at(empty), Waits())
    ask = "SELECT current_setting('synchronous_commit')"
    assert database.run("x", lambda turn: turn.row(ask)) == ("on",)
    assert database.run("x", lambda turn: turn.row(ask), durable=False) == ("off",)
    database.close()
