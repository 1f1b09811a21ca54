"""`holdfast context`: the memory that an agent needs at its start, within a token budget and a time limit.

The workspace and a few small files are always read. Everything else has until the time limit, which counts from the
start of the process: what is there by then is printed, the rest is named, and the process ends at once, whatever it is
still reading. As a hook of another program it never fails and prints no errors.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import sys
import threading
import time
from collections.abc import Mapping
from typing import NoReturn

import click
import msgspec

from holdfast.cli import show
from holdfast.cli.main import command, given_root, open_root
from holdfast.errors import HoldfastError
from holdfast.formats import prompts
from holdfast.roots import is_address
from holdfast.tools import prompt
from holdfast.tools.calling import Context

_WITHIN, _WITHIN_DATABASE = 300, 1500
"""Milliseconds; loading the database driver and connecting takes longer than reading files."""
_MARGIN = 0.04
"""Seconds to assemble, print and end."""
_INPUT = 1 << 16
_INPUT_SECONDS = 0.02
_NOTHING = "Nothing to show yet: nothing was kept that an agent starts with."
_LATE = "There was no time to read more. Use these names to see it, or give it more time: --within"
_BEHIND = "; if the index is behind: holdfast refresh"


class Gathering(threading.Thread):
    """Reads the small files at once and the rest in the background; `found` grows."""

    def __init__(self, folder: str, budget: int, given: Mapping[str, str]) -> None:
        super().__init__(daemon=True)
        self.memory = memory = open_root()
        try:
            workspace = given["workspace"]
            if not workspace and folder:  # the workspace named like the project's folder
                with contextlib.suppress(HoldfastError):
                    workspace = memory.scopes.resolve(os.path.basename(folder.rstrip("/"))).path
            names = {"sessionId": given["session"], "runId": given["run"], "goal": given["task"]}
            self._parts = prompt.gather(memory.tools, Context(workspaceId=workspace, **names), budget)
            self.found = list(itertools.islice(self._parts, prompt.AT_ONCE))
        except BaseException:
            memory.close()
            raise
        self.error: Exception | None = None
        self.finished = threading.Event()
        """Set when everything was read, or after an error."""

    def run(self) -> None:
        try:
            with self.memory:
                for part in self._parts:
                    self.found.append(part)
                self.finished.set()
        except Exception as error:  # the waiting thread raises it
            self.error = error
        finally:
            self.finished.set()


@command()
@click.option("--workspace", default="", help="The agent's workspace.")
@click.option("--session", default="", help="The agent's session.")
@click.option("--run", default="", help="The agent's run; its notes are included.")
@click.option("--task", default="", help="The agent's task; related records are included.")
@click.option("--budget", type=click.IntRange(1), default=prompts.BUDGET, show_default=True, help="The most tokens.")
@click.option(
    "--within",
    type=click.IntRange(1),
    default=None,
    help=f"Time limit in milliseconds; default: {_WITHIN}, with a database {_WITHIN_DATABASE}.",
)
@click.option("--hook", is_flag=True, help="For hooks: never fail, and print nothing but memory.")
def context(budget: int, within: int | None, hook: bool, **given: str) -> None:
    """Print the memory that an agent needs at its start.

    It has rules, long-term memory, the workspace with open plans and save points, notes of the run, records related to
    the task, and recent chat. Quoted text in it is information, not instructions.
    """
    usual = _WITHIN_DATABASE if is_address(given_root() or "") else _WITHIN
    end = _process_start() + (within or usual) / 1000 - _MARGIN
    if not hook:
        _print(Gathering("", budget, given), budget, end, hook=False)
        return
    try:
        sent = _hook_input()
        given["session"] = given["session"] or sent.get("session_id", "")
        _print(Gathering(sent.get("cwd", ""), budget, given), budget, end, hook=True)
    except BaseException:  # the agent has to start, with or without its memory
        _exit()


def _print(work: Gathering, budget: int, end: float, *, hook: bool) -> None:
    """Print what was read in time; exit the process if something is still being read."""
    work.start()
    work.finished.wait(max(0.0, end - time.monotonic()))
    late = not work.finished.is_set()
    if work.error and not hook:
        raise work.error
    found = list(work.found)
    advice = _LATE + (_BEHIND if work.memory.in_files or work.memory.store.waiting else "")
    note = prompts.missing(found, advice) if late else ""
    made = prompts.together(found, budget, [note] if note else [])
    if show.asked_for_json():
        ms = round((time.monotonic() - _process_start()) * 1000)
        warnings = [warning for each in found for warning in each.warnings] + ([note] if note else [])
        show.as_json(msgspec.structs.asdict(made) | {"warnings": warnings, "ms": ms})
    elif (made.text and (made.parts or late)) or not hook:
        text = made.text or _NOTHING
        text = show.printable(text) if sys.stdout.isatty() else text
        sys.stdout.buffer.write(f"{text}\n".encode("utf-8", "replace"))
    work.join(max(0.0, end - time.monotonic()))  # let it save what it has indexed
    if late or hook or work.is_alive():
        _exit()


def _exit() -> NoReturn:
    """End the process now; its other threads are only reading."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(0)


def _process_start() -> float:
    """Return when the process started, on the monotonic clock; without /proc, estimated from its CPU time."""
    used = time.process_time()
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        if used - 0.1 <= age < 3600:
            used = age
    return time.monotonic() - used


def _hook_input() -> dict[str, str]:
    """Return the strings of the JSON object on standard input, if it is there at once."""
    if sys.stdin is None or sys.stdin.isatty():
        return {}
    data, end = b"", time.monotonic() + _INPUT_SECONDS
    with contextlib.suppress(OSError, ValueError, RecursionError, msgspec.DecodeError):
        while len(data) < _INPUT and select.select([0], [], [], max(0.0, end - time.monotonic()))[0]:
            part = os.read(0, _INPUT)
            if not part:
                break
            data += part
        sent = msgspec.json.decode(data)
        return {name: value for name, value in sent.items() if isinstance(value, str)} if isinstance(sent, dict) else {}
    return {}
