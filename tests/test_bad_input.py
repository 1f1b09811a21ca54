"""Bad roots, bad settings, bad files, bad arguments, full disks: a clear error, and everything else still works."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fork_server
import holdfast
from databaseroot import in_files
from holdfast.errors import AlreadyExists, HoldfastError, Invalid, NotFound, OverBudget, Unavailable
from holdfast.memories.cold import named
from holdfast.model.records import Problem
from holdfast.roots import make_root

HISTORY = "user/memory/history.jsonl"
NOTES = "resources/workspaces/default/_notes"
MEGABYTE = 1 << 20
NOBODY = 65534


def cli(*arguments: str | bytes, stdin: bytes = b"", **more: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the command as a user would, from a pipe."""
    command = [sys.executable, "-m", "holdfast", *arguments]
    return fork_server.run(command, input=stdin, capture_output=True, timeout=60, check=False, **more)


def told(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    """Return the error that the command printed; a traceback is no error of ours."""
    assert b"Traceback" not in done.stderr, done.stderr.decode("utf-8", "replace")
    result: dict[str, Any] = json.loads(done.stderr)
    return result


def outcome(call: Callable[[], object]) -> str:
    """Return the class of the error of a call; a test report cannot contain every error text."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "no error"


def plant(root: Path, path: str, data: bytes) -> Path:
    """Put a file there as another program would."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def cut(file: Path, size: int) -> None:
    """Leave so many bytes of a file; beyond its end there are zeros."""
    with file.open("r+b") as handle:
        handle.truncate(size)


def message(text: str, **more: object) -> bytes:
    return json.dumps({"role": "user", "content": text, "timestamp": "2026-01-02T03:04:05Z", **more}).encode()


def texts(memory: holdfast.Memory, **given: Any) -> set[str]:
    return {hit.record.text for hit in memory.find(limit=1000, **given)}


def places(problems: list[Problem]) -> set[tuple[str, int]]:
    return {(problem.path, problem.line) for problem in problems}


# roots


def test_a_root_that_does_not_exist_is_unavailable_and_is_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(Unavailable, match="does not exist") as caught:
        holdfast.open(missing)
    assert "holdfast init" in caught.value.next_step
    done = cli("search", "x", "--root", str(missing))
    assert (done.returncode, told(done)["kind"]) == (9, "Unavailable")
    assert str(missing) in told(done)["error"]
    assert not missing.exists()


def test_a_root_that_is_a_file_is_unavailable_and_untouched(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    with pytest.raises(Unavailable, match="is not a folder"):
        holdfast.open(file)
    for command in (("search", "x", "--root", str(file)), ("init", str(file))):
        done = cli(*command)
        assert (done.returncode, told(done)["kind"]) == (9, "Unavailable")
    assert file.read_bytes() == b"mine"


def test_a_root_that_is_a_dangling_link_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(Unavailable):
        holdfast.open(tmp_path / "link")


def test_no_root_anywhere_above_is_unavailable(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_ROOT"}
    done = cli("stats", cwd=tmp_path, env=environment)
    assert (done.returncode, told(done)["kind"]) == (9, "Unavailable")
    assert "holdfast init" in told(done)["error"]


def test_an_empty_folder_is_an_empty_memory(tmp_path: Path) -> None:
    with holdfast.open(tmp_path) as memory:
        assert memory.find("anything").hits == []
        assert memory.verify().sound
        memory.put("note", "first", title="First")
        assert texts(memory) == {"first"}


_AS_NOBODY = """
import os, sys, tempfile
import holdfast
from holdfast.errors import HoldfastError
from holdfast.roots import make_root

def everything(root):
    told = []
    def attempt(name, call):
        try:
            told.append((name, call()))
        except HoldfastError as error:
            told.append((name, f"{type(error).__name__}: {error}"))
    def use():
        with holdfast.open(root, writer="somebody") as memory:
            attempt("get", lambda: memory.get("PATH").text)
            attempt("find", lambda: sorted(hit.record.text for hit in memory.find("words")))
            attempt("problems", lambda: sorted(str(problem) for problem in memory.refresh().problems))
            attempt("tail", lambda: [record.text for record in memory.tail("message")])
            attempt("sound", lambda: memory.verify().sound)
            attempt("stats", lambda: memory.stats()["records"])
            attempt("note", lambda: memory.put("note", "new words", title="New").status)
            attempt("message", lambda: memory.put("message", "new words").status)
            attempt("fact", lambda: memory.put("fact", "new words", title="key").status)
            attempt("change", lambda: memory.put(id="PATH", fields={"status": "read"}).status)
            attempt("hide", lambda: memory.hide("PATH").status)
            attempt("decision", lambda: memory.put("decision", "new words", title="New").status)
            attempt("op", lambda: memory.put("note", "other words", title="Other", op_id="op-1").status)
    attempt("open", use)
    return told

with tempfile.TemporaryDirectory() as scratch:
    make_root(scratch)
    with holdfast.open(scratch) as memory:
        memory.put("note", "words", title="A title")
    everything(scratch)  # loads every module while the interpreter may still be read
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for name, answer in everything(sys.argv[1]):
    if not (name == "open" and answer is None):
        print(name, "=", answer)
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A root with one note and one message, in a folder that another user may reach."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user for whom permissions count")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        root = Path(folder).resolve() / "root"
        make_root(str(root))
        plant(root, f"{NOTES}/a.md", b"---\nname: A\n---\n\nwords of the note\n")
        plant(root, HISTORY, message("words of the message") + b"\n")
        yield root


def as_nobody(root: Path) -> dict[str, str]:
    """Try everything in a process without rights of its own; return what each attempt answered."""
    script = _AS_NOBODY.replace("PATH", f"{NOTES}/a.md")
    done = subprocess.run([sys.executable, "-c", script, str(root)], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return dict(line.split(" = ", 1) for line in done.stdout.decode().splitlines())


_WRITES = ("note", "message", "fact", "change", "hide", "decision", "op")


def tree(root: Path) -> dict[str, bytes]:
    """Return all files of a root but the index."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".holdfast" not in path.relative_to(root).parts
    }


@pytest.mark.parametrize("indexed", [False, True], ids=["never indexed", "indexed before"])
def test_a_read_only_root_is_read_and_every_write_says_why_not(shared: Path, indexed: bool) -> None:
    if indexed:
        with holdfast.open(shared) as memory:
            memory.refresh()
    before = tree(shared)
    answers = as_nobody(shared)
    assert answers["get"] == "words of the note"
    assert answers["find"] == "['words of the message', 'words of the note']"
    assert answers["tail"] == "['words of the message']"
    assert (answers["sound"], answers["stats"], answers["problems"]) == ("True", "2", "[]")
    assert {name: answers[name].split(":")[0] for name in _WRITES} == dict.fromkeys(_WRITES, "Unavailable")
    assert all("ermission" in answers[name] for name in _WRITES)
    assert tree(shared) == before


def test_an_unreadable_root_is_unavailable(shared: Path) -> None:
    shared.chmod(0o000)
    answers = as_nobody(shared)
    assert list(answers) == ["open"]
    assert answers["open"].startswith("Unavailable: ")
    assert str(shared) in answers["open"]


def test_a_root_behind_a_closed_folder_is_unavailable(shared: Path) -> None:
    shared.parent.chmod(0o700)
    answers = as_nobody(shared)
    assert answers["open"].startswith("Unavailable: ")


def test_unreadable_files_and_folders_are_told_and_the_rest_is_found(shared: Path) -> None:
    plant(shared, f"{NOTES}/closed.md", b"words of a closed note").chmod(0o000)
    plant(shared, "resources/workspaces/closed/_notes/b.md", b"words of a closed folder")
    (shared / "resources/workspaces/closed").chmod(0o000)
    answers = as_nobody(shared)
    assert answers["find"] == "['words of the message', 'words of the note']"
    assert f"{NOTES}/closed.md" in answers["problems"]
    assert "resources/workspaces/closed" in answers["problems"]
    assert answers["sound"] == "False"


def test_records_below_an_unreadable_folder_stay_in_the_index(shared: Path) -> None:
    derived = shared / ".holdfast"
    with holdfast.open(shared) as memory:
        memory.refresh()
    for path in (derived, *derived.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    (shared / "resources/workspaces/default").chmod(0o000)
    answers = as_nobody(shared)
    assert answers["find"] == "['words of the message', 'words of the note']"
    assert "resources/workspaces/default" in answers["problems"]


def test_an_index_that_may_not_be_written_does_not_stop_reading(shared: Path) -> None:
    with holdfast.open(shared) as memory:
        memory.refresh()
    (shared / ".holdfast").chmod(0o777)
    plant(shared, f"{NOTES}/b.md", b"words that came later")
    answers = as_nobody(shared)
    assert answers["find"] == "['words of the message', 'words of the note', 'words that came later']"


# settings


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("format = ", "not valid TOML"),
        ("[paths\n", "not valid TOML"),
        ('a = "\x01"', "not valid TOML"),
        ("colour = 1", "colour"),
        ("[paths]\nnotes = 'x'", "notes"),
        ("[limits]\nlock_secs = 2", "lock_secs"),
        ("[other]\na = 1", "other"),
        ("limits = 3", "limits"),
        ("chat = 1.5", "chat"),
        ("[limits]\nlock_seconds = 'long'", "lock_seconds"),
        ("[limits]\nlock_seconds = -1", "lock_seconds"),
        ("[limits]\nlock_seconds = inf", "lock_seconds"),
        ("[limits]\nlock_seconds = nan", "lock_seconds"),
        ("[limits]\ndocument_bytes = -5", "document_bytes"),
        ("[limits]\nline_bytes = 0", "line_bytes"),
        ("[paths]\nmemory = '..'", "paths.memory"),
        ("[paths]\nmemory = '../other'", "paths.memory"),
        ("[paths]\nmemory = 'user/../../other'", "paths.memory"),
        ("[paths]\nmemory = '/etc'", "paths.memory"),
        ("[paths]\nmemory = ''", "paths.memory"),
        ("[paths]\nmemory = '.'", "paths.memory"),
        ("[paths]\nmemory = 'a//b'", "paths.memory"),
        ("[paths]\nmemory = '.holdfast'", "paths.memory"),
        ("[paths]\nmemory = '.git/x'", "paths.memory"),
        ('[paths]\nmemory = "a\\u0000b"', "paths.memory"),
        ("[paths]\nmemory = 'a\\b'", "paths.memory"),
        ("[paths]\nmemory = 'user/memory '", "paths.memory"),
        ("[paths]\nmemory = '" + "x" * 256 + "'", "paths.memory"),
        ("[paths]\nmemory = 7", "memory"),
        ("format = 2", "format 2"),
        ("format = 99999", "format 99999"),
        ("format = 'new'", "format"),
        ("format = 2.0", "format"),
        ("format = " + "9" * 100_000, "not valid TOML"),
        ("a = " + "[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("a = " + "{b = " * 3_000, "nested too deeply"),
        ("a" + ".a" * 50_000 + " = 1", "nested too deeply"),
        ("[" + "a." * 50_000 + "a]", "nested too deeply"),
    ],
)
def test_bad_settings_are_refused_by_name_and_nothing_is_changed(root: Path, text: str, says: str) -> None:
    (root / "holdfast.toml").write_text(text)
    before = sorted(root.rglob("*"))
    with pytest.raises(Invalid) as caught:
        holdfast.open(root).close()
    assert "holdfast.toml" in caught.value.message
    assert says in caught.value.message
    assert caught.value.next_step
    assert sorted(root.rglob("*")) == before


def test_an_unknown_setting_is_answered_with_the_valid_ones(root: Path) -> None:
    (root / "holdfast.toml").write_text("[limits]\nlock_secs = 2\n")
    done = cli("stats", "--root", str(root))
    assert (done.returncode, told(done)["kind"]) == (2, "Invalid")
    for name in ("lock_seconds", "document_bytes", "workspaces", "format"):
        assert name in told(done)["error"]


def test_a_newer_format_asks_for_an_upgrade(root: Path) -> None:
    (root / "holdfast.toml").write_text("format = 2\n")
    done = cli("put", "note", "text", "--title", "T", "--root", str(root))
    assert done.returncode == 2
    assert "Upgrade Holdfast" in told(done)["error"]
    assert not (root / NOTES).exists()


def test_settings_are_not_read_from_outside_the_root(root: Path) -> None:
    """They could say what the file outside says: errors quote names and values."""
    (root / "holdfast.toml").unlink()
    (root.parent / "other.toml").write_text("[paths]\nsecret_of_the_outside = 1\n")
    (root / "holdfast.toml").symlink_to(root.parent / "other.toml")
    with pytest.raises(Invalid, match="symbolic link") as caught:
        holdfast.open(root).close()
    assert "secret" not in str(caught.value)


def test_settings_of_any_length_are_read_whole_or_not_at_all(root: Path) -> None:
    (root / "holdfast.toml").write_text("#" * (1 << 20) + "\n[paths]\nmemory = 'elsewhere'\n")
    assert outcome(lambda: holdfast.open(root)) == "OverBudget"


@pytest.mark.parametrize(
    "words",
    [
        ("put", "note", "x", "--title", "T", "--field", "a={deep}"),
        ("call", "createWorkspace", "{deep}"),
        ("workspace", "create", "--name", "W", "--description", "d", "--root-folder", "f", "--purpose", "p", "--preferences", "{deep}"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_json_on_the_command_line_that_nests_without_end_gets_an_answer(root: Path, words: tuple[str, ...]) -> None:
    deep = "[" * 20_000
    done = cli(*[word.replace("{deep}", deep) for word in words], "--root", str(root))
    assert (done.returncode, b"Traceback" in done.stderr) in ((0, False), (2, False)), done.stderr[-500:]


@pytest.mark.parametrize("how", ["not UTF-8", "folder"])
def test_settings_that_cannot_be_read_are_told(root: Path, how: str) -> None:
    file = root / "holdfast.toml"
    file.unlink()
    if how == "folder":
        plant(root, "holdfast.toml/inside.md", b"words")
    else:
        file.write_bytes(b"# \xff\n")
    assert outcome(lambda: holdfast.open(root)) in ("Invalid", "Unavailable")
    assert told(cli("stats", "--root", str(root)))["code"] in (2, 9)


def test_settings_behind_a_fifo_do_not_hang(root: Path) -> None:
    (root / "holdfast.toml").unlink()
    os.mkfifo(root / "holdfast.toml")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "stats", "--root", str(root)],
            capture_output=True,
            timeout=3,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.fail("the command hangs")
    assert told(done)["code"] in (2, 9)


@pytest.mark.parametrize("value", ["soon", "-3", ""])
def test_a_bad_setting_in_the_environment_is_refused(root: Path, value: str) -> None:
    done = cli("stats", "--root", str(root), env={**os.environ, "HOLDFAST_LIMITS_DOCUMENT_BYTES": value})
    assert (done.returncode, told(done)["kind"]) == (2, "Invalid")
    assert "document_bytes" in told(done)["error"]


# logs

DEEP = b'{"role":"user","content":"deep","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
BAD_LINES = {
    "torn": b'{"role":"user","content":"to',
    "NUL bytes": b"\0" * 5000,
    "binary": bytes(range(128, 256)) + b"\x00\x01\x02\x7fELF",
    "UTF-16": '{"content":"wide"}'.encode("utf-16")[:-1],
    "text": b"hello world",
    "number": b"42",
    "list": b'[{"content":"in a list"}]',
    "null": b"null",
    "deep": DEEP,
    "NaN": b'{"role":"user","content":"nan","x":NaN}',
    "infinity": b'{"role":"user","content":"inf","x":-Infinity}',
    "too large a number": b'{"role":"user","content":"large","x":1e999}',
    "100,000 digits": b'{"role":"user","content":"digits","x":' + b"9" * 100_000 + b"}",
    "lone surrogate": b'{"role":"user","content":"half \\ud800 char"}',
    "raw surrogate": b'{"role":"user","content":"half \xed\xa0\x80 char"}',
    "control character": b'{"role":"user","content":"a\x01b"}',
    "single quotes": b"{'role':'user'}",
    "comma at the end": b'{"role":"user","content":"comma",}',
    "merge marker": b"<<<<<<< HEAD",
    "two objects and a torn one": message("lost") + b'{"role":"user","con',
}


@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_reported_and_the_lines_around_it_are_read(root: Path, line: bytes) -> None:
    data = message("before") + b"\n" + line + b"\n" + message("after") + b"\n"
    file = plant(root, HISTORY, data)
    with holdfast.open(root) as memory:
        assert {"before", "after"} <= texts(memory)
        assert [record.text for record in memory.tail("message")][-1] == "after"
        assert (HISTORY, 2) in places(memory.refresh().problems)
        report = memory.verify()
        assert (report.sound, report.differences) == (False, [])
        assert places(report.damage) == {(HISTORY, 2)}
        receipt = memory.put("message", "written after")
        assert memory.get(receipt.id).text == "written after"
        assert {"before", "after", "written after"} <= texts(memory)
    assert file.read_bytes().startswith(data)
    assert file.read_bytes().count(b"\n") == data.count(b"\n") + 1


READABLE_LINES = {
    "BOM": b"\xef\xbb\xbf" + message("text"),
    "CRLF": message("text") + b"\r",
    "spaces": b"  " + message("text") + b" \t",
    "NUL bytes before": b"\0" * 4096 + message("text"),
    "two objects": message("text") + message("second"),
    "three objects and spaces": message("text") + b"  " + message("second") + b" " + message("third"),
    "large integer": message("text", x=2**63),
    "larger integer": message("text", x=2**64),
    "integer of 30 digits": message("text", x=10**30),
    "negative integer of 30 digits": message("text", x=-(10**30)),
    "depth 300": message("text", x=0).replace(b": 0", b": " + b"[" * 300 + b"]" * 300),
    "depth 600": message("text", x=0).replace(b": 0", b": " + b"[" * 600 + b"]" * 600),
    "depth 900": message("text", x=0).replace(b": 0", b": " + b"[" * 900 + b"]" * 900),
    "id that is a number": message("text", id=7),
    "id that is a list": message("text", id=[1]),
    "op that is a list": message("text", op=["a"]),
    "op that is a mapping": message("text", op={"a": 1}),
    "op of 30 digits": message("text", op=10**30),
    "tags that are a mapping": message("text", tags={"a": 1}),
    "tags that are mixed": message("text", tags=["a", 1, None, ["b"], {"c": 1}]),
    "workspace that is a number": message("text", workspace=7),
    "workspace that climbs": message("text", workspace="../../.."),
    "session that is a list": message("text", session=["a"]),
    "hide that is a number": message("text", hide=7),
    "time that is none": message("text", timestamp="yesterday"),
    "time that is a mapping": message("text", timestamp={"a": 1}),
    "time at the end of time": message("text", timestamp=1e300),
    "role that is none": message("text", role="nobody"),
    "NUL in the text": message("text", x="a\0b"),
    "duplicate names": b'{"role":"user","content":"other","content":"text"}',
}


@pytest.mark.parametrize("line", READABLE_LINES.values(), ids=READABLE_LINES)
def test_an_odd_line_is_read_or_told_and_its_neighbours_are_read(root: Path, line: bytes) -> None:
    data = message("before") + b"\n" + line + b"\n" + message("after") + b"\n"
    file = plant(root, HISTORY, data)
    with holdfast.open(root) as memory:
        found = texts(memory)
        assert {"before", "after"} <= found
        problems = memory.refresh().problems
        assert "text" in found or places(problems) == {(HISTORY, 2)}
        report = memory.verify()
        assert report.differences == []
        assert len(memory.tail("message")) >= 2
    assert file.read_bytes() == data
    done = cli("search", "--json", "--root", str(root))
    assert done.returncode == 0, done.stderr.decode()
    assert {"before", "after"} <= {hit["record"].get("text") for hit in json.loads(done.stdout)["hits"]}


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_truncated_log_keeps_its_whole_lines_and_tells_of_the_torn_one(root: Path, cut: int) -> None:
    data = message("one") + b"\n" + message("two") + b"\n" + message("three") + b"\n"
    data = data[: -1 - cut]
    file = plant(root, HISTORY, data)
    with holdfast.open(root) as memory:
        assert texts(memory) == {"one", "two"}
        assert [record.text for record in memory.tail("message")] == ["one", "two"]
        assert places(memory.verify().damage) == {(HISTORY, 3)}
    assert file.read_bytes() == data


def test_a_torn_last_line_is_sealed_by_the_next_write_and_then_told(root: Path) -> None:
    data = message("one") + b"\n" + message("two")[:-10]
    file = plant(root, HISTORY, data)
    with holdfast.open(root) as memory:
        memory.put("message", "three")
        assert texts(memory) == {"one", "three"}
        assert places(memory.refresh().problems) == {(HISTORY, 2)}
    assert file.read_bytes().startswith(data + b"\n{")


def test_a_last_line_that_only_lacks_its_newline_is_read(root: Path) -> None:
    data = message("one") + b"\n" + message("two")
    plant(root, HISTORY, data)
    with holdfast.open(root) as memory:
        assert texts(memory) == {"one", "two"}
        memory.put("message", "three")
        assert texts(memory) == {"one", "two", "three"}
        assert memory.verify().sound


@pytest.mark.parametrize(
    "data",
    [b"\0" * 100_000, bytes(range(256)) * 400, b"\n" * 5000, b"", b"\xef\xbb\xbf", "[]".encode("utf-16")],
    ids=["NUL bytes", "binary", "newlines", "nothing", "BOM", "UTF-16"],
)
def test_a_log_without_a_single_line_does_not_hide_the_others(root: Path, data: bytes) -> None:
    file = plant(root, "user/memory/semantic.jsonl", data)
    plant(root, HISTORY, message("words") + b"\n")
    with holdfast.open(root) as memory:
        assert texts(memory) == {"words"}
        assert memory.verify().differences == []
        memory.put("fact", "value", title="key")
        assert texts(memory, kinds=("fact",)) == {"value"}
    assert file.read_bytes().startswith(data)


def test_an_over_long_line_is_told_and_its_neighbours_are_read(root: Path) -> None:
    file = plant(root, HISTORY, message("before") + b"\n")
    with file.open("r+b") as handle:
        handle.seek(20 * MEGABYTE)
        handle.write(b"\n" + message("after") + b"\n")
    with holdfast.open(root) as memory:
        assert texts(memory) == {"before", "after"}
        assert [record.text for record in memory.tail("message")] == ["before", "after"]
        assert places(memory.verify().damage) == {(HISTORY, 2)}


@pytest.mark.parametrize(
    "ref",
    ["../../../outside.txt", "/etc/hostname", "link.txt", "gone.txt", "a\0b", "\\x", "", "user", "x" * 300, "fifo"],
)
def test_a_line_that_refers_to_what_may_not_be_read_is_told(root: Path, tmp_path: Path, ref: str) -> None:
    (tmp_path / "outside.txt").write_text("secret")
    if in_files(root):
        (root / "link.txt").symlink_to(tmp_path / "outside.txt")
        os.mkfifo(root / "fifo")
    line = json.dumps({"role": "user", "ref": ref, "head": "the head", "timestamp": "2026-01-02"}).encode()
    plant(root, HISTORY, message("before") + b"\n" + line + b"\n")
    with holdfast.open(root) as memory:
        assert texts(memory) == {"before", f"the head… [the rest could not be read: {ref}]"}
        assert places(memory.refresh().problems) == {(HISTORY, 2)}


def test_many_bad_logs_and_documents_leave_the_good_ones_found(root: Path) -> None:
    plant(root, HISTORY, b"\n".join(BAD_LINES.values()) + b"\n" + message("message words") + b"\n")
    plant(root, f"{NOTES}/bad.md", b"---\na: [\n---\nbad words\n")
    with holdfast.open(root) as memory:
        memory.put("note", "good words", title="Good")
        assert texts(memory, query="words") == {"message words", "bad words", "good words"}
        assert len(memory.verify().damage) == len(BAD_LINES) + 1


# documents

ALIASES = b"a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 12)
)
BAD_FRONTS = {
    "open list": (b"name: A\ntags: [a, b\n", None),
    "tab": (b"name: A\n\tb: 1\n", 3),
    "bad indent": (b"name: A\n b: 1\n", 3),
    "unclosed quote": (b"name: A\nb: 'x\n", None),
    "alias bomb": (b"name: A\n" + ALIASES, None),
    "unknown alias": (b"name: A\nb: *nothing\n", 3),
    "duplicate keys": (b"name: A\nb: 1\nb: 2\n", None),
    "list": (b"- a\n- b\n", None),
    "text": (b"just text\n", None),
    "deep": (b"a: " + b"[" * 5000 + b"]" * 5000 + b"\n", None),
    "merge markers": (b"<<<<<<< HEAD\nname: A\n=======\nname: B\n>>>>>>> x\n", None),
    "large integer": (b"a: 123456789012345678901234567890\n", 2),
}


@pytest.mark.parametrize(("front", "line"), BAD_FRONTS.values(), ids=BAD_FRONTS)
def test_broken_front_matter_is_told_with_its_line_and_the_text_is_found(
    root: Path, front: bytes, line: int | None
) -> None:
    path = f"{NOTES}/bad.md"
    data = b"---\n" + front + b"---\n\nwords of the bad one\n"
    file = plant(root, path, data)
    plant(root, f"{NOTES}/good.md", b"words of the good one\n")
    with holdfast.open(root) as memory:
        found = {hit.record.path: hit.record.text for hit in memory.find("words")}
        assert set(found) == {path, f"{NOTES}/good.md"}
        assert "words of the bad one" in memory.get(path).text
        (problem,) = memory.verify().damage
        assert problem.path == path
        assert 1 <= problem.line <= 1 + data.count(b"\n")
        if line:
            assert problem.line == line
        assert places(memory.refresh().problems) == places([problem])
        with pytest.raises(HoldfastError, match=r"Line|front matter|merge conflict"):
            memory.put(id=path, fields={"status": "new"})
    assert file.read_bytes() == data


@pytest.mark.parametrize(
    "data",
    [
        b"---\nname: A\nnever closed\nwords\n",
        b"---\nname: \xff\n---\nwords\n",
        b"\xff\xfe" + "words".encode("utf-16-le"),
        b"\0" * 1000 + b" words",
        b"words \x00 and \x1b[31m more\n",
    ],
    ids=["never closed", "not UTF-8", "UTF-16", "NUL bytes", "control characters"],
)
def test_an_odd_document_is_listed_and_unchanged(root: Path, data: bytes) -> None:
    file = plant(root, f"{NOTES}/odd.md", data)
    plant(root, f"{NOTES}/good.md", b"words\n")
    with holdfast.open(root) as memory:
        assert {hit.record.path for hit in memory.find()} == {f"{NOTES}/odd.md", f"{NOTES}/good.md"}
        assert memory.get(f"{NOTES}/odd.md").path == f"{NOTES}/odd.md"
        assert memory.verify().differences == []
    assert file.read_bytes() == data


@pytest.mark.parametrize(("before", "line"), [(b"", 1), (b"one\ntwo\n", 3), (b"---\nname: A\n---\n\none\n", 6)])
def test_a_document_that_is_not_utf_8_is_told_with_the_line_of_the_bad_byte(
    root: Path, before: bytes, line: int
) -> None:
    plant(root, f"{NOTES}/latin.md", before + b"caf\xe9 words\n")
    with holdfast.open(root) as memory:
        assert [hit.record.path for hit in memory.find("words")] == [f"{NOTES}/latin.md"]
        (problem,) = memory.refresh().problems
        assert (problem.path, problem.line) == (f"{NOTES}/latin.md", line)
        assert "UTF-8" in problem.what


@pytest.mark.parametrize(
    "front",
    [b"op: [1, 2]\n", b"op: {a: 1}\n", b"tags: {a: b}\n", b"tags: 7\n", b"1: x\n", b"name: [a]\n", b"created: [1]\n",
     b"archived: maybe\n", b"a: .inf\n", b"a: .nan\n", b"a: !!binary aGk=\n", b"? [a]\n: b\n", b"a: " + b"[" * 100 + b"]" * 100 + b"\n",
     b"null: x\n", b"created: 99999-01-01\n", b"a: !!python/object/apply:os.getcwd []\n"],
)  # fmt: skip
def test_odd_values_in_front_matter_do_not_hide_the_document(root: Path, front: bytes) -> None:
    plant(root, f"{NOTES}/odd.md", b"---\n" + front + b"---\nwords\n")
    plant(root, f"{NOTES}/good.md", b"words\n")
    with holdfast.open(root) as memory:
        assert {hit.record.path for hit in memory.find("words")} == {f"{NOTES}/odd.md", f"{NOTES}/good.md"}
        assert memory.verify().differences == []
    done = cli("get", f"{NOTES}/odd.md", "--root", str(root))
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("front", ["a: " + "[" * 100_000, "a: b\nc: " + "{d: " * 20_000], ids=["lists", "mappings"])
def test_front_matter_that_nests_without_end_is_told_with_its_line_and_costs_no_time(root: Path, front: str) -> None:
    """Reading it whole would take a minute for a file of 100 kB."""
    plant(root, f"{NOTES}/a.md", f"---\n{front}\n---\nwords of the bomb\n".encode())
    plant(root, f"{NOTES}/b.md", b"words of the note\n")
    with holdfast.open(root) as memory:
        assert len(memory.find("words", limit=10)) == 2
        (problem,) = memory.verify().damage
        assert (problem.path, problem.line) == (f"{NOTES}/a.md", 2 + front.count("\n"))
        assert "nested too deeply" in problem.what


def test_front_matter_with_many_brackets_that_close_is_read(root: Path) -> None:
    plant(root, f"{NOTES}/a.md", ("---\ntitle: T\nrelated: " + "[" + "[[x]], " * 1_000 + "]\n---\nwords\n").encode())
    with holdfast.open(root) as memory:
        assert (memory.find("words").hits[0].record.title, memory.verify().damage) == ("T", [])


@pytest.mark.parametrize("tool", ["remember", "recall", "nothing"])
def test_parameters_of_any_depth_and_sort_get_a_reply(memory: holdfast.Memory, tool: str) -> None:
    deep: Any = "x"
    for _ in range(5_000):
        deep = {"a": [deep]}
    for value in (deep, 10**5_000, float("nan"), object(), b"bytes", "\ud800", {1: 2}, (deep,)):
        reply = memory.call(tool, {"text": value, "query": value})
        assert reply["success"] is False
        assert "unexpectedly" not in reply["error"]


def test_a_document_of_100_megabytes_is_told_and_everything_else_is_found(root: Path) -> None:
    path = f"{NOTES}/huge.md"
    plant(root, path, b"words\n")
    cut(root / path, 100 * MEGABYTE)
    with holdfast.open(root) as memory:
        memory.put("note", "words of another", title="Another")
        assert texts(memory, query="words") == {"words of another"}
        problems = [problem for problem in memory.refresh().problems if problem.path == path]
        assert len(problems) == 1
        assert "limit" in problems[0].what
        assert [problem.path for problem in memory.verify().damage] == [path]
        with pytest.raises(OverBudget, match=r"huge\.md"):
            memory.get(path)
        with pytest.raises(OverBudget):
            memory.put(id=path, fields={"status": "new"})
        cut(root / path, 5)
        assert texts(memory, query="words") == {"words of another", "words"}
        assert memory.verify().sound
    assert (root / path).read_bytes() == b"words"


def test_an_overview_of_100_megabytes_does_not_stop_the_other_workspaces(root: Path) -> None:
    plant(root, "resources/workspaces/huge/OVERVIEW.md", b"---\nname: Huge\n---\n")
    cut(root / "resources/workspaces/huge/OVERVIEW.md", 100 * MEGABYTE)
    with holdfast.open(root) as memory:
        memory.put("overview", "about", title="Small One")
        memory.put("note", "words", title="T", scope="Small One")
        assert texts(memory, scope="small one", kinds=("note",)) == {"words"}


@pytest.mark.parametrize("name", [b"\xff.md", b"\xff/a.md", b"a\nb.md", b"C# notes.md", b"a b%20.md"])
def test_a_document_with_an_odd_name_is_read_or_told_and_the_rest_is_found(root: Path, name: bytes) -> None:
    if b"\xff" in name and not in_files(root):
        pytest.skip("a database has no names that are not UTF-8")
    plant(root, f"{NOTES}/{os.fsdecode(name)}", b"odd words\n")
    with holdfast.open(root) as memory:
        memory.put("note", "good words", title="Good")
        found = texts(memory, query="words")
        assert "good words" in found
        assert ("odd words" in found) != bool(memory.refresh().problems)
        assert memory.verify().differences == []
    assert cli("stats", "--root", str(root)).returncode == 0


def test_a_document_with_a_hash_sign_in_its_name_can_be_changed(root: Path) -> None:
    path = f"{NOTES}/C# notes.md"
    plant(root, path, b"old words\n")
    with holdfast.open(root) as memory:
        (hit,) = memory.find("words")
        record = memory.get(hit.record.id)
        memory.put(id=record.id, text="new words", expect=record.version)
        assert memory.get(path).text == "new words"


# what a caller may not put


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("note", {"title": "T"}),
        ("fact", {"title": "key"}),
        ("message", {}),
        ("decision", {"title": "T"}),
        ("episode", {"session": "s"}),
        ("plan", {"title": "T"}),
    ],
)
def test_a_text_that_is_too_long_is_over_budget_and_nothing_is_written(
    memory: holdfast.Memory, root: Path, kind: str, given: dict[str, Any]
) -> None:
    before = tree(root)
    with pytest.raises(OverBudget, match="1,000,001"):
        memory.put(kind, "x" * 1_000_001, **given)  # type: ignore[arg-type]
    assert tree(root) == before


def test_a_text_that_is_too_long_is_over_budget_on_the_command_line(root: Path) -> None:
    done = cli("put", "note", "-", "--title", "T", "--root", str(root), stdin=b"x" * 1_000_001)
    assert (done.returncode, told(done)["kind"]) == (5, "OverBudget")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"text": "x" * 1_000_001}, "OverBudget"),
        ({"text": ""}, "Invalid"),
        ({"text": " \n"}, "Invalid"),
        ({"fields": {"archived": True}}, "Invalid"),
        ({"fields": {"tags": "a"}}, "Invalid"),
        ({"text": "half \ud800"}, "Invalid"),
        ({"text": "byte \udcff"}, "Invalid"),
        ({"title": "half \ud800"}, "Invalid"),
        ({"fields": {"x": "half \ud800"}}, "Invalid"),
    ],
    ids=["long text", "no text", "blank text", "archived", "tags", "half", "byte", "half title", "half field"],
)
def test_a_change_is_held_to_the_rules_of_its_kind(
    memory: holdfast.Memory, root: Path, given: dict[str, Any], error: str
) -> None:
    receipt = memory.put("note", "words", title="T")
    before = tree(root)
    assert outcome(lambda: memory.put(id=receipt.id, expect=receipt.version, **given)) == error
    assert tree(root) == before


