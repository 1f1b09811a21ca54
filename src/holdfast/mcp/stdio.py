"""MCP over standard input and output, one message per line, for the program that started this process.

Clients of the older era of the protocol open a connection with `initialize`. Those of the newer one have no handshake:
each request names the protocol version, the client and its capabilities in `params._meta`. The first request decides
for the whole connection. A thread reads, a few others work on requests. Standard output is for the protocol alone. A
bad line gets an error response. When the input ends, pending requests still get their responses. When the client no
longer reads, no more input is read.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import queue
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.mcp.server import (
    INSTRUCTIONS,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MAX_MESSAGE,
    SERVER_INFO,
    WRITER,
    Caller,
    Handlers,
    LazyMemory,
    ProtocolError,
    converted,
    modern,
    set_context,
)
from holdfast.memory import Memory, open_memory
from holdfast.model.patterns import regex
from holdfast.storage.files.descriptors import write_all
from holdfast.tools.calling import Connection, Context

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS = ("2026-07-28",)
_PARSE_ERROR, _INVALID_REQUEST, _METHOD_NOT_FOUND, _UNSUPPORTED_VERSION = -32700, -32600, -32601, -32022
_FIXED = {"listChanged": False}
_CAPABILITIES = {"prompts": _FIXED, "resources": {**_FIXED, "subscribe": False}, "tools": _FIXED}
_META = "io.modelcontextprotocol/"
_VERSION = f"{_META}protocolVersion"
_NEEDED = (_VERSION, f"{_META}clientCapabilities")
_CHUNK = 1 << 16
_ENDS = 512
"""How much of both ends of a message that is too long is read."""
_ID = r'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")\s*'
_FIRST = regex(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID.encode())
_LAST = regex(rb",\s*" + _ID.encode() + rb"\}\s*$")
_MOST_PENDING = 64
_MOST_THREADS = 16
_DRAIN_SECONDS = 30.0

Handle = Callable[[str, Mapping[str, Any], str], dict[str, Any]]
"""Returns the result of a request: method, parameters, name of the client. ProtocolError refuses it."""


def main(root: str, toolset: str = "core", defaults: Context | None = None) -> None:
    """Serve the memory in a folder until the client closes the pipe; this connection is one run."""
    context = (defaults or Context()).over(Context(runId=f"stdio-{secrets.token_hex(4)}"))

    def opener() -> Memory:
        opened = open_memory(root, watch=True, writer=WRITER)
        set_context(opened, context, os.getcwd())
        return opened

    memory, connection = LazyMemory(opener), Connection()
    caller = Caller(lambda: contextlib.nullcontext(memory.get()), memory.start, connection=lambda _session: connection)
    handlers = Handlers(toolset)
    dialogue = Dialogue(functools.partial(handlers.handle, caller), handlers.methods)
    try:
        with _pipes() as (source, sink), contextlib.suppress(KeyboardInterrupt):
            Pipe(dialogue, source, sink).run()
    finally:
        memory.close()


# messages


class ClientMessage(msgspec.Struct, eq=False):
    """A request, or a notification if it has no id. One without a method is a response, and ignored."""

    jsonrpc: Literal["2.0"]
    method: str | UnsetType = UNSET
    id: Any = UNSET
    params: dict[str, Any] | None = None


class _Implementation(msgspec.Struct):
    name: str
    version: str


class _Initialize(msgspec.Struct):
    protocolVersion: str
    capabilities: dict[str, Any]
    clientInfo: _Implementation


_decoder = msgspec.json.Decoder(ClientMessage)


def parse(line: bytes, whole: bool = True) -> ClientMessage:
    """Return the message of a line, of which only both ends are there if it is too long; ProtocolError."""
    if not whole:
        raise ProtocolError(_INVALID_REQUEST, f"The message is larger than {MAX_MESSAGE >> 20} MiB")
    try:
        return _decoder.decode(line)
    except (ValueError, RecursionError):
        if line.lstrip()[:1] == b"[":
            raise ProtocolError(_INVALID_REQUEST, "Send one message per line: batches are not supported") from None
        raise ProtocolError(_PARSE_ERROR, "The line is not a JSON-RPC message") from None


def likely_id(line: bytes) -> int | str | None:
    """Return the id that a message which cannot be read most likely has: clients put it first or last."""
    found = _FIRST.match(line[:_ENDS]) or _LAST.search(line[-_ENDS:])
    given = found.group(1).decode("utf-8", "replace") if found else ""
    return (given.strip('"') if given.startswith('"') else int(given)) if given else None


def result_message(identifier: Any, result: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": identifier, "result": result})


def error_message(identifier: Any, error: ProtocolError) -> bytes:
    described = {"code": error.code, "message": str(error)} | ({} if error.data is UNSET else {"data": error.data})
    return msgspec.json.encode({"jsonrpc": "2.0", "id": identifier, "error": described})


class Dialogue:
    """The requests of one client: the era of the protocol, and the client's name."""

    def __init__(self, handle: Handle, methods: frozenset[str]) -> None:
        self._handle = handle
        self._methods = methods
        self._is_modern: bool | None = None
        """None before the first request."""
        self._client: str | None = None
        """Its name in the handshake; None before."""

    def handle(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a request; ProtocolError refuses it."""
        meta = params.get("_meta")
        enveloped = isinstance(meta, dict) and _VERSION in meta and method != "initialize"
        if self._is_modern is None:
            self._is_modern = enveloped
        if self._is_modern:
            return self._modern(method, params, meta)
        if enveloped:
            raise ProtocolError(
                _INVALID_REQUEST,
                f"This connection began with an older protocol; it takes no requests of {MODERN_VERSIONS[-1]}.",
            )
        if method == "initialize":
            given = converted(params, _Initialize)
            self._client = given.clientInfo.name
            offered = given.protocolVersion
            version = offered if offered in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
            about = {"capabilities": _CAPABILITIES, "serverInfo": SERVER_INFO, "instructions": INSTRUCTIONS}
            return {"protocolVersion": version, **about}
        if method == "ping":
            return {}
        self._check_method(method)
        if self._client is None:
            raise ProtocolError(INVALID_PARAMS, "Send initialize first.")
        return self._handle(method, params, self._client)

    def _modern(self, method: str, params: Mapping[str, Any], meta: Any) -> dict[str, Any]:
        if method == "initialize":
            asked = params.get("protocolVersion")
            raise ProtocolError(
                _UNSUPPORTED_VERSION,
                f"This connection uses the protocol {MODERN_VERSIONS[-1]}, which has no initialize.",
                {"supported": MODERN_VERSIONS} | ({"requested": asked} if isinstance(asked, str) else {}),
            )
        given = meta if isinstance(meta, dict) else {}
        if missing := [name for name in _NEEDED if name not in given]:
            raise ProtocolError(INVALID_PARAMS, f"params._meta has no {' and no '.join(missing)}.")
        version = given[_VERSION]
        if not isinstance(version, str):
            raise ProtocolError(INVALID_PARAMS, f"{_VERSION} is not a string.")
        if version not in MODERN_VERSIONS:
            about = {"supported": MODERN_VERSIONS, "requested": version}
            raise ProtocolError(_UNSUPPORTED_VERSION, "Unsupported protocol version", about)
        if method == "server/discover":
            result = {"supportedVersions": MODERN_VERSIONS, "capabilities": _CAPABILITIES, "instructions": INSTRUCTIONS}
        else:
            self._check_method(method)
            client = given.get(f"{_META}clientInfo")
            named = client.get("name") if isinstance(client, dict) else None
            result = self._handle(method, params, named if isinstance(named, str) else "")
        return {**modern(method, result), "_meta": {f"{_META}serverInfo": SERVER_INFO}}

    def _check_method(self, method: str) -> None:
        if method not in self._methods:
            raise ProtocolError(_METHOD_NOT_FOUND, "Method not found", method)


# pipes


class Pipe:
    """Passes messages between two pipes and a dialogue."""

    def __init__(self, dialogue: Dialogue, source: int, sink: int) -> None:
        self._dialogue = dialogue
        self._source = source
        self._sink = sink
        self._ended = threading.Event()
        """The input has ended, or the client has closed the output."""
        self._settled = threading.Condition()
        self._pending: set[ClientMessage] = set()
        self._cancelled: set[ClientMessage] = set()
        """Pending requests that the client no longer wants a response to."""
        self._writing = threading.Lock()
        self._work: queue.SimpleQueue[ClientMessage] = queue.SimpleQueue()
        self._free = threading.Semaphore(0)
        self._threads = 0

    def run(self) -> None:
        threading.Thread(target=self._read, name="holdfast-stdin", daemon=True).start()
        self._ended.wait()
        with self._settled:
            self._settled.wait_for(lambda: not self._pending, _DRAIN_SECONDS)

    def _read(self) -> None:
        """Read messages; a daemon thread, so the process can end while it waits for input."""
        for line, whole in lines(self._source):
            if self._ended.is_set():
                return
            try:
                request = parse(line, whole)
            except ProtocolError as error:
                self._write(error_message(likely_id(line), error))
                continue
            if not isinstance(request.method, str):
                continue
            if not isinstance(request.id, int | str) or isinstance(request.id, bool):
                if request.method == "notifications/cancelled":  # a write is done or it is not: its response is dropped
                    unwanted = (request.params or {}).get("requestId")
                    with self._settled:
                        self._cancelled |= {one for one in self._pending if one.id == unwanted}
                continue
            with self._settled:
                self._settled.wait_for(lambda: len(self._pending) < _MOST_PENDING or self._ended.is_set())
                self._pending.add(request)
            if request.method == "initialize":  # the next request depends on it
                self._handle(request)
                continue
            self._work.put(request)
            if not self._free.acquire(blocking=False) and self._threads < _MOST_THREADS:
                self._threads += 1
                threading.Thread(target=self._serve, name="holdfast-call", daemon=True).start()
        self._ended.set()

    def _serve(self) -> None:
        while True:
            contextvars.copy_context().run(self._handle, self._work.get())
            self._free.release()

    def _handle(self, request: ClientMessage) -> None:
        try:
            message = result_message(request.id, self._dialogue.handle(str(request.method), request.params or {}))
        except ProtocolError as error:
            message = error_message(request.id, error)
        except Exception:
            import traceback

            traceback.print_exc()
            message = error_message(request.id, ProtocolError(INTERNAL_ERROR, "Internal server error"))
        if request not in self._cancelled:
            self._write(message)
        with self._settled:
            self._pending.discard(request)
            self._cancelled.discard(request)
            self._settled.notify_all()

    def _write(self, message: bytes) -> None:
        with self._writing, contextlib.suppress(OSError):
            write_all(self._sink, message + b"\n")
            return
        self._ended.set()  # the client has closed the pipe
        with self._settled:
            self._settled.notify_all()


def lines(source: int) -> Iterator[tuple[bytes, bool]]:
    """Yield every line that is not blank, and True; of a line that is too long only its two ends, and False."""
    line, whole = bytearray(), True
    while True:
        try:
            data = os.read(source, _CHUNK)
        except OSError:
            data = b""
        if not data:
            break
        *ended, rest = data.split(b"\n")
        for part in ended:
            line += part
            if line.strip():
                yield bytes(line), whole and len(line) <= MAX_MESSAGE
            line, whole = bytearray(), True
        line += rest
        whole = whole and len(line) <= MAX_MESSAGE
        if not whole:
            del line[_ENDS:-_ENDS]
    if line.strip():
        yield bytes(line), whole


@contextlib.contextmanager
def _pipes() -> Iterator[tuple[int, int]]:
    """Reserve both pipes for the protocol: meanwhile descriptor 0 is empty and descriptor 1 is standard error."""
    source, sink = os.dup(0), os.dup(1)
    for fd in (source, sink):
        os.set_blocking(fd, True)
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(nothing, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # started without standard error
            os.dup2(nothing, 1)
        yield source, sink
    finally:
        os.close(nothing)
        os.dup2(source, 0)  # both stay open: a thread may still be reading
        os.dup2(sink, 1)
