"""Two clones of a memory that both changed it: what git makes of it with our driver, and what is read meanwhile."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.errors import Conflict, Damaged, Invalid, Unavailable
from holdfast.formats import sections, three_way
from holdfast.formats.three_way import Merged, Sides
from holdfast.roots import make_root
from test_git import command, git, ids

DECISIONS = "user/memory/workspaces/default/decisions.md"
FACTS = "user/memory/semantic.jsonl"
NOTE = "resources/workspaces/default/_notes/stones-e5e8c9d6.md"
MARKED = "<<<<<<< ours\nOur stones.\n=======\nTheir stones.\n>>>>>>> theirs\n"

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")


def run(root: Path, *words: str, code: int = 0) -> str:
    done = command(root, *words)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def commit(root: Path, message: str = "more") -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", f"--message={message}")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Two clones with our driver, and a bare repository between them; both have one decision and one note."""
    here, there, middle = tmp_path / "here", tmp_path / "there", tmp_path / "middle.git"
    git(tmp_path, "init", "--quiet", "--bare", "--initial-branch=main", str(middle))
    git(tmp_path, "init", "--quiet", "--initial-branch=main", str(here))
    run(here, "init", str(here))
    git(here, "remote", "add", "origin", str(middle))
    with holdfast.open(here) as memory:
        memory.put("decision", "Granite.", title="Base", fields={"date": "2026-01-02"})
        (here / NOTE).parent.mkdir(parents=True)
        (here / NOTE).write_text("---\nname: Stones\nupdated: 2026-01-01\n---\n\nOne.\n\nTwo.\n\nThree.\n\nFour.\n")
    run(here, "git", "sync")
    git(tmp_path, "clone", "--quiet", str(middle), str(there))
    run(there, "git", "--root", str(there), "setup")
    yield here, there


def edit(root: Path, path: str, old: str, new: str) -> None:
    text = (root / path).read_text()
    assert old in text
    (root / path).write_text(text.replace(old, new))


def merge(pair: tuple[Path, Path], *, conflict: bool = False) -> str:
    """Push what is there, merge it here with plain git, and return what git said."""
    here, there = pair
    commit(there)
    git(there, "push", "--quiet")
    commit(here)
    git(here, "fetch", "--quiet")
    said = git(here, "merge", "--no-edit", "origin/main", check=not conflict)
    assert ("CONFLICT" in said) == conflict, said
    return said


def titles(root: Path) -> list[str]:
    return [one.title for one in sections.parse((root / DECISIONS).read_text())]


# pages


def test_two_clones_that_each_add_a_decision_merge_without_a_conflict(pair: tuple[Path, Path]) -> None:
    here, there = pair
    for root, title, date in (
        (here, "Ours", "2026-01-05"),
        (there, "Theirs", "2026-01-04"),
        (there, "Old", "2026-01-01"),
    ):
        with holdfast.open(root) as memory:
            memory.put("decision", f"{title} stones.", title=title, fields={"date": date})
    merge(pair)
    assert titles(here) == ["Old", "Base", "Theirs", "Ours"]
    assert (here / DECISIONS).read_text().endswith("Ours stones.\n\n---\n")
    git(here, "push", "--quiet")
    git(there, "pull", "--quiet", "--no-edit")
    assert (there / DECISIONS).read_bytes() == (here / DECISIONS).read_bytes()
    with holdfast.open(there) as memory:
        assert memory.verify().sound
        assert len(memory.find("stones", kinds=("decision",))) == 3


def test_a_change_of_one_side_is_taken_and_a_removal_too_unless_the_other_side_changed_it(
    pair: tuple[Path, Path],
) -> None:
    here, there = pair
    with holdfast.open(here) as memory:
        for title in ("Changed there", "Removed there", "Changed and removed"):
            memory.put("decision", f"{title}, marble.", title=title, fields={"date": "2026-01-03"})
    run(here, "git", "sync")
    run(there, "git", "sync")
    edit(there, DECISIONS, "Changed there, marble.", "Changed there, basalt.")
    edit(there, DECISIONS, "Changed and removed, marble.", "Changed and removed, basalt.")
    edit(there, DECISIONS, "### [2026-01-03] Removed there\n\nRemoved there, marble.\n\n---\n", "")
    edit(here, DECISIONS, "### [2026-01-03] Changed and removed\n\nChanged and removed, marble.\n\n---\n", "")
    edit(here, DECISIONS, "Granite.", "Granite and chalk.")
    merge(pair)
    text = (here / DECISIONS).read_text()
    assert titles(here) == ["Base", "Changed there", "Changed and removed"]
    assert "Granite and chalk." in text and text.count("basalt") == 2 and "marble" not in text


