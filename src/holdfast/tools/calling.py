"""Running a tool: resolve the context once, run, trace, turn errors into advice. Every door calls this."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import HoldfastError, Invalid
from holdfast.memories.chat import Chat
from holdfast.memories.compartments import Compartments
from holdfast.memories.jobs import Jobs
from holdfast.memories.knowledge import Knowledge
from holdfast.memories.mind import Windows
from holdfast.memories.skills import Skills
from holdfast.memories.states import States
from holdfast.memories.tasks import Tasks
from holdfast.memories.traces import Trace, Traces
from holdfast.memories.values import Values
from holdfast.memories.workspaces import Workspaces
from holdfast.model.names import close_to
from holdfast.model.scopes import DEFAULT, Scope
from holdfast.tools import context as contexts
from holdfast.tools.context import Context
from holdfast.tools.registry import Registry, Tool

Reply = dict[str, Any]
OK = "ok"
UNKNOWN = "unknown"
"""What a tool is called that there is not."""
UNTRACED = frozenset({"useTools"})
"""Its inner calls are traced, each on its own."""


class Call:
    """What a tool's function gets: the memory, and for whom it works."""

    def __init__(self, runner: Runner, context: Context) -> None:
        self.runner = runner
        self.memory = runner.memory
        self.context = context
        self.warnings: list[str] = []
        """What could not be read on the way; the reply tells it."""

    @functools.cached_property
    def scope(self) -> Scope:
        """Where the call works; NotFound when the context names a workspace that is not there."""
        scope = self.memory.scopes.resolve(self.context.workspaceId or DEFAULT)
        return msgspec.structs.replace(scope, session=self.session, run=self.context.runId)

    @property
    def session(self) -> str:
        return self.context.sessionId or DEFAULT

    @property
    def op_id(self) -> str:
        return self.context.opId


