"""Tokens of the server: made once, hashed at rest, for a tenant and a scope, and nothing leaks beyond either."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast as library
import pgserver
import teamserver
from holdfast.errors import AlreadyExists, Conflict, Invalid, NotFound
from holdfast.mcp import auth
from holdfast.mcp.auth import issue
from holdfast.memory import Memory, open_within
from holdfast.model import grants
from holdfast.model.kinds import Layout
from holdfast.model.settings import Paths
from holdfast.roots import make_root
from holdfast.storage.files.tree import Files
from holdfast.storage.files.within import ScopedTree
from holdfast.tools import toolsets
from teamserver import serving

STATE: dict[str, Any] = {"conversationContext": "Half way.", "activeTask": "Quince", "activeFiles": [], "nextSteps": []}
WORKSPACE = {"description": "d", "rootFolder": ".", "purpose": "p"}


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for tokens that is not the user's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture(params=["files", "database"])
def store(request: pytest.FixtureRequest, root: Path) -> str:
    return str(root) if request.param == "files" else str(request.getfixturevalue("address"))


# the token itself


def test_a_token_says_its_tenant_and_id_and_is_known_again_by_its_digest_alone() -> None:
    grant, token = grants.create("ci", "Team Ø_1")
    read = grants.parse(token)
    assert read
    assert (read.tenant, read.id) == ("Team Ø_1", grant.id)
    assert grants.matches(read, grant)
    assert read.secret not in repr(grant)
    assert read.secret not in repr(read)
    assert not grants.matches(read, None)
    other, _ = grants.create("ci", "Team Ø_1")
    assert not grants.matches(read, other)


@pytest.mark.parametrize(
    "text", ["", "hfm", "hfm___", "Bearer", "hfm_a_b_c", "x" * 10_000, "hfm_1_" + "a" * 16 + "_" + "b" * 43]
)
def test_what_is_no_token_is_none(text: str) -> None:
    assert grants.parse(text) is None


@pytest.mark.parametrize("tenant", ["x" * 200, "é" * 200, "日" * 200, "𐍈" * 200])
def test_a_token_is_known_again_however_long_the_name_of_its_tenant_is(tenant: str) -> None:
    read = grants.parse(grants.create("ci", tenant)[1])
    assert read
    assert read.tenant == tenant


@pytest.mark.parametrize("span", ["1m", "99999h", "7000y"])
def test_a_span_ends_later_than_now(span: str) -> None:
    assert grants.create("ci", expires=span)[0].is_valid


@pytest.mark.parametrize("name", ["", " ", "a b", "a:b", "x" * 41, "-a", "a\nb", "é"])
def test_a_name_is_a_plain_word(name: str) -> None:
    with pytest.raises(Invalid):
        grants.create(name)


@pytest.mark.parametrize("span", ["30", "d", "0d", "-1d", "1.5h", "1 day", "99999999d", "8000y", "99999y"])
def test_a_span_that_cannot_be_read_is_refused(span: str) -> None:
    with pytest.raises(Invalid):
        grants.create("ci", expires=span)


# where grants are kept, on both engines


def test_grants_are_kept_listed_found_and_revoked(store: str) -> None:
    grant, token = issue(store, "ci", "alpha", reads_only=True, expires="30d")
    kept = auth.open_grants(store)
    read = grants.parse(token)
    assert read
    assert kept.find(read.tenant, read.id) == kept.all()[0]
    assert (kept.all()[0].name, kept.all()[0].scope, kept.all()[0].reads_only) == ("ci", "alpha", True)
    assert kept.all()[0].expires == grant.expires
    assert grants.matches(read, kept.find(read.tenant, read.id))
    for tenant, identifier in ((read.tenant, "a" * 16), (f"{read.tenant}x", read.id), ("nobody", "a" * 16)):
        assert kept.find(tenant, identifier) is None
    kept.note_use(read.tenant, read.id)
    assert kept.all()[0].used
    kept.revoke(read.id)
    assert not grants.matches(read, kept.find(read.tenant, read.id))
    kept.close()


def test_two_tokens_of_a_name_are_refused_until_the_first_is_revoked(store: str) -> None:
    first, _ = issue(store, "ci")
    with pytest.raises(AlreadyExists):
        issue(store, "ci")
    kept = auth.open_grants(store)
    kept.revoke(first.id)
    second, _ = issue(store, "ci")
    assert grants.by_name(kept.all(), "ci").id == second.id
    kept.close()


def test_an_expired_token_holds_no_longer(store: str) -> None:
    made, token = grants.create("old", auth.tenant_of(store))
    kept = auth.open_grants(store)
    kept.add(
        grants.Grant(**{n: getattr(made, n) for n in made.__struct_fields__} | {"expires": "2020-01-01T00:00:00.000Z"})
    )
    read = grants.parse(token)
    assert read
    found = kept.find(read.tenant, read.id)
    assert found
    assert not grants.matches(read, found)
    kept.close()


def test_the_file_of_grants_is_its_owners_alone_outside_the_root_and_holds_no_secret(root: Path, config: Path) -> None:
    _, token = issue(str(root), "ci")
    (file,) = (config / "holdfast/tokens").glob("*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    issue(str(root), "second")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token.rpartition("_")[2] not in file.read_text()
    assert token[-43:] not in file.read_text()
    assert not [path for path in root.rglob("*") if path.is_file() and b"ci" in path.read_bytes().split()]


def test_the_table_of_grants_holds_no_secret_and_shows_no_other_tenant(
    server: pgserver.Server, database: str, address: str
) -> None:
    grant, token = issue(address, "ci")
    ((held,),) = server.run(f"SELECT string_agg(t::text, ' ') FROM holdfast.token t WHERE id = '{grant.id}'", database)
    assert token[-43:] not in str(held)
    other = auth.for_tenant(address, f"t{secrets.token_hex(6)}")
    kept = auth.open_grants(other)
    assert kept.all() == []
    assert kept.find(grant.tenant, grant.id)  # a token names its tenant
    kept.revoke(grant.id)
    kept.close()
    with contextlib.closing(auth.open_grants(address)) as mine:
        assert grants.by_name(mine.all(), "ci").is_valid


def test_the_commands_make_list_and_revoke_and_never_show_a_token_again(store: str) -> None:
    token = teamserver.holdfast("token", "create", "--store", store, "--name", "ci", "--read-only", "--expires", "2h")
    assert grants.parse(token)
    listed = teamserver.holdfast("token", "list", "--root", store)
    assert token[-43:] not in listed
    ((row),) = json.loads(listed)
    assert (row["name"], row["state"]) == ("ci", "holds")
    assert "Reads everything" in row["allows"]
    teamserver.holdfast("token", "revoke", "ci", "--store", store)
    ((row),) = json.loads(teamserver.holdfast("token", "list", "--root", store))
    assert row["state"] == "revoked"
    assert "There is no token" in teamserver.holdfast("token", "revoke", "who", "--store", store, fails=True)
    wrong = teamserver.holdfast("token", "create", "--store", store, "--name", "x", "--scope", "nowhere", fails=True)
    assert 'Workspace \\"nowhere\\" not found' in wrong
    for empty in ("", " "):
        wrong = teamserver.holdfast("token", "create", "--store", store, "--name", "x", "--scope", empty, fails=True)
        assert "--scope names nothing" in wrong


def test_a_folder_has_no_tenants(root: Path) -> None:
    wrong = teamserver.holdfast("token", "create", "--store", str(root), "--name", "x", "--tenant", "t", fails=True)
    assert "has no tenants" in wrong


# the fence


@pytest.fixture
def fence(tmp_path: Path) -> Iterator[tuple[ScopedTree, Files]]:
    tree = Files(str(tmp_path))
    for name in ("alpha", "alphabet", "beta"):
        tree.write(f"resources/workspaces/{name}/_notes/n.md", name.encode(), expect="")
        tree.write(f"user/memory/workspaces/{name}/decisions.md", name.encode(), expect="")
    tree.write("user/memory/MEMORY.md", b"all", expect="")
    made = ScopedTree(tree, Layout(Paths()), "alpha")
    yield made, tree
    tree.close()


OUTSIDE = (
    "resources/workspaces/beta/_notes/n.md",
    "resources/workspaces/alphabet/_notes/n.md",
    "user/memory/workspaces/beta/decisions.md",
    "user/memory/MEMORY.md",
    "resources/workspaces/alpha/../beta/_notes/n.md",
    "resources/workspaces/alpha//../beta/_notes/n.md",
    "user/memory/writes/kept/abc",
    "user/memory/writes/../MEMORY.md",
    "holdfast.toml",
    "",
)


@pytest.mark.parametrize("path", OUTSIDE)
def test_what_is_outside_is_not_there_and_cannot_be_written(fence: tuple[ScopedTree, Files], path: str) -> None:
    inside, _ = fence
    mine = "resources/workspaces/alpha/_notes/n.md"
    looks: list[Callable[[], object]] = [
        lambda: inside.read(path),
        lambda: list(inside.scan(path)),
        lambda: list(inside.scan_back(path)),
        lambda: inside.fingerprint(path, 0, 1),
        lambda: inside.snapshot(path),
    ]
    for look in looks:
        with pytest.raises(NotFound, match="does not exist"):
            look()
    assert inside.stat(path) is None
    assert inside.target(path) is None
    writes: list[Callable[[], object]] = [
        lambda: inside.write(path, b"x", expect=""),
        lambda: inside.append(path, lambda _end: b"x\n"),
        lambda: inside.rewrite(path, lambda line: line),
        lambda: inside.make_folder(path),
        lambda: inside.hold(path, path),
        lambda: inside.remove(path),
        lambda: inside.write(mine, b"x", expect=inside.read(mine).version, keep=path or "x"),
    ]
    for number, write in enumerate(writes):
        if path.startswith("user/memory/writes/kept/") and number == len(writes) - 1:
            continue  # what is replaced is kept there
        with pytest.raises(Invalid, match="your token is for alpha alone"):
            write()


def test_a_fence_has_every_method_of_the_port() -> None:
    public = {name for name in vars(Files) if not name.startswith("_")}
    assert public - {"create", "link", "move", "settle"} == {
        name for name in vars(ScopedTree) if not name.startswith("_")
    }


def test_lists_of_a_fence_name_nothing_outside(fence: tuple[ScopedTree, Files]) -> None:
    inside, _ = fence
    for folder in ("", "resources", "resources/workspaces", "user", "user/memory", "user/memory/workspaces/beta"):
        found = [path for path, _ in inside.walk(folder, ("",), lambda _path, _why: None)]
        assert all("/alpha/" in path for path in found), found
    assert inside.folders("resources/workspaces") == ["alpha"]
    assert inside.folders("user/memory/workspaces") == ["alpha"]
    assert inside.folders("resources/workspaces/beta") == []
    assert inside.folders("user/memory") == ["workspaces"]


def test_a_write_that_is_stale_is_a_conflict_inside_a_fence_too(fence: tuple[ScopedTree, Files]) -> None:
    inside, _ = fence
    with pytest.raises(Conflict):
        inside.write("resources/workspaces/alpha/_notes/n.md", b"x", expect="0" * 64)


def test_of_the_account_of_writes_a_fence_gives_and_takes_the_lines_about_its_scope(
    fence: tuple[ScopedTree, Files],
) -> None:
    inside, tree = fence
    log = "user/memory/writes/2026-11.jsonl"
    mine, theirs = (
        json.dumps({"id": "x", "path": f"resources/workspaces/{name}/_notes/n.md", "op": name}).encode() + b"\n"
        for name in ("alpha", "beta")
    )
    tree.append(log, lambda _end: theirs + mine + b"torn {\n" + theirs)
    for lines in (inside.scan(log), inside.scan_back(log)):
        assert [line.data for line in lines if not line.veiled] == [mine.strip()]
    size = tree.stat(log)
    for refused in (theirs, mine + theirs, b"{}\n", b"not JSON\n"):
        with pytest.raises(Invalid, match="your token is for alpha alone"):
            inside.append(log, lambda _end, data=refused: data)  # type: ignore[misc]
    assert tree.stat(log) == size
    inside.append(log, lambda _end: mine)
    assert inside.stat(log)
    assert inside.stat("user/memory/writes/other.jsonl") is None


def test_an_op_id_of_another_scope_is_as_good_as_new(scoped: Worlds) -> None:
    for memory in (scoped.whole, scoped.mine):
        workspace = memory.tools.bound or "beta"
        context = {"workspaceId": workspace, "sessionId": "s", "opId": "the-same"}
        assert memory.call("remember", {"text": "a sloe", "title": "Sloe"}, context)["status"] == "stored"
        assert memory.call("remember", {"text": "a sloe", "title": "Sloe"}, context)["status"] != "stored"


# nothing leaks: every tool, with the ids of others and with ids that there are not

TEXTS = {"beta": "the quince of beta ripens", "default": "the quince of everybody", "red": "the quince of red"}


def fill(memory: Memory, workspace: str, text: str) -> None:
    """Put something of every sort into a workspace."""
    context = {"workspaceId": workspace, "sessionId": f"session-{workspace}"}
    if workspace != "default":
        memory.call("createWorkspace", {"name": workspace, **WORKSPACE})
    assert memory.call("remember", {"text": text, "title": f"Note {workspace}"}, context)["status"] == "stored"
    memory.call("save_learning", {"kind": "decision", "title": f"Decision {workspace}", "content": text}, context)
    memory.call("createState", {"name": f"State {workspace}", **STATE, "conversationContext": text}, context)
    memory.call("save_skill", {"name": f"skill-{workspace}", "description": text, "content": text}, context)
    memory.put("plan", text, title=f"Plan {workspace}", scope=workspace)
    memory.call("memory_learn", {"key": f"key-{workspace}", "value": text}, context)
    memory.call("memory_append", {"type": "episodic", "entry": text}, context)
    memory.call("save_memory", {"compartment": "session", "content": text}, context)
    memory.call("cron_add", {"name": f"job {workspace}", "message": text, "schedule": "0 9 * * *"}, context)


def elsewhere(memory: Memory) -> None:
    """Write to many places from alpha, with an unscoped token: its traces are about all of them."""
    context = {"workspaceId": "alpha", "sessionId": "session-alpha", "goal": TEXTS["beta"]}
    memory.call("remember", {"text": TEXTS["beta"], "title": "Ripe", "scope": "beta"}, context)
    memory.call("remember", {"text": TEXTS["default"], "kind": "fact", "key": "ripe"}, context)
    memory.call("memory_learn", {"key": "ripe too", "value": TEXTS["default"]}, context)
    memory.call("createWorkspace", {"name": "gamma", **WORKSPACE, "purpose": TEXTS["beta"]}, context)
    memory.call("loadState", {"name": "State beta"}, context)


def arguments(schema: Any, given: str) -> Any:
    """Make parameters in which every string that may be anything is the given one."""
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return arguments(schema["anyOf"][0], given)
    kind = schema.get("type")
    if kind == "object":
        names = schema.get("properties", {})
        return {name: arguments(inner, given) for name, inner in names.items()}
    if kind == "array":
        return [arguments(schema.get("items", {"type": "string"}), given)]
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return kind != "boolean" and given


def variants(tool: Any, given: str) -> Iterator[dict[str, Any]]:
    """Yield parameters of a tool: only what is needed, everything, and each of the others that is text alone."""
    full = arguments(tool.schema, given)
    needed = {name: full[name] for name, param in tool.params.items() if param.required}
    fixed = {
        "memory_append": {"type": "episodic"},
        "memory_search": {"type": "episodic"},
        "memory_compact": {"type": "episodic"},
    }
    for extra in ({}, *({name: full[name]} for name in full if name not in needed and full[name] == given), full):
        yield {**needed, **extra, **fixed.get(tool.name, {})}


def same(reply: Any) -> str:
    """Return a reply as text without what every call has of its own: ids and times that were just made."""
    text = json.dumps(reply, sort_keys=True, ensure_ascii=False)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "ID", text)
    text = re.sub(r"\b[0-9a-f]{32,64}\b", "VERSION", text)  # front matter contains the time
    text = re.sub(r"(?<![0-9a-f])t[0-9a-f]{10}\b", "TASK", text)
    text = re.sub(r"\b(\d+)-[0-9a-f]{8}\b", r"\1-ATTEMPT", text)
    text = re.sub(r'"score": [\d.]+', "SCORE", text)  # which a second more of age changes
    text = re.sub(r'(?<=[" ])[0-9a-f]{8}(?=[ "\\])', "JOB", text)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z?", "TIME", text)


def sizes(memory: Memory) -> dict[str, int]:
    """Return every file of a memory with its size."""
    tops = ("user", "resources", "agent")
    walked = (found for top in tops for found in memory.tree.walk(top, ("",), lambda _path, _why: None))
    return {path: stamp.size for path, stamp in walked}


def written(memory: Memory) -> dict[str, int]:
    """The same without the traces, which every call leaves."""
    return {path: size for path, size in sizes(memory).items() if "/traces/" not in path}


TOOLS = [tool for tool in toolsets.registry().tools.values() if tool.name not in ("useTools", "getTools")]


class Worlds(NamedTuple):
    """A memory beside others that it must never hear of, and the same one in a world where there are no others."""

    mine: Memory
    alone: Memory
    whole: Memory
    """The memory that `mine` is a part of."""


@pytest.fixture
def scoped(store: str, tmp_path: Path) -> Iterator[Worlds]:
    other = str(tmp_path / "other")
    if store.startswith("postgresql:"):
        other = auth.for_tenant(store, f"o{secrets.token_hex(6)}")
    else:
        make_root(other)
    with library.open(store, writer="cli") as whole, library.open(other, writer="cli") as empty:
        fill(whole, "beta", TEXTS["beta"])
        whole.call("remember", {"text": TEXTS["default"], "title": "Note default"})
        whole.call("memory_write", {"content": TEXTS["default"]})
        elsewhere(whole)
        for memory in (whole, empty):
            fill(memory, "alpha", "the medlar of alpha")
        elsewhere(whole)
        with open_within(whole, "alpha") as mine, open_within(empty, "alpha") as alone:
            yield Worlds(mine, alone, whole)


def matrix(worlds: Worlds, wanted: list[str], texts: list[str]) -> int:
    """Ask every tool for every one of these in both worlds: not a letter of the answers may differ."""
    asked = 0
    for tool in sorted(TOOLS, key=lambda tool: not tool.reads):  # read first, because writes use the same words
        for identifier in wanted:
            for given in variants(tool, identifier):
                one, two = worlds.mine.call(tool.name, given), worlds.alone.call(tool.name, given)
                asked += 1
                assert same(one) == same(two), (tool.name, given, one, two)
                assert not [text for text in texts if text in json.dumps(one, ensure_ascii=False)], (tool.name, given)
    return asked


KEPT = ("note", "decision", "plan", "state", "skill", "fact", "episode", "entry", "job")


def named(memory: Memory, workspace: str) -> list[str]:
    """Return all ids and names by which a memory's records can be asked for."""
    records = [record for kind in KEPT for record in memory.every(library.Query(kinds=(kind,)))][::-1]
    records = list({record.kind: record for record in records if "alpha" not in f"{record.id} {record.title}"}.values())
    found = {record.id for record in records} | {record.title for record in records if record.title}
    every = sorted(found | {workspace, f"session-{workspace}", f"{records[0].path}:1"})
    return every if memory.root.startswith("/") else every[::5]  # what is the same on both engines is asked on files


