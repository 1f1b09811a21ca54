"""Tools for work to be done, agents `tasks` and `jobs`. Replies are text, with the same as data.

An orchestrator creates tasks and workers claim them. Tasks belong to the workspace of the call; an id finds a task in
any workspace. A job is a message that is due by the clock; the command that runs then is a setting of the owner.
"""

from __future__ import annotations

import operator
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from holdfast.errors import Invalid
from holdfast.formats import schedules
from holdfast.formats.tasks import CANCELLED, DONE, USUAL_ATTEMPTS, USUAL_LEASE, USUAL_PAUSE, Attempt, New, Task
from holdfast.memories.jobs import CHANNEL, Job, Jobs, counted, fault, is_more
from holdfast.memories.tasks import Claim, Listed
from holdfast.model.names import amount
from holdfast.model.records import USUAL_PRIORITY
from holdfast.model.times import iso, parse_ms
from holdfast.tools.calling import Call, Registry

MOST_LISTED = 200
Id = Annotated[str, "the task's id"]
JobId = Annotated[str, "the id that cron_list shows"]
_OUTCOMES = {
    "done": "done; tasks that waited for it can start",
    "released": "given back",
    "cancelled": "cancelled; tasks that wait for it are blocked",
    "retry": "open again",
}
Status = Literal["ready", "running", "waiting", "later", "blocked", "done", "failed", "cancelled"]


def task_create(
    call: Call,
    title: Annotated[str, "what to do, in a few words"] = "",
    instructions: Annotated[str, "everything a worker needs: context, files, what to report"] = "",
    after: Annotated[list[str] | None, "ids of tasks that must be done first"] = None,
    tags: Annotated[list[str] | None, "kinds of work; workers can ask for a kind"] = None,
    priority: Annotated[int, "1 to 10; more is sooner"] = USUAL_PRIORITY,
    lease: Annotated[float, "seconds after which a silent worker loses the task"] = USUAL_LEASE,
    attempts: Annotated[int, "how many times to try it"] = USUAL_ATTEMPTS,
    pause: Annotated[float, "seconds before a retry after a failure; doubles each time"] = USUAL_PAUSE,
    tasks: Annotated[
        list[New] | None, "instead of all these, several tasks, all or none; after may be the name of another of them"
    ] = None,
    graph: Annotated[str, "a name for tasks that belong together"] = "",
) -> dict[str, Any]:
    """Add a task that workers can claim, or a whole graph of tasks that wait for each other."""
    if bool(title) == bool(tasks):
        raise Invalid("Give either title or tasks.", "Use tasks for several at once.")
    one = {
        "title": title, "instructions": instructions, "after": after or [], "tags": tags or [], "priority": priority,
        "lease": lease, "attempts": attempts, "pause": pause,
    }  # fmt: skip
    made = call.runner.tasks.create_all(tasks or [one], graph=graph, workspace=call.scope, op_id=call.op_id)
    lines = [f'{task.id} "{task.title}"' + (f" after {', '.join(task.after)}" if task.after else "") for task in made]
    text = "\n".join([f"{amount(len(made), 'task')} created in {call.scope.path}:", *lines])
    shown = [{"id": task.id, "name": task.name, "title": task.title} for task in made]
    return {"tasks": shown, "workspace": call.scope.path, "text": text}


