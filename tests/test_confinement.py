"""Nothing outside the root is read or written, whatever the path, the links and the races."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError, Invalid
from holdfast.storage.files.tree import Files
from holdfast.storage.tree import ABSENT

SECRET = b"secret of the outside\n"
INSIDE = b"text of the inside\n"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the root, whose name begins with the root's."""
    folder = tmp_path.resolve() / "vault-outside"
    folder.mkdir()
    (folder / "secret.md").write_bytes(SECRET)
    return folder


@pytest.fixture
def inside(tmp_path: Path, outside: Path) -> Path:
    folder = tmp_path.resolve() / "vault"
    (folder / "real").mkdir(parents=True)
    (folder / "real" / "a.md").write_bytes(INSIDE)
    return folder


@pytest.fixture(params=[True, False], ids=["native", "portable"])
def tree(request: pytest.FixtureRequest, inside: Path) -> Iterator[Files]:
    opened = Files(str(inside), lock_seconds=5.0, native=request.param)
    yield opened
    opened.close()


def contents(folder: Path) -> dict[str, bytes | str]:
    """Return everything below a folder: the bytes of files, the targets of links."""
    result: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            result[name] = os.readlink(path)
        elif path.is_file():
            result[name] = path.read_bytes()
        else:
            result[name] = "folder" if path.is_dir() else "special"
    return result


