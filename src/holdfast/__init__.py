"""Holdfast: the memory that AI agents keep, in files their owner can read.

    import holdfast

    with holdfast.open("~/memory") as memory:
        memory.put("note", "We deploy on Tuesdays.", title="Deploys")
        for hit in memory.find("when do we deploy"):
            print(hit.record.where, hit.snippet)

Nothing happens at import: the store is loaded when it is first asked for.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.memory import Memory
    from holdfast.model.queries import Query
    from holdfast.model.records import Draft, Receipt, Record, Scope
    from holdfast.owner.backup import Copied

__version__ = "0.1.0"
__all__ = ["Draft", "Memory", "Query", "Receipt", "Record", "Scope", "__version__", "open", "restore"]

_HOME = {"Memory": "holdfast.memory", "Query": "holdfast.model.queries"}
"""The modules of public names; the others are in `holdfast.model.records`."""


def open(root: str | os.PathLike[str], *, watch: bool = False, writer: str = "") -> Memory:
    """Open the memory in a folder.

    `watch` follows file changes in a thread, for processes that live long; `writer` is noted beside everything
    that is written.
    """
    from holdfast.memory import open_memory

    return open_memory(root, watch=watch, writer=writer)


def restore(backup: str | os.PathLike[str], path: str | os.PathLike[str]) -> Copied:
    """Make a memory of a backup, in a folder that is new or empty; nothing is there unless all of it is."""
    from holdfast.owner.backup import restore

    return restore(os.fspath(backup), os.fspath(path))


def __getattr__(name: str) -> Any:
    if name in __all__:
        import importlib

        return getattr(importlib.import_module(_HOME.get(name, "holdfast.model.records")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
