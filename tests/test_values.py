"""Values: large texts are compressed and, if the owner wants that, encrypted; with the key they are read as before."""

from __future__ import annotations

import base64
import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.errors import Damaged, HoldfastError, Invalid, OverBudget
from holdfast.formats import encryption
from holdfast.formats.encryption import Locked
from holdfast.model.records import version_of
from holdfast.owner.backup import restore
from terminal import on_terminal

TEXT = "heliotrope " + "".join(f"word{number} of many\n" for number in range(2_000)) + "the last is quokka"
ENCRYPTED = '[encryption]\nwhat = ["values", "backups"]\n'


def new_key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    made = new_key()
    monkeypatch.setenv(encryption.VARIABLE, made)
    return made


def put(root: Path, text: str = TEXT, settings: str = "", kind: str = "episode") -> tuple[str, str]:
    """Store a large text; return the id of the record, and the ref of its value."""
    (root / "holdfast.toml").write_text(f"format = 1\n{settings}")
    with holdfast.open(root) as memory:
        receipt = memory.put(kind, text, **({"fields": {"key": "k"}} if kind == "fact" else {}))  # type: ignore[arg-type]
        return receipt.id, str(memory.get(receipt.id).fields["ref"])


def stored(root: Path, ref: str) -> bytes:
    with holdfast.open(root) as memory:
        return memory.tree.read(ref).data


def read(memory: holdfast.Memory, ref: str) -> dict[str, Any]:
    return memory.call("value_read", {"ref": ref, "offset": len(TEXT) - 6, "limit": 100})


def check(root: Path, identifier: str, ref: str) -> None:
    """Check that a value is read, searched and found as it was written, also with a new index."""
    with holdfast.open(root) as memory:
        for _ in range(2):
            assert memory.get(identifier).text == TEXT
            assert read(memory, ref)["data"]["text"] == "quokka"
            assert memory.call("value_search", {"ref": ref, "query": "quokka"})["data"][0]["why"] == ["quokka"]
            assert "heliotrope" in memory.call("value_summarize", {"ref": ref})["data"]["summary"]
            assert [hit.record.id for hit in memory.find("quokka")] == [identifier]
            memory.refresh(rebuild=True)
        assert memory.verify().sound


# compression


@pytest.mark.parametrize("kind", ["episode", "fact"])
def test_a_large_value_is_compressed_and_read_as_before(root: Path, kind: str) -> None:
    identifier, ref = put(root, kind=kind)
    assert ref.endswith(f"/{version_of(TEXT.encode())}.txt.gz")
    data = stored(root, ref)
    assert len(data) < len(TEXT) / 3
    assert gzip.decompress(data).decode() == TEXT, "any program can unpack it"
    check(root, identifier, ref)
    with holdfast.open(root) as memory:
        assert memory.mind("default").stats()["totalStorageBytes"] > len(data)


def test_compression_is_a_setting_and_older_values_stay_readable(root: Path) -> None:
    identifier, ref = put(root, settings="[limits]\ncompress_bytes = 0\n")
    assert ref.endswith(".txt") and stored(root, ref) == TEXT.encode()
    (root / "holdfast.toml").write_text("format = 1\n")
    check(root, identifier, ref)


def test_what_compression_does_not_make_smaller_stays_text(root: Path) -> None:
    noise = base64.b85encode(os.urandom(20_000)).decode()
    _, ref = put(root, noise, "[limits]\ncompress_bytes = 1\n")
    assert stored(root, ref) in (noise.encode(), gzip.compress(noise.encode(), 3, mtime=0))
    assert len(stored(root, ref)) <= len(noise)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda data: data[:-20], Damaged),
        (lambda data: data[:60] + b"\0\0\0\0" + data[64:], Damaged),
        (lambda _: gzip.compress(b"x" * 30_000_000), OverBudget),
    ],
)
def test_a_damaged_value_and_a_bomb_are_errors_and_no_text(
    root: Path, change: Callable[[bytes], bytes], error: type[HoldfastError]
) -> None:
    identifier, ref = put(root)
    with holdfast.open(root) as memory:
        document = memory.tree.read(ref)
        memory.tree.write(ref, change(document.data), expect=document.version)
        with pytest.raises(error):
            memory.values.read(ref)
        assert read(memory, ref)["success"] is False
        memory.refresh(rebuild=True)
        assert memory.get(identifier).text.endswith(f"… [the rest could not be read: {ref}]")


