"""The minimum that a durable, searchable memory server over stdio must do: one log, one FTS5 table, two tools.

It appends a JSON line with fdatasync under a lock, and indexes new lines before it searches. Other servers are compared
with it. It checks no input, keeps no history and has one kind of record.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

_TEXT = {"type": "string"}
_TOOLS = [
    {"name": name, "description": about, "inputSchema": {"type": "object", "properties": dict.fromkeys(names, _TEXT)}}
    for name, about, names in (("add", "Store a note.", ("title", "text")), ("find", "Search notes.", ("query",)))
]


class Floor:
    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        self._log = os.open(os.path.join(folder, "log.jsonl"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._db = sqlite3.connect(os.path.join(folder, "index.db"), isolation_level=None)
        self._db.execute("PRAGMA journal_mode = wal")
        self._db.execute("PRAGMA synchronous = off")
        self._db.execute("CREATE VIRTUAL TABLE IF NOT EXISTS notes USING fts5 (title, text)")
        self._read = 0

    def add(self, title: str, text: str) -> str:
        fcntl.flock(self._log, fcntl.LOCK_EX)
        try:
            os.write(self._log, json.dumps({"title": title, "text": text}).encode() + b"\n")
            os.fdatasync(self._log)
        finally:
            fcntl.flock(self._log, fcntl.LOCK_UN)
        return "stored"

    def find(self, query: str) -> str:
        new = os.pread(self._log, os.fstat(self._log).st_size - self._read, self._read)
        if new:
            self._db.execute("BEGIN")
            self._db.executemany("INSERT INTO notes VALUES (:title, :text)", map(json.loads, new.splitlines()))
            self._db.execute("COMMIT")
            self._read += len(new)
        words = " OR ".join(f'"{word}"' for word in query.replace('"', " ").split())
        return json.dumps(
            self._db.execute("SELECT * FROM notes WHERE notes MATCH ? ORDER BY rank LIMIT 10", (words,)).fetchall()
        )

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            about = {"name": "floor", "version": "0"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
        if method == "tools/list":
            return {"tools": _TOOLS}
        tools: dict[str, Callable[..., str]] = {"add": self.add, "find": self.find}
        tool = tools[params["name"]]
        return {"content": [{"type": "text", "text": tool(**params["arguments"])}]}


def main() -> None:
    floor = Floor(sys.argv[1])
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" in message:
            result = floor.answer(message["method"], message.get("params") or {})
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
