"""A memory in a database at every door: what works, what needs files, and what is said when there is no memory."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner

import holdfast
import pgserver
from holdfast.cli.main import cli
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.owner.restore import restore
from holdfast.roots import make_root, open_folder
from holdfast.storage.folds import Logs
from holdfast.storage.postgres import migrations
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.migrations import MIGRATIONS

PASSWORD = "s3cret-Pa55word"


@pytest.fixture
def empty(server: pgserver.Server) -> Iterator[str]:
    with server.database("doors") as name:
        yield name


@pytest.fixture
def login(server: pgserver.Server) -> Iterator[str]:
    """A login with a password and no rights of its own."""
    name = f"somebody_{secrets.token_hex(4)}"
    server.run(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")
    yield name
    server.run(f"DROP ROLE {name}")


@pytest.fixture
def known(server: pgserver.Server, database: str, login: str) -> str:
    """The address of a memory, with a password in it that may be shown nowhere."""
    Database(server.at(database)).close()
    server.run(f"GRANT holdfast_writer TO {login}")
    return server.at(database, user=login, password=PASSWORD, tenant=f"t{secrets.token_hex(6)}")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """A folder to work in, of which nothing is made that has an address for its name."""
    yield tmp_path
    assert not [path for path in tmp_path.rglob("*") if "postgres" in path.name.lower()]


def command(here: Path, words: str, address: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PG"))}
    environment |= {"HOME": str(here)} | ({"HOLDFAST_ROOT": address} if address else {})
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *shlex.split(words)],
        env=environment, cwd=here, capture_output=True, text=True, input="", timeout=120,
    )  # fmt: skip
    assert PASSWORD not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def refused(here: Path, address: str, words: str = "search tea") -> HoldfastError:
    """Return the error that Python gets; the command says the same with its code."""
    with pytest.raises(HoldfastError) as caught, holdfast.open(address) as memory:
        memory.put("note", "x", title="X") if words.startswith("put") else memory.find("tea")
    done = command(here, words, address)
    told = json.loads(done.stderr)
    assert (told["error"], told["code"]) == (str(caught.value), done.returncode)
    assert done.returncode == caught.value.exit_code
    assert caught.value.next_step
    assert PASSWORD not in repr(caught.value)
    return caught.value


# where there is no memory


def test_a_wrong_password(server: pgserver.Server, empty: str, login: str, here: Path) -> None:
    error = refused(here, server.at(empty, user=login, password=f"{PASSWORD}-not"))
    assert isinstance(error, Unavailable)
    assert f'refused the user "{login}"' in error.message


def test_a_host_where_nothing_listens(here: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    error = refused(here, f"postgresql://ann:{PASSWORD}@127.0.0.1:{port}/memory")
    assert "No PostgreSQL server answers" in error.message


def test_a_host_that_never_answers(here: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        error = refused(here, f"postgresql://ann:{PASSWORD}@127.0.0.1:{port}/memory?connect_timeout=2")
    assert "No PostgreSQL server answers" in error.message


def test_a_database_that_does_not_exist(server: pgserver.Server, login: str, here: Path) -> None:
    error = refused(here, server.at("not_there", user=login, password=PASSWORD))
    assert "CREATE DATABASE" in error.next_step


def test_an_older_schema_is_brought_up_to_date(
    server: pgserver.Server, empty: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(migrations, "MIGRATIONS", MIGRATIONS[:1])
        Database(server.at(empty)).close()
    assert server.run("SELECT max(version) FROM holdfast.migrations", empty) == [(1,)]
    assert command(here, "put note tea --title Tea", server.at(empty)).returncode == 0
    assert server.run("SELECT max(version) FROM holdfast.migrations", empty) == [(len(MIGRATIONS),)]


def test_a_newer_schema_is_refused(server: pgserver.Server, empty: str, here: Path) -> None:
    Database(server.at(empty)).close()
    server.run("INSERT INTO holdfast.migrations (version, name) VALUES (999, 'from the future')", empty)
    error = refused(here, server.at(empty))
    assert (error.next_step, "999" in error.message) == ("Upgrade Holdfast.", True)


def test_a_login_without_rights(server: pgserver.Server, empty: str, login: str, here: Path) -> None:
    address = server.at(empty, user=login, password=PASSWORD)
    assert "may not do that" in refused(here, address).message
    Database(server.at(empty)).close()
    assert f'GRANT holdfast_writer TO "{login}"' in refused(here, address).next_step


def test_a_login_that_may_only_read(server: pgserver.Server, empty: str, login: str, here: Path) -> None:
    assert command(here, "put note 'Tea is at four.' --title Tea", server.at(empty)).returncode == 0
    server.run(f"GRANT holdfast_reader TO {login}")
    address = server.at(empty, user=login, password=PASSWORD)
    done = command(here, "search tea", address)
    assert [hit["record"]["title"] for hit in json.loads(done.stdout)["hits"]] == ["Tea"]
    assert "holdfast_writer" in refused(here, address, "put note x --title X").next_step
    assert command(here, "recall tea", address).returncode == 0
    told = json.loads(command(here, "doctor", address).stdout)
    assert {check["check"]: check["state"] for check in told["checks"]}["rights"] == "warn"


@pytest.mark.parametrize("tenant", ["", " ", "x" * 201, "a\nb", " a", "\u2028"])
def test_a_tenant_that_cannot_be_one(server: pgserver.Server, database: str, here: Path, tenant: str) -> None:
    error = refused(here, f"{server.at(database)}&tenant={quote(tenant)}")
    assert isinstance(error, Invalid)
    assert "tenant" in error.message


@pytest.mark.parametrize("tenant", ["../x", "o'brien\"; DROP TABLE holdfast.files; --", "größe 🐘", "x" * 200, "%"])
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
    assert isinstance(refused(here, address), Invalid)
    for words in ("init", "doctor", "install claude-code --print", "restore nothing"):
        done = command(here, words, address)
        assert done.returncode in (Invalid.exit_code, Unavailable.exit_code)


def test_an_address_may_be_written_in_capitals(server: pgserver.Server, database: str) -> None:
    address = server.at(database, tenant=f"t{secrets.token_hex(6)}")
    with holdfast.open(address.replace("postgresql", "PostgreSQL")) as memory:
        assert not memory.in_files


class Nothing:
    """A fold that remembers nothing."""

    def add(self, entry: Mapping[str, Any]) -> None:
        pass


def test_a_connection_that_is_cut_in_the_middle_of_a_write(
    server: pgserver.Server, database: str, address: str
) -> None:
    """Either it is done again and there once, or the error says that nothing was written; the memory goes on."""
    cut = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'idle in transaction'"
    )
    with holdfast.open(address) as memory:
        memory.put("message", "first", fields={"role": "user", "channel": "cli"})
        answer = ""
        try:
            second = {"role": "user", "channel": "cli", "content": "second", "timestamp": "2026-01-01T00:00:00Z"}
            Logs(memory, Nothing).transact(
                "user/memory/history.jsonl",
                lambda _fold: [second],
                [],
                locked=lambda: (server.run(cut, database), None)[1],
            )
        except Unavailable as error:
            answer = str(error)
            assert "try again" in answer.lower()
        said = [record.text for record in memory.tail("message")]
        assert said == (["first"] if answer else ["first", "second"])
        memory.put("message", "third", fields={"role": "user", "channel": "cli"})
        assert [record.text for record in memory.tail("message")][-1] == "third"


# commands

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
    ["backup {}", "restore {} files", "restore copy.tar.gz {}", "export {}", "import jsonl {}", "import chat {}", "hot link --into {}"],
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


def test_init_sets_up_an_empty_database_and_overwrites_nothing(server: pgserver.Server, empty: str, here: Path) -> None:
    address = server.at(empty, tenant="team")
    done = json.loads(command(here, "init --template", address).stdout)
    assert "holdfast.toml" in done["written"]
    assert any(path.startswith("agent/rules/") for path in done["written"])
    assert json.loads(command(here, "init --template", address).stdout)["written"] == []
    with holdfast.open(address) as memory:
        assert memory.hot.check() == []
        assert len(memory.hot.review()) > 0


def test_doctor_tells_about_the_database(known: str, here: Path, login: str) -> None:
    done = command(here, "doctor", known)
    assert done.returncode == 0, done.stdout
    found = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    told = found["database"]["what"]
    for part in ("PostgreSQL 1", f"schema {len(MIGRATIONS)}", f"login {login} as holdfast_writer", " ms."):
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


def test_forgetting_leaves_no_byte_in_any_row(known: str, server: pgserver.Server, database: str) -> None:
    with holdfast.open(known) as memory:
        memory.put("note", "The code word is Xylophonquartett.", title="Code")
        memory.put("message", "Xylophonquartett, was it?", fields={"role": "user", "channel": "cli"})
        memory.call("recall", {"query": "Xylophonquartett"})
        done = memory.forget(query="Xylophonquartett", yes=True, count=2)
        assert (done.done, done.remains) == (True, [])
        assert any("dump" in told for told in done.out_of_reach)
        assert not memory.find("Xylophonquartett").hits
    tenant = known.rpartition("tenant=")[2]
    for table in ("files", "pieces"):
        (found,) = server.run(
            f"SELECT count(*) FROM holdfast.{table} WHERE tenant = '{tenant}'"
            " AND position('Xylophonquartett'::bytea in coalesce(data, ''::bytea)) > 0",
            database,
        )
        assert found == (0,)


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
