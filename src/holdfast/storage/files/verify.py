"""Verify that files and index agree, and list what is damaged.

Everything is read again from the files into a second index, and the two are compared record by record. Save points are
compared with the hash in their ledger, earlier versions with the hash that is their name. Nothing is repaired here:
the index can be rebuilt, and files belong to their owner.
"""

from __future__ import annotations

from holdfast.model.names import amount
from holdfast.model.records import Problem
from holdfast.storage.files.index import SqliteIndex
from holdfast.storage.files.refresh import Refresher
from holdfast.storage.results import Progress, Refreshed, Report
from holdfast.storage.tree import YOUNG_NS
from holdfast.storage.write_log import check_kept, check_save_points


def verify(
    refresher: Refresher, index: SqliteIndex, scratch: SqliteIndex, begun: int, progress: Progress | None
) -> Report:
    """Compare the index with what a fresh reading gives of the same files, as far as the index had read them.

    Others may go on writing: what they add meanwhile is read neither here nor there.
    """
    seen, held = index.snapshot()
    done = Refreshed()
    outside = tuple(path for path in seen if not refresher.layout.watched(path))  # read on request, as far as it was
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
    ledgers = [record for path, known in read.items() if known.kind == "ledger" for record in scratch.records(path)]
    report.damage += [*scratch.problems(), *refresher.torn(index)]
    report.damage += check_save_points(refresher.tree, refresher.layout.memory, ledgers)
    report.damage += check_kept(refresher.tree, refresher.layout.memory)
    report.damage = [problem for problem in dict.fromkeys(report.damage) if not problem.minor]
    return report
