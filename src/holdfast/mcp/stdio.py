"""MCP over standard input and output, one message per line, for the program that started this process.

The SDK's own transport ends with a traceback when the client stops reading, waits for input after that, and keeps a
line of any length; this one does not. A bad line costs an error reply and nothing else. Standard output carries the
protocol only: whatever else is printed goes to standard error. When input ends, what was asked is still answered.
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

from holdfast.mcp import opening
from holdfast.mcp.server import MAX_MESSAGE, build
from holdfast.memory import Memory
from holdfast.tools.calling import Context

_CHUNK = 1 << 16
_ENDS = 512
_AHEAD = 16
_LAST_WORDS = 30.0
_ID = r'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")\s*'
_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID.encode())
_LAST = re.compile(rb",\s*" + _ID.encode() + rb"\}\s*$")

_Heard = SessionMessage | types.JSONRPCError
"""A message for the server, or the error that answers a line which is none."""


def main(root: str, toolset: str = "core", defaults: Context | None = None) -> None:
    """Serve the memory in a folder until the client closes the pipe; this connection is one run."""
    connection = Context(runId=f"stdio-{secrets.token_hex(4)}")
    held = opening.at(root, (defaults or Context()).over(connection))
    try:
        serve_stdio(held, toolset)
    finally:
        held.close()


def serve_stdio(memory: Memory | opening.Opening, toolset: str = "core") -> None:
    """Answer on standard output what comes on standard input, until either ends."""
    server = build(memory, toolset)
    with _wires() as (source, sink), contextlib.suppress(KeyboardInterrupt):
        anyio.run(_Link(server, source, sink).run)


class _Link:
    """What lies between two pipes and a server."""

    def __init__(self, server: Server[Any], source: int, sink: int) -> None:
        self._server = server
        self._source = source
        self._sink = sink
        self._asked: set[types.RequestId | None] = set()
        self._answered = anyio.Event()

    async def run(self) -> None:
        self._to_server, from_client = anyio.create_memory_object_stream[SessionMessage | Exception]()
        to_client, from_server = anyio.create_memory_object_stream[SessionMessage]()
        self._refusals = to_client.clone()
        inbox, heard = anyio.create_memory_object_stream[_Heard](math.inf)
        room = threading.Semaphore(_AHEAD)
        reader = threading.Thread(
            target=self._read, args=(inbox, room, anyio.lowlevel.current_token()), name="holdfast-stdin", daemon=True
        )
        with self._refusals, inbox:
            async with anyio.create_task_group() as group:
                group.start_soon(self._write, from_server, group.cancel_scope)
                group.start_soon(self._hear, heard, room)
                reader.start()
                await self._server.run(from_client, to_client, self._server.create_initialization_options())
                self._refusals.close()

    def _read(
        self, inbox: MemoryObjectSendStream[_Heard], room: threading.Semaphore, token: anyio.lowlevel.EventLoopToken
    ) -> None:
        """Hand over every line, a few ahead, in a thread that the process need not wait for when it ends."""
        with contextlib.suppress(RuntimeError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            for line, whole in lines(self._source):
                room.acquire()
                anyio.from_thread.run_sync(inbox.send_nowait, parse(line, whole), token=token)
            anyio.from_thread.run_sync(inbox.close, token=token)

    async def _hear(self, heard: MemoryObjectReceiveStream[_Heard], room: threading.Semaphore) -> None:
        async with self._to_server, heard:
            async for message in heard:
                await self._deliver(message)
                room.release()
            with anyio.move_on_after(_LAST_WORDS):
                await self._all_answered()

    async def _deliver(self, message: _Heard) -> None:
        if isinstance(message, types.JSONRPCError):
            await self._refusals.send(SessionMessage(message))
        else:
            self._note(message.message)
            await self._to_server.send(message)

    def _note(self, message: types.JSONRPCMessage) -> None:
        """Keep track of what has to be answered."""
        if isinstance(message, types.JSONRPCRequest):
            self._asked.add(message.id)
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._settle((message.params or {}).get("requestId"))  # it will never be answered

    async def _all_answered(self) -> None:
        while self._asked:
            self._answered = anyio.Event()
            await self._answered.wait()

    def _settle(self, request: Any) -> None:
        if isinstance(request, str | int):
            self._asked.discard(request)
            self._answered.set()

    async def _write(self, answers: MemoryObjectReceiveStream[SessionMessage], scope: anyio.CancelScope) -> None:
        async with answers:
            async for answer in answers:
                message = answer.message
                frame = message.model_dump_json(by_alias=True, exclude_unset=True).encode("utf-8") + b"\n"
                try:
                    await anyio.to_thread.run_sync(_write_all, self._sink, frame)
                except OSError:
                    scope.cancel()  # nobody reads any more
                    return
                if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
                    self._settle(message.id)


def lines(source: int) -> Iterator[tuple[bytes, bool]]:
    """Yield every line that is not blank; of one that is too long only its two ends, and False."""
    line, whole = bytearray(), True
    while data := _more(source):
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


def parse(line: bytes, whole: bool) -> _Heard:
    """Return the message of a line, or the error that answers it."""
    if not whole:
        return _refusal(line, types.INVALID_REQUEST, f"The message is larger than {MAX_MESSAGE >> 20} MiB")
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except (ValueError, RecursionError):
        return _refusal(line, types.PARSE_ERROR, "The line is not a JSON-RPC message")


def _refusal(line: bytes, code: int, text: str) -> types.JSONRPCError:
    """Answer a line that cannot be read, to the request it most likely is: clients put the id first or last."""
    found = _FIRST.match(line[:_ENDS]) or _LAST.search(line[-_ENDS:])
    given = found.group(1).decode("utf-8", "replace") if found else ""
    request = (given.strip('"') if given.startswith('"') else int(given)) if given else None
    return types.JSONRPCError(jsonrpc="2.0", id=request, error=types.ErrorData(code=code, message=text))


@contextlib.contextmanager
def _wires() -> Iterator[tuple[int, int]]:
    """Keep the two pipes for the protocol: meanwhile descriptor 0 is empty and descriptor 1 is standard error."""
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


def _more(source: int) -> bytes:
    try:
        return os.read(source, _CHUNK)
    except OSError:
        return b""


def _write_all(sink: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(sink, rest) :]
