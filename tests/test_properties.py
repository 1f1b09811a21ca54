"""The central promise: whatever happens to the files, an incremental index answers like a new one.

Random histories of writes, edits by hand, merges and damage are applied to one root. Then every record and every
answer of the live memory is compared with those of a copy of the root that never had an index.
"""

from __future__ import annotations

import functools
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import databaseroot
import holdfast
from holdfast import Memory, Record
from holdfast.errors import AlreadyExists, Conflict
from holdfast.formats import jsonl
from holdfast.memories import upkeep
from holdfast.model.kinds import KINDS
from holdfast.model.times import mint

WORDS = ("amber", "basalt", "cedar", "dune", "ember", "fjord", "grove", "harbor")
SAME_LENGTH = ("amber", "cedar", "ember", "fjord", "grove")
QUERIES = (*WORDS, "amber cedar dune", '"amber cedar"', "grove tag:red", "kind:fact ember", "planted", "by hand")
SEMANTIC = "user/memory/semantic.jsonl"
HISTORY = "user/memory/history.jsonl"

texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
keys = st.sampled_from(("color", "city", "editor"))
sessions = st.sampled_from(("one", "two"))
seeds = st.integers(0, 2**32)


def listing(memory: Memory, *, hidden: bool = True) -> list[Record]:
    """All current records of every kind, in the order of a listing."""
    searched = tuple(name for name, kind in KINDS.items() if not kind.private)
    return [hit.record for hit in memory.find("", kinds=searched, hidden=hidden, limit=1000)]  # type: ignore[arg-type]


def answers(memory: Memory) -> dict[tuple[str, bool], list[tuple[str, float, bool]]]:
    """The hits of a set of queries: id, score and whether it is hidden, in order."""
    return {
        (query, hidden): [(hit.record.id, round(hit.score, 6), hit.record.hidden) for hit in found]
        for query in QUERIES
        for hidden in (False, True)
        for found in [memory.find(query, hidden=hidden, limit=1000)]
    }


def assert_like_rebuilt(memory: Memory, root: Path, scratch: Path, *, damaged: bool = False) -> None:
    live, live_answers = listing(memory), answers(memory)
    report = memory.verify()
    assert report.differences == []
    removed = "in this log before and missing now"  # a history may delete and edit lines by hand, which is reported
    assert damaged or [problem for problem in report.damage if removed not in problem.what] == []
    target = scratch / f"copy-{random.randrange(2**60):x}"
    with holdfast.open(databaseroot.copy(root, target)) as fresh:
        if memory.in_files:
            assert live == listing(fresh)
            assert live_answers == answers(fresh)
        else:
            assert told(live) == told(listing(fresh))
            expected = answers(fresh)
            for query, found in live_answers.items():
                assert sorted(hit[::2] for hit in found) == sorted(hit[::2] for hit in expected[query]), query
    shutil.rmtree(target)


def told(records: list[Record]) -> list[tuple[object, ...]]:
    """The fields on which both engines agree; lines, and the order of simultaneous records, exist only in files."""
    return sorted((one.id, one.kind, one.title, one.text, one.tags, one.hidden, one.version) for one in records)


def log_lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


def holding_facts(path: Path) -> set[str]:
    """Return the current facts, computed from the raw lines: per key the greatest order, unless a later mark hides it."""
    newest: dict[str, tuple[str, str]] = {}
    marks: dict[str, tuple[str, bool]] = {}
    for data in log_lines(path):
        for value in parsed(data):
            identifier, order, _ = jsonl.identity(value, "time")
            if isinstance(value.get("hide"), str):
                mark = (order, value.get("hidden") is not False)
                marks[value["hide"]] = max(marks.get(value["hide"], mark), mark)
            elif isinstance(value.get("key"), str):
                newest[value["key"]] = max(newest.get(value["key"], ("", "")), (order, identifier))
    return {
        identifier
        for key, (order, identifier) in newest.items()
        if not (key in marks and marks[key][1] and marks[key][0] > order)
    }


def parsed(data: bytes) -> list[dict[str, Any]]:
    found = jsonl.parse(data)
    return found if isinstance(found, list) else []


def by_rename(path: Path, data: bytes) -> None:
    """Save as most editors do: a new file takes the name."""
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(data)
    beside.replace(path)


def in_place(path: Path, data: bytes) -> None:
    path.write_bytes(data)


