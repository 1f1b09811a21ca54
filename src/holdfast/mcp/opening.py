"""A memory that is opened when it is needed: a server answers `tools/list` before it has looked at any file.

Opening is tried again by the next call when it failed, so that a root that comes back is found without a restart.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError
from holdfast.tools.calling import Context

if TYPE_CHECKING:
    from holdfast.memory import Memory


WRITER = "mcp"
"""What is noted as the writer of all that comes through this door."""


class Opening:
    """Opens a memory once, in the thread that asks first; all others wait for it."""

    def __init__(self, opener: Callable[[], Memory]) -> None:
        self._opener = opener
        self._lock = threading.Lock()
        self._memory: Memory | None = None
        self._begun = False

    def __call__(self) -> Memory:
        """Return the memory, opened."""
        with self._lock:
            if self._memory is None:
                self._memory = self._opener()
            return self._memory

    @property
    def opened(self) -> Memory | None:
        """The memory if it is open."""
        return self._memory

    def begin(self) -> None:
        """Open it in the background; what goes wrong there is told to the first call that needs it."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._try, name="holdfast-open", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            if self._memory is not None:
                self._memory.close()
                self._memory = None

    def _try(self) -> None:
        with contextlib.suppress(HoldfastError):
            self()


def at(root: str, defaults: Context) -> Opening:
    """Return the opening of the memory in a folder, for a server that was started with these defaults."""

    def opener() -> Memory:
        from holdfast.memory import open_memory

        memory = open_memory(root, watch=True, writer=WRITER)
        memory.context = defaults
        return memory

    return Opening(opener)