# encryption


@pytest.mark.parametrize("kind", ["episode", "fact"])
def test_an_encrypted_value_shows_nothing_and_is_read_with_its_key(root: Path, kind: str, key: str) -> None:
    identifier, ref = put(root, settings=ENCRYPTED, kind=kind)
    data = stored(root, ref)
    assert ref.endswith(".txt.enc") and data.startswith(encryption.MAGIC)
    assert version_of(TEXT.encode()) not in ref, "the name would confirm a guess of the text"
    assert b"word7" not in data and gzip.compress(TEXT.encode(), 3, mtime=0)[20:40] not in data
    assert base64.b64decode(key) not in data
    check(root, identifier, ref)
    assert put(root, settings=ENCRYPTED, kind=kind)[1] == ref, "the same text is stored once"


def test_without_its_key_a_value_is_a_clear_error_and_with_it_all_is_there_again(
    root: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    identifier, ref = put(root, settings=ENCRYPTED)
    monkeypatch.delenv(encryption.VARIABLE)
    said = f"{ref} is encrypted, and HOLDFAST_ENCRYPTION_KEY is not set."
    with holdfast.open(root) as memory:
        assert read(memory, ref)["error"] == f"{said} Set it to the key of its owner."
        memory.refresh(rebuild=True)
        assert memory.get(identifier).text == f"{TEXT[:200]}… [the rest could not be read: {ref}]"
        memory.put("note", "a small text about quokkas", title="Small")
        assert [hit.record.kind for hit in memory.find("small")] == ["note"], "all else is found"
        with pytest.raises(Locked, match="Encryption needs a key"):
            memory.put("episode", f"{TEXT} more")
    monkeypatch.setenv(encryption.VARIABLE, new_key())
    with holdfast.open(root) as memory:
        assert "was encrypted with another key than the one in HOLDFAST_ENCRYPTION_KEY" in read(memory, ref)["error"]
        assert memory.get(identifier).text.endswith(f"… [the rest could not be read: {ref}]")
    for wrong in ("x", key[:-8], "ä"):
        monkeypatch.setenv(encryption.VARIABLE, wrong)
        with holdfast.open(root) as memory:
            error = read(memory, ref)["error"]
            assert error.startswith("HOLDFAST_ENCRYPTION_KEY is not 32 bytes in base64.") and wrong not in error[60:]
    monkeypatch.setenv(encryption.VARIABLE, key)
    with holdfast.open(root) as memory:
        assert memory.get(identifier).text == TEXT
        assert [hit.record.id for hit in memory.find("heliotrope")] == [identifier]
        assert len(list(memory.every(holdfast.Query(kinds=("episode",))))) == 1, "nothing was written without a key"


def test_a_new_key_encrypts_and_the_old_one_still_decrypts(
    root: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    identifier, ref = put(root, settings=ENCRYPTED)
    fresh = new_key()
    monkeypatch.setenv(encryption.VARIABLE, f"{fresh} {key}")
    _, newer = put(root, f"{TEXT}!", settings=ENCRYPTED)
    with holdfast.open(root) as memory:
        assert memory.get(identifier).text == TEXT
    monkeypatch.setenv(encryption.VARIABLE, fresh)
    with holdfast.open(root) as memory:
        assert memory.values.read(newer)["size"] == len(TEXT) + 1
        with pytest.raises(Locked):
            memory.values.read(ref)


@given(st.binary(max_size=200_000), st.integers(0, 10**6), st.data())
def test_what_is_encrypted_comes_back_and_no_change_goes_unnoticed(data: bytes, at: int, dice: st.DataObject) -> None:
    before = os.environ.get(encryption.VARIABLE)
    os.environ[encryption.VARIABLE] = new_key()
    try:
        made = b"".join(encryption.encrypt([data[:77], data[77:]]))
        pieces = dice.draw(st.sampled_from([1, 1000, 10**6])) if len(made) < 5_000 else 1000
        chunks = [made[start : start + pieces] for start in range(0, len(made), pieces)]
        assert b"".join(encryption.decrypt(chunks, "it")) == data
        place = len(encryption.MAGIC) + at % (len(made) - len(encryption.MAGIC))
        changed = bytearray(made)
        changed[place] ^= 1
        for wrong in (bytes(changed), made[:place], made + b"x", made + made[-100:]):
            with pytest.raises((Damaged, Locked)):
                b"".join(encryption.decrypt([wrong], "it"))
    finally:
        del os.environ[encryption.VARIABLE]
        if before is not None:
            os.environ[encryption.VARIABLE] = before


# copies


@pytest.mark.parametrize("settings", ["", ENCRYPTED])
def test_values_go_along_with_backups_exports_and_transfers(
    root: Path, another: Callable[[], Path], tmp_path: Path, key: str, settings: str
) -> None:
    identifier, ref = put(root, settings=settings)
    there = another()
    with holdfast.open(root) as memory:
        memory.backup(tmp_path / "b.tar.gz")
        memory.export(tmp_path / "exported")
        assert memory.push(str(there), yes=True).refused == []
    restore(str(tmp_path / "b.tar.gz"), str(tmp_path / "restored"))
    for copy in (tmp_path / "exported", tmp_path / "restored", there):
        check(copy, identifier, ref)
        assert stored(copy, ref) == stored(root, ref)


def test_an_encrypted_backup_is_restored_with_its_key_alone(
    root: Path, tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, "a short text about quokkas" + "." * 20_000, settings=ENCRYPTED)
    backup, target = tmp_path / "b.tar.gz", tmp_path / "restored"
    with holdfast.open(root) as memory:
        memory.put("note", "small and secret", title="Small")
        with pytest.raises(Invalid, match="a folder cannot be"):
            memory.backup(tmp_path / "folder")
        memory.backup(backup)
    data = backup.read_bytes()
    assert data.startswith(encryption.MAGIC) and b"manifest" not in data
    monkeypatch.delenv(encryption.VARIABLE)
    with pytest.raises(Locked, match=r"b\.tar\.gz is encrypted, and HOLDFAST_ENCRYPTION_KEY is not set"):
        restore(str(backup), str(target))
    with holdfast.open(root) as memory, pytest.raises(Locked, match="needs a key"):
        memory.backup(tmp_path / "c.tar.gz")
    monkeypatch.setenv(encryption.VARIABLE, new_key())
    with pytest.raises(Locked, match="another key"):
        restore(str(backup), str(target))
    monkeypatch.setenv(encryption.VARIABLE, key)
    for wrong in (data[:-1], data[: len(data) // 2], data + b"x"):
        (tmp_path / "wrong.tar.gz").write_bytes(wrong)
        with pytest.raises(Damaged):
            restore(str(tmp_path / "wrong.tar.gz"), str(target))
    assert sorted(path.name for path in tmp_path.iterdir() if path.name not in ("root", "postgresql")) == [
        "b.tar.gz", "wrong.tar.gz",
    ]  # fmt: skip
    restore(str(backup), str(target))
    with holdfast.open(target) as memory:
        assert [hit.record.title for hit in memory.find("secret")] == ["Small"]


def test_a_push_finds_secrets_in_compressed_values(root: Path, another: Callable[[], Path]) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    _, ref = put(root, f"{TEXT} {secret}", '[secrets]\nwritten = "keep"\n')
    with holdfast.open(root) as memory:
        refused = memory.push(str(another()), yes=True).refused
    assert ref in [problem.path for problem in refused]


# forgetting


@pytest.mark.parametrize("settings", ["", ENCRYPTED])
def test_forgetting_removes_a_value_and_looks_into_the_others(
    root: Path, key: str, settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    identifier, ref = put(root, settings=settings)
    with holdfast.open(root) as memory:
        other = memory.put("episode", f"Another one. {TEXT}")
        remaining = str(memory.get(other.id).fields["ref"])
        done = memory.forget(identifier, yes=True, count=1)
        assert [one.path for one in done.remains if one.path == remaining], "another value has the same text"
        assert not memory.store.exists(ref)
        if settings:
            monkeypatch.delenv(encryption.VARIABLE)
            done = memory.forget(query="of no interest, so far", yes=True)
            assert [one.path for one in done.remains] == [remaining]
            assert "could not be searched" in done.remains[0].what
            monkeypatch.setenv(encryption.VARIABLE, key)
        assert memory.forget(other.id, yes=True, count=1).remains == []


def test_what_encryption_does_is_shown_to_its_owner(root: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, ref = put(root, settings=ENCRYPTED)
    monkeypatch.delenv(encryption.VARIABLE)
    shown = " ".join(on_terminal("value", "read", ref, root=root, code=9).split())
    assert "HOLDFAST_ENCRYPTION_KEY is not set" in shown
    assert '["values","backups"]' in on_terminal("settings", root=root)
