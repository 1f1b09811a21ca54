"""The files of a memory: documents and logs as paths and bytes, large values, and scopes as folders.

A path is relative to the root, with `/`, in any engine. A document is read whole with its version and written whole
from a version; a log grows by whole lines. `write` and `append` return only when the change is durable. When the root
itself is gone, every call raises `RootGone`, so that "gone" is never mistaken for "empty". `tests/contract/` is the
contract of every engine.

A value is a large text of a log entry in a file of its own. Its name is a hash of its text, so it never changes and is
stored once. A large one is compressed (`.txt.gz`); the name of an encrypted one (`.txt.enc`) depends on the key too.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from holdfast.errors import AlreadyExists, Conflict, Damaged, Invalid, NotFound, OverBudget, Unavailable
from holdfast.formats import encryption, markdown
from holdfast.model import names
from holdfast.model.kinds import Layout
from holdfast.model.patterns import regex
from holdfast.model.records import DEFAULT, LEVELS, Scope, from_path, split, version_of
from holdfast.model.settings import Settings

ABSENT = ""
"""The version of a document that does not exist: `write(expect=ABSENT)` creates and never replaces."""
YOUNG_NS = 2_000_000_000
"""A file or folder that changed less than this before its check may change again without a new stamp."""


class RootGone(Unavailable):
    """The whole tree is unreachable."""


class Stamp(msgspec.Struct, frozen=True):
    """The cheap facts about a file; two equal stamps very likely mean the same bytes."""

    size: int
    mtime: int
    ctime: int
    inode: int


class Document(msgspec.Struct, frozen=True):
    data: bytes
    version: str
    stamp: Stamp


class Line(msgspec.Struct, frozen=True):
    """One line of a log, without its newline. `cut` means that it was longer than allowed and was skipped."""

    offset: int
    data: bytes
    end: int
    """Where the next line starts."""
    whole: bool = True
    """False for a last line without a newline."""
    cut: bool = False
    veiled: bool = False
    """Its text is withheld because it belongs to another scope."""


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot of a file: `chunks` yields exactly `size` bytes, once."""

    size: int
    mtime: int
    chunks: Iterator[bytes]


class Tree(Protocol):
    location: str
    """The location for display."""

    def read(self, path: str, limit: int = 0) -> Document:
        """Return a document; NotFound if it does not exist, OverBudget if it is larger than `limit`."""

    def write(self, path: str, data: bytes, *, expect: str, keep: str = "") -> str:
        """Replace (or create) a document made from version `expect`; return its version.

        Conflict and AlreadyExists change nothing. `keep` is a path under which the replaced bytes stay.
        """

    def versions(self, paths: Sequence[str]) -> dict[str, str]:
        """Return the versions of those of these documents that exist."""

    def create_all(self, files: Mapping[str, bytes]) -> set[str]:
        """Create documents durably, without replacing any, and return the paths of those that were created."""

    def rewrite(self, path: str, change: Callable[[bytes], bytes]) -> int:
        """Replace lines of a log, all at once and durably; return how many changed.

        `change` receives each line without its newline and returns the new one. This is the one exception to "logs only
        grow". Lines that are appended at the same time are kept, and a reader sees the old log or the new one. A
        shorter line is padded with spaces, so that offsets stay valid.
        """

    def snapshot(self, path: str, *, log: bool = False) -> AbstractContextManager[Snapshot]:
        """Open a file as it is now; a log up to its last whole line."""

    def scan(self, path: str) -> Iterator[Line]:
        """Yield the lines of a log, in order."""

    def scan_back(self, path: str) -> Iterator[Line]:
        """Yield the lines of a log from its end, last line first."""

    def stat(self, path: str) -> Stamp | None:
        """Return the stamp of a file, None if it does not exist."""

    def walk(
        self, folder: str, suffixes: tuple[str, ...], blocked: Callable[[str, str], None],
        linked: Callable[[str], None] = lambda _path: None,
    ) -> Iterator[tuple[str, Stamp]]:  # fmt: skip
        """Yield every file below a folder, or the file itself; report unreadable ones to `blocked(path, why)`.

        `linked(path)` receives every link that was followed.
        """

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in a folder, sorted; [] when it does not exist."""

    def folder_stamp(self, folder: str) -> int:
        """Return a number that changes when a file in a folder is added or removed; 0 without the folder."""

    def make_folder(self, folder: str) -> None:
        """Make a folder and its parents; a database has no folders and does nothing."""

    def target(self, path: str) -> str | None:
        """Return the target of a symbolic link, None when the path is not one."""

    def remove(self, path: str, *, expect: str = "", keep: str = "") -> None:
        """Remove a file, of version `expect` if given; NotFound when it does not exist.

        Conflict changes nothing. `keep` is a path under which the bytes stay.
        """


class Folder(Tree, Protocol):
    """A folder of the file system, which is a memory or not."""

    def create(self, path: str, chunks: Iterable[bytes], *, mtime: int = 0, durable: bool = True) -> None:
        """Create a file from pieces; it appears when it is complete and never replaces another.

        With `durable=False` it becomes durable with `settle`, for many files that are valid only together.
        """

    def settle(self) -> None:
        """Make all earlier writes durable."""

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link to this target; AlreadyExists when the path is taken."""

    def move(self, source: str, target: str) -> None:
        """Rename a file; AlreadyExists when the new path is taken."""

    def close(self) -> None: ...


