"""Authentication over HTTP: the owner's two tokens, the tokens that were issued, and how often each may be used.

The owner's tokens are in files that only the owner can read, outside the memory root, which may be shared: one allows
everything, one only reading. They are created at first use; removing a file makes a new token at the next start. Grants
of issued tokens are in a table of a database or, for a folder, in a file beside the owner's tokens.
A grant that was looked up is trusted for a moment, so that not every request asks the store; a revoked token stops
working within seconds. If the store cannot be asked, the request is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import AlreadyExists, Conflict, Damaged, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.model import grants
from holdfast.model.grants import Grant
from holdfast.model.times import today, utc_now
from holdfast.roots import driver, is_address, open_folder

if TYPE_CHECKING:
    from holdfast.mcp.server import Caller
    from holdfast.storage.postgres.database import PgGrants

    MakeCaller = Callable[[Grant | None, bool], Caller]
    """Returns the caller with a grant, or the owner, and whether it may only read."""

FRESH_SECONDS = 2.0
"""An issued token is not looked up again for this long."""
_MOST_CACHED = 10_000
_PAUSE_SECONDS = 1.0
"""The wait before a store that could not be opened is tried again."""
_TRIES = 50
_MOST_BYTES = 4 << 20


class Limits(msgspec.Struct, frozen=True):
    requests: float = 200.0
    """Requests per second for each token, in the long run."""
    strangers: float = 20.0
    """Requests per second without a valid token, for each address; the rest is refused unread."""
    burst: float = 10.0
    """Requests of this many seconds may come at once."""
    body_seconds: float = 30.0
    """How long a client may take to send the body of a request."""
    connections: int = 256
    """Open connections; above that, requests are answered with 503."""


class Bucket:
    """A token bucket: it refills every second, up to a burst."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._most = rate, rate * burst
        self._left, self._seen = self._most, time.monotonic()

    def take(self) -> bool:
        """Return whether one more request is allowed now."""
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._seen) * self._rate)
        self._seen = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Bearer:
    """A valid token: its caller and its rate limit. `user` keeps its sessions apart from those of other tokens."""

    def __init__(self, caller: Caller, limits: Limits, user: str) -> None:
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser  # `holdfast token` does without the SDK
        from mcp.server.auth.provider import AccessToken

        self.caller = caller
        self.name = user
        self.bucket = Bucket(limits.requests, limits.burst)
        self.user = AuthenticatedUser(AccessToken(token="", client_id=user, scopes=[]))
        self.checked = 0.0
        """When the store was asked last; 0 for the owner's tokens."""

    @property
    def is_fresh(self) -> bool:
        """Can it be trusted without asking the store?"""
        return self.checked == 0.0 or time.monotonic() - self.checked < FRESH_SECONDS


class Auth:
    """The tokens of a server: the owner's, each with whether it only reads, and those issued for a store."""

    def __init__(self, store: str, owner_tokens: Mapping[str, bool], limits: Limits, caller: MakeCaller) -> None:
        self.owners = [
            (token.encode(), Bearer(caller(None, reads_only), limits, "read" if reads_only else "write"))
            for token, reads_only in owner_tokens.items()
        ]
        self._store = store
        self._limits = limits
        self._caller = caller
        self._grants: FileGrants | PgGrants | None = None
        self._failed: tuple[float, HoldfastError | None] = (0.0, None)
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        """Never held for long: the event loop takes it too."""
        self._cache: OrderedDict[str, Bearer] = OrderedDict()

    def known(self, sent: bytes) -> Bearer | None:
        """Return the bearer of a token without asking the store; all owner tokens are compared in constant time."""
        found = [bearer for token, bearer in self.owners if hmac.compare_digest(sent, token)]
        if found:
            return found[0]
        with self._lock:
            return self._cache.get(_cache_key(sent))

    def look_up(self, sent: bytes) -> Bearer | None:
        """Ask the store for the bearer of a token; raises when it cannot be asked."""
        token = grants.parse(sent.decode("ascii", "replace"))
        if token is None:
            return None
        begun = time.monotonic()
        try:
            found = self.grants().find(token.tenant, token.id)
        except Invalid:  # no tenant can have that name
            found = None
        valid, key = grants.matches(token, found), _cache_key(sent)
        with self._lock:
            if not valid or not found:
                self._cache.pop(key, None)
                return None
            bearer = self._cache.get(key)
            if bearer is None:
                bearer = Bearer(self._caller(found, found.reads_only), self._limits, f"{found.tenant}/{found.id}")
            bearer.checked = begun
            self._cache[key] = bearer
            self._cache.move_to_end(key)
            if len(self._cache) > _MOST_CACHED:
                self._cache.popitem(last=False)
        if found.used != today():
            with contextlib.suppress(HoldfastError):  # a server that may only read cannot record it
                self.grants().note_use(found.tenant, found.id)
        return bearer

    def grants(self) -> FileGrants | PgGrants:
        """Return the grants of the store, opened at first use; after a failure, again after a pause."""
        with self._opening:
            if self._grants is None:
                since, error = self._failed
                if error and time.monotonic() - since < _PAUSE_SECONDS:
                    raise error  # or every waiting request would try to connect, one after the other
                try:
                    self._grants = open_grants(self._store)
                except HoldfastError as error:
                    self._failed = (time.monotonic(), error)
                    raise
            return self._grants

    def close(self) -> None:
        with self._opening:
            if self._grants:
                self._grants.close()
                self._grants = None


def _cache_key(sent: bytes) -> str:
    """Return a digest, so that the token itself is not kept."""
    return grants.digest(sent.decode("latin-1"))


# the owner's tokens


