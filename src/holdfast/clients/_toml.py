"""Editing one table of a TOML text in place: its lines are ours, every other line stays.

After an edit the text is read again: it must say what it said before, but for our table. Otherwise it is refused.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from holdfast.errors import Invalid

_HEADER = re.compile(r"\s*\[")


def fresh(key: str, name: str, wanted: Mapping[str, Any]) -> str:
    fields = {field: value for field, value in wanted.items() if not isinstance(value, dict)}
    lines = [f"{field} = {json.dumps(value, ensure_ascii=False, default=str)}" for field, value in fields.items()]
    return "\n".join([f"[{key}.{name}]", *lines]) + "\n"


def find(text: str, key: str, name: str) -> dict[str, Any] | None:
    servers = _read(text).get(key)
    found = servers.get(name) if isinstance(servers, dict) else None
    return found if isinstance(found, dict) else None


def merge(text: str, key: str, name: str, wanted: Mapping[str, Any]) -> str:
    """Put our table at the end, or in the place of the one that is there; tables below ours stay."""
    expected = _read(text)
    servers = expected.setdefault(key, {})
    if not isinstance(servers, dict) or not isinstance(servers.get(name, {}), dict):
        raise Invalid(f'"{key}" is not a table of tables.', "Correct the file first.")
    below = {field: value for field, value in servers.get(name, {}).items() if isinstance(value, dict)}
    servers[name] = {**below, **wanted}
    lines = text.splitlines(keepends=True)
    held = _table(lines, key, name)
    made = fresh(key, name, wanted)
    if held:
        start, end = held
        changed = "".join([*lines[:start], made, *lines[end:]])
    else:
        gap = "" if not text.strip() else "\n" if text.endswith("\n") else "\n\n"
        changed = text + gap + made
    return _checked(changed, expected)


def remove(text: str, key: str, name: str, before: str | None) -> str:
    """Take our table out, with those below it and the empty line above it."""
    expected = _read(text)
    del expected[key][name]
    if not expected[key] and key not in _read(before or ""):
        del expected[key]
    lines = text.splitlines(keepends=True)
    while held := _table(lines, key, name, below=True):
        start, end = held
        if start and not lines[start - 1].strip():
            start -= 1
        lines[start:end] = []
    left = "".join(lines)
    if before is not None and left.rstrip("\n") == before.rstrip("\n"):
        return before
    return _checked(left, expected)


def _table(lines: list[str], key: str, name: str, *, below: bool = False) -> tuple[int, int] | None:
    """Return the lines of a table, from its header to its last field; with `below`, also of a table below it."""
    quoted = rf"[\"']?{re.escape(name)}[\"']?"
    deeper = r"(?:\s*\..+)?" if below else ""
    header = re.compile(rf"\s*\[\s*{re.escape(key)}\s*\.\s*{quoted}{deeper}\s*\]\s*(?:#.*)?$")
    start = next((number for number, line in enumerate(lines) if header.match(line)), None)
    if start is None:
        return None
    end = next((n for n in range(start + 1, len(lines)) if _HEADER.match(lines[n])), len(lines))
    while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return start, end


def _read(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"It is not TOML: {error}.", "It was not changed.") from None


def _checked(text: str, expected: dict[str, Any]) -> str:
    try:
        if tomllib.loads(text) == expected:
            return text
    except (ValueError, RecursionError):
        pass
    raise Invalid("Its entry for holdfast is written in a way of its own.", "It was not changed.")
