"""Making a memory root: settings, what git should know, and on request a first set of rules.

Nothing that is there is ever overwritten.
"""

from __future__ import annotations

import os

from holdfast import settings, templates
from holdfast.errors import Invalid, Unavailable
from holdfast.settings import Paths

_TOML = f"""\
# Settings of this memory. All have defaults; docs/reference/settings.md lists them.
format = {settings.FORMAT}
"""
_ATTRIBUTES = ("*.jsonl merge=union",)
_FOLDERS = ("rules", "memory", "workspaces")
"""What a new root has; other folders come with the first file in them."""
_IGNORE = (f"{settings.DERIVED}/", "traces/", "runs/", "writes/kept/", ".holdfast-tmp-*")


def make_root(location: str, template: bool = False) -> list[str]:
    """Make the folder a memory root, with rules to start from if wanted; return the files written or extended."""
    try:
        os.makedirs(location, exist_ok=True)
        written = [_create(location, settings.FILE, _TOML)]
        written += [
            _extend(location, name, lines) for name, lines in ((".gitattributes", _ATTRIBUTES), (".gitignore", _IGNORE))
        ]
        for folder in (getattr(Paths(), name) for name in _FOLDERS):
            os.makedirs(os.path.join(location, folder), exist_ok=True)
        if template:
            written += [_create(location, path, text) for path, text in _templates(location).items()]
    except OSError as error:
        raise Unavailable(
            f"{location} cannot be made a memory root: {error.strerror}.", "Choose a folder that you may write to."
        ) from None
    return [name for name in written if name]


def _templates(location: str) -> dict[str, str]:
    """Return the templates by the paths that they have in this root."""
    source = os.path.join(location, settings.FILE)
    try:
        with open(source, encoding="utf-8") as file:
            paths = settings.load(file.read(), source=source).paths
    except UnicodeDecodeError:
        raise Invalid(f"{source} is not UTF-8.", "Save it as UTF-8.") from None
    found = {}
    for path, text in templates.files().items():
        for usual, here in ((templates.RULES, paths.rules), (templates.COMMANDS, paths.commands)):
            if path.startswith(f"{usual}/"):
                found[here + path.removeprefix(usual)] = text
    return found


def _create(location: str, name: str, text: str) -> str:
    path = os.path.join(location, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        with open(path, "x", encoding="utf-8") as file:
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
