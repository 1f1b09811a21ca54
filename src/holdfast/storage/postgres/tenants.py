"""A tenant for a while: one that nobody else has, with settings of its own, and of which nothing is left."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator

from psycopg import errors as pg
from psycopg import sql

from holdfast.model.settings import FILE
from holdfast.storage.postgres import addresses
from holdfast.storage.postgres.transactions import Database, Turn
from holdfast.storage.postgres.vault import PgVault
from holdfast.storage.tree import ABSENT

_TABLES = (
    "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant'"
    " WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind = 'p'"
)


@contextlib.contextmanager
def passing(address: str, settings: str) -> Iterator[str]:
    """Give the address of a new tenant of a database, and remove the tenant afterwards."""
    mine = addresses.for_tenant(address, f"passing-{secrets.token_hex(8)}")
    database = Database(mine)
    try:
        PgVault(database).write(FILE, settings.encode(), expect=ABSENT)
        yield mine
    finally:
        try:
            database.run("The tenant", remove, writes=True)
        finally:
            database.close()


def remove(turn: Turn) -> None:
    """Remove every row of the tenant that this login may remove."""
    tables = turn.rows(_TABLES)
    for (table,) in tables * 2:  # that files go is noted as well, in a table that may have been emptied before
        with contextlib.suppress(pg.InsufficientPrivilege), turn.session.transaction():
            turn.session.execute(
                sql.SQL("DELETE FROM holdfast.{} WHERE tenant = current_setting('holdfast.tenant')").format(
                    sql.Identifier(table)
                )
            )
