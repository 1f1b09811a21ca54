"""Taking back what one writer wrote: its documents go back to the text before, its lines are hidden, nothing is erased.

Where somebody else wrote since, or a person did by hand, nothing is touched and that is told. What was derived from
such a line, like a summary, is hidden with it. All that is done is announced in the account of writes, so that a
rollback can be taken back as a whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from holdfast.errors import HoldfastError, NotFound
from holdfast.formats import jsonl
from holdfast.model.kinds import KINDS, LEDGER
from holdfast.model.layout import Place, Places
from holdfast.model.records import Record
from holdfast.model.times import mint
from holdfast.owner import history
from holdfast.owner.forget import covers
from holdfast.storage import guarding, parsing
from holdfast.storage.tree import ABSENT, Vault
from holdfast.storage.writing import Writer, kept

Act = Literal["text back", "remove", "hide", "show", "value back"]
_LINES = ("message", "fact", "procedure", "episode", "summary", "entry", "job")


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing to take back; with `conflict`, why it is left as it is."""

    act: Act
    id: str
    path: str
    version: str = ""
    """Of a document: the version that it has."""
    to: str = ""
    """Of a document: the version that it goes back to. Of a key: the line whose value holds again."""
    target: str = ""
    """What a mark in a log names."""
    order: str = ""
    conflict: str = ""
    derived: bool = False
    """Somebody else wrote it, from what is taken back."""


