"""What proves that two indexes in a database say the same: a number per file, over everything that is held of it.

The sums are made by the server. An index whose own sums do not add up is Stale.
"""

from __future__ import annotations

from holdfast.storage.index import Stale
from holdfast.storage.postgres._filters import HERE
from holdfast.storage.postgres._finding import Generation
from holdfast.storage.postgres.transactions import Turn

_RECORDS = f"""
SELECT file, sum(hashtextextended(ROW(id, kind, scope, session, time, key, op, tagged, sort, pair, alone, hidden,
    superseded, author, agent, priority, mark, record)::text, 0)::numeric)
FROM holdfast.index_records WHERE {HERE} GROUP BY file
"""
_MARKS = f"""
SELECT file, sum(hashtextextended(ROW(target, sort, hidden, op)::text, 0)::numeric)
FROM holdfast.index_marks WHERE {HERE} GROUP BY file
"""
_OF_RECORDS = """
SELECT r.file, sum(hashtextextended(ROW(r.id, {what})::text, 0)::numeric)
FROM holdfast.index_records r JOIN holdfast.{table} x
    ON x.tenant = %(tenant)s AND x.generation = %(generation)s AND x.row = r.row
WHERE r.tenant = %(tenant)s AND r.generation = %(generation)s GROUP BY r.file
"""
_WORDS = _OF_RECORDS.format(what="x.length, replace(x.words::text, '''' || %(mark)s, '''')", table="index_words")
_TIES = _OF_RECORDS.format(what="x.way, x.name", table="index_ties")
_WRONG = f"""
SELECT count(*) FROM (
    SELECT lexeme AS term, count(*) AS held FROM holdfast.index_words, unnest(words)
    WHERE {HERE} GROUP BY lexeme
) AS real FULL JOIN (
    SELECT term, held FROM holdfast.index_terms WHERE {HERE} AND held <> 0
) AS noted USING (term) WHERE real.held IS DISTINCT FROM noted.held
"""


def proof(turn: Turn, index: Generation) -> dict[str, int]:
    """Return the numbers."""
    values = {"generation": index.number, "mark": index.mark}
    row = turn.row(
        f"SELECT count(*), coalesce(sum(length), 0)::bigint FROM holdfast.index_words WHERE {HERE}", **values
    )
    now = turn.row(
        f"SELECT records + foreign_records, length + foreign_length FROM holdfast.index_generations WHERE {HERE}",
        **values,
    )
    wrong = turn.row(_WRONG, **values)
    if row != now or (wrong and wrong[0]):
        raise Stale("the index is damaged: its words do not add up")
    paths: dict[int, str] = dict(turn.rows(f"SELECT file, path FROM holdfast.index_files WHERE {HERE}", **values))
    sums = dict.fromkeys(paths, 0)
    for statement in (_RECORDS, _MARKS, _WORDS, _TIES):
        for file, total in turn.rows(statement, **values):
            sums[file] = sums.get(file, 0) + int(total)
    return {paths.get(file, f"a file that is not known ({file})"): total for file, total in sums.items()}
