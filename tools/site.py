"""The docs outside the repository: `llms.txt` for models, and the site for readers.

    python -m tools.site     build the site into .publish/site (needs the extra `docs`, but no network)

The site has the pages of docs/ and, as the first, the README. Links to other files lead to the repository.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from typing import Any

from holdfast.tools import toolsets

ROOT = pathlib.Path(__file__).parent.parent
WORK = ROOT / ".publish"
"""What is made for a release or a check; not in git."""
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TITLE, ABOUT = "Holdfast", PROJECT["description"]
SOURCE, DOCUMENTATION = PROJECT["urls"]["Source"], PROJECT["urls"]["Documentation"]
SECTIONS = {
    "Guides": "guides/*.md",
    "Running and judging it": "*.md",
    "Reference": "reference/*.md",
    "Decisions": "decisions/README.md",
}
"""The pages of the docs by section; the decisions are reached from their list."""


def pages() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield each section of the docs with the path, title and first sentence of its pages."""
    folder = ROOT / "docs"
    for section, pattern in SECTIONS.items():
        found = sorted(folder.glob(pattern))
        yield section, [(page.relative_to(folder).as_posix(), *_title(page.read_text("utf-8"))) for page in found]


def _title(text: str) -> tuple[str, str]:
    """Return the heading of a page and its first sentence, without links."""
    title = re.findall(r"^# (.+)$", text, re.MULTILINE)[0]
    prose = re.sub(r"```.*?```|<!--.*?-->|^#.*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    first = prose.strip().removeprefix("- ").partition("\n\n")[0].partition(". ")[0]
    return title, re.sub(r"\[(.+?)\]\(.+?\)", r"\1", " ".join(first.split())).rstrip(".:")


def llms() -> str:
    """Return the list of pages for models, in the form of llmstxt.org."""
    raw = DOCUMENTATION.replace("github.com", "raw.githubusercontent.com").replace("/tree/", "/")
    listed = [
        f"\n## {section}\n\n" + "".join(f"- [{title}]({raw}/{path}): {first}\n" for path, title, first in found)
        for section, found in pages()
    ]
    tools = ", ".join(f"`{name}`" for name in toolsets.CORE)
    return f"# {TITLE}\n\n> {ABOUT}\n\nThe MCP server `holdfast mcp` offers the tools {tools}.\n" + "".join(listed)


def site_pages() -> dict[str, str]:
    """Return the pages of the site: those of docs/, and the README as the first. Other links lead to the repository."""

    def link(found: re.Match[str]) -> str:
        path = (page.parent / found[1]).resolve()
        inside = path.is_relative_to(docs)
        target = os.path.relpath(path, folder) if inside else f"{SOURCE}/blob/main/{path.relative_to(ROOT)}"
        return f"]({target}{found[2] or ''})"

    docs, made = ROOT / "docs", {}
    for page in (ROOT / "README.md", *docs.rglob("*.md")):
        name, folder = ("index.md", docs) if page.parent == ROOT else (page.relative_to(docs).as_posix(), page.parent)
        made[name] = re.sub(r"\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)", link, page.read_text("utf-8"))
    return made


def build_site() -> pathlib.Path:
    """Build the site from a copy of docs/; a warning is an error."""
    copy = WORK / "docs"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ROOT / "docs", copy)
    for name, text in site_pages().items():
        (copy / name).write_text(text, "utf-8")
    nav = [{TITLE: "index.md"}, *({section: [path for path, _, _ in found]} for section, found in pages())]
    config = {"site_name": TITLE, "site_description": ABOUT, "repo_url": SOURCE, "docs_dir": "docs", "site_dir": "site"}
    (WORK / "mkdocs.yml").write_text(json.dumps({**config, "nav": nav, "theme": {"font": False}}))  # JSON is YAML
    subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=WORK, check=True)
    return WORK / "site"


if __name__ == "__main__":
    print(f"The site is in {build_site()}.")
