"""Save points: what an agent was doing, written once, to be resumed by any conversation in the workspace.

A state is one Markdown file: the conversation's context is its text, the rest its fields. The file's name is made of
the state's name without case, so creating it exclusively *is* the check that the name is new. What was archived is
noted in the ledger beside the files; no state is ever changed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from holdfast.core import Core
from holdfast.errors import AlreadyExists, Invalid, NotFound
from holdfast.formats import markdown
from holdfast.model import names
from holdfast.model.kinds import KINDS, LEDGER
from holdfast.model.queries import Query
from holdfast.model.records import Draft, Record
from holdfast.model.scopes import Scope
from holdfast.model.times import today
from holdfast.storage.refresh import YOUNG_NS

_KIND = KINDS["state"]


class States:
    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self._listed: dict[str, tuple[object, list[tuple[bool, dict[str, str]]]]] = {}

    def create(self, scope: Scope, name: str, fields: Mapping[str, Any], session: str = "", op_id: str = "") -> None:
        """Write a save point; a name that was ever used in this workspace is refused."""
        kept = {field: value for field, value in fields.items() if value is not None}
        text = kept.pop("conversationContext")
        tags = tuple(kept.pop("tags", ()))
        if session:
            kept["session"] = session
        try:
            self._memory.keep(
                Draft(kind="state", title=name, text=text + "\n", scope=scope, tags=tags, fields=kept, op_id=op_id)
            )
        except AlreadyExists:
            month = today()[:7]
            raise AlreadyExists(
                f'State "{name}" already exists.',
                f'States are immutable - use a unique name like "{name}-v2" or "{name}-{month}".',
            ) from None

    def all(self, scope: Scope, *, archived: bool = False) -> list[dict[str, str]]:
        """Return name and description of all save points of a workspace, newest first."""
        return [item for hidden, item in self._all(scope) if archived or not hidden]

    def _all(self, scope: Scope) -> list[tuple[bool, dict[str, str]]]:
        """List what is there; kept until a file comes or goes, since no state ever changes."""
        folder = self._folder(scope)
        changed = self._memory.vault.folder_stamp(folder)
        stamp = (self._memory.vault.stat(f"{folder}/{LEDGER}"), changed)
        known = self._listed.get(folder)
        if known and known[0] == stamp:
            return known[1]
        found = self._memory.every(Query(kinds=("state",), scope=scope, hidden=True))
        items = [
            (record.hidden, {"name": record.title, "description": _description(record)})
            for record in found
            if record.path.rpartition("/")[0] == folder
        ]
        if changed < time.time_ns() - YOUNG_NS:  # a stamp as young as the look proves nothing
            self._listed[folder] = (stamp, items)
        return items

    def load(self, scope: Scope, name: str) -> dict[str, Any]:
        """Return a save point as it was written."""
        page = markdown.parse(self._memory.vault.read(self._path(scope, name)).data)
        fields = page.fields
        data: dict[str, Any] = {
            "name": fields.get("name") or name,
            "conversationContext": page.body.removeprefix("\n").removesuffix("\n"),
            "activeTask": fields.get("activeTask") or "",
            "activeFiles": fields.get("activeFiles") or [],
            "nextSteps": fields.get("nextSteps") or [],
        }
        return data | {field: fields[field] for field in ("description", "tags") if fields.get(field) is not None}

    def archive(self, scope: Scope, name: str, *, restore: bool = False, op_id: str = "") -> None:
        """Hide a save point from lists, or show it again; the file stays as it is."""
        path = self._path(scope, name)
        try:
            self._memory.hide(path, restore=restore, op_id=op_id)
        except Invalid:
            state, way = ("not archived", "restore") if restore else ("already archived", "archive")
            raise Invalid(f'State "{name}" is {state}.', f"There is nothing to {way}.") from None

    def _path(self, scope: Scope, name: str) -> str:
        """Return the file of a save point: by its name, or, for one made by hand, by the name in it."""
        path = self._memory.places.path_for(_KIND, scope, names.unique(name, _KIND.name, ignore_case=True))
        if self._memory.vault.stat(path):
            return path
        wanted, folder = names.same(name), self._folder(scope)
        known = self._memory.every(Query(kinds=("state",), scope=scope, hidden=True))
        here = [record for record in known if record.path.rpartition("/")[0] == folder]
        for record in here:
            if names.same(record.title) == wanted:
                return record.path
        hint = names.close_to(name, [record.title for record in here])
        raise NotFound(f'State "{name}" not found.', f"Use listStates to see available states.{hint}")

    def _folder(self, scope: Scope) -> str:
        return self._memory.places.path_for(_KIND, scope, "x").rpartition("/")[0]


def _description(record: Record) -> str:
    return str(record.fields.get("description") or record.fields.get("activeTask") or "")
