"""The knowledge tree through its tools: scopes, plans, overviews, learnings, context, skills, and what is written."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ryaml import loads  # type: ignore[attr-defined]  # its stub forgets to export it

import fork_server
import holdfast
from holdfast.formats import markdown
from holdfast.model.times import today

Reply = dict[str, Any]

ENGINE = """\
---
name: "Workflow Engine"
description: "Build a workflow execution engine for sequential and parallel task graphs"
status: done
created: 2026-02-08
updated: 2026-02-09
tags: [workflow, engine, xstate]
---

# Workflow Engine

Steps.
"""
SELF_SERVE = """\
---
name: "SPA Self-Serve from Feature Modules"
description: "Eliminate per-SPA boilerplate in server package"
status: in_progress
created: 2026-02-23
tags: [nestjs, spa, architecture]
---

See [[Workflow Engine]].
"""
DECISIONS = """\
# Decisions

### [2026-02-08] xstate for workflows

**Category:** architecture
**Tags:** workflow, state-management, xstate

Chose xstate v5 for workflow state management — actor model + strong TypeScript support

---
"""
LESSONS = """\
# Lessons

### [2026-02-23] require.resolve under pnpm

**Category:** debugging
**Tags:** pnpm, nestjs, module-resolution

pnpm strict isolation means require.resolve() must be called from the consuming package, not from a shared utility

---
"""


def overview(name: str, description: str, body: str = "") -> str:
    return f"---\nname: {name}\ndescription: {description}\n---\n\n{body}"


TREE = {
    "resources/workspaces/devtools/OVERVIEW.md": overview(
        "DevTools", "Tools for developers", "(full workspace OVERVIEW.md content)\n"
    ),
    "resources/workspaces/devtools/common/OVERVIEW.md": overview(
        "DevTools Common", "Shared tools and utilities across all domains...", "# Common\n"
    ),
    "resources/workspaces/devtools/common/_plans/260208-workflow-engine.md": ENGINE,
    "resources/workspaces/devtools/common/_plans/260223-spa-self-serve.md": SELF_SERVE,
    "resources/workspaces/devtools/common/metan/OVERVIEW.md": overview("Metan", "A repository", "# Metan\n"),
    "resources/workspaces/devtools/common/metan/_architecture/layers.md": "# Layers\n\nThree of them.\n",
    "user/memory/workspaces/devtools/decisions.md": DECISIONS,
    "user/memory/workspaces/devtools/lessons.md": LESSONS,
}


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text.encode("utf-8"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree made by hand, without settings."""
    write(tmp_path, TREE)
    return tmp_path


def ask(root: Path, tool: str, params: Reply | None = None, context: Reply | None = None) -> Reply:
    with holdfast.open(root) as memory:
        return memory.call(tool, params or {}, context)


def only(entry: Reply, keys: Reply) -> Reply:
    """Return an entry with the keys of the design's example, in `_meta` too."""
    kept = {name: entry[name] for name in keys}
    return kept | {"_meta": {name: entry["_meta"][name] for name in keys["_meta"]}}


# the examples of the design


def test_plans_are_those_of_the_design(tree: Path) -> None:
    example: Reply = loads("""
plans:
  - name: "Workflow Engine"
    description: "Build a workflow execution engine for sequential and parallel task graphs"
    status: done
    created: "2026-02-08"
    updated: "2026-02-09"
    tags: [workflow, engine, xstate]
    _meta:
      document_path: "resources/workspaces/devtools/common/_plans/260208-workflow-engine.md"
      document_id: "260208-workflow-engine"
  - name: "SPA Self-Serve from Feature Modules"
    description: "Eliminate per-SPA boilerplate in server package"
    status: in_progress
    created: "2026-02-23"
    tags: [nestjs, spa, architecture]
    _meta:
      document_path: "resources/workspaces/devtools/common/_plans/260223-spa-self-serve.md"
      document_id: "260223-spa-self-serve"
""")
    reply = ask(tree, "retrieve_plans", {"scope": {"workspace": "devtools"}})
    newest_first = sorted(example["plans"], key=lambda plan: plan["created"], reverse=True)
    assert [only(plan, wanted) for plan, wanted in zip(reply["plans"], newest_first, strict=True)] == newest_first
    assert "updated" not in reply["plans"][0]
    assert reply["plans"][0]["scope"] == "devtools/common"
    assert "warnings" not in reply


def test_overviews_are_those_of_the_design(tree: Path) -> None:
    example: Reply = loads("""
overviews:
  - scope: "devtools"
    tier: T1
    content: |
      (full workspace OVERVIEW.md content)
    _meta:
      document_path: "resources/workspaces/devtools/OVERVIEW.md"
  - scope: "devtools/common"
    tier: T0
    abstract: "Shared tools and utilities across all domains..."
    _meta:
      document_path: "resources/workspaces/devtools/common/OVERVIEW.md"
""")
    reply = ask(tree, "retrieve_overview", {"scope": {"workspace": "devtools"}})
    shown = reply["overviews"]
    assert [only(entry, wanted) for entry, wanted in zip(shown, example["overviews"], strict=False)] == example[
        "overviews"
    ]
    assert [entry["scope"] for entry in shown] == ["devtools", "devtools/common", "devtools/common/metan"]
    assert all(set(entry["_meta"]) == {"document_path", "document_id"} for entry in shown)
    assert "content" not in shown[1]


