"""The owner's commands: what was written and by whom, taking it back, removing it for good, and copies of it all.

None of them is a tool that a model can call. What takes much away shows it first and does it with --yes; what takes very
much away asks for the number as well.
"""

from __future__ import annotations

import click

from holdfast.cli import show
from holdfast.cli.common import common, open_root
from holdfast.wording import amount

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
        from holdfast.times import local

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
@click.argument("path", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print JSON, also on a terminal.")
def restore(backup: str, path: str, as_json: bool) -> None:
    """Make a memory of BACKUP in PATH, which must be new or empty. Every file is compared with the manifest first."""
    from holdfast.store import restoring

    with show.progress("restoring") as progress:
        done = restoring.restore(backup, path, progress)
    if show.wants_json(as_json):
        show.as_json(done)
        return
    click.echo(
        f"{amount(done.files, 'file')}, {amount(done.records, 'record')}, as they were on {done.made[:10]} at"
        f" {done.made[11:16]} UTC: {show.printable(done.path)}"
    )
    show.warnings([f"damaged in the backup as well: {problem}" for problem in done.damage])
