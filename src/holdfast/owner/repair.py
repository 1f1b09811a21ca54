"""Get back entries that an outside change removed from logs: from the git history of each log, and from backups.

The index knows which entries are missing. They are appended by id; nothing that is there is touched, and what the owner
forgot does not come back.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence

from holdfast.core import Core
from holdfast.formats import jsonl
from holdfast.owner.restore import restore
from holdfast.storage import write_log


def repair(memory: Core, backups: Sequence[str] = ()) -> dict[str, tuple[int, int]]:
    """Append lost entries again; return for each log how many of how many."""
    done, lost = {}, memory.store.lost()
    forgotten = write_log.forgotten(memory.tree, memory.layout.memory) if lost else set()
    with tempfile.TemporaryDirectory() as scratch:
        copies = [restore(each, f"{scratch}/{number}").path for number, each in enumerate(backups if lost else ())]
        for path, ids in lost.items():
            wanted, found = set(ids) - forgotten, dict[str, bytes]()
            for text in _versions(memory.root, path, copies):
                for line in text.splitlines() if found.keys() != wanted else ():
                    found |= {key: line for key in jsonl.keys(line) if key in wanted and key not in found}
            done[path] = memory.store.import_lines(path, list(dict.fromkeys(found.values()))), len(ids)
    return done


def _versions(root: str, path: str, copies: list[str]) -> Iterator[bytes]:
    """Yield the text of a log in all commits, newest first, then in copies of the memory."""
    commits = _git(root, "log", "--all", "--full-history", "--format=%H", "--", path)
    for commit in commits.decode().split():
        yield _git(root, "show", f"{commit}:./{path}")
    for copy in copies:
        with contextlib.suppress(FileNotFoundError), open(os.path.join(copy, path), "rb") as file:
            yield file.read()


def _git(root: str, *words: str) -> bytes:
    """Return what git prints: nothing if it is not installed, or the memory is not in git."""
    with contextlib.suppress(FileNotFoundError):
        return subprocess.run(["git", *words], cwd=root, capture_output=True, check=False).stdout
    return b""
