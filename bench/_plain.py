"""The baseline for recall: SQLite's full-text search, without Holdfast."""

from __future__ import annotations

import re
from collections.abc import Iterator

import apsw

from bench.quality import SESSIONS, TURNS, Asked, Corpus, Ranking, Set

_WORD = re.compile(r"\w+")


def run(given: Set) -> Asked:
    """Ask every question of a set: its words joined by OR, ranked by BM25; a session ranks as its best turn."""
    return Asked([ranking for corpus in given.corpora for ranking in _rankings(corpus)])


def _rankings(corpus: Corpus) -> Iterator[Ranking]:
    db = apsw.Connection(":memory:")
    db.execute("CREATE VIRTUAL TABLE said USING fts5 (text, tokenize = 'porter unicode61')")
    db.executemany("INSERT INTO said (rowid, text) VALUES (?, ?)", enumerate(turn.text for turn in corpus.turns))
    for question in corpus.questions:
        words = " OR ".join(f'"{word}"' for word in _WORD.findall(question.question))
        found = db.execute("SELECT rowid FROM said WHERE said MATCH ? ORDER BY rank", (words,)) if words else ()
        turns = [corpus.turns[row] for (row,) in found]
        sessions = list(dict.fromkeys(turn.session for turn in turns))
        yield Ranking(question.id, [turn.id for turn in turns[:TURNS]], sessions[:SESSIONS])
