"""Adding Holdfast to an MCP client's configuration, and taking it out again."""

from __future__ import annotations

import difflib
import os
import shutil
import sys
from typing import Any

import click

from holdfast import clients
from holdfast.cli import show
from holdfast.cli.common import common, nearest
from holdfast.clients import CLIENTS, Client, files
from holdfast.errors import Invalid, Unavailable
from holdfast.secrets import redact

_project = click.option("--project", is_flag=True, help="The file of the project in this folder, not the user's.")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_client = click.argument("client", type=click.Choice(list(CLIENTS)))


@click.command()
@_client
@click.option("--workspace", default="", help="Workspace of calls that name none.")
@click.option("--print", "only_print", is_flag=True, help="Only print what belongs into the file.")
@_project
@_yes
@common
def install(client: str, root: str | None, as_json: bool, workspace: str, **given: bool) -> None:
    """Add the memory to CLIENT's configuration. Shows the change first, and keeps the old text beside the file."""
    known = CLIENTS[client]
    path = clients.location(known, project=given["project"])
    wanted = clients.entry(known, _command(root, workspace))
    if given["only_print"]:
        if as_json:
            show.as_json({"client": client, "file": path, "text": clients.fragment(known, wanted)})
        else:
            click.echo(clients.fragment(known, wanted), nl=False)
        return
    old = files.read(path)
    try:
        new = clients.merge(known, old or "", wanted)
    except Invalid as error:
        raise Invalid(f"{path}: {error}", f"Paste into it:\n{clients.fragment(known, wanted)}") from None
    _change(known, path, old, new, ask=not given["yes"], as_json=as_json)


@click.command()
@_client
@_project
@_yes
@common
def uninstall(client: str, root: str | None, as_json: bool, **given: bool) -> None:
    """Take out of CLIENT's configuration what install put there, and nothing else."""
    del root  # whatever root the entry names
    known = CLIENTS[client]
    path = clients.location(known, project=given["project"])
    old = files.read(path)
    try:
        new = None if old is None else clients.unmerge(known, old, _before(known, path))
    except Invalid as error:
        raise Invalid(f"{path}: {error}", f'Remove "{clients.NAME}" from "{known.key}" in it.') from None
    _change(known, path, old, new, ask=not given["yes"], as_json=as_json)


def _command(root: str | None, workspace: str) -> list[str]:
    """Return the command that serves the root, in the way in which this one was started."""
    location = os.path.realpath(os.path.expanduser(root or nearest()))
    if not os.path.isdir(location):
        raise Unavailable(f"The memory root {location} does not exist.", f"Run: holdfast init {location}")
    script = shutil.which(sys.argv[0]) if os.path.basename(sys.argv[0]) == "holdfast" else None
    started = [os.path.abspath(script)] if script else [os.path.abspath(sys.executable), "-m", "holdfast"]
    return [*started, "mcp", "--root", location, *(["--workspace", workspace] if workspace else [])]


def _before(client: Client, path: str) -> str | None:
    """Return the newest text of the file from before it had our entry, None when there was no file."""
    for text in files.backups(path):
        try:
            if clients.find(client, text) is None:
                return text
        except Invalid:
            continue
    return None


def _change(client: Client, path: str, old: str | None, new: str | None, *, ask: bool, as_json: bool) -> None:
    """Show a change, ask, and write it."""
    told: dict[str, Any] = {"client": client.name, "file": path, "changed": old != new}
    quiet = show.wants_json(as_json)
    if old == new:
        if quiet:
            show.as_json(told)
        else:
            click.echo(f"{path} says so already; nothing was changed.")
        return
    diff = _diff(path, old or "", new or "")
    if not quiet:
        click.echo(show.printable(diff))
        if os.path.islink(path):
            click.echo(f"{path} is a link; what changes is {os.path.realpath(path)}.")
    if ask:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise Invalid(f"{path} was not changed: nobody is there to ask.", "Pass --yes, or look with --print.")
        if not click.confirm("Remove the file?" if new is None else "Write this?"):
            click.echo("Nothing was changed.")
            sys.exit(1)
    kept = files.replace(path, old, new)
    if quiet:
        show.as_json(told | {"diff": diff} | ({"backup": kept} if kept else {}))
    else:
        click.echo(f"{path} was {'removed' if new is None else 'written'}." + (f" Before: {kept}" if kept else ""))
        click.echo(f"{client.title}: {client.next_step}")


def _diff(path: str, old: str, new: str) -> str:
    """Return the change as a unified diff, without secrets that stand beside it."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), f"{path} (now)", f"{path} (then)", lineterm="")
    return redact("\n".join(lines))
