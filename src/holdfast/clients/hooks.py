"""The hooks that show an agent its memory, keep the transcript and ask it to save: our commands in a client's settings.

Functions over text, as for the configuration of servers: everything else in the file stays as it is. Claude Code and
Codex have the same events and the same form.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.clients import NAME, Client
from holdfast.clients.editors import JSON
from holdfast.errors import Invalid

START, LATER = "SessionStart", ("PreCompact", "Stop", "SessionEnd")
EVENTS = (START, *LATER)
_KEY = "hooks"
_OURS = (" context --hook ", " hook claude-code ", " hook codex ")
_SECONDS = 3
"""The client gives up after this; Codex allows no more at the end of a session."""


def location(client: Client, *, project: bool = False) -> str:
    """Return the file of hooks of the user, or of the project in this folder."""
    if not client.hooks:
        raise Invalid(f"{client.title} has no hooks that Holdfast knows.", "Leave out --hook.")
    return os.path.join(os.getcwd() if project else os.path.expanduser("~"), client.hooks)


def command(words: Sequence[str]) -> str:
    """Return a shell command that never fails and prints no errors."""
    return f"{shlex.join(words)} 2>/dev/null || true"


def words(text: str) -> list[str] | None:
    """Return one of our commands without its redirection, None if there is none."""
    line = next(iter(find(text).values()), None)
    if line is None:
        return None
    try:
        return shlex.split(line.partition(" 2>")[0]) or [""]
    except ValueError:
        return [""]


def fragment(lines: Mapping[str, str]) -> str:
    """Return a file with nothing but our hooks."""
    return merge("", lines)


def find(text: str) -> dict[str, str]:
    """Return our commands by event; Invalid if the text cannot be read."""
    whole = JSON.read(text)
    return {event: str(hook["command"]) for event in EVENTS for _, _, hook in _ours(whole, event)}


def merge(text: str, lines: Mapping[str, str]) -> str:
    """Return the file with our hooks, each once; `lines` are the commands by event."""
    for event, line in lines.items():
        whole = JSON.read(text)
        known = next(_ours(whole, event), None)
        every = whole.get(_KEY, {})
        groups = every.get(event, []) if isinstance(every, dict) else None
        if not isinstance(groups, list):
            raise Invalid(f'"{_KEY}" does not have the form that it should have.', "Correct the file first.")
        if known:
            group, number, hook = known
            wanted = hook | _hook(line)
            text = text if hook == wanted else JSON.replace(text, (_KEY, event, group, _KEY, number), wanted)
        elif groups:
            text = JSON.insert(text, (_KEY, event), _group(line))
        else:
            text = JSON.merge(text, _KEY, event, [_group(line)])
    return text


def unmerge(text: str, before: str | None) -> str | None:
    """Return the file without our hooks, and without what they leave empty unless it was there `before`.

    None if there was no file before and nothing is left.
    """
    left = text
    for event in EVENTS:
        while found := next(_ours(JSON.read(left), event), None):
            group, number, _ = found
            groups = JSON.read(left)[_KEY][event]
            if len(groups[group][_KEY]) > 1:
                left = JSON.remove_value(left, (_KEY, event, group, _KEY, number))
            elif len(groups) > 1 or event in _hooks(JSON.read(before or "")):
                left = JSON.remove_value(left, (_KEY, event, group))
            else:
                left = JSON.remove(left, _KEY, event, before)
    if left == text:
        return text
    if before is not None and JSON.read(left) == JSON.read(before):
        return before
    return None if before is None and left.strip() in ("", "{}") else left


def _ours(whole: dict[str, Any], event: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield our hooks of an event: the number of the group, the number in it, and the hook."""
    groups = _hooks(whole).get(event)
    for number, group in enumerate(groups if isinstance(groups, list) else ()):
        inside = group.get(_KEY) if isinstance(group, dict) else None
        for place, hook in enumerate(inside if isinstance(inside, list) else ()):
            line = hook.get("command") if isinstance(hook, dict) else None
            if isinstance(line, str) and NAME in line and any(part in line for part in _OURS):
                yield number, place, hook


def _hooks(whole: dict[str, Any]) -> dict[str, Any]:
    found = whole.get(_KEY)
    return found if isinstance(found, dict) else {}


def _group(line: str) -> dict[str, Any]:
    return {_KEY: [_hook(line)]}


def _hook(line: str) -> dict[str, Any]:
    return {"type": "command", "command": line, "timeout": _SECONDS}
