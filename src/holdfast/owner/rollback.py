"""Roll back what one writer wrote: documents get the text from before, log entries are hidden, nothing is erased.

A record that another writer or a person changed since is left alone and reported. What was derived from a hidden
entry, like a summary, is hidden too. All steps are announced in the write log, so that a rollback can be reverted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.errors import HoldfastError, Invalid, NotFound
from holdfast.formats import jsonl
from holdfast.model.kinds import KINDS, LEDGER
from holdfast.model.names import check_text
from holdfast.model.records import Record
from holdfast.model.times import bound, mint
from holdfast.owner.history import check_count, completed, count_units, covers, ends
from holdfast.storage import parsing, write_log
from holdfast.storage.reports import is_much
from holdfast.storage.tree import ABSENT

if TYPE_CHECKING:
    from holdfast.core import Core

_ENTRIES = ("message", "fact", "procedure", "episode", "summary", "entry", "job")


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change to take back; `conflict` says why it is left as it is."""

    act: Literal["text back", "remove", "hide", "show", "value back"]
    id: str
    path: str
    version: str = ""
    """Of a document: its current version."""
    to: str = ""
    """Of a document: the version to go back to. Of a key: the entry whose value becomes current again."""
    target: str = ""
    """The id or key that a mark in a log names."""
    order: str = ""
    conflict: str = ""
    derived: bool = False
    """Written by another writer from what is taken back."""


class RolledBack(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one writer wrote, and what would be or was done about it."""

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


def rollback(memory: Core, writer: str, since: str, *, yes: bool, count: int, back: str) -> RolledBack:
    """Take back what one writer wrote, or revert a rollback; without `yes`, list what one writer wrote."""
    check_text(writer, since, back)
    if back and (writer or since):
        raise Invalid("A rollback is taken back as a whole.", "Give its id alone, or a writer.")
    if back:
        return _revert(memory, back)
    if not writer:
        raise Invalid("There is no writer to roll back.", "Name one: history and get show who wrote.")
    plan = _plan(memory, writer, bound(since) if since else "", memory.store.every())
    if not yes:
        return plan
    check_count(plan.count, plan.total, count, "taken back")
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
            newest: tuple[str, Mapping[str, Any]] = ("", {})
            for value in write_log.objects(memory.tree.scan(log)) if memory.store.exists(log) else ():
                if step.target in (value.get("hide"), value.get("key")):
                    newest = max(newest, (jsonl.identity(value, "time")[1], value), key=lambda one: one[0])
            if newest[1].get("rollback") != identifier:
                failed[step] = msgspec.structs.replace(step, conflict="it was changed since")
    failed |= _apply(memory, [step for step in steps if step not in failed], mint())
    steps = [step for step in steps if step not in failed]
    return RolledBack(str(found.get("of")), steps, list(failed.values()), len(steps), 0, done=True, id=identifier)


# planning


def _plan(memory: Core, writer: str, since: str, records: list[Record]) -> RolledBack:
    """Return what a writer wrote since a time, and the steps that take it back."""
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
            # the page may have several writers, so its sections are hidden one by one
            mine = [entries[number] for number in own if entries[number].get("record")]
            written = {str(entry["record"]): str(entry.get("version")) for entry in mine}
            for record in parsing.entries(place, memory.tree.read(path)).records:
                if record.id in written and not record.hidden:
                    changed = "" if record.version == written[record.id] else "it was changed since"
                    yield Step("hide", record.id, path, written[record.id], conflict=changed)
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
    by_log: dict[str, list[Step]] = {}
    for step in steps:
        if log := _log_of(memory, step):
            by_log.setdefault(log, []).append(step)
            continue
        try:
            if step.act in ("hide", "show"):
                if memory.get(step.id).hidden == (step.act == "hide"):
                    raise NotFound("it was changed since", "Check it.")
                memory.hide(step.id, restore=step.act == "show")
            elif step.to == ABSENT:
                memory.store.remove(step.path, expect=step.version)
            else:
                memory.replace(step.path, memory.store.kept_text(step.to), step.version)
        except HoldfastError as error:
            failed[step] = msgspec.structs.replace(step, conflict=error.message)
    for log, found in by_log.items():
        added: list[dict[str, Any]] = []
        for step in found:
            entry: dict[str, Any] = {"hide": step.target, "hidden": step.act == "hide"}
            if step.act == "value back":
                lines = write_log.objects(memory.tree.scan(log), step.to)
                value = next((one for one in lines if jsonl.identity(one, "time")[0] == step.to), None)
                if value is None:
                    raise NotFound(f"The line {step.to} is not there any more.", "Run it again.")
                entry = {name: value[name] for name in value if name not in ("id", "op", "writer", "time")}
            added.append(entry | {"rollback": identifier})
        memory.add(log, added, after=max(step.order for step in found))
    return failed


def _log_of(memory: Core, step: Step) -> str:
    """Return the log that a step appends to, "" for a step that changes a document."""
    place = memory.layout.classify(step.path)
    kind = place.kind if place else KINDS["document"]
    if kind.write_once:
        return f"{step.path.rpartition('/')[0]}/{LEDGER}"
    return step.path if kind.shape == "line" else ""