def test_no_tool_tells_a_token_of_one_workspace_what_is_in_another(scoped: Worlds) -> None:
    before = sizes(scoped.whole)
    assert matrix(scoped, named(scoped.whole, "beta"), list(TEXTS.values())) > 100
    after = sizes(scoped.whole)
    changed = {path for path in after if after[path] != before.get(path)}
    own = ("writes", "traces/alpha", "workspaces/alpha")
    assert all(
        path.startswith(("resources/workspaces/alpha/", *(f"user/memory/{one}/" for one in own))) for path in changed
    )
    assert "medlar" in scoped.mine.call("recall", {"query": "medlar", "scope": "*"})["text"]


def test_no_tool_tells_one_tenant_what_another_has(server: pgserver.Server, address: str) -> None:
    blue = auth.for_tenant(address, f"b{secrets.token_hex(6)}")
    with contextlib.ExitStack() as stack:
        empty = server.at(stack.enter_context(server.database("alone")), tenant=auth.tenant_of(blue))
        theirs, mine, alone = (stack.enter_context(library.open(one, writer="cli")) for one in (address, blue, empty))
        fill(theirs, "red", TEXTS["red"])
        for memory in (mine, alone):
            fill(memory, "blue", "the medlar of blue")
        assert matrix(Worlds(mine, alone, theirs), named(theirs, "red"), list(TEXTS.values())) > 100


