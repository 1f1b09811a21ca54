"""MCP over streamable HTTP: on loopback unless a host is named, and always with a token.

Every request is checked before it is processed: Host and Origin, so that no web page can reach the memory
through a browser, then the token, then the rate, which is counted for each token and, for requests without a valid
token, for each address; then the size of the body. The token decides which memory is used, and whether it may be
changed; that is checked for each call. Protection against slow clients is left to a reverse proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import secrets
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from holdfast import __version__
from holdfast.errors import HoldfastError, Unavailable
from holdfast.mcp import health, server
from holdfast.mcp.auth import MOST_KNOWN, Auth, Bearer, RateLimits, Refused, token_for
from holdfast.mcp.health import Health, Log, LogForm
from holdfast.mcp.server import INSTRUCTIONS, MAX_MESSAGE, Caller, ProtocolError, modern
from holdfast.model.patterns import regex
from holdfast.tools.calling import Connection, Context

PATH = "/mcp"
GRACE = 8
"""Seconds that a stopping server gives to the requests it is working on."""
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_LONGEST_ID = 100
_LONGEST_LENGTH = 15
_DRAINED = 4
"""How many times the largest body is read before a connection is cut."""
_CALLER = "holdfast.caller"
_REQUEST_ID = regex(r"[A-Za-z0-9._-]{1,64}\Z")


class Options(msgspec.Struct, frozen=True):
    toolset: str = "core"
    host: str = "127.0.0.1"
    port: int = 8899
    limits: RateLimits = RateLimits()
    log: LogForm = "none"
    names: tuple[str, ...] = ()
    """Other host names under which clients reach the server, as through a proxy."""
    open_metrics: bool = False
    folder: str = ""
    """The folder whose workspace calls are in when nothing else names one."""


def main(
    store: str, toolset: str = "core", defaults: Context | None = None, *, owner_tokens: bool = True, **options: Any
) -> None:
    """Serve a store until a signal ends the process; with `owner_tokens`, accept the tokens in files too."""
    tokens = {}
    for reads_only in (False, True) if owner_tokens else ():
        token, path = token_for(store, read_only=reads_only)
        print(f"{'The read-only token' if reads_only else 'The token'} is in {path}", file=sys.stderr, flush=True)
        tokens[token] = reads_only

    def leave(*_: Any) -> None:
        raise SystemExit(0)

    guard = Guard(store, Options(toolset, **options), defaults or Context(), tokens)
    signal.signal(signal.SIGTERM, leave)
    try:
        _listen(guard)
    finally:
        guard.close()


def _listen(guard: Guard) -> None:
    options = guard.options
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listener = socket.create_server((options.host, options.port), family=family)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio does not set it on such sockets
    except (OSError, OverflowError) as error:
        where, why = f"{options.host}, port {options.port}", getattr(error, "strerror", None) or error
        raise Unavailable(f"Cannot listen on {where}: {why}.", "Use another --port or --host.") from None
    with listener:
        shown = f"[{options.host}]" if ":" in options.host else options.host
        address = f"http://{shown}:{listener.getsockname()[1]}{PATH}"
        print(f"Holdfast listens on {address}", file=sys.stderr, flush=True)
        for name in ("mcp", "uvicorn.error"):  # both log the data that clients sent, also of refused requests
            logging.getLogger(name).setLevel(logging.ERROR)
        config = uvicorn.Config(
            guard,
            lifespan="on",
            http="h11",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=options.limits.connections,
            timeout_graceful_shutdown=GRACE,
        )
        running = uvicorn.Server(config)
        guard.health.metrics.connections = lambda: len(running.server_state.connections)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                running.run(sockets=[listener])
        finally:
            guard.health.log.info("stopped")


def connections(most: int) -> Callable[[str, str, str], Connection]:
    """Return a function from a token and an MCP session or, in the stateless protocol, a `sessionId` to a connection.

    Only the most recently used connections are remembered.
    """
    known = functools.lru_cache(most)(lambda *_key: Connection())

    def connection(token: str, transport: str, session: str) -> Connection:
        if transport:
            return known(token, "mcp", transport)
        return known(token, "session", session) if session else Connection(lasts=False)

    return connection


class Guard:
    """The ASGI application. It passes on requests from an allowed origin with a valid token, and logs all requests."""

    def __init__(self, store: str, options: Options, defaults: Context, owner_tokens: dict[str, bool]) -> None:
        self.options = options
        self.health = Health(
            lambda: self._auth.grants().check(),
            lambda: (self._auth.memories.count, self._auth.memories.waiting()),
            Log(options.log),
            open_metrics=options.open_metrics,
        )
        self._auth = Auth(store, defaults, owner_tokens, self.health, options.limits, options.folder)
        self._connection = connections(MOST_KNOWN)
        self._first_check: asyncio.Task[None] | None = None
        own = [f"[{options.host}]" if ":" in options.host else options.host]
        if options.host in ("0.0.0.0", "::"):  # noqa: S104 - the owner asked for all interfaces
            own = [socket.gethostname(), socket.getfqdn()]
        names = list(dict.fromkeys([*_LOOPBACK, *own, *options.names]))
        origins = [f"http://{name}" for name in names] + [f"https://{name}" for name in options.names]
        security = TransportSecuritySettings(
            allowed_hosts=[form for name in names for form in (name, f"{name}:*")],
            allowed_origins=[form for origin in origins for form in (origin, f"{origin}:*")],
        )
        self._security = TransportSecurityMiddleware(security)
        self._app = sdk_server(options.toolset).streamable_http_app(
            streamable_http_path=PATH,
            json_response=True,
            max_request_body_size=MAX_MESSAGE,
            transport_security=security,
            host=options.host,
        )

    def close(self) -> None:
        self._auth.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            self._first_check = asyncio.create_task(self.health.first_check())
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        named = request.headers.get("x-request-id", "")
        identifier = named if _REQUEST_ID.match(named) else secrets.token_hex(8)
        begin, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", identifier.encode())]
            await send(message)

        try:
            await self._serve(request, receive, send_with_id, identifier)
        finally:
            self.health.metrics.responded(status)
            if status >= 400:
                ms = round((time.perf_counter() - begin) * 1000, 1)
                self.health.log.warn("refused", request=identifier, status=status, ms=ms)

    async def _serve(self, request: Request, receive: Receive, send: Send, identifier: str) -> None:
        scope = request.scope
        if page := await self._page(request):
            await page(scope, receive, send)
            return
        bearer = await self._admit(request)
        if isinstance(bearer, Response):
            await bearer(scope, receive, send)
            return
        body = await _read_body(receive, request.headers.get("content-length", "0"))
        if not body:
            await _refused(413, "The body is too large")(scope, receive, send)
        elif body[-1]["type"] != "http.disconnect":  # or the client has disconnected
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=bearer.name, scopes=[]))
            session = request.headers.get("mcp-session-id", "")[:_LONGEST_ID]  # the stateless protocol has none
            caller = scope[_CALLER] = msgspec.structs.replace(
                bearer.caller,
                request=identifier,
                run=f"http-{session}" if session else "",
                connection=functools.partial(self._connection, bearer.name, session),
            )
            messages = deque(body)

            async def replay() -> Message:
                return messages.popleft() if messages else await receive()

            leaving = scope["method"] == "DELETE" and caller.run and not caller.reads_only
            await self._app(scope, replay, _ending_run(caller, send) if leaving else send)

    async def _page(self, request: Request) -> Response | None:
        """Return the page that a request asks for, None if it asks for none."""
        path = request.url.path
        if request.method not in ("GET", "HEAD"):
            return None
        if path == health.HEALTH:
            return Response("ok\n", media_type="text/plain")
        if path == health.READY:
            return await self.health.ready_page()
        if path != health.METRICS:
            return None
        if self.health.needs_token(request):
            bearer = await self._admit(request)
            if isinstance(bearer, Response):
                return bearer
        elif refusal := await self._security.validate_request(request):
            return refusal
        return await self.health.metrics_page()

    async def _admit(self, request: Request) -> Bearer | Response:
        """Return the bearer of a request's token, or the response that refuses it."""
        refusal = await self._security.validate_request(request)
        address = request.client.host if request.client else ""
        try:
            given = request.headers.get("authorization", "")
            bearer = await self._auth.admit(given, address, foreign=refusal is not None)
        except Refused as error:
            status, text = error.args
            return _refused(status, text, {"Retry-After": "1"})
        return refusal or bearer or Response("Unauthorized", status_code=401, headers={"WWW-Authenticate": "Bearer"})