def task_claim(
    call: Call,
    worker: Annotated[str, "your name, unique among workers"],
    tags: Annotated[list[str] | None, "only tasks with one of these tags"] = None,
    graph: Annotated[str, "only tasks of this graph"] = "",
    lease: Annotated[float, "seconds until your next heartbeat or report; 0: that of the task"] = 0.0,
) -> dict[str, Any]:
    """Take the most important task that is ready; no other worker gets it until its lease ends.

    The reply has its instructions, the results of the tasks before it, and the attempt id that you report with.
    """
    tasks = call.runner.tasks
    wanted: dict[str, Any] = {"tags": tags or [], "graph": graph, "workspace": call.scope}
    if claim := tasks.claim(worker, lease=lease, op_id=call.op_id, **wanted):
        return _claimed(claim)
    now, outlook = tasks.outlook(**wanted)
    text = "there is no open task."
    if outlook.running or outlook.later or outlook.waiting:
        later = f"{outlook.later} to be tried again, " if outlook.later else ""
        soon = f" Look again in {max(1, round((outlook.next_ms - now) / 1000))} s." if outlook.next_ms else ""
        text = f"{outlook.running} running, {later}{outlook.waiting} waiting for others.{soon}"
    return {"task": None, **msgspec.structs.asdict(outlook), "text": f"Nothing is ready: {text}"}


def task_heartbeat(
    call: Call,
    id: Id,
    attempt: Annotated[str, "the attempt id that task_claim returned"],
    progress: Annotated[str, "progress, in words"] = "",
    percent: Annotated[float | None, "progress, 0 to 100"] = None,
    lease: Annotated[float, "seconds from now on; 0: that of the task"] = 0.0,
) -> dict[str, Any]:
    """Keep a task that you work on: renew its lease. Refused when another worker has it, or it was cancelled."""
    task = call.runner.tasks.heartbeat(
        id, attempt, progress=progress, percent=percent, lease=lease, workspace=call.scope, op_id=call.op_id
    )
    until = next(one.until for one in task.attempts if one.id == attempt)
    return {"id": id, "attempt": attempt, "until": until, "text": f"Task {id} is yours until {until}."}


def task_report(
    call: Call,
    id: Id,
    status: Annotated[
        Literal["done", "failed", "released", "cancelled", "retry"],
        "done, failed or released (given back) by its worker; cancelled or retry by who created it",
    ],
    attempt: Annotated[str, "the attempt id that task_claim returned; not for cancelled and retry"] = "",
    result: Annotated[Any, "the result, for the tasks that wait for it"] = None,
    error: Annotated[str, "what went wrong, for the worker that tries it next"] = "",
) -> dict[str, Any]:
    """Report how a task ended. A failed task is tried again until its attempts are used up."""
    tasks = call.runner.tasks
    where: dict[str, Any] = {"workspace": call.scope, "op_id": call.op_id}
    if status in ("cancelled", "retry"):
        if attempt or result is not None:
            raise Invalid(f"{status} takes no attempt and no result.", "Leave them out; error may say why.")
        task = tasks.cancel(id, error, **where) if status == CANCELLED else tasks.retry(id, **where)
    elif not attempt:
        raise Invalid(f"{status} needs the attempt.", "Send the attempt id that task_claim returned.")
    else:
        task = tasks.report(id, attempt, status, result=result, error=error, **where)
    reply = {"id": id, "status": status}
    if status != "failed":
        return reply | {"text": f"Task {id} is {_OUTCOMES[status]}."}
    if task.due is None:
        spent = amount(task.spent, "attempt")
        text = f"Task {id} failed for good, after {spent}; tasks that wait for it are blocked."
        return reply | {"again": "", "text": text}
    again = iso(task.due)
    return reply | {"again": again, "text": f"Task {id} failed; it can be claimed again from {again} on."}


