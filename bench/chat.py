"""Chat: a durable message, a prompt from a long history, search in the history.

scripts/bench chat [--quick]
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import time

import holdfast
from bench.harness import Run, Words, against_bare, folder, median_of, percentile, start, timed
from holdfast.model.times import iso, mint, now_ms

CHANNELS = ("cli", "email", "matrix:!family", "matrix:!work")


def main() -> None:
    run = start("chat")
    words = Words()
    appends(run, words)
    history(run, words, 50_000 if run.quick else 1_000_000)
    run.finish()


def appends(run: Run, words: Words) -> None:
    with folder() as root, holdfast.open(root) as memory:
        message = {"role": "user", "content": words.text(), "channel": "cli", "sender_id": "owner"}
        memory.chat.append_message(message)
        with open(os.path.join(root, "user/memory/history.jsonl"), "rb") as file:
            line = file.read()
        against_bare(run, "append_message", root, lambda: memory.chat.append_message(message), line)
        pair = median_of(100, lambda: memory.chat.persist_exchange("cli", "owner", words.text(), words.text()))
        run.add("persist_exchange", pair * 1000, "ms")


def history(run: Run, words: Words, count: int) -> None:
    with folder() as root:
        texts = write(root, words, count)
        size = os.path.getsize(os.path.join(root, "user/memory/history.jsonl")) / 1e6
        begin = time.perf_counter()
        with holdfast.open(root) as memory:
            memory.chat.build_messages("And now?", "You are a bot.")
            run.add("open + build_messages, no index yet", (time.perf_counter() - begin) * 1000, "ms")
            begin = time.perf_counter()
            memory.refresh(rebuild=True)
            run.add(f"index {count:,} messages", time.perf_counter() - begin, "s", detail=f"{size:,.0f} MB of history")
        time.sleep(2.1)  # younger files are compared by content
        with holdfast.open(root, watch=True) as memory:
            chat = memory.chat
            chat.search("warm up")
            times = [timed(lambda: chat.build_messages("And now?", "You are a bot.")) for _ in range(200)]
            run.add(f"build_messages with {count:,} messages, p50", statistics.median(times) * 1000, "ms", 10)
            run.add(f"build_messages with {count:,} messages, p95", percentile(times, 0.95) * 1000, "ms")
            queries = [words.query(text) for text in texts[:: max(1, len(texts) // 200)]]
            found = [timed(functools.partial(memory.call, "search_history", {"query": query})) for query in queries]
            run.add(f"search_history over {count:,} messages, p50", statistics.median(found) * 1000, "ms")
            run.add(f"search_history over {count:,} messages, p95", percentile(found, 0.95) * 1000, "ms", 60)
            narrow = [timed(functools.partial(chat.search, query, 30, 10, "email")) for query in queries[:100]]
            run.add("search in one channel and 30 days, p95", percentile(narrow, 0.95) * 1000, "ms")


def write(root: str, words: Words, count: int) -> list[str]:
    """Write a history like that of a bot over years, and return some of its texts."""
    os.makedirs(os.path.join(root, "user/memory"))
    start_ms = now_ms() - count * 60_000
    kept = []
    with open(os.path.join(root, "user/memory/history.jsonl"), "w", encoding="utf-8") as file:
        for number in range(count):
            text = words.text()
            ms = start_ms + number * 60_000
            role = "assistant" if number % 2 else "user"
            line = {"id": mint(ms=ms), "timestamp": iso(ms), "role": role, "content": text,
                    "channel": CHANNELS[number // 2 % len(CHANNELS)]}  # fmt: skip
            file.write(json.dumps(line | ({} if number % 2 else {"sender_id": "owner"})) + "\n")
            if number % 1_000 == 0:
                kept.append(text)
    return kept


if __name__ == "__main__":
    main()
