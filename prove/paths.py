"""Names that try to escape the root, through every interface that accepts one, and folders that become links.

Files outside the root contain a text that exists nowhere else. No byte of them may change, no file may appear beside
them, nothing may be read from them (inotify reports it), and no answer may contain that text.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import socket
import stat
import struct
import subprocess
import unicodedata
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import holdfast
from holdfast.errors import AlreadyExists, HoldfastError
from holdfast.memories.cold import named
from holdfast.model.names import same
from holdfast.roots import make_root
from prove.bombs import forked
from prove.harness import Row, Run, is_root
from prove.hostile import Tally, arguments, ask, contents, example, given, no_longer_than

CANARY = "canary-7f3a9c-outside"
_SECONDS = 30
_ENOUGH = 10
_NAMES = (
    "secret.md",
    "secret.jsonl",
    "OVERVIEW.md",
    "SKILL.md",
    "decisions.md",
    "history.jsonl",
    "sub/deep.md",
    "_notes/note.md",
    "_plans/260101-x.md",
)
_LOOKALIKES = "\u2215\u2044\u29f8\uff0f\u2024\uff0e\u2025\ufe52\u3002\uff3c\u2216\ufe68"


def campaign(run: Run) -> Iterator[Row]:
    with _ground(run, "paths") as base, _Watched(os.path.join(base, "root-outside")) as watched:
        for door in ("library", "tools", "command line", "imports"):
            tally = ask(run, "from prove import paths; paths.work()", base, door, run.seed, run.size(1, 150),
                        env=_environment(base))  # fmt: skip
            yield watched.checked(tally, door == "imports").row(f"path tricks: {door}")
        yield watched.checked(
            ask(run, "from prove import paths; paths.twins()", base, run.size(400, 12), env=_environment(base))
        ).row("nearly equal titles")
    with _ground(run, "races") as base, _Watched(os.path.join(base, "root-outside")) as watched:
        yield watched.checked(_races(run, base)).row("folders that become links during writes")


def _environment(base: str) -> dict[str, str]:
    return {
        **os.environ,
        "HOLDFAST_SEARCH_EMBEDDER": "none",
        "HOME": base,
        "XDG_CONFIG_HOME": os.path.join(base, "config"),
    }


# the world to attack


@contextlib.contextmanager
def _ground(run: Run, name: str) -> Iterator[str]:
    """A folder with everything to attack; special files are removed before it may be kept."""
    with run.folder(name) as base:
        try:
            _prepare(base)
            yield base
        finally:
            for at, _, files in os.walk(base):
                for file in files:
                    path = os.path.join(at, file)
                    if not stat.S_ISREG(os.lstat(path).st_mode) and not os.path.islink(path):
                        os.unlink(path)


def _prepare(base: str) -> None:
    """Make a root, a folder outside whose name begins with the root's, and links, FIFOs, sockets and devices inside."""
    outside, root = os.path.join(base, "root-outside"), os.path.join(base, "root")
    for name in _NAMES:
        path = os.path.join(outside, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        line = json.dumps({"text": CANARY, "content": CANARY, "role": "user", "key": "x"})
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                f"{line}\n"
                if name.endswith("l")
                else f"---\ntitle: {CANARY}\ndescription: {CANARY}\n---\n\n### [2026-01-01] {CANARY}\n\n{CANARY}\n"
            )
    make_root(root)
    with holdfast.open(root) as memory:
        memory.put("overview", "about", title="w")
        memory.put("note", "a good note", title="Good", scope="w")
        memory.put("episode", "a good episode", session="s")
    places = ("resources/workspaces", "resources/workspaces/w", "resources/workspaces/w/_notes", "resources/workspaces/w/_skills",
              "resources/workspaces/w/_states", "user/memory", "user/memory/sessions", "user/memory/workspaces", "user/memory/traces",
              "agent/rules/common", "agent-transcripts", "user/memory/writes")  # fmt: skip
    for place in places:
        folder = os.path.join(root, place)
        os.makedirs(folder, exist_ok=True)
        os.symlink(outside, os.path.join(folder, "linked"))
        os.symlink(
            os.path.join("../" * (place.count("/") + 2) + "root-outside", "secret.md"),
            os.path.join(folder, "linked.md"),
        )
        os.symlink(os.path.join(outside, "secret.jsonl"), os.path.join(folder, "linked.jsonl"))
        os.symlink("/", os.path.join(folder, "top"))
        os.symlink("loop", os.path.join(folder, "loop"))
        os.mkfifo(os.path.join(folder, "fifo.md"))
        os.mkfifo(os.path.join(folder, "fifo.jsonl"))
        with socket.socket(socket.AF_UNIX) as wire, contextlib.suppress(OSError):
            wire.bind(os.path.join(folder, "sock.md"))
        if is_root():
            with contextlib.suppress(OSError):
                os.mknod(os.path.join(folder, "zero.md"), stat.S_IFCHR | 0o600, os.makedev(1, 5))


