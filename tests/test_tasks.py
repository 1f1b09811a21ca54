"""Tasks: what is ready, who works on it, how it ends; on files and in a database, with threads and killed processes."""

from __future__ import annotations

import itertools
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fork_server
import holdfast
from holdfast.errors import Conflict, HoldfastError, Invalid, NotFound, OverBudget
from holdfast.formats.jsonl import parse
from holdfast.formats.tasks import Graph, Task
from holdfast.roots import make_root
from holdfast.tools import toolsets
from terminal import on_terminal

LOG = "user/memory/workspaces/default/tasks.jsonl"
SHORT = 1.0
"""The shortest lease there is."""


@pytest.fixture(params=["files", "database"])
def where(request: pytest.FixtureRequest) -> str:
    """The place of a memory for one test: a folder, or the address of a database."""
    return str(request.getfixturevalue("root" if request.param == "files" else "address"))


@pytest.fixture
def memory(where: str) -> Iterator[holdfast.Memory]:
    with holdfast.open(where) as opened:
        yield opened


def take(memory: holdfast.Memory, worker: str = "w", **more: Any) -> tuple[Task, str]:
    claim = memory.tasks.claim(worker, **more)
    assert claim is not None
    return claim.task, claim.attempt.id


def status(memory: holdfast.Memory, task: Task) -> str:
    return memory.tasks.all().standings[task.id].status


def lines(memory: holdfast.Memory) -> list[dict[str, Any]]:
    return [value for line in memory.tree.scan(LOG) for value in parse(line.data) if isinstance(value, dict)]


def past(memory: holdfast.Memory, until: str) -> None:
    """Wait until a moment has passed by the clock that leases go by."""
    from holdfast.model.times import parse_ms

    while memory.tasks.outlook()[0] <= (parse_ms(until) or 0):
        time.sleep(0.02)


# what is ready


def test_the_most_important_task_comes_first_then_the_oldest(memory: holdfast.Memory) -> None:
    for title, priority in (("b", 5), ("c", 5), ("a", 9), ("d", 1)):
        memory.tasks.create(title, priority=priority)
    assert [take(memory)[0].title for _ in range(4)] == ["a", "b", "c", "d"]
    assert memory.tasks.claim("w") is None


def test_a_task_waits_for_those_before_it_and_gets_their_results(memory: holdfast.Memory) -> None:
    last, left, right = memory.tasks.create_all(
        [
            {"title": "Join", "after": ["left", "right"], "instructions": "Add them."},
            {"title": "Left", "name": "left"},
            {"title": "Right", "name": "right"},
        ]
    )
    assert last.after == [left.id, right.id]
    for result in ({"sum": 1}, "two"):
        task, attempt = take(memory)
        assert task.id != last.id
        memory.tasks.report(task.id, attempt, "done", result=result)
    claim = memory.tasks.claim("w")
    assert claim is not None
    assert claim.task.id == last.id
    assert [one.done.result for one in claim.before if one.done] == [{"sum": 1}, "two"]


def test_a_task_added_behind_one_that_is_done_is_ready_at_once(memory: holdfast.Memory) -> None:
    first = memory.tasks.create("first")
    memory.tasks.report(first.id, take(memory)[1], "done")
    second = memory.tasks.create("second", after=[first.id])
    assert status(memory, second) == "ready"
    assert take(memory)[0].id == second.id


def test_a_worker_can_ask_for_a_kind_of_work_and_for_a_graph(memory: holdfast.Memory) -> None:
    memory.tasks.create("docs", tags=["docs"])
    memory.tasks.create("code", tags=["code", "python"])
    memory.tasks.create("other", graph="g", tags=["code"])
    assert memory.tasks.claim("w", tags=["design"]) is None
    assert take(memory, tags=["code"], graph="g")[0].title == "other"
    assert take(memory, tags=["python", "docs"])[0].title == "docs"
    assert take(memory)[0].title == "code"


def test_nothing_ready_says_what_there_is(memory: holdfast.Memory) -> None:
    assert memory.call("task_claim", {"worker": "w"})["text"] == "Nothing is ready: there is no open task."
    with pytest.raises(NotFound):
        memory.tasks.heartbeat("t0", "1-0")
    assert memory.tree.stat(LOG) is None  # looking leaves nothing behind
    first = memory.tasks.create("first")
    memory.tasks.create("second", after=[first.id])
    take(memory)
    reply = memory.call("task_claim", {"worker": "w"})
    assert reply["task"] is None
    assert (reply["running"], reply["waiting"], reply["later"]) == (1, 1, 0)
    assert "1 running, 1 waiting for others" in reply["text"]


