"""How two memories are merged: which version of a document wins, and which entries of a log are copied.

Documents are fast-forwarded: a version only replaces one that it was made from. Otherwise the entries of a dated page
are merged, and of any other document both versions are kept, the incoming one under a name that says so. Both then
move on unchanged, so that in the end every memory has the same pair. Log entries are identified by their ids; each is
added once and none is changed.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import msgspec

from holdfast.errors import HoldfastError, Invalid
from holdfast.formats import jsonl, markdown, sections
from holdfast.model.names import short_hash
from holdfast.model.records import Problem
from holdfast.owner.backup import TRANSFERS, complete_lines
from holdfast.storage import write_log

if TYPE_CHECKING:
    from holdfast.core import Core

Act = Literal["new", "changed", "merged", "conflict", "same", "newer", "gone", "forgotten"]
T = TypeVar("T")
Wanted = Callable[[bytes], bool]
"""Decides which lines of a log are transferred."""
_CONFLICT = re.compile(r"(.+)\.conflict-([0-9a-f]{8})(\.[^./]*)?\Z", re.DOTALL)
_LOGIN = re.compile(r"(?<=//)[^@/]*@")
_PAIRS_PER_ENTRY = 200
_PIECE = 1 << 20


def batches(items: Iterable[T], size: Callable[[T], int], most: int, count: int = sys.maxsize) -> Iterator[list[T]]:
    """Yield items in lists of at most so many bytes and items; an item that is larger comes alone."""
    batch, total = list[T](), 0
    for item in items:
        if batch and (len(batch) >= count or total + size(item) > most):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size(item)
    if batch:
        yield batch


# what both sides have


class Pair(NamedTuple):
    """For one document: the version of the source that the target has, and that of the target that the source has.

    A memory has a version when it has the same text, made its own from it, or stores it as a conflict beside it.
    """

    source: str
    target: str = ""


def identity(address: str) -> str:
    """Return the address of a memory without a login."""
    return _LOGIN.sub("", address)


class Agreements:
    """What two memories have of each other, noted in the memory at hand; it is never transferred itself."""

    def __init__(self, here: Core, other: str, *, push: bool) -> None:
        self._here, self._other = here, identity(other)
        self._step = 1 if push else -1  # on disk, a pair is [here, there]
        self._log = f"{here.layout.memory}/{TRANSFERS}/{short_hash(self._other)}.jsonl"

    def read(self) -> dict[str, Pair]:
        """Return what is known of each document, by its path."""
        found: dict[str, Pair] = {}
        for entry in write_log.objects(self._here.tree.scan(self._log)) if self._here.store.exists(self._log) else ():
            agreed = entry.get("agreed")
            for path, pair in agreed.items() if isinstance(agreed, dict) else ():
                if isinstance(pair, list) and len(pair) == 2:
                    found[path] = Pair(*map(str, pair[:: self._step]))
        return found

    def note(self, agreed: Mapping[str, Pair]) -> None:
        """Note what both sides have now, durably."""
        pairs = [(path, list(pair[:: self._step])) for path, pair in agreed.items()]
        for start in range(0, len(pairs), _PAIRS_PER_ENTRY):
            part = dict(pairs[start : start + _PAIRS_PER_ENTRY])
            self._here.add(self._log, [{"with": self._other, "agreed": part}])


# documents


def decide(source: str, target: str | None, agreed: Pair | None, *, entries: bool = False) -> Act:
    """Return what transferring a document means; None is the version of one that the target does not have."""
    if target is None:
        return "gone" if agreed and agreed.source == source else "new"
    if source == target:
        return "same"
    if agreed and agreed.source == source:
        return "same" if agreed.target == target else "newer"
    if agreed and agreed.target == target:
        return "changed"
    return "merged" if entries else "conflict"


def conflict_path(path: str, version: str) -> str:
    """Return the path under which a version is stored beside another one."""
    stem, ending = posixpath.splitext(path)
    return f"{stem}.conflict-{version[:8]}{ending}"


def conflict_of(path: str) -> tuple[str, str] | None:
    """Return the document that a conflict belongs to and the first digits of its version; None if it is no conflict."""
    found = _CONFLICT.fullmatch(path)
    return (found[1] + (found[3] or ""), found[2]) if found else None


def merge_pages(ours: bytes, theirs: bytes, version: str, without: Container[str] = ()) -> bytes | None:
    """Return their page with our entries that it lacks, or None when the pages cannot be merged.

    Of two entries with the same heading both are kept; ours is then marked with the version of our page. Entries whose
    anchors are in `without` are left out.
    """
    mine, page = (data.decode("utf-8", "surrogateescape") for data in (ours, theirs))
    if markdown.conflict_line(mine) or markdown.conflict_line(page):
        return None
    mark = f" (other version, {version[:8]})"
    start = markdown.body_start(page)
    body = page[start:]
    there = sections.parse(body)
    known = {one.source.rstrip() for one in there} | {one.text for one in there if one.title.endswith(mark)}
    headings = {(one.date, one.title) for one in there}
    try:
        for one in sections.parse(mine[markdown.body_start(mine) :]):
            if one.source.rstrip() in known or one.anchor in without:
                continue
            title = one.title
            if (one.date, title) in headings:
                if one.text in known:
                    continue
                title = f"{title[: sections.MAX_TITLE - 40]}{mark}"
            body = sections.add(body, one.rendered(title=title))
    except Invalid:
        return None
    if [one.source.rstrip() for one in sections.parse(body)[: len(there)]] != [one.source.rstrip() for one in there]:
        return None
    return (page[:start] + body).encode("utf-8", "surrogateescape")


class Forgotten:
    """What was forgotten in the target and is not transferred again: documents, their versions, entries, values."""

    def __init__(self, target: Core, source: Core, logs: Sequence[str]) -> None:
        entries = list(write_log.entries(target.tree, target.layout.memory))
        self._paths = {str(entry["path"]) for entry in entries if entry.get("forgotten") and "path" in entry}
        about = [entry for entry in entries if entry.get("path") in self._paths]
        self._versions = {str(entry[end]) for entry in about for end in ("before", "after") if entry.get(end)}
        self._ids = {str(each) for one in entries if isinstance(one.get("forget"), list) for each in one["forget"]}
        found = (one for log in logs if self._ids for one in write_log.objects(source.tree.scan(log), '"ref"'))
        self._values = {str(entry["ref"]) for entry in found if "ref" in entry and entry.get("id") in self._ids}

    def has(self, path: str, version: str) -> bool:
        """Return whether a document was forgotten, in this version or another, or the one that it conflicts with."""
        if version in self._versions or path in self._values or path in self._paths:
            return True
        conflict = conflict_of(path)
        return conflict is not None and conflict[0] in self._paths

    def sections_of(self, path: str) -> set[str]:
        """Return the anchors of the forgotten sections of a page."""
        return {each.removeprefix(f"{path}#") for each in self._ids if each.startswith(f"{path}#")}


# logs


class Share(msgspec.Struct, frozen=True):
    """How many entries and bytes of a log are to be copied, and how many are there already."""

    path: str
    lines: int
    bytes: int
    known: int


class Logs:
    """Copies entries from the logs of one memory to those of another; `existing` are the files of the target."""

    def __init__(self, source: Core, target: Core, existing: Iterable[str]) -> None:
        self._source, self._target = source, target
        self._chats = [path for path in existing if self._is_chat(path)]
        self.refused: list[Problem] = []

    def plan(self, path: str, wanted: Wanted) -> Share:
        """Return what is to be copied of the wanted entries of a log."""
        sizes = [0 if line is None else len(line) + 1 for line in self._lines(path, wanted)]
        new = [size for size in sizes if size]
        return Share(path, len(new), sum(new), len(sizes) - len(new))

    def copy(self, path: str, wanted: Wanted, progress: Callable[[int], None]) -> None:
        """Copy the wanted entries that the target lacks, durably, some at a time."""
        log = path
        new = (line for line in self._lines(path, wanted) if line is not None)
        for number, piece in enumerate(batches(new, len, _PIECE)):
            if not number and self._is_chat(path) and self._target.store.exists(path):
                # the chat history is read from its end: older messages get a log of their own
                last = next(filter(None, (_order(line.data) for line in self._target.tree.scan_back(path))), "")
                if last and _order(piece[0]) <= last:
                    name = short_hash(f"{path} {jsonl.keys(piece[0])}")
                    log = f"{self._target.layout.memory}/history/{name}.jsonl"
            self._target.store.import_lines(log, piece)
            progress(len(piece))

    def _lines(self, path: str, wanted: Wanted) -> Iterator[bytes | None]:
        """Yield the wanted lines of a log as they are written to the target, None for each that it has already.

        A line that is too long or refused is reported; one that is being written is left for the next time.
        """
        chats, tree, secrets = self._chats if self._is_chat(path) else [], self._target.tree, self._target.secrets
        place, longest = self._source.layout.classify(path), self._target.settings.limits.line_bytes
        logs = [log for log in {*chats, path} if tree.stat(log)]
        known = {key for log in logs for line in tree.scan(log) for key in jsonl.keys(line.data)}
        for line in complete_lines(self._source.tree, path, self.refused):
            data, keys = line.data, jsonl.keys(line.data)
            if not wanted(data):
                continue
            if known and known.issuperset(keys):
                yield None
                continue
            try:
                objects = jsonl.parse(data)
                if isinstance(objects, str):
                    data = secrets.document(None, data, None)
                else:
                    made = [secrets.line(place.kind if place else None, value, waits=False) for value in objects]
                    if any(one is not other for one, other in zip(made, objects, strict=True)):
                        data = b"".join(map(jsonl.render, made)).rstrip(b"\n").replace(b"\n", b" ")
                if len(data) >= longest:
                    raise Invalid(f"It has {len(data):,} bytes; the limit there is {longest:,}.", "Shorten it.")
            except HoldfastError as error:
                self.refused.append(Problem(path, f"{next(iter(keys), '')}: {error}"))
                continue
            redacted_before = data is not line.data and known.issuperset(jsonl.keys(data))
            yield None if redacted_before else data

    def _is_chat(self, path: str) -> bool:
        place = self._source.layout.classify(path) if path.endswith(".jsonl") else None
        return place is not None and place.kind.name == "message"


def _order(data: bytes) -> str:
    objects = jsonl.parse(data)
    return jsonl.identity(objects[0], "timestamp")[1] if isinstance(objects, list) and objects else ""
