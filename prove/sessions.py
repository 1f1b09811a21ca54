"""Sessions: hundreds of HTTP sessions, each with notes of its run, on a server with few file descriptors.

Every note is acknowledged and can be read in its session, the server stays ready, and no note is left when it ends.
"""

from __future__ import annotations

import glob
import json
import os
import resource
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any

from holdfast.errors import Unavailable
from holdfast.mcp.auth import RateLimits
from prove import serving
from prove.harness import Row, Run, Tally
from prove.history import History, Recorder
from prove.serving import HELLO, Http, call, frame

_DESCRIPTORS = 64


def campaign(run: Run) -> Iterator[Row]:
    count = run.size(1_000, 60)
    tally, history = Tally(run, f"{count} HTTP sessions with notes, {_DESCRIPTORS} file descriptors"), History()
    with run.root("sessions") as root:
        with serving.http(run, root, RateLimits(requests=1e6)) as server:
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))
            sessions = [server.ask(frame(0, "initialize", HELLO)).headers["mcp-session-id"] for _ in range(count)]
            for number, session in enumerate(sessions):
                _note(server, session, f"note.{number}.", history)
            run.command(
                "doctor", "--root", root, stdout=subprocess.DEVNULL
            ).communicate()  # which removes files of dead runs
            found = Counter(
                tag
                for number, session in enumerate(sessions)
                for tag in _read(server, session, f"note.{number}.", history)
            )
            ready = server.ask(b"", "GET", "/readyz").status
            tally.made(len(sessions), len(history.acknowledged))
            tally.note([] if ready == 200 else [f"/readyz: {ready}"])
            tally.note(history.refusals() + history.faults(found), root)
        left = glob.glob(os.path.join(root, "user/memory/sessions/*/runs/*.jsonl"))
        tally.note([f"{len(left)} runs are left"] if left else [], root)
    yield tally.row()


def _note(server: Http, session: str, tag: str, history: History) -> None:
    given = {"compartment": "run", "content": f"{tag} is a note."}
    Recorder(history.add).write("save_memory", tag, lambda: _ask(server, session, "save_memory", given))


def _read(server: Http, session: str, tag: str, history: History) -> tuple[str, ...]:
    """Return the tag if the session still has its note."""

    def look() -> list[str]:
        said = json.dumps(_ask(server, session, "get_memory", {"compartment": "run"}))
        return [tag] if f"{tag} is a note." in said else []

    return Recorder(history.add).read(tag, look).seen


def _ask(server: Http, session: str, tool: str, given: dict[str, Any]) -> dict[str, Any]:
    answer = server.ask(call(1, tool, given), Mcp_Session_Id=session, MCP_Protocol_Version="2025-11-25")
    result = json.loads(answer.body or b"{}").get("result", {}) if answer.status == 200 else {}
    if result.get("isError") is not False:
        raise Unavailable(f"{answer.status} {answer.body[:300]!r}", "")
    return {"result": result}
