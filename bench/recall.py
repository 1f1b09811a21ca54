"""Recall over many messages: the whole ranking, as an agent calls it.

    scripts/bench recall [--quick] [--size 1000000] [--store postgresql://…]

Memories of 1,000, 10,000, … messages, up to the size, show how recall grows. Targets are for the processor time of a
recall, which other processes change little. A million messages take several minutes and 3 GB of disk.

`scripts/bench quality` measures how good the answers are.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import msgspec

import holdfast
from bench.harness import Run, Words, folder, percentile, start, temporary_tenant, timed
from holdfast.recall import embedders

HISTORY = "user/memory/history.jsonl"
CHANNEL = 50
HOW = {"none": "by words", "semantic": "by meaning too", "quality": "by meaning too (quality)"}
_EMBEDDER = "HOLDFAST_SEARCH_EMBEDDER"
_PART = 5_000
_SIZES = (1_000, 10_000, 100_000, 1_000_000)
_TARGETS = {100_000: (20, 35), 1_000_000: (None, 100)}
"""The most milliseconds of a core for a recall over so many messages: at the median, and at the 95th percentile."""


class Speed(msgspec.Struct, frozen=True):
    """The cost of recall over a number of messages with one embedder."""

    count: int
    embedder: str
    first_ms: float
    p50_ms: float
    p95_ms: float
    memory_mb: float
    """Of a process that only recalls."""
    read_per_s: float
    embedded_per_s: float = 0.0
    vector_bytes: float = 0.0
    core_ms: float = 0.0
    """The CPU time of a recall at the median: the same on a busy machine as on an idle one."""
    core_p95_ms: float = 0.0


def main() -> None:
    run = start("recall", stores=True, size=100_000)
    for embedder in ("none", "semantic"):
        if embedder != "none" and not embedders.is_installed(embedder):
            print(f"The extra {embedder} is not installed: nothing of it was measured.")
            continue
        for count in _SIZES:
            if count <= min(run.size, 10_000 if run.quick else run.size):
                messages(run, count, embedder)
    run.finish()


def messages(run: Run, count: int, embedder: str) -> None:
    speed, how = measure(Words(), count, embedder, run.store), HOW[embedder]
    if speed.embedded_per_s:
        detail = f"reading them: {speed.read_per_s:,.0f}/s"
        run.add("embedding", speed.embedded_per_s, "/s", at_least=5_000, detail=detail)
        run.add("vectors on disk", speed.vector_bytes, "bytes each")
    what, (p50, p95) = f"recall over {count:,} messages, {how}", _TARGETS.get(count, (None, None))
    if run.store:
        p50, p95 = None, None  # the server does most of it
    run.add(f"{what}, first", speed.first_ms, "ms")
    run.add(f"{what}, p50", speed.p50_ms, "ms")
    run.add(f"{what}, p95", speed.p95_ms, "ms", 100 if run.store else None)
    run.add(f"{what}, of a core, p50", speed.core_ms, "ms", p50)
    run.add(f"{what}, of a core, p95", speed.core_p95_ms, "ms", p95)
    run.add(f"{what}, memory of a process", speed.memory_mb, "MB", 300)


def measure(words: Words, count: int, embedder: str, store: str = "") -> Speed:
    """Make a memory with a number of messages, recall from it, and remove it."""
    texts = [words.text() for _ in range(count)]
    with _place(store) as root, _using(embedder):
        reading, embedded, size = _fill(root, texts)
        time.sleep(2.1)  # younger files are compared by content
        first, times, spent = _ask(root, words, texts)
        alone = subprocess.run([sys.executable, "-c", ALONE, root], capture_output=True, text=True, check=True)
    return Speed(
        count, embedder, first, statistics.median(times), percentile(times, 0.95), float(alone.stdout),
        count / reading, count / embedded if embedded else 0.0, size, statistics.median(spent), percentile(spent, 0.95),
    )  # fmt: skip


def _place(store: str) -> AbstractContextManager[str]:
    """Make a place for a memory, and remove it afterwards."""
    if not store:
        return folder()
    return temporary_tenant(store, "")


@contextmanager
def _using(embedder: str) -> Iterator[None]:
    """Choose an embedder for this process and its children."""
    before = os.environ.get(_EMBEDDER)
    os.environ[_EMBEDDER] = embedder
    try:
        yield
    finally:
        os.environ.pop(_EMBEDDER)
        if before is not None:
            os.environ[_EMBEDDER] = before


def _fill(root: str, texts: Sequence[str]) -> tuple[float, float, float]:
    """Save the texts; return the seconds of reading and of embedding them, and the bytes of one vector."""
    with holdfast.open(root) as memory:
        for start_at in range(0, len(texts), _PART):
            lines = [
                {"role": "user", "content": text, "channel": f"c{number // CHANNEL}", "sender_id": "ann"}
                for number, text in enumerate(texts[start_at : start_at + _PART], start_at)
            ]
            memory.add(HISTORY, lines, time="timestamp", durable=False)
        reading = timed(memory.refresh)
        if not memory.embedder:
            return reading, 0.0, 0.0
        embedded = timed(memory.embed)
        return reading, embedded, memory.embedded().bytes / len(texts)


def _ask(root: str, words: Words, texts: Sequence[str]) -> tuple[float, list[float], list[float]]:
    """Return the milliseconds of the first recall and of two hundred more, and the CPU time of each of these."""
    with holdfast.open(root, watch=True) as memory:
        first = timed(lambda: memory.call("recall", {"query": "warm up"})) * 1000
        times, spent = [], []
        for text in texts[:: max(1, len(texts) // 200)]:
            question = {"query": f"What did Ann say about {words.query(text)} last week?"}
            before = time.process_time()
            times.append(timed(lambda given=question: memory.call("recall", given)) * 1000)  # type: ignore[misc]
            spent.append((time.process_time() - before) * 1000)
        return first, times, spent


ALONE = """
import resource, sys, holdfast
with holdfast.open(sys.argv[1], watch=True) as memory:
    for text in ("who mended the stove?", "train tickets", "what did the doctor recommend?"):
        memory.call("recall", {"query": text})
try:
    with open("/proc/self/status") as file:  # getrusage also counts the process that started this one
        peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
except OSError:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(peak / 1024)
"""


if __name__ == "__main__":
    main()
