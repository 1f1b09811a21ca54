"""Settings are shown with where each comes from, and replaced on files and in a database, also when they are broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.roots import MOST_SETTINGS
from terminal import on_terminal


def run(*words: str, root: Path, text: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "settings", *words, "--root", str(root)]
    return subprocess.run(
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
    assert {source for _, source in shown(root).values()} == {"default"}
    assert run("--put", "-", root=root, text="format = 1\n").returncode == 0
    assert (root / "holdfast.toml").read_text() == "format = 1\n"
