"""The MCP server over stdio: a real process, the SDK's own client, both eras of the protocol, and bad clients."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import mcp_types as types
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

import holdfast
import test_mcp_http
from holdfast.mcp.server import MAX_MESSAGE
from holdfast.model.times import today
from holdfast.tools import toolsets

ERAS = {"legacy": "2025-11-25", "auto": "2026-07-28"}
STATE: dict[str, Any] = {
    "name": "Auth Module Progress",
    "conversationContext": "We decided on JWT tokens for auth and set up the basic structure.",
    "activeTask": "Implementing token refresh logic",
    "activeFiles": ["src/auth/jwt.ts", "src/auth/middleware.ts"],
    "nextSteps": ["Add refresh token endpoint", "Test token expiration", "Add logout flow"],
    "tags": ["auth", "in-progress"],
}
ALPHA = {
    "name": "Project Alpha",
    "description": "E-commerce platform rebuild",
    "rootFolder": "projects/alpha",
    "purpose": "Rebuild legacy e-commerce platform",
}


def command(root: Path, toolset: str = "core", before: str = "", **defaults: str) -> list[str]:
    """The command line of a server; `before` is run first in the same process."""
    code = (
        f"{before}\nfrom holdfast.mcp.stdio import main\nfrom holdfast.tools.calling import Context\n"
        f"main({str(root)!r}, {toolset!r}, Context(**{defaults!r}))"
    )
    return [sys.executable, "-W", "error", "-c", code]


@contextlib.asynccontextmanager
async def connected(
    root: Path, mode: str = "auto", *, prints: str = "", cwd: Path | None = None, **options: Any
) -> AsyncIterator[Client]:
    """A client of a server of its own, which has to print on the side what is said here: no traceback, and nothing."""
    program, *arguments = command(root, **options)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as side:
        parameters = StdioServerParameters(command=program, args=arguments, cwd=cwd)
        info = types.Implementation(name="tester", version="1")
        async with Client(stdio_client(parameters, errlog=side), mode=mode, client_info=info) as client:
            yield client
        side.seek(0)
        assert side.read() == prints


class Talk(Protocol):
    def __call__(
        self, root: Path, work: Callable[[Client], Awaitable[None]], mode: str = "auto", **options: Any
    ) -> None: ...


def over_stdio(root: Path, work: Callable[[Client], Awaitable[None]], mode: str = "auto", **options: Any) -> None:
    """Do some work with a client of a server that is started and ended for it."""

    async def run() -> None:
        async with connected(root, mode, **options) as client:
            await work(client)

    asyncio.run(run())


def over_http(
    root: Path, work: Callable[[Client], Awaitable[None]], mode: str = "auto", toolset: str = "core", **defaults: str
) -> None:
    """The same over HTTP."""
    options = f"toolset={toolset!r}, defaults=Context(**{defaults!r})"
    with test_mcp_http.serving(root, options=options) as server:

        async def run() -> None:
            async with test_mcp_http.connected(server, mode) as client:
                await work(client)

        asyncio.run(run())


@pytest.fixture(params=[over_stdio, over_http], ids=["stdio", "http"])
def talk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """Both transports: an answer does not depend on them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    found: Talk = request.param
    return found


async def ask(client: Client, tool: str, params: Any = None, /, **more: Any) -> dict[str, Any]:
    """Call a tool and return its reply, after checking that text, structure and error mark agree."""
    result = await client.call_tool(tool, {**(params or {}), **more})
    reply: dict[str, Any] = result.structured_content
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    if content.text.startswith("{"):
        assert json.loads(content.text) == reply
    elif "text" in reply:
        assert content.text == reply["text"]
    assert result.is_error is (reply.get("success") is False)
    return reply


async def use(
    client: Client, tool: str, params: Any, *, agent: str = "memoryManager", **context: str
) -> dict[str, Any]:
    """Call a tool through useTools, as the design's examples do."""
    given = {"workspaceId": "default", "sessionId": "setup", "memory": "", "goal": "Setup project"} | context
    return await ask(client, "useTools", context=given, calls=[{"agent": agent, "tool": tool, "params": params}])