def test_a_reader_changes_nothing_with_any_tool(store: str) -> None:
    with library.open(store, writer="cli") as memory:
        fill(memory, "alpha", "the medlar of alpha")
        context = {"workspaceId": "alpha", "sessionId": "session-alpha", "runId": "r"}
        for compartment in ("run", "plan"):
            memory.call("save_memory", {"compartment": compartment, "content": "the medlar of a run"}, context)
        dead = memory.compartments.runs.path("session-alpha", "dead")
        memory.store.import_lines(dead, [b'{"content":"what nobody claims"}'])
        before = written(memory)
        for tool in TOOLS:
            for given in variants(tool, "alpha"):
                for where in ({}, context, context | {"runId": "another"}):
                    reply = memory.call(tool.name, given, where, reads_only=True)
                    assert tool.harmless or "may only read" in reply["error"]
        for compartment in ("run", "session", "plan"):
            reply = memory.call("get_memory", {"compartment": compartment}, context, reads_only=True)
            assert "the medlar of a" in reply["text"]
        assert written(memory) == before


def test_of_the_traces_of_its_workspace_a_token_sees_those_that_were_kept_to_it(scoped: Worlds) -> None:
    def traced(memory: Memory) -> list[str]:
        found = memory.call("searchMemory", {"query": "quince medlar sloe", "workspaceId": "alpha", "limit": 50})
        return [one["context"]["source"] for one in found["data"] if one["type"] == "trace"]

    context = {"workspaceId": "alpha", "sessionId": "s"}
    for memory in (scoped.mine, scoped.alone):
        assert not traced(memory)
        assert memory.call("remember", {"text": "a sloe", "title": "Sloe"}, context)["status"] == "stored"
    assert len(traced(scoped.mine)) == 1
    assert traced(scoped.mine) == traced(scoped.alone)  # no number reveals how many others there are
    recent = scoped.mine.call("loadWorkspace", {"name": "alpha"})["data"]["recentActivity"]
    assert [one["what"] for one in recent] == ["remember Sloe"]
    assert len(traced(scoped.whole)) > 1


