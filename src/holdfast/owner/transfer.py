"""Push and pull: transfer records between two memories, whatever engines they use.

`merge` decides what becomes of each document and log entry. Nothing is replaced that changed since both sides agreed,
nothing is removed, and a transfer can be repeated: what is there already is not copied again. Documents are written
first, then the logs that refer to them, then the write log. Settings, derived files, the notes of live runs and the
agreements of other transfers stay where they are. With a scope, only what belongs to that workspace is transferred.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import AlreadyExists, Conflict, Damaged, HoldfastError, Invalid, NotFound, OverBudget, Unavailable
from holdfast.formats import jsonl, markdown, sections
from holdfast.formats.encryption import Locked
from holdfast.model.kinds import KINDS
from holdfast.model.names import check_text
from holdfast.model.records import Problem, Scope, version_of
from holdfast.model.times import utc_now
from holdfast.owner import backup, merge, shared
from holdfast.owner.merge import Act, Pair, Share, Wanted
from holdfast.roots import open_memory
from holdfast.storage import values, write_log
from holdfast.storage.reports import Progress
from holdfast.storage.store import Made
from holdfast.storage.tree import RootGone, Stamp

_MANY, _MUCH = 200, 4 << 20
"""How many documents, or bytes of them, are written together."""
_SHARED = ("fact", "procedure", "episode", "summary", "entry")
"""Kinds of log entries that name their workspace and move with it. Chat, jobs and traces do not."""
_MOVES: tuple[Act, ...] = ("new", "changed", "merged", "conflict")
_LEFT = (
    "settings, the index and the notes of live runs stay where they are",
    "what was removed on one side is not removed on the other",
)


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    path: str
    act: Act
    records: int = 0
    bytes: int = 0
    beside: str = ""
    """Where our version is stored in a conflict."""
    known: bool = False
    """Whether it is stored there already."""


class Tally(msgspec.Struct, omit_defaults=True):
    files: int = 0
    records: int = 0
    bytes: int = 0

    def add(self, records: int, size: int = 0) -> None:
        self.files += 1
        self.records += records
        self.bytes += size


class Moved(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What would be or was transferred, from where to where."""

    source: str
    target: str
    scope: str = ""
    done: bool = False
    counts: dict[str, Tally] = {}
    """By what becomes of it: new, changed, merged, conflict, same, newer, gone, forgotten."""
    conflicts: list[Step] = []
    """Documents of which both versions are kept now, and where ours is."""
    refused: list[Problem] = []
    """What was left out, and why; all else was transferred."""
    left: list[str] = []
    """What a transfer never touches."""

    @property
    def records(self) -> int:
        return sum(self.counts[act].records for act in _MOVES if act in self.counts)

    @property
    def nothing(self) -> bool:
        return not any(self.counts[act].files for act in _MOVES if act in self.counts)


@contextlib.contextmanager
def opened(memory: Core, other: str, scope: str, *, push: bool) -> Iterator[Mover]:
    """Open another memory for a transfer; without an address, the shared one of the settings."""
    check_text(other, scope)
    try:
        there = open_memory(shared.address(memory, other), writer=memory.store.writer, kind=Core)
    except HoldfastError as error:
        raise error if other else shared.as_written(error, memory) from None
    with there:
        yield Mover(memory, there, push=push, scope=scope)


