"""Workspaces and states as resources: `holdfast://workspace/<scope>` and `holdfast://state/<scope>/<name>`.

A resource is the Markdown file as it is on disk. Every part of an address is percent-encoded on its own. Archived
ones are not listed and can still be read.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

import mcp_types as types

from holdfast.errors import NotFound
from holdfast.memory import Memory
from holdfast.model import names
from holdfast.model.queries import Query
from holdfast.model.records import Record, text_of

MARKDOWN = "text/markdown"
PAGE = 500
_WORKSPACE = "holdfast://workspace/"
_STATE = "holdfast://state/"

TEMPLATES = (
    types.ResourceTemplate(
        name="workspace",
        uri_template=_WORKSPACE + "{+scope}",
        description="The overview of a workspace, workspace/domain or workspace/domain/repository.",
        mime_type=MARKDOWN,
    ),
    types.ResourceTemplate(
        name="state",
        uri_template=_STATE + "{+scope}/{name}",
        description="A save point of a workspace, by its name.",
        mime_type=MARKDOWN,
    ),
)


def page(memory: Memory, start: int) -> tuple[list[types.Resource], int | None]:
    """Return a page of all resources, workspaces first, and where the next page starts."""
    found = memory.every(Query(kinds=("overview",))) + memory.every(Query(kinds=("state",)))
    end = start + PAGE
    return [_resource(record) for record in found[start:end]], end if end < len(found) else None


def read(memory: Memory, uri: str) -> str:
    """Return the text of a resource; NotFound when there is none."""
    if uri.startswith(_WORKSPACE):
        scope = memory.scopes.resolve(_decoded(uri.removeprefix(_WORKSPACE)))
        return _text(memory, memory.places.overview(scope.path))
    path, slash, name = uri.removeprefix(_STATE).rpartition("/")
    if not uri.startswith(_STATE) or not slash:
        raise NotFound("There is no such resource.")
    scope = memory.scopes.resolve(_decoded(path))
    wanted = names.same(unquote(name))
    for record in memory.every(Query(kinds=("state",), scope=scope.path, hidden=True)):
        if record.scope.path == scope.path and names.same(record.title) == wanted:
            return _text(memory, record.path)
    raise NotFound("There is no such state.")


def _resource(record: Record) -> types.Resource:
    where = "/".join(quote(part, safe="") for part in record.scope.path.split("/"))
    state = record.kind == "state"
    return types.Resource(
        uri=f"{_STATE}{where}/{quote(record.title, safe='')}" if state else _WORKSPACE + where,
        name=record.title,
        description=text_of(record.fields.get("description") or record.fields.get("activeTask")) or None,
        mime_type=MARKDOWN,
    )


def _decoded(path: str) -> str:
    return "/".join(unquote(part) for part in path.split("/"))


def _text(memory: Memory, path: str) -> str:
    return memory.vault.read(path, memory.settings.limits.document_bytes).data.decode("utf-8", "replace")
