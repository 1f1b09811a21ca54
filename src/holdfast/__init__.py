"""Holdfast: the memory that AI agents keep, in files their owner can read.

    import holdfast

    with holdfast.open("~/memory") as memory:
        memory.put("note", "We deploy on Tuesdays.", title="Deploys")
        for hit in memory.find("when do we deploy"):
            print(hit.record.where, hit.snippet)

Nothing happens at import: the store is loaded at first use.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.aio import AsyncMemory
    from holdfast.memory import Memory
    from holdfast.model.queries import Query
    from holdfast.model.records import Draft, Receipt, Record, Scope
    from holdfast.owner.backup import Copied

__version__ = "0.1.0"
__all__ = [
    "AsyncMemory", "Draft", "Memory", "Query", "Receipt", "Record", "Scope", "__version__", "aopen", "init", "open",
    "restore",
]  # fmt: skip

_HOME = {"AsyncMemory": "holdfast.aio", "Memory": "holdfast.memory", "Query": "holdfast.model.queries"}
"""The modules of public names; the others are in `holdfast.model.records`."""


def open(
    root: str | os.PathLike[str] | None = None, *, create: bool = False, watch: bool = False, writer: str = ""
) -> Memory:
    """Open the memory in a folder, or at the address of a database.

    Without a root it is `$HOLDFAST_ROOT`, the nearest folder upwards with a `holdfast.toml`, or `~/.holdfast`. `create`
    makes it if it does not exist. `watch` follows file changes in a thread, for processes that live long; `writer` is
    recorded with every write.
    """
    from holdfast import memory, roots

    place = os.fspath(root or roots.find_root()[0])
    if create:
        roots.make_missing(place)
    return memory.open_memory(place, watch=watch, writer=writer)


def aopen(
    root: str | os.PathLike[str] | None = None, *, create: bool = False, watch: bool = False, writer: str = ""
) -> AsyncMemory:
    """Open a memory for an async program: `async with holdfast.aopen(…) as memory`, then `await memory.find(…)`."""
    from holdfast.aio import AsyncMemory

    return AsyncMemory(lambda: open(root, create=create, watch=watch, writer=writer))


def init(root: str | os.PathLike[str], *, template: bool = False) -> list[str]:
    """Make a folder a memory, with rules to start from if wanted; return the files that were written.

    Nothing that exists is replaced.
    """
    from holdfast import roots

    return roots.make_root(os.path.expanduser(os.fspath(root)), template)


def restore(backup: str | os.PathLike[str], path: str | os.PathLike[str]) -> Copied:
    """Make a memory from a backup, in a folder that is new or empty: all of it or nothing."""
    from holdfast.owner.backup import restore

    return restore(os.fspath(backup), os.fspath(path))


def __getattr__(name: str) -> Any:
    if name in __all__:
        import importlib

        return getattr(importlib.import_module(_HOME.get(name, "holdfast.model.records")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
