"""Stored bytes of tenants with a quota: their entries, blobs and exchanges.

A write transaction adds up what it stores, and adds the sum to the tenant's row as its last statement. The row stays
locked until the commit, so that the quota holds for all servers together. Without a quota nothing is counted, and no
statement is added to a transaction. A purge counts again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import BLOB, Column, Connection, bindparam, func, select, update
from sqlalchemy import cast as sql_cast

from quire.db.column_types import is_encrypting, measure_plaintext
from quire.db.dialects import insert_or_ignore
from quire.db.schema import archives, blobs, entries, exchanges, stored_bytes
from quire.errors import StorageQuotaReached, StoreError

T = TypeVar("T")

_COUNT_KEY = "quire stored bytes"
"""Key in `Connection.info` of the `ByteCount` of the transaction."""


@dataclass(slots=True)
class ByteCount:
    """Bytes that a transaction stores."""

    added: int = 0
    is_enforced: bool = True


class UncountedBytes(StoreError):
    """The stored bytes of the tenant are not counted yet."""


def count_text(connection: Connection, *texts: str | None) -> None:
    """Counts texts that the transaction stores, if the tenant has a quota."""
    count: ByteCount | None = connection.info.get(_COUNT_KEY)
    if count is not None:
        count.added += sum(len(text) if text.isascii() else len(text.encode()) for text in texts if text is not None)


def count_bytes(connection: Connection, size: int) -> None:
    """Like `count_text`, for bytes."""
    count: ByteCount | None = connection.info.get(_COUNT_KEY)
    if count is not None:
        count.added += size


def is_counting(connection: Connection) -> bool:
    return _COUNT_KEY in connection.info


def allow_past_quota(connection: Connection) -> None:
    """Lets the transaction store more than the quota: what was paid for is stored."""
    if is_counting(connection):
        connection.info[_COUNT_KEY].is_enforced = False


_ADD = (
    update(stored_bytes)
    .where(stored_bytes.c.tenant == bindparam("of_tenant"))
    .values(bytes=stored_bytes.c.bytes + bindparam("added"))
    .returning(stored_bytes.c.bytes)
)


def run_counted(connection: Connection, tenant: str, quota: int, work: Callable[[Connection], T]) -> T:
    """Runs a write, and adds what it stores to the tenant's bytes.

    Raises `StorageQuotaReached`, and `UncountedBytes` before the first `recount_bytes`.
    """
    count = connection.info[_COUNT_KEY] = ByteCount()
    try:
        result = work(connection)
    finally:
        connection.info.pop(_COUNT_KEY, None)
    if count.added:
        total = connection.execute(_ADD, {"of_tenant": tenant, "added": count.added}).scalar()
        if total is None:
            raise UncountedBytes
        if total > quota and count.is_enforced:
            raise StorageQuotaReached(stored=total - count.added, added=count.added, quota=quota)
    return result


def recount_bytes(connection: Connection, tenant: str, *, start: bool = False) -> None:
    """Counts the stored bytes of the tenant from its rows: with `start` for the first time, else if they are counted.

    What other transactions store meanwhile they add after this one: they wait for the row.
    """
    if start:
        connection.execute(insert_or_ignore(connection, stored_bytes), {"tenant": tenant, "bytes": 0})
    own_row = select(stored_bytes.c.bytes).where(stored_bytes.c.tenant == tenant)
    if connection.execute(own_row.with_for_update()).first() is None:
        return
    is_postgres, total = connection.dialect.name == "postgresql", 0
    columns: tuple[Column[Any], ...] = (
        entries.c.body, entries.c.notes, blobs.c.data, exchanges.c.request, exchanges.c.response,
    )  # fmt: skip
    for column in columns:
        # On PostgreSQL the length is read without the content.
        size = func.octet_length(column) if is_postgres else func.length(sql_cast(column, BLOB))
        if is_encrypting():
            size = measure_plaintext(column, size)
        query = select(func.sum(size)).where(column.table.c.tenant == tenant)
        total += int(connection.execute(query).scalar() or 0)
    for column in (blobs.c.size, archives.c.bytes):
        in_storage = (column.table.c.tenant == tenant, column.table.c.object.is_not(None))
        total += int(connection.execute(select(func.sum(column)).where(*in_storage)).scalar() or 0)
    connection.execute(update(stored_bytes).where(stored_bytes.c.tenant == tenant).values(bytes=total))
