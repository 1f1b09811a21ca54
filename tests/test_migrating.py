"""`migrate front-matter`: shows first, adds what is missing, loses nothing, and does nothing the second time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import Memory
from holdfast.cli.owner import migrate
from holdfast.errors import Invalid
from holdfast.formats import markdown
from holdfast.memories.lint import lint
from holdfast.memories.upkeep import PageChange, apply, plan_changes
from holdfast.model.records import version_of
from terminal import on_terminal

WORKSPACES = "resources/workspaces"
PLAN = f"{WORKSPACES}/w/_plans/260208-workflow-engine.md"
OVERVIEW = f"{WORKSPACES}/w/OVERVIEW.md"
ABSTRACT = f"{WORKSPACES}/w/ABSTRACT.md"
LONG = "The first sentence says what it is. " + "Then come many words that say more of it, one after the other. " * 10


def write(root: Path, path: str, text: str | bytes) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def fields_of(memory: Memory, **options: Any) -> dict[str, Any]:
    (change,) = plan_changes(memory, **options)
    return change.fields


def tree(root: Path) -> dict[str, bytes]:
    """Return every page, and what was kept of earlier ones."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and (path.suffix == ".md" or path.parent.name == "kept")
    }


def migrated(memory: Memory, root: Path) -> list[str]:
    """Apply what is to be changed; prove that nothing is left and that a second time changes nothing."""
    results = apply(memory, plan_changes(memory))
    assert [fault for fault in lint(memory).faults if fault.rule in ("front-matter", "abstract")] == []
    before = tree(root)
    assert plan_changes(memory) == []
    assert apply(memory, plan_changes(memory)) == []
    assert tree(root) == before
    return [result.status for result in results]


def test_a_plan_without_front_matter_gets_it_from_what_it_says(root: Path, memory: Memory) -> None:
    body = "# Workflow Engine #\n\n<!-- a\n\nremark -->\n\n- [x] one\n- [ ] two\n\nRuns graphs\nof tasks. In order.\n\nMore.\n"
    file = write(root, PLAN, body)
    (change,) = plan_changes(memory)
    assert list(change.fields.items()) == [
        ("name", "Workflow Engine"),
        ("description", "Runs graphs of tasks. In order."),
        ("status", "in_progress"),
        ("created", "2026-02-08"),
        ("tags", []),
    ]
    assert (change.path, change.guessed, change.version) == (PLAN, (), version_of(body.encode()))
    assert file.read_text() == body
    assert migrated(memory, root) == ["changed"]
    assert file.read_text().endswith("tags: []\n---\n" + body)
    assert (root / f"user/memory/writes/kept/{change.version}").read_text() == body


def test_what_nobody_wrote_is_marked_as_a_guess(root: Path, memory: Memory) -> None:
    file = write(root, f"{WORKSPACES}/w/_plans/the-api_of v2-for-iOS.md", "")
    os.utime(file, (1_699_956_000, 1_699_956_000))
    (change,) = plan_changes(memory)
    assert change.fields == {
        "name": "The api of v2 for iOS",
        "description": "The api of v2 for iOS",
        "status": "new",
        "created": "2023-11-14",
        "tags": [],
    }
    assert change.guessed == ("description", "status", "created")
    (change,) = plan_changes(memory, status="abandoned")
    assert (change.fields["status"], "status" in change.guessed) == ("abandoned", True)
    with pytest.raises(Invalid, match="Use one of: new, in_progress"):
        plan_changes(memory, status="finished")


def test_a_prefix_that_is_no_date_is_no_date(root: Path, memory: Memory) -> None:
    file = write(root, f"{WORKSPACES}/w/_plans/261399-x.md", "text\n")
    os.utime(file, (1_699_956_000, 1_699_956_000))
    assert fields_of(memory)["created"] == "2023-11-14"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("- [x] a\n* [X] b\n1. [x] c\n", "done"),
        ("- [x] a\n  - [ ] b\n", "in_progress"),
        ("- [ ] a\n- [ ] b\n", "new"),
        ("- [x] a\n\n```\n- [ ] in code\n```\n", "done"),
        ("- [x](link.md)\n- [ ]()\n", "partial"),
    ],
)
def test_the_status_is_what_the_check_boxes_show(root: Path, memory: Memory, body: str, status: str) -> None:
    write(root, PLAN, body)
    assert fields_of(memory, status="partial")["status"] == status


