"""The answers of the MCP server to its clients, the same over every transport.

A tool that fails returns a result with `isError`, which the model can act on. Protocol errors are for problems that
only the host can fix. Missing context comes from the connection, which keeps the workspace that its client loaded last,
then from the memory's start options. The connection is the run unless the caller names one.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, Invalid, NotFound
from holdfast.mcp import content
from holdfast.mcp.protocol import INTERNAL_ERROR, INVALID_PARAMS, ProtocolError, converted
from holdfast.memories.workspaces import Workspaces
from holdfast.memory import Memory
from holdfast.secrets import redact
from holdfast.tools import toolsets
from holdfast.tools.calling import CONNECTION, UNKNOWN, Connection, Context, Reply, failed, reply_text
from holdfast.tools.registry import Tool

WRITER = "mcp"
"""The writer of everything that is written through this server."""
OnCall = Callable[[str, str, float], None]
"""Receives the tool, "ok" or the class of the error, and the seconds."""
_CONTEXT = {"type": "object"}  # `INSTRUCTIONS` says what is in it, once for all tools
_ENVELOPE = {"type": "object", "required": ["success"]}
_OWN_CONTEXT = frozenset({"getTools", "useTools"})
_LONGEST_NAME = 100
_LONGEST_WRITER = 60
_NOT_IN_WRITER = re.compile(r"[^A-Za-z0-9._-]")


class LazyMemory:
    """A memory that is opened at first use, so that a server can list its tools before it reads any file.

    A failed attempt is repeated by the next call: a root that was missing is found without a restart.
    """

    def __init__(self, opener: Callable[[], Memory]) -> None:
        self._opener = opener
        self._lock = threading.Lock()
        self._started = False
        self.opened: Memory | None = None
        """The memory, None while it is not open."""

    def get(self) -> Memory:
        """Return the memory; the first caller opens it while the others wait."""
        with self._lock:
            if self.opened is None:
                self.opened = self._opener()
            return self.opened

    def start(self) -> None:
        """Open it in the background; the first call that needs it reports what goes wrong."""

        def attempt() -> None:
            with contextlib.suppress(HoldfastError):
                self.get()

        if not self._started:
            self._started = True
            threading.Thread(target=attempt, name="holdfast-open", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            if self.opened is not None:
                self.opened.close()
                self.opened = None


def set_context(memory: Memory, start: Context, folder: str) -> None:
    """Set what calls lack: the start options, then the workspace of the folder in which the server was started."""
    if folder and not start.workspaceId:
        start = start.over(Context(workspaceId=Workspaces(memory).around(folder)))
    memory.context = start


class Connections:
    """The connections of clients over HTTP; of very many, only the last that were used are known."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, ...], Connection] = OrderedDict()

    def get(self, token: str, transport: str, session: str) -> Connection:
        """Return the connection with a token and an MCP session or, in the stateless protocol, a `sessionId`."""
        if not (transport or session):
            return Connection(lasts=False)
        key = (token, "mcp", transport) if transport else (token, "session", session)
        with self._lock:
            found = self._known[key] = self._known.pop(key, Connection())
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        return found


class Caller(msgspec.Struct, frozen=True):
    """The sender of a request and its rights. `use` gives the memory that it may see, and keeps it open meanwhile."""

    use: Callable[[], AbstractContextManager[Memory]]
    start: Callable[[], None]
    """Opens that memory in the background."""
    reads_only: bool = False
    bound: bool = False
    """The caller sees one scope only."""
    tenant: str = ""
    token: str = ""
    """The name of the token; "" for the owner's own."""
    request: str = ""
    run: str = ""
    """The run of calls that name none."""
    connection: Callable[[str], Connection] = lambda _session: Connection(lasts=False)
    """Returns the connection of a call with this `sessionId`."""
    on_failure: OnCall | None = None
    """Called when a tool call did not reach a memory."""


CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""The caller that this thread works for."""


class _Page(msgspec.Struct):
    cursor: str | None = None


class _Call(msgspec.Struct):
    name: str
    arguments: dict[str, Any] | None = None


class _Prompt(msgspec.Struct):
    name: str
    arguments: dict[str, str] | None = None


class _Resource(msgspec.Struct):
    uri: str


class Answers:
    """The answers to the requests of clients, the same over every transport."""

    def __init__(self, toolset: str) -> None:
        registry = toolsets.registry()
        self._known = registry.tools
        self.offered = {tool.name: described(tool) for tool in toolsets.toolset(registry, toolset)}
        """The tools as clients see them."""
        self._table: dict[str, tuple[type[Any], Callable[[Any, Caller, str], dict[str, Any]]]] = {
            "tools/list": (_Page, self._list_tools),
            "tools/call": (_Call, self._call_tool),
            "prompts/list": (_Page, lambda *_: {"prompts": content.PROMPTS}),
            "prompts/get": (_Prompt, self._get_prompt),
            "resources/list": (_Page, self._list_resources),
            "resources/templates/list": (_Page, lambda *_: {"resourceTemplates": content.TEMPLATES}),
            "resources/read": (_Resource, self._read_resource),
        }
        self.methods = frozenset(self._table)

    def answer(self, caller: Caller, method: str, params: Mapping[str, Any], client: str) -> dict[str, Any]:
        """Return the result of a request from a client of this name; ProtocolError refuses it."""
        shape, work = self._table[method]
        given = converted(params, shape)
        CALLER.set(caller)
        try:
            return work(given, caller, client)
        except HoldfastError as error:
            raise ProtocolError(INTERNAL_ERROR, str(error)) from None

    def _list_tools(self, _given: _Page, caller: Caller, _client: str) -> dict[str, Any]:
        """List the tools that this caller can use."""
        caller.start()
        usable = {
            tool.name
            for tool in self._known.values()
            if (tool.harmless or not caller.reads_only) and (tool.within or not caller.bound)
        }
        return {"tools": [tool for name, tool in self.offered.items() if name in usable]}

    def _call_tool(self, given: _Call, caller: Caller, client: str) -> dict[str, Any]:
        """Call a tool; the context gets what the connection knows and neither caller nor start options name."""
        begin = time.perf_counter()
        name, arguments, (agent, writer) = given.name, given.arguments or {}, _client_names(client)
        tool = self._known.get(name)
        try:
            if tool is not None and name not in self.offered:
                other = "Start the server with --toolset all."
                if "useTools" in self.offered:
                    other = f'Call useTools with {{agent: "{tool.agent}", tool: "{name}", params}}.'
                raise Invalid(f"{name} is not offered directly.", other)
            with caller.use() as memory:
                context = arguments.pop("context", None)
                if context is None and name != "useTools":
                    context = {}
                if isinstance(context, dict):
                    context = dict(context)
                    for field, value in (("agentId", agent), ("runId", caller.run)):
                        if value and context.get(field) in (None, "") and not getattr(memory.context, field):
                            context[field] = value
                    session = context.get("sessionId") or memory.context.sessionId
                    CONNECTION.set(caller.connection(session if isinstance(session, str) else ""))
                by = f"{WRITER}:{writer}:{caller.token}" if caller.token else f"{WRITER}:{writer}".rstrip(":")
                with memory.store.written_by(by):
                    return result(memory.call(name, arguments, context, reads_only=caller.reads_only))
        except HoldfastError as error:  # no tool raises: the tool is not offered, or the memory is not available
            if caller.on_failure:
                known = name if tool else UNKNOWN
                caller.on_failure(known, type(error).__name__, time.perf_counter() - begin)
            return result(failed(error))

    def _get_prompt(self, given: _Prompt, caller: Caller, _client: str) -> dict[str, Any]:
        with caller.use() as memory:
            return content.prompt(memory, given.name, given.arguments or {})

    def _list_resources(self, given: _Page, caller: Caller, _client: str) -> dict[str, Any]:
        cursor = given.cursor or "0"
        if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
            raise ProtocolError(INVALID_PARAMS, "Unknown cursor. List again from the start.")
        with caller.use() as memory:
            found, following = content.resources(memory, int(cursor))
        return {"resources": found} | ({} if following is None else {"nextCursor": str(following)})

    def _read_resource(self, given: _Resource, caller: Caller, _client: str) -> dict[str, Any]:
        with caller.use() as memory:
            try:
                text = content.resource(memory, given.uri)
            except (NotFound, Invalid):
                about = {"uri": given.uri}
                raise ProtocolError(INVALID_PARAMS, f"Unknown resource: {given.uri[:500]}", about) from None
        return {"contents": [{"uri": given.uri, "mimeType": content.MARKDOWN, "text": text}]}


def described(tool: Tool) -> dict[str, Any]:
    """Return a tool as clients see it."""
    schema = tool.schema
    if tool.name not in _OWN_CONTEXT:
        schema["properties"]["context"] = _CONTEXT
    hints = {"readOnlyHint": True} if tool.reads else {"destructiveHint": False}  # if not as the protocol assumes
    return {
        "name": tool.name,
        "description": tool.about,
        "inputSchema": schema,
        **({"outputSchema": _ENVELOPE} if tool.enveloped else {}),
        "annotations": hints | {"openWorldHint": False},
    }


def result(reply: Reply) -> dict[str, Any]:
    """Return a reply as an MCP result: its text for the model, its data as structured content."""
    text = reply_text(reply)
    is_error = reply.get("success") is False
    if not is_error and len(reply) > 1:
        reply = {name: value for name, value in reply.items() if name != "text"}  # the content has it already
    blocks = [{"type": "text", "text": text}]
    return {"content": blocks, "structuredContent": reply, "isError": is_error}


@functools.lru_cache(256)
def _client_names(given: str) -> tuple[str, str]:
    """Return the name of a client as the agent of a call, and in the form that a writer may have."""
    name = redact(given)[:_LONGEST_NAME]
    return name, _NOT_IN_WRITER.sub("-", name).strip("-")[:_LONGEST_WRITER]
