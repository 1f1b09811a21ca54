"""Workspaces, states, traces and the pair, through `memory.call`: the names, shapes and texts that agents rely on."""

from __future__ import annotations

import json
import multiprocessing
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import AlreadyExists, NotFound
from holdfast.model.kinds import KINDS
from holdfast.model.names import unique
from holdfast.tools import toolsets

CONTEXT = {"workspaceId": "Project Alpha", "sessionId": "session-1", "memory": "", "goal": "Finish auth"}
ALPHA = {
    "name": "Project Alpha",
    "description": "E-commerce platform rebuild",
    "rootFolder": "projects/alpha",
    "purpose": "Rebuild legacy e-commerce platform",
}
STATE: dict[str, Any] = {
    "name": "Auth Module Progress",
    "conversationContext": "We decided on JWT tokens for auth and set up the basic structure.",
    "activeTask": "Implementing token refresh logic",
    "activeFiles": ["src/auth/jwt.ts", "src/auth/middleware.ts"],
    "nextSteps": ["Add refresh token endpoint", "Test token expiration", "Add logout flow"],
    "tags": ["auth", "in-progress"],
}
NO_WORKSPACE = 'Workspace "{}" not found. Use listWorkspaces to see available workspaces.'


def use(memory: holdfast.Memory, *calls: tuple[str, str, dict[str, Any]], **more: Any) -> Any:
    wanted = [{"agent": agent, "tool": tool, "params": params} for agent, tool, params in calls]
    return memory.call("useTools", {"context": more.pop("context", CONTEXT), "calls": wanted, **more})


@pytest.fixture
def alpha(memory: holdfast.Memory) -> holdfast.Memory:
    assert memory.call("createWorkspace", ALPHA)["success"] is True
    return memory


# the design's flows


def test_the_three_flows_of_the_design(memory: holdfast.Memory, root: Path) -> None:
    setup = {"workspaceId": "default", "sessionId": "setup", "memory": "", "goal": "Setup project"}
    assert use(memory, ("memoryManager", "createWorkspace", ALPHA), context=setup)["success"] is True
    assert use(memory, ("memoryManager", "createState", STATE))["success"] is True
    with holdfast.open(root) as other:
        later = CONTEXT | {"sessionId": "session-2"}
        reply = use(other, ("memoryManager", "loadState", {"name": "Auth Module Progress"}), context=later)
    assert reply == {"success": True, "data": STATE}


# workspaces


def test_a_workspace_is_its_overview_and_its_folder_is_made(alpha: holdfast.Memory, root: Path) -> None:
    text = (root / "resources/workspaces/project-alpha/OVERVIEW.md").read_text()
    assert "name: Project Alpha\n" in text
    assert (root / "projects/alpha").is_dir()
    data = alpha.call("loadWorkspace", {"name": "Project Alpha"})["data"]
    assert {field: data[field] for field in ALPHA} == ALPHA


def test_workflows_and_preferences_come_back_as_given(memory: holdfast.Memory) -> None:
    extra = {
        "workflows": ["test first", {"name": "Deploy", "when": "Tuesday", "steps": ["build", "ship"]}],
        "keyFiles": ["README.md"],
        "preferences": {"tabs": False, "lang": {"code": "en"}},
    }
    assert memory.call("createWorkspace", ALPHA | extra)["success"] is True
    data = memory.call("loadWorkspace", {"name": "project alpha"})["data"]
    assert {name: data[name] for name in extra} == extra
    assert memory.call("updateWorkspace", {"name": "Project Alpha", "preferences": "plain words"})["success"]
    assert memory.call("loadWorkspace", {"name": "Project Alpha"})["data"]["preferences"] == "plain words"


def test_everything_that_is_missing_is_named_in_one_message(memory: holdfast.Memory) -> None:
    reply = memory.call("createWorkspace", {"name": " ", "purpose": "p"})
    assert reply["success"] is False
    assert reply["error"].startswith("Missing or blank: name, description, rootFolder.")
    reply = memory.call("createWorkspace", ALPHA | {"name": 7, "keyFiles": "x"})
    assert "name" in reply["error"] and "keyFiles" in reply["error"]


@pytest.mark.parametrize("name", ["Project Alpha", "PROJECT ALPHA", "project-alpha"])
def test_a_taken_name_is_refused_also_when_it_is_archived(alpha: holdfast.Memory, name: str) -> None:
    taken = f'Workspace "{name}" already exists. Use listWorkspaces to see existing workspaces.'
    assert alpha.call("createWorkspace", ALPHA | {"name": name}) == {"success": False, "error": taken}
    assert alpha.call("archiveWorkspace", {"name": "Project Alpha"})["success"] is True
    assert alpha.call("createWorkspace", ALPHA | {"name": name}) == {"success": False, "error": taken}


@pytest.mark.parametrize("folder", ["../outside", "/etc", "a/../../b", "a\0b", "a\\b", ".git/x"])
def test_a_root_folder_outside_the_memory_is_refused(memory: holdfast.Memory, root: Path, folder: str) -> None:
    reply = memory.call("createWorkspace", ALPHA | {"rootFolder": folder})
    assert reply["success"] is False
    assert "rootFolder" in reply["error"]
    assert memory.call("listWorkspaces") == {"success": True, "data": []}


def test_a_folder_made_by_hand_is_a_workspace(memory: holdfast.Memory, root: Path) -> None:
    (root / "resources/workspaces/by-hand").mkdir(parents=True)
    assert memory.call("listWorkspaces")["data"] == [{"name": "by-hand", "description": ""}]
    data = memory.call("loadWorkspace", {"name": "By-Hand"})["data"]
    assert data["rootFolder"] == "resources/workspaces/by-hand"
    (root / "resources/workspaces/by-hand/OVERVIEW.md").write_text("---\ndescription: Mine\n---\n\nMy own text.\n")
    data = memory.call("loadWorkspace", {"name": "by-hand"})["data"]
    assert (data["description"], data["purpose"]) == ("Mine", "Mine")
    assert memory.call("updateWorkspace", {"name": "by-hand", "purpose": "P"})["success"] is True
    assert (root / "resources/workspaces/by-hand/OVERVIEW.md").read_text().endswith("\nMy own text.\n")


