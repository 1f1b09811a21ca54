"""A summary made of what the entries themselves say, without a model.

Every line is a sentence of an entry, or a piece of one that `…` marks as cut, in the order of time, with its day where
the day changes; the last line says what was left out. Sentences are chosen one by one: what tells most for its length
comes first (`_telling` weighs it, words that run through the entries add to it), what is said again and again counts
for less, and so do words that are in the summary already. The same entries give the same summary, on every machine.

What a summary says is known sentence by sentence, each with its day, beside the text that people read: a later summary
goes on from those and never has to guess what in a text is a day and what somebody wrote.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.formats import _telling
from holdfast.model.tokens import WIDE, count_tokens

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_DIGITS = re.compile(r"\d+")
_UNDATED = "undated"
_LABEL = re.compile(rf"(?:{_DAY.pattern}|{_UNDATED}): ", re.ASCII)
_ALL = "All of them are here, but not with all of their text"
_ACCOUNT = re.compile(rf"\((?:\d+ of \d+ .*(?:in no sentence here|left out)\b.*|{_ALL}\.)\)|{_telling.CUT}")
_PREFIX = len("2026-01-01: ")
_KNOWN = 0.3
"""What a word still counts for, each time that it is in the summary already."""
_THREAD = 0.5
"""What a sentence gains that is made of words which run through the entries."""
_WORTHLESS = 0.05
"""A sentence below this share of the best one is left out, whatever room there is."""
_LOOKS = 20
"""How often sentences are weighed again, on average, before their order stands as it is: keeps the work linear."""
_SHORTEST = 20
"""Characters below which a piece of a sentence says nothing."""


class Entry(msgspec.Struct, frozen=True):
    """One thing that was remembered."""

    id: str
    time: str
    """ISO 8601 in UTC, or "" where nobody knows."""
    text: str
    single: bool = False
    """It is one sentence on one line, whatever marks stand in it."""

    @property
    def day(self) -> str:
        return found[0] if (found := _DAY.match(self.time)) else ""


class Gist(msgspec.Struct, frozen=True):
    """What entries come to: the text, and each sentence that is in it with its day, "" where nobody knows."""

    text: str = ""
    said: tuple[tuple[str, str], ...] = ()


class _Sentence(msgspec.Struct):
    text: str
    words: tuple[str, ...]
    entries: list[int]
    """Those that say it; it stands where the first one does."""
    value: float = 0.0
    looked: int = 0
    """How many sentences were chosen when it was last weighed."""


def extract(entries: Sequence[Entry], budget: int, noun: str = "entries") -> str:
    """Summarise entries, oldest first, in at most so many tokens; what is short enough is returned whole.

    `noun` says what they are, where the last line tells how many were left out.
    """
    return summarise(entries, budget, noun).text


def summarise(entries: Sequence[Entry], budget: int, noun: str = "entries") -> Gist:
    """Summarise entries like `extract`, and return each sentence as well."""
    if budget < 1 or not entries:
        return Gist()
    whole = _lines([(entry.day, entry.text.strip()) for entry in entries if entry.text.strip()])
    if count_tokens(whole) <= budget:
        return Gist(whole, tuple((entry.day, said) for entry in entries for said in _sentences(entry)))
    found, empty = _read(entries)
    every = f"{len(entries)} {noun}"
    last = _size(_left_out(every, len(entries), len(entries), 2 * budget))
    chosen = _choose(found, [entry.day for entry in entries], 4 * budget - last - 1)
    known = {number for sentence in chosen for number in sentence.entries}
    said = tuple((entries[sentence.entries[0]].day, sentence.text) for sentence in chosen)
    text = f"{_lines(said)}\n{_left_out(every, len(entries) - len(known), empty, last)}".strip()
    return Gist(text, said)


def head(text: str, most: int) -> str:
    """Return the beginning of a text in at most so many tokens, cut between words and marked with `…`."""
    if count_tokens(text) <= most:
        return text
    low, high = 0, min(len(text), 4 * max(most, 0))
    while low < high:
        middle = (low + high + 1) // 2
        fits = count_tokens(text[:middle] + _telling.CUT) <= most
        low, high = (middle, high) if fits else (low, middle - 1)
    if low and text[low].isalnum() and not WIDE.match(text[low]):
        space = max(text.rfind(mark, max(0, low - 40), low) for mark in " \n")
        low = space if space > 0 else low
    return text[:low].rstrip(" \r\n\t,;:") + _telling.CUT if most > 0 else ""


def _sentences(entry: Entry) -> list[str]:
    if entry.single:
        return [entry.text.strip()] if entry.text.strip() else []
    return list(_telling.sentences(entry.text))


def _read(entries: Sequence[Entry]) -> tuple[list[_Sentence], int]:
    """Return each different sentence, weighed, and how many entries hold no more than a greeting."""
    found: dict[str, _Sentence] = {}
    empty = 0
    for number, entry in enumerate(entries):
        says = False
        for sentence in (piece for whole in _sentences(entry) for piece in _telling.pieces(whole)):
            key = sentence.casefold()
            if (same := found.get(key)) is not None:
                same.entries.append(number)
                says = True
            elif (words := _telling.words(sentence)) and not _telling.is_greeting(sentence, words):
                found[key] = _Sentence(sentence, tuple(words), [number])
                says = True
        empty += not says
    return list(found.values()), empty


def _choose(found: list[_Sentence], days: Sequence[str], room: int) -> list[_Sentence]:
    """Return the sentences that tell most within so many characters, in the order of the entries."""
    rare = _weigh(found)
    runs = _runs(days)
    least = _WORTHLESS * max((sentence.value for sentence in found), default=0.0)
    heap = [(-_rank(each, each.value), place) for place, each in enumerate(found) if each.value >= least]
    heapq.heapify(heap)
    best = found[heap[0][1]] if heap else None
    known: dict[str, float] = {}
    prefixed: set[int] = set()
    chosen: list[int] = []
    looks = _LOOKS * len(found)
    dated = any(days)
    while heap and room >= _SHORTEST:
        _, place = heapq.heappop(heap)
        sentence = found[place]
        if sentence.looked != len(chosen) and looks:
            looks -= 1
            sentence.looked = len(chosen)
            value = sentence.value * _fresh(sentence.words, rare, known)
            heapq.heappush(heap, (-_rank(sentence, value), place))
            continue
        run = runs[sentence.entries[0]]
        labelled = run not in prefixed or (dated and _LABEL.match(sentence.text))
        cost = _size(sentence.text) + 1 + (_PREFIX if labelled else 0)
        if cost <= room:
            room -= cost
            prefixed.add(run)
            chosen.append(place)
            for word in sentence.words:
                known[word] = known.get(word, 1.0) * _KNOWN
    if best and not chosen and room - _PREFIX > _SHORTEST:
        return [msgspec.structs.replace(best, text=head(best.text, (room - _PREFIX) // 4))]
    return [found[place] for place in sorted(chosen)]


def _weigh(found: Sequence[_Sentence]) -> dict[str, float]:
    """Set what each sentence is worth; return how much each word sets sentences apart.

    Of sentences that differ in their numbers only, the first one speaks for all; what is said ever again is filler.
    """
    spread: Counter[str] = Counter()
    for sentence in found:
        spread.update(set(sentence.words))
    every = len(found)
    names = [_DIGITS.sub("0", " ".join(sentence.words)) for sentence in found]
    forms = Counter(names)
    met: set[str] = set()
    rare = {word: math.log(1 + every / count) for word, count in spread.items()}
    thread = {word: rare[word] * math.log(count) for word, count in spread.items()}
    most = max(thread.values(), default=0.0) or 1.0
    for sentence, form in zip(found, names, strict=True):
        common = sum(map(thread.__getitem__, sentence.words)) / (most * len(sentence.words))
        value = _telling.weight(sentence.text, sentence.words) + _THREAD * common
        sentence.value = value / math.sqrt(len(sentence.entries) * (forms[form] if form in met else 1))
        met.add(form)
    return rare


def _rank(sentence: _Sentence, value: float) -> float:
    """Return what a sentence tells for its length."""
    return value / math.sqrt(_size(sentence.text))


def _fresh(words: Sequence[str], rare: Mapping[str, float], known: Mapping[str, float]) -> float:
    """Return which share of what these words weigh is not in the summary yet."""
    left = total = 0.0
    for word in words:
        total += rare[word]
        left += rare[word] * known.get(word, 1.0)
    return left / total


def _runs(days: Sequence[str]) -> list[int]:
    """Number the days as they change from entry to entry."""
    runs: list[int] = []
    for place, day in enumerate(days):
        runs.append(runs[-1] + (day != days[place - 1]) if place else 0)
    return runs


def _lines(said: Sequence[tuple[str, str]]) -> str:
    """Join texts, with the day of each where it differs from the one before, or where the text begins like a day.

    What has several lines goes on indented, so that no line of it passes for another entry.
    """
    lines = []
    before = ""
    dated = any(day for day, _ in said)
    for day, text in said:
        labelled = day != before or (dated and _LABEL.match(text))
        lines.append((f"{day or _UNDATED}: " if labelled else "") + text.replace("\n", "\n  "))
        before = day
    return "\n".join(lines)


def again(before: Sequence[tuple[str, str]], entries: Sequence[Entry], budget: int) -> Gist:
    """Summarise what an earlier summary said and newer entries, which get half of the room if they need it."""
    earlier = sum(count_tokens(text) + 1 for _, text in before)
    recent = summarise(entries, max(budget - earlier, budget // 2))
    return after(before, recent, budget)


def after(before: Sequence[tuple[str, str]], recent: Gist, budget: int) -> Gist:
    """Put what an earlier summary said before a newer one, as far as it fits."""
    told = [Entry(id=str(place), time=day, text=text, single=True) for place, (day, text) in enumerate(before)]
    earlier = summarise(told, budget - count_tokens(recent.text) - 1, "earlier sentences")
    return Gist(f"{earlier.text}\n{recent.text}".strip(), (*earlier.said, *recent.said))


def read(text: str) -> list[tuple[str, str]]:
    """Return the sentences of a summary of which only the text is known, each with the day that it seems to have."""
    day = ""
    said = []
    for line in text.splitlines():
        if _ACCOUNT.fullmatch(line):
            continue
        if found := _LABEL.match(line):
            day, line = found[0].removesuffix(": ").replace(_UNDATED, ""), line[found.end() :]
        said += [(day, sentence) for sentence in _telling.sentences(line)]
    return said


def _left_out(every: str, missing: int, empty: int, room: int) -> str:
    """Say what a summary does not say, in at most so many characters."""
    verb = "is" if missing == 1 else "are"
    greeting = f"; {empty} of them {'holds' if empty == 1 else 'hold'} no more than a greeting" if empty else ""
    full = f"({missing} of {every} {verb} in no sentence here{greeting}.)"
    if not missing:
        full = f"({_ALL}.)"
    short = f"({missing} of {every.partition(' ')[0]} left out)"
    return next((text for text in (full, short) if _size(text) <= room), _telling.CUT)


def _size(text: str) -> int:
    """Return the quarters of a token that a text costs: these add up, where rounded tokens do not."""
    return len(text) if text.isascii() else len(text) + 3 * sum(1 for _ in WIDE.finditer(text))
