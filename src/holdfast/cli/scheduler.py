"""The scheduler: takes the slots that are due, runs them, waits for the next one.

A slot is taken before anything is done for it, and each is run by one scheduler, however many there are. What runs is
the owner's command, without a shell, or else the message is added to the chat history. One job runs at a time.
A failing command stops nothing; for a program that is not there no slot is taken. A signal ends the scheduler when the
running command has ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import IO, Any

import msgspec

from holdfast.errors import HoldfastError, Unavailable
from holdfast.memories.job_runs import MOST_OUTPUT, Ended, Run, slot_text
from holdfast.memories.jobs import Due, fault
from holdfast.memory import Memory
from holdfast.tools.jobs import told_missed

LOOK_SECONDS = 2.0
"""How often at least a waiting scheduler looks for jobs that are new or changed."""
_GRACE_SECONDS = 2.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
Tell = Callable[[dict[str, Any]], None]


class Command(msgspec.Struct, frozen=True):
    """What the owner wants to be run: a program with its arguments; nothing when there are no words."""

    words: tuple[str, ...]
    folder: str
    """Where a program that is named by a relative path is looked for."""

    def resolved(self) -> list[str]:
        """Return the words with the program as it can be started from any folder; Unavailable when it is not there."""
        if not self.words:
            return []
        name = self.words[0]
        wanted = os.path.join(self.folder, name) if os.path.dirname(name) else name
        found = shutil.which(wanted)
        if found is None:
            where = os.path.normpath(wanted) if os.path.dirname(name) else f"{name} (on the PATH)"
            raise Unavailable(
                f"The program {where} is not there, or may not be run; no job was started.",
                "Name one that is on the PATH, or give the path of a file that may be run.",
            )
        return [os.path.abspath(found), *self.words[1:]]


class Done(msgspec.Struct, frozen=True):
    """How many slots were run, and how many of them did not end well."""

    ran: int = 0
    failed: int = 0


class Scheduler:
    """Runs the jobs of one memory; `tell` gets every event."""

    def __init__(self, memory: Memory, command: Command, tell: Tell) -> None:
        self._memory = memory
        self._jobs = memory.jobs
        self._command = command
        self._tell = tell
        self._stopped = False
        self._told: set[str] = set()

    def report(self) -> None:
        """Tell what was taken before and has no end; nothing of it is run again."""
        for run in self._jobs.unfinished():
            self._tell(_event("unfinished", run))

    def once(self, now: datetime | None = None) -> Done:
        """Run all that is due at this moment."""
        now, ended = now or datetime.now(UTC), []
        self._faults()
        for due in self._jobs.due(now):
            if self._stopped:
                break
            words = self._command.resolved()
            if self._jobs.claim(due.job, due.slot, due.missed):  # unless somebody took it meanwhile
                ended.append(self._run(due, words))
        return Done(len(ended), sum(status != "done" for status in ended))

    def serve(self, *, once: bool = False) -> Done:
        """Run what is due, and what becomes due unless `once`, until a signal comes; `once` tells what became of it."""
        self._command.resolved()
        with _signals(self._stop) as wake:
            if once:
                return self.once()
            while not self._stopped:
                try:
                    self.once()
                    seconds = self._until_next()
                except HoldfastError as error:  # a full disk, a log that is held: tell it, and look again
                    self._tell({"event": "error", "error": str(error)})
                    seconds = LOOK_SECONDS
                select.select([wake], [], [], seconds)
        return Done()

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

    def _run(self, due: Due, words: Sequence[str]) -> str:
        """Run a slot that was taken, and return how it ended."""
        about = {"job": due.job.id, "name": due.job.name, "slot": slot_text(due.slot)}
        if due.missed:
            self._tell({"event": "missed", **about, **told_missed(due.missed)})
        self._tell({"event": "started", **about})
        begin = time.monotonic()
        ended = self._execute(due, words) if words else self._say(due)
        seconds = round(time.monotonic() - begin, 3)
        ended = Ended(status=ended.status, exit=ended.exit, output=ended.output, seconds=seconds)
        self._jobs.finish(due.job, due.slot, ended)
        told = {"status": ended.status, "exit": ended.exit, "output": ended.output, "seconds": ended.seconds}
        self._tell({"event": "finished", **about, **told})
        return ended.status

    def _say(self, due: Due) -> Ended:
        """Add the message to the chat history, where the agent finds it."""
        slot = slot_text(due.slot)
        fields = {"role": "user", "channel": due.job.channel, "sender_id": f"job:{due.job.name}"}
        try:
            self._memory.put("message", due.job.message, fields=fields, op_id=f"job:{due.job.id}@{slot}")
        except HoldfastError as error:
            return Ended(status="failed", output=str(error))
        return Ended(status="done", output=f"added to the chat history for {due.job.channel}")

    def _execute(self, due: Due, words: Sequence[str]) -> Ended:
        """Run the owner's command in the root, or here if that is in a database, with the message on its input."""
        environment = os.environ | {
            "HOLDFAST_JOB_ID": due.job.id,
            "HOLDFAST_JOB_NAME": due.job.name,
            "HOLDFAST_JOB_CHANNEL": due.job.channel,
            "HOLDFAST_JOB_SLOT": slot_text(due.slot),
            "HOLDFAST_ROOT": self._memory.address,
        }
        try:
            with tempfile.TemporaryFile() as message:
                message.write(due.job.message.encode())
                message.seek(0)
                process = subprocess.Popen(
                    words, stdin=message, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
                    cwd=self._memory.root if self._memory.in_files else None, start_new_session=True,
                )  # fmt: skip
        except (OSError, ValueError) as error:
            return Ended(status="failed", output=f"{words[0]} could not be started: {error}")
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
            head += part[: MOST_OUTPUT - len(head)]


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
