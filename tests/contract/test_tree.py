"""The tree of files fulfils its contract."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from contract.tree_contract import MEGABYTE, Opener, TreeContract
from holdfast.errors import AlreadyExists, Conflict, HoldfastError, NotFound
from holdfast.storage.files.tree import Files
from holdfast.storage.tree import ABSENT


class FileOpener:
    """A folder of plain files; `native=False` opens them without openat2."""

    def __init__(self, name: str, *, native: bool) -> None:
        self.name = name
        self._native = native

    def open(self, place: str, *, line_bytes: int = 8 * MEGABYTE, lock_seconds: float = 30.0) -> Files:
        return Files(place, lock_seconds=lock_seconds, line_bytes=line_bytes, native=self._native)

    def plant(self, place: str, path: str, data: bytes) -> None:
        file = Path(place, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


OPENERS: list[Opener] = [FileOpener("files", native=True), FileOpener("files-portable", native=False)]


@pytest.mark.parametrize("opener", OPENERS, ids=lambda opener: str(opener.name))
class TestTree(TreeContract):
    """The contract, with and without openat2."""


class TestFiles:
    """Beyond the contract: the folder belongs to the owner and stays tidy."""

    @pytest.mark.parametrize("opener", OPENERS, ids=lambda opener: str(opener.name))
    def test_writes_leave_nothing_but_the_files(self, opener: Opener, tmp_path: Path) -> None:
        tree = opener.open(str(tmp_path))
        first = tree.write("a/b.md", b"first", expect=ABSENT)
        tree.write("a/b.md", b"second", expect=first, keep="kept/one")
        with pytest.raises(AlreadyExists):
            tree.write("a/b.md", b"third", expect=ABSENT)
        with pytest.raises(Conflict):
            tree.write("a/b.md", b"third", expect=first)
        tree.append("a/log.jsonl", lambda _: b"one\n")
        tree.move("a/b.md", "c/d.md")
        tree.close()
        found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
        assert found == ["a/log.jsonl", "c/d.md", "kept/one"]

    @pytest.mark.parametrize("opener", OPENERS, ids=lambda opener: str(opener.name))
    def test_a_move_of_nothing_leaves_no_folder(self, opener: Opener, tmp_path: Path) -> None:
        tree = opener.open(str(tmp_path))
        with pytest.raises(NotFound):
            tree.move("old/a.md", "new/a.md")
        tree.close()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("opener", OPENERS, ids=lambda opener: str(opener.name))
    def test_long_use_holds_no_more_and_more_files_open(self, opener: Opener, tmp_path: Path) -> None:
        tree = opener.open(str(tmp_path))

        def use(number: int) -> None:
            tree.append(f"logs/{number}.jsonl", lambda _: b"one\n", durable=False)
            tree.append(f"logs/{number}.jsonl", lambda _: b"two\n", durable=False)
            with contextlib.suppress(HoldfastError):
                tree.move(f"logs/{number}.jsonl", "logs/0.jsonl")
            with contextlib.suppress(HoldfastError):
                tree.move(f"logs/{number}.jsonl", "logs/0.jsonl/below")
            tree.remove(f"logs/{number}.jsonl")

        use(0)
        tree.append("logs/0.jsonl", lambda _: b"one\n")
        before = len(os.listdir("/dev/fd"))
        for number in range(1, 31):
            use(number)
        assert len(os.listdir("/dev/fd")) <= before + 5
        tree.close()
        assert len(os.listdir("/dev/fd")) < before
