"""Words as a database keeps them: a `tsvector` of the same stems as everywhere, with the place of every one.

A lexeme begins with the mark of its index and says whether the words are another program's. Where it stands is told by
its weight: A is the title, B the text, C the rest; between two of them one place is left free, so that no phrase
reaches over. The type has places up to 16,383, of one word 255, and a megabyte in all; what lies beyond counts less.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.storage.words import TITLE, Run, stems

PREFIX = 6
"""Characters before the stem: the mark of the index, and `o` for own or `f` for foreign."""
_LAST, _OFTEN = 16_383, 255
_LONGEST = 500
_ROOM = 900_000
_WEIGHTS = "ABC"
_TITLE_WEIGHT = 3
_TITLE_BYTE = _TITLE_WEIGHT << 6


class Words(msgspec.Struct, frozen=True):
    """The words of one record, ready to be kept."""

    vector: str
    length: int


def prefix(mark: str, foreign: bool) -> str:
    return mark + ("f" if foreign else "o")


def words(start: str, columns: tuple[str, str, str]) -> Words:
    """Return the words of a title, a text and the rest, in the form in which the server reads them."""
    places: dict[str, list[str]] = {}
    start_at, length, room = 1, 0, _ROOM
    for weight, text in zip(_WEIGHTS, columns, strict=True):
        found = stems(text)
        length += len(found)
        for at, stem in enumerate(found, start_at):
            known = places.get(stem)
            if known is None:
                cost = len(stem.encode()) + PREFIX + 8
                if len(stem) > _LONGEST or room < cost + 2:
                    continue
                room -= cost
                known = places[stem] = []
            if len(known) < _OFTEN and room >= 2:
                known.append(f"{min(at, _LAST)}{weight}")
                room -= 2
        start_at += len(found) + 1
    vector = " ".join(f"{_quoted(start + stem)}:{','.join(known)}" for stem, known in places.items())
    return Words(vector, length)


def query(start: str, runs: Iterable[Run], joined: str = "|") -> str:
    """Return what matches the records in which one of these runs stands (or, with `&`, all of them)."""
    found = [_phrase(start, run) for run in runs]
    return f" {joined} ".join(each for each in found if each)


def _phrase(start: str, run: Run) -> str:
    parts = [_quoted(start + stem) for stem in run if len(stem) <= _LONGEST]
    return "(" + " <-> ".join(parts) + ")" if parts else ""


class Counting:
    """Counts some runs of stems in vectors as the server sends them: in the title for more, up to 255."""

    def __init__(self, start: str, runs: Sequence[Run]) -> None:
        self._runs = [[(start + stem).encode() + b"\0" for stem in run] for run in runs]

    def __call__(self, data: bytes) -> bytes:
        return bytes([_single(run[0], data) if len(run) == 1 else _together(run, data) for run in self._runs])


def _single(stem: bytes, data: bytes) -> int:
    """Say how often a word stands there; its prefix keeps it from being met inside of something else."""
    at = data.find(stem)
    if at < 0:
        return 0
    at += len(stem)
    number = data[at] << 8 | data[at + 1]
    if not number or data[at + 2] < _TITLE_BYTE:  # places ascend, and those of the title come first
        return min(_OFTEN, number)
    titles = sum(data[place] >= _TITLE_BYTE for place in range(at + 2, at + 2 + 2 * number, 2))
    return min(_OFTEN, number + (int(TITLE) - 1) * titles)


def _together(run: list[bytes], data: bytes) -> int:
    """Say how often words follow one another there, all in one column."""
    found = [_places(stem, data) for stem in run]
    firsts = found[0] if found else []
    for number, others in enumerate(found[1:], 1):
        there = set(others)
        firsts = [place for place in firsts if place + number in there]  # the weight is part of the number
    return min(_OFTEN, sum(int(TITLE) if place >> 14 == _TITLE_WEIGHT else 1 for place in firsts))


def _places(stem: bytes, data: bytes) -> tuple[int, ...]:
    at = data.find(stem)
    if at < 0:
        return ()
    at += len(stem)
    return struct.unpack_from(f"!{data[at] << 8 | data[at + 1]}H", data, at + 2)


def _quoted(lexeme: str) -> str:
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"
