"""The messages that a chat bot sends, made of its history: who says what, and calls with their answers."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.model.names import same

MEMORY = "## Your Memory"
"""What stands above long-term memory in every prompt."""
Alias = str | Mapping[str, str]
"""An address of the owner: in any channel, or `{address, channel}` in one and in its rooms."""
_OWN = ("owner", "assistant", "unknown")
_LIKE_A_LABEL = re.compile(r"^\[(?=[^\[\]\n]* / [^\[\]\n]*\][ \t\r]*$)", re.MULTILINE)
_SLASH = re.compile(r"\s*/\s*")


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a conversation."""

    role: str
    content: str
    timestamp: str = ""
    channel: str = ""
    sender_id: str = ""
    tool_calls: list[Any] | None = None
    tool_call_id: str = ""
    exchange: str = ""
    id: str = ""


def messages(
    history: Iterable[Message],
    memory: str,
    user_message: str,
    system_prompt: str,
    owner_aliases: Sequence[Alias] = (),
) -> list[dict[str, Any]]:
    """Return a prompt: system prompt with long-term memory, the history with labels, what the user says now.

    A tool's call and its answers are kept together or left out together, since models refuse one without the other.
    """
    block = f"{MEMORY}\n\n{memory}" if memory.strip() else ""
    system = "\n\n".join(part for part in (system_prompt, block) if part.strip())
    made: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    made += [_shown(message, owner_aliases) for message in usable(history)]
    return [*made, {"role": "user", "content": user_message}]


def label(message: Message, owner_aliases: Sequence[Alias] = ()) -> str:
    """Return who says this and where, `[channel / owner]`, as one line; "" where nothing says it."""
    channel = _plain(message.channel)
    if not channel or message.role not in ("user", "assistant"):
        return ""
    return f"[{channel} / {'assistant' if message.role == 'assistant' else _sender(message, owner_aliases)}]"


def one_line(text: str) -> str:
    """Return a text as one line, without anything that could end it or hide in it."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _shown(message: Message, owner_aliases: Sequence[Alias]) -> dict[str, Any]:
    above = label(message, owner_aliases) if message.content.strip() else ""
    content = message.content if message.role == "tool" else _LIKE_A_LABEL.sub(r"\\\g<0>", message.content)
    shown: dict[str, Any] = {"role": message.role, "content": f"{above}\n{content}" if above else content}
    if message.tool_calls:
        shown["tool_calls"] = list(message.tool_calls)
    if message.role == "tool":
        shown["tool_call_id"] = message.tool_call_id
    return shown


def _sender(message: Message, owner_aliases: Sequence[Alias]) -> str:
    """Return who sent a message; somebody who is named like us is nobody that is known."""
    if any(_sent(message, alias) for alias in owner_aliases):
        return "owner"
    name = _plain(message.sender_id)
    return "unknown" if same(unicodedata.normalize("NFKC", name)) in ("", *_OWN) else name


def _sent(message: Message, alias: Alias) -> bool:
    """Is this address of the owner the sender of a message?"""
    address, channel = (alias, "") if isinstance(alias, str) else (alias.get("address", ""), alias.get("channel", ""))
    here, wanted = same(message.channel), same(channel or "")
    inside = not wanted or here == wanted or here.startswith(f"{wanted}:")
    return inside and bool(same(address)) and same(message.sender_id) == same(address)


def _plain(name: str) -> str:
    """Return a name as it can stand in a label: on one line, without its end and without its separator."""
    return _SLASH.sub("/", one_line(name.replace("]", " ")))


def usable(history: Iterable[Message]) -> list[Message]:
    """Return the messages that say something, without calls that nobody answered and answers that nobody asked for."""
    told = [each for each in history if each.content.strip() or each.tool_calls or each.role == "tool"]
    kept: list[Message] = []
    for place, message in enumerate(told):
        if message.role == "tool":
            continue  # it is kept with its call
        calls = message.tool_calls if message.role == "assistant" else None
        answers = _answers(calls, itertools.islice(told, place + 1, None)) if calls else []
        if answers:
            kept += [message, *answers]
        elif message.content.strip():
            kept.append(msgspec.structs.replace(message, tool_calls=None) if message.tool_calls else message)
    return kept


def _answers(calls: Sequence[Any], following: Iterable[Message]) -> list[Message]:
    """Return the answers that stand right behind these calls; nothing unless every call has one."""
    ids = [str(call.get("id") or "") if isinstance(call, Mapping) else "" for call in calls]
    found: dict[str, Message] = {}
    for message in following:
        if message.role != "tool":
            break
        if message.tool_call_id in ids:
            found.setdefault(message.tool_call_id, message)
    return list(found.values()) if all(each and each in found for each in ids) else []
