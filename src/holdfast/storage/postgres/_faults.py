"""What the database said, in our own words, and whether trying again may help. Errors are known by their class."""

from __future__ import annotations

import psycopg
from psycopg import errors as pg

from holdfast.errors import Busy, Damaged, HoldfastError, Invalid, Unavailable
from holdfast.storage.tree import RootGone

_UNDONE = (pg.SerializationFailure, pg.DeadlockDetected, pg.TransactionRollback)
_WENT_AWAY = (
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.CannotConnectNow,
    pg.IdleInTransactionSessionTimeout,
    pg.ConnectionException,
    pg.TooManyConnections,
)
_GONE = (pg.UndefinedTable, pg.InvalidSchemaName, pg.UndefinedColumn)
_FULL = (pg.DiskFull, pg.OutOfMemory, pg.InsufficientResources)
CONTRADICTED = psycopg.IntegrityError
"""Rows that are there say otherwise."""
_DAMAGED = (pg.DataCorrupted, pg.IndexCorrupted)


def not_that_way(error: psycopg.Error) -> bool:
    """Is what we know by name not for us, or not there? A pooler may not know what was prepared through it."""
    return isinstance(
        error,
        pg.InsufficientPrivilege | pg.UndefinedFunction | pg.InvalidSqlStatementName | pg.DuplicatePreparedStatement,
    )


def ours(error: psycopg.Error) -> bool:
    """Is this a mistake of this program, which no server has seen?"""
    return error.sqlstate is None and not isinstance(error, psycopg.OperationalError | psycopg.InternalError)


def read_only(error: psycopg.Error) -> bool:
    """Is this a server that takes no writes, such as the one that was the first before a failover?"""
    return isinstance(error, pg.ReadOnlySqlTransaction)


def held(error: psycopg.Error) -> bool:
    """Do others hold what was asked for?"""
    return isinstance(error, pg.LockNotAvailable)


def lost(error: psycopg.Error, connection: psycopg.Connection[object]) -> bool:
    """Is the connection of no use any more?"""
    return isinstance(error, _WENT_AWAY) or read_only(error) or connection.closed


def passing(error: psycopg.Error, connection: psycopg.Connection[object]) -> bool:
    """May the same work succeed when it is done again?"""
    return isinstance(error, _UNDONE) or lost(error, connection)


def told(error: psycopg.Error, what: str, lock_seconds: float, statement_seconds: float) -> HoldfastError:
    """Say what became of `what`, and what to do next."""
    if held(error):
        return Busy(f"{what} was locked by others for {lock_seconds:g} s; nothing was written.", "Try again.")
    if isinstance(error, _UNDONE):
        return Busy(f"{what}: other writers got in the way again and again; nothing was written.", "Try again.")
    if isinstance(error, pg.QueryCanceled):
        return Unavailable(
            f"{what}: the database took longer than {statement_seconds:g} s, or an operator stopped the work.",
            "Nothing was acknowledged; try again, and look at the load of the server.",
        )
    if isinstance(error, pg.InsufficientPrivilege):
        return Unavailable(
            f"{what}: the database does not allow this.",
            "Use a login that was granted holdfast_writer (or holdfast_reader to read).",
        )
    if read_only(error):
        return Unavailable(
            f"{what}: this server takes no writes; it is a standby or was set to read only.",
            "Name all servers in the address, with target_session_attrs=read-write.",
        )
    if isinstance(error, _GONE):
        return RootGone(
            "The tables of the memory are not there any more, or are others.", "Open the database again, then look."
        )
    if isinstance(error, _FULL):
        return Unavailable(f"{what} was not saved: the database has no space left.", "Free some space and try again.")
    if isinstance(error, _DAMAGED):
        return Damaged(f"{what}: the database says that its files are damaged.", "Restore it from a backup.")
    if isinstance(error, pg.ProgramLimitExceeded):
        return Invalid(f"{what[:80]}… is too long for a database.", "Shorten it.")
    if error.sqlstate is None or isinstance(error, _WENT_AWAY):
        return RootGone(f"{what}: the connection to the database was lost.", "Nothing was acknowledged; try again.")
    return Unavailable(
        f"{what}: the database refused ({error.sqlstate}): {error.diag.message_primary or 'no reason given'}.",
        "Nothing was acknowledged; look into the log of the server.",
    )


def unsure(what: str) -> Unavailable:
    return Unavailable(
        f"{what} may or may not be saved: the connection was lost at that moment.",
        "Look whether it is there before you try again.",
    )
