"""Tools over jobs, agent `jobs`: list, add, remove, enable and disable.

An agent schedules messages and nothing else: what runs when a job is due is the owner's setting, and no tool names it.
Replies are text, with the same beside it as data.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from holdfast.formats import schedules
from holdfast.memories.jobs import CHANNEL, Job, Jobs, counted, fault, is_more
from holdfast.tools.calling import Call
from holdfast.tools.registry import Registry

Id = Annotated[str, "the id that cron_list shows"]


def cron_list(call: Call) -> dict[str, Any]:
    """List the jobs: when each one is due, where its message goes, how it went last."""
    jobs = call.runner.jobs
    return {"jobs": [shown(jobs, job) for job in jobs.all()]} | _warned(jobs)


def cron_add(
    call: Call,
    name: Annotated[str, "what to call it"],
    message: Annotated[str, "what is to be said when it is due"],
    schedule: Annotated[str, "cron syntax, like 0 9 * * 1-5, or every N (seconds)"],
    channel: Annotated[str, "where the message goes"] = CHANNEL,
    timezone: Annotated[str, "IANA name; local is that of the machine"] = schedules.LOCAL,
    enabled: Annotated[bool, "is it due from now on"] = True,
) -> dict[str, Any]:
    """Schedule a message: it is said again and again, by the clock of a time zone."""
    jobs = call.runner.jobs
    job = jobs.add(name, message, schedule, channel, timezone, enabled, call.op_id)
    return _one(jobs, job, "Job added")


def cron_remove(call: Call, id: Id) -> dict[str, Any]:
    """Remove a job. What it did so far stays in the log."""
    job = call.runner.jobs.remove(id, call.op_id)
    return {"id": job.id, "name": job.name, "text": f'Job removed: {job.id} "{job.name}"'}


def cron_set_enabled(call: Call, id: Id, enabled: bool) -> dict[str, Any]:
    """Let a job be due, or stop it for a while; what passes while it is stopped is not made up for."""
    jobs = call.runner.jobs
    return _one(jobs, jobs.set_enabled(id, enabled, call.op_id), "Job enabled" if enabled else "Job disabled")


def register(registry: Registry) -> None:
    """Add the tools, in the order in which they are listed."""
    registry.add("jobs", reads=True, render=_listed)(cron_list)
    registry.add("jobs", render=_listed)(cron_add)
    registry.add("jobs", render=_listed)(cron_remove)
    registry.add("jobs", render=_listed)(cron_set_enabled)


def shown(jobs: Jobs, job: Job) -> dict[str, Any]:
    """Return a job with when it is due next, how it went last, and what was missed."""
    what, following, last, missed = fault(job), jobs.next(job), jobs.last(job), jobs.missed(job)
    data = msgspec.to_builtins(job) | {
        "next": _local(job, following) if following else "",
        "last": _local(job, datetime.fromisoformat(last.slot)) if last else "",
        "status": last.status if last else "",
        **told_missed(missed),
        "fault": what,
    }
    return {name: value for name, value in data.items() if value != "" or name not in ("fault", "status")}


def told_missed(missed: int) -> dict[str, Any]:
    """Return how many slots were missed, and whether there may be more, as data."""
    return {"missed": missed} | ({"missedMore": True} if is_more(missed) else {})


def told(job: dict[str, Any]) -> str:
    """Return a job as one line."""
    last = f"last {job['last']} ({job['status']})" if job["last"] else "never run"
    parts = [
        f'{job["id"]} "{job["name"]}"',
        job["schedule"],
        job["timezone"],
        f"to {job['channel']}",
        "enabled" if job["enabled"] is True else "disabled",
        job.get("fault") or (f"next {job['next']}" if job["next"] else "next: none"),
        last,
        f"missed {counted(job['missed'])}",
    ]
    return " | ".join(" ".join(str(part).split()) for part in parts)


def _one(jobs: Jobs, job: Job, what: str) -> dict[str, Any]:
    data = shown(jobs, job)
    return {"job": data, "text": f"{what}: {told(data)}"}


def _listed(reply: dict[str, Any]) -> str:
    if "text" in reply:
        return str(reply["text"])
    lines = [told(job) for job in reply["jobs"]] or ["No jobs yet. Use cron_add to schedule one."]
    return "\n".join([*lines, *reply.get("warnings", ())])


def _warned(jobs: Jobs) -> dict[str, Any]:
    found = [*dict.fromkeys(jobs.warnings)]
    return {"warnings": found} if found else {}


def _local(job: Job, slot: datetime) -> str:
    """Return a slot by the clock of the job's zone; in UTC where there is no such zone."""
    there = slot if fault(job) else slot.astimezone(schedules.zone(job.timezone))
    return there.strftime("%Y-%m-%d %H:%M:%S %Z" if there.second else "%Y-%m-%d %H:%M %Z")
