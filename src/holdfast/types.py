"""The keyword arguments of `put` and `find`, so that an editor completes them and a type checker finds typing errors.

Only type checkers import this module. `tests/test_python.py` compares it with the kinds table, `Draft` and `Query`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from holdfast.model.records import Scope

KindName = Literal[
    "rule", "overview", "plan", "skill", "state", "note", "decision", "lesson", "memory", "message", "fact",
    "procedure", "episode", "document",
]  # fmt: skip
"""The kinds that `put` writes."""
FoundKind = Literal[
    KindName, "ledger", "proposal", "summary", "job", "claim", "task", "trace", "write", "transcript"
]  # fmt: skip
"""The kinds that `find` can be limited to."""


class PutArguments(TypedDict, total=False):
    title: str
    scope: str | Scope | None
    session: str
    tags: Sequence[str] | None
    fields: Mapping[str, Any]
    id: str
    expect: str
    data: Any
    op_id: str
    supersedes: str
    until: str | None
    reason: str
    # fields of single kinds
    key: str
    when: str
    role: Literal["user", "assistant", "system", "tool"]
    channel: str
    description: str
    status: Literal["new", "in_progress", "partial", "done", "abandoned"]


class FindArguments(TypedDict, total=False):
    kinds: Sequence[FoundKind]
    scope: str | Scope | None
    above: bool
    shared: bool
    session: str
    tags: Sequence[str]
    since: str
    until: str
    hidden: bool
    limit: int
    asked: str
    associate: bool
    level: Literal["records", "sessions"]
    related: int
    budget: int
    where: Literal["here", "shared", "both"]
