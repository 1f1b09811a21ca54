"""`holdfast.open`: the memory as Python programs hold it, with every tool and every module on it."""

from __future__ import annotations

import functools
import os
from typing import Any

from holdfast.memory.hot import Hot
from holdfast.memory.knowledge import Knowledge
from holdfast.memory.skills import Skills
from holdfast.memory.states import States
from holdfast.memory.traces import Traces
from holdfast.memory.transcripts import Transcripts
from holdfast.memory.workspaces import Workspaces
from holdfast.store import memory as store
from holdfast.store import opening
from holdfast.tools import every, pair
from holdfast.tools.calling import Reply, Runner
from holdfast.tools.context import Context


class Memory(store.Memory):
    """A store, with what agents can do with it."""

    context = Context()
    """What a call's context lacks is taken from here; a server sets it when it starts."""

    @functools.cached_property
    def tools(self) -> Runner:
        return Runner(self, every.registry(), self.context)

    @property
    def workspaces(self) -> Workspaces:
        return self.tools.workspaces

    @property
    def states(self) -> States:
        return self.tools.states

    @property
    def knowledge(self) -> Knowledge:
        return self.tools.knowledge

    @property
    def skills(self) -> Skills:
        return self.tools.skills

    @property
    def traces(self) -> Traces:
        return self.tools.traces

    @functools.cached_property
    def hot(self) -> Hot:
        return Hot(self)

    @functools.cached_property
    def transcripts(self) -> Transcripts:
        return Transcripts(self)

    def call(self, tool: str, params: Any = None, context: Any = None) -> Reply:
        """Run any tool by its contract name and return the reply that an agent would get; an error is a reply."""
        if tool == "useTools":
            given = params if context is None or not isinstance(params, dict) else {"context": context} | params
            return pair.use(self.tools, given)
        return self.tools.call(tool, params, context)


def open_memory(root: str | os.PathLike[str], *, watch: bool = False, writer: str = "") -> Memory:
    """Open the memory in a folder that exists; `writer` is noted beside everything that is written."""
    return opening.open_memory(root, watch=watch, writer=writer, kind=Memory)
