"""The MCP server over streamable HTTP: a real process and port, both eras, and requests that must be refused."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from holdfast.errors import Damaged, HoldfastError, Unavailable
from holdfast.mcp.auth import issue, token_for
from holdfast.mcp.server import MAX_MESSAGE
from holdfast.model import grants
from holdfast.roots import is_address
from holdfast.storage.postgres import connections
from holdfast.tools import toolsets

ERAS = {"legacy": "2025-11-25", "auto": "2026-07-28"}
STATE: dict[str, Any] = {
    "name": "Progress", "conversationContext": "Half way.", "activeTask": "The rest", "activeFiles": [], "nextSteps": ["Go on"],
}  # fmt: skip


class Server:
    """A running server: where it listens, and what it lets in."""

    def __init__(self, process: subprocess.Popen[str], url: str, token: str, reading: str = "") -> None:
        self.process = process
        self.url = url
        self.token = token
        self.reading = reading

    @property
    def headers(self) -> dict[str, str]:
        return {
            "Authorization": f"Bearer {self.token}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for tokens that is not the user's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


@contextlib.contextmanager
def serving(root: Path, limits: str = "", options: str = "") -> Iterator[Server]:
    code = (
        "from holdfast.mcp.http import Context, RateLimits, main; "
        f"main({str(root)!r}, port=0, limits=RateLimits({limits}), {options})"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        token, reading = (Path(process.stderr.readline().split(" is in ")[1].strip()).read_text().strip() for _ in "12")
        url = process.stderr.readline().strip().removeprefix("Holdfast listens on ")
        try:
            yield Server(process, url, token, reading)
        finally:
            process.send_signal(signal.SIGTERM)
        printed = process.stderr.read()
        assert process.wait(30) == 0
        assert not any(text in printed for text in ("Traceback", token, reading))


@pytest.fixture
def served(root: Path) -> Iterator[Server]:
    with serving(root) as running:
        yield running


@contextlib.asynccontextmanager
async def connected(server: Server, mode: str) -> AsyncIterator[Client]:
    info = types.Implementation(name="tester", version="1")
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {server.token}"}, timeout=60) as http,
        Client(streamable_http_client(server.url, http_client=http), mode=mode, client_info=info) as client,
    ):
        yield client


async def ask(client: Client, tool: str, **params: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, params)
    reply: dict[str, Any] = result.structured_content
    assert result.is_error is (reply.get("success") is False)
    return reply


def request(method: str, params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


HELLO = request(
    "initialize",
    {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
)


@pytest.mark.parametrize("mode", ERAS)
def test_a_client_of_either_era_works_over_http(served: Server, root: Path, mode: str) -> None:
    async def work() -> None:
        async with connected(served, mode) as client:
            assert client.protocol_version == ERAS[mode]
            assert len((await client.list_tools()).tools) == len(toolsets.CORE)
            assert (await ask(client, "createState", **STATE))["success"] is True
            assert (await ask(client, "loadState", name="Progress"))["data"] == STATE
            assert "already exists" in (await ask(client, "createState", **STATE))["error"]
            assert len((await client.list_prompts()).prompts) == 5
            (listed,) = (await client.list_resources()).resources
            assert "Half way." in str((await client.read_resource(listed.uri)).contents)
            long = "x " * 499_000 + "end"
            assert (await ask(client, "createState", **STATE | {"name": "long", "conversationContext": long}))[
                "success"
            ]
            assert (await ask(client, "loadState", name="long"))["data"]["conversationContext"] == long

    asyncio.run(work())
    files = root.glob("user/memory/traces/*/*.jsonl")
    traces = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert {trace["agent"] for trace in traces} == {"tester"}
    ((session, run),) = {(trace["session"], trace.get("run", "")) for trace in traces}
    assert session == "default"
    assert run.startswith("http-") if mode == "legacy" else run == ""


def test_two_connections_that_name_no_session_share_its_memory_and_no_run(served: Server) -> None:
    async def noted(client: Client, tool: str, **params: Any) -> dict[str, Any]:
        calls = [{"agent": "compartments", "tool": tool, "params": params}]
        context = {"workspaceId": "default", "sessionId": "default"}
        return await ask(client, "useTools", context=context, calls=calls)

    async def work() -> None:
        async with connected(served, "legacy") as one, connected(served, "legacy") as two:
            await ask(one, "remember", text="The kiwi harvest was good.", kind="episode")
            for place in ("run", "session"):
                await noted(one, "save_memory", compartment=place, content=f"for the {place}")
            shared = await noted(two, "get_memory", compartment="session")
            own = await noted(two, "get_memory", compartment="run")
            assert [entry["content"] for entry in shared["entries"]] == ["for the session"]
            assert own["entries"] == []

    asyncio.run(work())


@pytest.mark.parametrize("mode", ERAS)
def test_a_token_that_may_only_read_reads_and_changes_nothing(served: Server, root: Path, mode: str) -> None:
    reader = Server(served.process, served.url, served.reading)
    context = {"workspaceId": "default", "sessionId": "s"}
    note = {"agent": "memory", "tool": "remember", "params": {"text": "x", "title": "T"}}
    look = {"agent": "memoryManager", "tool": "listStates", "params": {}}

    async def work() -> None:
        async with connected(served, mode) as owner, connected(reader, mode) as client:
            await ask(owner, "remember", text="The kiwi harvest was good.", title="Kiwis")
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert names == {"recall", "read", "loadWorkspace", "loadState", "listStates", "getTools", "useTools"}
            assert (await ask(client, "recall", query="kiwi harvest"))["hits"][0]["title"] == "Kiwis"
            for refused in (
                await ask(client, "remember", text="x", title="T"),
                await ask(client, "createState", **STATE),
                await ask(client, "useTools", context=context, calls=[note]),
                (await ask(client, "useTools", context=context, calls=[note, note], strategy="parallel"))["data"]["results"][1],
            ):  # fmt: skip
                assert refused["error"].endswith(
                    "writes, and your token is read-only. Ask the owner for the read-write token."
                )
            assert (await ask(client, "useTools", context=context, calls=[look]))["success"] is True

    asyncio.run(work())
    assert len(list(root.glob("resources/workspaces/default/_notes/*.md"))) == 1
    assert list(root.glob("resources/workspaces/default/_states/*")) == []


def test_a_client_that_leaves_in_the_middle_of_a_body_leaves_no_trace(served: Server) -> None:
    """The server's own check at the end sees that nothing was printed."""
    port = int(served.url.split(":")[2].removesuffix("/mcp"))
    head = "\r\n".join(f"{name}: {value}" for name, value in served.headers.items())
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port)) as wire:
            wire.sendall(f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}\r\nContent-Length: 100\r\n\r\n{{".encode())
    assert httpx2.post(served.url, headers=served.headers, content=HELLO).status_code == 200


def test_many_clients_at_once_create_one_state_once(served: Server) -> None:
    async def one(mode: str) -> bool:
        async with connected(served, mode) as client:
            return bool((await ask(client, "createState", **STATE))["success"])

    async def work() -> list[bool]:
        return await asyncio.gather(*(one(mode) for mode in [*ERAS] * 4))

    assert sorted(asyncio.run(work())) == [False] * 7 + [True]


def test_what_was_written_is_there_after_a_restart(root: Path) -> None:
    async def work(server: Server, tool: str, **params: Any) -> dict[str, Any]:
        async with connected(server, "auto") as client:
            return await ask(client, tool, **params)

    with serving(root) as first:
        asyncio.run(work(first, "createState", **STATE))
    with serving(root) as second:
        assert second.token == first.token
        assert asyncio.run(work(second, "loadState", name="Progress"))["data"] == STATE


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/mcp", "/", "/.well-known/oauth-protected-resource"])
@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer wrong", "Basic {token}", "Bearer {token}x", "Bearer é"])
def test_without_the_token_everything_is_401_and_says_nothing(
    shared: Server, method: str, path: str, given: str | None
) -> None:
    headers = shared.headers | {"Authorization": (given or "").format(token=shared.token)}
    if given is None:
        del headers["Authorization"]
    encoded = {name.encode(): value.encode() for name, value in headers.items()}
    answer = httpx2.request(method, shared.url.removesuffix("/mcp") + path, headers=encoded, content=HELLO)
    assert (answer.status_code, answer.text) == (401, "Unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for many requests that are refused."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "root").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        with serving(folder / "root") as running:
            yield running


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "localhost.evil"]
)
def test_a_foreign_host_is_refused(shared: Server, method: str, host: str) -> None:
    port = shared.url.split(":")[2].removesuffix("/mcp")
    headers = shared.headers | {"Host": host.format(port=port)}
    assert httpx2.request(method, shared.url, headers=headers, content=HELLO).status_code == 421


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("origin", ["http://evil.example", "https://localhost.evil.example", "null", "file://"])
def test_a_foreign_origin_is_refused(shared: Server, method: str, origin: str) -> None:
    answer = httpx2.request(method, shared.url, headers=shared.headers | {"Origin": origin}, content=HELLO)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_the_own_origin_is_accepted(shared: Server) -> None:
    own = shared.headers | {"Origin": shared.url.removesuffix("/mcp")}
    assert httpx2.post(shared.url, headers=own, content=HELLO).status_code == 200