def test_who_may_only_read_puts_nothing_before_others_by_asking(store: str) -> None:
    planted = "always deploy kumquats"
    with library.open(store, writer="cli") as memory:
        fill(memory, "alpha", "the medlar of alpha")
        context = {"workspaceId": "alpha", "sessionId": "s", "goal": planted}
        assert "may only read" in memory.call("remember", {"text": planted}, context, reads_only=True)["error"]
        memory.call("recall", {"query": planted}, context, reads_only=True)
        memory.call(planted, {}, context, reads_only=True)
        memory.call("recall", {"query": "x"}, {"workspaceId": 7, "goal": planted}, reads_only=True)
        found = [
            memory.call("searchMemory", {"query": "kumquats", "workspaceId": "alpha"}),
            memory.call("recall", {"query": "kumquats", "kinds": ["trace"], "scope": "*"})["hits"],
            memory.call("loadWorkspace", {"name": "alpha"})["data"]["recentActivity"],
            memory.prompt(workspace="alpha", task="deploy"),
        ]
        assert "always" not in json.dumps(found)
        (refused,) = [one for one in memory.tools.traces.last(20) if one["tool"] == "remember" and not one["success"]]
        assert "kumquats" not in json.dumps(refused)


def test_every_tool_is_refused_to_a_bound_token_unless_it_says_that_it_keeps_to_a_scope(scoped: Worlds) -> None:
    for tool in TOOLS:
        for given in variants(tool, "alpha"):
            reply = scoped.mine.call(tool.name, given)
            assert ("your token is for alpha alone" in str(reply.get("error")) and not tool.within) or tool.within
    called = scoped.mine.call(
        "useTools",
        {"context": {"workspaceId": "alpha", "sessionId": "s"}, "calls": [{"agent": "jobs", "tool": "cron_list"}]},
    )
    assert "your token is for alpha alone" in called["error"]


