"""A root in a database with the interface of `pathlib.Path`, so that one test runs on both engines.

A test that edits files by hand edits rows here, without going through the memory. A root can be opened like a folder
(`holdfast.open(root)`); its text is the address, which can be passed to another process. Links, permissions and other
features of a file system are missing: their tests run on files only.
"""

from __future__ import annotations

import functools
import io
import os
import pathlib
import re
import shutil
import stat
from collections.abc import Iterator
from typing import IO, Any, cast

import holdfast
from holdfast.errors import Conflict
from holdfast.model.kinds import Layout
from holdfast.model.settings import DERIVED, Paths, Settings
from holdfast.roots import is_address
from holdfast.storage.postgres.connections import Waits
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.files import PgTree, is_log
from holdfast.storage.postgres.store import PgStore
from holdfast.storage.tree import ABSENT

_VECTORS = ("embedding", "embedded")


@functools.cache
def _opened(address: str, _process: int) -> tuple[Database, PgStore]:
    database = Database(address, Waits(connections=1))
    return database, PgStore(database, Layout(Paths()), Settings(), "by hand")


def close(root: str | os.PathLike[str]) -> None:
    """Close the connection that the paths of a root share."""
    if is_address(address := os.fspath(root)):
        _opened(address, os.getpid())[0].close()


def place(memory: holdfast.Memory) -> pathlib.Path:
    """Return the path of the root of a memory, on either engine."""
    return pathlib.Path(memory.root) if memory.in_files else cast("pathlib.Path", DatabasePath(memory.root))


def drop_derived(root: os.PathLike[str]) -> None:
    """Remove everything that is derived from the files: the index and the vectors."""
    if isinstance(root, DatabasePath):
        root.empty(*_VECTORS, "term", "stat")
    else:
        shutil.rmtree(pathlib.Path(root) / DERIVED, ignore_errors=True)


def drop_vectors(root: os.PathLike[str]) -> None:
    """Remove the vectors, but not the index."""
    if isinstance(root, DatabasePath):
        root.empty(*_VECTORS)
    else:
        for path in (pathlib.Path(root) / DERIVED).glob("vectors-*"):
            path.unlink()


def in_files(path: pathlib.Path) -> bool:
    """Return whether a path is on disk, where links, empty folders and names that are not UTF-8 are possible."""
    return not isinstance(path, DatabasePath)


def named(text: str) -> pathlib.Path:
    """Return the path for the text that another process passed on."""
    address, _, path = text.partition(" ")
    return cast("pathlib.Path", DatabasePath(address, path)) if is_address(text) else pathlib.Path(text)


def set_time(path: pathlib.Path, ns: int) -> None:
    """Set the modification time of a file; that of a row is the time of its id."""
    if not isinstance(path, DatabasePath):
        os.utime(path, ns=(ns, ns))


