"""The settings of a memory: which are in effect and why, and replacing them.

They can be read and fixed even if they keep the memory from being opened, in files and in a database.
"""

from __future__ import annotations

import os
import tomllib

import msgspec

from holdfast import secrets
from holdfast.errors import NotFound, OverBudget
from holdfast.model import settings
from holdfast.roots import MOST_SETTINGS, open_tree, settings_text
from holdfast.storage.tree import ABSENT
from holdfast.storage.write_log import kept_path


class Setting(msgspec.Struct, frozen=True):
    """One setting, with secrets redacted."""

    name: str
    value: object
    source: str
    """`holdfast.toml`, the environment variable that it comes from, or `default`."""


def text_of(root: str) -> str:
    """Return the text of the settings as it is, "" when there is none."""
    with open_tree(root) as tree:
        return settings_text(tree)


def in_effect(text: str) -> list[Setting]:
    """Return all settings that this text and the environment result in."""
    config, given = settings.load(text), tomllib.loads(text)
    found = [Setting("format", config.format, settings.FILE if "format" in given else "default")]
    for section, fields in settings.tables().items():
        for field in fields:
            variable = f"HOLDFAST_{section}_{field}".upper()
            source = settings.FILE if field in given.get(section, {}) else "default"
            value = secrets.redact_all(msgspec.to_builtins(getattr(getattr(config, section), field)))
            found.append(Setting(f"{section}.{field}", value, variable if variable in os.environ else source))
    return found


def put(root: str, text: str) -> None:
    """Replace the settings by this text if it is valid; the text before is kept."""
    data = text.encode()
    if len(data) > MOST_SETTINGS:
        raise OverBudget(f"The new text is longer than {MOST_SETTINGS:,} bytes.", "Shorten it.")
    config = settings.load(text, environment={}, source="The new text")
    with open_tree(root) as tree:
        try:
            version = tree.read(settings.FILE).version
        except NotFound:
            version = ABSENT
        keep = kept_path(config.paths.memory, version) if version != ABSENT else ""
        tree.write(settings.FILE, data, expect=version, keep=keep)
