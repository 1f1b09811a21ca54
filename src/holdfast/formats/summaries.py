"""Extractive summaries: made from the sentences of the entries, without a model.

Every line is a sentence of an entry, or a piece of one with `…` at each cut, in order of time, with its day where the
day changes; the last line counts the omitted entries. Sentences are chosen one by one by their information for their
length: numbers, names, paths, decisions, results and errors count most; greetings, repetition and words already in the
summary count less. The word lists are mostly English. The same entries give the same summary on every machine.

A summary is also returned as sentences with their days, so that a later summary does not have to parse the text.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.model.names import WIDE, count_tokens
from holdfast.model.patterns import regex
from holdfast.model.queries import QUESTION_WORDS, fold, runs

_LONGEST = 240
"""Characters of a sentence, or of a piece of one."""
_CUT = "…"
_DAY = regex(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_DIGITS = regex(r"\d+")
_UNDATED = "undated"
_LABEL = regex(rf"(?:\d{{4}}-\d{{2}}-\d{{2}}|{_UNDATED}): ", re.ASCII)
_PREFIX = len("2026-01-01: ")
_KNOWN = 0.3
"""Factor for a word, each time that it is already in the summary."""
_THREAD = 0.5
"""Bonus for a sentence made of words that recur in the entries."""
_WORTHLESS = 0.05
"""A sentence below this share of the best one is always left out."""
_RERANKS = 20
"""How often each sentence may be ranked again, on average; keeps the work linear."""
_SHORTEST = 20
"""Characters below which a piece of a sentence is useless."""

_BULLET = regex(r"[^\S\n]*(?:(?:[-*+•>]|#{1,6})\s+)*")
_END = regex(
    r"(?<=[.!?…\U0001F300-\U0001FAFF])\s+|(?<=[.!?…][\"'”’»)\]])\s+|(?<=[:;-]\))\s+"
    r"|(?<=[。！？])(?![。！？」』”’）])|(?<=[。！？][」』”’）])"
)
"""Where a sentence may end: after its mark, and in a chat also after a smiley."""
_SHORT_FORMS = frozenset("e.g i.e etc vs cf mr mrs dr prof st approx ca fig al z.b d.h u.a p.s".split())
_SIGNS = regex(
    r"`[^`]+`|\"[^\"]{2,}\"|“[^”]+”|[「『《][^」』》]+[」』》]|https?://\S+|[\w.~-]*[/\\][\w./\\-]+"
    r"|\w+_\w+|\b[a-z]+[A-Z]\w*|\w+\(\)|\b\w+\.[a-z]{1,5}\b|#\d+"
)
"""Code, paths, addresses and quotations."""
_HAS_SIGNS = regex(r"[`\"“「『《/\\_#(]|[a-z][A-Z]|\w\.\w")
_ANNOUNCED = regex(
    r"(?:ok(?:ay)?|so|now|well|alright|first|next|then)?[,.!]?\s*"
    r"(?:let me|let's|let us|i'll|i will|i am|i'm|we'll|we will|going to|looking|checking|working)\b",
    re.IGNORECASE,
)

_DECIDED = frozenset(
    "decide decided decides decision choose chose chosen agreed agree because therefore must never always instead"
    " rejected reject replaced replace prefer prefers preferred require required requires forbidden only deadline"
    " until not rule policy approved 决定 決定 因为 因為 必须 必須 不要 代替 결정 때문".split()
)
_RESULT = frozenset(
    "result results found fixed fix cause caused fails fail failed failure failing error errors exception traceback"
    " crash crashed broken bug timeout refused denied warning passed passes solved works measured learned shows"
    " turned increased decreased dropped lost leak released deployed merged migrated 错误 錯誤 失败 失敗 结果 結果"
    " 修复 修正 发现 오류 실패 결과".split()
)
_GREETINGS = frozenset(
    "hi hello hey hiya dear morning afternoon evening night good great nice fine cool perfect awesome excellent"
    " thanks thank thx ty cheers welcome please sorry bye goodbye see later soon ok okay k yes yeah yep yup sure right"
    " alright no nope well oh ah hm hmm hmmm haha lol lot much very many all everyone team again let know got sounds"
    " looks makes sense problem worries course absolutely definitely of you re m s ll ve t d day weekend hope how going"
    " hola gracias bonjour merci salut hallo danke guten tag morgen abend bitte ciao grazie prego ola obrigado obrigada"
    " привет спасибо здравствуйте 你好 您好 谢谢 謝謝 こんにちは ありがとう"
    " ありがとうございます おはよう おはようございます 안녕하세요 감사합니다 早上好 再见 再見".split()
) | (QUESTION_WORDS - {"could", "might", "should", "why", "while"})


class Entry(msgspec.Struct, frozen=True):
    id: str
    time: str
    """ISO 8601 in UTC, "" if unknown."""
    text: str
    single: bool = False
    """Treat it as one sentence."""

    @property
    def day(self) -> str:
        return found[0] if (found := _DAY.match(self.time)) else ""

    @property
    def sentences(self) -> list[str]:
        if self.single:
            return [self.text.strip()] if self.text.strip() else []
        found = list[str]()
        for line in self.text.splitlines():  # a sentence ends at its mark or with its line
            start = bullet.end() if (bullet := _BULLET.match(line)) else 0
            for end in _END.finditer(line):
                before = line[max(start, end.start() - 8) : end.start()]
                last = (before[:-1].split() or [""])[-1].strip("(\"'")
                # the period of an abbreviation, an initial or a list number does not end a sentence
                initial = (len(last) == 1 and last.isupper()) or (len(last) < 3 and last.isdecimal())
                goes_on = before.endswith(".") and (initial or last.casefold() in _SHORT_FORMS)
                if end.start() > start and not goes_on:
                    found.append(line[start : end.start()].strip())
                    start = end.end()
            if rest := line[start:].strip():
                found.append(rest)
        return found


class Gist(msgspec.Struct, frozen=True):
    """A summary: its text, and its sentences with their days ("" if unknown)."""

    text: str = ""
    said: tuple[tuple[str, str], ...] = ()


class _Sentence(msgspec.Struct):
    text: str
    words: tuple[str, ...]
    entries: list[int]
    """The entries with this sentence; it is placed at the first one."""
    value: float = 0.0
    ranked: int = 0
    """How many sentences were chosen when it was last ranked."""


def extract(entries: Sequence[Entry], budget: int, noun: str = "entries") -> str:
    """Summarise entries, oldest first, in at most `budget` tokens; short entries are returned whole.

    `noun` names them in the last line, which counts the omitted ones.
    """
    return summarise(entries, budget, noun).text


def summarise(entries: Sequence[Entry], budget: int, noun: str = "entries") -> Gist:
    """Summarise entries like `extract`, and return the sentences too."""
    if budget < 1 or not entries:
        return Gist()
    whole = _lines([(entry.day, entry.text.strip()) for entry in entries if entry.text.strip()])
    if count_tokens(whole) <= budget:
        return Gist(whole, tuple((entry.day, said) for entry in entries for said in entry.sentences))
    found: dict[str, _Sentence] = {}
    empty = 0  # entries with only a greeting
    for number, entry in enumerate(entries):
        useful = False
        for sentence in (piece for whole in entry.sentences for piece in _pieces(whole)):
            key = sentence.casefold()
            if (same := found.get(key)) is not None:
                same.entries.append(number)
                useful = True
            elif (words := ["".join(run) for run in runs(sentence)]) and not (
                _GREETINGS.issuperset(words) or (not sentence.isascii() and "".join(fold(sentence)) in _GREETINGS)
            ):
                found[key] = _Sentence(sentence, tuple(words), [number])
                useful = True
        empty += not useful
    every = f"{len(entries)} {noun}"
    last = _size(_left_out(every, len(entries), len(entries), 2 * budget))
    chosen = _choose(list(found.values()), [entry.day for entry in entries], 4 * budget - last - 1)
    known = {number for one in chosen for number in one.entries}
    said = tuple((entries[one.entries[0]].day, one.text) for one in chosen)
    text = f"{_lines(said)}\n{_left_out(every, len(entries) - len(known), empty, last)}".strip()
    return Gist(text, said)


def head(text: str, most: int) -> str:
    """Return the beginning of a text in at most `most` tokens, cut between words and marked with `…`."""
    if count_tokens(text) <= most:
        return text
    lengths = range(1, min(len(text), 4 * max(most, 0)) + 1)
    end = bisect.bisect_right(lengths, most, key=lambda length: count_tokens(text[:length] + _CUT))
    if end and text[end].isalnum() and not WIDE.match(text[end]):
        space = max(text.rfind(mark, max(0, end - 40), end) for mark in " \n")
        end = space if space > 0 else end
    return text[:end].rstrip(" \r\n\t,;:") + _CUT if most > 0 else ""


def _choose(found: list[_Sentence], days: Sequence[str], room: int) -> list[_Sentence]:
    """Return the most informative sentences that fit into `room` characters, in the order of the entries."""
    rare = _evaluate(found)
    runs = [0]  # the days, numbered as they change from entry to entry
    for day, following in itertools.pairwise(days):
        runs.append(runs[-1] + (day != following))
    least = _WORTHLESS * max((sentence.value for sentence in found), default=0.0)
    heap = [(-_rank(each, each.value), place) for place, each in enumerate(found) if each.value >= least]
    heapq.heapify(heap)
    best = found[heap[0][1]] if heap else None
    known: dict[str, float] = {}
    prefixed: set[int] = set()
    chosen: list[int] = []
    reranks = _RERANKS * len(found)
    dated = any(days)
    while heap and room >= _SHORTEST:
        _, place = heapq.heappop(heap)
        sentence = found[place]
        if sentence.ranked != len(chosen) and reranks:
            reranks -= 1
            sentence.ranked = len(chosen)
            new = sum(rare[word] * known.get(word, 1.0) for word in sentence.words)
            value = sentence.value * (new / sum(map(rare.__getitem__, sentence.words)))
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


def _evaluate(found: Sequence[_Sentence]) -> dict[str, float]:
    """Set the value of each sentence; return how rare each word is.

    Of sentences that differ only in numbers, the first one counts fully and the others less.
    """
    spread: Counter[str] = Counter()
    for sentence in found:
        spread.update(set(sentence.words))
    every = len(found)
    shapes = [_DIGITS.sub("0", " ".join(sentence.words)) for sentence in found]
    forms = Counter(shapes)
    met: set[str] = set()
    rare = {word: math.log(1 + every / count) for word, count in spread.items()}
    thread = {word: rare[word] * math.log(count) for word, count in spread.items()}
    most = max(thread.values(), default=0.0) or 1.0
    for sentence, form in zip(found, shapes, strict=True):
        common = sum(map(thread.__getitem__, sentence.words)) / (most * len(sentence.words))
        text = sentence.text
        names = sum(1 for word in text.split()[1:] if word[0].isupper() and len(word) > 1 and word[1] not in "'’")
        weight = (
            0.5 * min(1.0, sum(1 for word in sentence.words if word not in _GREETINGS) / 5)
            + 0.5 * min(len({word for word in sentence.words if word[0].isdigit()}), 4)
            + 0.4 * min(names, 3)
            + 0.6 * min(len(_SIGNS.findall(text)) if _HAS_SIGNS.search(text) else 0, 2)
            + 0.9 * min(len(_DECIDED.intersection(sentence.words)), 2)
            + 0.8 * min(len(_RESULT.intersection(sentence.words)), 2)
        )  # about 0.5 for plain words, up to 8
        weight *= 0.6 if text.endswith(("?", "？")) else 1
        weight *= 0.5 if _ANNOUNCED.match(text) else 1
        value = weight + _THREAD * common
        sentence.value = value / math.sqrt(len(sentence.entries) * (forms[form] if form in met else 1))
        met.add(form)
    return rare


def _rank(sentence: _Sentence, value: float) -> float:
    return value / math.sqrt(_size(sentence.text))


def _lines(said: Sequence[tuple[str, str]]) -> str:
    """Join texts, each with its day if the day changes or the text begins like one.

    Further lines of a text are indented, so that none looks like another entry.
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
    """Summarise an earlier summary and newer entries, which get half of the budget if they need it."""
    earlier = sum(count_tokens(text) + 1 for _, text in before)
    recent = summarise(entries, max(budget - earlier, budget // 2))
    return after(before, recent, budget)


def after(before: Sequence[tuple[str, str]], recent: Gist, budget: int) -> Gist:
    """Put an earlier summary before a newer one, as far as it fits."""
    entries = [Entry(id=str(place), time=day, text=text, single=True) for place, (day, text) in enumerate(before)]
    earlier = summarise(entries, budget - count_tokens(recent.text) - 1, "earlier sentences")
    return Gist(f"{earlier.text}\n{recent.text}".strip(), (*earlier.said, *recent.said))


def _left_out(every: str, missing: int, empty: int, room: int) -> str:
    """Return one line that counts the omitted entries, in at most `room` characters."""
    verb = "is" if missing == 1 else "are"
    greeting = f"; {empty} of them {'contains' if empty == 1 else 'contain'} only a greeting" if empty else ""
    full = f"({missing} of {every} {verb} in no sentence here{greeting}.)"
    if not missing:
        full = "(All of them are here, but some are shortened.)"
    short = f"({missing} of {every.partition(' ')[0]} left out)"
    return next((text for text in (full, short) if _size(text) <= room), _CUT)


def _size(text: str) -> int:
    """Return the size of a text in quarters of a token; unlike rounded tokens, these add up."""
    return len(text) if text.isascii() else len(text) + 3 * WIDE.subn("", text)[1]


# Pieces of sentences


def _pieces(sentence: str) -> Iterator[str]:
    """Yield a sentence, or pieces of it if it is too long for a summary; `…` marks every cut."""
    if len(sentence.strip(_CUT)) <= _LONGEST:
        yield sentence
        return
    start = 0
    while len(sentence) - start > _LONGEST:
        low, high = start + _LONGEST // 2, start + _LONGEST
        cut = max(sentence.rfind(mark, low, high) for mark in ",;，、；：")
        cut = cut if cut >= 0 else sentence.rfind(" ", low, high)
        cut = cut + 1 if cut >= 0 else high
        yield (_CUT if start else "") + sentence[start:cut].strip() + _CUT
        start = cut
    yield (_CUT if start else "") + sentence[start:].strip()
