"""The history of a record: its versions, when and by whom each was written; undoing a write, or all of one writer.

The history of a document is in the write log; a version that is not logged was written by hand. The history of a log
entry is in its log: the entries with the same key, and the marks that hid or showed it.

`rollback` undoes the writes of one writer: documents get their earlier text, log entries are hidden, nothing is erased.
A record that another writer or a person changed since is left alone and reported. All steps are announced in the write
log, so that a rollback can be reverted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.errors import AlreadyExists, Conflict, Damaged, HoldfastError, Invalid, NotFound
from holdfast.formats import jsonl, markdown, sections
from holdfast.model.kinds import KINDS, LEDGER, Place
from holdfast.model.names import amount, check_text
from holdfast.model.records import Draft, Receipt, Record, path_of, text_of, version_of
from holdfast.model.times import bound, from_ns, is_id, mint
from holdfast.storage import drafts, parsing, write_log
from holdfast.storage.log import attempts
from holdfast.storage.results import is_much
from holdfast.storage.store import Made
from holdfast.storage.tree import ABSENT
from holdfast.storage.write_log import completed, ends
from holdfast.storage.writer import check_op

if TYPE_CHECKING:
    from holdfast.core import Core

What = Literal["made", "changed", "undone", "by hand", "renamed", "removed", "hidden", "shown", "forgotten"]
_SHORTEST = 4
_SHOWN = 8
_UNDO_TRIES = 10
_ENTRIES = ("message", "fact", "procedure", "episode", "summary", "entry", "job")


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
    """Whether its stored text was changed."""
    current: bool = False
    reason: str = ""
    """The reason, if the writer gave one."""
    path: str = ""
    """The path that a renamed document had before."""


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
    kind = KINDS[record.kind]
    entries = memory.history(kind, record.key) if record.key else []
    found: list[tuple[str, Version]] = []
    for number, one in enumerate(entries or [record]):
        what: What = "forgotten" if "forgotten" in one.fields else "changed" if number else "made"
        kept, current = what != "forgotten", not one.superseded and not one.hidden
        event = _event(one.time, what, one.fields, version=one.id, kept=kept, current=current)
        found.append((one.order, event))
    for mark in write_log.objects(memory.tree.scan(record.path), '"hide"'):
        if mark.get("hide") == (record.key or record.id):
            _, order, time = jsonl.identity(mark, kind.time)
            found.append((order, _event(time, "shown" if mark.get("hidden") is False else "hidden", mark)))
    return [event for _, event in sorted(found, key=lambda one: one[0])]


def _event(time: str, what: What, entry: Mapping[str, Any], **more: Any) -> Version:
    writer, op, reason = (text_of(entry.get(name)) for name in ("writer", "op", "reason"))
    return Version(time=time, what=what, writer=writer, op=op, reason=reason, **more)


def _of_document(memory: Core, path: str) -> list[Version]:
    stamp = memory.tree.stat(path)
    current = memory.tree.read(path).version if stamp else ABSENT
    writes = write_log.writes(memory.tree, memory.layout.memory, path, current)
    made = {ends(entry)[1] for _, entries in writes for entry in entries if not entry.get("undo")}
    if not made and not stamp:
        raise NotFound(f"{path} does not exist and has no history.", "Check the path.")
    found: list[Version] = []
    version, earlier = ABSENT, ""
    for name, entries in reversed(writes):
        if earlier:
            found.append(Version(time="", what="renamed", version=version, path=earlier))
        for entry in entries:
            before, after = ends(entry)
            if before not in (version, *made):
                found.append(Version(time="", what="by hand", version=before))
            what: What = "undone" if entry.get("undo") else "made" if before == ABSENT else "changed"
            if after == ABSENT:
                what = "forgotten" if entry.get("forgotten") else "removed"
            found.append(_event(str(entry.get("time") or ""), what, entry, version=after))
            version = after
        earlier = name
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


def text_at(memory: Core, identifier: str, version: str) -> str:
    """Return the text of a record in a version, of which the first digits are enough."""
    check_text(identifier)
    path = path_of(identifier)
    place = memory.layout.classify(path)
    if place is None or place.kind.shape == "line":
        return memory.get(version if is_id(version) else identifier).text
    return _text_of(memory, path, _version(memory, path, version)).decode("utf-8", "replace")


def _version(memory: Core, path: str, start: str) -> str:
    """Return the version of a document that begins with these digits."""
    if len(start) < _SHORTEST:
        raise Invalid(f"{start!r} is too short to name a version.", f"Give at least {_SHORTEST} digits of it.")
    known = {one.version for one in _of_document(memory, path) if one.version.startswith(start)}
    if len(known) != 1:
        what = "several versions" if known else "no version"
        raise NotFound(f"{path} has {what} {start}.", f"Run: holdfast history {path}")
    return known.pop()


def _text_of(memory: Core, path: str, version: str) -> bytes:
    document = memory.tree.read(path) if memory.store.exists(path) else None
    return document.data if document and document.version == version else memory.store.kept_text(version)


# undo


def undo(memory: Core, path: str, op_id: str = "", to: str = "") -> Receipt:
    """Write the text from before the last write that was not undone; a document that this write made is removed.

    An undo is a write as well, logged as an undo, so that the next one goes a step further back. A change by hand is
    not logged and never undone, unless the owner names the version to go back `to`; that is a write like any other.
    """
    place, store = memory.layout.classify(path), memory.store
    if place is None or place.kind.shape == "line" or place.kind.write_once:
        what = f"{place.kind.one} is" if place else f"{path[:200]} is not a document of the memory, and"
        raise Invalid(f"{what} not undone.", "Hide it; holdfast hide --restore shows it again.")
    check_op(op_id)
    for _ in attempts(path, _UNDO_TRIES):
        if repeated := store.applied(op_id, path):
            return repeated
        current = store.tree.read(path).version if store.exists(path) else ABSENT
        before = _version(memory, path, to) if to else _version_before(memory, path, current)
        note: dict[str, Any] = {"reason": f"version {before[:_SHOWN]}"} if to else {"undo": True}
        try:
            if before == ABSENT and place.kind.name != "memory":  # that document always exists
                store.remove(path, expect=current, op_id=op_id, note=note)
                return Receipt("removed", path, path)
            data = b"" if before == ABSENT else _text_of(memory, path, before)
            made, status = Made(data, path, version_of(data)), "changed" if current else "stored"
            return store.update(path, lambda _: made, expect=current, op_id=op_id, status=status, note=note)  # noqa: B023  # called at once
        except (Conflict, AlreadyExists):  # there is a newer write to undo
            continue
    raise AssertionError("attempts() ends in an error")


def _version_before(memory: Core, path: str, current: str) -> str:
    """Return the version that an undo goes back to.

    Each step is the newest entry that made the version at hand, wherever it is: it may be logged late.
    """
    writes = write_log.writes(memory.tree, memory.layout.memory, path, current)
    entries = [entry for _, each in writes for entry in reversed(each)]
    undone, version = 0, current
    while step := next((one for one in entries if ends(one)[1] == version), None):
        entries.remove(step)
        version = ends(step)[0]
        if step.get("undo"):
            undone += 1
        elif undone:
            undone -= 1
        else:
            return version
    if current == ABSENT:
        raise NotFound(f"{path} does not exist.", "There is nothing to undo.")
    if version != current:
        raise Invalid(f"There is no earlier text of {path} to go back to.", "Write it again.")
    known = [one.version for one in _of_document(memory, path) if one.kept and one.version != current]
    advice = (
        f"Go back to another version: holdfast undo {path} --to {known[-1][:_SHOWN]}" if known else "Write it again."
    )
    raise Invalid(f"There is no earlier text of {path} to go back to: it was changed by hand since.", advice)


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
    draft = Draft(
        kind=kind.name, text=before.text if value is None else None, data=value, tags=before.tags, fields=fields,
        scope=before.scope.path or None, op_id=op_id, until=until, reason="undo",
    )  # fmt: skip
    return memory.put_draft(draft)


def undo_section(memory: Core, record: Record, op_id: str = "") -> Receipt:
    """Write the text that a section had before its last change that was not undone."""
    undone, identifier, version = 0, record.id, record.version
    for entry in write_log.about(memory.tree, memory.layout.memory, record.path):
        if (entry.get("record"), entry.get("version")) != (identifier, version) or "was" not in entry:
            continue
        text, identifier = "", str(entry["was"])
        with contextlib.suppress(NotFound):
            text = memory.store.kept_text(str(entry.get("before"))).decode("utf-8", "surrogateescape")
        parts = sections.parse(text[markdown.body_start(text) :])
        before = next((part for part in parts if f"{record.path}#{part.anchor}" == identifier), None)
        if before is None:
            raise NotFound(f"The text that {identifier} had before is no longer stored.", "Write it again.")
        version = before.version
        if entry.get("undo"):
            undone += 1
        elif undone:
            undone -= 1
        else:
            return memory.restore_section(record, before, op_id)
    raise Invalid(f"There is no earlier text of {record.id} to go back to.", f"Hide it: holdfast hide {record.id}")


# shared by rollback and forget


def count_units(records: Iterable[Record]) -> int:
    """Count records, all values of a key as one."""
    return len({(record.path, record.key) if record.key else (record.path, record.id) for record in records})


def check_count(count: int, total: int, given: int, what: str) -> None:
    """Refuse to remove much unless the caller gave the number."""
    records = amount(count, "record")
    if given and given != count:
        raise Invalid(f"{records} would be {what}, not {given}; nothing was changed.", "Check the list again.")
    if is_much(count, total) and given != count:
        advice = f"Check the list; to confirm it, give the number: --count {count}."
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


# rollback


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change to undo; `conflict` says why it is left as it is."""

    act: Literal["text back", "remove", "hide", "show", "value back"]
    id: str
    path: str
    version: str = ""
    """Of a document: its current version."""
    to: str = ""
    """The version of a document, or the entry of a key, to restore."""
    target: str = ""
    """The id or key that a mark in a log names."""
    order: str = ""
    conflict: str = ""
    derived: bool = False
    """Made by another writer from undone records."""


