"""What a question contains besides its words: times, names, and whether it is about the asker.

Periods are days since 1970, from the first to the one after the last. A period without a year matches every year.
Relative times ("two weeks ago") count from the day of asking. Only English is recognized.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta

import msgspec

from holdfast.errors import Invalid
from holdfast.model.queries import MAX_WORDS, QUESTION_WORDS
from holdfast.model.times import iso, parse_ms

DAY_MS = 86_400_000
_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_name) if name}
_MONTHS |= {name[:3]: number for name, number in _MONTHS.items()} | {"sept": 9}
_DAYS = {name.lower(): number for number, name in enumerate(calendar.day_name)}
_NUMBERS = {
    "a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "couple": 2, "few": 3, "several": 4,
}  # fmt: skip
_LENGTHS = {"day": 1.0, "week": 7.0, "weekend": 7.0, "month": 30.4, "year": 365.25}
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_NUMBER = rf"(\d{{1,3}}|{'|'.join(_NUMBERS)})"
_ISO = re.compile(r"\b(\d{4})-(\d\d)-(\d\d)\b")
_MONTH_DAY = re.compile(rf"\b({_MONTH})\.? (\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? (\d{{4}}))?")
_DAY_MONTH = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ({_MONTH})\b\.?(?:,? (\d{{4}}))?")
_ONE_MONTH = re.compile(rf"\b({_MONTH})\b,?(?: of)?(?: (\d{{4}}))?")
_ALSO_WORDS = frozenset({"may", "mar", "dec", "sep", "jan", "jun", "march"})
_OF_TIME = re.compile(r"\b(?:in|of|during|since|until|by|last|early|late|mid|to|from|and)[ -]\Z")
_OF_TIME_LONGEST = 10
_YEAR = re.compile(r"\b(?:in|of|during|since|by|year) ((?:19|20)\d\d)\b")
_AGO = re.compile(rf"\b{_NUMBER}(?: of)? (day|week|month|year)s? ago\b")
_LAST = re.compile(rf"\b(?:last|past|previous)(?: {_NUMBER})? (day|week|month|year|weekend)s?\b")
_THIS = re.compile(r"\bthis (week|month|year|weekend)\b")
_WEEKDAY = re.compile(rf"\b(?:last|on|this) ({'|'.join(_DAYS)})\b")
_YESTERDAY = re.compile(r"\byesterday\b")
_OWN = re.compile(r"\b(?:i|me|my|mine|myself|we|our|ours)\b", re.IGNORECASE)
_TO_AGENT = re.compile(
    r"\byou (?:\w+ly )?(?:\w+ed|told|said|gave|wrote|made|were|had|found|showed)\b|\bdid you\b|\bremind me\b"
    r"|\bour (?:\w+ )?(?:conversation|chat|discussion|session)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W_]+")
_EPOCH = date(1970, 1, 1)
_LAST_DAY = (date.max - _EPOCH).days
Fresh = Callable[[re.Pattern[str]], Iterator[re.Match[str]]]


class Period(msgspec.Struct, frozen=True):
    """A range of days; `yearly` when no year was named."""

    first: float
    end: float
    yearly: bool = False

    def fits(self, day: float, *, after: float, before: float) -> float:
        """Return from 0 to 1 how near a day is; `after` and `before` are the days in which the value falls to 1/e."""
        best = 0.0
        moved = 365.25 * round((day - self.first) / 365.25) if self.yearly else 0.0
        for shift in (-365.25, 0.0, 365.25) if self.yearly else (0.0,):
            first, end = self.first + moved + shift, self.end + moved + shift
            late, early = max(0.0, day - (end - 1)), max(0.0, first - day)
            best = max(best, float(2.718281828459045 ** (-late / (after + (end - first) / 2) - early / before)))
        return best


class Ask(msgspec.Struct, frozen=True):
    """A parsed question."""

    day: float
    """The day of asking."""
    names: frozenset[str] = frozenset()
    """Words that may be a person's name, lower case."""
    capital: frozenset[str] = frozenset()
    """Capitalized words after the first one, lower case."""
    periods: tuple[Period, ...] = ()
    dated: frozenset[str] = frozenset()
    """The words that name those periods, lower case."""
    own: bool = False
    """True when it is about what the asker said, not about an assistant's answer."""


