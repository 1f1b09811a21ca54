"""The documentation is true: generated pages equal the code, links have targets, the map has every module."""

from __future__ import annotations

import pathlib
import re
import shlex
import subprocess
import sys

import click
import pytest
from prove.__main__ import CAMPAIGNS
from prove.defences import DEFENCES
from tools import story
from tools.reference import FOLDER, pages

import fork_server
from holdfast.cli.main import cli

TOP = pathlib.Path(__file__).parent.parent
PAGES = sorted([*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")])


@pytest.mark.parametrize("name", pages())
def test_the_reference_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == pages()[name], "run scripts/reference"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_every_link_has_a_target(page: pathlib.Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_map_names_every_module_and_no_other() -> None:
    text = (TOP / "docs/architecture.md").read_text(encoding="utf-8").split("## The map")[1].split("\n## ")[0]
    named = {
        (package, module)
        for package, modules in re.findall(r"^\| `(.+?)` \| .* \| (.*) \|$", text, re.MULTILINE)
        for module in modules.split()
    }
    source = TOP / "src/holdfast"
    there = {
        (".".join(path.parent.relative_to(source).parts) or "holdfast", path.stem)
        for path in source.rglob("*.py")
        if path.name not in ("__main__.py", "__init__.py")
    }
    assert named == there


def test_the_picture_of_the_story_shows_the_commands_of_the_readme() -> None:
    commands = [shlex.split(line.partition(" && ")[0], comments=True) for line in story.story() if line[0] != "#"]
    svg = story.TARGET.read_text(encoding="utf-8")
    assert story.commands_in(svg) == commands, "run scripts/story"
    assert "TMPDIR is on a small disk" in svg.split("recall")[1], "it shows what was found"


def test_every_command_of_the_readme_works(tmp_path: pathlib.Path) -> None:
    """Run the story and the command-line block of the README unchanged, except for the folder of the root."""
    text = (TOP / "README.md").read_text(encoding="utf-8")
    blocks = [text.split(start)[1].split("```sh")[1].split("```")[0] for start in ("## From the command", "On Monday")]
    lines = "".join(blocks).splitlines()
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("holdfast ")]
    assert len(commands) >= 13
    assert {words[1] for words in commands} <= set(cli.list_commands(click.Context(cli)))
    for words in commands:
        if "&&" in words:
            words = ["holdfast", "init", str(tmp_path)]
        extra = [] if words[1] == "init" else ["--root", str(tmp_path)]
        done = fork_server.run([sys.executable, "-m", "holdfast", *words[1:], *extra], capture_output=True, text=True)
        assert done.returncode == 0, (words, done.stderr)


def test_the_python_of_the_readme_works(tmp_path: pathlib.Path) -> None:
    text = (TOP / "README.md").read_text(encoding="utf-8")
    code = text.split("## From Python")[1].split("```python")[1].split("```")[0].replace("~/memory", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "We deploy on Tuesdays." in done.stdout


def test_every_test_that_proves_a_promise_exists() -> None:
    text, campaigns = ((TOP / "docs" / name).read_text(encoding="utf-8") for name in ("durability.md", "campaigns.md"))
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text + campaigns)
    assert len(named) >= 20
    for path, name in named:
        assert re.search(rf"^ *(def {name}\(|{name} = )", (TOP / path).read_text(encoding="utf-8"), re.MULTILINE), name
    promises = text.split("## Promises")[1].split("\n## ")[0].split("\n**")[1:]
    assert [promise.partition(".")[0] for promise in promises] == [
        str(number) for number in range(1, len(promises) + 1)
    ]
    assert all("Proof: " in promise for promise in promises)


def test_the_page_names_every_campaign_and_every_defence() -> None:
    text = (TOP / "docs/campaigns.md").read_text(encoding="utf-8")

    def rows(heading: str) -> list[str]:
        part = text.split(f"## {heading}")[1].split("\n## ")[0]
        return re.findall(r"^\| `([\w -]+)` \|", part, re.MULTILINE)

    assert rows("Campaigns") == list(CAMPAIGNS)
    assert rows("Defences") == list(DEFENCES)
