"""Set up a database and upgrade its schema: each migration once, one program at a time.

The first program that opens an empty database sets it up. A schema that is newer than this program is refused.
"""

from __future__ import annotations

import time

import msgspec
import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.rows import TupleRow

from holdfast.errors import Busy, HoldfastError, Unavailable
from holdfast.recall.embedders import NoVectors
from holdfast.storage.postgres import schema
from holdfast.storage.postgres.schema import OWNER, READER, WRITER
from holdfast.storage.tree import RootGone

_NO_TASK_TABLES = "DROP TABLE IF EXISTS holdfast.tasks, holdfast.task_ties, holdfast.task_ops, holdfast.task_logs"
MIGRATIONS = (
    ("documents and logs", schema.VAULT),
    ("appends in one message", ""),
    ("what changed, and who listens", schema.CHANGES),
    ("the index", schema.INDEX),
    ("vectors", schema.VECTORS),
    ("tasks", ""),
    ("tokens", schema.TOKENS),
    ("documents in one message", ""),
    ("appends of many threads in one message", ""),
    ("tasks are in their logs", _NO_TASK_TABLES),
)
"""In order. Released migrations are never edited: a change is one more row.

Four rows are empty now: the functions of three are no longer called, the tables of one are dropped by the last row.
"""

ROLES = (OWNER, WRITER, READER)
OLDEST_SERVER = 16
_KEY = 7_406_297_183_640_291_011
_LONGEST_WAIT = "60s"
_TRIES = 8
_CONCURRENT = (pg.UniqueViolation, pg.DuplicateObject, pg.InternalError_, pg.DeadlockDetected, pg.DuplicateSchema)

_HAS_COMPARE = (
    "SELECT 1 FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
    " WHERE n.nspname = 'holdfast' AND p.proname = 'apart'"
)

Connection = psycopg.Connection[TupleRow]


class Access(msgspec.Struct, frozen=True):
    """The rights of this login."""

    role: str
    forgetful: bool
    """By default the server acknowledges writes that it may still lose, so each write sets `synchronous_commit`."""


def prepare(connection: Connection) -> Access:
    """Set up or upgrade the database if necessary, and return the role to work with."""
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
    if version > len(MIGRATIONS):
        raise _newer(version)
    if version < len(MIGRATIONS):
        _upgrade(connection)
    mine = _roles(connection)
    role = next((role for role in (WRITER, READER) if role in mine), "")
    if not role:
        raise _not_granted(connection)
    return Access(role, forgetful=commit == "off")


def check(connection: Connection) -> None:
    """Check that an open database still has the schema that this program knows."""
    version = installed(connection)
    if version > len(MIGRATIONS):
        raise _newer(version)
    if version < len(MIGRATIONS):
        raise RootGone("The database is no longer set up, or is an older one.", "Open it again and check it.")


def _newer(version: int) -> HoldfastError:
    return Unavailable(
        f"The database has schema {version}, this program knows {len(MIGRATIONS)}; nothing was changed.",
        "Upgrade Holdfast.",
    )


def installed(connection: Connection) -> int:
    """Return the version of the schema, 0 when there is none."""
    found = connection.execute(
        "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = 'holdfast' AND c.relname = 'migrations'"
    ).fetchone()
    if not found:
        return 0
    roles = _roles(connection)
    if not roles:
        raise _not_granted(connection)
    with connection.transaction():
        connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(roles[0])))
        row = connection.execute("SELECT coalesce(max(version), 0) FROM holdfast.migrations").fetchone()
    return int(row[0]) if row else 0


def need_extension(connection: Connection, name: str, package: str) -> None:
    """Add an extension of the server to this database, if it is missing."""
    if connection.execute("SELECT 1 FROM pg_extension WHERE extname = %s", [name]).fetchone():
        return
    if not connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = %s", [name]).fetchone():
        raise Unavailable(
            f"The server does not have the extension {name}.",
            f"Install {package} on the server and open the memory again;"
            f" a login that may not add it needs an administrator to run: CREATE EXTENSION {name};",
        )
    try:
        connection.execute(sql.SQL("CREATE EXTENSION IF NOT EXISTS {}").format(sql.Identifier(name)))
    except pg.InsufficientPrivilege:
        raise Unavailable(
            f"The extension {name} is not part of this database, and this login may not add it.",
            f"Have the database's administrator run: CREATE EXTENSION {name};",
        ) from None


