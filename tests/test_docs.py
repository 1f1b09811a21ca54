"""The documentation is true: generated pages equal the code, links have targets, the map has every module."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from prove.__main__ import CAMPAIGNS
from prove.defences import DEFENCES
from tools import story
from tools.reference import FOLDER, pages

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


NOT_RUN = {
    "pip install": "needs a package index",
    "scripts/demo": "sets up an environment; tests/test_examples.py runs the tour",
    "scripts/test": "runs all tests",
    "scripts/bench": "needs a set of questions",
    "holdfast serve": "runs until it is ended",
    "python -m examples.anthropic_loop": "needs a model; tests/test_examples.py has one",
}
"""How the commands begin that the next test leaves out, and why."""
WITHOUT_A_TERMINAL = re.compile(r"^holdfast (install|push)\b", re.MULTILINE)
"""Commands that ask, and here get `--yes`."""
OF_THE_USER = ("CLAUDE", "CODEX", "GIT_", "HOLDFAST_", "PG", "XDG_")
"""Variables that lead to files and memories of the user."""
BLOCK = re.compile(r"^(?:<!-- test:((?:(?!-->).)*)-->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""The setup of a block, which is Python that a reader does not see, its language, and its text.

A block without a language shows commands after `$ `, and their output.
"""
PROGRAM = """import os, subprocess
def shell(script):
    subprocess.run(["bash", "-euxc", script], stdin=subprocess.DEVNULL, check=True)
"""


def runnable(script: str) -> str:
    lines = script.replace("\\\n", " ").splitlines()
    kept = "\n".join(line for line in lines if not line.startswith(tuple(NOT_RUN)))
    return WITHOUT_A_TERMINAL.sub(r"\g<0> --yes", kept)


def snippets(page: pathlib.Path) -> list[tuple[str, str, str]]:
    """Return the setup, the language and the code of each block."""
    found = []
    for setup, language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language in ("sh", "python"):
            found.append((setup.strip(), language, block))
        elif not language:
            found.append((setup.strip(), "sh", "\n".join(re.findall(r"^\$ (.*)", block, re.MULTILINE))))
    return found


SNIPPETS = {page: snippets(page) for page in (TOP / "README.md", *sorted((TOP / "docs/guides").glob("*.md")))}


@pytest.mark.parametrize("page", [page for page in SNIPPETS if SNIPPETS[page]], ids=lambda page: str(page.stem))
def test_every_snippet_of_the_page_works(
    page: pathlib.Path, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> None:
    """Run the blocks in their order; the Python of a page has one namespace, and an address is that of a real database."""
    parts = [PROGRAM if page.stem == "README" else f"{PROGRAM}shell('holdfast init ~/memory')"]
    for setup, language, block in SNIPPETS[page]:
        parts += [setup, f"shell({runnable(block)!r})" if language == "sh" else block]
    program = "\n".join(parts)
    if "postgresql://" in program:
        program = re.sub(r"postgresql://[^\"'\s]+", request.getfixturevalue("address"), program)
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_USER)}
    environment |= {"HOME": str(tmp_path), "HOLDFAST_ROOT": f"{tmp_path}/memory", "HOLDFAST_TRUST": "all", "PATH": path}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if page.stem == "README":
        assert "Ann approves every refund." in done.stdout


def test_only_these_commands_are_not_run() -> None:
    lines = [
        line for blocks in SNIPPETS.values() for _, language, block in blocks if language == "sh"
        for line in block.splitlines()
    ]  # fmt: skip
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in lines)] == []
    assert sum(line.startswith("holdfast ") for line in lines) >= 60


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