def test_learnings_are_those_of_the_design(tree: Path) -> None:
    example: Reply = loads("""
decisions:
  - content: "Chose xstate v5 for workflow state management — actor model + strong TypeScript support"
    date: "2026-02-08"
    category: architecture
    tags: [workflow, state-management, xstate]
    _meta:
      document_path: "user/memory/workspaces/devtools/decisions.md"
lessons:
  - content: "pnpm strict isolation means require.resolve() must be called from the consuming package, not from a shared utility"
    date: "2026-02-23"
    category: debugging
    tags: [pnpm, nestjs, module-resolution]
    _meta:
      document_path: "user/memory/workspaces/devtools/lessons.md"
""")
    reply = ask(tree, "retrieve_learnings", {"scope": {"workspace": "devtools"}})
    for kind in ("decisions", "lessons"):
        assert [only(entry, example[kind][0]) for entry in reply[kind]] == example[kind]
    assert reply["decisions"][0]["title"] == "xstate for workflows"


@pytest.mark.parametrize("tool", ["retrieve_plans", "retrieve_overview", "retrieve_learnings", "workspace_context"])
def test_the_text_is_yaml_of_the_same_data(tree: Path, tool: str) -> None:
    reply = ask(tree, tool, {"scope": {"workspace": "devtools"}})
    text = reply.pop("text")
    assert loads(text) == reply


PLAIN = st.text(max_size=30) | st.text("ab \n\t:#-'\"|>", max_size=20) | st.integers(-(2**53), 2**53) | st.booleans()
DATA = st.recursive(
    PLAIN | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(min_size=1, max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(min_size=1, max_size=8), DATA, max_size=4))
def test_any_reply_comes_back_from_its_yaml(value: dict[str, Any]) -> None:
    assert loads(markdown.yaml(value)) == value


# scopes


@pytest.mark.parametrize(
    ("scope", "count"),
    [
        ({"workspace": "devtools"}, 2),
        ({"workspace": "DevTools", "domain": "COMMON"}, 2),
        ({"workspace": "devtools", "domain": "DevTools Common"}, 2),
        ({"workspace": "devtools", "repository": "metan"}, 0),
        ("devtools/common", 2),
        ("devtools/metan", 0),
        (None, 2),
    ],
)
def test_a_scope_is_named_by_folders_or_names(tree: Path, scope: object, count: int) -> None:
    reply = ask(tree, "retrieve_plans", {"scope": scope}, {"workspaceId": "devtools"})
    assert len(reply["plans"]) == count, reply


@pytest.mark.parametrize(
    ("scope", "said"),
    [
        ({"workspace": "nowhere"}, 'Workspace "nowhere" not found. Use listWorkspaces to see available workspaces.'),
        ({"workspace": "devtool"}, 'Did you mean "DevTools"?'),
        ({"domain": "common"}, "The domain was given without its workspace."),
        ({"repository": "metan"}, "The repository was given without its workspace."),
        ({"workspace": "devtools", "domain": "stock"}, 'Domain "stock" not found in devtools. There are: common.'),
        ({"workspace": "devtools", "repository": "x"}, 'Repository "x" not found in devtools. There are: common/metan'),
        ({"workspace": ".."}, "'..' is not a scope."),
        ({"workspace": "devtools", "domain": "../.."}, "has a slash"),
        ("devtools/../..", "is not a scope."),
        ({"workspace": "devtools", "team": "x"}, "use workspace, domain, repository"),
        (7, "scope"),
    ],
)
@pytest.mark.parametrize("tool", ["retrieve_plans", "retrieve_overview", "retrieve_learnings", "workspace_context"])
def test_a_scope_that_is_none_is_an_error_that_says_so(tree: Path, tool: str, scope: object, said: str) -> None:
    reply = ask(tree, tool, {"scope": scope})
    assert reply["success"] is False
    assert said in reply["error"]
    assert reply["text"] == reply["error"]


@pytest.mark.parametrize("scope", [{}, {"workspace": ""}])
def test_a_scope_without_a_workspace_is_in_that_of_the_context_and_else_an_error(tree: Path, scope: Reply) -> None:
    for tool in ("retrieve_plans", "retrieve_overview", "retrieve_learnings", "workspace_context"):
        refused = ask(tree, tool, {"scope": scope})
        assert refused["success"] is False
        assert refused["error"] == "The scope has no workspace. Give scope.workspace, or workspaceId in the context."
    here = {"workspaceId": "devtools"}
    assert len(ask(tree, "retrieve_plans", {"scope": scope}, here)["plans"]) == 2
    found = ask(tree, "retrieve_overview", {"scope": scope | {"domain": "common"}}, here)
    assert found["overviews"][0]["scope"] == "devtools/common"


def test_a_heading_that_nearly_is_an_entry_comes_back_as_a_warning(tree: Path) -> None:
    page = "user/memory/workspaces/devtools/decisions.md"
    near = "### 2026-01-04 No brackets\n\nText.\n\n## [2026-01-05] Another level\n\nText.\n"
    write(tree, {page: f"{DECISIONS}\n{near}\n```\n### 2026-01-06 in code\n```\n"})
    start = DECISIONS.count("\n") + 2
    for tool in ("retrieve_learnings", "workspace_context"):
        warnings = ask(tree, tool, {"scope": "devtools"})["warnings"]
        said = "looks like an entry, but is read as text; write ### [YYYY-MM-DD] Title"
        assert [one for one in warnings if page in one] == [f"{page}:{start}: {said}", f"{page}:{start + 4}: {said}"]


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def untracked(folder: Path) -> str:
    return git(folder, "status", "--porcelain", "--untracked-files=all")


