"""What comes from another memory: documents that are new here, and lines that carry their own ids.

It is screened like every write, and what is refused is told by its file while the rest goes on. Documents come many at
a time. Each leaves a line in the account of writes that names who wrote it where it comes from: who carries something
is not its author, and is noted beside that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, Invalid, OverBudget
from holdfast.formats import jsonl
from holdfast.model.kinds import KINDS, Kind
from holdfast.model.layout import Places
from holdfast.model.records import Problem, version_of
from holdfast.model.scopes import Scope
from holdfast.model.settings import Limits
from holdfast.model.times import mint, utc_now
from holdfast.storage import store
from holdfast.storage.bringing import Bringer, Carried
from holdfast.storage.secret_policy import Screen
from holdfast.storage.tree import Appended, LogEnd, Vault


class Arriving(msgspec.Struct, frozen=True):
    """A document on its way: `writers` says who wrote it, or the entries in it, by their ids."""

    path: str
    data: bytes
    writers: Mapping[str, str] = {}
    accounted: bool = True
    """False when the account of it comes as well."""


class Received(msgspec.Struct):
    """What became of documents: the versions of those that are here now by this, and what was refused."""

    versions: dict[str, str] = {}
    refused: list[Problem] = []


class Receiver:
    """Takes in what comes from another memory; `by` tells who carries it."""

    def __init__(
        self, vault: Vault, places: Places, limits: Limits, screen: Screen, bringer: Bringer, by: Callable[[], str]
    ) -> None:
        self._vault = vault
        self._places = places
        self._limits = limits
        self._screen = screen
        self._bringer = bringer
        self._by = by

    def documents(self, arriving: Sequence[Arriving]) -> Received:
        """Put documents where nothing is; one that is there already is neither replaced nor named in the answer."""
        done = Received()
        wanted: dict[str, bytes] = {}
        for one in arriving:
            try:
                wanted[one.path] = self._screened(one)
            except (Invalid, OverBudget) as error:
                done.refused.append(Problem(one.path, str(error)))
        for path in self._create(wanted, done.refused):
            done.versions[path] = version_of(wanted[path])
        with contextlib.suppress(HoldfastError):  # they are there, whatever becomes of their account
            self._account([one for one in arriving if one.path in done.versions], done.versions)
        return done

    def check(self, one: Arriving, before: bytes | None = None) -> None:
        """Refuse a document that would be refused if it came, where nothing is or in the place of another one."""
        self._screened(one, before)

    def _screened(self, one: Arriving, before: bytes | None = None) -> bytes:
        place = self._places.classify(one.path)
        data = self._screen.document(place.kind if place else None, one.data, before)
        if data != one.data and one.path.rpartition("/")[2].startswith(version_of(one.data)):
            raise Invalid("It holds what looks like a secret, and its name is made of its content.", "Forget it.")
        if place and len(data) > self._limits.document_bytes:
            limit = self._limits.document_bytes
            raise OverBudget(f"It has {len(data):,} bytes; the limit there is {limit:,}.", "Split it.")
        return data

    def _create(self, files: Mapping[str, bytes], refused: list[Problem]) -> set[str]:
        try:
            return self._vault.create_all(files)
        except Invalid as error:  # of one of them
            if len(files) == 1:
                refused.extend(Problem(path, str(error)) for path in files)
                return set()
        return {made for path, data in files.items() for made in self._create({path: data}, refused)}

    def _account(self, made: Sequence[Arriving], versions: Mapping[str, str]) -> None:
        own = (f"{self._places.memory}/writes/", f"{self._places.memory}/values/")
        told = [one for one in made if one.accounted and not one.path.startswith(own)]
        lines = [line for one in told for line in self._lines(one, versions[one.path])]
        log = self._places.path_for(KINDS["write"], Scope(), month=utc_now()[:7])
        if not lines:
            return
        rendered = [jsonl.render(line) for line in lines]

        def compose(end: LogEnd) -> bytes:
            last, found = store.last_id(end), []
            for rest in rendered:
                last = mint(last)
                found.append(jsonl.with_id(last, rest))
            return b"".join(found)

        self._vault.append(log, compose, durable=False)

    def _lines(self, one: Arriving, version: str) -> list[dict[str, Any]]:
        by = self._by()
        told = {"time": utc_now(), "path": one.path, "after": version} | ({"carried": by} if by else {})
        whole = {"writer": one.writers.get(one.path, by)}
        entries = [{"record": record, "writer": writer} for record, writer in one.writers.items() if record != one.path]
        return [told | {name: value for name, value in more.items() if value} for more in (*entries, whole)]

    # lines

    def line(self, kind: Kind | None, data: bytes) -> bytes:
        """Return a line as it may be written here, or refuse it; bytes that need no change stay as they are."""
        objects = jsonl.parse(data)
        if isinstance(objects, str):
            return self._screen.document(None, data, None)
        made = [self._screen.line(kind, value, waits=False) for value in objects]
        if all(one is other for one, other in zip(made, objects, strict=True)):
            return data
        return b"".join(map(jsonl.render, made)).rstrip(b"\n").replace(b"\n", b" ")

    def merge(self, path: str, lines: Sequence[Carried]) -> int:
        """Add the lines that a log does not have, all of them or none; return how many. Durable when this returns."""
        return self._bringer.merge(path, lines)

    def extend(self, path: str, size: int, data: bytes) -> Appended | None:
        """Add whole lines to a log that has exactly this size; None when somebody else wrote to it."""
        return self._vault.append(path, lambda end: data if end.size == size else b"")
