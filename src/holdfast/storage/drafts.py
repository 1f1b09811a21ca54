"""The rules for drafts, and the fields they are written with, as the kind's row says."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from holdfast.errors import Invalid, OverBudget
from holdfast.model.kinds import Kind
from holdfast.model.records import Draft, Record
from holdfast.model.times import normal, today, utc_now


def with_defaults(kind: Kind, draft: Draft) -> Draft:
    if not kind.defaults and not kind.key:
        return draft
    fields = {**kind.defaults, **draft.fields}
    if kind.key and draft.title and kind.key not in fields:
        fields[kind.key] = draft.title
    return msgspec.structs.replace(draft, fields=fields)


def check(kind: Kind, draft: Draft, *, changing: bool = False) -> None:
    """Refuse a draft that breaks the kind's rules, naming every fault at once; a change may leave things out."""
    text = draft.text if draft.data is None else draft.data if isinstance(draft.data, str) else "a value"
    given: dict[str, Any] = {"title": draft.title or None, "text": text, **draft.fields}
    missing = [
        name
        for name in kind.required
        if not (changing and given.get(name) is None)
        and (not isinstance(given.get(name), str) or not given[name].strip())
    ]
    if missing:
        raise Invalid(f"{kind.one} needs {', '.join(missing)}.", "Give each of them, as text that is not blank.")
    check_until(draft)
    if len(draft.text or "") > kind.max_chars:
        raise OverBudget(
            f"The text has {len(draft.text or ''):,} characters; {kind.one.lower()} takes {kind.max_chars:,}.",
            "Split it.",
        )
    if reserved := draft.fields.keys() & _RESERVED[kind.shape]:
        raise Invalid(f"{', '.join(sorted(reserved))} cannot be given as a field.", "Use the parameter of that name.")
    for name, values in kind.choices.items():
        if name in draft.fields and draft.fields[name] not in values:
            raise Invalid(f"{name} is {draft.fields[name]!r}.", f"Use one of: {', '.join(values)}.")


def check_fit(kind: Kind, draft: Draft) -> None:
    """Refuse fields that this kind cannot store, instead of dropping them."""
    if draft.expect:
        raise Invalid("A version was given and no record to change.", "Give the id of the record as well.")
    if draft.data is not None and kind.shape != "line":
        raise Invalid(f"{kind.one} is kept as text.", "Give text.")
    if draft.id and "{any}" not in kind.place:
        raise Invalid(f"A new {kind.name} gets its own id.", "To change a record, give its id and leave the kind out.")
    if draft.session and kind.shape != "line":
        raise Invalid(f"{kind.one} belongs to a workspace, not to a session.", "Leave the session out.")
    if kind.dated and "created" in draft.fields and not normal(draft.fields["created"]):
        raise Invalid(f"created is {draft.fields['created']!r}.", "Use a date, like 2026-02-23.")


_DAY = re.compile(r"\d{4}-\d{2}-\d{2}\Z")
_LINKS = frozenset({"supersedes", "superseded_by", "until"})
_RESERVED = {
    "line": _LINKS | {"id", "op", "writer", "hide", "hidden", "ref", "tags", "session", "workspace"},
    "document": _LINKS | {"tags", "archived", "isArchived"},
    "section": _LINKS | {"tags", "archived"},
}


_OWN = ("id", "op", "writer", "ref", "head", "size", "supersedes", "superseded_by", "until", "reason")


def copied_fields(kind: Kind, record: Record) -> dict[str, Any]:
    """Return the fields of a log entry that one which replaces it gets as well."""
    return {name: value for name, value in record.fields.items() if name not in (*_OWN, kind.text)}


def check_until(draft: Draft) -> None:
    if draft.until and not (_DAY.match(draft.until) and normal(draft.until)):
        raise Invalid(f"until is {draft.until!r}.", "Use a date, like 2026-12-31.")


def with_links(draft: Draft) -> Draft:
    """Return a draft whose fields contain what it supersedes and how long it is valid."""
    links = {name: value for name in ("supersedes", "until") if (value := getattr(draft, name))}
    return msgspec.structs.replace(draft, fields={**draft.fields, **links}) if links else draft


def front(kind: Kind, draft: Draft) -> dict[str, Any]:
    """Return the front matter of a new document."""
    front: dict[str, Any] = {kind.title: draft.title} if draft.title else {}
    front |= draft.fields
    if kind.name not in ("memory", "rule"):
        front.setdefault(kind.time, today() if kind.dated or kind.time == "updated" else utc_now())
    if draft.tags:
        front["tags"] = list(draft.tags)
    return front


def changes(kind: Kind, draft: Draft) -> dict[str, Any]:
    given: dict[str, Any] = dict(draft.fields)
    if draft.title:
        given[kind.title] = draft.title
    if draft.tags is not None:
        given["tags"] = list(draft.tags) or None
    if draft.until is not None:
        given["until"] = draft.until or None
    return given
