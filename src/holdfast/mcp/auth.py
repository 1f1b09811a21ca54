"""Tokens, their rights, and the memory that each of them sees. Both HTTP servers use it.

The owner's two tokens are in files outside the memory root, which may be shared: one allows everything, one only
reading. Grants of issued tokens are in a table of a database or, for a folder, in a file beside the owner's tokens. A
grant that was looked up is trusted for a moment; a revoked token stops working within seconds. If the store cannot be
asked, the request is refused.

The store is opened when a request needs it, so a server can start while its database is down; it reconnects by
itself. Each tenant's memory and each scope of it is opened once. Of many tenants, the least recently used is closed,
never while it is in use. Closing a memory ends the notes of its runs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import os
import secrets
import stat
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import AlreadyExists, Conflict, Damaged, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.mcp.server import CALLER, WRITER, Caller, LazyMemory, set_context
from holdfast.memory import Memory, in_store, open_memory, open_within
from holdfast.model import grants
from holdfast.model.grants import Grant
from holdfast.model.times import today, utc_now
from holdfast.roots import Tenants, driver, is_address, open_folder
from holdfast.storage.log import attempts
from holdfast.tools.calling import Context

if TYPE_CHECKING:
    from anyio import CapacityLimiter

    from holdfast.mcp.health import Health
    from holdfast.storage.postgres.database import PgGrants

FRESH_SECONDS = 2.0
"""An issued token is not looked up again for this long."""
MOST_OPEN = 32
"""Tenants whose memories stay open at once, unless more are in use."""
MOST_KNOWN = 10_000
"""Tokens, addresses without a token, and connections that are remembered."""
_LOOKUPS = 8
"""Tokens that the server has not seen yet and that are looked up at once."""
_PAUSE_SECONDS = 1.0
"""The wait before a store that could not be opened is tried again."""


class RateLimits(msgspec.Struct, frozen=True):
    requests: float = 200.0
    """Requests per second for each token, in the long run."""
    strangers: float = 20.0
    """Requests per second without a valid token, for each address; further ones are refused unread."""
    burst: float = 10.0
    """Requests of this many seconds may come at once."""
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


class Bearer(msgspec.Struct):
    """A valid token: its caller, its name in logs and sessions, and its rate limit."""

    caller: Caller
    name: str
    bucket: Bucket
    checked: float = 0.0
    """When the store was asked last; 0 for the owner's tokens."""

    @property
    def is_fresh(self) -> bool:
        return self.checked == 0.0 or time.monotonic() - self.checked < FRESH_SECONDS


class Refused(Exception):
    """A refused request: its HTTP status, and the reason."""


