"""Load: MCP servers, the command line, the library and an outside editor on one root, while verify runs again and again.

Nothing that was acknowledged is lost or doubled, nothing torn is served, and nobody is told of a lock or a busy index.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from prove.harness import Row, Run, Tally, faults_of, finished, let_go
from prove.writes import LONG, tag_of

_LIBRARY = "note,fact,episode,decision,exchange,state,hide-line,job,value"
_HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "prove", "version": "1"}}
_SERVER = "import sys\nfrom holdfast.cli.main import main\nsys.argv = ['holdfast', *sys.argv[1:]]\nmain()"
Told = list[list[str]]


def campaign(run: Run) -> Iterator[Row]:
    seconds, servers = run.size(20, 3), run.size(8, 3)
    tally = Tally(run, f"{servers} MCP servers, the CLI, the library, an editor and verify for {seconds} s")
    with run.root("load") as root:
        started = [
            run.worker(_SERVER, "mcp", "--toolset", "all", "--root", root, stdin=subprocess.PIPE)
            for _ in range(servers)
        ]
        own = [run.program("library", root, "lib", seconds, _LIBRARY), run.program("checks", root, seconds)]
        for server in started:
            _ask(server, 0, "initialize", _HELLO)
            _send(server, {"method": "notifications/initialized"})
        let_go(*own)
        end = time.monotonic() + seconds
        with concurrent.futures.ThreadPoolExecutor(servers + 4) as pool:
            work = [pool.submit(_client, server, f"mcp{number}", end) for number, server in enumerate(started)]
            work += [pool.submit(_command_line, run, root, end), pool.submit(_editor, root, end)]
            work += [pool.submit(finished, worker) for worker in own]
            told = [line for each in work for line in each.result()]
        acknowledged = [line[1] for line in told if line[0] == "acknowledged"]
        tags = [tag for tag in acknowledged if tag not in ("verify", "outside")]
        tally.made(len(told), len(tags))
        tally.note([" ".join(line)[:300] for line in told if line[0] != "acknowledged"], root)
        tally.note([] if "verify" in acknowledged else ["verify never came to an end"])
        tally.note(_outside(root, acknowledged.count("outside")), root)
        tally.note(faults_of(root, tags, clean=True), root)
    yield tally.row()


def _client(server: subprocess.Popen[str], me: str, end: float) -> Told:
    """Be one agent with a server of its own: call tools that write until the time is over."""
    told: Told = []
    try:
        number = 0
        while time.monotonic() < end:
            number += 1
            tag, name, arguments = _call(me, number)
            result = _ask(server, number, "tools/call", {"name": name, "arguments": arguments})
            reply = json.dumps(result)
            fine = not result.get("isError") and '"success": false' not in reply
            told.append(["acknowledged", tag] if fine else ["refused", tag, reply])
    except (OSError, ValueError) as error:
        told.append(["failed", me, str(error)])
    _, said = server.communicate()
    return [*told, *([["failed", me, said[-300:]]] if server.returncode or "Traceback" in said else [])]


def _call(me: str, number: int) -> tuple[str, str, dict[str, Any]]:
    """Return the next call of an agent: what it can be found by, the tool, what it is given."""
    kind = ("remember", "happened", "learn", "createState", "lesson", "entry")[number % 6]
    tag = tag_of(kind, me, number)
    text = f"{tag} {LONG}"
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        "remember": ("remember", {"text": text, "title": tag, "kind": "note"}),
        "happened": ("memory_append", {"type": "episodic", "entry": text}),
        "learn": ("memory_learn", {"key": tag, "value": text}),
        "createState": ("createState", {"name": tag, "conversationContext": text, "activeTask": "t", "activeFiles": [], "nextSteps": []}),
        "lesson": ("save_learning", {"kind": "lesson", "title": tag, "content": text}),
        "entry": ("save_memory", {"compartment": "plan", "content": text[:-1], "_session": tag}),
    }  # fmt: skip
    name, arguments = calls[kind]
    if session := arguments.pop("_session", ""):  # a compartment holds only so much
        return tag, "useTools", {
            "context": {"workspaceId": "default", "sessionId": session, "memory": "", "goal": ""},
            "calls": [{"agent": "compartments", "tool": name, "params": arguments}],
        }  # fmt: skip
    return tag, name, arguments


def _ask(server: subprocess.Popen[str], number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    _send(server, {"id": number, "method": method, "params": params})
    assert server.stdout
    for line in server.stdout:
        message = json.loads(line)
        if message.get("id") == number:
            result: dict[str, Any] = message.get("result") or {"isError": True, "error": message.get("error")}
            return result
    raise ValueError("the server ended")


def _send(server: subprocess.Popen[str], message: dict[str, Any]) -> None:
    assert server.stdin
    server.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    server.stdin.flush()


def _command_line(run: Run, root: str, end: float) -> Told:
    told: Told = []
    number = 0
    while time.monotonic() < end:
        number += 1
        kind = ("note", "message", "lesson")[number % 3]
        tag = tag_of(kind, "cli", number)
        words = ["put", kind, f"{tag} {LONG}", *([] if kind == "message" else ["--title", tag]), "--root", root]
        worker = run.worker(_SERVER, *words)
        out, err = worker.communicate()
        told.append(["acknowledged", tag] if worker.returncode == 0 else ["refused", tag, out, err])
    return told


def _editor(root: str, end: float) -> Told:
    """Save a document again and again as an editor does: a new file takes the name. Others only read it."""
    path = os.path.join(root, "resources/workspaces/default/_notes/outside.md")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    told: Told = []
    number = 0
    while time.monotonic() < end:
        number += 1
        with open(path + "~", "w", encoding="utf-8") as file:
            file.write(f"outside-{number} {LONG}\n")
        os.rename(path + "~", path)
        told.append(["acknowledged", "outside"])
        time.sleep(0.01)
    return told


def _outside(root: str, saved: int) -> list[str]:
    """See that the document is as the editor saved it last."""
    with open(os.path.join(root, "resources/workspaces/default/_notes/outside.md"), encoding="utf-8") as file:
        return [] if file.read() == f"outside-{saved} {LONG}\n" else ["the editor's document was changed"]