def test_a_tree_that_nobody_initialised_gets_nothing_untracked_in_git(tmp_path: Path) -> None:
    write(tmp_path, {"resources/workspaces/devtools/OVERVIEW.md": overview("DevTools", "Tools")})
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    before = untracked(tmp_path)
    assert ask(tmp_path, "retrieve_overview", {"scope": "devtools"})["overviews"]
    with holdfast.open(tmp_path) as memory:
        assert memory.call("recall", {"query": "tools"})
        memory.store.purge()
    assert (tmp_path / ".holdfast/current").exists()
    assert list((tmp_path / "user/memory/traces").glob("*/*.jsonl"))
    assert untracked(tmp_path) == before


def test_traces_are_tracked_where_the_owner_wants_that(root: Path) -> None:
    git(root, "init", "-q")
    rules = (root / ".gitignore").read_text()
    (root / ".gitignore").write_text(rules.replace("/user/memory/traces/\n", ""))
    ask(root, "listWorkspaces", {})
    assert "?? user/memory/traces/" in untracked(root)


def test_a_repository_in_two_domains_lists_both(tree: Path) -> None:
    write(tree, {"resources/workspaces/devtools/stock/metan/OVERVIEW.md": overview("Metan", "Another")})
    reply = ask(tree, "retrieve_plans", {"scope": {"workspace": "devtools", "repository": "metan"}})
    assert "common/metan, stock/metan" in reply["error"]


def test_plans_lie_at_any_depth(tree: Path) -> None:
    write(
        tree,
        {
            "resources/workspaces/devtools/_plans/a.md": "# A\n",
            "resources/workspaces/devtools/common/metan/deep/er/_plans/b.md": "# B\n",
            "resources/workspaces/devtools/_archive/old/_plans/c.md": "# C\n",
            "resources/workspaces/devtools/common/_plans/not/a-plan.md": "# D\n",
        },
    )
    plans = ask(tree, "retrieve_plans", {"scope": "devtools"})["plans"]
    assert {plan["name"] for plan in plans} >= {"a", "b", "c"}
    assert len(plans) == 5
    deep = next(plan for plan in plans if plan["name"] == "b")
    assert deep["scope"] == "devtools/common/metan"


def test_the_level_that_was_asked_for_is_in_full_and_those_above_are_left_out(tree: Path) -> None:
    reply = ask(tree, "retrieve_overview", {"scope": "devtools/common"})
    assert [(entry["scope"], entry["tier"]) for entry in reply["overviews"]] == [
        ("devtools/common", "T1"),
        ("devtools/common/metan", "T0"),
    ]
    reply = ask(tree, "retrieve_overview", {"scope": "devtools/common/metan"})
    assert [(entry["scope"], entry["content"]) for entry in reply["overviews"]] == [
        ("devtools/common/metan", "# Metan\n")
    ]


def test_a_place_without_an_overview_says_so(tree: Path) -> None:
    write(tree, {"resources/workspaces/bare/_plans/260101-x.md": "# X\n"})
    reply = ask(tree, "retrieve_overview", {"scope": "bare"})
    assert reply["overviews"] == []
    assert reply["warnings"] == ["bare has no OVERVIEW.md."]


def test_learnings_look_down_and_up(tree: Path) -> None:
    entry = "### [2026-03-0{n}] {name}\n\nAbout {name}.\n\n---\n"
    write(
        tree,
        {
            "user/memory/workspaces/devtools/common/lessons.md": entry.format(n=1, name="the domain"),
            "user/memory/workspaces/devtools/common/metan/lessons.md": entry.format(n=2, name="the repository"),
            "user/memory/workspaces/devtools/stock/lessons.md": entry.format(n=3, name="the neighbour"),
        },
    )

    def scopes(scope: str) -> list[str]:
        return [entry["scope"] for entry in ask(tree, "retrieve_learnings", {"scope": scope})["lessons"]]

    assert scopes("devtools") == ["devtools/stock", "devtools/common/metan", "devtools/common", "devtools"]
    assert scopes("devtools/common") == ["devtools/common/metan", "devtools/common", "devtools"]
    assert scopes("devtools/common/metan") == ["devtools/common/metan", "devtools/common", "devtools"]
    assert scopes("devtools/stock") == ["devtools/stock", "devtools"]


def test_one_call_gives_all_of_it(tree: Path) -> None:
    reply = ask(tree, "workspace_context", {"scope": "devtools", "topics": ["architecture", "_plans"]})
    assert set(reply) - {"text"} == {
        "overview", "overviews", "plans", "decisions", "lessons", "topics", "skills", "warnings",
    }  # fmt: skip
    assert reply["overview"]["content"] == "(full workspace OVERVIEW.md content)\n"
    assert [entry["scope"] for entry in reply["overviews"]] == ["devtools/common", "devtools/common/metan"]
    assert len(reply["plans"]) == 2
    assert reply["decisions"] and reply["lessons"]
    assert reply["topics"]["architecture"][0]["content"] == "# Layers\n\nThree of them.\n"
    assert len(reply["topics"]["_plans"]) == 2
    assert reply["warnings"] == []


