"""Four memories of an agent: working, episodic, semantic, procedural, each to append to, to search, and to compact.

Working memory is this process's. Episodic memory is one log per session; what was learned by key and how to act are one
log each, across sessions. Nothing is summarised unless it is asked for: a summary is one appended entry that names what
it covers. Covered entries leave the window, the last n and the counts; they stay in the file, and search finds them.
"""

from __future__ import annotations

import functools
import itertools
import logging
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, ParamSpec, TypeVar

from holdfast.core import Core
from holdfast.errors import Invalid
from holdfast.formats.summaries import Gist
from holdfast.memories import _compaction, _relevant
from holdfast.memories._compaction import Compacted, Summary, stated
from holdfast.memories._window import Remembered, Window
from holdfast.model.kinds import KINDS, Kind
from holdfast.model.names import check_given, close_to
from holdfast.model.queries import Query, fold, parse
from holdfast.model.records import Draft, Record, line_of
from holdfast.model.scopes import DEFAULT, Scope
from holdfast.model.times import bound

TYPES = ("working", "episodic", "semantic", "procedural")
_KINDS = {"episodic": KINDS["episode"], "semantic": KINDS["fact"], "procedural": KINDS["procedure"]}
STATS = (
    "workingMemoryTokens", "episodicEntryCount", "semanticEntryCount", "proceduralRuleCount", "totalStorageBytes",
)  # fmt: skip
_MOST = 1_000
_OWN = ("op", "writer")
"""What Holdfast itself writes into a line."""
_REFERRED = ("ref", "size", "head")
_log = logging.getLogger("holdfast")
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def _safely(
    otherwise: Callable[[], Any],
) -> Callable[[Callable[Given, Answer]], Callable[Given, Answer]]:
    """Let a failing memory not fail the agent, where that is wanted: log it, and answer as if nothing were there."""

    def make(method: Callable[Given, Answer]) -> Callable[Given, Answer]:
        @functools.wraps(method)
        def call(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
            mind: Any = args[0]
            try:
                return method(*args, **kwargs)
            except Exception as error:
                if mind.on_error == "raise":
                    raise
                _log.warning("memory %s failed: %s", method.__name__, error)
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
        limits = memory.settings.mind
        self._memory = memory
        self._scope = scope
        self.session = session or DEFAULT
        self.working = window if window is not None else Window(limits.window_entries, limits.window_tokens)
        self.on_error = on_error
        self.warnings: list[str] = []
        """What could not be read so far."""

    # what is remembered

    @_safely(lambda: "")
    def append(self, type: str, entry: Any, op_id: str = "") -> str:
        """Add an entry, text or any JSON object, and return its id; all but working memory is durable then."""
        _check_type(type)
        check_given(op_id=op_id)
        if not (isinstance(entry, str) and entry.strip()) and not (isinstance(entry, Mapping) and entry):
            raise Invalid("An entry is text or an object, and not empty.", "Give what happened.")
        if type == "semantic":
            return self._learn(entry, op_id)
        if type == "procedural":
            return self._advise(entry, op_id)
        if type == "working":
            return self.working.add(self._memory.offload(entry, self.session, self.working.holds))
        draft = Draft(kind="episode", data=entry, session=self.session, scope=self._scope, op_id=op_id)
        return self._memory.keep(draft).id

    @_safely(lambda: "")
    def learn(self, key: Any, value: Any = None, op_id: str = "") -> str:
        """Keep knowledge by key; the value that held before stays in its history."""
        check_given(op_id=op_id)
        return self._learn(key if isinstance(key, Mapping) else {"key": key, "value": value}, op_id)

    def _learn(self, entry: Any, op_id: str) -> str:
        key, value = (entry.get("key"), entry.get("value")) if isinstance(entry, Mapping) else (None, None)
        if not isinstance(key, str) or not key.strip() or value is None or value == "":
            raise Invalid("Knowledge is {key, value}, the key text that is not blank.", "Say what it is about.")
        more = {name: inner for name, inner in entry.items() if name != "value"} | {"key": _form(key)}
        return self._memory.keep(Draft(kind="fact", data=value, fields=more, scope=self._scope, op_id=op_id)).id

    def _advise(self, entry: Any, op_id: str) -> str:
        when, do = (entry.get("when"), entry.get("do")) if isinstance(entry, Mapping) else (None, None)
        if not (isinstance(when, str) and when.strip()) or not do:
            raise Invalid("A procedure is {when, do}.", "Say when it applies, and what to do then.")
        more = {name: inner for name, inner in entry.items() if name != "do"}
        return self._memory.keep(Draft(kind="procedure", data=do, fields=more, scope=self._scope, op_id=op_id)).id

    @_safely(lambda: None)
    def recall(self, key: str, history: bool = False, as_of: str = "") -> Any:
        """Return what is known under a key, None when nothing is; or all it ever was; or what it was at a time."""
        if not isinstance(key, str) or not key.strip():
            raise Invalid("The key is text that is not blank.", "Give the key.")
        check_given(as_of=as_of)
        kind, key = _KINDS["semantic"], _form(key)
        self._warn("semantic")
        if not history and not as_of:
            held = self._memory.held(kind, key)
            return _knowledge(held) if held else None
        past = [record for record in self._memory.history(kind, key) if not record.hidden]
        if history:
            return [_knowledge(record) for record in past]
        until = bound(as_of, end=True)
        then = [record for record in past if record.time <= until]
        return _knowledge(then[-1]) if then else None

    # finding

    @_safely(list)
    def search(self, type: str, query: Any, limit: int = 10) -> list[Remembered]:
        """Return the best entries for some words, or with `{"last": n}` the last n, oldest first."""
        _check_type(type)
        last = query.get("last") if isinstance(query, Mapping) and set(query) == {"last"} else None
        if last is not None:
            return self._last(type, _number("last", last))
        if not isinstance(query, str) or not query.strip():
            raise Invalid("A query is some words, or {last: n}.", "Give either.")
        limit = _number("limit", limit)
        if type == "working":
            return self.working.search(query, limit)
        self._warn(type)
        found = self._memory.find(Query(text=query, kinds=(_KINDS[type].name,), session=self._of(type), limit=limit))
        summary = self._summary(type)
        hits = [_remembered(hit.record, summary.last if summary else "", hit.score) for hit in found]
        words = parse(query).tokens
        if summary and len(hits) < limit and not words.isdisjoint(fold(summary.text)):
            hits.append(_compaction.entry_of(summary))
        return hits

    def _last(self, type: str, count: int) -> list[Remembered]:
        if type == "working":
            return self.working.last(count)
        self._warn(type)
        summary = self._summary(type)
        found = [_remembered(record, "") for record in itertools.islice(self._newest(type, summary), count)][::-1]
        return [_compaction.entry_of(summary), *found] if summary and len(found) < count else found

    def _newest(self, type: str, summary: Summary | None) -> Iterator[Record]:
        """Yield the entries that no summary covers, newest first."""
        kind, after = _KINDS[type], summary.last if summary else ""
        path = self._path(kind)
        if kind.key:
            every = self._memory.every(Query(kinds=(kind.name,)))
            return iter(sorted((one for one in every if one.order > after), key=lambda one: one.order, reverse=True))
        records = self._memory.backwards(path, session=self._of(type))
        return (record for record in records if record.order > after)

    @_safely(list)
    def match(self, situation: str, limit: int = 5) -> list[dict[str, Any]]:
        """Return the procedures that apply to a situation, the one whose condition fits best first."""
        check_given(situation=situation)
        words = set(fold(situation))
        if not words:
            raise Invalid("The situation is blank.", "Say what is going on.")
        self._warn("procedural")
        found = self._memory.find(Query(text=situation, kinds=("procedure",), limit=_MOST))
        ranked = []
        for hit in found:
            wanted = parse(hit.record.title).tokens
            fits = len([word for word in wanted if any(_alike(word, given) for given in words)])
            if fits:
                ranked.append((-fits / len(wanted), -hit.score, hit.record))
        ranked.sort(key=lambda item: item[2].order, reverse=True)
        ranked.sort(key=lambda item: item[:2])
        told: dict[tuple[str, str], dict[str, Any]] = {}  # what was said twice is told once
        for fit, _, record in ranked:
            rule = _stored(record) | {"id": record.id, "fit": round(-fit, 3)}
            told.setdefault((record.title, record.text), rule)
        return list(told.values())[: _number("limit", limit)]

    @_safely(str)
    def context(self, task: str, budget: int = 2_000) -> str:
        """Return what is relevant to a task, within a budget of tokens: what to do, what is known, what happened."""
        check_given(task=task)
        if not task.strip():
            raise Invalid("The task is blank.", "Say what is to be done.")
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
            raise Invalid(f"budget is {budget!r}.", "Use a number of tokens.")
        summary = self._summary("episodic")
        known = [hit for hit in self.search("semantic", task) if not hit.summary]
        offers = {
            "What to do": [stated("procedure", one["when"], one["do"]) for one in self.match(task)],
            "What is known": [stated("fact", hit.entry["key"], hit.entry["value"]) for hit in known],
            _relevant.BEFORE: [],
            "What happened": [line_of(hit.entry) for hit in self.search("episodic", task) if not hit.summary],
        }
        return _relevant.text(offers, Gist(summary.text, summary.said) if summary else Gist(), budget)

    # keeping it small

    @_safely(Compacted)
    def compact(self, type: str, keep_last: int = 10, summarize_older: bool = True) -> Compacted:
        """Summarise all but the last entries; doing it again changes nothing."""
        _check_type(type)
        if isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 0:
            raise Invalid(f"keepLast is {keep_last!r}.", "Use a number from 0 on.")
        if not isinstance(summarize_older, bool):
            raise Invalid(f"summarizeOlder is {summarize_older!r}.", "Use true or false.")
        summariser = _compaction.Summariser(self._memory, summarize=summarize_older)
        if type == "working":
            return self._compact_working(keep_last, summariser)
        path, session = self._summaries(type), self._of(type)

        def live(after: str) -> list[Record]:
            known = Summary(last=after) if after else None
            return list(self._newest(type, known))[::-1]

        return _compaction.compact(self._memory, _compaction.Log(path, type, session), live, keep_last, summariser)

    def _compact_working(self, keep: int, summariser: _compaction.Summariser) -> Compacted:
        covered, summary = self.working.compact(
            keep,
            lambda older, told, most: summariser.write(
                [_compaction.entry(one.entry, one.time) for one in older], told, most
            ),
        )
        kept = len([one for one in self.working.last(_MOST) if not one.summary])
        if summary is None:
            return Compacted(kept=kept)
        return Compacted(covered, kept, summary.id, summary.text, summariser.by, summariser.fallback)

    @_safely(lambda: dict.fromkeys(STATS, 0))
    def stats(self) -> dict[str, int]:
        """Return how much is remembered."""
        vault, places = self._memory.vault, self._memory.places
        self._warn(*_KINDS)
        counts = {}
        for type, kind in _KINDS.items():
            summary = self._summary(type)
            after = summary.last if summary else ""
            live = self._memory.count(self._path(kind), after)
            counts[type] = live + bool(summary)
        logs = {self._path(kind) for kind in _KINDS.values()} | {self._summaries(type) for type in _KINDS}
        size = sum(stamp.size for path in logs if (stamp := vault.stat(path)))
        for folder in (f"{self._path(_KINDS['episodic']).rpartition('/')[0]}/values", f"{places.memory}/values"):
            size += sum(stamp.size for _, stamp in vault.walk(folder, (".txt", ".json"), lambda _path, _why: None))
        numbers = (self.working.tokens, counts["episodic"], counts["semantic"], counts["procedural"], size)
        return dict(zip(STATS, numbers, strict=True))

    def _warn(self, *types: str) -> None:
        """Note what cannot be read in the logs of these memories."""
        paths = {path for type in types for path in (self._path(_KINDS[type]), self._summaries(type))}
        found = [f"{problem}; all else in it is still used." for problem in self._memory.damage(*sorted(paths))]
        self.warnings += [warning for warning in found if warning not in self.warnings]

    def _of(self, type: str) -> str:
        """Return the session that a memory belongs to, "" for one that belongs to all."""
        return self.session if type == "episodic" else ""

    def _path(self, kind: Kind) -> str:
        return self._memory.places.path_for(kind, Scope(), session=self.session)

    def _summaries(self, type: str) -> str:
        """Return the log of the summaries of a memory."""
        if type == "episodic":
            return self._path(KINDS["summary"])
        return f"{self._memory.places.memory}/summaries.jsonl"

    def _summary(self, type: str) -> Summary | None:
        return _compaction.newest(self._memory, self._summaries(type), type)


def _check_type(given: object) -> None:
    if given not in TYPES:
        raise Invalid(f"There is no memory {given!r}.{close_to(str(given), TYPES)}", f"Use one of: {', '.join(TYPES)}.")


def _number(name: str, given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= _MOST:
        raise Invalid(f"{name} is {given!r}.", f"Use a number from 1 to {_MOST}.")
    return given


def _form(key: str) -> str:
    """Return a key as it is kept: composed, and without space around it."""
    return unicodedata.normalize("NFC", key).strip()


def _given(record: Record) -> Any:
    """Return what a line carries as it was given; of what was too large for it, where that is."""
    kind = KINDS[record.kind]
    if "ref" in record.fields:
        return {name: record.fields.get(name) for name in _REFERRED}
    return record.fields.get(kind.text, record.text)


def _stored(record: Record) -> dict[str, Any]:
    """Return a piece of knowledge or a procedure with all that was given with it."""
    kind = KINDS[record.kind]
    own = {kind.text, kind.title, *_OWN, *(_REFERRED if "ref" in record.fields else ())}
    more = {name: value for name, value in record.fields.items() if name not in own}
    return {kind.title: record.title, kind.text: _given(record)} | more


def _remembered(record: Record, covered: str, score: float = 0.0) -> Remembered:
    entry = _given(record) if record.kind == "episode" else _stored(record)
    is_covered = bool(covered) and record.order <= covered
    return Remembered(record.id, entry, record.time, covered=is_covered, score=score)


def _knowledge(record: Record) -> dict[str, Any]:
    return _stored(record) | {"time": record.time, "id": record.id}


def _alike(one: str, other: str) -> bool:
    """Are these forms of one word, roughly?"""
    short, long = sorted((one, other), key=len)
    return long.startswith(short[: max(4, len(short) - 2)]) if len(short) > 3 else one == other
