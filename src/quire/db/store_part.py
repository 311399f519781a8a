"""Base of the store and of its parts: methods that run one function in one transaction of one tenant.

An operation is a function `(connection, tenant, …)`. A part of the store binds it with one line, which also says how it
runs: `list_origins = read(conversations.list_origins)`.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from sqlalchemy import Connection, Executable

from quire.db.database import (
    BULK_STATEMENT_SECONDS,
    REQUEST_STATEMENT_SECONDS,
    Database,
    TransactionOptions,
    Work,
)
from quire.db.stored_bytes import UncountedBytes, recount_bytes, run_counted
from quire.db.tenant_keys import TenantKeys
from quire.errors import IntegrityViolation, StoreError

P = ParamSpec("P")
T = TypeVar("T")
StoreFunction = Callable[Concatenate[Connection, str, P], T]

MASKER_KEY = "quire masker"
"""Key in `Connection.info` of the masker of the transaction's tenant."""


class EntriesOffloaded(Exception):
    """The entries of a conversation are in object storage. The store restores them and repeats the transaction."""

    def __init__(self, conversation: str) -> None:
        super().__init__(conversation)
        self.conversation = conversation


MAX_RESTORES = 200
"""Conversations that one transaction may need from object storage."""


class TenantDatabase:
    """A database as one tenant uses it. All parts of a store share it."""

    restore: Callable[[str], Awaitable[None]]
    """Brings the entries of a conversation back from object storage. The store sets it."""

    def __init__(
        self,
        database: Database,
        tenant: str,
        *,
        max_stored_bytes: int | None = None,
        masker: object | None = None,
        keys: TenantKeys | None = None,
    ) -> None:
        """`masker` is in `Connection.info` during a write: see `quire.log.tenant_masker`."""
        if not tenant:
            raise StoreError("The tenant of a store must not be empty; give it a name.")
        self.database, self.tenant, self.max_stored_bytes, self._masker = database, tenant, max_stored_bytes, masker
        self.keys = keys or TenantKeys()

    async def read(self, work: Work[T], options: TransactionOptions) -> T:
        """Runs a read with the tenant's cipher, if it is encrypted."""
        try:
            return await self.keys.run(self.database.read, self.database, work, options, writes=False)
        except EntriesOffloaded as needed:
            return await self._restore_and_run(needed.conversation, self.database.read, work, options, writes=False)

    async def fetch(self, statement: Executable, params: Mapping[str, Any]) -> list[Any]:
        """The rows of a short query by itself."""
        options = TransactionOptions(self.tenant, inline=True)
        return await self.read(lambda connection: list(connection.execute(statement, params)), options)

    async def write(self, work: Work[T], options: TransactionOptions) -> T:
        """Runs a write. Under the quota of stored bytes, if there is one."""
        quota, tenant, masker = self.max_stored_bytes, self.tenant, self._masker
        if masker is not None:
            work = partial(_run_masked, masker, work)
        if quota is None:
            return await self._write(work, options)

        def counted(connection: Connection) -> T:
            return run_counted(connection, tenant, quota, work)

        try:
            return await self._write(counted, options)
        except UncountedBytes:
            bulk = TransactionOptions(tenant, statement_seconds=BULK_STATEMENT_SECONDS)
            await self._write(lambda connection: recount_bytes(connection, tenant, start=True), bulk)
            return await self._write(counted, options)

    async def _write(self, work: Work[T], options: TransactionOptions) -> T:
        try:
            return await self.keys.run(self.database.write, self.database, work, options, writes=True)
        except EntriesOffloaded as needed:
            return await self._restore_and_run(needed.conversation, self.database.write, work, options, writes=True)

    async def _restore_and_run(
        self,
        conversation: str,
        run: Callable[[Work[T], TransactionOptions], Any],
        work: Work[T],
        options: TransactionOptions,
        *,
        writes: bool,
    ) -> T:
        for _ in range(MAX_RESTORES):
            await self.restore(conversation)
            try:
                return await self.keys.run(run, self.database, work, options, writes=writes)
            except EntriesOffloaded as needed:
                conversation = needed.conversation
        raise IntegrityViolation(f"The entries of {conversation!r} are neither in the database nor in object storage.")


def _run_masked(masker: object, work: Work[T], connection: Connection) -> T:
    connection.info[MASKER_KEY] = masker
    try:
        return work(connection)
    finally:
        connection.info.pop(MASKER_KEY, None)


class StorePart:
    """A part of a store."""

    def __init__(self, base: TenantDatabase) -> None:
        self.base = base

    async def run(
        self, transaction: "Transaction", function: StoreFunction[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Runs a function in a transaction of the tenant."""
        base = self.base
        options = TransactionOptions(
            base.tenant, inline=transaction.inline, statement_seconds=transaction.statement_seconds
        )
        run = base.write if transaction.writes else base.read
        return await run(lambda connection: function(connection, base.tenant, *args, **kwargs), options)

    async def run_on_conversation(
        self,
        function: Callable[Concatenate[Connection, str, str, P], T],
        conversation: str,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Runs a write that locks rows of this conversation."""
        base = self.base
        return await base.write(
            lambda connection: function(connection, base.tenant, conversation, *args, **kwargs),
            TransactionOptions(base.tenant, conversation=conversation),
        )


Method = Callable[Concatenate[StorePart, P], Coroutine[Any, Any, T]]


class Transaction(NamedTuple):
    """How an operation runs. Called with the operation, it makes the method of a store."""

    writes: bool = False
    inline: bool = False
    statement_seconds: float = REQUEST_STATEMENT_SECONDS

    def __call__(self, function: StoreFunction[P, T]) -> Method[P, T]:
        @wraps(function)
        async def method(part: StorePart, *args: P.args, **kwargs: P.kwargs) -> T:
            return await part.run(self, function, *args, **kwargs)

        return method


read = Transaction()
read_inline = Transaction(inline=True)
"""A read that usually returns few rows, so it may run on the event loop."""
read_bulk = Transaction(statement_seconds=BULK_STATEMENT_SECONDS)
"""A read whose statements may take minutes."""
write = Transaction(writes=True)
write_bulk = Transaction(writes=True, statement_seconds=BULK_STATEMENT_SECONDS)
"""A write whose statements may take minutes."""


def write_conversation(
    function: Callable[Concatenate[Connection, str, str, P], T],
) -> Callable[Concatenate[StorePart, str, P], Coroutine[Any, Any, T]]:
    """A write that locks rows of the conversation in its first argument."""

    @wraps(function)
    async def method(part: StorePart, conversation: str, *args: P.args, **kwargs: P.kwargs) -> T:
        return await part.run_on_conversation(function, conversation, *args, **kwargs)

    return method
