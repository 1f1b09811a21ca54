"""What registries and clients are given: up to date, complete, in the documented form, and its commands start."""

from __future__ import annotations

import base64
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib
import urllib.parse
from typing import Any

import jsonschema
import pytest
from tools import publish, site

import fork_server
from holdfast import __version__
from holdfast.cli.setup import list_tools
from holdfast.formats import markdown
from holdfast.tools import toolsets

TOP = pathlib.Path(__file__).parent.parent
PLUGIN = TOP / "plugin"
MADE = publish.files()
# No package has the schema of server.json, so these are the fields that the schema 2025-12-11 documents.
SERVER = {
    "type": "object",
    "additionalProperties": False,
    "required": ["$schema", "name", "description", "version"],
    "properties": {
        "$schema": {"const": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"},
        "name": {"type": "string", "pattern": "^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$", "minLength": 3, "maxLength": 200},
        "title": {"type": "string", "minLength": 1, "maxLength": 100},
        "description": {"type": "string", "minLength": 1, "maxLength": 100},
        "repository": {
            "type": "object",
            "required": ["url", "source"],
            "properties": {"url": {"type": "string", "pattern": "^https://"}, "source": {"const": "github"}},
        },
        "websiteUrl": {"type": "string", "pattern": "^https://"},
        "version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+[\w.-]*$", "maxLength": 255},
        "packages": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["registryType", "identifier", "version", "transport"],
                "properties": {
                    "registryType": {"enum": ["npm", "pypi", "oci", "nuget", "mcpb"]},
                    "identifier": {"type": "string"},
                    "version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+[\w.-]*$"},
                    "runtimeHint": {"enum": ["npx", "uvx", "docker", "dnx"]},
                    "packageArguments": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["type", "value"],
                            "properties": {"type": {"const": "positional"}, "value": {"type": "string"}},
                        },
                    },
                    "environmentVariables": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {
                                "name": {"type": "string"},
                                "description": {"type": "string"},
                                "format": {"enum": ["string", "number", "boolean", "filepath"]},
                            },
                        },
                    },
                    "transport": {"const": {"type": "stdio"}},
                },
            },
        },
    },
}


