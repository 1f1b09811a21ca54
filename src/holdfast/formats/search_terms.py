"""Texts that shall be nowhere any more: finding them in bytes, whatever wrote those, and taking them out of other text.

What repeats a text in part counts as well: a trace is cut off, a summary quotes a sentence. A part is a run of at least
`PART` characters that stands in the text word for word. A text that is shorter than `SHORTEST` is not looked for in
other text: it would be found everywhere.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Container, Iterable, Iterator
from typing import Any, AnyStr

PART = 32
SHORTEST = 8
FORGOTTEN = "[forgotten]"
_STEP = PART // 2
_MOST = 64
"""So many places of a long text are looked for in a file, besides all of it."""


class Needles:
    """Some texts, in all the forms that they have in files; inside of the `spared` names they are left alone."""

    def __init__(self, texts: Iterable[str], spared: Iterable[str] = ()) -> None:
        stripped = {text.strip() for text in texts}
        self.texts = sorted((text for text in stripped if len(text) >= SHORTEST), key=len, reverse=True)
        self.short = len([text for text in stripped if 0 < len(text) < SHORTEST])
        """How many were too short to look for."""
        self._samples: dict[str, list[tuple[str, int]]] = {}
        for text in self.texts:
            for start in range(0, len(text) - _STEP + 1, _STEP) if len(text) >= PART else ():
                self._samples.setdefault(text[start : start + _STEP], []).append((text, start))
        self._sampled = [form for sample in self._samples for form in forms(sample)]
        self.whole = {form: number for number, text in enumerate(self.texts) for form in forms(text)}
        """The bytes of each text, with its number."""
        self.parts = sorted({form for text in self.texts for part in _spread(text) for form in forms(part)})
        """The bytes of some parts of each text."""
        self._spared = sorted({name for name in spared if self.stand_in(name)})
        self._spared_bytes = sorted({form for name in self._spared for form in forms(name)})

    def __bool__(self) -> bool:
        return bool(self.texts)

    def touch(self, data: bytes) -> bool:
        """Could these bytes hold one of the texts, or a part of it? No is certain."""
        return any(form in data for form in self._sampled) or any(form in data for form in self.whole)

    def stand_in(self, name: str) -> bool:
        """Does a name have one of the texts, or a part of it?"""
        return any(text in name for text in self.texts) or any(True for _ in self._runs(name))

    def place(self, data: bytes | mmap.mmap, form: bytes) -> int:
        """Return where a form first stands in some bytes, other than in a name that is spared; -1 for nowhere."""
        at = data.find(form)
        while at >= 0 and any(
            data[max(0, at - inside) : at - inside + len(name)] == name
            for name in self._spared_bytes
            for inside in _places(name, form)
        ):
            at = data.find(form, at + 1)
        return at

    def without(self, text: str) -> str:
        """Return a text without what it has of these texts."""
        found = [(at, at + len(needle)) for needle in self.texts for at in _places(text, needle)]
        found = sorted(run for run in {*found, *self._runs(text)} if not self._is_spared(text, *run))
        pieces, last = [], 0
        for start, end in found:
            if start >= last:
                pieces += [text[last:start], FORGOTTEN]
            last = max(last, end)
        return "".join([*pieces, text[last:]])

    def _is_spared(self, text: str, start: int, end: int) -> bool:
        """Does this stretch of a text lie in a name that is spared?"""
        return any(at <= start and end <= at + len(name) for name in self._spared for at in _places(text, name))

    def without_any(self, value: Any, but: Container[str] = ()) -> Any:
        """Return a JSON value without what its texts have of these, but for the fields that are named."""
        if isinstance(value, str):
            return self.without(value)
        if isinstance(value, dict):
            return {
                self.without(name): inner if name in but else self.without_any(inner, but)
                for name, inner in value.items()
            }
        if isinstance(value, list):
            return [self.without_any(inner, but) for inner in value]
        return value

    def _runs(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where parts stand in a text."""
        position = last = 0
        while position <= len(text) - _STEP:
            places = self._samples.get(text[position : position + _STEP], ())
            start, end = max(
                (_run(text, position, *place) for place in places), key=lambda run: run[1] - run[0], default=(0, 0)
            )
            if end - start >= PART:
                yield max(start, last), end
                position = last = end
            else:
                position += 1


def _places(data: AnyStr, part: AnyStr) -> list[int]:
    """Return where a part stands, from left to right; no place overlaps another."""
    found: list[int] = []
    at = data.find(part)
    while at >= 0:
        found.append(at)
        at = data.find(part, at + len(part))
    return found


def _run(text: str, here: int, needle: str, there: int) -> tuple[int, int]:
    """Return how far a text and a needle are the same around two places."""
    back = 0
    while here - back > 0 and there - back > 0 and text[here - back - 1] == needle[there - back - 1]:
        back += 1
    ahead = _STEP
    while here + ahead < len(text) and there + ahead < len(needle) and text[here + ahead] == needle[there + ahead]:
        ahead += 1
    return here - back, here + ahead


def _spread(text: str) -> list[str]:
    """Return parts from all over a text."""
    starts = range(0, len(text) - PART + 1, max(PART, len(text) // _MOST))
    return [text[start : start + PART] for start in starts] if len(text) > PART else []


def forms(text: str) -> set[bytes]:
    """Return the bytes that a text has as it is, with other line ends, and inside JSON."""
    found = {text, text.replace("\r\n", "\n").replace("\n", "\r\n"), text.replace("\r\n", "\n")}
    found |= {json.dumps(one, ensure_ascii=ascii)[1:-1] for one in tuple(found) for ascii in (True, False)}
    return {one.encode("utf-8", "surrogatepass") for one in found}