class RolledBack(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one writer wrote and what becomes, or became, of it."""

    writer: str
    steps: list[Step]
    conflicts: list[Step]
    count: int
    total: int
    named: list[str] = []
    """Records of others that say they come from what is taken back; they are left as they are."""
    done: bool = False
    id: str = ""
    """What to take the rollback back by."""

    @property
    def needs_count(self) -> bool:
        return guarding.is_much(self.count, self.total)


class Roller:
    """Takes back what a writer wrote to one vault."""

    def __init__(self, vault: Vault, places: Places, writer: Writer) -> None:
        self._vault = vault
        self._places = places
        self._writer = writer

    def plan(self, name: str, since: str, every: list[Record]) -> RolledBack:
        """Say what a writer wrote since then and what would become of it."""
        lines = [one for one in every if one.kind in _LINES and _by(one.fields, name) and one.time >= since]
        steps = [*self._documents(name, since), *self._of_lines(lines, every, name), *self._marks(name, since)]
        going = {step.id for step in steps if not step.conflict}
        hidden = [one for one in lines if one.id in going]
        steps += [
            Step("hide", one.id, one.path, target=one.id, order=one.order, derived=True)
            for one in every
            if one.id not in going and not one.hidden and covers(one, hidden)
        ]
        named = [one.id for one in every if one.id not in going and one.fields.get("source") in going]
        wanted = [step for step in steps if not step.conflict]
        conflicts = [step for step in steps if step.conflict]
        if not steps and not lines and name not in (known := self.writers(every)):
            raise NotFound(f"Nothing was written by {name!r}.", f"Known writers: {', '.join(known) or 'none'}.")
        return RolledBack(name, wanted, conflicts, len(wanted), guarding.units(every), named)

    def writers(self, every: Iterable[Record]) -> list[str]:
        """Return who wrote something."""
        found = {str(one.fields["writer"]) for one in every if isinstance(one.fields.get("writer"), str)}
        return sorted(found | {str(line["writer"]) for line in self._accounts() if isinstance(line.get("writer"), str)})

    # planning

    def _accounts(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the account of writes, oldest first."""
        found = self._vault.walk(f"{self._places.memory}/writes", (".jsonl",), lambda _path, _why: None)
        for log in sorted(path for path, _ in found):
            for line in self._vault.scan(log):
                objects = jsonl.parse(line.data)
                yield from objects if isinstance(objects, list) else ()

    def _documents(self, name: str, since: str) -> Iterator[Step]:
        by_path: dict[str, list[dict[str, Any]]] = {}
        for line in self._accounts():
            if isinstance(line.get("path"), str):
                by_path.setdefault(line["path"], []).append(line)
        for path, lines in by_path.items():
            if any(_by(line, name) and str(line.get("time", "")) >= since for line in lines):
                yield from self._document(path, lines, name, since)

    def _document(self, path: str, lines: list[dict[str, Any]], name: str, since: str) -> Iterator[Step]:
        place = self._places.classify(path)
        current = self._vault.read(path).version if self._vault.stat(path) else ABSENT
        lines = history.written(lines, current)
        own = [n for n, line in enumerate(lines) if _by(line, name) and str(line.get("time", "")) >= since]
        if place is None or not own or any(line.get("forgotten") for line in lines[own[0] :]):
            return
        to = str(lines[own[0]].get("before") or ABSENT)
        if current == to:
            return
        step = Step("text back" if to else "remove", path, path, current, to)
        if place.kind.shape == "section":
            yield from self._entries(place, [lines[number] for number in own])
        elif place.kind.write_once:
            yield Step("hide", path, path, target=path.rpartition("/")[2])
        elif conflict := self._conflict(lines[own[0] :], name, current, to):
            yield msgspec.structs.replace(step, conflict=conflict)
        else:
            yield step

    def _entries(self, place: Place, lines: list[dict[str, Any]]) -> Iterator[Step]:
        """Find what of a page of entries the writer wrote; the page itself may have been written by many."""
        facts = parsing.entries(place, self._vault.read(place.path))
        there = {record.id: record for record in facts.records if not record.hidden}
        last = {str(line["record"]): str(line.get("version")) for line in lines if line.get("record")}
        for identifier, version in last.items():
            if identifier in there:
                changed = "" if there[identifier].version == version else "it was changed since"
                yield Step("hide", identifier, place.path, version, conflict=changed)

    def _conflict(self, lines: list[dict[str, Any]], name: str, current: str, to: str) -> str:
        """Say why a document cannot go back, "" when it can."""
        others = {str(line.get("writer") or "somebody") for line in lines if not _by(line, name)}
        if others:
            return f"{', '.join(sorted(others))} wrote it since"
        ends = [str(line.get("after") or ABSENT) for line in lines]
        starts = [str(line.get("before") or ABSENT) for line in lines[1:]]
        if current not in ends or any(start not in (*ends, to) for start in starts):
            return "it was changed by hand since"
        if to and not self._vault.stat(kept(self._places, to)):
            return "the text before is not kept: entries were only added to it"
        return ""

    def _of_lines(self, lines: list[Record], every: list[Record], name: str) -> Iterator[Step]:
        for one in lines:
            if one.superseded or one.hidden or "rollback" in one.fields:
                continue
            older = [
                each
                for each in every
                if one.key and each.key == one.key and each.path == one.path and not _by(each.fields, name)
            ]
            if older:
                before = max(older, key=lambda each: each.order)
                yield Step("value back", one.id, one.path, to=before.id, target=one.key, order=one.order)
            else:
                yield Step("hide", one.id, one.path, target=one.key or one.id, order=one.order)

    def _marks(self, name: str, since: str) -> Iterator[Step]:
        """Find what the writer hid, and nobody showed or hid again."""
        tops = (self._places.memory, self._places.workspaces)  # where the ledgers of save points are
        walks = (self._vault.walk(top, (".jsonl",), lambda _path, _why: None) for top in tops)
        for path, _ in itertools.chain.from_iterable(walks):
            newest: dict[str, tuple[str, Mapping[str, Any]]] = {}
            for line in self._vault.scan(path):
                objects = jsonl.parse(line.data) if b'"hide"' in line.data else []
                for value in objects if isinstance(objects, list) else ():
                    order, target = jsonl.identity(value, "time")[1], value.get("hide")
                    if isinstance(target, str) and order > newest.get(target, ("", {}))[0]:
                        newest[target] = (order, value)
            for hidden, (last, mark) in newest.items():
                hid = mark.get("hidden") is not False and "rollback" not in mark
                if hid and _by(mark, name) and str(mark.get("time", "")) >= since:
                    yield Step("show", hidden, path, target=hidden, order=last)

    # doing

    def roll(self, plan: RolledBack) -> RolledBack:
        """Take it back, announced under an id of its own."""
        identifier = mint()
        told = [msgspec.to_builtins(step) for step in plan.steps]
        self._writer.account({"rollback": identifier, "of": plan.writer, "steps": told, "intent": True})
        left = self._do(plan.steps, identifier)
        self._writer.account({"rollback": identifier, "of": plan.writer})
        done = [step for step in plan.steps if step not in left]
        conflicts = [*plan.conflicts, *left.values()]
        return msgspec.structs.replace(plan, steps=done, conflicts=conflicts, done=True, id=identifier)

    def back(self, identifier: str) -> RolledBack:
        """Take a rollback back: what nobody changed since becomes what it was before."""
        found = [line for line in self._accounts() if line.get("rollback") == identifier and "steps" in line]
        if not found:
            raise NotFound(f"There is no rollback {identifier!r}.", "Use the id that it told.")
        steps = [_inverse(step) for step in msgspec.convert(found[0]["steps"], list[Step])]
        changed = {
            step: msgspec.structs.replace(step, conflict=why)
            for step in steps
            if (why := self._since(step, identifier))
        }
        left = changed | self._do([step for step in steps if step not in changed], mint())
        done = [step for step in steps if step not in left]
        return RolledBack(str(found[0].get("of")), done, list(left.values()), len(done), 0, done=True, id=identifier)

    def _since(self, step: Step, identifier: str) -> str:
        """Say why what a rollback did in a log cannot be taken back: something newer holds there; "" when it can."""
        log = self._log(step)
        newest: tuple[str, Mapping[str, Any]] = ("", {})
        for line in self._vault.scan(log) if log and self._vault.stat(log) else ():
            objects = jsonl.parse(line.data)
            for value in objects if isinstance(objects, list) else ():
                order = jsonl.identity(value, "time")[1]
                if step.target in (value.get("hide"), value.get("key")) and order > newest[0]:
                    newest = (order, value)
        return "it was changed since" if log and newest[1].get("rollback") != identifier else ""

    def _log(self, step: Step) -> str:
        """Return the log that a step is done in, "" for one that is done in a document."""
        place = self._places.classify(step.path)
        kind = place.kind if place else KINDS["document"]
        if kind.write_once:
            return f"{step.path.rpartition('/')[0]}/{LEDGER}"
        return step.path if kind.shape == "line" else ""

    def _do(self, steps: list[Step], identifier: str) -> dict[Step, Step]:
        """Do all steps; return those that could not be done, each with the reason."""
        left: dict[Step, Step] = {}
        by_log: dict[str, list[Step]] = {}
        for step in steps:
            if log := self._log(step):
                by_log.setdefault(log, []).append(step)
                continue
            place = self._places.classify(step.path)
            try:
                self._go_back(step, place)
            except HoldfastError as error:
                left[step] = msgspec.structs.replace(step, conflict=error.message)
        for log, found in by_log.items():
            added = [self._line(log, step) | {"rollback": identifier} for step in found]
            self._writer.add(log, added, after=max(step.order for step in found))
        return left

    def _go_back(self, step: Step, place: Place | None) -> None:
        if place and step.act in ("hide", "show"):
            hide = step.act == "hide"
            there = parsing.entries(place, self._vault.read(step.path)).records
            found = next((record for record in there if record.id == step.id), None)
            if found is None or found.hidden == hide:
                raise NotFound("it was changed since", "Look at it.")
            self._writer.hide(found, hide)
        elif step.to == ABSENT:
            self._writer.retire(step.path, step.version)
        else:
            data = self._vault.read(kept(self._places, step.to)).data
            self._writer.replace(step.path, data, step.version)

    def _line(self, log: str, step: Step) -> dict[str, Any]:
        if step.act != "value back":
            return {"hide": step.target, "hidden": step.act == "hide"}
        for line in self._vault.scan(log):
            objects = jsonl.parse(line.data) if step.to.encode() in line.data else []
            for value in objects if isinstance(objects, list) else ():
                if jsonl.identity(value, "time")[0] == step.to:
                    return {name: inner for name, inner in value.items() if name not in ("id", "op", "writer", "time")}
        raise NotFound(f"The line {step.to} is not there any more.", "Run it again.")


def _inverse(step: Step) -> Step:
    if step.act in ("text back", "remove"):
        return msgspec.structs.replace(step, act="text back", version=step.to, to=step.version)
    if step.act == "value back":
        return msgspec.structs.replace(step, to=step.id)
    return msgspec.structs.replace(step, act="show" if step.act == "hide" else "hide")


def _by(line: Mapping[str, Any], name: str) -> bool:
    return line.get("writer") == name