class RolledBack(msgspec.Struct, frozen=True, omit_defaults=True):
    """The writes of one writer, and how each is or would be undone."""

    writer: str
    steps: list[Step]
    conflicts: list[Step]
    count: int
    total: int
    named: list[str] = []
    """Records of others that name a rolled back record as their source; they are left as they are."""
    done: bool = False
    id: str = ""
    """The id to revert the rollback with."""

    @property
    def needs_count(self) -> bool:
        return is_much(self.count, self.total)


def rollback(
    memory: Core, writer: str = "", since: str = "", *, yes: bool = False, count: int = 0, back: str = ""
) -> RolledBack:
    """Undo the writes of one writer, since a time if given; without `yes`, list them.

    Many records need the `count`. With `back`, the id of a rollback, that rollback is undone.
    """
    check_text(writer, since, back)
    if back and (writer or since):
        raise Invalid("A rollback is undone as a whole.", "Give its id alone, or a writer.")
    if back:
        return _revert(memory, back)
    if not writer:
        raise Invalid("There is no writer to roll back.", "Name one: history and get show who wrote.")
    plan = _plan(memory, writer, bound(since) if since else "", memory.store.every())
    if not yes:
        return plan
    check_count(plan.count, plan.total, count, "undone")
    identifier = mint()
    steps = [msgspec.to_builtins(step) for step in plan.steps]
    memory.store.log_write({"rollback": identifier, "of": writer, "steps": steps, "intent": True})
    failed = _apply(memory, plan.steps, identifier)
    memory.store.log_write({"rollback": identifier, "of": writer})
    done = [step for step in plan.steps if step not in failed]
    conflicts = [*plan.conflicts, *failed.values()]
    return msgspec.structs.replace(plan, steps=done, conflicts=conflicts, done=True, id=identifier)


