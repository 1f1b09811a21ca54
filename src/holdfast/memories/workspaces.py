"""Workspaces, the states saved in them, and the traces of what was done in them.

A workspace is its `OVERVIEW.md`: the fields are front matter, the text below belongs to the owner. A folder without
one is a workspace too. A state is one Markdown file that never changes; its file name is derived from the state's name
without case, so creating the file exclusively is the uniqueness check. A trace is one line per tool call. Writing it
never fails or delays a call, and it contains no secret of a known format.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast import secrets
from holdfast.core import Core
from holdfast.errors import AlreadyExists, HoldfastError, Invalid, NotFound, OverBudget
from holdfast.formats import markdown
from holdfast.model import names
from holdfast.model.kinds import KINDS, LEDGER
from holdfast.model.queries import Query
from holdfast.model.records import Draft, Record
from holdfast.model.scopes import Scope
from holdfast.model.times import today
from holdfast.storage.parsing import is_archived
from holdfast.storage.tree import YOUNG_NS

FIELDS = ("description", "rootFolder", "purpose", "workflows", "keyFiles", "preferences")
"""The fields of a workspace beside its name, and their names in front matter."""
UNRESOLVED = "_unresolved"
"""Folder for traces of calls whose workspace could not be resolved."""
MAX_VALUE = 2_000
_EMPTY: Mapping[str, Any] = {"workflows": [], "keyFiles": [], "preferences": {}}
_STATE, _TRACE = KINDS["state"], KINDS["trace"]
_MAX_RESULT = 500
_MAX_DEPTH = 16
_MAX_ITEMS = 100


class Workspaces:
    def __init__(self, memory: Core) -> None:
        self._memory = memory

    def create(self, name: str, fields: Mapping[str, Any], op_id: str = "") -> None:
        """Create a workspace with these `FIELDS`; its name must be new, also among archived ones."""
        given = {field: value for field, value in fields.items() if value is not None}
        given["rootFolder"] = _root_folder(given["rootFolder"])
        self._check_new(name, op_id=op_id)
        self._make_root(given)
        try:
            self._memory.keep(Draft(kind="overview", title=name, text="", fields=given, op_id=op_id))
        except AlreadyExists:
            raise _taken(name) from None

    def all(self, *, archived: bool = False) -> list[dict[str, str]]:
        """Return name and description of every workspace at the top level, by name."""
        found = []
        for folder in self._memory.scopes.children(""):
            page = self._page(folder)
            if archived or not is_archived(page):
                found.append({"name": _name(folder, page), "description": _text(page.get("description"))})
        return sorted(found, key=lambda item: names.same(item["name"]))

    def load(self, name: str) -> dict[str, Any]:
        """Return the fields of a workspace, archived or not, with defaults for missing ones."""
        path = self._memory.scopes.resolve(name).path
        page = self._page(path)
        description = _text(page.get("description"))
        data: dict[str, Any] = {
            "name": _name(path, page),
            "description": description,
            "rootFolder": _text(page.get("rootFolder")) or f"{self._memory.layout.workspaces}/{path}",
            "purpose": _text(page.get("purpose")) or description,
        }
        data |= {field: page.get(field) or default for field, default in _EMPTY.items()}
        return data | ({"isArchived": True} if is_archived(page) else {})

    def update(self, name: str, changes: Mapping[str, Any], new_name: str = "", op_id: str = "") -> None:
        """Set the given fields; lists and preferences are replaced, and the folder keeps its name."""
        path = self._memory.scopes.resolve(name).path
        fields = dict(changes)
        if "rootFolder" in fields:
            fields["rootFolder"] = _root_folder(fields["rootFolder"])
        if new_name:
            self._check_new(new_name, own=path)
        self._make_root(fields)
        self._memory.keep(Draft(id=self._overview(path), title=new_name, fields=fields, op_id=op_id))

    def archive(self, name: str, *, restore: bool = False, op_id: str = "") -> None:
        """Hide a workspace from lists, or show it again."""
        overview = self._overview(self._memory.scopes.resolve(name).path)
        _archive(self._memory, f'Workspace "{name}"', overview, restore, op_id)

    def _check_new(self, name: str, own: str = "", op_id: str = "") -> None:
        """Refuse a name with a slash, and one that another workspace has."""
        if "/" in name:
            raise Invalid(f'"{name}" has a slash, which separates levels.', "Use a name without one.")
        with contextlib.suppress(NotFound):
            if self._memory.scopes.resolve(name).path != own and not self._memory.store.knows_op(op_id):
                raise _taken(name)

    def _overview(self, path: str) -> str:
        """Return the overview of a workspace, created if there is only the folder."""
        overview = self._memory.layout.overview(path)
        with contextlib.suppress(AlreadyExists):
            self._memory.tree.write(overview, b"", expect="")
        return overview

    def _page(self, path: str) -> Mapping[str, Any]:
        try:
            return markdown.parse(self._memory.store.read(self._memory.layout.overview(path)).data).fields
        except (NotFound, OverBudget):
            return {}

    def _make_root(self, fields: Mapping[str, Any]) -> None:
        folder = fields.get("rootFolder", ".")
        if folder == ".":
            return
        self._memory.secrets.name("rootFolder", folder)
        try:
            self._memory.tree.make_folder(folder)
        except (NotFound, Invalid):
            what = f"rootFolder {folder} cannot be made: something else has that name."
            raise Invalid(what, "Use another.") from None


def _root_folder(given: str) -> str:
    """Return a folder inside the root, or refuse it."""
    folder = given.strip().rstrip("/").removeprefix("./")
    if folder == ".":
        return folder
    try:
        if any(part.startswith(".") for part in names.check_path(folder)):
            raise Invalid("hidden")
    except Invalid:
        what = f"rootFolder {given[:200]!r} is not a folder inside the memory root."
        raise Invalid(what, "Use a relative path, like projects/alpha.") from None
    return folder


def _taken(name: str) -> AlreadyExists:
    return AlreadyExists(f'Workspace "{name}" already exists.', "Use listWorkspaces to see existing workspaces.")


def _name(path: str, page: Mapping[str, Any]) -> str:
    return _text(page.get("name")) or path.rpartition("/")[2]


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _archive(memory: Core, what: str, identifier: str, restore: bool, op_id: str) -> None:
    try:
        memory.hide(identifier, restore=restore, op_id=op_id)
    except Invalid:
        state, way = ("not archived", "restore") if restore else ("already archived", "archive")
        raise Invalid(f"{what} is {state}.", f"There is nothing to {way}.") from None


class States:
    """Save points of a workspace. Whether one is archived is recorded in the ledger beside the files."""

    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self._listed: dict[str, tuple[object, list[tuple[bool, dict[str, str]]]]] = {}

    def create(self, scope: Scope, name: str, fields: Mapping[str, Any], session: str = "", op_id: str = "") -> None:
        """Write a save point; a name that was ever used in this workspace is refused."""
        given = {field: value for field, value in fields.items() if value is not None}
        given |= {"session": session} if session else {}
        text, tags = given.pop("conversationContext") + "\n", tuple(given.pop("tags", ()))
        draft = Draft(kind="state", title=name, text=text, scope=scope, tags=tags, fields=given, op_id=op_id)
        try:
            self._memory.keep(draft)
        except AlreadyExists:
            other = f'use a unique name like "{name}-v2" or "{name}-{today()[:7]}".'
            raise AlreadyExists(f'State "{name}" already exists.', f"States are immutable - {other}") from None

    def all(self, scope: Scope, *, archived: bool = False) -> list[dict[str, str]]:
        """Return name and description of all save points of a workspace, newest first."""
        folder = self._folder(scope)
        changed = self._memory.tree.folder_stamp(folder)
        stamp = (self._memory.tree.stat(f"{folder}/{LEDGER}"), changed)
        known, items = self._listed.get(folder, (None, []))
        if known != stamp:
            items = []
            for record in self._records(scope):
                description = str(record.fields.get("description") or record.fields.get("activeTask") or "")
                items.append((record.hidden, {"name": record.title, "description": description}))
            if changed < time.time_ns() - YOUNG_NS:  # a file may still be added within the resolution of the stamp
                self._listed[folder] = (stamp, items)
        return [item for hidden, item in items if archived or not hidden]

    def load(self, scope: Scope, name: str) -> dict[str, Any]:
        """Return a save point as it was written."""
        page = markdown.parse(self._memory.store.read(self._path(scope, name)).data)
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
        """Hide a save point from lists, or show it again; the file does not change."""
        _archive(self._memory, f'State "{name}"', self._path(scope, name), restore, op_id)

    def _path(self, scope: Scope, name: str) -> str:
        """Return the file of a save point, by its name or, if a person created the file, by the name in it."""
        path = self._memory.layout.path_for(_STATE, scope, names.unique(name, _STATE.name, ignore_case=True))
        if self._memory.store.exists(path):
            return path
        here = self._records(scope)
        for record in here:
            if names.same(record.title) == names.same(name):
                return record.path
        hint = names.close_to(name, [record.title for record in here])
        raise NotFound(f'State "{name}" not found.', f"Use listStates to see available states.{hint}")

    def _records(self, scope: Scope) -> list[Record]:
        found, folder = self._memory.every(Query(kinds=("state",), scope=scope, hidden=True)), self._folder(scope)
        return [record for record in found if record.path.rpartition("/")[0] == folder]

    def _folder(self, scope: Scope) -> str:
        return self._memory.layout.path_for(_STATE, scope, "x").rpartition("/")[0]


class Trace(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One tool call."""

    tool: str
    workspace: str = ""
    """Scope path; "" when it could not be resolved."""
    bound: str = ""
    """The scope that the caller was bound to, "" for none."""
    session: str = ""
    run: str = ""
    agent: str = ""
    goal: str = ""
    params: dict[str, Any] = {}
    success: bool = True
    error: str = ""
    result: str = ""
    ms: float = 0.0
    read: bool = False
    """Calls that only read are left out of full-text search, or searches would find themselves."""


