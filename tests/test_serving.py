"""`holdfast serve`: a real process before a real store, which goes away and comes back."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import secrets
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import psycopg
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

import holdfast as library
import pgserver
import teamserver
from holdfast.errors import Busy
from holdfast.mcp import auth
from holdfast.mcp.auth import Key, MemoryPool, issue
from holdfast.mcp.health import Log, Metrics
from holdfast.memory import Memory
from holdfast.model import grants
from holdfast.storage.postgres.connections import Waits
from holdfast.storage.postgres.database import Database
from holdfast.storage.tree import ABSENT
from holdfast.tools.calling import Context
from teamserver import serving, until

SAMPLE = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? -?[0-9.e+-]+|[a-z_]+\{.*le="\+Inf"\} \d+')


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for tokens that is not the user's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture(params=["files", "database"])
def store(request: pytest.FixtureRequest, root: Path) -> str:
    return str(root) if request.param == "files" else str(request.getfixturevalue("address"))


def fixed(config: Path) -> str:
    """Return the token of the owner's own file."""
    (file,) = (path for path in (config / "holdfast/tokens").iterdir() if "." not in path.name)
    return file.read_text().strip()


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_client_of_either_era_works_with_an_issued_token(store: str, mode: str) -> None:
    token = issue(store, "ci")[1]

    async def work(url: str) -> list[Any]:
        info = types.Implementation(name="tester", version="1")
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode, client_info=info) as client,
        ):
            await client.call_tool("remember", {"text": "We press the cider in October.", "title": "Cider"})
            found = await client.call_tool("recall", {"query": "cider"})
            return list(found.structured_content["hits"])

    with serving(store) as team:
        (hit,) = asyncio.run(work(team.url))
        assert hit["by"] == "mcp:tester:ci"
        until(lambda: sum(line["event"] == "call" for line in team.lines()) >= 2)  # written after the reply
        calls = [line for line in team.lines() if line["event"] == "call"]
        assert [line["tool"] for line in calls] == ["remember", "recall"]


def test_the_owners_own_tokens_still_open_a_folder(root: Path, config: Path) -> None:
    with serving(str(root)) as team:
        reply = team.call(fixed(config), "remember", text="A fig.", title="Fig")
        assert reply["status"] == "stored"


