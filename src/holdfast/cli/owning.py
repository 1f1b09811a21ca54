"""The owner's commands: what was written and by whom, taking it back, removing it for good, and copies of it all.

None of them is a tool that a model can call. What takes something away shows it first and does it with --yes; what
takes much away asks for the number as well.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import show
from holdfast.cli.common import common, open_root
from holdfast.errors import Invalid
from holdfast.model.names import amount

if TYPE_CHECKING:
    from holdfast.model.records import Record
    from holdfast.owner.forget import Forgotten
    from holdfast.owner.rollback import RolledBack

_SHOWN = 20
_yes = click.option("--yes", is_flag=True, help="Do it; without this, it is only shown.")
_count = click.option("--count", default=0, help="How many records that takes; asked for when they are many.")
_op = click.option("--op-id", default="", help="Repeating a call with the same op id has no further effect.")


@click.command()
@click.argument("id")
@click.option("--version", default="", help="Print the text of this version; its first digits are enough.")
@common
def history(id: str, version: str, root: str | None, as_json: bool) -> None:
    """List what happened to ID, a document or a line: when, by whom, and which version it made."""
    with open_root(root) as memory:
        text = memory.text_at(id, version) if version else ""
        found = [] if version else memory.versions(id)
    if version:
        if show.wants_json(as_json):
            show.as_json({"id": id, "version": version, "text": text})
        else:
            click.echo(show.printable(text), nl=not text.endswith("\n"))
    elif show.wants_json(as_json):
        show.as_json(found)
    else:
        from holdfast.model.times import local

        rows = [
            (local(one.time) if one.time else "?", one.what, one.writer, one.version[:36],
             "holds now" if one.current else "" if one.kept or not one.version else "text not kept")
            for one in found
        ]  # fmt: skip
        show.table(("time", "what", "writer", "version", ""), rows, whole=("version",))


@click.command()
@click.argument("id")
@_op
@common
def undo(id: str, op_id: str, root: str | None, as_json: bool) -> None:
    """Take back the last write to the document ID. Again: the one before. A change by hand is never taken back."""
    with open_root(root) as memory:
        receipt = memory.undo(id, op_id)
    if show.wants_json(as_json):
        show.as_json(receipt)
    else:
        click.echo(f"{receipt.status}: {show.printable(receipt.id)}")


@click.command()
@click.argument("ids", nargs=-1)
@click.option("--query", default="", metavar="TEXT", help="All records that have this text, word for word.")
@_yes
@_count
@common
def forget(ids: tuple[str, ...], query: str, yes: bool, count: int, root: str | None, as_json: bool) -> None:
    """Remove the text of IDS for good: from files, earlier versions, traces, summaries, accounts and the index.

    Without --yes it only shows what would go. Then the bytes are looked for in every file, and what is left is told.
    """
    with open_root(root) as memory:
        with show.progress("proving") if yes else contextlib.nullcontext() as progress:
            done = memory.forget(*ids, query=query, yes=yes, count=count, progress=progress)
        if not yes and not show.wants_json(as_json):
            _preview([memory.get(each) for each in done.records[:_SHOWN]], done.count, "forgotten", done.needs_count)
    if show.wants_json(as_json):
        show.as_json(done)
    elif yes:
        _forgotten(done)
    if done.remains:
        sys.exit(1)


def _preview(records: Sequence[Record], count: int, what: str, much: bool) -> None:
    """Show what a command would do, and how to have it done."""
    if not count:
        click.echo("There is nothing like that.")
        return
    from holdfast.model.times import local

    rows = [(local(one.time), one.kind, one.id, " ".join(f"{one.title} {one.text}".split())[:120]) for one in records]
    show.table(("time", "kind", "id", "what"), rows)
    if count > _SHOWN:
        click.echo(f"… and {count - _SHOWN} more.")
    told = f" --count {count}" if much else ""
    click.echo(f"{amount(count, 'record')} would be {what}; nothing was changed. Repeat it with --yes{told}.")


def _forgotten(done: Forgotten) -> None:
    before = f"{amount(len(done.already), 'record was', 'records were')} forgotten before." if done.already else ""
    now = f"{amount(done.count, 'record')} forgotten." if done.count or not before else ""
    click.echo(" ".join(filter(None, (now, before))))
    if done.changed:
        rows = [(one.what, one.count, one.path) for one in done.changed]
        show.table(("what", "count", "path"), rows, whole=("path",))
    if done.remains:
        click.secho(f"Still found in {amount(len(done.remains), 'file')}:", fg="red")
        for problem in done.remains[:_SHOWN]:
            click.echo(f"  {show.printable(str(problem))}")
        click.echo("Forget those records too, or edit the files; then look again: holdfast forget --query TEXT --yes")
    elif not done.looked:
        click.echo("Nothing was looked for: what it said is not known. To look: holdfast forget --query TEXT --yes")
    else:
        click.echo("Its bytes are in no file below the root any more.")
    for each in done.named:
        click.echo(f"Its name stays in accounts and traces: {show.printable(each)}")
    if done.too_short:
        click.echo(f"{amount(done.too_short, 'text was', 'texts were')} too short to be looked for in other files.")
    for each in done.speaking:
        click.echo(f"A summary may still speak of it: holdfast forget {each}")
    click.echo("Out of reach: " + "; ".join(done.out_of_reach) + ".")


@click.command()
@click.option("--writer", default="", help="Who wrote it, as history and get show it.")
@click.option("--since", default="", help="Only what was written from this date or time on.")
@click.option("--back", default="", metavar="ID", help="Take the rollback of this id back instead, at once.")
@_yes
@_count
@common
def rollback(root: str | None, as_json: bool, yes: bool, **given: Any) -> None:
    """Take back what one writer wrote: documents get the text from before, lines are hidden. Nothing is erased.

    Without --yes it only shows what would be done. What somebody else changed since is left as it is, and told.
    """
    with open_root(root) as memory:
        done = memory.rollback(yes=yes, **given)
    if show.wants_json(as_json):
        show.as_json(done)
        return
    rows = [(step.act, "derived" if step.derived else "", step.id) for step in done.steps]
    if rows:
        show.table(("what", "", "id"), rows[: _SHOWN if not yes else None], whole=("id",))
    if len(rows) > _SHOWN and not yes:
        click.echo(f"… and {len(rows) - _SHOWN} more.")
    show.warnings([f"left as it is: {step.id}: {step.conflict}" for step in done.conflicts])
    show.warnings([f"says that it comes from there, and is left as it is: {each}" for each in done.named])
    _rolled(done, bool(given["back"]))


def _rolled(done: RolledBack, back: bool) -> None:
    if not done.count:
        click.echo("There is nothing to take back.")
    elif back:
        click.echo(f"{amount(len(done.steps), 'step')} done: the rollback was taken back.")
    elif done.done:
        click.echo(f"{amount(len(done.steps), 'step')} done. Take it back with: holdfast rollback --back {done.id}")
    else:
        told = f" --count {done.count}" if done.needs_count else ""
        click.echo(
            f"{amount(done.count, 'record')} would be taken back; nothing was changed. Repeat it with --yes{told}."
        )


@click.command()
@click.argument("target", type=click.Path())
@common
def backup(target: str, root: str | None, as_json: bool) -> None:
    """Copy the whole memory to TARGET, a new .tar.gz file or a new folder outside of it. Others may go on writing.

    The index is left out: it is made anew from the files.
    """
    with open_root(root) as memory, show.progress("copying") as progress:
        done = memory.backup(target, progress)
    if show.wants_json(as_json):
        show.as_json(done)
        return
    click.echo(f"{amount(done.files, 'file')}, {done.bytes:,} bytes: {show.printable(done.path)}")
    show.warnings([f"left out: {problem}" for problem in done.left_out])


@click.command()
@click.argument("backup", type=click.Path())
@click.argument("path", type=click.Path(), required=False)
@common
def restore(backup: str, path: str | None, root: str | None, as_json: bool) -> None:
    """Make a memory of BACKUP in PATH (default: the root), which must be new or empty.

    Every file is compared with the manifest first.
    """
    from holdfast.owner.restore import restore as restore_backup

    target = path or root
    if not target:
        raise Invalid("There is no folder to restore to.", "Name one that is new or empty.")
    with show.progress("restoring") as progress:
        done = restore_backup(backup, target, progress)
    if show.wants_json(as_json):
        show.as_json(done)
        return
    click.echo(
        f"{amount(done.files, 'file')}, {amount(done.records, 'record')}, as they were on {done.made[:10]} at"
        f" {done.made[11:16]} UTC: {show.printable(done.path)}"
    )
    show.warnings([f"damaged in the backup as well: {problem}" for problem in done.damage])
