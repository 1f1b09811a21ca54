"""Other programs edit the files while Holdfast writes to them: nothing that either wrote is lost or changed unnoticed."""

from __future__ import annotations

import fcntl
import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import Damaged
from holdfast.model.records import version_of
from terminal import on_terminal

DIE = """
import os, signal, sys, holdfast

def step(_frame, event, called):
    global left
    if event == "c_call" and getattr(called, "__module__", "") in ("posix", "fcntl"):
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

with holdfast.open(sys.argv[1]) as memory:  # makes the folder of earlier versions, which later writes find
    first = memory.put("note", "Made.", title="N")
    memory.put(id=first.id, text="Changed.", expect=memory.get(first.id).version)

for left in range(1, 1000):
    with holdfast.open(sys.argv[1]) as memory:
        note = memory.put("note", f"First {left}.", title=f"N {left}")
        version = memory.get(note.id).version
    child = os.fork()
    if not child:
        with holdfast.open(sys.argv[1]) as memory:
            sys.setprofile(step)
            memory.put(id=note.id, text="By the tool.", expect=version)
            os._exit(0)
    _, status = os.waitpid(child, 0)
    print(note.path, version, flush=True)
    if os.waitstatus_to_exitcode(status) == 0:
        break
"""
"""Writes to a note in a process that is killed before its first system call, then before its second, and so on."""


def in_place(file: Path, text: str) -> None:
    """Save a file as many editors do: the file stays the same one and gets other bytes."""
    with file.open("r+") as opened:
        opened.truncate(0)
        opened.write(text)


def kept(root: Path, version: str) -> Path:
    return root / "user/memory/writes/kept" / version


# kept versions


def test_an_edit_in_place_after_a_killed_write_does_not_change_an_earlier_version(root: Path) -> None:
    done = subprocess.run([sys.executable, "-c", DIE, root], stdout=subprocess.PIPE, text=True, check=True)
    notes = [line.split() for line in done.stdout.splitlines()]
    assert 10 < len(notes) < 999, "the write was never interrupted, or did not end"
    for path, _ in notes:
        in_place(root / path, "By hand.\n")
    found = {
        number: kept(root, version) for number, (_, version) in enumerate(notes, 1) if kept(root, version).exists()
    }
    assert len(notes) in found, "the write that was not killed kept nothing"
    for number, file in found.items():
        assert f"First {number}." in file.read_text(), f"killed at call {number}"


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


# other programs that write at the same moment


def meets(moment: int, act: Callable[[], None], write: Callable[[], object]) -> bool:
    """Write while another program acts just before the n-th system call; False if the write makes fewer."""
    left = moment

    def step(_frame: object, event: str, called: object) -> None:
        nonlocal left
        if event == "c_call" and getattr(called, "__module__", "") in ("posix", "fcntl"):
            left -= 1
            if not left:
                sys.setprofile(None)
                act()

    sys.setprofile(step)
    try:
        write()
    finally:
        sys.setprofile(None)
    return left <= 0


LEASES = hasattr(fcntl, "F_SETLEASE")
_NONE = "only Linux can tell whether a file is open for writing"
Save = Callable[[str], None]
"""Adds a text to the end of a file, as another program does it."""


def appending(file: Path) -> Save:
    """Open the file for each text, like `cat >>`."""

    def save(text: str) -> None:
        with file.open("a") as opened:
            opened.write(text)

    return save


def late(file: Path) -> Save:
    """Open the file now, and write to it later."""
    opened = file.open("a")

    def save(text: str) -> None:
        with opened:
            opened.write(text)

    return save


def renaming(file: Path) -> Save:
    """Put a new file in the place of the old one, as many editors do."""

    def save(text: str) -> None:
        new = file.with_name(".new")
        new.write_text(file.read_text() + text)
        new.rename(file)

    return save


def rewriting(file: Path) -> Save:
    """Write all bytes again, as other editors do."""
    return lambda text: in_place(file, file.read_text() + text)


@pytest.mark.parametrize("adds", [True, False], ids=["add", "edit"])
@pytest.mark.parametrize(
    "program", [appending, pytest.param(late, marks=pytest.mark.skipif(not LEASES, reason=_NONE)), renaming, rewriting]
)
def test_an_entry_saved_by_an_editor_during_a_write_is_not_lost(
    memory: holdfast.Memory, root: Path, adds: bool, program: Callable[[Path], Save]
) -> None:
    base = memory.put("decision", "The first.", title="Base")
    file = root / base.path
    for moment in range(1, 80):
        entry = f"\n### [2026-01-01] Hand {moment}\n\nBy hand {moment}.\n"
        ours, save = f"By the tool {moment}.", program(file)
        write = functools.partial(memory.put, "decision", ours, title=f"Tool {moment}")
        if not adds:
            write = functools.partial(memory.put, id=base.id, fields={"category": ours})
        if not meets(moment, functools.partial(save, entry), write):
            save("")
            assert moment > 5, "the write was never met"
            break
        text = file.read_text()
        assert (text.count(entry), text.count(ours)) == (1, 1), f"saved at step {moment}"
    assert memory.verify().sound


def test_what_a_program_adds_to_a_file_that_it_opened_before_a_write_is_not_lost(
    memory: holdfast.Memory, root: Path
) -> None:
    base = memory.put("decision", "The first.", title="Base")
    file = root / base.path
    with file.open("a") as opened:
        memory.put("decision", "By the tool.", title="Tool")
        opened.write("\nAfter an entry was added.\n")
    assert "After an entry was added." in file.read_text()
    with file.open("a") as opened:
        before = version_of(file.read_bytes())
        memory.put(id=base.id, fields={"category": "c"})
        opened.write("\nAfter an entry was changed.\n")
    assert "After an entry was changed." in kept(root, before).read_text()
    assert [problem.path for problem in memory.verify().damage] == [f"user/memory/writes/kept/{before}"]


def test_an_entry_is_not_added_to_a_file_that_has_a_second_name(
    memory: holdfast.Memory, root: Path, tmp_path: Path
) -> None:
    file = root / memory.put("decision", "The first.", title="Base").path
    outside = tmp_path / "outside.md"
    outside.hardlink_to(file)
    memory.put("decision", "By the tool.", title="Tool")
    assert "By the tool." in file.read_text()
    assert "By the tool." not in outside.read_text()
