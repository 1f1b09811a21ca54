"""`holdfast hook`: run by the hooks of a client before compaction, when the agent stops, and when the session ends.

Before compaction and at the end, a detached process imports the transcript. When the agent stops, it is asked to save
what it learned: once per session, and not if the session was short, saved something, or is run by a program. A hook
opens no memory, never fails, prints no errors, and ends within half a second.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any, NoReturn

import click
import msgspec

from holdfast.cli.main import command, given_root
from holdfast.formats import transcripts
from holdfast.model import names

WITHIN = 450
"""Milliseconds from the start of the process; the client waits for it."""
ASK = (
    "Before you finish: did this conversation lead to a decision, a lesson or a fact that a later one will need? "
    "Save each with the holdfast tool remember (kind: decision, lesson, fact or note). If work is unfinished, save it "
    "with createState. Leave out what the code or its history says. If there is nothing to save, say so in one line. "
    "This is asked once per session."
)
_CLIENTS = ("claude-code", "codex")
_IMPORTED = ("PreCompact", "SessionEnd")
_INPUT = 1 << 16
_INPUT_SECONDS = 0.1
_READ = 8 << 20
"""Bytes of a transcript that are checked, from its end."""
_SHORT = 10
"""A session with fewer turns is not worth asking about."""
_DAYS = 90
"""How long it is remembered that a session was asked."""
_SAVES = "remember|revise|save_learning|createState|save_skill|set_plan_status|memory_(?:write|learn|append)"
_SAVED = re.compile(
    rf"^(?:mcp__)?holdfast__(?:(?:{_SAVES}) |useTools .*\"tool\": ?\"(?:{_SAVES})\")"
    r"|\bholdfast (?:remember|put|state create|learnings save)\b"
    r"|^(?:Edit|MultiEdit|Write|apply_patch) .*(?:decisions|lessons)\.md",
    re.MULTILINE,
)
_NAMED = re.compile(rb"holdfast|decisions\.md|lessons\.md")
_PROGRAM = re.compile(rb'"entrypoint": ?"sdk-|"originator": ?"codex_exec"')
"""In the transcript of a session that another program runs: that program reads the last answer."""


@command()
@click.argument("client", type=click.Choice(_CLIENTS))
@click.option("--workspace", default="", help="Workspace of the transcripts.")
@click.option("--within", type=click.IntRange(1), default=WITHIN, show_default=True, help="Time limit in milliseconds.")
def hook(client: str, workspace: str, within: int) -> None:
    """Keep the transcript of a session of CLIENT, and ask the agent to save.

    For the hooks that `holdfast install CLIENT --hook` adds. It reads the JSON that CLIENT sends on standard input.
    """
    try:
        sent = read_input()
        path, event = text(sent, "transcript_path"), text(sent, "hook_event_name")
        if event in _IMPORTED and path:
            _import(client, path, workspace, text(sent, "cwd"))
        elif event == "Stop" and sent.get("stop_hook_active") is not True:
            end_within(within)
            if asks(sent):
                sys.stdout.write(msgspec.json.encode({"decision": "block", "reason": ASK}).decode() + "\n")
    finally:
        end_now()


def end_within(milliseconds: int) -> None:
    """End the process, whatever it does, so long after its start."""
    left = process_start() + milliseconds / 1000 - time.monotonic()
    timer = threading.Timer(max(0.0, left), os._exit, (0,))
    timer.daemon = True
    timer.start()


def end_now() -> NoReturn:
    """End the process now; its other threads are only reading."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(0)


def process_start() -> float:
    """Return when the process started, on the monotonic clock; without /proc, estimated from its CPU time."""
    used = time.process_time()
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        if used - 0.1 <= age < 3600:
            used = age
    return time.monotonic() - used


def read_input() -> dict[str, Any]:
    """Return the JSON object on standard input, if it is there at once."""
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
        return sent if isinstance(sent, dict) else {}
    return {}


def text(sent: dict[str, Any], name: str) -> str:
    value = sent.get(name)
    return value if isinstance(value, str) else ""


def asks(sent: dict[str, Any]) -> bool:
    """Decide whether to ask the agent of a session to save what it learned, and record it if so."""
    session = text(sent, "session_id")
    if not session:
        return False
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    folder = os.path.join(state, "holdfast", "asked")
    mark = os.path.join(folder, names.unique(session, "session"))
    if os.path.exists(mark):
        return False
    with open(text(sent, "transcript_path"), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _READ))
        data = file.read(_READ)
    saved = bool(_PROGRAM.search(data)) or any(_SAVED.search(said) for said in _said(data, _NAMED))
    if not saved and sum(1 for _ in islice(_said(data), _SHORT)) < _SHORT:
        return False
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for entry in os.scandir(folder):
        if entry.stat().st_mtime < time.time() - _DAYS * 86_400:
            os.unlink(entry)
    with open(mark, "x"):  # fails if another hook of this session was first
        return not saved


def _said(data: bytes, only: re.Pattern[bytes] | None = None) -> Iterator[str]:
    """Yield the text of each turn of a transcript, of lines that contain a pattern if given."""
    for line in data.splitlines():
        if only is None or only.search(line):
            values = transcripts.parse(line)
            for value in values if isinstance(values, list) else ():
                for turn in transcripts.turns(value):
                    yield turn["text"]


def _import(client: str, path: str, workspace: str, folder: str) -> None:
    """Import a transcript in a process that outlives this one."""
    words = [sys.executable, "-m", "holdfast", "import", client, path]
    words += ["--workspace", workspace] if workspace else ["--project", folder] if folder else []
    environment = os.environ | ({"HOLDFAST_ROOT": root} if (root := given_root()) else {})
    nothing = subprocess.DEVNULL
    subprocess.Popen(
        words, stdin=nothing, stdout=nothing, stderr=nothing, env=environment, start_new_session=True, close_fds=True
    )
