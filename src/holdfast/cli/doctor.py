"""`holdfast doctor`: check everything that an agent needs to reach its memory, and name the next step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from holdfast import clients
from holdfast.cli import show
from holdfast.cli.main import common, nearest, open_root
from holdfast.clients import CLIENTS, Client, hooks
from holdfast.errors import Busy, HoldfastError, Unavailable
from holdfast.model import settings
from holdfast.model.wording import amount
from holdfast.opening import is_address, look_at

if TYPE_CHECKING:
    from holdfast.storage.postgres.condition import Condition

_SQLITE = (3, 43)
_WRITER = "holdfast_writer"
_LOCK_SECONDS = 2.0
_ANSWER_SECONDS = 20.0
_HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "holdfast-doctor", "version": "1"},
}


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    check: str
    state: str
    """ok, warn or fail."""
    what: str
    next: str = ""


@click.command()
@common
def doctor(root: str | None, as_json: bool) -> None:
    """Check root, settings, index, locks, clients and the server."""
    found = list(_checks(root))
    failed = any(check.state == "fail" for check in found)
    if show.wants_json(as_json):
        show.as_json({"ok": not failed, "checks": found})
    else:
        rows = [(c.check, c.state, f"{c.what} {c.next}".strip()) for c in found]
        show.table(("check", "state", "what"), rows)
    if failed:
        sys.exit(Unavailable.exit_code)


def _checks(root: str | None) -> Iterator[Check]:
    import apsw

    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")[:2]) < _SQLITE:
        yield Check("sqlite", "fail", f"SQLite {version} is too old.", "Run: pip install --upgrade apsw")
    else:
        yield Check("sqlite", "ok", f"SQLite {version}.")
    yield from _database_root(root) if root and is_address(root) else _folder_root(root)


def _folder_root(root: str | None) -> Iterator[Check]:
    try:
        location = os.path.realpath(os.path.expanduser(root or nearest()))
    except HoldfastError as error:
        yield _failed("root", error)
        yield from _clients()
        return
    is_folder = os.path.isdir(location)
    if not is_folder:
        yield Check("root", "fail", f"{location} is not a folder.", f"Run: holdfast init {location}")
    elif not os.access(location, os.W_OK | os.X_OK):
        yield Check("root", "fail", f"{location} may not be written.", "Change its permissions, or its owner.")
    else:
        yield Check("root", "ok", location)
    if is_folder:
        yield from _each(location, settings=_settings, index=_index, lock=_lock)
        yield from _shared(location)
    yield from _clients()
    if is_folder:
        yield _server(location)


def _database_root(address: str) -> Iterator[Check]:
    try:
        found = look_at(address)
    except HoldfastError as error:
        yield _failed("root", error)
        yield from _clients()
        return
    yield Check("root", "ok", found.location)
    yield from _database(found)
    yield from _each(address, settings=_settings, index=_index)
    yield from _shared(address)
    yield from _clients()
    yield _server("", address)


def _each(location: str, **checks: Callable[[str], Check]) -> Iterator[Check]:
    for name, check in checks.items():
        try:
            yield check(location)
        except HoldfastError as error:
            yield _failed(name, error)


def _failed(name: str, error: HoldfastError) -> Check:
    return Check(name, "fail", error.message, error.next_step)


def _database(found: Condition) -> Iterator[Check]:
    login = f"tenant {found.tenant}, login {found.login} as {found.role}"
    what = f"PostgreSQL {found.server}, schema {found.schema}, {login}; it answers in {found.answer_ms:g} ms."
    yield Check("database", "ok", what)
    if found.role != _WRITER:
        yield Check("rights", "warn", f"The login {found.login} may only read.", f"GRANT {_WRITER} lets it write.")
    elif not found.inherits:
        what = f"The login {found.login} does not inherit {_WRITER}: appends take the longer way."
        yield Check("rights", "warn", what, f"GRANT {_WRITER} TO {found.login} WITH INHERIT TRUE makes them faster.")
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
        if memory.vault.stat(settings.FILE):
            return Check("settings", "ok", f"{settings.FILE} can be read.")
        step = f"Run: holdfast init {memory.root}"
        return Check("settings", "warn", f"There is no {settings.FILE}; defaults hold.", step)


def _index(location: str) -> Check:
    with open_root(location) as memory:
        numbers = memory.stats()
    size = f"{amount(numbers['records'], 'record')} of {amount(numbers['files'], 'file')}."
    if numbers["vanished"]:
        return Check("index", "fail", f"{size} {' '.join(numbers['vanished'])}.")
    if numbers["problems"]:
        return Check("index", "warn", f"{size} {amount(numbers['problems'], 'problem')}.", "Run: holdfast verify")
    if numbers.get("words_alone"):
        return Check("index", "warn", f"{size} Found by words alone: {numbers['words_alone']}")
    if numbers["behind"]:
        return Check("index", "warn", f"{size} Behind by {amount(numbers['behind'], 'file')}.", "Run: holdfast refresh")
    return Check("index", "ok", size)


def _shared(location: str) -> Iterator[Check]:
    """Check the shared memory, if the settings name one; everything else works without it."""
    from holdfast.owner import shared

    try:
        with open_root(location) as memory:
            address = shared.address(memory) if memory.settings.shared.store else ""
        if not address:
            return
        with open_root(address) as there:
            reads_only = there.reads_only or (there.in_files and not os.access(there.root, os.W_OK))
            shown = there.root
    except HoldfastError as error:
        yield Check("shared", "warn", error.message, error.next_step)
        return
    if reads_only:
        yield Check("shared", "ok", f"{shown} may be read, and not be written.", "A push needs a login that writes.")
    else:
        yield Check("shared", "ok", f"{shown} may be read and written.")


def _lock(location: str) -> Check:
    from holdfast.storage.files.locks import hold

    try:
        fd = os.open(location, os.O_RDONLY | os.O_CLOEXEC)
        try:
            hold(fd, _LOCK_SECONDS, location)
        finally:
            os.close(fd)
    except Busy:
        return Check("lock", "warn", f"{location} is locked by another process.", "Look again in a moment.")
    except OSError as error:
        return Check("lock", "fail", f"{location} cannot be locked: {error.strerror}.", "Use a local file system.")
    return Check("lock", "ok", "The root can be locked.")


# clients


def _clients() -> Iterator[Check]:
    places = {
        (client.name, clients.location(client, project=project)): client
        for client in CLIENTS.values()
        for project in (*[False] * bool(client.user), *[True] * bool(client.project))
    }
    found = [check for (_, path), client in places.items() if (check := _client(client, path))]
    yield from found
    for client in CLIENTS.values():
        hook_paths = [hooks.location(client, project=project) for project in (False, True)] if client.hooks else []
        yield from (check for path in dict.fromkeys(hook_paths) if (check := _hook(client, path)))
    if not found:
        names = ", ".join(CLIENTS)
        yield Check("clients", "warn", "No client is configured.", f"Run: holdfast install CLIENT ({names})")


def _client(client: Client, path: str) -> Check | None:
    try:
        text = clients.read_file(path)
        if text is None or clients.NAME not in text:
            return None
        entry = clients.find(client, text)
    except HoldfastError as error:
        return Check(client.name, "warn", f"{path}: {error.message}", "Look at it by hand.")
    if entry is None:
        return None
    words = [str(entry.get("command", "")), *map(str, entry.get("args") or [])]
    return _startable(client.name, path, words, f"Run: holdfast install {client.name}")


def _hook(client: Client, path: str) -> Check | None:
    name = f"{client.name} hook"
    try:
        text = clients.read_file(path)
        line = hooks.find(text) if text and clients.NAME in text else None
    except HoldfastError as error:
        return Check(name, "warn", f"{path}: {error.message}", "Look at it by hand.")
    if line is None:
        return None
    return _startable(name, path, hooks.words(line) or [""], f"Run: holdfast install {client.name} --hook")


def _startable(name: str, path: str, words: list[str], step: str) -> Check:
    """Check a command that a client starts."""
    root = next((words[n + 1] for n, word in enumerate(words[:-1]) if word == "--root"), "")
    if root and not is_address(root) and not os.path.isdir(root):
        return Check(name, "fail", f"{path} names the root {root}, which does not exist.", step)
    if os.path.isabs(words[0]) and not os.access(words[0], os.X_OK):
        return Check(name, "fail", f"{path} starts {words[0]}, which cannot be run.", step)
    return Check(name, "ok", f"{path} serves {root or 'the nearest root'}.")


# the server


def _server(location: str, address: str = "") -> Check:
    try:
        where = ["--root", location] if location else []
        command = [sys.executable, "-m", "holdfast", "mcp", *where]
        tools, seconds = list_tools(command, _ANSWER_SECONDS, address)
    except HoldfastError as error:
        return _failed("server", error)
    return Check("server", "ok", f"It answers in {seconds:.1f} s with {len(tools)} tools.")


def list_tools(command: list[str], seconds: float, root: str = "") -> tuple[list[str], float]:
    """Start an MCP server, list its tools and stop it; return their names and the seconds that it took.

    Unavailable if the server does not answer in time. `root` goes into the environment, because it may have a password.
    """
    environment = os.environ | ({"HOLDFAST_ROOT": root} if root else {})
    begin = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
            )
        except OSError as error:
            raise Unavailable(f"{command[0]} cannot be started: {error.strerror}.", "Check the path.") from None
        limit = threading.Timer(seconds, process.kill)
        limit.start()
        try:
            return _ask(process), time.monotonic() - begin
        except (OSError, ValueError, KeyError, TypeError) as error:
            errors.seek(0)
            lines = errors.read().decode("utf-8", "replace").strip().splitlines()
            why = lines[-1][:300].rstrip(".") if lines else str(error)
            if time.monotonic() - begin >= seconds:
                why = f"no answer in {seconds:g} s"
            raise Unavailable(f"The server does not answer: {why}.", f"Run it: {' '.join(command)}") from None
        finally:
            _stop(process)
            limit.cancel()


def _ask(process: subprocess.Popen[bytes]) -> list[str]:
    assert process.stdin and process.stdout  # both are pipes
    _send(process.stdin, {"id": 1, "method": "initialize", "params": _HELLO})
    _reply(process.stdout, 1)
    _send(process.stdin, {"method": "notifications/initialized"})
    _send(process.stdin, {"id": 2, "method": "tools/list", "params": {}})
    return [str(tool["name"]) for tool in _reply(process.stdout, 2)["tools"]]


def _send(pipe: IO[bytes], message: dict[str, Any]) -> None:
    pipe.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
    pipe.flush()


def _reply(pipe: IO[bytes], number: int) -> dict[str, Any]:
    """Return the result of a request; other messages are skipped."""
    for line in pipe:
        message = json.loads(line)
        if message.get("id") == number:
            if "error" in message:
                raise ValueError(str(message["error"].get("message")))
            result: dict[str, Any] = message["result"]
            return result
    raise ValueError("it ended")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe, which ends a server; kill it if it goes on."""
    assert process.stdin and process.stdout  # both are pipes
    try:
        process.stdin.close()
        process.wait(2)
    except (OSError, subprocess.TimeoutExpired):
        process.kill()
        process.wait()
    process.stdout.close()
