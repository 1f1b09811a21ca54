"""Read the write log: one entry for each document write, and one before a write that must not be repeated.

An entry has the path, the versions `before` and `after`, the writer and the time. The owner's commands add entries of
their own: `forget` with ids, `rollback` with its steps. A change by hand is not logged: it appears as a version without
an entry. A file that was renamed by hand is recognised by the last version of a removed file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import HoldfastError, NotFound
from holdfast.formats import jsonl
from holdfast.model.patterns import regex
from holdfast.model.records import Problem, Record
from holdfast.model.times import iso, now_ms
from holdfast.storage.tree import ABSENT, Line, Tree

CHANGED = "was changed after it was kept as an earlier version"
_ON_THE_WAY_MS = 10_000
"""How long an announced save point may take to be written."""
_ARCHIVE = regex(r"(/(?:decisions|lessons))-[0-9]{4}\.md#")


def logs(tree: Tree, memory: str) -> list[str]:
    """Return the files of the write log, one per month, oldest first; `memory` is the folder of the logs."""
    return sorted(path for path, _ in tree.walk(f"{memory}/writes", (".jsonl",), lambda _path, _why: None))


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


# the writes to a document


def ends(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return the versions before and after the write that an entry records."""
    return str(entry.get("before") or ABSENT), str(entry.get("after") or ABSENT)


def completed(entries: Sequence[dict[str, Any]], current: str) -> list[dict[str, Any]]:
    """Return the entries of the writes that took place.

    An intent counts when the write itself was not logged and its version is the current one or was replaced later.
    """
    done = {(*ends(entry), entry.get("op")) for entry in entries if "intent" not in entry}
    reached = {current, *(ends(entry)[0] for entry in entries)}

    def took_place(entry: dict[str, Any]) -> bool:
        before, after = ends(entry)
        return "intent" not in entry or (after in reached and (before, after, entry.get("op")) not in done)

    return [entry for entry in entries if ends(entry)[0] != ends(entry)[1] and took_place(entry)]


def writes(tree: Tree, memory: str, path: str, current: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the paths of a document, newest first, each with its writes, oldest first."""
    found: dict[str, list[dict[str, Any]]] = {}
    while path not in found:
        found[path] = completed(list(about(tree, memory, path))[::-1], current)
        current = ends(found[path][0])[0] if found[path] else current
        path = (_renamed_from(tree, memory, path, current) if current != ABSENT else "") or path
    return list(found.items())


def _renamed_from(tree: Tree, memory: str, path: str, version: str) -> str:
    """Return the path of the one removed document whose last version was this; "" for none or several."""
    made = {str(one.get("path")) for one in entries(tree, memory, version) if ends(one)[1] == version} - {path}
    found = []
    for each in made:
        done = completed(list(about(tree, memory, each))[::-1], version) if tree.stat(each) is None else []
        if done and ends(done[-1])[1] == version:
            found.append(each)
    return found[0] if len(found) == 1 else ""


# earlier versions


def kept_path(memory: str, version: str) -> str:
    """Return the path of the text of a version."""
    return f"{memory}/writes/kept/{version}"


def check_kept(tree: Tree, memory: str) -> Iterator[Problem]:
    """Report earlier versions whose text no longer has the hash that is their name; an empty copy is unfinished."""
    for path, stamp in tree.walk(f"{memory}/writes/kept", ("",), lambda _path, _why: None):
        with contextlib.suppress(NotFound):
            if stamp.size and tree.read(path).version != path.rpartition("/")[2]:
                yield Problem(path, f"{CHANGED}; undo does not use it. Move what you need of it, then remove it")


def check_save_points(tree: Tree, memory: str, ledgers: Iterable[Record]) -> list[Problem]:
    """Report save points that were edited, and announced ones that were never written.

    `ledgers` are the entries of all ledgers, `memory` is the folder of the logs.
    """
    versions: dict[str, set[str]] = {}
    announced: dict[str, str] = {}
    pending: dict[str, int] = {}  # how often each was announced and not refused
    for entry in ledgers:
        if isinstance(entry.fields.get("state"), str):
            state = f"{entry.path.rpartition('/')[0]}/{entry.fields['state']}"
            versions.setdefault(state, set()).add(str(entry.fields.get("version")))
            pending[state] = pending.get(state, 0) + (-1 if entry.fields.get("refused") else 1)
            announced[state] = entry.time

    def being_written(path: str) -> bool:
        """Is its file perhaps still being written?"""
        if not iso(now_ms() - _ON_THE_WAY_MS) <= announced[path] <= iso(now_ms() + _ON_THE_WAY_MS):
            return False
        logged = any("intent" not in line for line in about(tree, memory, path))
        return not logged or tree.stat(path) is not None

    result = []
    for state, known in versions.items():
        try:
            if tree.read(state).version not in known:
                result.append(Problem(state, "was changed after it was written; save points never are"))
        except HoldfastError as error:
            if not (isinstance(error, NotFound) and (pending[state] < 1 or being_written(state))):
                result.append(Problem(state, f"is in the ledger and cannot be read: {error.message}"))
    return result
