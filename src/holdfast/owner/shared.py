"""Private and shared: a memory can name another one that is shared with others, and look for answers in both.

What may answer a question is gathered on both sides and ranked together, as if it were one memory: how much a word
tells is then known from all records of both. Where the two sides do not look for the same words, each ranks its own,
and the scores, of which the best is about 1 on either side, decide.

The shared one may be slow or away. It is asked in a thread, for a bounded time, and never keeps the private answer
waiting for longer; after a failure it is not asked again for a while.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar
from urllib.parse import quote

import msgspec

from holdfast.errors import HoldfastError, Invalid, NotFound, Unavailable
from holdfast.model.queries import Query
from holdfast.model.records import Problem, Record
from holdfast.recall import answers as recalling
from holdfast.recall.answers import Answer, Candidates, Found
from holdfast.recall.ranking import Near
from holdfast.storage.index import Candidate, Pool, Tied

if TYPE_CHECKING:
    from holdfast.core import Core

NAME = "shared"
PREFIX = f"{NAME}:"
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
_OURS = "HOLDFAST_"
"""How variables begin that settings may name: a file that came with a project is not to reach for any other."""
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
T = TypeVar("T")


def address(memory: Core, given: str = "") -> str:
    """Return where another memory is: as it is given, or else as the settings name the shared one."""
    if given:
        return given
    named = memory.settings.shared.store
    if not named:
        raise Invalid(
            "There is no other memory.", 'Name one, or set it in holdfast.toml: [shared] store = "postgresql://…"'
        )
    from holdfast.opening import is_address, without_clear_passwords  # which open what this module names

    database = is_address(named)

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if not name.startswith(_OURS):
            raise Invalid(
                f"shared.store names ${name}, and settings may only name variables that begin with {_OURS}.",
                f"Call it {_OURS}{name}; write %24 for a dollar sign in an address.",
            )
        if name not in os.environ:
            raise Invalid(f"shared.store names ${name}, which is not set.", f"Set the variable {name}.")
        return quote(os.environ[name], safe="") if database else os.environ[name]

    told = _VARIABLE.sub(value, named)
    if database or is_address(told):  # a variable may hold all of it
        return without_clear_passwords(told)
    return os.path.join(memory.tree("A shared memory in a folder"), os.path.expanduser(told))


def as_written(error: HoldfastError, memory: Core) -> HoldfastError:
    """Return an error of the shared memory that tells of its address what the settings do: names, and no values."""
    for found in _VARIABLE.finditer(memory.settings.shared.store):
        if value := os.environ.get(found[1] or found[2], ""):
            for form in (value, quote(value, safe="")):
                error.message = error.message.replace(form, found[0])
                error.next_step = error.next_step.replace(form, found[0])
    return error


class Pending(Generic[T]):
    """An answer that the shared memory may give."""

    def __init__(self, shared: Shared, work: Callable[[Core], T]) -> None:
        self._shared, self._work = shared, work
        self._deadline = monotonic() + shared.seconds
        self._answer: T | None = None
        self._error: HoldfastError | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-shared", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._work(self._shared.open())
        except HoldfastError as error:
            self._error = as_written(error, self._shared.memory)
        except Exception as error:  # whatever it is, the private answer must come
            failed = Unavailable(f"It failed: {type(error).__name__}: {error}"[:300], "Please report this.")
            self._error = as_written(failed, self._shared.memory)

    def result(self) -> T:
        """Return the answer when it has come in time, else say what is wrong."""
        self._thread.join(max(0.0, self._deadline - monotonic()))
        if self._thread.is_alive():
            self._error = Unavailable(
                f"It gave no answer within {self._shared.seconds:g} seconds.", "Look whether its server can be reached."
            )
        if isinstance(self._error, Unavailable):
            raise self._shared.failed(self._error)
        self._shared.answered()
        if self._error:
            raise self._error
        return self._answer  # type: ignore[return-value]  # there is no error, so the work has returned


class Shared:
    """The memory that this one shares with others."""

    def __init__(self, memory: Core) -> None:
        self.memory = memory
        self.seconds = memory.settings.shared.timeout_seconds
        self._opening = threading.Lock()
        self._opened: Core | None = None
        self._pause, self._until = _FIRST_PAUSE, 0.0
        self._why: HoldfastError | None = None

    def start(self, work: Callable[[Core], T]) -> Pending[T]:
        """Begin some work on the shared memory; Unavailable at once while it is given a rest."""
        if self._why and monotonic() < self._until:
            raise self._why
        return Pending(self, work)

    def ask(self, work: Callable[[Core], T]) -> T:
        """Do some work on the shared memory within the time that it has."""
        return self.start(work).result()

    def open(self) -> Core:
        from holdfast import core
        from holdfast.opening import open_memory

        with self._opening:
            if self._opened is None:
                opened = open_memory(address(self.memory), kind=core.Core)
                if opened.root == self.memory.root:
                    opened.close()
                    raise Invalid("shared.store names this memory itself.", "Name another one.")
                self._opened = opened
            return self._opened

    def failed(self, error: HoldfastError) -> HoldfastError:
        """Give it a rest, a longer one each time."""
        self._why = Unavailable(f"The shared memory was not asked: {error.message}", error.next_step)
        self._until, self._pause = monotonic() + self._pause, min(self._pause * 2, _LONGEST_PAUSE)
        return self._why

    def answered(self) -> None:
        self._why, self._pause = None, _FIRST_PAUSE

    def close(self) -> None:
        if self._opening.acquire(blocking=False):  # who is still trying to open it ends with this process
            try:
                if self._opened:
                    self._opened.close()
            finally:
                self._opening.release()


def find(memory: Core, query: Query) -> Found:
    """Answer a query from the shared memory, or from both."""
    shared = memory.shared
    if shared is None and query.where == "shared":
        raise Invalid("This memory shares nothing.", 'Set it in holdfast.toml: [shared] store = "postgresql://…"')
    inner = msgspec.structs.replace(query, where="here")
    if shared is None:
        return memory.find(inner)
    if query.where == "shared":
        found = shared.ask(lambda there: there.find(inner))
        return msgspec.structs.replace(found, hits=[msgspec.structs.replace(hit, store=NAME) for hit in found])
    problems: list[Problem] = []
    pending = _begun(shared, inner, problems)
    mine: Candidates | None = None
    missing: NotFound | None = None
    try:
        mine = memory.candidates(inner)
    except NotFound as error:  # the workspace may be there and not here
        missing = error
    theirs = _heard(pending, problems) if pending else None
    if mine is None and (theirs is None or missing is None):
        raise missing or NotFound("There is nothing to look in.", "")
    return _together(mine or Candidates(), theirs or Candidates(), inner, memory, problems)


def _begun(shared: Shared, query: Query, problems: list[Problem]) -> Pending[Candidates] | None:
    try:
        return shared.start(lambda there: there.candidates(query))
    except HoldfastError as error:
        problems.append(Problem(NAME, str(error)))
        return None


def _heard(pending: Pending[Candidates], problems: list[Problem]) -> Candidates | None:
    try:
        return pending.result()
    except NotFound as error:  # it does not have this workspace
        problems.append(Problem(NAME, error.message, minor=True))
    except HoldfastError as error:
        problems.append(Problem(NAME, str(error)))
    return None


def _together(mine: Candidates, theirs: Candidates, query: Query, memory: Core, problems: list[Problem]) -> Found:
    def load(rows: list[int]) -> dict[int, Record]:
        found = {2 * row: record for row, record in mine.load([row // 2 for row in rows if not row % 2]).items()}
        others = theirs.load([row // 2 for row in rows if row % 2])
        return found | {2 * row + 1: record for row, record in others.items()}

    def related(answers: list[Answer]) -> list[list[Tied]]:
        ties = [iter(source.related([one for one in answers if one.store == store])) for store, source in both]
        return [next(ties[bool(one.store)]) for one in answers]

    both = (("", mine), (NAME, theirs))
    told = [Problem(f"{NAME}: {one.path}", one.what, one.line, one.minor) for one in theirs.problems]
    found = Candidates(
        _pools(mine.pools, theirs.pools), _near(mine.near, theirs.near),
        _newest(mine.answers, theirs.answers, query.limit),
        load=load, related=related, store=lambda row: NAME if row % 2 else "",
        as_of=mine.as_of or theirs.as_of, behind=mine.behind + theirs.behind,
        problems=[*mine.problems, *told, *problems], damaged=mine.damaged + theirs.damaged,
    )  # fmt: skip
    return recalling.answer(found, query, memory.settings.search)


def _newest(mine: list[Answer], theirs: list[Answer], limit: int) -> list[Answer]:
    every = mine + [msgspec.structs.replace(one, store=NAME) for one in theirs]
    every.sort(key=lambda one: one.record.time, reverse=True)
    seen: set[tuple[str, str]] = set()
    kept = []
    for one in every:
        if (key := (one.record.id, one.record.version)) not in seen:
            seen.add(key)
            kept.append(one)
    return kept[:limit]


def _pools(mine: list[Pool], theirs: list[Pool]) -> list[Pool]:
    """Put pools together that look for the same words; rows are even here and odd there."""
    waiting = [_renumbered(pool, 1) for pool in theirs]
    found = []
    for pool in (_renumbered(pool, 0) for pool in mine):
        twin = next((one for one in waiting if (one.foreign, one.words) == (pool.foreign, pool.words)), None)
        if twin:
            waiting.remove(twin)
        found.append(_joined(pool, twin) if twin else pool)
    return found + waiting


def _joined(one: Pool, other: Pool) -> Pool:
    records = one.records + other.records
    return Pool(
        foreign=one.foreign, words=one.words, held=tuple(map(sum, zip(one.held, other.held, strict=True))),
        records=records, length=(one.length * one.records + other.length * other.records) / max(1, records),
        candidates={**one.candidates, **other.candidates}, after={**one.after, **other.after},
    )  # fmt: skip


def _renumbered(pool: Pool, odd: int) -> Pool:
    def number(row: int) -> int:
        return 2 * row + odd

    def named(one: Candidate) -> Candidate:
        """Two sessions of one name are two."""
        return msgspec.structs.replace(one, session=(PREFIX + one.session[0], one.session[1])) if odd else one

    return msgspec.structs.replace(
        pool,
        candidates={number(row): named(one) for row, one in pool.candidates.items()},
        after={number(row): number(other) for row, other in pool.after.items()},
    )


def _near(mine: Near, theirs: Near) -> Near:
    values = dict(theirs.values)
    for identifier, value in mine.values.items():
        values[identifier] = max(value, values.get(identifier, value))
    return Near(values, min(mine.enough, theirs.enough))
