"""`Core`: records in a store, as the modules of the five contracts use them. `Memory` adds those modules to it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from time import time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from holdfast.errors import Invalid, Unavailable
from holdfast.formats import jsonl
from holdfast.model import kinds, settings
from holdfast.model.kinds import KINDS, Kind
from holdfast.model.layout import session_folder
from holdfast.model.names import check_text
from holdfast.model.queries import Query, Terms, both, check, parse
from holdfast.model.records import Problem, Receipt, Record, path_of
from holdfast.model.scopes import Scope
from holdfast.model.times import bound, is_id, iso, now_ms
from holdfast.owner.history import Provenance, Source
from holdfast.recall import answers
from holdfast.recall import question as asking
from holdfast.recall.answers import Answer, Candidates
from holdfast.recall.ranking import Near
from holdfast.recall.semantic import Embedded, Semantic
from holdfast.storage import verify
from holdfast.storage.engine import Engine
from holdfast.storage.index import Filter, Pool, Tied, Unusable
from holdfast.storage.index_sync import once
from holdfast.storage.refresh import Progress, Refreshed
from holdfast.storage.tree import Document
from holdfast.storage.writer import Writer, converted

if TYPE_CHECKING:
    from holdfast.owner.shared import Shared

_SEARCHABLE = tuple(row.name for row in KINDS.values() if row.searchable and row.layer in ("hot", "warm"))
T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


class Core(Writer):
    """One memory root. Safe to use from several threads; close it, or use it as a context manager."""

    def __init__(self, engine: Engine, config: settings.Settings, writer: str = "") -> None:
        super().__init__(engine, config, writer)
        self._folder = engine.folder
        self.address = engine.address
        """The address that opens this memory; never contains a password."""
        self.reads_only = engine.reads_only
        """Is writing not allowed?"""
        self.clock: Callable[[], int] = engine.clock
        """Returns the time for leases, in milliseconds."""
        self._sync = self.store.sync
        embedder = config.search.embedder if config.search.meaning else "none"
        self._semantic = Semantic(embedder, engine.vectors, engine.no_vectors)
        self._provenance = Provenance(self.tree, self.layout, config.chat.aliases())

    @property
    def root(self) -> str:
        """The folder of this memory, or the address of its database without a password."""
        return self.address

    @property
    def in_files(self) -> bool:
        """Is this memory a folder?"""
        return bool(self._folder)

    def folder(self, what: str) -> str:
        """Return the folder of this memory; Invalid for a memory in a database."""
        if not self._folder:
            raise Invalid(
                f"{what} needs a memory in files; this one is in a database.",
                "Run it where the files are, or get them with: holdfast export",
            )
        return self._folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Index what was written here, and close everything."""
        if self.settings.shared.store and self.shared:
            self.shared.close()
        self._semantic.close()
        self.store.close()

    # writing

    def undo(self, identifier: str, op_id: str = "") -> Receipt:
        """Restore the text that a document had before its last write; calling it again goes further back."""
        check_text(identifier)
        path = path_of(identifier)
        place = self.layout.classify(path)
        if path != identifier and place and place.kind.shape == "section":
            raise Invalid(
                "An entry cannot be undone alone: the last write to its page may be about another entry.",
                f"Hide it, or undo the last write to the page: {path}.",
            )
        from holdfast.owner import history

        return history.undo(self, path if place else self.get(path).path, op_id)

    # reading

    def get(self, identifier: str) -> Record:
        """Return one record as it is on disk now; the prefix `shared:` means one of the shared memory."""
        check_text(identifier)
        if identifier.startswith("shared:") and self.shared:
            return self.shared.ask(lambda there: there.get(identifier.removeprefix("shared:")))
        return self.store.get(identifier)

    def find(self, query: Query | str = "", **given: Any) -> answers.Found:
        """Answer a query: the best matches for its text or, without text, the newest records."""
        base = msgspec.structs.asdict(query) if isinstance(query, Query) else {"text": query}
        wanted = converted(base | given, Query, "A query")
        if wanted.where != "here":
            from holdfast.owner import shared

            check(wanted)
            return shared.find(self, wanted)
        plain = not wanted.associate and wanted.level == "records"
        return self._candidates(wanted, lambda found: answers.answer(found, wanted, self.settings.search), plain=plain)

    def candidates(self, query: Query) -> Candidates:
        """Return what this memory has for a query, before it is ranked."""
        return self._candidates(query, lambda found: found)

    def explain(self, query: Query, identifier: str) -> answers.Explained:
        """Explain step by step how one record is ranked, whether it is among the answers or not."""
        record = self.get(identifier)

        def work(found: Candidates) -> answers.Explained:
            only = msgspec.structs.replace(found.where, only=record.id)
            passes = self._sync.ask(lambda index: index.newest(only, 1))
            return answers.explain(record, found, query, self.settings.search, passes=bool(passes))

        return self._candidates(query, work)

    def _candidates(self, query: Query, use: Callable[[Candidates], T], *, plain: bool = False) -> T:
        """Bring the index up to date, find the candidates for a query and use them, all on the same index.

        A plain search is answered by the index alone.
        """
        check(query)
        terms = parse(query.text)
        among = both(query.kinds, terms.kinds)
        where = self.filter(query, query.kinds if among is None else among, (*query.tags, *terms.tags))
        if among is None or (terms.empty and query.text.strip() and not (terms.tags or terms.kinds)):
            return use(Candidates(where=where, as_of=iso(now_ms())))

        def load(rows: list[int]) -> dict[int, Record]:
            return self._sync.ask(lambda index: index.load(rows))

        def related(found: list[Answer]) -> list[list[Tied]]:
            ids, around = [one.record.id for one in found], msgspec.structs.replace(where, tags=(), since="", until="")
            ties = self._sync.ask(lambda index: index.related(ids, around, query.related))
            return [ties.get(identifier, []) for identifier in ids]

        def work() -> T:
            done = self._sync.ensure_current(where, searching=not terms.empty)
            with self._sync.reading():
                pools, near, best = list[Pool](), Near(), list[Answer]()
                if terms.empty:
                    newest = self._sync.ask(lambda index: index.newest(where, query.limit))
                    best = [Answer(record) for record in newest]
                elif plain:
                    matches = self._sync.ask(lambda index: index.best(terms, where, query.limit))
                    best = [Answer(record, score) for record, score in matches]
                else:
                    pools, near = self._pools(terms, where, query)
                damaged = self._sync.ask(lambda index: index.problem_count())
                return use(
                    Candidates(
                        pools, near, best, where, load, related, as_of=self._sync.as_of(), behind=done.behind,
                        problems=done.problems, damaged=damaged,
                    )
                )  # fmt: skip

        return self._sync.retry_if_replaced(work)

    def _pools(self, terms: Terms, where: Filter, query: Query) -> tuple[list[Pool], Near]:
        candidates = self.settings.search.candidates
        most = max(candidates if query.associate else candidates // 4, 2 * query.limit)
        pools = self._sync.ask(lambda index: index.pools(terms, where, most))
        if terms.phrases and query.associate and not any(pool.candidates for pool in pools):
            terms = terms.loose  # a title in a question need not occur word for word
            pools = self._sync.ask(lambda index: index.pools(terms, where, most))
        near = Near()
        if query.associate:
            pools, near = self._sync.ask(lambda index: self._semantic.widen(index, pools, query, terms, where))
            if self._sync.watching:
                self._semantic.fill(self._sync.ask)
        return pools, near

    @functools.cached_property
    def shared(self) -> Shared | None:
        """The shared memory of the settings, if any."""
        from holdfast.owner.shared import Shared

        return Shared(self) if self.settings.shared.store else None

    def related(self, identifier: str, query: Query | None = None) -> list[Tied]:
        """Return the records that are related to a record or a name by links, common links or tags. One hop."""
        wanted = query or Query(limit=10)
        check(wanted)
        check_text(identifier)
        identifier = self.store.resolve(identifier)
        if not identifier.strip():
            raise Invalid("There is no name to look for.", "Give the id of a record, or a name.")
        where = self.filter(wanted, wanted.kinds, wanted.tags)

        def work() -> list[Tied]:
            self._sync.ensure_current(where, searching=True)
            ties = self._sync.ask(lambda index: index.related([identifier], where, wanted.limit))
            return ties[identifier]

        found = self._sync.retry_if_replaced(work)
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
        where = self.filter(query, query.kinds, query.tags)
        done, found = self.store.query(where)
        wanted = where.kinds or where.searchable
        below = self.layout.below(wanted, where.scope, above=where.above)
        known = self._sync.ask(lambda index: index.problems(below))
        problems = [
            problem for problem in known if (place := self.layout.classify(problem.path)) and place.kind.name in wanted
        ]
        return found, once([*done.problems, *problems])

    def backwards(
        self, path: str, scope: str = "", session: str = "", problems: list[Problem] | None = None
    ) -> Iterator[Record]:
        """Yield the records of a log from its end, of a scope or session if given; none when there is no such log."""
        for record in self.store.newest(path, problems):
            inside = not scope or f"{record.scope.path}/".startswith(f"{scope}/")
            if inside and (not session or record.scope.session in ("", *_sessions(session))):
                yield record

    def beside(self, record: Record, count: int, *, after: bool = False) -> list[Record]:
        """Return the records before or after an entry in its log, nearest first, from the index."""
        return self._sync.ask(lambda index: index.beside(record.path, record.order, count, after=after))

    def sources(self, records: Iterable[Record]) -> dict[str, Source]:
        """Return the source of each record by its id: writer, channel and trust."""
        return self._provenance.sources(records)

    def held(self, kind: Kind, key: str) -> Record | None:
        """Return the current entry of a key, None when there is none or it is hidden."""
        path = self.layout.path_for(kind, Scope())
        found = self.store.ask_about(lambda index: index.by_key(path, key), path)
        return next((record for record in found if not record.hidden), None)

    def history(self, kind: Kind, key: str) -> list[Record]:
        """Return all entries of a key, oldest first."""
        path = self.layout.path_for(kind, Scope())
        return self.store.ask_about(lambda index: index.by_key(path, key, history=True), path)

    def count(self, path: str, after: str = "") -> int:
        """Count the current records of a log with an order greater than `after`."""
        return self.store.ask_about(lambda index: index.count(path, after), path)

    def damage(self, *paths: str) -> list[Problem]:
        """Return what cannot be read in these files."""
        found = self.store.ask_about(lambda index: index.problems(paths), *paths)
        return [problem for problem in found if not problem.minor and problem.path in paths]

    def knows_op(self, op_id: str) -> bool:
        """Was this op_id used before?"""
        return bool(op_id) and bool(self._sync.known(op_id).applied)

    def read(self, path: str) -> Document:
        """Return a document; NotFound, or OverBudget when it is larger than the settings allow."""
        return self.store.read(path)

    def exists(self, path: str) -> bool:
        return self.store.exists(path)

    def paths(self, folder: str, suffix: str) -> list[str]:
        """Return all files below a folder with this suffix; Unavailable when a part of it cannot be read."""
        return self.store.paths(folder, suffix)

    def newest_entries(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the entries of a log from its end; lines that cannot be parsed are skipped."""
        if not self.exists(path):
            return
        for line in self.tree.scan_back(path):
            found = jsonl.parse(line.data)
            yield from reversed(found) if isinstance(found, list) else ()

    # index and files

    def refresh(self, *, rebuild: bool = False, progress: Progress | None = None) -> Refreshed:
        """Bring the index up to date with the files; `rebuild` deletes it first."""
        if rebuild:
            try:
                done = self._sync.rebuild(progress)
            except Unusable as error:
                raise Unavailable(
                    f"The index cannot be rebuilt: {error}.", "Use a login, or a folder, that may be written."
                ) from None
            self._semantic.forget()
            return done
        done = self._sync.refresh_below((), progress)
        known = self._sync.ask(lambda index: [*index.problems(), *self._sync.refresher.torn(index)])
        done.problems = once([*done.problems, *known])
        return done

    def verify(self, progress: Progress | None = None) -> verify.Report:
        """Check that the index equals the files, and report what is damaged."""
        begun = time_ns()
        self.refresh()
        outside = self._sync.ask(lambda index: [path for path in index.seen() if not self.layout.watched(path)])
        if outside:
            self._sync.refresh_below(tuple(outside))
        report = self._sync.verify(begun, progress)
        report.damage += self._sync.vanished()
        return report

    def stats(self) -> dict[str, Any]:
        """Return counts and sizes, and how far the index is behind."""
        done = Refreshed()
        refresher = self._sync.refresher
        behind = self._sync.ask(lambda index: refresher.stale(index, done))
        counts = self._sync.ask(lambda index: index.counts())
        size = sum(stamp.size for stamp in refresher.walk(Refreshed()).values())
        vanished = self._sync.vanished()
        problems = [*done.problems, *vanished]
        return {
            "root": self.root,
            "records": sum(counts.values()),
            "kinds": counts,
            "files": done.files,
            "bytes": size,
            "index_bytes": self._sync.size(),
            "behind": behind,
            "problems": len(once([*problems, *self._sync.ask(lambda index: index.problems())])),
            "vanished": [str(problem) for problem in vanished],
            **({"words_alone": self._semantic.problem} if self._semantic.problem else {}),
        }

    @property
    def embedder(self) -> str:
        """The embedder in use, "" when records are found by words alone."""
        return self._semantic.embedder

    def embed(self, progress: Progress | None = None) -> Embedded:
        """Make the missing vectors, by which records are found by meaning; Unavailable without an embedder."""
        if self.reads_only:
            raise Unavailable("This login only reads: it can keep no vectors.", "Make them with a login that writes.")
        self.refresh()
        return self._sync.ask(lambda index: self._semantic.embed(index, progress))

    def embedded(self) -> Embedded:
        """Return the state of the vectors, and their model."""
        self.refresh()
        return self._sync.ask(self._semantic.status)

    @property
    def waiting(self) -> int:
        """How many changed files are not indexed yet."""
        return self._sync.waiting

    def watch(self) -> None:
        """Watch the files from now on, so that a search need not check every file."""
        self._sync.watch()

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
            kinds=wanted, scope=where.path, above=query.above, shared=query.shared,
            sessions=_sessions(query.session), tags=tags, since=since, until=until,
            known=asking.end_of_day(query.asked) if query.asked else "", hidden=query.hidden,
            searchable=_SEARCHABLE,
        )  # fmt: skip


def _sessions(session: str) -> tuple[str, ...]:
    """Return the names of a session in records: entries without one have the name of its folder."""
    return (session, session_folder(session)) if session else ()
