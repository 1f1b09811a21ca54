"""Defences that can be taken out of a worker, to see that a campaign notices: each is named, and what it is is said.

`scripts/prove --defences` runs, for each of them, the campaign that should lose something without it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WITHOUT = "HOLDFAST_PROVE_WITHOUT"
"""Names the defence that workers do without."""


@dataclass(frozen=True)
class Defence:
    what: str
    """What Holdfast does, so that nothing is lost."""
    campaign: str
    """The module that must notice when it is not done."""
    remove: Callable[[], None]


def _data_sync() -> None:
    from holdfast.vault import _raw

    _raw.flush = lambda fd: None


def _folder_sync() -> None:
    os.fsync = lambda fd: None


def _locks(without: Callable[[int], bool]) -> Callable[[], None]:
    """Take the locks out of files or of folders."""

    def remove() -> None:
        from holdfast.vault import _locks

        hold = _locks.hold
        _locks.hold = lambda fd, *rest: None if without(os.fstat(fd).st_mode) else hold(fd, *rest)

    return remove


def _seal() -> None:
    from holdfast.vault import _lines

    _lines.HeldEnd.torn = lambda self: False  # type: ignore[method-assign]


def _comparison() -> None:
    from holdfast.vault.files import Files

    Files._compare = lambda self, folder, path, expect: 0o644  # type: ignore[method-assign]
    from holdfast.store.writing import Writer

    Writer._write = _without_version(Writer._write)  # type: ignore[method-assign]


def _without_version(write: Callable[..., Any]) -> Callable[..., Any]:
    def anyhow(self: Any, path: str, make: Any, wanted: Any) -> Any:
        import msgspec

        from holdfast.store.writing import ANY
        from holdfast.vault import ABSENT

        named = wanted.expect not in (ABSENT, ANY)
        return write(self, path, make, msgspec.structs.replace(wanted, expect=ANY) if named else wanted)

    return anyhow


def _operations() -> None:
    from holdfast.store import sayings
    from holdfast.store.writing import Writer

    Writer._repeated = lambda self, wanted, path: None  # type: ignore[method-assign]
    sayings.same_op = lambda *given: None
    sayings.op_in = lambda *given: []


def _announcement() -> None:
    from holdfast.store.writing import Writer

    account = Writer._account

    def only_after(self: Writer, line: dict[str, Any], op_id: str) -> None:
        if "intent" not in line:
            account(self, line, op_id)

    Writer._account = only_after  # type: ignore[method-assign]


def _replacing() -> None:
    from holdfast.vault import _raw
    from holdfast.vault.files import Files

    def in_place(self: Files, folder: int, path: str, data: bytes, expect: str, keep: str) -> None:
        fd = os.open(path.rpartition("/")[2], os.O_WRONLY | os.O_TRUNC, dir_fd=folder)
        _raw.write_all(fd, data)
        os.close(fd)

    Files._replace = in_place  # type: ignore[method-assign]


def _taking_back() -> None:
    os.ftruncate = lambda fd, size: None


def _identity() -> None:
    from holdfast.index.sqlite import SqliteIndex

    make = SqliteIndex.__init__
    SqliteIndex.__init__ = lambda self, folder, identity, settings: make(self, folder, "any", settings)  # type: ignore[method-assign]


def _length() -> None:
    from holdfast.index import sqlite

    sqlite._is_cut = lambda path: False


def _fingerprint() -> None:
    from holdfast.store.refreshing import Refresher

    Refresher._grown = lambda self, path, seen, stamp: True  # type: ignore[method-assign]


def _damage() -> None:
    from holdfast.index import sqlite

    sqlite._DAMAGE = ()  # type: ignore[assignment]


DEFENCES: dict[str, Defence] = {
    "data-sync": Defence("written data is synced before it is acknowledged", "power", _data_sync),
    "folder-sync": Defence("so is the folder that holds the name", "power", _folder_sync),
    "append-lock": Defence("a log is locked while a line is added", "retries", _locks(stat.S_ISREG)),
    "replace-lock": Defence("a folder is locked while a document is replaced", "storm", _locks(stat.S_ISDIR)),
    "comparison": Defence("a document is replaced only in the version that was read", "storm", _comparison),
    "replacing": Defence("a document is replaced by a new file, never written over", "death", _replacing),
    "seal": Defence("a torn last line is closed before the next one is added", "death", _seal),
    "operations": Defence("an op_id that was applied is not applied again", "retries", _operations),
    "announcement": Defence("what an op_id will do to a document is noted before it is done", "death", _announcement),
    "taking-back": Defence("what did not fit on the disk is taken back from a log", "disk", _taking_back),
    "identity": Defence("an index says of which root it is", "corruption", _identity),
    "length": Defence("an index that ends before its header says is not believed", "corruption", _length),
    "damage": Defence("an index that SQLite calls damaged is made anew", "corruption", _damage),
    "fingerprint": Defence("a log is read on only if what was read before is unchanged", "corruption", _fingerprint),
}


def take_out() -> None:
    """Take the defence out that the environment names, if any."""
    if name := os.environ.get(WITHOUT, ""):
        DEFENCES[name].remove()
