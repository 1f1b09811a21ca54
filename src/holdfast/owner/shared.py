"""A private memory can name another one that is shared with others, and answer queries from both.

Candidates of both sides are ranked together, as if they were one memory, so that a word weighs the same wherever it
occurs. Where the two sides search for different words, each ranks its own candidates and the scores decide.

The shared memory may be slow or unreachable. Queries to it run in a thread with a timeout, so that the private answer
never waits longer; after a failure it gets no queries for a while.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

import msgspec

from holdfast.core import Core, Source
from holdfast.errors import HoldfastError, Invalid, NotFound, Unavailable
from holdfast.model.patterns import regex
from holdfast.model.queries import Query
from holdfast.model.records import Problem, Record
from holdfast.recall import answers
from holdfast.recall.answers import Candidates, Found, Hit
from holdfast.recall.ranking import Near
from holdfast.roots import is_address, open_store, without_clear_passwords
from holdfast.storage.results import Pool, Tied

NAME = "shared"
PREFIX = f"{NAME}:"
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
_OURS = "HOLDFAST_"
"""The prefix of variables that settings may use: the settings of a project must not read other variables."""
_VARIABLE = regex(r"\$(?:\{(\w+)\}|(\w+))")
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
        from urllib.parse import quote

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
    from urllib.parse import quote

    for found in _VARIABLE.finditer(memory.settings.shared.store):
        if value := os.environ.get(found[1] or found[2], ""):
            for form in (value, quote(value, safe="")):
                error.message = error.message.replace(form, found[0])
                error.next_step = error.next_step.replace(form, found[0])
    return error


class SharedMemory:
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

        During the pause after a failure no work begins, and that function raises the same error.
        """
        from concurrent.futures import Future

        future: Future[T] = Future()
        deadline = monotonic() + self._seconds
        paused = self._error if monotonic() < self._until else None

        def run() -> None:
            try:
                future.set_result(work(self._open()))
            except Exception as error:  # raised again where the result is waited for
                future.set_exception(error)

        def result() -> T:
            if paused:
                raise paused
            error: HoldfastError
            try:
                found = future.result(max(0.0, deadline - monotonic()))
            except TimeoutError:
                late = f"It did not answer within {self._seconds:g} seconds."
                error = Unavailable(late, "Check whether its server can be reached.")
            except HoldfastError as raised:
                error = raised
            except Exception as raised:  # the private answer must never fail
                error = Unavailable(f"It failed: {type(raised).__name__}: {raised}"[:300], "Please report this.")
            else:
                self._error, self._pause = None, _FIRST_PAUSE
                return found
            error, self._error = as_written(error, self._memory), None
            if isinstance(error, Unavailable):  # begin a pause, a longer one each time
                error = Unavailable(f"The shared memory could not be searched: {error.message}", error.next_step)
                self._error, self._until = error, monotonic() + self._pause
            self._pause = min(self._pause * 2, _LONGEST_PAUSE) if self._error else _FIRST_PAUSE
            raise error

        if not paused:
            threading.Thread(target=run, name="holdfast-shared", daemon=True).start()
        return result

    def sources(self, records: list[Record]) -> dict[str, Source]:
        """Return the sources of its records; the owner there is a user here."""
        try:
            found = self.ask(lambda there: there.sources(records)) if records else {}
        except HoldfastError:
            return {record.id: Source("other") for record in records}
        return {
            each: msgspec.structs.replace(source, trust="user") if source.trust == "owner" else source
            for each, source in found.items()
        }

    def _open(self) -> Core:
        with self._opening:
            if self._opened is None:
                opened = Core(open_store(address(self._memory)))
                if opened.root == self._memory.root:
                    opened.close()
                    raise Invalid("shared.store names this memory itself.", "Name another one.")
                self._opened = opened
            return self._opened

    def close(self) -> None:
        if self._opening.acquire(blocking=False):  # a thread that still opens it ends with the process
            if self._opened:
                self._opened.close()
            self._opening.release()