def outcome(call: Callable[[], object]) -> str:
    """Return the class of the error of a call; a test report cannot contain every error text."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "no error"


def ignore(path: str, why: str) -> None:
    """Take what a walk could not look into."""


READS: dict[str, Callable[[Files, str], object]] = {
    "read": lambda tree, path: tree.read(path),
    "scan": lambda tree, path: list(tree.scan(path)),
    "scan_back": lambda tree, path: list(tree.scan_back(path)),
    "fingerprint": lambda tree, path: tree.fingerprint(path, 0, 1),
    "stat": lambda tree, path: tree.stat(path),
}
WRITES: dict[str, Callable[[Files, str], object]] = {
    "create": lambda tree, path: tree.write(path, b"ours", expect=ABSENT),
    "replace": lambda tree, path: tree.write(path, b"ours", expect="0" * 32),
    "keep": lambda tree, path: tree.write("real/a.md", b"ours", expect=tree.read("real/a.md").version, keep=path),
    "append": lambda tree, path: tree.append(path, lambda _: b"ours\n"),
    "move from": lambda tree, path: tree.move(path, "moved.md"),
    "move to": lambda tree, path: tree.move("real/a.md", path),
    "remove": lambda tree, path: tree.remove(path),
}
LISTS: dict[str, Callable[[Files, str], list[object]]] = {
    "walk": lambda tree, path: list(tree.walk(path, (".md",), ignore)),
    "folders": lambda tree, path: list(tree.folders(path)),
}

BAD_PATHS = {
    "nothing": "",
    "here": ".",
    "above": "..",
    "above, then down": "../vault-outside/secret.md",
    "down, then above": "real/../../vault-outside/secret.md",
    "above at the end": "real/..",
    "above inside": "real/../real/a.md",
    "absolute": "{outside}/secret.md",
    "absolute inside": "{inside}/real/a.md",
    "two slashes": "//vault-outside/secret.md",
    "empty part": "real//a.md",
    "slash at the end": "real/a.md/",
    "dot part": "real/./a.md",
    "NUL": "real/a.md\0.txt",
    "NUL in a folder": "real\0x/a.md",
    "backslash": "..\\tree-outside\\secret.md",
    "backslash in a name": "real\\a.md",
    "space at the end": "real/a.md ",
    "folder with a space at the end": "real /a.md",
    "dot at the end": "real/a.md.",
    "folder with a dot at the end": "real./a.md",
    "three dots": ".../a.md",
    "git": ".git/config",
    "git below": "real/.git/hooks/post-commit",
    "git in capitals": "real/.GIT/config",
    "256 bytes": "x" * 256,
    "256 bytes of two each": "é" * 128,
    "256 bytes in a folder": "x" * 256 + "/a.md",
    "5000 bytes": "x/" * 2500 + "a.md",
    "lone high surrogate": "real/\ud800.md",
    "lone surrogate in a folder": "\ud800/a.md",
    "escaped byte": "real/\udcff.md",
    "escaped byte in a folder": "\udcff/a.md",
}


@pytest.mark.parametrize(
    ("call", "path"),
    [
        pytest.param(call, path, id=f"{operation}-{name}")
        for operation, call in {**READS, **WRITES}.items()
        for name, path in BAD_PATHS.items()
        if path or operation != "keep"  # an empty name means that nothing is to be kept
    ],
)
def test_a_path_that_is_not_one_inside_is_refused_before_anything_happens(
    tree: Files, inside: Path, outside: Path, call: Callable[[Files, str], object], path: str
) -> None:
    before = contents(inside.parent)
    assert outcome(lambda: call(tree, path.format(inside=inside, outside=outside))) == "Invalid"
    assert contents(inside.parent) == before


@pytest.mark.parametrize("path", list(BAD_PATHS.values())[2:], ids=list(BAD_PATHS)[2:])
@pytest.mark.parametrize("call", LISTS.values(), ids=LISTS)
def test_a_path_that_is_not_one_inside_lists_nothing(
    tree: Files, inside: Path, outside: Path, call: Callable[[Files, str], list[object]], path: str
) -> None:
    (outside / "folder").mkdir()
    found: list[object] = []
    told = outcome(lambda: found.extend(call(tree, path.format(inside=inside, outside=outside))))
    assert told in ("Invalid", "NotFound", "no error")
    assert found == []


@pytest.mark.parametrize(
    "path",
    [
        "%2e%2e/secret.md",
        "%2e%2e%2fvault-outside%2fsecret.md",
        "..a/b.md",
        "..data",
        "real/...a.md",
        "~/a.md",
        "~root/a.md",
        "$HOME/a.md",
        "-rf",
        "*",
        "a b.md",
        ".gitignore",
        "a.git/b.md",
        "CON.md",
        "C:/a.md",
        "a\nb.md",
        "é.md",
        "e\u0301.md",
        "\U0001f600.md",
        "x" * 255,
        "é" * 127 + "x",
    ],
)
def test_what_only_looks_like_a_trick_is_a_name(tree: Files, inside: Path, outside: Path, path: str) -> None:
    tree.write(path, b"ours", expect=ABSENT)
    assert tree.read(path).data == b"ours"
    assert (inside / path).read_bytes() == b"ours"
    assert contents(outside) == {"secret.md": SECRET}


def test_twins_in_case_and_in_composition_are_two_files(tree: Files) -> None:
    twins = ["a.md", "A.md", "é.md", "e\u0301.md"]
    for path in twins:
        tree.write(f"twins/{path}", path.encode(), expect=ABSENT)
    assert [tree.read(f"twins/{path}").data for path in twins] == [path.encode() for path in twins]


# links that lead out


@pytest.mark.parametrize("call", READS.values(), ids=READS)
@pytest.mark.parametrize("how", ["relative", "absolute", "by way of another link", "by way of a folder"])
def test_a_link_to_a_file_outside_is_not_read(
    tree: Files, inside: Path, outside: Path, how: str, call: Callable[[Files, str], object]
) -> None:
    link = inside / "link.md"
    if how == "relative":
        link.symlink_to("../vault-outside/secret.md")
    elif how == "absolute":
        link.symlink_to(outside / "secret.md")
    elif how == "by way of another link":
        (inside / "second.md").symlink_to(outside / "secret.md")
        link.symlink_to("second.md")
    else:
        (inside / "second").symlink_to(outside)
        link.symlink_to("second/secret.md")
    with pytest.raises(Invalid, match=r"link\.md"):
        call(tree, "link.md")


@pytest.mark.parametrize("call", [*READS.values(), *WRITES.values()], ids=[*READS, *WRITES])
@pytest.mark.parametrize("how", ["relative", "absolute", "deep"])
@pytest.mark.parametrize("name", ["secret.md", "new.md", "new/deeper.md"])
def test_nothing_passes_a_link_to_a_folder_outside(
    tree: Files, inside: Path, outside: Path, how: str, name: str, call: Callable[[Files, str], object]
) -> None:
    if how == "deep":
        (inside / "real" / "link").symlink_to("../../vault-outside")
        path = f"real/link/{name}"
    else:
        (inside / "link").symlink_to("../vault-outside" if how == "relative" else outside)
        path = f"link/{name}"
    before = contents(inside.parent)
    with pytest.raises(Invalid):
        call(tree, path)
    assert contents(inside.parent) == before


@pytest.mark.parametrize("folder", ["link", "link/below", "top"])
def test_a_walk_does_not_pass_a_link_that_leads_out(tree: Files, inside: Path, outside: Path, folder: str) -> None:
    (outside / "below").mkdir()
    (outside / "below" / "deep.md").write_bytes(SECRET)
    (inside / "top").mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "top" / "link").symlink_to(outside)
    (inside / "top" / "link.md").symlink_to(outside / "secret.md")
    (inside / "top" / "a.md").write_bytes(INSIDE)
    refused: dict[str, str] = {}
    found = dict(tree.walk(folder, (".md",), refused.__setitem__))
    if folder == "top":
        assert sorted(found) == ["top/a.md"]
        assert sorted(refused) == ["top/link", "top/link.md"]
        assert all("out of the root" in why for why in refused.values())
    else:
        assert found == {}
        assert refused


def test_a_link_to_itself_does_not_hide_the_folders_beside_it(tree: Files, inside: Path) -> None:
    (inside / "top" / "folder").mkdir(parents=True)
    (inside / "top" / "loop").symlink_to("loop")
    (inside / "top" / "one").symlink_to("two")
    (inside / "top" / "two").symlink_to("one")
    assert tree.folders("top") == ["folder"]


@pytest.mark.parametrize("folder", ["link", "link/below"])
def test_the_folders_outside_are_not_named(tree: Files, inside: Path, outside: Path, folder: str) -> None:
    (outside / "below" / "deep").mkdir(parents=True)
    (inside / "link").symlink_to(outside)
    found: list[str] = []
    with contextlib.suppress(HoldfastError):
        found = tree.folders(folder)
    assert found == []


# links that stay inside


@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        ("link.md", "real/a.md", "link.md"),
        ("link.md", "{inside}/real/a.md", "link.md"),
        ("link.md", "./real/.//a.md", "link.md"),
        ("deep/er/link.md", "../../real/a.md", "deep/er/link.md"),
        ("deep/er/link.md", "{inside}/real/a.md", "deep/er/link.md"),
        ("link", "real", "link/a.md"),
        ("link", "{inside}/real", "link/a.md"),
        ("deep/link", "../real", "deep/link/a.md"),
        ("deep/link", "{inside}/real", "deep/link/a.md"),
        ("link", "{inside}", "link/real/a.md"),
    ],
)
def test_a_link_that_stays_inside_is_read(tree: Files, inside: Path, link: str, target: str, path: str) -> None:
    (inside / link).parent.mkdir(parents=True, exist_ok=True)
    (inside / link).symlink_to(target.format(inside=inside))
    assert tree.read(path).data == INSIDE
    assert [line.data for line in tree.scan(path)] == [INSIDE.rstrip()]
    assert tree.stat(path) == tree.stat("real/a.md")


def test_a_chain_of_links_that_stays_inside_is_read(tree: Files, inside: Path) -> None:
    (inside / "one.md").symlink_to(inside / "two.md")
    (inside / "two.md").symlink_to("folder/a.md")
    (inside / "folder").symlink_to(inside / "real")
    assert tree.read("one.md").data == INSIDE


def test_an_absolute_link_into_a_folder_whose_name_starts_with_two_dots_stays_inside(tree: Files, inside: Path) -> None:
    (inside / "..data").mkdir()
    (inside / "..data" / "a.md").write_bytes(INSIDE)
    (inside / "link.md").symlink_to(inside / "..data" / "a.md")
    assert tree.read("link.md").data == INSIDE


def test_an_absolute_link_by_another_name_of_the_root_stays_inside(tree: Files, inside: Path) -> None:
    other = inside.parent / "other-name"
    other.symlink_to(inside)
    (inside / "real" / "link.md").symlink_to(other / "real" / "a.md")
    walked = dict(tree.walk("real", (".md",), ignore))
    assert "real/link.md" in walked
    assert tree.read("real/link.md").data == INSIDE


def test_a_walk_passes_links_that_stay_inside(tree: Files, inside: Path) -> None:
    (inside / "top").mkdir()
    (inside / "top" / "folder").symlink_to("../real")
    (inside / "top" / "file.md").symlink_to(inside / "real" / "a.md")
    found = dict(tree.walk("top", (".md",), ignore))
    assert sorted(found) == ["top/file.md", "top/folder/a.md"]
    assert all(tree.read(path).data == INSIDE for path in found)


@pytest.mark.parametrize("target", ["real/a.md", "{inside}/real/a.md", "nowhere.md", "../vault-outside/new.md"])
@pytest.mark.parametrize(
    "call", [WRITES[name] for name in ("create", "replace", "append")], ids=["create", "replace", "append"]
)
def test_a_write_never_follows_a_link(
    tree: Files, inside: Path, outside: Path, target: str, call: Callable[[Files, str], object]
) -> None:
    (inside / "link.md").symlink_to(target.format(inside=inside))
    before = contents(inside.parent)
    with pytest.raises(HoldfastError, match=r"link\.md"):
        call(tree, "link.md")
    assert contents(inside.parent) == before


def test_a_write_from_the_version_read_through_a_link_is_refused(tree: Files, inside: Path) -> None:
    (inside / "link.md").symlink_to("real/a.md")
    version = tree.read("link.md").version
    before = contents(inside)
    with pytest.raises(Invalid, match=r"link\.md"):
        tree.write("link.md", b"ours", expect=version)
    assert contents(inside) == before


@pytest.mark.parametrize("call", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("target", ["real", "{inside}/real"])
def test_a_write_never_passes_a_link_to_a_folder(
    tree: Files, inside: Path, target: str, call: Callable[[Files, str], object]
) -> None:
    (inside / "link").symlink_to(target.format(inside=inside))
    before = contents(inside)
    with pytest.raises(Invalid):
        call(tree, "link/new.md")
    assert contents(inside) == before


def test_moving_or_removing_a_link_leaves_its_target_alone(tree: Files, inside: Path, outside: Path) -> None:
    for name in ("one.md", "two.md"):
        (inside / name).symlink_to(outside / "secret.md")
    with contextlib.suppress(HoldfastError):
        tree.move("one.md", "three.md")
    with contextlib.suppress(HoldfastError):
        tree.remove("two.md")
    assert contents(outside) == {"secret.md": SECRET}
    with pytest.raises(HoldfastError):
        tree.read("three.md")


def test_a_log_that_became_a_link_after_the_first_append_is_not_followed(
    tree: Files, inside: Path, outside: Path
) -> None:
    tree.append("real/log.jsonl", lambda _: b"one\n")
    tree.append("real/log.jsonl", lambda _: b"two\n")
    (inside / "real" / "log.jsonl").rename(inside / "real" / "old.jsonl")
    (inside / "real" / "log.jsonl").symlink_to(outside / "secret.md")
    with pytest.raises(Invalid):
        tree.append("real/log.jsonl", lambda _: b"three\n")
    assert contents(outside) == {"secret.md": SECRET}


def test_a_folder_that_became_a_link_after_the_first_append_is_not_passed(
    tree: Files, inside: Path, outside: Path
) -> None:
    tree.append("real/log.jsonl", lambda _: b"one\n")
    tree.append("real/log.jsonl", lambda _: b"two\n")
    (inside / "real").rename(inside / "old")
    (inside / "real").symlink_to(outside)
    with pytest.raises(Invalid):
        tree.append("real/log.jsonl", lambda _: b"three\n")
    assert contents(outside) == {"secret.md": SECRET}
    assert (inside / "old" / "log.jsonl").read_bytes() == b"one\ntwo\n"


def test_a_folder_that_was_moved_out_and_linked_back_after_the_first_append_is_not_passed(
    tree: Files, inside: Path, outside: Path
) -> None:
    tree.append("real/log.jsonl", lambda _: b"one\n")
    (inside / "real").rename(outside / "real")
    (inside / "real").symlink_to(outside / "real")
    with pytest.raises(Invalid):
        tree.append("real/log.jsonl", lambda _: b"two\n")
    assert (outside / "real" / "log.jsonl").read_bytes() == b"one\n"


def test_a_log_with_a_second_name_is_not_appended_to(tree: Files, inside: Path, outside: Path) -> None:
    """The other name may be a backup's, or lie outside: both would change with it."""
    os.link(outside / "secret.md", inside / "real" / "log.jsonl")
    with pytest.raises(Invalid, match="second name"):
        tree.append("real/log.jsonl", lambda _: b"ours\n")
    assert contents(outside) == {"secret.md": SECRET}


