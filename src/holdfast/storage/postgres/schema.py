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
_LOCK = f"SET LOCAL lock_timeout = '60s'; SELECT pg_advisory_xact_lock({_KEY})"
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
_TABLE = """
SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE nspname = 'holdfast' AND relname = %s
"""
"""Is there a table? to_regclass would need rights."""
_VECTOR = """
SELECT n.nspname, extversion FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE extname = 'vector'
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
        step = "Create one with ENCODING 'UTF8' TEMPLATE template0, and use that."
        raise Unavailable(f"The encoding of the database is {encoding}.", step)
    version = installed(connection)
    if not version:
        set_up(connection)
    elif version != VERSION and not (migrating and version < VERSION):
        raise other(version)
    mine = {*roles(connection)} - {OWNER}
    if not mine:
        raise _not_granted(connection)
    return WRITER if WRITER in mine else READER, "on" if commit == "off" else commit


def check(connection: Connection) -> None:
    """Check that an open database still has the schema that this program knows."""
    version = installed(connection)
    if not version:
        raise RootGone("The database is no longer set up.", "Open it again and check it.")
    if version > VERSION:
        raise other(version)


def other(version: int) -> HoldfastError:
    """Return why a database with this schema cannot be opened."""
    if version > VERSION:
        fault = f"The database has schema {version}, this program knows {VERSION}; nothing was changed."
        return Unavailable(fault, "Upgrade Holdfast.")
    if version == COPYING:
        step = "Run: holdfast migrate store ADDRESS --yes"
        return Unavailable("The migration of the database has not finished.", step)
    return Unavailable(
        f"The database has the tables of an earlier Holdfast (schema {version}; this program knows {VERSION}).",
        "Make a backup of the database, stop all programs that use it, and run: holdfast migrate store ADDRESS",
    )


def installed(connection: Connection) -> int:
    """Return the version of the schema, 0 when there is none."""
    if not connection.execute(_TABLE, ["migrations"]).fetchone():
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
        except psycopg.Error as error:
            if connection.closed:
                raise
            if attempt == _TRIES or not isinstance(error, _CONCURRENT):
                reason = f"({error.sqlstate}): {error.diag.message_primary}"
                fault = f"The database could not be set up {reason}; nothing was changed."
                raise Unavailable(fault, "See the server's log, then open it again.") from None
            time.sleep(0.05 * attempt)


def _set_up(connection: Connection, over: bool) -> None:
    connection.execute(_LOCK)
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
    there = f"{_TABLE} AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'vector')"
    if connection.execute(there, ["embedding"]).fetchone():
        return None
    major = connection.info.server_version // 10_000
    step = "Have the database's administrator run: CREATE EXTENSION vector;"
    try:
        with connection.transaction():
            connection.execute(_LOCK)
            if connection.execute(there, ["embedding"]).fetchone():
                return None  # another program did it meanwhile
            if not connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone():
                return NoVectors(
                    "The server does not have the extension vector.",
                    f"Install pgvector (on Debian: apt install postgresql-{major}-pgvector) on the server and open the"
                    f" memory again; if that does not suffice: {step}",
                )
            if not connection.execute(_VECTOR).fetchone():
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            place, version = connection.execute(_VECTOR).fetchone() or ("", "")
            step = f"Open the database once with a login that was granted {OWNER}."
            connection.execute(f"SET LOCAL ROLE {OWNER}")
            connection.execute(text("vectors.sql").replace(b"@vector@", sql.Identifier(place).as_bytes()))
        return None
    except pg.InsufficientPrivilege:
        fault = f'Vectors cannot be compared here yet, and the login "{connection.info.user}" may not set that up.'
        return NoVectors(fault, step)
    except pg.UndefinedObject:
        step = "Install pgvector 0.7 or newer on the server, and run: ALTER EXTENSION vector UPDATE;"
        return NoVectors(f"The extension vector is {version} here, which is too old.", step)
    except psycopg.Error as error:
        if connection.closed:
            raise
        reason = f"({error.sqlstate}): {error.diag.message_primary}"
        return NoVectors(f"The extension vector cannot be used {reason}.", "See the server's log, then open it again.")


def add_graph(connection: Connection) -> None:
    """Index the codes of all vectors by a graph (HNSW), if the login may do that."""
    found = connection.execute(_VECTOR).fetchone()
    if found and OWNER in roles(connection):
        connection.execute(f"SET ROLE {OWNER}")
        connection.execute("SET maintenance_work_mem = '1GB'")
        made = "CREATE INDEX CONCURRENTLY IF NOT EXISTS embedding_code ON holdfast.embedding"
        made += " USING hnsw (code {}.bit_hamming_ops)"
        connection.execute(sql.SQL(made).format(sql.Identifier(found[0])))


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
