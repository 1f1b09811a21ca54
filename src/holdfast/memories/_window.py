"""Working memory: the last entries of one process, within a number of entries and of tokens.

What falls out is gone. An entry that is too large for the window is kept elsewhere by whoever adds it; the window holds
its reference. Whatever happens, it holds no more than it may.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.formats.summaries import Gist, head
from holdfast.model.queries import fold, parse
from holdfast.model.records import text_of
from holdfast.model.settings import Mind
from holdfast.model.times import mint, utc_now
from holdfast.model.tokens import count_tokens

_MOST_SESSIONS = 1_000


class Remembered(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a memory, as it was given; of a large one, where it is, how it begins and how long it is."""

    id: str
    entry: Any
    time: str = ""
    covered: bool = False
    """A summary speaks for it: it is in no window and in no count."""
    summary: bool = False
    """It is such a summary."""
    score: float = 0.0

    @property
    def text(self) -> str:
        return text_of(self.entry)


class Window:
    def __init__(self, most_entries: int, most_tokens: int) -> None:
        self._most_entries = most_entries
        self._most_tokens = most_tokens
        self._lock = threading.RLock()
        self._entries: deque[tuple[Remembered, int]] = deque()
        self._said: tuple[tuple[str, str], ...] = ()
        """The sentences of the summary that it begins with, if it does."""

    def holds(self, entry: Any) -> bool:
        """Is there room for this entry, if all others make way?"""
        return count_tokens(text_of(entry)) <= self._most_tokens

    def add(self, entry: Any) -> str:
        """Take an entry in; the oldest ones make room for it. Of one that refers to a value, the head may be cut."""
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
        found = []
        for place, entry in enumerate(self.last(len(self._entries))):
            score = len(words & set(fold(entry.text)))
            if score:
                found.append((score, place, entry))
        found.sort(key=lambda item: (-item[0], -item[1]))
        return [msgspec.structs.replace(entry, score=float(score)) for score, _, entry in found[:limit]]

    def compact(
        self, keep: int, summarise: Callable[[list[Remembered], tuple[tuple[str, str], ...], int], Gist]
    ) -> tuple[int, Remembered | None]:
        """Put one summary in the place of all but the last entries; return how many left, and the summary.

        `summarise` gets those entries, what an earlier summary said, and how many tokens there are for the new one.
        What is added while it is written stays.
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

    def __init__(self, limits: Mind) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._windows: OrderedDict[str, Window] = OrderedDict()

    def of(self, session: str) -> Window:
        """Return the working memory of a session."""
        with self._lock:
            window = self._windows.pop(session, None) or Window(self._limits.window_entries, self._limits.window_tokens)
            self._windows[session] = window
            while len(self._windows) > _MOST_SESSIONS:
                self._windows.popitem(last=False)
            return window
