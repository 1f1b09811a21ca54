"""A server for a team: one store, and each token's own part of it.

The store is asked for when somebody needs it: a server starts while its database is away, and finds it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.errors import Busy, HoldfastError, Unavailable
from holdfast.mcp import callers, granting, http, pages
from holdfast.mcp.admitting import READ, WRITE, Admission, Tokens
from holdfast.mcp.callers import Caller
from holdfast.mcp.http import Serving
from holdfast.mcp.journal import Journal
from holdfast.mcp.memories import Key, Memories
from holdfast.mcp.metrics import Metrics
from holdfast.mcp.pages import Pages
from holdfast.mcp.tokens import token_for
from holdfast.memory import Memory
from holdfast.model.grants import Grant
from holdfast.roots import is_address
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
            use=(lambda: self._use(key)) if grant else (lambda: self._memories.use(key)),
            begin=lambda: self._memories.begin(key),
            reads_only=reads_only,
            bound=bool(key.scope),
            tenant=key.tenant,
            token=grant.name if grant else "",
        )

    @contextlib.contextmanager
    def _use(self, key: Key) -> Iterator[Memory]:
        """Hold a memory open for somebody whom the store itself is no business of."""
        opened = False
        try:
            with self._memories.use(key) as memory:
                opened = True
                yield memory
        except HoldfastError as error:
            if opened and not isinstance(error, Unavailable):
                raise
            raise self._by_class(error) from None

    def _prepare(self, memory: Memory) -> None:
        memory.tools.told = self._told
        memory.tools.worded = self._worded

    def _worded(self, error: HoldfastError) -> HoldfastError:
        """Return an error of a call as its caller is told of it: the owner in full, a token that was issued not."""
        caller = callers.CALLER.get()
        ours = isinstance(error, Unavailable) or type(error) is HoldfastError  # the store's, or a fault of the program
        return self._by_class(error) if ours and caller and caller.token else error

    def _by_class(self, error: HoldfastError) -> HoldfastError:
        """Note an error of the store in full, and say by its class what is wrong: it may name hosts and logins."""
        said = pages.told(error)
        self.journal.warn("failed", state=said, reason=str(error), **_known())
        kind = Busy if isinstance(error, Busy) else Unavailable
        return kind(f"{said[0].upper()}{said[1:]}.", "Look what was done before you try again. The log has the reason.")

    def _told(self, tool: str, outcome: str, seconds: float) -> None:
        """Count a call and note it."""
        self.metrics.called(tool, outcome, seconds)
        tell = self.journal.info if outcome == "ok" else self.journal.warn
        tell("call", tool=tool, outcome=outcome, ms=round(seconds * 1000, 1), **_known())


def _known() -> dict[str, str]:
    """Return for whom this thread is working, as the log names it."""
    caller = callers.CALLER.get()
    return {"request": caller.request, "tenant": caller.tenant, "token": caller.token} if caller else {}


def _leave(*_: Any) -> None:
    raise SystemExit(0)
