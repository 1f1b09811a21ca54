"""Forget: remove the text of records for good, from files, kept versions, traces and the index; then search for it.

A log entry becomes a tombstone that keeps its id, time and op_id, so that order, pairs and repeated calls stay valid. A
section is cut out of its page, a document is removed. Copies go first: kept versions, traces, summaries, values. The
record itself goes last, so that an interrupted run can be repeated; the write log records that it began. Other records
with the same text are not touched but reported.

A part of a text counts as well, since a trace is cut off and a summary quotes a sentence: a part is a verbatim run of
at least `_PART` characters. A text shorter than `_SHORTEST` is not searched for; it would be found everywhere.
"""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import os
import pathlib
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, AnyStr

import msgspec

from holdfast.errors import HoldfastError, Invalid, NotFound
from holdfast.formats import jsonl, markdown, sections
from holdfast.model.kinds import FOREIGN, KINDS, LEDGER, NOT_RECORDS, Kind
from holdfast.model.names import check_text
from holdfast.model.patterns import regex
from holdfast.model.records import Problem, Record, text_of
from holdfast.model.settings import DERIVED
from holdfast.model.times import utc_now
from holdfast.owner.history import check_count, count_units, covers
from holdfast.storage import parsing, write_log
from holdfast.storage.files.descriptors import TEMPORARY
from holdfast.storage.results import Progress, is_much
from holdfast.storage.tree import Line, is_value, unpack_value

if TYPE_CHECKING:
    from holdfast.core import Core

_COPIES = frozenset({"trace", "claim", "write", "summary"})
"""Kinds that repeat the text of other records; the repeated text is removed from them."""
_PART = 32
_SHORTEST = 8
_NOTE = "[forgotten]"
_STEP = _PART // 2
_MOST_PARTS = 64
"""How many parts of a long text are searched for in a file, besides the whole text."""
_DISTINCT = _PART // 2
"""A shorter title, key or field may well occur elsewhere by itself, and is not searched for."""
_NAMES = frozenset({"id", "path", "record", "forget"})
"""Fields of the write log that identify records; they are left as they are."""
_TOMBSTONE = ("op", "writer", "exchange", "role", "compartment")
_TECHNICAL = frozenset("op writer ref size head exchange role channel type by covers session workspace created".split())
_IDS_PER_ENTRY = 1_000
_RUNS = regex(r"/sessions/[^/]+/runs/")
_GIT = ".git"


class Erasure(msgspec.Struct, frozen=True):
    path: str
    what: str
    count: int = 1


class Forgotten(msgspec.Struct, frozen=True, omit_defaults=True):
    """A preview, or the result with the remaining copies."""

    records: list[str]
    count: int
    """How many these are, all values of a key counted as one."""
    total: int
    """How many there are in all."""
    done: bool = False
    already: list[str] = []
    """Ids that were forgotten before; an interrupted removal was completed now."""
    changed: list[Erasure] = []
    remains: list[Problem] = []
    """Files that still have the text or a part of it."""
    speaking: list[str] = []
    """Summaries of removed entries, which may still contain their meaning."""
    out_of_reach: list[str] = []
    looked: bool = False
    """Whether files were searched: the text of records that were forgotten before is no longer known."""
    named: list[str] = []
    """Removed records with a part of the text in their name, which stays in the write log and traces."""
    too_short: int = 0
    """Texts that are too short to be searched for."""

    @property
    def needs_count(self) -> bool:
        return is_much(self.count, self.total)