def test_an_update_changes_what_is_given_and_the_folder_keeps_its_name(alpha: holdfast.Memory, root: Path) -> None:
    assert alpha.call("updateWorkspace", {"name": "Project Alpha", "newName": "Shop", "description": "D"})["success"]
    assert alpha.call("listWorkspaces")["data"] == [{"name": "Shop", "description": "D"}]
    assert (root / "resources/workspaces/project-alpha/OVERVIEW.md").exists()
    assert alpha.call("loadWorkspace", {"name": "project-alpha"})["data"]["name"] == "Shop"
    reply = alpha.call("updateWorkspace", {"name": "Shop"})
    assert "newName" in reply["error"] and "isArchived" in reply["error"]
    reply = alpha.call("updateWorkspace", {"name": "Shop", "currentGoal": "x"})
    assert reply["success"] is False and "currentGoal" in reply["error"]


def test_archive_and_restore_survive_a_reopening(alpha: holdfast.Memory, root: Path) -> None:
    assert alpha.call("archiveWorkspace", {"name": "Project Alpha"})["success"] is True
    with holdfast.open(root) as other:
        assert other.call("listWorkspaces") == {"success": True, "data": []}
        assert len(other.call("listWorkspaces", {"includeArchived": True})["data"]) == 1
        assert other.call("loadWorkspace", {"name": "Project Alpha"})["data"]["isArchived"] is True
        assert other.call("archiveWorkspace", {"name": "Project Alpha"})["success"] is False
        assert other.call("updateWorkspace", {"name": "Project Alpha", "isArchived": False})["success"] is True
    assert len(alpha.call("listWorkspaces")["data"]) == 1
    assert alpha.call("archiveWorkspace", {"name": "Project Alpha", "restore": True})["success"] is False


def test_an_unknown_workspace_is_told_with_the_contracts_text(alpha: holdfast.Memory) -> None:
    for tool in ("loadWorkspace", "archiveWorkspace"):
        assert alpha.call(tool, {"name": "Zzz"}) == {"success": False, "error": NO_WORKSPACE.format("Zzz")}
    near = alpha.call("loadWorkspace", {"name": "Projekt Alpha"})["error"]
    assert near == NO_WORKSPACE.format("Projekt Alpha") + ' Did you mean "Project Alpha"?'
    assert alpha.call("listStates", {}, {"workspaceId": "Zzz"})["error"] == NO_WORKSPACE.format("Zzz")
    assert alpha.call("searchMemory", {"query": "x", "workspaceId": "Zzz"})["error"] == NO_WORKSPACE.format("Zzz")


def test_the_briefing_tells_what_was_done_and_which_goal_it_served(alpha: holdfast.Memory) -> None:
    alpha.call("createState", STATE, CONTEXT)
    alpha.put("plan", "Ship it.", title="Ship", scope="Project Alpha", fields={"description": "Soon"})
    alpha.put("plan", "Done.", title="Old", scope="Project Alpha", fields={"status": "done"})
    alpha.call("listStates", {}, CONTEXT)
    data = alpha.call("loadWorkspace", {"name": "Project Alpha"}, CONTEXT)["data"]
    newest = data["recentActivity"][0]
    assert (newest["what"], newest["goal"]) == ("createState Auth Module Progress", "Finish auth")
    assert data["states"] == [{"name": STATE["name"], "description": STATE["activeTask"]}]
    assert data["plans"] == [{"name": "Ship", "description": "Soon", "status": "new"}]


def test_a_workspace_is_found_by_the_id_in_its_front_matter(alpha: holdfast.Memory, root: Path) -> None:
    page = root / "resources/workspaces/project-alpha/OVERVIEW.md"
    page.write_text(page.read_text().replace("---\n", "---\nid: ws-abc123\n", 1))
    context = CONTEXT | {"workspaceId": "ws-abc123"}
    reply = use(alpha, ("memoryManager", "createState", STATE), context=context)
    assert reply["data"]["workspace"] == "project-alpha"
    assert alpha.call("loadWorkspace", {"name": "ws-abc123"})["data"]["name"] == "Project Alpha"
    assert alpha.call("listStates", {}, {"workspaceId": "WS-ABC123"})["success"] is False, "an id is exact"
    assert "already exists" in alpha.call("createWorkspace", ALPHA | {"name": "ws-abc123"})["error"]
    assert alpha.call("listStates", {}, {"workspaceId": "None"})["success"] is False


def test_archived_is_what_the_file_says(alpha: holdfast.Memory, root: Path) -> None:
    page, plain = root / "resources/workspaces/project-alpha/OVERVIEW.md", {"name": "Project Alpha"}
    before = page.read_text()
    alpha.call("archiveWorkspace", plain)
    assert "\nisArchived: true\n" in page.read_text() and "\narchived:" not in page.read_text()
    assert alpha.call("updateWorkspace", plain | {"isArchived": False})["success"] is True
    assert "rchived" not in page.read_text()
    for said, hidden in (("isArchived: true", True), ("archived: true", True), ("isArchived: false", False),
                         ("archived: true\nisArchived: false", False)):  # fmt: skip
        page.write_text(before.replace("---\n", f"---\n{said}\n", 1))
        assert (alpha.call("listWorkspaces")["data"] == []) is hidden, said
        assert ("isArchived" in alpha.call("loadWorkspace", plain)["data"]) is hidden, said
        assert ("already" in alpha.call("archiveWorkspace", plain).get("error", "")) is hidden, said