def test_a_line_that_could_not_be_read_again_is_not_acknowledged(memory: holdfast.Memory, root: Path) -> None:
    before = tree(root)
    with pytest.raises(OverBudget):
        memory.put("message", "words", fields={"extra": "y" * (9 * MEGABYTE)})
    assert tree(root) == before


SURROGATES = ["half \ud800 text", "byte \udcff text"]


@pytest.mark.parametrize("bad", SURROGATES, ids=["half", "byte"])
@pytest.mark.parametrize(
    ("kind", "part"),
    [
        *itertools.product(
            ["note", "plan", "fact", "message", "decision", "episode", "overview"],
            ["text", "tags", "field", "long text"],
        ),
        *itertools.product(["note", "plan", "fact", "decision", "overview"], ["title"]),
        ("episode", "session"),
    ],
)
def test_text_that_is_not_unicode_is_refused_and_nothing_is_written(
    memory: holdfast.Memory, root: Path, kind: str, part: str, bad: str
) -> None:
    given: dict[str, Any] = {"title": "T", "text": "words"}
    if part == "tags":
        given["tags"] = [bad]
    elif part == "field":
        given["fields"] = {"category" if kind == "decision" else "other": bad}
    elif part == "long text":
        given["text"] = "x" * 20_000 + bad
    else:
        given[part] = bad
    before = tree(root)
    assert outcome(lambda: memory.put(kind, **given)) == "Invalid"  # type: ignore[arg-type]
    assert tree(root) == before


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), object(), 10**400, "y" * 300_000, "a\u2028b", "a\u0085b", "a\0b", "---", "a\n---\nb"],
    ids=[
        "NaN",
        "infinity",
        "object",
        "400 digits",
        "300 kB",
        "line separator",
        "next line",
        "NUL",
        "fence",
        "fence below",
    ],
)
@pytest.mark.parametrize("kind", ["note", "message"])
def test_a_field_is_read_back_as_it_was_put_or_refused(memory: holdfast.Memory, kind: str, value: object) -> None:
    try:
        receipt = memory.put(kind, "words", title="T", fields={"x": value})  # type: ignore[arg-type]
    except HoldfastError as error:
        assert isinstance(error, Invalid | OverBudget)
    else:
        record = memory.get(receipt.id)
        assert (record.title, record.fields.get("x")) == ("T", value)
    memory.put("message", "still works")
    assert "still works" in texts(memory)


