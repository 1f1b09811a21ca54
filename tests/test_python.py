"""The Python interface: opening and making memories, types that find mistakes, and the async door."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import typing
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast import types
from holdfast.errors import Invalid, Unavailable
from holdfast.model.kinds import KINDS, PLAN_STATUS, ROLES
from holdfast.model.queries import Query
from holdfast.model.records import Draft

TOP = Path(__file__).parent.parent

# opening and making


def test_a_missing_root_is_made_on_request_only(tmp_path: Path) -> None:
    place = tmp_path / "memory"
    with pytest.raises(Unavailable, match="holdfast init"):
        holdfast.open(place)
    with holdfast.open(place, create=True) as memory:
        memory.put("note", "We ship on Tuesdays.", title="Ship")
    with holdfast.open(place, create=True) as memory:
        assert [hit.record.title for hit in memory.find("ship")] == ["Ship"]


def test_init_makes_a_root_and_replaces_nothing(tmp_path: Path) -> None:
    assert "holdfast.toml" in holdfast.init(tmp_path)
    (tmp_path / "holdfast.toml").write_text("format = 1\n# mine\n")
    assert "holdfast.toml" not in holdfast.init(tmp_path, template=True)
    assert (tmp_path / "holdfast.toml").read_text() == "format = 1\n# mine\n"


def test_without_a_root_the_environment_then_the_nearest_root_then_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, project, home = tmp_path / "named", tmp_path / "project", tmp_path / "home"
    for root in (named, project, home / ".holdfast"):
        holdfast.init(root)
    (project / "src").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("HOLDFAST_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    with holdfast.open() as memory:
        assert memory.root == str(home / ".holdfast")
    monkeypatch.chdir(project / "src")
    with holdfast.open() as memory:
        assert memory.root == str(project)
    monkeypatch.setenv("HOLDFAST_ROOT", str(named))
    with holdfast.open() as memory:
        assert memory.root == str(named)


# arguments and their types


def test_the_types_list_every_kind_and_every_argument() -> None:
    written = {row.name for row in KINDS.values() if not row.owned}
    assert set(typing.get_args(types.KindName)) == written
    assert set(typing.get_args(types.FoundKind)) == {row.name for row in KINDS.values() if not row.private}
    own = {name for row in KINDS.values() if not row.owned for name in row.own}
    assert set(types.PutArguments.__annotations__) == {*Draft.__struct_fields__, *own} - {"kind", "text"}
    assert set(types.FindArguments.__annotations__) == {*Query.__struct_fields__} - {"text"}
    given = typing.get_type_hints(types.PutArguments)
    assert (typing.get_args(given["role"]), typing.get_args(given["status"])) == (ROLES, PLAN_STATUS)


def test_a_type_checker_finds_misspelt_kinds_and_arguments(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import holdfast\n"
        'with holdfast.open("m") as memory:\n'
        '    memory.put("nite", "x", title="T")\n'
        '    memory.put("note", "x", tilte="T")\n'
        '    memory.find("x", kinds=["nots"])\n'
        '    memory.put("note", "x", title="T", tags=["a"], key="k")\n'
        "async def main() -> None:\n"
        '    async with holdfast.aopen("m") as memory:\n'
        '        await memory.put("nite", "x", title="T")\n'
        '        (await memory.put("note", "x", title="T")).id.upper()\n'
    )
    words = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(program)]
    found = subprocess.run(words, capture_output=True, text=True).stdout
    assert [int(line.split(":")[1]) for line in found.splitlines() if ": error:" in line] == [3, 4, 5, 9]


def test_the_fields_of_a_kind_are_arguments(memory: holdfast.Memory) -> None:
    memory.put("fact", "Europe/Lisbon", key="office time zone")
    memory.put("procedure", "Run it again.", when="the upload test fails")
    assert memory.mind().recall("office time zone")["value"] == "Europe/Lisbon"
    assert memory.find("upload test", kinds=["procedure"]).hits[0].record.title == "the upload test fails"
    with pytest.raises(Invalid, match=r"`tilte`.*put, for a fact also with key, takes kind, text, title"):
        memory.put("fact", "x", tilte="T")  # type: ignore[call-arg]  # on purpose
    with pytest.raises(Invalid, match="`key`"):
        memory.put("note", "x", title="T", key="k")


# the async door


def test_the_async_door_writes_finds_and_follows(root: Path) -> None:
    async def main() -> list[str]:
        async with holdfast.aopen(root) as memory:
            seen = memory.changes(kinds=["episode"])
            first = asyncio.ensure_future(anext(seen))
            await asyncio.sleep(0)
            while not first.done():  # the feed starts some time during the first turn
                await memory.put("episode", "We ship on Tuesdays.", session="s")
            await seen.aclose()
            change, hits = await first, await memory.find("when do we ship?")
            chat = await memory.run(memory.blocking.chat.load_global_memory)
            return [change.kind, hits.hits[0].record.text, chat]

    assert asyncio.run(main()) == ["episode", "We ship on Tuesdays.", ""]


def test_calls_run_side_by_side_and_from_several_loops(root: Path) -> None:
    with holdfast.open(root) as blocking:
        memory = holdfast.AsyncMemory(lambda: blocking)

        async def enter() -> None:
            await memory.__aenter__()

        async def write(name: str) -> None:
            await asyncio.gather(*(memory.put("episode", f"{name} {n}", session="s") for n in range(20)))

        asyncio.run(enter())
        threads = [threading.Thread(target=asyncio.run, args=(write(name),)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(blocking.tail("episode", 100, session="s")) == 40


def test_a_cancelled_write_is_complete_or_has_not_begun(root: Path) -> None:
    """The task ends only when the outcome is known, also if it is cancelled twice."""

    async def main() -> tuple[list[str], list[str]]:
        async with holdfast.aopen(root) as memory:
            inside, go_on = threading.Event(), threading.Event()
            done = []

            def slow() -> None:
                inside.set()
                go_on.wait(30)
                memory.blocking.put("episode", "written", session="s")
                done.append("written")

            task = asyncio.ensure_future(memory.run(slow))
            await asyncio.to_thread(inside.wait, 30)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0)
            assert not task.done()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            return done[:], [one.text for one in await memory.tail("episode", session="s")]

    assert asyncio.run(main()) == (["written"], ["written"])


def test_what_is_awaited_is_what_the_memory_returns(root: Path) -> None:
    async def main() -> tuple[object, object]:
        async with holdfast.aopen(root) as memory:
            receipt = await memory.put("note", "x", title="T")
            with pytest.raises(Invalid, match="no kind"):
                await memory.put("nite", "x")  # type: ignore[arg-type]  # on purpose
            return await memory.get(receipt.id), memory.blocking.get(receipt.id)

    got, same = asyncio.run(main())
    assert got == same
    assert isinstance(got, msgspec.Struct)


def test_the_example_runs() -> None:
    done = subprocess.run([sys.executable, "-m", "examples.library"], capture_output=True, text=True, cwd=TOP)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Europe/Lisbon" in done.stdout and "The deploy went well." in done.stdout and "refused: " in done.stdout
