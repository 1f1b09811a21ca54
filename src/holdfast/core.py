"""`Core`: records in a store, as the modules of the five contracts use them. `Memory` adds those modules to it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import msgspec

from holdfast.errors import Invalid, Unavailable
from holdfast.formats import jsonl, prompts
from holdfast.model import kinds
from holdfast.model.kinds import KINDS, Kind, session_folder
from holdfast.model.names import check_text
from holdfast.model.queries import Query, both, check, end_of_day, parse
from holdfast.model.records import PEOPLE, Problem, Receipt, Record, Scope, path_of
from holdfast.model.times import bound, is_id, iso, now_ms
from holdfast.owner import history
from holdfast.recall import answers
from holdfast.recall.answers import Candidates
from holdfast.recall.embedders import Embedded
from holdfast.storage import write_log
from holdfast.storage.results import Filter, Progress, Tied
from holdfast.storage.store import Store
from holdfast.storage.writer import Writer, converted

if TYPE_CHECKING:
    from typing import Unpack

    from holdfast.owner.shared import SharedMemory
    from holdfast.types import FindArguments

_SEARCHABLE = tuple(row.name for row in KINDS.values() if row.searchable and row.layer in ("hot", "warm"))
T = TypeVar("T")


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """The writer of a record and its trust.

    Trust follows from the interface that wrote a record, never from its text: `owner` for rules of the owner, `user`
    for what a person wrote or said, `agent` for what a program wrote through a tool, `other` for imports, tool results
    and messages of strangers. Repeating a statement does not change its trust.
    """

    trust: Literal["owner", "user", "agent", "other"]
    by: str = ""
    """The writer as the interface knew it; "" when it is not recorded, as for a file written by hand."""
    channel: str = ""

    def __str__(self) -> str:
        parts = [f"by {self.by}"] if self.by else []
        parts += [f"in {self.channel}"] if self.channel else []
        return prompts.one_line(", ".join([*parts, f"trust {self.trust}"]))


class Core(Writer):
    """One memory root. Safe to use from several threads; close it, or use it as a context manager."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.clock, self.refresh, self.verify, self.embedded = store.clock, store.refresh, store.verify, store.embedded

    @property
    def root(self) -> str:
        """The folder of this memory, or the address of its database without a password."""
        return self.store.address

    @property
    def in_files(self) -> bool:
        """Is this memory a folder?"""
        return bool(self.store.folder)

    def folder(self, what: str) -> str:
        """Return the folder of this memory; Invalid for a memory in a database."""
        if not self.store.folder:
            raise Invalid(
                f"{what} needs a memory in files; this one is in a database.",
                "Run it on a memory in files, or make one with: holdfast export",
            )
        return self.store.folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Index the writes of this process, and close everything."""
        if self.settings.shared.store and self.shared:
            self.shared.close()
        self.store.close()

    # writing

    def undo(self, identifier: str, op_id: str = "", to: str = "") -> Receipt:
        """Restore the text that a document had before its last write; calling it again goes further back.

        `to` is the version of a document to go back to, given by its first digits: this undoes a change by hand too.
        For a log entry, restore the one that it superseded, or the value that its key had before.
        """
        check_text(identifier, to)
        path = path_of(identifier)
        place = self.layout.classify(path)
        if to and (place is None or path != identifier):
            raise Invalid("Only a whole document can be restored to a version.", "Give the path of a document.")
        if path != identifier and place and place.kind.shape == "section":
            return history.undo_section(self, self.get(identifier), op_id)
        if place is None and KINDS[(record := self.get(identifier)).kind].shape == "line":
            return history.undo_entry(self, record, op_id)
        return history.undo(self, path if place else record.path, op_id, to)

    # reading

    def get(self, identifier: str) -> Record:
        """Return one record as it is on disk now; the prefix `shared:` means one of the shared memory."""
        check_text(identifier)
        if identifier.startswith("shared:") and self.shared:
            return self.shared.ask(lambda there: there.get(identifier.removeprefix("shared:")))
        return self.store.get(identifier)

    def find(self, query: Query | str = "", **given: Unpack[FindArguments]) -> answers.Found:
        """Answer a query: the best matches for its text or, without text, the newest records."""
        base = msgspec.structs.asdict(query) if isinstance(query, Query) else {"text": query}
        wanted = converted({**base, **given}, Query, "find")
        if wanted.where != "here":
            from holdfast.owner import shared

            check(wanted)
            return shared.find(self, wanted)
        plain = not wanted.associate and wanted.level == "records"
        return self.with_candidates(
            wanted, lambda found: answers.answer(found, wanted, self.settings.search), plain=plain
        )

    def explain(self, query: Query, identifier: str) -> answers.Explained:
        """Explain step by step how one record is ranked, whether it is among the answers or not."""
        record = self.get(identifier)

        def work(found: Candidates) -> answers.Explained:
            only = msgspec.structs.replace(found.filter, only=record.id)
            return answers.explain(record, found, query, self.settings.search, passes=self.store.passes(only))

        return self.with_candidates(query, work)

    def with_candidates(self, query: Query, use: Callable[[Candidates], T], *, plain: bool = False) -> T:
        """Find the candidates for a query and return `use(candidates)`; see `Store.search`."""
        check(query)
        terms = parse(query.text)
        _check_searched(*query.kinds, *terms.kinds)
        among = both(query.kinds, terms.kinds)
        where = self.filter(query, query.kinds if among is None else among, (*query.tags, *terms.tags))
        if among is None or (terms.empty and query.text.strip() and not (terms.tags or terms.kinds)):
            return use(Candidates(filter=where, as_of=iso(now_ms())))
        return self.store.search(query, terms, where, use, plain=plain)

    @functools.cached_property
    def shared(self) -> SharedMemory | None:
        """The shared memory of the settings, if any."""
        from holdfast.owner.shared import SharedMemory

        return SharedMemory(self) if self.settings.shared.store else None

    def related(self, identifier: str, query: Query | None = None) -> list[Tied]:
        """Return the records that are related to a record or a name by links, common links or tags. One hop."""
        wanted = query or Query(limit=10)
        check(wanted)
        check_text(identifier)
        identifier = self.store.resolve(identifier)
        if not identifier.strip():
            raise Invalid("The name is empty.", "Give the id of a record, or a name.")
        _check_searched(*wanted.kinds)
        where = self.filter(wanted, wanted.kinds, wanted.tags)
        found = self.store.related(identifier, where, wanted.limit)
        if not found and (is_id(identifier) or self.layout.classify(path_of(identifier))):
            self.get(identifier)  # raises NotFound when it does not exist
        return found

    def tail(self, kind: str, count: int = 20, *, session: str = "", scope: str | Scope | None = None) -> list[Record]:
        """Return the last records of a log, oldest first, read from the end of the file."""
        row = kinds.kind(kind)
        if row.shape != "line":
            raise Invalid(f"{row.one} is not kept in a log.", "Use find, which returns the newest first.")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise Invalid(f"The count is {count!r}.", "Use a number from 1 on.")
        if not isinstance(session, str):
            raise Invalid(f"The session is {session!r}.", "Use text.")
        check_text(session)
        where = Scope(session=session) if scope is None else self.scopes.resolve(scope)
        if row.key or row.foreign:  # the index knows the current entry of a key, and which log is the last one
            return self.every(Query(kinds=(kind,), scope=scope, session=session))[:count][::-1]
        path = self.layout.path_for(row, where, month=iso(now_ms())[:7], session=session)
        return list(itertools.islice(self.backwards(path, where.path, session), count))[::-1]

    def every(self, query: Query) -> list[Record]:
        """Return all records that pass the filters, newest first, however many there are."""
        return self.survey(query)[0]

    def survey(self, query: Query) -> tuple[list[Record], list[Problem]]:
        """Return all records that pass the filters, newest first, and what could not be read among them."""
        return self.store.survey(self.filter(query, query.kinds, query.tags))

    def backwards(
        self, path: str, scope: str = "", session: str = "", problems: list[Problem] | None = None
    ) -> Iterator[Record]:
        """Yield the records of a log from its end, of a scope or session if given; none when there is no such log."""
        for record in self.store.newest(path, problems):
            inside = not scope or f"{record.scope.path}/".startswith(f"{scope}/")
            if inside and (not session or record.scope.session in ("", *_sessions(session))):
                yield record

    def sources(self, records: Iterable[Record]) -> dict[str, Source]:
        """Return the source of each record by its id: writer, channel and trust."""
        found = list(records)
        writers, aliases = self.store.writers(found), self.settings.chat.aliases()
        return {record.id: _source(record, writers, self.layout.memory, aliases) for record in found}

    def current(self, kind: Kind, key: str) -> Record | None:
        """Return the current entry of a key, None when there is none or it is hidden."""
        found = self.store.by_key(self.layout.path_for(kind, Scope()), key)
        return next((record for record in found if not record.hidden), None)

    def history(self, kind: Kind, key: str) -> list[Record]:
        """Return all entries of a key, oldest first."""
        return self.store.by_key(self.layout.path_for(kind, Scope()), key, history=True)

    def newest_entries(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the entries of a log from its end; lines that cannot be parsed are skipped."""
        if not self.store.exists(path):
            return
        for line in self.tree.scan_back(path):
            found = jsonl.parse(line.data)
            yield from reversed(found) if isinstance(found, list) else ()

    # care

    @property
    def embedder(self) -> str:
        """The embedder in use, "" when records are found by words alone."""
        return self.store.embedder

    def embed(self, progress: Progress | None = None) -> Embedded:
        """Make the missing vectors, by which records are found by meaning; Unavailable without an embedder."""
        if self.store.reads_only:
            raise Unavailable("This login is read-only and cannot store vectors.", "Use a login that can write.")
        return self.store.embed(progress)

    def filter(self, query: Query, wanted: tuple[str, ...], tags: tuple[str, ...]) -> Filter:
        for name in wanted:
            if name not in KINDS:
                kinds.kind(name)  # raises Invalid
        since = bound(query.since) if query.since else ""
        until = bound(query.until, end=True) if query.until else ""
        if since and until and since > until:
            raise Invalid(f"since {query.since} is after until {query.until}.", "Swap them.")
        where = self.scopes.resolve(query.scope) if query.scope else Scope()
        return Filter(
            kinds=wanted, scope=where.path, above=query.above, unscoped=query.shared,
            sessions=_sessions(query.session), tags=tags, since=since, until=until,
            known=end_of_day(query.asked) if query.asked else "", hidden=query.hidden,
            searchable=_SEARCHABLE,
        )  # fmt: skip


