"""Editing one entry of a JSON or TOML text in place: every other character stays.

Only plain JSON is edited; a text with comments or trailing commas is refused. An edited TOML text is parsed again, and
refused if anything but the entry has changed.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.errors import Invalid

_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"
_TOML_HEADER = re.compile(r"\s*\[")
Path = tuple[str | int, ...]
"""The way to a value: names of members, numbers of items."""


# JSON


class JsonEditor:
    """Edits the entry `key.name` of a JSON text."""

    def fresh(self, key: str, name: str, wanted: Any) -> str:
        """Return a text with nothing but the entry."""
        return json.dumps({key: {name: wanted}}, indent=2, ensure_ascii=False) + "\n"

    def merge(self, text: str, key: str, name: str, wanted: Any) -> str:
        """Set the entry."""
        whole = self.read(text)
        if not whole:
            return self.fresh(key, name, wanted)
        if key not in whole:
            return self.insert(text, (), {name: wanted}, key)
        if not isinstance(whole[key], dict):
            raise Invalid(f'"{key}" is not an object.', "Correct the file first.")
        if name in whole[key]:
            return self.replace(text, (key, name), wanted)
        return self.insert(text, (key,), wanted, name) if whole[key] else self.replace(text, (key,), {name: wanted})

    def remove(self, text: str, key: str, name: str, before: str | None) -> str:
        """Remove the entry, and `key` with it if it was not in the text `before`."""
        left = self.remove_value(text, (key, name))
        known = self.read(before or "")
        emptied = not self.read(left)[key]
        if emptied and key not in known:
            left = self.remove_value(left, (key,))
        return before if emptied and before is not None and self.read(left) == known else left

    def read(self, text: str) -> dict[str, Any]:
        """Return the object that a text is, or refuse it; an empty text is an empty object."""
        try:
            value = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError):
            raise Invalid("It is not plain JSON (comments, or a fault in it).", "It was not changed.") from None
        if not isinstance(value, dict):
            raise Invalid("It is not a JSON object.", "It was not changed.")
        return value

    def insert(self, text: str, path: Path, value: Any, key: str | None = None) -> str:
        """Add a member or, without a key, an item after the last one of an object or list, in the same layout."""
        inside, _ = _locate(text, (*path, -1))
        last = inside.members[-1]
        space = _space_before(text, last.start)
        separator = space or (" " if key is None or len(inside.members) > 1 or ": " in text else "")
        name = "" if key is None else f"{json.dumps(key)}: "
        return f"{text[: last.end]},{separator}{name}{_render(value, text, space)}{text[last.end :]}"

    def replace(self, text: str, path: Path, value: Any) -> str:
        inside, number = _locate(text, path)
        member = inside.members[number]
        return text[: member.value] + _render(value, text, _space_before(text, member.start)) + text[member.end :]

    def remove_value(self, text: str, path: Path) -> str:
        """Remove a member or item, with its comma and the space before it."""
        inside, number = _locate(text, path)
        if number:
            return text[: inside.members[number - 1].end] + text[inside.members[number].end :]
        if len(inside.members) > 1:
            return text[: inside.members[0].start] + text[inside.members[1].start :]
        return text[: inside.start + 1] + text[inside.end :]


class _Member(NamedTuple):
    """A member of an object, or an item of a list, whose key is ""."""

    key: str
    start: int
    value: int
    end: int


class _Container(NamedTuple):
    """An object or a list: the positions of its brackets, and its members."""

    start: int
    end: int
    members: list[_Member]


def _container(text: str, start: int) -> _Container:
    """Read the object or list at `start`; the text is known to be JSON."""
    members, at = [], _skip(text, start + 1)
    while text[at] not in "}]":
        key, value = "", at
        if text[start] == "{":
            key, after = _DECODER.raw_decode(text, at)
            value = _skip(text, _skip(text, after) + 1)
        _, end = _DECODER.raw_decode(text, value)
        members.append(_Member(key, at, value, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return _Container(start, at, members)


def _locate(text: str, path: Path) -> tuple[_Container, int]:
    """Return the object or list with the value at the end of a path, which is known to exist, and its number there."""
    at = _skip(text, 0)
    for step in path:
        inside = _container(text, at)
        number = step if isinstance(step, int) else max(n for n, one in enumerate(inside.members) if one.key == step)
        at = inside.members[number].value
    return inside, number


def _render(value: Any, text: str, space: str) -> str:
    """Return a value in the layout of the text: its lines begin with `space`, or it is one line."""
    if "\n" not in space:
        return json.dumps(value, ensure_ascii=False)
    first = _container(text, _skip(text, 0)).members[0]
    indent = _space_before(text, first.start).rpartition("\n")[2]
    return json.dumps(value, indent=indent or "  ", ensure_ascii=False).replace("\n", space)


def _space_before(text: str, at: int) -> str:
    start = at
    while text[start - 1] in _SPACE:
        start -= 1
    return text[start:at]


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


# TOML


class TomlEditor:
    """Edits the table `key.name` of a TOML text; the methods are those of JsonEditor."""

    def fresh(self, key: str, name: str, wanted: Mapping[str, Any]) -> str:
        fields = {field: value for field, value in wanted.items() if not isinstance(value, dict)}
        lines = [f"{field} = {json.dumps(value, ensure_ascii=False, default=str)}" for field, value in fields.items()]
        return "\n".join([f"[{key}.{name}]", *lines]) + "\n"

    def read(self, text: str) -> dict[str, Any]:
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise Invalid(f"It is not TOML: {error}.", "It was not changed.") from None

    def merge(self, text: str, key: str, name: str, wanted: Mapping[str, Any]) -> str:
        """Set the table in its place, or at the end; tables below it stay."""
        expected = self.read(text)
        servers = expected.setdefault(key, {})
        if not isinstance(servers, dict) or not isinstance(servers.get(name, {}), dict):
            raise Invalid(f'"{key}" is not a table of tables.', "Correct the file first.")
        below = {field: value for field, value in servers.get(name, {}).items() if isinstance(value, dict)}
        servers[name] = {**below, **wanted}
        lines = text.splitlines(keepends=True)
        made = self.fresh(key, name, wanted)
        if found := _table(lines, key, name):
            start, end = found
            return _checked("".join([*lines[:start], made, *lines[end:]]), expected)
        gap = "" if not text.strip() else "\n" if text.endswith("\n") else "\n\n"
        return _checked(text + gap + made, expected)

    def remove(self, text: str, key: str, name: str, before: str | None) -> str:
        """Remove the table, with those below it and the empty line above it."""
        expected = self.read(text)
        del expected[key][name]
        if not expected[key] and key not in self.read(before or ""):
            del expected[key]
        lines = text.splitlines(keepends=True)
        while found := _table(lines, key, name, below=True):
            start, end = found
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
    end = next((n for n in range(start + 1, len(lines)) if _TOML_HEADER.match(lines[n])), len(lines))
    while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return start, end


def _checked(text: str, expected: dict[str, Any]) -> str:
    try:
        if tomllib.loads(text) == expected:
            return text
    except (ValueError, RecursionError):
        pass
    raise Invalid("Its entry for holdfast is written in a way of its own.", "It was not changed.")


JSON, TOML = JsonEditor(), TomlEditor()