def test_both_versions_of_an_entry_that_both_sides_changed_are_entries(pair: tuple[Path, Path]) -> None:
    here, there = pair
    edit(here, DECISIONS, "Granite.", "Granite is ours.")
    edit(there, DECISIONS, "Granite.", "Granite is theirs.")
    commit(there)
    git(there, "push", "--quiet")
    done = command(here, "git", "sync")
    assert done.returncode == 0, done.stderr
    assert '"Base" was changed on both sides: both versions are kept' in done.stderr
    first, second = sections.parse((here / DECISIONS).read_text())
    assert first.title == "Base" and second.title.startswith("Base (other version, ")
    assert {first.text, second.text} == {"Granite is ours.", "Granite is theirs."}
    assert "<<<<" not in (here / DECISIONS).read_text()
    (warning,) = [one for one in json.loads(run(here, "lint", "--json"))["faults"] if one["rule"] == "conflict"]
    assert (warning["path"], warning["line"], warning["level"]) == (DECISIONS, 9, "warning")


DAYS = st.sampled_from(["2026-01-01", "2026-01-02", "2026-01-03"])
ENTRIES = st.dictionaries(
    st.tuples(DAYS, st.sampled_from("abcd")), st.sampled_from(["x", "y", "z\n\n```\ncode\n```"]), min_size=1
)


def page(entries: dict[tuple[str, str], str]) -> bytes:
    text = "# Decisions\n"
    for (date, title), body in sorted(entries.items()):
        text = sections.add(text, sections.render(date, title, body))
    return text.encode()


def never(_sides: Sides) -> Merged:
    raise AssertionError("merged by lines")


@given(ENTRIES, ENTRIES, ENTRIES)
def test_a_merge_of_entries_loses_none_and_is_the_same_from_both_sides(
    base: dict[tuple[str, str], str], ours: dict[tuple[str, str], str], theirs: dict[tuple[str, str], str]
) -> None:
    one = three_way.merge_entries(Sides(page(base), page(ours), page(theirs)), never)
    two = three_way.merge_entries(Sides(page(base), page(theirs), page(ours)), never)
    found = sections.parse(one.data.decode())
    assert sorted(each.source.strip() for each in found) == sorted(
        each.source.strip() for each in sections.parse(two.data.decode())
    )
    texts = {(each.date, each.title[:1], each.text) for each in found}
    for side in (ours, theirs):
        for (date, title), text in side.items():
            unchanged = base.get((date, title)) == text
            assert unchanged or (date, title, text) in texts
    assert [each.date for each in found] == sorted(each.date for each in found)
    assert not one.conflict
    if not found:  # a page without entries is merged by lines
        return
    again = three_way.merge_entries(Sides(page(ours), page(ours), one.data), never)
    assert {each.source.strip() for each in sections.parse(again.data.decode())} == {
        each.source.strip() for each in found
    }


# documents


def test_front_matter_that_both_sides_changed_is_merged_by_field(pair: tuple[Path, Path]) -> None:
    here, there = pair
    edit(here, NOTE, "updated: 2026-01-01", "updated: 2026-02-01\ntags: [ours]")
    edit(here, NOTE, "One.", "One, ours.")
    edit(there, NOTE, "updated: 2026-01-01", "updated: 2026-03-01\nsource: theirs")
    edit(there, NOTE, "Four.", "Four, theirs.")
    merge(pair)
    with holdfast.open(here) as memory:
        note = memory.get(NOTE)
    assert note.text == "One, ours.\n\nTwo.\n\nThree.\n\nFour, theirs."
    assert (note.updated[:10], note.tags, note.fields["source"]) == ("2026-03-01", ("ours",), "theirs")


# logs