def test_a_topic_that_is_not_there_says_which_are(tree: Path) -> None:
    reply = ask(tree, "workspace_context", {"scope": "devtools", "topics": ["spikes"]})
    assert reply["topics"] == {"spikes": []}
    assert reply["warnings"] == ['No folder here has the topic "spikes". There are: architecture, plans.']


def test_a_tier_says_how_much_is_shown(tree: Path) -> None:
    write(tree, {"resources/workspaces/devtools/_plans/260301-long.md": "# Long\n\n" + "word " * 4000})

    def shown(tier: str) -> Reply:
        plans = ask(tree, "retrieve_plans", {"scope": "devtools", "tier": tier})["plans"]
        return next(plan for plan in plans if plan["_meta"]["document_id"] == "260301-long")

    assert "content" not in shown("T0")
    assert 8_000 < len(shown("T1")["content"]) < 8_200
    assert "more characters in resources/workspaces/devtools/_plans/260301-long.md" in shown("T1")["content"]
    assert len(shown("T2")["content"]) > 20_000


# filters


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"status": ["done"]}, ["Workflow Engine"]),
        ({"status": "done"}, ["Workflow Engine"]),
        ({"status": ["done", "in_progress"]}, ["SPA Self-Serve from Feature Modules", "Workflow Engine"]),
        ({"tags": ["XSTATE", "none of them"]}, ["Workflow Engine"]),
        ({"tags": ["spa"], "status": ["done"]}, []),
        ({"status": ["abandoned"]}, []),
        (None, ["SPA Self-Serve from Feature Modules", "Workflow Engine"]),
    ],
)
def test_filters_are_joined_and_values_of_one_are_alternatives(tree: Path, filters: object, found: list[str]) -> None:
    reply = ask(tree, "retrieve_plans", {"scope": "devtools", "filters": filters})
    assert [plan["name"] for plan in reply["plans"]] == found


def test_an_entry_that_lacks_the_filtered_field_is_left_out(tree: Path) -> None:
    write(
        tree,
        {
            "resources/workspaces/devtools/_plans/bare.md": "# Bare\n",
            "user/memory/workspaces/devtools/common/lessons.md": "### [2026-03-01] Bare\n\nText.\n",
        },
    )
    for tool, filters, key in (
        ("retrieve_plans", {"status": ["new"]}, "plans"),
        ("retrieve_plans", {"tags": ["spa"]}, "plans"),
        ("retrieve_learnings", {"category": "debugging"}, "lessons"),
        ("retrieve_learnings", {"tags": ["pnpm"]}, "lessons"),
    ):
        entries = ask(tree, tool, {"scope": "devtools", "filters": filters})[key]
        assert "bare" not in str(entries).casefold(), (tool, filters)


def test_a_filter_on_an_unknown_value_says_which_values_there_are(tree: Path) -> None:
    reply = ask(tree, "retrieve_plans", {"scope": "devtools", "filters": {"status": ["finished"]}})
    assert reply["success"] is False
    assert "new, in_progress, partial, done, abandoned" in reply["error"]
    reply = ask(tree, "retrieve_plans", {"scope": "devtools", "filters": {"tags": ["nope"]}})
    assert reply["plans"] == []
    assert "architecture, engine, nestjs, spa, workflow, xstate" in reply["warnings"][0]
    reply = ask(tree, "retrieve_learnings", {"scope": "devtools", "filters": {"category": "cooking"}})
    assert "architecture, debugging" in reply["warnings"][0]
    reply = ask(tree, "retrieve_plans", {"scope": "devtools", "filters": {"priority": 1}})
    assert "use status, tags" in reply["error"]


# what exists


def test_missing_fields_fall_back_to_the_file_name(tree: Path) -> None:
    write(
        tree,
        {
            "resources/workspaces/devtools/_plans/260301-no-front.md": "Just text.\n",
            "resources/workspaces/devtools/_plans/269999-no-date.md": "---\nstatus: new\n---\n",
        },
    )
    plans = {plan["_meta"]["document_id"]: plan for plan in ask(tree, "retrieve_plans", {"scope": "devtools"})["plans"]}
    assert plans["260301-no-front"]["name"] == "260301-no-front"
    assert plans["260301-no-front"]["created"] == "2026-03-01"
    assert "status" not in plans["260301-no-front"]
    assert "created" not in plans["269999-no-date"]


def test_plans_are_ordered_by_day_then_name(tree: Path) -> None:
    for name, day in (("b", "2026-05-01"), ("a", "2026-05-01"), ("c", "2026-06-01"), ("d", "")):
        created = f"created: {day}\n" if day else ""
        write(tree, {f"resources/workspaces/other/_plans/{name}.md": f"---\nname: {name}\n{created}---\n"})
    assert [plan["name"] for plan in ask(tree, "retrieve_plans", {"scope": "other"})["plans"]] == ["c", "a", "b", "d"]


