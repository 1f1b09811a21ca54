"""Recall over many messages: the whole ranking, as an agent calls it.

    scripts/bench recall [--quick]

How good the answers are is another question: `holdfast bench recall`.
"""

from __future__ import annotations

import statistics
import time

import holdfast
from bench.harness import Run, Words, folder, percentile, start

HISTORY = "user/memory/history.jsonl"
CHANNEL = 50


def main() -> None:
    run = start("recall")
    messages(run, Words(), 10_000 if run.quick else 100_000)
    run.finish()


def messages(run: Run, words: Words, count: int) -> None:
    with folder() as root:
        texts = [words.text() for _ in range(count)]
        with holdfast.open(root) as memory:
            for first in range(0, count, 5_000):
                lines = [
                    {"role": "user", "content": texts[number], "channel": f"c{number // CHANNEL}", "sender_id": "ann"}
                    for number in range(first, min(count, first + 5_000))
                ]
                memory.add(HISTORY, lines, time="timestamp", durable=False)
        time.sleep(2.1)  # younger files are compared by content
        with holdfast.open(root, watch=True) as memory:
            memory.call("recall", {"query": "warm up"})
            times = []
            for text in texts[:: max(1, count // 200)]:
                question = {"query": f"What did Ann say about {words.query(text)} last week?"}
                begin = time.perf_counter()
                memory.call("recall", question)
                times.append((time.perf_counter() - begin) * 1000)
            run.add(f"recall over {count:,} messages, p50", statistics.median(times), "ms")
            run.add(f"recall over {count:,} messages, p95", percentile(times, 0.95), "ms", 60)


if __name__ == "__main__":
    main()