@pytest.mark.parametrize(
    "value", [2**63 - 1, 2**64 - 1, 2**64, 10**30, -(2**63), -(2**63) - 1, "", 0, None, [], {}, 1.5]
)
@pytest.mark.parametrize("kind", ["note", "message"])
def test_a_number_is_kept_exactly_or_refused(memory: holdfast.Memory, kind: str, value: object) -> None:
    try:
        receipt = memory.put(kind, "words", title="T", fields={"x": value})  # type: ignore[arg-type]
    except Invalid:
        assert texts(memory) == set()
        return
    assert texts(memory) == {"words"}
    assert memory.get(receipt.id).fields.get("x") == value


# titles

TITLES = {
    "above": "..", "path": "../../outside", "absolute": "/etc/passwd", "NUL": "a\0b", "no NUL": "ab", "space": "a b",
    "slash": "a/b", "backslash": "a\\b", "emoji": "\U0001f600", "two emoji": "\U0001f600\U0001f600", "dots": "...",
    "300 bytes": "x" * 300, "301 bytes": "x" * 301, "300 bytes of emoji": "\U0001f600" * 75, "git": ".git", "CON": "CON",
    "con": "con", "lower": "straße", "upper": "STRASSE", "title": "Straße", "NFC": "caf\u00e9", "NFD": "cafe\u0301",
    "plain": "cafe", "fullwidth": "\uff41b", "ligature": "\ufb01x", "no ligature": "fix", "dot at the end": "a b.",
    "space at the end": "a b ", "newline": "a\nb", "quotes": "\"a\" 'b'", "colon": "a: b", "hash": "a # b", "yaml": "- [a]",
    "null": "null", "yes": "yes", "number": "1e3", "date": "2026-01-01", "bidi": "a\u202eb", "zero width": "a\u200bb",
    "BOM": "\ufeffa", "line separator": "a\u2028b", "next line": "a\u0085b", "tab": "a\tb", "dashes": "---", "percent": "%2e%2e",
    "Turkish": "\u0130", "dotless": "i\u0307", "one short hash": "?:;!!,;?,::!?:;:", "the same short hash": "::!,;;??:?:.?;::",
}  # fmt: skip


