"""Servers to attack: real processes, without the removed defence."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.mcp.auth import RateLimits
from prove.harness import Run

PATIENCE = 60.0
"""Seconds after which a silent server counts as hanging."""
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "prove", "version": "1"}}


def frame(number: Any, method: str, params: Any = None) -> bytes:
    """Return a request as a client sends it."""
    message = {"jsonrpc": "2.0", "id": number, "method": method}
    return json.dumps(message | ({} if params is None else {"params": params})).encode()


def call(number: Any, tool: str, params: Any) -> bytes:
    return frame(number, "tools/call", {"name": tool, "arguments": params})


class Stdio:
    """A server on pipes, after its handshake; its messages are stored by id."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.not_json: list[bytes] = []
        self._said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        self._listener.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                stream and stream.close()

    def _listen(self) -> None:
        assert self.process.stdout
        with contextlib.suppress(ValueError):  # this side may be closed too
            for line in self.process.stdout:
                self._hear(line)
        self._said.put(None)

    def _hear(self, line: bytes) -> None:
        try:
            said = json.loads(line)
            self._said.put(said if isinstance(said, dict) else {})
        except ValueError:
            self.not_json.append(line[:200])

    def send(self, *lines: bytes) -> None:
        """Send lines; if the server does not read them, end it and raise."""
        assert self.process.stdin
        waiting = threading.Timer(PATIENCE, self.process.kill)
        waiting.start()
        try:
            for line in lines:
                self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()
        finally:
            waiting.cancel()

    def answer(self, number: Any) -> dict[str, Any]:
        """Return the answer to a request; {} if the server ended or stays silent."""
        with contextlib.suppress(queue.Empty):
            while (said := self._said.get(timeout=PATIENCE)) is not None:
                if said.get("id") == number:
                    return said
        return {}

    def good(self, number: Any) -> bool:
        """Is a good request answered?"""
        with contextlib.suppress(OSError):
            self.send(call(number, "listStates", {}))
            return self.answer(number).get("result", {}).get("isError") is False
        return False


@contextlib.contextmanager
def stdio(run: Run, root: str) -> Iterator[Stdio]:
    """A new server, after the handshake."""
    code = "import sys; from holdfast.mcp.stdio import main; main(sys.argv[1], 'all')"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "text": False, "env": environment(root)}
    process = run.worker(code, root, **pipes)
    server = Stdio(process)  # type: ignore[arg-type]  # these pipes carry bytes
    try:
        server.send(frame("hello", "initialize", HELLO), b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        server.answer("hello")
        yield server
    finally:
        with contextlib.suppress(OSError):
            process.stdin and process.stdin.close()
        _end(process)
        server.close()


def _end(process: subprocess.Popen[Any]) -> None:
    """Wait for a process that should end by itself."""
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def environment(root: str) -> dict[str, str]:
    """Return an environment in which tokens are stored beside the root, and no model is loaded."""
    return {**os.environ, "XDG_CONFIG_HOME": root + "-config", "HOLDFAST_SEARCH_EMBEDDER": "none"}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Http:
    """A server on its own port."""

    process: subprocess.Popen[str]
    port: int
    token: str
    reading: str
    said: list[str]

    def head(self, **more: str | None) -> dict[str, str]:
        """Return the headers of a good request, with some changed or removed."""
        usual: dict[str, str | None] = {
            "Host": f"127.0.0.1:{self.port}", "Authorization": f"Bearer {self.token}", "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }  # fmt: skip
        changed = usual | {name.replace("_", "-"): value for name, value in more.items()}
        return {name: value for name, value in changed.items() if value is not None}

    def raw(self, data: bytes, *, half: bool = False) -> Answer:
        """Send bytes on a new connection and read to its end."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as wire:
            with contextlib.suppress(OSError):
                wire.sendall(data)
                if half:
                    wire.shutdown(socket.SHUT_WR)
            return parsed(received(wire))

    def ask(self, body: bytes = b"", method: str = "POST", path: str = "/mcp", /, **more: str | None) -> Answer:
        head = self.head(**more) | {"Content-Length": str(len(body)), "Connection": "close"}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        return self.raw("\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body)

    def good(self) -> bool:
        """Is a good request answered?"""
        with contextlib.suppress(OSError):
            return self.ask(frame(1, "initialize", HELLO)).status == 200
        return False


def received(wire: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(OSError):
        while part := wire.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def parsed(data: bytes) -> Answer:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    status = first.split(" ")[1] if first.startswith("HTTP/1.1 ") else "0"
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Answer(int(status), headers, body)


@contextlib.contextmanager
def http(run: Run, root: str, limits: RateLimits, toolset: str = "all") -> Iterator[Http]:
    """A new server; at the end it gets SIGTERM and must exit."""
    code = (
        "import sys; from holdfast.mcp.http import main; from holdfast.mcp.auth import RateLimits\n"
        f"main(sys.argv[1], {toolset!r}, port=0, limits={limits!r})"
    )
    process = run.worker(code, root, stdout=subprocess.DEVNULL, env=environment(root))
    assert process.stderr
    said: list[str] = []
    listener: threading.Thread | None = None
    try:
        while "listens on" not in (said or [""])[-1]:
            said.append(process.stderr.readline())
            if not said[-1]:
                raise RuntimeError(f"the server did not start: {''.join(said)[-1000:]}")
        paths = [line.split(" is in ")[1].strip() for line in said if " is in " in line]
        port = int(said[-1].rpartition(":")[2].partition("/")[0])
        listener = threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True)
        listener.start()
        yield Http(process, port, _text(paths[0]), _text(paths[1]), said)
    finally:
        process.send_signal(signal.SIGTERM)
        _end(process)
        if listener:
            listener.join()
        process.stderr.close()


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read().strip()
