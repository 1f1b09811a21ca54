"""A server for a team: one store, and for each token its own part of it.

The store is opened when a request needs it: a server starts while its database is down, and reconnects by itself.
A tenant's memory is opened once, and so is each scope of it. Only so many tenants stay open; the least recently used is
closed first, and never while it is in use. Closing a memory ends the notes of its runs.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.errors import Busy, HoldfastError, Unavailable
from holdfast.mcp import auth, health, http
from holdfast.mcp.auth import Auth, token_for
from holdfast.mcp.health import Health, Log
from holdfast.mcp.server import CALLER, WRITER, Caller, LazyMemory, set_context
from holdfast.memory import Memory, open_memory, open_tenant, open_within
from holdfast.model.grants import Grant
from holdfast.roots import Tenants, is_address
from holdfast.tools.calling import Context

MOST_OPEN = 32
"""Tenants whose memories stay open at once, unless more are in use."""


def run(store: str, options: http.Options, defaults: Context, *, owner_tokens: bool) -> None:
    """Serve a store until a signal ends the process; with `owner_tokens`, accept the tokens in files too."""
    tokens = {}
    if owner_tokens:
        (token, path), (reading, reading_path) = token_for(store), token_for(store, read_only=True)
        print(f"The token is in {path}", file=sys.stderr)
        print(f"A token that may only read is in {reading_path}", file=sys.stderr, flush=True)
        tokens = {token: False, reading: True}

    def leave(*_: Any) -> None:
        raise SystemExit(0)

    team = Team(store, options, defaults, tokens)
    signal.signal(signal.SIGTERM, leave)
    try:
        http.serve(http.application(team.auth, options, team.health), options, team.health)
    finally:
        team.close()


class Team:
    """A store, and the callers with a token for it."""

    def __init__(self, store: str, options: http.Options, defaults: Context, owner_tokens: dict[str, bool]) -> None:
        self._memories = MemoryPool(store, defaults, prepare=self._prepare, folder=options.folder)
        self._own_tenant, self._in_database = auth.tenant_of(store), is_address(store)
        self.auth = Auth(store, owner_tokens, options.limits, self._caller)
        self.health = Health(
            lambda: self.auth.grants().check(),
            lambda: (self._memories.count, self._memories.waiting()),
            Log(options.log),
            open_metrics=options.open_metrics,
        )

    def close(self) -> None:
        self._memories.close()
        self.auth.close()

    def on_call(self, tool: str, outcome: str, seconds: float) -> None:
        self.health.metrics.called(tool, outcome, seconds)
        write = self.health.log.info if outcome == "ok" else self.health.log.warn
        write("call", tool=tool, outcome=outcome, ms=round(seconds * 1000, 1), **_caller_fields())

    def _caller(self, grant: Grant | None, reads_only: bool) -> Caller:
        """Return the caller with a grant, or the owner."""
        key = Key(self._own_tenant)
        if grant:
            key = Key(grant.tenant if self._in_database else "", grant.scope)
        return Caller(
            use=(lambda: self._use(key)) if grant else (lambda: self._memories.use(key)),
            start=lambda: self._memories.start(key),
            reads_only=reads_only,
            bound=bool(key.scope),
            tenant=key.tenant,
            token=grant.name if grant else "",
            on_failure=self.on_call,
        )

    @contextlib.contextmanager
    def _use(self, key: Key) -> Iterator[Memory]:
        """Use a memory for a caller that may not see errors of the store."""
        opened = False
        try:
            with self._memories.use(key) as memory:
                opened = True
                yield memory
        except HoldfastError as error:
            if opened and not isinstance(error, Unavailable):
                raise
            raise self._public(error) from None

    def _prepare(self, memory: Memory) -> None:
        memory.tools.on_call = self.on_call
        memory.tools.rephrase = self._for_caller

    def _for_caller(self, error: HoldfastError) -> HoldfastError:
        """Return the error that a caller gets: the owner in full, an issued token no details of the store."""
        caller = CALLER.get()
        internal = isinstance(error, Unavailable) or type(error) is HoldfastError
        return self._public(error) if internal and caller and caller.token else error

    def _public(self, error: HoldfastError) -> HoldfastError:
        """Log an error of the store, and return one without its text, which may name hosts and logins."""
        text = health.public_text(error)
        self.health.log.warn("failed", state=text, reason=str(error), **_caller_fields())
        kind = Busy if isinstance(error, Busy) else Unavailable
        return kind(f"{text[0].upper()}{text[1:]}.", "Look what was done before you try again. The log has the reason.")


def _caller_fields() -> dict[str, str]:
    caller = CALLER.get()
    return {"request": caller.request, "tenant": caller.tenant, "token": caller.token} if caller else {}


class Key(msgspec.Struct, frozen=True):
    tenant: str = ""
    scope: str = ""


class _Entry:
    """The memory of a tenant, the scopes of it that callers are bound to, and how many calls use any of them."""

    def __init__(self, opener: Callable[[], Memory]) -> None:
        self.memory = LazyMemory(opener)
        self.scopes: dict[str, LazyMemory] = {}
        self.users = 0

    def close(self) -> None:
        for memory in (*self.scopes.values(), self.memory):
            with contextlib.suppress(HoldfastError):
                memory.close()


class MemoryPool:
    """Opens, shares and closes the memories of one store; `prepare` gets each one that was opened."""

    def __init__(
        self, store: str, defaults: Context, prepare: Callable[[Memory], None], most: int = MOST_OPEN, folder: str = ""
    ) -> None:
        self._store = store
        self._defaults = defaults
        self._most = most
        self._folder = folder
        self._prepare = prepare
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        """By tenant, the least recently used first."""
        self._tenants = Tenants(store) if is_address(store) else None

    @contextlib.contextmanager
    def use(self, key: Key) -> Iterator[Memory]:
        with self._entered(key) as memory:
            yield memory.get()

    def start(self, key: Key) -> None:
        """Open a memory in the background, so that the first call does not have to wait."""
        with self._entered(key) as memory:
            memory.start()

    @property
    def count(self) -> int:
        """How many are open, or being opened."""
        return sum(1 + len(entry.scopes) for entry in list(self._entries.values()))

    def waiting(self) -> int:
        """Return how many changed files are not indexed yet."""
        entries = list(self._entries.values())
        return sum(memory.store.waiting for entry in entries if (memory := entry.memory.opened))

    def close(self) -> None:
        with self._lock:
            left = list(self._entries.values())
            self._entries.clear()
        for entry in left:
            entry.close()
        if self._tenants:
            self._tenants.close()

    @contextlib.contextmanager
    def _entered(self, key: Key) -> Iterator[LazyMemory]:
        """Give a memory, which stays in the pool meanwhile; close idle ones if there are too many."""
        with self._lock:
            entry = self._entries.setdefault(key.tenant, _Entry(lambda: self._open(key.tenant)))
            self._entries.move_to_end(key.tenant)
            entry.users += 1
            memory = entry.memory
            if key.scope:
                memory = entry.scopes.setdefault(key.scope, LazyMemory(lambda: self._open_within(entry, key.scope)))
            idle = [tenant for tenant, entry in self._entries.items() if not entry.users]
            spare = [self._entries.pop(tenant) for tenant in idle[: max(0, len(self._entries) - self._most)]]
        try:
            for one in spare:
                one.close()
            yield memory
        finally:
            with self._lock:
                entry.users -= 1

    def _open(self, tenant: str) -> Memory:
        if self._tenants:
            memory = open_tenant(self._tenants, tenant, writer=WRITER)
            memory.store.watch()
        else:
            memory = open_memory(self._store, watch=True, writer=WRITER)
        set_context(memory, self._defaults, self._folder)
        self._prepare(memory)
        return memory

    def _open_within(self, entry: _Entry, scope: str) -> Memory:
        memory = open_within(entry.memory.get(), scope)
        self._prepare(memory)
        return memory
