"""Four memories of an agent: working, episodic, semantic, procedural, each to append to, to search, and to compact.

Working memory is a window of this process. Episodic memory is one log per session; facts by key and procedures are one
log each, across sessions. Nothing is summarised unless asked for. Entries that a summary covers leave the window, the
last n and the counts; they stay in the file and in search.

Large results are values: files of their own, read a part at a time, whose reference is their path. `episodic` (this
session), `history` (the chat) and transcripts (by path or id of a turn) can be read as values too, and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import unicodedata
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, ParamSpec, TypeVar

import msgspec

from holdfast.core import Core
from holdfast.errors import Invalid, NotFound
from holdfast.formats import summaries
from holdfast.formats.summaries import Gist, head
from holdfast.memories import compaction
from holdfast.memories.compaction import Compacted, Said, Summaries, Summariser, Summary, stated
from holdfast.model.kinds import KINDS, Kind
from holdfast.model.names import check_given, close_to, count_tokens
from holdfast.model.patterns import regex
from holdfast.model.queries import Query, fold, parse
from holdfast.model.records import DEFAULT, Draft, Record, Scope, line_of, text_of
from holdfast.model.settings import MindSettings as Limits
from holdfast.model.times import bound, is_id, mint, utc_now
from holdfast.storage.log import Logs
from holdfast.storage.tree import VALUE_SUFFIXES, is_value, read_value

TYPES = ("working", "episodic", "semantic", "procedural")
_KINDS = {"episodic": KINDS["episode"], "semantic": KINDS["fact"], "procedural": KINDS["procedure"]}
STATS = (
    "workingMemoryTokens", "episodicEntryCount", "semanticEntryCount", "proceduralRuleCount", "totalStorageBytes",
)  # fmt: skip
_MOST = 1_000
_MOST_SESSIONS = 1_000
_REFERENCE = ("ref", "size", "head")
READ = 4_000
"""Characters of a value per read, by default."""
MOST_READ = 100_000
_LINE = regex(r":\d+\Z")
_HISTORIES = {"episodic": KINDS["episode"], "history": KINDS["message"]}
_AROUND = 120
_PIECE = 2_000
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Remembered(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a memory, as it was given; of a large one its ref, size and head."""

    id: str
    entry: Any
    time: str = ""
    covered: bool = False
    """Is it covered by a summary, and so in no window and in no count?"""
    summary: bool = False
    score: float = 0.0

    @property
    def text(self) -> str:
        return text_of(self.entry)


class Window:
    """Working memory: the last entries, within a number of entries and of tokens. Older ones are dropped."""

    def __init__(self, limits: Limits) -> None:
        self._most_entries = limits.window_entries
        self._most_tokens = limits.window_tokens
        self._lock = threading.RLock()
        self._entries: deque[tuple[Remembered, int]] = deque()
        self._said: Said = ()
        """The sentences of the summary at the beginning of the window, if there is one."""

    def holds(self, entry: Any) -> bool:
        """Is there room for this entry, if all others are dropped?"""
        return count_tokens(text_of(entry)) <= self._most_tokens

    def add(self, entry: Any) -> str:
        """Add an entry and return its id; the head of one that refers to a value may be cut."""
        if not self.holds(entry) and isinstance(entry, dict) and isinstance(entry.get("head"), str):
            rest = count_tokens(text_of(entry | {"head": ""}))
            entry = entry | {"head": head(entry["head"], self._most_tokens - rest - 1)}
        with self._lock:
            last = self._entries[-1][0].id if self._entries else ""
            remembered = Remembered(mint(last), entry, utc_now())
            self._entries.append((remembered, count_tokens(remembered.text)))
            self._make_room()
            return remembered.id

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in list(self._entries))

    def last(self, count: int) -> list[Remembered]:
        """Return the last entries, oldest first."""
        with self._lock:
            return [entry for entry, _ in self._entries][-count:]

    def search(self, query: str, limit: int) -> list[Remembered]:
        """Return the entries that have most of the words, best first, newer ones before older ones."""
        words = parse(query).tokens
        newest_first = reversed(self.last(len(self._entries)))
        scored = [(len(words & set(fold(entry.text))), entry) for entry in newest_first]
        scored.sort(key=lambda item: -item[0])
        return [msgspec.structs.replace(entry, score=float(score)) for score, entry in scored[:limit] if score]

    def compact(
        self, keep: int, summarise: Callable[[list[Remembered], Said, int], Gist]
    ) -> tuple[int, Remembered | None]:
        """Replace all but the last entries by one summary; return how many, and the summary.

        `summarise` gets those entries, what an earlier summary said, and how many tokens there are for the new one.
        Entries that are added meanwhile stay.
        """
        every = self.last(len(self._entries) or 1)
        older = every[: max(0, len(every) - keep)]
        fresh = [entry for entry in older if not entry.summary]
        if not fresh:
            return 0, None
        room = self._most_tokens - sum(count_tokens(entry.text) for entry in every[len(older) :])
        made = summarise(fresh, self._said if older[0].summary else (), room)
        summary = Remembered(older[-1].id, made.text, older[-1].time, summary=True)
        gone = {entry.id for entry in older}
        with self._lock:
            rest = [entry for entry, _ in self._entries if entry.id not in gone]
            self._entries = deque((entry, count_tokens(entry.text)) for entry in (summary, *rest))
            self._said = made.said
            self._make_room()
        return len(fresh), summary

    def _make_room(self) -> None:
        spent = self.tokens
        while self._entries and (len(self._entries) > self._most_entries or spent > self._most_tokens):
            spent -= self._entries.popleft()[1]


