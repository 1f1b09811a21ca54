"""Words and ties of records and queries; every engine uses the same rules, so that answers agree.

Words are split and stemmed by SQLite's own tokenizer. A tie is a name that a record has, a name that it links to, or
a tag; records that share one are related.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import apsw

from holdfast.formats.markdown import link_form, names_of
from holdfast.model.kinds import KINDS
from holdfast.model.names import same
from holdfast.model.patterns import regex
from holdfast.model.queries import Terms, spaced
from holdfast.model.records import Record, text_of
from holdfast.model.settings import Search
from holdfast.storage.results import Tied

R = TypeVar("R")
"""A row of an engine."""
TOKENIZER = ("porter", ["unicode61", "remove_diacritics", "2", "categories", "L* N* Co M*"])
TITLE = 4.0
"""The weight of a word in the title; in the text it is 1."""
LINES = {name for name, row in KINDS.items() if row.shape == "line" and not row.key}
"""Kinds whose records are in the order of events."""
IN_ORDER = tuple(name for name in KINDS if name in LINES and KINDS[name].searchable)
NAME, LINK, TAG = 1, 2, 3
COMMON = 200
"""A name shared by more matching records than this relates none of them."""
MOST = 5_000
"""For a name shared by more records than this, the filter is not evaluated."""
_ENOUGH, _MANY = 500, 2_000
"""Words find records from the rarest on, until these are as many as the first number, or even up to the second."""
Run = tuple[str, ...]
Tie = tuple[int, str]
"""How a record is tied (NAME, LINK or TAG), and the name."""
_Close = tuple[float, list[str]]
"""How closely a record is related, and why."""
_AUTHORS = ("speaker", "author", "sender_id", "sender", "from")
_NAME = regex(r"[^\W_]+")
_UNSEARCHED = frozenset(
    "op writer ref size created updated date covers by exchange origin tool_call_id channel sender_id supersedes"
    " superseded_by until reason".split()
)
_REPEATED = {"summary": "said"}
"""A field of a kind that repeats its text."""
_local = threading.local()


def stems(text: str) -> list[str]:
    """Return the words of a text in order, as the index compares them."""
    tokenizer: Any = getattr(_local, "tokenizer", None)
    if tokenizer is None:  # a connection must not be used by two threads at a time
        tokenizer = _local.tokenizer = apsw.Connection(":memory:").fts5_tokenizer(*TOKENIZER)
    data = text.encode("utf-8", "replace")
    return list(tokenizer(data, apsw.FTS5_TOKENIZE_DOCUMENT, None, include_offsets=False, include_colocated=False))


# records


def author_of(record: Record) -> str:
    """Return the author as a question would name them: lower case, words separated by spaces."""
    for name in _AUTHORS:
        if isinstance(author := record.fields.get(name), str):
            return " ".join(_NAME.findall(author.lower()))
    return ""


def pair_of(record: Record) -> str:
    """Return the name that both lines of a pair have."""
    pair = record.fields.get(KINDS[record.kind].pair) if KINDS[record.kind].pair else None
    return pair if isinstance(pair, str) else ""


def op_of(record: Record) -> str | None:
    op = record.fields.get("op")
    return op if isinstance(op, str) else None


def words_of(record: Record) -> tuple[str, str, str] | None:
    """Return the title, the text and the other fields to index; None for a record that is not searched."""
    kind = KINDS[record.kind]
    if not kind.searchable or any(record.fields.get(name) for name in kind.quiet):
        return None
    rest = [
        text_of(value)
        for name, value in record.fields.items()
        if name not in kind.choices and name not in _UNSEARCHED and name not in (kind.text, _REPEATED.get(kind.name))
    ]
    return spaced(record.title), spaced(record.text), spaced("\n".join((*record.tags, *rest)))


def tagged(tags: tuple[str, ...]) -> str:
    """Return tags as one searchable text."""
    return "\x1f" + "\x1f".join(same(tag) for tag in tags) + "\x1f" if tags else ""


# ties


class Names(NamedTuple):
    """The names, links and tags that relate a record to others."""

    own: list[str]
    """The names that links use for it."""
    links: list[str]
    tags: list[str]


def ties_of(record: Record) -> list[Tie]:
    """Return the names, links and tags of a record; cold and internal records have none."""
    kind = KINDS[record.kind]
    if kind.layer not in ("hot", "warm") or not kind.searchable:
        return []
    ties = [(NAME, name) for name in names_of(record)]
    ties += [(LINK, name) for name in map(link_form, record.links) if name]
    ties += [(TAG, name) for name in map(same, record.tags) if name]
    return list(dict.fromkeys(ties))


def related(
    own: Mapping[str, Sequence[Record]], having: Callable[[Iterable[Tie]], Mapping[Tie, list[R]]],
    load: Callable[[Collection[R]], Mapping[R, Record]], limit: int,
) -> dict[str, list[Tied]]:  # fmt: skip
    """Return the records most closely related to each id, by its own records; without one, it is a name.

    `having` returns the rows of each tie, `load` their records.
    """
    names = {identifier: _names(identifier, records) for identifier, records in own.items()}
    wanted: set[Tie] = set()  # every tie that relates another record to one of these
    for one in names.values():
        wanted.update([(LINK, name) for name in one.own], [(TAG, name) for name in one.tags])
        wanted.update([(way, name) for name in one.links for way in (NAME, LINK)])
    rows = having(wanted)
    ties = {identifier: _tied(names[identifier], rows, is_name=not records) for identifier, records in own.items()}
    records = load({row for found in ties.values() for row in found})
    return {identifier: _closest(identifier, found, records, limit) for identifier, found in ties.items()}


def _names(identifier: str, records: Sequence[Record]) -> Names:
    """Return the ties of an id, or of a name that no record has as its id."""
    if not records:
        return Names([], [link_form(identifier)], [same(identifier)])
    found = Names([], [], [])
    for way, name in itertools.chain.from_iterable(map(ties_of, records)):
        found[way - 1].append(name)
    return found


def _tied(names: Names, having: Mapping[Tie, list[R]], *, is_name: bool) -> dict[R, _Close]:
    """Return the rows that have a tie of a record or name, how closely, and why; a rare tie counts more."""
    found: dict[R, _Close] = {}
    for way, wanted, weight, how in (
        (NAME, names.links, 3.0, "is" if is_name else "linked to"),
        (LINK, names.own, 3.0, "links here"),
        (LINK, names.links, 2.0, "links to {name}" if is_name else "also links to {name}"),
        (TAG, names.tags, 1.0, "tagged {name}"),
    ):
        for name in wanted:
            rows = having.get((way, name), ())
            for row in rows:
                score, reasons = found.get(row, (0.0, []))
                found[row] = (score + weight / len(rows), [*reasons, how.format(name=name)])
    return found


def _closest(identifier: str, ties: Mapping[R, _Close], records: Mapping[R, Record], limit: int) -> list[Tied]:
    """Return the other records that are most closely related; equally close ones by time, then by place."""
    found = [Tied(records[row], score, tuple(how)) for row, (score, how) in ties.items() if row in records]
    found = [one for one in found if one.record.id != identifier]
    found.sort(key=lambda one: (one.record.path, one.record.order, one.record.id))
    found.sort(key=lambda one: one.record.time, reverse=True)
    found.sort(key=lambda one: -one.score)
    return found[:limit]


# queries


class Wanted(NamedTuple):
    """The words to search for; words with the same stem are one word."""

    phrases: list[Run]
    words: list[Run]
    held: list[int]
    """How many records contain each, phrases first."""

    @property
    def rarest(self) -> list[Run]:
        """The words by which records are found: the rarest ones. The others only rank these records."""
        chosen, total = list[Run](), 0
        for held, run in sorted(zip(self.held[len(self.phrases) :], self.words, strict=True)):
            if total >= _ENOUGH and total + held > _MANY:
                break
            chosen.append(run)
            total += held
        return chosen


def rare_words(terms: Terms, settings: Search, count: Callable[[Sequence[Run], int], Sequence[int]]) -> Wanted:
    """Leave out words that are too common to rank by, while rarer ones remain.

    `count` returns how many records contain each word; it may stop at a limit unless that is negative.
    """
    phrases, words = _distinct(terms.phrases), _distinct(terms.words)
    allowed, runs = settings.common_records, [*phrases, *words]
    counts = dict(zip(runs, count(runs, allowed + 1), strict=True))
    rare = [run for run in words if counts[run] <= allowed]
    if len(words) > 1 and any(map(counts.get, rare)):
        words = rare
    elif len(words) > 1 and len(rare) < len(words):
        common = [run for run in words if counts[run] > allowed]
        words = [min(zip(count(common, -1), common, strict=True))[1]]
    return Wanted(phrases, words, [counts[run] for run in (*phrases, *words)])


def _distinct(runs: Iterable[Run]) -> list[Run]:
    """Return the first run of each stem; runs without a stem are not in the index."""
    firsts: dict[Run, Run] = {}
    for run in runs:
        if stem := tuple(stems(" ".join(run))):
            firsts.setdefault(stem, run)
    return list(firsts.values())
