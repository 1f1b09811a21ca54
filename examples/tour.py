"""A tour of Holdfast: `scripts/demo`.

It saves memories, edits one by hand, searches, deletes the index and searches again. An agent saves its work in one
conversation and resumes in another. At the end it shows the files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from typing import Any

import holdfast
from holdfast.errors import Conflict
from holdfast.memories.lint import lint
from holdfast.roots import make_root


def main() -> None:
    given = sys.argv[1] if len(sys.argv) > 1 else ""
    root = os.path.abspath(given) if given else tempfile.mkdtemp(prefix="holdfast-tour-")
    try:
        tour(root)
    finally:
        if not given:
            shutil.rmtree(root)
            print("\nThe folder of the tour was removed. Keep it next time: scripts/demo my-memory")


def tour(root: str) -> None:
    step("A memory root is a folder")
    say(f"{root}: {', '.join(make_root(root))}")

    step("Save what was done, decided and learned")
    with holdfast.open(root, writer="tour") as memory:
        memory.put(
            "overview", "It runs on one server.", title="Webshop", fields={"description": "The shop's web site."}
        )
        note = memory.put(
            "note", "We deploy on Tuesdays, never before a holiday.", title="Deploys", scope="webshop", tags=["ops"]
        )
        decision = memory.put(
            "decision",
            "PostgreSQL for orders: we need transactions over several tables.",
            title="Orders live in PostgreSQL",
            scope="webshop",
            fields={"category": "architecture"},
            tags=["database"],
        )
        memory.put("fact", "Europe/Berlin", fields={"key": "office time zone"})
        memory.put("fact", "Europe/Lisbon", fields={"key": "office time zone"})
        memory.put("episode", "Ran the load test: 950 orders per minute, no errors.", session="Monday's session")
        memory.put("message", "出荷は火曜日です", fields={"channel": "cli"})
        for receipt in (note, decision):
            say(f"{receipt.status}: {receipt.path}")

        step("Find it again")
        for question in ("when do we deploy?", "which database did we choose for orders", "office time zone", "出荷"):
            ask(memory, question)

        step("Edit a file by hand; the next read sees it")
        path = os.path.join(root, note.path)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace("Tuesdays", "Thursdays"))
        say(f"edited {note.path}: Tuesdays -> Thursdays")
        ask(memory, "when do we deploy?")
        try:
            memory.put(id=note.id, text="We deploy whenever.", expect=note.version)
        except Conflict as error:
            say(f"an edit of the outdated version is refused: {error}")

        before = answers(memory)

    step("Delete the index: every answer stays the same")
    shutil.rmtree(os.path.join(root, ".holdfast"))
    with holdfast.open(root) as memory:
        after = answers(memory)
        say(f"{len(after)} answers compared, {'all equal' if before == after else 'DIFFERENT'}")
        if before != after:
            raise SystemExit("the answers differ")
        report = memory.verify()
        say(f"verify: {report.files} files, {report.records} records, {'all sound' if report.sound else report}")

    step("An agent saves its work in one conversation and resumes in another, over MCP")
    two_conversations(root)

    step("Markdown that people write is memory too: plans, decisions, rules, links")
    knowledge(root)

    step("Everything is a file that you can open")
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != ".holdfast")
        for name in sorted(files):
            shown = os.path.relpath(os.path.join(folder, name), root)
            say(f"{os.path.getsize(os.path.join(folder, name)):>6}  {shown}")
    for shown in (note.path, decision.path, "user/memory/semantic.jsonl"):
        print(f"\n    --- {shown}")
        with open(os.path.join(root, shown), encoding="utf-8") as file:
            print(textwrap.indent(file.read().rstrip(), "    "))


def knowledge(root: str) -> None:
    """Write a plan with an editor, as a person would, and let an agent read and change it through its tools."""
    plan = "resources/workspaces/webshop/_plans/260208-checkout.md"
    text = """\
---
name: Checkout rewrite
description: Split the checkout into cart and payment
status: in_progress   # so far
created: 2026-02-08
tags: [checkout, database]
---

