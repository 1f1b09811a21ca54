"""The hook that shows an agent its memory at the start of a session: our command in a client's settings.

Functions over text, as for the configuration of servers: everything else in the file stays as it is.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.clients import NAME, Client
from holdfast.clients.editors import JSON
from holdfast.errors import Invalid

_KEY, _EVENT = "hooks", "SessionStart"
_OURS = " context --hook "
_SECONDS = 5
WITHIN = ("--within", "1500")
"""The client waits five seconds, so the memory may take longer than on a terminal."""


def location(client: Client, *, project: bool = False) -> str:
    """Return the file of hooks of the user, or of the project in this folder."""
    if not client.hooks:
        raise Invalid(f"{client.title} has no hook for the start of a session.", "Leave out --hook.")
    return os.path.join(os.getcwd() if project else os.path.expanduser("~"), client.hooks)


def command(words: Sequence[str]) -> str:
    """Return a shell command that never fails and prints no errors."""
    return f"{shlex.join(words)} 2>/dev/null || true"


def words(text: str) -> list[str] | None:
    """Return the command of our hook without its redirection, None if there is none."""
    line = find(text)
    if line is None:
        return None
    try:
        return shlex.split(line.partition(" 2>")[0]) or [""]
    except ValueError:
        return [""]


def fragment(line: str) -> str:
    """Return a file with nothing but our hook."""
    return JSON.fresh(_KEY, _EVENT, [_group(line)])


def find(text: str) -> str | None:
    """Return our command, None if there is none; Invalid if the text cannot be read."""
    return next((str(hook["command"]) for _, _, hook in _ours(JSON.read(text))), None)


def merge(text: str, line: str) -> str:
    """Return the file with our hook, once."""
    whole = JSON.read(text)
    for group, number, hook in _ours(whole):
        wanted = hook | _hook(line)
        return text if hook == wanted else JSON.replace(text, (_KEY, _EVENT, group, _KEY, number), wanted)
    every = whole.get(_KEY, {})
    known = every.get(_EVENT, []) if isinstance(every, dict) else None
    if not isinstance(known, list):
        raise Invalid(f'"{_KEY}" does not have the form that it should have.', "Correct the file first.")
    if known:
        return JSON.insert(text, (_KEY, _EVENT), _group(line))
    return JSON.merge(text, _KEY, _EVENT, [_group(line)])


def unmerge(text: str, before: str | None) -> str | None:
    """Return the file without our hooks, and without what they leave empty unless it was there `before`.

    None if there was no file before and nothing is left.
    """
    left = text
    while found := next(_ours(JSON.read(left)), None):
        group, number, _ = found
        groups = JSON.read(left)[_KEY][_EVENT]
        if len(groups[group][_KEY]) > 1:
            left = JSON.remove_value(left, (_KEY, _EVENT, group, _KEY, number))
        elif len(groups) > 1 or _EVENT in _hooks(JSON.read(before or "")):
            left = JSON.remove_value(left, (_KEY, _EVENT, group))
        else:
            left = JSON.remove(left, _KEY, _EVENT, before)
    if left == text:
        return text
    if before is not None and JSON.read(left) == JSON.read(before):
        return before
    return None if before is None and left.strip() in ("", "{}") else left


def _ours(whole: dict[str, Any]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield our hooks: the number of the group, the number in it, and the hook."""
    groups = _hooks(whole).get(_EVENT)
    for number, group in enumerate(groups if isinstance(groups, list) else ()):
        inside = group.get(_KEY) if isinstance(group, dict) else None
        for place, hook in enumerate(inside if isinstance(inside, list) else ()):
            line = hook.get("command") if isinstance(hook, dict) else None
            if isinstance(line, str) and NAME in line and _OURS in line:
                yield number, place, hook


def _hooks(whole: dict[str, Any]) -> dict[str, Any]:
    found = whole.get(_KEY)
    return found if isinstance(found, dict) else {}


def _group(line: str) -> dict[str, Any]:
    return {_KEY: [_hook(line)]}


def _hook(line: str) -> dict[str, Any]:
    return {"type": "command", "command": line, "timeout": _SECONDS}
