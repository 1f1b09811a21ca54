"""Logs and roots that git, or any other program, replaces or shortens beside live writers, and lines with odd ids."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import fork_server
import holdfast
from holdfast.errors import Damaged, HoldfastError, Unavailable
from holdfast.roots import make_root

TALK = "user/memory/sessions/s-043a7187/episodic.jsonl"


def git(folder: Path, *words: str, check: bool = True) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout


def command(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {f"GIT_{w}_{x}": "a@b.c" for w in ("AUTHOR", "COMMITTER") for x in ("NAME", "EMAIL")}
    line = [sys.executable, "-m", "holdfast", *words]
    return fork_server.run(line, cwd=root, env=environment, capture_output=True, text=True, check=False)


def ids(path: Path) -> list[str]:
    return [json.loads(line)["id"] for line in path.read_bytes().splitlines() if line.strip()]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Two clones of one memory, with a bare repository between them."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    here, there, middle = tmp_path / "here", tmp_path / "there", tmp_path / "middle.git"
    make_root(str(here))
    with holdfast.open(here) as memory:
        memory.put("episode", "the first of all", session="s")
    git(tmp_path, "init", "--quiet", "--bare", "--initial-branch=main", str(middle))
    git(here, "init", "--quiet", "--initial-branch=main")
    git(here, "add", "--all")
    git(here, "commit", "--quiet", "--message=begin")
    git(here, "remote", "add", "origin", str(middle))
    git(here, "push", "--quiet", "--set-upstream", "origin", "main")
    git(tmp_path, "clone", "--quiet", str(middle), str(there))
    for folder in (here, there):
        git(folder, "config", "pull.rebase", "false")
    yield here, there


def push_from(there: Path, text: str) -> str:
    """Write an entry in the other clone and push it."""
    with holdfast.open(there) as memory:
        made = memory.put("episode", text, session="s").id
    git(there, "add", "--all")
    git(there, "commit", "--quiet", "--message=more")
    git(there, "pull", "--quiet", "--no-edit")
    git(there, "push", "--quiet")
    return made


def test_an_acknowledged_line_is_in_the_file_at_the_path(root: Path) -> None:
    with holdfast.open(root) as memory:
        before = memory.put("episode", "one", session="s").id
        log, older = root / TALK, root / "older"
        shutil.copy(log, older)

        def decide() -> tuple[Sequence[Mapping[str, Any]], str]:
            os.replace(older, log)  # after the writer opened and locked the log
            return [{"text": "two"}], ""

        made = memory.add_decided(TALK, decide)
        assert ids(log) == [before, *made]


def test_an_overwritten_line_is_written_again_before_acknowledgement(root: Path) -> None:
    with holdfast.open(root) as memory:
        before = memory.put("episode", "one", session="s").id
        log = root / TALK

        def decide() -> tuple[Sequence[Mapping[str, Any]], str]:
            with open(log, "r+b") as file:  # as a program does that rewrites a file in place
                file.truncate(10)
            return [{"text": "two"}], ""

        made = memory.add_decided(TALK, decide)
        memory.put("episode", "three", session="s")
        assert set(ids_that_can_be_read(log)) >= {before, *made}


def ids_that_can_be_read(path: Path) -> list[str]:
    found = []
    for line in path.read_bytes().splitlines():
        try:
            found.append(json.loads(line)["id"])
        except ValueError:
            continue
    return found


@pytest.mark.parametrize("then", ["search", "append", "close"])
def test_entries_removed_right_after_a_write_are_appended_again(root: Path, then: str) -> None:
    log = root / TALK
    with holdfast.open(root) as memory:
        first = memory.put("episode", "marble one", session="s").id
        older = log.read_bytes()
        lost = [memory.put("episode", f"marble {number}", session="s").id for number in range(5)]
        (root / "new").write_bytes(older)
        os.replace(root / "new", log)
        if then == "search":
            found = memory.find("marble", limit=20)
            assert {hit.record.id for hit in found} == {first, *lost}
            assert [str(one) for one in found.problems if "appended again" in str(one) and "5 new entries" in str(one)]
            assert not memory.find("marble").problems, "it is reported once"
        elif then == "append":
            lost.append(memory.put("episode", "marble 6", session="s").id)
    assert ids(log) == [first, *lost]


def test_entries_are_restored_after_a_replacement_and_a_truncation(root: Path) -> None:
    log = root / TALK
    with holdfast.open(root) as memory:
        made = [memory.put("episode", f"marble {number}", session="s").id for number in range(5)]
        shutil.copy(log, root / "new")
        os.replace(root / "new", log)
        assert len(memory.find("marble", limit=20)) == 5
        os.truncate(log, log.read_bytes().index(b"\n") + 1)
    assert ids(log) == made


def test_restored_entries_do_not_push_older_ones_out_of_the_journal(root: Path) -> None:
    log = root / TALK
    with holdfast.open(root) as memory:
        made = [memory.put("episode", "marble", session="s").id]
        first = log.read_bytes()
        made += [memory.put("episode", "word " * 3_000, session="s").id for _ in range(5)]
        for _ in range(70):  # of 75 kB each
            (root / "new").write_bytes(first)
            os.replace(root / "new", log)
            memory.find("marble")
        log.write_bytes(b"")
    assert set(ids(log)) == set(made)


def test_a_folder_that_became_a_link_is_reported_and_the_memory_can_be_closed(root: Path) -> None:
    sessions = root / "user/memory/sessions"
    with holdfast.open(root) as memory:
        memory.put("episode", "marble", session="s")
        sessions.rename(root / "elsewhere")
        sessions.symlink_to(root / "elsewhere")
        memory.find("marble")
        with pytest.raises(HoldfastError):
            memory.put("episode", "granite", session="s")


def test_an_older_copy_of_a_log_does_not_restore_forgotten_entries(root: Path) -> None:
    log = root / TALK
    with holdfast.open(root) as memory:
        memory.put("episode", "one", session="s")
        older = log.read_bytes()
        secret = memory.put("episode", "the combination is tulip", session="s").id
        done = command(root, "forget", secret, "--yes")
        assert done.returncode == 0, done.stderr
        (root / "new").write_bytes(older)
        os.replace(root / "new", log)
        memory.put("episode", "three", session="s")
        memory.find("combination")
    assert b"tulip" not in log.read_bytes()


def test_a_line_that_a_merge_repeats_counts_once(root: Path) -> None:
    with holdfast.open(root) as memory:
        memory.put("episode", "marble", session="s")
        memory.mind("s").learn("stone", "granite")
        memory.mind("s").learn("stone", "marble")
        memory.chat.append_message({"role": "user", "content": "hello", "channel": "web"})
        memory.tasks.create("polish it")
        memory.tasks.claim("worker")
    for log in root.rglob("*.jsonl"):
        log.write_bytes(log.read_bytes() * 2)
    with holdfast.open(root) as memory:
        assert len(memory.find("marble", kinds=("episode",))) == 1
        assert [one.text for one in memory.tail("episode", session="s")] == ["marble"]
        assert memory.mind("s").recall("stone")["value"] == "marble"
        assert [message.content for message in memory.chat.load_history()] == ["hello"]
        assert [len(task.attempts) for _, task in memory.tasks.all().tasks] == [1]
        assert memory.verify().sound


def test_git_pull_beside_a_live_writer_loses_nothing_that_it_acknowledged(pair: tuple[Path, Path]) -> None:
    here, there = pair
    acknowledged: list[str] = []
    stop = threading.Event()

    with holdfast.open(here) as memory:

        def write() -> None:
            while not stop.is_set():
                acknowledged.append(memory.put("episode", f"marble {len(acknowledged)}", session="s").id)

        writer = threading.Thread(target=write)
        writer.start()
        theirs = []
        try:
            for number in range(8):
                theirs.append(push_from(there, f"granite {number}"))
                git(here, "commit", "--quiet", "--all", "--message=mine", check=False)
                git(here, "pull", "--quiet", "--no-edit", "--autostash", check=False)
        finally:
            stop.set()
            writer.join()
        memory.find("marble")
    there_now = set(ids_that_can_be_read(here / TALK))
    assert not set(acknowledged) - there_now


WRITER = """
import sys, holdfast
with holdfast.open(sys.argv[1]) as memory:
    for number in range(int(sys.argv[2])):
        print(memory.put("episode", f"marble {number}", session="s").id, flush=True)