class Traces:
    def __init__(self, memory: Core) -> None:
        self._memory = memory

    def add(self, trace: Trace) -> None:
        """Append a trace; errors are ignored."""
        with contextlib.suppress(HoldfastError, OSError):
            line: dict[str, Any] = {"success": True}
            line |= msgspec.to_builtins(msgspec.structs.replace(trace, params={}))
            if _is_short(trace):
                line["params"] = msgspec.Raw(msgspec.json.encode(trace.params, enc_hook=dict))
            else:  # secrets are removed before values are cut, since half of one has no format
                clean = self._memory.secrets.clean
                line |= {name: clean(line[name])[:_MAX_RESULT] for name in ("error", "result", "goal") if name in line}
                line["params"] = _cut(clean(_plain(trace.params)))
            self._memory.note_line(_TRACE, line, folder=trace.workspace.partition("/")[0] or UNRESOLVED)

    def recent(self, scope: Scope, count: int = 10) -> list[dict[str, Any]]:
        """Return the last changes in a workspace, newest first, without calls that only read."""
        done = (record for record in self._newest(scope) if not record.fields.get("read"))
        return [activity(record) for record in itertools.islice(done, count)]

    def last(self, count: int, scope: Scope | None = None) -> list[dict[str, Any]]:
        """Return the last calls in a workspace, or in all of them, oldest first."""
        found = []
        for record in itertools.islice(self._newest(scope), count):
            shown = activity(record)
            shown |= {"session": shown.pop("sessionId"), "tool": record.title, "ms": record.fields.get("ms", 0)}
            found.append(shown | {"workspace": record.scope.path})
        return found[::-1]

    def _newest(self, scope: Scope | None) -> Iterator[Record]:
        """Yield the traces of a workspace, or of all, newest first, read from the ends of the files."""
        workspace = scope.workspace if scope else "x"
        path = self._memory.layout.path_for(_TRACE, Scope(), month="x", workspace=workspace)
        months: dict[str, list[str]] = {}
        for log in self._memory.store.paths(path.rsplit("/", 1 if scope else 2)[0], ".jsonl"):
            months.setdefault(log.rpartition("/")[0], []).append(log)
        below = scope.path if scope else ""
        streams = [
            itertools.chain.from_iterable(self._memory.backwards(log, below) for log in sorted(logs, reverse=True))
            for logs in months.values()
        ]
        return heapq.merge(*streams, key=lambda record: (record.time, record.id), reverse=True)


