"""Is the memory used? What was recalled, what never was, what found nothing, and what it cost."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import fork_server
import holdfast
from holdfast.errors import Invalid
from holdfast.model.names import count_tokens
from terminal import on_terminal


@pytest.fixture
def used(memory: holdfast.Memory) -> holdfast.Memory:
    """A memory with three notes, of which one was recalled twice and one once."""
    for title, text in (
        ("Deploys", "We deploy on Tuesdays."),
        ("Tea", "We drink tea."),
        ("Zebras", "Never mentioned."),
    ):
        memory.call("remember", {"text": text, "title": title})
    memory.call("recall", {"query": "when do we deploy?", "kinds": ["note"]})
    memory.call("recall", {"query": "deploy tuesdays tea", "kinds": ["note"], "limit": 2})
    for query in ("quasar", "Quasar", "pulsar"):
        memory.call("recall", {"query": query})
    memory.call("recall", {"query": ""})
    return memory


def told(root: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "holdfast", "usage", "--root", str(root), "--json", *words]
    return json.loads(fork_server.run(command, check=True, capture_output=True, text=True).stdout)


def test_usage_is_counted_from_traces(root: Path, used: holdfast.Memory) -> None:
    found = told(root)
    assert [(one["title"], one["kind"], one["count"]) for one in found["recalled"]] == [
        ("Deploys", "note", 2), ("Tea", "note", 1),
    ]  # fmt: skip
    assert [one["title"] for one in found["never"]] == ["Zebras"]
    assert [(one["query"].casefold(), one["count"]) for one in found["unanswered"]] == [("quasar", 2), ("pulsar", 1)]
    assert (found["kept"], found["calls"]) == (3, 9)
    tools = {one["tool"]: one for one in found["tools"]}
    assert (tools["recall"]["calls"], tools["recall"]["failed"], tools["remember"]["calls"]) == (6, 1, 3)
    assert found["tokens"] == tools["recall"]["tokens"] + tools["remember"]["tokens"]
    assert found["recalled"][0]["last"] > found["recalled"][0]["last"][:10]


def test_traces_of_old_months_are_removed_when_the_owner_asks(root: Path, used: holdfast.Memory) -> None:
    used.close()
    folder = root / "user/memory/traces/default"
    (log,) = folder.glob("*.jsonl")
    year = int(log.stem[:4])
    kept, old = f"{year - 1}{log.stem[4:]}", f"{year - 2}{log.stem[4:]}"
    for month in (kept, old):
        (folder / f"{month}.jsonl").write_text(log.read_text().replace(log.stem, month))
    shown = on_terminal("usage", root=root)
    assert "Older than limits.trace_months: 1 log of traces. To remove: holdfast usage --prune" in shown
    assert f"since {old}" in shown, "it says how far back it reaches"
    assert (folder / f"{old}.jsonl").exists()
    shown = on_terminal("usage", "--prune", root=root)
    assert "Removed: 1 log of traces." in shown
    assert f"since {kept}" in shown
    assert sorted(file.stem for file in folder.glob("*.jsonl")) == [kept, log.stem]
    with holdfast.open(root) as memory:
        assert memory.verify().sound
        assert memory.stats()["vanished"] == []
    (root / "holdfast.toml").write_text((root / "holdfast.toml").read_text() + "\n[limits]\ntrace_months = 0\n")
    assert "trace_months" not in on_terminal("usage", root=root)


def test_the_tokens_are_those_of_the_reply(memory: holdfast.Memory) -> None:
    memory.call("remember", {"text": "We deploy on Tuesdays.", "title": "Deploys"})
    before = memory.usage().tokens
    reply = memory.call("recall", {"query": "deploy"})
    assert memory.usage().tokens - before == count_tokens(reply["text"])
    before = memory.usage().tokens
    reply = memory.call("listStates")
    assert memory.usage().tokens - before == count_tokens(json.dumps(reply, separators=(",", ":")))


def test_a_date_limits_what_is_counted(root: Path, used: holdfast.Memory) -> None:
    assert told(root, "--since", "9999-01-01") == {
        "since": "9999-01-01T00:00:00.000Z", "first": "", "calls": 0, "tokens": 0, "tools": [], "recalled": [],
        "never": told(root, "--since", "9999-01-01")["never"], "kept": 3, "unanswered": [],
    }  # fmt: skip
    assert told(root, "--since", "2020-01-01")["calls"] == 9
    with pytest.raises(Invalid, match="not a date"):
        used.usage("soon")


def test_a_removed_record_and_odd_traces_are_counted(root: Path, used: holdfast.Memory) -> None:
    tea = next(one.id for one in used.usage().recalled if one.title == "Tea")
    used.forget(tea, yes=True)
    assert [one.title for one in used.usage().recalled] == ["Deploys", ""]
    old = {"tool": "recall", "success": True, "params": {"query": "x"}, "result": "1. note", "ms": 1.0, "read": True}
    odd = [old, old | {"tokens": "x"}, old | {"tokens": 3, "ids": 5}, old | {"tokens": 3, "params": 5, "ids": [5, {}]}]
    (root / "user/memory/traces/default/2020-01.jsonl").write_text("".join(json.dumps(one) + "\n" for one in odd))
    found = used.usage()
    assert found.calls == 13


def test_a_person_sees_a_table(root: Path, memory: holdfast.Memory) -> None:
    assert "No tool was called yet." in on_terminal("usage", root=root)
    memory.call("remember", {"text": "We deploy on Tuesdays.", "title": "Deploys"})
    memory.call("recall", {"query": "quasar"})
    shown = on_terminal("usage", root=root)
    for said in ("2 calls, ", "Questions that found nothing", "quasar", "Never recalled: 1 of 1 record", "Deploys"):
        assert said in shown, shown
    assert "No tool was called since then." in on_terminal("usage", "--since", "9999-01-01", root=root)


def test_a_long_log_is_not_kept_in_memory(root: Path) -> None:
    line = {"tool": "recall", "success": True, "params": {"query": "x" * 500}, "ids": ["a", "b"], "tokens": 7}
    lines = [json.dumps(line | {"time": "2026-01-01T00:00:00.000Z", "ms": ms}) + "\n" for ms in range(20_000)]
    (root / "user/memory/traces/default").mkdir(parents=True)
    (root / "user/memory/traces/default/2026-01.jsonl").write_text("".join(lines))
    with holdfast.open(root) as memory:
        memory.refresh()
        tracemalloc.start()
        found = memory.usage()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (found.calls, found.tokens) == (20_000, 140_000)
    assert most < sum(map(len, lines)) / 2


def test_a_recall_leaves_the_traces_of_earlier_calls_unread_until_they_are_searched(root: Path) -> None:
    with holdfast.open(root, watch=True) as memory:
        memory.put("note", "The kettle is in the attic.", title="Kettle")
        for _ in range(3):
            assert memory.call("recall", {"query": "kettle"})["hits"]
        assert memory.stats()["behind"] == 1
        assert len(memory.find(kinds=("trace",))) == 3
        assert memory.stats()["behind"] == 0
        memory.call("recall", {"query": "kettle"})
        assert len(memory.find(kinds=("trace",))) == 4
