"""Compartments: what an agent keeps for one run, for a session, for its plans.

An entry is one line of a log. Session and plan share the log of the session, which is memory like any other and can be
searched; a run has a file of its own, which goes when the run ends. Clearing hides; what a run alone knew is removed
from its file. How much a compartment holds is checked while its log is held, so no number of processes exceeds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from holdfast.core import Core
from holdfast.errors import Busy, HoldfastError, Invalid, OverBudget
from holdfast.memories import _blocks
from holdfast.memories._fold import Entry, Filter, Fold, size_of
from holdfast.memories._following import Follower
from holdfast.memories._notes import Note, Owner, check, filtered, words
from holdfast.memories._runs import Runs
from holdfast.model.kinds import KINDS
from holdfast.model.names import check_given, check_text
from holdfast.model.records import USUAL_PRIORITY
from holdfast.model.scopes import DEFAULT, Scope
from holdfast.model.times import mint
from holdfast.storage.tree import LogEnd

__all__ = ["EVERYTHING", "Compartments", "Entry", "Filter", "Note", "Owner", "Run", "check", "filtered"]

EVERYTHING = Filter()
_TRIES = 20
Answer = TypeVar("Answer")


class _Log(msgspec.Struct, frozen=True):
    """The log that a compartment of an owner lies in."""

    path: str
    owner: Owner
    session: str
    run: str
    """"" where the log is that of the session."""


class Compartments:
    """All compartments of one memory. Close it to end the runs that live here."""

    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self.settings = memory.settings.compartments
        self._runs = Runs(memory.vault, memory.places.memory)
        self._follower: Follower[Fold] = Follower(memory.vault)

    def save(self, owner: Owner, compartment: str, note: Note) -> str:
        """Keep something and return its id; OverBudget when it does not fit into its compartment any more."""
        check(msgspec.structs.asdict(note) | {"compartment": compartment})
        check_given(content=note.content, category=note.category)
        note = msgspec.structs.replace(note, category=note.category.strip(), tags=words(note.tags))
        check_text(*note.tags, *note.metadata, *note.metadata.values())
        log = self._log(owner, compartment)
        needs, most = size_of(note.content, note.category, note.tags, note.metadata), self.settings.max_chars

        def guard(_end: LogEnd) -> None:
            self._claim(log)
            size, before = self._ask(
                log, lambda fold: (fold.size(compartment), fold.saved.get(f"{owner.op_id}\n{compartment}", ""))
            )
            if owner.op_id and before:
                raise _Repeated(before)
            if size + needs > most:
                raise OverBudget(
                    f"Memory compartment size limit exceeded ({size} of {most} characters, this entry needs {needs}).",
                    "Please delete some entries using clear_memory tool before saving new content.",
                )

        try:
            return self._memory.add(log.path, [_line(log, compartment, note)], guard=guard)[0]
        except _Repeated as repeated:
            return repeated.result

    def get(self, owner: Owner, compartment: str, wanted: Filter = EVERYTHING) -> list[Entry]:
        """Return the entries that are meant, highest priority first; each one counts as read once more."""
        log = self._log(owner, compartment)
        found = self._ask(log, lambda fold: fold.entries(compartment, wanted))
        ids = [entry.id for entry in found]
        now: list[Entry] = []

        def guard(_end: LogEnd) -> None:
            self._claim(log)
            now.extend(self._ask(log, lambda fold: fold.entries(compartment, wanted)))

        try:
            if ids:
                self._memory.add(log.path, [{"access": ids}], guard=guard, durable=False)
        except HoldfastError:
            return found  # what can be read is read, also where nothing can be noted
        return [msgspec.structs.replace(entry, access_count=entry.access_count + 1) for entry in now if entry.id in ids]

    def peek(self, owner: Owner, compartment: str, wanted: Filter = EVERYTHING) -> list[Entry]:
        """Return the entries that are meant, without counting them as read."""
        return self._ask(self._log(owner, compartment), lambda fold: fold.entries(compartment, wanted))

    def look(self, owner: Owner, compartment: str, wanted: Filter = EVERYTHING) -> list[Entry]:
        """Return the entries that are meant and change nothing: for who may only read, who takes part in no run."""
        log = self._log(owner, compartment, joining=False)
        return self._ask(log, lambda fold: fold.entries(compartment, wanted))

    def clear(self, owner: Owner, compartment: str, wanted: Filter = EVERYTHING) -> int:
        """Take away the entries that are meant and return how many; those of a run are gone, all others are hidden.

        While other entries stay in the file of a run, what is cleared is hidden there, and gone when the run ends.
        """
        log = self._log(owner, compartment)
        for _ in range(_TRIES):
            try:
                return self._clear(log, lambda fold: fold.entries(compartment, wanted))
            except _Changed:
                continue
            except _Repeated as repeated:
                return int(repeated.result)
        raise Busy(f"{log.path} is changed by others all the time; nothing was cleared.", "Try again.")

    def _clear(self, log: _Log, meant: Callable[[Fold], list[Entry]]) -> int:
        op = {"op": log.owner.op_id} if log.owner.op_id else {}

        def state(fold: Fold) -> tuple[list[str], int]:
            if op and op["op"] in fold.cleared:
                raise _Repeated(str(fold.cleared[op["op"]]))
            return [entry.id for entry in meant(fold)], len(fold.entries())

        def still() -> None:
            if self._ask(log, state) != (ids, total):
                raise _Changed

        def guard(_end: LogEnd) -> None:
            self._claim(log)
            still()

        ids, total = self._ask(log, state)
        if log.run and len(ids) == total:
            self._runs.end(log.path, still)
            if op and ids:
                self._memory.add(log.path, [{"cleared": len(ids), **op}], guard=lambda _: self._claim(log))
        else:
            self._memory.add(log.path, [{"hide": each, "hidden": True, **op} for each in ids], guard=guard)
        return len(ids)

    def end_run(self, owner: Owner) -> int:
        """Remove all that a run knew, and return how many entries that were."""
        log = self._log(owner, "run")
        counts: list[int] = []
        self._runs.end(log.path, lambda: counts.append(self._ask(log, lambda fold: len(fold.entries()))))
        return sum(counts)

    def sweep(self) -> None:
        """Remove what runs left whose process is gone."""
        self._runs.sweep_all()

    def close(self, run: str = "") -> None:
        """End the runs that live in this process, or the one of this name, in whichever sessions it saved something."""
        self._runs.close(run)

    def _log(self, owner: Owner, compartment: str, *, joining: bool = True) -> _Log:
        check({"compartment": compartment})
        check_text(owner.session, owner.run, owner.workspace, owner.op_id)
        session = owner.session or DEFAULT
        if compartment == "run" or (compartment == "plan" and self.settings.plan_scope == "run"):
            run = owner.run or session
            path = self._runs.path(session, run)
            if joining:
                self._runs.join(path)
            return _Log(path, owner, session, run)
        return _Log(self._memory.places.path_for(KINDS["entry"], Scope(), session=session), owner, session, "")

    def _ask(self, log: _Log, question: Callable[[Fold], Answer]) -> Answer:
        return self._follower.ask(log.path, lambda: Fold("run" if log.run else "session"), log.owner.warnings, question)

    def _claim(self, log: _Log) -> None:
        if log.run:
            self._runs.claim(log.path)


class Run:
    """One run of an agent in a session; use it as a context manager, so that what it alone knew ends with it."""

    def __init__(self, compartments: Compartments, session: str = "", run_id: str = "", workspace: str = "") -> None:
        check_given(session=session, run_id=run_id)
        self.id = run_id or mint()
        self.session = session or DEFAULT
        self.workspace = workspace
        self.warnings: list[str] = []
        """What could not be read so far."""
        self._compartments = compartments
        self._over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> int:
        """End the run and return how many entries it had."""
        if self._over:
            return 0
        count = self._compartments.end_run(self._owner())
        self._over = True
        return count

    def sub(self, run_id: str = "") -> Run:
        """Return the run of a sub-agent, which shares the memory of the session and nothing of this run."""
        return Run(self._compartments, self.session, run_id, self.workspace)

    def save(
        self, compartment: str, content: str, *, category: str = "", tags: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None, priority: int = USUAL_PRIORITY,
    ) -> str:  # fmt: skip
        """Keep something and return its id."""
        note = Note(content, category, words(tags), metadata or {}, priority)
        return self._compartments.save(self._owner(), compartment, note)

    def get(self, compartment: str, id: str = "", *, category: str = "", tags: Iterable[str] = ()) -> list[Entry]:
        """Return entries, highest priority first; each one counts as read once more."""
        return self._compartments.get(self._owner(), compartment, filtered(id, category, tags))

    def clear(self, compartment: str, *, category: str = "", tags: Iterable[str] = ()) -> int:
        """Take entries away and return how many; those of the run are gone, all others are hidden."""
        return self._compartments.clear(self._owner(), compartment, filtered("", category, tags))

    def system_block(self) -> str:
        """Return what the system prompt says of the compartments and their tools."""
        return _blocks.system(self._compartments.settings)

    def run_block(self) -> str:
        """Return the memory of this run as the prompt shows it, "" when there is none."""
        return _blocks.run(self._own())

    @property
    def has_memory(self) -> bool:
        """Is there anything in the memory of this run?"""
        return bool(self._own())

    @property
    def memory_content(self) -> str:
        """The memory of this run, one line per entry."""
        return _blocks.content(self._own())

    def _own(self) -> list[Entry]:
        return self._compartments.peek(self._owner(), "run")

    def _owner(self) -> Owner:
        if self._over:
            raise Invalid(f"The run {self.id} is over.", "Start a new one.")
        return Owner(self.session, self.id, self.workspace, warnings=self.warnings)


def _line(log: _Log, compartment: str, note: Note) -> dict[str, Any]:
    """Return an entry as its log keeps it."""
    line = {
        "session": log.session,
        "run": log.run,
        "workspace": log.owner.workspace,
        "compartment": compartment,
        "content": note.content,
        "category": note.category,
        "tags": list(note.tags),
        "metadata": dict(note.metadata),
        "priority": note.priority,
        "op": log.owner.op_id,
    }
    return {name: value for name, value in line.items() if value}


class _Repeated(Exception):
    """This op_id was applied before."""

    def __init__(self, result: str) -> None:
        super().__init__(result)
        self.result = result


class _Changed(Exception):
    """The log is not what it was when the work began."""
