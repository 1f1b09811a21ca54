"""Who asks: with which memory, with which rights, and under which name it is noted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar

import msgspec

from holdfast.mcp.opening import Opening
from holdfast.memory import Memory


class Caller(msgspec.Struct, frozen=True):
    """Who sent a request. `use` holds the memory open that it may see, which has nothing else in it."""

    use: Callable[[], AbstractContextManager[Memory]]
    begin: Callable[[], None]
    """Opens that memory in the background."""
    reads_only: bool = False
    bound: bool = False
    """Is the memory one scope of another?"""
    tenant: str = ""
    token: str = ""
    """The name of the token; "" for the owner's own."""
    request: str = ""


CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""For whom this thread is working."""


def alone(memory: Memory | Opening, *, reads_only: bool = False) -> Caller:
    """Return the caller of a server that has one memory."""
    held = memory if isinstance(memory, Opening) else Opening(lambda: memory)

    @contextlib.contextmanager
    def use() -> Iterator[Memory]:
        yield held()

    return Caller(use, held.begin, reads_only)
