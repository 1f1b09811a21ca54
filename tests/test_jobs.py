"""Jobs: what is due, taking a slot once, the tools, the commands, and schedulers that die or run side by side."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fork_server
import holdfast
from databaseroot import place
from holdfast.errors import Conflict, Invalid, NotFound, OverBudget
from holdfast.memories import jobs
from holdfast.memories.jobs import Due, Ended, Job
from holdfast.model.settings import load
from holdfast.tools import toolsets
from terminal import on_terminal

LAST_YEAR = f"{datetime.now(UTC).year - 1}-06-01T00:00:00.000Z"
YEARLY = "0 0 1 1 *"
"""With `LAST_YEAR` a job that is due since the first of January, and only then."""


def job(**given: Any) -> Job:
    usual = {"id": "aaaa0000", "name": "Tea", "message": "Make tea.", "schedule": "0 * * * *", "timezone": "UTC"}
    return Job(**usual | {"since": "2026-03-01T00:00:00.000Z"} | given)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def overdue(memory: holdfast.Memory, count: int = 1) -> list[Job]:
    """Keep jobs that are due now, once."""
    made = [job(id=f"job{n:05}", name=f"Job {n}", schedule=YEARLY, since=LAST_YEAR) for n in range(count)]
    return memory.jobs.save_cron_jobs(made)


RUN = [sys.executable, "-m", "holdfast", "jobs", "run", "--root"]


def scheduler(root: Path, *words: str) -> subprocess.Popen[str]:
    """Start a scheduler in a process of its own, to be stopped or killed."""
    return subprocess.Popen([*RUN, str(root), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def scheduled(root: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a scheduler until it ends."""
    command = [*RUN, str(root), *words]
    return fork_server.run(command, capture_output=True, text=True, timeout=60, env=os.environ | environment)