class Auth:
    """The tokens of a server: the owner's, each with whether it only reads, and those issued for the store."""

    def __init__(
        self,
        store: str,
        defaults: Context,
        owned: Mapping[str, bool],
        health: Health,
        limits: RateLimits,
        folder: str = "",
    ) -> None:
        self.memories = MemoryPool(store, defaults, self._prepare, folder=folder)
        self._store, self._health, self._limits = store, health, limits
        self._own_tenant, self._in_database = tenant_of(store), is_address(store)
        self.owners = [
            (token.encode(), self._bearer("read" if reads_only else "write", None, reads_only))
            for token, reads_only in owned.items()
        ]
        self._grants: FileGrants | PgGrants | None = None
        self._failed: tuple[float, HoldfastError | None] = (0.0, None)
        self._opening = threading.Lock()
        self._issued: dict[bytes, Bearer] = {}
        """By the hash of the token; the token itself is not stored."""
        self.bucket_of = functools.lru_cache(MOST_KNOWN)(lambda _address: Bucket(limits.strangers, limits.burst))
        """Returns the bucket of an address for its requests without a valid token."""
        self._lookups: CapacityLimiter | None = None

    async def admit(self, authorization: str, address: str, *, foreign: bool) -> Bearer | None:
        """Return the bearer of the token of a request, None if it has no valid one; Refused if it comes too fast.

        A request of a foreign web page or host is counted too, but the store is not asked for it.
        """
        import anyio.to_thread  # part of the extra `http`, which the commands for tokens do not need

        scheme, _, given = authorization.partition(" ")
        sent = given.strip().encode() if scheme.lower() == "bearer" else b""
        bearer = self.known(sent)
        if not foreign and sent and (bearer is None or not bearer.is_fresh):
            self._lookups = self._lookups or anyio.CapacityLimiter(_LOOKUPS)
            limiter = None if bearer else self._lookups  # a flood of unknown tokens must not use all threads
            try:
                bearer = await anyio.to_thread.run_sync(self.look_up, sent, limiter=limiter)
            except HoldfastError:
                raise Refused(503, "The store does not answer") from None
        if not (bearer.bucket if bearer else self.bucket_of(address)).take():
            raise Refused(429, "Too many requests")
        return bearer

    def known(self, sent: bytes) -> Bearer | None:
        """Return the bearer of a token without asking the store; all owner tokens are compared in constant time."""
        found = [bearer for token, bearer in self.owners if hmac.compare_digest(sent, token)]
        return found[0] if found else self._issued.get(hashlib.sha256(sent).digest())

    def look_up(self, sent: bytes) -> Bearer | None:
        """Ask the store for the bearer of a token; raises when it cannot be asked."""
        token = grants.parse(sent.decode("ascii", "replace"))
        if token is None:
            return None
        begun, grant = time.monotonic(), None
        with contextlib.suppress(Invalid):  # not a possible name of a tenant
            grant = self.grants().find(token.tenant, token.id)
        key = hashlib.sha256(sent).digest()
        if not grants.matches(token, grant) or not grant:
            self._issued.pop(key, None)
            return None
        if len(self._issued) >= MOST_KNOWN:
            self._issued.clear()
        bearer = self._issued.setdefault(key, self._bearer(f"{grant.tenant}/{grant.id}", grant, grant.reads_only))
        bearer.checked = begun
        if grant.used != today():
            with contextlib.suppress(HoldfastError):  # a read-only server cannot record it
                self.grants().note_use(grant.tenant, grant.id)
        return bearer

    def grants(self) -> FileGrants | PgGrants:
        """Return the grants of the store, opened at first use; after a failure, again after a pause."""
        with self._opening:
            if self._grants is None:
                since, error = self._failed
                if error and time.monotonic() - since < _PAUSE_SECONDS:
                    raise error  # otherwise each waiting request would try to connect, one after another
                try:
                    self._grants = open_grants(self._store)
                except HoldfastError as error:
                    self._failed = (time.monotonic(), error)
                    raise
            return self._grants

    def close(self) -> None:
        self.memories.close()
        with self._opening:
            if self._grants:
                self._grants.close()
                self._grants = None

    def _bearer(self, name: str, grant: Grant | None, reads_only: bool) -> Bearer:
        """Return the bearer of a grant, or the owner: the tenant and the scope of the grant select the memory."""
        key = Key(grant.tenant if self._in_database else "", grant.scope) if grant else Key(self._own_tenant)
        caller = Caller(
            use=(lambda: self._use(key)) if grant else (lambda: self.memories.use(key)),
            start=lambda: self.memories.start(key),
            reads_only=reads_only,
            bound=bool(key.scope),
            tenant=key.tenant,
            token=grant.name if grant else "",
            on_failure=self._health.called,
        )
        return Bearer(caller, name, Bucket(self._limits.requests, self._limits.burst))

    @contextlib.contextmanager
    def _use(self, key: Key) -> Iterator[Memory]:
        """Use a memory for a caller to whom errors of the store are not shown."""
        opened = False
        try:
            with self.memories.use(key) as memory:
                opened = True
                yield memory
        except HoldfastError as error:
            if opened and not isinstance(error, Unavailable):
                raise
            raise self._health.hidden(error) from None

    def _prepare(self, memory: Memory) -> None:
        def rephrase(error: HoldfastError) -> HoldfastError:
            """Return the error that a caller gets: the owner in full, an issued token no details of the store."""
            caller = CALLER.get()
            internal = isinstance(error, Unavailable) or type(error) is HoldfastError
            return self._health.hidden(error) if internal and caller and caller.token else error

        memory.tools.on_call = self._health.called
        memory.tools.rephrase = rephrase


# memories


class Key(msgspec.Struct, frozen=True):
    tenant: str = ""
    scope: str = ""


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
        self._opened: OrderedDict[str, dict[str, LazyMemory]] = OrderedDict()
        """By tenant, the least recently used first, and by scope; the whole memory of a tenant is the first."""
        self._users: Counter[str] = Counter()
        """By tenant, how many calls use any of its memories."""
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
        return sum(map(len, list(self._opened.values())))

    def waiting(self) -> int:
        """Return how many changed files are not indexed yet."""
        return sum(memory.store.waiting for each in list(self._opened.values()) if (memory := each[""].opened))

    def close(self) -> None:
        with self._lock:
            left = list(self._opened.values())
            self._opened.clear()
        self._close(left)
        if self._tenants:
            self._tenants.close()

    @contextlib.contextmanager
    def _entered(self, key: Key) -> Iterator[LazyMemory]:
        """Yield a memory and keep it in the pool meanwhile; close idle ones if there are too many."""
        with self._lock:
            memories = self._opened.setdefault(key.tenant, {"": LazyMemory(lambda: self._open(key))})
            self._opened.move_to_end(key.tenant)
            self._users[key.tenant] += 1
            whole = memories[""]
            if key.scope not in memories:
                memories[key.scope] = LazyMemory(lambda: self._open(key, whole))
            idle = [tenant for tenant in self._opened if not self._users[tenant]]
            spare = [self._opened.pop(tenant) for tenant in idle[: max(0, len(self._opened) - self._most)]]
        try:
            self._close(spare)
            yield memories[key.scope]
        finally:
            with self._lock:
                self._users[key.tenant] -= 1

    def _close(self, spare: list[dict[str, LazyMemory]]) -> None:
        for memories in spare:
            for memory in reversed(memories.values()):
                with contextlib.suppress(HoldfastError):
                    memory.close()

    def _open(self, key: Key, whole: LazyMemory | None = None) -> Memory:
        """Open the memory of a tenant, or a scope of the `whole` one."""
        if whole:
            memory = open_within(whole.get(), key.scope)
        else:
            if self._tenants:
                memory = in_store(self._tenants.open_store(key.tenant, writer=WRITER))
                memory.store.watch()
            else:
                memory = open_memory(self._store, watch=True, writer=WRITER)
            set_context(memory, self._defaults, self._folder)
        self._prepare(memory)
        return memory


