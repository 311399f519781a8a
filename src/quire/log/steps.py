"""How a method of the store becomes one function on a connection, run in one transaction for one tenant."""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from quire.errors import StoreError
from quire.log import branches, migrate
from quire.log.database import Connections, Database, WatchedDatabase, Watcher
from quire.log.records import Branch

P = ParamSpec("P")
T = TypeVar("T")
Step = Callable[Concatenate[Connection, str, P], T]

DEFAULT_TENANT = "default"


class SqlSteps:
    def __init__(self, database: Database, *, tenant: str = DEFAULT_TENANT) -> None:
        if not tenant:
            raise StoreError("A store speaks for one tenant, and the tenant must have a name.")
        self._database, self.tenant = database, tenant

    async def check(self) -> None:
        """Raises a `StoreError` unless the database can be reached and has the schema of this version."""
        await self._database.read(migrate.check, tenant=self.tenant)

    def watch(self, watcher: Watcher) -> None:
        """Tells `watcher` of every transaction from now on: of this store's, and of those that are made from it."""
        self._database = WatchedDatabase(self._database, watcher)

    def connections(self) -> Connections:
        return self._database.connections()

    async def _read(self, step: Step[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        tenant = self.tenant
        return await self._database.read(lambda connection: step(connection, tenant, *args, **kwargs), tenant=tenant)

    async def _read_briefly(self, step: Step[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A read of few rows, most of the time."""
        tenant = self.tenant
        return await self._database.read(
            lambda connection: step(connection, tenant, *args, **kwargs), tenant=tenant, brief=True
        )

    async def _write(self, step: Step[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        tenant = self.tenant
        return await self._database.write(lambda connection: step(connection, tenant, *args, **kwargs), tenant=tenant)


def on_branch(
    step: Callable[Concatenate[Connection, str, Branch, P], T],
) -> Callable[Concatenate[Connection, str, str, int, P], T]:
    """The same step for a branch that is named: its row is read first, in the same transaction."""

    def named(
        connection: Connection, tenant: str, conversation: str, branch: int, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        place = branches.get_branch(connection, tenant, conversation, branch)
        return step(connection, tenant, place, *args, **kwargs)

    return named
