"""MCP clients: their files, and what Holdfast adds to them: a server and, for some clients, hooks.

An edit changes only our own part: other keys, their order, comments and white space stay. A file that cannot be edited
that way is refused, with the text to paste instead. A write replaces the file atomically and keeps its mode; if it adds
a token, only the owner can read the file. If the file is a link, its target is changed. The first change leaves one
backup beside the file: the text without our part. A project's file is shared: no path of this machine, and no token.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.clients.editors import JSON, TOML, JsonEditor, Path, TomlEditor
from holdfast.errors import Conflict, Invalid, Unavailable
from holdfast.model.patterns import regex

NAME = "holdfast"
"""The name of our server in every client."""
START, LATER = "SessionStart", ("PreCompact", "Stop", "SessionEnd")
EVENTS = (START, *LATER)
"""The events that have a hook of ours."""
_HOOKS = "hooks"
_OUR_HOOKS = (" context --hook ", " hook claude-code ", " hook codex ")
_HOOK_SECONDS = 3
"""The client gives up after this; Codex allows no more at the end of a session."""
_BACKUP = ".holdfast-backup"
VARIABLE = "HOLDFAST_TOKEN"
"""The environment variable with the token of a team's server."""
BEARER = regex(r'Bearer (?!\$)[^"\n]+')
"""A token in a client's file."""
_FORMS = {"command", "url", "http_headers", "bearer_token_env_var"}
"""The fields of an entry that exclude each other."""
_SESSION_FOLDER = '"${CLAUDE_PROJECT_DIR:-.}"'
"""The project's folder in the shell of a hook; the current folder may be one below it."""


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
    folder: str = "."
    """How the file of a project names the folder of the project."""
    variable: str = "${env:" + VARIABLE + "}"
    """How a file names the token; "" if the client does not read servers with an address from its file."""

    def location(self, *, project: bool = False, platform: str = sys.platform) -> str:
        """Return the configuration file of the user, or of the project in this folder."""
        if project or not self.user:
            if not self.project:
                raise Invalid(f"{self.title} has no configuration per project.", "Leave out --project.")
            return os.path.join(os.getcwd(), self.project)
        return os.path.expandvars(os.path.expanduser(self.user.get(platform, self.user[""])))

    def entry(self, command: Sequence[str]) -> dict[str, Any]:
        """Return the entry of a server that a command starts."""
        return {**self.extra, "command": command[0], "args": list(command[1:])}

    def remote(self, url: str, token: str) -> dict[str, Any]:
        """Return the entry of a server at an address; without a token it names the variable that has one."""
        if not self.variable:
            raise Invalid(f"{self.title} reads no address from its file.", "Add it in its Settings > Connectors.")
        if self.key == "mcp_servers":
            header = {"http_headers": {"Authorization": f"Bearer {token}"}}
            return {"url": url} | (header if token else {"bearer_token_env_var": self.variable})
        kind = {"type": "http"} if self.extra else {}
        return kind | {"url": url, "headers": {"Authorization": f"Bearer {token or self.variable}"}}

    def hooks_location(self, *, project: bool = False) -> str:
        """Return the file of hooks of the user, or of the project in this folder."""
        if not self.hooks:
            raise Invalid(f"{self.title} has no hooks that Holdfast knows.", "Leave out --hook.")
        return os.path.join(os.getcwd() if project else os.path.expanduser("~"), self.hooks)


def _in_profile(path: str) -> dict[str, str]:
    """Return a file of a program's settings by platform."""
    folders = {"": "~/.config", "darwin": "~/Library/Application Support", "win32": "%APPDATA%"}
    return {platform: f"{folder}/{path}" for platform, folder in folders.items()}


CLIENTS = {
    client.name: client
    for client in (
        Client("claude-code", "Claude Code", "mcpServers", {"": "~/.claude.json"}, ".mcp.json", {"type": "stdio"},
               "Start a new conversation; /mcp shows the server.", ".claude/settings.json",
               variable="${" + VARIABLE + "}"),
        Client("claude-desktop", "Claude Desktop", "mcpServers", _in_profile("Claude/claude_desktop_config.json"),
               variable=""),
        Client("cursor", "Cursor", "mcpServers", {"": "~/.cursor/mcp.json"}, ".cursor/mcp.json",
               folder="${workspaceFolder}"),
        Client("codex", "Codex", "mcp_servers", {"": "~/.codex/config.toml"}, ".codex/config.toml",
               hooks=".codex/hooks.json", variable=VARIABLE,
               trust="Codex runs new hooks only after you approve them in it: /hooks"),
        Client("vscode", "VS Code", "servers", _in_profile("Code/User/mcp.json"), ".vscode/mcp.json",
               {"type": "stdio"}, folder="${workspaceFolder}"),
    )
}  # fmt: skip


class Placed(NamedTuple):
    """Where a part of ours is in a text."""

    name: str
    """The event of a hook."""
    path: Path
    found: dict[str, Any]
    removed: Path
    """What goes when it is removed."""