def prepare_vectors(connection: Connection) -> NoVectors | None:
    """Create the function that compares vectors, if it is missing; return the reason where that is impossible."""
    if connection.execute(_HAS_COMPARE).fetchone():
        return None
    major = connection.info.server_version // 10_000
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{_LONGEST_WAIT}'")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_KEY])
            if not connection.execute(_HAS_COMPARE).fetchone():
                need_extension(connection, "vector", f"pgvector (on Debian: apt install postgresql-{major}-pgvector)")
                _create_compare(connection)
        return None
    except Unavailable as error:
        return NoVectors(error.message, error.next_step)
    except pg.InsufficientPrivilege:
        return NoVectors(
            f'Vectors cannot be compared here yet, and the login "{connection.info.user}" may not set that up.',
            f"Open the database once with a login that was granted {OWNER}.",
        )
    except psycopg.Error as error:
        return NoVectors(
            f"The extension vector cannot be used ({error.sqlstate}): {error.diag.message_primary}.",
            "See the server's log, then open it again.",
        )


def _create_compare(connection: Connection) -> None:
    row = connection.execute(
        "SELECT nspname, extversion FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
        " WHERE extname = 'vector'"
    ).fetchone()
    place, version = row or ("", "")
    connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(OWNER)))
    try:
        connection.execute(sql.SQL(schema.COMPARING).format(place=sql.Identifier(place)))
    except pg.UndefinedFunction:
        raise Unavailable(
            f"The extension vector is {version} here, which is too old.",
            "Install pgvector 0.7 or newer on the server, and run: ALTER EXTENSION vector UPDATE;",
        ) from None


def _roles(connection: Connection) -> list[str]:
    """Return which of our roles this login may set, the most powerful first."""
    rows = connection.execute(
        "SELECT rolname FROM pg_roles WHERE rolname = ANY(%s) AND pg_has_role(oid, 'SET')", [list(ROLES)]
    ).fetchall()
    return sorted((row[0] for row in rows), key=ROLES.index)


def _upgrade(connection: Connection) -> None:
    """Run the missing migrations; retry when another database of the server creates the same roles meanwhile."""
    for attempt in range(1, _TRIES + 1):
        try:
            with connection.transaction():
                _upgrade_alone(connection)
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
            if attempt == _TRIES or not isinstance(error, _CONCURRENT):
                raise Unavailable(
                    f"The database could not be set up ({error.sqlstate}): {error.diag.message_primary};"
                    " nothing was changed.",
                    "See the server's log, then open it again.",
                ) from None
            time.sleep(0.05 * attempt)


def _upgrade_alone(connection: Connection) -> None:
    connection.execute(f"SET LOCAL lock_timeout = '{_LONGEST_WAIT}'")
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_KEY])
    version = installed(connection)
    if version >= len(MIGRATIONS):
        return  # another program did it meanwhile
    if version == 0:
        known = connection.execute("SELECT rolname FROM pg_roles WHERE rolname = ANY(%s)", [list(ROLES)]).fetchall()
        for role in ROLES:
            if (role,) not in known:
                connection.execute(f"CREATE ROLE {role} NOLOGIN NOSUPERUSER NOBYPASSRLS")
        for role in set(ROLES) - set(_roles(connection)):
            connection.execute(f"GRANT {role} TO CURRENT_USER WITH SET TRUE")
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS holdfast AUTHORIZATION {OWNER}")
    connection.execute(f"SET LOCAL ROLE {OWNER}")
    for number, (name, statements) in enumerate(MIGRATIONS[version:], version + 1):
        connection.execute(statements)
        connection.execute("INSERT INTO holdfast.migrations (version, name) VALUES (%s, %s)", [number, name])


def _not_granted(connection: Connection) -> HoldfastError:
    user = connection.info.user
    return Unavailable(
        f'The login "{user}" may not use this memory.',
        f'Have the database\'s administrator run: GRANT {WRITER} TO "{user}"; (or {READER}, to read only)',
    )
