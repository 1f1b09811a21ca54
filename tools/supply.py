"""The supply chain: hashes of the installed packages, and a list of all components.

    python -m tools.supply hashes        write requirements-hashes.txt from the pins in constraints.txt
    python -m tools.supply check         compare the package index with requirements-hashes.txt
    python -m tools.supply sbom [EXTRA…] print the software bill of materials (CycloneDX 1.6) of the installed package

A pin names a version, and a hash its bytes: if an index offers other bytes under the same version, `check` fails, and
so does `pip install --require-hashes -r requirements-hashes.txt`. The hashes are those of the files for one platform,
which the first line names. No file contains the address of a package index. The content of packages is not examined.
"""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).parent.parent
PINS, HASHES = ROOT / "constraints.txt", ROOT / "requirements-hashes.txt"
_LINE = re.compile(r"(\S+==\S+) --hash=sha256:([0-9a-f]{64})")


def pins() -> list[str]:
    """Return the pins, as `name==version`."""
    return PINS.read_text().split()


def known() -> dict[str, str]:
    """Return the SHA-256 of each pin."""
    lines = HASHES.read_text().splitlines()
    return {found[1]: found[2] for line in lines if (found := _LINE.fullmatch(line))}


def offered() -> dict[str, str]:
    """Return the SHA-256 of what the package index offers for each pin, on this platform."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
        subprocess.run([*command, "--no-cache-dir", "--report", str(report), "-r", str(PINS)], check=True)
        found = json.loads(report.read_text())["install"]
    names = {canonicalize_name(pin.partition("==")[0]): pin for pin in pins()}
    hashes = {one["metadata"]["name"]: one["download_info"]["archive_info"]["hashes"]["sha256"] for one in found}
    return {names[canonicalize_name(name)]: sha256 for name, sha256 in hashes.items()}


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the pins that have no hash, another hash, or are no longer offered."""
    return sorted(pin for pin in before.keys() | now.keys() if before.get(pin) != now.get(pin))


def components(extras: Iterable[str] = ()) -> list[importlib.metadata.Distribution]:
    """Return the installed packages that Holdfast needs with these extras, directly or indirectly."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [("holdfast", extra) for extra in ("", *extras)]
    seen = set()
    while waiting:
        name, extra = one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        package = found.setdefault(name, importlib.metadata.distribution(name))
        for required in map(Requirement, package.requires or ()):
            if required.marker is None or required.marker.evaluate({"extra": extra}):
                wanted = canonicalize_name(required.name)
                waiting += [(wanted, inner) for inner in ("", *required.extras)]
    del found["holdfast"]
    return [found[name] for name in sorted(found)]


def sbom(extras: Iterable[str] = ()) -> dict[str, Any]:
    """Return the software bill of materials in the format CycloneDX 1.6."""
    hashes = {canonicalize_name(pin.partition("==")[0]): (pin, sha256) for pin, sha256 in known().items()}
    own = {"type": "application", "name": "holdfast", "version": importlib.metadata.version("holdfast")}
    listed = []
    for package in components(extras):
        name = canonicalize_name(package.metadata["Name"])
        purl = f"pkg:pypi/{name}@{package.version}"
        one: dict[str, Any] = {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": package.version,
            "purl": purl,
        }
        pin, sha256 = hashes.get(name, ("", ""))
        if pin.partition("==")[2] == package.version:
            one["hashes"] = [{"alg": "SHA-256", "content": sha256}]
        for terms in package.metadata.get_all("License-Expression") or ():
            one["licenses"] = [{"expression": terms}]
        listed.append(one)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": listed,
    }


def main(command: str = "", *extras: str) -> int:
    if command == "sbom":
        print(json.dumps(sbom(extras), indent=2))
    elif command == "hashes":
        python = ".".join(platform.python_version_tuple()[:2])
        where = f"Python {python}, {platform.system()} {platform.machine()}"
        head = f"# {where}; written by scripts/supply hashes"
        found = offered()
        HASHES.write_text("\n".join([head, *(f"{pin} --hash=sha256:{found[pin]}" for pin in pins()), ""]))
    elif command == "check":
        if wrong := differences(known(), offered()):
            print(
                f"Not the bytes in {HASHES.name}: {', '.join(wrong)}. If a pin was changed: scripts/supply hashes",
                file=sys.stderr,
            )
            return 1
        print(f"All {len(pins())} pins have the bytes in {HASHES.name}.")
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
