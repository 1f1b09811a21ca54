"""A backup is the whole memory at one moment, also beside writers; a restore is verified, or leaves nothing."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from databaseroot import place
from holdfast.errors import AlreadyExists, Damaged, HoldfastError, Invalid, NotFound, OverBudget, Unavailable
from holdfast.formats import jsonl
from holdfast.model.queries import Query
from killing import finish, kills, work
from terminal import on_terminal

WRITE = """
import os, time
with holdfast.open(sys.argv[1], writer=sys.argv[2]) as memory:
    number = 0
    while not os.path.exists(sys.argv[3]):
        number += 1
        time.sleep(0.02)
        memory.put("episode", f"{sys.argv[2]} {number} " + "x" * (number % 700), session="s")
        memory.put("note", f"Text of {sys.argv[2]} {number}.", title=f"{sys.argv[2]} {number}")
        memory.put("fact", str(number), fields={"key": sys.argv[2]})
        if number % 5 == 0:
            memory.put("episode", f"large {number} " * 2000, session="s")
"""
BACKUP = "with holdfast.open(sys.argv[1]) as memory: memory.backup(sys.argv[2])"
SAID = Query(kinds=("episode", "note"), hidden=True)
RESTORE = "holdfast.restore(sys.argv[1], sys.argv[2])"


@pytest.fixture
def filled(memory: holdfast.Memory) -> holdfast.Memory:
    """A memory with a record of every shape, an empty workspace, a large value, kept versions and marks."""
    note = memory.put("note", "We deploy on Tuesdays.", title="Deploys")
    memory.put(id=note.id, fields={"status": "old"})
    memory.put("decision", "We keep it.", title="One database")
    memory.put("episode", "x" * 20_000, session="monday")
    hidden = memory.put("episode", "Not this one.", session="monday")
    memory.hide(hidden.id)
    memory.put("fact", "Lisbon", fields={"key": "office"})
    memory.put("fact", "Porto", fields={"key": "office"})
    memory.call("createState", {"name": "S", "conversationContext": "c", "activeTask": "t", "activeFiles": [],
                                "nextSteps": []})  # fmt: skip
    (place(memory) / "resources/workspaces/empty").mkdir()
    (place(memory) / "resources/workspaces/default/picture.png").write_bytes(b"\x89PNG\0")
    return memory


def everything(root: Path) -> dict[str, tuple[bytes, int]]:
    """The files of a memory with the times that they bear, but for what is derived."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file() and ".holdfast" not in path.parts
    }


def answers(root: Path) -> list[Any]:
    with holdfast.open(root) as memory:
        return sorted((r.id, r.text, r.time, r.hidden, r.version) for r in memory.every(Query(hidden=True)))


@pytest.mark.parametrize("name", ["copy.tar.gz", "copy.tgz", "copy"])
def test_what_is_restored_is_what_was_there(filled: holdfast.Memory, tmp_path: Path, name: str) -> None:
    done = filled.backup(tmp_path / name)
    restored = holdfast.restore(tmp_path / name, tmp_path / "again")
    here, there = everything(place(filled)), everything(tmp_path / "again")
    assert here == there
    assert done.files == restored.files == len(here)
    assert done.left_out == restored.damage == []
    assert (tmp_path / "again/resources/workspaces/empty").is_dir() == filled.in_files
    assert answers(place(filled)) == answers(tmp_path / "again")
    with holdfast.open(tmp_path / "again") as memory:
        assert memory.verify().sound
        note = next(hit.record for hit in memory.find("deploy"))
        memory.undo(note.id)
        assert "status" not in memory.get(note.id).fields
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "root") == sorted(["again", name])


@pytest.mark.parametrize("name", ["copy.tar.gz", "copy"])
def test_a_backup_can_be_read_by_its_owner_alone(filled: holdfast.Memory, tmp_path: Path, name: str) -> None:
    filled.backup(str(tmp_path / name))
    assert (tmp_path / name).stat().st_mode & 0o077 == 0


def test_a_last_entry_without_its_newline_is_backed_up(memory: holdfast.Memory, tmp_path: Path) -> None:
    memory.put("fact", "green", fields={"key": "tea"})
    log = place(memory) / "user/memory/semantic.jsonl"
    log.write_bytes(log.read_bytes() + b'{"key":"coffee","value":"black"}')
    memory.backup(tmp_path / "copy.tar.gz")
    holdfast.restore(tmp_path / "copy.tar.gz", tmp_path / "again")
    with holdfast.open(tmp_path / "again") as again:
        assert {one.text for one in again.every(Query(kinds=("fact",)))} == {"green", "black"}


