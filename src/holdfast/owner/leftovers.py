"""Proof that a text is gone: its bytes are looked for in every file below the root, and in none they should be.

Nothing is taken for granted here: not which files are memory, not what the index says. What cannot be looked into is
told as well. Compressed files are not unpacked. Of a memory in a database its files are looked at, one by one.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator

import msgspec

from holdfast.errors import NotFound
from holdfast.formats.search_terms import Needles
from holdfast.model.records import Problem
from holdfast.model.settings import DERIVED
from holdfast.storage.files.descriptors import TEMPORARY
from holdfast.storage.refresh import Progress
from holdfast.storage.tree import Vault

_GIT = ".git"
WHOLE = "the text still stands here"
PARTLY = "a part of the text still stands here"


class Tree:
    """A memory that is a folder."""

    def __init__(self, root: str) -> None:
        self._root = root

    def search(self, needles: Needles, progress: Progress | None = None) -> list[Problem]:
        return search(self._root, needles, progress)

    def unfinished(self) -> list[str]:
        return temporary(self._root, TEMPORARY)

    def out_of_reach(self) -> list[str]:
        return out_of_reach(self._root)


class Rows:
    """A memory that is in a database: its files lie below these tops, and nothing of it is elsewhere."""

    def __init__(self, vault: Vault, tops: tuple[str, ...]) -> None:
        self._vault = vault
        self._tops = tops

    def search(self, needles: Needles, progress: Progress | None = None) -> list[Problem]:
        paths = [path for top in self._tops for path, _ in self._vault.walk(top, ("",), lambda _path, _why: None)]
        found = []
        for number, path in enumerate(dict.fromkeys(paths), 1):
            with contextlib.suppress(NotFound):
                found += [problem] if (problem := _found(self._vault.read(path).data, path, needles)) else []
            if progress:
                progress(number, len(paths))
        return found

    def unfinished(self) -> list[str]:
        return []

    def out_of_reach(self) -> list[str]:
        return [
            "what a dump of the database has, an archive of its log, a standby that is behind",
            "rows that were removed, until the server's VACUUM has written over them",
            "files and backups that were made of it before",
            "what clients and models keep of conversations outside of the memory",
        ]


def search(root: str, needles: Needles, progress: Progress | None = None) -> list[Problem]:
    """Name every file below a folder that has one of the texts, or a part of one, and where."""
    files = list(_files(root))
    found: list[Problem] = []
    for number, path in enumerate(files, 1):
        try:
            problem = _look(os.path.join(root, path), path, needles)
        except OSError as error:
            problem = Problem(path, f"could not be looked into: {error.strerror}")
        found += [problem] if problem else []
        if progress:
            progress(number, len(files))
    outside = any(not problem.path.startswith(f"{DERIVED}/") for problem in found)
    return [_followed(problem) if outside else problem for problem in found]


def _followed(problem: Problem) -> Problem:
    """Say of the index that it only has what the files have that are named as well."""
    if not problem.path.startswith(f"{DERIVED}/"):
        return problem
    return msgspec.structs.replace(problem, what=f"{problem.what}, as in the files that it follows")


def _files(root: str) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        if _GIT in folders:  # its history is compressed: told apart
            folders.remove(_GIT)
        inside = os.path.relpath(folder, root)
        for name in sorted(names):
            full = os.path.join(folder, name)
            if os.path.isfile(full) and not os.path.islink(full):
                yield os.path.normpath(os.path.join(inside, name))


def _look(full: str, path: str, needles: Needles) -> Problem | None:
    with contextlib.suppress(FileNotFoundError), open(full, "rb") as file:  # one may be removed meanwhile
        if not os.fstat(file.fileno()).st_size:
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _found(data, path, needles)
    return None


def _found(data: bytes | mmap.mmap, path: str, needles: Needles) -> Problem | None:
    for what, forms in ((WHOLE, needles.whole), (PARTLY, needles.parts)):
        at = min((place for form in forms if (place := needles.place(data, form)) >= 0), default=-1)
        if at >= 0:
            return Problem(path, what, data[:at].count(b"\n") + 1)
    return None


def temporary(root: str, prefix: str) -> list[str]:
    """Return the files that somebody did not finish writing, or is writing now."""
    return [path for path in _files(root) if os.path.basename(path).startswith(prefix)]


def out_of_reach(root: str) -> list[str]:
    """Say what may hold a text that is gone from the root."""
    found = []
    folder = root
    while True:
        if os.path.lexists(os.path.join(folder, _GIT)):
            remotes = ", and whoever it was pushed to or cloned by" if _has_remotes(folder) else ""
            found.append(
                f"the git history of {folder}, if it was committed{remotes}: git filter-repo takes it out of that"
            )
        if folder == os.path.dirname(folder):
            break
        folder = os.path.dirname(folder)
    return [
        *found,
        "backups and archives that were made before, also those of holdfast backup",
        "snapshots of the file system, and blocks of the disk that were freed and not yet written over",
        "what clients and models keep of conversations outside of the root",
    ]


def _has_remotes(folder: str) -> bool:
    try:
        with open(os.path.join(folder, _GIT, "config"), encoding="utf-8", errors="replace") as file:
            return "[remote " in file.read(1 << 20)
    except OSError:
        return False
