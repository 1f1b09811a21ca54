"""Taking back what was written last: the text that a document had before is still there, and the write log says which.

Each undo is itself a write, marked as one, so that undoing again goes one step further back. What a person changed by
hand since is never undone: nobody accounted for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.errors import Invalid, NotFound
from holdfast.formats import logs
from holdfast.places import Places
from holdfast.records import Receipt
from holdfast.store.writing import Writer
from holdfast.vault import ABSENT, Vault


def undo(vault: Vault, places: Places, writer: Writer, path: str, op_id: str = "") -> Receipt:
    """Write the text from before the last write that was not undone yet."""
    if repeated := writer.applied(op_id, path):
        return repeated
    try:
        current = vault.read(path).version
    except NotFound:
        raise NotFound(f"{path} is not there.", "There is nothing to undo.") from None
    before = _before(vault, places, path, current)
    data = vault.read(writer.kept(before)).data if before != ABSENT else b""
    return writer.replace(path, data, current, op_id=op_id, undoes=True)


def _before(vault: Vault, places: Places, path: str, current: str) -> str:
    """Return the version that a document goes back to."""
    undone = 0
    version = current
    for line in _accounts(vault, places, path):
        if line.get("after") != version:
            break  # somebody changed it who keeps no account
        version = str(line.get("before") or ABSENT)
        if line.get("undo"):
            undone += 1
        elif undone:
            undone -= 1
        else:
            return version
    raise Invalid(
        f"There is no earlier text of {path} to go back to"
        + (": it was changed by hand since." if version == current else "."),
        "Write it anew.",
    )


def _accounts(vault: Vault, places: Places, path: str) -> Iterator[dict[str, Any]]:
    """Yield what was written to a document, the newest first."""
    found = vault.walk(f"{places.memory}/writes", (".jsonl",), lambda _path, _why: None)
    for log in sorted((name for name, _ in found), reverse=True):
        for line in vault.scan_back(log):
            objects = logs.parse(line.data) if path.encode() in line.data else []
            for value in objects if isinstance(objects, list) else ():
                if value.get("path") == path and not value.get("intent"):
                    yield value