class OnEither(RuleBasedStateMachine):
    """Starts with an empty root on the engine of the test, and a folder for copies."""

    def __init__(self, another: Callable[[], Path]) -> None:
        super().__init__()
        self.another = another

    def make(self) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="histories-"))
        self.root = self.another()
        self.memory = holdfast.open(self.root)

    def tidy(self) -> None:
        databaseroot.remove(self.scratch)
        databaseroot.remove(self.root)
        databaseroot.close(self.root)


class Histories(OnEither):
    """One root and everything that people, agents, editors, git and crashes do to it."""

    @initialize()
    def start(self) -> None:
        self.make()
        self.memory.put("overview", "An empty root would be taken for a folder that is not mounted.", title="Home")
        self.damaged = False
        self.count = 0

    def teardown(self) -> None:
        if not hasattr(self, "memory"):
            return
        try:
            self.compare()
        finally:
            self.memory.close()
            self.tidy()

    def files(self, *suffixes: str) -> list[Path]:
        """The files of the memory itself; Holdfast's own logs are left to Holdfast."""
        found = [path for suffix in suffixes for path in self.root.rglob(f"*{suffix}")]
        own = (".holdfast", "writes", "ledger.jsonl", "OVERVIEW.md")
        return sorted(path for path in found if not any(part in own for part in path.relative_to(self.root).parts))

    def pick(self, seed: int, *suffixes: str) -> Path | None:
        found = self.files(*suffixes)
        return found[seed % len(found)] if found else None

    def fresh_word(self) -> str:
        self.count += 1
        return f"unique{self.count}"

    def assert_kept(self, identifier: str, word: str) -> None:
        assert word in self.memory.get(identifier).text
        assert identifier in [hit.record.id for hit in self.memory.find(word)]

    # what agents do

    @rule(title=st.sampled_from(("Alpha", "Beta", "Gamma")), text=texts, tag=st.sampled_from(("red", "blue")))
    def put_note(self, title: str, text: str, tag: str) -> None:
        word = self.fresh_word()
        try:
            receipt = self.memory.put("note", f"{text} {word}", title=title, tags=[tag])
        except AlreadyExists:
            return
        self.assert_kept(receipt.id, word)

    @rule(key=keys, text=texts)
    def put_fact(self, key: str, text: str) -> None:
        word = self.fresh_word()
        receipt = self.memory.put("fact", f"{text} {word}", fields={"key": key})
        self.assert_kept(receipt.id, word)

    @rule(session=sessions, text=texts, checked=st.booleans())
    def put_episode(self, session: str, text: str, checked: bool) -> None:
        word = self.fresh_word()
        receipt = self.memory.put("episode", f"{text} {word}", session=session)
        if checked:
            self.assert_kept(receipt.id, word)

    @rule(text=texts)
    def put_message(self, text: str) -> None:
        self.memory.put("message", text)

    @rule(title=st.sampled_from(("Use SQLite", "Ship weekly")), text=texts)
    def put_decision(self, title: str, text: str) -> None:
        word = self.fresh_word()
        receipt = self.memory.put("decision", f"{text} {word}", title=title)
        self.assert_kept(receipt.id, word)

    @rule(title=st.sampled_from(("Before", "After")), text=texts)
    def put_state(self, title: str, text: str) -> None:
        try:
            self.memory.put("state", text, title=title)
        except AlreadyExists:
            return

    @rule(seed=seeds, text=texts, stale=st.booleans())
    def edit_with_expect(self, seed: int, text: str, stale: bool) -> None:
        records = [record for record in listing(self.memory) if record.kind in ("note", "decision")]
        if not records:
            return
        record = records[seed % len(records)]
        if stale:
            before = (self.root / record.path).read_bytes()
            with pytest.raises(Conflict):
                self.memory.put(id=record.id, text=text, expect="0" * 32)
            assert (self.root / record.path).read_bytes() == before
            return
        word = self.fresh_word()
        self.memory.put(id=record.id, text=f"{text} {word}", expect=self.memory.get(record.id).version)
        assert word in self.memory.get(record.id).text

    @rule(seed=seeds)
    def hide_or_show(self, seed: int) -> None:
        records = [record for record in listing(self.memory) if KINDS[record.kind].searchable]
        if not records:
            return
        record = records[seed % len(records)]
        self.memory.hide(record.id, restore=record.hidden)
        visible = {found.id for found in listing(self.memory, hidden=False)}
        everything = {found.id: found for found in listing(self.memory)}
        assert (record.id in visible) == record.hidden
        assert everything[record.id].hidden != record.hidden

    # what people do by hand

    @rule(log=st.sampled_from((SEMANTIC, HISTORY)), key=keys, text=texts, when=st.integers(0, 3))
    def append_a_line_by_hand(self, log: str, key: str, text: str, when: int) -> None:
        line: dict[str, Any] = {"key": key, "value": f"by hand {text}", "content": text, "role": "user"}
        time = "time" if log == SEMANTIC else "timestamp"
        extras: list[dict[str, Any]] = [{}, {time: "2020-01-01"}, {time: "2999-01-01T00:00:00Z"}, {"id": mint()}]
        line |= extras[when]
        path = self.root / log
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = log_lines(path)
        gap = b"" if not lines or lines[-1].endswith(b"\n") else b"\n"
        with path.open("ab") as file:
            file.write(gap + json.dumps(line).encode() + b"\n")

    @rule(seed=seeds, rename=st.booleans(), old=st.sampled_from(SAME_LENGTH), new=st.sampled_from(SAME_LENGTH))
    def edit_in_an_editor(self, seed: int, rename: bool, old: str, new: str) -> None:
        path = self.pick(seed, ".md")
        if not path or "_states" in path.parts:
            return
        data = path.read_bytes().replace(old.encode(), new.encode())
        if rename:
            by_rename(path, data + f"\nplanted {new}\n".encode())
        else:
            path.write_bytes(data)

    @rule(seed=seeds, old=st.sampled_from(SAME_LENGTH), new=st.sampled_from(SAME_LENGTH))
    def edit_keeping_size_and_time(self, seed: int, old: str, new: str) -> None:
        path = self.pick(seed, ".md", ".jsonl")
        if not path or "_states" in path.parts:
            return
        found = path.stat()
        with path.open("r+b") as file:
            data = file.read().replace(old.encode(), new.encode())
            file.seek(0)
            file.write(data)
        databaseroot.set_time(path, found.st_mtime_ns)

    @rule(seed=seeds)
    def shuffle_a_log(self, seed: int) -> None:
        path = self.pick(seed, ".jsonl")
        if path:
            lines = [line.rstrip(b"\n") + b"\n" for line in log_lines(path)]
            random.Random(seed).shuffle(lines)
            path.write_bytes(b"".join(lines))

    @rule(seed=seeds, key=keys, theirs=texts, rename=st.booleans())
    def merge_as_git_union_does(self, seed: int, key: str, theirs: str, rename: bool) -> None:
        """Their lines were made from an older state of the log, and come between ours."""
        path = self.root / SEMANTIC
        lines = [line.rstrip(b"\n") + b"\n" for line in log_lines(path)]
        base = lines[: seed % (len(lines) + 1)]
        with tempfile.TemporaryDirectory(dir=self.scratch) as other:
            elsewhere = Path(other) / SEMANTIC
            elsewhere.parent.mkdir(parents=True)
            elsewhere.write_bytes(b"".join(base))
            with holdfast.open(other) as clone:
                clone.put("fact", f"planted {theirs}", fields={"key": key})
            merged = [*log_lines(elsewhere), *lines[len(base) :]]
        path.parent.mkdir(parents=True, exist_ok=True)
        (by_rename if rename else in_place)(path, b"".join(merged))

    @rule(seed=seeds)
    def repeat_lines(self, seed: int) -> None:
        path = self.pick(seed, ".jsonl")
        if path:
            lines = [line.rstrip(b"\n") + b"\n" for line in log_lines(path)]
            path.write_bytes(b"".join([*lines, *lines[: 1 + seed % 3]]))

    @rule(seed=seeds)
    def space_a_log_differently(self, seed: int) -> None:
        path = self.pick(seed, ".jsonl")
        if path:
            spaced = [
                b" " + json.dumps(value, separators=(" , ", " : "), ensure_ascii=False).encode() + b"\r\n"
                for line in log_lines(path)
                for value in parsed(line)
            ]
            path.write_bytes(b"".join(spaced))

    @rule(seed=seeds)
    def delete_a_file(self, seed: int) -> None:
        if (path := self.pick(seed, ".md", ".jsonl")) and "_states" not in path.parts:
            self.memory.refresh()  # two that vanish between two reads are reported
            path.unlink()

    # what crashes do

    @rule(seed=seeds, cut=st.integers(1, 40))
    def tear_the_tail(self, seed: int, cut: int) -> None:
        path = self.pick(seed, ".jsonl")
        if path and len(data := path.read_bytes()) > cut:
            path.write_bytes(data[:-cut])
            self.damaged = True

    @rule(seed=seeds, key=keys, text=texts)
    def leave_a_last_line_open(self, seed: int, key: str, text: str) -> None:
        if path := self.pick(seed, ".jsonl"):
            line = {"key": key, "value": text, "content": text, "text": text, "role": "user"}
            gap = b"" if path.read_bytes().endswith(b"\n") else b"\n"
            with path.open("ab") as file:
                file.write(gap + json.dumps(line).encode())

    @rule(seed=seeds, more=st.sampled_from((b"\n", b"\r\n", b" ", b"{}\n", b'{"text":"planted"}\n', b"x\n")))
    def continue_the_last_line(self, seed: int, more: bytes) -> None:
        if path := self.pick(seed, ".jsonl"):
            with path.open("ab") as file:
                file.write(more)
            no_message = path.name == "history.jsonl" and more.startswith(b"{")
            self.damaged = self.damaged or more == b"x\n" or no_message

    # what the program does

    @rule()
    def refresh(self) -> None:
        self.memory.refresh()

    @rule()
    def rebuild(self) -> None:
        self.memory.refresh(rebuild=True)

    @rule(query=st.sampled_from(QUERIES))
    def find(self, query: str) -> None:
        self.memory.find(query)

    @rule()
    def reopen(self) -> None:
        self.memory.close()
        self.memory = holdfast.open(self.root)

    @rule()
    def let_the_files_grow_old(self) -> None:
        """Long after a change, the index may rely on stamps alone."""
        for path in self.files(".md", ".jsonl"):
            databaseroot.set_time(path, path.stat().st_mtime_ns - 10_000_000_000)

    @precondition(lambda self: hasattr(self, "memory"))
    @rule()
    def compare(self) -> None:
        assert_like_rebuilt(self.memory, self.root, self.scratch, damaged=self.damaged)
        facts = {record.id for record in listing(self.memory, hidden=False) if record.kind == "fact" and record.key}
        assert facts == holding_facts(self.root / SEMANTIC)


