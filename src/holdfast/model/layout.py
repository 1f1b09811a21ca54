"""Which path is which kind, and which kind goes to which path: the `place` templates, in both directions."""

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
    "scope": r"(?P<scope>[^_./][^/]*(?:/[^_./][^/]*)*)",
    "session": r"(?P<session>[^/]+)",
    "workspace": r"(?P<workspace>[^/]+)",
    "month": r"(?P<month>\d{4}-\d{2})",
    "year": r"\d{4}",
    "name": r"(?P<name>[^/]+)",
    "inside": r".+",
    "any": r"(?P<name>.+)",
}


class Place(msgspec.Struct, frozen=True):
    """What a path says about the records in it."""

    path: str
    kind: Kind
    scope: Scope
    name: str = ""


class Places:
    """The kinds' templates, filled in with one root's settings."""

    def __init__(self, paths: Paths) -> None:
        self.roots = tuple(dict.fromkeys((paths.rules, paths.memory, paths.workspaces)))
        """Where memory lies that is always looked at."""
        self.memory = paths.memory
        self.workspaces = paths.workspaces
        self._folders = {name: getattr(paths, name) for name in paths.__struct_fields__}
        self._legacy = f"{paths.memory}/summary.md"  # written by older chat bots, and wrong since
        self._path = functools.lru_cache(maxsize=4096)(self._fill)
        self.classify = functools.lru_cache(maxsize=4096)(self._classify)
        """Say what the file at a path is; None when it is no memory at all, as nothing with a leading dot is."""
        self._templates = [
            (row, re.compile(self._pattern(place)))
            for row in KINDS.values()
            for place in (row.place, row.also)
            if place
        ]

    def _classify(self, path: str) -> Place | None:
        if path.startswith(".") or "/." in path or path == self._legacy:
            return None
        for kind, pattern in self._templates:
            if found := pattern.fullmatch(path):
                groups = found.groupdict()
                scope = from_path(groups.get("scope") or "")
                if session := groups.get("session"):
                    scope = msgspec.structs.replace(scope, session=session)
                return Place(path, kind, scope, groups.get("name") or "")
        return None

    def path_for(
        self, kind: Kind, scope: Scope, name: str = "", *, month: str = "", session: str = "", workspace: str = ""
    ) -> str:
        """Return where a record of this kind and scope belongs."""
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
        """Return a path that fits a kind which is written by its path."""
        return kind.place.format(any="name", scope="workspace", **self._folders)

    def below(self, kinds: tuple[str, ...], scope: str, *, above: bool = False) -> tuple[str, ...]:
        """Return the files and folders in which records of these kinds and this scope, or levels above, can lie."""
        found: dict[str, None] = {}
        scopes = [scope + "/{deeper}" if scope else ""]
        scopes += from_path(scope).above if above else ()
        for name in kinds or KINDS:
            for place in (KINDS[name].place, KINDS[name].also):
                for filled in (place.format_map(_Holes(self._folders, level)) for level in scopes):
                    found[filled.split("{")[0].rpartition("/")[0] if "{" in filled else filled] = None
        tops = tuple(path for path in found if path)
        return tuple(path for path in tops if not any(path.startswith(top + "/") for top in tops))

    def watched(self, path: str) -> bool:
        """Does this path lie where memory is always looked at?"""
        return path.startswith(tuple(f"{root}/" for root in self.roots))

    def overview(self, scope_path: str) -> str:
        """Return the file that *is* the workspace, domain or repository."""
        return f"{self.workspaces}/{scope_path}/OVERVIEW.md"

    def _pattern(self, place: str) -> str:
        parts = []
        position = 0
        for hole in _HOLE.finditer(place):
            parts.append(re.escape(place[position : hole.start()]))
            name = hole.group(1)
            parts.append(_PATTERNS.get(name) or re.escape(self._folders[name]))
            position = hole.end()
        return "".join(parts) + re.escape(place[position:])


class _Holes(dict[str, str]):
    """Fills in the folders, and the scope if there is one; other holes stay holes."""

    def __init__(self, folders: dict[str, str], scope: str) -> None:
        super().__init__(folders)
        self._scope = scope

    def __missing__(self, name: str) -> str:
        return self._scope if name == "scope" and self._scope else "{" + name + "}"


def session_folder(session: str) -> str:
    """Return the folder of a session: the same string always, two strings never."""
    return f"{names.slug(session, 'session')}-{names.short_hash(session)}"