def test_a_merge_of_logs_has_each_entry_once_in_the_order_of_ids(pair: tuple[Path, Path]) -> None:
    here, there = pair
    for root in (here, there, here):
        with holdfast.open(root) as memory:
            memory.put("fact", root.name, title="stone")
        if root is there:
            with open(root / FACTS, "ab") as file:
                file.write(b'{"id": torn\n')
    merge(pair)
    lines = (here / FACTS).read_text().splitlines()
    assert lines.count('{"id": torn') == 1
    lines.remove('{"id": torn')
    found = [json.loads(line)["id"] for line in lines]
    assert len(found) == 3 and found == sorted(set(found))


def test_a_merge_of_logs_does_not_restore_a_forgotten_entry(pair: tuple[Path, Path]) -> None:
    here, there = pair
    with holdfast.open(here) as memory:
        secret = memory.put("fact", "the combination is tulip", title="safe").id
    run(here, "git", "sync")
    run(there, "git", "sync")
    run(here, "forget", secret, "--yes")
    with holdfast.open(there) as memory:
        memory.put("fact", "granite", title="stone")
    merge(pair)
    assert "tulip" not in (here / FACTS).read_text()
    assert len(ids(here / FACTS)) == 2


def test_an_entry_that_one_side_lost_is_not_lost_to_a_merge() -> None:
    first, second = (f'{{"id":"01a1f224-95db-7d1c-9ed0-4dc83417000{digit}"}}\n'.encode() for digit in "12")
    merged = three_way.merge_log(Sides(first + b"torn\n", second, first + b"torn\n"))
    assert merged.data == first + second, "a damaged line that one side removed is gone"


# clones without the driver


def test_a_clone_without_the_driver_merges_as_git_does_and_doctor_says_so(pair: tuple[Path, Path]) -> None:
    here, there = pair
    git(here, "config", "--remove-section", "merge.holdfast")
    git(here, "config", "--remove-section", "merge.holdfast-log")
    checks = {one["check"]: one for one in json.loads(command(here, "doctor", "--json").stdout)["checks"]}
    assert checks["git"]["state"] == "warn" and "holdfast git" in checks["git"]["next"]
    (here / ".git/info/attributes").unlink()
    for root in (here, there):
        with holdfast.open(root) as memory:
            memory.put("decision", f"{root.name} stones.", title=root.name)
            memory.put("fact", root.name, title="stone")
    merge(pair, conflict=True)
    assert "<<<<<<< HEAD" in (here / DECISIONS).read_text()
    assert len(ids(here / FACTS)) == 2
    assert "merge.holdfast.driver" in run(here, "git", "setup")
    checks = {one["check"]: one for one in json.loads(command(here, "doctor", "--json").stdout)["checks"]}
    assert checks["git"]["state"] == "ok"


@pytest.mark.parametrize("fault", ["gone", "broken"])
def test_a_driver_that_cannot_be_started_loses_nothing(pair: tuple[Path, Path], fault: str) -> None:
    here, there = pair
    for name in ("holdfast", "holdfast-log"):
        driver = git(here, "config", "--get", f"merge.{name}.driver").strip()
        other = (
            driver.replace(sys.executable, "/nowhere/python")
            if fault == "gone"
            else driver.replace("-m holdfast", "-m x")
        )
        assert other != driver
        git(here, "config", f"merge.{name}.driver", other)
    for root in (here, there):
        with holdfast.open(root) as memory:
            memory.put("decision", f"{root.name} stones.", title=root.name)
            memory.put("fact", root.name, title="stone")
    merge(pair, conflict=True)
    text = (here / DECISIONS).read_text()
    assert "<<<<<<< ours" in text and "here stones." in text and "there stones." in text
    assert len(ids(here / FACTS)) == 2


def test_setup_outside_of_git_says_what_to_do(root: Path) -> None:
    assert "Run: git init" in run(root, "git", "setup", code=Invalid.exit_code)


# sync


def test_sync_says_how_many_files_it_commits(pair: tuple[Path, Path]) -> None:
    here, _ = pair
    with holdfast.open(here) as memory:
        memory.put("decision", "Marble.", title="New")
    (here / NOTE).unlink()
    run(here, "git", "sync")
    assert git(here, "log", "-1", "--format=%s").strip() == "Update the memory: 2 changed, 1 removed"


