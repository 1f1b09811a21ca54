"""MCP over standard input and output, one message per line, for the program that started this process.

A thread reads, a few others work on requests. Standard output is for the protocol alone: everything else that is
printed goes to standard error. A bad line gets an error reply. When the input ends, pending requests are still
answered. When the client no longer reads, nothing more is taken from it.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import queue
import secrets
import threading
import traceback
from collections.abc import Iterator
from typing import Any

from holdfast.mcp import protocol
from holdfast.mcp.protocol import MAX_MESSAGE, Conversation, Message, ProtocolError
from holdfast.mcp.server import WRITER, Answers, Caller, LazyMemory, set_context
from holdfast.memory import Memory, open_memory
from holdfast.storage.files.descriptors import write_all
from holdfast.tools.calling import Connection, Context

_CHUNK = 1 << 16
_MOST_PENDING = 64
_MOST_THREADS = 16
_DRAIN_SECONDS = 30.0


def main(root: str, toolset: str = "core", defaults: Context | None = None) -> None:
    """Serve the memory in a folder until the client closes the pipe; this connection is one run."""
    context = (defaults or Context()).over(Context(runId=f"stdio-{secrets.token_hex(4)}"))

    def opener() -> Memory:
        opened = open_memory(root, watch=True, writer=WRITER)
        set_context(opened, context, os.getcwd())
        return opened

    memory, connection = LazyMemory(opener), Connection()
    caller = Caller(lambda: contextlib.nullcontext(memory.get()), memory.start, connection=lambda _session: connection)
    answers = Answers(toolset)
    conversation = Conversation(functools.partial(answers.answer, caller), answers.methods)
    try:
        with _pipes() as (source, sink), contextlib.suppress(KeyboardInterrupt):
            Pipe(conversation, source, sink).run()
    finally:
        memory.close()


class _Request:
    def __init__(self, identifier: int | str, method: str, params: dict[str, Any]) -> None:
        self.id = identifier
        self.method = method
        self.params = params
        self.wanted = True
        """Whether the client still waits for an answer."""


class Pipe:
    """Passes messages between two pipes and a conversation."""

    def __init__(self, conversation: Conversation, source: int, sink: int) -> None:
        self._conversation = conversation
        self._source = source
        self._sink = sink
        self._ended = threading.Event()
        """The input has ended, or the client has closed the output."""
        self._settled = threading.Condition()
        self._pending: set[_Request] = set()
        self._writing = threading.Lock()
        self._work: queue.SimpleQueue[_Request] = queue.SimpleQueue()
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
            try:
                self._take(protocol.parse(line, whole))
            except ProtocolError as error:
                self._write(protocol.refusal(protocol.likely_id(line), error))
            if self._ended.is_set():
                return
        self._ended.set()

    def _take(self, message: Message) -> None:
        method, identifier = message.method, message.id
        if not isinstance(method, str):
            return
        if not isinstance(identifier, int | str) or isinstance(identifier, bool):
            if method == "notifications/cancelled":
                self._cancel((message.params or {}).get("requestId"))
            return
        request = _Request(identifier, method, message.params or {})
        with self._settled:
            self._settled.wait_for(lambda: len(self._pending) < _MOST_PENDING or self._ended.is_set())
            self._pending.add(request)
        if method == "initialize":  # the next request depends on it
            self._answer(request)
        else:
            self._work.put(request)
            if not self._free.acquire(blocking=False) and self._threads < _MOST_THREADS:
                self._threads += 1
                threading.Thread(target=self._serve, name="holdfast-call", daemon=True).start()

    def _serve(self) -> None:
        while True:
            contextvars.copy_context().run(self._answer, self._work.get())
            self._free.release()

    def _answer(self, request: _Request) -> None:
        identifier = request.id
        try:
            answer = protocol.result(identifier, self._conversation.reply(request.method, request.params))
        except ProtocolError as error:
            answer = protocol.refusal(identifier, error)
        except Exception:
            traceback.print_exc()
            answer = protocol.refusal(identifier, ProtocolError(protocol.INTERNAL_ERROR, "Internal server error"))
        if request.wanted:
            self._write(answer)
        with self._settled:
            self._pending.discard(request)
            self._settled.notify_all()

    def _cancel(self, identifier: Any) -> None:
        """Send no answer to a request. The work on it is not interrupted: a write is done or it is not."""
        with self._settled:
            for request in self._pending:
                request.wanted = request.wanted and request.id != identifier

    def _write(self, answer: bytes) -> None:
        with self._writing, contextlib.suppress(OSError):
            write_all(self._sink, answer + b"\n")
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
            del line[protocol.ENDS : -protocol.ENDS]
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