class Forgetter:
    def __init__(self, memory: Core) -> None:
        self._memory = memory
        self._tree, self._layout, self._store = memory.tree, memory.layout, memory.store
        self._terms = SearchTerms(())
        self._changed: dict[tuple[str, str], int] = {}

    def forget(
        self, identifiers: Sequence[str], query: str, *, yes: bool, count: int, progress: Progress | None
    ) -> Forgotten:
        """Forget records by id, and all that contain the query verbatim; without `yes`, list them."""
        check_text(query, *identifiers)
        if not identifiers and not query.strip():
            raise Invalid("There is nothing to forget.", "Give ids, or a text with query.")
        every = self._store.every()
        wanted: dict[str, Record] = {}
        again: list[str] = []
        for identifier in identifiers:
            try:
                record = self._memory.get(identifier)
            except NotFound:
                if identifier not in write_log.forgotten(self._tree, self._layout.memory):
                    raise
                again.append(identifier)
                continue
            values = [record]
            if record.key and not record.superseded:  # the older values of the key go with the current one
                values = self._memory.history(KINDS[record.kind], record.key)
            wanted |= {one.id: one for one in values}
        if text := query.strip().casefold():  # copies are cleaned, not forgotten
            parts = ((one, (one.title, one.text, text_of(one.fields))) for one in every if one.kind not in _COPIES)
            wanted |= {one.id: one for one, found in parts if any(text in part.casefold() for part in found)}
        again += [record.id for record in wanted.values() if record.fields.get("forgotten")]
        records = [record for record in wanted.values() if record.id not in again]
        listed = Forgotten([one.id for one in records], count_units(records), count_units(every), already=again)
        if not yes:
            return listed
        check_count(listed.count, listed.total, count, "forgotten")
        for record in records:
            if record.kind in NOT_RECORDS:
                raise Invalid(
                    f"{KINDS[record.kind].one} cannot be forgotten by itself.", "Forget the record that it is about."
                )
        return self._remove_all(listed, records, every, query, progress)

    def _remove_all(
        self, listed: Forgotten, records: list[Record], every: list[Record], query: str, progress: Progress | None
    ) -> Forgotten:
        texts = [query]
        for record in records:
            if record.kind in _COPIES:  # the text of a copy belongs to another record, where it may stay
                continue
            value = record.fields.get(KINDS[record.kind].text)
            texts += [record.text] if isinstance(value, str | None) or not record.fields else _leaves(value)
            fields = {name: value for name, value in record.fields.items() if name not in _TECHNICAL}
            texts += [each for each in (record.title, record.key, *_leaves(fields)) if len(each) >= _DISTINCT]
        terms = SearchTerms(texts, (name for record in records for name in (record.id, record.path)))
        self._terms = terms
        ids = [*listed.records, *listed.already]
        batches = [ids[start : start + _IDS_PER_ENTRY] for start in range(0, len(ids), _IDS_PER_ENTRY)]
        for batch in batches:
            self._store.log_write({"forget": batch, "intent": True})
        speaking = [record.id for record in every if record.id not in ids and covers(record, records)]
        if terms or records:
            self._clean_copies(records)
            self._remove_records(records)
        self._store.purge()
        remains = find_remains(self._memory, terms, progress) if terms else []
        for batch in batches:
            self._store.log_write({"forget": batch})
        return msgspec.structs.replace(
            listed,
            done=True,
            changed=[Erasure(path, what, count) for (path, what), count in self._changed.items()],
            remains=remains,
            speaking=speaking,
            out_of_reach=out_of_reach(self._memory),
            looked=bool(terms),
            named=[each for each in listed.records if terms.occur_in(each)],
            too_short=terms.short,
        )

    # copies

    def _clean_copies(self, records: list[Record]) -> None:
        """Remove the texts from kept versions, traces, summaries, the write log, unfinished files and large values."""
        versions = {
            self._store.kept(str(entry[end]))
            for record in records
            if KINDS[record.kind].shape == "document"
            for entry in write_log.about(self._tree, self._layout.memory, record.path)
            for end in ("before", "after")
            if entry.get(end)
        }
        # what cannot be read is reported by the search afterwards
        walk = self._tree.walk(self._layout.memory, ("",), lambda _path, _why: None)
        paths = [path for path, _ in walk if not _RUNS.search(path)]
        for path in paths:
            place = self._layout.classify(path)
            if path in versions or ("/writes/kept/" in path and self._has(path)):
                self._remove(path, "earlier text removed")
            elif ".damaged-" in path or (place and place.kind.name in _COPIES):
                names = _NAMES if place and place.kind.name == "write" else frozenset[str]()
                self._rewrite(path, "repeated text removed", functools.partial(self._cleaned, names))
        for path in _paths(self._memory) if self._memory.in_files else ():
            if os.path.basename(path).startswith(TEMPORARY) and self._has(path):
                self._remove(path, "unfinished file removed")
        gone = {record.id for record in records}
        refs = {str(record.fields["ref"]) for record in records if isinstance(record.fields.get("ref"), str)}
        refs = {ref for ref in refs if "/values/" in ref and self._layout.classify(ref) is None}
        for path in paths if refs else ():
            place = self._layout.classify(path) if path.endswith(".jsonl") and self._store.exists(path) else None
            for value in write_log.objects(self._tree.scan(path), '"ref"') if place else ():
                if place and jsonl.identity(value, place.kind.time)[0] not in gone:
                    refs.discard(text_of(value.get("ref")))  # another entry refers to it
        for ref in refs:
            self._remove(ref, "large text removed")

    def _cleaned(self, names: frozenset[str], line: bytes) -> bytes:
        """Return a line with the texts cut out, except from the named fields."""
        if not self._terms.may_occur_in(line):
            return line
        objects = jsonl.parse(line)
        if isinstance(objects, str):
            return b"" if self._in(line) else line
        cleaned = [self._terms.cut_from_json(value, names) for value in objects]
        return line if cleaned == objects else b"\n".join(jsonl.render(value)[:-1] for value in cleaned)

    def _has(self, path: str) -> bool:
        try:
            return self._in(self._tree.read(path).data)
        except NotFound:
            return False

    def _in(self, data: bytes) -> bool:
        text = data.decode("utf-8", "replace")
        return self._terms.cut_from(text) != text

    # records

    def _remove_records(self, records: list[Record]) -> None:
        by_file: dict[str, list[Record]] = {}
        for record in records:
            by_file.setdefault(record.path, []).append(record)
        for path, found in by_file.items():
            kind, ids = KINDS[found[0].kind], {record.id for record in found}
            if kind.shape == "line":
                keys = {record.key for record in found if record.key}
                self._empty_lines(path, ids, keys)
                continue
            document = self._tree.read(path)
            if kind.shape == "document":
                folder, _, name = path.rpartition("/")
                if kind.write_once:
                    self._empty_lines(f"{folder}/{LEDGER}", set(), {name})
                self._store.remove(path, expect=document.version, keep=False, note={"forgotten": True})
                self._note(path, "document removed")
                continue
            anchors = {record.id.rpartition("#")[2] for record in found}
            text = document.data.decode("utf-8", "surrogateescape")
            start = markdown.body_start(text)
            for section in reversed(sections.parse(text[start:])):
                if section.anchor in anchors:
                    begin = start + section.start
                    text = text[:begin] + text[begin + len(section.source) :]
            self._memory.replace(path, text.encode("utf-8", "surrogateescape"), document.version, keep=False)
            self._note(path, "entry cut out", len(anchors))

    def _empty_lines(self, path: str, ids: set[str], targets: set[str]) -> None:
        """Replace the entries with these ids, and those about these keys or save points, by tombstones."""
        place = self._layout.classify(path)
        assert place is not None  # its entries were read
        kind, about = place.kind, ("hide", "state") if place.kind.name == "ledger" else ("hide",)

        def is_meant(one: Mapping[str, Any]) -> bool:
            return jsonl.identity(one, kind.time)[0] in ids or any(text_of(one.get(name)) in targets for name in about)

        def change(line: bytes) -> bytes:
            found = parsing.objects(place, Line(0, line, len(line)))
            if isinstance(found, str):
                return b"" if self._in(line) else line
            hit = [one for one in found if is_meant(one)]
            if not hit:
                return line
            if kind.foreign:
                return _tombstone(hit[0], kind)
            return b"\n".join(_tombstone(one, kind) if one in hit else jsonl.render(one)[:-1] for one in found)

        self._rewrite(path, "line emptied", change)

    def _rewrite(self, path: str, what: str, change: Callable[[bytes], bytes]) -> None:
        with contextlib.suppress(NotFound):
            if count := self._tree.rewrite(path, change):
                self._note(path, what, count)

    def _remove(self, path: str, what: str) -> None:
        with contextlib.suppress(NotFound):
            self._tree.remove(path)
            self._note(path, what)

    def _note(self, path: str, what: str, count: int = 1) -> None:
        self._changed[path, what] = self._changed.get((path, what), 0) + count


