"""`Memory`: what `holdfast.open` returns, with every module, every tool and the owner's commands on it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from holdfast import core, roots
from holdfast.errors import HoldfastError
from holdfast.formats import prompts
from holdfast.memories.compartments import Compartments, Run
from holdfast.model.names import check_given
from holdfast.model.queries import Query
from holdfast.model.records import DEFAULT, Record, Scope, split
from holdfast.model.times import utc_now
from holdfast.owner import history
from holdfast.storage.store import Event, Store, What

if TYPE_CHECKING:
    from holdfast.memories.chat import Chat
    from holdfast.memories.cold import Transcripts
    from holdfast.memories.hot import Hot
    from holdfast.memories.jobs import Jobs
    from holdfast.memories.knowledge import Knowledge, Skills
    from holdfast.memories.mind import Mind, Values
    from holdfast.memories.tasks import Tasks
    from holdfast.memories.workspaces import States, Traces, Usage, Workspaces
    from holdfast.owner.backup import Copied
    from holdfast.owner.forget import Forgotten
    from holdfast.owner.transfer import Moved, Mover
    from holdfast.storage.results import Progress
    from holdfast.tools.calling import Reply, Runner

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
    """When the record was written, according to the record."""
    writer: str = ""
    title: str = ""
    text: str = ""
    """Its first words."""


class Changes:
    """The changes of some kinds in a scope; iterating waits for the next one until it is closed."""

    def __init__(self, memory: core.Core, scope: str, kinds: tuple[str, ...]) -> None:
        self._memory, self._scope, self._kinds = memory, scope, kinds
        self._ready: list[Change] = []
        self._early: dict[str, str] = {}
        """Versions of the records that were reported first; the feed may report them again."""
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
            self._ready = self.poll()
        return self._ready.pop(0)

    def poll(self) -> list[Change]:
        """Return the changes since the last call; wait for one, at most a second."""
        ready, self._ready = self._ready, []
        if ready:
            return ready
        events = []
        for event in self._feed.events(_POLL_SECONDS):
            version = self._early.pop(event.id, None)
            if version is None or event.what != "added" or not event.record or event.record.version != version:
                events.append(event)
        return self._changes(events)

    def close(self) -> None:
        """End the iteration, also in another thread that waits for it."""
        self._closed = True
        self._feed.close()

    def first(self, earlier: Iterable[Record]) -> None:
        """Report these existing records before anything else."""
        events = [Event("added", one.path, one.id, one.kind, one.scope.path, one) for one in earlier]
        self._ready = [*self._changes(events), *self._ready]
        self._early = {event.id: event.record.version for event in events if event.record}

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


class Memory(core.Core):
    """One memory. Safe to use from several threads; close it, or use it as a context manager."""

    versions = history.versions
    text_at = history.text_at
    rollback = history.rollback
    workspaces: Workspaces
    states: States
    traces: Traces
    knowledge: Knowledge
    skills: Skills
    values: Values
    chat: Chat
    jobs: Jobs
    tasks: Tasks

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.compartments = Compartments(self)
        self._tools: Runner | None = None
        self._loading = threading.Lock()

    # parts, loaded when they are first used: a search needs none of them

    @property
    def tools(self) -> Runner:
        """All tools over this memory."""
        with self._loading:
            if self._tools is None:
                from holdfast.tools import toolsets
                from holdfast.tools.calling import Runner

                self._tools = Runner(self, toolsets.registry, self.compartments)
            return self._tools

    def __getattr__(self, name: str) -> Any:
        if name in Memory.__annotations__:
            return getattr(self.tools, name)
        raise AttributeError(f"A memory has no {name!r}.", name=name, obj=self)

    @property
    def hot(self) -> Hot:
        from holdfast.memories.hot import Hot

        return Hot(self)

    @property
    def transcripts(self) -> Transcripts:
        from holdfast.memories.cold import Transcripts

        return Transcripts(self)

    def run(self, session: str = "", run_id: str = "", workspace: str | None = None) -> Run:
        """Return a run of an agent in a session, to be used as a context manager: its own memory ends with it."""
        check_given(workspace=workspace or "")
        where = self.scopes.resolve(workspace).path if workspace else ""
        return Run(self.compartments, session, run_id, where)

    def stats(self) -> dict[str, Any]:
        """Return counts and sizes, those of the compartments too, and how far the index is behind."""
        return {"root": self.root, **self.store.stats(), "compartments": self.compartments.sizes()}

    def close(self) -> None:
        """End the runs of this process, index what was written here, and close everything."""
        try:
            self.compartments.runs.close()
        finally:
            super().close()

    def mind(self, session: str = "", scope: str | None = None, *, on_error: Literal["raise", "log"] = "raise") -> Mind:
        """Return the four memories of a session; objects of the same session share their data."""
        from holdfast.memories.mind import Mind

        check_given(session=session, scope=scope or "")
        return Mind(self, session, scope, window=self.tools.windows.of(session or DEFAULT), on_error=on_error)

    def prompt(
        self, workspace: str = "", session: str = "", run: str = "", task: str = "", budget: int = prompts.BUDGET
    ) -> str:
        """Return what an agent should know when it starts: rules, memory, the workspace, records about the task.

        At most `budget` tokens; the same as `holdfast context` prints.
        """
        from holdfast.tools import prompt
        from holdfast.tools.calling import Context

        check_given(workspace=workspace, session=session, run=run, task=task)
        context = Context(workspaceId=workspace, sessionId=session, runId=run, goal=task)
        return prompts.together(prompt.gather(self.tools, context, budget), budget).text

    def call(self, tool: str, params: Any = None, context: Any = None, *, reads_only: bool = False) -> Reply:
        """Run any tool by its contract name and return the reply that an agent would get; an error is a reply.

        With `reads_only`, a tool that writes is refused, also inside `useTools`.
        """
        runner = self.tools.reading if reads_only else self.tools
        return runner.call(tool, params, context)

    # commands of the owner, loaded when they are used

    def usage(self, since: str = "") -> Usage:
        """Count the tool calls from a date or time on."""
        from holdfast.memories import workspaces

        return workspaces.usage(self, since)

    def forget(
        self, *identifiers: str, query: str = "", yes: bool = False, count: int = 0, progress: Progress | None = None
    ) -> Forgotten:
        """Erase the text of records for good, by id, or all that contain a text; without `yes`, list them.

        Many at once need the `count`. An interrupted call is finished by calling again.
        """
        from holdfast.owner.forget import Forgetter

        return Forgetter(self).forget(identifiers, query, yes=yes, count=count, progress=progress)

    def backup(self, target: str | os.PathLike[str], progress: Progress | None = None, *, dry: bool = False) -> Copied:
        """Copy the whole memory to a new .tar.gz file or folder outside of it, while others go on writing."""
        from holdfast.owner import backup

        return backup.backup(self, os.fspath(target), progress, dry=dry)

    def export(self, target: str | os.PathLike[str], progress: Progress | None = None, *, dry: bool = False) -> Copied:
        """Write this memory as plain files to a new or empty folder."""
        from holdfast.owner import backup

        return backup.export(self, os.fspath(target), progress, dry=dry)

    def push(self, to: str = "", *, scope: str = "", yes: bool = False, progress: Progress | None = None) -> Moved:
        """Copy this memory to another one, by default the shared one of the settings; without `yes`, preview it.

        With a scope, only that workspace is copied.
        """
        with self.moving(to, scope=scope, push=True) as mover:
            planned = mover.plan()
            return mover.move(progress) if yes else planned

    def pull(self, source: str = "", *, scope: str = "", yes: bool = False, progress: Progress | None = None) -> Moved:
        """Copy another memory or a backup to this one; the opposite of `push`."""
        with self.moving(source, scope=scope, push=False) as mover:
            planned = mover.plan()
            return mover.move(progress) if yes else planned

    def moving(self, other: str = "", *, scope: str = "", push: bool) -> AbstractContextManager[Mover]:
        """Open another memory for a transfer: first `plan`, then `move`."""
        from holdfast.owner import transfer

        return transfer.opened(self, other, scope, push=push)

    def changes(self, scope: str | Scope | None = None, kinds: Sequence[str] = (), since: str = "") -> Changes:
        """Follow all records that are added, changed, removed and hidden from now on: iterate over it, and close it.

        `since` is the id of a record: those that came after it are reported first.
        """
        query = Query(kinds=tuple(kinds), scope=scope)
        where = self.filter(query, query.kinds, ())
        last = self.get(since) if since else None
        found = Changes(self, where.scope, query.kinds or where.searchable)
        try:
            if last:
                every = self.store.survey(where)[0]
                later = [record for record in every if (record.time, record.id) > (last.time, last.id)]
                found.first(sorted(later, key=lambda record: (record.time, record.id)))
        except BaseException:
            found.close()
            raise
        return found


def open_memory(root: str | os.PathLike[str], *, watch: bool = False, writer: str = "") -> Memory:
    """Open the memory in a folder that exists; `writer` is recorded with every write."""
    return in_store(roots.open_store(root, watch=watch, writer=writer))


def in_store(store: Store) -> Memory:
    """Return the memory in an open store, after the runs of dead processes were removed."""
    memory = Memory(store)
    with contextlib.suppress(HoldfastError):
        memory.compartments.runs.sweep_all()
    return memory


def open_within(memory: Memory, scope: str) -> Memory:
    """Open one scope of an open memory, for callers who may neither see nor change anything else; close it first."""
    made = Memory(memory.store.within("/".join(split(scope))))  # by folder: a name could move to another workspace
    made.tools.start = msgspec.structs.replace(memory.tools.start, workspaceId=scope)
    made.tools.bound = scope
    return made
