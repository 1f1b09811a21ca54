"""Following logs: each is read on from where it was read to, so that a call sees what other processes added.

A log is read anew when it is another file, is shorter, or when the bytes before that place have changed. A line that
cannot be read is passed over; the file as it is gets copied to `<path>.damaged-<time>`, once for each damage, and
whoever asks is told, as long as it stands there. A last line that is still being written, or was torn, is no damage and
is looked at again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from holdfast.errors import HoldfastError, NotFound
from holdfast.formats import jsonl
from holdfast.model.times import utc_now
from holdfast.storage.tree import ABSENT, Line, Stamp, Vault

_WINDOW = 1 << 18
_MOST_LOGS = 256
_NAMED = 5
Answer = TypeVar("Answer")


class Folded(Protocol):
    """What the lines of a log add up to."""

    def add(self, line: Mapping[str, Any], /) -> None:
        """Take in one line."""
        ...


Fold = TypeVar("Fold", bound=Folded)


class Followed(msgspec.Struct, Generic[Fold]):
    """How far a log was read, and what it said up to there."""

    fold: Fold
    inode: int
    offset: int = 0
    lines: int = 0
    checksum: int = 0
    told: list[str] = []
    """What is to be told of lines that cannot be read."""


class Follower(Generic[Fold]):
    """Keeps the folds of one vault's logs. Safe to use from several threads, also while a log is held."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._known: dict[str, Followed[Fold]] = {}
        self._lock = threading.Lock()

    def ask(
        self, path: str, empty: Callable[[], Fold], warnings: list[str], question: Callable[[Fold], Answer]
    ) -> Answer:
        """Put a question to what a log says now; `warnings` gets what could not be read. No log says nothing."""
        with self._lock:
            stamp = self._vault.stat(path)
            known = self._known.pop(path, None)
            if stamp is None:
                return question(empty())
            if known is None or not self._grown(path, known, stamp):
                known = Followed(empty(), stamp.inode)
            try:
                self._read_on(path, known, stamp)
            except NotFound:  # a run that ended this moment
                return question(empty())
            warnings += [told for told in known.told if told not in warnings]
            self._known[path] = known  # the one that was asked last stands last
            if len(self._known) > _MOST_LOGS:
                del self._known[next(iter(self._known))]
            return question(known.fold)

    def _grown(self, path: str, known: Followed[Fold], stamp: Stamp) -> bool:
        """Has this log, at most, grown since it was read?"""
        if stamp.inode != known.inode or stamp.size < known.offset:
            return False
        try:
            return self._vault.fingerprint(path, _window(known.offset), known.offset) == known.checksum
        except NotFound:
            return False

    def _read_on(self, path: str, known: Followed[Fold], stamp: Stamp) -> None:
        bad: list[tuple[int, Line]] = []
        before = known.offset
        for line in self._vault.scan(path, known.offset, stamp.size):
            found = "too long" if line.cut else jsonl.parse(line.data)
            if isinstance(found, str) and not line.whole:
                break
            known.offset = line.end
            known.lines += line.whole
            if isinstance(found, str):
                bad.append((known.lines, line))
                continue
            for value in found:
                known.fold.add(value)
        if known.offset != before:
            known.checksum = self._vault.fingerprint(path, _window(known.offset), known.offset)
        if bad:
            known.told += self._set_aside(path, bad)

    def _set_aside(self, path: str, bad: list[tuple[int, Line]]) -> list[str]:
        """Copy a damaged file, unless a copy has all that cannot be read; return what is to be told."""
        kept = {_same(line): copy for copy in copies(self._vault, path) for line in self._vault.scan(copy)}
        where: dict[str, list[int]] = {}
        for number, line in bad:
            where.setdefault(kept.get(_same(line), ""), []).append(number)
        new = where.pop("", [])
        told = {f"the file as it was is kept as {copy}": numbers for copy, numbers in where.items()}
        told |= {self._copy(path): new} if new else {}
        return [
            f"{path}: line {_named(numbers)} cannot be read; {became}. All else in it is still used."
            for became, numbers in told.items()
        ]

    def _copy(self, path: str) -> str:
        """Copy a file as it is, and say what became of that."""
        copy = f"{path}.damaged-{''.join(sign for sign in utc_now() if sign.isalnum())}"
        try:
            self._vault.write(copy, self._vault.read(path).data, expect=ABSENT)
            return f"the file as it is was copied to {copy}"
        except HoldfastError as error:
            return f"the file could not be copied ({error.message})"


def _named(numbers: list[int]) -> str:
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return ", ".join(map(str, numbers[:_NAMED])) + more


def copies(vault: Vault, path: str) -> Iterator[str]:
    """Yield the copies of a damaged log."""
    folder = path.rpartition("/")[0]
    for found, _ in vault.walk(folder, ("",), lambda _path, _why: None):
        if found.startswith(f"{path}.damaged-"):
            yield found


def _same(line: Line) -> tuple[int, bytes]:
    """Return what tells a line from others; of one that is too long, its length."""
    return line.end - line.offset, line.data


def _window(offset: int) -> int:
    return max(0, offset - _WINDOW)
