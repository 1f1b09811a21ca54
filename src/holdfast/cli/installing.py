"""Adding Holdfast to an MCP client's configuration, and taking it out again."""

from __future__ import annotations

import difflib
import functools
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

import click

from holdfast import clients
from holdfast.cli import show
from holdfast.cli.common import common, nearest
from holdfast.clients import CLIENTS, Client, files, hooks
from holdfast.errors import Invalid, Unavailable
from holdfast.secrets import redact

_project = click.option("--project", is_flag=True, help="The file of the project in this folder, not the user's.")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_client = click.argument("client", type=click.Choice(list(CLIENTS)))


@click.command()
@_client
@click.option("--workspace", default="", help="Workspace of calls that name none.")
@click.option("--print", "only_print", is_flag=True, help="Only print what belongs into the file.")
@click.option(
    "--hook/--no-hook",
    default=None,
    help="Also show the memory to the agent when a session starts (Claude Code); asks on a terminal.",
)
@_project
@_yes
@common
def install(client: str, root: str | None, as_json: bool, workspace: str, hook: bool | None, **given: bool) -> None:
    """Add the memory to CLIENT's configuration. Shows the change first, and keeps the old text beside the file."""
    known = CLIENTS[client]
    path = clients.location(known, project=given["project"])
    place = hooks.location(known, project=given["project"]) if hook or known.hooks else ""
    wanted = clients.entry(known, _command("mcp", root, workspace))
    said = hooks.command(_command("context", root, workspace, "--hook", *hooks.WITHIN)) if place else ""
    if given["only_print"]:
        _print(
            {path: clients.fragment(known, wanted)} | ({place: hooks.fragment(said)} if hook else {}), client, as_json
        )
        return
    ask, quiet = not given["yes"], show.wants_json(as_json)
    old = files.read(path)
    try:
        new = clients.merge(known, old or "", wanted)
    except Invalid as error:
        raise Invalid(f"{path}: {error}", f"Paste into it:\n{clients.fragment(known, wanted)}") from None
    told = {"client": client} | _change(path, old, new, "Write this?" if ask else "", quiet)
    if place and hook is not False:
        told |= _add_hook(place, said, ask=ask, wanted=bool(hook), quiet=quiet)
    _tell(known, told, quiet)


@click.command()
@_client
@_project
@_yes
@common
def uninstall(client: str, root: str | None, as_json: bool, **given: bool) -> None:
    """Take out of CLIENT's configuration what install put there, and nothing else."""
    del root  # whatever root the entry names
    known = CLIENTS[client]
    ask, quiet = not given["yes"], show.wants_json(as_json)
    path = clients.location(known, project=given["project"])
    old = files.read(path)
    try:
        new = (
            None if old is None else clients.unmerge(known, old, _before(path, functools.partial(clients.find, known)))
        )
    except Invalid as error:
        raise Invalid(f"{path}: {error}", f'Remove "{clients.NAME}" from "{known.key}" in it.') from None
    told = {"client": client} | _change(path, old, new, _question(new) if ask else "", quiet)
    if known.hooks:
        told |= _take_hook(hooks.location(known, project=given["project"]), ask=ask, quiet=quiet)
    _tell(known, told, quiet)


def _add_hook(path: str, said: str, *, ask: bool, wanted: bool, quiet: bool) -> dict[str, Any]:
    """Add the hook, or bring it up to date; where nobody said whether it is wanted, a person is asked."""
    old = files.read(path)
    try:
        there = hooks.find(old or "") is not None
        if not (wanted or there or (ask and _is_terminal())):
            return {}
        new = hooks.merge(old or "", said)
    except Invalid as error:
        if not wanted:
            return {}
        raise Invalid(f"{path}: {error}", f"Paste into it:\n{hooks.fragment(said)}") from None
    question = "Write this?" if wanted or there else "Also show the memory to the agent when a session starts?"
    return {"hook": _change(path, old, new, question if ask else "", quiet, needed=wanted or there)}


