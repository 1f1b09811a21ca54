"""The tree for a scoped token: one workspace, domain or repository, and nothing else.

Everything is denied unless it is named here, so a new place is denied until it is added. Two kinds of logs
are shared by all scopes: the write log and the traces of a workspace. Lines about the scope can be added to them. On
reading, lines about other scopes are blanked out; of the traces, only those of callers bound to the scope are shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import msgspec

from holdfast.errors import HoldfastError, Invalid, NotFound
from holdfast.formats import jsonl
from holdfast.model.kinds import Layout
from holdfast.model.patterns import regex
from holdfast.storage.files.log import LogEnd
from holdfast.storage.files.tree import Files
from holdfast.storage.tree import Document, Line, Snapshot, Stamp

_BOTH = ("workspace", "bound")
"""The workspace of a call and the scope its caller was bound to: both must be inside."""
_ODD = ("", ".", "..")
_MONTH = regex(r"\d{4}-\d{2}\.jsonl\Z", re.ASCII)


class ScopedTree:
    """One scope of a tree. Closing it leaves the tree open."""

    def __init__(self, tree: FileTree, places: Layout, scope: str) -> None:
        self.location: str = tree.location
        self._tree = tree
        self._scope = scope
        self._tops = (f"{places.workspaces}/{scope}", f"{places.memory}/workspaces/{scope}")
        self._writes = f"{places.memory}/writes"
        self._traces = f"{places.memory}/traces/{scope.partition('/')[0]}"
        self._kept = f"{self._writes}/kept/"

    def _is_inside(self, path: str) -> bool:
        return _is_plain(path) and any(_within(path, top) for top in self._tops)

    def _is_shared(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        return folder in (self._writes, self._traces) and bool(_MONTH.match(name))

    def _is_about_us(self, path: str, line: bytes) -> bool:
        """Is a line of a shared log about this scope? False for an unreadable line."""
        values = jsonl.parse(line)
        if not isinstance(values, list) or not values:
            return False
        if path.startswith(f"{self._traces}/"):
            return all(_within(str(value.get(name) or ""), self._scope) for value in values for name in _BOTH)
        return all(self._is_inside(str(value.get("path") or "")) for value in values)

    def _seen(self, path: str) -> str:
        if not self._is_inside(path):
            raise NotFound(f"{path} does not exist.", "Check the path.")
        return path

    def _seen_log(self, path: str) -> str:
        return path if self._is_shared(path) else self._seen(path)

    def _changed(self, path: str) -> str:
        if not self._is_inside(path):
            raise self._refusal()
        return path

    def _keeps(self, keep: str) -> str:
        if keep and not (_is_plain(keep) and keep.startswith(self._kept)):
            raise self._refusal()
        return keep

    def _refusal(self) -> HoldfastError:
        return Invalid(
            f"This does not belong to {self._scope}, and your token is for {self._scope} alone.",
            f"Use notes, decisions, lessons, plans, skills and states of {self._scope}, or ask for another token.",
        )

    # reading

    def read(self, path: str, limit: int = 0) -> Document:
        return self._tree.read(self._seen(path), limit)

    def snapshot(self, path: str, *, log: bool = False) -> AbstractContextManager[Snapshot]:
        return self._tree.snapshot(self._seen(path), log=log)

    def scan(self, path: str, offset: int = 0, end: int | None = None) -> Iterator[Line]:
        return self._shown(self._seen_log(path), self._tree.scan(path, offset, end))

    def scan_back(self, path: str) -> Iterator[Line]:
        return self._shown(self._seen_log(path), self._tree.scan_back(path))

    def _shown(self, path: str, lines: Iterator[Line]) -> Iterator[Line]:
        """Yield lines; those of a shared log about other scopes keep their offsets and lose their text."""
        if not self._is_shared(path):
            yield from lines
            return
        for line in lines:
            if not line.cut and self._is_about_us(path, line.data):
                yield line
            else:
                yield msgspec.structs.replace(line, data=b"", cut=False, veiled=True)

    def fingerprint(self, path: str, start: int, end: int, checksum: int = 0) -> int:
        return self._tree.fingerprint(self._seen_log(path), start, end, checksum)

    def stat(self, path: str) -> Stamp | None:
        return self._tree.stat(path) if self._is_inside(path) or self._is_shared(path) else None

    def walk(
        self, folder: str, suffixes: tuple[str, ...], blocked: Callable[[str, str], None],
        linked: Callable[[str], None] = lambda _path: None,
    ) -> Iterator[tuple[str, Stamp]]:  # fmt: skip
        shown = (*self._tops, self._writes, self._traces)
        if any(_within(folder, top) for top in shown):
            starts: tuple[str, ...] = (folder,)
        else:
            starts = tuple(top for top in shown if _within(top, folder))
        for start in starts:
            for path, stamp in self._tree.walk(start, suffixes, blocked, linked):
                if self._is_inside(path) or self._is_shared(path):
                    yield path, stamp

    def folders(self, folder: str) -> list[str]:
        if self._is_inside(folder):
            return self._tree.folders(folder)
        below = f"{folder}/" if folder else ""
        ways = {top.removeprefix(below).partition("/")[0] for top in self._tops if top.startswith(below)}
        return [name for name in self._tree.folders(folder) if name in ways] if ways else []

    def folder_stamp(self, folder: str) -> int:
        if self._is_inside(folder):
            return self._tree.folder_stamp(folder)
        stamps = [self._tree.folder_stamp(top) for top in self._tops if _within(top, folder)]
        return max(stamps, default=0)

    def target(self, path: str) -> str | None:
        return self._tree.target(path) if self._is_inside(path) else None

    # writing

    def write(self, path: str, data: bytes, *, expect: str, keep: str = "") -> str:
        return self._tree.write(self._changed(path), data, expect=expect, keep=self._keeps(keep))

    def keep_copy(self, path: str, data: bytes, keep: str) -> None:
        self._tree.keep_copy(self._changed(path), data, self._keeps(keep))

    def versions(self, paths: Sequence[str]) -> dict[str, str]:
        return self._tree.versions([path for path in paths if self._is_inside(path)])

    def create_all(self, files: Mapping[str, bytes]) -> set[str]:
        return self._tree.create_all({self._changed(path): data for path, data in files.items()})

    def append(self, path: str, compose: Callable[[LogEnd], bytes], *, durable: bool = True) -> range | None:
        if not self._is_shared(path):
            return self._tree.append(self._changed(path), compose, durable=durable)

        def checked(end: LogEnd) -> bytes:
            data = compose(end)
            if not all(self._is_about_us(path, line) for line in data.splitlines()):
                raise self._refusal()
            return data

        return self._tree.append(path, checked, durable=durable)

    def heal(self, path: str) -> None:
        if self._is_inside(path):
            self._tree.heal(path)

    def rewrite(self, path: str, change: Callable[[bytes], bytes]) -> int:
        return self._tree.rewrite(self._changed(path), change)

    def make_folder(self, folder: str) -> None:
        self._tree.make_folder(self._changed(folder))

    def hold(self, path: str, among: str) -> Callable[[], None] | None:
        return self._tree.hold(self._changed(path), self._changed(among))

    def remove(self, path: str, *, expect: str = "", keep: str = "") -> None:
        self._tree.remove(self._changed(path), expect=expect, keep=self._keeps(keep))

    def close(self) -> None:
        pass


FileTree = Files | ScopedTree
"""A folder of files, or one scope of it."""


def _is_plain(path: str) -> bool:
    return not any(part in _ODD for part in path.split("/"))


def _within(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")
