"""The contract of `Store`: documents, logs and records, on every engine."""

from __future__ import annotations

import itertools
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import AlreadyExists, Conflict, Invalid, NotFound, OverBudget
from holdfast.formats import jsonl
from holdfast.model.records import version_of
from holdfast.model.times import mint_many
from holdfast.storage.log import Changed
from holdfast.storage.store import ANY, Event, Made, Store
from holdfast.storage.tree import ABSENT

PAGE = "resources/workspaces/web/page.md"
LOG = "user/memory/history.jsonl"


@pytest.fixture
def store(memory: holdfast.Memory) -> Store:
    return memory.store


def entries(store: Store, log: str) -> list[dict[str, Any]]:
    """Return all entries of a log, as any reader of the file would see them."""
    found = []
    for line in store.tree.scan(log):
        objects = jsonl.parse(line.data)
        assert isinstance(objects, list), objects
        found += objects
    return found


# documents


def test_a_document_is_returned_as_it_was_written(store: Store) -> None:
    receipt = store.write(PAGE, b"# One\r\n\xff\n", expect=ABSENT)
    document = store.read(PAGE)
    assert (document.data, document.version) == (b"# One\r\n\xff\n", receipt.version)
    assert receipt.status == "stored"
    assert store.exists(PAGE)


def test_creating_never_replaces(store: Store) -> None:
    store.write(PAGE, b"one", expect=ABSENT)
    with pytest.raises(AlreadyExists):
        store.write(PAGE, b"two", expect=ABSENT)
    assert store.read(PAGE).data == b"one"


def test_a_stale_version_is_a_conflict_and_changes_nothing(store: Store) -> None:
    first = store.write(PAGE, b"one", expect=ABSENT)
    store.write(PAGE, b"two", expect=first.version)
    with pytest.raises(Conflict):
        store.write(PAGE, b"three", expect=first.version)
    assert store.read(PAGE).data == b"two"


def test_writing_the_same_text_again_changes_nothing(store: Store) -> None:
    first = store.write(PAGE, b"one", expect=ABSENT)
    assert store.write(PAGE, b"one", expect=first.version).status == "unchanged"


def test_concurrent_updates_are_all_applied(root: Path, store: Store) -> None:
    store.write(PAGE, b"", expect=ABSENT)

    def add(number: int) -> None:
        def make(current: bytes | None) -> Made:
            data = (current or b"") + b"%d\n" % number
            return Made(data, PAGE, version_of(data))

        store.update(PAGE, make, expect=ANY)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(24)))
    assert sorted(map(int, store.read(PAGE).data.split())) == list(range(24))


def test_an_op_id_writes_a_document_once(store: Store) -> None:
    first = store.write(PAGE, b"one", expect=ABSENT, op_id="op-1")
    store.write(PAGE, b"two", expect=first.version)
    again = store.write(PAGE, b"one", expect=ABSENT, op_id="op-1")
    assert (again.status, again.version) == ("repeated", first.version)
    assert store.read(PAGE).data == b"two"
    with pytest.raises(Conflict, match="op-1"):
        store.write("resources/workspaces/web/other.md", b"one", expect=ABSENT, op_id="op-1")


def test_an_op_id_counts_once_in_parallel(store: Store) -> None:
    def write(_: int) -> str:
        return store.write(PAGE, b"one", expect=ABSENT, op_id="op-1").status

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(write, range(6))) == ["repeated"] * 5 + ["stored"]


def test_the_replaced_text_is_kept(store: Store) -> None:
    first = store.write(PAGE, b"one", expect=ABSENT)
    store.write(PAGE, b"two", expect=first.version)
    assert store.tree.read(store.kept(first.version)).data == b"one"


def test_removing_needs_the_version_and_keeps_the_text(store: Store) -> None:
    first = store.write(PAGE, b"one", expect=ABSENT)
    with pytest.raises(Conflict):
        store.remove(PAGE, expect=version_of(b"other"))
    store.remove(PAGE, expect=first.version)
    assert not store.exists(PAGE)
    with pytest.raises(NotFound):
        store.read(PAGE)
    assert store.tree.read(store.kept(first.version)).data == b"one"


def test_the_write_log_names_versions_and_the_writer(root: Path) -> None:
    with holdfast.open(root, writer="tester") as memory:
        first = memory.store.write(PAGE, b"one", expect=ABSENT)
        second = memory.store.write(PAGE, b"two", expect=first.version)
        (log,) = memory.store.paths("user/memory/writes", ".jsonl")
        found = [line for line in entries(memory.store, log) if line["path"] == PAGE]
    assert [line["after"] for line in found] == [first.version, second.version]
    assert found[1]["before"] == first.version
    assert {line["writer"] for line in found} == {"tester"}