Depends on [[Orders live in PostgreSQL]].
"""
    os.makedirs(os.path.join(root, os.path.dirname(plan)), exist_ok=True)
    with open(os.path.join(root, plan), "w", encoding="utf-8") as file:
        file.write(text)
    with holdfast.open(root) as memory:
        context = {"workspaceId": "webshop", "sessionId": "tour"}
        reply = memory.call("workspace_context", {"scope": {"workspace": "webshop"}}, context)
        say(
            f"workspace_context: {len(reply['plans'])} plan, {len(reply['decisions'])} decision, as YAML for the model:"
        )
        print(textwrap.indent(memory.call("retrieve_plans", {"scope": "webshop"})["text"].rstrip(), "    "))
        memory.call("set_plan_status", {"path": plan, "status": "done"}, context)
        with open(os.path.join(root, plan), encoding="utf-8") as file:
            changed = [line for line in file.read().splitlines() if line not in text.splitlines()]
        say(f"set_plan_status changed these lines and no other byte: {changed}")
        for tied in memory.related(plan):
            say(f"related: {tied.record.title} ({', '.join(tied.how)})")
        report = lint(memory)
        say(f"lint: {report.files} files, {report.errors} errors" + "".join(f"; {fault}" for fault in report.faults))
        if len(changed) != 2 or report.errors:
            raise SystemExit("the tree is not as expected")


class Conversation:
    """A conversation of an agent with `holdfast mcp`: one JSON message per line, as any MCP client sends them."""

    def __init__(self, root: str) -> None:
        command = [sys.executable, "-m", "holdfast", "mcp", "--root", root]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        client = {"name": "tour", "version": "1"}
        self._ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.communicate()  # closes its input, which ends it

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        return self._ask("tools/call", {"name": tool, "arguments": arguments})["structuredContent"]

    def _ask(self, method: str, params: dict[str, Any]) -> Any:
        assert self._server.stdin and self._server.stdout
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        print(json.dumps(message), file=self._server.stdin, flush=True)
        return json.loads(self._server.stdout.readline())["result"]


def two_conversations(root: str) -> None:
    state = {
        "name": "Checkout rewrite, day one",
        "conversationContext": "We split the checkout into cart and payment. Payment still calls the old service.",
        "activeTask": "Move payment to the new service",
        "activeFiles": ["shop/payment.py"],
        "nextSteps": ["Write the contract test", "Switch the endpoint"],
    }
    monday = {"workspaceId": "webshop", "sessionId": "monday", "goal": "Rewrite the checkout"}
    with Conversation(root) as agent:
        say(f"monday: createState -> {agent.call('createState', {**state, 'context': monday})}")
    tuesday = {"workspaceId": "webshop", "sessionId": "tuesday"}
    with Conversation(root) as agent:
        data = agent.call("loadWorkspace", {"name": "Webshop", "context": tuesday})["data"]
        last = data["recentActivity"][0]
        say(f"tuesday: loadWorkspace -> last: {last['what']} (goal: {last['goal']})")
        resumed = agent.call("loadState", {"name": data["states"][0]["name"], "context": tuesday})["data"]
        say(f"tuesday: loadState -> next steps: {', '.join(resumed['nextSteps'])}")
        if resumed != state:
            raise SystemExit("the loaded state differs")


def answers(memory: holdfast.Memory) -> list[tuple[str, str, float]]:
    questions = ("when do we deploy", "orders", "time zone", "load test", "出荷", "tag:ops", "")
    return [(question, hit.record.id, hit.score) for question in questions for hit in memory.find(question)]


def ask(memory: holdfast.Memory, question: str) -> None:
    found = memory.find(question, limit=1)
    for hit in found:
        say(f"{question}\n       {hit.snippet}   ({hit.record.where}, {hit.age}, because of: {', '.join(hit.why)})")
    if not found.hits:
        raise SystemExit(f"nothing found for {question!r}")


def step(text: str) -> None:
    print(f"\n{text}")


def say(text: str) -> None:
    print(f"  - {text}")


if __name__ == "__main__":
    main()