def test_an_archive_is_one_that_every_tar_reads_and_says_what_is_in_it(filled: holdfast.Memory, tmp_path: Path) -> None:
    filled.backup(tmp_path / "copy.tar.gz")
    with tarfile.open(tmp_path / "copy.tar.gz") as archive:
        members = archive.getmembers()
        assert members[-1].name == "manifest.json"
        read = {member.name: archive.extractfile(member).read() for member in members}  # type: ignore[union-attr]
    manifest = json.loads(read.pop("manifest.json"))
    assert manifest["format"] == 1
    assert {f"files/{path}" for path in manifest["files"]} == set(read)
    for path, told in manifest["files"].items():
        data = read[f"files/{path}"]
        assert (told["size"], told["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert not any(".holdfast/" in name or "/runs/" in name for name in read)


def test_nothing_is_overwritten_and_nothing_goes_into_the_memory_itself(
    filled: holdfast.Memory, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/mine").write_text("mine")
    (tmp_path / "file.tar.gz").write_text("mine")
    for target, error in (
        ("there", AlreadyExists), ("file.tar.gz", AlreadyExists), ("no/such/x.tar.gz", Unavailable), ("x.zip", Invalid),
    ):  # fmt: skip
        with pytest.raises(error):
            filled.backup(tmp_path / target)
    for target in ("x.tar.gz", "user/x"):
        with pytest.raises(Invalid):
            filled.backup(f"{filled.root}/{target}")
    filled.backup(tmp_path / "copy.tar.gz")
    for target, error in (("there", AlreadyExists), ("file.tar.gz", AlreadyExists), ("no/such/x", Unavailable)):
        with pytest.raises(error):
            holdfast.restore(tmp_path / "copy.tar.gz", tmp_path / target)
    with pytest.raises(NotFound):
        holdfast.restore(tmp_path / "none.tar.gz", tmp_path / "new")
    assert (tmp_path / "there/mine").read_text() == (tmp_path / "file.tar.gz").read_text() == "mine"
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    holdfast.restore(tmp_path / "copy.tar.gz", tmp_path / "empty")
    assert (tmp_path / "empty/holdfast.toml").exists()


def test_links_are_left_out_and_told(filled: holdfast.Memory, tmp_path: Path) -> None:
    root = Path(filled.root)
    (tmp_path / "secret.md").write_text("outside")
    (root / "resources/workspaces/default/out.md").symlink_to(tmp_path / "secret.md")
    (root / "resources/workspaces/default/in.md").symlink_to(root / "user/memory/history.jsonl")
    (root / "resources/workspaces/linked").symlink_to(root / "resources/workspaces/default")
    done = filled.backup(tmp_path / "copy.tar.gz")
    told = {problem.path.rpartition("/")[2] for problem in done.left_out}
    assert {"out.md", "linked"} <= told
    holdfast.restore(tmp_path / "copy.tar.gz", tmp_path / "again")
    assert not any(path.is_symlink() for path in (tmp_path / "again").rglob("*"))
    assert b"outside" not in b"".join(data for data, _ in everything(tmp_path / "again").values())


def packed(files: dict[str, bytes], *more: tarfile.TarInfo, manifest: Any = None) -> bytes:
    """An archive that another program could make."""
    told = {
        name.removeprefix("files/"): {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "mtime": 1}
        for name, data in files.items()
    }
    last = json.dumps(manifest or {"made": "2026-01-01T00:00:00.000Z", "files": told}).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for info in more:
            archive.addfile(info)
        for name, data in {**files, "manifest.json": last}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def linked(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def twice() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for data in (b"one", b"two"):
            info = tarfile.TarInfo("files/a.md")
            info.size = 3
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def bomb() -> bytes:
    """A member that says it has 300 GB, of which zeros follow."""
    info = tarfile.TarInfo("files/zeros.md")
    info.size = 300 << 30
    return gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20))


def long_name() -> bytes:
    info = tarfile.TarInfo("files/" + "a" * 90)
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    return gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20))


