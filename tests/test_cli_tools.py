"""The commands that are made of tools, `call`, `tools`, `traces` and `mcp`: real processes and exit codes."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

import fork_server
from holdfast.cli.tool_commands import VERBS, kebab
from holdfast.tools import toolsets
from terminal import on_terminal

WORKSPACE = ("--description", "d", "--root-folder", "projects/alpha", "--purpose", "p")
STATE = ("--workspace", "alpha", "--conversation-context", "We talked.", "--active-task", "Ship it")


def run(*words: str, root: pathlib.Path | None, text: str = "", cwd: pathlib.Path | None = None) -> Any:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    if root is not None:
        environment["HOLDFAST_ROOT"] = str(root)
    return fork_server.run(
        [sys.executable, "-m", "holdfast", *words],
        env=environment, capture_output=True, text=True, input=text, cwd=cwd, timeout=60,
    )  # fmt: skip


def answer(*words: str, root: pathlib.Path, text: str = "") -> Any:
    done = run(*words, root=root, text=text)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refusal(*words: str, root: pathlib.Path) -> tuple[int, str]:
    done = run(*words, root=root)
    assert done.stdout == ""
    told = json.loads(done.stderr)
    assert told["success"] is False
    return done.returncode, told["error"]


@pytest.fixture
def alpha(root: pathlib.Path) -> pathlib.Path:
    """A root with the workspace alpha and the state first in it."""
    assert answer("workspace", "create", "--name", "alpha", *WORKSPACE, root=root)["success"] is True
    made = answer("state", "create", "--name", "first", *STATE, "--next-steps", "a", "--next-steps", "b", root=root)
    assert made["success"] is True
    return root


def test_a_workspace_is_made_listed_loaded_changed_archived_and_restored(root: pathlib.Path) -> None:
    answer(
        "workspace", "create", "--name", "alpha", *WORKSPACE, "--key-files", "a.md", "--key-files", "b.md",
        "--workflows", "Review first", "--workflows", '{"name": "Ship", "when": "done", "steps": ["tag"]}',
        "--preferences", '{"tone": "dry"}', root=root,
    )  # fmt: skip
    data = answer("workspace", "load", "alpha", root=root)["data"]
    assert data["workflows"] == ["Review first", {"name": "Ship", "when": "done", "steps": ["tag"]}]
    assert (data["keyFiles"], data["preferences"]) == (["a.md", "b.md"], {"tone": "dry"})
    answer("workspace", "update", "alpha", "--new-name", "beta", "--preferences", "Keep it {short}", root=root)
    assert answer("workspace", "load", "beta", root=root)["data"]["preferences"] == "Keep it {short}"
    answer("workspace", "archive", "beta", root=root)
    assert "beta" not in [item["name"] for item in answer("workspace", "list", root=root)["data"]]
    archived = answer("workspace", "list", "--include-archived", root=root)["data"]
    assert {"name": "beta", "description": "d"} in archived
    answer("workspace", "update", "beta", "--no-is-archived", root=root)
    assert "beta" in [item["name"] for item in answer("workspace", "list", root=root)["data"]]


def test_a_state_is_made_listed_loaded_and_archived_in_its_workspace(alpha: pathlib.Path) -> None:
    assert answer("state", "list", "--workspace", "alpha", root=alpha)["data"] == [
        {"name": "first", "description": "Ship it"}
    ]
    assert answer("state", "load", "first", "--workspace", "alpha", root=alpha)["data"] == {
        "name": "first", "conversationContext": "We talked.", "activeTask": "Ship it", "activeFiles": [],
        "nextSteps": ["a", "b"],
    }  # fmt: skip
    assert answer("state", "list", root=alpha)["data"] == []
    answer("state", "archive", "first", "--workspace", "alpha", root=alpha)
    assert answer("state", "list", "--workspace", "alpha", root=alpha)["data"] == []
    answer("state", "archive", "first", "--restore", "--workspace", "alpha", root=alpha)
    assert len(answer("state", "list", "--workspace", "alpha", root=alpha)["data"]) == 1


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("workspace", "create", "--name", "alpha", *WORKSPACE), 4, 'Workspace "alpha" already exists.'),
        (("workspace", "create", "--name", " ", *WORKSPACE), 2, 'Missing or blank: name: add --name "…"'),
        (("workspace", "load", "nowhere"), 3, 'Workspace "nowhere" not found. Use `holdfast workspace list`'),
        (("workspace", "update", "alpha"), 2, "There is nothing to update."),
        (("state", "create", "--name", "FIRST", *STATE), 4, 'State "FIRST" already exists. States are immutable'),
        (("state", "load", "none", "--workspace", "alpha"), 3, 'State "none" not found. Use `holdfast state list`'),
        (("state", "list", "--workspace", "nowhere"), 3, 'Workspace "nowhere" not found.'),
        (("revise", " ", "--text", "x"), 2, 'Missing or blank: id: add --id "…"'),
        (("recall", "x", "--limit", "0"), 2, "limit"),
        (("traces", "--workspace", "nowhere"), 3, 'Workspace "nowhere" not found.'),
        (("tools", "createStat"), 3, 'Did you mean "createState"?'),
    ],
)
def test_a_refusal_is_json_with_the_next_step_and_the_exit_code_of_its_error(
    alpha: pathlib.Path, words: tuple[str, ...], code: int, says: str
) -> None:
    returned, error = refusal(*words, root=alpha)
    assert returned == code
    assert says in error


def test_a_missing_option_is_named(root: pathlib.Path) -> None:
    done = run("workspace", "create", "--name", "x", root=root)
    assert done.returncode == 2
    assert "--description" in done.stderr


def test_what_is_remembered_is_recalled(root: pathlib.Path) -> None:
    words = ("remember", "Europe/Lisbon", "--kind", "fact", "--key", "office time zone", "--tags", "ops")
    assert answer(*words, root=root)["status"] == "stored"
    assert answer(*words, root=root)["status"] == "duplicate"
    hits = answer("recall", "office time zone", "--kinds", "fact", root=root)["hits"]
    assert [hit["snippet"] for hit in hits] == ["Europe/Lisbon"]
    assert answer("recall", "zebra", root=root)["hits"] == []


def test_a_call_prints_the_reply_and_its_exit_code_says_success(alpha: pathlib.Path, tmp_path: pathlib.Path) -> None:
    context = json.dumps({"workspaceId": "alpha", "sessionId": "s"})
    reply = answer("call", "listStates", "--context", context, root=alpha)
    assert reply == {"success": True, "data": [{"name": "first", "description": "Ship it"}]}
    done = run("call", "loadState", "--params", '{"name": "none"}', "--context", context, root=alpha)
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"].startswith('State "none" not found.')
    assert run("call", "noSuchTool", root=alpha).returncode == 1
    params = tmp_path / "params.json"
    params.write_text('{"name": "first"}')
    assert answer("call", "loadState", "--params", f"@{params}", "--context", context, root=alpha)["success"]
    assert answer("call", "loadState", "--params", "-", "--context", context, root=alpha, text=params.read_text())


def test_use_tools_can_be_called(alpha: pathlib.Path) -> None:
    params = {"calls": [{"agent": "memoryManager", "tool": "listStates", "params": {}}]}
    context = json.dumps({"workspaceId": "alpha", "sessionId": "s"})
    assert answer("call", "useTools", "--params", json.dumps(params), "--context", context, root=alpha)["data"]


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        (("--params", "{oops"), 2, "--params is not JSON"),
        (("--context", "oops"), 2, "--context is not JSON"),
        (("--params", "@/no/such/file"), 9, "/no/such/file"),
    ],
)
def test_parameters_that_cannot_be_read_are_refused(
    root: pathlib.Path, given: tuple[str, ...], code: int, says: str
) -> None:
    returned, error = refusal("call", "listWorkspaces", *given, root=root)
    assert returned == code
    assert says in error


def test_tools_are_listed_and_described_as_the_registry_has_them(root: pathlib.Path) -> None:
    known = toolsets.registry().tools
    listed = answer("tools", root=root)
    assert [item["name"] for item in listed] == list(known)
    described = answer("tools", "createState", root=root)
    assert described["inputSchema"] == known["createState"].schema
    shown = on_terminal("tools", "createState", root=root)
    assert "unique forever" in shown


def test_every_parameter_of_a_tool_is_an_option_or_the_argument_of_its_command(root: pathlib.Path) -> None:
    known = toolsets.registry().tools
    for group, verbs in VERBS.items():
        for verb, tool in verbs.items():
            shown = run(group, verb, "--help", root=root).stdout
            for param, made in known[tool].params.items():
                for name in made.schema.get("properties", [param]):  # the fields of an object are options themselves
                    named = (f"--{kebab(name)}", f" {name.upper()}\n", f" [{name.upper()}]\n")
                    assert any(form in shown for form in named), (group, verb, name)


def test_an_argument_may_be_given_by_its_name_and_an_option_that_is_none_is_not_taken_for_it(
    root: pathlib.Path,
) -> None:
    (first,) = answer("task", "create", "Build the parser", root=root)["tasks"]
    (second,) = answer("task", "create", "--title", "- with a dash", "--after", first["id"], root=root)["tasks"]
    assert (first["title"], second["title"]) == ("Build the parser", "- with a dash")
    claim = answer("task", "claim", "--worker", "anna", root=root)
    assert claim["task"]["id"] == first["id"]
    assert answer("task", "list", root=root)["workers"] == {"anna": [first["id"]]}
    for words, told in (
        (("--wroker=otto",), "No such option '--wroker'"),
        ((), "Missing argument 'WORKER'"),
        (("otto", "--worker", "anna"), "Give worker once"),
    ):
        done = run("task", "claim", *words, root=root)
        assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    assert "Nothing is ready" in on_terminal("task", "claim", "otto", root=root)
    answer("task", "report", "--id", first["id"], "--attempt", claim["attempt"], "--status", "done", root=root)
    assert f"Task {second['id']}: - with a dash" in on_terminal("task", "claim", "otto", root=root)


def test_traces_tell_all_calls_newest_last_over_workspaces_and_months(alpha: pathlib.Path) -> None:
    run("state", "load", "none", "--workspace", "alpha", "--session", "s1", root=alpha)
    run("state", "list", "--workspace", "nowhere", root=alpha)
    old = alpha / "user/memory/traces/alpha/2020-01.jsonl"
    line = {"id": "016f5e66-e800-7000-8000-000000000000", "time": "2020-01-01T00:00:00.000Z", "tool": "createState",
            "workspace": "alpha", "session": "old", "params": {"name": "ancient"}, "success": True}  # fmt: skip
    old.write_text(json.dumps(line) + "\n")
    told = answer("traces", root=alpha)
    assert [each["what"] for each in told] == [
        "createState ancient", "createWorkspace alpha", "createState first", "loadState none", "listStates",
    ]  # fmt: skip
    assert [each["success"] for each in told] == [True, True, True, False, False]
    assert (told[3]["tool"], told[3]["session"], told[3]["workspace"]) == ("loadState", "s1", "alpha")
    assert told[3]["error"].startswith('State "none" not found.')
    assert isinstance(told[3]["ms"], float)
    assert [each["what"] for each in answer("traces", "-n", "2", root=alpha)] == ["loadState none", "listStates"]
    inside = answer("traces", "--workspace", "alpha", root=alpha)
    assert [each["what"] for each in inside] == ["createState ancient", "createState first", "loadState none"]


def test_traces_of_one_agent_show_parameters_and_results(alpha: pathlib.Path) -> None:
    for agent, name in (("planner", "one"), ("coder", "two")):
        note = {"text": f"The code word is {name}."}
        answer(
            "call", "remember", "--params", json.dumps(note), "--context", json.dumps({"agentId": agent}), root=alpha
        )
    (one,) = answer("traces", "--agent", "planner", root=alpha)
    assert (one["agent"], one["params"]) == ("planner", {"text": "The code word is one."})
    assert one["result"].startswith("Stored in default: ")
    shown = on_terminal("traces", "--agent", "Coder", root=alpha)
    assert "text: The code word is two." in shown and "→ Stored in default" in shown and "planner" not in shown
    assert "No such call yet." in on_terminal("traces", "--agent", "nobody", root=alpha)


def test_a_terminal_gets_tables(alpha: pathlib.Path) -> None:
    assert "No such call yet." not in on_terminal("traces", root=alpha)
    for words, says in (
        (("workspace", "list"), "alpha"),
        (("workspace", "load", "alpha"), "rootFolder"),
        (("state", "load", "first", "--workspace", "alpha"), "- b"),
        (("state", "list"), "None yet."),
        (
            ("state", "archive", "first", "--workspace", "alpha"),
            "Done in alpha: resources/workspaces/alpha/_states/first-",
        ),
        (("traces",), "createState"),
        (("tools",), "memoryManager"),
        (("recall", "zebra"), "Nothing relevant."),
    ):
        shown = on_terminal(*words, root=alpha)
        assert says in shown, words
        assert "{" not in shown, words


def test_text_that_is_no_json_is_text(root: pathlib.Path) -> None:
    for value, kept in (
        ("Lisbon", "Lisbon"),
        ("it's {odd", "it's {odd"),
        ("5", 5),
        ('{"a": [1]}', {"a": [1]}),
        ('"5"', "5"),
    ):
        answer("mind", "learn", "--key", "tz", "--value", value, root=root)
        assert answer("mind", "recall", "tz", root=root)["data"]["value"] == kept


def test_what_is_usual_can_be_left_off(root: pathlib.Path) -> None:
    for number in range(3):
        answer("mind", "append", "--type", "episodic", "--entry", f"step {number} took 7 ms", root=root)
    done = answer("mind", "compact", "episodic", "--keep-last", "1", "--no-summarize-older", root=root)["data"]
    assert (done["covered"], done["kept"]) == (2, 1)
    assert done["summary"].startswith("2 entries from ") and "step" not in done["summary"]
    assert answer("mind", "compact", "episodic", "--keep-last", "1", root=root)["data"] == {"covered": 0, "kept": 1}


def test_working_memory_is_not_for_commands(root: pathlib.Path) -> None:
    code, error = refusal("mind", "append", "--type", "working", "--entry", "x", root=root)
    assert code == 2
    assert "would end with this command" in error


def test_nothing_known_and_what_cannot_be_read_are_said_on_a_terminal(root: pathlib.Path) -> None:
    assert "That key has no value." in on_terminal("mind", "recall", "nokey", root=root)
    answer("mind", "learn", "--key", "tz", "--value", "Porto", root=root)
    with (root / "user/memory/semantic.jsonl").open("a") as file:
        file.write("{torn\n")
    for words in (("recall", "tz"), ("search", "semantic", "--query", "Porto"), ("stats",)):
        shown = on_terminal("mind", *words, root=root)
        assert "semantic.jsonl:2: skipped: not valid JSON" in shown, words
        assert words == ("stats",) or "Porto" in shown


def test_the_server_answers_over_standard_input_and_output(alpha: pathlib.Path) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    arguments = {"name": "listStates", "arguments": {}}
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": arguments},
    ]
    text = "".join(json.dumps({"jsonrpc": "2.0"} | message) + "\n" for message in messages)
    done = run("mcp", "--workspace", "alpha", "--session", "mine", root=alpha, text=text)
    assert done.returncode == 0, done.stderr
    replies = {reply["id"]: reply for reply in map(json.loads, done.stdout.splitlines()) if "id" in reply}
    assert "first" in json.dumps(replies[2]["result"])
    assert answer("traces", "-n", "1", root=alpha)[0]["session"] == "mine"


def test_only_the_module_of_a_command_is_loaded(root: pathlib.Path) -> None:
    code = (
        "import sys; from holdfast.cli.main import cli; "
        f"cli.main(['search', 'x', '--root', {str(root)!r}], standalone_mode=False); "
        "print([m for m in sorted(sys.modules) if m.startswith(('holdfast.cli.', 'holdfast.clients'))], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [f"holdfast.cli.{name}" for name in ("main", "records", "show")]
    assert done.stderr.strip() == str(loaded)
