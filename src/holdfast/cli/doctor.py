"""`holdfast doctor`: check everything that an agent needs to reach its memory, and name the next step."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import clients
from holdfast.cli import show
from holdfast.cli.main import command, find_root, given_root, open_root
from holdfast.clients import CLIENTS, EVENTS, Addition, Hooks, Server
from holdfast.errors import HoldfastError, Unavailable
from holdfast.formats import encryption
from holdfast.memories.lint import conflict_copies
from holdfast.model import settings
from holdfast.model.names import amount
from holdfast.owner import shared
from holdfast.roots import health_of, ignored, is_address, open_folder, settings_text
from holdfast.storage.tree import ABSENT

if TYPE_CHECKING:
    from holdfast.storage.postgres.database import DatabaseHealth

_SQLITE = (3, 43)
_WRITER = "holdfast_writer"
_ANSWER_SECONDS = 20.0
_HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "doctor", "version": "1"}}
_MESSAGES: tuple[dict[str, Any], ...] = (
    {"id": 1, "method": "initialize", "params": _HELLO},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list", "params": {}},
)


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    check: str
    state: str
    """ok, warn or fail."""
    what: str
    next: str = ""


@command()
def doctor() -> None:
    """Check root, settings, index, locks, clients and the server."""
    found = list(_checks())
    failed = any(check.state == "fail" for check in found)
    rows = [(c.check, c.state, f"{c.what} {c.next}".strip()) for c in found]
    if not show.in_json({"ok": not failed, "checks": found}):
        show.table(("check", "state", "what"), rows)
    if failed:
        sys.exit(Unavailable.exit_code)


def _checks() -> Iterator[Check]:
    import apsw

    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")[:2]) < _SQLITE:
        yield Check("sqlite", "fail", f"SQLite {version} is too old.", "Run: pip install --upgrade apsw")
    else:
        yield Check("sqlite", "ok", f"SQLite {version}.")
    address = given_root() or ""
    in_database, location = is_address(address), ""
    try:
        if in_database:
            health = health_of(address)
            location = address
            yield Check("root", "ok", health.location)
            yield from _database(health)
        else:
            folder = os.path.realpath(os.path.expanduser(find_root()))
            if not os.path.isdir(folder):
                raise Unavailable(f"{folder} is not a folder.", f"Run: holdfast init {folder}")
            location = folder
            if not os.access(folder, os.W_OK | os.X_OK):
                raise Unavailable(f"{folder} may not be written.", "Change its permissions, or its owner.")
            yield Check("root", "ok", folder)
    except HoldfastError as error:
        yield _failed("root", error)
    checks = ({} if in_database else {"lock": _lock}) | {"settings": _settings, "index": _index}
    for name, check in checks.items() if location else ():
        try:
            found = check(location)
        except HoldfastError as error:
            found = _failed(name, error)
        yield found
        if (name, found.state) == ("lock", "fail"):  # nothing else works there
            location = ""
            break
    if location:
        yield from _shared(location)
    yield from _clients()
    if location:
        yield _server(location)


def _failed(name: str, error: HoldfastError) -> Check:
    return Check(name, "fail", error.message, error.next_step)


def _database(found: DatabaseHealth) -> Iterator[Check]:
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


def _settings(location: str) -> Check:
    with open_root(location) as memory:
        if untrusted := ignored(memory.tree.location, settings_text(memory.tree)):
            what = f"{settings.FILE} sets {', '.join(untrusted)}, which this user has not trusted: ignored."
            return Check("settings", "warn", what, f"Check the values, then run: holdfast trust {memory.root}")
        if memory.settings.encryption.what:
            list(encryption.encrypt([b""]))  # Locked without a key
        if memory.tree.stat(settings.FILE):
            return Check("settings", "ok", f"{settings.FILE} can be read.")
        step = f"Run: holdfast init {memory.root}"
        return Check("settings", "warn", f"There is no {settings.FILE}; the defaults apply.", step)


def _index(location: str) -> Check:
    with open_root(location) as memory:
        numbers = memory.stats()
        copies = list(conflict_copies(memory))
    size = f"{amount(numbers['records'], 'record')} of {amount(numbers['files'], 'file')}."
    if numbers["vanished"]:
        return Check("index", "fail", f"{size} {' '.join(numbers['vanished'])}.")
    if numbers["problems"]:
        return Check("index", "warn", f"{size} {amount(numbers['problems'], 'problem')}.", "Run: holdfast verify")
    if copies:
        what = f"{size} {copies[0][0]} is a conflict copy of {copies[0][1]} and is not read."
        return Check("index", "warn", what, "Run: holdfast lint")
    if numbers.get("words_alone"):
        return Check("index", "warn", f"{size} Found by words alone: {numbers['words_alone']}")
    if numbers["behind"]:
        return Check("index", "warn", f"{size} Behind by {amount(numbers['behind'], 'file')}.", "Run: holdfast refresh")
    return Check("index", "ok", size)


def _shared(location: str) -> Iterator[Check]:
    """Check the shared memory, if the settings name one; everything else works without it."""
    try:
        with open_root(location) as memory:
            address = shared.address(memory) if memory.settings.shared.store else ""
        if not address:
            return
        with open_root(address) as there:
            reads_only = there.store.reads_only or (there.in_files and not os.access(there.root, os.W_OK))
            shown = there.root
    except HoldfastError as error:
        yield Check("shared", "warn", error.message, error.next_step)
        return
    if reads_only:
        yield Check("shared", "ok", f"{shown} may be read, and not be written.", "A push needs a login that writes.")
    else:
        yield Check("shared", "ok", f"{shown} may be read and written.")


def _lock(location: str) -> Check:
    """Create and replace a document, which needs all that a write needs: links, locks and renames."""
    scratch = f"{settings.DERIVED}/doctor-{os.getpid()}"
    with contextlib.closing(open_folder(location)) as tree:
        try:
            tree.write(scratch, b"new", expect=tree.write(scratch, b"old", expect=ABSENT))
        except HoldfastError as error:
            step = "Check its permissions, or move it to a file system with hard links and locks, such as ext4 or APFS."
            return Check("lock", "fail", f"Nothing can be saved in {location}: {error.message}", step)
        finally:
            with contextlib.suppress(OSError):  # `tree.remove` needs a lock
                os.unlink(os.path.join(location, scratch))
    return Check("lock", "ok", "The root can be locked and written.")


# clients


def _clients() -> Iterator[Check]:
    servers = [(client, project) for client in CLIENTS.values() for project in (False, True)]
    servers = [(client, project) for client, project in servers if (client.project if project else client.user)]
    found = [
        _configured(
            client.name, client.location(project=project), Server(client), f"Run: holdfast install {client.name}"
        )
        for client, project in servers
    ]
    if not any(found):
        names = ", ".join(CLIENTS)
        found.append(Check("clients", "warn", "No client is configured.", f"Run: holdfast install CLIENT ({names})"))
    for client in (client for client in CLIENTS.values() if client.hooks):
        step = f"Run: holdfast install {client.name} --hook"
        for path in dict.fromkeys(client.hooks_location(project=project) for project in (False, True)):
            check = _configured(f"{client.name} hook", path, Hooks(), step)
            if check and check.state == "ok":
                known = Hooks().find(clients.read_file(path) or "")
                check = msgspec.structs.replace(check, next=client.trust)
                if missing := [event for event in EVENTS if event not in known]:
                    check = Check(check.check, "warn", f"{path} has no hook for {', '.join(missing)}.", step)
            found.append(check)
    return filter(None, found)


def _configured(name: str, path: str, addition: Addition, step: str) -> Check | None:
    """Check the command that a file of a client starts; None if the file has none of ours."""
    try:
        text = clients.read_file(path)
        found = addition.command(text) if text and clients.NAME in text else None
    except HoldfastError as error:
        return Check(name, "warn", f"{path}: {error.message}", "Look at it by hand.")
    if found is None:
        return None
    root = next((found[n + 1] for n, word in enumerate(found[:-1]) if word == "--root"), "")
    if root and not is_address(root) and not os.path.isdir(root):
        return Check(name, "fail", f"{path} names the root {root}, which does not exist.", step)
    if os.path.isabs(found[0]) and not os.access(found[0], os.X_OK):
        return Check(name, "fail", f"{path} starts {found[0]}, which cannot be run.", step)
    return Check(name, "ok", f"{path} serves {root or 'the nearest root'}.")


# the server


def _server(location: str) -> Check:
    in_database = is_address(location)
    command = [sys.executable, "-m", "holdfast", "mcp", *([] if in_database else ["--root", location])]
    try:
        tools, seconds = list_tools(command, _ANSWER_SECONDS, location if in_database else "")
    except HoldfastError as error:
        return _failed("server", error)
    return Check("server", "ok", f"It answers in {seconds:.1f} s with {len(tools)} tools.")


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
