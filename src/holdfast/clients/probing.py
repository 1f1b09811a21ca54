"""Asking an MCP server over standard input and output what tools it has, as a client does, without any library."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from typing import IO, Any

import msgspec

from holdfast.errors import Unavailable

_HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "holdfast-doctor", "version": "1"},
}


class Answer(msgspec.Struct, frozen=True):
    tools: list[str]
    seconds: float


def probe(command: list[str], seconds: float, root: str = "") -> Answer:
    """Start a server, ask for its tools, stop it; Unavailable when it does not answer in time.

    `root` is given to it where nobody sees it: an address may hold a password.
    """
    environment = os.environ | ({"HOLDFAST_ROOT": root} if root else {})
    begin = time.monotonic()
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, env=environment
            )
        except OSError as error:
            raise Unavailable(f"{command[0]} cannot be started: {error.strerror}.", "Check the path.") from None
        limit = threading.Timer(seconds, process.kill)
        limit.start()
        try:
            tools = _ask(process)
            return Answer(tools, time.monotonic() - begin)
        except (OSError, ValueError, KeyError, TypeError) as error:
            late = time.monotonic() - begin >= seconds
            why = f"no answer in {seconds:g} s" if late else _last_line(said) or str(error)
            raise Unavailable(f"The server does not answer: {why}.", f"Run it: {' '.join(command)}") from None
        finally:
            _stop(process)
            limit.cancel()


def _ask(process: subprocess.Popen[bytes]) -> list[str]:
    assert process.stdin and process.stdout  # both are pipes
    _send(process.stdin, {"id": 1, "method": "initialize", "params": _HELLO})
    _reply(process.stdout, 1)
    _send(process.stdin, {"method": "notifications/initialized"})
    _send(process.stdin, {"id": 2, "method": "tools/list", "params": {}})
    return [str(tool["name"]) for tool in _reply(process.stdout, 2)["tools"]]


def _send(pipe: IO[bytes], message: dict[str, Any]) -> None:
    pipe.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
    pipe.flush()


def _reply(pipe: IO[bytes], number: int) -> dict[str, Any]:
    """Return the result of a request; what the server says in between is passed over."""
    for line in pipe:
        message = json.loads(line)
        if message.get("id") == number:
            if "error" in message:
                raise ValueError(str(message["error"].get("message")))
            result: dict[str, Any] = message["result"]
            return result
    raise ValueError("it ended")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe, which ends a server; one that goes on is ended."""
    assert process.stdin and process.stdout  # both are pipes
    try:
        process.stdin.close()
        process.wait(2)
    except (OSError, subprocess.TimeoutExpired):
        process.kill()
        process.wait()
    process.stdout.close()


def _last_line(said: IO[bytes]) -> str:
    said.seek(0)
    lines = said.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300].rstrip(".") if lines else ""
