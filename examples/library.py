"""Holdfast from Python, in one page: write, find, correct, resume, follow, and the same from an async program."""

from __future__ import annotations

import asyncio
import tempfile

import holdfast
from holdfast.errors import Conflict


def main(root: str) -> None:
    with holdfast.open(root, create=True, writer="library.py") as memory:
        # write: durable when it returns
        note = memory.put("note", "We deploy on Tuesdays.", title="Deploys", tags=["ops"])
        memory.put("fact", "Europe/Lisbon", key="office time zone")
        memory.put("decision", "We use JWT, because the app has no server.", title="Authentication")
        memory.put("episode", "Ran the load test: 950 orders per minute.", session="monday")

        # find: the best first, with where it is and why it came
        for hit in memory.find("when do we deploy?", limit=3):
            print(f"{hit.record.where}: {hit.snippet}")

        # correct: an edit names the version that it was made from
        record = memory.get(note.id)
        memory.put(id=note.id, text="We deploy on Thursdays.", expect=record.version)
        try:
            memory.put(id=note.id, text="We deploy on Fridays.", expect=record.version)
        except Conflict as error:
            print(f"refused: {error}")
        memory.undo(note.id)

        # any tool by its name; an error is a reply
        print(memory.call("memory_recall", {"key": "office time zone"})["data"]["value"])
        print(memory.prompt(task="deploy the shop", budget=500).splitlines()[0])
    asyncio.run(later(root))


async def later(root: str) -> None:
    async with holdfast.aopen(root) as memory:
        await memory.put("episode", "The deploy went well.", session="tuesday")
        found = await memory.find("how did the deploy go?", session="tuesday")
        print([hit.record.text for hit in found])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(f"{folder}/memory")
