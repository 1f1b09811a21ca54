"""The runs of jobs: which slots were claimed and how each ended, in one log per month of the slots.

A slot is claimed by one durable entry, before anything is done for it, and only when no such entry is there. So no
slot runs twice, whichever process is killed when. A second entry records how the run ended; while it is missing, the
run is reported as unfinished.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from holdfast.core import Core
from holdfast.model.kinds import KINDS
from holdfast.model.records import Scope
from holdfast.model.times import iso, parse_ms
from holdfast.storage.folds import Logs

UNFINISHED = "unfinished"
MOST_OUTPUT = 2_000
_RECENT = 2
"""Months that are always read, also when a job's slots count from later on."""
Answer = TypeVar("Answer")


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    status: str
    """`done`, `failed` or `timeout`."""
    exit: int | None = None
    output: str = ""
    """The beginning of the output, or the error."""
    seconds: float = 0.0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A slot of a job that was claimed."""

    job: str
    name: str
    slot: str
    time: str
    """When it was claimed."""
    missed: int = 0
    status: str = UNFINISHED
    exit: int | None = None
    output: str = ""
    seconds: float = 0.0

    def ended(self, how: Ended) -> Run:
        return msgspec.structs.replace(self, **msgspec.structs.asdict(how))


class Month:
    """The state of the log of a month, the same in whatever order its entries come."""

    def __init__(self) -> None:
        self.slots: dict[str, set[int]] = {}
        """The claimed slots of each job, in milliseconds."""
        self.last: dict[str, Run] = {}
        """The newest slot of each job."""
        self.open: dict[str, Run] = {}
        """Runs without an end."""
        self._ends: dict[str, Ended] = {}
        """Ends whose claim was not read yet; a merge may reverse them."""

    def add(self, entry: Mapping[str, Any]) -> None:
        name, found = _parsed(entry)
        if isinstance(found, Ended):
            run = self.open.pop(name, None)
            if run is None:
                self._ends[name] = found
            elif self.last[run.job].slot == run.slot:
                self.last[run.job] = run.ended(found)
            return
        ms = parse_ms(found.slot) if found else None
        if found is None or ms is None or ms in self.slots.setdefault(found.job, set()):
            return  # not an entry of ours, or a copy of one that a merge brought
        self.slots[found.job].add(ms)
        if name in self._ends:
            found = found.ended(self._ends.pop(name))
        else:
            self.open[name] = found
        if found.job not in self.last or self.last[found.job].slot <= found.slot:
            self.last[found.job] = found


class JobRuns:
    """The runs of all jobs of one memory. Safe to use from several processes at once."""

    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self._logs = Logs(memory, Month)
        self.warnings: list[str] = []
        """Warnings of lines that could not be read so far."""

    def claim(self, job: str, name: str, slot: datetime, missed: int) -> bool:
        """Claim a slot: True, and durable, for exactly one of all callers."""
        at, ms = slot_text(slot), int(slot.timestamp() * 1000)
        entry = {"claim": f"{job}@{at}", "job": job, "name": name, "slot": at, "missed": missed}

        def decide(month: Month) -> list[dict[str, Any]]:
            return [] if ms in month.slots.get(job, ()) else [entry]

        return bool(self._logs.transact(self._path(at[:7]), decide, self.warnings))

    def end(self, job: str, name: str, slot: datetime, how: Ended) -> None:
        """Record how a run ended."""
        at, output = slot_text(slot), self._memory.secrets.clean(how.output)[:MOST_OUTPUT]
        entry = {"finish": f"{job}@{at}", "job": job, "name": name, "slot": at}
        entry |= {field: value for field, value in msgspec.structs.asdict(how).items() if value is not None}
        self._memory.add(self._path(at[:7]), [entry | {"output": output}])

    def newest(self, job: str, since: str, until: datetime) -> datetime | None:
        """Return the newest claimed slot of a job up to this one, as far back as its slots count."""
        most = int(until.timestamp() * 1000)
        for month in self._months(slot_text(until)[:7]):
            if month < since[:7]:
                break
            slots = self._ask(month, lambda read: list(read.slots.get(job, ())))
            if found := max((slot for slot in slots if slot <= most), default=None):
                return datetime.fromtimestamp(found / 1000, UTC)
        return None

    def last(self, job: str, since: str) -> Run | None:
        """Return the last run of a job, from the recent months and as far back as its slots count."""
        for place, month in enumerate(self._months()):
            if place >= _RECENT and month < since[:7]:
                break
            if found := self._ask(month, lambda read: read.last.get(job)):
                return found
        return None

    def unfinished(self) -> list[Run]:
        """Return the runs of the recent months that have no end, oldest first."""
        months = itertools.islice(self._months(), _RECENT)
        found = [run for month in months for run in self._ask(month, lambda read: list(read.open.values()))]
        return sorted(found, key=lambda run: run.slot)

    def newest_first(self) -> Iterator[Run]:
        """Yield all runs, read from the ends of the logs."""
        for month in self._months():
            ends: dict[str, Ended] = {}
            for entry in self._memory.newest_entries(self._path(month)):
                name, found = _parsed(entry)
                if isinstance(found, Ended):
                    ends.setdefault(name, found)
                elif found:
                    yield found.ended(ends[name]) if name in ends else found

    def _months(self, until: str = "9999-12") -> Iterator[str]:
        """Yield the months that have a log, newest first."""
        for path in sorted(self._memory.store.paths(self._path("x").rpartition("/")[0], ".jsonl"), reverse=True):
            place, month = self._memory.layout.classify(path), path.rpartition("/")[2].removesuffix(".jsonl")
            if place and place.kind.name == "claim" and month <= until:
                yield month

    def _ask(self, month: str, question: Callable[[Month], Answer]) -> Answer:
        return self._logs.ask(self._path(month), question, self.warnings)

    def _path(self, month: str) -> str:
        return self._memory.layout.path_for(KINDS["claim"], Scope(), month=month)


def slot_text(slot: datetime) -> str:
    """Return a slot as logs and replies have it."""
    return iso(int(slot.timestamp() * 1000))


def _parsed(entry: Mapping[str, Any]) -> tuple[str, Run | Ended | None]:
    """Return the slot of a job that an entry is about, and what it records; fields of the wrong type are left out."""
    texts = {name: value for name, value in entry.items() if isinstance(value, str)}
    if not texts.keys() >= {"job", "slot"} or texts.keys().isdisjoint({"claim", "finish"}):
        return "", None
    name = f"{texts['job']}@{texts['slot']}"
    if "finish" in entry:
        code, seconds = entry.get("exit"), entry.get("seconds")
        return name, Ended(
            status=texts.get("status", "done"), exit=code if isinstance(code, int) else None,
            output=texts.get("output", ""), seconds=seconds if isinstance(seconds, int | float) else 0.0,
        )  # fmt: skip
    missed = entry.get("missed")
    return name, Run(
        job=texts["job"], slot=texts["slot"], time=texts.get("time", ""), name=texts.get("name", ""),
        missed=missed if isinstance(missed, int) else 0,
    )  # fmt: skip
