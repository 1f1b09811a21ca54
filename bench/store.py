"""The store: durable writes against bare ones, refresh, search, rebuild, memory, cold start.

    scripts/bench store [--quick]

Ratios compare Holdfast with the bare system calls in the same run, in alternating blocks, so a slow or noisy machine
affects both. Times with a target are medians or percentiles of one process.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import holdfast
from bench.harness import Run, Words, against_bare, cpu_of, folder, median_of, percentile, start, timed
from holdfast import secrets
from holdfast.model.times import mint


def main() -> None:
    run = start("store")
    words = Words()
    appends(run, words)
    documents(run, words)
    writers(run)
    sections(run)
    arriving(run, words)
    scanned(run, words)
    many_documents(run, words)
    small = 20_000 if run.quick else 100_000
    searches(run, words, small, p50=10, p95=40)
    if not run.quick:
        searches(run, words, 1_000_000, p50=None, p95=100)
    run.finish()


def appends(run: Run, words: Words) -> None:
    """A durable line against write + fdatasync of the same bytes."""
    with folder() as root, holdfast.open(root) as memory:
        memory.put("episode", "warm up", session="bench")
        sample = words.text()
        line = json.dumps({"id": mint(), "time": "2026-01-01T00:00:00.000Z", "text": sample, "session": "bench"}) + "\n"
        against_bare(run, "durable append", root, lambda: memory.put("episode", sample, session="bench"), line.encode())


def documents(run: Run, words: Words) -> None:
    """A durable document against temporary file + fsync + rename + folder fsync of the same bytes."""
    blocks, size = (6, 20) if run.quick else (20, 40)
    ours: list[float] = []
    bare: list[float] = []
    spent: list[float] = []
    number = 0
    with folder() as root, holdfast.open(root) as memory:
        text = words.text(150, 200)
        first = memory.put("note", text, title="warm up")
        data = memory.tree.read(first.path).data
        bare_folder = os.path.join(root, "bare")
        os.mkdir(bare_folder)

        def put() -> None:
            nonlocal number
            number += 1
            memory.put("note", text, title=f"note {number}")

        def bare_put() -> None:
            nonlocal number
            number += 1
            handle = os.open(bare_folder, os.O_RDONLY)
            temporary = os.path.join(bare_folder, f"tmp{number}")
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(fd, data)
            os.fsync(fd)
            os.close(fd)
            os.rename(temporary, os.path.join(bare_folder, f"note{number}.md"))
            os.fsync(handle)
            os.close(handle)

        for _ in range(blocks):
            began = time.process_time()
            ours.append(timed(put, size))
            spent.append((time.process_time() - began) / size * 1e6)
            bare.append(timed(bare_put, size))
    ratio = statistics.median(ours) / statistics.median(bare)
    detail = f"{statistics.median(ours) * 1e6:.0f} µs against {statistics.median(bare) * 1e6:.0f} µs"
    run.add("durable document put / bare temp + fsync + rename + fsync", ratio, "x", 1.3, detail=detail)
    run.add("CPU of durable document put", statistics.median(spent), "µs")


def writers(run: Run) -> None:
    """Eight processes appending to one log against one process."""
    count = 800 if run.quick else 4_000
    rates: dict[int, list[float]] = {}
    with folder() as root:
        for processes in (1, 8, 1, 8, 1, 8):
            rates.setdefault(processes, []).append(_rate(root, processes, count))
    one, eight = (max(rates[number]) for number in (1, 8))
    run.add(
        "8 writer processes / one writer process",
        eight / one,
        "x",
        at_least=1.5,
        detail=f"{eight:,.0f}/s against {one:,.0f}/s",
    )


def _rate(root: str, processes: int, count: int) -> float:
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(processes + 1)
    each = count // processes
    workers = [context.Process(target=_append_many, args=(root, each, ready)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    ready.wait()
    begin = time.perf_counter()
    ready.wait()
    elapsed = time.perf_counter() - begin
    for worker in workers:
        worker.join()
    return each * processes / elapsed


def _append_many(root: str, count: int, ready: multiprocessing.synchronize.Barrier) -> None:
    with holdfast.open(root) as memory:
        memory.put("episode", "warm up", session="writers")
        ready.wait()
        for number in range(count):
            memory.put(
                "episode", f"entry {number} of a long line of entries that several agents write", session="writers"
            )
        ready.wait()


def sections(run: Run) -> None:
    """Add an entry to a page with few and with many, and index it; then edit one in the middle."""
    for count, most in ((10, 5), (1_000, 50)):
        with folder() as root, holdfast.open(root) as memory:
            page = os.path.join(root, memory.put("decision", "It is the first one.", title="First").path)
            entries = (f"\n### [2026-01-01] Choice {n}\n\nOption {n} of many, {n * 7919}.\n" for n in range(count))
            with open(page, "a", encoding="utf-8") as file:
                file.writelines(entries)
            memory.refresh()
            numbers = iter(range(1_000))

            def add(memory: holdfast.Memory = memory, numbers: Iterator[int] = numbers) -> None:
                number = next(numbers)
                memory.put("decision", f"It was added as number {number}.", title=f"Added {number}")
                memory.refresh()

            run.add(f"CPU of an entry added to {count:,} and indexed", cpu_of(add, 20) * 1000, "ms", most)

            def edit(memory: holdfast.Memory = memory, numbers: Iterator[int] = numbers, page: str = page) -> None:
                with open(page, encoding="utf-8") as file:
                    text = file.read()
                with open(page, "w", encoding="utf-8") as file:
                    file.write(text.replace("\nOption 5 of", f"\nOption 5 of {next(numbers)} of", 1))
                memory.refresh()

            run.add(f"CPU of an entry edited among {count:,} and indexed", cpu_of(edit, 20) * 1000, "ms", most)


def arriving(run: Run, words: Words) -> None:
    """Index what another program appended to a log."""
    count = 5_000 if run.quick else 50_000
    with folder() as root, holdfast.open(root) as memory:
        _fill(root, words, 1_000)
        memory.refresh()
        lines = (json.dumps({"id": mint(), "role": "user", "content": words.text()}) + "\n" for _ in range(count))
        with open(os.path.join(root, "user/memory/history.jsonl"), "a", encoding="utf-8") as file:
            file.writelines(lines)
        rate = count / cpu_of(memory.refresh)
        run.add(f"indexing of {count:,} lines that arrived, per second of CPU", rate, "records/s", at_least=15_000)


def scanned(run: Run, words: Words) -> None:
    """Look for secrets in ordinary text, and in text with words that may name one."""
    text = " ".join(words.text() for _ in range(100))
    talk = text.replace(" ", " the token of https://example.org/a-path-that-is-long/x ", 50)
    for what, scanned, most in (("ordinary text", text, 20), ("text about tokens and addresses", talk, 80)):
        spent = cpu_of(lambda scanned=scanned: secrets.scan(scanned), 50)  # type: ignore[misc]
        run.add(f"search for secrets, {what}", spent * 1e9 / len(scanned), "µs/kB", most)


def many_documents(run: Run, words: Words) -> None:
    """Refresh with nothing changed, over many small documents."""
    count = 1_000 if run.quick else 10_000
    with folder() as root:
        for number in range(count):
            place = os.path.join(root, f"resources/workspaces/w{number % 50}/_notes")
            os.makedirs(place, exist_ok=True)
            with open(os.path.join(place, f"note-{number}.md"), "w", encoding="utf-8") as file:
                file.write(f"---\nname: Note {number}\ntags: [bench]\n---\n\n{words.text(30, 60)}\n")
        time.sleep(2.1)  # younger files are compared by content, which is not measured here
        with holdfast.open(root) as memory:
            elapsed = timed(lambda: memory.refresh(rebuild=True))
            run.add(f"rebuild, {count:,} documents", count / elapsed, "records/s")
            memory.refresh()
            unchanged = median_of(9, memory.refresh) * 1000
            run.add(f"refresh, nothing changed, {count:,} documents", unchanged, "ms", 150)
            run.add("search over them, every stamp looked at", median_of(9, lambda: memory.find("bench")) * 1000, "ms")
        with holdfast.open(root, watch=True) as memory:
            memory.find("warm up")
            run.add("search over them, watching", median_of(25, lambda: memory.find(words.text(3, 5))) * 1000, "ms")


def searches(run: Run, words: Words, count: int, *, p50: float | None, p95: float) -> None:
    """A log of many records: rebuild, refresh, tail, search, memory, and a cold search."""
    with folder() as root:
        texts = _fill(root, words, count)
        time.sleep(2.1)
        worker = multiprocessing.get_context("spawn").Pool(1)
        with worker:
            measured = worker.apply(_serve, (root, [words.query(text) for text in texts]))
        shown = f"{count:,} records"
        run.add(f"rebuild, {shown}", measured["rebuild"], "records/s", at_least=15_000)
        run.add(f"refresh, nothing changed, log of {count:,} lines", measured["refresh"], "ms", 5)
        run.add(f"tail of 80 lines, log of {count:,} lines", measured["tail"], "ms", 5)
        run.add(f"search p50, {shown}, 3-5 words", measured["p50"], "ms", p50)
        run.add(f"search p95, {shown}, 3-5 words", measured["p95"], "ms", p95)
        run.add(f"search p50, {shown}, filtered", measured["filtered"], "ms")
        run.add(f"resident memory while serving {shown}", measured["rss"], "MB", 150 if count <= 100_000 else None)
        query = words.query(texts[0])
        command = [sys.executable, "-m", "holdfast", "search", query, "--root", root, "--json"]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        cold = median_of(9, lambda: subprocess.run(command, check=True, capture_output=True, env=environment)) * 1000
        bare = median_of(9, lambda: subprocess.run([sys.executable, "-c", "pass"], check=True, env=environment)) * 1000
        run.add(f"holdfast search, fresh process, {shown}", cold, "ms", 250, detail=f"bare interpreter {bare:.0f} ms")


def _fill(root: str, words: Words, count: int) -> list[str]:
    """Write a history as Holdfast would, but fast; return some of its texts."""
    os.makedirs(os.path.join(root, "user/memory"))
    some = []
    last = ""
    with open(os.path.join(root, "user/memory/history.jsonl"), "w", encoding="utf-8") as file:
        for number in range(count):
            last = mint(last, ms=1_760_000_000_000 + number * 1000)
            text = words.text()
            if number % max(1, count // 300) == 0:
                some.append(text)
            line = {
                "id": last,
                "timestamp": 1_760_000_000 + number,
                "role": "user",
                "content": text,
                "session": f"s{number % 97}",
            }
            file.write(json.dumps(line) + "\n")
    return some


def _serve(root: str, queries: list[str]) -> dict[str, float]:
    """Measure in another process, so that its memory is only Holdfast's."""
    with holdfast.open(root) as memory:
        begin = time.perf_counter()
        done = memory.refresh(rebuild=True)
        result = {"rebuild": done.records / (time.perf_counter() - begin)}
    with holdfast.open(root) as memory:
        memory.refresh()
        result["refresh"] = median_of(21, memory.refresh) * 1000
        result["tail"] = median_of(21, lambda: memory.tail("message", 80)) * 1000
        for query in queries[:20]:
            memory.find(query)
        times = [timed(lambda query=query: memory.find(query)) * 1000 for query in queries]  # type: ignore[misc]
        result["p50"], result["p95"] = percentile(times, 0.5), percentile(times, 0.95)
        filtered = [timed(lambda query=query: memory.find(query, session="s5")) * 1000 for query in queries[:60]]  # type: ignore[misc]
        result["filtered"] = percentile(filtered, 0.5)
    result["rss"] = _resident()
    return result


def _resident() -> float:
    try:
        with open("/proc/self/statm", encoding="utf-8") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 1e6
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    main()
