"""Where a record comes from: who wrote it, over which channel, and how far that can be trusted.

Trust is told by the door that a record came through and by nothing that stands in it: `owner` is what the owner gave as
a rule, `user` what a person wrote or said, `agent` what a program wrote through a tool, `other` what came from
elsewhere: imports, answers of tools, messages of strangers. Saying something again changes nothing about it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Literal

import msgspec

from holdfast.formats import jsonl, prompts
from holdfast.model.kinds import KINDS
from holdfast.model.layout import Places
from holdfast.model.records import Record
from holdfast.storage.tree import Vault

Trust = Literal["owner", "user", "agent", "other"]
_LOOK_BACK = 2_000
"""Lines of the write log that are read for who wrote a document last."""
_PEOPLE = ("cli",)
"""Doors that a person stands at."""


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    trust: Trust
    by: str = ""
    """Who wrote it, as the door knew; "" when nobody noted it, as for a file that was written by hand."""
    channel: str = ""

    def __str__(self) -> str:
        told = (f"by {self.by}" if self.by else "", f"in {self.channel}" if self.channel else "", f"trust {self.trust}")
        return prompts.one_line(", ".join(part for part in told if part))


def sources(
    vault: Vault, places: Places, records: Iterable[Record], aliases: Iterable[prompts.Alias]
) -> dict[str, Source]:
    """Return where these records come from, by their id."""
    found, known = list(records), tuple(aliases)
    documents = {record.path for record in found if KINDS[record.kind].shape != "line"}
    writers = _writers(vault, places.memory, documents) if documents else {}
    return {record.id: _source(record, writers, places, known) for record in found}


def _source(record: Record, writers: dict[str, str], places: Places, aliases: tuple[prompts.Alias, ...]) -> Source:
    kind = KINDS[record.kind]
    if kind.name == "message":
        return _said(record, places, aliases)
    if kind.foreign:
        return Source("other", str(record.fields.get("source") or record.fields.get("role") or ""))
    if kind.layer == "hot":
        return Source("owner")
    if kind.shape == "line":
        by = str(record.fields.get("writer") or "")
        return Source("user" if by in _PEOPLE else "agent", by)
    if (by_hand := writers.get(record.id, writers.get(record.path))) is None:
        return Source("user")
    return Source("user" if by_hand in _PEOPLE else "agent", by_hand)


def _said(record: Record, places: Places, aliases: tuple[prompts.Alias, ...]) -> Source:
    role, channel = str(record.fields.get("role")), str(record.fields.get("channel") or "")
    sender = str(record.fields.get("sender_id") or "")
    if record.path.startswith(f"{places.memory}/history/") or role not in ("user", "assistant"):
        return Source("other", sender or role, channel)
    if role == "assistant":
        return Source("agent", "assistant", channel)
    message = prompts.Message(role=role, content="", channel=channel or "-", sender_id=sender)
    label = prompts.label(message, aliases)
    owner = label.endswith(" / owner]") or not (sender or channel)
    return Source("user" if owner else "other", "owner" if owner else sender, channel)


def _writers(vault: Vault, memory: str, documents: set[str]) -> dict[str, str]:
    """Return who wrote documents and their entries last, as far as the end of the write log tells."""
    found: dict[str, str] = {}
    walked = vault.walk(f"{memory}/writes", (".jsonl",), lambda _path, _why: None)
    names = sorted((name for name, _ in walked), reverse=True)
    lines = itertools.chain.from_iterable(map(vault.scan_back, names))
    for line in itertools.islice(lines, _LOOK_BACK):
        objects = jsonl.parse(line.data)
        for value in objects if isinstance(objects, list) else ():
            path, record = str(value.get("path")), str(value.get("record") or value.get("path"))
            if path in documents:
                found.setdefault(record, str(value.get("writer") or ""))
    return found
