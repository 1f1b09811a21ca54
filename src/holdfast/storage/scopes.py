"""Resolve the name of a workspace, domain or repository to a scope, for every interface.

At each level the exact folder name is tried first, then the exact `id` in an overview, then names compared without
case: the folder's, then the one in its overview. A repository without its domain is accepted when it is unique. A name
with a slash is a path, else the name of a workspace. `default` always exists. An unknown name is an error, never an
empty answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.errors import Invalid, NotFound, OverBudget
from holdfast.formats import markdown
from holdfast.model import names
from holdfast.model.kinds import Layout
from holdfast.model.records import DEFAULT, LEVELS, Scope, from_path, split
from holdfast.storage.tree import Tree

_MOST = 1 << 20
_NEXT = "Use listWorkspaces to see available workspaces."


class Scopes:
    """The workspaces, domains and repositories that exist now."""

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
                raise self._unknown(level, path, name)
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
            what = f"The {level} was given without its workspace." if level else "The scope names no workspace."
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
        if folder in known and self._begun(f"{parent}/{folder}".lstrip("/"), name):
            taken.discard(folder)
        if folder in taken or folder in _RESERVED:
            folder = names.unique(name, "workspace", ignore_case=True)
        return f"{parent}/{folder}".lstrip("/")

    def _begun(self, path: str, name: str) -> bool:
        """Is this folder being made for this name, perhaps by a process that died? Then it is empty or has the name."""
        places = (self._layout.workspaces, f"{self._layout.memory}/workspaces")
        within = (self._tree.walk(f"{place}/{path}", ("",), lambda _path, _why: None) for place in places)
        return not any(True for found in within for _ in found) or names.same(self.name(path)) == names.same(name)

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
            return markdown.parse(self._tree.read(self._layout.overview(path), _MOST).data).fields
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

    def _unknown(self, level: int, path: str, name: str) -> NotFound:
        hint = names.close_to(
            name,
            [form for folder in self.children(path) for form in (folder, self.name(f"{path}/{folder}".lstrip("/")))],
        )
        if level == 0:
            return NotFound(f'Workspace "{name}" not found.', _NEXT + hint)
        known = ", ".join(self.children(path)) or "none"
        return NotFound(f'{LEVELS[level].title()} "{name}" not found in {path}.', f"There are: {known}.{hint}")


_RESERVED = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10))}
)
