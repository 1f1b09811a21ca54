"""What ranking needs to know of the records that may answer a question: how often each word stands in each of them.

The best by BM25, and what was said right before and after them in the same session. Counts come from the full-text
index itself, so that no text is read; what is common to all records is told once.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import apsw
import msgspec

from holdfast.model.kinds import KINDS
from holdfast.model.queries import Terms
from holdfast.model.settings import Search
from holdfast.storage.files import proof, rank
from holdfast.storage.files.schema import WORDS
from holdfast.storage.index import Candidate, Filter, Pool
from holdfast.storage.words import IN_ORDER, LINES, TITLE

_NEAR = (
    "(SELECT o.row FROM records o INDEXED BY records_talk WHERE o.file = r.file AND o.session = r.session"
    " AND o.sort {sign} r.sort AND NOT o.hidden AND NOT o.superseded ORDER BY o.sort {way} LIMIT 1 OFFSET {past})"
)
_BESIDE = (
    f"SELECT {_NEAR.format(sign='<', way='DESC', past=1)}, {_NEAR.format(sign='<', way='DESC', past=0)}, r.row,"
    f" {_NEAR.format(sign='>', way='ASC', past=0)}, {_NEAR.format(sign='>', way='ASC', past=1)}"
    f" FROM carray(?) CROSS JOIN records r ON r.row = value WHERE r.kind IN ({rank.holes(IN_ORDER)})"
)
_COUNTED = "counted"
_TITLE = int(TITLE)


def prepare(db: apsw.Connection) -> None:
    """Teach a connection to count the words of a query in a record."""
    db.register_fts5_function(_COUNTED, _counted)


def best(db: apsw.Connection, terms: Terms, where: Filter, limit: int, settings: Search) -> list[tuple[int, float]]:
    """Return the rows that fit the words best, and their scores."""
    found: list[tuple[int, float]] = []
    tables = _tables(where)
    for table in tables:
        found += rank.of_table(db, table, rank.telling(db, table, terms, settings), where, limit)
    if len(tables) > 1:
        found.sort(key=lambda row: -row[1])
    return found[:limit]


def pools(db: apsw.Connection, terms: Terms, where: Filter, most: int, settings: Search) -> list[Pool]:
    """Return what may answer, apart for our own records and for those of other programs, whose words count apart."""
    return [_pool(db, table, terms, where, most, settings) for table in _tables(where)]


def _tables(where: Filter) -> list[str]:
    """Return the tables in which the words of what is wanted stand."""
    return list(dict.fromkeys(rank.words_of(KINDS[name]) for name in where.kinds or where.searchable))


def _pool(db: apsw.Connection, table: str, terms: Terms, where: Filter, most: int, settings: Search) -> Pool:
    wanted = rank.telling(db, table, terms, settings)
    best = [row for row, _ in rank.of_table(db, table, wanted, where, most)]
    runs = [*wanted.phrases, *wanted.words]
    totals, _ = _lengths(db, table, [])
    known = Pool(
        foreign=table != WORDS[0], words=tuple(" ".join(run) for run in runs), held=tuple(wanted.held),
        records=max(1, totals[0]), length=max(1.0, sum(totals[1:]) / max(1, totals[0])),
    )  # fmt: skip
    return _filled(db, known, where, best)


def widened(db: apsw.Connection, pool: Pool, where: Filter, rows: Sequence[int]) -> Pool:
    """Return a pool with these rows added, as far as they are searched by words too, and what stands beside them."""
    fresh = [row for row in rows if row not in pool.candidates]
    _, lengths = _lengths(db, WORDS[pool.foreign], fresh)
    return _filled(db, pool, where, [row for row in fresh if row in lengths])


def _filled(db: apsw.Connection, pool: Pool, where: Filter, best: list[int]) -> Pool:
    """Return a pool with these rows and what stands beside them as candidates."""
    if not best:
        return pool
    table = WORDS[pool.foreign]
    after = _after(db, best)
    rows = [row for row in dict.fromkeys([*best, *after, *after.values()]) if row not in pool.candidates]
    _, lengths = _lengths(db, table, rows)
    more = _candidates(db, rows, where, _counts(db, table, [(word,) for word in pool.words], rows), lengths)
    candidates = {**pool.candidates, **more}
    known = {one: other for one, other in after.items() if one in candidates and other in candidates}
    return msgspec.structs.replace(pool, candidates=candidates, after={**pool.after, **known})


def _candidates(
    db: apsw.Connection, rows: list[int], where: Filter, counts: dict[int, bytes], lengths: dict[int, int]
) -> dict[int, Candidate]:
    """Return what ranking needs to know of rows; of what was not known yet at the time of asking, nothing."""
    condition, values = rank.conditions(where)
    known, times = (" WHERE r.time <= ?", [where.known]) if where.known else ("", [])
    found: Iterable[Any] = db.execute(
        f"SELECT r.row, r.id, r.kind, r.session, r.time, f.path, r.sort, r.author, r.agent, r.priority, r.mark,"
        f" {condition} FROM carray(?) CROSS JOIN records r ON r.row = value CROSS JOIN files f ON f.file = r.file"
        f"{known}",
        (*values, carray(rows), *times),
    )
    return {
        row: Candidate(
            id, (path, session if kind in LINES else id), time, (path, sort, id), author, bool(agent),
            counts.get(row, b""), lengths.get(row, 1), priority, mark, bool(inside),
        )
        for row, id, kind, session, time, path, sort, author, agent, priority, mark, inside in found
    }  # fmt: skip


def _after(db: apsw.Connection, rows: list[int]) -> dict[int, int]:
    """Return which record follows which, around these rows."""
    after: dict[int, int] = {}
    found: Iterable[Any] = db.execute(_BESIDE, (carray(rows), *IN_ORDER))
    for chain in found:
        after.update(itertools.pairwise([row for row in chain if row is not None]))
    return after


def _counts(db: apsw.Connection, table: str, runs: list[tuple[str, ...]], rows: list[int]) -> dict[int, bytes]:
    """Return how often each word stands in those of these records that have any."""
    if not runs:
        return {}
    found: Iterable[Any] = db.execute(
        f"SELECT rowid, {_COUNTED}({table}) FROM {table} WHERE {table} MATCH ? AND +rowid IN carray(?)",
        (" OR ".join(map(rank.quoted, runs)), carray(rows)),
    )
    return dict(found)


def _counted(api: Any, *_: object) -> bytes:
    """Count each word of a query in a record, up to 255; in the title it counts for more."""
    result = bytearray(api.phrase_count)
    for number in range(len(result)):
        title, text, rest = api.phrase_locations(number)
        if title or text or rest:
            result[number] = min(255, _TITLE * len(title) + len(text) + len(rest))
    return bytes(result)


def _lengths(db: apsw.Connection, table: str, rows: list[int]) -> tuple[list[int], dict[int, int]]:
    """Return how many records there are and how long each column of them is, and how long these records are."""
    noted = db.execute(f"SELECT block FROM {table}_data WHERE id = 1").get
    totals = (proof.varints(noted) if isinstance(noted, bytes) else []) or [1, 1]  # nothing yet
    found: Iterable[Any] = db.execute(f"SELECT id, sz FROM {table}_docsize WHERE id IN carray(?)", (carray(rows),))
    return totals, {row: sum(size) if max(size) < 0x80 else sum(proof.varints(size)) for row, size in found}


def carray(rows: Iterable[int]) -> Any:
    return apsw.carray(array("q", rows) or array("q", [0]))  # an empty array has no place; no row is 0
