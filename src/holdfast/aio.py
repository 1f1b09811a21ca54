"""`holdfast.aopen`: a memory for async programs. The same object, its calls in threads.

    async with holdfast.aopen("~/memory") as memory:
        await memory.put("note", "We deploy on Tuesdays.", title="Deploys")
        hits = await memory.find("when do we deploy?")

A task that is cancelled during a call waits until the call has ended, so that a write is complete or has not begun.
Works with several event loops at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from holdfast.memory import Change, Memory
from holdfast.model.records import Scope

P = ParamSpec("P")
R = TypeVar("R")
_THREADS = 8


class _Awaited(Generic[P, R]):
    """A method of `Memory`, to be awaited."""

    def __init__(self, method: Callable[Concatenate[Memory, P], R]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, memory: AsyncMemory, owner: object = None) -> Callable[P, Coroutine[Any, Any, R]]:
        def call(*args: P.args, **given: P.kwargs) -> Coroutine[Any, Any, R]:
            return memory.run(self._method, memory.blocking, *args, **given)

        return call


class AsyncMemory:
    """One memory, used with `async with`.

    `put put_draft hide undo get find tail related call prompt stats` are those of `Memory`, to be awaited. `run` awaits
    any other function; `blocking` is the `Memory` itself.
    """

    put, put_draft = _Awaited(Memory.put), _Awaited(Memory.put_draft)
    hide, undo = _Awaited(Memory.hide), _Awaited(Memory.undo)
    get, find, tail, related = (
        _Awaited(Memory.get),
        _Awaited(Memory.find),
        _Awaited(Memory.tail),
        _Awaited(Memory.related),
    )
    call, prompt, stats = _Awaited(Memory.call), _Awaited(Memory.prompt), _Awaited(Memory.stats)

    def __init__(self, open_it: Callable[[], Memory]) -> None:
        self._open = open_it
        self._threads = ThreadPoolExecutor(_THREADS, "holdfast")

    async def __aenter__(self) -> Self:
        self.blocking = await self.run(self._open)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for the calls that are running, and close the memory."""
        await self.run(self.blocking.close)
        self._threads.shutdown(wait=False)

    async def changes(
        self, scope: str | Scope | None = None, kinds: Sequence[str] = (), since: str = ""
    ) -> AsyncGenerator[Change, None]:
        """Yield all records that are added, changed, removed and hidden from now on; see `Memory.changes`."""
        with await self.run(self.blocking.changes, scope, kinds, since) as feed:
            while True:
                for change in await self.run(feed.poll):
                    yield change

    async def run(self, function: Callable[P, R], *args: P.args, **given: P.kwargs) -> R:
        """Run any function in a thread: `await memory.run(memory.blocking.chat.build_messages, "Hi", prompt)`."""
        work = self._threads.submit(function, *args, **given)
        running = asyncio.wrap_future(work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            while not (work.done() or work.cancel()):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            raise