def events(root: Path, *words: str, code: int = 0, **environment: str) -> list[dict[str, Any]]:
    """Let a scheduler run once and return the events that it printed."""
    done = scheduled(root, "--once", *words, **environment)
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def claims(root: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(root.glob("user/memory/claims/*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def alive(pid: Path) -> bool:
    """Is the process alive whose id is in a file? A zombie is not."""
    state = subprocess.run(["ps", "-o", "state=", "-p", pid.read_text().strip()], capture_output=True, text=True)
    return state.stdout.strip()[:1] not in ("", "Z")


# what is due


def test_what_is_due_is_a_function_of_jobs_claims_and_time() -> None:
    now = at("2026-03-05T17:20Z")
    hourly, off, minutely = job(), job(id="bbbb", enabled=False), job(id="cccc", schedule="*/5 * * * *")
    taken = {"aaaa0000": at("2026-03-05T12:00Z"), "cccc": at("2026-03-05T17:20Z")}
    found = jobs.due([hourly, off, minutely], lambda one, _slot: taken.get(one.id), now)
    assert found == [Due(hourly, at("2026-03-05T17:00Z"), 4)]
    assert found == jobs.due([hourly, off, minutely], lambda one, _slot: taken.get(one.id), now)


def test_a_job_without_a_run_counts_from_when_it_was_added() -> None:
    fresh = job(since="2026-03-05T16:30:00.000Z")
    assert jobs.due([fresh], lambda *_: None, at("2026-03-05T16:59:59Z")) == []
    assert jobs.due([fresh], lambda *_: None, at("2026-03-05T17:00Z")) == [Due(fresh, at("2026-03-05T17:00Z"), 0)]


def test_the_oldest_slot_comes_first_and_a_broken_job_never() -> None:
    late, early = job(id="l", schedule="50 * * * *"), job(id="e", schedule="10 * * * *")
    broken = [job(id="x", schedule="nonsense"), job(id="y", timezone="No/Where"), job(id="z", since="")]
    found = jobs.due([late, early, *broken], lambda *_: None, at("2026-03-05T17:55Z"))
    assert [one.job.id for one in found] == ["e", "l"]
    assert all(jobs.fault(one) for one in broken)


def test_a_scheduler_that_was_off_runs_once_and_reports_what_was_missed(memory: holdfast.Memory) -> None:
    (hourly,) = memory.jobs.save_cron_jobs([job()])
    assert memory.jobs.claim(hourly, at("2026-03-05T12:00Z"))
    (due,) = memory.jobs.due(at("2026-03-05T17:30Z"))
    assert (due.slot, due.missed) == (at("2026-03-05T17:00Z"), 4)
    assert memory.jobs.missed(hourly, at("2026-03-05T17:30Z")) == 4
    assert memory.jobs.claim(due.job, due.slot, due.missed)
    assert memory.jobs.due(at("2026-03-05T17:59Z")) == []
    assert memory.jobs.missed(hourly, at("2026-03-05T17:59Z")) == 4, "as the last run noted"
    assert [one.missed for one in memory.jobs.due(at("2026-03-05T18:00Z"))] == [0]


def test_claims_of_earlier_months_are_seen(memory: holdfast.Memory, root: Path) -> None:
    (hourly,) = memory.jobs.save_cron_jobs([job(schedule="@daily")])
    memory.jobs.claim(hourly, at("2026-03-30T00:00Z"))
    (due,) = memory.jobs.due(at("2026-06-02T09:00Z"))
    assert (due.slot, due.missed) == (at("2026-06-02T00:00Z"), 63)
    memory.jobs.claim(hourly, due.slot)
    assert sorted(path.name for path in root.glob("user/memory/claims/*")) == ["2026-03.jsonl", "2026-06.jsonl"]
    assert memory.jobs.due(at("2026-06-02T10:00Z")) == []


def test_a_disabled_job_is_not_due_and_what_passed_meanwhile_is_not_missed(memory: holdfast.Memory) -> None:
    (kept,) = memory.jobs.save_cron_jobs([job(schedule="* * * * *", since=LAST_YEAR)])
    assert len(memory.jobs.due()) == 1
    memory.jobs.set_enabled(kept.id, False)
    assert memory.jobs.due() == []
    enabled = memory.jobs.set_enabled(kept.id, True)
    assert enabled.since > kept.since
    later = at(enabled.since) + timedelta(minutes=1)
    (due,) = memory.jobs.due(later)
    assert due.missed == 0
    assert memory.jobs.set_enabled(kept.id, True) == enabled, "nothing changes what is already so"


def test_a_new_schedule_counts_from_now(memory: holdfast.Memory) -> None:
    (kept,) = memory.jobs.save_cron_jobs([job(since=LAST_YEAR)])
    (changed,) = memory.jobs.save_cron_jobs([msgspec.structs.replace(kept, schedule="30 * * * *")])
    assert changed.since > kept.since
    (renamed,) = memory.jobs.save_cron_jobs([msgspec.structs.replace(changed, name="Coffee")])
    assert renamed.since == changed.since


# taking a slot


def test_a_slot_is_taken_once(memory: holdfast.Memory, root: Path) -> None:
    (kept,) = memory.jobs.save_cron_jobs([job()])
    slot = at("2026-03-05T12:00Z")
    assert memory.jobs.claim(kept, slot) is True
    assert memory.jobs.claim(kept, slot) is False
    with holdfast.open(root) as other:
        assert other.jobs.claim(kept, slot) is False
        assert other.jobs.claim(kept, slot - timedelta(hours=1)) is True
    assert memory.jobs.claim(kept, slot - timedelta(hours=1)) is False


def _claim(root: Path, start: Any, found: Any) -> None:
    with holdfast.open(root) as memory:
        (kept,) = memory.jobs.load_cron_jobs()
        start.wait()
        found.put([n for n in range(40) if memory.jobs.claim(kept, at("2026-03-05T00:00Z") + timedelta(hours=n))])


def test_of_many_processes_one_gets_each_slot(memory: holdfast.Memory, root: Path) -> None:
    memory.jobs.save_cron_jobs([job()])
    spawn = multiprocessing.get_context("spawn")
    start, found = spawn.Barrier(3), spawn.Queue()
    workers = [spawn.Process(target=_claim, args=(root, start, found)) for _ in range(3)]
    for worker in workers:
        worker.start()
    taken = sorted(n for _ in workers for n in found.get(timeout=60))
    for worker in workers:
        worker.join()
    assert taken == list(range(40))


def test_a_run_without_an_end_is_reported(memory: holdfast.Memory) -> None:
    (kept,) = memory.jobs.save_cron_jobs([job()])
    for hour in (12, 13):
        memory.jobs.claim(kept, at(f"2026-03-05T{hour}:00Z"))
    memory.jobs.finish(kept, at("2026-03-05T12:00Z"), Ended(status="failed", exit=3, output="x" * 9_000, seconds=0.5))
    assert [run.slot for run in memory.jobs.unfinished()] == ["2026-03-05T13:00:00.000Z"]
    first, second = memory.jobs.log()
    assert (first.status, first.exit, len(first.output), first.seconds) == ("failed", 3, 2_000, 0.5)
    assert (second.status, second.exit) == ("unfinished", None)
    last = memory.jobs.last(kept)
    assert last is not None and last.slot == second.slot
    assert memory.jobs.log(1) == [second]
    other = memory.jobs.add("Another", "x", "@daily")
    assert memory.jobs.log(job=other.id) == []
    memory.jobs.remove(kept.id)
    assert memory.jobs.log(1, kept.id) == [second], "what a job did stays known when it is gone"


def test_merged_claims_mean_what_they_meant(memory: holdfast.Memory, root: Path) -> None:
    """A union merge may double lines, and may put the end of a run before its beginning."""
    (kept,) = memory.jobs.save_cron_jobs([job()])
    memory.jobs.claim(kept, at("2026-03-05T12:00Z"))
    memory.jobs.finish(kept, at("2026-03-05T12:00Z"), Ended(status="done", exit=0))
    path = root / "user/memory/claims/2026-03.jsonl"
    claim, end = path.read_text().splitlines()
    path.write_text("\n".join((end, claim, "not JSON", '{"claim": 7, "job": []}', claim, end, claim)) + "\n")
    assert memory.jobs.unfinished() == []
    assert memory.jobs.claim(kept, at("2026-03-05T12:00Z")) is False
    last = memory.jobs.last(kept)
    assert last is not None and last.status == "done"
    assert "line 3 cannot be read" in memory.jobs.warnings[0]


# keeping them


def test_jobs_are_saved_and_loaded(memory: holdfast.Memory, root: Path) -> None:
    assert memory.jobs.load_cron_jobs() == []
    memory.jobs.save_cron_jobs([])
    first = memory.jobs.add("Standup", "Who is blocked?", "0 9 * * 1-5", "matrix:#team", "Europe/Berlin")
    second = memory.jobs.add("Water", "Drink.", "every 3600", enabled=False)
    assert len(first.id) == 8 and int(first.id, 16) >= 0
    loaded = memory.jobs.load_cron_jobs()
    assert loaded == [first, second]
    before = (root / "user/memory/jobs.jsonl").read_bytes()
    assert memory.jobs.save_cron_jobs(loaded) == loaded
    assert (root / "user/memory/jobs.jsonl").read_bytes() == before, "nothing is written where nothing changed"
    new = Job(name="New", message="Say hello.", schedule="@daily")
    saved = memory.jobs.save_cron_jobs([msgspec.structs.replace(first, message="Blocked?"), new])
    assert [(one.name, one.message) for one in saved] == [("Standup", "Blocked?"), ("New", "Say hello.")]
    with holdfast.open(root) as other:
        assert other.jobs.load_cron_jobs() == saved
    assert memory.jobs.save_cron_jobs([*saved, second]) == [*saved, second], "what was removed can come back"
    assert memory.jobs.load_cron_jobs() == [saved[0], second, saved[1]]
    assert memory.verify().sound


def test_saving_a_list_takes_nothing_back_that_others_did_meanwhile(root: Path) -> None:
    with holdfast.open(root) as bot, holdfast.open(root) as agent:
        first = bot.jobs.add("First", "1", "@daily")
        listed = bot.jobs.load_cron_jobs()
        second = agent.jobs.add("Second", "2", "@daily")
        agent.jobs.set_enabled(first.id, False)
        third = Job(name="Third", message="3", schedule="@daily")
        saved = bot.jobs.save_cron_jobs([*listed, third])
        assert [(one.name, one.enabled) for one in saved] == [("First", False), ("Third", True)]
        fourth = bot.call("cron_add", {"name": "Fourth", "message": "4", "schedule": "@daily"})["job"]
        assert len(bot.call("cron_list")["jobs"]) == 4
        assert bot.jobs.save_cron_jobs(saved[1:]) == saved[1:]
        assert {one.id for one in agent.jobs.all()} == {second.id, saved[1].id, fourth["id"]}
        agent.jobs.remove(second.id)
        loaded = bot.jobs.load_cron_jobs()
        assert [one.name for one in loaded] == ["Third", "Fourth"]
        bot.jobs.save_cron_jobs(loaded[:1])
        assert [one.name for one in agent.jobs.all()] == ["Third"]


def test_an_op_id_has_effect_once(memory: holdfast.Memory) -> None:
    made = memory.jobs.add("Tea", "Make tea.", "@daily", op_id="op-1")
    assert memory.jobs.add("Tea", "Make tea.", "@daily", op_id="op-1") == made
    assert len(memory.jobs.load_cron_jobs()) == 1
    memory.jobs.set_enabled(made.id, False, op_id="op-2")
    memory.jobs.set_enabled(made.id, True)
    assert memory.jobs.set_enabled(made.id, False, op_id="op-2").enabled is True
    other = memory.jobs.add("Other", "x", "@daily")
    with pytest.raises(Conflict):
        memory.jobs.remove(other.id, op_id="op-2")
    memory.jobs.remove(made.id, op_id="op-3")
    assert memory.jobs.remove(made.id, op_id="op-3").name == "Tea"


def test_the_log_may_be_edited_by_hand(memory: holdfast.Memory, root: Path) -> None:
    made = memory.jobs.add("Tea", "Make tea.", "@daily")
    path = root / "user/memory/jobs.jsonl"
    line = json.loads(path.read_text())
    hand: list[Any] = [
        {
            "job": "standup",
            "name": "Standup",
            "message": "Hi",
            "schedule": YEARLY,
            "time": LAST_YEAR,
            "timezone": "UTC",
        },
        {"job": "broken", "name": "Broken", "message": "Hi", "schedule": "whenever", "time": LAST_YEAR},
        {"job": "timeless", "name": "Timeless", "message": "Hi", "schedule": "@daily"},
        {"job": "../x y", "name": "Odd", "message": "Hi", "schedule": "@daily", "time": LAST_YEAR},
        {"job": "half", "schedule": 7, "since": [], "enabled": "yes"},
        {"job": 5},
        line | {"id": "06ffffff-ffff-7000-8000-000000000000", "name": "From the future"},
    ]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in hand) + "{torn\n" + path.read_text())
    jobs = {one.id: one for one in memory.jobs.load_cron_jobs()}
    assert set(jobs) == {made.id, "standup", "broken", "timeless", "../x y", "half"}
    assert jobs[made.id].name == "From the future", "the greatest id holds"
    assert memory.jobs.set_enabled(made.id, False).enabled is False
    assert [one.job.id for one in memory.jobs.due()] == ["standup"]
    text = memory.call("cron_list")["text"]
    assert "Invalid schedule 'whenever'. Use cron syntax or 'every N'." in text
    assert "line 8 cannot be read" in text
    memory.jobs.remove(made.id)
    assert made.id not in {one.id for one in memory.jobs.load_cron_jobs()}
    told = [event for event in events(root) if event["event"] == "fault"]
    assert {event["job"] for event in told} == {"broken", "timeless", "../x y", "half"}


def test_all_faults_of_a_line_are_told_and_can_be_mended(memory: holdfast.Memory, root: Path) -> None:
    line = {"job": "bad", "name": "Bad", "schedule": "never", "timezone": "No/Where", "enabled": "no"}
    off = {"job": "off", "name": "Off", "message": "x", "schedule": YEARLY, "time": LAST_YEAR, "enabled": "no"}
    (root / "user/memory/jobs.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps(off)}\n")
    first, second = memory.call("cron_list")["jobs"]
    for told in ("has no time", "no message", "'no': use true or false", "schedule 'never'", 'time zone "No/Where"'):
        assert told in first["fault"]
    assert second["fault"] == "\"enabled\" is 'no': use true or false."
    assert memory.jobs.due() == []
    assert "| disabled | \"enabled\" is 'no'" in memory.call("cron_list")["text"]
    assert "fault" not in memory.call("cron_set_enabled", {"id": "off", "enabled": True})["job"]
    changed = [msgspec.structs.replace(one, enabled=True) for one in memory.jobs.load_cron_jobs() if one.id == "off"]
    assert memory.jobs.save_cron_jobs(changed)[0].enabled is True


def test_a_job_is_found_by_search_and_is_kept_by_nobody_else(memory: holdfast.Memory) -> None:
    made = memory.jobs.add("Tea", "Water the fern in the kitchen.", "@daily")
    (hit,) = memory.find("fern")
    assert (hit.record.kind, hit.record.title, hit.record.key) == ("job", "Tea", made.id)
    memory.jobs.remove(made.id)
    assert list(memory.find("fern")) == []
    for kind in ("job", "claim"):
        with pytest.raises(Invalid, match="written by Holdfast itself"):
            memory.put(kind, "x", fields={"job": "x"})  # type: ignore[arg-type]


# bad input


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"schedule": "x"}, "Invalid schedule 'x'. Use cron syntax or 'every N'."),
        ({"schedule": "every 0"}, "Invalid schedule 'every 0'. Use cron syntax or 'every N'."),
        ({"schedule": "every -1"}, "Invalid schedule 'every -1'. Use cron syntax or 'every N'."),
        ({"schedule": "every x"}, "Invalid schedule 'every x'. Use cron syntax or 'every N'."),
        ({"schedule": "0 0 30 2 *"}, "The schedule '0 0 30 2 *' never fires: there is no such day."),
        ({"timezone": "Europe/Berln"}, 'There is no time zone "Europe/Berln". Did you mean "Europe/Berlin"?'),
        ({"name": " "}, "Missing or blank: name."),
        ({"message": ""}, "Missing or blank: message."),
        ({"name": "a\nb"}, "The name contains a line break"),
        ({"name": "n" * 201}, "The name has 201 characters. Use at most 200."),
        ({"message": "m" * 10_001}, "The message has 10,001 characters. Use at most 10,000."),
        ({"message": "a\0b"}, "The message contains a NUL character."),
        ({"channel": "c\x1b[0m"}, "The channel contains a line break"),
    ],
)
def test_what_cannot_be_a_job_says_why(memory: holdfast.Memory, root: Path, given: dict[str, Any], said: str) -> None:
    usual = {"name": "Tea", "message": "Make tea.", "schedule": "@daily"}
    with pytest.raises(Invalid) as refused:
        memory.jobs.add(**usual | given)
    assert said in str(refused.value)
    reply = memory.call("cron_add", usual | given)
    assert reply["success"] is False and said in reply["error"] == reply["text"]
    assert not (root / "user/memory/jobs.jsonl").exists()


