"""Queries: the words of their text, and the times and names that a question contains.

A query is literal text. Quoted words are a phrase; `tag:x` and `kind:x` (for a kind that exists) are filters. No
other syntax exists, so a query can never be a syntax error. Times and names are recognized in English only.
"""

from __future__ import annotations

import calendar
import itertools
import math
import re
import time
import unicodedata
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Literal

import msgspec

from holdfast.errors import Invalid
from holdfast.model.kinds import KINDS
from holdfast.model.names import WIDE, check_text
from holdfast.model.patterns import regex
from holdfast.model.records import Scope
from holdfast.model.times import iso, parse_ms

MAX_LIMIT = 1_000
MAX_WORDS = 64
_PART = regex(r'"([^"]*)"|(\S+)')
_WORD = regex(r"[^\W_]+(?:[\u0900-\u0dff]*[^\W_]*)*")
_MARKS = regex(
    "[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    "\u0610-\u061a\u0640\u064b-\u065f\u0670]+"
)
"""Accents and vowel points, which people often omit. The vowels of Indian scripts and of Thai are kept."""
_FORMS = regex("[\ufb00-\ufdff\ufe70-\ufefc\uff01-\uffef]+")
"""Ligatures and letters of another width, which NFKC replaces."""
_DIGIT = regex(r"[^\D0-9]")
_LETTERS = str.maketrans(
    {"æ": "ae", "đ": "d", "ð": "d", "ħ": "h", "ı": "i", "ł": "l", "ø": "o", "œ": "oe", "þ": "th", "ŧ": "t"}
)
"""Letters that people often replace with others and that Unicode does not decompose."""

