"""The four memories: a durable append, search over many episodes, knowledge by key, compaction, stats.

    scripts/bench mind [--quick]

The bare append is one write and one fdatasync of the same bytes, in alternation with ours on the same disk.
"""

from __future__ import annotations

import os
import statistics
import time

import holdfast
from bench.harness import Run, Words, folder, median_of, percentile, start

STEP = {"iteration": 42, "action": "analyzed dataset", "result": "found 3 anomalies in the second column"}


def main() -> None:
    run = start("mind")
    words = Words()
    appends(run)
    searches(run, words, 10_000 if run.quick else 100_000)
    compaction(run, words, 1_000 if run.quick else 10_000)
    run.finish()


def appends(run: Run) -> None:
    with folder() as root, holdfast.open(root) as memory:
        mind = memory.mind("bench")
        mind.append("episodic", STEP)
        (log,) = [
            os.path.join(place, name) for place, _, names in os.walk(root) for name in names if name == "episodic.jsonl"
        ]
        line = open(log, "rb").read()  # noqa: SIM115  # read once, closed by the collector
        fd = os.open(os.path.join(root, "bare.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        ours, bare = [], []
        for _ in range(300 if run.quick else 2_000):
            begin = time.perf_counter()
            mind.append("episodic", STEP)
            middle = time.perf_counter()
            os.write(fd, line)
            os.fdatasync(fd)
            bare.append(time.perf_counter() - middle)
            ours.append(middle - begin)
        os.close(fd)
    ratio = statistics.median(ours) / statistics.median(bare)
    detail = f"{statistics.median(ours) * 1e6:.0f} µs against {statistics.median(bare) * 1e6:.0f} µs"
    run.add("append, durable / bare write + fdatasync", ratio, "x", 1.5, detail=detail)
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
        begin = time.perf_counter()
        done = mind.compact("episodic")
        run.add(
            f"compact {count:,} entries, no model",
            time.perf_counter() - begin,
            "s",
            5,
            detail=f"{done.covered:,} covered",
        )


if __name__ == "__main__":
    main()
