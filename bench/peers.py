"""Holdfast beside other memory servers, through the same interface: MCP over stdio.

    scripts/bench peers [--quick]                  the table, with targets
    scripts/bench report --only peers [--quick]    the section and the plot of docs/benchmarks.md

Each server is started by the same plain client, gets the same notes and is asked the same questions. The reference
server (`@modelcontextprotocol/server-memory`) comes from npm and is skipped, with a message, without npm. The floor
(`bench/_floor.py`) is the minimum of such a server. CPU is that of the server's process with all threads; of a start and
of a command it is the least of seven, since other work on the machine only adds to it. Ratios are within one run.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

import holdfast
from bench.harness import Run, Words, folder, percentile, start, timed
from bench.mcp import Client, resident
from holdfast.recall import embedders

Tool = tuple[str, dict[str, Any]]
REFERENCE = "@modelcontextprotocol/server-memory"
_STARTS, _WRITES, _QUESTIONS = 7, 200, 100
_SMALL, _LARGE = 20, 1_000
_COMMANDS = (
    (["--version"], _SMALL, 40),
    (["search", "codename"], _SMALL, 80),
    (["remember", "We ship on Tuesdays.", "--title", "Shipping {}"], _SMALL, 90),
    (["put", "note", "We ship on Mondays.", "--title", "Sailing {}"], _SMALL, 90),
    (["search", "codename"], _LARGE, None),
    (["context", "--task", "codename"], _LARGE, 150),
)
"""Commands in a process of their own, in a memory of so many notes, and the most CPU in milliseconds."""
_IMPORTS = (["mcp"], ["search", "codename"], ["context"])


class Peer(msgspec.Struct, frozen=True):
    """The measurements of one server. Times are in milliseconds, sizes in megabytes."""

    name: str
    start_ms: float = 0.0
    start_cpu_ms: float = 0.0
    idle_mb: float = 0.0
    write_p50_ms: float = 0.0
    write_cpu_ms: float = 0.0
    searches: list[Searched] = []
    install_mb: float = 0.0
    packages: int = 0


class Searched(msgspec.Struct, frozen=True):
    """Searches in a memory of this many notes."""

    notes: int
    p50_ms: float
    p95_ms: float
    cpu_ms: float
    found: int
    asked: int
    """The number of questions with one right note; `found` of them got it."""
    memory_mb: float


class Command(msgspec.Struct, frozen=True):
    """A command of Holdfast in a process of its own, in a memory of so many notes."""

    name: str
    notes: int
    cpu_ms: float
    most_ms: float | None = None


class Note(NamedTuple):
    title: str
    text: str
    mark: str
    """A word of the title that no question contains, so it proves a hit."""
    question: str


class System(NamedTuple):
    """How to start a server, to write a note and to ask a question."""

    name: str
    command: Callable[[str], list[str]]
    write: Callable[[Note], Tool]
    ask: Callable[[str], Tool]
    load: Callable[[str, Sequence[Note]], None]
    """Write many notes without the server."""
    environment: Callable[[str], Mapping[str, str]] = lambda _root: {}


def main() -> None:
    run = start("peers")
    measured = measure(run.quick)
    by_name = {peer.name: peer for peer in measured}
    for peer in measured:
        told(run, peer)
    compared(run, by_name)
    for one in alone():
        run.add(f"holdfast {one.name}, {one.notes:,} notes, CPU", one.cpu_ms, "ms", one.most_ms)
    slowest_imports()
    run.finish()


def measure(quick: bool) -> list[Peer]:
    """Measure every available server, one after the other."""
    words, sizes = Words(), (300, 1_000) if quick else (1_000, 10_000)
    notes = [_note(words, number) for number in range(sizes[-1] + _WRITES)]
    return [_measured(system, notes, sizes) for system in _systems()]


def _note(words: Words, number: int) -> Note:
    code, mark = f"q{number:x}zu"[::-1].replace("0", "o"), f"TK{number:06d}"
    text = words.text(50, 70)
    some = random.Random(number).sample(text.split(), 3)
    return Note(f"Plan {mark}", f"{text}. The codename is {code}.", mark, " ".join([code, *some]))


def _systems() -> Iterator[System]:
    yield System(
        "floor", lambda root: [sys.executable, "-m", "bench._floor", root],
        lambda note: ("add", {"title": note.title, "text": note.text}), lambda question: ("find", {"query": question}),
        _load_floor,
    )  # fmt: skip
    if server := _reference():
        yield System(
            "reference server", lambda _root: ["node", server], _entity,
            lambda question: ("search_nodes", {"query": question}), _load_reference,
            lambda root: {"MEMORY_FILE_PATH": os.path.join(root, "memory.jsonl")},
        )  # fmt: skip
    for name, embedder in (("Holdfast by words", "none"), ("Holdfast with semantic", "semantic")):
        if embedder == "none" or embedders.is_installed(embedder):
            yield System(
                name, lambda root: [sys.executable, "-m", "holdfast", "mcp", "--root", root],
                lambda note: ("remember", {"kind": "note", "title": note.title, "text": note.text}),
                lambda question: ("recall", {"query": question}), _load_holdfast,
                lambda _root, embedder=embedder: {"HOLDFAST_SEARCH_EMBEDDER": embedder},  # type: ignore[misc]
            )  # fmt: skip
        else:
            print(f"The extra {embedder} is not installed: {name} was not measured.", file=sys.stderr)


def _reference() -> str:
    """Install the reference server with npm, once; return its program, or None if that is not possible."""
    place = os.path.abspath(".bench/npm")
    program = os.path.join(place, "node_modules", REFERENCE, "dist", "index.js")
    if not os.path.exists(program):
        os.makedirs(place, exist_ok=True)
        words = ["npm", "install", "--silent", "--no-save", "--prefix", place, REFERENCE]
        done = subprocess.run(words, capture_output=True, check=False) if shutil.which("npm") else None
        if done is None or done.returncode:
            print("The reference server was not measured: npm could not install it.", file=sys.stderr)
            return ""
    return program


def _entity(note: Note) -> Tool:
    return "create_entities", {"entities": [{"name": note.title, "entityType": "note", "observations": [note.text]}]}


def _load_floor(root: str, notes: Sequence[Note]) -> None:
    _append(os.path.join(root, "log.jsonl"), ({"title": note.title, "text": note.text} for note in notes))


def _load_reference(root: str, notes: Sequence[Note]) -> None:
    _append(
        os.path.join(root, "memory.jsonl"),
        ({"type": "entity", **entity} for note in notes for entity in _entity(note)[1]["entities"]),
    )


def _append(path: str, lines: Iterator[dict[str, Any]]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def _load_holdfast(root: str, notes: Sequence[Note]) -> None:
    with holdfast.open(root) as memory:
        for note in notes:
            memory.put("note", note.text, title=note.title)


def _measured(system: System, notes: Sequence[Note], sizes: Sequence[int]) -> Peer:
    print(f"{system.name} …", file=sys.stderr, flush=True)
    with folder() as root:
        peer = msgspec.structs.replace(_started(system, root), name=system.name)
        client = _client(system, root)
        before = client.cpu()
        times = [timed(lambda note=note: client.call(*system.write(note))) * 1000 for note in notes[-_WRITES:]]  # type: ignore[misc]
        write_cpu = (client.cpu() - before) / _WRITES
        client.close()
    searches = []
    for size in sizes:
        with folder() as root:
            system.load(root, notes[:size])
            time.sleep(2.1)  # files younger than two seconds are compared by content
            searches.append(_searched(system, root, notes[:size]))
    megabytes, packages = _installed(system.name)
    return msgspec.structs.replace(
        peer, write_p50_ms=percentile(times, 0.5), write_cpu_ms=write_cpu, searches=searches,
        install_mb=megabytes, packages=packages,
    )  # fmt: skip


def _client(system: System, root: str) -> Client:
    return Client(system.command(root), system.environment(root))


def _started(system: System, root: str) -> Peer:
    """Measure starts up to the first tools/list; the very first one, which creates the memory, does not count."""
    walls, cpus, idle = [], [], 0.0
    for number in range(_STARTS + 1):
        begin = time.perf_counter()
        client = _client(system, root)
        client.ask("tools/list", {})
        if number:
            walls.append((time.perf_counter() - begin) * 1000)
            cpus.append(client.cpu())
        time.sleep(0.3)
        idle = resident(client.process.pid)
        client.close()
    return Peer("", percentile(walls, 0.5), min(cpus), idle)


def _searched(system: System, root: str, notes: Sequence[Note]) -> Searched:
    client, found, times = _client(system, root), 0, []
    client.call(*system.ask("warm up"))
    chosen = random.Random(7).sample(notes, _QUESTIONS)
    while "Holdfast" in system.name and not _is_complete(client, system, chosen[0]):
        time.sleep(0.5)  # vectors are made in the background
    before = client.cpu()
    for note in chosen:
        begin = time.perf_counter()
        result = client.call(*system.ask(note.question))
        times.append((time.perf_counter() - begin) * 1000)
        found += note.mark in json.dumps(result)
    cpu, memory = (client.cpu() - before) / len(chosen), resident(client.process.pid)
    client.close()
    return Searched(
        len(notes), percentile(times, 0.5), percentile(times, 0.95), cpu, found, len(chosen), memory
    )  # fmt: skip


def _is_complete(client: Client, system: System, note: Note) -> bool:
    """Does the server use all vectors, if it has any?"""
    return "by words alone" not in json.dumps(client.call(*system.ask(note.question)))


def _installed(name: str) -> tuple[float, int]:
    """Return the megabytes and the packages of an installation; Holdfast is installed for it, without extras."""
    if name == "reference server":
        place = os.path.abspath(".bench/npm/node_modules")
        return _size(place), len(glob.glob(f"{place}/*/package.json") + glob.glob(f"{place}/@*/*/package.json"))
    if name == "Holdfast by words":
        place = os.path.abspath(".bench/install")
        shutil.rmtree(place, ignore_errors=True)
        words = [sys.executable, *"-m pip install --quiet --disable-pip-version-check --target".split(), place, "."]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return _size(place), len(glob.glob(f"{place}/*.dist-info"))
    return 0.0, 0


def _size(place: str) -> float:
    paths = (os.path.join(at, name) for at, _, names in os.walk(place) for name in names)
    return sum(os.lstat(path).st_size for path in paths) / 1e6


# rows


def told(run: Run, peer: Peer) -> None:
    run.add(f"{peer.name}: CPU to the first tools/list", peer.start_cpu_ms, "ms", detail=f"{peer.start_ms:.0f} ms wall")
    run.add(f"{peer.name}: resident memory, idle", peer.idle_mb, "MB")
    run.add(f"{peer.name}: write, p50", peer.write_p50_ms, "ms", detail=f"{peer.write_cpu_ms:.2f} ms CPU")
    for one in peer.searches:
        detail = f"p95 {one.p95_ms:.1f} ms, {one.cpu_ms:.1f} ms CPU, found {one.found} of {one.asked}, {one.memory_mb:.0f} MB"
        run.add(f"{peer.name}: search in {one.notes:,} notes, p50", one.p50_ms, "ms", detail=detail)
    if peer.packages:
        run.add(f"{peer.name}: installation", peer.install_mb, "MB", detail=f"{peer.packages} packages")


def compared(run: Run, peers: Mapping[str, Peer]) -> None:
    """Add the ratios that have targets."""
    floor, ours, semantic = peers["floor"], peers["Holdfast by words"], peers.get("Holdfast with semantic")
    run.add("CPU to the first tools/list", ours.start_cpu_ms, "ms", 150)
    if reference := peers.get("reference server"):
        run.add("CPU to the first tools/list / reference server", ours.start_cpu_ms / reference.start_cpu_ms, "x", 0.5)
    run.add("installation", ours.install_mb, "MB", 60)
    run.add("packages", ours.packages, "", 12)
    run.add("resident memory, idle", ours.idle_mb, "MB", 35)
    with_notes = next(one.memory_mb for one in ours.searches if one.notes == _LARGE)  # of both lists of sizes
    run.add(f"resident memory, {_LARGE:,} notes", with_notes, "MB", 45)
    for number, (words_most, meaning_most) in enumerate(((3, None), (1, 1.5))):
        least = floor.searches[number]
        for peer, most in ((ours, words_most), (semantic, meaning_most)):
            if peer:
                ratio = peer.searches[number].p50_ms / least.p50_ms
                run.add(f"{peer.name}: search in {least.notes:,} notes, p50 / floor", ratio, "x", most)


def alone() -> list[Command]:
    """Measure commands in processes of their own, by words: vectors would be made in the background."""
    found = []
    for size in (_SMALL, _LARGE):
        with _filled(size) as root:
            for words, notes, most in _COMMANDS:
                if notes == size:
                    cpu = [_command(root, *(word.format(number) for word in words)) for number in range(_STARTS + 1)]
                    name = " ".join(words[: 2 if words[0] == "put" else 1])
                    found.append(Command(name, size, round(min(cpu[1:]), 1), most))
    return found


def slowest_imports() -> None:
    with _filled(_SMALL) as root:
        for words in _IMPORTS:
            print(f"\nSlowest imports of holdfast {words[0]} (own, with all that it imports; ms)")
            for own, every, module in _imports(root, *words):
                print(f"  {own:6.1f} {every:6.1f}  {module}")


@contextlib.contextmanager
def _filled(notes: int) -> Iterator[str]:
    words = Words()
    with folder() as root:
        _load_holdfast(root, [_note(words, number) for number in range(notes)])
        time.sleep(2.1)  # files younger than two seconds are compared by content
        yield root


def _environment() -> dict[str, str]:
    """With compiled modules and without an embedder."""
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return usual | {"HOLDFAST_SEARCH_EMBEDDER": "none"}


def _command(root: str, *words: str) -> float:
    """Run a command and return the milliseconds of CPU that it took."""
    command, nothing = [sys.executable, "-m", "holdfast", *words], subprocess.DEVNULL
    environment = _environment() | {"HOLDFAST_ROOT": root}
    process = subprocess.Popen(command, env=environment, stdin=nothing, stdout=nothing, stderr=nothing)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert not process.returncode, words
    return (usage.ru_utime + usage.ru_stime) * 1000


def _imports(root: str, *words: str) -> list[tuple[float, float, str]]:
    """Return the slowest imports of a command; of several runs, the least time of each."""
    command, least = [sys.executable, "-X", "importtime", "-m", "holdfast", *words], dict[str, tuple[int, int]]()
    environment = _environment() | {"HOLDFAST_ROOT": root}
    for _ in range(_STARTS):
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        for own, every, module in re.findall(r"import time:\s+(\d+) \|\s+(\d+) \| +(\S+)", done.stderr):
            known = least.get(module, (1 << 60, 1 << 60))
            least[module] = min(known[0], int(own)), min(known[1], int(every))
    found = [(own / 1000, every / 1000, module) for module, (own, every) in least.items()]
    return sorted(found, reverse=True)[:12]


if __name__ == "__main__":
    main()