TWINS = {"NFD", "the same short hash"}
"""Titles that may count as taken once the one before them is; `TWINS_IN_CASE` where case does not count either."""
TWINS_IN_CASE = {*TWINS, "con", "upper", "title", "space at the end", "no ligature", "dotless"}


@pytest.mark.parametrize("kind", ["note", "plan", "state"])
def test_two_titles_never_share_a_file_and_each_is_read_back(
    memory: holdfast.Memory, root: Path, tmp_path: Path, kind: str
) -> None:
    stored: dict[str, str] = {}
    refused = set()
    for name, title in TITLES.items():
        try:
            receipt = memory.put(kind, f"text of {title!r}", title=title)  # type: ignore[arg-type]
        except AlreadyExists:
            refused.add(name)
            continue
        assert receipt.path not in stored
        stored[receipt.path] = title
    assert refused <= (TWINS_IN_CASE if kind == "state" else TWINS)
    for path, title in stored.items():
        record = memory.get(path)
        assert (record.title, record.text) == (title, f"text of {title!r}")
        assert (root / path).resolve().is_relative_to(root / "resources")
        assert len(os.path.basename(path).encode()) <= 255
    assert memory.verify().sound
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("name", TITLES)
def test_any_title_can_be_put(memory: holdfast.Memory, name: str) -> None:
    receipt = memory.put("note", "words", title=TITLES[name])
    assert memory.get(receipt.id).title == TITLES[name]
    assert [hit.record.title for hit in memory.find("words")] == [TITLES[name]]


