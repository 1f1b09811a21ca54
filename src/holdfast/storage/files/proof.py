"""What proves that two indexes say the same: a number per file, over everything that is held of it.

Words are counted with their places and records with their lengths, since ranking rests on both. An index that is not
sound in itself is Stale.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import apsw

from holdfast.storage.files import schema, ties
from holdfast.storage.index import Stale

_LOW64 = (1 << 64) - 1


def proof(db: apsw.Connection) -> dict[str, int]:
    """Return the numbers; they hold within one process only."""
    for words in schema.WORDS:  # the check goes by what a connection saw last; a query looks anew
        db.execute(f"SELECT rowid FROM {words} WHERE {words} MATCH 'anything' LIMIT 1").get  # noqa: B018
    if (fault := db.pragma("integrity_check")) != "ok":
        raise Stale(f"the index is damaged: {fault}")
    paths: dict[int, str] = dict(db.execute("SELECT file, path FROM files"))
    sums = dict.fromkeys(paths, 0)
    homes: dict[int, tuple[int, int]] = {}
    for row, file, *rest in rows(db, "SELECT * FROM records"):
        sums[file] = (sums.get(file, 0) + hash(tuple(rest))) & _LOW64
        homes[row] = (file, hash(rest[0]))
    for file, *rest in rows(db, "SELECT * FROM marks"):
        sums[file] = (sums.get(file, 0) + hash(tuple(rest))) & _LOW64
    retired = {row for (row,) in rows(db, "SELECT row FROM records WHERE superseded")}
    for row, *rest in itertools.chain(ties.proof(db), _vocabulary(db), _lengths(db)):
        if row in homes and row not in retired:
            file, identity = homes[row]
            sums[file] = (sums[file] + hash((identity, *rest))) & _LOW64
    return {paths.get(file, f"a file that is not known ({file})"): total for file, total in sums.items()}


def rows(db: apsw.Connection, sql: str, values: tuple[Any, ...] = ()) -> Iterator[Any]:
    yield from db.execute(sql, values)


def _vocabulary(db: apsw.Connection) -> Iterator[tuple[Any, ...]]:
    """Yield every word of every record, and where it stands."""
    for words in schema.WORDS:
        yield from rows(db, f"SELECT doc, term, col, offset FROM {said(db, words)}")


def said(db: apsw.Connection, words: str) -> str:
    """Return the table that tells where each word stands."""
    name = f"temp.{words}_said"
    db.execute(f"CREATE VIRTUAL TABLE IF NOT EXISTS {name} USING fts5vocab (main, {words}, instance)")
    return name


def _lengths(db: apsw.Connection) -> Iterator[tuple[int, ...]]:
    """Yield how many words each record has, by which ranking weighs them; Stale when they do not add up."""
    for words in schema.WORDS:
        total = [0, 0, 0, 0]
        for row, size in rows(db, f"SELECT id, sz FROM {words}_docsize"):
            lengths = varints(size)
            total = [one + other for one, other in zip(total, [1, *lengths], strict=True)]
            yield row, *lengths
        noted = db.execute(f"SELECT block FROM {words}_data WHERE id = 1").get
        if total[0] and (not isinstance(noted, bytes) or varints(noted) != total):
            raise Stale("the index is damaged: the lengths of its records do not add up")


def varints(data: bytes) -> list[int]:
    """Read numbers as SQLite writes them: seven bits a byte, the greatest first."""
    numbers, number = [], 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    return numbers
