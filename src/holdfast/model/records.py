"""The values that the store reads and writes.

A `Record` is one document, section or line that was read. Its `id` is its identity: the path of a document,
`path#anchor` of a section, a UUIDv7 for a line. Its `version` is a hash of its own text; an edit names the version it
was made from. A `Draft` is a record that a caller wants to store. A `Scope` is where a record belongs; it is only an
address: making one creates nothing. `holdfast.storage.tree` resolves names that a person typed.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.errors import Invalid
from holdfast.model.names import check_text
from holdfast.model.times import today

MAX_DEPTH = 64
PEOPLE = ("cli",)
"""Writers that are a person; all others are programs."""
PRIORITIES, USUAL_PRIORITY = range(1, 11), 5
DEFAULT = "default"
LEVELS = ("workspace", "domain", "repository")


class Scope(msgspec.Struct, frozen=True, omit_defaults=True):
    """Folder names as they are on disk, and the session and run as the caller gave them."""

    workspace: str = ""
    domain: str = ""
    repository: str = ""
    session: str = ""
    run: str = ""

    @property
    def path(self) -> str:
        """`W/D/R`; "" is the whole memory."""
        return "/".join(filter(None, (self.workspace, self.domain, self.repository)))

    @property
    def above(self) -> tuple[str, ...]:
        """The paths of the parent levels, nearest first."""
        parts = self.path.split("/")
        return tuple("/".join(parts[:level]) for level in range(len(parts) - 1, 0, -1))


def from_path(path: str) -> Scope:
    """Parse `W[/D[/R]]` as folder names; folders below the third level belong to the repository."""
    return Scope(*path.split("/")[:3]) if path else Scope()


def split(text: str) -> list[str]:
    """Split typed text into one to three names, or refuse it."""
    check_text(text)
    parts = [part.strip() for part in text.split("/")]
    if not 1 <= len(parts) <= 3 or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise Invalid(f"{text!r} is not a scope.", "Use workspace, workspace/domain or workspace/domain/repository.")
    return parts


class Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    id: str
    kind: str
    path: str
    scope: Scope = Scope()
    title: str = ""
    text: str = ""
    tags: tuple[str, ...] = ()
    time: str = ""
    """When it happened or was made, in UTC; "" if the file does not record it."""
    updated: str = ""
    fields: Mapping[str, Any] = {}
    """Everything else in the front matter, the entry or the line."""
    line: int = 0
    """Its first line in the file, from 1; 0 if not counted."""
    version: str = ""
    key: str = ""
    hidden: bool = False
    superseded: bool = False
    """A newer line of the same key replaces it."""
    links: tuple[str, ...] = ()
    """Link targets in its text: names in double brackets as written, other files by path."""
    order: str = ""
    """The time-ordered id of a line: its own id, or one derived from its time and bytes."""

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A line that hides another record or shows it again; the newest mark of a target counts."""

    order: str
    target: str
    hidden: bool
    op: str = ""


class Draft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new record, or a change of the record named by `id`."""

    kind: str = ""
    text: str | None = None
    title: str = ""
    scope: str | Scope | None = None
    """`W/D/R` as names or folders; None is the workspace `default`."""
    session: str = ""
    tags: tuple[str, ...] | None = None
    fields: Mapping[str, Any] = {}
    id: str = ""
    """The record to change, or the path to create for a kind that is written by its path."""
    expect: str = ""
    """The version this change was made from; needed to replace the text of a document or section."""
    data: Any = None
    """For a line: a JSON value instead of text."""
    op_id: str = ""
    """Repeated calls with the same op_id take effect once."""
    supersedes: str = ""
    """The id of the record that this one replaces; both are marked, and the other one stays readable."""
    until: str | None = None
    """The last day on which it is valid, YYYY-MM-DD; "" removes it from a record that is changed."""
    reason: str = ""
    """Why it is changed; kept in its history."""


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a write. `status`: stored, changed, unchanged, repeated (this op_id was applied before), or pending
    (the owner has to approve it)."""

    status: str
    id: str
    path: str
    version: str = ""


HALF = "half of a pair: the other line is missing, so that it is left out"


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that could not be parsed; everything else stays readable."""

    path: str
    what: str
    line: int = 0
    minor: bool = False
    """Reported by `lint`; not damage, because the record was read."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}" if self.line else f"{self.path}: {self.what}"


