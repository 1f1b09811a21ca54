"""Two days of an agent: the official client, a server process for each conversation, and no `context` in any call."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

import fork_server
import holdfast
from holdfast.model.queries import Query
from test_mcp import ask

WORKSPACES = ("webshop", "billing", "garden")
CHECKOUT: dict[str, Any] = {
    "name": "Checkout half done",
    "conversationContext": "The payment form works; webhooks are still missing.",
    "activeTask": "Handle webhooks of the payment provider",
    "activeFiles": ["src/checkout.py"],
    "nextSteps": ["Verify the signature", "Retry on time-out"],
}
INVOICES = CHECKOUT | {
    "name": "Invoice numbers",
    "activeTask": "Number the invoices",
    "nextSteps": ["Write the migration"],
}
RUNBOOK = "# Release runbook\n\n" + "\n".join(f"Step {number}: check the dashboard." for number in range(1, 400))


class Desk:
    """A memory, and folders of projects on the same computer that are not in it."""

    def __init__(self, root: Path, home: Path) -> None:
        self.root, self.home = root, home

    def folder(self, name: str) -> Path:
        (self.home / name).mkdir(exist_ok=True)
        return self.home / name

    def run(self, *words: str, folder: str = "desk") -> str:
        """Run a command in a folder, as a hook of a client does."""
        command = [sys.executable, "-m", "holdfast", *words, "--root", str(self.root)]
        done = fork_server.run(command, capture_output=True, text=True, cwd=self.folder(folder), timeout=60)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    @contextlib.asynccontextmanager
    async def conversation(self, folder: str, *options: str) -> AsyncIterator[Client]:
        """A client of a server of its own that is started in a folder."""
        words = ["-m", "holdfast", "mcp", "--root", str(self.root), *options]
        with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
            server = StdioServerParameters(
                command=sys.executable, args=words, cwd=self.folder(folder), env=dict(os.environ)
            )
            info = types.Implementation(name="coder", version="1")
            async with Client(stdio_client(server, errlog=log), client_info=info) as client:
                yield client
            log.seek(0)
            assert log.read() == ""


@pytest.fixture
def desk(root: Path, tmp_path: Path) -> Desk:
    """The owner made three workspaces."""
    made = Desk(root, tmp_path / "home")
    made.home.mkdir()
    with holdfast.open(root) as memory:
        for name in WORKSPACES:
            fields = {
                "description": f"The {name}.",
                "rootFolder": f"projects/{name}",
                "purpose": f"Work on the {name}.",
            }
            assert memory.call("createWorkspace", {"name": name} | fields)["success"] is True
    return made


async def names(client: Client) -> list[str]:
    return [each["name"] for each in (await ask(client, "listStates"))["data"]]


async def told(client: Client, tool: str, **params: Any) -> str:
    """Call a tool and return the text that the model reads."""
    (content,) = (await client.call_tool(tool, params)).content
    assert isinstance(content, types.TextContent)
    return content.text


async def day_one(desk: Desk) -> None:
    async with desk.conversation("desk") as client:
        assert (await ask(client, "remember", text="Tea is at four."))["workspace"] == "default"

        briefing = (await ask(client, "loadWorkspace", name="webshop"))["data"]
        assert (briefing["purpose"], briefing["states"]) == ("Work on the webshop.", [])
        for text, kind in (
            ("Payments go through Stripe, since its test mode is good.", "decision"),
            ("Webhooks arrive twice: compare their ids.", "lesson"),
            (RUNBOOK, "note"),
        ):
            assert "webshop" in await told(client, "remember", text=text, kind=kind)
        fact = await ask(client, "remember", text="shop-stage.example", kind="fact", key="staging host")
        assert fact["workspace"] == "webshop"

        await ask(client, "loadWorkspace", name="billing")
        stored = await ask(client, "remember", text="Invoices are numbered per year.", kind="decision")
        assert stored["workspace"] == "billing"
        assert await names(client) == []
        assert (await ask(client, "createState", INVOICES))["data"]["workspace"] == "billing"

        await ask(client, "loadWorkspace", name="webshop")
        assert (await ask(client, "createState", CHECKOUT))["data"]["workspace"] == "webshop"


async def day_two(desk: Desk) -> None:
    async with desk.conversation("webshop") as client:
        assert await names(client) == [CHECKOUT["name"]]
        assert (await ask(client, "loadState", name=CHECKOUT["name"]))["data"] == CHECKOUT

        (hit, *_) = (await ask(client, "recall", query="release runbook dashboard"))["hits"]
        assert len(hit["text"]) < hit["size"]
        text, part = "", dict[str, Any](next=0)
        while "next" in part:
            part = await ask(client, "read", id=hit["id"], offset=part["next"])
            text += part["content"]
        assert text.strip() == RUNBOOK

        found = await ask(client, "recall", query="when is tea")
        assert ([each["scope"] for each in found["hits"]], found["searched"]) == (["default"], ["webshop", "default"])
        assert (await ask(client, "recall", query="invoices numbered"))["hits"] == [], "of another project"

        # a decision is replaced, a contradiction is noticed, a fact is corrected, a lesson is retired
        (old, *_) = (await ask(client, "recall", query="who handles payments?", kinds=["decision"]))["hits"]
        new = await ask(
            client, "remember", kind="decision", text="Adyen takes the money, for its lower fees.", supersedes=old["id"]
        )
        first, second = (await ask(client, "recall", query="are payments with Stripe?", kinds=["decision"]))["hits"]
        assert (first["id"], second["id"], second["label"]) == (new["id"], old["id"], f"superseded by {new['id']}")
        twice = "Webhooks arrive once: compare nothing."
        (known,) = (await ask(client, "remember", text=twice, kind="lesson"))["similar"]
        assert known["how"] == "which has twice ids where this has once nothing"
        (host, *_) = (await ask(client, "recall", query="staging host", kinds=["fact"]))["hits"]
        assert (await ask(client, "revise", id=host["id"], text="stage2.example"))["was"] == "shop-stage.example"
        assert "stage2.example" in await told(client, "recall", query="staging host")
        await ask(client, "revise", id=known["id"], retire=True, reason="not since the new provider")
        (lesson,) = (await ask(client, "recall", query="webhooks arrive", kinds=["lesson"]))["hits"]
        assert lesson["text"] == twice

        await ask(client, "loadWorkspace", name="billing")
        assert (await ask(client, "recall", query="invoices"))["hits"][0]["scope"] == "billing"
        assert (await ask(client, "createState", INVOICES))["success"] is False
        done = INVOICES | {"name": "Invoice numbers done", "nextSteps": []}
        assert (await ask(client, "createState", done))["data"]["workspace"] == "billing"
        assert await names(client) == [done["name"], INVOICES["name"]]

    async with desk.conversation("webshop", "--workspace", "garden") as client:
        assert (await ask(client, "remember", text="Water the roses."))["workspace"] == "garden"


def test_everything_lands_where_a_person_would_expect(desk: Desk) -> None:
    asyncio.run(day_one(desk))
    prompt = desk.run("context", folder="webshop")
    for expected in ("webshop", "Stripe", "Webhooks arrive twice", CHECKOUT["name"]):
        assert expected in prompt
    for unexpected in ("Invoice", "Tea"):
        assert unexpected not in prompt
    asyncio.run(day_two(desk))
    prompt = desk.run("context", "--task", "handle the payments", folder="webshop")
    assert "Adyen" in prompt and "Stripe, since" not in prompt and "compare their ids" not in prompt
    with holdfast.open(desk.root) as memory:
        kept = [(one.scope.path, one.kind) for one in memory.every(Query()) if one.kind not in ("overview", "trace")]
    assert sorted(kept) == sorted(
        [("default", "note"), ("billing", "decision"), ("billing", "state"), ("billing", "state"), ("garden", "note")]
        + [("webshop", kind) for kind in ("decision", "decision", "lesson", "note", "fact", "state")]
    )
