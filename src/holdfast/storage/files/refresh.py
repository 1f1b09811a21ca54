"""Refresh: check the stamp of every file, and index the changed ones.

A document is read again when its stamp changed. A log is read from where the index stopped, if the bytes before that
are unchanged (a merge may insert lines); otherwise from its start. A file modified within two seconds of the check is
compared by content the next time, because its stamp may not show a second change.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
import zlib
from collections.abc import Iterator
from typing import TypeVar

import apsw
import msgspec

from holdfast.errors import Busy, HoldfastError, Invalid, NotFound, OverBudget, Unavailable
from holdfast.formats import jsonl
from holdfast.formats.encryption import Locked
from holdfast.model.kinds import KINDS, Layout, Place
from holdfast.model.names import amount
from holdfast.model.records import Problem
from holdfast.model.settings import Limits
from holdfast.model.times import utc_now
from holdfast.storage import parsing
from holdfast.storage.files import rows
from holdfast.storage.files.index import SqliteIndex
from holdfast.storage.files.rows import Seen
from holdfast.storage.files.within import FileTree
from holdfast.storage.parsing import Facts
from holdfast.storage.results import MANY, Progress, Refreshed, Report, is_much
from holdfast.storage.tree import YOUNG_NS, Line, RootGone, Stamp, read_value
from holdfast.storage.write_log import check_kept, check_save_points

SUFFIXES = (".md", ".jsonl")
WHOLE = 8 << 20
"""Up to this size the read part of a grown log is compared in full; beyond that, only its last WINDOW bytes."""
WINDOW = 64 << 10
_BATCH_LINES = 5_000
_BATCH_BYTES = 16 << 20
_BATCH_FILES = 500
_MOST_MISSING = 100
_VANISHED, _LOST = "vanished", "lost"
_MOST_NAMED = 1_000
N = TypeVar("N")


class Refresher:
    """Indexes the changes of a tree."""

    def __init__(self, tree: FileTree, places: Layout, limits: Limits) -> None:
        self.tree = tree
        self.layout = places
        self._limits = limits
        self._classified: dict[str, Place | None] = {}
        self.linked: set[str] = set()
        """Symbolic links that were followed since the last full walk."""

    def walk(self, done: Refreshed, below: tuple[str, ...] = ()) -> dict[str, Stamp]:
        """Return the stamp of every file that may contain records."""
        found: dict[str, Stamp] = {}

        def blocked(path: str, why: str) -> None:
            done.problems.append(Problem(path, why))

        if not below:
            self.linked.clear()
        for folder in below or self.layout.roots:
            found.update(self.tree.walk(folder, SUFFIXES, blocked, self.linked.add))
        return {path: stamp for path, stamp in found.items() if self._place(path)}

    def changed(self, index: SqliteIndex, done: Refreshed, below: tuple[str, ...] = ()) -> list[str]:
        """Return the paths that must be indexed again, removed ones included."""
        stamps = self.walk(done, below)
        done.files = len(stamps)
        places = below or self.layout.roots
        seen = index.seen(places)
        result = [
            path
            for path, stamp in stamps.items()
            if not _settled(known := seen.get(path), stamp) or (known and self._arrived(known))
        ]
        unreadable = tuple(f"{problem.path}/" for problem in done.problems)  # the files below it may still exist
        gone = seen.keys() - stamps.keys()
        return result + [path for path in gone if not f"{path}/".startswith(unreadable)]

    def torn(self, index: SqliteIndex) -> list[Problem]:
        """Name the logs whose last line is incomplete."""
        what = "the last line is incomplete: torn, or still being written"
        return [
            Problem(path, what, seen.lines + 1)
            for path, seen in index.seen().items()
            if seen.kind and KINDS[seen.kind].shape == "line" and seen.offset < seen.stamp.size
        ]

    def apply(self, index: SqliteIndex, paths: list[str], done: Refreshed, progress: Progress | None = None) -> None:
        """Index these paths as they are now, in small transactions, so that other processes never wait long."""
        logs_there = [path for path in paths if path.endswith(".jsonl")]
        pages = [path for path in paths if not path.endswith(".jsonl")]
        batches = [pages[start : start + _BATCH_FILES] for start in range(0, len(pages), _BATCH_FILES)]
        ready = 0
        for batch in (*batches, *([path] for path in logs_there)):
            try:
                with contextlib.nullcontext() if batch[0].endswith(".jsonl") else index.writing():
                    for path in batch:
                        self.one(index, path, done)
            except Busy:
                done.behind += len(paths) - ready
                return
            ready += len(batch)
            if progress:
                progress(ready, len(paths))

    def one(self, index: SqliteIndex, path: str, done: Refreshed, end: int | None = None) -> None:
        """Index one path as it is now; of a log only the part before `end`, if given."""
        place = self._place(path)
        seen = index.look(path)
        try:
            if place and place.kind.shape == "line":
                self.tree.heal(path)
            stamp = self.tree.stat(path) if place else None
            if stamp is None or place is None:
                if seen:
                    with index.writing() as db:
                        rows.remove(db, path)
                    done.removed += 1
            elif place.kind.shape == "line":
                self._log(index, place, seen, stamp, done, end)
            else:
                self._document(index, place, seen, done)
        except (Busy, RootGone):
            raise
        except HoldfastError as error:
            done.problems.append(Problem(path, error.message))  # the records known of it stay in the index
            if isinstance(error, OverBudget) and place and (stamp := self.tree.stat(path)):
                now = Seen(kind=place.kind.name, stamp=stamp, looked=time.time_ns())
                with index.writing() as db:
                    rows.add(db, path, now, Facts((), (), [Problem(path, error.message)]), replace=True)

    def _document(self, index: SqliteIndex, place: Place, seen: Seen | None, done: Refreshed) -> None:
        looked = time.time_ns()
        document = self.tree.read(place.path, self._limits.document_bytes)
        now = Seen(kind=place.kind.name, stamp=document.stamp, looked=looked, version=document.version)
        if seen and seen.version == document.version and seen.stamp.mtime == document.stamp.mtime:
            self._touch(index, place.path, now)
            return
        facts = parsing.page(place, document)
        with index.writing() as db:
            rows.add(db, place.path, now, facts, replace=True)
        done.changed += 1
        done.records += len(facts.records)

    def _log(
        self, index: SqliteIndex, place: Place, seen: Seen | None, stamp: Stamp, done: Refreshed, end: int | None
    ) -> None:
        """Index a log in one transaction: no reader may see half of it, and no other process may index it meanwhile."""
        looked, path = time.time_ns(), place.path
        arrived = seen is not None and self._arrived(seen)
        if seen and _settled(seen, stamp) and seen.offset == stamp.size and not arrived:
            return
        grown = seen is not None and not arrived and self._grown(path, seen, stamp)
        if seen and grown and seen.offset == stamp.size:
            self._touch(index, path, msgspec.structs.replace(seen, stamp=stamp, looked=looked))
            return
        with index.writing() as db:
            if (known := index.look(path)) != seen:  # another process indexed it
                self._log(index, place, known, self.tree.stat(path) or stamp, done, end)
                return
            if seen and grown:
                now, before = msgspec.structs.replace(seen, stamp=stamp, looked=looked), set[str]()
            else:
                now = Seen(kind=place.kind.name, stamp=stamp, looked=looked)
                unsynced = place.kind.foreign or place.kind.name in ("trace", "write")  # these may lose entries
                before = set() if unsynced else index.ids(path)
                rows.add(db, path, now, Facts(), replace=True)
            self._read_on(db, place, now, stamp.size if end is None else end, done)
            after = index.ids(path) if before else before
            if (gone := before - after) and (gone != before or not after):  # else the index is of another log
                missing = lost(index)
                missing[path] = sorted(gone.union(missing.get(path, ())))
                index.note(_LOST, msgspec.json.encode(missing).decode())
        done.changed += 1

    def _read_on(self, db: apsw.Connection, place: Place, now: Seen, end: int, done: Refreshed) -> None:
        """Index a log from where the index stopped, in batches."""
        path = place.path
        for batch in _batches(self.tree.scan(path, now.offset, end)):
            missing: list[str] = []
            facts = parsing.lines(place, batch, now.lines + 1, functools.partial(self.blob, missing=missing))
            last = batch[-1].end
            checksum = now.checksum  # of the bytes that were read, which may have changed since
            for line in batch:
                if line.cut or line.veiled:
                    checksum = self.tree.fingerprint(path, line.offset, line.end, checksum)
                else:
                    checksum = zlib.crc32(b"\n" if line.whole else b"", zlib.crc32(line.data, checksum))
            now = msgspec.structs.replace(
                now,
                offset=last,
                lines=now.lines + sum(line.whole and not line.veiled for line in batch),
                open=not batch[-1].whole,
                checksum=checksum,
                tail=self.tree.fingerprint(path, max(0, last - WINDOW), last),
                missing=(*now.missing, *missing)[:_MOST_MISSING],
            )
            rows.add(db, path, now, facts)
            done.records += len(facts.records)

    def _grown(self, path: str, seen: Seen, stamp: Stamp) -> bool:
        """Is the part of the log that was read unchanged, and followed by whole lines only?"""
        if stamp.inode != seen.stamp.inode or stamp.size < seen.offset:
            return False
        if seen.open and stamp.size > seen.offset and next(self.tree.scan(path, seen.offset)).data.strip():
            return False
        edited = stamp.size == seen.stamp.size and stamp != seen.stamp
        if edited or seen.offset <= WHOLE:
            return self.tree.fingerprint(path, 0, seen.offset) == seen.checksum
        return self.tree.fingerprint(path, seen.offset - WINDOW, seen.offset) == seen.tail

    def _touch(self, index: SqliteIndex, path: str, seen: Seen) -> None:
        """Record the check, unless it was too early for the stamp to be proof."""
        if _settled(seen, seen.stamp):
            with contextlib.suppress(Busy), index.writing() as db:
                db.execute("UPDATE files SET seen = ? WHERE path = ?", (rows.seen_out(seen), path))

    def _arrived(self, seen: Seen) -> bool:
        """Is a separate file of this log readable now that was missing or locked before?"""
        for ref in seen.missing:
            try:
                self.blob(ref)
            except (NotFound, Locked):
                continue
            except HoldfastError:  # reading the log again reports it
                pass
            return True
        return False

    def blob(self, ref: str, missing: list[str] | None = None) -> str:
        """Read the text that a line keeps in a separate file."""
        try:
            return read_value(self.tree, ref, self._limits.document_bytes)
        except (NotFound, Locked):
            if missing is not None:
                missing.append(ref)
            raise

    def _place(self, path: str) -> Place | None:
        if path not in self._classified:
            self._classified[path] = self.layout.classify(path)
        return self._classified[path]


def _settled(seen: Seen | None, stamp: Stamp) -> bool:
    """Does the stamp prove that the file is unchanged since it was read?"""
    return seen is not None and seen.stamp == stamp and stamp.mtime < seen.looked - YOUNG_NS


def _batches(lines: Iterator[Line]) -> Iterator[list[Line]]:
    """Group lines; an incomplete last line is left for the next refresh."""
    batch: list[Line] = []
    size = 0
    for line in lines:
        if not line.whole and (line.cut or isinstance(jsonl.parse(line.data), str)):
            break
        batch.append(line)
        size += len(line.data)
        if len(batch) >= _BATCH_LINES or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class Gone(msgspec.Struct, frozen=True):
    """Files that vanished at once; the index records them until they are back or the index is rebuilt."""

    time: str
    files: int
    records: int
    total: int
    paths: list[str]


def note_vanished(tree: FileTree, index: SqliteIndex, paths: list[str]) -> None:
    """Record that many of these files vanished: an unmounted folder is more likely than a deletion."""
    gone = [path for path in paths if _is_gone(tree, path)]
    lost = sum(index.count(path, "") for path in gone)
    if not lost:  # files that never existed, such as the log of summaries before the first one
        return
    total = sum(index.counts().values())
    if lost > MANY or (len(gone) > 1 and is_much(lost, total)):  # removing one small file is normal
        before = _noted(index, _VANISHED, Gone) or Gone(utc_now(), 0, 0, 0, [])
        paths = [*before.paths, *sorted(gone)][:_MOST_NAMED]
        found = Gone(before.time, before.files + len(gone), before.records + lost, max(before.total, total), paths)
        index.note(_VANISHED, msgspec.json.encode(found).decode())


def lost(index: SqliteIndex) -> dict[str, list[str]]:
    """Return the ids of entries that logs lost, until they are back or the index is rebuilt."""
    noted = _noted(index, _LOST, dict[str, list[str]]) or {}
    found = {path: sorted(set(ids) - index.ids(path, ids)) for path, ids in noted.items()}
    return {path: ids for path, ids in found.items() if ids}


def vanished(tree: FileTree, index: SqliteIndex) -> list[Problem]:
    """Report logs that lost entries, and files that vanished at once, until most of them are back."""
    meant = "If they were removed on purpose: holdfast refresh --rebuild"
    step = f"in this log before and missing now. To look for them in git: holdfast verify --repair. {meant}"
    found = {path: amount(len(ids), "entry was", "entries were") for path, ids in lost(index).items()}
    shrunk = [Problem(path, f"{count} {step}") for path, count in found.items()]
    gone = _noted(index, _VANISHED, Gone)
    if gone is None:
        return shrunk
    missing = sum(_is_gone(tree, path) for path in gone.paths)
    if missing * 2 < len(gone.paths):
        index.note(_VANISHED, "")
        return shrunk
    where = os.path.commonpath(gone.paths)
    what = (
        f"{amount(gone.files, 'file')} with {gone.records} of {amount(gone.total, 'record')} vanished at once, noticed"
        f" {gone.time}: is a folder not mounted, or was it moved? {meant}"
    )
    return [*shrunk, Problem(where, what)]


def _is_gone(tree: FileTree, path: str) -> bool:
    """Was a file removed? False if it is unreachable or was replaced by a link."""
    try:
        return tree.stat(path) is None
    except (Unavailable, Invalid):
        return False


def _noted(index: SqliteIndex, name: str, kind: type[N]) -> N | None:
    try:
        return msgspec.json.decode(index.noted(name) or "null", type=kind | None)
    except msgspec.MsgspecError:
        return None


def verify(
    refresher: Refresher, index: SqliteIndex, scratch: SqliteIndex, begun: int, progress: Progress | None
) -> Report:
    """Compare the index with a second one that is read from the same files, as far as the index had read them.

    Other processes may write meanwhile; their new entries are not compared. Save points are compared with the hash in
    their ledger, earlier versions with the hash that is their name. Nothing is repaired: the index can be rebuilt, and
    files are only repaired by their owner.
    """
    seen, held = index.snapshot()
    done = Refreshed()
    outside = tuple(path for path in seen if not refresher.layout.watched(path))  # files that are only read on request
    stamps = refresher.walk(done) | (refresher.walk(done, outside) if outside else {})
    for number, path in enumerate(stamps, 1):
        refresher.one(scratch, path, done, seen[path].offset if path in seen else None)
        if progress:
            progress(number, len(stamps))
    report = Report(files=len(stamps), damage=list(done.problems))
    read, wanted = scratch.snapshot()

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