def go_through(machine: type[OnEither], another: Callable[[], Path], examples: int, steps: int) -> None:
    """Run so many histories, each on a root of its own."""
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking would replay thousands of histories
    )
    run_state_machine_as_test(cast("type[OnEither]", functools.partial(machine, another)), settings=chosen)


def test_an_incremental_index_answers_like_a_rebuilt_one(another: Callable[[], Path], engine: str) -> None:
    go_through(Histories, another, 50 if engine == "files" else 15, 25)


def there(memory: Memory) -> list[Record]:
    """Return what is kept; of what was forgotten only the place is left."""
    return [record for record in listing(memory) if not record.fields.get("forgotten")]


class Model(OnEither):
    """A memory beside a dictionary model: after every step both agree, and so does a new memory over the files."""

    @initialize()
    def start(self) -> None:
        self.make()
        self.memory.put("overview", "Home.", title="Home")
        self.wanted: dict[str, tuple[str, bool]] = {}
        """By id, what is kept: its text, and whether it is hidden."""
        self.made = 0

    def teardown(self) -> None:
        if hasattr(self, "memory"):
            self.memory.close()
            with holdfast.open(databaseroot.copy(self.root, self.scratch / "copy")) as fresh:
                assert self.kept(fresh) == self.wanted
            self.tidy()

    def kept(self, memory: Memory) -> dict[str, tuple[str, bool]]:
        records = [record for record in there(memory) if record.kind in ("note", "fact", "decision", "message")]
        assert len({record.id for record in records}) == len(records)
        return {_unarchived(record.id): (record.text.strip(), record.hidden) for record in records}

    def one_of(self, seed: int, *kinds: str) -> Record | None:
        found = [record for record in there(self.memory) if record.kind in kinds]
        return found[seed % len(found)] if found else None

    @rule(kind=st.sampled_from(("note", "decision", "message", "fact")), text=texts)
    def add(self, kind: str, text: str) -> None:
        self.made += 1
        name = f"{kind} {self.made}"
        fields = {"key": name} if kind == "fact" else {"date": "2024-05-06"} if kind == "decision" else {}
        given = {"title": name, "fields": fields, "op_id": name.replace(" ", "-")}
        receipt = self.memory.put(kind, f"{text} {name}", **given)  # type: ignore[arg-type]
        self.wanted[receipt.id] = (f"{text} {name}", False)
        assert self.memory.put(kind, f"{text} {name}", **given).status == "repeated"  # type: ignore[arg-type]

    @rule(seed=seeds, text=texts)
    def edit(self, seed: int, text: str) -> None:
        if record := self.one_of(seed, "note"):
            self.memory.put(id=record.id, text=text, expect=record.version)
            self.wanted[record.id] = (text, record.hidden)

    @rule(seed=seeds)
    def hide_or_show(self, seed: int) -> None:
        if record := self.one_of(seed, "note", "fact", "decision", "message"):
            self.memory.hide(record.id, restore=record.hidden)
            self.wanted[_unarchived(record.id)] = (record.text.strip(), not record.hidden)

    @rule(seed=seeds)
    def forget(self, seed: int) -> None:
        if record := self.one_of(seed, "note", "fact", "decision", "message"):
            self.memory.forget(record.id, yes=True)
            del self.wanted[_unarchived(record.id)]

    @rule(keep=st.integers(0, 2))
    def archive_entries(self, keep: int) -> None:
        upkeep.archive(self.memory, keep=keep)

    @rule(seed=seeds, text=texts, rename=st.booleans())
    def edit_outside(self, seed: int, text: str, rename: bool) -> None:
        if record := self.one_of(seed, "note"):
            path = self.root / record.path
            head = path.read_bytes().rpartition(b"---\n")[0]
            (by_rename if rename else in_place)(path, head + b"---\n\n" + text.encode() + b"\n")
            self.wanted[record.id] = (text, record.hidden)

    @rule(seed=seeds, text=texts)
    def merge_a_log(self, seed: int, text: str) -> None:
        """Another writer's line comes between ours, as in a git merge."""
        path = self.root / HISTORY
        line = {"id": mint(), "role": "user", "content": f"{text} of theirs", "timestamp": "2026-01-02T03:04:05Z"}
        lines = log_lines(path)
        place = seed % (len(lines) + 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join([*lines[:place], json.dumps(line).encode() + b"\n", *lines[place:]]))
        self.wanted[line["id"]] = (line["content"], False)

    @rule(rebuild=st.booleans(), reopen=st.booleans(), lose=st.booleans())
    def begin_again(self, rebuild: bool, reopen: bool, lose: bool) -> None:
        if reopen or lose:
            self.memory.close()
            if lose:
                databaseroot.drop_derived(self.root)
            self.memory = holdfast.open(self.root)
        if rebuild:
            self.memory.refresh(rebuild=True)

    @invariant()
    def what_is_kept_is_what_should_be(self) -> None:
        if hasattr(self, "memory"):
            assert self.kept(self.memory) == self.wanted


