"""Logs: one JSON object per line, only ever appended.

A line carries `id` (a UUIDv7, minted under the append lock), its time, `op` and `writer` where given, and the
record's own fields. For keyed kinds the line with the greatest id holds; a line with `hide` hides the record or
key it names, and with `hidden: false` shows it again. A line that somebody else wrote without an id gets one that
is derived from its time and bytes, so it is the same in every process and after every merge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.errors import Invalid
from holdfast.model.records import MAX_DEPTH, version_of
from holdfast.model.times import derived_id, id_ms, is_id, iso, normal, parse_ms

_decode = msgspec.json.Decoder().decode


class _Named(msgspec.Struct):
    id: str


_named = msgspec.json.Decoder(_Named).decode
_encode = msgspec.json.Encoder().encode
_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|[][{}]')


def render(line: Mapping[str, Any]) -> bytes:
    """Write one line."""
    try:
        return _encode(line) + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(
            f"The record cannot be written as JSON: {error}.", "Use text, numbers, lists, mappings."
        ) from None


def with_id(identifier: str, rest: bytes) -> bytes:
    """Put the id in front of a rendered line."""
    return b'{"id":"' + identifier.encode() + b'",' + rest[1:]


def own_id(data: bytes) -> str:
    """Return the id of a line that `with_id` wrote, without reading the rest of it; "" for any other line."""
    text = data[7:43].decode("ascii", "replace") if data.startswith(b'{"id":"') else ""
    return text if is_id(text) else ""


def keys(data: bytes) -> tuple[str, ...]:
    """Return what tells a line from every other: the ids of what is on it, or else its bytes; a blank one has none."""
    try:
        return (_named(data).id,)
    except ValueError:
        objects = parse(data)
    ids = (
        [value.get("id") for value in objects if isinstance(value.get("id"), str)] if isinstance(objects, list) else []
    )
    if ids and len(ids) == len(objects):
        return tuple(map(str, ids))
    return (version_of(data.strip()),) if data.strip() else ()


def parse(data: bytes) -> list[dict[str, Any]] | str:
    """Read the objects of one line (nearly always one), or say what is wrong with it. A blank line is no object."""
    data = data.strip(b"\r\n\t ")
    if not data:
        return []
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and _depth(data) > MAX_DEPTH:
        return f"nested more than {MAX_DEPTH} deep"
    try:
        value = _decode(data)
    except (ValueError, RecursionError):
        return _second_look(data)
    return [value] if isinstance(value, dict) else "not a JSON object"


def identity(line: Mapping[str, Any], time_field: str) -> tuple[str, str, str]:
    """Return id, order and time of a line, whoever wrote it and however it is spaced."""
    given = line.get("id")
    time = normal(line.get(time_field))
    if is_id(given):
        return str(given), str(given), time or iso(id_ms(str(given)))
    order = derived_id(parse_ms(line.get(time_field), utc=True) or 0, render(line))
    return (given if isinstance(given, str) and given else order), order, time


def _depth(data: bytes) -> int:
    """Return how deep a JSON text nests; brackets inside strings do not count."""
    depth = deepest = 0
    for mark in _STRUCTURE.findall(data):
        depth += 1 if mark in b"{[" else -1 if mark in b"}]" else 0
        deepest = max(deepest, depth)
    return deepest


def _second_look(data: bytes) -> list[dict[str, Any]] | str:
    """Read what the wild does to logs: a BOM, runs of NUL, several objects on one line."""
    if b"\0" in data or data.startswith(b"\xef\xbb\xbf"):
        cleaned = data.replace(b"\xef\xbb\xbf", b"").replace(b"\0", b"").strip()
        if not cleaned:
            return "nothing but NUL bytes"
        result = parse(cleaned)
        return f"NUL bytes and {result}" if isinstance(result, str) else result
    try:
        return list(_objects(data.decode("utf-8")))
    except UnicodeDecodeError:
        return "not UTF-8"
    except (ValueError, RecursionError):
        return "not valid JSON (a torn or damaged line)"


def _objects(text: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder(parse_constant=_refuse)
    position = 0
    while position < len(text):
        _, end = decoder.raw_decode(text, position)
        value = _decode(text[position:end])
        if not isinstance(value, dict):
            raise ValueError("not an object")
        yield value
        position = end
        while position < len(text) and text[position] in " \t\r,":
            position += 1


def _refuse(name: str) -> None:
    raise ValueError(name)