def tricks(base: str) -> list[str]:
    """Return names that must not lead anywhere."""
    outside = os.path.join(base, "root-outside")
    climbs = ["..", "../..", "../root-outside", "../root-outside/secret.md", "../../root-outside/secret", "../../../root-outside/SKILL.md",
              "../" * 20 + outside.lstrip("/"), "w/../../../../root-outside", "w/../w", "./w", "w/.", "w/..", "w//x", "/", "//", ".", "...", "....//",
              "..\\root-outside\\secret.md", "..\\..\\x", "w\\..\\..\\x", outside, f"{outside}/secret.md", f"/{outside}/secret.md", f"file://{outside}/secret.md",
              "~", "~/root-outside/secret.md", "~root", "$HOME/root-outside/secret.md", "%2e%2e/%2e%2e/root-outside", "%2e%2e%2froot-outside%2fsecret.md",
              "..%2f..%2froot-outside", "..%c0%af..", "%00", "..%5c..", "\0", "w\0", "w\0/../../root-outside", "../root-outside\0.md",
              "/etc/passwd", "/proc/self/environ", "/proc/self/root", "/proc/self/fd/0", "/dev/stdin", "/dev/zero", "linked", "linked/secret.md",
              "linked.md", "linked/_notes/note.md", "w/linked", "w/_notes/linked.md", "w/_skills/linked", "top", "top/etc/passwd", "loop", "loop/x",
              "fifo.md", "w/_notes/fifo.md", "sock.md", "zero.md", "w/_notes/zero.md", ".git", ".git/config", ".git/hooks/post-commit", ".GIT/config",
              ".gIt/x", "git~1", ".git ", ".git.", ".git\u200c/config", ".holdfast", ".holdfast/index.db", "holdfast.toml", "../root/holdfast.toml", ".gitattributes",
              "CON", "con.md", "PRN", "AUX.txt", "NUL", "COM1", "LPT9.md", "CONIN$", "a:b", "a::$DATA", "C:\\x", "C:x", "\\\\server\\share\\x", "\\\\?\\C:\\x",
              "x.", "x..", "x ", " x", "x. .", " ", "  ", "\t", "\n", "x\n", "a\nb", "a\rb", "\x7f", "\x1b[31m", "-", "--", "-rf", "--root=/", "*", "?", "|id", ";id", "$(id)", "`id`",
              "x" * 255, "x" * 256, "x" * 5_000, "é" * 128, "e\u0301" * 90, "\U0001f600" * 64, "é", "e\u0301", "É", "E\u0301", "ﬁ", "ss", "ß", "ẞ", "İ", "i\u0307", "ı",
              "\u202e../x", "\u200b", "\ufeff", "\u2066x", "\ud800", "\udcff", "\udfffx", "a#b", "a#../../x", "#", "a?b", "x.md#../secret", "_", "__", "_x", "_skills", "_notes/x"]  # fmt: skip
    climbs += [f"..{char}..{char}root-outside{char}secret.md" for char in _LOOKALIKES]
    climbs += [f"{char}{char}/root-outside" for char in _LOOKALIKES]
    forms = ["{}", "{}.md", "w/{}", "resources/workspaces/{}", "resources/workspaces/w/_notes/{}", "user/memory/{}"]
    return list(dict.fromkeys(form.format(name) for form in forms for name in climbs))