@pytest.mark.parametrize(
    "text",
    [
        ENGINE.replace("\n", "\r\n"),
        "\ufeff" + ENGINE,
        ENGINE.replace("tags: [workflow, engine, xstate]", "tags:\n- workflow\n- engine\n- xstate"),
        ENGINE.replace("status: done", "status:\tdone"),
        ENGINE.replace("---\n\n", "---\n"),
    ],
    ids=["crlf", "bom", "list", "tab", "no blank line"],
)
def test_files_are_read_as_people_write_them(tree: Path, text: str) -> None:
    write(tree, {"resources/workspaces/devtools/common/_plans/260208-workflow-engine.md": text})
    reply = ask(tree, "retrieve_plans", {"scope": "devtools", "filters": {"tags": ["xstate"]}})
    assert [(plan["name"], plan["status"]) for plan in reply["plans"]] == [("Workflow Engine", "done")]


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("common/_plans/260301-x.md", "---\nname: [broken\n---\n\nBody\n", "not valid YAML"),
        ("common/_plans/260301-x.md", "---\nname: open\n\nBody\n", 'without a closing "---"'),
        ("common/_plans/260301-x.md", "---\nstatus: wip\n---\n", "status is 'wip'; it can be new, in_progress"),
        ("common/_plans/260301-x.md", b"---\nname: \xff\n---\n".decode("latin-1"), ""),
    ],
)
def test_what_cannot_be_read_is_listed_with_a_warning(tree: Path, path: str, text: str, said: str) -> None:
    write(tree, {f"resources/workspaces/devtools/{path}": text})
    reply = ask(tree, "retrieve_plans", {"scope": "devtools"})
    assert len(reply["plans"]) == 3
    if said:
        assert any(f"{path}:" in warning and said in warning for warning in reply["warnings"]), reply["warnings"]


def test_warnings_are_those_of_the_scope(tree: Path) -> None:
    write(tree, {"resources/workspaces/other/_plans/x.md": "---\nname: [broken\n---\n"})
    assert "warnings" not in ask(tree, "retrieve_plans", {"scope": "devtools"})
    assert ask(tree, "retrieve_plans", {"scope": "other"})["warnings"]
    assert "warnings" not in ask(tree, "retrieve_learnings", {"scope": "other"})


def test_an_entry_with_an_impossible_date_is_shown_last_with_a_warning(tree: Path) -> None:
    write(
        tree,
        {"user/memory/workspaces/devtools/decisions.md": DECISIONS + "\n### [2026-02-31] Never\n\nNo such day.\n"},
    )
    reply = ask(tree, "retrieve_learnings", {"scope": "devtools"})
    assert [entry["date"] for entry in reply["decisions"]] == ["2026-02-08", "2026-02-31"]
    assert any("decisions.md:12: [2026-02-31] is not a date" in warning for warning in reply["warnings"])


def test_rules_inside_an_entry_do_not_end_it(tree: Path) -> None:
    text = "### [2026-03-01] One\n\nBefore.\n\n---\n\nAfter.\n\n---\n\n### [2026-03-02] Two\n\nText.\n"
    write(tree, {"user/memory/workspaces/devtools/decisions.md": text})
    entries = ask(tree, "retrieve_learnings", {"scope": "devtools"})["decisions"]
    assert [entry["content"] for entry in entries] == ["Text.", "Before.\n\n---\n\nAfter."]


def test_linked_folders_inside_the_root_are_followed(tree: Path) -> None:
    write(tree, {"elsewhere/_plans/260401-linked.md": "# Linked\n"})
    os.symlink(tree / "elsewhere", tree / "resources/workspaces/devtools/linked")
    os.symlink("/etc", tree / "resources/workspaces/devtools/outside")
    reply = ask(tree, "retrieve_plans", {"scope": "devtools"})
    assert "260401-linked" in [plan["_meta"]["document_id"] for plan in reply["plans"]]
    assert any("outside" in warning for warning in reply["warnings"])


def test_a_large_file_of_decisions_is_read_within_the_budget(tree: Path) -> None:
    entry = "### [2026-01-{day:02d}] Entry {n}\n\n**Category:** tooling\n\n```\ncode {n}\n```\n{text}\n\n---\n\n"
    text = "".join(entry.format(day=n % 28 + 1, n=n, text="A sentence about it. " * 20) for n in range(10_000))
    assert len(text) > 4_800_000
    write(tree, {"user/memory/workspaces/devtools/decisions.md": text})
    reply = ask(tree, "retrieve_learnings", {"scope": "devtools"})
    assert 100 < len(reply["decisions"]) < 300
    assert "older entries are left out" in reply["warnings"][0]
    everything = ask(tree, "retrieve_learnings", {"scope": "devtools", "budget": 0})
    assert len(everything["decisions"]) == 10_000
    reply = ask(
        tree, "save_learning", {"scope": "devtools", "kind": "decision", "title": "New", "content": "One more."}
    )
    assert reply["status"] == "stored"


def _edit(root: Path) -> None:
    path = root / "resources/workspaces/devtools/common/_plans/260223-spa-self-serve.md"
    path.write_text(path.read_text().replace("in_progress", "partial"))
    with (root / "user/memory/workspaces/devtools/lessons.md").open("a") as file:
        file.write("\n### [2026-03-01] By hand\n\nWritten with a file tool.\n")


def test_an_edit_by_hand_is_seen_by_the_next_call_in_another_process(tree: Path) -> None:
    with holdfast.open(tree, watch=True) as memory:
        scope = {"scope": "devtools"}
        assert memory.call("retrieve_plans", scope)["plans"][0]["status"] == "in_progress"
        memory.call("retrieve_learnings", scope)
        process = multiprocessing.get_context("spawn").Process(target=_edit, args=(tree,))
        process.start()
        process.join()
        assert memory.call("retrieve_plans", scope)["plans"][0]["status"] == "partial"
        assert memory.call("retrieve_learnings", scope)["lessons"][0]["title"] == "By hand"