@pytest.mark.parametrize("mode", ERAS)
def test_a_client_of_either_era_lists_and_calls_tools(root: Path, talk: Talk, mode: str) -> None:
    async def work(client: Client) -> None:
        assert client.protocol_version == ERAS[mode]
        assert client.server_info is not None and client.server_info.name == "holdfast"
        assert "recall" in (client.instructions or "")
        listed = await client.list_tools()
        assert tuple(tool.name for tool in listed.tools) == toolsets.CORE
        stored = await ask(client, "remember", text="We deploy on Tuesdays.", title="Deploys")
        assert stored["status"] == "stored"
        found = await ask(client, "recall", query="when do we deploy")
        assert found["hits"][0]["title"] == "Deploys"
        assert (await ask(client, "createState", STATE))["success"] is True
        assert (await ask(client, "loadState", name=STATE["name"]))["data"] == STATE

    talk(root, work, mode)


def test_tools_say_what_they_do_to_the_memory(root: Path, talk: Talk) -> None:
    async def work(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        for name, tool in toolsets.registry().tools.items():
            hints = tools[name].annotations
            assert hints is not None
            assert (hints.read_only_hint or False) is tool.reads
            assert (hints.destructive_hint, hints.open_world_hint) == (None if tool.reads else False, False)
            assert (tools[name].output_schema or {}).get("required", []) == (["success"] if tool.enveloped else [])
        assert "context" in tools["createState"].input_schema["properties"]
        assert "context" not in tools["getTools"].input_schema["properties"]
        assert "context" in tools["useTools"].input_schema["required"]

    talk(root, work, toolset="all")


def test_the_core_tools_are_few_and_short(root: Path, talk: Talk) -> None:
    """Every tool is context that the model pays for: all of the list counts, as the client gets it."""

    async def work(client: Client) -> None:
        listed = await client.list_tools()
        sent = json.dumps([tool.model_dump(by_alias=True, exclude_unset=True) for tool in listed.tools])
        assert len(listed.tools) <= 10
        assert len(json.dumps(json.loads(sent), ensure_ascii=False, separators=(",", ":"))) <= 7000

    talk(root, work)


@pytest.mark.parametrize("mode", ERAS)
def test_the_three_flows_of_the_design(root: Path, talk: Talk, mode: str) -> None:
    async def first(client: Client) -> None:
        assert (await use(client, "createWorkspace", ALPHA))["success"] is True
        saved = await use(client, "createState", STATE, workspaceId="Project Alpha", sessionId="session-1")
        assert saved["success"] is True

    async def second(client: Client) -> None:
        wanted = {"name": "Auth Module Progress"}
        loaded = await use(client, "loadState", wanted, workspaceId="Project Alpha", sessionId="session-2")
        assert loaded == {"success": True, "data": STATE}

    talk(root, first, mode)
    talk(root, second, mode)


def test_a_failed_tool_is_a_result_with_the_contract_s_text(root: Path, talk: Talk) -> None:
    async def work(client: Client) -> None:
        wrong = await ask(client, "loadWorkspace", name="Nowhere")
        assert wrong["error"] == 'Workspace "Nowhere" not found. Use listWorkspaces to see available workspaces.'
        wrong = await ask(client, "loadState", name="None")
        assert wrong["error"] == 'State "None" not found. Use listStates to see available states.'
        await ask(client, "createState", STATE)
        wrong = await ask(client, "createState", STATE | {"name": "AUTH module progress"})
        name = "AUTH module progress"
        assert wrong["error"] == (
            f'State "{name}" already exists. States are immutable - '
            f'use a unique name like "{name}-v2" or "{name}-{today()[:7]}".'
        )
        wrong = await ask(client, "useTools", context={"workspaceId": 1}, calls=[])
        assert wrong["error"].startswith("Invalid context: workspaceId must be a string (")
        assert "sessionId is missing (" in wrong["error"]
        wrong = await ask(client, "useTools", calls=[])
        assert wrong["error"].startswith("Invalid context: it is missing")
        wrong = await ask(client, "recall", query="x", colour="red")
        assert "recall has no parameter colour" in wrong["error"]
        wrong = await ask(client, "recall", query=5)
        assert wrong["error"].startswith("query: ")
        wrong = await ask(client, "recall", query="x", context="me")
        assert wrong["error"].startswith("Invalid context: it is not an object")

    talk(root, work)


def test_a_tool_that_is_not_listed_is_reached_through_use_tools_only(root: Path, talk: Talk) -> None:
    async def core(client: Client) -> None:
        wrong = await ask(client, "createWorkspace", ALPHA)
        assert "createWorkspace is not offered directly." in wrong["error"]
        assert 'useTools with {agent: "memoryManager", tool: "createWorkspace"' in wrong["error"]
        assert (await use(client, "createWorkspace", ALPHA))["success"] is True
        wrong = await ask(client, "createWorkspaces")
        assert wrong["error"].startswith('There is no tool "createWorkspaces". Did you mean "createWorkspace"?')

    async def chosen(client: Client) -> None:
        assert (await ask(client, "listWorkspaces"))["data"][0]["name"] == "Project Alpha"
        assert "--toolset" in (await ask(client, "recall", query="x"))["error"]

    talk(root, core)
    talk(root, chosen, toolset="memoryManager")


def test_what_a_call_s_context_lacks_comes_from_the_start_options_then_is_default_and_the_run_the_connection(
    root: Path,
    talk: Talk,
) -> None:
    async def named(client: Client) -> None:
        await ask(client, "createState", STATE)

    async def unnamed(client: Client) -> None:
        await ask(client, "createState", STATE | {"name": "two"}, context={"workspaceId": "default"})
        await ask(client, "createState", STATE | {"name": "three"}, context={"sessionId": "mine", "agentId": "me"})
        await use(client, "createState", STATE | {"name": "four"}, sessionId="setup")

    with holdfast.open(root) as memory:
        memory.call("createWorkspace", ALPHA)
    talk(root, named, workspaceId="Project Alpha", sessionId="given")
    talk(root, unnamed, mode="legacy")
    traces = [
        json.loads(line)
        for file in sorted((root / "user/memory/traces").rglob("*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    found = {trace["params"]["name"]: trace for trace in traces if trace["tool"] == "createState"}
    first, two, three, four = (found[name] for name in (STATE["name"], "two", "three", "four"))
    assert (first["session"], first["workspace"], first["agent"]) == ("given", "project-alpha", "tester")
    assert (two["session"], two["workspace"]) == ("default", "default")
    assert two["run"].startswith("stdio-" if talk is over_stdio else "http-")
    assert (three["session"], three["agent"], four["session"], four["agent"]) == ("mine", "me", "setup", "tester")
    assert two["run"] == three["run"] == four["run"] != first.get("run")  # a stateless connection is no run


@pytest.mark.parametrize("mode", ERAS)
def test_prompts(root: Path, talk: Talk, mode: str) -> None:
    async def work(client: Client) -> None:
        listed = [prompt.name for prompt in (await client.list_prompts()).prompts]
        assert listed == ["resume", "save-state", "save-memory", "learning-cycle", "chat-memory"]
        resume = await client.get_prompt("resume", {"workspace": "Project Alpha"})
        (message,) = resume.messages
        assert isinstance(message.content, types.TextContent)
        assert 'loadWorkspace with the name "Project Alpha"' in message.content.text
        assert "context" not in message.content.text, "the connection is in the workspace that it loaded"
        assert "createState" in str((await client.get_prompt("save-state")).messages)
        assert "listWorkspaces" in str((await client.get_prompt("resume")).messages)
        assert "call `search_history` first" in str((await client.get_prompt("chat-memory")).messages)
        with pytest.raises(MCPError, match="Unknown prompt: nothing"):
            await client.get_prompt("nothing")

    talk(root, work, mode)


@pytest.mark.parametrize("mode", ERAS)
def test_workspaces_and_states_are_resources(root: Path, talk: Talk, mode: str) -> None:
    state = STATE | {"name": "50 % of a/b?", "description": "Half way."}

    async def work(client: Client) -> None:
        await use(client, "createWorkspace", ALPHA)
        await use(client, "createState", state, workspaceId="Project Alpha")
        listed = {item.uri: item for item in (await client.list_resources()).resources}
        overview, saved = (
            "holdfast://workspace/project-alpha",
            "holdfast://state/project-alpha/50%20%25%20of%20a%2Fb%3F",
        )
        assert set(listed) == {overview, saved}
        assert (listed[saved].name, listed[saved].description) == ("50 % of a/b?", "Half way.")
        folder = root / "resources/workspaces/project-alpha"
        (state_file,) = (folder / "_states").glob("*.md")
        for file, uri in ((folder / "OVERVIEW.md", overview), (state_file, saved)):
            (content,) = (await client.read_resource(uri)).contents
            assert isinstance(content, types.TextResourceContents)
            assert content.mime_type == "text/markdown"
            assert content.text == file.read_text(encoding="utf-8")
        note = await ask(client, "remember", text="Wombats sleep.\nA lot.", title="50 % of a/b")
        (record,) = (await client.read_resource(f"holdfast://record/{quote(note['id'], safe='/')}")).contents
        assert isinstance(record, types.TextResourceContents) and record.text == "Wombats sleep.\nA lot."
        private = await use(client, "save_memory", {"compartment": "session", "content": "x"}, agent="compartments")
        templates = [item.uri_template for item in (await client.list_resource_templates()).resource_templates]
        assert templates == [
            "holdfast://workspace/{+scope}", "holdfast://state/{+scope}/{name}", "holdfast://record/{+id}",
        ]  # fmt: skip
        for unknown in (
            "workspace/nowhere",
            "workspace/..%2F..%2Fetc",
            "state/project-alpha/none",
            "state/x",
            "other/x",
            "record/nothing",
            f"record/{private['id']}",
        ):
            with pytest.raises(MCPError, match="Unknown resource") as caught:
                await client.read_resource(f"holdfast://{unknown}")
            assert caught.value.code == types.INVALID_PARAMS

    talk(root, work, mode)


def test_many_resources_come_in_pages(root: Path, talk: Talk) -> None:
    with holdfast.open(root) as memory:
        folder = root / "resources/workspaces/default/_states"
        memory.call("createState", STATE)
        (first,) = folder.glob("*.md")
        text = first.read_text(encoding="utf-8")
        for number in range(600):
            (folder / f"made-{number:04}.md").write_text(
                text.replace(STATE["name"], f"made {number}"), encoding="utf-8"
            )

    async def work(client: Client) -> None:
        page = await client.list_resources()
        names = [item.name for item in page.resources]
        while page.next_cursor:
            page = await client.list_resources(cursor=page.next_cursor)
            names += [item.name for item in page.resources]
        assert len(set(names)) == len(names) == 601
        with pytest.raises(MCPError, match="Unknown cursor"):
            await client.list_resources(cursor="-1")

    talk(root, work)


def test_a_megabyte_goes_in_and_comes_out(root: Path, talk: Talk) -> None:
    long = "wide é \\ \n" * 99_000

    async def work(client: Client) -> None:
        assert (await ask(client, "createState", STATE | {"conversationContext": long + "end"}))["success"] is True
        loaded = await ask(client, "loadState", name=STATE["name"])
        assert loaded["data"]["conversationContext"] == long + "end"
        for params in ({"query": "x" * 1_000_000}, {"query": "x", "since": "9" * 1_000_000}, {"x" * 1_000_000: 1}):
            assert (await client.call_tool("recall", params)).structured_content
        wrong = await ask(client, "remember", text="x" * 1_000_001, title="longer")
        assert "a note takes 1,000,000" in wrong["error"]
        assert len((await ask(client, "listStates"))["data"]) == 1

    talk(root, work)


def test_what_was_archived_stays_archived_when_the_server_starts_again(root: Path, talk: Talk) -> None:
    async def archive(client: Client) -> None:
        await ask(client, "createState", STATE)
        assert (await use(client, "archiveState", {"name": STATE["name"]}))["success"] is True

    async def restore(client: Client) -> None:
        assert (await ask(client, "listStates"))["data"] == []
        assert (await ask(client, "loadState", name=STATE["name"]))["data"] == STATE
        assert (await use(client, "archiveState", {"name": STATE["name"], "restore": True}))["success"] is True

    async def look(client: Client) -> None:
        assert [item["name"] for item in (await ask(client, "listStates"))["data"]] == [STATE["name"]]

    for work in (archive, restore, look):
        talk(root, work)


def test_of_eight_servers_that_create_one_state_exactly_one_wins(root: Path) -> None:
    async def work() -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(root)) for _ in range(8)]
            for client in clients:
                await ask(client, "listStates")
            replies = await asyncio.gather(*(ask(client, "createState", STATE) for client in clients))
            wrong = [reply["error"] for reply in replies if not reply["success"]]
            assert len(wrong) == 7
            assert all(error.startswith('State "Auth Module Progress" already exists. States are') for error in wrong)
            assert len((await ask(clients[0], "listStates"))["data"]) == 1

    asyncio.run(work())


def test_a_root_that_is_missing_is_told_and_found_once_it_is_there(tmp_path: Path, talk: Talk) -> None:
    later = tmp_path / "later"

    async def work(client: Client) -> None:
        assert (await client.list_tools()).tools
        assert "does not exist. Run: holdfast init" in (await ask(client, "listStates"))["error"]
        with pytest.raises(MCPError, match="does not exist"):
            await client.list_resources()
        later.mkdir()
        assert await ask(client, "listStates") == {"success": True, "data": []}

    talk(later, work)


def test_only_the_protocol_goes_to_standard_output(root: Path) -> None:
    noise = (
        "import os, threading, time\n"
        "def talk():\n"
        "    while all(thread.name != 'holdfast-stdin' for thread in threading.enumerate()): time.sleep(0.01)\n"
        "    print('noise', flush=True)\n"
        "    os.system('echo noise')\n"
        "speaker = threading.Thread(target=talk)\n"
        "speaker.start()"
    )

    async def work(client: Client) -> None:
        await ask(client, "listStates")

    over_stdio(root, work, before=noise, prints="noise\nnoise\n")


# A client without an SDK, which does what it should not.


HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}


@contextlib.contextmanager
def piped(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server on bare pipes, past its handshake; it must end cleanly by itself."""
    with bare(root) as process:
        send(process, request(0, "initialize", HELLO))
        assert receive(process)["id"] == 0
        send(process, json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode())
        yield process


@contextlib.contextmanager
def bare(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The same before its handshake."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command(root), stdin=pipe, stdout=pipe, stderr=pipe) as process:
        yield process
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        assert process.stderr is not None
        printed = process.stderr.read().decode()
        assert (process.wait(30), printed) == (0, "")


def request(number: int, method: str, params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


def call(number: int, tool: str, params: Any) -> bytes:
    return request(number, "tools/call", {"name": tool, "arguments": params})


def send(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(line + b"\n")
    process.stdin.flush()


def receive(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


GARBAGE = {
    "binary": (bytes(range(256)).replace(b"\n", b"") * 64, None),
    "nul": (b"\0" * 100_000, None),
    "half a message": (b'{"jsonrpc":"2.0","id":7,"method":"tools/c', 7),
    "no message": (b'{"hello": "world"}', None),
    "a list": (b"[1, 2, 3]", None),
    "a batch": (b'[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"ping"}]', None),
    "a method that is a number": (b'{"jsonrpc":"2.0","id":"x7","method":5}', "x7"),
    "deep": (b'{"jsonrpc":"2.0","id":8,"method":"ping","params":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}}", 8),
    "a long number": (b'{"jsonrpc":"2.0","id":9,"method":"ping","params":{"x":' + b"9" * 100_000 + b"}}", 9),
    "half a character": (b'{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{"cursor":"\\ud800"}}', 3),
    "not UTF-8": (b'{"jsonrpc":"2.0","id":4,"method":"tools/list","params":{"cursor":"\xff"}}', 4),
    "5 MB": (b'{"jsonrpc":"2.0","id":6,"method":"ping","params":{"x":"' + b"x" * 5_000_000 + b'"}}', 6),
    "64 MB, id first": (b'{"jsonrpc":"2.0","id":5,"method":"' + b"x" * (64 << 20) + b'"}', 5),
    "64 MB, id last": (b'{"method":"' + b"x" * (64 << 20) + b'","jsonrpc":"2.0","id":"six"}', "six"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_a_bad_line_costs_an_error_and_nothing_else(root: Path, name: str) -> None:
    """The error bears the id where it can be found, so that no client waits for ever."""
    line, number = GARBAGE[name]
    with piped(root) as process:
        send(process, line)
        refused = receive(process)
        assert refused["id"] == number and refused["error"]["code"] in (types.PARSE_ERROR, types.INVALID_REQUEST)
        send(process, b"")
        send(process, call(10, "createState", STATE))
        assert receive(process)["result"]["structuredContent"]["success"] is True


def test_garbage_before_the_handshake_does_no_harm(root: Path) -> None:
    with subprocess.Popen(command(root), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for _ in range(20):
            send(process, b"\xfe\xff garbage")
            assert receive(process)["id"] is None
        send(process, request(1, "initialize", HELLO))
        assert receive(process)["result"]["serverInfo"]["name"] == "holdfast"


@pytest.mark.parametrize("version", ["2999-01-01", "1.0", "", "2026-07-28"])
def test_a_client_of_an_unknown_version_is_offered_the_newest_with_a_handshake(root: Path, version: str) -> None:
    with bare(root) as process:
        hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        send(process, request(1, "initialize", hello))
        assert receive(process)["result"]["protocolVersion"] == "2025-11-25"


def test_before_the_handshake_only_ping_is_answered(root: Path) -> None:
    with bare(root) as process:
        for number, method in enumerate(("tools/list", "tools/call", "resources/list", "prompts/list")):
            send(process, request(number, method, {}))
            refused = receive(process)
            assert (refused["id"], refused["error"]["message"]) == (number, "Send initialize first.")
        send(process, request(7, "ping", {}))
        assert receive(process) == {"jsonrpc": "2.0", "id": 7, "result": {}}
        send(process, request(8, "initialize", HELLO))
        assert receive(process)["result"]["serverInfo"]["name"] == "holdfast"
        send(process, request(9, "tools/list", {}))
        assert len(receive(process)["result"]["tools"]) == len(toolsets.CORE)


def test_unknown_methods_are_refused_and_unknown_notifications_and_answers_are_ignored(root: Path) -> None:
    with piped(root) as process:
        for method in ("tools/lists", "logging/setLevel", "completion/complete", "", "x" * 10_000):
            send(process, request(1, method, {}))
            assert receive(process)["error"]["code"] == types.METHOD_NOT_FOUND
        send(process, b'{"jsonrpc":"2.0","method":"notifications/unknown"}')
        send(process, b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"createState"}}')
        send(process, b'{"jsonrpc":"2.0","id":5,"result":{}}')
        send(process, b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":404}}')
        send(process, request(2, "ping", {}))
        assert receive(process) == {"jsonrpc": "2.0", "id": 2, "result": {}}


def test_a_cancelled_call_is_not_answered_and_the_others_are(root: Path) -> None:
    """The call waits for a lock that this test has; a write that began is finished all the same."""
    log = root / "user/memory/semantic.jsonl"
    with holdfast.open(root) as memory:
        memory.put("fact", "one", fields={"key": "first"})
    with piped(root) as process, log.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        send(process, call(1, "remember", {"text": "two", "kind": "fact", "key": "second"}))
        send(process, b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}')
        send(process, request(2, "ping", {}))
        assert receive(process)["id"] == 2
        fcntl.flock(held, fcntl.LOCK_UN)
        send(process, call(3, "remember", {"text": "three", "kind": "fact", "key": "third"}))
        assert receive(process)["id"] == 3
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        assert process.stdout.read() == b""
    with holdfast.open(root) as memory:
        assert {record.key for record in memory.tail("fact")} == {"first", "second", "third"}


def test_of_a_client_that_never_reads_little_is_taken_and_the_server_ends_with_its_pipe(root: Path) -> None:
    with piped(root) as process:
        assert process.stdin is not None
        pipe = process.stdin.fileno()
        os.set_blocking(pipe, False)
        given = (call(1, "x" * 100_000, {}) + b"\n") * 200
        sent = 0
        while sent < len(given) and select.select([], [pipe], [], 3)[1]:  # else it takes no more
            sent += os.write(pipe, given[sent:])
        assert 0 < sent < len(given) / 2


def test_a_message_of_the_largest_size_is_answered_and_one_byte_more_is_refused(root: Path) -> None:
    with piped(root) as process:
        send(process, call(1, "recall", {"query": "x"}).ljust(MAX_MESSAGE))
        assert receive(process)["result"]["structuredContent"]["hits"] == []
        send(process, call(2, "recall", {"query": "x"}).ljust(MAX_MESSAGE + 1))
        assert "larger than 4 MiB" in receive(process)["error"]["message"]


def test_what_was_asked_before_input_ended_is_answered(root: Path) -> None:
    with piped(root) as process:
        for number in range(1, 6):
            send(process, call(number, "createState", STATE | {"name": f"state {number}"}))
        assert process.stdin is not None
        process.stdin.close()
        answers = [receive(process) for _ in range(5)]
        assert {answer["id"] for answer in answers} == {1, 2, 3, 4, 5}
        assert all(answer["result"]["structuredContent"]["success"] is True for answer in answers)


@pytest.mark.parametrize("closed", ["both", "stdout"])
def test_a_client_that_leaves_in_the_middle_of_a_call_ends_the_server_cleanly(root: Path, closed: str) -> None:
    with piped(root) as process:
        for number in range(20):
            send(process, call(number, "createState", STATE | {"name": f"state {number}"}))
        assert process.stdin is not None and process.stdout is not None
        if closed == "both":
            process.stdin.close()
        process.stdout.close()
        assert process.wait(60) == 0
    with holdfast.open(root) as memory:
        assert memory.verify().sound
        for state in memory.call("listStates")["data"]:
            assert memory.call("loadState", {"name": state["name"]})["data"]["activeTask"] == STATE["activeTask"]


def test_stdio_needs_no_package_of_an_extra(root: Path) -> None:
    extras = (
        "anyio cryptography httpx httpx2 mcp mcp_types numpy onnxruntime psycopg pydantic starlette tokenizers uvicorn"
    )
    missing = f"import sys\nsys.modules.update(dict.fromkeys({extras!r}.split()))"  # None: importing it fails

    async def work(client: Client) -> None:
        await ask(client, "remember", text="We deploy on Tuesdays.", title="Deploys")
        assert (await ask(client, "recall", query="when do we deploy"))["hits"][0]["title"] == "Deploys"

    over_stdio(root, work, before=missing)


def test_serving_stdio_loads_nothing_that_only_http_needs() -> None:
    """The SDK itself loads uvicorn; the module that uses it here is not loaded."""
    code = "import sys, holdfast.mcp.stdio; print('holdfast.mcp.http' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_knowledge_is_read_as_yaml_and_as_the_same_data(root: Path, talk: Talk) -> None:
    plan = root / "resources/workspaces/alpha/_plans/260208-engine.md"
    plan.parent.mkdir(parents=True)
    plan.write_text("---\nname: Engine\ndescription: Build it\nstatus: new\ncreated: 2026-02-08\n---\n\nText.\n")
    scope = {"workspace": "alpha"}

    async def work(client: Client) -> None:
        result = await client.call_tool("retrieve_plans", {"scope": scope})
        (content,) = result.content
        assert isinstance(content, types.TextContent)
        assert content.text.startswith("plans:\n- name: Engine\n  description: Build it\n  status: new\n")
        assert result.structured_content is not None
        (found,) = result.structured_content["plans"]
        assert found["_meta"] == {
            "document_path": "resources/workspaces/alpha/_plans/260208-engine.md",
            "document_id": "260208-engine",
        }
        assert "text" not in result.structured_content
        context = {"workspaceId": "alpha", "sessionId": "s"}
        calls = [
            {"agent": "knowledge", "tool": "set_plan_status", "params": {"id": "260208-engine", "status": "done"}},
            {"agent": "knowledge", "tool": "workspace_context", "params": {}},
        ]
        reply = await ask(client, "useTools", context=context, calls=calls)
        assert reply["data"]["results"][1]["plans"][0]["status"] == "done"
        wrong = await client.call_tool("retrieve_plans", {"scope": {"workspace": "beta"}})
        assert wrong.is_error
        assert wrong.structured_content == {
            "success": False,
            "error": (said := 'Workspace "beta" not found. Use listWorkspaces to see available workspaces.'),
            "text": said,
        }

    talk(root, work, toolset="all")
