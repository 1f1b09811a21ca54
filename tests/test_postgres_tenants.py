"""Tenants of one database see nothing of each other: not through the tree, not through SQL, not that something is there."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import errors as pg

import pgserver
from holdfast.errors import HoldfastError
from holdfast.storage.postgres.connections import Waits
from holdfast.storage.postgres.database import Database
from holdfast.storage.postgres.schema import OWNER, PARTITIONS, READER, WRITER
from holdfast.storage.postgres.tree import PgTree
from holdfast.storage.tree import ABSENT, LogEnd
from holdfast.storage.tree import ByteTree as Tree

DOCUMENT, LOG, FOLDER = "work/secret.md", "work/secret.jsonl", "work"
TEXT = b"the launch is on Tuesday"
LINES = b'{"text":"one"}\n{"text":"two"}\n'


def open_tree(server: pgserver.Server, database: str, tenant: str) -> PgTree:
    return PgTree(Database(server.at(database, tenant=tenant), Waits(lock_seconds=1.0)), writer=tenant)


def fill(tree: Tree) -> None:
    first = tree.write(DOCUMENT, b"before", expect=ABSENT)
    tree.write(DOCUMENT, TEXT, expect=first, keep="kept/secret")
    tree.append(LOG, lambda _: LINES)


@pytest.fixture
def tenants(server: pgserver.Server, database: str) -> Iterator[tuple[PgTree, PgTree, PgTree]]:
    """Somebody with secrets, somebody curious, and somebody who is alone in the world."""
    names = [f"{role}-{secrets.token_hex(4)}" for role in ("owner", "curious", "alone")]
    trees = [open_tree(server, database, name) for name in names]
    fill(trees[0])
    yield trees[0], trees[1], trees[2]
    for tree in trees:
        tree.close()


def _walk(tree: Tree) -> list[str]:
    return [path for top in (FOLDER, DOCUMENT, "kept") for path, _ in tree.walk(top, ("",), lambda _p, _w: None)]


def _end(tree: Tree) -> object:
    seen: list[object] = []

    def look(end: LogEnd) -> bytes:
        seen.extend([end.size, *end.back(), *end.lines(0)])
        return b""

    return tree.append(LOG, look), seen


def _snapshot(tree: Tree) -> object:
    with tree.snapshot(LOG, log=True) as found:
        return found.size, b"".join(found.chunks)


def _held(tree: Tree) -> object:
    release = tree.hold(LOG)
    if release:
        release()
    tree.remove(LOG)
    return release is None


VERSION = "a" * 32
MATRIX: dict[str, list[Callable[[Tree], object]]] = {
    "read": [lambda v: v.read(DOCUMENT), lambda v: v.read(LOG), lambda v: v.read("kept/secret"), lambda v: v.read(FOLDER)],
    "scan": [lambda v: list(v.scan(LOG)), lambda v: list(v.scan(LOG, 3, 9)), lambda v: list(v.scan(DOCUMENT))],
    "scan_back": [lambda v: list(v.scan_back(LOG))],
    "fingerprint": [lambda v: v.fingerprint(LOG, 0, 4)],
    "stat": [lambda v: v.stat(DOCUMENT), lambda v: v.stat(LOG), lambda v: v.stat(FOLDER)],
    "walk": [_walk],
    "folders": [lambda v: v.folders(FOLDER)],
    "folder_stamp": [lambda v: v.folder_stamp(FOLDER)],
    "make_folder": [lambda v: v.make_folder(FOLDER)],
    "target": [lambda v: v.target(DOCUMENT)],
    "link": [lambda v: v.link(DOCUMENT, "x")],
    "move": [lambda v: v.move(DOCUMENT, "mine.md"), lambda v: v.move("gone.md", DOCUMENT)],
    "remove": [lambda v: v.remove(DOCUMENT), lambda v: v.remove(LOG, keep="mine"), lambda v: v.remove(DOCUMENT, expect=VERSION)],
    "rewrite": [lambda v: v.rewrite(LOG, lambda _: b"mine"), lambda v: v.rewrite(DOCUMENT, lambda _: b"mine")],
    "snapshot": [_snapshot],
    "create": [lambda v: v.create(DOCUMENT, [b"mine"]), lambda v: v.read(DOCUMENT).data, lambda v: v.remove(DOCUMENT)],
    "versions": [lambda v: v.versions([DOCUMENT, LOG])],
    "create_all": [
        lambda v: sorted(v.create_all({DOCUMENT: b"mine", "other.md": b"mine"})),
        lambda v: v.read(DOCUMENT).data,
        lambda v: v.remove(DOCUMENT),
        lambda v: v.remove("other.md"),
    ],
    "settle": [lambda v: v.settle()],
    "hold": [_held],
    "append": [_end, lambda v: v.append(LOG, lambda _: b"mine\n"), lambda v: v.append(LOG, lambda _: b"2\n", again=True), lambda v: list(v.scan(LOG))],
    "write": [
        lambda v: v.write(DOCUMENT, b"x", expect=VERSION, keep="kept/other"),
        lambda v: v.write(DOCUMENT, b"mine", expect=ABSENT, keep="kept/secret"),
        lambda v: v.write("kept/secret", b"mine", expect=ABSENT),
        lambda v: v.read(DOCUMENT).data,
    ],
    "close": [],
}  # fmt: skip


def outcome(tree: Tree, call: Callable[[Tree], object]) -> object:
    try:
        return call(tree)
    except HoldfastError as error:
        return type(error), error.message, error.next_step


def test_the_matrix_has_every_method_of_the_port() -> None:
    port = {name for one in Tree.__mro__[:2] for name in vars(one) if not name.startswith("_")}
    assert {name for name in port if callable(getattr(Tree, name))} == set(MATRIX)


def test_whoever_asks_for_anothers_paths_is_answered_as_if_nobody_else_were_there(
    tenants: tuple[PgTree, PgTree, PgTree], server: pgserver.Server, database: str
) -> None:
    owner, curious, alone = tenants
    before = [outcome(owner, call) for call in (*MATRIX["read"], *MATRIX["scan"], *MATRIX["walk"], *MATRIX["stat"])]
    for name, calls in MATRIX.items():
        for number, call in enumerate(calls):
            assert outcome(curious, call) == outcome(alone, call), (name, number)
    after = [outcome(owner, call) for call in (*MATRIX["read"], *MATRIX["scan"], *MATRIX["walk"], *MATRIX["stat"])]
    assert before == after


def test_a_tenant_does_not_wait_for_another(tenants: tuple[PgTree, PgTree, PgTree]) -> None:
    owner, curious, _ = tenants

    def meanwhile(_: LogEnd) -> bytes:
        curious.append(LOG, lambda _: b"mine\n")
        curious.write(DOCUMENT, b"mine", expect=ABSENT)
        assert curious.hold(LOG) is not None
        return b"three\n"

    owner.append(LOG, meanwhile)
    release = owner.hold(LOG)
    assert release is not None
    assert [line.data for line in curious.scan(LOG)] == [b"mine"]


@pytest.mark.parametrize("role", [WRITER, READER, OWNER])
@pytest.mark.parametrize("tenant", ["curious", "", None])
def test_sql_under_a_role_shows_and_changes_only_rows_of_the_tenant_that_is_named(
    tenants: tuple[PgTree, PgTree, PgTree], server: pgserver.Server, database: str, role: str, tenant: str | None
) -> None:
    before = [outcome(tenants[0], call) for call in (*MATRIX["read"], *MATRIX["scan"], *MATRIX["stat"])]
    with psycopg.connect(server.at(database), autocommit=True) as connection:
        connection.execute(f"SET ROLE {role}")
        if tenant is not None:
            connection.execute("SELECT set_config('holdfast.tenant', %s, false)", [tenant])
        for table in ("files", "pieces"):
            assert connection.execute(f"SELECT count(*) FROM holdfast.{table}").fetchone() == (0,)
            assert connection.execute(f"SELECT FROM holdfast.{table} WHERE data IS NOT NULL OR true").rowcount == 0
            if role != READER:
                assert connection.execute(f"UPDATE holdfast.{table} SET writer = 'x'").rowcount == 0
                assert connection.execute(f"DELETE FROM holdfast.{table}").rowcount == 0
    assert [outcome(tenants[0], call) for call in (*MATRIX["read"], *MATRIX["scan"], *MATRIX["stat"])] == before


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO holdfast.pieces (tenant, inode, start, data, op, writer) VALUES (%(owner)s, 1, 0, '', gen_random_uuid(), '')",
        "INSERT INTO holdfast.files (tenant, path, inode, size, log, torn, op, writer)"
        " VALUES (%(owner)s, 'work/secret.md', 1, 0, true, false, gen_random_uuid(), '') ON CONFLICT DO NOTHING",
        "UPDATE holdfast.files SET tenant = %(owner)s WHERE path = 'own.md'",
        "SELECT * FROM holdfast.files_00",
        "DELETE FROM holdfast.pieces_07",
        "TRUNCATE holdfast.files",
        "ALTER TABLE holdfast.files DISABLE ROW LEVEL SECURITY",
        "DROP POLICY of_the_tenant ON holdfast.files",
        "INSERT INTO holdfast.migrations (version, name) VALUES (99, 'x')",
        "CREATE TABLE holdfast.mine (x int)",
    ],
)
def test_sql_of_the_application_is_refused(
    tenants: tuple[PgTree, PgTree, PgTree], server: pgserver.Server, database: str, statement: str
) -> None:
    owner, curious, _ = (tree.location.partition("tenant=")[2] for tree in tenants)
    tenants[1].write("own.md", b"mine", expect=ABSENT)
    with psycopg.connect(server.at(database)) as connection:
        connection.execute(f"SET LOCAL ROLE {WRITER}")
        connection.execute("SELECT set_config('holdfast.tenant', %s, true)", [curious])
        with pytest.raises(pg.InsufficientPrivilege):
            connection.execute(statement, {"owner": owner})


def test_even_the_owner_of_the_tables_sees_through_a_partition_only_the_tenant_that_it_names(
    tenants: tuple[PgTree, PgTree, PgTree], server: pgserver.Server, database: str
) -> None:
    names = [tree.location.partition("tenant=")[2] for tree in tenants]
    with psycopg.connect(server.at(database)) as connection:
        connection.execute(f"SET LOCAL ROLE {OWNER}")
        for table in [f"holdfast.{name}_{number:02d}" for name in ("files", "pieces") for number in range(16)]:
            connection.execute("SELECT set_config('holdfast.tenant', '', true)")
            assert connection.execute(f"SELECT FROM {table}").rowcount == 0
            connection.execute("SELECT set_config('holdfast.tenant', %s, true)", [names[0]])
            assert {row[0] for row in connection.execute(f"SELECT tenant FROM {table}")} <= {names[0]}


def test_every_table_is_keyed_and_partitioned_by_tenant_and_guarded(server: pgserver.Server, database: str) -> None:
    Database(server.at(database)).close()
    look = functools.partial(server.run, database=database)
    tables = look(
        "SELECT relname, relkind, relrowsecurity, relforcerowsecurity, relispartition, pg_get_userbyid(relowner) FROM pg_class"
        " WHERE relnamespace = 'holdfast'::regnamespace AND relkind IN ('r', 'p') AND relname <> 'migrations'"
    )
    parents = {row[0] for row in tables if row[1] == "p"}
    assert {"files", "pieces", "index_records", "vectors"} <= parents
    assert len([row for row in tables if row[4]]) == PARTITIONS * len(parents)
    assert {row[0] for row in tables if row[1] == "r"} == {row[0] for row in tables if row[4]}
    assert {row[2:4] for row in tables} == {(True, True)}
    assert {row[5] for row in tables} == {OWNER}
    keys = look(
        "SELECT DISTINCT a.attname FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_attribute a"
        " ON a.attrelid = c.oid AND a.attnum = i.indkey[0] JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam"
        " WHERE m.amname = 'btree' AND c.relnamespace = 'holdfast'::regnamespace AND c.relname <> 'migrations'"
    )
    assert keys == [("tenant",)]
    roles = look(
        f"SELECT rolcanlogin, rolsuper, rolbypassrls FROM pg_roles WHERE rolname IN ('{OWNER}', '{WRITER}', '{READER}')"
    )
    assert roles == [(False, False, False)] * 3


def test_what_runs_with_the_rights_of_the_owner_looks_last_at_what_its_caller_made(
    server: pgserver.Server, database: str
) -> None:
    Database(server.at(database)).close()
    held = server.run(
        "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace AND prosecdef", database
    )
    assert {str(name) for name, _ in held} == {"analyze_index"}
    assert {str(config) for _, config in held} == {"['search_path=pg_catalog, pg_temp']"}


@pytest.mark.parametrize("name", ["regclass", "text", "name"])
def test_a_type_that_a_caller_makes_does_not_run_with_the_rights_of_the_owner(
    tenants: tuple[PgTree, PgTree, PgTree], server: pgserver.Server, database: str, name: str
) -> None:
    with psycopg.connect(server.at(database)) as connection:
        connection.execute(f"SET LOCAL ROLE {WRITER}")
        connection.execute("SELECT set_config('holdfast.tenant', %s, true)", [tenants[0]._database.tenant])
        connection.execute(
            f"CREATE FUNCTION pg_temp.mine(x pg_catalog.{name}) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
            " EXECUTE 'ALTER TABLE holdfast.tokens DISABLE ROW LEVEL SECURITY'; RETURN true; END $$"
        )
        connection.execute("GRANT EXECUTE ON FUNCTION pg_temp.mine TO PUBLIC")
        connection.execute(f"CREATE DOMAIN pg_temp.{name} AS pg_catalog.{name} CHECK (pg_temp.mine(VALUE))")
        connection.execute("SELECT holdfast.analyze_index()")
        guarded = connection.execute(
            "SELECT relrowsecurity FROM pg_class WHERE oid = 'holdfast.tokens'::pg_catalog.regclass"
        )
        assert guarded.fetchone() == (True,)
        connection.rollback()


def test_a_session_of_the_application_is_left_without_role_and_tenant(
    tenants: tuple[PgTree, PgTree, PgTree],
) -> None:
    tree = tenants[0]
    for call in (*MATRIX["read"], lambda v: v.append(LOG, lambda _: b"four\n")):
        outcome(tree, call)
    session = tree._database._pool.take(1e18)
    row = session.execute("SELECT current_user = session_user, current_setting('holdfast.tenant', true)").fetchone()
    tree._database._pool.give_back(session)
    assert row == (True, "")


def test_every_write_notes_who_made_it_and_when(
    tenants: tuple[PgTree, PgTree, PgTree], server: pgserver.Server, database: str
) -> None:
    tenant = tenants[0].location.partition("tenant=")[2]
    rows = server.run(
        f"SELECT writer, login, changed > now() - interval '1 hour' FROM holdfast.files WHERE tenant = '{tenant}'"
        f" UNION ALL SELECT writer, login, at > now() - interval '1 hour' FROM holdfast.pieces WHERE tenant = '{tenant}'",
        database,
    )
    login = server.run("SELECT session_user::text")[0][0]
    assert rows == [(tenant, login, True)] * 4