def test_an_unknown_job_names_the_list_and_one_that_is_close(memory: holdfast.Memory) -> None:
    made = memory.jobs.add("Standup", "Hi", "@daily")
    for call in (memory.jobs.remove, memory.jobs.get, lambda id: memory.jobs.set_enabled(id, True)):
        with pytest.raises(NotFound) as refused:
            call("Standap")
        assert str(refused.value) == (
            f'There is no job "Standap". Did you mean "{made.id}"? That is the id of "Standup". '
            "Use cron_list to see all jobs and their ids."
        )
    near = f"{made.id[:-1]}x"
    assert f'Did you mean "{made.id}"?' in memory.call("cron_remove", {"id": near})["error"]
    twin = memory.jobs.add("Standup", "Hi", "@daily")
    said = memory.call("cron_remove", {"id": "STANDUP"})["error"]
    assert f'Did you mean "{made.id}" or "{twin.id}"? These are the ids of "Standup".' in said
    with pytest.raises(NotFound, match="Use cron_list"):
        memory.jobs.log(job="nope")
    shown = on_terminal("jobs", "log", "nope", root=place(memory), code=3)
    assert 'There is no job "nope". Use `holdfast jobs list`' in shown


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda jobs: jobs.set_enabled("aaaa0000", "no"), "enabled is 'no'."),
        (lambda jobs: jobs.add(5, None, "@daily"), "name is 5."),
        (lambda jobs: jobs.add("Tea", None, "@daily"), "message is None."),
        (lambda jobs: jobs.add("Tea", "x", 7), "schedule is 7."),
        (lambda jobs: jobs.add("Tea", "x", "@daily", timezone=None), "timezone is None."),
        (lambda jobs: jobs.add("Tea", "x", "@daily", enabled="no"), "enabled is 'no'."),
        (lambda jobs: jobs.add("Tea", "x", "@daily", op_id=3), "op_id is 3."),
        (lambda jobs: jobs.save_cron_jobs(5), "jobs is 5."),
        (lambda jobs: jobs.save_cron_jobs("ab"), "'a' is not a job."),
        (lambda jobs: jobs.save_cron_jobs([{"name": "Tea", "when": "@daily"}]), "A job has no field when."),
        (lambda jobs: jobs.save_cron_jobs([{"name": "Tea", "message": "x"}]), "Missing or blank: schedule."),
        (lambda jobs: jobs.save_cron_jobs([job(id=5)]), "id is 5."),
        (lambda jobs: jobs.save_cron_jobs([job(id="a b")]), 'The id "a b" cannot be used.'),
        (lambda jobs: jobs.save_cron_jobs([job(id="new", since="soon")]), "since is 'soon'."),
        (lambda jobs: jobs.save_cron_jobs([job(id="new", enabled="no")]), "enabled is 'no'."),
        (lambda jobs: jobs.due("now"), "The time is 'now'."),
        (lambda jobs: jobs.claim(job(), "now"), "The time is 'now'."),
        (lambda jobs: jobs.claim("aaaa0000", datetime.now(UTC)), "'aaaa0000' is not a job."),
        (lambda jobs: jobs.next(None), "None is not a job."),
        (lambda jobs: jobs.get(5), "id is 5."),
        (lambda jobs: jobs.remove(None), "id is None."),
        (lambda jobs: jobs.log("x"), "count is 'x'."),
        (lambda jobs: jobs.log(job=5), "job is 5."),
    ],
)
def test_what_python_gives_is_checked(memory: holdfast.Memory, root: Path, call: Any, said: str) -> None:
    memory.jobs.save_cron_jobs([job(enabled=False)])
    before = (root / "user/memory/jobs.jsonl").read_bytes()
    with pytest.raises(Invalid) as refused:
        call(memory.jobs)
    assert str(refused.value).startswith(said)
    assert (root / "user/memory/jobs.jsonl").read_bytes() == before