def test_everything_is_found_by_recall_and_meta_is_not(tree: Path) -> None:
    write(
        tree,
        {
            "resources/workspaces/devtools/_skills/ship-it/SKILL.md": "---\nname: ship-it\ndescription: How to ship\n---\n\nTag the commit.\n",
            "agent/rules/common/style.md": "<!-- budget: 10 lines -->\nAlways use semicolons.\n",
        },
    )
    with holdfast.open(tree) as memory:

        def found(query: str) -> set[str]:
            reply = memory.call("recall", {"query": query}, {"workspaceId": "devtools"})
            return {hit["kind"] for hit in reply["hits"]}

        assert "plan" in found("parallel task graphs")
        assert "overview" in found("utilities across all domains")
        assert "decision" in found("actor model TypeScript")
        assert "lesson" in found("require.resolve consuming package")
        assert "document" in found("layers three")
        assert "skill" in found("tag the commit")
        assert "rule" in found("semicolons")
        assert found("document_path document_id") == set()


def test_recall_in_a_repository_also_looks_above_it(tree: Path) -> None:
    with holdfast.open(tree) as memory:
        reply = memory.call("recall", {"query": "xstate actor model"}, {"workspaceId": "devtools/common/metan"})
        assert "decision" in [hit["kind"] for hit in reply["hits"]]
        assert "plan" not in [hit["kind"] for hit in reply["hits"] if hit["scope"] == "devtools/stock"]


def test_recall_names_what_is_related(tree: Path) -> None:
    with holdfast.open(tree) as memory:
        hits = memory.call("recall", {"query": "boilerplate server package"}, {"workspaceId": "devtools"})["hits"]
    assert hits[0]["related"][0]["id"].endswith("260208-workflow-engine.md")
    assert "linked to" in hits[0]["related"][0]["how"]


# writing


PLAN = "resources/workspaces/devtools/common/_plans/260223-spa-self-serve.md"


@pytest.mark.parametrize(
    "given", [{"path": PLAN}, {"id": "260223-spa-self-serve"}, {"id": "SPA Self-Serve from Feature Modules"}]
)
def test_a_status_changes_two_lines_and_no_other_byte(tree: Path, given: Reply) -> None:
    before = (tree / PLAN).read_bytes().decode("utf-8")
    reply = ask(tree, "set_plan_status", {**given, "status": "done"})
    assert (reply["status"], reply["was"]) == ("done", "in_progress")
    wanted = before.replace("status: in_progress\n", "status: done\n").replace(
        "\n---\n\nSee", f"\nupdated: {today()}\n---\n\nSee"
    )
    assert (tree / PLAN).read_bytes().decode("utf-8") == wanted


def test_a_status_keeps_comments_order_unknown_keys_line_ends_and_the_mark_at_the_start(tree: Path) -> None:
    text = (
        "\ufeff---\r\n# mine\r\nowner: me   # not known here\r\nupdated: '2026-02-01' # when\r\nstatus:  new  # so far\r\n"
        "name: X\r\n\r\n---\r\nBody  \r\nstatus: new\r\n\r\n\r\n"
    )
    write(tree, {PLAN: text})
    ask(tree, "set_plan_status", {"path": PLAN, "status": "partial"})
    wanted = text.replace("updated: '2026-02-01' # when", f"updated: {today()} # when", 1)
    wanted = wanted.replace("status:  new  # so far", "status:  partial  # so far", 1)
    assert (tree / PLAN).read_bytes().decode("utf-8") == wanted


def test_the_status_that_it_has_changes_nothing(tree: Path) -> None:
    before = (tree / PLAN).stat()
    assert ask(tree, "set_plan_status", {"path": PLAN, "status": "in_progress"})["receipt"] == "unchanged"
    assert (tree / PLAN).stat() == before


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ('status: "new"  # keep me', "status: done  # keep me"),
        ("status: 'it''s new' # why", "status: done # why"),
        ("status:      new", "status:      done"),
        ("status: [new, or] # what", "status: done # what"),
        ("status: # none yet", "status: done # none yet"),
        ("status:", "status: done"),
        (
            "status: new\n  # an indented comment\n# one that is not",
            "status: done\n  # an indented comment\n# one that is not",
        ),
        ("'status' : new", "'status' : done"),
    ],
)
def test_a_status_keeps_what_stands_around_it(tree: Path, line: str, becomes: str) -> None:
    write(tree, {PLAN: f"---\nname: X\n{line}\nupdated: 2026-01-01\nowner: me\n---\n"})
    assert ask(tree, "set_plan_status", {"path": PLAN, "status": "done"})["status"] == "done"
    assert (tree / PLAN).read_text() == f"---\nname: X\n{becomes}\nupdated: {today()}\nowner: me\n---\n"


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"path": PLAN, "status": "finished"}, "use abandoned, done, in_progress, new, partial"),
        ({"status": "done"}, "Give path or id."),
        ({"path": PLAN, "id": "x", "status": "done"}, "not both"),
        ({"path": "resources/workspaces/devtools/OVERVIEW.md", "status": "done"}, "is not the path of a plan"),
        ({"path": "../outside.md", "status": "done"}, "is not the path of a plan"),
        ({"path": "resources/workspaces/devtools/_plans/none.md", "status": "done"}, "does not exist"),
        ({"id": "260223-spa-self-serv", "status": "done"}, 'Did you mean "260223-spa-self-serve"?'),
    ],
)
def test_a_status_that_cannot_be_set_says_why(tree: Path, params: Reply, said: str) -> None:
    reply = ask(tree, "set_plan_status", params)
    assert reply["success"] is False
    assert said in reply["error"]


