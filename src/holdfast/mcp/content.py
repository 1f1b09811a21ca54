"""The prompts and resources of the MCP server.

Prompts are texts that a person picks in a client. `save-memory`, `learning-cycle` and `chat-memory` are files that an
owner can change: the root's own version is used, else the shipped one. Resources are the Markdown files of workspaces
and states, `holdfast://workspace/<scope>` and `holdfast://state/<scope>/<name>`, and the text of any record,
`holdfast://record/<id>`; each part is percent-encoded. Archived ones and records are not listed but can be read.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

from holdfast import templates
from holdfast.errors import NotFound
from holdfast.formats import markdown, prompts, sections
from holdfast.mcp.protocol import INVALID_PARAMS, ProtocolError
from holdfast.memory import Memory
from holdfast.model import names
from holdfast.model.queries import Query
from holdfast.model.records import text_of
from holdfast.tools import everyday

MARKDOWN = "text/markdown"
PAGE = 500
_WORKSPACE_URI = "holdfast://workspace/"
_STATE_URI = "holdfast://state/"
_RECORD_URI = "holdfast://record/"

_WORKSPACE = {"name": "workspace", "description": "the workspace's name", "required": False}

PROMPTS = [
    {"name": name, "title": title, "description": about} | ({"arguments": [_WORKSPACE]} if takes_workspace else {})
    for name, title, about, takes_workspace in (
        ("resume", "Resume earlier work", "Load a workspace and its newest state, and go on from there.", True),
        ("save-state", "Save a state", "Save where we are, for a later conversation.", False),
        ("save-memory", "Save what was learned",
         "Review the conversation and save its decisions, lessons and plan changes.", True),
        ("learning-cycle", "Watch for what is worth saving",
         "The moments at which something should be saved, and what to do then.", False),
        ("chat-memory", "Remember across channels",
         "When a chat bot should look up what was said, and what belongs into MEMORY.md.", False),
    )
]  # fmt: skip
TEMPLATES = [
    {"name": name, "uriTemplate": uri, "description": about, "mimeType": MARKDOWN}
    for name, uri, about in (
        ("workspace", _WORKSPACE_URI + "{+scope}",
         "The overview of a workspace, workspace/domain or workspace/domain/repository."),
        ("state", _STATE_URI + "{+scope}/{name}", "A save point of a workspace, by its name."),
        ("record", _RECORD_URI + "{+id}", "The whole text of a record, by the id that recall shows."),
    )
]  # fmt: skip


def prompt(memory: Memory, name: str, arguments: dict[str, str]) -> dict[str, Any]:
    known = {str(prompt["name"]): prompt for prompt in PROMPTS}
    if name not in known:
        raise ProtocolError(INVALID_PARAMS, f"Unknown prompt: {name[:200]}. There are: {', '.join(known)}.")
    workspace = arguments.get("workspace", "").strip()
    if name == "save-memory":
        text = _command(memory, templates.SAVE_MEMORY)
        text += f'\n\nThe workspace is "{workspace}".' if workspace else ""
    elif name == "chat-memory":
        text = _command(memory, templates.CHAT_MEMORY)
    elif name == "learning-cycle":
        own = _own(memory, f"{memory.settings.paths.rules}/{templates.WORKFLOW}")
        shipped = _body(templates.text(f"{templates.RULES}/{templates.WORKFLOW}").encode())
        found = ((rule, part) for rule in (own, shipped) for part in sections.headed(rule, templates.LEARNING_CYCLE))
        rule, part = next(found)  # the shipped rule has this section
        text = rule[part.start : part.end].strip()
    elif name == "save-state":
        text = templates.text(templates.SAVE_STATE).strip()
    else:
        load = "Call listWorkspaces through useTools, pick the one that fits, and call loadWorkspace with its name."
        if workspace:
            load = f'Call loadWorkspace with the name "{workspace}".'
        text = templates.text(templates.RESUME).strip().format(load=load)
    message = {"role": "user", "content": {"type": "text", "text": prompts.disarmed(text)}}
    return {"description": known[name]["description"], "messages": [message]}


def _command(memory: Memory, name: str) -> str:
    """Return the text of a command for agents: the root's own, else the shipped one."""
    own = _own(memory, f"{memory.settings.paths.commands}/{name}")
    return own or _body(templates.text(f"{templates.COMMANDS}/{name}").encode())


def _own(memory: Memory, path: str) -> str:
    """Return the text of a file of the root, "" if there is none."""
    try:
        return _body(memory.tree.read(path, memory.settings.limits.document_bytes).data)
    except NotFound:
        return ""


def _body(data: bytes) -> str:
    return markdown.parse(data).body.strip()


def resources(memory: Memory, start: int) -> tuple[list[dict[str, str]], int | None]:
    """Return a page of all resources, workspaces first, and where the next page starts."""
    found = memory.every(Query(kinds=("overview",))) + memory.every(Query(kinds=("state",)))
    page = []
    for record in found[start : start + PAGE]:
        where = "/".join(quote(part, safe="") for part in record.scope.path.split("/"))
        is_state = record.kind == "state"
        uri = f"{_STATE_URI}{where}/{quote(record.title, safe='')}" if is_state else _WORKSPACE_URI + where
        about = text_of(record.fields.get("description") or record.fields.get("activeTask"))
        resource = {"uri": uri, "name": record.title, "mimeType": MARKDOWN, "description": about}
        page.append(resource if about else {key: value for key, value in resource.items() if key != "description"})
    return page, start + PAGE if start + PAGE < len(found) else None


def resource(memory: Memory, uri: str) -> str:
    """Return the text of a resource; NotFound if there is none."""
    if uri.startswith(_WORKSPACE_URI):
        scope = memory.scopes.resolve(_decoded(uri.removeprefix(_WORKSPACE_URI)))
        return _text(memory, memory.layout.overview(scope.path))
    if uri.startswith(_RECORD_URI):
        record = memory.get(unquote(uri.removeprefix(_RECORD_URI)))
        everyday.check_session(record)
        return everyday.whole(record)
    path, slash, name = uri.removeprefix(_STATE_URI).rpartition("/")
    if not uri.startswith(_STATE_URI) or not slash:
        raise NotFound("There is no such resource.")
    scope = memory.scopes.resolve(_decoded(path))
    wanted = names.same(unquote(name))
    for record in memory.every(Query(kinds=("state",), scope=scope.path, hidden=True)):
        if record.scope.path == scope.path and names.same(record.title) == wanted:
            return _text(memory, record.path)
    raise NotFound("There is no such state.")


def _decoded(path: str) -> str:
    return "/".join(unquote(part) for part in path.split("/"))


def _text(memory: Memory, path: str) -> str:
    return memory.tree.read(path, memory.settings.limits.document_bytes).data.decode("utf-8", "replace")
