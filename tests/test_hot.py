"""Hot memory: budgets, promoting and demoting, the templates and the prompts that are made of them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

import fork_server
import holdfast
from databaseroot import place
from holdfast import templates
from holdfast.errors import AlreadyExists, Conflict, Damaged, Invalid, NotFound, OverBudget
from holdfast.formats import markdown, pages, sections
from holdfast.formats.pages import Budget
from holdfast.memories.hot import Hot
from holdfast.model.queries import Query
from holdfast.model.records import version_of
from holdfast.roots import make_root

RULES = "agent/rules/common"


def run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a program would."""
    command = [sys.executable, "-m", "holdfast", *words, "--root", str(root)]
    return fork_server.run(command, capture_output=True, text=True, timeout=60)


def answer(root: Path, *words: str) -> Any:
    done = run(root, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rule(root: Path, name: str, lines: int, budget: int | str = 50, folder: str = RULES) -> Path:
    """Write a rule of so many lines."""
    head = budget if isinstance(budget, str) else f"<!-- budget: {budget} lines -->\n"
    path = root / folder / (name if "." in name else f"{name}.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    text = head + "line\n" * (lines - head.count("\n"))
    path.write_bytes(text.encode())
    return path


def tree(root: Path) -> dict[str, bytes]:
    """Everything in a folder but the index and the account of writes."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".holdfast" not in path.parts and "writes" not in path.parts
    }


def levels(hot: Hot) -> list[tuple[str, str]]:
    return [(finding.level, finding.path) for finding in hot.check()]


# budgets


@pytest.mark.parametrize(
    ("lines", "level"), [(1, None), (44, None), (45, None), (46, "warning"), (50, "warning"), (51, "error")]
)
def test_a_budget_is_nearly_used_above_ninety_percent_and_over_above_all_of_it(lines: int, level: str | None) -> None:
    found = pages.budget_flaws(Budget(lines, 10, 50, 0, 1))
    assert [fault.level for fault in found] == ([level] if level else [])


@given(st.integers(1, 9999))
def test_exactly_ninety_percent_is_no_warning_whatever_the_budget(tenth: int) -> None:
    assert pages.budget_flaws(Budget(9 * tenth, 0, 10 * tenth, 0, 1)) == []
    assert [fault.level for fault in pages.budget_flaws(Budget(9 * tenth + 1, 0, 10 * tenth, 0, 1))] == ["warning"]
    assert [fault.level for fault in pages.budget_flaws(Budget(10 * tenth + 1, 0, 10 * tenth, 0, 1))] == ["error"]


def test_tokens_are_a_budget_too_and_both_can_be_over() -> None:
    over = pages.budget_flaws(pages.budget_of("<!-- budget: 2 lines, 5 tokens -->\n" + "word " * 20 + "\n\n"))
    assert [fault.what.partition(":")[0] for fault in over] == [
        "has 3 lines; 2 is its budget, 1 too many",
        "has 35 tokens; 5 is its budget, 30 too many",
    ]
    assert {fault.line for fault in over} == {1}


def test_all_rules_together_have_a_budget() -> None:
    many = [Budget(160, 700, 200, 0, 1)] * 2
    (over,) = pages.total_flaws(pages.total_budget(many, 300, 3000))
    assert (over.level, over.line) == ("error", 0)
    assert over.what.startswith("all rules together have 320 lines; 300 is the budget, 20 too many")
    assert "holdfast hot review" in over.what
    assert pages.total_flaws(pages.total_budget(many, 356, 3000)) == []  # 89.9 %
    assert [fault.level for fault in pages.total_flaws(pages.total_budget(many, 320, 1399))] == ["warning", "error"]
    assert pages.total_flaws(pages.total_budget([], 1, 1)) == []


@pytest.mark.parametrize(
    "text",
    [
        "<!-- budget: 7 lines -->\ntext\n",
        "\n<!--budget: 7 lines-->\n",
        "---\ndescription: x\n---\n<!-- budget: 7 lines -->\n",
        "---\r\ndescription: x\r\n---\r\n\r\n<!-- budget: 7 lines -->\r\ntext\r\n",
        "\ufeff<!-- budget: 7 lines -->\n",
        "\ufeff---\r\nalwaysApply: true\r\n---\r\n<!-- budget: 7 lines -->\r\n",
    ],
)
def test_a_budget_is_read_after_front_matter_with_crlf_and_with_a_bom(memory: holdfast.Memory, text: str) -> None:
    rule(place(memory), "one", 0, text)
    (found,) = memory.hot.rules()
    assert (found.most_lines, found.lines) == (7, text.count("\n"))
    assert memory.hot.check() == []
    assert text.splitlines()[found.line - 1].lstrip("\ufeff").startswith("<!--")


@pytest.mark.parametrize("text", ["", "text\n", "text\n<!-- budget: 7 lines -->\n", "<!-- budget: seven lines -->\n"])
def test_a_rule_that_declares_no_budget_at_its_head_is_an_error(memory: holdfast.Memory, text: str) -> None:
    path = rule(place(memory), "one", 0, text)
    (found,) = memory.hot.check()
    assert (found.level, found.path, found.line, found.rule) == ("error", f"{RULES}/one.md", 0, "one")
    assert "<!-- budget: 50 lines -->" in found.what
    path.write_text("<!-- budget: 50 lines -->\n" + text)
    assert memory.hot.check() == []


def test_check_names_the_rule_and_the_line_of_its_budget(memory: holdfast.Memory) -> None:
    root = place(memory)
    rule(root, "fine", 45)
    rule(root, "near", 46)
    rule(root, "over", 52, "---\ndescription: x\n---\n<!-- budget: 50 lines -->\n")
    found = {finding.rule: finding for finding in memory.hot.check()}
    assert set(found) == {"near", "over"}
    assert (found["near"].level, found["near"].line) == ("warning", 1)
    assert (found["over"].level, found["over"].line, found["over"].path) == ("error", 4, f"{RULES}/over.md")
    assert "52 lines; 50 is its budget, 2 too many" in found["over"].what


def test_all_rules_count_those_of_subfolders_and_those_that_one_client_keeps_for_itself(
    memory: holdfast.Memory,
) -> None:
    root = place(memory)
    rule(root, "one", 100, 200)
    rule(root, "two", 100, 200, folder="agent/rules/team/deep")
    rule(root, "gitignore.mdc", 71, 100, folder=".cursor/rules")
    (root / ".cursor/rules/one.mdc").symlink_to("../../agent/rules/common/one.md")
    rule(root, "other.txt", 100, 200)
    assert [one.path for one in memory.hot.rules()] == [
        ".cursor/rules/gitignore.mdc", f"{RULES}/one.md", "agent/rules/team/deep/two.md"
    ]  # fmt: skip
    assert (memory.hot.total().lines, memory.hot.total().most_lines) == (271, 300)
    assert levels(memory.hot) == [("warning", "agent/rules")]
    rule(root, "three", 30, 200)
    assert levels(memory.hot) == [("error", "agent/rules")]


def test_a_linked_folder_of_rules_is_not_counted_twice(memory: holdfast.Memory) -> None:
    root = place(memory)
    rule(root, "one", 10)
    (root / RULES / "two.mdc").write_text("a\n")
    (root / ".cursor").mkdir()
    (root / ".cursor/rules").symlink_to("../agent/rules/common")
    assert [one.path for one in memory.hot.rules()] == [f"{RULES}/one.md"]


def test_the_budgets_of_all_rules_and_the_rules_folder_are_settings(root: Path) -> None:
    (root / "holdfast.toml").write_text('[paths]\nrules = "hot"\n[hot]\nlines = 20\ntokens = 50\n')
    rule(root, "one", 25, folder="hot")
    rule(root, "elsewhere", 25)
    with holdfast.open(root) as memory:
        assert [one.path for one in memory.hot.rules()] == ["hot/one.md"]
        assert levels(memory.hot) == [("error", "hot")]
        assert memory.hot.rules()[0].part == 1.25


def test_a_rule_that_cannot_be_read_is_an_error_and_the_others_are_still_measured(memory: holdfast.Memory) -> None:
    root = place(memory)
    rule(root, "one", 10)
    (root / RULES / "out.md").symlink_to("/etc/hostname")
    assert levels(memory.hot) == [("error", f"{RULES}/out.md")]
    assert [one.name for one in memory.hot.rules()] == ["one"]


def test_review_orders_by_age_by_size_and_by_part_of_all(memory: holdfast.Memory) -> None:
    root = place(memory)
    rule(root, "old", 10, "---\nupdated: 2020-05-04\n---\n<!-- budget: 50 lines -->\n")
    rule(root, "large", 40)
    wide = rule(root, "wide", 0, "<!-- budget: 50 lines -->\n" + "word " * 1000 + "\n")
    os.utime(wide, (1_600_000_000, 1_600_000_000))
    assert [one.name for one in memory.hot.review()] == ["old", "wide", "large"]
    assert [one.name for one in memory.hot.review("size")] == ["large", "old", "wide"]
    assert [one.name for one in memory.hot.review("share")] == ["wide", "large", "old"]
    oldest = memory.hot.review()[0]
    assert oldest.updated == "2020-05-04" and oldest.age.endswith("years ago")
    assert memory.hot.review()[1].updated.startswith("2020-09-1")
    with pytest.raises(Invalid, match="age, size or share"):
        memory.hot.review("colour")  # type: ignore[arg-type]


# promoting


def test_a_note_becomes_a_rule_with_its_budget_right_after_the_front_matter(memory: holdfast.Memory) -> None:
    note = memory.put("note", "Deploy on Tuesdays.\n\nNever on Fridays.", title="When we deploy: a rule")
    before = (place(memory) / note.path).read_bytes()
    done = memory.hot.promote(note.id)
    assert (done.status, done.id) == ("stored", f"{RULES}/when-we-deploy-a-rule.md")
    assert (place(memory) / done.path).read_bytes().decode() == (
        '---\ndescription: "When we deploy: a rule"\nalwaysApply: true\n'
        f"source: {note.path}\n---\n<!-- budget: 20 lines -->\n\n# When we deploy: a rule\n\n"
        "Deploy on Tuesdays.\n\nNever on Fridays.\n"
    )
    assert done.version == memory.get(done.id).version
    assert memory.hot.check() == []
    assert (place(memory) / note.path).read_bytes() == before
    assert [hit.record.kind for hit in memory.find("Fridays", kinds=("rule",))] == ["rule"]
    assert memory.verify().sound


def test_a_decision_becomes_a_rule_that_names_it_as_its_source(memory: holdfast.Memory) -> None:
    decision = memory.put("decision", "Because of the actor model.", title="xstate", fields={"category": "tooling"})
    done = memory.hot.promote(decision.id, budget=33)
    page = markdown.parse((place(memory) / done.path).read_bytes())
    assert page.fields == {"description": "xstate", "alwaysApply": True, "source": decision.id}
    assert page.body == "<!-- budget: 33 lines -->\n\n# xstate\n\nBecause of the actor model.\n"


def test_a_heading_that_repeats_the_title_is_not_written_twice(memory: holdfast.Memory) -> None:
    path = place(memory) / "resources/workspaces/default/_spikes/caching.md"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"# Caching\r\n\r\nKeep it short.\r\n\r\n## Why\r\n\r\nMemory.\r\n")
    done = memory.hot.promote("resources/workspaces/default/_spikes/caching.md")
    text = (place(memory) / done.path).read_bytes().decode()
    assert text.endswith("-->\n\n# Caching\n\nKeep it short.\n\n## Why\n\nMemory.\n")


def test_a_fact_can_be_promoted_and_what_is_no_warm_record_cannot(memory: holdfast.Memory) -> None:
    fact = memory.put("fact", "Tuesday", fields={"key": "deploy day"})
    assert memory.hot.promote(fact.id).id == f"{RULES}/deploy-day.md"
    with pytest.raises(Invalid, match="is a rule"):
        memory.hot.promote(f"{RULES}/deploy-day.md")
    memory.call("recall", {"query": "anything"})
    (trace,) = memory.every(Query(kinds=("trace",)))
    with pytest.raises(Invalid, match="is a trace"):
        memory.hot.promote(trace.id)
    with pytest.raises(NotFound):
        memory.hot.promote("resources/workspaces/default/_notes/none.md")
    note = memory.put("note", "old", title="Old")
    memory.hide(note.id)
    with pytest.raises(Invalid, match="hidden"):
        memory.hot.promote(note.id)
    for budget in (-1, 1_000_000):
        with pytest.raises(Invalid, match="budget"):
            memory.hot.promote(fact.id, budget=budget)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("ending", ["", "\n", "\n\n"])
def test_promoting_into_a_rule_appends_a_section_in_the_rules_own_line_ends(
    memory: holdfast.Memory, newline: str, ending: str
) -> None:
    before = f"\ufeff---\ndescription: x # mine\n---\n<!-- budget: 50 lines -->\n# One\n\nText.{ending}"
    path = rule(place(memory), "one", 0, before.replace("\n", newline))
    note = memory.put("note", "Two\nlines.", title="More")
    done = memory.hot.promote(note.id, into="One")
    assert (done.status, done.id) == ("changed", f"{RULES}/one.md")
    wanted = before + ("" if ending else "\n") + "\n## More\n\nTwo\nlines.\n"
    assert path.read_bytes().decode() == wanted.replace("\n", newline)
    with pytest.raises(AlreadyExists, match='section "More"'):
        memory.hot.promote(note.id, into="common/one")
    named_alike = memory.put("note", "Like the title of the whole.", title="One")
    assert memory.hot.promote(named_alike.id, into="one").status == "changed"
    with pytest.raises(Invalid, match="already has a budget"):
        memory.hot.promote(note.id, into="one", budget=10)


def test_promoting_over_a_budget_is_refused_and_changes_nothing(memory: holdfast.Memory) -> None:
    root = place(memory)
    rule(root, "large", 180, 200)
    old = rule(root, "old", 100, 101)
    os.utime(old, (1_600_000_000, 1_600_000_000))
    note = memory.put("note", "a\nb\nc", title="Short")
    long = memory.put("note", "x\n" * 40, title="Long")
    before = tree(root)
    with pytest.raises(OverBudget, match=r"old\.md has 106 lines; 101 is its budget, 5 too many") as refused:
        memory.hot.promote(note.id, into="old")
    assert "holdfast hot review" in str(refused.value)
    with pytest.raises(
        OverBudget, match="all rules together have 329 lines; 300 is the budget, 29 too many"
    ) as refused:
        memory.hot.promote(long.id)
    assert f"{RULES}/large.md (180 lines)" in str(refused.value)
    assert f"{RULES}/old.md (changed " in str(refused.value)
    with pytest.raises(OverBudget, match=r"The rule has 12 lines; its budget would be 5\. Give --budget 12\."):
        memory.hot.promote(note.id, budget=5)
    assert tree(root) == before
    assert memory.hot.promote(note.id).status == "stored"


def test_a_rule_without_a_budget_can_still_be_added_to(memory: holdfast.Memory) -> None:
    rule(place(memory), "one", 3, "")
    note = memory.put("note", "a", title="Short")
    assert memory.hot.promote(note.id, into="one").status == "changed"


def test_a_name_that_is_taken_is_refused(memory: holdfast.Memory) -> None:
    path = rule(place(memory), "deploys", 5)
    note = memory.put("note", "Text.", title="Deploys!")
    before = path.read_bytes()
    with pytest.raises(AlreadyExists, match=r"deploys\.md already.*--into"):
        memory.hot.promote(note.id)
    assert path.read_bytes() == before


def test_the_same_op_id_promotes_once(memory: holdfast.Memory) -> None:
    note = memory.put("note", "Text.", title="Deploys")
    first = memory.hot.promote(note.id, op_id="one")
    again = memory.hot.promote(note.id, op_id="one")
    assert (first.status, again.status, again.id) == ("stored", "repeated", first.id)
    memory.hot.demote("deploys")
    assert memory.hot.promote(note.id, op_id="one").status == "repeated"
    assert memory.hot.rules() == []
    first = memory.hot.promote(note.id)
    other = memory.put("note", "Other.", title="Other")
    assert memory.hot.promote(other.id, into="deploys", op_id="two").status == "changed"
    text = (place(memory) / first.path).read_bytes()
    assert memory.hot.promote(other.id, into="deploys", op_id="two").status == "repeated"
    assert (place(memory) / first.path).read_bytes() == text


# demoting


def test_a_demoted_rule_is_a_note_and_its_bytes_are_kept(memory: holdfast.Memory) -> None:
    path = rule(
        place(memory),
        "deploys",
        0,
        "---\ndescription: x\n---\n<!-- budget: 9 lines -->\n\n# Deploys\n\nTuesdays.\n",
    )
    data = path.read_bytes()
    assert [hit.record.id for hit in memory.find("Tuesdays")] == [f"{RULES}/deploys.md"]
    done = memory.hot.demote("deploys")
    assert done.status == "demoted"
    note = memory.get(done.id)
    assert (note.kind, note.title, note.text, note.scope.path) == ("note", "Deploys", "Tuesdays.", "default")
    assert not path.exists()
    kept = place(memory) / "user/memory/writes/kept" / version_of(data)
    assert kept.read_bytes() == data
    assert [hit.record.id for hit in memory.find("Tuesdays")] == [done.id]
    assert memory.hot.rules() == []
    assert memory.verify().sound
    with pytest.raises(NotFound, match='no rule "deploys"'):
        memory.hot.demote("deploys")


def test_a_rule_is_demoted_into_the_scope_that_is_named(memory: holdfast.Memory) -> None:
    memory.put("overview", "", title="Alpha")
    path = rule(place(memory), "one", 5)
    with pytest.raises(NotFound, match="Beta"):
        memory.hot.demote("one", "Beta")
    assert path.exists()
    assert memory.get(memory.hot.demote(f"{RULES}/one.md", "Alpha").id).scope.path == "alpha"


def test_no_note_is_made_while_the_record_that_was_promoted_says_the_same(memory: holdfast.Memory) -> None:
    decision = memory.put("decision", "Because.", title="xstate")
    memory.hot.promote(decision.id)
    before = tree(place(memory))
    done = memory.hot.demote("xstate")
    assert done.id == decision.id
    assert tree(place(memory)) == {path: data for path, data in before.items() if path != f"{RULES}/xstate.md"}


def test_a_rule_that_was_edited_by_hand_is_kept_as_it_was_edited(memory: holdfast.Memory) -> None:
    note = memory.put("note", "Tuesdays.", title="Deploys")
    path = place(memory) / memory.hot.promote(note.id).path
    path.write_text(path.read_text().replace("Tuesdays.", "Wednesdays."))
    done = memory.hot.demote("deploys")
    assert memory.get(note.id).text == "Tuesdays."
    kept = memory.get(done.id)
    assert (kept.title, kept.text) == ("Deploys (2)", "Wednesdays.")
    path.parent.mkdir(exist_ok=True)
    path.write_text("<!-- budget: 9 lines -->\n# Deploys\n\nWednesdays.\n")
    assert memory.hot.demote("deploys").id == done.id  # as after a crash between the note and the removal
    assert not path.exists()


@pytest.mark.parametrize("lost", ["hidden", "gone"])
def test_a_source_that_no_longer_holds_is_no_reason_to_lose_the_text(memory: holdfast.Memory, lost: str) -> None:
    note = memory.put("note", "Tuesdays.", title="Deploys")
    memory.hot.promote(note.id)
    if lost == "hidden":
        memory.hide(note.id)
    else:
        (place(memory) / note.path).unlink()
    done = memory.hot.demote("deploys")
    kept = memory.get(done.id)
    assert (kept.text, kept.hidden) == ("Tuesdays.", False)


def test_bytes_that_were_kept_before_are_no_obstacle(memory: holdfast.Memory) -> None:
    path = rule(place(memory), "one", 0, "<!-- budget: 9 lines -->\n# One\n\nText.\n")
    data = path.read_bytes()
    memory.hot.demote("one")
    path.write_bytes(data)
    memory.hot.demote("one")
    assert not path.exists()
    assert len(list((place(memory) / "resources/workspaces/default/_notes").iterdir())) == 1


SECTIONS = """\
---
description: x # mine
---
<!-- budget: 50 lines -->

# All

Text.

## First

One.

```sh
## Second
# not a heading
```

### Below

Two.

## Second ##

Three.

# Other

Four.
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_one_section_is_demoted_and_every_other_byte_stays(memory: holdfast.Memory, newline: str) -> None:
    text = SECTIONS.replace("\n", newline)
    path = rule(place(memory), "all", 0, text)
    note = memory.get(memory.hot.demote("all", heading="first").id)
    assert (note.title, note.text) == ("First", "One.\n\n```sh\n## Second\n# not a heading\n```\n\n### Below\n\nTwo.")
    start, end = text.index("## First"), text.index("## Second ##")
    assert path.read_bytes().decode() == text[:start] + text[end:]
    assert memory.get(memory.hot.demote("all", heading="## Second").id).text == "Three."
    assert path.read_bytes().decode() == text[:start] + text[text.index("# Other") :]
    memory.hot.demote("all", heading="Other")
    assert path.read_bytes().decode() == text[:start].rstrip() + newline
    kept = place(memory) / "user/memory/writes/kept"
    assert version_of(text.encode()) in {each.name for each in kept.iterdir()}


def test_a_section_that_is_not_there_or_is_there_twice_is_refused(memory: holdfast.Memory) -> None:
    path = rule(place(memory), "all", 0, SECTIONS + "\n## First\n")
    before = tree(place(memory))
    with pytest.raises(NotFound, match=r'no section "Frist".*Did you mean "First"'):
        memory.hot.demote("all", heading="Frist")
    with pytest.raises(Invalid, match="2 sections"):
        memory.hot.demote("all", heading="First")
    path.write_text("<!-- budget: 9 lines -->\n## Only\n\nText.\n")
    with pytest.raises(Invalid, match="is the only text of"):
        memory.hot.demote("all", heading="Only")
    path.write_text("---\ndescription: [\n---\n## Only\n\nText.\n")
    with pytest.raises(Damaged, match=r"all\.md, line"):
        memory.hot.demote("all", heading="Only")
    path.write_text(SECTIONS + "\n## First\n")
    assert tree(place(memory)) == before


def test_the_same_op_id_demotes_once(memory: holdfast.Memory) -> None:
    path = rule(place(memory), "all", 0, SECTIONS)
    assert memory.hot.demote("all", heading="First", op_id="one").status == "demoted"
    assert memory.hot.demote("all", heading="First", op_id="one").status == "repeated"
    assert memory.hot.demote("all", op_id="two").status == "demoted"
    assert memory.hot.demote("all", op_id="two").status == "repeated"
    assert not path.exists()


def test_demoting_a_rule_again_after_a_crash_demotes_it_once(memory: holdfast.Memory) -> None:
    path = rule(place(memory), "deploys", 5)
    memory.hot.demote("deploys", op_id="one")
    (log,) = (place(memory) / "user/memory/writes").glob("*.jsonl")
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:-1]))  # the account of what was done; its announcement stays
    assert memory.hot.demote("deploys", op_id="one").status == "repeated"
    assert not path.exists()


