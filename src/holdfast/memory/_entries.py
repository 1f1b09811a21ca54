"""How records of the knowledge tree are shown; `_meta` says where an entry comes from, and is never searched.

A tier says how much of a document is shown: T0 its abstract, T1 as much as fits a page or two, T2 all of it.
"""

from __future__ import annotations

from typing import Any, Literal

from holdfast.records import Record, text_of
from holdfast.times import from_prefix

Tier = Literal["T0", "T1", "T2"]
Entry = dict[str, Any]
_PAGES = 8_000
"""Characters of a document that T1 shows: one or two pages."""


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
        "abstract": text_of(record.fields.get("description")),
        "tags": list(record.tags),
        "scope": record.scope.path,
    }
    entry = {name: value for name, value in known.items() if value}
    if tier != "T0":
        entry["content"] = content(record, tier)
    return entry | meta(record, record.id)


def content(record: Record, tier: Tier) -> str:
    text = record.text.replace("\r\n", "\n")
    if tier == "T1" and len(text) > _PAGES:
        return f"{text[:_PAGES].rstrip()}\n… ({len(text) - _PAGES:,} more characters in {record.path})\n"
    return text + "\n" if text else ""


def meta(record: Record, identifier: str) -> Entry:
    return {"_meta": {"document_path": record.path, "document_id": identifier}}


def stem(record: Record) -> str:
    return record.path.rpartition("/")[2].removesuffix(".md")


def created(record: Record) -> str:
    return text_of(record.fields.get("created")) or from_prefix(stem(record))
