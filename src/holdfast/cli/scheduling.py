"""The commands that run jobs and show how they went."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from holdfast.cli import show
from holdfast.cli.common import common, open_root
from holdfast.errors import Invalid
from holdfast.memories.jobs import counted, is_more
from holdfast.model.names import amount
from holdfast.tools.jobs import told_missed


@click.command()
@click.option("--once", is_flag=True, help="Run what is due now, and end.")
@click.option("--command", default="", help="Program and arguments to run for a job, instead of [jobs] command.")
@common
def run(once: bool, command: str, root: str | None, as_json: bool) -> None:
    """Run the jobs that are due, and those that become due, until a signal comes.

    Each slot is run by one scheduler, at most once. Of several that passed, the newest is run and the others are
    reported. Without a command the message is added to the chat history. In a pipe, or with --json, every event is one
    line of JSON. A command runs in the root; its program is looked for from this folder on, that of [jobs] command from
    the root on. Of a memory in a database, both are this folder, and the command finds the address without a password
    in HOLDFAST_ROOT. With --once the exit code is 1 when a job failed.
    """
    from holdfast.cli.scheduler import Command, Scheduler

    words = _words(command)
    in_json = show.wants_json(as_json)
    with open_root(root) as memory:
        home = memory.root if memory.in_files and not words else os.getcwd()
        owner = Command(words or memory.settings.jobs.command, home)
        scheduler = Scheduler(memory, owner, lambda event: _tell(event, in_json))
        scheduler.report()
        done = scheduler.serve(once=once)
    if once and not (done.ran or in_json):
        click.echo("Nothing is due.")
    if once and done.failed:
        sys.exit(1)


@click.command()
@click.argument("id", required=False, default="")
@click.option("-n", "--count", default=20, show_default=True, type=click.IntRange(min=1), help="How many.")
@common
def log(id: str, count: int, root: str | None, as_json: bool) -> None:
    """Print the last runs, oldest first: of all jobs, or of the job ID."""
    with open_root(root) as memory:
        found = memory.jobs.log(count, id)
    if show.wants_json(as_json):
        show.as_json([msgspec.to_builtins(one) | told_missed(one.missed) for one in found])
    elif not found:
        click.echo("Nothing was run yet.")
    else:
        from holdfast.model.times import local

        rows = [
            (local(one.slot), one.job, one.name, one.status, "" if one.exit is None else one.exit, f"{one.seconds:.1f}",
             counted(one.missed), " ".join(one.output.split())[:200])
            for one in found
        ]  # fmt: skip
        columns = ("slot", "job", "name", "ended", "exit", "seconds", "missed", "output")
        show.table(columns, rows, whole=("job",), less=("seconds", "missed", "name", "exit"))


def listed(reply: Mapping[str, Any]) -> None:
    """Print the jobs as a table, and below it what is wrong with those that can never be due."""
    jobs = reply["jobs"]
    if not jobs:
        click.echo("None.")
    else:
        rows = [
            (job["id"], job["name"], job["schedule"], job["timezone"], _state(job), job["next"], job["last"],
             job.get("status", ""), counted(job["missed"]), job["channel"])
            for job in jobs
        ]  # fmt: skip
        columns = ("id", "name", "schedule", "timezone", "enabled", "next", "last", "status", "missed", "channel")
        less = ("channel", "last", "timezone", "missed", "status", "next")
        show.table(columns, rows, whole=("id", "schedule", "next", "last"), less=less)
    for job in jobs:
        if "fault" in job:
            click.secho(show.printable(f"{job['id']} is faulty: {job['fault']}"), fg="red")
    show.warnings(reply.get("warnings", ()))


def _state(job: Mapping[str, Any]) -> str:
    return "faulty" if "fault" in job else "yes" if job["enabled"] else "no"


def _words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise Invalid(f"--command cannot be split into words: {error}.", "Close the quotes.") from None


def _tell(event: dict[str, Any], in_json: bool) -> None:
    """Print an event; a scheduler goes on when nobody listens."""
    known = {name: value for name, value in event.items() if value is not None}
    try:
        click.echo(msgspec.json.encode(known) if in_json else show.printable(_sentence(event)))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sentence(event: dict[str, Any]) -> str:
    """Say in one line what happened."""
    from holdfast.model.times import local, utc_now

    about = f"{event.get('job', '')} {event.get('name', '')}".strip()
    told = {
        "missed": lambda: f"missed {_slots(event['missed'])} before {local(event['slot'])}",
        "started": lambda: f"started for {local(event['slot'])}",
        "finished": lambda: _ended(event),
        "unfinished": lambda: f"was started for {local(event['slot'])}, and no end was noted; it is not run again",
    }
    what = told.get(event["event"], lambda: f"{event['event']}: {event.get('error', '')}")()
    return f"{local(utc_now())}  {about}  {what}" if about else f"{local(utc_now())}  {what}"


def _slots(missed: int) -> str:
    return f"{counted(missed)} slots" if is_more(missed) else amount(missed, "slot")


def _ended(event: dict[str, Any]) -> str:
    code = f" with {event['exit']}" if event["exit"] else ""
    head = " ".join(event["output"].split())[:200]
    return f"{event['status']}{code} after {event['seconds']:.1f} s" + (f": {head}" if head else "")
