"""Tasks in a database under stress: races, lost connections, lost answers, other tenants, readers."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import holdfast
import pgserver
from holdfast.errors import Conflict, HoldfastError, Unavailable
from holdfast.formats.jsonl import parse
from holdfast.memories.tasks import Tasks
from test_postgres_faults import Proxy, proxied

__all__ = ["proxied"]  # a fixture, which tests name

LOG = "user/memory/workspaces/default/tasks.jsonl"


def events(memory: holdfast.Memory) -> Counter[str]:
    found = [value for line in memory.tree.scan(LOG) for value in parse(line.data) if isinstance(value, dict)]
    return Counter(value["event"] for value in found)


def test_tasks_that_are_added_behind_others_while_those_end_are_all_done(address: str) -> None:
    """Whoever adds a task behind another and whoever ends that other agree on whether it still waits."""
    total = 120
    with holdfast.open(address) as memory:
        made = [memory.tasks.create("start").id]
        ended = threading.Event()

        def add(seed: int) -> None:
            chance = random.Random(seed)
            for number in range(total // 2):
                after = sorted({chance.choice(made[-6:]) for _ in range(3)})
                made.append(memory.tasks.create(f"{seed}-{number}", after=after, priority=chance.randint(1, 10)).id)

        def work(name: str) -> None:
            with holdfast.open(address) as mine:
                while True:
                    last = ended.is_set()
                    claim = mine.tasks.claim(name)
                    if claim:
                        mine.tasks.report(claim.task.id, claim.attempt.id, "done")
                    elif last and not mine.tasks.outlook()[1].running:
                        return

        with ThreadPoolExecutor(6) as pool:
            workers = [pool.submit(work, f"w{number}") for number in range(4)]
            for adder in [pool.submit(add, seed) for seed in (1, 2)]:
                adder.result(timeout=120)
            ended.set()
            for worker in workers:
                worker.result(timeout=120)
        assert memory.tasks.all().counts == {"done": total + 1}
        assert events(memory) == {"created": total + 1, "claimed": total + 1, "reported": total + 1}


def test_one_op_id_of_many_at_the_same_moment_is_done_once(address: str) -> None:
    with holdfast.open(address) as memory:
        memory.tasks.create_all([{"title": "one"}, {"title": "two"}, {"title": "three"}])
        together = threading.Barrier(6)

        def take(_number: int) -> str:
            together.wait(60)
            claim = memory.tasks.claim("w", op_id="same")
            assert claim is not None
            return claim.attempt.id

        with ThreadPoolExecutor(6) as pool:
            assert len(set(pool.map(take, range(6)))) == 1
        assert events(memory) == {"created": 3, "claimed": 1}


@pytest.mark.parametrize("_turn", range(3))
def test_of_a_late_report_and_claims_at_the_same_moment_one_counts(address: str, _turn: int) -> None:
    with holdfast.open(address) as memory:
        task = memory.tasks.create("one", lease=1.0)
        claim = memory.tasks.claim("late")
        assert claim is not None
        attempt = claim.attempt.id
        while memory.tasks.outlook()[1].running:
            time.sleep(0.02)
        together = threading.Barrier(4)

        def late() -> object:
            together.wait(60)
            try:
                return memory.tasks.report(task.id, attempt, "done").id
            except Conflict:
                return None

        def take() -> object:
            together.wait(60)
            return memory.tasks.claim("next", lease=60)

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(call) for call in (late, take, take, take)]
            assert len([future for future in futures if future.result(timeout=60)]) == 1


def test_work_goes_on_while_connections_are_cut(server: pgserver.Server, database: str, address: str) -> None:
    cutting = (
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        f" WHERE application_name = 'holdfast' AND datname = '{database}'"
    )
    with holdfast.open(address) as memory:
        memory.tasks.create_all([{"title": f"task {number}", "lease": 600} for number in range(60)])
        done: list[str] = []
        unsure: list[str] = []

        def work(name: str) -> None:
            while True:
                try:
                    claim = memory.tasks.claim(name)
                    if claim is None:
                        return
                    memory.tasks.report(claim.task.id, claim.attempt.id, "done", result=name)
                    done.append(claim.task.id)
                except Unavailable as error:
                    unsure.append(str(error))

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(work, f"w{number}") for number in range(4)]
            for _ in range(15):
                if all(future.done() for future in futures):
                    break
                server.run(cutting)
                threading.Event().wait(0.1)
            for future in futures:
                future.result(timeout=120)
        assert len(set(done)) == len(done)
        listed = memory.tasks.all()
        known = {task.id: task for _, task in listed.tasks}
        assert all(known[one].done for one in done)  # what was acknowledged is there
        assert len(done) >= 60 - len(unsure)
        assert events(memory)["claimed"] <= 60 + len(unsure)


@pytest.mark.parametrize("verdict", ["question", "answer"])
@pytest.mark.parametrize("what", ["create", "claim", "heartbeat", "report"])
def test_a_commit_that_is_lost_on_its_way_takes_effect_once(
    proxied: tuple[Proxy, str],
    address: str,
    what: str,
    verdict: str,
) -> None:
    proxy, dsn = proxied
    with holdfast.open(dsn) as memory, holdfast.open(address) as direct:
        direct.tasks.create_all([{"title": "one"}, {"title": "two"}])
        held = direct.tasks.claim("w")
        assert held is not None
        mine = (held.task.id, held.attempt.id)
        calls: dict[str, Callable[[Tasks], Any]] = {
            "create": lambda tasks: tasks.create("three"),
            "claim": lambda tasks: tasks.claim("v"),
            "heartbeat": lambda tasks: tasks.heartbeat(*mine, progress="far"),
            "report": lambda tasks: tasks.report(*mine, "done", result=1),
        }
        memory.tasks.all()
        proxy.lose = lambda data: verdict if b"COMMIT" in data and not proxy.lost else ""
        answer = calls[what](memory.tasks)
        assert proxy.lost == [verdict]
        names = {"create": "created", "claim": "claimed", "heartbeat": "heartbeat", "report": "reported"}
        assert events(direct) == Counter({"created": 2, "claimed": 1}) + Counter({names[what]: 1})
        if what == "claim":
            assert direct.tasks.get(answer.task.id).attempts[-1].id == answer.attempt.id


def test_a_tenant_learns_nothing_of_the_tasks_of_another(server: pgserver.Server, database: str, address: str) -> None:
    with holdfast.open(address) as ours, holdfast.open(server.at(database, tenant="stranger")) as theirs:
        task = ours.tasks.create("secret work")
        claim = ours.tasks.claim("w", op_id="op")
        assert claim is not None
        calls: dict[str, dict[str, Any]] = {
            "task_heartbeat": {"attempt": claim.attempt.id},
            "task_report": {"attempt": claim.attempt.id, "status": "done"},
            "task_list": {},
            "task_create": {"title": "behind it"},
        }
        for name, params in calls.items():
            replies = []
            for identifier in (task.id, "t0123456789"):
                about = {"task_list": {"ids": [identifier]}, "task_create": {"after": [identifier]}}
                reply = theirs.call(name, params | about.get(name, {"id": identifier}))
                assert reply["success"] is False
                replies.append(reply["error"].replace(identifier, "?"))
            assert replies[0] == replies[1]  # not even that there is one
        assert theirs.call("task_list")["counts"] == {}
        assert theirs.tasks.claim("w", op_id="op") is None
        with pytest.raises(HoldfastError, match="no task"):
            theirs.tasks.cancel(task.id)
        assert ours.tasks.report(task.id, claim.attempt.id, "done").done


def test_who_may_only_read_sees_tasks_and_takes_none(server: pgserver.Server, database: str, address: str) -> None:
    login = f"reads_{database[-8:]}"
    tenant = address.rpartition("tenant=")[2]
    with holdfast.open(address) as memory:
        memory.tasks.create("one")
        server.run(f"CREATE ROLE {login} LOGIN PASSWORD 'x'; GRANT holdfast_reader TO {login}")
        try:
            reading = server.at(database, user=login, password="x", tenant=tenant)
            with holdfast.open(reading) as reader:
                assert reader.tasks.all().counts == {"ready": 1}
                with pytest.raises(Unavailable, match="does not allow"):
                    reader.tasks.claim("w")
        finally:
            server.run(f"DROP ROLE {login}")
