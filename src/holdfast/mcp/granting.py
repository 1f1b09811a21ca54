"""Where the grants of a store are: in a table of a database, or, for a folder, in a file beside its other tokens.

The file is the owner's alone and lies outside the memory root, which may be shared, pushed or put under git. Only what
the store needs to know a token again is in it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import msgspec

from holdfast import roots
from holdfast.errors import AlreadyExists, Conflict, Damaged, Invalid, NotFound, Unavailable
from holdfast.mcp import tokens
from holdfast.model import grants
from holdfast.model.grants import Grant, Grants
from holdfast.model.times import today, utc_now
from holdfast.roots import is_address, open_folder

_TRIES = 50
_MOST = 4 << 20


def of(store: str) -> Grants:
    """Return the grants of a store; Unavailable when it cannot be reached."""
    if not is_address(store):
        return FileGrants(store)
    with roots.driver():
        from holdfast.storage.postgres.grants import PgGrants  # few need it
    return PgGrants(store)


def for_tenant(store: str, tenant: str) -> str:
    """Return the address of a tenant of a store; a folder has none."""
    if not tenant:
        return store
    if not is_address(store):
        raise Invalid("A memory in a folder has no tenants.", "Leave --tenant out, or name a database.")
    with roots.driver():
        from holdfast.storage.postgres.addresses import for_tenant as address_for
    return address_for(store, tenant)


def tenant_of(store: str) -> str:
    """Return the tenant that an address names; "" for a folder."""
    if not is_address(store):
        return ""
    with roots.driver():
        from holdfast.storage.postgres.addresses import parse
    return parse(store).tenant


class FileGrants:
    """The grants of a folder."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(os.path.expanduser(root))
        folder, name = os.path.split(tokens.path_for(root))
        self._name = f"{name}.json"
        self._path = os.path.join(folder, self._name)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"The folder {folder}: {error.strerror}.", "Check its permissions.") from None
        self._vault = open_folder(folder)

    def find(self, tenant: str, identifier: str) -> Grant | None:
        found = [grant for grant in self.all() if grant.id == identifier]
        return found[0] if found and not tenant else None

    def all(self) -> list[Grant]:
        return self._load()[0]

    def add(self, grant: Grant) -> None:
        def change(known: list[Grant]) -> list[Grant]:
            if any(one.name == grant.name and not one.revoked for one in known):
                raise AlreadyExists(f"There is a token {grant.name!r} already.", "Revoke it, or use another name.")
            return [*known, grant]

        self._change(change)

    def revoke(self, identifier: str) -> None:
        self._set(identifier, lambda one: one if one.revoked else msgspec.structs.replace(one, revoked=utc_now()))

    def note_use(self, tenant: str, identifier: str) -> None:
        del tenant
        self._set(identifier, lambda one: one if one.used == today() else msgspec.structs.replace(one, used=today()))

    def check(self) -> None:
        if not os.path.isdir(self._root) or not os.access(self._root, os.R_OK | os.X_OK):
            raise Unavailable("The folder of the memory cannot be read.", "Look whether it is mounted.")
        self._load()

    def close(self) -> None:
        self._vault.close()

    def _set(self, identifier: str, changed: Callable[[Grant], Grant]) -> None:
        self._change(lambda known: [changed(one) if one.id == identifier else one for one in known])

    def _change(self, change: Callable[[list[Grant]], list[Grant]]) -> None:
        self._make()
        for _ in range(_TRIES):
            known, version = self._load()
            wanted = change(known)
            if wanted == known:
                return
            with contextlib.suppress(Conflict):
                data = msgspec.json.format(msgspec.json.encode(wanted), indent=1) + b"\n"
                self._vault.write(self._name, data, expect=version)
                return
        raise Conflict(f"{self._path} is changed by others all the time.", "Try again later.")

    def _make(self) -> None:
        """Make the file, so that nobody else can read it from its first moment on; what replaces it keeps its mode."""
        with contextlib.suppress(FileExistsError):
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.close(fd)

    def _load(self) -> tuple[list[Grant], str]:
        try:
            document = self._vault.read(self._name, _MOST)
        except NotFound:
            return [], ""
        try:
            return msgspec.json.decode(document.data or b"[]", type=list[Grant]), document.version
        except msgspec.MsgspecError as error:
            raise Damaged(f"{self._path} cannot be read: {error}.", "Mend it, or remove it.") from None


def issue(store: str, name: str, scope: str = "", *, reads_only: bool = False, expires: str = "") -> tuple[Grant, str]:
    """Make a token for a store, whose tenant its address names, and keep the grant; the token is told here alone."""
    grant, token = grants.make(name, tenant_of(store), scope, reads_only=reads_only, expires=expires)
    with contextlib.closing(of(store)) as kept:
        kept.add(grant)
    return grant, token
