"""Messages of a faulty or hostile client, on standard input and over HTTP.

Good messages are cut, flipped, nested, retyped and doubled; whole lines are garbage or far too long. After every block
the server must answer a good request. Its output must contain only JSON, and `verify` must pass afterwards.
"""

from __future__ import annotations

import contextlib
import copy
import http.client
import json
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import holdfast
from holdfast.mcp.auth import RateLimits
from holdfast.roots import make_root
from holdfast.tools import toolsets
from prove import serving
from prove.harness import Row, Run
from prove.hostile import Tally, arguments

_BLOCK = 250
_FAST = RateLimits(requests=1e6, strangers=1e6)
_STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e308, 2**53, 2**63, 10**30, "", "x", "\0", "\U0001f600", [], [[]], {}, {"a": {}}, "2.0", "1.0", ["2.0"],
    "notifications/initialized", "tools/call", "../../etc/passwd", "x" * 5_000, [1] * 500,
)  # fmt: skip
_METHODS = (
    "ping", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "logging/setLevel", "completion/complete",
    "sampling/createMessage", "roots/list", "elicitation/create", "initialize", "tools/call", "notifications/cancelled", "server/discover",
    "notifications/progress", "notifications/roots/list_changed", "rpc.discover", "", "tools/CALL", "subscriptions/listen", "\0", "x" * 10_000,
)  # fmt: skip


def campaign(run: Run) -> Iterator[Row]:
    with run.folder("frames") as base:
        for door, whole, quick in (("stdio", 8_000, 400), ("http", 3_000, 150)):
            root = os.path.join(base, door)
            make_root(root)
            tally = Tally()
            _DOORS[door](run, root, tally, run.size(whole, quick))
            _sound(root, tally)
            yield tally.row(f"mutated messages: {door}")
        yield _long_lines(run, os.path.join(base, "long"))
        yield _left(run, os.path.join(base, "left"))


def _stdio(run: Run, root: str, tally: Tally, count: int) -> None:
    chance = run.random("frames stdio")
    with serving.stdio(run, root) as server:
        for start in range(0, count, _BLOCK):
            lines = [mutated(chance).replace(b"\n", b" ") for _ in range(_BLOCK)]
            tally.injected += _BLOCK
            with contextlib.suppress(OSError):
                server.send(*lines)
            if not server.good(f"good {start}"):
                tally.wrong(f"no answer to a good request after block {start // _BLOCK}; exit {server.process.poll()}")
                return
            tally.acknowledged += _BLOCK
        server.process.stdin and server.process.stdin.close()
        tally.check(server.process.wait(serving.PATIENCE) == 0, f"the server ended with {server.process.poll()}")
        said = server.process.stderr.read().decode("utf-8", "replace") if server.process.stderr else ""
        tally.check("Traceback" not in said, f"the server printed: {said[-500:]}")
        tally.check(not server.not_json, f"no JSON on standard output: {server.not_json[:3]}")


def _http(run: Run, root: str, tally: Tally, count: int) -> None:
    chance = run.random("frames http")
    versions = ("2025-11-25", "2026-07-28", "2024-11-05", "1999-01-01", "x" * 5_000, "")
    with serving.http(run, root, _FAST) as server:
        wire = http.client.HTTPConnection("127.0.0.1", server.port, timeout=serving.PATIENCE)
        for number in range(count):
            head = server.head(
                MCP_Protocol_Version=chance.choice(versions), Mcp_Method=chance.choice(("tools/call", "x"))
            )
            if chance.random() < 0.2:
                head["Mcp-Session-Id"] = chance.choice(
                    ("x", "0" * 32, "../x", "é".encode().decode("latin-1"), "x" * 3_000)
                )
            status = _post(wire, mutated(chance), head)
            tally.answered()
            tally.check(200 <= status < 500, f"status {status}")
            if number % _BLOCK == _BLOCK - 1 or number == count - 1:
                tally.check(server.good(), f"no answer to a good request after {number} messages")
        wire.close()
    tally.check("Traceback" not in "".join(server.said), f"the server printed: {''.join(server.said)[-800:]}")


def _post(wire: http.client.HTTPConnection, body: bytes, head: dict[str, str]) -> int:
    for last in (False, True):
        try:
            wire.request("POST", "/mcp", body, head)
            answer = wire.getresponse()
            answer.read()
            return answer.status
        except (OSError, http.client.HTTPException):
            wire.close()  # it was idle for too long, or refused before the body was sent
            if last:
                return 0
    return 0


_DOORS: dict[str, Callable[[Run, str, Tally, int], None]] = {"stdio": _stdio, "http": _http}


def _long_lines(run: Run, root: str) -> Row:
    make_root(root)
    tally = Tally()
    lines = [
        b'{"jsonrpc":"2.0","id":"long","method":"' + b"x" * (64 << 20) + b'"}',
        b"\xff" * (16 << 20),
        b"[" * (16 << 20),
        b'{"jsonrpc":"2.0","id":"long","method":"tools/call","params":{"name":"recall","arguments":{"query":"'
        + b"y" * (8 << 20),
    ]
    with serving.stdio(run, root) as server:
        for number, line in enumerate(lines[: run.size(len(lines), 2)]):
            tally.injected += 1
            server.send(line)
            if server.good(f"after {number}"):
                tally.acknowledged += 1
            else:
                tally.wrong(f"no answer after a line of {len(line) >> 20} MB")
                break
        size = _memory(server.process.pid)
        tally.check(size < 200, f"the server grew to {size} MB")
        tally.check(not server.not_json, f"no JSON on standard output: {server.not_json[:3]}")
    _sound(root, tally)
    return tally.row("lines of up to 64 MB: stdio")


