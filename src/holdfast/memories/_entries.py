"""How records of the knowledge tree are shown; `_meta` says where an entry comes from, and is never searched.

A tier says how much of a document is shown: T0 its abstract, T1 as much as fits a page or two, T2 all of it.
"""

from __future__ import annotations

from typing import Any, Literal

from holdfast.formats import prose
from holdfast.model.records import Record, text_of
from holdfast.model.times import from_prefix

Tier = Literal["T0", "T1", "T2"]
Entry = dict[str, Any]
_PAGES = 8_000
"""Characters of a document that T1 shows: one or two pages."""
OVERVIEW = 80_000
"""Characters of an overview that T1 shows, which is all of it unless somebody keeps a book there."""


def plan(record: Record, tier: Tier) -> Entry:
    fields = record.fields
    known = {
        "name": record.title,
        "description": text_of(fields.get("description")),
        "status": text_of(fields.get("status")),
        "created": created(record),
        "updated": text_of(fields.get("updated")),
        "tags": list(record.tags),
        "scope": record.scope.path,
    }
    entry = {name: value for name, value in known.items() if value}
    if tier != "T0":
        entry["content"] = content(record, tier)
    return entry | meta(record, stem(record))


def learning(record: Record) -> Entry:
    known = {
        "title": record.title,
        "content": record.text.replace("\r\n", "\n"),
        "date": text_of(record.fields.get("date")),
        "category": text_of(record.fields.get("category")),
        "tags": list(record.tags),
        "scope": record.scope.path,
    }
    return {name: value for name, value in known.items() if value or name == "content"} | meta(record, record.id)


def document(record: Record, tier: Tier) -> Entry:
    known = {
        "title": record.title,
        "kind": record.kind,
        "abstract": abstract(record),
        "tags": list(record.tags),
        "scope": record.scope.path,
    }
    entry = {name: value for name, value in known.items() if value}
    if tier != "T0":
        entry["content"] = content(record, tier)
    return entry | meta(record, record.id)


def abstract(record: Record) -> str:
    """Return what a document is about in a sentence or two: its description, else the start of its text."""
    return text_of(record.fields.get("description")) or prose.abstract(record.text)


def content(record: Record, tier: Tier, most: int = _PAGES) -> str:
    """Return the text of a document: all of it at T2, at T1 what fits."""
    text = record.text.replace("\r\n", "\n")
    if tier == "T1" and len(text) > most:
        return _shortened(text, most, record.path)
    return text + "\n" if text else ""


def cut(entry: Entry, most: int) -> Entry:
    """Return an entry whose content is too long for any budget with what fits of it."""
    text = str(entry.get("content", ""))
    return entry | {"content": _shortened(text, most, entry["_meta"]["document_path"])} if len(text) > most else entry


def _shortened(text: str, most: int, path: str) -> str:
    return f"{text[:most].rstrip()}\n… ({len(text) - most:,} more characters in {path})\n"


def meta(record: Record, identifier: str) -> Entry:
    return {"_meta": {"document_path": record.path, "document_id": identifier}}


def stem(record: Record) -> str:
    return record.path.rpartition("/")[2].removesuffix(".md")


def created(record: Record) -> str:
    return text_of(record.fields.get("created")) or from_prefix(stem(record))
