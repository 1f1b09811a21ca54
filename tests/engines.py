"""Which tests run on PostgreSQL too, and why the others do not.

A test that is given `root` or `memory` runs once on files and once on a database, unless its module or itself is named
here with the reason. `--engine=files` or `--engine=postgres` runs one half.
"""

from __future__ import annotations

ENGINES = ("files", "postgres")
FILES_ONLY: dict[str, str] = {}


def reason(module: str, test: str) -> str:
    """Return why a test is of files alone, "" when it holds on every engine."""
    return FILES_ONLY.get(module) or FILES_ONLY.get(f"{module}::{test}", "")
