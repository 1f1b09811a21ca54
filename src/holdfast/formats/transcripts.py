"""Transcripts: the lines that other programs write about a conversation, read as plain turns.

Claude Code, Codex and Cursor have their own forms, and exported chats have many more. A turn is `{role, text}` with
`time`, `session`, `folder` and `agent` if the line has them; `role` is user, assistant, system or tool. Messages are
kept whole; a tool call becomes one line, and its result is cut. Snapshots, progress and thinking are not turns.
Nothing here raises on its input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.formats import jsonl
from holdfast.model.patterns import regex
from holdfast.model.times import is_id, parse_ms

MAX_TOOL = 2_000
"""Characters kept of a tool call and of its result."""
_EDGE = 500
"""Characters beyond a cut that are cleaned and then dropped: half of a secret has no known format."""
_DEEPEST = 6
_ROLES = {
    "user": "user", "human": "user",
    "assistant": "assistant", "gpt": "assistant", "ai": "assistant", "model": "assistant", "bot": "assistant",
    "chatgpt": "assistant", "system": "system", "developer": "system", "tool": "tool", "function": "tool",
    "observation": "tool",
}  # fmt: skip
_TIMES = ("timestamp", "time", "created_at", "createdAt", "ts", "create_time", "date")
_SESSIONS = ("session", "sessionId", "session_id", "conversation_id", "conversationId", "thread_id", "threadId")
_WHOLE = ("messages", "conversations", "conversation", "chat_messages")
_CONTENT = ("content", "text", "message", "value", "parts", "data")
_SILENT = ("thinking", "redacted_thinking", "reasoning")
_BINARY = {"image": "[image]", "audio": "[audio]", "video": "[video]", "document": "[document]", "file": "[file]"}
_ENVELOPES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted", "world_state")
_INJECTED = (
    "<environment_context>", "<user_instructions>", "<permissions instructions>", "<collaboration_mode>",
    "<skills_instructions>", "<apps_instructions>", "<plugins_instructions>", "<turn_aborted>",
    "# AGENTS.md instructions",
)  # fmt: skip
"""Beginnings of the texts that Codex adds before the first message of a user."""
_HALF = regex(
    rb"\\u[dD][89aAbB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|"
    rb"(?<!\\u[dD][89aAbB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_DIGITS = regex(r"[0-9]{9,16}\Z")
_ITEM = regex(r"(?:^message|^reasoning|_call|_call_output)\Z")
Clean = Callable[[Any], Any]
Said = tuple[str, str]


def parse(data: bytes) -> list[dict[str, Any]] | str:
    """Read the objects of one line like `jsonl.parse`, with lone surrogates, which some programs write, replaced."""
    found = jsonl.parse(data)
    if isinstance(found, str) and (valid := _HALF.sub(rb"\\ufffd", data)) != data:
        return jsonl.parse(valid)
    return found


def turns(value: Mapping[str, Any], clean: Clean = lambda given: given) -> list[dict[str, Any]]:
    """Return the turns of one JSON object; `clean` is applied to every text before it is cut."""
    if is_id(value.get("id")) and value.get("role") in _ROLES.values() and isinstance(value.get("text"), str):
        own = {name: inner for name, inner in value.items() if name != "hide"}
        return [own | {"text": clean(value["text"])}]
    about = _about(value, clean)
    lines: list[tuple[dict[str, Any], Mapping[str, Any]]] = [(about, value)]
    whole = next((value[name] for name in _WHOLE if isinstance(value.get(name), list)), None)
    if whole is not None and "role" not in value:  # a whole conversation
        named = value.get("id", value.get("uuid"))
        if "session" not in about and isinstance(named, str) and named:
            about["session"] = clean(named)
        lines = [(about | _about(message, clean), message) for message in whole if isinstance(message, Mapping)]
    found, seen = list[dict[str, Any]](), Counter[str]()
    for known, line in lines:
        for role, text in _line(line, clean):
            turn = {"role": role, "text": text} | known
            alike = repr(turn)
            seen[alike] += 1
            found.append(turn | {"part": seen[alike]} if seen[alike] > 1 else turn)
    return found


def header(value: Mapping[str, Any]) -> dict[str, str]:
    """Return the session and folder in the first line of a Codex rollout, in its new form or its old one."""
    inner = value.get("payload") if value.get("type") == "session_meta" else None
    if {"id", "timestamp"} <= value.keys() and not {"type", "role"} & value.keys():
        inner = value
    found = {"session": inner.get("id"), "folder": inner.get("cwd")} if isinstance(inner, Mapping) else {}
    return {name: text for name, text in found.items() if isinstance(text, str) and text}


def _about(value: Mapping[str, Any], clean: Clean) -> dict[str, Any]:
    about: dict[str, Any] = {}
    time = next((value[name] for name in _TIMES if parse_ms(_number(value.get(name))) is not None), None)
    if time is not None:
        about["time"] = _number(time)
    sessions = [value[name] for name in _SESSIONS if type(value.get(name)) in (str, int) and value[name] != ""]
    if sessions:
        about["session"] = clean(str(sessions[0]))
    for name, given in (("folder", value.get("cwd", value.get("folder"))), ("agent", value.get("agentId"))):
        if isinstance(given, str) and given:
            about[name] = clean(given)
    if value.get("isSidechain") is True:
        about.setdefault("agent", "sidechain")
    return about


def _line(value: Mapping[str, Any], clean: Clean) -> Iterator[Said]:
    """Yield role and text of a line of any program."""
    kind, payload, message = value.get("type"), value.get("payload"), value.get("message")
    if kind in _ENVELOPES:
        # events repeat the content of the response items
        if kind == "response_item" and isinstance(payload, Mapping):
            yield from _item(payload, clean)
        elif kind == "compacted" and isinstance(payload, Mapping):
            yield from _spoken("system", payload.get("message"), clean)
    elif isinstance(kind, str) and _ITEM.search(kind) and (kind != "message" or isinstance(value.get("content"), list)):
        yield from _item(value, clean)
    elif kind in ("tool_use", "tool_result"):
        yield from _spoken("assistant", [value], clean)
    elif value.get("isMeta") is True:
        return
    elif kind == "summary":
        yield from _spoken("system", value.get("summary"), clean)
    elif kind == "attachment":
        queued = value.get("attachment")
        if isinstance(queued, Mapping) and queued.get("type") == "queued_command":
            yield from _spoken("user", queued.get("prompt"), clean)
    elif isinstance(message, Mapping):
        role = "system" if value.get("isCompactSummary") is True else _role(message) or _role(value)
        yield from _chat(role, message, clean)
    else:
        yield from _chat(_role(value), value, clean)


def _item(item: Mapping[str, Any], clean: Clean) -> Iterator[Said]:
    """Read one item of the OpenAI Responses API."""
    kind = str(item.get("type"))
    if kind == "message":
        content, role = item.get("content"), _role(item)
        if isinstance(content, list):
            content = [part for part in content if not _text(part).lstrip().startswith(_INJECTED)]
        if role != "system":
            yield from _chat(role, {"content": content}, clean)
    elif kind.endswith("_output"):
        output = item.get("output", item.get("result"))
        if isinstance(output, str) and output.startswith('{"output"'):
            output = _decoded(output)
        for name in ("output", "content"):  # without the data about the run
            if isinstance(output, Mapping) and isinstance(output.get(name), str | list):
                output = output[name]
        yield from _result(output, clean)
    elif kind.endswith("_call"):
        name, space = item.get("name") or kind.removesuffix("_call"), item.get("namespace")
        name = f"{space.rstrip('_')}__{name}" if isinstance(space, str) and space else name
        given = next((item[key] for key in ("arguments", "input", "action") if item.get(key) is not None), None)
        yield "assistant", _call(name, given, clean)


def _chat(role: str, message: Mapping[str, Any], clean: Clean) -> Iterator[Said]:
    """Read a chat message: its text may be in one of several fields, its tool calls beside it or in it."""
    if not role:
        return
    content = next((message[name] for name in _CONTENT if message.get(name) is not None), None)
    if isinstance(content, Mapping):
        content = content.get("parts", content.get("text", content.get("content")))
    calls = message.get("tool_calls")
    called = [inner for call in (calls if isinstance(calls, list) else []) if (inner := _function(call))]
    if inner := _function({"function": message.get("function_call")}):
        called.append(inner)
    yield from _spoken(role, content, clean, [_call(name, given, clean) for name, given in called])


def _spoken(role: str, content: Any, clean: Clean, calls: list[str] | None = None) -> Iterator[Said]:
    """Yield the text of a message with its tool calls as lines, and results of tools as turns of their own."""
    parts: list[str] = []
    for block in content if isinstance(content, list) else [content]:
        kind = str(block.get("type")) if isinstance(block, Mapping) else ""
        if kind.endswith("tool_result"):
            yield from _joined(role, parts, clean)
            parts = []
            yield from _result(block.get("content"), clean)
        elif kind.endswith(("tool_use", "tool-call")):
            name, given = block.get("name", block.get("toolName")), block.get("input", block.get("args"))
            parts.append(_call(name, given, clean))
        elif text := _text(block):
            parts.append(text if role == "tool" else clean(text))  # the text of a tool is cleaned when it is cut
    yield from _joined(role, [*parts, *(calls or [])], clean)


def _joined(role: str, parts: list[str], clean: Clean) -> list[Said]:
    text = "\n".join(parts)
    if role == "tool" and text.strip():
        short = _head(text, clean)
        text = short if len(text) <= MAX_TOOL else f"{short[:MAX_TOOL]}… ({len(text):,} characters)"
    return [(role, text)] if text.strip() else []


def _result(content: Any, clean: Clean) -> list[Said]:
    """Return the result of a tool: the texts in it, or else the data as JSON."""
    blocks = content if isinstance(content, list) else [content]
    parts = list(filter(None, map(_text, blocks)))
    if not parts and isinstance(content, Mapping | list) and content:
        parts = [_json(content)]
    return _joined("tool", parts, clean)


def _text(block: Any) -> str:
    """Return the text of one part of a message, or a word for an image or another file."""
    if isinstance(block, str):
        return block
    if not isinstance(block, Mapping) or block.get("type") in _SILENT:
        return ""
    text = block.get("text", block.get("content"))
    if isinstance(text, Mapping):
        text = text.get("value", text.get("text"))
    if isinstance(text, str):
        return text
    kind = str(block.get("type"))
    return next((mark for name, mark in _BINARY.items() if name in kind), "")


def _call(name: Any, given: Any, clean: Clean) -> str:
    """Return a tool call as one line: its name, and its arguments as JSON."""
    if isinstance(given, str):
        given = _decoded(given)
    short = f"{name} {_json(clean(_folded(given, clean)))}" if given is not None else str(name)
    return short if len(short) <= MAX_TOOL else f"{short[:MAX_TOOL]}… ({len(_json(given)):,} characters)"


def _function(call: Any) -> tuple[Any, Any] | None:
    """Return name and arguments of a call in OpenAI's chat format."""
    function = call.get("function") if isinstance(call, Mapping) else None
    named = function if isinstance(function, Mapping) else call if isinstance(call, Mapping) else {}
    return (named["name"], named.get("arguments", named.get("args"))) if named.get("name") else None


