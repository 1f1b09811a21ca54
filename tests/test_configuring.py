"""Settings are shown with where each comes from, and replaced on files and in a database, also when they are broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fork_server
import holdfast
from holdfast.memories.jobs import Job
from holdfast.roots import MOST_SETTINGS
from terminal import on_terminal


def run(*words: str, root: Path, text: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "settings", *words, "--root", str(root)]
    return fork_server.run(
        command, input=text, capture_output=True, text=True, check=False, env=os.environ | more, timeout=60
    )


def shown(root: Path, **more: str) -> dict[str, tuple[object, str]]:
    done = run(root=root, **more)
    assert done.returncode == 0, done.stderr
    return {one["name"]: (one["value"], one["source"]) for one in json.loads(done.stdout)}


def test_each_setting_is_shown_with_where_it_comes_from(root: Path) -> None:
    text = '[limits]\nlock_seconds = 3\n[shared]\nstore = "postgresql://u:verysecret1@host/db"\n'
    assert run("--put", "-", root=root, text=text).returncode == 0
    found = shown(root, HOLDFAST_SEARCH_CANDIDATES="77")
    assert found["limits.lock_seconds"] == (3.0, "holdfast.toml")
    assert found["search.candidates"] == (77, "HOLDFAST_SEARCH_CANDIDATES")
    assert found["format"][1] == found["chat.memory_tokens"][1] == "default"
    assert "verysecret1" not in str(found)
    assert found["shared.store"][1] == "holdfast.toml"
    assert run("--text", root=root).stdout == text
    assert "limits.lock_seconds" in on_terminal("settings", root=root)


@pytest.mark.parametrize(
    "store",
    [
        "postgresql://ann:s3@/db?host=/run/pg",
        "postgresql://ann@db.internal/db?password=s3",
        "postgresql://ann@db.internal/db?sslmode=require&sslpassword=s3&tenant=t",
        "postgresql://ann@db.internal/db?pass%77ord=s3",
        "postgresql://ann:s3@db.internal:a/b@c/db",
    ],
)
def test_no_form_of_an_address_shows_its_password(root: Path, store: str) -> None:
    assert run("--put", "-", root=root, text=f'[shared]\nstore = "{store}"\n').returncode == 0
    (value, _), terminal = shown(root)["shared.store"], on_terminal("settings", root=root)
    assert str(value).startswith("postgresql://")
    assert "s3" not in f"{value} {terminal}"


def test_settings_that_keep_a_memory_from_being_opened_are_mended_and_nothing_is_lost(root: Path) -> None:
    with holdfast.open(root) as memory:
        memory.put("fact", "kept all the time", fields={"key": "kept"})
    (root / "holdfast.toml").write_text("[limits\n")
    assert run(root=root).returncode == 2
    assert run("--text", root=root).stdout == "[limits\n"
    assert run("--put", "-", root=root, text="[limits]\nlock_seconds = 4\n").returncode == 0
    with holdfast.open(root) as memory:
        assert memory.settings.limits.lock_seconds == 4
        assert [hit.record.text for hit in memory.find("kept")] == ["kept all the time"]
    texts = [path.read_text() for path in (root / "user/memory/writes/kept").glob("*")]
    assert "[limits\n" in texts


def test_what_cannot_be_read_as_settings_is_refused_and_the_old_ones_stay(root: Path) -> None:
    before = run("--text", root=root).stdout
    for text, told in (
        ("[limits", "not valid TOML"),
        ("[limits]\nlock_seconds = 'soon'\n", "lock_seconds"),
        ("[limit]\n", "limit"),
        ("# " + "x" * MOST_SETTINGS, "longer than"),
    ):
        done = run("--put", "-", root=root, text=text)
        assert (done.returncode != 0, told in done.stderr) == (True, True), done.stderr
    assert run("--text", root=root).stdout == before


def test_without_settings_all_are_defaults_and_can_be_put(root: Path) -> None:
    (root / "holdfast.toml").unlink()
    assert {source for name, (_, source) in shown(root).items() if name != "root"} == {"default"}
    assert run("--put", "-", root=root, text="format = 1\n").returncode == 0
    assert (root / "holdfast.toml").read_text() == "format = 1\n"


# trust


@pytest.fixture
def stranger(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A memory whose settings come from someone else, and a user who has trusted nothing yet."""
    monkeypatch.delenv("HOLDFAST_TRUST")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    command = [sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'w')"]
    (root / "holdfast.toml").write_text(
        f"[jobs]\ncommand = {json.dumps(command)}\n"
        '[model]\nurl = "http://127.0.0.1:9/v1"\nkey_env = "HOLDFAST_OTHER"\n'
        f'[shared]\nstore = "{tmp_path}"\n[chat]\nmemory_tokens = 7\n'
    )
    return root


