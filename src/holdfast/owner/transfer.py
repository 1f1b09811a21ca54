"""Push and pull: transfer records between two memories, whatever engines they use.

First `plan`, which compares both sides and writes nothing, then `move`. A document replaces only the version that it
was made from. Otherwise the entries of a dated page are merged, and of any other document both versions are kept, that
of the source under a name that marks a conflict. Later transfers copy both, so every memory gets the same pair.

Log entries are identified by their ids; each is added once and none is changed. Nothing is replaced that changed since
both sides agreed, nothing is removed, and a transfer can be repeated. Documents are written first, then the logs that
refer to them, then the write log. Settings, derived files, the notes of live runs and the agreements of other transfers
stay where they are. With a scope, only records of that workspace are transferred.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from holdfast.core import Core
from holdfast.errors import AlreadyExists, Conflict, Damaged, HoldfastError, Invalid, NotFound, OverBudget, Unavailable
from holdfast.formats import jsonl, pages
from holdfast.formats.encryption import Locked
from holdfast.model.names import check_text, short_hash
from holdfast.model.patterns import regex
from holdfast.model.records import Problem, version_of
from holdfast.owner import shared
from holdfast.owner.backup import ROOT_FILES, TRANSFERS, every_file, is_backup, restore
from holdfast.roots import on_disk, open_store
from holdfast.storage import write_log
from holdfast.storage.results import Progress
from holdfast.storage.store import Made
from holdfast.storage.tree import RootGone, changed, is_value, unpack_value

T = TypeVar("T")
Act = Literal["new", "changed", "merged", "conflict", "same", "newer", "gone", "forgotten"]
_MANY, _MUCH = 1_000, 1 << 20
"""How many documents or entries, or bytes of them, are written together."""
_SHARED = ("fact", "procedure", "episode", "summary", "entry")
"""Kinds of log entries that name their workspace and move with it. Chat, jobs and traces do not."""
_MOVES: tuple[Act, ...] = ("new", "changed", "merged", "conflict")
_LOGIN = regex(r"(?<=//)[^@/]*@")
_LEFT = (
    "settings, the index and the notes of live runs stay where they are",
    "what was removed on one side is not removed on the other",
)


class Pair(NamedTuple):
    """The last versions of a document that both sides know: the source's that the target has, and the reverse.

    A memory has a version when it has the same text, made its own from it, or stores it as a conflict beside it.
    """

    source: str
    target: str = ""


def decide(source: str, target: str | None, agreed: Pair | None, *, dated: bool = False) -> Act:
    """Return the change that a transfer makes to a document; `target` is None if the target lacks it."""
    if target is None:
        return "gone" if agreed and agreed.source == source else "new"
    if source == target:
        return "same"
    if agreed and agreed.source == source:
        return "same" if agreed.target == target else "newer"
    if agreed and agreed.target == target:
        return "changed"
    return "merged" if dated else "conflict"


class Planned(msgspec.Struct, frozen=True, omit_defaults=True):
    """The planned change of a document, or of entries of a log."""

    path: str
    act: Act
    records: int = 0
    bytes: int = 0
    beside: str = ""
    """Where the version of the source is stored in a conflict."""

    @property
    def log(self) -> bool:
        return self.path.endswith(".jsonl")


class Tally(msgspec.Struct, omit_defaults=True):
    files: int = 0
    records: int = 0
    bytes: int = 0


class Moved(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A planned or finished transfer between two memories."""

    source: str
    target: str
    scope: str = ""
    done: bool = False
    counts: dict[str, Tally] = {}
    """By the kind of change: new, changed, merged, conflict, same, newer, gone, forgotten."""
    conflicts: list[Planned] = []
    """Documents of which both versions are stored now, and the place of that of the source."""
    refused: list[Problem] = []
    """Records that were not transferred, with the reasons."""
    left: list[str] = []
    """Notes on the data that no transfer changes."""

    @property
    def records(self) -> int:
        return sum(self.counts[act].records for act in _MOVES if act in self.counts)

    @property
    def nothing(self) -> bool:
        return not any(act in self.counts for act in _MOVES)