def copy(source: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Copy a root without `.holdfast/`, from either engine to either; modification times are preserved."""
    for file in source.rglob("*"):
        there = target / str(file.relative_to(source))
        if ".holdfast" in there.parts:
            continue
        if file.is_dir():
            there.mkdir(parents=True, exist_ok=True)
        else:
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(file.read_bytes())
            set_time(there, file.stat().st_mtime_ns)
    return target


def remove(folder: pathlib.Path) -> None:
    """Remove a folder and its content."""
    if in_files(folder):
        shutil.rmtree(folder)
    else:
        for file in folder.rglob("*"):
            file.unlink(missing_ok=True)


class DatabasePath(os.PathLike[str]):
    """A path in a memory of a database; the root itself has an empty one."""

    def __init__(self, address: str, path: str = "") -> None:
        self._address = address
        self._path = path

    # names

    def __fspath__(self) -> str:
        if self._path:
            raise TypeError(f"{self._path} is in a database, not in a file")
        return self._address

    def __str__(self) -> str:
        return self._address if not self._path else f"{self._address} {self._path}"

    def __repr__(self) -> str:
        return f"DatabasePath({self._path!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DatabasePath) and (self._address, self._path) == (other._address, other._path)

    def __hash__(self) -> int:
        return hash((self._address, self._path))

    def __lt__(self, other: DatabasePath) -> bool:
        return self._path < other._path

    def __truediv__(self, inner: str | os.PathLike[str]) -> DatabasePath:
        return self._at(str(pathlib.PurePosixPath(self._path) / os.fspath(inner)))

    joinpath = __truediv__

    def relative_to(self, other: DatabasePath) -> pathlib.PurePosixPath:
        return pathlib.PurePosixPath(self._path).relative_to(other._path)

    def is_relative_to(self, other: DatabasePath) -> bool:
        return pathlib.PurePosixPath(self._path).is_relative_to(other._path)

    def with_name(self, name: str) -> DatabasePath:
        return self._at(str(pathlib.PurePosixPath(self._path).with_name(name)))

    @property
    def name(self) -> str:
        return pathlib.PurePosixPath(self._path).name

    @property
    def stem(self) -> str:
        return pathlib.PurePosixPath(self._path).stem

    @property
    def suffix(self) -> str:
        return pathlib.PurePosixPath(self._path).suffix

    @property
    def parts(self) -> tuple[str, ...]:
        return pathlib.PurePosixPath(self._path).parts

    def with_suffix(self, suffix: str) -> DatabasePath:
        return self._at(str(pathlib.PurePosixPath(self._path).with_suffix(suffix)))

    @property
    def parent(self) -> DatabasePath:
        return self._at(str(pathlib.PurePosixPath(self._path).parent))

    def resolve(self) -> DatabasePath:
        return self

    def _at(self, path: str) -> DatabasePath:
        return DatabasePath(self._address, "" if path == "." else path)

    # what is there

    @property
    def _tree(self) -> PgTree:
        return _opened(self._address, os.getpid())[1].tree

    def rows(self, statement: str, **values: object) -> list[Any]:
        """Return the rows of a query as this tenant."""
        return _opened(self._address, os.getpid())[0].ask("a test", statement, **values)

    def empty(self, *tables: str) -> None:
        """Delete the rows of this tenant from tables."""
        for table in tables:
            self.change(f"DELETE FROM holdfast.{table} WHERE tenant = %(tenant)s")

    def _files(self) -> list[str]:
        below = self._path and f"{self._path}/"
        return sorted(path for path, _ in self._tree.walk("", ("",), lambda *_: None) if path.startswith(below))

    def is_file(self) -> bool:
        return bool(self._path) and not self.is_dir() and self._tree.stat(self._path) is not None

    def is_dir(self) -> bool:
        return not self._path or bool(self._files())

    def exists(self) -> bool:
        return self.is_dir() or self.is_file()

    def is_symlink(self) -> bool:
        return False

    def stat(self) -> os.stat_result:
        found = self._tree.stat(self._path)
        if found is None:
            raise FileNotFoundError(self._path)
        seconds, exact = found.mtime / 1e9, {"st_mtime_ns": found.mtime}
        mode = stat.S_IFREG | 0o644
        return os.stat_result((mode, found.inode, 0, 1, 0, 0, found.size, seconds, seconds, seconds), exact)

    def glob(self, pattern: str) -> Iterator[DatabasePath]:
        """Yield the files and folders below this one that match a pattern, sorted."""
        start = self._path and f"{self._path}/"
        inner = [path.removeprefix(start) for path in self._files()]
        folders = {str(above) for path in inner for above in pathlib.PurePosixPath(path).parents} - {"."}
        wanted = re.compile(_expression(pattern))
        yield from (self._at(start + path) for path in sorted({*inner, *folders}) if wanted.fullmatch(path))

    def rglob(self, pattern: str) -> Iterator[DatabasePath]:
        return self.glob(f"**/{pattern}")

    def iterdir(self) -> Iterator[DatabasePath]:
        return self.glob("*")

    # bytes

    def read_bytes(self) -> bytes:
        if not self.is_file():
            raise FileNotFoundError(self._path)
        return self._tree.read(self._path).data

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self.read_bytes().decode(encoding, errors).replace("\r\n", "\n")

    def write_bytes(self, data: bytes) -> int:
        if is_log(self._path):
            self.unlink(missing_ok=True)
            self._import(data)
            return len(data)
        while True:
            expect = self._tree.read(self._path).version if self.is_file() else ABSENT
            try:
                self._tree.write(self._path, data, expect=expect)
                return len(data)
            except Conflict:
                continue

    def _import(self, data: bytes) -> None:
        _opened(self._address, os.getpid())[1].import_lines(self._path, data.splitlines())

    def keep(self, data: bytes, start: bytes | None) -> None:
        """Write a file; if whole lines were added to `start`, append them."""
        if start is None or not is_log(self._path) or (start and not start.endswith(b"\n")):
            self.write_bytes(data)
        elif added := data[len(start) :]:
            self._import(added)

    def write_text(self, text: str, encoding: str = "utf-8") -> int:
        return self.write_bytes(text.encode(encoding))

    def touch(self) -> None:
        if not self.is_file():
            self.write_bytes(b"")

    def unlink(self, missing_ok: bool = False) -> None:
        if self.is_file():
            self._tree.remove(self._path)
        elif not missing_ok:
            raise FileNotFoundError(self._path)

    def rename(self, target: DatabasePath) -> DatabasePath:
        target.unlink(missing_ok=True)
        for path in [self._path] if self.is_file() else self._files():
            source, there = self._at(path), self._at(target._path + path.removeprefix(self._path))
            there.write_bytes(source.read_bytes())
            source.unlink()
        return target

    replace = rename

    def change(self, statement: str, **values: object) -> None:
        """Change rows directly."""
        _opened(self._address, os.getpid())[0].write("a file", [(statement, {"path": self._path, **values})])

    def mkdir(self, *_given: object, **_named: object) -> None:
        """Do nothing: a folder exists as soon as a file is in it."""

    def open(self, mode: str = "r", encoding: str = "utf-8") -> IO[Any]:
        raw = _Edited(self, mode)
        return raw if "b" in mode else io.TextIOWrapper(raw, encoding=encoding, write_through=True)


class _Edited(io.BytesIO):
    """The bytes of an open file; they are written when it is closed, if it was opened for writing."""

    def __init__(self, path: DatabasePath, mode: str) -> None:
        there = b"" if "w" in mode or not path.is_file() else path.read_bytes()
        super().__init__(there)
        self._target, self._there, self._mode = path, there, mode
        self._writes = mode.strip("bt") != "r"
        if "a" in mode:
            self.seek(0, io.SEEK_END)

    def truncate(self, size: int | None = None) -> int:
        wanted = self.tell() if size is None else size
        if missing := wanted - len(self.getbuffer()):
            start = self.tell()
            self.seek(0, io.SEEK_END)
            self.write(bytes(max(missing, 0)))
            self.seek(start)
        return super().truncate(wanted)

    def close(self) -> None:
        if self._writes and not self.closed:
            self._target.keep(self.getvalue(), self._there if "a" in self._mode else None)
        super().close()


def _expression(pattern: str) -> str:
    """Return the regular expression of a pattern: * matches within one name, ** any number of folders."""
    parts = re.split(r"(\*\*/|\*|\?)", pattern)
    meant = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return "".join(meant.get(part, re.escape(part)) for part in parts)
