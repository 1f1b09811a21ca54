"""Workspaces, the states saved in them, and the traces of tool calls in them.

A workspace is its `OVERVIEW.md`: the fields are front matter, the text below belongs to the owner. A folder without
one is a workspace too. A state is one Markdown file that never changes, named after the state's name without case. A
name in the ledger can never be used again. Of two concurrent writers, the one that creates the file wins.
A trace is one line per tool call, written without a sync; an error in writing it is ignored. Usage is counted from
traces in one pass.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import AlreadyExists, HoldfastError, Invalid, NotFound, OverBudget
from holdfast.formats import markdown
from holdfast.model import names
from holdfast.model.kinds import KINDS, LEDGER
from holdfast.model.queries import Query
from holdfast.model.records import Draft, Receipt, Record, Scope, lapsed, line_of
from holdfast.model.settings import DERIVED
from holdfast.model.times import bound, today, utc_now
from holdfast.storage import write_log
from holdfast.storage.log import Logs
from holdfast.storage.parsing import is_archived
from holdfast.storage.tree import ABSENT, YOUNG_NS

FIELDS = ("description", "rootFolder", "purpose", "workflows", "keyFiles", "preferences")
"""The fields of a workspace beside its name, and their names in front matter."""
UNRESOLVED = "_unresolved"
"""Folder for traces of calls whose workspace could not be resolved."""
MAX_VALUE = 2_000
_EMPTY: Mapping[str, Any] = {"workflows": [], "keyFiles": [], "preferences": {}}
_STATE, _TRACE = KINDS["state"], KINDS["trace"]
_MAX_RESULT = 500
_MAX_SUBJECT = 100
_MAX_DEPTH = 16
_MAX_ITEMS = 100
KEPT = ("note", "decision", "lesson", "fact", "procedure", "skill")
"""Kinds that are written to be recalled."""
_ASKED = ("recall", "memory_search")
_LOOKED_UP = 100
"""How many recalled records of other kinds are looked up."""


class Workspaces:
    def __init__(self, memory: Core) -> None:
        self._memory = memory

    def create(self, name: str, fields: Mapping[str, Any], op_id: str = "") -> Receipt:
        """Create a workspace with these `FIELDS`; its name must be new, also among archived ones."""
        given = {field: value for field, value in fields.items() if value is not None}
        given["rootFolder"] = _root_folder(given["rootFolder"])
        self._check_new(name, op_id=op_id)
        self._make_root(given)
        try:
            return self._memory.put_draft(Draft(kind="overview", title=name, text="", fields=given, op_id=op_id))
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

    def update(self, name: str, changes: Mapping[str, Any], new_name: str = "", op_id: str = "") -> Receipt:
        """Set the given fields; lists and preferences are replaced, and the folder keeps its name."""
        path = self._memory.scopes.resolve(name).path
        fields = dict(changes)
        if "rootFolder" in fields:
            fields["rootFolder"] = _root_folder(fields["rootFolder"])
        if new_name:
            self._check_new(new_name, own=path)
        self._make_root(fields)
        return self._memory.put_draft(Draft(id=self._overview(path), title=new_name, fields=fields, op_id=op_id))

    def archive(self, name: str, *, restore: bool = False, op_id: str = "") -> Receipt:
        """Hide a workspace from lists, or show it again."""
        overview = self._overview(self._memory.scopes.resolve(name).path)
        return _archive(self._memory, f'Workspace "{name}"', overview, restore, op_id)

    def around(self, folder: str) -> str:
        """Return the path of the workspace that a folder of this computer belongs to, "" if there is none.

        It is in the workspace's own folder or in its `rootFolder`, of which the deepest counts, or has its name.
        """
        here, home, depths = os.path.realpath(folder), self._memory.store.folder, dict[str, int]()
        for path in self._memory.scopes.children("") if home else ():
            own, named = f"{self._memory.layout.workspaces}/{path}", _text(self._page(path).get("rootFolder"))
            roots = [os.path.realpath(os.path.join(home, root)) for root in (own, named) if root]
            depths[path] = max((len(root) for root in roots if f"{here}/".startswith(f"{root}/")), default=0)
        if deepest := max(depths.values(), default=0):
            found = [path for path, depth in depths.items() if depth == deepest]
            return found[0] if len(found) == 1 else ""
        try:
            return self._memory.scopes.resolve(os.path.basename(here)).path
        except HoldfastError:
            return ""

    def _check_new(self, name: str, own: str = "", op_id: str = "") -> None:
        """Refuse a name that another workspace has."""
        with contextlib.suppress(NotFound, *([Invalid] if "/" in name else [])):  # a name need not be a path
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
            what = f"rootFolder {folder} cannot be created: something else has that name."
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


def _archive(memory: Core, what: str, identifier: str, restore: bool, op_id: str) -> Receipt:
    try:
        return memory.hide(identifier, restore=restore, op_id=op_id)
    except Invalid:
        state, way = ("not archived", "restore") if restore else ("already archived", "archive")
        raise Invalid(f"{what} is {state}.", f"There is nothing to {way}.") from None


class _SavePoints:
    """The save points that a ledger names, each with the versions that were written."""

    def __init__(self) -> None:
        self.versions: dict[str, set[str]] = {}

    def add(self, entry: Mapping[str, Any]) -> None:
        if isinstance(name := entry.get("state"), str):
            self.versions.setdefault(name, set()).add(str(entry.get("version")))


class States:
    """Save points of a workspace. Whether one is archived is recorded in the ledger beside the files."""

    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self._ledgers = Logs(memory, _SavePoints)
        self._listed: dict[str, tuple[object, list[tuple[bool, dict[str, str]]]]] = {}

    def create(self, scope: Scope, name: str, fields: Mapping[str, Any], session: str = "", op_id: str = "") -> Receipt:
        """Write a save point; a name that was ever used in this workspace is refused."""
        given = {field: value for field, value in fields.items() if value is not None}
        given |= {"session": session} if session else {}
        text, tags = given.pop("conversationContext") + "\n", tuple(given.pop("tags", ()))
        draft = Draft(kind="state", title=name, text=text, scope=scope, tags=tags, fields=given, op_id=op_id)
        try:
            path = self._named(scope, name)
            store = self._memory.store
            if not store.knows_op(op_id) and not store.exists(path) and self._versions(path):
                writes = write_log.about(self._memory.tree, self._memory.layout.memory, path)
                written = any("intent" not in one for one in writes)  # one that was only announced was never written
                if written and not store.exists(path):  # it may have been written just now, by the same op_id
                    raise AlreadyExists(f"{path} was removed.")
            return self._memory.put_draft(draft)
        except AlreadyExists:
            other = f'use a unique name like "{name}-v2" or "{name}-{today()[:7]}".'
            raise AlreadyExists(f'State "{name}" already exists.', f"States are immutable - {other}") from None

    def _versions(self, path: str) -> set[str]:
        """Return the versions of a save point in its ledger; none if a person created the file."""
        folder, _, file = path.rpartition("/")
        return self._ledgers.ask(f"{folder}/{LEDGER}", lambda ledger: ledger.versions.get(file, set()), [])

    def all(self, scope: Scope, *, archived: bool = False) -> list[dict[str, str]]:
        """Return name and description of all save points of a workspace, newest first."""
        folder = self._folder(scope)
        changed = self._memory.tree.folder_stamp(folder)
        stamp = (self._memory.tree.stat(f"{folder}/{LEDGER}"), changed)
        known, items = self._listed.get(folder, (None, []))
        if known != stamp:
            items = []
            files: list[str] = self._ledgers.ask(f"{folder}/{LEDGER}", lambda ledger: list(ledger.versions), [])
            written = {f"{folder}/{file}": number for number, file in enumerate(files)}  # several in one millisecond
            order = [(record.time, written.get(record.path, -1), record) for record in self._records(scope)]
            for *_, record in sorted(order, key=lambda one: one[:2], reverse=True):
                description = str(record.fields.get("description") or record.fields.get("activeTask") or "")
                items.append((record.hidden, {"name": record.title, "description": description}))
            if changed < time.time_ns() - YOUNG_NS:  # a file may still be added within the resolution of the stamp
                self._listed[folder] = (stamp, items)
        return [item for hidden, item in items if archived or not hidden]

    def load(self, scope: Scope, name: str, warnings: list[str] | None = None) -> dict[str, Any]:
        """Return a save point as it is in its file; add to `warnings` that it was changed by hand."""
        path = self._path(scope, name)
        document = self._memory.store.read(path)
        known = set() if warnings is None else self._versions(path)
        if known and document.version not in known and warnings is not None:
            warnings.append(f"{path} was edited after it was saved: this is the edited text.")
        page = markdown.parse(document.data, verbatim=True)
        fields = page.fields
        data: dict[str, Any] = {
            "name": fields.get("name") or name,
            "conversationContext": page.body.removeprefix("\n").removesuffix("\n"),
            "activeTask": fields.get("activeTask") or "",
            "activeFiles": fields.get("activeFiles") or [],
            "nextSteps": fields.get("nextSteps") or [],
        }
        return data | {field: fields[field] for field in ("description", "tags") if fields.get(field) is not None}

    def archive(self, scope: Scope, name: str, *, restore: bool = False, op_id: str = "") -> Receipt:
        """Hide a save point from lists, or show it again; the file does not change."""
        return _archive(self._memory, f'State "{name}"', self._path(scope, name), restore, op_id)

    def _path(self, scope: Scope, name: str) -> str:
        """Return the file of a save point, by its name or, if a person created the file, by the name in it."""
        if self._memory.store.exists(path := self._named(scope, name)):
            return path
        here = self._records(scope)
        for record in here:
            if names.same(record.title) == names.same(name):
                return record.path
        hint = names.close_to(name, [record.title for record in here])
        raise NotFound(f'State "{name}" not found.', f"Use listStates to see available states.{hint}")

    def _named(self, scope: Scope, name: str) -> str:
        return self._memory.layout.path_for(_STATE, scope, names.unique(name, _STATE.name, ignore_case=True))

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
    memory: str = ""
    constraints: str = ""
    params: dict[str, Any] = {}
    success: bool = True
    error: str = ""
    result: str = ""
    ids: list[str] = []
    """The records that the reply shows."""
    tokens: int = 0
    """Of the reply."""
    ms: float = 0.0
    read: bool = False
    """Calls that only read are left out of full-text search, or searches would find themselves."""
    private: bool = False
    """Calls about the notes of one session are left out of it too."""


class Traces:
    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self._ignored = not memory.in_files

    def add(self, trace: Trace) -> None:
        """Append a trace; errors are ignored."""
        if not self._ignored:  # git has to ignore traces, also in a root without the rules of `holdfast init`
            self._ignored = True
            with contextlib.suppress(HoldfastError, OSError):
                tree, rules = self._memory.tree, b""
                with contextlib.suppress(NotFound):
                    rules = tree.read(".gitignore").data
                if f"{DERIVED}/".encode() not in rules.split():
                    folder = self._memory.layout.path_for(_TRACE, Scope()).rsplit("/", 2)[0]
                    tree.write(f"{folder}/.gitignore", b"*\n", expect=ABSENT)
        with contextlib.suppress(HoldfastError, OSError):
            line: dict[str, Any] = {"success": True}
            line |= msgspec.to_builtins(msgspec.structs.replace(trace, params={}))
            clean = self._memory.secrets.clean  # before values are cut: a part of a secret is not recognised
            line |= {name: clean(line[name])[:_MAX_RESULT] for name in ("error", "result", "goal") if name in line}
            line |= {name: _cut(clean(line[name])) for name in ("memory", "constraints") if name in line}
            line["params"] = _cut(clean(_plain(trace.params)))
            self._memory.note_line(_TRACE, line, folder=trace.workspace.partition("/")[0] or UNRESOLVED)

    def recent(self, scope: Scope, count: int = 10) -> list[dict[str, Any]]:
        """Return the last changes in a workspace, newest first, without calls that only read."""
        done = (record for record in self._newest(scope) if not record.fields.get("read"))
        return [activity(record) for record in itertools.islice(done, count)]

    def last(self, count: int, scope: Scope | None = None, agent: str = "") -> list[dict[str, Any]]:
        """Return the last calls in a workspace, or in all of them, oldest first; with `agent`, only its calls."""
        found = []
        for record in itertools.islice((one for one in self._newest(scope) if is_by(one, agent)), count):
            shown, fields = activity(record), record.fields
            shown |= {"session": shown.pop("sessionId"), "tool": record.title, "ms": fields.get("ms", 0)}
            shown |= {"agent": shown.pop("agentId", ""), "params": fields.get("params") or {}, "result": record.text}
            found.append(shown | {"workspace": record.scope.path})
        return found[::-1]

    def since(self, time: str) -> Iterator[Record]:
        """Yield the traces of all workspaces from a time on, newest first."""
        return itertools.takewhile(lambda record: record.time >= time, self._newest(None))

    def old(self) -> list[str]:
        """Return the logs of months before those that the settings keep."""
        months, now = self._memory.settings.limits.trace_months, utc_now()
        year, month = divmod(int(now[:4]) * 12 + int(now[5:7]) - 1 - months, 12)
        logs = self._memory.store.paths(self._memory.layout.path_for(_TRACE, Scope()).rsplit("/", 2)[0], ".jsonl")
        return [log for log in logs if months and log.rpartition("/")[2] < f"{year:04}-{month + 1:02}"]

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
    fields, params = record.fields, params_of(record)
    subjects = (params.get(name) for name in ("name", "title", "query", "key", "text", "content"))
    subject = line_of(next((value for value in subjects if isinstance(value, str) and value.strip()), ""))
    shown = {
        "time": record.time, "what": f"{record.title} {subject[:_MAX_SUBJECT]}".strip(),
        "goal": fields.get("goal") or "", "sessionId": record.scope.session,
        "success": fields.get("success") is not False,
    }  # fmt: skip
    more = {"agentId": fields.get("agent"), "error": fields.get("error")}
    return shown | {name: value for name, value in more.items() if value}


def params_of(record: Record) -> Mapping[str, Any]:
    """Return the parameters of a call that every session may see: not the notes of another one."""
    params = record.fields.get("params")
    return params if isinstance(params, dict) and not record.fields.get("private") else {}


def is_by(record: Record, agent: str) -> bool:
    """Is this a call of an agent? "" is any."""
    return not agent or names.same(str(record.fields.get("agent") or "")) == names.same(agent)


class Recalled(msgspec.Struct):
    """How often a record was recalled or read."""

    id: str
    count: int = 0
    last: str = ""
    kind: str = ""
    title: str = ""

    def describe(self, record: Record) -> None:
        self.kind, self.title = record.kind, record.title or " ".join(record.text.split())[:80]


class Unanswered(msgspec.Struct):
    query: str
    count: int = 0
    last: str = ""


class Called(msgspec.Struct):
    tool: str
    calls: int = 0
    failed: int = 0
    tokens: int = 0
    """The tokens of its replies."""


class Usage(msgspec.Struct):
    since: str
    first: str = ""
    """When the first of these calls was made."""
    calls: int = 0
    tokens: int = 0
    tools: list[Called] = []
    recalled: list[Recalled] = []
    never: list[Recalled] = []
    """Records of the kinds in `KEPT` that no call returned, newest first."""
    kept: int = 0
    """How many records of these kinds there are."""
    unanswered: list[Unanswered] = []


def usage(memory: Core, since: str = "") -> Usage:
    """Count the tool calls from a date or time on."""
    found = Usage(bound(since) if since else "")
    tools: dict[str, Called] = {}
    recalled: dict[str, Recalled] = {}
    unanswered: dict[str, Unanswered] = {}
    for trace in Traces(memory).since(found.since):
        fields, params = trace.fields, trace.fields.get("params")
        params = params if isinstance(params, dict) else {}
        called = tools.setdefault(trace.title, Called(trace.title))
        called.calls += 1
        found.first = trace.time
        called.failed += fields.get("success") is False
        tokens = fields.get("tokens")
        called.tokens += tokens if isinstance(tokens, int) else 0
        worked, ids = fields.get("success") is not False, fields.get("ids")
        if trace.title == "read" and worked:
            ids = [params.get("id")]
        ids = [one for one in ids if isinstance(one, str)] if isinstance(ids, list) else []
        query = params.get("query")
        counted: list[Recalled | Unanswered] = [recalled.setdefault(each, Recalled(each)) for each in ids]
        if trace.title in _ASKED and isinstance(query, str) and not ids and worked:
            counted.append(unanswered.setdefault(names.same(query), Unanswered(query)))
        for one in counted:
            one.count += 1
            one.last = max(one.last, trace.time)
    found.tools = sorted(tools.values(), key=lambda one: (-one.tokens, -one.calls, one.tool))
    found.calls = sum(one.calls for one in found.tools)
    found.tokens = sum(one.tokens for one in found.tools)
    found.recalled = sorted(recalled.values(), key=lambda one: -one.count)
    found.unanswered = sorted(unanswered.values(), key=lambda one: -one.count)
    for record in memory.every(Query(kinds=KEPT)):
        if not lapsed(record):
            found.kept += 1
            earlier = recalled.get(str(record.fields.get("supersedes")))  # a revised entry has a new id
            known = recalled.get(record.id) or earlier
            if known is None:
                found.never.append(known := Recalled(record.id))
            known.describe(record)
    for one in [one for one in found.recalled if not one.kind][:_LOOKED_UP]:
        with contextlib.suppress(HoldfastError):  # removed since, or in a shared memory that does not answer
            one.describe(memory.get(one.id))
    return found


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
