"""`install` adds Holdfast to the configuration of an MCP client, `uninstall` removes it."""

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
from holdfast.cli.main import command, find_root
from holdfast.clients import CLIENTS, Client, hooks
from holdfast.errors import Invalid, Unavailable
from holdfast.secrets import redact

_project = click.option("--project", is_flag=True, help="Use the file of the project in this folder.")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_REMOVE = ("Write this?", "Remove the file?")
_client = click.argument("client", type=click.Choice(list(CLIENTS)))


@command()
@_client
@click.option("--workspace", default="", help="Workspace of calls that name none.")
@click.option("--print", "only_print", is_flag=True, help="Only print what belongs into the file.")
@click.option(
    "--hook/--no-hook", default=None, help="Also show the memory to the agent when a session starts (Claude Code)."
)
@_project
@_yes
def install(client: str, workspace: str, hook: bool | None, **given: bool) -> None:
    """Add the memory to the configuration of CLIENT.

    Shows the change first, and keeps a copy of the old file. On a terminal it also asks whether to add the hook.
    """
    known = CLIENTS[client]
    path = clients.location(known, project=given["project"])
    hook_path = hooks.location(known, project=given["project"]) if hook or known.hooks else ""
    wanted = clients.entry(known, _command("mcp", workspace))
    line = hooks.command(_command("context", workspace, "--hook", *hooks.WITHIN)) if hook_path else ""
    if given["only_print"]:
        texts = {path: clients.fragment(known, wanted)} | ({hook_path: hooks.fragment(line)} if hook else {})
        if show.asked_for_json():
            first, *more = [{"file": path, "text": text} for path, text in texts.items()]
            show.as_json({"client": client} | first | ({"hook": more[0]} if more else {}))
            return
        for path, text in texts.items():
            if len(texts) > 1:
                click.echo(f"{path}:", err=True)
            click.echo(text, nl=False)
        return
    ask = not given["yes"]
    old = clients.read_file(path)
    try:
        new = clients.merge(known, old or "", wanted)
    except Invalid as error:
        raise Invalid(f"{path}: {error}", f"Paste into it:\n{clients.fragment(known, wanted)}") from None
    done = {"client": client} | _change(path, old, new, "Write this?" if ask else "")
    if hook_path and hook is not False:
        done |= _add_hook(hook_path, line, ask=ask, wanted=bool(hook))
    _report(known, done)


@command()
@_client
@_project
@_yes
def uninstall(client: str, **given: bool) -> None:
    """Remove the memory from the configuration of CLIENT."""
    known = CLIENTS[client]
    ask = not given["yes"]
    path = clients.location(known, project=given["project"])
    old = clients.read_file(path)
    try:
        find = functools.partial(clients.find, known)
        new = None if old is None else clients.unmerge(known, old, _before(path, find))
    except Invalid as error:
        raise Invalid(f"{path}: {error}", f'Remove "{clients.NAME}" from "{known.key}" in it.') from None
    done = {"client": client} | _change(path, old, new, _REMOVE[new is None] if ask else "")
    if known.hooks:
        done |= _remove_hook(hooks.location(known, project=given["project"]), ask=ask)
    _report(known, done)


def _add_hook(path: str, line: str, *, ask: bool, wanted: bool) -> dict[str, Any]:
    """Add or update the hook; without --hook or --no-hook, ask on a terminal."""
    old = clients.read_file(path)
    try:
        there = hooks.find(old or "") is not None
        if not (wanted or there or (ask and _is_terminal())):
            return {}
        new = hooks.merge(old or "", line)
    except Invalid as error:
        if not wanted:
            return {}
        raise Invalid(f"{path}: {error}", f"Paste into it:\n{hooks.fragment(line)}") from None
    question = "Write this?" if wanted or there else "Also show the memory to the agent when a session starts?"
    return {"hook": _change(path, old, new, question if ask else "", needed=wanted or there)}


def _remove_hook(path: str, *, ask: bool) -> dict[str, Any]:
    old = clients.read_file(path)
    try:
        if old is None or hooks.find(old) is None:
            return {}
        new = hooks.unmerge(old, _before(path, hooks.find))
    except Invalid as error:
        if old is None or clients.NAME not in old:
            return {}
        raise Invalid(f"{path}: {error}", f'Remove the hook with "{clients.NAME}" from it.') from None
    return {"hook": _change(path, old, new, _REMOVE[new is None] if ask else "")}


def _command(name: str, workspace: str, *options: str) -> list[str]:
    """Return a command over the root, started the way this one was."""
    from holdfast.roots import is_address, without_password

    location = find_root()
    if is_address(location):
        bare = without_password(location)
        if bare != location:
            raise Invalid(
                "The address has a password, which would be written to the client's file.",
                f"Put the password into ~/.pgpass, and give the address without it: {bare}",
            )
    else:
        location = os.path.realpath(os.path.expanduser(location))
        if not os.path.isdir(location):
            raise Unavailable(f"The memory root {location} does not exist.", f"Run: holdfast init {location}")
    script = shutil.which(sys.argv[0]) if os.path.basename(sys.argv[0]) == "holdfast" else None
    started = [os.path.abspath(script)] if script else [os.path.abspath(sys.executable), "-m", "holdfast"]
    return [*started, name, *options, "--root", location, *(["--workspace", workspace] if workspace else [])]


def _before(path: str, find: Callable[[str], object]) -> str | None:
    """Return the newest backup without what `find` finds, None if there is none."""
    for text in clients.backups(path):
        try:
            if find(text) is None:
                return text
        except Invalid:
            continue
    return None


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _change(path: str, old: str | None, new: str | None, question: str, *, needed: bool = True) -> dict[str, Any]:
    """Show a change, ask the question if there is one, and write it; exit if a needed change is declined."""
    done: dict[str, Any] = {"file": path, "changed": old != new}
    if old == new:
        if not show.wants_json():
            click.echo(f"{path} is up to date; nothing was changed.")
        return done
    lines = difflib.unified_diff(
        (old or "").splitlines(), (new or "").splitlines(), f"{path} (now)", f"{path} (then)", lineterm=""
    )
    diff = redact("\n".join(lines))
    if not show.wants_json():
        click.echo(show.printable(diff))
        if os.path.islink(path):
            click.echo(f"{path} is a link; what changes is {os.path.realpath(path)}.")
    if question:
        if not _is_terminal():
            raise Invalid(
                f"{path} was not changed: there is no terminal to ask on.", "Pass --yes, or look with --print."
            )
        if not click.confirm(question):
            click.echo("Nothing was changed.")
            if needed:
                sys.exit(1)
            return done | {"changed": False}
    backup = clients.replace_file(path, old, new)
    if not show.wants_json():
        click.echo(f"{path} was {'removed' if new is None else 'written'}." + (f" Before: {backup}" if backup else ""))
    return done | {"diff": diff} | ({"backup": backup} if backup else {})


def _report(client: Client, done: dict[str, Any]) -> None:
    if not show.in_json(done) and (done["changed"] or done.get("hook", {}).get("changed")):
        click.echo(f"{client.title}: {client.next_step}")
