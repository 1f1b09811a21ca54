"""The contract of a tree of files.

An `Opener` opens trees, and writes files as another program would, without the tree. To test another implementation, add
an opener to the list in `test_tree.py`; nothing here depends on how files are stored.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import AlreadyExists, Busy, Conflict, HoldfastError, Invalid, NotFound, OverBudget
from holdfast.model.records import version_of
from holdfast.storage.files.log import LogEnd
from holdfast.storage.files.tree import Files as Tree
from holdfast.storage.tree import ABSENT, Line, Stamp

LONGEST = 64
"""The line limit of trees in tests of overlong lines."""
MEGABYTE = 1 << 20
LOCK = "runs/lock"


class Opener(Protocol):
    """Opens trees on one kind of storage. It is sent to other processes, so it must pickle."""

    name: str

    def open(self, place: str, *, line_bytes: int = 8 * MEGABYTE, lock_seconds: float = 30.0) -> Tree:
        """Open the tree at a place; the same place is the same tree, in any process."""
        ...

    def plant(self, place: str, path: str, data: bytes) -> None:
        """Put bytes at a path as another program would."""
        ...


def say(data: bytes) -> Callable[[LogEnd], bytes]:
    return lambda _: data


def content(tree: Tree, path: str) -> bytes:
    """Return all bytes of a log, put together from its lines."""
    return b"".join(line.data + (b"\n" if line.whole else b"") for line in tree.scan(path))


def model(data: bytes, longest: int) -> list[Line]:
    """Return what a scan of these bytes must return, computed in the slow and obvious way."""
    pieces = data.split(b"\n")
    result = []
    offset = 0
    for number, piece in enumerate(pieces):
        whole = number < len(pieces) - 1
        end = offset + len(piece) + whole
        cut = len(piece) > longest
        if whole or piece:
            result.append(Line(offset, b"" if cut else piece, end, whole, cut))
        offset = end
    return result


def walked(tree: Tree, folder: str, *suffixes: str) -> dict[str, Stamp]:
    """Walk a tree in which nothing is refused."""
    refused: list[tuple[str, str]] = []
    found = list(tree.walk(folder, suffixes or (".md", ".jsonl"), lambda path, why: refused.append((path, why))))
    assert refused == []
    assert len(dict(found)) == len(found), "a path came twice"
    return dict(found)


_SIZES = st.sampled_from([0, 0, 1, 2, 7, 63, 64, 65, 66, 500, 65_535, 65_536, 65_537, MEGABYTE - 1, MEGABYTE + 1])
_MADE = st.lists(st.tuples(_SIZES, st.sampled_from([b"x", b" ", b"\r", b"\0", b"\xff"])), max_size=8)


@st.composite
def log_bytes(draw: st.DrawFn) -> bytes:
    """Draw the bytes of a log: random bytes, or lines around the sizes of the readers' buffers."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=400).map(lambda data: data.replace(b"\x07", b"\n")))
    data = b"".join(fill * size + b"\n" for size, fill in draw(_MADE))
    return data if draw(st.booleans()) else data + b"t" * draw(_SIZES)


