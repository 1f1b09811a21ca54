"""A private memory and a shared one: an answer comes from both and says which; a shared one that is away costs little."""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fork_server
import holdfast
from holdfast.errors import Invalid, NotFound, Unavailable
from holdfast.model.queries import Query
from holdfast.recall.answers import Candidates
from holdfast.roots import make_root
from terminal import on_terminal


@pytest.fixture(params=["files", "database"])
def team(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A shared memory, on either engine."""
    if request.param == "database":
        return str(request.getfixturevalue("address"))
    make_root(str(tmp_path / "team"))
    return str(tmp_path.resolve() / "team")


def share(root: Path, store: str, seconds: float = 60) -> None:
    text = f"format = 1\n[shared]\nstore = {json.dumps(store)}\ntimeout_seconds = {seconds}\n"
    (root / "holdfast.toml").write_text(text)


@pytest.fixture
def private(root: Path, team: str) -> Iterator[holdfast.Memory]:
    share(root, team)
    with holdfast.open(team, writer="bob") as there:
        there.put("overview", title="Alpha")
        there.put("decision", "The gateway speaks gRPC.", title="Gateway", scope="alpha")
        there.put("note", "The gateway is restarted by the pager team.", title="Restarts", scope="alpha")
        there.put("fact", "Lisbon", fields={"key": "office"})
    with holdfast.open(root) as memory:
        memory.put("note", "My gateway password is in the safe.", title="Mine")
        yield memory


def hits(reply: dict[str, Any]) -> set[tuple[str, str]]:
    return {(hit.get("store", "here"), hit.get("title", "")) for hit in reply["hits"]}


def test_recall_looks_in_both_and_says_which(private: holdfast.Memory) -> None:
    reply = private.call("recall", {"query": "gateway"})
    assert hits(reply) == {("here", "Mine"), ("shared", "Gateway"), ("shared", "Restarts")}
    assert reply["text"].count(" · shared · ") == 2
    assert "warnings" not in reply
    shared = next(hit for hit in reply["hits"] if hit["title"] == "Gateway")
    assert shared["by"] == "bob" and shared["trust"] == "agent"
    assert private.get(shared["id"]).text == "The gateway speaks gRPC."
    assert hits(private.call("recall", {"query": "gateway", "where": "here"})) == {("here", "Mine")}
    assert {store for store, _ in hits(private.call("recall", {"query": "gateway", "where": "shared"}))} == {"shared"}
    assert private.call("recall", {"query": "gateway", "where": "nowhere"})["success"] is False


def test_a_workspace_that_only_one_side_has_is_looked_for_there(private: holdfast.Memory) -> None:
    reply = private.call("recall", {"query": "gateway", "scope": "alpha"})
    assert hits(reply) == {("shared", "Gateway"), ("shared", "Restarts")}
    assert private.call("recall", {"query": "gateway", "scope": "no-such"})["success"] is False
    private.put("overview", title="Beta")
    private.put("note", "A gateway of my own.", title="Own", scope="beta")
    assert hits(private.call("recall", {"query": "gateway", "scope": "beta"})) == {("here", "Own")}


def test_the_budget_and_the_limit_hold_for_both_together(private: holdfast.Memory) -> None:
    reply = private.call("recall", {"query": "gateway", "limit": 2})
    assert len(reply["hits"]) == 2
    small = private.call("recall", {"query": "gateway", "budget": 15})
    assert small["leftOut"] >= 1 and len(small["hits"]) + small["leftOut"] == 3


def test_the_same_words_count_the_same_wherever_they_stand(root: Path, team: str) -> None:
    """A word that is common in one memory and rare in the other is weighed by both."""
    share(root, team)
    with holdfast.open(team) as there, holdfast.open(root) as memory:
        for number in range(30):
            there.put("note", f"The weather of day {number} was fine.", title=f"Weather {number}")
        there.put("note", "The weather station is broken; the barometer fell.", title="Station")
        memory.put("note", "I like weather.", title="Likes")
        memory.put("note", "A barometer of weather glass stands in the hall.", title="Hall")
        found = memory.find(Query(text="weather barometer", associate=True, where="both", limit=5))
        assert {hit.record.title for hit in found.hits[:2]} == {"Station", "Hall"}
        alone = memory.find(Query(text="weather barometer", associate=True, limit=5))
        assert alone.hits[0].record.title == "Hall"


def test_what_stands_in_both_is_shown_once_and_two_versions_are_two(private: holdfast.Memory, team: str) -> None:
    note = private.put("note", "Zebras sleep standing.", title="Zebras")
    line = private.put("fact", "Zebras are striped.", fields={"key": "zebra"})
    private.push(yes=True)
    assert len(private.call("recall", {"query": "zebras"})["hits"]) == 2
    assert len(private.find(where="both", kinds=("fact",))) == 2  # office and zebra
    with holdfast.open(team) as there:
        there.put(id=note.id, text="Zebras sleep lying down.", expect=there.get(note.id).version)
        assert there.get(line.id).text == "Zebras are striped."
    found = private.call("recall", {"query": "zebras sleep"})["hits"]
    assert {hit.get("store", "here") for hit in found if hit["kind"] == "note"} == {"here", "shared"}


def test_the_newest_of_both_come_in_their_order(private: holdfast.Memory) -> None:
    found = private.find(where="both", kinds=("fact", "note"))
    assert [hit.store for hit in found] == ["", "shared", "shared"]
    times = [hit.record.time for hit in found]
    assert times == sorted(times, reverse=True)


def test_the_command_line_shows_which(private: holdfast.Memory, root: Path) -> None:
    shown = on_terminal("search", "gateway", root=root)
    assert "shared:user/memory/workspaces/alpha/decisions.md#" in shown
    assert "shared" not in on_terminal("search", "gateway", "--where", "here", root=root)
    found = json.loads(
        fork_server.run(
            [sys.executable, "-m", "holdfast", "recall", "gateway", "--where", "shared", "--root", str(root)],
            capture_output=True, text=True, check=True,
        ).stdout
    )  # fmt: skip
    identifier = found["hits"][0]["record"]["id"]
    assert "gateway" in on_terminal("get", identifier, root=root)


def test_a_push_without_an_address_goes_to_the_shared_memory(private: holdfast.Memory, team: str) -> None:
    private.put("overview", title="Beta")
    private.put("decision", "We promote it.", title="Promoted", scope="beta")
    assert private.push(scope="beta", yes=True).done
    with holdfast.open(team) as there:
        assert [hit.record.title for hit in there.find("promote")] == ["Promoted"]
        assert not there.find("safe")


# away


def test_a_shared_memory_that_is_away_is_told_and_not_asked_again_for_a_while(root: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        share(root, f"postgresql://ann:hush-hush-9@127.0.0.1:{silent.getsockname()[1]}/x", seconds=0.5)
        with holdfast.open(root) as memory:
            memory.put("note", "We deploy on Tuesdays.", title="Deploys")
            first = memory.call("recall", {"query": "deploy"})
            assert hits(first) == {("here", "Deploys")}
            assert "shared: The shared memory could not be searched: It did not answer" in first["warnings"][0]
            assert "shared memory" in first["text"]
            again = memory.call("recall", {"query": "deploy"})
            assert sum(thread.name == "holdfast-shared" for thread in threading.enumerate()) <= 1
            assert again["warnings"] == first["warnings"]
            with pytest.raises(Unavailable):
                memory.find("deploy", where="shared")
            with pytest.raises(Unavailable):
                memory.get("shared:x")
            assert "hush-hush-9" not in json.dumps([first, again])


def test_a_shared_memory_that_cannot_be_used_is_told_and_the_private_answer_comes(root: Path, tmp_path: Path) -> None:
    for store, why in (
        (str(tmp_path / "nowhere"), "does not exist"),
        ("postgresql://nobody@127.0.0.1:1/x", "No PostgreSQL server answers"),
        ("$NO_SUCH_VARIABLE_HERE", "NO_SUCH_VARIABLE_HERE"),
        (".", "this memory itself"),
    ):
        share(root, store, seconds=20)
        with holdfast.open(root) as memory:
            if not memory.find("deploy"):
                memory.put("note", "We deploy on Tuesdays.", title="Deploys")
            reply = memory.call("recall", {"query": "deploy"})
            assert hits(reply) == {("here", "Deploys")}
            assert why in reply["warnings"][0]


def test_it_is_asked_again_when_it_is_back(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share(root, "../late")
    with holdfast.open(root) as memory:
        memory.put("note", "We deploy on Tuesdays.", title="Deploys")
        assert "warnings" in memory.call("recall", {"query": "deploy"})
        make_root(str(tmp_path / "late"))
        with holdfast.open(tmp_path / "late") as late:
            late.put("note", "They deploy on Fridays.", title="Theirs")
        assert "warnings" in memory.call("recall", {"query": "deploy"})
        later = time.monotonic() + 1_000
        monkeypatch.setattr("holdfast.owner.shared.monotonic", lambda: later)
        assert hits(memory.call("recall", {"query": "deploy"})) == {("here", "Deploys"), ("shared", "Theirs")}


def test_the_password_may_stand_in_the_environment(root: Path, team: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE_PART", team[-6:])
    share(root, team[:-6] + "${HOLDFAST_STORE_PART}")
    with holdfast.open(root) as memory:
        assert memory.find("x", where="shared").hits == []


class Listener:
    """A server that says it is a database, asks for a password and keeps what it is sent."""

    def __init__(self, asks: bytes) -> None:
        self._asks = asks
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.got: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                visitor, _ = self._socket.accept()
            except OSError:
                return
            with visitor:
                visitor.settimeout(10)
                self._answer(visitor)

    def _answer(self, visitor: socket.socket) -> None:
        try:
            while (sent := visitor.recv(4_096)) and sent[4:8] in (struct.pack("!I", 80877100 + n) for n in (3, 4)):
                visitor.sendall(b"N")  # no encryption here
            self.got.append(sent)
            visitor.sendall(b"R" + struct.pack("!I", 4 + len(self._asks)) + self._asks)
            self.got.append(visitor.recv(4_096))
        except OSError:
            pass

    def close(self) -> None:
        self._socket.close()


def recalled(root: Path) -> str:
    """Recall in another process, since libpq can block all threads of its own: the listener could not answer."""
    command = [sys.executable, "-m", "holdfast", "recall", "anything", "--root", str(root), "--json"]
    done = fork_server.run(command, capture_output=True, text=True, check=True)
    return str(done.stdout)


CLEAR, MD5 = struct.pack("!I", 3), struct.pack("!I", 5) + b"salt"


@pytest.fixture(params=[CLEAR, MD5], ids=["clear", "md5"])
def listener(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setenv("PGPASSWORD", "the-password-of-mine")
    monkeypatch.setenv("DEPLOY_API_KEY", "the-key-of-mine")
    monkeypatch.setenv("HOLDFAST_PART", "the-part-of-mine")
    monkeypatch.delenv("PGREQUIREAUTH", raising=False)
    made = Listener(request.param)
    yield made
    made.close()


@pytest.mark.parametrize("place", ["u@127.0.0.1:{}/$DEPLOY_API_KEY", "${{DEPLOY_API_KEY}}@127.0.0.1:{}/m"])
def test_settings_reach_for_no_variable_of_others(root: Path, listener: Listener, place: str) -> None:
    share(root, f"postgresql://{place.format(listener.port)}")
    with holdfast.open(root) as memory:
        told = json.dumps(memory.call("recall", {"query": "anything"}))
    assert "begin with HOLDFAST_" in told and "the-key-of-mine" not in told
    assert listener.got == []


@pytest.mark.parametrize(
    "options", ["", "?require_auth=password,md5", "?require_auth=!gss", "?sslmode=prefer&require%5Fauth=md5"]
)
def test_a_server_that_settings_name_gets_no_password_in_clear(root: Path, listener: Listener, options: str) -> None:
    share(root, f"postgresql://u@127.0.0.1:{listener.port}/$HOLDFAST_PART{options}")
    told = recalled(root)
    assert any(b"the-part-of-mine" in sent for sent in listener.got)  # it was asked
    assert not [sent for sent in listener.got if b"the-password" in sent or sent.startswith(b"p")]
    assert "$HOLDFAST_PART" in told and "of-mine" not in told


def test_the_owner_may_allow_what_settings_may_not(
    tmp_path: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGREQUIREAUTH", "password,md5")
    root = tmp_path / "mine"
    make_root(str(root))
    share(root, f"postgresql://u@127.0.0.1:{listener.port}/m")
    recalled(root)
    assert [sent for sent in listener.got if sent.startswith(b"p")]


def test_without_a_shared_memory_there_is_only_this_one(memory: holdfast.Memory) -> None:
    memory.put("note", "We deploy.", title="Deploys")
    assert len(memory.find("deploy", where="both")) == 1
    assert hits(memory.call("recall", {"query": "deploy"})) == {("here", "Deploys")}
    with pytest.raises(Invalid, match="has no shared memory"):
        memory.find("deploy", where="shared")
    with pytest.raises(NotFound):
        memory.get("shared:x")


def test_what_a_memory_has_for_a_query_stays_valid_when_its_index_is_replaced(root: Path) -> None:
    with holdfast.open(root) as memory:
        first, *_ = [memory.put("note", f"Tulip {number}.", title=f"Note {number}") for number in range(4)]
        found = memory.with_candidates(Query(text="tulip", associate=True), Candidates.loaded)
        (root / first.path).unlink()
        with holdfast.open(root) as other:
            other.refresh(rebuild=True)  # other records get the numbers of these
        (pool,) = found.pools
        records = found.load(list(pool.candidates))
        assert {row: record.id for row, record in records.items()} == {
            row: one.id for row, one in pool.candidates.items()
        }


def test_an_answer_is_made_again_when_the_index_is_replaced_while_it_is_made(root: Path) -> None:
    def ids(found: Candidates) -> list[str]:
        rows = [row for pool in found.pools for row in pool.candidates]
        if (root / first.path).exists():
            (root / first.path).unlink()
            with holdfast.open(root) as other:
                other.refresh(rebuild=True)
        return sorted(record.id for record in found.load(rows).values())

    with holdfast.open(root) as memory:
        first, *rest = [memory.put("note", f"Tulip {number}.", title=f"Note {number}") for number in range(4)]
        assert memory.with_candidates(Query(text="tulip", associate=True), ids) == sorted(one.id for one in rest)