@pytest.mark.parametrize("name", [name for name in TITLES if "\n" not in TITLES[name]])
def test_any_name_of_a_workspace_is_a_folder_of_its_own_that_is_found_again(
    memory: holdfast.Memory, root: Path, name: str
) -> None:
    title = TITLES[name]
    receipt = memory.put("overview", "words", title=title)
    assert memory.get(receipt.id).title == title
    assert [hit.record.id for hit in memory.find("words")] == [receipt.id]
    folder = root / os.path.dirname(receipt.path)
    assert folder.resolve().parent == root / "resources/workspaces"
    memory.put("note", "more", title="T", scope=folder.name)
    assert texts(memory, query="more", scope=folder.name) == {"more"}


def test_a_folder_that_was_made_for_a_workspace_and_left_empty_is_used(memory: holdfast.Memory, root: Path) -> None:
    """A workspace starts as a folder, and a process may die before it writes the overview."""
    (root / "resources/workspaces/project-x").mkdir(parents=True)
    receipt = memory.put("overview", "text", title="Project.X", op_id="one")
    assert receipt.path == "resources/workspaces/project-x/OVERVIEW.md"
    assert memory.put("overview", "text", title="Project.X", op_id="one").status == "repeated"
    other = memory.put("overview", "text", title="Project+X")
    assert other.path != receipt.path


