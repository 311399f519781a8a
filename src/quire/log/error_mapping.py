"""Maps errors of the database drivers to Quire's errors."""

from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from quire.errors import (
    InvalidEntry,
    QuireError,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)


@contextmanager
def map_database_errors() -> Generator[None]:
    try:
        yield
    except DBAPIError as error:
        raise _map_error(error.orig, broken=error.connection_invalidated) from error
    except PoolTimeout as error:
        raise StoreBusy(f"{StoreBusy.__doc__} (no connection of the pool became free)") from error
    except Exception as error:
        # Errors of the drivers from statements that bypass SQLAlchemy; all others pass unchanged.
        if type(error).__module__.partition(".")[0] not in ("sqlite3", "psycopg"):
            raise
        raise _map_error(error, broken=False) from error


_SQLITE_UNAVAILABLE_MESSAGES = ("unable to open", "disk I/O", "malformed")
_UNWRITABLE_ERRORS: dict[str, type[StoreUnavailable]] = {
    "ReadOnlySqlTransaction": StoreReadOnly,
    "attempt to write a readonly database": StoreReadOnly,
    "DiskFull": StoreFull,
    "database or disk is full": StoreFull,
}
"""Errors of a database that can be read but not written: class names of psycopg, messages of SQLite."""
_TRANSIENT_ERRORS = ("DeadlockDetected", "SerializationFailure", "LockNotAvailable", "QueryCanceled")


def _map_error(error: BaseException | None, *, broken: bool) -> QuireError:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    driver = type(error).__module__.partition(".")[0]
    if driver == "psycopg" and "DataError" in kinds:
        return InvalidEntry(f"The database cannot store this text or number: {error}.")
    for name in (*kinds, str(error)):
        if name in _UNWRITABLE_ERRORS:
            kind = _UNWRITABLE_ERRORS[name]
            return kind(f"{kind.__doc__} ({error})")
    if kinds.intersection(_TRANSIENT_ERRORS) or (driver == "sqlite3" and "locked" in str(error)):
        return StoreBusy(f"{StoreBusy.__doc__} ({error})")
    is_rejected = driver == "sqlite3" and not any(text in str(error) for text in _SQLITE_UNAVAILABLE_MESSAGES)
    if broken or (kinds & {"OperationalError", "InterfaceError"} and not is_rejected):
        return StoreUnavailable(f"{StoreUnavailable.__doc__} ({error})")
    return StoreError(f"The database rejected a statement: {error}")