class Mover:
    """Transfers what one memory has to another; `here` notes what both sides have."""

    def __init__(self, here: Core, there: Core, *, push: bool, scope: str = "") -> None:
        if merge.identity(here.root) == merge.identity(there.root):
            raise Invalid(f"{here.root} is on both ends.", "Name another memory.")
        for name in here.settings.paths.__struct_fields__:
            mine, other = getattr(here.settings.paths, name), getattr(there.settings.paths, name)
            if mine != other:
                advice = f"Set it alike in both, in holdfast.toml or with HOLDFAST_PATHS_{name.upper()}."
                raise Invalid(f"paths.{name} is {mine!r} here, and {other!r} in {there.root}.", advice)
        self._source, self._target = (here, there) if push else (there, here)
        self._scope = self._source.scopes.resolve(scope).path if scope else ""
        places = self._source.layout
        self._tops = (f"{places.workspaces}/{self._scope}/", f"{places.memory}/workspaces/{self._scope}/")
        self._writes = f"{places.memory}/writes/"
        self._agreements = merge.Agreements(here, there.root, push=push)
        self._refused: list[Problem] = []
        self._steps: list[Step] = []
        self._shares: list[Share] = []
        self._writers: dict[str, dict[str, str]] = {}
        """Who wrote documents and their sections, by path and id."""
        self._late: list[Step] = []
        """Conflicts that were found while pages were merged."""
        self._equal: dict[str, Pair] = {}
        """What both sides have already, and is not noted yet."""

    # planning

    def plan(self, progress: Progress | None = None) -> Moved:
        """Compare both sides and return what would be transferred; nothing is written."""
        ours, theirs = self._files(self._source, self._refused), self._files(self._target, [])
        self._logs = merge.Logs(self._source, self._target, theirs)
        self._shares, self._steps = [], []
        for path in ours:
            place = self._source.layout.classify(path)
            if path.endswith(".jsonl") and (self._is_in_scope(path) or (place and place.kind.name in _SHARED)):
                with self._reported(path):
                    self._shares.append(self._logs.plan(path, self._wanted(path)))
        self._agreed = self._agreements.read()
        self._forgotten = merge.Forgotten(self._target, self._source, [share.path for share in self._shares])
        shared_logs = [share.path for share in self._shares if not self._is_in_scope(share.path)]
        entries = (one for path in shared_logs for one in write_log.objects(self._source.tree.scan(path), '"ref"'))
        refs = {str(entry["ref"]) for entry in entries if "ref" in entry and self._names_scope(entry)}
        documents = [path for path in ours if not path.endswith(".jsonl") and (self._is_in_scope(path) or path in refs)]
        steps: list[Step] = []
        for start in range(0, len(documents), _MANY):
            part = documents[start : start + _MANY]
            theirs_of, mine = self._target.tree.versions(part), dict[str, str]()
            try:
                mine = self._source.tree.versions(part)
            except Unavailable:  # about one of them
                for path in part:
                    with self._reported(path):
                        mine |= self._source.tree.versions([path])
            steps += [self._step(path, mine[path], theirs_of.get(path), ours[path].size) for path in mine]
            if progress:
                progress(start + len(part), len(documents))
        # a conflict is left alone where its version is the text of the document itself
        stays = {step.path for step in steps if step.act != "changed"}
        conflicts = {step.path: of for step in steps if step.act == "new" and (of := merge.conflict_of(step.path))}
        there = self._target.tree.versions([path for path, _ in conflicts.values()]) if conflicts else {}
        for step in steps:
            path, digits = conflicts.get(step.path, ("", ""))
            if path in stays and there.get(path, "").startswith(digits):
                self._steps.append(msgspec.structs.replace(step, act="same"))
            elif self._is_accepted(step):
                self._steps.append(step)
        return self._report(done=False)

    def _files(self, memory: Core, left_out: list[Problem]) -> dict[str, Stamp]:
        transfers = f"{memory.layout.memory}/{backup.TRANSFERS}/"
        found = backup.every_file(memory, left_out)
        return {path: stamp for path, stamp in found.items() if not path.startswith(transfers)}

    def _is_in_scope(self, path: str) -> bool:
        return not self._scope or path.startswith(self._tops)

    @functools.cache  # noqa: B019  # a mover lives as long as its transfer
    def _wanted(self, path: str) -> Wanted:
        """Return which lines of a log are transferred."""
        if not self._scope and path.startswith(self._writes):  # writes of other memories come from these
            return lambda data: _all(data, lambda entry: not entry.get("moved"))
        if self._is_in_scope(path):
            return lambda _: True
        place = self._source.layout.classify(path)
        names = ("id", place.kind.key) if place and place.kind.key else ("id",)
        entries = [one for one in write_log.objects(self._source.tree.scan(path)) if self._names_scope(one)]
        targets = {str(entry.get(name)) for entry in entries for name in names}
        return lambda data: _all(data, lambda entry: self._names_scope(entry) or entry.get("hide") in targets)

    def _names_scope(self, entry: Mapping[str, Any]) -> bool:
        return f"{entry.get('workspace')}/".startswith(f"{self._scope}/")

    @contextlib.contextmanager
    def _reported(self, path: str) -> Iterator[None]:
        """Report a file that cannot be read, and go on."""
        try:
            yield
        except RootGone:
            raise
        except Unavailable as error:
            self._refused.append(Problem(path, error.message))

    def _step(self, path: str, mine: str, theirs: str | None, size: int) -> Step:
        place, agreed = self._source.layout.classify(path), self._agreed.get(path)
        entries = place is not None and place.kind.shape == "section"
        act = merge.decide(mine, theirs, agreed, entries=entries)
        if act == "new" and self._forgotten.has(path, mine):
            act = "forgotten"
        if theirs == mine and agreed != Pair(mine, mine):
            self._equal[path] = Pair(mine, mine)
        records = 0 if place is None else 1
        if entries and act in ("new", "changed", "merged"):
            text = self._source.tree.read(path).data.decode("utf-8", "surrogateescape")
            records = len(sections.parse(text[markdown.body_start(text) :]))
        if act != "conflict":
            return Step(path, act, records, size)
        beside = merge.conflict_path(path, mine)
        known = self._target.tree.versions([beside]).get(beside) == mine
        if known:
            self._equal[path] = self._sent(path, mine)
        return Step(path, act, 0 if known else records, 0 if known else size, beside, known)

    def _is_accepted(self, step: Step) -> bool:
        """Return whether the target accepts a document; what it refuses is reported."""
        if step.act not in _MOVES or step.known:
            return True
        try:
            data = self._source.tree.read(step.path).data
            before = self._target.tree.read(step.path).data if step.act in ("changed", "merged") else None
            self._screened(step.beside or step.path, data, before)
        except (Invalid, OverBudget) as error:
            self._refused.append(Problem(step.path, str(error)))
            return False
        except NotFound:  # removed since it was listed; the transfer checks again
            pass
        return True

    def _screened(self, path: str, data: bytes, before: bytes | None) -> bytes:
        """Return a document as the target may store it, or refuse it."""
        place, limit = self._target.layout.classify(path), self._target.settings.limits.document_bytes
        value, shown = values.is_ref(path, self._target.layout.memory), data
        if value:
            with contextlib.suppress(Locked, Damaged):  # it was checked when it was written
                shown = values.unpack(data, path, limit)
        made = self._target.secrets.document(place.kind if place else None, shown, before)
        if made != shown and (value or path.rpartition("/")[2].startswith(version_of(data))):
            raise Invalid("It has what looks like a secret, and its name is made of its content.", "Forget it.")
        made = data if made == shown else made
        if place and len(made) > limit:
            raise OverBudget(f"It has {len(made):,} bytes; the limit there is {limit:,}.", "Split it.")
        return made

    # transferring

    def move(self, progress: Progress | None = None) -> Moved:
        """Do what was planned; what changed meanwhile is left for the next time, and reported."""
        total, done = sum(step.records for step in self._steps) + sum(share.lines for share in self._shares), 0

        def moved(records: int) -> None:
            nonlocal done
            done += records
            if progress:
                progress(done, max(total, done))

        self._agreements.note(self._equal)
        wanted = {step.path for step in self._steps if step.act in _MOVES}
        for entry in write_log.entries(self._source.tree, self._source.layout.memory):
            path, writer = str(entry.get("path")), entry.get("writer")
            if path in wanted and isinstance(writer, str):
                self._writers.setdefault(path, {})[str(entry.get("record") or path)] = writer
        new = (step for step in self._steps if step.act == "new")
        for batch in merge.batches(new, lambda step: step.bytes, _MUCH, _MANY):
            self._create_new(batch)
            moved(sum(step.records for step in batch))
        for step in self._steps:
            if step.act in ("changed", "merged", "conflict") and not step.known:
                try:
                    self._update(step)
                except (Conflict, AlreadyExists, NotFound):
                    self._refused.append(_changed_meanwhile(step.path))
                except (Invalid, OverBudget) as error:
                    self._refused.append(Problem(step.path, str(error)))
                moved(step.records)
        for share in sorted(self._shares, key=lambda share: share.path.startswith(self._writes)):
            if share.lines:
                self._logs.copy(share.path, self._wanted(share.path), moved)
        return self._report(done=True)

    def _create_new(self, batch: list[Step]) -> None:
        data: dict[str, bytes] = {}
        for step in batch:
            try:
                data[step.path] = self._source.tree.read(step.path).data
            except NotFound:
                self._refused.append(Problem(step.path, "was removed while it was to be moved"))
        created = self._create(data, self._writers, logged=not self._scope)
        refused = {problem.path for problem in self._refused}
        late = [path for path in data if path not in created and path not in refused]
        there = self._target.tree.versions(late) if late else {}
        for path in late:
            if there.get(path) == version_of(data[path]):
                created[path] = there[path]
            else:
                self._refused.append(_changed_meanwhile(path))
        self._agreements.note({path: Pair(version_of(data[path]), version) for path, version in created.items()})

    def _create(
        self, documents: Mapping[str, bytes], writers: Mapping[str, Mapping[str, str]], *, logged: bool
    ) -> dict[str, str]:
        """Create documents in the target; return the versions of those that were created, and report refused ones.

        With `logged` the entries of the source's write log are transferred as well; otherwise entries are added that
        name the original writers, and who transferred the documents.
        """
        screened: dict[str, bytes] = {}
        for path, data in documents.items():
            try:
                screened[path] = self._screened(path, data, None)
            except (Invalid, OverBudget) as error:
                self._refused.append(Problem(path, str(error)))

        def create(files: Mapping[str, bytes]) -> set[str]:
            try:
                return self._target.tree.create_all(files)
            except Invalid as error:  # about one of them
                if len(files) > 1:
                    return {made for path, data in files.items() for made in create({path: data})}
                self._refused.extend(Problem(path, str(error)) for path in files)
                return set()

        created = {path: version_of(screened[path]) for path in create(screened)}
        store, layout, by_writer = self._target.store, self._target.layout, dict[str, list[dict[str, str]]]()
        for path, version in () if logged else created.items():
            if not path.startswith((self._writes, f"{layout.memory}/values/")):
                entry = {"path": path, "after": version} | ({"carried": store.writer} if store.writer else {})
                for record, writer in ({path: store.writer} | dict(writers.get(path, {}))).items():
                    by_writer.setdefault(writer, []).append(entry if record == path else entry | {"record": record})
        log = layout.path_for(KINDS["write"], Scope(), month=utc_now()[:7])
        for writer, entries in by_writer.items():
            with contextlib.suppress(HoldfastError), store.written_by(writer):  # the documents are there all the same
                store.append(log, entries, durable=False)
        return created

    def _update(self, step: Step) -> None:
        """Replace a document, merge its entries into the page that is there, or store ours beside theirs."""
        ours = self._source.tree.read(step.path)
        if step.act == "changed":
            version = self._replace(step.path, ours.data, self._agreed[step.path].target)
            self._agreements.note({step.path: Pair(ours.version, version)})
            return
        theirs = self._target.tree.read(step.path)
        merged = None
        if step.act == "merged":
            forgotten = self._forgotten.sections_of(step.path)
            merged = merge.merge_pages(ours.data, theirs.data, ours.version, forgotten)
        if merged is None:
            path = step.beside or merge.conflict_path(step.path, ours.version)
            writer = self._writers.get(step.path, {}).get(step.path, "")
            self._create({path: ours.data}, {path: {path: writer} if writer else {}}, logged=False)
            if not step.beside:  # a page whose entries could not be merged
                self._late.append(msgspec.structs.replace(step, act="conflict", beside=path))
            if any(problem.path == path for problem in self._refused):
                return
        elif merged != theirs.data:
            self._replace(step.path, merged, theirs.version)
        self._agreements.note({step.path: self._sent(step.path, ours.version)})

    def _replace(self, path: str, data: bytes, expect: str) -> str:
        """Replace a document of the target in the name of its writer; return the new version."""

        def make(current: bytes | None) -> Made:
            made = self._screened(path, data, current)
            return Made(made, path, version_of(made))

        note = {} if self._scope else {"moved": True}  # the entry of the write is transferred as well
        with self._target.store.written_by(self._writers.get(path, {}).get(path, "")):
            return self._target.store.update(path, make, expect=expect, note=note).version

    def _sent(self, path: str, version: str) -> Pair:
        """Return the pair after the target got a version of ours; we have no more of theirs than before."""
        return Pair(version, self._agreed[path].target if path in self._agreed else "")

    def _report(self, *, done: bool) -> Moved:
        counts: dict[str, Tally] = {}
        stay = {problem.path for problem in self._refused}
        for step in self._steps:
            if step.act not in _MOVES or stay.isdisjoint((step.path, step.beside)):
                counts.setdefault(step.act, Tally()).add(step.records, step.bytes)
        for share in self._shares:
            if share.lines:
                counts.setdefault("new", Tally()).add(share.lines, share.bytes)
            if share.known:
                counts.setdefault("same", Tally()).add(share.known)
        conflicts = [*(step for step in self._steps if step.act == "conflict"), *self._late]
        return Moved(
            source=self._source.root, target=self._target.root, scope=self._scope, done=done, counts=counts,
            conflicts=conflicts, refused=list(dict.fromkeys([*self._refused, *self._logs.refused])), left=list(_LEFT),
        )  # fmt: skip


def _all(data: bytes, wanted: Callable[[dict[str, Any]], bool]) -> bool:
    objects = jsonl.parse(data)
    return isinstance(objects, list) and bool(objects) and all(map(wanted, objects))


def _changed_meanwhile(path: str) -> Problem:
    return Problem(path, "was changed by others while it was to be moved; move again")
