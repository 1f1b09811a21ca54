"""`Memory`: what every door holds. It composes; the work is done by the modules beside it."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from time import time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from holdfast.errors import Invalid, Unavailable
from holdfast.formats import jsonl
from holdfast.model import kinds, settings
from holdfast.model.kinds import KINDS, Kind
from holdfast.model.layout import Layout, session_folder
from holdfast.model.names import check_text
from holdfast.model.queries import Query, Terms, both, check, parse
from holdfast.model.records import Draft, Problem, Receipt, Record, path_of
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
from holdfast.storage.log import Cursor
from holdfast.storage.refresh import Progress, Refreshed
from holdfast.storage.scopes import Scopes
from holdfast.storage.secret_policy import SecretPolicy
from holdfast.storage.store import ANY, Store
from holdfast.storage.tree import Document
from holdfast.storage.writer import Writer

if TYPE_CHECKING:
    from holdfast.owner.backup import Backup
    from holdfast.owner.changes import Changes
    from holdfast.owner.forget import Forgotten
    from holdfast.owner.history import Version
    from holdfast.owner.restore import Restored
    from holdfast.owner.rollback import RolledBack
    from holdfast.owner.shared import Shared
    from holdfast.owner.transfer import Moved, Mover

_SEARCHABLE = tuple(row.name for row in KINDS.values() if row.searchable and row.layer in ("hot", "warm"))
T = TypeVar("T")
_AT_LINE = re.compile(r"(.+\.(?:md|jsonl)):([0-9]{1,9})\Z")


class Core:
    """One memory root. Safe to use from several threads; close it, or use it as a context manager."""

    def __init__(self, engine: Engine, config: settings.Settings, writer: str = "") -> None:
        self.settings = config
        self.writer = writer
        self.tree = tree = engine.tree
        self.layout = Layout(config.paths)
        self.scopes = Scopes(tree, self.layout)
        self._folder = engine.folder
        self.address = engine.address
        """What another program opens this memory with; never with a password."""
        self.reads_only = engine.reads_only
        """May nothing be written here?"""
        self.clock: Callable[[], int] = engine.clock
        """Returns the milliseconds of the clock that leases go by."""
        self.store = Store(engine, self.layout, config, writer)
        self._sync = self.store.sync
        embedder = config.search.embedder if config.search.meaning else "none"
        self._semantic = Semantic(embedder, engine.vectors, engine.no_vectors)
        self.secrets = SecretPolicy(config.secrets)
        self._provenance = Provenance(tree, self.layout, config.chat.aliases())
        self._writer = Writer(self.store, self.layout, self.scopes, config.limits, self.secrets)

    @property
    def root(self) -> str:
        """The folder that this memory is, or the address of the database that it is in, without a password."""
        return self.address

    @property
    def in_files(self) -> bool:
        """Is this memory a folder, which other programs can look into?"""
        return bool(self._folder)

    def folder(self, what: str) -> str:
        """Return the folder that this memory is, for what needs one; a memory in a database says that it has none."""
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
        """Bring the index up to what was written here, and let go of everything."""
        if self.settings.shared.store and self.shared:
            self.shared.close()
        self._semantic.close()
        self.store.close()

    # writing

    def put(self, kind: str = "", text: str | None = None, **given: Any) -> Receipt:
        """Keep a record: durable when this returns. `given` are the other fields of `Draft`."""
        return self.keep(draft(kind=kind, text=text, **given))

    def keep(self, wanted: Draft) -> Receipt:
        """Keep what the draft says, or change the record that it names."""
        if wanted.id and not wanted.kind and self.layout.classify(path_of(wanted.id)) is None:
            self.get(wanted.id)  # an unknown id is NotFound; a known line cannot be changed
        return self._writer.put(wanted)

    def hide(self, identifier: str, *, restore: bool = False, op_id: str = "") -> Receipt:
        """Hide a record from search and lists, or show it again; its text stays where it is."""
        return self._writer.hide(self.get(identifier), not restore, op_id)

    def replace(
        self, path: str, data: bytes, expect: str = ANY, *, keep: bool = True, op_id: str = "", known: bool = False
    ) -> Receipt:
        """Write a whole document that was made from version `expect`, "" for a new one; Conflict when it is another.

        Without a version it takes the place of whatever is there, which is kept. With `known` all of its text stood in
        the memory before, whoever wrote it.
        """
        return self._writer.replace(path, data, expect, keep=keep, op_id=op_id, known=known)

    def written_by(self, writer: str) -> AbstractContextManager[None]:
        """Note somebody else as the writer in this thread, for a door that serves several."""
        return self._writer.by(writer)

    def undo(self, identifier: str, op_id: str = "") -> Receipt:
        """Bring back the text that a document had before Holdfast wrote it last; again, the text before that."""
        check_text(identifier)
        path = path_of(identifier)
        place = self.layout.classify(path)
        if path != identifier and place and place.kind.shape == "section":
            raise Invalid(
                "An entry is not undone by itself: the last write to its page may be another's.",
                f"Hide it, or take back the last write to the page: {path}.",
            )
        from holdfast.owner import history

        return history.undo(self, self._file_of(path), op_id)

    def _file_of(self, identifier: str) -> str:
        """Return the file that an id means: the path itself, or the log that a line stands in."""
        return identifier if self.layout.classify(identifier) else self.get(identifier).path

    def retire(self, path: str, expect: str, op_id: str = "") -> None:
        """Take away a document of this version, whose text has found another home; its bytes are kept even so."""
        self._writer.retire(path, expect, op_id)

    # reading

    def get(self, identifier: str) -> Record:
        """Return one record as it is on disk now; `shared:` before an id means one of the shared memory."""
        check_text(identifier)
        if identifier.startswith("shared:") and self.shared:
            return self.shared.ask(lambda there: there.get(identifier.removeprefix("shared:")))
        return self.store.get(identifier)

    def find(self, query: Query | str = "", **given: Any) -> answers.Found:
        """Answer a query: the best matches for its text or, without text, the newest records."""
        wanted = _query(query, given)
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
        where = self._filter(query, query.kinds if among is None else among, (*query.tags, *terms.tags))
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
        """The memory that this one shares with others, None when the settings name none."""
        from holdfast.owner.shared import Shared

        return Shared(self) if self.settings.shared.store else None

    def related(self, identifier: str, query: Query | None = None) -> list[Tied]:
        """Return the records that are related to a record or a name by links, common links or tags. One hop."""
        wanted = query or Query(limit=10)
        check(wanted)
        check_text(identifier)
        if at := _AT_LINE.match(identifier):
            identifier = self.store.id_at(at[1], int(at[2]))
        if not identifier.strip():
            raise Invalid("There is no name to look for.", "Give the id of a record, or a name.")
        where = self._filter(wanted, wanted.kinds, wanted.tags)

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
        if row.key or row.foreign:  # which line of a key holds is the index's business, and which log is the last one
            return self.every(Query(kinds=(kind,), scope=scope, session=session))[:count][::-1]
        path = self.layout.path_for(row, where, month=iso(now_ms())[:7], session=session)
        return list(itertools.islice(self.backwards(path, where.path, session), count))[::-1]

    def every(self, query: Query) -> list[Record]:
        """Return all records that pass the filters, newest first, however many there are."""
        return self.survey(query)[0]

    def survey(self, query: Query) -> tuple[list[Record], list[Problem]]:
        """Return all records that pass the filters, newest first, and what could not be read where they lie."""
        where = self._filter(query, query.kinds, query.tags)
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
        """Return the records before or after a line in its log, the nearest first, as the index has them."""
        return self._sync.ask(lambda index: index.beside(record.path, record.order, count, after=after))

    def sources(self, records: Iterable[Record]) -> dict[str, Source]:
        """Return where records come from, by their id: who wrote them, over which channel, with which trust."""
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
        """Was something done, or about to be done, under this op_id?"""
        return bool(op_id) and bool(self._sync.known(op_id).applied)

    def add(
        self, path: str, lines: Sequence[Mapping[str, Any]], *, after: str = "", durable: bool = True, op_id: str = "",
        time: str = "time", unless: Cursor | None = None, locked: Callable[[], None] = lambda: None,
    ) -> list[str]:  # fmt: skip
        """Append entries to a log in one piece and return their ids, which are greater than `after`.

        An op_id has effect once. For `unless` and `locked` see `Store.append`.
        """
        return self._writer.add(
            path, lines, after=after, durable=durable, op_id=op_id, time=time, unless=unless, locked=locked
        )

    def offload(self, data: Any, session: str, fits: Callable[[Any], bool]) -> Any:
        """Return a value as it is, or where one that is large or does not fit was put, durably: ref, head and size."""
        return self._writer.offload(data, session, fits)

    def bring(self, kind: str, name: str, lines: list[dict[str, Any]]) -> int:
        """Add lines from elsewhere, which carry their own ids, to a log of this name, each once; return how many."""
        return self._writer.bring(self._log_of(kind, name), lines)

    def missing(self, kind: str, name: str, ids: set[str]) -> int:
        """Return how many lines of these ids `bring` would add."""
        return self._writer.missing(self._log_of(kind, name), ids)

    def _log_of(self, kind: str, name: str) -> str:
        """Return the path of a log for lines from elsewhere; without a name, the one that all lines of a kind go to."""
        row = kinds.kind(kind)
        template = next((place for place in (row.place, row.also) if ("{any}" in place) == bool(name)), "")
        if row.shape != "line" or row.key or not template:
            raise Invalid(f"{row.one} is not brought from elsewhere.", "Use put.")
        path = template.format(any=name, **msgspec.structs.asdict(self.settings.paths))
        place = self.layout.classify(path)
        if place is None or place.kind is not row:
            raise Invalid(f"{name!r} is not the name of a {kind}.", "Use a name without a leading dot.")
        return path

    def note_line(self, kind: Kind, line: dict[str, Any], folder: str) -> None:
        """Add a line to one of Holdfast's own logs, without waiting for the disk."""
        self._writer.note(kind, line, folder)

    def read(self, path: str) -> Document:
        """Return a document; NotFound, or OverBudget when it is larger than the settings allow."""
        return self.store.read(path)

    def exists(self, path: str) -> bool:
        return self.store.exists(path)

    def paths(self, folder: str, suffix: str) -> list[str]:
        """Return all files below a folder whose names end so; Unavailable when a part of it cannot be read."""
        return self.store.paths(folder, suffix)

    def newest_entries(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the entries of a log from its end, without what cannot be parsed; nothing when there is no log."""
        if not self.exists(path):
            return
        for line in self.tree.scan_back(path):
            found = jsonl.parse(line.data)
            yield from reversed(found) if isinstance(found, list) else ()

    # index and files

    def refresh(self, *, rebuild: bool = False, progress: Progress | None = None) -> Refreshed:
        """Bring the index up to the files; `rebuild` throws it away first."""
        if rebuild:
            try:
                done = self._sync.rebuild(progress)
            except Unusable as error:
                raise Unavailable(
                    f"The index cannot be made anew: {error}.", "Use a login, or a folder, that may be written."
                ) from None
            self._semantic.forget()
            return done
        done = self._sync.refresh_below((), progress)
        known = self._sync.ask(lambda index: [*index.problems(), *self._sync.refresher.torn(index)])
        done.problems = once([*done.problems, *known])
        return done

    def verify(self, progress: Progress | None = None) -> verify.Report:
        """Prove that the index says what the files say, and name what is damaged."""
        begun = time_ns()
        self.refresh()
        outside = self._sync.ask(lambda index: [path for path in index.seen() if not self.layout.watched(path)])
        if outside:
            self._sync.refresh_below(tuple(outside))
        report = self._sync.verify(begun, progress)
        report.damage += self._sync.vanished()
        return report

    def stats(self) -> dict[str, Any]:
        """Return what is kept, where, and how far the index is behind."""
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

    # the owner's

    def versions(self, identifier: str) -> list[Version]:
        """Return what happened to a document, or to a line and its key, oldest first: when, by whom, which version."""
        from holdfast.owner import history  # rarely used, and not loaded before

        return history.versions(self, identifier)

    def text_at(self, identifier: str, version: str) -> str:
        """Return the text that a document had in a version, of which the first digits are enough."""
        from holdfast.owner import history

        return history.text_at(self, identifier, version)

    def forget(
        self, *identifiers: str, query: str = "", yes: bool = False, count: int = 0, progress: Progress | None = None
    ) -> Forgotten:
        """Remove the text of records for good, by id, or all that have a text word for word; without `yes`, list them.

        Much at once needs the `count`. The owner's, never a model's. What was interrupted is finished by calling again.
        """
        from holdfast.owner.forget import Forgetter

        forgetter = Forgetter(self, self._semantic)
        return forgetter.forget(identifiers, query, yes=yes, count=count, progress=progress)

    def rollback(
        self, writer: str = "", since: str = "", *, yes: bool = False, count: int = 0, back: str = ""
    ) -> RolledBack:
        """Take back what one writer wrote, since a time if one is given; without `yes`, list it.

        Much at once needs the `count`. With `back`, the id that a rollback told, it is the rollback that is taken back.
        """
        from holdfast.owner import rollback

        return rollback.rollback(self, writer, since, yes=yes, count=count, back=back)

    def backup(self, target: str | os.PathLike[str], progress: Progress | None = None) -> Backup:
        """Copy the whole memory to a new .tar.gz file or folder outside of it, while others go on writing."""
        from holdfast.owner import backup

        return backup.backup(self, os.fspath(target), progress)

    @property
    def waiting(self) -> int:
        """How many files are known to have changed and are not in the index yet."""
        return self._sync.waiting

    def push(self, to: str = "", *, scope: str = "", yes: bool = False, progress: Progress | None = None) -> Moved:
        """Move what is here to another memory, by its folder or address; without `yes`, say what would move.

        Without a name it is the shared one of the settings. With a scope, only what belongs to that workspace moves.
        """
        with self.moving(to, scope=scope, push=True) as mover:
            planned = mover.plan()
            return mover.move(progress) if yes else planned

    def pull(self, source: str = "", *, scope: str = "", yes: bool = False, progress: Progress | None = None) -> Moved:
        """Move what another memory has to this one, as `push` does the other way round."""
        with self.moving(source, scope=scope, push=False) as mover:
            planned = mover.plan()
            return mover.move(progress) if yes else planned

    def moving(self, other: str = "", *, scope: str = "", push: bool) -> AbstractContextManager[Mover]:
        """Open another memory to move something there or from there: first `plan`, then `move`."""
        from holdfast.owner import transfer

        return transfer.opened(self, other, scope, push=push)

    def export(self, target: str | os.PathLike[str], progress: Progress | None = None) -> Restored:
        """Give all of this memory as plain files, in a folder that is new or empty."""
        from holdfast.owner import backup

        return backup.export(self, os.fspath(target), progress)

    def watch(self) -> None:
        """Follow changes of files from now on, so that a search need not look at every file."""
        self._sync.watch()

    def changes(self, scope: str | Scope | None = None, kinds: Sequence[str] = (), since: str = "") -> Changes:
        """Follow what is added, changed, removed and hidden from now on: iterate over it, and close it.

        `since` is the id of a record: those that came after it are told first.
        """
        from holdfast.owner.changes import Changes, Reader  # few follow

        query = Query(kinds=tuple(kinds), scope=scope)
        where = self._filter(query, query.kinds, ())
        reader = Reader(self.tree, self.layout, self._sync.refresher)
        last = self.get(since) if since else None
        found = Changes(self._sync.follow, reader, where.scope, query.kinds or _SEARCHABLE, self._writers_of)
        try:
            self._sync.ask(lambda index: reader.begin(index.seen(self.layout.roots), index.records))
            if last:
                found.first(self._after(last, query))
        except BaseException:
            found.close()
            raise
        return found

    def _after(self, last: Record, query: Query) -> list[Record]:
        """Return the records that came after one, oldest first."""
        every = self._sync.ask(lambda index: index.newest(self._filter(query, query.kinds, ()), -1))
        later = [record for record in every if (record.time, record.id) > (last.time, last.id)]
        return sorted(later, key=lambda record: (record.time, record.id))

    def _writers_of(self, records: list[Record]) -> dict[str, str]:
        return {identifier: source.by for identifier, source in self.sources(records).items()} if records else {}

    def _filter(self, query: Query, wanted: tuple[str, ...], tags: tuple[str, ...]) -> Filter:
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


def draft(**given: Any) -> Draft:
    """Make a draft of loose arguments, naming the valid ones when one is unknown or of the wrong type."""
    try:
        return msgspec.convert(given, Draft)
    except (msgspec.ValidationError, TypeError) as error:
        raise Invalid(f"{error}.", f"A draft takes {', '.join(Draft.__struct_fields__)}.") from None


def _query(query: Query | str, given: dict[str, Any]) -> Query:
    if isinstance(query, Query):
        given = {name: getattr(query, name) for name in Query.__struct_fields__} | given
    else:
        given = {"text": query} | given
    try:
        return msgspec.convert(given, Query)
    except (msgspec.ValidationError, TypeError) as error:
        raise Invalid(f"{error}.", f"A query takes {', '.join(Query.__struct_fields__)}.") from None


def _sessions(session: str) -> tuple[str, ...]:
    """Return the strings under which a session's records are known: lines without one bear their folder's name."""
    return (session, session_folder(session)) if session else ()
