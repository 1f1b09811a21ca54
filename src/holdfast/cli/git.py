"""`holdfast git`: run git in the memory while all writers wait, and lose no entry to a merge.

Writers wait because git takes the lock on the root folder alone, which every write shares. The index knows the entries
of each log before and after a merge; those that are missing afterwards are appended again from the history of git.
"""

from __future__ import annotations

import os
import subprocess
import sys

import click

from holdfast.cli.main import command, open_root
from holdfast.errors import Unavailable
from holdfast.owner.history import repair
from holdfast.storage.files.descriptors import hold

_MERGES = ("pull", "sync", "merge", "rebase", "cherry-pick")
_OTHERS = ("add", "checkout", "commit", "reset", "restore", "revert", "rm", "stash", "switch")


@command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("verb", type=click.Choice([*_MERGES, *_OTHERS]), metavar="COMMAND")
@click.argument("rest", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF GIT]...")
def git(verb: str, rest: tuple[str, ...]) -> None:
    """Run git in the memory while all writers wait.

    `sync` commits everything, pulls and pushes. Entries that a merge drops are appended again. No editor is opened:
    give messages with -m. --root comes before COMMAND, the options of git after it.
    """
    with open_root() as memory:
        root = memory.folder("git")
        memory.refresh()  # the index knows the entries of each log; after a merge, repair compares with it
        code = _run(root, "fetch") if verb in ("pull", "sync") else 0  # without the lock: it may take long
        fd = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
        hold(fd, memory.settings.limits.lock_seconds, root)
        memory.refresh()
        words = [verb, *rest]
        if verb == "sync":
            code = code or _run(root, "add", "--all")
            if not code and _run(root, "diff", "--cached", "--quiet"):
                code = _run(root, "commit", "--quiet", "--message=Update the memory")
            words = ["pull", "--no-rebase", "--no-edit", *rest]
        code = code or _run(root, *words)
        os.close(fd)
        for path, done in repair(memory).items() if verb in _MERGES else ():
            click.echo(f"{path}: after git {verb}, {done}", err=True)
        sys.exit(code or (_run(root, "push") if verb == "sync" else 0))


def _run(root: str, *words: str) -> int:
    try:
        return subprocess.call(["git", *words], cwd=root, env=os.environ | {"GIT_EDITOR": "true"})
    except FileNotFoundError:
        raise Unavailable("git is not installed.", "Install it, for example: apt install git") from None