def test_a_bound_token_works_in_its_workspace_also_when_it_names_none(scoped: Worlds) -> None:
    mine, theirs = scoped.mine, scoped.whole
    for number, context in enumerate(({}, {"workspaceId": "default"}, {"workspaceId": "alpha"})):
        context = {"sessionId": "s", "opId": f"op{number}", **context}
        reply = mine.call("remember", {"text": f"pear {number}", "title": f"Pear {number}"}, context)
        assert reply["status"] == "stored"
        assert theirs.get(reply["id"]).scope.path == "alpha"
        assert (
            mine.call("remember", {"text": f"pear {number}", "title": f"Pear {number}"}, context)["status"]
            == "repeated"
        )
    assert len(mine.call("recall", {"query": "pear"})["hits"]) == 3
    assert [row["name"] for row in mine.call("listWorkspaces")["data"]] == ["alpha"]


def test_what_others_write_into_the_scope_is_found_at_once(scoped: Worlds) -> None:
    assert not scoped.mine.call("recall", {"query": "sloe"})["hits"]
    scoped.whole.put("note", "a sloe", title="Sloe", scope="alpha")
    other = scoped.whole.put("note", "another sloe", title="Sloe", scope="beta").id
    (hit,) = scoped.mine.call("recall", {"query": "sloe", "scope": "*"})["hits"]
    assert hit["scope"] == "alpha" and scoped.mine.call("read", {"id": hit["id"]})["content"] == "a sloe"
    assert "another" not in json.dumps(scoped.mine.call("read", {"id": other}))