def test_a_rule_is_named_by_its_path_its_place_or_its_name(memory: holdfast.Memory) -> None:
    root = place(memory)
    rule(root, "Style", 5)
    rule(root, "style", 5, folder="agent/rules/team")
    rule(root, "own.mdc", 5, folder=".cursor/rules")
    with pytest.raises(Invalid, match=r"common/Style\.md, agent/rules/team/style\.md"):
        memory.hot.demote("style")
    with pytest.raises(Invalid, match="belongs to one client"):
        memory.hot.demote(".cursor/rules/own.mdc")
    with pytest.raises(NotFound, match=r'Did you mean "[Ss]tyle"'):
        memory.hot.demote("styles")
    memory.hot.demote("team/style")
    memory.hot.demote("STYLE.md")
    assert [one.name for one in memory.hot.rules()] == ["own"]


def test_a_rule_that_is_a_link_is_not_demoted(memory: holdfast.Memory) -> None:
    root = place(memory)
    rule(root, "real", 5, folder="resources/shared")
    (root / RULES).mkdir(parents=True, exist_ok=True)
    (root / RULES / "real.md").symlink_to("../../../resources/shared/real.md")
    with pytest.raises(Invalid, match="is a link"):
        memory.hot.demote("real")
    assert (root / RULES / "real.md").is_symlink()


