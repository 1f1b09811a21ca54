"""Texts that must not occur anywhere: find them in the bytes of any file, and cut them out of other text.

A part of a text counts as well, since a trace is cut off and a summary quotes a sentence: a part is a verbatim run of
at least `PART` characters. A text shorter than `SHORTEST` is not searched for; it would be found everywhere.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Container, Iterable, Iterator
from typing import Any, AnyStr

PART = 32
SHORTEST = 8
FORGOTTEN = "[forgotten]"
_STEP = PART // 2
_MOST_PARTS = 64
"""How many parts of a long text are searched for in a file, besides the whole text."""


class SearchTerms:
    """Texts in all the forms that they have in files; occurrences within `spared` names are ignored."""

    def __init__(self, texts: Iterable[str], spared: Iterable[str] = ()) -> None:
        stripped = {text.strip() for text in texts}
        self.texts = sorted((text for text in stripped if len(text) >= SHORTEST), key=len, reverse=True)
        self.short = len([text for text in stripped if 0 < len(text) < SHORTEST])
        """How many texts were too short to search for."""
        self._samples: dict[str, list[tuple[str, int]]] = {}
        for text in self.texts:
            for start in range(0, len(text) - _STEP + 1, _STEP) if len(text) >= PART else ():
                self._samples.setdefault(text[start : start + _STEP], []).append((text, start))
        self.whole = {form for text in self.texts for form in _forms(text)}
        """The bytes of each text."""
        parts = {
            text[start : start + PART]
            for text in self.texts
            for start in range(0, len(text) - PART + 1, max(PART, len(text) // _MOST_PARTS))
            if len(text) > PART
        }
        self.parts = sorted({form for part in parts for form in _forms(part)})
        """The bytes of some parts of each text."""
        self._hints = [*(form for sample in self._samples for form in _forms(sample)), *self.whole]
        self._spared = sorted({name for name in spared if self.occur_in(name)})
        self._spared_bytes = sorted({form for name in self._spared for form in _forms(name)})

    def __bool__(self) -> bool:
        return bool(self.texts)

    def may_occur_in(self, data: bytes) -> bool:
        """Return False only if these bytes have no text and no part of one."""
        return any(form in data for form in self._hints)

    def occur_in(self, name: str) -> bool:
        """Return whether a name has one of the texts, or a part of one."""
        return any(text in name for text in self.texts) or any(True for _ in self._runs(name))

    def find(self, data: bytes | mmap.mmap, form: bytes) -> int:
        """Return where a form first occurs in some bytes outside of spared names; -1 for nowhere."""
        at = data.find(form)
        while at >= 0 and any(
            data[max(0, at - inside) : at - inside + len(name)] == name
            for name in self._spared_bytes
            for inside in _occurrences(name, form)
        ):
            at = data.find(form, at + 1)
        return at

    def cut_from(self, text: str) -> str:
        """Return a text with these texts, and parts of them, replaced by a note."""
        found = {(at, at + len(term)) for term in self.texts for at in _occurrences(text, term)}
        names = [(at, at + len(name)) for name in self._spared for at in _occurrences(text, name)]
        pieces, last = [], 0
        for start, end in sorted(found.union(self._runs(text))):
            if any(first <= start and end <= behind for first, behind in names):
                continue
            if start >= last:
                pieces += [text[last:start], FORGOTTEN]
            last = max(last, end)
        return "".join([*pieces, text[last:]])

    def cut_from_json(self, value: Any, but: Container[str] = ()) -> Any:
        """Return a JSON value with these texts cut out, except in the named fields."""
        if isinstance(value, str):
            return self.cut_from(value)
        if isinstance(value, dict):
            return {
                self.cut_from(name): inner if name in but else self.cut_from_json(inner, but)
                for name, inner in value.items()
            }
        return [self.cut_from_json(inner, but) for inner in value] if isinstance(value, list) else value

    def _runs(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield start and end of each part that occurs in a text."""
        position = last = 0
        while position <= len(text) - _STEP:
            places = self._samples.get(text[position : position + _STEP], ())
            runs = (_common_run(text, position, *place) for place in places)
            start, end = max(runs, key=lambda run: run[1] - run[0], default=(0, 0))
            if end - start >= PART:
                yield max(start, last), end
                position = last = end
            else:
                position += 1


def _occurrences(data: AnyStr, part: AnyStr) -> list[int]:
    """Return where a part occurs, from left to right, without overlaps."""
    return [found.start() for found in re.finditer(re.escape(part), data)]


def _common_run(text: str, here: int, term: str, there: int) -> tuple[int, int]:
    """Return how far a text and a term are equal around two places."""
    back = 0
    while here - back > 0 and there - back > 0 and text[here - back - 1] == term[there - back - 1]:
        back += 1
    ahead = _STEP
    while here + ahead < len(text) and there + ahead < len(term) and text[here + ahead] == term[there + ahead]:
        ahead += 1
    return here - back, here + ahead


def _forms(text: str) -> set[bytes]:
    """Return the bytes of a text as it is, with other line ends, and inside JSON."""
    found = {text, text.replace("\r\n", "\n").replace("\n", "\r\n"), text.replace("\r\n", "\n")}
    found |= {json.dumps(one, ensure_ascii=ascii)[1:-1] for one in tuple(found) for ascii in (True, False)}
    return {one.encode("utf-8", "surrogatepass") for one in found}
