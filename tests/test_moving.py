"""Transfers between files and databases: nothing is lost or doubled, and no text is replaced unnoticed."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fork_server
import holdfast
import pgserver
from holdfast.errors import AlreadyExists, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.formats import jsonl
from holdfast.memories.lint import lint
from holdfast.model.kinds import KINDS
from holdfast.model.queries import Query
from holdfast.roots import make_root
from holdfast.storage.postgres.database import READER
from killing import kills
from terminal import on_terminal

AWS = "AKIA" + "Q3EGVJ7HNK2LPT5M"
STATE = {"name": "S", "conversationContext": "c", "activeTask": "t", "activeFiles": [], "nextSteps": []}
ALPHA = {"name": "Alpha", "description": "d", "purpose": "p", "rootFolder": "alpha"}
PUSH = "with holdfast.open(sys.argv[1]) as memory: memory.push(sys.argv[2], yes=True)"


@pytest.fixture(params=["files", "database"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Another memory, on either engine."""
    if request.param == "database":
        return str(request.getfixturevalue("address"))
    make_root(str(tmp_path / "other"))
    return str(tmp_path.resolve() / "other")


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """A root of another person."""
    make_root(str(tmp_path / "second"))
    return tmp_path.resolve() / "second"


def fill(memory: holdfast.Memory) -> None:
    """Use every part of a memory: documents, entries, lines, keys, marks, large values, kept texts, runs, traces."""
    replies: list[dict[str, Any]] = []
    replies.append(memory.call("createWorkspace", ALPHA))
    note = memory.put("note", "We deploy on Tuesdays.", title="Deploys", scope="alpha")
    memory.put(id=note.id, fields={"status": "old"})
    memory.put("decision", "We keep it.", title="One database", scope="alpha")
    memory.put("lesson", "Look twice.", title="A slip")
    memory.put("plan", "First this.", title="Move house", scope="alpha")
    memory.put("episode", "x" * 20_000, session="monday", scope="alpha")
    memory.hide(memory.put("episode", "Not this one.", session="monday").id)
    memory.put("fact", "Lisbon", fields={"key": "office"}, scope="alpha")
    memory.put("fact", "Porto", fields={"key": "office"}, scope="alpha")
    memory.put("fact", "private", fields={"key": "diary"})
    memory.put("procedure", "Restart it.", fields={"when": "it hangs"})
    replies.append(memory.call("createState", STATE, {"workspaceId": "alpha", "sessionId": "s"}))
    replies.append(
        memory.call(
            "save_skill", {"name": "ship", "description": "how", "content": "Do it.", "scope": {"workspace": "alpha"}}
        )
    )
    replies.append(memory.call("memory_write", {"content": "Ada likes tea."}))
    replies.append(memory.call("cron_add", {"name": "look", "schedule": "every 3600", "message": "Look."}))
    context = {"sessionId": "s", "runId": "r"}
    replies += [
        memory.call("save_memory", {"compartment": compartment, "content": "Noted."}, context)
        for compartment in ("run", "session", "plan")
    ]
    replies.append(memory.call("memory_learn", {"key": "tea", "value": "green"}))
    assert all(reply.get("success") is not False for reply in replies), replies
    memory.put("message", "Hello there", fields={"role": "user", "channel": "c"})
    root = Path(memory.root)
    (root / "resources/workspaces/alpha/picture.png").write_bytes(b"\x89PNG\0\xff")
    (root / "agent/rules/common").mkdir(parents=True, exist_ok=True)
    (root / "agent/rules/common/style.md").write_bytes(b"# Style\r\nPlain.\r\n")
    (root / "agent-transcripts").mkdir(exist_ok=True)
    (root / "agent-transcripts/old.jsonl").write_bytes(
        b'{"role": "user", "text": "by hand"}\nnot json\n\n{"role":"user","text":"end"}'
    )


_NOT_MEMORY = (".holdfast", "user/memory/moves/", "user/memory/sessions/.claims/")


def files(root: Path) -> dict[str, bytes]:
    """The files of a memory, without derived ones, live runs, notes of moves, and copies of the current text."""
    found = {
        name: path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not (name := str(path.relative_to(root))).startswith(_NOT_MEMORY)
    }
    kept = {name for name in found if "/writes/kept/" in name}
    current = {data for name, data in found.items() if name not in kept}
    return {name: data for name, data in found.items() if name not in kept or data not in current}