class TreeContract:
    """The tests; a subclass provides the fixture `opener`."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        folder = tmp_path / "tree"
        folder.mkdir()
        return str(folder)

    @pytest.fixture
    def tree(self, opener: Opener, place: str) -> Iterator[Tree]:
        opened = opener.open(place)
        yield opened
        opened.close()

    # documents

    def test_a_document_is_read_as_it_was_written(self, tree: Tree) -> None:
        version = tree.write("a/b/c.md", b"hello\r\n\0\xff", expect=ABSENT)
        found = tree.read("a/b/c.md")
        assert (found.data, found.version, found.stamp.size) == (b"hello\r\n\0\xff", version, 9)

    @pytest.mark.parametrize("data", [b"", b"x", b"x" * (3 * MEGABYTE)], ids=["empty", "byte", "3 MB"])
    def test_a_document_may_have_any_size(self, tree: Tree, data: bytes) -> None:
        tree.write("a.md", data, expect=ABSENT)
        assert tree.read("a.md").data == data

    def test_a_version_stands_for_the_bytes_and_for_nothing_else(self, tree: Tree) -> None:
        one = tree.write("a.md", b"one", expect=ABSENT)
        same = tree.write("elsewhere/b.md", b"one", expect=ABSENT)
        other = tree.write("c.md", b"two", expect=ABSENT)
        assert one == same != other
        assert ABSENT not in (one, other)

    def test_an_empty_document_has_a_version_that_is_not_absence(self, tree: Tree) -> None:
        empty = tree.write("a.md", b"", expect=ABSENT)
        assert empty != ABSENT
        with pytest.raises(AlreadyExists):
            tree.write("a.md", b"more", expect=ABSENT)

    def test_many_documents_are_made_where_nothing_is(self, tree: Tree) -> None:
        there = tree.write("a/one.md", b"first", expect=ABSENT)
        files = {"a/one.md": b"other", "a/two.md": b"", "b/c/three.md": b"\0\xff\r\n"}
        assert tree.create_all(files) == {"a/two.md", "b/c/three.md"}
        assert tree.create_all(files) == set()
        assert tree.create_all({}) == set()
        known = tree.versions([*files, "a/none.md"])
        assert known == {path: tree.read(path).version for path in files}
        assert known["a/one.md"] == there
        assert tree.read("b/c/three.md").data == b"\0\xff\r\n"

    def test_many_documents_are_refused_where_a_file_is_a_folder(self, tree: Tree) -> None:
        tree.write("a/b/one.md", b"first", expect=ABSENT)
        for path in ("a/b/one.md/two.md", "../out.md", "/etc/out.md"):
            with pytest.raises(Invalid):
                tree.create_all({path: b"x"})
        with pytest.raises(HoldfastError):
            tree.create_all({"x/../y.md": b"x"})

    def test_the_versions_of_logs_are_those_of_their_bytes(self, tree: Tree) -> None:
        tree.append("log.jsonl", lambda _: b"{}\n")
        assert tree.versions(["log.jsonl"]) == {"log.jsonl": version_of(b"{}\n")}

    def test_what_another_program_wrote_is_read(self, opener: Opener, place: str, tree: Tree) -> None:
        opener.plant(place, "a/by-hand.md", b"by hand")
        assert tree.read("a/by-hand.md").data == b"by hand"

    def test_creating_never_replaces(self, tree: Tree) -> None:
        tree.write("a.md", b"first", expect=ABSENT)
        before = tree.read("a.md")
        with pytest.raises(AlreadyExists, match=r"a\.md already exists"):
            tree.write("a.md", b"second", expect=ABSENT)
        assert tree.read("a.md") == before

    def test_creating_never_replaces_even_with_the_same_bytes(self, tree: Tree) -> None:
        tree.write("a.md", b"first", expect=ABSENT)
        with pytest.raises(AlreadyExists):
            tree.write("a.md", b"first", expect=ABSENT)

    def test_creating_never_replaces_what_another_program_wrote(self, opener: Opener, place: str, tree: Tree) -> None:
        opener.plant(place, "a.md", b"by hand")
        with pytest.raises(AlreadyExists):
            tree.write("a.md", b"ours", expect=ABSENT)
        assert tree.read("a.md").data == b"by hand"

    def test_a_write_from_the_current_version_lands(self, tree: Tree) -> None:
        first = tree.write("a.md", b"first", expect=ABSENT)
        second = tree.write("a.md", b"second", expect=first)
        assert (tree.read("a.md").data, tree.read("a.md").version) == (b"second", second)

    def test_a_write_with_a_stale_version_is_refused(self, tree: Tree) -> None:
        first = tree.write("a.md", b"first", expect=ABSENT)
        tree.write("a.md", b"second", expect=first)
        second = tree.read("a.md")
        with pytest.raises(Conflict, match=r"a\.md was changed"):
            tree.write("a.md", b"third", expect=first, keep="kept/one")
        assert tree.read("a.md") == second
        assert tree.stat("kept/one") is None

    def test_a_write_after_a_change_by_hand_is_stale(self, opener: Opener, place: str, tree: Tree) -> None:
        first = tree.write("a.md", b"first", expect=ABSENT)
        opener.plant(place, "a.md", b"2nd..")
        with pytest.raises(Conflict):
            tree.write("a.md", b"third", expect=first)
        assert tree.read("a.md").data == b"2nd.."

    def test_a_write_to_what_was_removed_is_a_conflict_and_does_not_create(self, tree: Tree) -> None:
        first = tree.write("a.md", b"first", expect=ABSENT)
        tree.remove("a.md")
        with pytest.raises(Conflict, match=r"a\.md is no longer there"):
            tree.write("a.md", b"second", expect=first)
        assert tree.stat("a.md") is None

    def test_a_document_is_removed_only_in_the_version_that_was_meant(self, tree: Tree) -> None:
        tree.write("notes/a.md", b"one", expect=ABSENT)
        version = tree.write("notes/a.md", b"two", expect=tree.read("notes/a.md").version)
        with pytest.raises(Conflict):
            tree.remove("notes/a.md", expect=tree.write("notes/b.md", b"one", expect=ABSENT), keep="kept/x")
        assert tree.read("notes/a.md").data == b"two"
        assert tree.stat("kept/x") is None
        tree.remove("notes/a.md", expect=version, keep="kept/x")
        assert tree.stat("notes/a.md") is None
        assert tree.read("kept/x").data == b"two"
        tree.write("notes/a.md", b"two", expect=ABSENT)
        tree.remove("notes/a.md", expect=version, keep="kept/x")
        assert tree.stat("notes/a.md") is None

    def test_a_link_is_made_once_and_says_where_it_leads(self, tree: Tree) -> None:
        tree.write("rules/a.md", b"one", expect=ABSENT)
        tree.link("client/a.mdc", "../rules/a.md")
        assert tree.target("client/a.mdc") == "../rules/a.md"
        assert tree.read("client/a.mdc").data == b"one"
        assert tree.target("rules/a.md") is None
        assert tree.target("nowhere/a.md") is None
        with pytest.raises(AlreadyExists):
            tree.link("client/a.mdc", "elsewhere")
        with pytest.raises(AlreadyExists):
            tree.link("rules/a.md", "elsewhere")
        tree.remove("client/a.mdc")
        assert tree.target("client/a.mdc") is None
        assert tree.read("rules/a.md").data == b"one"

    def test_replaced_bytes_are_kept_where_they_are_asked_to_be(self, tree: Tree) -> None:
        first = tree.write("a.md", b"first", expect=ABSENT, keep="kept/none")
        second = tree.write("a.md", b"second", expect=first, keep="kept/one")
        tree.write("a.md", b"third", expect=second, keep="kept/deeper/two")
        assert tree.stat("kept/none") is None
        assert tree.read("kept/one").data == b"first"
        assert tree.read("kept/deeper/two").data == b"second"
        assert tree.read("a.md").data == b"third"

    def test_keeping_never_replaces_what_was_kept_before(self, tree: Tree) -> None:
        tree.write("kept/one", b"precious", expect=ABSENT)
        first = tree.write("a.md", b"first", expect=ABSENT)
        tree.write("a.md", b"second", expect=first, keep="kept/one")
        assert tree.read("kept/one").data == b"precious"

    def test_a_later_write_does_not_reach_the_kept_bytes(self, tree: Tree) -> None:
        first = tree.write("a.md", b"first", expect=ABSENT)
        second = tree.write("a.md", b"second", expect=first, keep="kept/one")
        tree.write("a.md", b"third", expect=second)
        tree.remove("a.md")
        assert tree.read("kept/one").data == b"first"

    @pytest.mark.parametrize(("limit", "fits"), [(0, True), (5, True), (6, True), (4, False), (1, False)])
    def test_a_document_over_the_limit_is_over_budget(self, tree: Tree, limit: int, fits: bool) -> None:
        tree.write("a.md", b"12345", expect=ABSENT)
        if fits:
            assert tree.read("a.md", limit).data == b"12345"
        else:
            with pytest.raises(OverBudget, match=r"a\.md has 5 bytes"):
                tree.read("a.md", limit)

    # what is not there

    @pytest.mark.parametrize("path", ["gone.md", "no/such/folder/gone.md", "there.md/gone.md"])
    @pytest.mark.parametrize("operation", ["read", "scan", "scan_back", "fingerprint", "remove", "move"])
    def test_what_is_not_there_is_not_found_by_name(self, tree: Tree, operation: str, path: str) -> None:
        tree.write("there.md", b"text", expect=ABSENT)
        calls: dict[str, Callable[[], object]] = {
            "read": lambda: tree.read(path),
            "scan": lambda: list(tree.scan(path)),
            "scan_back": lambda: list(tree.scan_back(path)),
            "fingerprint": lambda: tree.fingerprint(path, 0, 1),
            "remove": lambda: tree.remove(path),
            "move": lambda: tree.move(path, "target.md"),
        }
        with pytest.raises(NotFound) as caught:
            calls[operation]()
        assert caught.value.message == f"{path} does not exist."
        assert caught.value.next_step
        assert tree.stat("target.md") is None

    def test_a_folder_is_not_a_file(self, tree: Tree) -> None:
        tree.write("folder/a.md", b"text", expect=ABSENT)
        for call in (
            lambda: tree.read("folder"),
            lambda: list(tree.scan("folder")),
            lambda: tree.append("folder", say(b"line\n")),
        ):
            with pytest.raises(Invalid, match="folder"):
                call()
        with pytest.raises(AlreadyExists):
            tree.write("folder", b"text", expect=ABSENT)
        assert tree.read("folder/a.md").data == b"text"

    # appending

    def test_an_append_makes_the_log_and_its_folders(self, tree: Tree) -> None:
        done = tree.append("a/b/log.jsonl", say(b"one\n"))
        assert done is not None
        assert (done.start, done.stop) == (0, 4)
        assert content(tree, "a/b/log.jsonl") == b"one\n"

    def test_appends_come_one_after_the_other(self, tree: Tree) -> None:
        tree.append("log.jsonl", say(b"one\n"))
        done = tree.append("log.jsonl", say(b"two\nthree\n"), durable=False)
        assert done is not None
        assert (done.start, done.stop) == (4, 14)
        assert content(tree, "log.jsonl") == b"one\ntwo\nthree\n"

    def test_composing_nothing_changes_nothing(self, tree: Tree) -> None:
        tree.append("log.jsonl", say(b"one\n"))
        before = tree.stat("log.jsonl")
        assert tree.append("log.jsonl", say(b"")) is None
        assert tree.stat("log.jsonl") == before

    def test_composing_nothing_leaves_a_torn_tail_alone(self, opener: Opener, place: str, tree: Tree) -> None:
        opener.plant(place, "log.jsonl", b"one\ntor")
        assert tree.append("log.jsonl", say(b"")) is None
        assert content(tree, "log.jsonl") == b"one\ntor"

    @pytest.mark.parametrize("error", [RuntimeError("mine"), Conflict("mine"), OSError(5, "mine"), KeyboardInterrupt()])
    def test_an_error_while_composing_changes_nothing_and_lets_the_log_go(
        self, opener: Opener, place: str, error: BaseException
    ) -> None:
        tree = opener.open(place, lock_seconds=1.0)
        tree.append("log.jsonl", say(b"one\n"))

        def fail(_: LogEnd) -> bytes:
            raise error

        with pytest.raises((type(error), HoldfastError)):
            tree.append("log.jsonl", fail)
        assert content(tree, "log.jsonl") == b"one\n"
        tree.append("log.jsonl", say(b"two\n"))
        assert content(tree, "log.jsonl") == b"one\ntwo\n"
        tree.close()

    @pytest.mark.parametrize("torn", [b"tor", b'{"a":', b"\0\0\0", b"\xff", b"\r", b" "])
    def test_the_next_append_seals_a_torn_tail(self, opener: Opener, place: str, tree: Tree, torn: bytes) -> None:
        opener.plant(place, "log.jsonl", b"one\n" + torn)
        done = tree.append("log.jsonl", say(b"two\n"))
        assert content(tree, "log.jsonl") == b"one\n" + torn + b"\ntwo\n"
        assert done is not None
        assert (done.start, done.stop) == (4 + len(torn), 9 + len(torn))
        tree.append("log.jsonl", say(b"three\n"))
        assert content(tree, "log.jsonl") == b"one\n" + torn + b"\ntwo\nthree\n"

    @pytest.mark.parametrize(
        ("planted", "last"),
        [
            (b"", b""),
            (b"one\n", b"one"),
            (b"one\ntwo\n", b"two"),
            (b"one\n\n \n\t\r\n", b"one"),
            (b"\n\n", b""),
            (b"one\ntor", b"tor"),
            (b"one\n" + b"x" * 100_000 + b"\n", b"one"),
            (b"one\n" + b"\n" * 100_000, b"one"),
            (b"one\n" + b"x" * LONGEST + b"\n", b"x" * LONGEST),
        ],
        ids=["nothing", "one", "two", "blank end", "all blank", "torn", "over-long end", "long blank end", "longest"],
    )
    def test_an_append_sees_the_last_line_with_something_on_it(
        self, opener: Opener, place: str, planted: bytes, last: bytes
    ) -> None:
        tree = opener.open(place, line_bytes=LONGEST)
        opener.plant(place, "log.jsonl", planted)
        seen: list[tuple[int, bytes]] = []

        def look(end: LogEnd) -> bytes:
            seen.append((end.size, next(end.back(), b"")))
            return b""

        tree.append("log.jsonl", look)
        assert seen == [(len(planted), last)]
        tree.close()

    def test_lines_are_rewritten_at_once_and_all_others_stay(self, opener: Opener, tmp_path: Path) -> None:
        tree = opener.open(str(tmp_path), line_bytes=LONGEST)
        long = b"x" * (3 * LONGEST)
        opener.plant(str(tmp_path), "log.jsonl", b"one\ntwo\n\n" + long + b"\nthree\ntor")
        assert tree.rewrite("log.jsonl", lambda line: b"2" if line == b"two" else line) == 1
        assert tree.read("log.jsonl").data == b"one\n2  \n\n" + long + b"\nthree\ntor"
        assert tree.rewrite("log.jsonl", lambda line: line) == 0
        assert tree.rewrite("log.jsonl", lambda line: line.replace(b"t", b"T")) == 2
        assert tree.read("log.jsonl").data.endswith(b"\nThree\nTor")
        with pytest.raises(NotFound):
            tree.rewrite("none.jsonl", lambda line: line)
        tree.append("log.jsonl", lambda _: b"after\n")
        assert [line.data for line in tree.scan("log.jsonl")][-2:] == [b"Tor", b"after"]
        tree.close()

    @pytest.mark.parametrize("width", [1, 9, 40])
    @pytest.mark.parametrize("torn", [b"", b"line"])
    def test_lines_of_a_large_log_are_rewritten_wherever_they_lie(
        self, opener: Opener, place: str, tree: Tree, width: int, torn: bytes
    ) -> None:
        lines = [b"line %d " % number + b"x" * (number % 90) for number in range(12_000)]
        opener.plant(place, "log.jsonl", b"\n".join(lines) + b"\n" + torn)
        before = tree.stat("log.jsonl")

        def change(line: bytes) -> bytes:
            return b"y" * width if line.endswith(b"7 xxxxxxx") else line

        changed = [change(line).ljust(len(line)) for line in lines]
        assert tree.rewrite("log.jsonl", change) == sum(one != two for one, two in zip(lines, changed, strict=True))
        assert tree.read("log.jsonl").data == b"\n".join(changed) + b"\n" + torn
        after = tree.stat("log.jsonl")
        assert before is not None and after is not None
        assert before.inode != after.inode
        done = tree.append("log.jsonl", lambda end: b"after %s\n" % next(end.back())[:4])
        assert done is not None and done.start == after.size
        assert tree.read("log.jsonl").data.endswith((b"\n" if torn else b"") + b"after line\n")

    def test_who_appends_while_a_log_is_rewritten_loses_nothing(self, opener: Opener, tmp_path: Path) -> None:
        tree = opener.open(str(tmp_path))
        tree.append("log.jsonl", lambda _: b"first\n" * 2000)

        def compose(number: int, _end: LogEnd) -> bytes:
            return b"line %d\n" % number

        def change(turn: int, line: bytes) -> bytes:
            return line if b"line" in line else b"turn %d" % turn

        with ThreadPoolExecutor(4) as pool:
            writing = [
                pool.submit(tree.append, "log.jsonl", functools.partial(compose, number)) for number in range(120)
            ]
            for turn in range(15):
                tree.rewrite("log.jsonl", functools.partial(change, turn))
            for each in writing:
                each.result()
        found = [line.data for line in tree.scan("log.jsonl")]
        assert sorted(line for line in found if b"line" in line) == sorted(b"line %d" % n for n in range(120))
        assert len(found) == 2120
        tree.close()

    def test_a_snapshot_of_a_log_ends_with_a_whole_line(self, opener: Opener, tmp_path: Path) -> None:
        tree = opener.open(str(tmp_path))
        opener.plant(str(tmp_path), "log.jsonl", b"one\ntwo\ntor")
        with tree.snapshot("log.jsonl", log=True) as found:
            tree.append("log.jsonl", lambda _: b"three\n")
            assert (found.size, b"".join(found.chunks)) == (8, b"one\ntwo\n")
        with tree.snapshot("log.jsonl") as found:
            assert b"".join(found.chunks) == tree.read("log.jsonl").data
        with pytest.raises(NotFound), tree.snapshot("none"):
            pass
        tree.close()

    @pytest.mark.parametrize("size", [0, 1, 262_143, 262_144, 262_145, 9_000_000])
    def test_a_file_of_any_size_is_created_and_seen_whole(self, tree: Tree, size: int) -> None:
        data = (b"0123456789abcde\n" * (size // 16 + 1))[:size]
        tree.create("a/b.jsonl", (data[start : start + 100_001] for start in range(0, size, 100_001)))
        assert tree.read("a/b.jsonl").data == data
        with tree.snapshot("a/b.jsonl", log=True) as found:
            tree.append("a/b.jsonl", lambda _: b"later\n")
            assert found.size == data.rfind(b"\n") + 1
            assert b"".join(found.chunks) == data[: found.size]
        version = tree.read("a/b.jsonl").version
        tree.write("a/b.jsonl", b"other", expect=version)
        assert tree.read("a/b.jsonl").data == b"other"

    @pytest.mark.parametrize("durable", [True, False])
    def test_a_file_is_created_from_pieces_or_not_at_all(self, opener: Opener, tmp_path: Path, durable: bool) -> None:
        tree = opener.open(str(tmp_path))
        tree.create("a/b.bin", iter([b"one", b"", b"two"]), mtime=10**18, durable=durable)
        tree.settle()
        assert tree.read("a/b.bin").data == b"onetwo"
        stamp = tree.stat("a/b.bin")
        assert stamp is not None
        assert stamp.mtime == 10**18
        with pytest.raises(AlreadyExists):
            tree.create("a/b.bin", [b"other"], durable=durable)

        def broken() -> Iterator[bytes]:
            yield b"half"
            raise Conflict("gone")

        with pytest.raises(Conflict):
            tree.create("a/c.bin", broken(), durable=durable)
        assert tree.stat("a/c.bin") is None
        assert tree.read("a/b.bin").data == b"onetwo"
        tree.close()

    @pytest.mark.parametrize(
        ("offset", "lines"),
        [
            (0, [b"one", b"", b"three", b"tor"]),
            (4, [b"", b"three", b"tor"]),
            (5, [b"three", b"tor"]),
            (14, []),
            (99, []),
        ],
    )
    def test_an_append_sees_the_lines_from_an_offset_on(
        self, opener: Opener, place: str, tree: Tree, offset: int, lines: list[bytes]
    ) -> None:
        opener.plant(place, "log.jsonl", b"one\n\nthree\ntor")
        seen: list[list[bytes]] = []

        def look(end: LogEnd) -> bytes:
            seen.append(list(end.lines(offset)))
            return b""

        tree.append("log.jsonl", look)
        assert seen == [lines]

    def test_a_log_that_is_held_for_too_long_is_busy_and_unchanged(self, opener: Opener, place: str) -> None:
        tree = opener.open(place, lock_seconds=0.05)
        tree.append("log.jsonl", say(b"one\n"))
        refused: list[HoldfastError] = []

        def while_held(_: LogEnd) -> bytes:
            other = opener.open(place, lock_seconds=0.05)
            try:
                other.append("log.jsonl", say(b"other\n"))
            except HoldfastError as error:
                refused.append(error)
            other.close()
            return b"two\n"

        tree.append("log.jsonl", while_held)
        assert [type(error) for error in refused] == [Busy]
        assert "log.jsonl" in refused[0].message
        assert content(tree, "log.jsonl") == b"one\ntwo\n"
        tree.close()

    # scanning

    def test_a_scan_starts_at_an_offset_and_stops_at_an_end(self, opener: Opener, place: str, tree: Tree) -> None:
        opener.plant(place, "log.jsonl", b"one\ntwo\nthree\n")
        assert [line.data for line in tree.scan("log.jsonl", 4)] == [b"two", b"three"]
        assert [line.data for line in tree.scan("log.jsonl", 4, 8)] == [b"two"]
        assert list(tree.scan("log.jsonl", 4, 6)) == [Line(4, b"tw", 6, whole=False)]
        assert list(tree.scan("log.jsonl", 14)) == []
        assert list(tree.scan("log.jsonl", 99)) == []
        assert [line.end for line in tree.scan("log.jsonl", 0, 99)] == [4, 8, 14]

    def test_a_last_line_without_newline_is_not_whole(self, opener: Opener, place: str, tree: Tree) -> None:
        opener.plant(place, "log.jsonl", b"one\ntor")
        expected = [Line(0, b"one", 4), Line(4, b"tor", 7, whole=False)]
        assert list(tree.scan("log.jsonl")) == expected
        assert list(tree.scan_back("log.jsonl")) == expected[::-1]

    @pytest.mark.parametrize("ended", [True, False])
    @pytest.mark.parametrize("size", [LONGEST + 1, 65_536 + 10, MEGABYTE + 10, 2 * MEGABYTE + LONGEST])
    def test_an_over_long_line_is_cut_and_its_neighbours_are_not(
        self, opener: Opener, place: str, size: int, ended: bool
    ) -> None:
        tree = opener.open(place, line_bytes=LONGEST)
        data = b"one\n" + b"x" * size + b"\nthree\n" + b"y" * size + b"\n" * ended
        opener.plant(place, "log.jsonl", data)
        expected = [
            Line(0, b"one", 4),
            Line(4, b"", 5 + size, cut=True),
            Line(5 + size, b"three", 11 + size),
            Line(11 + size, b"", 11 + 2 * size + ended, whole=ended, cut=True),
        ]
        assert list(tree.scan("log.jsonl")) == expected
        assert list(tree.scan_back("log.jsonl")) == expected[::-1]
        tree.close()

    def test_an_over_long_line_does_not_fill_the_memory(self, opener: Opener, place: str) -> None:
        size = 48 * MEGABYTE
        opener.plant(place, "log.jsonl", b"one\n" + b"x" * size + b"\nthree\n")
        tree = opener.open(place, line_bytes=MEGABYTE)
        peaks = []
        for scan in (tree.scan, tree.scan_back):
            tracemalloc.start()
            try:
                assert [line.cut for line in scan("log.jsonl")] == [False, True, False]
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
        assert max(peaks) < size // 4
        tree.close()

    def test_what_is_appended_while_a_scan_runs_does_not_upset_it(self, tree: Tree) -> None:
        tree.append("log.jsonl", say(b"one\ntwo\n"))
        scan = tree.scan("log.jsonl")
        assert next(scan).data == b"one"
        tree.append("log.jsonl", say(b"three\n"))
        assert next(scan).data == b"two"

    @settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(data=log_bytes())
    def test_scanning_either_way_gives_the_lines_of_the_log(
        self, opener: Opener, tmp_path_factory: pytest.TempPathFactory, data: bytes
    ) -> None:
        place = str(tmp_path_factory.mktemp("scan"))
        opener.plant(place, "log.jsonl", data)
        tree = opener.open(place, line_bytes=LONGEST)
        try:
            expected = model(data, LONGEST)
            assert list(tree.scan("log.jsonl")) == expected
            assert list(tree.scan_back("log.jsonl")) == expected[::-1]
            for number, line in enumerate(expected):
                assert list(tree.scan("log.jsonl", line.offset)) == expected[number:]
                assert list(tree.scan("log.jsonl", 0, line.offset)) == expected[:number]
        finally:
            tree.close()

    # fingerprints

    @settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(data=log_bytes(), cuts=st.lists(st.floats(0, 1), max_size=4))
    def test_a_fingerprint_taken_in_steps_is_that_of_the_whole(
        self, opener: Opener, tmp_path_factory: pytest.TempPathFactory, data: bytes, cuts: list[float]
    ) -> None:
        place = str(tmp_path_factory.mktemp("sum"))
        opener.plant(place, "log.jsonl", data)
        tree = opener.open(place)
        try:
            steps = [0, *sorted(int(cut * len(data)) for cut in cuts), len(data)]
            checksum = 0
            for start, end in itertools.pairwise(steps):
                checksum = tree.fingerprint("log.jsonl", start, end, checksum)
            assert checksum == tree.fingerprint("log.jsonl", 0, len(data)) >= 0
        finally:
            tree.close()

    def test_a_fingerprint_tells_other_bytes_and_missing_ones(self, opener: Opener, place: str, tree: Tree) -> None:
        opener.plant(place, "log.jsonl", b"one\ntwo\n")
        first = tree.fingerprint("log.jsonl", 0, 8)
        assert tree.fingerprint("log.jsonl", 0, 4) != first
        assert tree.fingerprint("log.jsonl", 0, 9) == -1
        assert tree.fingerprint("log.jsonl", 8, 8, 77) == 77
        opener.plant(place, "log.jsonl", b"one\ntwO\n")
        assert tree.fingerprint("log.jsonl", 0, 8) != first

    # the tree

    def test_a_stamp_stays_until_the_file_changes(self, tree: Tree) -> None:
        first = tree.write("a.md", b"first", expect=ABSENT)
        before = tree.read("a.md").stamp
        assert tree.stat("a.md") == before
        tree.write("a.md", b"other", expect=first)
        assert tree.stat("a.md") != before

    @pytest.mark.parametrize("path", ["gone.md", "no/such/gone.md", "there.md/gone.md"])
    def test_what_is_not_there_has_no_stamp(self, tree: Tree, path: str) -> None:
        tree.write("there.md", b"text", expect=ABSENT)
        assert tree.stat(path) is None

    def test_a_walk_gives_every_file_with_a_wanted_suffix(self, opener: Opener, place: str, tree: Tree) -> None:
        for path in ("top/a.md", "top/b.jsonl", "top/c.txt", "top/d/e/f.md", "top/md", "other/g.md", "top/A.MD"):
            opener.plant(place, path, b"text of " + path.encode())
        found = walked(tree, "top")
        assert sorted(found) == ["top/a.md", "top/b.jsonl", "top/d/e/f.md"]
        assert all(tree.stat(path) == stamp for path, stamp in found.items())
        assert sorted(walked(tree, "top", ".txt")) == ["top/c.txt"]

    def test_a_walk_passes_over_names_that_start_with_a_dot(self, opener: Opener, place: str, tree: Tree) -> None:
        for path in ("top/.hidden.md", "top/.folder/a.md", "top/b/.c/d.md", "top/b/e.md", "top/_plans/f.md"):
            opener.plant(place, path, b"text")
        assert sorted(walked(tree, "top")) == ["top/_plans/f.md", "top/b/e.md"]

    def test_a_walk_does_not_show_what_a_write_leaves_beside_the_file(self, tree: Tree) -> None:
        first = tree.write("top/a.md", b"first", expect=ABSENT)
        tree.write("top/a.md", b"second", expect=first)
        tree.append("top/log.jsonl", say(b"one\n"))
        assert sorted(walked(tree, "top", "")) == ["top/a.md", "top/log.jsonl"]

    def test_a_walk_of_a_file_gives_that_file(self, tree: Tree) -> None:
        tree.write("top/a.md", b"text", expect=ABSENT)
        assert walked(tree, "top/a.md") == {"top/a.md": tree.stat("top/a.md")}

    @pytest.mark.parametrize("folder", ["gone", "gone/deeper", "gone.md"])
    def test_a_walk_of_nothing_is_empty(self, tree: Tree, folder: str) -> None:
        assert walked(tree, folder) == {}

    def test_folders_are_named_sorted_without_files_and_topics(self, opener: Opener, place: str, tree: Tree) -> None:
        for path in ("top/b/x.md", "top/a/x.md", "top/_plans/x.md", "top/.hidden/x.md", "top/file.md"):
            opener.plant(place, path, b"text")
        assert tree.folders("top") == ["a", "b"]
        assert tree.folders("top/a") == []
        assert tree.folders("gone") == []
        assert tree.folders("gone/deeper") == []

    def test_a_folder_has_a_stamp_while_something_is_in_it(self, tree: Tree) -> None:
        assert tree.folder_stamp("top") == tree.folder_stamp("top/deeper") == 0
        tree.write("top/deeper/a.md", b"text", expect=ABSENT)
        assert tree.folder_stamp("top") > 0
        before = tree.folder_stamp("top/deeper")
        assert tree.folder_stamp("top/deeper") == before > 0
        assert tree.folder_stamp("top/deep") == tree.folder_stamp("top/deeper2") == 0

    def test_a_log_is_held_by_one_at_a_time_and_can_be_written_to(self, opener: Opener, place: str, tree: Tree) -> None:
        other = opener.open(place)
        release = tree.hold("runs/a.jsonl", LOCK)
        assert release is not None
        assert tree.hold("runs/a.jsonl", LOCK) is other.hold("runs/a.jsonl", LOCK) is None
        other.append("runs/a.jsonl", say(b"one\n"))
        assert other.hold("runs/b.jsonl", LOCK) is not None
        release()
        assert other.hold("runs/a.jsonl", LOCK) is not None
        assert tree.hold("runs/a.jsonl", LOCK) is tree.hold("runs/b.jsonl", LOCK) is None
        other.close()

    def test_a_log_stays_held_although_the_file_of_locks_is_removed(
        self, opener: Opener, place: str, tree: Tree
    ) -> None:
        other = opener.open(place)
        assert tree.hold("runs/a.jsonl", LOCK) is not None
        tree.remove(LOCK)
        assert tree.hold("runs/b.jsonl", LOCK) is not None
        assert other.hold("runs/a.jsonl", LOCK) is None
        other.close()

    def test_a_held_log_can_be_removed_while_lines_for_it_are_composed(self, tree: Tree) -> None:
        tree.append("runs/a.jsonl", say(b"one\n"))

        def remove(_: LogEnd) -> bytes:
            release = tree.hold("runs/a.jsonl", LOCK)
            assert release is not None
            tree.remove("runs/a.jsonl")
            release()
            return b""

        assert tree.append("runs/a.jsonl", remove) is None
        assert tree.stat("runs/a.jsonl") is None

    def test_a_document_that_is_appended_to_is_a_log_and_can_be_both(self, tree: Tree) -> None:
        tree.write("a.jsonl", b"one\ntor", expect=ABSENT)
        done = tree.append("a.jsonl", say(b"two\n"))
        assert done is not None
        assert (done.start, done.stop) == (7, 12)
        found = tree.read("a.jsonl")
        assert found.data == b"one\ntor\ntwo\n"
        version = tree.write("a.jsonl", b"anew\n", expect=found.version, keep="kept/a")
        assert [line.data for line in tree.scan("a.jsonl")] == [b"anew"]
        assert [line.data for line in tree.scan("kept/a")] == [b"one", b"tor", b"two"]
        tree.append("a.jsonl", say(b"more\n"))
        with pytest.raises(Conflict):
            tree.remove("a.jsonl", expect=version)
        tree.move("a.jsonl", "b.jsonl")
        tree.remove("b.jsonl", expect=tree.read("b.jsonl").version, keep="kept/b")
        assert tree.read("kept/b").data == b"anew\nmore\n"

    def test_a_moved_file_is_there_and_not_here(self, tree: Tree) -> None:
        tree.write("a.md", b"text", expect=ABSENT)
        tree.move("a.md", "new/folder/b.md")
        assert tree.stat("a.md") is None
        assert tree.read("new/folder/b.md").data == b"text"

    def test_a_move_never_replaces(self, tree: Tree) -> None:
        tree.write("a.md", b"one", expect=ABSENT)
        tree.write("b.md", b"two", expect=ABSENT)
        with pytest.raises(AlreadyExists, match=r"b\.md already exists"):
            tree.move("a.md", "b.md")
        assert (tree.read("a.md").data, tree.read("b.md").data) == (b"one", b"two")

    def test_a_removed_file_is_gone_and_only_that_one(self, tree: Tree) -> None:
        tree.write("top/a.md", b"one", expect=ABSENT)
        tree.write("top/b.md", b"two", expect=ABSENT)
        tree.remove("top/a.md")
        assert sorted(walked(tree, "top")) == ["top/b.md"]
        with pytest.raises(NotFound):
            tree.remove("top/a.md")
        tree.write("top/a.md", b"again", expect=ABSENT)

    # several at once

    def test_of_many_threads_that_create_a_name_exactly_one_wins(self, tree: Tree) -> None:
        for turn in range(10):
            path = f"race/{turn}.md"
            start = threading.Barrier(8)
            with ThreadPoolExecutor(8) as pool:
                won = list(pool.map(functools.partial(_create, tree, path, start.wait), range(8)))
            assert won.count(True) == 1
            assert tree.read(path).data == str(won.index(True)).encode()

    def test_of_many_processes_that_create_a_name_exactly_one_wins(
        self, opener: Opener, place: str, tree: Tree
    ) -> None:
        names = [f"race/{turn}.md" for turn in range(20)]
        with multiprocessing.get_context("spawn").Pool(3) as pool:
            results = pool.starmap(_create_all, [(opener, place, names, who) for who in range(3)], chunksize=1)
        for number, path in enumerate(names):
            won = [who for who, mine in enumerate(results) if mine[number]]
            assert len(won) == 1
            assert tree.read(path).data == str(won[0]).encode()

    def test_threads_that_count_in_one_document_lose_no_update(self, opener: Opener, place: str, tree: Tree) -> None:
        tree.write("count.md", b"0", expect=ABSENT)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: _count_up(opener, place, 10), range(8)))
        assert tree.read("count.md").data == b"80"

    def test_processes_that_count_in_one_log_lose_no_line(self, opener: Opener, place: str, tree: Tree) -> None:
        with multiprocessing.get_context("spawn").Pool(3) as pool:
            pool.starmap(_number_lines, [(opener, place, 40)] * 3, chunksize=1)
        assert [int(line.data) for line in tree.scan("count.jsonl")] == list(range(1, 121))

    def test_threads_that_append_to_one_log_lose_and_tear_no_line(self, tree: Tree) -> None:
        def write(who: int) -> None:
            for number in range(15):
                tree.append("log.jsonl", say(b"%d:%d:" % (who, number) + b"x" * 3000 + b"\n"), durable=number % 5 == 0)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(8)))
        lines = [line.data.split(b":") for line in tree.scan("log.jsonl")]
        assert sorted((int(who), int(number)) for who, number, _ in lines) == [
            (w, n) for w in range(8) for n in range(15)
        ]
        assert {rest for *_, rest in lines} == {b"x" * 3000}
        for who in range(8):
            assert [int(line[1]) for line in lines if int(line[0]) == who] == list(range(15))

    def test_what_is_composed_is_added_to_the_log_that_it_was_shown(
        self, opener: Opener, place: str, tree: Tree
    ) -> None:
        other = opener.open(place)
        logs = ("one.jsonl", "two.jsonl")

        def compose(end: LogEnd) -> bytes:
            return b"%d after %s\n" % (end.size, next(end.back(), b"nothing").split()[0])

        def write(number: int) -> None:
            one = (tree, other)[number % 2 and number % 7 > 2]
            done = one.append(logs[number % 3 == 0], compose, durable=False)
            assert done is not None

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(120)))
        for log in logs:
            before = b"nothing"
            for line in tree.scan(log):
                assert line.data == b"%d after %s" % (line.offset, before)
                before = b"%d" % line.offset
        assert sum(1 for log in logs for _ in tree.scan(log)) == 120
        other.close()

    def test_composing_may_look_far_back_and_refuse(self, tree: Tree) -> None:
        for number in range(30):
            tree.append("log.jsonl", lambda _, number=number: b"%d\n\n" % number)  # type: ignore[misc]

        def all_of_it(end: LogEnd) -> bytes:
            seen.append((list(end.back()), [line for line in end.lines(0) if line]))
            return b""

        seen: list[tuple[list[bytes], list[bytes]]] = []
        assert tree.append("log.jsonl", all_of_it) is None
        expected = [b"%d" % number for number in range(30)]
        assert seen[-1] == (expected[::-1], expected)

        def refuse(_: LogEnd) -> bytes:
            raise Conflict("no")

        with pytest.raises(Conflict, match="no"):
            tree.append("log.jsonl", refuse)
        tree.append("log.jsonl", lambda _: b"torn")
        tree.append("log.jsonl", lambda _: b"behind\n")
        tree.remove("log.jsonl")
        done = tree.append("log.jsonl", lambda end: b"%d\n" % end.size)
        assert done is not None and done.start == 0
        assert tree.read("log.jsonl").data == b"0\n"

    def test_of_threads_that_move_one_file_exactly_one_wins(self, tree: Tree) -> None:
        for turn in range(5):
            tree.write(f"from/{turn}.md", b"text", expect=ABSENT)
            start = threading.Barrier(4)

            def move(who: int, turn: int = turn, start: threading.Barrier = start) -> bool:
                start.wait()
                try:
                    tree.move(f"from/{turn}.md", f"to/{turn}-{who}.md")
                except NotFound:
                    return False
                return True

            with ThreadPoolExecutor(4) as pool:
                won = list(pool.map(move, range(4)))
            moved = [path for path in walked(tree, "to") if path.startswith(f"to/{turn}-")]
            assert won.count(True) == 1, won
            assert moved == [f"to/{turn}-{won.index(True)}.md"]


def _create(tree: Tree, path: str, wait: Callable[[], object], who: int) -> bool:
    wait()
    try:
        tree.write(path, str(who).encode(), expect=ABSENT)
    except AlreadyExists:
        return False
    return True


def _create_all(opener: Opener, place: str, names: list[str], who: int) -> list[bool]:
    tree = opener.open(place)
    try:
        return [_create(tree, path, lambda: None, who) for path in names]
    finally:
        tree.close()


def _count_up(opener: Opener, place: str, times: int) -> None:
    tree = opener.open(place)
    while times:
        document = tree.read("count.md")
        try:
            tree.write("count.md", b"%d" % (int(document.data) + 1), expect=document.version)
            times -= 1
        except Conflict:
            continue
    tree.close()


def _number_lines(opener: Opener, place: str, times: int) -> None:
    tree = opener.open(place)
    for _ in range(times):
        tree.append("count.jsonl", lambda end: b"%d\n" % (int(next(end.back(), b"0")) + 1), durable=False)
    tree.close()
