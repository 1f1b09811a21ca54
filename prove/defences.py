"""Defences that can be removed from a worker, to check that a campaign notices.

`scripts/prove --defences` removes each of them in turn and runs the campaign that should then report losses.
"""

from __future__ import annotations

import importlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.storage.files import descriptors, index, log, refresh, watch
from holdfast.storage.files.index_sync import IndexSync, Known
from holdfast.storage.files.refresh import Refresher
from holdfast.storage.files.tree import Files
from holdfast.storage.store import ANY, Store
from holdfast.storage.tree import ABSENT
from prove import hostile_defences

WITHOUT = "HOLDFAST_PROVE_WITHOUT"
"""The environment variable with the name of the removed defence."""


@dataclass(frozen=True)
class Defence:
    what: str
    """What the defence does."""
    campaign: str
    """The campaign that must notice when it is removed."""
    remove: Callable[[], None]


def _always(answer: object) -> Callable[..., Any]:
    """Return a function with a constant result."""
    return lambda *_given: answer


def _put(owner: object, **members: object) -> None:
    """Replace members of a module or class in this process."""
    for name, value in members.items():
        setattr(owner, name, value)


def _data_sync() -> None:
    _put(descriptors, flush=_always(None))


def _folder_sync() -> None:
    _put(os, fsync=_always(None))


def _lock(without: Callable[[int], bool]) -> Callable[[], None]:
    """Remove the locks of files or of folders."""
    hold = descriptors.hold

    def lax(fd: int, seconds: float, what: str, *, shared: bool = False) -> None:
        if not without(os.fstat(fd).st_mode):
            hold(fd, seconds, what, shared=shared)

    return lambda: _put(descriptors, hold=lax)


def _replace_lock() -> None:
    """Remove a second defence too: where two files can be exchanged, the replaced one is compared again."""
    _lock(stat.S_ISDIR)()
    _put(descriptors, exchange=_always(False))


def _seal() -> None:
    begin = log.LogEnd.__init__

    def unsealed(self: log.LogEnd, *given: Any) -> None:
        begin(self, *given)
        self.torn = False

    _put(log.LogEnd, __init__=unsealed)


def _comparison() -> None:
    update = Store.update

    def anyhow(self: Store, path: str, make: Any, *, expect: str, **more: Any) -> Any:
        return update(self, path, make, expect=expect if expect == ABSENT else ANY, **more)

    def unseen(_self: Files, folder: int, path: str, _expect: str) -> tuple[bytes, int]:
        fd = os.open(path.rpartition("/")[2], os.O_RDONLY, dir_fd=folder)
        data = descriptors.read_all(fd)
        os.close(fd)
        return data, 0o644

    _put(Files, _compare=unseen)
    _put(Store, update=anyhow)


def _operations() -> None:
    known = IndexSync.known

    def forgetful(self: IndexSync, _op_id: str, path: str = "", target: str = "") -> Known:
        return known(self, "", path, target) if target else Known()

    _put(IndexSync, known=forgetful)
    _put(log, ids_of_op=_always([]))


def _announcement() -> None:
    log_write = Store.log_write

    def only_after(self: Store, entry: dict[str, Any], op_id: str = "") -> None:
        if "intent" not in entry:
            log_write(self, entry, op_id)

    _put(Store, log_write=only_after)


def _replacing() -> None:
    def in_place(_self: Files, folder: int, path: str, data: bytes, *_rest: str) -> None:
        fd = os.open(path.rpartition("/")[2], os.O_WRONLY | os.O_TRUNC, dir_fd=folder)
        descriptors.write_all(fd, data)
        os.close(fd)

    _put(Files, _replace=in_place)


def _taking_back() -> None:
    _put(os, ftruncate=_always(None))


def _stamps() -> None:
    _put(refresh, _settled=lambda seen, _stamp: seen is not None)


def _length() -> None:
    _put(index, _is_cut=_always(False))


def _damage() -> None:
    _put(index, _DAMAGE=())


def _fingerprint() -> None:
    _put(Refresher, _grown=_always(True))


def _journal() -> None:
    _put(log.Journal, missing=lambda *_given: {})


def _git_lock() -> None:
    _put(importlib.import_module("holdfast.owner.git"), hold=lambda *_given: None)


def _confirmation() -> None:
    _put(Files, _confirm=_always(None))


def _same_root() -> None:
    _put(descriptors.Beneath, replaced=_always(False))


def _known_ids() -> None:
    _put(refresh, lost=lambda _index: {})


class _Everything(frozenset[int]):
    def __contains__(self, _one: object) -> bool:
        return True


def _file_systems() -> None:
    _put(watch, _LOCAL=_Everything())


def _claims() -> None:
    def hold(self: Files, path: str, _among: str) -> Callable[[], None]:
        fd = self._beneath.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CREAT)
        return lambda: os.close(fd)

    _put(Files, hold=hold)


DEFENCES: dict[str, Defence] = {
    "data-sync": Defence("written data is synced before it is acknowledged", "power", _data_sync),
    "folder-sync": Defence("the folder of a new name is synced too", "power", _folder_sync),
    "append-lock": Defence("a log is locked while a line is added", "retries", _lock(stat.S_ISREG)),
    "replace-lock": Defence("a folder is locked while a document is replaced", "storm", _replace_lock),
    "comparison": Defence("a document is replaced only in the version that was read", "storm", _comparison),
    "replacing": Defence("a document is replaced by a new file, never overwritten in place", "death", _replacing),
    "seal": Defence("a torn last line is closed before the next one is added", "death", _seal),
    "operations": Defence("an applied op_id is not applied again", "retries", _operations),
    "announcement": Defence("the effect of an op_id on a document is logged before it is made", "death", _announcement),
    "taking-back": Defence("a partial line on a full disk is removed from the log", "disk", _taking_back),
    "stamps": Defence("a file with a changed stamp is read again", "corruption", _stamps),
    "length": Defence("an index shorter than its header says is not used", "corruption", _length),
    "damage": Defence("an index that SQLite reports as damaged is rebuilt", "corruption", _damage),
    "fingerprint": Defence(
        "reading of a log continues only if the part read before is unchanged", "corruption", _fingerprint
    ),
    "journal": Defence("new lines that another program removed from a log are appended again", "git", _journal),
    "git-lock": Defence("all writers wait while holdfast git works", "git", _git_lock),
    "confirmation": Defence(
        "a log must have the line when it is acknowledged, and when the process ends", "replaced", _confirmation
    ),
    "known-ids": Defence("the index knows which entries a log had", "replaced", _known_ids),
    "same-root": Defence("a root that was replaced is not written to", "replaced", _same_root),
    "file-systems": Defence("files are checked where no events come", "fuse", _file_systems),
    "claims": Defence("a session needs no open file of its own", "sessions", _claims),
}
DEFENCES |= {name: Defence(*rest) for name, rest in hostile_defences.TAKEN.items()}


def take_out() -> None:
    """Remove the defence that the environment names, if any."""
    if name := os.environ.get(WITHOUT, ""):
        DEFENCES[name].remove()
