"""`holdfast git`: run git in the memory while all writers wait, and lose no entry to a merge.

Writers wait because git takes the lock on the root folder alone, which every write shares. After a merge, the entries
that each log had before are compared with those it has now, by id; those that are missing are appended again.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import click

from holdfast import roots
from holdfast.cli.main import command, open_root
from holdfast.errors import Invalid, Unavailable
from holdfast.formats import jsonl
from holdfast.model.names import amount

if TYPE_CHECKING:
    from holdfast.memory import Memory
    from holdfast.storage.tree import Snapshot, Stamp

_MERGES = ("pull", "sync", "merge", "rebase", "cherry-pick", "am")
_CHANGES = (*_MERGES, "add", "apply", "checkout", "clean", "commit", "mv", "reset", "restore", "revert", "rm", "stash",
            "switch")  # fmt: skip


@command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
def git(words: tuple[str, ...]) -> None:
    """Run git in the memory while all writers wait.

    `holdfast git sync` commits everything, pulls and pushes. Entries that a merge drops are appended again. No editor
    is opened: give messages with -m. Options of Holdfast come before the command of git.
    """
    verb, *rest = words
    if verb.startswith("-"):
        raise Invalid(f"{verb} comes before the command of git.", "Name the command first, as in: holdfast git pull")
    with open_root() as memory:
        if not memory.in_files:
            raise Invalid("A memory in a database is not in git.", "Use holdfast push and holdfast pull.")
        if verb not in _CHANGES:
            sys.exit(_run(memory.root, *words))
        code = _run(memory.root, "fetch") if verb in ("pull", "sync") else 0  # without the lock: it may take long
        with contextlib.ExitStack() as opened:
            with roots.writers_wait(memory.root, memory.settings.limits.lock_seconds):
                before = _logs(memory, opened) if verb in _MERGES else {}
                if not code:
                    code = _commit_and_pull(memory.root, rest) if verb == "sync" else _run(memory.root, *words)
            for path, count in _put_back(memory, before).items():
                what = f"{amount(count, 'entry was', 'entries were')} missing after git {verb} and appended again."
                click.echo(f"{path}: {what}", err=True)
        if not code and verb == "sync":
            code = _run(memory.root, "push")
    sys.exit(code)


def _run(root: str, *words: str) -> int:
    try:
        return subprocess.run(
            ["git", *words], cwd=root, env=os.environ | {"GIT_EDITOR": "true"}, check=False
        ).returncode
    except FileNotFoundError:
        raise Unavailable("git is not installed.", "Install it, for example: apt install git") from None


def _commit_and_pull(root: str, rest: list[str]) -> int:
    return (
        _run(root, "add", "--all")
        or (_run(root, "diff", "--cached", "--quiet") and _run(root, "commit", "--quiet", "-m", "Update the memory"))
        or _run(root, "pull", "--no-rebase", "--no-edit", *rest)
    )


def _logs(memory: Memory, opened: contextlib.ExitStack) -> dict[str, tuple[Stamp, Snapshot]]:
    """Open every log: git replaces files, so an open one keeps the text from before."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    walks = (memory.tree.walk(top, (".jsonl",), lambda _path, _why: None) for top in memory.layout.roots)
    found = {path: stamp for walk in walks for path, stamp in walk}
    return {path: (stamp, opened.enter_context(memory.tree.snapshot(path))) for path, stamp in found.items()}


def _put_back(memory: Memory, before: dict[str, tuple[Stamp, Snapshot]]) -> dict[str, int]:
    """Append entries that a log had before and lacks now; return how many by path. A removed log stays removed."""
    added = {}
    for path, (stamp, snapshot) in before.items():
        if memory.tree.stat(path) in (None, stamp):
            continue
        count, rest = 0, b""
        for chunk in snapshot.chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            count += memory.store.import_lines(path, [line for line in lines if jsonl.own_id(line)])
        if count:
            added[path] = count
    return added
