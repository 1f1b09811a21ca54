"""`holdfast doctor`: looks at everything that must work for an agent to have its memory, and says the next step."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast import clients
from holdfast.cli import show
from holdfast.cli.common import common, nearest, open_root
from holdfast.clients import CLIENTS, Client, files, hooks, probing
from holdfast.errors import Busy, HoldfastError, Unavailable
from holdfast.model import settings
from holdfast.model.names import amount
from holdfast.roots import is_address, look_at

if TYPE_CHECKING:
    from holdfast.storage.postgres.condition import Condition

_SQLITE = (3, 43)
_WRITER = "holdfast_writer"
_LOCK_SECONDS = 2.0
_ANSWER_SECONDS = 20.0


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    check: str
    state: str
    """ok, warn or fail."""
    what: str
    next: str = ""


@click.command()
@common
def doctor(root: str | None, as_json: bool) -> None:
    """Check root, settings, index, locks, configured clients, and that the server answers."""
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
    yield _sqlite()
    if root and is_address(root):
        yield from _database_checks(root)
        return
    try:
        location = os.path.realpath(os.path.expanduser(root or nearest()))
    except HoldfastError as error:
        yield _failed("root", error)
        location = ""
    if location:
        yield _root(location)
    if os.path.isdir(location):
        yield from _each(location, settings=_settings, index=_index, lock=_lock)
        yield from _shared(location)
    yield from _clients()
    if os.path.isdir(location):
        yield _server(location)


def _database_checks(address: str) -> Iterator[Check]:
    """Look at a memory in a database; an address that leads nowhere leaves nothing else to look at there."""
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


def _database(found: Condition) -> Iterator[Check]:
    yield Check(
        "database", "ok",
        f"PostgreSQL {found.server}, schema {found.schema}, tenant {found.tenant}, login {found.login} as {found.role};"
        f" it answers in {found.answer_ms:g} ms.",
    )  # fmt: skip
    if found.role != _WRITER:
        yield Check("rights", "warn", f"The login {found.login} may only read.", f"GRANT {_WRITER} lets it write.")
    elif not found.inherits:
        yield Check(
            "rights", "warn", f"The login {found.login} does not inherit {_WRITER}: appends take the longer way.",
            f"GRANT {_WRITER} TO {found.login} WITH INHERIT TRUE makes them faster.",
        )  # fmt: skip
    if found.standby:
        yield Check(
            "replication", "warn", f"This is a standby, {found.behind_seconds:.0f} s behind: nothing is written.",
            "Name all servers in the address, with target_session_attrs=read-write.",
        )  # fmt: skip
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


def _failed(name: str, error: HoldfastError) -> Check:
    return Check(name, "fail", error.message, error.next_step)


def _sqlite() -> Check:
    import apsw

    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")[:2]) < _SQLITE:
        return Check("sqlite", "fail", f"SQLite {version} is too old.", "Run: pip install --upgrade apsw")
    return Check("sqlite", "ok", f"SQLite {version}.")


def _root(location: str) -> Check:
    if not os.path.isdir(location):
        return Check("root", "fail", f"{location} is not a folder.", f"Run: holdfast init {location}")
    if not os.access(location, os.W_OK | os.X_OK):
        return Check("root", "fail", f"{location} may not be written.", "Change its permissions, or its owner.")
    return Check("root", "ok", location)


def _settings(location: str) -> Check:
    with open_root(location) as memory:
        if not memory.vault.stat(settings.FILE):
            return Check(
                "settings", "warn", f"There is no {settings.FILE}; defaults hold.", f"Run: holdfast init {memory.root}"
            )
        return Check("settings", "ok", f"{settings.FILE} can be read.")


def _index(location: str) -> Check:
    with open_root(location) as memory:
        numbers = memory.stats()
    told = f"{amount(numbers['records'], 'record')} of {amount(numbers['files'], 'file')}."
    if numbers["vanished"]:
        return Check("index", "fail", f"{told} {' '.join(numbers['vanished'])}.")
    if numbers["problems"]:
        return Check("index", "warn", f"{told} {amount(numbers['problems'], 'problem')}.", "Run: holdfast verify")
    if numbers.get("words_alone"):
        return Check("index", "warn", f"{told} Found by words alone: {numbers['words_alone']}")
    if numbers["behind"]:
        return Check("index", "warn", f"{told} Behind by {amount(numbers['behind'], 'file')}.", "Run: holdfast refresh")
    return Check("index", "ok", told)


def _shared(location: str) -> Iterator[Check]:
    """Look at the memory that this one shares with others, if it names one; without it all else still works."""
    from holdfast.owner import shared

    try:
        with open_root(location) as memory:
            address = shared.address(memory) if memory.settings.shared.store else ""
        if not address:
            return
        with open_root(address) as there:
            reads = there.reads_only or (there.in_files and not os.access(there.root, os.W_OK))
            shown = there.root
    except HoldfastError as error:
        yield Check("shared", "warn", error.message, error.next_step)
        return
    if reads:
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


def _clients() -> Iterator[Check]:
    places = {
        (client.name, clients.location(client, project=project)): client
        for client in CLIENTS.values()
        for project in (*[False] * bool(client.user), *[True] * bool(client.project))
    }
    found = [check for (_, path), client in places.items() if (check := _client(client, path))]
    yield from found
    for client in CLIENTS.values():
        places_of_hooks = [hooks.location(client, project=project) for project in (False, True)] if client.hooks else []
        yield from (check for path in dict.fromkeys(places_of_hooks) if (check := _hook(client, path)))
    if not found:
        names = ", ".join(CLIENTS)
        yield Check("clients", "warn", "No client is configured.", f"Run: holdfast install CLIENT ({names})")


def _client(client: Client, path: str) -> Check | None:
    try:
        text = files.read(path)
        if text is None or clients.NAME not in text:
            return None
        entry = clients.find(client, text)
    except HoldfastError as error:
        return Check(client.name, "warn", f"{path}: {error.message}", "Look at it by hand.")
    if entry is None:
        return None
    words = [str(entry.get("command", "")), *map(str, entry.get("args") or [])]
    return _started(client.name, path, words, f"Run: holdfast install {client.name}")


def _hook(client: Client, path: str) -> Check | None:
    name = f"{client.name} hook"
    try:
        text = files.read(path)
        said = hooks.find(text) if text and clients.NAME in text else None
    except HoldfastError as error:
        return Check(name, "warn", f"{path}: {error.message}", "Look at it by hand.")
    if said is None:
        return None
    return _started(name, path, hooks.words(said) or [""], f"Run: holdfast install {client.name} --hook")


def _started(name: str, path: str, words: list[str], again: str) -> Check:
    """Look at a command that a client starts."""
    root = next((words[n + 1] for n, word in enumerate(words[:-1]) if word == "--root"), "")
    if root and not is_address(root) and not os.path.isdir(root):
        return Check(name, "fail", f"{path} names the root {root}, which does not exist.", again)
    if os.path.isabs(words[0]) and not os.access(words[0], os.X_OK):
        return Check(name, "fail", f"{path} starts {words[0]}, which cannot be run.", again)
    return Check(name, "ok", f"{path} serves {root or 'the nearest root'}.")


def _server(location: str, address: str = "") -> Check:
    import importlib.util

    if importlib.util.find_spec("mcp") is None:
        return Check("server", "fail", "The package mcp is missing.", "Run: pip install mcp")
    try:
        where = ["--root", location] if location else []
        answer = probing.probe([sys.executable, "-m", "holdfast", "mcp", *where], _ANSWER_SECONDS, address)
    except HoldfastError as error:
        return _failed("server", error)
    return Check("server", "ok", f"It answers in {answer.seconds:.1f} s with {len(answer.tools)} tools.")