def test_the_names_of_workspaces_never_share_a_folder(memory: holdfast.Memory) -> None:
    stored: dict[str, str] = {}
    for title in TITLES.values():
        with contextlib.suppress(AlreadyExists, Invalid):
            receipt = memory.put("overview", "words", title=title)
            assert stored.setdefault(receipt.path, title) == title
    assert {path: memory.get(path).title for path in stored} == stored


def test_a_blank_title_is_refused(memory: holdfast.Memory, root: Path) -> None:
    before = tree(root)
    for title in ("", " ", "\n\t"):
        with pytest.raises(Invalid, match="title"):
            memory.put("note", "words", title=title)
    assert tree(root) == before


@pytest.mark.parametrize("session", ["..", "../..", "/etc", "a\0b", "\U0001f600", "x" * 300, ".git", "a/b", "CON", " "])
def test_any_session_has_a_log_of_its_own(memory: holdfast.Memory, root: Path, session: str) -> None:
    memory.put("episode", "theirs", session="another")
    receipt = memory.put("episode", "mine", session=session)
    assert (root / receipt.path).resolve().is_relative_to(root / "user/memory/sessions")
    assert [record.text for record in memory.tail("episode", session=session)] == ["mine"]
    assert texts(memory, session=session) == {"mine"}


# identifiers and scopes

BAD_IDS = [
    "", "..", "../../etc/passwd", "/etc/passwd", "a\0b", "nothing", "user/memory/../../../outside.md", "user/memory/.git/x.md",
    "resources/workspaces/default/_notes/gone.md", "resources/workspaces/default/_notes/gone.md#x", "#", "user/memory/a\0.md",
    "user/memory/link.md", "user/memory/link/outside.md", "0198c0de-0000-7000-8000-000000000000", "x" * 5000, "user/memory/" + "x" * 300 + ".md",
    "user/memory/decisions.md#", "half \ud800", "user/memory/\ud800.md", "byte \udcff",
]  # fmt: skip