def changed(name: str, expect: str) -> Conflict:
    """Return the error for a document or section that no longer has the expected version."""
    return Conflict(
        f"{name} was changed since version {expect[:8]}; nothing was written.", "Read it again and redo the edit."
    )


# values: large texts of log entries, one file each

VALUE_SUFFIXES = (".txt", ".txt.gz", ".txt.enc", ".json")
_REF = regex(r"(?:sessions/[^/]+/)?values/[0-9a-f]{32}\.(?:txt(?:\.gz|\.enc)?|json)")
_GZIP = b"\x1f\x8b"
"""No UTF-8 text begins like this."""
_MOST_UNPACKED = 256 << 20


def is_value(path: str, memory: str) -> bool:
    """Is this the path of a value? `memory` is the folder of the memory."""
    return path.startswith(f"{memory}/") and bool(_REF.fullmatch(path, len(memory) + 1))


def write_value(tree: Tree, folder: str, text: str, settings: Settings) -> str:
    """Store a text in a file below a folder, unless it exists already; return the path."""
    data = text.encode("utf-8")
    name, suffix, stored = version_of(data), ".txt", data
    if 0 < settings.limits.compress_bytes <= len(data):
        import gzip

        packed = gzip.compress(data, 3, mtime=0)
        suffix, stored = (".txt.gz", packed) if len(packed) < len(data) else (suffix, data)
    if "values" in settings.encryption.what:
        name, suffix = encryption.digest(data, b"name").hex(), ".txt.enc"
        stored = b"".join(encryption.encrypt([stored], encryption.digest(stored, b"salt")))
    ref = f"{folder}/values/{name}{suffix}"
    with contextlib.suppress(AlreadyExists):
        tree.write(ref, stored, expect=ABSENT)
    return ref


def read_value(tree: Tree, ref: str, limit: int = 0) -> str:
    """Return the text of a value; OverBudget when it is longer than `limit` bytes, Locked without its key."""
    return unpack_value(tree.read(ref, limit).data, ref, limit).decode("utf-8", "replace")


def unpack_value(data: bytes, ref: str, limit: int = 0) -> bytes:
    """Return the text in the bytes of a file."""
    if data.startswith(encryption.MAGIC):
        data = b"".join(encryption.decrypt([data], ref))
    if not data.startswith(_GZIP):
        return data
    most, packed = limit or _MOST_UNPACKED, zlib.decompressobj(31)
    try:
        text = packed.decompress(data, most + 1)
    except zlib.error:
        raise Damaged(f"{ref} is compressed, and damaged.", "Use another copy of it.") from None
    if len(text) > most:
        raise OverBudget(f"{ref} has more than {most:,} bytes; that is the limit.", "Raise limits.document_bytes.")
    if not packed.eof:
        raise Damaged(f"{ref} is compressed, and cut off.", "Use another copy of it.")
    return text


# scopes: workspaces, domains and repositories

_MOST_OVERVIEW = 1 << 20
_LIST = "Use listWorkspaces to see available workspaces."
_RESERVED = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10))}
)