def test_a_list_of_mappings_can_be_saved(memory: holdfast.Memory) -> None:
    (made,) = memory.jobs.save_cron_jobs([{"name": "Tea", "message": "Make tea.", "schedule": "@daily"}])
    assert memory.jobs.load_cron_jobs() == [made]
    (changed,) = memory.jobs.save_cron_jobs([msgspec.structs.asdict(made) | {"message": "Now."}])
    assert (changed.id, changed.message, changed.since) == (made.id, "Now.", made.since)


def test_there_is_a_most_of_jobs(memory: holdfast.Memory) -> None:
    many = [Job(name=f"Job {n}", message="x", schedule="@daily") for n in range(501)]
    with pytest.raises(OverBudget):
        memory.jobs.save_cron_jobs(many)
    assert len(memory.jobs.save_cron_jobs(many[:500])) == 500
    with pytest.raises(OverBudget, match="the limit is 500"):
        memory.jobs.add("One more", "x", "@daily")


# the tools


def test_the_tools_of_the_contract(memory: holdfast.Memory) -> None:
    assert memory.call("cron_list") == {"jobs": [], "text": "No jobs yet. Use cron_add to schedule one."}
    given = {"name": "Standup", "message": "Hi", "schedule": "0 9 * * 1-5", "timezone": "Europe/Berlin"}
    added = memory.call("cron_add", given)
    made = added["job"]["id"]
    assert added["text"].startswith(
        f'Job added: {made} "Standup" | 0 9 * * 1-5 | Europe/Berlin | to cli:local | enabled'
    )
    reply = memory.call("cron_list")
    (line,) = reply["text"].splitlines()
    (data,) = reply["jobs"]
    assert "09:00 CE" in data["next"] and f"next {data['next']} | never run | missed 0" in line
    assert data["channel"] == "cli:local" and data["enabled"] is True
    off = memory.call("cron_set_enabled", {"id": made, "enabled": False})
    assert "| disabled | next: none |" in off["text"] and off["job"]["enabled"] is False
    assert memory.call("cron_remove", {"id": made})["text"] == f'Job removed: {made} "Standup"'
    assert memory.call("cron_list")["jobs"] == []


