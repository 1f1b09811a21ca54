"""From one memory to another, whatever engines they stand on: what would move, and moving it.

Documents go from version to version, logs line by line. Nothing is replaced that changed since both sides agreed
(`agreeing`, `reconciling`), nothing is removed, and all can be done again: what is there is not moved twice. Documents
come first, then the logs that refer to them, then the account of writes. Settings, what is derived, the notes of live
runs and what is remembered of other moves stay where they are. With a scope, only what belongs to that workspace moves.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import AlreadyExists, Conflict, Invalid, NotFound, OverBudget, Unavailable
from holdfast.formats import jsonl, markdown, sections
from holdfast.model.records import Problem, version_of
from holdfast.owner import agreeing, backing, reconciling
from holdfast.owner.agreeing import Agreements, Pair
from holdfast.owner.carrying import Carrier, Share, Wanted
from holdfast.owner.reconciling import Act
from holdfast.storage.receiving import Arriving
from holdfast.storage.refresh import Progress
from holdfast.storage.tree import RootGone, Stamp, Vault

_MANY, _MUCH = 200, 4 << 20
"""So many documents, or bytes of them, are written together."""
_SHARED = ("fact", "procedure", "episode", "summary", "entry")
"""Kinds of lines that belong to a workspace by a field of theirs, and move with it. Chat, jobs and traces do not."""
MOVES: tuple[Act, ...] = ("new", "changed", "merged", "conflict")


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One document of a plan, or the lines of a log that are new there."""

    path: str
    act: Act
    records: int = 0
    bytes: int = 0
    beside: str = ""
    """Where ours is put when theirs stays."""
    known: bool = False
    """Was it put there before?"""


class Tally(msgspec.Struct, omit_defaults=True):
    files: int = 0
    records: int = 0
    bytes: int = 0