def test_sync_commits_nothing_outside_of_the_memory(tmp_path: Path) -> None:
    root = tmp_path / "project/memory"
    make_root(str(root))
    git(tmp_path, "init", "--quiet", "--initial-branch=main", str(root.parent))
    (root.parent / "code.py").write_text("half done")
    said = run(root, "git", "sync", code=Unavailable.exit_code)
    assert "has no remote: the changes are committed here" in said and "git remote add origin URL" in said
    assert all(path.startswith("memory/") for path in git(root.parent, "ls-files").splitlines())
    assert git(root.parent, "status", "--porcelain").splitlines() == ["?? code.py"]


def test_sync_without_the_remote_commits_and_says_so(pair: tuple[Path, Path]) -> None:
    here, _ = pair
    shutil.move(here.parent / "middle.git", here.parent / "away.git")
    with holdfast.open(here) as memory:
        memory.put("decision", "Marble.", title="New")
    assert "could not be reached" in run(here, "git", "sync", code=Unavailable.exit_code)
    assert git(here, "status", "--porcelain") == ""
    shutil.move(here.parent / "away.git", here.parent / "middle.git")
    run(here, "git", "sync")
    assert git(here, "rev-parse", "HEAD") == git(here.parent / "middle.git", "rev-parse", "main")


def test_sync_stops_at_a_conflict_and_goes_on_when_it_is_resolved(pair: tuple[Path, Path]) -> None:
    here, there = pair
    edit(there, NOTE, "Two.", "Two, theirs.")
    run(there, "git", "sync")
    edit(here, NOTE, "Two.", "Two, ours.")
    said = run(here, "git", "sync", code=Conflict.exit_code)
    assert f"in conflict: {NOTE}" in said and f"git add {NOTE}; then: holdfast git sync" in said
    with holdfast.open(here) as memory:
        assert "Two, ours." in memory.get(NOTE).text and "theirs" not in memory.get(NOTE).text
        added = memory.put("fact", "granite", title="stone").id
    head = git(here, "rev-parse", "HEAD")
    run(here, "git", "sync", code=Conflict.exit_code)
    git(here, "add", NOTE)
    said = run(here, "git", "sync", code=Conflict.exit_code)
    assert NOTE in said, "the marks are still in it"
    assert git(here, "rev-parse", "HEAD") == head
    (here / NOTE).write_text("---\nname: Stones\n---\n\nTwo, both.\n")
    git(here, "add", NOTE)
    run(here, "git", "sync")
    run(there, "git", "sync")
    assert "Two, both." in (there / NOTE).read_text()
    assert added in ids(there / FACTS)


def test_a_sync_that_another_one_overtakes_tries_again(pair: tuple[Path, Path]) -> None:
    here, there = pair
    for root in pair:
        with holdfast.open(root) as memory:
            memory.put("decision", f"{root.name} stones.", title=root.name)
    commit(there)
    hook = here / ".git/hooks/pre-push"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\nunset GIT_DIR\ngit -C '{there}' push --quiet\nexit 0\n")
    hook.chmod(0o755)
    run(here, "git", "sync")
    assert set(titles(here)) == {"Base", "here", "there"}
    assert git(here, "rev-parse", "HEAD") == git(here.parent / "middle.git", "rev-parse", "main")


# a file with a conflict


def test_a_conflict_is_never_read_and_the_reader_is_told(pair: tuple[Path, Path]) -> None:
    here, _ = pair
    edit(here, NOTE, "Two.\n", MARKED)
    edit(here, DECISIONS, "Granite.\n", f"Granite.\n\n---\n\n### [2026-02-01] Stones\n\n{MARKED}")
    step = "Resolve the conflict in {0}, then: git add {0}"
    with holdfast.open(here) as memory:
        found = memory.find("stones")
        assert {hit.record.path for hit in found} == {NOTE, DECISIONS}
        for hit in found:
            assert "Our stones." in hit.record.text
            assert not any(mark in hit.record.text for mark in ("Their", "<<<<<<<", "=======", ">>>>>>>"))
            assert hit.record.fields["mergeConflict"] == step.format(hit.record.path)
        assert not memory.find('"Their stones"')
        assert step.format(NOTE) in str(memory.call("recall", {"query": "stones"})["warnings"])
        assert step.format(NOTE) in memory.call("read", {"id": NOTE})["text"]
        assert {problem.path for problem in memory.verify().damage} == {NOTE, DECISIONS}
        for write in (
            functools.partial(memory.put, "decision", "Marble.", title="New"),
            functools.partial(memory.put, id=NOTE, text="Marble.", expect=memory.get(NOTE).version),
            functools.partial(memory.hide, NOTE),
            functools.partial(memory.replace, NOTE, b"Marble."),
        ):
            with pytest.raises(Damaged) as caught:
                write()
            assert "an unresolved merge conflict" in str(caught.value) and "then: git add " in str(caught.value)
    assert step.format(NOTE) in run(here, "get", NOTE)
    assert step.format(NOTE) in run(here, "verify", code=Damaged.exit_code)
    rules = [
        one["path"] for one in json.loads(run(here, "lint", "--json", code=1))["faults"] if one["rule"] == "conflict"
    ]
    assert rules == [NOTE, DECISIONS]


