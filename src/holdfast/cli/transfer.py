"""Copies of a memory, and from other programs: `push`, `pull`, `backup`, `restore`, `export` and `import`."""

from __future__ import annotations

import sys

import click

from holdfast.cli import show
from holdfast.cli.main import command, given_root, open_root
from holdfast.errors import Invalid, Unavailable
from holdfast.memories.cold import SOURCES, find_sources
from holdfast.model.names import amount
from holdfast.owner.backup import Copied
from holdfast.owner.backup import restore as restore_backup
from holdfast.owner.transfer import Moved, Tally

_SHOWN = 20
_MEANING = {
    "new": "not {there} yet",
    "changed": "changed since the last transfer",
    "merged": "entries will be merged",
    "conflict": "changed on both sides: {stays} stays, {goes} is stored beside it",
    "same": "{there} already",
    "newer": "changed {side} only: left alone",
    "gone": "removed {side}: not restored",
    "forgotten": "forgotten {side}: not restored",
}
"""The planned change of a document or of entries."""
_PUSH = {"there": "there", "side": "on the other side", "stays": "theirs", "goes": "ours"}
_PULL = {"there": "here", "side": "here", "stays": "ours", "goes": "theirs"}
_NOTHING = "Nothing was written."
_scope = click.option("--scope", default="", help="Only this workspace, domain or repository.")
_dry_run = click.option("--dry-run", "--preview", is_flag=True, help="Only show what would be copied.")


@command()
@click.option("--to", default="", metavar="ADDRESS", help="A folder or postgresql://…; default: the shared memory.")
@_scope
@_dry_run
@click.option("--yes", is_flag=True, help="Do not ask; required without a terminal.")
def push(to: str, scope: str, dry_run: bool, yes: bool) -> None:
    """Copy this memory to another one, a folder or a database.

    It first shows what would be copied. Nothing is copied twice, and nothing is removed or replaced that has changed
    there meanwhile: both versions of such a document are kept.
    """
    _transfer(to, scope, dry_run=dry_run, yes=yes, push=True)


@command()
@click.option(
    "--from", "source", default="", metavar="ADDRESS", help="A folder, postgresql://… or a backup; default: shared."
)
@_scope
@_dry_run
def pull(source: str, scope: str, dry_run: bool) -> None:
    """Copy another memory, or a backup, to this one.

    Nothing here is removed, or replaced if it has changed here meanwhile.
    """
    _transfer(source, scope, dry_run=dry_run, yes=True, push=False)


def _transfer(other: str, scope: str, *, dry_run: bool, yes: bool, push: bool) -> None:
    on_terminal = not show.wants_json()
    with open_root() as memory, memory.moving(other, scope=scope, push=push) as mover:
        with show.progress("comparing") as progress:
            done = planned = mover.plan(progress)
        if on_terminal:
            _preview(planned, push=push)
        if not dry_run and not planned.nothing and not yes:
            if not (on_terminal and sys.stdin.isatty()):
                raise Invalid(
                    "Nothing was copied: there is no terminal for a confirmation.", "Use --dry-run first, then --yes."
                )
            click.confirm(f"Copy {amount(planned.records, 'record')} to {planned.target}?", abort=True)
        if not dry_run:
            try:
                with show.progress("copying") as progress:
                    done = mover.move(progress)
            except Unavailable as error:  # the server stopped, or the folder is gone
                again = "push" if push else "pull"
                raise Unavailable(error.message, f"Copied records stay. Run {again} again to continue.") from None
    show.json_and_exit(done, code=1 if done.refused and done.done else 0)
    if dry_run:
        click.echo(_NOTHING)
    elif done.nothing:
        click.echo("There was nothing to copy.")
    else:
        click.echo(f"{amount(done.records, 'record')} copied. {done.left[0].capitalize()}; {done.left[1]}.")
    show.warnings([f"left out: {problem}" for problem in done.refused], _SHOWN)
    if done.refused and done.done:
        sys.exit(1)


def _preview(planned: Moved, *, push: bool) -> None:
    click.echo(f"{planned.source} → {planned.target}" + (f", {planned.scope}" if planned.scope else ""))
    words = _PUSH if push else _PULL
    rows = [
        (act, f"{tally.files:,}", f"{tally.records:,}", f"{tally.bytes:,}", about.format(**words))
        for act, about in _MEANING.items()
        if (tally := planned.counts.get(act))
    ]
    show.table(("what", "files", "records", "bytes", ""), rows)
    found = [f"conflict: {step.path}: {words['goes']} goes to {step.beside}" for step in planned.conflicts]
    show.warnings(found, _SHOWN)


