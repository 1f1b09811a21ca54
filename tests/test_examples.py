"""The examples run: the tours, and the loops with the SDKs of two vendors against a server with scripted replies."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from test_llm import Behaviour, Server

TOP = Path(__file__).parent.parent
FACT = "We deploy on Tuesdays."
Asked = dict[str, Any]


def anthropic_says(text: str = "", **tool: Any) -> Asked:
    block = {"type": "tool_use", **tool} if tool else {"type": "text", "text": text}
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "content": [block],
        "stop_reason": "tool_use" if tool else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip


def openai_says(text: str = "", **tool: Any) -> Asked:
    message: Asked = {"role": "assistant", "content": text}
    if tool:
        function = {"name": tool["name"], "arguments": json.dumps(tool["input"])}
        message = {"role": "assistant", "tool_calls": [{"id": tool["id"], "type": "function", "function": function}]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if tool else "stop"}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "scripted", "choices": [choice]}


VENDORS = {"anthropic": anthropic_says, "openai": openai_says}


def sends(reply: Asked) -> Behaviour:
    return lambda handler: handler.reply(200, json.dumps(reply).encode(), Content_Type="application/json")


@contextlib.contextmanager
def serving(*replies: Asked) -> Iterator[Server]:
    with Server() as server:
        server.script = [sends(reply) for reply in replies]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("vendor", VENDORS)
def test_an_agent_loop_remembers_in_one_process_and_recalls_in_the_next(vendor: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(vendor) is None:
        pytest.skip(f"the SDK is not installed: pip install {vendor}")
    says, root = VENDORS[vendor], tmp_path / "memory"

    def converse(said: str, *replies: Asked) -> tuple[str, list[Asked]]:
        with serving(*replies) as server:
            url = server.url if vendor == "openai" else server.url.removesuffix("/v1")
            given = {f"{vendor.upper()}_BASE_URL": url, f"{vendor.upper()}_API_KEY": "none", "HOLDFAST_ROOT": str(root)}
            command = [sys.executable, "-m", f"examples.{vendor}_loop", said]
            done = subprocess.run(command, env=os.environ | given, cwd=TOP, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert len(server.seen) == len(replies)
            return done.stdout.strip(), [body for _, _, body in server.seen]

    printed, (first, second) = converse(
        f"Remember: {FACT}", says(id="call_1", name="remember", input={"text": FACT}), says("Noted.")
    )
    assert printed == "Noted."
    assert {"recall", "remember"} <= {tool.get("name") or tool["function"]["name"] for tool in first["tools"]}
    assert "Stored in default" in json.dumps(second["messages"][-1])

    printed, (first, *_, third) = converse(
        "When do we deploy?",
        says(id="call_2", name="recall", input={"query": "When do we deploy?"}),
        says(id="call_3", name="recal", input={"query": "When do we deploy?"}),
        says("On Tuesdays."),
    )
    assert printed == "On Tuesdays."
    system = first["system"] if vendor == "anthropic" else first["messages"][0]["content"]
    assert "Noted." in system and "_notes/" in system, "the prompt has the exchange, and what the task brings to mind"
    *_, found, _call, refused = map(json.dumps, third["messages"])
    assert FACT in found and "call_2" in found
    assert "There is no tool" in refused and "call_3" in refused, "the model can correct itself"

    with holdfast.open(root) as memory:
        (note,) = memory.find(kinds=("note",))
        assert (note.record.text.strip(), memory.versions(note.record.id)[-1].writer) == (FACT, f"{vendor}-loop")
        spoken = [(message.role, message.content) for message in memory.chat.load_history()]
    assert spoken == [
        ("user", f"Remember: {FACT}"), ("assistant", "Noted."),
        ("user", "When do we deploy?"), ("assistant", "On Tuesdays."),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["library", "team", "tour"])
def test_a_tour_ends_well(name: str, request: pytest.FixtureRequest) -> None:
    words = [request.getfixturevalue("address")] if name == "team" else []
    done = subprocess.run([sys.executable, f"examples/{name}.py", *words], cwd=TOP, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stderr
