"""A command on a pseudo-terminal, as a person sees it."""

from __future__ import annotations

import os
import pty
from pathlib import Path

import fork_server


def on_terminal(
    *words: str, root: Path, term: str = "xterm", columns: int = 140, code: int = 0, typed: str = "", **more: str
) -> str:
    """Run a command that must end with a code and return what a person would see; `more` is its environment."""
    leader, follower = pty.openpty()
    environment = os.environ | {"HOLDFAST_ROOT": str(root), "COLUMNS": str(columns), "TERM": term} | more
    with fork_server.start(words, environment, [follower] * 3) as process:
        os.close(follower)
        os.write(leader, typed.encode())
        shown = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:
                break
            if not part:
                break
            shown += part
        os.close(leader)
        assert process.wait(60) == code, shown
    return shown.decode("utf-8", "replace")