@pytest.mark.parametrize(
    ("body", "description"),
    [
        ("# A\nText at once.\n", "Text at once."),
        ("# A\n\n> quote\n\n| a |\n|---|\n\n---\n\n![i](x.png)\n\n    code\n\n1. one\n\n**Bold** text\r\ngoes on.\r\n", "**Bold** text goes on."),
        ("```\ncode\n```\n\nProse.\n- list\n", "Prose."),
        ("One. " * 30 + "Two " * 30, ("One. " * 30).strip()),
        ("word " * 100, "word " * 38 + "word…"),
        ("字" * 150 + "。" + "字" * 150 + "。", "字" * 150 + "。"),
        ("# Only headings\n\n## Here\n", "Only headings"),
    ],
)  # fmt: skip
def test_the_description_is_the_first_paragraph_of_prose(
    root: Path, memory: Memory, body: str, description: str
) -> None:
    write(root, PLAN, body)
    assert fields_of(memory)["description"] == description
    assert len(description) <= 200


def test_present_fields_and_their_lines_stay_and_blank_ones_are_filled(root: Path, memory: Memory) -> None:
    before = "\ufeff---\n# mine\nstatus: weird   # why\nother: {a: 1}\nname:\ntags:\n---\n\n# Title\n\nText.\n".replace(
        "\n", "\r\n"
    )
    file = write(root, PLAN, before)
    assert fields_of(memory) == {"name": "Title", "description": "Text.", "created": "2026-02-08"}
    migrated(memory, root)
    after = before.replace("name:", "name: Title").replace(
        "tags:\r\n", "tags:\r\ndescription: Text.\r\ncreated: 2026-02-08\r\n"
    )
    assert file.read_bytes().decode().replace('"Text."', "Text.") == after


def test_an_overview_gets_a_name_a_description_and_tags(root: Path, memory: Memory) -> None:
    write(root, OVERVIEW, "# Dev Tools\n\nFor us.\n")
    write(root, f"{WORKSPACES}/w/domain/OVERVIEW.md", "")
    first, second = sorted(plan_changes(memory), key=lambda change: len(change.path))
    assert first.fields == {"name": "Dev Tools", "description": "For us.", "tags": []}
    assert second.fields == {"name": "domain", "description": "domain", "tags": []}
    assert second.guessed == ("description",)
    assert migrated(memory, root) == ["changed", "changed"]


def test_other_pages_and_other_scopes_are_left_alone(root: Path, memory: Memory) -> None:
    for path in (f"{WORKSPACES}/w/_notes/n.md", f"{WORKSPACES}/w/_features/f.md", "user/memory/MEMORY.md"):
        write(root, path, "# Text\n")
    write(root, PLAN, "# Text\n")
    write(root, PLAN.replace("/w/", "/v/"), "# Text\n")
    assert [change.path for change in plan_changes(memory, "w")] == [PLAN]
    assert len(plan_changes(memory)) == 2


# abstracts


def kept(root: Path, text: str) -> bool:
    return (root / f"user/memory/writes/kept/{version_of(text.encode())}").read_text() == text


def test_an_abstract_becomes_the_description(root: Path, memory: Memory) -> None:
    abstract = "---\nx: 1\n---\n\n# Abstract\n\nWhat it is,\nin a word.\n\nAnd more.\n"
    write(root, ABSTRACT, abstract)
    file = write(root, OVERVIEW, "---\nname: W\ntags: [a]\n---\n\nBody.\n")
    (change,) = plan_changes(memory)
    assert (change.folds, change.fields, change.section) == (
        ABSTRACT,
        {"description": "What it is, in a word. And more.", "x": 1},
        "",
    )
    assert migrated(memory, root) == ["changed"]
    assert file.read_text().endswith("---\n\nBody.\n")
    assert not (root / ABSTRACT).exists()
    assert kept(root, abstract)


