"""How a terminal shows tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from holdfast.cli import show


def listed(reply: Mapping[str, Any]) -> None:
    """Print the tasks as a table, a task below what it waits for, and how many there are of each status."""
    if not reply["tasks"]:
        click.echo("None.")
    else:
        rows = [
            (task["id"], task["status"], task.get("worker", ""), f"{task['lease']} s" if "lease" in task else "",
             task["attempts"], _far(task), "  " * task["depth"] + task["title"] + _why(task))
            for task in reply["tasks"]
        ]  # fmt: skip
        columns = ("id", "status", "worker", "lease", "attempts", "progress", "title")
        show.table(columns, rows, whole=("id", "status"), less=("progress", "lease", "attempts"))
    counts = [f"{count:,} {status}" for status, count in reply["counts"].items()]
    more = [f"{reply['left_off']:,} more are not shown"] if "left_off" in reply else []
    if counts:
        click.secho(" · ".join([*counts, *more]), dim=True)
    show.warnings(reply.get("warnings", ()))


def claimed(reply: Mapping[str, Any]) -> None:
    """Print a task that was taken, and how a worker on a terminal goes on with it."""
    show.reply(reply)
    if reply["task"]:
        names = f"--id {reply['task']['id']} --attempt {reply['attempt']}"
        click.secho("On a terminal:", dim=True)
        click.secho(f"  holdfast task heartbeat {names} --progress …", dim=True)
        click.secho(f"  holdfast task report {names} --status done --result …", dim=True)


def _far(task: Mapping[str, Any]) -> str:
    percent = f"{task['percent']:g} %" if "percent" in task else ""
    return " ".join(part for part in (percent, " ".join(task.get("progress", "").split())[:60]) if part)


def _why(task: Mapping[str, Any]) -> str:
    """Return what is in the way of a task, or went wrong with it."""
    blocked = f"blocked by {', '.join(task['blockedBy'])}" if "blockedBy" in task else ""
    parts = [part for part in (blocked, " ".join(task.get("error", "").split())[:200]) if part]
    return f" ({'; '.join(parts)})" if parts else ""