class Runner:
    """All tools over one memory, with the context that the server was started with."""

    def __init__(
        self, memory: Core, registry: Registry, defaults: Context | None = None,
        compartments: Compartments | None = None,
    ) -> None:  # fmt: skip
        self.memory = memory
        self.registry = registry
        self.defaults = defaults or Context()
        self.workspaces = Workspaces(memory)
        self.states = States(memory)
        self.knowledge = Knowledge(memory)
        self.skills = Skills(memory)
        self.values = Values(memory)
        self.chat = Chat(memory)
        self.jobs = Jobs(memory)
        self.tasks = Tasks(memory)
        self.windows = Windows(memory.settings.mind)
        self.compartments = compartments or Compartments(memory)
        self.traces = Traces(memory)
        self.reads_only = False
        self.bound = ""
        """The scope that callers are bound to, "" when they may go anywhere. The memory is one that has no other."""
        self.told: Callable[[str, str, float], None] = lambda _tool, _outcome, _seconds: None
        """Is told of every call: the tool, "ok" or the class of the error, and the seconds that it took."""
        self.worded: Callable[[HoldfastError], HoldfastError] = lambda error: error
        """Returns an error as this caller is to be told of it."""

    @functools.cached_property
    def reading(self) -> Runner:
        """The same for a caller who may only read."""
        made = copy.copy(self)
        made.reads_only = True
        return made

    def call(self, name: str, params: Any = None, context: Any = None) -> Reply:
        """Run a tool by its name and return the reply an agent would get; an error is a reply too."""
        try:
            tool = self._tool(name)
        except HoldfastError as error:
            return self.refused(str(name), error)
        if context is None and isinstance(params, dict) and "context" in params and "context" not in tool.params:
            context = params["context"]
            params = {given: value for given, value in params.items() if given != "context"}
        try:
            made = contexts.read(context).over(self.defaults)
        except HoldfastError as error:
            return self.refused(name, error, tool)
        return self.run(tool, params, made)

    def refused(self, name: str, error: HoldfastError, tool: Tool | None = None) -> Reply:
        """Answer a call that could not even begin, and note it."""
        self.traces.add(Trace(tool=name[:200], success=False, error=str(error), read=self.reads_only))
        self.told(tool.name if tool else UNKNOWN, type(error).__name__, 0.0)
        return failed(error, tool)

    def run(self, tool: Tool, params: Any, context: Context) -> Reply:
        """Run a tool in a context that was checked before."""
        call = Call(self, self._where(context))
        begin, outcome = time.perf_counter(), OK
        try:
            if refusal := self._refusal(tool):
                raise refusal
            values = tool.read(params)
            if not tool.reads and tool.name not in UNTRACED:
                self.memory.screen.check({**(params or {}), "context": msgspec.to_builtins(context)})
            result = tool.function(call, **values)
            reply = answered(tool, result) | ({"warnings": call.warnings} if call.warnings else {})
        except HoldfastError as error:
            reply, outcome = failed(self.worded(error), tool), type(error).__name__
        except RecursionError:
            reply = failed(Invalid("The parameters are nested too deeply.", "Flatten them."), tool)
            outcome = Invalid.__name__
        except Exception as error:  # a fault of ours must not take the server with it
            outcome = type(error).__name__
            cause = f"{type(error).__name__}: {error}"[:300]
            fault = HoldfastError(f"{tool.name} failed unexpectedly ({cause}).", "Please report this.")
            reply = failed(self.worded(fault), tool)
        if tool.name not in UNTRACED:
            self._trace(tool, params, call, reply, begin)
            self.told(tool.name, outcome, time.perf_counter() - begin)
        return reply

    def _where(self, context: Context) -> Context:
        """Return a context for a caller who is bound to a scope: what names no workspace means that one."""
        if self.bound and context.workspaceId in ("", DEFAULT):
            return msgspec.structs.replace(context, workspaceId=self.bound)
        return context

    def _refusal(self, tool: Tool) -> HoldfastError | None:
        """Return why this caller may not use a tool, None when it may."""
        if self.reads_only and not tool.harmless:
            return Invalid(f"{tool.name} writes, and your token may only read.", "Ask the owner for the other one.")
        if self.bound and not tool.within:
            return Invalid(
                f"{tool.name} works with what no single workspace has, and your token is for {self.bound} alone.",
                "Ask the owner for a token without a scope.",
            )
        return None

    def _tool(self, name: str) -> Tool:
        tool = self.registry.tools.get(name)
        if tool is None:
            known = ", ".join(self.registry.tools)
            raise Invalid(
                f'There is no tool "{name}".{close_to(str(name), self.registry.tools)}', f"There are: {known}."
            )
        return tool

    def _trace(self, tool: Tool, params: Any, call: Call, reply: Reply, begin: float) -> None:
        """Note a call. Who may not write puts nothing before others this way either: no text, and never found."""
        refused = self._refusal(tool) is not None
        try:
            workspace = call.scope.path
        except HoldfastError:
            workspace = ""
        success = reply.get("success") is not False
        self.traces.add(
            Trace(
                tool=tool.name,
                workspace=workspace,
                bound=self.bound,
                session=call.session,
                run=call.context.runId,
                agent=call.context.agentId,
                goal="" if refused else call.context.goal,
                params={} if refused else _told(tool, params),
                success=success,
                error="" if success else str(reply.get("error")),
                result=_short(reply) if success and not tool.private else "",
                ms=round((time.perf_counter() - begin) * 1000, 3),
                read=tool.reads or self.reads_only or refused,
            )
        )


def _told(tool: Tool, params: Any) -> dict[str, Any]:
    """Return what a trace holds of the parameters; of a private tool only those that name no content."""
    given = dict(params) if isinstance(params, Mapping) else {}
    return {name: value for name, value in given.items() if name == "compartment"} if tool.private else given


def answered(tool: Tool, result: Any) -> Reply:
    """Return the reply of a tool that did its work."""
    if tool.enveloped:
        return {"success": True} if result is None and not tool.reads else {"success": True, "data": result}
    reply: Reply = dict(result)
    if tool.render and "text" not in reply:
        reply["text"] = tool.render(result)
    return reply


def failed(error: HoldfastError, tool: Tool | None = None) -> Reply:
    """Return the reply of a tool that refused; where its replies are text, so is this one."""
    reply: Reply = {"success": False, "error": str(error)}
    return reply | ({"text": str(error)} if tool and tool.render else {})


def _short(reply: Reply) -> str:
    """Return a result in a few words, for the trace."""
    if "text" in reply:
        return str(reply["text"])[:300]
    data = reply.get("data")
    if isinstance(data, list):
        return f"{len(data)} found"
    if isinstance(data, dict):
        return ", ".join(str(name) for name in data)[:300]
    return "" if data is None else str(data)[:300]
