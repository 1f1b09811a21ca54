"""`install` adds Holdfast to the configuration of an MCP client, `uninstall` removes it."""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

import click

from holdfast import clients
from holdfast.cli import show
from holdfast.cli.main import command, find_root
from holdfast.clients import CLIENTS, EVENTS, START, Addition, Client, Hooks, Server, hook_line
from holdfast.errors import Invalid, Unavailable
from holdfast.roots import is_address, without_password
from holdfast.secrets import redact
from holdfast.tools import toolsets

_project = click.option("--project", is_flag=True, help="Use the file of the project in this folder.")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_WRITE = "Write this?"
_OFFER = "Also add hooks? They show the memory at the start, keep the transcript, and ask the agent to save."
_client = click.argument("client", type=click.Choice(list(CLIENTS)))


@command()
@_client
@click.option("--workspace", default="", help="Workspace of calls that name none.")
@click.option("--toolset", default="", help="core, all, or agents separated by commas; default: core.")
@click.option("--print", "only_print", is_flag=True, help="Only print what belongs into the file.")
@click.option("--hook/--no-hook", default=None, help="Also add hooks (Claude Code, Codex).")
@_project
@_yes
def install(client: str, workspace: str, toolset: str, hook: bool | None, **given: bool) -> None:
    """Add the memory to the configuration of CLIENT.

    Shows the change first, and keeps a copy of the old file. On a terminal it also asks whether to add the hooks: they
    show the memory to the agent when a session starts, keep the transcript, and once per session ask the agent to save
    what it learned.
    """
    known = CLIENTS[client]
    path = known.location(project=given["project"])
    hook_path = known.hooks_location(project=given["project"]) if hook or known.hooks else ""
    offered = ["--toolset", toolset] if toolset and toolsets.toolset(toolsets.registry(), toolset) else []
    server = Server(known, _command("mcp", workspace, *offered))
    start, later = _command("context", workspace, "--hook"), _command("hook", workspace, client)
    hooks = Hooks({event: hook_line(start if event == START else later) for event in EVENTS})
    if given["only_print"]:
        texts = {path: server.merge("")} | ({hook_path: hooks.merge("")} if hook else {})
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
    done = {"client": client} | _add(server, path, ask=ask)
    there = _has(hooks, hook_path) if hook_path and hook is not False else None
    if hook or there or (there is False and ask and _is_terminal()):
        done["hook"] = _add(hooks, hook_path, ask=ask, question=_WRITE if hook or there else _OFFER)
    _report(known, done)
    if known.trust and done.get("hook", {}).get("changed") and not show.wants_json():
        click.echo(known.trust)


@command()
@_client
@_project
@_yes
def uninstall(client: str, **given: bool) -> None:
    """Remove the memory from the configuration of CLIENT."""
    known = CLIENTS[client]
    done = {"client": client} | _remove(Server(known), known.location(project=given["project"]), ask=not given["yes"])
    path = known.hooks_location(project=given["project"]) if known.hooks else ""
    if path and _has(Hooks(), path) is not False and clients.NAME in (clients.read_file(path) or ""):
        done["hook"] = _remove(Hooks(), path, ask=not given["yes"])
    _report(known, done)


def _add(addition: Addition, path: str, *, ask: bool, question: str = _WRITE) -> dict[str, Any]:
    by_hand = f"Paste into it:\n{addition.merge('')}"
    return _edit(path, lambda old: addition.merge(old or ""), by_hand, ask=ask, question=question)


def _remove(addition: Addition, path: str, *, ask: bool) -> dict[str, Any]:
    def edit(old: str | None) -> str | None:
        return None if old is None else addition.unmerge(old, _before(addition, path))

    return _edit(path, edit, addition.by_hand, ask=ask)


def _has(addition: Addition, path: str) -> bool | None:
    """Return whether a file has a part of ours, None if it cannot be read."""
    try:
        return any(addition.places(clients.read_file(path) or ""))
    except Invalid:
        return None


def _command(name: str, workspace: str, *options: str) -> list[str]:
    """Return a command over the root, started the way this one was."""
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


def _before(addition: Addition, path: str) -> str | None:
    """Return the newest backup without our part, None if there is none."""
    for text in clients.backups(path):
        with contextlib.suppress(Invalid):
            if not any(addition.places(text)):
                return text
    return None


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _edit(
    path: str, edit: Callable[[str | None], str | None], by_hand: str, *, ask: bool, question: str = _WRITE
) -> dict[str, Any]:
    """Show what `edit` changes in a file, ask if wanted, and write it; exit if the change is declined.

    `by_hand` is the next step if the file cannot be edited. A declined offer, which is another question than the usual
    one, does not end the command.
    """
    old = clients.read_file(path)
    try:
        new = edit(old)
    except Invalid as error:
        raise Invalid(f"{path}: {error}", by_hand) from None
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
    if ask:
        if not _is_terminal():
            raise Invalid(
                f"{path} was not changed: there is no terminal to ask on.", "Pass --yes, or look with --print."
            )
        if not click.confirm("Remove the file?" if new is None else question):
            click.echo("Nothing was changed.")
            if question == _WRITE:
                sys.exit(1)
            return done | {"changed": False}
    backup = clients.replace_file(path, old, new)
    if not show.wants_json():
        click.echo(f"{path} was {'removed' if new is None else 'written'}." + (f" Before: {backup}" if backup else ""))
    return done | {"diff": diff} | ({"backup": backup} if backup else {})


def _report(client: Client, done: dict[str, Any]) -> None:
    if not show.in_json(done) and (done["changed"] or done.get("hook", {}).get("changed")):
        click.echo(f"{client.title}: {client.next_step}")
