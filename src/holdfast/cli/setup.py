"""The commands that connect clients: `install` and `uninstall`; `doctor` checks all that an agent needs."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec

from holdfast import clients
from holdfast.cli import show
from holdfast.cli.main import command, given_root, locate, open_root
from holdfast.clients import CLIENTS, EVENTS, START, Addition, Client, Hooks, Server, hook_line
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.formats import encryption
from holdfast.memories.lint import conflict_copies
from holdfast.model import settings
from holdfast.model.names import amount
from holdfast.model.patterns import regex
from holdfast.owner import git, shared
from holdfast.roots import (
    DEFAULT,
    find_root,
    folder_of,
    health_of,
    ignored,
    is_address,
    open_folder,
    settings_text,
    without_password,
)
from holdfast.secrets import redact
from holdfast.storage.tree import ABSENT
from holdfast.tools import toolsets

_Edit = Callable[[str | None], str | None]
_WRITE = "Write this?"
_OFFER = "Also add hooks? They show the memory at the start, keep the transcript, and ask the agent to save."
_PROJECT_FOLDER = regex(r"^\$\{(workspaceFolder|CLAUDE_PROJECT_DIR:-\.)\}")
_SQLITE = (3, 43)
_WRITER = "holdfast_writer"
_ANSWER_SECONDS = 20.0
_HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "doctor", "version": "1"}}
_MESSAGES: tuple[dict[str, Any], ...] = (
    {"id": 1, "method": "initialize", "params": _HELLO},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list", "params": {}},
)
_project = click.option("--project", is_flag=True, help="Use the file of the project in this folder.")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_client = click.argument("client", type=click.Choice(list(CLIENTS)))


@command()
@_client
@click.option("--workspace", default="", help="Workspace of calls that name none.")
@click.option("--toolset", default="", help="core, all, or agents separated by commas; default: core.")
@click.option("--url", default="", help="Use the team's server at this address.")
@click.option("--token", default="", help="Token for --url; default: $HOLDFAST_TOKEN.")
@click.option("--print", "only_print", is_flag=True, help="Only print what belongs into the file.")
@click.option("--hook/--no-hook", default=None, help="Also add hooks (Claude Code, Codex).")
@_project
@_yes
def install(
    client: str, only_print: bool, hook: bool | None, project: bool, yes: bool, url: str, token: str, **given: str
) -> None:
    """Add the memory to the configuration of CLIENT.

    Shows the change first, and keeps the old file as a backup. On a terminal it also offers hooks: they show the memory
    when a session starts, keep the transcript, and once per session ask the agent to save what it learned.

    A project's file is shared. It gets no path of this machine and no token: put the token into $HOLDFAST_TOKEN.
    """
    known = CLIENTS[client]
    path = known.location(project=project)
    if url or token:
        if hook or any(given.values()) or click.get_current_context().meta["holdfast.root"]:
            raise Invalid(
                "--url and --token connect to a server that has its own memory and settings.",
                "Leave out --root, --workspace, --toolset and --hook.",
            )
        server, hook_path, hooks = Server(known, known.remote(_endpoint(url), "" if project else token)), "", Hooks()
    else:
        hook_path = known.hooks_location(project=project) if hook or known.hooks else ""
        server, hooks = _local(known, project, **given)
    if only_print:
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
    done = {"client": client} | _add(server, path, ask=not yes)
    if url and (project or not token):
        click.echo(f"Set {clients.VARIABLE} to the token before you start {known.title}.", err=True)
    there = _has(hooks, hook_path) if hook_path and hook is not False else None
    if hook or there or (there is False and not yes and _is_terminal()):
        done["hook"] = _add(hooks, hook_path, ask=not yes, question=_WRITE if hook or there else _OFFER)
    _report(known, done, known.trust)


@command()
@_client
@_project
@_yes
def uninstall(client: str, project: bool, yes: bool) -> None:
    """Remove the memory from the configuration of CLIENT."""
    known = CLIENTS[client]
    done = {"client": client} | _remove(Server(known), known.location(project=project), ask=not yes)
    path = known.hooks_location(project=project) if known.hooks else ""
    if path and _has(Hooks(), path) is not False and clients.NAME in (clients.read_file(path) or ""):
        done["hook"] = _remove(Hooks(), path, ask=not yes)
    _report(known, done)


def _add(addition: Addition, path: str, *, ask: bool, question: str = _WRITE) -> dict[str, Any]:
    by_hand = f"Paste into it:\n{addition.merge('')}"
    first = not _has(addition, path)
    return _edit(path, lambda old: addition.merge(old or ""), by_hand, ask=ask, question=question, first=first)


def _remove(addition: Addition, path: str, *, ask: bool) -> dict[str, Any]:
    def edit(old: str | None) -> str | None:
        return None if old is None else addition.unmerge(old, clients.read_file(clients.backup_of(path)))

    return _edit(path, edit, addition.by_hand, ask=ask)


def _has(addition: Addition, path: str) -> bool | None:
    """Return whether a file has a part of ours, None if it cannot be read."""
    try:
        return any(addition.places(clients.read_file(path) or ""))
    except Invalid:
        return None


def _endpoint(url: str) -> str:
    """Return the address of the tools of a server; a token is sent in clear text only on this machine."""
    try:
        parts = urlsplit(url)
        usable = parts.hostname and not parts.username and parts.scheme in ("http", "https")
    except ValueError:
        usable = False
    if not usable:
        raise Invalid("--url is not the address of a server.", "Give one: --url https://memory.example.org")
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise Invalid("With http:// anyone on the way could read the token.", f"Use --url https://{parts.netloc}")
    return url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/mcp"


def _local(client: Client, project: bool, workspace: str, toolset: str) -> tuple[Server, Hooks]:
    """Return a server and hooks that run on this machine, over the root of this command."""
    offered = ["--toolset", toolset] if toolset and toolsets.toolset(toolsets.registry(), toolset) else []
    script = shutil.which(sys.argv[0]) if os.path.basename(sys.argv[0]) == clients.NAME else None
    start = [os.path.abspath(script)] if script else [os.path.abspath(sys.executable), "-m", "holdfast"]
    quiet = start
    if project:
        start = [clients.NAME] if shutil.which(clients.NAME) else ["uvx", clients.NAME]
        quiet = start if len(start) == 1 else ["uvx", "--offline", clients.NAME]  # a hook must not wait for the network
    more = ["--workspace", workspace] if workspace else []
    root, here = _root(client.folder if project else ""), _root("." if project else "")
    first, later = [*quiet, "context", "--hook", *here, *more], [*quiet, "hook", client.name, *here, *more]
    lines = {event: hook_line(first if event == START else later) for event in EVENTS}
    return Server(client, client.entry([*start, "mcp", *offered, *root, *more])), Hooks(lines)


def _root(folder: str) -> list[str]:
    """Return the option for the root; `folder` is the name of a project's folder in its file, "" in a user's file."""
    location = locate(create=True)[0]
    if is_address(location):
        bare = without_password(location)
        if bare != location:
            raise Invalid(
                "The address has a password, which would be written to the client's file.",
                f"Put the password into ~/.pgpass, and give the address without it: {bare}",
            )
        return ["--root", location]
    location = folder_of(location)
    if not folder:
        return ["--root", location]
    found, source = find_root()
    alone = not os.environ.get("HOLDFAST_ROOT") and (source == DEFAULT or folder == ".")
    if alone and location == os.path.realpath(found):
        return []  # found from the folders below the project too
    inside, home = os.path.relpath(location, os.path.realpath(".")), os.path.realpath(os.path.expanduser("~"))
    if inside.startswith("..") and location.startswith(home + os.sep):
        return ["--root", f"~{location[len(home) :]}"]
    return ["--root", folder if inside == "." else f"{folder}/{inside}"]


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _edit(
    path: str, edit: _Edit, by_hand: str, *, ask: bool, question: str = _WRITE, first: bool = False
) -> dict[str, Any]:
    """Show what `edit` changes in a file, ask if wanted, and write it; exit if the change is declined.

    `by_hand` is the next step if the file cannot be edited. A declined offer does not end the command.
    """
    old, say = clients.read_file(path), (lambda _text: None) if show.wants_json() else click.echo
    try:
        new = edit(old)
    except Invalid as error:
        raise Invalid(f"{path}: {error}", by_hand) from None
    if old == new:
        say(f"{path} is up to date; nothing was changed.")
        return {"file": path, "changed": False}
    sides = ((old or "").splitlines(), (new or "").splitlines(), f"{path} (now)", f"{path} (then)")
    diff = clients.BEARER.sub("Bearer …", redact("\n".join(difflib.unified_diff(*sides, lineterm=""))))
    say(show.printable(diff))
    if os.path.islink(path):
        say(f"{path} is a link; what changes is {os.path.realpath(path)}.")
    if ask:
        if not _is_terminal():
            raise Invalid(
                f"{path} was not changed: there is no terminal to ask on.", "Pass --yes, or look with --print."
            )
        if not click.confirm("Remove the file?" if new is None else question):
            click.echo("Nothing was changed.")
            if question == _WRITE:
                sys.exit(1)
            return {"file": path, "changed": False}
    backup = clients.replace_file(path, old, new, first=first)
    say(f"{path} was {'removed' if new is None else 'written'}." + (f" Before: {backup}" if backup else ""))
    return {"file": path, "changed": True, "diff": diff} | ({"backup": backup} if backup else {})


def _report(client: Client, done: dict[str, Any], trust: str = "") -> None:
    show.json_and_exit(done)
    hook_changed = done.get("hook", {}).get("changed")
    if done["changed"] or hook_changed:
        click.echo(f"{client.title}: {client.next_step}")
    if trust and hook_changed:
        click.echo(trust)


# doctor


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    check: str
    state: str
    """ok, warn or fail."""
    what: str
    next: str = ""


@command()
def doctor() -> None:
    """Check root, settings, index, locks, clients and the server."""
    import apsw

    found, version = list[Check](), apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")[:2]) < _SQLITE:
        found.append(Check("sqlite", "fail", f"SQLite {version} is too old.", "Run: pip install --upgrade apsw"))
    else:
        found.append(Check("sqlite", "ok", f"SQLite {version}."))
    in_database = is_address(given_root() or "")
    checks: dict[str, Callable[[], Iterator[Check]]] = {
        "root": _database if in_database else _folder,
        **({} if in_database else {"lock": _lock, "git": _git}),
        "settings": _settings,
        "index": _index,
        "shared": _shared,
        "clients": _clients,
        "server": _server,
    }
    broken = False
    for name, check in checks.items():
        if broken and name != "clients":
            continue
        try:
            found.extend(check())
        except HoldfastError as error:
            broken = broken or name in ("root", "lock")  # nothing else works there
            state = "warn" if name == "shared" else "fail"
            found.append(Check(name, state, error.message, error.next_step))
    failed = any(check.state == "fail" for check in found)
    code = Unavailable.exit_code if failed else 0
    show.json_and_exit({"ok": not failed, "checks": found}, code)
    show.table(("check", "state", "what"), [(c.check, c.state, f"{c.what} {c.next}".strip()) for c in found])
    sys.exit(code)


def _folder() -> Iterator[Check]:
    root, source = locate()
    location = folder_of(root)
    if not os.access(location, os.W_OK | os.X_OK):
        raise Unavailable(f"{location} may not be written.", "Change its permissions, or its owner.")
    yield Check("root", "ok", f"{location}, from {source}.")


def _database() -> Iterator[Check]:
    root, source = locate()
    found = health_of(root)
    yield Check("root", "ok", f"{found.location}, from {source}.")
    login = f"tenant {found.tenant}, login {found.login} as {found.role}"
    what = f"PostgreSQL {found.server}, schema {found.schema}, {login}; it answers in {found.answer_ms:g} ms."
    yield Check("database", "ok", what)
    if found.role != _WRITER:
        yield Check("rights", "warn", f"The login {found.login} may only read.", f"GRANT {_WRITER} lets it write.")
    if found.standby:
        what = f"This is a standby, {found.behind_seconds:.0f} s behind: nothing is written."
        step = "Name all servers in the address, with target_session_attrs=read-write."
        yield Check("replication", "warn", what, step)
    else:
        yield Check("replication", "ok", f"{amount(found.standbys, 'standby', 'standbys')} that this login can see.")
    if found.vector:
        yield Check("vectors", "ok", f"pgvector {found.vector}.")
    elif found.vector_there:
        step = "Have the database's administrator run: CREATE EXTENSION vector;"
        yield Check("vectors", "warn", "pgvector is not part of this database: records are found by words.", step)
    else:
        step = "Install pgvector on the server (postgresql-NN-pgvector), then CREATE EXTENSION vector;"
        yield Check("vectors", "warn", "The server does not have pgvector: records are found by words.", step)


def _lock() -> Iterator[Check]:
    """Create and replace a document, which needs all that a write needs: links, locks and renames."""
    location, scratch = folder_of(locate()[0]), f"{settings.DERIVED}/doctor-{os.getpid()}"
    with contextlib.closing(open_folder(location)) as tree:
        try:
            tree.write(scratch, b"new", expect=tree.write(scratch, b"old", expect=ABSENT))
        except HoldfastError as error:
            step = "Check its permissions, or move it to a file system with hard links and locks, such as ext4 or APFS."
            raise Unavailable(f"Nothing can be saved in {location}: {error.message}", step) from None
        finally:
            with contextlib.suppress(OSError):  # `tree.remove` needs a lock
                os.unlink(os.path.join(location, scratch))
    yield Check("lock", "ok", "The root can be locked and written.")


def _git() -> Iterator[Check]:
    lacks = git.lacks_driver(root := folder_of(locate()[0]))
    if lacks:
        what = ".gitattributes names a merge driver that this clone does not have: git merges Markdown by lines."
        yield Check("git", "warn", what, f"Run: holdfast git --root {root} setup")
    elif lacks is not None:
        yield Check("git", "ok", "git merges decisions and lessons by entry, and logs by id.")


def _settings() -> Iterator[Check]:
    with open_root() as memory:
        if memory.settings.encryption.what:
            list(encryption.encrypt([b""]))  # Locked without a key
        if untrusted := ignored(memory.tree.location, settings_text(memory.tree)):
            what = f"{settings.FILE} sets {', '.join(untrusted)}, which this user has not trusted: ignored."
            yield Check("settings", "warn", what, f"Check the values, then run: holdfast trust {memory.root}")
        elif memory.tree.stat(settings.FILE):
            yield Check("settings", "ok", f"{settings.FILE} can be read.")
        else:
            step = f"Run: holdfast init {memory.root}"
            yield Check("settings", "warn", f"There is no {settings.FILE}; the defaults apply.", step)


def _index() -> Iterator[Check]:
    with open_root() as memory:
        numbers, copies = memory.stats(), list(conflict_copies(memory))
    state, what, step = "warn", "", ""
    if numbers["vanished"]:
        state, what = "fail", f" {' '.join(numbers['vanished'])}."
    elif numbers["problems"]:
        what, step = f" {amount(numbers['problems'], 'problem')}.", "Run: holdfast verify"
    elif copies:
        what, step = f" {copies[0][0]} is a conflict copy of {copies[0][1]} and is not read.", "Run: holdfast lint"
    elif numbers.get("words_alone"):
        what = f" Found by words alone: {numbers['words_alone']}"
    elif numbers["behind"]:
        what, step = f" Behind by {amount(numbers['behind'], 'file')}.", "Run: holdfast refresh"
    else:
        state = "ok"
    size = f"{amount(numbers['records'], 'record')} of {amount(numbers['files'], 'file')}."
    yield Check("index", state, size + what, step)


def _shared() -> Iterator[Check]:
    """Check the shared memory, if the settings name one; everything else works without it."""
    with open_root() as memory:
        address = shared.address(memory) if memory.settings.shared.store else ""
    if address:
        with open_root(address) as there:
            reads_only = there.store.reads_only or (there.in_files and not os.access(there.root, os.W_OK))
        step = "A push needs a login that writes." if reads_only else ""
        yield Check(
            "shared", "ok", f"{there.root} may be read{', and not be' if reads_only else ' and'} written.", step
        )


def _clients() -> Iterator[Check]:
    found = False
    for client in CLIENTS.values():
        for project in (False, True):
            if client.project if project else client.user:
                step = f"Run: holdfast install {client.name}{' --project' if project else ''}"
                for check in _configured(client.name, client.location(project=project), Server(client), step):
                    found = True
                    yield check
    if not found:
        names = ", ".join(CLIENTS)
        yield Check("clients", "warn", "No client is configured.", f"Run: holdfast install CLIENT ({names})")
    for client in CLIENTS.values():
        step = f"Run: holdfast install {client.name} --hook"
        for path in {client.hooks_location(project=project): "" for project in (False, True) if client.hooks}:
            yield from _configured(f"{client.name} hook", path, Hooks(), step, client.trust)


def _configured(name: str, path: str, addition: Addition, step: str, trust: str = "") -> Iterator[Check]:
    """Check the command that a file of a client starts, if it has one of ours."""
    try:
        text = clients.read_file(path) or ""
        found = addition.command(text) if clients.NAME in text else None
    except HoldfastError as error:
        yield Check(name, "warn", f"{path}: {error.message}", "Look at it by hand.")
        return
    if found is None:
        return
    if "://" in found[0]:
        yield Check(name, "ok", f"{path} connects to {found[0]}.", trust)
        return
    root = next((found[n + 1] for n, word in enumerate(found[:-1]) if word == "--root"), "")
    if not is_address(root):
        root = os.path.expanduser(_PROJECT_FOLDER.sub(".", root))
    missing = [event for event in EVENTS if event not in addition.find(text)] if isinstance(addition, Hooks) else []
    if root and not is_address(root) and not os.path.isdir(root):
        yield Check(name, "fail", f"{path} names the root {root}, which does not exist.", step)
    elif found[0] and shutil.which(found[0]) is None:
        yield Check(name, "fail", f"{path} starts {found[0]}, which cannot be run.", step)
    elif missing:
        yield Check(name, "warn", f"{path} has no hook for {', '.join(missing)}.", step)
    else:
        yield Check(name, "ok", f"{path} serves {root or 'the nearest root'}.", trust)


def _server() -> Iterator[Check]:
    location = locate()[0]
    in_database = is_address(location)
    words = [sys.executable, "-m", "holdfast", "mcp", *([] if in_database else ["--root", location])]
    tools, seconds = list_tools(words, _ANSWER_SECONDS, location if in_database else "")
    yield Check("server", "ok", f"It answers in {seconds:.1f} s with {len(tools)} tools.")


def list_tools(command: list[str], seconds: float, root: str = "") -> tuple[list[str], float]:
    """Start an MCP server and list its tools; return their names and the seconds until it ended.

    Unavailable if the server does not answer in time. `root` goes into the environment, because it may have a password.
    """
    sent = b"".join(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n" for message in _MESSAGES)
    environment = os.environ | ({"HOLDFAST_ROOT": root} if root else {})
    begin = time.monotonic()
    try:
        done = subprocess.run(command, check=False, input=sent, capture_output=True, timeout=seconds, env=environment)
        replies = {message["id"]: message for message in map(json.loads, done.stdout.splitlines()) if "id" in message}
        for reply in replies.values():
            if "error" in reply:
                raise ValueError(reply["error"].get("message"))
        if 2 not in replies:
            raise ValueError("it ended")
        return [str(tool["name"]) for tool in replies[2]["result"]["tools"]], time.monotonic() - begin
    except OSError as error:
        raise Unavailable(f"{command[0]} cannot be started: {error.strerror}.", "Check the path.") from None
    except subprocess.TimeoutExpired:
        why = f"no answer in {seconds:g} s"
    except (ValueError, KeyError, TypeError) as error:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = lines[-1][:300].rstrip(".") if lines else str(error)
    raise Unavailable(f"The server does not answer: {why}.", f"Run it: {' '.join(command)}")
