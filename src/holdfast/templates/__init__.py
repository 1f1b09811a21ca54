"""What `holdfast init --template` starts a memory with: first rules, and the command that saves what was learned.

The files lie here as they do in a root with default paths. The prompts of the server are made of the same texts.
What a model is told, when one is asked, lies beside them in `prompts/` and is written nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

RULES, COMMANDS = "agent/rules", "agent/commands"
"""Where rules and commands lie here; a root may have them elsewhere."""
WORKFLOW = "common/workspace-workflow.md"
SAVE_MEMORY = "common/save-memory.md"
CHAT_MEMORY = "common/chat-memory.md"
SUMMARY = "prompts/summary.md"
LEARNING_CYCLE = "Learning cycle"
"""The heading in WORKFLOW below which stands when something is worth saving."""


def files() -> dict[str, str]:
    """Return every file that a root can start with, by its path."""
    found = _found(_top().joinpath("agent"), "agent/")
    return {path: entry.read_text(encoding="utf-8") for path, entry in sorted(found.items())}


def text(path: str) -> str:
    """Return the text of one template."""
    return _top().joinpath(path).read_text(encoding="utf-8")


def _top() -> Traversable:
    from importlib import resources  # costs a few milliseconds

    return resources.files(__name__)


def _found(folder: Traversable, above: str) -> dict[str, Traversable]:
    found: dict[str, Traversable] = {}
    for entry in folder.iterdir():
        path = f"{above}{entry.name}"
        if entry.is_dir():
            found |= _found(entry, f"{path}/")
        elif path.endswith(".md"):
            found[path] = entry
    return found
