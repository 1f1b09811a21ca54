"""MCP over streamable HTTP: on loopback unless a host is named, and behind a token even there.

Every request is checked before anything else looks at it: how many came, Host and Origin, so that no web page can
reach the memory through a browser, then the token, then the length of the body. The token says which memory is meant,
all of it or one workspace, and whether it may be changed; that is checked for each call.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import socket
import sys
import time
from collections.abc import Mapping

import anyio.to_thread
import msgspec
import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import HoldfastError, Unavailable
from holdfast.mcp import callers, opening, pages, server
from holdfast.mcp.admitting import WRITE, Admission, Bearer, Tokens
from holdfast.mcp.callers import Caller
from holdfast.mcp.journal import Form, Journal
from holdfast.mcp.limiting import Bucket, Limits, Patience, body, replay
from holdfast.mcp.metrics import Metrics
from holdfast.mcp.pages import Pages
from holdfast.memory import Memory
from holdfast.tools.calling import Context

HOST = "127.0.0.1"
PORT = 8765
PATH = "/mcp"
GRACE = 8
"""Seconds that a server which is told to end gives to the requests that it is working on."""
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_LONGEST_ID = 100
_LONGEST_LENGTH = 15
_CALLER = "holdfast.caller"
_REQUEST = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


class Serving(msgspec.Struct, frozen=True):
    """How a server is to be run."""

    toolset: str = "core"
    host: str = HOST
    port: int = PORT
    limits: Limits = Limits()
    log: Form = "none"
    names: tuple[str, ...] = ()
    """Other names under which clients reach it, as through a proxy."""
    open_metrics: bool = False


def main(
    root: str, toolset: str = "core", defaults: Context | None = None, host: str = HOST, port: int = PORT,
    limits: Limits | None = None,
) -> None:  # fmt: skip
    """Serve the memory in a folder, with the two tokens that lie in files, until the process is told to end."""
    from holdfast.mcp.team import run

    run(root, Serving(toolset, host, port, limits or Limits()), defaults or Context(), fixed=True)


def serve_http(
    memory: Memory | opening.Opening, toolset: str, host: str, port: int, tokens: Tokens, limits: Limits
) -> None:
    """Answer requests to one memory that bear one of the tokens."""
    how = Serving(toolset, host, port, limits)
    admission = Admission(tokens, lambda reads_only: callers.alone(memory, reads_only=reads_only), limits)
    metrics, journal = Metrics(), Journal()
    serve(guarded(admission, how, metrics, journal), how, metrics, journal)


def serve(app: ASGIApp, how: Serving, metrics: Metrics, journal: Journal) -> None:
    """Listen, and answer until the process is told to end."""
    with _listen(how.host, how.port) as listener:
        shown = f"[{how.host}]" if ":" in how.host else how.host
        address = f"http://{shown}:{listener.getsockname()[1]}{PATH}"
        print(f"Holdfast listens on {address}", file=sys.stderr, flush=True)
        for name in ("mcp", "uvicorn.error"):  # who is refused is told so; nobody else's text goes to our terminal
            logging.getLogger(name).setLevel(logging.ERROR)
        connection = type("Connection", (Patience,), {"limits": how.limits, "count": staticmethod(metrics.connected)})
        config = uvicorn.Config(
            app, lifespan="on", ws="none", log_config=None, access_log=False, server_header=False,
            http=connection, timeout_graceful_shutdown=GRACE,
        )  # fmt: skip
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            pass
        finally:
            journal.info("stopped")


def guarded(
    admission: Admission, how: Serving, metrics: Metrics, journal: Journal, beside: Pages | None = None,
    told: server.Told = lambda _tool, _outcome, _seconds: None,
) -> ASGIApp:  # fmt: skip
    """Return the ASGI application, with its guard in front."""
    names = [*_names(how.host), *how.names]
    origins = [f"{scheme}{name}" for name in names for scheme in _schemes(name, how)]
    security = TransportSecuritySettings(
        allowed_hosts=[form for name in names for form in (name, f"{name}:*")],
        allowed_origins=[form for origin in origins for form in (origin, f"{origin}:*")],
    )
    app = server.build(_caller, how.toolset, _connection, told).streamable_http_app(
        streamable_http_path=PATH, json_response=True, max_request_body_size=server.MAX_MESSAGE,
        transport_security=security, host=how.host,
    )  # fmt: skip
    return Guard(app, admission, security, how.limits, Watch(metrics, journal, beside))


def _schemes(name: str, how: Serving) -> tuple[str, ...]:
    return ("http://", "https://") if name in how.names else ("http://",)


def _refused(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(text, status_code=status, headers={"Connection": "close"} | dict(headers or {}))


class Watch(msgspec.Struct, frozen=True):
    """Who is told of every request, and what is answered beside the protocol."""

    metrics: Metrics
    journal: Journal
    pages: Pages | None = None


class Guard:
    """Lets a request through that comes from the right place and bears a token; ends the run of who takes leave."""

    def __init__(
        self, app: ASGIApp, admission: Admission, security: TransportSecuritySettings, limits: Limits, watch: Watch
    ) -> None:
        self._app = app
        self._admission = admission
        self._limits = limits
        self._watch = watch
        self._strangers = Bucket(limits.strangers, limits.burst)
        self._security = TransportSecurityMiddleware(security)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        named = request.headers.get("x-request-id", "")
        identifier = named if _REQUEST.match(named) else secrets.token_hex(8)
        begin, status = time.perf_counter(), [0]

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", identifier.encode())]
            await send(message)

        try:
            await self._serve(request, receive, answer, identifier)
        finally:
            self._note(status[0], identifier, begin)

    def _note(self, status: int, identifier: str, begin: float) -> None:
        self._watch.metrics.answered(status)
        if status >= 400:
            spent = round((time.perf_counter() - begin) * 1000, 1)
            self._watch.journal.warn("refused", request=identifier, status=status, ms=spent)

    async def _serve(self, request: Request, receive: Receive, send: Send, identifier: str) -> None:
        scope = request.scope
        if page := await self._page(request):
            await page(scope, receive, send)
            return
        bearer = await self._admit(request)
        refusal = bearer if isinstance(bearer, Response) else self._too_long(request)
        if refusal or isinstance(bearer, Response):
            assert refusal is not None  # who is not let in is always refused
            if not isinstance(bearer, Response):
                await body(receive, self._limits.body_seconds, server.MAX_MESSAGE)
            await refusal(scope, receive, send)
            return
        came = await body(receive, self._limits.body_seconds, server.MAX_MESSAGE)
        if isinstance(came, int):
            await _refused(came, "The body is too slow or too large")(scope, receive, send)
        elif came[-1]["type"] != "http.disconnect":  # else nobody waits for an answer
            scope["user"] = bearer.user
            scope[_CALLER] = msgspec.structs.replace(bearer.caller, request=identifier)
            leaving = scope["method"] == "DELETE" and bearer.scope == WRITE
            await self._app(scope, replay(came, receive), _leaving(request, bearer, send) if leaving else send)

    async def _page(self, request: Request) -> Response | None:
        """Answer what is asked beside the protocol, None when this is not that."""
        beside, path = self._watch.pages, request.url.path
        if beside is None or request.method not in ("GET", "HEAD"):
            return None
        if path == pages.HEALTH:
            return beside.health()
        if path == pages.READY:
            return await beside.ready() if self._strangers.take() else _limited()
        if path != pages.METRICS:
            return None
        if beside.needs_token(request):
            bearer = await self._admit(request)
            if isinstance(bearer, Response):
                return bearer
        elif refusal := await self._security.validate_request(request):
            return refusal
        return await beside.metrics()

    async def _admit(self, request: Request) -> Bearer | Response:
        """Return whose token a request bears, or why it is refused."""
        sent = _sent(request)
        bearer = self._admission.known(sent)
        if not (bearer.bucket if bearer else self._strangers).take():
            return _limited()
        if refusal := await self._security.validate_request(request):
            return refusal
        if not self._admission.is_fresh(bearer):
            try:
                bearer = await anyio.to_thread.run_sync(self._admission.look, sent)
            except HoldfastError:
                return _refused(503, "The store does not answer", {"Retry-After": "1"})
        return bearer or Response("Unauthorized", status_code=401, headers={"WWW-Authenticate": "Bearer"})

    def _too_long(self, request: Request) -> Response | None:
        declared = request.headers.get("content-length", "0")
        if len(declared) > _LONGEST_LENGTH or int(declared) > server.MAX_MESSAGE:
            return _refused(413, "The body is too large")
        return None


def _limited() -> Response:
    return _refused(429, "Too many requests", {"Retry-After": "1"})


def _sent(request: Request) -> bytes:
    """Return the token that a request bears."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return given.strip().encode() if scheme.lower() == "bearer" else b""


def _leaving(request: Request, bearer: Bearer, send: Send) -> Send:
    """Return a way to answer that ends the run of a session first, once it is known to be that of the bearer."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] // 100 == 2:
            run = _run_of(request.headers.get("mcp-session-id"))
            await anyio.to_thread.run_sync(_end_run, bearer.caller, run)
        await send(message)

    return answer


def _end_run(caller: Caller, run: str) -> None:
    """End what a connection noted for itself; a connection that there never was has noted nothing."""
    if run:
        with contextlib.suppress(HoldfastError), caller.use() as memory:
            memory.compartments.close(run)


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


def _caller(request: server.Request) -> Caller:
    """Return who sent a request: whom the guard let in, and nobody else."""
    caller = request.request.scope.get(_CALLER) if request.request else None
    user = request.request.scope.get("user") if request.request else None
    if not isinstance(caller, Caller) or not isinstance(user, AuthenticatedUser):
        raise Unavailable("Nobody let this request in.", "Please report this.")
    return caller


def _run_of(identifier: str | None) -> str:
    return f"http-{identifier[:_LONGEST_ID]}" if identifier else ""
