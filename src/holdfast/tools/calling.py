"""Tools: the definition of a tool, and the run of a call.

A tool is one typed function with a docstring; everything else about it is derived. Its first parameter is the `Call`,
the others are the parameters of the tool, described by `Annotated[type, "text"]`. It returns the data of the reply.

Every interface runs tools through `Runner`: it completes the context, checks the parameters, runs, traces, and turns
errors into replies.
"""

from __future__ import annotations

import copy
import functools
import inspect
import time
import typing
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import HoldfastError, Invalid
from holdfast.memories.chat import Chat
from holdfast.memories.compartments import Compartments
from holdfast.memories.jobs import Jobs
from holdfast.memories.knowledge import Knowledge, Skills
from holdfast.memories.mind import Values, Windows
from holdfast.memories.tasks import Tasks
from holdfast.memories.workspaces import States, Trace, Traces, Workspaces
from holdfast.model.names import close_to, count_tokens, is_text
from holdfast.model.records import DEFAULT, Scope, check_plain, line_of

Reply = dict[str, Any]
UNKNOWN = "unknown"
"""Reported in place of the name of a tool that does not exist."""
USE_TOOLS = "useTools"
"""The tool that is not traced; its inner calls are traced one by one."""
_UNSAID: tuple[Any, ...] = (None, "", [], {})
"""Defaults that a schema leaves out: they mean that no value was given."""
_SEND = {
    "workspaceId": 'send the workspace\'s name, or "default"',
    "sessionId": "send any string that names this conversation, the same one every time",
}
_NOT_KEPT = (
    "Your next call cannot be recognised as yours, so it will not use this workspace."
    " Send context.sessionId with each call, or context.workspaceId."
)


class Param(msgspec.Struct, frozen=True):
    name: str
    type: Any
    required: bool
    """A required string may not be blank, unless the tool allows it."""
    default: Any = None
    about: str = ""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the parameter, with all definitions inlined."""
        (found,), definitions = msgspec.json.schema_components([self.type], ref_template="{name}")
        schema: dict[str, Any] = _inline(found, definitions)
        schema |= {"description": self.about} if self.about else {}
        return schema | ({} if self.default in _UNSAID else {"default": self.default})

    @property
    def choices(self) -> str:
        """The allowed values, or the names of its fields, as a hint in an error."""
        schema = self.schema
        values = [
            value
            for part in schema.get("anyOf", [schema])
            for value in part.get("enum") or part.get("items", {}).get("enum") or part.get("properties") or ()
        ]
        return f" (use {', '.join(map(str, values))})" if values else ""


class Tool(msgspec.Struct, frozen=True, dict=True):
    name: str
    agent: str
    """The toolset it belongs to."""
    function: Callable[..., Any]
    about: str
    enveloped: bool = False
    """Replies are `{success, data}`."""
    reads: bool = False
    """The tool changes nothing, so a call can be repeated."""
    render: Callable[[Any], str] | None = None
    """Makes the text for the model; without it the model reads the reply as JSON."""
    mirrored: bool = False
    """The text is the same data as the reply."""
    private: bool = False
    """Its traces are not searched and have no results; of notes of a run they have no parameters either."""
    check: Callable[[Mapping[str, Any]], None] | None = None
    """Checks the parameters first, where a contract has its own error texts."""
    blank: tuple[str, ...] = ()
    """Required strings that may be blank."""
    within: bool = False
    """It stays in one scope, so a token that is bound to a scope may call it."""

    @functools.cached_property
    def params(self) -> Mapping[str, Param]:
        """The parameters by name, read from the signature when they are first needed."""
        found, hints = dict[str, Param](), typing.get_type_hints(self.function, include_extras=True)
        for name, parameter in list(inspect.signature(self.function).parameters.items())[1:]:
            extras = getattr(hints[name], "__metadata__", ())
            about = next((extra for extra in extras if isinstance(extra, str)), "")
            required = parameter.default is inspect.Parameter.empty
            found[name] = Param(name, hints[name], required, None if required else parameter.default, about)
        return found

    @property
    def harmless(self) -> bool:
        """Is it open to read-only callers? The calls inside `useTools` are checked one by one."""
        return self.reads or self.name == USE_TOOLS

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the parameters, without the context."""
        required = [param.name for param in self.params.values() if param.required]
        schema = {"type": "object", "properties": {param.name: param.schema for param in self.params.values()}}
        return schema | ({"required": required} if required else {}) | {"additionalProperties": False}

    @property
    def takes(self) -> str:
        """A sentence that lists the parameters."""
        needed = ", ".join(name for name, param in self.params.items() if param.required)
        rest = ", ".join(name for name, param in self.params.items() if not param.required)
        if not needed:
            return f"{self.name} takes {rest or 'nothing'}."
        return f"{self.name} needs {needed}" + (f"; it also takes {rest}" if rest else "") + "."


