"""Where a record comes from: who wrote it, over which channel, and how far to trust it.

Trust follows from the interface that wrote a record, never from its text: `owner` for rules of the owner, `user` for
what a person wrote or said, `agent` for what a program wrote through a tool, `other` for imports, tool results and
messages of strangers. Repeating a statement does not change its trust.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Literal

import msgspec

from holdfast.formats import prompts
from holdfast.model.kinds import KINDS
from holdfast.model.layout import Layout
from holdfast.model.records import Record
from holdfast.model.scopes import Scope
from holdfast.model.times import utc_now
from holdfast.storage import write_log
from holdfast.storage.tree import Tree

Trust = Literal["owner", "user", "agent", "other"]
_LOOK_BACK = 2_000
"""How many entries of the write log are read to find who wrote a document last."""
_PEOPLE = ("cli",)
"""Writers that are a person."""


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    trust: Trust
    by: str = ""
    """The writer as the interface knew it; "" when it is not recorded, as for a file written by hand."""
    channel: str = ""

    def __str__(self) -> str:
        parts = [f"by {self.by}"] if self.by else []
        parts += [f"in {self.channel}"] if self.channel else []
        return prompts.one_line(", ".join([*parts, f"trust {self.trust}"]))


class Provenance:
    """Finds the sources of records; the end of the write log is read again only after it changed."""

    def __init__(self, tree: Tree, places: Layout, aliases: Iterable[prompts.Alias]) -> None:
        self._tree, self._layout, self._aliases = tree, places, tuple(aliases)
        self._logs: list[str] = []
        self._stamp: object = None
        self._writers: dict[str, str] = {}
        """Who wrote documents and their sections last, as far as the end of the write log says."""

    def sources(self, records: Iterable[Record]) -> dict[str, Source]:
        """Return where records come from, by their id."""
        found = list(records)
        if any(KINDS[record.kind].shape != "line" for record in found) and self._stamp != self._current_stamp():
            self._logs = write_log.logs(self._tree, self._layout.memory)
            stamp = self._current_stamp()  # taken before reading, so that a change meanwhile is read next time
            lines = itertools.chain.from_iterable(map(self._tree.scan_back, reversed(self._logs)))
            writers: dict[str, str] = {}
            for entry in write_log.objects(itertools.islice(lines, _LOOK_BACK)):
                writers.setdefault(str(entry.get("record") or entry.get("path")), str(entry.get("writer") or ""))
            self._writers, self._stamp = writers, stamp
        return {record.id: self._source(record) for record in found}

    def _source(self, record: Record) -> Source:
        kind, fields = KINDS[record.kind], record.fields
        if kind.name == "message":
            role, channel = str(fields.get("role")), str(fields.get("channel") or "")
            sender = str(fields.get("sender_id") or "")
            imported = record.path.startswith(f"{self._layout.memory}/history/")
            if imported or role not in ("user", "assistant"):
                return Source("other", sender or role, channel)
            if role == "assistant":
                return Source("agent", "assistant", channel)
            message = prompts.Message(role=role, content="", channel=channel or "-", sender_id=sender)
            owner = prompts.label(message, self._aliases).endswith(" / owner]") or not (sender or channel)
            return Source("user" if owner else "other", "owner" if owner else sender, channel)
        if kind.foreign:
            return Source("other", str(fields.get("source") or fields.get("role") or ""))
        if kind.layer == "hot":
            return Source("owner")
        writer: str | None = str(fields.get("writer") or "")
        if kind.shape != "line":
            writer = self._writers.get(record.id, self._writers.get(record.path))
        if writer is None:  # written by hand
            return Source("user")
        return Source("user" if writer in _PEOPLE else "agent", writer)

    def _current_stamp(self) -> object:
        """Return a value that changes with the write log: with its folder, its known files and this month's file."""
        this_month = self._layout.path_for(KINDS["write"], Scope(), month=utc_now()[:7])
        stamps = {log: self._tree.stat(log) for log in (*self._logs, this_month)}
        return self._tree.folder_stamp(f"{self._layout.memory}/writes"), stamps