def test_a_long_abstract_is_shortened_and_kept_whole_in_the_body(root: Path, memory: Memory) -> None:
    write(root, ABSTRACT, f"{LONG}\r\n\r\n* a list\r\n")
    file = write(root, OVERVIEW, "---\nname: W\n---\n\nBody without an end")
    migrated(memory, root)
    page = markdown.parse(file.read_bytes())
    assert page.fields["description"].startswith("The first sentence says what it is.")
    assert 200 < len(page.fields["description"]) <= 300
    assert page.fields["description"].endswith("other.")
    assert page.body == f"\nBody without an end\n\n## Abstract\n\n{LONG}\n\n* a list\n"


@pytest.mark.parametrize(("present", "added"), [("Another text.", True), ("What it\n  is.", False)])
def test_an_abstract_beside_a_description_is_added_to_the_body_unless_both_say_the_same(
    root: Path, memory: Memory, present: str, added: bool
) -> None:
    write(root, ABSTRACT, "What it is.\n")
    file = write(root, OVERVIEW, f"---\nname: W\ndescription: {present}\ntags: []\n---\r\n\r\nBody.\r\n")
    before = file.read_bytes()
    migrated(memory, root)
    assert file.read_bytes() == before + (b"\r\n## Abstract\r\n\r\nWhat it is.\r\n" if added else b"")
    assert not (root / ABSTRACT).exists()


def test_the_front_matter_of_an_abstract_is_carried_over_or_named(root: Path, memory: Memory) -> None:
    write(root, ABSTRACT, "---\nname: Tools\ntags: [a, b]\ndescription: In short.\narchived: true\n---\n\nAt length.\n")
    write(root, OVERVIEW, "# Heading\n\nBody.\n")
    other = f"{WORKSPACES}/v/OVERVIEW.md"
    write(root, f"{WORKSPACES}/v/ABSTRACT.md", "---\nname: Other\ntags: [b]\nowner: ann\n---\nShort.\n")
    write(root, other, "---\nname: V\ndescription: Short.\ntags: [a]\n---\n")
    first, second = sorted(plan_changes(memory), key=lambda change: change.path, reverse=True)
    assert first.fields == {"name": "Tools", "description": "In short.", "tags": ["a", "b"]}
    assert (first.section, first.differs) == ("At length.", {})
    assert (second.fields, second.differs) == ({"owner": "ann"}, {"tags": ["b"], "name": "Other"})
    said = on_terminal("migrate", "front-matter", root=root)
    assert "+ name: Tools" in said and '+ tags: ["a","b"]' in said
    assert "left behind, OVERVIEW.md has another value: name: Other" in said
    assert 'left behind, OVERVIEW.md has another value: tags: ["b"]' in said
    assert (root / ABSTRACT).exists(), "it was only shown"
    assert sorted(migrated(memory, root)) == ["changed", "changed"]
    assert (memory.get(OVERVIEW).title, memory.get(OVERVIEW).tags) == ("Tools", ("a", "b"))
    assert not memory.get(OVERVIEW).hidden
    assert "At length." in memory.get(OVERVIEW).text
    assert (memory.get(other).title, memory.get(other).tags) == ("V", ("a",))


@pytest.mark.parametrize("text", ["# Tools\n\nShort.\n", LONG + "\n", "", "---\ndescription: Said above.\n---\n"])
def test_an_abstract_without_an_overview_makes_one(root: Path, memory: Memory, text: str) -> None:
    write(root, ABSTRACT, text)
    assert migrated(memory, root) == ["created"]
    record = memory.get(OVERVIEW)
    assert record.title == ("Tools" if text.startswith("#") else "w")
    expected = {"": "w", "-": "Said above.", "#": "Short."}
    assert record.fields["description"] == expected.get(text[:1], record.fields["description"])
    assert (LONG.strip() in record.text) == (text == LONG + "\n")
    assert kept(root, text)


def test_a_crash_before_the_abstract_was_moved_is_healed(root: Path, memory: Memory) -> None:
    for text in ("Short.\n", LONG):
        write(root, ABSTRACT, text)
        (root / OVERVIEW).unlink(missing_ok=True)
        apply(memory, plan_changes(memory))
        overview = (root / OVERVIEW).read_bytes()
        write(root, ABSTRACT, text)
        assert migrated(memory, root) == ["changed"]
        assert (root / OVERVIEW).read_bytes() == overview
        assert not (root / ABSTRACT).exists()