def test_promoting_and_demoting_again_and_again_changes_nothing(memory: holdfast.Memory) -> None:
    note = memory.put("note", "# Deploys\n\nTuesdays.\n\n```md\n# Deploys\n```", title="Deploys")
    before = tree(place(memory))
    texts = set()
    for _ in range(3):
        done = memory.hot.promote(note.id)
        texts.add((place(memory) / done.path).read_bytes())
        assert memory.hot.demote("deploys").id == note.id
        assert tree(place(memory)) == before
    assert len(texts) == 1


# headings


@given(st.text("#`~ a\n\r", max_size=60))
def test_sections_cover_what_headings_open(text: str) -> None:
    for part in sections.headings(text):
        assert text[part.start : part.below].strip().startswith("#")
        assert 0 <= part.start < part.below <= part.end <= len(text)
        inner = [other for other in sections.headings(text) if part.start < other.start < part.end]
        assert all(other.level > part.level for other in inner)


def test_a_fence_that_is_never_closed_hides_no_heading() -> None:
    text = "~~~\n# One\n```\n# Two\n```\n# Three\n"
    assert [part.title for part in sections.headings(text)] == ["One", "Three"]


# templates


def test_the_templates_make_a_root_whose_rules_pass_the_check(tmp_path: Path) -> None:
    written = make_root(str(tmp_path / "new"), template=True)
    assert set(templates.files()) <= set(written)
    with holdfast.open(tmp_path / "new") as memory:
        assert memory.hot.check() == []
        named = {one.name: one.most_lines for one in memory.hot.rules()}
        assert named == {"user-profile": 50, "global-conventions": 80, "workspace-workflow": 100}
        total = memory.hot.total()
        assert total.lines < 150 and total.tokens < 1500
        assert memory.verify().sound
    for path, text in templates.files().items():
        page = markdown.parse(text.encode())
        assert page.fields["description"] and not page.fault, path
        if path.startswith("agent/rules"):
            assert page.fields["alwaysApply"] is True
            assert page.body.startswith("<!-- budget: ")


