"""The hook that shows an agent its memory when a session starts: our command among those of a client's settings.

Pure functions over text, like the configuration of servers: what else stands in the file stays as it is.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.clients import NAME, Client, _json
from holdfast.errors import Invalid

_KEY, _EVENT = "hooks", "SessionStart"
_OURS = " context --hook "
_SECONDS = 5
WITHIN = ("--within", "1500")
"""The client waits for five seconds, so the memory may take longer than a person would like to wait."""


def location(client: Client, *, project: bool = False) -> str:
    """Return the file of the client's hooks: the user's, or that of the project in this folder."""
    if not client.hooks:
        raise Invalid(f"{client.title} has no hook for the start of a session.", "Leave out --hook.")
    return os.path.join(os.getcwd() if project else os.path.expanduser("~"), client.hooks)


def command(words: Sequence[str]) -> str:
    """Return a command for a shell, which never fails and never complains."""
    return f"{shlex.join(words)} 2>/dev/null || true"


def words(said: str) -> list[str]:
    """Return the words of such a command, [] when they cannot be read."""
    try:
        return shlex.split(said.partition(" 2>")[0])
    except ValueError:
        return []


def fragment(said: str) -> str:
    """Return what a file with nothing but our hook says."""
    return _json.fresh(_KEY, _EVENT, [_group(said)])


def find(text: str) -> str | None:
    """Return our command as it is, None when there is none; Invalid when the text cannot be read."""
    return next((str(hook["command"]) for _, _, hook in _ours(_json.read(text))), None)


def merge(text: str, said: str) -> str:
    """Return the file with our hook, once."""
    whole = _json.read(text)
    for group, number, hook in _ours(whole):
        if hook == (wanted := hook | _hook(said)):
            return text
        return _json.put(text, (_KEY, _EVENT, group, _KEY, number), wanted)
    every = whole.get(_KEY, {})
    known = every.get(_EVENT, []) if isinstance(every, dict) else None
    if not isinstance(known, list):
        raise Invalid(f'"{_KEY}" does not have the form that it should have.', "Correct the file first.")
    if known:
        return _json.add(text, (_KEY, _EVENT), _group(said))
    return _json.merge(text, _KEY, _EVENT, [_group(said)])


def unmerge(text: str, before: str | None) -> str | None:
    """Return the file without our hook, as it was before; None when there was none and nothing is left."""
    left = text
    while found := next(_ours(_json.read(left)), None):
        left = _without(left, found[0], found[1], before)
    if left == text:
        return text
    if before is not None and _json.read(left) == _json.read(before):
        return before
    return None if before is None and left.strip() in ("", "{}") else left


def _without(text: str, group: int, number: int, before: str | None) -> str:
    """Take one of our hooks out, and what it leaves empty and was not there before."""
    groups = _json.read(text)[_KEY][_EVENT]
    if len(groups[group][_KEY]) > 1:
        return _json.take(text, (_KEY, _EVENT, group, _KEY), number)
    if len(groups) > 1 or _EVENT in _hooks(_json.read(before or "")):
        return _json.take(text, (_KEY, _EVENT), group)
    return _json.remove(text, _KEY, _EVENT, before)


def _ours(whole: dict[str, Any]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield where our hooks are: the number of the group, the number in it, and the hook."""
    groups = _hooks(whole).get(_EVENT)
    for number, group in enumerate(groups if isinstance(groups, list) else ()):
        inside = group.get(_KEY) if isinstance(group, dict) else None
        for place, hook in enumerate(inside if isinstance(inside, list) else ()):
            said = hook.get("command") if isinstance(hook, dict) else None
            if isinstance(said, str) and NAME in said and _OURS in said:
                yield number, place, hook


def _hooks(whole: dict[str, Any]) -> dict[str, Any]:
    found = whole.get(_KEY)
    return found if isinstance(found, dict) else {}


def _group(said: str) -> dict[str, Any]:
    return {_KEY: [_hook(said)]}


def _hook(said: str) -> dict[str, Any]:
    return {"type": "command", "command": said, "timeout": _SECONDS}
