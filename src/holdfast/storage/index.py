"""The index port: what makes reading fast, and nothing more.

An index never decides what is true. It holds what was read from the vault, with a `Seen` per file that says how
far it has read, and it can be thrown away at any time: every answer must equal that of a fresh one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from holdfast.model.queries import Terms
from holdfast.model.records import USUAL_PRIORITY, Mark, Problem, Record
from holdfast.storage.tree import Stamp


class Stale(Exception):
    """The index at hand is not what it should be and must be rebuilt; never leaves the store."""


class Unusable(Exception):
    """There is no writing to this index: full or read-only; never leaves the store."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """How a file stood when it was read last."""

    kind: str
    stamp: Stamp
    looked: int
    """When, in nanoseconds; a stamp as young as the look proves nothing."""
    version: str = ""
    """Of a document."""
    offset: int = 0
    """Of a log: everything before it is indexed."""
    lines: int = 0
    """Newlines before the offset."""
    open: bool = False
    """Was the last line not ended by a newline yet?"""
    checksum: int = 0
    """Of all bytes before the offset."""
    tail: int = 0
    """Checksum of the last bytes before the offset."""
    missing: tuple[str, ...] = ()
    """Files that lines of this log refer to and that were not there."""


class Facts(msgspec.Struct, frozen=True):
    """What was read from a file, or from the new part of a log."""

    records: Sequence[Record] = ()
    marks: Sequence[Mark] = ()
    problems: Sequence[Problem] = ()


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """A query's filters with every name resolved; several kinds or tags mean any of them."""

    kinds: tuple[str, ...] = ()
    scope: str = ""
    above: bool = False
    shared: bool = False
    sessions: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    known: str = ""
    """Without what was certainly written later than this."""
    only: str = ""
    """The id of the one record that may pass."""
    hidden: bool = False
    searchable: tuple[str, ...] = ()
    """The kinds to look through when none are named."""


class Applied(msgspec.Struct, frozen=True):
    """A line that was written under an op_id: a record, or a mark (then `id` is what it speaks of)."""

    path: str
    id: str
    fields: Mapping[str, Any] = {}
    marks: bool = False


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """What ranking has to know of a record that may answer a question."""

    id: str
    session: tuple[str, str]
    """What it belongs to: its session, or the record itself where it stands alone."""
    time: str = ""
    place: tuple[str, str, str] = ("", "", "")
    """Its file, its order there, its id: what decides between equals."""
    author: str = ""
    """Who said it, lower case, words apart."""
    agent: bool = False
    """Did an assistant say it?"""
    counts: bytes = b""
    """How often each word stands in it; empty when none does."""
    length: int = 1
    """In words."""
    priority: int = USUAL_PRIORITY
    mark: int = 0
    """What tells it from a record of other content."""
    inside: bool = True
    """Does it pass the filters? One that does not still tells something about its neighbours."""


class Pool(msgspec.Struct, frozen=True):
    """What may answer a question, and what ranking has to know of all records."""

    foreign: bool = False
    """Are these records of other programs, whose words count apart?"""
    words: tuple[str, ...] = ()
    held: tuple[int, ...] = ()
    """In how many records each word stands."""
    records: int = 1
    length: float = 1.0
    """Words of a record, on average."""
    candidates: Mapping[int, Candidate] = {}
    after: Mapping[int, int] = {}
    """Which candidate follows which, in the same session."""


class Tied(msgspec.Struct, frozen=True):
    """A record that has to do with another, how closely, and why."""

    record: Record
    score: float
    how: tuple[str, ...]