@command()
@click.argument("target", type=click.Path())
@_dry_run
def backup(target: str, dry_run: bool) -> None:
    """Copy the whole memory to TARGET, a new .tar.gz or folder.

    TARGET must be outside of the memory. Other programs may go on writing. The index is left out: it is rebuilt from
    the files.
    """
    with open_root() as memory, show.progress("copying") as progress:
        done = memory.backup(target, progress, dry=dry_run)
    _show_copy(memory.root, done, dry_run=dry_run)


@command()
@click.argument("backup", type=click.Path())
@click.argument("path", type=click.Path(), required=False)
@_dry_run
def restore(backup: str, path: str | None, dry_run: bool) -> None:
    """Restore BACKUP to PATH, which must be new or empty.

    PATH defaults to the root. Every file is first compared with the manifest of the backup. To add what a backup has
    to an existing memory: holdfast pull --from BACKUP
    """
    target = path or given_root()
    if not target:
        raise Invalid("There is no folder to restore to.", "Name one that is new or empty.")
    with show.progress("reading" if dry_run else "restoring") as progress:
        done = restore_backup(backup, target, progress, dry=dry_run)
    _show_copy(backup, done, dry_run=dry_run, when=f", as they were on {done.made[:10]} at {done.made[11:16]} UTC")


@command()
@click.argument("folder", type=click.Path())
@click.option("--from", "source", default="", metavar="ADDRESS", help="A folder or postgresql://…; default: the root.")
@_dry_run
def export(folder: str, source: str, dry_run: bool) -> None:
    """Export a whole memory as plain files to FOLDER.

    FOLDER must be new or empty. The copy is verified before it appears there.
    """
    with open_root(source) as memory, show.progress("copying") as progress:
        done = memory.export(folder, progress, dry=dry_run)
    _show_copy(memory.root, done, dry_run=dry_run)


def _show_copy(source: str, done: Copied, *, dry_run: bool, when: str = "") -> None:
    """Print what was or would be copied."""
    planned = Moved(source=source, target=done.path, counts={"new": Tally(done.files, done.records, done.bytes)})
    show.json_and_exit(planned if dry_run else done)
    if dry_run:
        _preview(planned, push=True)
        click.echo(_NOTHING)
    else:
        records = f", {amount(done.records, 'record')}" if done.records else ""
        click.echo(f"{amount(done.files, 'file')}, {done.bytes:,} bytes{records}{when}: {show.printable(done.path)}")
    show.warnings([f"left out: {problem}" for problem in done.left_out])
    show.warnings([f"damaged in the original as well: {problem}" for problem in done.damage])


@command("import")
@click.argument("source", type=click.Choice(SOURCES))
@click.argument("paths", type=click.Path(), nargs=-1, metavar="[PATH]...")
@click.option("--workspace", help="Workspace, domain or repository of the conversations.")
@click.option("--project", default="", help="Use the workspace of this project folder, if any.")
@_dry_run
def import_(source: str, paths: tuple[str, ...], workspace: str | None, project: str, dry_run: bool) -> None:
    """Import conversations of SOURCE into cold memory.

    They are read from the folder of SOURCE, or from PATH (files or folders). Nothing is imported twice, so the command
    can be repeated. Known forms of secrets are removed.
    """
    files = [file for path in paths or ("",) for file in find_sources(source, path)]
    with open_root(create=not dry_run) as memory, show.progress("reading (kB)") as progress:
        if project and not workspace:
            workspace = memory.workspaces.around(project) or None
        done = memory.transcripts.bring(source, files, workspace, progress, dry=dry_run)
    following = 'holdfast recall "…" --layers cold'
    known = done.turns - done.added
    numbers = {"files": done.files, "turns": done.turns, "added": done.added, "known": known}
    problems = {"skipped": done.skipped, "problems": done.problems}
    if show.wants_json():
        show.as_json({"source": source, "dryRun": dry_run, **numbers, **problems, "next": following})
    else:
        skipped = amount(done.skipped, "line or file", "lines or files")
        added = "would be added" if dry_run else "added"
        size = f"{amount(done.files, 'file')}, {amount(done.turns, 'turn')}"
        click.echo(f"{size}: {done.added} {added}, {known} already stored, {skipped} skipped.")
        click.echo(_NOTHING if dry_run else f"Search them: {following}")
    show.warnings(done.problems, 10, "--json lists the first hundred")
