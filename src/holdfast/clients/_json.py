"""Editing one member of a JSON text, or one item of a list in it, in place; every other character stays.

Only plain JSON is edited. A text with comments or trailing commas is refused.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from holdfast.errors import Invalid

_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"
Path = tuple[str | int, ...]
"""How to get to a value: names of members, numbers of items."""


class Member(NamedTuple):
    key: str
    start: int
    """Where the key begins."""
    value: int
    end: int


class Object(NamedTuple):
    start: int
    """Where the brace opens."""
    end: int
    """Where the brace closes."""
    members: list[Member]

    def get(self, key: str) -> Member | None:
        return next((member for member in reversed(self.members) if member.key == key), None)


def fresh(key: str, name: str, wanted: Any) -> str:
    return json.dumps({key: {name: wanted}}, indent=2, ensure_ascii=False) + "\n"


def find(text: str, key: str, name: str) -> dict[str, Any] | None:
    servers = _read(text).get(key) or {}
    found = servers.get(name) if isinstance(servers, dict) else None
    return found if isinstance(found, dict) else None


def merge(text: str, key: str, name: str, wanted: Any) -> str:
    """Set `key.name`, making what is missing on the way."""
    whole = _read(text)
    if not text.strip() or not whole:
        return fresh(key, name, wanted)
    top = _object(text, _skip(text, 0))
    held = top.get(key)
    if held is None:
        return _insert(text, top, key, {name: wanted})
    if text[held.value] != "{":
        raise Invalid(f'"{key}" is not an object.', "Correct the file first.")
    servers = _object(text, held.value)
    ours = servers.get(name)
    if ours:
        return text[: ours.value] + _render(wanted, text, _before(text, ours.start)) + text[ours.end :]
    if not servers.members:
        step = _before(text, held.start)
        value = _render({name: wanted}, text, step)
        return text[: servers.start] + value + text[servers.end + 1 :]
    return _insert(text, servers, name, wanted)


def remove(text: str, key: str, name: str, before: str | None) -> str:
    """Take `key.name` out again, and `key` with it if it was not there before."""
    top = _object(text, _skip(text, 0))
    held = top.get(key)
    assert held is not None  # the caller found the entry
    left = _cut(text, _object(text, held.value), name)
    known = _read(before or "")
    emptied = not _read(left)[key]
    if emptied and key not in known:
        left = _cut(left, _object(left, _skip(left, 0)), key)
    return before if emptied and before is not None and _read(left) == known else left


def add(text: str, path: Path, value: Any) -> str:
    """Put an item behind the last one of a list that has some, laid out as that one is."""
    last = _array(text, _at(text, path)).members[-1]
    space = _before(text, last.start)
    return f"{text[: last.end]},{space or ' '}{_render(value, text, space)}{text[last.end :]}"


def put(text: str, path: Path, value: Any) -> str:
    """Write another value in the place of one."""
    start = _at(text, path)
    _, end = _DECODER.raw_decode(text, start)
    return text[:start] + _render(value, text, _before(text, start)) + text[end:]


def take(text: str, path: Path, number: int) -> str:
    """Take an item out of a list."""
    return _cut_one(text, _array(text, _at(text, path)), number)


def read(text: str) -> dict[str, Any]:
    """Return the object that a text is, or refuse it; no text is an empty object."""
    return _read(text)


def _at(text: str, path: Path) -> int:
    """Return where the value at the end of a path begins; the caller has seen that it is there."""
    at = _skip(text, 0)
    for step in path:
        if isinstance(step, int):
            at = _array(text, at).members[step].value
        else:
            member = _object(text, at).get(step)
            assert member is not None
            at = member.value
    return at


def _array(text: str, start: int) -> Object:
    """Read where the items of the list at `start` are; the text is known to be JSON."""
    items = []
    at = _skip(text, start + 1)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        items.append(Member("", at, at, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return Object(start, at, items)


def _read(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        raise Invalid("It is not plain JSON (comments, or a fault in it).", "It was not changed.") from None
    if not isinstance(value, dict):
        raise Invalid("It is not a JSON object.", "It was not changed.")
    return value


def _object(text: str, start: int) -> Object:
    """Read where the members of the object at `start` are; the text is known to be JSON."""
    members = []
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, after = _DECODER.raw_decode(text, at)
        value = _skip(text, _skip(text, after) + 1)
        _, end = _DECODER.raw_decode(text, value)
        members.append(Member(key, at, value, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return Object(start, at, members)


def _insert(text: str, into: Object, key: str, value: Any) -> str:
    """Add a member after the last one, laid out as that one is."""
    last = into.members[-1]
    space = _before(text, last.start)
    separator = space or (" " if len(into.members) > 1 or ": " in text else "")
    made = f",{separator}{json.dumps(key)}: {_render(value, text, space)}"
    return text[: last.end] + made + text[last.end :]


def _cut(text: str, out_of: Object, key: str) -> str:
    """Take a member out, with its comma and the space before it."""
    gone = out_of.get(key)
    assert gone is not None  # the caller found it
    return _cut_one(text, out_of, out_of.members.index(gone))


def _cut_one(text: str, out_of: Object, number: int) -> str:
    gone = out_of.members[number]
    if number:
        return text[: out_of.members[number - 1].end] + text[gone.end :]
    if len(out_of.members) > 1:
        return text[: gone.start] + text[out_of.members[1].start :]
    return text[: out_of.start + 1] + text[out_of.end :]


def _render(value: Any, text: str, space: str) -> str:
    """Write a value as the text around it is written: its lines begin with `space`, or it is one line."""
    if "\n" not in space:
        return json.dumps(value, ensure_ascii=False)
    first = _before(text, _object(text, _skip(text, 0)).members[0].start).rpartition("\n")[2]
    made = json.dumps(value, indent=first or "  ", ensure_ascii=False)
    return made.replace("\n", space)


def _before(text: str, at: int) -> str:
    """Return the white space that ends at a place."""
    start = at
    while text[start - 1] in _SPACE:
        start -= 1
    return text[start:at]


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at