def test_paths_lists_files_below_a_folder(store: Store) -> None:
    for name in ("b.md", "a.md", "x/c.md", "d.txt"):
        store.write(f"resources/workspaces/web/{name}", name.encode(), expect=ABSENT)
    assert store.paths("resources/workspaces/web", ".md") == [
        f"resources/workspaces/web/{name}" for name in ("a.md", "b.md", "x/c.md")
    ]
    assert store.paths("resources/workspaces/nothing") == []


# logs


def test_entries_get_ids_that_ascend(store: Store) -> None:
    first = store.append(LOG, [{"role": "user", "content": "one"}]).ids
    later = "01ffffff-ffff-7fff-bfff-ffffffffff00"
    second = store.append(LOG, [{"role": "user", "content": "two"}, {"role": "user", "content": "three"}], after=later)
    ids = [entry["id"] for entry in entries(store, LOG)]
    assert ids == sorted(ids) == [*first, *second.ids]
    assert second.ids[0] > later


def test_parallel_appends_lose_nothing_and_keep_the_order_of_ids(store: Store) -> None:
    def add(number: int) -> str:
        return store.append(LOG, [{"role": "user", "content": str(number)}]).ids[0]

    with ThreadPoolExecutor(6) as pool:
        acknowledged = set(pool.map(add, range(60)))
    found = entries(store, LOG)
    assert {entry["id"] for entry in found} == acknowledged
    assert all(one["id"] < two["id"] for one, two in itertools.pairwise(found))


def test_an_op_id_appends_once(store: Store) -> None:
    first = store.append(LOG, [{"role": "user", "content": "one"}], op_id="op-1")
    again = store.append(LOG, [{"role": "user", "content": "one"}], op_id="op-1")
    assert (again.ids, again.repeated) == (first.ids, True)
    assert len(entries(store, LOG)) == 1
    with pytest.raises(Conflict, match="op-1"):
        store.append("user/memory/semantic.jsonl", [{"key": "k", "value": "v"}], op_id="op-1")


def test_an_op_id_appends_once_from_two_programs(root: Path, store: Store) -> None:
    with holdfast.open(root) as other:
        stores = [store, other.store] * 4

        def add(one: Store) -> str:
            return one.append(LOG, [{"role": "user", "content": "one"}], op_id="op-1").ids[0]

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(add, stores))) == 1
    assert len(entries(store, LOG)) == 1


def test_a_line_that_is_too_long_is_refused(store: Store) -> None:
    with pytest.raises(OverBudget):
        store.append(LOG, [{"role": "user", "content": "x" * (9 << 20)}])
    assert not store.exists(LOG)


def test_no_entries_make_no_log(store: Store) -> None:
    assert store.append(LOG, []).ids == []
    assert not store.exists(LOG)


def test_a_log_is_read_on_from_a_cursor_until_its_past_changes(store: Store) -> None:
    empty = store.read_on(LOG, None)
    assert (empty.entries, empty.fresh, empty.cursor is None) == ([], True, False)
    store.append(LOG, [{"role": "user", "content": "one"}], unless=empty.cursor)
    first = store.read_on(LOG, empty.cursor)
    assert [entry["content"] for entry in first.entries] == ["one"]
    store.append(LOG, [{"role": "user", "content": "two"}])
    second = store.read_on(LOG, first.cursor)
    assert ([entry["content"] for entry in second.entries], second.fresh) == (["two"], False)
    assert (store.read_on(LOG, second.cursor).entries, second.warnings) == ([], [])
    store.tree.rewrite(LOG, lambda line: line.replace(b"one", b"ONE"))
    again = store.read_on(LOG, second.cursor)
    assert ([entry["content"] for entry in again.entries], again.fresh) == (["ONE", "two"], True)


def test_an_append_is_refused_when_the_log_has_changed_since_a_cursor(store: Store) -> None:
    cursor = store.read_on(LOG, None).cursor
    store.append(LOG, [{"role": "user", "content": "one"}])
    with pytest.raises(Changed):
        store.append(LOG, [{"role": "user", "content": "two"}], unless=cursor)
    assert len(entries(store, LOG)) == 1


def test_a_log_is_read_on_after_a_decision_that_wrote_elsewhere_too(root: Path, store: Store) -> None:
    with holdfast.open(root) as other:
        cursor = store.read_on(LOG, None).cursor

        def decide() -> tuple[list[dict[str, Any]], str]:
            nonlocal cursor
            assert store.claim("user/memory/runs/one.jsonl")
            other.store.append("user/memory/semantic.jsonl", [{"key": "k", "value": "meanwhile"}])
            cursor = store.read_on(LOG, cursor).cursor
            return [{"role": "user", "content": "mine"}], ""

        (identifier,) = store.append_decided(LOG, decide)
        assert [entry["id"] for entry in store.read_on(LOG, cursor).entries] == [identifier]


