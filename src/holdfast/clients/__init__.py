"""MCP clients: their configuration files, and Holdfast's entry in them.

An edit changes only our entry: other keys, their order, comments and white space stay. A file that cannot be edited
that way is refused, with the text to paste instead. A write keeps a copy of the old text beside the file, replaces the
file atomically and keeps its mode. If the file is a link, its target is changed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.clients.editors import JSON, TOML, JsonEditor, TomlEditor
from holdfast.errors import Conflict, HoldfastError, Invalid, Unavailable

NAME = "holdfast"
"""The name of our entry in every client."""
_BACKUP = ".before-holdfast-"


class Client(msgspec.Struct, frozen=True):
    name: str
    title: str
    key: str
    """The object, or table, with the servers by name."""
    user: Mapping[str, str] = {}
    """The user's file by platform; "" is every other platform."""
    project: str = ""
    """The file in a project's folder, if the client has one."""
    extra: Mapping[str, str] = {}
    next_step: str = "Restart it."
    hooks: str = ""
    """The file of hooks, in the home folder and in a project's, if the client has hooks."""
    trust: str = ""
    """The next step before the client runs new hooks."""

    @property
    def editor(self) -> JsonEditor | TomlEditor:
        return TOML if self.key == "mcp_servers" else JSON


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
        Client("codex", "Codex", "mcp_servers", {"": "~/.codex/config.toml"}, hooks=".codex/hooks.json",
               trust="Codex runs new hooks only after you approve them in it: /hooks"),
        Client("vscode", "VS Code", "servers", {}, ".vscode/mcp.json", {"type": "stdio"}),
    )
}  # fmt: skip


def location(client: Client, *, project: bool = False, platform: str = sys.platform) -> str:
    """Return the configuration file of the user, or of the project in this folder."""
    if project or not client.user:
        if not client.project:
            raise Invalid(f"{client.title} has no configuration per project.", "Leave out --project.")
        return os.path.join(os.getcwd(), client.project)
    return os.path.expandvars(os.path.expanduser(client.user.get(platform, client.user[""])))


def entry(client: Client, command: list[str]) -> dict[str, Any]:
    """Return our entry, which starts this command."""
    return {**client.extra, "command": command[0], "args": command[1:]}


def fragment(client: Client, wanted: Mapping[str, Any]) -> str:
    """Return a configuration with nothing but our entry."""
    return client.editor.fresh(client.key, NAME, wanted)


def find(client: Client, text: str) -> dict[str, Any] | None:
    """Return our entry, None if there is none; Invalid if the text cannot be read."""
    servers = client.editor.read(text).get(client.key)
    found = servers.get(NAME) if isinstance(servers, dict) else None
    return found if isinstance(found, dict) else None


def words(client: Client, text: str) -> list[str] | None:
    """Return the command of our entry, None if there is none."""
    known = find(client, text)
    return None if known is None else [str(known.get("command", "")), *map(str, known.get("args") or [])]


def merge(client: Client, text: str, wanted: dict[str, Any]) -> str:
    """Return the configuration with our entry; fields that the user added to the entry stay."""
    known = find(client, text) or {}
    return text if known == known | wanted else client.editor.merge(text, client.key, NAME, known | wanted)


def unmerge(client: Client, text: str, before: str | None) -> str | None:
    """Return the configuration without our entry; None if there was no file `before` and nothing is left."""
    if find(client, text) is None:
        return text
    left = client.editor.remove(text, client.key, NAME, before)
    return None if before is None and left.strip() in ("", "{}") else left


# files


def read_file(path: str) -> str | None:
    """Return the text of a file, None if it does not exist."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise Invalid(f"{path} is not UTF-8.", "Save it as UTF-8.") from None
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}.", "Check what it is, and its permissions.") from None


def backups(path: str) -> list[str]:
    """Return the old texts of a file, newest first."""
    folder, name = os.path.split(os.path.realpath(path))
    try:
        found = sorted((each for each in os.listdir(folder) if each.startswith(name + _BACKUP)), reverse=True)
    except OSError:
        return []
    return [text for each in found if (text := read_file(os.path.join(folder, each))) is not None]


def replace_file(path: str, old: str | None, new: str | None) -> str:
    """Replace the text `old` (None: no file) by `new` (None: remove the file); return the path of the backup."""
    target = os.path.realpath(path)
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _compare(path, old)
        mode = None if old is None else os.stat(target).st_mode & 0o7777
        if new is None:
            os.unlink(target)
            return ""
        backup = "" if old is None else _create(f"{target}{_BACKUP}{time.strftime('%Y%m%dT%H%M%S')}", old, mode)
        temporary = _create(f"{target}.holdfast-tmp-{os.getpid()}", new, mode)
        try:
            _compare(path, old)  # the client may have saved it while our text was synced
            os.replace(temporary, target)
        except (OSError, HoldfastError):
            _remove(temporary)
            raise
        return backup
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}; it was not changed.", "Check its permissions.") from None


def _compare(path: str, old: str | None) -> None:
    if read_file(path) != old:
        raise Conflict(f"{path} was changed at the same moment; nothing was written.", "Try again.")


def _create(path: str, text: str, mode: int | None) -> str:
    """Write a new file durably, with a number after its name if that is taken; return its path."""
    free, number = path, 1
    while True:
        try:
            fd = os.open(free, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if mode is None else 0o600)
            break
        except FileExistsError:
            number += 1
            free = f"{path}-{number}"
    try:
        with open(fd, "w", encoding="utf-8", newline="") as file:
            if mode is not None:
                os.fchmod(fd, mode)
            file.write(text)
            file.flush()
            os.fsync(fd)
    except OSError:
        _remove(free)
        raise
    return free


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
