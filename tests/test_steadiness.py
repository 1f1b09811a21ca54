"""Regressions: faults that reviews found.

Each test uses a public interface: the tools, the memory, a command, or the server.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from ryaml import loads  # type: ignore[attr-defined]  # its stub forgets to export it

import fork_server
import holdfast
from holdfast.errors import OverBudget
from holdfast.model.queries import Query
from holdfast.model.times import mint, today
from holdfast.roots import make_root

Reply = dict[str, Any]

WORKSPACES = "resources/workspaces"
LEARNED = "user/memory/workspaces"
OVERVIEW = "---\nname: {0}\ndescription: About {0}.\n---\n"
PLAN = "---\nname: X\ndescription: What is done.\nstatus: new\ncreated: 2026-01-01\n---\n\nText.\n"
PLAN_PATH = f"{WORKSPACES}/w/_plans/260101-x.md"
DECISIONS = f"{LEARNED}/w/decisions.md"
LESSONS = f"{LEARNED}/w/lessons.md"
AWS = "AKIA" + "Q3EGHJZ5TN7VWX2B"
GITHUB = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text.encode("utf-8"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree made by hand: one workspace with one plan."""
    root = tmp_path.resolve() / "tree"
    write(root, {f"{WORKSPACES}/w/OVERVIEW.md": OVERVIEW.format("w"), PLAN_PATH: PLAN})
    return root


def ask(root: Path, tool: str, params: Reply | None = None, context: Reply | None = None) -> Reply:
    with holdfast.open(root) as memory:
        return memory.call(tool, params or {}, context)