def _memory(process: int) -> int:
    """Return the peak memory of a process in megabytes."""
    with open(f"/proc/{process}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("VmHWM"))


def _left(run: Run, root: str) -> Row:
    """Close the pipes during calls that write; each server must end, and acknowledged writes must exist."""
    make_root(root)
    tally = Tally()
    chance = run.random("frames left")
    for number in range(run.size(8, 1)):
        tally.injected += 1
        with serving.stdio(run, root) as server:
            calls = [
                serving.call(place, "remember", {"text": f"kept {number} {place}", "title": f"{number} {place}"})
                for place in range(30)
            ]
            with contextlib.suppress(OSError):
                server.send(*calls[: chance.randrange(1, 30)], calls[0][: chance.randrange(1, len(calls[0]))])
            for stream in (server.process.stdin, server.process.stdout)[: chance.choice((1, 2))]:
                with contextlib.suppress(OSError):
                    stream and stream.close()
            with contextlib.suppress(Exception):
                server.process.wait(serving.PATIENCE)
            tally.check(server.process.poll() == 0, f"a server that was left ended with {server.process.poll()}")
            tally.acknowledged += 1
    _sound(root, tally)
    return tally.row("pipes closed half way: stdio")


def _sound(root: str, tally: Tally) -> None:
    with holdfast.open(root) as memory:
        report = memory.verify()
        tally.check(report.sound, f"the store is not sound: {report.differences[:3]} {report.damage[:3]}")


def mutated(chance: random.Random) -> bytes:
    """Return a message that is nearly valid, or not at all."""
    message = _good(chance)
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        message = chance.choice(_CHANGES)(chance, message)
    if chance.random() < 0.1:
        message = _nest(chance, message)
    if chance.random() < 0.1:
        message = [message, *(_good(chance) for _ in range(chance.randrange(3)))]
    data = json.dumps(message, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    for _ in range(chance.choice((0, 0, 1, 2))):
        data = chance.choice(_DAMAGES)(chance, data)
    return data


def _good(chance: random.Random) -> Any:
    number = chance.choice((chance.randrange(10_000), "id", f"s{chance.randrange(10_000)}"))
    match chance.randrange(6):
        case 0:
            return {"jsonrpc": "2.0", "id": number, "method": "initialize", "params": copy.deepcopy(serving.HELLO)}
        case 1:
            return {
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"requestId": number, "reason": "x"},
            }
        case 2:
            return {"jsonrpc": "2.0", "id": number, "method": chance.choice(_METHODS), "params": {}}
        case 3:
            return {"jsonrpc": "2.0", "id": number, chance.choice(("result", "error")): {"code": 1, "message": "x"}}
        case _:
            tool = chance.choice(_TOOLS)
            params = {"name": tool.name, "arguments": arguments(tool.schema)}
            return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


_TOOLS = list(toolsets.registry().tools.values())


def _retype(chance: random.Random, message: Any) -> Any:
    """Replace any value with something strange."""
    message = copy.deepcopy(message)
    spots = list(_spots(message))
    if spots:
        holder, name = chance.choice(spots)
        holder[name] = chance.choice(_STRANGE)
    return message


def _drop(chance: random.Random, message: Any) -> Any:
    if isinstance(message, dict) and message:
        gone = chance.choice(list(message))
        return {name: value for name, value in message.items() if name != gone}
    return message


def _add(chance: random.Random, message: Any) -> Any:
    """Add a member that does not belong there: an id in a notification, a context, unknown names."""
    if not isinstance(message, dict):
        return message
    name = chance.choice(("id", "params", "result", "error", "_meta", "context", "x" * 300, "__proto__", "\0"))
    return message | {name: chance.choice(_STRANGE)}


def _nest(chance: random.Random, message: Any) -> Any:
    for _ in range(chance.choice((5, 100, 400))):
        message = {"params": message} if chance.random() < 0.5 else [message]
    return message


_CHANGES: tuple[Callable[[random.Random, Any], Any], ...] = (_retype, _retype, _retype, _drop, _add)


def _spots(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for name, inner in pairs:
        yield value, name
        yield from _spots(inner)


def _cut(chance: random.Random, data: bytes) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _flip(chance: random.Random, data: bytes) -> bytes:
    place = chance.randrange(len(data) or 1)
    return data[:place] + bytes([chance.randrange(256)]) + data[place + 1 :]


def _insert(chance: random.Random, data: bytes) -> bytes:
    place = chance.randrange(len(data) + 1)
    odd = chance.choice(
        (
            b"\xff\xfe",
            b"\xed\xa0\x80",
            b"\\ud800",
            b"\0",
            b"\r",
            b"\xef\xbb\xbf",
            b"[" * 20_000,
            b"9" * 20_000,
            b"NaN",
            b"//",
            b"1e999999",
        )
    )
    return data[:place] + odd + data[place:]


def _twice(chance: random.Random, data: bytes) -> bytes:
    return data + chance.choice((b"", b" ", b"\x1e", b",")) + data


_DAMAGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (_cut, _flip, _flip, _insert, _insert, _twice)