# how it ends


def test_a_failure_is_tried_again_after_a_pause_then_it_blocks_what_waits(memory: holdfast.Memory) -> None:
    first = memory.tasks.create("first", attempts=2, pause=0.2)
    second = memory.tasks.create("second", after=[first.id])
    third = memory.tasks.create("third", after=[second.id])
    failed = memory.tasks.report(first.id, take(memory)[1], "failed", error="no network")
    assert status(memory, first) == "later"
    past(memory, memory.call("task_list", {"ids": [first.id]})["tasks"][0]["again"])
    task, attempt = take(memory)
    assert task.id == failed.id
    assert [one.error for one in task.attempts] == ["no network", ""]
    memory.tasks.report(first.id, attempt, "failed", error="no power")
    listed = memory.tasks.all()
    assert [listed.standings[one.id].status for one in (first, second, third)] == ["failed", "blocked", "blocked"]
    assert listed.standings[third.id].by == (first.id,)
    assert listed.counts == {"blocked": 2, "failed": 1}
    assert memory.tasks.claim("w") is None
    memory.tasks.retry(first.id)
    memory.tasks.report(first.id, take(memory)[1], "done")
    assert take(memory)[0].id == second.id


def test_what_is_given_back_costs_no_attempt(memory: holdfast.Memory) -> None:
    task = memory.tasks.create("one", attempts=1)
    for _ in range(3):
        memory.tasks.report(task.id, take(memory)[1], "released")
    assert status(memory, task) == "ready"


def test_cancelling_stops_a_task_and_tells_its_worker(memory: holdfast.Memory) -> None:
    task = memory.tasks.create("one")
    after = memory.tasks.create("two", after=[task.id])
    _, attempt = take(memory)
    memory.tasks.cancel(task.id, "not needed")
    assert [status(memory, one) for one in (task, after)] == ["cancelled", "blocked"]
    with pytest.raises(Conflict, match="was cancelled: not needed"):
        memory.tasks.heartbeat(task.id, attempt)
    with pytest.raises(Conflict, match="was cancelled: not needed"):
        memory.tasks.report(task.id, attempt, "done")
    memory.tasks.retry(task.id)
    memory.tasks.report(task.id, take(memory)[1], "done")
    with pytest.raises(Conflict, match="is done"):
        memory.tasks.cancel(task.id)
    with pytest.raises(Conflict, match="nothing to retry"):
        memory.tasks.retry(task.id)


def test_a_report_may_be_repeated_but_not_changed(memory: holdfast.Memory) -> None:
    task = memory.tasks.create("one")
    _, attempt = take(memory)
    memory.tasks.report(task.id, attempt, "done", result=1)
    before = len(lines(memory))
    assert memory.tasks.report(task.id, attempt, "done", result=2).done.result == 1  # type: ignore[union-attr]
    with pytest.raises(Conflict, match="was reported as done before"):
        memory.tasks.report(task.id, attempt, "failed")
    with pytest.raises(Conflict, match="was reported as done before"):
        memory.tasks.heartbeat(task.id, attempt)
    assert len(lines(memory)) == before


# leases


def test_a_heartbeat_holds_on_and_says_how_far_it_is(memory: holdfast.Memory) -> None:
    task = memory.tasks.create("one", lease=SHORT)
    held, attempt = take(memory, "anna")
    after = memory.tasks.heartbeat(task.id, attempt, progress="half", percent=50, lease=60)
    assert after.last is not None and held.last is not None
    assert after.last.until > held.last.until
    past(memory, held.last.until)
    assert memory.tasks.claim("otto") is None
    reply = memory.call("task_list")
    assert reply["workers"] == {"anna": [task.id]}
    shown = reply["tasks"][0]
    assert (shown["worker"], shown["progress"], shown["percent"]) == ("anna", "half", 50.0)
    assert memory.tasks.heartbeat(task.id, attempt).last.progress == "half"  # type: ignore[union-attr]