def activity(record: Record) -> dict[str, Any]:
    """Return a trace as a short summary: what was done, and for which goal."""
    fields = record.fields
    params = fields.get("params") or {}
    subjects = (params.get(name) for name in ("name", "title", "query", "key"))
    subject = next((value for value in subjects if isinstance(value, str)), "")
    shown = {
        "time": record.time, "what": f"{record.title} {subject}".strip(), "goal": fields.get("goal") or "",
        "sessionId": record.scope.session, "success": fields.get("success") is not False,
    }  # fmt: skip
    return shown | ({"error": fields["error"]} if fields.get("error") else {})


def _is_short(trace: Trace) -> bool:
    """Has a call plain, short parameters and nothing like a secret? Those of a refused call may be anything."""
    if not trace.success or len(trace.goal) > _MAX_RESULT:
        return False
    data = msgspec.json.encode(trace, enc_hook=dict)
    flat = len(data) <= MAX_VALUE and data.count(b"{") + data.count(b"[") <= _MAX_DEPTH
    return flat and not secrets.could_hold(data.decode())


def _plain(value: Any, depth: int = 0) -> Any:
    """Return any value as short JSON; the calls that are traced include refused ones."""
    if isinstance(value, dict | list | tuple) and depth >= _MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        return {str(name)[:200]: _plain(inner, depth + 1) for name, inner in list(value.items())[:_MAX_ITEMS]}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth + 1) for inner in value[:_MAX_ITEMS]]
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return "a number beyond 64 bits"
    return value if value is None or isinstance(value, str | int | float) else type(value).__name__


def _cut(value: Any) -> Any:
    """Shorten every long string in a JSON value."""
    if isinstance(value, str):
        return value if len(value) <= MAX_VALUE else f"{value[:MAX_VALUE]}… ({len(value):,} characters)"
    if isinstance(value, dict):
        return {name: _cut(inner) for name, inner in value.items()}
    return [_cut(inner) for inner in value] if isinstance(value, list) else value