def test_a_plan_in_two_places_is_told_apart_by_the_workspace(tree: Path) -> None:
    write(tree, {"resources/workspaces/other/_plans/260223-spa-self-serve.md": SELF_SERVE})
    params = {"id": "260223-spa-self-serve", "status": "done"}
    assert "names several plans" in ask(tree, "set_plan_status", params)["error"]
    reply = ask(tree, "set_plan_status", params, {"workspaceId": "other"})
    assert reply["path"] == "resources/workspaces/other/_plans/260223-spa-self-serve.md"


def test_a_plan_with_broken_front_matter_is_not_touched(tree: Path) -> None:
    write(tree, {PLAN: "---\nstatus: [broken\n---\nText\n"})
    reply = ask(tree, "set_plan_status", {"path": PLAN, "status": "done"})
    assert "Fix the front matter by hand" in reply["error"]
    assert (tree / PLAN).read_text() == "---\nstatus: [broken\n---\nText\n"


def test_a_learning_is_added_in_the_format_of_the_design(tree: Path) -> None:
    params = {
        "scope": {"workspace": "devtools", "domain": "common"},
        "kind": "lesson",
        "title": "Watchers miss renames",
        "content": "Look at the folder too.",
        "category": "debugging",
        "tags": ["fs", "watch"],
    }
    reply = ask(tree, "save_learning", params)
    path = "user/memory/workspaces/devtools/common/lessons.md"
    assert (reply["status"], reply["where"]) == ("stored", path)
    assert (tree / path).read_text() == (
        f"# Lessons\n\n### [{today()}] Watchers miss renames\n\n**Category:** debugging\n**Tags:** fs, watch\n\n"
        "Look at the folder too.\n\n---\n"
    )


@pytest.mark.parametrize("scope", ["devtools", "devtools/common", "devtools/common/metan"])
def test_a_learning_that_is_known_here_or_above_is_refused_and_named(tree: Path, scope: str) -> None:
    before = {path: path.read_bytes() for path in tree.rglob("*.md")}
    content = "chose  xstate v5 for workflow state management — ACTOR model\n+ strong TypeScript support"
    reply = ask(tree, "save_learning", {"scope": scope, "kind": "decision", "title": "Other title", "content": content})
    assert reply["success"] is False
    assert (
        "user/memory/workspaces/devtools/decisions.md#2026-02-08-xstate-for-workflows says the same" in reply["error"]
    )
    assert {path: path.read_bytes() for path in tree.rglob("*.md")} == before


def test_a_learning_can_be_saved_once_under_an_op_id(tree: Path) -> None:
    params = {"scope": "devtools", "kind": "lesson", "title": "Once", "content": "Only once."}
    context = {"workspaceId": "devtools", "sessionId": "s", "opId": "op-1"}
    assert ask(tree, "save_learning", params, context)["status"] == "stored"
    assert ask(tree, "save_learning", params, context)["status"] == "repeated"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "idea"}, "use decision, lesson"),
        ({"title": " "}, "Missing or blank: title"),
        ({"content": ""}, "Missing or blank: content"),
        ({"title": "two\nlines"}, "one line"),
        ({"content": "### [2026-01-01] An entry of its own"}, "entry heading"),
        ({"tags": ["a,b"]}, "without a comma"),
        ({"scope": "nowhere"}, 'Workspace "nowhere" not found.'),
        ({"colour": "red"}, "save_learning has no parameter colour"),
    ],
)
def test_a_learning_that_cannot_be_kept_says_why(tree: Path, changes: Reply, said: str) -> None:
    params = {"scope": "devtools", "kind": "lesson", "title": "T", "content": "C"} | changes
    reply = ask(tree, "save_learning", params)
    assert reply["success"] is False
    assert said in reply["error"]


# skills


SKILL = {"name": "Ship it", "description": "How to ship a release", "content": "1. Tag.\n2. Push."}


def test_a_skill_is_listed_in_short_and_loaded_in_full(tree: Path) -> None:
    reply = ask(tree, "save_skill", {"scope": "devtools", **SKILL, "tags": ["release"]})
    assert reply["id"] == "resources/workspaces/devtools/_skills/ship-it/SKILL.md"
    text = (tree / reply["id"]).read_text()
    assert text.startswith("---\nname: ship-it\ndescription: How to ship a release\n")
    write(tree, {"resources/workspaces/devtools/_skills/ship-it/scripts/tag.sh": "git tag\n"})
    listed = ask(tree, "workspace_context", {"scope": "devtools/common/metan"})["skills"]
    assert [(skill["name"], skill["description"], skill["scope"]) for skill in listed] == [
        ("ship-it", "How to ship a release", "devtools")
    ]
    assert "content" not in listed[0]
    loaded = ask(tree, "load_skill", {"scope": "devtools/common", "name": "Ship it"})
    assert loaded["content"] == "1. Tag.\n2. Push."
    assert loaded["files"] == ["resources/workspaces/devtools/_skills/ship-it/scripts/tag.sh"]