def _revert(memory: Core, identifier: str) -> RolledBack:
    """Revert a rollback, except for records that were changed since."""
    logged = write_log.entries(memory.tree, memory.layout.memory, '"rollback"')
    found = next((entry for entry in logged if entry.get("rollback") == identifier and "steps" in entry), None)
    if found is None:
        raise NotFound(f"There is no rollback {identifier!r}.", "Use the id that it returned.")
    steps: list[Step] = []
    failed: dict[Step, Step] = {}
    for done in msgspec.convert(found["steps"], list[Step]):
        if done.act in ("text back", "remove"):
            step = msgspec.structs.replace(done, act="text back", version=done.to, to=done.version)
        elif done.act == "value back":
            step = msgspec.structs.replace(done, to=done.id)
        else:
            step = msgspec.structs.replace(done, act="show" if done.act == "hide" else "hide")
        steps.append(step)
        if log := _log_of(memory, step):
            values = write_log.objects(memory.tree.scan(log)) if memory.store.exists(log) else ()
            about = (one for one in values if step.target in (one.get("hide"), one.get("key")))
            newest = max(about, key=lambda one: jsonl.identity(one, "time")[1], default={})
            if newest.get("rollback") != identifier:
                failed[step] = msgspec.structs.replace(step, conflict="it was changed since")
    failed |= _apply(memory, [step for step in steps if step not in failed], mint())
    steps = [step for step in steps if step not in failed]
    return RolledBack(str(found.get("of")), steps, list(failed.values()), len(steps), 0, done=True, id=identifier)


# planning


