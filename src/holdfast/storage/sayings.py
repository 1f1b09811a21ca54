"""What the lines of a log say of ids, keys and op ids: asked while the log is held, before a line is added."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.errors import Conflict
from holdfast.formats import jsonl
from holdfast.model.kinds import KINDS
from holdfast.model.records import Receipt
from holdfast.model.times import is_id
from holdfast.storage.index import Applied
from holdfast.storage.tree import LogEnd

_LOOK_BACK = 1_000
_KEYS = tuple(row.key for row in KINDS.values() if row.key)


def last_id(end: LogEnd) -> str:
    """Return the id of the last line that has one; what others wrote behind it is passed over."""
    for line in itertools.islice(end.back(), _LOOK_BACK):
        if known := jsonl.own_id(line):
            return known
        objects = jsonl.parse(line)
        ids = [value["id"] for value in objects if is_id(value.get("id"))] if isinstance(objects, list) else []
        if ids:
            return str(max(ids))
    return ""


def newest(end: LogEnd, offset: int, target: str) -> str:
    """Return the greatest order of the lines about a key or id among those that the index has not read."""
    found = (jsonl.parse(data) for data in _since(end, offset))
    values = [value for objects in found if isinstance(objects, list) for value in objects]
    about = (value for value in values if _speaks_of(value, target))
    return max((jsonl.identity(value, "time")[1] for value in about), default="")


def _since(end: LogEnd, offset: int) -> Iterator[bytes]:
    """Yield the lines from an offset on, or all of them where no line starts there: the log was rewritten since."""
    if offset <= end.size:
        lines = iter(end.lines(offset))
        first = next(lines, b"")
        if not isinstance(jsonl.parse(first), str):
            yield first
            yield from lines
            return
    yield from end.lines(0)


def _speaks_of(value: Mapping[str, Any], target: str) -> bool:
    hides = value.get("hide")
    named = (
        isinstance(hides, str) and bool(hides) and target.endswith(f"/{hides}")
    )  # a ledger names files of its folder
    return named or target in (hides, value.get("id"), *(value.get(name) for name in _KEYS))


def same_op(seen: list[Applied], op_id: str, path: str, target: str = "") -> Receipt | None:
    """Return the receipt of what was done under this op_id in this log; Conflict if it was something else."""
    for applied in seen:
        if applied.path != path or (applied.id != target if target else applied.marks):
            raise other_use(op_id, str(applied.fields.get("path") or applied.path))
        return Receipt("repeated", applied.id, path)
    return None


def op_in(end: LogEnd, offset: int, op_id: str, path: str) -> list[Receipt]:
    """Return what was done under an op_id, by the lines that the index has not read yet."""
    needle = op_id.encode("utf-8")
    found = (jsonl.parse(data) for data in _since(end, offset) if needle in data)
    values = [value for objects in found if isinstance(objects, list) for value in objects]
    return [Receipt("repeated", str(value.get("id")), path) for value in values if value.get("op") == op_id]


def other_use(op_id: str, where: str) -> Conflict:
    return Conflict(
        f'The op_id "{op_id}" was used for {where} before; nothing was written.', "Use a new op_id for a new write."
    )
