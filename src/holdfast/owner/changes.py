"""Follow a memory: what is added, changed, removed, hidden and restored, as it happens.

A change may be reported a little late, and two quick changes of one document as one, but none is lost, not even while
a connection is down.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec

from holdfast.core import Core
from holdfast.model.queries import Query
from holdfast.model.records import Record
from holdfast.model.times import utc_now
from holdfast.storage.store import Event, What

_POLL_SECONDS = 1.0
_HEAD = 160


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of a record, or of a whole file in which no record is known."""

    what: What
    noticed: str
    """When the change was noticed."""
    path: str
    id: str = ""
    kind: str = ""
    scope: str = ""
    session: str = ""
    time: str = ""
    """When the record was written, as it says itself."""
    writer: str = ""
    title: str = ""
    text: str = ""
    """Its first words."""


class Changes:
    """The changes of some kinds in a scope; iterating waits for the next one until it is closed."""

    def __init__(self, memory: Core, scope: str, kinds: tuple[str, ...]) -> None:
        self._memory, self._scope, self._kinds = memory, scope, kinds
        self._ready: list[Change] = []
        self._early: dict[str, str] = {}
        """The versions of the records that were reported before anything else; the feed may have them again."""
        self._closed = False
        self._feed = memory.store.follow()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        while not self._ready:
            if self._closed:
                raise StopIteration
            self._ready += self._changes(event for event in self._feed.events(_POLL_SECONDS) if self._is_new(event))
        return self._ready.pop(0)

    def close(self) -> None:
        """End the iteration, also in another thread that waits for it."""
        self._closed = True
        self._feed.close()

    def first(self, earlier: Iterable[Record]) -> None:
        """Report these existing records before anything else."""
        events = [Event("added", one.path, one.id, one.kind, one.scope.path, one) for one in earlier]
        self._ready = [*self._changes(events), *self._ready]
        self._early = {event.id: event.record.version for event in events if event.record}

    def _is_new(self, event: Event) -> bool:
        version = self._early.pop(event.id, None)
        return version is None or event.what != "added" or not event.record or event.record.version != version

    def _changes(self, events: Iterable[Event]) -> list[Change]:
        below = f"{self._scope}/" if self._scope else ""
        wanted = [one for one in events if one.kind in self._kinds and f"{one.scope}/".startswith(below)]
        records = [one.record for one in wanted if one.record]
        sources = self._memory.sources(records) if records else {}
        found = []
        for one in wanted:
            change = Change(one.what, utc_now(), one.path, one.id, one.kind, one.scope)
            if record := one.record:
                time, head = record.updated or record.time, " ".join(record.text.split())[:_HEAD]
                change = msgspec.structs.replace(
                    change, session=record.scope.session, time=time, writer=sources[record.id].by,
                    title=record.title, text=head,
                )  # fmt: skip
            found.append(change)
        return found


def follow(memory: Core, query: Query, since: str = "") -> Changes:
    """Follow the changes that pass a query's filters; those after the record `since` are reported first."""
    where = memory.filter(query, query.kinds, ())
    last = memory.get(since) if since else None
    found = Changes(memory, where.scope, query.kinds or where.searchable)
    try:
        if last:
            every = memory.store.query(where)[1]
            later = [record for record in every if (record.time, record.id) > (last.time, last.id)]
            found.first(sorted(later, key=lambda record: (record.time, record.id)))
    except BaseException:
        found.close()
        raise
    return found
