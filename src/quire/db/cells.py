"""Cells: the tenants of one installation, spread over several PostgreSQL clusters.

Each tenant lives in one cell, with everything it has. The directory, a table of the home cell, has the cell and the
epoch of each tenant that was moved; all others live in the home cell, at epoch 0. Each process caches what it has read
of the directory, without an expiry: every transaction sends the cell the epoch that the process knows, in the message
that sets the tenant, and a cell refuses an epoch that is not the tenant's. The process then looks again.

A cell that cannot be reached takes down its own tenants only. Where it is the home cell, tenants that are not in the
cache are searched for in the other cells, whose rows say which tenants they have.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from cachetools import LRUCache
from sqlalchemy import URL, bindparam, select
from sqlalchemy.sql import ClauseElement

from quire.db import migrate
from quire.db.database import Database, LossCallback, PoolStats, T, TransactionOptions, Work
from quire.db.database_url import parse_database_url
from quire.db.notifications import NotificationListener, Notifications
from quire.db.postgres import PostgresDatabase
from quire.db.schema import cell_tenants, tenant_cells
from quire.errors import InvalidConfiguration, StaleCell, StoreBusy, StoreUnavailable, TenantMoving
from quire.model.people import split_space
from quire.settings.schema import HOME_CELL, Cell

FREEZE_WAIT_SECONDS = 3.0
"""Maximum wait of a write for the end of a move; longer than a move of a usual tenant freezes it."""
_FREEZE_POLL_SECONDS = 0.05
_MAX_CACHED_TEAMS = 100_000
"""Tenants whose cell is cached. One takes about 200 bytes."""
_MAX_ATTEMPTS = 5
"""Maximum cells that one transaction tries: a tenant moves once in hours, not several times in a second."""

_LOCATION = select(tenant_cells.c.cell, tenant_cells.c.epoch).where(tenant_cells.c.team == bindparam("team"))
_IN_CELL = select(cell_tenants.c.epoch, cell_tenants.c.state, cell_tenants.c.moved_to).where(
    cell_tenants.c.team == bindparam("team")
)


class CellLocation(NamedTuple):
    """The cell of a tenant, and how often the tenant was moved."""

    cell: str
    epoch: int


_UNMOVED = CellLocation(HOME_CELL, 0)


class CellNotifications(Notifications):
    """Notifications through all cells. Every process listens to every cell, so one that works is enough to send."""

    def __init__(self, cells: Sequence[Notifications]) -> None:
        super().__init__()
        self._cells = cells

    @property
    def has_transport(self) -> bool:
        return True

    @property
    def is_listening(self) -> bool:
        return all(each.is_listening for each in self._cells)

    def subscribe(self, listener: NotificationListener) -> Callable[[], None]:
        ends = [each.subscribe(listener) for each in self._cells]

        def unsubscribe() -> None:
            for end in ends:
                end()

        return unsubscribe

    def publish(self, kind: str, topic: str, detail: str = "", *, replaces: bool = False) -> None:
        working = next((each for each in self._cells if each.is_listening), self._cells[0])
        working.publish(kind, topic, detail, replaces=replaces)


class CellDatabase:
    """Several databases that look like one: each transaction runs in the cell of its tenant."""

    def __init__(self, open_cell: Callable[[str, Callable[[str, bool], str]], PostgresDatabase], names: Sequence[str]):
        """`open_cell` makes the database of a cell, which sends what a function of tenant and `writes` returns."""
        self._databases = {name: open_cell(name, self._build_entrance) for name in names}
        self._home = self._databases[HOME_CELL]
        self._locations: LRUCache[str, CellLocation] = LRUCache(_MAX_CACHED_TEAMS)
        self.notifications: Notifications = CellNotifications([each.notifications for each in self._databases.values()])

    @classmethod
    async def open(
        cls, url: URL, cells: Mapping[str, Cell], *, listen_url: URL | None = None, encrypts: bool = False
    ) -> "CellDatabase":
        """Opens the home cell at `url`, and the others. Fails only if none of them can be reached."""

        def open_cell(name: str, build_entrance: Callable[[str, bool], str]) -> PostgresDatabase:
            if name == HOME_CELL:
                at, listen_at = url, listen_url
            else:
                cell = cells[name]
                at = parse_database_url(cell.database_url)
                listen_at = parse_database_url(cell.listen_database_url) if cell.listen_database_url else None
            if at.get_backend_name() != "postgresql":
                raise InvalidConfiguration("Cells need PostgreSQL; set `database_url` to postgresql://… in each.")
            return PostgresDatabase.create(at, listen_url=listen_at, encrypts=encrypts, build_entrance=build_entrance)

        database = cls(open_cell, (HOME_CELL, *cells))
        try:
            await database.check_writable(max_age_seconds=0.0)
            for name in database.cells:
                if name not in database.list_lost_cells():
                    await database.read(migrate.check_version, TransactionOptions("", cell=name))
        except BaseException:
            await database.close()
            raise
        return database

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(self._databases)

    async def find_cell(self, tenant: str) -> str:
        return (await self._locate(split_space(tenant)[0])).cell

    async def read(self, work: Work[T], options: TransactionOptions) -> T:
        if options.cell is not None or not options.tenant:
            return await self._databases[options.cell or HOME_CELL].read(work, options._replace(tenant=""))
        return await self._run_in_cell(options.tenant, lambda database: database.read(work, options))

    async def fetch(self, statement: ClauseElement, params: Mapping[str, Any], tenant: str) -> list[Any]:
        return await self._run_in_cell(tenant, lambda database: database.fetch(statement, params, tenant))

    async def write(self, work: Work[T], options: TransactionOptions) -> T:
        if options.cell is not None or not options.tenant:
            return await self._databases[options.cell or HOME_CELL].write(work, options._replace(tenant=""))
        return await self._run_in_cell(options.tenant, lambda database: database.write(work, options))

    async def write_unread(self, work: Work[T], options: TransactionOptions) -> T:
        return await self._run_in_cell(options.tenant, lambda database: database.write_unread(work, options))

    async def _run_in_cell(self, tenant: str, run: Callable[[Database], Awaitable[T]]) -> T:
        """Runs a transaction in the tenant's cell. Again if the tenant has moved, or after it was moved.

        Both errors come before the first statement of the transaction's work, which thus runs once.
        """
        team, loop = split_space(tenant)[0], asyncio.get_running_loop()
        deadline, attempts = loop.time() + FREEZE_WAIT_SECONDS, 0
        while True:
            location = await self._locate(team)
            try:
                return await run(self._get_database(location.cell))
            except StaleCell:
                attempts += 1
                if attempts == _MAX_ATTEMPTS:
                    raise StoreBusy(f"The cell of the tenant {team!r} changes again and again; retry.") from None
                await self._update_location(team, location)
            except TenantMoving:
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(_FREEZE_POLL_SECONDS)

    async def _locate(self, team: str) -> CellLocation:
        location = self._locations.get(team)
        if location is not None:
            return location
        try:
            rows = await self._home.fetch(_LOCATION, {"team": team}, "")
            location = CellLocation(*rows[0]) if rows else _UNMOVED
        except StoreUnavailable:
            location = await self._search_cells(team)
            if location is None:
                raise
        self._locations[team] = location
        return location

    async def _search_cells(self, team: str) -> CellLocation | None:
        """The cell that says it has the tenant, while the directory cannot be read."""
        for name, database in self._databases.items():
            if database is not self._home:
                with suppress(StoreUnavailable):
                    for epoch, state, _ in await database.fetch(_IN_CELL, {"team": team}, ""):
                        if state in ("live", "frozen"):
                            return CellLocation(name, epoch)
        return None

    async def _update_location(self, team: str, refused: CellLocation) -> None:
        """Looks up a tenant that a cell has refused. A move ends with a row of the cell that it left, and the directory
        follows, so the cell may know better."""
        if self._locations.get(team) == refused:
            del self._locations[team]
        if await self._locate(team) != refused:
            return
        for epoch, state, moved_to in await self._get_database(refused.cell).fetch(_IN_CELL, {"team": team}, ""):
            if state == "moved" and moved_to is not None:
                self._locations[team] = CellLocation(moved_to, epoch)

    def _get_database(self, cell: str) -> PostgresDatabase:
        database = self._databases.get(cell)
        if database is None:
            raise InvalidConfiguration(
                f"The tenant lives in the cell {cell!r}, which this process does not know; name it under `cells` in "
                "the settings, as on the other servers."
            )
        return database

    def _build_entrance(self, tenant: str, writes: bool) -> str:  # noqa: FBT001 (called with both positions)
        """The statement after the settings of a transaction: it checks the tenant's epoch."""
        if not tenant:
            return ""
        from psycopg.sql import Literal

        team = split_space(tenant)[0]
        epoch = self._locations.get(team, _UNMOVED).epoch
        return f"SELECT quire_enter_cell({Literal(team).as_string()}, {epoch}, {writes})"

    async def check_writable(self, *, max_age_seconds: float) -> None:
        """Raises `StoreUnavailable` if no cell accepts writes. `list_lost_cells` then has those that do not."""
        checks = [each.check_writable(max_age_seconds=max_age_seconds) for each in self._databases.values()]
        results = await asyncio.gather(*checks, return_exceptions=True)
        failures = [each for each in results if isinstance(each, BaseException)]
        for failure in failures:
            if len(failures) == len(results) or not isinstance(failure, StoreUnavailable):
                raise failure

    async def check_recordable(self, tenant: str) -> None:
        await self._get_database(await self.find_cell(tenant)).check_recordable(tenant)

    def list_lost_cells(self) -> list[str]:
        return [name for name, database in self._databases.items() if database.is_lost]

    def on_connection_loss(self, callback: LossCallback) -> None:
        for name, database in self._databases.items():
            database.on_connection_loss(lambda _, name=name: callback(partial(self._may_live_in, name)))

    def _may_live_in(self, cell: str, tenant: str) -> bool:
        location = self._locations.get(split_space(tenant)[0])
        return location is None or location.cell == cell

    def get_pool_stats(self) -> PoolStats:
        stats = [each.get_pool_stats() for each in self._databases.values()]
        return PoolStats(sum(each.in_use for each in stats), sum(each.idle for each in stats))

    def get_replica_state(self) -> None:
        return None

    async def scrub(self) -> None:
        """Does nothing, as on PostgreSQL."""

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._databases.values()))
