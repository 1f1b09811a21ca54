"""Fuzzing: the parsers of front matter, entries, log lines, queries and protocol frames, each with its invariants.

A target accepts any bytes and raises only if Holdfast is wrong. `tests/test_fuzzing.py` runs the targets with
hypothesis over the corpus in `prove/corpus`. `scripts/prove --fuzz SECONDS` runs them with atheris, if it is installed,
which finds new inputs by coverage. New inputs are saved in `.prove/corpus`, failing ones in `.prove`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.formats import jsonl, markdown, sections
from holdfast.mcp import server, stdio
from holdfast.model import queries

CORPUS = os.path.join(os.path.dirname(__file__), "corpus")


def _front_matter(data: bytes) -> None:
    """Any document can be read; an edit sets its field and keeps the body, or is refused. An empty field is absent."""
    page = markdown.parse(data)
    with contextlib.suppress(HoldfastError):
        after = markdown.parse(markdown.edit(data, {"title": "a: 'b' #c"}))
        assert after.fields["title"] == "a: 'b' #c"
        assert after.body == page.body
        assert _without_title(after.fields) == _without_title(page.fields)
    if not page.fault:
        with contextlib.suppress(HoldfastError):
            given = {name: value for name, value in page.fields.items() if value is not None}
            assert _json(markdown.parse(markdown.render(given, page.body)).fields) == _json(given)


def _without_title(fields: dict[str, Any]) -> str:
    return _json({name: value for name, value in fields.items() if name != "title"})


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _entries(data: bytes) -> None:
    """Entries are parts of their text with unique names; a new entry does not change them."""
    text = data.decode("utf-8", "replace")
    found = sections.parse(text)
    names = [entry.anchor for entry in found]
    assert len(names) == len(set(names))
    after = sections.parse(sections.add(text, sections.render("2026-01-02", "Added", "text")))
    assert [(entry.anchor, entry.title, entry.text) for entry in after[:-1]] == [
        (entry.anchor, entry.title, entry.text) for entry in found
    ]
    assert (after[-1].title, after[-1].text) == ("Added", "text")


def _lines(data: bytes) -> None:
    """A line is a list of objects or an error; objects can be written and read again, with the same identity."""
    found = jsonl.parse(data)
    assert isinstance(jsonl.keys(data), tuple)
    for value in found if isinstance(found, list) else ():
        again = jsonl.render(value)
        assert b"\n" not in again[:-1]
        read = jsonl.parse(again)[0]
        assert isinstance(read, dict)
        assert _json(read) == _json(value)
        assert jsonl.identity(read, "time") == jsonl.identity(value, "time")


def _queries(data: bytes) -> None:
    """Every text is a query of bounded size, and no word of it is syntax."""
    terms = queries.parse(data.decode("utf-8", "replace"))
    assert len(terms.words) <= queries.MAX_WORDS
    for run in (*terms.words, *terms.phrases):
        assert run
        assert all(word and not set(word) & set('"\0') and not any(map(str.isspace, word)) for word in run)


def _frames(data: bytes) -> None:
    """Every line of a client is a message, or causes an error response."""
    for line in data.split(b"\n"):
        for whole in (True, False):
            try:
                message = stdio.parse(line, whole)
                conversation = stdio.Dialogue(lambda *_: {}, frozenset())
                identifier = message.id if isinstance(message.id, int | str) else None
                sent = stdio.result_message(identifier, conversation.handle(str(message.method), message.params or {}))
            except server.ProtocolError as error:
                sent = stdio.error_message(stdio.likely_id(line), error)
            assert json.loads(sent)["jsonrpc"] == "2.0"


TARGETS: dict[str, Callable[[bytes], None]] = {
    "front_matter": _front_matter, "entries": _entries, "lines": _lines, "queries": _queries, "frames": _frames,
}  # fmt: skip


def seeds(target: str) -> list[bytes]:
    """Return the corpus of a target."""
    folder, found = os.path.join(CORPUS, target), []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            found.append(file.read())
    return found


def fuzz(seconds: int) -> int:
    """Run each target with atheris for some seconds; return how many failed."""
    failed = 0
    for target in TARGETS:
        kept = os.path.join(".prove", "corpus", target)
        os.makedirs(kept, exist_ok=True)
        words = [sys.executable, "-m", "prove.fuzz", target, kept, os.path.join(CORPUS, target)]
        words += [f"-max_total_time={seconds}", "-max_len=4096", "-artifact_prefix=.prove/", "-print_final_stats=1"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        said = [line for line in done.stderr.splitlines() if "number_of_executed_units" in line or "Error" in line]
        print(
            f"{target}: {'FAILED' if done.returncode else 'fine'} {'; '.join(said) or done.stderr[-500:]}", flush=True
        )
        failed += bool(done.returncode)
    return failed


def main() -> None:
    """Run one target in a process of its own, which atheris ends."""
    import importlib

    atheris: Any = importlib.import_module("atheris")
    target = TARGETS[sys.argv.pop(1)]
    for module in (jsonl, markdown, sections, stdio, queries):
        for name, value in vars(module).items():
            if callable(value) and getattr(value, "__module__", "") == module.__name__ and hasattr(value, "__code__"):
                setattr(module, name, atheris.instrument_func(value))
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