def _source(record: Record, writers: Mapping[str, str | None], memory: str, aliases: Sequence[prompts.Alias]) -> Source:
    kind, fields = KINDS[record.kind], record.fields
    if kind.name == "message":
        role, channel = str(fields.get("role")), str(fields.get("channel") or "")
        sender = str(fields.get("sender_id") or "")
        imported = record.path.startswith(f"{memory}/history/")
        if imported or role not in ("user", "assistant"):
            return Source("other", sender or role, channel)
        if role == "assistant":
            return Source("agent", "assistant", channel)
        message = prompts.Message(role=role, content="", channel=channel or "-", sender_id=sender)
        owner = prompts.label(message, aliases).endswith(" / owner]") or not (sender or channel)
        return Source("user" if owner else "other", "owner" if owner else sender, channel)
    if kind.foreign:
        return Source("other", str(fields.get("source") or fields.get("role") or ""))
    if kind.layer == "hot":
        return Source("owner")
    writer: str | None = str(fields.get("writer") or "")
    if kind.shape != "line":
        known = [target for target in write_log.targets(record) if target in writers] or [record.path]
        if known[0] not in writers:
            return Source("user")  # written by hand
        writer = min((writers[target] for target in known), key=lambda one: one in PEOPLE)
    return Source("other" if writer is None else "user" if writer in PEOPLE else "agent", writer or "")


def _check_searched(*names: str) -> None:
    """Refuse to search kinds that only their own session reads."""
    for row in map(kinds.kind, names):
        if row.private:
            raise Invalid(f"{row.one} is {row.about}: only that session reads it.", "Use get_memory there.")


def _sessions(session: str) -> tuple[str, ...]:
    """Return the names of a session in records: entries without one have the name of its folder."""
    return (session, session_folder(session)) if session else ()
