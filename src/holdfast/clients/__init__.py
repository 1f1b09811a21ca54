"""MCP clients: where each keeps its configuration, and what Holdfast's entry in it looks like.

Pure functions over text. An edit touches our entry and nothing else: other keys, their order, comments and white
space stay. A file that cannot be edited so is refused, with what to paste instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.clients import _json, _toml
from holdfast.errors import Invalid

NAME = "holdfast"
"""The name of our entry in every client."""


class Client(msgspec.Struct, frozen=True):
    name: str
    title: str
    key: str
    """The object, or table, of servers by name."""
    user: Mapping[str, str] = {}
    """The user's file by platform; "" is every other platform."""
    project: str = ""
    """The file in a project's folder, where the client has one."""
    extra: Mapping[str, str] = {}
    next_step: str = "Restart it."
    hooks: str = ""
    """The file of hooks, in the home folder and in a project's, where the client runs some."""

    @property
    def form(self) -> Any:
        return _toml if self.key == "mcp_servers" else _json


CLIENTS = {
    client.name: client
    for client in (
        Client("claude-code", "Claude Code", "mcpServers", {"": "~/.claude.json"}, ".mcp.json", {"type": "stdio"},
               "Start a new conversation; /mcp shows the server.", ".claude/settings.json"),
        Client("claude-desktop", "Claude Desktop", "mcpServers", {
            "": "~/.config/Claude/claude_desktop_config.json",
            "darwin": "~/Library/Application Support/Claude/claude_desktop_config.json",
            "win32": "%APPDATA%/Claude/claude_desktop_config.json",
        }),
        Client("cursor", "Cursor", "mcpServers", {"": "~/.cursor/mcp.json"}, ".cursor/mcp.json"),
        Client("codex", "Codex", "mcp_servers", {"": "~/.codex/config.toml"}),
        Client("vscode", "VS Code", "servers", {}, ".vscode/mcp.json", {"type": "stdio"}),
    )
}  # fmt: skip


def location(client: Client, *, project: bool = False, platform: str = sys.platform) -> str:
    """Return the file that the client reads: the user's, or that of the project in this folder."""
    if project or not client.user:
        if not client.project:
            raise Invalid(f"{client.title} has no configuration per project.", "Leave out --project.")
        return os.path.join(os.getcwd(), client.project)
    return os.path.expandvars(os.path.expanduser(client.user.get(platform, client.user[""])))


def entry(client: Client, command: list[str]) -> dict[str, Any]:
    """Return our entry, which starts this command."""
    return {**client.extra, "command": command[0], "args": command[1:]}


def fragment(client: Client, wanted: Mapping[str, Any]) -> str:
    """Return what a configuration with nothing but our entry says."""
    made: str = client.form.fresh(client.key, NAME, wanted)
    return made


def find(client: Client, text: str) -> dict[str, Any] | None:
    """Return our entry as it is, None when there is none; Invalid when the text cannot be read."""
    found: dict[str, Any] | None = client.form.find(text, client.key, NAME)
    return found


def merge(client: Client, text: str, wanted: dict[str, Any]) -> str:
    """Return the configuration with our entry; what somebody added to the entry stays in it."""
    known = find(client, text) or {}
    if known == known | wanted:
        return text
    merged: str = client.form.merge(text, client.key, NAME, known | wanted)
    return merged


def unmerge(client: Client, text: str, before: str | None) -> str | None:
    """Return the configuration without our entry, as it was before; None when there was none and nothing is left."""
    if find(client, text) is None:
        return text
    left: str = client.form.remove(text, client.key, NAME, before)
    return None if before is None and left.strip() in ("", "{}") else left
