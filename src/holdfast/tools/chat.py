"""Tools over the chat, agent `chat`: long-term memory and its undo, and looking for what was said long ago."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from holdfast.errors import Invalid
from holdfast.formats.prompts import Message, one_line
from holdfast.memories.chat import MOST, Match, Saved
from holdfast.model.names import amount
from holdfast.model.times import local
from holdfast.tools.calling import Call
from holdfast.tools.registry import Registry

_LINE = 300
"""Characters that a search shows of a message."""


def memory_write(call: Call, content: Annotated[str, "the whole new text; it replaces the old one"]) -> dict[str, Any]:
    """Replace MEMORY.md, which is in every prompt: what must always be known of the owner and the work. Read it in your
    prompt first and write all of it, short."""
    return _told(call.runner.chat.save_global_memory(content, call.op_id), "MEMORY.md was written")


def memory_undo(call: Call) -> dict[str, Any]:
    """Bring back MEMORY.md as it was before the last memory_write; again, as it was before that."""
    return _told(call.runner.chat.undo_global_memory(call.op_id), "MEMORY.md is as it was before")


def search_history(
    call: Call,
    query: Annotated[str, "words that were said"],
    days: Annotated[int | None, "only the last so many days"] = None,
    max_results: Annotated[int, f"1 to {MOST}"] = 10,
    channel: Annotated[str | None, "only this channel, named as in the labels"] = None,
) -> dict[str, Any]:
    """Find what was said before, on any channel. Use it before you answer from a memory that may be wrong."""
    chat = call.runner.chat
    found = chat.search(query, days, max_results, channel or "")
    parts = [
        _shown(number, _who(chat.label(match.message), match.message), match) for number, match in enumerate(found, 1)
    ]
    text = "\n\n".join(parts) or f"No matches found for '{query}'."
    return {"text": text, "matches": [msgspec.to_builtins(match) for match in found]}


def register(registry: Registry) -> None:
    """Add the tools, in the order in which they are listed."""
    registry.add("chat", render=_text, check=_check_content)(memory_write)
    registry.add("chat", render=_text)(memory_undo)
    registry.add("chat", render=_text, reads=True, check=_check_query)(search_history)


def _check_content(given: Mapping[str, Any]) -> None:
    if given.get("content") == "":
        raise Invalid("The content is empty.", "Write what must always be known; memory_undo takes a text back.")


def _check_query(given: Mapping[str, Any]) -> None:
    query = given.get("query")
    if query is None or (isinstance(query, str) and not query.strip()):
        raise Invalid("Error: query is required")


def _told(saved: Saved, what: str) -> dict[str, Any]:
    text = f"{what} ({amount(saved.tokens, 'token')})."
    if saved.warning:
        text += f" Warning: {saved.warning}"
    reply = {"text": text, "status": saved.receipt.status, "where": saved.receipt.path, "tokens": saved.tokens}
    return reply | ({"warnings": [saved.warning]} if saved.warning else {})


def _who(label: str, message: Message) -> str:
    """Return who said a message and where, also where a prompt shows no label."""
    return label or f"[{one_line(message.channel) or 'no channel'} / {message.role}]"


def _shown(number: int, label: str, match: Match) -> str:
    """Return a match as a model reads it: who, where and when, and up to three lines of what was said."""
    lines = [f"## Match {number} - {label} | {local(match.message.timestamp) or 'no time'}", ""]
    if match.before:
        lines.append(_line(match.before, match.before.content))
    lines.append(f"**{_line(match.message, match.snippet)}**")
    if match.after:
        lines.append(_line(match.after, match.after.content))
    return "\n".join((*lines, "---"))


def _line(message: Message, text: str) -> str:
    flat = " ".join(text.split())
    return f"{message.role.upper()}: {flat if len(flat) <= _LINE else flat[: _LINE - 1] + '…'}"


def _text(reply: dict[str, Any]) -> str:
    return str(reply["text"])
