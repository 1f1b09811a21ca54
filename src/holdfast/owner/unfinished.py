"""A folder in the making beside the place that it is for: it gets its name when it is whole, or is removed.

It is locked while somebody works on it. One that nobody holds was left by a process that is gone, and is removed by the
next one that works there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator

from holdfast.errors import Busy
from holdfast.storage.files import locks
from holdfast.storage.files.descriptors import TEMPORARY
from holdfast.storage.tree import Vault

_PREFIX = f"{TEMPORARY}whole-"
_SECONDS = 10.0
_TRIES = 10


class Unfinished:
    """A folder that has no name of its own yet."""

    def __init__(self, parent: Vault, name: str) -> None:
        self._parent = parent
        self._name = name
        self.location = os.path.join(parent.location, name)

    def offer(self, name: str) -> None:
        """Give it its name, durably; AlreadyExists when something has it."""
        self._parent.move(self._name, name)


@contextlib.contextmanager
def made(parent: Vault) -> Iterator[Unfinished]:
    """Make a folder to work in; whatever is left of it afterwards is removed."""
    made, fd = _make(parent)
    try:
        yield made
    finally:
        shutil.rmtree(made.location, ignore_errors=True)
        os.close(fd)


def _make(parent: Vault) -> tuple[Unfinished, int]:
    for _ in range(_TRIES):
        made = Unfinished(parent, _PREFIX + secrets.token_hex(8))
        parent.make_folder(os.path.basename(made.location))
        fd = os.open(made.location, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        locks.hold(fd, _SECONDS, made.location)
        if os.path.isdir(made.location):  # nobody took it for one that was left, before it was held
            return made, fd
        os.close(fd)
    raise Busy(f"{parent.location} is tidied by others all the time.", "Try again.")


def sweep(folder: str) -> None:
    """Remove what was left in a folder by processes that are gone."""
    for name in os.listdir(folder):
        if name.startswith(_PREFIX):
            with contextlib.suppress(OSError):
                fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    if locks.free(fd):
                        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
                finally:
                    os.close(fd)
