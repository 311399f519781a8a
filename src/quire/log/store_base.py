"""Base of the SQL stores: runs one function on a connection, in one transaction, for one tenant."""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from quire.errors import StoreError
from quire.log import conversations, migrate
from quire.log.database import (
    BULK_STATEMENT_SECONDS,
    Database,
    ObservedDatabase,
    PoolStats,
    TransactionObserver,
    TransactionOptions,
    Work,
)
from quire.log.notifications import Notifications
from quire.log.types import Branch

P = ParamSpec("P")
T = TypeVar("T")
StoreFunction = Callable[Concatenate[Connection, str, P], T]

DEFAULT_TENANT = "default"


class SqlStoreBase:
    def __init__(self, database: Database, *, tenant: str = DEFAULT_TENANT) -> None:
        if not tenant:
            raise StoreError("The tenant of a store must not be empty; give it a name.")
        self._database, self.tenant = database, tenant

    @property
    def notifications(self) -> Notifications:
        """Notifications between the processes that use the database, of all tenants."""
        return self._database.notifications

    async def check(self, *, max_age_seconds: float = 0.0) -> None:
        """Health check: raises a `StoreError` unless the database has the current schema and accepts writes.

        The result of the write test may be as old as `max_age_seconds`.
        """
        await self._database.check_writable(max_age_seconds=max_age_seconds)
        await self._database.read(migrate.check_version, TransactionOptions(self.tenant))

    async def check_known_outage(self) -> None:
        """Raises `StoreUnavailable` if the database is known to be unavailable: see `Database.check_known_outage`."""
        await self._database.check_known_outage()

    def on_connection_loss(self, callback: Callable[[], None]) -> None:
        """Calls back when a connection to the database broke, so that caches of its state can be cleared."""
        self._database.on_connection_loss(callback)

    def observe_transactions(self, observer: TransactionObserver) -> None:
        """Reports every future transaction of this store, and of stores derived from it, to `observer`."""
        self._database = ObservedDatabase(self._database, observer)

    def get_pool_stats(self) -> PoolStats:
        return self._database.get_pool_stats()

    async def _read(self, function: StoreFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        work = self._bind(function, *args, **kwargs)
        return await self._database.read(work, TransactionOptions(self.tenant))

    async def _read_inline(self, function: StoreFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A read that usually returns few rows, so it may run on the event loop."""
        work = self._bind(function, *args, **kwargs)
        return await self._database.read(work, TransactionOptions(self.tenant, inline=True))

    async def _read_bulk(self, function: StoreFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A read whose statements may take minutes."""
        work = self._bind(function, *args, **kwargs)
        options = TransactionOptions(self.tenant, statement_seconds=BULK_STATEMENT_SECONDS)
        return await self._database.read(work, options)

    async def _write(self, function: StoreFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        work = self._bind(function, *args, **kwargs)
        return await self._database.write(work, TransactionOptions(self.tenant))

    async def _write_conversation(
        self,
        function: Callable[Concatenate[Connection, str, str, P], T],
        conversation: str,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """A write that locks rows of this conversation."""
        work = self._bind(function, conversation, *args, **kwargs)
        return await self._database.write(work, TransactionOptions(self.tenant, conversation=conversation))

    async def _write_bulk(self, function: StoreFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A write whose statements may take minutes."""
        work = self._bind(function, *args, **kwargs)
        options = TransactionOptions(self.tenant, statement_seconds=BULK_STATEMENT_SECONDS)
        return await self._database.write(work, options)

    def _bind(self, function: StoreFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> Work[T]:
        """The function of a connection alone, for this store's tenant."""
        tenant = self.tenant
        return lambda connection: function(connection, tenant, *args, **kwargs)


def with_branch(
    function: Callable[Concatenate[Connection, str, Branch, P], T],
) -> Callable[Concatenate[Connection, str, str, int, P], T]:
    """Turns a function of a `Branch` into one of its conversation and number, read in the same transaction."""

    def with_number(
        connection: Connection, tenant: str, conversation: str, branch: int, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        row = conversations.get_branch(connection, tenant, conversation, branch)
        return function(connection, tenant, row, *args, **kwargs)

    return with_number