def token_for(root: str, *, read_only: bool = False) -> tuple[str, str]:
    """Return the owner's token for a memory and its file, created at first use."""
    path = path_for(root) + (".read" if read_only else "")
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if not os.path.lexists(path):
            unfinished = f"{path}.{secrets.token_hex(8)}"
            fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, secrets.token_urlsafe(32).encode() + b"\n")
                os.fsync(fd)
                with contextlib.suppress(FileExistsError):  # another process was faster
                    os.link(unfinished, path)
            finally:
                os.close(fd)
                os.unlink(unfinished)
        return _read_token(path), path
    except OSError as error:
        raise Unavailable(f"The token file {path}: {error.strerror}.", "Check its permissions.") from None


def path_for(root: str) -> str:
    """Return the token file of a folder, or of a database, whatever login its address has."""
    location = (
        _connections().parse_address(root).shown if is_address(root) else os.path.realpath(os.path.expanduser(root))
    )
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(config, "holdfast", "tokens", hashlib.sha256(os.fsencode(location)).hexdigest()[:16])


def _read_token(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise Unavailable(f"The token file {path} is not a file of yours.", "Remove it, and start again.")
        if found.st_mode & 0o077:
            raise Unavailable(f"The token file {path} can be read by others.", f"Run: chmod 600 {path}")
        token = os.read(fd, 1000).decode("ascii", "replace").strip()
    finally:
        os.close(fd)
    if len(token) < 16 or not token.isascii():
        raise Damaged(f"The token file {path} has no token.", "Remove it, and start again.")
    return token


# issued tokens


def issue(store: str, name: str, scope: str = "", *, reads_only: bool = False, expires: str = "") -> tuple[Grant, str]:
    """Create a token for a store and its tenant, and save the grant; the token itself is not stored."""
    grant, token = grants.create(name, tenant_of(store), scope, reads_only=reads_only, expires=expires)
    with contextlib.closing(open_grants(store)) as saved:
        saved.add(grant)
    return grant, token


def open_grants(store: str) -> FileGrants | PgGrants:
    """Return the grants of a store; Unavailable when it cannot be reached."""
    if not is_address(store):
        return FileGrants(store)
    with driver():
        from holdfast.storage.postgres.database import PgGrants
    return PgGrants(store)


def for_tenant(store: str, tenant: str) -> str:
    """Return the address of a tenant of a store; a folder has none."""
    if not tenant:
        return store
    if not is_address(store):
        raise Invalid("A memory in a folder has no tenants.", "Leave --tenant out, or name a database.")
    address: str = _connections().for_tenant(store, tenant)
    return address


def tenant_of(store: str) -> str:
    """Return the tenant that an address names; "" for a folder."""
    return _connections().parse_address(store).tenant if is_address(store) else ""


def _connections() -> ModuleType:
    with driver():
        from holdfast.storage.postgres import connections
    return connections


class FileGrants:
    """The grants of a folder; `PgGrants` has the same methods."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(os.path.expanduser(root))
        folder, name = os.path.split(path_for(root))
        self._name = f"{name}.json"
        self._path = os.path.join(folder, self._name)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"The folder {folder}: {error.strerror}.", "Check its permissions.") from None
        self._tree = open_folder(folder)

    def find(self, tenant: str, identifier: str) -> Grant | None:
        """Return a grant of a tenant by its id."""
        return next((grant for grant in self.all() if grant.id == identifier and not tenant), None)

    def all(self) -> list[Grant]:
        """Return all grants, oldest first."""
        return self._load()[0]

    def add(self, grant: Grant) -> None:
        """Save a new grant; AlreadyExists if a valid one has its name."""

        def change(known: list[Grant]) -> list[Grant]:
            if any(one.name == grant.name and not one.revoked for one in known):
                raise AlreadyExists(f"There is a token {grant.name!r} already.", "Revoke it, or use another name.")
            return [*known, grant]

        self._change(change)

    def revoke(self, identifier: str) -> None:
        self._set(identifier, lambda one: one if one.revoked else msgspec.structs.replace(one, revoked=utc_now()))

    def note_use(self, tenant: str, identifier: str) -> None:
        """Record that a grant was used today."""
        del tenant
        self._set(identifier, lambda one: one if one.used == today() else msgspec.structs.replace(one, used=today()))

    def check(self) -> None:
        """Raise, quickly, if the store cannot be reached."""
        if not os.path.isdir(self._root) or not os.access(self._root, os.R_OK | os.X_OK):
            raise Unavailable("The folder of the memory cannot be read.", "Check whether it is mounted.")
        self._load()

    def close(self) -> None:
        self._tree.close()

    def _set(self, identifier: str, changed: Callable[[Grant], Grant]) -> None:
        self._change(lambda known: [changed(one) if one.id == identifier else one for one in known])

    def _change(self, change: Callable[[list[Grant]], list[Grant]]) -> None:
        with contextlib.suppress(FileExistsError):  # create it private; the file that replaces it keeps its mode
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        for _ in range(_TRIES):
            known, version = self._load()
            wanted = change(known)
            if wanted == known:
                return
            with contextlib.suppress(Conflict):
                data = msgspec.json.format(msgspec.json.encode(wanted), indent=1) + b"\n"
                self._tree.write(self._name, data, expect=version)
                return
        raise Conflict(f"{self._path} is being changed by other processes.", "Try again later.")

    def _load(self) -> tuple[list[Grant], str]:
        try:
            document = self._tree.read(self._name, _MOST_BYTES)
        except NotFound:
            return [], ""
        try:
            return msgspec.json.decode(document.data or b"[]", type=list[Grant]), document.version
        except msgspec.MsgspecError as error:
            raise Damaged(f"{self._path} cannot be read: {error}.", "Fix it, or remove it.") from None
