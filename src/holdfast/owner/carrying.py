"""Lines of logs from one memory to another: each is added once, and none is changed on the way.

A log that is the beginning of the other one is carried on where it ends, byte by byte. Otherwise the lines that are
not there are added, known by their ids. The place of a line in its log means nothing: ids say what came when. Only the
chat history is read from its end, so messages that are older than its last one get a log of their own beside it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import HoldfastError, Invalid
from holdfast.formats import jsonl
from holdfast.model.kinds import Kind
from holdfast.model.layout import Places
from holdfast.model.names import short_hash
from holdfast.model.records import Problem
from holdfast.storage.bringing import Carried
from holdfast.storage.tree import Line, Stamp, Vault

_PIECE = 1 << 20
_SET = -1
Wanted = Callable[[dict[str, Any]], bool]
Moved = Callable[[int], None]


class Share(msgspec.Struct, frozen=True):
    """What of a log is to be carried: how many lines and bytes, and from which offset on, if all behind it is."""

    path: str
    lines: int
    bytes: int
    known: int = 0
    """Lines that are there already."""
    offset: int = _SET


class Carrier:
    """Carries lines from one memory to another. `stamps` are the files of both."""

    def __init__(self, source: Core, target: Core, here: dict[str, Stamp], there: dict[str, Stamp]) -> None:
        self._source, self._target = source, target
        self._here, self._there = here, there
        self.left_out: list[Problem] = []
        self._held_back = 0
        """How many lines were refused so far."""
        self._chat = [path for path in there if self._is_chat(path)]

    @functools.cache  # noqa: B019  # a carrier lives as long as its move
    def _kind(self, path: str) -> Kind | None:
        place = self._source.places.classify(path)
        return place.kind if place else None

    def _is_chat(self, path: str) -> bool:
        kind = self._kind(path) if path.endswith(".jsonl") else None
        return kind is not None and kind.name == "message"

    def look(self, path: str, wanted: Wanted | None = None) -> Share:
        """Say what is to be carried of a log."""
        offset = self._begins(path) if wanted is None else _SET
        if offset >= 0:
            return self._rest(path, offset)
        known, total = self._known(path), 0

        def counted() -> Iterator[Line]:
            nonlocal total
            for line in self._lines(path):
                total += 1
                yield line

        before = self._held_back
        sizes = [len(line.data) + 1 for line in self._fresh(path, counted(), known, wanted)]
        refused = self._held_back - before
        return Share(path, len(sizes), sum(sizes), 0 if wanted else total - len(sizes) - refused)

    def _rest(self, path: str, offset: int) -> Share:
        """Say what is to be carried of a log of which the other side has all before an offset."""
        lines = size = known = 0
        for line in self._lines(path):
            if line.offset < offset:
                known += 1
            elif made := self._screened(path, line):
                lines += 1
                size += len(made.data) + 1
        return Share(path, lines, size, known, offset)

    def carry(self, share: Share, moved: Moved, wanted: Wanted | None = None) -> None:
        """Add the lines to the other log, durably, some at a time."""
        if share.offset >= 0 and self._extend(share, moved):
            return
        known = self._known(share.path)
        fresh = self._fresh(share.path, self._lines(share.path), known, wanted)
        first = next(fresh, None)
        if first is None:
            return
        path = self._place(share.path, first)
        for piece in _pieces(_behind(first, fresh)):
            self._target.receiver.merge(path, piece)
            moved(len(piece))

    def _begins(self, path: str) -> int:
        """Return where the other log ends, if it is the beginning of this one to the byte; else -1."""
        if self._is_chat(path) and not self._aligned:
            return _SET
        return self._prefix(path)

    @functools.cached_property
    def _aligned(self) -> bool:
        """Is every log of the chat there the beginning of the same log here? Else messages may be in another one."""
        return all(path in self._here and self._prefix(path) >= 0 for path in self._chat)

    @functools.cache  # noqa: B019
    def _prefix(self, path: str) -> int:
        there = self._there.get(path)
        if there is None or not there.size:
            return 0
        vault, size = self._source.vault, there.size
        if size > self._here[path].size or not _ends_line(vault, path, size):
            return _SET
        same = vault.fingerprint(path, 0, size) == self._target.vault.fingerprint(path, 0, size)
        return size if same else _SET

    def _extend(self, share: Share, moved: Moved) -> bool:
        """Add all from an offset on as it is; False when somebody else writes to the other log."""
        size = self._there[share.path].size if share.path in self._there else 0
        lines = self._lines(share.path, share.offset)
        for piece in _pieces(made for line in lines if (made := self._screened(share.path, line))):
            data = b"".join(line.data + b"\n" for line in piece)
            done = self._target.receiver.extend(share.path, size, data)
            if done is None:
                return False
            size = done.end
            moved(len(piece))
        return True

    def _lines(self, path: str, offset: int = 0) -> Iterator[Line]:
        """Yield the lines of this log; one that is too long is told, one that is being written waits for next time."""
        for line in self._source.vault.scan(path, offset):
            if line.cut:
                self.left_out.append(Problem(path, f"a line at byte {line.offset:,} is longer than lines may be"))
            elif line.whole or not isinstance(jsonl.parse(line.data), str):
                yield line

    def _fresh(
        self, path: str, lines: Iterator[Line], known: Container[str], wanted: Wanted | None
    ) -> Iterator[Carried]:
        """Yield the lines that the other side does not have, as they may be written there."""
        for line in lines:
            if all(key in known for key in jsonl.keys(line.data)) or (wanted and not _all(line.data, wanted)):
                continue
            made = self._screened(path, line)
            if made and not (made.data is not line.data and all(key in known for key in jsonl.keys(made.data))):
                yield Carried(jsonl.keys(made.data), made.data)

    def _known(self, path: str) -> set[str]:
        """Return what tells the lines of the other log apart; of the chat history, those of all its logs."""
        paths = {*self._chat, path} if self._is_chat(path) else {path}
        vault = self._target.vault
        return {key for each in paths if vault.stat(each) for line in vault.scan(each) for key in jsonl.keys(line.data)}

    def _screened(self, path: str, line: Line) -> Carried | None:
        """Return a line as it may be written there, None when it is refused, which is told."""
        longest = self._target.settings.limits.line_bytes
        try:
            data = self._target.receiver.line(self._kind(path), line.data)
            if len(data) >= longest:
                raise Invalid(f"It has {len(data):,} bytes; the limit there is {longest:,}.", "Shorten it.")
            return Carried((), data)
        except HoldfastError as error:
            named = next(iter(jsonl.keys(line.data)), "")
            self.left_out.append(Problem(path, f"{named}: {error}"))
            self._held_back += 1
            return None

    def _place(self, path: str, first: Carried) -> str:
        """Return the log that lines go to: messages that are older than the last one there get one of their own."""
        if not self._is_chat(path) or self._target.vault.stat(path) is None:
            return path
        last = next((order for line in self._target.vault.scan_back(path) if (order := _order(line.data))), "")
        if not last or _order(first.data) > last:
            return path
        return history_log(self._target.places, short_hash(f"{path} {first.keys}"))


def history_log(places: Places, name: str) -> str:
    """Return a log of messages beside the chat history."""
    return f"{places.memory}/history/{name}.jsonl"


def _order(data: bytes) -> str:
    objects = jsonl.parse(data)
    return jsonl.identity(objects[0], "timestamp")[1] if isinstance(objects, list) and objects else ""


def _all(data: bytes, wanted: Wanted) -> bool:
    objects = jsonl.parse(data)
    return isinstance(objects, list) and bool(objects) and all(map(wanted, objects))


def _ends_line(vault: Vault, path: str, offset: int) -> bool:
    """Does a line end at this offset?"""
    return any(line.whole and not line.data for line in vault.scan(path, offset - 1, offset))


def _behind(first: Carried, rest: Iterator[Carried]) -> Iterator[Carried]:
    yield first
    yield from rest


def _pieces(lines: Iterator[Carried]) -> Iterator[list[Carried]]:
    piece: list[Carried] = []
    size = 0
    for line in lines:
        piece.append(line)
        size += len(line.data) + 1
        if size >= _PIECE:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
