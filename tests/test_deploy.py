"""`deploy/` and `docs/deploy.md` agree with the program: commands, options, pages and numbers."""

from __future__ import annotations

import json
import os
import pathlib
import re
import secrets
import shlex
import shutil
import subprocess
from typing import Any

import click
import psycopg
import pytest

import pgserver
import teamserver
from holdfast.cli.main import cli
from holdfast.formats import markdown
from holdfast.mcp import health
from holdfast.mcp.auth import MOST_OPEN, RateLimits
from holdfast.mcp.health import Metrics
from holdfast.mcp.http import GRACE

TOP = pathlib.Path(__file__).parent.parent
GUIDE = (TOP / "docs/deploy.md").read_text(encoding="utf-8")
DOCKERFILE = (TOP / "deploy/Dockerfile").read_text(encoding="utf-8")
COMPOSE: Any = markdown.parse(b"---\n" + (TOP / "deploy/compose.yaml").read_bytes() + b"---\n").fields


def parsed(words: list[str]) -> None:
    """See that a command line is one that the program takes, without running it."""
    command: click.Command = cli
    context = click.Context(cli, info_name="holdfast")
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None, words
        command, context = found, click.Context(found, parent=context)
    command.make_context("x", words, parent=context)


def test_the_containers_run_commands_that_there_are() -> None:
    services = COMPOSE["services"]
    assert services.keys() == {"database", "login", "migrate", "server"}
    for name in ("migrate", "server"):
        assert (TOP / "deploy" / services[name]["build"]["context"]).resolve() == TOP
        assert (TOP / services[name]["build"]["dockerfile"]).exists()
        parsed([re.sub(r"\$\{.*\}", "localhost", word) for word in services[name]["command"]])
    (entry,) = re.findall(r"^ENTRYPOINT (.+)$", DOCKERFILE, re.MULTILINE)
    (usual,) = re.findall(r"^CMD (.+)$", DOCKERFILE, re.MULTILINE)
    assert json.loads(entry) == ["holdfast"]
    parsed(json.loads(usual))
    for copied in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE):
        assert all((TOP / one).exists() for one in copied.split())
    assert f":8899{health.HEALTH}'" in DOCKERFILE
    grace = int(services["server"]["stop_grace_period"].removesuffix("s"))
    assert grace > GRACE


def test_the_pieces_of_shell_are_shell() -> None:
    (script,) = COMPOSE["services"]["login"]["command"]
    subprocess.run(["sh", "-n", "-c", script.replace("$$", "$")], check=True)
    for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL):
        subprocess.run(["sh", "-n", "-c", block], check=True)


def test_every_command_of_the_guide_is_one_that_the_program_takes() -> None:
    lines = [line for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL) for line in block.splitlines()]
    commands = [line[line.index("holdfast ") :] for line in lines if re.match(r"(\w+=\S+ )*holdfast ", line)]
    assert len(commands) >= 8
    for command in commands:
        parsed(shlex.split(command, comments=True)[1:])


def test_the_guide_names_what_is_there() -> None:
    for page in (health.HEALTH, health.READY, health.METRICS):
        assert f"`{page}`" in GUIDE
    told = Metrics().render(up=True, behind=0, memories=0)
    names = set(re.findall(r"# TYPE (holdfast_\w+)", told)) - {"holdfast_build_info"}
    assert names == set(re.findall(r"`(holdfast_[a-z_]+)`", GUIDE)) - {
        "holdfast_owner",
        "holdfast_writer",
        "holdfast_reader",
    }
    limits = RateLimits()
    for number in (
        limits.requests,
        limits.requests * limits.burst,
        limits.strangers,
        limits.connections,
        MOST_OPEN,
        GRACE,
    ):
        assert re.search(rf"\b{number:,.0f}\b", GUIDE), number


def test_the_servers_login_works_and_owns_nothing(server: pgserver.Server) -> None:
    psql = shutil.which("psql")
    if psql is None or not server.local:
        pytest.skip("there is no psql to run deploy/login.sql with, or no server of our own")
    with server.database("deployed") as name:
        owner = server.at(name)
        teamserver.holdfast("stats", "--root", owner)
        text = (TOP / "deploy/login.sql").read_text(encoding="utf-8")
        login, password = f"holdfast_server_{secrets.token_hex(4)}", "it's a secret"
        script = text.replace("holdfast_server", login)
        command = [psql, "--no-psqlrc", "--set=ON_ERROR_STOP=1", owner.replace("?", "?user=postgres&")]
        try:
            hashes = set()
            for word in ("an older one", password):  # once more changes the password
                subprocess.run([*command, f"--set=password={word}"], input=script, text=True, check=True)
                hashes |= set(server.run(f"SELECT rolpassword FROM pg_authid WHERE rolname = '{login}'", name))
            assert len(hashes) == 2
            address = server.at(name, user=login, tenant="red", host="127.0.0.1")
            os.environ["PGPASSWORD"] = password
            token = teamserver.holdfast("token", "create", "--store", address, "--name", "alice")
            with teamserver.serving(address) as team:
                assert team.call(token, "remember", text="A medlar.", title="Medlar")["status"] == "stored"
            ((owns,),) = server.run(f"SELECT count(*) FROM pg_class WHERE pg_get_userbyid(relowner) = '{login}'", name)
            ((may,),) = server.run(f"SELECT pg_has_role('{login}', 'holdfast_owner', 'SET')", name)
            assert (owns, may) == (0, False)
            _sees_nothing_and_changes_nothing(server.at(name, user=login, host="127.0.0.1"))
            told = json.loads(teamserver.holdfast("doctor", "--root", address, "--json"))["checks"]
            assert "rights" not in {check["check"] for check in told}
            server.run(f"GRANT holdfast_writer TO {login} WITH INHERIT FALSE", name)
            with teamserver.serving(address) as team:
                assert team.call(token, "remember", text="A quince.", title="Quince")["status"] == "stored"
        finally:
            os.environ.pop("PGPASSWORD", None)
            server.run(f"REVOKE holdfast_writer FROM {login}; DROP ROLE {login}", name)


def _sees_nothing_and_changes_nothing(address: str) -> None:
    """A login that names no tenant sees no row, though there are some, and the schema is not its own."""
    with psycopg.connect(address, autocommit=True) as connection:
        for table in ("record", "token"):
            assert connection.execute(f"SELECT count(*) FROM holdfast.{table}").fetchone() == (0,)
        for statement in (
            "CREATE TABLE holdfast.mine (n int)",
            "SET ROLE holdfast_owner",
            "DROP TABLE holdfast.record",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