def _refused(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return Response(text, status_code=status, headers={"Connection": "close"} | (headers or {}))


async def _read_body(receive: Receive, declared: str) -> list[Message]:
    """Return the messages of a request's body, none if it is too large.

    Some of a large body is read as well: a client that is cut off sees no response.
    """
    if len(declared) > _LONGEST_LENGTH or int(declared) > _DRAINED * MAX_MESSAGE:
        return []
    messages: list[Message] = []
    size, fits, more = 0, int(declared) <= MAX_MESSAGE, True
    while more and size <= _DRAINED * MAX_MESSAGE:
        message = await receive()
        size += len(message.get("body", b""))
        fits = fits and size <= MAX_MESSAGE
        more = message.get("more_body", False)
        messages.append(message) if fits else messages.clear()
    return messages


def _ending_run(caller: Caller, send: Send) -> Send:
    """Return a `send` that ends the run of a session before a DELETE of the session succeeds."""

    def end() -> None:
        with contextlib.suppress(HoldfastError), caller.use() as memory:
            memory.compartments.runs.close(caller.run)

    async def end_and_send(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] // 100 == 2:
            await anyio.to_thread.run_sync(end)
        await send(message)

    return end_and_send


def sdk_server(toolset: str) -> Server[Any]:
    """Return a server of the official SDK that calls our handlers."""
    handlers = server.Handlers(toolset)

    def handler(method: str) -> Any:
        async def handle(request: ServerRequestContext[Any, Any], _params: Any) -> dict[str, Any]:
            caller: Caller = request.request.scope[_CALLER]  # type: ignore[union-attr]  # the guard has set it
            about = request.session.client_params
            client = about.client_info.name if about else ""
            try:
                result = await anyio.to_thread.run_sync(handlers.handle, caller, method, request.params or {}, client)
                return modern(method, result)  # the SDK removes what older clients do not know
            except ProtocolError as error:
                raise MCPError(error.code, str(error), None if error.data is UNSET else error.data) from None

        return handle

    def schema(name: str) -> dict[str, Any] | None:
        tool = handlers.offered.get(name)
        return tool["inputSchema"] if tool else None

    return Server(
        "holdfast",
        version=__version__,
        title="Holdfast",
        instructions=INSTRUCTIONS,
        get_tool_input_schema=schema,
        on_list_tools=handler("tools/list"),
        on_call_tool=handler("tools/call"),
        on_list_prompts=handler("prompts/list"),
        on_get_prompt=handler("prompts/get"),
        on_list_resources=handler("resources/list"),
        on_list_resource_templates=handler("resources/templates/list"),
        on_read_resource=handler("resources/read"),
    )
