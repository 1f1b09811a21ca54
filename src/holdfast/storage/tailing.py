"""Reading a log from its end: the newest records first, without those that are hidden or half of a pair."""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Iterable, Iterator

import msgspec

from holdfast.formats import jsonl
from holdfast.model.layout import Place
from holdfast.model.records import HALF, Problem, Record
from holdfast.storage import parsing
from holdfast.storage.tree import Line, Vault

_NEAR = 64
"""The lines of a pair are written in one piece; only after a merge can one be farther away than this."""


class Reader:
    """Reads one log. `marks` and `halves` are what the index knows of it; without halves they are looked for.

    `problems` is told what was left out because of damage.
    """

    def __init__(
        self, vault: Vault, place: Place, marks: dict[str, bool], halves: set[str] | None, blob: parsing.Blob,
        problems: list[Problem],
    ) -> None:  # fmt: skip
        self._vault = vault
        self._place = place
        self._marks = marks
        self._halves = halves
        self._blob = blob
        self._problems = problems

    def newest_first(self) -> Iterator[Record]:
        """Yield the records of the log from its end."""
        found = self._records(self._vault.scan_back(self._place.path))
        if self._place.kind.pair:
            found = self._near(found) if self._halves is None else self._known(found, self._halves)
        return (record for record in found if not record.hidden)

    def _records(self, lines: Iterable[Line]) -> Iterator[Record]:
        seen: set[str] = set()
        for line in lines:
            objects = parsing.objects(self._place, line)
            if isinstance(objects, str):
                self._problems.append(Problem(self._place.path, f"skipped at byte {line.offset:,}: {objects}"))
                continue
            for value in reversed(objects):
                if isinstance(value.get("hide"), str):
                    self._marks.setdefault(value["hide"], value.get("hidden") is not False)
                    continue
                if what := parsing.fault(self._place.kind, value):
                    self._problems.append(Problem(self._place.path, f"skipped at byte {line.offset:,}: {what}"))
                    continue
                record, _ = parsing.line_record(self._place, value, 0, self._blob)
                if record.id not in seen:
                    seen.add(record.id)
                    hidden = self._marks.get(record.id)
                    yield msgspec.structs.replace(record, hidden=True) if hidden else record

    def _known(self, records: Iterable[Record], halves: set[str]) -> Iterator[Record]:
        for record in records:
            if record.id in halves:
                self._half(record)
            else:
                yield record

    def _near(self, records: Iterable[Record]) -> Iterator[Record]:
        """Leave out what names a pair and whose other half is not there: near by, or else anywhere."""
        field = self._place.kind.pair
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
            if found or self._pairs[pair] > 1:
                whole.add(pair)
                yield record
            else:
                self._half(record)

    @functools.cached_property
    def _pairs(self) -> Counter[str]:
        """Count the lines of each pair in the whole log."""
        field = self._place.kind.pair
        counts: Counter[str] = Counter()
        seen: set[str] = set()
        for line in self._vault.scan(self._place.path):
            objects = parsing.objects(self._place, line) if field.encode() in line.data else []
            for value in objects if isinstance(objects, list) else ():
                identifier = jsonl.identity(value, self._place.kind.time)[0]
                if isinstance(value.get(field), str) and identifier not in seen:
                    seen.add(identifier)
                    counts[value[field]] += 1
        return counts

    def _half(self, record: Record) -> None:
        self._problems.append(Problem(record.path, f"{record.id} is {HALF}"))