def _tombstone(line: Mapping[str, Any], kind: Kind) -> bytes:
    """Return the tombstone of a line: its identity, marked as forgotten."""
    identifier, _, time = jsonl.identity(line, kind.time)
    left = {"id": identifier} | {name: line[name] for name in _TOMBSTONE if name in line}
    when = line.get(kind.time) if kind.time in line else time
    return jsonl.render(left | ({kind.time: when} if when else {}) | {"forgotten": utc_now()})[:-1]


def _leaves(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value, without keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(inner)


# what remains


def find_remains(memory: Core, terms: SearchTerms, progress: Progress | None = None) -> list[Problem]:
    """Search the bytes of every file; report those that have a text or a part of one, or cannot be read.

    Of compressed files, only values are unpacked.
    """
    paths = _paths(memory)
    found: list[Problem] = []
    for number, path in enumerate(paths, 1):
        problem = None
        try:
            if is_value(path, memory.layout.memory):
                problem = _occurrence(unpack_value(memory.tree.read(path).data, path), path, terms)
            elif not memory.in_files:
                problem = _occurrence(memory.tree.read(path).data, path, terms)
            elif os.path.getsize(full := os.path.join(memory.root, path)):
                with open(full, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    problem = _occurrence(data, path, terms)
        except (FileNotFoundError, NotFound):  # removed meanwhile
            continue
        except (OSError, HoldfastError) as error:
            why = error.strerror if isinstance(error, OSError) else error.message
            problem = Problem(path, f"could not be searched: {why}")
        if problem:
            found.append(problem)
        if progress:
            progress(number, len(paths))
    files = [problem for problem in found if not problem.path.startswith(f"{DERIVED}/")]
    why = ", as in the files that were indexed" if files else ""  # the index has only what the files have
    return [one if one in files else msgspec.structs.replace(one, what=one.what + why) for one in found]


def _occurrence(data: bytes | mmap.mmap, path: str, terms: SearchTerms) -> Problem | None:
    for what, forms in (("the text", terms.whole), ("a part of the text", terms.parts)):
        at = min((place for form in forms if (place := terms.find(data, form)) >= 0), default=-1)
        if at >= 0:
            return Problem(path, f"{what} is still in this file", data[:at].count(b"\n") + 1)
    return None


def _paths(memory: Core) -> list[str]:
    """Return every file of a memory, indexed or not; without git's, which are compressed."""
    if not memory.in_files:
        tops = (*memory.layout.roots, *memory.layout.below(FOREIGN, ""))
        walks = (memory.tree.walk(top, ("",), lambda _path, _why: None) for top in tops)
        return list(dict.fromkeys(path for walk in walks for path, _ in walk))
    found = []
    for folder, folders, names in os.walk(memory.root):
        if _GIT in folders:
            folders.remove(_GIT)
        full = [os.path.join(folder, name) for name in sorted(names)]
        files = [each for each in full if os.path.isfile(each) and not os.path.islink(each)]
        found += [os.path.relpath(each, memory.root) for each in files]
    return found


def out_of_reach(memory: Core) -> list[str]:
    """Return the places outside of a memory that may still have a removed text."""
    if not memory.in_files:
        return [
            "dumps of the database, archives of its log, and standbys that lag behind",
            "removed rows, until the server's VACUUM has overwritten them",
            "exports and backups that were made before",
            "conversations that clients and models store outside of the memory",
        ]
    root = pathlib.Path(memory.root)
    return [
        *(
            f"the git history of {folder} and of its clones, if it was committed: use git filter-repo"
            for folder in (root, *root.parents)
            if os.path.lexists(folder / _GIT)
        ),
        "backups and archives that were made before, also those of holdfast backup",
        "snapshots of the file system, and freed disk blocks that were not overwritten yet",
        "conversations that clients and models store outside of the root",
    ]


# what to search for


class SearchTerms:
    """Texts in all the forms that they have in files; occurrences within `spared` names are ignored."""

    def __init__(self, texts: Iterable[str], spared: Iterable[str] = ()) -> None:
        stripped = {text.strip() for text in texts}
        self.texts = sorted((text for text in stripped if len(text) >= _SHORTEST), key=len, reverse=True)
        self.short = len([text for text in stripped if 0 < len(text) < _SHORTEST])
        """How many texts were too short to search for."""
        self._samples: dict[str, list[tuple[str, int]]] = {}
        for text in self.texts:
            for start in range(0, len(text) - _STEP + 1, _STEP) if len(text) >= _PART else ():
                self._samples.setdefault(text[start : start + _STEP], []).append((text, start))
        self.whole = {form for text in self.texts for form in _forms(text)}
        """The bytes of each text."""
        parts = {
            text[start : start + _PART]
            for text in self.texts
            for start in range(0, len(text) - _PART + 1, max(_PART, len(text) // _MOST_PARTS))
            if len(text) > _PART
        }
        self.parts = sorted({form for part in parts for form in _forms(part)})
        """The bytes of some parts of each text."""
        self._hints = [*(form for sample in self._samples for form in _forms(sample)), *self.whole]
        self._spared = sorted({name for name in spared if self.occur_in(name)})
        self._spared_bytes = sorted({form for name in self._spared for form in _forms(name)})

    def __bool__(self) -> bool:
        return bool(self.texts)

    def may_occur_in(self, data: bytes) -> bool:
        """Return False only if these bytes have no text and no part of one."""
        return any(form in data for form in self._hints)

    def occur_in(self, name: str) -> bool:
        """Return whether a name has one of the texts, or a part of one."""
        return any(text in name for text in self.texts) or any(True for _ in self._runs(name))

    def find(self, data: bytes | mmap.mmap, form: bytes) -> int:
        """Return where a form first occurs in some bytes outside of spared names; -1 for nowhere."""
        at = data.find(form)
        while at >= 0 and any(
            data[max(0, at - inside) : at - inside + len(name)] == name
            for name in self._spared_bytes
            for inside in _occurrences(name, form)
        ):
            at = data.find(form, at + 1)
        return at

    def cut_from(self, text: str) -> str:
        """Return a text with these texts, and parts of them, replaced by a note."""
        found = {(at, at + len(term)) for term in self.texts for at in _occurrences(text, term)}
        names = [(at, at + len(name)) for name in self._spared for at in _occurrences(text, name)]
        pieces, last = [], 0
        for start, end in sorted(found.union(self._runs(text))):
            if any(first <= start and end <= behind for first, behind in names):
                continue
            if start >= last:
                pieces += [text[last:start], _NOTE]
            last = max(last, end)
        return "".join([*pieces, text[last:]])

    def cut_from_json(self, value: Any, but: Container[str] = ()) -> Any:
        """Return a JSON value with these texts cut out, except in the named fields."""
        if isinstance(value, str):
            return self.cut_from(value)
        if isinstance(value, dict):
            return {
                self.cut_from(name): inner if name in but else self.cut_from_json(inner, but)
                for name, inner in value.items()
            }
        return [self.cut_from_json(inner, but) for inner in value] if isinstance(value, list) else value

    def _runs(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield start and end of each part that occurs in a text."""
        position = last = 0
        while position <= len(text) - _STEP:
            places = self._samples.get(text[position : position + _STEP], ())
            start = end = 0
            for term, there in places:  # how far are the text and the term equal around the two places?
                back, ahead = 0, _STEP
                while position > back and there > back and text[position - back - 1] == term[there - back - 1]:
                    back += 1
                rest = min(len(text) - position, len(term) - there)
                while ahead < rest and text[position + ahead] == term[there + ahead]:
                    ahead += 1
                if back + ahead > end - start:
                    start, end = position - back, position + ahead
            if end - start >= _PART:
                yield max(start, last), end
                position = last = end
            else:
                position += 1


def _occurrences(data: AnyStr, part: AnyStr) -> list[int]:
    """Return where a part occurs, from left to right, without overlaps."""
    return [found.start() for found in re.finditer(re.escape(part), data)]


def _forms(text: str) -> set[bytes]:
    """Return the bytes of a text as it is, with other line ends, and inside JSON."""
    found = {text, text.replace("\r\n", "\n").replace("\n", "\r\n"), text.replace("\r\n", "\n")}
    found |= {json.dumps(one, ensure_ascii=ascii)[1:-1] for one in tuple(found) for ascii in (True, False)}
    return {one.encode("utf-8", "surrogatepass") for one in found}