class Moved(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What would move or has moved, from where to where."""

    source: str
    target: str
    scope: str = ""
    done: bool = False
    counts: dict[str, Tally] = {}
    """By what becomes of it: new, changed, merged, conflict, same, newer, gone, forgotten."""
    conflicts: list[Step] = []
    """Documents of which both versions are kept now, and where ours is."""
    refused: list[Problem] = []
    """What was left out, and why; all else moved."""
    left: list[str] = []
    """What a move leaves alone."""

    @property
    def records(self) -> int:
        return sum(self.counts[act].records for act in MOVES if act in self.counts)

    @property
    def nothing(self) -> bool:
        """Is there nothing to write?"""
        return not any(self.counts[act].files for act in MOVES if act in self.counts)


class Mover:
    """Moves what one memory has to another. `here` is the one at hand, which remembers what was moved."""

    def __init__(self, here: Core, there: Core, *, push: bool, scope: str = "") -> None:
        _check_apart(here, there)
        self._here, self._there, self._push = here, there, push
        self._source, self._target = (here, there) if push else (there, here)
        self._scope = self._source.scopes.resolve(scope).path if scope else ""
        self._agreements = Agreements(here, there.root)
        self._refused: list[Problem] = []
        self._steps: list[Step] = []
        self._shares: list[Share] = []
        self._versions: dict[str, str] = {}
        self._late: list[Step] = []
        self._fresh: dict[str, Pair] = {}
        """What both sides have already, and nobody has noted yet."""

    # what would move

    def plan(self, progress: Progress | None = None) -> Moved:
        """Look at both sides and say what would move; nothing is written."""
        ours, theirs = self._files(self._source, self._refused), self._files(self._target, [])
        self._carrier = Carrier(self._source, self._target, ours, theirs)
        paths = [path for path in ours if path.endswith(".jsonl")]
        self._shares = [share for path in paths if (share := self._share(path)) is not None]
        referred = self._referred() if self._scope else set()
        documents = [path for path in ours if not path.endswith(".jsonl") and self._is_in(path, referred)]
        steps = self._without_copies(list(self._decided(documents, ours, progress)))
        self._steps = [step for step in steps if self._may_move(step)]
        return self._told(done=False)

    def _files(self, memory: Core, left_out: list[Problem]) -> dict[str, Stamp]:
        moves = f"{memory.places.memory}/{agreeing.FOLDER}/"
        found = backing.every_file(memory.vault, memory.settings.paths, left_out)
        return {path: stamp for path, stamp in found.items() if not path.startswith(moves)}

    def _is_in(self, path: str, referred: set[str]) -> bool:
        if not self._scope:
            return True
        places = self._source.places
        tops = (f"{places.workspaces}/{self._scope}/", f"{places.memory}/workspaces/{self._scope}/")
        return path.startswith(tops) or path in referred

    def _wanted(self, path: str) -> Wanted | None:
        """Return what says which lines of a log move, None when all do."""
        if not self._scope:
            return _own if path.startswith(f"{self._source.places.memory}/writes/") else None
        return None if self._is_in(path, set()) else self._belongs(path)

    def _share(self, path: str) -> Share | None:
        if self._scope and not self._is_in(path, set()):
            place = self._source.places.classify(path)
            if place is None or place.kind.name not in _SHARED:
                return None
        try:
            return self._carrier.look(path, self._wanted(path))
        except RootGone:
            raise
        except Unavailable as error:
            self._refused.append(Problem(path, error.message))
            return None

    @functools.cache  # noqa: B019  # a mover lives as long as its move
    def _belongs(self, path: str) -> Wanted:
        """Return what says whether a line of a log belongs to the scope, or hides something that does."""
        place = self._source.places.classify(path)
        key = place.kind.key if place else ""
        targets: set[str] = set()

        def inside(value: dict[str, Any]) -> bool:
            return f"{value.get('workspace')}/".startswith(f"{self._scope}/")

        for value in _objects(self._source.vault, path):
            if inside(value):
                targets |= {str(value.get("id")), str(value.get(key))} if key else {str(value.get("id"))}
        return lambda value: inside(value) or value.get("hide") in targets

    def _referred(self) -> set[str]:
        """Return the files that lines of the scope keep their text in."""
        found: set[str] = set()
        for share in self._shares:
            if not self._is_in(share.path, set()):
                values = filter(self._belongs(share.path), _objects(self._source.vault, share.path))
                found |= {str(value["ref"]) for value in values if "ref" in value}
        return found

    def _decided(self, paths: list[str], ours: Mapping[str, Stamp], progress: Progress | None) -> Iterator[Step]:
        agreed = self._agreements.read()
        self._agreed = agreed if self._push else {path: pair.turned for path, pair in agreed.items()}
        self._gone = _forgotten(self._target)
        self._buried = self._texts_of(self._gone.ids)
        for start in range(0, len(paths), _MANY):
            part = paths[start : start + _MANY]
            mine, theirs = self._read_versions(part), self._target.vault.versions(part)
            self._versions |= mine
            for path in part:
                if path in mine:
                    yield self._step(path, mine[path], theirs.get(path), ours[path].size)
            if progress:
                progress(start + len(part), len(paths))

    def _read_versions(self, paths: list[str]) -> dict[str, str]:
        """Return the versions of our documents; one that cannot be read is told, and the rest goes on."""
        try:
            return self._source.vault.versions(paths)
        except RootGone:
            raise
        except Unavailable as error:
            if len(paths) == 1:
                self._refused.append(Problem(paths[0], error.message))
                return {}
        return {path: version for each in paths for path, version in self._read_versions([each]).items()}

    def _step(self, path: str, mine: str, theirs: str | None, size: int) -> Step:
        place, agreed = self._source.places.classify(path), self._agreed.get(path)
        entries = place is not None and place.kind.shape == "section"
        act = reconciling.decide(mine, theirs, agreed, entries=entries)
        if act == "new" and self._is_forgotten(path, mine):
            act = "forgotten"
        if theirs == mine and agreed != Pair(mine, mine):
            self._fresh[path] = Pair(mine, mine)
        records = 0 if place is None else 1
        if entries and act in ("new", "changed", "merged"):
            records = len(_sections(self._source.vault.read(path).data))
        if act != "conflict":
            return Step(path, act, records, size)
        other = reconciling.beside(path, mine)
        known = self._target.vault.versions([other]).get(other) == mine
        if known:
            self._fresh[path] = self._sent(path, mine)
        return Step(path, act, 0 if known else records, 0 if known else size, other, known)

    def _is_forgotten(self, path: str, version: str) -> bool:
        """Was this forgotten there, in this version or in another, or the document that it was put beside?"""
        if version in self._gone.versions or path in self._buried:
            return True
        named = reconciling.put_beside(path)
        return path in self._gone.paths or (named is not None and named[0] in self._gone.paths)

    def _without_copies(self, steps: list[Step]) -> list[Step]:
        """Leave alone a version that was put beside another one, where it is the text of the document itself."""
        stays = {step.path for step in steps if step.act != "changed"}
        found = {
            step.path: named for step in steps if step.act == "new" and (named := reconciling.put_beside(step.path))
        }
        there = self._target.vault.versions([path for path, _ in found.values()]) if found else {}
        return [
            msgspec.structs.replace(step, act="same")
            if step.path in found
            and found[step.path][0] in stays
            and there.get(found[step.path][0], "").startswith(found[step.path][1])
            else step
            for step in steps
        ]

    def _may_move(self, step: Step) -> bool:
        """Say whether the other side takes a document; what it refuses is told, and stays."""
        if step.act not in MOVES or step.known:
            return True
        try:
            ours = Arriving(step.beside or step.path, self._source.vault.read(step.path).data)
            there = self._target.vault.read(step.path).data if step.act in ("changed", "merged") else None
            self._target.receiver.check(ours, there)
        except (Invalid, OverBudget) as error:
            self._refused.append(Problem(step.path, str(error)))
            return False
        except NotFound:  # removed since it was listed; the move looks again
            return True
        return True

    def _texts_of(self, ids: set[str]) -> set[str]:
        """Return the files in which lines of these ids keep their text."""
        if not ids:
            return set()
        values = (value for share in self._shares for value in _objects(self._source.vault, share.path))
        return {str(value["ref"]) for value in values if "ref" in value and value.get("id") in ids}

    # moving it

    def move(self, progress: Progress | None = None) -> Moved:
        """Do what was planned; what others changed meanwhile is left for the next time, and told."""
        total, done = sum(step.records for step in self._steps) + sum(share.lines for share in self._shares), 0

        def moved(records: int) -> None:
            nonlocal done
            done += records
            if progress:
                progress(done, max(total, done))

        self._note(self._fresh)
        writers = self._writers({step.path for step in self._steps if step.act in MOVES})
        for batch in _batches(step for step in self._steps if step.act == "new"):
            self._new(batch, writers)
            moved(sum(step.records for step in batch))
        for step in self._steps:
            if step.act in ("changed", "merged", "conflict") and not step.known:
                self._one(step, writers)
                moved(step.records)
        account = f"{self._source.places.memory}/writes/"
        for share in sorted(self._shares, key=lambda share: share.path.startswith(account)):
            if share.lines:
                self._carrier.carry(share, moved, self._wanted(share.path))
        return self._told(done=True)

    def _new(self, batch: list[Step], writers: Mapping[str, Mapping[str, str]]) -> None:
        arriving = []
        for step in batch:
            try:
                document = self._source.vault.read(step.path)
                arriving.append(
                    Arriving(step.path, document.data, writers.get(step.path, {}), accounted=bool(self._scope))
                )
            except NotFound:
                self._refused.append(Problem(step.path, "was removed while it was to be moved"))
        done = self._target.receiver.documents(arriving)
        self._refused += done.refused
        sent = {one.path: version_of(one.data) for one in arriving}
        told = {problem.path for problem in done.refused}
        late = [path for path in sent if path not in done.versions and path not in told]
        there = self._target.vault.versions(late) if late else {}
        for path in late:
            if there.get(path) == sent[path]:
                done.versions[path] = sent[path]
            else:
                self._refused.append(_meanwhile(path))
        self._note({path: Pair(sent[path], version) for path, version in done.versions.items()})

    def _one(self, step: Step, writers: Mapping[str, Mapping[str, str]]) -> None:
        """Change a document that is there, put entries together, or put ours beside theirs."""
        try:
            ours = self._source.vault.read(step.path)
            if step.act == "changed":
                self._replace(step.path, ours.data, self._agreed[step.path].there, writers)
                return
            theirs = self._target.vault.read(step.path)
            made = None
            if step.act == "merged":
                made = reconciling.together(ours.data, theirs.data, ours.version, self._cut(step.path))
            if made == theirs.data:
                self._note({step.path: self._sent(step.path, ours.version)})
            elif made is not None:
                self._replace(step.path, made, theirs.version, writers, ours.version)
            else:
                self._beside(step, ours.data, writers)
        except (Conflict, AlreadyExists, NotFound):
            self._refused.append(_meanwhile(step.path))
        except (Invalid, OverBudget) as error:
            self._refused.append(Problem(step.path, str(error)))

    def _cut(self, path: str) -> set[str]:
        """Return the entries of a page that were forgotten on the other side."""
        return {each.removeprefix(f"{path}#") for each in self._gone.ids if each.startswith(f"{path}#")}

    def _replace(
        self, path: str, data: bytes, expect: str, writers: Mapping[str, Mapping[str, str]], ours: str = ""
    ) -> None:
        with self._target.written_by(writers.get(path, {}).get(path, "")):
            done = self._target.receive(path, data, expect, accounted=bool(self._scope))
        self._note({path: self._sent(path, ours) if ours else Pair(version_of(data), done.version)})

    def _sent(self, path: str, version: str) -> Pair:
        """Return that the target has a version of ours now, and we have no more of it than before."""
        return Pair(version, self._agreed[path].there if path in self._agreed else "")

    def _beside(self, step: Step, data: bytes, writers: Mapping[str, Mapping[str, str]]) -> None:
        path = step.beside or reconciling.beside(step.path, version_of(data))
        by = writers.get(step.path, {}).get(step.path, "")
        done = self._target.receiver.documents([Arriving(path, data, {path: by} if by else {})])
        self._refused += done.refused
        if not done.refused:
            self._note({step.path: self._sent(step.path, version_of(data))})
        if not step.beside:  # a page whose entries could not be put together
            self._late.append(msgspec.structs.replace(step, act="conflict", beside=path))

    def _note(self, agreed: Mapping[str, Pair]) -> None:
        """Note what the source and the target have now."""
        if agreed:
            self._agreements.note({path: pair if self._push else pair.turned for path, pair in agreed.items()})

    def _writers(self, paths: set[str]) -> dict[str, dict[str, str]]:
        """Return who wrote these documents and the entries in them, as the account of the source tells."""
        found: dict[str, dict[str, str]] = {}
        for value in _accounts(self._source):
            path, writer = str(value.get("path")), value.get("writer")
            if path in paths and isinstance(writer, str):
                found.setdefault(path, {})[str(value.get("record") or path)] = writer
        return found

    def _told(self, *, done: bool) -> Moved:
        counts: dict[str, Tally] = {}
        stay = {problem.path for problem in self._refused}
        for step in self._steps:
            if step.act in MOVES and not stay.isdisjoint((step.path, step.beside)):
                continue
            _add(counts.setdefault(step.act, Tally()), step.records, step.bytes)
        for share in self._shares:
            if share.lines:
                _add(counts.setdefault("new", Tally()), share.lines, share.bytes)
            if share.known:
                _add(counts.setdefault("same", Tally()), share.known, 0)
        return Moved(
            source=self._source.root, target=self._target.root, scope=self._scope, done=done, counts=counts,
            conflicts=[*(step for step in self._steps if step.act == "conflict"), *self._late],
            refused=list(dict.fromkeys([*self._refused, *self._carrier.left_out])), left=list(_LEFT),
        )  # fmt: skip


_LEFT = (
    "settings, the index and what runs note while they live stay where they are",
    "what was removed on one side is not removed on the other",
)


def _check_apart(here: Core, there: Core) -> None:
    if agreeing.place(here.root) == agreeing.place(there.root):
        raise Invalid(f"{here.root} is on both ends.", "Name another memory.")
    mine, theirs = here.settings.paths, there.settings.paths
    for name in mine.__struct_fields__:
        if getattr(mine, name) != getattr(theirs, name):
            raise Invalid(
                f"paths.{name} is {getattr(mine, name)!r} here, and {getattr(theirs, name)!r} in {there.root}.",
                f"Set it alike in both, in holdfast.toml or with HOLDFAST_PATHS_{name.upper()}.",
            )


def _own(value: dict[str, Any]) -> bool:
    """Does a line account for a write of this memory? What moved here is accounted for where it was written."""
    return not value.get("moved")


def _add(tally: Tally, records: int, size: int) -> None:
    tally.files += 1
    tally.records += records
    tally.bytes += size


def _meanwhile(path: str) -> Problem:
    return Problem(path, "was changed by others while it was to be moved; move again")


def _batches(steps: Iterable[Step]) -> Iterator[list[Step]]:
    batch: list[Step] = []
    for step in steps:
        if batch and (len(batch) >= _MANY or sum(one.bytes for one in batch) + step.bytes > _MUCH):
            yield batch
            batch = []
        batch.append(step)
    if batch:
        yield batch


def _objects(vault: Vault, path: str) -> Iterator[dict[str, Any]]:
    for line in vault.scan(path):
        objects = jsonl.parse(line.data)
        yield from objects if isinstance(objects, list) else ()


def _accounts(memory: Core) -> Iterator[dict[str, Any]]:
    """Yield all that a memory has noted of what was written, oldest first."""
    found = memory.vault.walk(f"{memory.places.memory}/writes", (".jsonl",), lambda _path, _why: None)
    return itertools.chain.from_iterable(_objects(memory.vault, path) for path in sorted(path for path, _ in found))


class _Forgotten(msgspec.Struct, frozen=True):
    """What was forgotten in a memory for good and does not come back: documents, their versions, ids of records."""

    paths: set[str]
    versions: set[str]
    ids: set[str]


def _forgotten(memory: Core) -> _Forgotten:
    lines = [value for value in _accounts(memory) if "path" in value or "forget" in value]
    paths = {str(value["path"]) for value in lines if value.get("forgotten") and "path" in value}
    named = (value for value in lines if value.get("path") in paths)
    versions = {str(value[end]) for value in named for end in ("before", "after") if value.get(end)}
    ids = {str(each) for value in lines if isinstance(value.get("forget"), list) for each in value["forget"]}
    return _Forgotten(paths, versions, ids)


def _sections(data: bytes) -> list[sections.Section]:
    text = data.decode("utf-8", "surrogateescape")
    return sections.parse(text[markdown.body_start(text) :])