class Windows:
    """The working memories of the sessions that this process serves; of very many, those used last."""

    def __init__(self, limits: Limits) -> None:
        self._lock = threading.Lock()
        self._window = functools.lru_cache(_MOST_SESSIONS)(lambda _session: Window(limits))

    def of(self, session: str) -> Window:
        """Return the working memory of a session."""
        with self._lock:
            return self._window(session)


def _safely(otherwise: Callable[[], Any]) -> Callable[[Callable[Given, Answer]], Callable[Given, Answer]]:
    """With `on_error="log"`, log an error of a method and return `otherwise()` instead of raising."""

    def make(method: Callable[Given, Answer]) -> Callable[Given, Answer]:
        @functools.wraps(method)
        def call(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
            mind: Any = args[0]
            try:
                return method(*args, **kwargs)
            except Exception as error:
                if mind.on_error == "raise":
                    raise
                import logging

                logging.getLogger("holdfast").warning("memory %s failed: %s", method.__name__, error)
                answer: Answer = otherwise()
                return answer

        return call

    return make


class Mind:
    """The memories of one session. With `on_error="log"` no call raises because of the memory."""

    def __init__(
        self, memory: Core, session: str = "", scope: str | Scope | None = None, *,
        window: Window | None = None, on_error: Literal["raise", "log"] = "raise",
    ) -> None:  # fmt: skip
        if on_error not in ("raise", "log"):
            raise Invalid(f"on_error is {on_error!r}.", "Use raise or log.")
        self._memory = memory
        self._scope = scope
        self.session = session or DEFAULT
        self.working = Window(memory.settings.mind) if window is None else window
        self.on_error = on_error
        self.warnings: list[str] = []
        """Warnings of lines that could not be read so far."""

    @_safely(lambda: "")
    def append(self, type: str, entry: Any, op_id: str = "") -> str:
        """Add an entry, text or any JSON object, and return its id; all but working memory is durable then."""
        _check_type(type)
        check_given(op_id=op_id)
        if not (isinstance(entry, str) and entry.strip()) and not (isinstance(entry, Mapping) and entry):
            raise Invalid("An entry is text or an object, and not empty.", "Give what happened.")
        if type == "semantic":
            return self.learn(entry, op_id=op_id)
        if type == "working":
            return self.working.add(self._memory.offload(entry, self.session, self.working.holds))
        if type == "episodic":
            draft = Draft(kind="episode", data=entry, session=self.session, scope=self._scope, op_id=op_id)
            return self._memory.put_draft(draft).id
        given = dict(entry) if isinstance(entry, Mapping) else {}
        when, do = given.get("when"), given.pop("do", None)
        if not (isinstance(when, str) and when.strip()) or not do:
            raise Invalid("A procedure is {when, do}.", "Say when it applies, and what to do then.")
        return self._memory.put_draft(Draft(kind="procedure", data=do, fields=given, scope=self._scope, op_id=op_id)).id

    @_safely(lambda: "")
    def learn(self, key: Any, value: Any = None, op_id: str = "") -> str:
        """Store knowledge by key; earlier values stay in its history."""
        check_given(op_id=op_id)
        given = dict(key) if isinstance(key, Mapping) else {"key": key, "value": value}
        key, value = given.get("key"), given.pop("value", None)
        if not isinstance(key, str) or not key.strip() or value is None or value == "":
            raise Invalid("Knowledge is {key, value}; the key is text that is not blank.", "Give its topic as the key.")
        given["key"] = unicodedata.normalize("NFC", key).strip()
        return self._memory.put_draft(Draft(kind="fact", data=value, fields=given, scope=self._scope, op_id=op_id)).id

    @_safely(lambda: None)
    def recall(self, key: str, history: bool = False, as_of: str = "") -> Any:
        """Return the value of a key, None if it has none; or its whole history; or its value at a time."""
        if not isinstance(key, str) or not key.strip():
            raise Invalid("The key is text that is not blank.", "Give the key.")
        check_given(as_of=as_of)
        kind, key = _KINDS["semantic"], unicodedata.normalize("NFC", key).strip()
        self._warn("semantic")
        if not history and not as_of:
            current = self._memory.current(kind, key)
            return _knowledge(current) if current else None
        until = "" if history else bound(as_of, end=True)
        past = [record for record in self._memory.history(kind, key) if not record.hidden]
        known = [_knowledge(record) for record in past if not until or record.time <= until]
        return known if history else known[-1] if known else None

    @_safely(list)
    def search(self, type: str, query: Any, limit: int = 10) -> list[Remembered]:
        """Return the best entries for some words, or with `{"last": n}` the last n, oldest first."""
        _check_type(type)
        last = query.get("last") if isinstance(query, Mapping) and set(query) == {"last"} else None
        if last is None and not (isinstance(query, str) and query.strip()):
            raise Invalid("A query is text, or {last: n}.", "Give one of them.")
        most = _number("limit", limit) if last is None else _number("last", last)
        if type == "working":
            return self.working.search(query, most) if last is None else self.working.last(most)
        self._warn(type)
        summary = self._summary(type)
        whole = [Remembered(summary.id, summary.text, summary.time, summary=True)] if summary.id else []
        if last is not None:
            newest = itertools.islice(self._newest(type, summary.last), most)
            entries = [_remembered(record, "") for record in newest][::-1]
            return whole + entries if len(entries) < most else entries
        session = self.session if type == "episodic" else ""
        found = self._memory.find(Query(text=query, kinds=(_KINDS[type].name,), session=session, limit=most))
        hits = [_remembered(hit.record, summary.last, hit.score) for hit in found]
        fits = len(hits) < most and not parse(query).tokens.isdisjoint(fold(summary.text))
        return hits + whole if fits else hits

    def _newest(self, type: str, after: str) -> Iterator[Record]:
        """Yield the entries that no summary covers, newest first."""
        kind = _KINDS[type]
        if kind.key:
            every = self._memory.every(Query(kinds=(kind.name,)))
            return iter(sorted((one for one in every if one.order > after), key=lambda one: one.order, reverse=True))
        records = self._memory.backwards(self._path(kind), session=self.session if type == "episodic" else "")
        return (record for record in records if record.order > after)

    @_safely(list)
    def match(self, situation: str, limit: int = 5) -> list[dict[str, Any]]:
        """Return the procedures that apply to a situation, the one whose condition fits best first."""
        check_given(situation=situation)
        if not (words := set(fold(situation))):
            raise Invalid("The situation is blank.", "Describe the situation.")
        self._warn("procedural")
        ranked = []
        for hit in self._memory.find(Query(text=situation, kinds=("procedure",), limit=_MOST)):
            condition = parse(hit.record.title).tokens
            if fits := sum(any(_alike(word, given) for given in words) for word in condition):
                ranked.append((-fits / len(condition), -hit.score, hit.record))
        ranked.sort(key=lambda item: item[2].order, reverse=True)
        ranked.sort(key=lambda item: item[:2])
        found: dict[tuple[str, str], dict[str, Any]] = {}  # without duplicates
        for fit, _, record in ranked:
            found.setdefault((record.title, record.text), _stored(record) | {"id": record.id, "fit": round(-fit, 3)})
        return list(found.values())[: _number("limit", limit)]

    @_safely(str)
    def context(self, task: str, budget: int = 2_000) -> str:
        """Return the entries that are relevant to a task, within a budget of tokens: procedures, knowledge, events."""
        check_given(task=task)
        if not task.strip():
            raise Invalid("The task is blank.", "Describe the task.")
        _number("budget", budget, 0, step="Use a number of tokens.")
        summary = self._summary("episodic")
        known = [hit for hit in self.search("semantic", task) if not hit.summary]
        offers = {
            "What to do": [stated("procedure", one["when"], one["do"]) for one in self.match(task)],
            "What is known": [stated("fact", hit.entry["key"], hit.entry["value"]) for hit in known],
            compaction.BEFORE: [],
            "What happened": [line_of(hit.entry) for hit in self.search("episodic", task) if not hit.summary],
        }
        return compaction.within_budget(offers, Gist(summary.text, summary.said), budget)

    @_safely(Compacted)
    def compact(self, type: str, keep_last: int | Mapping[str, Any] = 10, summarize_older: bool = True) -> Compacted:
        """Summarise all but the last entries; the options may also be `{"keepLast": 10, "summarizeOlder": True}`."""
        _check_type(type)
        if isinstance(keep_last, Mapping):
            if unknown := keep_last.keys() - {"keepLast", "summarizeOlder"}:
                raise Invalid(f"There is no option {', '.join(map(repr, unknown))}.", "Use keepLast, summarizeOlder.")
            summarize_older, keep_last = keep_last.get("summarizeOlder", True), keep_last.get("keepLast", 10)
        keep_last = _number("keepLast", keep_last, 0, step="Use a number from 0 on.")
        if not isinstance(summarize_older, bool):
            raise Invalid(f"summarizeOlder is {summarize_older!r}.", "Use true or false.")
        summariser = Summariser(self._memory, summarize=summarize_older)
        if type != "working":
            about = {"type": type} | ({"session": self.session} if type == "episodic" else {})
            return compaction.compact(
                self._memory, self._summaries(type), about, lambda after: list(self._newest(type, after))[::-1],
                keep_last, summariser, self.warnings,
            )  # fmt: skip

        def summarise(older: list[Remembered], said: Said, most: int) -> Gist:
            return summariser.write([compaction.entry(one.entry, one.time) for one in older], said, most)

        covered, summary = self.working.compact(keep_last, summarise)
        kept = len([one for one in self.working.last(_MOST) if not one.summary])
        if summary is None:
            return Compacted(kept=kept)
        return Compacted(covered, kept, summary.id, summary.text, summariser.by, summariser.fallback)

    @_safely(lambda: dict.fromkeys(STATS, 0))
    def stats(self) -> dict[str, int]:
        """Return the number of entries of each memory."""
        tree, session = self._memory.tree, self._path(_KINDS["episodic"]).rpartition("/")[0]
        self._warn(*_KINDS)
        counts, logs = [], set[str]()
        for type, kind in _KINDS.items():
            summary = self._summary(type)
            counts.append(self._memory.store.count(self._path(kind), summary.last) + bool(summary.id))
            logs |= {self._path(kind), self._summaries(type)}
        size = sum(stamp.size for path in logs if (stamp := tree.stat(path)))
        for folder in (session, self._memory.layout.memory):
            walked = tree.walk(f"{folder}/values", VALUE_SUFFIXES, lambda *_: None)
            size += sum(stamp.size for _, stamp in walked)
        return dict(zip(STATS, (self.working.tokens, *counts, size), strict=True))

    def _warn(self, *types: str) -> None:
        """Add to the warnings what cannot be read in the logs of these memories."""
        paths = {path for type in types for path in (self._path(_KINDS[type]), self._summaries(type))}
        found = [f"{problem}; the rest of it is still used." for problem in self._memory.store.problems(*sorted(paths))]
        self.warnings += [warning for warning in found if warning not in self.warnings]

    def _path(self, kind: Kind) -> str:
        return self._memory.layout.path_for(kind, Scope(), session=self.session)

    def where(self, type: str) -> str:
        """Return the log of a memory; working memory has none."""
        return f"working memory of session {self.session}" if type == "working" else self._path(_KINDS[type])

    def _summaries(self, type: str) -> str:
        """Return the log of the summaries of a memory."""
        if type == "episodic":
            return self._path(KINDS["summary"])
        return f"{self._memory.layout.memory}/summaries.jsonl"

    def _summary(self, type: str) -> Summary:
        """Return the summary of a memory; one without an id when there is none."""
        logs = Logs(self._memory, Summaries)
        return logs.ask(self._summaries(type), lambda known: known.newest(type), []) or Summary()


class Values:
    def __init__(self, memory: Core) -> None:
        self._memory = memory

    def read(self, ref: str, offset: int = 0, limit: int = READ, session: str = "") -> dict[str, Any]:
        """Return a part of a value, how long the value is, and where the next part starts."""
        if type(offset) is not int or type(limit) is not int or offset < 0 or not 1 <= limit <= MOST_READ:
            what = f"offset is {offset!r}, limit is {limit!r}."
            raise Invalid(what, f"Use an offset from 0 and a limit of 1 to {MOST_READ:,}.")
        return {"ref": ref} | part(self._text(ref, session), offset, limit, "text")

    def search(self, ref: str, query: str, limit: int = 10, session: str = "") -> list[dict[str, Any]]:
        """Return the places of a value that have most of the words, best first, each with its offset."""
        check_given(query=query)
        _number("limit", limit, step="Use a number from 1 on.")
        if not (words := parse(query).tokens):
            raise Invalid("The query is blank.", "Give some words.")
        found = [(start, line, sorted(words & set(fold(line)))) for start, line in _lines(self._text(ref, session))]
        best = []
        for offset, line, hits in sorted((one for one in found if one[2]), key=lambda one: -len(one[2]))[:limit]:
            text = line
            if len(line) > 2 * _AROUND:  # the part around the first hit
                lower = line.casefold()
                first = min((place for hit in hits if (place := lower.find(hit)) >= 0), default=0)
                start = max(0, first - _AROUND)
                end = start + 2 * _AROUND
                text = ("…" if start else "") + line[start:end] + ("…" if end < len(line) else "")
            best.append({"offset": offset, "text": text, "why": hits})
        return best

    def summarize(self, ref: str, budget: int = 500, session: str = "") -> str:
        """Return a summary of a value that consists of its own sentences."""
        _number("budget", budget, step="Use a number of tokens.")
        lines = [summaries.Entry(id=str(start), time="", text=line) for start, line in _lines(self._text(ref, session))]
        return summaries.extract(lines, budget, "lines")

    def _text(self, ref: str, session: str) -> str:
        check_given(ref=ref, session=session)
        places = self._memory.layout
        if ref in _HISTORIES:
            return self._history(places.path_for(_HISTORIES[ref], Scope(), session=session))
        with contextlib.suppress(NotFound):
            path = self._memory.get(ref).path if is_id(ref) else _LINE.sub("", ref)
            place = places.classify(path)
            if place and place.kind.name == "transcript" and self._memory.store.exists(path):
                return self._history(path)
            if is_value(ref, places.memory):
                return read_value(self._memory.tree, ref, self._memory.settings.limits.document_bytes)
        step = "Use the ref that an entry shows, episodic, history, or the path of a transcript."
        raise NotFound(f"There is no value {ref[:200]!r}.", step)

    def _history(self, path: str) -> str:
        """Return the records of a log as lines, oldest first."""
        lines = []
        for record in self._memory.backwards(path):
            role, text = record.fields.get("role"), " ".join(record.text.split())
            lines.append(f"{record.time} {role}: {text}" if isinstance(role, str) else f"{record.time} {text}")
        return "\n".join(reversed(lines))


def part(text: str, offset: int, limit: int, name: str) -> dict[str, Any]:
    """Return a part of a text under a name, how long the text is, and where the next part starts."""
    found = text[offset : offset + limit]
    reply = {"offset": offset, name: found, "size": len(text)}
    return reply | ({"next": offset + len(found)} if offset + len(found) < len(text) else {})


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text with their offsets; very long ones in pieces."""
    position = 0
    for line in text.splitlines(keepends=True):
        for start in range(0, len(line), _PIECE):
            if piece := line[start : start + _PIECE].strip():
                yield position + start, piece
        position += len(line)


def _check_type(given: object) -> None:
    if given not in TYPES:
        raise Invalid(f"There is no memory {given!r}.{close_to(str(given), TYPES)}", f"Use one of: {', '.join(TYPES)}.")


def _number(name: str, given: object, least: int = 1, step: str = "") -> int:
    """Return a whole number from `least` on; without a next `step` for the caller, it is limited."""
    if type(given) is not int or given < least or (given > _MOST and not step):
        raise Invalid(f"{name} is {given!r}.", step or f"Use a number from {least} to {_MOST}.")
    return given


def _given(record: Record) -> Any:
    """Return an entry as it was given; of a large one the reference to its value."""
    if "ref" in record.fields:
        return {name: record.fields.get(name) for name in _REFERENCE}
    return record.fields.get(KINDS[record.kind].text, record.text)


def _stored(record: Record) -> dict[str, Any]:
    """Return a fact or a procedure with all fields that were given with it."""
    kind = KINDS[record.kind]
    own = {kind.text, kind.title, "op", "writer", *(_REFERENCE if "ref" in record.fields else ())}
    more = {name: value for name, value in record.fields.items() if name not in own}
    return {kind.title: record.title, kind.text: _given(record)} | more


def _knowledge(record: Record) -> dict[str, Any]:
    return _stored(record) | {"time": record.time, "id": record.id}


def _remembered(record: Record, covered: str, score: float = 0.0) -> Remembered:
    entry = _given(record) if record.kind == "episode" else _stored(record)
    return Remembered(record.id, entry, record.time, covered=bool(covered) and record.order <= covered, score=score)


def _alike(one: str, other: str) -> bool:
    """Are these forms of one word, roughly?"""
    short, long = sorted((one, other), key=len)
    return long.startswith(short[: max(4, len(short) - 2)]) if len(short) > 3 else one == other
