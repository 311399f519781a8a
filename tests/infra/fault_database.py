"""Databases that faults are injected into, directly or through PgBouncer; benchmarks/patroni.py has one of three."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from infra.fault_schedule import FaultKind
from infra.pgbouncer import PgBouncer
from infra.postgres import Cluster, PostgresServer
from quire.db import migrate
from quire.db.database_url import build_conninfo
from quire.jobs import queue_schema

DATABASE_NAME, APPLICATION_ROLE = "quire", "quire_app"
POOLER_SETTINGS = {"default_pool_size": "20", "query_wait_timeout": "5", "server_login_retry": "1"}


class FaultDatabase(Protocol):
    pooler: PgBouncer | None
    """In front of the primary; the last node connects through it."""

    @property
    def ports(self) -> Sequence[int]: ...

    @property
    def admin_conninfo(self) -> str: ...

    @property
    def unsupported_faults(self) -> frozenset[FaultKind]: ...

    def url(self, *, ports: Sequence[int] | None = None) -> str:
        """URL of the application's role, directly or through proxies in front of `ports`."""
        ...

    async def inject(self, kind: FaultKind, seconds: float) -> None:
        """Injects a fault, and returns when the database is healthy again."""
        ...


class SingleDatabase:
    """One PostgreSQL: a kill is followed by a restart."""

    unsupported_faults = frozenset({FaultKind.KILL_POSTGRES, FaultKind.SWITCH_OVER, FaultKind.FILL_DISK})

    def __init__(self, cluster: Cluster, *, pooler: PgBouncer | None = None) -> None:
        self._cluster, self.pooler = cluster, pooler
        cluster.create_role(APPLICATION_ROLE)
        cluster.create_database(DATABASE_NAME)
        create_schema(cluster.url(DATABASE_NAME))
        self.ports = [cluster.port]
        self.admin_conninfo = build_conninfo(cluster.url(DATABASE_NAME))

    def url(self, *, ports: Sequence[int] | None = None) -> str:
        [port] = ports or self.ports
        return f"postgresql://{APPLICATION_ROLE}@127.0.0.1:{port}/{DATABASE_NAME}"

    async def inject(self, kind: FaultKind, seconds: float) -> None:
        match kind:
            case FaultKind.KILL_PRIMARY:
                await asyncio.to_thread(self._cluster.kill)
                await asyncio.sleep(seconds)
                await asyncio.to_thread(self._cluster.restart)
            case FaultKind.FREEZE_PRIMARY:
                self._cluster.freeze()
                await asyncio.sleep(seconds)
                self._cluster.thaw()
            case _:
                raise NotImplementedError(kind)


def start_pooler(port: int) -> PgBouncer:
    return PgBouncer.start(PostgresServer(port), users=(APPLICATION_ROLE,), settings=POOLER_SETTINGS)


def create_schema(url: str) -> None:
    migrate.upgrade(url)
    migrate.grant_access(url, APPLICATION_ROLE)
    queue_schema.upgrade(url)
    queue_schema.grant(url, APPLICATION_ROLE)
