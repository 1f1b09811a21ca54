"""Opening the memory in a folder: its settings, the file engine, the index in `.holdfast/` or else in memory."""

from __future__ import annotations

import hashlib
import os
import time
from typing import TypeVar

import msgspec

from holdfast import settings
from holdfast.errors import Invalid, NotFound, Unavailable
from holdfast.index.sqlite import SqliteIndex
from holdfast.kinds import KINDS
from holdfast.store.memory import Memory
from holdfast.vault import Vault
from holdfast.vault.files import Files

Opened = TypeVar("Opened", bound=Memory)
_MOST_SETTINGS = 1 << 20


def open_memory(root: str | os.PathLike[str], *, watch: bool = False, writer: str = "", kind: type[Opened]) -> Opened:
    """Open the memory in a folder that exists, as an object of the given kind of Memory."""
    location = os.path.realpath(os.path.expanduser(os.fspath(root)))
    if not os.path.isdir(location):
        what = "is not a folder" if os.path.lexists(location) else "does not exist"
        raise Unavailable(f"The memory root {location} {what}.", f"Run: holdfast init {location}")
    config = settings.load(_settings_text(location), source=os.path.join(location, settings.FILE))
    limits = config.limits
    vault = Files(location, lock_seconds=limits.lock_seconds, line_bytes=limits.line_bytes)
    derived = os.path.join(location, settings.DERIVED)
    if not os.access(derived if os.path.isdir(derived) else location, os.W_OK | os.X_OK):
        derived = ""
    known = [config.paths, config.limits, list(KINDS.values()), time.tzname, time.timezone]
    identity = hashlib.sha256(msgspec.json.encode(known)).hexdigest()  # all that decides what is read from the files
    index = SqliteIndex(derived or None, identity, config.search)
    memory = kind(vault, index, config, derived or None, writer)
    if watch:
        memory.watch()
    return memory


def open_folder(path: str | os.PathLike[str]) -> Vault:
    """Open a folder that exists and is no memory root, such as a project's, so that every write stays inside it."""
    location = os.path.realpath(os.path.expanduser(os.fspath(path)))
    if not os.path.isdir(location):
        raise Unavailable(f"{location} is not a folder.", "Name a folder that exists.")
    return Files(location)


def _settings_text(location: str) -> str:
    """Read the settings as everything else is read: no link out of the root is followed."""
    vault = Files(location)
    try:
        return vault.read(settings.FILE, _MOST_SETTINGS).data.decode("utf-8")
    except NotFound:
        return ""
    except UnicodeDecodeError:
        raise Invalid(f"{os.path.join(location, settings.FILE)} is not UTF-8.", "Save it as UTF-8.") from None
    finally:
        vault.close()
