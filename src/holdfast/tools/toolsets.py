"""All tools, the sets in which a server offers them, and the pair that reaches every tool: `getTools`, `useTools`.

A model is shown ten tools by default, since each one takes room in its context. The pair gives it the others.
"""

from __future__ import annotations

import contextvars
import functools
from typing import Annotated, Any, Literal

import msgspec

from holdfast.errors import Invalid
from holdfast.model.names import close_to
from holdfast.tools import everyday, sessions, tasks, workspaces
from holdfast.tools.calling import Call, Context, Registry, Reply, Runner, Tool, read_context

CORE = (
    "recall", "remember", "read", "revise", "loadWorkspace", "createState", "loadState", "listStates", "getTools",
    "useTools",
)  # fmt: skip
"""The tools that a model is shown by default."""
_NOT_RUN = "Not run: an earlier call failed."
_MOST_CALLS = 50


class AgentTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    agent: str
    tools: list[str] | None = None


class Use(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    agent: str
    tool: str
    params: dict[str, Any] = {}
    continueOnFailure: bool = False


@functools.cache
def registry() -> Registry:
    """Return the registry of all tools."""
    made = Registry()
    for module in (workspaces, sessions, tasks, everyday):
        module.register(made)
    listed = "; ".join(f"{agent}: {' '.join(tools)}" for agent, tools in made.agents().items())
    getTools.__doc__ = f"Describe other tools, by agent: {listed}."
    made.add("tools", getTools, enveloped=True, reads=True, within=True)
    made.add("tools", useTools, within=True, check=lambda given: read_context(given.get("context"), required=True))
    return made


def toolset(made: Registry, names: str) -> list[Tool]:
    """Return the tools of the named toolsets: `core`, `all`, or agents, separated by commas."""
    sets = {"all": list(made.tools), "core": CORE} | made.agents()
    chosen: dict[str, Tool] = {}
    for name in (part.strip() for part in names.split(",")):
        if name not in sets:
            raise Invalid(f'There is no toolset "{name}".', f"Use core, all, or: {', '.join(made.agents())}.")
        chosen |= {tool: made.tools[tool] for tool in sets[name]}
    return list(chosen.values())


def getTools(
    call: Call, request: Annotated[list[AgentTools], "agents, each with the tools wanted; default: all"]
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
    calls: list[Use],
    strategy: Annotated[Literal["serial", "parallel"], "serial stops at the first failure"] = "serial",
) -> Reply:
    """Run tools of any agent, in order or at once. Ask getTools for their parameters."""
    # a single call returns its own reply, several return all replies in order
    if not 1 <= len(calls) <= _MOST_CALLS:
        raise Invalid(f"{len(calls)} calls were given.", f"Send 1 to {_MOST_CALLS} of them.")
    runner = call.runner
    made = read_context(context).over(runner.defaults)
    if len(calls) == 1:
        return _one(runner, calls[0], made)
    # each call has its own effect under the common op id
    parts = [
        msgspec.structs.replace(made, opId=f"{made.opId}:{place}") if made.opId else made for place in range(len(calls))
    ]
    if strategy == "parallel":
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(max_workers=min(8, len(calls))) as pool:
            waiting = [  # the context variables name the writer
                pool.submit(contextvars.copy_context().run, _one, runner, each, part)
                for each, part in zip(calls, parts, strict=True)
            ]
            replies = [each.result() for each in waiting]
    else:
        replies = []
        for each, part in zip(calls, parts, strict=True):
            replies.append(_one(runner, each, part))
            if not _succeeded(replies[-1]) and not each.continueOnFailure:
                break
        replies += [{"success": False, "error": _NOT_RUN} for _ in calls[len(replies) :]]
    results = []
    for each, reply in zip(calls, replies, strict=True):
        tool = runner.registry.tools.get(each.tool)
        if tool and tool.mirrored:
            reply = {name: value for name, value in reply.items() if name != "text"}
        results.append({"agent": each.agent, "tool": each.tool} | reply | {"success": _succeeded(reply)})
    wrong = sum(not _succeeded(reply) and reply.get("error") != _NOT_RUN for reply in replies)
    done: Reply = {"success": not wrong, "data": {"results": results}}
    return done | ({"error": f"{wrong} of {len(calls)} failed"} if wrong else {})


def _one(runner: Runner, each: Use, context: Context) -> Reply:
    tool = runner.registry.tools.get(each.tool)
    if tool and tool.agent == each.agent != "tools":
        return runner.run(tool, each.params, context)
    agents = {name: tools for name, tools in runner.registry.agents().items() if name != "tools"}
    what, name, known = "agent", each.agent, list(agents)
    if each.agent in agents:
        what, name, known = f"tool of {each.agent}", each.tool, agents[each.agent]
    error = Invalid(f'There is no {what} "{name}".{close_to(name, known)}', f"There are: {', '.join(known)}.")
    return runner.refused(each.tool, error)


def _succeeded(reply: Reply) -> bool:
    return reply.get("success") is not False
