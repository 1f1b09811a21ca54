"""Measure recall by meaning: scripts/bench recall [--quick] [--out FILE].

With the embedder `semantic`, over 100,000 messages in sessions. Most texts have the word frequencies of natural language;
every tenth is an English sentence, so that there is something to lie near to. Questions are words of a text, half
remembered, and sentences whose words may stand nowhere.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys

import holdfast
from bench.harness import Words, folder, percentile, start, timed
from holdfast import embedding
from holdfast.query import Query

_SUBJECTS = "the doctor|my sister|our team|the neighbour|a friend|the teacher|the client|my dog|the engineer|the band"
_VERBS = "bought|repaired|painted|forgot|recommended|cancelled|cooked|visited|described|moved|found|planned"
_OBJECTS = (
    "a bicycle|the kitchen|an old camera|the release|a museum in Lisbon|the database|some soup|the garden|a novel"
    "|the concert|her passport|the train to Berlin|a birthday cake|the contract|new running shoes|a guitar"
)
_TIMES = "yesterday|in the morning|before the holidays|after work|twice|with great care|for the first time|last spring"


def _sentence(choose: random.Random) -> str:
    return " ".join(choose.choice(words.split("|")) for words in (_SUBJECTS, _VERBS, _OBJECTS, _TIMES))


def _resident() -> float:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def main() -> None:
    run = start("recall")
    if not embedding.is_installed("semantic"):
        sys.exit("The extra semantic is not installed: pip install '.[semantic]'")
    os.environ["HOLDFAST_SEARCH_EMBEDDER"] = "semantic"
    count, asked = (5_000, 30) if run.quick else (100_000, 200)
    choose, words = random.Random(7), Words()
    texts = [words.text() if number % 10 else _sentence(choose) for number in range(count)]
    lines = [
        {
            "role": "user",
            "content": text,
            "channel": f"c{number // 20}",
            "timestamp": f"2026-01-{number % 28 + 1:02}T10:00:00Z",
        }
        for number, text in enumerate(texts)
    ]
    with folder() as root:
        with holdfast.open(root) as memory:
            memory.add("user/memory/history.jsonl", lines, time="timestamp", durable=False)
            reading = timed(memory.refresh)
            embedding_all = timed(memory.embed)
            run.add(
                "embedding, short records",
                count / embedding_all,
                "/s",
                at_least=5_000,
                detail=f"reading them: {count / reading:.0f}/s",
            )
            run.add("vectors on disk", memory.embedded().bytes / count, "bytes a record")
        with holdfast.open(root) as memory:
            first = timed(lambda: memory.find(Query(text="who mended the stove?", associate=True)))
            run.add("first recall of a process", first * 1000, "ms", detail="imports, tokenizer, signs of all vectors")
            times = []
            for number in range(asked):
                text = words.query(texts[choose.randrange(count)]) if number % 4 else _sentence(choose)
                times.append(timed(lambda text=text: memory.find(Query(text=text, associate=True, limit=10))))  # type: ignore[misc]
            run.add("recall, warm, p50", percentile(times, 0.5) * 1000, "ms")
            run.add("recall, warm, p95", percentile(times, 0.95) * 1000, "ms", 60)
            fresh = []
            for number in range(20):
                memory.put("message", f"{_sentence(choose)} number {number}", fields={"role": "user"})
                fresh.append(timed(lambda: memory.find(Query(text="the kettle is broken", associate=True))))
            run.add("recall right after a write, p95", percentile(fresh, 0.95) * 1000, "ms")
            run.add("memory of the process", _resident(), "MB", 300, detail="the generated corpus included")
        alone = [sys.executable, "-c", _ALONE, root]
        resident = float(subprocess.run(alone, capture_output=True, text=True, check=True).stdout)
        run.add("memory of a process that recalls", resident, "MB", 300)
    run.finish()


_ALONE = """
import sys, holdfast
from holdfast.query import Query
with holdfast.open(sys.argv[1]) as memory:
    for text in ("who mended the stove?", "train tickets", "what did the doctor recommend?"):
        memory.find(Query(text=text, associate=True))
    with open("/proc/self/status") as file:
        print(next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024)
"""


if __name__ == "__main__":
    main()
