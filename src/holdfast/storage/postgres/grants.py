"""Grants in a database: one table, in which each tenant sees its own rows.

A token is looked up as the tenant that it names. An unknown tenant and an unknown token look the same: no row.
"""

from __future__ import annotations

from typing import LiteralString

import msgspec
from psycopg.rows import TupleRow

from holdfast.errors import AlreadyExists, Unavailable
from holdfast.model.grants import Grant
from holdfast.model.times import iso
from holdfast.storage.postgres import addresses, migrations
from holdfast.storage.postgres.connections import Waits
from holdfast.storage.postgres.database import Database, Transaction

_QUICK = Waits(lock_seconds=2.0, statement_seconds=3.0, again_seconds=2.0, connections=2)
"""Every request waits for this first, and so does the check whether the server is ready."""
_SELECT: LiteralString = (
    "SELECT id, name, digest, tenant, scope, reads_only, extract(epoch FROM created)::float8,"
    " extract(epoch FROM expires)::float8, extract(epoch FROM revoked)::float8, used::text"
    " FROM holdfast.tokens WHERE tenant = %(tenant)s"
)
"""The columns, in the order of the fields of Grant."""
_TIMES = ("created", "expires", "revoked")


class PgGrants:
    """The grants of all tenants of a database; `all`, `add` and `revoke` use the tenant of the address."""

    def __init__(self, address: str) -> None:
        self._database = Database(address, _QUICK)

    def find(self, tenant: str, identifier: str) -> Grant | None:
        addresses.check_tenant(tenant)

        def work(turn: Transaction) -> Grant | None:
            row = turn.row(_SELECT + " AND id = %(id)s", id=identifier)
            return _grant(row) if row else None

        return self._database.beside(tenant).run("The tokens", work)

    def all(self) -> list[Grant]:
        def work(turn: Transaction) -> list[Grant]:
            return [_grant(row) for row in turn.rows(_SELECT + " ORDER BY created, id")]

        return self._database.run("The tokens", work)

    def add(self, grant: Grant) -> None:
        def work(turn: Transaction) -> bool:
            turn.change(
                "INSERT INTO holdfast.tokens (tenant, id, name, digest, scope, reads_only, expires) VALUES (%(tenant)s,"
                " %(id)s, %(name)s, %(digest)s, %(scope)s, %(reads_only)s, nullif(%(expires)s, '')::timestamptz)"
                " ON CONFLICT DO NOTHING",
                **{name: getattr(grant, name) for name in ("id", "name", "digest", "scope", "reads_only", "expires")},
            )
            # the row also exists if an earlier attempt was committed and its answer was lost
            return turn.row(_SELECT + " AND id = %(id)s", id=grant.id) is not None

        if not self._database.run("The token", work, writes=True):
            raise AlreadyExists(f"There is a token {grant.name!r} already.", "Revoke it, or use another name.")

    def revoke(self, identifier: str) -> None:
        self._database.run(
            "The token",
            lambda turn: turn.change(
                "UPDATE holdfast.tokens SET revoked = clock_timestamp()"
                " WHERE tenant = %(tenant)s AND id = %(id)s AND revoked IS NULL",
                id=identifier,
            ),
            writes=True,
        )

    def note_use(self, tenant: str, identifier: str) -> None:
        self._database.beside(tenant).run(
            "The token",
            lambda turn: turn.change(
                "UPDATE holdfast.tokens SET used = current_date WHERE tenant = %(tenant)s AND id = %(id)s"
                " AND used IS DISTINCT FROM current_date",
                id=identifier,
            ),
            writes=True,
            durable=False,
        )

    def check(self) -> None:
        row = self._database.run("The store", lambda turn: turn.row("SELECT max(version) FROM holdfast.migrations"))
        version, known = row[0] if row else 0, len(migrations.MIGRATIONS)
        if version != known:
            raise Unavailable(f"The database has schema {version}, this program knows {known}.", "Upgrade Holdfast.")

    def close(self) -> None:
        self._database.close()


def _grant(row: TupleRow) -> Grant:
    known = dict(zip(Grant.__struct_fields__, row, strict=True))
    for name in _TIMES:
        known[name] = iso(round(known[name] * 1000)) if known[name] else ""
    return msgspec.convert(known | {"used": known["used"] or ""}, Grant)
