"""A real `holdfast serve` for the tests: a process, a port, and clients with tokens."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2

import fork_server

HOLDFAST = [sys.executable, "-m", "holdfast"]
VERSION = "2026-07-28"
_META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "tester", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Team:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url
        self.base = url.removesuffix("/mcp")
        self.said: queue.Queue[str] = queue.Queue()
        self.log: list[str] = []

    def get(self, path: str, **headers: str) -> httpx2.Response:
        return httpx2.get(self.base + path, headers=headers, timeout=60)

    def ask(self, token: str, method: str, params: dict[str, Any], **headers: str) -> httpx2.Response:
        sent = {
            "Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": VERSION, "Mcp-Method": method, **headers,
        }  # fmt: skip
        for field in ("name", "uri"):
            if field in params:
                sent.setdefault("Mcp-Name", params[field])
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params | {"_meta": _META}}
        return httpx2.post(self.url, headers=sent, json=body, timeout=60)

    def call(self, token: str, tool: str, given: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """Call a tool and return its reply."""
        answer = self.ask(token, "tools/call", {"name": tool, "arguments": (given or {}) | more})
        assert answer.status_code == 200, (answer.status_code, answer.text)
        reply: dict[str, Any] = answer.json()["result"]["structuredContent"]
        return reply

    def text(self, token: str, tool: str, **given: Any) -> str:
        """Call a tool and return the text for the model."""
        answer = self.ask(token, "tools/call", {"name": tool, "arguments": given})
        assert answer.status_code == 200, (answer.status_code, answer.text)
        return str(answer.json()["result"]["content"][0]["text"])

    def lines(self) -> list[dict[str, Any]]:
        """Return the log lines so far, as data."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.log.append(self.said.get_nowait())
        return [json.loads(line) for line in self.log if line.startswith("{")]


def _listen(process: subprocess.Popen[str], team: Team) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        team.said.put(line)


@contextlib.contextmanager
def serving(store: str, *options: str, **env: str) -> Iterator[Team]:
    """Run `holdfast serve` on a store; at the end it must exit cleanly."""
    command = [*HOLDFAST, "serve", "--store", store, "--port", "0", "--log", "json", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | env) as process:
        assert process.stderr is not None
        first: list[str] = []
        while not (first and first[-1].startswith("Holdfast listens on ")):
            first.append(process.stderr.readline())
            assert first[-1], "".join(first)
        team = Team(process, first[-1].strip().removeprefix("Holdfast listens on "))
        listener = threading.Thread(target=_listen, args=(process, team), daemon=True)
        listener.start()
        try:
            yield team
        finally:
            process.send_signal(signal.SIGTERM)
            ended = process.wait(60)
            listener.join(10)
            team.lines()
        assert ended == 0
        assert "Traceback" not in "".join(team.log), "".join(team.log)


def holdfast(*arguments: str, fails: bool = False) -> str:
    """Run a command and return its output; with `fails` it must fail, and its error is returned."""
    done = fork_server.run([*HOLDFAST, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode != 0) is fails, (done.stdout, done.stderr)
    return str(done.stderr if fails else done.stdout.strip())


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until a condition is true; how long that takes is not tested."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.05)
