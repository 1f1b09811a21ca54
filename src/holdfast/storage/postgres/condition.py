"""How a database is: which server, which schema, with which rights we work, who stands by, how long an answer takes."""

from __future__ import annotations

import time

import msgspec

from holdfast.storage.postgres.migrations import MIGRATIONS
from holdfast.storage.postgres.transactions import Database, Turn

_TIMES = 5
_ASKED = """
SELECT current_setting('server_version'), (SELECT max(version) FROM holdfast.migrations), session_user::text,
       current_user::text, pg_has_role(session_user, current_user, 'USAGE'), pg_is_in_recovery(),
       coalesce((SELECT extversion FROM pg_extension WHERE extname = 'vector'), ''),
       EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector'),
       (SELECT count(*) FROM pg_stat_replication),
       coalesce(extract(epoch FROM now() - pg_last_xact_replay_timestamp()), 0)::float8
"""


class Condition(msgspec.Struct, frozen=True):
    location: str
    """Where it is, for people."""
    server: str
    schema: int
    newest_schema: int
    """The one that this program would bring a database to."""
    login: str
    role: str
    inherits: bool
    """Has the login the rights of its role without taking it on first? Else appends take the longer way."""
    tenant: str
    standby: bool
    """Does this server only follow another one, so that nothing can be written?"""
    vector: str
    """The version of pgvector that this database has, "" without it."""
    vector_there: bool
    """Could the server give it to this database?"""
    standbys: int
    """Servers that follow this one, of those that this login may see."""
    behind_seconds: float
    """How old the newest is that a standby has heard of."""
    answer_ms: float
    """How long the server takes for a transaction with one question, the best of a few."""


def look(database: Database) -> Condition:
    """Ask a database how it is."""
    row = database.run("the database", lambda turn: turn.row(_ASKED)) or ()
    server, schema, login, role, inherits, standby, vector, vector_there, standbys, behind = row
    return Condition(
        database.location, str(server), int(schema), len(MIGRATIONS), login, role, inherits, database.tenant,
        standby, vector, vector_there, standbys, float(behind) if standby else 0.0,
        min(_timed(database) for _ in range(_TIMES)),
    )  # fmt: skip


def _timed(database: Database) -> float:
    begin = time.perf_counter()
    database.run("the database", _nothing)
    return round((time.perf_counter() - begin) * 1000, 2)


def _nothing(turn: Turn) -> None:
    turn.row("SELECT 1")
