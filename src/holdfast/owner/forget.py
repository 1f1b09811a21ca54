"""Removing the text itself: from its file, from all that Holdfast keeps of it, and from the index; then proving it.

A line becomes a tombstone that keeps its id, its time and its op_id, so that order, pairs and repeated calls stay what
they were; a section is cut out of its page; a document is removed. Before that, what repeats it goes: texts kept for
undo, traces, summaries, accounts, values. The record itself goes last, so that whoever was interrupted runs it again;
that it was begun is in the account of writes, which tells no text. Nothing else that somebody wrote is touched: where
the text also stands in another record, that is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.errors import Invalid, NotFound
from holdfast.formats import jsonl, markdown, sections
from holdfast.formats.search_terms import PART, Needles
from holdfast.model.kinds import KINDS, LEDGER, Kind
from holdfast.model.layout import Places
from holdfast.model.records import Problem, Record, text_of
from holdfast.model.times import utc_now
from holdfast.owner import leftovers
from holdfast.storage import accounts, guarding, parsing
from holdfast.storage.refresh import Progress
from holdfast.storage.tree import Line, Vault
from holdfast.storage.writing import Writer, kept

COPIES = frozenset({"trace", "claim", "write", "summary"})
"""Kinds that repeat what others wrote: their text is changed where it has the text that goes."""
_NEVER = frozenset({"write", "ledger", "claim"})
_DISTINCT = PART // 2
"""A title, key or field that is shorter may well stand elsewhere by itself, and is not looked for there."""
_NAMES = frozenset({"id", "path", "record", "forget"})
"""What the account of writes tells records apart by; it stays as it is."""
_KEPT = ("id", "op", "writer", "exchange", "role", "compartment")
_TECHNICAL = frozenset("op writer ref size head exchange role channel type by covers session workspace created".split())
_IN_A_LINE = 1_000
_RUNS = re.compile(r"/sessions/[^/]+/runs/")


class Changed(msgspec.Struct, frozen=True):
    """What was done in one file."""

    path: str
    what: str
    count: int = 1


class Forgotten(msgspec.Struct, frozen=True, omit_defaults=True):
    """What goes, or what went and what is left of it."""

    records: list[str]
    count: int
    """How many that are, all values of a key counted as one."""
    total: int
    """How many there are in all."""
    done: bool = False
    already: list[str] = []
    """What was forgotten before; only what was left undone then was done now."""
    changed: list[Changed] = []
    remains: list[Problem] = []
    """Where the bytes of the text, or of a part of it, still are."""
    speaking: list[str] = []
    """Summaries of entries that went: not their words, but perhaps what they come to."""
    out_of_reach: list[str] = []
    looked: bool = False
    """Was there a text to look for? What was forgotten before is not known any more."""
    named: list[str] = []
    """What is gone, but has a part of the text in its name, which stays in accounts and traces."""
    too_short: int = 0
    """Texts that are too short to be looked for elsewhere."""

    @property
    def needs_count(self) -> bool:
        return guarding.is_much(self.count, self.total)


class Forgetter:
    """Forgets records of one vault; `purge` makes index and vectors anew, in `place` the bytes are looked for."""

    def __init__(
        self, vault: Vault, places: Places, writer: Writer, purge: Callable[[], None],
        place: leftovers.Tree | leftovers.Rows,
    ) -> None:  # fmt: skip
        self._vault = vault
        self._place = place
        self._places = places
        self._writer = writer
        self._purge = purge
        self._changed: dict[tuple[str, str], int] = {}

    def forget(
        self, records: list[Record], again: list[str], every: list[Record], query: str, progress: Progress | None
    ) -> Forgotten:
        """Remove these records and the words of `query`; `again` was begun before, `every` are all that there are."""
        for record in records:
            if record.kind in _NEVER:
                raise Invalid(f"{KINDS[record.kind].one} is not forgotten by itself.", "Forget what it speaks of.")
        # what only repeats others says their words, and those may stay where they were said
        texts = [text for record in records if record.kind not in COPIES for text in _texts(record)]
        ids = [record.id for record in records]
        needles = Needles([*texts, query], (name for record in records for name in (record.id, record.path)))
        self._account([*ids, *again], {"intent": True})
        speaking = [record.id for record in every if record.id not in ids and covers(record, records)]
        if needles or records:
            self._copies(records, needles)
            self._values(records)
            self._records(records, needles)
        self._purge()
        remains = self._place.search(needles, progress) if needles else []
        self._account([*ids, *again], {})
        changed = [Changed(path, what, count) for (path, what), count in self._changed.items()]
        return Forgotten(
            ids, guarding.units(records), guarding.units(every), done=True, already=again, changed=changed,
            remains=remains, speaking=speaking, out_of_reach=self._place.out_of_reach(),
            looked=bool(needles), named=[each for each in ids if needles.stand_in(each)], too_short=needles.short,
        )  # fmt: skip

    def _account(self, ids: list[str], more: dict[str, Any]) -> None:
        for start in range(0, len(ids), _IN_A_LINE):
            self._writer.account({"forget": ids[start : start + _IN_A_LINE]} | more)

    def begun(self, identifier: str) -> bool:
        """Was this id forgotten before, or begun to be?"""
        for log, _ in self._vault.walk(f"{self._places.memory}/writes", (".jsonl",), _ignore):
            for line in self._vault.scan(log):
                objects = jsonl.parse(line.data) if b'"forget"' in line.data else []
                for value in objects if isinstance(objects, list) else ():
                    if isinstance(value.get("forget"), list) and identifier in value["forget"]:
                        return True
        return False

    # copies

    def _copies(self, records: list[Record], needles: Needles) -> None:
        """Take the texts out of what Holdfast itself keeps of them."""
        versions = {
            kept(self._places, str(line[end]))
            for record in records
            if KINDS[record.kind].shape == "document"
            for line in accounts.of(self._vault, self._places.memory, record.path)
            for end in ("before", "after")
            if line.get(end)
        }
        for path in self._every_file():
            place = self._places.classify(path)
            if path in versions or ("/writes/kept/" in path and self._has(path, needles)):
                self._remove(path, "earlier text removed")
            elif ".damaged-" in path or (place and place.kind.name in COPIES):
                names = _NAMES if place and place.kind.name == "write" else frozenset[str]()
                self._rewrite(path, "repeated text taken out", self._cleaned(needles, names))
        for path in self._place.unfinished():
            if self._has(path, needles):
                self._remove(path, "unfinished file removed")

    def _every_file(self) -> list[str]:
        found = self._vault.walk(self._places.memory, ("",), _ignore)
        return [path for path, _ in found if not _RUNS.search(path)]

    def _has(self, path: str, needles: Needles) -> bool:
        try:
            text = self._vault.read(path).data.decode("utf-8", "replace")
        except NotFound:
            return False
        return needles.without(text) != text

    def _cleaned(self, needles: Needles, names: frozenset[str]) -> Callable[[bytes], bytes]:
        def change(line: bytes) -> bytes:
            if not needles.touch(line):
                return line
            objects = jsonl.parse(line)
            if isinstance(objects, str):
                return b"" if needles.without(text := line.decode("utf-8", "replace")) != text else line
            cleaned = [needles.without_any(value, names) for value in objects]
            return line if cleaned == objects else b"\n".join(jsonl.render(value)[:-1] for value in cleaned)

        return change

    def _values(self, records: list[Record]) -> None:
        """Remove the large texts that lie beside the log, unless another line refers to the same one."""
        gone = {record.id for record in records}
        refs = {str(record.fields["ref"]) for record in records if isinstance(record.fields.get("ref"), str)}
        for ref in refs:
            if "/values/" in ref and self._places.classify(ref) is None and not self._referred(ref, gone):
                self._remove(ref, "large text removed")

    def _referred(self, ref: str, gone: set[str]) -> bool:
        """Does a line that stays refer to this text?"""
        for path in self._every_file():
            place = self._places.classify(path) if path.endswith(".jsonl") else None
            if place is None:
                continue
            for line in self._vault.scan(path):
                objects = jsonl.parse(line.data) if ref.encode() in line.data else []
                for value in objects if isinstance(objects, list) else ():
                    if value.get("ref") == ref and jsonl.identity(value, place.kind.time)[0] not in gone:
                        return True
        return False

    # records

    def _records(self, records: list[Record], needles: Needles) -> None:
        by_file: dict[str, list[Record]] = {}
        for record in records:
            by_file.setdefault(record.path, []).append(record)
        for path, found in by_file.items():
            shape = KINDS[found[0].kind].shape
            if shape == "line":
                self._rewrite(path, "line emptied", self._buried(found, needles))
            elif shape == "section":
                self._cut_out(path, {record.id.rpartition("#")[2] for record in found})
            else:
                self._erase(path, KINDS[found[0].kind])

    def _buried(self, records: list[Record], needles: Needles) -> Callable[[bytes], bytes]:
        """Return what puts tombstones in the place of lines."""
        place = self._places.classify(records[0].path)
        assert place is not None  # it was read as a line of this log
        ids = {record.id for record in records}
        keys = {record.key for record in records if record.key}

        def change(line: bytes) -> bytes:
            found = parsing.objects(place, Line(0, line, len(line)))
            if isinstance(found, str):
                return b"" if needles.touch(line) and needles.without(_decoded(line)) != _decoded(line) else line
            hit = [value for value in found if jsonl.identity(value, place.kind.time)[0] in ids or _of(value, keys)]
            if not hit:
                return line
            if place.kind.foreign:
                return _tombstone(hit[0], place.kind)
            return b"\n".join(_tombstone(one, place.kind) if one in hit else jsonl.render(one)[:-1] for one in found)

        return change

    def _cut_out(self, path: str, anchors: set[str]) -> None:
        document = self._vault.read(path)
        text = document.data.decode("utf-8", "surrogateescape")
        start = markdown.body_start(text)
        for section in reversed(sections.parse(text[start:])):
            if section.anchor in anchors:
                begin = start + section.start
                text = text[:begin] + text[begin + len(section.source) :]
        self._writer.replace(path, text.encode("utf-8", "surrogateescape"), document.version, keep=False)
        self._note(path, "entry cut out", len(anchors))

    def _erase(self, path: str, kind: Kind) -> None:
        folder, _, name = path.rpartition("/")
        ledger = f"{folder}/{LEDGER}"
        if kind.write_once and self._vault.stat(ledger):

            def change(line: bytes) -> bytes:
                objects = jsonl.parse(line) if name.encode() in line else []
                found = objects if isinstance(objects, list) else []
                named = any(name in (value.get("state"), value.get("hide")) for value in found)
                return _tombstone(found[0], KINDS["ledger"]) if named else line

            self._rewrite(ledger, "line emptied", change)
        self._writer.erase(path, self._vault.read(path).version)
        self._note(path, "document removed")

    def _rewrite(self, path: str, what: str, change: Callable[[bytes], bytes]) -> None:
        try:
            count = self._vault.rewrite(path, change)
        except NotFound:
            return
        if count:
            self._note(path, what, count)
            self._writer.told(path)

    def _remove(self, path: str, what: str) -> None:
        try:
            self._vault.remove(path)
        except NotFound:
            return
        self._note(path, what)

    def _note(self, path: str, what: str, count: int = 1) -> None:
        self._changed[path, what] = self._changed.get((path, what), 0) + count


def _tombstone(line: Mapping[str, Any], kind: Kind) -> bytes:
    """Return what is left of a line: its identity, and that it was forgotten."""
    identifier, _, time = jsonl.identity(line, kind.time)
    left = {"id": identifier} | {name: line[name] for name in _KEPT if name in line and name != "id"}
    when = line.get(kind.time) if kind.time in line else time
    return jsonl.render(left | ({kind.time: when} if when else {}) | {"forgotten": utc_now()})[:-1]


def _of(value: Mapping[str, Any], keys: set[str]) -> bool:
    """Does a mark name one of these keys?"""
    return isinstance(value.get("hide"), str) and value["hide"] in keys


def _texts(record: Record) -> Iterator[str]:
    """Yield what a record says: its text, and what of its title and fields is distinct enough to be looked for."""
    kind = KINDS[record.kind]
    said = record.fields.get(kind.text)
    yield from [record.text] if isinstance(said, str | None) or not record.fields else _leaves(said)
    for text in (record.title, record.key, *_leaves({n: v for n, v in record.fields.items() if n not in _TECHNICAL})):
        if len(text) >= _DISTINCT:
            yield text


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)


def says(record: Record, text: str) -> bool:
    """Does a record have a text word for word, whatever its case? What repeats others is cleaned, not forgotten."""
    wanted = text.strip().casefold()
    said = (record.title, record.text, text_of(record.fields))
    return record.kind not in COPIES and any(wanted in each.casefold() for each in said)


def covers(summary: Record, records: Iterable[Record]) -> bool:
    """Does a summary speak for one of these entries?"""
    told = summary.fields.get("covers") if summary.kind == "summary" else None
    if not isinstance(told, Mapping):
        return False
    first, last = str(told.get("first", "")), str(told.get("last", ""))
    return any(
        first <= record.order <= last and record.scope.session in ("", summary.scope.session)
        for record in records
        if KINDS[record.kind].shape == "line"
    )


def _decoded(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def _ignore(_path: str, _why: str) -> None:
    """What cannot be looked into is told by the search for what is left."""