def find(memory: Core, query: Query) -> Found:
    """Answer a query from the shared memory, or from both."""
    shared = memory.shared
    if shared is None and query.where == "shared":
        raise Invalid("This memory has no shared memory.", 'Set it in holdfast.toml: [shared] store = "postgresql://…"')
    inner = msgspec.structs.replace(query, where="here")
    if shared is None:
        return memory.find(inner)
    if query.where == "shared":
        found = shared.ask(lambda there: there.find(inner))
        return msgspec.structs.replace(found, hits=[msgspec.structs.replace(hit, store=NAME) for hit in found])
    waiting = shared.start(lambda there: there.with_candidates(inner, Candidates.loaded))

    def answer(mine: Candidates, missing: NotFound | None = None) -> Found:
        theirs, problems = Candidates(), list[Problem]()
        try:
            theirs = waiting()
        except HoldfastError as error:
            if missing:
                raise missing from None
            absent = isinstance(error, NotFound)  # only this memory has the workspace
            problems.append(Problem(NAME, error.message if absent else str(error), minor=absent))
        return answers.answer(_together(mine, theirs, problems, query.limit), inner, memory.settings.search)

    try:
        return memory.with_candidates(inner, answer)
    except NotFound as error:  # perhaps only the shared memory has this workspace
        return answer(Candidates(), error)


def _together(mine: Candidates, theirs: Candidates, problems: list[Problem], limit: int) -> Candidates:
    """Join the candidates of both memories; rows are even for this memory and odd for the shared one."""

    def load(rows: list[int]) -> dict[int, Record]:
        found = {2 * row: record for row, record in mine.load([row // 2 for row in rows if not row % 2]).items()}
        others = theirs.load([row // 2 for row in rows if row % 2])
        return found | {2 * row + 1: record for row, record in others.items()}

    def related(found: list[Hit]) -> list[list[Tied]]:
        both = (("", mine), (NAME, theirs))
        ties = [iter(source.related([one for one in found if one.store == store])) for store, source in both]
        return [next(ties[bool(one.store)]) for one in found]

    newest: dict[tuple[str, str], Hit] = {}
    every = mine.hits + [msgspec.structs.replace(one, store=NAME) for one in theirs.hits]
    for one in sorted(every, key=lambda one: one.record.time, reverse=True):
        newest.setdefault((one.record.id, one.record.version), one)
    near = dict(theirs.near.values)
    for identifier, value in mine.near.values.items():
        near[identifier] = max(value, near.get(identifier, value))
    theirs_problems = [Problem(f"{NAME}: {one.path}", one.what, one.line, one.minor) for one in theirs.problems]
    return Candidates(
        _pools(mine.pools, theirs.pools), Near(near, min(mine.near.enough, theirs.near.enough)),
        list(newest.values())[:limit], load=load, related=related, store=lambda row: NAME if row % 2 else "",
        as_of=mine.as_of or theirs.as_of, behind=mine.behind + theirs.behind,
        problems=[*mine.problems, *theirs_problems, *problems], damaged=mine.damaged + theirs.damaged,
        filter=mine.filter, get=mine.get,
    )  # fmt: skip


def _pools(mine: list[Pool], theirs: list[Pool]) -> list[Pool]:
    """Join the pools of both sides that search for the same words."""
    found: dict[tuple[bool, tuple[str, ...]], Pool] = {}
    for odd, pool in (*((0, pool) for pool in mine), *((1, pool) for pool in theirs)):
        candidates = {2 * row + odd: one for row, one in pool.candidates.items()}
        if odd:  # sessions of one name in two memories are two
            for row, one in candidates.items():
                session = (PREFIX + one.session[0], one.session[1])
                candidates[row] = msgspec.structs.replace(one, session=session)
        after = {2 * row + odd: 2 * other + odd for row, other in pool.after.items()}
        twin = found.get((pool.on_request, pool.words), Pool(held=(0,) * len(pool.held), records=0))
        records, length = pool.records + twin.records, pool.length * pool.records + twin.length * twin.records
        found[pool.on_request, pool.words] = msgspec.structs.replace(
            pool, held=tuple(map(sum, zip(pool.held, twin.held, strict=True))), records=records,
            length=length / max(1, records) if twin.records else pool.length,
            candidates={**twin.candidates, **candidates}, after={**twin.after, **after},
        )  # fmt: skip
    return list(found.values())