def test_the_last_run_and_what_was_missed_are_listed(memory: holdfast.Memory) -> None:
    (kept,) = overdue(memory)
    (due,) = memory.jobs.due()
    memory.jobs.claim(kept, due.slot, 3)
    memory.jobs.finish(kept, due.slot, Ended(status="failed", exit=1))
    year = datetime.now(UTC).year
    assert f"last {year}-01-01 00:00 UTC (failed) | missed 3" in memory.call("cron_list")["text"]


def test_an_agent_cannot_set_a_command(memory: holdfast.Memory, root: Path, tmp_path: Path) -> None:
    """An agent schedules messages; what runs is the owner's setting alone."""
    for tool in toolsets.registry().tools.values():
        if tool.agent == "jobs":
            assert set(tool.params) <= {"name", "message", "schedule", "channel", "timezone", "enabled", "id"}
    given = {"name": "Tea", "message": "touch owned", "schedule": "every 1"}
    reply = memory.call("cron_add", given | {"command": "touch owned"})
    assert reply["error"].startswith("cron_add has no parameter command.")
    (kept,) = overdue(memory)
    path = root / "user/memory/jobs.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"command": ["touch", str(tmp_path / "owned")]}) + "\n")
    assert [event["event"] for event in events(root)] == ["started", "finished"]
    assert not (tmp_path / "owned").exists()
    (said,) = memory.tail("message")
    assert said.text == kept.message


