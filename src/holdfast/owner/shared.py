"""A private memory can name another one that is shared with others, and answer queries from both.

Candidates of both sides are ranked together, as if they were one memory, so that a word weighs the same wherever it
occurs. Where the two sides search for different words, each ranks its own candidates and the scores decide.

The shared memory may be slow or unreachable. It is asked in a thread, for a bounded time, so that the private answer
never waits longer; after a failure it is not asked again for a while.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import TypeVar
from urllib.parse import quote

import msgspec

from holdfast.core import Core
from holdfast.errors import HoldfastError, Invalid, NotFound, Unavailable
from holdfast.model.queries import Query
from holdfast.model.records import Problem, Record
from holdfast.recall import answers as recalling
from holdfast.recall.answers import Answer, Candidates, Found
from holdfast.recall.ranking import Near
from holdfast.roots import is_address, open_memory, without_clear_passwords
from holdfast.storage.results import Candidate, Pool, Tied

NAME = "shared"
PREFIX = f"{NAME}:"
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
_OURS = "HOLDFAST_"
"""The prefix of variables that settings may use, so that a file from a project cannot read any other."""
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
T = TypeVar("T")


def address(memory: Core, given: str = "") -> str:
    """Return the address of another memory: the given one, or else that of the shared one in the settings."""
    if given:
        return given
    store = memory.settings.shared.store
    if not store:
        advice = 'Name one, or set it in holdfast.toml: [shared] store = "postgresql://…"'
        raise Invalid("There is no other memory.", advice)
    database = is_address(store)

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if not name.startswith(_OURS):
            fault = f"shared.store names ${name}, and settings may only name variables that begin with {_OURS}."
            raise Invalid(fault, f"Call it {_OURS}{name}; write %24 for a dollar sign in an address.")
        if name not in os.environ:
            raise Invalid(f"shared.store names ${name}, which is not set.", f"Set the variable {name}.")
        return quote(os.environ[name], safe="") if database else os.environ[name]

    filled = _VARIABLE.sub(value, store)
    if database or is_address(filled):  # the whole address may be in a variable
        return without_clear_passwords(filled)
    return os.path.join(memory.folder("A shared memory in a folder"), os.path.expanduser(filled))


def as_written(error: HoldfastError, memory: Core) -> HoldfastError:
    """Return an error of the shared memory with the names of variables from the settings, not their values."""
    for found in _VARIABLE.finditer(memory.settings.shared.store):
        if value := os.environ.get(found[1] or found[2], ""):
            for form in (value, quote(value, safe="")):
                error.message = error.message.replace(form, found[0])
                error.next_step = error.next_step.replace(form, found[0])
    return error


class Shared:
    """The memory that this one shares with others."""

    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self._seconds = memory.settings.shared.timeout_seconds
        self._opening = threading.Lock()
        self._opened: Core | None = None
        self._pause, self._until = _FIRST_PAUSE, 0.0
        self._error: HoldfastError | None = None

    def ask(self, work: Callable[[Core], T]) -> T:
        return self.start(work)()

    def start(self, work: Callable[[Core], T]) -> Callable[[], T]:
        """Begin some work on the shared memory; the returned function waits for the result, up to the timeout.

        Unavailable at once during the pause after a failure.
        """
        if self._error and monotonic() < self._until:
            raise self._error
        future: Future[T] = Future()
        deadline = monotonic() + self._seconds

        def run() -> None:
            try:
                future.set_result(work(self._open()))
            except Exception as error:  # raised again where the result is waited for
                future.set_exception(error)

        def result() -> T:
            error: HoldfastError
            try:
                found = future.result(max(0.0, deadline - monotonic()))
            except TimeoutError:
                late = f"It gave no answer within {self._seconds:g} seconds."
                error = Unavailable(late, "Look whether its server can be reached.")
            except HoldfastError as raised:
                error = as_written(raised, self._memory)
            except Exception as raised:  # the private answer must come in any case
                failed = Unavailable(f"It failed: {type(raised).__name__}: {raised}"[:300], "Please report this.")
                error = as_written(failed, self._memory)
            else:
                self._error, self._pause = None, _FIRST_PAUSE
                return found
            if isinstance(error, Unavailable):  # begin a pause, a longer one each time
                error = Unavailable(f"The shared memory could not be searched: {error.message}", error.next_step)
                self._error, self._until = error, monotonic() + self._pause
                self._pause = min(self._pause * 2, _LONGEST_PAUSE)
            else:
                self._error, self._pause = None, _FIRST_PAUSE
            raise error

        threading.Thread(target=run, name="holdfast-shared", daemon=True).start()
        return result

    def _open(self) -> Core:
        with self._opening:
            if self._opened is None:
                opened = open_memory(address(self._memory), kind=Core)
                if opened.root == self._memory.root:
                    opened.close()
                    raise Invalid("shared.store names this memory itself.", "Name another one.")
                self._opened = opened
            return self._opened

    def close(self) -> None:
        if self._opening.acquire(blocking=False):  # a thread that still opens it ends with the process
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
    waiting: Callable[[], Candidates] | None = None
    mine = theirs = missing = None
    try:
        waiting = shared.start(lambda there: there.candidates(inner))
    except HoldfastError as error:
        problems.append(Problem(NAME, str(error)))
    try:
        mine = memory.candidates(inner)
    except NotFound as error:  # perhaps only the shared memory has this workspace
        missing = error
    try:
        theirs = waiting() if waiting else None
    except HoldfastError as error:
        absent = isinstance(error, NotFound)  # only this memory has the workspace
        problems.append(Problem(NAME, error.message if absent else str(error), minor=absent))
    if missing and theirs is None:
        raise missing
    return _together(mine or Candidates(), theirs or Candidates(), inner, memory, problems)


def _together(mine: Candidates, theirs: Candidates, query: Query, memory: Core, problems: list[Problem]) -> Found:
    """Rank what both memories have; rows are even for this memory and odd for the shared one."""

    def load(rows: list[int]) -> dict[int, Record]:
        found = {2 * row: record for row, record in mine.load([row // 2 for row in rows if not row % 2]).items()}
        others = theirs.load([row // 2 for row in rows if row % 2])
        return found | {2 * row + 1: record for row, record in others.items()}

    def related(answers: list[Answer]) -> list[list[Tied]]:
        both = (("", mine), (NAME, theirs))
        ties = [iter(source.related([one for one in answers if one.store == store])) for store, source in both]
        return [next(ties[bool(one.store)]) for one in answers]

    newest: dict[tuple[str, str], Answer] = {}
    every = mine.answers + [msgspec.structs.replace(one, store=NAME) for one in theirs.answers]
    for one in sorted(every, key=lambda one: one.record.time, reverse=True):
        newest.setdefault((one.record.id, one.record.version), one)
    values = dict(theirs.near.values)
    for identifier, value in mine.near.values.items():
        values[identifier] = max(value, values.get(identifier, value))
    theirs_problems = [Problem(f"{NAME}: {one.path}", one.what, one.line, one.minor) for one in theirs.problems]
    found = Candidates(
        _pools(mine.pools, theirs.pools), Near(values, min(mine.near.enough, theirs.near.enough)),
        list(newest.values())[: query.limit], load=load, related=related, store=lambda row: NAME if row % 2 else "",
        as_of=mine.as_of or theirs.as_of, behind=mine.behind + theirs.behind,
        problems=[*mine.problems, *theirs_problems, *problems], damaged=mine.damaged + theirs.damaged,
        where=mine.where, get=mine.get,
    )  # fmt: skip
    return recalling.answer(found, query, memory.settings.search)


def _pools(mine: list[Pool], theirs: list[Pool]) -> list[Pool]:
    """Join the pools of both sides that search for the same words."""
    waiting = [_renumbered(pool, 1) for pool in theirs]
    found = []
    for pool in (_renumbered(pool, 0) for pool in mine):
        twin = next((one for one in waiting if (one.foreign, one.words) == (pool.foreign, pool.words)), None)
        if twin:
            waiting.remove(twin)
            records, held = pool.records + twin.records, tuple(map(sum, zip(pool.held, twin.held, strict=True)))
            length = (pool.length * pool.records + twin.length * twin.records) / max(1, records)
            pool = msgspec.structs.replace(
                pool, held=held, records=records, length=length,
                candidates={**pool.candidates, **twin.candidates}, after={**pool.after, **twin.after},
            )  # fmt: skip
        found.append(pool)
    return found + waiting


def _renumbered(pool: Pool, odd: int) -> Pool:
    def renamed(one: Candidate) -> Candidate:  # sessions of one name in two memories are two
        return msgspec.structs.replace(one, session=(PREFIX + one.session[0], one.session[1])) if odd else one

    candidates = {2 * row + odd: renamed(one) for row, one in pool.candidates.items()}
    after = {2 * row + odd: 2 * other + odd for row, other in pool.after.items()}
    return msgspec.structs.replace(pool, candidates=candidates, after=after)