# interfaces


def work() -> None:
    """Try, in a worker, every trick on one interface."""
    base, door, chance, share = given(1), given(2), random.Random(given(3)), int(given(4))
    tally = Tally()
    every = tricks(base)
    chance.shuffle(every)
    tally.check(len(every) >= 500, f"there are {len(every)} tricks only")
    _DOORS[door](base, every, share, tally)
    tally.tell()


def _library(base: str, every: list[str], share: int, tally: Tally) -> None:
    with holdfast.open(os.path.join(base, "root")) as memory:
        doors = _calls(memory)
        for number, trick in enumerate(every[::share]):
            for name, door in list(doors.items())[number % 4 :: 4]:
                _try(tally, f"{name} {trick!r}", partial(door, trick))
            if number % 20 == 0:
                _try(
                    tally,
                    "find everything",
                    lambda: [hit.record for hit in memory.find("canary outside good", limit=100)],
                )


def _calls(memory: holdfast.Memory) -> dict[str, Callable[[str], Any]]:
    """Every function of the library that accepts a name, title, id, path, workspace, session, channel or skill."""
    scope = memory.scopes.resolve("w")
    return {
        "put title": lambda text: memory.put("note", "x", title=text, scope="w"),
        "put entry": lambda text: memory.put("decision", "x", title=text, scope="w"),
        "put skill": lambda text: memory.put("skill", "x", title=text, scope="w", fields={"description": "d"}),
        "put overview": lambda text: memory.put("overview", "x", title=text),
        "put below": lambda text: memory.put("note", "x", title="T", scope=text),
        "put session": lambda text: memory.put("episode", "x", session=text),
        "put channel": lambda text: memory.put("message", "x", session=text, fields={"role": "user"}),
        "put key": lambda text: memory.put("fact", "x", key=text),
        "put document": lambda text: memory.put("document", "x", id=text),
        "put again": lambda text: memory.put(id=text, text="x", expect="0" * 32),
        "put op": lambda text: memory.put("message", "x", op_id=text),
        "get": memory.get,
        "hide": memory.hide,
        "undo": memory.undo,
        "related": memory.related,
        "count": memory.store.count,
        "backwards": lambda text: list(memory.backwards(text)),
        "problems": memory.store.problems,
        "find scope": lambda text: memory.find("canary", scope=text),
        "find session": lambda text: memory.find("canary", session=text),
        "find scope object": lambda text: memory.find("canary", scope=holdfast.Scope(workspace=text, session=text)),
        "tail": lambda text: memory.tail("episode", session=text),
        "tail scope": lambda text: memory.tail("decision", scope=text),
        "load workspace": memory.workspaces.load,
        "load state": lambda text: memory.states.load(scope, text),
        "load skill": lambda text: memory.skills.load(scope, text),
        "plan": memory.knowledge.plan,
        "topics": lambda text: memory.knowledge.topics(scope, [text]),
        "promote": memory.hot.promote,
        "promote into": lambda text: memory.hot.promote(f"resources/workspaces/w/_notes/{text}", into=text),
        "demote": lambda text: memory.hot.demote(text, "w"),
        "value": lambda text: memory.values.read(text, session="s"),
        "value of session": lambda text: memory.values.read("episodic", session=text),
        "mind": lambda text: memory.mind(text).append("episodic", "x"),
        "run": lambda text: _run(memory, text),
        "prompt": lambda text: memory.prompt(workspace=text, session=text, run=text),
        "traces": lambda text: memory.traces.last(5, holdfast.Scope(workspace=text)),
        "job": lambda text: memory.jobs.add(text, "x", "every 60", channel=text),
        "exchange": lambda text: memory.chat.persist_exchange(text, text, "hello", "hi"),
    }  # fmt: skip


def _run(memory: holdfast.Memory, text: str) -> None:
    with memory.run(text, text) as run:
        run.save("run", "x")


