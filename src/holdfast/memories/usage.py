"""Usage: what agents recalled and how often, what was never recalled, questions without an answer, and tokens.

All of it is counted from traces, newest first, in one pass that keeps counts and no traces. Calls of versions that did
not record ids and tokens are counted as calls only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from holdfast.core import Core
from holdfast.errors import HoldfastError
from holdfast.memories.workspaces import Traces
from holdfast.model.names import same
from holdfast.model.queries import Query
from holdfast.model.records import Record, lapsed
from holdfast.model.times import bound

KEPT = ("note", "decision", "lesson", "fact", "procedure", "skill")
"""Kinds that are written to be recalled."""
_ASKED = ("recall", "memory_search")
_LOOKED_UP = 100
"""How many recalled records of other kinds are looked up."""


class Recalled(msgspec.Struct):
    """A record that was recalled, read, or never was."""

    id: str
    count: int = 0
    last: str = ""
    kind: str = ""
    title: str = ""


class Unanswered(msgspec.Struct):
    query: str
    count: int = 0
    last: str = ""


class Called(msgspec.Struct):
    tool: str
    calls: int = 0
    failed: int = 0
    tokens: int = 0
    """The tokens of its replies."""


class Usage(msgspec.Struct):
    since: str
    first: str = ""
    """When the first of these calls was made."""
    calls: int = 0
    tokens: int = 0
    unmeasured: int = 0
    """Calls of earlier versions, without tokens and ids."""
    tools: list[Called] = []
    recalled: list[Recalled] = []
    never: list[Recalled] = []
    """Records of the kinds in `KEPT` that no call returned, newest first."""
    kept: int = 0
    """How many records of these kinds there are."""
    unanswered: list[Unanswered] = []


def usage(memory: Core, since: str = "") -> Usage:
    """Count the tool calls from a date or time on."""
    found = Usage(bound(since) if since else "")
    tools: dict[str, Called] = {}
    recalled: dict[str, Recalled] = {}
    unanswered: dict[str, Unanswered] = {}
    for trace in Traces(memory).since(found.since):
        fields, params = trace.fields, trace.fields.get("params")
        called = tools.setdefault(trace.title, Called(trace.title))
        called.calls += 1
        found.first = trace.time
        called.failed += fields.get("success") is False
        tokens = fields.get("tokens")
        if not isinstance(tokens, int):
            found.unmeasured += 1
            continue
        called.tokens += tokens
        ids = list(_ids(trace))
        for each in ids:
            _count(recalled.setdefault(each, Recalled(each)), trace.time)
        query = params.get("query") if isinstance(params, dict) else None
        if trace.title in _ASKED and isinstance(query, str) and not ids and fields.get("success") is not False:
            _count(unanswered.setdefault(same(query), Unanswered(query)), trace.time)
    found.tools = sorted(tools.values(), key=lambda one: (-one.tokens, -one.calls, one.tool))
    found.calls = sum(one.calls for one in found.tools)
    found.tokens = sum(one.tokens for one in found.tools)
    found.recalled = sorted(recalled.values(), key=lambda one: -one.count)
    found.unanswered = sorted(unanswered.values(), key=lambda one: -one.count)
    for record in memory.every(Query(kinds=KEPT)):
        if not lapsed(record):
            found.kept += 1
            earlier = recalled.get(str(record.fields.get("supersedes")))  # a revised entry has a new id
            _describe(recalled.get(record.id) or earlier or _never(found, record), record)
    for one in [one for one in found.recalled if not one.kind][:_LOOKED_UP]:
        with contextlib.suppress(HoldfastError):  # removed since, or in a shared memory that does not answer
            _describe(one, memory.get(one.id))
    return found


def _ids(trace: Record) -> Iterator[str]:
    """Yield the ids of the records that a call returned."""
    ids, params = trace.fields.get("ids"), trace.fields.get("params")
    if trace.title == "read" and isinstance(params, dict) and trace.fields.get("success") is not False:
        ids = [params.get("id")]
    yield from (one for one in ids if isinstance(one, str)) if isinstance(ids, list) else ()


def _count(one: Recalled | Unanswered, time: str) -> None:
    one.count += 1
    one.last = max(one.last, time)


def _never(found: Usage, record: Record) -> Recalled:
    found.never.append(Recalled(record.id))
    return found.never[-1]


def _describe(one: Recalled, record: Record) -> None:
    one.kind, one.title = record.kind, record.title or " ".join(record.text.split())[:80]