def _plan(memory: Core, writer: str, since: str, records: list[Record]) -> RolledBack:
    """Return the writes of a writer since a time, and the steps that undo them."""
    entries = [one for one in records if one.kind in _ENTRIES and _is_by(one.fields, writer) and one.time >= since]
    steps = [*_document_steps(memory, writer, since), *_mark_steps(memory, writer, since)]
    for one in entries:
        if one.superseded or one.hidden or "rollback" in one.fields:
            continue
        same = [each for each in records if one.key and (each.key, each.path) == (one.key, one.path)]
        if older := [each for each in same if not _is_by(each.fields, writer)]:
            before = max(older, key=lambda each: each.order)
            steps.append(Step("value back", one.id, one.path, to=before.id, target=one.key, order=one.order))
        else:
            steps.append(Step("hide", one.id, one.path, target=one.key or one.id, order=one.order))
    going = {step.id for step in steps if not step.conflict}
    hidden = [one for one in entries if one.id in going]
    steps += [
        Step("hide", one.id, one.path, target=one.id, order=one.order, derived=True)
        for one in records
        if one.id not in going and not one.hidden and covers(one, hidden)
    ]
    if not steps and not entries:
        logged = write_log.entries(memory.tree, memory.layout.memory)
        sources: Iterable[Mapping[str, Any]] = itertools.chain((one.fields for one in records), logged)
        known = sorted({one["writer"] for one in sources if isinstance(one.get("writer"), str)})
        if writer not in known:
            raise NotFound(f"Nothing was written by {writer!r}.", f"Known writers: {', '.join(known) or 'none'}.")
    named = [one.id for one in records if one.id not in going and one.fields.get("source") in going]
    wanted = [step for step in steps if not step.conflict]
    conflicts = [step for step in steps if step.conflict]
    return RolledBack(writer, wanted, conflicts, len(wanted), count_units(records), named)


def _document_steps(memory: Core, writer: str, since: str) -> Iterator[Step]:
    by_path: dict[str, list[dict[str, Any]]] = {}
    for entry in write_log.entries(memory.tree, memory.layout.memory):
        if isinstance(entry.get("path"), str):
            by_path.setdefault(entry["path"], []).append(entry)
    for path, logged in by_path.items():
        if not any(_is_own(entry, writer, since) for entry in logged):
            continue
        place = memory.layout.classify(path)
        current = memory.tree.read(path).version if memory.store.exists(path) else ABSENT
        entries = completed(logged, current)
        own = [number for number, entry in enumerate(entries) if _is_own(entry, writer, since)]
        if place is None or not own or any(entry.get("forgotten") for entry in entries[own[0] :]):
            continue
        to = ends(entries[own[0]])[0]
        if current == to:
            continue
        if place.kind.shape == "section":
            yield from _section_steps(memory, place, [entries[number] for number in own])
        elif place.kind.write_once:
            yield Step("hide", path, path, target=path.rpartition("/")[2])
        else:
            since_then = entries[own[0] :]
            others = {str(one.get("writer") or "an unnamed writer") for one in since_then if not _is_by(one, writer)}
            made = [ends(entry)[1] for entry in since_then]
            conflict = ""
            if others:
                conflict = f"{', '.join(sorted(others))} wrote it since"
            elif current not in made or any(ends(entry)[0] not in (*made, to) for entry in since_then[1:]):
                conflict = "it was changed by hand since"
            elif to:
                try:
                    memory.store.kept_text(to)
                except HoldfastError as error:
                    conflict = error.message
            yield Step("text back" if to else "remove", path, path, current, to, conflict=conflict)


def _section_steps(memory: Core, place: Place, entries: Iterable[Mapping[str, Any]]) -> Iterator[Step]:
    """Yield steps that hide the sections of a page one by one, since it may have several writers."""
    written = {str(entry["record"]): str(entry.get("version")) for entry in entries if entry.get("record")}
    for record in parsing.entries(place, memory.tree.read(place.path)).records:
        if record.id in written and not record.hidden:
            changed = "" if record.version == written[record.id] else "it was changed since"
            yield Step("hide", record.id, place.path, written[record.id], conflict=changed)


def _mark_steps(memory: Core, writer: str, since: str) -> Iterator[Step]:
    """Yield steps for the records that the writer was the last to hide."""
    tops = (memory.layout.memory, memory.layout.workspaces)  # ledgers of save points are in workspaces
    walks = (memory.tree.walk(top, (".jsonl",), lambda _path, _why: None) for top in tops)
    for path, _ in itertools.chain.from_iterable(walks):
        newest: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for mark in write_log.objects(memory.tree.scan(path), '"hide"'):
            order, target = jsonl.identity(mark, "time")[1], mark.get("hide")
            if isinstance(target, str) and order > newest.get(target, ("", {}))[0]:
                newest[target] = (order, mark)
        for target, (order, last) in newest.items():
            hides = last.get("hidden") is not False and "rollback" not in last
            if hides and _is_own(last, writer, since):
                yield Step("show", target, path, target=target, order=order)


