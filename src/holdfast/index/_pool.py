"""What ranking needs to know of the records that may answer a question: how often each word stands in each of them.

The best by BM25, and what was said right before and after them in the same session. Counts come from the full-text
index itself, so nothing is read twice; what is common to all records is told once.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import apsw
import msgspec

from holdfast.index import Candidate, Filter, Pool, _proof, _rank, _records
from holdfast.index._schema import WORDS
from holdfast.kinds import KINDS
from holdfast.query import Terms
from holdfast.settings import Search

_IN_ORDER = tuple(name for name, row in KINDS.items() if row.shape == "line" and row.searchable and not row.key)
"""Kinds whose records stand in the order in which things happened."""
_SPAN = 2
_TOKENIZER = ("porter", ["unicode61", "remove_diacritics", "2", "categories", "L* N* Co M*"])


def pools(db: apsw.Connection, terms: Terms, where: Filter, most: int, settings: Search) -> list[Pool]:
    """Return what may answer, apart for our own records and for those of other programs, whose words count apart."""
    tables = dict.fromkeys(_rank.words_of(KINDS[name]) for name in where.kinds or where.searchable)
    return [_pool(db, table, terms, where, most, settings) for table in tables]


def widened(db: apsw.Connection, pool: Pool, terms: Terms, where: Filter, rows: Sequence[int]) -> Pool:
    """Return a pool with these rows added, which pass the filter, as far as they are searched by words too."""
    table = WORDS[pool.foreign]
    fresh = [row for row in rows if row not in pool.candidates]
    _, lengths = _lengths(db, table, fresh)
    more, after = _candidates(db, table, terms, where, [row for row in fresh if row in lengths])
    return msgspec.structs.replace(pool, candidates={**more, **pool.candidates}, after={**after, **pool.after})


def _pool(db: apsw.Connection, table: str, terms: Terms, where: Filter, most: int, settings: Search) -> Pool:
    best = [row for row, _ in _rank.of_table(db, table, terms, where, most, settings)]
    candidates, after = _candidates(db, table, terms, where, best)
    runs = [*terms.phrases, *terms.words]
    totals, _ = _lengths(db, table, [])
    return Pool(
        foreign=table != WORDS[0], words=tuple(" ".join(run) for run in runs),
        held=tuple([_rank.count(db, table, run) for run in runs]), records=max(1, totals[0]),
        length=max(1.0, sum(totals[1:]) / max(1, totals[0])), candidates=candidates, after=after,
    )  # fmt: skip


def _candidates(
    db: apsw.Connection, table: str, terms: Terms, where: Filter, best: list[int]
) -> tuple[dict[int, Candidate], dict[int, int]]:
    """Return these rows and what stands beside them as candidates, and which of them follows which."""
    if not best:
        return {}, {}
    beside = _beside(db, best)
    rows = list(dict.fromkeys([*best, *beside, *beside.values()]))
    inside = {*best, *_rank.passing(db, rows[len(best) :], where)}
    stems = [tuple(_stems(db, " ".join(run))) for run in (*terms.phrases, *terms.words)]
    counts = {stem: _counts(db, table, stem, rows) for stem in dict.fromkeys(s for run in stems for s in run)}
    _, lengths = _lengths(db, table, rows)
    records = dict(_records.load(db, rows))
    candidates = {
        row: Candidate(
            record=records[row],
            counts=tuple([min([counts[stem].get(row, 0.0) for stem in run], default=0.0) for run in stems]),
            length=float(lengths.get(row, 1)),
            inside=row in inside,
        )
        for row in rows
        if row in records
    }
    after = {one: other for one, other in beside.items() if one in candidates and other in candidates}
    return candidates, after


def _beside(db: apsw.Connection, rows: list[int]) -> dict[int, int]:
    """Return which record follows which, around these rows."""
    near = (
        "SELECT row FROM records INDEXED BY records_talk WHERE file = ? AND session = ? AND sort {sign} ?"
        f" AND NOT hidden AND NOT superseded ORDER BY sort {{way}} LIMIT {_SPAN}"
    )
    before, behind = near.format(sign="<", way="DESC"), near.format(sign=">", way="ASC")
    homes: list[Any] = db.execute(
        "SELECT row, file, session, sort FROM carray(?) CROSS JOIN records ON row = value"
        f" WHERE kind IN ({_rank.holes(_IN_ORDER)})",
        (_carray(rows), *_IN_ORDER),
    ).fetchall()
    after: dict[int, int] = {}
    for row, *home in homes:
        earlier = [other for (other,) in db.execute(before, home)]
        later = [other for (other,) in db.execute(behind, home)]
        after.update(itertools.pairwise([*reversed(earlier), row, *later]))
    return after


def _counts(db: apsw.Connection, table: str, stem: str, rows: list[int]) -> dict[int, float]:
    """Return how often a word stands in each of these records; in a title it counts for more."""
    said = _proof.said(db, table)
    found = db.execute(
        f"SELECT doc, sum(CASE col WHEN 'title' THEN {_rank.TITLE} ELSE 1.0 END) FROM {said}"
        " WHERE term = ? AND doc IN carray(?) GROUP BY doc",
        (stem, _carray(rows)),
    )
    return dict(found)


def _lengths(db: apsw.Connection, table: str, rows: list[int]) -> tuple[list[int], dict[int, int]]:
    """Return how many records there are and how long each column of them is, and how long these records are."""
    noted = db.execute(f"SELECT block FROM {table}_data WHERE id = 1").get
    totals = (_proof.varints(noted) if isinstance(noted, bytes) else []) or [1, 1]  # nothing yet
    found = db.execute(f"SELECT id, sz FROM {table}_docsize WHERE id IN carray(?)", (_carray(rows),))
    return totals, {row: sum(_proof.varints(size)) for row, size in found}


def _stems(db: apsw.Connection, text: str) -> list[str]:
    """Return the words of a text as the index keeps them."""
    tokenizer = db.fts5_tokenizer(*_TOKENIZER)
    found: Any = tokenizer(text.encode(), apsw.FTS5_TOKENIZE_QUERY, None)
    return [str(token[2]) for token in found]


def _carray(rows: Iterable[int]) -> Any:
    return apsw.carray(array("q", rows) or array("q", [0]))  # an empty array has no place; no row is 0