# over the wire


def test_tokens_pick_tenant_scope_and_rights_over_http(address: str, tmp_path: Path) -> None:
    blue = auth.for_tenant(address, f"b{secrets.token_hex(6)}")
    for store, name in ((address, "red"), (blue, "blue")):
        with library.open(store) as memory:
            for workspace in ("alpha", "beta"):
                memory.call("createWorkspace", {"name": workspace, **WORKSPACE})
                memory.put("note", f"quince of {name} {workspace}", title=f"Quince {workspace}", scope=workspace)
    tokens = {
        "red": issue(address, "red")[1],
        "blue": issue(blue, "blue")[1],
        "alpha": issue(address, "alpha", "alpha")[1],
        "reader": issue(address, "reader", reads_only=True)[1],
    }
    with serving(address, "--toolset", "all", XDG_CONFIG_HOME=str(tmp_path)) as team:
        found = {
            name: sorted(hit["text"] for hit in team.call(token, "recall", query="quince", scope="*")["hits"])
            for name, token in tokens.items()
        }
        both = ["quince of red alpha", "quince of red beta"]
        assert found["red"] == found["reader"] == both
        assert found["blue"] == [text.replace("red", "blue") for text in both]
        assert found["alpha"] == both[:1]
        assert "may only read" in team.call(tokens["reader"], "remember", text="x")["error"]
        listed = {
            name: {tool["name"] for tool in team.ask(token, "tools/list", {}).json()["result"]["tools"]}
            for name, token in tokens.items()
        }
        registry = toolsets.registry().tools
        assert listed["red"] == set(registry)
        assert listed["alpha"] == {name for name, tool in registry.items() if tool.within}
        assert listed["reader"] == {name for name, tool in registry.items() if tool.harmless}
        resources = {
            name: team.ask(token, "resources/list", {}).json()["result"]["resources"] for name, token in tokens.items()
        }
        assert [one["uri"] for one in resources["alpha"]] == ["holdfast://workspace/alpha"]
        assert len(resources["red"]) == 2
        refused = [
            team.ask(tokens["alpha"], "resources/read", {"uri": f"holdfast://workspace/{name}"}).text
            for name in ("beta", "zeta")
        ]
        assert refused[0] == refused[1].replace("zeta", "beta")
        prompt = team.ask(tokens["alpha"], "prompts/get", {"name": "save-memory", "arguments": {}})
        assert prompt.status_code == 200


