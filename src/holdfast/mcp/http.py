"""MCP over streamable HTTP: on loopback unless a host is named, and behind a token even there.

Every request is checked before anything else looks at it: how many came, Host and Origin, so that no web page can
reach the memory through a browser, then the token, then the length of the body. What the token allows, to read or to
write too, is checked for each call.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

import anyio.to_thread
import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.door import Memory
from holdfast.errors import HoldfastError, Unavailable
from holdfast.mcp import opening, server
from holdfast.mcp.limiting import Bucket, Limits, Patience, body, replay
from holdfast.mcp.tokens import token_for
from holdfast.tools.context import Context

HOST = "127.0.0.1"
PORT = 8765
PATH = "/mcp"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_LONGEST_ID = 100
_LONGEST_LENGTH = 15
READ, WRITE = "read", "write"
Tokens = Mapping[str, str]
"""Each token with what it allows: READ, or WRITE, which is to read too."""


def main(
    root: str, toolset: str = "core", defaults: Context | None = None, host: str = HOST, port: int = PORT,
    limits: Limits | None = None,
) -> None:  # fmt: skip
    """Serve the memory in a folder until the process is told to end."""
    (token, path), (reading, reading_path) = token_for(root), token_for(root, read_only=True)
    held = opening.at(root, defaults or Context())
    signal.signal(signal.SIGTERM, _leave)
    try:
        print(f"The token is in {path}", file=sys.stderr)
        print(f"A token that may only read is in {reading_path}", file=sys.stderr, flush=True)
        serve_http(held, toolset, host, port, {token: WRITE, reading: READ}, limits or Limits())
    finally:
        held.close()


def serve_http(
    memory: Memory | opening.Opening, toolset: str, host: str, port: int, tokens: Tokens, limits: Limits
) -> None:
    """Answer requests that bear one of the tokens."""
    app = application(memory, toolset, host, tokens, limits)
    with _listen(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}{PATH}"
        print(f"Holdfast listens on {address}", file=sys.stderr, flush=True)
        for name in ("mcp", "uvicorn.error"):  # who is refused is told so; nobody else's text goes to our terminal
            logging.getLogger(name).setLevel(logging.ERROR)
        config = uvicorn.Config(
            app, lifespan="on", ws="none", log_config=None, access_log=False, server_header=False,
            http=type("Connection", (Patience,), {"limits": limits}), timeout_graceful_shutdown=5,
        )  # fmt: skip
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def application(memory: Memory | opening.Opening, toolset: str, host: str, tokens: Tokens, limits: Limits) -> ASGIApp:
    """Return the ASGI application, with its guard in front."""
    security = TransportSecuritySettings(
        allowed_hosts=[form for name in _names(host) for form in (name, f"{name}:*")],
        allowed_origins=[form for name in _names(host) for form in (f"http://{name}", f"http://{name}:*")],
    )
    app = server.build(memory, toolset, _connection, _reads_only).streamable_http_app(
        streamable_http_path=PATH, json_response=True, max_request_body_size=server.MAX_MESSAGE,
        transport_security=security, host=host,
    )  # fmt: skip
    held = memory if isinstance(memory, opening.Opening) else opening.Opening(lambda: memory)
    return Guard(app, tokens, security, held, limits)


def _refused(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(text, status_code=status, headers={"Connection": "close"} | dict(headers or {}))


class Guard:
    """Lets a request through that comes from the right place and bears a token; ends the run of who takes leave."""

    def __init__(
        self, app: ASGIApp, tokens: Tokens, security: TransportSecuritySettings, memory: opening.Opening, limits: Limits
    ) -> None:
        self._app = app
        self._memory = memory
        self._limits = limits
        self._strangers = Bucket(limits.strangers, limits.burst)
        self._bearers = [_Bearer(token.encode(), scope, limits) for token, scope in tokens.items()]
        self._security = TransportSecurityMiddleware(security)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        bearer = self._bearer(request)
        refusal = await self._refusal(request, bearer)
        if refusal or bearer is None:
            assert refusal is not None  # who bears no token is always refused
            if bearer and refusal.status_code == 413:
                await body(receive, self._limits.body_seconds, server.MAX_MESSAGE)
            await refusal(scope, receive, send)
            return
        came = await body(receive, self._limits.body_seconds, server.MAX_MESSAGE)
        if isinstance(came, int):
            await _refused(came, "The body is too slow or too large")(scope, receive, send)
        elif came[-1]["type"] != "http.disconnect":  # else nobody waits for an answer
            scope["user"] = bearer.user
            if scope["method"] == "DELETE" and bearer.scope == WRITE:
                await anyio.to_thread.run_sync(self._end_run, _run_of(request.headers.get("mcp-session-id")))
            await self._app(scope, replay(came, receive), send)

    def _end_run(self, run: str) -> None:
        """End what a connection noted for itself; a connection that there never was has noted nothing."""
        if run:
            with contextlib.suppress(HoldfastError):
                self._memory().compartments.close(run)

    def _bearer(self, request: Request) -> _Bearer | None:
        """Return whose token a request bears; every token is compared, so that the time tells nothing."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        sent = given.strip().encode() if scheme.lower() == "bearer" else b""
        found = [bearer for bearer in self._bearers if hmac.compare_digest(sent, bearer.token)]
        return found[0] if found else None

    async def _refusal(self, request: Request, bearer: _Bearer | None) -> Response | None:
        if not (bearer.bucket if bearer else self._strangers).take():
            return _refused(429, "Too many requests", {"Retry-After": "1"})
        if refusal := await self._security.validate_request(request):
            return refusal
        if not bearer:
            return Response("Unauthorized", status_code=401, headers={"WWW-Authenticate": "Bearer"})
        declared = request.headers.get("content-length", "0")
        if len(declared) > _LONGEST_LENGTH or int(declared) > server.MAX_MESSAGE:
            return _refused(413, "The body is too large")
        return None


class _Bearer:
    """A token, what it allows, and how much is left of it for now."""

    def __init__(self, token: bytes, scope: str, limits: Limits) -> None:
        self.token = token
        self.scope = scope
        self.bucket = Bucket(limits.requests, limits.burst)
        self.user = AuthenticatedUser(AccessToken(token="", client_id=scope, scopes=[scope]))
        """By this the SDK keeps the sessions of one token from the other."""


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


def _reads_only(request: server.Request) -> bool:
    """May the bearer of the token that a request came with only read? One that nobody let through may not even that."""
    user = request.request.scope.get("user") if request.request else None
    return not isinstance(user, AuthenticatedUser) or WRITE not in user.scopes


def _run_of(identifier: str | None) -> str:
    return f"http-{identifier[:_LONGEST_ID]}" if identifier else ""


def _leave(*_: Any) -> None:
    raise SystemExit(0)
