"""Tenants and scopes of one database see nothing of each other: not through a store, not through SQL."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

import holdfast
import pgserver
from holdfast.errors import HoldfastError
from holdfast.formats import jsonl
from holdfast.memory import open_within
from holdfast.model.queries import Query, parse
from holdfast.model.records import Record
from holdfast.model.times import derived_id
from holdfast.storage.postgres.connections import Waits
from holdfast.storage.postgres.database import OWNER, READER, WRITER, Database
from holdfast.storage.postgres.files import PgTree
from holdfast.storage.postgres.store import PgStore
from holdfast.storage.results import Filter
from holdfast.storage.store import ANY, Made, Store
from holdfast.storage.tree import ABSENT, Tree

NOTE = "resources/workspaces/alpha/_notes/secret.md"
FOLDER = "resources/workspaces/alpha/_notes"
LOG = "user/memory/history.jsonl"
FACTS = "user/memory/semantic.jsonl"
ENTRY = derived_id(1_700_000_000_000, b"one")
LINES = [
    jsonl.render({"id": ENTRY, "role": "user", "content": "the launch is on Tuesday", "channel": "cli", "op": "op-1"})[:-1],
    jsonl.render({"id": derived_id(1_700_000_001_000, b"two"), "role": "user", "content": "noted", "channel": "cli"})[:-1],
]  # fmt: skip
VERSION = "a" * 32
SECRETS = ("launch", "Tuesday", "noted", "shuttle")


def fill(memory: holdfast.Memory) -> None:
    store = memory.store
    first = store.write(NOTE, b"# Before\n", expect=ABSENT)
    store.write(
        NOTE, b"# Secret\n\nthe launch is on Tuesday [[shuttle]] #shuttle\n", expect=first.version, op_id="op-2"
    )
    store.import_lines(LOG, LINES)
    store.append(FACTS, [{"key": "launch", "content": "Tuesday", "session": "s"}], op_id="op-3")
    memory.find("launch")
    store.refresh(rebuild=True)


@pytest.fixture
def tenants(server: pgserver.Server, database: str) -> Iterator[dict[str, holdfast.Memory]]:
    """A tenant with secrets, a curious one, and one in a database without others."""
    with server.database("alone") as empty:
        name = f"curious-{secrets.token_hex(4)}"
        addresses = {
            "owner": server.at(database, tenant=f"owner-{secrets.token_hex(4)}"),
            "curious": server.at(database, tenant=name),
            "alone": server.at(empty, tenant=name),
        }
        opened = {role: holdfast.open(address) for role, address in addresses.items()}
        fill(opened["owner"])
        yield opened
        for memory in opened.values():
            memory.close()


def tenant_of(memory: holdfast.Memory) -> str:
    return memory.root.rpartition("tenant=")[2]


# every method of a store and of its files


def _walk(tree: Tree) -> list[str]:
    return [path for top in ("", FOLDER, NOTE) for path, _ in tree.walk(top, ("",), lambda _p, _w: None)]


def _snapshot(tree: Tree) -> object:
    with tree.snapshot(LOG, log=True) as found:
        return found.size, b"".join(found.chunks)


def _search(store: Store, *, plain: bool) -> object:
    where = Filter(searchable=("note", "message", "fact"))
    query = Query(text="launch Tuesday", limit=5)

    def use(found: Any) -> object:
        return [pool.records for pool in found.pools], [pool.candidates for pool in found.pools], found.hits

    return store.search(query, parse("launch Tuesday"), where, use, plain=plain)


def _follow(store: Store) -> object:
    feed = store.follow()
    try:
        return feed.events(0)
    finally:
        feed.close()


def _made(current: bytes | None) -> Made:
    return Made(b"mine", NOTE, VERSION)


MESSAGES = Filter(kinds=("message", "note", "fact"))
OF_TREE: dict[str, list[Callable[[PgTree], object]]] = {
    "row": [lambda t: t.row(NOTE)],
    "rows": [lambda t: list(t.rows(LOG)), lambda t: list(t.rows(LOG, backwards=True))],
    "read": [lambda t: t.read(NOTE), lambda t: t.read(LOG), lambda t: t.read(FOLDER)],
    "text": [lambda t: t.text(NOTE)],
    "scan": [lambda t: list(t.scan(LOG)), lambda t: list(t.scan(NOTE))],
    "scan_back": [lambda t: list(t.scan_back(LOG))],
    "stat": [lambda t: t.stat(NOTE), lambda t: t.stat(LOG), lambda t: t.stat(FOLDER)],
    "walk": [_walk],
    "folders": [lambda t: t.folders(""), lambda t: t.folders("resources/workspaces")],
    "folder_stamp": [lambda t: t.folder_stamp(FOLDER)],
    "make_folder": [lambda t: t.make_folder(FOLDER), lambda t: t.make_folder(NOTE)],
    "target": [lambda t: t.target(NOTE)],
    "remove": [lambda t: t.remove(NOTE), lambda t: t.remove(LOG), lambda t: t.remove(NOTE, expect=VERSION)],
    "rewrite": [lambda t: t.rewrite(LOG, lambda _: b"mine")],
    "snapshot": [_snapshot],
    "versions": [lambda t: t.versions([NOTE, LOG])],
    "create_all": [lambda t: sorted(t.create_all({NOTE: b"mine"})), lambda t: t.remove(NOTE)],
    "write": [lambda t: t.write(NOTE, b"x", expect=VERSION), lambda t: t.write(NOTE, b"mine", expect=ABSENT), lambda t: t.remove(NOTE)],
    "put": [lambda t: t.put(NOTE, None, expect=VERSION, keep=True)],
}  # fmt: skip
OF_STORE: dict[str, list[Callable[[Store], object]]] = {
    "read": [lambda s: s.read(NOTE)],
    "exists": [lambda s: s.exists(NOTE), lambda s: s.exists(LOG)],
    "paths": [lambda s: list(s.paths("resources")), lambda s: list(s.paths("user", ".jsonl"))],
    "kept": [lambda s: s.kept(VERSION)],
    "kept_text": [lambda s: s.kept_text(VERSION)],
    "lost": [lambda s: s.lost()],
    "matches": [lambda s: s.matches(parse("shuttle launch"), MESSAGES, 5, LOG)],
    "check_size": [lambda s: s.check_size(NOTE, b"")],
    "applied": [lambda s: s.applied("op-1", LOG), lambda s: s.applied("op-2", NOTE)],
    "knows_op": [lambda s: s.knows_op("op-2"), lambda s: s.knows_op("op-3")],
    "done_in": [lambda s: s.done_in(LOG, "op-1", ENTRY)],
    "newest": [lambda s: list(s.newest(LOG, []))],
    "missing": [lambda s: s.missing(LOG, {ENTRY})],
    "read_on": [lambda s: s.read_on(LOG, None).entries],
    "claim": [lambda s: s.claim(LOG)],
    "release": [lambda s: s.release(LOG)],
    "discard": [lambda s: s.discard("user/memory/sessions/s/runs/x.jsonl", dead=True)],
    "get": [lambda s: s.get(ENTRY), lambda s: s.get(NOTE), lambda s: s.get("launch")],
    "resolve": [lambda s: s.resolve(f"{NOTE}:1")],
    "survey": [lambda s: s.survey(MESSAGES), lambda s: s.survey(Filter(kinds=("note",), tags=("shuttle",)))],
    "by_key": [lambda s: s.by_key(FACTS, "launch"), lambda s: s.by_key(FACTS, "launch", history=True)],
    "beside": [lambda s: s.beside(LOG, ENTRY, 5, after=True)],
    "count": [lambda s: s.count(LOG)],
    "problems": [lambda s: s.problems(LOG)],
    "every": [lambda s: s.every()],
    "writers": [lambda s: s.writers([Record(id=NOTE, kind="note", path=NOTE, scope=s.layout.classify(NOTE).scope)])],  # type: ignore[union-attr]
    "search": [lambda s: _search(s, plain=True), lambda s: _search(s, plain=False)],
    "passes": [lambda s: s.passes(MESSAGES)],
    "related": [lambda s: s.related("shuttle", MESSAGES, 5), lambda s: s.related(NOTE, MESSAGES, 5)],
    "embedded": [lambda s: s.embedded().vectors],
    "verify": [lambda s: s.verify()],
    "stats": [lambda s: {**s.stats(), "words_alone": ""}],
    "watch": [lambda s: s.watch()],
    "purge": [lambda s: s.purge()],
    "follow": [_follow],
    "within": [lambda s: s.within("alpha").every(), lambda s: _search(s.within("alpha"), plain=False)],
    "remove": [lambda s: s.remove(NOTE, expect=VERSION)],
    "update": [lambda s: s.update(NOTE, _made, expect=ANY).status, lambda s: s.read(NOTE).data],
    "write": [lambda s: s.write(NOTE, b"x", expect=VERSION), lambda s: s.write(NOTE, b"mine", expect=ANY).status],
    "append": [lambda s: s.append(LOG, [{"role": "user", "content": "mine"}], op_id="op-1").repeated, lambda s: s.count(LOG)],
    "append_decided": [lambda s: len(s.append_decided(LOG, lambda: ([{"role": "user", "content": "mine"}], "")))],
    "import_lines": [lambda s: s.import_lines(LOG, LINES)],
    "import_entries": [lambda s: s.import_entries(LOG, [{"id": ENTRY, "role": "user", "content": "mine"}])],
    "log_write": [lambda s: s.log_write({"path": NOTE, "after": VERSION}, "op-2")],
    "refresh": [lambda s: s.refresh(rebuild=True)],
    "embed": [lambda s: s.embed().missing],
    "written_by": [],
    "clock": [],
    "close": [],
}  # fmt: skip


def outcome(given: Any, call: Callable[[Any], object]) -> object:
    try:
        return call(given)
    except HoldfastError as error:
        return type(error), error.message, error.next_step


def test_the_matrix_has_every_method(tenants: dict[str, holdfast.Memory]) -> None:
    for one, matrix in ((PgTree, OF_TREE), (PgStore, OF_STORE)):
        methods = {name for name in dir(one) if not name.startswith("_") and callable(getattr(one, name))}
        assert methods - {"changes_since"} == set(matrix)


def test_a_tenant_gets_the_answers_that_it_would_get_alone(tenants: dict[str, holdfast.Memory]) -> None:
    owner, curious, alone = (tenants[role] for role in ("owner", "curious", "alone"))

    def seen() -> list[object]:
        looks = ("get", "survey", "by_key", "search", "applied", "read_on", "problems", "within")
        return [outcome(owner.store, call) for name in looks for call in OF_STORE[name]] + [_walk(owner.store.tree)]

    before = seen()
    for name, calls in OF_TREE.items():
        for number, call in enumerate(calls):
            assert outcome(curious.store.tree, call) == outcome(alone.store.tree, call), (name, number)
    for name, asked in OF_STORE.items():
        for number, ask in enumerate(asked):
            one, other = plain(outcome(curious.store, ask)), plain(outcome(alone.store, ask))
            assert one == other, (name, number)
            writes_them = name in ("import_lines", "update", "write", "append", "append_decided", "import_entries")
            assert writes_them or name in AFTER or not [word for word in SECRETS if word in repr(one)], (name, one)
    assert seen() == before


AFTER = ("log_write", "refresh", "embed")
"""Methods that are called after the curious tenant has written these words itself."""


def plain(answer: object) -> str:
    """Return an answer without ids and times that differ between two runs."""
    text = repr(answer)
    return functools.reduce(lambda so_far, sign: so_far.replace(sign, "9"), "0123456789abcdef", text)


def test_a_tenant_does_not_wait_for_another(tenants: dict[str, holdfast.Memory]) -> None:
    owner, curious = tenants["owner"].store, tenants["curious"].store
    assert isinstance(owner, PgStore) and isinstance(curious, PgStore)
    with owner._database.transaction(LOG):
        owner.append(LOG, [{"role": "user", "content": "slow"}])
        owner.update(NOTE, _made, expect=ANY)
        curious._database.waits = Waits(lock_seconds=1.0)
        curious.append(LOG, [{"role": "user", "content": "mine"}])
        curious.write(NOTE, b"mine", expect=ABSENT)
        assert curious.claim("user/memory/sessions/s/runs/x.jsonl")
    assert owner.claim("user/memory/sessions/s/runs/x.jsonl")
    assert [record.text for record in curious.newest(LOG)] == ["mine"]


# raw SQL

TABLES = ("record", "stat", "term", "lease", "token", "embedding", "embedded")
ASKED = {table: f"holdfast.{table}" for table in TABLES} | {
    view: f"holdfast.{view}" for view in ("searched", "compared")
}


@pytest.mark.parametrize("role", [WRITER, READER])
@pytest.mark.parametrize("tenant", ["curious", "", None])
def test_sql_shows_and_changes_only_rows_of_the_tenant_that_is_named(
    tenants: dict[str, holdfast.Memory], server: pgserver.Server, database: str, role: str, tenant: str | None
) -> None:
    owner = tenants["owner"]
    before = owner.store.every()
    with psycopg.connect(server.at(database), autocommit=True) as connection:
        connection.execute(f"SET ROLE {role}")
        if tenant is not None:
            connection.execute("SELECT set_config('holdfast.tenant', %s, false)", [tenant])
        for table, named in ASKED.items():
            assert connection.execute(f"SELECT count(*) FROM {named}").fetchone() == (0,), table
            assert connection.execute(f"SELECT FROM {named} r WHERE r.tenant <> '' OR true").rowcount == 0, table
            if role == WRITER and table in TABLES:
                assert connection.execute(f"UPDATE {named} SET tenant = tenant").rowcount == 0, table
                assert connection.execute(f"DELETE FROM {named}").rowcount == 0, table
        found = connection.execute(
            "SELECT FROM holdfast.searched WHERE words @@ 'launch'::tsquery OR text LIKE '%launch%'"
        )
        assert found.rowcount == 0
        assert connection.execute(
            "SELECT holdfast.count_words(0)" if role == WRITER and tenant else "SELECT 0"
        ).fetchone() == (0,)
    assert owner.store.every() == before


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO holdfast.record SELECT * FROM json_populate_record(NULL::holdfast.record, %(row)s)",
        "SELECT holdfast.append(json_build_array(%(row)s::json), '', true)",
        "SELECT holdfast.put_document('x.md', %(row)s, '[]', NULL, '', false)",
        "UPDATE holdfast.record SET tenant = %(owner)s",
        "INSERT INTO holdfast.lease VALUES (%(owner)s, 'x', 'x', now())",
        "INSERT INTO holdfast.token (tenant, id, name, digest, scope, reads_only) VALUES (%(owner)s, 'x', 'x', '', '', true)",
        "INSERT INTO holdfast.searched SELECT * FROM holdfast.searched",
        "TRUNCATE holdfast.record",
        "ALTER TABLE holdfast.record DISABLE ROW LEVEL SECURITY",
        "DROP POLICY of_the_tenant ON holdfast.record",
        "CREATE OR REPLACE VIEW holdfast.searched AS SELECT * FROM holdfast.record",
        "INSERT INTO holdfast.migrations (version, name) VALUES (99, 'x')",
        "CREATE TABLE holdfast.mine (x int)",
        f"SET ROLE {OWNER}; SET SESSION AUTHORIZATION DEFAULT; RESET ROLE; CREATE TABLE holdfast.mine (x int)",
    ],
)  # fmt: skip
def test_sql_of_the_application_is_refused(
    tenants: dict[str, holdfast.Memory], server: pgserver.Server, database: str, statement: str
) -> None:
    owner, curious = tenant_of(tenants["owner"]), tenant_of(tenants["curious"])
    tenants["curious"].store.append(LOG, [{"role": "user", "content": "mine"}])
    row = jsonl.render(
        {"tenant": owner, "id": ENTRY, "xact": "1", "kind": "message", "path": LOG, "scope": "", "session": "", "author": "",
         "agent": False, "priority": 5, "live": False, "hidden": False, "length": 0, "title": ""}
    ).decode()  # fmt: skip
    login = f"app_{secrets.token_hex(4)}"
    server.run(f"CREATE ROLE {login} LOGIN; GRANT {WRITER} TO {login}")
    try:
        with psycopg.connect(server.at(database, user=login)) as connection:
            connection.execute(f"SET LOCAL ROLE {WRITER}")
            connection.execute("SELECT set_config('holdfast.tenant', %s, true)", [curious])
            with pytest.raises((pg.InsufficientPrivilege, pg.ObjectNotInPrerequisiteState)):
                for part in statement.split("; "):
                    connection.execute(part, {"owner": owner, "row": row} if "%(" in part else None)
    finally:
        server.run(f"DROP ROLE {login}")


def test_every_table_unique_index_and_foreign_key_contains_the_tenant_and_is_guarded(
    server: pgserver.Server, database: str
) -> None:
    Database(server.at(database)).close()
    ask = functools.partial(server.run, database=database)
    of_ours = "c.relnamespace = 'holdfast'::regnamespace AND c.relname <> 'migrations'"
    tables = ask(
        "SELECT c.relname, c.relrowsecurity, c.relforcerowsecurity, pg_get_userbyid(c.relowner), EXISTS (SELECT FROM"
        f" pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant' AND a.attnotnull) FROM pg_class c WHERE {of_ours}"
        " AND c.relkind IN ('r', 'p')"
    )
    assert {str(row[0]) for row in tables} == set(TABLES)
    assert {row[1:] for row in tables} == {(True, True, OWNER, True)}
    keyed = (
        "EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant' AND a.attnum = ANY({}))"
    )
    unique = ask(
        f"SELECT i.indexrelid::regclass::text, {keyed.format('i.indkey')} FROM pg_index i JOIN pg_class c"
        f" ON c.oid = i.indrelid WHERE {of_ours} AND (i.indisunique OR i.indisexclusion)"
    )
    assert len(unique) >= len(TABLES)
    assert [name for name, has in unique if not has] == []
    foreign = ask(
        f"SELECT k.conname, {keyed.format('k.conkey')} FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid"
        f" WHERE {of_ours} AND k.contype = 'f'"
    )
    assert foreign
    assert [name for name, has in foreign if not has] == []
    roles = ask(f"SELECT rolcanlogin, rolsuper, rolbypassrls FROM pg_roles WHERE rolname IN ('{OWNER}', '{WRITER}', '{READER}')")  # fmt: skip
    assert roles == [(False, False, False)] * 3
    definers = ask("SELECT proname FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace AND prosecdef")
    assert definers == []


def test_a_session_of_the_application_is_left_without_role_and_tenant(tenants: dict[str, holdfast.Memory]) -> None:
    memory = tenants["owner"]
    memory.find("launch")
    memory.put("message", "four", fields={"role": "user"})
    assert isinstance(memory.store, PgStore)
    pool = memory.store._database._pool
    session = pool.take(time.monotonic() + 30)
    row = session.execute(
        "SELECT current_user = session_user, current_setting('holdfast.tenant', true), current_setting('holdfast.scope', true)"
    ).fetchone()
    pool.give_back(session)
    assert row == (True, "", "")


# scopes


def test_sql_in_a_scope_shows_only_rows_of_the_scope(
    tenants: dict[str, holdfast.Memory], server: pgserver.Server, database: str
) -> None:
    owner = tenants["owner"]
    owner.call("createWorkspace", {"name": "Beta", "rootFolder": "beta", "description": "two", "purpose": "b"})
    owner.put("note", "the pear of beta", title="Pear", scope="Beta")
    owner.put("decision", "By train to the launch.", title="Trains", scope="alpha")
    with open_within(owner, "alpha") as scoped:
        assert isinstance(scoped.store, PgStore)
        for table in ("record", "searched"):
            asked = f"SELECT DISTINCT kind, CASE kind WHEN 'write' THEN about ELSE path END FROM holdfast.{table}"
            rows = scoped.store._database.ask("rows", asked)
            assert rows
            inside = ("resources/workspaces/alpha/", "user/memory/workspaces/alpha/")
            assert [path for _, path in rows if not path.startswith(inside)] == []
        words = "SELECT count(*) FROM holdfast.searched WHERE text LIKE '%pear%' OR text LIKE '%noted%'"
        assert scoped.store._database.ask("words", words) == [(0,)]
        assert [hit.record.title for hit in scoped.find("launch")] == ["Trains", "secret"]
        assert not scoped.find("pear").hits
        with pytest.raises(HoldfastError):
            scoped.get(ENTRY)


def test_a_tenant_without_records_is_empty_everywhere(address: str) -> None:
    with holdfast.open(address) as memory:
        assert not memory.find("anything", associate=True).hits
        assert list(memory.find("")) == []
        assert memory.tail("message") == []
        assert memory.stats()["records"] == 0
        assert memory.verify().sound
        assert memory.refresh(rebuild=True).records == 0
        assert memory.related("nothing") == []
        assert memory.tasks.claim("w") is None
        assert memory.chat.load_history() == []
