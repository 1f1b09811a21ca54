"""Making a memory root: settings, what git should know, and on request a first set of rules.

Nothing that is there is ever overwritten.
"""

from __future__ import annotations

import contextlib
import os

from holdfast import templates
from holdfast.core import Core
from holdfast.errors import AlreadyExists, Invalid, Unavailable
from holdfast.model import settings
from holdfast.model.settings import Paths
from holdfast.opening import is_address, open_folder, open_memory
from holdfast.storage.tree import ABSENT, Vault

_TOML = f"""\
# Settings of this memory. All have defaults; docs/reference/settings.md lists them.
format = {settings.FORMAT}
"""
_ATTRIBUTES = ("*.jsonl merge=union",)
_FOLDERS = ("rules", "memory", "workspaces")
"""What a new root has; other folders come with the first file in them."""


def make_root(location: str, template: bool = False) -> list[str]:
    """Make the folder a memory root, with rules to start from if wanted; return the files written or extended."""
    if is_address(location):
        return set_up(location, template)[1]
    try:
        os.makedirs(location, exist_ok=True)
        written = [_create(location, settings.FILE, _TOML)]
        paths = _paths(location)
        written += [
            _extend(location, ".gitattributes", _ATTRIBUTES),
            _extend(location, ".gitignore", _ignored(paths)),
        ]
        for folder in (getattr(paths, name) for name in _FOLDERS):
            os.makedirs(os.path.join(location, folder), exist_ok=True)
        if template:
            written += _copied(location, _templates(paths))
    except OSError as error:
        raise Unavailable(
            f"{location} cannot be made a memory root: {error.strerror}.", "Choose a folder that you may write to."
        ) from None
    return [name for name in written if name]


def set_up(address: str, template: bool = False) -> tuple[str, list[str]]:
    """Set up a memory in a database that may be empty; return how it is shown to people, and the files written."""
    with open_memory(address, kind=Core) as memory:
        files = {settings.FILE: _TOML} | (_templates(memory.settings.paths) if template else {})
        return memory.root, _put(memory.vault, files)


def _paths(location: str) -> Paths:
    """Return where everything is in this root."""
    source = os.path.join(location, settings.FILE)
    try:
        with open(source, encoding="utf-8") as file:
            return settings.load(file.read(), source=source).paths
    except UnicodeDecodeError:
        raise Invalid(f"{source} is not UTF-8.", "Save it as UTF-8.") from None


def _ignored(paths: Paths) -> tuple[str, ...]:
    """Say what git should leave alone: what is derived, what is many, what is over soon."""
    places = ("traces/", "sessions/*/runs/", "writes/kept/")
    return (f"{settings.DERIVED}/", ".holdfast-tmp-*", *(f"/{paths.memory}/{place}" for place in places))


def _templates(paths: Paths) -> dict[str, str]:
    """Return the templates by the paths that they have in this root."""
    found = {}
    for path, text in templates.files().items():
        for usual, here in ((templates.RULES, paths.rules), (templates.COMMANDS, paths.commands)):
            if path.startswith(f"{usual}/"):
                found[here + path.removeprefix(usual)] = text
    return found


def _copied(location: str, files: dict[str, str]) -> list[str]:
    """Write the files that are not there yet; through a vault, so that no link leads out of the root."""
    with contextlib.closing(open_folder(location)) as vault:
        return _put(vault, files)


def _put(vault: Vault, files: dict[str, str]) -> list[str]:
    written = []
    for path, text in files.items():
        with contextlib.suppress(AlreadyExists):
            vault.write(path, text.encode(), expect=ABSENT)
            written.append(path)
    return written


def _create(location: str, name: str, text: str) -> str:
    try:
        with open(os.path.join(location, name), "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return ""
    return name


def _extend(location: str, name: str, lines: tuple[str, ...]) -> str:
    path = os.path.join(location, name)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            there = file.read()
    except FileNotFoundError:
        there = ""
    missing = [line for line in lines if line not in there.splitlines()]
    if not missing:
        return ""
    with open(path, "a", encoding="utf-8") as file:
        file.write(("" if there.endswith("\n") or not there else "\n") + "\n".join(missing) + "\n")
    return name