def task_list(
    call: Call,
    status: Annotated[list[Status] | None, "only these; later: to be retried, blocked: an earlier one failed"] = None,
    graph: Annotated[str, "only this graph"] = "",
    ids: Annotated[list[str] | None, "only these, with instructions, results and errors"] = None,
) -> dict[str, Any]:
    """Show the workspace's tasks as a tree: status, worker, progress, and what blocks each."""
    listed = call.runner.tasks.all(status or (), graph=graph, ids=ids or (), workspace=call.scope)
    left_off, warnings = len(listed.tasks) - MOST_LISTED, call.runner.tasks.warnings
    tasks = [_shown(listed, depth, task, whole=bool(ids)) for depth, task in listed.tasks[:MOST_LISTED]]
    lines = [", ".join(f"{count} {status}" for status, count in listed.counts.items()), *map(line_of, tasks)]
    lines += [f"… and {left_off} more"] if left_off > 0 else []
    text = "\n".join([*lines, *warnings])
    if not tasks:
        text = "No tasks." if listed.counts else "No tasks yet. Use task_create to add one."
    return {
        "counts": listed.counts,
        "workers": listed.workers,
        "tasks": tasks,
        **({"left_off": left_off} if left_off > 0 else {}),
        **({"warnings": warnings} if warnings else {}),
        "text": text,
    }


def cron_list(call: Call) -> dict[str, Any]:
    """List the jobs: when each one is due, where its message goes, how its last run ended."""
    jobs = call.runner.jobs
    found = [job_data(jobs, job) for job in jobs.all()]
    warnings = list(dict.fromkeys(jobs.warnings))
    lines = [_job_line(job) for job in found] or ["No jobs yet. Use cron_add to schedule one."]
    reply: dict[str, Any] = {"jobs": found} | ({"warnings": warnings} if warnings else {})
    return reply | {"text": "\n".join([*lines, *warnings])}


def cron_add(
    call: Call,
    name: Annotated[str, "what to call it"],
    message: Annotated[str, "what to say when it is due"],
    schedule: Annotated[str, "cron syntax, like 0 9 * * 1-5, or every N (seconds)"],
    channel: Annotated[str, "where the message goes"] = CHANNEL,
    timezone: Annotated[str, "IANA name; local is that of the machine"] = schedules.LOCAL,
    enabled: Annotated[bool, "false adds it disabled"] = True,
) -> dict[str, Any]:
    """Schedule a message that repeats, by the clock of a time zone."""
    job = call.runner.jobs.add(name, message, schedule, channel, timezone, enabled, call.op_id)
    return _job(call, job, "Job added")


def cron_remove(call: Call, id: JobId) -> dict[str, Any]:
    """Remove a job. Its past runs stay in the log."""
    job = call.runner.jobs.remove(id, call.op_id)
    return {"id": job.id, "name": job.name, "text": f'Job removed: {job.id} "{job.name}"'}


def cron_set_enabled(call: Call, id: JobId, enabled: bool) -> dict[str, Any]:
    """Enable or disable a job. Slots that pass while it is disabled are not run later."""
    job = call.runner.jobs.set_enabled(id, enabled, call.op_id)
    return _job(call, job, "Job enabled" if enabled else "Job disabled")


def register(registry: Registry) -> None:
    text = operator.itemgetter("text")
    for function in (cron_list, cron_add, cron_remove, cron_set_enabled):
        registry.add("jobs", function, render=text, reads=function is cron_list)
    for each in (task_create, task_claim, task_heartbeat, task_report, task_list):
        registry.add("tasks", each, render=text, reads=each is task_list)


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


def _local(job: Job, slot: datetime) -> str:
    """Return a slot in the time zone of the job, in UTC when there is no such zone."""
    there = slot if fault(job) else slot.astimezone(schedules.zone(job.timezone))
    return there.strftime("%Y-%m-%d %H:%M:%S %Z" if there.second else "%Y-%m-%d %H:%M %Z")


