"""Notes of a session and of its plans are read in that session, and nothing else shows them anywhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

import fork_server
import holdfast
from holdfast.errors import Invalid
from holdfast.model.queries import Query

MINE = {"workspaceId": "default", "sessionId": "mine"}
OTHER = {"workspaceId": "default", "sessionId": "other", "goal": "wombat"}
WORDS = ("wombat", "quokka")


@pytest.fixture
def noted(memory: holdfast.Memory) -> dict[str, str]:
    """Notes of one session, and a note of everyone that has the same words and tag."""
    memory.call("remember", {"text": "Ordinary text about a marsupial.", "tags": ["zoo"]}, MINE)
    ids = {}
    for compartment, word in zip(("session", "plan"), WORDS, strict=True):
        params = {"compartment": compartment, "content": f"the {word} password", "tags": ["zoo"], "category": word}
        ids[compartment] = memory.call("save_memory", params, MINE)["id"]
    return ids


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("recall", {"query": "wombat quokka password"}),
    ("recall", {"query": "wombat", "scope": "*", "layers": ["hot", "warm", "cold"]}),
    ("recall", {"query": "kind:entry"}),
    ("recall", {"query": "wombat", "kinds": ["entry", "note"]}),
    ("recall", {"query": "tag:zoo"}),
    ("recall", {"query": "marsupial"}),
    ("recall", {"query": "kind:trace"}),
    ("recall", {"query": "kind:trace", "kinds": ["trace"]}),
    ("recall", {"query": "wombat password", "kinds": ["trace"]}),
    ("searchMemory", {"query": "wombat quokka", "workspaceId": "default"}),
    ("searchMemory", {"query": "kind:trace", "workspaceId": "default"}),
    ("search_history", {"query": "wombat"}),
    *[("memory_search", {"type": kind, "query": "wombat"}) for kind in ("episodic", "semantic", "procedural")],
    ("memory_match", {"situation": "wombat"}),
    ("memory_recall", {"key": "wombat"}),
    ("workspace_context", {"topics": ["notes"]}),
    ("retrieve_learnings", {}),
    ("retrieve_plans", {}),
    ("retrieve_overview", {}),
    ("loadWorkspace", {"name": "default"}),
    ("get_memory", {"compartment": "session"}),
    ("get_memory", {"compartment": "plan"}),
]


@pytest.mark.parametrize(("tool", "params"), CALLS, ids=[f"{tool}-{number}" for number, (tool, _) in enumerate(CALLS)])
def test_no_tool_shows_the_notes_of_another_session(
    memory: holdfast.Memory, noted: dict[str, str], tool: str, params: dict[str, Any]
) -> None:
    shown = json.dumps(memory.call(tool, params, OTHER))
    assert "password" not in shown.replace(json.dumps(params.get("query")), "")
    assert not any(each in shown for each in noted.values())


def test_their_own_session_still_reads_them(memory: holdfast.Memory, noted: dict[str, str]) -> None:
    for compartment, word in zip(("session", "plan"), WORDS, strict=True):
        (entry,) = memory.call("get_memory", {"compartment": compartment}, MINE)["entries"]
        assert (entry["id"], entry["content"]) == (noted[compartment], f"the {word} password")


def test_no_assembled_prompt_shows_them(memory: holdfast.Memory, noted: dict[str, str]) -> None:
    prompt = str(memory.prompt("default", "other", task="wombat quokka password"))
    assert "the wombat" not in prompt and "the quokka" not in prompt


def test_no_search_of_the_library_or_the_command_line_shows_them(
    memory: holdfast.Memory, noted: dict[str, str], root: Path
) -> None:
    assert [hit.record.kind for hit in memory.find("wombat quokka password", associate=True)] == []
    assert {hit.record.kind for hit in memory.find("")} == {"note"}
    assert {tied.record.kind for tied in memory.related("zoo")} == {"note"}
    for ask in (lambda: memory.find("kind:entry"), lambda: memory.related("zoo", Query(kinds=("entry",)))):
        with pytest.raises(Invalid, match="only that session reads it"):
            ask()
    said = ""
    for words in (["search", "wombat"], ["related", "zoo"], ["context"], ["search", "", "--kind", "entry"]):
        command = [sys.executable, "-m", "holdfast", *words, "--root", str(root)]
        done = fork_server.run(command, capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert "password" not in said
    assert "holdfast compartment get" in said


def test_their_words_are_dropped_from_an_index_of_an_older_version(memory: holdfast.Memory, root: Path) -> None:
    saved = memory.call("save_memory", {"compartment": "session", "content": "the wombat password"}, MINE)["id"]
    assert memory.find("wombat").hits == []
    memory.close()
    db = apsw.Connection(str(root / ".holdfast" / (root / ".holdfast/current").read_text()))
    ((row,),) = db.execute("SELECT row FROM records WHERE id = ?", (saved,))
    db.execute("INSERT INTO words (rowid, title, text, rest) VALUES (?, '', 'wombat', '')", (row,))
    db.pragma("user_version", 10)
    db.close()
    with holdfast.open(root) as again:
        assert again.find("wombat").hits == []
        assert again.verify().sound
