"""For whom a call is made: workspace, session, run, agent, goal.

The same object serves every door. What a caller leaves out comes from the server's start options, then `default`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import Invalid
from holdfast.model.names import is_text

_SEND = {
    "workspaceId": 'send the workspace\'s name, or "default"',
    "sessionId": "send any string that names this conversation, the same one every time",
}


class Context(msgspec.Struct, frozen=True, omit_defaults=True, rename=None):
    workspaceId: str = ""
    sessionId: str = ""
    memory: str = ""
    goal: str = ""
    constraints: str = ""
    runId: str = ""
    agentId: str = ""
    opId: str = ""

    def over(self, other: Context) -> Context:
        """Return this context, with what it lacks taken from another."""
        return Context(*(getattr(self, name) or getattr(other, name) for name in self.__struct_fields__))


def read(given: Any, *, required: bool = False) -> Context:
    """Read a context that a caller sent; all its faults are told at once, each with what to send."""
    if given is None and not required:
        return Context()
    if not isinstance(given, dict):
        what = "it is missing" if given is None else "it is not an object"
        raise Invalid(f"Invalid context: {what} (send {{workspaceId, sessionId, memory?, goal?, constraints?}})")
    faults = []
    for name in Context.__struct_fields__:
        value = given.get(name)
        advice = _SEND.get(name, "send a string, or leave it out")
        if value is None and not (required and name in _SEND):
            continue
        if not isinstance(value, str):
            faults.append(f"{name} {'is missing' if name not in given else 'must be a string'} ({advice})")
        elif not is_text(value):
            faults.append(f"{name} holds half a character (send valid Unicode)")
        elif required and name in _SEND and not value.strip():
            faults.append(f"{name} is blank ({advice})")
    unknown = sorted(str(name) for name in given.keys() - set(Context.__struct_fields__))
    faults += [f"{name} is not part of a context (send {', '.join(Context.__struct_fields__)})" for name in unknown]
    if faults:
        raise Invalid(f"Invalid context: {', '.join(faults)}")
    return Context(*(given.get(name) or "" for name in Context.__struct_fields__))