def test_a_lease_that_ran_out_is_taken_over_and_the_late_report_refused(memory: holdfast.Memory) -> None:
    task = memory.tasks.create("one", lease=SHORT)
    late, first = take(memory, "late")
    assert late.last is not None
    past(memory, late.last.until)
    assert status(memory, task) == "ready"
    _, second = take(memory, "next", lease=60)
    lost = f"lost its lease, and next took it over as attempt {second}"
    with pytest.raises(Conflict, match=lost):
        memory.tasks.report(task.id, first, "done")
    with pytest.raises(Conflict, match=lost):
        memory.tasks.heartbeat(task.id, first)
    assert memory.tasks.report(task.id, second, "done").done.worker == "next"  # type: ignore[union-attr]


def test_a_late_report_counts_when_nobody_took_the_task(memory: holdfast.Memory) -> None:
    task = memory.tasks.create("one", lease=SHORT, attempts=1)
    held, attempt = take(memory)
    assert held.last is not None
    past(memory, held.last.until)
    assert status(memory, task) == "failed"  # it was its only attempt
    assert memory.tasks.claim("w") is None
    memory.tasks.report(task.id, attempt, "done")
    assert status(memory, task) == "done"


# once


def test_an_op_id_does_each_thing_once(memory: holdfast.Memory) -> None:
    made = [memory.tasks.create_all([{"title": "a"}, {"title": "b"}], op_id="make") for _ in range(2)]
    assert [task.id for task in made[0]] == [task.id for task in made[1]]
    claims = [take(memory, op_id="take") for _ in range(2)]
    assert claims[0][1] == claims[1][1]
    task, attempt = claims[0]
    for _ in range(2):
        memory.tasks.heartbeat(task.id, attempt, op_id="beat")
    for _ in range(2):
        memory.tasks.report(task.id, attempt, "failed", op_id="end")
    assert Counter(line["event"] for line in lines(memory)) == {
        "created": 2, "claimed": 1, "heartbeat": 1, "reported": 1,
    }  # fmt: skip
    with pytest.raises(Conflict, match="used for something else"):
        memory.tasks.claim("w", op_id="make")
    assert memory.tasks.claim("w", op_id="none", tags=["nothing"]) is None
    assert memory.tasks.claim("w", op_id="none") is not None  # an op_id that did nothing is still free


def test_tasks_of_one_call_are_all_there_or_none(memory: holdfast.Memory) -> None:
    with pytest.raises(NotFound, match='no task "nowhere"'):
        memory.tasks.create_all([{"title": "a"}, {"title": "b", "after": ["nowhere"]}])
    assert memory.tasks.all().tasks == []


def test_a_graph_that_waits_for_itself_is_refused(memory: holdfast.Memory) -> None:
    circle = [{"title": name, "name": name, "after": [after]} for name, after in (("a", "c"), ("b", "a"), ("c", "b"))]
    with pytest.raises(Invalid, match="wait for each other: a → c → b → a"):
        memory.tasks.create_all([{"title": "free", "name": "free"}, *circle])
    with pytest.raises(Invalid, match="wait for each other: a → a"):
        memory.tasks.create_all([{"title": "a", "name": "a", "after": ["a"]}])


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"title": " "}, Invalid),
        ({"title": "x" * 201}, OverBudget),
        ({"title": "a", "instructions": "x" * 100_001}, OverBudget),
        ({"title": "a", "priority": 11}, Invalid),
        ({"title": "a", "lease": 0}, Invalid),
        ({"title": "a", "attempts": 0}, Invalid),
        ({"title": "a", "pause": -1}, Invalid),
        ({"title": "a", "lease": "soon"}, Invalid),
        ({"title": "a", "lease": float("nan")}, Invalid),
        ({"title": "a", "tags": [""]}, Invalid),
        ({"title": "a", "tags": ["a\0b"]}, Invalid),
        ({"title": "a", "after": ["\0"]}, HoldfastError),
        ({"title": "a", "afer": []}, Invalid),
        ({"title": "half \ud800"}, Invalid),
        ("a", Invalid),
    ],
)
def test_a_task_that_cannot_be_is_refused(memory: holdfast.Memory, given: Any, error: type[HoldfastError]) -> None:
    with pytest.raises(error):
        memory.tasks.create_all([given])
    assert memory.tasks.all().tasks == []


