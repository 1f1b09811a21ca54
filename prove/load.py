"""Load: MCP servers, the command line, the library and an outside editor use one root, while verify runs repeatedly.

No acknowledged write is lost or doubled, nothing torn is returned, and no caller gets an error about a lock or a busy
index.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from holdfast.errors import Unavailable
from prove.harness import Row, Run, Tally, faults_of, finished, let_go
from prove.history import CRASHED, READ, VERIFY, Event, History, Recorder
from prove.writes import LONG, tag_of

_LIBRARY = "note,fact,episode,decision,exchange,state,hide-line,job,value"
_HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "prove", "version": "1"}}


def campaign(run: Run) -> Iterator[Row]:
    seconds, servers = run.size(20, 3), run.size(8, 3)
    tally = Tally(run, f"{servers} MCP servers, the CLI, the library, an editor and verify for {seconds} s")
    with run.root("load") as root:
        started = [
            run.command("mcp", "--toolset", "all", "--root", root, stdin=subprocess.PIPE) for _ in range(servers)
        ]
        own = [run.program("library", root, "lib", seconds, _LIBRARY), run.program("checks", root, seconds)]
        own.append(run.program("reads", root, seconds, "lesson", "lesson."))
        for server in started:
            _ask(server, 0, "initialize", _HELLO)
            _send(server, {"method": "notifications/initialized"})
        let_go(*own)
        end = time.monotonic() + seconds
        history = History()
        with concurrent.futures.ThreadPoolExecutor(servers + 4) as pool:
            work = [pool.submit(_client, server, f"mcp{number}", end, history) for number, server in enumerate(started)]
            work.append(pool.submit(_command_line, run, root, end, history))
            saved = pool.submit(_editor, root, end)
            told = finished(*own)
            for each in work:
                each.result()
        history += told
        tally.made(len(history), len(history.acknowledged))
        tally.note(history.refusals(conflicts=True), root)
        for kind in (READ, VERIFY):
            tally.note([] if [event for event in history if event.kind == kind] else [f"no {kind} came to an end"])
        tally.note(_outside(root, saved.result()), root)
        tally.note(faults_of(root, history, clean=True), root)
    yield tally.row()


def _client(server: subprocess.Popen[str], me: str, end: float, history: History) -> None:
    """Act as one agent with a server of its own: call tools that write until the time is over."""
    number = 0
    while time.monotonic() < end:
        number += 1
        tag, name, arguments = _call(me, number)

        def call() -> None:
            result = _ask(server, number, "tools/call", {"name": name, "arguments": arguments})  # noqa: B023
            reply = json.dumps(result)
            if result.get("isError") or '"success": false' in reply:
                raise Unavailable(reply, "")

        Recorder(history.add).write(name, tag, call)
    _, said = server.communicate()
    if server.returncode or "Traceback" in said:
        history.add(Event("", me, 0.0, 1.0, f"{CRASHED} {said[-300:]}"))


def _call(me: str, number: int) -> tuple[str, str, dict[str, Any]]:
    """Return the next call of an agent: its search term, the tool, the parameters."""
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
    if session := arguments.pop("_session", ""):  # a compartment has limited room
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


def _command_line(run: Run, root: str, end: float, history: History) -> None:
    number = 0
    while time.monotonic() < end:
        number += 1
        kind = ("note", "message", "lesson")[number % 3]
        tag = tag_of(kind, "cli", number)
        words = ["put", kind, f"{tag} {LONG}", *([] if kind == "message" else ["--title", tag]), "--root", root]

        def call() -> None:
            worker = run.command(*words)  # noqa: B023
            out, err = worker.communicate()
            if worker.returncode:
                raise Unavailable(out + err, "")

        Recorder(history.add).write(kind, tag, call)


def _editor(root: str, end: float) -> int:
    """Save a document repeatedly as an editor does, with a new file that takes the name. Other writers only read it."""
    path = os.path.join(root, "resources/workspaces/default/_notes/outside.md")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    number = 0
    while time.monotonic() < end:
        number += 1
        with open(path + "~", "w", encoding="utf-8") as file:
            file.write(f"outside-{number} {LONG}\n")
        os.rename(path + "~", path)
        time.sleep(0.01)
    return number


def _outside(root: str, saved: int) -> list[str]:
    """Check that the document is as the editor saved it last."""
    with open(os.path.join(root, "resources/workspaces/default/_notes/outside.md"), encoding="utf-8") as file:
        return [] if file.read() == f"outside-{saved} {LONG}\n" else ["the editor's document was changed"]
