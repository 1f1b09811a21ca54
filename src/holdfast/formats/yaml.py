"""Replies as YAML text: what a model reads, and any YAML reader gives back as the same data.

Blocks for mappings and lists of mappings, one line for lists of plain values, `|` for text of several lines. Whatever
YAML could take for something else is quoted as JSON, which is YAML too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.formats.markdown import scalar

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_RESERVED = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf", "infinity"})
_ODD = re.compile("[^\n\t -~\u00a0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def render(value: Mapping[str, Any]) -> str:
    """Write a mapping of JSON values."""
    return "\n".join(_mapping(value, "")) + "\n" if value else "{}\n"


def _mapping(value: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, inner in value.items():
        yield from _under(f"{indent}{_plain(name)}:", inner, indent)


def _under(head: str, value: Any, indent: str) -> Iterator[str]:
    """Write a value behind its name, or below it."""
    if isinstance(value, Mapping) and value:
        yield head
        yield from _mapping(value, indent + "  ")
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
        yield head
        for item in value:
            yield from _item(item, indent + "  ")
    elif isinstance(value, str) and _fits_block(value):
        yield f"{head} {'|' if value.endswith(chr(10)) else '|-'}"
        yield from (f"{indent}  {line}" if line else "" for line in value.removesuffix("\n").split("\n"))
    else:
        yield f"{head} {_plain(value)}"


def _item(value: Any, indent: str) -> Iterator[str]:
    if not isinstance(value, Mapping) or not value:
        yield from _under(f"{indent}-", value, indent)
        return
    lines = list(_mapping(value, indent + "  "))
    yield f"{indent}- {lines[0].removeprefix(indent + '  ')}"
    yield from lines[1:]


def _plain(value: Any) -> str:
    """Write a value on one line."""
    if isinstance(value, str):
        return value if _WORD.match(value) and value.lower() not in _RESERVED else scalar(value, quoted=True)
    if isinstance(value, Sequence):
        return "[" + ", ".join(_plain(item) for item in value) + "]"
    return scalar(value)


def _fits_block(text: str) -> bool:
    """Can this text stand as a block and be read back as it is?"""
    body = text.removesuffix("\n")
    return "\n" in text and not body.endswith(("\n", " ", "\t")) and body[:1] not in " \t\n" and not _ODD.search(text)