def records(memory: holdfast.Memory) -> list[Any]:
    kinds = tuple(kind for kind in KINDS if kind not in ("trace", "write"))
    found = memory.every(Query(kinds=kinds, hidden=True))
    return sorted((one.id, one.text, one.time[:10], one.hidden, one.version) for one in found)


def cli(*words: str, root: Path | str, code: int = 0) -> Any:
    done = fork_server.run(
        [sys.executable, "-m", "holdfast", *words, "--root", str(root)], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done
    return json.loads(done.stdout if code == 0 or done.stdout else done.stderr)


# there and back


def test_a_memory_of_all_tools_comes_back_from_a_database_byte_by_byte(
    memory: holdfast.Memory, root: Path, address: str, tmp_path: Path
) -> None:
    fill(memory)
    memory.close()
    told = cli("push", "--to", address, "--yes", root=root)
    assert told["done"] and "refused" not in told
    assert set(told["counts"]) == {"new"}
    done = cli("export", str(tmp_path / "out"), "--from", address, root=root)
    assert "damage" not in done or all("transcripts" in one["path"] for one in done["damage"])
    here, there = files(root), files(tmp_path / "out")
    transcript = "agent-transcripts/old.jsonl"
    lines = [[jsonl.parse(line) for line in one.pop(transcript).splitlines() if line] for one in (here, there)]
    assert sorted(map(str, lines[0])) == sorted(map(str, lines[1]))
    assert {name for name in here if here[name] != there.get(name)} == set()
    assert here.keys() == there.keys()
    assert cli("verify", root=tmp_path / "out")["sound"]
    with holdfast.open(root) as one, holdfast.open(tmp_path / "out") as two, holdfast.open(address) as shared:
        assert records(one) == records(two) == records(shared)
        query = {"query": "when do we deploy"}
        assert [hit["id"] for hit in one.call("recall", query)["hits"]] == [
            hit["id"] for hit in shared.call("recall", query)["hits"]
        ]
        note = next(hit.record for hit in two.find("deploy"))
        assert [version.writer for version in one.versions(note.id)] == [v.writer for v in two.versions(note.id)]
        two.undo(note.id)
        assert "status" not in two.get(note.id).fields


def test_a_pull_fills_an_empty_memory(memory: holdfast.Memory, other: str, second: Path) -> None:
    fill(memory)
    memory.push(other, yes=True)
    done = cli("pull", "--from", other, root=second)
    assert set(done["counts"]) == {"new"}
    with holdfast.open(second) as two:
        assert records(two) == records(memory)
        assert two.verify().differences == []


def test_moving_again_does_nothing(memory: holdfast.Memory, root: Path, other: str) -> None:
    fill(memory)
    memory.push(other, yes=True)
    before = files(root)
    with holdfast.open(other) as there:
        held = dict(there.tree.walk("user", ("",), lambda _p, _w: None))
    for move in (memory.push, memory.pull, memory.push):
        done = move(other, yes=True)
        assert done.nothing, done
        assert not done.refused
    assert files(root) == before
    with holdfast.open(other) as there:
        assert dict(there.tree.walk("user", ("",), lambda _p, _w: None)) == held


def test_what_is_new_on_both_sides_comes_to_both(memory: holdfast.Memory, other: str, second: Path) -> None:
    with holdfast.open(second) as two:
        for one, name in ((memory, "ann"), (two, "bob")):
            one.put("note", f"Of {name}.", title=f"Note of {name}")
            one.put("fact", name, fields={"key": name})
            one.put("episode", f"{name} was here", session="s")
            one.put("decision", f"{name} decides.", title=f"Choice of {name}")
            one.push(other, yes=True)
        for one in (memory, two, memory):
            one.pull(other, yes=True)
            one.push(other, yes=True)
        assert records(memory) == records(two)
        for one in (memory, two):
            assert len(one.find("decides", kinds=("decision",))) == 2
            assert one.find(kinds=("fact",)).hits.__len__() == 2


def test_messages_of_two_machines_stay_in_the_order_of_time(memory: holdfast.Memory, other: str, second: Path) -> None:
    with holdfast.open(second) as two:
        said = {}
        for number in range(6):
            one = (memory, two)[number % 2]
            said[one.put("message", f"number {number}", fields={"role": "user", "channel": "c"}).id] = (
                f"number {number}"
            )
        memory.push(other, yes=True)
        two.push(other, yes=True)
        two.pull(other, yes=True)
        memory.pull(other, yes=True)
        for one in (memory, two):
            assert [each.content for each in one.chat.load_history(10)] == [said[each] for each in sorted(said)]
            assert one.verify().sound
        assert memory.push(other, yes=True).nothing
        assert two.push(other, yes=True).nothing


# what changed on one side, or on both


def test_a_change_here_goes_there_and_the_old_text_is_kept(memory: holdfast.Memory, other: str) -> None:
    note = memory.put("note", "First.", title="N")
    memory.push(other, yes=True)
    memory.put(id=note.id, text="Second.", expect=memory.get(note.id).version)
    done = memory.push(other, yes=True)
    assert done.counts["changed"].files == 1
    with holdfast.open(other) as there:
        assert there.get(note.id).text == "Second."
        there.undo(note.id)
        assert there.get(note.id).text == "First."


def test_a_change_there_is_left_alone_by_a_push_and_fetched_by_a_pull(memory: holdfast.Memory, other: str) -> None:
    note = memory.put("note", "First.", title="N")
    memory.push(other, yes=True)
    with holdfast.open(other) as there:
        there.put(id=note.id, text="Theirs.", expect=there.get(note.id).version)
    done = memory.push(other, yes=True)
    assert done.counts["newer"].files == 1 and done.nothing
    assert memory.pull(other, yes=True).counts["changed"].files == 1
    assert memory.get(note.id).text == "Theirs."


def test_of_a_conflict_both_versions_are_kept_and_found(
    memory: holdfast.Memory, root: Path, other: str, second: Path
) -> None:
    note = memory.put("note", "Begin.", title="N")
    memory.push(other, yes=True)
    with holdfast.open(second) as two:
        two.pull(other, yes=True)
        two.put(id=note.id, text="Apricots of Bob.", expect=two.get(note.id).version)
        two.push(other, yes=True)
    memory.put(id=note.id, text="Apricots of Ann.", expect=memory.get(note.id).version)
    told = memory.push(other)
    assert [step.path for step in told.conflicts] == [note.id]
    done = memory.push(other, yes=True)
    beside = done.conflicts[0].beside
    assert ".conflict-" in beside
    with holdfast.open(other) as there:
        assert there.get(note.id).text == "Apricots of Bob."
        assert there.get(beside).text == "Apricots of Ann."
        assert {hit.record.id for hit in there.find("apricots")} == {note.id, beside}
        assert [fault.path for fault in lint(there).faults if fault.rule == "conflict"] == [beside]
    assert memory.push(other, yes=True).nothing
    assert memory.get(note.id).text == "Apricots of Ann."
    with holdfast.open(second) as two:
        for one in (memory, two):  # now all have the same pair
            one.pull(other, yes=True)
            assert (one.get(note.id).text, one.get(beside).text) == ("Apricots of Bob.", "Apricots of Ann.")
            one.push(other, yes=True)  # the text that was replaced here, which is kept
            assert one.push(other, yes=True).nothing and one.pull(other, yes=True).nothing
    memory.put(id=note.id, text="Apricots of both.", expect=memory.get(note.id).version)
    assert memory.push(other, yes=True).counts["changed"].files == 1
    with holdfast.open(other) as there:
        assert there.get(note.id).text == "Apricots of both."


def test_of_a_conflict_that_a_pull_finds_ours_stays_and_theirs_is_put_beside_it(
    memory: holdfast.Memory, root: Path, other: str
) -> None:
    note = memory.put("note", "Begin.", title="N")
    memory.push(other, yes=True)
    with holdfast.open(other) as there:
        there.put(id=note.id, text="Theirs.", expect=there.get(note.id).version)
    memory.put(id=note.id, text="Ours.", expect=memory.get(note.id).version)
    shown = on_terminal("pull", "--from", other, "--dry-run", root=root)
    assert "ours stays" in shown and "theirs goes to" in shown and "ours goes to" not in shown
    beside = memory.pull(other, yes=True).conflicts[0].beside
    assert (memory.get(note.id).text, memory.get(beside).text) == ("Ours.", "Theirs.")
    assert memory.pull(other, yes=True).nothing
    memory.push(other, yes=True)
    with holdfast.open(other) as there:
        assert (there.get(note.id).text, there.get(beside).text) == ("Ours.", "Theirs.")
    memory.pull(other, yes=True)  # the text that was replaced there, which is kept
    assert memory.pull(other, yes=True).nothing and memory.push(other, yes=True).nothing


def test_without_a_common_version_every_difference_is_a_conflict(
    memory: holdfast.Memory, other: str, second: Path
) -> None:
    with holdfast.open(second) as two:
        for one, text in ((memory, "Ann's."), (two, "Bob's.")):
            one.put("overview", title="Alpha")
            where = one.layout.overview("alpha")
            one.put(id=where, text=text, expect=one.get(where).version)
        memory.push(other, yes=True)
        assert len(two.push(other, yes=True).conflicts) == 1
    with holdfast.open(other) as there:
        assert there.get(where).text == "Ann's."


def test_entries_of_a_page_are_put_together_and_two_of_one_heading_are_both_kept(
    memory: holdfast.Memory, other: str, second: Path
) -> None:
    with holdfast.open(second, writer="bob") as two:
        for one, name in ((memory, "Ann"), (two, "Bob")):
            one.put("decision", f"{name} says so.", title="The same title")
            one.put("decision", f"Only {name}.", title=f"Of {name}")
        memory.push(other, yes=True)
        done = two.push(other, yes=True)
        assert done.counts["merged"].files == 1 and not done.conflicts
        assert two.push(other, yes=True).nothing
        with holdfast.open(other) as there:
            titles = [one.title for one in there.every(Query(kinds=("decision",)))]
            assert len(titles) == 4
            assert sum(title.startswith("The same title") for title in titles) == 2
        two.pull(other, yes=True)
        memory.pull(other, yes=True)
        assert records(two) == records(memory)
        assert memory.push(other, yes=True).nothing


def test_a_page_that_cannot_be_put_together_is_kept_beside_the_other(
    memory: holdfast.Memory, root: Path, other: str, second: Path
) -> None:
    page = "user/memory/workspaces/default/decisions.md"
    memory.put("decision", "Ann's.", title="A")
    memory.push(other, yes=True)
    with holdfast.open(second) as two:
        two.put("decision", "Bob's.", title="B")
        broken = (second / page).read_bytes() + b"<<<<<<< ours\nx\n=======\ny\n>>>>>>> theirs\n"
        (second / page).write_bytes(broken)
        assert [step.path for step in two.push(other).conflicts] == [page]
        done = two.push(other, yes=True)
        assert [step.path for step in done.conflicts] == [page]
        beside = done.conflicts[0].beside
        assert two.push(other, yes=True).nothing
    with holdfast.open(other) as there:
        assert there.tree.read(beside).data == broken
        assert there.tree.read(page).data == (root / page).read_bytes()


def test_what_was_removed_there_does_not_come_back_and_nothing_is_removed_here(
    memory: holdfast.Memory, root: Path, other: str
) -> None:
    note = memory.put("note", "First.", title="N")
    memory.push(other, yes=True)
    with holdfast.open(other) as there:
        there.tree.remove(note.path)
    done = memory.push(other, yes=True)
    assert done.counts["gone"].files == 1
    memory.pull(other, yes=True)
    assert (root / note.path).exists()
    (root / note.path).unlink()
    with holdfast.open(other) as there:
        assert there.tree.stat(note.path) is None


@pytest.mark.parametrize("remembers", [True, False])
def test_what_was_forgotten_here_is_not_pulled_again(memory: holdfast.Memory, other: str, remembers: bool) -> None:
    note = memory.put("note", "A secret apricot orchard.", title="Orchard")
    line = memory.put("episode", "The apricot was eaten " * 1000, session="s")
    memory.put("decision", "No apricot in it.", title="Keep")
    entry = memory.put("decision", "An apricot a day.", title="Fruit")
    memory.push(other, yes=True)
    memory.forget(note.id, line.id, entry.id, yes=True, count=3)
    with holdfast.open(other) as there:
        there.put("decision", "Pears.", title="More")
    if not remembers:
        shutil.rmtree(Path(memory.root) / "user/memory/moves")
    done = memory.pull(other, yes=True)
    assert done.counts["gone" if remembers else "forgotten"].files >= 2
    text = b"".join(files(Path(memory.root)).values())
    assert b"apricot orchard" not in text and b"was eaten" not in text and b"a day" not in text
    assert b"Pears." in text


# a scope


def test_a_promoted_workspace_is_found_by_others_and_nothing_else_is_there(
    memory: holdfast.Memory, other: str, second: Path
) -> None:
    fill(memory)
    before = memory.push(other, scope="Alpha")
    assert before.scope == "alpha" and not before.done
    done = cli("push", "--to", other, "--scope", "alpha", "--yes", root=memory.root)
    assert done["done"]
    cli("pull", "--from", other, "--scope", "alpha", root=second)
    for place in (other, str(second)):
        with holdfast.open(place) as there:
            assert {hit.record.kind for hit in there.find("database", kinds=("decision",))} == {"decision"}
            assert there.get(memory.find("deploy", kinds=("note",)).hits[0].record.id).title == "Deploys"
            assert there.call("loadState", {"name": "S"}, {"workspaceId": "alpha", "sessionId": "x"})["success"]
            assert there.current(KINDS["fact"], "office").text == "Porto"  # type: ignore[union-attr]
            assert [one.text[:3] for one in there.every(Query(kinds=("episode",)))] == ["xxx"]
            assert there.current(KINDS["fact"], "diary") is None
            assert not there.find("hello there") and not there.find("tea")
            assert not there.tree.stat("user/memory/history.jsonl")
            assert there.verify().sound
    assert memory.push(other, scope="alpha", yes=True).nothing


def test_who_wrote_it_stays_its_author(root: Path, other: str) -> None:
    with holdfast.open(root, writer="robot") as memory:
        memory.put("overview", title="Alpha")
        memory.put("decision", "We keep it.", title="One database", scope="alpha")
        note = memory.put("note", "We deploy.", title="Deploys", scope="alpha")
    cli("push", "--to", other, "--scope", "alpha", "--yes", root=root)
    with holdfast.open(other) as there:
        hits = there.call("recall", {"query": "database deploy"})["hits"]
        assert {(hit["by"], hit["trust"]) for hit in hits} == {("robot", "agent")}
        assert [one.writer for one in there.versions(note.id)] == ["robot"]


# secrets


def test_a_secret_does_not_move_and_the_rest_does(root: Path, other: str) -> None:
    with holdfast.open(root) as memory:
        memory.put("note", "Harmless.", title="Good")
        bad = root / "resources/workspaces/default/_notes/by-hand.md"
        bad.write_text(f"The key is {AWS}.\n")
        log = root / "user/memory/semantic.jsonl"
        memory.put("fact", "fine", fields={"key": "one"})
        log.write_text(log.read_text() + f'{{"key":"aws","value":"{AWS}"}}\n' + '{"key":"two","value":"fine"}\n')
        history = root / "user/memory/history.jsonl"
        history.write_text(f'{{"role":"user","content":"it is {AWS}","timestamp":"2026-01-01T00:00:00Z"}}\n')
    planned = cli("push", "--to", other, "--dry-run", root=root)
    told = cli("push", "--to", other, "--yes", root=root, code=1)
    assert {problem["path"] for problem in told["refused"]} == {
        "resources/workspaces/default/_notes/by-hand.md", "user/memory/semantic.jsonl",
    }  # fmt: skip
    assert AWS not in json.dumps(told)
    assert (planned["refused"], planned["counts"]) == (told["refused"], told["counts"])
    with holdfast.open(other) as there:
        assert there.find("harmless")
        assert {one.title for one in there.every(Query(kinds=("fact",)))} == {"one", "two"}
        assert "removed]" in there.chat.load_history(1)[0].content
        for path, _ in there.tree.walk("user", ("",), lambda _p, _w: None):
            assert AWS.encode() not in there.tree.read(path).data
    again = cli("push", "--to", other, "--yes", root=root, code=1)
    assert again["refused"] == told["refused"]
    assert again["counts"].keys() == {"same"}


# interrupted


def test_a_push_that_was_killed_is_finished_by_another(root: Path, other: str) -> None:
    with holdfast.open(root) as memory:
        for number in range(60):
            memory.put("message", f"number {number} " + "x" * 20_000, fields={"role": "user", "channel": "c"})
            memory.put("note", f"Note {number} " + "y" * 3000, title=f"n{number}")
        memory.put("decision", "Kept.", title="D")
        wanted = records(memory)
        killed = list(kills(PUSH, [(str(root), other)] * 8, 1.0, 7))
        done = memory.push(other, yes=True)
        assert not done.refused and not done.conflicts
        assert memory.push(other, yes=True).nothing
    assert any(killed), "no push was killed in time"
    with holdfast.open(other) as there:
        assert records(there) == wanted
        ids = [key for line in there.tree.scan("user/memory/history.jsonl") for key in jsonl.keys(line.data)]
        assert len(ids) == len(set(ids)) == 60


# asking first


def test_a_push_is_shown_first_and_asked_for(root: Path, other: str) -> None:
    with holdfast.open(root) as memory:
        memory.put("note", "We deploy.", title="Deploys")
    shown = on_terminal("push", "--to", other, "--dry-run", root=root)
    assert "new" in shown and "not there yet" in shown and "Nothing was written." in shown
    told = cli("push", "--to", other, root=root, code=2)
    assert "--yes" in told["error"]
    on_terminal("push", "--to", other, root=root, typed="n\n", code=130)
    with holdfast.open(other) as there:
        assert not there.find("deploy")
    shown = on_terminal("push", "--to", other, root=root, typed="y\n")
    assert "records copied" in shown
    with holdfast.open(other) as there:
        assert there.find("deploy")
    assert "nothing to copy" in on_terminal("push", "--to", other, root=root)


def test_an_export_is_previewed_in_the_same_words(root: Path, tmp_path: Path) -> None:
    with holdfast.open(root) as memory:
        memory.put("note", "We deploy.", title="Deploys")
    shown = on_terminal("export", str(tmp_path / "copy"), "--dry-run", root=root)
    assert "new" in shown and "not there yet" in shown and "Nothing was written." in shown
    told = cli("export", str(tmp_path / "copy"), "--preview", root=root)
    assert told["counts"]["new"]["files"] >= 2
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("name", ["copy.tar.gz", "copy"])
def test_a_backup_can_be_pulled_into_a_memory_that_is_in_use(root: Path, tmp_path: Path, name: str) -> None:
    log = root / "user/memory/semantic.jsonl"
    with holdfast.open(root) as memory:
        changed, gone = memory.put("note", "One.", title="Changed"), memory.put("note", "Lost.", title="Gone")
        memory.put("decision", "We keep it.", title="One database")
        memory.put("fact", "Lisbon", fields={"key": "office"})
        memory.backup(tmp_path / name)
        memory.replace(changed.path, b"# Changed\n\nTwo.\n", memory.tree.read(changed.path).version)
        memory.put("decision", "Later.", title="Another")
        memory.put("fact", "Porto", fields={"key": "office"})
    (root / gone.path).unlink()
    log.write_text(log.read_text().partition("\n")[2])
    shown = on_terminal("pull", "--from", str(tmp_path / name), "--preview", root=root)
    assert f"{tmp_path / name} → " in shown and "newer" in shown and "merged" not in shown and "conflict" not in shown
    told = cli("pull", "--from", str(tmp_path / name), root=root)
    assert told["done"] and told["source"] == str(tmp_path / name) and not told.get("refused")
    with holdfast.open(root) as memory:
        assert memory.get(changed.id).text.endswith("Two.")
        assert memory.get(gone.id).text == "Lost."
        assert {one.title for one in memory.every(Query(kinds=("decision",)))} == {"One database", "Another"}
        assert [one.text for one in memory.history(KINDS["fact"], "office")] == ["Lisbon", "Porto"]
        assert memory.pull(str(tmp_path / name)).nothing
        assert memory.verify().sound


# bad input


def refused(kind: type[HoldfastError], work: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        work()
    assert caught.value.next_step
    return str(caught.value)


def test_what_cannot_be_meant_is_refused(memory: holdfast.Memory, root: Path, tmp_path: Path) -> None:
    memory.put("note", "x", title="x")
    assert "[shared]" in refused(Invalid, lambda: memory.push(yes=True))
    assert "the same memory" in refused(Invalid, lambda: memory.push(str(root), yes=True))
    assert "does not exist" in refused(Unavailable, lambda: memory.push(str(tmp_path / "nowhere")))
    refused(Unavailable, lambda: memory.push("postgresql://nobody@127.0.0.1:1/x?connect_timeout=2"))
    make_root(str(tmp_path / "third"))
    refused(NotFound, lambda: memory.push(str(tmp_path / "third"), scope="no-such-workspace"))
    (tmp_path / "third/holdfast.toml").write_text('[paths]\nmemory = "mem"\n')
    assert "paths.memory" in refused(Invalid, lambda: memory.push(str(tmp_path / "third")))
    refused(AlreadyExists, lambda: memory.export(tmp_path / "third"))
    refused(Unavailable, lambda: memory.export(tmp_path / "no/such/folder"))


def test_a_login_that_may_only_read_can_pull_and_not_push(
    memory: holdfast.Memory, server: pgserver.Server, database: str, second: Path
) -> None:
    tenant, login = f"t{secrets.token_hex(6)}", f"reader_{secrets.token_hex(4)}"
    mine = server.at(database, tenant=tenant)
    memory.put("note", "We deploy.", title="Deploys")
    memory.push(mine, yes=True)
    server.run(f"CREATE ROLE {login} LOGIN PASSWORD 'only-to-read'")
    server.run(f"GRANT {READER} TO {login}")
    try:
        theirs = server.at(database, user=login, password="only-to-read", tenant=tenant)
        with holdfast.open(second) as two:
            two.pull(theirs, yes=True)
            assert two.find("deploy")
            two.put("note", "More.", title="More")
            assert "does not allow" in refused(Unavailable, lambda: two.push(theirs, yes=True))
        with holdfast.open(mine) as there:
            assert not there.find("more")
    finally:
        server.run(f"DROP ROLE {login}")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write to everything")
def test_a_folder_that_cannot_be_written_to_is_told(memory: holdfast.Memory, second: Path) -> None:
    memory.put("note", "x", title="x")
    os.chmod(second / "resources/workspaces", 0o500)
    try:
        refused(Unavailable, lambda: memory.push(str(second), yes=True))
    finally:
        os.chmod(second / "resources/workspaces", 0o700)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_what_cannot_be_read_is_told_and_the_rest_moves(memory: holdfast.Memory, root: Path, other: str) -> None:
    note, more = memory.put("note", "x", title="x"), memory.put("note", "Readable.", title="y")
    os.chmod(root / note.path, 0)
    done = memory.push(other, yes=True)
    assert [problem.path for problem in done.refused] == [note.path]
    with holdfast.open(other) as there:
        assert there.get(more.id).text == "Readable."


def test_others_write_while_it_moves(root: Path, other: str) -> None:
    """Changes during a transfer are kept on both sides; the next push transfers the rest."""
    code = """
import time
with holdfast.open(sys.argv[1]) as memory:
    for number in range(40):
        memory.put("episode", f"{sys.argv[2]} {number}", session="s")
        memory.put("note", f"{sys.argv[2]} {number}", title=f"{sys.argv[2]} {number}")
"""
    from killing import work

    with holdfast.open(root) as memory:
        memory.put("episode", "the first", session="s")
        with contextlib.ExitStack() as running:
            writers = [
                running.enter_context(work(code, place, name))
                for place, name in ((str(root), "here"), (other, "there"))
            ]
            while any(writer.poll() is None for writer in writers):
                memory.push(other, yes=True)
        memory.push(other, yes=True)
        memory.pull(other, yes=True)
        with holdfast.open(other) as there:
            for one in (memory, there):
                said = [found.text for found in one.every(Query(kinds=("episode",)))]
                assert len(said) == len(set(said)) == 81
                assert len(one.every(Query(kinds=("note",)))) == 80
                assert one.verify().sound


def test_an_export_of_nothing_or_into_the_memory_itself_is_refused(root: Path, address: str, tmp_path: Path) -> None:
    told = cli("export", str(tmp_path / "copy"), "--from", address, root=root, code=3)
    assert told["error"].startswith("There is nothing at ") and not (tmp_path / "copy").exists()
    told = cli("export", str(root / "copy"), root=root, code=2)
    assert "inside the memory itself" in told["error"] and not (root / "copy").exists()


def test_a_save_point_that_is_archived_stays_so(root: Path, other: str) -> None:
    state = {"conversationContext": "c", "activeTask": "t", "activeFiles": [], "nextSteps": []}
    with holdfast.open(root) as memory:
        for name in ("Kept", "Archived"):
            assert memory.call("createState", {"name": name, **state})["success"]
        assert memory.call("archiveState", {"name": "Archived"})["success"]
        memory.push(other, yes=True)
    with holdfast.open(other) as there:
        assert [each["name"] for each in there.call("listStates", {})["data"]] == ["Kept"]