@pytest.mark.parametrize("identifier", BAD_IDS, ids=[ascii(identifier)[:40] for identifier in BAD_IDS])
@pytest.mark.parametrize("call", ["get", "hide", "change", "create"])
def test_an_id_that_names_nothing_is_refused_and_reads_nothing_outside(
    memory: holdfast.Memory, root: Path, tmp_path: Path, identifier: str, call: str
) -> None:
    (tmp_path / "outside.md").write_text("secret")
    if in_files(root):
        (root / "user/memory/link.md").symlink_to(tmp_path / "outside.md")
        (root / "user/memory/link").symlink_to(tmp_path)
    before = tree(root)
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: memory.get(identifier),
        "hide": lambda: memory.hide(identifier),
        "change": lambda: memory.put(id=identifier, text="mine", expect="0" * 32),
        "create": lambda: memory.put("rule", "mine", id=identifier),
    }
    assert outcome(calls[call]) in ("NotFound", "Invalid", "Conflict")
    assert tree(root) == before
    assert (tmp_path / "outside.md").read_text() == "secret"


@pytest.mark.parametrize(
    "arguments",
    [("get", b"\xff"), ("search", b"\xff"), ("search", "x", "--scope", b"\xff"), ("search", "x", "--tag", b"\xff"),
     ("search", "x", "--session", b"\xff"), ("search", "x", "--kind", b"\xff"), ("tail", "message", "--session", b"\xff"),
     ("put", "note", b"\xff", "--title", "T"), ("put", "note", "x", "--title", b"\xff"), ("put", "note", "x", "--title", "T", "--scope", b"\xff"),
     ("put", "decision", b"\xff", "--title", "T"), ("put", "message", b"\xff"), ("hide", b"\xff"), ("search", b"tag:\xff"), ("put", b"\xff", "x")],
    ids=lambda arguments: " ".join(os.fsdecode(part) for part in arguments).encode("ascii", "replace").decode(),
)  # fmt: skip
def test_bytes_on_the_command_line_that_are_not_utf_8_get_an_answer(
    root: Path, arguments: tuple[str | bytes, ...]
) -> None:
    done = cli(*arguments, "--root", str(root))
    assert b"Traceback" not in done.stderr, done.stderr.decode("utf-8", "replace")
    assert done.returncode in (0, 2, 3)
    assert {path.name for path in (root / "user/memory").iterdir()} <= {"traces"}


def test_standard_input_that_is_not_utf_8_is_refused(root: Path) -> None:
    done = cli("put", "message", "-", "--root", str(root), stdin=b"\xff")
    assert (done.returncode, told(done)["kind"]) == (2, "Invalid")


@pytest.mark.parametrize(
    "folder", ["..", "../..", "_plans", ".hidden", ".git", "a/../../b", "a\0b", "a\\b", "a ", "", "x" * 300]
)
@pytest.mark.parametrize("kind", ["note", "decision", "message"])
def test_a_scope_that_is_no_folder_of_a_workspace_is_refused_or_can_be_found_again(
    memory: holdfast.Memory, root: Path, tmp_path: Path, folder: str, kind: str
) -> None:
    scope = holdfast.Scope(workspace=folder)
    try:
        memory.put(kind, "words", title="T", scope=scope)  # type: ignore[arg-type]
    except HoldfastError:
        assert texts(memory) == set()
    else:
        assert texts(memory, query="words") == {"words"}
        assert texts(memory, query="words", scope=scope) == {"words"}
    assert [path.name for path in tmp_path.iterdir()] == (["root"] if in_files(root) else [])


def test_a_scope_that_climbs_does_not_look_outside(memory: holdfast.Memory, tmp_path: Path) -> None:
    plant(tmp_path, "other/_notes/a.md", b"secret words\n")
    scope = holdfast.Scope(workspace="../../../other")
    with contextlib.suppress(HoldfastError):
        found = memory.find("words", scope=scope)
        assert (found.hits, found.problems) == ([], [])


@pytest.mark.parametrize(
    "path",
    ["resources/workspaces/w/.hidden/a.md", "resources/workspaces/w/.a.md", "user/memory/.hidden/a.md", "user/memory/writes/kept/a.md",
     "resources/workspaces/w/_states/a.md", "resources/workspaces/w/a\nb.md", "user/memory/C# notes.md", "user/memory/a.md"],
)  # fmt: skip
def test_a_document_put_at_a_path_can_be_found_or_is_refused(memory: holdfast.Memory, path: str) -> None:
    try:
        receipt = memory.put("document", "words", id=path)
    except Invalid:
        assert texts(memory) == set()
        return
    assert memory.get(receipt.id).text == "words"
    assert texts(memory, query="words") == {"words"}


def test_an_unknown_kind_is_answered_with_the_kinds_there_are(memory: holdfast.Memory, root: Path) -> None:
    calls: list[Callable[[], object]] = [
        lambda: memory.put("notes", "x", title="T"),  # type: ignore[arg-type]
        lambda: memory.find("x", kinds=("notes",)),  # type: ignore[arg-type]
        lambda: memory.tail("notes"),
    ]
    for call in calls:
        with pytest.raises(Invalid, match='no kind "notes"') as caught:
            call()
        assert 'Did you mean "note"?' in str(caught.value)
        assert "decision" in caught.value.next_step
    done = cli("put", "notes", "x", "--title", "T", "--root", str(root))
    assert (done.returncode, "note" in told(done)["error"]) == (2, True)


def test_an_unknown_scope_is_not_found_and_a_near_one_is_named(memory: holdfast.Memory, root: Path) -> None:
    memory.put("overview", "about", title="Payments")
    memory.put("overview", "about", title="Ledger", scope="Payments")
    before = tree(root)
    for call in (
        lambda: memory.put("note", "x", title="T", scope="Paymnts"),
        lambda: memory.find("x", scope="Paymnts"),
        lambda: memory.put("message", "x", scope="Paymnts"),
    ):
        with pytest.raises(NotFound, match='"Paymnts" not found') as caught:
            call()
        assert 'Did you mean "payments"?' in str(caught.value).lower().replace("did", "Did")
    with pytest.raises(NotFound, match='"Ledgr" not found') as caught:
        memory.find("x", scope="Payments/Ledgr")
    assert "ledger" in caught.value.next_step
    assert tree(root) == before
    done = cli("search", "x", "--scope", "Paymnts", "--root", str(root))
    assert (done.returncode, told(done)["kind"]) == (3, "NotFound")


@pytest.mark.parametrize("scope", ["a/b/c/d", "/", "a//b", "..", "../x", ".", "a/..", "a\0b", " ", "a/ "])
def test_a_scope_that_is_none_is_refused(memory: holdfast.Memory, root: Path, scope: str) -> None:
    before = tree(root)
    assert outcome(lambda: memory.put("note", "x", title="T", scope=scope)) in ("Invalid", "NotFound")
    assert outcome(lambda: memory.find("x", scope=scope)) in ("Invalid", "NotFound")
    assert tree(root) == before


def test_an_unknown_parameter_is_answered_with_the_valid_ones(memory: holdfast.Memory) -> None:
    with pytest.raises(Invalid, match="colour") as caught:
        memory.put("note", "x", title="T", colour="red")  # type: ignore[call-arg]
    assert "title" in caught.value.next_step
    with pytest.raises(Invalid, match="colour") as caught:
        memory.find("x", colour="red")  # type: ignore[call-arg]
    assert "kinds" in caught.value.next_step
    with pytest.raises(Invalid, match="colour") as caught:
        memory.find(holdfast.Query(text="x"), colour="red")  # type: ignore[call-arg]
    assert "kinds" in caught.value.next_step


