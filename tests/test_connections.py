"""The workspace of a connection: what a client loaded or created last, where the server was started, over any transport."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

import holdfast
import test_mcp_http as http
from holdfast.mcp.http import connections
from test_mcp import ALPHA, ERAS, STATE, ask, over_stdio, use


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tokens of servers over HTTP belong to the test."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def two(root: Path) -> Path:
    """A root with the workspaces `alpha` and `beta`."""
    with holdfast.open(root) as memory:
        for name in ("alpha", "beta"):
            assert memory.call("createWorkspace", ALPHA | {"name": name, "rootFolder": f"projects/{name}"})["success"]
    return root


async def stored(client: Client, name: str = "", **more: Any) -> str:
    """Save a state and return the workspace that it went to."""
    reply = await ask(client, "createState", STATE | {"name": name or f"state {id(object())}"}, **more)
    assert reply["success"] is True, reply
    return str(reply["data"]["workspace"])


@pytest.mark.parametrize("mode", ERAS)
def test_the_workspace_that_was_loaded_is_that_of_later_calls(two: Path, mode: str) -> None:
    async def work(client: Client) -> None:
        assert await stored(client, "first") == "default"
        await ask(client, "loadWorkspace", name="alpha")
        assert await stored(client, "one") == "alpha"
        assert [each["name"] for each in (await ask(client, "listStates"))["data"]] == ["one"]
        assert (await ask(client, "loadState", name="one"))["success"] is True
        assert (await ask(client, "remember", text="Deploys are on Tuesdays."))["workspace"] == "alpha"
        assert (await ask(client, "loadWorkspace", name="nowhere"))["success"] is False
        assert await stored(client, "still here") == "alpha"
        assert await stored(client, "elsewhere", context={"workspaceId": "beta"}) == "beta"
        assert await stored(client, "back") == "alpha"
        await ask(client, "loadWorkspace", name="beta")
        assert await stored(client, "two") == "beta"
        assert (await ask(client, "recall", query="deploys", scope="*"))["hits"][0]["scope"] == "alpha"

    async def fresh(client: Client) -> None:
        assert await stored(client, "of another connection") == "default"

    over_stdio(two, work, mode)
    over_stdio(two, fresh, mode)


def test_a_workspace_is_also_entered_by_creating_it_and_inside_use_tools(two: Path) -> None:
    async def work(client: Client) -> None:
        await use(client, "loadWorkspace", {"name": "beta"})
        assert await stored(client, "one") == "beta"
        await use(client, "createWorkspace", ALPHA)
        assert await stored(client, "two") == "project-alpha"
        calls = [
            {"agent": "memoryManager", "tool": "loadWorkspace", "params": {"name": name}} for name in ("x", "beta")
        ]
        given: dict[str, Any] = {"workspaceId": "alpha", "sessionId": "s"}
        await ask(client, "useTools", context=given, calls=calls, strategy="parallel")
        assert await stored(client, "three") == "beta"
        await use(client, "archiveWorkspace", {"name": "beta"})
        await use(client, "updateWorkspace", {"name": "beta", "newName": "Gamma"})
        assert await stored(client, "renamed and archived") == "beta"

    over_stdio(two, work)


def test_the_library_stays_without_state(two: Path) -> None:
    with holdfast.open(two) as memory:
        assert "warnings" not in memory.call("loadWorkspace", {"name": "alpha"})
        assert memory.call("createState", STATE)["data"]["workspace"] == "default"


def where_it_starts(root: Path, cwd: Path, **options: str) -> str:
    """Return the workspace of the first call of a server that is started in a folder."""
    found = []

    async def work(client: Client) -> None:
        found.append(await stored(client, f"from {cwd.name} {options}"))

    over_stdio(root, work, cwd=cwd, **options)
    return found[0]


def test_a_server_is_in_the_workspace_of_the_folder_where_it_was_started(two: Path, tmp_path: Path) -> None:
    with holdfast.open(two) as memory:
        memory.call("createWorkspace", ALPHA | {"name": "Inner", "rootFolder": "projects/alpha/inner"})
        memory.call("createWorkspace", ALPHA | {"name": "twin", "rootFolder": "projects/beta"})
    for folder, expected in (
        ("projects/alpha", "alpha"), ("projects/alpha/src/deep", "alpha"), ("projects/alpha/inner/x", "inner"),
        ("resources/workspaces/beta/_notes", "beta"), ("projects/alphabet", "default"), (".", "default"),
        ("projects/beta", "default"),
    ):  # fmt: skip
        (two / folder).mkdir(parents=True, exist_ok=True)
        assert where_it_starts(two, two / folder) == expected, folder
    assert where_it_starts(two, two / "projects/alpha", workspaceId="beta") == "beta"
    linked = tmp_path / "checkout"
    linked.symlink_to(two / "projects/alpha")
    assert where_it_starts(two, linked) == "alpha"


def test_a_server_is_in_the_workspace_that_is_named_like_its_folder(two: Path, tmp_path: Path) -> None:
    for name, expected in (("Alpha", "alpha"), ("unrelated", "default")):
        (tmp_path / "elsewhere" / name).mkdir(parents=True)
        assert where_it_starts(two, tmp_path / "elsewhere" / name) == expected, name

    async def work(client: Client) -> None:
        await ask(client, "loadWorkspace", name="beta")
        assert await stored(client, "loaded") == "beta"

    over_stdio(two, work, cwd=tmp_path / "elsewhere/Alpha")


# over HTTP


def test_connections_over_http_with_one_token_do_not_share_a_workspace(two: Path) -> None:
    async def work(server: http.Server) -> None:
        async with http.connected(server, "legacy") as one, http.connected(server, "legacy") as other:
            await ask(one, "loadWorkspace", name="alpha")
            await ask(other, "loadWorkspace", name="beta")
            assert (await stored(one), await stored(other)) == ("alpha", "beta")
            reader = http.Server(server.process, server.url, server.reading)
            async with http.connected(reader, "legacy") as reading:
                await ask(reading, "loadWorkspace", name="beta")
                assert [each["name"] for each in (await ask(reading, "listStates"))["data"]]
            assert await stored(one) == "alpha"

    with http.serving(two) as server:
        asyncio.run(work(server))


def test_in_the_stateless_protocol_the_session_is_the_connection(two: Path) -> None:
    async def work(server: http.Server) -> None:
        async with http.connected(server, "auto") as one, http.connected(server, "auto") as other:
            mine, yours = {"sessionId": "mine"}, {"sessionId": "yours"}
            assert "warnings" not in await ask(one, "loadWorkspace", name="alpha", context=mine)
            await ask(other, "loadWorkspace", name="beta", context=yours)
            assert await stored(other, "a", context=mine) == "alpha"
            assert await stored(one, "b", context=yours) == "beta"
            assert await stored(one, "c") == "default", "a call without a session is of no conversation"
            (warning,) = (await ask(one, "loadWorkspace", name="alpha"))["warnings"]
            assert "context.sessionId" in warning and "context.workspaceId" in warning
            assert await stored(one, "d") == "default"
            reader = http.Server(server.process, server.url, server.reading)
            async with http.connected(reader, "auto") as reading:
                assert (await ask(reading, "listStates", context=mine))["data"] == [
                    {"name": name, "description": STATE["activeTask"]} for name in ("d", "c")
                ], "the same session with another token is another connection"

    with http.serving(two) as server:
        asyncio.run(work(server))


def test_of_very_many_connections_the_last_used_are_known() -> None:
    known = connections(most=3)
    for number in range(3):
        known("t", "", str(number)).workspace = f"w{number}"
    assert known("t", "", "0").workspace == "w0"
    known("t", "", "new")
    assert [known("t", "", name).workspace for name in ("0", "2", "new")] == ["w0", "w2", ""]
    assert known("t", "", "1").workspace == ""
    assert known("t", "0", "").workspace == known("u", "", "0").workspace == ""
