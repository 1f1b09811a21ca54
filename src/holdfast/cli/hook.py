"""The commands that the hooks of a client run: `context` when a session starts, `hook` later. Both exit with 0 on
every error.

`context` prints the memory that an agent needs at its start, within a token budget and, for hooks, a time limit, which
counts from the start of the process. The workspace and a few small files are always read. When the time is over, what
was read is printed, the rest is named, and the process ends. After a compaction, it also asks the agent to save what it
learned.

`hook` is run before compaction, when the agent stops, and when the session ends. Before compaction and at the end, a
detached process imports the transcript. When the agent stops, it is asked to save what it learned: once per session,
and not if the session was short, saved something, or is run by a program. It opens no memory, prints no errors, and
ends within half a second.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import click
import msgspec

from holdfast.cli import show
from holdfast.cli.main import command, given_root, open_root
from holdfast.formats import prompts, transcripts
from holdfast.model import names
from holdfast.model.patterns import regex

WITHIN = 450
"""Milliseconds from the start of the process; the client waits for it."""
ASK = (
    "Before you finish: did this conversation lead to a decision, a lesson or a fact that a later one will need? "
    "Save each with the holdfast tool remember (kind: decision, lesson, fact or note). If work is unfinished, save it "
    "with createState. Leave out what the code or its history says. If there is nothing to save, say so in one line. "
    "This is asked once per session."
)
_MARGIN = 0.04
"""Seconds to assemble, print and end."""
_NOTHING = "Nothing to show yet: this memory has nothing for the start of an agent."
_LATE = "The time limit was reached. Read the rest with these names, or raise the limit: --within"
_BEHIND = "; if the index is behind: holdfast refresh"
_CLIENTS = ("claude-code", "codex")
_IMPORTED = ("PreCompact", "SessionEnd")
_INPUT = 1 << 16
_INPUT_SECONDS = 0.1
_READ = 8 << 20
"""Bytes of a transcript that are checked, from its end."""
_SHORT = 10
"""A session with fewer turns is not asked."""
_DAYS = 90
"""How long it is remembered that a session was asked."""
_SAVES = "remember|revise|save_learning|createState|save_skill|set_plan_status|memory_(?:write|learn|append)"
_SAVED = regex(
    rf"^(?:mcp__)?holdfast__(?:(?:{_SAVES}) |useTools .*\"tool\": ?\"(?:{_SAVES})\")"
    r"|\bholdfast (?:remember|put|add|save|state create|learnings save)\b"
    r"|^(?:Edit|MultiEdit|Write|apply_patch) .*(?:decisions|lessons)\.md",
    re.MULTILINE,
)
_NAMED = regex(rb"holdfast|decisions\.md|lessons\.md")
_PROGRAM = regex(rb'"entrypoint": ?"sdk-|"originator": ?"codex_exec"')
"""Found in the transcript of a session that another program runs: a question would replace its answer."""


@command()
@click.argument("client", type=click.Choice(_CLIENTS))
@click.option("--workspace", default="", help="Workspace of the transcripts.")
@click.option("--within", type=click.IntRange(1), default=WITHIN, show_default=True, help="Time limit in milliseconds.")
def hook(client: str, workspace: str, within: int) -> None:
    """Keep the transcript of a session; ask the agent to save.

    For the hooks that `holdfast install CLIENT --hook` adds. It reads the JSON that CLIENT sends on standard input.
    """
    try:
        sent = read_input()
        path, event = text(sent, "transcript_path"), text(sent, "hook_event_name")
        if event in _IMPORTED and path:
            import subprocess

            folder, nothing = text(sent, "cwd"), subprocess.DEVNULL
            words = [sys.executable, "-m", "holdfast", "import", client, path]
            words += ["--workspace", workspace] if workspace else ["--project", folder] if folder else []
            environment = os.environ | ({"HOLDFAST_ROOT": root} if (root := given_root()) else {})
            pipes: dict[str, Any] = {"stdin": nothing, "stdout": nothing, "stderr": nothing}
            subprocess.Popen(words, **pipes, env=environment, start_new_session=True)  # it outlives this process
        elif event == "Stop" and sent.get("stop_hook_active") is not True:
            end_within(within)
            if asks(sent):
                sys.stdout.write(msgspec.json.encode({"decision": "block", "reason": ASK}).decode() + "\n")
    finally:
        end_now()


def end_within(milliseconds: int) -> None:
    """End the process this many milliseconds after its start."""
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
    age = used = time.process_time()
    with contextlib.suppress(OSError, ValueError, AttributeError), open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - (age if used - 0.1 <= age < 3600 else used)


def read_input() -> dict[str, Any]:
    """Return the JSON object on standard input, if it is there at once."""
    if sys.stdin is None or sys.stdin.isatty():
        return {}
    data, end = b"", time.monotonic() + _INPUT_SECONDS
    with contextlib.suppress(OSError, ValueError, RecursionError, msgspec.DecodeError):
        while len(data) < _INPUT and select.select([0], [], [], max(0.0, end - time.monotonic()))[0]:
            if not (part := os.read(0, _INPUT)):
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
    if not saved and sum(1 for _ in itertools.islice(_said(data), _SHORT)) < _SHORT:
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


# the memory at the start


@command()
@click.option("--workspace", default="", help="The agent's workspace; default: that of the folder.")
@click.option("--session", default="", help="The agent's session.")
@click.option("--run", default="", help="The agent's run; its notes are included.")
@click.option("--task", default="", help="The agent's task; related records are included.")
@click.option("--budget", type=click.IntRange(1), default=prompts.BUDGET, show_default=True, help="The most tokens.")
@click.option(
    "--within",
    type=click.IntRange(1),
    default=None,
    help=f"Time limit in milliseconds; default: none, for hooks {WITHIN}.",
)
@click.option("--hook", is_flag=True, help="For hooks: never fail, and print nothing but memory.")
def context(budget: int, within: int | None, hook: bool, **given: str) -> None:
    """Print the memory that an agent needs at its start.

    It has rules, long-term memory, the workspace with open plans and save points, notes of the run, records related to
    the task, and recent chat. Quoted text in it is information, not instructions.
    """
    if not hook:
        _context(os.getcwd(), budget, given, within, hook=False)
        return
    try:
        if not within:  # small files may take longer than a limit that was given
            end_within(WITHIN)
        sent = read_input()
        given["session"] = given["session"] or text(sent, "session_id")
        notes = []
        with contextlib.suppress(OSError):  # the transcript cannot be read, or the question not be recorded
            notes = [ASK] if sent.get("source") == "compact" and asks(sent) else []
        _context(text(sent, "cwd"), budget, given, within or WITHIN, notes, hook=True)
    finally:  # the agent must start even without its memory
        end_now()


def _context(
    folder: str, budget: int, given: Mapping[str, str], within: int | None, notes: Sequence[str] = (), *, hook: bool
) -> None:
    """Read and print the memory; when the time is over, print what was read by then and end the process."""
    from holdfast.tools import prompt  # here, so that the time limit of a hook includes it
    from holdfast.tools.calling import Context

    current, printing, printed = click.get_current_context(), threading.Lock(), False

    def finish(*, late: bool) -> None:
        nonlocal printed
        with printing, current.scope(cleanup=False):  # each thread has its own context of click
            if not printed:
                _print(list(found), budget, notes, _LATE + behind if late else "", hook=hook)
                printed = True
        if late:
            end_now()

    with contextlib.ExitStack() as stack, open_root() as memory:
        workspace = given["workspace"] or (memory.workspaces.around(folder) if folder else "")
        names = {"sessionId": given["session"], "runId": given["run"], "goal": given["task"]}
        parts = prompt.gather(memory.tools, Context(workspaceId=workspace, **names), budget)
        found = list(itertools.islice(parts, prompt.AT_ONCE))
        behind = _BEHIND if memory.in_files or memory.store.waiting else ""
        if within:
            left = process_start() + within / 1000 - _MARGIN - time.monotonic()
            timer = threading.Timer(max(0.0, left), finish, kwargs={"late": True})
            timer.daemon = True
            timer.start()
            stack.callback(timer.cancel)  # it may end the process until the index is saved
        found.extend(parts)
        finish(late=False)


def _print(found: list[prompts.Gathered], budget: int, notes: Sequence[str], advice: str, *, hook: bool) -> None:
    """Print what was read; with `advice` for more time, also the names of what was not."""
    missing = [note] if advice and (note := prompts.missing(found, advice)) else []
    made = prompts.together(found, budget, [*notes, *missing])
    if show.asked_for_json():
        ms = round((time.monotonic() - process_start()) * 1000)
        warnings = [warning for each in found for warning in each.warnings] + missing
        show.as_json(msgspec.structs.asdict(made) | {"warnings": warnings, "ms": ms})
    elif (made.text and (made.parts or advice or notes)) or not hook:
        text = made.text or _NOTHING
        text = show.printable(text) if sys.stdout.isatty() else text
        sys.stdout.buffer.write(f"{text}\n".encode("utf-8", "replace"))