def contents(root: Path, *without: str) -> dict[str, bytes]:
    """Every file but those of the index and those below the folders that are named."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not {".holdfast", ".git", *without} & set(path.relative_to(root).parts)
    }


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if name != "HOLDFAST_ROOT"} | environment
    return fork_server.run(
        [sys.executable, "-m", "holdfast", *words],
        env=known,
        capture_output=True,
        text=True,
        timeout=60,
    )


def told(root: Path, *words: str, code: int = 0) -> Any:
    """Return what a command prints as JSON."""
    done = run(*words, "--root", str(root), "--json")
    assert done.returncode == code, (done.stdout, done.stderr)
    return json.loads(done.stdout)


def faults(root: Path, rule: str) -> list[tuple[str, int]]:
    """Return where lint finds something of this rule."""
    done = run("lint", "--root", str(root), "--json")
    assert done.returncode in (0, 1), done.stderr
    return [(fault["path"], fault["line"]) for fault in json.loads(done.stdout)["faults"] if fault["rule"] == rule]


def soon(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.05)
    return False


# the same answers in every state of the index


def crowded() -> dict[str, str]:
    """Workspaces in which words and tags are rare here and common elsewhere."""
    note = "---\nname: {}\ncreated: 2026-01-0{}\ntags: [{}]\n---\n\n{}\n"
    files = {
        f"{WORKSPACES}/a/_notes/one.md": note.format("one", 2, "x", "alpha"),
        f"{WORKSPACES}/a/_notes/two.md": note.format("two", 1, "x", "beta"),
        f"{WORKSPACES}/w/_notes/p.md": note.format("P", 1, "redis", "See [[Redis]]. wordone"),
        f"{WORKSPACES}/w/_notes/r.md": note.format("R", 1, "redis", "See [[Redis]]."),
        f"{WORKSPACES}/v/_notes/q.md": note.format("Q", 1, "redis", "See [[Redis]]."),
        "agent-transcripts/talk.jsonl": "".join(
            json.dumps({"role": "user", "content": f"beta talk {number}"}) + "\n" for number in range(300)
        ),
    }
    for number in range(50):
        files[f"{WORKSPACES}/b/_notes/n{number}.md"] = note.format(f"n{number}", 2, "y", "alpha filler")
    for number in range(205):
        files[f"{WORKSPACES}/v/_notes/z{number}.md"] = note.format(f"z{number}", 1, "redis", "See [[Redis]].")
    return files


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reply]:
    """A large tree, and its answers from a complete index."""
    root = tmp_path_factory.mktemp("crowd").resolve()
    write(root, crowded())
    with holdfast.open(root) as memory:
        memory.refresh(rebuild=True)
        return root, answers(memory)


def answers(memory: holdfast.Memory) -> Reply:
    def hits(query: str, scope: str, **more: Any) -> list[Reply]:
        found: list[Reply] = memory.call("recall", {"query": query, "scope": scope, **more})["hits"]
        return found

    def ties(what: str, scope: str | None) -> list[tuple[str, tuple[str, ...], float]]:
        return [(tied.record.id, tied.how, tied.score) for tied in memory.related(what, Query(scope=scope, limit=10))]

    return {
        "first": hits("alpha beta", "a", limit=1),
        "all": hits("alpha beta", "a"),
        "wide": hits("alpha beta", "*", limit=5),
        "tied": hits("wordone", "w"),
        "from elsewhere": ties(f"{WORKSPACES}/v/_notes/q.md", "w"),
        "here": ties(f"{WORKSPACES}/w/_notes/p.md", "w"),
        "anywhere": ties(f"{WORKSPACES}/w/_notes/p.md", None),
        "by name": ties("Redis", "w"),
    }


def test_a_full_index_ranks_rare_words_first_and_ties_what_is_in_the_scope(crowd: tuple[Path, Reply]) -> None:
    full = crowd[1]
    assert [hit["title"] for hit in full["first"]] == ["two"]
    assert [hit["title"] for hit in full["all"]] == ["two", "one"]
    assert [tied["title"] for tied in full["tied"][0]["related"]] == ["R"]
    both = [f"{WORKSPACES}/w/_notes/p.md", f"{WORKSPACES}/w/_notes/r.md"]
    assert sorted(tied[0] for tied in full["from elsewhere"]) == both
    assert sorted(tied[0] for tied in full["by name"]) == both


def _cold(memory: holdfast.Memory, refresh: bool = False) -> None:
    if refresh:
        memory.refresh()
    assert memory.call("recall", {"query": "beta", "scope": "*", "layers": ["cold"]})["hits"]


LOOKS: dict[str, Callable[[holdfast.Memory], object]] = {
    "nothing was read": lambda memory: None,
    "the plans of one scope were read": lambda memory: memory.call("retrieve_plans", {"scope": "a"}),
    "the notes of one scope were read": lambda memory: memory.every(Query(kinds=("note",), scope="a")),
    "all of another scope was read": lambda memory: memory.call("workspace_context", {"scope": "v", "topics": "notes"}),
    "one note was read": lambda memory: memory.get(f"{WORKSPACES}/w/_notes/p.md"),
    "cold memory was searched": _cold,
    "everything was read": lambda memory: memory.refresh(),
    "everything was read and cold memory was searched": lambda memory: _cold(memory, refresh=True),
}


@pytest.mark.parametrize("again", [False, True], ids=["same process", "another process"])
@pytest.mark.parametrize("look", LOOKS)
def test_answers_do_not_depend_on_what_was_read_before(crowd: tuple[Path, Reply], look: str, again: bool) -> None:
    root, full = crowd
    shutil.rmtree(root / ".holdfast")
    with holdfast.open(root) as memory:
        LOOKS[look](memory)
        if not again:
            assert answers(memory) == full
            return
    with holdfast.open(root) as memory:
        assert answers(memory) == full


# an entry that is stored can be read


OPEN = {
    "three": "```\nnever closed\n",
    "four": "````\nnever closed\n",
    "tildes": "~~~\nnever closed\n",
    "language": "```python\nprint()\n",
    "indented": "  ```\nnever closed\n",
    "closed but opened again": "```\na\n```\n\n```\nnever closed\n",
    "without an end of line": "```\nnever closed",
    "windows": "```\r\nnever closed\r\n",
}
SAVED = {
    "plain": "Only words.",
    "fenced": "Do:\n\n```\nmake\n```\n\nbecause.",
    "fence in a fence": "Use this:\n\n````\n```\n````\n\nbecause.",
    "tildes": "Do:\n\n~~~\nmake\n~~~",
    "left open": "Do:\n\n```\nmake",
    "closes": "```",
    "tildes around a fence": "~~~\n```\n~~~\n\nand ``` so on",
}


@pytest.mark.parametrize("left", OPEN)
def test_an_entry_is_stored_where_it_can_be_read_or_not_at_all(tree: Path, left: str) -> None:
    for name, content in SAVED.items():
        before = f"# Decisions\n\n### [2024-01-01] Old\n\n{OPEN[left]}"
        write(tree, {DECISIONS: before})
        with holdfast.open(tree) as memory:
            params = {"scope": "w", "kind": "decision", "title": "New one", "content": content}
            reply = memory.call("save_learning", params)
            shown = memory.call("retrieve_learnings", {"scope": "w"})["decisions"]
        titles = sorted(entry["title"] for entry in shown)
        if reply.get("success") is False:
            assert (tree / DECISIONS).read_bytes() == before.encode(), name
            assert titles == ["Old"], name
        else:
            assert reply["status"] == "stored"
            assert titles == ["New one", "Old"], name
            (entry,) = [entry for entry in shown if entry["title"] == "New one"]
            assert entry["content"].strip() == content.strip(), name
            assert (tree / DECISIONS).read_bytes().startswith(before.encode()), name


# imports


def turns(root: Path) -> list[Reply]:
    """Every line in cold memory."""
    logs = sorted((root / "agent-transcripts").rglob("*.jsonl"))
    return [json.loads(line) for log in logs for line in log.read_text().splitlines()]


def brought(root: Path, path: Path) -> tuple[int, int]:
    done = told(root, "import", "jsonl", str(path))
    return done["added"], done["known"]


def test_a_line_that_looks_like_our_own_is_brought_in_without_its_secrets(root: Path, tmp_path: Path) -> None:
    lines = [
        {"id": mint(), "role": "user", "text": f"the key {AWS} and {GITHUB}"},
        {"id": mint(), "time": "2026-01-01T00:00:00.000Z", "role": "assistant", "text": f"I see {AWS}", "session": "s"},
        {"id": "x", "role": "user", "text": f"the key {AWS}"},
        {"role": "user", "content": f"the key {GITHUB}"},
    ]
    write(tmp_path / "in", {"a.jsonl": "".join(json.dumps(line) + "\n" for line in lines)})
    assert brought(root, tmp_path / "in") == (4, 0)
    assert [turn["text"] for turn in turns(root)] == [
        "the key [AWS access key removed] and [GitHub token removed]",
        "I see [AWS access key removed]",
        "the key [AWS access key removed]",
        "the key [GitHub token removed]",
    ]
    with holdfast.open(root) as memory:
        assert len(memory.call("recall", {"query": "key", "layers": ["cold"], "scope": "*"})["hits"]) >= 3
    held = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
    assert AWS.encode() not in held
    assert GITHUB.encode() not in held


@pytest.mark.parametrize("timed", [{}, {"timestamp": "2026-01-01T00:00:00Z"}], ids=["untimed", "timed"])
def test_what_was_said_twice_comes_in_twice_and_no_more(root: Path, tmp_path: Path, timed: Reply) -> None:
    line = json.dumps({"role": "user", "content": "yes", **timed}) + "\n"
    other = json.dumps({"role": "assistant", "content": "so?", **timed}) + "\n"
    write(tmp_path / "in", {"b.jsonl": line * 2})
    assert brought(root, tmp_path / "in") == (2, 0)
    assert brought(root, tmp_path / "in") == (0, 2)
    write(tmp_path / "in", {"b.jsonl": line * 2 + other + line})
    assert brought(root, tmp_path / "in") == (2, 2)
    assert brought(root, tmp_path / "in") == (0, 4)
    assert [turn["text"] for turn in turns(root)] == ["yes", "yes", "so?", "yes"]
    assert len({turn["id"] for turn in turns(root)}) == 4


def test_a_file_is_the_same_file_from_whichever_folder_it_is_brought(root: Path, tmp_path: Path) -> None:
    line = {"role": "user", "content": "zebra question", "timestamp": "2026-01-01T00:00:00Z"}
    write(tmp_path / "in", {"sub/a.jsonl": json.dumps(line) + "\n"})
    (tmp_path / "alias").symlink_to(tmp_path / "in")
    assert brought(root, tmp_path / "in/sub/a.jsonl") == (1, 0)
    for path in ("in/sub", "in", "in/sub/../sub/a.jsonl", "alias"):
        assert brought(root, tmp_path / path) == (0, 1), path
    assert len(list((root / "agent-transcripts").iterdir())) == 1
    hits = told(root, "recall", "zebra", "--layers", "cold", "--scope", "*")["hits"]
    assert len(hits) == 1
    assert told(root, "get", hits[0]["record"]["id"])["text"] == "zebra question"


# input that is small and hostile


def test_a_heading_of_many_spaces_is_read(tree: Path) -> None:
    write(tree, {DECISIONS: "### [2024-01-01] a" + " " * 25_000 + "b\n\nmarble\n"})
    (entry,) = ask(tree, "retrieve_learnings", {"scope": "w"})["decisions"]
    assert entry["title"].split() == ["a", "b"]
    assert entry["content"] == "marble"
    hits = ask(tree, "recall", {"query": "marble", "budget": 0})["hits"]
    assert [hit["kind"] for hit in hits] == ["decision"]


@pytest.mark.parametrize(("title", "budget"), [("a" + " " * 25_000 + "b", 2_000), ("short", 1)])
def test_what_has_no_room_in_the_budget_is_not_told_as_nothing(tree: Path, title: str, budget: int) -> None:
    write(tree, {DECISIONS: f"### [2024-01-01] {title}\n\nmarble\n"})
    reply = ask(tree, "recall", {"query": "marble", "budget": budget})
    assert reply["hits"] or reply["leftOut"] == 1
    assert "Nothing relevant" not in reply["text"]


def test_a_line_of_many_backticks_is_read(tree: Path) -> None:
    note, other = f"{WORKSPACES}/w/_notes/x.md", f"{WORKSPACES}/w/_notes/a.md"
    ticks = " ".join("`" * count for count in range(1, 300))
    write(tree, {note: f"marble [[a]] {'`' * 60_000}\n\n{ticks}\n", other: "# A\n\nText.\n"})
    with holdfast.open(tree) as memory:
        assert [hit["id"] for hit in memory.call("recall", {"query": "marble"})["hits"]] == [note]
        assert [(tied.record.id, tied.how) for tied in memory.related(note)] == [(other, ("linked to",))]


def test_many_fences_that_are_never_closed_are_text(tree: Path) -> None:
    fences = "```x\n" * 20_000
    write(tree, {DECISIONS: f"### [2024-01-01] a\n\n{fences}### [2024-01-02] b\n\n## [2024/01/03] like\n"})
    shown = ask(tree, "retrieve_learnings", {"scope": "w", "budget": 0})["decisions"]
    assert [entry["title"] for entry in shown] == ["b", "a"]
    assert shown[1]["content"].count("```x") == 20_000
    assert faults(tree, "entry") == [(DECISIONS, 20_005)]


def test_a_title_of_many_spaces_is_taken_for_the_name(tree: Path) -> None:
    write(tree, {PLAN_PATH: "# a" + " " * 3_000 + "b\n\nText that says more.\n"})
    told(tree, "migrate", "front-matter", "--apply")
    (plan,) = ask(tree, "retrieve_plans", {"scope": "w"})["plans"]
    assert plan["name"].split() == ["a", "b"]
    assert plan["status"] == "new"
    assert (tree / PLAN_PATH).read_text().endswith("Text that says more.\n")


def test_a_status_behind_many_spaces_is_set(tree: Path) -> None:
    text = "---\nname: p\nstatus:" + " " * 150_000 + "new\nupdated: 2026-01-01\n---\n"
    write(tree, {PLAN_PATH: text})
    reply = ask(tree, "set_plan_status", {"id": "260101-x", "status": "done"})
    assert (reply["status"], reply["was"]) == ("done", "new")
    head, _, tail = (tree / PLAN_PATH).read_text().partition("status:")
    assert head == "---\nname: p\n"
    assert tail.split("\n")[0].strip() == "done"
    assert tail.split("\n")[1:] == [f"updated: {today()}", "---", ""]


def test_many_conflicts_that_are_only_shown_are_text(tree: Path) -> None:
    marks = "<<<<<<< a\n=======\n>>>>>>> b\n" * 1_000
    write(tree, {DECISIONS: f"### [2024-01-01] a\n\n```\n{marks}```\n"})
    reply = ask(tree, "retrieve_learnings", {"scope": "w"})
    assert "warnings" not in reply
    assert reply["decisions"][0]["content"].count("<<<<<<<") == 1_000


def test_many_headings_are_over_the_budget_of_a_rule(tree: Path) -> None:
    note = f"{WORKSPACES}/w/_notes/h.md"
    write(tree, {note: "# a\n" * 200_000})
    with holdfast.open(tree) as memory, pytest.raises(OverBudget):
        memory.hot.promote(note)
    assert not (tree / "agent").exists()
    done = run("hot", "promote", note, "--root", str(tree))
    assert json.loads(done.stderr)["kind"] == "OverBudget"


# a process that watches


def found(memory: holdfast.Memory, query: str, scope: str) -> list[str]:
    return sorted(hit.record.path for hit in memory.find(query, scope=scope))


def test_a_watching_process_sees_what_changes_behind_a_linked_folder(tree: Path) -> None:
    note = "---\nname: {}\n---\n\n{}\n"
    outside, inside = "shared/d/_notes/n.md", f"{WORKSPACES}/v/d2/_notes/n.md"
    write(tree, {outside: note.format("n", "oldword"), inside: note.format("n2", "oldword")})
    (tree / WORKSPACES / "w/d").symlink_to("../../../shared/d")
    (tree / WORKSPACES / "w/d2").symlink_to("../v/d2")
    both = [f"{WORKSPACES}/w/d/_notes/n.md", f"{WORKSPACES}/w/d2/_notes/n.md"]
    with holdfast.open(tree, watch=True) as memory:
        assert found(memory, "oldword", "w") == both
        write(tree, {outside: note.format("n", "newword out"), inside: note.format("n2", "newword in")})
        assert soon(lambda: found(memory, "newword", "w") == both), found(memory, "newword", "w")
        assert soon(lambda: found(memory, "oldword", "w") == [])
        write(tree, {"shared/d/_notes/m.md": note.format("m", "thirdword")})
        assert soon(lambda: found(memory, "thirdword", "w") == [f"{WORKSPACES}/w/d/_notes/m.md"])
        (tree / outside).unlink()
        assert soon(lambda: found(memory, "newword", "w") == both[1:])


def test_a_watching_process_sees_what_changes_behind_a_linked_file(tree: Path) -> None:
    note = "---\nname: Real\n---\n\n{}\n"
    near, far = f"{WORKSPACES}/w/_notes/real.md", "shared/far.md"
    write(tree, {near: note.format("first"), far: note.format("first")})
    (tree / WORKSPACES / "u/_notes").mkdir(parents=True)
    (tree / WORKSPACES / "u/_notes/alias.md").symlink_to("../../w/_notes/real.md")
    (tree / WORKSPACES / "u/_notes/far.md").symlink_to("../../../../shared/far.md")
    both = [f"{WORKSPACES}/u/_notes/alias.md", f"{WORKSPACES}/u/_notes/far.md"]
    with holdfast.open(tree, watch=True) as memory:
        assert found(memory, "first", "u") == both
        write(tree, {near: note.format("second"), far: note.format("second")})
        assert soon(lambda: found(memory, "second", "u") == both), found(memory, "second", "u")
        assert soon(lambda: found(memory, "first", "u") == [])


# skills


def test_a_skill_in_a_folder_that_a_person_named_is_replaced_and_not_doubled(tree: Path) -> None:
    path = f"{WORKSPACES}/w/_skills/pdf_processing/SKILL.md"
    write(tree, {path: "---\nname: pdf_processing\ndescription: does pdf\nowner: me # mine\n---\n\nsteps\n"})
    with holdfast.open(tree) as memory:
        for name in ("pdf_processing", "pdf-processing", "PDF processing"):
            loaded = memory.call("load_skill", {"scope": "w", "name": name})
            assert loaded["name"] == "pdf_processing", name
            better = {"scope": "w", "name": name, "description": "does pdf", "content": f"better, as {name}"}
            refused = memory.call("save_skill", better)
            assert 'Skill "pdf_processing" already exists in w.' in refused["error"], name
            done = memory.call("save_skill", better | {"expect": loaded["version"]})
            assert (done["status"], done["where"]) == ("changed", path), name
            assert memory.call("load_skill", {"scope": "w", "name": name})["content"] == f"better, as {name}"
        assert len(memory.call("workspace_context", {"scope": "w"})["skills"]) == 1
    assert [folder.name for folder in (tree / WORKSPACES / "w/_skills").iterdir()] == ["pdf_processing"]
    assert "owner: me # mine\n" in (tree / path).read_text()


def test_a_repeated_replacement_of_a_skill_is_told_as_such(tree: Path) -> None:
    skill = {"scope": "w", "name": "deploying", "description": "d", "content": "one"}
    with holdfast.open(tree) as memory:
        first = memory.call("save_skill", skill)
        change = skill | {"content": "two", "expect": first["version"]}
        assert memory.call("save_skill", change, {"opId": "op-1"})["status"] == "changed"
        assert memory.call("save_skill", change, {"opId": "op-1"})["status"] == "repeated"
        version = memory.call("load_skill", {"scope": "w", "name": "deploying"})["version"]
        assert memory.call("save_skill", skill | {"content": "three", "expect": version})["status"] == "changed"
        assert memory.call("save_skill", change, {"opId": "op-1"})["status"] == "repeated"
    assert ask(tree, "save_skill", change, {"opId": "op-1"})["status"] == "repeated"
    assert ask(tree, "load_skill", {"scope": "w", "name": "deploying"})["content"] == "three"


# repeated calls


def test_a_repeated_learning_is_repeated_although_the_level_above_says_it_too(tree: Path) -> None:
    write(tree, {f"{WORKSPACES}/w/d/OVERVIEW.md": OVERVIEW.format("d")})
    params = {"scope": "w/d", "kind": "lesson", "title": "t", "content": "same text"}
    with holdfast.open(tree) as memory:
        first = memory.call("save_learning", params, {"opId": "o1"})
        assert first["status"] == "stored"
        assert memory.call("save_learning", params, {"opId": "o1"})["status"] == "repeated"
        assert memory.call("save_learning", params | {"scope": "w", "title": "up"})["status"] == "stored"
        again = memory.call("save_learning", params, {"opId": "o1"})
        assert (again["status"], again["id"]) == ("repeated", first["id"])
        assert "the same" in memory.call("save_learning", params, {"opId": "o2"})["error"]
    again = ask(tree, "save_learning", params, {"opId": "o1"})
    assert (again["status"], again["id"]) == ("repeated", first["id"])
    assert (tree / f"{LEARNED}/w/d/lessons.md").read_text().count("same text") == 1


def test_a_repeated_status_tells_the_one_that_the_plan_has_now(tree: Path) -> None:
    params = {"id": "260101-x", "status": "done"}
    with holdfast.open(tree) as memory:
        assert memory.call("set_plan_status", params, {"opId": "o1"})["receipt"] == "changed"
        assert memory.call("set_plan_status", params | {"status": "partial"})["status"] == "partial"
        reply = memory.call("set_plan_status", params, {"opId": "o1"})
        assert (reply["receipt"], reply["status"]) == ("repeated", "partial")
        assert "is partial" in reply["text"] and "is done" not in reply["text"]
    assert "status: partial\n" in (tree / PLAN_PATH).read_text()


def test_an_entry_that_was_put_away_by_year_is_still_known(tree: Path) -> None:
    entry = "### [20{0}-01-01] L{0}\n\nlesson text {0}\n\n---\n\n"
    write(
        tree,
        {
            f"{WORKSPACES}/w/d/OVERVIEW.md": OVERVIEW.format("d"),
            LESSONS: "# Lessons\n\n" + "".join(entry.format(year) for year in range(20, 25)),
        },
    )
    moved = told(tree, "learnings", "archive", "w", "--keep", "2")["moved"]
    assert [one["archive"] for one in moved] == [f"{LEARNED}/w/lessons-20{year}.md" for year in (20, 21, 22)]
    before = contents(tree, "traces")
    for year, scope in itertools.product(range(20, 25), ("w", "w/d")):
        params = {"scope": scope, "kind": "lesson", "title": "again", "content": f"Lesson text  {year}"}
        reply = ask(tree, "save_learning", params)
        where = f"lessons-20{year}.md" if year < 23 else "lessons.md"
        assert f"{LEARNED}/w/{where}#20{year}-01-01-l{year} " in reply["error"]
    assert contents(tree, "traces") == before


# budgets


def test_one_entry_and_an_overview_of_five_megabytes_stay_within_the_budget(tree: Path) -> None:
    words = "word " * 1_000_000
    write(
        tree,
        {
            DECISIONS: f"### [2024-01-01] a\n\n{words}\n",
            f"{WORKSPACES}/w/OVERVIEW.md": f"---\nname: w\ndescription: d\n---\n\n{words}\n",
        },
    )
    with holdfast.open(tree) as memory:
        learned = memory.call("retrieve_learnings", {"scope": "w"})
        about = memory.call("retrieve_overview", {"scope": "w"})
        everything = memory.call("workspace_context", {"scope": "w"})
    for reply in (learned, about, everything):
        assert len(reply["text"]) < 400_000
        assert "more characters in " in reply["text"]
    assert [entry["title"] for entry in learned["decisions"]] == ["a"]

    def left_out(content: str, path: str) -> bool:
        kept, _, said = content.rpartition("\n… (")
        number = int(said.partition(" more characters in ")[0].replace(",", ""))
        return abs(len(kept) + number - len(words)) < 10 and path in said

    assert left_out(learned["decisions"][0]["content"], DECISIONS)
    assert left_out(about["overviews"][0]["content"], f"{WORKSPACES}/w/OVERVIEW.md")
    assert left_out(everything["decisions"][0]["content"], DECISIONS)
    assert left_out(everything["overview"]["content"], f"{WORKSPACES}/w/OVERVIEW.md")


# git


def git(folder: Path, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    names = {f"GIT_{who}_{what}": "tester@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    known = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(["git", *words], cwd=folder, env=known | names | alone, capture_output=True, text=True)
    assert code is None or done.returncode == code, (done.stdout, done.stderr)
    return done


@pytest.mark.parametrize("below", ["", "notes/memory"])
def test_git_ignores_what_is_derived_and_nothing_else(tmp_path: Path, below: str) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    root = tmp_path / below
    make_root(str(root))
    ignored = [
        "user/memory/traces/x/2026-01.jsonl",
        "user/memory/writes/kept/abc",
        "user/memory/sessions/s/runs/r.jsonl",
        ".holdfast/x",
    ]
    kept = [
        f"{WORKSPACES}/runs/OVERVIEW.md",
        f"{WORKSPACES}/w/traces/_plans/a.md",
        f"{WORKSPACES}/w/writes/kept/_notes/a.md",
        "user/memory/workspaces/traces/decisions.md",
        "user/memory/sessions/s/episodic.jsonl",
        "user/memory/writes/2026-01.jsonl",
        "user/memory/MEMORY.md",
        "holdfast.toml",
        ".gitignore",
    ]
    write(root, dict.fromkeys([*ignored, *(path for path in kept if path.endswith((".md", ".jsonl")))], "text\n"))
    found = git(root, "check-ignore", *ignored, *kept).stdout.splitlines()
    assert found == ignored
    git(tmp_path, "add", "-A")
    added = git(root, "ls-files").stdout.splitlines()
    assert set(kept) <= set(added) and not set(ignored) & set(added)


BASE = "# Decisions\n\n### [2026-01-01] Base\n\nThe base.\n\n---\n"
OURS = f"{BASE}\n### [2026-01-02] Ours\n\nOur text.\n\n---\n"
THEIRS = f"{BASE}\n### [2026-01-03] Theirs\n\nTheir text.\n\n---\n"


def merge(root: Path, base: dict[str, str], ours: dict[str, str], theirs: dict[str, str]) -> None:
    """Let git merge two branches that changed the same files, which it cannot."""
    git(root, "init", "-q", "-b", "main")
    write(root, {f"{WORKSPACES}/w/OVERVIEW.md": OVERVIEW.format("w"), **base})
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "base")
    git(root, "checkout", "-q", "-b", "other")
    write(root, theirs)
    git(root, "commit", "-q", "-a", "-m", "theirs")
    git(root, "checkout", "-q", "main")
    write(root, ours)
    git(root, "commit", "-q", "-a", "-m", "ours")
    assert "CONFLICT" in git(root, "merge", "other", code=1).stdout
    assert all("<<<<<<< HEAD\n" in (root / path).read_text() for path in base)


@pytest.fixture
def merged(root: Path) -> Path:
    """A root in which git left conflicts: in the decisions, and in the front matter of a plan."""
    merge(
        root,
        {DECISIONS: BASE, PLAN_PATH: PLAN},
        {DECISIONS: OURS, PLAN_PATH: PLAN.replace("status: new", "status: in_progress")},
        {DECISIONS: THEIRS, PLAN_PATH: PLAN.replace("status: new", "status: partial")},
    )
    return root


def line_in(root: Path, path: str) -> int:
    return (root / path).read_text().splitlines().index("<<<<<<< HEAD") + 1


def test_a_conflict_that_git_left_is_named_everywhere(merged: Path) -> None:
    with holdfast.open(merged) as memory:
        for tool, path in (("retrieve_learnings", DECISIONS), ("retrieve_plans", PLAN_PATH)):
            (warning,) = memory.call(tool, {"scope": "w"})["warnings"]
            assert path in warning and "unresolved merge conflict" in warning
        report = memory.verify()
        assert not report.sound
        assert {problem.path for problem in report.damage} == {DECISIONS, PLAN_PATH}
    assert sorted(faults(merged, "conflict")) == sorted(
        (path, line_in(merged, path)) for path in (DECISIONS, PLAN_PATH)
    )
    assert told(merged, "verify", code=8)["sound"] is False


def test_a_file_in_conflict_is_not_written_to(merged: Path) -> None:
    before = contents(merged, "traces")
    saved = {"scope": "w", "kind": "decision", "title": "New", "content": "Something new."}
    with holdfast.open(merged) as memory:
        for tool, params in (
            ("save_learning", saved),
            ("set_plan_status", {"path": PLAN_PATH, "status": "done"}),
            ("set_plan_status", {"path": PLAN_PATH, "status": "new"}),
        ):
            reply = memory.call(tool, params)
            assert reply["success"] is False, (tool, reply)
            assert "unresolved merge conflict" in reply["error"], (tool, reply)
            path = params.get("path", DECISIONS)
            assert f"Resolve the conflict in {path}, then: git add {path}" in reply["error"]
    assert contents(merged, "traces") == before


@pytest.mark.parametrize(
    "words", [["lint", "--fix"], ["migrate", "front-matter", "--apply"], ["learnings", "archive", "--keep", "1"]]
)
def test_no_command_that_tidies_takes_a_file_in_conflict_apart(merged: Path, words: list[str]) -> None:
    before = contents(merged, "traces")
    done = run(*words, "--root", str(merged), "--json")
    assert contents(merged, "traces") == before
    assert done.returncode == 1
    assert "merge conflict" in done.stdout


def test_all_is_well_after_a_conflict_was_resolved(merged: Path) -> None:
    with holdfast.open(merged) as memory:
        assert memory.call("retrieve_learnings", {"scope": "w"})["warnings"]
        write(merged, {DECISIONS: OURS + THEIRS.removeprefix(BASE), PLAN_PATH: PLAN})
        git(merged, "add", "-A")
        git(merged, "commit", "-q", "-m", "merged")
        learned = memory.call("retrieve_learnings", {"scope": "w"})
        assert [entry["title"] for entry in learned["decisions"]] == ["Theirs", "Ours", "Base"]
        assert "warnings" not in learned
        assert "warnings" not in memory.call("retrieve_plans", {"scope": "w"})
        saved = {"scope": "w", "kind": "decision", "title": "New", "content": "Something new."}
        assert memory.call("save_learning", saved)["status"] == "stored"
        assert memory.call("set_plan_status", {"path": PLAN_PATH, "status": "done"})["status"] == "done"
        assert memory.verify().sound
    assert faults(merged, "conflict") == []


def test_marks_of_a_conflict_in_code_are_no_conflict(tree: Path) -> None:
    marks = "<<<<<<< HEAD\nours\n=======\ntheirs\n>>>>>>> other\n"
    fenced = f"See:\n\n```\n{marks}```\n"
    write(tree, {DECISIONS: f"# Decisions\n\n### [2026-01-01] Merging\n\n{fenced}\n---\n", PLAN_PATH: PLAN + fenced})
    with holdfast.open(tree) as memory:
        assert "warnings" not in memory.call("retrieve_learnings", {"scope": "w"})
        saved = {"scope": "w", "kind": "decision", "title": "New", "content": "Something new."}
        assert memory.call("save_learning", saved)["status"] == "stored"
        assert memory.call("set_plan_status", {"path": PLAN_PATH, "status": "done"})["status"] == "done"
        assert memory.verify().sound
    assert faults(tree, "conflict") == []
    assert marks in (tree / DECISIONS).read_text()


def assert_conflict(root: Path) -> None:
    before = contents(root, "traces")
    with holdfast.open(root) as memory:
        warnings = memory.call("retrieve_learnings", {"scope": "w"}).get("warnings", [])
        saved = {"scope": "w", "kind": "decision", "title": "New", "content": "Something new."}
        reply = memory.call("save_learning", saved)
        assert contents(root, "traces") == before, "a file in conflict was written to"
        assert reply["success"] is False
        assert any("unresolved merge conflict" in warning for warning in warnings)
        assert not memory.verify().sound
    assert [path for path, _ in faults(root, "conflict")] == [DECISIONS]


def test_a_conflict_of_entries_that_end_with_code_is_seen(root: Path) -> None:
    """Text at the end of both sides is once after the conflict: so each half opens a fence and closes none."""
    ours = f"{BASE}\n### [2026-01-02] Ours\n\nUse make:\n```sh\nmake all\n```\n\n---\n"
    theirs = f"{BASE}\n### [2026-01-03] Theirs\n\nUse ninja:\n```bash\nninja\n```\n\n---\n"
    merge(root, {DECISIONS: BASE}, {DECISIONS: ours}, {DECISIONS: theirs})
    assert (root / DECISIONS).read_text().endswith("```bash\nninja\n>>>>>>> other\n```\n\n---\n")
    assert_conflict(root)


def test_a_conflict_behind_a_fence_that_was_left_open_is_seen(root: Path) -> None:
    entry = "\n### [2026-01-0{0}] E{0}\n\n{1}\n\n---\n"
    base = BASE + entry.format(2, "```\nnever closed") + "{}" + entry.format(5, "```\ncode\n```")
    merge(
        root,
        {DECISIONS: base.format("")},
        {DECISIONS: base.format(entry.format(3, "Our text."))},
        {DECISIONS: base.format(entry.format(4, "Their text."))},
    )
    with holdfast.open(root) as memory:  # a person sees entries, and so does the memory, but only ours
        shown = memory.call("retrieve_learnings", {"scope": "w"})["decisions"]
    assert [entry["title"] for entry in shown] == ["E5", "E3", "E2", "Base"]
    assert_conflict(root)


# secrets


STATE = {"name": "S", "conversationContext": "c", "activeTask": "t", "activeFiles": [], "nextSteps": ["n"]}
KEEPING: dict[str, tuple[str, Reply, str]] = {
    "save_learning": ("knowledge", {"scope": "w", "kind": "lesson", "title": "t", "content": "c"}, "content"),
    "remember": ("memory", {"text": "x"}, "text"),
    "createState": ("memoryManager", STATE, "conversationContext"),
    "save_skill": ("knowledge", {"scope": "w", "name": "n", "description": "d", "content": "c"}, "content"),
}


@pytest.mark.parametrize(("secret", "name"), [(AWS, "AWS access key"), (GITHUB, "GitHub token")])
@pytest.mark.parametrize("tool", KEEPING)
def test_a_secret_is_refused_with_the_reason_and_leaves_no_trace(tree: Path, tool: str, secret: str, name: str) -> None:
    agent, params, field = KEEPING[tool]
    hidden = [params | {field: f"the key is {secret}, really"}, params | {field: secret}]
    if tool == "createState":
        hidden.append(params | {"nextSteps": ["first", f"use {secret}"]})
    before = contents(tree, "traces")
    context = {"workspaceId": "w", "sessionId": "s"}
    with holdfast.open(tree) as memory:
        for given in hidden:
            replies = [memory.call(tool, given, context)]
            calls = [{"agent": agent, "tool": tool, "params": given}]
            replies.append(memory.call("useTools", {"context": context, "calls": calls}))
            for reply in replies:
                assert reply["success"] is False
                assert f"looks like a secret: {name}. Nothing was written." in reply["error"]
                assert secret not in str(reply)
        assert contents(tree, "traces") == before
        memory.refresh()
        assert [line["success"] for line in memory.traces.last(10)] == [False] * len(hidden) * 2
    held = [path for path in tree.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert held == []
    assert contents(tree, "traces") == before
    with holdfast.open(tree) as memory:  # text without a secret is kept
        assert memory.call(tool, params, context).get("success") is not False


def test_a_command_refuses_a_secret_too(tree: Path) -> None:
    before = contents(tree, "traces")
    done = run("remember", f"the key is {AWS}", "--root", str(tree))
    assert done.returncode == 2
    assert "looks like a secret: AWS access key" in json.loads(done.stderr)["error"]
    assert contents(tree, "traces") == before
    assert not any(AWS.encode() in data for data in contents(tree).values())


# a default that was never written to


@pytest.mark.parametrize("tool", ["retrieve_plans", "retrieve_learnings", "retrieve_overview", "workspace_context"])
def test_a_default_that_holds_nothing_names_the_workspaces_there_are(tree: Path, tool: str) -> None:
    write(tree, {f"{WORKSPACES}/second/OVERVIEW.md": OVERVIEW.format("second")})
    said = "The workspace default is empty. Name one as scope: second, w."
    assert ask(tree, tool)["warnings"] == [said]
    assert ask(tree, tool, {"scope": "default"})["warnings"] == [said]
    assert said not in ask(tree, tool, {}, {"workspaceId": "w"}).get("warnings", [])
    assert said not in ask(tree, tool, {"scope": "w"}).get("warnings", [])
    ask(tree, "remember", {"text": "something"})
    assert said not in ask(tree, tool).get("warnings", [])


def test_an_empty_memory_names_no_workspaces(root: Path) -> None:
    assert ask(root, "retrieve_plans") == {"plans": [], "text": "plans: []\n"}


# text and data


def test_several_reads_give_data_without_the_text_that_mirrors_it(tree: Path) -> None:
    context = {"workspaceId": "w", "sessionId": "s"}
    tools = ("retrieve_plans", "retrieve_overview", "retrieve_learnings", "workspace_context")
    calls = [{"agent": "knowledge", "tool": tool, "params": {}} for tool in tools]
    for strategy, some in itertools.product(("serial", "parallel"), (calls[:2], calls)):
        reply = ask(tree, "useTools", {"context": context, "calls": some, "strategy": strategy})
        results = reply["data"]["results"]
        assert [result["tool"] for result in results] == [call["tool"] for call in some]
        assert all("text" not in result and result["success"] for result in results)
        assert results[0]["plans"][0]["name"] == "X"


def test_a_read_over_mcp_is_yaml_for_the_model_and_data_without_it(tree: Path) -> None:
    arguments = ["-W", "error", "-m", "holdfast", "mcp", "--toolset", "all", "--root", str(tree)]

    async def work() -> None:
        parameters = StdioServerParameters(command=sys.executable, args=arguments)
        async with Client(stdio_client(parameters)) as client:
            for tool in ("retrieve_plans", "retrieve_overview", "retrieve_learnings", "workspace_context"):
                result = await client.call_tool(tool, {"scope": "w"})
                (content,) = result.content
                assert isinstance(content, types.TextContent)
                assert result.structured_content and "text" not in result.structured_content
                assert not content.text.startswith("{")
                assert loads(content.text) == result.structured_content
            calls = [{"agent": "knowledge", "tool": "retrieve_plans", "params": {}}] * 2
            context = {"workspaceId": "w", "sessionId": "s"}
            result = await client.call_tool("useTools", {"context": context, "calls": calls})
            assert result.structured_content is not None
            found = result.structured_content["data"]["results"]
            assert [sorted(each) for each in found] == [["agent", "plans", "success", "tool"]] * 2

    asyncio.run(work())


# comments


COMMENTED = """\
---
# the first line
name: "X" # the name
description: 'it''s # not a comment'   # but this is
status: "{status}"  # keep "me"
  # indented, keep me