# the owner's tokens


def token_for(root: str, *, read_only: bool = False) -> tuple[str, str]:
    """Return the owner's token for a memory and its file, created at first use; only the owner may read the file."""
    path = path_for(root) + (".read" if read_only else "")
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if not os.path.lexists(path):
            fd, unfinished = tempfile.mkstemp(dir=os.path.dirname(path))
            try:
                os.write(fd, secrets.token_urlsafe(32).encode() + b"\n")
                os.fsync(fd)
                with contextlib.suppress(FileExistsError):  # another process was faster
                    os.link(unfinished, path)
            finally:
                os.close(fd)
                os.unlink(unfinished)
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise Unavailable(f"The token file {path} is not yours.", "Remove it, and start again.")
            if found.st_mode & 0o077:
                raise Unavailable(f"The token file {path} can be read by other users.", f"Run: chmod 600 {path}")
            token = file.read(1000).decode("ascii", "replace").strip()
    except OSError as error:
        raise Unavailable(f"The token file {path}: {error.strerror}.", "Check its permissions.") from None
    if len(token) < 16 or not token.isascii():
        raise Damaged(f"The token file {path} has no token.", "Remove it, and start again.")
    return token, path


def path_for(root: str) -> str:
    """Return the token file of a folder, or of a database, whatever login its address has."""
    location = os.path.realpath(os.path.expanduser(root))
    if is_address(root):
        location = _connections().parse_address(root).shown
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(config, "holdfast", "tokens", hashlib.sha256(os.fsencode(location)).hexdigest()[:16])


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
    if not is_address(store):
        raise Invalid("A memory in a folder has no tenants.", "Leave --tenant out, or name a database.")
    return str(_connections().for_tenant(store, tenant))


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
        self._path = f"{path_for(root)}.json"
        folder, self._name = os.path.split(self._path)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"The folder {folder}: {error.strerror}.", "Check its permissions.") from None
        self._tree = open_folder(folder)

    def find(self, tenant: str, identifier: str) -> Grant | None:
        return next((grant for grant in self.all() if grant.id == identifier and not tenant), None)

    def all(self) -> list[Grant]:
        return self._load()[0]

    def add(self, grant: Grant) -> None:
        """Save a new grant; AlreadyExists if a valid one has its name."""

        with contextlib.suppress(FileExistsError):  # create it private; the file that replaces it keeps its mode
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

        def change(known: list[Grant]) -> list[Grant]:
            if any(one.name == grant.name and not one.revoked for one in known):
                raise AlreadyExists(f"There is a token {grant.name!r} already.", "Revoke it, or use another name.")
            return [*known, grant]

        self._change(change)

    def revoke(self, identifier: str) -> None:
        self._set(identifier, revoked=utc_now())

    def note_use(self, _tenant: str, identifier: str) -> None:
        self._set(identifier, used=today())

    def check(self) -> None:
        """Raise, quickly, if the store cannot be reached."""
        if not os.path.isdir(self._root) or not os.access(self._root, os.R_OK | os.X_OK):
            raise Unavailable("The folder of the memory cannot be read.", "Check whether it is mounted.")
        self._load()

    def close(self) -> None:
        self._tree.close()

    def _set(self, identifier: str, **fields: str) -> None:
        """Set fields of a grant; a grant that was revoked stays as it is."""
        replace = msgspec.structs.replace
        self._change(
            lambda known: [replace(one, **fields) if one.id == identifier and not one.revoked else one for one in known]
        )

    def _change(self, change: Callable[[list[Grant]], list[Grant]]) -> None:
        for _ in attempts(self._path):
            known, version = self._load()
            wanted = change(known)
            if wanted == known:
                return
            with contextlib.suppress(Conflict):
                data = msgspec.json.format(msgspec.json.encode(wanted), indent=1) + b"\n"
                self._tree.write(self._name, data, expect=version)
                return

    def _load(self) -> tuple[list[Grant], str]:
        try:
            document = self._tree.read(self._name, 4 << 20)
        except NotFound:
            return [], ""
        try:
            return msgspec.json.decode(document.data or b"[]", type=list[Grant]), document.version
        except msgspec.MsgspecError as error:
            raise Damaged(f"{self._path} cannot be read: {error}.", "Fix it, or remove it.") from None
