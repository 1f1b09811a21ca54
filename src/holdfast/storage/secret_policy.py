"""What becomes of secrets in what is about to be written: refused, redacted or kept, by the kind and the settings.

The writer asks here before anything of a write reaches a disk. What a person wrote into a file by hand is theirs: when
that file is written, only secrets that did not stand in it before count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NoReturn

import msgspec

from holdfast import secrets
from holdfast.errors import Invalid
from holdfast.model.kinds import Kind
from holdfast.model.records import Draft
from holdfast.model.settings import Secrets

_NEXT = (
    "Take it out and say where it is kept instead; if it is none, its owner can allow it: [secrets] in holdfast.toml."
)
_LONGEST = 120
Fate = Literal["refuse", "redact", "keep"]


class Screen:
    """The settings of one memory about secrets, applied to what is written."""

    def __init__(self, config: Secrets) -> None:
        self._config = config
        self._allow = frozenset(config.allow)

    def fate(self, kind: Kind | None, *, waits: bool = True) -> Fate:
        """Say what becomes of a secret in such a record; what nobody waits for is not refused."""
        if kind is None or not kind.heard:
            return self._config.written
        return "redact" if self._config.heard == "refuse" and not waits else self._config.heard

    def clean(self, value: Any) -> Any:
        """Return what was heard without its secrets: for whoever cuts it before it is written."""
        return value if self._config.heard == "keep" else secrets.redact_all(value, self._allow)

    def found(self, text: str) -> list[secrets.Secret]:
        """Return the secrets that stand in a text, whatever becomes of them elsewhere."""
        return secrets.scan(text, self._allow)

    def check(self, value: Any) -> None:
        """Refuse a value of somebody who wants it to be kept, if that is what becomes of secrets in it."""
        if self._config.written == "refuse" and secrets.marked(value):
            self._refuse(value)

    def name(self, what: str, name: str) -> None:
        """Refuse the name of a file or folder that holds a secret: it cannot be taken out of a name."""
        if self._config.written != "keep" and secrets.marked(name):
            self._refuse({what: name})

    def line(self, kind: Kind | None, line: Mapping[str, Any], *, waits: bool = True) -> Mapping[str, Any]:
        """Return a line as it may be written, or refuse it."""
        fate = self.fate(kind, waits=waits)
        if fate == "keep" or not secrets.marked(line):
            return line
        if fate == "refuse":
            self._refuse(line)
            return line
        made: dict[str, Any] = secrets.redact_all(line, self._allow, named=kind is not None and kind.heard)
        return made

    def draft(self, kind: Kind, draft: Draft) -> Draft:
        """Return a draft of a new record as it may be written, or refuse it."""
        given = {
            "text": draft.text, "title": draft.title, "tags": draft.tags, "session": draft.session, "id": draft.id,
            "data": draft.data, "fields": draft.fields,
        }  # fmt: skip
        fate = self.fate(kind)
        named = {str(draft.fields[kind.key]): draft.text} if kind.key and kind.key in draft.fields else {}
        if fate == "keep" or not secrets.marked([given, named]):
            return draft
        if fate == "refuse":
            fields = {name: value for name, value in given.items() if name != "fields"} | dict(draft.fields)
            self._refuse(fields | named)
            return draft
        self.name("id", draft.id)
        made: dict[str, Any] = secrets.redact_all(given, self._allow, named=kind.heard)
        if secrets.find(named, self._allow):
            made["text"] = secrets.REMOVED.format("secret")
        made["tags"] = None if draft.tags is None else tuple(made["tags"])
        return msgspec.structs.replace(draft, **made)

    def document(self, kind: Kind | None, data: bytes, before: bytes | None) -> bytes:
        """Return a document as it may be written, or refuse it; what stood in it before stays."""
        text = data.decode("utf-8", "surrogateescape")
        fate = self.fate(kind)
        if fate == "keep" or not secrets.marked(text):
            return data
        old = (before or b"").decode("utf-8", "surrogateescape")
        fresh = [found for found in secrets.scan(text, self._allow) if text[found.start : found.end] not in old]
        if fresh and fate == "refuse":
            _raise(fresh[0].name, f"line {fresh[0].line}")
        return secrets.without(text, fresh).encode("utf-8", "surrogateescape") if fresh else data

    def text(self, kind: Kind, name: str, value: Any, before: str) -> Any:
        """Return a part of an entry as it may be written, or refuse it; what stood in the entry before stays."""
        if isinstance(value, str):
            return self.document(kind, value.encode("utf-8"), before.encode("utf-8", "surrogateescape")).decode("utf-8")
        return self.line(kind, {name: value})[name]

    def _refuse(self, value: Any) -> None:
        if found := secrets.find(value, self._allow):
            _raise(*found)


def _raise(name: str, where: str) -> NoReturn:
    told = where if len(where) <= _LONGEST else f"…{where[-_LONGEST:]}"
    raise Invalid(f"The text ({told}) holds what looks like a secret: {name}. Nothing was written.", _NEXT)
