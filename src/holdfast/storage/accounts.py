"""The account of what was written to documents: one line before a write that must not be repeated, one behind each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.formats import jsonl
from holdfast.storage.tree import Vault


def of(vault: Vault, memory: str, path: str) -> Iterator[dict[str, Any]]:
    """Yield the lines about a document, the newest first; `memory` is the folder in which the logs lie."""
    found = vault.walk(f"{memory}/writes", (".jsonl",), lambda _path, _why: None)
    for log in sorted((name for name, _ in found), reverse=True):
        for line in vault.scan_back(log):
            objects = jsonl.parse(line.data) if path.encode() in line.data else []
            for value in objects if isinstance(objects, list) else ():
                if value.get("path") == path:
                    yield value
