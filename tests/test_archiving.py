"""`learnings archive`: the oldest entries move to a file by year, byte for byte, and a crash loses nothing."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Memory
from holdfast.cli.owner import archive as command
from holdfast.errors import Invalid
from holdfast.formats import markdown, sections
from holdfast.memories.lint import lint
from holdfast.memories.upkeep import Archived, archive

FOLDER = "user/memory/workspaces/w"
LIVE = f"{FOLDER}/decisions.md"


def write(root: Path, path: str, text: str | bytes) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def entry(date: str, title: str, text: str = "Because.") -> str:
    return f"### [{date}] {title}\n\n{text}\n\n---\n\n"


def sources(data: bytes) -> list[str]:
    text = data.decode("utf-8", "surrogateescape")
    return [one.source for one in sections.parse(text[markdown.body_start(text) :])]


def pages(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / FOLDER).glob("*.md")}


A, B, C, D = (
    entry("2025-03-01", "A"),
    entry("2024-05-01", "B", "```\n### [2020-01-01] in code\n```"),
    entry("2026-01-01", "C"),
    entry("2024-01-01", "D", "text\n\n### 2024-02-01 Meant as an entry\n\nmore\n\n---\n\nthe end"),
)


def test_the_oldest_entries_move_to_the_files_of_their_years(root: Path, memory: Memory) -> None:
    live = write(root, LIVE, "---\nx: 1\n---\n\n# Decisions\n\nRead me.\n\n" + A + B + C + D)
    before = live.read_bytes()
    expected = [
        Archived(LIVE, f"{FOLDER}/decisions-2024.md", ("2024-05-01 B", "2024-01-01 D")),
        Archived(LIVE, f"{FOLDER}/decisions-2025.md", ("2025-03-01 A",)),
    ]
    assert archive(memory, keep=1, dry_run=True) == expected
    assert pages(root) == {"decisions.md": before}
    assert archive(memory, keep=1) == expected
    assert {name: data.decode() for name, data in pages(root).items()} == {
        "decisions.md": "---\nx: 1\n---\n\n# Decisions\n\nRead me.\n\n" + C,
        "decisions-2024.md": "# Decisions 2024\n\n" + B + D,
        "decisions-2025.md": "# Decisions 2025\n\n" + A,
    }
    assert archive(memory, keep=1) == []
    assert {hit.record.title for hit in memory.find(kinds=("decision",))} == {"A", "B", "C", "D"}
    kept = [path.read_bytes() for path in (root / "user/memory/writes/kept").iterdir()]
    assert before in kept


def test_later_runs_add_to_the_archives_that_are_there(root: Path, memory: Memory) -> None:
    write(root, f"{FOLDER}/decisions-2024.md", "my own head\n" + entry("2024-12-01", "Old").rstrip())
    write(root, f"{FOLDER}/decisions-2025.md", "")
    write(root, LIVE, A + B + C + D)
    archive(memory, keep=1)
    assert (
        pages(root)["decisions-2024.md"].decode()
        == "my own head\n" + entry("2024-12-01", "Old").rstrip() + "\n\n" + B + D
    )
    assert pages(root)["decisions-2025.md"].decode() == A
    assert pages(root)["decisions.md"].decode() == C


def test_entries_of_one_day_go_in_the_order_of_the_file_and_impossible_dates_stay(root: Path, memory: Memory) -> None:
    days = [entry("2024-01-01", name) for name in "abc"]
    never = entry("2023-02-30", "never")
    write(root, LIVE, never + "".join(days))
    archive(memory, keep=1)
    assert sources(pages(root)["decisions.md"]) == [never, days[2]]
    archive(memory, keep=0)
    assert sources(pages(root)["decisions.md"]) == [never]
    assert sources(pages(root)["decisions-2024.md"]) == days


def test_line_ends_byte_order_mark_and_foreign_bytes_stay_as_they_are(root: Path, memory: Memory) -> None:
    text = ("\ufeff# Decisions\n\n" + A + C).replace(
        "\n", "\r\n"
    ).encode() + b"### [2024-01-01] caf\xe9\r\nlast, without an end"
    write(root, LIVE, text)
    archive(memory, keep=1)
    found = pages(root)
    assert found["decisions.md"] == ("\ufeff# Decisions\n\n" + C).replace("\n", "\r\n").encode()
    assert found["decisions-2024.md"] == b"# Decisions 2024\r\n\r\n### [2024-01-01] caf\xe9\r\nlast, without an end\r\n"
    assert found["decisions-2025.md"] == ("# Decisions 2025\n\n" + A).replace("\n", "\r\n").encode()


def test_a_crash_between_archive_and_live_file_is_healed_by_the_next_run(root: Path, memory: Memory) -> None:
    twins = entry("2024-06-01", "Twin") * 2
    live = write(root, LIVE, A + B + C + D + twins)
    before = live.read_bytes()
    archive(memory, keep=2)
    after = pages(root)
    live.write_bytes(before)
    assert len(archive(memory, keep=2)) == 1
    assert pages(root) == after
    assert sources(after["decisions-2024.md"]) == [B, D, *[entry("2024-06-01", "Twin")] * 2]


def test_only_files_with_more_than_the_setting_are_touched_and_lint_is_content_afterwards(root: Path) -> None:
    (root / "holdfast.toml").write_text("[learnings]\nentries = 3\n")
    write(root, LIVE, A + B + C + D)
    write(root, f"{FOLDER}/lessons.md", A + B + C)
    write(root, f"{FOLDER}/d/lessons.md", A + B + C + D)
    write(root, f"{FOLDER}/decisions-2019.md", (A + B + C + D) * 2)
    with holdfast.open(root) as memory:
        assert len([fault for fault in lint(memory).faults if fault.rule == "learnings"]) == 2
        assert [moved.path for moved in archive(memory, "w/d")] == [f"{FOLDER}/d/lessons.md"]
        assert [moved.path for moved in archive(memory)] == [LIVE]
        assert [fault for fault in lint(memory).faults if fault.rule == "learnings"] == []
    assert (root / f"{FOLDER}/d/lessons-2024.md").read_text() == "# Lessons 2024\n\n" + D
    assert (root / f"{FOLDER}/lessons.md").read_text() == A + B + C


def test_entries_that_cannot_be_parted_stay_where_they_are(root: Path, memory: Memory) -> None:
    write(root, f"{FOLDER}/decisions-2024.md", entry("2024-01-01", "Open", "```\ncode"))
    write(root, LIVE, entry("2024-05-01", "Open too", "```\ncode") + C)
    before = pages(root)
    write(root, f"{FOLDER}/lessons.md", A + C)
    moved = archive(memory, keep=1)
    assert [one.path for one in moved if "code fence" in one.fault] == [LIVE]
    assert before.items() <= pages(root).items()
    assert sources(pages(root)["lessons-2025.md"]) == [A]


def test_what_cannot_be_read_is_reported_and_the_others_go_on(root: Path) -> None:
    (root / "holdfast.toml").write_text("[limits]\ndocument_bytes = 400\n")
    write(root, LIVE, "x" * 1000 + "\n" + A + B)
    write(root, f"{FOLDER}/lessons.md", A + C)
    with holdfast.open(root) as memory:
        moved = archive(memory, keep=1)
        assert [(one.path, bool(one.fault)) for one in moved] == [(LIVE, True), (f"{FOLDER}/lessons.md", False)]
        with pytest.raises(Invalid):
            archive(memory, keep=-1)


def test_the_write_log_tells_of_every_file(root: Path, memory: Memory) -> None:
    write(root, LIVE, A + C)
    archive(memory, keep=1)
    (log,) = (root / "user/memory/writes").glob("*.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["path"], "before" in line) for line in lines] == [
        (f"{FOLDER}/decisions-2025.md", False),
        (LIVE, True),
    ]


def test_a_large_file_is_archived_in_seconds(root: Path, memory: Memory) -> None:
    text = "".join(
        entry(f"{2000 + number % 25}-01-01", f"No {number}", "```\nx\n```\n" + "y" * 400) for number in range(12_000)
    )
    assert len(text) > 5_000_000
    write(root, LIVE, text)
    begun = time.monotonic()
    moved = archive(memory, keep=50)
    assert time.monotonic() - begun < 30
    assert (len(moved), sum(len(one.entries) for one in moved)) == (25, 11_950)


def test_the_command_moves_or_only_shows(root: Path) -> None:
    write(root, LIVE, A + C)
    runner = CliRunner()

    def run(*words: str) -> Any:
        done = runner.invoke(command, [*words, "--root", str(root), "--json"])
        assert done.exit_code == 0
        return json.loads(done.stdout)

    assert run() == {"dry_run": False, "moved": []}
    shown = run("w", "--keep", "1", "--dry-run")["moved"]
    assert shown == [{"path": LIVE, "archive": f"{FOLDER}/decisions-2025.md", "entries": ["2025-03-01 A"]}]
    assert sources(pages(root)["decisions.md"]) == [A, C]
    assert run("--keep", "1")["moved"] == shown
    assert sources(pages(root)["decisions.md"]) == [C]


DATES = st.sampled_from(["2023-01-01", "2024-02-29", "2023-02-30", "2025-12-31", "2024-06-01"])
LINES = st.sampled_from(
    [
        "text",
        "",
        "---",
        "```",
        "~~~~",
        "````",
        "### [2024-01-01] T",
        "### 2024-01-01 T",
        "**Tags:** a",
        "\x0c",
        "é\u2028",
    ]
)
ENTRIES = st.builds(lambda date, lines: "\n".join([f"### [{date}] T", *lines]), DATES, st.lists(LINES, max_size=4))
FILES = st.builds(
    lambda head, entries, end, newline: (head + "\n".join(entries) + end).replace("\n", newline),
    st.sampled_from(["", "# Decisions\n\n", "\ufeffhead\n", "---\na: 1\n---\n", "```\n"]),
    st.lists(ENTRIES, max_size=6),
    st.sampled_from(["", "\n", "\n\n"]),
    st.sampled_from(["\n", "\r\n"]),
)  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(live=FILES, held=st.none() | FILES, keep=st.integers(0, 4), crash=st.booleans())
def test_archiving_moves_entries_and_never_changes_or_loses_one(
    live: str, held: str | None, keep: int, crash: bool
) -> None:
    def forms(data: bytes) -> Counter[str]:
        return Counter(source.rstrip() for source in sources(data))

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        file = write(root, LIVE, live)
        if held is not None:
            write(root, f"{FOLDER}/decisions-2024.md", held)
        before = pages(root)
        with holdfast.open(root) as memory:
            moved = archive(memory, keep=keep)
            if crash:
                file.write_bytes(before["decisions.md"])
                archive(memory, keep=keep)
            after = pages(root)
            assert [one for one in archive(memory, keep=keep) if not one.fault] == []
            assert pages(root) == after
    if any(one.fault for one in moved):
        assert after == before
        return
    old, new = forms(before["decisions.md"]), forms(after["decisions.md"])
    archived = sum((forms(data) for name, data in after.items() if name != "decisions.md"), Counter())
    there = forms(before.get("decisions-2024.md", b""))
    assert new <= old
    assert set(archived) == set(there) | set(old - new)
    if held is None:
        assert archived + new == old
    assert archived >= there
    stays = [source for source in sources(before["decisions.md"]) if "[2023-02-30]" in source.partition("\n")[0]]
    assert new.total() == min(old.total(), keep + len(stays))
    assert new >= Counter(source.rstrip() for source in stays)
    text = before["decisions.md"].decode()
    first = text.find(sources(before["decisions.md"])[0]) if old else len(text)
    assert after["decisions.md"].decode().startswith(text[:first])
    live_sources = sources(after["decisions.md"])
    rest = iter(sources(before["decisions.md"]))
    assert all(any(source == other for other in rest) for source in live_sources)