def read(text: str, asked: str = "") -> Ask:
    """Parse a question; `asked` is the time of asking, "" is now."""
    ms = parse_ms(asked) if asked else None
    day = (datetime.now(UTC).timestamp() * 1000 if ms is None else ms) // DAY_MS
    words = _WORD.findall(text)
    capital = {word.casefold() for word in words[1:] if word[0].isupper()}
    names = {word.lower() for word in words if word.lower() not in QUESTION_WORDS}
    names |= {word.lower() for word in words[1:] if word[0].isupper()}
    own = bool(_OWN.search(text)) and not _TO_AGENT.search(text)
    lower, used = text.lower(), list[tuple[int, int]]()
    periods = tuple(dict.fromkeys(_periods(lower, day, used)))[:MAX_WORDS]
    dated = {word for start, end in used for word in _WORD.findall(lower[start:end])}
    return Ask(day, frozenset(names), frozenset(capital), periods, frozenset(dated), own)


def end_of_day(asked: str) -> str:
    """Return the last moment of the day of asking, in UTC."""
    ms = parse_ms(asked)
    if ms is None:
        raise Invalid(f"{asked!r} is not a date or time.", "Use ISO 8601, like 2026-02-23T14:00:00Z.")
    return iso((ms // DAY_MS + 1) * DAY_MS - 1)


def _periods(text: str, day: float, used: list[tuple[int, int]]) -> Iterator[Period]:
    """Yield the periods named in a text and add their places to `used`; no part of the text is used twice."""
    taken = bytearray(len(text))

    def fresh(pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        for found in pattern.finditer(text):
            start, end = found.span()
            if not any(taken[start:end]):
                taken[start:end] = b"\1" * (end - start)
                used.append((start, end))
                yield found

    for found in fresh(_ISO):
        yield from _one_day(found[1], int(found[2]), int(found[3]), day)
    for found in fresh(_MONTH_DAY):
        yield from _one_day(found[3], _MONTHS[found[1]], int(found[2]), day)
    for found in fresh(_DAY_MONTH):
        yield from _one_day(found[3], _MONTHS[found[2]], int(found[1]), day)
    for found in fresh(_ONE_MONTH):
        if (
            found[1] in _ALSO_WORDS
            and not found[2]
            and not _OF_TIME.search(text, max(0, found.start() - _OF_TIME_LONGEST), found.start())
        ):
            start, end = used.pop()  # an ordinary word here
            taken[start:end] = bytes(end - start)
            continue
        year, month = max(1, int(found[2] or _year(day))), _MONTHS[found[1]]
        first = _number_of(year, month, 1)
        yield Period(first, first + calendar.monthrange(year, month)[1], yearly=not found[2])
    for found in fresh(_YEAR):
        yield Period(_number_of(int(found[1]), 1, 1), _number_of(int(found[1]) + 1, 1, 1))
    yield from _relative(fresh, day)


def _relative(fresh: Fresh, day: float) -> Iterator[Period]:
    """Yield the periods that are relative to the day of asking."""
    for found in fresh(_AGO):
        unit = _LENGTHS[found[2]]
        middle, half = day - _count(found[1]) * unit, 0.0 if unit == 1 else unit / 4
        yield Period(middle - half, middle + half + 1)
    for found in fresh(_LAST):
        yield Period(day - _LENGTHS[found[2]] * (_count(found[1]) if found[1] else 1.5), day + 1)
    for found in fresh(_THIS):
        yield Period(day - _LENGTHS[found[1]], day + 1)
    for found in fresh(_WEEKDAY):
        back = (day + 3 - _DAYS[found[1]]) % 7 or 7
        yield Period(day - back, day - back + 1)
    for _ in fresh(_YESTERDAY):
        yield Period(day - 1, day)


def _one_day(year: str | None, month: int, number: int, day: float) -> Iterator[Period]:
    try:
        first = _number_of(int(year or _year(day)), month, number)
    except ValueError:  # 31 February
        return
    yield Period(first, first + 1, yearly=not year)


def _year(day: float) -> int:
    return (_EPOCH + timedelta(days=min(day, _LAST_DAY))).year


def _number_of(year: int, month: int, day: int) -> float:
    return float((date(max(1, year), month, day) - _EPOCH).days)


def _count(text: str) -> int:
    return int(text) if text.isdigit() else _NUMBERS[text]
