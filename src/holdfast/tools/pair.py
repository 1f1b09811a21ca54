"""The pair through which an agent reaches every tool: `getTools` describes, `useTools` runs.

Eight tools are all that a model is shown by default, since each one is context that it pays for; the rest is here.
"""

from __future__ import annotations

import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

import msgspec

from holdfast.errors import HoldfastError, Invalid
from holdfast.model.names import close_to
from holdfast.tools import context as contexts
from holdfast.tools.calling import Call, Reply, Runner, failed
from holdfast.tools.context import Context
from holdfast.tools.registry import Registry

_NOT_RUN = "Not run: an earlier call failed."
_MOST_CALLS = 50


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    agent: str
    tools: list[str] | None = None


class Use(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    agent: str
    tool: str
    params: dict[str, Any] = {}
    continueOnFailure: bool = False


def register(registry: Registry) -> None:
    """Add the pair; last, since its help lists all other tools."""

    def getTools(
        call: Call,
        request: Annotated[list[Wanted], "agents, each with the tools wanted; default: all"],
    ) -> dict[str, Any]:
        found, unknown = [], []
        agents = call.runner.registry.agents()
        for wanted in request:
            known = agents.get(wanted.agent, [])
            if not known:
                unknown.append(f"{wanted.agent}{close_to(wanted.agent, agents)}")
            for name in wanted.tools if wanted.tools is not None else known:
                if name not in known:
                    unknown.append(f"{wanted.agent}.{name}{close_to(name, known)}")
                    continue
                tool = call.runner.registry.tools[name]
                found.append({"agent": tool.agent, "name": name, "description": tool.about, "inputSchema": tool.schema})
        return {"tools": found} | ({"unknown": unknown} if unknown else {})

    def useTools(
        call: Call,
        context: Annotated[dict[str, Any], "workspaceId, sessionId; memory, goal, constraints if any"],
        calls: Annotated[list[Use], "what to run"],
        strategy: Annotated[Literal["serial", "parallel"], "serial stops at the first failure"] = "serial",
    ) -> Reply:
        wanted = [msgspec.to_builtins(each) for each in calls]
        return use(call.runner, {"context": context, "calls": wanted, "strategy": strategy})

    listed = "; ".join(f"{agent}: {' '.join(tools)}" for agent, tools in registry.agents().items())
    getTools.__doc__ = f"Describe other tools, by agent: {listed}."
    useTools.__doc__ = "Run tools of any agent, in order or at once. Ask getTools for their parameters."
    registry.add("tools", enveloped=True, reads=True, within=True)(getTools)
    registry.add("tools", within=True)(useTools)


def use(runner: Runner, params: Any, defaults: Context | None = None) -> Reply:
    """Answer `useTools`: one call gives that call's reply, several give all of them in order."""
    tool = runner.registry.tools["useTools"]
    try:
        given = dict(params) if isinstance(params, dict) else params
        context = contexts.read(given.pop("context", None) if isinstance(given, dict) else None, required=True)
        values = tool.read({"context": {}} | given if isinstance(given, dict) else given)
        calls: list[Use] = values["calls"]
        if not 1 <= len(calls) <= _MOST_CALLS:
            raise Invalid(f"calls holds {len(calls)} calls.", f"Send 1 to {_MOST_CALLS} of them.")
    except HoldfastError as error:
        return failed(error)
    context = context.over(defaults or runner.defaults)
    if len(calls) == 1:
        return _one(runner, calls[0], context)
    if values.get("strategy") == "parallel":
        with ThreadPoolExecutor(max_workers=min(8, len(calls))) as pool:
            waiting = [  # each thread knows for whom it writes
                pool.submit(contextvars.copy_context().run, _one, runner, each, _part(context, place))
                for place, each in enumerate(calls)
            ]
            replies = [each.result() for each in waiting]
    else:
        replies = _serial(runner, calls, context)
    results = [_result(runner, each, reply) for each, reply in zip(calls, replies, strict=True)]
    wrong = sum(1 for reply in replies if reply.get("success") is False and reply.get("error") != _NOT_RUN)
    for result in results:
        result.setdefault("success", True)
    reply: Reply = {"success": not wrong, "data": {"results": results}}
    return reply | ({"error": f"{wrong} of {len(calls)} failed"} if wrong else {})


def _result(runner: Runner, each: Use, reply: Reply) -> Reply:
    """Return one of several replies; a text that only mirrors the data beside it is left out."""
    tool = runner.registry.tools.get(each.tool)
    said = {"text"} if tool and tool.mirrored else set()
    return {"agent": each.agent, "tool": each.tool} | {k: value for k, value in reply.items() if k not in said}


def _part(context: Context, place: int) -> Context:
    """Return the context of one of several calls: each has an effect of its own under the op id of them all."""
    return msgspec.structs.replace(context, opId=f"{context.opId}:{place}") if context.opId else context


def _serial(runner: Runner, calls: list[Use], context: Context) -> list[Reply]:
    replies: list[Reply] = []
    stopped = False
    for place, each in enumerate(calls):
        if stopped:
            replies.append({"success": False, "error": _NOT_RUN})
            continue
        replies.append(_one(runner, each, _part(context, place)))
        stopped = replies[-1].get("success") is False and not each.continueOnFailure
    return replies


def _one(runner: Runner, each: Use, context: Context) -> Reply:
    agents = {name: tools for name, tools in runner.registry.agents().items() if name != "tools"}
    if each.agent not in agents:
        return runner.refused(each.tool, _unknown("agent", each.agent, list(agents)))
    if each.tool not in agents[each.agent]:
        return runner.refused(each.tool, _unknown(f"tool of {each.agent}", each.tool, agents[each.agent]))
    return runner.run(runner.registry.tools[each.tool], each.params, context)


def _unknown(what: str, name: str, known: list[str]) -> Invalid:
    return Invalid(f'There is no {what} "{name}".{close_to(name, known)}', f"There are: {', '.join(known)}.")