def ran(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, "-m", "holdfast", *words], os.environ | {"HOLDFAST_ROOT": str(root)}
    return fork_server.run(command, check=False, text=True, capture_output=True, env=environment, timeout=60)


def test_settings_of_a_stranger_run_no_program_and_send_nothing(stranger: Path, tmp_path: Path) -> None:
    with holdfast.open(stranger) as memory:
        due = Job(id="tick", name="tick", message="x", schedule="0 0 1 1 *", since="2020-01-01T00:00:00.000Z")
        memory.jobs.save_cron_jobs([due])
        assert memory.settings.jobs.command == ()
        assert memory.settings.model.url == ""
        assert memory.settings.model.key_env == "HOLDFAST_MODEL_KEY"
        assert memory.settings.shared.store == ""
        assert memory.settings.chat.memory_tokens == 7, "all others count"
    done = ran(stranger, "jobs", "run", "--once")
    assert done.returncode != 0
    assert "holdfast trust" in done.stderr
    assert not (tmp_path / "ran").exists()
    for name in ("jobs.command", "model.url", "model.key_env", "shared.store"):
        assert shown(stranger)[name][1].startswith("ignored, run: holdfast trust ")
    checks = {one["check"]: one for one in json.loads(ran(stranger, "doctor", "--json").stdout)["checks"]}
    assert "jobs.command, model.url, model.key_env, shared.store" in checks["settings"]["what"]
    assert "holdfast trust" in checks["settings"]["next"]
    assert ran(stranger, "trust", str(stranger)).returncode == 0
    assert ran(stranger, "jobs", "run", "--once").returncode == 0
    assert (tmp_path / "ran").exists()


def test_trust_is_asked_for_again_after_a_change_and_for_another_root(
    stranger: Path, another: Callable[[], Path], tmp_path: Path
) -> None:
    assert ran(stranger, "trust").returncode == 0
    with holdfast.open(stranger) as memory:
        assert memory.settings.model.url == "http://127.0.0.1:9/v1"
    (found,) = (tmp_path / "config/holdfast").iterdir()
    assert found.stat().st_mode & 0o777 == 0o600
    text = (stranger / "holdfast.toml").read_text()
    (stranger / "holdfast.toml").write_text(text.replace("memory_tokens = 7", "memory_tokens = 8"))
    with holdfast.open(stranger) as memory:
        assert memory.settings.model.url == "http://127.0.0.1:9/v1", "no change of what was trusted"
    (stranger / "holdfast.toml").write_text(text.replace("127.0.0.1:9", "127.0.0.1:10"))
    copy = another()
    (copy / "holdfast.toml").write_text(text)
    for root in (stranger, copy):
        with holdfast.open(root) as memory:
            assert memory.settings.model.url == ""


def test_the_environment_and_settings_that_this_user_puts_are_trusted(
    stranger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "new.toml"
    new.write_text('[model]\nurl = "http://127.0.0.1:11/v1"\n')
    assert ran(stranger, "settings", "--put", str(new)).returncode == 0
    with holdfast.open(stranger) as memory:
        assert memory.settings.model.url == "http://127.0.0.1:11/v1"
    (stranger / "holdfast.toml").write_text('[model]\nurl = "http://127.0.0.1:12/v1"\n')
    monkeypatch.setenv("HOLDFAST_MODEL_URL", "http://127.0.0.1:13/v1")
    with holdfast.open(stranger) as memory:
        assert memory.settings.model.url == "http://127.0.0.1:13/v1"
    monkeypatch.delenv("HOLDFAST_MODEL_URL")
    monkeypatch.setenv("HOLDFAST_TRUST", "all")
    with holdfast.open(stranger) as memory:
        assert memory.settings.model.url == "http://127.0.0.1:12/v1"
