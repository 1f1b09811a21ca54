"""Run the official MCP conformance suite against `holdfast mcp --http` and write its score: `scripts/conformance`.

The suite cannot send a token, so a small proxy on loopback adds the header and forwards everything else unchanged.
Scenarios that call fixture tools of the suite's own example server do not apply and are listed as such.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from holdfast.mcp.auth import token_for
from holdfast.roots import make_root

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "conformance.md"
APPLICABLE = (
    "server-initialize", "ping", "tools-list", "resources-list", "prompts-list", "server-sse-multiple-streams",
    "dns-rebinding-protection",
)  # fmt: skip
FIXTURES = {
    "tools-call-*, json-schema-2020-12": "call fixture tools of the suite's example server",
    "resources-read-*, resources-templates-read": "read fixture resources of the example server",
    "prompts-get-*": "get fixture prompts of the example server",
    "completion-complete, resources-subscribe, resources-unsubscribe": "optional features that Holdfast does not offer",
    "logging-set-level": "logging is deprecated since 2026-07-28; nothing is built on it",
    "elicitation-*": "elicitation is not used",
    "server-sse-polling": "needs a fixture tool that closes its stream",
}


def main(node: str, suite: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "memory")
        make_root(root)
        os.environ["XDG_CONFIG_HOME"] = os.path.join(folder, "config")
        command = [sys.executable, "-m", "holdfast", "mcp", "--http", "--port", "0", "--root", root]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            try:
                return asyncio.run(_score(node, suite, _port(server), token_for(root)[0]))
            finally:
                server.terminate()


def _port(server: subprocess.Popen[str]) -> int:
    assert server.stderr is not None
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := re.search(r"listens on http://[^:]+:(\d+)", server.stderr.readline()):
            return int(found.group(1))
    raise SystemExit("the server did not start")


async def _score(node: str, suite: str, port: int, token: str) -> int:
    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _proxy(reader, writer, port, token)

    proxy = await asyncio.start_server(passed_on, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}/mcp"
    rows = []
    for scenario in APPLICABLE:
        process = await asyncio.create_subprocess_exec(
            node, suite, "server", "--url", url, "--scenario", scenario,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await asyncio.wait_for(process.communicate(), 120)
        found = re.search(r"Passed: (\d+)/(\d+)", output.decode("utf-8", "replace"))
        good, total = (int(found.group(1)), int(found.group(2))) if found else (0, 1)
        print(f"{scenario:<32} {good}/{total}", flush=True)
        if good < total:
            print(output.decode("utf-8", "replace")[-2000:])
        rows.append((scenario, good, total))
    proxy.close()
    version = subprocess.run([node, suite, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    _write(rows, version)
    return 0 if all(good == total for _, good, total in rows) else 1


async def _proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, token: str) -> None:
    """Add the token to the head of each request; one request per connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        line, rest = head.split(b"\r\n", 1)
        rest = re.sub(rb"(?im)^connection:[^\r]*\r\n", b"", rest)
        inner, outer = await asyncio.open_connection("127.0.0.1", port)
        outer.write(line + b"\r\nAuthorization: Bearer " + token.encode() + b"\r\nConnection: close\r\n" + rest)
        await asyncio.gather(_copy(reader, outer), _copy(inner, writer))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    except ConnectionError:
        pass
    finally:
        target.close()


def _write(rows: list[tuple[str, int, int]], version: str) -> None:
    good, total = sum(row[1] for row in rows), sum(row[2] for row in rows)
    lines = [
        "<!-- Written by scripts/conformance. Do not edit. -->",
        "# Conformance",
        "",
        f"`@modelcontextprotocol/conformance` {version} against `holdfast mcp --http`: **{good} of {total} checks passed**.",
        "",
        "| scenario | passed |",
        "|---|---|",
        *(f"| {name} | {passed}/{all_of_it} |" for name, passed, all_of_it in rows),
        "",
        "Not applicable:",
        "",
        *(f"- {names}: {why}" for names, why in FIXTURES.items()),
        "",
        "Repeat it with `scripts/conformance`. Both protocol eras are also driven with the SDK's own client in"
        " `tests/test_mcp.py` and `tests/test_mcp_http.py`.",
    ]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{good} of {total} checks passed; docs/conformance.md written")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