class Addition:
    """What Holdfast adds to a file of a client: some parts by name."""

    editor: JsonEditor | TomlEditor = JSON
    by_hand = ""
    """How to remove it without this program."""
    wanted: Mapping[str, Mapping[str, Any]] = {}

    def places(self, text: str) -> Iterator[Placed]:
        """Yield where its parts are in a text; Invalid if the text cannot be read."""
        raise NotImplementedError

    def command(self, text: str) -> list[str] | None:
        """Return the command that a text starts, None if there is none of ours."""
        raise NotImplementedError

    def add(self, text: str, name: str, wanted: Mapping[str, Any]) -> str:
        """Return a text with one more part."""
        raise NotImplementedError

    def merge(self, text: str) -> str:
        """Return a text with it; fields that differ are set one by one, so that comments between them stay."""
        for name, wanted in reversed(list(self.wanted.items())):  # the last one that is added comes first
            place = next((place for place in self.places(text) if place.name == name), None)
            if place and not _FORMS & place.found.keys() <= wanted.keys():  # it has another form
                text, place = self.editor.drop(text, place.removed), None
            if place is None:
                text = self.add(text, name, wanted)
                continue
            for field, value in wanted.items():
                if place.found.get(field) != value:
                    text = self.editor.put(text, (*place.path, field), value)
        return text

    def unmerge(self, text: str, before: str | None) -> str | None:
        """Return a text without it: the text `before` if nothing else has changed, None if nothing is left."""
        placed = list(self.places(text))
        if not placed:
            return text
        with contextlib.suppress(Invalid, TypeError):
            again = before or ""
            for place in reversed(placed):
                again = self.add(again, place.name, place.found)
            if again == text:
                return before
        for place in reversed(placed):
            text = self.editor.drop(text, place.removed)
        return None if before is None and text.strip() in ("", "{}") else text


class Server(Addition):
    """Our server in the configuration of a client."""

    def __init__(self, client: Client, entry: Mapping[str, Any] | None = None) -> None:
        self.editor = TOML if client.key == "mcp_servers" else JSON
        self.by_hand = f'Remove "{NAME}" from "{client.key}" in it.'
        self.wanted = {client.key: entry or {}}
        self._key = client.key

    def places(self, text: str) -> Iterator[Placed]:
        servers = self.editor.read(text).get(self._key)
        found = servers.get(NAME) if isinstance(servers, dict) else None
        if isinstance(found, dict):
            yield Placed(self._key, (self._key, NAME), found, (self._key, NAME))

    def command(self, text: str) -> list[str] | None:
        known = next(self.places(text), None)
        if known is None:
            return None
        return [str(known.found.get("command", known.found.get("url", ""))), *map(str, known.found.get("args") or [])]

    def add(self, text: str, name: str, wanted: Mapping[str, Any]) -> str:
        return self.editor.put(text, (name, NAME), wanted)


class Hooks(Addition):
    """Our hooks in the settings of a client, which show an agent its memory, keep the transcript and ask it to save.

    `lines` are the commands by event. Claude Code and Codex have the same events and the same form.
    """

    by_hand = f'Remove the hooks with "{NAME}" from it.'

    def __init__(self, lines: Mapping[str, str] | None = None) -> None:
        self.wanted = {
            event: {"type": "command", "command": line, "timeout": _HOOK_SECONDS}
            for event, line in (lines or {}).items()
        }

    def places(self, text: str) -> Iterator[Placed]:
        for event in EVENTS:
            for number, group in enumerate(self._groups(text, event)):
                hooks = group.get(_HOOKS) if isinstance(group, dict) else None
                for place, hook in enumerate(hooks if isinstance(hooks, list) else ()):
                    line = hook.get("command") if isinstance(hook, dict) else None
                    if isinstance(line, str) and NAME in line and any(part in line for part in _OUR_HOOKS):
                        path = (_HOOKS, event, number, _HOOKS, place)
                        yield Placed(event, path, hook, path if len(hooks or ()) > 1 else path[:3])

    def find(self, text: str) -> dict[str, str]:
        return {place.name: place.found["command"] for place in self.places(text)}

    def command(self, text: str) -> list[str] | None:
        line = next(iter(self.find(text).values()), None)
        if line is None:
            return None
        try:
            return shlex.split(line.partition(" 2>")[0]) or [""]
        except ValueError:
            return [""]

    def add(self, text: str, name: str, wanted: Mapping[str, Any]) -> str:
        return self.editor.put(text, (_HOOKS, name, len(self._groups(text, name))), {_HOOKS: [wanted]})

    def _groups(self, text: str, event: str) -> list[Any]:
        events = self.editor.read(text).get(_HOOKS)
        groups = events.get(event) if isinstance(events, dict) else None
        return groups if isinstance(groups, list) else []


def hook_line(words: Sequence[str]) -> str:
    """Return a shell command that never fails and prints no errors."""
    line = shlex.join(words).replace(" --root .", f" --root {_SESSION_FOLDER}", 1)
    return f"{line} 2>/dev/null || true"


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


def backup_of(path: str) -> str:
    return os.path.realpath(path) + _BACKUP


def replace_file(path: str, old: str | None, new: str | None, *, first: bool = False) -> str:
    """Replace the text `old` (None: no file) by `new` (None: remove the file).

    With `first`, the old file becomes the backup, whose path is returned. A backup that is equal to the file goes.
    """
    target, backup = os.path.realpath(path), backup_of(path)
    temporary = f"{target}.holdfast-tmp-{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _compare(path, old)
        if new is None:
            os.unlink(target)
            return ""
        private = BEARER.search(new) and not BEARER.search(old or "")
        mode = 0o666 if old is None and not private else 0o600
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with open(fd, "w", encoding="utf-8", newline="") as file:
                if old is not None:
                    os.fchmod(fd, os.stat(target).st_mode & (0o700 if private else 0o7777))
                file.write(new)
                file.flush()
                os.fsync(fd)
            _compare(path, old)  # the client may have saved it while our text was synced
            if first:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(backup)
            if first and old is not None:
                os.link(target, backup)
            os.replace(temporary, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        if not first and read_file(backup) == new:
            os.unlink(backup)
        return backup if first and old is not None else ""
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}; it was not changed.", "Check its permissions.") from None


def _compare(path: str, old: str | None) -> None:
    if read_file(path) != old:
        raise Conflict(f"{path} was changed at the same moment; nothing was written.", "Try again.")
