"""Files that are gone all at once: more likely a folder that is not mounted than something that was meant.

Nothing of the truth is lost by that, since the index is disposable. But whoever asks is told, again and again, until
the files are back or the owner has said that all is right by making the index anew.
"""

from __future__ import annotations

import os

import msgspec

from holdfast.errors import Unavailable
from holdfast.model.names import amount
from holdfast.model.records import Problem
from holdfast.model.times import utc_now
from holdfast.storage import guarding
from holdfast.storage.index import Index
from holdfast.storage.tree import Vault

_NOTE = "vanished"
_NAMED = 1_000


class Gone(msgspec.Struct, frozen=True):
    """What the index remembers of it."""

    time: str
    files: int
    records: int
    total: int
    paths: list[str]


def look(vault: Vault, index: Index, paths: list[str]) -> None:
    """Note it if many of these paths are gone, before the index forgets what was in them."""
    gone = [path for path in paths if _is_gone(vault, path)]
    if not gone:
        return
    lost = sum(index.count(path, "") for path in gone)
    total = sum(index.counts().values())
    if lost > guarding.MANY or (len(gone) > 1 and guarding.is_much(lost, total)):  # somebody removed one small file
        before = _noted(index)
        found = Gone(
            before.time if before else utc_now(), len(gone) + (before.files if before else 0),
            lost + (before.records if before else 0), max(total, before.total if before else 0),
            [*(before.paths if before else ()), *sorted(gone)][:_NAMED],
        )  # fmt: skip
        index.note(_NOTE, msgspec.json.encode(found).decode())


def told(vault: Vault, index: Index) -> list[Problem]:
    """Return what to tell of files that are gone, nothing once most of them are back."""
    gone = _noted(index)
    if gone is None:
        return []
    missing = sum(_is_gone(vault, path) for path in gone.paths)
    if missing * 2 < len(gone.paths):
        index.note(_NOTE, "")
        return []
    where = os.path.commonpath(gone.paths)
    what = (
        f"{amount(gone.files, 'file')} with {gone.records} of {amount(gone.total, 'record')} vanished at once, noticed"
        f" {gone.time}: is a folder not mounted, or was it moved? If they were meant to go: holdfast refresh --rebuild"
    )
    return [Problem(where, what)]


def _is_gone(vault: Vault, path: str) -> bool:
    """Is a file not there any more? One that is out of reach is."""
    try:
        return vault.stat(path) is None
    except Unavailable:
        return False


def _noted(index: Index) -> Gone | None:
    try:
        return msgspec.json.decode(index.noted(_NOTE) or "null", type=Gone | None)
    except msgspec.MsgspecError:
        return None
