"""The knowledge tree: 10,000 documents in 50 workspaces, read by scope, searched, linted.

    scripts/bench knowledge [--quick]

Every call goes through `memory.call`, trace included, as an agent's would. "Fresh process" is the time from starting
Python to its end, with one call in it.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import time

import holdfast
from bench.harness import Run, Words, folder, percentile, start
from holdfast.memories.lint import lint

WORKSPACES = 50
DOMAINS = ("common", "stock", "trade")
STATUS = ("new", "in_progress", "partial", "done", "abandoned")
FRESH = """
import sys, holdfast
with holdfast.open(sys.argv[1]) as memory:
    reply = memory.call("retrieve_plans", {"scope": {"workspace": "w07"}})
    assert len(reply["plans"]) == int(sys.argv[2]), reply
"""


def main() -> None:
    run = start("knowledge")
    per_workspace = 40 if run.quick else 200
    with folder() as root:
        plans = make(root, per_workspace)
        print(f"{WORKSPACES * per_workspace:,} documents in {WORKSPACES} workspaces, {plans} plans in each\n")
        fresh(run, root, plans)
        warm(run, root)
        edited(run, root)
        linted(run, root)
    run.finish()


def make(root: str, count: int) -> int:
    """Write a tree of files; return how many plans each workspace has."""
    words, dice = Words(size=20_000), random.Random(3)
    plans = count // 2
    for number in range(WORKSPACES):
        top = f"resources/workspaces/w{number:02d}"
        places = [top, *(f"{top}/{domain}" for domain in DOMAINS), *(f"{top}/{domain}/repo" for domain in DOMAINS)]
        for place in places:
            name = place.rpartition("/")[2]
            put(
                root,
                f"{place}/OVERVIEW.md",
                f"---\nname: {name}\ndescription: {words.text()}\n---\n\n# {name}\n\n{words.text(100, 200)}\n",
            )
        for plan in range(plans):
            day = f"26{dice.randint(1, 12):02d}{dice.randint(1, 28):02d}"
            stem = f"{day}-plan-{plan}"
            front = f"name: Plan {plan} of w{number:02d}\ndescription: {words.text()}\nstatus: {dice.choice(STATUS)}\ncreated: 20{day[:2]}-{day[2:4]}-{day[4:]}\ntags: [{', '.join(dice.choices(('api', 'web', 'db', 'ops', 'ui'), k=2))}]"
            body = f"# Plan {plan}\n\n{words.text(150, 300)}\n\nSee [[plan-{dice.randrange(plans)}]].\n"
            put(root, f"{dice.choice(places)}/_plans/{stem}.md", f"---\n{front}\n---\n\n{body}")
        for document in range(count - plans - len(places) - 2):
            topic = dice.choice(("features", "spikes", "architecture", "notes"))
            put(
                root,
                f"{dice.choice(places)}/_{topic}/doc-{document}.md",
                f"# Document {document}\n\n{words.text(150, 300)}\n",
            )
        for kind in ("decisions", "lessons"):
            entries = "".join(
                f"### [2026-{dice.randint(1, 12):02d}-{dice.randint(1, 28):02d}] {words.text(3, 8)}\n\n**Category:** tooling\n**Tags:** api, db\n\n{words.text(20, 60)}\n\n---\n\n"
                for _ in range(40)
            )
            put(root, f"user/memory/workspaces/w{number:02d}/{kind}.md", f"# {kind.title()}\n\n{entries}")
    return plans


def put(root: str, path: str, text: str) -> None:
    full = os.path.join(root, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "w", encoding="utf-8") as file:
        file.write(text)


def fresh(run: Run, root: str, plans: int) -> None:
    """One call in a new process: without any index, then with one."""
    command = [sys.executable, "-c", FRESH, root, str(plans)]

    def once() -> float:
        begin = time.perf_counter()
        subprocess.run(command, check=True)
        return time.perf_counter() - begin

    once()  # the files are in the cache of the operating system
    without = []
    for _ in range(3):
        shutil.rmtree(os.path.join(root, ".holdfast"))
        without.append(once())
    time.sleep(2.1)  # files younger than that are compared by content
    once()
    taken = [once() for _ in range(5)]
    detail = f"without an index, which it then builds: {statistics.median(without):.2f} s"
    run.add("retrieve_plans, first call in a fresh process", statistics.median(taken), "s", 1.0, detail=detail)


def warm(run: Run, root: str) -> None:
    """Calls in a long-lived process, one workspace after another."""
    with holdfast.open(root, watch=True) as memory:
        for tool, most in (
            ("retrieve_plans", 20.0), ("retrieve_overview", None), ("retrieve_learnings", None), ("workspace_context", None),
        ):  # fmt: skip
            times = []
            for turn in range(60):
                scope = {"workspace": f"w{turn % WORKSPACES:02d}"}
                begin = time.perf_counter()
                reply = memory.call(tool, {"scope": scope})
                times.append(1000 * (time.perf_counter() - begin))
                assert reply.get("success") is not False, reply
            median = statistics.median(times)
            run.add(
                f"{tool} of one workspace, warm", median, "ms", most, detail=f"p95 {percentile(times, 0.95):.1f} ms"
            )
        words = Words(size=20_000)
        times = []
        for turn in range(60):
            begin = time.perf_counter()
            memory.call(
                "recall", {"query": words.text(3, 5)}, {"workspaceId": f"w{turn % WORKSPACES:02d}", "sessionId": "b"}
            )
            times.append(1000 * (time.perf_counter() - begin))
        run.add(
            "recall in one workspace, with what is related",
            statistics.median(times),
            "ms",
            detail=f"p95 {percentile(times, 0.95):.1f} ms",
        )


def edited(run: Run, root: str) -> None:
    """An edit by another program, and the next call, which must see it."""
    path = "resources/workspaces/w07/_plans/260101-by-hand.md"
    with holdfast.open(root) as memory:
        memory.call("retrieve_plans", {"scope": "w07"})
        times = []
        for turn in range(20):
            put(root, path, f"---\nname: By hand {turn}\ndescription: d\nstatus: new\ncreated: 2026-01-01\n---\n")
            begin = time.perf_counter()
            reply = memory.call("retrieve_plans", {"scope": "w07"})
            times.append(1000 * (time.perf_counter() - begin))
            assert f"By hand {turn}" in str(reply["plans"])
    os.unlink(os.path.join(root, path))
    run.add("retrieve_plans right after an edit by hand", statistics.median(times), "ms")


def linted(run: Run, root: str) -> None:
    with holdfast.open(root) as memory:
        begin = time.perf_counter()
        report = lint(memory)
        run.add(
            "lint of the whole tree",
            time.perf_counter() - begin,
            "s",
            5.0,
            detail=f"{report.files:,} files, {report.errors} errors",
        )


if __name__ == "__main__":
    main()
