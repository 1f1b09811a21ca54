"""What a server says of its work: one line for each call and for each refusal, as JSON or for people.

A line tells who did what and how it ended. It never holds what was asked, found or written, and no token.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Literal, TextIO

import msgspec

from holdfast.model.times import utc_now

Form = Literal["text", "json", "none"]
FORMS: tuple[Form, ...] = ("text", "json", "none")


class Journal:
    """Writes lines to standard error, each in one piece."""

    def __init__(self, form: Form = "none", stream: TextIO | None = None) -> None:
        self._form = form
        self._stream = stream
        self._lock = threading.Lock()

    def info(self, event: str, **known: str | float) -> None:
        self._line("info", event, known)

    def warn(self, event: str, **known: str | float) -> None:
        self._line("warning", event, known)

    def _line(self, level: str, event: str, known: dict[str, str | float]) -> None:
        if self._form == "none":
            return
        told = {name: value for name, value in known.items() if value != ""}
        if self._form == "json":
            line = msgspec.json.encode({"time": utc_now(), "level": level, "event": event, **told}).decode()
        else:
            shown = " ".join(f"{name}={_plain(value)}" for name, value in told.items())
            line = f"{utc_now()} {level:7} {event} {shown}".rstrip()
        with self._lock, contextlib.suppress(OSError, ValueError):  # nobody reads any more
            print(line, file=self._stream or sys.stderr, flush=True)


def _plain(value: str | float) -> str:
    """Return a value so that it is one word, whatever is in it."""
    text = str(value)
    return text if text.isprintable() and text and not set(text) & set(' "=') else msgspec.json.encode(text).decode()
