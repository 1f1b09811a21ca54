"""MCP over standard input and output, one message per line, for the program that started this process.

The SDK's own transport ends with a traceback when the client stops reading, waits for more input after that, and
buffers lines of any length; this one does not. A bad line gets an error reply. Standard output is for the protocol
alone: everything else that is printed goes to standard error. When input ends, pending requests are still answered.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage

from holdfast.mcp.auth import WRITER, Caller, LazyMemory, set_context
from holdfast.mcp.server import MAX_MESSAGE, build
from holdfast.memory import Memory, open_memory
from holdfast.storage.files.descriptors import write_all
from holdfast.tools.calling import Connection, Context

_CHUNK = 1 << 16
_ENDS = 512
_READ_AHEAD = 16
_DRAIN_SECONDS = 30.0
_ID = r'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")\s*'
_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID.encode())
_LAST = re.compile(rb",\s*" + _ID.encode() + rb"\}\s*$")

_Parsed = SessionMessage | types.JSONRPCError
"""A message for the server, or the error reply to a line that is not a message."""


def main(root: str, toolset: str = "core", defaults: Context | None = None) -> None:
    """Serve the memory in a folder until the client closes the pipe; this connection is one run."""
    context = (defaults or Context()).over(Context(runId=f"stdio-{secrets.token_hex(4)}"))

    def opener() -> Memory:
        opened = open_memory(root, watch=True, writer=WRITER)
        set_context(opened, context, os.getcwd())
        return opened

    memory, connection = LazyMemory(opener), Connection()
    caller = Caller(lambda: contextlib.nullcontext(memory.get()), memory.start, connection=lambda _session: connection)
    try:
        server = build(lambda _request: caller, toolset)
        with _pipes() as (source, sink), contextlib.suppress(KeyboardInterrupt):
            anyio.run(_Connection(server, source, sink).run)
    finally:
        memory.close()


class _Connection:
    """Passes messages between two pipes and a server."""

    def __init__(self, server: Server[Any], source: int, sink: int) -> None:
        self._server = server
        self._source = source
        self._sink = sink
        self._pending: set[types.RequestId | None] = set()
        self._answered = anyio.Event()

    async def run(self) -> None:
        self._to_server, from_client = anyio.create_memory_object_stream[SessionMessage | Exception]()
        to_client, from_server = anyio.create_memory_object_stream[SessionMessage]()
        self._refusals = to_client.clone()
        inbox, parsed = anyio.create_memory_object_stream[_Parsed](math.inf)
        room = threading.Semaphore(_READ_AHEAD)
        reader = threading.Thread(
            target=self._read, args=(inbox, room, anyio.lowlevel.current_token()), name="holdfast-stdin", daemon=True
        )
        with self._refusals, inbox:
            async with anyio.create_task_group() as group:
                group.start_soon(self._write, from_server, group.cancel_scope)
                group.start_soon(self._deliver, parsed, room)
                reader.start()
                await self._server.run(from_client, to_client, self._server.create_initialization_options())
                self._refusals.close()

    def _read(
        self, inbox: MemoryObjectSendStream[_Parsed], room: threading.Semaphore, token: anyio.lowlevel.EventLoopToken
    ) -> None:
        """Parse lines, a few ahead, in a daemon thread: the process can end while it waits for input."""
        with contextlib.suppress(RuntimeError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            for line, whole in lines(self._source):
                room.acquire()
                anyio.from_thread.run_sync(inbox.send_nowait, parse(line, whole), token=token)
            anyio.from_thread.run_sync(inbox.close, token=token)

    async def _deliver(self, parsed: MemoryObjectReceiveStream[_Parsed], room: threading.Semaphore) -> None:
        """Pass messages to the server; at the end of input, wait for the answers to pending requests."""
        async with self._to_server, parsed:
            async for item in parsed:
                if isinstance(item, types.JSONRPCError):
                    await self._refusals.send(SessionMessage(item))
                else:
                    message = item.message
                    if isinstance(message, types.JSONRPCRequest):
                        self._pending.add(message.id)
                    elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
                        self._settle((message.params or {}).get("requestId"))  # a cancelled request gets no answer
                    await self._to_server.send(item)
                room.release()
            with anyio.move_on_after(_DRAIN_SECONDS):
                while self._pending:
                    self._answered = anyio.Event()
                    await self._answered.wait()

    def _settle(self, request: Any) -> None:
        if isinstance(request, str | int):
            self._pending.discard(request)
            self._answered.set()

    async def _write(self, answers: MemoryObjectReceiveStream[SessionMessage], scope: anyio.CancelScope) -> None:
        async with answers:
            async for answer in answers:
                message = answer.message
                frame = message.model_dump_json(by_alias=True, exclude_unset=True).encode("utf-8") + b"\n"
                try:
                    await anyio.to_thread.run_sync(write_all, self._sink, frame)
                except OSError:
                    scope.cancel()  # the client has closed the pipe
                    return
                if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
                    self._settle(message.id)


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


def parse(line: bytes, whole: bool) -> _Parsed:
    """Return the message of a line, or the error reply to it."""
    if not whole:
        return _refusal(line, types.INVALID_REQUEST, f"The message is larger than {MAX_MESSAGE >> 20} MiB")
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except (ValueError, RecursionError):
        return _refusal(line, types.PARSE_ERROR, "The line is not a JSON-RPC message")


def _refusal(line: bytes, code: int, text: str) -> types.JSONRPCError:
    """Return the error reply to a line, with the id it most likely has: clients put the id first or last."""
    found = _FIRST.match(line[:_ENDS]) or _LAST.search(line[-_ENDS:])
    given = found.group(1).decode("utf-8", "replace") if found else ""
    request = (given.strip('"') if given.startswith('"') else int(given)) if given else None
    return types.JSONRPCError(jsonrpc="2.0", id=request, error=types.ErrorData(code=code, message=text))


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
