"""The command line, as people and programs use it: real processes, real exit codes, a real terminal."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest
from tools.reference import every_command

import databaseroot
import fork_server
import holdfast
from holdfast.cli.main import cli
from terminal import on_terminal


def run(*words: str, root: pathlib.Path | None = None, text: str | None = None, cwd: pathlib.Path | None = None) -> Any:
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_ROOT"}
    if root is not None:
        environment["HOLDFAST_ROOT"] = str(root)
    return fork_server.run(
        [sys.executable, "-m", "holdfast", *words],
        env=environment, capture_output=True, text=True, input=text or "", cwd=cwd, timeout=60,
    )  # fmt: skip


def answer(*words: str, root: pathlib.Path, text: str | None = None) -> Any:
    done = run(*words, "--json", root=root, text=text)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def root(tmp_path: pathlib.Path, engine: str, request: pytest.FixtureRequest) -> Iterator[pathlib.Path]:
    where = str(tmp_path / "memory" if engine == "files" else request.getfixturevalue("address"))
    done = run("init", where, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    yield databaseroot.named(where)
    databaseroot.close(where)
    assert not (tmp_path / "postgresql:").exists()


def test_init_makes_a_root_and_overwrites_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / ".gitignore").write_text("mine\n")
    first = json.loads(run("init", str(tmp_path)).stdout)
    assert set(first["written"]) == {"holdfast.toml", ".gitattributes", ".gitignore"}
    assert (tmp_path / ".gitignore").read_text().startswith("mine\n.holdfast/\n")
    assert "*.jsonl merge=union" in (tmp_path / ".gitattributes").read_text()
    (tmp_path / "holdfast.toml").write_text("format = 1\n# mine\n")
    assert json.loads(run("init", str(tmp_path)).stdout)["written"] == []
    assert (tmp_path / "holdfast.toml").read_text() == "format = 1\n# mine\n"


def test_init_of_what_is_there_changes_nothing(root: pathlib.Path) -> None:
    (root / "holdfast.toml").write_text("format = 1\n# mine\n")
    before = sorted(root.rglob("*"))
    assert json.loads(run("init", str(root)).stdout)["written"] == []
    assert (root / "holdfast.toml").read_text() == "format = 1\n# mine\n"
    assert sorted(root.rglob("*")) == before


def test_what_is_put_is_found_listed_read_hidden_and_shown_again(root: pathlib.Path) -> None:
    receipt = answer("put", "note", "We deploy on Tuesdays.", "--title", "Deploys", "--tag", "ops", root=root)
    assert receipt["status"] == "stored"
    assert (root / receipt["path"]).read_text().endswith("We deploy on Tuesdays.\n")
    assert answer("get", receipt["id"], root=root)["text"] == "We deploy on Tuesdays."
    (hit,) = answer("search", "deploy", root=root)["hits"]
    assert (hit["record"]["id"], hit["why"], hit["record"]["line"]) == (receipt["id"], ["deploy"], 1)
    assert answer("hide", receipt["id"], root=root)["status"] == "hidden"
    assert answer("search", "deploy", root=root)["hits"] == []
    assert len(answer("search", "deploy", "--hidden", root=root)["hits"]) == 1
    assert answer("hide", receipt["id"], "--restore", root=root)["status"] == "shown"
    assert len(answer("search", "tag:ops", root=root)["hits"]) == 1


def test_text_can_come_from_standard_input(root: pathlib.Path) -> None:
    answer("put", "episode", "-", "--session", "s", root=root, text="first line\nsecond line\n")
    answer("put", "episode", "--session", "s", root=root, text="from a pipe")
    assert [r["text"] for r in answer("tail", "episode", "--session", "s", root=root)] == [
        "first line\nsecond line",
        "from a pipe",
    ]


def test_an_edit_needs_the_version_it_was_made_from(root: pathlib.Path) -> None:
    receipt = answer("put", "note", "old", "--title", "T", root=root)
    changed = answer("put", "note", "new", "--id", receipt["id"], "--expect", receipt["version"], root=root)
    assert changed["status"] == "changed"
    newest = answer("put", "newest", "--id", receipt["id"], "--expect", changed["version"], root=root)
    assert newest["status"] == "changed"
    stale = run("put", "note", "newer", "--id", receipt["id"], "--expect", receipt["version"], "--json", root=root)
    assert stale.returncode == 6
    assert json.loads(stale.stderr)["kind"] == "Conflict"
    assert answer("get", receipt["id"], root=root)["text"] == "newest"


def test_fields_are_text_or_json(root: pathlib.Path) -> None:
    made = answer(
        "put", "plan", "Do it.", "--title", "P", "--field", "status=done", "--field", 'files=["a", "b"]', root=root
    )
    fields = answer("get", made["id"], root=root)["fields"]
    assert (fields["status"], fields["files"]) == ("done", ["a", "b"])


def test_an_op_id_has_effect_once(root: pathlib.Path) -> None:
    first = answer("put", "message", "hello", "--op-id", "op-1", root=root)
    again = answer("put", "message", "hello", "--op-id", "op-1", root=root)
    assert (again["status"], again["id"]) == ("repeated", first["id"])
    assert len(answer("tail", "message", root=root)) == 1


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("put", "nonsense", "x"), 2, "Use one of: "),
        (("put", "not", "x"), 2, 'Did you mean "note"?'),
        (("put", "plan", "x"), 2, 'A plan needs a title: add --title "…"'),
        (("put", "note", " "), 2, 'A note needs a title and text: add --title "…" the text'),
        (("remember", "x", "--kind", "fact"), 2, 'A fact needs a key: add --key "…"'),
        (("put", "procedure", "x"), 2, 'A procedure needs a key: add --key "…"'),
        (
            ("put", "note", "x", "--title", "t", "--scope", "nowhere"),
            3,
            'Workspace "nowhere" not found. Use `holdfast workspace list`',
        ),
        (("put", "note", "x", "--title", "t", "--field", "oops"), 2, "NAME=VALUE"),
        (("get", "resources/workspaces/default/_notes/none.md"), 3, "does not exist"),
        (("get", "no-such-id"), 3, "Use search to find its id."),
        (("get", "../outside.md"), 3, "There is no record"),
        (("search", "x", "--limit", "0"), 2, "Use a number from 1 to"),
        (("search", "x", "--since", "yesterday"), 2, "ISO 8601"),
        (("search", "x", "--kind", "nots"), 2, 'Did you mean "note"?'),
        (("tail", "note"), 2, "Use find"),
    ],
)
def test_errors_name_the_next_step_and_have_their_exit_code(
    root: pathlib.Path, words: tuple[str, ...], code: int, says: str
) -> None:
    done = run(*words, "--json", root=root)
    assert done.returncode == code
    told = json.loads(done.stderr)
    assert told["code"] == code
    assert says in told["error"]
    assert done.stdout == ""


def test_without_a_root_the_error_says_how_to_get_one(tmp_path: pathlib.Path) -> None:
    done = run("search", "x", cwd=tmp_path)
    assert done.returncode == 9
    assert "holdfast init" in done.stderr


def test_the_nearest_root_upwards_is_used(root: pathlib.Path) -> None:
    below = root / "some" / "where"
    below.mkdir(parents=True)
    answer("put", "fact", "v", "--key", "k", root=root)
    assert len(json.loads(run("search", "k", cwd=below).stdout)["hits"]) == 1


def test_verify_says_sound_or_names_the_damage_with_its_exit_code(root: pathlib.Path) -> None:
    answer("put", "message", "hello", root=root)
    sound = answer("verify", root=root)
    assert sound["sound"] is True and "next" not in sound
    with (root / "user/memory/history.jsonl").open("a") as file:
        file.write("{torn\n")
    done = run("verify", root=root)
    assert done.returncode == 8
    report = json.loads(done.stdout)
    (damage,) = report["damage"]
    assert (damage["path"], damage["line"]) == ("user/memory/history.jsonl", 2)
    assert "from git or a backup; then run holdfast verify again" in report["next"]
    assert "rebuild" not in report["next"]


def test_stats_and_refresh_tell_what_is_there(root: pathlib.Path) -> None:
    answer("put", "note", "x", "--title", "t", root=root)
    numbers = answer("stats", root=root)
    assert numbers["kinds"]["note"] == 1
    (root / "resources/workspaces/default/_notes/by-hand.md").write_text("by hand\n")
    assert answer("stats", root=root)["behind"] == 1
    assert answer("refresh", root=root)["changed"] == 1
    assert answer("stats", root=root)["behind"] == 0
    assert answer("refresh", "--rebuild", root=root)["files"] == numbers["files"] + 1


def test_a_terminal_gets_tables_and_a_pipe_gets_json(root: pathlib.Path) -> None:
    answer("put", "note", "We deploy on Tuesdays.", "--title", "Deploys", root=root)
    shown = on_terminal("search", "deploy", root=root)
    assert "Deploys" in shown and "We deploy on Tuesdays." in shown and "_notes/deploys-" in shown
    assert "{" not in shown
    assert json.loads(run("search", "deploy", root=root).stdout)["hits"]
    assert "Nothing relevant." in on_terminal("search", "zebra", root=root)
    assert "all sound" in on_terminal("verify", root=root)
    assert "records indexed" in on_terminal("refresh", "--rebuild", root=root)
    assert "Tuesdays" in on_terminal(
        "get", json.loads(run("search", "deploy", root=root).stdout)["hits"][0]["record"]["id"], root=root
    )


def test_stored_text_cannot_steer_the_terminal(root: pathlib.Path) -> None:
    answer("put", "note", "before \x1b]0;title\x07\x1b[2J after", "--title", "Escape", root=root)
    shown = on_terminal("search", "escape", root=root)
    assert "\x1b]0;" not in shown and "\x1b[2J" not in shown
    assert "before" in shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str) -> None:
    assert "_HOLDFAST_COMPLETE" in run("completion", shell).stdout


def test_completion_offers_kinds(root: pathlib.Path) -> None:
    environment = os.environ | {
        "_HOLDFAST_COMPLETE": "bash_complete",
        "COMP_WORDS": "holdfast put no",
        "COMP_CWORD": "2",
    }
    code = "from holdfast.cli.main import cli; cli.main(prog_name='holdfast')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "plain,note" in done.stdout


def test_every_command_but_completion_takes_json_and_root() -> None:
    for name, command in every_command(cli):
        options = {option for parameter in command.params for option in parameter.opts}
        free = isinstance(command, click.Group) or name == "holdfast completion"
        assert free or {"--json", "--root"} <= options, name


def test_a_closed_pipe_is_no_error(root: pathlib.Path) -> None:
    for number in range(30):
        answer("put", "fact", f"value {number} " + "x" * 3000, "--key", f"k{number}", root=root)
    command = (
        f"{sys.executable} -m holdfast search value --limit 30 --root {shlex.quote(str(root))} --json | head -c 10"
    )
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_ids_are_whole_on_a_narrow_terminal(root: pathlib.Path) -> None:
    """Ids are never cut, because people copy them."""
    with holdfast.open(root) as memory:
        made = [memory.put("message", "word " * 40, fields={"role": "user"}).id for _ in range(2)]
        memory.put("plan", "Steps.", title="A plan with a long name " * 4, fields={"status": "in_progress"})
        memory.call("memory_append", {"type": "episodic", "entry": {"what": "word " * 40, "who": "ann " * 20}})
        (found,) = memory.call("memory_search", {"type": "episodic", "query": "word"})["data"]
    shown = on_terminal("tail", "message", root=root, columns=60)
    assert all(each in shown.split() for each in made)
    shown = on_terminal("plan", "list", root=root, columns=60)
    with holdfast.open(root) as memory:
        (listed,) = memory.call("retrieve_plans")["plans"]
    assert listed["_meta"]["document_id"] in shown.split()
    assert found["id"] in on_terminal("mind", "search", "episodic", "--query", "word", root=root, columns=60)


def test_no_color_is_honoured_everywhere(root: pathlib.Path) -> None:
    with holdfast.open(root) as memory:
        memory.put("note", "Deploy on Tuesdays.", title="Deploys")
    for words, code in ((("search", "deploy"), 0), (("stats",), 0), (("get", "nothing"), 3)):
        assert "\x1b[" in on_terminal(*words, root=root, code=code)
        assert "\x1b[" not in on_terminal(*words, root=root, code=code, NO_COLOR="1")


def test_one_of_something_is_said_as_one(root: pathlib.Path, another: Callable[[], pathlib.Path]) -> None:
    with holdfast.open(root) as memory:
        assert memory.call("memory_write", {"content": "tea"})["text"].endswith("(1 token).")
        memory.call("save_memory", {"compartment": "run", "content": "half done"})
        assert memory.call("end_run")["text"] == "Run ended: 1 entry removed."
    only = another()
    (only / "user/memory/MEMORY.md").write_text("tea")
    assert "1 file, 1 record: all sound." in on_terminal("verify", root=only)
