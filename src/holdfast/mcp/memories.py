"""The memories behind a server that serves many: one for each tenant and scope, opened when it is asked for.

Only so many stay open at once; the one that was used longest ago is closed first, and none while somebody uses it.
What a run noted for itself ends when its memory is closed.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator

import msgspec

from holdfast.errors import HoldfastError
from holdfast.mcp.opening import WRITER, Opening
from holdfast.memory import Memory, open_memory, open_tenant, open_within
from holdfast.roots import Tenants, is_address
from holdfast.tools.context import Context

MOST = 32
"""Memories that stay open at once, unless more are in use."""


class Key(msgspec.Struct, frozen=True):
    tenant: str = ""
    scope: str = ""


class _House:
    """A memory, and how many are using it."""

    def __init__(self, opener: Callable[[], Memory], leave: Callable[[], None]) -> None:
        self.opening = Opening(opener)
        self.users = 0
        self._leave = leave

    def close(self) -> None:
        try:
            self.opening.close()
        finally:
            self._leave()


class Memories:
    """Opens, shares and closes the memories of one store."""

    def __init__(self, store: str, defaults: Context, most: int = MOST) -> None:
        self._store = store
        self._defaults = defaults
        self._most = most
        self._lock = threading.Lock()
        self._houses: OrderedDict[Key, _House] = OrderedDict()
        self._tenants = Tenants(store) if is_address(store) else None
        self.prepare: Callable[[Memory], None] = lambda _memory: None
        """Is given every memory that was opened."""

    @contextlib.contextmanager
    def use(self, key: Key) -> Iterator[Memory]:
        """Hold a memory open while it is used."""
        house = self._enter(key)
        try:
            yield house.opening()
        finally:
            self._leave(house)

    def begin(self, key: Key) -> None:
        """Open a memory in the background, so that the first call need not wait."""
        house = self._enter(key)
        try:
            house.opening.begin()
        finally:
            self._leave(house)

    @property
    def count(self) -> int:
        """How many are open, or about to be."""
        return len(self._houses)

    def waiting(self) -> int:
        """Return how many files are known to have changed and are not in an index yet."""
        with self._lock:
            houses = list(self._houses.values())
        return sum(memory.waiting for house in houses if (memory := house.opening.opened))

    def close(self) -> None:
        """Close all of them, scopes before the memories that they are parts of."""
        with self._lock:
            left = sorted(self._houses.items(), key=lambda item: not item[0].scope)
            self._houses.clear()
        for _, house in left:
            with contextlib.suppress(HoldfastError):
                house.close()
        if self._tenants:
            self._tenants.close()

    def _enter(self, key: Key) -> _House:
        with self._lock:
            house = self._houses.get(key) or self._made(key)
            self._houses.move_to_end(key)
            house.users += 1
            spare = self._spare()
        for one in spare:
            with contextlib.suppress(HoldfastError):
                one.close()
        return house

    def _made(self, key: Key) -> _House:
        if key.scope:
            whole = Key(key.tenant)
            around = self._houses.get(whole) or self._made(whole)
            around.users += 1
            house = _House(lambda: self._opened(open_within(around.opening(), key.scope)), lambda: self._leave(around))
        else:
            house = _House(lambda: self._opened(self._open(key.tenant)), lambda: None)
        self._houses[key] = house
        return house

    def _spare(self) -> list[_House]:
        """Take out what is one too many and not in use, the longest unused first."""
        idle = [key for key, house in self._houses.items() if not house.users]
        return [self._houses.pop(key) for key in idle[: max(0, len(self._houses) - self._most)]]

    def _leave(self, house: _House) -> None:
        with self._lock:
            house.users -= 1

    def _open(self, tenant: str) -> Memory:
        if self._tenants:
            memory = open_tenant(self._tenants, tenant, writer=WRITER)
            memory.watch()
        else:
            memory = open_memory(self._store, watch=True, writer=WRITER)
        memory.context = self._defaults
        return memory

    def _opened(self, memory: Memory) -> Memory:
        self.prepare(memory)
        return memory
