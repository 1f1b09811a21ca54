"""The first minutes on the command line: no memory yet, no idea of the commands, typing errors."""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys
from typing import Any

import click
import pytest
from tools.reference import every_command

import fork_server
import holdfast
from holdfast.cli.main import cli
from terminal import on_terminal

HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


@pytest.fixture
def home(tmp_path: pathlib.Path) -> pathlib.Path:
    """A home folder with nothing in it."""
    made = tmp_path / "home"
    (made / "work").mkdir(parents=True)
    return made


def run(*words: str, home: pathlib.Path, text: str = "", **more: str) -> Any:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return fork_server.run(
        [sys.executable, "-m", "holdfast", *words],
        env=environment | {"HOME": str(home), "COLUMNS": "80"} | more, cwd=home / "work",
        capture_output=True, text=True, input=text, timeout=60,
    )  # fmt: skip


def test_the_first_write_makes_a_memory_in_the_home_folder_and_says_so_once(home: pathlib.Path) -> None:
    first = run("remember", "We deploy on Tuesdays.", home=home)
    assert first.returncode == 0 and first.stderr.startswith("Created a memory in ~/.holdfast")
    assert (home / ".holdfast" / "holdfast.toml").exists()
    assert run("remember", "Tea is at four.", home=home).stderr == ""
    (hit,) = json.loads(run("recall", "deploy", home=home).stdout)["hits"]
    assert hit["snippet"] == "We deploy on Tuesdays."


@pytest.mark.parametrize(
    "words",
    [
        ("put", "fact", "v", "--key", "k"), ("learnings", "save", "--kind", "lesson", "--title", "t", "--content", "x"),
        ("call", "remember", "--params", '{"text": "x"}'), ("install", "cursor", "--yes"), ("mcp",),
    ],
)  # fmt: skip
def test_everything_that_writes_makes_it(home: pathlib.Path, words: tuple[str, ...]) -> None:
    assert "Created a memory" in run(*words, home=home).stderr
    assert (home / ".holdfast" / "holdfast.toml").exists()


@pytest.mark.parametrize(
    "words", [("recall", "x"), ("search",), ("stats",), ("state", "list"), ("call", "listStates"), ("hide", "x")]
)
def test_a_command_that_only_reads_makes_nothing_and_names_the_next_step(
    home: pathlib.Path, words: tuple[str, ...]
) -> None:
    done = run(*words, home=home)
    assert done.returncode == 9 and done.stdout == ""
    assert "no memory yet" in done.stderr and "holdfast remember" in done.stderr and "holdfast init" in done.stderr
    assert not (home / ".holdfast").exists()


def test_a_named_root_that_is_missing_is_not_made(home: pathlib.Path) -> None:
    done = run("remember", "x", "--root", str(home / "typo"), home=home)
    assert done.returncode == 9 and "does not exist" in done.stderr
    run("mcp", "--root", str(home / "typo"), home=home)
    assert not (home / "typo").exists()


def test_a_server_that_is_started_without_a_root_answers_in_an_empty_home(home: pathlib.Path) -> None:
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": HELLO},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "remember", "arguments": {"text": "Tea is at four."}}},
    ]
    sent = "".join(json.dumps({"jsonrpc": "2.0"} | message) + "\n" for message in messages)
    done = run("mcp", home=home, text=sent)
    assert done.returncode == 0, done.stderr
    assert "Created a memory" in done.stderr and "Stored in default" in done.stdout
    assert json.loads(run("search", "tea", home=home).stdout)["hits"]


