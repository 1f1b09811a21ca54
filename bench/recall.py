"""Recall over many messages: the whole ranking, as an agent calls it.

    scripts/bench recall [--quick]

How good the answers are is another question: `holdfast bench recall`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

import holdfast
from bench.harness import Run, Words, folder, percentile, start, timed
from holdfast import embedding

HISTORY = "user/memory/history.jsonl"
CHANNEL = 50


def main() -> None:
    run = start("recall")
    count = 10_000 if run.quick else 100_000
    os.environ["HOLDFAST_SEARCH_EMBEDDER"] = "none"
    messages(run, Words(), count, "by words")
    if embedding.is_installed("semantic"):
        os.environ["HOLDFAST_SEARCH_EMBEDDER"] = "semantic"
        messages(run, Words(), count, "by meaning too")
    else:
        print("The extra semantic is not installed: nothing of it was measured.")
    run.finish()


def messages(run: Run, words: Words, count: int, how: str) -> None:
    with folder() as root:
        texts = [words.text() for _ in range(count)]
        with holdfast.open(root) as memory:
            for start_at in range(0, count, 5_000):
                lines = [
                    {"role": "user", "content": texts[number], "channel": f"c{number // CHANNEL}", "sender_id": "ann"}
                    for number in range(start_at, min(count, start_at + 5_000))
                ]
                memory.add(HISTORY, lines, time="timestamp", durable=False)
            reading = timed(memory.refresh)
            if memory.embedder:
                rate = count / timed(memory.embed)
                run.add("embedding", rate, "/s", at_least=5_000, detail=f"reading them: {count / reading:,.0f}/s")
                run.add("vectors on disk", memory.embedded().bytes / count, "bytes each")
        time.sleep(2.1)  # younger files are compared by content
        with holdfast.open(root, watch=True) as memory:
            first = timed(lambda: memory.call("recall", {"query": "warm up"})) * 1000
            times = []
            for text in texts[:: max(1, count // 200)]:
                question = {"query": f"What did Ann say about {words.query(text)} last week?"}
                begin = time.perf_counter()
                memory.call("recall", question)
                times.append((time.perf_counter() - begin) * 1000)
            run.add(f"recall over {count:,} messages, {how}, first", first, "ms")
            run.add(f"recall over {count:,} messages, {how}, p50", statistics.median(times), "ms")
            run.add(f"recall over {count:,} messages, {how}, p95", percentile(times, 0.95), "ms", 60)
        alone = subprocess.run([sys.executable, "-c", ALONE, root], capture_output=True, text=True, check=True)
        run.add(f"memory of a process that recalls {how}", float(alone.stdout), "MB", 300)


ALONE = """
import resource, sys, holdfast
with holdfast.open(sys.argv[1], watch=True) as memory:
    for text in ("who mended the stove?", "train tickets", "what did the doctor recommend?"):
        memory.call("recall", {"query": text})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


if __name__ == "__main__":
    main()
