"""Cold memory: transcripts in every form that is met, read only when asked for, and brought in once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fork_server
import holdfast
from holdfast.errors import Invalid, NotFound
from holdfast.formats import transcripts
from holdfast.memories.cold import ImportReport, find_sources
from holdfast.model.times import mint
from terminal import on_terminal

SESSION = "550e8400-e29b-41d4-a716-446655440000"
ROLLOUT = "0199a213-81c0-7800-8aa1-bbab2a035a53"
KEY = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


def claude(kind: str, content: Any, number: int = 0, **more: Any) -> dict[str, Any]:
    """A line as Claude Code writes it."""
    return {
        "parentUuid": None, "isSidechain": False, "userType": "external", "cwd": "/home/ann/shop",
        "sessionId": SESSION, "version": "2.0.14", "gitBranch": "main", "type": kind,
        "message": {"role": kind, "content": content}, "uuid": f"uuid-{number}",
        "timestamp": f"2025-10-29T07:{number // 60 % 60:02d}:{number % 60:02d}.293Z", **more,
    }  # fmt: skip


def codex(kind: str, payload: dict[str, Any], second: int = 0) -> dict[str, Any]:
    """A line as Codex writes it."""
    return {"timestamp": f"2025-11-02T10:00:{second:02d}.000Z", "type": kind, "payload": payload}


def said(role: str, text: str, part: str = "input_text") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": part, "text": text}]}


CLAUDE: list[dict[str, Any]] = [
    {"type": "summary", "summary": "Repairing the checkout", "leafUuid": "x"},
    {"type": "file-history-snapshot", "messageId": "m", "snapshot": {"trackedFileBackups": {}}, "isSnapshotUpdate": False},
    claude("user", "Why does the checkout fail for zebrafish?", 1),
    claude("user", "Caveat: the messages below were generated", 2, isMeta=True),
    claude("assistant", [{"type": "thinking", "thinking": "hmm", "signature": "s"}], 3),
    claude("assistant", [{"type": "text", "text": "I will look."}, {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "grep -r\n  zebrafish src", "description": "search"}}], 4),
    claude("user", [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "src/cart.py: zebrafish"}, {"type": "image", "source": {"data": "aGk="}}]}], 5, toolUseResult={"stdout": "src/cart.py"}),
    {"type": "queue-operation", "operation": "enqueue", "content": "queued", "timestamp": "2025-10-29T07:00:06Z", "sessionId": SESSION},
    {"type": "progress", "data": {"type": "hook_progress"}, "timestamp": "2025-10-29T07:00:07Z", "sessionId": SESSION},
    claude("user", [{"type": "text", "text": "And this?"}, {"type": "image", "source": {"type": "base64", "data": "aGk="}}], 8),
    claude("assistant", [{"type": "text", "text": "A helper speaks."}], 9, isSidechain=True, agentId="a1b2"),
    claude("user", "This session is being continued.", 10, isCompactSummary=True),
    {"type": "system", "subtype": "informational", "content": "Model changed", "isMeta": False, "timestamp": "2025-10-29T07:00:11Z", "sessionId": SESSION},
    {"type": "attachment", "attachment": {"type": "queued_command", "prompt": "also check the refunds"}, "timestamp": "2025-10-29T07:00:12Z", "sessionId": SESSION},
]  # fmt: skip
CLAUDE_TURNS = [
    ("system", "Repairing the checkout"),
    ("user", "Why does the checkout fail for zebrafish?"),
    ("assistant", 'I will look.\nBash {"command": "grep -r zebrafish src", "description": "search"}'),
    ("tool", "src/cart.py: zebrafish\n[image]"),
    ("user", "And this?\n[image]"),
    ("assistant", "A helper speaks."),
    ("system", "This session is being continued."),
    ("system", "Model changed"),
    ("user", "also check the refunds"),
]
CODEX: list[dict[str, Any]] = [
    codex("session_meta", {"id": ROLLOUT, "timestamp": "2025-11-02T10:00:00Z", "cwd": "/home/ann/shop", "cli_version": "0.50"}),
    codex("response_item", said("developer", "<permissions instructions>never ask</permissions instructions>")),
    codex("response_item", {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "# AGENTS.md instructions for /home/ann/shop"}, {"type": "input_text", "text": "<environment_context>\n<cwd>/home/ann/shop</cwd></environment_context>"}]}),
    codex("turn_context", {"cwd": "/home/ann/shop", "model": "gpt-5"}),
    codex("response_item", said("user", "Rename the quokka module"), 1),
    codex("event_msg", {"type": "user_message", "message": "Rename the quokka module"}, 1),
    codex("response_item", {"type": "reasoning", "summary": [{"type": "summary_text", "text": "thinking"}], "encrypted_content": "x"}, 2),
    codex("response_item", {"type": "function_call", "name": "shell", "arguments": '{"command":["bash","-lc","ls"]}', "call_id": "c1"}, 3),
    codex("response_item", {"type": "function_call_output", "call_id": "c1", "output": '{"output":"quokka.py\\n","metadata":{"exit_code":0}}'}, 4),
    codex("response_item", {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin Patch\n*** Rename", "call_id": "c2"}, 5),
    codex("response_item", {"type": "custom_tool_call_output", "call_id": "c2", "output": "Done"}, 6),
    codex("response_item", {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "quokka"}}, 7),
    codex("event_msg", {"type": "agent_message", "message": "It is renamed."}, 8),
    codex("response_item", said("assistant", "It is renamed.", "output_text"), 8),
    codex("compacted", {"message": "They renamed a module."}, 9),
]  # fmt: skip
CODEX_TURNS = [
    ("user", "Rename the quokka module"),
    ("assistant", 'shell {"command": ["bash", "-lc", "ls"]}'),
    ("tool", "quokka.py\n"),
    ("assistant", 'apply_patch "*** Begin Patch *** Rename"'),
    ("tool", "Done"),
    ("assistant", 'web_search {"type": "search", "query": "quokka"}'),
    ("assistant", "It is renamed."),
    ("system", "They renamed a module."),
]
CURSOR: list[dict[str, Any]] = [
    {"role": "user", "message": {"content": [{"type": "text", "text": "<user_query>\nwhere is the axolotl\n</user_query>"}]}},
    {"role": "assistant", "message": {"content": [{"type": "text", "text": "In the pond."}, {"type": "tool_use", "name": "Grep", "input": {"pattern": "axolotl"}}]}},
    {"type": "turn_ended", "status": "success"},
]  # fmt: skip


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def plain(lines: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(turn["role"], turn["text"]) for line in lines for turn in transcripts.turns(line)]


def bring(memory: holdfast.Memory, source: str, path: Path, scope: str | None = None) -> ImportReport:
    return memory.transcripts.bring(source, find_sources(source, str(path)), scope)


def kept(root: Path) -> list[dict[str, Any]]:
    """Every whole line in the logs of cold memory."""
    found = []
    for path in sorted((root / "agent-transcripts").rglob("*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def run(*words: str, root: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HOLDFAST_ROOT": str(root)} | more
    command = [sys.executable, "-m", "holdfast", *words]
    return fork_server.run(command, env=environment, capture_output=True, text=True, timeout=120)


def found(memory: holdfast.Memory, text: str, **given: Any) -> list[str]:
    return [hit.record.text for hit in memory.find(text, kinds=("transcript",), **given)]


# forms


def test_claude_code_is_read_as_plain_turns() -> None:
    assert plain(CLAUDE) == CLAUDE_TURNS
    (first,) = transcripts.turns(CLAUDE[2])
    assert first["session"] == SESSION and first["folder"] == "/home/ann/shop"
    assert first["time"] == "2025-10-29T07:00:01.293Z" and "agent" not in first
    assert transcripts.turns(CLAUDE[10])[0]["agent"] == "a1b2"


def test_codex_is_read_once_and_without_what_was_injected() -> None:
    assert plain(CODEX) == CODEX_TURNS
    assert transcripts.header(CODEX[0]) == {"session": ROLLOUT, "folder": "/home/ann/shop"}


def test_old_rollouts_without_envelopes_are_read_too() -> None:
    old: list[dict[str, Any]] = [
        {"id": ROLLOUT, "timestamp": "2025-06-01T10:00:00Z", "instructions": None},
        {"record_type": "state"},
        said("user", "<environment_context>x</environment_context>"),
        said("user", "hello"),
        {"type": "function_call", "name": "shell", "arguments": "{not json", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": {"content": "fine", "success": True}},
        said("assistant", "hi", "output_text"),
    ]
    assert plain(old) == [("user", "hello"), ("assistant", 'shell "{not json"'), ("tool", "fine"), ("assistant", "hi")]
    assert [transcripts.header(line) for line in old if transcripts.header(line)] == [{"session": ROLLOUT}]


def test_cursor_is_read_as_plain_turns() -> None:
    assert plain(CURSOR) == [
        ("user", "<user_query>\nwhere is the axolotl\n</user_query>"),
        ("assistant", 'In the pond.\nGrep {"pattern": "axolotl"}'),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"role": "user", "content": "plain"}, [("user", "plain")]),
        ({"role": "human", "text": "plain"}, [("user", "plain")]),
        ({"role": "AI", "message": "plain"}, [("assistant", "plain")]),
        ({"from": "gpt", "value": "plain"}, [("assistant", "plain")]),
        ({"role": "model", "parts": [{"text": "plain"}]}, [("assistant", "plain")]),
        ({"type": "human", "data": {"content": "plain"}}, [("user", "plain")]),
        ({"type": "message", "message": {"role": "user", "content": "plain"}}, [("user", "plain")]),
        ({"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["plain"]}}, [("user", "plain")]),
        ({"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:x"}}]}, [("user", "see\n[image]")]),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}]}, [("assistant", 'add {"a": 1}')]),
        ({"role": "tool", "tool_call_id": "1", "content": "2"}, [("tool", "2")]),
        ({"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]}, [("system", "be kind"), ("user", "hi")]),
        ({"id": "c", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, [("user", "a"), ("assistant", "b")]),
        ({"role": "user", "content": "  "}, []),
        ({"hello": "world"}, []),
        ({}, []),
    ],
)  # fmt: skip
def test_chats_of_many_forms_are_read(line: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert plain([line]) == expected


@pytest.mark.parametrize("value", ["2023-11-14T22:13:20Z", 1_700_000_000, 1_700_000_000_000, "1700000000"])
@pytest.mark.parametrize("name", ["timestamp", "time", "created_at", "ts"])
def test_times_are_read_in_every_form(
    name: str, value: Any, memory: holdfast.Memory, root: Path, tmp_path: Path
) -> None:
    write(root / "agent-transcripts" / "raw.jsonl", [{"role": "user", "content": "raw wombat", name: value}])
    bring(memory, "jsonl", write(tmp_path / "chat.jsonl", [{"role": "user", "content": "brought wombat", name: value}]))
    hits = memory.find("wombat", kinds=("transcript",)).hits
    assert [hit.record.time for hit in hits] == ["2023-11-14T22:13:20.000Z"] * 2


def test_what_tools_say_is_cut_and_what_people_say_is_not() -> None:
    long = "word " * 2_000
    (spoken,) = transcripts.turns({"role": "user", "content": long})
    (result,) = transcripts.turns(claude("user", [{"type": "tool_result", "content": long}]))
    (call,) = transcripts.turns(
        claude("assistant", [{"type": "tool_use", "name": "Write", "input": {"content": long}}])
    )
    assert spoken["text"] == long
    assert result["text"] == long[:2_000] + "… (10,000 characters)"
    assert call["text"].startswith('Write {"content": "word word') and call["text"].endswith(" characters)")
    assert len(call["text"]) < 2_050


def test_equal_turns_of_one_line_are_told_apart(memory: holdfast.Memory, root: Path) -> None:
    echo = {"role": "user", "content": "numbat"}
    write(root / "agent-transcripts" / "echo.jsonl", [{"messages": [echo, echo, echo]}])
    hits = memory.find("numbat", kinds=("transcript",)).hits
    assert len({hit.record.id for hit in hits}) == 3
    assert memory.verify().sound


WORDS = st.sampled_from(
    "role type content text message payload tool_use tool_result user assistant tool response_item function_call "
    "function_call_output messages conversations arguments input name output time timestamp sessionId from human value "
    "isMeta attachment queued_command prompt summary image session_meta id compacted tool_calls function hide".split()
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(), inner, max_size=6),
    max_leaves=30,
)


@given(st.dictionaries(WORDS, VALUES, max_size=8))
def test_no_object_makes_reading_fail(value: dict[str, Any]) -> None:
    found = transcripts.turns(value)
    transcripts.header(value)
    assert all(turn["role"] in ("user", "assistant", "system", "tool") and turn["text"].strip() for turn in found)
    assert all("hide" not in turn for turn in found)
    assert len({repr(turn) for turn in found}) == len(found)


def test_objects_of_any_depth_are_read() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"type": "text", "content": [deep]}
    assert transcripts.turns(deep) == []
    assert len(transcripts.turns(claude("assistant", [{"type": "tool_use", "name": "x", "input": deep}]))) == 1
    assert transcripts.turns({"type": "function_call", "name": "x", "arguments": "[" * 100_000})


# files that were put there by hand


@pytest.mark.parametrize(
    ("name", "lines", "word", "session"),
    [
        ("claude.jsonl", CLAUDE, "zebrafish", SESSION),
        ("2025/codex.jsonl", CODEX, "quokka", "codex"),
        ("cursor.jsonl", CURSOR, "axolotl", "cursor"),
    ],
)
def test_raw_files_are_found_when_asked_for_and_only_then(
    name: str, lines: list[dict[str, Any]], word: str, session: str, memory: holdfast.Memory, root: Path
) -> None:
    write(root / "agent-transcripts" / name, lines)
    memory.put("note", "nothing to do with it", title="Other")
    assert memory.call("recall", {"query": word})["hits"] == []
    assert "transcript" not in memory.stats()["kinds"]
    hits = memory.call("recall", {"query": word, "layers": ["cold"]})["hits"]
    assert hits and {hit["kind"] for hit in hits} == {"transcript"}
    assert hits[0]["where"].startswith(f"agent-transcripts/{name}:")
    assert memory.call("recall", {"query": word})["hits"] == []
    assert found(memory, word, session=session) and not found(memory, word, session="another")
    assert memory.verify().sound


def test_nothing_is_indexed_until_it_is_asked_for(root: Path, tmp_path: Path) -> None:
    write(root / "agent-transcripts" / "raw.jsonl", CLAUDE)
    with holdfast.open(root) as memory:
        bring(memory, "codex", write(tmp_path / "rollout.jsonl", CODEX))
        memory.find("zebrafish")
        memory.refresh()
        memory.refresh(rebuild=True)
    with holdfast.open(root) as again:
        assert "transcript" not in again.stats()["kinds"]
        assert found(again, "zebrafish")
        assert again.stats()["kinds"]["transcript"] == len(CLAUDE_TURNS) + len(CODEX_TURNS)
        again.refresh()
        assert again.stats()["kinds"]["transcript"] == len(CLAUDE_TURNS) + len(CODEX_TURNS)


def test_a_process_that_watches_sees_a_new_transcript(root: Path) -> None:
    with holdfast.open(root, watch=True) as memory:
        assert found(memory, "quokka") == []
        write(root / "agent-transcripts" / "new.jsonl", CODEX)
        assert "Rename the quokka module" in found(memory, "quokka")


def test_files_are_read_whatever_the_wild_did_to_them(memory: holdfast.Memory, root: Path) -> None:
    turn = [json.dumps({"role": "user", "content": f"capybara {number}"}).encode() for number in range(7)]
    half = rb'{"role":"user","content":"capybara half \ud83d of a character"}'
    data = b"\xef\xbb\xbf" + turn[0] + b"\r\n" + turn[1] + b"\0\0\n" + turn[2] + turn[3] + b"\n\n" + half + b"\n"
    data += b"not json capybara\n" + turn[4] + b"\n[1]\n" + turn[5] + b"\n" + turn[6][:20]
    path = root / "agent-transcripts" / "wild.jsonl"
    path.parent.mkdir()
    path.write_bytes(data)
    texts = found(memory, "capybara")
    assert sorted(texts) == [*(f"capybara {number}" for number in range(6)), "capybara half � of a character"]
    report = memory.verify()
    assert not report.differences
    assert {problem.line for problem in report.damage} == {6, 8, 10}
    path.write_bytes(data + turn[6][20:] + b"\n")
    assert "capybara 6" in found(memory, "capybara")


def test_a_turn_is_got_by_its_id_after_the_index_was_deleted(root: Path) -> None:
    write(root / "agent-transcripts" / "raw.jsonl", CLAUDE)
    with holdfast.open(root) as memory:
        (hit,) = [hit for hit in memory.find("zebrafish", kinds=("transcript",)) if hit.record.fields["role"] == "user"]
        assert memory.verify().sound
    shutil.rmtree(root / ".holdfast")
    with holdfast.open(root) as memory:
        assert memory.get(hit.record.id) == hit.record
        assert memory.get(hit.record.where).text == hit.record.text
        assert memory.verify().sound


def test_a_transcript_that_vanished_is_no_longer_found(memory: holdfast.Memory, root: Path) -> None:
    path = write(root / "agent-transcripts" / "raw.jsonl", CLAUDE)
    write(root / "agent-transcripts" / "other.jsonl", CODEX)
    assert found(memory, "zebrafish")
    path.unlink()
    assert memory.verify().sound
    assert found(memory, "zebrafish") == []
    assert found(memory, "quokka")


def test_the_tail_of_transcripts_is_what_was_said_last(memory: holdfast.Memory, root: Path) -> None:
    write(root / "agent-transcripts" / "raw.jsonl", CODEX)
    write(root / "agent-transcripts" / "older.jsonl", CLAUDE)
    assert [record.text for record in memory.tail("transcript", 2)] == ["It is renamed.", "They renamed a module."]
    assert [record.text for record in memory.tail("transcript", 1, session=SESSION)] == ["also check the refunds"]
    shown = run("tail", "transcript", "-n", "2", "--json", root=root)
    assert [record["text"] for record in json.loads(shown.stdout)] == ["It is renamed.", "They renamed a module."]


def test_a_foreign_line_hides_nothing(memory: holdfast.Memory, root: Path) -> None:
    victim = mint()
    lines = [{"id": victim, "role": "user", "text": "okapi"}, {"hide": victim}]
    lines += [{"id": mint(), "role": "user", "text": "okapi again", "hide": victim}]
    write(root / "agent-transcripts" / "raw.jsonl", lines)
    assert sorted(found(memory, "okapi")) == ["okapi", "okapi again"]
    with pytest.raises(Invalid):
        memory.hide(victim)


def test_the_same_line_twice_is_one_turn(memory: holdfast.Memory, root: Path) -> None:
    path = write(root / "agent-transcripts" / "raw.jsonl", [CURSOR[0], CURSOR[1], CURSOR[0]])
    assert len(found(memory, "axolotl")) == 2
    with path.open("ab") as log:
        log.write(json.dumps(CURSOR[1]).encode() + b"\n")
    assert len(found(memory, "axolotl")) == 2
    assert memory.verify().sound


# imports


def test_an_import_of_claude_code_keeps_every_turn(memory: holdfast.Memory, root: Path, tmp_path: Path) -> None:
    write(tmp_path / "projects" / "-home-ann-shop" / f"{SESSION}.jsonl", CLAUDE)
    report = bring(memory, "claude-code", tmp_path / "projects")
    assert (report.files, report.turns, report.added, report.skipped) == (1, 9, 9, 0)
    (log,) = (root / "agent-transcripts").iterdir()
    assert log.name.startswith(f"claude-code-{SESSION}-") and len(log.stem.rpartition("-")[2]) == 8
    lines = kept(root)
    assert [(line["role"], line["text"]) for line in lines] == CLAUDE_TURNS
    assert lines[1] == {
        "id": lines[1]["id"], "time": "2025-10-29T07:00:01.293Z", "session": SESSION, "role": "user",
        "text": "Why does the checkout fail for zebrafish?", "folder": "/home/ann/shop", "source": "claude-code",
    }  # fmt: skip
    assert len(found(memory, "zebrafish", session=SESSION)) == 3
    assert memory.verify().sound


def test_an_import_of_codex_takes_session_and_folder_from_the_first_line(
    memory: holdfast.Memory, root: Path, tmp_path: Path
) -> None:
    forked = [*CODEX[:2], codex("session_meta", {"id": "the-origin", "cwd": "/elsewhere"}), *CODEX[2:]]
    write(tmp_path / "2025" / "11" / "02" / f"rollout-2025-11-02T10-00-00-{ROLLOUT}.jsonl", forked)
    report = bring(memory, "codex", tmp_path)
    assert report.added == len(CODEX_TURNS)
    (log,) = (root / "agent-transcripts").iterdir()
    assert log.name.startswith(f"codex-{ROLLOUT}-")
    assert {(line["session"], line["folder"]) for line in kept(root)} == {(ROLLOUT, "/home/ann/shop")}


def test_a_transcript_is_summarised_by_its_path_or_the_id_of_a_turn(memory: holdfast.Memory, tmp_path: Path) -> None:
    write(tmp_path / f"{SESSION}.jsonl", CLAUDE)
    bring(memory, "claude-code", tmp_path / f"{SESSION}.jsonl")
    turn = memory.find("zebrafish", kinds=("transcript",)).hits[0].record
    for ref in (turn.path, turn.where, f"{turn.path}:2", turn.id):
        summary = memory.call("value_summarize", {"ref": ref})["data"]["summary"]
        assert "user: Why does the checkout fail for zebrafish?" in summary
        assert memory.call("value_search", {"ref": ref, "query": "src/cart.py"})["data"][0]["why"]
    whole = memory.call("value_read", {"ref": turn.id})["data"]["text"].splitlines()
    assert len(whole) == len(CLAUDE_TURNS), "each turn is a line, the first one first"
    assert whole[0].endswith("system: Repairing the checkout")
    note = memory.put("note", "tea", title="Tea").path
    message = memory.put("message", "tea").id
    for ref in (note, message, mint(), "agent-transcripts/none.jsonl", "agent-transcripts/../holdfast.toml"):
        reply = memory.call("value_summarize", {"ref": ref})
        assert reply["success"] is False
        assert "transcript" in reply["error"]


def test_a_second_import_adds_nothing_and_a_grown_source_adds_the_rest(
    memory: holdfast.Memory, root: Path, tmp_path: Path
) -> None:
    for source, lines in (("claude-code", CLAUDE), ("codex", CODEX), ("jsonl", CURSOR)):
        path = write(tmp_path / source / "talk.jsonl", lines[:-3])
        first = bring(memory, source, path)
        before = len(kept(root))
        assert bring(memory, source, path).added == 0
        write(path, lines)
        os.utime(path, (2_000_000_000, 2_000_000_000))
        with holdfast.open(root) as another:
            assert bring(another, source, path).added == len(plain(lines)) - first.added
        assert bring(memory, source, path.parent).added == 0
        assert len(kept(root)) - before == len(plain(lines)) - first.added
    assert len({line["id"] for line in kept(root)}) == len(kept(root))
    assert memory.find("zebrafish", kinds=("transcript",)).hits and memory.verify().sound


def test_turns_without_a_time_follow_the_one_before(memory: holdfast.Memory, root: Path, tmp_path: Path) -> None:
    lines = [
        {"role": "user", "content": "one"},
        {"role": "user", "content": "one"},
        {"role": "user", "content": "two", "timestamp": "2024-05-05T10:00:00Z"},
        {"role": "user", "content": "three"},
        {"role": "user", "content": "four"},
    ]
    path = write(tmp_path / "chat.jsonl", lines)
    os.utime(path, (1_600_000_000, 1_600_000_000))
    assert bring(memory, "jsonl", path).added == 5
    assert [line["time"] for line in kept(root)] == [
        "2020-09-13T12:26:40.000Z", "2020-09-13T12:26:40.001Z",
        "2024-05-05T10:00:00.000Z", "2024-05-05T10:00:00.001Z", "2024-05-05T10:00:00.002Z",
    ]  # fmt: skip
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert bring(memory, "jsonl", path).added == 0


def test_two_files_of_one_name_stay_two_conversations(memory: holdfast.Memory, root: Path, tmp_path: Path) -> None:
    same = [{"role": "user", "content": "hi"}]
    for folder in ("a", "b"):
        assert bring(memory, "jsonl", write(tmp_path / folder / "chat.jsonl", same)).added == 1
    assert len(list((root / "agent-transcripts").iterdir())) == 2


def test_sub_agents_go_to_the_conversation_that_started_them(
    memory: holdfast.Memory, root: Path, tmp_path: Path
) -> None:
    write(tmp_path / "p" / f"{SESSION}.jsonl", CLAUDE[:3])
    helper = claude("assistant", [{"type": "text", "text": "I helped."}], 30, isSidechain=True, agentId="a9")
    write(tmp_path / "p" / SESSION / "subagents" / "agent-a9.jsonl", [helper])
    assert bring(memory, "claude-code", tmp_path).files == 2
    assert len(list((root / "agent-transcripts").iterdir())) == 1
    assert [line.get("agent") for line in kept(root)].count("a9") == 1


def test_lines_belong_to_the_workspace_that_was_named(memory: holdfast.Memory, root: Path, tmp_path: Path) -> None:
    memory.put("overview", "", title="Shop")
    path = write(tmp_path / "chat.jsonl", CURSOR)
    with pytest.raises(NotFound):
        bring(memory, "jsonl", path, "Shopp")
    assert not (root / "agent-transcripts").exists()
    bring(memory, "jsonl", path, "Shop")
    assert {line["workspace"] for line in kept(root)} == {"shop"}
    assert found(memory, "axolotl", scope="shop")


def test_secrets_never_reach_the_disk(root: Path, tmp_path: Path) -> None:
    cut = f"-----BEGIN RSA PRIVATE KEY-----{'k' * 1_900}-----END RSA PRIVATE KEY----- "
    pushed = (
        cut + "y" * (2_485 - len(cut)) + " " + KEY + "w" * 3_000
    )  # what is removed moves the rest towards the front
    lines = [
        claude("user", f"use {KEY} please", 1),
        claude("assistant", [{"type": "tool_use", "name": "Login", "input": {"password": "hunter22", "header": f"Bearer {KEY}"}}], 2),
        claude("user", [{"type": "tool_result", "content": "x" * 1_985 + " " + KEY}], 3),
        claude("user", [{"type": "tool_result", "content": [{"type": "text", "text": KEY}]}], 4, toolUseResult=KEY),
        claude("user", [{"type": "tool_result", "content": pushed}], 5),
        claude("assistant", [{"type": "tool_use", "name": "Write", "input": {"content": pushed}}], 6),
        claude("assistant", [{"type": "tool_use", "name": "Write", "input": {"content": " " * 1_000 + "z" * 1_990 + " " + KEY}}], 7),
        {"messages": [{"role": "user", "content": f"postgres://ann:s3cr3tpass@db/{number}"} for number in range(3)]},
    ]  # fmt: skip
    write(tmp_path / f"{KEY}.jsonl", lines)
    with holdfast.open(root) as memory:
        assert bring(memory, "claude-code", tmp_path).added == 10
        found(memory, "use")
    for path in (path for path in root.rglob("*") if path.is_file()):
        data = path.read_bytes()
        assert not any(part in data for part in (KEY[:12].encode(), b"hunter22", b"s3cr3tpass")), path
        assert KEY[:12].casefold() not in path.name
    assert "[GitHub token removed]" in kept(root)[0]["text"]


def test_what_cannot_be_read_is_reported_and_stops_nothing(memory: holdfast.Memory, root: Path, tmp_path: Path) -> None:
    good = [json.dumps({"role": "user", "content": f"good {number}"}).encode() for number in range(5)]
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "wild.jsonl").write_bytes(
        b"\xef\xbb\xbf" + good[0] + b"\r\nnot json\n" + good[1] + good[2] + b'\n{"text":"' + b"x" * (10 << 20)
        + b'"}\n' + good[3] + b"\n" + rb'{"role":"user","content":"half \ud83d"}' + b"\n" + good[4][:-4]
    )  # fmt: skip
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "link.jsonl").symlink_to(folder / "wild.jsonl")
    (folder / "loop").symlink_to(tmp_path)
    os.mkdir(folder / "folder.jsonl")
    write(folder / "folder.jsonl" / "z.jsonl", [{"role": "user", "content": "good z"}])
    (folder / os.fsdecode(b"\xff.jsonl")).write_bytes(good[0] + b"\n")
    report = bring(memory, "jsonl", folder)
    assert (report.files, report.turns, report.added, report.skipped) == (3, 7, 7, 6)
    told = {(Path(problem.path).name, problem.line): problem.what for problem in report.problems}
    assert told.keys() == {("wild.jsonl", 2), ("wild.jsonl", 4), ("wild.jsonl", 7), ("pipe.jsonl", 0), ("link.jsonl", 0), ("loop", 0)}  # fmt: skip
    assert "longer" in told["wild.jsonl", 4] and "incomplete" in told["wild.jsonl", 7]
    assert "regular file" in told["pipe.jsonl", 0] and "link" in told["link.jsonl", 0]
    assert len(found(memory, "good")) == 6
    assert memory.verify().sound


def test_a_turn_that_would_be_longer_than_a_line_may_be_is_reported(root: Path, tmp_path: Path) -> None:
    (root / "holdfast.toml").write_text("[limits]\nline_bytes = 2000\n", encoding="utf-8")
    path = write(tmp_path / "chat.jsonl", [{"role": "user", "text": "y" * 1_900}, {"role": "user", "text": "short"}])
    with holdfast.open(root) as memory:
        report = bring(memory, "jsonl", path)
        assert (report.turns, report.added, report.skipped) == (1, 1, 1)
        assert found(memory, "short") == ["short"] and memory.verify().sound


def test_what_is_cold_memory_already_is_not_brought_in_again(
    memory: holdfast.Memory, root: Path, tmp_path: Path
) -> None:
    write(root / "agent-transcripts" / "raw.jsonl", CLAUDE)
    report = bring(memory, "jsonl", root / "agent-transcripts")
    assert report.added == 0 and report.skipped == 1
    assert [path.name for path in (root / "agent-transcripts").iterdir()] == ["raw.jsonl"]


def test_lines_of_another_memory_keep_their_ids(memory: holdfast.Memory, root: Path, tmp_path: Path) -> None:
    known = mint()
    path = write(tmp_path / "log.jsonl", [{"id": known, "time": "2024-01-01", "role": "user", "text": "pangolin", "workspace": "gone"}])  # fmt: skip
    bring(memory, "jsonl", path)
    record = memory.get(known)
    assert record.text == "pangolin" and record.scope.workspace == ""


def test_only_lines_with_ids_are_brought_and_only_where_they_belong(memory: holdfast.Memory, root: Path) -> None:
    with pytest.raises(Invalid):
        memory.import_entries("transcript", "x", [{"id": "mine", "role": "user", "text": "a"}])
    for kind, name in (
        ("fact", "x"),
        ("message", "../x"),
        ("transcript", ".hidden"),
        ("transcript", "../../x"),
        ("transcript", "a/../b"),
    ):
        with pytest.raises(Invalid):
            memory.import_entries(kind, name, [{"id": mint(), "role": "user", "text": "a"}])
    assert not (root / "agent-transcripts").exists()


def test_a_log_that_was_replaced_between_two_batches_is_read_anew(memory: holdfast.Memory, root: Path) -> None:
    lines = [{"id": mint(), "role": "user", "text": f"turn {number}"} for number in range(20)]
    log = root / "agent-transcripts" / "x.jsonl"

    def bring() -> int:  # in a memory of its own, which does not know the lines as its own
        with holdfast.open(root) as other:
            return other.import_entries("transcript", "x", lines)

    assert bring() == 20
    assert memory.missing("transcript", "x", {str(line["id"]) for line in lines}) == 0
    log.write_bytes(b"")
    assert bring() == 20
    log.write_bytes(log.read_bytes()[:-30])
    assert memory.import_entries("transcript", "x", lines) == 1
    assert [line["text"] for line in kept(root)] == [f"turn {number}" for number in range(20)]


# where they are


def test_a_missing_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CODEX_HOME", raising=False)
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    for source, folder in (("claude-code", ".claude/projects"), ("codex", ".codex/sessions")):
        with pytest.raises(NotFound, match=str(tmp_path / folder)):
            find_sources(source)
    with pytest.raises(Invalid, match="Name the file or folder"):
        find_sources("jsonl")
    with pytest.raises(Invalid, match='Did you mean "codex"'):
        find_sources("codx")
    with pytest.raises(NotFound):
        find_sources("jsonl", str(tmp_path / "nothing"))


def test_sources_are_found_where_the_programs_keep_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "cx"))
    wanted = [
        write(tmp_path / ".claude" / "projects" / "-p" / "a.jsonl", []),
        write(tmp_path / "cx" / "sessions" / "2025" / "11" / "02" / "rollout-b.jsonl", []),
        write(tmp_path / "cx" / "archived_sessions" / "rollout-c.jsonl", []),
    ]
    write(tmp_path / "cx" / "history.jsonl", [])
    listed = find_sources("claude-code") + find_sources("codex")
    assert [source.path for source in listed] == [str(path.resolve()) for path in wanted]


# on the command line


def test_the_command_brings_in_what_is_there_and_says_how_to_search_it(root: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(home / ".claude" / "projects" / "-p" / f"{SESSION}.jsonl", CLAUDE)
    words = ("import", "claude-code")
    there = {"HOME": str(home), "CLAUDE_CONFIG_DIR": ""}
    dry = json.loads(run(*words, "--dry-run", root=root, **there).stdout)
    assert (dry["added"], dry["dryRun"]) == (9, True) and not (root / "agent-transcripts").exists()
    done = json.loads(run(*words, root=root, **there).stdout)
    assert (done["files"], done["turns"], done["added"], done["known"], done["skipped"]) == (1, 9, 9, 0, 0)
    assert json.loads(run(*words, root=root, **there).stdout)["known"] == 9
    assert json.loads(run(*words, "--dry-run", root=root, **there).stdout)["added"] == 0
    hits = json.loads(run("recall", "zebrafish", "--layers", "cold", root=root).stdout)["hits"]
    assert len([hit for hit in hits if "zebrafish" in hit["why"]]) == 3
    assert all(" ".join(hit["why"]).startswith(("zebrafish", "beside ")) for hit in hits)
    assert json.loads(run("recall", "zebrafish", root=root).stdout)["hits"] == []
    searched = json.loads(run("search", "zebrafish", "--kind", "transcript", "--session", SESSION, root=root).stdout)
    assert len(searched["hits"]) == 3
    assert run("verify", root=root).returncode == 0


def test_the_command_warns_of_what_it_skipped_and_refuses_what_is_not_there(root: Path, tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_bytes(b"broken\n" + json.dumps(CURSOR[0]).encode())
    done = run("import", "jsonl", str(tmp_path / "chat.jsonl"), root=root)
    assert done.returncode == 0 and f"{tmp_path}/chat.jsonl:1: skipped: not valid JSON" in done.stderr
    assert json.loads(done.stdout)["skipped"] == 1
    assert run("import", "jsonl", root=root).returncode == 2
    assert run("import", "jsonl", str(tmp_path / "nothing"), root=root).returncode == 3
    assert run("import", "jsonl", str(tmp_path), "--workspace", "nowhere", root=root).returncode == 3
    assert run("import", "chatgpt", root=root).returncode == 2


def test_a_person_is_told_in_one_line(root: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "chat.jsonl", CURSOR)
    shown = on_terminal("import", "jsonl", str(path), root=root)
    assert "1 file, 2 turns: 2 added, 0 already stored, 0 lines or files skipped." in shown
    assert "--layers cold" in shown


# many processes, and processes that die


@pytest.fixture
def long_source(tmp_path: Path) -> tuple[Path, int]:
    count = 6_000
    lines = [claude("user", f"turn {number} " + "of a long talk " * 10, number) for number in range(count)]
    lines = [line | {"uuid": f"u{number}"} for number, line in enumerate(lines)]
    return write(tmp_path / "source" / f"{SESSION}.jsonl", lines), count


def started(source: Path, root: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "holdfast", "import", "claude-code", str(source), "--root", str(root)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(root: Path, size: int) -> None:
    """Wait until the logs have so many bytes."""
    end = time.monotonic() + 60
    while sum(path.stat().st_size for path in root.glob("agent-transcripts/*")) < size:
        assert time.monotonic() < end
        time.sleep(0.002)


def complete(root: Path, count: int) -> bool:
    ids = [line["id"] for line in kept(root)]
    return len(ids) == count and len(set(ids)) == count


def test_an_import_that_was_killed_is_completed_by_the_next_one(root: Path, long_source: tuple[Path, int]) -> None:
    source, count = long_source
    for size in (1, 400_000, 900_000):
        with started(source, root) as process:
            wait_for(root, size)
            process.send_signal(signal.SIGKILL)
    (log,) = (root / "agent-transcripts").iterdir()
    log.write_bytes(log.read_bytes()[:-100])
    with started(source, root) as process:
        assert process.wait(60) == 0
    assert complete(root, count)
    with holdfast.open(root) as memory:
        assert found(memory, '"turn 5999"')
        torn = [problem.what for problem in memory.verify().damage]  # a kill may also stop a long write half-way
        assert set(torn) == {"skipped: not valid JSON (a torn or damaged line)"}
        assert len(torn) <= 4


def test_processes_that_import_one_source_at_once_keep_each_turn_once(
    root: Path, long_source: tuple[Path, int]
) -> None:
    source, count = long_source
    three = [started(source, root) for _ in range(3)]
    assert [process.wait(120) for process in three] == [0, 0, 0]
    assert complete(root, count)
    with holdfast.open(root) as memory:
        found(memory, "turn")
        assert memory.verify().sound
