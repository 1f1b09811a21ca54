"""Corruption: bytes of files change outside of Holdfast. Intact data is read, and damaged data is reported.

Every log is damaged at every 997th byte in four ways. Each unchanged line must be returned, each other line must be
returned or reported with file and line, and no read may change a file. The index is deleted, cut, overwritten, swapped
and flipped; answers must equal those of a new index. A search can miss a flipped bit inside SQLite's pages: then
`verify` must report it, and a rebuild must fix it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import apsw

import holdfast
from holdfast.model.kinds import KINDS
from holdfast.model.queries import Query
from prove.defences import take_out
from prove.harness import Row, Run, Tally
from prove.writes import WRITES, tag_of

_STEP = 997
_LINES = 8
_KINDS = (
    "message",
    "fact",
    "procedure",
    "episode",
    "job",
    "entry",
    "exchange",
    "state",
    "note",
    "decision",
    "hide-line",
)
_QUERIES = ("words torn", "message.c.3", "note decision", "kind:fact words", '"enough to be torn"', "state")
DAMAGE: dict[str, Callable[[bytes, int], bytes]] = {
    "overwritten": lambda data, at: data[:at] + b"\xff" + data[at + 1 :],
    "deleted": lambda data, at: data[:at] + data[at + 1 :],
    "inserted": lambda data, at: data[:at] + b'"' + data[at:],
    "zeroed": lambda data, at: data[:at] + b"\0" * len(data[at : at + 600]) + data[at + 600 :],
}


def campaign(run: Run) -> Iterator[Row]:
    with run.root("corruption") as root, run.root("other") as other:
        _fill(root)
        _fill(other)
        take_out()
        yield _logs(run, root)
        yield _index(run, root, other)


def _fill(root: str) -> None:
    with holdfast.open(root) as memory:
        for number in range(_LINES):
            for name in _KINDS:
                WRITES[name].before(memory, tag_of(name, "c", number))
                WRITES[name].do(memory, tag_of(name, "c", number))
        memory.find("words")


def _logs(run: Run, root: str) -> Row:
    tally, dice = Tally(run, f"logs damaged at every {_STEP}th byte in {len(DAMAGE)} ways"), run.random("logs")
    cases = [
        (path, at, how)
        for path in sorted(_files(root))
        if path.endswith(".jsonl")
        for at in range(_STEP // 2, len(_read(root, path)), _STEP)
        for how in DAMAGE
    ]
    for path, at, how in dice.sample(cases, min(len(cases), run.size(400, 16))):
        whole = _read(root, path)
        damaged = DAMAGE[how](whole, at)
        _write(root, path, damaged)
        before = _files(root)
        problems = _looked_at(root, path, whole, damaged)
        problems += [
            f"{name} was changed by looking" for name, data in _files(root).items() if before.get(name) != data
        ]
        tally.made(1, whole.count(b"\n"))
        tally.note([f"{path}, byte {at} {how}: {problem}" for problem in problems], root)
        _write(root, path, whole)
    return tally.row()


def _looked_at(root: str, path: str, whole: bytes, damaged: bytes) -> list[str]:
    """Return the lines of a damaged log that are neither returned unchanged nor reported."""
    with holdfast.open(root) as memory:
        served = {(record.line, record.id) for record in _every(memory) if record.path == path}
        report = memory.verify()
    named = {problem.line for problem in report.damage if problem.path == path}
    was = set(whole.split(b"\n"))
    wrong = [f"verify: the index differs: {each.what}" for each in report.differences]
    lines = damaged.removesuffix(b"\n").split(b"\n")
    for number, line in enumerate(lines, 1):
        if line in was:
            value = json.loads(line)
            if not _is_served(value, number, served) and number not in named:
                wrong.append(f"line {number} is as it was and is not served")
        elif number not in named and not _is_read(line):
            wrong.append(f"line {number} is damaged and not named")
    return wrong


def _is_served(value: dict[str, Any], number: int, served: set[tuple[int, str]]) -> bool:
    """Is a line returned? A mark, and an older line of a key, is not a record of its own."""
    return "hide" in value or (number, value["id"]) in served or any(value["id"] == name for _, name in served)


def _is_read(line: bytes) -> bool:
    """Is a line still valid JSON, or empty? Then no program can tell that it was changed."""
    try:
        text = line.replace(b"\0", b"").decode().strip()
        while text:
            value, end = json.JSONDecoder().raw_decode(text)
            if not isinstance(value, dict):
                return False
            text = text[end:].strip()
    except ValueError:
        return False
    return True


def _every(memory: holdfast.Memory) -> list[holdfast.Record]:
    return memory.every(Query(kinds=tuple(name for name, row in KINDS.items() if not row.foreign), hidden=True))


def _index(run: Run, root: str, other: str) -> Row:
    tally, dice = Tally(run, "index deleted, cut, overwritten, swapped, flipped"), run.random("index")
    with holdfast.open(root) as memory:
        memory.refresh(rebuild=True)
        wanted = _answers(memory)
    before = _files(root)
    _order_last(os.path.join(root, ".holdfast"))
    sound, theirs = os.path.join(os.path.dirname(root), "sound"), os.path.join(other, ".holdfast")
    shutil.copytree(os.path.join(root, ".holdfast"), sound)
    for number in range(run.size(120, 20)):
        shutil.rmtree(os.path.join(root, ".holdfast"))
        shutil.copytree(sound, os.path.join(root, ".holdfast"))
        how = list(HARM)[number % len(HARM)]
        HARM[how](os.path.join(root, ".holdfast"), theirs, dice)
        problems = _asked(root, wanted, named=how in _SLY)
        problems += [f"{name} was changed" for name, data in _files(root).items() if before.get(name) != data]
        tally.made(1, len(wanted))
        tally.note([f"index, {how}: {problem}" for problem in problems], root)
    return tally.row()


def _asked(root: str, wanted: dict[str, Any], *, named: bool) -> list[str]:
    """Ask twice; answers that differ from those of a new index are wrong, unless they are reported."""
    wrong: list[str] = []
    for _ in range(2):
        with holdfast.open(root) as memory:
            told = _answers(memory)
            if told != wanted and named:  # a later query may have detected and fixed it
                told = _answers(memory)
            if told != wanted and named and memory.verify().differences:
                memory.refresh(rebuild=True)
                told = _answers(memory)
            wrong += [
                f"{question!r} is answered otherwise" for question in wanted if told[question] != wanted[question]
            ]
    return wrong


def _answers(memory: holdfast.Memory) -> dict[str, Any]:
    answers: dict[str, Any] = {
        query: [(hit.record.id, hit.record.text, round(hit.score, 6)) for hit in memory.find(query, limit=50)]
        for query in _QUERIES
    }
    answers["everything"] = [(record.id, record.text, record.hidden) for record in _every(memory)]
    answers["tail"] = [record.id for record in memory.tail("message", 5)]
    logs = sorted({record.path for record in _every(memory) if KINDS[record.kind].shape == "line"})
    answers["first"] = [record.id for log in logs for record in memory.store.beside(log, "", _LINES, after=True)]
    return answers


def _database(folder: str) -> str:
    return os.path.join(folder, next(name for name in sorted(os.listdir(folder)) if name.endswith(".sqlite")))


def _order_last(folder: str) -> None:
    """Put the order of the entries of logs on the last pages of an index, so that cutting those changes answers."""
    with contextlib.closing(apsw.Connection(_database(folder))) as db:
        made = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'records_order'").get
        for statement in ("DROP INDEX records_order", "VACUUM", made):
            db.execute(statement)


def _cut(folder: str, _other: str, dice: random.Random) -> None:
    os.truncate(_database(folder), dice.randrange(os.path.getsize(_database(folder))))


def _cut_a_little(folder: str, _other: str, dice: random.Random) -> None:
    os.truncate(_database(folder), os.path.getsize(_database(folder)) - dice.randrange(2000, 4096))


def _overwritten(folder: str, _other: str, dice: random.Random) -> None:
    with open(_database(folder), "r+b") as file:
        file.seek(dice.randrange(os.path.getsize(_database(folder)) // 4096) * 4096)
        file.write(dice.randbytes(4096))


def _flipped(folder: str, _other: str, dice: random.Random) -> None:
    with open(_database(folder), "r+b") as file:
        at = dice.randrange(os.path.getsize(_database(folder)))
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << dice.randrange(8)]))


def _swapped(folder: str, other: str, _dice: random.Random) -> None:
    shutil.rmtree(folder)
    shutil.copytree(other, folder)


def _swapped_file(folder: str, other: str, _dice: random.Random) -> None:
    shutil.copyfile(_database(other), _database(folder))


def _pointer(folder: str, _other: str, dice: random.Random) -> None:
    with open(os.path.join(folder, "current"), "wb") as file:
        file.write(dice.randbytes(dice.randrange(40)))


def _journal(folder: str, _other: str, dice: random.Random) -> None:
    for suffix in ("-wal", "-shm", "-journal"):
        with open(_database(folder) + suffix, "wb") as file:
            file.write(dice.randbytes(5000))


HARM: dict[str, Callable[[str, str, random.Random], None]] = {
    "deleted": lambda folder, _other, _dice: shutil.rmtree(folder),
    "its file deleted": lambda folder, _other, _dice: os.remove(_database(folder)),
    "cut": _cut,
    "the last page cut": _cut_a_little,
    "a page overwritten": _overwritten,
    "a bit flipped": _flipped,
    "that of another root": _swapped,
    "the file of another root": _swapped_file,
    "its pointer garbled": _pointer,
    "a journal of noise": _journal,
}


_SLY = ("a bit flipped", "a page overwritten")
"""Return the damage that leaves a page looking valid."""


def _files(root: str) -> dict[str, bytes]:
    """Return the bytes of all files except derived ones."""
    found = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != ".holdfast"]
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), root)
            found[path] = _read(root, path)
    return found


def _read(root: str, path: str) -> bytes:
    with open(os.path.join(root, path), "rb") as file:
        return file.read()


def _write(root: str, path: str, data: bytes) -> None:
    with open(os.path.join(root, path), "wb") as file:
        file.write(data)