@contextlib.contextmanager
def opened(memory: Core, other: str, scope: str, *, push: bool) -> Iterator[Mover]:
    """Open another memory for a transfer, or a backup of one; without an address, the shared one of the settings."""
    check_text(other, scope)
    with contextlib.ExitStack() as stack:
        try:
            address, past = shared.address(memory, other), ""
            if not push and is_backup(address):
                past, folder = os.path.realpath(on_disk(address)), stack.enter_context(tempfile.TemporaryDirectory())
                address = restore(address, f"{folder}/memory").path
            there = Core(open_store(address, writer=memory.store.writer))
        except HoldfastError as error:
            raise error if other else shared.as_written(error, memory) from None
        yield Mover(memory, stack.enter_context(there), push=push, scope=scope, past=past)


class Mover:
    """Transfers records from one memory to another; `here` records the versions that both sides have.

    `past` is the path of a backup that was opened as `there`: what `here` had changed since then is newer.
    """

    def __init__(self, here: Core, there: Core, *, push: bool, scope: str = "", past: str = "") -> None:
        self._past, other = past, past or there.root
        self._notes, self._other = here.store, _LOGIN.sub("", other)
        if self._other == _LOGIN.sub("", here.root):
            raise Invalid(f"Source and target are the same memory: {here.root}.", "Name another one.")
        self._step = 1 if push else -1  # on disk, a pair is [here, there]
        self._log = f"{here.layout.memory}/{TRANSFERS}/{short_hash(self._other)}.jsonl"
        for name in here.settings.paths.__struct_fields__:
            one, another = getattr(here.settings.paths, name), getattr(there.settings.paths, name)
            if one != another:
                advice = f"Set it to the same value in both, in holdfast.toml or with HOLDFAST_PATHS_{name.upper()}."
                raise Invalid(f"paths.{name} is {one!r} here, and {another!r} in {other}.", advice)
        self._roots = (here.root, other) if push else (other, here.root)
        self._source, self._target = (here, there) if push else (there, here)
        self._scope = self._source.scopes.resolve(scope).path if scope else ""
        self._memory = here.layout.memory
        self._tops = (f"{here.layout.workspaces}/{self._scope}/", f"{self._memory}/workspaces/{self._scope}/")
        self._steps: list[Planned] = []
        self._refused: dict[Problem, None] = {}
        self._writers: dict[str, dict[str, str]] = {}
        """Writers of documents and sections, by path and id."""
        self._equal: dict[str, Pair] = {}
        """Records that both sides have, to be recorded as such."""

    def plan(self, progress: Progress | None = None) -> Moved:
        """Compare both sides and return the planned transfer; nothing is written."""
        left_out: list[Problem] = []
        files = every_file(self._source, left_out)
        self._refused |= dict.fromkeys(left_out)
        stay = (*ROOT_FILES, f"{self._memory}/{TRANSFERS}/")
        files = {path: one for path, one in files.items() if not path.startswith(stay)}
        logs = [path for path in files if path.endswith(".jsonl")]
        logs = [path for path in logs if self._in_scope(path) or self._kind(path) in _SHARED]
        for path in logs:
            with self._reported(path, reading=True):
                sizes = [len(line) + 1 if line else 0 for line in self._lines(path)]
                new, same = [size for size in sizes if size], sizes.count(0)
                self._steps += [Planned(path, "new", len(new), sum(new))] if new else []
                self._steps += [Planned(path, "same", same)] if same else []
        self._agreed: dict[str, Pair] = {}
        for entry in write_log.objects(self._notes.tree.scan(self._log)) if self._notes.exists(self._log) else ():
            agreed = entry.get("agreed")
            for path, pair in agreed.items() if isinstance(agreed, dict) else ():
                if isinstance(pair, list) and len(pair) == 2:
                    self._agreed[path] = Pair(*map(str, pair[:: self._step]))
        self._forgotten = Tombstones(self._target, self._source, logs)
        shared_logs = [path for path in logs if not self._in_scope(path)]
        found = (one for path in shared_logs for one in write_log.objects(self._source.tree.scan(path), '"ref"'))
        refs = {str(entry["ref"]) for entry in found if "ref" in entry and self._names_scope(entry)}
        documents = [path for path in files if not path.endswith(".jsonl") and (self._in_scope(path) or path in refs)]
        self._plan_documents({path: files[path].size for path in documents}, progress)
        return self._report(done=False)

    def _plan_documents(self, sizes: Mapping[str, int], progress: Progress | None) -> None:
        documents, writes = list(sizes), f"{self._memory}/writes/"
        current: set[str] = set()
        """Where a copy of the current text of a document is kept; the other side has it with the document."""
        for start in range(0, len(documents), _MANY):
            part = documents[start : start + _MANY]
            target, source = self._target.tree.versions(part), dict[str, str]()
            try:
                source = self._source.tree.versions(part)
            except Unavailable:  # about one of them
                for path in part:
                    with self._reported(path, reading=True):
                        source |= self._source.tree.versions([path])
            both = [*source.items(), *target.items()]
            current |= {f"{writes}kept/{version}" for path, version in both if not path.startswith(writes)}
            for path, version in source.items():
                with self._reported(path):
                    self._steps.append(self._planned(path, version, target.get(path), sizes[path]))
            if progress:
                progress(start + len(part), len(documents))
        self._steps = [step for step in self._steps if step.act != "new" or step.path not in current]

    def move(self, progress: Progress | None = None) -> Moved:
        """Carry out the plan; records that changed meanwhile are reported and left for the next transfer."""
        steps = [step for step in self._steps if step.act in _MOVES]
        total, done = sum(step.records for step in steps), 0

        def moved(records: int) -> None:
            nonlocal done
            done += records
            if progress:
                progress(done, max(total, done))

        self._note(self._equal)
        wanted = {step.path for step in steps}
        for entry in write_log.entries(self._source.tree, self._memory):
            path, writer = str(entry.get("path")), entry.get("writer")
            if path in wanted and isinstance(writer, str):
                self._writers.setdefault(path, {})[str(entry.get("record") or path)] = writer
        added = (step for step in steps if step.act in ("new", "conflict") and not step.log)
        for batch in _batches(added, lambda step: step.bytes):
            self._create({step.beside or step.path: step for step in batch})
            moved(sum(step.records for step in batch))
        for step in steps:
            if step.act in ("changed", "merged"):
                with self._reported(step.path):
                    self._replace(step)
                moved(step.records)
        for step in sorted(steps, key=lambda step: step.path.startswith(f"{self._memory}/writes/")):
            if step.log:
                self._copy(step.path, moved)
        return self._report(done=True)

    def _report(self, *, done: bool) -> Moved:
        counts: dict[str, Tally] = {}
        stay = {problem.path for problem in self._refused}
        for step in self._steps:
            if step.log or step.act not in _MOVES or step.path not in stay:
                tally = counts.setdefault(step.act, Tally())
                tally.files, tally.records = tally.files + 1, tally.records + step.records
                tally.bytes += step.bytes
        return Moved(
            source=self._roots[0], target=self._roots[1], scope=self._scope, done=done, counts=counts,
            conflicts=[step for step in self._steps if step.act == "conflict"], refused=list(self._refused),
            left=list(_LEFT),
        )  # fmt: skip

    @contextlib.contextmanager
    def _reported(self, path: str, *, reading: bool = False) -> Iterator[None]:
        """Report a record that cannot be transferred, and go on with the rest."""
        try:
            yield
        except (Invalid, OverBudget) as error:
            self._refused[Problem(path, str(error))] = None
        except (Conflict, AlreadyExists, NotFound):
            self._refused[Problem(path, "was changed by others meanwhile; repeat the transfer")] = None
        except Unavailable as error:
            if not reading or isinstance(error, RootGone):
                raise
            self._refused[Problem(path, error.message)] = None

    # the versions that two memories share, recorded in this memory; never transferred

    def _note(self, agreed: Mapping[str, Pair]) -> None:
        """Record durably the versions that both sides have now."""
        pairs = ((path, list(pair[:: self._step])) for path, pair in agreed.items())
        for part in _batches(pairs, lambda pair: len(pair[0]) + 100):
            self._notes.append(self._log, [{"with": self._other, "agreed": dict(part)}])

    # what belongs to the scope

    def _in_scope(self, path: str) -> bool:
        return not self._scope or path.startswith(self._tops)

    def _kind(self, path: str) -> str:
        place = self._source.layout.classify(path)
        return place.kind.name if place else ""

    def _names_scope(self, entry: Mapping[str, Any]) -> bool:
        return f"{entry.get('workspace')}/".startswith(f"{self._scope}/")

    def _wanted(self, path: str) -> Callable[[bytes], bool] | None:
        """Return which lines of a log are transferred, None for all."""
        if not self._scope and path.startswith(f"{self._memory}/writes/"):  # writes of other memories come from these
            return lambda data: _all(data, lambda entry: not entry.get("moved"))
        if self._in_scope(path):
            return None
        place = self._source.layout.classify(path)
        names = ("id", place.kind.key) if place and place.kind.key else ("id",)
        found = [one for one in write_log.objects(self._source.tree.scan(path)) if self._names_scope(one)]
        targets = {str(entry.get(name)) for entry in found for name in names}
        return lambda data: _all(data, lambda entry: self._names_scope(entry) or entry.get("hide") in targets)

    # documents

    def _planned(self, path: str, source: str, target: str | None, size: int) -> Planned:
        """Return the planned change of a document; Invalid or OverBudget when the target may not store it."""
        place, agreed, beside = self._source.layout.classify(path), self._agreed.get(path), ""
        dated, records = place is not None and place.kind.shape == "section", int(place is not None)
        act = decide(source, target, agreed, dated=dated)
        if act == "new" and self._forgotten.has(path, source):
            act = "forgotten"
        elif self._past and act in ("merged", "conflict") and self._forgotten.had(path, source):
            act = "newer"
        if target == source and agreed != Pair(source, source):
            self._equal[path] = Pair(source, source)
        if act in _MOVES:
            data = self._source.tree.read(path).data
            before = self._target.tree.read(path).data if target else None
            if act == "merged" and before is not None and self._merged(path, data, before) is None:
                act = "conflict"
            if act == "conflict":
                beside, before = pages.conflict_path(path, source), None
            elif dated:
                records = len(pages.entries(data))
            self._screened(beside or path, data, before)
        return Planned(path, act, records, size, beside)

    def _merged(self, path: str, source: bytes, target: bytes) -> bytes | None:
        return pages.merge(source, target, version_of(source), self._forgotten.sections_of(path))

    def _screened(self, path: str, data: bytes, before: bytes | None) -> bytes:
        """Return a document as the target may store it, or refuse it."""
        place, limit = self._target.layout.classify(path), self._target.settings.limits.document_bytes
        value, shown = is_value(path, self._memory), data
        if value:
            with contextlib.suppress(Locked, Damaged):  # it was checked when it was written
                shown = unpack_value(data, path, limit)
        made = self._target.secrets.document(place.kind if place else None, shown, before)
        if made != shown and (value or path.rpartition("/")[2].startswith(version_of(data))):
            fault = "It seems to contain a secret, which cannot be redacted: its file name is a hash of its content."
            raise Invalid(fault, "Erase it with: holdfast forget ID")
        made = data if made == shown else made
        if place and len(made) > limit:
            raise OverBudget(f"It has {len(made):,} bytes; the limit there is {limit:,}.", "Split it.")
        return made

    def _create(self, steps: Mapping[str, Planned]) -> None:
        """Create documents under these paths of the target: new ones, and conflicts beside what is there."""
        documents, sent = dict[str, bytes](), dict[str, str]()
        for path, step in steps.items():
            with self._reported(step.path):
                data = self._source.tree.read(step.path).data
                documents[path], sent[path] = self._screened(path, data, None), version_of(data)
        try:
            created = self._target.tree.create_all(documents)
        except Invalid:  # about one of them
            created, given, documents = set(), documents, {}
            for path, data in given.items():
                with self._reported(steps[path].path):
                    created |= self._target.tree.create_all({path: data})
                    documents[path] = data
        made = {path: version_of(data) for path, data in documents.items()}
        late = self._target.tree.versions([path for path in documents if path not in created])
        agreed: dict[str, Pair] = {}
        for path, version in made.items():
            step = steps[path]
            with self._reported(step.path):
                if path not in created and late.get(path) != version:
                    raise changed(path, version)
                agreed[step.path] = self._sent(step.path, sent[path]) if step.beside else Pair(sent[path], version)
        self._note_writers({path: made[path] for path in created}, steps)
        self._note(agreed)

    def _note_writers(self, created: Mapping[str, str], steps: Mapping[str, Planned]) -> None:
        """Add entries to the write log that name the original writers, and who transferred the documents.

        Without a scope, the write log of the source has them; conflicts are under names that it does not know.
        """
        store, by_writer = self._target.store, dict[str, list[dict[str, str]]]()
        for path, version in created.items():
            step = steps[path]
            if is_value(path, self._memory) or not (self._scope or step.beside):
                continue
            entry = {"path": path, "after": version} | ({"carried": store.writer} if store.writer else {})
            for record, writer in ({step.path: store.writer} | self._writers.get(step.path, {})).items():
                if record == step.path:
                    by_writer.setdefault(writer, []).append(entry)
                elif not step.beside:
                    by_writer.setdefault(writer, []).append(entry | {"record": record})
        for writer, entries in by_writer.items():
            with (
                contextlib.suppress(HoldfastError),
                store.written_by(writer),
            ):  # the documents were transferred nevertheless
                store.append(store.write_log, entries, durable=False)

    def _replace(self, step: Planned) -> None:
        """Replace a document of the target, or merge its entries into the page that is there, as its writer."""
        path, source = step.path, self._source.tree.read(step.path)
        data, expect = source.data, self._agreed[path].target if step.act == "changed" else ""
        if step.act == "merged":
            target = self._target.tree.read(path)
            merged, expect = self._merged(path, source.data, target.data), target.version
            if merged is None:
                raise changed(path, expect)
            data = merged

        def make(current: bytes | None) -> Made:
            made = self._screened(path, data, current)
            return Made(made, path, version_of(made))

        note = {} if self._scope else {"moved": True}  # the entry of the write is transferred as well
        with self._target.store.written_by(self._writers.get(path, {}).get(path, "")):
            version = self._target.store.update(path, make, expect=expect, note=note).version
        pair = Pair(source.version, version) if step.act == "changed" else self._sent(path, source.version)
        self._note({path: pair})

    def _sent(self, path: str, version: str) -> Pair:
        """Return the pair after the target got a version of the source, which has no more of the target than before."""
        return Pair(version, self._agreed[path].target if path in self._agreed else "")

    # logs

    def _lines(self, path: str) -> Iterator[bytes | None]:
        """Yield the wanted lines of a log as they are written to the target, None for each that it has already.

        A line that is too long or refused is reported; one that is being written is left for the next time.
        """
        tree, secrets, wanted = self._target.tree, self._target.secrets, self._wanted(path)
        place, longest = self._source.layout.classify(path), self._target.settings.limits.line_bytes
        logs = [path]
        if self._kind(path) == "message":
            logs += [f"{self._memory}/history.jsonl", *self._target.store.paths(f"{self._memory}/history", ".jsonl")]
        known = {key for log in logs if tree.stat(log) for line in tree.scan(log) for key in jsonl.keys(line.data)}
        for line in self._source.tree.scan(path):
            data, keys = line.data, jsonl.keys(line.data)
            if line.cut:
                what = f"a line at byte {line.offset:,} is longer than lines may be"
                self._refused[Problem(path, what)] = None
            torn = not line.whole and isinstance(jsonl.parse(data), str)
            if line.cut or torn or not keys or (wanted and not wanted(data)):
                continue
            if known.issuperset(keys):
                yield None
                continue
            try:
                objects = jsonl.parse(data)
                if isinstance(objects, str):
                    data = secrets.document(None, data, None)
                else:
                    made = [secrets.line(place.kind if place else None, value, waits=False) for value in objects]
                    if any(one is not other for one, other in zip(made, objects, strict=True)):
                        data = b"".join(map(jsonl.render, made)).rstrip(b"\n").replace(b"\n", b" ")
                if len(data) >= longest:
                    raise Invalid(f"It has {len(data):,} bytes; the limit there is {longest:,}.", "Shorten it.")
            except HoldfastError as error:
                self._refused[Problem(path, f"{next(iter(keys), '')}: {error}")] = None
                continue
            redacted_before = data is not line.data and known.issuperset(jsonl.keys(data))
            yield None if redacted_before else data

    def _copy(self, path: str, progress: Callable[[int], None]) -> None:
        """Copy the wanted entries of a log that the target lacks, durably, some at a time."""
        log = path
        new = (line for line in self._lines(path) if line is not None)
        for number, piece in enumerate(_batches(new, len)):
            if not number and self._kind(path) == "message" and self._target.store.exists(path):
                # the chat history is read from its end: older messages get a log of their own
                last, objects = next(self._target.store.newest(path), None), jsonl.parse(piece[0])
                first = objects[0] if isinstance(objects, list) and objects else {}
                if last and jsonl.identity(first, "timestamp")[1] <= last.order:
                    log = f"{self._memory}/history/{short_hash(f'{path} {jsonl.keys(piece[0])}')}.jsonl"
            self._target.store.import_lines(log, piece)
            progress(len(piece))


