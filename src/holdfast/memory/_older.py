"""Messages of older files, as lines of the chat history: each with a zone, a channel, and an id made of what it is.

A line in the history's own form is taken as it is; one that another program wrote is read as its turns.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.formats import logs, transcripts
from holdfast.kinds import ROLES
from holdfast.memory._sources import Report, Source, opened
from holdfast.secrets import redact_all
from holdfast.times import derived_id, is_id, iso, parse_ms
from holdfast.vault._lines import forwards

_KEPT = ("channel", "sender_id", "tool_calls", "tool_call_id", "exchange")


def messages(file: Source, channel: str, longest: int, report: Report) -> list[dict[str, Any]]:
    """Return the messages of a file in their order; the report is told what could not be read."""
    found: list[dict[str, Any]] = []
    alike: Counter[bytes] = Counter()
    try:
        with opened(file.path) as fd:
            report.files += 1
            clock = os.fstat(fd).st_mtime_ns // 1_000_000
            for number, line in enumerate(forwards(fd, 0, os.fstat(fd).st_size, longest), 1):
                values = "longer than a line may be" if line.cut else transcripts.parse(line.data)
                if isinstance(values, str):
                    report.skip(file.path, f"skipped: {values}", number)
                    continue
                told = [message for value in values for message in _told(value)]
                if values and not told:
                    report.skip(file.path, "skipped: it is no message", number)
                for message in told:
                    clock, made = _dated(message, clock, channel, alike)
                    found.append(made)
    except OSError as error:
        report.skip(file.path, f"skipped: {error.strerror or error}")
    return found


def _told(value: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what an object says, as messages without a time that can be relied on."""
    content, calls = value.get("content"), value.get("tool_calls")
    if value.get("role") in ROLES and (isinstance(content, str) or (content is None and calls)):
        given = {"role": value["role"], "content": content or "", "time": value.get("timestamp")}
        yield given | {name: value[name] for name in ("id", *_KEPT) if value.get(name)}
        return
    for turn in transcripts.turns(value):
        if turn["text"].strip():
            yield {"role": turn["role"], "content": turn["text"], "time": turn.get("time")}


def _dated(given: dict[str, Any], clock: int, channel: str, alike: Counter[bytes]) -> tuple[int, dict[str, Any]]:
    """Return a message as its line, and the time that one without a time has behind it."""
    told = parse_ms(given.pop("time"))
    clock = clock if told is None else told
    own = given.pop("id", None)
    line = redact_all({"timestamp": iso(clock), **given})
    if channel:
        line.setdefault("channel", channel)
    form = logs.render(line)
    alike[form] += 1  # the same may be said twice in one second
    made = own if is_id(own) else derived_id(clock, form + b"%d" % alike[form])
    return clock, {"id": made, **line}
