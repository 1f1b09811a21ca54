"""Get back entries that an outside change removed from logs: from the git history of each log, and from backups.

The index knows which entries are missing. They are appended by id; nothing that is there is touched, and what the owner
forgot does not come back.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.core import Core
from holdfast.formats import jsonl
from holdfast.model.names import amount
from holdfast.owner.backup import restore
from holdfast.storage import write_log


class Repaired(msgspec.Struct, frozen=True):
    """What was done for one log."""

    count: int
    """Entries that were appended again."""
    total: int
    """Entries that were missing."""
    seen: list[str]
    """Where they were last seen: commits of git, or backups."""

    def __str__(self) -> str:
        where = f", last seen in {', '.join(self.seen[:3])}" if self.seen else ""
        return f"{self.count} of {amount(self.total, 'missing entry', 'missing entries')} appended again{where}."


def repair(memory: Core, backups: Sequence[str] = ()) -> dict[str, Repaired]:
    """Append lost entries again, and return what was done for each log."""
    done, lost = {}, memory.store.lost()
    forgotten = write_log.forgotten(memory.tree, memory.layout.memory) if lost else set()
    with tempfile.TemporaryDirectory() as scratch:
        given = enumerate(backups if lost else ())
        copies = {each: restore(each, f"{scratch}/{number}").path for number, each in given}
        for path, ids in lost.items():
            wanted, found, seen = set(ids) - forgotten, dict[str, bytes](), dict[str, None]()
            for where, text in _versions(memory.root, path, copies):
                for line in text.splitlines() if found.keys() != wanted else ():
                    if new := {key: line for key in jsonl.keys(line) if key in wanted and key not in found}:
                        found, seen = found | new, seen | {where: None}
            count = memory.store.import_lines(path, list(dict.fromkeys(found.values())))
            done[path] = Repaired(count, len(ids), list(seen))
    return done


def _versions(root: str, path: str, copies: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield the text of a log in all commits, newest first, then in copies of the memory, and where each is."""
    commits = _git(root, "log", "--all", "--full-history", "--format=%H", "--", path)
    for commit in commits.decode().split():
        yield f"git {commit[:10]}", _git(root, "show", f"{commit}:./{path}")
    for backup, copy in copies.items():
        with contextlib.suppress(FileNotFoundError), open(os.path.join(copy, path), "rb") as file:
            yield backup, file.read()


def _git(root: str, *words: str) -> bytes:
    """Return what git prints: nothing if it is not installed, or the memory is not in git."""
    with contextlib.suppress(FileNotFoundError):
        return subprocess.run(["git", *words], cwd=root, capture_output=True, check=False).stdout
    return b""
