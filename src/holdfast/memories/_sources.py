"""Files of other programs that are read into memory: finding them, opening them safely, and telling what came of it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

import msgspec

from holdfast.errors import Invalid, NotFound
from holdfast.model.records import Problem
from holdfast.roots import on_disk

SUFFIX = ".jsonl"
_MOST_PROBLEMS = 100


class Source(msgspec.Struct, frozen=True):
    """A file to read, and what it is called below the folder that was looked into."""

    path: str
    name: str


class Report(msgspec.Struct, omit_defaults=True):
    """What became of an import."""

    files: int = 0
    """Files that were read."""
    turns: int = 0
    added: int = 0
    """Turns that are new; the others were there already."""
    skipped: int = 0
    """Lines and files that could not be read."""
    problems: list[Problem] = []
    """The first of those, with file and line."""

    def skip(self, path: str, why: str, line: int = 0) -> None:
        self.skipped += 1
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(Problem(readable(path), why, line))


def named(path: str) -> list[Source]:
    """Return the file, or all files below the folder, that somebody named."""
    if not path:
        raise Invalid("Nobody knows where these conversations are.", "Name the file or folder.")
    try:
        top = os.path.realpath(on_disk(path))
        there = os.path.lexists(top)
    except ValueError:  # NUL, or half a character
        raise Invalid("No file can have such a name.", "Check the path.") from None
    if not there:
        raise NotFound(f"{top} is not there.", "Check the path.")
    return below(top)


def below(top: str) -> list[Source]:
    """Return a file, or the files below a folder, by name; what cannot be read is told when it is opened."""
    if not os.path.isdir(top):
        return [Source(top, os.path.basename(top))]
    found, waiting = [], [top]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as listing:
                entries = list(listing)
        except OSError:
            found.append(folder)
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif entry.name.endswith(SUFFIX) or (entry.is_symlink() and os.path.isdir(entry.path)):
                found.append(entry.path)
    return [Source(path, os.path.relpath(path, top)) for path in sorted(found)]


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """Open a regular file for reading, waiting for nobody and following no link."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "it is a link, and links are not followed") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        yield fd
    finally:
        os.close(fd)


def readable(path: str) -> str:
    """Return a path as text that can be written down, whatever bytes a name is made of."""
    return path.encode("utf-8", "replace").decode("utf-8")


def size_of(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