class Tombstones:
    """Forgotten in the target, so not transferred: documents, their versions, entries, values."""

    def __init__(self, target: Core, source: Core, logs: list[str]) -> None:
        found = list(write_log.entries(target.tree, target.layout.memory))
        self._paths = {str(entry["path"]) for entry in found if entry.get("forgotten") and "path" in entry}
        self._had = {(entry.get("path"), entry[end]) for entry in found for end in ("before", "after") if end in entry}
        about = [entry for entry in found if entry.get("path") in self._paths]
        self._versions = {str(entry[end]) for entry in about for end in ("before", "after") if entry.get(end)}
        self._ids = {str(each) for one in found if isinstance(one.get("forget"), list) for each in one["forget"]}
        lines = (one for log in logs if self._ids for one in write_log.objects(source.tree.scan(log), '"ref"'))
        self._paths |= {str(entry["ref"]) for entry in lines if "ref" in entry and entry.get("id") in self._ids}

    def has(self, path: str, version: str) -> bool:
        """Return whether a document was forgotten, in this version or another, or the one that it conflicts with."""
        conflict = pages.conflict_of(path)
        return version in self._versions or path in self._paths or bool(conflict and conflict[0] in self._paths)

    def had(self, path: str, version: str) -> bool:
        """Return whether the target had this version of a document before."""
        return (path, version) in self._had

    def sections_of(self, path: str) -> set[str]:
        """Return the anchors of the forgotten sections of a page."""
        return {each.removeprefix(f"{path}#") for each in self._ids if each.startswith(f"{path}#")}


def _all(data: bytes, wanted: Callable[[dict[str, Any]], bool]) -> bool:
    objects = jsonl.parse(data)
    return isinstance(objects, list) and bool(objects) and all(map(wanted, objects))


def _batches(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield items in lists of at most so many items and bytes; an item that is larger comes alone."""
    batch, total = list[T](), 0
    for item in items:
        if batch and (len(batch) >= _MANY or total + size(item) > _MUCH):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size(item)
    if batch:
        yield batch