@pytest.mark.parametrize("log", [LOG, "user/memory/summaries.jsonl"])
def test_an_append_that_depends_on_a_log_waits_for_a_decision_about_it(root: Path, store: Store, log: str) -> None:
    entry = {"role": "user", "content": "x", "type": "semantic", "text": "x"}
    with holdfast.open(root) as other, ThreadPoolExecutor(1) as pool:
        cursor = other.store.read_on(log, None).cursor
        late: Future[Any] = Future()

        def decide() -> tuple[list[dict[str, Any]], str]:
            nonlocal late
            late = pool.submit(other.store.append, log, [entry], unless=cursor)
            wait([late], 0.3)
            return [entry], ""

        store.append_decided(log, decide)
        with pytest.raises(Changed):
            late.result(30)


def test_lines_with_their_own_ids_are_imported_once(store: Store) -> None:
    ids = mint_many("", 3)
    made = [{"id": one, "role": "user", "content": one} for one in ids]
    assert store.missing(LOG, set(ids)) == 3
    assert store.import_entries(LOG, made[:2]) == 2
    assert store.import_entries(LOG, made) == 1
    assert (store.missing(LOG, set(ids)), len(entries(store, LOG))) == (0, 3)
    with pytest.raises(Invalid, match="id"):
        store.import_entries(LOG, [{"content": "none"}])


def test_a_claimed_log_is_not_discarded_as_a_dead_one(root: Path, store: Store) -> None:
    run = "user/memory/sessions/chat/runs/one.jsonl"
    with holdfast.open(root) as other:
        store.append(run, [{"content": "x"}], unless=store.read_on(run, None).cursor, locked=lambda: claim(store, run))
        assert store.claim(run)
        assert not other.store.claim(run)
        assert not other.store.discard(run, dead=True)
        assert not store.discard(run, lambda: True)
        assert store.exists(run)
        store.release(run)
        assert other.store.discard(run, dead=True)
    assert not store.exists(run)
    assert store.discard(run)


def claim(store: Store, path: str) -> None:
    assert store.claim(path)


# records


def test_every_record_is_listed_with_older_values_and_hidden_ones(memory: holdfast.Memory) -> None:
    first = memory.put("fact", "Porto", fields={"key": "office"}).id
    second = memory.put("fact", "Lisbon", fields={"key": "office"}).id
    page = memory.put("note", "We deploy on Tuesdays.", title="Deploys").id
    memory.hide(page)
    assert {record.id for record in memory.store.every()} >= {first, second, page}
    assert not {record.kind for record in memory.store.every()} & {"write", "ledger", "claim", "trace"}
    path = memory.store.get(second).path
    assert [record.id for record in memory.store.by_key(path, "office")] == [second]
    assert [record.id for record in memory.store.by_key(path, "office", history=True)] == [first, second]
    assert memory.store.count(path) == 1


def test_who_wrote_a_document_is_known_by_its_id_or_path(memory: holdfast.Memory) -> None:
    with memory.store.written_by("ann"):
        page = memory.put("note", "We deploy on Tuesdays.", title="Deploys")
        entry = memory.put("decision", "By train.", title="Trains")
    records = [memory.get(page.id), memory.get(entry.id)]
    writers = memory.store.writers(records)
    assert [writers.get(one.id, writers.get(one.path)) for one in records] == ["ann", "ann"]


def test_a_feed_has_what_others_write_and_ends_when_it_is_closed(root: Path, store: Store) -> None:
    feed = store.follow()
    with holdfast.open(root) as other:
        line = other.put("message", "said", fields={"role": "user", "channel": "cli"}).id
    found: list[Event] = []
    for _ in range(60):
        found += feed.events(1.0)
        if any(event.id == line for event in found):
            break
    (event,) = [event for event in found if event.id == line]
    assert (event.what, event.path, event.kind) == ("added", LOG, "message")
    assert event.record
    assert event.record.text == "said"
    feed.close()
    assert feed.events(0.1) == []


def test_records_follow_documents_and_entries(memory: holdfast.Memory) -> None:
    memory.store.append(LOG, [{"role": "user", "content": "the deploy day is Tuesday"}])
    memory.store.write(PAGE, b"# Deploys\n\nWe deploy on Tuesdays.\n", expect=ABSENT)
    assert {hit.record.path for hit in memory.find("deploy")} == {LOG, PAGE}
    memory.store.remove(PAGE, expect=memory.store.read(PAGE).version)
    assert {hit.record.path for hit in memory.find("deploy")} == {LOG}


def test_an_announced_write_that_never_happened_is_not_taken_for_done(store: Store) -> None:
    """A line without an id, as another program may write it, proves nothing about an earlier intent."""
    first = store.write(PAGE, b"one", expect=ABSENT)
    store.log_write({"path": PAGE, "before": first.version, "after": version_of(b"two"), "intent": True}, "op-1")
    (log,) = store.paths("user/memory/writes", ".jsonl")
    stray = jsonl.render({"path": PAGE, "before": version_of(b"two"), "after": first.version})
    store.import_lines(log, [stray.rstrip()])
    assert store.write(PAGE, b"two", expect=first.version, op_id="op-1").status == "changed"
    assert store.read(PAGE).data == b"two"