@pytest.mark.parametrize("name", ["Client/Server", "TCP/IP // notes", "a/b/c/d", "../x"])
def test_a_name_may_contain_a_slash(alpha: holdfast.Memory, name: str) -> None:
    assert alpha.call("createWorkspace", ALPHA | {"name": name})["success"] is True
    assert "already exists" in alpha.call("createWorkspace", ALPHA | {"name": name.upper()})["error"]
    context = {"workspaceId": name, "sessionId": "s"}
    assert alpha.call("createState", STATE | {"name": name}, context)["success"] is True
    assert alpha.call("listStates", {}, context)["data"][0]["name"] == name
    assert alpha.call("loadState", {"name": name}, context)["data"]["name"] == name
    assert alpha.call("loadWorkspace", {"name": name})["data"]["name"] == name
    assert (
        alpha.call("workspace_context", {"scope": {"workspace": name}})["overview"]["abstract"] == ALPHA["description"]
    )
    assert alpha.call("updateWorkspace", {"name": "Project Alpha", "newName": "Alpha/Beta"})["success"] is True
    assert alpha.call("loadWorkspace", {"name": "alpha/beta"})["data"]["name"] == "Alpha/Beta"


def test_a_path_goes_before_a_name_with_a_slash(alpha: holdfast.Memory, root: Path) -> None:
    alpha.put("overview", "", title="Server", scope="Project Alpha")
    assert alpha.call("listStates", {}, {"workspaceId": "project-alpha/server"})["success"] is True
    assert "already exists" in alpha.call("createWorkspace", ALPHA | {"name": "Project-Alpha/Server"})["error"]


# states


def test_a_state_comes_back_exactly_as_it_was_given(alpha: holdfast.Memory) -> None:
    odd = STATE | {
        "name": 'Quotes "and": colons # and ünïcode 東京',
        "conversationContext": "\n\n---\nname: not front matter\n---\r\ntrailing spaces  \n\n",
        "activeFiles": [],
        "nextSteps": [],
        "description": "---",
    }
    assert alpha.call("createState", odd, CONTEXT)["success"] is True
    assert alpha.call("loadState", {"name": odd["name"]}, CONTEXT) == {"success": True, "data": odd}


def test_names_of_states_are_unique_for_ever_without_case(alpha: holdfast.Memory) -> None:
    assert alpha.call("createState", STATE, CONTEXT)["success"] is True
    assert alpha.call("archiveState", {"name": STATE["name"]}, CONTEXT)["success"] is True
    for name in (STATE["name"], STATE["name"].upper()):
        month = date.today().strftime("%Y-%m")
        text = f'State "{name}" already exists. States are immutable - use a unique name like "{name}-v2" or "{name}-{month}".'
        assert alpha.call("createState", STATE | {"name": name}, CONTEXT) == {"success": False, "error": text}
    assert alpha.call("createState", STATE, {"workspaceId": "default", "sessionId": "s"})["success"] is True


def test_a_thousand_states_stay_unique_listed_and_loadable(alpha: holdfast.Memory, root: Path) -> None:
    for number in range(1_000):
        assert alpha.call("createState", STATE | {"name": f"State {number}"}, CONTEXT)["success"], number
    for memory in (alpha, holdfast.open(root)):
        listed = memory.call("listStates", {}, CONTEXT)["data"]
        assert [item["name"] for item in listed] == [f"State {number}" for number in reversed(range(1_000))]
        assert memory.call("createState", STATE | {"name": "state 500"}, CONTEXT)["success"] is False
        assert memory.call("loadState", {"name": "State 0"}, CONTEXT)["data"]["name"] == "State 0"
    memory.close()


def test_archived_states_leave_the_list_and_can_be_restored(alpha: holdfast.Memory, root: Path) -> None:
    alpha.call("createState", STATE, CONTEXT)
    name = {"name": STATE["name"]}
    assert alpha.call("archiveState", name, CONTEXT)["success"] is True
    with holdfast.open(root) as other:
        assert other.call("listStates", {}, CONTEXT)["data"] == []
        assert len(other.call("listStates", {"includeArchived": True}, CONTEXT)["data"]) == 1
        assert other.call("loadState", name, CONTEXT)["success"] is True
        assert "already archived" in other.call("archiveState", name, CONTEXT)["error"]
        assert other.call("archiveState", name | {"restore": True}, CONTEXT)["success"] is True
        assert "not archived" in other.call("archiveState", name | {"restore": True}, CONTEXT)["error"]
    assert len(alpha.call("listStates", {}, CONTEXT)["data"]) == 1


def test_an_unknown_state_is_told_with_the_contracts_text(alpha: holdfast.Memory) -> None:
    expected = 'State "X" not found. Use listStates to see available states.'
    for tool in ("loadState", "archiveState"):
        assert alpha.call(tool, {"name": "X"}, CONTEXT) == {"success": False, "error": expected}


def test_a_state_edited_by_hand_is_named_by_verify(alpha: holdfast.Memory, root: Path) -> None:
    alpha.call("createState", STATE, CONTEXT)
    (path,) = (root / "resources/workspaces/project-alpha/_states").glob("*.md")
    path.write_text(path.read_text().replace("JWT", "PASETO"))
    assert [problem.path for problem in alpha.verify().damage] == [str(path.relative_to(root))]


def test_a_state_that_somebody_put_there_by_hand_is_listed_and_loaded(alpha: holdfast.Memory, root: Path) -> None:
    folder = root / "resources/workspaces/project-alpha/_states"
    folder.mkdir()
    (folder / "mine.md").write_text("---\nname: Mine\nactiveTask: T\n---\n\nContext.\n")
    assert alpha.call("listStates", {}, CONTEXT)["data"] == [{"name": "Mine", "description": "T"}]
    assert alpha.call("loadState", {"name": "mine"}, CONTEXT)["data"]["conversationContext"] == "Context."


