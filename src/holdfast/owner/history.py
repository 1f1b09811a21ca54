"""The history of a record: its versions, when and by whom each was written, and undoing the last write.

The history of a document is in the write log; a version that is not logged was written by hand. The history of a log
entry is in its log: the entries with the same key, and the marks that hid or showed it.

Trust follows from the interface that wrote a record, never from its text: `owner` for rules of the owner, `user` for
what a person wrote or said, `agent` for what a program wrote through a tool, `other` for imports, tool results and
messages of strangers. Repeating a statement does not change its trust.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.errors import AlreadyExists, Conflict, Damaged, Invalid, NotFound
from holdfast.formats import jsonl, markdown, prompts, sections
from holdfast.model.kinds import KINDS
from holdfast.model.names import amount, check_text
from holdfast.model.records import PEOPLE, Receipt, Record, path_of, text_of, version_of
from holdfast.model.times import from_ns, is_id
from holdfast.storage import drafts, write_log
from holdfast.storage.log import attempts
from holdfast.storage.reports import is_much
from holdfast.storage.store import Made, Store
from holdfast.storage.tree import ABSENT
from holdfast.storage.writer import check_op

if TYPE_CHECKING:
    from holdfast.core import Core

What = Literal["made", "changed", "undone", "by hand", "removed", "hidden", "shown", "forgotten"]
_SHORTEST = 4
_UNDO_TRIES = 10


class Version(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One event in the history of a record."""

    time: str
    """When, in UTC; for a change by hand, the time of the file, or "" when unknown."""
    what: What
    writer: str = ""
    version: str = ""
    """The version that it made; for a log entry, its id."""
    op: str = ""
    kept: bool = False
    """Whether its text can still be read."""
    damaged: bool = False
    """Whether its text was changed after it was kept."""
    current: bool = False
    reason: str = ""
    """Why, where the writer said so."""


def versions(memory: Core, identifier: str) -> list[Version]:
    """Return the history of a document, or of a log entry and its key, oldest first."""
    check_text(identifier)
    path = path_of(identifier)
    place = memory.layout.classify(path)
    if place and place.kind.shape != "line":
        if path != identifier:
            memory.get(identifier)  # NotFound for a section that does not exist
        return _of_document(memory, path)
    record = memory.get(identifier)
    entries = memory.history(KINDS[record.kind], record.key) if record.key else []
    found: list[tuple[str, Version]] = []
    for number, one in enumerate(entries or [record]):
        what: What = "forgotten" if "forgotten" in one.fields else "changed" if number else "made"
        kept, current = what != "forgotten", not one.superseded and not one.hidden
        writer, op, reason = (text_of(one.fields.get(name)) for name in ("writer", "op", "reason"))
        event = Version(
            time=one.time, what=what, version=one.id, writer=writer, op=op, kept=kept, current=current, reason=reason
        )
        found.append((one.order, event))
    for mark in write_log.objects(memory.tree.scan(record.path), '"hide"'):
        if mark.get("hide") == (record.key or record.id):
            _, order, time = jsonl.identity(mark, KINDS[record.kind].time)
            what = "shown" if mark.get("hidden") is False else "hidden"
            writer, op = text_of(mark.get("writer")), text_of(mark.get("op"))
            reason = text_of(mark.get("reason"))
            found.append((order, Version(time=time, what=what, writer=writer, op=op, reason=reason)))
    return [event for _, event in sorted(found, key=lambda one: one[0])]


def text_at(memory: Core, identifier: str, version: str) -> str:
    """Return the text of a record in a version, of which the first digits are enough."""
    check_text(identifier)
    path = path_of(identifier)
    place = memory.layout.classify(path)
    if place is None or place.kind.shape == "line":
        return memory.get(version if is_id(version) else identifier).text
    if len(version) < _SHORTEST:
        raise Invalid(f"{version!r} is too short to name a version.", f"Give at least {_SHORTEST} digits of it.")
    known = dict.fromkeys(one.version for one in _of_document(memory, path) if one.version.startswith(version))
    if len(known) != 1:
        what = "several versions" if known else "no version"
        raise NotFound(f"{path} has {what} {version}.", f"Run: holdfast history {path}")
    (found,) = known
    document = memory.tree.read(path) if memory.tree.stat(path) else None
    is_current = document and document.version == found
    return (document.data if document and is_current else memory.store.kept_text(found)).decode("utf-8", "replace")