# the scheduler


def test_without_a_command_the_message_goes_to_the_chat_history(memory: holdfast.Memory, root: Path) -> None:
    (kept,) = overdue(memory)
    started, finished = events(root)
    assert (started["event"], finished["event"], finished["status"]) == ("started", "finished", "done")
    assert events(root) == []
    (said,) = memory.tail("message")
    assert (said.text, said.fields["role"], said.fields["channel"]) == (kept.message, "user", kept.channel)
    assert said.fields["sender_id"] == f"job:{kept.name}"
    assert said.fields["op"] == f"job:{kept.id}@{started['slot']}"


def test_the_command_of_the_owner_runs_without_a_shell(memory: holdfast.Memory, root: Path) -> None:
    show = "import os,sys; print(sys.argv[1], sys.stdin.read(), *(os.environ['HOLDFAST_' + n] for n in sys.argv[2:]))"
    words = [sys.executable, "-c", show, "$(touch owned); 'x'", "JOB_ID", "JOB_NAME", "JOB_CHANNEL", "JOB_SLOT", "ROOT"]
    (root / "holdfast.toml").write_text(f"[jobs]\ncommand = {json.dumps(words)}\n")
    (kept,) = overdue(memory)
    _, finished = events(root)
    slot = f"{datetime.now(UTC).year}-01-01T00:00:00.000Z"
    told = f"$(touch owned); 'x' {kept.message} {kept.id} {kept.name} {kept.channel} {slot} {root}"
    assert (finished["status"], finished["exit"], finished["output"]) == ("done", 0, told)
    assert not list(root.rglob("owned"))
    assert memory.tail("message") == []
    (line,) = [line for line in claims(root) if "finish" in line]
    assert (line["exit"], line["output"]) == (0, told)


def test_a_failing_command_stops_nothing(memory: holdfast.Memory, root: Path, tmp_path: Path) -> None:
    overdue(memory, 2)
    told = events(root, "--command", "sh -c 'echo no; exit 7'", code=1)
    ended = [event for event in told if event["event"] == "finished"]
    assert [(event["status"], event["exit"], event["output"]) for event in ended] == [("failed", 7, "no")] * 2
    memory.jobs.save_cron_jobs([job(id="third", schedule=YEARLY, since=LAST_YEAR)])
    odd = tmp_path / "odd"
    odd.write_bytes(b"\0")
    odd.chmod(0o755)
    _, finished = events(root, "--command", str(odd), code=1)
    assert finished["status"] == "failed" and "could not be started" in finished["output"]


@pytest.mark.parametrize("program", ["/nowhere/program", "./program", "no-such-program", "."])
def test_for_a_program_that_is_not_there_no_slot_is_taken(memory: holdfast.Memory, root: Path, program: str) -> None:
    overdue(memory)
    for words in (("--once",), ()):
        done = scheduled(root, *words, "--command", program)
        assert (done.returncode, done.stdout) == (9, "")
        assert "was not found or is not executable" in json.loads(done.stderr)["error"]
    assert claims(root) == []
    assert [event["event"] for event in events(root)] == ["started", "finished"]


def test_a_relative_program_is_looked_for_where_it_was_named_and_runs_in_the_root(
    memory: holdfast.Memory, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for folder in (here, root):
        (folder / "say.sh").write_text(f"#!/bin/sh\necho {folder.name} in $(pwd)\n")
        (folder / "say.sh").chmod(0o755)
    monkeypatch.chdir(here)
    overdue(memory)
    _, finished = events(root, "--command", "./say.sh")
    assert (finished["status"], finished["output"]) == ("done", f"here in {root}")
    (root / "holdfast.toml").write_text('[jobs]\ncommand = ["./say.sh"]\n')
    memory.jobs.save_cron_jobs([job(id="second", schedule=YEARLY, since=LAST_YEAR)])
    _, finished = events(root)
    assert finished["output"] == f"{root.name} in {root}"


def test_a_command_that_takes_too_long_is_ended_with_all_it_started(
    memory: holdfast.Memory, root: Path, tmp_path: Path
) -> None:
    overdue(memory)
    pid = tmp_path / "pid"
    command = f"sh -c 'sleep 300 & echo $! > {pid}; echo begun; wait'"
    _, finished = events(root, "--command", command, code=1, HOLDFAST_JOBS_TIMEOUT_SECONDS="0.5")
    assert (finished["status"], finished["output"]) == ("timeout", "ended after 0.5 seconds\nbegun")
    assert finished["exit"] < 0
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pid)


