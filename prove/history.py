"""The history of a campaign: every call and its answer in one form, and one function that judges them.

A worker records a call before it makes it, and again with the answer; a call without an answer has an unknown end.
`History.faults` checks for every campaign:

- an acknowledged write has effect exactly once, any other at most once, and one with a conflict never;
- an op_id has one effect and one receipt, however often and from however many processes it was sent;
- a read has everything that was acknowledged, or that another read returned, before it began.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from holdfast.errors import Conflict, HoldfastError

READ, VERIFY = "read", "verify"
ACKNOWLEDGED, CONFLICT, REFUSED, CRASHED = "acknowledged", "conflict", "refused", "crashed"
TORN = "torn: "
"""Marks text that is returned and differs from what was written."""
_MOST = 20


@dataclass(frozen=True)
class Event:
    """One call. Its times are of the monotonic clock, which all processes of a machine share."""

    op: str
    """The op_id of a write; for a read, the prefixes of the op_ids that it asks for, separated by commas."""
    kind: str
    start: float
    end: float = 0.0
    """0 while there is no answer."""
    result: str = ""
    """One of the words above; the reason follows a refusal or a crash."""
    id: str = ""
    """The receipt of a write."""
    seen: tuple[str, ...] = ()
    """The result of a read."""

    @property
    def acknowledged(self) -> bool:
        return self.result == ACKNOWLEDGED

    def __str__(self) -> str:
        return f"{self.kind} {self.op}: {self.result or 'no answer'}"[:300]


def tell_line(event: Event) -> None:
    """Print an event for the parent process."""
    sys.stdout.write(json.dumps(asdict(event)) + "\n")
    sys.stdout.flush()


class Recorder:
    """Makes calls and records them."""

    def __init__(self, tell: Callable[[Event], None] = tell_line) -> None:
        self._tell = tell

    def write(self, kind: str, op: str, do: Callable[[], Any]) -> Event:
        """Make a write; its receipt is the id that it returns."""
        event = Event(op, kind, time.monotonic())
        self._tell(event)
        made, result = None, ACKNOWLEDGED
        try:
            made = do()
        except Conflict:
            result = CONFLICT
        except HoldfastError as error:
            result = f"{REFUSED} {type(error).__name__}: {error}"
        except Exception as error:  # no interface should raise it
            result = f"{CRASHED} {type(error).__name__}: {error}"
        receipt = made.get("id", "") if isinstance(made, dict) else getattr(made, "id", made)
        identifier = receipt if isinstance(receipt, str) else ""
        done = replace(event, end=time.monotonic(), result=result, id=identifier)
        self._tell(done)
        return done

    def read(self, about: str, look: Callable[[], Iterable[str]]) -> Event:
        """Read the tags of some writes."""
        start, seen, result = time.monotonic(), tuple[str, ...](), ACKNOWLEDGED
        try:
            seen = tuple(look())
        except HoldfastError as error:
            result = f"{REFUSED} {type(error).__name__}: {error}"
        event = Event(about, READ, start, time.monotonic(), result, seen=seen)
        self._tell(event)
        return event


class History:
    """All events of a campaign, from any number of threads and processes."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events: dict[tuple[str, str, float], Event] = {}
        self._lock = threading.Lock()
        self.add(*events)

    @classmethod
    def of(cls, ops: Iterable[str]) -> History:
        """Return a history in which these writes were acknowledged."""
        return cls(Event(op, "write", 0.0, 1.0, ACKNOWLEDGED) for op in ops)

    def add(self, *events: Event) -> None:
        """Add events; an answer replaces its call."""
        with self._lock:
            for event in events:
                key = (event.op, event.kind, event.start)
                if event.end or key not in self._events:
                    self._events[key] = event

    def add_lines(self, lines: Iterable[str]) -> None:
        """Add the output of workers; an incomplete line does not count."""
        for line in lines:
            if line.startswith("{") and line.endswith(("}", "}\n")):
                self.add(event_of(json.loads(line)))

    def __iter__(self) -> Iterator[Event]:
        return iter(list(self._events.values()))

    def __len__(self) -> int:
        return len(self._events)

    def __add__(self, other: Iterable[Event]) -> History:
        return History([*self, *other])

    @property
    def writes(self) -> list[Event]:
        return [event for event in self if event.kind not in (READ, VERIFY)]

    @property
    def acknowledged(self) -> list[str]:
        """The op_ids of acknowledged writes."""
        return list(dict.fromkeys(event.op for event in self.writes if event.acknowledged))

    def refusals(self, *, conflicts: bool = False) -> list[str]:
        """Return the calls that were not acknowledged; those with a conflict only on request."""
        allowed = (ACKNOWLEDGED,) if conflicts else (ACKNOWLEDGED, CONFLICT)
        return [str(event) for event in self if event.result not in allowed]

    def faults(self, found: Mapping[str, int], *, twice: Collection[str] = ()) -> list[str]:
        """Return what is wrong, given how often each write has effect; those in `twice` may have effect two times."""
        calls: dict[str, list[Event]] = defaultdict(list)
        for event in self.writes:
            calls[event.op].append(event)
        wrong = [str(event) for event in self if event.result.startswith(CRASHED)]
        for op in sorted(calls.keys() | found.keys()):
            count, events = found.get(op, 0), calls[op]
            kept = any(event.acknowledged for event in events)
            never = bool(events) and all(event.result == CONFLICT for event in events)
            if op.startswith(TORN):
                wrong.append(f"{op} is served")
            elif count > (2 if op in twice else 1) or (kept and not count) or (never and count):
                answers = Counter(event.result.split(" ")[0] or "not answered" for event in events)
                wrong.append(f"{op} is there {count} times; {dict(answers)}")
            receipts = {event.id for event in events if event.acknowledged}
            wrong += [f"{op} has {len(receipts)} receipts: {sorted(receipts)[:3]}"] if len(receipts) > 1 else []
        return wrong + self._back_in_time()

    def _back_in_time(self) -> list[str]:
        """Return what a read lacks although it existed before the read began."""
        reads = [event for event in self if event.kind == READ and event.acknowledged]
        since: dict[str, float] = {}
        for end, op in [(event.end, event.op) for event in self.writes if event.acknowledged] + [
            (event.end, op) for event in reads for op in event.seen
        ]:
            since[op] = min(end, since.get(op, end))
        wrong = []
        for read in reads:
            about, seen = tuple(read.op.split(",")), set(read.seen)
            missed = [op for op, end in since.items() if end < read.start and op.startswith(about) and op not in seen]
            wrong += [f"a read of {read.op} misses {op}, which was there before" for op in missed[:_MOST]]
        return wrong


def event_of(given: Mapping[str, Any]) -> Event:
    return Event(**{**given, "seen": tuple(given.get("seen", ()))})
