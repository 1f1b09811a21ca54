"""Making a memory root: settings, and what git should know. Nothing that is there is ever overwritten."""

from __future__ import annotations

import os

from holdfast import settings
from holdfast.errors import Unavailable
from holdfast.settings import Paths

_TOML = f"""\
# Settings of this memory. All have defaults; docs/reference/settings.md lists them.
format = {settings.FORMAT}
"""
_ATTRIBUTES = ("*.jsonl merge=union",)
_IGNORE = (f"{settings.DERIVED}/", "traces/", "runs/", "writes/kept/", ".holdfast-tmp-*")


def make_root(location: str) -> list[str]:
    """Make the folder a memory root; return the files that were written or extended."""
    try:
        os.makedirs(location, exist_ok=True)
        written = [_create(location, settings.FILE, _TOML)]
        written += [
            _extend(location, name, lines) for name, lines in ((".gitattributes", _ATTRIBUTES), (".gitignore", _IGNORE))
        ]
        for folder in (getattr(Paths(), name) for name in Paths.__struct_fields__):
            os.makedirs(os.path.join(location, folder), exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"{location} cannot be made a memory root: {error.strerror}.", "Choose a folder that you may write to."
        ) from None
    return [name for name in written if name]


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