def test_an_entry_that_only_their_side_has_is_not_found_because_of_the_conflict(pair: tuple[Path, Path]) -> None:
    here, _ = pair
    with open(here / DECISIONS, "a") as file:
        file.write("<<<<<<< ours\n=======\n### [2026-02-01] Theirs\n\nBasalt.\n\n---\n>>>>>>> theirs\n")
    with holdfast.open(here) as memory, pytest.raises(Damaged, match="Resolve the conflict in user"):
        memory.get(f"{DECISIONS}#2026-02-01-theirs")


def test_the_text_before_both_changes_is_not_read_either(pair: tuple[Path, Path]) -> None:
    here, _ = pair
    edit(here, NOTE, "Two.\n", "<<<<<<< ours\nOurs.\n||||||| base\nTwo.\n=======\nTheirs.\n>>>>>>> theirs\n")
    with holdfast.open(here) as memory:
        assert memory.get(NOTE).text == "One.\n\nOurs.\n\nThree.\n\nFour."


def test_a_conflict_inside_a_conflict_is_not_read(pair: tuple[Path, Path]) -> None:
    here, _ = pair
    edit(here, NOTE, "Two.\n", f"<<<<<<< ours\n{MARKED}=======\nOther stones.\n>>>>>>> theirs\n")
    with holdfast.open(here) as memory:
        assert memory.get(NOTE).text == "One.\n\nOur stones.\n\nThree.\n\nFour."


@pytest.mark.parametrize(
    "text",
    [
        "A heading\n=======\n\nText.",
        f"```\n{MARKED}```",
        "<<<<<<< ours\n>>>>>>> theirs",
        "a <<<<<<<\n=======\n>>>>>>> b",
    ],
)
def test_text_without_a_whole_set_of_marks_is_text(root: Path, text: str) -> None:
    with holdfast.open(root) as memory:
        note = memory.put("note", text, title="Stones").id
        assert memory.get(note).text == text
        assert memory.verify().sound


def test_a_text_that_would_be_read_as_a_conflict_is_refused_except_in_a_save_point(root: Path) -> None:
    with holdfast.open(root) as memory:
        with pytest.raises(Invalid, match="Put it into a code block"):
            memory.put("note", MARKED, title="Stones")
        state = memory.put("state", MARKED, title="Stones").id
        assert memory.get(state).text == MARKED.strip()
        assert memory.verify().sound


def test_rules_and_long_term_memory_are_read_without_a_conflict(root: Path) -> None:
    for path in ("agent/rules/common/stones.md", "user/memory/MEMORY.md"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"# Stones\n\n{MARKED}")
    text = run(root, "context")
    assert text.count("Our stones.") == 2 and "Their stones." not in text and "<<<<<<<" not in text


def test_marks_in_a_log_are_reported_as_what_they_are(pair: tuple[Path, Path]) -> None:
    here, _ = pair
    with holdfast.open(here) as memory:
        memory.put("fact", "granite", title="stone")
    line = (here / FACTS).read_text()
    (here / FACTS).write_text(f"<<<<<<< ours\n{line}=======\n{line}>>>>>>> theirs\n")
    with holdfast.open(here) as memory:
        what = [str(one) for one in memory.verify().damage]
    marks = [one for one in what if "a mark that git left in a merge conflict" in one]
    assert [one.split(":")[1] for one in marks] == ["1", "3", "5"]