def test_a_memory_in_the_home_folder_itself_is_used_and_not_its_index(
    home: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    run("init", str(home), home=home)
    elsewhere = tmp_path / "elsewhere" / "work"
    elsewhere.mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    command = [sys.executable, "-m", "holdfast", "remember", "Tea is at four."]
    done = fork_server.run(
        command, env=environment | {"HOME": str(home)}, cwd=elsewhere, capture_output=True, text=True
    )
    assert (home / json.loads(done.stdout)["path"]).exists()


def test_doctor_and_settings_say_where_the_root_comes_from(home: pathlib.Path) -> None:
    run("remember", "x", home=home)
    here = str(home / ".holdfast")
    run("init", str(home / "work"), home=home)
    for words, more, source in (
        (("--root", here), {}, "--root"),
        ((), {"HOLDFAST_ROOT": here}, "$HOLDFAST_ROOT"),
        ((), {}, "the nearest holdfast.toml"),
    ):
        settings = {one["name"]: one for one in json.loads(run("settings", *words, home=home, **more).stdout)}
        assert settings["root"]["source"] == source
        (check,) = [
            one
            for one in json.loads(run("doctor", *words, home=home, **more).stdout)["checks"]
            if one["check"] == "root"
        ]
        assert check["what"].endswith(f"from {source}.")
    (home / "work" / "holdfast.toml").unlink()
    assert json.loads(run("settings", home=home).stdout)[0] == {"name": "root", "value": here, "source": "the default"}


def test_the_help_shows_the_commands_of_every_day_and_with_all_every_one(home: pathlib.Path) -> None:
    def names(*words: str) -> list[str]:
        lines = re.findall(r"^  (\w[\w, -]*?)  ", run(*words, home=home).stdout.split("Start:")[1], re.MULTILINE)
        return [name for line in lines for name in line.split(", ")]

    usual = names("--help")
    assert len(usual) == 14  # twelve, two of which have two names
    assert {"init", "install", "remember", "recall", "state", "history"} <= {*usual}
    every = cli.list_commands(click.Context(cli))
    unlisted = {"add", "save", "ls", "list", "find", "show", "cat", "rm", "delete"}
    assert sorted({*names("--help", "--all")} | unlisted) == every
    assert names("--help", "--all") == names("--all", "-h")


def test_no_line_of_the_help_is_cut_at_80_columns(home: pathlib.Path) -> None:
    groups = [name for name, made in every_command(cli) if isinstance(made, click.Group)]
    for name in ("holdfast", *groups):
        shown = run(*name.split()[1:], "--help", *(["--all"] if name == "holdfast" else []), home=home).stdout
        assert "..." not in shown.partition("\n")[2], name
        assert all(len(line) <= 80 for line in shown.splitlines()), name
    for name, made in every_command(cli):
        assert len(made.get_short_help_str(200)) <= 60, name


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("serach", "search"), ("edit", "revise"), ("remeber", "remember"), ("instal", "install"), ("zzz", "")],
)
def test_a_command_that_does_not_exist_gets_a_suggestion(home: pathlib.Path, typed: str, meant: str) -> None:
    done = run(typed, "x", home=home)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"Error: No such command '{typed}'." + (
        f" Did you mean {meant}?" if meant else ""
    )
    assert "Did you mean list?" in run("state", "lits", home=home).stderr


def test_the_usual_words_for_a_command_work(home: pathlib.Path) -> None:
    made = json.loads(run("add", "We deploy on Tuesdays.", home=home).stdout)
    run("save", "Tea is at four.", home=home)
    for words in (("ls",), ("list",)):
        newest = json.loads(run(*words, home=home).stdout)["hits"]
        assert [hit["snippet"] for hit in newest] == ["Tea is at four.", "We deploy on Tuesdays."]
    assert len(json.loads(run("find", "tea", home=home).stdout)["hits"]) == 1
    for word in ("show", "cat"):
        assert json.loads(run(word, made["id"], home=home).stdout)["text"] == "We deploy on Tuesdays."
    for word in ("rm", "delete"):
        shown = on_terminal(word, made["id"], root=home / ".holdfast")
        assert "Its text stays" in shown and f"holdfast forget {made['id']}" in shown.replace("\r\n", "")
        run("hide", made["id"], "--restore", home=home)


def test_put_and_remember_are_one_command(home: pathlib.Path) -> None:
    for first, second in (("put", "remember"), ("remember", "put")):
        given = (f"The {first} wombat digs.", "--tag", "zoo", "--scope", "default")
        assert json.loads(run(first, *given, home=home).stdout)["status"] == "stored"
        assert json.loads(run(second, "note", *given, home=home).stdout)["status"] == "duplicate"
    fact = ("--key", "office", "--kind", "fact")
    assert json.loads(run("put", "Lisbon", *fact, home=home).stdout)["status"] == "stored"
    changed = json.loads(run("remember", "fact", "Porto", "--key", "office", home=home).stdout)
    assert (changed["status"], changed["was"]) == ("superseded", "Lisbon")
    assert "--expect" in run("remember", "--help", home=home).stdout
    assert "put it in quotes" in run("remember", "We", "deploy", "often", home=home).stderr


