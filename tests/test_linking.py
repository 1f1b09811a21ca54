"""Making rules known to clients: links, the managed block, and taking both back; nothing of others is touched."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fork_server
import holdfast
from holdfast.clients import rules
from holdfast.clients.rules import LinkResult
from holdfast.errors import Damaged, Unavailable

RULES = "agent/rules/common"
BLOCK = """\
<!-- holdfast: begin -->
@agent/rules/common/one.md
<!-- holdfast: end -->
"""


@pytest.fixture
def root(root: Path) -> Path:
    """A root with one rule and one command."""
    write(root / RULES / "one.md", "<!-- budget: 9 lines -->\n# One\n")
    write(root / "agent/commands/common/save-memory.md", "# Save\n")
    return root


def write(path: Path, data: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def tree(root: Path) -> dict[str, object]:
    """Every file and link of a folder, but for the index."""
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if (path.is_symlink() or path.is_file()) and ".holdfast" not in path.parts
    }


def told(made: list[LinkResult]) -> dict[str, str]:
    return {one.path: one.what for one in made}


def why(made: list[LinkResult], path: str) -> str:
    return next(one.why for one in made if one.path == path)


def run(root: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "holdfast", "hot", "link", *words, "--root", str(root)]
    done = fork_server.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


ALL = {
    ".cursor/rules/one.mdc": "made",
    ".codex/one.md": "made",
    ".cursor/commands/save-memory.md": "made",
    ".claude/commands/save-memory.md": "made",
    "AGENTS.md": "made",
    "CLAUDE.md": "made",
}


def test_rules_and_commands_are_linked_and_named_to_every_client(memory: holdfast.Memory, root: Path) -> None:
    assert told(rules.link(memory)) == ALL
    assert os.readlink(root / ".cursor/rules/one.mdc") == "../../agent/rules/common/one.md"
    assert os.readlink(root / ".codex/one.md") == "../agent/rules/common/one.md"
    for path in ("cursor", "claude"):
        link = root / f".{path}/commands/save-memory.md"
        assert os.readlink(link) == "../../agent/commands/common/save-memory.md"
        assert link.read_text() == "# Save\n"
    assert (root / "CLAUDE.md").read_text() == BLOCK
    agents = (root / "AGENTS.md").read_text()
    assert agents.startswith(rules.BEGIN + "\nRead these files before you start")
    assert agents.endswith(f"\n\n- {RULES}/one.md\n{rules.END}\n")


def test_linking_twice_makes_nothing_new(memory: holdfast.Memory, root: Path) -> None:
    rules.link(memory)
    before = tree(root)
    assert set(told(rules.link(memory)).values()) == {"there"}
    assert tree(root) == before


def test_nothing_is_made_where_there_is_nothing_to_link(root: Path, tmp_path: Path) -> None:
    (root / RULES / "one.md").unlink()
    (root / "agent/commands/common/save-memory.md").unlink()
    before = tree(root)
    with holdfast.open(root) as memory:
        assert set(told(rules.link(memory)).values()) == {"there"}
    assert tree(root) == before


def test_a_new_rule_is_added_and_one_that_is_gone_is_taken_out(memory: holdfast.Memory, root: Path) -> None:
    rules.link(memory)
    (root / RULES / "one.md").rename(root / RULES / "two.md")
    made = rules.link(memory)
    assert told(made) == {
        ".cursor/rules/one.mdc": "removed",
        ".cursor/rules/two.mdc": "made",
        ".codex/one.md": "removed",
        ".codex/two.md": "made",
        ".cursor/commands/save-memory.md": "there",
        ".claude/commands/save-memory.md": "there",
        "AGENTS.md": "changed",
        "CLAUDE.md": "changed",
    }
    assert (root / "CLAUDE.md").read_text() == BLOCK.replace("one", "two")
    (root / RULES / "two.md").unlink()
    assert told(rules.link(memory))["CLAUDE.md"] == "removed"
    assert not (root / "CLAUDE.md").exists() and not (root / "AGENTS.md").exists()
    assert not list((root / ".cursor/rules").iterdir())


def test_two_rules_of_one_name_get_names_of_their_own(memory: holdfast.Memory, root: Path) -> None:
    for folder in ("team", "x/deep", "y/deep", "z"):
        write(root / f"agent/rules/{folder}/One.md", "<!-- budget: 9 lines -->\n")
    rules.link(memory)
    links = {path.name: os.readlink(path) for path in (root / ".codex").iterdir()}
    assert links == {
        "one.md": "../agent/rules/common/one.md",
        "team-One.md": "../agent/rules/team/One.md",
        "deep-One.md": "../agent/rules/x/deep/One.md",
        "y-deep-One.md": "../agent/rules/y/deep/One.md",
        "z-One.md": "../agent/rules/z/One.md",
    }
    (root / RULES / "one.md").unlink()
    made = told(rules.link(memory))
    assert (made[".codex/one.md"], made[".codex/One.md"], made[".codex/team-One.md"]) == ("removed", "made", "removed")
    assert os.readlink(root / ".codex/One.md") == "../agent/rules/team/One.md"
    assert set(told(rules.link(memory)).values()) == {"there"}


def test_a_link_of_ours_to_another_rule_is_changed(memory: holdfast.Memory, root: Path) -> None:
    write(root / "agent/rules/team/one.md", "<!-- budget: 9 lines -->\n")
    (root / ".codex").mkdir()
    (root / ".codex/one.md").symlink_to("../agent/rules/team/one.md")
    assert told(rules.link(memory))[".codex/one.md"] == "changed"
    assert os.readlink(root / ".codex/one.md") == "../agent/rules/common/one.md"
    assert os.readlink(root / ".codex/team-one.md") == "../agent/rules/team/one.md"


def test_what_somebody_else_made_is_kept_with_the_reason(memory: holdfast.Memory, root: Path) -> None:
    write(root / ".cursor/rules/one.mdc", "mine")
    write(root / ".cursor/rules/own.mdc", "mine too")
    write(root / "elsewhere.md", "text")
    (root / ".codex").mkdir()
    (root / ".codex/one.md").symlink_to("../elsewhere.md")
    (root / ".codex/by-hand.md").symlink_to("../agent/rules/common/one.md")
    (root / ".codex/broken.md").symlink_to("../nothing.md")
    (root / ".claude/commands/save-memory.md").mkdir(parents=True)
    (root / "CLAUDE.md").symlink_to("AGENTS.md")
    write(root / "AGENTS.md", b"\xff\xfeA\x00")
    before = tree(root)
    made = rules.link(memory)
    assert [one.path for one in made if one.what == "kept"] == [
        ".cursor/rules/one.mdc", ".codex/one.md", ".claude/commands/save-memory.md", "AGENTS.md", "CLAUDE.md"
    ]  # fmt: skip
    assert "file" in why(made, ".cursor/rules/one.mdc") and "elsewhere" in why(made, ".codex/one.md")
    assert "UTF-8" in why(made, "AGENTS.md") and "AGENTS.md" in why(made, "CLAUDE.md")
    assert {path: data for path, data in tree(root).items() if path in before} == before
    assert told(rules.unlink(memory)) == {
        ".cursor/commands/save-memory.md": "removed", "AGENTS.md": "kept", "CLAUDE.md": "kept"
    }  # fmt: skip
    assert tree(root) == before


@pytest.mark.parametrize("place", [".cursor", ".cursor/rules"])
@pytest.mark.parametrize("leads", ["outside", "inside", "nowhere"])
def test_a_linked_folder_leads_no_write_anywhere(root: Path, tmp_path: Path, place: str, leads: str) -> None:
    target = {"outside": tmp_path / "outside", "inside": root / "agent/rules", "nowhere": tmp_path / "none"}[leads]
    if leads == "outside":
        (target / "rules").mkdir(parents=True)
    (root / place).parent.mkdir(exist_ok=True)
    (root / place).symlink_to(target)
    before = tree(tmp_path / "outside"), tree(root / "agent")
    with holdfast.open(root) as memory:
        made = rules.link(memory)
        assert told(made)[".cursor/rules/one.mdc"] == "kept"
        assert "link" in why(made, ".cursor/rules/one.mdc")
        assert told(made)[".codex/one.md"] == "made"
        rules.unlink(memory)
    assert (tree(tmp_path / "outside"), tree(root / "agent")) == before
    assert (root / place).is_symlink()


def test_a_rules_folder_that_is_out_of_reach_is_not_one_that_is_empty(root: Path, tmp_path: Path) -> None:
    with holdfast.open(root) as memory:
        rules.link(memory)
        (root / "agent").rename(tmp_path / "agent")
        (root / "agent").symlink_to(tmp_path / "agent")
        before = tree(root)
        with pytest.raises(Unavailable, match="agent/rules"):
            rules.link(memory)
        assert tree(root) == before


# another folder


def test_another_folder_gets_absolute_links_and_only_it_is_written(root: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    before = tree(root)
    made = run(root, "--into", str(project))
    assert {one["path"]: one["what"] for one in made} == ALL
    assert os.readlink(project / ".cursor/rules/one.mdc") == str(root / RULES / "one.md")
    assert f"@{root}/{RULES}/one.md\n" in (project / "CLAUDE.md").read_text()
    assert {one["what"] for one in run(root, "--into", str(project))} == {"there"}
    assert tree(root) == before
    (root / RULES / "one.md").unlink()
    assert {one["path"]: one["what"] for one in run(root, "--into", str(project))}[".codex/one.md"] == "removed"
    run(root, "--into", str(project), "--remove")
    assert tree(project) == {}


def test_a_folder_inside_the_root_gets_relative_links(memory: holdfast.Memory, root: Path) -> None:
    project = root / "projects/alpha"
    project.mkdir(parents=True)
    rules.link(memory, str(project))
    assert os.readlink(project / ".codex/one.md") == "../../../agent/rules/common/one.md"
    assert (project / ".codex/one.md").read_text().startswith("<!-- budget")
    assert "@../../agent/rules/common/one.md" in (project / "CLAUDE.md").read_text()
    assert set(told(rules.link(memory, str(project))).values()) == {"there"}
    rules.unlink(memory, str(project))
    assert tree(project) == {}


def test_the_root_may_be_named_as_the_folder(memory: holdfast.Memory, root: Path) -> None:
    rules.link(memory, str(root))
    assert set(told(rules.link(memory)).values()) == {"there"}


@pytest.mark.parametrize("into", ["missing", "file"])
def test_a_folder_that_is_none_is_refused(memory: holdfast.Memory, tmp_path: Path, into: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="is not a folder"):
        rules.link(memory, str(tmp_path / into))


def test_a_space_in_a_path_does_not_end_an_import(memory: holdfast.Memory, root: Path) -> None:
    write(root / "agent/rules/my team/two.md", "<!-- budget: 9 lines -->\n")
    rules.link(memory)
    assert "@agent/rules/my\\ team/two.md\n" in (root / "CLAUDE.md").read_text()


# the block


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "Mine.",
        "Mine.\n",
        "Mine.\n\n",
        "# Mine\r\n\r\nText.\r\n",
        "\ufeff# Mine\r\nText.",
        "\ufeff",
        "a\r\nb\n",
        "a\nb\r\n",
    ],
)
def test_linking_and_taking_back_leaves_every_byte_as_it_was(root: Path, text: str) -> None:
    write(root / "CLAUDE.md", text)
    write(root / ".codex/config.toml", "model = 1\n")
    before = tree(root)
    made = {one["path"]: one["what"] for one in run(root)}
    assert made["CLAUDE.md"] == "made"
    now = (root / "CLAUDE.md").read_bytes().decode()
    assert now.startswith(text) and rules.BEGIN in now
    if text.startswith(("# Mine\r", "\ufeff# Mine\r")):
        assert now.count("\n") == now.count("\r\n")
    removed = run(root, "--remove")
    assert {one["what"] for one in removed} <= {"removed", "changed"}  # links are removed, a block is taken out
    assert tree(root) == before
    assert run(root, "--remove") == []


@given(st.text("a \n\r\ufeff", max_size=12) | st.text(max_size=40))
def test_taking_out_a_block_that_was_put_in_gives_back_any_text(text: str) -> None:
    for lines in (["one"], ["one", "", "two"]):
        with_block = rules.put_block(text, lines)
        assert rules.put_block(with_block, lines) == with_block
        assert rules.take_block(rules.put_block(with_block, ["other"])) == text
    assert rules.take_block(rules.put_block(None, ["one"])) is None
    assert rules.take_block(text) == text


def test_a_block_is_replaced_where_it_stands_and_the_text_around_it_stays_byte_for_byte(
    memory: holdfast.Memory, root: Path
) -> None:
    around = b"\xef\xbb\xbf# Mine\r\n\r\n%s\r\nAfter. \r\n\r\n\r\nNo end"
    path = write(root / "CLAUDE.md", around % b"<!-- holdfast: begin -->\r\nold\r\n<!-- holdfast: end -->")
    assert told(rules.link(memory))["CLAUDE.md"] == "changed"
    assert path.read_bytes() == around % BLOCK.strip().replace("\n", "\r\n").encode()
    rules.unlink(memory)
    assert path.read_bytes() == around.replace(b"%s\r\n", b"")


def test_what_was_written_around_a_block_that_we_made_stays(memory: holdfast.Memory, root: Path) -> None:
    rules.link(memory)
    path = root / "CLAUDE.md"
    path.write_text("Before.\n" + path.read_text() + "\nAfter.\n")
    rules.link(memory)
    assert path.read_text() == "Before.\n" + BLOCK + "\nAfter.\n"
    rules.unlink(memory)
    assert path.read_text() == "Before.\n\nAfter.\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\n<!-- holdfast: begin -->\nb\n", 2),
        ("a\nb\n<!-- holdfast: end -->\n", 3),
        ("<!-- holdfast: end -->\n<!-- holdfast: begin -->\n", 1),
        (BLOCK + BLOCK, 4),
        (BLOCK + "<!-- holdfast: end -->\n", 4),
        ("<!-- holdfast: begin -->\n" + BLOCK, 2),
    ],
)
def test_a_broken_block_is_refused_before_anything_is_changed(
    memory: holdfast.Memory, root: Path, text: str, line: int
) -> None:
    write(root / "CLAUDE.md", text)
    before = tree(root)
    for work in (rules.link, rules.unlink):
        with pytest.raises(Damaged, match=rf"CLAUDE\.md: line {line} "):
            work(memory)
    assert tree(root) == before


def test_a_marker_inside_a_line_is_text(memory: holdfast.Memory, root: Path) -> None:
    path = write(root / "CLAUDE.md", "Write `<!-- holdfast: begin -->` to begin.\n")
    assert told(rules.link(memory))["CLAUDE.md"] in ("made", "changed")
    rules.unlink(memory)
    assert path.read_text() == "Write `<!-- holdfast: begin -->` to begin.\n"


def test_links_are_no_memory(memory: holdfast.Memory, root: Path) -> None:
    rules.link(memory)
    found = memory.find("One", kinds=("rule",))
    assert [hit.record.path for hit in found] == [f"{RULES}/one.md"]
    assert memory.hot.total().lines == 2
    assert memory.verify().sound
