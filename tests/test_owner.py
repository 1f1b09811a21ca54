"""The owner's commands: history, undo, warnings about missing files; they never guess."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import fork_server
import holdfast
from holdfast.errors import Invalid, NotFound
from holdfast.model.queries import Query
from holdfast.roots import make_root
from terminal import on_terminal


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# history and undo


def test_the_history_of_a_document_tells_each_version_and_who_made_it(root: Path) -> None:
    with holdfast.open(root, writer="alice") as alice, holdfast.open(root, writer="bob") as bob:
        note = alice.put("note", "First.", title="N", op_id="op-1")
        first = alice.get(note.id).version
        bob.put(id=note.id, text="Second.", expect=first)
        file = root / note.path
        file.write_text(file.read_text() + "By hand.\n")
        alice.put(id=note.id, fields={"status": "x"})
        alice.undo(note.id)
        found = alice.versions(note.id)
        assert [(one.what, one.writer) for one in found] == [
            ("made", "alice"), ("changed", "bob"), ("by hand", ""), ("changed", "alice"), ("undone", "alice"),
        ]  # fmt: skip
        assert found[0].op == "op-1"
        assert [one.current for one in found] == [False, False, False, False, True]
        assert alice.text_at(note.id, found[0].version[:8]).endswith("First.\n")
        assert alice.text_at(note.id, found[-1].version).endswith("By hand.\n")
        file.write_text("All anew.\n")
        assert alice.versions(note.id)[-1].what == "by hand"
        with pytest.raises(NotFound):
            alice.text_at(note.id, "ffffffff")
        with pytest.raises(NotFound):
            alice.versions("resources/workspaces/default/_notes/never-was.md")


def renamed(root: Path, old: str, new: str) -> str:
    """Rename a file as a person does, without Holdfast."""
    (root / new).write_bytes((root / old).read_bytes())
    (root / old).unlink()
    return new


def test_a_file_that_its_owner_renames_keeps_its_history(root: Path) -> None:
    with holdfast.open(root, writer="alice") as alice, holdfast.open(root, writer="bob") as bob:
        note = alice.put("note", "First.", title="N")
        bob.put(id=note.id, text="Second.", expect=alice.get(note.id).version)
        folder = note.path.rpartition("/")[0]
        second = renamed(root, note.path, f"{folder}/second.md")
        found = alice.versions(second)
        assert [(one.what, one.writer, one.path) for one in found] == [
            ("made", "alice", ""), ("changed", "bob", ""), ("renamed", "", note.path),
        ]  # fmt: skip
        assert [one.current for one in found] == [False, False, True]
        assert "First." in alice.text_at(second, found[0].version)
        alice.put(id=second, text="Third.", expect=alice.get(second).version)
        third = renamed(root, second, f"{folder}/third.md")
        found = alice.versions(third)
        assert [one.what for one in found] == ["made", "changed", "renamed", "changed", "renamed"]
        assert [one.path for one in found if one.what == "renamed"] == [note.path, second]
        for text in ("Second.", "First."):
            alice.undo(third)
            assert alice.get(third).text == text
        assert alice.versions(third)[-1].what == "undone"


def test_a_rename_with_two_possible_sources_has_no_history(root: Path) -> None:
    with holdfast.open(root) as memory:
        notes = [memory.put("note", "Same.", title=title) for title in ("A", "B", "C")]
        texts = ["---\nname: Same\n---\n\nSame.\n"] * 2 + ["---\nname: Other\n---\n\nOther.\n"]
        for note, text in zip(notes, texts, strict=True):
            memory.replace(note.path, text.encode(), memory.get(note.id).version)
        folder = notes[0].path.rpartition("/")[0]
        (root / notes[1].path).unlink()
        new = renamed(root, notes[0].path, f"{folder}/new.md")
        assert [one.what for one in memory.versions(new)] == ["by hand"], "either may be the one"
        (root / folder / "copy.md").write_bytes((root / notes[2].path).read_bytes())
        assert [one.what for one in memory.versions(f"{folder}/copy.md")] == ["by hand"], "a copy is not renamed"
        memory.undo(memory.put("note", "Gone.", title="D").id)
        (root / folder / "back.md").write_text("---\nname: D\n---\n\nGone.\n")
        assert [one.what for one in memory.versions(f"{folder}/back.md")] == ["by hand"], "it was removed, not renamed"


def test_the_text_before_a_change_by_hand_is_kept_and_can_be_restored(memory: holdfast.Memory, root: Path) -> None:
    note = memory.put("note", "First.", title="N")
    file = root / note.path
    file.write_text("By hand.\n")
    found = memory.versions(note.id)
    assert [(one.what, one.kept, one.current) for one in found] == [("made", True, False), ("by hand", True, True)]
    assert "First." in memory.text_at(note.id, found[0].version)
    with pytest.raises(Invalid, match="changed by hand since") as refused:
        memory.undo(note.id)
    assert f"holdfast undo {note.id} --to {found[0].version[:8]}" in refused.value.next_step
    memory.undo(note.id, to=found[0].version[:8], op_id="back")
    assert memory.undo(note.id, to=found[0].version[:8], op_id="back").status == "repeated"
    assert memory.get(note.id).text == "First."
    assert memory.versions(note.id)[-1].reason == f"version {found[0].version[:8]}"
    memory.undo(note.id)
    assert file.read_text() == "By hand.\n", "what was restored can be undone"
    file.unlink()
    memory.undo(note.id, to=found[0].version)
    assert memory.get(note.id).text == "First.", "a document that was removed by hand comes back too"
    with pytest.raises(NotFound, match="no version"):
        memory.undo(note.id, to="ffffffff")
    with pytest.raises(Invalid, match="whole document"):
        memory.undo(memory.put("episode", "x", session="s").id, to=found[0].version)


def test_an_unfinished_copy_of_a_text_is_not_called_damaged(memory: holdfast.Memory, root: Path) -> None:
    """After a power cut, the copy of the newest text may be empty: it is not synced."""
    note = memory.put("note", "First.", title="N")
    first = memory.get(note.id).version
    copy = root / "user/memory/writes/kept" / first
    assert "First." in copy.read_text()
    copy.write_bytes(b"")
    (root / note.path).write_text("By hand.\n")
    assert [(one.kept, one.damaged) for one in memory.versions(note.id)] == [(False, False), (True, False)]
    assert memory.verify().sound
    copy.unlink()
    other = memory.put("note", "Other.", title="O")
    copy = root / "user/memory/writes/kept" / memory.get(other.id).version
    copy.write_bytes(copy.read_bytes()[:4])
    memory.put(id=other.id, text="New.", expect=memory.get(other.id).version)
    assert "Other." in copy.read_text(), "a write completes it"


def test_the_command_shows_where_a_file_was_and_goes_back_to_a_version(root: Path) -> None:
    with holdfast.open(root) as memory:
        note = memory.put("note", "First.", title="N")
    new = renamed(root, note.path, f"{note.path.rpartition('/')[0]}/new.md")
    shown = on_terminal("history", new, root=root, columns=240)
    assert "renamed" in shown and f"from {note.path}" in shown
    (version,) = {word for word in shown.split() if len(word) == 32}
    with holdfast.open(root) as memory:
        memory.put(id=new, text="Second.", expect=version)
    (root / new).write_text("By hand.\n")
    assert f"changed: {new}" in on_terminal("undo", new, "--to", version[:8], root=root)
    assert "First." in (root / new).read_text()


def test_the_history_of_a_key_and_of_a_line_has_their_marks(root: Path) -> None:
    with holdfast.open(root, writer="alice") as alice, holdfast.open(root, writer="bob") as bob:
        alice.put("fact", "Lisbon", fields={"key": "office"})
        fact = bob.put("fact", "Porto", fields={"key": "office"})
        assert [(one.what, one.writer) for one in alice.versions(fact.id)] == [("made", "alice"), ("changed", "bob")]
        line = alice.put("episode", "It rained.", session="s")
        bob.hide(line.id)
        alice.hide(line.id, restore=True)
        told = [(one.what, one.writer) for one in alice.versions(line.id)]
        assert told == [("made", "alice"), ("hidden", "bob"), ("shown", "alice")]


def test_undoing_what_made_a_document_takes_it_away_and_keeps_its_text(memory: holdfast.Memory, root: Path) -> None:
    note = memory.put("note", "First.", title="N")
    made = memory.versions(note.id)[0].version
    assert memory.undo(note.id, op_id="u").status == "removed"
    assert memory.undo(note.id, op_id="u").status == "repeated"
    assert not (root / note.path).exists()
    assert "First." in memory.text_at(note.id, made)
    with pytest.raises(Invalid, match="not undone"):
        memory.undo(memory.put("episode", "x", session="s").id)


def test_history_and_undo_on_a_terminal(root: Path) -> None:
    with holdfast.open(root, writer="alice") as memory:
        note = memory.put("note", "First.", title="N")
        memory.put(id=note.id, text="Second.", expect=memory.get(note.id).version)
        versions = memory.versions(note.id)
    shown = on_terminal("history", note.id, root=root)
    assert versions[0].version in shown
    assert "alice" in shown
    assert "current" in shown
    assert "First." in on_terminal("history", note.id, "--version", versions[0].version[:6], root=root)
    assert f"changed: {note.id}" in on_terminal("undo", note.id, "--op-id", "u1", root=root)
    assert f"repeated: {note.id}" in on_terminal("undo", note.id, "--op-id", "u1", root=root)
    assert "First." in (root / note.path).read_text()


# rollback


@pytest.fixture
def mixed(root: Path) -> dict[str, str]:
    """Records by alice and by mallory in the same places."""
    with holdfast.open(root, writer="alice") as alice, holdfast.open(root, writer="mallory") as mallory:
        found = {"over": alice.put("note", "Alice's text.", title="Over").id}
        mallory.put(id=found["over"], text="Mallory's text.", expect=alice.get(found["over"]).version)
        found["both"] = alice.put("note", "Alice's text.", title="Both").id
        mallory.put(id=found["both"], fields={"x": "1"})
        alice.put(id=found["both"], fields={"y": "1"})
        found["new"] = mallory.put("note", "Only mallory's.", title="New").id
        alice.put("decision", "A good one.", title="Good")
        found["decision"] = mallory.put("decision", "A bad one.", title="Bad").id
        alice.put("fact", "Lisbon", fields={"key": "office"})
        mallory.put("fact", "Mars", fields={"key": "office"})
        mallory.put("fact", "evil", fields={"key": "only"})
        kept = alice.put("episode", "It was fine.", session="s").id
        found["line"] = mallory.put("episode", "It was poisoned.", session="s").id
        mallory.hide(kept)
        alice.mind("s").compact("episodic", keep_last=0)
        for number in range(60):
            alice.put("episode", f"Other {number}.", session="t")
    return found


def state(memory: holdfast.Memory) -> list[tuple[str, str]]:
    return sorted((record.path, record.text) for record in memory.every(Query()))


def test_a_rollback_reverts_only_the_named_writer(memory: holdfast.Memory, root: Path, mixed: dict[str, str]) -> None:
    before = state(memory)
    plan = memory.rollback("mallory")
    assert state(memory) == before
    with pytest.raises(Invalid, match=f"--count {plan.count}"):
        memory.rollback("mallory", yes=True)
    done = memory.rollback("mallory", yes=True, count=plan.count)
    assert [(step.id, step.conflict) for step in done.conflicts] == [(mixed["both"], "alice wrote it since")]
    assert memory.get(mixed["over"]).text == "Alice's text."
    assert not (root / mixed["new"]).exists()
    assert memory.get(mixed["decision"]).hidden
    assert memory.get(mixed["line"]).hidden
    assert {record.title: record.text for record in memory.tail("fact")} == {"office": "Lisbon"}
    assert [record.text for record in memory.tail("episode", session="s")] == ["It was fine."]
    assert memory.every(Query(kinds=("summary",))) == []
    assert [step.derived for step in done.steps].count(True) == 1
    assert memory.rollback("mallory").count == 0
    assert memory.verify().sound


def test_what_cannot_be_meant_is_refused(memory: holdfast.Memory) -> None:
    memory.put("decision", "We need it.", title="Alpha")
    with pytest.raises(Invalid, match="as a whole"):
        memory.rollback("somebody", back="01a1e35f-2e32-7d4a-8d18-f770d9eb2550")
    page = memory.find("need").hits[0].record.path
    assert memory.versions(page)
    with pytest.raises(NotFound):
        memory.versions(f"{page}#nope")


def test_a_rollback_can_be_undone(memory: holdfast.Memory, mixed: dict[str, str]) -> None:
    before = state(memory)
    done = memory.rollback("mallory", yes=True, count=memory.rollback("mallory").count)
    assert state(memory) != before
    back = memory.rollback(back=done.id)
    assert back.conflicts == []
    assert state(memory) == before
    assert memory.get(mixed["over"]).text == "Mallory's text."
    assert memory.verify().sound
    with pytest.raises(NotFound):
        memory.rollback(back="no-such-id")


def test_taking_a_rollback_back_leaves_what_was_said_since(memory: holdfast.Memory, root: Path) -> None:
    memory.put("fact", "blue", fields={"key": "shed"})
    with holdfast.open(root, writer="mallory") as other:
        other.put("fact", "crimson", fields={"key": "shed"})
        line = other.put("episode", "Mallory was here.", session="s").id
    done = memory.rollback("mallory", yes=True, count=2)
    memory.hide(line, restore=True)
    memory.hide(line)
    memory.put("fact", "green", fields={"key": "shed"})
    back = memory.rollback(back=done.id)
    assert (back.steps, {step.conflict for step in back.conflicts}) == ([], {"it was changed since"})
    assert [record.text for record in memory.tail("fact")] == ["green"]
    assert memory.get(line).hidden


def test_an_entry_is_not_undone_by_what_was_done_to_another(memory: holdfast.Memory) -> None:
    one = memory.put("decision", "The first.", title="One").id
    two = memory.put("decision", "The second.", title="Two").id
    with pytest.raises(NotFound, match="Entries were only added to it"):
        memory.undo(one.partition("#")[0])
    memory.hide(one)
    with pytest.raises(Invalid, match="no earlier text"):
        memory.undo(two)
    assert memory.get(one).hidden
    memory.undo(one.partition("#")[0])
    assert not memory.get(one).hidden


def test_a_rollback_is_taken_back_once(memory: holdfast.Memory, root: Path, mixed: dict[str, str]) -> None:
    done = memory.rollback("mallory", yes=True, count=memory.rollback("mallory").count)
    memory.close()
    assert "the rollback was undone." in on_terminal("rollback", "--back", done.id, root=root)
    again = on_terminal("rollback", "--back", done.id, root=root)
    assert "There is nothing to undo." in again
    assert "Undo it with" not in again


def test_what_a_person_changed_since_is_left_and_a_wrong_name_lists_the_writers(
    memory: holdfast.Memory, root: Path, mixed: dict[str, str]
) -> None:
    (root / mixed["over"]).write_text("By hand.\n")
    conflicts = {step.id: step.conflict for step in memory.rollback("mallory").conflicts}
    assert conflicts[mixed["over"]] == "it was changed by hand since"
    assert memory.rollback("mallory", since="2100-01-01").count == 0
    with pytest.raises(NotFound, match="alice, mallory"):
        memory.rollback("malory")
    shown = on_terminal("rollback", "--writer", "mallory", root=root)
    assert "would be undone; nothing was changed." in shown
    assert "left as it is" in shown


# much that vanishes


def test_mass_disappearance_is_reported_until_the_files_return(root: Path, tmp_path: Path) -> None:
    with holdfast.open(root) as memory:
        for number in range(12):
            memory.put("note", f"Text {number}.", title=f"N{number}")
        for number in range(12):
            memory.put("episode", f"Text {number}.", session="s")
        memory.refresh()
    os.rename(root / "resources", tmp_path / "away")
    for _ in range(2):  # it is reported again until it is fixed
        with holdfast.open(root) as memory:
            (problem,) = memory.find("text").problems
            assert "12 files with 12 of" in problem.what
            assert not memory.verify().sound
            assert memory.stats()["vanished"]
    done = fork_server.run(
        [sys.executable, "-m", "holdfast", "doctor", "--root", str(root)], capture_output=True, check=False
    )
    told = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert told["index"]["state"] == "fail"
    assert "vanished at once" in told["index"]["what"]
    shutil.rmtree(root / "resources", ignore_errors=True)  # a server that watches makes the folders that it watches
    os.rename(tmp_path / "away", root / "resources")
    with holdfast.open(root) as memory:
        assert len(memory.find("text", limit=100).hits) == 24
        assert memory.find("text").problems == []
        assert memory.verify().sound


def test_the_owner_accepts_that_files_are_gone_by_making_the_index_anew(root: Path) -> None:
    with holdfast.open(root) as memory:
        for number in range(5):
            memory.put("note", f"Text {number}.", title=f"N{number}")
        memory.refresh()
        for path in (root / "resources/workspaces/default/_notes").iterdir():
            path.unlink()
        memory.put("episode", "Text that stays.", session="s")
        assert memory.find("text").problems
        memory.refresh(rebuild=True)
        assert memory.find("text").problems == []
        assert memory.verify().sound


def test_one_file_that_is_removed_is_nobodys_alarm(memory: holdfast.Memory, root: Path) -> None:
    notes = [memory.put("note", f"Text {number}.", title=f"N{number}") for number in range(5)]
    memory.refresh()
    (root / notes[0].path).unlink()
    assert memory.find("text").problems == []


# a newer format


COMMANDS = (
    ("put", "note", "x", "--title", "t"), ("search", "x"), ("refresh",), ("verify",), ("backup", "{out}.tar.gz"),
    ("forget", "x", "--yes"), ("rollback", "--writer", "x", "--yes"), ("undo", "x"), ("history", "x"), ("init", "{root}"),
)  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: str(words[0]))
def test_a_newer_store_is_refused_before_anything_is_written(
    root: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    toml = root / "holdfast.toml"
    toml.write_text(toml.read_text().replace("format = 1", "format = 2") + "[something.new]\nx = 1\n")
    before, around = tree(root), sorted(tmp_path.iterdir())
    given = [word.format(out=tmp_path / "out", root=root) for word in words]
    extra = [] if words[0] == "init" else ["--root", str(root)]
    done = fork_server.run([sys.executable, "-m", "holdfast", *given, *extra], capture_output=True, text=True)
    assert done.returncode == Invalid.exit_code
    assert "format 2; this Holdfast reads up to 1. Upgrade Holdfast; nothing was changed." in done.stderr
    assert tree(root) == before
    assert sorted(tmp_path.iterdir()) == around


def test_a_newer_store_is_refused_by_the_library_too(root: Path) -> None:
    make_root(str(root))
    (root / "holdfast.toml").write_text("format = 7\n")
    with pytest.raises(Invalid, match="format 7"):
        holdfast.open(root)
