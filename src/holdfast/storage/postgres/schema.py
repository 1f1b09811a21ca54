"""Set up a database: one program at a time, and never over the tables of a newer one.

The tables and functions are in `schema.sql`; those for vectors, which need pgvector, are in `vectors.sql`.
"""

from __future__ import annotations

import importlib.resources
import time

import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.rows import TupleRow

from holdfast.errors import Busy, HoldfastError, Unavailable
from holdfast.recall.embedders import NoVectors
from holdfast.storage.tree import RootGone

OWNER, WRITER, READER = ROLES = ("holdfast_owner", "holdfast_writer", "holdfast_reader")
VERSION = 12
COPYING = 11
"""The schema of a database whose rows are being copied from the tables of schema 10 and older."""
OLDEST_SERVER = 16
_KEY = 7_406_297_183_640_291_011
_LONGEST_WAIT = "60s"
_TRIES = 8
_CONCURRENT = (pg.UniqueViolation, pg.DuplicateObject, pg.InternalError_, pg.DeadlockDetected, pg.DuplicateSchema)
CODE_BITS = 384
LETTER = 3
"""The place of the letter in a lexeme that says what it is: w a word, f a word of another program, n l t a tie."""
_MIGRATIONS = f"""
CREATE TABLE IF NOT EXISTS holdfast.migrations (
    version integer PRIMARY KEY, name text NOT NULL, login name NOT NULL DEFAULT session_user,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
GRANT USAGE ON SCHEMA holdfast TO {WRITER}, {READER};
GRANT SELECT ON holdfast.migrations TO {WRITER}, {READER};
"""
Connection = psycopg.Connection[TupleRow]


def text(name: str) -> bytes:
    """Return a file of SQL."""
    return importlib.resources.files(__package__).joinpath(name).read_bytes()


def prepare(connection: Connection, *, migrating: bool = False) -> tuple[str, str]:
    """Set up the database if it is empty; return the role to work with, and `synchronous_commit` for durable writes."""
    major = connection.info.server_version // 10_000
    if major < OLDEST_SERVER:
        raise Unavailable(f"The server is PostgreSQL {major}.", f"Use PostgreSQL {OLDEST_SERVER} or newer.")
    row = connection.execute("SELECT getdatabaseencoding(), current_setting('synchronous_commit')").fetchone()
    encoding, commit = row or ("", "")
    if encoding != "UTF8":
        raise Unavailable(
            f"The encoding of the database is {encoding}.",
            "Create one with ENCODING 'UTF8' TEMPLATE template0, and use that.",
        )
    version = installed(connection)
    if not version:
        set_up(connection)
    elif version != VERSION and not (migrating and version < VERSION):
        raise other(version)
    mine = roles(connection)
    role = next((role for role in (WRITER, READER) if role in mine), "")
    if not role:
        raise _not_granted(connection)
    return role, "on" if commit == "off" else commit


def check(connection: Connection) -> None:
    """Check that an open database still has the schema that this program knows."""
    version = installed(connection)
    if not version:
        raise RootGone("The database is no longer set up.", "Open it again and check it.")
    if version > VERSION:
        raise other(version)


def other(version: int) -> HoldfastError:
    """Return why a database with this schema cannot be opened."""
    if version < COPYING:
        return Unavailable(
            f"The database has the tables of an earlier Holdfast (schema {version}; this program knows {VERSION}).",
            "Make a backup of the database, stop all programs that use it, and run: holdfast migrate store ADDRESS",
        )
    if version < VERSION:
        return Unavailable(
            "The migration of the database has not finished.", "Run: holdfast migrate store ADDRESS --yes"
        )
    return Unavailable(
        f"The database has schema {version}, this program knows {VERSION}; nothing was changed.", "Upgrade Holdfast."
    )


def installed(connection: Connection) -> int:
    """Return the version of the schema, 0 when there is none."""
    there = "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    there += " WHERE nspname = 'holdfast' AND relname = 'migrations'"  # to_regclass needs rights
    if not connection.execute(there).fetchone():
        return 0
    mine = roles(connection)
    if not mine:
        raise _not_granted(connection)
    with connection.transaction(force_rollback=True):  # otherwise the role would stay, inside a longer transaction
        connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(mine[0])))
        row = connection.execute("SELECT coalesce(max(version), 0) FROM holdfast.migrations").fetchone()
    return int(row[0]) if row else 0


def set_up(connection: Connection, *, over: bool = False) -> None:
    """Create the tables; with `over`, beside those of an earlier version, whose rows are copied afterwards.

    It is tried again when another database of the server creates the same roles meanwhile.
    """
    for attempt in range(1, _TRIES + 1):
        try:
            with connection.transaction():
                _set_up(connection, over)
            return
        except pg.LockNotAvailable:
            raise Busy("Another program is setting up this database.", "Try again in a minute.") from None
        except pg.InsufficientPrivilege:
            user = connection.info.user
            raise Unavailable(
                f'The database is not set up for this version, and the login "{user}" may not do that.',
                "Open it once with a login that may create roles and schemas in this database, or was granted "
                f'{OWNER}; then GRANT {WRITER} TO "{user}";',
            ) from None
        except pg.ReadOnlySqlTransaction:
            raise Unavailable(
                "The database is not set up, and this server takes no writes.", "Open it on the primary."
            ) from None
        except psycopg.Error as error:
            if connection.closed:
                raise
            if attempt == _TRIES or not isinstance(error, _CONCURRENT):
                raise Unavailable(
                    f"The database could not be set up ({error.sqlstate}): {error.diag.message_primary};"
                    " nothing was changed.",
                    "See the server's log, then open it again.",
                ) from None
            time.sleep(0.05 * attempt)