def test_a_skill_is_replaced_only_from_the_version_that_it_has(tree: Path) -> None:
    ask(tree, "save_skill", {"scope": "devtools", **SKILL})
    again = {"scope": "devtools", **SKILL, "content": "1. Push."}
    refused = ask(tree, "save_skill", again)
    assert 'Skill "ship-it" already exists in devtools.' in refused["error"]
    version = ask(tree, "load_skill", {"scope": "devtools", "name": "ship-it"})["version"]
    assert ask(tree, "save_skill", {**again, "expect": version})["status"] == "changed"
    assert "changed since" in ask(tree, "save_skill", {**again, "content": "x", "expect": version})["error"]
    assert ask(tree, "load_skill", {"scope": "devtools", "name": "ship-it"})["content"] == "1. Push."


def test_a_skill_that_is_not_there_says_which_are(tree: Path) -> None:
    ask(tree, "save_skill", {"scope": "devtools", **SKILL})
    reply = ask(tree, "load_skill", {"scope": "devtools", "name": "ship-i"})
    assert reply["error"] == 'Skill "ship-i" not found. There are: ship-it. Did you mean "ship-it"?'


# relations


def related(root: Path, what: str) -> list[tuple[str, str]]:
    with holdfast.open(root) as memory:
        return [(tied.record.path.rpartition("/")[2], ", ".join(tied.how)) for tied in memory.related(what)]


def test_links_and_tags_relate_documents_in_both_directions(tree: Path) -> None:
    assert related(tree, PLAN) == [("260208-workflow-engine.md", "linked to"), ("lessons.md", "tagged nestjs")]
    back = related(tree, "resources/workspaces/devtools/common/_plans/260208-workflow-engine.md")
    assert ("260223-spa-self-serve.md", "links here") in back
    assert ("decisions.md", "tagged workflow, tagged xstate") in back


def test_a_name_that_nothing_bears_relates_all_that_speak_of_it(tree: Path) -> None:
    write(
        tree,
        {
            "resources/workspaces/devtools/_notes/a.md": "We run [[Redis]].\n",
            "resources/workspaces/devtools/_notes/b.md": "[[redis|The cache]] was full.\n",
            "resources/workspaces/devtools/_notes/c.md": "```\n[[Redis]]\n```\nand `[[Redis]]` in code\n",
        },
    )
    assert sorted(related(tree, "Redis")) == [("a.md", "links to redis"), ("b.md", "links to redis")]
    assert related(tree, "resources/workspaces/devtools/_notes/a.md") == [("b.md", "also links to redis")]


@pytest.mark.parametrize(
    "link",
    [
        "[[Workflow Engine]]",
        "[[workflow-engine]]",
        "[[260208-workflow-engine]]",
        "[[260208-workflow-engine.md|the engine]]",
        "[[resources/workspaces/devtools/common/_plans/260208-workflow-engine]]",
        "[the engine](common/_plans/260208-workflow-engine.md#steps)",
        "[[The Engine]]",
    ],
)
def test_a_document_is_linked_by_any_of_its_names(tree: Path, link: str) -> None:
    plan = "resources/workspaces/devtools/common/_plans/260208-workflow-engine.md"
    write(tree, {plan: ENGINE.replace("status:", "aliases: [The Engine]\nstatus:")})
    write(tree, {"resources/workspaces/devtools/note.md": f"See {link}.\n"})
    assert ("260208-workflow-engine.md", "linked to") in related(tree, "resources/workspaces/devtools/note.md")


def test_a_link_follows_the_file_when_it_changes(tree: Path) -> None:
    note = "resources/workspaces/devtools/note.md"
    write(tree, {note: "See [[Metan]].\n"})
    assert related(tree, note) == [("OVERVIEW.md", "linked to")]
    write(tree, {note: "See [[Layers]] now.\n"})
    assert related(tree, note) == [("layers.md", "linked to")]
    (tree / note).unlink()
    assert ("note.md", "links here") not in related(
        tree, "resources/workspaces/devtools/common/metan/_architecture/layers.md"
    )
    with holdfast.open(tree) as memory:
        assert memory.verify().sound


# the command line


def cli(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *words, "--root", str(root)]
    return fork_server.run(command, capture_output=True, text=True)


def test_the_commands_say_what_the_tools_say(tree: Path) -> None:
    for words, tool, params in (
        (["plan", "list", "devtools", "--status", "done"], "retrieve_plans", {"filters": {"status": ["done"]}}),
        (["learnings", "list", "devtools", "--tags", "pnpm"], "retrieve_learnings", {"filters": {"tags": ["pnpm"]}}),
        (["overview", "devtools"], "retrieve_overview", {}),
        (
            ["workspace", "context", "devtools", "--topics", "architecture"],
            "workspace_context",
            {"topics": ["architecture"]},
        ),
    ):
        done = cli(tree, *words)
        assert done.returncode == 0, done.stderr
        assert loads(done.stdout) == ask(tree, tool, {"scope": "devtools", **params})


def test_the_commands_write_and_exit_as_they_should(tree: Path) -> None:
    assert cli(tree, "plan", "status", "260223-spa-self-serve", "done").returncode == 0
    assert "status: done" in (tree / PLAN).read_text()
    words = ["--scope", "devtools", "--kind", "lesson", "--title", "T", "--content", "C"]
    assert cli(tree, "learnings", "save", *words).returncode == 0
    assert cli(tree, "learnings", "save", *words).returncode == 4
    assert cli(tree, "plan", "list", "nowhere").returncode == 3
    done = cli(tree, "related", "260223-spa-self-serve")
    assert done.returncode == 0
    assert "260208" in cli(tree, "related", PLAN).stdout