def _unarchived(identifier: str) -> str:
    """Return the id of an entry as it was before it was put away by year."""
    return identifier.replace("decisions-2024.md", "decisions.md")


def test_the_memory_agrees_with_a_dictionary_model(another: Callable[[], Path], engine: str) -> None:
    go_through(Model, another, 25 if engine == "files" else 8, 20)


def write_lines(path: Path, *lines: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def append_lines(path: Path, *lines: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def visible(memory: Memory, kind: str) -> list[str]:
    return sorted(hit.record.text for hit in memory.find("", kinds=(kind,), limit=1000))  # type: ignore[arg-type]


FUTURE = 4_102_444_800_000


def test_the_newest_line_of_a_key_wins_by_its_id_and_not_by_its_place(
    memory: Memory, root: Path, tmp_path: Path
) -> None:
    older, newer = mint(ms=1_700_000_000_000), mint(ms=1_700_000_000_001)
    write_lines(root / SEMANTIC, {"id": newer, "key": "k", "value": "new"}, {"id": older, "key": "k", "value": "old"})
    assert visible(memory, "fact") == ["new"]
    assert memory.find("old").hits == []
    assert_like_rebuilt(memory, root, tmp_path)


def test_an_acknowledged_fact_holds_although_a_merged_one_comes_from_a_clock_ahead(
    memory: Memory, root: Path, tmp_path: Path
) -> None:
    write_lines(
        root / SEMANTIC,
        {"id": mint(ms=FUTURE), "key": "k", "value": "from the future"},
        {"id": mint(), "key": "other", "value": "something"},
    )
    memory.put("fact", "mine", fields={"key": "k"})
    assert visible(memory, "fact") == ["mine", "something"]
    assert_like_rebuilt(memory, root, tmp_path)


def test_a_fact_from_a_clock_ahead_can_be_hidden_although_it_is_not_the_last_line(memory: Memory, root: Path) -> None:
    ahead = mint(ms=FUTURE)
    write_lines(
        root / SEMANTIC,
        {"id": ahead, "key": "k", "value": "from the future"},
        {"id": mint(), "key": "other", "value": "something"},
    )
    memory.hide(ahead)
    assert visible(memory, "fact") == ["something"]
    memory.hide(ahead, restore=True)
    assert visible(memory, "fact") == ["from the future", "something"]


def test_showing_again_holds_although_the_hiding_line_comes_from_a_clock_ahead(memory: Memory, root: Path) -> None:
    record = mint(ms=1_700_000_000_000)
    path = root / HISTORY
    write_lines(
        path,
        {"id": record, "role": "user", "content": "hello"},
        {"id": mint(ms=FUTURE), "hide": record, "hidden": True},
        {"id": mint(), "role": "user", "content": "later"},
    )
    assert visible(memory, "message") == ["later"]
    memory.hide(record, restore=True)
    assert visible(memory, "message") == ["hello", "later"]


@pytest.mark.parametrize(
    "tail", [b'{"id":"0190', b'{"content":"by hand"}\n', b'{"content":"one"}{"content":"two"}', b"\0\0\n"]
)
def test_ids_go_on_increasing_behind_any_tail_and_a_clock_that_went_back(
    memory: Memory, root: Path, tail: bytes
) -> None:
    ahead = mint(ms=FUTURE)
    write_lines(root / HISTORY, {"id": ahead, "role": "user", "content": "hello"})
    with (root / HISTORY).open("ab") as file:
        file.write(tail)
    first = memory.put("message", "next").id
    assert ahead < first < memory.put("message", "and next").id


def test_two_copies_of_a_log_whose_last_id_is_ahead_of_the_clock_do_not_mint_the_same_id(
    memory: Memory, root: Path, tmp_path: Path
) -> None:
    """Two machines append to copies of one log, and git joins the lines: each must keep an id of its own."""
    write_lines(root / HISTORY, {"id": mint(ms=FUTURE), "role": "user", "content": "hello"})
    with holdfast.open(databaseroot.copy(root, tmp_path / "clone")) as clone:
        theirs = clone.put("message", "theirs")
        line = log_lines(tmp_path / "clone" / HISTORY)[-1]
    ours = memory.put("message", "ours")
    assert ours.id != theirs.id
    with (root / HISTORY).open("ab") as file:
        file.write(line)
    assert visible(memory, "message") == ["hello", "ours", "theirs"]


def test_lines_of_one_id_with_other_content_leave_one_of_them_in_force(memory: Memory, root: Path) -> None:
    """A log written by hand may have numbered lines, and a repeated number with new content is a change."""
    path = root / SEMANTIC
    write_lines(path, {"id": "1", "key": "k", "value": "first"})
    assert visible(memory, "fact") == ["first"]
    append_lines(path, {"id": "1", "key": "k", "value": "second"})
    assert len(visible(memory, "fact")) == 1
    assert [problem.line for problem in memory.verify().damage] == [2]
    path.write_bytes(b"".join(reversed(log_lines(path))))
    assert len(visible(memory, "fact")) == 1


def test_a_twin_of_another_lines_id_does_not_retire_a_fact_of_another_key(memory: Memory, root: Path) -> None:
    shared = mint(ms=1_700_000_000_005)
    write_lines(
        root / SEMANTIC,
        {"id": mint(ms=1_700_000_000_000), "key": "b", "value": "bee"},
        {"id": shared, "key": "a", "value": "ant"},
        {"id": shared, "key": "b", "value": "wasp"},
    )
    held = visible(memory, "fact")
    assert "ant" in held
    assert len(held) == 2


@pytest.mark.parametrize("log", [SEMANTIC, HISTORY])
def test_a_mark_without_a_target_hides_nothing_however_the_index_came_to_be(
    memory: Memory, root: Path, tmp_path: Path, log: str
) -> None:
    line = {"role": "user", "content": "kept", "value": "kept", "timestamp": "2020-01-01", "time": "2020-01-01"}
    write_lines(root / log, line)
    kind = "fact" if log == SEMANTIC else "message"
    assert visible(memory, kind) == ["kept"]
    append_lines(root / log, {"id": mint(), "hide": ""})
    assert visible(memory, kind) == ["kept"]
    assert_like_rebuilt(memory, root, tmp_path, damaged=True)


def test_the_tail_of_a_merged_log_shows_what_a_search_shows(memory: Memory, root: Path) -> None:
    ids = [mint(ms=1_700_000_000_000 + step) for step in range(5)]
    twice = {"id": ids[4], "key": "d", "value": "doubled"}
    write_lines(
        root / SEMANTIC,
        {"id": ids[3], "hide": "b", "hidden": False},
        {"id": ids[2], "key": "a", "value": "new"},
        {"id": ids[1], "hide": "b", "hidden": True},
        twice,
        {"id": ids[0], "key": "b", "value": "shown again"},
        {"id": ids[0][:-1] + ("0" if ids[0][-1] != "0" else "1"), "key": "a", "value": "old"},
        twice,
    )
    assert visible(memory, "fact") == ["doubled", "new", "shown again"]
    assert sorted(record.text for record in memory.tail("fact", 10)) == ["doubled", "new", "shown again"]


def test_text_kept_beside_a_log_is_found_when_it_arrives_after_its_line(
    memory: Memory, root: Path, tmp_path: Path
) -> None:
    """Sync tools copy files in any order."""
    receipt = memory.put("episode", "heliotrope " + "word " * 20_000)
    (kept,) = (root / "user/memory").rglob("values/*.txt.gz")
    away = kept.with_suffix(".away")
    kept.rename(away)
    memory.refresh(rebuild=True)
    assert [problem.path for problem in memory.verify().damage] == [receipt.path]
    away.rename(kept)
    assert [hit.record.id for hit in memory.find("heliotrope", kinds=("episode",)) if len(hit.record.text) > 50_000]
    assert_like_rebuilt(memory, root, tmp_path)


HAND_EDITS: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-30]),
    "put first": lambda path: path.write_bytes(b'{"content":"planted","role":"user","text":"x"}\n' + path.read_bytes()),
    "replaced": lambda path: by_rename(path, b'{"content":"planted","role":"user","value":"planted","key":"z"}\n'),
}


