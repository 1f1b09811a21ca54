"""`holdfast context`: what an agent should know when it starts, within a budget and within a time.

The workspace is looked up and what a few small files hold is read in any case. The time, which runs from the start of
the process, is for the rest: what is there by then is printed, what is not there is named, and the process ends at
once, whatever it is still reading. As a hook of another program it never fails and never complains.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec

from holdfast.cli import show
from holdfast.cli.common import common, open_root
from holdfast.errors import HoldfastError
from holdfast.formats import prompts
from holdfast.roots import is_address

if TYPE_CHECKING:
    from holdfast.memory import Memory

_WITHIN, _WITHIN_DATABASE = 300, 1500
"""Milliseconds; to load what speaks to a database and to connect takes most of what files need."""
_NOTHING = "Nothing to show yet: nothing was kept that an agent starts with."
_MARGIN = 0.04
"""Seconds to put together, print and end with."""
_INPUT = 1 << 16
_INPUT_SECONDS = 0.02
_LATE = "There was no time to read more. Use these names to see it, or give it more time: --within"
_BEHIND = "; if the index is behind: holdfast refresh"


class Wanted(msgspec.Struct, frozen=True):
    """What the command was asked for."""

    root: str | None
    workspace: str
    session: str
    run: str
    task: str
    budget: int
    folder: str = ""
    """Where the agent works, if somebody told."""


class Gathering(threading.Thread):
    """Has the parts that need small files alone, and gathers the others on the side; `found` grows."""

    def __init__(self, wanted: Wanted) -> None:
        from holdfast.tools import prompt
        from holdfast.tools.context import Context

        super().__init__(daemon=True)
        self._memory = memory = open_root(wanted.root)
        try:
            workspace = wanted.workspace or _workspace(memory, wanted.folder)
            context = Context(workspaceId=workspace, sessionId=wanted.session, runId=wanted.run, goal=wanted.task)
            self._parts = prompt.gather(memory.tools, context, wanted.budget)
            self.found = list(itertools.islice(self._parts, prompt.AT_ONCE))
        except BaseException:
            memory.close()
            raise
        self.error: Exception | None = None
        """Why it ended early."""
        self.gathered = threading.Event()
        """Set when all is there, or nothing more will come."""

    @property
    def late(self) -> str:
        """Say what helps when there was no time. What others write to files is not known before somebody looks."""
        return _LATE + (_BEHIND if self._memory.in_files or self._memory.waiting else "")

    def run(self) -> None:
        try:
            with self._memory:
                for part in self._parts:
                    self.found.append(part)
                self.gathered.set()
        except Exception as error:  # it belongs to who waits
            self.error = error
        finally:
            self.gathered.set()


@click.command()
@click.option("--workspace", default="", help="The workspace that the agent works in.")
@click.option("--session", default="", help="The session of the agent.")
@click.option("--run", default="", help="The run of the agent, whose own notes are shown.")
@click.option("--task", default="", help="What the agent is going to do: brings to mind what was kept about it.")
@click.option(
    "--budget", type=click.IntRange(1), default=prompts.BUDGET, show_default=True, help="Most tokens to print."
)
@click.option(
    "--within", type=click.IntRange(1), default=None,
    help="Milliseconds from the start of the process, after which nothing more is looked for;"
    f" default: {_WITHIN}, for a memory in a database {_WITHIN_DATABASE}.",
)  # fmt: skip
@click.option("--hook", is_flag=True, help="For a hook of an agent: never fails, and prints nothing but memory.")
@common
def context(root: str | None, as_json: bool, within: int | None, hook: bool, **given: Any) -> None:
    """Print what an agent should know when it starts: rules, long-term memory, the workspace with open plans and save
    points, notes of its run, what the task brings to mind, recent chat. What is quoted in it is information."""
    usual = _WITHIN_DATABASE if root and is_address(root) else _WITHIN
    end = _started() + (within or usual) / 1000 - _MARGIN
    if not hook:
        _print(Wanted(root, **given), end, as_json=as_json, hook=False)
        return
    try:
        told = _hook_input()
        given["session"] = given["session"] or told.get("session_id", "")
        _print(Wanted(root, **given, folder=told.get("cwd", "")), end, as_json=as_json, hook=True)
    except BaseException:  # an agent must start, whatever becomes of its memory
        _leave()


def _print(wanted: Wanted, end: float, *, as_json: bool, hook: bool) -> None:
    """Print what is there in time; leave the process if something is still under way."""
    work = Gathering(wanted)
    work.start()
    work.gathered.wait(max(0.0, end - time.monotonic()))
    late = not work.gathered.is_set()
    if work.error and not hook:
        raise work.error
    found = list(work.found)
    note = prompts.missing(found, work.late) if late else ""
    made = prompts.together(found, wanted.budget, [note] if note else [])
    if as_json:
        ms = round((time.monotonic() - _started()) * 1000)
        warnings = [warning for each in found for warning in each.warnings] + ([note] if note else [])
        show.as_json(msgspec.structs.asdict(made) | {"warnings": warnings, "ms": ms})
    elif made.text and (made.parts or late or not hook):
        _write(made.text)
    elif not hook:
        _write(_NOTHING)
    work.join(max(0.0, end - time.monotonic()))  # so that what was read need not be read again
    if late or hook or work.is_alive():
        _leave()


def _write(text: str) -> None:
    text = show.printable(text) if sys.stdout.isatty() else text
    sys.stdout.buffer.write(f"{text}\n".encode("utf-8", "replace"))


def _leave() -> NoReturn:
    """End the process now; what else runs in it is only reading."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(0)


def _started() -> float:
    """Return when the process started, on the monotonic clock; where nobody tells, by the work that it has done."""
    used = time.process_time()
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        if used - 0.1 <= age < 3600:
            used = age
    return time.monotonic() - used


def _hook_input() -> dict[str, str]:
    """Return what the calling program tells on standard input, if it does so at once: names and texts."""
    if sys.stdin is None or sys.stdin.isatty():
        return {}
    data, end = b"", time.monotonic() + _INPUT_SECONDS
    with contextlib.suppress(OSError, ValueError, RecursionError, msgspec.DecodeError):
        while len(data) < _INPUT and select.select([0], [], [], max(0.0, end - time.monotonic()))[0]:
            part = os.read(0, _INPUT)
            if not part:
                break
            data += part
        told = msgspec.json.decode(data)
        return {name: value for name, value in told.items() if isinstance(value, str)} if isinstance(told, dict) else {}
    return {}


def _workspace(memory: Memory, folder: str) -> str:
    """Return the workspace that is named like the folder of a project, "" when none is."""
    with contextlib.suppress(HoldfastError):
        return memory.scopes.resolve(os.path.basename(folder.rstrip("/"))).path if folder else ""
    return ""
