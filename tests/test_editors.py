"""Other programs edit the files while Holdfast writes to them: nothing that either wrote is lost or changed unnoticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import Damaged
from terminal import on_terminal

DIE = """
import os, sys, holdfast
root, note, moment = sys.argv[1:]
steps = 0

def step(event, _given):
    global steps
    if event in ("open", "os.rename", "os.link", "os.remove"):
        steps += 1
        if steps == int(moment):
            os.kill(os.getpid(), 9)

with holdfast.open(root) as memory:
    current = memory.get(note)
    sys.addaudithook(step)
    memory.put(id=note, text="By the tool.", expect=current.version)
"""


def in_place(file: Path, text: str) -> None:
    """Save a file as many editors do: the file stays the same one and gets other bytes."""
    with file.open("r+") as opened:
        opened.truncate(0)
        opened.write(text)


def kept(root: Path, version: str) -> Path:
    return root / "user/memory/writes/kept" / version


# kept versions


def test_an_edit_in_place_after_a_killed_write_does_not_change_an_earlier_version(root: Path) -> None:
    for moment in range(1, 100):
        with holdfast.open(root) as memory:
            note = memory.put("note", f"First {moment}.", title=f"N {moment}")
            first = memory.get(note.id).version
        done = subprocess.run([sys.executable, "-c", DIE, root, note.id, str(moment)])
        in_place(root / note.path, "By hand.\n")
        if kept(root, first).exists():
            assert f"First {moment}." in kept(root, first).read_text(), f"killed at step {moment}"
        if done.returncode == 0:
            assert moment > 5, "the write was never interrupted"
            return
    raise AssertionError("the write did not end")


@pytest.fixture
def damaged(root: Path) -> tuple[str, str, str]:
    """Return a note, a version of it that was changed after it was kept, and one that was not."""
    with holdfast.open(root, writer="alice") as memory:
        note = memory.put("note", "First.", title="N").id
        memory.put(id=note, text="Second.", expect=memory.get(note).version)
        memory.put(id=note, text="Third.", expect=memory.get(note).version)
        first, second, _ = (one.version for one in memory.versions(note))
    kept(root, second).write_text("Changed history.\n")
    return note, second, first


def test_a_kept_version_with_another_hash_is_reported_and_not_used(root: Path, damaged: tuple[str, str, str]) -> None:
    note, second, first = damaged
    with holdfast.open(root, writer="alice") as memory:
        assert [one.kept for one in memory.versions(note)] == [True, False, True]
        assert "First." in memory.text_at(note, first)
        for use in (lambda: memory.text_at(note, second), lambda: memory.undo(note)):
            with pytest.raises(Damaged, match=second):
                use()
        assert memory.get(note).text == "Third."
        (found,) = memory.verify().damage
        assert found.path == f"user/memory/writes/kept/{second}"
    assert "text damaged" in on_terminal("history", note, root=root)


def test_a_rollback_does_not_use_a_kept_version_with_another_hash(root: Path) -> None:
    with holdfast.open(root, writer="alice") as alice, holdfast.open(root, writer="mallory") as mallory:
        note = alice.put("note", "Alice's text.", title="N").id
        first = alice.get(note).version
        mallory.put(id=note, text="Mallory's text.", expect=first)
        kept(root, first).write_text("Nobody's text.\n")
        (step,) = alice.rollback("mallory").conflicts
        assert first in step.conflict
        assert alice.get(note).text == "Mallory's text."
