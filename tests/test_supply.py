"""Every dependency has a reason and a hash, and the bill of materials names them all."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib

from packaging.requirements import Requirement
from tools import supply


def test_every_dependency_has_one_reason() -> None:
    project = tomllib.loads((supply.ROOT / "pyproject.toml").read_text())
    named = {(required, "build") for required in project["build-system"]["requires"]}
    named |= {(required, "") for required in project["project"]["dependencies"]}
    for extra, found in project["project"]["optional-dependencies"].items():
        named |= {(required, extra) for required in found}
    direct = {(Requirement(required).name, extra) for required, extra in named} - {("holdfast", "dev")}
    rows = re.findall(r"^\| `([^`]+)` \|([^|]*)\| (.+) \|$", (supply.ROOT / "docs/dependencies.md").read_text(), re.M)
    assert len({name for name, _, _ in rows}) == len(rows), "a dependency has two reasons"
    assert {(name, extra.strip()) for name, extras, _ in rows for extra in extras.split(",")} == direct


def test_every_pin_has_a_hash() -> None:
    assert list(supply.known()) == supply.pins()
    assert "://" not in supply.HASHES.read_text(), "the address of an index"


def test_other_bytes_and_missing_hashes_are_named() -> None:
    known = supply.known()
    first, second, *_ = known
    assert supply.differences(known, known) == []
    assert supply.differences(known, known | {second: "0" * 64}) == [second]
    assert supply.differences({pin: known[pin] for pin in known if pin != first}, known) == [first]


def test_the_bill_of_materials_names_what_is_installed() -> None:
    command = [sys.executable, "-m", "tools.supply", "sbom", "http", "postgres"]
    found = json.loads(subprocess.run(command, cwd=supply.ROOT, check=True, capture_output=True).stdout)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    listed = {one["name"]: one for one in found["components"]}
    assert {"apsw", "mcp", "starlette", "psycopg", "psycopg-binary"} <= listed.keys(), "also what others need"
    assert not {"pytest", "numpy", "holdfast"} & listed.keys(), "not what other extras need"
    pinned = {one["name"] for one in listed.values() if f"{one['name']}=={one['version']}" in supply.pins()}
    assert all(listed[name]["hashes"][0]["content"] in supply.known().values() for name in pinned)
    assert listed["apsw"]["purl"] == f"pkg:pypi/apsw@{listed['apsw']['version']}"