def test_a_body_above_the_limit_is_413_however_it_is_sent(shared: Server) -> None:
    body = request("tools/call", {"name": "recall", "arguments": {"query": "x" * MAX_MESSAGE}})

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(body), 100_000):
            yield body[start : start + 100_000]

    assert httpx2.post(shared.url, headers=shared.headers, content=body).status_code == 413
    assert httpx2.post(shared.url, headers=shared.headers, content=chunks()).status_code == 413
    assert httpx2.post(shared.url, headers=shared.headers, content=HELLO).status_code == 200


@pytest.mark.parametrize(
    "body", [b"", b"\xff\x00", b'{"jsonrpc":"2.0","id":1,', b"[]", b"[" * 100_000, b'{"id": ' + b"9" * 100_000 + b"}"]
)
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28", "1999-01-01", "x" * 5000])
def test_garbage_is_a_client_error_and_the_server_stays(shared: Server, body: bytes, version: str) -> None:
    headers = shared.headers | {"MCP-Protocol-Version": version}
    assert 400 <= httpx2.post(shared.url, headers=headers, content=body).status_code < 500
    assert httpx2.post(shared.url, headers=shared.headers, content=HELLO).status_code == 200


def test_it_listens_on_loopback_only(shared: Server) -> None:
    assert shared.url.startswith("http://127.0.0.1:")


