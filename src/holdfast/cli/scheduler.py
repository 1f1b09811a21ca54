"""The scheduler: takes the slots that are due, runs them, waits for the next one.

A slot is taken before anything is done for it, and each is run by one scheduler, however many there are. What runs is
the owner's command, without a shell, or else the message is added to the chat history. One job runs at a time.
A failing command stops nothing. A signal ends the scheduler when the running command has ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import IO, Any

from holdfast.door import Memory
from holdfast.errors import HoldfastError
from holdfast.memory._due import fault, text_of
from holdfast.memory.jobs import Due, Ended, Run

LOOK_SECONDS = 2.0
"""How often at least a waiting scheduler looks for jobs that are new or changed."""
_MOST_OUTPUT = 2_000
_GRACE_SECONDS = 2.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
Tell = Callable[[dict[str, Any]], None]


class Scheduler:
    """Runs the jobs of one memory; `tell` gets every event."""

    def __init__(self, memory: Memory, command: Sequence[str], tell: Tell) -> None:
        self._memory = memory
        self._jobs = memory.jobs
        self._command = tuple(command)
        self._tell = tell
        self._stopped = False
        self._told: set[str] = set()

    def report(self) -> None:
        """Tell what was taken before and has no end; nothing of it is run again."""
        for run in self._jobs.unfinished():
            self._tell(_event("unfinished", run))

    def once(self, now: datetime | None = None) -> int:
        """Run all that is due at this moment, and return how many slots that were."""
        now, count = now or datetime.now(UTC), 0
        self._faults()
        while not self._stopped and (waiting := self._jobs.due(now)):
            first = waiting[0]  # the others are looked at again: somebody may take them meanwhile
            if self._jobs.claim(first.job, first.slot, first.missed):
                self._run(first)
                count += 1
        return count

    def serve(self, *, once: bool = False) -> None:
        """Run what is due, and what becomes due unless `once`, until a signal comes."""
        with _signals(self._stop) as wake:
            if once:
                self.once()
                return
            while not self._stopped:
                try:
                    self.once()
                    seconds = self._until_next()
                except HoldfastError as error:  # a full disk, a log that is held: tell it, and look again
                    self._tell({"event": "error", "error": str(error)})
                    seconds = LOOK_SECONDS
                select.select([wake], [], [], seconds)

    def _stop(self) -> None:
        self._stopped = True

    def _until_next(self) -> float:
        now = datetime.now(UTC)
        slots = [slot for job in self._jobs.all() if (slot := self._jobs.next(job, now))]
        return min([LOOK_SECONDS, *(max(0.0, (slot - now).total_seconds()) for slot in slots)])

    def _faults(self) -> None:
        """Tell once of each job that can never be due."""
        for job in self._jobs.all():
            what = fault(job)
            if what and f"{job.id} {what}" not in self._told:
                self._told.add(f"{job.id} {what}")
                self._tell({"event": "fault", "job": job.id, "name": job.name, "error": what})

    def _run(self, due: Due) -> None:
        about = {"job": due.job.id, "name": due.job.name, "slot": text_of(due.slot)}
        if due.missed:
            self._tell({"event": "missed", **about, "missed": due.missed})
        self._tell({"event": "started", **about})
        begin = time.monotonic()
        ended = self._execute(due) if self._command else self._say(due)
        seconds = round(time.monotonic() - begin, 3)
        ended = Ended(status=ended.status, exit=ended.exit, output=ended.output, seconds=seconds)
        self._jobs.finish(due.job, due.slot, ended)
        told = {"status": ended.status, "exit": ended.exit, "output": ended.output, "seconds": ended.seconds}
        self._tell({"event": "finished", **about, **told})

    def _say(self, due: Due) -> Ended:
        """Add the message to the chat history, where the agent finds it."""
        slot = text_of(due.slot)
        fields = {"role": "user", "channel": due.job.channel, "sender_id": f"job:{due.job.name}"}
        try:
            self._memory.put("message", due.job.message, fields=fields, op_id=f"job:{due.job.id}@{slot}")
        except HoldfastError as error:
            return Ended(status="failed", output=str(error))
        return Ended(status="done", output=f"added to the chat history for {due.job.channel}")

    def _execute(self, due: Due) -> Ended:
        """Run the owner's command with the message on its standard input."""
        environment = os.environ | {
            "HOLDFAST_JOB_ID": due.job.id,
            "HOLDFAST_JOB_NAME": due.job.name,
            "HOLDFAST_JOB_CHANNEL": due.job.channel,
            "HOLDFAST_JOB_SLOT": text_of(due.slot),
            "HOLDFAST_ROOT": self._memory.root,
        }
        with tempfile.TemporaryFile() as message:
            message.write(due.job.message.encode())
            message.seek(0)
            try:
                process = subprocess.Popen(
                    self._command, stdin=message, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
                    cwd=self._memory.root, start_new_session=True,
                )  # fmt: skip
            except (OSError, ValueError) as error:
                return Ended(status="failed", output=f"{self._command[0]} could not be started: {error}")
        return _watched(process, self._memory.settings.jobs.timeout_seconds)


def _watched(process: subprocess.Popen[bytes], most_seconds: float) -> Ended:
    """Wait for a command, and end it with all that it started when it takes too long."""
    assert process.stdout is not None  # it was asked for
    head = bytearray()
    reader = threading.Thread(target=_read_head, args=(process.stdout, head), daemon=True)
    reader.start()
    status = ""
    try:
        process.wait(most_seconds)
    except subprocess.TimeoutExpired:
        status = "timeout"
        _end(process)
    reader.join(_GRACE_SECONDS)  # what it left running may hold its output open
    output = bytes(head).decode("utf-8", "replace").strip()
    if status:
        output = f"ended after {most_seconds:g} seconds\n{output}".strip()
    return Ended(status=status or ("failed" if process.returncode else "done"), exit=process.returncode, output=output)


def _read_head(pipe: IO[bytes], head: bytearray) -> None:
    """Read all that a command prints, and keep the beginning of it."""
    with contextlib.suppress(OSError, ValueError), pipe:
        while part := os.read(pipe.fileno(), 65_536):
            head += part[: _MOST_OUTPUT - len(head)]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and its process group: asked first, then at once."""
    for wanted in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, wanted)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS if wanted == signal.SIGTERM else None)
    process.wait()


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[int]:
    """Call `stop` when a signal to end comes; give a descriptor that can be read then."""
    wake, told = os.pipe()
    os.set_blocking(told, False)

    def note(_number: int, _frame: object) -> None:
        stop()
        with contextlib.suppress(OSError):
            os.write(told, b".")

    before = {wanted: signal.signal(wanted, note) for wanted in _SIGNALS}
    try:
        yield wake
    finally:
        for wanted, handler in before.items():
            signal.signal(wanted, handler)
        os.close(wake)
        os.close(told)


def _event(name: str, run: Run) -> dict[str, Any]:
    return {"event": name, "job": run.job, "name": run.name, "slot": run.slot, "time": run.time}