# what cannot be changed


def test_a_page_with_broken_front_matter_is_skipped_and_reported(root: Path, memory: Memory) -> None:
    write(root, PLAN, "---\nname: [\n---\n")
    write(root, OVERVIEW, b"caf\xe9\n")
    write(root, f"{WORKSPACES}/v/ABSTRACT.md", "---\nopen: 1\n")
    write(root, f"{WORKSPACES}/v/OVERVIEW.md", "text\n")
    before = {path: data for path, data in tree(root).items() if "/w/" in path or "ABSTRACT" in path}
    results = apply(memory, plan_changes(memory))
    assert {result.path: result.status for result in results} == {
        PLAN: "skipped",
        OVERVIEW: "skipped",
        f"{WORKSPACES}/v/ABSTRACT.md": "skipped",
        f"{WORKSPACES}/v/OVERVIEW.md": "changed",
    }
    assert next(result for result in results if result.path == PLAN).why.startswith("line ")
    assert before.items() <= tree(root).items()


def test_a_page_that_changed_meanwhile_is_skipped_and_the_others_go_on(root: Path, memory: Memory) -> None:
    write(root, ABSTRACT, "Short.\n")
    paths = [PLAN, PLAN.replace("engine", "other"), f"{WORKSPACES}/v/OVERVIEW.md", f"{WORKSPACES}/u/OVERVIEW.md"]
    for path in paths[:3]:
        write(root, path, "text\n")
    write(root, f"{WORKSPACES}/u/ABSTRACT.md", "text\n")
    changes = plan_changes(memory)
    write(root, PLAN, "somebody else's\n")
    write(root, ABSTRACT, "Changed.\n")
    write(root, paths[3], "made meanwhile\n")
    results = {result.path: result for result in apply(memory, changes)}
    assert {path for path, result in results.items() if result.status == "skipped"} == {PLAN, OVERVIEW, paths[3]}
    assert "nothing was written" in results[PLAN].why
    assert (root / PLAN).read_text() == "somebody else's\n"
    assert (root / ABSTRACT).read_text() == "Changed.\n"
    assert not (root / OVERVIEW).exists()
    assert (root / f"{WORKSPACES}/u/ABSTRACT.md").exists()


def test_a_change_that_was_applied_before_is_not_applied_again(root: Path, memory: Memory) -> None:
    write(root, PLAN, "text\n")
    changes = plan_changes(memory)
    apply(memory, changes)
    before = tree(root)
    assert [result.status for result in apply(memory, changes)] == ["skipped"]
    assert tree(root) == before


def test_the_write_log_tells_of_every_page(root: Path, memory: Memory) -> None:
    write(root, ABSTRACT, "Short.\n")
    apply(memory, plan_changes(memory))
    (log,) = (root / "user/memory/writes").glob("*.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["path"], "before" in line, "after" in line) for line in lines] == [
        (OVERVIEW, False, True),
        (ABSTRACT, True, False),
    ]


def test_the_command_shows_first_and_changes_with_apply(root: Path) -> None:
    file = write(root, PLAN, "text\n")
    runner = CliRunner()

    def run(*words: str) -> Any:
        done = runner.invoke(migrate, ["front-matter", *words, "--root", str(root), "--json"])
        return done.exit_code, json.loads(done.stdout)

    code, told = run("w", "--status", "done")
    assert (code, told["applied"], told["results"]) == (0, False, [])
    assert told["changes"][0]["fields"]["status"] == "done"
    assert told["changes"][0]["guessed"] == ["status"]
    assert file.read_text() == "text\n"
    assert run("--apply")[1]["results"] == [{"path": PLAN, "status": "changed"}]
    assert run("--apply")[1]["results"] == []
    write(root, OVERVIEW, "---\n")
    assert run()[0] == 0
    assert run("--apply")[0] == 1


def test_a_change_can_be_made_by_hand(root: Path, memory: Memory) -> None:
    write(root, PLAN, "text\n")
    (result,) = apply(memory, [PageChange(PLAN, {"name": "Mine"}, version=version_of(b"text\n"))])
    assert result.status == "changed"
    assert (root / PLAN).read_text() == "---\nname: Mine\n---\ntext\n"
