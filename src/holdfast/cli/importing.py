"""Bringing what other programs recorded into memory: transcripts into cold memory, chats into the chat history."""

from __future__ import annotations

import functools

import click
import msgspec

from holdfast.cli import show
from holdfast.cli.common import common, open_root
from holdfast.errors import Invalid
from holdfast.memories._sources import named
from holdfast.memories.cold import SOURCES, find_sources
from holdfast.model.names import amount

_CHAT = "chat"
_NEXT_CHAT = 'holdfast chat search "…"'
_NEXT = 'holdfast recall "…" --layers cold'
_SHOWN = 10


@click.command("import")
@click.argument("source", type=click.Choice([*SOURCES, _CHAT]))
@click.argument("paths", type=click.Path(), nargs=-1, metavar="[PATH]...")
@click.option("--workspace", help="The workspace, domain or repository that the conversations belong to.")
@click.option("--channel", default="", help="For chat: the channel of messages that name none.")
@click.option("--dry-run", is_flag=True, help="Only count what would be brought in.")
@common
def import_(
    source: str, paths: tuple[str, ...], workspace: str | None, channel: str, dry_run: bool, root: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Bring conversations of SOURCE into cold memory: those in its own folder, or in PATH (files or folders).

    SOURCE chat brings older messages of a chat bot, one JSON object per line, into the chat history instead.
    Nothing is brought twice, so the command can be repeated whenever there are new ones. Secrets of known forms are
    removed.
    """
    if source == _CHAT and workspace:
        raise Invalid("The chat history belongs to no workspace.", "Leave --workspace out.")
    if source != _CHAT and channel:
        raise Invalid("Only messages of a chat have a channel.", "Leave --channel out.")
    find = named if source == _CHAT else functools.partial(find_sources, source)
    files = [file for path in paths or ("",) for file in find(path)]
    with open_root(root) as memory, show.progress("reading (kB)") as progress:
        if source == _CHAT:
            done = memory.chat.bring(files, channel, dry=dry_run)
        else:
            done = memory.transcripts.bring(source, files, workspace, progress, dry=dry_run)
    following = _NEXT_CHAT if source == _CHAT else _NEXT
    if show.wants_json(as_json):
        show.as_json({"source": source, "dryRun": dry_run, "files": done.files, "turns": done.turns,
                      "added": done.added, "known": done.turns - done.added, "skipped": done.skipped,
                      "problems": msgspec.to_builtins(done.problems), "next": following})  # fmt: skip
    else:
        click.echo(
            f"{amount(done.files, 'file')}, {amount(done.turns, 'turn')}: "
            f"{done.added} {'would be added' if dry_run else 'added'}, {done.turns - done.added} already there, "
            f"{amount(done.skipped, 'line or file', 'lines or files')} skipped."
        )
        if not dry_run:
            click.echo(f"Search them: {following}")
    for problem in done.problems[:_SHOWN]:
        click.secho(show.printable(str(problem)), fg="yellow", err=True)
    if done.skipped > _SHOWN:
        click.secho(f"… and {done.skipped - _SHOWN} more; --json lists the first hundred.", fg="yellow", err=True)