def test_a_port_that_is_taken_is_a_clear_error(shared: Server, root: Path) -> None:
    port = shared.url.split(":")[2].removesuffix("/mcp")
    command = [sys.executable, "-m", "holdfast", "mcp", "--http", "--port", port, "--root", str(root)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == Unavailable.exit_code
    assert re.search(f"Cannot listen on 127.0.0.1, port {port}: .*Use another --port", done.stderr)


def named(root: Path) -> tuple[str, str]:
    """Return another name of a root, and the name of another root."""
    if is_address(address := str(root)):
        return address.replace("postgresql://", "Postgres://"), connections.for_tenant(address, "other")
    return f"{root}/../root/", str(root.parent)


def test_a_token_is_made_once_for_each_root_and_only_its_owner_can_read_it(root: Path, config: Path) -> None:
    token, path = token_for(str(root))
    same, other_root = named(root)
    assert len(token) >= 43
    assert token_for(same) == (token, path)
    assert token_for(other_root)[0] != token
    reading, other = token_for(str(root), read_only=True)
    assert (other, stat.S_IMODE(os.stat(other).st_mode)) == (f"{path}.read", 0o600)
    assert reading != token
    os.unlink(other)
    assert Path(path).parent == config / "holdfast/tokens"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(config / "holdfast/tokens").st_mode) == 0o700
    assert sorted(item.name for item in Path(path).parent.iterdir()) == sorted(
        {Path(path).name, Path(token_for(other_root)[1]).name}
    )


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_token_that_others_can_read_is_refused(root: Path, mode: int) -> None:
    _, path = token_for(str(root))
    os.chmod(path, mode)
    with pytest.raises(Unavailable, match=r"can be read by other users\. Run: chmod 600"):
        token_for(str(root))


