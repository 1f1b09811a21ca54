"""What is asked for, and how its words are read.

A query is literal text. Quoted words are a phrase; `tag:x` and `kind:x`, where there is such a kind, are filters;
nothing else has a meaning of its own, so no query can be a syntax error.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator
from typing import Literal

import msgspec

from holdfast.errors import Invalid
from holdfast.model.kinds import KINDS
from holdfast.model.names import check_text
from holdfast.model.scopes import Scope
from holdfast.model.tokens import WIDE

MAX_LIMIT = 1_000
MAX_WORDS = 64
_PART = re.compile(r'"([^"]*)"|(\S+)')
_WORD = re.compile(r"[^\W_]+(?:[\u0900-\u0dff]*[^\W_]*)*")
_MARKS = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    "\u0610-\u061a\u0640\u064b-\u065f\u0670]+"
)
"""Accents and vowel points, which people leave out; the vowels of Indian scripts and of Thai are none."""
_FORMS = re.compile("[\ufb00-\ufdff\ufe70-\ufefc\uff01-\uffef]+")
"""Letters in another width or joined, which are other letters."""
_DIGIT = re.compile(r"[^\D0-9]")
_LETTERS = str.maketrans(
    {"æ": "ae", "đ": "d", "ð": "d", "ħ": "h", "ı": "i", "ł": "l", "ø": "o", "œ": "oe", "þ": "th", "ŧ": "t"}
)
"""Letters that are typed as others where the keyboard has none, and that Unicode does not take apart."""

QUESTION_WORDS = frozenset(
    "a about am an and any are as at be been but by can could did do does doing for from had has have having he her"
    " here hers him his how i if in into is it its just me might my of on or our ours she should so some such than"
    " that the their theirs them then there these they this those to too us was we were what when where which while"
    " who whom whose why will with would you your yours s t d m ll re ve".split()
)
"""Words that shape an English question and say nothing about its subject."""


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters are joined by and; several kinds or tags mean any of them. Without text, the newest come first."""

    text: str = ""
    kinds: tuple[str, ...] = ()
    scope: str | Scope | None = None
    """`W/D/R`; covers everything below it. None is the whole memory."""
    above: bool = False
    """With a scope: also what belongs to the levels above it."""
    shared: bool = False
    """With a scope: also what belongs to no workspace."""
    session: str = ""
    tags: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    hidden: bool = False
    """Also what was hidden."""
    limit: int = 20
    asked: str = ""
    """When the question is asked, for what is relative to it; what was written later is left out. "" is now."""
    associate: bool = False
    """Also what has no word of the text but stands beside what has; and nothing at all below the floor."""
    level: Literal["records", "sessions"] = "records"
    """`sessions`: of each session, only the best record."""
    related: int = 0
    """For each hit, also name this many records that have to do with it."""
    budget: int = 0
    """At most this many tokens of text in all; 0 is no limit."""
    where: Literal["here", "shared", "both"] = "here"
    """In which memory: this one, the one that the settings call shared, or both."""


class Terms(msgspec.Struct, frozen=True):
    """The words of a query: each is one token, or a run of tokens that must stand together."""

    words: tuple[tuple[str, ...], ...] = ()
    phrases: tuple[tuple[str, ...], ...] = ()
    tags: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.words and not self.phrases

    @property
    def loose(self) -> Terms:
        """The same with the words of phrases one by one."""
        words = [(token,) for phrase in self.phrases for token in phrase if token not in QUESTION_WORDS]
        return msgspec.structs.replace(self, words=tuple(dict.fromkeys([*words, *self.words])), phrases=())

    @property
    def tokens(self) -> set[str]:
        """All that is looked for, one by one."""
        return {token for run in (*self.words, *self.phrases) for token in run}


def parse(text: str) -> Terms:
    """Read a query; every word counts unless it only shapes the question."""
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
            words.update(dict.fromkeys(_runs(plain)))
    telling = [run for run in words if not (len(run) == 1 and run[0] in QUESTION_WORDS)]
    kept = telling or ([] if phrases else list(words))
    return Terms(tuple(kept[:MAX_WORDS]), tuple(phrases)[:MAX_WORDS], tuple(filters["tag"]), tuple(filters["kind"]))


def both(asked: tuple[str, ...], said: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the kinds that are asked for when the text says `kind:` too; None when there is no such kind.

    Words never widen what a caller looks among: a search of the chat finds no notes, whatever is typed into it.
    """
    if not asked or not said:
        return asked or said
    return tuple(kind for kind in asked if kind in said) or None


def check(query: Query) -> None:
    """Refuse a query whose numbers make no sense, or whose text no record can hold."""
    check_text(query.text, query.session, *query.tags)
    if not 1 <= query.limit <= MAX_LIMIT:
        raise Invalid(f"limit is {query.limit}.", f"Use a number from 1 to {MAX_LIMIT}.")
    if not 0 <= query.related <= MAX_LIMIT:
        raise Invalid(f"related is {query.related}.", f"Use a number from 0 to {MAX_LIMIT}.")
    if query.budget < 0:
        raise Invalid(f"budget is {query.budget}.", "Use a number of tokens, or 0 for no limit.")


def bare(text: str) -> str:
    """Return text as it is compared: lower case, without accents, every letter and digit in its usual form."""
    if text.isascii():
        return text.lower()
    text = _FORMS.sub(lambda found: unicodedata.normalize("NFKC", found.group()), text)
    text = _MARKS.sub("", unicodedata.normalize("NFD", text.casefold())).translate(_LETTERS)
    return unicodedata.normalize("NFC", _DIGIT.sub(lambda found: str(unicodedata.decimal(found.group())), text))


def spaced(text: str) -> str:
    """Return text as it goes into the index: bare, and with every wide character standing alone."""
    return text if text.isascii() else WIDE.sub(r" \g<0> ", bare(text))


def fold(text: str) -> Iterator[str]:
    """Yield the tokens of a text in order, lower case."""
    for found in _WORD.finditer(spaced(text)):
        yield found.group().casefold()


def plain(text: str) -> str:
    """Return the tokens of a text with a space between them, lower case."""
    return " ".join(_WORD.findall(spaced(text))).casefold()


def _runs(word: str) -> Iterator[tuple[str, ...]]:
    """Yield what one space-free word of a query looks for.

    `src/auth.py` looks for its parts; a run of wide characters looks for each pair of neighbours, since
    nothing says where its words begin.
    """
    wide: list[str] = []
    for token in fold(word):
        if WIDE.match(token):
            wide.append(token)
            continue
        yield from _pairs(wide)
        wide = []
        yield (token,)
    yield from _pairs(wide)


def _pairs(wide: list[str]) -> Iterator[tuple[str, ...]]:
    if len(wide) == 1:
        yield (wide[0],)
    yield from itertools.pairwise(wide)