def _set_up(connection: Connection, over: bool) -> None:
    connection.execute(f"SET LOCAL lock_timeout = '{_LONGEST_WAIT}'")
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_KEY])
    version = installed(connection)
    if version >= COPYING or (version and not over):
        return  # another program did it meanwhile
    known = connection.execute("SELECT rolname FROM pg_roles WHERE rolname = ANY(%s)", [list(ROLES)]).fetchall()
    for role in ROLES:
        if (role,) not in known:
            connection.execute(f"CREATE ROLE {role} NOLOGIN NOSUPERUSER NOBYPASSRLS")
    for role in set(ROLES) - set(roles(connection)):
        connection.execute(f"GRANT {role} TO CURRENT_USER WITH SET TRUE")
    if not version:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS holdfast AUTHORIZATION {OWNER}")
    connection.execute(f"SET LOCAL ROLE {OWNER}")
    connection.execute(_MIGRATIONS)
    connection.execute(text("schema.sql"))
    note(connection, COPYING)
    if not over:
        note(connection, VERSION)


def note(connection: Connection, version: int) -> None:
    """Record that the database has a version of the schema."""
    name = {COPYING: "rows are being copied", VERSION: "records are rows"}[version]
    connection.execute("INSERT INTO holdfast.migrations (version, name) VALUES (%s, %s)", [version, name])


def prepare_vectors(connection: Connection) -> NoVectors | None:
    """Create the table of vectors, if it is missing; return the reason where that is impossible."""
    there = """SELECT EXISTS (SELECT FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'holdfast' AND c.relname = 'embedding'
        AND a.attname = 'vector' AND NOT a.attisdropped)"""  # to_regclass needs rights
    row = connection.execute(there).fetchone()
    if row and row[0]:
        return None
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{_LONGEST_WAIT}'")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_KEY])
            if (row := connection.execute(there).fetchone()) and not row[0]:
                _add_vectors(connection)
        return None
    except Unavailable as error:
        return NoVectors(error.message, error.next_step)
    except pg.InsufficientPrivilege:
        return NoVectors(
            f'Vectors cannot be compared here yet, and the login "{connection.info.user}" may not set that up.',
            f"Open the database once with a login that was granted {OWNER}.",
        )
    except psycopg.Error as error:
        if connection.closed:
            raise
        return NoVectors(
            f"The extension vector cannot be used ({error.sqlstate}): {error.diag.message_primary}.",
            "See the server's log, then open it again.",
        )


def _add_vectors(connection: Connection) -> None:
    known = "SELECT n.nspname, extversion FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
    known += " WHERE extname = 'vector'"
    if (row := connection.execute(known).fetchone()) is None:
        major = connection.info.server_version // 10_000
        if not connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone():
            raise Unavailable(
                "The server does not have the extension vector.",
                f"Install pgvector (on Debian: apt install postgresql-{major}-pgvector) on the server and open the"
                " memory again; a login that may not add it needs an administrator to run: CREATE EXTENSION vector;",
            )
        try:
            with connection.transaction():
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except pg.InsufficientPrivilege:
            raise Unavailable(
                "The extension vector is not part of this database, and this login may not add it.",
                "Have the database's administrator run: CREATE EXTENSION vector;",
            ) from None
        row = connection.execute(known).fetchone()
    place, version = row or ("", "")
    connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(OWNER)))
    try:
        connection.execute(text("vectors.sql").replace(b"@vector@", sql.Identifier(place).as_bytes()))
    except pg.UndefinedObject:
        raise Unavailable(
            f"The extension vector is {version} here, which is too old.",
            "Install pgvector 0.7 or newer on the server, and run: ALTER EXTENSION vector UPDATE;",
        ) from None


def add_graph(connection: Connection) -> None:
    """Index the codes of all vectors by a graph (HNSW), if the login may do that."""
    if OWNER not in roles(connection):
        return
    place = (
        "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE extname = 'vector'"
    )
    row = connection.execute(place).fetchone()
    connection.execute(f"SET ROLE {OWNER}")
    connection.execute("SET maintenance_work_mem = '1GB'")
    made = "CREATE INDEX CONCURRENTLY IF NOT EXISTS embedding_code ON holdfast.embedding"
    made += " USING hnsw (code {}.bit_hamming_ops)"
    connection.execute(sql.SQL(made).format(sql.Identifier(row[0] if row else "public")))


def roles(connection: Connection) -> list[str]:
    """Return which of our roles this login may set, the most powerful first."""
    rows = connection.execute(
        "SELECT rolname FROM pg_roles WHERE rolname = ANY(%s) AND pg_has_role(oid, 'SET')", [list(ROLES)]
    ).fetchall()
    return sorted((row[0] for row in rows), key=ROLES.index)


def _not_granted(connection: Connection) -> HoldfastError:
    user = connection.info.user
    return Unavailable(
        f'The login "{user}" may not use this memory.',
        f'Have the database\'s administrator run: GRANT {WRITER} TO "{user}"; (or {READER}, to read only)',
    )
