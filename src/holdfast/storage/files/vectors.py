"""Vectors of records in one file of `.holdfast/`: derived from text, and can be lost at any time.

A file belongs to one model of one version and to one index; its header names them, and its entries name rows of that
index. An entry is the row, a hash of the text, a checksum and the vector as small integers. Entries are only appended,
under a lock; the last one of a row counts. An entry that is cut short, damaged or of another text counts as missing.
The signs of all vectors are in memory, to find the nearest; the rest is read from the file when needed. The file is
not mapped, since a mapped file that shrinks would end the process.

All sums are of integers and therefore exact: an answer does not depend on the order in which vectors were made.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy

from holdfast.errors import Busy
from holdfast.model.records import Record, mark_of
from holdfast.recall.embedders import vectors_of
from holdfast.storage.files.descriptors import hold

if TYPE_CHECKING:
    from holdfast.recall.embedders import Embedder, Floats

_HEADER = 256
_PREFIX, _SUFFIX = "vectors-", ".bin"
_LOCK_SECONDS = 5.0
_CHUNK = 8 << 20
RESCORED = 500
"""How many of the vectors that agree in the most signs are compared exactly."""
_ODD = numpy.arange(1, 257, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15) | numpy.uint64(1)
Array = numpy.ndarray[Any, numpy.dtype[Any]]


class FileVectors:
    """The vectors of one model for the rows of one index. Without a folder they are in memory."""

    def __init__(self, folder: str, model: Embedder, generation: str) -> None:
        self._size = model.size
        self._dtype = numpy.dtype([("row", "<u8"), ("mark", "<u8"), ("check", "<u8"), ("vector", "i1", model.size)])
        self.model = model
        label = f"holdfast vectors 1\n{model.name}\n{model.version}\n{model.size}\n{generation}\n"
        self._header = label.encode().ljust(_HEADER, b" ")[:_HEADER]
        self._folder = folder
        token = blake2b(label.encode(), digest_size=8).hexdigest()
        self.path = os.path.join(folder, f"{_PREFIX}{model.name}-{token}{_SUFFIX}") if folder else ""
        self._buffer: bytearray | None = None if folder else bytearray(self._header)
        self._at = _HEADER
        """Everything before this place of the file was read."""
        self._fd = -1
        self._inode = (0, 0)
        self._old: tuple[Array, Array] | None = None
        self._epoch = 0
        self.doubted = False
        """An entry changed after it was read: read the file again."""
        self._forget()

    def _forget(self) -> None:
        self._epoch += self._at > _HEADER
        self._at = _HEADER
        self._rows: Array = numpy.zeros(0, numpy.uint64)
        self._layout: Array = numpy.zeros(0, numpy.int64)
        self._signs: Array = numpy.zeros((0, self._size // 64), numpy.uint64)
        self._sorted: Array | None = None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # reading

    def __len__(self) -> int:
        return len(self._rows)

    def bytes_on_disk(self) -> int:
        try:
            return os.stat(self.path).st_size if self.path and self._buffer is None else 0
        except OSError:
            return 0

    def read_on(self) -> bool:
        """Read what was added since by any process; True when everything was read again."""
        before = self._epoch
        size = self._open()
        if size < self._at or self.doubted:
            self._forget()
        self.doubted = False
        stride = self._dtype.itemsize
        end = self._at + (size - self._at) // stride * stride
        while self._at < end:
            entries = self._entries_in(self._read(self._at, min(end - self._at, _CHUNK // stride * stride)))
            if not len(entries):
                break
            places = self._at + numpy.arange(len(entries), dtype=numpy.int64) * stride
            self._at += len(entries) * stride
            sound = _checks(entries) == entries["check"]
            signs = numpy.packbits(entries["vector"][sound] > 0, axis=1).view(numpy.uint64)
            self._rows = numpy.concatenate((self._rows, entries["row"][sound]))
            self._layout = numpy.concatenate((self._layout, places[sound]))
            self._signs = numpy.concatenate((self._signs, signs))
            self._sorted = None
        return self._epoch != before

    def _open(self) -> int:
        """Open the current file and return its size; 0 when it does not exist or has another header."""
        if self._buffer is not None:
            return len(self._buffer)
        try:
            there = os.stat(self.path)
        except OSError:
            self.close()
            return 0
        if self._fd < 0 or (there.st_dev, there.st_ino) != self._inode:
            self.close()
            self._forget()
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                return 0
            there = os.fstat(self._fd)
            self._inode = (there.st_dev, there.st_ino)
        if self._at == _HEADER and self._read(0, _HEADER) != self._header:
            return 0
        return there.st_size

    def _read(self, start: int, size: int) -> bytes:
        if self._buffer is not None:
            return bytes(self._buffer[start : start + size])
        try:
            return os.pread(self._fd, size, start) if self._fd >= 0 else b""
        except OSError:
            return b""

    def _entries_in(self, data: bytes) -> Array:
        """Return the complete entries in some bytes."""
        return numpy.frombuffer(data[: len(data) // self._dtype.itemsize * self._dtype.itemsize], self._dtype)

    def _find(self, rows: Array) -> Array:
        """Return the number of the last entry of each row; -1 when there is none."""
        if not len(self._rows):
            return numpy.full(len(rows), -1)
        if self._sorted is None:
            self._sorted = numpy.argsort(self._rows, kind="stable")
        ordered = self._rows[self._sorted]
        place = numpy.searchsorted(ordered, rows, side="right") - 1
        found = self._sorted[place]
        return numpy.where((place >= 0) & (self._rows[found] == rows), found, -1)

    def missing(self, rows: Sequence[int]) -> list[int]:
        """Return the rows that have no vector."""
        wanted = numpy.asarray(rows, numpy.uint64)
        return [int(row) for row in wanted[self._find(wanted) < 0]]

    def _entries(self, numbers: Array) -> Array:
        """Read entries by number; an entry that changed since is all zero."""
        stride = self._dtype.itemsize
        places = self._layout[numbers]
        order = numpy.argsort(places, kind="stable")
        ordered = places[order]
        breaks = numpy.flatnonzero(numpy.diff(ordered) != stride) + 1  # neighbours are read at once
        edges = [0, *breaks.tolist(), len(ordered)] if len(ordered) else []
        parts = []
        for start, end in itertools.pairwise(edges):
            size = (end - start) * stride
            parts.append(self._read(int(ordered[start]), size).ljust(size, b"\0"))
        found = numpy.zeros(len(numbers), self._dtype)
        found[order] = numpy.frombuffer(b"".join(parts), self._dtype)
        found[_checks(found) != found["check"]] = 0
        return found

    # nearness

    def nearness(self, rows: Sequence[int], marks: Sequence[int], question: Floats) -> list[float | None]:
        """Return the similarity of each row to a question, from -1 to 1; None without a vector of its text."""
        numbers = self._find(numpy.asarray(rows, numpy.uint64))
        known = numpy.flatnonzero(numbers >= 0)
        result: list[float | None] = [None] * len(rows)
        if not len(known):
            return result
        entries = self._entries(numbers[known])
        right = entries["mark"] == numpy.asarray(marks, numpy.uint64)[known]
        values = cosines(entries["vector"], question)
        for place, value in zip(known[right].tolist(), values[right].tolist(), strict=True):
            result[place] = value
        return result

    def nearest(self, question: Floats, among: Sequence[int] | None = None) -> list[tuple[int, float]]:
        """Return the rows most similar to a question, of all or of some, with their similarity; unordered."""
        numbers = None if among is None else self._find(numpy.asarray(among, numpy.uint64))
        numbers = numbers[numbers >= 0] if numbers is not None else None
        signs = self._signs if numbers is None else self._signs[numbers]
        if not len(signs):
            return []
        mine = numpy.packbits(small(question[None, :]) > 0, axis=1).view(numpy.uint64)[0]
        apart = numpy.bitwise_count(signs[:, 0] ^ mine[0]).astype(numpy.uint16)
        for column in range(1, signs.shape[1]):
            apart += numpy.bitwise_count(signs[:, column] ^ mine[column])
        if len(apart) > RESCORED:  # equals are all kept or all dropped
            edge = numpy.partition(apart, RESCORED)[RESCORED]
            best = numpy.flatnonzero(apart <= edge)
        else:
            best = numpy.arange(len(apart))
        chosen = best if numbers is None else numbers[best]
        chosen = chosen[self._find(self._rows[chosen]) == chosen]
        entries = self._entries(chosen)
        whole = entries["row"] == self._rows[chosen]
        self.doubted = self.doubted or not whole.all()
        return list(
            zip(entries["row"][whole].tolist(), cosines(entries["vector"][whole], question).tolist(), strict=True)
        )

    # adding

    def make(self, records: Mapping[int, Record]) -> None:
        """Make the vectors of records, or reuse those of an earlier index for the same texts."""
        marks = [mark_of(record) for record in records.values()]
        known = self.earlier(marks)
        fresh = [number for number, one in enumerate(known) if one is None]
        every = list(records.values())
        made = vectors_of(self.model, [every[number] for number in fresh])
        for number, vector in zip(fresh, small(made), strict=True):
            known[number] = vector
        if records:
            self.add(list(records), marks, known)

    def add(self, rows: Sequence[int], marks: Sequence[int], vectors: Sequence[Array | None]) -> None:
        """Append vectors; when they cannot be written, keep all in memory from now on."""
        entries = numpy.zeros(len(rows), self._dtype)
        entries["row"], entries["mark"], entries["vector"] = rows, marks, vectors
        entries["check"] = _checks(entries)
        if self._buffer is None:
            try:
                self._append(entries.tobytes())
            except (OSError, Busy):
                whole = self._at - _HEADER
                self._buffer = bytearray(self._header + self._read(_HEADER, whole).ljust(whole, b"\0"))
                self.close()
        if self._buffer is not None:
            self._buffer += entries.tobytes()
        self.read_on()

    def _append(self, data: bytes) -> None:
        for _ in range(5):
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with open(fd, "r+b", buffering=0) as file:
                hold(fd, _LOCK_SECONDS, "The file of vectors")
                there = os.fstat(fd)
                with contextlib.suppress(FileNotFoundError):
                    if os.stat(self.path).st_ino != there.st_ino:
                        continue  # it was replaced before we had the lock
                    if os.pread(fd, _HEADER, 0) != self._header:
                        os.ftruncate(fd, 0)
                        data = self._header + data
                    elif torn := (there.st_size - _HEADER) % self._dtype.itemsize:
                        os.ftruncate(fd, there.st_size - torn)
                    view = memoryview(data)
                    while view:
                        view = view[file.write(view) :]
                    return
        raise OSError("the file of vectors was replaced again and again")

    def earlier(self, marks: Sequence[int]) -> list[Array | None]:
        """Return the vectors of the same texts that the same model made for an earlier index."""
        if self._old is None:
            found = [numpy.zeros(0, self._dtype)]
            for path in self._others():
                with contextlib.suppress(OSError), open(path, "rb") as file:
                    if file.read(_HEADER).split(b"\n")[:4] == self._header.split(b"\n")[:4]:
                        entries = self._entries_in(file.read())
                        found.append(entries[_checks(entries) == entries["check"]])
            entries = numpy.concatenate(found)
            _, first = numpy.unique(entries["mark"], return_index=True)
            self._old = entries["mark"][first], entries["vector"][first]
        known, vectors = self._old
        if not len(known):
            return [None] * len(marks)
        wanted = numpy.asarray(marks, numpy.uint64)
        place = numpy.minimum(numpy.searchsorted(known, wanted), len(known) - 1)
        return [vectors[at] if known[at] == one else None for at, one in zip(place.tolist(), wanted, strict=True)]

    def tidy(self) -> None:
        """Remove the files of the same model for earlier indexes and versions."""
        for path in self._others():
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._old = None

    def _others(self) -> list[str]:
        if not self._folder or self._buffer is not None:
            return []
        with contextlib.suppress(OSError):
            start = f"{_PREFIX}{self.model.name}-"
            names = [name for name in os.listdir(self._folder) if name.startswith(start) and name.endswith(_SUFFIX)]
            return [path for name in names if (path := os.path.join(self._folder, name)) != self.path]
        return []

    def keep_only(self, rows: Sequence[int]) -> None:
        """Rewrite the file without the entries of other rows, when these are most of it."""
        wanted = numpy.asarray(rows, numpy.uint64)
        whole = (self._at - _HEADER) // self._dtype.itemsize
        if self._buffer is not None or whole <= 2 * int((self._find(wanted) >= 0).sum()) + 1_000:
            return
        temporary = f"{self.path}-{secrets.token_hex(4)}"
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                hold(fd, _LOCK_SECONDS, "The file of vectors")
                self.read_on()
                numbers = self._find(wanted)
                entries = self._entries(numbers[numbers >= 0])
                with open(temporary, "xb") as file:
                    file.write(self._header + entries[entries["row"] > 0].tobytes())
                os.replace(temporary, self.path)
            finally:
                os.close(fd)
        except (OSError, Busy):
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        self.read_on()


def small(vectors: Floats) -> Array:
    """Scale vectors to integers from -127 to 127; only the direction counts."""
    most = numpy.abs(vectors).max(1, keepdims=True)
    return numpy.asarray(numpy.rint(vectors * (127 / numpy.maximum(most, 1e-9))).astype(numpy.int8))


def cosines(vectors: Array, question: Floats) -> Array:
    """Return the similarity of each vector to a question. The sums are of integers: exact in 32 bits too."""
    mine = small(question[None, :])[0].astype(numpy.float32)
    theirs = vectors.astype(numpy.float32)
    lengths = numpy.sqrt((theirs * theirs).sum(1, dtype=numpy.float64) * float((mine * mine).sum()))
    return numpy.asarray((theirs @ mine).astype(numpy.float64) / numpy.maximum(lengths, 1e-9))


def _checks(entries: Array) -> Array:
    """Return a checksum for each entry that any single changed bit changes."""
    words = entries.view(numpy.uint64).reshape(len(entries), -1) if len(entries) else numpy.zeros((0, 1), numpy.uint64)
    factors = _ODD[: words.shape[1]].copy()
    factors[2:3] = 0  # the checksum itself
    return numpy.asarray((words * factors).sum(1, dtype=numpy.uint64) + _ODD[255])
