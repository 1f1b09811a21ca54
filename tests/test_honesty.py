"""Promises during overlapping events: a busy index, live writers, merges, other time zones, moved roots."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.errors import Unavailable
from holdfast.model.kinds import KINDS
from holdfast.model.times import utc_now
from holdfast.roots import make_root
from holdfast.storage.files import rows
from teamserver import until


@contextmanager
def busy_index(root: Path) -> Iterator[None]:
    """Hold the index's write lock, as a long reading of a large log does."""
    name = (root / ".holdfast/current").read_text()
    db = apsw.Connection(str(root / ".holdfast" / name))
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        db.execute("ROLLBACK")
        db.close()


def test_an_op_id_takes_effect_once_while_the_index_is_locked(root: Path) -> None:
    with holdfast.open(root) as memory:
        plan = memory.put("plan", "text", title="Plan").id
        memory.find("text")
    with busy_index(root):
        one = holdfast.open(root)
        assert one.put(id=plan, fields={"status": "done"}, op_id="op-1").status == "changed"
        two = holdfast.open(root)
        assert two.put(id=plan, fields={"status": "abandoned"}).status == "changed"
        three = holdfast.open(root)
        assert three.put(id=plan, fields={"status": "done"}, op_id="op-1").status == "repeated"
        assert three.get(plan).fields["status"] == "abandoned"
        first = three.put("message", "once", op_id="op-2")
        again = holdfast.open(root).put("message", "once", op_id="op-2")
        assert (again.status, again.id) == ("repeated", first.id)


def test_a_newer_fact_holds_although_the_index_was_busy_when_it_was_written(root: Path) -> None:
    ahead = {"id": "7fffffff-0000-7000-8000-000000000000", "key": "zone", "value": "from a clock ahead"}
    with holdfast.open(root) as memory:
        memory.put("fact", "first", fields={"key": "other"})
        memory.find("first")
    with busy_index(root):
        with (root / "user/memory/semantic.jsonl").open("a") as file:
            file.write(json.dumps(ahead) + "\n" + json.dumps({"key": "by hand", "value": "x"}) + "\n")
        holdfast.open(root).put("fact", "mine", fields={"key": "zone"})
    with holdfast.open(root) as memory:
        assert [record.text for record in memory.tail("fact") if record.key == "zone"] == ["mine"]


