"""Claims: which slots of jobs were taken, and how each ended; one log per month of the slots.

A slot is taken by one durable line, added while the log is held and only if no such line is there, and before anything
is done for it. So nothing is done twice, whoever dies when. A line that says how it ended follows; where it is missing,
nobody knows, and the slot is reported as unfinished.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from holdfast.core import Core
from holdfast.errors import Unavailable
from holdfast.formats import jsonl
from holdfast.memories._due import Job, moment, text_of
from holdfast.memories._following import Follower
from holdfast.model.kinds import KINDS
from holdfast.model.scopes import Scope
from holdfast.model.times import parse_ms
from holdfast.storage.tree import LogEnd

UNFINISHED = "unfinished"
_ALWAYS_LOOKED_AT = 2
MOST_OUTPUT = 2_000
Answer = TypeVar("Answer")


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a slot ended."""

    status: str
    """`done`, `failed` or `timeout`."""
    exit: int | None = None
    output: str = ""
    """The head of what was printed, or the error."""
    seconds: float = 0.0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A slot of a job that was taken."""

    job: str
    name: str
    slot: str
    time: str
    """When it was taken."""
    missed: int = 0
    status: str = UNFINISHED
    exit: int | None = None
    output: str = ""
    seconds: float = 0.0


class Taken:
    """What the log of a month adds up to, in whatever order its lines come."""

    def __init__(self) -> None:
        self.slots: dict[str, set[int]] = {}
        """The slots of each job, in milliseconds."""
        self.last: dict[str, Run] = {}
        """The newest slot of each job."""
        self.open: dict[str, Run] = {}
        """What has no end."""
        self._ended: dict[str, Ended] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Take in one line; what is none of ours says nothing."""
        name = key_of(line)
        if not name:
            return
        if "finish" in line:
            run, ended = self.open.pop(name, None), _ended(line)
            if run is None:
                self._ended[name] = ended  # a merge may put it before the claim
            elif self.last[run.job].slot == run.slot:
                self.last[run.job] = over(run, ended)
            return
        run, ms = _run(line), parse_ms(line["slot"])
        slots = self.slots.setdefault(run.job, set())
        if ms is None or ms in slots:
            return  # two copies of a log that were merged, or no slot at all
        slots.add(ms)
        if name in self._ended:
            run = over(run, self._ended.pop(name))
        else:
            self.open[name] = run
        if run.job not in self.last or self.last[run.job].slot <= run.slot:
            self.last[run.job] = run


