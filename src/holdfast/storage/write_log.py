"""Read the write log: one entry for each document write, and one before a write that must not be repeated.

An entry has the path, the versions `before` and `after`, the writer and the time. The owner's commands add entries of
their own: `forget` with ids, `rollback` with its steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.formats import jsonl
from holdfast.model.records import Record
from holdfast.storage.tree import Line, Tree

_ARCHIVE = re.compile(r"(/(?:decisions|lessons))-[0-9]{4}\.md#")


def logs(tree: Tree, memory: str) -> list[str]:
    """Return the files of the write log, one per month, oldest first; `memory` is the folder of the logs."""
    return sorted(path for path, _ in tree.walk(f"{memory}/writes", (".jsonl",), lambda _path, _why: None))


def kept_path(memory: str, version: str) -> str:
    """Return the path under which the text of an earlier version is kept."""
    return f"{memory}/writes/kept/{version}"


def entries(tree: Tree, memory: str, containing: str = "") -> Iterator[dict[str, Any]]:
    """Yield the entries, oldest first; with `containing`, only those from lines with this text."""
    for log in logs(tree, memory):
        yield from objects(tree.scan(log), containing)


def about(tree: Tree, memory: str, path: str) -> Iterator[dict[str, Any]]:
    """Yield the entries about a document, newest first."""
    for log in reversed(logs(tree, memory)):
        yield from (entry for entry in objects(tree.scan_back(log), path) if entry.get("path") == path)


def forgotten(tree: Tree, memory: str) -> set[str]:
    """Return the ids of all records that were forgotten."""
    found = (entry["forget"] for entry in entries(tree, memory, '"forget"') if isinstance(entry.get("forget"), list))
    return {str(identifier) for ids in found for identifier in ids}


def targets(record: Record) -> tuple[str, ...]:
    """Return the ids that entries about a document or section have; an archived one had another before."""
    return tuple(dict.fromkeys((record.id, _ARCHIVE.sub(r"\1.md#", record.id))))


def objects(lines: Iterable[Line], containing: str = "") -> Iterator[dict[str, Any]]:
    """Yield the objects on lines that contain a text; lines that cannot be read are skipped."""
    text = containing.encode()
    for line in lines:
        found = jsonl.parse(line.data) if text in line.data else []
        yield from found if isinstance(found, list) else ()