def _claimed(claim: Claim) -> dict[str, Any]:
    task, attempt = claim.task, claim.attempt
    earlier = [one for one in task.attempts if one.order < attempt.order]
    before = [
        {"id": one.id, "name": one.name, "title": one.title, "result": one.done.result if one.done else None}
        for one in claim.before
    ]
    data = {
        "task": {"id": task.id, "title": task.title, "instructions": task.instructions, "graph": task.graph},
        "attempt": attempt.id, "number": attempt.number, "of": task.most, "until": attempt.until,
        "before": before, "earlier": [_attempt(one) for one in earlier],
    }  # fmt: skip
    found = (one["result"] for one in before)
    results = [one if isinstance(one, str) else msgspec.json.encode(one).decode() for one in found]
    lines = [
        f"Task {task.id}: {task.title}",
        f"Attempt {attempt.id}, number {attempt.number} of {task.most}; yours until {attempt.until}.",
        *([f"\n{task.instructions}"] if task.instructions else []),
        *(["\nResults of the tasks before it:"] if before else []),
        *(f'- {one["id"]} "{one["title"]}": {result}' for one, result in zip(before, results, strict=True)),
        *(["\nEarlier attempts:"] if earlier else []),
        *(f"- {one.id} by {one.worker}: {_how(one)}" for one in earlier),
        f"\nTo keep it: task_heartbeat(id={task.id!r}, attempt={attempt.id!r}, progress=…)",
        f"When it is done: task_report(id={task.id!r}, attempt={attempt.id!r}, status='done', result=…)",
        "Otherwise status='failed' with error=…, or 'released' to give it back.",
    ]
    return data | {"text": "\n".join(lines)}


def _shown(listed: Listed, depth: int, task: Task, *, whole: bool) -> dict[str, Any]:
    """Return a task as data; with `whole`, also its instructions, result and attempts."""
    stand, last = listed.standings[task.id], task.last
    data: dict[str, Any] = {"id": task.id, "title": task.title, "status": stand.status, "depth": depth}
    data |= {"attempts": f"{task.spent}/{task.most}", "priority": task.priority}
    if last and stand.status == "running":
        left = max(0, ((parse_ms(last.until) or 0) - listed.now) // 1000)
        data |= {"worker": last.worker, "attempt": last.id, "lease": left, "progress": last.progress}
        data |= {} if last.percent is None else {"percent": last.percent}
    elif stand.status == "later" and task.due:
        data["again"] = iso(task.due)
    error = task.why if stand.status == CANCELLED else ""
    if last and stand.status not in (CANCELLED, DONE, "running"):
        error = _how(last)
    optional = {
        "blockedBy": list(stand.by), "after": task.after, "tags": task.tags, "graph": task.graph, "name": task.name,
        "error": error,
    }  # fmt: skip
    data |= {name: value for name, value in optional.items() if value}
    if whole:
        data |= {"instructions": task.instructions, "result": task.done.result if task.done else None}
        data["history"] = [_attempt(one) for one in task.attempts]
    return data


def _attempt(attempt: Attempt) -> dict[str, Any]:
    data = {
        "attempt": attempt.id, "worker": attempt.worker, "from": attempt.time, "status": attempt.status,
        "ended": attempt.ended, "error": attempt.error, "progress": attempt.progress,
    }  # fmt: skip
    return {name: value for name, value in data.items() if value}


def _how(attempt: Attempt) -> str:
    """Return how a finished attempt ended."""
    if not attempt.status:
        return "its lease ran out" + (f" at: {attempt.progress}" if attempt.progress else "")
    return attempt.status + (f": {attempt.error}" if attempt.error else "")


def line_of(task: dict[str, Any]) -> str:
    """Return a task as one line of the tree."""
    about = [f"attempt {task['attempts']}"] if not task["attempts"].startswith("0/") else []
    if "worker" in task:
        far = f"{task['percent']:g} %" if "percent" in task else ""
        about = [task["worker"], f"{task['lease']} s left", *about, *filter(None, (far, task["progress"]))]
    about += [f"blocked by {', '.join(task['blockedBy'])}"] if "blockedBy" in task else []
    about += [f"again from {task['again']}"] if "again" in task else []
    about += [task["error"]] if "error" in task else []
    more = f" | {' | '.join(' '.join(part.split()) for part in about)}" if about else ""
    return f"{'  ' * task['depth']}{task['status']:<9} {task['id']} {task['title']}{more}"
