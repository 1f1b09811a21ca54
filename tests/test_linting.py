"""`lint` reports every planted fault once, with its line, and nothing else; `--fix` corrects only safe ones."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Memory
from holdfast.cli.owner import lint as command
from holdfast.errors import NotFound
from holdfast.memories.lint import LintReport, lint
from holdfast.model.queries import Query

WORKSPACES = "resources/workspaces"
LEARNED = "user/memory/workspaces"

OVERVIEW = "---\nname: {}\ndescription: What it is.\n---\n\n# {}\n\nText.\n"
PLAN = "---\nname: {}\ndescription: What is done.\nstatus: {}\ncreated: {}\n{}---\n\n# Plan\n\nText.\n"
ENTRY = "### [2026-02-08] {}\n\n**Category:** tooling\n\nBecause.\n\n---\n\n"


def write(root: Path, path: str, text: str | bytes) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def plan(name: str = "A", status: str = "done", created: str = "2026-02-08", more: str = "") -> str:
    return PLAN.format(name, status, created, more)


def found(report: LintReport) -> list[tuple[str, int, str]]:
    return [(fault.path, fault.line, fault.rule) for fault in report.faults]


def only(memory: Memory, rule: str) -> list[int]:
    return [fault.line for fault in lint(memory).faults if fault.rule == rule]


CLEAN = {
    "agent/rules/common/profile.md": "---\ndescription: who\n---\n<!-- budget: 10 lines -->\n# Me\n\nShort.\n",
    f"{WORKSPACES}/w/OVERVIEW.md": OVERVIEW.format("Work", "Work"),
    f"{WORKSPACES}/w/d/OVERVIEW.md": "\ufeff" + OVERVIEW.format("Domain", "Domain").replace("\n", "\r\n"),
    f"{WORKSPACES}/w/d/_plans/260208-engine.md": plan("Engine", "in_progress", "2026-02-08", "updated: 2026-02-08\n"),
    f"{WORKSPACES}/w/d/_plans/260209-tabs.md": "---\nname:\tTabs\ndescription:\tx\nstatus:\tdone\ncreated:\t2026-02-09\n---\n",
    f"{WORKSPACES}/w/d/_plans/260210-time.md": plan("Time", "new", "2026-02-08T10:00:00Z", "aliases: [clock]\n"),
    f"{WORKSPACES}/w/_skills/deploying/SKILL.md": "---\nname: How to deploy\ndescription: y\n---\nDo it.\n",
    f"{WORKSPACES}/w/_notes/links.md": (
        "---\nabout: '[[Engine]]'\nmatrix: [[1, 2], [3]]\nnested: [[nowhere]]\n---\n"
        "[[Work]] [[work]] [[w/d]] [[d]] [[engine]] [[260208-engine]] [[260208-engine.md|label]] [[ENGINE#part]]\n"
        "[[resources/workspaces/w/d/_plans/260208-engine]] [[clock]] [[deploying]] [[How to deploy]] [[A choice]]\n"
        "[[2026-02-08-a-choice]] [[user/memory/workspaces/w/decisions.md#2026-02-08-a-choice]] [[decisions]] [[editor]]\n"
        "[p](../d/_plans/260208-engine.md) [q](../OVERVIEW.md#part) [folder](../d) [self](#here) [web](https://x.org/a.md)\n"
        "[mail](mailto:a@b.c) [call](tel:123) [abs](/etc/passwd) [out](../../../../../x.md) [data](data.csv) ![i](no.png)\n"
        "`[[not a link]]` and\n\n```\n[[not a link]] [x](nothing.md)\n```\n"
    ),
    f"{WORKSPACES}/w/_notes/data.csv": "1,2\n",
    f"{LEARNED}/w/decisions.md": (
        "# Decisions\n\nHow: `### [2026-02-08] Title`.\n\n"
        + ENTRY.format("A choice")
        + "### [2026-02-09] Another\n\n#### 2026-02-10 update\n\n ### 2026-02-11 indented\n\n"
        "```\n### 2026-02-12 in code\n## [2026-02-12] in code\n```\n\nSee ### 2026-02-12 here. ## 1.2.3 release\n"
    ),
    f"{LEARNED}/w/lessons-2020.md": "# Lessons 2020\n\n" + "".join(
        f"### [2020-01-01] Old {number}\n\nText with [[gone]].\n\n" for number in range(60)
    ),
    f"{LEARNED}/w/lessons.md": (
        "### [2026-01-01] Put away\n\n**Archived:** 2026-02-01\n\n[[gone]] [x](gone.md)\n\n---\n\n" + ENTRY.format("Live")
    ),
    "user/memory/MEMORY.md": "See [[Engine]].\n",
    "user/memory/semantic.jsonl": '{"key": "editor", "value": "vim"}\n',
    "resources/workspaces/README.md": "---\nbroken: [\n---\nno place, so not ours\n",
    "resources/README.md": "[[nothing]]\n",
}  # fmt: skip


def test_a_clean_tree_has_no_faults(root: Path, memory: Memory) -> None:
    for path, text in CLEAN.items():
        write(root, path, text)
    memory.put("state", "text [[gone]] [x](gone.md)", title="A state", scope="w")
    report = lint(memory)
    assert [str(fault) for fault in report.faults] == []
    assert (report.files, report.errors, report.warnings) == (13, 0, 0)


BROKEN: dict[str, tuple[str | bytes, list[tuple[int, str]]]] = {
    "agent/rules/common/none.md": ("# A rule\n", [(1, "budget")]),
    "agent/rules/common/over.md": ("---\na: 1\n---\n\n<!-- budget: 6 lines -->\nx\ny\nz\n", [(5, "budget")]),
    f"{WORKSPACES}/w/OVERVIEW.md": ("# No front matter\n", [(1, "front-matter")]),
    f"{WORKSPACES}/w/a/OVERVIEW.md": ("---\nname: '  '\ndescription: x\n---\n", [(1, "front-matter")]),
    f"{WORKSPACES}/w/a/ABSTRACT.md": ("Beside.\n", [(1, "abstract")]),
    f"{WORKSPACES}/w/b/ABSTRACT.md": ("Alone, with [[nothing at all]].\n", [(1, "abstract"), (1, "link")]),
    f"{WORKSPACES}/w/b/_notes/ABSTRACT.md": ("No overview can be beside it.\n", []),
    f"{WORKSPACES}/w/_plans/260101-yaml.md": ("---\nname: x\ntags: [a\nstatus: new\n---\nx\n", [(4, "front-matter")]),
    f"{WORKSPACES}/w/_plans/260102-open.md": ("---\nname: x\n", [(1, "front-matter")]),
    f"{WORKSPACES}/w/_plans/260103-list.md": ("---\n- a\n---\n", [(2, "front-matter")]),
    f"{WORKSPACES}/w/_plans/260104-lacks.md": ("---\nname: x\nstatus:\n---\n", [(1, "front-matter")]),
    f"{WORKSPACES}/w/_plans/260105-status.md": (plan(status="finished"), [(4, "status")]),
    f"{WORKSPACES}/w/_plans/260106-status.md": ("---\n# why\n" + plan(status="[done]")[4:], [(5, "status")]),
    f"{WORKSPACES}/w/_plans/260107-date.md": (plan(created="2026-02-30"), [(5, "date")]),
    f"{WORKSPACES}/w/_plans/260108-date.md": (plan(more="updated: yesterday\n"), [(6, "date")]),
    f"{WORKSPACES}/w/_plans/260109-date.md": (plan(created="20260208"), [(5, "date")]),
    f"{WORKSPACES}/w/_plans/260110-order.md": (plan(more="tags: []\nupdated: 2026-02-07\n"), [(7, "date")]),
    f"{WORKSPACES}/w/_plans/260111-crlf.md": (plan(status="ended").replace("\n", "\r\n"), [(4, "status")]),
    f"{WORKSPACES}/w/_plans/260112-bom.md": ("\ufeff" + plan(status="ended"), [(4, "status")]),
    f"{WORKSPACES}/w/_plans/260113-tab.md": ("---\nname: x\n\tstatus: new\n---\n", [(3, "front-matter")]),
    f"{WORKSPACES}/w/_plans/undated.md": (plan(), [(1, "name")]),
    f"{WORKSPACES}/w/_plans/261399-no-day.md": (plan(), [(1, "name")]),
    f"{WORKSPACES}/w/long/OVERVIEW.md": (OVERVIEW.format("Long", "x").replace("What it is.", "far too long " * 80), [(3, "abstract")]),
    f"{WORKSPACES}/w/_skills/s/SKILL.md": ("---\nname: s\n---\nDo.\n", [(1, "front-matter")]),
    f"{WORKSPACES}/w/_skills/t/SKILL.md": (
        "---\nname: t\ndescription: x\nupdated: 2026-13-01\n---\n", [(4, "date")],
    ),
    f"{WORKSPACES}/w/_notes/latin.md": (b"one\ntwo\ncaf\xe9\n", [(3, "encoding")]),
    f"{WORKSPACES}/w/_notes/latin-open.md": (b"---\nname: caf\xe9\n", [(1, "front-matter"), (2, "encoding")]),
    f"{WORKSPACES}/w/_notes/wide.md": ("one\n".encode("utf-16-le"), [(1, "encoding")]),
    f"{WORKSPACES}/w/_notes/large.md": (b"x" * 3000, [(1, "unreadable")]),
    f"{WORKSPACES}/w/_notes/links.md": (
        "---\nabout: '[[nowhere]]'\n---\n[[Nobody]]\n\n[a](missing.md) [b](../_plans)\n[c](./no/such.png) [d](x\\y.md)\n",
        [(2, "link"), (4, "link"), (6, "link"), (7, "link"), (7, "link")],
    ),
    f"{WORKSPACES}/w/_states/a-00000000.md": ("---\nname: [\n---\n[[gone]]\n", [(3, "front-matter")]),
    f"{LEARNED}/w/decisions.md": (
        "---\nx: 1\n---\n## 2026-01-01 Before all\n### [2026-02-30] Impossible\ntext\n### 2026-02-08 Bare\n"
        "## [2026-02-08] Level\n### [2026-2-8] Short\n### [08.02.2026] Order\n###[2026-02-08] Tight\n"
        "```\n### 2026-02-08 In code\n```\n#### [2026/02/08] Deep\n### [20260208] Digits\n"
        "### [2026-02-08]\ntext\n### [2026-02-09] No text\n\n---\n### [2026-02-10]\n\n**Tags:** a\n"
        "### [2026-02-11] Open\n```\n### 2026-02-12 Text\n",
        [(4, "entry"), (5, "date"), *[(line, "entry") for line in (7, 8, 9, 10, 11, 15, 16, 17, 19, 22, 27)]],
    ),
    f"{LEARNED}/w/a/lessons.md": ("".join(ENTRY.format(f"No {n}") for n in range(6)), [(41, "learnings")]),
    f"{LEARNED}/w/a/decisions.md": ("---\nx: [\n---\n" + ENTRY.format("Fine"), [(3, "front-matter")]),
    "user/memory/MEMORY.md": ("[[Nowhere]] [[Nowhere]]\n", [(1, "link")]),
}  # fmt: skip


@pytest.fixture
def strict(root: Path) -> Path:
    (root / "holdfast.toml").write_text(
        "[limits]\ndocument_bytes = 2000\n[learnings]\nentries = 5\n[hot]\nlines = 10\ntokens = 1000\n"
    )
    return root


def test_every_planted_fault_is_found_once_with_its_line_and_nothing_else(strict: Path) -> None:
    for path, (text, _) in BROKEN.items():
        write(strict, path, text)
    write(strict, ".cursor/rules/own.mdc", "one\ntwo\n")
    os.symlink("../../agent/rules/common/over.md", strict / ".cursor/rules/over.mdc")
    os.symlink("/etc/hosts", strict / f"{WORKSPACES}/w/_notes/out.md")
    expected = [(path, line, rule) for path, (_, faults) in BROKEN.items() for line, rule in faults]
    expected += [("agent/rules", 1, "budget"), (f"{WORKSPACES}/w/_notes/out.md", 1, "unreadable")]
    with holdfast.open(strict) as memory:
        report = lint(memory)
        assert found(report) == sorted(expected)
        assert report.files == len(BROKEN)
        warnings = {(fault.path, fault.line) for fault in report.faults if fault.level == "warning"}
    assert {path.rpartition("/")[2] for path, _ in warnings} == {
        "ABSTRACT.md", "260110-order.md", "lessons.md", "links.md", "decisions.md", "MEMORY.md", "undated.md",
            "261399-no-day.md", "OVERVIEW.md",
    }  # fmt: skip
    assert (report.errors, report.warnings) == (len(expected) - report.warnings, len(warnings) + 1)


def test_faults_say_what_to_do_next(root: Path, memory: Memory) -> None:
    write(root, f"{WORKSPACES}/w/_plans/260101-a.md", "---\nstatus: nope\n---\n")
    first, second = lint(memory).faults
    assert first.what == "front matter lacks name, description, created; next: holdfast migrate front-matter"
    assert second.what == "status is 'nope'; it can be new, in_progress, partial, done, abandoned"
    assert str(second).endswith("260101-a.md:2: error: " + second.what + " [status]")


def test_a_file_that_may_not_be_read_is_named(root: Path, memory: Memory) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    write(root, f"{WORKSPACES}/w/_notes/secret.md", "x\n").chmod(0)
    assert found(lint(memory)) == [(f"{WORKSPACES}/w/_notes/secret.md", 1, "unreadable")]


def test_a_scope_is_looked_at_alone_and_may_link_to_others(root: Path, memory: Memory) -> None:
    for name in ("one", "two"):
        write(root, f"{WORKSPACES}/{name}/OVERVIEW.md", OVERVIEW.format(name.title(), name))
        write(root, f"{WORKSPACES}/{name}/_plans/260101-{name}.md", plan(f"Plan {name}", "wrong"))
        write(root, f"{LEARNED}/{name}/lessons.md", "### [2026-02-30] Never\n\nSee [[Plan one]], [[Plan two]].\n")
    write(root, "agent/rules/common/none.md", "no budget\n")
    expected = [(f"{WORKSPACES}/two/_plans/260101-two.md", 4, "status"), (f"{LEARNED}/two/lessons.md", 1, "date")]
    report = lint(memory, "Two")
    assert found(report) == expected
    assert report.files == 3
    with pytest.raises(NotFound):
        lint(memory, "three")


def test_a_link_to_the_key_of_a_fact_is_a_link_and_a_hidden_page_is_left_in_peace(memory: Memory) -> None:
    memory.put("fact", "vim", fields={"key": "Editor"})
    memory.put("note", "[[editor]] [[no editor]]", title="One")
    hidden = memory.put("note", "[[no editor]]", title="Two")
    memory.hide(hidden.id)
    assert [fault.what for fault in lint(memory).faults] == ["[[no editor]] names no record"]


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        ("### 2026-02-08 Title", True),
        ("## [2026-02-08] Title", True),
        ("### [2026-2-8] Title", True),
        ("### [08.02.2026] Title", True),
        ("### 8/2/2026: Title", True),
        ("###### [2026-02-08] Title", True),
        ("### [2026-02-08 Title", True),
        ("#### 2026-02-08 Title", False),
        ("### 1.2.3 released", False),
        ("## [1.2.3] - 2026-02-08", False),
        ("### Title of 2026-02-08", False),
        ("> ### [2026-2-8] Title", False),
        ("### 2026", False),
        ("### 2026-02-081 Title", False),
    ],
)
def test_what_looks_like_an_entry_and_is_none_is_named(root: Path, memory: Memory, line: str, entry: bool) -> None:
    write(root, f"{LEARNED}/w/decisions.md", ENTRY.format("A") + f"text\n\n{line}\n\ntext\n")
    assert only(memory, "entry") == ([11] if entry else [])


COPIES = (
    "{}.sync-conflict-20261101-120000-ABCDEFG{}", "{} (Ann's conflicted copy 2026-11-01){}", "{} (conflicted copy){}", "{}{}.orig",
)  # fmt: skip
"""How Syncthing, Dropbox, Nextcloud and git name the other version of a file."""


@pytest.mark.parametrize("name", COPIES)
def test_conflict_copies_are_named_and_are_no_records(root: Path, memory: Memory, name: str) -> None:
    note = memory.put("note", "Zebra.", title="Zebra").path
    fact = memory.put("fact", "Lisbon", fields={"key": "office"}).path
    decision = memory.put("decision", "Use it.", title="Choice").path
    before = [record.id for record in memory.every(Query())]
    for path in (note, fact, decision):
        copy = root / path
        copy.with_name(name.format(copy.stem, copy.suffix)).write_text(copy.read_text().replace("Lisbon", "Mars"))
    assert [record.id for record in memory.every(Query())] == before
    found = [fault for fault in lint(memory).faults if fault.rule == "copy"]
    assert len(found) == 3
    assert all(any(f"conflict copy of {path} " in fault.what for fault in found) for path in (note, fact, decision))


def test_rules_that_a_client_reaches_through_links_are_not_counted_twice(root: Path) -> None:
    (root / "holdfast.toml").write_text("[hot]\nlines = 6\n")
    write(root, "agent/rules/common/one.md", "<!-- budget: 9 lines -->\na\nb\nc\nd\n")
    write(root, "agent/rules/common/own.mdc", "no rule of ours\n")
    (root / ".cursor").mkdir()
    os.symlink("../agent/rules/common", root / ".cursor/rules")
    with holdfast.open(root) as memory:
        assert found(lint(memory)) == []
        (root / ".cursor/rules").unlink()
        write(root, ".cursor/rules/own.mdc", "a rule\n")
        assert [fault.level for fault in lint(memory).faults] == ["warning"]
        write(root, ".cursor/rules/more.mdc", "another\n")
        assert [str(fault)[:30] for fault in lint(memory).faults] == ["agent/rules:1: error: all rule"]


def test_a_log_that_cannot_be_read_does_not_keep_links_from_being_judged(root: Path, memory: Memory) -> None:
    (root / "user/memory/semantic.jsonl").mkdir(parents=True)
    write(root, "user/memory/MEMORY.md", "[[nobody]]\n")
    assert found(lint(memory)) == [("user/memory/MEMORY.md", 1, "link")]


# fixing


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (plan(status="Done"), plan(status="done")),
        (plan(status="in progress   # nearly"), plan(status="in_progress   # nearly")),
        (plan(status="'In-Progress'"), plan(status="in_progress")),
        (plan(created="2026/02/08"), plan(created="2026-02-08")),
        (plan(created="2026-2-8"), plan(created="2026-02-08")),
        (plan(created="'2026.02.08'", more="updated: 2026.2.9\n"), plan(more="updated: 2026-02-09\n")),
        (plan(status="DONE").replace("\n", "\r\n"), plan().replace("\n", "\r\n")),
        ("\ufeff" + plan(status="DONE"), "\ufeff" + plan()),
    ],
)
def test_a_fix_changes_the_lines_of_that_field_and_fixing_twice_changes_nothing(
    root: Path, memory: Memory, before: str, after: str
) -> None:
    file = write(root, f"{WORKSPACES}/w/_plans/260208-a.md", before)
    assert lint(memory).errors > 0
    assert file.read_bytes() == before.encode()
    report = lint(memory, fix=True)
    assert file.read_bytes() == after.encode()
    assert (report.errors, report.fixed) == (0, len(report.faults))
    stamp = file.stat()
    assert lint(memory, fix=True).faults == []
    assert file.stat() == stamp


@pytest.mark.parametrize(
    "text",
    [
        plan(status="completed"),
        plan(created="08.02.2026"),
        plan(created="2026/02/30"),
        plan(created="2026/02-08"),
        plan(created="soon"),
        "# Nothing\n",
        "---\n{name: a, description: b, status: Done, created: 2026-02-08}\n---\n",
        plan(status="Done").encode() + b"caf\xe9\n",
    ],
)
def test_what_only_a_person_can_mend_is_left_and_reported(root: Path, memory: Memory, text: str | bytes) -> None:
    file = write(root, f"{WORKSPACES}/w/_plans/260208-a.md", text)
    report = lint(memory, fix=True)
    assert (report.errors > 0, report.fixed) == (True, 0)
    assert file.read_bytes() == (text if isinstance(text, bytes) else text.encode())


def test_what_is_fixed_is_fixed_beside_what_is_left(root: Path, memory: Memory) -> None:
    write(root, f"{WORKSPACES}/w/_plans/260208-a.md", plan(status="Done", created="soon", more="updated: 2026/1/1\n"))
    report = lint(memory, fix=True)
    assert [(fault.line, fault.fixed) for fault in report.faults] == [(4, True), (5, False), (6, True)]
    assert report.errors == 1


def test_an_update_before_the_creation_is_seen_in_any_form_of_date(root: Path, memory: Memory) -> None:
    write(root, f"{WORKSPACES}/w/_plans/260208-a.md", plan(created="2026/02/08", more="updated: 2026.2.7\n"))
    report = lint(memory, fix=True)
    assert [(fault.level, fault.line, fault.fixed) for fault in report.faults] == [
        ("error", 5, True),
        ("error", 6, True),
        ("warning", 6, False),
    ]


PIECES = st.sampled_from([
    "---\n", "name: x\n", "status: Done\n", "created: 2026/1/1\n", "updated: 2025-01-01\n", "tags: [\n", "{a: 1}\n",
    "\ufeff", "# H\n", "### [2024-01-01] T\n", "### [2024-13-01]\n", "### 2024-1-1\n", "```\n",
    "[[x]] [a](b.md) [c](%00)\n", "\0", "\r\n",
])  # fmt: skip
FILES = st.builds(
    lambda pieces, end: "".join(pieces).encode() + end, st.lists(PIECES, max_size=10), st.sampled_from([b"", b"\xe9"])
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(page=FILES, entries=FILES, rule=FILES)
def test_whatever_the_files_hold_lint_answers_and_fixing_again_finds_what_was_left(
    page: bytes, entries: bytes, rule: bytes
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        write(root, f"{WORKSPACES}/w/_plans/260208-a.md", page)
        write(root, f"{LEARNED}/w/decisions.md", entries)
        write(root, "agent/rules/common/a.md", rule)
        with holdfast.open(root) as memory:
            seen, fixed, again = lint(memory), lint(memory, fix=True), lint(memory, fix=True)
    assert found(seen) == found(fixed)
    assert [fault for fault in fixed.faults if not fault.fixed] == again.faults
    for fault in seen.faults:
        data = {"a.md": rule, "260208-a.md": page, "decisions.md": entries}.get(fault.path.rpartition("/")[2], b"")
        assert 1 <= fault.line <= data.count(b"\n") + 1


# size and interfaces


def test_a_large_file_of_entries_is_judged_in_seconds(root: Path, memory: Memory) -> None:
    entry = (
        "### [2024-02-08] Choice {0}\n\n```\ncode {0}\n```\n\nBecause [[nobody]].\n\n## 2024-02-08 Meant {0}\n\n"
        + "x" * 380
    )
    text = "\n\n".join(entry.format(number) for number in range(11_000))
    assert len(text) > 5_000_000
    write(root, f"{LEARNED}/w/decisions.md", text)
    begun = time.monotonic()
    report = lint(memory)
    assert time.monotonic() - begun < 20
    assert (report.errors, report.warnings) == (11_000, 11_001)


def test_many_documents_are_judged_in_seconds(root: Path, memory: Memory) -> None:
    for number in range(2_000):
        write(root, f"{WORKSPACES}/w/d{number % 20}/_plans/260208-p{number}.md", plan(f"P {number}") + "[[P 1]]\n" * 5)
    begun = time.monotonic()
    report = lint(memory)
    assert time.monotonic() - begun < 5
    assert (report.files, report.faults) == (2_000, [])


def test_the_command_prints_lines_that_editors_read_and_fails_when_errors_are_left(root: Path) -> None:
    write(root, f"{WORKSPACES}/w/_plans/260208-a.md", plan(status="Done") + "[[nobody]]\n")
    runner = CliRunner()

    def run(*words: str) -> tuple[int, dict[str, object]]:
        done = runner.invoke(command, [*words, "--root", str(root), "--json"])
        return done.exit_code, json.loads(done.stdout)

    code, told = run()
    assert (code, told["errors"], told["warnings"], told["files"]) == (1, 1, 1, 1)
    assert run("--fix")[0] == 0
    assert run("--strict")[0] == 1
    assert run("w")[1]["faults"] == [
        {
            "level": "warning", "path": f"{WORKSPACES}/w/_plans/260208-a.md", "line": 11,
            "what": "[[nobody]] names no record", "rule": "link", "fixed": False, "fixable": False,
        }
    ]  # fmt: skip
