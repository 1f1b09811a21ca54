"""The tenants of a database: their access tokens, and the health of the server.

A token is looked up as the tenant that it names. An unknown tenant and an unknown token look the same: no row.
"""

from __future__ import annotations

import time

import msgspec
from psycopg.rows import TupleRow

from holdfast.errors import AlreadyExists
from holdfast.model.grants import Grant
from holdfast.model.times import iso
from holdfast.storage.postgres import addresses, schema
from holdfast.storage.postgres.connections import Waits
from holdfast.storage.postgres.database import Database

_QUICK = Waits(lock_seconds=2.0, statement_seconds=3.0, again_seconds=2.0, connections=2)
"""Every request waits for this first, and so does the check whether the server is ready."""
_TIMES = ("created", "expires", "revoked")
_SELECT = (
    "SELECT id, name, digest, tenant, scope, reads_only, extract(epoch FROM created)::float8,"
    " extract(epoch FROM expires)::float8, extract(epoch FROM revoked)::float8, used::text"
    " FROM holdfast.token WHERE tenant = %(tenant)s"
)
"""The columns, in the order of the fields of Grant."""
_ADD = """
INSERT INTO holdfast.token (tenant, id, name, digest, scope, reads_only, expires) VALUES (%(tenant)s, %(id)s, %(name)s,
    %(digest)s, %(scope)s, %(reads_only)s, nullif(%(expires)s, '')::timestamptz) ON CONFLICT DO NOTHING
"""
_REVOKE = """
UPDATE holdfast.token SET revoked = clock_timestamp()
WHERE tenant = %(tenant)s AND id = %(id)s AND revoked IS NULL
"""
_USED = """
UPDATE holdfast.token SET used = current_date
WHERE tenant = %(tenant)s AND id = %(id)s AND used IS DISTINCT FROM current_date
"""
_HEALTH = """
SELECT current_setting('server_version'), (SELECT max(version) FROM holdfast.migrations), session_user::text,
       current_user::text, pg_is_in_recovery(),
       coalesce((SELECT extversion FROM pg_extension WHERE extname = 'vector'), ''),
       EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector'),
       (SELECT count(*) FROM pg_stat_replication),
       coalesce(extract(epoch FROM now() - pg_last_xact_replay_timestamp()), 0)::float8
"""
_ROUNDS = 5


class PgGrants:
    """The grants of all tenants of a database; `all`, `add` and `revoke` use the tenant of the address."""

    def __init__(self, address: str) -> None:
        self._database = Database(address, _QUICK)

    def find(self, tenant: str, identifier: str) -> Grant | None:
        addresses.check_tenant(tenant)
        rows = self._database.beside(tenant).ask("The tokens", _SELECT + " AND id = %(id)s", id=identifier)
        return _grant(rows[0]) if rows else None

    def all(self) -> list[Grant]:
        return [_grant(row) for row in self._database.ask("The tokens", _SELECT + " ORDER BY created, id")]

    def add(self, grant: Grant) -> None:
        names = ("id", "name", "digest", "scope", "reads_only", "expires")
        self._database.write("The token", [(_ADD, {name: getattr(grant, name) for name in names})])
        # the row also exists if an earlier attempt was committed and its answer was lost
        if not self._database.ask("The token", _SELECT + " AND id = %(id)s", id=grant.id):
            raise AlreadyExists(f"There is a token {grant.name!r} already.", "Revoke it, or use another name.")

    def revoke(self, identifier: str) -> None:
        self._database.write("The token", [(_REVOKE, {"id": identifier})])

    def note_use(self, tenant: str, identifier: str) -> None:
        self._database.beside(tenant).write("The token", [(_USED, {"id": identifier})], durable=False)

    def check(self) -> None:
        """Raise the reason why the database cannot be used."""
        ((version,),) = self._database.ask("The store", "SELECT max(version) FROM holdfast.migrations")
        if version != schema.VERSION:
            raise schema.other(version)

    def close(self) -> None:
        self._database.close()


def _grant(row: TupleRow) -> Grant:
    known = dict(zip(Grant.__struct_fields__, row, strict=True))
    for name in _TIMES:
        known[name] = iso(round(known[name] * 1000)) if known[name] else ""
    return msgspec.convert(known | {"used": known["used"] or ""}, Grant)


class Health(msgspec.Struct, frozen=True):
    location: str
    """The address without a password."""
    server: str
    schema: int
    newest_schema: int
    """The schema that this program knows."""
    login: str
    role: str
    tenant: str
    standby: bool
    vector: str
    """The version of pgvector in this database, "" without it."""
    vector_there: bool
    """The server can add pgvector to this database."""
    standbys: int
    """Servers that replicate this one, as far as this login may see them."""
    behind_seconds: float
    """How far a standby is behind."""
    answer_ms: float
    """The time of one query, the best of a few."""


def check_health(database: Database) -> Health:
    """Return the state of a database."""
    (row,) = database.ask("the database", _HEALTH)
    server, version, login, role, standby, vector, vector_there, standbys, behind = row
    times = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        database.ask("the database", "SELECT 1")
        times.append(round((time.perf_counter() - begin) * 1000, 2))
    return Health(
        database.location, str(server), int(version), schema.VERSION, login, role, database.tenant, standby, vector,
        vector_there, standbys, float(behind) if standby else 0.0, min(times),
    )  # fmt: skip
