"""The four memories: a durable append, search over many episodes, knowledge by key, compaction, stats.

    scripts/bench mind [--quick]

The bare append is one write and one fdatasync of the same bytes, in alternating blocks with ours on the same disk.
"""

from __future__ import annotations

import os
import statistics
import time

import holdfast
from bench.harness import Run, Words, against_bare, folder, median_of, percentile, start

STEP = {"iteration": 42, "action": "analyzed dataset", "result": "found 3 anomalies in the second column"}


def main() -> None:
    run = start("mind")
    words = Words()
    appends(run)
    searches(run, words, 10_000 if run.quick else 100_000)
    compaction(run, words, 1_000 if run.quick else 50_000)
    run.finish()


def appends(run: Run) -> None:
    with folder() as root, holdfast.open(root) as memory:
        mind = memory.mind("bench")
        mind.append("episodic", STEP)
        (log,) = [
            os.path.join(place, name) for place, _, names in os.walk(root) for name in names if name == "episodic.jsonl"
        ]
        with open(log, "rb") as file:
            line = file.read()
        ours = against_bare(run, "append, durable", root, lambda: mind.append("episodic", STEP), line)
    run.add("append, durable, p99", percentile(ours, 0.99) * 1000, "ms", 10)


def searches(run: Run, words: Words, count: int) -> None:
    with folder() as root:
        texts = [words.text() for _ in range(count)]
        with holdfast.open(root) as memory:
            mind = memory.mind("bench")
            mind.append("episodic", "the first one")
            path = memory.tail("episode", 1, session="bench")[0].path
            for number in range(0, count, 5_000):
                memory.add(
                    path, [{"text": text, "session": "bench"} for text in texts[number : number + 5_000]], durable=False
                )
            for number in range(1_000):
                mind.learn(f"key {number}", f"value {number}")
        time.sleep(2.1)  # younger files are compared by content
        with holdfast.open(root, watch=True) as memory:
            mind = memory.mind("bench")
            mind.search("episodic", "warm up")
            times = []
            for text in texts[:: max(1, count // 200)]:
                query = words.query(text)
                begin = time.perf_counter()
                mind.search("episodic", query)
                times.append((time.perf_counter() - begin) * 1000)
            run.add(f"search over {count:,} episodes, p50", statistics.median(times), "ms")
            run.add(f"search over {count:,} episodes, p95", percentile(times, 0.95), "ms", 40)
            run.add("recall by key", median_of(200, lambda: mind.recall("key 500")) * 1000, "ms", 1)
            run.add(
                f"last 10 of {count:,} episodes",
                median_of(50, lambda: mind.search("episodic", {"last": 10})) * 1000,
                "ms",
            )
            run.add(f"stats at {count:,} episodes", median_of(50, mind.stats) * 1000, "ms", 5)


def compaction(run: Run, words: Words, count: int) -> None:
    with folder() as root, holdfast.open(root) as memory:
        mind = memory.mind("bench")
        mind.append("episodic", "the first one")
        path = memory.tail("episode", 1, session="bench")[0].path
        memory.add(path, [{"text": words.text(), "session": "bench"} for _ in range(count)], durable=False)
        begin = time.process_time()
        done = mind.compact("episodic")
        spent = time.process_time() - begin
        run.add(f"CPU of compacting {count:,} entries, no model", spent, "s", 5, detail=f"{done.covered:,} covered")


if __name__ == "__main__":
    main()