def test_a_document_with_a_second_name_is_replaced_under_this_one_alone(
    tree: Files, inside: Path, outside: Path
) -> None:
    os.link(outside / "secret.md", inside / "real" / "b.md")
    tree.write("real/b.md", b"ours", expect=tree.read("real/b.md").version)
    assert contents(outside) == {"secret.md": SECRET}
    assert (inside / "real" / "b.md").read_bytes() == b"ours"


def test_an_append_after_the_folder_was_moved_goes_where_the_path_says(tree: Files, inside: Path) -> None:
    tree.append("real/log.jsonl", lambda _: b"one\n")
    tree.append("real/log.jsonl", lambda _: b"two\n")
    (inside / "real").rename(inside / "old")
    tree.append("real/log.jsonl", lambda _: b"three\n")
    assert (inside / "real" / "log.jsonl").read_bytes() == b"three\n"
    assert (inside / "old" / "log.jsonl").read_bytes() == b"one\ntwo\n"


# loops


def _loop(inside: Path, how: str) -> str:
    if how == "itself":
        (inside / "a.md").symlink_to("a.md")
    elif how == "each other":
        (inside / "a.md").symlink_to("b.md")
        (inside / "b.md").symlink_to(inside / "a.md")
    elif how == "through a folder":
        (inside / "a.md").symlink_to("folder/a.md")
        (inside / "folder").symlink_to(".")
    else:
        (inside / "a.md").symlink_to("00.md")
        for number in range(60):
            (inside / f"{number:02}.md").symlink_to(f"{number + 1:02}.md")
    return "a.md"


