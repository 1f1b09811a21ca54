"""The index port, private to the storage package: it makes reading fast and is never the truth.

An index has what was read from the tree, and a `Seen` per file that says how far it was read. It can be deleted at any
time: every answer equals that of a fresh one.
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
    """The index must be rebuilt; never leaves the storage package."""


class Unusable(Exception):
    """The index cannot be written (disk full or read-only); never leaves the storage package."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a file when it was last read."""

    kind: str
    stamp: Stamp
    looked: int
    """When, in nanoseconds; a stamp as young as the check proves nothing."""
    version: str = ""
    """Of a document."""
    offset: int = 0
    """Of a log: everything before it is indexed."""
    lines: int = 0
    """Newlines before the offset."""
    open: bool = False
    """Is the last line without a newline?"""
    checksum: int = 0
    """Of all bytes before the offset."""
    tail: int = 0
    """Checksum of the last bytes before the offset."""
    missing: tuple[str, ...] = ()
    """Missing files that lines of this log refer to."""


class Facts(msgspec.Struct, frozen=True):
    """The records read from a file, or from the new part of a log."""

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
    """Leaves out records that were certainly written after this time."""
    only: str = ""
    """The id of the one record that may pass."""
    hidden: bool = False
    searchable: tuple[str, ...] = ()
    """The kinds to search when none are named."""


class Applied(msgspec.Struct, frozen=True):
    """An entry written under an op_id: a record, or a mark (then `id` is its target)."""

    path: str
    id: str
    fields: Mapping[str, Any] = {}
    marks: bool = False


class Known(msgspec.Struct, frozen=True):
    """What the index knows before an entry is appended."""

    applied: list[Applied] = []
    """What was done under the op_id."""
    offset: int = 0
    """How far the log was read."""
    order: str = ""
    """The greatest order of all entries about the target."""


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """The facts that ranking needs about a record that may answer a question."""

    id: str
    session: tuple[str, str]
    """Its session, or the record itself when it has none."""
    time: str = ""
    place: tuple[str, str, str] = ("", "", "")
    """Its file, its order there, its id: the tie breaker."""
    author: str = ""
    """Who said it, lower case, words apart."""
    agent: bool = False
    """Did an assistant say it?"""
    counts: bytes = b""
    """How often each word occurs in it; empty when none does."""
    length: int = 1
    """In words."""
    priority: int = USUAL_PRIORITY
    mark: int = 0
    """A hash of its content."""
    inside: bool = True
    """Does it pass the filters? One that does not still counts as a neighbour."""


class Pool(msgspec.Struct, frozen=True):
    """The candidates for a question, and the statistics that ranking needs."""

    foreign: bool = False
    """Are these records of other programs, whose words are counted separately?"""
    words: tuple[str, ...] = ()
    held: tuple[int, ...] = ()
    """In how many records each word occurs."""
    records: int = 1
    length: float = 1.0
    """The average number of words per record."""
    candidates: Mapping[int, Candidate] = {}
    after: Mapping[int, int] = {}
    """Which candidate follows which in the same session."""


class Tied(msgspec.Struct, frozen=True):
    """A record related to another, how closely, and why."""

    record: Record
    score: float
    how: tuple[str, ...]


class Index(Protocol):
    """`related`, `by_key`, `beside` and `count` answer the questions of the same names to a `Store`."""

    def seen(self, below: tuple[str, ...] = ()) -> dict[str, Seen]:
        """Return the state of every indexed file, or of those at or below these places, when it was read."""

    def look(self, path: str) -> Seen | None: ...

    def writing(self) -> AbstractContextManager[None]:
        """Open a write transaction; Busy when another process has one."""

    def reading(self) -> AbstractContextManager[None]:
        """Open a read transaction for several questions; Stale when there is no index."""

    def impatient(self) -> AbstractContextManager[None]:
        """Raise Busy at once inside, instead of waiting for the index."""

    def note(self, name: str, value: str) -> None:
        """Store a note about the whole index; "" removes it."""

    def noted(self, name: str) -> str:
        """Return a note, "" when there is none."""

    def snapshot(self) -> tuple[dict[str, Seen], dict[str, int]]:
        """Return `seen` and `proof` from one transaction."""

    def hidden_in(self, path: str) -> dict[str, bool]:
        """Return for each id or key with marks in a log whether the newest mark hides it."""

    def replace(self, path: str, seen: Seen, facts: Facts) -> None:
        """Index a file again from its start."""

    def extend(self, path: str, seen: Seen, facts: Facts) -> None:
        """Index what was appended to a log."""

    def touch(self, path: str, seen: Seen) -> None:
        """Record that a file was checked and is unchanged."""

    def remove(self, path: str) -> None: ...

    def newest(self, where: Filter, limit: int) -> list[Record]:
        """Return the newest records that pass a filter; all of them with a negative limit."""

    def best(self, terms: Terms, where: Filter, limit: int) -> list[tuple[Record, float]]:
        """Return the records that match these words best, by words alone, with their scores."""

    def pools(self, terms: Terms, where: Filter, most: int) -> list[Pool]:
        """Return the records that match these words best, with their neighbours; words are weighed per pool.

        A pool without candidates still has the word statistics.
        """

    def widened(self, pool: Pool, where: Filter, rows: Sequence[int]) -> Pool:
        """Return a pool with these rows and their neighbours added, as far as they belong to it."""

    def passing(self, scored: Sequence[tuple[int, float]], where: Filter) -> list[int]:
        """Return those of some scored rows that pass a filter, best first."""

    def rows(self, kinds: Sequence[str], after: int = 0) -> list[int]:
        """Return the rows of all current records of these kinds, hidden ones too, greater than `after`.

        Within one generation a row always means the same record with the same content, and later ones are greater.
        """

    def inside(self, where: Filter) -> list[int]:
        """Return the rows of all records that pass a filter."""

    def load(self, rows: list[int]) -> dict[int, Record]:
        """Return the records of these rows that still exist."""

    def related(self, identifiers: Sequence[str], where: Filter, limit: int) -> dict[str, list[Tied]]: ...
    def by_id(self, identifier: str) -> list[Record]: ...
    def by_key(self, path: str, key: str, *, history: bool = False) -> list[Record]: ...
    def beside(self, path: str, order: str, limit: int, *, after: bool) -> list[Record]: ...
    def count(self, path: str, after: str) -> int: ...
    def problem_count(self) -> int: ...

    def last_order(self, path: str, target: str) -> str:
        """Return the greatest order of the entries of a log about a key or id, "" when there are none."""

    def by_op(self, op_id: str) -> list[Applied]:
        """Return what was done under an op_id."""

    def halves(self, path: str) -> set[str]:
        """Return the ids of the records of a log whose pair is incomplete."""

    def records(self, path: str) -> list[Record]:
        """Return everything indexed from one file, in file order."""

    def problems(self, below: tuple[str, ...] = ()) -> list[Problem]:
        """Return what could not be read, in all files or at or below these places."""

    def counts(self) -> dict[str, int]:
        """Count the records of each kind."""

    def proof(self) -> dict[str, int]:
        """Return a checksum per file over everything indexed from it, words included; valid in this process only.

        Two indexes with the same checksums give the same answers. A damaged index raises Stale.
        """

    def generation(self) -> str:
        """Return the id of this index; a rebuilt one has another."""

    def rebuilding(self) -> AbstractContextManager[Index]:
        """Provide a fresh index to fill; it replaces this one when the block ends without an error."""

    def close(self) -> None: ...