def _is_by(entry: Mapping[str, Any], writer: str) -> bool:
    return entry.get("writer") == writer


def _is_own(entry: Mapping[str, Any], writer: str, since: str) -> bool:
    return _is_by(entry, writer) and str(entry.get("time", "")) >= since


# applying


def _apply(memory: Core, steps: list[Step], identifier: str) -> dict[Step, Step]:
    """Apply all steps; return those that failed, each with the reason."""
    failed: dict[Step, Step] = {}
    by_log: dict[str, list[dict[str, Any]]] = {}
    for step in steps:
        try:
            if log := _log_of(memory, step):
                entry: dict[str, Any] = {"hide": step.target, "hidden": step.act == "hide"}
                if step.act == "value back":
                    values = write_log.objects(memory.tree.scan(log), step.to)
                    found = next((one for one in values if jsonl.identity(one, "time")[0] == step.to), None)
                    if found is None:
                        raise NotFound(f"The line {step.to} no longer exists.", "Run it again.")
                    entry = {name: found[name] for name in found if name not in ("id", "op", "writer", "time")}
                by_log.setdefault(log, []).append(entry | {"rollback": identifier})
            elif step.act in ("hide", "show"):
                if memory.get(step.id).hidden == (step.act == "hide"):
                    raise NotFound("it was changed since", "Check it.")
                memory.hide(step.id, restore=step.act == "show")
            elif step.to == ABSENT:
                memory.store.remove(step.path, expect=step.version)
            else:
                memory.replace(step.path, memory.store.kept_text(step.to), step.version)
        except HoldfastError as error:
            failed[step] = msgspec.structs.replace(step, conflict=error.message)
    for log, entries in by_log.items():
        memory.add(log, entries, after=max(step.order for step in steps))
    return failed


def _log_of(memory: Core, step: Step) -> str:
    """Return the log that a step appends to, "" for a step that changes a document."""
    place = memory.layout.classify(step.path)
    kind = place.kind if place else KINDS["document"]
    if kind.write_once:
        return f"{step.path.rpartition('/')[0]}/{LEDGER}"
    return step.path if kind.shape == "line" else ""


# repair of logs


class Repaired(msgspec.Struct, frozen=True):
    """The repair of one log."""

    count: int
    """Entries that were appended again."""
    total: int
    """Entries that were missing."""
    seen: list[str]
    """Where they were last seen: commits of git, or backups."""

    def __str__(self) -> str:
        where = f", last seen in {', '.join(self.seen[:3])}" if self.seen else ""
        return f"{self.count} of {amount(self.total, 'missing entry', 'missing entries')} appended again{where}."


def repair(memory: Core, backups: Sequence[str] = ()) -> dict[str, Repaired]:
    """Append entries again that an outside change removed from logs, and return the repair of each log.

    They come from the git history of each log and from backups, by id. Existing entries are not changed, and
    forgotten ones are not restored.
    """
    import tempfile

    from holdfast.owner.backup import restore

    done, lost = {}, memory.store.lost()
    forgotten = write_log.forgotten(memory.tree, memory.layout.memory) if lost else set()
    with tempfile.TemporaryDirectory() as scratch:
        given = enumerate(backups if lost else ())
        copies = {each: restore(each, f"{scratch}/{number}").path for number, each in given}
        for path, ids in lost.items():
            wanted, found, seen = set(ids) - forgotten, dict[str, bytes](), dict[str, None]()
            for where, text in _versions(memory.root, path, copies):
                for line in text.splitlines() if found.keys() != wanted else ():
                    if new := {key: line for key in jsonl.keys(line) if key in wanted and key not in found}:
                        found, seen = found | new, seen | {where: None}
            count = memory.store.import_lines(path, list(dict.fromkeys(found.values())))
            done[path] = Repaired(count, len(ids), list(seen))
    return done


def _versions(root: str, path: str, copies: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield the text of a log in all commits, newest first, then in copies of the memory, and where each is."""
    import subprocess

    def git(*words: str) -> bytes:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, check=False).stdout

    with contextlib.suppress(FileNotFoundError):  # git is not installed
        for commit in git("log", "--all", "--full-history", "--format=%H", "--", path).decode().split():
            yield f"git {commit[:10]}", git("show", f"{commit}:./{path}")
    for backup, copy in copies.items():
        with contextlib.suppress(FileNotFoundError), open(os.path.join(copy, path), "rb") as file:
            yield backup, file.read()
