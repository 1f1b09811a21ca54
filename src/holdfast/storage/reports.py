"""What refresh and verify report on every engine, and the check of save points against their ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from holdfast.errors import HoldfastError, NotFound
from holdfast.model.records import Problem, Record
from holdfast.model.times import iso, now_ms
from holdfast.storage import write_log
from holdfast.storage.tree import Tree

Progress = Callable[[int, int], None]
"""Receives how many of how many steps are done."""
MANY, SHARE = 50, 0.1
_ON_THE_WAY_MS = 10_000
"""How long an announced save point may take to be written."""


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
    """Where the index differs from the files."""
    damage: list[Problem] = []
    """What cannot be read in the files, or was changed and must not be."""

    @property
    def sound(self) -> bool:
        return not self.differences and not self.damage

    @property
    def next_step(self) -> str:
        """The next step, "" when all is sound."""
        index = "Rebuild the index: holdfast refresh --rebuild."
        files = (
            "Everything else is still used. Fix the files named here, or restore them from git or a backup; then run"
            " holdfast verify again."
        )
        return " ".join(([index] if self.differences else []) + ([files] if self.damage else []))


def is_much(count: int, total: int) -> bool:
    """Return whether this is too much to remove without asking: over 50 records, or over a tenth of all."""
    return count > MANY or (count > 1 and count > SHARE * total)


def once(problems: list[Problem]) -> list[Problem]:
    """Return each problem once."""
    return list({(problem.path, problem.line, problem.what): problem for problem in problems}.values())


def check_save_points(tree: Tree, memory: str, ledgers: Iterable[Record]) -> list[Problem]:
    """Report save points that were edited, and announced ones that were never written.

    `ledgers` are the entries of all ledgers, `memory` is the folder of the logs.
    """
    versions: dict[str, set[str]] = {}
    announced: dict[str, str] = {}
    pending: dict[str, int] = {}  # how often each was announced and not refused
    for entry in ledgers:
        if isinstance(entry.fields.get("state"), str):
            state = f"{entry.path.rpartition('/')[0]}/{entry.fields['state']}"
            versions.setdefault(state, set()).add(str(entry.fields.get("version")))
            pending[state] = pending.get(state, 0) + (-1 if entry.fields.get("refused") else 1)
            announced[state] = entry.time

    def being_written(path: str) -> bool:
        """Is its writer between the ledger and the file?"""
        if not iso(now_ms() - _ON_THE_WAY_MS) <= announced[path] <= iso(now_ms() + _ON_THE_WAY_MS):
            return False
        logged = any("intent" not in line for line in write_log.about(tree, memory, path))
        return not logged or tree.stat(path) is not None

    result = []
    for state, known in versions.items():
        try:
            if tree.read(state).version not in known:
                result.append(Problem(state, "was changed after it was written; save points never are"))
        except HoldfastError as error:
            if not (isinstance(error, NotFound) and (pending[state] < 1 or being_written(state))):
                result.append(Problem(state, f"is in the ledger and cannot be read: {error.message}"))
    return result