def test_what_a_command_prints_is_bounded(memory: holdfast.Memory, root: Path) -> None:
    overdue(memory)
    _, finished = events(root, "--command", f"{sys.executable} -c \"print('x' * 5_000_000)\"")
    assert len(finished["output"]) == 2_000


def test_missed_slots_are_told_and_not_run(memory: holdfast.Memory, root: Path) -> None:
    memory.jobs.save_cron_jobs([job(schedule="@hourly", since=LAST_YEAR)])
    missed, started, _ = events(root)
    assert (missed["event"], missed["missed"], missed["slot"]) == ("missed", 1_000, started["slot"])
    assert missed["missedMore"] is True
    assert len(memory.tail("message", 10)) == 1
    listed = memory.call("cron_list")
    assert (listed["jobs"][0]["missed"], listed["jobs"][0]["missedMore"]) == (1_000, True)
    assert listed["text"].endswith("| missed 1000+")
    assert "1000+" in on_terminal("jobs", "list", root=root)
    assert "1000+" in on_terminal("jobs", "log", root=root)


def test_few_missed_slots_are_counted_and_one_is_one(memory: holdfast.Memory, root: Path) -> None:
    memory.jobs.save_cron_jobs([job(schedule="0 0 1 */6 *", since=LAST_YEAR)])
    slots = memory.jobs.missed(memory.jobs.get("aaaa0000"))
    assert "missedMore" not in memory.call("cron_list")["jobs"][0]
    said = on_terminal("jobs", "run", "--once", root=root)
    assert f"missed {slots} slot{'' if slots == 1 else 's'} before" in said


def test_two_schedulers_at_once_run_each_slot_once(memory: holdfast.Memory, root: Path, tmp_path: Path) -> None:
    for name in ("One", "Two"):
        memory.jobs.add(name, "tick", "every 1")
    out = tmp_path / "out"
    command = f"sh -c 'echo $HOLDFAST_JOB_ID $HOLDFAST_JOB_SLOT >> {out}'"
    running = [scheduler(root, "--command", command) for _ in range(2)]
    until = time.monotonic() + 60
    while not out.exists() or len(set(out.read_text().splitlines())) < 4:
        assert time.monotonic() < until
        time.sleep(0.1)
    for process in running:
        process.send_signal(signal.SIGTERM)
    for process in running:
        _, err = process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGTERM), err  # one that is only starting ends at once
    ran = Counter(out.read_text().splitlines())
    assert len(ran) >= 4
    assert set(ran.values()) == {1}
    assert len([line for line in claims(root) if "claim" in line]) == len(ran)
    assert memory.jobs.unfinished() == []