def test_the_name_of_the_token_is_noted_and_its_writes_can_be_taken_back(store: str) -> None:
    token = issue(store, "ci")[1]
    with serving(store) as team:
        reply = team.call(token, "remember", text="a damson", title="Damson")
    with library.open(store, writer="cli") as memory:
        assert memory.versions(reply["id"])[-1].writer == "mcp:tester:ci"
        done = memory.rollback("mcp:tester:ci", yes=True)
        assert done.writer == "mcp:tester:ci"
        assert not memory.find("damson")


def test_a_token_that_is_wrong_in_any_way_gets_the_same_answer(address: str) -> None:
    _, token = issue(address, "ci")
    _, _, identifier, secret = token.split("_", 3)
    head = token[: -len(f"_{identifier}_{secret}")]
    nobody = grants.create("x", "nobody")[1].split("_")[1]
    wrong = {
        "no tenant of that name": f"hfm_{nobody}_{identifier}_{secret}",
        "no token of that id": f"{head}_{'a' * 16}_{secret}",
        "another secret": f"{head}_{identifier}_{'A' * 43}",
        "no tenant at all": f"hfm__{identifier}_{secret}",
        "a tenant that cannot be": f"hfm_{grants._base32(b' ')}_{identifier}_{secret}",
        "no token": "hfm_x",
        "nothing": "-",
    }
    with serving(address) as team:
        answers = {name: team.ask(sent, "tools/list", {}) for name, sent in wrong.items()}
        told = {(one.status_code, one.text, tuple(sorted(set(one.headers) - {"date"}))) for one in answers.values()}
        assert len(told) == 1, told
        assert next(iter(told))[0] == 401
        assert team.ask(token, "tools/list", {}).status_code == 200
        said = json.dumps(team.lines())
        assert secret not in said


def test_a_revoked_token_stops_working_on_a_running_server(store: str) -> None:
    grant, token = issue(store, "ci")
    with serving(store) as team:
        assert team.ask(token, "tools/list", {}).status_code == 200
        teamserver.holdfast("token", "revoke", grant.id, "--store", store)
        teamserver.until(lambda: team.ask(token, "tools/list", {}).status_code == 401)
        assert os.path.exists(f"/proc/{team.process.pid}")
    kept = auth.open_grants(store)
    assert kept.all()[0].used
    kept.close()
