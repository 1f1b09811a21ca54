"""Traces: one line per tool call, so that an agent can find what it did.

A trace never blocks or fails a call, is not synced on its own, never makes a workspace, and holds no secret that has
a known form. Calls that only read are kept out of full-text search, or searches would find themselves.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import HoldfastError, Unavailable
from holdfast.model.kinds import KINDS
from holdfast.model.records import Record
from holdfast.model.scopes import Scope

UNRESOLVED = "_unresolved"
MAX_VALUE = 2_000
_MAX_RESULT = 500
_MAX_DEPTH = 16


class Trace(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one call did."""

    tool: str
    workspace: str = ""
    """Scope path; "" when it could not be resolved."""
    bound: str = ""
    """The scope that the caller was bound to; "" for one who may have told of anything."""
    session: str = ""
    run: str = ""
    agent: str = ""
    goal: str = ""
    params: dict[str, Any] = {}
    success: bool = True
    error: str = ""
    result: str = ""
    ms: float = 0.0
    read: bool = False


class Traces:
    def __init__(self, memory: Core) -> None:
        self._memory = memory

    def add(self, trace: Trace) -> None:
        """Note a call; whatever goes wrong here is nobody's problem."""
        line, clean = msgspec.to_builtins(msgspec.structs.replace(trace, params={})), self._memory.screen.clean
        line["params"] = cut(clean(_plain(trace.params)))
        for name in ("error", "result", "goal"):
            if name in line:
                line[name] = clean(line[name])[:_MAX_RESULT]
        line.setdefault("success", True)
        try:
            self._memory.note_line(KINDS["trace"], line, folder=trace.workspace.partition("/")[0] or UNRESOLVED)
        except (HoldfastError, OSError):
            return

    def recent(self, scope: Scope, count: int = 10) -> list[dict[str, Any]]:
        """Return what was done last in a workspace, newest first, without the calls that only read."""
        done = (record for record in self._newest(scope) if not record.fields.get("read"))
        return [activity(record) for record in itertools.islice(done, count)]

    def last(self, count: int, scope: Scope | None = None) -> list[dict[str, Any]]:
        """Return the last calls in a workspace, or in all of them, oldest first, whatever they did."""
        return [_told(record) for record in itertools.islice(self._newest(scope), count)][::-1]

    def _newest(self, scope: Scope | None) -> Iterator[Record]:
        """Yield the traces of a workspace, or of all, from the newest on, read from the ends of the files."""
        months: dict[str, list[str]] = {}
        for path, _ in self._memory.vault.walk(self._folder(scope), (".jsonl",), _unreadable):
            months.setdefault(path.rpartition("/")[0], []).append(path)
        below = scope.path if scope else ""
        streams = [
            itertools.chain.from_iterable(self._memory.backwards(path, below) for path in sorted(paths, reverse=True))
            for paths in months.values()
        ]
        return heapq.merge(*streams, key=lambda record: (record.time, record.id), reverse=True)

    def _folder(self, scope: Scope | None) -> str:
        """Return where the traces of a workspace are, or those of all."""
        path = self._memory.places.path_for(
            KINDS["trace"], Scope(), month="x", workspace=scope.workspace if scope else "x"
        )
        folder = path.rpartition("/")[0]
        return folder if scope else folder.rpartition("/")[0]


def _unreadable(path: str, why: str) -> None:
    raise Unavailable(f"{path}: {why}.", "Check its permissions.")


def _told(record: Record) -> dict[str, Any]:
    """Return a trace with all that a person who looks after the memory wants to know."""
    told = activity(record)
    told["session"] = told.pop("sessionId")
    return told | {"tool": record.title, "ms": record.fields.get("ms", 0), "workspace": record.scope.path}


def activity(record: Record) -> dict[str, Any]:
    """Return a trace as somebody would tell it: what was done, and which goal it served."""
    fields = record.fields
    params = fields.get("params") or {}
    subject = next(
        (params[name] for name in ("name", "title", "query", "key") if isinstance(params.get(name), str)), ""
    )
    told = {
        "time": record.time,
        "what": f"{record.title} {subject}".strip(),
        "goal": fields.get("goal") or "",
        "sessionId": record.scope.session,
        "success": fields.get("success") is not False,
    }
    if fields.get("error"):
        told["error"] = fields["error"]
    return told


def _plain(value: Any, depth: int = 0) -> Any:
    """Return what can be written of a value that may be anything: a call that was refused is noted too."""
    if isinstance(value, dict | list | tuple) and depth >= _MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        return {str(name)[:200]: _plain(inner, depth + 1) for name, inner in list(value.items())[:100]}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth + 1) for inner in value[:100]]
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return "a number beyond 64 bits"
    return value if value is None or isinstance(value, str | int | float) else type(value).__name__


def cut(value: Any) -> Any:
    """Shorten every long text in a JSON value."""
    if isinstance(value, str):
        return value if len(value) <= MAX_VALUE else f"{value[:MAX_VALUE]}… ({len(value):,} characters)"
    if isinstance(value, dict):
        return {str(name)[:200]: cut(inner) for name, inner in list(value.items())[:100]}
    if isinstance(value, list):
        return [cut(inner) for inner in value[:100]]
    return value