def test_what_workers_send_is_checked(memory: holdfast.Memory) -> None:
    task = memory.tasks.create("one")
    _, attempt = take(memory)
    tasks = memory.tasks
    bad: list[tuple[Any, type[HoldfastError]]] = [
        (lambda: tasks.claim(" "), Invalid),
        (lambda: tasks.claim("x" * 101), OverBudget),
        (lambda: tasks.claim("w", lease=-1), Invalid),
        (lambda: tasks.claim("w", graph="\0"), Invalid),
        (lambda: tasks.claim("w", workspace="nowhere"), NotFound),
        (lambda: tasks.claim("w", op_id="no spaces"), Invalid),
        (lambda: tasks.heartbeat(task.id, attempt, percent=101), Invalid),
        (lambda: tasks.heartbeat("t\0", attempt), NotFound),
        (lambda: tasks.heartbeat(task.id, "1-none"), NotFound),
        (lambda: tasks.report(task.id, attempt, "finished"), Invalid),
        (lambda: tasks.report(task.id, attempt, "done", result="x" * 100_001), OverBudget),
        (lambda: tasks.report(task.id, attempt, "done", result=object()), Invalid),
        (lambda: tasks.report("t0", attempt, "done"), NotFound),
        (lambda: tasks.report(task.id, attempt, "failed", error="sk-ant-api03-" + "a1B2" * 24), Invalid),
        (lambda: tasks.all(["finished"]), Invalid),
        (lambda: tasks.all(ids=["t0"]), NotFound),
    ]
    before = len(lines(memory))
    for call, error in bad:
        with pytest.raises(error):
            call()
    assert len(lines(memory)) == before


# workspaces, tools, commands


def test_tasks_belong_to_a_workspace_and_an_id_is_found_in_any(memory: holdfast.Memory) -> None:
    memory.put("overview", "The shop.", title="Shop")
    task = memory.tasks.create("in the shop", workspace="Shop")
    assert memory.tasks.claim("w") is None
    held, attempt = take(memory, workspace="shop")
    assert held.id == task.id
    memory.tasks.report(task.id, attempt, "done")  # without saying where it is
    assert memory.tasks.get(task.id).done is not None
    assert memory.tasks.all().tasks == []


def test_the_tools_say_how_to_go_on(memory: holdfast.Memory) -> None:
    made = memory.call("task_create", {"title": "Measure", "instructions": "Run the load test.", "attempts": 2})
    identifier = made["tasks"][0]["id"]
    claim = memory.call("task_claim", {"worker": "anna"})
    assert claim["task"]["instructions"] == "Run the load test."
    for part in ("Run the load test.", f"attempt='{claim['attempt']}'", "task_heartbeat", "task_report"):
        assert part in claim["text"]
    ended = memory.call(
        "task_report", {"id": identifier, "attempt": claim["attempt"], "status": "failed", "error": "No disk."}
    )
    assert "can be claimed again from" in ended["text"]
    assert "No disk." in memory.call("task_list")["text"]
    assert (
        memory.call("task_report", {"id": identifier, "status": "cancelled", "error": "enough"})["status"]
        == "cancelled"
    )
    assert memory.call("task_report", {"id": identifier, "status": "done"})["success"] is False
    assert memory.call("task_create", {})["success"] is False
    assert "task_list" in toolsets.registry().agents()["tasks"]


def test_a_list_is_a_tree(memory: holdfast.Memory) -> None:
    memory.tasks.create_all(
        [
            {"title": "a", "name": "a"},
            {"title": "x"},
            {"title": "b", "name": "b", "after": ["a"]},
            {"title": "c", "after": ["b"]},
        ]
    )
    assert [(depth, task.title) for depth, task in memory.tasks.all().tasks] == [(0, "a"), (1, "b"), (2, "c"), (0, "x")]
    listed = memory.call("task_list", {"status": ["waiting"]})
    assert [task["title"] for task in listed["tasks"]] == ["b", "c"]
    assert listed["counts"] == {"ready": 2, "waiting": 2}