class Registry:
    """Tools by name, in the order in which they were added."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}

    def add(self, agent: str, function: Callable[..., Any], **options: Any) -> None:
        """Make a function a tool of an agent; `options` are the other fields of `Tool`."""
        name, about = function.__name__, inspect.cleandoc(function.__doc__ or "")
        self.tools[name] = Tool(name, agent, function, about, **options)

    def agents(self) -> dict[str, list[str]]:
        """Return the tools of each agent."""
        found: dict[str, list[str]] = {}
        for tool in self.tools.values():
            found.setdefault(tool.agent, []).append(tool.name)
        return found


def _inline(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Replace references by their definitions, and drop titles, empty defaults and null, which do not help a model."""
    if isinstance(schema, list):
        return [_inline(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(definitions[schema["$ref"]], definitions)
    result = {
        name: _inline(part, definitions)
        for name, part in schema.items()
        if name != "title" and (name != "default" or part not in _UNSAID)
    }
    options = result.get("anyOf")
    if options and {"type": "null"} in options:
        left = [option for option in options if option != {"type": "null"}]
        result = left[0] if len(left) == 1 else {"anyOf": left}
    return result


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sender of a call and its purpose."""

    workspaceId: str = ""
    sessionId: str = ""
    memory: str = ""
    goal: str = ""
    constraints: str = ""
    runId: str = ""
    agentId: str = ""
    opId: str = ""

    def over(self, other: Context) -> Context:
        """Return this context, with missing fields taken from another."""
        return Context(*[getattr(self, name) or getattr(other, name) for name in self.__struct_fields__])


class Connection(msgspec.Struct):
    """The state of a client's connection."""

    workspace: str = ""
    """The path of the workspace that the client loaded or created last."""
    lasts: bool = True
    """False when the next call of the client cannot be recognised."""


CONNECTION: ContextVar[Connection | None] = ContextVar("connection", default=None)
"""The connection that this thread works for; None where the library is used directly."""


def read_context(given: Any, *, required: bool = False) -> Context:
    """Read the context that a caller sent; one error names all faults and what to send."""
    if given is None and not required:
        return Context()
    if not isinstance(given, dict):
        what = "it is missing" if given is None else "it is not an object"
        raise Invalid(f"Invalid context: {what} (send {{workspaceId, sessionId, memory?, goal?, constraints?}})")
    fields = Context.__struct_fields__
    faults = []
    for name in fields:
        value = given.get(name)
        needed = required and name in _SEND
        if value is None and not needed:
            continue
        advice = _SEND.get(name, "send a string, or leave it out")
        if not isinstance(value, str):
            faults.append(f"{name} {'must be a string' if name in given else 'is missing'} ({advice})")
        elif not value.isascii() and not is_text(value):
            faults.append(f"{name} contains a lone surrogate (send valid Unicode)")
        elif needed and not value.strip():
            faults.append(f"{name} is blank ({advice})")
    if unknown := given.keys() - set(fields):
        faults += [f"{name} is not part of a context (send {', '.join(fields)})" for name in sorted(map(str, unknown))]
    if faults:
        raise Invalid(f"Invalid context: {', '.join(faults)}")
    return Context(*[given.get(name) or "" for name in fields])


def arguments(tool: Tool, given: Any) -> dict[str, Any]:
    """Check and convert the parameters of a call; one error names all faults of a kind."""
    given = {} if given is None else given
    if not isinstance(given, dict):
        raise Invalid(f"{tool.name} takes an object of parameters.", tool.takes)
    if unknown := [str(name) for name in given if name not in tool.params]:
        if misplaced := [name for name in unknown if name in Context.__struct_fields__]:
            where = ", ".join(f"context.{name}" for name in misplaced)
            what = f"{tool.name} has no parameter {', '.join(misplaced)}: it is {where}."
            raise Invalid(what, f"Send it inside context; {tool.takes}")
        hint = close_to(unknown[0], tool.params) if len(unknown) == 1 else ""
        raise Invalid(f"{tool.name} has no parameter {', '.join(unknown)}.{hint}", tool.takes)
    if tool.check:
        tool.check(given)
    sent = {name: value for name, value in given.items() if value is not None}
    blank = {name for name, value in sent.items() if isinstance(value, str) and not value.strip()} - {*tool.blank}
    if missing := [
        name for name, param in tool.params.items() if param.required and (name not in sent or name in blank)
    ]:
        raise Invalid(f"Missing or blank: {', '.join(missing)}.", tool.takes, missing)
    values, faults = dict[str, Any](), []
    for name, value in sent.items():
        check_plain(value)
        try:
            values[name] = msgspec.convert(value, tool.params[name].type)
        except msgspec.ValidationError as error:
            faults.append(f"{name}: {error}{tool.params[name].choices}")
    if faults:
        raise Invalid("; ".join(faults) + ".", tool.takes)
    return values


class Call:
    """The first argument of a tool's function: the memory and the context of the call."""

    def __init__(self, runner: Runner, context: Context) -> None:
        self.runner = runner
        self.memory = runner.memory
        self.context = context
        self.session = context.sessionId or DEFAULT
        self.op_id = context.opId
        self.warnings: list[str] = []
        """Added to the reply."""

    @functools.cached_property
    def scope(self) -> Scope:
        """The scope of the call; NotFound when its workspace does not exist."""
        scope = self.memory.scopes.resolve(self.context.workspaceId or DEFAULT)
        return msgspec.structs.replace(scope, session=self.session, run=self.context.runId)

    def enter(self, workspace: str) -> None:
        """Use a workspace for the later calls of this connection that name none."""
        if connection := CONNECTION.get():
            connection.workspace = workspace
            self.warnings += [] if connection.lasts else [_NOT_KEPT]


class Runner:
    """All tools over one memory, with the context that the server was started with."""

    def __init__(self, memory: Core, registry: Callable[[], Registry], compartments: Compartments) -> None:
        self.memory = memory
        self.start = Context()
        """The context of calls that have none; a server sets it when it starts."""
        self._registry = registry
        self.workspaces = Workspaces(memory)
        self.states = States(memory)
        self.knowledge = Knowledge(memory)
        self.skills = Skills(memory)
        self.values = Values(memory)
        self.chat = Chat(memory)
        self.jobs = Jobs(memory)
        self.tasks = Tasks(memory)
        self.windows = Windows(memory.settings.mind)
        self.compartments = compartments
        self.traces = Traces(memory)
        self.reads_only = False
        self.bound = ""
        """The scope that callers are bound to, "" for none. The memory then contains nothing else."""
        self.on_call: Callable[[str, str, float], None] | None = None
        """Called after every call with the tool, "ok" or the class of the error, and the seconds it took."""
        self.rephrase: Callable[[HoldfastError], HoldfastError] = lambda error: error
        """Rewords an error for this caller."""

    @functools.cached_property
    def registry(self) -> Registry:
        return self._registry()

    @property
    def defaults(self) -> Context:
        """Defaults for the context of a call: the workspace of the connection, then the start options."""
        connection = CONNECTION.get()
        return Context(workspaceId=connection.workspace).over(self.start) if connection else self.start

    @functools.cached_property
    def reading(self) -> Runner:
        """The same tools for a read-only caller."""
        made = copy.copy(self)
        made.reads_only = True
        return made

    def call(self, name: str, params: Any = None, context: Any = None) -> Reply:
        """Run a tool by its name and return the reply; an error is a reply too."""
        tool = self.registry.tools.get(name)
        if tool is None:
            known = self.registry.tools
            what = f'There is no tool "{name}".{close_to(str(name), known)}'
            return self.refused(str(name), Invalid(what, f"There are: {', '.join(known)}."))
        if "context" in tool.params:  # the context is a parameter of useTools
            if context is not None and isinstance(params, dict):
                params, context = {"context": context} | params, None
        elif context is None and isinstance(params, dict) and "context" in params:
            params = dict(params)
            context = params.pop("context")
        try:
            made = read_context(context).over(self.defaults)
        except HoldfastError as error:
            return self.refused(name, error, tool)
        return self.run(tool, params, made)

    def refused(self, name: str, error: HoldfastError, tool: Tool | None = None) -> Reply:
        """Trace and answer a call that could not be started."""
        reply = failed(error, tool)
        tokens = count_tokens(reply_text(reply))
        self.traces.add(Trace(tool=name[:200], success=False, error=str(error), tokens=tokens, read=self.reads_only))
        if self.on_call:
            self.on_call(tool.name if tool else UNKNOWN, type(error).__name__, 0.0)
        return reply

    def run(self, tool: Tool, params: Any, context: Context, *, raises: bool = False) -> Reply:
        """Run a tool in a context that was checked before; with `raises`, an error is raised after it was traced."""
        if self.bound and context.workspaceId in ("", DEFAULT):
            context = msgspec.structs.replace(context, workspaceId=self.bound)
        call, begin, traced = Call(self, context), time.perf_counter(), tool.name != USE_TOOLS
        refusal, outcome, wrong = self._refusal(tool), "ok", None
        try:
            if refusal:
                raise refusal
            values = arguments(tool, params)
            if traced and not tool.reads:
                self.memory.secrets.check({**(params or {}), "context": msgspec.to_builtins(context)})
            result = tool.function(call, **values)
            if tool.enveloped:
                nothing = result is None and not tool.reads
                reply: Reply = {"success": True} if nothing else {"success": True, "data": result}
            else:
                reply = dict(result)
                if tool.render and "text" not in reply:
                    reply["text"] = tool.render(result)
            reply |= {"warnings": call.warnings} if call.warnings else {}
        except HoldfastError as error:
            wrong, outcome = self.rephrase(error), type(error).__name__
        except RecursionError:
            wrong, outcome = Invalid("The parameters are nested too deeply.", "Flatten them."), Invalid.__name__
        except Exception as error:  # an error of ours must not end the server
            outcome = type(error).__name__
            what = f"{tool.name} failed unexpectedly ({f'{outcome}: {error}'[:300]})."
            wrong = self.rephrase(HoldfastError(what, "Please report this."))
        if wrong:
            reply = failed(wrong, tool)
        if traced:
            self._trace(tool, params, call, reply, begin, refused=refusal is not None)
            if self.on_call:
                self.on_call(tool.name, outcome, time.perf_counter() - begin)
        if wrong and raises:
            raise wrong
        return reply

    def _refusal(self, tool: Tool) -> HoldfastError | None:
        """Return why this caller may not use a tool, None when it may."""
        if self.reads_only and not tool.harmless:
            return Invalid(
                f"{tool.name} writes, and your token is read-only.", "Ask the owner for the read-write token."
            )
        if self.bound and not tool.within:
            return Invalid(
                f"{tool.name} is not limited to one workspace, and your token is for {self.bound} alone.",
                "Ask the owner for a token without a scope.",
            )
        return None

    def _trace(self, tool: Tool, params: Any, call: Call, reply: Reply, begin: float, *, refused: bool) -> None:
        """Trace a call. The trace of a read-only caller has no text, and search does not find it."""
        try:
            workspace = call.scope.path
        except HoldfastError:
            workspace = ""
        given = params if isinstance(params, dict) and not refused else {}
        notes, place = self.compartments, given.get("compartment")
        if tool.private and (place not in notes.known or notes.lasts(place) == "run"):  # a run leaves nothing behind
            given = {name: value for name, value in given.items() if name == "compartment"}
        success, context = reply.get("success") is not False, Context() if refused else call.context
        data = reply.get("data", reply)
        found = reply.get("hits", data) if tool.reads and not tool.private else None
        result = ""
        if success and not tool.private:  # a summary of the reply
            said = reply.get("text", reply.get("data"))
            if isinstance(said, list):
                first = [line_of(item.get("name", item) if isinstance(item, dict) else item)[:80] for item in said[:5]]
                said = f"{len(said)} found" + (f": {', '.join(first)}" if first else "")
            result = (said if isinstance(said, str) else "" if said is None else line_of(said))[:300]
        # until the owner approves it, a proposal is not an activity to show
        pending = isinstance(data, dict) and "pending" in (data.get("status"), data.get("receipt"))
        self.traces.add(
            Trace(
                tool=tool.name, workspace=workspace, bound=self.bound, session=call.session, run=call.context.runId,
                agent=call.context.agentId, goal=context.goal, memory=context.memory, constraints=context.constraints,
                params=given, success=success, error="" if success else str(reply.get("error")),
                result=result, private=tool.private,
                ids=[str(one["id"]) for one in found if isinstance(one, dict) and "id" in one]
                if isinstance(found, list) else [],
                tokens=count_tokens(reply_text(reply)), ms=round((time.perf_counter() - begin) * 1000, 3),
                read=tool.reads or self.reads_only or refused or pending,
            )
        )  # fmt: skip


def failed(error: HoldfastError, tool: Tool | None = None) -> Reply:
    """Return the reply of a tool that failed; it has a `text` where the replies of the tool have one."""
    reply: Reply = {"success": False, "error": str(error)}
    return reply | ({"text": str(error)} if tool and tool.render else {})


def reply_text(reply: Reply) -> str:
    """Return the text of a reply for a model."""
    text = reply.get("text")
    return text if isinstance(text, str) else msgspec.json.encode(reply, enc_hook=dict).decode("utf-8")
