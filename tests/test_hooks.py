"""Hooks of Claude Code and Codex: what is kept, when the agent is asked to save, and how long the client waits."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fork_server
import holdfast
from holdfast.model.queries import Query

CLIENTS = ("claude-code", "codex")
LONG = ("--within", "60000")
LIMIT = 0.5
"""Seconds that a hook may take."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def said(client: str, role: str, *blocks: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the lines that a client writes about a message of text and tool calls."""
    if client == "claude-code":
        return [{"type": role, "sessionId": "s1", "message": {"role": role, "content": list(blocks)}}]
    return [{"type": "response_item", "payload": _item(role, block)} for block in blocks]


def _item(role: str, block: dict[str, Any]) -> dict[str, Any]:
    if block["type"] == "text":
        return {"type": "message", "role": role, "content": [{"type": "output_text", "text": block["text"]}]}
    space, _, name = block["name"].rpartition("__")
    named = {"name": name} | ({"namespace": f"{space}__"} if space else {})
    return {"type": "function_call", "arguments": json.dumps(block["input"])} | named


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def used(name: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "name": name, "input": given}


def transcript(path: Path, client: str, *blocks: dict[str, Any], turns: int = 12, by: str = "cli") -> Path:
    """Write the transcript of a session: a question, some steps, and then these blocks."""
    lines: list[dict[str, Any]] = [{"type": "user", "entrypoint": by, "cwd": "/home/ann/shop"}]
    if client == "codex":
        named = {"cli": "codex_cli_rs", "sdk-cli": "codex_exec"}[by]
        header = {"id": "s1", "timestamp": "2026-05-01T10:00:00Z", "cwd": "/home/ann/shop", "originator": named}
        lines = [{"type": "session_meta", "payload": header}]
    lines += said(client, "user", text("fix the zebra login"))
    for number in range(turns - 1):
        lines += said(client, "assistant", text(f"step {number}"))
    for block in blocks:
        lines += said(client, "assistant", block)
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return path


def run(root: object, client: str, event: str, path: object, **given: Any) -> subprocess.CompletedProcess[str]:
    return start(root, ("hook", client, *LONG), sent(event, path, **given))


def sent(event: str, path: object, **given: Any) -> dict[str, Any]:
    usual = {"session_id": "s1", "transcript_path": str(path), "cwd": "/home/ann/shop", "hook_event_name": event}
    return usual | given


def start(
    root: object,
    words: tuple[str, ...],
    given: Any,
    run: Callable[..., subprocess.CompletedProcess[str]] = fork_server.run,
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *words, "--root", str(root)]
    done = run(command, input=json.dumps(given), capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
    return done


def kept(root: Path) -> list[str]:
    with holdfast.open(root) as memory:
        return [record.text for record in memory.every(Query(kinds=("transcript",)))]


def wait_for(root: Path, words: str) -> list[str]:
    """Return the turns in cold memory as soon as one of them has these words."""
    end, found = time.monotonic() + 30, kept(root)
    while not any(words in turn for turn in found):
        assert time.monotonic() < end, found
        time.sleep(0.2)
        found = kept(root)
    return found


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("event", ["PreCompact", "SessionEnd"])
def test_before_compaction_and_at_the_end_the_transcript_is_kept(
    root: Path, tmp_path: Path, client: str, event: str
) -> None:
    path = transcript(tmp_path / "s1.jsonl", client)
    assert run(root, client, event, path).stdout == ""
    assert len(wait_for(root, "step 10")) == 12
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in said(client, "assistant", text("the last word")))
    run(root, client, event, path)
    assert len(wait_for(root, "the last word")) == 13, "nothing is kept twice"


