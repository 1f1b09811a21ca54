"""Values: large results that are kept apart from the memory that speaks of them, read a part at a time.

A value is one file; its reference is its path. A conversation's history is such a value too: `episodic` is that of the
session, `history` the chat. Nothing outside the folders of values can be named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from holdfast.core import Core
from holdfast.errors import Invalid, NotFound
from holdfast.formats import summaries
from holdfast.model.kinds import KINDS
from holdfast.model.names import check_given
from holdfast.model.queries import fold, parse
from holdfast.model.records import Record
from holdfast.model.scopes import Scope

READ = 4_000
"""Characters that one reading gives, unless the caller says otherwise."""
MOST = 100_000
_REF = re.compile(r"(?:sessions/[^/]+/)?values/[0-9a-f]{32}\.(?:txt|json)\Z")
_HISTORIES = {"episodic": "episode", "history": "message"}
_AROUND = 120


class Values:
    def __init__(self, memory: Core) -> None:
        self._memory = memory

    def read(self, ref: str, offset: int = 0, limit: int = READ, session: str = "") -> dict[str, Any]:
        """Return a part of a value, how long it is, and where the next part starts."""
        if not _whole(offset, limit) or offset < 0 or not 1 <= limit <= MOST:
            raise Invalid(
                f"offset is {offset!r}, limit is {limit!r}.", f"Use an offset from 0 and a limit of 1 to {MOST:,}."
            )
        text = self._text(ref, session)
        part = text[offset : offset + limit]
        reply = {"ref": ref, "offset": offset, "text": part, "size": len(text)}
        return reply | ({"next": offset + len(part)} if offset + len(part) < len(text) else {})

    def search(self, ref: str, query: str, limit: int = 10, session: str = "") -> list[dict[str, Any]]:
        """Return the places of a value that have most of the words, best first, each with its offset."""
        check_given(query=query)
        if not _whole(limit) or limit < 1:
            raise Invalid(f"limit is {limit!r}.", "Use a number from 1 on.")
        words = parse(query).tokens
        if not words:
            raise Invalid("There is nothing to look for.", "Give some words.")
        text = self._text(ref, session)
        found = []
        for start, line in _lines(text):
            hits = words & set(fold(line))
            if hits:
                found.append((len(hits), start, line, sorted(hits)))
        found.sort(key=lambda item: (-item[0], item[1]))
        return [{"offset": start, "text": _around(line, hits), "why": hits} for _, start, line, hits in found[:limit]]

    def summarize(self, ref: str, budget: int = 500, session: str = "") -> str:
        """Return what a value comes to, in sentences of its own."""
        if not _whole(budget) or budget < 1:
            raise Invalid(f"budget is {budget!r}.", "Use a number of tokens.")
        lines = [summaries.Entry(id=str(start), time="", text=line) for start, line in _lines(self._text(ref, session))]
        return summaries.extract(lines, budget, "lines")

    def _text(self, ref: str, session: str) -> str:
        memory = self._memory
        check_given(ref=ref, session=session)
        if ref in _HISTORIES:
            kind = KINDS[_HISTORIES[ref]]
            path = memory.places.path_for(kind, Scope(), session=session)
            said = [_said(record) for record in memory.backwards(path)]
            return "\n".join(reversed(said))
        inside = ref.removeprefix(f"{memory.places.memory}/")
        try:
            if inside == ref or not _REF.match(inside):
                raise NotFound(ref)
            return memory.vault.read(ref, memory.settings.limits.document_bytes).data.decode("utf-8", "replace")
        except NotFound:
            raise NotFound(
                f"There is no value {ref[:200]!r}.", "Use the ref that an entry shows, episodic or history."
            ) from None


def _whole(*numbers: object) -> bool:
    """Are these whole numbers, all of them?"""
    return all(type(number) is int for number in numbers)


def _said(record: Record) -> str:
    who = record.fields.get("role")
    text = " ".join(record.text.split())
    return f"{record.time} {who}: {text}" if isinstance(who, str) else f"{record.time} {text}"


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text with the offset of each; very long ones in pieces."""
    position = 0
    for line in text.splitlines(keepends=True):
        for start in range(0, len(line), 2_000):
            if line[start : start + 2_000].strip():
                yield position + start, line[start : start + 2_000].strip()
        position += len(line)


def _around(line: str, hits: list[str]) -> str:
    if len(line) <= 2 * _AROUND:
        return line
    lower = line.casefold()
    first = min((place for hit in hits if (place := lower.find(hit)) >= 0), default=0)
    start = max(0, first - _AROUND)
    return ("…" if start else "") + line[start : start + 2 * _AROUND] + ("…" if start + 2 * _AROUND < len(line) else "")
