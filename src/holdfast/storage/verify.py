"""Verify that files and index agree, and list what is damaged.

Everything is read again from the files into a second index, and the two are compared record by record. Save points are
compared with the hash in their ledger. Nothing is repaired here: the index can be rebuilt, and files belong to their
owner.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import HoldfastError, NotFound
from holdfast.model.layout import Layout
from holdfast.model.names import amount
from holdfast.model.records import Problem
from holdfast.model.times import iso, now_ms
from holdfast.storage import write_log
from holdfast.storage.index import Index
from holdfast.storage.refresh import YOUNG_NS, Progress, Refreshed, Refresher
from holdfast.storage.tree import Tree

_ON_THE_WAY_MS = 10_000
"""How long an announced save point may take to be written."""


class Report(msgspec.Struct, omit_defaults=True):
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


def verify(refresher: Refresher, index: Index, scratch: Index, begun: int, progress: Progress | None) -> Report:
    """Compare the index with what a fresh reading gives of the same files, as far as the index had read them.

    Others may go on writing: what they add meanwhile is read neither here nor there.
    """
    seen, held = index.snapshot()
    done = Refreshed()
    outside = tuple(
        path for path in seen if not refresher.layout.watched(path)
    )  # what is read on request, as far as it was
    stamps = refresher.walk(done) | (refresher.walk(done, outside) if outside else {})
    for number, path in enumerate(stamps, 1):
        refresher.one(scratch, path, done, seen[path].offset if path in seen else None)
        if progress:
            progress(number, len(stamps))
    report = Report(files=len(stamps), damage=list(done.problems))
    read, wanted = scratch.seen(), scratch.proof()

    def changed_since(path: str) -> bool:
        """Was this file changed while it was compared?"""
        stamp, before, after = stamps.get(path), seen.get(path), read.get(path)
        if stamp and max(stamp.mtime, stamp.ctime) > begun - YOUNG_NS and (before is None or before.stamp != stamp):
            return True
        if before is None or after is None:
            return False
        return before.version != after.version and after.stamp.ctime > begun - YOUNG_NS

    for path in sorted(wanted.keys() | held.keys()):
        if wanted.get(path) == held.get(path) or changed_since(path):
            continue
        fresh, here = ({record.id for record in one.records(path)} for one in (scratch, index))
        lacks, has = amount(len(fresh - here), "record is", "records are"), amount(len(here - fresh), "is", "are")
        what = f"{lacks} missing in the index, {has} too many; of {len(here & fresh)} in both, some may differ"
        report.differences.append(Problem(path, what))
    report.records = sum(scratch.counts().values())
    report.damage += [*scratch.problems(), *refresher.torn(index), *_ledgers(refresher.tree, refresher.layout, scratch)]
    report.damage = [problem for problem in dict.fromkeys(report.damage) if not problem.minor]
    return report


def _ledgers(tree: Tree, layout: Layout, scratch: Index) -> list[Problem]:
    """Report save points that were edited, and announced ones that were never written."""
    result = []

    def being_written(path: str, announced: str) -> bool:
        """Is its writer between the ledger and the file?"""
        if not iso(now_ms() - _ON_THE_WAY_MS) <= announced <= iso(now_ms() + _ON_THE_WAY_MS):
            return False
        logged = any("intent" not in line for line in write_log.about(tree, layout.memory, path))
        return not logged or tree.stat(path) is not None

    for path in scratch.seen():
        place = layout.classify(path)
        if place is None or place.kind.name != "ledger":
            continue
        folder = path.rpartition("/")[0]
        written: dict[str, set[str]] = {}
        announced: dict[str, str] = {}
        for line in scratch.records(path):
            if isinstance(line.fields.get("state"), str):
                state = f"{folder}/{line.fields['state']}"
                written.setdefault(state, set()).add(str(line.fields.get("version")))
                announced[state] = line.time
        for state, versions in written.items():
            try:
                if tree.read(state).version not in versions:
                    result.append(Problem(state, "was changed after it was written; save points never are"))
            except HoldfastError as error:
                if not (isinstance(error, NotFound) and being_written(state, announced[state])):
                    result.append(Problem(state, f"is in the ledger and cannot be read: {error.message}"))
    return result
