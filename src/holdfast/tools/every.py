"""All tools there are, and the toolsets in which a server offers them."""

from __future__ import annotations

from holdfast.errors import Invalid
from holdfast.tools import chat, compartments, everyday, jobs, knowledge, mind, pair, tasks, workspaces
from holdfast.tools.registry import Registry, Tool

CORE = ("recall", "remember", "loadWorkspace", "createState", "loadState", "listStates", "getTools", "useTools")
"""What a model is shown by default: every tool is context that it pays for."""


def registry() -> Registry:
    """Return a registry with every tool."""
    made = Registry()
    for module in (workspaces, knowledge, compartments, mind, chat, jobs, tasks, everyday, pair):
        module.register(made)
    return made


def toolset(made: Registry, names: str) -> list[Tool]:
    """Return the tools of the named toolsets: `core`, `all`, or agents, separated by commas."""
    agents = made.agents()
    chosen: dict[str, Tool] = {}
    for name in (part.strip() for part in names.split(",")):
        if name == "all":
            chosen |= made.tools
        elif name == "core":
            chosen |= {tool: made.tools[tool] for tool in CORE}
        elif name in agents:
            chosen |= {tool: made.tools[tool] for tool in agents[name]}
        else:
            raise Invalid(f'There is no toolset "{name}".', f"Use core, all, or: {', '.join(agents)}.")
    return list(chosen.values())
