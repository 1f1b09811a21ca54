"""Forgotten text is gone: no file below the root contains its bytes, and nothing else is lost."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

import fork_server
import holdfast
from holdfast.errors import Invalid, NotFound
from holdfast.model.queries import Query
from holdfast.owner.forget import SearchTerms
from killing import finish, kills, work
from terminal import on_terminal

SECRET = 'The launch code of the eastern silo is 4711-0815;\nnobody else may "know" it — évér.'
FORMS = [SECRET.encode(), json.dumps(SECRET)[1:-1].encode(), json.dumps(SECRET, ensure_ascii=False)[1:-1].encode()]
PARTS = [*FORMS, b"4711-0815"]
FORGET = "with holdfast.open(sys.argv[1]) as memory: memory.forget(sys.argv[2], yes=True)"
APPEND = """
import os, time
with holdfast.open(sys.argv[1], writer=sys.argv[2]) as memory:
    number = 0
    while not os.path.exists(sys.argv[3]):
        number += 1
        op = f"{sys.argv[2]}-{number}"
        memory.put("episode", f"said by {op}.", session="s", op_id=op)
        memory.put("episode", f"said by {op}.", session="s", op_id=op)
        print(op, flush=True)
        time.sleep(0.01)
"""


def holding(root: Path, forms: list[bytes] = PARTS) -> list[str]:
    """Return the files below a root with the secret, or with a word that reveals it."""
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and any(form in unpacked(path) for form in forms)
    )


def unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.name.endswith(".gz") else data


def others(memory: holdfast.Memory) -> set[str]:
    return {record.text for record in memory.every(Query(kinds=("episode", "note", "message"))) if record.text}


@pytest.fixture
def told(memory: holdfast.Memory) -> dict[str, str]:
    """The ids of records of every form with the secret, beside others without it; and many copies of it."""
    found = {"note": memory.put("note", SECRET, title="Silo").id}
    memory.put(id=found["note"], fields={"status": "open"})
    memory.put(id=found["note"], text="Another text by now.", expect=memory.get(found["note"]).version)
    memory.put(id=found["note"], text=SECRET, expect=memory.get(found["note"]).version)
    found["decision"] = memory.put("decision", SECRET, title="Silo").id
    memory.put("decision", "We keep PostgreSQL.", title="Database")
    memory.hide(found["decision"])
    memory.call("remember", {"content": SECRET, "kind": "lesson", "title": "Silo"})
    memory.put("episode", "The first thing that happened.", session="s")
    found["episode"] = memory.put("episode", SECRET, session="s", op_id="once").id
    found["large"] = memory.put("episode", SECRET + "\n" + "The weather was fine that day. " * 900, session="s").id
    memory.put("episode", "The last thing that happened.", session="s")
    memory.mind("s").compact("episodic", keep_last=0)
    memory.put("fact", SECRET, fields={"key": "silo"})
    found["fact"] = memory.put("fact", "changed since", fields={"key": "silo"}).id
    memory.call("save_memory", {"compartment": "session", "content": SECRET}, {"workspaceId": "default",
                                                                              "sessionId": "s"})  # fmt: skip
    memory.chat.persist_exchange("cli", "me", SECRET, "Noted.")
    state = {"name": "Silo", "conversationContext": SECRET, "activeTask": "t", "activeFiles": [], "nextSteps": []}
    memory.call("createState", state)
    memory.refresh()
    return found


def test_forgetting_a_text_leaves_none_of_its_bytes(memory: holdfast.Memory, root: Path, told: dict[str, str]) -> None:
    assert len(holding(root)) >= 10
    unfinished = root / "user/memory/.holdfast-tmp-0123456789abcdef"
    unfinished.write_text(SECRET)
    shown = memory.forget(query="launch code of the eastern silo")
    assert not shown.done
    with pytest.raises(Invalid, match=f"--count {shown.count}"):
        memory.forget(query="launch code of the eastern silo", yes=True)
    with pytest.raises(Invalid, match="not 3"):
        memory.forget(query="launch code of the eastern silo", yes=True, count=3)
    assert len(holding(root)) >= 11
    kept = others(memory)
    done = memory.forget(told["fact"], query="launch code of the eastern silo", yes=True, count=shown.count)
    assert done.done
    assert done.remains == []
    assert holding(root) == []
    assert kept - others(memory) <= {text for text in kept if "launch code" in text}
    assert any("made before" in each for each in done.out_of_reach)
    assert memory.verify().sound
    assert [record.text for record in memory.tail("episode", session="s")] == [
        "The first thing that happened.", "The last thing that happened.",
    ]  # fmt: skip
    assert [record.text for record in memory.tail("message")] == ["Noted."]
    assert not memory.find("launch code").hits
    assert memory.put("episode", SECRET, session="s", op_id="once").status == "repeated"
    assert memory.get(told["episode"]).fields["forgotten"]
    with pytest.raises(NotFound, match="is not stored"):
        memory.undo(told["note"])


def test_one_record_goes_and_where_else_the_text_stands_is_told(
    memory: holdfast.Memory, root: Path, told: dict[str, str]
) -> None:
    done = memory.forget(told["note"], yes=True)
    assert done.records == [told["note"]]
    assert not (root / told["note"]).exists()
    assert not list((root / "user/memory/writes/kept").iterdir())
    assert not holding(root / "user/memory/traces")
    assert {problem.path for problem in done.remains} == set(holding(root, FORMS))
    assert [version.what for version in memory.versions(told["note"])][-1] == "forgotten"
    assert memory.forget(told["note"], yes=True).already == [told["note"]]
    with pytest.raises(NotFound):
        memory.forget("resources/workspaces/default/_notes/never-was.md", yes=True)


def test_a_summary_that_quotes_it_is_cleaned_and_named(memory: holdfast.Memory, root: Path) -> None:
    ids = [memory.put("episode", text, session="s").id for text in (SECRET, "We went home at six in the evening.")]
    memory.mind("s").compact("episodic", keep_last=0)
    summaries = root / "user/memory/sessions/s-043a7187/summaries.jsonl"
    assert holding(summaries.parent)
    done = memory.forget(ids[0], yes=True)
    assert done.remains == []
    assert holding(root) == []
    assert len(done.speaking) == 1
    assert "six in the evening" in summaries.read_text()


def test_forget_lists_git_and_other_places_out_of_reach(memory: holdfast.Memory, root: Path) -> None:
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    note = memory.put("note", SECRET, title="Silo")
    subprocess.run(["git", "-C", str(root), "add", "-A"], check=True)
    done = memory.forget(note.id, yes=True)
    assert any(each.startswith(f"the git history of {root}") for each in done.out_of_reach)


def test_a_text_that_two_lines_share_stays_while_one_of_them_does(memory: holdfast.Memory) -> None:
    large = "The same large text, twice. " * 1000
    first, second = (memory.put("episode", large, session="s").id for _ in range(2))
    memory.forget(first, yes=True)
    assert memory.get(second).text == large
    assert memory.forget(second, yes=True).remains == []


def test_no_tool_can_forget_or_roll_back(memory: holdfast.Memory) -> None:
    names = {name.lower() for name in memory.tools.registry.tools}
    assert names
    for word in ("forget", "rollback", "restore", "backup"):
        assert not any(word in name for name in names)


def test_the_next_run_finishes_a_killed_forget(memory: holdfast.Memory, root: Path) -> None:
    texts = [f"{SECRET} Number {number}." for number in range(24)]
    ids = [memory.put("episode", text, session="s").id for text in texts[:12]]
    ids += [memory.put("note", text, title=f"Silo {number}").id for number, text in enumerate(texts[12:])]
    for one in ids[12:]:
        memory.put(id=one, fields={"status": "open"})
    kept = {memory.put("episode", f"Other line {number}.", session="s").id for number in range(30)}
    long = finish(FORGET, str(root), ids[0])
    in_time = 0
    words = [[str(root), each] for each in ids[1:22]]
    for number, killed in enumerate(kills(FORGET, words, long, seed=5), 1):
        in_time += killed
        assert {record.id for record in memory.tail("episode", 100, session="s")} >= kept
        assert memory.forget(ids[number], yes=True).done
        assert f"Number {number}." not in {record.text[-10:] for record in memory.every(Query())}
    assert in_time >= 5
    gone = memory.forget(*ids[22:], yes=True, count=2)
    assert gone.remains == []
    assert holding(root, [b"eastern silo", b"4711-0815"]) == []
    assert memory.verify().sound


def test_an_append_during_forget_loses_no_line(memory: holdfast.Memory, root: Path, tmp_path: Path) -> None:
    ids = [memory.put("episode", f"{SECRET} {number}", session="s").id for number in range(8)]
    stop = tmp_path / "stop"
    writers = [work(APPEND, str(root), name, str(stop)) for name in ("one", "two", "three")]
    try:
        for each in ids:
            memory.forget(each, yes=True)
    finally:
        stop.touch()
        said = [process.communicate(timeout=60)[0].split() for process in writers]
    assert [process.returncode for process in writers] == [0, 0, 0]
    acknowledged = [f"said by {op}." for ops in said for op in ops]
    assert len(acknowledged) > 20
    there = [record.text for record in memory.tail("episode", 100_000, session="s")]
    assert sorted(there) == sorted(acknowledged)
    assert holding(root) == []
    assert memory.verify().sound


def test_forget_shows_a_preview_and_a_proof_on_a_terminal(
    memory: holdfast.Memory, root: Path, told: dict[str, str]
) -> None:
    memory.close()
    shown = on_terminal("forget", told["episode"], root=root)
    assert "1 record would be forgotten; nothing was changed. Repeat it with --yes." in shown
    shown = on_terminal("forget", told["episode"], "--yes", root=root, code=1)
    assert "1 record forgotten." in shown
    assert "Still found in" in shown
    shown = on_terminal("forget", "--query", "eastern silo", "--yes", root=root, code=2)
    assert "say so with the number: --count" in shown
    command = [sys.executable, "-m", "holdfast", "forget", "--query", "eastern silo", "--root", str(root)]
    count = json.loads(fork_server.run(command, capture_output=True, check=True).stdout)["count"]
    shown = on_terminal("forget", "--query", "eastern silo", "--yes", "--count", str(count), root=root)
    assert "No file below the root has its bytes any more." in shown
    assert "Out of reach: backups" in shown
    assert holding(root, FORMS) == []


def test_parts_are_found_in_other_text_and_taken_out() -> None:
    terms = SearchTerms([SECRET, "tiny"])
    assert terms.short == 1
    assert terms.cut_from(f"cut: {SECRET[:40]}… more") == "cut: [forgotten]… more"
    assert terms.cut_from("The launch code is unknown") == "The launch code is unknown"
    assert terms.cut_from_json({"a": [f"x {SECRET} y", 1]}) == {"a": ["x [forgotten] y", 1]}
    assert terms.may_occur_in(json.dumps({"text": SECRET}).encode())
    assert not terms.may_occur_in(b"The launch is unknown")


def test_what_was_not_looked_for_is_not_said_to_be_gone(memory: holdfast.Memory, root: Path) -> None:
    (root / "stray.txt").write_text(f"copied: {SECRET}\n")
    note = memory.put("note", SECRET, title="Silo").id
    memory.close()
    assert "Still found in 1 file" in on_terminal("forget", note, "--yes", root=root, code=1)
    again = on_terminal("forget", note, "--yes", root=root)
    assert "No file was searched" in again
    assert "No file below" not in again
    assert "stray.txt" in on_terminal("forget", "--query", "eastern silo", "--yes", root=root, code=1)
    (root / "stray.txt").unlink()
    assert "No file below" in on_terminal("forget", "--query", "eastern silo", "--yes", root=root)


def test_the_words_that_were_asked_for_go_from_traces_too(memory: holdfast.Memory, root: Path) -> None:
    memory.put("note", "The door opens with heron-4711.", title="Door")
    memory.call("recall", {"query": "heron-4711"})
    done = memory.forget(query="heron-4711", yes=True)
    assert (done.remains, done.looked) == ([], True)
    assert holding(root, [b"heron-4711"]) == []


def test_a_name_made_of_the_title_stays_in_the_account_and_is_told(memory: holdfast.Memory, root: Path) -> None:
    title = "quokka-marmalade-seventeen"
    gone = memory.put("note", "What the first one says about fruit.", title=title).id
    other = memory.put("note", "Quite another matter.", title=f"{title}-too").id
    memory.put(id=other, title="Renamed")
    memory.call("recall", {"query": title})
    done = memory.forget(gone, yes=True)
    assert done.named == [gone]
    assert [one.what for one in memory.versions(gone)][-1] == "forgotten"
    assert [one.what for one in memory.versions(other)] == ["made", "changed"]
    assert holding(root, [f'"query":"{title}"'.encode()]) == []
    account = "".join(path.read_text() for path in (root / "user/memory/writes").glob("*.jsonl"))
    assert gone in account
    assert "[forgotten]" not in account


def test_only_its_own_name_is_no_remainder(memory: holdfast.Memory) -> None:
    gone = memory.put("note", "What the first one says about fruit.", title="quokka-marmalade-seventeen").id
    assert memory.forget(gone, yes=True).remains == []
