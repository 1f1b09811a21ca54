"""What a search is asked and what it finds: a filter, the candidates for ranking, and related records."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.model.records import USUAL_PRIORITY, Record


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