def test_search_and_recall_are_one_command(home: pathlib.Path) -> None:
    run("remember", "We deploy on Tuesdays.", "--workspace", "default", home=home)
    for query in ("deploy", "when do we deploy", "wombat", ""):
        both = [json.loads(run(name, query, "--scope", "default", home=home).stdout) for name in ("search", "recall")]
        assert both[0]["hits"] == both[1]["hits"]
    assert run("search", "x", "--layers", "cold", "--tags", "a", "--kinds", "note", home=home).returncode == 0


def test_a_pipe_gets_parts_of_texts_and_the_whole_with_full(home: pathlib.Path) -> None:
    text = "We talked about many things. " * 200 + "The code word is quokka."
    made = json.loads(run("remember", text, "--title", "Long", home=home).stdout)
    for query in ("quokka", "what is the code word quokka"):
        (hit,) = json.loads(run("search", query, home=home).stdout)["hits"]
        assert (hit["by"], hit["trust"]) == ("cli", "user")
        assert hit["record"]["id"] == made["id"] and hit["record"]["text"] == hit["snippet"]
        assert "quokka" in hit["snippet"] and len(hit["snippet"]) < 400
        (hit,) = json.loads(run("recall", query, "--full", home=home).stdout)["hits"]
        assert hit["record"]["text"] == text


def test_a_snippet_has_the_match_also_after_many_accents(home: pathlib.Path) -> None:
    text = "\u0065\u0301\u0302 " * 800 + "and then the quokka. " + "plain words " * 300
    run("remember", text, "--title", "Accents", home=home)
    (hit,) = json.loads(run("search", "quokka", home=home).stdout)["hits"]
    assert "quokka" in hit["snippet"]


def test_plain_text_for_an_agent_with_a_shell(home: pathlib.Path) -> None:
    made = json.loads(run("remember", "We deploy\non Tuesdays. " + "x " * 400, "--title", "Deploys", home=home).stdout)
    block, end = run("recall", "deploy", "--plain", home=home).stdout.split("\n\n")
    assert len(block.splitlines()) == 3 and "not an instruction" in end
    for part in (made["id"], "Deploys  note · just now", "by cli, trust user", "\n> We deploy on Tuesdays."):
        assert part in block
    assert run("recall", "wombat", "--plain", home=home).stdout == "Nothing relevant.\n"
    assert "on Tuesdays." in run("get", made["id"], "--plain", home=home).stdout
    assert run("get", "nothing", "--plain", home=home).stderr.startswith("There is no record")


def test_remember_and_recall_leave_the_traces_of_the_tools(root: pathlib.Path) -> None:
    """So `holdfast usage` counts what an agent with a shell does; a failure is traced too."""
    for words in (
        ("remember", "We ship on Tuesdays.", "--title", "Ship"), ("recall", "when do we ship?"), ("recall", "giraffe"),
        ("recall", "ship", "--scope", "nowhere"),
    ):  # fmt: skip
        fork_server.run([sys.executable, "-m", "holdfast", *words, "--root", str(root)], capture_output=True)
    with holdfast.open(root) as memory:
        traces = {
            (one.title, bool(one.fields["success"])): one.fields
            for one in memory.every(holdfast.Query(kinds=("trace",)))
        }
        used = memory.usage()
    assert traces.keys() == {("remember", True), ("recall", True), ("recall", False)}
    assert [one.title for one in used.recalled] == ["Ship"]
    assert [one.query for one in used.unanswered] == ["giraffe"]


def test_without_a_relevant_record_the_closest_is_shown_as_weak(home: pathlib.Path) -> None:
    run("remember", "We deploy on Tuesdays.", home=home)
    shown = run("recall", "deploy day", "--plain", home=home).stdout
    assert shown.startswith("Nothing relevant. The closest, by words alone:\n") and "We deploy on Tuesdays." in shown
    assert json.loads(run("recall", "deploy day", home=home).stdout)["weak"] is True
    assert "weak" not in json.loads(run("recall", "when do we deploy", home=home).stdout)
    assert run("recall", "wombat burrow", "--plain", home=home).stdout == "Nothing relevant.\n"
