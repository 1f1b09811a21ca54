"""Values: large results, stored apart from the entries that refer to them and read a part at a time.

A value is one file; its reference is its path. A conversation's history is a value too: `episodic` is that of the
session, `history` that of the chat, and a transcript is named by its path or the id of one of its turns. A reference
can name nothing outside the folders of values and transcripts.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from holdfast.core import Core
from holdfast.errors import Invalid, NotFound
from holdfast.formats import summaries
from holdfast.model.kinds import KINDS
from holdfast.model.names import check_given
from holdfast.model.queries import fold, parse
from holdfast.model.records import Scope
from holdfast.model.times import is_id
from holdfast.storage import values

READ = 4_000
"""Characters per read, unless the caller says otherwise."""
MOST = 100_000
_LINE = re.compile(r":\d+\Z")
_HISTORIES = {"episodic": KINDS["episode"], "history": KINDS["message"]}
_AROUND = 120
_PIECE = 2_000


class Values:
    def __init__(self, memory: Core) -> None:
        self._memory = memory

    def read(self, ref: str, offset: int = 0, limit: int = READ, session: str = "") -> dict[str, Any]:
        """Return a part of a value, how long the value is, and where the next part starts."""
        if type(offset) is not int or type(limit) is not int or offset < 0 or not 1 <= limit <= MOST:
            what = f"offset is {offset!r}, limit is {limit!r}."
            raise Invalid(what, f"Use an offset from 0 and a limit of 1 to {MOST:,}.")
        return {"ref": ref} | part(self._text(ref, session), offset, limit, "text")

    def search(self, ref: str, query: str, limit: int = 10, session: str = "") -> list[dict[str, Any]]:
        """Return the places of a value that have most of the words, best first, each with its offset."""
        check_given(query=query)
        if type(limit) is not int or limit < 1:
            raise Invalid(f"limit is {limit!r}.", "Use a number from 1 on.")
        if not (words := parse(query).tokens):
            raise Invalid("There is nothing to look for.", "Give some words.")
        found = [(start, line, sorted(words & set(fold(line)))) for start, line in _lines(self._text(ref, session))]
        best = sorted((one for one in found if one[2]), key=lambda one: -len(one[2]))[:limit]
        return [{"offset": start, "text": _around(line, hits), "why": hits} for start, line, hits in best]

    def summarize(self, ref: str, budget: int = 500, session: str = "") -> str:
        """Return a summary of a value that consists of its own sentences."""
        if type(budget) is not int or budget < 1:
            raise Invalid(f"budget is {budget!r}.", "Use a number of tokens.")
        lines = [summaries.Entry(id=str(start), time="", text=line) for start, line in _lines(self._text(ref, session))]
        return summaries.extract(lines, budget, "lines")

    def _text(self, ref: str, session: str) -> str:
        check_given(ref=ref, session=session)
        places = self._memory.layout
        if ref in _HISTORIES:
            return self._history(places.path_for(_HISTORIES[ref], Scope(), session=session))
        with contextlib.suppress(NotFound):
            path = self._memory.get(ref).path if is_id(ref) else _LINE.sub("", ref)
            place = places.classify(path)
            if place and place.kind.name == "transcript" and self._memory.store.exists(path):
                return self._history(path)
            if values.is_ref(ref, places.memory):
                return values.read(self._memory.tree, ref, self._memory.settings.limits.document_bytes)
        step = "Use the ref that an entry shows, episodic, history, or the path of a transcript."
        raise NotFound(f"There is no value {ref[:200]!r}.", step)

    def _history(self, path: str) -> str:
        """Return the records of a log as lines, oldest first."""
        lines = []
        for record in self._memory.backwards(path):
            role, text = record.fields.get("role"), " ".join(record.text.split())
            lines.append(f"{record.time} {role}: {text}" if isinstance(role, str) else f"{record.time} {text}")
        return "\n".join(reversed(lines))


def part(text: str, offset: int, limit: int, name: str) -> dict[str, Any]:
    """Return a part of a text under a name, how long the text is, and where the next part starts."""
    found = text[offset : offset + limit]
    reply = {"offset": offset, name: found, "size": len(text)}
    return reply | ({"next": offset + len(found)} if offset + len(found) < len(text) else {})


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text with their offsets; very long ones in pieces."""
    position = 0
    for line in text.splitlines(keepends=True):
        for start in range(0, len(line), _PIECE):
            if piece := line[start : start + _PIECE].strip():
                yield position + start, piece
        position += len(line)


def _around(line: str, hits: list[str]) -> str:
    """Return a line, or of a long one the part around the first hit."""
    if len(line) <= 2 * _AROUND:
        return line
    lower = line.casefold()
    first = min((place for hit in hits if (place := lower.find(hit)) >= 0), default=0)
    start = max(0, first - _AROUND)
    return ("…" if start else "") + line[start : start + 2 * _AROUND] + ("…" if start + 2 * _AROUND < len(line) else "")