def test_a_scheduler_that_is_killed_leaves_the_slot_unfinished_and_nobody_runs_it_again(
    memory: holdfast.Memory, root: Path, tmp_path: Path
) -> None:
    (kept,) = overdue(memory)
    pid = tmp_path / "pid"
    process = scheduler(root, "--once", "--command", f"sh -c 'echo $$ > {pid}; exec sleep 300'")
    deadline = time.monotonic() + 30
    while not (pid.exists() and pid.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.communicate()
    os.kill(int(pid.read_text()), signal.SIGKILL)
    (told,) = events(root)
    assert (told["event"], told["job"]) == ("unfinished", kept.id)
    assert memory.tail("message") == []
    assert "(unfinished)" in memory.call("cron_list")["text"]


def test_schedulers_that_are_killed_anywhere_run_nothing_twice(
    memory: holdfast.Memory, root: Path, tmp_path: Path
) -> None:
    overdue(memory, 25)
    out, kills = tmp_path / "out", 0
    command = f"sh -c 'echo $HOLDFAST_JOB_ID >> {out}'"
    for _ in range(6):
        process = scheduler(root, "--once", "--command", command)
        time.sleep(random.uniform(0.3, 0.7))
        kills += process.poll() is None
        process.kill()
        process.communicate()
    events(root, "--command", command)
    ran = Counter(out.read_text().split())
    assert set(ran.values()) == {1}
    assert 25 - len(ran) <= kills, "a kill costs at most the slot that was just taken"
    assert len({line["claim"] for line in claims(root) if "claim" in line}) == 25
    assert memory.verify().sound


def test_a_signal_ends_the_scheduler_when_the_command_has_ended(
    memory: holdfast.Memory, root: Path, tmp_path: Path
) -> None:
    overdue(memory, 2)
    out = tmp_path / "out"
    process = scheduler(root, "--command", f"sh -c 'sleep 0.7; echo done >> {out}'")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["event"] == "started"
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert [json.loads(line)["event"] for line in rest.splitlines()] == ["finished"]
    assert out.read_text() == "done\n", "what has not begun does not begin any more"


def test_a_waiting_scheduler_sees_jobs_that_are_new(memory: holdfast.Memory, root: Path) -> None:
    process = scheduler(root)
    assert process.stdout is not None
    made = memory.jobs.add("New", "Hello.", "every 1")
    assert json.loads(process.stdout.readline())["job"] == made.id
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0


# the commands


def test_the_commands_on_a_terminal(memory: holdfast.Memory, root: Path) -> None:
    assert "No jobs yet." in on_terminal("jobs", "list", root=root)
    assert "No job was run yet." in on_terminal("jobs", "log", root=root)
    shown = on_terminal(
        "jobs", "add", "--name", "Tea", "--message", "Make tea.", "--schedule", "0 16 * * *", "--no-enabled", root=root
    )  # fmt: skip
    (kept,) = memory.jobs.load_cron_jobs()
    assert f'Job added: {kept.id} "Tea"' in shown and kept.enabled is False
    assert "Job enabled" in on_terminal("jobs", "enable", kept.id, root=root)
    assert "Job disabled" in on_terminal("jobs", "disable", kept.id, root=root)
    shown = on_terminal("jobs", "list", root=root)
    assert kept.id in shown and "0 16 * * *" in shown and "missed" in shown
    memory.jobs.save_cron_jobs([job(schedule="@daily", since=LAST_YEAR)])
    shown = on_terminal("jobs", "run", "--once", root=root)
    assert "aaaa0000 Tea  missed" in shown and "done after" in shown
    assert "added to the chat" in on_terminal("jobs", "log", root=root)
    assert "Job removed" in on_terminal("jobs", "remove", "aaaa0000", root=root)


@pytest.mark.parametrize("columns", [40, 80, 100])
def test_on_a_narrow_terminal_ids_are_whole_and_faults_are_seen(
    memory: holdfast.Memory, root: Path, columns: int
) -> None:
    name = "The standup of the whole team in Berlin and elsewhere"
    overdue(memory)
    made = memory.jobs.add(name, "Hi", "0 9 * * 1-5", "matrix:#a-long-name-of-a-room", "Europe/Berlin")
    memory.jobs.add("Tea", "x", "@daily")
    with (root / "user/memory/jobs.jsonl").open("a") as file:
        file.write(json.dumps({"job": "broken", "name": "Broken", "message": "x", "schedule": "whenever"}) + "\n")
    events(root)
    shown = on_terminal("jobs", "list", root=root, columns=columns)
    for one in memory.jobs.all():
        assert one.id in shown.split()
    assert "broken" in shown and "Invalid schedule 'whenever'." in shown
    (ran,) = memory.jobs.log()
    assert ran.job in on_terminal("jobs", "log", root=root, columns=columns).split()
    plain = on_terminal("jobs", "list", root=root, columns=columns, NO_COLOR="1")
    assert made.id in plain and "\x1b" not in plain
    assert "\x1b" not in on_terminal("jobs", "log", "nope", root=root, code=3, NO_COLOR="1")
    assert "\x1b[31m" in on_terminal("jobs", "log", "nope", root=root, code=3)


def test_nothing_that_is_due_is_said_and_a_failure_is_in_the_exit_code(memory: holdfast.Memory, root: Path) -> None:
    assert on_terminal("jobs", "run", "--once", root=root).strip() == "Nothing is due."
    overdue(memory)
    shown = on_terminal("jobs", "run", "--once", "--command", "false", root=root, code=1)
    assert "failed with 1" in shown and "Nothing is due." not in shown


def test_the_commands_in_a_pipe(memory: holdfast.Memory, root: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "holdfast", "jobs", *words, "--root", str(root), "--json"]
        return fork_server.run(command, capture_output=True, text=True, timeout=60)

    (kept,) = overdue(memory)
    listed = json.loads(run("list").stdout)
    assert [one["id"] for one in listed["jobs"]] == [kept.id]
    events(root)
    (ran,) = json.loads(run("log").stdout)
    assert (ran["job"], ran["status"], ran["missed"]) == (kept.id, "done", 0)
    refused = run("remove", "nothing")
    assert refused.returncode == 3 and json.loads(refused.stderr)["kind"] == "NotFound"
    assert run("run", "--once", "--command", "'open").returncode == 2
    assert run("disable", kept.id).returncode == 0
    assert json.loads(run("list").stdout)["jobs"][0]["enabled"] is False


def test_settings_of_jobs_are_bounded_and_may_come_from_the_environment() -> None:
    made = load("", {"HOLDFAST_JOBS_COMMAND": "notify 'to me' now", "HOLDFAST_JOBS_TIMEOUT_SECONDS": "5"}).jobs
    assert (made.command, made.timeout_seconds) == (("notify", "to me", "now"), 5)
    for text in ("command = 'sh -c x'", "timeout_seconds = 0", "shell = true"):
        with pytest.raises(Invalid):
            load(f"[jobs]\n{text}\n", {})
    with pytest.raises(Invalid, match="split into words"):
        load("", {"HOLDFAST_JOBS_COMMAND": "'open"})