QUESTION_WORDS = frozenset(
    "a about am an and any are as at be been but by can could did do does doing for from had has have having he her"
    " here hers him his how i if in into is it its just me might my of on or our ours she should so some such than"
    " that the their theirs them then there these they this those to too us was we were what when where which while"
    " who whom whose why will with would you your yours s t d m ll re ve".split()
)
"""English words that form a question but do not describe its subject."""


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters are combined with AND; several kinds or tags mean any of them. Without text, the newest come first."""

    text: str = ""
    kinds: tuple[str, ...] = ()
    scope: str | Scope | None = None
    """`W/D/R`, including everything below it. None is the whole memory."""
    above: bool = False
    """With a scope: include records of the levels above it."""
    shared: bool = False
    """With a scope: include records that belong to no workspace."""
    session: str = ""
    tags: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    hidden: bool = False
    """Include hidden records."""
    limit: int = 20
    asked: str = ""
    """When the question is asked: "last week" is relative to it, and later records are excluded. "" is now."""
    associate: bool = False
    """Include records next to the matches; return nothing when the best answer is below `search.floor`."""
    level: Literal["records", "sessions"] = "records"
    """`sessions`: only the best record of each session."""
    related: int = 0
    """How many related records to list with each hit."""
    budget: int = 0
    """The most tokens of text in all hits together; 0 is no limit."""
    where: Literal["here", "shared", "both"] = "here"
    """Which memory to search: this one, the shared one of the settings, or both."""


class Terms(msgspec.Struct, frozen=True):
    """The words of a query: each is one token, or a run of tokens that must be adjacent."""

    words: tuple[tuple[str, ...], ...] = ()
    phrases: tuple[tuple[str, ...], ...] = ()
    tags: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.words and not self.phrases

    @property
    def loose(self) -> Terms:
        """The same terms with every phrase split into its words."""
        words = [(token,) for phrase in self.phrases for token in phrase if token not in QUESTION_WORDS]
        return msgspec.structs.replace(self, words=tuple(dict.fromkeys([*words, *self.words])), phrases=())

    @property
    def tokens(self) -> set[str]:
        """Every single token of the words and phrases."""
        return {token for run in (*self.words, *self.phrases) for token in run}


def parse(text: str) -> Terms:
    """Split a query into words, phrases and filters; question words count only when there is nothing else."""
    words: dict[tuple[str, ...], None] = {}
    phrases: dict[tuple[str, ...], None] = {}
    filters: dict[str, list[str]] = {"tag": [], "kind": []}
    for quoted, plain in _PART.findall(text):
        name, _, value = plain.partition(":")
        if (name == "tag" and value) or (name == "kind" and value in KINDS):
            filters[name].append(value)
        elif quoted:
            phrase = tuple(fold(quoted))
            if phrase:
                phrases[phrase] = None
        else:
            words |= dict.fromkeys(runs(plain))
    subject = [run for run in words if not (len(run) == 1 and run[0] in QUESTION_WORDS)]
    chosen = subject or ([] if phrases else list(words))
    tags, kinds = (tuple(dict.fromkeys(filters[name]))[:MAX_WORDS] for name in ("tag", "kind"))
    return Terms(tuple(chosen[:MAX_WORDS]), tuple(phrases)[:MAX_WORDS], tags, kinds)


def both(asked: tuple[str, ...], typed: tuple[str, ...]) -> tuple[str, ...] | None:
    """Combine the kinds of a query with `kind:` filters in its text; None when they have none in common.

    The text can only narrow the search: a search of the chat never finds notes.
    """
    if not asked or not typed:
        return asked or typed
    return tuple(kind for kind in asked if kind in typed) or None


def check(query: Query) -> None:
    """Raise Invalid for numbers out of range and for text that no record can contain."""
    check_text(query.text, query.session, *query.tags)
    if not 1 <= query.limit <= MAX_LIMIT:
        raise Invalid(f"limit is {query.limit}.", f"Use a number from 1 to {MAX_LIMIT}.")
    if not 0 <= query.related <= MAX_LIMIT:
        raise Invalid(f"related is {query.related}.", f"Use a number from 0 to {MAX_LIMIT}.")
    if query.budget < 0:
        raise Invalid(f"budget is {query.budget}.", "Use a number of tokens, or 0 for no limit.")


def bare(text: str) -> str:
    """Normalize text for comparison: lower case, no accents, usual forms of letters and digits."""
    if text.isascii():
        return text.lower()
    text = _FORMS.sub(lambda found: unicodedata.normalize("NFKC", found.group()), text)
    text = _MARKS.sub("", unicodedata.normalize("NFD", text.casefold())).translate(_LETTERS)
    return unicodedata.normalize("NFC", _DIGIT.sub(lambda found: str(unicodedata.decimal(found.group())), text))


def spaced(text: str) -> str:
    """Normalize text for the index: `bare`, with spaces around every wide character."""
    return text if text.isascii() else WIDE.sub(r" \g<0> ", bare(text))


def fold(text: str) -> list[str]:
    """Return the tokens of a text in order, lower case."""
    return _WORD.findall(spaced(text).casefold())


def plain(text: str) -> str:
    """Return the tokens of a text, lower case, separated by one space."""
    return " ".join(_WORD.findall(spaced(text))).casefold()


def runs(text: str) -> Iterator[tuple[str, ...]]:
    """Yield each token of a text; of wide characters, each pair of neighbours, since spaces do not separate words."""
    for wide, tokens in itertools.groupby(fold(text), lambda token: not token.isascii() and bool(WIDE.match(token))):
        run = list(tokens)
        yield from itertools.pairwise(run) if wide and len(run) > 1 else zip(run, strict=True)


# Questions

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
_NUMBER = rf"\d{{1,3}}|{'|'.join(_NUMBERS)}"
_YEAR = r"\d{4}(?!-\d)"
_TIME = regex(
    rf"\b(?P<y1>\d{{4}})-(?P<m1>\d\d)-(?P<d1>\d\d)\b"
    rf"|\b(?P<m2>{_MONTH})\.? (?P<d2>\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? (?P<y2>{_YEAR}))?"
    rf"|\b(?P<d3>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<m3>{_MONTH})\b\.?(?:,? (?P<y3>{_YEAR}))?"
    rf"|\b(?P<m4>{_MONTH})\b,?(?: of)?(?: (?P<y4>{_YEAR}))?"
    rf"|\b(?:in|of|during|since|by|year) (?P<y5>(?=19|20){_YEAR})\b"
    rf"|\b(?P<ago>{_NUMBER})(?: of)? (?P<ago_unit>day|week|month|year)s? ago\b"
    rf"|\b(?:last|past|previous)(?: (?P<last>{_NUMBER}))? (?P<last_unit>day|week|month|year|weekend)s?\b"
    rf"|\bthis (?P<this_unit>week|month|year|weekend)\b"
    rf"|\b(?:last|on|this) (?P<weekday>{'|'.join(_DAYS)})\b"
    rf"|\byesterday\b"
)
_ALSO_WORDS = frozenset({"may", "mar", "dec", "sep", "jan", "jun", "march"})
"""Months that are also ordinary words or names: alone they need one of the words below before them."""
_OF_TIME = regex(r"\b(?:in|of|during|since|until|by|last|early|late|mid|to|from|and)[ -]\Z")
_OWN = regex(r"\b(?:i|me|my|mine|myself|we|our|ours)\b", re.IGNORECASE)
_TO_AGENT = regex(
    r"\byou (?:\w+ly )?(?:\w+ed|told|said|gave|wrote|made|were|had|found|showed)\b|\bdid you\b|\bremind me\b"
    r"|\bour (?:\w+ )?(?:conversation|chat|discussion|session)\b",
    re.IGNORECASE,
)
_LETTERS_AND_DIGITS = regex(r"[^\W_]+")
_EPOCH = date(1970, 1, 1)
_LAST_DAY = (date.max - _EPOCH).days


class Period(msgspec.Struct, frozen=True):
    """Days since 1970, from the first to the one after the last; `yearly` when no year was named."""

    first: float
    end: float
    yearly: bool = False

    def fits(self, day: float, *, after: float, before: float) -> float:
        """Return how near a day is, from 0 to 1; `after` and `before` are the days in which the value falls to 1/e."""
        best = 0.0
        moved = 365.25 * round((day - self.first) / 365.25) if self.yearly else 0.0
        for shift in (-365.25, 0.0, 365.25) if self.yearly else (0.0,):
            first, end = self.first + moved + shift, self.end + moved + shift
            late, early = max(0.0, day - (end - 1)), max(0.0, first - day)
            best = max(best, math.exp(-late / (after + (end - first) / 2) - early / before))
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
    """True when it is about the asker's own words, not an assistant's answer."""


def read_question(text: str, asked: str = "") -> Ask:
    """Parse a question; `asked` is the time of asking, "" is now. Relative times count from that day."""
    ms = parse_ms(asked) if asked else None
    day = float((time.time() * 1000 if ms is None else ms) // DAY_MS)
    words = _LETTERS_AND_DIGITS.findall(text)
    capital = frozenset(word.casefold() for word in words[1:] if word[0].isupper())
    names = capital.union(word.lower() for word in words if word.lower() not in QUESTION_WORDS)
    own = bool(_OWN.search(text)) and not _TO_AGENT.search(text)
    periods, dated = dict[Period, None](), set[str]()
    for found in _TIME.finditer(text.lower()):
        try:
            period = _period(found, day)
        except ValueError:  # 31 February
            period = None
        if period:
            periods[period] = None
            dated.update(_LETTERS_AND_DIGITS.findall(found[0]))
    return Ask(day, names, capital, tuple(periods)[:MAX_WORDS], frozenset(dated), own)


def _period(found: re.Match[str], day: float) -> Period | None:
    """Return the time that a match of `_TIME` names, None if it is an ordinary word; ValueError for no such day."""
    named = {name.rstrip("12345"): value for name, value in found.groupdict().items() if value}
    year, month, number = named.get("y"), named.get("m", ""), named.get("d")
    if month or year:
        before = found.string[max(0, found.start() - 10) : found.start()]
        if month in _ALSO_WORDS and not (year or number or _OF_TIME.search(before)):
            return None
        that = max(1, int(year)) if year else (_EPOCH + timedelta(days=min(day, _LAST_DAY))).year
        which = _MONTHS.get(month) or int(month or 1)
        first = float((date(that, which, int(number or 1)) - _EPOCH).days)
        days = 1 if number else calendar.monthrange(that, which)[1] if month else 365 + calendar.isleap(that)
        return Period(first, first + days, yearly=not year)
    if unit := named.get("ago_unit"):
        length = _LENGTHS[unit]
        middle, half = day - _count(named["ago"]) * length, 0.0 if length == 1 else length / 4
        return Period(middle - half, middle + half + 1)
    if unit := named.get("last_unit"):
        return Period(day - _LENGTHS[unit] * (_count(named["last"]) if "last" in named else 1.5), day + 1)
    if unit := named.get("this_unit"):
        return Period(day - _LENGTHS[unit], day + 1)
    back = (day + 3 - _DAYS[named["weekday"]]) % 7 or 7 if "weekday" in named else 1  # 1: yesterday
    return Period(day - back, day - back + 1)


def _count(text: str) -> int:
    return int(text) if text.isdigit() else _NUMBERS[text]


def end_of_day(asked: str) -> str:
    """Return the last moment of the day of asking, in UTC."""
    ms = parse_ms(asked)
    if ms is None:
        raise Invalid(f"{asked!r} is not a date or time.", "Use ISO 8601, like 2026-02-23T14:00:00Z.")
    return iso((ms // DAY_MS + 1) * DAY_MS - 1)
