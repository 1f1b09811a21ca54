"""Arguments and results of a store: filters, candidates for ranking, related records, reports of care."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from holdfast.model.records import USUAL_PRIORITY, Problem, Record

Progress = Callable[[int, int], None]
"""Receives how many of how many steps are done."""
MANY, SHARE = 50, 0.1


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """A query's filters with every name resolved; several kinds or tags mean any of them."""

    kinds: tuple[str, ...] = ()
    scope: str = ""
    above: bool = False
    unscoped: bool = False
    """With a scope: include records that belong to none."""
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
    """Its session, or its own id without one."""
    time: str = ""
    place: tuple[str, str, str] = ("", "", "")
    """Its file, its order there, its id: the tie breaker."""
    author: str = ""
    """Names of the speaker in lower case, word by word."""
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

    on_request: bool = False
    """Are these records of kinds that are searched only on request? Their words are counted separately."""
    words: tuple[str, ...] = ()
    held: tuple[int, ...] = ()
    """In how many records each word occurs."""
    records: int = 1
    length: float = 1.0
    """The average number of words per record."""
    candidates: Mapping[int, Candidate] = {}
    after: Mapping[int, int] = {}
    """The next candidate of each one in the same session."""


class Tied(msgspec.Struct, frozen=True):
    """A record related to another, how closely, and why."""

    record: Record
    score: float
    how: tuple[str, ...]


class Refreshed(msgspec.Struct, omit_defaults=True):
    """The result of a refresh."""

    files: int = 0
    changed: int = 0
    removed: int = 0
    records: int = 0
    behind: int = 0
    """Files that changed and could not be indexed yet."""
    as_of: str = ""
    """When the files were checked, if that was before the question."""
    problems: list[Problem] = []


class Report(msgspec.Struct, omit_defaults=True):
    """The result of verify."""

    files: int = 0
    records: int = 0
    differences: list[Problem] = []
    """Differences between the index and the files."""
    damage: list[Problem] = []
    """Unreadable or wrongly changed text in the files."""

    @property
    def sound(self) -> bool:
        return not self.differences and not self.damage

    @property
    def next_step(self) -> str:
        """The next step, "" if there is no damage."""
        index = "Rebuild the index: holdfast refresh --rebuild."
        files = (
            "Everything else is still used. Fix the files named here, or restore them from git or a backup; then run"
            " holdfast verify again."
        )
        return " ".join(([index] if self.differences else []) + ([files] if self.damage else []))


def is_much(count: int, total: int) -> bool:
    """Return whether this is too much to remove without a confirmation: over 50 records, or over a tenth of all."""
    return count > MANY or (count > 1 and count > SHARE * total)


def once(problems: list[Problem]) -> list[Problem]:
    """Return each problem once."""
    return list({(problem.path, problem.line, problem.what): problem for problem in problems}.values())
