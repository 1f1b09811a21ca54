"""Whose token a request bears: one of the two that lie in files, or one that was issued.

What the store said of an issued token is believed for a moment, so that not every request asks it, and a token that was
revoked stops working within seconds. Where the store cannot be asked, nobody is let in on what was known before.
"""

from __future__ import annotations

import contextlib
import hmac
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken

from holdfast.errors import HoldfastError, Invalid
from holdfast.mcp.callers import Caller
from holdfast.mcp.limiting import Bucket, Limits
from holdfast.model import grants
from holdfast.model.grants import Grant, Grants, Token
from holdfast.model.times import today

READ, WRITE = "read", "write"
BELIEVED = 2.0
"""Seconds for which an issued token is not looked up again."""
_MOST = 10_000
_PAUSE = 1.0
"""Seconds before a store that could not be opened is tried again."""
Tokens = Mapping[str, str]
"""Each token with what it allows: READ, or WRITE, which is to read too."""


class Bearer:
    """A token, what it allows, and how much is left of it for now."""

    def __init__(self, caller: Caller, limits: Limits, user: str) -> None:
        self.caller = caller
        self.scope = READ if caller.reads_only else WRITE
        self.bucket = Bucket(limits.requests, limits.burst)
        self.user = AuthenticatedUser(AccessToken(token="", client_id=user, scopes=[self.scope]))
        """By this the SDK keeps the sessions of one token from the others."""
        self.checked = 0.0


class Admission:
    """Knows the tokens of a server. `issued` opens the grants of the store, None when there are none."""

    def __init__(
        self, tokens: Tokens, owner: Callable[[bool], Caller], limits: Limits,
        issued: Callable[[], Grants] | None = None, guest: Callable[[Grant], Caller] | None = None,
    ) -> None:  # fmt: skip
        self.fixed = [
            (token.encode(), Bearer(owner(scope == READ), limits, scope)) for token, scope in tokens.items()
        ]  # fmt: skip
        self._limits = limits
        self._issued, self._guest = issued, guest
        self._grants: Grants | None = None
        self._failed: tuple[float, HoldfastError | None] = (0.0, None)
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        """Held for a moment only: the event loop takes it too."""
        self._known: OrderedDict[str, Bearer] = OrderedDict()

    def known(self, sent: bytes) -> Bearer | None:
        """Return whose token this is, as far as is known; every token is compared, so that the time tells nothing."""
        found = [bearer for token, bearer in self.fixed if hmac.compare_digest(sent, token)]
        if found:
            return found[0]
        with self._lock:
            return self._known.get(_mark(sent))

    def is_fresh(self, bearer: Bearer | None) -> bool:
        """Need the store not be asked?"""
        if bearer is None:
            return self._issued is None
        return bearer.checked == 0.0 or time.monotonic() - bearer.checked < BELIEVED

    def look(self, sent: bytes) -> Bearer | None:
        """Ask the store whose token this is; raises when it cannot be asked."""
        token = grants.read(sent.decode("ascii", "replace"))
        if token is None:
            return None
        begun, found = time.monotonic(), self._find(token)
        mark = _mark(sent)
        with self._lock:
            if not found:
                self._known.pop(mark, None)
                return None
            bearer = self._known.get(mark) or self._made(found)
            bearer.checked = begun
            self._known[mark] = bearer
            self._known.move_to_end(mark)
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        if found.used != today():
            with contextlib.suppress(HoldfastError):  # a server that may only read cannot note it
                self.grants().note_use(found.tenant, found.id)
        return bearer

    def grants(self) -> Grants:
        """Return the grants of the store, opened by the first who needs them; again by the next if that failed."""
        assert self._issued is not None  # only asked for where there are some
        with self._opening:
            if self._grants is None:
                since, error = self._failed
                if error and time.monotonic() - since < _PAUSE:
                    raise error  # else all who wait here would knock one after the other
                try:
                    self._grants = self._issued()
                except HoldfastError as error:
                    self._failed = (time.monotonic(), error)
                    raise
            return self._grants

    def check(self) -> None:
        """See that the store can be used, or raise why not."""
        if self._issued:
            self.grants().check()

    def close(self) -> None:
        with self._opening:
            if self._grants:
                self._grants.close()
                self._grants = None

    def _find(self, token: Token) -> Grant | None:
        try:
            found = self.grants().find(token.tenant, token.id)
        except Invalid:  # no tenant can have that name
            found = None
        return found if grants.fits(token, found) else None

    def _made(self, grant: Grant) -> Bearer:
        assert self._guest is not None
        return Bearer(self._guest(grant), self._limits, f"{grant.tenant}/{grant.id}")


def _mark(sent: bytes) -> str:
    """Return what a token is remembered by; not the token itself."""
    return grants.digest(sent.decode("latin-1"))