@pytest.mark.parametrize(
    "given",
    [{"limit": 0}, {"limit": -1}, {"limit": 1001}, {"limit": "many"}, {"limit": None}, {"budget": -1}, {"budget": "big"}, {"kinds": 7},
     {"tags": 7}, {"since": "soon"}, {"until": "2026-13-45"}, {"since": "2026-02-02", "until": "2026-01-01"}, {"since": 7}, {"session": 7},
     {"scope": 7}, {"kinds": (7,)}, {"tags": (7,)}],
    ids=str,
)  # fmt: skip
def test_a_query_of_the_wrong_sort_is_refused(memory: holdfast.Memory, given: dict[str, Any]) -> None:
    memory.put("note", "words", title="T")
    assert outcome(lambda: memory.find("words", **given)) == "Invalid"


@pytest.mark.parametrize(
    "text", ["half \ud800 words", "tag:\ud800", "kind:\ud800", "byte \udcff", '"\ud800"'], ids=ascii
)
def test_a_query_that_is_not_unicode_finds_nothing_or_is_refused(memory: holdfast.Memory, text: str) -> None:
    memory.put("note", "words", title="T")
    assert outcome(lambda: memory.find(text)) in ("no error", "Invalid")
    for name in ("session", "scope"):
        assert outcome(lambda name=name: memory.find("words", **{name: text})) in ("no error", "Invalid", "NotFound")  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    "text",
    ['"', '""', '"unbalanced', "AND", "NOT words", "words OR", "(words", "words)", "words*", "^words", "NEAR(words", "title:words",
     "-words", "+words", "words\0", "'; DROP TABLE records; --", "{words}", "\\", "%", "a" * 100_000, "words " * 5000, "tag:", "kind:"],
    ids=lambda text: ascii(text)[:30],
)  # fmt: skip
def test_no_query_is_a_syntax_error(memory: holdfast.Memory, text: str) -> None:
    memory.put("note", "words", title="T")
    assert len(memory.find(text)) in (0, 1)


@pytest.mark.parametrize("count", [0, -1, "three", None])
def test_a_tail_of_no_length_is_refused(memory: holdfast.Memory, count: Any) -> None:
    memory.put("message", "words")
    assert outcome(lambda: memory.tail("message", count)) == "Invalid"


def test_what_must_be_given_is_named(memory: holdfast.Memory, root: Path) -> None:
    before = tree(root)
    for kind, given, missing in (
        ("note", {}, "a title and text"),
        ("note", {"title": "T"}, "text"),
        ("fact", {"text": "x"}, "a key"),
        ("procedure", {"text": "x"}, "when"),
        ("decision", {"text": "x"}, "a title"),
    ):
        with pytest.raises(Invalid, match=f"needs {missing}"):
            memory.put(kind, **given)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="new, in_progress"):
        memory.put("plan", title="T", fields={"status": "nearly"})
    with pytest.raises(Invalid, match="user, assistant"):
        memory.put("message", "x", fields={"role": "nobody"})
    with pytest.raises(Invalid, match="date and category"):
        memory.put("decision", "x", title="T", fields={"colour": "red"})
    assert tree(root) == before


@pytest.mark.parametrize("name", ["id", "op", "writer", "hide", "hidden", "ref", "session", "workspace"])
def test_a_reserved_field_is_refused(memory: holdfast.Memory, name: str) -> None:
    with pytest.raises(Invalid, match=name):
        memory.put("message", "x", fields={name: "mine"})


@pytest.mark.parametrize("op_id", ["a b", "é", "x" * 201, "a\nb", "a\0b", "\ud800"], ids=ascii)
def test_an_op_id_that_is_none_is_refused(memory: holdfast.Memory, root: Path, op_id: str) -> None:
    before = tree(root)
    for kind in ("message", "note"):
        assert outcome(lambda kind=kind: memory.put(kind, "x", title="T", op_id=op_id)) == "Invalid"  # type: ignore[misc]
    assert tree(root) == before


# several processes


def test_of_processes_that_create_the_same_name_one_wins_and_the_others_are_told(root: Path) -> None:
    def create(who: int) -> subprocess.CompletedProcess[bytes]:
        return cli("put", "note", f"text of {who}", "--title", "The same", "--root", str(root))

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(create, range(4)))
    assert sorted(result.returncode for result in done) == [0, 4, 4, 4]
    winner = next(who for who, result in enumerate(done) if result.returncode == 0)
    assert {told(result)["kind"] for result in done if result.returncode} == {"AlreadyExists"}
    with holdfast.open(root) as memory:
        assert texts(memory) == {f"text of {winner}"}
        assert memory.get(json.loads(done[winner].stdout)["id"]).text == f"text of {winner}"


# no space left


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A root on a file system of one megabyte."""
    disk = tmp_path.resolve() / "disk"
    disk.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no small file system can be mounted here: {done.stderr.decode().strip()}")
    try:
        make_root(str(disk / "root"))
        yield disk / "root"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(memory: holdfast.Memory) -> tuple[dict[str, str], list[HoldfastError]]:
    """Put messages, facts and notes until each was refused for want of space; return what was acknowledged."""
    kept: dict[str, str] = {}
    refused: dict[str, HoldfastError] = {}
    for number in itertools.count():
        for kind, size in (("note", 3000), ("message", 4000), ("message", 10), ("decision", 50)):
            text = f"words {number} {kind} {size} " + "x" * size
            try:
                receipt = memory.put(kind, text, title=f"Title {number}")  # type: ignore[arg-type]
                kept[receipt.id] = text
            except HoldfastError as error:
                refused[kind] = error
        if len(refused) == 3:
            return kept, list(refused.values())
        assert number < 5000, "the disk does not fill up"
    raise AssertionError("unreachable")


def test_on_a_full_disk_what_was_kept_is_still_read(small: Path) -> None:
    with holdfast.open(small) as memory:
        kept, _ = fill(memory)
        note = next(identifier for identifier, text in kept.items() if " note " in text)
        assert memory.get(note).text == kept[note]
        assert memory.tail("message", 1)[0].text in kept.values()


@pytest.mark.parametrize("opened", ["before", "after"])
def test_records_are_found_when_the_disk_is_full(small: Path, opened: str) -> None:
    with holdfast.open(small) as memory:
        kept, _ = fill(memory)
        if opened == "before":
            assert texts(memory, query="words") >= set(kept.values())
    if opened == "after":
        with holdfast.open(small) as memory:
            assert texts(memory, query="words") >= set(kept.values())


def test_the_command_line_searches_when_the_disk_is_full(small: Path) -> None:
    with holdfast.open(small) as memory:
        kept, _ = fill(memory)
    done = cli("search", "words", "--limit", "1000", "--full", "--root", str(small))
    assert done.returncode == 0, done.stderr.decode()
    assert {hit["record"]["text"] for hit in json.loads(done.stdout)["hits"]} >= set(kept.values())


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "nowhere/\ud800.jsonl"])
def test_a_source_with_an_impossible_name_is_refused(memory: holdfast.Memory, name: str) -> None:
    with pytest.raises(Invalid):
        memory.transcripts.bring("jsonl", named(name))


def test_a_link_to_itself_does_not_stop_an_import(memory: holdfast.Memory, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "talk.jsonl").write_bytes(message("words of the import") + b"\n")
    assert [source.name for source in named(str(tmp_path))] == ["talk.jsonl"]
