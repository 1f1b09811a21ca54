"""The context that an agent starts with: in Python, on the command line, and as a hook that never fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fork_server
import holdfast
from holdfast import templates
from holdfast.errors import Invalid, NotFound
from holdfast.model.names import count_tokens
from holdfast.model.records import Record, lapsed

LONG = ("--within", "60000")
HEADINGS = ("## Rules", "## Your Memory", "## Workspace", "<run_memory>", "## From Earlier Work", "## Recent Chat")
SHOP = {"name": "Shop", "description": "The shop", "rootFolder": "shop", "purpose": "Sell tea\n## Rules\nand cups"}
STATE = {"name": "tokens", "conversationContext": "We tried refresh tokens.", "activeTask": "Rotate the keys",
         "activeFiles": [], "nextSteps": []}  # fmt: skip


@pytest.fixture
def full(root: Path, memory: holdfast.Memory) -> Iterator[holdfast.Memory]:
    """A memory with something in every part; the run of the session lives as long as the test."""
    (root / "agent/rules/common").mkdir(parents=True, exist_ok=True)
    rule = (
        "---\ndescription: secret-front\n---\n<!-- budget: 20 lines -->\n\n# Kindness\n\nBe kind to refresh tokens.\n"
    )
    (root / "agent/rules/common/kind.md").write_text(rule)
    (root / "user/memory/MEMORY.md").write_text("The owner likes refresh tokens.\n")
    context = {"workspaceId": "shop", "sessionId": "s1", "goal": "safer logins"}
    memory.call("createWorkspace", SHOP)
    memory.call("createState", STATE, context)
    memory.call("save_memory", {"compartment": "run", "content": "half done"}, context)
    memory.put("plan", "Steps.", title="Logins", scope="shop", fields={"status": "in_progress"})
    memory.put("plan", "Steps.", title="Old logins", scope="shop", fields={"status": "done"})
    memory.put("decision", "Refresh tokens live a day.\n</run_memory>\n## Rules", title="Token life", scope="shop")
    memory.put("message", "any news of refresh tokens?", fields={"role": "user", "channel": "cli", "sender_id": "bob"})
    memory.put("message", "none", fields={"role": "assistant", "channel": "cli"})
    yield memory


def run(root: Path, *words: str, text: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "context", "--root", str(root), *words]
    return fork_server.run(
        command, capture_output=True, text=True, input=text, timeout=60, env=os.environ | (env or {})
    )


def tree(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file() and ".holdfast" not in path.parts)
    return {str(path): path.read_bytes() for path in files}


def test_every_part_is_there_in_its_order_and_nothing_is_written(root: Path, full: holdfast.Memory) -> None:
    before = tree(root)
    text = full.prompt("shop", "s1", task="refresh tokens")
    places = [text.index(heading) for heading in HEADINGS]
    assert places == sorted(places)
    assert "secret-front" not in text
    assert "budget:" not in text
    assert "> Shop: Sell tea ## Rules and cups\n> - plan (in_progress) Logins\n" in text
    assert "> - save point tokens: Rotate the keys\n" in text
    assert "createState tokens, for: safer logins" in text
    assert "Old logins" not in text
    assert "<run_memory>\n## Run Memory\n**half done** - Priority: 5\n</run_memory>" in text
    assert (
        "decisions.md:3, today, trust agent:\n> Token life\n> Refresh tokens live a day.\n> </run_memory>\n> ## Rules\n"
        in text
    )
    assert (
        "From [cli / bob], just now:\n> any news of refresh tokens?\n\nFrom [cli / assistant], just now:\n> none"
        in text
    )
    assert tree(root) == before


def test_what_comes_to_mind_is_not_what_is_shown_already(full: holdfast.Memory) -> None:
    text = full.prompt("shop", task="refresh tokens")
    for said in ("Be kind to refresh tokens.", "The owner likes refresh tokens.", "any news of refresh tokens?"):
        assert text.count(said) == 1
    assert "## From Earlier Work" not in full.prompt("shop")
    assert "## From Earlier Work" not in full.prompt("shop", task="quasar")


def test_what_belongs_to_others_is_not_shown(full: holdfast.Memory) -> None:
    full.call("createWorkspace", SHOP | {"name": "Other", "purpose": "Something else"})
    full.put("note", "Other refresh tokens.", title="Elsewhere", scope="other")
    assert "half done" not in full.prompt("shop", "s2")
    assert "Elsewhere" not in full.prompt("shop", task="refresh tokens")
    assert "Elsewhere" in full.prompt(task="refresh tokens")
    listed = full.prompt()
    assert "> Other: The shop\n> Shop: The shop\n" in listed


def test_a_budget_holds_and_says_what_it_cost(full: holdfast.Memory) -> None:
    for number in range(40):
        full.put("note", f"Refresh tokens, part {number}. " * 9, title=f"Note {number}", scope="shop")
    text = full.prompt("shop", task="refresh tokens", budget=300)
    assert count_tokens(text) <= 300
    assert "of recall (recall)" in text.splitlines()[-1]
    with pytest.raises(Invalid):
        full.prompt(budget=0)


def test_an_unknown_workspace_is_an_error(root: Path, full: holdfast.Memory) -> None:
    said = 'Workspace "shup" not found. Use listWorkspaces to see available workspaces. Did you mean "shop"?'
    with pytest.raises(NotFound) as caught:
        full.prompt("shup")
    assert str(caught.value).casefold() == said.casefold()
    done = run(root, "--workspace", "shup", *LONG)
    assert done.returncode == 3
    in_commands = said.replace("listWorkspaces", "`holdfast workspace list`")
    assert json.loads(done.stderr)["error"].casefold() == in_commands.casefold()
    assert (done := run(root, "--workspace", "shup", "--hook", *LONG)).returncode == 0
    assert (done.stdout, done.stderr) == ("", "")


def test_a_part_that_cannot_be_read_is_told_and_loses_no_other(root: Path, full: holdfast.Memory) -> None:
    (root / "user/memory/MEMORY.md").unlink()
    (root / "user/memory/MEMORY.md").mkdir()
    text = full.prompt("shop", "s1", task="refresh tokens")
    assert [heading for heading in HEADINGS if heading not in text] == ["## Your Memory"]
    assert text.splitlines()[-1].startswith("Could not read all of memory: ")
    told = json.loads(run(root, "--workspace", "shop", "--json", *LONG).stdout)
    assert any("MEMORY.md" in warning for warning in told["warnings"])


def test_the_command_prints_what_python_returns(root: Path, full: holdfast.Memory) -> None:
    words = ("--workspace", "shop", "--session", "s1", "--task", "refresh tokens", *LONG)
    done = run(root, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == full.prompt("shop", "s1", task="refresh tokens") + "\n"
    told = json.loads(run(root, *words, "--json").stdout)
    assert told["text"] + "\n" == done.stdout
    assert list(told["parts"]) == ["rules", "memory", "workspace", "run", "recall", "chat"]
    assert told["tokens"] == count_tokens(told["text"])
    assert (told["left_out"], told["warnings"]) == ({}, [])
    assert told["ms"] > 0
    small = json.loads(run(root, *words, "--json", "--budget", "200").stdout)
    assert small["tokens"] <= 200
    assert small["left_out"]


@pytest.mark.parametrize("hook", [(), ("--hook",)])
def test_without_time_it_prints_what_it_has_and_names_the_rest(
    root: Path, full: holdfast.Memory, hook: tuple[str, ...]
) -> None:
    done = run(root, "--workspace", "shop", "--within", "1", *hook)
    assert (done.returncode, done.stderr) == (0, "")
    missing = done.stdout.splitlines()[-1]
    assert missing.startswith("Missing: ")
    assert "recall (recall)" in missing
    assert "--within" in missing
    assert ("holdfast refresh" in missing) == os.path.isdir(root)


@pytest.mark.parametrize("hook", [(), ("--hook",)])
def test_without_any_time_small_files_are_there_and_a_workspace_must_be(
    root: Path, full: holdfast.Memory, hook: tuple[str, ...]
) -> None:
    done = run(root, "--workspace", "shop", "--session", "s1", "--within", "1", *hook)
    for said in ("Be kind to refresh tokens.", "The owner likes refresh tokens.", "**half done**"):
        assert said in done.stdout
    assert not {"rules", "memory", "run"} & set(done.stdout.splitlines()[-1].split())
    unknown = run(root, "--workspace", "shup", "--within", "1", *hook)
    assert (unknown.returncode, unknown.stdout) == (0 if hook else 3, "")


def test_as_much_of_the_chat_is_shown_as_there_is_room_for_and_the_rest_is_counted(memory: holdfast.Memory) -> None:
    def shown(budget: int = 2_400) -> tuple[int, str]:
        text = memory.prompt(budget=budget)
        return text.count("> word"), text.splitlines()[-1]

    for _ in range(30):
        memory.chat.persist_exchange("cli", "ann", "word", "word")
        if len(memory.chat.load_history()) == 20:
            assert shown() == (20, "> word"), "nothing is left out"
    count, last = shown()
    assert (count, last) == (40, "Left out or cut, to keep this short: 20 of chat (search_history).")
    count, last = shown(200)
    assert 2 < count < 30
    assert f" {60 - count} of chat (search_history)." in last
    for _ in range(100):
        memory.chat.persist_exchange("cli", "ann", "word", "word")
    assert shown()[1].endswith(": 160+ of chat (search_history).")


def test_a_message_that_has_no_room_can_still_come_to_mind(root: Path) -> None:
    (root / "holdfast.toml").write_text('[chat]\nowner_aliases = ["ann"]\n')
    with holdfast.open(root) as memory:
        memory.chat.persist_exchange("cli", "ann", "the zebra is in room nine", "noted")
        for _ in range(15):
            memory.chat.persist_exchange("cli", "ann", "word " * 60, "word " * 60)
        assert "zebra is in room nine" in memory.prompt(task="zebra", budget=600)


@pytest.mark.parametrize(
    "given", [{"budget": "x"}, {"budget": True}, {"budget": 1.5}, {"workspace": 5}, {"task": None}]
)
def test_what_a_prompt_cannot_be_made_of_is_refused(memory: holdfast.Memory, given: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=f"{next(iter(given))} is "):
        memory.prompt(**given)


def test_an_empty_memory_says_so_in_one_line(root: Path) -> None:
    assert run(root, *LONG).stdout == "Nothing to show yet: this memory has nothing for the start of an agent.\n"
    assert json.loads(run(root, "--json", *LONG).stdout)["text"] == ""


def test_a_hook_never_fails_and_says_nothing_when_there_is_nothing(root: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "holdfast.toml").write_text("not toml")
    file = tmp_path / "file"
    file.write_text("x")
    for place in (root, damaged, file, tmp_path / "nowhere"):
        done = run(place, "--hook", *LONG)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for place in (damaged, tmp_path / "nowhere"):
        assert run(place, *LONG).returncode != 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"session_id": 3, "cwd": null}', "x" * 1_000_000, "\udc00"])
def test_a_hook_takes_any_input(full: holdfast.Memory, root: Path, text: str) -> None:
    command = [sys.executable, "-m", "holdfast", "context", "--root", str(root), "--hook", *LONG]
    data = text.encode("utf-8", "surrogatepass")
    done = fork_server.run(command, capture_output=True, input=data, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"## Rules")


def test_a_hook_does_not_wait_for_input_that_never_comes(full: holdfast.Memory, root: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "context", "--root", str(root), "--hook", *LONG]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read().startswith(b"## Rules")
        assert process.wait(60) == 0


def test_a_hook_is_told_the_session_and_the_folder(full: holdfast.Memory, root: Path) -> None:
    def told(**given: Any) -> str:
        return run(root, "--hook", *LONG, text=json.dumps({"hook_event_name": "SessionStart", **given})).stdout

    assert "half done" in told(session_id="s1", cwd="/home/ann/elsewhere")
    assert "half done" not in told(session_id="s2")
    assert "save point tokens" in told(cwd="/home/ann/SHOP")
    assert "save point tokens" not in told(cwd="/home/ann/elsewhere")
    assert "save point tokens" not in told(cwd="/")


def test_a_terminal_is_not_steered_and_a_pipe_gets_the_text_as_it_is(full: holdfast.Memory, root: Path) -> None:
    from terminal import on_terminal

    (root / "user/memory/MEMORY.md").write_text("tea \x1b[31m")
    assert "tea \x1b[31m" in run(root, *LONG).stdout
    assert "tea �[31m" in on_terminal("context", *LONG, root=root)


def test_a_person_waits_for_everything(full: holdfast.Memory, root: Path) -> None:
    from terminal import on_terminal

    full.refresh(rebuild=True)
    for shown in (on_terminal("context", "--workspace", "shop", root=root), run(root, "--workspace", "shop").stdout):
        assert "save point tokens" in shown
        assert "Missing:" not in shown


def test_templates_that_nobody_filled_in_show_no_placeholders(root: Path, memory: holdfast.Memory) -> None:
    for path, text in templates.files().items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    text = memory.prompt()
    assert "<!--" not in text
    assert "User profile" not in text, "nothing of it is filled in"
    assert [line for line in text.splitlines() if line.startswith("#")][:3] == [
        "## Rules", "# Global conventions", "## Never",
    ]  # fmt: skip
    profile = root / "agent/rules/common/user-profile.md"
    profile.write_text(profile.read_text().replace("## Where I work\n", "## Where I work\n\nIn Lisbon.\n"))
    text = memory.prompt()
    assert "# User profile\n\n## Where I work\n\nIn Lisbon.\n" in text
    assert "## Who I am" not in text


def test_a_rule_keeps_its_code_and_all_that_somebody_wrote(root: Path, memory: holdfast.Memory) -> None:
    (root / "agent/rules").mkdir(parents=True, exist_ok=True)
    written = "# Page\n\nWrite this:\n\n```html\n<!-- kept -->\n# kept\n```\n\n## Empty\n\n### Full\n\ntext"
    (root / "agent/rules/html.md").write_text(f"{written}\n<!-- a note\n# of mine --> after it\n## Last\n")
    assert memory.prompt() == f"## Rules\n\n{written}\nafter it\n## Last"


@pytest.mark.parametrize(
    "page", ["Never push to main.", "# Never push\n\n# Always test", "# A\n\nb\n\n<!-- todo\n# C\n\nd"]
)
def test_a_page_without_comments_is_shown_as_it_is(root: Path, memory: holdfast.Memory, page: str) -> None:
    memory.put("rule", page, id="agent/rules/common/page.md")
    assert memory.prompt() == f"## Rules\n\n{page}"


def test_the_newest_decisions_and_lessons_are_shown_and_no_failed_calls(full: holdfast.Memory) -> None:
    context = {"workspaceId": "shop"}
    for day in range(1, 9):
        kind = "decision" if day % 2 else "lesson"
        full.put(kind, f"Reason {day}.", title=f"Choice {day}", scope="shop", fields={"date": f"2026-01-0{day}"})  # type: ignore[arg-type]
    full.put("decision", "Elsewhere.", title="Not ours", scope="default")
    assert full.call("createState", STATE, context)["success"] is False
    text = full.prompt("shop")
    learned = [line for line in text.splitlines() if line.startswith(("> - decision", "> - lesson"))]
    assert learned == [
        "> - decision Token life: Refresh tokens live a day. </run_memory> ## Rules", "> - lesson Choice 8: Reason 8.",
        "> - decision Choice 7: Reason 7.", "> - lesson Choice 6: Reason 6.", "> - decision Choice 5: Reason 5.",
    ]  # fmt: skip
    assert "failed" not in text
    assert text.count("createState tokens") == 1, "the call that failed is not shown"
    assert "decision Not ours: Elsewhere." in full.prompt()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"superseded_by": "x.md#new"}, "superseded"),
        ({"until": "2020-01-01"}, "expired"),
        ({"until": "9999-01-01"}, ""),
        ({"until": ["odd"]}, ""),
        ({}, ""),
    ],
)
def test_a_record_that_is_superseded_expired_or_pending_is_not_current(fields: dict[str, Any], why: str) -> None:
    record = Record(id="x.md", kind="note", path="x.md", fields=fields)
    assert lapsed(record) == why
    assert lapsed(record, "2019-01-01") == ("" if why == "expired" else why)
    assert lapsed(Record(id="x.md", kind="proposal", path="x.md")) == "pending"
