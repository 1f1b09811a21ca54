"""Run `holdfast` commands in processes of their own, without the cost of starting Python.

Each test process starts one server, which imports the package. Every command is a fork of it, with its own descriptors,
environment, folder and exit code, like `python -m holdfast`, but it starts in milliseconds. The server has no threads and
opens no memory. Use `subprocess` where the start, a pipe or a signal is what is tested.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import json
import locale
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

PROGRAM = [sys.executable, "-m", "holdfast"]
_AT_START = ("PYTHON", "LC_", "LANG")
"""Prefixes of the variables that Python reads at start."""
_LOADED = ("holdfast.cli", "holdfast.storage.files", "holdfast.storage.postgres")
"""The packages that the server imports with all their modules."""


def run(
    command: Sequence[str | bytes | os.PathLike[str]],
    *,
    input: str | bytes | None = None,
    text: bool = False,
    capture_output: bool = False,
    check: bool = False,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    **more: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command like `subprocess.run`; without input, its standard input is empty."""
    words = [os.fsdecode(word) for word in command]
    environment = dict(os.environ if env is None else env)
    if more or words[:3] != PROGRAM or _at_start(environment) != _at_start(os.environ):
        return subprocess.run(
            words, input=input if input is not None else ("" if text else b""), text=text, capture_output=capture_output,
            check=check, timeout=timeout, env=environment, cwd=cwd, **more,
        )  # fmt: skip
    with contextlib.ExitStack() as stack:
        given, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(input.encode() if isinstance(input, str) else input or b"")
        given.seek(0)
        with start(words[3:], environment, [given.fileno(), out.fileno(), err.fileno()], cwd) as process:
            code = process.wait(timeout)
        printed = [_read(file, text) for file in (out, err)] if capture_output else [None, None]
    done = subprocess.CompletedProcess(words, code, *printed)
    if check:
        done.check_returncode()
    return done


class Process:
    """A running command."""

    def __init__(self, words: Sequence[str], reply: socket.socket) -> None:
        self._words = words
        self._reply = reply
        self._lines = reply.makefile("r")
        self.pid = int(self._lines.readline())

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_error: object) -> None:
        self._lines.close()
        self._reply.close()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; kill the command if it takes longer."""
        self._reply.settimeout(timeout)
        try:
            return int(self._lines.readline())
        except TimeoutError as error:
            os.kill(self.pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(list(self._words), timeout or 0) from error


def start(
    words: Sequence[str],
    environment: Mapping[str, str],
    files: Sequence[int],
    cwd: str | os.PathLike[str] | None = None,
) -> Process:
    """Start `holdfast` with these arguments; `files` are the descriptors of its input, output and errors."""
    ours, theirs = socket.socketpair()
    with theirs, tempfile.TemporaryFile() as request:
        request.write(json.dumps([list(words), dict(environment), os.fspath(cwd or os.getcwd())]).encode("utf-8"))
        request.seek(0)
        socket.send_fds(_server()[1], [b"r"], [request.fileno(), *files, theirs.fileno()])
    return Process(words, ours)


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_AT_START)}


def _read(file: IO[bytes], text: bool) -> str | bytes:
    file.seek(0)
    data = file.read()
    return io.TextIOWrapper(io.BytesIO(data), locale.getpreferredencoding(False)).read() if text else data


@functools.cache
def _server() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the server of this process; it ends when its socket is closed, at the latest with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command, null = [sys.executable, __file__, str(theirs.fileno())], subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=null, stdout=null, pass_fds=[theirs.fileno()])
    return process, ours


def stop() -> None:
    """Stop the server of this process, if there is one."""
    if _server.cache_info().currsize:
        process, control = _server()
        _server.cache_clear()
        control.close()
        process.wait()


def _serve(control: socket.socket) -> None:
    """Fork a process for every request until the tests end."""
    for name in _LOADED:
        for module in pkgutil.iter_modules(importlib.import_module(name).__path__, f"{name}."):
            importlib.import_module(module.name)
    gc.freeze()  # so that forks copy fewer pages
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 5)
        if not message:
            break
        if not os.fork():
            control.close()
            _attend(*descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _attend(request: int, given: int, out: int, err: int, reply: int) -> None:
    """Run one command in a child, and report its process id and its exit code."""
    process = os.fork()
    if process:
        os.write(reply, b"%d\n" % process)
        _, status = os.waitpid(process, 0)
        with contextlib.suppress(BrokenPipeError):  # the test no longer waits
            os.write(reply, b"%d\n" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    with open(request, "rb") as file:
        words, environment, folder = json.load(file)
    for number, descriptor in enumerate((given, out, err)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.close(reply)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=stream is sys.stderr or stream.isatty())  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    sys.path[0] = folder
    sys.argv = ["holdfast", *words]
    runpy.run_module("holdfast", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
