"""What every engine of the index makes of a record and of a question, so that all give the same answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from holdfast.formats.links import names_of
from holdfast.formats.links import normal as normal
from holdfast.model.kinds import KINDS
from holdfast.model.names import same as same
from holdfast.model.queries import Terms, spaced
from holdfast.model.records import Record, text_of
from holdfast.model.settings import Search
from holdfast.storage.index import Stale

TITLE = 4.0
"""What a word counts for that stands in the title."""
LINES = {name for name, row in KINDS.items() if row.shape == "line" and not row.key}
"""Kinds whose records stand in the order in which things happened."""
IN_ORDER = tuple(name for name in KINDS if name in LINES and KINDS[name].searchable)
NAME, LINK, TAG = 1, 2, 3
COMMON = 200
"""What more records share than this says nothing of any of them."""
MOST = 5_000
"""Of what so many share everywhere it is not even asked how many of them pass a filter."""
Run = tuple[str, ...]
Tie = tuple[float, list[str]]
_AUTHORS = ("speaker", "author", "sender_id", "sender", "from")
_NAME = re.compile(r"[^\W_]+")
_UNSEARCHED = frozenset(
    "op writer ref size created updated date covers by exchange origin tool_call_id channel sender_id".split()
)
_TWICE = {"summary": "said"}
"""What says once more what the text of such a record says."""
record_out, record_in = msgspec.json.Encoder().encode, msgspec.json.Decoder(Record).decode


# records


def author_of(record: Record) -> str:
    """Return who said or wrote it, as a question would name them: lower case, words apart."""
    named = (record.fields.get(name) for name in _AUTHORS)
    return " ".join(_NAME.findall(next((name for name in named if isinstance(name, str)), "").lower()))


def pair_of(record: Record) -> str:
    """Return the name that the two lines of a pair share."""
    pair = record.fields.get(KINDS[record.kind].pair) if KINDS[record.kind].pair else None
    return pair if isinstance(pair, str) else ""


def op_of(record: Record) -> str | None:
    op = record.fields.get("op")
    return op if isinstance(op, str) else None


def words_of(record: Record) -> tuple[str, str, str] | None:
    """Return the title, the text and the rest in which words are looked for, None when none are."""
    kind = KINDS[record.kind]
    if not kind.searchable or (kind.quiet and record.fields.get(kind.quiet)):
        return None
    rest = [
        text_of(value)
        for name, value in record.fields.items()
        if name not in kind.choices and name not in _UNSEARCHED and name not in (kind.text, _TWICE.get(kind.name))
    ]
    return spaced(record.title), spaced(record.text), spaced("\n".join((*record.tags, *rest)))


def revive(blob: bytes, hidden: int, superseded: int) -> Record:
    """Return a record as it was put away, with what has become of it."""
    if not isinstance(blob, bytes):
        raise Stale("the index is damaged: a record is missing")
    record = record_in(blob)
    if hidden != record.hidden or superseded:
        return msgspec.structs.replace(record, hidden=bool(hidden), superseded=bool(superseded))
    return record


def tagged(tags: tuple[str, ...]) -> str:
    """Return tags in the form in which they are compared."""
    return "\x1f" + "\x1f".join(same(tag) for tag in tags) + "\x1f" if tags else ""


# ties


def ties_of(record: Record) -> list[tuple[int, str]]:
    """Return a record's names, links and tags; what is cold or Holdfast's own is tied to nothing."""
    kind = KINDS[record.kind]
    if kind.layer not in ("hot", "warm") or not kind.searchable:
        return []
    ties = [(NAME, name) for name in names_of(record)]
    ties += [(LINK, name) for name in dict.fromkeys(map(normal, record.links)) if name]
    ties += [(TAG, name) for name in dict.fromkeys(map(same, record.tags)) if name]
    return list(dict.fromkeys(ties))


def tied(
    identifier: str, own: list[int], names: Callable[[int], list[str]], having: Callable[[int, str], list[int]]
) -> dict[int, Tie]:
    """Return the rows tied to a record, or to a name that is nobody's id, how closely, and why.

    `names` gives what the record has in some way, `having` the rows that have a name in some way; the rarer what is
    shared, the closer.
    """
    bears, links, tags = (names(way) for way in (NAME, LINK, TAG))
    if not own:
        bears, links, tags = [], [normal(identifier)], [same(identifier)]
    found: dict[int, Tie] = {}
    for way, wanted, weight, how in (
        (NAME, links, 3.0, "linked to" if own else "is"),
        (LINK, bears, 3.0, "links here"),
        (LINK, links, 2.0, "also links to {name}" if own else "links to {name}"),
        (TAG, tags, 1.0, "tagged {name}"),
    ):
        for name in wanted:
            rows = having(way, name)
            for row in rows:
                score, reasons = found.get(row, (0.0, []))
                found[row] = (score + weight / len(rows), [*reasons, how.format(name=name)])
    for row in own:
        found.pop(row, None)
    return found


# questions


class Wanted(NamedTuple):
    """The words that are worth looking for; those of one stem are one word."""

    phrases: list[Run]
    words: list[Run]
    held: list[int]
    """In how many records each stands, phrases first."""


def telling(
    terms: Terms, settings: Search, stems: Callable[[str], list[str]], count: Callable[[Run, int], int]
) -> Wanted:
    """Return the words of a query whose ranking does not cost more than they tell.

    `count` says in how many records a word stands; it may stop at a number, unless that is negative.
    """
    phrases, words = _distinct(terms.phrases, stems), _distinct(terms.words, stems)
    allowed = settings.common_records
    counts = {run: count(run, allowed + 1) for run in (*phrases, *words)}
    rare = [run for run in words if counts[run] <= allowed]
    if len(words) > 1 and any(counts[run] for run in rare):
        words = rare
    elif len(words) > 1 and len(rare) < len(words):
        common = [run for run in words if counts[run] > allowed]
        words = [min(common, key=lambda run: (count(run, -1), run))]
    return Wanted(phrases, words, [counts[run] for run in (*phrases, *words)])


def _distinct(runs: Iterable[Run], stems: Callable[[str], list[str]]) -> list[Run]:
    """Leave out what the index keeps as the same word as an earlier one, and what it does not keep."""
    found = {run: tuple(stems(" ".join(run))) for run in runs}
    firsts = {stem: run for run, stem in reversed(found.items()) if stem}
    return [run for run, stem in found.items() if firsts.get(stem) == run]
