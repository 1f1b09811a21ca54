"""What the log of a compartment says: its entries, the marks that hide them, how often each was read.

A fold is told one line after the other and gives the same answer in whatever order they come, since a merge may put a
mark before the line that it hides. It knows no files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.formats import jsonl
from holdfast.model.records import USUAL_PRIORITY, priority_of


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was saved."""

    id: str
    content: str
    category: str = ""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = {}
    created_at: str
    updated_at: str
    access_count: int = 0
    priority: int = USUAL_PRIORITY

    @property
    def size(self) -> int:
        return size_of(self.content, self.category, self.tags, self.metadata)


class Filter(msgspec.Struct, frozen=True):
    """Which entries are meant: all that is given must hold, and any of the tags is enough."""

    id: str = ""
    category: str = ""
    tags: tuple[str, ...] = ()

    def fits(self, entry: Entry) -> bool:
        return (
            self.id in ("", entry.id)
            and self.category in ("", entry.category)
            and (not self.tags or not set(self.tags).isdisjoint(entry.tags))
        )


class Fold:
    """The state that the lines of one log add up to. `usual` is the compartment of a line that names none."""

    def __init__(self, usual: str) -> None:
        self._usual = usual
        self._entries: dict[str, tuple[str, Entry]] = {}
        self._marks: dict[str, tuple[str, bool]] = {}
        self._reads: Counter[str] = Counter()
        self.saved: dict[str, str] = {}
        """Which entry was saved under an op_id in a compartment."""
        self.cleared: Counter[str] = Counter()
        """How many entries were cleared under an op_id."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Take in one line; what is none of ours says nothing."""
        op = line.get("op")
        op = op if isinstance(op, str) else ""
        if isinstance(line.get("access"), list):
            self._reads.update(read for read in line["access"] if isinstance(read, str))
        elif isinstance(line.get("hide"), str):
            made = (jsonl.identity(line, "time")[1], line.get("hidden") is not False)
            self._marks[line["hide"]] = max(made, self._marks.get(line["hide"], ("", False)))
            self.cleared[op] += 1
        elif isinstance(line.get("cleared"), int):
            self.cleared[op] += line["cleared"]
        elif isinstance(line.get("forgotten"), str):
            compartment = line.get("compartment")
            self.saved[f"{op}\n{compartment if isinstance(compartment, str) else self._usual}"] = str(line.get("id"))
        elif isinstance(line.get("content"), str):
            compartment = line.get("compartment")
            entry = _entry(line)
            self._entries[entry.id] = (compartment if isinstance(compartment, str) else self._usual, entry)
            self.saved[f"{op}\n{self._entries[entry.id][0]}"] = entry.id

    def entries(self, compartment: str = "", wanted: Filter | None = None) -> list[Entry]:
        """Return what is not hidden in a compartment, or in all of them: highest priority first, then oldest first."""
        found = [
            msgspec.structs.replace(entry, access_count=self._reads[entry.id])
            for place, entry in self._entries.values()
            if compartment in ("", place)
            and not self._marks.get(entry.id, ("", False))[1]
            and (wanted is None or wanted.fits(entry))
        ]
        return sorted(found, key=lambda entry: (-entry.priority, entry.created_at, entry.id))

    def size(self, compartment: str) -> int:
        return sum(entry.size for entry in self.entries(compartment))


def size_of(content: str, category: str, tags: Iterable[str], metadata: Mapping[str, str]) -> int:
    """Count the characters that an entry takes of its compartment."""
    return len(content) + len(category) + sum(map(len, tags)) + sum(map(len, (*metadata, *metadata.values())))


def _entry(line: Mapping[str, Any]) -> Entry:
    """Read an entry, whoever wrote the line; what is not as it should be in it is left out."""
    identifier, _, time = jsonl.identity(line, "time")
    category, tags, metadata, priority = (line.get(name) for name in ("category", "tags", "metadata", "priority"))
    metadata = metadata if isinstance(metadata, dict) else {}
    return Entry(
        id=identifier,
        content=line["content"],
        category=category if isinstance(category, str) else "",
        tags=tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else (),
        metadata={name: value for name, value in metadata.items() if isinstance(value, str)},
        created_at=time,
        updated_at=time,
        priority=priority_of(priority),
    )