class Claims:
    """The claims of one memory. Safe to use from several processes at once."""

    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self._follower: Follower[Taken] = Follower(memory.vault)
        self.warnings: list[str] = []
        """What could not be read so far."""

    def add(self, job: Job, slot: datetime, missed: int) -> bool:
        """Take a slot: True for exactly one of all who try, and durable then."""
        ms, at = int(slot.timestamp() * 1000), text_of(slot)
        path = self._path(at[:7])
        line = {"claim": f"{job.id}@{at}", "job": job.id, "name": job.name, "slot": at, "missed": missed}

        def guard(_end: LogEnd) -> None:
            if self._taken(path, job.id, ms):
                raise _There

        if self._taken(path, job.id, ms):
            return False
        try:
            self._memory.add(path, [line], guard=guard)
        except _There:
            return False
        return True

    def end(self, job: Job, slot: datetime, ended: Ended) -> None:
        """Note how a slot ended."""
        at = text_of(slot)
        line = {"finish": f"{job.id}@{at}", "job": job.id, "name": job.name, "slot": at}
        told = msgspec.to_builtins(
            msgspec.structs.replace(ended, output=self._memory.screen.clean(ended.output)[:MOST_OUTPUT])
        )
        self._memory.add(
            self._path(at[:7]), [line | {name: value for name, value in told.items() if value is not None}]
        )

    def newest(self, job: Job, at: datetime) -> datetime | None:
        """Return a job's newest slot up to this one that was taken, as far back as its slots count."""
        ms = int(at.timestamp() * 1000)
        for month in self._months(until=text_of(at)[:7]):
            if month < job.since[:7]:
                break
            if found := self._ask(month, functools.partial(_up_to, job=job.id, ms=ms)):
                return moment(found)
        return None

    def last(self, job: Job) -> Run | None:
        """Return the last run of a job: as far back as its slots count, and a little before."""
        for place, month in enumerate(self._months()):
            if place >= _ALWAYS_LOOKED_AT and month < job.since[:7]:
                break
            if found := self._ask(month, lambda taken: taken.last.get(job.id)):
                return found
        return None

    def unfinished(self) -> list[Run]:
        """Return what was taken lately and has no end, oldest first."""
        months = itertools.islice(self._months(), _ALWAYS_LOOKED_AT)
        found = [run for month in months for run in self._ask(month, lambda taken: list(taken.open.values()))]
        return sorted(found, key=lambda run: run.slot)

    def newest_first(self) -> Iterator[Run]:
        """Yield all runs, read from the ends of the logs."""
        for month in self._months():
            ended: dict[str, Ended] = {}
            for line in self._memory.vault.scan_back(self._path(month)):
                objects = jsonl.parse(line.data)
                for value in reversed(objects) if isinstance(objects, list) else ():
                    name = key_of(value)
                    if name and "finish" in value:
                        ended.setdefault(name, _ended(value))
                    elif name:
                        yield over(_run(value), ended[name]) if name in ended else _run(value)

    def _taken(self, path: str, job: str, ms: int) -> bool:
        return self._follower.ask(path, Taken, self.warnings, lambda taken: ms in taken.slots.get(job, ()))

    def _ask(self, month: str, question: Callable[[Taken], Answer]) -> Answer:
        return self._follower.ask(self._path(month), Taken, self.warnings, question)

    def _months(self, until: str = "9999-12") -> Iterator[str]:
        """Yield the months that have a log, newest first."""
        folder = self._path("x").rpartition("/")[0]
        found = (path for path, _ in self._memory.vault.walk(folder, (".jsonl",), _unreadable))
        ours = {path.rpartition("/")[2].removesuffix(".jsonl") for path in found if self._is_ours(path)}
        return iter(sorted((month for month in ours if month <= until), reverse=True))

    def _is_ours(self, path: str) -> bool:
        place = self._memory.places.classify(path)
        return place is not None and place.kind.name == "claim"

    def _path(self, month: str) -> str:
        return self._memory.places.path_for(KINDS["claim"], Scope(), month=month)


def _up_to(taken: Taken, job: str, ms: int) -> int | None:
    """Return the newest slot of a job up to a moment."""
    return max((slot for slot in taken.slots.get(job, ()) if slot <= ms), default=None)


def over(run: Run, ended: Ended) -> Run:
    """Return a run with how it ended."""
    return msgspec.structs.replace(run, **msgspec.structs.asdict(ended))


def key_of(line: Mapping[str, Any]) -> str:
    """Return which slot of which job a line is about, "" when it is about none."""
    job, slot = line.get("job"), line.get("slot")
    about = isinstance(line.get("claim"), str) or isinstance(line.get("finish"), str)
    return f"{job}@{slot}" if about and isinstance(job, str) and isinstance(slot, str) else ""


def _run(line: Mapping[str, Any]) -> Run:
    name, missed, time = line.get("name"), line.get("missed"), line.get("time")
    return Run(
        job=line["job"], slot=line["slot"], time=time if isinstance(time, str) else "",
        name=name if isinstance(name, str) else "", missed=missed if isinstance(missed, int) else 0,
    )  # fmt: skip


def _ended(line: Mapping[str, Any]) -> Ended:
    status, code, output, seconds = (line.get(name) for name in ("status", "exit", "output", "seconds"))
    return Ended(
        status=status if isinstance(status, str) else "done", exit=code if isinstance(code, int) else None,
        output=output if isinstance(output, str) else "",
        seconds=seconds if isinstance(seconds, int | float) else 0.0,
    )  # fmt: skip


def _unreadable(path: str, why: str) -> None:
    raise Unavailable(f"{path}: {why}.", "Check its permissions.")


class _There(Exception):
    """Somebody else has taken the slot."""
