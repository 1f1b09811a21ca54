"""A server for a team: one store, and each token's own part of it.

The store is asked for when somebody needs it: a server starts while its database is away, and finds it again.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.door import Memory
from holdfast.grants import Grant
from holdfast.mcp import callers, granting, http
from holdfast.mcp.admitting import READ, WRITE, Admission, Tokens
from holdfast.mcp.callers import Caller
from holdfast.mcp.http import Serving
from holdfast.mcp.journal import Journal
from holdfast.mcp.memories import Key, Memories
from holdfast.mcp.metrics import Metrics
from holdfast.mcp.pages import Pages
from holdfast.mcp.tokens import token_for
from holdfast.store.opening import is_address
from holdfast.tools.context import Context


def run(store: str, how: Serving, defaults: Context, *, fixed: bool) -> None:
    """Serve a store until the process is told to end; with `fixed`, the two tokens that lie in files are let in too."""
    tokens = _fixed(store) if fixed else {}
    team = Team(store, how, defaults, tokens)
    signal.signal(signal.SIGTERM, _leave)
    try:
        http.serve(team.application(), how, team.metrics, team.journal)
    finally:
        team.close()


def _fixed(store: str) -> dict[str, str]:
    (token, path), (reading, reading_path) = token_for(store), token_for(store, read_only=True)
    print(f"The token is in {path}", file=sys.stderr)
    print(f"A token that may only read is in {reading_path}", file=sys.stderr, flush=True)
    return {token: WRITE, reading: READ}


class Team:
    """A store, and all who may come to it."""

    def __init__(self, store: str, how: Serving, defaults: Context, tokens: Tokens) -> None:
        self._how = how
        self.metrics = Metrics()
        self.journal = Journal(how.log)
        self._memories = Memories(store, defaults)
        self._memories.prepare = self._prepare
        self._first: asyncio.Task[None] | None = None
        tenant = granting.tenant_of(store)
        self._admission = Admission(
            tokens,
            lambda reads_only: self._caller(Key(tenant), reads_only=reads_only),
            how.limits,
            lambda: granting.of(store),
            lambda grant: self._caller(
                Key(grant.tenant if is_address(store) else "", grant.scope), grant, reads_only=grant.reads_only
            ),
        )

    def application(self) -> ASGIApp:
        """Return the ASGI application, with its guard in front."""
        beside = Pages(
            self._admission.check, self.metrics, self.journal,
            lambda: (self._memories.count, self._memories.waiting()), open_metrics=self._how.open_metrics,
        )  # fmt: skip
        inner = http.guarded(self._admission, self._how, self.metrics, self.journal, beside, self._told)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":  # it listens now
                self._first = asyncio.create_task(self._look(beside))
            await inner(scope, receive, send)

        return app

    async def _look(self, pages: Pages) -> None:
        """Look at the store as soon as there is a server: nobody may ask for long. What is wrong notes the page."""
        if not await pages.reason():
            self.journal.info("store", state="up")

    def close(self) -> None:
        self._memories.close()
        self._admission.close()

    def _caller(self, key: Key, grant: Grant | None = None, *, reads_only: bool) -> Caller:
        return Caller(
            use=lambda: self._memories.use(key),
            begin=lambda: self._memories.begin(key),
            reads_only=reads_only,
            bound=bool(key.scope),
            tenant=key.tenant,
            token=grant.name if grant else "",
        )

    def _prepare(self, memory: Memory) -> None:
        memory.tools.told = self._told

    def _told(self, tool: str, outcome: str, seconds: float) -> None:
        """Count a call and note it."""
        self.metrics.called(tool, outcome, seconds)
        caller = callers.CALLER.get()
        known = {"request": caller.request, "tenant": caller.tenant, "token": caller.token} if caller else {}
        tell = self.journal.info if outcome == "ok" else self.journal.warn
        tell("call", tool=tool, outcome=outcome, ms=round(seconds * 1000, 1), **known)


def _leave(*_: Any) -> None:
    raise SystemExit(0)