def test_a_session_of_one_token_is_closed_to_another(address: str) -> None:
    one, two = issue(address, "one")[1], issue(address, "two", reads_only=True)[1]
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
    }  # fmt: skip
    accept = {"Accept": "application/json, text/event-stream"}
    with serving(address) as team:
        began = httpx2.post(team.url, headers=accept | {"Authorization": f"Bearer {one}"}, json=hello, timeout=60)
        session = {"mcp-session-id": began.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
        asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
        answers = [
            httpx2.post(
                team.url, headers=accept | session | {"Authorization": f"Bearer {token}"}, json=asked, timeout=60
            )
            for token in (one, two)
        ]
        assert [answer.status_code for answer in answers] == [200, 404]


def test_nobody_ends_the_run_of_another_tokens_session(address: str) -> None:
    one, two = issue(address, "one")[1], issue(address, "two")[1]
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    with serving(address, "--toolset", "all") as team:
        session: dict[str, str] = {}

        def send(token: str, http: str, method: str = "", params: dict[str, Any] | None = None) -> httpx2.Response:
            headers = {"Accept": "application/json, text/event-stream", "Authorization": f"Bearer {token}", **session}
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params} if method else None
            return httpx2.request(http, team.url, headers=headers, json=body, timeout=60)

        def noted() -> str:
            return send(one, "POST", "tools/call", {"name": "get_memory", "arguments": {"compartment": "run"}}).text

        began = send(one, "POST", "initialize", hello)
        session |= {"mcp-session-id": began.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
        note = {"compartment": "run", "content": "a medlar of mine"}
        send(one, "POST", "tools/call", {"name": "save_memory", "arguments": note})
        assert send(two, "DELETE").status_code == 404
        assert "a medlar of mine" in noted()
        assert send(one, "DELETE").status_code == 200
    with library.open(address) as memory:
        kept = [path for path, _ in memory.tree.walk("user/memory/sessions", (".jsonl",), lambda _path, _why: None)]
        assert not [path for path in kept if "/runs/" in path]


def test_a_token_is_told_by_its_class_what_is_wrong_with_the_store(server: pgserver.Server, address: str) -> None:
    red, token = auth.tenant_of(address), issue(address, "ci")[1]
    with library.open(address) as memory:
        memory.tree.write("holdfast.toml", b"[paths\nbroken", expect=ABSENT)
    with serving(auth.for_tenant(address, "the-own-tenant"), "--toolset", "all") as team:
        told = [
            json.dumps(team.call(token, "recall", query="x")),
            team.ask(token, "resources/list", {}).text,
            team.ask(token, "resources/read", {"uri": "holdfast://workspace/alpha"}).text,
            team.ask(token, "prompts/get", {"name": "save-memory", "arguments": {}}).text,
        ]
        for text in told:
            assert "not set up for this store" in text
            assert not [word for word in ("postgresql:", "the-own-tenant", red, "toml") if word in text]
        until(lambda: any(line["event"] == "failed" for line in team.lines()))
        assert "holdfast.toml" in next(line for line in team.lines() if line["event"] == "failed")["reason"]


def test_a_token_is_not_told_which_login_lacks_which_rights(
    server: pgserver.Server, database: str, address: str
) -> None:
    token, login = issue(address, "ci")[1], f"somebody_{secrets.token_hex(4)}"
    with library.open(address) as memory:
        memory.put("note", "A medlar.", title="Medlar")
    server.run(f"CREATE ROLE {login} LOGIN PASSWORD 'right'; GRANT holdfast_reader TO {login}", database)
    try:
        with serving(server.at(database, user=login, password="right", tenant=auth.tenant_of(address))) as team:
            assert team.call(token, "recall", query="medlar")["hits"]
            error = team.call(token, "remember", text="A quince.")["error"]
            assert error.startswith("The store cannot be used. Check whether the call had an effect")
            until(lambda: any(line["event"] == "failed" for line in team.lines()))
            assert "holdfast_writer" in next(line for line in team.lines() if line["event"] == "failed")["reason"]
    finally:
        server.run(f"DROP ROLE {login}", database)


def test_when_all_connections_are_in_use_nobody_is_told_where_the_database_is(address: str) -> None:
    held = Database(address, Waits(connections=1, again_seconds=0.3))
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with held.transaction("x"):
            entered.set()
            leave.wait(60)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        try:
            entered.wait(60)
            with pytest.raises(Busy) as caught:
                held.beside("another").ask("y", "SELECT 1")
            assert "postgresql:" not in str(caught.value)
        finally:
            leave.set()
        holding.result(60)
    held.close()


# health, readiness, metrics, log


def test_health_asks_nobody_and_metrics_tell_no_names(store: str) -> None:
    token = issue(store, "ci-token-name")[1]
    with serving(store) as team:
        assert (team.get("/healthz").status_code, team.get("/healthz").text) == (200, "ok\n")
        assert (team.get("/readyz").status_code, team.get("/readyz").text) == (200, "ready\n")
        team.call(token, "remember", text="A secret medlar.", title="Medlar")
        team.call(token, "recall", query="medlar", scope="nowhere")
        assert team.ask("hfm_wrong", "tools/list", {}).status_code == 401
        told = team.get("/metrics")
        assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
        samples = [line for line in told.text.splitlines() if not line.startswith("#")]
        assert [line for line in samples if not SAMPLE.fullmatch(line)] == []
        for wanted in (
            'holdfast_tool_calls_total{tool="remember",outcome="ok"} 1',
            'holdfast_tool_calls_total{tool="recall",outcome="error"} 1',
            'holdfast_errors_total{kind="NotFound"} 1',
            'holdfast_http_answers_total{status="401"} 1',
            'holdfast_tool_seconds_count{tool="remember"} 1',
            "holdfast_store_up 1",
            "holdfast_memories_open 1",
            "holdfast_index_behind_files ",
            "holdfast_http_connections ",
            "holdfast_http_limited_total 0",
            "process_resident_memory_bytes ",
            "holdfast_build_info{",
        ):
            assert any(line.startswith(wanted) for line in samples), wanted
        hidden = ("ci-token-name", "medlar", "Medlar", token, auth.tenant_of(store) or "nowhere", "nowhere")
        assert not [text for text in hidden if text in told.text]


def test_a_line_of_the_log_tells_who_did_what_and_no_text(address: str) -> None:
    token = issue(address, "ci")[1]
    with serving(address) as team:
        answer = team.ask(
            token,
            "tools/call",
            {"name": "remember", "arguments": {"text": "A secret medlar."}},
            **{"X-Request-Id": "r-1"},
        )
        assert answer.headers["x-request-id"] == "r-1"
        team.call(token, "recall", query="medlar", scope="nowhere")
        assert team.ask("nobody", "tools/list", {}, **{"X-Request-Id": "x" * 100}).headers["x-request-id"] != "x" * 100
        until(lambda: len(team.lines()) >= 4)
        first = next(line for line in team.lines() if line["event"] == "store")
        assert (first["level"], first["state"]) == ("info", "up")
        done, wrong, refused = lines = [line for line in team.lines() if line["event"] != "store"]
        assert (done["event"], done["level"], done["tool"], done["outcome"]) == ("call", "info", "remember", "ok")
        assert (done["request"], done["token"], done["tenant"]) == ("r-1", "ci", auth.tenant_of(address))
        assert (wrong["level"], wrong["outcome"]) == ("warning", "NotFound")
        assert (refused["event"], refused["status"]) == ("refused", 401)
        assert all(set(line) <= {"time", "level", "event", "request", "tool", "tenant", "token", "outcome", "ms", "status"}
                   for line in lines)  # fmt: skip
        said = "".join(team.log)
        assert not [text for text in (token, token[-43:], "medlar", "nowhere") if text in said]


def test_lines_for_people_are_one_line_each_whatever_is_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    Log("text").warn("call", tool="recall", token='a b"\n', ms=1.5, tenant="")
    Log("none").info("call", tool="recall")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(r'warning call tool=recall token="a b\"\n" ms=1.5')


def test_metrics_need_a_token_from_elsewhere_unless_the_owner_opens_them(address: str) -> None:
    token = issue(address, "prometheus", reads_only=True)[1]
    with serving(address) as team:
        assert team.get("/metrics").status_code == 200
        assert team.get("/metrics", **{"X-Forwarded-For": "203.0.113.9"}).status_code == 401
        assert (
            team.get("/metrics", **{"X-Real-IP": "203.0.113.9", "Authorization": f"Bearer {token}"}).status_code == 200
        )
        assert team.get("/metrics", Host="evil.example").status_code == 421
    with serving(address, "--open-metrics") as team:
        assert team.get("/metrics", **{"X-Forwarded-For": "203.0.113.9"}).status_code == 200


def test_a_name_of_a_proxy_is_let_in_and_no_other(address: str) -> None:
    token = issue(address, "ci")[1]
    with serving(address, "--name", "memory.example.org") as team:
        for origin in ("https://memory.example.org", "http://127.0.0.1"):
            answer = team.ask(token, "tools/list", {}, Host="memory.example.org", Origin=origin)
            assert answer.status_code == 200
        assert team.ask(token, "tools/list", {}, Host="other.example.org").status_code == 421
        assert team.ask(token, "tools/list", {}, Origin="https://127.0.0.1").status_code == 403
        assert team.get("/healthz", Host="10.0.0.7:8899").status_code == 200  # probes use an address as the name


def test_a_histogram_adds_up() -> None:
    metrics = Metrics()
    for seconds in (0.0005, 0.2, 30.0):
        metrics.called("recall", "ok", seconds)
    told = metrics.render(up=False, behind=3, memories=0)
    assert 'holdfast_tool_seconds_bucket{tool="recall",le="0.001"} 1' in told
    assert 'holdfast_tool_seconds_bucket{tool="recall",le="0.25"} 2' in told
    assert 'holdfast_tool_seconds_bucket{tool="recall",le="10"} 2' in told
    assert 'holdfast_tool_seconds_bucket{tool="recall",le="+Inf"} 3' in told
    assert 'holdfast_tool_seconds_sum{tool="recall"} 30.2005' in told
    assert "holdfast_store_up 0" in told
    assert "holdfast_index_behind_files 3" in told


# a store that is away


def test_it_starts_without_its_database_and_finds_it(server: pgserver.Server, database: str, address: str) -> None:
    token = issue(address, "ci")[1]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    away = server.at(database, password="unused", tenant=auth.tenant_of(address)).replace(
        next(part for part in address.split("&") if part.startswith("port=")), f"port={port}"
    )
    with serving(away) as team:
        answer = team.get("/readyz")
        assert (answer.status_code, answer.text) == (503, "not ready: the store does not answer\n")
        assert team.get("/healthz").status_code == 200
        assert "holdfast_store_up 0" in team.get("/metrics").text
        assert team.ask(token, "tools/list", {}).status_code == 503
        assert team.ask("hfm_wrong", "tools/list", {}).status_code == 401


def test_a_database_that_stops_and_starts_under_a_running_server(tmp_path: Path) -> None:
    with pgserver.stoppable() as running, running.server.database() as name:
        address = running.server.at(name, tenant="red")
        token = issue(address, "ci")[1]
        with serving(address) as team:
            assert team.call(token, "remember", text="A medlar.", title="Medlar")["status"] == "stored"
            running.stop()
            until(lambda: team.get("/readyz").status_code == 503)
            assert team.get("/readyz").text == "not ready: the store does not answer\n"
            until(lambda: team.ask(token, "tools/list", {}).status_code == 503)
            assert team.get("/healthz").status_code == 200
            running.start()
            until(lambda: team.get("/readyz").status_code == 200)
            until(lambda: team.ask(token, "tools/list", {}).status_code == 200)
            assert [hit["title"] for hit in team.call(token, "recall", query="medlar")["hits"]] == ["Medlar"]
            assert team.call(token, "remember", text="A quince.", title="Quince")["status"] == "stored"
            states = [line["state"] for line in team.lines() if line["event"] == "store"]
            assert states == ["up", "the store does not answer", "up again"]


def test_a_database_that_hangs_keeps_nobody_else_waiting() -> None:
    token = grants.create("ci", "red")[1]
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes connections and says nothing
        address = f"postgresql://somebody@127.0.0.1:{silent.getsockname()[1]}/memory?connect_timeout=3"
        with serving(address) as team, ThreadPoolExecutor(6) as pool:
            waiting = [pool.submit(team.ask, token, "tools/list", {}) for _ in range(6)]
            assert team.get("/healthz").status_code == 200
            assert team.ask("nobody", "tools/list", {}).status_code == 401
            assert team.get("/readyz").text == "not ready: the store does not answer in time\n"
            assert not all(one.done() for one in waiting)
            assert {one.result(60).status_code for one in waiting} == {503}


def test_a_password_that_is_wrong_is_told_to_the_log_without_it(server: pgserver.Server, database: str) -> None:
    login = f"somebody_{secrets.token_hex(4)}"
    server.run(f"CREATE ROLE {login} LOGIN PASSWORD 'right'")
    try:
        with serving(server.at(database, user=login, password="wr0ng-secret")) as team:
            assert team.get("/readyz").text == "not ready: the store cannot be used\n"
            until(lambda: any(line["event"] == "store" for line in team.lines()))
            (told,) = (line for line in team.lines() if line["event"] == "store")
            assert "Check user and password" in told["reason"]
            assert "wr0ng-secret" not in "".join(team.log)
    finally:
        server.run(f"DROP ROLE {login}")


def test_a_schema_that_is_newer_is_not_ready(server: pgserver.Server) -> None:
    with server.database("newer") as name:
        address = server.at(name)
        token = issue(address, "ci")[1]
        with serving(address) as team:
            assert team.get("/readyz").status_code == 200
            server.run("INSERT INTO holdfast.migrations (version, name) VALUES (999, 'from the future')", name)
            until(lambda: team.get("/readyz").status_code == 503)
            assert team.get("/readyz").text == "not ready: the store cannot be used\n"
        with serving(address) as team:
            assert team.ask(token, "tools/list", {}).status_code == 503


def test_a_server_that_is_told_to_end_finishes_what_it_works_on(
    server: pgserver.Server, database: str, address: str
) -> None:
    token = issue(address, "ci")[1]
    with serving(address) as team, ThreadPoolExecutor(1) as pool:
        team.call(token, "remember", text="A medlar.", kind="fact", key="fruit")
        with psycopg.connect(server.dsn, dbname=database) as holder:
            holder.execute(
                "SELECT 1 FROM holdfast.record WHERE tenant = %s AND path = 'user/memory/semantic.jsonl' FOR UPDATE",
                [auth.tenant_of(address)],
            )
            waiting = pool.submit(team.call, token, "remember", text="A quince.", kind="fact", key="fruit")
            until(lambda: bool(server.run("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'", database)))
            team.process.send_signal(signal.SIGTERM)
            until(lambda: not _accepts(team.url))
        assert waiting.result(60)["status"] == "superseded"
        assert team.process.wait(60) == 0
    assert team.lines()[-1]["event"] == "stopped"
    with library.open(address) as memory:
        assert memory.call("memory_recall", {"key": "fruit"})["data"]["value"] == "A quince."


def _accepts(url: str) -> bool:
    host, port = url.split("/")[2].split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


# how many memories stay open


class Recorder:
    def __init__(self) -> None:
        self.opened: list[str] = []

    def __call__(self, memory: Memory) -> None:
        self.opened.append(memory.tools.bound or "whole")


def test_memories_are_opened_once_shared_and_closed_when_there_are_too_many(address: str) -> None:
    with library.open(address) as memory:
        memory.call("createWorkspace", {"name": "alpha", "description": "d", "rootFolder": ".", "purpose": "p"})
    seen = Recorder()
    held = MemoryPool(address, Context(), seen, most=2)
    tenant = auth.tenant_of(address)
    with ThreadPoolExecutor(8) as pool:
        together = threading.Barrier(8, timeout=60)

        def use(_number: int) -> int:
            together.wait()
            with held.use(Key(tenant)) as one:
                return id(one)

        assert len(set(pool.map(use, range(8)))) == 1
    with held.use(Key(tenant, "alpha")) as part, held.use(Key(tenant)) as whole:
        for number in range(3):
            with held.use(Key(f"{tenant}-{number}")) as other:
                assert other.find("anything").as_of
        assert part.call("listWorkspaces")["data"]  # nothing that is in use was closed
        assert whole.call("listWorkspaces")["data"]
    assert seen.opened == ["whole", "alpha", "whole", "whole", "whole"]
    assert held.count <= 3
    assert held.waiting() >= 0
    held.close()


def test_a_memory_that_could_not_be_opened_is_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    teamserver.holdfast("init", str(folder))
    with serving(str(folder)) as team:
        token = issue(str(folder), "ci")[1]
        folder.rename(tmp_path / "away")
        assert team.get("/readyz").status_code == 503
        assert "The store cannot be used" in team.call(token, "recall", query="x")["error"]
        assert any("does not exist" in line.get("reason", "") for line in team.lines())
        (tmp_path / "away").rename(folder)
        until(lambda: team.get("/readyz").status_code == 200)
        assert team.call(token, "recall", query="x")["hits"] == []


# many sessions


def test_sessions_with_notes_share_one_file_descriptor(root: Path, config: Path) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    with serving(str(root), "--toolset", "all") as team, httpx2.Client(timeout=60) as client:
        resource.prlimit(team.process.pid, resource.RLIMIT_NOFILE, (64, 64))
        headers = {"Accept": "application/json, text/event-stream", "Authorization": f"Bearer {fixed(config)}"}

        def send(session: str, method: str, params: dict[str, Any]) -> httpx2.Response:
            more = {"mcp-session-id": session, "MCP-Protocol-Version": "2025-11-25"} if session else {}
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            return client.post(team.url, headers=headers | more, json=body)

        sessions = [send("", "initialize", hello).headers["mcp-session-id"] for _ in range(60)]
        for number, session in enumerate(sessions):
            note = {"compartment": "run", "content": f"pear number {number}."}
            saved = send(session, "tools/call", {"name": "save_memory", "arguments": note})
            assert saved.json()["result"]["isError"] is False, saved.text
        with library.open(root):  # removes what dead runs left
            pass
        for number, session in enumerate(sessions):
            asked = {"name": "get_memory", "arguments": {"compartment": "run"}}
            assert f"pear number {number}." in send(session, "tools/call", asked).text
        assert team.get("/readyz").status_code == 200
    assert not list(root.glob("user/memory/sessions/*/runs/*.jsonl"))


def test_readyz_fails_when_file_descriptors_run_short(root: Path) -> None:
    with serving(str(root)) as team:
        assert team.get("/readyz").text == "ready\n"
        used = len(list(Path(f"/proc/{team.process.pid}/fd").iterdir()))
        before = resource.prlimit(
            team.process.pid, resource.RLIMIT_NOFILE, (used + 16, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
        until(lambda: team.get("/readyz").status_code == 503)
        assert team.get("/readyz").text == "not ready: few file descriptors are left\n"
        resource.prlimit(team.process.pid, resource.RLIMIT_NOFILE, before)
        until(lambda: team.get("/readyz").status_code == 200)
