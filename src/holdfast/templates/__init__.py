"""The files that `holdfast init --template` starts a memory with: first rules, and commands for agents.

They are stored here as in a root with default paths. The prompts of the MCP server are made from the same texts.
`prompts/` has other prompts, for clients and for the optional model; it is not copied to a root.
"""

from __future__ import annotations

import os

RULES, COMMANDS = "agent/rules", "agent/commands"
"""Folders of rules and commands; a root may have them elsewhere."""
WORKFLOW = "common/workspace-workflow.md"
SAVE_MEMORY = "common/save-memory.md"
CHAT_MEMORY = "common/chat-memory.md"
RESUME, SAVE_STATE, SUMMARY = "prompts/resume.md", "prompts/save-state.md", "prompts/summary.md"
LEARNING_CYCLE = "Learning cycle"
"""The heading in WORKFLOW of the section about what to save."""
_TOP = os.path.dirname(__file__)


def files() -> dict[str, str]:
    """Return the text of every file for a new root, by its path."""
    found = [
        os.path.relpath(os.path.join(folder, name), _TOP)
        for folder, _, names in os.walk(os.path.join(_TOP, "agent"))
        for name in names
        if name.endswith(".md")
    ]
    return {path: text(path) for path in sorted(found)}


def text(path: str) -> str:
    with open(os.path.join(_TOP, path), encoding="utf-8") as file:
        return file.read()