def _tools(base: str, every: list[str], share: int, tally: Tally) -> None:
    """Every string that any tool accepts, by its schema, and every part of the context."""
    with holdfast.open(os.path.join(base, "root")) as memory:
        spots = [
            (tool, param)
            for tool in memory.tools.registry.tools.values()
            for param in [*tool.params, "workspaceId", "sessionId", "runId", "opId"]
        ]
        few = max(1, share // 4)
        for number, (tool, param) in enumerate(spots[::few]):
            for trick in every[number % 40 :: 40 * max(1, share // 8)]:
                context = {"workspaceId": "w", "sessionId": "s"}
                params = arguments(tool.schema)
                if param in tool.params:
                    params[param] = example(tool.params[param].schema, trick)
                else:
                    context[param] = trick
                shown = f"{tool.name}.{param} {trick!r}"
                reply = _try(tally, shown, partial(memory.call, tool.name, params, context))
                tally.check("unexpectedly" not in str(reply), f"{shown}: {reply}")


def _command_line(base: str, every: list[str], share: int, tally: Tally) -> None:
    root = os.path.join(base, "root")
    doors: tuple[tuple[str, ...], ...] = (
        ("get", "{}"), ("hide", "{}"), ("put", "note", "x", "--title", "{}", "--scope", "w"), ("put", "document", "x", "--id", "{}"),
        ("put", "episode", "x", "--session", "{}"), ("search", "canary", "--scope", "{}"), ("tail", "episode", "--session", "{}"),
        ("related", "{}"), ("lint", "{}"), ("hot", "promote", "{}"), ("hot", "demote", "{}"), ("workspace", "load", "{}"),
        ("skill", "load", "{}"), ("state", "load", "{}"), ("context", "--workspace", "{}", "--session", "{}"), ("value", "read", "{}"),
        ("why", "canary", "{}"), ("learnings", "archive", "{}"), ("overview", "{}"), ("plan", "list", "{}"),
    )  # fmt: skip
    usable = [trick for trick in every if "\0" not in trick and not trick.startswith("-")]
    for number, trick in enumerate(usable[:: max(4, share)]):
        for door in doors[number % 4 :: 4]:
            words = [word.replace("{}", trick) for word in door]
            code, said = forked([*words, "--root", root])
            tally.answered()
            tally.check(code in range(10) and "Traceback" not in said, f"{words}: exit {code}: {said[-300:]}")
            tally.check(CANARY not in said, f"{words} says what is outside")


def _imports(base: str, every: list[str], share: int, tally: Tally) -> None:
    """Sources whose files are links out of the named folder, FIFOs or sockets; their names are tricks too."""
    source = os.path.join(base, "source")
    os.makedirs(os.path.join(source, "sub"), exist_ok=True)
    for number, name in enumerate(("a.jsonl", "sub/b.jsonl", "c")):
        os.symlink(os.path.join(base, "root-outside", "secret.jsonl" if number < 2 else ""), os.path.join(source, name))
    os.mkfifo(os.path.join(source, "fifo.jsonl"))
    for trick in every[:: share * 2]:
        with contextlib.suppress(OSError, ValueError):
            folder = os.path.join(source, "sub")
            os.symlink(
                os.path.join(base, "root-outside", "history.jsonl"),
                os.path.join(folder, f"{trick.replace('/', '-')[:200]}.jsonl"),
            )
    root = os.path.join(base, "root")
    with holdfast.open(root) as memory:
        for what in ("claude-code", "codex", "jsonl"):
            with no_longer_than(_SECONDS):
                tally.attempt(f"import {what}", lambda what=what: memory.transcripts.bring(what, named(source)))  # type: ignore[misc]
        found = memory.find("canary", limit=100, kinds=("message", "transcript"))
        tally.check(
            CANARY not in str([hit.record for hit in found]), "what a link in the source leads to was brought in"
        )
        for trick in every[::share]:
            _try(tally, f"name {trick!r}", lambda trick=trick: len(named(os.path.join(source, "nowhere", trick))))  # type: ignore[misc]


def _try(tally: Tally, what: str, call: Callable[[], Any]) -> Any:
    """Try one trick; the answer must not contain the text from outside. After many problems, stop trying."""
    if tally.lost > _ENOUGH:
        return None
    with no_longer_than(_SECONDS):
        result = tally.attempt(what, call)
        if isinstance(result, HoldfastError):
            result = str(result)
        tally.check(CANARY not in repr(result), f"{what} tells what is outside")
    return result


_DOORS: dict[str, Callable[[str, list[str], int, Tally], None]] = {
    "library": _library, "tools": _tools, "command line": _command_line, "imports": _imports,
}  # fmt: skip


# nearly equal names


def twins() -> None:
    """Save records with nearly equal titles: each accepted one has a file of its own."""
    base, count = given(1), int(given(2))
    tally = Tally()
    chance = random.Random(count)
    stems = [trick for trick in tricks(base) if trick.strip() and len(trick) < 3_000]
    chance.shuffle(stems)
    titles = list(dict.fromkeys(form for stem in stems[: count // 6 + 1] for form in _forms(stem)))
    make_root(os.path.join(base, "twins"))
    with holdfast.open(os.path.join(base, "twins")) as memory:
        for kind, more in (
            ("note", {"scope": "w"}),
            ("plan", {"scope": "w"}),
            ("overview", {}),
            ("skill", {"scope": "w", "fields": {"description": "d"}}),
        ):
            kept: dict[str, tuple[str, str]] = {}
            seen: set[str] = set()
            for number, title in enumerate(titles):
                text = f"{kind} {number}"
                receipt = tally.attempt(f"{kind} {title!r}", partial(memory.put, kind, text, title=title, **more))  # type: ignore[arg-type]
                form = same(" ".join(title.split()))
                if isinstance(receipt, AlreadyExists) and kind != "skill":  # its folder has the given name
                    tally.check(form in seen, f"{kind}: {title!r} is refused for another title's file")
                seen.add(form)
                if receipt is not None and not isinstance(receipt, HoldfastError) and receipt.status == "stored":
                    place = unicodedata.normalize("NFD", receipt.path).casefold()
                    tally.check(place not in kept, f"{kind}: {title!r} and {kept.get(place)!r} share {receipt.path}")
                    kept[place] = (receipt.id, text)
            for identifier, text in kept.values():
                tally.check(memory.get(identifier).text.strip() == text, f"{kind} {identifier} holds another's text")
    tally.tell()


def _forms(title: str) -> list[str]:
    return [title, title.upper(), title.swapcase(), unicodedata.normalize("NFD", title), unicodedata.normalize("NFC", title), f"{title}.", f"{title} x",
            f"{title}\u200b", title + "y" * 60 + "1", title + "y" * 60 + "2"]  # fmt: skip


# races


def _races(run: Run, base: str) -> Tally:
    """Replace folders with links to the outside in a loop, while two processes write and one searches."""
    swapper = run.worker("from prove import paths; paths.swap()", base, env=_environment(base), stdin=subprocess.PIPE)
    count = run.size(1_500, 30)
    try:
        started = [
            run.worker("from prove import paths; paths.write()", base, number, count, env=_environment(base))
            for number in range(3)
        ]
        tallies = []
        for worker in started:
            out, told = worker.communicate(timeout=1_800)
            lines = out.strip().splitlines()
            tallies.append(
                Tally(**json.loads(lines[-1]))
                if lines and not worker.returncode
                else Tally(1, 0, 1, [f"a writer ended with {worker.returncode}: {told[-600:]}"])
            )
    finally:
        swaps = int(swapper.communicate(timeout=60)[0].strip() or 0)
    total = Tally(
        swaps,
        sum(each.acknowledged for each in tallies),
        sum(each.lost for each in tallies),
        [text for each in tallies for text in each.problems],
    )
    total.check(swaps > 100, f"the folders were swapped {swaps} times only")
    kept = ask(run, "from prove import paths; paths.kept()", base, env=_environment(base))
    total.lost += kept.lost
    total.problems += kept.problems
    return total


def swap() -> None:
    """Exchange folders of the root with links to the outside, until standard input ends; print how often."""
    base = given(1)
    outside, root = os.path.join(base, "root-outside"), os.path.join(base, "root")
    exchange = ctypes.CDLL(None, use_errno=True).renameat2
    pairs = []
    for number, place in enumerate(
        (
            "resources/workspaces/w/_notes",
            "user/memory/sessions",
            "user/memory/workspaces",
            "resources/workspaces/w",
            "user/memory",
        )
    ):
        link = os.path.join(base, f"link-{number}")
        os.symlink(outside, link)
        pairs.append((os.fsencode(os.path.join(root, place)), os.fsencode(link)))
    os.set_blocking(0, False)
    done = 0
    while _open(0):
        for one, other in pairs:
            for _ in range(2):  # an even number of exchanges restores each folder
                done += not exchange(-100, one, -100, other, 2)
    print(done)


def _open(fd: int) -> bool:
    try:
        return bool(os.read(fd, 1))
    except BlockingIOError:
        return True


def write() -> None:
    """Write and search in a tree whose folders disappear and return; record acknowledged writes."""
    base, number, count = given(1), int(given(2)), int(given(3))
    tally = Tally()
    kept = []
    with holdfast.open(os.path.join(base, "root")) as memory:
        for place in range(count):
            text = f"kept by {number}, {place}"
            doors: tuple[Callable[[], Any], ...] = (
                lambda text=text, place=place: memory.put("note", text, title=f"{number} {place}", scope="w"),  # type: ignore[misc]
                lambda text=text: memory.put("episode", text, session=f"race {number}"),  # type: ignore[misc]
                lambda text=text, place=place: memory.put("decision", text, title=f"{number} {place}", scope="w"),  # type: ignore[misc]
                lambda: [hit.record for hit in memory.find("canary kept", limit=20)],
                lambda: [problem.path for problem in memory.find("canary").problems],
            )
            result = _try(tally, f"write {place}", doors[(place + number) % len(doors)])
            if isinstance(result, holdfast.Receipt):
                kept.append((result.id, text))
    with open(os.path.join(base, f"kept-{number}.json"), "w", encoding="utf-8") as file:
        json.dump(kept, file)
    tally.tell()


def kept() -> None:
    """Check that every acknowledged write exists, now that the folders stay."""
    base = given(1)
    tally = Tally()
    with holdfast.open(os.path.join(base, "root")) as memory:
        for number in range(3):
            with open(os.path.join(base, f"kept-{number}.json"), encoding="utf-8") as file:
                for identifier, text in json.load(file):
                    found = tally.attempt(f"get {identifier}", partial(memory.get, identifier))
                    held = found.text.strip() if isinstance(found, holdfast.Record) else found
                    tally.check(held == text, f"{identifier} holds {held!r} instead of {text!r}")
    tally.tell()


# accesses outside


class _Watched:
    """A folder for which inotify reports reads and changes."""

    _WRITES = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
    _READS = 0x1
    _FOLDER = 0x40000000

    def __init__(self, folder: str) -> None:
        self._folder = folder
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = contents(folder)
        for at, _, _ in os.walk(folder):
            libc.inotify_add_watch(self._fd, os.fsencode(at), self._WRITES | self._READS)

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def checked(self, tally: Tally, may_read: bool = False) -> Tally:
        """Add accesses outside the root to a tally."""
        for mask, name in self._events():
            if mask & self._WRITES:
                tally.wrong(f"outside, {name} was written or changed ({mask:#x})")
            elif not may_read and not mask & self._FOLDER:
                tally.wrong(f"outside, {name} was read")
        tally.check(contents(self._folder) == self._before, "what is outside is not as it was")
        list(self._events())  # of our own check
        return tally

    def _events(self) -> Iterator[tuple[int, str]]:
        while True:
            try:
                data = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                return
            place = 0
            while place < len(data):
                _, mask, _, size = struct.unpack_from("iIII", data, place)
                yield mask, data[place + 16 : place + 16 + size].rstrip(b"\0").decode("utf-8", "replace")
                place += 16 + size
