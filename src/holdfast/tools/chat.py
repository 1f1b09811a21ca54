"""Tools for the chat and for jobs, agents `chat` and `jobs`: long-term memory, searching the history, scheduling.

An agent schedules messages only: the command that runs when a job is due is a setting of the owner. Replies are text,
with the same as data.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec

from holdfast.errors import Invalid
from holdfast.formats import schedules
from holdfast.formats.prompts import Message, one_line
from holdfast.memories.chat import MOST, Saved
from holdfast.memories.jobs import CHANNEL, Job, Jobs, counted, fault, is_more
from holdfast.model.names import amount
from holdfast.model.times import local
from holdfast.tools.calling import Call, Registry

_LINE = 300
"""Characters of a message that a search shows."""
JobId = Annotated[str, "the id that cron_list shows"]


def memory_write(
    call: Call, content: Annotated[str, "the whole new text, which replaces the old one; empty empties it"]
) -> dict[str, Any]:
    """Replace MEMORY.md, which is in every prompt: what must always be known of the owner and the work. Read it in your
    prompt first and write all of it, short."""
    saved = call.runner.chat.save_global_memory(content, call.op_id)
    return _saved(saved, "MEMORY.md was written" if content.strip() else "MEMORY.md is empty now")


def memory_undo(call: Call) -> dict[str, Any]:
    """Bring back MEMORY.md as it was before the last memory_write; again, as it was before that."""
    return _saved(call.runner.chat.undo_global_memory(call.op_id), "MEMORY.md is as it was before")


def search_history(
    call: Call,
    query: Annotated[str, "words that were said"],
    days: Annotated[int | None, "only the last so many days"] = None,
    max_results: Annotated[int, f"1 to {MOST}"] = 10,
    channel: Annotated[str | None, "only this channel, named as in the labels"] = None,
) -> dict[str, Any]:
    """Find what was said before, on any channel. Use it before you answer from a memory that may be wrong."""
    chat = call.runner.chat
    found = chat.search(query, days, max_results, channel or "")
    parts = []
    for number, match in enumerate(found, 1):
        said, before, after = match.message, match.before, match.after
        label = chat.label(said) or f"[{one_line(said.channel) or 'no channel'} / {said.role}]"
        lines = [_line(before, before.content)] if before else []
        lines += [f"**{_line(said, match.snippet)}**", *([_line(after, after.content)] if after else [])]
        head = f"## Match {number} - {label} | {local(said.timestamp) or 'no time'}"
        parts.append("\n".join((head, "", *lines, "---")))
    text = "\n\n".join(parts) or f"No matches found for '{query}'."
    return {"text": text, "matches": [msgspec.to_builtins(match) for match in found]}


def cron_list(call: Call) -> dict[str, Any]:
    """List the jobs: when each one is due, where its message goes, how it went last."""
    jobs = call.runner.jobs
    reply: dict[str, Any] = {"jobs": [job_data(jobs, job) for job in jobs.all()]}
    return reply | ({"warnings": [*dict.fromkeys(jobs.warnings)]} if jobs.warnings else {})


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
    job = call.runner.jobs.add(name, message, schedule, channel, timezone, enabled, call.op_id)
    return _job(call, job, "Job added")


def cron_remove(call: Call, id: JobId) -> dict[str, Any]:
    """Remove a job. What it did so far stays in the log."""
    job = call.runner.jobs.remove(id, call.op_id)
    return {"id": job.id, "name": job.name, "text": f'Job removed: {job.id} "{job.name}"'}


def cron_set_enabled(call: Call, id: JobId, enabled: bool) -> dict[str, Any]:
    """Enable a job, or stop it for a while. Slots that pass while it is stopped are not made up for."""
    job = call.runner.jobs.set_enabled(id, enabled, call.op_id)
    return _job(call, job, "Job enabled" if enabled else "Job disabled")


def register(registry: Registry) -> None:
    registry.add("chat", memory_write, render=_text, blank=("content",))
    registry.add("chat", memory_undo, render=_text)
    registry.add("chat", search_history, render=_text, reads=True, check=_check_query)
    registry.add("jobs", cron_list, render=_text, reads=True)
    for function in (cron_add, cron_remove, cron_set_enabled):
        registry.add("jobs", function, render=_text)


def job_data(jobs: Jobs, job: Job) -> dict[str, Any]:
    """Return a job with its next slot, its last run and the number of missed slots."""
    what, following, last, missed = fault(job), jobs.next(job), jobs.last(job), jobs.missed(job)
    data = msgspec.to_builtins(job) | {
        "next": _local(job, following) if following else "",
        "last": _local(job, datetime.fromisoformat(last.slot)) if last else "",
        "status": last.status if last else "",
        **missed_data(missed),
        "fault": what,
    }
    return {name: value for name, value in data.items() if value != "" or name not in ("fault", "status")}


def missed_data(missed: int) -> dict[str, Any]:
    """Return the number of missed slots, and whether there may be more."""
    return {"missed": missed} | ({"missedMore": True} if is_more(missed) else {})


def _check_query(given: Mapping[str, Any]) -> None:
    query = given.get("query")
    if query is None or (isinstance(query, str) and not query.strip()):
        raise Invalid("Error: query is required")


def _saved(saved: Saved, what: str) -> dict[str, Any]:
    warning = f" Warning: {saved.warning}" if saved.warning else ""
    text = f"{what} ({amount(saved.tokens, 'token')}).{warning}"
    reply = {"text": text, "status": saved.receipt.status, "where": saved.receipt.path, "tokens": saved.tokens}
    return reply | ({"warnings": [saved.warning]} if saved.warning else {})


def _line(message: Message, text: str) -> str:
    flat = " ".join(text.split())
    return f"{message.role.upper()}: {flat if len(flat) <= _LINE else flat[: _LINE - 1] + '…'}"


def _job(call: Call, job: Job, what: str) -> dict[str, Any]:
    data = job_data(call.runner.jobs, job)
    return {"job": data, "text": f"{what}: {_job_line(data)}"}


def _job_line(job: dict[str, Any]) -> str:
    parts = [
        f'{job["id"]} "{job["name"]}"', job["schedule"], job["timezone"], f"to {job['channel']}",
        "enabled" if job["enabled"] is True else "disabled",
        job.get("fault") or (f"next {job['next']}" if job["next"] else "next: none"),
        f"last {job['last']} ({job['status']})" if job["last"] else "never run",
        f"missed {counted(job['missed'])}",
    ]  # fmt: skip
    return " | ".join(" ".join(str(part).split()) for part in parts)


def _text(reply: dict[str, Any]) -> str:
    """Return a list of jobs as text; the other replies have theirs."""
    lines = [_job_line(job) for job in reply["jobs"]] or ["No jobs yet. Use cron_add to schedule one."]
    return "\n".join([*lines, *reply.get("warnings", ())])


def _local(job: Job, slot: datetime) -> str:
    """Return a slot in the time zone of the job, in UTC when there is no such zone."""
    there = slot if fault(job) else slot.astimezone(schedules.zone(job.timezone))
    return there.strftime("%Y-%m-%d %H:%M:%S %Z" if there.second else "%Y-%m-%d %H:%M %Z")
