"""Odd queries: random Unicode, the operators of FTS5, quotes, NULs, lone surrogates.

Each goes through `find` and through tools that search. The result must be a list, or an error of ours.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import holdfast
from holdfast.recall.answers import Found
from holdfast.roots import make_root
from prove.harness import Row, Run
from prove.hostile import Tally, ask, given, no_longer_than

_WORDS = (
    "deploy",
    "Tuesday",
    "wortwörtlich",
    "日本語",
    "расписание",
    "العربية",
    "naïve",
    "C++",
    "src/auth.py",
    "e\u0301",
)
_OPERATORS = (
    "AND", "OR", "NOT", "NEAR", "NEAR(", "NEAR(a b, 5)", "^", "*", "+", "-", "(", ")", "{", "}", ":", '"', '""', "'", "''",
    ";", "--", "/*", "\\", "title:", "text :", "{title text}:", "rowid:", "- title:", "a*", "^a", '"a" *', "tag:", "kind:", "kind:note",
    "tag:\x00", "matchinfo", "highlight(", "?1", "@x", "$x", "%", "_", "0x1F", "1e999", "NULL", "records", "MATCH 'x'", "' OR 1=1 --",
)  # fmt: skip
_ODD = (
    "\0", "\x01", "\x1f", "\x7f", "\x85", "\u200b", "\u202e", "\u2066", "\ufeff", "\ufffe", "\U000e0041", "\ud800", "\udfff", "\udcff",
    "\U0001f600", "\U0001f469\u200d\U0001f4bb", "\u0301", "\u0e33", "\u1160", "\uff0a", "\uff02", "ß", "İ", "ǅ", "\u0345", "\u2028",
)  # fmt: skip
_FILTERS: tuple[tuple[str, Callable[[str], dict[str, Any]]], ...] = (
    ("tags", lambda text: {"tags": (text,)}),
    ("session", lambda text: {"session": text}),
    ("scope", lambda text: {"scope": text}),
    ("kinds", lambda text: {"kinds": (text,)}),
    ("since", lambda text: {"since": text}),
    ("until", lambda text: {"until": text}),
    ("asked", lambda text: {"asked": text}),
)
_TOOLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("recall", {}),
    ("searchMemory", {"workspaceId": "default"}),
    ("search_history", {}),
    ("memory_search", {"type": "episodic"}),
)
_SECONDS = 10


def campaign(run: Run) -> Iterator[Row]:
    with run.folder("queries") as base:
        for door, whole, quick in (("find", 16_000, 600), ("filters", 2_000, 100), ("tools", 4_000, 160)):
            tally = ask(run, "from prove import queries; queries.work()", base, door, run.seed, run.size(whole, quick),
                        env={**os.environ, "HOLDFAST_SEARCH_EMBEDDER": "none"})  # fmt: skip
            yield tally.row(f"odd queries: {door}")


def work() -> None:
    """Run, in a worker, the given number of queries."""
    root, door, chance = os.path.join(given(1), given(2)), given(2), random.Random(f"{given(3)} {given(2)}")
    os.makedirs(root)
    make_root(root)
    tally = Tally()
    with holdfast.open(root) as memory:
        _fill(memory)
        for number in range(int(given(4))):
            text = query(chance)
            with no_longer_than(_SECONDS):
                _DOORS[door](memory, tally, text, number)
        tally.check(len(memory.find("deploy")) > 0, "a good question finds nothing any more")
        tally.check(memory.verify().sound, "the store is not sound any more")
    tally.tell()


def query(chance: random.Random) -> str:
    """Return an odd query."""
    pieces = [_piece(chance) for _ in range(chance.choice((1, 1, 2, 3, 5, 8, 20)))]
    text = chance.choice(("", " ", " ", "\n", "\t")).join(pieces)
    if chance.random() < 0.01:
        text *= chance.choice((50, 500, 5_000))
    return text[: 1 << 20]


def _piece(chance: random.Random) -> str:
    match chance.randrange(8):
        case 0 | 1:
            return chance.choice(_WORDS)
        case 2 | 3:
            return chance.choice(_OPERATORS)
        case 4:
            return chance.choice(_ODD) * chance.choice((1, 1, 2, 40))
        case 5:
            return "".join(chr(chance.randrange(0x110000)) for _ in range(chance.randrange(1, 12)))
        case 6:
            return "".join(chance.choice('"*()^:-+{}') for _ in range(chance.randrange(1, 30)))
        case _:
            return chance.choice(_WORDS) + chance.choice(_OPERATORS) + chance.choice(_ODD)


def _find(memory: holdfast.Memory, tally: Tally, text: str, number: int) -> None:
    asked = {"associate": True} if number % 2 else {}
    found = tally.attempt(f"find {text!r}", lambda: memory.find(text, limit=5, **asked))  # type: ignore[arg-type]
    if isinstance(found, Found):
        tally.check(isinstance(list(found), list), f"find {text!r} gives {type(found).__name__}")


def _filters(memory: holdfast.Memory, tally: Tally, text: str, number: int) -> None:
    name, filtered = _FILTERS[number % len(_FILTERS)]
    tally.attempt(f"find by {name} {text!r}", lambda: list(memory.find("deploy", limit=5, **filtered(text))))


def _tools(memory: holdfast.Memory, tally: Tally, text: str, number: int) -> None:
    name, more = _TOOLS[number % len(_TOOLS)]
    reply = tally.attempt(f"{name} {text!r}", lambda: memory.call(name, {"query": text, **more}))
    if isinstance(reply, dict):
        tally.check("unexpectedly" not in str(reply.get("error")), f"{name} {text!r}: {reply.get('error')}")
        shown: Any = next((reply[key] for key in ("hits", "results", "entries", "data") if key in reply), [])
        tally.check("error" in reply or isinstance(shown, list | dict | str), f"{name} {text!r} gives {reply!r}")


_DOORS = {"find": _find, "filters": _filters, "tools": _tools}


def _fill(memory: holdfast.Memory) -> None:
    for number in range(40):
        words = f'We deploy on Tuesday, number {number}: {_WORDS[number % len(_WORDS)]} AND NOT NEAR a:b "quoted"'
        memory.put("note", words, title=f"Deploys {number}", tags=["ops"])
        memory.put("episode", words, session="monday")
        memory.put("message", words)