class Index(Protocol):
    def seen(self, below: tuple[str, ...] = ()) -> dict[str, Seen]:
        """Return how every indexed file, or every one at or below these places, stood when it was read."""
        ...

    def look(self, path: str) -> Seen | None: ...

    def writing(self) -> AbstractContextManager[None]:
        """Hold the index for writing; what happens inside is kept whole or not at all. Busy when somebody else does."""
        ...

    def reading(self) -> AbstractContextManager[None]:
        """Inside, many questions cost little more than one. Stale when there is no index."""
        ...

    def impatient(self) -> AbstractContextManager[None]:
        """Inside, nobody waits for the index: it is busy at once."""
        ...

    def note(self, name: str, value: str) -> None:
        """Remember something about the whole; "" forgets it."""
        ...

    def noted(self, name: str) -> str:
        """Return what was noted, "" when nothing was."""
        ...

    def snapshot(self) -> tuple[dict[str, Seen], dict[str, int]]:
        """Return `seen` and `proof` of one moment."""
        ...

    def hidden_in(self, path: str) -> dict[str, bool]:
        """Return what the newest mark says of each id or key that the marks of a log speak of."""
        ...

    def replace(self, path: str, seen: Seen, facts: Facts) -> None:
        """Index a file anew."""
        ...

    def extend(self, path: str, seen: Seen, facts: Facts) -> None:
        """Index what was appended to a log."""
        ...

    def touch(self, path: str, seen: Seen) -> None:
        """Note that a file was looked at and is unchanged."""
        ...

    def remove(self, path: str) -> None: ...

    def newest(self, where: Filter, limit: int) -> list[Record]:
        """Return the newest records that pass a filter; all of them with a negative limit."""
        ...

    def best(self, terms: Terms, where: Filter, limit: int) -> list[tuple[Record, float]]:
        """Return the records that fit these words best, by the words alone, and how well they do."""
        ...

    def pools(self, terms: Terms, where: Filter, most: int) -> list[Pool]:
        """Return the records that fit these words best, with what stands beside them; words are weighed per pool.

        A pool without candidates still tells how much each word tells.
        """
        ...

    def widened(self, pool: Pool, where: Filter, rows: Sequence[int]) -> Pool:
        """Return a pool with these rows added, as far as their words count in it, and what stands beside them."""
        ...

    def passing(self, scored: Sequence[tuple[int, float]], where: Filter) -> list[int]:
        """Return those of some scored rows that pass a filter, the best first."""
        ...

    def rows(self, kinds: Sequence[str], after: int = 0) -> list[int]:
        """Return the rows of all records of these kinds that hold, hidden ones too, greater than `after`.

        Within one generation a row stands for the same record of the same content, and later ones are greater.
        """
        ...

    def inside(self, where: Filter) -> list[int]:
        """Return the rows of all records that pass a filter."""
        ...

    def load(self, rows: list[int]) -> dict[int, Record]:
        """Return the records of these rows, as far as they are still there."""
        ...

    def related(self, identifiers: Sequence[str], where: Filter, limit: int) -> dict[str, list[Tied]]:
        """Return for each of these the records that are tied to it, or to this name when no record has it as its id."""
        ...

    def by_id(self, identifier: str) -> list[Record]: ...

    def by_key(self, path: str, key: str, *, history: bool = False) -> list[Record]:
        """Return the line that holds for this key, or all of its lines, oldest first."""
        ...

    def last_order(self, path: str, target: str) -> str:
        """Return the greatest order of the lines of a log that speak of a key or id, "" when none does."""
        ...

    def by_op(self, op_id: str) -> list[Applied]:
        """Return what was done under an op_id."""
        ...

    def halves(self, path: str) -> set[str]:
        """Return the ids of the records of a log that are half of a pair."""
        ...

    def beside(self, path: str, order: str, limit: int, *, after: bool) -> list[Record]:
        """Return the records of a log that come before or after a place in its order, the nearest first."""
        ...

    def records(self, path: str) -> list[Record]:
        """Return everything indexed from one file, in the order of the file."""
        ...

    def problems(self, below: tuple[str, ...] = ()) -> list[Problem]:
        """Return what could not be read in all files, or in those at or below these places."""
        ...

    def problem_count(self) -> int: ...

    def count(self, path: str, after: str) -> int:
        """Return how many records of a log hold, with an order greater than `after`."""
        ...

    def counts(self) -> dict[str, int]:
        """Return how many records of each kind are held."""
        ...

    def proof(self) -> dict[str, int]:
        """Return a number per file for all that is held of it, words included; it holds within one process only.

        Two indexes that give the same numbers give the same answers. One that is not sound in itself raises Stale.
        """
        ...

    def generation(self) -> str:
        """Say which index this is; a rebuilt one says something else."""
        ...

    def rebuilding(self) -> AbstractContextManager[Index]:
        """Give a fresh index to fill; it takes this one's place when the block ends without an error."""
        ...

    def close(self) -> None: ...
