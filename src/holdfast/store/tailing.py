"""Reading a log from its end: the newest records first, without those that are hidden or half of a pair."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from holdfast.places import Place
from holdfast.records import HALF, Problem, Record
from holdfast.store import reading
from holdfast.vault import Line

_NEAR = 64
"""The lines of a pair are written in one piece; a merge may put this many others between them."""


def newest_first(
    place: Place, lines: Iterable[Line], marks: dict[str, bool], blob: reading.Blob, problems: list[Problem]
) -> Iterator[Record]:
    """Yield the records of lines that come last line first; `problems` is told what was left out because of damage."""
    found = _records(place, lines, marks, blob, problems)
    if place.kind.pair:
        found = _whole(found, place.kind.pair, problems)
    return (record for record in found if not record.hidden)


def _records(
    place: Place, lines: Iterable[Line], marks: dict[str, bool], blob: reading.Blob, problems: list[Problem]
) -> Iterator[Record]:
    seen: set[str] = set()
    for line in lines:
        objects = reading.objects(place, line)
        if isinstance(objects, str):
            problems.append(Problem(place.path, f"skipped at byte {line.offset:,}: {objects}"))
            continue
        for value in reversed(objects):
            if isinstance(value.get("hide"), str):
                marks.setdefault(value["hide"], value.get("hidden") is not False)
                continue
            record, _ = reading.line_record(place, value, 0, blob)
            if record.id not in seen:
                seen.add(record.id)
                yield msgspec.structs.replace(record, hidden=True) if marks.get(record.id) else record


def _whole(records: Iterable[Record], field: str, problems: list[Problem]) -> Iterator[Record]:
    """Leave out what names a pair and whose other half is not near."""
    source = iter(records)
    ahead: deque[Record] = deque()
    whole: set[str] = set()
    while record := ahead.popleft() if ahead else next(source, None):
        pair = record.fields.get(field)
        if not isinstance(pair, str) or not pair or pair in whole:
            yield record
            continue
        found = any(other.fields.get(field) == pair for other in ahead)
        while not found and len(ahead) < _NEAR and (other := next(source, None)):
            ahead.append(other)
            found = other.fields.get(field) == pair
        if found:
            whole.add(pair)
            yield record
        else:
            problems.append(Problem(record.path, HALF))
