"""`holdfast doctor` in good and bad circumstances, with a real server behind it."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest

import fork_server
from holdfast.cli.setup import list_tools
from holdfast.errors import Unavailable
from holdfast.roots import is_address, make_root
from holdfast.storage.postgres import connections


def doctor(home: pathlib.Path, root: pathlib.Path | None, *words: str) -> Any:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment |= {"HOME": str(home), "HOLDFAST_TRUST": "all"} | ({"HOLDFAST_ROOT": str(root)} if root else {})
    return fork_server.run(
        [sys.executable, "-m", "holdfast", *(words or ("doctor",))],
        env=environment, cwd=home, capture_output=True, text=True, input="", timeout=90,
    )  # fmt: skip


def states(done: Any) -> dict[str, tuple[str, str]]:
    return {check["check"]: (check["state"], check["what"]) for check in json.loads(done.stdout)["checks"]}


@pytest.fixture
def home(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path.resolve() / "home"
    folder.mkdir()
    return folder


KINDS_OF_ROOT = {"files": {"lock"}, "postgres": {"database", "replication", "vectors"}}
"""The checks of each engine beyond those of every root."""


def test_a_sound_root_is_well(home: pathlib.Path, root: pathlib.Path, engine: str) -> None:
    if importlib.util.find_spec("mcp") is None:
        pytest.skip("the package mcp is not installed, so no server can answer")
    doctor(home, root, "install", "cursor", "--yes")
    done = doctor(home, root)
    assert done.returncode == 0, done.stdout
    found = states(done)
    every = {"sqlite", "root", "settings", "index", "cursor", "server"} | KINDS_OF_ROOT[engine]
    assert {name: state for name, (state, _) in found.items()} == dict.fromkeys(every, "ok")
    assert "10 tools" in found["server"][1]
    assert str(root) in found["cursor"][1]


def test_no_root_is_a_failure_with_the_next_step(home: pathlib.Path) -> None:
    done = doctor(home, None)
    assert done.returncode == 9
    checks = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["root"]["state"] == "fail"
    assert "holdfast init" in checks["root"]["next"]
    assert "holdfast install CLIENT" in checks["clients"]["next"]
    assert "server" not in checks


def test_a_root_that_is_gone_fails_here_and_in_the_clients_that_name_it(home: pathlib.Path, root: pathlib.Path) -> None:
    doctor(home, root, "install", "codex", "--yes")
    root.rename(root.parent / "moved")
    done = doctor(home, root)
    assert done.returncode == 9
    found = states(done)
    assert found["root"][0] == "fail"
    assert found["codex"] == ("fail", f"{home}/.codex/config.toml names the root {root}, which does not exist.")


def test_a_client_that_starts_what_is_not_there_fails(home: pathlib.Path, root: pathlib.Path) -> None:
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"holdfast": {"command": "/no/such/holdfast"}}}))
    assert states(doctor(home, root))["claude-code"][0] == "fail"


def test_a_file_with_a_fault_that_names_holdfast_is_a_warning(home: pathlib.Path, root: pathlib.Path) -> None:
    (home / ".vscode").mkdir()
    (home / ".vscode/mcp.json").write_text('{"servers": {"holdfast": {}} // mine')
    assert states(doctor(home, root))["vscode"][0] == "warn"
    (home / ".vscode/mcp.json").write_text('{"servers": {"holdfast": {},}} // mine')
    assert states(doctor(home, root))["vscode"][0] == "ok"


def test_settings_that_cannot_be_read_fail(home: pathlib.Path, root: pathlib.Path) -> None:
    (root / "holdfast.toml").write_text("format = [")
    done = doctor(home, root)
    assert done.returncode == 9
    found = states(done)
    assert (found["root"][0], found["settings"][0]) == ("ok", "fail")
    assert "holdfast.toml" in found["settings"][1]


def test_damage_and_lag_are_warnings_that_name_the_command(home: pathlib.Path, root: pathlib.Path) -> None:
    doctor(home, root, "refresh")
    notes = root / "resources/workspaces/default/_notes"
    notes.mkdir(parents=True)
    (notes / "by-hand.md").write_text("by hand\n")
    found = {check["check"]: check for check in json.loads(doctor(home, root).stdout)["checks"]}
    assert (found["index"]["state"], found["index"]["next"]) == ("warn", "Run: holdfast refresh")
    (root / "user/memory/history.jsonl").write_text("{torn\n")
    doctor(home, root, "refresh")
    found = {check["check"]: check for check in json.loads(doctor(home, root).stdout)["checks"]}
    assert (found["index"]["state"], found["index"]["next"]) == ("warn", "Run: holdfast verify")


def test_a_conflict_copy_is_named_with_its_file(home: pathlib.Path, root: pathlib.Path) -> None:
    copy = "user/memory/history.sync-conflict-20261101-120000-ABCDEFG.jsonl"
    (root / copy).write_text("{}\n")
    doctor(home, root, "refresh")
    found = {check["check"]: check for check in json.loads(doctor(home, root).stdout)["checks"]}
    assert (found["index"]["state"], found["index"]["next"]) == ("warn", "Run: holdfast lint")
    assert f"{copy} is a conflict copy of user/memory/history.jsonl" in found["index"]["what"]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; sys.exit('no memory today')", "no memory today"),
        ("print('hello', flush=True); input()", "does not answer"),
        ("import time; time.sleep(60)", "no answer in 1 s"),
        ('input(); print(\'{"id": 1, "error": {"message": "not now"}}\', flush=True); input()', "not now"),
    ],
)
def test_a_server_that_does_not_answer_is_named_and_stopped(code: str, says: str) -> None:
    with pytest.raises(Unavailable) as raised:
        list_tools([sys.executable, "-c", code], 1.0 if "sleep" in code else 20.0)
    assert says in str(raised.value)


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(Unavailable, match="cannot be started"):
        list_tools(["/no/such/command"], 1.0)


def test_without_settings_the_defaults_hold_and_the_next_step_is_named(home: pathlib.Path, root: pathlib.Path) -> None:
    (root / "holdfast.toml").unlink()
    done = doctor(home, root)
    assert done.returncode == 0
    (found,) = [check for check in json.loads(done.stdout)["checks"] if check["check"] == "settings"]
    assert found["state"] == "warn"
    assert found["next"].startswith("Run: holdfast init ")


def test_the_shared_memory_is_looked_at(home: pathlib.Path, root: pathlib.Path, address: str) -> None:
    shared = connections.for_tenant(address, "shared")
    (root / "holdfast.toml").write_text(f'format = 1\n[shared]\nstore = "{shared}&port=1"\n')
    assert states(doctor(home, root))["shared"][0] == "warn"
    (root / "holdfast.toml").write_text(f'format = 1\n[shared]\nstore = "{shared}"\n')
    assert states(doctor(home, root))["shared"][0] == "ok"


def test_the_shared_memory_in_a_folder_is_looked_at(tmp_path: pathlib.Path) -> None:
    root, shared = tmp_path / "root", tmp_path / "shared"
    make_root(str(root))
    (root / "holdfast.toml").write_text(f'format = 1\n[shared]\nstore = "{shared}"\n')
    for state in ("warn", "ok"):
        done = fork_server.run(
            [sys.executable, "-m", "holdfast", "doctor", "--root", str(root), "--json"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        (found,) = [check for check in json.loads(done.stdout)["checks"] if check["check"] == "shared"]
        assert found["state"] == state, found
        make_root(str(shared))


@pytest.mark.parametrize("missing", [("linkat", "renameat2"), ("flock",)])
def test_a_file_system_on_which_nothing_can_be_saved_is_reported(
    home: pathlib.Path, root: pathlib.Path, missing: tuple[str, ...]
) -> None:
    """Two calls fail as on exFAT, which has no hard links, or as on a mount without locks."""
    if not shutil.which("strace") or is_address(str(root)):
        pytest.skip("strace is not installed, or the memory is in a database")
    faults = [f"--inject={call}:error={'EINVAL' if call == 'renameat2' else 'EPERM'}" for call in missing]
    done = subprocess.run(
        ["strace", "-f", "-o", "/dev/null", *faults, sys.executable, "-m", "holdfast", "doctor"],
        env=os.environ | {"HOME": str(home), "HOLDFAST_ROOT": str(root)}, cwd=home, capture_output=True, text=True,
    )  # fmt: skip
    if "PTRACE" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
    (found,) = [check for check in json.loads(done.stdout)["checks"] if check["check"] == "lock"]
    assert (done.returncode, found["state"]) == (9, "fail"), done.stdout
    assert "ext4" in found["next"]
    assert not list(root.glob(".holdfast/doctor*"))


def test_encryption_without_a_key_is_reported(home: pathlib.Path, root: pathlib.Path) -> None:
    file = root / "holdfast.toml"
    file.write_text(file.read_text() + '\n[encryption]\nwhat = ["values"]\n')
    state, detail = states(doctor(home, root))["settings"]
    assert state == "fail" and "HOLDFAST_ENCRYPTION_KEY" in detail