@pytest.mark.parametrize("how", ["itself", "each other", "through a folder", "sixty deep"])
@pytest.mark.parametrize("call", READS.values(), ids=READS)
def test_links_that_never_end_are_refused(
    tree: Files, inside: Path, how: str, call: Callable[[Files, str], object]
) -> None:
    path = _loop(inside, how)
    with pytest.raises(Invalid, match=r"a\.md"):
        call(tree, path)


@pytest.mark.parametrize("how", ["itself", "each other", "through a folder", "sixty deep"])
def test_a_walk_tells_of_links_that_never_end_and_goes_on(tree: Files, inside: Path, how: str) -> None:
    top = inside / "top"
    top.mkdir()
    (top / "z.md").write_bytes(INSIDE)
    _loop(top, how)
    refused: dict[str, str] = {}
    found = dict(tree.walk("top", (".md",), refused.__setitem__))
    assert sorted(path for path in found if tree.read(path).data) == ["top/z.md"]
    assert "top/a.md" in refused


def test_folders_that_link_to_each_other_do_not_make_a_walk_endless(tree: Files, inside: Path) -> None:
    top = inside / "top"
    for name in ("start", "one", "two"):
        (top / name).mkdir(parents=True)
        (top / name / "a.md").write_bytes(INSIDE)
    (top / "start" / "in").symlink_to("../one")
    for number in range(2):
        (top / "one" / f"to-{number}").symlink_to("../two")
        (top / "two" / f"to-{number}").symlink_to("../one")
    walk = tree.walk("top", (".md",), ignore)
    found = [path for path, _ in itertools.islice(walk, 5_000)]
    assert len(found) < 5_000
    assert {"top/start/a.md", "top/one/a.md", "top/two/a.md"} <= set(found)


