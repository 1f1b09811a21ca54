"""Opening a memory: its settings, and the engine that it stands on, which its address tells."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.core import Core
from holdfast.errors import Invalid, NotFound, Unavailable
from holdfast.model import settings
from holdfast.model.kinds import KINDS
from holdfast.model.scopes import split
from holdfast.storage.engines import OnFiles, Within
from holdfast.storage.files.tree import Files
from holdfast.storage.tree import Vault

if TYPE_CHECKING:
    from holdfast.storage.postgres.database import Database
    from holdfast.storage.postgres.engine import Health

Opened = TypeVar("Opened", bound=Core)
MOST_SETTINGS = 1 << 20
_ADDRESS = re.compile(r"postgres(ql)?:|[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def open_memory(root: str | os.PathLike[str], *, watch: bool = False, writer: str = "", kind: type[Opened]) -> Opened:
    """Open the memory in a folder that exists, or at the address of a database, as the given kind of Core."""
    if is_address(given := os.fspath(root)):
        memory = _open_database(given, writer, kind)
    else:
        memory = _open_folder(root, writer, kind)
    if watch:
        memory.watch()
    return memory


def open_within(memory: Opened, scope: str) -> Opened:
    """Open one scope of a memory that is open: nothing outside of it can be found, named or written through this.

    It is to be closed before the memory that it is a part of.
    """
    path = "/".join(split(scope))  # as a folder: a name might be that of another by now
    engine = Within(memory.vault, memory.places, path, memory.settings.search)
    alone = msgspec.structs.replace(memory.settings, shared=settings.Shared())  # what is shared lies outside
    return type(memory)(engine, alone, memory.writer)


def is_address(root: str) -> bool:
    """Is this where a database is, or is meant to be, and no folder?"""
    return bool(_ADDRESS.match(root))


def on_disk(path: str) -> str:
    """Return a path that somebody gave for files; an address is none, and no folder may come to have it for a name."""
    if is_address(path):  # which may hold a password
        raise Invalid(
            "A file or folder is needed here, not an address.", "Name one; holdfast push brings a memory to a database."
        )
    return os.path.expanduser(path)


def without_password(address: str) -> str:
    """Return what opens the same memory for whoever has the password from elsewhere: itself, where it has none."""
    with driver():
        from holdfast.storage.postgres import addresses
    read = addresses.parse(address)
    return read.bare if read.secret else address


def without_clear_passwords(address: str) -> str:
    """Return an address that came with some files so that its server gets no password in clear."""
    with driver():
        from holdfast.storage.postgres import addresses
    return addresses.without_clear_passwords(address)


def look_at(address: str) -> Health:
    """Say how a database is, whether or not the memory in it can be opened."""
    with contextlib.closing(_database(address)) as database:
        from holdfast.storage.postgres.engine import check_health

        return check_health(database)


@contextlib.contextmanager
def open_vault(root: str) -> Iterator[Vault]:
    """Open the files of a memory without its settings, for whoever reads or mends those."""
    if not is_address(root):
        with contextlib.closing(Files(folder_of(root))) as files:
            yield files
        return
    database = _database(root)
    from holdfast.storage.postgres.vault import PgVault

    with contextlib.closing(PgVault(database)) as vault:
        yield vault


@contextlib.contextmanager
def driver() -> Iterator[None]:
    """Say what to install where the driver of databases is missing."""
    try:
        yield
    except ImportError as error:
        raise Unavailable(
            f"A memory in a database needs a driver: {error}.", "Run: pip install 'holdfast[postgres]'"
        ) from None


class Tenants:
    """Opens the memories of the tenants of one database, all over the same connections."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._database: Database | None = None

    def open_memory(self, tenant: str, *, writer: str = "", kind: type[Opened]) -> Opened:
        """Open the memory of a tenant; what could not be reached is tried again by the next call."""
        with self._lock:
            if self._database is None:
                self._database = _database(self._address)
            database = self._database
        return _open_on(database.beside(tenant), writer, kind)

    def close(self) -> None:
        """Close the connections; the memories are to be closed before."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None


def _open_database(address: str, writer: str, kind: type[Opened]) -> Opened:
    return _open_on(_database(address), writer, kind)


def _database(address: str) -> Database:
    with driver():
        from holdfast.storage.postgres.engine import open_database  # few need it
    return open_database(address)


def _open_on(database: Database, writer: str, kind: type[Opened]) -> Opened:
    from holdfast.storage.postgres.engine import OnDatabase
    from holdfast.storage.postgres.vault import PgVault

    try:
        config = settings.load(settings_text(PgVault(database)), source=f"{settings.FILE} of {database.location}")
        database.wait_for_others(config.limits.lock_seconds)
        return kind(OnDatabase(database, _identity(config), config, writer), config, writer)
    except BaseException:
        database.close()
        raise


def folder_of(root: str | os.PathLike[str]) -> str:
    """Return the folder of a memory root, which has to be there."""
    location = os.path.realpath(on_disk(os.fspath(root)))
    if not os.path.isdir(location):
        what = "is not a folder" if os.path.lexists(location) else "does not exist"
        raise Unavailable(f"The memory root {location} {what}.", f"Run: holdfast init {location}")
    return location


def _open_folder(root: str | os.PathLike[str], writer: str, kind: type[Opened]) -> Opened:
    location = folder_of(root)
    with contextlib.closing(Files(location)) as files:  # which follows no link out of the root
        config = settings.load(settings_text(files), source=os.path.join(location, settings.FILE))
    limits = config.limits
    vault = Files(location, lock_seconds=limits.lock_seconds, line_bytes=limits.line_bytes)
    derived = os.path.join(location, settings.DERIVED)
    if not os.access(derived if os.path.isdir(derived) else location, os.W_OK | os.X_OK):
        derived = ""
    return kind(OnFiles(vault, derived, _identity(config), config.search), config, writer)


def _identity(config: settings.Settings) -> str:
    """Return a name for all that decides what is read from the files."""
    known = [config.paths, config.limits, list(KINDS.values()), time.tzname, time.timezone]
    return hashlib.sha256(msgspec.json.encode(known)).hexdigest()


def open_folder(path: str | os.PathLike[str]) -> Vault:
    """Open a folder that exists and is no memory root, such as a project's, so that every write stays inside it."""
    location = os.path.realpath(on_disk(os.fspath(path)))
    if not os.path.isdir(location):
        raise Unavailable(f"{location} is not a folder.", "Name a folder that exists.")
    return Files(location)


def settings_text(vault: Vault) -> str:
    """Return the text of a memory's settings, "" when there is none."""
    try:
        return vault.read(settings.FILE, MOST_SETTINGS).data.decode("utf-8")
    except NotFound:
        return ""
    except UnicodeDecodeError:
        raise Invalid(f"{settings.FILE} of {vault.location} is not UTF-8.", "Save it as UTF-8.") from None
