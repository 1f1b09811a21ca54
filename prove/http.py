"""HTTP clients that must get nothing: strangers, web pages, read-only tokens that write, floods.

Each must be refused without learning anything, and a good client must be answered all the while.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import holdfast
from holdfast.mcp.auth import RateLimits
from holdfast.mcp.server import MAX_MESSAGE
from holdfast.roots import make_root
from holdfast.tools import toolsets
from prove import serving
from prove.harness import Row, Run
from prove.hostile import Tally, arguments, contents
from prove.serving import HELLO, Http, call, frame

_SECRET = "the-name-of-a-workspace"
_FREE = RateLimits(requests=1e6, strangers=1e6)
_TIGHT = RateLimits(requests=20, strangers=5, burst=2)


def campaign(run: Run) -> Iterator[Row]:
    with run.folder("http") as base:
        root = os.path.join(base, "root")
        make_root(root)
        with holdfast.open(root) as memory:
            memory.put("overview", "what nobody else may know", title=_SECRET)
        with serving.http(run, root, _FREE) as server:
            for fault, attack in _FREELY.items():
                yield _row(fault, attack, run, server, root)
        yield _ended("the first server", server)
        with serving.http(run, root, _TIGHT) as server:
            for fault, attack in _TIGHTLY.items():
                yield _row(fault, attack, run, server, root)
        yield _ended("the second server", server)


def _row(fault: str, attack: Callable[[Run, Http, str, Tally], None], run: Run, server: Http, root: str) -> Row:
    tally = Tally()
    attack(run, server, root, tally)
    tally.check(server.process.poll() is None, f"the server is gone: {''.join(server.said)[-500:]}")
    return tally.row(f"http: {fault}")


def _ended(what: str, server: Http) -> Row:
    tally = Tally(1, 1)
    said = "".join(server.said)
    tally.check(server.process.poll() == 0, f"{what} ended with {server.process.poll()}")
    tally.check("Traceback" not in said, f"{what} printed: {said[-800:]}")
    tally.check(server.token not in said and server.reading not in said, f"{what} printed a token")
    return tally.row(f"http: {what} ends cleanly")


# access


def _matrix(run: Run, server: Http, _root: str, tally: Tally) -> None:
    port = server.port
    hosts = {f"127.0.0.1:{port}": 0, f"localhost:{port}": 0, "evil.example": 421, f"evil.example:{port}": 421, f"127.0.0.1.evil:{port}": 421,
             f"localhost.evil:{port}": 421, "[::1].evil": 421, "0.0.0.0": 421, "": 421, "127.0.0.1@evil": 421, f"xn--localhost:{port}": 421}  # fmt: skip
    origins = {None: 0, f"http://127.0.0.1:{port}": 0, f"http://localhost:{port}": 0, "http://evil.example": 403, "null": 403, "file://": 403,
               "https://localhost.evil": 403, "http://localhost.evil.example": 403, "http://127.0.0.1.evil": 403, "chrome-extension://x": 403,
               "HTTP://LOCALHOST": 403}  # fmt: skip
    tokens = {f"Bearer {server.token}": 0, None: 401, "": 401, "Bearer": 401, "Bearer ": 401, f"Bearer {server.token}x": 401,
              f"Bearer {server.token[:-1]}": 401, f"Basic {server.token}": 401, server.token: 401, "Bearer null": 401, "Bearer é": 401,
              f"Bearer {server.token.swapcase()}": 401}  # fmt: skip
    places = (
        "/mcp",
        "/",
        "/mcp/",
        "/.well-known/oauth-protected-resource",
        "/../etc/passwd",
        "/%2e%2e/x",
        f"/{_SECRET}",
        "//mcp",
    )
    methods = ("POST", "GET", "DELETE", "OPTIONS", "PUT", "PATCH", "TRACE")
    cases = list(itertools.product(hosts, origins, tokens))
    chance = run.random("http matrix")
    chance.shuffle(cases)
    for number, (host, origin, token) in enumerate(cases[: run.size(1_400, 150)]):
        wanted = hosts[host] or origins[origin] or tokens[token]
        method, path = (chance.choice(methods), chance.choice(places)) if wanted else ("POST", "/mcp")
        answer = server.ask(frame(1, "initialize", HELLO), method, path, Host=host, Origin=origin, Authorization=token)
        tally.answered()
        expected = wanted or 200
        given = f"{method} {path} Host {host!r} Origin {origin!r} Authorization {token!r}"
        tally.check(answer.status == expected, f"{given}: {answer.status} instead of {expected}")
        tally.check(not wanted or _tells_nothing(answer), f"{given}: tells {answer.body[:200]!r} {answer.headers}")
        if tally.lost > 5:
            return
        if number % 100 == 99:
            tally.check(server.good(), f"no answer to a good request after {number}")


def _tells_nothing(answer: serving.Answer) -> bool:
    said = answer.body.lower() + json.dumps(answer.headers).lower().encode()
    words = (_SECRET, "holdfast", "uvicorn", "starlette", "tool", "workspace", "session", "access-control-allow")
    return len(answer.body) < 100 and not any(word.encode() in said for word in words)


# rights


def _reading(run: Run, server: Http, root: str, tally: Tally) -> None:
    """Call every tool with the read-only token, directly and through useTools: nothing may change."""
    token = f"Bearer {server.reading}"
    before = _kept(root)
    tools = list(toolsets.registry().tools.values())
    for tool in tools[:: run.size(1, 3)]:
        params = arguments(tool.schema)
        context = {"workspaceId": "default", "sessionId": "s", "runId": "r"}
        each = {"agent": tool.agent, "tool": tool.name, "params": params}
        ways: list[tuple[str, dict[str, Any]]] = [
            (tool.name, params | ({} if "context" in tool.params else {"context": context})),
            ("useTools", {"context": context, "calls": [each]}),
            ("useTools", {"context": context, "calls": [each, each], "strategy": "parallel"}),
        ]
        for version, (name, given) in itertools.product(("2025-11-25", "2026-07-28"), ways):
            result = _call(server, version, token, name, given)
            tally.answered()
            refused = result.get("isError") is True
            tally.check(refused or tool.harmless, f"{tool.name} by {name} in {version} was done: {str(result)[:200]}")
    for version in ("2025-11-25", "2026-07-28"):
        listed = _post(server, version, token, "tools/list", {}).get("tools", [])
        names = {each["name"] for each in listed}
        tally.check(bool(names), f"no tools are listed in {version}")
        tally.check(all(tool.harmless for tool in tools if tool.name in names), f"tools that write are listed: {names}")
    tally.check(_kept(root) == before, "something was written by a token that may only read")
    written = _call(server, "2025-11-25", f"Bearer {server.token}", "remember", {"text": "kept", "title": "Kept"})
    tally.check(written.get("isError") is False, f"the other token does not write: {written}")


def _kept(root: str) -> dict[str, Any]:
    """Return all stored text, except traces and derived files."""
    return {
        path: held for path, held in contents(root).items() if "traces" not in path and not path.startswith(".holdfast")
    }


def _call(server: Http, version: str, token: str, tool: str, given: dict[str, Any]) -> dict[str, Any]:
    return _post(server, version, token, "tools/call", {"name": tool, "arguments": given})


def _post(server: Http, version: str, token: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Send a request as clients of either era do; return the result."""
    more: dict[str, str | None] = {"Authorization": token, "MCP_Protocol_Version": version}
    if version == "2025-11-25":
        begun = server.ask(frame(0, "initialize", HELLO), **more)
        more["Mcp_Session_Id"] = begun.headers.get("mcp-session-id", "")
    else:
        more |= {"Mcp_Method": method, "Mcp_Name": params.get("name")}
        about = {"protocolVersion": version, "clientInfo": {"name": "prove", "version": "1"}, "clientCapabilities": {}}
        params = params | {"_meta": {f"io.modelcontextprotocol/{name}": value for name, value in about.items()}}
    answer = server.ask(frame(1, method, params), **more)
    with contextlib.suppress(ValueError):
        result = json.loads(answer.body).get("result")
        return result if isinstance(result, dict) else {"isError": True, "said": answer.body.decode()}
    return {"isError": True, "status": answer.status}


