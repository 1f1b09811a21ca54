"""What happens to a secret in a write: it is refused, redacted or kept, depending on the kind and the settings.

Every write is checked here before anything reaches the disk. When a file is rewritten, only secrets that were not in it
before count: a secret that a person typed into a file by hand stays.
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
