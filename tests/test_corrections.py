"""Corrections that count: a whole record, a new text for it, what supersedes what, what expires, what is reviewed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.model.queries import Query

WEB = {"workspaceId": "webshop", "sessionId": "one"}
YESTERDAY, TOMORROW = ((date.today() + timedelta(days=days)).isoformat() for days in (-1, 1))
Call = Callable[..., dict[str, Any]]


@pytest.fixture
def call(memory: holdfast.Memory) -> Call:
    """Calls a tool in the workspace `webshop`, and fails where the tool does."""
    memory.call("createWorkspace", {"name": "webshop", "description": "d", "rootFolder": "web", "purpose": "p"})

    def work(tool: str, /, context: dict[str, str] = WEB, **params: Any) -> dict[str, Any]:
        reply = memory.call(tool, params, context)
        assert reply.get("success") is not False, reply
        return reply

    return work


def refused(memory: holdfast.Memory, tool: str, context: dict[str, str] = WEB, /, **params: Any) -> str:
    reply = memory.call(tool, params, context)
    assert reply["success"] is False, reply
    return str(reply["error"])


def cli(root: Path, *words: str, ok: bool = True) -> str:
    command = [sys.executable, "-m", "holdfast", *words, "--root", str(root)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode == 0) is ok, done.stderr
    return done.stdout + done.stderr


# read


def test_a_whole_record_is_read_in_parts_of_so_many_characters(memory: holdfast.Memory, call: Call) -> None:
    text = "\n".join(f"line {number} é" for number in range(2_000))
    made = call("remember", text=text, title="Long")
    (hit,) = call("recall", query="line long")["hits"]
    assert hit["size"] == len(text)
    found, offset = "", 0
    while True:
        part = call("read", id=made["id"], offset=offset, limit=7_000)
        assert (part["offset"], part["size"], part["title"]) == (offset, len(text), "Long")
        found += part["content"]
        if "next" not in part:
            break
        offset = part["next"]
    assert found == text
    assert f"all {len(text):,} characters: read {made['id']}" in call("recall", query="line long")["text"]
    assert "go on with offset 16000" in call("read", id=made["id"])["text"]
    short = call("remember", text="Only a few words about marble.")
    (hit,) = call("recall", query="marble")["hits"]
    assert "size" not in hit and hit["id"] == short["id"]


def test_every_sort_of_record_is_read_by_its_id_or_its_line(memory: holdfast.Memory, call: Call) -> None:
    note = call("remember", text="a note", title="N", tags=["t"])["id"]
    decision = call("remember", text="a decision", kind="decision", title="D")
    fact = call("remember", text="a fact", kind="fact", key="k")["id"]
    episode = memory.put("episode", data={"action": "ran", "result": 3}, session="one").id
    call("createState", name="S", conversationContext="a state", activeTask="t", activeFiles=[], nextSteps=["n"])
    (state,) = memory.every(Query(kinds=("state",)))
    for identifier, content in (
        (note, "a note"), (decision["id"], "a decision"), (fact, "a fact"), (state.id, "a state"),
        (episode, '{"action":"ran","result":3}'), (f"{decision['where']}:3", "a decision"), (f"{note}:1", "a note"),
    ):  # fmt: skip
        assert call("read", id=identifier)["content"] == content
    assert call("read", id=state.id)["fields"]["nextSteps"] == ["n"]
    assert call("read", id=note)["tags"] == ["t"]
    assert "> activeTask: t" in call("read", id=state.id)["text"]
    assert "There is no record" in refused(memory, "read", id="nothing")


def test_notes_of_a_session_are_read_there_and_nowhere_else(memory: holdfast.Memory, call: Call) -> None:
    mine = call("save_memory", compartment="session", content="the wombat password")["id"]
    assert call("read", id=mine)["content"] == "the wombat password"
    other = WEB | {"sessionId": "two"}
    error = refused(memory, "read", other, id=mine)
    assert "wombat" not in error and error.endswith("Only that session reads it, with get_memory.")