def test_a_deep_and_a_wide_graph_are_no_trouble(memory: holdfast.Memory) -> None:
    chain = [{"title": f"n{number}", "name": f"n{number}", "after": [f"n{number + 1}"]} for number in range(998)]
    memory.tasks.create_all([*chain, {"title": "n998", "name": "n998"}])
    held, attempt = take(memory)
    assert held.title == "n998"
    memory.tasks.report(held.id, attempt, "done")
    wide = memory.tasks.create_all(
        [{"title": f"w{number}", "after": [held.id], "priority": 9} for number in range(500)]
    )
    assert take(memory)[0].id == wide[0].id
    assert memory.tasks.all().counts == {"ready": 500, "running": 1, "waiting": 997, "done": 1}


def command(where: str, *words: str) -> Any:
    done = fork_server.run(
        [sys.executable, "-m", "holdfast", "task", *words, "--root", where], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_orchestrator_and_a_worker_on_the_command_line(where: str) -> None:
    made = command(
        where, "create", "--graph", "release", "--tasks", '{"name": "build", "title": "Build"}',
        "--tasks", '{"title": "Publish", "after": ["build"]}',
    )  # fmt: skip
    build, publish = (task["id"] for task in made["tasks"])
    claim = command(where, "claim", "anna")
    assert claim["task"]["id"] == build
    command(where, "heartbeat", "--id", build, "--attempt", claim["attempt"], "--percent", "40")
    command(where, "report", "--id", build, "--attempt", claim["attempt"], "--status", "done", "--result", '{"n": 1}')
    assert command(where, "claim", "otto")["before"][0]["result"] == {"n": 1}
    text = on_terminal("task", "list", root=Path(), HOLDFAST_ROOT=where)
    for part in (build, publish, "running", "otto", "1/3", "Publish", "1 done"):
        assert part in text


def test_the_guide_can_be_followed(root: Path) -> None:
    guide = (Path(__file__).parent.parent / "docs/guides/tasks.md").read_text(encoding="utf-8")
    block = "".join(part.split("```")[0] for part in guide.split("```sh")[1:]).replace("\\\n", "")
    claims: list[dict[str, Any]] = []
    for line in block.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        mine = claims[0 if "done" not in words and "heartbeat" not in words else -1] if claims else {}
        known = {"$ID": mine.get("task", {}).get("id"), "$ATTEMPT": mine.get("attempt")}
        reply = command(str(root), *(known.get(word) or word for word in words[2:]))
        claims += [reply] if words[2] == "claim" else []
    assert [claim["task"]["title"] for claim in claims] == ["Run all tests", "Write the release notes"]
    code = guide.split("```python")[1].split("```")[0]
    with holdfast.open(root) as memory:
        memory.tasks.claim("nobody", graph="release")
        exec(code, {"memory": memory})
        assert memory.tasks.all().counts == {"blocked": 1, "done": 3, "cancelled": 1}


# the log is the truth


def test_lines_say_the_same_in_any_order(root: Path) -> None:
    with holdfast.open(root) as memory:
        one = memory.tasks.create("one", pause=0)
        two = memory.tasks.create("two", after=[one.id])
        memory.tasks.report(one.id, take(memory)[1], "failed", error="x")
        _, attempt = take(memory)
        memory.tasks.heartbeat(one.id, attempt, progress="far")
        memory.tasks.report(one.id, attempt, "done", result=1)
        memory.tasks.cancel(two.id)
        memory.tasks.retry(two.id)
        take(memory)
        known = lines(memory)
        now = memory.tasks.outlook()[0]
    chance = random.Random(3)
    seen = []
    for _ in range(50):
        chance.shuffle(known)
        graph = Graph()
        for line in known:
            graph.add(line)
        tasks = graph.every()
        seen.append((tasks, [graph.waiting[one] for one in tasks], [task.outcome(now) for task in tasks.values()]))
    assert all(one == seen[0] for one in seen)
    assert seen[0][2] == ["done", "running"]


def test_lines_from_elsewhere_are_seen(where: str) -> None:
    with holdfast.open(where) as memory, holdfast.open(where) as other:
        first = memory.tasks.create("first")
        second = other.tasks.create("second", after=[first.id])
        assert memory.tasks.get(second.id).title == "second"
        memory.tasks.report(first.id, take(other)[1], "done")
        assert take(memory)[0].id == second.id
        moved = memory.tree.read(LOG).data
        memory.tree.remove(LOG)
        assert memory.tasks.all().tasks == []
        assert memory.tasks.claim("w") is None
        other.store.import_lines(LOG, moved.splitlines())
        assert sorted(memory.tasks.all().counts) == ["done", "running"]


def test_what_a_person_writes_counts_and_what_cannot_be_read_is_passed_over(root: Path) -> None:
    with holdfast.open(root) as memory:
        task = memory.tasks.create("one")
        with (root / LOG).open("a") as file:
            file.write('{"event": "claimed", "task": \n{"event": "claimed", "task": 7}\n')
            file.write('{"event": "created", "task": "mine", "title": "By hand", "priority": 9, "attempts": "many"}\n')
            for one, other in (("x", "y"), ("y", "x")):
                file.write(json.dumps({"event": "created", "task": one, "title": "Circle", "after": [other]}) + "\n")
        assert [take(memory)[0].id for _ in range(2)] == ["mine", task.id]
        assert memory.tasks.claim("w") is None
        assert memory.tasks.all().counts == {"running": 2, "blocked": 2}
        assert len(memory.tasks.all().tasks) == 4
        assert "cannot be read" in memory.call("task_list")["warnings"][0]


# many workers

WORKER = """
import os, sys, holdfast
where, name = sys.argv[1:]
with holdfast.open(where) as memory:
    print("ready", flush=True)
    sys.stdin.readline()
    while claim := memory.tasks.claim(name):
        memory.tasks.report(claim.task.id, claim.attempt.id, "done", result=name)
        print(claim.task.id, flush=True)
"""


def workers(where: str, code: str, count: int) -> list[subprocess.Popen[str]]:
    """Start workers that have said that they are ready."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, where, f"w{number}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for number in range(count)
    ]
    for one in started:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    return started


def test_eight_workers_do_each_of_500_tasks_once(where: str) -> None:
    with holdfast.open(where) as memory:
        made = memory.tasks.create_all([{"title": f"task {number}"} for number in range(500)])
        started = workers(where, WORKER, 8)
        told = [one.communicate("\n", timeout=300)[0].split() for one in started]
        assert [one.returncode for one in started] == [0] * 8
        done = Counter(itertools.chain(*told))
        assert done == {task.id: 1 for task in made}
        assert memory.tasks.all().counts == {"done": 500}
        assert Counter(line["event"] for line in lines(memory)) == {"created": 500, "claimed": 500, "reported": 500}


HOLDER = """
import sys, holdfast
from holdfast.errors import HoldfastError
where, name = sys.argv[1:]
with holdfast.open(where) as memory:
    claim = memory.tasks.claim(name)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        memory.tasks.report(claim.task.id, claim.attempt.id, "done", result=name)
        print("done")
    except HoldfastError as error:
        print(type(error).__name__, error)
"""


def test_what_the_dead_and_the_paused_held_is_done_by_others(where: str) -> None:
    with holdfast.open(where) as memory:
        memory.tasks.create_all([{"title": f"task {number}", "lease": 2} for number in range(4)])
        started = workers(where, HOLDER, 4)
        for one in started[:2]:
            one.kill()
        for one in started[2:]:
            os.kill(one.pid, signal.SIGSTOP)
        past(memory, max(task.last.until for _, task in memory.tasks.all().tasks if task.last))
        again = [take(memory, "otto", lease=60) for _ in range(4)]
        for one in started[2:]:
            os.kill(one.pid, signal.SIGCONT)
            told = one.communicate("\n", timeout=60)[0]
            assert told.startswith("Conflict ")
            assert "otto took it over" in told
        for one in started[:2]:
            one.communicate(timeout=60)
            assert one.returncode == -signal.SIGKILL
        for task, attempt in again:
            memory.tasks.report(task.id, attempt, "done", result="otto")
        assert [task.done.result for _, task in memory.tasks.all().tasks if task.done] == ["otto"] * 4


def test_a_link_out_of_the_root_hides_no_task(tmp_path: Path) -> None:
    """A task is found in any workspace, also beside a folder that cannot be read."""
    root = tmp_path / "root"
    make_root(str(root))
    with holdfast.open(root) as memory:
        made = memory.tasks.create("Paint the fence")
        (root / "user/memory/workspaces/stray").symlink_to("/etc")
        memory.call("createWorkspace", {"name": "W", "description": "d", "rootFolder": "w", "purpose": "p"})
        assert memory.tasks.get(made.id, "W").title == "Paint the fence"
        with pytest.raises(NotFound):
            memory.tasks.get("unknown", "W")
