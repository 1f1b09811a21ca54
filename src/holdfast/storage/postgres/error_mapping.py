"""Map errors of the driver to Holdfast's errors, and say which of them are worth a retry."""

from __future__ import annotations

import psycopg
from psycopg import errors as pg

from holdfast.errors import Busy, Damaged, HoldfastError, Invalid, Unavailable
from holdfast.storage.tree import RootGone

CONTRADICTED = psycopg.IntegrityError
_ROLLED_BACK = (pg.SerializationFailure, pg.DeadlockDetected, pg.TransactionRollback)
_DISCONNECTED = (
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.CannotConnectNow,
    pg.IdleInTransactionSessionTimeout,
    pg.ConnectionException,
    pg.TooManyConnections,
)


def is_programming_error(error: psycopg.Error) -> bool:
    """Return whether the driver rejected the call before it reached a server."""
    return error.sqlstate is None and not isinstance(error, psycopg.OperationalError | psycopg.InternalError)


def is_read_only(error: psycopg.Error) -> bool:
    """Return whether the server accepts no writes, as a former primary after a failover does."""
    return isinstance(error, pg.ReadOnlySqlTransaction)


def is_lock_timeout(error: psycopg.Error) -> bool:
    return isinstance(error, pg.LockNotAvailable)


def is_lost(error: psycopg.Error, connection: psycopg.Connection[object]) -> bool:
    """Return whether the connection can no longer be used."""
    return isinstance(error, _DISCONNECTED) or is_read_only(error) or connection.closed


def is_transient(error: psycopg.Error, connection: psycopg.Connection[object]) -> bool:
    """Return whether the same work may succeed on a retry."""
    return isinstance(error, _ROLLED_BACK) or is_lost(error, connection)


def mapped(error: psycopg.Error, what: str, lock_seconds: float, statement_seconds: float) -> HoldfastError:
    """Return the error to raise for a failed operation on `what`."""
    match error:
        case pg.LockNotAvailable():
            return Busy(f"{what} was locked by others for {lock_seconds:g} s; nothing was written.", "Try again.")
        case pg.SerializationFailure() | pg.DeadlockDetected() | pg.TransactionRollback():
            return Busy(f"{what}: other writers interfered repeatedly; nothing was written.", "Try again.")
        case pg.QueryCanceled():
            return Unavailable(
                f"{what}: the database took longer than {statement_seconds:g} s, or an operator cancelled the query.",
                "Nothing was acknowledged; try again, and check the load of the server.",
            )
        case pg.InsufficientPrivilege():
            return Unavailable(
                f"{what}: the database does not allow this.",
                "Use a login that was granted holdfast_writer (or holdfast_reader to read).",
            )
        case pg.ReadOnlySqlTransaction():
            return Unavailable(
                f"{what}: this server takes no writes; it is a standby or was set to read only.",
                "Name all servers in the address, with target_session_attrs=read-write.",
            )
        case pg.UndefinedTable() | pg.InvalidSchemaName() | pg.UndefinedColumn():
            return RootGone(
                "The tables of the memory no longer exist, or have changed.", "Open the database again and check it."
            )
        case pg.DiskFull() | pg.OutOfMemory() | pg.InsufficientResources():
            return Unavailable(
                f"{what} was not saved: the database has no space left.", "Free some space and try again."
            )
        case pg.DataCorrupted() | pg.IndexCorrupted():
            return Damaged(f"{what}: the database reports that its files are damaged.", "Restore it from a backup.")
        case pg.ProgramLimitExceeded():
            return Invalid(f"{what[:80]}… is too long for a database.", "Shorten it.")
    if error.sqlstate is None or isinstance(error, _DISCONNECTED):
        return RootGone(f"{what}: the connection to the database was lost.", "Nothing was acknowledged; try again.")
    return Unavailable(
        f"{what}: the database refused ({error.sqlstate}): {error.diag.message_primary or 'no reason given'}.",
        "Nothing was acknowledged; see the server's log.",
    )


def uncertain(what: str) -> Unavailable:
    """Return the error for a write whose commit may or may not have happened."""
    return Unavailable(
        f"{what} may or may not be saved: the connection was lost at that moment.",
        "Check whether it is there before you try again.",
    )


def unconfirmed(what: str) -> Unavailable:
    """Return the error for a write that is committed locally but on no synchronous standby."""
    return Unavailable(
        f"{what} is saved on the server, but no standby has confirmed it.",
        "Check the standbys, and whether it is there, before you try again.",
    )