def _sessions(_run: Run, server: Http, _root: str, tally: Tally) -> None:
    """A session belongs to the token that began it: for another token it does not exist."""
    begun = server.ask(frame(0, "initialize", HELLO)).headers["mcp-session-id"]
    for method in ("POST", "GET", "DELETE"):
        answer = server.ask(
            frame(1, "tools/list", {}), method, Authorization=f"Bearer {server.reading}", Mcp_Session_Id=begun
        )
        tally.answered()
        tally.check(answer.status == 404, f"{method} in the session of the other token: {answer.status}")
    answer = server.ask(frame(1, "tools/list", {}), Mcp_Session_Id=begun)
    tally.check(answer.status == 200, f"the session is gone: {answer.status}")


# sizes and rates


def _bodies(_run: Run, server: Http, _root: str, tally: Tally) -> None:
    head = "\r\n".join(f"{name}: {value}" for name, value in server.head().items())
    start = f"POST /mcp HTTP/1.1\r\n{head}\r\nConnection: close\r\n".encode()
    large = frame(1, "tools/call", {"name": "recall", "arguments": {"query": "x" * MAX_MESSAGE}})
    chunks = b"".join(
        b"10000\r\n" + large[at : at + 0x10000].ljust(0x10000) + b"\r\n" for at in range(0, len(large), 0x10000)
    )
    cases: dict[str, tuple[bytes, tuple[int, ...]]] = {
        "too large": (b"Content-Length: %d\r\n\r\n" % len(large) + large, (413,)),
        "too large in chunks": (b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n", (413,)),
        "said to be huge": (b"Content-Length: 99999999999\r\n\r\n{}", (413,)),
        "said to be beyond all numbers": (b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\n{}", (400, 413)),
        "a negative length": (b"Content-Length: -1\r\n\r\n{}", (400,)),
        "two lengths": (b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", (400,)),
        "length and chunks": (b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", (400, 406, 200)),
        "a bad chunk": (b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", (400, 0)),
        "a huge chunk": (b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}", (400, 408, 413, 0)),
        "a head of a megabyte": (b"X: " + b"x" * (1 << 20) + b"\r\n\r\n", (400, 431, 0)),
        "a thousand headers": (b"".join(b"X%d: x\r\n" % n for n in range(10_000)) + b"\r\n", (400, 431, 0)),
        "a header in two lines": (b"X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}", (400,)),
        "a NUL in a header": (b"X: a\0b\r\nContent-Length: 2\r\n\r\n{}", (400,)),
        "a wrong kind of text": (b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00", (400, 415)),
    }  # fmt: skip
    for name, (rest, allowed) in cases.items():
        half = name in ("a huge chunk", "a bad chunk")
        answer = server.raw(start + rest, half=half)
        tally.answered()
        tally.check(answer.status in allowed, f"{name}: {answer.status} {answer.body[:100]!r}")
        tally.check(server.good(), f"no answer to a good request after {name}")
    for line in (
        b"\r\n" * 1_000,
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\xff" * 100_000,
    ):
        answer = server.raw(line, half=True)
        tally.answered()
        tally.check(answer.status < 500, f"{line[:40]!r}: {answer.status}")
    tally.check(server.good(), "no answer to a good request after garbage")


def _rates(_run: Run, server: Http, _root: str, tally: Tally) -> None:
    """Send more requests than are answered: first those of strangers, which must not block tokens, then each token's."""
    seen = {_status(server, "Bearer wrong", tally) for _ in range(60)}
    tally.check(seen == {401, 429}, f"strangers got {seen}")
    tally.check(server.good(), "strangers kept the good client out")
    seen = {_status(server, f"Bearer {server.token}", tally) for _ in range(200)}
    tally.check(429 in seen and 404 in seen, f"the token got {seen}")
    tally.check(_status(server, f"Bearer {server.reading}", tally) == 404, "one token used up what the other one has")
    waiting = threading.Event()
    served = any(server.good() or waiting.wait(0.2) for _ in range(200))
    tally.check(served, "the token is never served again")


def _flood(run: Run, server: Http, root: str, tally: Tally) -> None:
    """Flood the server without a valid token, while tokens that it has not seen yet send their first request."""
    code = "import sys; from holdfast.mcp.auth import issue\nfor n in range(int(sys.argv[2])): print(issue(sys.argv[1], f'flood-{n}')[1])"
    out, _ = run.worker(code, root, run.size(40, 8), env=serving.environment(root)).communicate()
    stop, sent = threading.Event(), itertools.count()

    def stranger(number: int) -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                server.ask(frame(1, "initialize", HELLO), Authorization=f"Bearer wrong-{number}-{next(sent)}")

    strangers = [threading.Thread(target=stranger, args=[number]) for number in range(4)]
    for each in strangers:
        each.start()
    try:
        for _ in range(100):
            if server.ask(b"", "GET", "/nothing", Authorization="Bearer wrong").status == 429:
                break
        for token in out.split():
            answer = server.ask(frame(1, "initialize", HELLO), Authorization=f"Bearer {token}")
            tally.answered()
            tally.check(answer.status == 200, f"a valid token got {answer.status} beside a flood")
        tally.check(server.ask(b"", "GET", "/readyz").status == 200, "the server is not ready beside a flood")
    finally:
        stop.set()
        for each in strangers:
            each.join()
    tally.injected += next(sent)


def _status(server: Http, token: str, tally: Tally) -> int:
    tally.answered()
    answer = server.ask(b"", "GET", "/nothing", Authorization=token)
    tally.check(answer.status == 404 or _tells_nothing(answer), f"{answer.status} tells {answer.body[:100]!r}")
    return answer.status


# abandoned connections


def _comes_in(server: Http) -> bool:
    """Is a good client answered? It may have to repeat a request whose connection was cut off."""
    return any(server.good() or threading.Event().wait(0.3) for _ in range(20))


def _half(run: Run, server: Http, _root: str, tally: Tally) -> None:
    """Connections that are closed in one direction, reset, or abandoned."""
    body = call(1, "listStates", {})
    head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.token}\r\nContent-Length: {len(body)}\r\n\r\n"
    whole = head.encode() + body
    chance = run.random("http half")
    for number in range(run.size(200, 20)):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), timeout=5) as wire:
            wire.sendall(whole[: chance.randrange(len(whole) + 1)])
            if number % 3 == 0:
                wire.shutdown(socket.SHUT_WR)
            elif number % 3 == 1:
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        tally.answered()
    tally.check(_comes_in(server), "the good client is kept out by half-closed connections")


_FREELY: dict[str, Callable[[Run, Http, str, Tally], None]] = {
    "Origin, Host, token, method and path": _matrix, "every tool with the token that only reads": _reading,
    "a session of another token": _sessions, "bodies and heads that are too large": _bodies,
}  # fmt: skip
_TIGHTLY: dict[str, Callable[[Run, Http, str, Tally], None]] = {
    "more requests than allowed": _rates, "a stranger's flood beside tokens that come for the first time": _flood,
    "half-closed and reset connections": _half,
}  # fmt: skip