@pytest.mark.parametrize("edit", HAND_EDITS)
@pytest.mark.parametrize("kind", ["message", "fact", "episode", "procedure"])
def test_a_log_changed_by_hand_is_seen_by_the_next_listing_of_its_kind(
    memory: Memory, root: Path, tmp_path: Path, kind: str, edit: str
) -> None:
    fields = {"fact": {"key": "k"}, "procedure": {"when": "w"}}.get(kind, {})
    for number in range(3):
        receipt = memory.put(kind, f"text number {number}", fields=fields)  # type: ignore[arg-type]
    assert memory.find("", kinds=(kind,)).hits  # type: ignore[arg-type]
    HAND_EDITS[edit](root / receipt.path)
    seen = [hit.record for hit in memory.find("", kinds=(kind,), hidden=True)]  # type: ignore[arg-type]
    with holdfast.open(databaseroot.copy(root, tmp_path / "copy")) as fresh:
        assert seen == [hit.record for hit in fresh.find("", kinds=(kind,), hidden=True)]  # type: ignore[arg-type]


def test_hidden_records_are_found_only_on_request(memory: Memory, root: Path, tmp_path: Path) -> None:
    kept = [
        memory.put("note", "quartz lies in the note", title="Note"),
        memory.put("decision", "quartz lies in the decision", title="Decision"),
        memory.put("fact", "quartz lies in the fact", fields={"key": "stone"}),
        memory.put("episode", "quartz lies in the episode"),
        memory.put("state", "quartz lies in the state", title="State"),
    ]
    for receipt in kept:
        memory.hide(receipt.id)
        assert receipt.id not in [hit.record.id for hit in memory.find("quartz")]
        found = {hit.record.id: hit.record.hidden for hit in memory.find("quartz", hidden=True)}
        assert found[receipt.id] is True
    assert memory.find("quartz").hits == []
    assert len(memory.find("quartz", hidden=True)) == len(kept)
    for receipt in kept:
        memory.hide(receipt.id, restore=True)
    assert len(memory.find("quartz")) == len(kept)
    assert_like_rebuilt(memory, root, tmp_path)