def sized(size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header of a file with any size, which a number of eight octal digits need not be able to say."""
    info = tarfile.TarInfo("files/a.md")
    info.type = kind
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = (size % (1 << 96)).to_bytes(12, "big") if size < 0 else b"\x80" + size.to_bytes(11, "big")
    block[148:156] = b"%06o\0 " % (sum(block) - sum(block[148:156]) + 8 * 32)
    return bytes(block)


def named_by_pax() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("files/a.md")
        info.pax_headers = {"path": "../evil.md"}
        archive.addfile(info)
    return out.getvalue()


HOSTILE: dict[str, Callable[[], bytes]] = {
    "up": lambda: packed({"files/../../evil.md": b"x"}),
    "absolute": lambda: packed({"/tmp/evil.md": b"x"}),
    "beside": lambda: packed({"evil.md": b"x"}),
    "hidden": lambda: packed({"files/.holdfast/current": b"x"}),
    "git": lambda: packed({"files/.git/hooks/post-commit": b"x"}),
    "symlink": lambda: packed({"files/a.md": b"x"}, linked("files/l", "/etc", tarfile.SYMTYPE)),
    "through a link": lambda: packed({"files/l/evil.md": b"x"}, linked("files/l", "/tmp", tarfile.SYMTYPE)),
    "hard link": lambda: packed({"files/a.md": b"x"}, linked("files/l", "/etc/passwd", tarfile.LNKTYPE)),
    "device": lambda: packed({"files/a.md": b"x"}, linked("files/d", "", tarfile.CHRTYPE)),
    "fifo": lambda: packed({"files/a.md": b"x"}, linked("files/f", "", tarfile.FIFOTYPE)),
    "twice": twice,
    "bomb": bomb,
    "long name": long_name,
    "negative size": lambda: gzip.compress(sized(-512) + bytes(1 << 20)),
    "negative name": lambda: gzip.compress(sized(-512, tarfile.GNUTYPE_LONGNAME) + bytes(1 << 20)),
    "sparse": lambda: gzip.compress(sized(1 << 40, tarfile.GNUTYPE_SPARSE) + bytes(1 << 20)),
    "names of names": lambda: gzip.compress((sized(0, tarfile.GNUTYPE_LONGNAME)) * 5000 + bytes(1024)),
    "extended headers": named_by_pax,
    "newer": lambda: packed({}, manifest={"made": "x", "files": {}, "format": 2}),
    "newer settings": lambda: packed({"files/holdfast.toml": b"format = 2\n"}),
    "wrong sum": lambda: packed({"files/a.md": b"x"}, manifest={"made": "x", "files": {
        "a.md": {"size": 1, "sha256": "0" * 64, "mtime": 1}}}),
    "missing file": lambda: packed({}, manifest={"made": "x", "files": {
        "a.md": {"size": 1, "sha256": "0" * 64, "mtime": 1}}}),
    "folders that lead out": lambda: packed({}, manifest={"made": "x", "files": {}, "folders": ["../evil"]}),
    "no archive": lambda: b"hello",
    "no manifest": lambda: gzip.compress(bytes(1024)),
    "empty": lambda: b"",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_or_damaged_archive_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "bad.tar.gz").write_bytes(HOSTILE[name]())
    before = sorted(os.listdir("/tmp"))
    with pytest.raises((Invalid, Damaged, OverBudget, AlreadyExists)):
        holdfast.restore(tmp_path / "bad.tar.gz", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.tar.gz"]
    assert "evil.md" not in set(os.listdir("/tmp")) - set(before)


def _unpacked(data: bytes) -> bytes | None:
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error):
        return None


def test_a_real_backup_that_is_cut_off_or_changed_anywhere_is_refused(filled: holdfast.Memory, tmp_path: Path) -> None:
    filled.backup(tmp_path / "copy.tar.gz")
    whole = (tmp_path / "copy.tar.gz").read_bytes()
    for spot in (*(len(whole) * step // 20 for step in range(1, 20)), *range(len(whole) - 12, len(whole))):
        for damaged in (whole[:spot], whole[:spot] + bytes([whole[spot] ^ 1]) + whole[spot + 1 :]):
            if _unpacked(damaged) == gzip.decompress(whole):
                continue  # the last bits before the checksum mean nothing
            (tmp_path / "bad.tar.gz").write_bytes(damaged)
            with pytest.raises(HoldfastError):
                holdfast.restore(tmp_path / "bad.tar.gz", tmp_path / "new")
            assert not (tmp_path / "new").exists()
    filled.backup(tmp_path / "folder")
    (tmp_path / "folder/files/user/memory/semantic.jsonl").write_bytes(b"{}\n")
    with pytest.raises(Damaged):
        holdfast.restore(tmp_path / "folder", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_backup_while_others_write_is_consistent(root: Path, tmp_path: Path) -> None:
    """Whole lines only, every large text is there that a line refers to, and nothing acknowledged before is missing."""
    stop = tmp_path / "stop"
    with holdfast.open(root) as memory:
        writers = [work(WRITE, str(root), name, str(stop)) for name in ("one", "two")]
        try:
            for number in range(3):
                before = {record.id for record in memory.every(SAID)}
                name = f"copy{number}" + (".tar.gz" if number % 2 else "")
                memory.backup(tmp_path / name)
                restored = holdfast.restore(tmp_path / name, tmp_path / f"again{number}")
                assert restored.damage == []
                with holdfast.open(tmp_path / f"again{number}") as copy:
                    there = {record.id for record in copy.every(SAID)}
                assert before <= there
                for log in (tmp_path / f"again{number}").rglob("*.jsonl"):
                    assert all(isinstance(jsonl.parse(line), list) for line in log.read_bytes().split(b"\n"))
                    assert log.read_bytes().endswith(b"\n")
        finally:
            stop.touch()
            ended = [process.wait(60) for process in writers]
            for process in writers:
                assert process.stdout
                process.stdout.close()
        assert ended == [0, 0]
        assert memory.verify().sound


@pytest.mark.parametrize("name", ["copy.tar.gz", "copy"])
def test_a_killed_backup_leaves_no_partial_backup(filled: holdfast.Memory, tmp_path: Path, name: str) -> None:
    for number in range(50):
        filled.put("note", f"Text {number} " * 50, title=f"Note {number}")
    long = finish(BACKUP, filled.root, str(tmp_path / f"first-{name}"))
    holdfast.restore(tmp_path / f"first-{name}", tmp_path / "wanted")
    wanted = everything(tmp_path / "wanted")
    in_time = 0
    for killed in kills(BACKUP, [[filled.root, str(tmp_path / name)]] * 20, long, seed=len(name)):
        in_time += killed
        if (tmp_path / name).exists():
            holdfast.restore(tmp_path / name, tmp_path / "again")
            assert everything(tmp_path / "again") == wanted
            for done in (tmp_path / name, tmp_path / "again"):
                done.rename(tmp_path / f"done-{os.urandom(4).hex()}-{done.name}")
    assert in_time >= 5
    filled.backup(tmp_path / name)
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".holdfast-tmp-")]
    assert filled.verify().sound


def test_a_killed_restore_is_complete_or_absent(filled: holdfast.Memory, tmp_path: Path) -> None:
    for number in range(50):
        filled.put("note", f"Text {number} " * 50, title=f"Note {number}")
    filled.backup(tmp_path / "copy.tar.gz")
    long = finish(RESTORE, str(tmp_path / "copy.tar.gz"), str(tmp_path / "first"))
    wanted = everything(tmp_path / "first")
    in_time, targets = 0, [tmp_path / f"new{number}" for number in range(20)]
    words = [[str(tmp_path / "copy.tar.gz"), str(target)] for target in targets]
    for target, killed in zip(targets, kills(RESTORE, words, long, seed=3), strict=True):
        in_time += killed
        assert not target.exists() or everything(target) == wanted
    assert in_time >= 5
    holdfast.restore(tmp_path / "copy.tar.gz", tmp_path / "last")
    assert everything(tmp_path / "last") == wanted
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".holdfast-tmp-")]


def test_a_preview_writes_nothing_and_a_damaged_backup_is_refused_by_it(
    filled: holdfast.Memory, tmp_path: Path
) -> None:
    root, target = place(filled), str(tmp_path / "copy.tar.gz")
    shown = on_terminal("backup", target, "--preview", root=root)
    assert "not there yet" in shown and "Nothing was written." in shown
    assert filled.backup(target, dry=True).files == filled.backup(target).files
    shown = on_terminal("restore", target, str(tmp_path / "again"), "--dry-run", root=root)
    assert "not there yet" in shown and "Nothing was written." in shown
    data = Path(target).read_bytes()
    Path(target).write_bytes(data[: len(data) // 2])
    on_terminal("restore", target, str(tmp_path / "again"), "--preview", root=root, code=8)
    assert [path.name for path in tmp_path.iterdir() if path.name != "root"] == ["copy.tar.gz"]


def test_the_commands_show_progress_and_what_was_done(filled: holdfast.Memory, tmp_path: Path) -> None:
    root = place(filled)
    shown = on_terminal("backup", str(tmp_path / "copy.tar.gz"), root=root)
    assert "copying" in shown
    assert f"bytes: {tmp_path}/copy.tar.gz" in shown
    shown = on_terminal("restore", str(tmp_path / "copy.tar.gz"), str(tmp_path / "again"), root=root)
    assert "restoring" in shown
    assert "as they were on" in shown
    shown = on_terminal("backup", str(tmp_path / "copy.tar.gz"), root=root, code=4)
    assert "exists already; nothing was written." in shown
    shown = on_terminal("restore", str(tmp_path / "copy.tar.gz"), str(tmp_path / "again"), root=root, code=4)
    assert "is not an empty folder" in shown