def _create(root: str, number: int, out: Any) -> None:
    with holdfast.open(root) as memory:
        out.put((number, memory.call("createState", STATE | {"activeTask": str(number)}, {"workspaceId": "default"})))


def test_of_eight_processes_that_create_one_state_exactly_one_wins(memory: holdfast.Memory, root: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    out: Any = spawn.Queue()
    workers = [spawn.Process(target=_create, args=(str(root), number, out)) for number in range(8)]
    for worker in workers:
        worker.start()
    replies = dict(out.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join()
    (winner,) = [number for number, reply in replies.items() if reply["success"]]
    assert all("already exists. States are immutable" in r["error"] for n, r in replies.items() if n != winner)
    assert memory.call("loadState", {"name": STATE["name"]})["data"]["activeTask"] == str(winner)


def test_a_state_edited_by_hand_loads_with_a_warning(alpha: holdfast.Memory, root: Path) -> None:
    alpha.call("createState", STATE, CONTEXT)
    assert "warnings" not in alpha.call("loadState", {"name": STATE["name"]}, CONTEXT)
    (path,) = (root / "resources/workspaces/project-alpha/_states").glob("*.md")
    path.write_text(path.read_text().replace("JWT", "PASETO"))
    reply = alpha.call("loadState", {"name": STATE["name"]}, CONTEXT)
    assert "PASETO" in reply["data"]["conversationContext"]
    assert reply["data"].keys() == STATE.keys()
    (warning,) = reply["warnings"]
    assert path.name in warning and "edited" in warning


def test_the_name_of_a_state_whose_file_was_removed_stays_taken(alpha: holdfast.Memory, root: Path) -> None:
    alpha.call("createState", STATE, CONTEXT)
    (path,) = (root / "resources/workspaces/project-alpha/_states").glob("*.md")
    path.unlink()
    for memory in (alpha, holdfast.open(root)):
        for name in (STATE["name"], STATE["name"].upper()):
            reply = memory.call("createState", STATE | {"name": name}, CONTEXT)
            assert "already exists. States are immutable" in reply["error"], name
        assert memory.call("loadState", {"name": STATE["name"]}, CONTEXT)["error"].startswith("State ")
        assert memory.call("listStates", {}, CONTEXT)["data"] == []
    memory.close()


def test_a_state_that_was_only_announced_can_be_written(alpha: holdfast.Memory, root: Path) -> None:
    """A crash between the ledger and the file must not take the name for ever."""
    alpha.call("createState", STATE, CONTEXT)
    other = alpha.layout.path_for(KINDS["state"], alpha.scopes.resolve("Project Alpha"), unique("B", ignore_case=True))
    line = {"state": other.rpartition("/")[2], "name": "B", "version": "0" * 32}
    alpha.store.append("resources/workspaces/project-alpha/_states/ledger.jsonl", [line])
    assert alpha.call("createState", STATE | {"name": "B"}, CONTEXT)["success"] is True


# the pair


def test_several_calls_reply_in_order_and_keep_what_succeeded(alpha: holdfast.Memory) -> None:
    good, bad = ("memoryManager", "createState", STATE), ("memoryManager", "loadState", {"name": "X"})
    reply = use(alpha, good, bad, ("memoryManager", "listStates", {}))
    assert (reply["success"], reply["error"]) == (False, "1 of 3 failed")
    first, second, third = reply["data"]["results"]
    assert (first["agent"], first["tool"], first["success"]) == ("memoryManager", "createState", True)
    assert second["error"].startswith('State "X" not found.')
    assert (third["success"], third["error"]) == (False, "Not run: an earlier call failed.")
    assert alpha.call("loadState", {"name": STATE["name"]}, CONTEXT)["success"] is True


def test_a_failure_that_may_be_passed_over_stops_nothing(alpha: holdfast.Memory) -> None:
    calls = [
        {"agent": "memoryManager", "tool": "loadState", "params": {"name": "X"}, "continueOnFailure": True},
        {"agent": "memoryManager", "tool": "listStates", "params": {}},
    ]
    reply = alpha.call("useTools", {"context": CONTEXT, "calls": calls})
    assert [result["success"] for result in reply["data"]["results"]] == [False, True]
    assert reply["error"] == "1 of 2 failed"


def test_parallel_calls_all_run_and_reply_in_call_order(alpha: holdfast.Memory) -> None:
    calls = [("memoryManager", "createState", STATE | {"name": f"P{number}"}) for number in range(6)]
    reply = use(alpha, *calls, ("memoryManager", "loadState", {"name": "X"}), strategy="parallel")
    assert [result["success"] for result in reply["data"]["results"]] == [True] * 6 + [False]
    assert len(alpha.call("listStates", {}, CONTEXT)["data"]) == 6


@pytest.mark.parametrize(
    ("context", "faults"),
    [
        (None, ["it is missing"]),
        ("x", ["not an object"]),
        ({}, ["workspaceId is missing", "sessionId is missing"]),
        ({"workspaceId": 1, "sessionId": None}, ["workspaceId must be a string", "sessionId must be a string"]),
        ({"workspaceId": "default", "sessionId": "s", "goal": 3, "memory": []}, ["memory must", "goal must"]),
        (
            {"workspaceId": "default", "sessionId": "\ud800", "opId": "\udfff"},
            ["sessionId contains a lone", "opId contains a lone"],
        ),
    ],
)
def test_all_faults_of_a_context_are_told_at_once(memory: holdfast.Memory, context: Any, faults: list[str]) -> None:
    calls = [{"agent": "memoryManager", "tool": "listWorkspaces", "params": {}}]
    reply = memory.call("useTools", {"context": context, "calls": calls} if context is not None else {"calls": calls})
    assert reply["success"] is False
    assert reply["error"].startswith("Invalid context: ")
    assert all(fault in reply["error"] for fault in faults)


def test_a_context_may_leave_memory_and_goal_out(memory: holdfast.Memory) -> None:
    call: tuple[str, str, dict[str, Any]] = ("memoryManager", "listWorkspaces", {})
    assert use(memory, call, context={"workspaceId": "default", "sessionId": "s"})["success"] is True


def test_unknown_agents_and_tools_are_answered_with_those_there_are(memory: holdfast.Memory) -> None:
    reply = use(memory, ("memoryManger", "listStates", {}), context={"workspaceId": "default", "sessionId": "s"})
    assert 'Did you mean "memoryManager"?' in reply["error"] and "searchManager" in reply["error"]
    reply = use(memory, ("memoryManager", "listStats", {}), context={"workspaceId": "default", "sessionId": "s"})
    assert 'Did you mean "listStates"?' in reply["error"] and "createWorkspace" in reply["error"]
    assert "loadWorkspace" in memory.call("nonsense")["error"]


def test_get_tools_describes_what_was_asked_and_reports_the_rest(memory: holdfast.Memory) -> None:
    request = [{"agent": "memoryManager", "tools": ["createState", "nope"]}, {"agent": "nobody"}, {"agent": "memory"}]
    data = memory.call("getTools", {"request": request})["data"]
    assert [tool["name"] for tool in data["tools"]] == ["createState", "recall", "remember", "read", "revise"]
    schema = data["tools"][0]["inputSchema"]
    assert schema["required"] == ["name", "conversationContext", "activeTask", "activeFiles", "nextSteps"]
    assert "context" not in schema["properties"]
    assert [name.split(".")[0] for name in data["unknown"]] == ["memoryManager", "nobody"]
    about = memory.tools.registry.tools["getTools"].about
    assert all(name in about for name in memory.tools.registry.tools if name not in ("getTools", "useTools"))


def test_schemas_carry_the_default_values() -> None:
    tools = toolsets.registry().tools
    shown = {name: part.get("default") for name, part in tools["recall"].schema["properties"].items()}
    assert (shown["limit"], shown["budget"], shown["level"], shown["scope"]) == (10, 2000, "records", None)
    assert tools["remember"].schema["properties"]["kind"]["default"] == "note"
    assert tools["listStates"].schema["properties"]["includeArchived"]["default"] is False
    calls = tools["useTools"].schema["properties"]["calls"]["items"]["properties"]
    assert calls["continueOnFailure"]["default"] is False
    for name, tool in tools.items():
        for param in tool.params.values():
            if not param.required and param.default not in (None, ""):
                assert tool.schema["properties"][param.name]["default"] == param.default, (name, param.name)


@pytest.mark.parametrize("tool", [name for name in toolsets.registry().tools if name != "useTools"])
def test_every_tool_answers_any_parameters_with_a_reply(memory: holdfast.Memory, tool: str) -> None:
    params = toolsets.registry().tools[tool].params
    wrong: list[Any] = [None, {}, [], "x", 7, {"unknown": 1}]
    values: tuple[Any, ...] = (None, "", 7, -1, [], {}, ["\ud800"], "x" * 200_000, float("nan"), {"a": {"b": [None]}})
    wrong += [dict.fromkeys(params, value) for value in values]
    for given in wrong:
        reply = memory.call(tool, given)
        assert isinstance(reply, dict)
        assert reply.get("success") is not False or reply["error"]
    assert memory.verify().sound


# traces and search


def test_every_call_leaves_a_trace_failures_too(alpha: holdfast.Memory, root: Path) -> None:
    use(alpha, ("memoryManager", "createState", STATE), ("memoryManager", "loadState", {"name": "X"}))
    (path,) = (root / "user/memory/traces/project-alpha").glob("*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    made, failed = lines[-2:]
    assert (made["tool"], made["session"], made["goal"], made["workspace"]) == (
        "createState", "session-1", "Finish auth", "project-alpha",
    )  # fmt: skip
    assert made["params"]["activeTask"] == STATE["activeTask"] and "context" not in made["params"]
    assert (failed["success"], failed["read"]) == (False, True)
    assert failed["error"].startswith('State "X" not found.')
    assert "useTools" not in {line["tool"] for line in lines}


def test_a_trace_holds_no_secret_and_no_long_value(alpha: holdfast.Memory, root: Path) -> None:
    secret = "ghp_" + "a1B2" * 9
    text = f"the key is {secret} " + "word " * 2_000
    alpha.call("createState", STATE | {"conversationContext": text}, CONTEXT)
    trace = (root / "user/memory/traces/project-alpha").glob("*.jsonl").__next__().read_text()
    assert secret not in trace
    assert "GitHub token removed" in trace
    assert len(trace) < 6_000


def test_a_trace_never_makes_a_workspace(memory: holdfast.Memory, root: Path) -> None:
    memory.call("listStates", {}, {"workspaceId": "Nowhere", "sessionId": "s"})
    assert list((root / "user/memory/traces").iterdir()) == [root / "user/memory/traces/_unresolved"]
    assert memory.call("listWorkspaces")["data"] == []


def test_a_trace_that_cannot_be_written_fails_no_call(memory: holdfast.Memory, root: Path) -> None:
    (root / "user/memory/traces").write_text("a file where a folder belongs")
    assert memory.call("createWorkspace", ALPHA)["success"] is True


def test_search_finds_states_by_all_their_text_and_traces_but_not_itself(alpha: holdfast.Memory) -> None:
    alpha.call("createState", STATE, CONTEXT)
    search = {"workspaceId": "Project Alpha"}
    for word in ("jwt", "middleware", "expiration", "progress", "refresh"):
        found = alpha.call("searchMemory", search | {"query": word, "memoryTypes": ["states"]}, CONTEXT)["data"]
        assert [(hit["type"], STATE["name"] in hit["content"]) for hit in found] == [("state", True)], word
    traces = alpha.call("searchMemory", search | {"query": "jwt", "memoryTypes": ["traces"]}, CONTEXT)["data"]
    assert [(hit["type"], hit["tool"]) for hit in traces] == [("trace", "createState")]
    assert len(alpha.call("searchMemory", search | {"query": "jwt"}, CONTEXT)["data"]) == 2


def test_both_filters_of_a_search_really_apply(alpha: holdfast.Memory) -> None:
    alpha.call("createState", STATE, CONTEXT)
    search: dict[str, Any] = {"workspaceId": "Project Alpha", "query": "jwt"}
    assert alpha.call("searchMemory", search | {"dateRange": {"end": "2020-01-01"}})["data"] == []
    assert len(alpha.call("searchMemory", search | {"dateRange": {"start": "2020-01-01"}})["data"]) == 2
    assert len(alpha.call("searchMemory", search | {"limit": 1})["data"]) == 1
    for wrong in ({"limit": 0}, {"limit": 101}, {"query": " "}, {"dateRange": {"start": "soon"}},
                  {"dateRange": {"start": "2026-02-01", "end": "2026-01-01"}}, {"memoryTypes": ["sessions"]}):  # fmt: skip
        assert alpha.call("searchMemory", search | wrong)["success"] is False, wrong


def test_states_and_traces_are_mixed_fairly(alpha: holdfast.Memory) -> None:
    for number in range(30):
        alpha.call("remember", {"text": f"jwt refresh {number}", "title": f"jwt {number}"}, CONTEXT)
        if number < 3:
            alpha.call("createState", STATE | {"name": f"S{number}"}, CONTEXT)
    search = {"workspaceId": "Project Alpha", "query": "jwt refresh"}
    found = [hit["type"] for hit in alpha.call("searchMemory", search | {"limit": 10})["data"]]
    assert found == ["state", "trace"] * 3 + ["trace"] * 4


def test_a_trace_shows_parameters_and_results_readably(alpha: holdfast.Memory) -> None:
    alpha.call("remember", {"text": "We deploy on Tuesdays.", "kind": "decision", "tags": ["ops"]}, CONTEXT)
    search = {"workspaceId": "Project Alpha", "query": "deploy Tuesdays", "memoryTypes": ["traces"]}
    ((content,),) = [[hit["content"] for hit in alpha.call("searchMemory", search)["data"]]]
    assert "remember We deploy on Tuesdays." in content
    assert "text: We deploy on Tuesdays.; kind: decision; tags: ops" in content
    assert "result: Stored in project-alpha" in content
    alpha.call("createState", STATE, CONTEXT)
    alpha.call("listStates", {}, CONTEXT)
    made, listed = alpha.traces.last(2)
    assert made["params"]["activeTask"] == STATE["activeTask"]
    assert made["result"].startswith("workspace: project-alpha; where: resources/workspaces/project-alpha/_states/")
    assert listed["result"] == f"1 found: {STATE['name']}"


def test_a_trace_has_the_memory_and_the_constraints_of_its_context(alpha: holdfast.Memory, root: Path) -> None:
    secret = "ghp_" + "a1B2" * 9
    more = {"memory": "Refactoring the auth module", "constraints": "Stay backward compatible"}
    alpha.call("createState", STATE, CONTEXT | more)
    alpha.call("listStates", {}, CONTEXT | {"memory": f"the key is {secret}", "constraints": "long " * 1_000})
    (path,) = (root / "user/memory/traces/project-alpha").glob("*.jsonl")
    made, listed = [json.loads(line) for line in path.read_text().splitlines()][-2:]
    assert {name: made[name] for name in more} == more
    assert secret not in listed["memory"] and len(listed["constraints"]) < 2_100
    search = {"workspaceId": "Project Alpha", "query": "backward compatible"}
    ((hit,),) = [alpha.call("searchMemory", search)["data"]]
    assert (hit["context"]["memory"], hit["context"]["constraints"]) == (more["memory"], more["constraints"])


def test_traces_of_session_notes_hold_their_parameters_and_are_not_searched(alpha: holdfast.Memory, root: Path) -> None:
    for place in ("session", "plan", "run"):
        alpha.call("save_memory", {"compartment": place, "content": f"zebrafish of the {place}"}, CONTEXT)
    alpha.call("get_memory", {"compartment": "session", "category": "zebrafish"}, CONTEXT)
    shown = [each["params"] for each in alpha.traces.last(4)]
    assert [each.get("content") for each in shown] == ["zebrafish of the session", "zebrafish of the plan", None, None]
    assert alpha.call("searchMemory", {"query": "zebrafish", "workspaceId": "Project Alpha"})["data"] == []
    assert alpha.call("recall", {"query": "zebrafish", "kinds": ["trace"]})["hits"] == []
    done = alpha.call("loadWorkspace", {"name": "Project Alpha"})["data"]["recentActivity"]
    assert "save_memory" in str(done) and "zebrafish" not in str(done)


def test_what_one_agent_has_done_can_be_listed(alpha: holdfast.Memory) -> None:
    for agent in ("planner", "coder", "planner"):
        note = {"text": f"{agent} knows granite {len(alpha.traces.last(99))}"}
        alpha.call("remember", note, CONTEXT | {"agentId": agent})
    assert [each["agent"] for each in alpha.traces.last(9, agent="planner")] == ["planner", "planner"]
    done = alpha.call("loadWorkspace", {"name": "Project Alpha"})["data"]["recentActivity"]
    assert [each["agentId"] for each in done] == ["planner", "coder", "planner"]
    search = {"workspaceId": "Project Alpha", "query": "granite", "limit": 1}
    (hit,) = alpha.call("searchMemory", search | {"agentId": "Coder"})["data"]
    assert (hit["type"], hit["context"]["agentId"]) == ("trace", "coder")


# recall and remember


def test_a_hit_names_its_document(alpha: holdfast.Memory) -> None:
    stored = alpha.call("remember", {"text": "We deploy on Tuesdays.", "kind": "decision"}, CONTEXT)
    (hit,) = alpha.call("recall", {"query": "deploy"})["hits"]
    assert hit["_meta"] == {"document_path": stored["where"], "document_id": stored["id"]}


def test_a_recall_that_finds_nothing_in_the_workspace_looks_in_default_and_says_so(alpha: holdfast.Memory) -> None:
    alpha.call("remember", {"text": "granite there"})
    reply = alpha.call("recall", {"query": "granite"}, CONTEXT)
    assert [hit["scope"] for hit in reply["hits"]] == ["default"]
    assert reply["searched"] == ["project-alpha", "default"]
    assert reply["text"].startswith("Nothing relevant in project-alpha. In default:\n1. note")
    nothing = alpha.call("recall", {"query": "zebra"}, CONTEXT)
    assert (nothing["hits"], nothing["searched"]) == ([], ["project-alpha", "default"])
    assert nothing["text"] == "Nothing relevant in project-alpha, nor in default."
    assert "searched" not in alpha.call("recall", {"query": "granite", "scope": "Project Alpha"}, CONTEXT)
    assert "searched" not in alpha.call("recall", {"query": "granite", "budget": 1}, {"workspaceId": "default"})
    alpha.call("remember", {"text": "granite here"}, CONTEXT)
    reply = alpha.call("recall", {"query": "granite"}, CONTEXT)
    assert ([hit["scope"] for hit in reply["hits"]], "searched" in reply) == (["project-alpha"], False)


def test_every_reply_that_writes_says_where(alpha: holdfast.Memory) -> None:
    folder = "resources/workspaces/project-alpha"
    overview = {"workspace": "project-alpha", "where": f"{folder}/OVERVIEW.md"}
    for tool, params in (
        ("updateWorkspace", {"purpose": "P"}), ("archiveWorkspace", {}), ("archiveWorkspace", {"restore": True}),
    ):  # fmt: skip
        assert alpha.call(tool, {"name": "Project Alpha"} | params)["data"] == overview, (tool, params)
    state = alpha.call("createState", STATE, CONTEXT)["data"]
    assert state["workspace"] == "project-alpha" and state["where"].startswith(f"{folder}/_states/auth-module")
    assert alpha.call("archiveState", {"name": STATE["name"]}, CONTEXT)["data"] == state
    made = alpha.call("createWorkspace", ALPHA | {"name": "Two"})["data"]
    assert made == {"workspace": "two", "where": "resources/workspaces/two/OVERVIEW.md"}
    for kind in ("note", "decision", "fact", "episode"):
        reply = alpha.call("remember", {"text": f"A {kind}.", "kind": kind, "key": kind}, CONTEXT)
        assert reply["workspace"] == "project-alpha" and "project-alpha" in reply["text"], kind
    assert "workspace" not in alpha.call("remember", {"text": "x", "kind": "fact", "key": "k"})
    assert alpha.call("remember", {"text": "x", "scope": "two"}, CONTEXT)["workspace"] == "two"
    for tool, params, where in (
        ("save_learning", {"kind": "lesson", "title": "T", "content": "C"}, "user/memory/workspaces/project-alpha/lessons.md"),
        ("save_skill", {"name": "S", "description": "D", "content": "C"}, f"{folder}/_skills/s/SKILL.md"),
        ("memory_learn", {"key": "k", "value": "v"}, "user/memory/semantic.jsonl"),
        ("memory_append", {"type": "working", "entry": "e"}, "working memory of session session-1"),
        ("save_memory", {"compartment": "session", "content": "c"}, "session session-1"),
        ("memory_write", {"content": "M"}, "user/memory/MEMORY.md"),
    ):  # fmt: skip
        reply = alpha.call(tool, params, CONTEXT)
        assert (reply.get("data") or reply)["where"] == where, tool
    assert alpha.call("task_create", {"title": "T"}, CONTEXT)["workspace"] == "project-alpha"


def test_what_is_remembered_is_recalled_with_where_age_and_why(alpha: holdfast.Memory) -> None:
    receipt = alpha.call(
        "remember", {"text": "We deploy on Tuesdays.", "kind": "decision", "title": "Deploys"}, CONTEXT
    )
    assert receipt["status"] == "stored"
    assert receipt["where"] == "user/memory/workspaces/project-alpha/decisions.md"
    reply = alpha.call("recall", {"query": "when do we deploy?"})
    (hit,) = reply["hits"]
    assert (hit["kind"], hit["why"], hit["scope"]) == ("decision", ["deploy"], "project-alpha")
    assert re.match(r"user/memory/workspaces/project-alpha/decisions\.md:\d+$", hit["where"])
    assert "> We deploy on Tuesdays." in reply["text"]
    assert alpha.call("recall", {"query": "zebra"})["text"] == "Nothing relevant."


def test_remembering_twice_says_so_and_a_new_value_says_what_it_supersedes(memory: holdfast.Memory) -> None:
    fact = {"kind": "fact", "key": "time zone"}
    first = memory.call("remember", fact | {"text": "UTC"})
    assert memory.call("remember", fact | {"text": "UTC"})["duplicateOf"] == first["id"]
    second = memory.call("remember", fact | {"text": "CET"})
    assert (second["status"], second["supersedes"], second["was"]) == ("superseded", first["id"], "UTC")
    for kind in ("note", "decision", "lesson"):
        stored = memory.call("remember", {"text": "Exactly this.", "kind": kind, "title": "T"})
        again = memory.call("remember", {"text": "Exactly this.", "kind": kind, "title": "T"})
        assert (again["status"], again["id"]) == ("duplicate", stored["id"]), kind
    assert "needs a key" in memory.call("remember", {"text": "x", "kind": "fact"})["error"]


def test_recall_filters_by_scope_kind_time_and_budget(alpha: holdfast.Memory) -> None:
    alpha.call("remember", {"text": "granite here", "title": "A"}, CONTEXT)
    alpha.call("remember", {"text": "granite there", "title": "B"})
    assert len(alpha.call("recall", {"query": "granite"})["hits"]) == 2
    assert len(alpha.call("recall", {"query": "granite", "scope": "Project Alpha"})["hits"]) == 1
    assert alpha.call("recall", {"query": "granite", "kinds": ["fact"]})["hits"] == []
    assert alpha.call("recall", {"query": "granite", "until": "2020-01-01"})["hits"] == []
    assert alpha.call("recall", {"query": "granite", "budget": 1})["hits"] == []
    assert 'Did you mean "note"?' in alpha.call("recall", {"query": "granite", "kinds": ["nots"]})["error"]


def test_an_op_id_makes_a_repeated_call_harmless(alpha: holdfast.Memory) -> None:
    once = CONTEXT | {"opId": "op-7"}
    assert alpha.call("createState", STATE, once)["success"] is True
    assert alpha.call("createState", STATE, once)["success"] is True
    assert len(alpha.call("listStates", {}, CONTEXT)["data"]) == 1


def test_typed_methods_raise(alpha: holdfast.Memory) -> None:
    with pytest.raises(NotFound, match="listWorkspaces"):
        alpha.workspaces.load("Zzz")
    with pytest.raises(AlreadyExists):
        alpha.workspaces.create("Project Alpha", {"rootFolder": "x"})


def test_a_refusal_of_a_text_tool_is_text_too(memory: holdfast.Memory) -> None:
    for params in ({"query": " "}, {"query": "x", "scope": "Nowhere"}):
        reply = memory.call("recall", params)
        assert reply["text"] == reply["error"]


def test_recall_keeps_to_the_workspace_of_its_context(alpha: holdfast.Memory) -> None:
    alpha.call("remember", {"text": "granite here"}, CONTEXT)
    alpha.call("remember", {"text": "granite there"})
    alpha.call("remember", {"text": "granite everywhere", "kind": "fact", "key": "stone"})
    found = alpha.call("recall", {"query": "granite"}, CONTEXT)["hits"]
    assert sorted(hit["text"] for hit in found) == ["granite everywhere", "granite here"]
    assert len(alpha.call("recall", {"query": "granite", "scope": "*"}, CONTEXT)["hits"]) == 3
    assert alpha.call("recall", {"query": "granite"}, {"workspaceId": "Nowhere"})["error"].startswith(
        'Workspace "Nowhere"'
    )


def test_a_refused_update_or_creation_changes_nothing(alpha: holdfast.Memory, root: Path) -> None:
    both = {"name": "Project Alpha", "description": "changed", "isArchived": False}
    assert alpha.call("updateWorkspace", both)["success"] is True
    assert alpha.call("loadWorkspace", {"name": "Project Alpha"})["data"]["description"] == "changed"
    in_the_way = alpha.call("createWorkspace", ALPHA | {"name": "File", "rootFolder": "holdfast.toml"})
    assert "rootFolder holdfast.toml" in in_the_way["error"]
    assert len(alpha.call("listWorkspaces")["data"]) == 1
    assert alpha.call("updateWorkspace", {"name": "Project Alpha", "description": "  "})["success"] is False


def test_a_new_op_id_does_not_excuse_a_taken_name(alpha: holdfast.Memory) -> None:
    assert "already exists" in alpha.call("createWorkspace", ALPHA, {"opId": "fresh"})["error"]
    other = ALPHA | {"name": "Other"}
    assert alpha.call("createWorkspace", other, {"opId": "again"})["success"] is True
    assert alpha.call("createWorkspace", other, {"opId": "again"})["success"] is True


def test_a_context_may_also_come_among_the_parameters(alpha: holdfast.Memory) -> None:
    assert alpha.call("createState", STATE | {"context": CONTEXT})["success"] is True
    assert len(alpha.call("listStates", {"context": CONTEXT})["data"]) == 1


def test_calls_that_could_not_begin_leave_a_trace_as_well(memory: holdfast.Memory, root: Path) -> None:
    memory.call("nonsense")
    memory.call("listStates", {}, {"workspaceId": 7})
    (path,) = (root / "user/memory/traces/_unresolved").glob("*.jsonl")
    assert [json.loads(line)["tool"] for line in path.read_text().splitlines()] == ["nonsense", "listStates"]


def test_two_texts_that_begin_alike_are_both_remembered(memory: holdfast.Memory) -> None:
    start = "The payment service retries every request three times and then "
    first = memory.call("remember", {"text": start + "gives up."})
    second = memory.call("remember", {"text": start + "asks a person."})
    assert (first["status"], second["status"]) == ("stored", "stored")
    assert memory.call("remember", {"text": start + "asks a person."})["status"] == "duplicate"


def test_the_pair_answers_alike_by_whichever_way_it_is_called(alpha: holdfast.Memory) -> None:
    params = {"context": CONTEXT, "calls": [{"agent": "memoryManager", "tool": "listStates", "params": {}}]}
    assert alpha.tools.call("useTools", params) == alpha.call("useTools", params) == {"success": True, "data": []}
