"""Workspaces: a workspace *is* its `OVERVIEW.md`, with the fields in front matter and the person's own text below.

A folder that somebody made by hand is a workspace too. Nothing is deleted: archiving hides it from lists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from holdfast.core import Core
from holdfast.errors import AlreadyExists, Invalid, NotFound
from holdfast.formats import markdown
from holdfast.model import names
from holdfast.model.records import Draft
from holdfast.storage.parsing import is_archived

FIELDS = ("description", "rootFolder", "purpose", "workflows", "keyFiles", "preferences")
"""What a workspace says of itself beside its name; also the names in its front matter."""
_ABSENT: Mapping[str, Any] = {"workflows": [], "keyFiles": [], "preferences": {}}


class Workspaces:
    def __init__(self, memory: Core) -> None:
        self._memory = memory

    def create(self, name: str, fields: Mapping[str, Any], op_id: str = "") -> None:
        """Make a workspace of these `FIELDS`; its name must not be taken, not by an archived one either."""
        _check_name(name)
        kept = {field: value for field, value in fields.items() if value is not None}
        kept["rootFolder"] = _root_folder(kept["rootFolder"])
        if self._find(name) is not None and not self._memory.knows_op(op_id):
            raise _taken(name)
        self._make_root(kept)
        try:
            self._memory.keep(Draft(kind="overview", title=name, text="", fields=kept, op_id=op_id))
        except AlreadyExists:
            raise _taken(name) from None

    def all(self, *, archived: bool = False) -> list[dict[str, str]]:
        """Return name and description of every workspace at the top of the tree, by name."""
        found = []
        for folder in self._memory.scopes.children(""):
            page = self._page(folder)
            if archived or not is_archived(page):
                found.append({"name": _name(folder, page), "description": _text(page.get("description"))})
        return sorted(found, key=lambda item: names.same(item["name"]))

    def load(self, name: str) -> dict[str, Any]:
        """Return the fields of a workspace, archived or not, with what stands in for those it does not have."""
        path = self._memory.scopes.resolve(name).path
        page = self._page(path)
        description = _text(page.get("description"))
        data: dict[str, Any] = {
            "name": _name(path, page),
            "description": description,
            "rootFolder": _text(page.get("rootFolder")) or f"{self._memory.places.workspaces}/{path}",
            "purpose": _text(page.get("purpose")) or description,
        }
        data |= {field: page.get(field) or default for field, default in _ABSENT.items()}
        if is_archived(page):
            data["isArchived"] = True
        return data

    def update(self, name: str, changes: Mapping[str, Any], new_name: str = "", op_id: str = "") -> None:
        """Set the given fields; lists and preferences replace what was there, and the folder keeps its name."""
        path = self._memory.scopes.resolve(name).path
        fields = dict(changes)
        if "rootFolder" in fields:
            fields["rootFolder"] = _root_folder(fields["rootFolder"])
        if new_name:
            _check_name(new_name)
            if self._find(new_name) not in (None, path):
                raise _taken(new_name)
        self._make_root(fields)
        self._memory.keep(Draft(id=self._overview(path), title=new_name, fields=fields, op_id=op_id))

    def archive(self, name: str, *, restore: bool = False, op_id: str = "") -> None:
        """Hide a workspace from lists, or show it again."""
        path = self._memory.scopes.resolve(name).path
        try:
            self._memory.hide(self._overview(path), restore=restore, op_id=op_id)
        except Invalid:
            state, way = ("not archived", "restore") if restore else ("already archived", "archive")
            raise Invalid(f'Workspace "{name}" is {state}.', f"There is nothing to {way}.") from None

    def _find(self, name: str) -> str | None:
        try:
            return self._memory.scopes.resolve(name).path
        except NotFound:
            return None

    def _overview(self, path: str) -> str:
        """Return the file of a workspace, made if somebody made only the folder."""
        overview = self._memory.places.overview(path)
        with contextlib.suppress(AlreadyExists):
            self._memory.vault.write(overview, b"", expect="")
        return overview

    def _page(self, path: str) -> Mapping[str, Any]:
        try:
            return markdown.parse(self._memory.vault.read(self._memory.places.overview(path)).data).fields
        except NotFound:
            return {}

    def _make_root(self, fields: Mapping[str, Any]) -> None:
        folder = fields.get("rootFolder", ".")
        if folder != ".":
            self._memory.screen.name("rootFolder", folder)
            try:
                self._memory.vault.make_folder(folder)
            except (NotFound, Invalid):
                raise Invalid(
                    f"rootFolder {folder} cannot be made: something else has that name.", "Use another."
                ) from None


def _root_folder(given: str) -> str:
    """Return a folder inside the root, or refuse it."""
    folder = given.strip().rstrip("/").removeprefix("./")
    if folder == ".":
        return folder
    try:
        if any(part.startswith(".") for part in names.check_path(folder)):
            raise Invalid("hidden")
    except Invalid:
        raise Invalid(
            f"rootFolder {given[:200]!r} is not a folder inside the memory root.",
            "Use a relative path, like projects/alpha.",
        ) from None
    return folder


def _check_name(name: str) -> None:
    if "/" in name:
        raise Invalid(f'"{name}" has a slash, which separates levels.', "Use a name without one.")


def _taken(name: str) -> AlreadyExists:
    return AlreadyExists(f'Workspace "{name}" already exists.', "Use listWorkspaces to see existing workspaces.")


def _name(path: str, page: Mapping[str, Any]) -> str:
    return _text(page.get("name")) or path.rpartition("/")[2]


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""
