"""Tables of the SQLite index. A change here needs another VERSION; an index of another version is rebuilt."""

from __future__ import annotations

from holdfast.storage.stems import TOKENIZER

VERSION = 10
_TOKENIZER = " ".join(f"'{part}'" if " " in part else part for part in (TOKENIZER[0], *TOKENIZER[1]))

WORDS = ("words", "foreign_words")
"""The words of all records, and apart those of other programs: what is read only on request must not weigh."""
_TABLE = """
CREATE VIRTUAL TABLE {name} USING fts5 (
    title, text, rest, content='', contentless_delete=1,
    tokenize="{tokenizer}"
);"""
TABLES = frozenset({"meta", "files", "records", "marks", "problems", *WORDS, "ties"})

SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE files (
    file INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, seen BLOB NOT NULL
);
CREATE TABLE records (
    row INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL,
    scope TEXT NOT NULL, session TEXT NOT NULL, time TEXT NOT NULL, key TEXT, op TEXT, tagged TEXT NOT NULL,
    sort TEXT NOT NULL, pair TEXT, alone INTEGER NOT NULL, hidden INTEGER NOT NULL, superseded INTEGER NOT NULL,
    author TEXT NOT NULL, agent INTEGER NOT NULL, priority INTEGER NOT NULL, mark INTEGER NOT NULL, record BLOB NOT NULL
);
CREATE UNIQUE INDEX records_identity ON records (id, file);
CREATE INDEX records_file ON records (file);
CREATE INDEX records_place ON records (kind, scope, time);
CREATE INDEX records_order ON records (file, sort);
CREATE INDEX records_talk ON records (file, session, sort) WHERE NOT hidden AND NOT superseded;
CREATE INDEX records_gone ON records (file) WHERE hidden OR superseded;
CREATE INDEX records_key ON records (key, file) WHERE key IS NOT NULL;
CREATE INDEX records_pair ON records (pair, file) WHERE pair IS NOT NULL;
CREATE INDEX records_alone ON records (file) WHERE alone;
CREATE INDEX records_op ON records (op) WHERE op IS NOT NULL;
CREATE TABLE marks (
    file INTEGER NOT NULL, target TEXT NOT NULL, sort TEXT NOT NULL, hidden INTEGER NOT NULL, op TEXT,
    PRIMARY KEY (target, file, sort)
) WITHOUT ROWID;
CREATE INDEX marks_file ON marks (file);
CREATE INDEX marks_op ON marks (op) WHERE op IS NOT NULL;
CREATE TABLE problems (file INTEGER NOT NULL, line INTEGER NOT NULL, what TEXT NOT NULL, minor INTEGER NOT NULL);
CREATE INDEX problems_file ON problems (file);
CREATE TABLE ties (
    way INTEGER NOT NULL, name TEXT NOT NULL, row INTEGER NOT NULL, PRIMARY KEY (way, name, row)
) WITHOUT ROWID;
CREATE INDEX ties_row ON ties (row);
{words}
""".format(words="".join(_TABLE.format(name=name, tokenizer=_TOKENIZER) for name in WORDS))
