"""What only the owner of a memory does with it: look at versions, forget, roll back, copy all of it.

Loaded when it is first asked for. No tool leads here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, Invalid, NotFound
from holdfast.model.kinds import FOREIGN, KINDS
from holdfast.model.names import check_text
from holdfast.model.records import Record, path_of
from holdfast.model.times import bound, is_id
from holdfast.owner import backing, exporting, forget, history, leftovers, restoring, rolling, shared, transfer
from holdfast.recall.semantic import Meaning
from holdfast.storage import guarding
from holdfast.storage.index import Index
from holdfast.storage.index_sync import IndexSync
from holdfast.storage.refresh import Progress
from holdfast.storage.writing import Writer

if TYPE_CHECKING:
    from holdfast.core import Core

_ACCOUNTS = ("write", "ledger", "claim", "trace")


class Owner:
    """The owner's hand on one memory and its parts."""

    def __init__(self, memory: Core, keeper: IndexSync, writer: Writer, meaning: Meaning) -> None:
        self._memory = memory
        self._vault, self._places = memory.vault, memory.places
        self._keeper, self._writer, self._meaning = keeper, writer, meaning

    def versions(self, identifier: str) -> list[history.Version]:
        """Return what happened to a document, or to a line and its key, oldest first."""
        check_text(identifier)
        path = path_of(identifier)
        place = self._places.classify(path)
        if place and place.kind.shape != "line":
            if path != identifier:
                self._memory.get(identifier)  # an entry that is not there has no history either
            return history.of_document(self._vault, self._places, path)
        record = self._memory.get(identifier)
        older = self._memory.history(KINDS[record.kind], record.key) if record.key else []
        return history.of_line(self._vault, record, older)

    def text_at(self, identifier: str, version: str) -> str:
        """Return the text that a document had in a version."""
        check_text(identifier)
        path = path_of(identifier)
        place = self._places.classify(path)
        if place is None or place.kind.shape == "line":
            return self._memory.get(version if is_id(version) else identifier).text
        return history.text(self._vault, self._places, path, version).decode("utf-8", "replace")

    def forget(
        self, identifiers: tuple[str, ...], query: str, yes: bool, count: int, progress: Progress | None
    ) -> forget.Forgotten:
        """Remove the text of records for good; without `yes`, list them."""
        check_text(query, *identifiers)
        if not identifiers and not query.strip():
            raise Invalid("There is nothing to forget.", "Give ids, or a text with query.")
        forgetter = forget.Forgetter(self._vault, self._places, self._writer, self._purge, self._place())
        every = self._keeper.retry_if_replaced(self._all)
        wanted: dict[str, Record] = {}
        again: list[str] = []
        for identifier in identifiers:
            try:
                wanted |= {record.id: record for record in self._with_key(self._memory.get(identifier))}
            except NotFound:
                if not forgetter.begun(identifier):
                    raise
                again.append(identifier)
        if query.strip():
            wanted |= {record.id: record for record in every if forget.says(record, query)}
        again += [record.id for record in wanted.values() if record.fields.get("forgotten")]
        records = [record for record in wanted.values() if record.id not in again]
        units, total = guarding.units(records), guarding.units(every)
        if not yes:
            return forget.Forgotten([record.id for record in records], units, total, already=again)
        guarding.check(units, total, count, "forgotten")
        return forgetter.forget(records, again, every, query, progress)

    def rollback(self, writer: str, since: str, yes: bool, count: int, back: str) -> rolling.RolledBack:
        """Take back what one writer wrote, or a rollback itself; without `yes`, list what one writer wrote."""
        check_text(writer, since, back)
        roller = rolling.Roller(self._vault, self._places, self._writer)
        if back and (writer or since):
            raise Invalid("A rollback is taken back as a whole.", "Give its id alone, or a writer.")
        if back:
            return roller.back(back)
        if not writer:
            raise Invalid("There is no writer to roll back.", "Name one: history and get show who wrote.")
        plan = roller.plan(writer, bound(since) if since else "", self._keeper.retry_if_replaced(self._all))
        if not yes:
            return plan
        guarding.check(plan.count, plan.total, count, "taken back")
        return roller.roll(plan)

    def backup(self, target: str | os.PathLike[str], progress: Progress | None) -> backing.Backup:
        """Copy the whole memory to a new file or folder outside of it."""
        return backing.backup(self._vault, self._memory.settings, os.fspath(target), progress)

    def _place(self) -> leftovers.Tree | leftovers.Rows:
        """Return where the bytes of this memory lie."""
        if self._memory.in_files:
            return leftovers.Tree(self._memory.root)
        return leftovers.Rows(self._vault, (*self._places.roots, *self._places.below(FOREIGN, "")))

    @contextlib.contextmanager
    def moving(self, other: str, scope: str, *, push: bool) -> Iterator[transfer.Mover]:
        """Open another memory, to move something between the two."""
        check_text(other, scope)
        with self._another(other) as there:
            yield transfer.Mover(self._memory, there, push=push, scope=scope)

    def _another(self, address: str) -> Core:
        """Open the other memory of a move: the one that is named, or else the shared one of the settings."""
        from holdfast.core import Core
        from holdfast.roots import open_memory

        try:
            return open_memory(shared.address(self._memory, address), writer=self._writer.name, kind=Core)
        except HoldfastError as error:
            raise error if address else shared.as_written(error, self._memory) from None

    def export(self, target: str | os.PathLike[str], progress: Progress | None) -> restoring.Restored:
        """Give this memory as plain files in a folder that is new or empty."""
        return exporting.export(self._memory, os.fspath(target), progress)

    def _purge(self) -> None:
        self._meaning.forget()
        self._keeper.purge()

    def _with_key(self, record: Record) -> list[Record]:
        """Return a record, and if it holds for its key, the older values of that."""
        if not record.key or record.superseded:
            return [record]
        return self._memory.history(KINDS[record.kind], record.key)

    def _all(self) -> list[Record]:
        """Return every record that somebody wrote, older values and hidden ones too, wherever it lies."""
        self._memory.refresh()
        self._keeper.refresh_below(self._places.below(FOREIGN, ""))

        def question(index: Index) -> list[Record]:
            paths = [path for path, seen in index.seen().items() if seen.kind not in _ACCOUNTS]
            every = (record for path in paths for record in index.records(path))
            return [record for record in every if not record.fields.get("forgotten")]

        return self._keeper.ask(question)