class Scopes:
    """The workspaces, domains and repositories that exist now, and the one resolver of their names.

    At each level the exact folder name is tried first, then the exact `id` in an overview, then names compared without
    case: the folder's, then the one in its overview. A repository without its domain is accepted when it is unique. A
    name with a slash is a path, else the name of a workspace. `default` always exists. An unknown name is an error.
    """

    def __init__(self, tree: Tree, places: Layout) -> None:
        self._tree = tree
        self._layout = places

    def resolve(self, given: str | Scope | None) -> Scope:
        """Return the scope of a name or path; None is the workspace `default`."""
        if isinstance(given, Scope):
            scope = self.resolve(given.path or None)
            return msgspec.structs.replace(scope, session=given.session, run=given.run)
        if given is None or given == DEFAULT:
            return Scope(DEFAULT)
        try:
            return self._resolve(given)
        except (NotFound, Invalid):
            if "/" in given and (found := self._child("", given)):
                return from_path(found)
            raise

    def _resolve(self, given: str) -> Scope:
        """Return the scope of a path of one to three names."""
        wanted = split(given)
        path = ""
        for level, name in enumerate(wanted):
            found = self._child(path, name)
            if not found and level == 1 and len(wanted) == 2:
                found = self._grandchild(path, name)
            if not found and not (level == 0 and names.same(name) == DEFAULT):
                there = self.children(path)
                forms = (form for each in there for form in (each, self.name(f"{path}/{each}".lstrip("/"))))
                hint = names.close_to(name, forms)
                if level == 0:
                    raise NotFound(f'Workspace "{name}" not found.', _LIST + hint)
                advice = f"There are: {', '.join(there) or 'none'}.{hint}"
                raise NotFound(f'{LEVELS[level].title()} "{name}" not found in {path}.', advice)
            path = f"{path}/{found or DEFAULT}".lstrip("/")
        return from_path(path)

    def within(self, workspace: str, domain: str = "", repository: str = "") -> Scope:
        """Return the scope of these names, each at its own level; a repository may leave its domain out."""
        if "/" in workspace:
            workspace = self._child("", workspace) or workspace
        for name in (workspace, domain, repository):
            if "/" in name:
                raise Invalid(f'"{name}" has a slash.', "Give workspace, domain and repository one by one.")
        if not workspace.strip():
            level = "domain" if domain else "repository" if repository else ""
            what = f"The {level} was given without its workspace." if level else "The scope has no workspace."
            raise Invalid(what, "Give scope.workspace, or workspaceId in the context.")
        if repository and not domain:
            path = self.resolve(workspace).path
            split(repository)
            if found := self._grandchild(path, repository):
                return from_path(f"{path}/{found}")
            known = [f"{each}/{name}" for each in self.children(path) for name in self.children(f"{path}/{each}")]
            hint = names.close_to(repository, [name.rpartition("/")[2] for name in known])
            advice = f"There are: {', '.join(known) or 'none'}.{hint}"
            raise NotFound(f'Repository "{repository}" not found in {path}.', advice)
        return self.resolve("/".join(name for name in (workspace, domain, repository) if name))

    def folder_for(self, name: str, parent: str = "") -> str:
        """Return the path of a new workspace, domain or repository of this name."""
        folder = names.slug(name, "workspace")
        known = self.children(parent)
        taken = {names.same(other) for other in known}
        if folder in known:
            path = f"{parent}/{folder}".lstrip("/")
            places = (self._layout.workspaces, f"{self._layout.memory}/workspaces")
            found = (self._tree.walk(f"{place}/{path}", ("",), lambda _path, _why: None) for place in places)
            # a process may have died while it made the folder for this name: then it is empty or has the name
            if not any(True for each in found for _ in each) or names.same(self.name(path)) == names.same(name):
                taken.discard(folder)
        if folder in taken or folder in _RESERVED:
            folder = names.unique(name, "workspace", ignore_case=True)
        return f"{parent}/{folder}".lstrip("/")

    def children(self, path: str) -> list[str]:
        """Return the folder names one level below, workspaces for ""; folders with learnings only count too."""
        places = (self._layout.workspaces, f"{self._layout.memory}/workspaces")
        return sorted({name for place in places for name in self._tree.folders(f"{place}/{path}".rstrip("/"))})

    def name(self, path: str) -> str:
        """Return the name in the overview, or the folder's."""
        named = self._front(path).get("name")
        return named if isinstance(named, str) and named.strip() else path.rpartition("/")[2]

    def _front(self, path: str) -> Mapping[str, Any]:
        """Return the front matter of the overview, empty if there is none."""
        with contextlib.suppress(NotFound, Invalid, OverBudget):
            return markdown.parse(self._tree.read(self._layout.overview(path), _MOST_OVERVIEW).data).fields
        return {}

    def _child(self, path: str, name: str) -> str:
        known = self.children(path)
        if name in known:
            return name
        wanted, fronts = names.same(name), {folder: self._front(f"{path}/{folder}".lstrip("/")) for folder in known}

        def field(folder: str, field: str) -> str:
            value = fronts[folder].get(field)
            return str(value) if isinstance(value, str | int) else ""

        forms: tuple[Callable[[str], bool], ...] = (
            lambda folder: field(folder, "id") == name,
            lambda folder: names.same(folder) == wanted,
            lambda folder: names.same(field(folder, "name")) == wanted,
        )
        for form in forms:
            found = [folder for folder in known if form(folder)]
            if len(found) > 1:
                raise Invalid(f'"{name}" names several: {", ".join(found)}.', "Use the folder's name.")
            if found:
                return found[0]
        return ""

    def _grandchild(self, workspace: str, name: str) -> str:
        """Return `domain/repository` for a repository that was named without its domain."""
        found = [
            f"{domain}/{repository}"
            for domain in self.children(workspace)
            if (repository := self._child(f"{workspace}/{domain}", name))
        ]
        if len(found) > 1:
            raise Invalid(f'Repository "{name}" is in several domains: {", ".join(found)}.', "Name the domain too.")
        return found[0] if found else ""
