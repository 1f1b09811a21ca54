"""Messages of older files, as lines of the chat history: each with a zone and a channel, in the order of the file.

A line in the history's own form is taken as it is; one that another program wrote is read as its turns. What a message
is, apart from when the file was written and which channel it is given, is its `origin`: by that it is known again.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.formats import jsonl, transcripts
from holdfast.memories._sources import Report, Source, opened
from holdfast.model.kinds import ROLES
from holdfast.model.times import derived_id, is_id, iso, parse_ms
from holdfast.storage.files.lines import forwards

_KEPT = ("channel", "sender_id", "tool_calls", "tool_call_id", "exchange")


def messages(file: Source, channel: str, longest: int, report: Report) -> Iterator[dict[str, Any]]:
    """Yield the messages of a file in their order; the report is told what could not be read."""
    try:
        with opened(file.path) as fd:
            report.files += 1
            clock = _Clock(os.fstat(fd).st_mtime_ns // 1_000_000)
            for number, line in enumerate(
                forwards(functools.partial(os.pread, fd), 0, os.fstat(fd).st_size, longest), 1
            ):
                values = "longer than a line may be" if line.cut else transcripts.parse(line.data)
                if isinstance(values, str):
                    report.skip(file.path, f"skipped: {values}", number)
                    continue
                told = [message for value in values for message in _told(value)]
                if values and not told:
                    report.skip(file.path, "skipped: it is no message", number)
                for message in told:
                    if message["role"] == "system":
                        report.skip(file.path, "skipped: what a system was told is no message to anybody", number)
                    else:
                        yield clock.line(message, channel)
    except OSError as error:
        report.skip(file.path, f"skipped: {error.strerror or error}")


class _Clock:
    """Gives each message of a file a place in time behind the one before it, also where the file tells no times."""

    def __init__(self, modified: int) -> None:
        self._last = modified
        self._place = 0
        self._alike: Counter[bytes] = Counter()

    def line(self, given: dict[str, Any], channel: str) -> dict[str, Any]:
        """Return a message as a line of the history."""
        own = given.pop("id", None)
        form = jsonl.render(given)
        self._alike[form] += 1  # the same may be said twice in one second
        origin = hashlib.blake2b(form + b"%d" % self._alike[form], digest_size=10).hexdigest()
        told = parse_ms(given.pop("time"))
        self._last = self._last if told is None else told
        self._place = max(self._last, self._place + 1)
        line: dict[str, Any] = {"timestamp": iso(self._last), **given, "origin": origin}
        line.setdefault("channel", channel or "imported")
        made = own if is_id(own) else derived_id(self._place, origin.encode())
        return {"id": made, **line}


def _told(value: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what an object says, as messages; their time is that which the object tells, whatever it is."""
    content, calls = value.get("content"), value.get("tool_calls")
    if value.get("role") in ROLES and (isinstance(content, str) or (content is None and calls)):
        given = {"role": value["role"], "content": content or "", "time": value.get("timestamp")}
        yield given | {name: _text(value[name]) for name in ("id", *_KEPT) if value.get(name)}
        return
    for turn in transcripts.turns(value):
        if turn["text"].strip():
            yield {"role": turn["role"], "content": turn["text"], "time": turn.get("time")}


def _text(value: Any) -> Any:
    """Return a number as its text: a room may be one."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
