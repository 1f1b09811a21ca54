"""YAML, JSON and TOML that exhaust time or memory, in every place where Holdfast reads such text.

Each bomb is put beside good records, in a worker with limited memory. Holdfast must read it as data or refuse it with
an error of its own. The good records must still be found, and `verify` must pass.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import holdfast
from holdfast.cli.main import main as command
from holdfast.errors import HoldfastError
from holdfast.memories.cold import named
from holdfast.model.settings import load
from holdfast.roots import make_root
from prove.harness import Row, Run
from prove.hostile import Tally, ask, at_most, example, given, no_longer_than

_MEGABYTES = 1_024
_SECONDS = 30
_GOOD = "a good record"
_WIDE, _DEEP = 9, 100_000

_laughs = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * _WIDE)}]\n" for n in range(1, 12))
YAML: dict[str, str] = {
    "deep lists": "a: " + "[" * _DEEP + "]" * _DEEP,
    "aliases of aliases": f'a0: &a0 ["lol", "lol"]\n{_laughs}',
    "aliases of mappings": "a0: &a0 {x: y}\n" + "".join(f"a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}, r: *a{n - 1}}}\n" for n in range(1, 30)),
    "an alias of itself": "a: &a [*a]\n",
    "a merge of merges": "a0: &a0 {x: y}\n" + "".join(f"a{n}: &a{n}\n  <<: [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 30)),
    "deep lists without end": "a: " + "[" * _DEEP,
    "deep mappings": "a: " + "{b: " * 20_000 + "1" + "}" * 20_000,
    "deep by indent": "".join(f"{' ' * n}a:\n" for n in range(700)),
    "deep by dashes": "a: \n  " + "- " * 50_000 + "x\n",
    "the same key twice": "title: one\ntitle: two\n",
    "the same key a thousand times": "title: x\n" * 1_000,
    "a tag of Python": "a: !!python/object/apply:os.system ['touch /tmp/holdfast-was-here']\n",
    "a tag of Java": "a: !!javax.script.ScriptEngineManager [!!java.net.URL ['http://127.0.0.1/']]\n",
    "an unknown tag": "title: !thing x\n",
    "binary that is none": "a: !!binary '***'\n",
    "a set": "a: !!set {x, y}\n",
    "keys that are lists": "? [a, b]\n: c\n",
    "keys that are numbers": "1: a\n2.5: b\ntrue: c\nnull: d\n",
    "a huge number": f"a: {'9' * 100_000}\n",
    "a huge fraction": f"a: 0.{'9' * 100_000}\n",
    "a huge exponent": "a: 1e999999999\nb: -.inf\nc: .nan\n",
    "a number in base 60": "a: " + ":".join(["59"] * 10_000) + "\n",
    "half a character": 'a: "\\ud800"\n',
    "a character too far": 'a: "\\U00110000"\n',
    "control characters": 'a: "\\0\\a\\e\\x7f"\n',
    "a date that is none": "date: 9999-99-99\ncreated: 0000-00-00T99:99:99Z\n",
    "a long key": f"{'k' * 100_000}: v\n",
    "many keys": "".join(f"k{n}: v\n" for n in range(10_000)),
    "many documents": "a: 1\n...\n---\nb: 2\n",
    "directives": "%YAML 9.9\n%TAG ! tag:evil,2026:\n",
    "anchors alone": "".join(f"a{n}: &x{n}\n" for n in range(5_000)),
    "a quote without end": 'a: "' + "x" * 100_000,
    "a block of text without end": "a: |\n" + "  x\n" * 20_000,
    "comments alone": "# x\n" * 20_000,
    "tabs": "a:\n\t- b\n",
    "nothing but colons": ": : : :\n" * 1_000,
    "more than fits": "a: " + "x" * 2_000_000 + "\n",
}  # fmt: skip
JSON: dict[str, str] = {
    "deep lists": '{"text": ' + "[" * _DEEP + "]" * _DEEP + "}",
    "deep lists without end": '{"text": ' + "[" * _DEEP,
    "deep mappings": '{"text": ' + '{"a": ' * 50_000 + "1" + "}" * 50_000 + "}",
    "just deep enough to hurt": '{"text": "x", "a": ' + "[" * 900 + "]" * 900 + "}",
    "NaN": '{"text": NaN}',
    "Infinity": '{"text": "x", "a": [Infinity, -Infinity]}',
    "half a character": '{"text": "\\ud800 and \\udfff"}',
    "halves the wrong way round": '{"text": "\\udc00\\ud800", "\\ud800": 1}',
    "a huge number": f'{{"text": "x", "a": {"9" * 100_000}}}',
    "a huge negative number": f'{{"text": "x", "a": -{"9" * 100_000}}}',
    "a huge number for an id": f'{{"id": {"9" * 100_000}, "text": "x"}}',
    "a huge number for a time": f'{{"time": {"9" * 100_000}, "text": "x"}}',
    "a huge fraction": f'{{"text": "x", "a": 0.{"1" * 100_000}}}',
    "a huge exponent": '{"text": "x", "a": 1e999999999, "time": -1e999}',
    "the same key twice": '{"text": "one", "text": "two", "id": "a", "id": "b"}',
    "the same key many times": "{" + ", ".join(['"text": "x"'] * 20_000) + "}",
    "many keys": "{" + ", ".join(f'"k{n}": {n}' for n in range(50_000)) + "}",
    "a long key": f'{{"{"k" * 1_000_000}": 1, "text": "x"}}',
    "many objects": '{"text": "x"}' * 20_000,
    "NULs": '{"text": "x"}' + "\0" * 100_000,
    "escapes": '{"text": "' + "\\u0000" * 50_000 + '"}',
    "a quote without end": '{"text": "' + "x" * 1_000_000,
    "brackets in a string": '{"text": "' + "[{" * 500_000 + '"}',
    "no object": "[" + "1," * 100_000 + "1]",
    "a date that is none": '{"text": "x", "time": "9999-99-99T99:99:99Z", "id": "ffffffff-ffff-7fff-bfff-ffffffffffff"}',
    "a time in the far future": '{"text": "x", "time": "99999999-01-01T00:00:00Z"}',
    "a line of many megabytes": '{"text": "' + "x" * (9 << 20) + '"}',
    "wrong types everywhere": '{"id": [], "time": {}, "text": 7, "session": [1], "workspace": {"a": 1}, "tags": "x", "hide": 3, "op": []}',
    "a reference that climbs": '{"text": "x", "ref": "../../../../etc/passwd"}',
}  # fmt: skip
TOML: dict[str, str] = {
    "deep lists": "a = " + "[" * _DEEP + "]" * _DEEP,
    "deep tables": "a = " + "{b = " * 20_000,
    "a deep name": "a" + ".a" * 50_000 + " = 1",
    "a huge number": "format = " + "9" * 100_000,
    "a huge fraction": "format = 0." + "9" * 100_000,
    "a huge number for a limit": "[limits]\nlock_seconds = " + "9" * 4_000,
    "a huge exponent": "[limits]\nlock_seconds = 1e999999",
    "the same key twice": "format = 1\nformat = 1",
    "many tables": "".join(f"[t{n}]\n" for n in range(20_000)),
    "half a character": 'a = "\\ud800"',
    "a quote without end": 'a = """' + "x" * 500_000,
    "a date that is none": "a = 9999-99-99T99:99:99Z",
    "wrong types": "paths = 1\nlimits = []\nsearch = 'x'\nchat = 1.5",
    "NULs": "a = 1\0",
    "more than fits": "#" * (2 << 20),
}
_DOCUMENTS = (
    "resources/workspaces/w/_notes/bomb.md", "resources/workspaces/w/OVERVIEW.md", "resources/workspaces/w/_skills/bomb/SKILL.md",
    "resources/workspaces/w/_plans/260101-bomb.md", "resources/workspaces/w/_states/bomb-12345678.md", "agent/rules/common/bomb.md",
    "user/memory/MEMORY.md", "user/memory/workspaces/w/decisions.md",
)  # fmt: skip
_LOGS = (
    "user/memory/history.jsonl", "user/memory/semantic.jsonl", "user/memory/procedural.jsonl", "user/memory/jobs.jsonl",
    "user/memory/sessions/bomb-12345678/episodic.jsonl", "user/memory/sessions/bomb-12345678/entries.jsonl", "user/memory/writes/2026-01.jsonl",
    "user/memory/traces/w/2026-01.jsonl", "agent-transcripts/bomb.jsonl", "resources/workspaces/w/_states/ledger.jsonl",
)  # fmt: skip


