"""Checks of drafts: the rules in the row of a kind, and the handling of secrets.

A secret is refused, redacted or kept, depending on the kind and the settings. Every write is checked here before
anything reaches the disk. When a file is rewritten, only secrets that were not in it before count: a secret that a
person typed into a file by hand stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NoReturn

import msgspec

from holdfast import secrets
from holdfast.errors import Invalid, OverBudget
from holdfast.model.kinds import Kind
from holdfast.model.patterns import regex
from holdfast.model.records import Draft, Record
from holdfast.model.settings import Secrets
from holdfast.model.times import normal, today, utc_now


def with_defaults(kind: Kind, draft: Draft) -> Draft:
    if not kind.defaults and not kind.key:
        return draft
    fields = {**kind.defaults, **draft.fields}
    if kind.key and draft.title and kind.key not in fields:
        fields[kind.key] = draft.title
    return msgspec.structs.replace(draft, fields=fields)


def check(kind: Kind, draft: Draft, *, changing: bool = False) -> None:
    """Refuse a draft that breaks the kind's rules, naming every fault at once; a change may omit parts."""
    text = draft.text if draft.data is None else draft.data if isinstance(draft.data, str) else "a value"
    given: dict[str, Any] = {"title": draft.title or None, "text": text, **draft.fields}
    missing = [
        name
        for name in kind.required
        if not (changing and given.get(name) is None)
        and (not isinstance(given.get(name), str) or not given[name].strip())
    ]
    if missing:
        needed = " and ".join(f"a {name}" if name in ("title", "key") else name for name in missing)
        raise Invalid(f"{kind.one} needs {needed}.", f"Give {', '.join(missing)} as text that is not blank.", missing)
    if draft.until and not (_DAY.match(draft.until) and normal(draft.until)):
        raise Invalid(f"until is {draft.until!r}.", "Use a date, like 2026-12-31.")
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


_DAY = regex(r"\d{4}-\d{2}-\d{2}\Z")
_LINKS = frozenset({"supersedes", "superseded_by", "until"})
_RESERVED = {
    "line": _LINKS | {"id", "op", "writer", "hide", "hidden", "ref", "tags", "session", "workspace"},
    "document": _LINKS | {"tags", "archived", "isArchived"},
    "section": _LINKS | {"tags", "archived"},
}


_OWN = ("id", "op", "writer", "ref", "head", "size", "supersedes", "superseded_by", "until", "reason")


def copied_fields(kind: Kind, record: Record) -> dict[str, Any]:
    """Return the fields of a log entry that its replacement inherits."""
    return {name: value for name, value in record.fields.items() if name not in (*_OWN, kind.text)}


def with_links(draft: Draft) -> Draft:
    """Return a draft whose fields contain `supersedes` and `until`."""
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


# secrets

_NEXT = (
    "Remove it and say where it is stored. If it is not a secret, the owner can allow it under [secrets] in"
    " holdfast.toml."
)
_LONGEST = 120
_SCANNED = ("text", "title", "tags", "session", "id", "data", "fields")


class SecretPolicy:
    """Applies the `[secrets]` settings of one memory to its writes."""

    def __init__(self, config: Secrets) -> None:
        self._config = config
        self._allow = frozenset(config.allow)

    def _action(self, kind: Kind | None, *, waits: bool = True) -> Literal["refuse", "redact", "keep"]:
        if kind is None or not kind.heard:
            return self._config.written
        return "redact" if self._config.heard == "refuse" and not waits else self._config.heard

    def clean(self, value: Any) -> Any:
        """Redact a value of a kind that is recorded as it happens; for callers that shorten it before writing."""
        return value if self._config.heard == "keep" else secrets.redact_all(value, self._allow)

    def found(self, text: str) -> list[secrets.Secret]:
        """Return the secrets in a text, except for the allowed formats."""
        return secrets.scan(text, self._allow)

    def check(self, value: Any) -> None:
        """Refuse a value with a secret, if the settings refuse secrets."""
        if self._config.written == "refuse" and secrets.marked(value):
            self._refuse(value)

    def name(self, what: str, name: str) -> None:
        """Refuse a file or folder name with a secret; a name cannot be redacted."""
        if self._config.written != "keep" and secrets.marked(name):
            self._refuse({what: name})

    def line(self, kind: Kind | None, line: Mapping[str, Any], *, waits: bool = True) -> Mapping[str, Any]:
        """Return a line as it may be written, or refuse it; without a caller that `waits`, it is redacted instead."""
        action = self._action(kind, waits=waits)
        if action == "keep" or not secrets.marked(line):
            return line
        if action == "refuse":
            self._refuse(line)
            return line
        made: dict[str, Any] = secrets.redact_all(line, self._allow, named=kind is not None and kind.heard)
        return made

    def draft(self, kind: Kind, draft: Draft) -> Draft:
        """Return a draft as it may be written, or refuse it."""
        action = self._action(kind)
        keyed = {str(draft.fields[kind.key]): draft.text} if kind.key and kind.key in draft.fields else {}
        given: dict[str, Any] = {name: getattr(draft, name) for name in _SCANNED}
        if action == "keep" or not secrets.marked((*given.values(), keyed)):
            return draft
        if action == "refuse":
            fields = {name: value for name, value in given.items() if name != "fields"} | dict(draft.fields)
            self._refuse(fields | keyed)
            return draft
        self.name("id", draft.id)
        made: dict[str, Any] = secrets.redact_all(given, self._allow, named=kind.heard)
        if secrets.find(keyed, self._allow):
            made["text"] = secrets.REMOVED.format("secret")
        made["tags"] = None if draft.tags is None else tuple(made["tags"])
        return msgspec.structs.replace(draft, **made)

    def document(self, kind: Kind | None, data: bytes, before: bytes | None) -> bytes:
        """Return a document as it may be written, or refuse it; secrets that were in it before stay."""
        text = data.decode("utf-8", "surrogateescape")
        action = self._action(kind)
        if action == "keep" or not secrets.marked(text):
            return data
        old = (before or b"").decode("utf-8", "surrogateescape")
        new = [found for found in secrets.scan(text, self._allow) if text[found.start : found.end] not in old]
        if new and action == "refuse":
            _raise(new[0].name, f"line {new[0].line}")
        return secrets.without(text, new).encode("utf-8", "surrogateescape") if new else data

    def text(self, kind: Kind, name: str, value: Any, before: str) -> Any:
        """Return a part of an entry as it may be written, or refuse it; secrets that were in the entry before stay."""
        if isinstance(value, str):
            return self.document(kind, value.encode("utf-8"), before.encode("utf-8", "surrogateescape")).decode("utf-8")
        return self.line(kind, {name: value})[name]

    def _refuse(self, value: Any) -> None:
        if found := secrets.find(value, self._allow):
            _raise(*found)


def _raise(name: str, where: str) -> NoReturn:
    shown = where if len(where) <= _LONGEST else f"…{where[-_LONGEST:]}"
    raise Invalid(f"The text ({shown}) contains what looks like a secret: {name}. Nothing was written.", _NEXT)