# not indented
created: '{created}'\t# when
    # deep
tags: [a, "b # no"] # tags
owner: me # mine
---

Text. # no comment
status: Done # nor this
"""


def test_mending_keeps_comments(tree: Path) -> None:
    write(tree, {PLAN_PATH: COMMENTED.format(status="In Progress", created="2026/01/02")})
    report = told(tree, "lint", "--fix")
    assert (report["errors"], report["fixed"]) == (0, 2)
    wanted = COMMENTED.replace('"{status}"', "in_progress").replace("'{created}'", "2026-01-02")
    assert (tree / PLAN_PATH).read_text() == wanted


def test_a_status_keeps_comments_behind_quotes_and_indented(tree: Path) -> None:
    write(tree, {PLAN_PATH: COMMENTED.format(status="new", created="2026-01-02")})
    assert ask(tree, "set_plan_status", {"id": "260101-x", "status": "done"})["was"] == "new"
    wanted = COMMENTED.replace('"{status}"', "done").replace("{created}", "2026-01-02")
    wanted = wanted.replace("owner: me # mine\n", f"owner: me # mine\nupdated: {today()}\n")
    assert (tree / PLAN_PATH).read_text() == wanted


# what is wrong, and what is only unusual


def test_a_spelling_and_a_date_that_is_none_are_for_lint_and_no_damage(tree: Path) -> None:
    write(
        tree,
        {
            PLAN_PATH: PLAN.replace("status: new", "status: Done"),
            LESSONS: "# Lessons\n\n### [2025-02-30] A day that never was\n\nText.\n\n---\n",
        },
    )
    with holdfast.open(tree) as memory:
        report = memory.verify()
        assert report.sound, (report.differences, report.damage)
    assert told(tree, "verify")["sound"] is True
    assert faults(tree, "status") == [(PLAN_PATH, 4)]
    assert faults(tree, "date") == [(LESSONS, 3)]
    shown = ask(tree, "retrieve_learnings", {"scope": "w"})
    assert [entry["title"] for entry in shown["lessons"]] == ["A day that never was"]


# commands


@pytest.mark.parametrize("before", [None, "# Mine\n\nWords of my own.\n"], ids=["new", "there"])
def test_rules_are_linked_once_by_four_processes_at_once(root: Path, before: str | None) -> None:
    files = {
        f"agent/rules/common/{name}.md": f"<!-- budget: 9 lines -->\n# {name}\n" for name in ("one", "two", "three")
    }
    write(root, files | ({"AGENTS.md": before} if before else {}))
    command = [sys.executable, "-m", "holdfast", "hot", "link", "--root", str(root), "--json"]
    processes = [
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    printed = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, printed
    for output, _ in printed:
        assert {made["what"] for made in json.loads(output)} <= {"made", "there", "changed"}
    for name in ("AGENTS.md", "CLAUDE.md"):
        text = (root / name).read_text()
        assert text.count("<!-- holdfast: begin -->") == text.count("<!-- holdfast: end -->") == 1
        assert all(text.count(path) == 1 for path in files)
    assert (root / "AGENTS.md").read_text().startswith(before or "<!-- holdfast: begin -->")
    for path in files:
        link = root / ".cursor/rules" / Path(path).with_suffix(".mdc").name
        assert link.is_symlink() and link.resolve() == root / path
    assert not list(root.rglob(".holdfast-tmp-*"))
    assert {made["what"] for made in told(root, "hot", "link")} == {"there"}


def test_a_folder_that_somebody_else_makes_at_this_moment_is_no_fault(memory: holdfast.Memory, root: Path) -> None:
    """Where nothing was when it was looked for, there is a folder when it is looked at."""
    theirs = root / ".cursor/rules"

    def make(delay: float) -> None:
        time.sleep(delay)
        theirs.mkdir(parents=True)

    with ThreadPoolExecutor(1) as pool:
        for number in range(150):
            made = pool.submit(make, number % 10 / 10_000)
            while not made.done():
                assert memory.hot.rules() == []
            made.result()
            shutil.rmtree(theirs.parent)


def test_the_root_may_stand_before_the_command_or_behind_it(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_root(str(other))
    words = ("plan", "list", "w")
    wanted = run(*words, "--root", str(tree))
    assert wanted.returncode == 0 and json.loads(wanted.stdout)["plans"][0]["name"] == "X"
    for done in (
        run("--root", str(tree), *words),
        run("--root", str(tree), *words, HOLDFAST_ROOT=str(other)),
        run("--root", str(other), *words, "--root", str(tree)),
        run(*words, HOLDFAST_ROOT=str(tree)),
    ):
        assert (done.returncode, done.stdout, done.stderr) == (0, wanted.stdout, wanted.stderr)
    assert run("--root", str(tree), "verify").returncode == 0