def test_a_search_with_a_locked_index_reports_how_far_it_is_behind(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BUSY_MS", 50)
    with holdfast.open(root) as memory:
        memory.put("note", "marble", title="A")
        assert len(memory.find("marble")) == 1
        with busy_index(root):
            (root / "resources/workspaces/default/_notes/b.md").write_text("granite\n")
            found = memory.find("marble granite")
            assert [hit.record.title for hit in found] == ["A"]
            assert found.behind >= 1
        assert len(memory.find("marble granite")) == 2


def test_a_watching_memory_catches_up_after_a_busy_index(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BUSY_MS", 50)
    with holdfast.open(root, watch=True) as memory:
        memory.put("note", "marble", title="A")
        assert len(memory.find("marble")) == 1
        with busy_index(root):
            memory.put("note", "granite", title="B")
            assert memory.find("granite").behind >= 1
        assert len(memory.find("granite")) == 1


def test_verify_passes_during_writes(root: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        with holdfast.open(root) as memory:
            number = 0
            while not stop.is_set():
                number += 1
                memory.put("episode", f"entry {number}", session="live")
                if number % 20 == 0:
                    memory.put("note", "text", title=f"note {number}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with holdfast.open(root) as memory:
            for _ in range(5):
                report = memory.verify()
                assert report.differences == []
                assert report.damage == []
    finally:
        stop.set()
        writer.join()


def test_a_hidden_message_stays_hidden_in_the_tail_of_a_merged_log(root: Path) -> None:
    path = root / "user/memory/history.jsonl"
    with holdfast.open(root) as memory:
        ids = [memory.put("message", text).id for text in ("one", "two", "three")]
        memory.hide(ids[1])
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([lines[3], lines[0], lines[1], lines[2]]))
        assert [record.text for record in memory.tail("message")] == ["one", "three"]
        assert sorted(hit.record.text for hit in memory.find(kinds=("message",))) == ["one", "three"]


def test_a_hidden_line_stays_hidden_in_another_time_zone(root: Path) -> None:
    (root / "user/memory/history.jsonl").write_text(
        '{"role":"user","content":"marble","timestamp":"2026-01-02T03:04:05"}\n'
    )
    ask = "import holdfast, sys; m = holdfast.open(sys.argv[1]); print(len(m.find('marble')), m.verify().sound)"
    with holdfast.open(root) as memory:
        (hit,) = memory.find("marble")
        memory.hide(hit.record.id)
    for zone in ("Asia/Tokyo", "America/New_York", "UTC"):
        done = subprocess.run(
            [sys.executable, "-c", ask, str(root)],
            env=os.environ | {"TZ": zone},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == ["0", "True"], zone


def test_a_raised_limit_is_honoured_by_the_next_search(root: Path) -> None:
    (root / "holdfast.toml").write_text("[limits]\ndocument_bytes = 1000\n")
    notes = root / "resources/workspaces/default/_notes"
    notes.mkdir(parents=True)
    (notes / "long.md").write_text("marble " * 1_000)
    with holdfast.open(root) as memory:
        assert (len(memory.find("marble")), memory.find("marble").damaged) == (0, 1)
    (root / "holdfast.toml").write_text("[limits]\ndocument_bytes = 100000\n")
    with holdfast.open(root) as memory:
        assert len(memory.find("marble")) == 1


def test_a_root_that_is_renamed_under_a_live_process_goes_on_working(tmp_path: Path) -> None:
    make_root(str(tmp_path / "before"))
    with holdfast.open(tmp_path / "before") as memory:
        memory.put("episode", "one", session="s")
        (tmp_path / "before").rename(tmp_path / "after")
        memory.put("episode", "two", session="s")
    with holdfast.open(tmp_path / "after") as memory:
        assert [record.text for record in memory.tail("episode", session="s")] == ["one", "two"]


@pytest.mark.parametrize(
    "look",
    [
        lambda memory: memory.find("marble"),
        lambda memory: memory.tail("episode", session="s"),
        lambda memory: memory.stats(),
        lambda memory: memory.mind("s").search("episodic", "marble"),
        lambda memory: memory.mind("s").search("episodic", {"last": 5}),
        lambda memory: memory.mind("s").recall("stone"),
        lambda memory: memory.mind("s").match("marble breaks"),
        lambda memory: memory.mind("s").stats(),
        lambda memory: memory.run(session="s").get("session"),
    ],
)
@pytest.mark.parametrize("watch", [False, True], ids=["looking", "watching"])
def test_a_missing_root_is_an_error_not_an_empty_answer(root: Path, look: Any, watch: bool) -> None:
    with holdfast.open(root, watch=watch) as memory:
        memory.mind("s").append("episodic", "a block of marble")
        memory.mind("s").learn("stone", "marble")
        look(memory)
        shutil.rmtree(root)
        for _ in range(2):
            with pytest.raises(Unavailable, match="no longer exists"):
                look(memory)
        assert memory.call("memory_recall", {"key": "stone"})["success"] is False
    assert not root.exists(), "nothing is made anew in its place"


def test_unmounted_folders_are_not_treated_as_deleted(root: Path, tmp_path: Path) -> None:
    with holdfast.open(root) as memory:
        for number in range(12):
            memory.put("note", "marble", title=f"N{number}")
        assert len(memory.find("marble")) == 12
        (root / "resources").rename(tmp_path / "resources")
        (root / "user").rename(tmp_path / "user")
        with pytest.raises(Unavailable, match="mounted"):
            memory.find("marble")
        (tmp_path / "resources").rename(root / "resources")
        assert len(memory.find("marble")) == 12


def test_adding_entries_does_not_keep_a_copy_of_the_file_for_each(root: Path) -> None:
    with holdfast.open(root) as memory:
        for number in range(20):
            memory.put("decision", f"text {number}", title=f"T{number}")
    assert not list((root / "user/memory/writes").glob("kept/*"))


def test_an_edit_keeps_the_permissions_of_a_file(root: Path) -> None:
    with holdfast.open(root) as memory:
        note = memory.put("note", "secret", title="T")
        (root / note.path).chmod(0o600)
        memory.put(id=note.id, text="changed", expect=note.version)
    assert (root / note.path).stat().st_mode & 0o777 == 0o600


def test_a_kept_text_does_not_change_with_the_file(root: Path) -> None:
    with holdfast.open(root) as memory:
        note = memory.put("note", "first", title="T")
        before = (root / note.path).read_bytes()
        memory.put(id=note.id, text="second", expect=note.version)
        with (root / note.path).open("a") as file:
            file.write("by hand\n")
    assert (root / "user/memory/writes/kept" / note.version).read_bytes() == before


def test_a_hand_edit_is_in_the_very_next_answer_of_a_watching_memory(root: Path) -> None:
    notes = root / "resources/workspaces/default/_notes"
    with holdfast.open(root, watch=True) as memory:
        memory.put("note", "marble", title="A")
        for number in range(100):
            (notes / "hand.md").write_text(f"zebra{number}\n")
            assert len(memory.find(f"zebra{number}")) == 1, number
            (notes / f"new{number}").mkdir()
            (notes / f"new{number}/page.md").write_text(f"giraffe{number}\n")
            assert len(memory.find(f"giraffe{number}")) == 1, number
            (notes / f"new{number}/page.md").rename(notes / "moved.md")
            assert [hit.record.id for hit in memory.find(f"giraffe{number}")] == [
                "resources/workspaces/default/_notes/moved.md"
            ]


def test_a_watching_memory_indexes_much_new_text_before_it_is_asked(root: Path) -> None:
    with holdfast.open(root, watch=True) as watching, holdfast.open(root) as other:
        log = root / watching.put("message", "marble", fields={"role": "user", "channel": "cli"}).path
        assert len(watching.find("marble")) == 1
        lines = (
            json.dumps({"role": "user", "content": f"granite {number} " + "quartz " * 20}) for number in range(2_000)
        )
        with log.open("a") as file:
            file.write("\n".join((*lines, "")))
        until(lambda: other.stats()["behind"] == 0)
        assert len(watching.find("granite", limit=5)) == 5


def test_a_watching_memory_survives_an_overflow_of_file_events(root: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    notes = root / "resources/workspaces/default/_notes"
    with holdfast.open(root, watch=True) as memory:
        page = root / memory.put("note", "marble", title="A").path
        assert len(memory.find("marble")) == 1
        for _ in range(most // 2 + 1):  # two events each, since equal ones in a row are one
            os.utime(page)
            os.utime(notes)
        (notes / "made").mkdir()
        (notes / "made/page.md").write_text("zebra\n")
        assert len(memory.find("zebra")) == 1
        (notes / "made/page.md").write_text("giraffe\n")
        assert len(memory.find("giraffe")) == 1


def remembered(memory: holdfast.Memory, key: str, text: str) -> str:
    return str(memory.call("remember", {"kind": "fact", "key": key, "text": text})["status"])


def test_a_write_does_not_build_the_index(root: Path) -> None:
    with holdfast.open(root) as memory:
        assert remembered(memory, "zone", "first") == "stored"
        assert remembered(memory, "zone", "second") == "superseded"
        assert remembered(memory, "zone", "second") == "duplicate"
        memory.put("note", "marble", title="A", op_id="op-1")
    assert not (root / ".holdfast/current").exists()
    with holdfast.open(root) as memory:
        assert memory.put("note", "marble", title="A", op_id="op-1").status == "repeated"
        assert {hit.record.text for hit in memory.find("second marble", kinds=("fact", "note"))} == {"second", "marble"}


def test_a_write_does_not_wait_for_an_index_build(root: Path) -> None:
    replies: list[str] = []

    def write() -> None:
        replies.append(remembered(memory, "zone", f"text {len(replies)}"))

    def meanwhile(_done: int, _total: int) -> None:
        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        thread.join(20)

    with holdfast.open(root) as memory:
        memory.put("fact", "before", fields={"key": "zone"})
        memory.refresh(rebuild=True, progress=meanwhile)
        assert replies == ["superseded"]
        assert memory.mind("s").recall("zone")["value"] == "text 0"


def test_a_key_lookup_is_the_same_without_an_index(root: Path) -> None:
    with holdfast.open(root) as memory:
        mind, keys = (
            memory.mind("s"),
            ["plain", "caf\u00e9", 'a "quoted" key', "old one", "hidden", "shown again", "a/b"],
        )
        for key in keys:
            for value in ("one", "two"):
                mind.learn(key, f"{value} of {key}")
        for key in ("hidden", "shown again"):
            memory.hide(memory.find(f"two of {key}", kinds=("fact",)).hits[0].record.id)
        again = [one.id for one in memory.history(KINDS["fact"], "shown again") if one.text.startswith("two")]
        memory.hide(*again, restore=True)
        log = root / "user/memory/semantic.jsonl"
        older = [line for line in log.read_text().splitlines(True) if "one of old one" in line]
        log.write_text(log.read_text().replace("".join(older), "") + "".join(older))  # as a merge may leave it
        with log.open("a") as file:
            file.write('{"key": "caf\\u00e9", "value": "escaped", "id": "7fffffff-0000-7000-8000-000000000000"}\n')
        memory.refresh()
        fact = KINDS["fact"]
        before = [(memory.current(fact, key), memory.history(fact, key)) for key in keys]
        now = [record.text if record else None for record, _ in before]
        assert now == [
            "two of plain", "escaped", 'two of a "quoted" key', "two of old one", None, "two of shown again", "two of a/b",
        ]  # fmt: skip
    shutil.rmtree(root / ".holdfast")
    with holdfast.open(root) as memory:
        assert [(memory.current(fact, key), memory.history(fact, key)) for key in keys] == before
    assert not (root / ".holdfast/current").exists()


@pytest.fixture
def mounted(root: Path, tmp_path: Path) -> Iterator[Path]:
    """The root as another machine sees it: a FUSE mount, which reports no change that is made behind it."""
    seen, options = tmp_path / "mounted", "attr_timeout=0,entry_timeout=0,negative_timeout=0"
    seen.mkdir()
    if not shutil.which("bindfs") or subprocess.run(["bindfs", "-o", options, root, seen], check=False).returncode:
        pytest.skip("bindfs is not installed, or may not mount a folder here")
    try:
        yield seen
    finally:
        subprocess.run(["umount", "-l", seen], check=True)


def test_without_file_events_an_answer_is_current_or_names_its_time(root: Path, mounted: Path) -> None:
    page = root / "resources/workspaces/default/_notes/hand.md"
    with holdfast.open(mounted, watch=True) as memory:
        memory.put("note", "marble", title="A")
        for number in range(30):
            before = utc_now()
            page.write_text(f"zebra{number}\n")
            found = memory.find(f"zebra{number}")
            assert found.hits or found.as_of <= before
            deadline = time.monotonic() + 20
            while not (found := memory.find(f"zebra{number}")).hits and time.monotonic() < deadline:
                pass
            assert found.hits
            assert found.as_of >= before
            with (root / "user/memory/semantic.jsonl").open("a") as file:
                file.write(json.dumps({"key": f"zone {number}", "value": number}) + "\n")
            assert memory.mind("s").recall(f"zone {number}")["value"] == number


def test_the_change_feed_works_without_file_events(root: Path, mounted: Path) -> None:
    with holdfast.open(mounted) as memory, memory.changes() as changes:
        (root / "resources/workspaces/default/_notes").mkdir(parents=True)
        (root / "resources/workspaces/default/_notes/hand.md").write_text("zebra\n")
        give_up = threading.Timer(20, changes.close)
        give_up.start()
        assert [change.title for change in itertools.islice(changes, 1)] == ["hand"]
        give_up.cancel()


def test_a_watching_memory_says_as_of_when_it_answers(root: Path) -> None:
    with holdfast.open(root, watch=True) as memory:
        before = utc_now()
        assert before <= memory.find("x").as_of <= utc_now()
