"""MCP over streamable HTTP: on loopback unless a host is named, and behind a token even there.

Every request is checked before anything else looks at it: Host and Origin, so that no web page can reach the memory
through a browser, then the token. The token lies in a file that only its owner can read, outside the memory root,
which may be shared.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import signal
import socket
import stat
import sys
from typing import Any

import anyio.to_thread
import uvicorn
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.door import Memory
from holdfast.errors import Damaged, HoldfastError, Unavailable
from holdfast.mcp import opening, server
from holdfast.tools.context import Context

HOST = "127.0.0.1"
PORT = 8765
PATH = "/mcp"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_MOST_AT_ONCE = 64
_LONGEST_ID = 100


def main(root: str, toolset: str = "core", defaults: Context | None = None, host: str = HOST, port: int = PORT) -> None:
    """Serve the memory in a folder until the process is told to end."""
    token, path = token_for(root)
    held = opening.at(root, defaults or Context())
    signal.signal(signal.SIGTERM, _leave)
    try:
        print(f"The token is in {path}", file=sys.stderr, flush=True)
        serve_http(held, toolset, host, port, token)
    finally:
        held.close()


def serve_http(memory: Memory | opening.Opening, toolset: str, host: str, port: int, token: str) -> None:
    """Answer requests that bear the token."""
    app = application(memory, toolset, host, token)
    with _listen(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}{PATH}"
        print(f"Holdfast listens on {address}", file=sys.stderr, flush=True)
        config = uvicorn.Config(
            app, lifespan="on", ws="none", log_config=None, access_log=False, server_header=False,
            limit_concurrency=_MOST_AT_ONCE, timeout_graceful_shutdown=5,
        )  # fmt: skip
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def application(memory: Memory | opening.Opening, toolset: str, host: str, token: str) -> ASGIApp:
    """Return the ASGI application, with its guard in front."""
    security = TransportSecuritySettings(
        allowed_hosts=[form for name in _names(host) for form in (name, f"{name}:*")],
        allowed_origins=[form for name in _names(host) for form in (f"http://{name}", f"http://{name}:*")],
    )
    app = server.build(memory, toolset, _connection).streamable_http_app(
        streamable_http_path=PATH, json_response=True, max_request_body_size=server.MAX_MESSAGE,
        transport_security=security, host=host,
    )  # fmt: skip
    held = memory if isinstance(memory, opening.Opening) else opening.Opening(lambda: memory)
    return Guard(app, token, security, held)


class Guard:
    """Lets a request through that comes from the right place and bears the token; ends the run of who takes leave."""

    def __init__(self, app: ASGIApp, token: str, security: TransportSecuritySettings, memory: opening.Opening) -> None:
        self._app = app
        self._memory = memory
        self._token = token.encode()
        self._security = TransportSecurityMiddleware(security)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None if scope["type"] == "lifespan" else await self._refusal(Request(scope))
        if refusal is None and scope.get("method") == "DELETE":
            await anyio.to_thread.run_sync(self._end_run, _run_of(Request(scope).headers.get("mcp-session-id")))
        await (refusal or self._app)(scope, receive, send)

    def _end_run(self, run: str) -> None:
        """End what a connection noted for itself; a connection that there never was has noted nothing."""
        if run:
            with contextlib.suppress(HoldfastError):
                self._memory().compartments.close(run)

    async def _refusal(self, request: Request) -> Response | None:
        if refusal := await self._security.validate_request(request):
            return refusal
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token):
            return Response("Unauthorized", status_code=401, headers={"WWW-Authenticate": "Bearer"})
        return None


def token_for(root: str) -> tuple[str, str]:
    """Return the token of a memory root and the file that holds it, made at first use."""
    location = os.path.realpath(os.path.expanduser(root))
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    folder = os.path.join(config, "holdfast", "tokens")
    path = os.path.join(folder, hashlib.sha256(os.fsencode(location)).hexdigest()[:16])
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            _make(path)
        return _read(path), path
    except OSError as error:
        raise Unavailable(f"The token file {path}: {error.strerror}.", "Check its permissions.") from None


def _make(path: str) -> None:
    """Write a new token under its final name, whole or not at all; an existing one stays."""
    if os.path.lexists(path):
        return
    unfinished = f"{path}.{secrets.token_hex(8)}"
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, secrets.token_urlsafe(32).encode() + b"\n")
        os.fsync(fd)
        os.link(unfinished, path)
    finally:
        os.close(fd)
        os.unlink(unfinished)


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise Unavailable(f"The token file {path} is not a file of yours.", "Remove it, and start again.")
        if found.st_mode & 0o077:
            raise Unavailable(f"The token file {path} can be read by others.", f"Run: chmod 600 {path}")
        token = os.read(fd, 1000).decode("ascii", "replace").strip()
    finally:
        os.close(fd)
    if len(token) < 16 or not token.isascii():
        raise Damaged(f"The token file {path} holds no token.", "Remove it, and start again.")
    return token


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Unavailable(f"Cannot listen on {host}, port {port}: {reason}.", "Use another --port or --host.") from None


def _names(host: str) -> list[str]:
    """Return the names under which a server that listens on this host is called."""
    own = [f"[{host}]" if ":" in host else host]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - the owner asked for all interfaces
        own = [socket.gethostname(), socket.getfqdn()]
    return list(dict.fromkeys([*_LOOPBACK, *own]))


def _connection(request: server.Request) -> str:
    """Return the name of the connection that a request came over; the stateless protocol has none."""
    return _run_of(request.request.headers.get("mcp-session-id") if request.request else None)


def _run_of(identifier: str | None) -> str:
    return f"http-{identifier[:_LONGEST_ID]}" if identifier else ""


def _leave(*_: Any) -> None:
    raise SystemExit(0)
