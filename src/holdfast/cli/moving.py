"""Memories between files and databases: `push`, `pull`, `export`. The owner's, never a model's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli import show
from holdfast.cli.common import common, open_root
from holdfast.errors import Invalid, Unavailable
from holdfast.model.names import amount

if TYPE_CHECKING:
    from holdfast.owner.transfer import Moved, Mover
    from holdfast.storage.refresh import Progress

_SHOWN = 20
_MEANING = {
    "new": "not there yet",
    "changed": "changed since both sides agreed",
    "merged": "entries are put together",
    "conflict": "changed on both sides: theirs stays, ours is put beside it",
    "same": "there already",
    "newer": "changed on the other side only: left alone",
    "gone": "removed on the other side: not brought back",
    "forgotten": "forgotten on the other side: not brought back",
}
_HERE = _MEANING | {
    "new": "not here yet",
    "conflict": "changed on both sides: ours stays, theirs is put beside it",
    "same": "here already",
    "newer": "changed here only: left alone",
    "gone": "removed here: not brought back",
    "forgotten": "forgotten here: not brought back",
}
"""What it means when something comes here."""
_scope = click.option("--scope", default="", help="Only what belongs to this workspace, domain or repository.")
_dry = click.option("--dry-run", "--preview", is_flag=True, help="Only say what would move.")


@click.command()
@click.option("--to", default="", metavar="ADDRESS", help="A folder or postgresql://…; default: the shared memory.")
@_scope
@_dry
@click.option("--yes", is_flag=True, help="Do it without asking; needed where nobody can be asked.")
@common
def push(to: str, scope: str, dry_run: bool, yes: bool, root: str | None, as_json: bool) -> None:
    """Move what this memory has to another one: a folder, or a database that a team shares.

    First it says what would move. Nothing is moved twice, and nothing is removed or replaced that changed there
    meanwhile: of such a document both versions are kept.
    """
    _move(root, to, scope, dry_run=dry_run, yes=yes, as_json=as_json, push=True)


@click.command()
@click.option(
    "--from", "source", default="", metavar="ADDRESS", help="A folder or postgresql://…; default: the shared memory."
)
@_scope
@_dry
@common
def pull(source: str, scope: str, dry_run: bool, root: str | None, as_json: bool) -> None:
    """Move what another memory has to this one. Nothing here is removed, or replaced if it changed here meanwhile."""
    _move(root, source, scope, dry_run=dry_run, yes=True, as_json=as_json, push=False)


def _move(root: str | None, other: str, scope: str, *, dry_run: bool, yes: bool, as_json: bool, push: bool) -> None:
    plain = not show.wants_json(as_json)
    with open_root(root) as memory, memory.moving(other, scope=scope, push=push) as mover:
        with show.progress("looking") as progress:
            planned = mover.plan(progress)
        if plain:
            _table(planned, push=push)
        if not dry_run and not planned.nothing and not yes:
            if not (plain and sys.stdin.isatty()):
                raise Invalid(
                    "Nothing was moved: nobody is here to be asked.", "Look with --dry-run; then repeat it with --yes."
                )
            click.confirm(f"Move {amount(planned.records, 'record')} to {planned.target}?", abort=True)
        done = planned
        if not dry_run:
            with show.progress("moving") as progress:
                done = _moved(mover, progress, "push" if push else "pull")
    if plain:
        _result(done)
    else:
        show.as_json(done)
    if done.refused and done.done:
        sys.exit(1)


def _moved(mover: Mover, progress: Progress | None, again: str) -> Moved:
    try:
        return mover.move(progress)
    except Unavailable as error:  # a server that stopped, a folder that is gone
        raise Unavailable(error.message, f"What was moved stays; {again} again to finish.") from None


def _table(planned: Moved, *, push: bool) -> None:
    click.echo(f"{planned.source} → {planned.target}" + (f", {planned.scope}" if planned.scope else ""))
    rows = [
        (act, f"{tally.files:,}", f"{tally.records:,}", f"{tally.bytes:,}", about)
        for act, about in (_MEANING if push else _HERE).items()
        if (tally := planned.counts.get(act))
    ]
    show.table(("what", "files", "records", "bytes", ""), rows)
    whose = "ours" if push else "theirs"
    for step in planned.conflicts[:_SHOWN]:
        click.secho(
            f"conflict: {show.printable(step.path)}: {whose} goes to {show.printable(step.beside)}", fg="yellow"
        )
    if len(planned.conflicts) > _SHOWN:
        click.echo(f"… and {len(planned.conflicts) - _SHOWN} more; --json lists them all.")


def _result(done: Moved) -> None:
    if not done.done:
        click.echo("Nothing was written.")
    elif done.nothing:
        click.echo("There was nothing to move.")
    else:
        click.echo(f"{amount(done.records, 'record')} moved. {done.left[0].capitalize()}; {done.left[1]}.")
    show.warnings([f"left out: {problem}" for problem in done.refused[:_SHOWN]])
    if len(done.refused) > _SHOWN:
        show.warnings([f"… and {len(done.refused) - _SHOWN} more; --json lists them all."])


@click.command()
@click.argument("folder", type=click.Path())
@click.option("--from", "source", default="", metavar="ADDRESS", help="A folder or postgresql://…; default: the root.")
@common
def export(folder: str, source: str, root: str | None, as_json: bool) -> None:
    """Give a whole memory as plain files in FOLDER, which must be new or empty. It is proved before it is there."""
    with open_root(source or root) as memory, show.progress("copying") as progress:
        done = memory.export(folder, progress)
    if show.wants_json(as_json):
        show.as_json(done)
        return
    told = f"{amount(done.files, 'file')}, {done.bytes:,} bytes, {amount(done.records, 'record')}"
    click.echo(f"{told}: {show.printable(done.path)}")
    show.warnings([f"could not be read there either: {problem}" for problem in done.damage])
