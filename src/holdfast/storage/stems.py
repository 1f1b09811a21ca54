"""The words of a text as every engine of the index keeps them: SQLite's own tokenizer, which needs no database file."""

from __future__ import annotations

import threading
from typing import Any

import apsw

TOKENIZER = ("porter", ["unicode61", "remove_diacritics", "2", "categories", "L* N* Co M*"])
_own = threading.local()


def stems(text: str) -> list[str]:
    """Return the words of a text in order, in the form in which they are compared."""
    tokenizer: Any = getattr(_own, "tokenizer", None)
    if tokenizer is None:  # a connection must not be used by two threads at a time
        tokenizer = _own.tokenizer = apsw.Connection(":memory:").fts5_tokenizer(*TOKENIZER)
    data = text.encode("utf-8", "replace")
    return list(tokenizer(data, apsw.FTS5_TOKENIZE_DOCUMENT, None, include_offsets=False, include_colocated=False))