# what is no file


def finished(call: Callable[[], object]) -> BaseException | None:
    """Run a call that may hang in a thread of its own; return the error it ended with."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert ended, "the call hangs"
    return ended[0]


@pytest.mark.parametrize("what", ["FIFO", "socket", "folder", "link to a FIFO"])
@pytest.mark.parametrize("name", ["read", "scan", "scan_back", "fingerprint", "stat", "create", "replace", "append"])
def test_what_is_no_file_neither_hangs_nor_passes_for_one(tree: Files, inside: Path, what: str, name: str) -> None:
    path = inside / "odd.md"
    listener = socket.socket(socket.AF_UNIX)
    if what == "FIFO":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "socket":
        with contextlib.chdir(inside):
            listener.bind("odd.md")
    else:
        os.mkfifo(inside / "fifo")
        path.symlink_to("fifo")
    before = contents(inside)
    error = finished(lambda: {**READS, **WRITES}[name](tree, "odd.md"))
    listener.close()
    assert isinstance(error, HoldfastError), error
    assert "odd.md" in error.message
    assert contents(inside) == before


def test_a_walk_passes_over_what_is_no_file(tree: Files, inside: Path) -> None:
    os.mkfifo(inside / "real" / "fifo.md")
    found: list[str] = []
    assert finished(lambda: found.extend(path for path, _ in tree.walk("real", (".md",), ignore))) is None
    assert found == ["real/a.md"]


@pytest.mark.parametrize("raw", [b"real/\xff.md", b"real/\xff/b.md"], ids=["file", "folder"])
def test_a_name_that_is_not_utf_8_is_told_and_not_given(tree: Files, inside: Path, raw: bytes) -> None:
    odd = Path(os.fsdecode(os.path.join(os.fsencode(inside), raw)))
    odd.parent.mkdir(exist_ok=True)
    odd.write_bytes(INSIDE)
    refused: dict[str, str] = {}
    found = dict(tree.walk("real", (".md",), refused.__setitem__))
    assert list(found) == ["real/a.md"]
    assert any("UTF-8" in why for why in refused.values())
    assert all(path.encode("utf-8") for path in refused)


# races


def test_a_folder_that_turns_into_a_link_while_writes_run_lets_nothing_out(
    tree: Files, inside: Path, outside: Path
) -> None:
    (outside / "log.jsonl").write_bytes(SECRET)
    (outside / "sub").mkdir()
    before = contents(outside)
    folder, link = inside / "swap", inside / "link"
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if exchange is None:
        pytest.skip("there is no renameat2 here to swap two names in one step")
    (folder / "sub").mkdir(parents=True)
    link.symlink_to(outside)
    stop = threading.Event()
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        while not stop.is_set():
            assert exchange(-100, os.fsencode(folder), -100, os.fsencode(link), 2) == 0
            swaps += 1
            time.sleep(0.0002)

    leaked: list[bytes] = []
    landed = refused = 0

    def attempts(number: int) -> list[Callable[[], object]]:
        return [
            lambda: tree.write(f"swap/{number}.md", b"ours", expect=ABSENT),
            lambda: tree.write(f"swap/sub/{number}.md", b"ours", expect=ABSENT),
            lambda: tree.write(f"swap/new-{number}/a.md", b"ours", expect=ABSENT),
            lambda: tree.append("swap/log.jsonl", lambda _: b"ours\n", durable=False),
            lambda: tree.append(f"swap/sub/{number}.jsonl", lambda _: b"ours\n", durable=False),
            lambda: tree.move(f"swap/{number}.md", f"swap/sub/moved-{number}.md"),
            lambda: tree.remove("swap/secret.md"),
            lambda: tree.move("swap/secret.md", f"stolen-{number}.md"),
            lambda: tree.write("swap/secret.md", b"ours", expect=tree.read("swap/secret.md").version),
            lambda: leaked.append(tree.read("swap/secret.md").data),
            lambda: leaked.extend(line.data for line in tree.scan_back("swap/log.jsonl") if b"secret" in line.data),
        ]

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        deadline = time.monotonic() + 1.0
        for number in itertools.count():
            for attempt in attempts(number):
                try:
                    attempt()
                    landed += 1
                except HoldfastError:
                    refused += 1
            if time.monotonic() > deadline:
                break
    finally:
        stop.set()
        swapper.join()
    assert contents(outside) == before
    assert leaked == []
    assert list(inside.glob("stolen-*")) == []
    assert swaps > 10, "the folder was hardly ever swapped"
    assert landed > 10, "hardly any write landed"
    assert refused > 10, "hardly any write met the link"
