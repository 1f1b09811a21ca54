"""The command `git`: git in a memory, while all writers wait, and the merge driver that git starts."""

from __future__ import annotations

import os
import sys

import click

from holdfast.cli import show
from holdfast.cli.main import command, locate, open_root
from holdfast.errors import Invalid
from holdfast.owner import merge_driver

_MERGES = ("pull", "merge", "rebase", "cherry-pick")
"""The commands of git after which lost entries are searched for."""
_OTHERS = ("add", "checkout", "commit", "reset", "restore", "revert", "rm", "stash", "switch")
_SYNC, _SETUP, _DRIVER = "sync", "setup", "merge-file"


@command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("verb", type=click.Choice([_SYNC, _SETUP, *_MERGES, *_OTHERS, _DRIVER]), metavar="COMMAND")
@click.argument("rest", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF GIT]...")
def git(verb: str, rest: tuple[str, ...]) -> None:
    """Run git in the memory while all writers wait.

    `sync` commits everything, merges what others pushed, and pushes. `setup`, once in each clone, makes git merge
    decisions and lessons by entry and logs by id, also when git is started by itself; `sync` does it, too. COMMAND can
    be pull, merge, rebase, cherry-pick, add, checkout, commit, reset, restore, revert, rm, stash or switch as well.

    Entries that a merge drops are appended again. No editor is opened: give messages with -m. --root comes before
    COMMAND, the options of git after it.
    """
    if verb == _DRIVER:
        _merge(*rest)
    from holdfast.owner.git import run, setup, sync  # slow to import, and the driver does without it

    if verb == _SETUP:
        root = os.path.realpath(locate()[0])
        changed = setup(root)
        show.json_and_exit({"root": root, "changed": changed})
        click.echo(f"Set up: {', '.join(changed)}." if changed else "This clone was set up already.")
        return

    def say(text: str) -> None:
        click.echo(text, err=True)

    with open_root() as memory:
        if verb == _SYNC:
            sys.exit(sync(memory, rest, say))
        sys.exit(run(memory, verb, rest, say, merges=verb in _MERGES))


def _merge(base: str = "", ours: str = "", theirs: str = "", path: str = "", marks: str = "7") -> None:
    """Merge three files as git's merge driver; git shows what this prints."""
    if not (path and marks.isdecimal()):
        raise Invalid("git starts this as its merge driver.", "Run: holdfast git setup")
    merged = merge_driver.merge_file(base, ours, theirs, path, int(marks))
    for title in merged.twice:
        what = f'{path}: "{title}" was changed on both sides: both versions are kept. Make one of them'
        click.echo(show.printable(f"{what}; holdfast lint lists them."), err=True)
    sys.exit(merge_driver.CONFLICT if merged.conflict else 0)
