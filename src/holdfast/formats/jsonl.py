"""Logs: one JSON object per line, only ever appended.

A line has an `id` (a UUIDv7, minted under the append lock), its time, `op` and `writer` if given, and the fields of the
record. For keyed kinds the line with the greatest id is current. A line with `hide` hides the record or key that it
names; with `hidden: false` it shows it again. A line without an id gets one derived from its time and bytes, which is
the same in every process and after every merge.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.errors import Invalid
from holdfast.model.patterns import regex
from holdfast.model.records import MAX_DEPTH, version_of
from holdfast.model.times import derived_id, id_ms, is_id, iso, normal, parse_ms


class _Named(msgspec.Struct):
    id: str


_decode = msgspec.json.Decoder().decode
_decode_id = msgspec.json.Decoder(_Named).decode
_encode = msgspec.json.Encoder().encode
_CONFLICT_MARKS = (b"<" * 7, b"|" * 7, b"=" * 7, b">" * 7)
_STRUCTURE = regex(rb'"(?:[^"\\]|\\.)*"|[][{}]')
_OWN_ID = regex(rb'\{"id":"([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})')


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
    """Return the id of a line that `with_id` wrote, without parsing the rest; "" for any other line."""
    found = _OWN_ID.match(data)
    return found[1].decode() if found else ""


def keys(data: bytes) -> tuple[str, ...]:
    """Return the identity of a line: the ids of its objects, else a hash of its content; nothing if it is blank."""
    try:
        return (_decode_id(data).id,)
    except ValueError:
        objects = parse(data)
    if isinstance(objects, str):
        return (version_of(data.strip()),)
    ids = [value["id"] for value in objects if isinstance(value.get("id"), str)]
    if ids and len(ids) == len(objects):
        return tuple(ids)
    return (version_of(b"".join(map(render, objects))),) if objects else ()


def parse(data: bytes) -> list[dict[str, Any]] | str:
    """Parse the objects of one line (nearly always one), or return its fault; a blank line has none."""
    data = data.strip(b"\r\n\t ")
    if not data:
        return []
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH:
        depth = 0
        for mark in _STRUCTURE.findall(data):  # brackets inside strings do not count
            depth += 1 if mark in b"{[" else -1 if mark in b"}]" else 0
            if depth > MAX_DEPTH:
                return f"nested more than {MAX_DEPTH} deep"
    try:
        value = _decode(data)
    except (ValueError, RecursionError):
        return _repaired(data)
    return [value] if isinstance(value, dict) else "not a JSON object"


def identity(line: Mapping[str, Any], time_field: str) -> tuple[str, str, str]:
    """Return id, order and time of a line, with or without an id of its own."""
    given = line.get("id")
    time = normal(line.get(time_field))
    if is_id(given):
        return str(given), str(given), time or iso(id_ms(str(given)))
    order = derived_id(parse_ms(line.get(time_field), utc=True) or 0, render(line))
    return (given if isinstance(given, str) and given else order), order, time


def _repaired(data: bytes) -> list[dict[str, Any]] | str:
    """Parse a line with a BOM, NUL bytes or several objects."""
    if b"\0" in data or data.startswith(b"\xef\xbb\xbf"):
        cleaned = data.replace(b"\xef\xbb\xbf", b"").replace(b"\0", b"").strip()
        if not cleaned:
            return "nothing but NUL bytes"
        result = parse(cleaned)
        return f"NUL bytes and {result}" if isinstance(result, str) else result
    found: list[dict[str, Any]] = []
    import json  # unlike msgspec, it reports where a value ends

    decoder = json.JSONDecoder()
    position = 0
    try:
        text = data.decode("utf-8")
        while position < len(text):
            _, end = decoder.raw_decode(text, position)
            value = _decode(text[position:end])
            if not isinstance(value, dict):
                raise ValueError("not an object")
            found.append(value)
            position = end
            while position < len(text) and text[position] in " \t\r,":
                position += 1
    except UnicodeDecodeError:
        return "not UTF-8"
    except (ValueError, RecursionError):
        if data[:8].rstrip() in _CONFLICT_MARKS:
            return "a mark that git left in a merge conflict; remove this line"
        return "not valid JSON (a torn or damaged line)"
    return found
