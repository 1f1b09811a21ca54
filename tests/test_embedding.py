"""Recall by meaning: what says the same in other words is found, and the vectors can be lost at any time.

Whatever becomes of the files of vectors, an answer is right: at most it goes by words alone.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import databaseroot
import holdfast
from holdfast import Memory
from holdfast.errors import Unavailable
from holdfast.recall import embedders

if not embedders.is_installed("semantic"):
    pytest.skip("the extra semantic is not installed", allow_module_level=True)


PETS = "The cat sleeps on the sofa all day."
ASKED = "kitten napping couch"
QUESTIONS = (ASKED, "when do we ship the software?", "automobile repairs in Lisbon", "granite 7")
Answer = list[tuple[str, float]]


@pytest.fixture(autouse=True)
def semantic(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about the table of word vectors, whatever else is installed."""
    monkeypatch.setenv("HOLDFAST_SEARCH_EMBEDDER", "semantic")


def fill(memory: Memory) -> None:
    memory.put("note", PETS, title="Animals")
    memory.put("note", "We deploy the program on Tuesdays.", title="Releases")
    memory.put("fact", "Doctor Moreira", fields={"key": "who treats headaches"})
    memory.put("episode", "The car was mended in Portugal.", session="trip")
    for number in range(30):
        memory.put("episode", f"granite and quartz, sample {number}", session="stones")


def recall(memory: Memory, text: str, **given: Any) -> Answer:
    return [(hit.record.id, hit.score) for hit in memory.find(text, associate=True, **given)]


def answers(root: Path) -> list[Answer]:
    with holdfast.open(root) as memory:
        return [recall(memory, text) for text in QUESTIONS]


def vector_files(root: Path) -> list[Path]:
    """Return the files of vectors; a database has none, and keeps the sets that others may still use."""
    return sorted((root / ".holdfast").glob("vectors-*.sqlite"))


def test_what_says_the_same_in_other_words_is_found(memory: Memory) -> None:
    fill(memory)
    found = memory.find(ASKED, associate=True)
    assert found.hits[0].record.text == PETS
    assert found.hits[0].why == ()


def test_an_empty_memory_has_no_answer(memory: Memory) -> None:
    assert recall(memory, ASKED) == []


def test_a_literal_search_keeps_to_the_words(memory: Memory) -> None:
    fill(memory)
    assert len(memory.find(ASKED)) == 0


def test_what_is_about_nothing_in_the_memory_has_no_answer(memory: Memory) -> None:
    fill(memory)
    assert recall(memory, "quantum chromodynamics lattice") == []


def test_a_fresh_record_is_found_by_meaning_at_once(memory: Memory) -> None:
    fill(memory)
    assert recall(memory, "rainy weather") == []
    fresh = memory.put("episode", "It was wet, cold and stormy outside.", session="sky").id
    assert recall(memory, "rainy weather")[0][0] == fresh


def test_without_an_embedder_words_are_all_there_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SEARCH_EMBEDDER", "none")
    with holdfast.open(root) as memory:
        fill(memory)
        assert recall(memory, ASKED) == []
        assert recall(memory, "granite")
        assert memory.embedder == ""
        with pytest.raises(Unavailable):
            memory.embed()
    assert vector_files(root) == []