def test_a_transcript_belongs_to_the_workspace_that_is_named_or_that_the_folder_has(root: Path, tmp_path: Path) -> None:
    shop = {"name": "Shop", "description": "x", "rootFolder": "shop", "purpose": "x"}
    with holdfast.open(root) as memory:
        memory.call("createWorkspace", shop)
        memory.call("createWorkspace", shop | {"name": "Other", "rootFolder": "other"})
    path = transcript(tmp_path / "s1.jsonl", "claude-code")
    start(root, ("hook", "claude-code"), sent("SessionEnd", path))
    wait_for(root, "step 10")
    with holdfast.open(root) as memory:
        assert {one.scope.path for one in memory.every(Query(kinds=("transcript",)))} == {"shop"}
    path.write_text(path.read_text().replace("step", "other step").replace('"s1"', '"s2"'))
    start(root, ("hook", "claude-code", "--workspace", "other"), sent("SessionEnd", path, session_id="s2"))
    wait_for(root, "other step 10")
    with holdfast.open(root) as memory:
        assert {one.scope.path for one in memory.every(Query(kinds=("transcript",)))} == {"shop", "other"}


def asked(done: subprocess.CompletedProcess[str]) -> bool:
    """Return whether the agent is asked to continue and to save."""
    if not done.stdout:
        return False
    told = json.loads(done.stdout)
    assert list(told) == ["decision", "reason"], "Codex refuses other fields"
    assert told["decision"] == "block"
    assert "remember" in told["reason"]
    return True


@pytest.mark.parametrize("client", CLIENTS)
def test_an_agent_that_stops_is_asked_once_per_session(root: Path, tmp_path: Path, client: str) -> None:
    path = transcript(tmp_path / "s1.jsonl", client)
    assert not asked(run(root, client, "Stop", path, stop_hook_active=True)), "it goes on because of a hook already"
    assert asked(run(root, client, "Stop", path, stop_hook_active=False))
    assert not asked(run(root, client, "Stop", path, stop_hook_active=False))
    assert not asked(run(tmp_path / "another", client, "Stop", path)), "another memory asks the same agent"
    assert asked(run(root, client, "Stop", path, session_id="s2"))
    assert kept(root) == [], "a stop is not the end"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    "block",
    [
        used("mcp__holdfast__remember", text="We use tea.", kind="decision"),
        used("mcp__holdfast__useTools", calls=[{"agent": "memoryManager", "tool": "createState", "params": {}}]),
        used("Bash", command="holdfast remember 'We use tea.' --kind decision"),
        used("Bash", command="holdfast save 'We use tea.'"),
        used("Edit", file_path="/memory/user/memory/workspaces/shop/lessons.md", new_string="### [2026-01-01] Tea"),
    ],
)
def test_a_session_that_saved_something_is_not_asked(
    root: Path, tmp_path: Path, client: str, block: dict[str, Any]
) -> None:
    path = transcript(tmp_path / "s1.jsonl", client, block)
    assert not asked(run(root, client, "Stop", path))
    transcript(path, client)
    assert not asked(run(root, client, "Stop", path)), "not even when its beginning is gone"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    "block",
    [
        used("mcp__holdfast__recall", query="how do we remember tea?"),
        used("mcp__holdfast__useTools", calls=[{"agent": "memory", "tool": "recall", "params": {"query": "remember"}}]),
        used("mcp__other__remember", text="tea"),
        used("Read", file_path="/memory/user/memory/workspaces/shop/lessons.md"),
    ],
)
def test_a_session_that_only_read_is_asked(root: Path, tmp_path: Path, client: str, block: dict[str, Any]) -> None:
    assert asked(run(root, client, "Stop", transcript(tmp_path / "s1.jsonl", client, block)))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_short_session_is_asked_when_it_has_become_longer(root: Path, tmp_path: Path, client: str) -> None:
    assert not asked(run(root, client, "Stop", transcript(tmp_path / "s1.jsonl", client, turns=4)))
    assert asked(run(root, client, "Stop", transcript(tmp_path / "s1.jsonl", client, turns=20)))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_session_that_a_program_runs_is_not_asked(root: Path, tmp_path: Path, client: str) -> None:
    assert not asked(run(root, client, "Stop", transcript(tmp_path / "s1.jsonl", client, by="sdk-cli")))


