"""What the store keeps and gives back.

A `Record` is what was read: one document, one section or one line. Its `id` is its identity: the path for a
document, `path#anchor` for a section, a UUIDv7 for a line. Its `version` is a hash of its own text, and the
version an edit was made from decides whether the edit may land. A `Draft` is what a caller wants to be kept.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.errors import Invalid
from holdfast.model.names import check_text
from holdfast.model.scopes import Scope

MAX_DEPTH = 64
PRIORITIES, USUAL_PRIORITY = range(1, 11), 5


class Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    id: str
    kind: str
    path: str
    scope: Scope = Scope()
    title: str = ""
    text: str = ""
    tags: tuple[str, ...] = ()
    time: str = ""
    """When it happened or was made, in UTC; "" when the file does not say."""
    updated: str = ""
    fields: Mapping[str, Any] = {}
    """Everything else that the front matter, the entry or the line carries."""
    line: int = 0
    """Where in the file it starts, from 1; 0 when that was not counted."""
    version: str = ""
    key: str = ""
    hidden: bool = False
    superseded: bool = False
    """A newer line of the same key holds."""
    links: tuple[str, ...] = ()
    """What its text links to: names in double brackets as they are written, other files by their path."""
    order: str = ""
    """The time-ordered id by which lines are ranked: their own id, or one derived from their time and bytes."""

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A line that hides another record, or shows it again; the newest mark of a target holds."""

    order: str
    target: str
    hidden: bool
    op: str = ""


class Draft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller wants to be kept: a new record, or a change of the one named by `id`."""

    kind: str = ""
    text: str | None = None
    title: str = ""
    scope: str | Scope | None = None
    """`W/D/R` as names or folders; None is the workspace `default`."""
    session: str = ""
    tags: tuple[str, ...] | None = None
    fields: Mapping[str, Any] = {}
    id: str = ""
    """The record to change; for documents that live where a person put them, the path to create."""
    expect: str = ""
    """The version this change was made from; needed to replace the text of a document or section."""
    data: Any = None
    """For a line: a JSON value in the place of its text."""
    op_id: str = ""
    """The same op_id has effect once, however often the call is repeated."""


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a write. `status`: stored, changed, unchanged, repeated (this op_id was applied before)."""

    status: str
    id: str
    path: str
    version: str = ""


HALF = "half of a pair: the other line is missing, so that it is left out"


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that could not be read as what it should be; everything else stays readable."""

    path: str
    what: str
    line: int = 0
    minor: bool = False
    """It was read all the same: something for `lint`, no damage."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}" if self.line else f"{self.path}: {self.what}"


def version_of(data: bytes) -> str:
    """Return the version of these bytes: the same bytes always, other bytes never."""
    return hashlib.sha256(data).hexdigest()[:32]


def priority_of(value: Any) -> int:
    """Read how important something is called; what says nothing of it, or nonsense, is as usual."""
    return value if type(value) is int and value in PRIORITIES else USUAL_PRIORITY


def mark_of(record: Record) -> int:
    """Return a number that tells a record of this content from any other: of its version and of its text elsewhere."""
    return int(record.version[:15] or "0", 16) ^ zlib.crc32(record.text.encode("utf-8", "surrogatepass"))


def path_of(identifier: str) -> str:
    """Return the file that an id names, for documents and sections; other ids come back as they are."""
    head, found, _ = identifier.rpartition(".md#")
    return head + ".md" if found and not identifier.endswith(".md") else identifier


def text_of(value: object) -> str:
    """Return all that a person could read in a JSON value, keys included, for search."""
    if isinstance(value, str):
        return value
    parts: list[str] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            waiting += [part for pair in reversed(list(item.items())) for part in reversed(pair)]
        elif isinstance(item, list | tuple):
            waiting += reversed(item)
        elif item is not None:
            parts.append(str(item).lower() if isinstance(item, bool) else str(item))
    return "\n".join(parts)


def line_of(value: object) -> str:
    """Return a JSON value as one line for people: `iteration: 0; action: ran the tests; result: 3 failed`."""
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_inner(part)}" for name, part in value.items() if part not in (None, "", [], {}))
    if isinstance(value, list | tuple):
        return ", ".join(_inner(part) for part in value if part is not None)
    return " ".join((str(value).lower() if isinstance(value, bool) else str(value)).split())


def _inner(value: object) -> str:
    """Return a value that stands inside another one; what has parts of its own is put in brackets."""
    if isinstance(value, Mapping):
        return f"({line_of(value)})"
    if isinstance(value, list | tuple) and any(isinstance(part, Mapping | list | tuple) for part in value):
        return f"[{line_of(value)}]"
    return line_of(value)


def check_plain(value: object, depth: int = 0) -> None:
    """Refuse what a file could not give back as it was: no JSON, NaN, numbers beyond 64 bits, deep nesting."""
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, Mapping | list | tuple):
        if depth >= MAX_DEPTH:
            raise Invalid(f"A field is nested more than {MAX_DEPTH} deep.", "Flatten it.")
        for part in (*value, *value.values()) if isinstance(value, Mapping) else value:
            check_plain(part, depth + 1)
        if isinstance(value, Mapping) and not all(isinstance(name, str) for name in value):
            raise Invalid("A mapping in a field has a name that is not text.", "Use text as names.")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Invalid(f"A field holds {value}, which is no number that can be kept.", "Leave it out or use null.")
    elif isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise Invalid("A field holds a number beyond 64 bits.", "Send it as text.")
    elif value is not None:
        raise Invalid(f"A field holds {type(value).__name__}.", "Use text, numbers, lists or mappings.")
