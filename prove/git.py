"""git beside live writers: pulls, commits, stashes and other branches, plain and through `holdfast git`.

Plain git takes no lock: it first compares all files and later replaces them one by one. A slow filter lengthens the
time between. Entries of live processes are restored; `holdfast git` also protects those of short commands. Entries that
another clone pushed must arrive; with our merge driver also decisions and lessons, which both clones write into the same
files.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import holdfast
from holdfast.roots import make_root
from prove.harness import Recording, Row, Run, Tally, faults_of, lacks, let_go
from prove.history import History, Recorder
from prove.writes import WRITES, tag_of

_LOGS = "message,fact,episode,learn,happened,exchange,procedure"
_ALL = f"{_LOGS},decision,lesson,reword,note"
_PLAIN = (
    ("commit", "--quiet", "--all", "--message=mine"),
    ("pull", "--quiet", "--no-edit", "--autostash"),
    ("stash", "--quiet"),
    ("stash", "pop", "--quiet"),
    ("checkout", "--quiet", "--force", "other"),
    ("checkout", "--quiet", "--force", "main"),
)
_WHO = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _WHO


def campaign(run: Run) -> Iterator[Row]:
    for fault, one in (
        ("plain git pull, commit, stash and checkout beside live writers", _plain),
        ("holdfast git sync beside live writers and short commands", _ours),
    ):
        tally = Tally(run, fault)
        if missing := lacks("git"):
            yield Row(fault, 0, 0, 0, skipped=missing)
            continue
        with run.folder("git") as folder:
            one(run, folder, tally)
        yield tally.row()


def _plain(run: Run, folder: str, tally: Tally) -> None:
    here, there = _clones(folder)
    writers = [run.program("library", here, f"w{me}", run.size(20, 1), _LOGS, "wait") for me in range(2)]
    let_go(*writers)
    mine = Recording(*writers)
    theirs, end, number = History(), time.monotonic() + run.size(20, 1), 0
    while time.monotonic() < end:
        _write(there, number, theirs, _LOGS)
        _pull_and_push(there)
        number += 1
        for words in _PLAIN:
            _git(here, *words, check=False)  # beside writers, git refuses some of these commands
            tally.made()
    history = mine.finished()
    _git(here, "add", "--all")
    _git(here, "commit", "--quiet", "--allow-empty", "--message=rest")
    _git(here, "pull", "--quiet", "--no-edit")
    _check(tally, here, history + theirs, clean=False)


def _ours(run: Run, folder: str, tally: Tally) -> None:
    here, there = _clones(folder)
    _finish(tally, run.command("git", "--root", there, "setup", env=_ENVIRONMENT))
    seconds = run.size(20, 2)
    writers = [run.program("library", here, "w", seconds, _ALL), run.program("briefly", here, "b", seconds, _ALL)]
    let_go(*writers)
    mine = Recording(*writers)
    theirs, end, number = History(), time.monotonic() + seconds, 0
    while number < 2 or time.monotonic() < end:
        _write(there, number, theirs, _ALL)
        number += 1
        if number % 2:  # else both sync at the same time
            _pull_and_push(there)
        roots = (here,) if number % 2 else (here, there)
        for sync in [run.command("git", "--root", root, "sync", "--quiet", env=_ENVIRONMENT) for root in roots]:
            _finish(tally, sync)
        tally.made()
    _finish(tally, run.command("git", "--root", here, "sync", "--quiet", env=_ENVIRONMENT))
    _check(tally, here, mine.finished() + theirs, clean=True)


def _finish(tally: Tally, command: subprocess.Popen[str]) -> None:
    _, said = command.communicate()
    tally.note([f"{command.args!r} failed: {said}"] if command.returncode else [], "")


def _check(tally: Tally, root: str, history: History, *, clean: bool) -> None:
    tally.made(0, len(history.acknowledged))
    refused = history.refusals() if clean else []  # plain git may remove a record before it is read back
    tally.note(refused + faults_of(root, history, clean=clean), root)


def _clones(folder: str) -> tuple[str, str]:
    """Make a memory with some entries, a bare repository, and a clone on another machine."""
    here, there, middle = (os.path.join(folder, name) for name in ("root", "there", "middle.git"))
    make_root(here)
    with holdfast.open(here) as memory:
        for name in _LOGS.split(","):
            WRITES[name].do(memory, tag_of(name, "first"))
    _git(folder, "init", "--quiet", "--bare", "--initial-branch=main", middle)
    _git(here, "init", "--quiet", "--initial-branch=main")
    _git(here, "add", "--all")
    _git(here, "commit", "--quiet", "--message=begin")
    _git(here, "branch", "other")
    _git(here, "remote", "add", "origin", middle)
    _git(here, "push", "--quiet", "--set-upstream", "origin", "main")
    _git(folder, "clone", "--quiet", middle, there)
    for each in (here, there):
        _git(each, "config", "pull.rebase", "false")
    _git(here, "config", "filter.slow.smudge", "sleep 0.02; cat")
    with open(os.path.join(here, ".git/info/attributes"), "w", encoding="utf-8") as file:
        file.write("*.jsonl filter=slow\n")
    return here, there


def _write(there: str, number: int, history: History, names: str) -> None:
    """Make one write of each of these in the other clone."""
    with holdfast.open(there) as memory:
        for name in names.split(","):
            WRITES[name].before(memory, tag_of(name, "there", number))
            tag = tag_of(name, "there", number)
            Recorder(history.add).write(name, tag, lambda: WRITES[name].do(memory, tag))  # noqa: B023


def _pull_and_push(there: str) -> None:
    _git(there, "add", "--all")
    _git(there, "commit", "--quiet", "--message=more")
    _git(there, "pull", "--quiet", "--no-edit")
    _git(there, "push", "--quiet")


def _git(folder: str, *words: str, check: bool = True) -> None:
    done = subprocess.run(["git", *words], cwd=folder, env=_ENVIRONMENT, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"git {' '.join(words)}: {done.stderr}")