def _take_hook(path: str, *, ask: bool, quiet: bool) -> dict[str, Any]:
    """Take the hook out, if it is there."""
    old = files.read(path)
    try:
        if old is None or hooks.find(old) is None:
            return {}
        new = hooks.unmerge(old, _before(path, hooks.find))
    except Invalid as error:
        if old is None or clients.NAME not in old:
            return {}
        raise Invalid(f"{path}: {error}", f'Remove the hook with "{clients.NAME}" from it.') from None
    return {"hook": _change(path, old, new, _question(new) if ask else "", quiet)}


def _command(name: str, root: str | None, workspace: str, *options: str) -> list[str]:
    """Return a command over the root, in the way in which this one was started."""
    location = _location(root or nearest())
    script = shutil.which(sys.argv[0]) if os.path.basename(sys.argv[0]) == "holdfast" else None
    started = [os.path.abspath(script)] if script else [os.path.abspath(sys.executable), "-m", "holdfast"]
    return [*started, name, *options, "--root", location, *(["--workspace", workspace] if workspace else [])]


def _location(root: str) -> str:
    """Return what the entry names the memory by; it stands in a file that others may read."""
    from holdfast.roots import is_address, without_password

    if is_address(root):
        bare = without_password(root)
        if bare != root:
            raise Invalid(
                "The address has a password, which would stand in the client's file.",
                f"Put the password into ~/.pgpass, and give the address without it: {bare}",
            )
        return bare
    location = os.path.realpath(os.path.expanduser(root))
    if not os.path.isdir(location):
        raise Unavailable(f"The memory root {location} does not exist.", f"Run: holdfast init {location}")
    return location


def _before(path: str, find: Callable[[str], object]) -> str | None:
    """Return the newest text of the file from before it had what `find` finds, None when there was no file."""
    for text in files.backups(path):
        try:
            if find(text) is None:
                return text
        except Invalid:
            continue
    return None


def _question(new: str | None) -> str:
    return "Remove the file?" if new is None else "Write this?"


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _change(
    path: str, old: str | None, new: str | None, question: str, quiet: bool, *, needed: bool = True
) -> dict[str, Any]:
    """Show a change, ask the question if there is one, and write it; a no to what is not needed ends nothing."""
    told: dict[str, Any] = {"file": path, "changed": old != new}
    if old == new:
        if not quiet:
            click.echo(f"{path} says so already; nothing was changed.")
        return told
    diff = _diff(path, old or "", new or "")
    if not quiet:
        click.echo(show.printable(diff))
        if os.path.islink(path):
            click.echo(f"{path} is a link; what changes is {os.path.realpath(path)}.")
    if question:
        if not _is_terminal():
            raise Invalid(f"{path} was not changed: nobody is there to ask.", "Pass --yes, or look with --print.")
        if not click.confirm(question):
            click.echo("Nothing was changed.")
            if needed:
                sys.exit(1)
            return told | {"changed": False}
    kept = files.replace(path, old, new)
    if not quiet:
        click.echo(f"{path} was {'removed' if new is None else 'written'}." + (f" Before: {kept}" if kept else ""))
    return told | {"diff": diff} | ({"backup": kept} if kept else {})


def _print(texts: dict[str, str], client: str, as_json: bool) -> None:
    """Print what belongs into each file."""
    told = [{"file": path, "text": text} for path, text in texts.items()]
    if as_json:
        show.as_json({"client": client} | told[0] | ({"hook": told[1]} if len(told) > 1 else {}))
        return
    for path, text in texts.items():
        if len(texts) > 1:
            click.echo(f"{path}:", err=True)
        click.echo(text, nl=False)


def _tell(client: Client, told: dict[str, Any], quiet: bool) -> None:
    if quiet:
        show.as_json(told)
    elif told["changed"] or told.get("hook", {}).get("changed"):
        click.echo(f"{client.title}: {client.next_step}")


def _diff(path: str, old: str, new: str) -> str:
    """Return the change as a unified diff, without secrets that stand beside it."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), f"{path} (now)", f"{path} (then)", lineterm="")
    return redact("\n".join(lines))