def campaign(run: Run) -> Iterator[Row]:
    with run.folder("bombs") as base:
        for name in _PLACES:
            share = run.size(1, 18)  # the small size tries one in eighteen
            tally = ask(run, "from prove import bombs; bombs.work()", base, name, share,
                        env={**os.environ, "HOLDFAST_SEARCH_EMBEDDER": "none", "XDG_CONFIG_HOME": base})  # fmt: skip
            yield tally.row(f"bombs in {name}, {_MEGABYTES} MB of memory")


def work() -> None:
    """Try, in a worker, the bombs of one place."""
    at_most(_MEGABYTES)
    root, place, share = os.path.join(given(1), given(2)), given(2), int(given(3))
    os.makedirs(root)
    make_root(root)
    with holdfast.open(root) as memory:
        memory.put("overview", "about", title="w")
        for kind in ("note", "message", "episode", "decision"):
            memory.put(kind, f"{_GOOD}, a {kind}", title="Good")
    tally = Tally()
    _PLACES[place](root, tally, share)
    tally.check(not os.path.exists("/tmp/holdfast-was-here"), "a tag was run")
    tally.tell()


def _documents(root: str, tally: Tally, share: int) -> None:
    cases = [(path, name) for path in _DOCUMENTS for name in YAML]
    for path, name in cases[::share]:
        with _planted(root, path, f"---\n{YAML[name]}\n---\n\nThe text below.\n".encode()):
            _look(root, tally, f"{name} in {path}", path)


