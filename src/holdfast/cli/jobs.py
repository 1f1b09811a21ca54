"""The scheduler: `jobs run` claims the slots that are due and runs them, `jobs log` shows the results.

A slot is claimed before it is run, so that each is run by one scheduler, however many there are. A job runs the owner's
command, without a shell; without a command, its message is added to the chat history. Jobs run one after the other. A
failing command stops nothing. If the program does not exist, no slot is claimed. A signal ends the scheduler as soon as
the running command has ended.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from holdfast import roots
from holdfast.cli import show
from holdfast.cli.main import command, open_root
from holdfast.errors import HoldfastError, Invalid, Unavailable
from holdfast.memories.jobs import MOST_OUTPUT, Due, Ended, counted, fault, is_more, slot_text
from holdfast.memory import Memory
from holdfast.model.names import amount
from holdfast.model.times import local, utc_now
from holdfast.tools.tasks import missed_data

_POLL_SECONDS = 2.0
"""The longest time between two checks for new or changed jobs."""
_GRACE_SECONDS = 2.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
Event = dict[str, Any]


@command()
@click.option("--once", is_flag=True, help="Run the jobs that are due now, and end.")
@click.option("--command", default="", help="Program to run for a job, instead of [jobs] command.")
def run(once: bool, command: str) -> None:
    """Run jobs as they become due, until a signal comes.

    Each slot is run at most once, by one scheduler. Of several missed slots the newest is run and the others are
    reported. Without a command, the message is added to the chat history. In a pipe, or with --json, every event is
    one line of JSON.

    A command runs in the root. Relative paths of programs start from this folder, those of [jobs] command from the
    root. For a memory in a database both are this folder, and HOLDFAST_ROOT has the address without a password.
    With --once the exit code is 1 if a job failed.
    """
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise Invalid(f"--command cannot be split into words: {error}.", "Close the quotes.") from None
    in_json = show.wants_json()

    def on_event(event: Event) -> None:
        known = {name: value for name, value in event.items() if value is not None}
        try:
            click.echo(msgspec.json.encode(known) if in_json else show.printable(_sentence(event)))
        except BrokenPipeError:  # the scheduler goes on after the reader has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    with open_root() as memory:
        if not words and "jobs.command" in roots.ignored(memory.tree.location, roots.settings_text(memory.tree)):
            what = "holdfast.toml names a command for jobs, which this user has not trusted; no job was run."
            raise Invalid(what, f"Check it with holdfast settings, then run: holdfast trust {memory.root}")
        folder = memory.root if memory.in_files and not words else os.getcwd()
        ended = Scheduler(memory, words or memory.settings.jobs.command, folder, on_event).serve(once=once)
    if once and not (ended or in_json):
        click.echo("Nothing is due.")
    if once and any(status != "done" for status in ended):
        sys.exit(1)


def _sentence(event: Event) -> str:
    name, slot = event["event"], local(event["slot"]) if "slot" in event else ""
    what = f"{name}: {event.get('error', '')}"
    if name == "missed":
        missed = event["missed"]
        what = f"missed {f'{counted(missed)} slots' if is_more(missed) else amount(missed, 'slot')} before {slot}"
    elif name == "started":
        what = f"started for {slot}"
    elif name == "finished":
        code = f" with {event['exit']}" if event["exit"] else ""
        head = " ".join(event["output"].split())[:200]
        what = f"{event['status']}{code} after {event['seconds']:.1f} s" + (f": {head}" if head else "")
    elif name == "unfinished":
        what = f"was started for {slot}, and no end was recorded; it is not run again"
    about = f"{event.get('job', '')} {event.get('name', '')}".strip()
    return "  ".join(part for part in (local(utc_now()), about, what) if part)


@command()
@click.argument("id", required=False, default="")
@click.option("-n", "--count", default=20, show_default=True, type=click.IntRange(min=1), help="How many.")
def log(id: str, count: int) -> None:
    """Print the last runs of the jobs, or of ID, oldest first."""
    with open_root() as memory:
        found = memory.jobs.log(count, id)
    runs = [msgspec.to_builtins(one) | missed_data(one.missed) for one in found]
    rows = []
    for one in found:
        ended = (one.status, "" if one.exit is None else one.exit, f"{one.seconds:.1f}", counted(one.missed))
        rows.append((local(one.slot), one.job, one.name, *ended, " ".join(one.output.split())[:200]))
    columns = ("slot", "job", "name", "ended", "exit", "seconds", "missed", "output")
    show.listing(runs, "No job was run yet.", columns, rows, whole=("job",))


class Scheduler:
    """Runs the jobs of one memory with the owner's command; `on_event` gets every event."""

    def __init__(self, memory: Memory, command: Sequence[str], folder: str, on_event: Callable[[Event], None]) -> None:
        self._memory = memory
        self._jobs = memory.jobs
        self._command = command
        self._folder = folder
        self._on_event = on_event
        self._received: queue.SimpleQueue[int] = queue.SimpleQueue()
        """Signals; this kind of queue is the only one that a handler may use."""
        self._reported: set[str] = set()

    def serve(self, *, once: bool = False) -> list[str]:
        """Run what is due and, unless `once`, what becomes due, until a signal comes; return how the jobs ended."""
        for run in self._jobs.unfinished():
            known = {"job": run.job, "name": run.name, "slot": run.slot, "time": run.time}
            self._on_event({"event": "unfinished", **known})
        self._resolve()
        with contextlib.ExitStack() as stack:
            for number in _SIGNALS:
                before = signal.signal(number, lambda received, _frame: self._received.put(received))
                stack.callback(signal.signal, number, before)
            if once:
                return self._run_due()
            while self._received.empty():
                seconds = _POLL_SECONDS
                try:
                    self._run_due()
                    now = datetime.now(UTC)
                    slots = [slot for job in self._jobs.all() if (slot := self._jobs.next(job, now))]
                    seconds = min([seconds, *(max(0.0, (slot - now).total_seconds()) for slot in slots)])
                except HoldfastError as error:  # a full disk, or a locked log: report it, and try again
                    self._on_event({"event": "error", "error": str(error)})
                with contextlib.suppress(queue.Empty):
                    self._received.get(timeout=seconds)
                    break
        return []

    def _resolve(self) -> list[str]:
        """Return the command with the absolute path of its program, which is searched from the folder if relative."""
        if not self._command:
            return []
        program, *arguments = self._command
        is_path = bool(os.path.dirname(program))
        wanted = os.path.join(self._folder, program) if is_path else program
        found = shutil.which(wanted)
        if found is None:
            where = os.path.normpath(wanted) if is_path else f"{wanted} (on the PATH)"
            raise Unavailable(
                f"The program {where} was not found or is not executable; no job was started.",
                "Name a program on the PATH, or give the path of an executable file.",
            )
        return [os.path.abspath(found), *arguments]

    def _run_due(self) -> list[str]:
        now, statuses = datetime.now(UTC), []
        for job in self._jobs.all():
            problem = fault(job)
            if problem and f"{job.id} {problem}" not in self._reported:
                self._reported.add(f"{job.id} {problem}")
                self._on_event({"event": "fault", "job": job.id, "name": job.name, "error": problem})
        for due in self._jobs.due(now):
            if not self._received.empty():
                break
            words = self._resolve()
            if not self._jobs.claim(due.job, due.slot, due.missed):  # another scheduler has claimed it
                continue
            about = {"job": due.job.id, "name": due.job.name, "slot": slot_text(due.slot)}
            if due.missed:
                self._on_event({"event": "missed", **about, **missed_data(due.missed)})
            self._on_event({"event": "started", **about})
            begin = time.monotonic()
            ended = self._execute(due, words)
            ended = msgspec.structs.replace(ended, seconds=round(time.monotonic() - begin, 3))
            self._jobs.finish(due.job, due.slot, ended)
            self._on_event({"event": "finished", **about, **msgspec.structs.asdict(ended)})
            statuses.append(ended.status)
        return statuses

    def _execute(self, due: Due, words: Sequence[str]) -> Ended:
        """Run the owner's program with the message as its input; without one, add the message to the chat history."""
        if not words:
            fields = {"role": "user", "channel": due.job.channel, "sender_id": f"job:{due.job.name}"}
            operation = f"job:{due.job.id}@{slot_text(due.slot)}"
            try:
                self._memory.put("message", due.job.message, fields=fields, op_id=operation)
            except HoldfastError as error:
                return Ended(status="failed", output=str(error))
            return Ended(status="done", output=f"added to the chat history for {due.job.channel}")
        environment = os.environ | {
            "HOLDFAST_JOB_ID": due.job.id,
            "HOLDFAST_JOB_NAME": due.job.name,
            "HOLDFAST_JOB_CHANNEL": due.job.channel,
            "HOLDFAST_JOB_SLOT": slot_text(due.slot),
            "HOLDFAST_ROOT": self._memory.root,
        }
        try:
            with tempfile.TemporaryFile() as message:
                message.write(due.job.message.encode())
                message.seek(0)
                folder = self._memory.root if self._memory.in_files else None
                pipes: dict[str, Any] = {"stdin": message, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
                process = subprocess.Popen(words, **pipes, env=environment, cwd=folder, start_new_session=True)
        except (OSError, ValueError) as error:
            return Ended(status="failed", output=f"{words[0]} could not be started: {error}")
        return _wait(process, self._memory.settings.jobs.timeout_seconds)


def _wait(process: subprocess.Popen[bytes], most_seconds: float) -> Ended:
    """Wait for a program; after the timeout, end it and its process group: SIGTERM first, then SIGKILL."""
    head = bytearray()

    def read_head() -> None:
        assert process.stdout is not None  # it is a pipe
        with contextlib.suppress(OSError, ValueError), process.stdout as pipe:
            while part := os.read(pipe.fileno(), 65_536):
                head.extend(part[: MOST_OUTPUT - len(head)])

    reader = threading.Thread(target=read_head, daemon=True)
    reader.start()
    timed_out = False
    try:
        process.wait(most_seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
        for wanted, grace in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, wanted)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace)
    reader.join(_GRACE_SECONDS)  # a process that it started may keep the output open
    output = bytes(head).decode("utf-8", "replace").strip()
    if timed_out:
        output = f"ended after {most_seconds:g} seconds\n{output}".strip()
    status = "timeout" if timed_out else "failed" if process.returncode else "done"
    return Ended(status=status, exit=process.returncode, output=output)