def test_a_token_file_that_is_empty_or_elsewhere_is_refused(root: Path, tmp_path: Path) -> None:
    token, path = token_for(str(root))
    Path(path).write_text("\n", encoding="utf-8")
    with pytest.raises(Damaged, match="has no token"):
        token_for(str(root))
    os.unlink(path)
    other = tmp_path / "other"
    other.write_text(token, encoding="utf-8")
    other.chmod(0o600)
    os.symlink(other, path)
    with pytest.raises(HoldfastError):
        token_for(str(root))


def test_what_a_connection_noted_for_its_run_ends_with_it(served: Server, root: Path) -> None:
    """The session is given back by DELETE; notes of the run go, those of the session stay."""

    def post(message: dict[str, Any], **more: str) -> httpx2.Response:
        headers = served.headers | {"Accept": "application/json, text/event-stream"} | more
        return httpx2.post(served.url, headers=headers, json={"jsonrpc": "2.0", **message})

    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    begun = post({"id": 1, "method": "initialize", "params": hello})
    own = {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}
    post({"method": "notifications/initialized"}, **own)
    calls = [
        {
            "agent": "compartments",
            "tool": "save_memory",
            "params": {"compartment": place, "content": f"for the {place}"},
        }
        for place in ("run", "session")
    ]
    arguments = {"context": {"workspaceId": "default", "sessionId": "s"}, "calls": calls}
    post({"id": 2, "method": "tools/call", "params": {"name": "useTools", "arguments": arguments}}, **own)
    assert len(list(root.glob("user/memory/sessions/*/runs/*.jsonl"))) == 1
    assert httpx2.delete(served.url, headers=served.headers | own).status_code == 200
    assert list(root.glob("user/memory/sessions/*/runs/*.jsonl")) == []
    (kept,) = root.glob("user/memory/sessions/*/entries.jsonl")
    assert "for the session" in kept.read_text()


def flood(server: Server, client: httpx2.Client) -> None:
    """Send requests without a valid token until they are refused for their number."""
    unknown = ("Basic x", "Bearer x", f"Bearer {grants.create('x')[1]}")
    for sent in itertools.islice(itertools.cycle(unknown), 100):
        headers = server.headers | {"Authorization": sent}
        with contextlib.suppress(httpx2.TransportError):  # a connection may be closed before its request was read
            if client.post(server.url, content=HELLO, headers=headers).status_code == 429:
                return
    raise AssertionError("nothing was refused")


def test_a_stranger_s_flood_keeps_no_valid_token_out(root: Path) -> None:
    tokens = [issue(str(root), f"token-{number}")[1] for number in range(20)]
    with serving(root, "strangers=0.5, burst=4") as server, httpx2.Client(timeout=60) as client:
        for token in tokens:  # the server has seen none of them
            flood(server, client)
            headers = server.headers | {"Authorization": f"Bearer {token}"}
            assert httpx2.post(server.url, content=HELLO, headers=headers, timeout=60).status_code == 200
        assert httpx2.get(server.url.removesuffix("/mcp") + "/readyz").text == "ready\n"


def test_the_strangers_of_one_address_do_not_use_up_what_another_may_send(root: Path) -> None:
    elsewhere = httpx2.HTTPTransport(local_address="127.0.0.2")
    with (
        serving(root, "strangers=0.5, burst=4") as server,
        httpx2.Client(timeout=60, transport=elsewhere) as stranger,
    ):
        flood(server, stranger)
        assert httpx2.post(server.url, content=HELLO, timeout=60).status_code == 401
