"""The four memories through Python and through their tools: append, search, learn, recall, match, compact, stats."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.errors import Invalid, NotFound
from holdfast.formats.summaries import Gist
from holdfast.memories import compaction
from holdfast.model.names import count_tokens
from holdfast.model.settings import load

Reply = dict[str, Any]
STEP = {"iteration": 42, "action": "analyzed dataset", "result": "found 3 anomalies", "timestamp": 1770000000000}


def ask(memory: holdfast.Memory, tool: str, params: Reply, session: str = "s") -> Any:
    reply = memory.call(tool, params, {"sessionId": session, "workspaceId": "default"})
    assert reply["success"] is True, reply
    return reply.get("data")


def fill(memory: holdfast.Memory, count: int, session: str = "s") -> None:
    mind = memory.mind(session)
    for number in range(count):
        mind.append("episodic", f"Step {number}: measured run {number} at {number * 7} ms.")


# the design's own examples


def test_the_designs_example_works_word_for_word(memory: holdfast.Memory) -> None:
    mind = memory.mind("s")
    mind.append("episodic", STEP)
    assert [found.entry for found in mind.search("episodic", "anomaly detection")] == [STEP]
    mind.learn({"key": "dataset-patterns", "value": "Anomalies cluster around timestamps ending in :00"})
    assert mind.recall("dataset-patterns")["value"] == "Anomalies cluster around timestamps ending in :00"
    assert [found.entry for found in mind.search("semantic", "dataset patterns")] == [
        {"key": "dataset-patterns", "value": "Anomalies cluster around timestamps ending in :00"}
    ]
    assert mind.compact("episodic", {"keepLast": 10, "summarizeOlder": True}).kept == 1
    assert [found.entry for found in mind.search("episodic", {"last": 5})] == [STEP]
    assert mind.recall("nothing of the kind") is None


def test_the_designs_options_are_accepted_as_objects(memory: holdfast.Memory) -> None:
    fill(memory, 8)
    last = ask(memory, "memory_search", {"type": "episodic", "query": {"last": 5}})
    assert last == ask(memory, "memory_search", {"type": "episodic", "last": 5})
    assert len(last) == 5 and last[-1]["entry"].startswith("Step 7")
    done = ask(memory, "memory_compact", {"type": "episodic", "opts": {"keepLast": 3, "summarizeOlder": False}})
    assert (done["covered"], done["kept"]) == (5, 3)
    assert "none of them is summarised" in done["summary"]
    assert memory.mind("s").compact("episodic", {"keepLast": 1}).kept == 1
    for wrong in ({"opts": {"keep": 3}}, {"opts": {"keepLast": -1}}, {"opts": 3}):
        assert memory.call("memory_compact", {"type": "episodic", **wrong})["success"] is False
    both = memory.call("memory_search", {"type": "episodic", "query": {"last": 2}, "last": 2}, {"sessionId": "s"})
    assert "A query is text; last: n is instead of it." in both["error"]
    assert memory.call("memory_search", {"type": "episodic", "query": {"first": 2}})["success"] is False


def test_the_tools_say_the_same(memory: holdfast.Memory) -> None:
    ask(memory, "memory_append", {"type": "episodic", "entry": STEP})
    (found,) = ask(memory, "memory_search", {"type": "episodic", "query": "anomalies"})
    assert found["entry"] == STEP
    assert ask(memory, "memory_search", {"type": "episodic", "last": 1})[0]["entry"] == STEP
    ask(memory, "memory_learn", {"key": "k", "value": {"deep": [1, 2]}})
    assert ask(memory, "memory_recall", {"key": "k"})["value"] == {"deep": [1, 2]}
    reply = memory.call("memory_recall", {"key": "unknown"})
    assert reply == {"success": True, "data": None}
    ask(memory, "memory_append", {"type": "procedural", "entry": {"when": "the build fails", "do": "read the log"}})
    (rule,) = ask(memory, "memory_match", {"situation": "our build failed again"})
    assert (rule["when"], rule["do"]) == ("the build fails", "read the log")
    assert set(ask(memory, "memory_stats", {})) == {
        "workingMemoryTokens", "episodicEntryCount", "semanticEntryCount", "proceduralRuleCount", "totalStorageBytes",
    }  # fmt: skip


# episodes


def test_the_last_entries_come_oldest_first_and_per_session(memory: holdfast.Memory) -> None:
    fill(memory, 7, "one")
    fill(memory, 2, "two")
    last = memory.mind("one").search("episodic", {"last": 3})
    assert [found.entry.partition(":")[0] for found in last] == ["Step 4", "Step 5", "Step 6"]
    assert len(memory.mind("two").search("episodic", {"last": 100})) == 2
    assert memory.mind("two").stats()["episodicEntryCount"] == 2


def test_an_object_is_kept_as_it_is_and_all_of_it_is_searched(memory: holdfast.Memory, root: Path) -> None:
    entry = {"tool": "grep", "nested": {"path": "src/zebra.py", "hits": [1, None, True]}, "ünïcode": "出荷"}
    mind = memory.mind("s")
    mind.append("episodic", entry)
    for words in ("zebra", "出荷", "grep"):
        assert [found.entry for found in mind.search("episodic", words)] == [entry]
    (line,) = next(root.glob("user/memory/sessions/s-*/episodic.jsonl")).read_text().splitlines()
    assert json.loads(line)["text"] == entry


def _append(root: Path, name: str) -> None:
    with holdfast.open(root) as memory:
        fill_as(memory, name)


def fill_as(memory: holdfast.Memory, name: str) -> None:
    mind = memory.mind("shared")
    for number in range(200):
        mind.append("episodic", f"{name} {number}")


def test_two_processes_in_one_session_lose_no_entry(root: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_append, args=(root, name)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with holdfast.open(root) as memory:
        entries = {found.entry for found in memory.mind("shared").search("episodic", {"last": 1000})}
    assert entries == {f"{name} {number}" for name in "ab" for number in range(200)}


# knowledge


def test_knowledge_is_superseded_with_its_history(memory: holdfast.Memory) -> None:
    mind = memory.mind("s")
    mind.learn("office", "Berlin")
    between = mind.recall("office")["time"]
    mind.learn("office", "Lisbon")
    assert mind.recall("office")["value"] == "Lisbon"
    assert [one["value"] for one in mind.recall("office", history=True)] == ["Berlin", "Lisbon"]
    assert mind.recall("office", as_of=between)["value"] == "Berlin"
    assert mind.recall("office", as_of="2020-01-01") is None
    assert mind.stats()["semanticEntryCount"] == 1


# procedures


def test_the_procedure_whose_condition_fits_best_comes_first(memory: holdfast.Memory) -> None:
    mind = memory.mind("s")
    mind.append("procedural", {"when": "a test is flaky", "do": "run it a hundred times"})
    mind.append("procedural", {"when": "a flaky test fails on Friday evening", "do": "go home"})
    mind.append("procedural", {"when": "the disk is full", "do": "remove old builds"})
    assert mind.match("this test looks flaky to me")[0]["do"] == "run it a hundred times"
    assert [rule["do"] for rule in mind.match("disk full on the server")] == ["remove old builds"]
    assert mind.match("nothing of all that") == []
    mind.append("procedural", {"when": "the disk is full", "do": "call ops"})
    assert [rule["do"] for rule in mind.match("disk full")] == ["call ops", "remove old builds"], "the newer one first"
    mind.append("procedural", {"when": "the disk is full", "do": "call ops"})
    assert [rule["do"] for rule in mind.match("disk full")] == ["call ops", "remove old builds"], (
        "said twice, told once"
    )
    assert mind.stats()["proceduralRuleCount"] == 5


# working memory


def test_working_memory_is_a_rolling_window(root: Path) -> None:
    (root / "holdfast.toml").write_text("[mind]\nwindow_entries = 5\nwindow_tokens = 40\n")
    with holdfast.open(root) as memory:
        mind = memory.mind("s")
        for number in range(20):
            mind.append("working", f"thought {number}")
        assert [found.entry for found in mind.search("working", {"last": 50})] == [
            f"thought {n}" for n in range(15, 20)
        ]
        mind.append("working", "word " * 30)
        assert mind.stats()["workingMemoryTokens"] <= 40
        assert memory.mind("other").search("working", {"last": 5}) == []
        assert [found.entry for found in memory.mind("s").search("working", {"last": 1})] == ["word " * 30]
    assert not list(root.glob("user/memory/sessions/*"))


def test_what_is_large_is_offloaded_and_leaves_a_ref(memory: holdfast.Memory) -> None:
    large = "\n".join(f"line {number} of the report" for number in range(2_000)) + "\nthe zebra is here\n"
    mind = memory.mind("s")
    for type in ("working", "episodic"):
        mind.append(type, large)
        (found,) = mind.search(type, {"last": 1})
        assert set(found.entry) == {"ref", "head", "size"}
        assert found.entry["size"] == len(large)
        ref = found.entry["ref"]
    part = ask(memory, "value_read", {"ref": ref, "offset": 5, "limit": 10})
    assert (part["text"], part["next"], part["size"]) == (large[5:15], 15, len(large))
    (place,) = ask(memory, "value_search", {"ref": ref, "query": "zebra"})
    assert large[place["offset"] :].startswith("the zebra is here")
    summary = ask(memory, "value_summarize", {"ref": ref, "budget": 100})["summary"]
    assert 0 < count_tokens(summary) <= 100
    assert len(mind.search("episodic", "zebra")) == 1


def test_the_history_of_a_conversation_is_a_value_too(memory: holdfast.Memory) -> None:
    fill(memory, 30)
    text = ask(memory, "value_read", {"ref": "episodic", "limit": 100_000})["text"]
    assert "Step 0:" in text and "Step 29:" in text
    assert ask(memory, "value_search", {"ref": "episodic", "query": "measured 119"})[0]["text"].endswith("119 ms.")


# compaction


def test_compacting_covers_the_older_entries_and_loses_none(memory: holdfast.Memory) -> None:
    fill(memory, 40)
    mind = memory.mind("s")
    done = mind.compact("episodic", keep_last=10)
    assert (done.covered, done.kept, done.by) == (30, 10, "extract")
    assert count_tokens(done.summary) <= 1_000
    last = mind.search("episodic", {"last": 100})
    assert [found.summary for found in last] == [True] + [False] * 10
    assert last[0].entry == done.summary
    assert [found.entry.partition(":")[0] for found in mind.search("episodic", {"last": 2})] == ["Step 38", "Step 39"]
    assert mind.stats()["episodicEntryCount"] == 11
    hits = mind.search("episodic", "measured run 3 at 21 ms", limit=50)
    assert any(found.covered and found.entry.startswith("Step 3:") for found in hits)
    assert not any(found.covered for found in hits if found.entry.startswith("Step 39:"))


def test_compacting_twice_changes_nothing(memory: holdfast.Memory, root: Path) -> None:
    fill(memory, 40)
    mind = memory.mind("s")
    mind.compact("episodic")
    before = {path: path.read_bytes() for path in root.rglob("*.jsonl")}
    again = mind.compact("episodic")
    assert (again.covered, again.summary) == (0, "")
    assert {path: path.read_bytes() for path in root.rglob("*.jsonl")} == before


def test_a_later_summary_speaks_for_the_earlier_one(memory: holdfast.Memory) -> None:
    mind = memory.mind("s")
    mind.append("episodic", "The admin password hint is stored in tree 77-B since 2026-03-04.")
    fill(memory, 30)
    mind.compact("episodic")
    fill(memory, 30)
    done = mind.compact("episodic")
    assert done.covered == 30
    assert "77-B" in done.summary
    assert [found.summary for found in mind.search("episodic", {"last": 100})].count(True) == 1


def _compact(root: Path) -> None:
    with holdfast.open(root) as memory:
        memory.mind("s").compact("episodic")


def test_two_processes_that_compact_at_once_make_one_summary(root: Path) -> None:
    with holdfast.open(root) as memory:
        fill(memory, 60)
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_compact, args=(root,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    (log,) = root.glob("user/memory/sessions/s-*/summaries.jsonl")
    assert len(log.read_text().splitlines()) == 1


@pytest.mark.parametrize("type", ["semantic", "procedural", "working"])
def test_every_memory_can_be_compacted(memory: holdfast.Memory, type: str) -> None:
    mind = memory.mind("s")
    for number in range(30):
        entry: Any = {"key": f"k{number}", "value": f"value number {number}"}
        if type == "procedural":
            entry = {"when": f"case {number} comes", "do": f"do {number}"}
        mind.append(type, entry if type != "working" else f"thought number {number}")
    assert mind.compact(type, keep_last=5).covered == 25
    assert len(mind.search(type, {"last": 100})) == 6
    assert mind.compact(type, keep_last=5).covered == 0
    if type == "semantic":
        assert mind.recall("k3")["value"] == "value number 3"


def test_older_entries_can_be_covered_without_a_summary(memory: holdfast.Memory) -> None:
    fill(memory, 20)
    done = memory.mind("s").compact("episodic", summarize_older=False)
    assert "none of them is summarised here" in done.summary
    assert done.covered == 10


# what an agent gets of it


def test_what_is_relevant_to_a_task_comes_within_a_budget(memory: holdfast.Memory) -> None:
    mind = memory.mind("s")
    mind.learn("deploy day", "We deploy on Thursdays.")
    mind.append("procedural", {"when": "a deploy fails", "do": "roll back first, then look"})
    fill(memory, 200)
    mind.append("episodic", "The deploy of version 4.2 failed because of a missing migration.")
    text = mind.context("the deploy failed, what now?", budget=300)
    assert "roll back first" in text and "Thursdays" in text and "missing migration" in text
    assert count_tokens(text) <= 300


def test_a_thousand_turns_keep_the_prompt_small_and_an_early_fact_is_found(memory: holdfast.Memory) -> None:
    mind = memory.mind("long")
    budget, largest = 4_000, 0
    for turn in range(1_000):
        said = f"Turn {turn}: we looked at part {turn % 37} of the system and changed file_{turn}.py a little."
        if turn == 3:
            said = "Turn 3: the license key of the staging server is kept in drawer 19 at Maria's desk."
        mind.append("episodic", said)
        if turn % 25 == 24:
            mind.compact("episodic", keep_last=10)
        if turn % 10 < 9:
            continue
        prompt = "\n".join(found.text for found in mind.search("episodic", {"last": 40}))
        prompt += mind.context("where is the license key of the staging server?", budget=1_000) if turn == 999 else ""
        largest = max(largest, count_tokens(prompt))
    assert largest <= budget
    assert "drawer 19" in prompt


# bad input


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda mind: mind.append("episodical", "x"), "There is no memory 'episodical'. Did you mean \"episodic\"?"),
        (lambda mind: mind.append("episodic", ""), "An entry is text or an object"),
        (lambda mind: mind.append("episodic", {}), "An entry is text or an object"),
        (lambda mind: mind.append("episodic", ["a"]), "An entry is text or an object"),
        (lambda mind: mind.append("semantic", "x"), "Knowledge is {key, value}"),
        (lambda mind: mind.append("procedural", {"when": "x"}), "A procedure is {when, do}"),
        (lambda mind: mind.learn("", "x"), "Knowledge is {key, value}"),
        (lambda mind: mind.learn("k", None), "Knowledge is {key, value}"),
        (lambda mind: mind.search("episodic", ""), "A query is text, or {last: n}"),
        (lambda mind: mind.search("episodic", {"first": 1}), "A query is text, or {last: n}"),
        (lambda mind: mind.search("episodic", {"last": 0}), "last is 0"),
        (lambda mind: mind.search("episodic", "x", limit=0), "limit is 0"),
        (lambda mind: mind.compact("episodic", keep_last=-1), "keepLast is -1"),
        (lambda mind: mind.recall("k", as_of="yesterday"), "is not a date or time"),
        (lambda mind: mind.match(" "), "The situation is blank"),
        (lambda mind: mind.match(5), "situation is 5. Use text."),
        (lambda mind: mind.recall("k", as_of=5), "as_of is 5. Use text."),
        (lambda mind: mind.append("episodic", "x", op_id=5), "op_id is 5. Use text."),
        (lambda mind: mind.context("x", "5"), "budget is '5'. Use a number of tokens."),
        (lambda mind: mind.context(5), "task is 5. Use text."),
        (lambda mind: mind.context(" "), "The task is blank."),
        (lambda mind: mind.compact("episodic", summarize_older="no"), "summarizeOlder is 'no'"),
        (lambda mind: mind._memory.mind(5), "session is 5. Use text."),
        (lambda mind: mind._memory.mind("s", 5), "scope is 5. Use text."),
        (lambda mind: mind._memory.values.read("episodic", "x"), "offset is 'x'"),
        (lambda mind: mind._memory.values.search("episodic", 5), "query is 5. Use text."),
        (lambda mind: mind._memory.values.summarize("episodic", "x"), "budget is 'x'"),
    ],
)
def test_what_cannot_be_done_says_why(memory: holdfast.Memory, call: Any, said: str) -> None:
    with pytest.raises(Invalid) as refused:
        call(memory.mind("s"))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "ref",
    [
        "nothing", "../../etc/passwd", "user/memory/MEMORY.md", "user/memory/values/x.txt", "",
        f"user/memory/values/{'0' * 32}.txt",
    ],
)  # fmt: skip
def test_an_unknown_ref_is_not_there(memory: holdfast.Memory, ref: str) -> None:
    with pytest.raises(NotFound, match=r"There is no value .* Use the ref that an entry shows"):
        memory.values.read(ref)


def test_a_failing_memory_need_not_fail_the_agent(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with holdfast.open(root) as memory:
        mind = memory.mind("s", on_error="log")
        shutil.rmtree(root / "user")
        (root / "user").write_text("no folder any more")
        with caplog.at_level(logging.WARNING, logger="holdfast"):
            assert mind.append("episodic", "x") == ""
            assert mind.search("episodic", "x") == []
            assert mind.append("nonsense", "x") == ""
            assert mind.compact("episodic").covered == 0
        assert "memory append failed" in caplog.text
        with pytest.raises(holdfast.errors.HoldfastError):
            memory.mind("s").append("episodic", "x")
        (root / "user").unlink()


def test_settings_of_the_mind_are_bounded() -> None:
    with pytest.raises(Invalid):
        load("[mind]\nwindow_entries = 0\n")
    assert load("").model.timeout_seconds == 5  # a compaction waits for a model no longer than this


def test_a_model_writes_the_summary_within_its_budget_and_is_done_without_when_it_fails(root: Path) -> None:
    replies: list[tuple[int, bytes]] = []
    over = threading.Event()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if not replies:  # it never answers
                over.wait(60)
                return
            status, body = replies.pop(0)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Stay quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        (root / "holdfast.toml").write_text(f'[model]\nurl = "{url}"\nname = "small"\ntimeout_seconds = 1\n')
        good = {"choices": [{"message": {"content": "Thirty runs were measured."}}], "usage": {"total_tokens": 700}}
        with holdfast.open(root) as memory:
            mind = memory.mind("s")
            fill(memory, 40)
            replies.append((200, json.dumps(good).encode()))
            done = mind.compact("episodic")
            assert (done.by, done.summary, done.fallback) == ("small", "Thirty runs were measured.", "")
            fill(memory, 20)
            replies.append((200, b"nonsense"))
            done = mind.compact("episodic")
            assert done.by == "extract" and done.covered == 20
            assert done.fallback
            fill(memory, 20)
            done = mind.compact("episodic")
            assert (done.by, done.covered, "took too long" in done.fallback) == ("extract", 20, True)
        spent = [json.loads(line) for line in (root / "user/memory/model.jsonl").read_text().splitlines()]
        assert sum(line["tokens"] for line in spent) >= 700
    finally:
        over.set()
        server.shutdown()
        server.server_close()
    with holdfast.open(root) as memory:
        fill(memory, 20)
        assert memory.mind("s").compact("episodic").by == "extract"  # no server listens there any more


def test_a_field_called_access_hides_nothing(memory: holdfast.Memory) -> None:
    mind = memory.mind("s")
    mind.append("procedural", {"when": "the database is locked", "do": "wait", "access": ["admin"]})
    assert mind.match("the database is locked")[0]["do"] == "wait"


def test_summaries_do_not_crowd_entries_out_of_a_search(memory: holdfast.Memory) -> None:
    mind = memory.mind("s")
    for _ in range(12):
        fill(memory, 12)
        mind.append("episodic", "The kiwi harvest was good.")
        mind.compact("episodic", keep_last=1)
    hits = mind.search("episodic", "kiwi harvest", limit=10)
    assert [found.summary for found in hits].count(True) <= 1
    assert sum(found.covered for found in hits) >= 9
    assert "2026-11-16: 2026" not in mind.search("episodic", {"last": 100})[0].text


def test_what_is_appended_while_a_window_is_summarised_stays(memory: holdfast.Memory) -> None:
    window = memory.mind("s").working
    for number in range(10):
        window.add(f"thought {number}")

    def slowly(_older: Any, _told: Any, _most: int) -> Gist:
        window.add("IMPORTANT")
        return Gist("ten thoughts")

    assert window.compact(2, slowly)[0] == 8
    assert [found.entry for found in window.last(10)] == ["ten thoughts", "thought 8", "thought 9", "IMPORTANT"]


def test_a_key_is_found_however_it_is_composed(memory: holdfast.Memory) -> None:
    mind = memory.mind("s")
    mind.learn("Gr\u00f6\u00dfe", "12 cm")
    assert mind.recall(" Gro\u0308\u00dfe ")["value"] == "12 cm"


def test_the_example_of_a_loop_works() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.agent_loop", "--turns", "45"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "room 214" in done.stdout


def test_a_second_summary_leaves_room_for_what_is_new(root: Path) -> None:
    """An earlier summary that fills its budget does not crowd out the entries that came after it."""
    with holdfast.open(root) as memory:
        mind = memory.mind("s")
        for number in range(400):
            mind.append("episodic", f"Decision {number}: the service Alpha{number} moves to port {4000 + number}.")
        mind.compact("episodic", keep_last=0)
        for number in range(200):
            mind.append("episodic", f"Lesson {number}: the queue Omega{number} lost {number} messages on restart.")
        second = mind.compact("episodic", keep_last=0).summary
    assert second.count("Omega") > 5
    assert second.count("Alpha") > 5
    accounts = [line for line in second.splitlines() if "in no sentence here" in line]
    assert [re.sub(r"\d+", "n", line) for line in accounts] == [
        "(n of n earlier sentences are in no sentence here.)",
        "(n of n entries are in no sentence here.)",
    ]
    assert " of 200 entries" in accounts[1]
    assert count_tokens(second) <= 1_000


def test_a_line_in_brackets_is_kept_in_the_next_summary(root: Path) -> None:
    with holdfast.open(root) as memory:
        mind = memory.mind("s")
        mind.append("episodic", "(the owner prefers tea)")
        mind.compact("episodic", keep_last=0)
        mind.append("episodic", "and the release is on Friday")
        assert "(the owner prefers tea)" in mind.compact("episodic", keep_last=0).summary


def test_a_value_that_its_owner_hid_is_not_recalled_from_the_past_either(memory: holdfast.Memory) -> None:
    mind = memory.mind("s")
    first = mind.learn("door code", "1234")
    memory.hide(first)
    assert mind.recall("door code", as_of="2999-01-01") is None
    mind.learn("door code", "5678")
    assert [one["value"] for one in mind.recall("door code", history=True)] == ["5678"]
    assert mind.recall("door code", as_of="2999-01-01")["value"] == "5678"


def test_broken_numbers_in_the_logs_are_not_taken_for_numbers(root: Path) -> None:
    """A summary line without a count, a model line whose tokens are text: both are read for what they still say."""
    with holdfast.open(root) as memory:
        mind = memory.mind("s")
        for number in range(5):
            mind.append("episodic", f"step {number}")
        mind.compact("episodic", keep_last=1)
        (log,) = root.glob("user/memory/sessions/s-*/summaries.jsonl")
        log.write_text(re.sub(r'"count":\d+', '"count":"many"', log.read_text()))
        (root / "user/memory/model.jsonl").write_text('{"day":"2026-01-01","tokens":"lots"}\n{"day":5,"tokens":3}\n')
        assert [one.summary for one in mind.search("episodic", {"last": 9})] == [True, False]
        mind.append("episodic", "one more")
        assert mind.compact("episodic", keep_last=1).covered == 1


def test_a_memory_that_fails_is_logged_and_nothing_is_raised(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with holdfast.open(root) as memory:
        mind = memory.mind("s", on_error="log")
        shutil.rmtree(root / "user", ignore_errors=True)
        (root / "user").write_text("a file where a folder should be")
        with caplog.at_level(logging.WARNING, "holdfast"):
            assert mind.append("episodic", "x") == ""
            assert mind.learn("k", "v") == ""
            assert mind.search("episodic", "x") == []
            assert mind.recall("k") is None
            assert mind.match("x") == []
            assert mind.stats()["episodicEntryCount"] == 0
    assert "memory append failed" in caplog.text


# summaries that can be trusted


def small(root: Path, tokens: int) -> None:
    (root / "holdfast.toml").write_text(f"[mind]\nsummary_tokens = {tokens}\n")


@pytest.mark.parametrize("type", ["episodic", "working"])
def test_an_object_is_one_line_of_a_summary(memory: holdfast.Memory, type: str) -> None:
    mind = memory.mind("s")
    mind.append(type, {"iteration": 0, "action": "ran the tests", "result": "3 failed", "error": None})
    mind.append(type, {"tool": "grep", "hits": [1, 2], "found": {"path": "a.py", "lines": [{"at": 3}, {"at": 4}]}})
    lines = mind.compact(type, keep_last=0).summary.splitlines()
    assert lines[0].endswith(": iteration: 0; action: ran the tests; result: 3 failed")
    assert lines[1] == "tool: grep; hits: 1, 2; found: (path: a.py; lines: [(at: 3), (at: 4)])"
    assert len(lines) == 2


def test_knowledge_keeps_its_key_and_a_procedure_its_condition_in_a_summary(memory: holdfast.Memory) -> None:
    mind = memory.mind("s")
    mind.learn("tz", "Porto")
    mind.append("procedural", {"when": "the build fails", "do": ["read the log", "tell Ann"]})
    assert mind.compact("semantic", keep_last=0).summary.endswith(": tz: Porto")
    assert mind.compact("procedural", keep_last=0).summary.endswith(": When the build fails: read the log, tell Ann")


@pytest.mark.parametrize("type", ["episodic", "working"])
def test_what_was_left_out_is_counted_in_real_entries_and_real_sentences(root: Path, type: str) -> None:
    small(root, 100)
    with holdfast.open(root) as memory:
        mind = memory.mind("s")
        for place in (0, 1):
            for number in range(20):
                entry = {"iteration": number + 20 * place, "action": "ran the tests. Again", "result": "a\nb\nc"}
                mind.append(type, entry)
            done = mind.compact(type, keep_last=0)
            assert done.covered == 20
            said = [line for line in done.summary.splitlines() if "iteration" in line]
            *earlier, last = [line for line in done.summary.splitlines() if "in no sentence here" in line]
            if place == 0:
                first = len(said)
                assert earlier == [] and last == f"({20 - first} of 20 entries are in no sentence here.)"
            else:
                new = [line for line in said if int(re.findall(r"iteration: (\d+)", line)[0]) >= 20]
                assert last == f"({20 - len(new)} of 20 entries are in no sentence here.)"
                old = len(said) - len(new)
                assert earlier == [f"({first - old} of {first} earlier sentences are in no sentence here.)"]
            assert all(line.endswith("result: a b c") for line in said)


def test_a_text_of_several_lines_stays_one_entry_and_several_sentences(root: Path) -> None:
    small(root, 130)
    ports = [f"Port {8000 + number} is used by Beta{number}." for number in range(12)]
    with holdfast.open(root) as memory:
        mind = memory.mind("s")
        mind.append("episodic", "\n".join(ports))
        assert mind.compact("episodic", keep_last=0).summary.partition(": ")[2] == "\n  ".join(ports)
        for number in range(30):
            mind.append("episodic", f"Decision {number}: the service Alpha{number} moves to port {4000 + number}.")
        summary = mind.compact("episodic", keep_last=0).summary
    told = sum(port in summary.splitlines() or f": {port}" in summary for port in ports)
    assert 0 < told < 12
    assert f"({12 - told} of 12 earlier sentences are in no sentence here.)" in summary
    assert "of 30 entries are in no sentence here.)" in summary


def test_a_text_that_begins_like_a_day_moves_nothing_to_that_day(root: Path) -> None:
    with holdfast.open(root) as memory:
        mind = memory.mind("s")
        mind.append("episodic", "The office moved to Porto.")
        mind.append("episodic", "1999-12-31: old invoice of Acme was found")
        mind.append("episodic", "The invoice was paid.")
        today = mind.compact("episodic", keep_last=0).summary[:10]
        mind.append("episodic", "Another one came.")
        second = mind.compact("episodic", keep_last=0).summary
        mind.append("episodic", "And one more.")
        third = mind.compact("episodic", keep_last=0).summary
    for summary in (second, third):
        assert f"{today}: 1999-12-31: old invoice of Acme was found" in summary
        assert [line[:10] for line in summary.splitlines() if re.match(r"\d{4}-", line)] == [today] * 3
    (log,) = root.glob("user/memory/sessions/s-*/summaries.jsonl")
    said = json.loads(log.read_text().splitlines()[-1])["said"]
    assert [day for day, _ in said] == [today] * 5
    assert said[1][1] == "1999-12-31: old invoice of Acme was found"


def test_covering_without_a_summary_keeps_what_was_told_before_and_counts_entries(memory: holdfast.Memory) -> None:
    mind = memory.mind("s")
    mind.append("episodic", "The key hangs in room 214. It is red.")
    mind.compact("episodic", keep_last=0)
    fill(memory, 3)
    summary = mind.compact("episodic", keep_last=0, summarize_older=False).summary
    assert "room 214" in summary
    assert summary.splitlines()[-1].startswith("3 entries from ")


@contextlib.contextmanager
def answering(text: str) -> Iterator[str]:
    """A model that always writes this."""
    body = json.dumps({"choices": [{"message": {"content": text}}]}).encode()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Stay quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def test_a_model_that_writes_too_much_is_cut_off_and_that_is_said(root: Path) -> None:
    with answering("word " * 160) as url:
        (root / "holdfast.toml").write_text(f'[model]\nurl = "{url}"\nname = "m"\n[mind]\nsummary_tokens = 150\n')
        with holdfast.open(root) as memory:
            fill(memory, 60)
            done = memory.mind("s").compact("episodic")
    assert done.by == "m"
    assert 100 < count_tokens(done.summary) <= 150
    assert done.fallback == "The model wrote 200 tokens; 150 are allowed, so its text is cut off there."


def test_working_memory_reports_its_compaction_like_the_others(memory: holdfast.Memory) -> None:
    mind = memory.mind("s")
    for number in range(8):
        mind.append("working", f"thought {number}")
    done = mind.compact("working", keep_last=3)
    assert (done.covered, done.kept, done.by) == (5, 3, "extract")
    assert "thought 4" in done.summary and "thought 5" not in done.summary
    assert mind.search("working", {"last": 9})[0].entry == done.summary
    again = mind.compact("working", keep_last=3)
    assert (again.covered, again.kept, again.summary) == (0, 3, "")
    mind.append("working", "thought 8")
    assert mind.compact("working", keep_last=3).covered == 1


# what an agent gets of a long memory


def test_the_prompt_gets_what_fits_of_a_long_summary_and_no_part_starves(memory: holdfast.Memory) -> None:
    mind = memory.mind("s")
    for number in range(300):
        mind.append("episodic", {"iteration": number, "action": f"moved service Alpha{number}", "port": 4000 + number})
    mind.compact("episodic", keep_last=5)
    mind.learn({"key": "tz", "value": "Porto", "source": "Ann"})
    mind.append("procedural", {"when": "a service moves", "do": "tell Ann " * 200})
    for budget in (40, 80, 150, 300, 700, 3_000):
        text = mind.context("service moves port tz Alpha7", budget=budget)
        assert count_tokens(text) <= budget
        if budget >= 80:
            assert "- tz: Porto\n" in text
        if budget >= 150:
            titles = [line for line in text.splitlines() if line.startswith("## ")]
            assert titles == ["## What to do", "## What is known", "## What happened before", "## What happened"]
            before = text.split("## What happened before\n")[1].split("\n\n")[0]
            assert "- iteration: " in before or ": iteration: " in before
    assert count_tokens(text) > 1_000, "the whole summary, where there is room for it"


@given(
    lines=st.lists(st.lists(st.text("ab 漢.", max_size=60), max_size=5), min_size=3, max_size=3),
    said=st.lists(st.text("ab 漢.", min_size=1, max_size=60), max_size=8),
    budget=st.integers(0, 120),
)
def test_no_prompt_exceeds_its_budget(lines: list[list[str]], said: list[str], budget: int) -> None:
    one, two, three = lines
    offers = {"One": one, "Two": two, compaction.BEFORE: [], "Three": three}
    gist = Gist("\n".join(said), tuple(("2026-01-01", text) for text in said))
    assert count_tokens(compaction.within_budget(offers, gist, budget)) <= budget


# reported beside the answer


@pytest.mark.parametrize(
    ("tool", "params", "path"),
    [
        ("memory_recall", {"key": "k"}, "user/memory/semantic.jsonl"),
        ("memory_recall", {"key": "k", "history": True}, "user/memory/semantic.jsonl"),
        ("memory_search", {"type": "semantic", "query": "v"}, "user/memory/semantic.jsonl"),
        ("memory_search", {"type": "semantic", "last": 3}, "user/memory/semantic.jsonl"),
        ("memory_search", {"type": "episodic", "query": "e"}, "episodic.jsonl"),
        ("memory_search", {"type": "episodic", "last": 3}, "episodic.jsonl"),
        ("memory_search", {"type": "episodic", "last": 3}, "summaries.jsonl"),
        ("memory_match", {"situation": "s"}, "user/memory/procedural.jsonl"),
        ("memory_stats", {}, "episodic.jsonl"),
    ],
)
def test_a_damaged_log_is_told_beside_the_answer(
    memory: holdfast.Memory, root: Path, tool: str, params: Reply, path: str
) -> None:
    mind = memory.mind("s")
    mind.append("episodic", "e f g")
    mind.append("episodic", "h i")
    mind.compact("episodic", keep_last=1)
    mind.learn("k", "v")
    mind.append("procedural", {"when": "s", "do": "d"})
    context = {"sessionId": "s"}
    before = memory.call(tool, params, context)
    assert "warnings" not in before
    (file,) = root.glob(f"**/{path}")
    with file.open("ab") as log:
        log.write(b"{torn\n")
    for _ in range(2):
        reply = memory.call(tool, params, context)
        (warning,) = reply.pop("warnings")
        assert f"{path}:" in warning and "not valid JSON" in warning
        if tool != "memory_stats":
            assert reply == before
    python = memory.mind("s")
    python.stats()
    assert len(python.warnings) == 1
    python.stats()
    assert len(python.warnings) == 1


def test_what_was_given_with_a_fact_or_a_procedure_comes_back(memory: holdfast.Memory) -> None:
    mind = memory.mind("s")
    fact = {"key": "tz", "value": {"city": "Porto"}, "confidence": 0.9, "source": ["mail", "Ann"], "size": 3}
    rule = {"when": "the build fails", "do": "read the log", "why": "it says so"}
    mind.append("semantic", fact, op_id="once")
    mind.append("procedural", rule)
    known = mind.recall("tz")
    assert {name: known[name] for name in fact} == fact
    assert known.keys() == fact.keys() | {"time", "id"}
    assert mind.recall("tz", history=True) == [known]
    assert [found.entry for found in mind.search("semantic", "Ann")] == [fact]
    assert [found.entry for found in mind.search("procedural", {"last": 1})] == [rule]
    assert mind.match("build fails")[0]["why"] == "it says so"
    mind.learn({"key": "large", "value": "x" * 20_000, "source": "disk"})
    large = mind.recall("large")
    assert large["source"] == "disk" and set(large["value"]) == {"ref", "size", "head"}
    assert large.keys() == {"key", "value", "source", "time", "id"}


@pytest.mark.parametrize("budget", [20, 60, 8_000])
def test_no_entry_exceeds_the_window(root: Path, budget: int) -> None:
    (root / "holdfast.toml").write_text(f"[mind]\nwindow_tokens = {budget}\n")
    with holdfast.open(root) as memory:
        mind = memory.mind("s")
        for entry in ("漢" * 15_990, {"result": "字" * 9_000}, "a few words"):
            mind.append("working", entry)
            assert mind.stats()["workingMemoryTokens"] <= budget
        mind.append("working", "漢" * 15_990)
        found = mind.search("working", {"last": 1})
        if budget > 50:
            assert (found[0].entry["size"], found[0].entry["head"][:9]) == (15_990, "漢" * 9)
            assert memory.values.read(found[0].entry["ref"], 15_980)["text"] == "漢" * 10
        for number in range(50):
            mind.append("working", f"thought {number}")
        mind.compact("working", keep_last=1)
        assert mind.stats()["workingMemoryTokens"] <= budget


def test_a_search_says_what_it_takes(memory: holdfast.Memory) -> None:
    fill(memory, 3)
    neither = memory.call("memory_search", {"type": "episodic"}, {"sessionId": "s"})
    assert neither["error"].startswith("A query is text; or give last: n.")
    both = memory.call("memory_search", {"type": "episodic", "query": "run", "last": 2}, {"sessionId": "s"})
    assert both["error"] == "A query is text; last: n is instead of it. Give one of them."
    last = ask(memory, "memory_search", {"type": "episodic", "last": 2})
    assert all("score" not in found for found in last)
    assert all("score" in found for found in ask(memory, "memory_search", {"type": "episodic", "query": "run"}))


def test_compacting_what_is_short_says_that_nothing_is_covered(memory: holdfast.Memory) -> None:
    assert ask(memory, "memory_compact", {"type": "episodic"}) == {"covered": 0, "kept": 0}
    fill(memory, 3)
    assert ask(memory, "memory_compact", {"type": "episodic"}) == {"covered": 0, "kept": 3}
    fill(memory, 5)
    assert ask(memory, "memory_compact", {"type": "episodic"}) == {"covered": 0, "kept": 8}
