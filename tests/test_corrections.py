"""Corrections that count: a whole record, a new text for it, what supersedes what, what expires, what is reviewed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fork_server
import holdfast
from holdfast.errors import Invalid
from holdfast.memories import corrections
from holdfast.model.queries import Query
from holdfast.model.settings import Review, load

WEB = {"workspaceId": "webshop", "sessionId": "one"}
YESTERDAY, TOMORROW = ((date.today() + timedelta(days=days)).isoformat() for days in (-1, 1))
Call = Callable[..., dict[str, Any]]


@pytest.fixture
def call(memory: holdfast.Memory) -> Call:
    """Calls a tool in the workspace `webshop`, and fails where the tool does."""
    memory.call("createWorkspace", {"name": "webshop", "description": "d", "rootFolder": "web", "purpose": "p"})

    def work(tool: str, /, context: dict[str, str] = WEB, **params: Any) -> dict[str, Any]:
        reply = memory.call(tool, params, context)
        assert reply.get("success") is not False, reply
        return reply

    return work


def refused(memory: holdfast.Memory, tool: str, context: dict[str, str] = WEB, /, **params: Any) -> str:
    reply = memory.call(tool, params, context)
    assert reply["success"] is False, reply
    return str(reply["error"])


def cli(root: Path, *words: str, ok: bool = True) -> str:
    command = [sys.executable, "-m", "holdfast", *words, "--root", str(root)]
    done = fork_server.run(command, capture_output=True, text=True)
    assert (done.returncode == 0) is ok, done.stderr
    return str(done.stdout + done.stderr)


# read


def test_a_whole_record_is_read_in_parts_of_so_many_characters(memory: holdfast.Memory, call: Call) -> None:
    text = "\n".join(f"line {number} é" for number in range(2_000))
    made = call("remember", text=text, title="Long")
    (hit,) = call("recall", query="line long")["hits"]
    assert hit["size"] == len(text)
    found, offset = "", 0
    while True:
        part = call("read", id=made["id"], offset=offset, limit=7_000)
        assert (part["offset"], part["size"], part["title"]) == (offset, len(text), "Long")
        found += part["content"]
        if "next" not in part:
            break
        offset = part["next"]
    assert found == text
    assert f"all {len(text):,} characters: read {made['id']}" in call("recall", query="line long")["text"]
    assert "go on with offset 16000" in call("read", id=made["id"])["text"]
    short = call("remember", text="Only a few words about marble.")
    (hit,) = call("recall", query="marble")["hits"]
    assert "size" not in hit and hit["id"] == short["id"]


def test_every_sort_of_record_is_read_by_its_id_or_its_line(memory: holdfast.Memory, call: Call) -> None:
    note = call("remember", text="a note", title="N", tags=["t"])["id"]
    decision = call("remember", text="a decision", kind="decision", title="D")
    fact = call("remember", text="a fact", kind="fact", key="k")["id"]
    episode = memory.put("episode", data={"action": "ran", "result": 3}, session="one").id
    call("createState", name="S", conversationContext="a state", activeTask="t", activeFiles=[], nextSteps=["n"])
    (state,) = memory.every(Query(kinds=("state",)))
    for identifier, content in (
        (note, "a note"), (decision["id"], "a decision"), (fact, "a fact"), (state.id, "a state"),
        (episode, '{"action":"ran","result":3}'), (f"{decision['where']}:3", "a decision"), (f"{note}:1", "a note"),
    ):  # fmt: skip
        assert call("read", id=identifier)["content"] == content
    assert call("read", id=state.id)["fields"]["nextSteps"] == ["n"]
    assert call("read", id=note)["tags"] == ["t"]
    assert "> activeTask: t" in call("read", id=state.id)["text"]
    assert "There is no record" in refused(memory, "read", id="nothing")


def test_notes_of_a_session_are_read_there_and_nowhere_else(memory: holdfast.Memory, call: Call) -> None:
    mine = call("save_memory", compartment="session", content="the wombat password")["id"]
    assert call("read", id=mine)["content"] == "the wombat password"
    other = WEB | {"sessionId": "two"}
    error = refused(memory, "read", other, id=mine)
    assert "wombat" not in error and error.endswith("Only that session reads it, with get_memory.")


# revise


def test_a_note_is_corrected_and_the_owner_can_undo_it(memory: holdfast.Memory, call: Call) -> None:
    made = call("remember", text="We deploy on Tuesdays.", title="Deploys", tags=["ops"])
    before = call("read", id=made["id"])
    reply = call("revise", id=made["id"], text="We deploy on Thursdays.", reason="moved", version=before["version"])
    assert (reply["status"], reply["was"], reply["workspace"]) == ("changed", "We deploy on Tuesdays.", "webshop")
    assert reply["text"] == f"Changed in webshop: {made['id']}. The old text is kept."
    (hit,) = call("recall", query="when do we deploy")["hits"]
    assert (hit["text"], hit["title"], hit["tags"]) == ("We deploy on Thursdays.", "Deploys", ["ops"])
    assert memory.versions(made["id"])[-1].reason == "moved"
    memory.undo(made["id"])
    assert memory.get(made["id"]).text == "We deploy on Tuesdays."


@pytest.mark.parametrize("kind", ["note", "decision", "lesson", "fact", "procedure"])
def test_every_kind_that_is_remembered_can_be_revised_and_the_old_text_stays(
    memory: holdfast.Memory, call: Call, kind: str
) -> None:
    made = call(
        "remember", text="The marble is blue.", kind=kind, key="marble" if kind in ("fact", "procedure") else None
    )
    reply = call("revise", id=made["id"], text="The marble is green.", reason="repainted")
    assert call("read", id=reply["id"])["content"] == "The marble is green."
    assert [hit["text"] for hit in call("recall", query="marble")["hits"]] == ["The marble is green."]
    if memory.store.folder:
        every = "".join(
            path.read_text()
            for path in Path(memory.root).rglob("*")
            if path.is_file() and path.suffix in (".md", ".jsonl", "")
        )
        assert "The marble is blue." in every


def test_the_owner_undoes_a_revised_entry_of_a_log(memory: holdfast.Memory, call: Call) -> None:
    fact = call("remember", text="Lisbon", kind="fact", key="office")["id"]
    new = call("revise", id=fact, text="Porto")["id"]
    memory.undo(new)
    assert [record.text for record in memory.tail("fact")] == ["Lisbon"]
    when = call("remember", kind="procedure", key="the build is red", text="call Ann")["id"]
    later = call("revise", id=when, text="call Bob")["id"]
    assert memory.undo(later).id == when
    assert [hit["id"] for hit in call("recall", query="the build is red")["hits"]] == [when]
    with pytest.raises(Invalid, match="holdfast hide"):
        memory.undo(when)


def test_title_tags_and_status_are_revised_alone(memory: holdfast.Memory, call: Call) -> None:
    decision = call("remember", text="Marble floors.", kind="decision", title="Floors")["id"]
    renamed = call("revise", id=decision, title="Floors of the shop", tags=["interior"])["id"]
    read = call("read", id=renamed)
    assert (read["title"], read["tags"], read["content"]) == ("Floors of the shop", ["interior"], "Marble floors.")
    plan = memory.put("plan", "Steps", title="Rebuild", scope="webshop").id
    call("revise", id=plan, status="done")
    assert memory.get(plan).fields["status"] == "done"
    assert "has no status" in refused(memory, "revise", id=renamed, status="done")
    assert "Use one of: new, in_progress" in refused(memory, "revise", id=plan, status="maybe")


def test_an_edit_of_an_outdated_version_changes_nothing(memory: holdfast.Memory, call: Call) -> None:
    made = call("remember", text="First.", title="T")["id"]
    old = call("read", id=made)["version"]
    call("revise", id=made, text="Second.", version=old)
    assert "was changed since version" in refused(memory, "revise", id=made, text="Third.", version=old)
    assert memory.get(made).text == "Second."


@pytest.mark.parametrize("kind", ["note", "decision", "fact"])
def test_what_is_retired_leaves_recall_and_comes_back(memory: holdfast.Memory, call: Call, kind: str) -> None:
    made = call("remember", text="The wombat sleeps.", kind=kind, key="wombat" if kind == "fact" else None)["id"]
    assert call("revise", id=made, retire=True, reason="wrong")["status"] == "retired"
    assert call("recall", query="wombat")["hits"] == []
    read = call("read", id=made)
    assert (read["content"], read["label"]) == ("The wombat sleeps.", "retired: wrong")
    assert "wrong" in [one.reason for one in memory.versions(made)]
    assert call("revise", id=made, retire=False)["status"] == "restored"
    assert len(call("recall", query="wombat")["hits"]) == 1


def test_what_has_its_own_tool_is_not_revised(memory: holdfast.Memory, call: Call) -> None:
    call("createState", name="S", conversationContext="c", activeTask="t", activeFiles=[], nextSteps=[])
    (state,) = memory.every(Query(kinds=("state",)))
    before = memory.get(state.id)
    assert "A save point is never changed. Use createState" in refused(memory, "revise", id=state.id, text="x")
    assert "createState" in refused(memory, "revise", id=state.id, retire=True)
    assert memory.get(state.id) == before
    note = call("save_memory", compartment="session", content="mine")["id"]
    assert "clear_memory" in refused(memory, "revise", id=note, text="x")
    assert "another session" in refused(memory, "revise", WEB | {"sessionId": "two"}, id=note, text="x")
    memory.put("rule", "Be kind.", id="agent/rules/common/kind.md")
    assert "belong to the owner" in refused(memory, "revise", id="agent/rules/common/kind.md", text="x")
    other = call("remember", text="some text")["id"]
    assert "nothing to revise" in refused(memory, "revise", id=other)
    assert "not both" in refused(memory, "revise", id=other, text="x", retire=True)
    assert "There is no record" in refused(memory, "revise", id="nothing", text="x")


def test_a_value_that_is_not_text_stays_what_it_is(memory: holdfast.Memory, call: Call) -> None:
    value = {"port": 8080, "tls": True}
    made = call("memory_learn", key="server", value=value)["data"]["id"]
    tagged = call("revise", id=made, tags=["net"])["id"]
    assert call("memory_recall", key="server")["data"]["value"] == value
    changed = call("revise", id=tagged, text="none", reason="gone")["id"]
    assert memory.versions(changed)[-1].reason == "gone"
    memory.undo(changed)
    assert call("memory_recall", key="server")["data"]["value"] == value


def test_one_entry_of_a_page_is_undone_whatever_was_added_after_it(memory: holdfast.Memory, call: Call) -> None:
    made = call("remember", text="Floors of marble.", kind="decision", title="Floors")["id"]
    first = call("revise", id=made, text="Floors of wood.")["id"]
    second = call("revise", id=first, text="Floors of cork.", title="Cork")["id"]
    call("remember", text="Walls of brick.", kind="decision", title="Walls")
    assert memory.undo(second).id == first
    assert memory.get(first).text == "Floors of wood."
    memory.undo(first)
    assert memory.get(made).text == "Floors of marble."
    assert [one["title"] for one in call("retrieve_learnings")["decisions"]] == ["Walls", "Floors"]
    with pytest.raises(Invalid, match="no earlier text"):
        memory.undo(made)


@pytest.mark.parametrize("kind", ["note", "decision"])
def test_a_title_made_from_the_text_follows_it(call: Call, kind: str) -> None:
    made = call("remember", text="We deploy on Tuesdays.", kind=kind)["id"]
    call("revise", id=made, text="We deploy on Thursdays.")
    (hit,) = call("recall", query="when do we deploy", kinds=[kind])["hits"]
    assert hit["title"] == "We deploy on Thursdays."


@pytest.mark.parametrize("kind", ["note", "decision", "fact", "procedure"])
def test_of_many_that_revise_one_version_only_one_succeeds(memory: holdfast.Memory, call: Call, kind: str) -> None:
    key = {"key": "marble"} if kind in ("fact", "procedure") else {"title": "Marble"}
    made = call("remember", text="first", kind=kind, **key)["id"]
    version = call("read", id=made)["version"]

    def revise(number: int) -> bool:
        params = {"id": made, "text": f"text {number}", "version": version}
        return memory.call("revise", params, WEB).get("success") is not False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(revise, range(8))) == 1
    assert len(memory.every(Query(kinds=(kind,)))) == 1


def test_a_record_is_valid_again_with_another_last_day(memory: holdfast.Memory, call: Call) -> None:
    for kind in ("note", "decision", "fact"):
        key = {"key": "beta"} if kind == "fact" else {"title": f"Beta {kind}"}
        made = call("remember", kind=kind, text=f"The beta {kind}.", until=YESTERDAY, **key)["id"]
        made = call("revise", id=made, until=TOMORROW)["id"]
        assert memory.get(made).fields["until"] == TOMORROW and "label" not in call("read", id=made)
        made = call("revise", id=made, until="")["id"]
        assert "until" not in memory.get(made).fields


# supersedes


def test_what_belongs_to_the_owner_is_not_superseded(memory: holdfast.Memory, call: Call) -> None:
    memory.put("rule", "# Push\n\nNever push to main.", id="agent/rules/common/push.md")
    call("memory_write", content="Tea at four.")
    overview = memory.layout.overview("webshop")
    for owned in ("agent/rules/common/push.md", "user/memory/MEMORY.md", overview):
        before = memory.get(owned)
        assert "cannot be superseded" in refused(memory, "remember", text="Anything goes.", supersedes=owned)
        assert memory.get(owned) == before


def test_what_is_known_already_can_supersede_another_one(memory: holdfast.Memory, call: Call) -> None:
    new = call("remember", text="Use uv everywhere.", title="UV", kind="decision")["id"]
    old = call("remember", text="Use pip.", title="PIP", kind="decision")["id"]
    reply = call("remember", text="Use uv everywhere.", title="UV", kind="decision", supersedes=old)
    assert (reply["status"], reply["duplicateOf"], reply["supersedes"]) == ("duplicate", new, old)
    assert memory.get(old).fields["superseded_by"] == new and memory.get(new).fields["supersedes"] == old


@pytest.mark.parametrize("kind", ["note", "decision"])
def test_an_older_record_is_current_again_when_the_newer_one_is_retired(
    memory: holdfast.Memory, call: Call, kind: str
) -> None:
    old = call("remember", text="Marble floors.", title="Floors", kind=kind)["id"]
    new = call("remember", text="Wooden floors.", title="Wood", kind=kind, supersedes=old)["id"]
    call("revise", id=new, retire=True)
    assert [hit["id"] for hit in call("recall", query="floors", kinds=[kind])["hits"]] == [old]
    assert "label" not in call("read", id=old)
    call("revise", id=new, retire=False)
    assert call("read", id=old)["label"] == f"superseded by {new}"


def test_a_new_title_is_followed_by_both_neighbours_of_a_chain(memory: holdfast.Memory, call: Call) -> None:
    ids = [call("remember", text="One.", title="One", kind="decision")["id"]]
    for title in ("Two", "Three"):
        ids.append(call("remember", text=f"{title}.", title=title, kind="decision", supersedes=ids[-1])["id"])
    middle = call("revise", id=ids[1], title="Second")["id"]
    assert memory.get(ids[0]).fields["superseded_by"] == middle == memory.get(ids[2]).fields["supersedes"]


def test_the_newer_decision_wins_and_both_say_so_in_their_files(memory: holdfast.Memory, call: Call) -> None:
    old = call("remember", kind="decision", title="MySQL for orders", text="Orders are in MySQL, which we know well.")
    new = call(
        "remember", kind="decision", title="One database", text="PostgreSQL has all our data from now on.",
        supersedes=old["id"],
    )  # fmt: skip
    assert (new["status"], new["supersedes"]) == ("superseded", old["id"])
    hits = call("recall", query="which MySQL database has the orders?")["hits"]
    assert [hit["id"] for hit in hits] == [new["id"], old["id"]]
    assert hits[1]["label"] == f"superseded by {new['id']}" and "label" not in hits[0]
    assert f"supersedes {old['id']}" in hits[0]["why"]
    text = call("recall", query="MySQL orders")["text"]
    assert text.index("One database") < text.index(f"MySQL for orders · superseded by {new['id']}")
    page = memory.tree.read(memory.get(new["id"]).path).data.decode()
    assert f"**Superseded by:** {new['id']}\n" in page and f"**Supersedes:** {old['id']}\n" in page
    shown = [entry["title"] for entry in call("retrieve_learnings")["decisions"]]
    assert shown == ["One database"]
    assert "which we know well" not in memory.prompt(workspace="webshop", task="which database has the orders?")


def test_a_note_and_a_procedure_supersede_others(memory: holdfast.Memory, call: Call) -> None:
    old = call("remember", text="Deploys: push to the old server.", title="Deploys")["id"]
    new = call("remember", text="Deploys: merge to main.", title="Deploys now", supersedes=old)["id"]
    assert [hit["id"] for hit in call("recall", query="deploys server")["hits"]] == [new, old]
    assert memory.get(old).fields["superseded_by"] == new and memory.get(new).fields["supersedes"] == old
    when = call("remember", kind="procedure", key="the build is red", text="call Ann")["id"]
    later = call("remember", kind="procedure", key="the build is red", text="call Bob", supersedes=when)["id"]
    assert [hit["id"] for hit in call("recall", query="build is red")["hits"]] == [later]
    read = call("read", id=when)
    assert (read["content"], read["label"]) == ("call Ann", "retired: superseded")
    assert "is superseded" in refused(memory, "revise", id=when, retire=False)


def test_a_chain_leads_to_its_end(memory: holdfast.Memory, call: Call) -> None:
    ids = [call("save_learning", kind="decision", title="Tabs", content="Indent with tabs, said Zoe.")["id"]]
    for title in ("Two spaces", "Four spaces"):
        content = f"{title} from today."
        ids.append(call("save_learning", kind="decision", title=title, content=content, supersedes=ids[-1])["id"])
    hits = call("recall", query="what did Zoe say about tabs?")["hits"]
    assert [hit["id"] for hit in hits][:1] == [ids[2]]
    assert ids[0] in [hit["id"] for hit in hits]
    error = refused(memory, "save_learning", kind="decision", title="Eight", content="Eight.", supersedes=ids[0])
    assert f"superseded by {ids[1]} already" in error
    assert "There is no record" in refused(memory, "remember", text="x", supersedes="nothing")
    renamed = call("revise", id=ids[2], title="Four blanks")["id"]
    assert memory.get(ids[1]).fields["superseded_by"] == renamed
    call("createState", name="S", conversationContext="c", activeTask="t", activeFiles=[], nextSteps=[])
    (state,) = memory.every(Query(kinds=("state",)))
    assert "A state cannot be superseded" in refused(memory, "remember", text="x", supersedes=state.id)


def test_a_writer_that_dies_between_two_files_leaves_the_newer_one_first(memory: holdfast.Memory, call: Call) -> None:
    old = call("remember", text="The marble shop opens at nine.", title="Marble hours")["id"]
    new = call("remember", text="The marble shop opens at ten.", title="Marble hours now", supersedes=old)["id"]
    memory.undo(old)  # as if the older one had never been marked
    assert "superseded_by" not in memory.get(old).fields
    assert [hit["id"] for hit in call("recall", query="marble shop hours opens", kinds=["note"])["hits"]] == [new, old]


def test_an_answer_as_of_an_earlier_day_has_what_was_valid_then(memory: holdfast.Memory, call: Call) -> None:
    memory.put("decision", "Marble floors.", title="Floors", scope="webshop", fields={"date": "2025-01-01"})
    (old,) = memory.every(Query(kinds=("decision",)))
    memory.put("decision", "Wooden marble.", title="New floors", scope="webshop", supersedes=old.id)
    assert [hit["title"] for hit in call("recall", query="marble")["hits"]] == ["New floors", "Floors"]
    assert [hit["title"] for hit in call("recall", query="marble", asked="2025-06-01")["hits"]] == ["Floors"]


# until


@pytest.mark.parametrize("kind", ["note", "decision", "fact"])
def test_what_has_expired_is_labelled_and_ranks_last(memory: holdfast.Memory, call: Call, kind: str) -> None:
    keys = [{"key": key} if kind == "fact" else {"title": key} for key in ("marble one", "marble two")]
    old = call("remember", kind=kind, text="The marble marble marble code.", until=YESTERDAY, **keys[0])["id"]
    new = call("remember", kind=kind, text="The code for a marble.", until=TOMORROW, **keys[1])["id"]
    hits = call("recall", query="marble code")["hits"]
    assert [(hit["id"], hit.get("label", "")) for hit in hits] == [(new, ""), (old, f"expired on {YESTERDAY}")]
    assert "until is 'soon'" in refused(memory, "remember", text="x", until="soon")


# similar


def test_remembering_names_what_is_similar_and_how_it_differs(memory: holdfast.Memory, call: Call) -> None:
    old = call("remember", text="We deploy the shop on Tuesdays.", kind="decision")
    assert "similar" not in old
    call("recall", query="deploy")  # makes the index, for which no write waits
    call("remember", text="Ann prefers tea.", kind="decision")
    new = call("remember", text="We deploy the shop on Thursdays.", kind="decision")
    (same,) = new["similar"]
    assert (same["id"], same["how"]) == (old["id"], "which has Tuesdays where this has Thursdays")
    assert "similar: " in new["text"] and "supersedes" in new["text"]
    learned = call("save_learning", kind="decision", title="Deploys", content="Deploy the shop on Fridays.")
    assert old["id"] in [one["id"] for one in learned["similar"]]
    fact = call("remember", text="Lisbon", kind="fact", key="office time zone")
    other = call("remember", text="Porto", kind="fact", key="time zone of the office")
    assert [one["id"] for one in other["similar"]] == [fact["id"]]


# review


@pytest.fixture
def reviewed(memory: holdfast.Memory, call: Call) -> holdfast.Memory:
    settings = msgspec.structs.replace(memory.settings, review=Review(("decision", "fact", "note")))
    memory.settings = settings
    return memory


def test_what_agents_propose_waits_for_the_owner(root: Path, reviewed: holdfast.Memory, call: Call) -> None:
    cli(root, "put", "decision", "No wombats.", "--title", "Animals", "--scope", "webshop")
    (old,) = reviewed.every(Query(kinds=("decision",)))
    reply = call(
        "remember", text="Wombats are welcome.", kind="decision", title="Wombats", tags=["zoo"], supersedes=old.id,
        until=TOMORROW,
    )  # fmt: skip
    assert reply["status"] == "pending" and "holdfast review" in reply["text"]
    assert [entry["title"] for entry in call("retrieve_learnings")["decisions"]] == ["Animals"]
    first, hit = call("recall", query="wombats welcome")["hits"]
    waiting = "decision, waits for the owner's approval"
    assert (first["id"], hit["kind"], hit["label"]) == (old.id, "proposal", waiting)
    assert "are welcome" not in reviewed.prompt(workspace="webshop", task="are wombats welcome?")
    assert "Wombats" in cli(root, "review") and "are welcome" in cli(root, "review", reply["id"])
    assert call("remember", text="Wombats are welcome.", kind="decision", title="Wombats", tags=["zoo"],
                supersedes=old.id, until=TOMORROW)["id"] == reply["id"]  # fmt: skip
    cli(root, "review", reply["id"], "--approve")
    (entry,) = call("retrieve_learnings")["decisions"]
    assert (entry["title"], entry["content"].strip(), entry["tags"]) == ("Wombats", "Wombats are welcome.", ["zoo"])
    (first, second) = call("recall", query="wombats welcome")["hits"]
    assert (first["title"], second["label"]) == ("Wombats", f"superseded by {first['id']}")
    assert reviewed.get(first["id"]).fields["until"] == TOMORROW
    assert cli(root, "review").strip() in ("Nothing is pending.", "[]")
    assert "is not pending" in cli(root, "review", reply["id"], "--approve", ok=False)


def test_an_approved_record_is_changed_only_with_approval(root: Path, reviewed: holdfast.Memory, call: Call) -> None:
    cli(root, "put", "note", "The marble is blue.", "--title", "Marble", "--scope", "webshop")
    (note,) = reviewed.every(Query(kinds=("note",)))
    reply = call("revise", id=note.id, text="The marble is green.")
    assert (reply["status"], reviewed.get(note.id).text) == ("pending", "The marble is blue.")
    assert "Only the owner" in refused(reviewed, "revise", id=note.id, retire=True)
    cli(root, "review", "--approve", "--all")
    assert reviewed.get(note.id).text == "The marble is green."
    fact = call("memory_learn", key="zone", value="Lisbon")["data"]
    assert fact["status"] == "pending" and call("memory_recall", key="zone")["data"] is None
    cli(root, "review", fact["id"], "--reject", "--reason", "no")
    assert call("recall", query="zone Lisbon")["hits"] == []
    assert "rejected: no" in [one.reason for one in reviewed.versions(fact["id"])]


def test_what_is_approved_is_not_replaced_by_a_kind_that_is_not_reviewed(
    root: Path, reviewed: holdfast.Memory, call: Call
) -> None:
    cli(root, "put", "decision", "Use PostgreSQL.", "--title", "Database", "--scope", "webshop")
    (decision,) = reviewed.every(Query(kinds=("decision",)))
    assert call("remember", text="Use Oracle.", kind="lesson", supersedes=decision.id)["status"] == "pending"
    assert "superseded_by" not in reviewed.get(decision.id).fields


def test_proposals_are_decided_one_by_one_and_the_agent_learns_how(
    root: Path, reviewed: holdfast.Memory, call: Call
) -> None:
    cli(root, "put", "note", "The marble is blue.", "--title", "Marble", "--scope", "webshop", "--tag", "old")
    (note,) = reviewed.every(Query(kinds=("note",)))
    first = call("revise", id=note.id, text="The marble is green.")["id"]
    second = call("revise", id=note.id, text="The marble is red.")["id"]
    third = call("revise", id=note.id, tags=[])["id"]
    fact = call("memory_learn", key="office", value={"city": "Lisbon"})["data"]["id"]
    shown = cli(root, "review")
    assert shown.count("Marble") >= 3 and "office" in shown
    report = cli(root, "review", "--approve", "--all", ok=False)
    assert f"{second}: " in report and f"holdfast review {second} --reject" in report
    assert call("memory_recall", key="office")["data"]["value"] == {"city": "Lisbon"}
    cli(root, "review", second, third, "--reject", "--reason", "too late")
    assert call("read", id=second)["label"] == "note, decided by the owner: rejected: too late"
    assert call("read", id=first)["label"].startswith("note, decided by the owner: approved: ")
    assert call("read", id=fact)["label"].startswith("fact, decided by the owner: approved: ")


def test_no_tool_can_approve(reviewed: holdfast.Memory, call: Call) -> None:
    reply = call("remember", text="Wombats are welcome.", kind="decision")
    for params in ({"text": "x"}, {"retire": True}, {"retire": False}):
        assert "cannot be revised" in refused(reviewed, "revise", id=reply["id"], **params)
    assert "cannot be superseded" in refused(reviewed, "remember", text="x", supersedes=reply["id"])
    assert [one.id for one in corrections.pending(reviewed)] == [reply["id"]]


def test_an_unknown_kind_for_review_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(Invalid, match="review"):
        load('[review]\nkinds = ["message"]')