def _logs(root: str, tally: Tally, share: int) -> None:
    cases = [(path, name) for path in _LOGS for name in JSON]
    for path, name in cases[::share]:
        line = json.dumps({"text": _GOOD, "role": "user", "content": _GOOD})
        with _planted(root, path, f"{line}\n{JSON[name]}\n{line}\n".encode(errors="surrogatepass")):
            _look(root, tally, f"{name} in {path}", path)


def _settings(root: str, tally: Tally, share: int) -> None:
    for name, text in list(TOML.items())[::share]:
        with _planted(root, "holdfast.toml", text.encode()):
            tally.attempt(f"{name} in the settings", lambda: holdfast.open(root).close())
        tally.attempt(f"{name} as settings", lambda text=text: load(text))  # type: ignore[misc]
    _look(root, tally, "after all settings", "")


def _imports(root: str, tally: Tally, share: int) -> None:
    source = os.path.join(os.path.dirname(root), "source.jsonl")
    for name, text in list(JSON.items())[:: max(1, share // 2)]:
        with open(source, "wb") as file:
            file.write(f"{text}\n".encode(errors="surrogatepass"))
        with holdfast.open(root) as memory:
            for what in ("claude-code", "codex", "jsonl"):
                with no_longer_than(_SECONDS):
                    tally.attempt(f"{name} as {what}", lambda what=what: memory.transcripts.bring(what, named(source)))  # type: ignore[misc]
    _look(root, tally, "after all imports", "")


def _arguments(root: str, tally: Tally, share: int) -> None:
    with holdfast.open(root) as memory:
        tools = list(memory.tools.registry.tools.values())
        cases = [(tool, name, param) for name in VALUES for tool in tools for param in tool.params]
        for tool, name, param in cases[:: share * 8]:
            needed = {each.name: example(each.schema) for each in tool.params.values() if each.required}
            with no_longer_than(_SECONDS):
                told = tally.attempt(
                    f"{name} for {tool.name}.{param}",
                    lambda tool=tool, name=name, param=param, needed=needed: memory.call(  # type: ignore[misc]
                        tool.name, needed | {param: VALUES[name]()}, {"workspaceId": "w", "sessionId": "s"}
                    ),
                )
            error = str(told.get("error", "")) if isinstance(told, dict) else ""
            tally.check("unexpectedly" not in error, f"{name} for {tool.name}.{param}: {error}")
    _look(root, tally, "after all arguments", "")


def _deep(inside: Any = "x") -> Any:
    for _ in range(5_000):
        inside = [inside]
    return inside


def _mapped(inside: Any = "x") -> Any:
    for _ in range(5_000):
        inside = {"a": inside}
    return inside


VALUES: dict[str, Callable[[], Any]] = {
    "a deep list": _deep,
    "a deep mapping": _mapped,
    "a list of itself, nearly": lambda: [[_deep()] * 10] * 10,
    "a huge number": lambda: 10**5_000,
    "NaN": lambda: float("nan"),
    "infinity": lambda: float("-inf"),
    "half a character": lambda: "\ud800",
    "half a character in a mapping": lambda: {"\udfff": "\ud800"},
    "a long text": lambda: "x" * (3 << 20),
    "many values": lambda: ["x"] * 200_000,
    "many names": lambda: {f"k{number}": number for number in range(50_000)},
    "NULs": lambda: "\0" * 1_000,
    "bytes": lambda: b"\xff\xfe",
    "an object": object,
    "nothing": lambda: None,
    "YAML": lambda: YAML["aliases of aliases"],
    "front matter": lambda: f"---\n{YAML['aliases of mappings']}---\n",
    "many lines": lambda: "\n" * 200_000,
}


def _commands(root: str, tally: Tally, share: int) -> None:
    """Pass such JSON on the command line, each in a forked process."""
    texts = {name: text for name, text in JSON.items() if len(text) < 120_000 and "\0" not in text}
    doors: tuple[tuple[str, ...], ...] = (
        ("call", "recall", "{}"), ("put", "note", "x", "--title", "T", "--field", "a={}"),
        ("mind", "append", "episodic", "{}"), ("search", "{}"),
    )  # fmt: skip
    cases = [(name, door) for name in texts for door in doors]
    for name, door in cases[::share]:
        words = [word.replace("{}", texts[name]) for word in door]
        code, said = forked([*words, "--root", root])
        tally.answered()
        tally.check(code in range(10), f"{name} for {door[0]}: exit {code}: {said[-300:]}")
        tally.check("Traceback" not in said, f"{name} for {door[0]}: {said[-300:]}")
    _look(root, tally, "after all commands", "")


def forked(words: list[str]) -> tuple[int, str]:
    """Run the command line in a fork of this process; return its exit code and its output."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(reading)
        sys.argv = ["holdfast", *words]
        code = 70
        try:
            command()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
        except BaseException as error:
            os.write(2, f"Traceback: {type(error).__name__}: {error}"[:1000].encode("utf-8", "replace"))
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


class _planted:
    """Write a file for a while; the earlier content is restored afterwards."""

    def __init__(self, root: str, path: str, data: bytes) -> None:
        self._path, self._data = os.path.join(root, path), data
        self._before: bytes | None = None

    def __enter__(self) -> None:
        if os.path.exists(self._path):
            with open(self._path, "rb") as file:
                self._before = file.read()
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with open(self._path, "wb") as file:
            file.write(self._data)

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            os.unlink(self._path)
        else:
            with open(self._path, "wb") as file:
                file.write(self._before)


def _look(root: str, tally: Tally, what: str, path: str) -> None:
    """Open the memory and read everything; the good records must be found."""
    with no_longer_than(_SECONDS):
        tally.attempt(what, lambda: _ask_for_everything(root, tally, what, path))


def _ask_for_everything(root: str, tally: Tally, what: str, path: str) -> None:
    with holdfast.open(root) as memory:
        found = {hit.record.text for hit in memory.find("good record", limit=100)}
        for kind in ("note", "message", "episode", "decision"):
            replaced = (kind == "message" and "history" in path) or (kind == "decision" and "decisions" in path)
            tally.check(replaced or f"{_GOOD}, a {kind}" in found, f"{what}: the good {kind} is not found")
        for tool, more in _TOOLS:
            reply = memory.call(tool, more, {"workspaceId": "w", "sessionId": "bomb"})
            tally.check("unexpectedly" not in str(reply.get("error")), f"{what}: {tool}: {reply.get('error')}")
        memory.prompt(workspace="w")
        report = memory.verify()
        tally.check(report.sound or bool(report.damage), f"{what}: unsound, and nothing is said")
        if path:
            with contextlib.suppress(HoldfastError):
                memory.get(path)


_TOOLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("loadWorkspace", {"name": "w"}), ("workspace_context", {"tier": "T2"}), ("listStates", {}), ("retrieve_plans", {}), ("cron_list", {}),
    ("get_memory", {"compartment": "session"}), ("memory_stats", {}), ("search_history", {"query": "good"}), ("recall", {"query": "good record"}),
    ("searchMemory", {"query": "good", "workspaceId": "w"}), ("memory_recall", {"key": "x"}),
)  # fmt: skip
_PLACES: dict[str, Callable[[str, Tally, int], None]] = {
    "documents": _documents, "logs": _logs, "settings": _settings, "imports": _imports, "arguments": _arguments, "commands": _commands,
}  # fmt: skip
