"""Taking back what was written last: the text that a document had before is still there, and the account says which.

Each undo is itself a write, marked as one, so that undoing again goes one step further back. What a person changed by
hand since is never undone: nobody accounted for it.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import AlreadyExists, Conflict, Invalid, NotFound
from holdfast.model.layout import Places
from holdfast.model.records import Receipt
from holdfast.storage import accounts
from holdfast.storage.tree import ABSENT, Vault
from holdfast.storage.writing import Writer, kept

_TRIES = 10
_ALWAYS = "memory"
"""The kind of the one document that is always there, if only empty."""


def undo(vault: Vault, places: Places, writer: Writer, path: str, op_id: str = "") -> Receipt:
    """Write the text from before the last write that was not undone yet; what that write made is taken away again."""
    place = places.classify(path)
    if place is None or place.kind.shape == "line" or place.kind.write_once:
        what = f"{place.kind.one} is" if place else f"{path[:200]} is no document of the memory, and"
        raise Invalid(f"{what} not undone.", "Hide it; holdfast hide --restore shows it again.")
    for attempt in range(_TRIES):
        if repeated := writer.applied(op_id, path):
            return repeated
        current = vault.read(path).version if vault.stat(path) else ABSENT
        before = _before(list(accounts.of(vault, places.memory, path)), path, current)
        try:
            if before == ABSENT and place.kind.name != _ALWAYS:
                writer.retire(path, current, op_id, undoes=True)
                return Receipt("removed", path, path)
            data = _text(vault, places, path, before) if before != ABSENT else b""
            return writer.replace(path, data, current, op_id=op_id, undoes=True)
        except (Conflict, AlreadyExists):  # somebody wrote meanwhile: what is undone is that
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("the last attempt raises")


def _text(vault: Vault, places: Places, path: str, version: str) -> bytes:
    try:
        return vault.read(kept(places, version)).data
    except NotFound:
        raise NotFound(
            f"The text that {path} had before is not kept any more.",
            "Entries were only added to it, or it was forgotten or removed by hand.",
        ) from None


def _before(lines: list[dict[str, Any]], path: str, current: str) -> str:
    """Return the version that a document goes back to.

    Each step is the newest line that made the version at hand, wherever it stands: accounts may come later than writes.
    """
    undone, version = 0, current
    lines = [line | {end: line.get(end) or ABSENT for end in ("before", "after")} for line in lines]
    while step := next((line for line in lines if line.get("after") == version != line.get("before")), None):
        told = (step.get("before"), step.get("after"), step.get("op"))
        twin = lines.index(step)
        lines = [  # an announcement and its account are one step
            line
            for place, line in enumerate(lines)
            if place != twin
            and not (step.get("op") and (line.get("before"), line.get("after"), line.get("op")) == told)
        ]
        version = str(step["before"])
        if step.get("undo"):
            undone += 1
        elif undone:
            undone -= 1
        else:
            return version
    if current == ABSENT:
        raise NotFound(f"{path} is not there.", "There is nothing to undo.")
    raise Invalid(
        f"There is no earlier text of {path} to go back to"
        + (": it was changed by hand since." if version == current else "."),
        "Write it anew.",
    )