def ends(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return the versions before and after the write that an entry of the write log records."""
    return str(entry.get("before") or ABSENT), str(entry.get("after") or ABSENT)


def completed(entries: list[dict[str, Any]], current: str) -> list[dict[str, Any]]:
    """Return the entries of the writes that took place.

    An intent counts when the write itself was not logged and its version is the current one or was replaced later.
    """
    logged = [entry for entry in entries if "intent" not in entry]
    done = {_write_of(entry) for entry in logged}
    reached = {current, *(ends(entry)[0] for entry in logged)}
    return [
        entry
        for entry in entries
        if ("intent" not in entry or (_write_of(entry) not in done and ends(entry)[1] in reached))
        and entry.get("before") != entry.get("after")
    ]


def _write_of(entry: Mapping[str, Any]) -> tuple[str, str, Any]:
    """Return what an intent and the entry of its write have in common."""
    return *ends(entry), entry.get("op")


def _of_document(memory: Core, path: str) -> list[Version]:
    stamp = memory.tree.stat(path)
    current = memory.tree.read(path).version if stamp else ABSENT
    entries = completed(list(write_log.about(memory.tree, memory.layout.memory, path))[::-1], current)
    if not entries and not stamp:
        raise NotFound(f"{path} is not there, and nothing is known of it.", "Check the path.")
    made = {ends(entry)[1] for entry in entries if not entry.get("undo")}
    found: list[Version] = []
    version = ABSENT
    for entry in entries:
        before, after = ends(entry)
        if before not in (version, *made):
            found.append(Version(time="", what="by hand", version=before))
        what: What = "made" if before == ABSENT else "changed"
        if after == ABSENT:
            what = "forgotten" if entry.get("forgotten") else "removed"
        elif entry.get("undo"):
            what = "undone"
        time, writer, op, reason = (str(entry.get(name) or "") for name in ("time", "writer", "op", "reason"))
        found.append(Version(time=time, what=what, writer=writer, version=after, op=op, reason=reason))
        version = after
    if current not in (version, *made) and stamp:
        found.append(Version(time=from_ns(stamp.mtime), what="by hand", version=current))
    elif current == ABSENT and version != ABSENT:
        found.append(Version(time="", what="removed"))
    last = max((number for number, one in enumerate(found) if one.version == current != ABSENT), default=-1)
    for number, one in enumerate(found):
        kept, damaged = bool(one.version), False
        try:
            if one.version not in (ABSENT, current):
                memory.store.kept_text(one.version)
        except (NotFound, Damaged) as error:
            kept, damaged = False, isinstance(error, Damaged)
        found[number] = msgspec.structs.replace(one, kept=kept, damaged=damaged, current=number == last)
    return found


def undo(memory: Core, path: str, op_id: str = "") -> Receipt:
    """Write the text from before the last write that was not undone; a document that this write made is removed.

    An undo is a write as well, logged as an undo, so that the next one goes a step further back. A change by hand is
    not logged and never undone.
    """
    place, store = memory.layout.classify(path), memory.store
    if place is None or place.kind.shape == "line" or place.kind.write_once:
        what = f"{place.kind.one} is" if place else f"{path[:200]} is no document of the memory, and"
        raise Invalid(f"{what} not undone.", "Hide it; holdfast hide --restore shows it again.")
    check_op(op_id)
    for _ in attempts(path, _UNDO_TRIES):
        if repeated := store.applied(op_id, path):
            return repeated
        current = store.tree.read(path).version if store.exists(path) else ABSENT
        before = _version_before(list(write_log.about(store.tree, memory.layout.memory, path)), path, current)
        try:
            if before == ABSENT and place.kind.name != "memory":  # that document always exists
                store.remove(path, expect=current, op_id=op_id, note={"undo": True})
                return Receipt("removed", path, path)
            data = b"" if before == ABSENT else store.kept_text(before)
            made, status = Made(data, path, version_of(data)), "changed" if current else "stored"
            note = {"undo": True}
            return store.update(path, lambda _: made, expect=current, op_id=op_id, status=status, note=note)  # noqa: B023  # called at once
        except (Conflict, AlreadyExists):  # there is a newer write to undo
            continue
    raise AssertionError("attempts() ends in an error")


def undo_entry(memory: Core, record: Record, op_id: str = "") -> Receipt:
    """Restore the entry that this one superseded, or append the value that its key had before."""
    kind, older = KINDS[record.kind], record.fields.get("supersedes")
    if older and not record.key and not record.hidden:
        done = memory.hide(str(older), restore=True, op_id=op_id)
        memory.hide(record.id, reason="undo")
        return done
    past = [one for one in memory.history(kind, record.key) if one.id != record.id] if record.key else []
    if record.superseded or record.hidden or not past:
        raise Invalid(f"{kind.one} without an earlier value is not undone.", f"Hide it: holdfast hide {record.id}")
    before = past[-1]
    fields = drafts.copied_fields(kind, before) | {kind.key: before.key}
    value, until = before.fields.get(kind.text), str(before.fields.get("until") or "")
    return memory.put(
        kind.name, before.text if value is None else None, data=value, tags=before.tags, fields=fields,
        scope=before.scope.path or None, op_id=op_id, until=until, reason="undo",
    )  # fmt: skip


def undo_section(memory: Core, record: Record, op_id: str = "") -> Receipt:
    """Write the text that a section had before its last change that was not undone."""
    undone, identifier, version = 0, record.id, record.version
    for entry in write_log.about(memory.tree, memory.layout.memory, record.path):
        if (entry.get("record"), entry.get("version")) != (identifier, version) or "was" not in entry:
            continue
        before = _section(memory, record.path, str(entry.get("before")), str(entry["was"]))
        identifier, version = str(entry["was"]), before.version
        if entry.get("undo"):
            undone += 1
        elif undone:
            undone -= 1
        else:
            return memory.restore_section(record, before, op_id)
    raise Invalid(f"There is no earlier text of {record.id} to go back to.", f"Hide it: holdfast hide {record.id}")


def _section(memory: Core, path: str, version: str, identifier: str) -> sections.Section:
    """Return a section as it was in a version of its page."""
    text = ""
    with contextlib.suppress(NotFound):
        text = memory.store.kept_text(version).decode("utf-8", "surrogateescape")
    for section in sections.parse(text[markdown.body_start(text) :]):
        if f"{path}#{section.anchor}" == identifier:
            return section
    raise NotFound(f"The text that {identifier} had before is not kept any more.", "Write it again.")


def _version_before(entries: list[dict[str, Any]], path: str, current: str) -> str:
    """Return the version that an undo goes back to; `entries` of the write log, newest first.

    Each step is the newest entry that made the version at hand, wherever it is: it may be logged late.
    """
    undone, version = 0, current
    while step := next((one for one in entries if ends(one)[0] != ends(one)[1] == version), None):
        entries = [  # an intent and the entry of its write are one step
            one for one in entries if one is not step and not (step.get("op") and _write_of(one) == _write_of(step))
        ]
        version = ends(step)[0]
        if step.get("undo"):
            undone += 1
        elif undone:
            undone -= 1
        else:
            return version
    if current == ABSENT:
        raise NotFound(f"{path} is not there.", "There is nothing to undo.")
    by_hand = ": it was changed by hand since." if version == current else "."
    raise Invalid(f"There is no earlier text of {path} to go back to{by_hand}", "Write it again.")


# records, for commands that take many of them back


def count_units(records: Iterable[Record]) -> int:
    """Count records, all values of a key as one."""
    return len({(record.path, record.key) if record.key else (record.path, record.id) for record in records})


def check_count(count: int, total: int, given: int, what: str) -> None:
    """Refuse to remove much unless the caller gave the number."""
    records = amount(count, "record")
    if given and given != count:
        raise Invalid(f"{records} would be {what}, not {given}; nothing was changed.", "Look at the list again.")
    if is_much(count, total) and given != count:
        advice = f"Look at the list; if it is right, say so with the number: --count {count}."
        raise Invalid(f"{records} of {total} would be {what}; nothing was changed.", advice)


def covers(summary: Record, records: Iterable[Record]) -> bool:
    """Return whether a summary summarises one of these log entries."""
    covered = summary.fields.get("covers") if summary.kind == "summary" else None
    if not isinstance(covered, Mapping):
        return False
    first, last = str(covered.get("first", "")), str(covered.get("last", ""))
    entries = (record for record in records if KINDS[record.kind].shape == "line")
    sessions = ("", summary.scope.session)
    return any(first <= record.order <= last and record.scope.session in sessions for record in entries)


# where records come from


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    trust: Literal["owner", "user", "agent", "other"]
    by: str = ""
    """The writer as the interface knew it; "" when it is not recorded, as for a file written by hand."""
    channel: str = ""

    def __str__(self) -> str:
        parts = [f"by {self.by}"] if self.by else []
        parts += [f"in {self.channel}"] if self.channel else []
        return prompts.one_line(", ".join([*parts, f"trust {self.trust}"]))


def sources(store: Store, aliases: Sequence[prompts.Alias], records: Sequence[Record]) -> dict[str, Source]:
    """Return where records come from, by their id; `aliases` are the owner's names in chats."""
    writers = store.writers(records)
    return {record.id: _source(record, writers, store.layout.memory, aliases) for record in records}


def _source(record: Record, writers: Mapping[str, str | None], memory: str, aliases: Sequence[prompts.Alias]) -> Source:
    kind, fields = KINDS[record.kind], record.fields
    if kind.name == "message":
        role, channel = str(fields.get("role")), str(fields.get("channel") or "")
        sender = str(fields.get("sender_id") or "")
        imported = record.path.startswith(f"{memory}/history/")
        if imported or role not in ("user", "assistant"):
            return Source("other", sender or role, channel)
        if role == "assistant":
            return Source("agent", "assistant", channel)
        message = prompts.Message(role=role, content="", channel=channel or "-", sender_id=sender)
        owner = prompts.label(message, aliases).endswith(" / owner]") or not (sender or channel)
        return Source("user" if owner else "other", "owner" if owner else sender, channel)
    if kind.foreign:
        return Source("other", str(fields.get("source") or fields.get("role") or ""))
    if kind.layer == "hot":
        return Source("owner")
    writer: str | None = str(fields.get("writer") or "")
    if kind.shape != "line":
        known = [target for target in write_log.targets(record) if target in writers] or [record.path]
        if known[0] not in writers:
            return Source("user")  # written by hand
        writer = min((writers[target] for target in known), key=lambda one: one in PEOPLE)
    return Source("other" if writer is None else "user" if writer in PEOPLE else "agent", writer or "")
