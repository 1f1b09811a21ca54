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


def _entry(whole: dict[str, Any], key: str, name: str) -> dict[str, Any] | None:
    servers = whole.get(key)
    found = servers.get(name) if isinstance(servers, dict) else None
    return found if isinstance(found, dict) else None


# JSON


class JsonEditor:
    """Edits the entry `key.name` of a JSON text."""

    def fresh(self, key: str, name: str, wanted: Any) -> str:
        """Return a text with nothing but the entry."""
        return json.dumps({key: {name: wanted}}, indent=2, ensure_ascii=False) + "\n"

    def find(self, text: str, key: str, name: str) -> dict[str, Any] | None:
        """Return the entry, None if there is none; Invalid if the text cannot be read."""
        return _entry(self.read(text), key, name)

    def merge(self, text: str, key: str, name: str, wanted: Any) -> str:
        """Set the entry."""
        if not self.read(text):
            return self.fresh(key, name, wanted)
        top = _container(text, _skip(text, 0))
        parent = top.get(key)
        if parent is None:
            return _insert(text, top, key, {name: wanted})
        if text[parent.value] != "{":
            raise Invalid(f'"{key}" is not an object.', "Correct the file first.")
        servers = _container(text, parent.value)
        ours = servers.get(name)
        if ours:
            return text[: ours.value] + _render(wanted, text, _space_before(text, ours.start)) + text[ours.end :]
        if not servers.members:
            value = _render({name: wanted}, text, _space_before(text, parent.start))
            return text[: servers.start] + value + text[servers.end + 1 :]
        return _insert(text, servers, name, wanted)

    def remove(self, text: str, key: str, name: str, before: str | None) -> str:
        """Remove the entry, and `key` with it if it was not in the text `before`."""
        left = _cut(text, _container(text, _position(text, (key,))), name)
        known = self.read(before or "")
        emptied = not self.read(left)[key]
        if emptied and key not in known:
            left = _cut(left, _container(left, _skip(left, 0)), key)
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

    def add_item(self, text: str, path: Path, value: Any) -> str:
        """Add an item after the last one of a list that has some, in the same layout."""
        last = _container(text, _position(text, path)).members[-1]
        space = _space_before(text, last.start)
        return f"{text[: last.end]},{space or ' '}{_render(value, text, space)}{text[last.end :]}"

    def replace(self, text: str, path: Path, value: Any) -> str:
        """Replace a value."""
        start = _position(text, path)
        _, end = _DECODER.raw_decode(text, start)
        return text[:start] + _render(value, text, _space_before(text, start)) + text[end:]

    def remove_item(self, text: str, path: Path, number: int) -> str:
        """Remove an item of a list."""
        return _cut(text, _container(text, _position(text, path)), number)


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

    def get(self, key: str) -> _Member | None:
        return next((member for member in reversed(self.members) if member.key == key), None)


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


def _position(text: str, path: Path) -> int:
    """Return where the value at the end of a path begins; it is known to exist."""
    at = _skip(text, 0)
    for step in path:
        inside = _container(text, at)
        member = inside.members[step] if isinstance(step, int) else inside.get(step)
        assert member is not None
        at = member.value
    return at


def _insert(text: str, into: _Container, key: str, value: Any) -> str:
    """Add a member after the last one, in the same layout."""
    last = into.members[-1]
    space = _space_before(text, last.start)
    separator = space or (" " if len(into.members) > 1 or ": " in text else "")
    made = f",{separator}{json.dumps(key)}: {_render(value, text, space)}"
    return text[: last.end] + made + text[last.end :]


def _cut(text: str, out_of: _Container, key: str | int) -> str:
    """Remove a member or item, with its comma and the space before it."""
    if isinstance(key, str):
        member = out_of.get(key)
        assert member is not None
        key = out_of.members.index(member)
    if key:
        return text[: out_of.members[key - 1].end] + text[out_of.members[key].end :]
    if len(out_of.members) > 1:
        return text[: out_of.members[0].start] + text[out_of.members[1].start :]
    return text[: out_of.start + 1] + text[out_of.end :]


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

    def find(self, text: str, key: str, name: str) -> dict[str, Any] | None:
        return _entry(_read_toml(text), key, name)

    def merge(self, text: str, key: str, name: str, wanted: Mapping[str, Any]) -> str:
        """Set the table in its place, or at the end; tables below it stay."""
        expected = _read_toml(text)
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
        expected = _read_toml(text)
        del expected[key][name]
        if not expected[key] and key not in _read_toml(before or ""):
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


def _read_toml(text: str) -> dict[str, Any]:
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


JSON, TOML = JsonEditor(), TomlEditor()