def test_the_rule_and_the_command_name_tools_that_there_are() -> None:
    workflow = templates.text(f"{templates.RULES}/{templates.WORKFLOW}")
    for tool in ("workspace_context", "recall", "loadWorkspace", "createState"):
        assert tool in workflow
    command = templates.text(f"{templates.COMMANDS}/{templates.SAVE_MEMORY}")
    for word in ("retrieve_learnings", "save_learning", "set_plan_status", "### [YYYY-MM-DD]", "secrets", "knowledge"):
        assert word in command


def test_init_with_a_template_twice_keeps_what_was_edited(tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert run(root, "init", str(root)).returncode == 0
    assert not (root / "agent/commands").exists() and not (root / "agent-transcripts").exists()
    assert f"{RULES}/user-profile.md" in answer(root, "init", str(root), "--template", "--json")["written"]
    edited = root / RULES / "user-profile.md"
    edited.write_text("<!-- budget: 50 lines -->\nMine.\n")
    (root / RULES / "global-conventions.md").unlink()
    before = tree(root)
    assert answer(root, "init", str(root), "--template", "--json")["written"] == [f"{RULES}/global-conventions.md"]
    (root / RULES / "global-conventions.md").unlink()
    assert tree(root) == before
    assert not (root / "agent-transcripts").exists()


def test_templates_go_where_the_settings_say(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text('[paths]\nrules = "hot"\ncommands = "todo"\n')
    written = make_root(str(tmp_path), template=True)
    assert "hot/common/user-profile.md" in written and "todo/common/save-memory.md" in written
    assert not (tmp_path / "agent/commands").exists()
    (tmp_path / "holdfast.toml").write_bytes(b"\xff")
    with pytest.raises(Invalid, match="UTF-8"):
        make_root(str(tmp_path), template=True)


def test_a_file_where_a_folder_belongs_is_named(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/commands").write_text("a file")
    with pytest.raises(Invalid, match=r"A folder of agent/commands/common/chat-memory\.md is a file\."):
        make_root(str(tmp_path), template=True)


# prompts


def talk(root: Path, work: Callable[[Client], Awaitable[None]]) -> None:
    """Do some work with a client of a server that is started and ended for it."""

    async def run() -> None:
        arguments = ["-m", "holdfast", "mcp", "--root", str(root)]
        with (root.parent / "stderr.txt").open("w+") as printed:
            server = StdioServerParameters(command=sys.executable, args=arguments)
            async with Client(stdio_client(server, errlog=printed), mode="auto") as client:
                await work(client)
        assert (root.parent / "stderr.txt").read_text() == ""

    asyncio.run(run())


async def _text(client: Client, name: str, **arguments: str) -> str:
    (message,) = (await client.get_prompt(name, arguments)).messages
    text: str = message.content.text  # type: ignore[union-attr]
    return text


def test_the_prompts_are_the_shipped_texts_until_the_root_has_its_own(root: Path) -> None:
    async def work(client: Client) -> None:
        listed = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
        assert {"save-memory", "learning-cycle"} <= set(listed)
        assert [argument.name for argument in listed["save-memory"].arguments or []] == ["workspace"]
        saving = await _text(client, "save-memory")
        assert saving.startswith("# Save memory\n") and "retrieve_learnings(scope)" in saving
        assert (await _text(client, "save-memory", workspace="Alpha")) == f'{saving}\n\nThe workspace is "Alpha".'
        cycle = await _text(client, "learning-cycle")
        rule_text = templates.text(f"{templates.RULES}/{templates.WORKFLOW}")
        assert cycle.startswith("## Learning cycle\n") and cycle in rule_text
        for moment in ("Hard-won fix", "Non-obvious solution", "Conflict", "Decision", "End of session"):
            assert f"| {moment} |" in cycle

        command = root / "agent/commands/common/save-memory.md"
        command.parent.mkdir(parents=True)
        command.write_text("---\ndescription: mine\n---\n\nSave it my way.\n")
        assert await _text(client, "save-memory") == "Save it my way."
        own = root / RULES / "workspace-workflow.md"
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text("<!-- budget: 9 lines -->\n# Mine\n")
        assert await _text(client, "learning-cycle") == cycle
        own.write_text("<!-- budget: 9 lines -->\n# Mine\n\n## Learning cycle\n\nAlways.\n\n## Else\n")
        assert await _text(client, "learning-cycle") == "## Learning cycle\n\nAlways."

        own.unlink()
        own.symlink_to("/etc/hostname")
        with pytest.raises(MCPError, match="symbolic link"):
            await _text(client, "learning-cycle")

    talk(root, work)


# the command line


def test_check_says_what_is_wrong_and_exits_with_one(root: Path) -> None:
    rule(root, "near", 46)
    told = answer(root, "hot", "check")
    assert told["ok"] is True and [problem["level"] for problem in told["problems"]] == ["warning"]
    rule(root, "over", 51)
    done = run(root, "hot", "check")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert (told["ok"], told["lines"], told["most_lines"]) == (False, 97, 300)
    assert [problem["rule"] for problem in told["problems"]] == ["near", "over"]


def test_promote_review_and_demote_from_the_command_line(root: Path) -> None:
    note = answer(root, "put", "note", "Tuesdays.", "--title", "Deploys")["id"]
    assert answer(root, "hot", "promote", note, "--budget", "30")["id"] == f"{RULES}/deploys.md"
    (listed,) = answer(root, "hot", "review", "--by", "size")
    assert (listed["name"], listed["most_lines"], listed["age"]) == ("deploys", 30, "today")
    refused = run(root, "hot", "promote", note, "--into", "none")
    assert (refused.returncode, json.loads(refused.stderr)["kind"]) == (NotFound.exit_code, "NotFound")
    other = answer(root, "put", "note", "Always.", "--title", "Tests")["id"]
    assert answer(root, "hot", "promote", other, "--into", "deploys")["status"] == "changed"
    answer(root, "put", "overview", "", "--title", "Alpha")
    part = answer(root, "hot", "demote", "deploys", "--heading", "Tests", "--scope", "Alpha")
    assert part["path"].startswith("resources/workspaces/alpha/_notes/")
    assert answer(root, "hot", "demote", "deploys")["id"] == note
    assert answer(root, "hot", "review") == []
    assert answer(root, "search", "Always")["hits"][0]["record"]["kind"] == "note"


def test_several_who_promote_into_one_rule_lose_nothing(root: Path) -> None:
    path = rule(root, "all", 5, 200)
    with holdfast.open(root) as memory:
        notes = [memory.put("note", f"Text {number}.", title=f"Part {number}").id for number in range(8)]

    def work(note: str) -> None:
        with holdfast.open(root) as mine:
            for _ in range(100):
                try:
                    mine.hot.promote(note, into="all")
                    return
                except Conflict:
                    continue

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, notes))
    titles = [part.title for part in sections.headings(path.read_text())]
    assert sorted(titles) == [f"Part {number}" for number in range(8)]