def _head(text: str, clean: Clean) -> str:
    """Return the beginning of a text, cleaned, without a part that the cut may have split."""
    short: str = clean(text[: MAX_TOOL + _EDGE])
    return short if len(text) <= MAX_TOOL + _EDGE else short[: max(0, len(short) - _EDGE)]


def _folded(value: Any, clean: Clean, depth: int = 0) -> Any:
    """Return the arguments of a tool with every text on one line, as far as they are shown."""
    if isinstance(value, str):
        text = " ".join(value.split())
        return text if len(text) <= MAX_TOOL else _head(text, clean)
    if depth >= _DEEPEST and isinstance(value, Mapping | list):
        return "…"
    if isinstance(value, Mapping):
        return {str(name): _folded(inner, clean, depth + 1) for name, inner in value.items()}
    return [_folded(inner, clean, depth + 1) for inner in value] if isinstance(value, list) else value


def _json(value: Any) -> str:
    import json

    try:
        return json.dumps(value, ensure_ascii=False, separators=(", ", ": "), default=str)
    except (ValueError, TypeError, RecursionError):
        return "…"


def _decoded(text: str) -> Any:
    """Return the JSON in a text, or the text itself."""
    try:
        return msgspec.json.decode(text) if text.lstrip()[:1] in ("{", "[") else text
    except (ValueError, RecursionError):
        return text


def _role(value: Mapping[str, Any]) -> str:
    """Return the role of a message, "" when it has none."""
    author = value.get("author")
    given = (
        value.get("role"), value.get("from"), value.get("sender"), value.get("type"),
        author.get("role") if isinstance(author, Mapping) else author,
    )  # fmt: skip
    return next((_ROLES[name.lower()] for name in given if isinstance(name, str) and name.lower() in _ROLES), "")


def _number(value: Any) -> Any:
    """Return a time that is written as digits as a number."""
    return int(value) if isinstance(value, str) and _DIGITS.match(value) else value