def version_of(data: bytes) -> str:
    """Return the content hash that identifies these bytes."""
    return hashlib.sha256(data).hexdigest()[:32]


def priority_of(value: Any) -> int:
    """Return a valid priority; anything else counts as the default."""
    return value if type(value) is int and value in PRIORITIES else USUAL_PRIORITY


def mark_of(record: Record) -> int:
    """Return a number that identifies the content of a record, including text kept outside its line."""
    return int(record.version[:15] or "0", 16) ^ zlib.crc32(record.text.encode("utf-8", "surrogatepass"))


def lapsed(record: Record, day: str = "") -> str:
    """Return why a record is not current on a day, by default today: superseded, expired or pending; else ""."""
    if record.superseded or record.fields.get("superseded_by"):
        return "superseded"
    until = record.fields.get("until")
    if record.kind != "proposal" and isinstance(until, str) and until and until[:10] < (day or today()):
        return "expired"
    return "pending" if record.kind == "proposal" else ""


_WAITS = "waits for the owner's approval"


def label(record: Record, day: str = "") -> str:
    """Return the warning to show with a record that is superseded, expired, pending or retired; else ""."""
    match lapsed(record, day):
        case "superseded":
            newer = record.fields.get("superseded_by")
            return f"superseded by {newer}" if newer else "superseded"
        case "expired":
            return f"expired on {record.fields['until']}"
        case "pending":
            what = text_of(record.fields.get("proposed"))
            return f"{what}, {'decided by the owner' if record.hidden else _WAITS}"
    return "retired" if record.hidden else ""


def path_of(identifier: str) -> str:
    """Return the file of a document or section id; other ids are returned unchanged."""
    head, found, _ = identifier.rpartition(".md#")
    return head + ".md" if found and not identifier.endswith(".md") else identifier


def text_of(value: object) -> str:
    """Return all text in a JSON value, keys included, for search."""
    if isinstance(value, str):
        return value
    parts: list[str] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            waiting += reversed(list(itertools.chain.from_iterable(item.items())))
        elif isinstance(item, list | tuple):
            waiting += reversed(item)
        elif item is not None:
            parts.append(str(item).lower() if isinstance(item, bool) else str(item))
    return "\n".join(parts)


def line_of(value: object, *, inner: bool = False) -> str:
    """Return a JSON value as one readable line: `iteration: 0; action: ran the tests; result: 3 failed`."""
    if isinstance(value, Mapping):
        pairs = [(name, part) for name, part in value.items() if part not in (None, "", [], {})]
        text = "; ".join(f"{name}: {line_of(part, inner=True)}" for name, part in pairs)
        return f"({text})" if inner else text
    if isinstance(value, list | tuple):
        text = ", ".join(line_of(part, inner=True) for part in value if part is not None)
        nested = inner and any(isinstance(part, Mapping | list | tuple) for part in value)
        return f"[{text}]" if nested else text
    return " ".join((str(value).lower() if isinstance(value, bool) else str(value)).split())


def check_plain(value: object) -> None:
    """Refuse a value that a JSON file cannot return unchanged: other types, NaN, more than 64 bits, deep nesting."""
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, str):
            check_text(item)
        elif isinstance(item, Mapping | list | tuple):
            if depth >= MAX_DEPTH:
                raise Invalid(f"A field is nested more than {MAX_DEPTH} deep.", "Flatten it.")
            if isinstance(item, Mapping):
                for name in item:
                    if not isinstance(name, str):
                        raise Invalid("A mapping in a field has a name that is not text.", "Use text as names.")
                    check_text(name)
            parts = item.values() if isinstance(item, Mapping) else item
            waiting += zip(parts, itertools.repeat(depth + 1))
        elif isinstance(item, float):
            if not math.isfinite(item):
                raise Invalid(f"A field contains {item}, which JSON cannot store.", "Leave it out or use null.")
        elif isinstance(item, int):
            if not -(1 << 63) <= item < 1 << 63:
                raise Invalid("A field contains a number beyond 64 bits.", "Send it as text.")
        elif item is not None:
            raise Invalid(f"A field contains {type(item).__name__}.", "Use text, numbers, lists or mappings.")