def data(path: str) -> Any:
    return json.loads((TOP / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", MADE)
def test_a_generated_file_is_what_the_project_says(path: str) -> None:
    assert (TOP / path).read_text(encoding="utf-8") == MADE[path], "run scripts/publish"


def test_the_check_names_what_is_not_up_to_date(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish.main("--check") == 0
    monkeypatch.setattr(publish, "__version__", "99.1.2")
    assert publish.main("--check") == 1
    told = capsys.readouterr().err
    assert "server.json" in told and "deploy/helm/holdfast/Chart.yaml" in told and "scripts/publish" in told
    assert data("server.json")["version"] == __version__


def test_the_package_says_whose_it_is_and_where_to_read_more() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["authors"] == [{"name": "Holdfast contributors"}]
    assert project["urls"].keys() == {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
    assert all(url.startswith(site.SOURCE) for url in project["urls"].values())
    pythons = {f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)}
    assert pythons <= set(project["classifiers"])
    for name in ("README.md", "CHANGELOG.md", "LICENSE"):
        assert (TOP / name).exists()
    assert f"mcp-name: {publish.REGISTRY_NAME} " in (TOP / "README.md").read_text(encoding="utf-8")


def test_the_registry_entry_has_the_documented_form() -> None:
    jsonschema.validate(data("server.json"), SERVER)
    (package,) = data("server.json")["packages"]
    words = [package["runtimeHint"], package["identifier"], *(each["value"] for each in package["packageArguments"])]
    assert words == [publish.SERVER["command"], *publish.SERVER["args"]]


def test_the_three_manifests_lead_to_files_that_there_are() -> None:
    for client in ("claude", "codex", "cursor"):
        manifest = data(f"plugin/.{client}-plugin/plugin.json")
        assert (manifest["name"], manifest["version"]) == ("holdfast", __version__)
        for field in {"hooks", "skills", "mcpServers"} & manifest.keys():
            assert manifest[field].startswith("./") and (PLUGIN / manifest[field]).exists()
    for client in ("claude", "cursor"):
        (entry,) = data(f".{client}-plugin/marketplace.json")["plugins"]
        assert (TOP / entry["source"]).resolve() == PLUGIN
        assert (PLUGIN / f".{client}-plugin/plugin.json").exists()
    for skill in PLUGIN.glob("skills/*/SKILL.md"):
        fields: Any = markdown.parse(skill.read_bytes()).fields
        assert fields["name"] == skill.parent.name and fields["description"]


def test_the_server_of_the_plugin_answers(root: pathlib.Path) -> None:
    server = data("plugin/.mcp.json")["mcpServers"]["holdfast"]
    assert [server["command"], server["args"][0]] == ["uvx", "holdfast"]
    tools, _ = list_tools([sys.executable, "-m", "holdfast", *server["args"][1:]], 60, str(root))
    assert tools == list(toolsets.CORE)


def test_the_hooks_are_those_of_install_and_never_fail(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for client in ("claude-code", "codex"):
        command = [
            sys.executable,
            "-m",
            "holdfast",
            "install",
            client,
            "--root",
            str(root),
            "--hook",
            "--print",
            "--json",
        ]
        printed = fork_server.run(command, capture_output=True, text=True, check=True).stdout
        installed = json.loads(json.loads(printed)["hook"]["text"])["hooks"]
        ours = data(f"plugin/hooks/{client}.json")["hooks"]
        assert ours.keys() == installed.keys()
        for event, ((group,), (theirs,)) in {event: (ours[event], installed[event]) for event in ours}.items():
            (hook,), (known,) = group["hooks"], theirs["hooks"]
            words = shlex.split(hook["command"].partition(" 2>")[0])
            assert words[:3] == ["uvx", "--offline", "holdfast"], event
            assert " ".join(words[3:]) in known["command"].replace(f" --root {root}", "")
            assert hook | {"command": ""} == known | {"command": ""}
            without_uv = subprocess.run(hook["command"], shell=True, env={"PATH": str(tmp_path)}, capture_output=True)
            assert (without_uv.returncode, without_uv.stdout) == (0, b"")


def test_the_bundle_starts_the_server(root: pathlib.Path) -> None:
    bundle = data("deploy/mcpb/manifest.json")
    entry = TOP / "deploy/mcpb" / bundle["server"]["entry_point"]
    assert bundle["server"]["mcp_config"]["args"][-1] == entry.name
    needs = tomllib.loads((entry.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    assert needs == [f"holdfast=={__version__}"]
    tools, _ = list_tools([sys.executable, str(entry)], 60, str(root))
    assert tools == [tool["name"] for tool in bundle["tools"]]


def test_the_link_for_cursor_has_the_server() -> None:
    link = urllib.parse.urlsplit(publish.cursor_link())
    assert (link.scheme, link.path) == ("cursor", "/mcp/install")
    given = urllib.parse.parse_qs(link.query)
    assert given["name"] == ["holdfast"]
    assert json.loads(base64.b64decode(given["config"][0])) == data("plugin/.mcp.json")["mcpServers"]["holdfast"]
    assert link.geturl() in (PLUGIN / "README.md").read_text(encoding="utf-8")


def test_the_pages_for_models_are_all_pages_but_the_single_decisions() -> None:
    listed = re.findall(r"^- \[.+?\]\(https://\S+?/main/docs/(\S+)\): \S", MADE["docs/llms.txt"], re.MULTILINE)
    docs = TOP / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    assert set(listed) == {page for page in pages if not re.match(r"decisions/\d", page)}
    assert len(listed) == len(set(listed))


def test_the_links_of_the_site_lead_somewhere() -> None:
    made = site.site_pages()
    docs = TOP / "docs"
    assert made.keys() == {"index.md"} | {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    for name, text in made.items():
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if target.startswith(f"{site.SOURCE}/blob/main/"):
                assert (TOP / target.removeprefix(f"{site.SOURCE}/blob/main/")).exists(), (name, target)
            elif "://" not in target:
                path = (docs / name).parent / target
                assert path.resolve().is_relative_to(docs) and path.exists(), (name, target)
