"""The MCP server: cold start, calls over stdio, many states, tracing, memory.

    scripts/bench mcp [--quick]

A plain client writes JSON lines to the server's standard input and reads its answers, so the client costs little. The
bare server is the same SDK with one tool that returns at once.
"""

from __future__ import annotations

import functools
import glob
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

import holdfast
from bench.harness import Run, folder, median_of, percentile, start, timed
from holdfast.memories.workspaces import Trace

BARE = """
import anyio, mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
async def tools(ctx, params):
    return types.ListToolsResult(tools=[types.Tool(name="echo", input_schema={"type": "object"})])
async def call(ctx, params):
    return types.CallToolResult(content=[types.TextContent(type="text", text="ok")])
server = Server("bare", on_list_tools=tools, on_call_tool=call)
async def main():
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())
anyio.run(main)
"""
STATE = {
    "conversationContext": "We decided on JWT tokens and set up the basic structure. " * 5,
    "activeTask": "Implementing token refresh logic",
    "activeFiles": ["src/auth/jwt.ts"],
    "nextSteps": ["Add refresh token endpoint"],
}


class Client:
    """A server as a subprocess, with a minimal client."""

    def __init__(self, command: list[str], more: Mapping[str, str] = {}) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment |= more
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self._number = 0
        version = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        self.ask("initialize", version)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        self._number += 1
        self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        assert self.process.stdout is not None
        return msgspec.json.decode(self.process.stdout.readline())["result"]

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        result = self.ask("tools/call", {"name": tool, "arguments": arguments})
        assert not result.get("isError"), result
        return result

    def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def cpu(self) -> float:
        """Return the milliseconds of CPU that all threads of the server have used."""
        spent = 0
        for path in glob.glob(f"/proc/{self.process.pid}/task/*/schedstat"):
            with open(path, encoding="ascii") as file:
                spent += int(file.read().split()[0])
        return spent / 1e6

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


def main() -> None:
    run = start("mcp")
    cold_start(run)
    calls(run)
    transport(run)
    many_states(run)
    tracing(run)
    run.finish()


def server(root: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", "mcp", "--root", root, "--toolset", "all"]


def first_list(command: list[str]) -> float:
    begin = time.perf_counter()
    client = Client(command)
    client.ask("tools/list", {})
    elapsed = time.perf_counter() - begin
    client.close()
    return elapsed


def cold_start(run: Run) -> None:
    """Time from the start of the process to the first tools/list answer; both servers take turns."""
    with folder() as root:
        ours, bare = [], []
        for _ in range(3 if run.quick else 9):
            ours.append(first_list(server(root)[:-2]))
            bare.append(first_list([sys.executable, "-c", BARE]))
    ratio = statistics.median(ours) / statistics.median(bare)
    detail = f"{statistics.median(ours) * 1000:.0f} ms against {statistics.median(bare) * 1000:.0f} ms"
    run.add("cold start to first tools/list / bare server of the SDK", ratio, "x", 1.3, detail=detail)


def calls(run: Run) -> None:
    """createState over stdio, against the same durable write in one process."""
    count = 50 if run.quick else 300
    with folder() as root:
        client = Client(server(root))
        client.call("listWorkspaces", {})
        times = [timed(lambda n=n: client.call("createState", STATE | {"name": f"S{n}"})) * 1000 for n in range(count)]  # type: ignore[misc]
        reads = [timed(lambda: client.call("loadState", {"name": "S1"})) * 1000 for _ in range(count)]
        for number in range(1_000 - count):
            client.call("remember", {"text": f"fact {number}", "kind": "fact", "key": f"k{number}"})
        client.call("recall", {"query": "fact"})
        megabytes = resident(client.process.pid)
        client.close()
        with holdfast.open(root) as memory:
            fields = {"activeTask": "t", "activeFiles": ["a"], "nextSteps": ["b"]}
            write = [
                timed(lambda n=n: memory.put("state", "text " * 50, title=f"W{n}", fields=fields)) * 1000  # type: ignore[misc]
                for n in range(count)
            ]
    above = statistics.median(times) - statistics.median(write)
    detail = f"{statistics.median(times):.2f} ms, of which the durable write {statistics.median(write):.2f} ms"
    run.add("createState over stdio, above the durable write", above, "ms", 10, detail=detail)
    run.add("createState over stdio, p95", percentile(times, 0.95), "ms")
    run.add("loadState over stdio", statistics.median(reads), "ms", 20)
    run.add("resident memory with 1,000 records", megabytes, "MB", 100)


def transport(run: Run) -> None:
    """The same calls in one process and over stdio, in alternating blocks: the median time, and CPU of the server."""
    size, blocks = (20, 5) if run.quick else (100, 10)
    with folder() as root, folder() as other, holdfast.open(root, watch=True) as memory:
        client = Client(server(other))
        for call in (memory.call, client.call):
            call("createState", STATE | {"name": "One"})
            call("remember", {"text": "The token refresh logic runs every hour.", "title": "Tokens"})

        def block(work: Callable[[], Any], cpu: Callable[[], float]) -> tuple[float, float]:
            before = cpu()
            median = median_of(size, work) * 1000
            return median, (cpu() - before) / size

        for tool, given in (("loadState", {"name": "One"}), ("recall", {"query": "token refresh logic"})):
            here = functools.partial(lambda tool, given: memory.call(tool, dict(given)), tool, given)
            there = functools.partial(client.call, tool, given)
            rows = [
                (*block(here, lambda: time.process_time() * 1000), *block(there, client.cpu)) for _ in range(blocks + 1)
            ]
            near, near_cpu, far, far_cpu = (statistics.median(column) for column in zip(*rows[1:], strict=True))
            what, detail = f"{tool} over stdio, above one process", f"{far:.2f} ms against {near:.2f} ms"
            run.add(f"{what}, p50", far - near, "ms", 1, detail=detail)
            detail = f"{far_cpu:.2f} ms against {near_cpu:.2f} ms"
            run.add(f"{what}, CPU", far_cpu - near_cpu, "ms", 1, detail=detail)
        client.close()


def many_states(run: Run) -> None:
    """Listing and loading among many states."""
    count = 1_000 if run.quick else 10_000
    with folder() as root:
        with holdfast.open(root) as memory:
            for number in range(count):
                memory.states.create(memory.scopes.resolve(None), f"State {number}", STATE)
        time.sleep(2.1)
        client = Client(server(root))
        first = timed(lambda: client.call("listStates", {})) * 1000
        listed = client.call("listStates", {})["structuredContent"]["data"]
        assert len(listed) == count
        run.add(f"listStates, {count:,} states, first call", first, "ms")
        run.add(f"listStates, {count:,} states", median_of(15, lambda: client.call("listStates", {})) * 1000, "ms", 20)
        run.add(
            f"loadState, {count:,} states",
            median_of(15, lambda: client.call("loadState", {"name": "State 7"})) * 1000,
            "ms",
            20,
        )
        client.close()


def tracing(run: Run) -> None:
    """The cost of the trace of a call."""
    with folder() as root, holdfast.open(root) as memory:
        params = {"name": "x", "text": "words " * 40}
        trace = Trace(tool="createState", workspace="default", session="s", params=params, result="done", ms=1.0)
        memory.traces.add(trace)
        run.add("a trace", timed(lambda: memory.traces.add(trace), 500) * 1000, "ms", 1)


def resident(pid: int) -> float:
    with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


if __name__ == "__main__":
    main()
