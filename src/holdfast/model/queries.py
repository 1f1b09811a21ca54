"""Queries, and how their text is split into words.

A query is literal text. Quoted words are a phrase; `tag:x` and `kind:x` (for a kind that exists) are filters. No
other syntax exists, so a query can never be a syntax error.
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
from holdfast.model.names import WIDE, check_text
from holdfast.model.records import Scope

MAX_LIMIT = 1_000
MAX_WORDS = 64
_PART = re.compile(r'"([^"]*)"|(\S+)')
_WORD = re.compile(r"[^\W_]+(?:[\u0900-\u0dff]*[^\W_]*)*")
_MARKS = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    "\u0610-\u061a\u0640\u064b-\u065f\u0670]+"
)
"""Accents and vowel points, which people often omit. The vowels of Indian scripts and of Thai are kept."""
_FORMS = re.compile("[\ufb00-\ufdff\ufe70-\ufefc\uff01-\uffef]+")
"""Ligatures and letters of another width, which NFKC replaces."""
_DIGIT = re.compile(r"[^\D0-9]")
_LETTERS = str.maketrans(
    {"æ": "ae", "đ": "d", "ð": "d", "ħ": "h", "ı": "i", "ł": "l", "ø": "o", "œ": "oe", "þ": "th", "ŧ": "t"}
)
"""Letters that people type as others and that Unicode does not decompose."""

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
    return Terms(tuple(chosen[:MAX_WORDS]), tuple(phrases)[:MAX_WORDS], tuple(filters["tag"]), tuple(filters["kind"]))


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
    for wide, tokens in itertools.groupby(fold(text), lambda token: bool(WIDE.match(token))):
        run = list(tokens)
        yield from itertools.pairwise(run) if wide and len(run) > 1 else zip(run, strict=True)
