"""The command that follows a memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli import show
from holdfast.cli.common import common, open_root
from holdfast.model.times import local

if TYPE_CHECKING:
    from holdfast.owner.changes import Change

_COLOURS = {"added": "green", "changed": "yellow", "removed": "red", "hidden": "red", "restored": "green"}


@click.command()
@click.option("--scope", help="Only this workspace, domain or repository and what is below it.")
@click.option("--kind", "kinds", multiple=True, help="Only this kind; may be given several times.")
@click.option("--since", default="", metavar="ID", help="First print what came after the record ID.")
@click.option("--count", default=0, metavar="N", help="End after N changes; default: never.")
@common
def watch(scope: str | None, kinds: tuple[str, ...], since: str, count: int, root: str | None, as_json: bool) -> None:
    """Print what is added, changed, removed and hidden as it comes, whoever does it, until it is stopped.

    In a pipe, or with --json, every change is one line of JSON.
    """
    in_json = show.wants_json(as_json)
    with open_root(root) as memory, memory.changes(scope, kinds, since) as changes:
        click.secho(f"Following {memory.root}; stop with Ctrl-C.", dim=True, err=True)
        for number, change in enumerate(changes, 1):
            click.echo(msgspec.json.encode(change).decode() if in_json else _line(change))
            if number == count:
                break


def _line(change: Change) -> str:
    """Put a change into one line: when, what, where, by whom, and how it begins."""
    where = " · ".join(part for part in (change.scope or "-", change.session) if part)
    told = ": ".join(part for part in (change.title, change.text) if part) or change.id or change.path
    about = f"{change.kind}  {where}{' by ' + change.writer if change.writer else ''}  {told}"
    what = click.style(f"{change.what:8}", fg=_COLOURS[change.what])
    return f"{local(change.noticed)}  {what}  {show.printable(about.replace(chr(10), ' '))}"