"""


def test_holdfast_git_beside_writing_processes_loses_nothing(pair: tuple[Path, Path]) -> None:
    here, there = pair
    line = [sys.executable, "-c", WRITER, str(here), "150"]
    writers = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    theirs: list[str] = []
    while any(writer.poll() is None for writer in writers):
        theirs.append(push_from(there, f"granite {len(theirs)}"))
        done = command(here, "git", "sync", "--quiet")
        assert done.returncode == 0, done.stderr
    mine = {one for writer in writers for one in writer.communicate()[0].split()}
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(mine) == 300
    found = ids(here / TALK)
    assert len(found) == len(set(found)), "the merge repeats nothing"
    assert not (mine | set(theirs)) - set(found)
    with holdfast.open(here) as memory:
        assert memory.verify().sound


def test_a_writer_waits_while_git_works(pair: tuple[Path, Path]) -> None:
    here, _ = pair
    hook = here / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    put = f'"{sys.executable}" -m holdfast put fact --title stone granite --json'
    hook.write_text(f"#!/bin/sh\nHOLDFAST_LIMITS_LOCK_SECONDS=0.2 {put} > '{here}/.git/said' 2>&1\nexit 0\n")
    hook.chmod(0o755)
    (here / "user/memory/MEMORY.md").write_text("text")
    done = command(here, "git", "commit", "--quiet", "--all", "--allow-empty", "-m", "more")
    assert done.returncode == 0, done.stderr
    said = json.loads((here / ".git/said").read_text())
    assert (said["kind"], "nothing was written" in said["error"]) == ("Busy", True)
    assert command(here, "put", "fact", "--title", "stone", "granite").returncode == 0


def test_entries_that_a_merge_drops_are_appended_again_and_reported(pair: tuple[Path, Path]) -> None:
    here, there = pair
    theirs = push_from(there, "granite")
    (here / ".gitattributes").write_text("*.jsonl merge=theirs\n")
    git(here, "config", "merge.theirs.driver", "cp %B %A")
    with holdfast.open(here) as memory:
        mine = memory.put("episode", "marble", session="s").id
    git(here, "add", "--all")
    git(here, "commit", "--quiet", "--message=mine")
    done = command(here, "git", "pull", "--quiet", "--no-edit")
    assert done.returncode == 0, done.stderr
    assert "after git pull, 1 of 1 missing entry appended again, last seen in git " in done.stderr
    assert ids(here / TALK)[1:] == [theirs, mine]


def test_a_memory_on_another_branch_has_the_entries_of_that_branch(pair: tuple[Path, Path]) -> None:
    here, _ = pair
    git(here, "branch", "other")
    with holdfast.open(here) as memory:
        mine = memory.put("episode", "marble", session="s").id
    assert command(here, "git", "commit", "--quiet", "--all", "-m", "mine").returncode == 0
    assert command(here, "git", "checkout", "--quiet", "other").returncode == 0
    assert mine not in ids(here / TALK)
    assert command(here, "git", "checkout", "--quiet", "main").returncode == 0
    assert mine in ids(here / TALK)


@pytest.mark.parametrize("write", ["log", "document", "settings"])
def test_a_write_to_a_root_that_was_replaced_is_refused(root: Path, tmp_path: Path, write: str) -> None:
    with holdfast.open(root) as memory:
        memory.put("episode", "one", session="s")
        backup = tmp_path / "copy.tar.gz"
        memory.backup(str(backup))
        root.rename(tmp_path / "before")
        restored = command(tmp_path, "restore", str(backup), str(root))
        assert restored.returncode == 0, restored.stderr
        with pytest.raises(Unavailable, match="another folder than the memory that this program opened") as caught:
            if write == "log":
                memory.put("episode", "two", session="s")
            elif write == "document":
                memory.put("note", "two", title="Two")
            else:
                memory.tree.write("holdfast.toml", b"", expect=memory.tree.read("holdfast.toml").version)
        assert "Restart" in caught.value.next_step
        with pytest.raises(Unavailable, match="another folder"):
            memory.find("one")
    assert b"two" not in (root / TALK).read_bytes() + (tmp_path / "before" / TALK).read_bytes()
    with holdfast.open(root) as memory:
        memory.put("episode", "three", session="s")
        assert [one.text for one in memory.tail("episode", session="s")] == ["one", "three"]


def shrunk(root: Path) -> None:
    """Make a log with 20 entries of which an outside write leaves three, after the index knew all of them."""
    with holdfast.open(root) as memory:
        made = [memory.put("episode", f"marble {number}", session="s").id for number in range(20)]
        memory.hide(made[0])
        memory.find("marble")
    log = root / TALK
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:3]))


def test_a_log_that_shrinks_is_reported_everywhere(root: Path) -> None:
    shrunk(root)
    with holdfast.open(root) as memory:
        (warning,) = memory.call("recall", {"query": "marble"})["warnings"]
        assert "18 entries were in this log before and missing now" in warning  # 17, and the one that hides another
        assert [one.path for one in memory.verify().damage] == [TALK]
    doctor = json.loads(command(root, "doctor", "--json").stdout)
    assert [check["state"] for check in doctor["checks"] if check["check"] == "index"] == ["fail"]
    done = command(root, "verify")
    assert (done.returncode, "holdfast verify --repair" in done.stdout + done.stderr) == (Damaged.exit_code, True)
    assert command(root, "refresh", "--rebuild").returncode == 0, "the owner accepts it"
    assert command(root, "verify").returncode == 0


def test_a_log_with_its_entries_restored_passes_verify(root: Path) -> None:
    log = root / TALK
    with holdfast.open(root) as memory:
        for number in range(20):
            memory.put("episode", f"marble {number}", session="s")
        memory.find("marble")
    whole = log.read_bytes()
    log.write_bytes(b"".join(whole.splitlines(keepends=True)[:10]))
    with holdfast.open(root) as memory:
        assert not memory.verify().sound
        log.write_bytes(whole)
        assert memory.verify().sound


@pytest.mark.parametrize("source", ["git", "backup"])
def test_repair_restores_entries_from_git_or_backup_but_not_forgotten_ones(
    root: Path, tmp_path: Path, source: str
) -> None:
    if source == "git" and not shutil.which("git"):
        pytest.skip("git is not installed")
    with holdfast.open(root) as memory:
        made = [memory.put("episode", f"marble {number}", session="s").id for number in range(20)]
        memory.find("marble")
    log, words = root / TALK, ["verify", "--repair"]
    if source == "git":
        git(root, "init", "--quiet")
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--message=all")
    else:
        words += ["--backup", str(tmp_path / "copy.tar.gz")]
        assert command(root, "backup", words[-1]).returncode == 0
    assert command(root, "forget", made[19], "--yes").returncode == 0
    with holdfast.open(root) as memory:
        newest = memory.put("episode", "marble and granite", session="s").id
        memory.find("marble")
    kept = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(kept[0] + kept[-1])
    done = command(root, *words)
    where = words[-1] if source == "backup" else "git "
    assert f"{TALK}: 18 of 19 missing entries appended again, last seen in {where}" in done.stderr
    assert ids(log) == [made[0], newest, *made[1:19]]
    assert b"marble 19" not in log.read_bytes()
    assert command(root, *words).returncode == done.returncode
    assert len(ids(log)) == 20, "a second repair adds nothing"


GREATEST = "ffffffff-ffff-7fff-bfff-ffffffffffff"


def test_a_line_with_the_greatest_possible_id_blocks_no_log(root: Path) -> None:
    facts = root / "user/memory/semantic.jsonl"
    facts.write_text(json.dumps({"id": GREATEST, "key": "stone", "value": "granite"}) + "\n")
    (root / TALK).parent.mkdir(parents=True)
    (root / TALK).write_text(json.dumps({"id": GREATEST, "text": "granite"}) + "\n")
    with holdfast.open(root) as memory:
        memory.put("episode", "marble", session="s")
        memory.mind("s").learn("stone", "marble")
        assert memory.mind("s").recall("stone")["value"] == "marble"
        assert {hit.record.text for hit in memory.find(kinds=("episode",))} == {"granite", "marble"}
        assert memory.verify().sound


SAVE = """
import resource, sys, holdfast
with holdfast.open(sys.argv[1]) as memory:
    memory.find("anything")
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    memory.put("state", "word " * 20_000, title="Before")
"""


def test_a_save_point_that_was_refused_leaves_the_memory_sound(root: Path) -> None:
    refused = subprocess.run([sys.executable, "-c", SAVE, str(root)], capture_output=True, text=True, check=False)
    assert "Free some space and try again" in refused.stderr
    (ledger,) = root.rglob("ledger.jsonl")
    ledger.write_text(re.sub(r'"time":"\d{4}', '"time":"2020', ledger.read_text()))  # it is not being written just now
    assert command(root, "verify").returncode == 0
    with holdfast.open(root) as memory:
        assert memory.states.all(memory.scopes.resolve("default")) == []
        memory.put("state", "word " * 20_000, title="Before")
        assert [one["name"] for one in memory.states.all(memory.scopes.resolve("default"))] == ["Before"]
        (file,) = root.glob("resources/workspaces/default/_states/*.md")
        file.unlink()
        damage = [one for one in memory.verify().damage if "is in the ledger" in one.what]
    assert damage, "one that was written and removed is still reported"
