"""Which path has which kind, and which kind goes to which path: the `place` templates in both directions."""

from __future__ import annotations

import functools
import re

import msgspec

from holdfast.errors import Invalid
from holdfast.model import names
from holdfast.model.kinds import KINDS, Kind
from holdfast.model.scopes import DEFAULT, Scope, from_path
from holdfast.model.settings import Paths

_HOLE = re.compile(r"\{(\w+)\}")
_PATTERNS = {
    "scope": r"(?P<scope{}>[^_./][^/]*(?:/[^_./][^/]*)*)",
    "session": r"(?P<session{}>[^/]+)",
    "workspace": r"[^/]+",
    "month": r"\d{{4}}-\d{{2}}",
    "year": r"\d{{4}}",
    "name": r"(?P<name{}>[^/]+)",
    "inside": r".+",
    "any": r"(?P<name{}>.+)",
}
"""A pattern for each hole of a template; `{}` is the number of the template."""
_COPY = re.compile(
    r"(.+?)(?:\.sync-conflict-[\w-]+| \([^()/]*conflicted copy[^()/]*\))(\.\w+)|(.+\.(?:md|jsonl))\.orig", re.DOTALL
)


class Place(msgspec.Struct, frozen=True):
    """The kind, scope and name that a path implies for its records."""

    path: str
    kind: Kind
    scope: Scope
    name: str = ""


class Layout:
    """The templates of all kinds, filled in with the folders of one memory."""

    def __init__(self, paths: Paths) -> None:
        self.roots = tuple(dict.fromkeys((paths.rules, paths.memory, paths.workspaces)))
        """The folders that are always indexed."""
        self.memory = paths.memory
        self.workspaces = paths.workspaces
        self._folders = {name: getattr(paths, name) for name in paths.__struct_fields__}
        self._legacy = f"{paths.memory}/summary.md"  # left by older chat bots; it is out of date
        self._path = functools.lru_cache(maxsize=4096)(self._fill)
        self.classify = functools.lru_cache(maxsize=4096)(self._classify)
        """Return the kind, scope and name of a path, or None if the path is not part of the memory."""
        templates = [(row, place) for row in KINDS.values() for place in (row.place, row.also) if place]
        self._kinds = [row for row, _ in templates]
        patterns = []
        for number, (_, place) in enumerate(templates):
            parts = _HOLE.split(place)  # text, hole, text, hole, … text
            parts[::2] = map(re.escape, parts[::2])
            for index, hole in list(enumerate(parts))[1::2]:
                pattern = _PATTERNS.get(hole)
                parts[index] = pattern.format(number) if pattern else re.escape(self._folders[hole])
            patterns.append(f"(?P<kind{number}>{''.join(parts)})")
        self._any = re.compile("|".join(patterns))

    def _classify(self, path: str) -> Place | None:
        if path.startswith(".") or "/." in path or path == self._legacy or copy_of(path):
            return None
        found = self._any.fullmatch(path)
        if found is None or found.lastgroup is None:
            return None
        number = found.lastgroup.removeprefix("kind")
        groups = found.groupdict()
        scope = from_path(groups.get(f"scope{number}") or "")
        if session := groups.get(f"session{number}"):
            scope = msgspec.structs.replace(scope, session=session)
        return Place(path, self._kinds[int(number)], scope, groups.get(f"name{number}") or "")

    def path_for(
        self, kind: Kind, scope: Scope, name: str = "", *, month: str = "", session: str = "", workspace: str = ""
    ) -> str:
        """Return the path of a record of this kind and scope."""
        find = self._fill if name else self._path
        return find(kind.name, scope.path, name, month, session or scope.session, workspace or scope.workspace)

    def _fill(self, kind: str, scope: str, name: str, month: str, session: str, workspace: str) -> str:
        place = KINDS[kind].place
        if "{any}" in place:
            raise Invalid(f"{KINDS[kind].one} is written by its path.", "Give the path as the id.")
        folder = session_folder(session or DEFAULT) if "{session}" in place else ""
        return place.format(
            scope=scope or DEFAULT, session=folder, name=name, month=month, workspace=workspace, **self._folders
        )

    def example(self, kind: Kind) -> str:
        """Return an example path for a kind that is written by its path."""
        return kind.place.format(any="name", scope="workspace", **self._folders)

    def below(self, kinds: tuple[str, ...], scope: str, *, above: bool = False) -> tuple[str, ...]:
        """Return the files and folders that can contain records of these kinds in this scope, or in levels above it."""
        found: dict[str, None] = {}
        scopes = [scope + "/{deeper}" if scope else ""]
        scopes += from_path(scope).above if above else ()
        for row in (KINDS[name] for name in kinds or KINDS):
            for place in (row.place, row.also):
                for name, folder in self._folders.items():
                    place = place.replace("{" + name + "}", folder)
                for filled in (place.replace("{scope}", level or "{scope}") for level in scopes):
                    found[filled.split("{")[0].rpartition("/")[0] if "{" in filled else filled] = None
        tops = tuple(path for path in found if path)
        return tuple(path for path in tops if not any(path.startswith(top + "/") for top in tops))

    def watched(self, path: str) -> bool:
        """Check whether a path is in a folder that is always indexed."""
        return path.startswith(tuple(f"{root}/" for root in self.roots))

    def overview(self, scope_path: str) -> str:
        """Return the file that defines a workspace, domain or repository."""
        return f"{self.workspaces}/{scope_path}/OVERVIEW.md"


def copy_of(path: str) -> str:
    """Return the file of which Syncthing, Dropbox or git left this copy after a conflict, "" if it is none."""
    found = _COPY.fullmatch(path)
    return "".join(part or "" for part in found.groups()) if found else ""


def session_folder(session: str) -> str:
    """Return the folder of a session; different strings have different folders."""
    return f"{names.slug(session, 'session')}-{names.short_hash(session)}"
