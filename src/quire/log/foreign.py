"""The databases' errors as Quire's, in this one place."""

from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from quire.errors import InvalidEntry, QuireError, StoreBusy, StoreError, StoreUnavailable


@contextmanager
def mapped_errors() -> Generator[None]:
    try:
        yield
    except DBAPIError as error:
        raise _mapped(error.orig, broken=error.connection_invalidated) from error
    except Exception as error:
        # The drivers' own, from what does not pass through SQLAlchemy; anything else is not ours to map.
        if type(error).__module__.partition(".")[0] not in ("sqlite3", "psycopg"):
            raise
        raise _mapped(error, broken=False) from error


_SQLITE_GONE = ("unable to open", "disk I/O", "readonly", "malformed")
_TRANSIENT = ("DeadlockDetected", "SerializationFailure", "LockNotAvailable", "QueryCanceled")


def _mapped(error: BaseException | None, *, broken: bool) -> QuireError:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    driver = type(error).__module__.partition(".")[0]
    if driver == "psycopg" and "DataError" in kinds:
        return InvalidEntry(f"The database cannot keep such a text or number: {error}.")
    if kinds.intersection(_TRANSIENT) or (driver == "sqlite3" and "locked" in str(error)):
        return StoreBusy(f"{StoreBusy.__doc__} ({error})")
    refused = driver == "sqlite3" and not any(sign in str(error) for sign in _SQLITE_GONE)
    if broken or (kinds & {"OperationalError", "InterfaceError"} and not refused):
        return StoreUnavailable(f"{StoreUnavailable.__doc__} ({error})")
    return StoreError(f"The database refused a statement: {error}")