def test_an_embedder_that_is_not_installed_is_none(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(embedders.ENGINES, "semantic", (embedders.WordVectors, ("no_such_module_anywhere",)))
    with holdfast.open(root) as memory:
        fill(memory)
        assert recall(memory, ASKED) == []
        with pytest.raises(Unavailable, match="not installed"):
            memory.embed()


@pytest.mark.parametrize("part", ["texts", "question"])
def test_an_embedder_that_fails_at_its_work_leaves_the_words(
    root: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("the table is broken")

    monkeypatch.setattr(embedders.WordVectors, part, fails)
    with holdfast.open(root) as memory:
        fill(memory)
        assert recall(memory, "the cat on the sofa")
        assert memory.embedder == ""
        assert "the table is broken" in memory.embedded().problem
        with pytest.raises(Unavailable, match="the table is broken"):
            memory.embed()


def test_hidden_and_removed_records_are_never_returned(root: Path) -> None:
    with holdfast.open(root) as memory:
        fill(memory)
        pets = recall(memory, ASKED)[0][0]
        memory.hide(pets)
        assert pets not in dict(recall(memory, ASKED))
        memory.hide(pets, restore=True)
        assert recall(memory, ASKED)[0][0] == pets
        (root / pets).unlink()
        assert pets not in dict(recall(memory, ASKED))


def test_a_changed_record_is_found_by_what_it_says_now(root: Path) -> None:
    with holdfast.open(root) as memory:
        fill(memory)
        path = recall(memory, ASKED)[0][0]
        text = (root / path).read_text()
        (root / path).write_text(text.replace(PETS, "It was wet, cold and stormy outside."))
        assert path not in dict(recall(memory, ASKED))
        assert recall(memory, "rainy weather")[0][0] == path


def test_a_superseded_fact_is_not_found_by_its_old_value(memory: Memory) -> None:
    memory.put("fact", "a kitten that naps on the couch", fields={"key": "pet"})
    assert recall(memory, "sleeping cat sofa")
    memory.put("fact", "none", fields={"key": "pet"})
    assert all("none" in hit.record.text for hit in memory.find("sleeping cat sofa", associate=True))


def test_a_filter_holds_for_what_is_near_as_well(memory: Memory) -> None:
    fill(memory)
    assert recall(memory, ASKED, kinds=("note",))
    assert recall(memory, ASKED, kinds=("fact",)) == []
    assert recall(memory, ASKED, until="2001-01-01") == []


def test_few_that_pass_a_filter_are_found_among_many_that_lie_nearer(memory: Memory) -> None:
    for number in range(300):
        memory.put("episode", f"kitten napping on couch {number}", session="cats")
    wanted = memory.put("note", "The cat sleeps.", title="Animals").id
    assert recall(memory, "kitty asleep", kinds=("note",))[0][0] == wanted


def test_the_vectors_can_be_deleted_with_all_the_rest(root: Path) -> None:
    with holdfast.open(root) as memory:
        fill(memory)
    before = answers(root)
    assert all(before)
    databaseroot.drop_derived(root)
    assert answers(root) == before
    databaseroot.drop_vectors(root)
    assert answers(root) == before


def test_vectors_made_one_by_one_equal_those_made_at_once(root: Path) -> None:
    with holdfast.open(root) as memory:
        for number in range(40):
            memory.put("episode", f"{'cat dog horse boat'.split()[number % 4]} number {number} on the hill")
            recall(memory, "kitten")
        one_by_one = [recall(memory, text) for text in ("kitten", "ship", "puppy mountain")]
    databaseroot.drop_derived(root)
    with holdfast.open(root) as memory:
        assert [recall(memory, text) for text in ("kitten", "ship", "puppy mountain")] == one_by_one


@pytest.mark.parametrize("size", [0, 10, 4_096, 5_000])
def test_a_file_that_was_cut_short_is_completed(root: Path, size: int) -> None:
    with holdfast.open(root) as memory:
        fill(memory)
    before = answers(root)
    os.truncate(vector_files(root)[0], size)
    assert answers(root) == before
    with holdfast.open(root) as memory:
        assert memory.embedded().missing == 0


def test_a_file_that_shrinks_under_an_open_memory_is_completed(root: Path) -> None:
    with holdfast.open(root) as memory:
        fill(memory)
        before = [recall(memory, text) for text in QUESTIONS]
        os.truncate(vector_files(root)[0], 700)
        assert [recall(memory, text) for text in QUESTIONS] == before
        vector_files(root)[0].write_bytes(b"rubbish")
        assert [recall(memory, text) for text in QUESTIONS] == before
        vector_files(root)[0].unlink()
        assert [recall(memory, text) for text in QUESTIONS] == before


def test_vectors_of_another_version_of_the_model_are_never_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open(root) as memory:
        fill(memory)
    before = answers(root)
    old = vector_files(root)

    class Newer(embedders.WordVectors):
        def __init__(self) -> None:
            super().__init__()
            self.version = "a newer version"

        def texts(self, texts: Any) -> Any:
            return -super().texts(texts)

        def question(self, text: str, words: Any) -> Any:
            return -super().question(text, words)

    monkeypatch.setitem(embedders.ENGINES, "semantic", (Newer, embedders.ENGINES["semantic"][1]))
    assert answers(root) == before  # the new vectors against the new question: mixed, nothing would be near
    assert len(vector_files(root)) == len(old)
    assert not {*vector_files(root)} & {*old}


def test_a_rebuilt_index_takes_the_vectors_of_the_same_texts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open(root) as memory:
        fill(memory)
    before = answers(root)
    old = vector_files(root)
    made: list[str] = []
    real = embedders.WordVectors.texts

    def noted(self: embedders.WordVectors, texts: Any) -> Any:
        made.extend(texts)
        return real(self, texts)

    monkeypatch.setattr(embedders.WordVectors, "texts", noted)
    with holdfast.open(root) as memory:
        memory.refresh(rebuild=True)
    assert answers(root) == before
    assert made == []
    assert vector_files(root) == old


def test_what_no_record_needs_is_dropped_once_it_is_most_of_all(root: Path) -> None:
    with holdfast.open(root) as memory:
        memory.put("note", PETS, title="Animals")
        log = root / "user/memory/history.jsonl"
        for turn in range(4):
            log.unlink(missing_ok=True)
            lines = [{"role": "user", "content": f"grey {turn} {number}"} for number in range(700)]
            memory.add("user/memory/history.jsonl", lines, durable=False)
            told = memory.embed()
        assert told.vectors == 701
        assert recall(memory, ASKED)
    databaseroot.drop_derived(root)
    with holdfast.open(root) as memory:
        assert told.bytes < 4 * memory.embed().bytes + 1_000 * 400


def test_each_entry_of_a_page_has_one_vector(root: Path) -> None:
    with holdfast.open(root) as memory:
        for number in range(400):
            memory.put("decision", f"The cat sleeps on sofa {number}.", title=f"Pet {number}")
            if number % 20 == 0:
                assert recall(memory, ASKED)
        assert recall(memory, ASKED)
        told = memory.embedded()
    assert (told.vectors, told.missing) == (400, 0)
    assert told.bytes < 400 * 400


def test_a_change_of_one_entry_makes_one_vector(root: Path) -> None:
    with holdfast.open(root) as memory:
        page = root / memory.put("decision", "The cat sleeps.", title="First").path
        with page.open("a") as file:
            file.writelines(f"\n### [2026-01-01] Choice {number}\n\nOption {number}.\n" for number in range(300))
        assert memory.embed().made == 301
        memory.put("decision", "The dog barks.", title="Last")
        assert memory.embed().made == 1
        page.write_text(page.read_text().replace("Option 150.", "Option 150, with two\nlines."))
        assert memory.embed().made == 1
        assert memory.embedded().vectors == 302


def test_repeated_edits_leave_few_old_vectors(root: Path) -> None:
    with holdfast.open(root) as memory:
        page = root / memory.put("decision", "The cat sleeps.", title="First").path
        entries = "".join(f"\n### [2026-01-01] Choice {number}\n\nOption {number}.\n" for number in range(300))
        for turn in range(15):  # each edit is before all other entries
            page.write_text(f"# Decisions\n\n### [2026-01-01] First\n\nThe cat sleeps, {turn}.\n{entries}")
            assert len(memory.find(ASKED, associate=True, budget=0)) >= 1
        told = memory.embedded()
        assert (told.vectors, told.missing) == (301, 0)
        assert told.bytes < (3 * 301 + 1_000) * 400
        before = recall(memory, ASKED)
    databaseroot.drop_derived(root)
    with holdfast.open(root) as memory:
        assert recall(memory, ASKED) == before


def test_where_the_disk_refuses_vectors_they_are_kept_in_memory(root: Path) -> None:
    with holdfast.open(root) as memory:
        fill(memory)
        memory.refresh()
        assert recall(memory, ASKED)
        (path,) = vector_files(root)
        for one in root.glob(".holdfast/vectors-*"):
            one.unlink()
        path.mkdir()
        assert recall(memory, ASKED)
        memory.put("episode", "It was wet, cold and stormy outside.", session="sky")
        assert recall(memory, "rainy weather")


def test_a_memory_that_may_not_be_written_is_recalled_by_meaning_too(root: Path) -> None:
    with holdfast.open(root) as memory:
        fill(memory)
        before = recall(memory, ASKED)
    shutil.rmtree(root / ".holdfast")
    (root / ".holdfast").write_text("not a folder")
    with holdfast.open(root) as memory:
        assert recall(memory, ASKED) == before
        memory.refresh(rebuild=True)
        assert recall(memory, ASKED) == before


def _work(root: str, name: str) -> None:
    with holdfast.open(root) as memory:
        for number in range(25):
            memory.put("episode", f"{name} {number}: the cat sleeps on the sofa", session=name)
            assert recall(memory, ASKED)


def test_several_processes_write_and_recall_at_once(root: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_work, args=(str(root), name)) for name in ("one", "two", "three")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    before = answers(root)
    with holdfast.open(root) as memory:
        assert memory.embedded().missing == 0
    databaseroot.drop_derived(root)
    assert answers(root) == before


def test_a_thread_makes_what_a_search_could_not(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedders.WordVectors, "at_once", 5)
    with holdfast.open(root, watch=True) as memory:
        fill(memory)
        assert recall(memory, ASKED) == []  # by words alone, rather than by half of the vectors
        deadline = time.monotonic() + 30
        while not recall(memory, ASKED) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert recall(memory, ASKED)


def test_a_search_does_not_wait_for_the_embedding_thread(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedders.WordVectors, "at_once", 5)
    begun, go_on, found = threading.Event(), threading.Event(), list[Answer]()
    real = embedders.WordVectors.texts

    def slow(self: embedders.WordVectors, texts: Any) -> Any:
        if threading.current_thread().name == "holdfast-embedding":
            begun.set()
            go_on.wait(60)
        return real(self, texts)

    monkeypatch.setattr(embedders.WordVectors, "texts", slow)
    with holdfast.open(root, watch=True) as memory:
        fill(memory)
        recall(memory, ASKED)
        assert begun.wait(60)
        asking = threading.Thread(target=lambda: found.append(recall(memory, "deploy the program")), daemon=True)
        asking.start()
        asking.join(20)
        waited = asking.is_alive()
        go_on.set()
        asking.join(60)
        assert not waited
        assert len(found[0]) == 1


def test_the_command_makes_vectors_and_says_how_many(root: Path) -> None:
    with holdfast.open(root) as memory:
        fill(memory)

    def run(*arguments: str) -> Any:
        command = [sys.executable, "-m", "holdfast", *arguments, "--root", str(root), "--json"]
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    before = run("embed", "--status")
    assert (before["embedder"], before["model"], before["vectors"], before["missing"]) == (
        "semantic",
        "wordllama",
        0,
        34,
    )
    made = run("embed")
    assert (made["made"], made["vectors"], made["missing"]) == (34, 34, 0)
    assert run("embed")["made"] == 0
    assert made["bytes"] == run("embed", "--status")["bytes"] > 34 * 256
    with holdfast.open(root) as memory:
        memory.put("note", "One more.", title="One more")
    run("refresh")
    assert run("embed", "--status")["missing"] == 0


def test_a_literal_search_loads_no_numpy(root: Path) -> None:
    code = (
        f"import sys, holdfast\nwith holdfast.open({str(root)!r}) as memory:\n"
        "    memory.put('note', 'text', title='T'); memory.find('text')\n"
        "print([name for name in ('numpy', 'tokenizers', 'wordllama') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not embedders.is_installed("quality"), reason="the extra quality is not installed")
def test_the_model_of_sentences_finds_what_says_the_same(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SEARCH_EMBEDDER", "auto")
    with holdfast.open(root) as memory:
        assert memory.embedder == "quality"
        fill(memory)
        memory.embed()
        assert memory.find(ASKED, associate=True).hits[0].record.text == PETS