def test_after_a_compaction_the_agent_is_asked_with_the_context(root: Path, tmp_path: Path) -> None:
    path = transcript(tmp_path / "s1.jsonl", "claude-code")
    words = ("context", "--hook", *LONG)
    assert start(root, words, sent("SessionStart", path, source="startup")).stdout == ""
    assert "remember" in start(root, words, sent("SessionStart", path, source="compact")).stdout
    assert start(root, words, sent("SessionStart", path, source="compact")).stdout == ""
    assert not asked(run(root, "claude-code", "Stop", path))
    assert start(root, words, sent("SessionStart", tmp_path / "gone", source="compact", session_id="s3")).stdout == ""


@pytest.fixture
def deaf() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"postgresql://ann@127.0.0.1:{server.getsockname()[1]}/none"


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, deaf: str) -> Iterator[str]:
    """A root, or something that cannot be used as one."""
    folder = tmp_path / "place"
    if request.param == "deaf":
        yield deaf
        return
    if request.param != "missing":
        fork_server.run([sys.executable, "-m", "holdfast", "init", str(folder)], check=True, capture_output=True)
    if request.param == "damaged":
        (folder / "holdfast.toml").write_text("not toml")
    if request.param == "locked":
        with holdfast.open(folder) as memory:
            memory.put("note", "tea", title="Tea")
        held = [os.open(path, os.O_RDONLY) for path in (folder, *folder.rglob("*")) if path.is_dir() or path.is_file()]
        for fd in held:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield str(folder)
        for fd in held:
            os.close(fd)
        return
    yield str(folder)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return transcript(tmp_path_factory.mktemp("long") / "s1.jsonl", "claude-code", turns=20_000)


CONTEXT, STOP = (("context", "--hook"), "SessionStart"), (("hook", "codex"), "Stop")
OTHERS = [(("hook", "claude-code"), event) for event in ("PreCompact", "SessionEnd")]


@pytest.mark.parametrize(
    ("place", "words", "event"),
    [("usual", *hook) for hook in (CONTEXT, STOP, *OTHERS)]
    + [(place, *hook) for place in ("locked", "missing", "damaged", "deaf") for hook in (CONTEXT, STOP)],
    indirect=["place"],
)
def test_no_hook_delays_the_client_by_more_than_half_a_second(
    place: str, long: Path, tmp_path: Path, words: tuple[str, ...], event: str
) -> None:
    path = shutil.copy(long, tmp_path)
    took = [timed(place, words, sent(event, path))]
    while min(took) > LIMIT and len(took) < 5:  # a busy machine may be slow, a hook that waits always is
        took.append(timed(place, words, sent(event, path)))
    assert min(took) < LIMIT


def timed(place: str, words: tuple[str, ...], given: Any) -> float:
    """Return the seconds that a hook takes, less the time by which a busy machine delays the start of any program."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-m", "holdfast", "--version"], check=True, capture_output=True)
    started = time.monotonic()
    start(place, words, given, subprocess.run)
    return time.monotonic() - started - max(0.0, started - begin - 0.1)


@pytest.mark.parametrize("given", [None, [], {}, "x", {"hook_event_name": "Stop"}, {"hook_event_name": 3}])
@pytest.mark.parametrize("event", ["Stop", "SessionEnd", "Unheard"])
def test_a_hook_takes_any_input(root: Path, tmp_path: Path, given: Any, event: str) -> None:
    assert start(root, ("hook", "codex"), given).stdout == ""
    for path in (f"{tmp_path}/gone", str(tmp_path), None, "/dev/zero", "a\0b"):
        assert start(root, ("hook", "codex"), {**sent(event, ""), "transcript_path": path}).stdout == ""


def test_a_question_that_cannot_be_recorded_is_not_asked(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = transcript(tmp_path / "s1.jsonl", "codex")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert not asked(run(root, "codex", "Stop", path))
